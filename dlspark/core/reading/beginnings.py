"""`beginning`: where a reader begins that asks for a position: there, or at the first one that truncation has left.

See docs/reference/records.md#truncated-segments. A position whose records are gone is an error, unless settings allow
to go on with what is left: a silent gap is worse than an error (I8).
"""

from __future__ import annotations

from collections import Counter

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.segment_list import SegmentList
from dlspark.core.reading.segments import first_active, first_left, is_truncated
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError
from metadata.distributedlog.segment_listing import SegmentListing


async def beginning(name: str, segments: SegmentList, start: DLSN, settings: Settings, counters: Counter[str]) -> DLSN:
    """Return where a reader of the log `name` begins that asks for `start`; in a log without segments, not before the
    first one's position.

    Costs a request only where the list of segments has changed. Raises AlreadyTruncatedError, LogNotFoundError.
    """
    if not len(await segments.load()):
        return max(start, DLSN.INITIAL)
    earliest = await segments.ask(lambda listing: _earliest(listing, start, settings))
    if earliest is None or start >= earliest:
        return start
    if start > DLSN.INITIAL and settings.fail_on_truncated and await _lost(segments, start, earliest):
        counters["truncated-position"] += 1
        raise AlreadyTruncatedError(
            f"position {start} was truncated; the log begins at {earliest}",
            log=name,
            dlsn=start,
            advice=f"Start at {earliest}, or set alertPositionOnTruncated=false to go on there",
        )
    return earliest


async def _earliest(listing: SegmentListing, start: DLSN, settings: Settings) -> DLSN | None:
    """Return the first position that is left, if `start` may lie below it; None if it does not."""
    if not len(listing):
        return None  # The list has changed since it was looked at.
    listed = listing.find(start.lssn)
    if start > DLSN.INITIAL and (listed is not None or start.lssn > listing[0].lssn):
        segment = await listing.read(listed) if listed is not None else None
        # What is truncated is a head of the log: nothing is missing from an active segment on.
        if segment is None or settings.ignore_truncation or not is_truncated(segment):
            return first_active(segment) if segment is not None and not settings.ignore_truncation else None
    if settings.ignore_truncation:
        return DLSN(listing[0].lssn, 0, 0)
    left = await first_left(listing)
    return first_active(left[1]) if left is not None else DLSN(listing[-1].lssn + 1, 0, 0)


async def _lost(segments: SegmentList, start: DLSN, earliest: DLSN) -> bool:
    """Return whether there was a record at or after `start` and before `earliest`; assumed where that is not known.

    What is assumed fails the reader (I8).
    """

    async def question(listing: SegmentListing) -> bool:
        if not len(listing) or start.lssn < listing[0].lssn or earliest > DLSN(earliest.lssn, 0, 0):
            return True
        for listed in listing:
            if start.lssn <= listed.lssn < earliest.lssn:
                segment = await listing.read(listed)
                last = DLSN(segment.lssn, segment.last_entry, segment.last_slot)
                if segment.last_entry >= 0 and last >= start:
                    return True
        return False

    return await segments.ask(question)
