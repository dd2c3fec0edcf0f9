"""A Spark driver as a process of its own, for tests that kill it: streams a replayable source into a log.

    python spark_driver.py MASTER UNTIL LOG:CHECKPOINT...

runs one query after the other, each until its batch UNTIL is committed. Ends non-zero with the query's error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

ROWS_PER_BATCH = 100
RAW = "raw"
"""Of the variable FRAMES; with any other the frames have TYPED_COLUMNS."""
TYPED_COLUMNS = ["value as id", "cast(value as string) as item", "timestamp_millis(90000 + 37 * value % 1000) as at"]
"""Of a log that takes ids from `at`: times of all tasks and batches overlap."""
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def main(master: str, until: int, targets: list[str]) -> None:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.distributedlog.commitMode", os.environ.get("COMMIT_MODE", "auto"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
    )
    if os.environ.get("JAR"):
        from dlspark.spark import catalog_jar

        # Messages of tasks must do with the serializer that many sessions name.
        builder = builder.config("spark.jars", str(catalog_jar()))
        builder = builder.config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
    if os.environ.get("PROXY"):
        builder = builder.config("spark.distributedlog.proxy", os.environ["PROXY"])
    spark = builder.getOrCreate()
    for target in targets:
        log, _, checkpoint = target.partition(":")
        run(spark, log, Path(checkpoint), until)
    spark.stop()


def run(spark: SparkSession, log: str, checkpoint: Path, until: int) -> None:
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH)
        .option("numPartitions", 2)
        .option("startTimestamp", 1000)
        .load()
    )
    rows = source.where(f"value < {ROWS_PER_BATCH * (until + 1)}")
    columns = ["cast(value as string) as value"] if os.environ["FRAMES"] == RAW else TYPED_COLUMNS
    query = (
        rows.selectExpr(*columns)
        .writeStream.format("distributedlog")
        .option("log", log)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    while not (checkpoint / "commits" / str(until)).exists():
        if query.awaitTermination(0.1):  # type: ignore[arg-type]
            raise SystemExit(f"the query ended: {query.exception()}")
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
