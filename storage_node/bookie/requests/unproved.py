"""`Unproved`: connections of a node that have not proved yet what they have to, before they are heard (`gate`).

They are bounded in number and in time, from when they came and whatever they say meanwhile. Where there are too many,
those go first that have begun no proof (START_TLS, AUTH), then the oldest: of hundreds of clients that come at once,
after a restart, those that are nearest to their proof stay as long as others only hold a place. Each one goes after the
time for a change to TLS. A client of ours or of Java's proves itself at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from storage_node.transport.newcomers import MAX_NEWCOMERS

GRACE_S: Final = 1.0
"""So much longer, once, has a client whose bytes have come and were not read yet: the node was busy, not the client."""


class ShutGate(Protocol):
    """What a connection has to pass."""

    def has_more(self) -> bool:
        """Return whether bytes of it have come that were not read yet."""
        ...

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
        self._silent: OrderedDict[ShutGate, None] = OrderedDict()
        """Those of them that have begun no proof."""

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, gate: ShutGate) -> None:
        """Count one more."""
        if len(self._waiting) >= MAX_NEWCOMERS:
            # Where most have begun, those who have not are honest ones that have only just come as likely as not.
            many = 2 * len(self._silent) >= len(self._waiting)
            goes = next(iter(self._silent if many else self._waiting))
            self._turn_out(goes, "it has proved nothing yet, and others wait to")
        self._waiting[gate] = asyncio.get_running_loop().call_later(self.limit_s, self._late, gate, True)
        self._silent[gate] = None

    def began(self, gate: ShutGate) -> None:
        """Note that it has begun to prove itself. Idempotent; its time goes on."""
        self._silent.pop(gate, None)

    def left(self, gate: ShutGate) -> None:
        """Count it no more: it is let in, or closed. Idempotent."""
        self._silent.pop(gate, None)
        timer = self._waiting.pop(gate, None)
        if timer is not None:
            timer.cancel()

    def _late(self, gate: ShutGate, first: bool) -> None:
        if first and gate.has_more():
            self._waiting[gate] = asyncio.get_running_loop().call_later(GRACE_S, self._late, gate, False)
        else:
            self._turn_out(gate, f"the client has not proved itself within {self.limit_s:g} s")

    def _turn_out(self, gate: ShutGate, reason: str) -> None:
        self.left(gate)
        gate.turn_out(reason)
