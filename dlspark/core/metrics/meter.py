"""`Meter`: one namespace's measuring. Each namespace has one, and hands it to everything that it opens.

A program says with `Statistics` what it wants measured; a `Meter` is opened with that and holds the three ways in which
a namespace reports on itself. They are together here because one place in the code often feeds all three (`step`,
`observe`; `EntryMeasures` for entries that a segment's writer sends, `FetchMeasures` for those that a read-ahead
fetches):

* *Metrics*: `root`, and `of(log)` for a log with series of its own. Counting is adding to plain numbers (`cells`), once
  an entry or an operation, never once a record. A registry shows their sums (`registries`). Where no metrics are wanted
  hot paths look at `Meter.wanted` and do nothing; elsewhere counting goes on, and no registry shows it.
* *Warnings*: `slow` (`SlowOperations`) counts and logs operations that take longer than a threshold. When one is slow
  many are, so it logs one line a kind in WARN_INTERVAL_S, with how many others there were since the last. This does not
  depend on `Statistics`.
* *Spans*: `tracing` (`Tracing`, `OpenTelemetry`) shows what the library spends time on in the traces of the program
  that uses it. Nothing of OpenTelemetry is imported unless spans are wanted (setting `tracingEnabled`, or a tracer
  provider in `Statistics`). The library needs the API only (extra `telemetry`); the program sets up where spans go.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.cells import Counts, Timing
from dlspark.core.metrics.registries import Scopes, Statistics, collection_of, registry_of
from dlspark.core.metrics.structured_logging import about
from dlspark.core.settings.settings import Settings
from dlspark.errors import SettingsError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import MetadataUnavailableError, OutcomeUnknownError
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

_log = logging.getLogger(__name__)

MAX_STREAMS: Final = 1000
"""Logs of a namespace that may have series of their own at a time; further ones are counted with the rest."""
_UNANSWERED: Final = (OutcomeUnknownError, MetadataUnavailableError, asyncio.TimeoutError)


# ------------------------------------------------------------------ slow operations

WARN_INTERVAL_S = 10.0
Slow: TypeAlias = Literal["metadata", "write", "read"]


class SlowOperations:
    """Counts the slow operations of one namespace, and warns of some of them."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._next: dict[str, float] = {}
        self._unreported: dict[str, int] = {}

    def report(
        self,
        kind: Slow,
        seconds: float,
        threshold_ms: int,
        what: str,
        *,
        log: str | None = None,
        segment: int | None = None,
        ledger: int | None = None,
        path: str | None = None,
    ) -> None:
        """Count that `what` took `seconds`, more than the threshold; warn unless this kind was warned of just now."""
        self._counts.values[kind] += 1
        now = asyncio.get_running_loop().time()
        if now < self._next.get(kind, now):
            self._unreported[kind] = self._unreported.get(kind, 0) + 1
            return
        self._next[kind] = now + WARN_INTERVAL_S
        others = self._unreported.pop(kind, 0)
        more = f"; {others} more were slow since the last warning" if others else ""
        milliseconds = round(seconds * 1000)
        extra = about(log=log, segment=segment, ledger=ledger, path=path)
        extra |= {"kind": kind, "duration_ms": milliseconds, "threshold_ms": threshold_ms}
        where = f"log {log}: " if log is not None else ""
        _log.warning("%s%s took %d ms, more than %d ms%s", where, what, milliseconds, threshold_ms, more, extra=extra)


# ------------------------------------------------------------------ spans

SCOPE = "dlspark"
_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracing:
    """Makes no spans."""

    on = False
    """True if `past` does anything: callers on hot paths look at this first."""

    def span(self, name: str, **attributes: str | int | None) -> AbstractContextManager[None]:
        """Return a block that is a span, and a failed one where it raises. Attributes that are None are left out."""
        return _NOTHING

    def past(self, name: str, seconds: float, error: BaseException | None, **attributes: str | int | None) -> None:
        """Record what has just ended, after `seconds`, as a span within the current one."""


class OpenTelemetry(Tracing):
    """Makes spans by a tracer."""

    on = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def span(self, name: str, **attributes: str | int | None) -> Iterator[None]:
        """Yield a span around what the block does."""
        with self._tracer.start_as_current_span(name, attributes=_attributes(attributes)):
            yield

    def past(self, name: str, seconds: float, error: BaseException | None, **attributes: str | int | None) -> None:
        """Record what has just ended as a span, and as a failed one where there is an error."""
        from opentelemetry.trace import Status, StatusCode

        end_ns = time.time_ns()
        span = self._tracer.start_span(
            name, attributes=_attributes(attributes), start_time=end_ns - int(seconds * 1_000_000_000)
        )
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(end_ns)


def _attributes(attributes: dict[str, str | int | None]) -> dict[str, str | int]:
    return {f"dlspark.{name}": value for name, value in attributes.items() if value is not None}


NO_TRACING = Tracing()


def tracing(wanted: bool, provider: TracerProvider | None) -> Tracing:
    """Return spans by `provider`; without one, if `wanted`, by the program's own; else none.

    Raises SettingsError where spans are wanted without the extra `telemetry`.
    """
    if provider is None and not wanted:
        return NO_TRACING
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SettingsError(
            "tracingEnabled takes OpenTelemetry, which is not installed", advice="pip install dlspark[telemetry]"
        ) from error
    return OpenTelemetry(trace.get_tracer(SCOPE, tracer_provider=provider))


# ------------------------------------------------------------------ the meter


class Meter:
    """The instruments of one namespace. All calls come from one event loop."""

    def __init__(self, *, wanted: bool = False, traces: Tracing = NO_TRACING) -> None:
        """Use `open` instead. Without it, no registry shows what it counts."""
        self.wanted = wanted
        """True if a registry shows what hot paths count."""
        self.tracing = traces
        self._scopes = Scopes()
        self.root = self._scopes.root
        self.slow = SlowOperations(self.root.slow_operations)
        self._users: Counter[str] = Counter()
        self._full_warned = False
        self._forget: list[Callable[[], None]] = []
        self._end: Callable[[], object] | None = None

    @classmethod
    def open(cls, statistics: Statistics | None, settings: Settings) -> Meter:
        """Return a meter that counts for `statistics`, by default prometheus_client's own registry.

        Raises CallerError where the registry has other metrics of these names; SettingsError without the extra
        `telemetry`.
        """
        statistics = statistics if statistics is not None else Statistics()
        meter = cls(wanted=statistics.collect, traces=tracing(settings.tracing_enabled, statistics.tracer_provider))
        if statistics.collect:
            collection = collection_of(registry_of(statistics))
            collection.attach(meter._scopes)
            # A namespace that is dropped without being closed stops counting as well.
            finalizer = weakref.finalize(meter, collection.detach, meter._scopes)
            finalizer.atexit = False
            meter._end = finalizer
        return meter

    def close(self) -> None:
        """Stop measuring, as the namespace is closed. What was counted stays in the registry's sums. Idempotent."""
        for forget in self._forget:
            forget()
        self._forget.clear()
        if self._end is not None:
            self._end()

    # ------------------------------------------------------------------ logs

    def open_log(self, name: str, settings: Settings) -> Callable[[], None]:
        """Count an open handle on a log; returns a function to call when it is closed. With
        `enablePerStreamStat` the log has series of its own until its last handle is closed."""
        if not (self.wanted and settings.per_stream_statistics):
            return _nothing
        if name not in self._scopes.logs and len(self._scopes.logs) >= MAX_STREAMS:
            if not self._full_warned:
                self._full_warned = True
                _log.warning("%d logs have metrics of their own; further ones are counted together", MAX_STREAMS)
            return _nothing
        self._scopes.logs.setdefault(name, Measures())
        self._users[name] += 1
        left = [name]

        def close() -> None:
            if left:
                self._close_log(left.pop())

        return close

    def _close_log(self, name: str) -> None:
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self._scopes.end_log(name)

    def of(self, log: str) -> Measures:
        """Return the metrics to count in for a log. Ask once, after the log was opened, and keep the answer."""
        return self._scopes.logs.get(log, self.root)

    # ------------------------------------------------------------------ operations

    @contextmanager
    def step(self, timing: Timing, name: str, *, log: str | None = None, segment: int | None = None) -> Iterator[None]:
        """Yield a block that is timed, and that is a span of this name where spans are made."""
        with self.tracing.span(name, log=log, segment=segment), timing.measured():
            yield

    # ------------------------------------------------------------------ the metadata store

    def observe(self, stores: Iterable[MetadataStore], settings: Settings) -> None:
        """Time every request to `stores`, until `close`."""
        requests, threshold_ms = self.root.metadata_requests, settings.metadata_latency_warn_ms

        def answered(operation: str, path: str, seconds: float, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, Exception):
                return  # It was cancelled: how long it would have taken is not known.
            requests.of(operation).record(seconds, not isinstance(error, _UNANSWERED))
            if 0 < threshold_ms < seconds * 1000:
                self.slow.report("metadata", seconds, threshold_ms, f"the metadata store's {operation}", path=path)
            if self.tracing.on:
                self.tracing.past(f"metadata {operation}", seconds, error, path=path)

        self._forget += [store.observe(answered) for store in dict.fromkeys(stores)]


def _nothing() -> None:
    pass


# ------------------------------------------------------------------ entries


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
            self._meter.slow.report(
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

    def settled(self, seconds: float, cause: BaseException | None) -> None:
        """Record that settling the entry's records took `seconds`."""
        if self.wanted:
            self.counts.seg_writer_add_complete_callback.record(seconds, cause is None)


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

    def arrived(self, entry_id: int, size: int, slow_ms: int, count: int = 1) -> None:
        """Measure `count` entries of `size` bytes that have come together, the first one's id given; above `slow_ms`
        that is a slow operation, 0: never."""
        seconds = self._loop.time() - self._asked_at
        self._entries += count
        if self._meter.wanted:
            self._measures.read_ahead_fetch.done.observe(seconds * 1000)
            self._measures.read_ahead_bytes.value += size
        if 0 < slow_ms < seconds * 1000:
            self._meter.slow.report(
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
