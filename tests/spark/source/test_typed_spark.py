"""Typed frames on a real Spark session: what its planner pushes down, with the jar and without, and streams."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from dlspark.tables.declaration import RecordFormat
from dlspark.tables.evolution import AddColumn, DropColumn
from dlspark.tables.types import STRING

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from helpers.spark.typed_logs import TypedLog
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.processes]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
COLUMNS = pa.schema(
    [
        pa.field("log", pa.string()),
        pa.field("segment", pa.int64()),
        pa.field("entry", pa.int64()),
        pa.field("slot", pa.int64()),
        pa.field("sequence_id", pa.int64()),
        pa.field("transaction_id", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("value", pa.struct([("low", pa.int64()), ("high", pa.string())])),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.struct([("key", pa.string()), ("weight", pa.int64())]))),
    ]
)
"""A log's own columns, called as those of records are, with values that records do not have there."""


def row(number: int) -> dict[str, object]:
    return {
        "log": f"l{number % 2}",
        "segment": 100 - number,
        "entry": 50 - number,
        "slot": number * 7 % 5,
        "sequence_id": 1000 - number,
        "transaction_id": -number,
        "timestamp": EPOCH + dt.timedelta(seconds=number),
        "value": {"low": number, "high": f"h{number}"},
        "day": dt.date(2026, 1, 1 + number),
        "tags": [{"key": f"k{number}", "weight": number}],
    }


ROWS = [row(number) for number in range(8)]


def written(logs: Logs, format_: RecordFormat = RecordFormat.JSON) -> TypedLog:
    """Write a log of eight rows, two an entry, and a record behind that does not fit."""
    log = logs.typed(f"typed-{format_.value}")
    logs.run(log.declare(COLUMNS, format_, timestamp="timestamp"))
    for first in range(0, 8, 4):
        logs.run(log.write(ROWS[first : first + 4]))
    logs.run(log.write_bytes([b"bad"], [20_000]))
    return log


def found(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(one) for one in frame.collect()), key=str)


def test_what_is_pushed_down_never_takes_a_logs_column_for_one_of_records(
    spark: SparkSession, plain_format: str, logs: Logs
) -> None:
    log = written(logs)
    frame = spark.read.format("distributedlog").load(log.name)
    plain = spark.read.format(plain_format).load(log.name)
    assert frame.columns == plain.columns == [*COLUMNS.names, "_log", "_error"]
    assert frame.schema == plain.schema
    assert found(frame) == found(plain)
    assert frame.count() == 9
    # One query for filters that each would leave other rows if they were bounds on records.
    wanted = {
        "segment = 97": 1,
        "log = 'l1'": 4,
        "transaction_id < -5": 2,
        "sequence_id = 997": 1,
        "timestamp is not null": 8,
        "_log.segment = 3": 1,
        "value.low >= 6": 2,
    }
    counts = [frame.where(one).select(f.lit(one).alias("filter"), "segment") for one in wanted]
    together = counts[0]
    for one in counts[1:]:
        together = together.unionAll(one)
    assert dict(together.groupBy("filter").agg(f.count("*")).collect()) == wanted
    assert frame.agg(f.min("segment"), f.max("transaction_id"), f.count("log")).collect() == [(93, 0, 8)]
    ordered = frame.where("segment is not null").orderBy("segment").limit(3)
    assert [one.segment for one in ordered.collect()] == [93, 94, 95]
    assert [one.transaction_id for one in frame.orderBy(f.desc("transaction_id")).limit(2).collect()] == [0, -1]
    assert len(frame.limit(5).collect()) == 5
    some = frame.select("_log.segment", "_log.row", "value.high", "tags.key", "_error").collect()
    assert some[3] == (1, 0, "h3", ["k3"], None)
    assert some[8][4]


def test_a_record_of_arrows_is_as_many_rows_as_it_holds(spark: SparkSession, logs: Logs) -> None:
    frame = spark.read.format("distributedlog").load(written(logs, RecordFormat.ARROW).name)
    assert frame.count() == 9
    assert len(frame.limit(6).collect()) == 6
    assert frame.where("value.low = 6").select("_log.transaction_id", "_log.row").collect() == [(7_000, 2)]


def test_a_lower_bound_of_the_timestamp_column_reads_less(spark: SparkSession, logs: Logs) -> None:
    log = written(logs)
    frame = spark.read.format("distributedlog").load(log.name)
    late = frame.where(f.col("timestamp") >= f.lit(EPOCH + dt.timedelta(seconds=6)))
    assert found(late.select("value.low")) == [(6,), (7,)]
    assert found(frame.where("timestamp = timestamp'1970-01-01 00:00:02'").select("value.low")) == [(2,)]
    dated = logs.typed("dated")
    logs.run(dated.declare(pa.schema([pa.field("day", pa.date32(), nullable=False)]), timestamp="day"))
    days = [dt.date(1970, 1, 1) + dt.timedelta(days=number) for number in range(6)]
    logs.run(dated.write([{"day": day} for day in days]))
    by_day = spark.read.format("distributedlog").load(dated.name)
    assert found(by_day.where("day > '1970-01-04'")) == found(by_day)[4:]
    (plan,) = [
        line
        for line in by_day.where("day > '1970-01-04'")._jdf.queryExecution().toString().splitlines()
        if "days" in line
    ][:1]
    assert '[">","day",{"days":3}]' in plan


def test_columns_that_a_user_gives(spark: SparkSession, logs: Logs) -> None:
    log = written(logs)
    small = logs.typed("small")
    logs.run(small.declare(pa.schema([pa.field("id", pa.int64())])))
    logs.run(small.write([{"id": 1}]))
    given = "day date, value struct<high string>, _log struct<row int>"
    frame = spark.read.format("distributedlog").schema(given).load(log.name)
    assert found(frame.where("value.high = 'h3'")) == [(dt.date(2026, 1, 4), ("h3",), (0,))]
    assert frame.count() == 9
    before = logs.sessions()
    spark.read.format("distributedlog").load(log.name)
    assert logs.sessions() <= before, "the session that looked the log up has ended"
    raw = spark.read.format("distributedlog").option("columns", "raw").load(log.name)
    assert raw.columns[:2] == ["log", "segment"]
    assert raw.where(f"log = '{log.name}' and segment = 1").count() == 4
    by_hand = spark.read.format("distributedlog").option("columns", "raw").schema("value binary, log string")
    assert {one.log for one in by_hand.load(log.name).collect()} == {log.name}
    both = spark.read.format("distributedlog").option("columns", "both").load(small.name)
    assert both.where("id = 1").select("value").collect() == [(bytearray(b'{"id":1}'),)]


def test_a_frame_that_is_used_again_has_what_was_written_since_as_rows_of_its_version(
    spark: SparkSession, plain_format: str, logs: Logs
) -> None:
    log = logs.typed("again")
    logs.run(log.declare(pa.schema([("id", pa.int64()), ("item", pa.string())])))
    logs.run(log.write([{"id": 1, "item": "a"}]))
    frames = [spark.read.format(name).load(log.name).select("id", "item") for name in ("distributedlog", plain_format)]
    assert [found(frame) for frame in frames] == [[(1, "a")]] * 2
    logs.run(log.change(AddColumn(("note",), STRING)))
    logs.run(log.write([{"id": 2, "item": "b", "note": "n"}], first_id=1))
    assert [found(frame) for frame in frames] == [[(1, "a"), (2, "b")]] * 2
    logs.run(log.change(DropColumn(("item",))))
    for frame in frames:
        with pytest.raises(Exception, match="Column item was dropped in version 2"):
            frame.collect()


@pytest.mark.parametrize("jar", [True, False])
def test_a_stream_keeps_its_version_and_loses_nothing_where_that_ends(
    spark: SparkSession, plain_format: str, logs: Logs, checkpoint: Path, jar: bool
) -> None:
    log = logs.typed("stream")
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("item", pa.string())])
    logs.run(log.declare(columns))
    logs.run(log.write([{"id": 0, "item": "a"}]))
    seen: list[tuple[object, ...]] = []

    def started() -> StreamingQuery:
        again = spark.readStream.format("distributedlog" if jar else plain_format).load(log.name)

        def batch(frame: DataFrame, number: int) -> None:
            seen.extend(tuple(one) for one in frame.drop("_log").collect())

        counted = again.observe("fit", f.count("_error").alias("misfits"))
        return counted.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint)).start()

    query = started()
    query.processAllAvailable()
    logs.run(log.change(AddColumn(("note",), STRING)))
    logs.run(log.write([{"id": 1, "item": "b", "note": "n"}], first_id=1))
    logs.run(log.write_bytes([b"bad"], [2]))
    query.processAllAvailable()
    assert seen[:2] == [(0, "a", None), (1, "b", None)]
    assert seen[2][:2] == (None, None)
    assert seen[2][2]
    observed = [one["observedMetrics"].get("fit", {"misfits": 0})["misfits"] for one in query.recentProgress]
    assert sum(observed) == 1
    logs.run(log.change(DropColumn(("item",))))
    logs.run(log.write([{"id": 3, "note": "later"}], first_id=3))
    with pytest.raises(StreamingQueryException, match="Column item was dropped in version 2"):
        query.awaitTermination(60)
    query = started()
    query.processAllAvailable()
    query.stop()
    assert seen[3:] == [(3, "later", None)]
