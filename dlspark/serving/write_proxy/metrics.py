"""The metrics of a write proxy, by upstream's names, and the view that its page has of it.

    ProxyScopes        the numbers of one proxy, and of single streams
    MeasuredService    stands before the service, hands everything on unchanged, and counts and times it
    StreamTraffic      what streams take in, for the placement of streams and the page
    ProxyCollection    how Prometheus's registries show the numbers
    WriteProxyView     what the page shows besides (`process.page`)

Names are upstream's scopes joined with `_`. Its counters of each status code and each denied operation are one metric
with a label here. A stream with series of its own (`server_enable_perstream_stat`) has the label `stream`, instead of
a part in those without it, until the proxy gives it up; then what it has counted goes into those without, so that sums
never go back. How many streams have series of their own is bounded: their names come from clients.

Cells are plain numbers, written by the proxy's loop and read by any thread that collects
(`dlspark.core.metrics.cells`). Nothing here does I/O, changes an answer, or answers by itself.
"""

# ruff: noqa: RUF009 - the defaults are fields, made by functions

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.catalog import MetricInfo, metric
from dlspark.core.metrics.cells import Cell, Count, Counts, Gauge, Timing, Timings
from dlspark.core.metrics.registries import OnePerRegistry, Statistics, family_of, registry_of
from dlspark.serving.bindings.service import Caller, ProxyService, Reply, RunReply, RunTaker
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Heartbeat,
    ProxyStatus,
    Refusal,
    ReleaseStream,
    Request,
    StatusCode,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.write_runs import WriteRun
from metadata.foundation.settings import markdown_table

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MAX_STREAM_SERIES: Final = 1000
"""Streams of a proxy that have series of their own at a time; further ones are counted with the rest."""

_timing = partial(metric, Timing, "histogram", unit="ms", labels=("success",), per_log=False)
_count = partial(metric, Count, "counter", per_log=False)
_gauge = partial(metric, Gauge, "gauge", per_log=False)


def _counts(name: str, meaning: str, label: str, *, own: bool = False) -> Any:
    return metric(partial(Counts, label), "counter", name, meaning, own=own, per_log=False, labels=(label,))


@dataclass(eq=False, slots=True)
class StreamMeasures:
    """The metrics that there are of single streams as well."""

    write: Timing = metric(
        Timing,
        "histogram",
        "request_write",
        "Writes of one record, from the request to its answer",
        unit="ms",
        labels=("success",),
    )
    bulk_write: Timing = metric(
        Timing,
        "histogram",
        "request_bulkWrite",
        "Writes of several records, or of records that are written whole or not at all",
        unit="ms",
        labels=("success",),
    )
    records_success: Count = metric(Count, "counter", "records_success", "Records that were stored")
    records_failure: Count = metric(
        Count, "counter", "records_failure", "Records that were refused, or of which it is not known"
    )


@dataclass(eq=False, slots=True)
class ProxyMeasures:
    """One proxy's metrics, those of single streams apart."""

    # ---- requests
    heartbeat: Timing = _timing("request_heartbeat", "Heartbeats")
    truncate: Timing = _timing("request_truncate", "Truncations")
    release: Timing = _timing("request_release", "Streams given up because a client asked for it")
    create: Timing = _timing("request_create", "Streams created")
    delete: Timing = _timing("request_delete", "Streams deleted")
    other: Timings = metric(
        partial(Timings, "operation"),
        "histogram",
        "request_other",
        "Operations that upstream does not have or does not time",
        unit="ms",
        own=True,
        per_log=False,
        labels=("operation", "success"),
    )
    write_pending: Gauge = _gauge("request_writePending", "Writes of one record that are not answered yet")
    bulk_write_pending: Gauge = _gauge("request_bulkWritePending", "Other writes that are not answered yet")
    redirect: Count = _count("request_redirect", "Requests answered with the owner to ask instead")
    status_codes: Counts = _counts("request_statuscode", "Answers by their status code", "code")
    status_code_count: Count = _count("request_statuscode_count", "All answers")
    records_received: Count = _count("records_received", "Records in requests, whatever became of them")
    records_redirect: Count = _count("records_redirect", "Records in requests that were sent on to the owner")
    denied: Counts = _counts("denied", "Requests that access control denied, or whose checksum was wrong", "operation")
    over_limit: Counts = _counts(
        "limiter_overlimit",
        "Requests over a limit of the proxy or of a stream: soft ones, and in dark mode hard ones, are only counted",
        "limit",
        own=True,
    )
    outstanding: Gauge = _gauge("service_outstandingAsync", "Requests that are not answered yet")

    # ---- the proxy, its streams
    proxy_status: Gauge = _gauge(
        "proxy_status",
        "1: takes writes and new streams, 2: takes writes, 3: takes no new streams by feature, -1: ends",
    )
    moving_average_rps: Gauge = _gauge("moving_avg_rps", "Write requests a second, over the last minute")
    moving_average_bps: Gauge = _gauge("moving_avg_bps", "Bytes of payload a second, over the last minute")
    streams_acquired: Gauge = _gauge("streams_acquired", "Streams that the proxy owns")
    streams_cached: Gauge = _gauge("streams_cached", "Streams that it knows: these, and those it just met elsewhere")
    connections: Gauge = _gauge("connections", "Connections of clients, by frames", own=True)
    announced: Gauge = _gauge("announced", "1 while the proxy is a member of the serving tier, else 0", own=True)

    # ---- placement
    placement: Timing = _timing("placement", "Computing and writing down the loads of all proxies, by their leader")
    placement_difference: Gauge = _gauge(
        "placement_load_diff", "The highest load of a proxy less the lowest, as they were given out"
    )


def _described(kind: type) -> tuple[tuple[str, MetricInfo], ...]:
    return tuple((item.name, item.metadata["info"]) for item in fields(kind))


STREAM_METRICS: Final = _described(StreamMeasures)
PROXY_METRICS: Final = _described(ProxyMeasures)
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "service_serviceExec": "a request is handed to its stream within the turn of the loop in which it comes",
    "streams_acquire": "`lock_acquire` of the log library has the time of a log's lock, `segments_open` of its segment",
    "pending_ops": "`service_outstandingAsync` has all requests without an answer",
    "serviceTimeout, unexpected_exceptions, request_exceptions_*": "`request_statuscode` has their answers",
    "service_limiter_*, stream_limiter_*": "`limiter_overlimit` has them by limit",
    "scheduler_*": "one event loop does all the work: nothing waits in a queue between threads",
    "stream_<name>_*": "the label `stream` has the name",
    "monitor_*": "upstream's monitor is a program of its own: `dlspark proxy owners` shows what it showed",
}
"""Upstream's names, and why a proxy has no such metric here."""


def metrics_tables() -> Iterator[str]:
    """Yield the lines of the tables in docs/serving/write-proxy.md."""
    yield from markdown_table(("metric", "kind", "labels", "by stream", "own", "meaning"), map(_row, _ALL))
    yield ""
    yield "Metrics of upstream's proxy that are not there:"
    yield ""
    yield from markdown_table(("metric", "reason"), ((f"`{name}`", why) for name, why in WITHOUT_MEANING.items()))


_ALL: Final = tuple(info for _, info in (*STREAM_METRICS, *PROXY_METRICS))


def _row(info: MetricInfo) -> tuple[str, ...]:
    name = f"`{info.name}{'_total' if info.kind == 'counter' else ''}`"
    labels = ", ".join(f"`{label}`" for label in info.labels)
    meaning = f"{info.meaning} ({info.unit})" if info.unit else info.meaning
    return name, info.kind, labels, "•" if info.per_log else "", "" if info.upstream else "•", meaning


# ------------------------------------------------------------------ one proxy


@dataclass(eq=False, slots=True)
class ProxyScopes:
    """Where does a proxy count what it does? Its own cells, and those of single streams."""

    root: ProxyMeasures = field(default_factory=ProxyMeasures)
    rest: StreamMeasures = field(default_factory=StreamMeasures)
    """Of all streams without series of their own."""
    streams: dict[str, StreamMeasures] = field(default_factory=dict)
    per_stream: bool = True

    def of(self, stream: str) -> StreamMeasures:
        """Return where to count for a stream that the proxy owns."""
        found = self.streams.get(stream)
        if found is not None or not self.per_stream or len(self.streams) >= MAX_STREAM_SERIES:
            return found if found is not None else self.rest
        return self.streams.setdefault(stream, StreamMeasures())

    def known(self, stream: str) -> StreamMeasures:
        """Return where to count for a stream of which it is not known whether the proxy owns it."""
        return self.streams.get(stream, self.rest)

    def keep_streams(self, owned: Callable[[str], bool]) -> None:
        """End the series of streams that are not owned any more; what they have counted goes to the rest."""
        for name in [one for one in self.streams if not owned(one)]:
            _keep(self.rest, self.streams.pop(name), STREAM_METRICS)


def _keep(into: object, ended: object, metrics: tuple[tuple[str, MetricInfo], ...]) -> None:
    for name, _ in metrics:
        getattr(into, name).keep(getattr(ended, name))


# ------------------------------------------------------------------ registries


class ProxyCollection:
    """What does a registry of Prometheus show of the proxies in this process? Their sums; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: list[ProxyScopes] = []
        self._past = ProxyScopes()

    def attach(self, scopes: ProxyScopes) -> Callable[[], None]:
        """Show what is counted there; return a function that ends that. What was counted stays in the sums."""
        with self._lock:
            self._live.append(scopes)

        def detach() -> None:
            with self._lock:
                if scopes in self._live:
                    # Kept for ever, for a counter that went back would look like a restart. Streams' own series do not
                    # stay: in the sums of all that is no loss.
                    self._live.remove(scopes)
                    scopes.keep_streams(lambda _: False)
                    _keep(self._past.root, scopes.root, PROXY_METRICS)
                    _keep(self._past.rest, scopes.rest, STREAM_METRICS)

        return detach

    # ------------------------------------------------------------------ for prometheus_client

    def describe(self) -> Iterator[Metric]:
        """Yield names and kinds: a registry refuses those that it has already."""
        for _, info in (*STREAM_METRICS, *PROXY_METRICS):
            yield family_of(info.name, info.meaning, info.unit, info.kind)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with the sums of now."""
        with self._lock:
            scopes = [self._past, *self._live]
            by_stream: dict[str | None, list[object]] = {None: [one.rest for one in scopes]}
            for one in scopes:
                for stream, measures in dict(one.streams).items():
                    by_stream.setdefault(stream, []).append(measures)
            roots: dict[str | None, list[object]] = {None: [one.root for one in scopes]}
            families = [_filled(name, info, by_stream) for name, info in STREAM_METRICS]
            families += [_filled(name, info, roots) for name, info in PROXY_METRICS]
        yield from families


def _filled(name: str, info: MetricInfo, scopes: Mapping[str | None, list[object]]) -> Metric:
    family = family_of(info.name, info.meaning, info.unit, info.kind)
    for stream, several in scopes.items():
        total: Cell = info.make()
        for measures in several:
            total.add(getattr(measures, name))
        about = {} if stream is None else {"stream": stream}
        for suffix, labels, value in total.samples():
            family.add_sample(info.name + suffix, {**about, **labels}, value)
    return family


_COLLECTIONS: Final = OnePerRegistry(ProxyCollection, "proxy")


def shown_in(statistics: Statistics, scopes: ProxyScopes) -> Callable[[], None]:
    """Show what `scopes` counts in the registry of `statistics`, where metrics are wanted; return a function that ends
    that.

    Raises CallerError where the registry has other metrics of these names.
    """
    if not statistics.collect:
        return lambda: None
    return _COLLECTIONS.of(registry_of(statistics)).attach(scopes)


# ------------------------------------------------------------------ counting


_DENIED: Final = (StatusCode.REQUEST_DENIED, StatusCode.CHECKSUM_FAILED)
_TIMED: Final[Mapping[type, str]] = {
    Heartbeat: "heartbeat",
    TruncateStream: "truncate",
    ReleaseStream: "release",
    CreateStream: "create",
    DeleteStream: "delete",
}


class StreamTraffic:
    """How many bytes a second does each stream take? On the mean between the last two samples."""

    def __init__(self) -> None:
        self.bytes_per_second: dict[str, int] = {}
        """As of the last sample; a stream without traffic since is not in it."""
        self._bytes: dict[str, int] = {}
        self._since: float | None = None

    def add(self, stream: str, count: int) -> None:
        """Note that a stream that is owned here has taken `count` bytes."""
        self._bytes[stream] = self._bytes.get(stream, 0) + count

    def sample(self, now: float) -> None:
        """Begin the next time; `now` in seconds."""
        if self._since is not None and now > self._since:
            seconds = now - self._since
            self.bytes_per_second = {one: max(1, int(count / seconds)) for one, count in self._bytes.items()}
        self._since = now
        self._bytes = {}


class MeasuredService:
    """What did clients ask, what were they answered, and how long did that take? A `ProxyService` before another one.

    Args:
        clock: returns seconds that never go back.
        runs: takes writes that came together; None: nobody does.
    """

    def __init__(
        self,
        service: ProxyService,
        scopes: ProxyScopes,
        traffic: StreamTraffic,
        clock: Callable[[], float],
        runs: RunTaker | None = None,
    ) -> None:
        self._service = service
        self._runs = runs
        self._scopes = scopes
        self._traffic = traffic
        self._clock = clock
        self._pending = {False: 0, True: 0}
        self._outstanding = 0
        root = scopes.root
        root.write_pending.follow(self, lambda one: one._pending[False])
        root.bulk_write_pending.follow(self, lambda one: one._pending[True])
        root.outstanding.follow(self, lambda one: one._outstanding)

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""
        began, root = self._clock(), self._scopes.root
        self._outstanding += 1
        if isinstance(request, WriteRecords):
            self._submit_write(request, caller, reply, began)
            return
        operation = type(request).__name__

        def answered(answer: Answer) -> None:
            self._outstanding -= 1
            refusal = answer if isinstance(answer, Refusal) else None
            field = _TIMED.get(type(request))
            timing = getattr(root, field) if field is not None else root.other.of(operation)
            self._count(root, refusal, field or operation)
            if refusal is None or refusal.code is not StatusCode.FOUND:
                timing.record(self._clock() - began, refusal is None)
            reply(answer)

        self._service.submit(request, caller, answered)

    def _submit_write(self, request: WriteRecords, caller: Caller, reply: Reply, began: float) -> None:
        records, root = len(request.payloads), self._scopes.root
        bulk = records != 1 or request.is_whole
        root.records_received.value += records
        self._pending[bulk] += 1

        def answered(answer: Answer) -> None:
            self._outstanding -= 1
            self._pending[bulk] -= 1
            self._note_written(request, answer, records, began)
            reply(answer)

        self._service.submit(request, caller, answered)

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        """See `RunTaker`: each of them is counted as one that came alone."""
        if self._runs is None:
            return False
        began, root, records = self._clock(), self._scopes.root, len(run.numbers)

        def answered(first: int, outcome: Sequence[DLSN] | Refusal, count: int) -> None:
            self._outstanding -= count
            self._pending[False] -= count
            theirs = run.payloads[first : first + count]
            if isinstance(outcome, Refusal):
                for payload in theirs:
                    self._note_written(WriteRecords(run.stream, (payload,)), outcome, 1, began)
            else:
                self._note_stored(run.stream, theirs, began)
            reply(first, outcome, count)

        self._outstanding += records
        self._pending[False] += records
        if not self._runs.submit_run(run, caller, answered):
            self._outstanding -= records
            self._pending[False] -= records
            return False
        root.records_received.value += records
        return True

    def _note_stored(self, stream: str, payloads: Sequence[bytes], began: float) -> None:
        count = len(payloads)
        self._count(self._scopes.root, None, "write", count)
        measures = self._scopes.of(stream)
        measures.records_success.value += count
        self._traffic.add(stream, sum(map(len, payloads)))
        measures.write.record(self._clock() - began, True, count)

    def _note_written(self, request: WriteRecords, answer: Answer, records: int, began: float) -> None:
        """Count a write by what it was answered with."""
        root, bulk = self._scopes.root, records != 1 or request.is_whole
        refusal = answer if isinstance(answer, Refusal) else None
        self._count(root, refusal, "bulkWrite" if bulk else "write")
        if refusal is not None and refusal.code is StatusCode.FOUND:
            root.records_redirect.value += records
        else:
            stream = self._count_records(request, answer, records)
            timing = stream.bulk_write if bulk else stream.write
            timing.record(self._clock() - began, refusal is None)

    def _count_records(self, request: WriteRecords, answer: Answer, records: int) -> StreamMeasures:
        """Count what became of the records; returns where their stream is counted."""
        failed = 0
        if isinstance(answer, BulkReceipt):
            failed = list(map(type, answer.results)).count(Refusal)
        elif not isinstance(answer, WriteReceipt):
            failed = records
        if failed == records:  # A name that was never written is a client's alone: it gets no series.
            stream = self._scopes.known(request.stream)
        else:
            stream = self._scopes.of(request.stream)
            stream.records_success.value += records - failed
            self._traffic.add(request.stream, sum(map(len, request.payloads)))
        stream.records_failure.value += failed
        return stream

    def _count(self, root: ProxyMeasures, refusal: Refusal | None, operation: str, answers: int = 1) -> None:
        code = refusal.code if refusal is not None else StatusCode.SUCCESS
        root.status_codes.values[code.name] += answers
        root.status_code_count.value += answers
        if code is StatusCode.FOUND:
            root.redirect.value += 1
        elif code in _DENIED:
            root.denied.values[operation] += 1

    def caller_gone(self, caller: Caller) -> None:
        """See `ProxyService`."""
        self._service.caller_gone(caller)


# ------------------------------------------------------------------ the page


class ShownWriteProxy(Protocol):
    """A write proxy as its page needs it, at any time from its making on."""

    @property
    def location(self) -> str:
        """Its own location."""
        ...

    @property
    def serving(self) -> bool:
        """True while it answers clients."""
        ...

    @property
    def announced(self) -> bool:
        """True while it is a member of the serving tier."""
        ...

    @property
    def status(self) -> ProxyStatus:
        """Which requests it takes."""
        ...

    def streams(self) -> Iterable[str]:
        """Return the names of the streams that it owns."""
        ...

    def traffic(self) -> Mapping[str, int]:
        """Return bytes a second by stream."""
        ...


class WriteProxyView:
    """What does a write proxy look like from outside? A `ShownProxy`, for its page."""

    def __init__(self, proxy: ShownWriteProxy) -> None:
        self._proxy = proxy

    @property
    def ready(self) -> bool:
        """True while it serves and takes writes."""
        return self._proxy.serving and self._proxy.status is not ProxyStatus.DOWN

    def state(self) -> Mapping[str, object]:
        """Return its location, its status, whether it is announced, and the number of its streams."""
        return {
            "location": self._proxy.location,
            "status": self._proxy.status.name,
            "announced": self._proxy.announced,
            "streams": sum(1 for _ in self._proxy.streams()),
        }

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return the bytes a second of each stream."""
        traffic = self._proxy.traffic()
        return {one: {"bytesPerSecond": traffic.get(one, 0)} for one in sorted(self._proxy.streams())}
