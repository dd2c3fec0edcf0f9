"""Settings of writers, of the segments that they start, and of how long segments are kept."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.log_setting import setting
from metadata.foundation.settings import FLAG, MAX_LONG, TEXT, WHOLE


@dataclass(frozen=True)
class SegmentKeys:
    """Segments"""

    metadata_version: int = setting(
        WHOLE,
        5,
        "ledgerMetadataLayoutVersion",
        "Version of the segments that writers start; below 4 entries have no envelope and cannot be compressed, below "
        "5 records have no sequence ids. Version 1, which has no segment numbers, is read, not written",
        minimum=2,
        maximum=5,
        other_keys=("ledger-metadata-layout",),
    )
    skip_minimum_version: bool = setting(
        FLAG, False, "ledgerMetadataSkipMinVersionCheck", "Whether segments of version 1 are read", per_log=False
    )
    validate_sequence: bool = setting(
        FLAG,
        True,
        "logSegmentSequenceNumberValidationEnabled",
        "Whether a log is refused if a segment between two others is missing",
        per_log=False,
    )
    segment_name_version: int = setting(
        WHOLE,
        1,
        "logSegmentNameVersion",
        "How segments are named in the metadata store: 1 by their numbers; 0 by transaction ids, as old libraries "
        "did, which fails if two segments have the same ids",
        minimum=0,
        maximum=1,
    )
    encode_region_id: bool = setting(
        FLAG,
        False,
        "encodeRegionIDInVersion",
        "Whether segments name the region of their writer; also if the namespace's binding says so",
    )
    region_id: int = setting(
        WHOLE,
        0,
        "regionId",
        "The number that segments call the region of this process's writers, where encodeRegionIDInVersion or the "
        "namespace's binding has them name it; a program that opens the namespace with a number of its own, and a "
        "write proxy's server_region_id, go over it",
        own=True,
        per_log=False,
        minimum=0,
        maximum=15,
    )
    first_scan_entries: int = setting(
        WHOLE,
        2,
        "firstNumEntriesEachPerLastRecordScan",
        "Entries in the first read of a search for a segment's last record; doubled from one read to the next",
        minimum=1,
        maximum=10_000,
    )
    max_scan_entries: int = setting(
        WHOLE, 16, "maxNumEntriesPerReadLastRecordScan", "Most entries in one such read", minimum=1, maximum=10_000
    )


@dataclass(frozen=True)
class WriterKeys:
    """Writer"""

    compression: str = setting(TEXT, "none", "compressionType", "Compression of entries", choices=("none", "lz4"))
    output_buffer_bytes: int = setting(
        WHOLE,
        1024,
        "writerOutputBufferSize",
        "Buffered bytes above which an entry is sent; 0 sends every record at once. Values above 1044480 count as "
        "1044480",
        minimum=0,
        other_keys=("output-buffer-size",),
        dynamic=True,
    )
    periodic_flush_ms: int = setting(
        WHOLE,
        0,
        "periodicFlushFrequencyMilliSeconds",
        "Twice in this many milliseconds, send buffered records, else make acknowledged ones visible; 0 or less: off",
        dynamic=True,
    )
    immediate_flush: bool = setting(
        FLAG,
        False,
        "enableImmediateFlush",
        "Whether acknowledged records are made visible to readers at once, by a control record",
        dynamic=True,
    )
    immediate_flush_delay_ms: int = setting(
        WHOLE,
        0,
        "minimumDelayBetweenImmediateFlushMilliSeconds",
        "Least milliseconds between two sends; only with enableImmediateFlush and writerOutputBufferSize 0",
        dynamic=True,
    )
    keep_alive_ms: int = setting(
        WHOLE,
        0,
        "periodicKeepAliveMilliSeconds",
        "Write a control record when nothing was sent for this many milliseconds; 0 or less: off",
        dynamic=True,
    )
    fail_fast: bool = setting(
        FLAG,
        False,
        "failFastOnStreamNotReady",
        "Whether a write fails at once, instead of waiting, while a segment is being started",
        dynamic=True,
    )
    disable_rolling_on_error: bool = setting(
        FLAG,
        True,
        "disableRollingOnLogSegmentError",
        "Whether a writer stays failed after a failed write; false: the next write recovers and starts a segment",
        dynamic=True,
    )
    rolling_minutes: int = setting(
        WHOLE,
        120,
        "logSegmentRollingMinutes",
        "Age in minutes at which a segment is completed and another started; 0 or less: by size",
        other_keys=("rolling-interval",),
        dynamic=True,
    )
    max_segment_bytes: int = setting(
        WHOLE,
        268_435_456,
        "maxLogSegmentBytes",
        "Bytes at which a segment is completed and another started, while rolling by time is off; 0 or less: off",
        maximum=MAX_LONG,
        dynamic=True,
    )
    rolling_concurrency: int = setting(
        WHOLE,
        1,
        "logSegmentRollingConcurrency",
        "Segments a process may roll per minute; 0 or less: any number",
        per_log=False,
    )
    lock_timeout_s: int = setting(
        WHOLE,
        30,
        "lockTimeoutSeconds",
        "How long opening a writer waits for the log's lock, in seconds; 0 or less: try once",
    )
    durable_writes: bool = setting(
        FLAG,
        True,
        "isDurableWriteEnabled",
        "Whether a write is answered when an ack quorum has it on disk; false: at once, without a position, and a "
        "later call raises its error, if any",
        dynamic=True,
    )
    write_lock: bool = setting(
        FLAG,
        True,
        "writeLockEnabled",
        "Whether a writer takes the log's lock; false: the last one to open the log fences the others",
    )
    global_outstanding_write_limit: int = setting(
        WHOLE,
        -1,
        "globalOutstandingWriteLimit",
        "Unacknowledged records that all writers of the namespace in this process take; 0 or less: any number",
        per_log=False,
    )
    outstanding_write_limit: int = setting(
        WHOLE,
        -1,
        "perWriterOutstandingWriteLimit",
        "Unacknowledged records a writer takes; 0 or less: any number",
        dynamic=True,
    )
    write_limit_dark_mode: bool = setting(
        FLAG,
        True,
        "outstandingWriteLimitDarkmode",
        "Whether writes over the limit are only counted; false: they are refused",
        dynamic=True,
    )
    producer_snapshot_entries: int = setting(
        WHOLE,
        10_000,
        "producerSnapshotEntries",
        "Entries of a segment after which a writer with producers stores again what it knows of them: the most that "
        "its successor reads for that, beside the snapshot itself",
        minimum=1,
        own=True,
        dynamic=True,
    )
    producer_snapshot_bytes: int = setting(
        WHOLE,
        8 << 20,
        "producerSnapshotBytes",
        "Bytes of entries after which it does, too, but not before a segment has grown by twice what that takes; a "
        "successor reads no more than about these",
        minimum=1,
        own=True,
        dynamic=True,
    )
    producer_expiry_s: int = setting(
        WHOLE,
        604_800,
        "producerExpirySeconds",
        "Seconds after which a silent producer is forgotten, with the next snapshot; it begins a new epoch then. Time "
        "is the log's: it stands still while nobody writes, but for an eighth of this, and jumps no further than that",
        minimum=1,
        own=True,
        dynamic=True,
    )
    max_producers: int = setting(
        WHOLE,
        65_536,
        "maxProducers",
        "Producers that a log remembers at a time; another one is refused then, until a silent one is forgotten. 0 or "
        "less: any number. Each takes 100 to 400 bytes of the owner's memory, and as much of every segment",
        own=True,
        dynamic=True,
    )


@dataclass(frozen=True)
class RetentionKeys:
    """Retention"""

    retention_hours: int = setting(
        WHOLE,
        72,
        "logSegmentRetentionHours",
        "Hours for which a completed segment is kept; older ones are deleted as the writer starts new segments, but "
        "never the newest completed one; 0 or less: for ever",
        other_keys=("retention-size",),
        dynamic=True,
    )
    explicit_truncation: bool = setting(
        FLAG,
        False,
        "explicitTruncationByApp",
        "Whether retention deletes only segments that the application has truncated",
        dynamic=True,
    )
