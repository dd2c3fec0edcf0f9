"""A batch, a stream and a count on a secured cluster; prints what it counted, and leaves its event log and checkpoint.

    secured_app.py URI FOLDER NAME DIRECTORY

The identity folder is named by options, or, where FOLDER is empty, by the environment variable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROWS = 200


def main(uri: str, folder: str, name: str, directory: Path) -> None:
    """Write rows to `rows-NAME`, stream them to `copy-NAME`, and print the counts of both as a JSON list."""
    events = directory / "events"
    events.mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", events.as_uri())
        .getOrCreate()
    )
    options = {"uri": uri}
    if folder:
        options |= {"tls.directory": folder}
    rows, copy = options | {"log": f"rows-{name}"}, options | {"log": f"copy-{name}"}
    written = spark.range(ROWS).selectExpr("cast(id as string) as value")
    written.write.format("distributedlog").options(**rows).mode("append").save()
    read = spark.readStream.format("distributedlog").options(**rows).option("startingOffsets", "earliest").load()
    stream = read.select("value").writeStream.format("distributedlog").options(**copy)
    stream.option("checkpointLocation", str(directory / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    counts = [spark.read.format("distributedlog").options(**one).load().count() for one in (rows, copy)]
    spark.stop()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
