"""A Spark driver with three queries, as a process of its own, for tests that kill it or take its storage nodes away.

    python three_queries.py MASTER DIRECTORY NAME ROWS OUTAGE_TIMEOUT

| query | from | to |
|---|---|---|
| 1 | Spark's source of rows that can be replayed, ROWS of them | log NAME-a |
| 2 | log NAME-a | log NAME-b |
| 3 | log NAME-a | log NAME-c, by foreachBatch and numbered writes |

It ends when every log has its rows, or with the error of the first query that has failed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from dlspark.core.sync import Namespace

ROWS_PER_BATCH = 50
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
PAUSE_S = 0.2
SLOW_START = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start; where a busy machine needs more, the query is started again."""
SLOW_STARTS = 3


class Queries:
    def __init__(self, spark: SparkSession, directory: Path, name: str, rows: int) -> None:
        self._spark = spark
        self._directory = directory
        self._name = name
        self._rows = rows
        self._starts = [self._first, self._second, self._third]
        self._running: list[StreamingQuery] = []
        self._slow_starts = 0

    def start(self) -> None:
        self._running = [start() for start in self._starts]

    def look(self) -> None:
        """Raise the error of a query that has failed."""
        for number, query in enumerate(self._running):
            if not query.isActive:
                error = str(query.exception())
                if SLOW_START not in error or self._slow_starts == SLOW_STARTS:
                    raise SystemExit(f"a query ended: {error}")
                self._slow_starts += 1
                self._running[number] = self._starts[number]()

    def stop(self) -> None:
        for query in self._running:
            query.stop()

    def _first(self) -> StreamingQuery:
        source = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", ROWS_PER_BATCH)
            .option("numPartitions", 2)
            .option("startTimestamp", 1000)
            .load()
        )
        rows = source.where(f"value < {self._rows}").selectExpr("cast(value as string) as value")
        writer = rows.writeStream.format("distributedlog").option("log", f"{self._name}-a")
        return writer.option("checkpointLocation", self._checkpoint("a")).start()

    def _second(self) -> StreamingQuery:
        rows = self._read().option("minPartitions", 2).load(f"{self._name}-a").select("value")
        writer = rows.writeStream.format("distributedlog").option("log", f"{self._name}-b")
        return writer.option("checkpointLocation", self._checkpoint("b")).start()

    def _third(self) -> StreamingQuery:
        name = f"{self._name}-c"

        def write(frame: DataFrame, batch: int) -> None:
            numbered = frame.select("value").write.format("distributedlog").mode("append")
            numbered.option("txnAppId", name).option("txnVersion", batch).save(name)

        rows = self._read().load(f"{self._name}-a")
        return rows.writeStream.foreachBatch(write).option("checkpointLocation", self._checkpoint("c")).start()

    def _read(self):  # type: ignore[no-untyped-def]
        return self._spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", 4 * ROWS_PER_BATCH)

    def _checkpoint(self, part: str) -> str:
        return str(self._directory / f"checkpoint-{part}")


def main(master: str, directory: str, name: str, rows: int, outage_timeout: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        .config("spark.distributedlog.outageTimeout", outage_timeout)
        .getOrCreate()
    )
    queries = Queries(spark, Path(directory), name, rows)
    queries.start()
    with Namespace.open(os.environ["DLSPARK_URI"]) as namespace:
        logs = [namespace.open_log(f"{name}-{part}") for part in "abc"]
        while min(sum(segment.record_count for segment in log.segments()) for log in logs) < rows:
            queries.look()
            time.sleep(PAUSE_S)
    queries.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
