"""Stored bytes between positions of a log, and the position so many bytes on.

An entry says how many bytes its ledger holds up to itself, so a count costs at most two entries, and a place is found
by binary search over the entries of one segment. Only whole entries are counted, since only whole ones are fetched: an
entry of which a part is wanted counts in full.
"""

from __future__ import annotations

import asyncio

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.source.log_view import MAX_PARALLEL_LOOKUPS, LogView
from metadata.segments import SegmentMetadata


def _entries(segment: SegmentMetadata, start: DLSN, end: DLSN) -> tuple[int, int]:
    """First entry of a segment from `start` on, and the one after its last before `end`."""
    first = start.entry_id if segment.lssn == start.lssn else segment.min_entry
    if segment.lssn == end.lssn:
        return first, end.entry_id + (1 if end.slot_id else 0)
    return first, segment.last_entry + 1


async def _size(view: LogView, segment: SegmentMetadata, first: int, after: int) -> int:
    """Bytes of entries `first` to before `after`."""
    if first >= after:
        return 0
    whole = not segment.in_progress and after > segment.last_entry
    total = (await view.stored(segment))[0] if whole else await view.stored_to(segment, after - 1)
    return max(0, total - await view.stored_to(segment, first - 1))


async def segment_bytes(view: LogView, segment: SegmentMetadata, start: DLSN, end: DLSN) -> int:
    """Stored bytes of the entries of one segment that have records from `start` to before `end`."""
    return await _size(view, segment, *_entries(segment, start, end))


async def bytes_between(view: LogView, start: DLSN, end: DLSN) -> int:
    """Stored bytes of the entries that have records from `start` to before `end`."""
    segments = view.between(start, end)
    total = 0
    for at in range(0, len(segments), MAX_PARALLEL_LOOKUPS):
        some = segments[at : at + MAX_PARALLEL_LOOKUPS]
        total += sum(await asyncio.gather(*(segment_bytes(view, one, start, end) for one in some)))
    return total


async def next_entry_bytes(view: LogView, start: DLSN, end: DLSN) -> int:
    """Stored bytes of the first entry from `start` on; 0 if there is none before `end`."""
    for segment in view.between(start, end):
        first, after = _entries(segment, start, end)
        if first < after:
            return await _size(view, segment, first, first + 1)
    return 0


async def advance_bytes(view: LogView, start: DLSN, end: DLSN, budget: int) -> DLSN:
    """The furthest position, at most `end`, up to which the entries from `start` on have no more than `budget` bytes.

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


async def _cut(view: LogView, segment: SegmentMetadata, first: int, after: int, budget: int) -> int:
    """The largest entry up to which, from `first` on, no more than `budget` bytes lie."""
    low, high = first, after
    while low < high:
        middle = (low + high + 1) // 2
        if await _size(view, segment, first, middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
