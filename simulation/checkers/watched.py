"""A cluster as checkers see it: its time and trace, its nodes with their disks and bookies, its clients.

`simulation.cluster` makes the cluster and its checkers, so the checkers name only these protocols of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simulation.checkers.history import Trace
from simulation.environment.disk import SimulatedDisk
from simulation.environment.loop import Process, SimulatedLoop
from storage_node.bookie.node.bookie import Bookie


class WatchedNode(Protocol):
    """The host of a storage node."""

    name: str
    disk: SimulatedDisk
    bookie: Bookie | None
    serving: bool
    damaged: bool
    runs: int


class WatchedClient(Protocol):
    """The host of a client, and the process that runs there."""

    name: str
    process: Process | None


class WatchedWorld(Protocol):
    """The cluster as a whole."""

    loop: SimulatedLoop
    trace: Trace

    @property
    def nodes(self) -> Sequence[WatchedNode]:
        """Every storage node's host."""

    def reached(self, point: str) -> None:
        """Count a coverage point."""
