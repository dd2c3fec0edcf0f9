"""The page docs/metrics.md, made from the catalog."""

from __future__ import annotations

from collections.abc import Iterator

from dlspark.core.metrics.catalog import METRICS, WITHOUT_MEANING
from dlspark.core.metrics.meter import MAX_STREAMS, WARN_INTERVAL_S
from dlspark.core.metrics.registries import LAG_METRICS
from dlspark.core.metrics.structured_logging import FIELDS

_HEAD = f"""\
# Metrics, slow operations, spans, logs

This page is generated: `python -m dlspark.core.metrics > docs/metrics.md`.

## Metrics

A namespace counts by itself, and the registry of prometheus_client shows the sums over all namespaces of the process:

    import dlspark

    stop = dlspark.serve_metrics(9000)               # http://127.0.0.1:9000/metrics
    with dlspark.Namespace.open(uri) as namespace:
        ...
    stop()

`serve_metrics` listens on the local host's address; with `host="0.0.0.0", insecure_listen=True` every
host that can connect can read. A
program that serves `prometheus_client.REGISTRY` already needs nothing. Another registry is
`Namespace.open(uri, statistics=dlspark.Statistics(registry))`; nothing is measured with
`statistics=dlspark.NO_STATISTICS`. prometheus_client's mode for several processes with one registry does not see these
metrics: each process has to be asked by itself.

Names are Apache DistributedLog's scopes joined with `_`; a dot in the column *own* marks those that it does not have.
Counters end in `_total`, as Prometheus's libraries require. Latencies are histograms in milliseconds; label `success`
is `true` or `false`; what is cancelled is not counted. Where *by log* has a dot, a log that was opened with
`enablePerStreamStat` has series of its own with the label `stream`, in place of a part in those without it, until its
last handle is closed; from then on what it has counted is part of those without the label, so that sums never go back.
At most {MAX_STREAMS:,} logs of a namespace have series of their own at a time; more cause a warning.

| metric | kind | unit | labels | by log | own | meaning |
|---|---|---|---|---|---|---|
"""
_COST = """
Counting takes place once an entry or an operation, not once a record: a record's latency is that of the first record in
its entry, which is the longest.

Storage nodes have metrics of their own, at an address of their own (`httpServerEnabled`: operations.md, "Probes and
metrics over HTTP"), and so have proxies (serving/write-proxy.md, serving/read-proxy.md).
A program that runs on `dlspark.sandbox.sandbox` shows its own side by `serve_metrics` like any other.

## Metrics of Apache DistributedLog that are not there

| metric | reason |
|---|---|
"""
_LAGS = """
## Lag of streaming queries

`dlspark.spark.LagListener` sets these gauges from the progress of Spark's streaming queries, and takes them away when a
query ends (docs/spark-metadata.md):

    from dlspark.spark import LagListener

    dlspark.serve_metrics(9000)
    spark.streams.addListener(LagListener())

| metric | kind | unit | labels | meaning |
|---|---|---|---|---|
"""
_TAIL = f"""
## Slow operations

Requests to the metadata store that take longer than `metadataLatencyWarnThresholdMs`, and writes and reads of entries
longer than `dataLatencyWarnThresholdMs`, are counted (`slow_operations`, by `kind`: metadata, write, read) and logged
as warnings: one line a kind in {WARN_INTERVAL_S:.0f} seconds, which says how many others there were. This does not
depend on statistics. Waiting for records that are not written yet is not slow.

`traceReadAheadMetadataChanges` logs each change of a log's segments that a reader sees;
`traceReadAheadDeliveryLatency` measures how long entries wait for their reader (`read_ahead_delivery`).

## Spans

With `tracingEnabled`, or `statistics=dlspark.Statistics(tracer_provider=...)`, OpenTelemetry gets spans. It takes the
extra `telemetry` (`pip install dlspark[telemetry]`), which is the API; where spans go is set up by the program.

| span | of |
|---|---|
| `transmit` | an entry, from sending to acknowledgement |
| `segment start`, `segment complete`, `segment recover` | a segment |
| `read-ahead fetch` | a run over entries that are there to be read |
| `lock acquire`, `read lock acquire` | a lock |
| `metadata get`, `metadata multi`, ... | a request to the metadata store; part of what made it |

Attributes begin with `dlspark.`: those of log, segment, ledger, entry, records, entries and path that apply.

## Logs

Loggers are those of the modules (`dlspark.core.writing.writer`). Records say what they are about in attributes beside
the message: {", ".join(f"`{name}`" for name in FIELDS)}. One line of JSON for each:

    import logging
    from dlspark.core.metrics.structured_logging import JsonFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger("dlspark").addHandler(handler)

    {{"time": "2026-11-22T00:31:11.000+00:00", "level": "WARNING", "logger": "dlspark.core.metrics.meter",
     "message": "log flights: writing entry 7 of segment 1 took 2300 ms, more than 2000 ms", "log": "flights",
     "segment": 1, "ledger": 12, "kind": "write", "duration_ms": 2300, "threshold_ms": 2000}}
"""


def metrics_page() -> str:
    """Return the whole text of docs/metrics.md."""
    return "".join(
        (
            _HEAD,
            *_rows(),
            _COST,
            *(f"| `{name}` | {why} |\n" for name, why in WITHOUT_MEANING.items()),
            _LAGS,
            *_lag_rows(),
            _TAIL,
        )
    )


def _rows() -> Iterator[str]:
    for _, info in METRICS:
        name = f"`{info.name}{'_total' if info.kind == 'counter' else ''}`"
        labels = ", ".join(f"`{label}`" for label in info.labels)
        marks = " | ".join("•" if mark else "" for mark in (info.per_log, not info.upstream))
        yield f"| {name} | {info.kind} | {info.unit} | {labels} | {marks} | {info.meaning} |\n"


def _lag_rows() -> Iterator[str]:
    for one in LAG_METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | gauge | {one.unit} | {labels} | {one.meaning} |\n"
