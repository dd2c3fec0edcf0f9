"""Settings of readers."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import MAX_INT, flag, number


@dataclass(frozen=True)
class ReaderKeys:
    """Reader"""

    long_poll_ms: int = number(
        1000,
        "readLACLongPollTimeout",
        "How long one request waits at the tail for a new entry, in milliseconds",
        minimum=1,
    )
    read_ahead_entries: int = number(
        10,
        "readAheadMaxRecords",
        "Entries a reader holds in advance",
        minimum=1,
        old_key="ReadAheadMaxEntries",
        dynamic=True,
    )
    prefetch_entries: int = number(
        32,
        "maxPrefetchEntriesPerLogSegment",
        "Entries of one segment requested in advance",
        minimum=1,
        dynamic=True,
    )
    read_ahead_wait_ms: int = number(
        200,
        "readAheadWaitTime",
        "Milliseconds a blocking read waits at the tail, and the first pause after a failed read",
        minimum=1,
        old_key="ReadAheadWaitTime",
        dynamic=True,
    )
    ignore_truncation: bool = flag(
        False,
        "ignoreTruncationStatus",
        "Whether truncated records are read as long as they exist",
    )
    fail_on_truncated: bool = flag(
        True,
        "alertPositionOnTruncated",
        "Whether a reader positioned on truncated records fails; false: it goes on with the first record that is left",
    )
    gap_detection: bool = flag(
        True,
        "positionGapDetectionEnabled",
        "Whether a reader fails when a record is missing between two others",
    )
    idle_error_ms: int = number(
        MAX_INT,
        "readerIdleErrorThresholdMillis",
        "Fail a read for which nothing arrives in so many milliseconds; 2147483647 or below 1: never",
        dynamic=True,
    )
