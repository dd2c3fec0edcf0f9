"""`FetchMeasures`: what is counted, warned of and traced as a read-ahead streams entries that are there to be read."""

from __future__ import annotations

import asyncio

from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.meter import Meter
from metadata.logs import SegmentMetadata


class FetchMeasures:
    """Of one run over some entries of a segment. Waiting for room and for new entries is no part of it."""

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
        """The next entry is wanted from now on."""
        self._asked_at = self._loop.time()

    def arrived(self, entry_id: int, size: int, slow_ms: int) -> None:
        """It has come; `size` in bytes."""
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
        """It did not come."""
        self._error = error
        self._measures.read_ahead_fetch.record(self._loop.time() - self._asked_at, success=False)

    def ended(self) -> None:
        """The run is over: it was one span."""
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
