"""A Spark session that runs queries by command, for rounds of faults: a line of JSON in, a line of JSON out.

    python rounds_driver.py MASTER 'CONF AS JSON'

| command | does |
|---|---|
| `{"do": "start", "plan": {...}, "limit": "file", "stride": 1, "cuts": 7, "checkpoint": "..."}` | starts the query |
| `{"do": "until", "batch": 3}` | waits until batch 3 is in Spark's commit log; or tells why the query ended |
| `{"do": "stop"}` | stops the query, whatever it is at |
| `{"do": "error"}` | waits until the query has ended by itself, and tells why |
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rounds_source import RoundsSource

PARENT = os.getppid()


class Session:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: StreamingQuery | None = None
        self._checkpoint = Path()

    def start(self, plan: dict[str, Any], limit: str, stride: int, cuts: int, checkpoint: str) -> None:
        source = self._spark.readStream.format("rounds").option("plan", json.dumps(plan))
        frame = source.option("limit", limit).option("stride", stride).option("cuts", cuts).load()
        columns = ["value"] if plan["stamped"] else ["value", "transaction_id"]
        writer = frame.select(*columns, *([] if plan["routed"] else ["log"])).writeStream.format("distributedlog")
        if plan["routed"]:
            writer = writer.option("log", plan["logs"][0][:-1] + "{}").option("numLogs", len(plan["logs"]))
        self._checkpoint = Path(checkpoint)
        writer = writer.option("uri", plan["uri"]).option("checkpointLocation", checkpoint)
        # Between batches the source is asked a few times a second, not a hundred.
        self._query = writer.trigger(processingTime="200 milliseconds").start()

    def until(self, batch: int) -> str | None:
        assert self._query is not None
        while not (self._checkpoint / "commits" / str(batch)).exists():
            if os.getppid() != PARENT:
                raise SystemExit("nobody waits for this query any more")
            try:
                if self._query.awaitTermination(0.05):
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
