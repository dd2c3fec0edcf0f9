"""`LogPictures`: a log as its mover sees it, read anew before each decision, at little cost.

Units are read before the list of hot segments: a segment that leaves the list has its unit by then, so nothing looks
as if it were missing. Units are kept by `UnitKeeper`, so a log with thousands of files costs a few requests a look.
What a look shows may be a moment old, as everything is that was read: each step checks the versions it was given.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dlspark.cold.moving.planning import ColdPicture
from dlspark.core.services import Services
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_kept import UnitKeeper
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdAttempt, ColdUnit
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import NoNodeError


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
        self._keeper = UnitKeeper(services.logs.store)
        self._paths: LogPaths | None = None
        self._ledger_bytes: dict[int, int] = {}

    async def look(self) -> LogLook:
        """Return the log as it is, with all that this session has changed. Raises LogNotFoundError."""
        self._paths = paths = await self._services.logs.located(self._name)
        seen = await self._keeper.log(paths)
        attempts = await self._cold.attempts(self._name) if seen is not None else []
        units = await self._keeper.units(paths, seen) if seen is not None else []
        segments = await self._services.logs.hot_segments(self._name)
        if seen is not None:
            units = await self._keeper.settled(paths, seen, units, {one.lssn for one in segments})
        producers = await self._services.logs.producer_segments(self._name)
        picture = ColdPicture(
            self._name,
            tuple(segments),
            tuple(one.value for one in units),
            None if seen is None else seen.log.value,
            tuple(one.value for one in attempts),
            None if producers is None else producers.whole,
        )
        return LogLook(picture, tuple(units), tuple(attempts))

    def forget(self) -> None:
        """Read the whole log with the next look: something of it may not be as it was kept."""
        if self._paths is not None:
            self._keeper.forget(self._paths)

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
