"""`EntryMeasures`: what is counted, warned of and traced of the entries that a segment's writer sends."""

from __future__ import annotations

from typing import NamedTuple

from dlspark.core.metrics.meter import Meter


class Moments(NamedTuple):
    """Of one entry, by the event loop's clock, in seconds."""

    accepted: float
    """When its first record was accepted."""
    buffered: float
    """When that came into the segment's buffer: the same, unless it had to wait for the segment."""
    sent: float


class EntryMeasures:
    """Of one segment's writer."""

    __slots__ = ("_ledger", "_log", "_meter", "_segment", "counts", "wanted")

    def __init__(self, meter: Meter, log: str, segment: int, ledger: int) -> None:
        self.counts = meter.of(log)
        self.wanted = meter.wanted
        self._meter = meter
        self._log = log
        self._segment = segment
        self._ledger = ledger

    def moved_to(self, segment: int, ledger: int) -> None:
        """What is under way, and what follows, is of another segment."""
        self._segment, self._ledger = segment, ledger

    def sent(self, size: int, *, has_user_data: bool) -> None:
        """An entry of `size` bytes was sent."""
        self.counts.transmit_packetsize.observe(size)
        (self.counts.data_success if has_user_data else self.counts.control_success).inc()

    def answered(
        self, entry_id: int, records: int, moments: Moments, now: float, cause: BaseException | None, slow_ms: int
    ) -> None:
        """An entry with so many users' records was acknowledged, or failed for `cause`."""
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
        """It took so long to settle the entry's records."""
        if self.wanted:
            self.counts.seg_writer_add_complete_callback.record(seconds, cause is None)
