"""`MergedListing`: a log's segments as its readers see them: those on the log's own list, and before them those whose
only copy is in a file.

A segment leaves the list in the transaction that makes its file the only copy, and its unit is there before. So a
reader that asks for the list first and for the units' names behind it, in one session, finds each segment in one of the
two (I21).
Names give numbers; what a unit's znode says is read when one of its segments is asked for, and kept.

What is hidden of the segments in files is said once for all of them, by `P/cold`: their own znodes are gone.

When kept data is still right: a unit's segments never change. Its file does where records are erased from it, which
`ColdLog.generation` counts. That its hot copies went shows in the list.

Owners do not use this: what they change is the log's own list (`LogQueries.hot_listing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import replace
from typing import Final, NamedTuple

from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, parse_unit_name, unit_name
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.segment_listing import ColdNames, ListedSegment, SegmentListing, SegmentVanishedError
from metadata.distributedlog.segments import COMPLETED_PREFIX, SegmentListError, SegmentMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore, Watcher

MAX_KEPT: Final = 20_000
"""Segments of units that are kept, of all logs of a namespace together."""

_LOG: Final = logging.getLogger(__name__)


class _KeptUnit(NamedTuple):
    unit: ColdUnit
    creation: int
    generation: int
    version: int


class ColdLister:
    """Which segments of a namespace's logs lie in files? Lists the units, and reads those that are not known yet.

    Args:
        store: the session.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._kept: OrderedDict[str, _KeptUnit] = OrderedDict()
        self._count = 0

    async def names(self, paths: LogPaths, watch: Watcher | None = None) -> ColdNames | None:
        """Return which units there are; None for a log that never had one. Nothing is repeated here.

        `watch` fires once when anything of the log's cold storage changes, where it has any. Raises CorruptDataError.
        """
        if paths.cold not in self._known:
            # As a rule a log has no cold storage: one request, which goes along with the one for its list.
            if await self._store.exists(paths.cold) is None:
                return None
            self._known.add(paths.cold)
        found, names = await asyncio.gather(
            self._store.get(paths.cold, watch), self._children(paths.cold_units), return_exceptions=True
        )
        if isinstance(found, NoNodeError):
            self._known.discard(paths.cold)  # the log was deleted or renamed
            return None
        if isinstance(found, BaseException):
            raise found
        if isinstance(names, BaseException):
            raise names
        data, stat = found
        units = sorted(unit for unit in map(parse_unit_name, names) if unit is not None)
        return ColdNames(ColdLog.decode(data, paths.cold), stat, tuple(units))

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._store.children(path))[0]
        except NoNodeError:
            return []

    async def unit(self, paths: LogPaths, names: ColdNames, first: int, last: int, *, listed: bool) -> ColdUnit | None:
        """Return a unit as of `names` or later; None where it has gone since. `listed`: one of its segments is still on
        the log's list, so that it does not matter how far it has come. Raises CorruptDataError."""
        path = f"{paths.cold_units}/{unit_name(first, last)}"
        kept = self._kept.get(path)
        if kept is not None and _is_right(kept, names, listed):
            self._kept.move_to_end(path)
            return kept.unit
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        unit = ColdUnit.decode(data, path)
        if (unit.first, unit.last) != (first, last):
            raise CorruptDataError(f"it says that it has segments {unit.first} to {unit.last}", path=path)
        self._keep(path, _KeptUnit(unit, names.stat.czxid, names.log.generation, names.stat.version))
        return unit

    def _keep(self, path: str, kept: _KeptUnit) -> None:
        before = self._kept.pop(path, None)
        self._count += len(kept.unit.segments) - (len(before.unit.segments) if before is not None else 0)
        self._kept[path] = kept
        while self._count > MAX_KEPT and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._count -= len(oldest.unit.segments)


def _is_right(kept: _KeptUnit, names: ColdNames, listed: bool) -> bool:
    if (kept.creation, kept.generation) != (names.stat.czxid, names.log.generation):
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
        super().__init__(hot.log, [*_before(hot, names), *hot], cold=names)
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
        if unit is None:
            raise SegmentVanishedError("the file that has a segment was given up", log=self.log, path=self._paths.cold)
        return unit.segment(listed.lssn, listed=False, truncated_to=self._names.log.truncated_to)

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
        return replace(segment, cold=unit.place(segment.lssn, listed=True), former_ledgers=copied.former_ledgers)

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
