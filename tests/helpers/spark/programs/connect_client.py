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

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.streaming.query import StreamingQuery

from dlspark.core.metrics.registries import NO_STATISTICS
from dlspark.spark import LagListener, enable, register

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
            "catalog": lambda: catalog(spark, source, directory),
            "tables": lambda: tables(spark),
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


def catalog(spark: SparkSession, source: str, directory: Path) -> dict[str, object]:
    """Ask in SQL through a catalog that the client switches on, in a server that was started without it."""
    enable(spark)
    enable(spark)
    log, made = f"dlog.`{source}`", f"dlog.connect.{source}".replace("-", "_")

    def asked(statement: str) -> list[list[object]]:
        return [list(row) for row in spark.sql(statement).collect()]

    asked(f"CREATE TABLE {made}_inserted TBLPROPERTIES (compressionType = 'lz4')")
    asked(f"INSERT INTO {made}_inserted (value, transaction_id) VALUES ('a', 5), ('b', 6)")
    asked(f"INSERT INTO {made}_inserted SELECT value, transaction_id FROM {log} WHERE segment = 2")
    asked(f"CREATE TABLE {made}_selected AS SELECT value, transaction_id FROM {log} WHERE segment = 1")
    spark.table(log).where("segment = 2").select("value").writeTo(f"{made}_selected").append()
    query = (
        spark.readStream.option("maxOffsetsPerTrigger", RATE)
        .table(log)
        .select("value", "transaction_id")
        .writeStream.option("checkpointLocation", str(directory / "tables"))
        .trigger(availableNow=True)
        .toTable(f"{made}_streamed")
    )
    query.awaitTermination()
    missing = spark.table(log).select("value").exceptAll(spark.table(f"{made}_streamed").select("value"))
    return {
        "select": asked(f"SELECT count(*), max(transaction_id) FROM {log} WHERE transaction_id >= 1000030"),
        "time travel": asked(f"SELECT count(*) FROM {log} VERSION AS OF '1:0:4'")
        + asked(f"SELECT count(*) FROM {log} TIMESTAMP AS OF timestamp'1970-01-01 00:16:40.019'"),
        "tables": [row[1] for row in asked("SHOW TABLES IN dlog.connect")],
        "columns": [row[0] for row in asked(f"DESCRIBE {log}")],
        "statistics": [row[1] for row in asked(f"DESCRIBE EXTENDED {log}") if row[0] == "Statistics"],
        "properties": asked(f"SHOW TBLPROPERTIES {made}_inserted"),
        "inserted": asked(f"SELECT count(*), min(transaction_id) FROM {made}_inserted"),
        "selected": asked(f"SELECT count(*), max(segment) FROM {made}_selected"),
        "streamed": [spark.table(f"{made}_streamed").count(), missing.count()],
        "segments": asked(f"SELECT segment, records FROM {log}.segments ORDER BY segment"),
        "no table": failure(lambda: asked("SELECT * FROM dlog.nowhere")),
        "overwritten": failure(lambda: asked(f"INSERT OVERWRITE {made}_inserted SELECT 'x' AS value")),
    }


def tables(spark: SparkSession) -> dict[str, object]:
    """Use a table with columns of its own."""
    enable(spark)
    table = "dlog.connect.orders"
    for statement in (
        f"CREATE TABLE {table} (id BIGINT NOT NULL, item STRING DEFAULT 'none') TBLPROPERTIES (format = 'json')",
        f"INSERT INTO {table} (id) VALUES (1)",
        f"ALTER TABLE {table} ADD COLUMN note STRING",
    ):
        spark.sql(statement)
    spark.sql("SELECT 2 AS id, 'x' AS note").writeTo(table).append()
    return {
        "rows": [list(row) for row in spark.sql(f"SELECT *, _log.segment FROM {table}").collect()],
        "made again by": spark.sql(f"SHOW CREATE TABLE {table}").collect()[0][0],
        "null": failure(lambda: spark.sql(f"INSERT INTO {table} (note) VALUES ('y')").collect()),
        "narrowed": failure(lambda: spark.sql(f"ALTER TABLE {table} ALTER COLUMN note TYPE INT").collect()),
    }


def for_each_batch(spark: SparkSession, source: str, directory: Path) -> int:
    """Copy a log batch by batch in a function, which runs in the server's Python. Each batch is written twice."""
    target = f"{source}-each"

    def write(frame: DataFrame, number: int) -> None:
        for _ in range(2):
            batch = frame.select("value").write.format("distributedlog").mode("append")
            batch.option("txnAppId", target).option("txnVersion", number).save(target)

    stream = spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", RATE).load(source)
    query = stream.writeStream.foreachBatch(write).trigger(availableNow=True)  # type: ignore[arg-type]
    checkpointed = query.option("checkpointLocation", str(directory / "each"))
    called_back(checkpointed.start).awaitTermination()  # type: ignore[arg-type]
    return read(spark, target).count()


def called_back(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query with a function. Spark gives the function's worker 10 s to import pandas and to call back."""
    for _ in range(6):
        try:
            return start()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
    raise SystemExit("no worker has called back: the machine is too busy")


def segments(spark: SparkSession, source: str) -> list[list[object]]:
    rows = read(spark, source, metadata="segments").select("segment", "state", "records").collect()
    return [list(row) for row in rows]


def registered(spark: SparkSession, source: str, uri: str) -> list[str]:
    """Set a conf, which the server's workers do not see until it is handed on."""
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
