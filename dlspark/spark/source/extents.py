"""Extents: the records, stored bytes and time between two positions of a log; and the position some bytes further.

Records are counted exactly, from segment metadata and at most two entries, and so are stored bytes; only where more
than `MAX_LEDGERS` segments lie between the first and the last, as many of them, spread evenly, stand for those between.
Time is the distance from the transaction id of the first record to that of the last one: milliseconds where ids are
times, as the source takes them to be (`lag`).

An entry says how many bytes its ledger holds up to itself, so a count of bytes costs at most two entries, and a
position is found by binary search over the entries of one segment. Only whole entries are counted, since only whole
ones are fetched: an entry of which a part is wanted counts in full.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.errors import OptionError
from dlspark.spark.source.driver_log_view import MAX_PARALLEL_LOOKUPS, DriverLogView
from metadata.distributedlog.segments import SegmentMetadata

MAX_LEDGERS: Final = 64
"""Ledgers that are examined for one log's bytes, besides the first and the last."""
MAX_STEPS: Final = 16
"""Entries that are read for one transaction id: those with control records alone have none."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The records from one position to before another. `records` is None for a log whose writer did not count them; an
    id is None where it could not be found at a bounded cost, and where no record is."""

    records: int | None
    bytes: int
    first_txid: int | None
    last_txid: int | None


NOTHING: Final = Extent(0, 0, None, None)


async def extent(view: DriverLogView, start: DLSN, end: DLSN) -> Extent:
    """Return what lies from `start` to before `end`, which is an end that `view` gave. Raises what reading raises."""
    start = max(start, view.earliest())
    if start >= end:
        return NOTHING
    try:
        records: int | None = await view.count(start, end)
    except OptionError:  # The writer was set not to count.
        records = None
    if records == 0:
        return NOTHING
    segments = view.between(start, end)
    return Extent(
        records,
        await _bytes(view, start, end),
        await _first_txid(view, segments, start),
        await _last_txid(view, segments, end),
    )


async def _bytes(view: DriverLogView, start: DLSN, end: DLSN) -> int:
    segments = view.between(start, end)
    if len(segments) <= MAX_LEDGERS + 2:
        return await bytes_between(view, start, end)
    # Of the first and the last a part counts, so they are asked; those between count in full: some stand for all.
    first, *inner, last = segments
    seen = [inner[len(inner) * part // MAX_LEDGERS] for part in range(MAX_LEDGERS)]
    sizes = await asyncio.gather(*(segment_bytes(view, one, start, end) for one in (first, last, *seen)))
    return sum(sizes[:2]) + sum(sizes[2:]) * len(inner) // MAX_LEDGERS


async def _first_txid(view: DriverLogView, segments: list[SegmentMetadata], start: DLSN) -> int | None:
    """Return the transaction id of the first record at or behind `start`."""
    for segment in segments:
        if segment.lssn != start.lssn or start[1:] <= (0, 0):
            return segment.first_txid
        _, entries = await view.stored(segment)
        for entry_id in range(start.entry_id, min(entries, start.entry_id + MAX_STEPS)):
            found = (await view.entry(segment, entry_id)).first_txid
            if found is not None:
                return found
        if entries > start.entry_id + MAX_STEPS:
            return None
    return None


async def _last_txid(view: DriverLogView, segments: list[SegmentMetadata], end: DLSN) -> int | None:
    """Return the transaction id of the last record before `end`."""
    for segment in reversed(segments):
        # The end's own entry counts only where the end lies within it.
        if segment.lssn == end.lssn:
            after = end.entry_id + (end.slot_id > 0)
        elif segment.last_txid != MAX_TXID and segment.record_count:
            return segment.last_txid
        else:
            after = segment.last_entry + 1
        for entry_id in range(after - 1, max(after - 1 - MAX_STEPS, -1), -1):
            found = (await view.entry(segment, entry_id)).last_txid
            if found is not None:
                return found
    return None


def _entries(segment: SegmentMetadata, start: DLSN, end: DLSN) -> tuple[int, int]:
    """Return the first entry of a segment from `start` on, and the one after its last before `end`."""
    first = start.entry_id if segment.lssn == start.lssn else segment.min_entry
    if segment.lssn == end.lssn:
        return first, end.entry_id + (1 if end.slot_id else 0)
    return first, segment.last_entry + 1


async def _size(view: DriverLogView, segment: SegmentMetadata, first: int, after: int) -> int:
    """Return bytes of entries `first` to before `after`."""
    if first >= after:
        return 0
    whole = not segment.in_progress and after > segment.last_entry
    total = (await view.stored(segment))[0] if whole else await view.stored_to(segment, after - 1)
    return max(0, total - await view.stored_to(segment, first - 1))


async def segment_bytes(view: DriverLogView, segment: SegmentMetadata, start: DLSN, end: DLSN) -> int:
    """Return the stored bytes of the entries of one segment that have records from `start` to before `end`."""
    return await _size(view, segment, *_entries(segment, start, end))


async def bytes_between(view: DriverLogView, start: DLSN, end: DLSN) -> int:
    """Return the stored bytes of the entries that have records from `start` to before `end`."""
    segments = view.between(start, end)
    total = 0
    for at in range(0, len(segments), MAX_PARALLEL_LOOKUPS):
        some = segments[at : at + MAX_PARALLEL_LOOKUPS]
        total += sum(await asyncio.gather(*(segment_bytes(view, one, start, end) for one in some)))
    return total


async def next_entry_bytes(view: DriverLogView, start: DLSN, end: DLSN) -> int:
    """Return the stored bytes of the first entry from `start` on; 0 if there is none before `end`."""
    for segment in view.between(start, end):
        first, after = _entries(segment, start, end)
        if first < after:
            return await _size(view, segment, first, first + 1)
    return 0


async def advance_bytes(view: DriverLogView, start: DLSN, end: DLSN, budget: int) -> DLSN:
    """Return the furthest position, at most `end`, up to which the entries from `start` on have no more than `budget`
    bytes.

    It is `start` where not even one entry fits.
    """
    left, reached = budget, start
    for segment in view.between(start, end):
        first, after = _entries(segment, start, end)
        size = await _size(view, segment, first, after)
        if size > left:
            stop = await _cut(view, segment, first, after, left)
            return DLSN(segment.lssn, stop, 0) if stop > first else reached
        left -= size
        if segment.lssn == end.lssn:
            return end
        reached = max(reached, DLSN(segment.lssn, segment.last_entry + 1, 0))
    return end


async def _cut(view: DriverLogView, segment: SegmentMetadata, first: int, after: int, budget: int) -> int:
    """Return the largest entry up to which, from `first` on, no more than `budget` bytes lie."""
    # Sizes only grow along the entries. `low` always fits; the middle is rounded up, or two neighbours would not end.
    low, high = first, after
    while low < high:
        middle = (low + high + 1) // 2
        if await _size(view, segment, first, middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
