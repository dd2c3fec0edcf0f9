"""Metrics, warnings and spans of entries: `EntryMeasures` of those that a segment's writer sends, `FetchMeasures` of
those that a read-ahead fetches.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.meter import Meter
from metadata.logs import SegmentMetadata


class Moments(NamedTuple):
    """Moments in the life of one entry, by the event loop's clock, in seconds."""

    accepted: float
    """When its first record was accepted."""
    buffered: float
    """When that came into the segment's buffer: the same, unless it had to wait for the segment."""
    sent: float


class EntryMeasures:
    """The measures of one segment's writer."""

    __slots__ = ("_ledger", "_log", "_meter", "_segment", "counts", "wanted")

    def __init__(self, meter: Meter, log: str, segment: int, ledger: int) -> None:
        self.counts = meter.of(log)
        self.wanted = meter.wanted
        self._meter = meter
        self._log = log
        self._segment = segment
        self._ledger = ledger

    def moved_to(self, segment: int, ledger: int) -> None:
        """Count what is under way, and what follows, as another segment's."""
        self._segment, self._ledger = segment, ledger

    def sent(self, size: int, *, has_user_data: bool) -> None:
        """Count an entry of `size` bytes that was sent."""
        self.counts.transmit_packetsize.observe(size)
        (self.counts.data_success if has_user_data else self.counts.control_success).inc()

    def answered(
        self, entry_id: int, records: int, moments: Moments, now: float, cause: BaseException | None, slow_ms: int
    ) -> None:
        """Measure an entry that was acknowledged, or failed for `cause`; `records` of it have a waiting caller.

        `now`: by the event loop's clock. From `slow_ms` on it is a slow operation; 0: never.
        """
        seconds = now - moments.sent
        if 0 < slow_ms < seconds * 1000:
            self._meter.slow.tell(
                "write",
                seconds,
                slow_ms,
                f"writing entry {entry_id} of segment {self._segment}",
                log=self._log,
                segment=self._segment,
                ledger=self._ledger,
            )
        if self._meter.tracing.on:
            self._meter.tracing.past(
                "transmit",
                seconds,
                cause,
                log=self._log,
                segment=self._segment,
                ledger=self._ledger,
                entry=entry_id,
                records=records,
            )
        if not self.wanted:
            return
        self.counts.transmit_write.record(seconds, cause is None)
        if records:
            self.counts.log_writer_write.record(now - moments.accepted, cause is None, records)
            self.counts.seg_writer_write.record(now - moments.buffered, cause is None, records)

    def told(self, seconds: float, cause: BaseException | None) -> None:
        """Record that settling the entry's records took `seconds`."""
        if self.wanted:
            self.counts.seg_writer_add_complete_callback.record(seconds, cause is None)


# ------------------------------------------------------------------ fetches


class FetchMeasures:
    """The measures of one run over some entries of a segment. Waiting for room and for new entries does not count."""

    __slots__ = ("_asked_at", "_began", "_entries", "_error", "_log", "_loop", "_measures", "_meter", "_segment")

    def __init__(self, meter: Meter, measures: Measures, log: str, segment: SegmentMetadata) -> None:
        self._meter = meter
        self._measures = measures
        self._log = log
        self._segment = segment
        self._loop = asyncio.get_running_loop()
        self._began = self._asked_at = self._loop.time()
        self._entries = 0
        self._error: BaseException | None = None

    def asked(self) -> None:
        """Begin to time the next entry."""
        self._asked_at = self._loop.time()

    def arrived(self, entry_id: int, size: int, slow_ms: int) -> None:
        """Measure an entry of `size` bytes that has come; above `slow_ms` it is a slow operation, 0: never."""
        seconds = self._loop.time() - self._asked_at
        self._entries += 1
        if self._meter.wanted:
            self._measures.read_ahead_fetch.done.observe(seconds * 1000)
            self._measures.read_ahead_bytes.value += size
        if 0 < slow_ms < seconds * 1000:
            self._meter.slow.tell(
                "read",
                seconds,
                slow_ms,
                f"reading entry {entry_id} of segment {self._segment.lssn}",
                log=self._log,
                segment=self._segment.lssn,
                ledger=self._segment.ledger_id,
            )

    def failed(self, error: Exception) -> None:
        """Measure an entry that did not come."""
        self._error = error
        self._measures.read_ahead_fetch.record(self._loop.time() - self._asked_at, success=False)

    def ended(self) -> None:
        """End the run, which is one span."""
        if self._meter.tracing.on:
            self._meter.tracing.past(
                "read-ahead fetch",
                self._loop.time() - self._began,
                self._error,
                log=self._log,
                segment=self._segment.lssn,
                ledger=self._segment.ledger_id,
                entries=self._entries,
            )
