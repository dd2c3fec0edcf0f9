"""Runs in the Python of another Spark: SQL statements against an Iceberg catalog in SQLite, one JSON line of rows each.

    python spark_session.py JARS CATALOG_FILE WAREHOUSE < statements, one a line

A statement that fails gives `{"error": ...}`. Prints `ready VERSION` first.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(jars: str, catalog: str, warehouse: str) -> None:
    """Answer statements until there are no more."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "600m")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        # pyiceberg writes under the name that it was opened by.
        .config("spark.sql.catalog.dlspark", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.dlspark.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
        .config("spark.sql.catalog.dlspark.uri", f"jdbc:sqlite:{catalog}")
        .config("spark.sql.catalog.dlspark.jdbc.schema-version", "V1")
        .config("spark.sql.catalog.dlspark.warehouse", warehouse)
        .config("spark.sql.catalog.dlspark.cache-enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", spark.version, flush=True)
    for line in sys.stdin:
        try:
            rows: Any = [row.asDict(True) for row in spark.sql(line).collect()]
        except Exception as error:
            rows = {"error": str(error)[:2000]}
        print("answer", json.dumps(rows, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
