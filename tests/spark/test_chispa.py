"""Flights and weather through a log and back, row by row, by chispa: batch, streaming and SQL.

What is compared with never saw a log: it is made of the package's files. Values are JSON, so nulls are left out and
floating-point numbers are text on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from dlspark.testing.flights import flight_records
from dlspark.testing.weather import TEXTS, WHOLE, hour_ms, weather_readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from source_world import Logs

    from dlspark.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

WEEK_END_MS = 1_357_621_200_000
"""2013-01-08T00:00 in New York."""
FLIGHT_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True)
class Kept:
    """A data set that was written to a log, and what it was."""

    log: str
    wanted: DataFrame
    """The rows, with their transaction id as `txid`."""

    @property
    def schema(self) -> StructType:
        """Of the JSON values."""
        return StructType([field for field in self.wanted.schema.fields if field.name != "txid"])

    def decoded(self, records: DataFrame) -> DataFrame:
        """Records of the log as rows like `wanted`."""
        from pyspark.sql import functions as f

        row = f.from_json(f.col("value").cast("string"), self.schema)
        return records.select(row.alias("row"), "transaction_id").select("row.*", f.col("transaction_id").alias("txid"))


def kept(spark: SparkSession, log: str, schema: StructType, rows: list[dict[str, object]]) -> Kept:
    """Write rows to a log by the sink, in the order of their ids."""
    wanted = spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(schema)), schema).cache()
    written = wanted.repartitionByRange(2, "id").sortWithinPartitions("id")
    columns = ", ".join(field.name for field in schema.fields if field.name != "txid")
    values = written.selectExpr(f"to_json(struct({columns})) AS value", "txid AS transaction_id")
    values.write.format("distributedlog").mode("append").save(log)
    return Kept(log, wanted)


@pytest.fixture(scope="module")
def names(sandbox: Sandbox) -> Iterator[Logs]:
    from source_world import Logs

    logs = Logs(sandbox.uri)
    yield logs
    logs.close()


@pytest.fixture(scope="module")
def weather(spark: SparkSession, names: Logs) -> Kept:
    """The whole table."""
    readings = weather_readings()
    kinds = [StringType() if n in TEXTS else LongType() if n in {*WHOLE, "id"} else DoubleType() for n in readings[0]]
    fields = [StructField(name, kind) for name, kind in zip(readings[0], kinds, strict=True)]
    schema = StructType([*fields, StructField("txid", LongType())])
    return kept(spark, names.name("weather"), schema, [{**one, "txid": hour_ms(one)} for one in readings])


@pytest.fixture(scope="module")
def flights(spark: SparkSession, names: Logs) -> Kept:
    """Those of the first week."""
    return kept_flights(spark, names.name("flights"), until_ms=WEEK_END_MS)


def kept_flights(spark: SparkSession, log: str, until_ms: int) -> Kept:
    records = list(takewhile(lambda record: record.scheduled_ms < until_ms, flight_records()))
    rows = [json.loads(record.value) for record in records]
    fields = [StructField(name, StringType() if name in FLIGHT_TEXTS else LongType()) for name in rows[0]]
    schema = StructType([*fields, StructField("txid", LongType())])
    return kept(spark, log, schema, [{**row, "txid": row["scheduled_ms"]} for row in rows])


@pytest.fixture(params=["flights", "weather"])
def data(request: pytest.FixtureRequest) -> Kept:
    found: Kept = request.getfixturevalue(request.param)
    return found


def test_what_is_compared_has_nulls_and_fractions(weather: Kept, flights: Kept) -> None:
    assert weather.wanted.count() == 26_115
    assert weather.wanted.where("wind_gust IS NULL").count() > 20_000
    assert weather.wanted.where("wind_speed != floor(wind_speed)").count() > 20_000
    assert flights.wanted.count() == 6_099
    assert flights.wanted.where("dep_time IS NULL").count() == 35


def test_a_batch_gives_back_every_row_in_its_order(spark: SparkSession, data: Kept) -> None:
    records = spark.read.format("distributedlog").option("minPartitions", 4).load(data.log)
    found = data.decoded(records.orderBy("segment", "entry", "slot"))
    assert_df_equality(found, data.wanted, ignore_nullable=True)


def test_a_stream_gives_back_every_row_once(spark: SparkSession, data: Kept, checkpoint: Path) -> None:
    limit = data.wanted.count() // 2
    records = spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", limit).load(data.log)
    table = f"streamed_{data.log.partition('-')[0]}"
    query = (
        data.decoded(records)
        .writeStream.format("memory")
        .queryName(table)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert len([one for one in query.recentProgress if one.numInputRows]) in (2, 3)
    assert_df_equality(spark.table(table).orderBy("id"), data.wanted, ignore_nullable=True)
    spark.catalog.dropTempView(table)


def test_sql_over_a_view_gives_what_sql_over_the_files_gives(spark: SparkSession, data: Kept) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING distributedlog OPTIONS (log '{data.log}')")
    _questions_agree(spark, data, "records")


def _questions_agree(spark: SparkSession, data: Kept, records: str) -> None:
    """A rewind by time, and figures by airport and day, of `records` and of what was written."""
    data.wanted.createOrReplaceTempView("wanted")
    data.decoded(spark.table(records)).createOrReplaceTempView("found")
    since = 1_357_300_000_000
    rewound = spark.sql(f"SELECT * FROM {records} WHERE timestamp >= timestamp_millis({since})")
    assert_df_equality(data.decoded(rewound).orderBy("id"), data.wanted.where(f"txid >= {since}"), ignore_nullable=True)
    measure = "temp" if "temp" in data.schema.names else "dep_delay"
    question = f"""
        SELECT origin, month, day, count(*) AS rows, count({measure}) AS measured, max({measure}) AS highest
        FROM {{}} GROUP BY origin, month, day ORDER BY origin, month, day"""
    found, wanted = (spark.sql(question.format(name)) for name in ("found", "wanted"))
    assert_df_equality(found, wanted, ignore_nullable=True)


@pytest.mark.long
def test_a_year_of_flights_is_the_same_behind_a_log(spark: SparkSession, names: Logs) -> None:
    year = kept_flights(spark, names.name("year"), until_ms=2_000_000_000_000)
    assert year.wanted.count() == 336_776
    batch = spark.read.format("distributedlog").load(year.log)
    assert_df_equality(year.decoded(batch).orderBy("id"), year.wanted, ignore_nullable=True)
