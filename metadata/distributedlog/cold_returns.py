"""`ColdReturns`: how segments that are in files alone come back into the list of a log, as other ledgers.

One conditional transaction for each unit, which everybody who may change the list at the same time collides with:

| operation | refuses, or makes others refuse |
|---|---|
| set `P/cold`, at the version read | a truncation, a mover's step or another return since the list was read |
| set `P` as it is, at the version read | a truncation that read the list before, and would mark a part of it (I8) |
| set the unit: FINISHED, with its segments' new ledgers, at its version | whoever was first with this unit |
| create each segment's znode | a segment of the number that is there |
| delete each ledger's listing, at version 0 | a sweep that has condemned a ledger |

Units come back from the newest downwards, each only where the list begins right behind it: so the list never has a
hole (docs/reference/znodes.md#hiding-and-deleting-segments). What a truncation hides does not come back, and what it
hides of a segment stays hidden in the returned one.

Fault model: the process may die anywhere; a ledger is listed under a sink of its own until the transaction refers to
it, so it is swept like what a failed batch left. A lost answer is found out: the unit names the new ledgers or does
not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, Position, hidden_below, parse_unit_name
from metadata.distributedlog.log_names import LogPaths, log_not_found_error
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
    check,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import Check, Create, MetadataStore, Op, SetData, Stat, request_bytes

MAX_RETURN_BYTES: Final = 900_000
"""Bytes of one transaction: a unit has at most 500 segments, which fit."""
MAX_FORMER: Final = 16
"""Former ledgers of a segment that its unit names: a znode has room for so many of 500 segments."""
_AT_ONCE: Final = 32


class ReturnRacedError(NotAppliedError):
    """The log was changed since it was read; this transaction changed nothing. Read it again."""


@dataclass(frozen=True, slots=True)
class ColdView:
    """What is hot of a log, and what is cold, as of versions that a transaction can depend on?

    Args:
        turn: the operation that fails where segments were marked since.
        cold: the log's identity in files, and what is hidden.
        units: all units, in order.
        hot: numbers of the segments in the list, in order.
        highest: the highest number that a segment had, with its version.
    """

    turn: SetData
    cold: Versioned[ColdLog]
    units: tuple[Versioned[ColdUnit], ...]
    hot: tuple[int, ...]
    highest: Versioned[int]

    @property
    def begins(self) -> int:
        """The number that the list begins with; of an empty list the next one."""
        return self.hot[0] if self.hot else self.highest.value + 1

    def next_to_return(self) -> Versioned[ColdUnit] | None:
        """Return the unit right before the list, if its hot copies are gone; None where nothing can come back."""
        found = [one for one in self.units if one.value.last + 1 == self.begins]
        if not found or found[0].value.state is not UnitState.HOT_DELETED or self.cold.value.deleted:
            return None
        return found[0] if returning(found[0].value, self.cold.value.truncated_to) else None


def returning(unit: ColdUnit, truncated_to: Position) -> list[SegmentMetadata]:
    """Return the segments of a unit that a truncation has not hidden, as the list is to have them but for their
    ledgers."""
    shown = [replace(hidden_below(one.metadata, truncated_to), cold=None) for one in unit.segments]
    return [one for one in shown if one.truncation is not TruncationStatus.TRUNCATED]


def returned_unit(unit: ColdUnit, segments: Sequence[SegmentMetadata], keep_hot_until_ms: int | None) -> ColdUnit:
    """Return a unit whose `segments` are in the list again, under the ledgers that they name."""
    ledgers = {one.lssn: one.ledger_id for one in segments}
    changed = tuple(
        replace(one, metadata=_in_ledger(one.metadata, ledgers[one.metadata.lssn]))
        if one.metadata.lssn in ledgers
        else one
        for one in unit.segments
    )
    return replace(
        unit, state=UnitState.FINISHED, segments=changed, hot_deleted_ms=None, keep_hot_until_ms=keep_hot_until_ms
    )


def _in_ledger(segment: SegmentMetadata, ledger_id: int) -> SegmentMetadata:
    """Return a segment that lies in another ledger by now, and is known by all that it was: offsets of streams, plans
    and readers that were here before name the former ones."""
    former = (*segment.former_ledgers, segment.ledger_id)
    if len(former) > MAX_FORMER:
        # The first one is what offsets name, of whatever time; of the others the newest may still be under a reader.
        former = (former[0], *former[len(former) - MAX_FORMER + 1 :])
    return replace(segment, ledger_id=ledger_id, former_ledgers=former)


class ColdReturns:
    """How do a unit's segments get into the list again? Of the logs of one namespace."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs

    @property
    def _store(self) -> MetadataStore:
        return self._logs.store

    async def view(self, name: str) -> ColdView | None:
        """Return a log as it is now; None where nothing of it is cold. Raises LogNotFoundError, CorruptDataError."""
        paths = await self._logs.located(name)
        await repeat(self._store, lambda: self._store.sync(paths.partition))
        try:
            # In this order: whatever changes the list afterwards, the versions read before do not fit any more.
            data, stat = await self._get(paths.partition)
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error
        turn = SetData(paths.partition, data, stat.version)
        try:
            data, stat = await self._get(paths.cold)
        except NoNodeError:
            return None
        cold = Versioned(ColdLog.decode(data, paths.cold), stat.version)
        end = await self._logs.end(name)
        listing = await self._logs.hot_segments(name)
        return ColdView(turn, cold, await self._units(paths), tuple(one.lssn for one in listing), end.max_lssn)

    async def _get(self, path: str) -> tuple[bytes, Stat]:
        return await repeat(self._store, lambda: self._store.get(path))

    async def _units(self, paths: LogPaths) -> tuple[Versioned[ColdUnit], ...]:
        parent = paths.cold_units
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(parent))
        except NoNodeError:
            return ()
        gate = asyncio.Semaphore(_AT_ONCE)

        async def read(name: str) -> Versioned[ColdUnit] | None:
            path = f"{parent}/{name}"
            async with gate:
                try:
                    data, stat = await self._get(path)
                except NoNodeError:
                    return None  # it has just gone, and with it the version of `P/cold`
            return Versioned(ColdUnit.decode(data, path), stat.version)

        wanted = sorted(name for name in names if parse_unit_name(name) is not None)
        return tuple(one for one in await asyncio.gather(*map(read, wanted)) if one is not None)

    async def put_back(
        self,
        name: str,
        view: ColdView,
        unit: Versioned[ColdUnit],
        segments: Sequence[SegmentMetadata],
        listings: Mapping[int, Op],
        *,
        keep_hot_until_ms: int | None,
    ) -> ColdUnit:
        """Put segments of a unit, which is `view.next_to_return()`, into the list; returns the unit as it is then.

        Args:
            name: the log.
            view: as of which that was decided.
            unit: the unit.
            segments: `returning` of it, each with its new ledger, which is closed and has all entries.
            listings: by ledger, what deletes its listing.
            keep_hot_until_ms: how long the copies stay at least.

        Raises ReturnRacedError: nothing was changed; an OutcomeUnknownError where the metadata store stays away.
        """
        check(bool(segments) and segments[-1].lssn + 1 == view.begins, "a unit comes back right before the list")
        paths = await self._logs.located(name)
        cold = view.cold.value
        after = returned_unit(unit.value, segments, keep_hot_until_ms)
        path = f"{paths.cold_units}/{after.name}"
        ops: list[Op] = [
            # Another generation: what others keep of the unit has its old ledgers.
            SetData(paths.cold, replace(cold, generation=cold.generation + 1).encode(), view.cold.version),
            view.turn,
            SetData(path, after.encode(), unit.version),
            *(Create(paths.segment(one), one.encode()) for one in segments),
            *(listings[one.ledger_id] for one in segments),
        ]
        if not view.hot:
            # Nothing follows in the list that these have to lie right before: then no segment may have begun since.
            ops.append(Check(paths.ledgers, view.highest.version))
        check(request_bytes(ops) <= MAX_RETURN_BYTES, "a unit does not fit into one transaction", log=name)
        for attempt in range(MAX_REPEATS):
            try:
                await self._store.multi(ops)
            except OutcomeUnknownError:
                if await self._is_back(path, after):
                    return after
                if attempt + 1 == MAX_REPEATS:
                    raise
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                # Our own first try, whose answer was lost, moves all versions, too.
                if attempt and await self._is_back(path, after):
                    return after
                raise ReturnRacedError("the log has just been changed", log=name, path=error.path) from error
            else:
                return after
        raise AssertionError("unreachable")

    async def _is_back(self, path: str, after: ColdUnit) -> bool:
        try:
            await repeat(self._store, lambda: self._store.sync(path))
            data, _ = await self._get(path)
        except NoNodeError:
            return False
        # No other client has these ledgers: the data is ours.
        return bytes(data) == after.encode()
