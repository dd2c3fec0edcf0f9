"""`LogPictures`: a log as its mover sees it, read anew before each decision, at little cost.

Units are read before the list of hot segments: a segment that leaves the list has its unit by then, so nothing looks
as if it were missing. What is known of a unit whose hot copies are gone holds until `ColdLog.generation` says that a
file was replaced, or a segment restored; so a log with thousands of files costs a few requests a look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dlspark.cold.moving.planning import ColdPicture
from dlspark.core.services import Services
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdAttempt, ColdUnit, parse_unit_name
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import NoNodeError
from metadata.retry import repeat


@dataclass(frozen=True, slots=True)
class LogLook:
    """One look at a log: what is planned by, and what its znodes' versions were?"""

    picture: ColdPicture
    units: tuple[Versioned[ColdUnit], ...]
    attempts: tuple[Versioned[ColdAttempt], ...]

    def unit(self, wanted: ColdUnit) -> Versioned[ColdUnit]:
        """Return a unit of the picture with its version."""
        return next(one for one in self.units if one.value is wanted)


class LogPictures:
    """How does a log look now?

    Args:
        services: of the namespace.
        cold: what is said of cold storage there.
        name: the log.
    """

    def __init__(self, services: Services, cold: ColdStore, name: str) -> None:
        self._services = services
        self._cold = cold
        self._name = name
        self._kept: dict[tuple[int, int], Versioned[ColdUnit]] = {}
        self._kept_of: tuple[str, int] | None = None
        self._ledger_bytes: dict[int, int] = {}

    async def look(self) -> LogLook:
        """Return the log as it is, with all that this session has changed. Raises LogNotFoundError."""
        paths = await self._services.logs.located(self._name)
        await repeat(self._services.store, lambda: self._services.store.sync(paths.partition))
        cold = await self._cold.cold_log(self._name)
        attempts = await self._cold.attempts(self._name) if cold is not None else []
        if cold is not None and self._kept_of != (cold.value.log_id, cold.value.generation):
            self._kept.clear()
            self._kept_of = (cold.value.log_id, cold.value.generation)
        units = await self._units() if cold is not None else ()
        segments = await self._services.logs.hot_segments(self._name)
        producers = await self._services.logs.producer_segments(self._name)
        picture = ColdPicture(
            self._name,
            tuple(segments),
            tuple(one.value for one in units),
            None if cold is None else cold.value,
            tuple(one.value for one in attempts),
            None if producers is None else producers.whole,
        )
        return LogLook(picture, units, tuple(attempts))

    async def _units(self) -> tuple[Versioned[ColdUnit], ...]:
        path = (await self._services.logs.located(self._name)).cold_units
        try:
            names, _ = await repeat(self._services.store, lambda: self._services.store.children(path))
        except NoNodeError:
            return ()
        numbers = sorted(found for found in map(parse_unit_name, names) if found is not None)
        # The oldest one is always read: it is the only one whose file may be on its way out.
        wanted = [one for index, one in enumerate(numbers) if one not in self._kept or index == 0]
        while wanted:
            some, wanted = wanted[:64], wanted[64:]
            found = await asyncio.gather(*(self._cold.unit(self._name, *one) for one in some))
            for one, unit in zip(some, found, strict=True):
                if unit is None:
                    self._kept.pop(one, None)
                else:
                    self._kept[one] = unit
        units = tuple(self._kept[one] for one in numbers if one in self._kept)
        gone = self._kept.keys() - set(numbers)
        for one in [*gone, *(key for key, unit in self._kept.items() if not _is_settled(unit.value))]:
            del self._kept[one]
        return units

    async def ledger_bytes(self, segments: list[SegmentMetadata]) -> dict[int, int]:
        """Return the bytes of segments' ledgers, by number: of one copy. A ledger that is gone has none."""
        unknown = [one for one in segments if one.ledger_id not in self._ledger_bytes]
        for start in range(0, len(unknown), 64):
            await asyncio.gather(*(self._measure(one.ledger_id) for one in unknown[start : start + 64]))
        found = {one.lssn: self._ledger_bytes.get(one.ledger_id, 0) for one in segments}
        wanted = {one.ledger_id for one in segments}
        self._ledger_bytes = {key: value for key, value in self._ledger_bytes.items() if key in wanted}
        return found

    async def _measure(self, ledger_id: int) -> None:
        try:
            metadata = (await self._services.ledger_store.read(ledger_id)).value
        except NoNodeError:
            return  # the segment has left the list since
        if metadata.is_closed:
            self._ledger_bytes[ledger_id] = metadata.length


def _is_settled(unit: ColdUnit) -> bool:
    return unit.state is UnitState.HOT_DELETED and not unit.replaced
