"""What the load needs of a system: logs of its own, one that publishes, one that delivers. No system is known here.

Records go to a system in bursts: those of one log that are due. It acknowledges them one by one or whole, from any
thread. Records of a burst count as acknowledged when the last of them is: late by less than a burst, in every system.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from storage_node.protocol.frames import Buffer

Outcome: TypeAlias = "tuple[Burst, int, str | None]"
"""A burst that has ended, when, and why it is not acknowledged."""


class Burst:
    """Which records are to be written to a log now, together?

    Args:
        log: number of the log.
        first: number of the first record in the log.
        due_ns: when each record was due.
        rows: the records, a row each.
        outcomes: where the burst goes when it ends.
    """

    __slots__ = ("_acknowledged", "_outcomes", "due_ns", "first", "log", "rows")

    def __init__(
        self,
        log: int,
        first: int,
        due_ns: npt.NDArray[np.int64],
        rows: npt.NDArray[np.uint8],
        outcomes: deque[Outcome],
    ) -> None:
        self.log = log
        self.first = first
        self.due_ns = due_ns
        self.rows = rows
        self._outcomes = outcomes
        self._acknowledged = count(1)

    def __len__(self) -> int:
        return len(self.due_ns)

    def payloads(self) -> list[bytes]:
        """Return the records one by one."""
        size = self.rows.shape[1]
        data = self.rows.tobytes()
        return [data[at : at + size] for at in range(0, len(data), size)]

    def acknowledge_one(self) -> None:
        """Note that one more of its records is stored."""
        # One step of the interpreter: threads may do so at the same time.
        if next(self._acknowledged) == len(self):
            self.acknowledge()

    def acknowledge(self) -> None:
        """Note that all of its records are stored."""
        self._outcomes.append((self, time.monotonic_ns(), None))

    def fail(self, reason: str) -> None:
        """Note that a record of it may not be stored; only the first reason of a burst counts."""
        self._outcomes.append((self, time.monotonic_ns(), reason))


class BurstPublisher(Protocol):
    """Writes bursts to logs."""

    def has_room(self, log: int) -> bool:
        """Return whether a burst for this log would be sent soon. Else what falls due waits, for a larger one."""
        ...

    def publish(self, burst: Burst) -> None:
        """Take a burst, without waiting for anything. What becomes of it, the burst learns."""
        ...


Deliver: TypeAlias = Callable[[int, Buffer, int], None]
"""Takes records of a log that lie behind each other, and when they came; from any thread."""


class Consumer(Protocol):
    """Delivers all records of logs."""

    def check(self) -> None:
        """Raise what has made it end, if it has."""
        ...


class System(Protocol):
    """Is there a server that takes the load? It can be pickled: one that reads is a process of its own."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    @property
    def about(self) -> str:
        """Its durability, for people; known once it has logs."""
        ...

    @property
    def server_pids(self) -> tuple[int, ...]:
        """Its processes on this machine, where these are known."""
        ...

    def logs(self, names: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """Make logs of these names, and delete them when the block is left."""
        ...

    def publisher(self, names: Sequence[str]) -> AbstractAsyncContextManager[BurstPublisher]:
        """Open what writes to these logs."""
        ...

    def consumer(self, names: Sequence[str], deliver: Deliver) -> AbstractAsyncContextManager[Consumer]:
        """Open what reads these logs from their beginning. When it is entered, it waits for records."""
        ...
