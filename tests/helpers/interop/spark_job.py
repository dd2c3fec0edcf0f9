"""A Spark job in a process of its own: writes flights to one log and reads another, for the interoperability tests.

Usage: spark_job.py URI LOG_TO_WRITE NUMBER LOG_TO_READ. Prints one JSON line: what was read, in log order.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from pyspark.sql import SparkSession

from dlspark.demo.datasets import csv_rows, scheduled_ms

JOB = Path(__file__)
"""This program's file."""


def first_flights(number: int) -> list[tuple[int, str]]:
    """Return the first flights of the data set: scheduled departure in milliseconds, and the row as JSON."""
    return [(scheduled_ms(row), json.dumps(row)) for row in islice(csv_rows(), number)]


def main() -> None:
    uri, target, number, source = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.distributedlog.uri", uri)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    rows = first_flights(int(number))
    frame = spark.createDataFrame(rows, "transaction_id bigint, value string")
    parts = frame.repartitionByRange(3, "transaction_id").sortWithinPartitions("transaction_id", "value")
    parts.write.format("distributedlog").mode("append").save(target)
    read = spark.read.format("distributedlog").load(source).orderBy("segment", "entry", "slot")
    found = [
        (f"{row.segment}:{row.entry}:{row.slot}", row.transaction_id, row.sequence_id, bytes(row.value).hex())
        for row in read.collect()
    ]
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
