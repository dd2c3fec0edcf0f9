"""What a user does on a secured cluster, with a session of its own; prints what it found as JSON.

    secured_app.py CONFIG

CONFIG is a JSON file: `uri`, `name` (behind the names of logs), `directory` (event log, checkpoints and what was shown
go there), `master` or `remote` (a client of Spark Connect), `confs`, `options` for all queries, `source` and `sink` for
those of one kind, `steps`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlspark.spark
from helpers.spark.programs.pages import save_pages

ROWS = 200
FORMAT = "distributedlog"


class Queries:
    """The queries of one session."""

    def __init__(self, spark: SparkSession, config: dict[str, Any]) -> None:
        self.spark = spark
        self.directory = Path(config["directory"])
        self.name = config["name"]
        common = {"uri": config["uri"], **config.get("options", {})}
        self.source = common | config.get("source", {})
        self.sink = common | config.get("sink", {})

    def log(self, what: str) -> str:
        return f"{what}-{self.name}"

    def rows(self) -> DataFrame:
        return self.spark.range(ROWS).selectExpr("cast(id as string) as value")

    def read(self, what: str, **options: str) -> DataFrame:
        return self.spark.read.format(FORMAT).options(**self.source, **options).load(self.log(what))

    def numbers(self, what: str) -> list[int]:
        return sorted(int(bytes(row.value)) for row in self.read(what).select("value").collect())

    def batch(self) -> object:
        """Write a batch with a number, twice, which is written once; read it."""
        for _ in range(2):
            numbered = {"txnAppId": self.log("app"), "txnVersion": "1"}
            frame = self.rows().coalesce(1).write.format(FORMAT).options(**self.sink, **numbered)
            frame.mode("append").save(self.log("rows"))
        return self.numbers("rows") == list(range(ROWS))

    def segments(self) -> object:
        """Write a batch from two tasks, as segments."""
        self.rows().repartition(2).write.format(FORMAT).options(**self.sink).mode("append").save(self.log("segments"))
        return self.numbers("segments") == list(range(ROWS))

    def stream(self) -> object:
        """Copy the rows by a stream, in two batches, and by a second run of it; what is there is there once."""
        reads = self.spark.readStream.format(FORMAT).options(**self.source, startingOffsets="earliest")
        for _ in range(2):
            frame = reads.option("maxOffsetsPerTrigger", str(ROWS // 2)).load(self.log("rows")).select("value")
            writes = frame.coalesce(1).writeStream.format(FORMAT).options(**self.sink)
            query = dlspark.spark.start(  # a busy machine may need more than Spark's ten seconds for a process
                writes.option("path", self.log("copy"))
                .option("checkpointLocation", str(self.directory / "checkpoint"))
                .trigger(availableNow=True)
            )
            ended(query)
            with (self.directory / "progress").open("a") as file:
                file.write(json.dumps(query.recentProgress, default=str))
        return self.numbers("copy") == list(range(ROWS))

    def staged(self) -> object:
        """Copy the rows by segments of two tasks for each batch."""
        frame = self.spark.readStream.format(FORMAT).options(**self.source).load(self.log("rows")).select("value")
        writes = frame.repartition(2).writeStream.format(FORMAT).options(**self.sink, commitMode="segments")
        checkpoint = str(self.directory / "staged")
        query = writes.option("path", self.log("staged")).option("checkpointLocation", checkpoint)
        ended(dlspark.spark.start(query.trigger(availableNow=True)))
        return self.numbers("staged") == list(range(ROWS))

    def explain(self) -> object:
        """Show plans in all ways, and fail in two: what is said is searched, too."""
        with (self.directory / "shown").open("w") as shown, contextlib.redirect_stdout(shown):
            frame = self.read("rows").selectExpr("upper(cast(value as string))")
            for mode in ("extended", "formatted"):
                frame.explain(mode)
            for wrong in ({"tls.keyStorePassword": "hunter-by-value"}, {"tls.trustStore": "/nowhere"}):
                try:
                    self.read("rows", **wrong).count()
                except Exception:
                    shown.write(traceback.format_exc())
        return (self.directory / "shown").read_text().count("Traceback") >= 2

    def catalog(self) -> object:
        """Ask by SQL, and insert."""
        rows, made = self.log("rows"), self.log("made")
        counted = self.spark.sql(f"SELECT count(*) AS n FROM dlog.`{rows}`").first()
        self.spark.sql(f"CREATE TABLE dlog.`{made}`")
        self.spark.sql(f"INSERT INTO dlog.`{made}` (value) SELECT value FROM dlog.`{rows}`")
        inserted = self.spark.table(f"dlog.`{made}`").count()
        return [counted[0] if counted else None, inserted] == [ROWS, ROWS]


def ended(query: StreamingQuery) -> None:
    """Return once a stream has done all that there is; one that goes on would run beside the next."""
    if not query.awaitTermination(180):
        raise TimeoutError(f"the stream did not end in 180 s: {query.status} {query.lastProgress}")


def main(config: dict[str, Any]) -> None:
    """Do the steps, and print what each found."""
    directory = Path(config["directory"])
    confs = {"spark.sql.shuffle.partitions": "2", **config.get("confs", {})}
    builder: SparkSession.Builder
    if "remote" in config:
        builder = SparkSession.builder.remote(config["remote"])
        confs |= {"spark.distributedlog.uri": config["uri"], "spark.ui.enabled": "false"}
    else:
        builder = dlspark.spark.builder(config["uri"]).master(config["master"])
        events = directory / "events"
        events.mkdir()
        confs |= {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.ui.port": "0"}
        confs |= {"spark.eventLog.dir": events.as_uri(), "spark.local.dir": str(directory / "local")}
    for name, value in confs.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        if "remote" in config:
            dlspark.spark.enable(spark)
        queries = Queries(spark, config)
        steps: dict[str, Callable[[], object]] = {step: getattr(queries, step) for step in config["steps"]}
        found = {name: step() for name, step in steps.items()}
        if "remote" not in config:
            save_pages(spark, directory / "pages")
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
