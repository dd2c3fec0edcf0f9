"""`Meter`: one namespace's measuring. Each namespace has one, and hands it to everything that it opens.

A program says with `Statistics` what it wants measured; a `Meter` is opened with that and holds the three ways in which
a namespace reports on itself. They are together here because one place in the code often feeds all three (`step`,
`observe`, `entry_measures`):

* *Metrics*: `root`, and `of(log)` for a log with series of its own. Counting is adding to plain numbers (`cells`), once
  an entry or an operation, never once a record. A registry shows their sums (`collection`). Where no metrics are wanted
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
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.cells import Timing
from dlspark.core.metrics.collection import Scopes, collection_of
from dlspark.core.settings.settings import Settings
from dlspark.errors import CallerError
from metadata.foundation.errors import MetadataUnavailableError, OutcomeUnknownError
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, TypeAlias

from dlspark.core.metrics.cells import Counts
from dlspark.core.metrics.structured_logging import about
from dlspark.errors import SettingsError

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
        self._untold: dict[str, int] = {}

    def tell(
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
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        self._next[kind] = now + WARN_INTERVAL_S
        others = self._untold.pop(kind, 0)
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
    """Whether `past` does anything: callers on hot paths look at this first."""

    def span(self, name: str, **attributes: str | int | None) -> AbstractContextManager[None]:
        """A block that is a span, and a failed one where it raises. Attributes that are None are left out."""
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
        """A span around what the block does."""
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
    """Spans by `provider`; without one, if `wanted`, by the program's own; else none.

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


@dataclass(frozen=True, slots=True)
class Statistics:
    """Where numbers and spans go."""

    registry: CollectorRegistry | None = None
    """The Prometheus registry that shows them; None: prometheus_client's own, `REGISTRY`."""
    tracer_provider: TracerProvider | None = None
    """Makes OpenTelemetry's spans, whatever `tracingEnabled` says; None: the program's own, if that is set."""
    collect: bool = True
    """Whether any metrics are wanted."""


NO_STATISTICS: Final = Statistics(collect=False)
"""Nothing is measured. The counters of rare paths (`namespace.counters`) and the warnings of slow operations stay."""


class Meter:
    """What one namespace measures with. All calls come from one event loop."""

    def __init__(self, *, wanted: bool = False, traces: Tracing = NO_TRACING) -> None:
        """Used by `open`. Without `open`, no registry shows what it counts."""
        self.wanted = wanted
        """Whether a registry shows what hot paths count."""
        self.tracing = traces
        self._scopes = Scopes()
        self.root = self._scopes.root
        self.slow = SlowOperations(self.root.slow_operations)
        self._users: Counter[str] = Counter()
        self._full_told = False
        self._forget: list[Callable[[], None]] = []
        self._end: Callable[[], object] | None = None

    @classmethod
    def open(cls, statistics: Statistics | None, settings: Settings) -> Meter:
        """A meter that counts for `statistics`, by default prometheus_client's own registry.

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
        """Called when a handle on a log is opened; returns a function to call when it is closed. With
        `enablePerStreamStat` the log has series of its own until its last handle is closed."""
        if not (self.wanted and settings.per_stream_statistics):
            return _nothing
        if name not in self._scopes.logs and len(self._scopes.logs) >= MAX_STREAMS:
            if not self._full_told:
                self._full_told = True
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
        """The metrics to count in for a log. Ask once, after the log was opened, and keep the answer."""
        return self._scopes.logs.get(log, self.root)

    # ------------------------------------------------------------------ operations

    @contextmanager
    def step(self, timing: Timing, name: str, *, log: str | None = None, segment: int | None = None) -> Iterator[None]:
        """A block that is timed, and that is a span of this name where spans are made."""
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
                self.slow.tell("metadata", seconds, threshold_ms, f"the metadata store's {operation}", path=path)
            if self.tracing.on:
                self.tracing.past(f"metadata {operation}", seconds, error, path=path)

        self._forget += [store.observe(answered) for store in dict.fromkeys(stores)]


def _nothing() -> None:
    pass


def registry_of(statistics: Statistics) -> CollectorRegistry:
    """The registry of `statistics`; where it names none, prometheus_client's own."""
    if statistics.registry is not None:
        return statistics.registry
    from prometheus_client import REGISTRY

    return REGISTRY


def serve_metrics(port: int, host: str = "127.0.0.1", registry: CollectorRegistry | None = None) -> Callable[[], None]:
    """Answer HTTP requests for `/metrics` from a thread of its own; returns a function that ends it.

    There is no authentication: by default only this machine can connect. Raises CallerError where the port cannot be
    used.
    """
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry_of(Statistics(registry)))
    except OSError as error:
        raise CallerError(f"metrics cannot be served on {host}:{port}: {error}", advice="Give another port") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
