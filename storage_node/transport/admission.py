"""Which connections a server has, and which one is closed when there is one too many.

A connection that has asked nothing yet is closed first, the oldest of them. Then, where one address has more than half
of all places and a client from elsewhere comes, the connection from that address that has been silent for longest; then
whichever has been silent for longest, if that is long enough. If none can be closed the newcomer is refused: every
place is in use. So a thousand idle connections keep no client out, and a client whose idle connection was closed makes
another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

IDLE_S = 5.0
"""A connection from which something came within this time is not closed for another one from the same address."""


class Guest(Protocol):
    """A connection."""

    @property
    def peer(self) -> str:
        """`host:port`."""
        ...


G = TypeVar("G", bound=Guest)


class Admission:
    """May one more connection be made?

    Args:
        now: a clock, in seconds.
        limit: connections at most; 0: any number.
    """

    def __init__(self, now: Callable[[], float], limit: int = 0) -> None:
        self.limit = limit
        self._now = now
        self._silent: OrderedDict[Guest, None] = OrderedDict()
        """Connections that have asked nothing yet, in the order in which they came."""
        self._heard: dict[str, OrderedDict[Guest, float]] = {}
        """The others by address, in the order in which something last came from them, and when that was."""
        self._places: dict[Guest, OrderedDict[Guest, float]] = {}
        """Which of those each is in."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def arrived(self, guest: G) -> Guest | None:
        """Count a connection that was made. Returns the one to be closed for it, which is counted no more and may be
        itself.
        """
        self._count += 1
        self._silent[guest] = None
        if not self.limit or self._count <= self.limit:
            return None
        leaving = self._who_goes(_address(guest)) or guest
        self.left(leaving)
        return leaving

    def heard(self, guest: Guest) -> None:
        """Note that something came from the connection: it is not idle."""
        known = self._places.get(guest)
        if known is None:
            if guest not in self._silent:
                return  # it has left
            del self._silent[guest]
            known = self._places[guest] = self._heard.setdefault(_address(guest), OrderedDict())
        known[guest] = self._now()
        known.move_to_end(guest)

    def left(self, guest: Guest) -> None:
        """Count a connection no more that is closed, or about to be. Idempotent."""
        if guest in self._silent:
            del self._silent[guest]
            self._count -= 1
            return
        known = self._places.pop(guest, None)
        if known is not None:
            del known[guest]
            self._count -= 1
            if not known:
                del self._heard[_address(guest)]

    def _who_goes(self, newcomers: str) -> Guest | None:
        if len(self._silent) > 1:
            return next(iter(self._silent))
        if not self._heard:
            return None
        crowded = max(self._heard, key=lambda address: len(self._heard[address]))
        if crowded != newcomers and len(self._heard[crowded]) > self.limit // 2:
            return next(iter(self._heard[crowded]))
        quietest, since = min((next(iter(known.items())) for known in self._heard.values()), key=lambda item: item[1])
        return quietest if self._now() - since > IDLE_S else None


def _address(guest: Guest) -> str:
    return guest.peer.rpartition(":")[0]
