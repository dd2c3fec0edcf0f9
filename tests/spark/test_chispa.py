"""Flights and weather through a log and back, row by row, by chispa: batch, streaming and SQL.

What is compared with never saw a log: it is made of the package's files. Values are JSON, so nulls are left out and
floating-point numbers are text on the way. SQL asks the same of tables of the catalog and of views of the files.

Most tests ask of flights alone; with --rounds all of them ask of the weather, too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from helpers.rounds import with_rounds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from dlspark.demo.datasets import TEXTS, WHOLE, flight_records, hour_ms, weather_readings
from dlspark.spark import enable

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

WEEK_END_MS = 1_357_621_200_000
"""2013-01-08T00:00 in New York."""
FLIGHT_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
NOON = "TIMESTAMP '2013-01-04 12:00:00'"
"""A time within both data sets."""


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

    @property
    def measure(self) -> str:
        """A column with nulls, of whole numbers or fractions."""
        return "temp" if "temp" in self.schema.names else "dep_delay"

    @property
    def table(self) -> str:
        """The log in SQL."""
        return f"dlog.`{self.log}`"

    @property
    def files(self) -> str:
        """The rows in SQL: a view of what the files gave, with column `timestamp` as a log has it."""
        return self.log.replace("-", "_")

    def rows_of(self, table: str) -> str:
        """The records of a log's table as a subquery with the rows and columns of view `files`."""
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields)
        parsed = f"SELECT from_json(CAST(value AS STRING), '{columns}') AS row, transaction_id, timestamp FROM {table}"
        return f"(SELECT row.*, transaction_id AS txid, timestamp FROM ({parsed}))"

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
    data = Kept(log, wanted)
    wanted.selectExpr("*", "timestamp_millis(txid) AS timestamp").createOrReplaceTempView(data.files)
    return data


@pytest.fixture(scope="module")
def names(sandbox: Sandbox) -> Iterator[Logs]:
    from helpers.spark.logs import Logs

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


@pytest.fixture(params=["flights", *with_rounds("weather")])
def data(request: pytest.FixtureRequest) -> Kept:
    found: Kept = request.getfixturevalue(request.param)
    return found


def test_what_is_compared_has_nulls_and_fractions(weather: Kept, flights: Kept) -> None:
    assert weather.wanted.count() == 26_115
    assert weather.wanted.where("wind_gust IS NULL").count() > 20_000
    assert weather.wanted.where("wind_speed != floor(wind_speed)").count() > 20_000
    assert flights.wanted.count() == 6_099
    assert flights.wanted.where("dep_time IS NULL").count() == 35


@pytest.mark.parametrize("data", ["flights", "weather"], indirect=True)  # fractions, too
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


# ---------------------------------------------------------------------- SQL

QUESTIONS = {
    "rewind by time": f"""
        SELECT * FROM {{data}} WHERE timestamp >= {NOON} AND timestamp < {NOON} + INTERVAL 2 DAYS ORDER BY id""",
    "figures by airport and day": """
        SELECT origin, month, day, count(*), count({measure}), max({measure}), min(timestamp)
        FROM {data} GROUP BY origin, month, day HAVING count(*) > 3 ORDER BY origin, month, day""",
    "last times": "SELECT txid, timestamp FROM {data} ORDER BY timestamp DESC LIMIT 100",
    "extent": "SELECT count(*), min(txid), max(timestamp) FROM {data}",
    "extent since": f"SELECT count(*), min(timestamp), max(txid) FROM {{data}} WHERE timestamp > {NOON}",
    "latest three of each airport": """
        WITH placed AS
            (SELECT *, row_number() OVER (PARTITION BY origin ORDER BY timestamp DESC, id) AS place FROM {data})
        SELECT * FROM placed WHERE place <= 3 ORDER BY id""",
}


def same(spark: SparkSession, found: str, wanted: str) -> None:
    """Both give the same rows in the same order, and some. A table's columns have comments, those of files none."""
    answer = spark.sql(wanted)
    assert not answer.isEmpty()
    assert_df_equality(spark.sql(found), answer, ignore_nullable=True, ignore_metadata=True)


def ask(spark: SparkSession, question: str, data: Kept, table: str) -> None:
    """The same question of a log's table and of the files."""
    found, wanted = (question.format(data=rows, measure=data.measure) for rows in (data.rows_of(table), data.files))
    same(spark, found, wanted)


@pytest.fixture
def sql(spark: SparkSession) -> SparkSession:
    enable(spark)
    return spark


@pytest.fixture
def new() -> str:
    """A table that is not there yet."""
    return f"dlog.chispa.t{uuid.uuid4().hex[:8]}"


def test_sql_over_a_view_gives_what_sql_over_the_files_gives(spark: SparkSession, data: Kept) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING distributedlog OPTIONS (log '{data.log}')")
    for question in ("rewind by time", "figures by airport and day"):
        ask(spark, QUESTIONS[question], data, "records")


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_sql_over_the_catalog_gives_what_sql_over_the_files_gives(sql: SparkSession, data: Kept, question: str) -> None:
    ask(sql, question, data, data.table)


def test_a_join_of_two_logs_gives_what_a_join_of_the_files_gives(
    sql: SparkSession, flights: Kept, weather: Kept
) -> None:
    question = """
        SELECT f.id, f.carrier, f.dep_delay, f.timestamp, w.id AS reading, w.temp, w.wind_gust
        FROM {} f LEFT JOIN {} w ON f.origin = w.origin AND f.time_hour = w.time_hour
        ORDER BY f.id"""
    found = question.format(flights.rows_of(flights.table), weather.rows_of(weather.table))
    same(sql, found, question.format(flights.files, weather.files))


def test_older_versions_are_the_files_up_to_a_time_or_a_record(sql: SparkSession, data: Kept) -> None:
    for until in (NOON, "'2013-01-01 16:00:00'"):
        found = f"SELECT * FROM {data.rows_of(f'{data.table} TIMESTAMP AS OF {until}')} ORDER BY id"
        same(sql, found, f"SELECT * FROM {data.files} WHERE timestamp <= {until} ORDER BY id")
    middle = data.wanted.count() // 2
    position = last_position(sql, f"{data.table} WHERE get_json_object(CAST(value AS STRING), '$.id') = {middle}")
    found = f"SELECT * FROM {data.rows_of(f'{data.table} VERSION AS OF {position!r}')} ORDER BY id"
    same(sql, found, f"SELECT * FROM {data.files} WHERE id <= {middle} ORDER BY id")


def test_what_is_inserted_is_there_behind_what_was_there(sql: SparkSession, data: Kept, new: str) -> None:
    """One part from the files, one from another log; and what was there between the two stays a version."""
    earlier = f"(SELECT * FROM {data.files} WHERE timestamp < {NOON})"
    values = f"txid, to_json(struct({', '.join(data.schema.names)}))"
    sql.sql(f"CREATE TABLE {new}")
    sql.sql(f"INSERT INTO {new} (transaction_id, value) SELECT {values} FROM {earlier} ORDER BY id")
    between = last_position(sql, new)
    sql.sql(f"INSERT INTO {new} SELECT value, transaction_id FROM {data.table} WHERE timestamp >= {NOON}")
    in_order(sql, data, new, data.files)
    found = f"SELECT * FROM {data.rows_of(f'{new} VERSION AS OF {between!r}')} ORDER BY id"
    same(sql, found, f"SELECT * FROM {earlier} ORDER BY id")


def test_a_table_made_of_a_query_has_what_the_query_gives_of_the_files(sql: SparkSession, data: Kept, new: str) -> None:
    sql.sql(f"CREATE TABLE {new}_copy AS SELECT value, transaction_id FROM {data.table} WHERE timestamp >= {NOON}")
    in_order(sql, data, f"{new}_copy", f"(SELECT * FROM {data.files} WHERE timestamp >= {NOON})")
    question = "SELECT origin, month, day, count(*) AS rows, max(hour) AS last FROM {} GROUP BY origin, month, day"
    answer = f"SELECT to_json(struct(*)) AS value FROM ({question.format(data.rows_of(data.table))})"
    sql.sql(f"CREATE TABLE {new}_figures TBLPROPERTIES (compressionType = 'lz4') AS {answer}")
    kinds = "origin STRING, month BIGINT, day BIGINT, rows BIGINT, last BIGINT"
    found = f"SELECT from_json(CAST(value AS STRING), '{kinds}') AS row FROM {new}_figures"
    order = "ORDER BY origin, month, day"
    same(sql, f"SELECT row.* FROM ({found}) {order}", f"{question.format(data.files)} {order}")


def test_a_stream_from_table_to_table_gives_every_row_once(
    sql: SparkSession, data: Kept, new: str, checkpoint: Path
) -> None:
    query = (
        sql.readStream.option("maxOffsetsPerTrigger", data.wanted.count() // 2)
        .table(data.table)
        .select("value", "transaction_id")
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .toTable(new)
    )
    assert query.awaitTermination(240)
    assert len([one for one in query.recentProgress if one.numInputRows]) in (2, 3)
    in_order(sql, data, new, data.files)


def last_position(spark: SparkSession, records: str) -> str:
    """The position of the last of some records of a table."""
    order = "ORDER BY segment DESC, entry DESC, slot DESC LIMIT 1"
    [position] = spark.sql(f"SELECT segment, entry, slot FROM {records} {order}").collect()
    return ":".join(map(str, position))


def in_order(spark: SparkSession, data: Kept, table: str, wanted: str) -> None:
    """The records of a table, in the log's order, are these rows of the files in theirs."""
    found = f"SELECT * FROM {table} ORDER BY segment, entry, slot"
    same(spark, f"SELECT * FROM {data.rows_of(f'({found})')}", f"SELECT * FROM {wanted} ORDER BY id")


@pytest.mark.long
def test_a_year_of_flights_is_the_same_behind_a_log(sql: SparkSession, names: Logs) -> None:
    year = kept_flights(sql, names.name("year"), until_ms=2_000_000_000_000)
    assert year.wanted.count() == 336_776
    for question in QUESTIONS.values():
        ask(sql, question, year, year.table)
    batch = sql.read.format("distributedlog").load(year.log)
    assert_df_equality(year.decoded(batch).orderBy("id"), year.wanted, ignore_nullable=True)
