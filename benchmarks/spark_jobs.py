"""The Spark connector: rows P6 to P8, on a local session of two cores.

Each job runs uncounted until it gets no faster (`run_until_steady`), in every round: while the JVM compiles, its sixth
run takes a third of the time of its second; and Spark ends workers that are idle for a minute, as those of P6 are while
P8 is measured, so that the first job behind that starts new ones. The compared jobs take turns within a round, and the
compared one runs before and after ours.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.cluster import Cluster
from benchmarks.costs import Watch, Window, costs_of, within
from benchmarks.proxies import read_proxy
from benchmarks.results import Row, Target
from benchmarks.session import CORES, batch_ms, jvm_pid
from benchmarks.spark_sources import (
    IDENTICAL,
    NOTHING,
    UNPUBLISHED,
    IdenticalBatches,
    Nothing,
    Unpublished,
    rows_per_repeat,
)
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Job: TypeAlias = "Callable[[], object]"
SOURCE = "source, from storage nodes"
"""The job that two rows measure."""
SOURCE_REPEATS = 50
"""Times 4 MB of 100 B records, any length: some 1.7 million rows to read."""
SINK_ROWS = 1_000_000
MICRO_BATCH_ROWS = 100
MICRO_BATCHES = 22
WARM_UP_BATCHES = 8
MOST_WARM_UPS = 12
STEADY = 0.9
"""A run that takes less than this share of the fastest one before shows that its job is not warm yet."""
STEADY_RUNS = 2
"""Runs in a row that do not show it: while the JVM compiles in the background a job runs twice at one speed, and the
next time half as long. With one such run P6 counted 1.3 M rows a second, and the next row 2.1 M of the same job."""
SOURCE_LOG = "source"
STREAM_LOG = "stream"


class SparkBenchmark:
    """Rows P6 to P8 on one cluster and one session."""

    def __init__(self, cluster: Cluster, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._uri = cluster.uri
        self._directory = directory
        self._count = 0
        self._source = Row(
            "P6", "source, 100 B any length, 8 columns", "k rows/s", "k rows/s: no-op source", Target(0.85), job=SOURCE
        )
        nodes = "k rows/s: from storage nodes"
        self._proxied = Row(
            "P6", "the same through a read proxy on this machine", "k rows/s", nodes, None, limit_job=SOURCE
        )
        self._sink = Row("P7", "sink, 1 M rows of 100 B a batch", "k rows/s", "k rows/s: not published", Target(0.9))
        self._overhead = Row("P8", "micro-batch, source to sink", "ms", "ms: rate to noop", Target(1.5, at_most=True))
        self._own_share = Row(
            "P8", "micro-batch, source to sink", "ms", "ms: Python, doing nothing", Target(1.5, at_most=True)
        )
        self.rows = [self._source, self._proxied, self._sink, self._overhead, self._own_share]
        self._prepare()

    def round(self, seconds: float) -> None:
        """Measure every row once; jobs run to their end, whatever `seconds` says."""
        rows = SOURCE_REPEATS * rows_per_repeat()
        run_until_steady([self._read_identical, self._read_ours])
        watch = self._watch()
        before, ours = seconds_of(self._read_identical), seconds_of(self._read_ours, watch, rows)
        after = seconds_of(self._read_identical)
        self._source.add(rows / ours / 1e3, rows / before / 1e3, rows / after / 1e3, costs=costs_of("row", watch))
        self._through_proxy(rows)
        run_until_steady([partial(self._write, name) for name in (UNPUBLISHED, "distributedlog")])
        watch = self._watch()
        before = seconds_of(partial(self._write, UNPUBLISHED))
        ours = seconds_of(partial(self._write, "distributedlog"), watch, SINK_ROWS)
        after = seconds_of(partial(self._write, UNPUBLISHED))
        before, ours, after = (SINK_ROWS / each / 1e3 for each in (before, ours, after))
        self._sink.add(ours, before, after, costs=costs_of("row", watch))
        self._micro_batches()

    def _micro_batches(self) -> None:
        before, python_before = self._rate_to_noop(), self._nothing_to_nothing()
        watch = self._watch()
        with watch:
            ours = self._source_to_sink()
        watch.units = WARM_UP_BATCHES + MICRO_BATCHES
        python_after, after = self._nothing_to_nothing(), self._rate_to_noop()
        self._overhead.add(ours, before, after, costs=costs_of("micro-batch", watch))
        self._own_share.add(ours, python_before, python_after)

    def _watch(self, **others: int) -> Watch:
        return watch_of_spark(self._cluster, self._spark, **others)

    def _through_proxy(self, rows: int) -> None:
        with read_proxy(self._uri, self._directory) as proxy:
            proxied = partial(self._read_ours, proxy.address)
            run_until_steady([proxied])  # the proxy is new, and so are the connections of all workers
            watch = self._watch(proxy=proxy.pid)
            before, ours, after = (
                seconds_of(self._read_ours),
                seconds_of(proxied, watch, rows),
                seconds_of(self._read_ours),
            )
        self._proxied.add(rows / ours / 1e3, rows / before / 1e3, rows / after / 1e3, costs=costs_of("row", watch))

    def _prepare(self) -> None:
        """Fill the logs that are read, and run the queries of rows P8 once."""
        self._spark.dataSource.register(IdenticalBatches)
        self._spark.dataSource.register(Unpublished)
        self._spark.dataSource.register(Nothing)
        self._partitions = CORES
        self._append(self._identical().select("value"), SOURCE_LOG)
        total = MICRO_BATCH_ROWS * MICRO_BATCHES * 4
        self._append(self._range(total), STREAM_LOG)
        ours = self._ours()
        self._partitions = ours.rdd.getNumPartitions()
        found, expected = ours.count(), SOURCE_REPEATS * rows_per_repeat()
        check(found == expected, f"the log to be read holds {found} rows instead of {expected}")
        for query in (self._rate_to_noop, self._nothing_to_nothing, self._source_to_sink):
            query()

    def _ours(self, proxy: str | None = None) -> DataFrame:
        reader = self._spark.read.format("distributedlog").option("uri", self._uri)
        return (reader if proxy is None else reader.option("proxy", proxy)).load(SOURCE_LOG)

    def _identical(self) -> DataFrame:
        reader = self._spark.read.format(IDENTICAL).option("partitions", self._partitions)
        return reader.option("repeat", SOURCE_REPEATS).load()

    def _range(self, rows: int) -> DataFrame:
        numbers = self._spark.range(0, rows, 1, CORES)
        return numbers.selectExpr("cast(lpad(cast(id as string), 100, 'x') as binary) as value")

    def _append(self, rows: DataFrame, log: str, name: str = "distributedlog") -> None:
        rows.write.format(name).option("uri", self._uri).mode("append").save(log)

    def _read_ours(self, proxy: str | None = None) -> None:
        self._ours(proxy).write.format("noop").mode("overwrite").save()

    def _read_identical(self) -> None:
        self._identical().write.format("noop").mode("overwrite").save()

    def _write(self, name: str) -> None:
        self._append(self._range(SINK_ROWS), f"sink-{name.replace('_', '-')}", name)

    def _rate_to_noop(self) -> float:
        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", MICRO_BATCH_ROWS).load()
        return self._batch_ms(rate.writeStream.format("noop"))

    def _nothing_to_nothing(self) -> float:
        stream = self._spark.readStream.format(NOTHING).option("rows", MICRO_BATCH_ROWS).load()
        return self._batch_ms(stream.select("value").writeStream.format(NOTHING))

    def _source_to_sink(self) -> float:
        stream = (
            self._spark.readStream.format("distributedlog")
            .option("uri", self._uri)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", MICRO_BATCH_ROWS)
            .load(STREAM_LOG)
        )
        self._count += 1
        sink = stream.select("value").writeStream.format("distributedlog").option("uri", self._uri)
        return self._batch_ms(sink.option("path", f"copy-{self._count}"))

    def _batch_ms(self, writer: DataStreamWriter) -> float:
        self._count += 1
        checkpoint = self._directory / f"checkpoint-{self._count}"
        return batch_ms(writer, checkpoint, WARM_UP_BATCHES, MICRO_BATCHES)


def run_until_steady(jobs: Sequence[Job], time_s: Callable[[Job], float] | None = None) -> int:
    """Run jobs in turn, uncounted, until none has got faster `STEADY_RUNS` times in a row; at most `MOST_WARM_UPS`
    times. Returns how often."""
    fastest, steady = [math.inf] * len(jobs), 0
    for runs in range(1, MOST_WARM_UPS + 1):
        times = [(time_s or seconds_of)(job) for job in jobs]
        faster = any(took < STEADY * before for took, before in zip(times, fastest, strict=True))
        steady = 0 if faster else steady + 1
        if steady == STEADY_RUNS:
            return runs
        fastest = list(map(min, times, fastest))
    return MOST_WARM_UPS


def watch_of_spark(cluster: Cluster, spark: SparkSession, **others: int) -> Watch:
    """Return what looks at the driver, Spark's JVM and its workers, the cluster and what else takes part."""
    processes = {"driver": [os.getpid()]} | {name: [pid] for name, pid in others.items()}
    return cluster.watch(processes, jvm=jvm_pid(spark))


def seconds_of(job: Job, window: Window | None = None, units: int = 0) -> float:
    """Return how long the job takes, which is as many units for the window."""
    with within(window):
        begin = time.perf_counter()
        job()
        took = time.perf_counter() - begin
    if window is not None:
        window.units = units
    return took
