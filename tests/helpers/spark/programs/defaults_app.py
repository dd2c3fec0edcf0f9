"""A user's program that sets nothing: all its settings come from the spark-defaults.conf that SPARK_CONF_DIR names.

    SPARK_CONF_DIR=. DLSPARK_URI=distributedlog://... python defaults_app.py LOG DIRECTORY

Prints the settings that it found and what it read, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROWS = 100


def main(log: str, directory: Path, keys: list[str]) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.range(ROWS).selectExpr("cast(id AS string) AS value", "id AS transaction_id").coalesce(1).write.format(
        "distributedlog"
    ).mode("append").save(log)
    late = spark.read.format("distributedlog").load(log).where(f"transaction_id >= {ROWS - 7}").count()
    query = (
        spark.readStream.format("distributedlog")
        .load(log)
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = spark.table("streamed").count()
    print(json.dumps({"late": late, "streamed": streamed, "conf": {key: spark.conf.get(key) for key in keys}}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
