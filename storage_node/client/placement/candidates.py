"""The bookies to place on, and their order: writable ones at random (or by free space), the doubtful ones last.

Bookies come in *stages*. A policy tries to keep its rule within the first stage before it looks at the next:

    1. a. those that did not fail lately       b. also those that did, longest ago first
    2. also those in quarantine

Failure and quarantine are advice, never a reason to refuse.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from metadata.bookies import BookieAddress, BookieRegistry
from storage_node.client.health import BookieHealth
from storage_node.client.placement.quarantine import Quarantine
from storage_node.client.placement.weights import FreeSpace, effective_weights, weighted_order

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
        """All writable bookies, by id."""
        return sorted(await self._registry.writable(), key=lambda address: address.bookie_id)

    async def stages(self, usable: Collection[str], healthy_for_ms: int, *, failed_too: bool = True) -> Stages:
        """`usable` bookies in stages. Healthy ones did not fail for so long; `failed_too`: the others come later."""
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
    """Without the stages that add no bookie."""
    kept: list[list[str]] = []
    for stage in stages:
        if not kept or len(stage) > len(kept[-1]):
            kept.append(stage)
    return kept
