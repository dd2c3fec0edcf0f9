"""This process in Prometheus's registries, and a program's choices about that (`Statistics`).

A registry has one collector of a kind, which is registered there when it is first needed (`OnePerRegistry`): a second
namespace in the process joins it instead of registering the same names again.

* `Collection`: the sums over all namespaces of this process that count for the registry. What closed namespaces and
  logs have counted stays in the sums, so that counters never go back. A log's own series (label `stream`) end with it,
  and go on in those without the label.
* `QueryLags`: how far streaming queries are behind in their logs. The numbers are measured in the query's source and
  come with its progress. A listener sets them here, and takes them away when the query ends: a gauge that stays would
  look like a query that makes no progress.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from dlspark.core.metrics.catalog import METRICS, Measures, MetricInfo, MetricKind
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import CallerError
from metadata.security.listening import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

_T = TypeVar("_T", bound="Collector")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Says where a program's metrics and spans go."""

    registry: CollectorRegistry | None = None
    """The Prometheus registry that shows them; None: prometheus_client's own, `REGISTRY`."""
    tracer_provider: TracerProvider | None = None
    """Makes OpenTelemetry's spans, whatever `tracingEnabled` says; None: the program's own, if that is set."""
    collect: bool = True
    """True if any metrics are wanted."""


NO_STATISTICS: Final = Statistics(collect=False)
"""Nothing is measured. The counters of rare paths (`namespace.counters`) and the warnings of slow operations stay."""


def registry_of(statistics: Statistics) -> CollectorRegistry:
    """Return the registry of `statistics`; where it names none, prometheus_client's own."""
    if statistics.registry is not None:
        return statistics.registry
    from prometheus_client import REGISTRY

    return REGISTRY


def serve_metrics(
    port: int,
    host: str = LOOPBACK,
    registry: CollectorRegistry | None = None,
    *,
    insecure_listen: bool = False,
) -> Callable[[], None]:
    """Answer HTTP requests for `/metrics` from a thread of its own; returns a function that ends it.

    There is no authentication: a `host` that other machines can reach is refused unless `insecure_listen` allows it.
    Raises CallerError for such a host, and where the port cannot be used.
    """
    from prometheus_client import start_http_server

    if not insecure_listen and not is_loopback(host):
        raise CallerError(
            f"metrics would be served on {host or 'every address here'} to whoever asks; they are not served",
            advice=f"Leave the host at {LOOPBACK}, or say that the network is protection enough: insecure_listen=True",
        )

    try:
        server, thread = start_http_server(port, host, registry_of(Statistics(registry)))
    except OSError as error:
        raise CallerError(
            f"metrics cannot be served on {address_text(host, port)}: {error}", advice="Give another port"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


# ------------------------------------------------------------------ one collector of a kind


class OnePerRegistry(Generic[_T]):
    """The collectors that `make` makes, one for each registry; kept as long as the registry lives."""

    def __init__(self, make: Callable[[], _T], taker: str) -> None:
        """Make none yet. `taker`: what can be given another registry, in words for the error's advice."""
        self._make = make
        self._taker = taker
        self._found: weakref.WeakKeyDictionary[CollectorRegistry, _T] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, registry: CollectorRegistry) -> _T:
        """Return the collector of `registry`, registered there; from any thread. Raises CallerError where names are
        taken."""
        with self._lock:
            found = self._found.get(registry)
            if found is None:
                found = self._make()
                try:
                    registry.register(found)
                except ValueError as error:
                    raise CallerError(
                        f"the registry has metrics of dlspark's names already: {error}",
                        advice=f"Give the {self._taker} a registry of its own: "
                        "statistics=Statistics(CollectorRegistry())",
                    ) from error
                self._found[registry] = found
            return found


def family_of(name: str, meaning: str, unit: str, kind: MetricKind) -> Metric:
    """Return a metric without numbers, as prometheus_client wants it."""
    from prometheus_client.metrics_core import Metric

    return Metric(name, f"{meaning}{f' ({unit})' if unit else ''}", kind)


# ------------------------------------------------------------------ what namespaces count


@dataclass(eq=False, slots=True)
class Scopes:
    """The cells that one namespace counts in: cells of its own, and cells for each log that has
    `enablePerStreamStat`."""

    root: Measures = field(default_factory=Measures)
    logs: dict[str, Measures] = field(default_factory=dict)

    def end_log(self, name: str) -> None:
        """End a log's own series; what they have counted goes to the namespace's."""
        self.root.keep(self.logs.pop(name))


class Collection:
    """The collector of one registry. `attach` and `detach` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: list[Scopes] = []
        self._ended: deque[Scopes] = deque()
        self._past = Measures()

    def attach(self, scopes: Scopes) -> None:
        """Show what is counted there, until `detach`."""
        with self._lock:
            self._live.append(scopes)

    def detach(self, scopes: Scopes) -> None:
        """Note that nothing more is counted there. Takes no lock: the garbage collector may call it at any point."""
        self._ended.append(scopes)

    def _settle(self) -> None:
        """Move what has ended from the living to the past. Under the lock."""
        while self._ended:  # a deque: appending to it and taking from it need no lock
            scopes = self._ended.popleft()
            self._live = [one for one in self._live if one is not scopes]
            for measures in (scopes.root, *scopes.logs.values()):
                self._past.keep(measures)

    # ------------------------------------------------------------------ for prometheus_client

    def describe(self) -> Iterator[Metric]:
        """Yield names and kinds: a registry refuses those that it has already."""
        for _, info in METRICS:
            yield family_of(info.name, info.meaning, info.unit, info.kind)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with the sums of now; called by the registry, from any thread."""
        with self._lock:
            self._settle()
            scopes: dict[str | None, list[Measures]] = {None: [self._past]}
            for one in self._live:
                scopes[None].append(one.root)
                for log, measures in dict(one.logs).items():
                    scopes.setdefault(log, []).append(measures)
            families = [_filled(name, info, scopes) for name, info in METRICS]
        yield from families  # outside of the lock: a generator may be left unfinished for ever


def _filled(name: str, info: MetricInfo, scopes: dict[str | None, list[Measures]]) -> Metric:
    family = family_of(info.name, info.meaning, info.unit, info.kind)
    for log, several in scopes.items():
        if log is not None and not info.per_log:
            continue
        total = info.make()
        for measures in several:
            total.add(getattr(measures, name))
        stream = {} if log is None else {"stream": log}
        for suffix, labels, value in total.samples():
            family.add_sample(info.name + suffix, {**stream, **labels}, value)
    return family


_COLLECTIONS: Final = OnePerRegistry(Collection, "namespace")


def collection_of(registry: CollectorRegistry) -> Collection:
    """Return the collection of `registry`, registered there. Raises CallerError where its names are taken."""
    return _COLLECTIONS.of(registry)


# ------------------------------------------------------------------ how far queries are behind


@dataclass(frozen=True, slots=True)
class LagMetric:
    """One gauge."""

    name: str
    meaning: str
    unit: str
    by_log: bool = True

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the gauge's labels."""
        return ("query_id", "query_name", "log") if self.by_log else ("query_id", "query_name")

    def family(self) -> Metric:
        """Return the gauge without numbers, as prometheus_client wants it."""
        return family_of(self.name, self.meaning, self.unit, "gauge")


LAG_RECORDS: Final = LagMetric("query_lag_records", "Records of a log that a query has not read yet", "")
LAG_BYTES: Final = LagMetric("query_lag_bytes", "Their stored bytes, about", "bytes")
LAG_MS: Final = LagMetric(
    "query_lag_ms", "From the transaction id of the first of them to that of the log's last record", "ms"
)
LAG_PROGRESS: Final = LagMetric(
    "query_progress_time", "When the query was last heard of, since the epoch: a lag is as old as this", "s", False
)
LAG_METRICS: Final = (LAG_RECORDS, LAG_BYTES, LAG_MS, LAG_PROGRESS)

LogLag: TypeAlias = tuple[int | None, int | None, int | None]
"""Records, bytes, milliseconds; None: not known, and not shown."""


@dataclass(frozen=True, slots=True)
class _Query:
    name: str
    heard_s: float
    lags: Mapping[str, LogLag]


class QueryLags:
    """The collector of one registry. May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    def show(self, query_id: str, name: str, heard_s: float, lags: Mapping[str, LogLag]) -> None:
        """Show a query's lags by log, in place of those before; measured at `heard_s`, seconds since the epoch."""
        with self._lock:
            self._queries[query_id] = _Query(name, heard_s, dict(lags))

    def forget(self, query_id: str) -> None:
        """Show nothing more of a query: it has ended. An unknown query is a success."""
        with self._lock:
            self._queries.pop(query_id, None)

    # ------------------------------------------------------------------ for prometheus_client

    def describe(self) -> Iterator[Metric]:
        """Yield names and kinds: a registry refuses those that it has already."""
        for one in LAG_METRICS:
            yield one.family()

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges as they are now; called by the registry, from any thread."""
        with self._lock:
            queries = sorted(self._queries.items())
        by_log = [one.family() for one in (LAG_RECORDS, LAG_BYTES, LAG_MS)]
        heard = LAG_PROGRESS.family()
        for query_id, query in queries:
            labels = {"query_id": query_id, "query_name": query.name}
            heard.add_sample(heard.name, labels, query.heard_s)
            for log, values in sorted(query.lags.items()):
                for family, value in zip(by_log, values, strict=True):
                    if value is not None:
                        family.add_sample(family.name, {**labels, "log": log}, value)
        yield from (*by_log, heard)


_LAGS: Final = OnePerRegistry(QueryLags, "listener")


def lags_of(statistics: Statistics | None) -> QueryLags | None:
    """Return the `QueryLags` of the registry that `statistics` names, registered there; None where no metrics are
    wanted.

    Raises CallerError where its names are taken.
    """
    statistics = statistics if statistics is not None else Statistics()
    if not statistics.collect:
        return None
    return _LAGS.of(registry_of(statistics))
