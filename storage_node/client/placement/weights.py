"""Drawing bookies in proportion to their free disk space, which is asked of them with GET_BOOKIE_INFO.

A bookie that has no space left, or has not answered, counts like the fullest of the others; none counts for more than a
multiple of the median, so that one large new node does not get everything.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from storage_node.client.health import Timer
from storage_node.settings.placement import PlacementSettings

AskFreeSpace = Callable[[str, Callable[[int | None], None]], None]
"""Ask a bookie for its free bytes; the answer, None for a failure, comes once and never from inside the call."""


def effective_weights(free: Mapping[str, int], multiple: int) -> dict[str, float]:
    """What each bookie counts for; all above 0. `multiple` of the median is the most (0: no limit)."""
    positive = [space for space in free.values() if space > 0]
    if not positive:
        return dict.fromkeys(free, 1.0)
    smallest = min(positive)
    weights = {bookie: float(space if space > 0 else smallest) for bookie, space in free.items()}
    if multiple > 0:
        most = multiple * statistics.median(weights.values())
        weights = {bookie: min(weight, most) for bookie, weight in weights.items()}
    return weights


def weighted_order(bookies: Sequence[str], weights: Mapping[str, float], rng: random.Random) -> list[str]:
    """As if drawn one after the other without replacement, each with probability in proportion to its weight."""
    due = {bookie: rng.expovariate(weights[bookie]) for bookie in bookies}  # the first of independent clocks to ring
    return sorted(bookies, key=lambda bookie: due[bookie])


class FreeSpace:
    """The free space that bookies reported last; asked anew as the settings say, when a caller needs it."""

    def __init__(self, ask: AskFreeSpace, settings: PlacementSettings, timer: Timer) -> None:
        self._ask = ask
        self._interval_s = settings.get_bookie_info_interval_s
        self._retry_s = settings.get_bookie_info_retry_interval_s
        self._timer = timer
        self._free: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._first: dict[str, asyncio.Future[None]] = {}

    async def of(self, bookies: Sequence[str]) -> Mapping[str, int]:
        """Free bytes of each, 0 where it is not known. Waits only for bookies that are asked for the first time."""
        now = self._timer.time()
        for gone in self._due.keys() - set(bookies):
            self._forget(gone)
        for bookie in bookies:
            if self._due.get(bookie, now) <= now:
                if bookie not in self._due:
                    self._first[bookie] = asyncio.get_running_loop().create_future()
                self._due[bookie] = now + self._retry_s
                self._ask(bookie, lambda free, bookie=bookie: self._told(bookie, free))  # type: ignore[misc]
        waiting = [self._first[bookie] for bookie in bookies if bookie in self._first]
        if waiting:
            await asyncio.wait(waiting)
        return {bookie: self._free.get(bookie, 0) for bookie in bookies}

    def _told(self, bookie: str, free: int | None) -> None:
        if free is not None and bookie in self._due:
            self._free[bookie] = free
            self._due[bookie] = self._timer.time() + self._interval_s
        self._end_wait(bookie)

    def _forget(self, bookie: str) -> None:
        del self._due[bookie]
        self._free.pop(bookie, None)
        self._end_wait(bookie)

    def _end_wait(self, bookie: str) -> None:
        first = self._first.pop(bookie, None)
        if first is not None and not first.done():
            first.set_result(None)
