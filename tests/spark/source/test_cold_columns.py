"""Half-cold logs on a real Spark session: SQL with its filters and older versions, frames, batches and streams."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from dlspark.spark import enable
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.evolution import AddColumn
from dlspark.tables.types import STRING

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from helpers.spark.typed_logs import TypedLog
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("town", pa.string()),
        pa.field("parts", pa.struct([("weight", pa.float64()), ("tags", pa.list_(pa.string()))])),
    ]
)


def row(number: int) -> dict[str, object]:
    parts = None if number % 5 == 4 else {"weight": number / 4, "tags": [f"t{number % 3}"] * (number % 4)}
    return {"id": number, "at": NOON + dt.timedelta(seconds=number), "town": f"town {number % 7}", "parts": parts}


@pytest.fixture
def sql(spark: SparkSession) -> SparkSession:
    """Return the session with the catalog `dlog`."""
    enable(spark)
    return spark


class HalfCold:
    """A log of four segments, to be moved to files but for the last one."""

    def __init__(self, logs: Logs, root: Path, format_: RecordFormat) -> None:
        self.logs = logs
        self.log: TypedLog = logs.typed(f"half-cold-{format_.value}")
        self._root = root
        logs.run(self.log.declare(COLUMNS, format_, timestamp="at"))
        for first in (0, 300):
            logs.run(self.log.write([row(number) for number in range(first, first + 300)]))
        logs.run(self.log.write_bytes([b"bad"], [int((NOON + dt.timedelta(seconds=599)).timestamp() * 1000)]))
        logs.run(self.log.write([row(number) for number in range(600, 700)]))

    def move(self) -> None:
        """Give up the hot copies of the first three segments."""
        self.logs.run(self._move())

    async def _move(self) -> None:
        from helpers.cold.moved import HandMover

        mover = HandMover(self.log.namespace, f"file://{self._root}", row_group_bytes=4_000)
        await mover.move(self.log.name, 1, 2, self.log.declaration)
        await mover.move(self.log.name, 3, 3, self.log.declaration)


def shown(frame: DataFrame) -> list[str]:
    return sorted(str(one) for one in frame.collect())


CONDITIONS = [
    "id BETWEEN 290 AND 310",
    "id IN (5, 650) OR town IS NULL",
    "at >= timestamp'2026-11-01 12:08:20' AND town = 'town 3'",
    "_error IS NOT NULL",
    "_log.segment = 2 AND id > 480",
    "parts.weight = 3.25D",
    "parts.weight < 6.25D AND parts.weight IS NOT NULL AND id >= 20",
]
QUERIES = [
    "SELECT *, _log, _error FROM {t}",
    "SELECT count(*), sum(id), max(town), sum(parts.weight) FROM {t}",
    # One scan for each condition, all in one job.
    " UNION ALL ".join(f'SELECT "{one}", id, parts.tags FROM {{t}} WHERE {one}' for one in CONDITIONS),
    "SELECT id FROM {t} ORDER BY id DESC LIMIT 3",
]


@pytest.mark.parametrize("format_", [RecordFormat.JSON, RecordFormat.ARROW])
def test_queries_say_of_a_half_cold_log_what_they_said_before(
    sql: SparkSession, plain_format: str, logs: Logs, tmp_path: Path, format_: RecordFormat
) -> None:
    half = HalfCold(logs, tmp_path, format_)
    table, name = f"dlog.`{half.log.name}`", half.log.name

    def answers() -> list[list[str]]:
        queries = QUERIES if format_ is RecordFormat.JSON else QUERIES[:1]
        found = [shown(sql.sql(one.format(t=table))) for one in queries]
        if format_ is not RecordFormat.JSON:
            return found
        found.append(shown(sql.sql(f"SELECT count(*), max(id) FROM {table} VERSION AS OF '2:20:1'")))
        found.append(shown(sql.sql(f"SELECT max(id) FROM {table} TIMESTAMP AS OF '2026-11-01 12:03:20'")))
        found.append(shown(sql.read.format(plain_format).load(name).where("id < 320")))
        raw = sql.read.format("distributedlog").option("columns", "raw").load(name)
        found.append(shown(raw.select("segment", "entry", "slot", "timestamp", "transaction_id")))
        found.append(shown(raw))
        some = sql.read.format("distributedlog").option("minPartitions", 5)
        found.append(shown(some.option("startingOffsets", f'{{"{name}": "1:3:1"}}').load(name).select("id", "_log")))
        return found

    hot = answers()
    assert len(hot[0]) == 701
    half.move()
    assert answers() == hot
    segments = sql.sql(f"SELECT segment, place, cold_bytes > 0 FROM {table}.segments").collect()
    assert [tuple(one) for one in segments] == [
        (1, "cold", True),
        (2, "cold", True),
        (3, "cold", True),
        (4, "hot", None),
    ]
    # A condition on a field of a struct reaches the source.
    some = sql.sql(f"SELECT id FROM {table} WHERE parts.weight = 3.25D")
    assert [one.id for one in some.collect()] == [13]
    assert '["=","parts.weight",3.25]' in some._jdf.queryExecution().toString()
    files = sql.sql(f"SELECT first_segment, last_segment, state FROM {table}.cold_files").collect()
    assert [tuple(one) for one in files] == [(1, 2, "cold"), (3, 3, "cold")]
    # A column that is added now is there for old rows, too.
    logs.run(half.log.change(AddColumn(("note",), STRING, default="none")))
    assert sql.sql(f"SELECT note, count(*) FROM {table} WHERE id < 5 GROUP BY note").collect() == [("none", 5)]


def test_a_stream_from_the_earliest_record_comes_out_of_files_into_ledgers(
    spark: SparkSession, logs: Logs, tmp_path: Path, checkpoint: Path
) -> None:
    half = HalfCold(logs, tmp_path, RecordFormat.JSON)
    half.move()

    def batch(limit: int) -> list[int | None]:
        """Read what there is, in batches of so many records; return the ids."""
        out = tmp_path / "out"
        query = (
            spark.readStream.format("distributedlog")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", limit)
            .load(half.log.name)
            .select("id", f.col("_log.transaction_id").alias("txid"))
            .writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        return [one.id for one in spark.read.parquet(str(out)).orderBy("txid", "id").collect()]

    found = batch(130)
    assert sorted(one for one in found if one is not None) == list(range(700))
    assert len(found) == 701
    logs.run(half.log.write([row(number) for number in range(700, 710)]))
    assert sorted(one for one in batch(1000) if one is not None) == list(range(710))
