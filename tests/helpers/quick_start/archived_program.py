"""What `archive.py` has Spark do so that its JVM has loaded the classes that the tests need: batch, SQL, streams,
data sources in Python.

    python archived_program.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType


class Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield 1, "a"


class StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"at": 2}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield 1, "a"


class Writer(DataSourceWriter, DataSourceStreamWriter):  # type: ignore[misc]
    def __init__(self) -> None: ...

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None: ...


class Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "small"

    def schema(self) -> str:
        return "id int, word string"

    def reader(self, schema: StructType) -> Reader:
        return Reader()

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer()


def batch(spark: SparkSession, place: Path) -> None:
    spark.range(100).selectExpr("CAST(id AS STRING) AS word", "id % 3 AS k").write.json(str(place / "in"))
    read = spark.read.schema("word string, k int").json(str(place / "in"))
    read.groupBy("k").agg(f.count("*"), f.max("word")).orderBy("k").collect()
    read.join(spark.createDataFrame([(1, "x")], "k int, name string"), "k").toPandas()
    read.createOrReplaceTempView("words")
    spark.sql("SELECT k, row_number() OVER (PARTITION BY k ORDER BY word) AS n FROM words WHERE k > 0 LIMIT 3").show()
    spark.read.format("small").load().filter("id = 1").collect()
    spark.range(3).selectExpr("id", "'a' AS word").write.format("small").mode("append").save()


def streams(spark: SparkSession, place: Path) -> None:
    def each(frame: DataFrame, number: int) -> None:
        frame.persist().count()

    lines = spark.readStream.schema("word string, k int").json(str(place / "in"))
    source = spark.readStream.format("small").load()
    for number, (frame, kind) in enumerate(((lines, "small"), (source, "small"), (source, "memory"))):
        writer = frame.writeStream.format(kind).queryName(f"q{number}")
        query = writer.option("checkpointLocation", str(place / f"c{number}")).trigger(availableNow=True).start()
        query.processAllAvailable()
        query.stop()
    counts = lines.groupBy("k").count().writeStream.outputMode("complete").foreachBatch(each)
    query = counts.option("checkpointLocation", str(place / "c")).start()
    query.processAllAvailable()
    query.stop()


def main(place: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(Source)
    batch(spark, place)
    streams(spark, place)
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    java.stdin.close()  # Spark's JVM ends with that, and writes the archive
    java.wait(300)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
