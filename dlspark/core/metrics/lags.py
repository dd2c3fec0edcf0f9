"""`QueryLags`: how far streaming queries are behind in their logs, as gauges of a Prometheus registry.

The numbers are measured in the query's source and come with its progress. A listener sets them here, and takes them
away when the query ends: a gauge that stays would look like a query that makes no progress.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from dlspark.core.metrics.collection import OnePerRegistry
from dlspark.core.metrics.meter import Statistics, registry_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


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


RECORDS: Final = LagMetric("query_lag_records", "Records of a log that a query has not read yet", "")
BYTES: Final = LagMetric("query_lag_bytes", "Their stored bytes, about", "bytes")
MILLISECONDS: Final = LagMetric(
    "query_lag_ms", "From the transaction id of the first of them to that of the log's last record", "ms"
)
PROGRESS: Final = LagMetric(
    "query_progress_time", "When the query was last heard of, since the epoch: a lag is as old as this", "s", False
)
LAG_METRICS: Final = (RECORDS, BYTES, MILLISECONDS, PROGRESS)

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
        """Names and kinds: a registry refuses those that it has already."""
        for one in LAG_METRICS:
            yield _family(one)

    def collect(self) -> Iterator[Metric]:
        """All gauges as they are now; called by the registry, from any thread."""
        with self._lock:
            queries = sorted(self._queries.items())
        by_log = [_family(one) for one in (RECORDS, BYTES, MILLISECONDS)]
        heard = _family(PROGRESS)
        for query_id, query in queries:
            labels = {"query_id": query_id, "query_name": query.name}
            heard.add_sample(heard.name, labels, query.heard_s)
            for log, values in sorted(query.lags.items()):
                for family, value in zip(by_log, values, strict=True):
                    if value is not None:
                        family.add_sample(family.name, {**labels, "log": log}, value)
        yield from (*by_log, heard)


def _family(metric: LagMetric) -> Metric:
    from prometheus_client.metrics_core import Metric

    return Metric(metric.name, f"{metric.meaning}{f' ({metric.unit})' if metric.unit else ''}", "gauge")


_LAGS: Final = OnePerRegistry(QueryLags, "listener")


def lags_of(statistics: Statistics | None) -> QueryLags | None:
    """The `QueryLags` of the registry that `statistics` names, registered there; None where no metrics are wanted.

    Raises CallerError where its names are taken.
    """
    statistics = statistics if statistics is not None else Statistics()
    if not statistics.collect:
        return None
    return _LAGS.of(registry_of(statistics))
