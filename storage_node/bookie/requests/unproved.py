"""`Unproved`: connections of a node that have not proved yet what they have to, before they are heard (`gate`).

They are bounded in number and in time, from when they came and whatever they say meanwhile: the oldest goes where there
are too many, and each one after the time for a change to TLS. A client of ours or of Java's proves itself at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from storage_node.transport.newcomers import MAX_NEWCOMERS


class ShutGate(Protocol):
    """What a connection has to pass."""

    def turn_out(self, reason: str) -> None:
        """Close the connection."""
        ...


class Unproved:
    """Which connections of a node have something to prove yet?

    Args:
        limit_s: each of them is closed after so many seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._waiting: OrderedDict[ShutGate, asyncio.TimerHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, gate: ShutGate) -> None:
        """Count one more."""
        if len(self._waiting) >= MAX_NEWCOMERS:
            self._turn_out(next(iter(self._waiting)), "it has proved nothing yet, and others wait to")
        late = f"the client has not proved itself within {self.limit_s:g} s"
        loop = asyncio.get_running_loop()
        self._waiting[gate] = loop.call_later(self.limit_s, self._turn_out, gate, late)

    def left(self, gate: ShutGate) -> None:
        """Count it no more: it is let in, or closed. Idempotent."""
        timer = self._waiting.pop(gate, None)
        if timer is not None:
            timer.cancel()

    def _turn_out(self, gate: ShutGate, reason: str) -> None:
        self.left(gate)
        gate.turn_out(reason)
