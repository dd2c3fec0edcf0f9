"""Sessions one after the other in one process, as in a notebook: a plain one, and two of `dlspark.spark.builder`.

    python sessions_app.py URI LOG OTHER_URI

The namespace of OTHER_URI does not exist. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from pyspark.sql import SparkSession

import dlspark.spark

_CONFS: dict[str, bool | float | int | str | None] = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def main(uri: str, log: str, other: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    plain = SparkSession.builder.config(map=_CONFS).config("spark.distributedlog.uri", other).getOrCreate()
    plain.stop()

    spark = dlspark.spark.builder(uri).config(map=_CONFS).getOrCreate()
    spark.sql("SELECT 'a' AS value").write.format("distributedlog").mode("append").save(log)
    frame = spark.read.format("distributedlog").load(log)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    found: dict[str, object] = {
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
