"""The bookies to place on, and their order: writable ones at random (or by free space), the doubtful ones last.

Bookies come in *stages*. A policy tries to keep its rule within the first stage before it looks at the next:

    1. a. those that did not fail lately       b. also those that did, longest ago first
    2. also those in quarantine

Failure and quarantine (`storage_node.client.health`) are advice, never a reason to refuse.

*Free space* is asked of the bookies with GET_BOOKIE_INFO, and bookies are drawn in proportion to it. One that has no
space left, or has not answered, counts like the fullest of the others; none counts for more than a multiple of the
median, so that one large new node does not get everything.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from storage_node.client.health import BookieHealth, Quarantine, Timer
from storage_node.settings.placement import PlacementSettings

_LOG: Final = logging.getLogger(__name__)

Stages = Sequence[Sequence[list[str]]]
"""Groups of ever longer lists of bookies, each in the order in which they are wanted."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """How bookies are weighed by their free space, where the settings ask for it."""

    free_space: FreeSpace
    multiple: int


class Candidates:
    """Lists the writable bookies of one cluster for one client."""

    def __init__(
        self,
        registry: BookieRegistry,
        health: BookieHealth,
        quarantine: Quarantine,
        rng: random.Random,
        weighing: Weighing | None = None,
    ) -> None:
        self._registry = registry
        self._health = health
        self._quarantine = quarantine
        self._rng = rng
        self._weighing = weighing

    async def writable(self) -> list[BookieAddress]:
        """Return all writable bookies, by id."""
        return sorted(await self._registry.writable(), key=lambda address: address.bookie_id)

    async def stages(self, usable: Collection[str], healthy_for_ms: int, *, failed_too: bool = True) -> Stages:
        """Return the `usable` bookies in stages. Healthy ones did not fail for so long; with `failed_too` the others
        come later.
        """
        avoided = await self._quarantine.avoided(self._registry.health_check_disabled)
        order = self._health.placing_order(await self._drawn(sorted(usable)))
        healthy = [bookie for bookie in order if not self._health.failed_within(bookie, healthy_for_ms)]
        known = order if failed_too else healthy
        first = [[b for b in stage if b not in avoided] for stage in (healthy, known)]
        groups = [first, [known]] if avoided else [first]
        return [_distinct(group) for group in groups]

    async def _drawn(self, bookies: list[str]) -> list[str]:
        if self._weighing is None:
            self._rng.shuffle(bookies)
            return bookies
        free = await self._weighing.free_space.of(bookies)
        return weighted_order(bookies, effective_weights(free, self._weighing.multiple), self._rng)


def _distinct(stages: Sequence[list[str]]) -> list[list[str]]:
    """Return the stages without those that add no bookie."""
    kept: list[list[str]] = []
    for stage in stages:
        if not kept or len(stage) > len(kept[-1]):
            kept.append(stage)
    return kept


# ------------------------------------------------------------------------------------ free space

AskFreeSpace = Callable[[str, Callable[[int | None], None]], None]
"""Ask a bookie for its free bytes; the answer, None for a failure, comes once and never from inside the call."""


def effective_weights(free: Mapping[str, int], multiple: int) -> dict[str, float]:
    """Return what each bookie counts for; all above 0. `multiple` of the median is the most (0: no limit)."""
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
    """Return the bookies as if drawn one after the other without replacement, each with probability in proportion to
    its weight.
    """
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
                self._ask(bookie, lambda free, bookie=bookie: self._answered(bookie, free))  # type: ignore[misc]
        waiting = [self._first[bookie] for bookie in bookies if bookie in self._first]
        if waiting:
            await asyncio.wait(waiting)
        return {bookie: self._free.get(bookie, 0) for bookie in bookies}

    def _answered(self, bookie: str, free: int | None) -> None:
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
