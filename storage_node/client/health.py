"""What this client has lately seen of each bookie: it orders the replicas to ask and the bookies to place on.

Only memory, only advice: nothing is ever excluded for good, and a success wipes the slate clean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Timer(Protocol):
    def time(self) -> float:
        """Seconds, monotonic: the running loop's."""
        ...


class BookieHealth:
    """When each bookie failed or was slow last, forgotten after `memory_ms`."""

    def __init__(self, loop: Timer, memory_ms: int) -> None:
        self._loop = loop
        self._memory_s = memory_ms / 1000
        self._failed: dict[str, float] = {}
        self._slow: dict[str, float] = {}

    def failed(self, bookie: str) -> None:
        """It refused, lost the connection, or did not answer."""
        self._failed[bookie] = self._loop.time()

    def slow(self, bookie: str) -> None:
        """Another replica had to be asked beside."""
        self._slow[bookie] = self._loop.time()

    def answered(self, bookie: str) -> None:
        """It did what it was asked to."""
        if self._failed:
            self._failed.pop(bookie, None)

    def failed_within(self, bookie: str, window_ms: int) -> bool:
        when = self._failed.get(bookie)
        return when is not None and self._loop.time() - when < window_ms / 1000

    def reading_order(self, indices: Sequence[int], bookies: Sequence[str]) -> Sequence[int]:
        """`indices` of `bookies` in write-set order, the slow behind the others and the failed last."""
        if not self._failed and not self._slow:
            return indices
        return sorted(indices, key=lambda index: self._rank(bookies[index]))  # stable: order is kept within a rank

    def placing_order(self, bookies: Iterable[str]) -> list[str]:
        """Those that did not fail lately, then the others, longest ago first. Stable."""
        now = self._loop.time()
        return sorted(bookies, key=lambda bookie: self._since(self._failed, bookie, now))

    def _rank(self, bookie: str) -> int:
        now = self._loop.time()
        if self._since(self._failed, bookie, now):
            return 2
        return 1 if self._since(self._slow, bookie, now) else 0

    def _since(self, table: dict[str, float], bookie: str, now: float) -> float:
        """0 if there is nothing to remember, else the greater the more recent."""
        when = table.get(bookie)
        if when is None:
            return 0.0
        left = self._memory_s - (now - when)
        if left <= 0:
            del table[bookie]
            return 0.0
        return left
