"""Settings of writers."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number, text


@dataclass(frozen=True)
class WriterKeys:
    """Writer"""

    compression: str = text(
        "none",
        "compressionType",
        "Compression of entries",
        choices=("none", "lz4"),
    )
    output_buffer_bytes: int = number(
        1024,
        "writerOutputBufferSize",
        "Buffered bytes above which an entry is sent; 0 sends every record at once; above 1044480 counts as that",
        minimum=0,
        old_key="output-buffer-size",
        dynamic=True,
    )
    periodic_flush_ms: int = number(
        0,
        "periodicFlushFrequencyMilliSeconds",
        "Send what is buffered, else publish what is acknowledged, every half of so many milliseconds; 0 or less: off",
        dynamic=True,
    )
    immediate_flush: bool = flag(
        False,
        "enableImmediateFlush",
        "Whether acknowledged records are made visible to readers at once, by a control record",
        dynamic=True,
    )
    immediate_flush_delay_ms: int = number(
        0,
        "minimumDelayBetweenImmediateFlushMilliSeconds",
        "Least milliseconds between two sends; only with enableImmediateFlush and writerOutputBufferSize 0",
        dynamic=True,
    )
    keep_alive_ms: int = number(
        0,
        "periodicKeepAliveMilliSeconds",
        "Write a control record when nothing was sent for so many milliseconds; 0 or less: off",
        dynamic=True,
    )
    fail_fast: bool = flag(
        False,
        "failFastOnStreamNotReady",
        "Whether a write fails at once, instead of waiting, while a segment is being started",
        dynamic=True,
    )
    disable_rolling_on_error: bool = flag(
        True,
        "disableRollingOnLogSegmentError",
        "Whether a writer stays failed after a failed write; false: the next write recovers and starts a segment",
        dynamic=True,
    )
    rolling_minutes: int = number(
        120,
        "logSegmentRollingMinutes",
        "Age in minutes at which a segment is completed and another started; 0 or less: by size",
        old_key="rolling-interval",
        dynamic=True,
    )
    max_segment_bytes: int = number(
        268_435_456,
        "maxLogSegmentBytes",
        "Bytes at which a segment is completed and another started, while rolling by time is off; 0 or less: off",
        maximum=2**63 - 1,
        dynamic=True,
    )
    rolling_concurrency: int = number(
        1,
        "logSegmentRollingConcurrency",
        "Segments a process may roll per minute; 0 or less: any number",
        per_log=False,
    )
    lock_timeout_s: int = number(
        30,
        "lockTimeoutSeconds",
        "How long opening a writer waits for the log's lock, in seconds; 0 or less: try once",
    )
    durable_writes: bool = flag(
        True,
        "isDurableWriteEnabled",
        "Whether a write is answered when an ack quorum has it on disk; false: at once, with no position, and a later "
        "call raises what became of it",
        dynamic=True,
    )
    write_lock: bool = flag(
        True,
        "writeLockEnabled",
        "Whether a writer takes the log's lock; false: the last one to open the log fences the others",
    )
    global_outstanding_write_limit: int = number(
        -1,
        "globalOutstandingWriteLimit",
        "Unacknowledged records that all writers of the namespace in this process take; 0 or less: any number",
        per_log=False,
    )
    outstanding_write_limit: int = number(
        -1,
        "perWriterOutstandingWriteLimit",
        "Unacknowledged records a writer takes; 0 or less: any number",
        dynamic=True,
    )
    write_limit_dark_mode: bool = flag(
        True,
        "outstandingWriteLimitDarkmode",
        "Whether writes over the limit are only counted; false: they are refused",
        dynamic=True,
    )
