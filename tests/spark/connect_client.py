"""A client of Spark Connect as a process of its own: does with it what a user does, and prints what came out as JSON.

    python connect_client.py NAMESPACE_URI SOURCE_LOG TARGET_LOG DIRECTORY [STEP...]

STEPs are keys of `steps`; all of them unless some are said.

`SparkSession.builder.remote("local[2]")` starts a server too; the session itself is a client's, which has no JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame

from dlspark.core.metrics import NO_STATISTICS
from dlspark.spark import LagListener, register

RATE = 25


def main(uri: str, source: str, target: str, directory: Path, wanted: list[str]) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.distributedlog.uri", uri)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    try:
        steps: dict[str, Callable[[], object]] = {
            "batch": lambda: batch(spark, source),
            "view": lambda: view(spark, source),
            "stream": lambda: stream(spark, source, target, directory),
            "segments": lambda: segments(spark, source),
            "error": lambda: failure(lambda: read(spark, source, subscrib="x").schema),
            "registered": lambda: registered(spark, source, uri),
            "for each batch": lambda: for_each_batch(spark, source, directory),
        }
        found = {name: step() for name, step in steps.items() if name in wanted or not wanted}
        found["client"] = type(spark).__module__
    finally:
        spark.stop()
    print(json.dumps(found))


def read(spark: SparkSession, log: str, **options: str) -> DataFrame:
    return spark.read.format("distributedlog").options(**options).load(log)  # type: ignore[return-value]


def batch(spark: SparkSession, source: str) -> list[int]:
    row = read(spark, source).selectExpr("count(*)", "min(transaction_id)", "max(transaction_id)").collect()[0]
    return list(row)


def view(spark: SparkSession, source: str) -> int:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW source USING distributedlog OPTIONS (log '{source}')")
    return int(spark.sql("SELECT count(*) FROM source WHERE transaction_id >= 1000030").collect()[0][0])


def stream(spark: SparkSession, source: str, target: str, directory: Path) -> dict[str, object]:
    """Copy a log into another by batches of RATE, twice from one checkpoint, with a listener on this side."""
    listener = LagListener(NO_STATISTICS)
    spark.streams.addListener(listener)
    for _ in range(2):
        query = (
            spark.readStream.format("distributedlog")
            .option("maxOffsetsPerTrigger", RATE)
            .load(source)
            .select("value", "transaction_id")
            .writeStream.format("distributedlog")
            .queryName("copy")
            .option("log", target)
            .option("checkpointLocation", str(directory / "copy"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    until(lambda: "ended" in str(listener) and len(listener.picture("copy").samples) >= 3)
    lags = [next(iter(sample.lags.values()))[0] for sample in listener.picture("copy").samples]
    spark.streams.removeListener(listener)
    same = read(spark, source).select("value").exceptAll(read(spark, target).select("value")).count()
    return {"rows": read(spark, target).count(), "missing": same, "lags": lags[:3]}


def for_each_batch(spark: SparkSession, source: str, directory: Path) -> int:
    """The function runs in the server's Python: what it finds is told through a file."""
    told = str(directory / "counted")

    def count(frame: DataFrame, number: int) -> None:
        rows = frame.count()
        with open(told, "a") as out:
            out.write(f"{rows}\n")

    query = (
        spark.readStream.format("distributedlog")
        .load(source)
        .writeStream.foreachBatch(count)  # type: ignore[arg-type]
        .option("checkpointLocation", str(directory / "each"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(map(int, Path(told).read_text().split()))


def segments(spark: SparkSession, source: str) -> list[list[object]]:
    rows = read(spark, source, metadata="segments").select("segment", "state", "records").collect()
    return [list(row) for row in rows]


def registered(spark: SparkSession, source: str, uri: str) -> list[str]:
    """A conf that the client sets is not seen by the server's workers, until it is handed on."""
    spark.conf.set("spark.distributedlog.uri", "distributedlog://127.0.0.1:1/elsewhere")
    before = str(read(spark, source).count())
    register(spark)
    during = failure(lambda: read(spark, source).count())
    spark.conf.set("spark.distributedlog.uri", uri)
    register(spark)
    return [before, during, str(read(spark, source).count())]


def failure(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return str(error)
    return "nothing failed"


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
