"""Settings of readers."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.log_setting import setting
from metadata.foundation.settings import FLAG, MAX_INT, WHOLE


@dataclass(frozen=True)
class ReaderKeys:
    """Reader"""

    long_poll_ms: int = setting(
        WHOLE,
        1000,
        "readLACLongPollTimeout",
        "How long one request waits at the tail for a new entry, in milliseconds",
        minimum=1,
    )
    read_ahead_entries: int = setting(
        WHOLE,
        10,
        "readAheadMaxRecords",
        "Entries a reader holds in advance; of a cold file, all that come with a row group",
        minimum=1,
        other_keys=("ReadAheadMaxEntries",),
        dynamic=True,
    )
    prefetch_entries: int = setting(
        WHOLE,
        4,
        "numPrefetchEntriesPerLogSegment",
        "Entries of a segment that are requested in advance at first; twice as many each time all of them were used",
        minimum=1,
        dynamic=True,
    )
    max_prefetch_entries: int = setting(
        WHOLE,
        32,
        "maxPrefetchEntriesPerLogSegment",
        "Entries of a segment that are requested in advance at most",
        minimum=1,
        dynamic=True,
    )
    search_ways: int = setting(
        WHOLE,
        2,
        "readAheadBatchSize",
        "Entries that a search for a transaction id reads at a time where it cannot estimate; below 2 counts as 2",
        minimum=1,
        other_keys=("ReadAheadBatchSize",),
        dynamic=True,
    )
    read_ahead_wait_ms: int = setting(
        WHOLE,
        200,
        "readAheadWaitTime",
        "Milliseconds a blocking read waits at the tail, and the first pause after a failed read",
        minimum=1,
        other_keys=("ReadAheadWaitTime",),
        dynamic=True,
    )
    ignore_truncation: bool = setting(
        FLAG, False, "ignoreTruncationStatus", "Whether truncated records are read as long as they exist"
    )
    fail_on_truncated: bool = setting(
        FLAG,
        True,
        "alertPositionOnTruncated",
        "Whether a reader positioned on truncated records fails; false: it goes on with the first record that is left",
    )
    gap_detection: bool = setting(
        FLAG, True, "positionGapDetectionEnabled", "Whether a reader fails when a record is missing between two others"
    )
    expand_record_sets: bool = setting(
        FLAG,
        True,
        "deserializeRecordSetOnReads",
        "Whether the members of a record set are delivered one by one; false: each set whole, as one record",
        dynamic=True,
    )
    skip_broken_entries: bool = setting(
        FLAG,
        False,
        "readAheadSkipBrokenEntries",
        "Whether an entry whose checksum is wrong on every storage node is passed over, and the entries of a damaged "
        "row group of a cold file that is their only copy; the reader's `gaps` list them",
        dynamic=True,
    )
    idle_warn_ms: int = setting(
        WHOLE,
        120_000,
        "readerIdleWarnThresholdMillis",
        "Warn when nothing has arrived for a waiting read in this many milliseconds, more than twice "
        "readLACLongPollTimeout; 2147483647: never",
        minimum=1,
        dynamic=True,
    )
    idle_error_ms: int = setting(
        WHOLE,
        MAX_INT,
        "readerIdleErrorThresholdMillis",
        "Fail a read for which nothing arrives in this many milliseconds; 2147483647 or below 1: never",
        dynamic=True,
    )
    segment_cache: bool = setting(
        FLAG,
        True,
        "logSegmentCacheEnabled",
        "Whether the metadata of segments is cached once it was read, until the log's list of segments changes it",
        per_log=False,
    )
    segment_cache_max: int = setting(
        WHOLE,
        10_000,
        "logSegmentCacheMaxSize",
        "Segments whose metadata a namespace caches; those of the least recently used logs are dropped first",
        minimum=0,
        per_log=False,
    )
    segment_cache_ttl_ms: int = setting(
        WHOLE,
        600_000,
        "logSegmentCacheTTLMs",
        "Milliseconds after which cached metadata of a log is read again, even if nothing seems to have changed",
        minimum=0,
        per_log=False,
    )
