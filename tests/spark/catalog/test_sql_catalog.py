"""SQL over logs on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.quick_start import plain_environment
from pyspark.errors import AnalysisException
from pyspark.sql.functions import udf

from dlspark.spark import enable
from dlspark.spark.catalog.enabling import CATALOG_CLASS
from dlspark.spark.errors import OptionError

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, Row, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[3]
MS = 1_000_000
"""Transaction ids of the tests begin here: a time in 1970."""


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> SparkSession:
    enable(spark)
    enable(spark)
    return spark


@pytest.fixture(scope="module")
def flights(sandbox: Sandbox) -> Iterator[str]:
    """Segments of 100, 100 and 30 records, the last one open; ids MS, MS + 1, ... The name needs no quotes."""
    from helpers.spark.logs import Logs

    logs = Logs(sandbox.uri)
    name = logs.create(logs.name("flights").replace("-", "_"))
    for part, records in enumerate((100, 100, 30)):
        logs.write(name, range(MS + 100 * part, MS + 100 * part + records), keep_open=part == 2)
    yield name
    logs.close()


@pytest.fixture
def new(logs: Logs) -> str:
    """A name that no log has."""
    return logs.name("new").replace("-", "_")


def rows(sql: SparkSession, statement: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in sql.sql(statement).collect()]


def refused(sql: SparkSession, statement: str) -> AnalysisException:
    with pytest.raises(AnalysisException) as caught:
        sql.sql(statement).collect()
    return caught.value


def scan(frame: DataFrame) -> str:
    """The line of the physical plan that reads."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()  # type: ignore[attr-defined]
    return next(line for line in plan.splitlines() if "Scan" in line)


def described(sql: SparkSession, table: str) -> dict[str, str]:
    found: list[Row] = sql.sql(f"DESCRIBE EXTENDED {table}").collect()
    return {row.col_name: row.data_type for row in found}


# ---------------------------------------------------------------------- reading


def test_a_log_is_read_by_name_with_its_columns(sql: SparkSession, flights: str) -> None:
    frame = sql.sql(f"SELECT * FROM dlog.{flights}")
    assert frame.schema.simpleString() == (
        "struct<log:string,segment:bigint,entry:bigint,slot:bigint,sequence_id:bigint,transaction_id:bigint,"
        "timestamp:timestamp,value:binary>"
    )
    read = frame.orderBy("sequence_id").collect()
    assert [row.transaction_id for row in read] == [MS + n for n in range(200)] + [MS + 200 + n for n in range(30)]
    assert bytes(read[7].value) == f"{flights}:{MS + 7}".encode()


def test_a_session_that_takes_timestamp_for_one_without_a_zone_reads_tables(sql: SparkSession, flights: str) -> None:
    asked = f"SELECT min(timestamp), count(*) FROM dlog.{flights} WHERE timestamp >= '1970-01-01 00:16:40.225'"
    usual = rows(sql, asked), sql.table(f"dlog.{flights}").schema, sql.table("dlog.bookies").schema
    sql.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert (rows(sql, asked), sql.table(f"dlog.{flights}").schema, sql.table("dlog.bookies").schema) == usual
        assert usual[0][0][1] == len(sql.table(f"dlog.{flights}").where("transaction_id >= 1000225").collect()) == 5
        assert len(rows(sql, "SELECT registered_at FROM dlog.bookies WHERE registered_at IS NOT NULL")) == 4
    finally:
        sql.conf.unset("spark.sql.timestampType")


def test_columns_filters_and_limits_reach_the_source(sql: SparkSession, flights: str) -> None:
    later = sql.sql(f"SELECT transaction_id FROM dlog.{flights} WHERE timestamp >= timestamp'1970-01-01 00:16:40.225'")
    assert [row[0] for row in later.collect()] == [MS + n for n in range(225, 230)]
    assert "timestamp#" not in scan(later)
    assert '[">=","timestamp",{"us":1000225000}]' in scan(later)
    assert later.rdd.getNumPartitions() == 1

    few = sql.sql(f"SELECT segment, slot FROM dlog.{flights} WHERE segment = 2 AND value IS NOT NULL LIMIT 3")
    assert sorted(map(tuple, few.collect())) == [(2, 0), (2, 1), (2, 2)]
    assert '"limit":3' in scan(few)

    newest = sql.sql(f"SELECT transaction_id FROM dlog.{flights} ORDER BY timestamp DESC LIMIT 2")
    assert [row[0] for row in newest.collect()] == [MS + 229, MS + 228]
    assert '"limit":2,"order":["timestamp"],"descending":true' in scan(newest)


def test_what_python_cannot_keep_stays_with_spark(sql: SparkSession, flights: str) -> None:
    found = rows(sql, f"SELECT count(*) FROM dlog.{flights} WHERE cast(value AS string) LIKE '%5' AND segment < 3")
    assert found == [(20,)]
    assert rows(sql, f"SELECT count(DISTINCT segment), count(timestamp) FROM dlog.{flights}") == [(3, 230)]
    per_segment = f"SELECT segment, count(*) FROM dlog.{flights} GROUP BY segment ORDER BY segment"
    assert rows(sql, per_segment) == [(1, 100), (2, 100), (3, 30)]


def test_rows_are_counted_where_no_column_is_asked_for(sql: SparkSession, flights: str) -> None:
    table = sql.table(f"dlog.{flights}")
    assert table.limit(5).count() == 5
    assert not table.isEmpty()
    assert table.where("segment > 5").isEmpty()
    assert rows(sql, f"SELECT 1 FROM dlog.{flights} WHERE transaction_id >= {MS + 227}") == [(1,)] * 3
    assert rows(sql, f"SELECT EXISTS(SELECT * FROM dlog.{flights})") == [(True,)]
    crossed = f"SELECT count(*) FROM dlog.{flights} CROSS JOIN (SELECT 1 FROM dlog.{flights} WHERE segment = 3)"
    assert rows(sql, crossed) == [(230 * 30,)]
    assert rows(sql, f"SELECT count(*) FROM dlog.{flights}.segments") == [(3,)]
    assert rows(sql, "SELECT count(*), 1 FROM dlog.bookies") == [(4, 1)]


def test_counts_and_ends_come_from_metadata(sql: SparkSession, flights: str) -> None:
    frame = sql.sql(
        f"SELECT count(*), min(transaction_id), unix_millis(max(timestamp)), max(segment) FROM dlog.{flights} "
        f"WHERE transaction_id >= {MS + 50}"
    )
    assert "LocalTableScan" in scan(frame)
    assert tuple(frame.collect()[0]) == (180, MS + 50, MS + 229, 3)
    assert rows(sql, f"SELECT count(*), max(segment) FROM dlog.{flights} WHERE segment > 5") == [(0, None)]


def test_options_of_the_query_hold_for_a_table(sql: SparkSession, flights: str) -> None:
    assert rows(sql, f"SELECT count(*) FROM dlog.{flights} WITH (startingTransactionId = {MS + 220})") == [(10,)]
    frame = sql.read.option("minPartitions", 6).table(f"dlog.{flights}")
    assert frame.rdd.getNumPartitions() >= 6
    assert "no meaning for a table" in str(refused(sql, f"SELECT * FROM dlog.{flights} WITH (log = 'x')"))


def test_older_versions_are_read_by_time_and_by_position(sql: SparkSession, flights: str) -> None:
    assert rows(sql, f"SELECT count(*) FROM dlog.{flights} VERSION AS OF '2:0:0'") == [(101,)]
    by_time = f"SELECT max(transaction_id) FROM dlog.{flights} TIMESTAMP AS OF timestamp'1970-01-01 00:16:40.150'"
    assert rows(sql, by_time) == [(MS + 150,)]
    assert "has no record 9:0:0 yet" in str(refused(sql, f"SELECT * FROM dlog.{flights} VERSION AS OF '9:0:0'"))


def test_options_of_the_reader_travel_in_time_as_sql_does(sql: SparkSession, flights: str) -> None:
    assert sql.read.option("versionAsOf", "2:0:0").table(f"dlog.{flights}").count() == 101
    rows_of_version = sql.read.option("versionAsOf", "2:0:0").table(f"dlog.{flights}").collect()
    assert len(rows_of_version) == 101
    by_time = sql.read.option("timestampAsOf", "1970-01-01 00:16:40.150").table(f"dlog.{flights}")
    assert by_time.selectExpr("max(transaction_id)").collect() == [(MS + 150,)]
    assert max(row.transaction_id for row in by_time.collect()) == MS + 150


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dlog.{t} SET value = 'x'",
        "DELETE FROM dlog.{t} WHERE segment = 1",
        "DELETE FROM dlog.{t}",
        "MERGE INTO dlog.{t} t USING (SELECT 'a' AS value) s ON t.value = s.value WHEN MATCHED THEN DELETE",
        "MERGE INTO dlog.{t} t USING (SELECT 'a' AS value) s ON t.value = s.value "
        "WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT (value) VALUES (s.value)",
    ],
)
def test_statements_that_change_rows_say_that_a_log_only_grows(sql: SparkSession, flights: str, statement: str) -> None:
    error = refused(sql, statement.format(t=flights))
    assert "a log only grows" in str(error)
    assert "INSERT INTO" in str(error)
    assert rows(sql, f"SELECT count(*) FROM dlog.{flights}") == [(230,)]


def test_a_table_has_no_other_format(sql: SparkSession, new: str) -> None:
    for statement in (
        f"CREATE TABLE dlog.{new} USING parquet",
        f"CREATE TABLE dlog.{new} USING delta",
        f"CREATE TABLE dlog.{new} USING parquet AS SELECT 'a' AS value",
    ):
        assert "and not of format" in str(refused(sql, statement)), statement
        assert not sql.catalog.tableExists(f"dlog.{new}")
    sql.sql(f"CREATE TABLE dlog.{new} USING distributedlog")
    sql.range(1).selectExpr("'x' AS value").write.saveAsTable(f"dlog.{new}.saved")
    assert rows(sql, f"SELECT count(*) FROM dlog.{new}.saved") == [(1,)]


def test_properties_are_checked_when_they_are_set(sql: SparkSession, new: str) -> None:
    assert "compressionType" in str(refused(sql, f"CREATE TABLE dlog.{new} TBLPROPERTIES (compressionType = 'gzip')"))
    sql.sql(f"CREATE TABLE dlog.{new}")
    assert "compressionType" in str(
        refused(sql, f"ALTER TABLE dlog.{new} SET TBLPROPERTIES (compressionType = 'gzip')")
    )


def test_what_show_create_table_says_makes_the_same_table(sql: SparkSession, new: str) -> None:
    sql.sql(f"CREATE TABLE dlog.{new} COMMENT 'it''s mine' TBLPROPERTIES (minPartitions = 2, compressionType = 'lz4')")
    statement = sql.sql(f"SHOW CREATE TABLE dlog.{new}").collect()[0][0]
    about = described(sql, f"dlog.{new}")
    sql.sql(f"DROP TABLE dlog.{new}")
    sql.sql(statement)
    assert described(sql, f"dlog.{new}") == about
    assert sql.sql(f"SHOW CREATE TABLE dlog.{new}").collect()[0][0] == statement


def test_statistics_are_told_to_spark(sql: SparkSession, flights: str) -> None:
    assert described(sql, f"dlog.{flights}")["Statistics"].endswith(" bytes, 230 rows")


def test_tasks_of_one_stage_never_wait_for_a_host_that_spark_does_not_know(sql: SparkSession, flights: str) -> None:
    """In a Spark of one process the rest of such a stage was put off for ever."""
    slots = sql.table(f"dlog.{flights}").select("slot")
    assert slots.distinct().union(slots).count() == 10 + 230
    plan = slots._jdf.queryExecution().toRdd()  # type: ignore[attr-defined]
    assert sql.sparkContext._jsc.sc().getPreferredLocs(plan, 0).toString() == "List()"  # type: ignore[attr-defined]


HOSTS = """
import sys
import dlspark.spark
spark = dlspark.spark.builder(sys.argv[1]).master("local-cluster[1,1,512]").config("spark.ui.enabled", "false")
spark = spark.config("spark.executor.memory", "512m").getOrCreate()
plan = spark.table(f"dlog.{sys.argv[2]}")._jdf.queryExecution().toRdd()
print(spark.sparkContext._jsc.sc().getPreferredLocs(plan, 0).toString())
spark.stop()
"""


@pytest.mark.long
def test_preferred_hosts_are_told_to_spark(sandbox: Sandbox, flights: str) -> None:
    program = [sys.executable, "-c", HOSTS, sandbox.uri, flights]
    done = subprocess.run(program, env=plain_environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1] == "List(127.0.0.1)", done.stderr[-3000:]


def test_bounds_that_no_timestamp_can_have_keep_their_meaning(sql: SparkSession, flights: str) -> None:
    ends = {
        "DATE'0001-01-01'": "DATE'9999-12-31'",
        "TIMESTAMP_NTZ'1677-09-21'": "TIMESTAMP'2262-04-12'",
        "TIMESTAMP'-250000-01-01'": "TIMESTAMP'+290000-01-01'",
    }
    tables = {"sql": sql.table(f"dlog.{flights}"), "format": sql.read.format("distributedlog").load(flights)}
    found, wanted = {}, {}
    for (low, high), (name, table) in itertools.product(ends.items(), tables.items()):
        conditions = {
            f"timestamp > {low} AND timestamp <= {high}": 230,
            f"NOT (timestamp BETWEEN {low} AND {high}) OR timestamp IN ({low}, {high})": 0,
        }
        if name == "sql":
            conditions |= {
                f"timestamp IN ({low}, {high}, TIMESTAMP'1970-01-01 00:16:40Z')": 1,
                f"timestamp = {high}": 0,
                f"timestamp <=> {low}": 0,
                f"timestamp >= {high}": 0,
                f"timestamp < {low}": 0,
            }
        for condition, rows_ in conditions.items():
            found[name, condition] = table.where(condition).count()
            wanted[name, condition] = rows_
    assert found == wanted


def test_a_stream_reads_and_writes_tables(sql: SparkSession, flights: str, new: str, checkpoint: Path) -> None:
    query = (
        sql.readStream.option("maxOffsetsPerTrigger", 100)
        .table(f"dlog.{flights}")
        .select("transaction_id", "value")
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .toTable(f"dlog.copies.{new}")
    )
    assert query.awaitTermination(120)
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [100, 100, 30]
    assert query.lastProgress["sink"]["description"] == f"DistributedLog[dlog.copies.{new}]"
    assert rows(sql, f"SELECT count(*), max(segment) FROM dlog.copies.{new}") == [(230, 1)], "small batches share it"


# ---------------------------------------------------------------------- writing


def test_rows_are_inserted_as_a_batch_appends_them(sql: SparkSession, flights: str, new: str) -> None:
    sql.sql(f"CREATE TABLE dlog.{new} TBLPROPERTIES (compressionType = 'lz4', ensembleSize = 3)")
    sql.sql(f"INSERT INTO dlog.{new} (value, transaction_id) VALUES ('a', 5), ('b', 6)")
    sql.sql(f"INSERT INTO dlog.{new} SELECT value, transaction_id FROM dlog.{flights} WHERE segment = 3")
    sql.table(f"dlog.{flights}").where("segment = 1").select("value").limit(4).writeTo(f"dlog.{new}").append()
    assert rows(sql, f"SELECT count(*), min(transaction_id) FROM dlog.{new}") == [(36, 5)]
    overwritten = refused(sql, f"INSERT OVERWRITE dlog.{new} SELECT 'x' AS value")
    assert "a log only grows" in str(overwritten)
    assert overwritten.getCondition() == "PYTHON_DATA_SOURCE_ERROR"
    assert rows(sql, f"SELECT count(*) FROM dlog.{new}") == [(36,)]


def test_a_cached_table_is_read_again_after_each_write_of_the_session(
    sql: SparkSession, flights: str, new: str, checkpoint: Path
) -> None:
    sql.sql(f"CREATE TABLE dlog.{new}")
    sql.sql(f"INSERT INTO dlog.{new} (value) VALUES ('a'), ('b')")
    counted = f"SELECT count(*), count(DISTINCT entry, slot, segment), sum(length(value)) > 0 FROM dlog.{new}"
    sql.sql(f"CACHE TABLE dlog.{new}")
    kept = sql.table(f"dlog.{new}").where("value IS NOT NULL").cache()
    assert (rows(sql, counted), kept.count()) == ([(2, 2, True)], 2)
    sql.sql(f"INSERT INTO dlog.{new} (value) VALUES ('c')")
    assert (rows(sql, counted), kept.count()) == ([(3, 3, True)], 3)
    source = sql.readStream.table(f"dlog.{flights}").where("segment = 3").select("value")
    query = source.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert query.toTable(f"dlog.{new}").awaitTermination(120)
    assert (rows(sql, counted), kept.count()) == ([(33, 33, True)], 33)


def test_a_cached_table_that_was_deleted_and_made_again_is_another_one(sql: SparkSession, logs: Logs, new: str) -> None:
    logs.write(logs.create(new), range(4))
    counted = f"SELECT count(*), min(transaction_id), count(DISTINCT value) FROM dlog.{new}"
    sql.sql(f"CACHE TABLE dlog.{new}")
    assert rows(sql, counted) == [(4, 0, 4)]
    logs.delete(new)
    logs.create(new)
    assert rows(sql, counted) == [(0, None, 0)]
    logs.write(new, [7])
    assert rows(sql, counted) == [(1, 7, 1)]


def test_a_frame_of_a_table_reads_in_each_query_what_the_log_has_by_then(
    sql: SparkSession, logs: Logs, new: str
) -> None:
    logs.write(logs.create(new), range(4))
    frame = sql.table(f"dlog.{new}")
    few = frame.where("transaction_id > 2")
    assert (frame.count(), few.count(), frame.crossJoin(few.select("value")).count()) == (4, 1, 4)
    logs.write(new, range(4, 6))
    assert (frame.count(), few.count(), frame.crossJoin(few.select("value")).count()) == (6, 3, 18)
    version = sql.sql(f"SELECT * FROM dlog.{new} VERSION AS OF '1:0:1'")
    assert (version.count(), frame.union(version).count()) == (2, 8)


def test_a_table_is_created_from_a_query_and_never_replaced(sql: SparkSession, flights: str, new: str) -> None:
    sql.sql(f"CREATE TABLE dlog.ctas.{new} AS SELECT value, transaction_id FROM dlog.{flights} WHERE segment = 2")
    assert rows(sql, f"SELECT count(*) FROM dlog.ctas.{new}") == [(100,)]
    for statement in (
        f"CREATE OR REPLACE TABLE dlog.ctas.{new} AS SELECT 'x' AS value",
        f"REPLACE TABLE dlog.ctas.{new}",
    ):
        assert "cannot be replaced" in str(refused(sql, statement))
    with pytest.raises(AnalysisException, match="cannot be replaced"):
        sql.range(1).selectExpr("'x' AS value").write.mode("overwrite").saveAsTable(f"dlog.ctas.{new}")
    assert rows(sql, f"SELECT count(*) FROM dlog.ctas.{new}") == [(100,)]
    sql.range(3).selectExpr("'x' AS value").write.mode("append").saveAsTable(f"dlog.ctas.{new}")
    assert rows(sql, f"SELECT count(*) FROM dlog.ctas.{new}") == [(103,)]


def test_a_query_that_fails_leaves_no_table_of_it(sql: SparkSession, new: str) -> None:
    with pytest.raises(Exception, match="not today"):
        sql.sql(f"CREATE TABLE dlog.{new} AS SELECT cast(raise_error('not today') AS string) AS value").collect()
    assert not sql.catalog.tableExists(f"dlog.{new}")
    assert "interval" in str(refused(sql, f"CREATE TABLE dlog.{new} AS SELECT INTERVAL 1 DAY AS a"))
    assert not sql.catalog.tableExists(f"dlog.{new}")


def test_what_others_wrote_stays_when_the_query_that_created_the_log_fails(
    sql: SparkSession, new: str, sandbox: Sandbox
) -> None:
    uri = sandbox.uri

    def write_and_fail(record: int) -> str:
        import dlspark

        with dlspark.Namespace.open(uri) as namespace, namespace.open_log(new) as log, log.open_writer() as writer:
            writer.write(1, b"somebody else's").result()
        raise ValueError("not today")

    query = sql.range(0, 1, 1, 1).select(udf(write_and_fail, "string", useArrow=False)("id").alias("value"))
    with pytest.raises(Exception, match="not today"):
        query.writeTo(f"dlog.{new}").create()
    assert rows(sql, f"SELECT count(*), max(CAST(value AS string)) FROM dlog.{new}") == [(1, "somebody else's")]


# ---------------------------------------------------------------------- tables and namespaces


def test_a_table_is_created_described_changed_renamed_and_dropped(sql: SparkSession, new: str) -> None:
    sql.sql(f"CREATE TABLE dlog.life.{new} COMMENT 'born' TBLPROPERTIES (maxOffsetsPerTrigger = 5)")
    assert "already exists" in str(refused(sql, f"CREATE TABLE dlog.life.{new}"))
    sql.sql(f"CREATE TABLE IF NOT EXISTS dlog.life.{new}")
    about = described(sql, f"dlog.life.{new}")
    assert (about["Comment"], about["Provider"], about["Catalog"]) == ("born", "distributedlog", "dlog")
    assert about["Table Properties"] == "[maxOffsetsPerTrigger=5]"
    sql.sql(f"ALTER TABLE dlog.life.{new} SET TBLPROPERTIES (minPartitions = 2)")
    sql.sql(f"ALTER TABLE dlog.life.{new} UNSET TBLPROPERTIES (maxOffsetsPerTrigger)")
    assert "cannot be a property" in str(refused(sql, f"ALTER TABLE dlog.life.{new} SET LOCATION '/elsewhere'"))
    assert rows(sql, f"SHOW TBLPROPERTIES dlog.life.{new}") == [("minPartitions", "2")]
    assert "Did you mean minPartitions" in str(
        refused(sql, f"ALTER TABLE dlog.life.{new} SET TBLPROPERTIES (minPartition = 2)")
    )
    assert "declares no schema" in str(refused(sql, f"ALTER TABLE dlog.life.{new} ADD COLUMN a INT"))
    sql.sql(f"ALTER TABLE dlog.life.{new} RENAME TO dlog.{new}.renamed")
    assert rows(sql, f"SHOW TABLES IN dlog.{new}") == [(new, "renamed", False)]
    sql.sql(f"DROP TABLE dlog.{new}.renamed")
    gone = refused(sql, f"SELECT * FROM dlog.{new}.renamed")
    assert gone.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
    assert refused(sql, f"DROP TABLE dlog.{new}.renamed").getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
    sql.sql(f"DROP TABLE IF EXISTS dlog.{new}.renamed")


def test_a_log_that_is_being_written_is_not_dropped(sql: SparkSession, flights: str) -> None:
    error = refused(sql, f"DROP TABLE dlog.{flights}")
    assert "OwnershipAcquireFailedError" in str(error)
    assert rows(sql, f"SELECT count(*) FROM dlog.{flights}") == [(230,)]


def test_namespaces_are_what_names_of_logs_begin_with(sql: SparkSession, logs: Logs, flights: str) -> None:
    top = logs.name("top")
    logs.write(logs.create(f"{top}/below/deep-log"), [1, 2])
    assert (f"`{top}`",) in rows(sql, "SHOW NAMESPACES IN dlog")
    assert ("", flights, False) in rows(sql, "SHOW TABLES IN dlog")
    assert rows(sql, f"SHOW NAMESPACES IN dlog.`{top}`") == [(f"`{top}`.below",)]
    assert rows(sql, f"SHOW TABLES IN dlog.`{top}`.below LIKE 'deep*'") == [(f"`{top}`.below", "deep-log", False)]
    assert [one.name for one in sql.catalog.listTables(f"dlog.`{top}`.below")] == ["deep-log"]
    assert sql.catalog.tableExists(f"dlog.`{top}`.below.`deep-log`")
    try:
        sql.sql(f"USE dlog.`{top}`.below")
        assert rows(sql, "SELECT count(*) FROM `deep-log`") == [(2,)]
    finally:
        sql.sql("USE spark_catalog.default")
    assert refused(sql, "SHOW TABLES IN dlog.nowhere").getCondition() == "SCHEMA_NOT_FOUND"
    assert refused(sql, "USE dlog.nowhere").getCondition() == "SCHEMA_NOT_FOUND"
    assert "cannot be empty" in str(refused(sql, "CREATE NAMESPACE dlog.nowhere"))
    assert refused(sql, f"DROP NAMESPACE dlog.`{top}` CASCADE").getCondition() == "SCHEMA_NOT_EMPTY"


def test_metadata_tables_are_tables_of_the_catalog(sql: SparkSession, flights: str) -> None:
    found = rows(sql, f"SELECT segment, state, records FROM dlog.{flights}.segments WHERE segment > 1 ORDER BY segment")
    assert found == [(2, "completed", 100), (3, "in progress", 30)]
    assert rows(sql, "SELECT count(*) FROM dlog.bookies WHERE state = 'writable'") == [(4,)]
    assert rows(sql, f"SELECT records FROM dlog.logs WHERE log = '{flights}'") == [(230,)]
    assert "can only be read" in str(refused(sql, "DROP TABLE dlog.bookies"))


# ---------------------------------------------------------------------- switching on


def test_a_name_has_one_namespace_in_a_session(sql: SparkSession) -> None:
    enable(sql, "other", uri="distributedlog://127.0.0.1:1/none")
    assert sql.conf.get("spark.sql.catalog.other") == CATALOG_CLASS
    for name in ("spark_catalog", "a b", "1st"):
        with pytest.raises(OptionError, match="cannot name a catalog"):
            enable(sql, name)
    with pytest.raises(OptionError, match="Choose another name"):
        enable(sql, "other", uri="distributedlog://127.0.0.1:2/none")


def test_a_namespace_that_cannot_be_reached_is_told_quickly(sql: SparkSession) -> None:
    enable(sql, "unreachable", uri="distributedlog://127.0.0.1:1/none")
    began = time.monotonic()
    error = refused(sql, "SHOW TABLES IN unreachable")
    assert "Failed to list tables of `unreachable` in Python data source distributedlog" in str(error)
    assert "ZooKeeper of distributedlog://127.0.0.1:1/none cannot be reached" in str(error)
    assert time.monotonic() - began < 60


SCRIPT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("RESULT", spark.sql("SHOW TABLES IN dlog.{namespace}").collect())
spark.stop()
"""


def test_the_conf_file_of_the_repository_works(sandbox: Sandbox, logs: Logs) -> None:
    namespace = logs.name("conf").replace("-", "_")
    logs.create(f"{namespace}/found")
    environment = {"SPARK_CONF_DIR": ".", "DLSPARK_URI": sandbox.uri, "PYSPARK_PYTHON": sys.executable}
    told = result(SCRIPT.format(namespace=namespace), ROOT, environment)
    assert f"RESULT [Row(namespace='{namespace}', tableName='found', isTemporary=False)]" in told


MISSING = """
from pyspark.sql import SparkSession
from dlspark.spark import enable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
enable(spark, uri="distributedlog://127.0.0.1:1/none")
try:
    spark.sql("SELECT * FROM dlog.flights")
except Exception as error:
    print("RESULT", error.getCondition(), error)
spark.stop()
"""
HIDDEN = """
import sys
from pathlib import Path
sys.path[:] = [place for place in sys.path if not Path(place, "pyspark_distributedlog.py").exists()]
"""


def test_a_python_that_has_no_dlspark_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    told = result(MISSING, tmp_path, {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)})
    assert "RESULT PYTHON_DATA_SOURCE_ERROR" in told
    assert "Failed to load `dlog.flights`" in told
    assert "has no dlspark" in told
    assert "PYSPARK_PYTHON" in told


def result(script: str, place: Path, environment: dict[str, str]) -> str:
    """What a program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "RESULT" in done.stdout, done.stderr
    return done.stdout
