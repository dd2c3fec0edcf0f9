"""Which bookies hold a new ledger, and which one takes the place of a failed one: uniformly random distinct bookies.

Bookies that failed lately come last. `Placement` is the seam where rack- and region-aware policies come in.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Protocol

from metadata.bookies import BookieRegistry
from storage_node.client.health import BookieHealth
from storage_node.client.settings import ClientSettings
from storage_node.errors import NotEnoughBookiesError, RequestTimeoutError
from storage_node.protocol.writing import PickReplacements


class Placement(Protocol):
    async def new_ensemble(self, size: int) -> tuple[str, ...]:
        """`size` distinct writable bookies. Raises NotEnoughBookiesError."""
        ...

    async def replacements(self, wanted: PickReplacements) -> Mapping[int, str]:
        """A bookie for as many of the wanted indices as there are. Raises what kept it from looking."""
        ...


class UniformPlacement:
    """Every writable bookie is as good as any other."""

    def __init__(
        self, registry: BookieRegistry, health: BookieHealth, settings: ClientSettings, rng: random.Random
    ) -> None:
        self._registry = registry
        self._health = health
        self._settings = settings
        self._rng = rng

    async def new_ensemble(self, size: int) -> tuple[str, ...]:
        candidates = await self._shuffled()
        if len(candidates) < size:
            raise NotEnoughBookiesError(
                f"the ensemble needs {size} writable storage nodes and {len(candidates)} are registered",
                advice="Start more storage nodes, or ask for a smaller ensemble",
            )
        return tuple(self._health.placing_order(candidates)[:size])

    async def replacements(self, wanted: PickReplacements) -> Mapping[int, str]:
        if wanted.last_resort:
            candidates = await self._shuffled()
        else:
            limit_ms = self._settings.replacement_timeout_ms
            try:
                candidates = await asyncio.wait_for(self._shuffled(), limit_ms / 1000)
            except asyncio.TimeoutError:
                raise RequestTimeoutError(f"the list of storage nodes did not come within {limit_ms} ms") from None
            pause_ms = self._settings.replacement_pause_ms
            candidates = [name for name in candidates if not self._health.failed_within(name, pause_ms)]
        chosen = [name for name in self._health.placing_order(candidates) if name not in wanted.excluded]
        picked: dict[int, str] = {}
        for index in wanted.indices:
            own = wanted.bookies[index]
            if own in chosen:  # a vacant seat's own bookie is back: nothing needs to be written for it
                picked[index] = own
                chosen.remove(own)
        for index in wanted.indices:
            others = [name for name in chosen if name not in wanted.bookies]
            if index not in picked and others:
                picked[index] = others[0]
                chosen.remove(others[0])
        return picked

    async def _shuffled(self) -> list[str]:
        names = sorted(address.bookie_id for address in await self._registry.writable())
        self._rng.shuffle(names)
        return names
