"""`Measures`: every metric, as a field; and those of upstream's that mean nothing here, with the reason.

The field's cell is what the core counts in; name, meaning and labels stand beside it, for collectors and for the table
in docs/metrics.md, which is made from this (`python -m dlspark.core.metrics`). Names are upstream's scopes joined with
`_`, where upstream has the metric.
"""

# ruff: noqa: RUF009 - the defaults are fields, made by functions

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from dlspark.core.metrics.cells import SCAN_BOUNDS, SIZE_BOUNDS, Cell, Count, Counts, Gauge, Histogram, Timing, Timings

MetricKind: TypeAlias = Literal["histogram", "counter", "gauge"]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A metric without its numbers: name, kind, meaning, labels."""

    name: str
    kind: MetricKind
    meaning: str
    unit: str
    upstream: bool
    """True if upstream has a metric of that name."""
    per_log: bool
    """True if logs with `enablePerStreamStat` have it on their own."""
    labels: tuple[str, ...]
    make: Callable[[], Cell]


def metric(
    make: Callable[[], Cell],
    kind: MetricKind,
    name: str,
    meaning: str,
    *,
    unit: str = "",
    own: bool = False,
    per_log: bool = True,
    labels: tuple[str, ...] = (),
) -> Any:
    """Return the dataclass field of a metric: its cell, made by `make`, with what is known of it in the field's
    metadata."""
    info = MetricInfo(name, kind, meaning, unit, not own, per_log, labels, make)
    return field(default_factory=make, metadata={"info": info})


_timing = partial(metric, Timing, "histogram", unit="ms", labels=("success",))
_count = partial(metric, Count, "counter")
_gauge = partial(metric, Gauge, "gauge")
_sizes = partial(metric, partial(Histogram, SIZE_BOUNDS), "histogram", unit="bytes")
_scans = partial(metric, partial(Histogram, SCAN_BOUNDS), "histogram", unit="entries")


def _counts(name: str, meaning: str, label: str) -> Any:
    return metric(partial(Counts, label), "counter", name, meaning, own=True, per_log=False, labels=(label,))


@dataclass(eq=False, slots=True)
class Measures:
    """One scope's metrics: a namespace's, or those of one log in it."""

    # ---- writing
    log_writer_write: Timing = _timing(
        "log_writer_write",
        "From accepting a record to its acknowledgement, waiting for a segment included; counted once a record, with "
        "the time of the first record in its entry",
    )
    log_writer_bulk_write: Timing = _timing(
        "log_writer_bulk_write",
        "From accepting a bulk, a record set or a batch of columns to the acknowledgement of its last record",
    )
    log_writer_mark_end_of_stream: Timing = _timing("log_writer_mark_end_of_stream", "Sealing a log")
    log_writer_get_writer: Timing = _timing(
        "log_writer_get_writer", "How long writes waited for a segment that was being started or rolled"
    )
    log_writer_pending_request_dispatch: Count = _count(
        "log_writer_pending_request_dispatch", "Writes that waited for a segment and were then handed to it"
    )
    seg_writer_write: Timing = _timing(
        "seg_writer_write",
        "From a record's entering the segment's buffer to its acknowledgement, counted as log_writer_write",
    )
    seg_writer_pending: Gauge = _gauge("seg_writer_pending", "Records in segments and not acknowledged yet")
    seg_writer_add_complete_callback: Timing = _timing(
        "seg_writer_add_complete_callback", "Telling an entry's records that they are stored, or failed"
    )
    transmit_write: Timing = _timing(
        "transmit_write", "From sending an entry to the acknowledgement by an ack quorum", own=True
    )
    transmit_packetsize: Histogram = _sizes("transmit_packetsize", "Size of the entries that were sent")
    transmit_outstanding_requests: Gauge = _gauge(
        "transmit_outstanding_requests", "Entries sent and not acknowledged yet"
    )
    data_success: Count = _count("data_success", "Entries with users' records that were sent")
    data_miss: Count = _count("data_miss", "Times that there was nothing to send when sending was due or asked for")
    control_success: Count = _count("control_success", "Entries with a control record that were sent")
    flush_periodic_success: Count = _count("flush_periodic_success", "Periodic flushes that had something to send")
    flush_periodic_miss: Count = _count("flush_periodic_miss", "Periodic flushes that had nothing to send")

    # ---- limits
    stream_write_limiter_permits: Gauge = _gauge(
        "streamWriteLimiter_permits", "Records that writers have accepted and that are not acknowledged yet"
    )
    stream_write_limiter_acquire_failure: Count = _count(
        "streamWriteLimiter_acquireFailure",
        "Records over perWriterOutstandingWriteLimit: refused, or in dark mode only counted",
    )
    write_limiter_permits: Gauge = _gauge(
        "writeLimiter_permits", "The same of all writers of a namespace, as its limit counts them", per_log=False
    )
    write_limiter_acquire_failure: Count = _count(
        "writeLimiter_acquireFailure",
        "Records over globalOutstandingWriteLimit: refused, or in dark mode only counted",
    )
    permits_outstanding: Gauge = _gauge(
        "permits_outstanding",
        "Rolling permits (logSegmentRollingConcurrency) taken within the last minute",
        per_log=False,
    )

    # ---- segments
    segments_open: Timing = _timing("segments_open", "Starting a segment: its ledger, its metadata")
    segments_close: Timing = _timing(
        "segments_close", "Completing a segment: what is buffered, its ledger, its metadata"
    )
    segments_recover: Timing = _timing("segments_recover", "Completing a segment that another owner left in progress")
    segments_delete: Timing = _timing(
        "segments_delete",
        "Taking segments off the list, by retention or because they were empty, and deleting their ledgers; of several "
        "together each has the time of all",
    )
    logsegments_recover_last_entry: Timing = _timing(
        "logsegments_recover_last_entry", "Looking for the last record of a segment that is recovered"
    )
    logsegments_recover_scanned_entries: Histogram = _scans(
        "logsegments_recover_scanned_entries", "Entries that were read for it"
    )

    # ---- locks
    lock_acquire: Timing = _timing("lock_acquire", "Acquiring a log's write lock, waiting for its owner included")
    lock_reacquire: Timing = _timing(
        "lock_reacquire", "Acquiring it again after the session expired; a failure: another owner has it"
    )
    lock_unlock: Timing = _timing("lock_unlock", "Releasing it")
    lock_try_timeouts: Count = _count("lock_tryTimeouts", "Write locks not acquired within lockTimeoutSeconds")
    read_lock_acquire: Timing = _timing("read_lock_lock_acquire", "Acquiring the lock of readers or of a subscriber")
    read_lock_unlock: Timing = _timing("read_lock_lock_unlock", "Releasing it")
    read_lock_try_timeouts: Count = _count("read_lock_lock_tryTimeouts", "Such locks not acquired in time")

    # ---- reading
    async_reader_delay: Timing = _timing(
        "async_reader_delay_until_promise_satisfied",
        "How long reads waited that found no record at hand; those that found one are not counted",
    )
    async_reader_idle_reader_error: Count = _count(
        "async_reader_idle_reader_error", "Readers that failed because nothing arrived (readerIdleErrorThresholdMillis)"
    )
    skipped_broken_entries: Count = _count(
        "skipped_broken_entries",
        "Entries damaged on all their storage nodes, or in their cold file, that were passed over",
    )
    misfit_records: Count = _count(
        "misfit_records", "Records that did not fit their log's schema, read as rows that say why", own=True
    )
    read_ahead_fetch: Timing = _timing(
        "read_ahead_fetch", "How long the read-ahead waited for an entry that was there to be read", own=True
    )
    read_ahead_bytes: Count = _count("read_ahead_bytes", "Bytes of the entries that were fetched", own=True)
    read_ahead_queued_entries: Gauge = _gauge(
        "read_ahead_queued_entries", "Entries fetched and not taken by their reader yet", own=True
    )
    read_ahead_queued_bytes: Gauge = _gauge("read_ahead_queued_bytes", "Their size in bytes", own=True)
    read_ahead_delivery: Timing = _timing(
        "read_ahead_delivery",
        "From fetching an entry to its reader's taking it, with traceReadAheadDeliveryLatency",
        own=True,
    )

    reader_region_lag: Timing = _timing(
        "reader_region_lag",
        "At each wait at the tail: how far a reader may be behind a writer in the farthest region of the copies, half "
        "a measured round trip; only where the own region is known (`region`)",
        own=True,
    )

    # ---- cold storage
    cold_files: Count = _count(
        "cold_files", "Files that segments were moved into, read back and noted", own=True, per_log=False
    )
    cold_file_bytes: Count = _count("cold_file_bytes", "Bytes of these files", own=True, per_log=False)
    cold_ledger_bytes: Count = _count(
        "cold_ledger_bytes", "Bytes of the ledgers that were copied, one copy each", own=True, per_log=False
    )
    cold_hot_deleted: Count = _count(
        "cold_hot_deleted", "Segments whose hot copies were deleted because they are in files", own=True, per_log=False
    )
    cold_deleted: Count = _count(
        "cold_deleted", "Units whose files were deleted, by retention or truncation", own=True, per_log=False
    )
    cold_failures: Count = _count(
        "cold_failures", "Steps of the mover that failed; it tries again with the next pass", own=True, per_log=False
    )
    cold_swept: Count = _count(
        "cold_swept", "Objects and open uploads that nothing names, and that were deleted", own=True, per_log=False
    )
    cold_mirror_reads: Count = _count(
        "cold_mirror_reads", "Parts of cold files that were read in a mirror", own=True, per_log=False
    )
    cold_fall_overs: Count = _count(
        "cold_fall_overs",
        "Parts of cold files that the nearest place did not give, so that another one was asked",
        own=True,
        per_log=False,
    )
    cold_mirrored: Count = _count(
        "cold_mirrored", "Files of which a copy was made in a mirror", own=True, per_log=False
    )
    cold_findings: Gauge = _gauge(
        "cold_findings", "What the last audit of the namespace's files found wrong", own=True, per_log=False
    )
    cold_lag: Gauge = _gauge(
        "cold_lag",
        "How long the oldest completed segment without a file has been waiting, of all logs, in milliseconds",
        own=True,
        per_log=False,
    )

    # ---- metadata, trouble
    metadata_requests: Timings = metric(
        partial(Timings, "operation"),
        "histogram",
        "metadata_requests",
        "Requests to the metadata store; a failure: no answer, or it is not known",
        unit="ms",
        own=True,
        per_log=False,
        labels=("operation", "success"),
    )
    slow_operations: Counts = _counts(
        "slow_operations",
        "Operations slower than metadataLatencyWarnThresholdMs or dataLatencyWarnThresholdMs",
        "kind",
    )
    alerts: Count = _count("dl_alert", "Things that need a human: records missing, damaged data, broken invariants")
    rare_paths: Counts = _counts("rare_paths", "How often paths were taken that are rarely taken (`counters`)", "path")

    def add(self, other: Measures) -> None:
        """Count what `other` has as well."""
        for name, _ in METRICS:
            getattr(self, name).add(getattr(other, name))

    def keep(self, other: Measures) -> None:
        """Keep what only ever grows of `other`, which ends."""
        for name, _ in METRICS:
            getattr(self, name).keep(getattr(other, name))


def _described() -> Iterator[tuple[str, MetricInfo]]:
    for item in fields(Measures):
        yield item.name, item.metadata["info"]


METRICS: Final[tuple[tuple[str, MetricInfo], ...]] = tuple(_described())
"""Each metric with the name of its field."""

_NO_POOLS = "one event loop does all the work: nothing waits in a queue between threads"
_TXID_TIMES = "it compares transaction ids with the clock, and they need not be times"
_NO_PERIODIC_CHECK = "one timer detects idleness, no check runs periodically"
_STORE = "`metadata_requests` has every request of every session, by operation"
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "seg_writer_add_complete_queued": _NO_POOLS,
    "seg_writer_add_complete_deferred": _NO_POOLS,
    "logsegments_get_inprogress_segment": _TXID_TIMES,
    "logsegments_negative_get_inprogress_segment": _TXID_TIMES,
    "logsegments_get_completed_segment": "a reader comes to a segment once it has read those before it",
    "logsegments_negative_get_completed_segment": "the same",
    "async_reader_future_set": _NO_POOLS,
    "async_reader_schedule": _NO_POOLS,
    "async_reader_background_read": _NO_POOLS,
    "async_reader_read_next_exec": _NO_POOLS,
    "async_reader_time_between_read_next": "it would take a look at the clock for each record",
    "async_reader_idle_reader_check_total": _NO_PERIODIC_CHECK,
    "async_reader_idle_reader_check_idle_read_requests": _NO_PERIODIC_CHECK,
    "async_reader_idle_reader_check_idle_readahead": _NO_PERIODIC_CHECK,
    "sync_reader_idle_reader_error": "synchronous readers are asynchronous ones underneath, which count it",
    "lock_internalTryRetries": "requests of the lock are repeated as any others; `rare_paths` and the log show it",
    "lock_tryAcquire": "there is one attempt, whose time `lock_acquire` has",
    "streamWriteLimiter_permits (latencies)": "the number of records is a gauge; it is not sampled for each record",
    "writeLimiter_permits (latencies)": "the same",
    "*Limiter_apply, *Limiter_overlimit": "they are of a write proxy's request limiters",
    "dlzk_*, bkc_zkc_*": _STORE,
    "*_watcher_manager_*": "watches are left by the metadata store's own client, one for each listing that is followed",
    "readahead_worker_*": "upstream's core does not produce them any more either; `read_ahead_*` replaces them here",
}
"""Upstream's names, and why there is no such metric here."""
