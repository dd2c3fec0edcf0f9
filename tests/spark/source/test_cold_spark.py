"""A real Spark session over a log whose past lies in cold files: batches, streams, time travel, filters and limits. The
files are in a folder and on a real S3 server; with --rounds on a strict mock of S3 and on HDFS, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.cold.fixtures import place_of
from helpers.cold.moved import HandMover
from helpers.cold.places import ObjectPlace
from helpers.rounds import with_rounds

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.spark import enable

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

FIRST = 1_000_000
SEGMENTS = 5
RECORDS = 40
ALL = list(range(FIRST, FIRST + SEGMENTS * RECORDS))


class ColdLog:
    """A log of five segments that a test moves step by step."""

    def __init__(self, logs: Logs, sandbox: Sandbox, place: ObjectPlace) -> None:
        self.name = logs.create(logs.name())
        for part in range(SEGMENTS):
            first = FIRST + part * RECORDS
            logs.write(self.name, range(first, first + RECORDS))
        self._runtime = Runtime("cold-spark")
        self._namespace = self._runtime.run(AsyncNamespace.open(sandbox.uri))
        self._mover = self._runtime.run(self._opened(place))

    async def _opened(self, place: ObjectPlace) -> HandMover:
        return HandMover(self._namespace, place.root, options=place.options, row_group_bytes=1_000)

    def move(self, first: int, last: int) -> None:
        self._runtime.run(self._mover.move(self.name, first, last))

    def copy(self, first: int, last: int) -> None:
        self._runtime.run(self._mover.copy(self.name, first, last))

    def close(self) -> None:
        self._runtime.run(self._mover.files.close())
        self._runtime.run(self._namespace.close())
        self._runtime.close()


@pytest.fixture(params=["folder", "seaweed", *with_rounds("moto", "hdfs")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    """Give a place that Spark's workers open by the address of a file."""
    return place_of(request, tmp_path)


@pytest.fixture
def cold(logs: Logs, sandbox: Sandbox, place: ObjectPlace) -> Iterator[ColdLog]:
    """Segments 1 and 2 in one file, 3 in another, 4 in a file and hot, 5 hot."""
    made = ColdLog(logs, sandbox, place)
    made.move(1, 2)
    made.move(3, 3)
    made.copy(4, 4)
    yield made
    made.close()


def ids(frame: DataFrame) -> list[int]:
    rows = frame.orderBy("segment", "entry", "slot").select("transaction_id").collect()
    return [row[0] for row in rows]


def test_batches_filters_limits_and_time_travel_read_files(spark: SparkSession, cold: ColdLog) -> None:
    frame = spark.read.format("distributedlog").load(cold.name)
    assert ids(frame) == ALL
    assert frame.limit(7).count() == 7
    assert ids(frame.where("segment = 2 and entry >= 2")) == ALL[60:80]
    later = spark.read.format("distributedlog").option("startingTransactionId", FIRST + 77)
    assert ids(later.option("minPartitions", 9).load(cold.name).where(f"transaction_id < {FIRST + 130}")) == ALL[77:130]
    enable(spark)
    for version, records in (("2:1:5", RECORDS + 16), ("4:0:0", 3 * RECORDS + 1)):
        found = spark.sql(f"SELECT count(*), max(transaction_id) FROM dlog.`{cold.name}` VERSION AS OF '{version}'")
        assert [tuple(row) for row in found.collect()] == [(records, ALL[records - 1])]


def test_a_stream_from_the_earliest_record_goes_through_files_while_more_leave(
    spark: SparkSession, cold: ColdLog, checkpoint: Path
) -> None:
    found: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        part = ids(batch)
        assert len(part) <= 33
        found.extend(part)
        if number == 1:
            cold.copy(5, 5)

    def run() -> None:
        reader = spark.readStream.format("distributedlog").option("startingOffsets", "earliest")
        stream = reader.option("maxOffsetsPerTrigger", 33).load(cold.name)
        writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    assert found == ALL
    run()
    assert found == ALL
