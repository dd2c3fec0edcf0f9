"""A Spark driver with three queries, as a process of its own, for tests that kill it or take its storage nodes away.

    python three_queries.py MASTER DIRECTORY NAME ROWS OUTAGE_TIMEOUT COMMIT_MODE

| query | from | to |
|---|---|---|
| 1 | Spark's source of rows that can be replayed, ROWS of them | log NAME-a |
| 2 | log NAME-a | log NAME-b |
| 3 | log NAME-a | log NAME-c, by foreachBatch and numbered writes |

Where batches are appended, queries 1 and 2 have a trigger of one second. `both` as COMMIT_MODE: query 1 appends its
batches, query 2 makes segments.

With variable FRAMES other than `raw` the logs declare columns, which the queries read and write.

It ends when every log has its rows, or with the error of the first query that has failed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.spark import start
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError

ROWS_PER_BATCH = 50
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
PAUSE_S = 0.2
BOTH = "both"
RAW = "raw"
COLUMNS = {
    "value": "cast(value as string)",
    "body": "cast(cast(value as string) as binary)",
    "length": "cast(length(cast(value as string)) as int)",
    "at": "1000 + 37 * value % 500",
}
"""What is written of the source's numbers. Times of rows overlap."""


class Queries:
    def __init__(self, spark: SparkSession, directory: Path, name: str, rows: int, mode: str) -> None:
        self._spark = spark
        self._directory = directory
        self._name = name
        self._rows = rows
        self._modes = {"a": "append", "b": "segments"} if mode == BOTH else dict.fromkeys("ab", mode)
        self._columns = ["value"] if os.environ["FRAMES"] == RAW else ["body", "length", "at"]
        self._running: list[StreamingQuery] = []

    def start(self) -> None:
        for part, writer in {"a": self._first(), "b": self._second(), "c": self._third()}.items():
            directory = self._directory / f"checkpoint-{part}"
            self._running.append(start(writer.option("checkpointLocation", str(directory))))

    def look(self) -> None:
        """Raise the error of a query that has failed."""
        for query in self._running:
            if not query.isActive:
                raise SystemExit(f"a query ended: {query.exception()}")

    def stop(self) -> None:
        for query in self._running:
            query.stop()

    def _first(self) -> DataStreamWriter:
        source = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", ROWS_PER_BATCH)
            .option("numPartitions", 2)
            .option("startTimestamp", 1000)
            .load()
        )
        own = [f"{COLUMNS[name]} as {name}" for name in self._columns]
        rows = source.where(f"value < {self._rows}").selectExpr(*own)
        return self._written(rows, "a")

    def _second(self) -> DataStreamWriter:
        rows = self._read().option("minPartitions", 2).load(f"{self._name}-a").select(*self._columns)
        return self._written(rows, "b")

    def _written(self, rows: DataFrame, part: str) -> DataStreamWriter:
        mode = self._modes[part]
        writer = rows.writeStream.format("distributedlog").options(log=f"{self._name}-{part}", commitMode=mode)
        return writer.trigger(processingTime="0 seconds" if mode == "segments" else "1 second")

    def _third(self) -> DataStreamWriter:
        name = f"{self._name}-c"

        def write(frame: DataFrame, batch: int) -> None:
            numbered = frame.select(*self._columns).write.format("distributedlog").mode("append")
            numbered.option("txnAppId", name).option("txnVersion", batch).save(name)

        return self._read().load(f"{self._name}-a").writeStream.foreachBatch(write)

    def _read(self) -> DataStreamReader:
        return self._spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", 4 * ROWS_PER_BATCH)


def have(logs: list[Log], rows: int) -> bool:
    """Return whether each log has its rows; no, as long as its storage nodes are away."""
    try:
        return min(log.record_count() for log in logs) >= rows
    except (NotAppliedError, OutcomeUnknownError):  # a node that goes while it is asked leaves open what it did
        return False


def main(master: str, directory: str, name: str, rows: int, outage_timeout: str, mode: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        .config("spark.distributedlog.outageTimeout", outage_timeout)
        .config("spark.distributedlog.commitMode", "auto" if mode == BOTH else mode)
        .getOrCreate()
    )
    queries = Queries(spark, Path(directory), name, rows, mode)
    queries.start()
    counting = {"bkc.outageWaitMillis": 0}  # what is away is the queries' affair
    with Namespace.open(os.environ["DLSPARK_URI"], counting) as namespace:
        logs = [namespace.open_log(f"{name}-{part}") for part in "abc"]
        while not have(logs, rows):
            queries.look()
            time.sleep(PAUSE_S)
    queries.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], sys.argv[6])
