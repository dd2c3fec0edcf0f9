"""Jobs of Spark with a log, the same for every system, and their figures.

Every job that is timed runs to its end, with the same frames, numbers of rows and partitions. Rates are of as many
whole runs as a window takes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.costs import Watch, costs_of
from benchmarks.kafka_systems import Append, System
from benchmarks.payloads import any_lengths
from benchmarks.processes import TreeCpu, end_workers, exact_cpu_s, loopback_bytes
from benchmarks.results import Measured, percentile
from benchmarks.session import CORES, batch_ms, batch_times_ms, jvm_pid
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import Row as SparkRow

SMALL, LARGE = 100, 1024
FILES = 4
REPEATS = {SMALL: 4, LARGE: 7}
"""A file of the frame that is written holds so many times 4 MB: some 140,000 rows of 100 B, 28,000 of 1 KB."""
STEPS = 8
"""A log to be read is written in so many batches, a second or so apart."""
LAST_ROWS = 1_000
"""Rows behind the point in time from which the log is read again."""
ONE_BY_ONE_ROWS = 200
WARM_UP_BATCHES = 5
MICRO_BATCHES = 20
OFTEN_BATCHES = 8
OFTEN_ROWS = 100
REWINDS = 5
ONE_RUN = 0.0
"""Seconds of a window for a rate that is of one run."""
SETTLE_S = 3.0
IDLE_S = 20.0
LOOK_EVERY_S = 1.0
TAIL_S = 12.0
TAIL_WARM_UPS = 3
PAUSE_S = (0.3, 0.7)
"""Between two appends, at random, so that no period of a query meets that of the appends."""
TIMEOUT_S = 60.0
MICRO_BATCH = "micro-batch"
_PROBE = -1_000_000
_SEED = 20_130_701


class Load(Enum):
    """Which figures does `Jobs.measure` give, in which order?"""

    SOURCE_SMALL = auto()
    """Thousands of rows a second: a batch query from a log of 100 B records to no-op."""
    SOURCE_LARGE = auto()
    """The same with records of 1 KB."""
    SINK_BATCH = auto()
    """Thousands of rows a second: the frame written in a batch."""
    SINK_COLD = auto()
    """The same, once, by Python workers that are new."""
    SINK_STREAM = auto()
    """Thousands of rows a second: the frame written by a streaming query, `availableNow`, two files a micro-batch."""
    TO_SINK = auto()
    """Milliseconds: a micro-batch with one row from Spark's rate source to the sink."""
    FROM_SOURCE = auto()
    """Milliseconds: a micro-batch with one row from the log to no-op."""
    REWIND = auto()
    """Milliseconds in the median, and KB over the loopback: the end of a log read by time, a few times."""
    IDLE = auto()
    """Processor seconds a minute, of Spark and Python and of the servers: a query at the end of its log."""
    OFTEN = auto()
    """Milliseconds: a micro-batch of 100 rows at a trigger of one second, median and 99th percentile."""
    TAIL = auto()
    """Milliseconds from before an append: to the batch's function, median and 99th percentile; to its rows, median."""


@dataclass
class Arrivals:
    """When records of a running query were appended, and when a batch had them. Seconds of one clock."""

    sent: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    """When the function of the record's batch was called."""
    collected: dict[int, float] = field(default_factory=dict)
    """When the batch's rows were in the driver's hands."""

    def note(self, numbers: list[int], begun: float, collected: float) -> None:
        """Note a batch with these records."""
        for number in numbers:
            self.begun.setdefault(number, begun)
            self.collected.setdefault(number, collected)

    @property
    def complete(self) -> bool:
        """True once every record that was sent has been collected."""
        return self.sent.keys() <= self.collected.keys()

    def figures(self) -> tuple[float, float, float]:
        """Return milliseconds, of records from number 0 on: median and 99th percentile to the batch, median to its
        rows.
        """
        counted = [number for number in self.sent if number >= 0]
        begun = [(self.begun[number] - self.sent[number]) * 1e3 for number in counted]
        collected = [(self.collected[number] - self.sent[number]) * 1e3 for number in counted]
        return percentile(begun, 0.5), percentile(begun, 0.99), percentile(collected, 0.5)


class Jobs:
    """The jobs on one system. Its logs are made, and read once, with it."""

    def __init__(self, spark: SparkSession, system: System, directory: Path, frames: Path) -> None:
        self.name = system.name
        self._spark = spark
        self._system = system
        self._directory = directory
        self._frames = frames
        self._count = 0
        self._chance = random.Random(_SEED)
        directory.mkdir()
        for log, partitions in (
            ("small", CORES),
            ("large", CORES),
            ("sink", CORES),
            ("few", 1),
            ("drops", 1),
            ("tail", 1),
        ):
            system.create(log, partitions)
        self._ways: dict[Load, Callable[[float], _Found]] = {
            Load.SOURCE_SMALL: partial(self._source_rate, "small"),
            Load.SOURCE_LARGE: partial(self._source_rate, "large"),
            Load.SINK_BATCH: lambda seconds: self._sink_rate(self._write_batch, seconds),
            Load.SINK_COLD: lambda _: self._cold_sink_rate(),
            Load.SINK_STREAM: lambda seconds: self._sink_rate(self._write_stream, seconds),
            Load.TO_SINK: lambda _: self._rate_to_sink_ms(),
            Load.FROM_SOURCE: lambda _: self._log_to_noop_ms(),
            Load.REWIND: lambda _: self._rewind(),
            Load.IDLE: lambda _: self._idle(),
            Load.OFTEN: self._often_ms,
            Load.TAIL: lambda _: self._tail(),
        }

    def fill(self) -> None:
        """Fill the logs that are read."""
        self._rows = {"small": 0, "large": 0}
        for step in range(STEPS):
            self._append(self._frame(SMALL, step % FILES), "small")
        for step in range(FILES):
            self._append(self._frame(LARGE, step), "large")
        time.sleep(0.1)
        # Between two rests: no record may have the very millisecond from which is read.
        self._late_ms = time.time_ns() // 1_000_000
        time.sleep(0.1)
        self._append(self._frame(SMALL, 0).limit(LAST_ROWS), "small")
        for log in ("few", "tail"):
            self._append(self._spark.range(ONE_BY_ONE_ROWS).selectExpr("cast(id as string) value").coalesce(1), log)
        for log in ("small", "large"):
            frame = self._read(log)
            self._rows[log] = frame.count()
            found = frame.rdd.getNumPartitions()
            # With fewer tasks one of the systems would leave a core idle.
            check(CORES <= found <= CORES + 1, f"{self.name}: {log} is read in {found} partitions, asked for {CORES}")
        found = self._late().count()
        check(found == LAST_ROWS, f"{self.name}: {found} rows since the point in time, not {LAST_ROWS}")

    @property
    def rows(self) -> dict[str, int]:
        """Rows in the logs that are read, for comparing systems."""
        return dict(self._rows)

    def measure(self, load: Load, seconds: float) -> Measured:
        """Return the figures of a load, in windows of `seconds` where it gives rates, and what a row or a micro-batch
        costs: its query is begun and ended within that."""
        processes = {"driver": [os.getpid()], "servers": self._system.server_pids()}
        watch = Watch(processes, jvm=jvm_pid(self._spark))
        with watch:
            found = self._ways[load](seconds)
        watch.units = found.units
        return Measured(found.figures, costs_of(found.per, watch) if found.units else None)

    # ------------------------------------------------------------------ frames

    def _frame(self, size: int, number: int) -> DataFrame:
        return self._spark.read.parquet(str(self._frames / str(size) / f"{number}.parquet")).repartition(CORES)

    def _read(self, log: str) -> DataFrame:
        options = self._system.source(log) | {"startingOffsets": "earliest", "minPartitions": CORES}
        return self._spark.read.format(self._system.format).options(**options).load()

    def _late(self) -> DataFrame:
        options = self._system.source("small") | {"startingTimestamp": self._late_ms}
        if self._system.format == "kafka":
            options["startingOffsetsByTimestampStrategy"] = "latest"  # a partition may have got none of the last rows
        return self._spark.read.format(self._system.format).options(**options).load()

    def _stream(self, log: str, **options: str | int) -> DataFrame:
        options = self._system.source(log) | options
        return self._spark.readStream.format(self._system.format).options(**options).load()

    def _append(self, rows: DataFrame, log: str) -> None:
        rows.write.format(self._system.format).options(**self._system.sink(log)).mode("append").save()

    def _checkpoint(self) -> Path:
        self._count += 1
        return self._directory / f"checkpoint-{self._count}"

    # ------------------------------------------------------------------ rates

    def _source_rate(self, log: str, seconds: float) -> _Found:
        return _rate_of(lambda: _to_noop(self._read(log)), self._rows[log], seconds)

    def _sink_rate(self, write: Callable[[], None], seconds: float) -> _Found:
        return _rate_of(write, frame_rows(SMALL), seconds)

    def _cold_sink_rate(self) -> _Found:
        end_workers(jvm_pid(self._spark))
        return self._sink_rate(self._write_batch, ONE_RUN)

    def _write_batch(self) -> None:
        self._append(self._spark.read.parquet(str(self._frames / str(SMALL))), "sink")

    def _write_stream(self) -> None:
        source = self._spark.readStream.schema("value binary").option("maxFilesPerTrigger", FILES // 2)
        frame = source.parquet(str(self._frames / str(SMALL)))
        sink = frame.writeStream.format(self._system.format).options(**self._system.sink("sink"))
        query = sink.option("checkpointLocation", str(self._checkpoint())).trigger(availableNow=True).start()
        query.awaitTermination()
        check(_input_rows(query) == frame_rows(SMALL), "a streaming query has not written every row")

    # ------------------------------------------------------------------ micro-batches

    def _rate_to_sink_ms(self) -> _Found:
        took = rate_to_sink_ms(self._spark, self._system.format, self._system.sink("drops"), self._checkpoint())
        return _Found((took,), WARM_UP_BATCHES + MICRO_BATCHES, MICRO_BATCH)

    def _often_ms(self, seconds: float) -> _Found:
        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", OFTEN_ROWS).load()
        rows = rate.selectExpr("cast(lpad(cast(value as string), 100, 'x') as binary) as value")
        writer = rows.writeStream.format(self._system.format).options(**self._system.sink("drops"))
        batches = max(OFTEN_BATCHES, int(seconds))
        took = batch_times_ms(writer, self._checkpoint(), WARM_UP_BATCHES, batches, trigger_s=1)
        return _Found((percentile(took, 0.5), percentile(took, 0.99)), WARM_UP_BATCHES + batches, MICRO_BATCH)

    def _log_to_noop_ms(self) -> _Found:
        rows = self._stream("few", startingOffsets="earliest", maxOffsetsPerTrigger=1)
        took = batch_ms(rows.writeStream.format("noop"), self._checkpoint(), WARM_UP_BATCHES, MICRO_BATCHES)
        return _Found((took,), WARM_UP_BATCHES + MICRO_BATCHES, MICRO_BATCH)

    # ------------------------------------------------------------------ rewind

    def _rewind(self) -> _Found:
        before, took_ms = loopback_bytes(), list[float]()
        for _ in range(REWINDS):
            begin = time.perf_counter()
            _to_noop(self._late())
            took_ms.append((time.perf_counter() - begin) * 1e3)
        carried = (loopback_bytes() - before) / REWINDS
        return _Found((percentile(took_ms, 0.5), carried / 1e3), REWINDS, "query")

    # ------------------------------------------------------------------ a query that waits

    def _idle(self) -> _Found:
        query = self._stream("tail", startingOffsets="latest").writeStream.format("noop")
        with _running(query.option("checkpointLocation", str(self._checkpoint())).start()) as running:
            with self._system.appending("tail") as append:
                _await_start(running, append)
            time.sleep(SETTLE_S)
            return _Found(resting_cpu(self._spark, self._system, IDLE_S))

    def _tail(self) -> _Found:
        arrivals = Arrivals()

        def arrived(batch: DataFrame, _: int) -> None:
            begun = time.time()
            rows: list[SparkRow] = batch.select("value").collect()
            arrivals.note([int(row[0]) for row in rows], begun, time.time())

        query = self._stream("tail", startingOffsets="latest").writeStream.foreachBatch(arrived)
        running = _running(query.option("checkpointLocation", str(self._checkpoint())).start())
        with running as started, self._system.appending("tail") as append:
            _await_start(started, append)
            time.sleep(SETTLE_S)
            end = time.monotonic() + TAIL_S
            number = -TAIL_WARM_UPS
            while time.monotonic() < end or number <= 0:
                arrivals.sent[number] = time.time()
                append(str(number).encode())
                number += 1
                # At drawn moments: at a fixed pace appends would keep in step with the query's polls.
                time.sleep(self._chance.uniform(*PAUSE_S))
            _wait(lambda: arrivals.complete, started, "records to arrive")
        return _Found(arrivals.figures(), len(arrivals.sent), "append")


def rate_to_sink_ms(spark: SparkSession, sink: str, options: dict[str, str | int], checkpoint: Path) -> float:
    """Return the median duration of a micro-batch with one row from Spark's rate source to a sink of this format."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rows = rate.selectExpr("cast(value as string) as value")
    return batch_ms(rows.writeStream.format(sink).options(**options), checkpoint, WARM_UP_BATCHES, MICRO_BATCHES)


def resting_cpu(spark: SparkSession, system: System, seconds: float) -> tuple[float, float]:
    """Return processor seconds a minute of Spark, its Python workers and this process, and of the system's servers."""
    spark_pid, servers = jvm_pid(spark), system.server_pids()

    def read() -> tuple[float, float]:
        return exact_cpu_s(os.getpid()), sum(map(exact_cpu_s, servers))

    tree, looking_s = TreeCpu([spark_pid]), 0.0
    begin, (own, served) = time.perf_counter(), read()
    while (left := begin + seconds - time.perf_counter()) > 0:
        time.sleep(min(LOOK_EVERY_S, left))
        looked = time.thread_time()
        spark_s = tree.seconds()
        looking_s += time.thread_time() - looked  # the looks are no part of the query
    (own_after, served_after), elapsed = read(), time.perf_counter() - begin
    return (spark_s + own_after - own - looking_s) * 60 / elapsed, (served_after - served) * 60 / elapsed


def write_frames(directory: Path) -> None:
    """Write the frames that are written, as Parquet: column `value`, some 4 MB of records of any length over
    and over.
    """
    for size, repeats in REPEATS.items():
        (directory / str(size)).mkdir(parents=True)
        table = pa.table({"value": pa.chunked_array([any_lengths(size).payloads] * repeats)})
        for number in range(FILES):
            pq.write_table(table, directory / str(size) / f"{number}.parquet", compression="none", use_dictionary=False)


def frame_rows(size: int) -> int:
    """Return the rows of a frame."""
    return FILES * REPEATS[size] * len(any_lengths(size).txids)


@dataclass(frozen=True, slots=True)
class _Found:
    """What did a load find, and of how many units were what it cost? None: that is not looked at."""

    figures: tuple[float, ...]
    units: float = 0
    per: str = ""


def _rate_of(job: Callable[[], None], rows: int, seconds: float) -> _Found:
    """Return thousands of rows a second of a job of so many, the mean of as many runs as begin within a window."""
    runs = 0
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or not runs:
        job()
        runs += 1
    return _Found((rows * runs / elapsed / 1e3,), rows * runs, "row")


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _input_rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


@contextmanager
def _running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Let the query run while the block runs; what it failed with, if it did, is raised at its end."""
    try:
        yield query
        failure = query.exception()
        if failure is not None:
            raise failure
    finally:
        query.stop()


def _await_start(query: StreamingQuery, append: Append) -> None:
    """Wait until a query that begins at a log's end has had a record: those from before it knew the end it
    never sees.
    """

    def appended_and_seen() -> bool:
        append(str(_PROBE).encode())
        time.sleep(PAUSE_S[1])
        return _input_rows(query) > 0

    _wait(appended_and_seen, query, "the query to begin")


def _wait(done: Callable[[], bool], query: StreamingQuery, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S} s for {what}")
        time.sleep(0.05)
