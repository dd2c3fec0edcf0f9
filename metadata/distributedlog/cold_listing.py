"""`MergedListing`: a log's segments as its readers see them: those on the log's own list, and before them those whose
only copy is in a file.

A segment leaves the list in the transaction that makes its file the only copy, and its unit is there before. So a
reader that asks for the list first and for the units' names behind it, in one session, finds each segment in one of the
two (I21).
Names give numbers; what a unit's znode says is read when one of its segments is asked for, and kept.

What is hidden of the segments in files is said once for all of them, by `P/cold`: their own znodes are gone. Where
Java's truncation has hidden more, the list's first segment alone says so, until a worker follows.

When kept data is still right: a unit's segments never change. Its file does where records are erased from it, and its
ledgers where they are put back: `ColdLog.generation` counts both, and says which units these were. That its hot copies
went shows in the list. So a log of any length is listed again by its names, and by the units that are new.

Owners do not use this: what they change is the log's own list (`LogQueries.hot_listing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, Position, hidden_to, parse_unit_name, unit_name
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.segment_listing import (
    READS_AT_ONCE,
    ColdNames,
    ListedSegment,
    SegmentListing,
    SegmentVanishedError,
)
from metadata.distributedlog.segments import COMPLETED_PREFIX, SegmentListError, SegmentMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError, present
from metadata.foundation.tasks import together
from metadata.retry import repeat
from metadata.store import MetadataStore, Watcher

MAX_KEPT_BYTES: Final = 192 << 20
"""About the memory of the units that are kept, of all logs of a namespace together: 100,000 units of one segment each,
or three times as many segments of larger ones."""
_UNITS_A_TURN: Final = 4
"""Units of which segments are made before other tasks have their turn: 500 segments of one take some milliseconds."""
UNIT_BYTES: Final = 1_300
SEGMENT_BYTES: Final = 600
"""About what a unit takes, and each of its segments (measured with tracemalloc, CPython 3.12)."""

_LOG: Final = logging.getLogger(__name__)


class _ReadUnit(NamedTuple):
    unit: ColdUnit
    creation: int
    generation: int
    version: int

    @property
    def bytes(self) -> int:
        return kept_bytes(self.unit)


class KeptUnit(Protocol):
    """What is kept of a unit, with what its keeper knows of it?"""

    @property
    def unit(self) -> ColdUnit:
        """The unit."""

    @property
    def bytes(self) -> int:
        """About the memory that it takes."""


K = TypeVar("K", bound=KeptUnit)


def kept_bytes(unit: ColdUnit) -> int:
    """Return about the memory of a unit."""
    return UNIT_BYTES + SEGMENT_BYTES * len(unit.segments)


class KeptUnits(Generic[K]):
    """Which units need not be read again? Of all logs of a namespace; those of logs used longest ago go first.

    A log that has no room by itself keeps what it has: of one that is read from its beginning again and again, whatever
    went to make room would be asked for next.
    """

    def __init__(self) -> None:
        self._logs: OrderedDict[str, dict[str, K]] = OrderedDict()
        self.bytes = 0
        """About the memory of what is kept."""

    def get(self, log: str, name: str) -> K | None:
        """Return a unit by the name of its znode."""
        units = self._logs.get(log)
        if units is None:
            return None
        self._logs.move_to_end(log)
        return units.get(name)

    def keep(self, log: str, kept: K) -> None:
        """Keep a unit, if there is room or another log makes room."""
        units = self._logs.setdefault(log, {})
        self._logs.move_to_end(log)
        self._drop(units, kept.unit.name)
        while self.bytes + kept.bytes > MAX_KEPT_BYTES:
            if len(self._logs) == 1:
                return
            _, oldest = self._logs.popitem(last=False)
            self.bytes -= sum(one.bytes for one in oldest.values())
        units[kept.unit.name] = kept
        self.bytes += kept.bytes

    def keep_only(self, log: str, names: Sequence[str]) -> None:
        """Forget the units of a log that are none of these."""
        units = self._logs.get(log)
        if units is not None and len(units) > 0:
            for name in units.keys() - set(names):
                self._drop(units, name)

    def forget(self, log: str) -> None:
        """Forget all units of a log."""
        self.bytes -= sum(one.bytes for one in self._logs.pop(log, {}).values())

    def _drop(self, units: dict[str, K], name: str) -> None:
        before = units.pop(name, None)
        self.bytes -= before.bytes if before is not None else 0


class ColdLister:
    """Which segments of a namespace's logs lie in files? Lists the units, and reads those that are not known yet.

    Args:
        store: the session.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._kept: KeptUnits[_ReadUnit] = KeptUnits()

    async def names(self, paths: LogPaths, watch: Watcher | None = None) -> ColdNames | None:
        """Return which units there are; None for a log that never had one. Nothing is repeated here.

        `watch` fires once when anything of the log's cold storage changes, where it has any. Raises CorruptDataError.
        """
        if paths.cold not in self._known:
            # As a rule a log has no cold storage: one request, which goes along with the one for its list, so it costs
            # no time. The list's own answer cannot carry it: a log's first file changes nothing in the list, nor may
            # it, for upstream's owners depend on the list's version; an older "none" would miss what has left since
            # (I21); and to ask only where the list begins later than it did costs a round trip at each new segment.
            if await self._store.exists(paths.cold) is None:
                return None
            self._known.add(paths.cold)
        found, names = await asyncio.gather(
            self._store.get(paths.cold, watch), self._children(paths.cold_units), return_exceptions=True
        )
        if isinstance(found, NoNodeError):
            self._known.discard(paths.cold)  # the log was deleted or renamed
            self._kept.forget(paths.cold)
            return None
        if isinstance(found, BaseException):
            raise found
        if isinstance(names, BaseException):
            raise names
        data, stat = found
        self._kept.keep_only(paths.cold, names)
        units = sorted(unit for unit in map(parse_unit_name, names) if unit is not None)
        return ColdNames(ColdLog.decode(data, paths.cold), stat, tuple(units))

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._store.children(path))[0]
        except NoNodeError:
            return []

    def kept_unit(self, paths: LogPaths, names: ColdNames, first: int, last: int, *, listed: bool) -> ColdUnit | None:
        """Return what `unit` would without asking for it; None where that is not known."""
        kept = self._kept.get(paths.cold, unit_name(first, last))
        if kept is None or not _is_right(kept, names, listed):
            return None
        if kept.generation != names.log.generation:
            # It was right up to here: of later changes the log's mark tells, of ever older ones it does not.
            self._kept.keep(paths.cold, kept._replace(generation=names.log.generation))
        return kept.unit

    async def unit(self, paths: LogPaths, names: ColdNames, first: int, last: int, *, listed: bool) -> ColdUnit | None:
        """Return a unit as of `names` or later; None where it has gone since. `listed`: one of its segments is still on
        the log's list, so that it does not matter how far it has come. Raises CorruptDataError."""
        kept = self.kept_unit(paths, names, first, last, listed=listed)
        if kept is not None:
            return kept
        path = f"{paths.cold_units}/{unit_name(first, last)}"
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        unit = ColdUnit.decode(data, path)
        if (unit.first, unit.last) != (first, last):
            raise CorruptDataError(f"it says that it has segments {unit.first} to {unit.last}", path=path)
        self._kept.keep(paths.cold, _ReadUnit(unit, names.stat.czxid, names.log.generation, names.stat.version))
        return unit


def _is_right(kept: _ReadUnit, names: ColdNames, listed: bool) -> bool:
    if kept.creation != names.stat.czxid or not names.log.same_since(kept.generation, kept.unit.first):
        return False  # of another log of that name, or of a file that may be another one by now
    return listed or kept.unit.state is not UnitState.FINISHED or kept.version == names.stat.version


class MergedListing(SegmentListing):
    """Which segments can a log's readers read? A listing of the log's own list with those before it that lie in files
    alone; the segments of both say where their copy in a file is (`SegmentMetadata.cold`).

    Args:
        hot: the log's own list.
        names: the units.
        lister: reads them.
        paths: the log's znodes.
    """

    def __init__(self, hot: SegmentListing, names: ColdNames, lister: ColdLister, paths: LogPaths) -> None:
        """Hold what is known already. See `merged` for what it may raise."""
        before = _before(hot, names)
        super().__init__(hot.log, [*before, *hot], cold=names)
        self._in_files_alone = len(before)
        self.version, self.creation = hot.version, hot.creation
        self._hot = hot
        self._names = names
        self._lister = lister
        self._paths = paths
        self._read_units: dict[tuple[int, int], ColdUnit | None] = {}
        self._reading: dict[tuple[int, int], asyncio.Lock] = {}

    async def read(self, listed: ListedSegment) -> SegmentMetadata:
        """Return a segment's metadata. Raises SegmentVanishedError, CorruptDataError."""
        numbers = self._names.unit_of(listed.lssn)
        if not listed.cold:
            return await self._read_hot(listed, numbers)
        unit = await self._unit(numbers, listed=False) if numbers is not None else None
        return self._cold_segment(listed, unit, await self._hidden_to())

    async def read_all(self, first: int = 0, after: int | None = None) -> list[SegmentMetadata]:
        """Return the metadata of the segments of these indices, in order. Raises as `read` does."""
        wanted = self._listed[first:after]
        alone = wanted[: max(0, self._in_files_alone - slice(first, after).indices(len(self))[0])]
        runs: list[tuple[tuple[int, int], Sequence[ListedSegment]]] = []
        done = 0
        while done < len(alone):
            numbers = present(self._names.unit_of(alone[done].lssn), "a segment in a file has a unit")
            run = alone[done : done + numbers[1] - alone[done].lssn + 1]
            runs.append((numbers, run))
            done += len(run)
        return await self._read_units_of(runs) + await self._read_each(wanted[done:])

    async def _read_units_of(
        self, runs: Sequence[tuple[tuple[int, int], Sequence[ListedSegment]]]
    ) -> list[SegmentMetadata]:
        """Return the segments of units, the oldest first."""
        # A task for each unit that is not known, none for each segment: there may be 100,000 of them.
        found: list[SegmentMetadata] = []
        truncated_to = await self._hidden_to() if runs else (0, 0, 0)
        for start in range(0, len(runs), READS_AT_ONCE):
            some = runs[start : start + READS_AT_ONCE]
            unknown = [numbers for numbers, _ in some if self._known_unit(numbers) is None]
            await together(self._unit(numbers, listed=False) for numbers in unknown)
            for index, (numbers, run) in enumerate(some):
                unit = self._read_units[numbers]
                found += [self._cold_segment(one, unit, truncated_to) for one in run]
                if index % _UNITS_A_TURN == 0:
                    await asyncio.sleep(0)  # other tasks' turn: where all is known nothing else here waits
        return found

    def _known_unit(self, numbers: tuple[int, int]) -> ColdUnit | None:
        if numbers not in self._read_units:
            kept = self._lister.kept_unit(self._paths, self._names, *numbers, listed=False)
            if kept is None:
                return None
            self._read_units[numbers] = kept
        return self._read_units[numbers]

    async def _hidden_to(self) -> Position:
        """Return the position below which all is hidden of what lies in files."""
        noted = self._names.log.truncated_to
        if not len(self._hot) or self._hot[0].in_progress:
            return noted
        try:
            return max(noted, hidden_to(await self._hot.read(self._hot[0])))
        except CorruptDataError:
            return noted  # Whoever comes to that segment is told.

    def _cold_segment(self, listed: ListedSegment, unit: ColdUnit | None, truncated_to: Position) -> SegmentMetadata:
        if unit is None:
            raise SegmentVanishedError("the file that has a segment was given up", log=self.log, path=self._paths.cold)
        mirrors = self._names.log.mirrors
        return unit.segment(listed.lssn, listed=False, truncated_to=truncated_to, mirrors=mirrors)

    async def _read_hot(self, listed: ListedSegment, numbers: tuple[int, int] | None) -> SegmentMetadata:
        if numbers is None or listed.in_progress or self._names.log.deleted:
            segment = await self._hot.read(listed)
            self.reads = self._hot.reads
            return segment
        segment, unit = await asyncio.gather(self._hot.read(listed), self._unit_beside(numbers))
        self.reads = self._hot.reads
        if unit is None:
            return segment
        copied = unit.segments[segment.lssn - unit.first].metadata
        if copied.ledger_id != segment.ledger_id:
            return segment
        place = unit.place(segment.lssn, listed=True, mirrors=self._names.log.mirrors)
        return replace(segment, cold=place, former_ledgers=copied.former_ledgers)

    async def _unit_beside(self, numbers: tuple[int, int]) -> ColdUnit | None:
        try:
            return await self._unit(numbers, listed=True)
        except CorruptDataError as error:
            # The segment itself is there and right: its reader needs no file.
            _LOG.warning("log %s: where segments %d to %d lie in a file cannot be read: %s", self.log, *numbers, error)
            return None

    async def _unit(self, numbers: tuple[int, int], *, listed: bool) -> ColdUnit | None:
        # Many segments of one unit are asked for at a time: one of them reads it.
        async with self._reading.setdefault(numbers, asyncio.Lock()):
            if numbers not in self._read_units:
                try:
                    unit = await self._lister.unit(self._paths, self._names, *numbers, listed=listed)
                except CorruptDataError as error:
                    error.log = self.log
                    raise
                self._read_units[numbers] = unit
            return self._read_units[numbers]


def merged(hot: SegmentListing, lister: ColdLister, paths: LogPaths, *, validate_sequence: bool) -> SegmentListing:
    """Return the listing of a log's readers, of its own list and of the units' names that were asked for beside it.

    Raises SegmentListError, where sequences are validated, for segments that are in neither of the two though they are
    not hidden.
    """
    names = hot.cold
    if names is None or not names.units:
        return hot
    listing = MergedListing(hot, names, lister, paths)
    if validate_sequence:
        _check_sequence(listing, names)
    return listing


def _before(hot: SegmentListing, names: ColdNames) -> list[ListedSegment]:
    """Return the segments that lie in files alone: those before the first one on the list."""
    if names.log.deleted:
        return []
    first = hot[0].lssn if len(hot) else None
    numbers = [lssn for begin, end in names.units for lssn in range(begin, end + 1) if first is None or lssn < first]
    return [ListedSegment(lssn, False, f"{COMPLETED_PREFIX}_{lssn:018d}", cold=True) for lssn in numbers]


def _check_sequence(listing: SegmentListing, names: ColdNames) -> None:
    """Raise SegmentListError for a gap that truncation does not explain: what lies below it is all hidden then."""
    for index in range(1, len(listing)):
        before, after = listing[index - 1], listing[index]
        if not before.cold:
            return  # The list itself has been looked at.
        if after.lssn > before.lssn + 1 and names.log.truncated_to < (after.lssn, 0, 0):
            raise SegmentListError(
                f"segment {after.lssn} follows segment {before.lssn}, which lies in a file: one between is missing",
                log=listing.log,
                advice="Was a segment, or a znode of its cold storage, deleted by hand? Only the oldest may go",
            )
