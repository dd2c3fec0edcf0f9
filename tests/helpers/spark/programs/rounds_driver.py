"""A Spark session that runs queries by command, for rounds of faults: a line of JSON in, a line of JSON out.

    python rounds_driver.py MASTER 'CONF AS JSON'

| command | does |
|---|---|
| `{"do": "start", "plan": {...}, "limit": "file", "stride": 1, "cuts": 7, "checkpoint": "..."}` | starts the query |
| `{"do": "until", "batch": 3}` | waits until batch 3 is in Spark's commit log; or tells why the query ended |
| `{"do": "stop"}` | stops the query, whatever it is at |
| `{"do": "error"}` | waits until the query has ended by itself, and tells why |

With `"tables": true` the query is a `foreachBatch` that writes its logs one by one, or some together, each time with
the same txnAppId and txnVersion. With `"fork": true` these have `-fork` at their ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from helpers.spark.programs.rounds_source import RoundsSource

PARENT = os.getppid()


class Session:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: StreamingQuery | None = None
        self._checkpoint = Path()

    def start(
        self,
        plan: dict[str, Any],
        limit: str,
        stride: int,
        cuts: int,
        checkpoint: str,
        tables: bool = False,
        fork: bool = False,
    ) -> None:
        source = self._spark.readStream.format("rounds").option("plan", json.dumps(plan))
        frame = source.option("limit", limit).option("stride", stride).option("cuts", cuts).load()
        columns = columns_of(plan)
        if tables:
            writer = frame.writeStream.foreachBatch(lambda rows, batch: write_tables(rows, batch, plan, columns, fork))
        else:
            writer = frame.selectExpr(*columns, *([] if plan["routed"] else ["log"])).writeStream.format(
                "distributedlog"
            )
            writer = writer.option("uri", plan["uri"])
        if plan["routed"]:
            writer = writer.option("log", plan["logs"][0][:-1] + "{}").option("numLogs", len(plan["logs"]))
            writer = writer if plan["kind"] == "raw" else writer.option("partitionBy", "body")
        # Between batches the source is asked a few times a second, not a hundred.
        writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds")
        self._query, self._checkpoint = writer.start(), Path(checkpoint)

    def until(self, batch: int) -> str | None:
        assert self._query is not None
        while not (self._checkpoint / "commits" / str(batch)).exists():
            if os.getppid() != PARENT:
                raise SystemExit("the test that waited for this query has ended")
            try:
                if self._query.awaitTermination(0.05):  # type: ignore[arg-type]
                    return "the query ended"
            except Exception as error:
                return str(error)
        return None

    def stop(self) -> None:
        assert self._query is not None
        self._query.stop()

    def error(self) -> str:
        assert self._query is not None
        try:
            self._query.awaitTermination(120)
        except Exception as error:
            return str(error)
        return ""


def columns_of(plan: dict[str, Any]) -> list[str]:
    """Return the columns that are written beside `log`: bytes, or those that the logs declare."""
    if plan["kind"] == "raw":
        return ["value"] if plan["stamped"] else ["value", "transaction_id"]
    own = ["value as body", "cast(length(value) as int) as length"]
    return own if plan["stamped"] else [*own, "transaction_id as at"]


def write_tables(rows: DataFrame, batch: int, plan: dict[str, Any], columns: list[str], fork: bool) -> None:
    """Write a batch's logs: the first two together, by a column, where there are more than three; the others apart."""
    logs, end = plan["logs"], "-fork" if fork else ""
    together = logs[:2] if len(logs) > 3 else []
    for group in ([together] if together else []) + [[log] for log in logs if log not in together]:
        chosen = rows.where(rows.log.isin(*group))
        apart = len(group) == 1
        frame = chosen.selectExpr(*columns) if apart else chosen.selectExpr(*columns, f"concat(log, '{end}') as log")
        writer = frame.write.format("distributedlog").mode("append").option("uri", plan["uri"])
        writer = writer.option("txnAppId", plan["query_id"]).option("txnVersion", batch)
        writer.save(group[0] + end) if apart else writer.save()


def main(master: str, conf: dict[str, str]) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no reply
    builder = SparkSession.builder.master(master).appName("rounds")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(RoundsSource)
    session = Session(spark)
    print(json.dumps("ready"), file=replies)
    for line in sys.stdin:
        command = json.loads(line)
        told = getattr(session, command.pop("do"))(**command)
        print(json.dumps(told), file=replies)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
