"""Explicit truncation, as rules on a list of segments: which of them become hidden, and where a log begins then.

    segment ends below the DLSN         TRUNCATED
    the DLSN lies within the segment    PARTIALLY_TRUNCATED, the DLSN is its minimum active position
    it begins at or above the DLSN      stays, and so does everything behind it

Only the completed segments at the head of the list are looked at: what is in progress, or stands behind that, stays as
it is. A truncation never moves back: what is hidden stays hidden, a minimum only rises (I8). Nothing is deleted by it;
that is for retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.segments import first_active, is_truncated
from metadata.logs import SegmentMetadata, TruncationStatus
from metadata.segment_changes import Change

STATUS_VERSION = 2
"""The first metadata version that can say that a segment is truncated."""
MINIMUM_VERSION = 3
"""The first one that can say from where on it is not."""


def completed_head(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
    """The completed segments before the first one in progress."""
    return list(takewhile(lambda segment: not segment.in_progress, segments))


def truncation(segments: Sequence[SegmentMetadata], dlsn: DLSN) -> list[Change]:
    """What hides every record below `dlsn`, oldest segment first; nothing for DLSN.INVALID.

    A segment of an old metadata version that cannot say what it would have to ends the truncation before it.
    """
    changes: list[Change] = []
    for segment in completed_head(segments):
        last = DLSN(segment.lssn, segment.last_entry, segment.last_slot)
        if last < dlsn and segment.version >= STATUS_VERSION:
            if not is_truncated(segment):
                changes.append((segment, replace(segment, truncation=TruncationStatus.TRUNCATED)))
            continue
        if DLSN(segment.lssn, 0, 0) < dlsn <= last and segment.version >= MINIMUM_VERSION:
            changes += _partial(segment, dlsn)
        break
    return changes


def _partial(segment: SegmentMetadata, dlsn: DLSN) -> list[Change]:
    """Raise the segment's minimum to `dlsn`, unless it is there already."""
    if is_truncated(segment) or first_active(segment) >= dlsn:
        return []
    hidden = replace(
        segment,
        truncation=TruncationStatus.PARTIALLY_TRUNCATED,
        min_entry=dlsn.entry_id,
        min_slot=dlsn.slot_id,
    )
    return [(segment, hidden)]


def truncation_point(segments: Sequence[SegmentMetadata]) -> DLSN:
    """The first position that is not hidden; DLSN.INITIAL for a log without segments."""
    for segment in segments:
        if not is_truncated(segment):
            return first_active(segment)
    return DLSN(segments[-1].lssn + 1, 0, 0) if segments else DLSN.INITIAL


def with_changes(segments: Sequence[SegmentMetadata], changes: Sequence[Change]) -> list[SegmentMetadata]:
    """The list once `changes` are applied to it."""
    new = {before.lssn: after for before, after in changes}
    return [segment if segment.in_progress else new.get(segment.lssn, segment) for segment in segments]
