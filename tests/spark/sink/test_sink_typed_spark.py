"""Typed frames with a real Spark session: what Spark's types become, what is refused and when, and replays."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.spark.sink_driver import read_values
from helpers.spark.typed_frames import declare

from dlspark.core.runtime import Runtime
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.session import open_session
from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("place", pa.struct([pa.field("lat", pa.float64()), pa.field("names", pa.list_(pa.string()))])),
        pa.field("more", pa.map_(pa.string(), pa.int32())),
        pa.field("small", pa.int32()),
    ]
)
COLUMNS = [
    "id as ID",
    "cast(id as decimal(9, 2)) / 4 as price",
    "timestamp_millis(1000000 + 37 * id % 500) as at",
    "date'2026-11-26' as day",
    "named_struct('lat', 0.5D, 'names', array('x', null)) as place",
    "map('k', cast(id as int)) as more",
    "cast(id % 100 as tinyint) as small",
]


class Table:
    """A log that declares ORDERS, in this format."""

    def __init__(self, sandbox: Sandbox, kind: str) -> None:
        self.uri = sandbox.uri
        self.log = f"typed-{uuid.uuid4().hex[:8]}"
        self.declaration = Declaration.of(RecordFormat(kind), schema_from_arrow(ORDERS), timestamp="at")
        Runtime.shared().run(self._declare())

    async def _declare(self) -> None:
        session = await open_session(Options({"uri": self.uri}, Scope.SINK_STREAM))
        await declare(session.namespace.logs_store, self.log, self.declaration)

    def rows(self) -> list[dict[str, object]]:
        txids, payloads = read_values(self.uri, self.log)
        assert txids == sorted(txids)
        found = RecordDecoder(self.declaration).decode(pa.array(payloads, pa.binary()), pa.array(txids, pa.int64()))
        assert found.errors.null_count == len(found.errors)
        return found.rows.to_pylist()  # type: ignore[no-any-return]

    def save(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("distributedlog").mode("append").options(**options).save(self.log)


@pytest.fixture(params=["json", "avro", "arrow"])
def table(sandbox: Sandbox, request: pytest.FixtureRequest) -> Table:
    return Table(sandbox, request.param)


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # Spark wraps every error in one of its own
        call()
    return str(caught.value)


def test_sparks_types_become_the_logs_columns_and_a_numbered_write_is_done_once(
    spark: SparkSession, table: Table
) -> None:
    for _ in range(2):
        table.save(spark.range(0, 40, 1, 2).selectExpr(*COLUMNS), txnAppId=table.log, txnVersion="1")
    rows = sorted(table.rows(), key=lambda row: int(str(row["id"])))
    assert [row["id"] for row in rows] == list(range(40))
    millis = 1_000_000 + 37 * 5 % 500
    assert rows[5] == {
        "id": 5,
        "price": Decimal("1.25"),
        "at": datetime.datetime.fromtimestamp(millis / 1000, datetime.timezone.utc),
        "day": datetime.date(2026, 11, 26),
        "place": {"lat": 0.5, "names": ["x", None]},
        "more": [("k", 5)],
        "small": 5,
    }


def test_what_does_not_fit_is_refused_and_leaves_nothing_visible(spark: SparkSession, sandbox: Sandbox) -> None:
    table = Table(sandbox, "json")
    frame = spark.range(3)
    for columns, says in (
        (["id"], "no column at, which the log declares NOT NULL; no task was started"),
        (["id", "now() as at", "1 as other"], "no column other in the log's schema; no task was started"),
        (["id", "now() as at", "'x' as small"], "Column small is int"),
        (["id", "now() as at", "'x' as _error"], "df.drop"),
        (["id", "if(id = 1, null, now()) as at"], "Column at is NOT NULL"),
        (["id", "now() as at", "id * 3000000000 as small"], "a value of the rows does not fit"),
    ):
        text = error_of(lambda columns=columns: table.save(frame.selectExpr(*columns)))  # type: ignore[misc]
        assert says in text
        assert ("SchemaError" in text) is ("no task" in text or "_error" in columns[-1] or "'x'" in columns[-1])
        assert "no task was started" in text or "nothing of the batch is visible" in text or "df.drop" in text
    assert table.rows() == []
    table.save(frame.selectExpr("'{}' as value"), columns="raw")
    assert read_values(table.uri, table.log)[1] == [b"{}"] * 3


def test_rows_that_name_their_logs_and_rows_spread_by_hash_are_encoded_by_what_each_log_declares(
    spark: SparkSession, sandbox: Sandbox
) -> None:
    tables = [Table(sandbox, "json"), Table(sandbox, "avro")]
    named = spark.range(0, 20, 1, 2).selectExpr(
        "id", "now() as at", f"if(id < 15, '{tables[0].log}', '{tables[1].log}') as log"
    )
    named.write.format("distributedlog").mode("append").save()
    assert [sorted(str(row["id"]) for row in table.rows()) for table in tables] == [
        sorted(str(n) for n in range(15)),
        sorted(str(n) for n in range(15, 20)),
    ]
    missing = spark.range(1).selectExpr("id", "now() as at", "'nowhere' as log")
    text = error_of(lambda: missing.write.format("distributedlog").mode("append").save())
    assert "declares no schema; nothing of the batch is visible" in text


def test_a_typed_stream_is_written_once_though_its_newest_commit_entries_are_lost(
    spark: SparkSession, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The first time appended, then as segments."""
    table, checkpoint = Table(sandbox, "json"), tmp_path / "checkpoint"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).option("numPartitions", 2)
    frame = source.option("startTimestamp", 1000).load().selectExpr("value as id").selectExpr(*COLUMNS)
    for mode, until in (("append", 1), ("segments", 2)):
        writer = frame.writeStream.format("distributedlog").option("log", table.log).option("commitMode", mode)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            while not (checkpoint / "commits" / str(until)).exists():
                if query.awaitTermination(0.05):
                    raise AssertionError(query.exception())
        finally:
            query.stop()
        for entry in sorted((checkpoint / "commits").glob("[0-9]*"))[1:]:
            entry.unlink()
    ids = [int(str(row["id"])) for row in table.rows()]
    assert sorted(ids) == list(range(len(ids)))
    assert len(ids) >= 150
