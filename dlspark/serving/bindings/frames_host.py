"""`FramesHost`: what a connection of a frames server needs of its server."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dlspark.serving.bindings.service import FramesLimits, ProxyService, RunTaker
from dlspark.serving.security.authentication import Authentication
from metadata.foundation.pacing import MessageLimit
from storage_node.transport.budgets import Budget
from storage_node.transport.turns import Turns

C = TypeVar("C", contravariant=True)
"""Its connections (`frames_connection.FramesConnection`)."""


class FramesHost(Protocol[C]):
    """The server as its connections need it."""

    service: ProxyService
    runs: RunTaker | None
    """Takes writes that came together; None: each is submitted by itself."""
    authentication: Authentication | None
    """What clients must prove; None: nothing."""
    limits: FramesLimits
    memory: Budget
    """Counts the bytes that all connections hold together."""
    turns: Turns
    """Connections that have a line to go on with."""
    lines: MessageLimit
    """Bounds what clients can cause to be logged."""
    stopping: bool
    """True once nothing new is begun any more."""

    def heard(self, connection: C) -> None:
        """Note that requests came from this connection."""
        ...

    def ended(self, connection: C) -> None:
        """Note that its link is closed; nothing comes from it any more."""
        ...

    def settled(self) -> None:
        """Note that a connection has nothing under way, while the server stops."""
        ...
