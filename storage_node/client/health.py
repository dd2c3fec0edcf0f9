"""What this client has lately seen of each bookie: it orders the replicas to ask and the bookies to place on.

It is kept in memory and is advice only: no bookie is excluded for good, and a success clears what was held against it.

*Answer times.* Each read's time goes into a moving average of its bookie. A bookie that is clearly slower than the
fastest one lags, and is asked after those that do not; it stops lagging only when it is nearly as fast again, so that
the order does not flap. Bookies that are about equally fast are never sorted: their reads stay spread by the striping.
A lagging bookie is asked less, so what is known of it grows old: after a while it is forgotten, and tried anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

AVERAGE_WEIGHT = 0.2
"""The weight of the newest answer time in a bookie's average."""
JUDGE_EVERY = 8
"""Answers of a bookie from one comparison with the others to the next."""
LAG_FACTOR, LAG_S = 3.0, 0.005
"""A bookie lags when its average is above the fastest one's by both this factor and this difference."""
LEVEL_FACTOR, LEVEL_S = 1.5, 0.002
"""It stops lagging when its average is within either of these."""
LAG_MEMORY_S = 10.0

FAILED, SLOW, READ_ONLY, LAGGING, GOOD = 4, 3, 2, 1, 0
"""Ranks in reading order, last to first."""


class Timer(Protocol):
    def time(self) -> float:
        """Seconds, monotonic: the running loop's."""
        ...


class _Pace:
    """How fast one bookie answers reads."""

    __slots__ = ("average_s", "heard", "samples")

    def __init__(self, average_s: float, now: float) -> None:
        self.average_s = average_s
        self.heard = now
        self.samples = 1


class BookieHealth:
    """When each bookie failed or was slow last, forgotten after `memory_ms`, and how fast it answers."""

    def __init__(self, loop: Timer, memory_ms: int) -> None:
        self.on_trouble: Callable[[], None] | None = None
        """Called when a bookie failed or was slow."""
        self._loop = loop
        self._memory_s = memory_ms / 1000
        self._failed: dict[str, float] = {}
        self._slow: dict[str, float] = {}
        self._paces: dict[str, _Pace] = {}
        self._lagging: dict[str, float] = {}
        self._read_only: dict[str, float] = {}
        self._absent: dict[str, float] = {}

    # ------------------------------------------------------------------------------------ what was seen

    def failed(self, bookie: str) -> None:
        """The bookie refused, lost the connection, or did not answer."""
        self._failed[bookie] = self._loop.time()
        if self.on_trouble is not None:
            self.on_trouble()

    def slow(self, bookie: str) -> None:
        """Another replica had to be asked as well."""
        self._slow[bookie] = self._loop.time()
        if self.on_trouble is not None:
            self.on_trouble()

    def answered(self, bookie: str, asked: float | None = None) -> None:
        """The bookie did what it was asked to; `asked` is the time at which it was asked for one entry."""
        if self._failed:
            self._failed.pop(bookie, None)
        if asked is None:
            return
        now = self._loop.time()
        pace = self._paces.get(bookie)
        if pace is None:
            self._paces[bookie] = _Pace(now - asked, now)
            return
        pace.average_s += (now - asked - pace.average_s) * AVERAGE_WEIGHT
        pace.samples += 1
        pace.heard = now
        if pace.samples % JUDGE_EVERY == 0:
            self._judge(bookie, pace)

    def heard_since(self, bookie: str, when: float) -> bool:
        """Whether it has answered a read since then."""
        pace = self._paces.get(bookie)
        return pace is not None and pace.heard > when

    def registered(self, writable: Iterable[str], read_only: Iterable[str], known: Iterable[str]) -> None:
        """The cluster's lists, as they are now, for the bookies that are `known`."""
        now = self._loop.time()
        writable, read_only = set(writable), set(read_only)
        self._read_only = dict.fromkeys(read_only - writable, now)
        self._absent = {bookie: now for bookie in known if bookie not in writable and bookie not in read_only}

    def _judge(self, bookie: str, pace: _Pace) -> None:
        now = pace.heard
        recent = [p.average_s for p in self._paces.values() if now - p.heard < LAG_MEMORY_S]
        fastest = min(recent)
        if bookie not in self._lagging:
            if pace.average_s > fastest * LAG_FACTOR and pace.average_s - fastest > LAG_S:
                self._lagging[bookie] = now
        elif pace.average_s < fastest * LEVEL_FACTOR or pace.average_s - fastest < LEVEL_S:
            del self._lagging[bookie]
        else:
            self._lagging[bookie] = now

    # ------------------------------------------------------------------------------------ what follows

    def failed_within(self, bookie: str, window_ms: int) -> bool:
        """Whether a request to the bookie failed in the last `window_ms`."""
        when = self._failed.get(bookie)
        return when is not None and self._loop.time() - when < window_ms / 1000

    def reading_order(self, indices: Sequence[int], bookies: Sequence[str]) -> Sequence[int]:
        """`indices` of `bookies` in write-set order, but those behind that lag, only read, were slow, or failed."""
        if not (self._failed or self._slow or self._lagging or self._read_only or self._absent):
            return indices
        return sorted(indices, key=lambda index: self.rank(bookies[index]))  # stable: order is kept within a rank

    def placing_order(self, bookies: Iterable[str]) -> list[str]:
        """Those that did not fail lately, then the others, longest ago first. Stable."""
        now = self._loop.time()
        return sorted(bookies, key=lambda bookie: self._since(self._failed, bookie, now, self._memory_s))

    def rank(self, bookie: str) -> int:
        """The bookie's rank in reading order: GOOD to FAILED."""
        now = self._loop.time()
        if self._since(self._failed, bookie, now, self._memory_s) or self._since(
            self._absent, bookie, now, self._memory_s
        ):
            return FAILED
        if self._since(self._slow, bookie, now, self._memory_s):
            return SLOW
        if self._since(self._read_only, bookie, now, self._memory_s):
            return READ_ONLY
        if self._since(self._lagging, bookie, now, LAG_MEMORY_S):
            return LAGGING
        self._paces_forgotten(bookie, now)
        return GOOD

    def _paces_forgotten(self, bookie: str, now: float) -> None:
        """Forget the answer times of a bookie that has not been asked for long: they say nothing any more."""
        pace = self._paces.get(bookie)
        if pace is not None and now - pace.heard > LAG_MEMORY_S:
            del self._paces[bookie]

    def _since(self, table: dict[str, float], bookie: str, now: float, memory_s: float) -> float:
        """0 where nothing is remembered; otherwise greater, the more recent it is."""
        when = table.get(bookie)
        if when is None:
            return 0.0
        left = memory_s - (now - when)
        if left <= 0:
            del table[bookie]
            return 0.0
        return left
