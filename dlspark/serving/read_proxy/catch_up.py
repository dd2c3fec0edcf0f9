"""`CatchUpTurns`: who may read behind the rings, and whose turn is next. No I/O.

A reader that begins behind the ring, or falls out of it, needs a read-ahead of its own until it has caught up. Each
costs the storage nodes reads that serve few, and the proxy memory, so there are only so many at a time. Those that wait
are served connection by connection, and each connection's readers in the order in which they came: one that opens a
thousand readers waits behind itself, not others behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class CatchUpTurns(Generic[T]):
    """At most `most` turns at a time."""

    def __init__(self, most: int, grant: Callable[[T], bool]) -> None:
        """`grant` is called with the one whose turn it is; it returns whether the turn is used."""
        self.most = most
        self.taken = 0
        """Turns that are used now."""
        self._grant = grant
        self._queues: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()

    @property
    def contended(self) -> bool:
        """Whether another one waits."""
        return bool(self._queues)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._queues.values()))

    def ask(self, owner: Hashable, who: T) -> None:
        """Ask for a turn for `who`; it may be granted before this returns. Asking again keeps the place."""
        queue = self._queues.setdefault(owner, OrderedDict())
        queue.setdefault(who)
        self._serve()

    def withdraw(self, owner: Hashable, who: T) -> None:
        """Wait no longer; does nothing for one that does not wait."""
        queue = self._queues.get(owner)
        if queue is not None:
            queue.pop(who, None)
            if not queue:
                del self._queues[owner]

    def give_back(self) -> None:
        """End a turn that was used; the next one may be granted before this returns."""
        self.taken -= 1
        self._serve()

    def _serve(self) -> None:
        while self.taken < self.most and self._queues:
            owner, queue = self._queues.popitem(last=False)
            who, _ = queue.popitem(last=False)
            if queue:
                self._queues[owner] = queue  # behind all others
            # Before the call: it may ask for, or give back, turns itself.
            self.taken += 1
            if not self._grant(who):
                self.taken -= 1
