"""`LogReturn`: cold units back into ledgers, so that Java and readers of before cold storage can read them.

From the newest cold unit downwards, so that the log's list has no hole at any moment: for each unit its visible
segments are written into new ledgers, entry by entry under the same ids, and one conditional transaction puts them into
the list (`metadata.distributedlog.cold_returns`). The unit stays, with its file, as one whose hot copies are there;
they go again after `keep_hot_until_ms`, oldest first, as ever.

Entries come from the file as readers get them: records of the same slots, positions and ids, uncompressed, members of a
record set as records of their own, and control records empty. Every row group's digest is checked before any of its
bytes gets into a ledger.

Fault model: the process may die, requests may be lost, storage nodes may fail; another client may truncate the log,
move it or write it at the same time. A unit is back whole or not at all, and what was begun of one is swept. Running it
again goes on below the units that are back.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dlspark.cold.restoring.staged_ledgers import SegmentSource, StagedLedgers
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_returns import ColdReturns, ColdView, ReturnRacedError, returning
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit
from metadata.distributedlog.permissions import Action
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError
from metadata.foundation.pacing import for_each
from metadata.retry import MAX_REPEATS

LEDGERS_AT_ONCE: Final = 4
"""Segments of a unit that are written at the same time."""

OpenSource: TypeAlias = Callable[[SegmentMetadata], AbstractAsyncContextManager[SegmentSource]]


@dataclass(frozen=True, slots=True)
class UnitToReturn:
    """Which unit comes back, and how much is that?

    Args:
        first, last: numbers of its segments that come back.
        records: in them.
        bytes: of one copy of their ledgers, as they were before.
    """

    first: int
    last: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReturnPlan:
    """What would a return put into the list, newest first, and what ends it?

    Args:
        units: what comes back.
        hidden: whether it ends where a truncation hides what is below.
    """

    units: tuple[UnitToReturn, ...]
    hidden: bool


def plan_return(view: ColdView, from_segment: int = 0) -> ReturnPlan:
    """Return which units come back down to the one that has `from_segment`."""
    found: list[UnitToReturn] = []
    begins = view.begins
    for one in reversed(view.units):
        unit = one.value
        if unit.last >= begins:
            continue
        if unit.last + 1 != begins or unit.last < from_segment or unit.state is not UnitState.HOT_DELETED:
            break
        segments = returning(unit, view.cold.value.truncated_to)
        if segments:
            found.append(_to_return(unit, segments))
        if len(segments) < len(unit.segments):
            return ReturnPlan(tuple(found), hidden=True)
        begins = unit.first
    return ReturnPlan(tuple(found), hidden=False)


def _to_return(unit: ColdUnit, segments: list[SegmentMetadata]) -> UnitToReturn:
    numbers = {one.lssn for one in segments}
    size = sum(one.bytes for one in unit.segments if one.metadata.lssn in numbers)
    return UnitToReturn(segments[0].lssn, segments[-1].lssn, sum(one.record_count for one in segments), size)


class LogReturn:
    """Returns cold segments of one log into its list.

    Args:
        services: the namespace's.
        settings: the log's.
        log: the log.
        client_id: who does it, for others that want to work on the log's cold storage meanwhile.
        open_source: opens what has a segment's entries; as readers do unless given.
    """

    def __init__(
        self,
        services: Services,
        settings: Settings,
        log: str,
        *,
        client_id: str | None = None,
        open_source: OpenSource | None = None,
    ) -> None:
        self._services = services
        self._settings = settings
        self._log = log
        self._client_id = client_id or default_client_id()
        self._open_source = open_source or self._as_readers_do
        self._returns = ColdReturns(services.logs)
        self._cold = ColdStore(services.logs)

    @asynccontextmanager
    async def _as_readers_do(self, segment: SegmentMetadata) -> AsyncIterator[SegmentSource]:
        from dlspark.core.reading.segment_ledger import SegmentLedger

        opened = await SegmentLedger.open(self._services, self._settings, self._log, segment)
        try:
            yield opened
        finally:
            await opened.close()

    async def plan(self, from_segment: int = 0) -> ReturnPlan:
        """Return what `run` would do. Raises LogNotFoundError, and CallerError where nothing of the log is cold."""
        return plan_return(await self._view(), from_segment)

    async def _view(self) -> ColdView:
        view = await self._returns.view(self._log)
        if view is None or not view.units:
            raise CallerError("nothing of the log is in cold files; nothing was done", log=self._log)
        return view

    async def run(
        self,
        *,
        keep_hot_ms: int,
        from_segment: int = 0,
        told: Callable[[UnitToReturn], None] = lambda unit: None,
    ) -> list[UnitToReturn]:
        """Put cold segments back into the list, down to the unit that has `from_segment`; returns what came back.

        Args:
            keep_hot_ms: how long the copies stay at least, milliseconds.
            from_segment: the number of the oldest segment that is wanted; 0: all of them.
            told: called with each unit that is back.

        Raises OwnershipAcquireFailedError while another worker has the log's cold storage, RequestDeniedError,
        DamagedColdFileError and ObjectStoreErrors for what cannot be read, and what writing ledgers raises. Units that
        were told of are back whatever comes.
        """
        await self._services.permit(self._log, Action.WRITE)
        await self._view()  # raises where there is nothing to do, before anything is made
        done: list[UnitToReturn] = []
        lock = await self._cold.worker(self._log, self._client_id)
        await lock.acquire(self._settings.lock_timeout_s * 1000)
        try:
            staged = StagedLedgers(self._services, self._settings, self._log, uuid.uuid4().hex)
            await staged.begin()
            try:
                while (unit := await self._next(staged, from_segment, keep_hot_ms)) is not None:
                    done.append(unit)
                    told(unit)
            finally:
                await staged.end()
        finally:
            await lock.release()
        return done

    async def _next(self, staged: StagedLedgers, from_segment: int, keep_hot_ms: int) -> UnitToReturn | None:
        """Put the next unit back; None where there is none, or none that is wanted."""
        ledgers: dict[int, int] = {}
        written_from: ColdFile | None = None
        for _ in range(MAX_REPEATS):
            # Java's truncations move the list alone: what they hide must not be shown again by files that come back.
            await self._cold.follow_truncation(self._log)
            view = await self._view()
            unit = view.next_to_return()
            if unit is None or unit.value.last < from_segment:
                return None
            if unit.value.file != written_from:
                # Another file took its place, in which records are erased: what was written before has them.
                ledgers, written_from = {}, unit.value.file
            # After a lost race, what was written for these very segments from this very file is used.
            segments = await self._written(staged, view, unit, ledgers)
            listings = {one.ledger_id: staged.taking(one.ledger_id) for one in segments}
            # Again, for writing takes long: where it hides more now, what is put back as of `view` is refused.
            await self._cold.follow_truncation(self._log)
            until_ms = self._services.clock.now_ms() + keep_hot_ms
            try:
                await self._returns.put_back(self._log, view, unit, segments, listings, keep_hot_until_ms=until_ms)
            except ReturnRacedError:
                continue
            return _to_return(unit.value, segments)
        raise ReturnRacedError(
            f"the log was changed {MAX_REPEATS} times while a unit was to come back; nothing of it was changed",
            log=self._log,
            advice="Run it again when less happens to the log",
        )

    async def _written(
        self, staged: StagedLedgers, view: ColdView, unit: Versioned[ColdUnit], ledgers: dict[int, int]
    ) -> list[SegmentMetadata]:
        """Return the unit's visible segments with ledgers that have their entries; `ledgers` has those written
        before."""

        async def write(lssn: int) -> None:
            async with self._open_source(unit.value.segment(lssn, listed=False)) as source:
                ledgers[lssn] = await staged.write(source)

        segments = returning(unit.value, view.cold.value.truncated_to)
        await for_each([one.lssn for one in segments if one.lssn not in ledgers], LEDGERS_AT_ONCE, write)
        return [replace(one, ledger_id=ledgers[one.lssn]) for one in segments]
