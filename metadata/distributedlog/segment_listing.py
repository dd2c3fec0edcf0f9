"""`SegmentListing`: a log's segments by their names; what their znodes hold is read when it is asked for, and kept.

A name gives a segment's LSSN and whether it is in progress, so a position in a log of 10,000 segments costs one request
for the names and one for each of a handful of segments. Old logs have names that do not give these
(docs/reference/znodes.md#segment-names): they are read whole, and so is a log in which a name and its znode's data
disagree, for then the data is right.

When kept data is still right: a segment's znode is never set anew. Completion makes another name; truncation deletes
and creates the same name in one transaction (docs/reference/znodes.md#segment-lists). The parent's child version
counts creations and deletions. So where it moved by exactly as many as names came and went, no name was made anew;
where it moved by more, all that was kept of the log is dropped. A parent that was itself made anew (another creation
id) is another log.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from metadata.distributedlog.cold_units import ColdLog
from metadata.distributedlog.segments import (
    COMPLETED_PREFIX,
    IN_PROGRESS_PREFIX,
    SegmentListError,
    SegmentMetadata,
    gap_in,
    order,
)
from metadata.foundation.errors import CorruptDataError, NoNodeError, NotAppliedError
from metadata.retry import repeat
from metadata.store import MetadataStore, Stat, Watcher

T = TypeVar("T")

MAX_SEGMENTS: Final = 10_000
TTL_MS: Final = 600_000
RELISTS: Final = 5
"""How often a list is read again because a segment went while it was read."""
READS_AT_ONCE: Final = 256
"""Znodes that are asked for at the same time."""
_NUMBERED: Final = re.compile(rf"({IN_PROGRESS_PREFIX}|{COMPLETED_PREFIX})_(\d{{18,19}})")


class ColdNames(NamedTuple):
    """Which segments of a log lie in files, by the names of units alone?"""

    log: ColdLog
    stat: Stat
    """That of `P/cold`, whose version counts the changes."""
    units: tuple[tuple[int, int], ...]
    """Numbers of the first and the last segment of each, ascending."""

    def unit_of(self, lssn: int) -> tuple[int, int] | None:
        """Return the unit that has the segment of this number; None where none has."""
        index = bisect_right(self.units, lssn, key=lambda unit: unit[0]) - 1
        return self.units[index] if index >= 0 and lssn <= self.units[index][1] else None


Beside: TypeAlias = Callable[[], Awaitable[ColdNames | None]]
"""Asks for what lies in files; None for a log that never had any."""


class SegmentVanishedError(NotAppliedError):
    """A listed segment was completed, truncated or deleted before it was read: list again."""


class ListedSegment(NamedTuple):
    """Which segment does a znode's name stand for, as far as the name says it?"""

    lssn: int
    in_progress: bool
    name: str
    cold: bool = False
    """True where it has left the log's own list: only its copy in a file is left (`cold_listing`)."""


@dataclass(slots=True)
class _Kept:
    """Which segments of one log are known, as of a version of their parent znode?"""

    czxid: int
    cversion: int
    names: frozenset[str]
    since: float
    data: dict[str, SegmentMetadata] = field(default_factory=dict)


class SegmentCache:
    """Which segments need not be read again? Metadata that was read, of all logs of a namespace; the logs used longest
    ago go first.

    Args:
        enabled: False keeps nothing.
        max_segments: segments kept; no more logs are known than that, for the names alone take memory too.
        ttl_ms: how long anything kept is believed, also where nothing seems to have changed.
    """

    def __init__(self, *, enabled: bool = True, max_segments: int = MAX_SEGMENTS, ttl_ms: int = TTL_MS) -> None:
        self._max_segments = max_segments if enabled else 0
        self._ttl_s = ttl_ms / 1000
        self._logs: OrderedDict[str, _Kept] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Return how many segments are kept."""
        return self._count

    def refresh(self, log: str, names: frozenset[str], stat: Stat) -> dict[str, SegmentMetadata]:
        """Return what is kept and still right now that the log's parent znode has these names and this stat."""
        if not self._max_segments:
            return {}
        now = asyncio.get_running_loop().time()
        kept = self._logs.get(log)
        before = len(kept.data) if kept is not None else 0
        if kept is None or kept.czxid != stat.czxid or now - kept.since > self._ttl_s:
            kept = _Kept(stat.czxid, stat.cversion, names, now)
        else:
            moved = (stat.cversion - kept.cversion) & 0xFFFF_FFFF
            gone = kept.names - names
            if moved != len(gone) + len(names - kept.names):
                kept = _Kept(stat.czxid, stat.cversion, names, now)
            elif moved:
                # A copy where names went: a late answer about one of them must not be kept for its successor.
                data = {name: s for name, s in kept.data.items() if name not in gone} if gone else kept.data
                kept = _Kept(stat.czxid, stat.cversion, names, kept.since, data)
        self._count += len(kept.data) - before
        self._logs[log] = kept
        self._logs.move_to_end(log)
        while len(self._logs) > self._max_segments:
            self._drop_oldest()
        return kept.data

    def keep(self, log: str, data: dict[str, SegmentMetadata], segment: SegmentMetadata) -> None:
        """Keep a segment among `data`, if there is room; other logs make room."""
        # Only in the data of the listing that it was read for: after a refresh the name may be another segment's.
        kept = self._logs.get(log)
        if kept is None or kept.data is not data or len(data) >= self._max_segments:
            return
        self._count += segment.znode_name not in data
        data[segment.znode_name] = segment
        self._logs.move_to_end(log)
        while self._count > self._max_segments and len(self._logs) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, oldest = self._logs.popitem(last=False)
        self._count -= len(oldest.data)


class SegmentListing:
    """Which segments has a log? Names in order of LSSN, and the reading of single ones.

    Args:
        log: its name.
        listed: its segments, by their names.
        data: metadata that is known already.
        read: reads the metadata of others.
        stat: that of the segments' parent at the moment of the names.
        cold: what was asked for beside the names (`SegmentLister.listing`).
    """

    def __init__(
        self,
        log: str,
        listed: Sequence[ListedSegment] = (),
        data: Mapping[str, SegmentMetadata] | None = None,
        read: Callable[[ListedSegment], Awaitable[SegmentMetadata]] | None = None,
        *,
        stat: Stat | None = None,
        cold: ColdNames | None = None,
    ) -> None:
        """Hold what is known already."""
        self.log = log
        self.cold = cold
        self.version = stat.version if stat is not None else -1
        """Data version of the segments' parent (`LogState.max_lssn`)."""
        self.creation = stat.czxid if stat is not None else -1
        """Which log this is of all that ever had the name: the transaction that made the segments' parent."""
        self.reads = 0
        """Segments that were read for this listing, because they were not kept."""
        self.open = tuple(one for one in listed if one.in_progress)
        self._listed = tuple(listed)
        self._data = data if data is not None else {}
        self._read = read

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, index: int) -> ListedSegment:
        return self._listed[index]

    def __iter__(self) -> Iterator[ListedSegment]:
        return iter(self._listed)

    def index_of(self, lssn: int) -> int:
        """Index of the first segment with this LSSN or a higher one."""
        return bisect_left(self._listed, lssn, key=lambda one: one.lssn)

    def find(self, lssn: int) -> ListedSegment | None:
        """Return the segment with this LSSN."""
        index = self.index_of(lssn)
        return self._listed[index] if index < len(self) and self._listed[index].lssn == lssn else None

    async def read(self, listed: ListedSegment) -> SegmentMetadata:
        """Return a segment's metadata. Raises SegmentVanishedError, CorruptDataError."""
        found = self._data.get(listed.name)
        if found is None:
            if self._read is None:
                raise SegmentVanishedError("the segment is not in this list", log=self.log)
            self.reads += 1
            found = await self._read(listed)
        return found

    async def read_all(self, first: int = 0, after: int | None = None) -> list[SegmentMetadata]:
        """Return the metadata of the segments of these indices, in order. Raises as `read` does."""
        return await self._read_each(self._listed[first:after])

    async def _read_each(self, wanted: Sequence[ListedSegment]) -> list[SegmentMetadata]:
        found: list[SegmentMetadata] = []
        for start in range(0, len(wanted), READS_AT_ONCE):
            found += await asyncio.gather(*(self.read(one) for one in wanted[start : start + READS_AT_ONCE]))
        return found

    async def first_where(self, holds: Callable[[SegmentMetadata], bool]) -> int:
        """Index of the first segment for which `holds`, by a binary search; `len` where it holds for none.

        It must hold for all segments after one for which it holds.
        """
        first, after = 0, len(self)
        while first < after:
            middle = (first + after) // 2
            if holds(await self.read(self._listed[middle])):
                after = middle
            else:
                first = middle + 1
        return first


class _Names(NamedTuple):
    segments: list[str]
    data: dict[str, SegmentMetadata]
    """What is kept of them and still right."""
    stat: Stat
    """Their parent's."""
    cold: ColdNames | None


class SegmentLister:
    """Which segments have a namespace's logs now? Lists them, and reads the ones that are not known yet.

    Args:
        store: the session.
        cache: the segments that were read before.
        skip_minimum_version: read versions that are too old to be read safely.
        validate_sequence: refuse lists whose numbers have gaps.
    """

    def __init__(
        self,
        store: MetadataStore,
        cache: SegmentCache,
        *,
        skip_minimum_version: bool = False,
        validate_sequence: bool = True,
    ) -> None:
        self._store = store
        self._cache = cache
        self._skip_minimum_version = skip_minimum_version
        self._validate_sequence = validate_sequence
        self._misnamed: set[str] = set()

    async def listing(
        self, log: str, path: str, watch: Watcher | None = None, beside: Beside | None = None
    ) -> SegmentListing:
        """Return the segments below `path`; `watch` fires once when one comes or goes.

        `beside` is asked each time that names are asked for, right behind that request and in the same session, and the
        listing has its answer: what it says is never older than the names. Raises NoNodeError where the path does not
        exist, SegmentListError where a segment in the middle is missing.
        """
        names = await self._names(log, path, watch, beside)
        named = self._by_names(log, names.segments)
        if named is None or (self._validate_sequence and _has_gap(named)):
            return await self.listing_by_data(log, path, watch, beside)
        return self._listing(log, path, named, names)

    async def segments(self, log: str, path: str, watch: Watcher | None = None) -> list[SegmentMetadata]:
        """Return all segments, read. A segment that keeps vanishing while it is read is left out. Raises as `listing`
        does."""
        for _ in range(RELISTS):
            listing = await self.listing(log, path, watch)
            try:
                return await listing.read_all()
            except SegmentVanishedError:
                continue
        return (await self._read_in_order(log, path, watch, None))[0]

    # ------------------------------------------------------------------ by name

    def _by_names(self, log: str, names: Sequence[str]) -> list[ListedSegment] | None:
        """Return the segments in order, by their names; None where the names do not give numbers."""
        if self._skip_minimum_version or log in self._misnamed:
            return None  # Segments of version 1 have no LSSN of their own, so their names cannot be trusted.
        found = []
        for name in names:
            parts = _NUMBERED.fullmatch(name)
            if parts is None:
                return None
            found.append(ListedSegment(int(parts[2]), parts[1] == IN_PROGRESS_PREFIX, name))
        return sorted(found, key=lambda one: (one.lssn, not one.in_progress))

    def _listing(self, log: str, path: str, listed: Sequence[ListedSegment], names: _Names) -> SegmentListing:
        async def read(one: ListedSegment) -> SegmentMetadata:
            segment = await self._read(log, f"{path}/{one.name}")
            if segment is None:
                raise SegmentVanishedError("a segment went before it was read", log=log, path=f"{path}/{one.name}")
            if (segment.lssn, segment.in_progress) != (one.lssn, one.in_progress):
                self._misnamed.add(log)
                raise SegmentVanishedError("a segment's name and data disagree", log=log, path=f"{path}/{one.name}")
            self._cache.keep(log, names.data, segment)
            return segment

        return SegmentListing(log, listed, names.data, read, stat=names.stat, cold=names.cold)

    # ------------------------------------------------------------------ by data

    async def listing_by_data(
        self, log: str, path: str, watch: Watcher | None, beside: Beside | None
    ) -> SegmentListing:
        """Return what `listing` returns, all segments read: one that keeps vanishing meanwhile is left out."""
        segments, names = await self._read_in_order(log, path, watch, beside)
        listed = [ListedSegment(s.lssn, s.in_progress, s.znode_name) for s in segments]
        return SegmentListing(log, listed, {s.znode_name: s for s in segments}, stat=names.stat, cold=names.cold)

    async def _read_in_order(
        self, log: str, path: str, watch: Watcher | None, beside: Beside | None
    ) -> tuple[list[SegmentMetadata], _Names]:
        """Return the segments, and the names by which they were read."""
        for _ in range(RELISTS):
            names = await self._names(log, path, watch, beside)
            read = await asyncio.gather(*(self._read(log, f"{path}/{name}", names.data) for name in names.segments))
            segments = order(segment for segment in read if segment is not None)
            if len(segments) == len(names.segments):
                break
        gap = gap_in(segments) if self._validate_sequence else None
        if gap is not None and len(segments) < len(names.segments):
            # The writer rolls faster than we read. What lies before the gap is right, and the watch brings the rest.
            return [segment for segment in segments if segment.lssn <= gap[0]], names
        if gap is not None:
            raise SegmentListError(
                f"segment {gap[1]} follows segment {gap[0]}: one between them is missing",
                log=log,
                path=path,
                advice="Was a segment deleted by hand? Only the oldest may go",
            )
        return segments, names

    # ------------------------------------------------------------------ requests

    async def _names(self, log: str, path: str, watch: Watcher | None, beside: Beside | None) -> _Names:
        async def ask() -> tuple[list[str], Stat, ColdNames | None]:
            if beside is None:
                return *(await self._store.children(path, watch)), None
            # In this order, and repeated together (I21): a session's requests are answered in the order they are sent.
            (names, stat), cold = await asyncio.gather(self._store.children(path, watch), beside())
            return names, stat, cold

        names, stat, cold = await repeat(self._store, ask)
        data = self._cache.refresh(log, frozenset(names), stat)
        segments = [name for name in names if name.startswith((IN_PROGRESS_PREFIX, COMPLETED_PREFIX))]
        return _Names(segments, data, stat, cold)

    async def _read(
        self, log: str, path: str, kept: dict[str, SegmentMetadata] | None = None
    ) -> SegmentMetadata | None:
        name = path.rpartition("/")[2]
        if kept is not None and name in kept:
            return kept[name]
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        try:
            segment = SegmentMetadata.decode(data, path, skip_minimum_version=self._skip_minimum_version)
        except CorruptDataError as error:
            error.log = log
            raise
        if kept is not None:
            self._cache.keep(log, kept, segment)
        return segment


def _has_gap(listed: Sequence[ListedSegment]) -> bool:
    """Return whether two names do not follow each other; a number twice counts as well: then the data must decide."""
    return any(listed[i + 1].lssn != listed[i].lssn + 1 for i in range(len(listed) - 1))
