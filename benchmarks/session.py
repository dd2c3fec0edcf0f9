"""The Spark session that the sections `spark` and `kafka` share: a JVM has one, and takes jars when it starts."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dlspark.spark.worker_daemon import OWN_DAEMON
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CORES = 2
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
MICRO_BATCH_TIMEOUT_S = 120.0
MAX_BATCHES = 4_000
"""Micro-batches of which one query can tell."""


@contextmanager
def spark_session(directory: Path, class_path: str = "") -> Iterator[SparkSession]:
    """Start a session on two cores with these jars and the connector's (as `dlspark.spark.builder` has it), which ends
    with the block. Its workers keep what Python has compiled of their modules, whatever this process was told."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each new worker compiles the connector anew
    from pyspark.sql import SparkSession

    from dlspark.spark import catalog_jar

    jars = [str(catalog_jar()), *filter(None, class_path.split(os.pathsep))]
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("dlspark benchmarks")
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")  # a query stopped within a batch logs errors; ours are raised in Python
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.daemon.module", OWN_DAEMON)  # as the project's spark-defaults.conf and its builder say
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        .config("spark.sql.streaming.numRecentProgressUpdates", 2 * MAX_BATCHES)  # idle looks are among them
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def java_of(spark: SparkSession) -> JVMView:
    """Return the packages and classes in the session's JVM."""
    java = spark._jvm
    check(java is not None, "the session has no JVM of its own")
    return java


def jvm_pid(spark: SparkSession) -> int:
    """Return the process of the session's JVM."""
    return int(java_of(spark).java.lang.ProcessHandle.current().pid())


def workers_core(spark: SparkSession) -> str:
    """Return in words whether the compiled core is in use in Spark's Python workers."""
    found = spark.range(1).repartition(1).mapInArrow(_core, "core string").collect()
    return str(found[0][0])


def _core(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say for each batch which core this process has (in a worker)."""
    from metadata.foundation import compiled

    for _ in batches:
        yield pa.record_batch([[compiled.said]], names=["core"])


def batch_ms(writer: DataStreamWriter, checkpoint: Path, warm_up: int, batches: int) -> float:
    """Return the median duration of a micro-batch, from its begin to its commit in the checkpoint; the first ones do
    not count.
    """
    return statistics.median(batch_times_ms(writer, checkpoint, warm_up, batches))


def batch_times_ms(
    writer: DataStreamWriter, checkpoint: Path, warm_up: int, batches: int, *, trigger_s: int = 0
) -> list[float]:
    """Return durations of micro-batches, as `batch_ms`; one is begun every `trigger_s` seconds."""
    check(warm_up + batches <= MAX_BATCHES, f"Spark keeps the durations of {MAX_BATCHES} micro-batches")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime=f"{trigger_s} seconds").start()
    try:
        _await_batches(query, warm_up + batches, MICRO_BATCH_TIMEOUT_S + (warm_up + batches) * 2 * trigger_s)
    finally:
        query.stop()
    progresses = [progress for progress in query.recentProgress if progress.numInputRows]
    durations = [float(progress.durationMs["triggerExecution"]) for progress in progresses]
    return durations[warm_up : warm_up + batches]


def _await_batches(query: StreamingQuery, batches: int, timeout_s: float) -> None:
    """Wait until the query has run enough micro-batches. Raises what it failed with."""
    deadline = time.monotonic() + timeout_s
    while sum(progress.numInputRows > 0 for progress in query.recentProgress) < batches:
        if (failure := query.exception()) is not None:
            raise failure
        check(time.monotonic() < deadline, f"{batches} micro-batches took over {timeout_s} s")
        time.sleep(0.2)
