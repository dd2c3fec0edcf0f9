"""Sessions one after the other in one process, as in a notebook: two plain ones, and two of `dlspark.spark.builder`.

    python sessions_app.py URI LOG OTHER_URI

There is a log LOG-kept, and the namespace of OTHER_URI does not exist. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from pyspark.sql import SparkSession

import dlspark.spark
from dlspark import Namespace

_CONFS: dict[str, bool | float | int | str | None] = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def main(uri: str, log: str, other: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    kept: list[int] = []
    for records in range(2):
        plain = SparkSession.builder.config(map=_CONFS).config("spark.distributedlog.uri", other).getOrCreate()
        # The first stage of either context: a plan that is kept, and no execution of SQL to agree in.
        kept.append(plain.read.format("distributedlog").option("uri", uri).load(f"{log}-kept").rdd.count())
        with Namespace.open(uri) as namespace, namespace.open_log(f"{log}-kept").open_writer() as writer:
            writer.write(records, b"one more").result()
        plain.stop()

    spark = dlspark.spark.builder(uri).config(map=_CONFS).getOrCreate()
    spark.sql("SELECT 'a' AS value").write.format("distributedlog").mode("append").save(log)
    frame = spark.read.format("distributedlog").load(log)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    found: dict[str, object] = {
        "kept": kept,
        "frame": frame.count(),
        "with the jar": "distributedlog {" in plan,
        "sql": spark.sql(f"SELECT count(*) FROM dlog.`{log}`").collect()[0][0],
    }
    spark.stop()

    elsewhere = dlspark.spark.builder(other).config(map=_CONFS).getOrCreate()
    found["elsewhere"] = []
    with suppress(Exception):
        found["elsewhere"] = elsewhere.read.format("distributedlog").load(log).count()
    with suppress(Exception):
        found["elsewhere"] = elsewhere.sql("SHOW TABLES IN dlog").count()
    elsewhere.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
