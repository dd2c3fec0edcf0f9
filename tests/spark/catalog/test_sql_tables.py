"""Tables with columns of their own, in SQL on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal as D
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

import dlspark
from dlspark.spark import enable
from dlspark.tables.declaration import Declaration

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ORDERS = """(
    id BIGINT NOT NULL COMMENT 'number of the order',
    item STRING DEFAULT 'no\\'ne',
    price DECIMAL(9,2) DEFAULT 1.5,
    at TIMESTAMP NOT NULL,
    to STRUCT<street: STRING NOT NULL COMMENT 'and number', tags: ARRAY<STRING>>,
    due DATE DEFAULT DATE '2026-12-24',
    rate DOUBLE DEFAULT 1,
    key BINARY DEFAULT X'00FF'
)"""


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> SparkSession:
    enable(spark)
    return spark


@pytest.fixture
def table(sql: SparkSession, logs: Logs) -> Iterator[str]:
    """Name a table that is not there yet, and drop it in the end."""
    name = logs.name("orders").replace("-", "_")
    yield name
    sql.sql(f"DROP TABLE IF EXISTS dlog.{name}")


def rows(sql: SparkSession, statement: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in sql.sql(statement).collect()]


def refused(sql: SparkSession, statement: str) -> str:
    with pytest.raises(AnalysisException) as caught:
        sql.sql(statement).collect()
    return str(caught.value)


def create(sql: SparkSession, table: str) -> None:
    sql.sql(f"CREATE TABLE dlog.{table} {ORDERS} COMMENT 'sold' TBLPROPERTIES (timestamp = 'at', minPartitions = '2')")


def declared(sandbox: Sandbox, log: str) -> Declaration:
    """What the log declares, as the library reads it."""
    with dlspark.Namespace.open(sandbox.uri) as namespace, namespace.open_log(log) as opened:
        found = opened.schema()
    assert found is not None
    return found


# ---------------------------------------------------------------------- CREATE, DESCRIBE, SHOW


def test_what_show_create_table_says_makes_an_equal_table(sql: SparkSession, sandbox: Sandbox, table: str) -> None:
    create(sql, table)
    found = declared(sandbox, table)
    ((said,),) = rows(sql, f"SHOW CREATE TABLE dlog.{table}")
    assert "id BIGINT NOT NULL COMMENT 'number of the order'" in str(said)
    about = {tuple(row) for row in sql.sql(f"DESCRIBE EXTENDED dlog.{table}").collect()}
    assert {("id", "bigint", "number of the order"), ("price", "decimal(9,2)", "1.50BD")} <= about
    sql.sql(f"DROP TABLE dlog.{table}")
    zone = sql.conf.get("spark.sql.session.timeZone")
    sql.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        sql.sql(str(said))
    finally:
        sql.conf.set("spark.sql.session.timeZone", zone)
    again = declared(sandbox, table)
    assert again.id != found.id, "ids of fields mean something in one declaration alone"
    assert replace(again, id=found.id) == found
    assert rows(sql, f"SHOW CREATE TABLE dlog.{table}") == [(said,)]
    shown = {"format": "json", "minPartitions": "2", "strict": "false", "timestamp": "at"}
    assert dict(rows(sql, f"SHOW TBLPROPERTIES dlog.{table}")) == shown
    names = ["id", "item", "price", "at", "to", "due", "rate", "key"]
    assert [row[0] for row in rows(sql, f"SHOW COLUMNS IN dlog.{table}")] == names == sql.table(f"dlog.{table}").columns


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("(at TIMESTAMP DEFAULT current_timestamp())", "A default is one constant"),
        ("(a INT DEFAULT 1 + 1)", "A default is one constant"),
        ("(a ARRAY<INT> DEFAULT array(1))", "A default is one constant"),
        ("(a INT PRIMARY KEY)", "does not support table constraint"),
        ("(a BIGINT GENERATED ALWAYS AS IDENTITY)", "does not support identity column"),
        ("(a INT, b INT GENERATED ALWAYS AS (a))", "does not support generated columns"),
    ],
)
def test_columns_that_no_log_can_have_are_refused_and_nothing_is_made(
    sql: SparkSession, table: str, columns: str, says: str
) -> None:
    assert says in refused(sql, f"CREATE TABLE dlog.{table} {columns}")
    assert "TABLE_OR_VIEW_NOT_FOUND" in refused(sql, f"DESCRIBE dlog.{table}")


# ---------------------------------------------------------------------- ALTER TABLE


def test_columns_are_changed_by_statements(sql: SparkSession, sandbox: Sandbox, table: str) -> None:
    create(sql, table)
    for statement in (
        "ADD COLUMNS (note STRING COMMENT 'free text' FIRST, count INT NOT NULL DEFAULT 1 AFTER id)",
        "ADD COLUMN to.town STRING",
        "DROP COLUMNS (due, to.tags)",
        "DROP COLUMN IF EXISTS due",
        "RENAME COLUMN item TO thing",
        "ALTER COLUMN price TYPE DECIMAL(11,2)",
        "ALTER COLUMN count TYPE BIGINT",
        "ALTER COLUMN id DROP NOT NULL",
        "ALTER COLUMN id COMMENT 'a number', at COMMENT 'when'",
        "ALTER COLUMN price FIRST",
        "ALTER COLUMN to.town FIRST",
        "SET TBLPROPERTIES (strict = 'true')",
    ):
        sql.sql(f"ALTER TABLE dlog.{table} {statement}")
    found = declared(sandbox, table)
    assert str(found.current) == (
        "price decimal(11, 2), note string, id long, count long not null, thing string, at timestamptz not null, "
        "to struct<town: string, street: string>, rate double, key binary"
    )
    assert (found.current.id, found.strict) == (10, True)  # what changes nothing makes no version
    assert [(one.name, one.doc) for one in found.current.fields if one.doc] == [
        ("note", "free text"), ("id", "a number"), ("at", "when"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("ALTER COLUMN price TYPE STRING", "add another column"),
        ("ALTER COLUMN item SET NOT NULL", "non-nullable"),
        ("ALTER COLUMN item SET DEFAULT 'x'", "cannot be changed"),
        ("ALTER COLUMN item DROP DEFAULT", "cannot be changed"),
        ("REPLACE COLUMNS (a INT)", "nothing was changed"),
        ("CLUSTER BY (id)", "cannot be changed by ClusterBy"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    sql: SparkSession, sandbox: Sandbox, changed: str, statement: str, says: str
) -> None:
    before = declared(sandbox, changed)
    assert says in refused(sql, f"ALTER TABLE dlog.{changed} {statement}")
    assert declared(sandbox, changed) == before


@pytest.fixture(scope="module")
def changed(sql: SparkSession) -> Iterator[str]:
    """Make a table whose columns no statement of a test changes."""
    create(sql, "orders_that_stay")
    yield "orders_that_stay"
    sql.sql("DROP TABLE dlog.orders_that_stay")


# ---------------------------------------------------------------------- rows

TO = "named_struct('street', 'High 1', 'tags', array('a', NULL))"


def day(number: int, month: int = 11) -> date:
    return date(2026, month, number)


def write_bytes(sandbox: Sandbox, log: str, *records: bytes) -> None:
    """Append records as a program does that knows no schema."""
    with (
        dlspark.Namespace.open(sandbox.uri) as namespace,
        namespace.open_log(log) as opened,
        opened.open_writer() as writer,
    ):
        for record in records:
            writer.write(writer.last_txid + 1, record).result()


def test_rows_are_written_by_position_by_name_and_with_defaults(sql: SparkSession, table: str) -> None:
    create(sql, table)
    for statement in (
        f"VALUES (1, 'tea', 4.5, TIMESTAMP '2026-11-01 12:00:00', {TO}, DEFAULT, 2, X'01')",
        "(at, ID) VALUES (DATE '2026-11-02', 2)",
        "BY NAME SELECT 'milk' AS item, TIMESTAMP '2026-11-03 00:00:00' AS at, 3 AS id, NULL AS price",
    ):
        sql.sql(f"INSERT INTO dlog.{table} {statement}")
    assert rows(sql, f"SELECT id, item, price, date(at), to.tags[0], due, rate, hex(key) FROM dlog.{table}") == [
        (1, "tea", D("4.50"), day(1), "a", day(24, 12), 2.0, "01"),
        (2, "no'ne", D("1.50"), day(2), None, day(24, 12), 1.0, "00FF"),
        (3, "milk", None, day(3), None, day(24, 12), 1.0, "00FF"),
    ]
    ids = f"SELECT id, _log.segment, _log.transaction_id, _error FROM dlog.{table} WHERE at > '2026-11-02'"
    assert rows(sql, ids) == [(3, 3, 1_793_664_000_000, None)]
    assert rows(sql, f"SELECT count(*) FROM dlog.{table}") == [(3,)]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("(at) VALUES (TIMESTAMP '2026-11-01')", "Column id is NOT NULL"),
        ("(id, at) SELECT nullif(id, 3), now() FROM range(9)", "Column id is NOT NULL"),
        ("(id, at, to) VALUES (1, now(), named_struct('street', NULL, 'tags', NULL))", "NULL"),
        ("(id, at, price) VALUES (1, now(), 12345678.5)", "CAST_OVERFLOW_IN_TABLE_INSERT"),
        ("(id, at, price) VALUES (1, now(), true)", "INCOMPATIBLE_DATA_FOR_TABLE"),
        ("VALUES (1, 'tea')", "not enough data columns"),
    ],
)
def test_a_statement_with_a_row_that_does_not_fit_writes_nothing(
    sql: SparkSession, changed: str, statement: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        sql.sql(f"INSERT INTO dlog.{changed} {statement}")
    assert rows(sql, f"SELECT count(*) FROM dlog.{changed}") == [(0,)]


def test_frames_are_appended_and_streams_copy_a_table_with_where_its_rows_are(
    sql: SparkSession, table: str, checkpoint: Path
) -> None:
    sql.sql(f"CREATE TABLE dlog.{table} (id BIGINT NOT NULL, at TIMESTAMP NOT NULL, item STRING DEFAULT 'none')")
    frame = sql.range(3).selectExpr("timestamp_millis(id) AS at", "id")
    frame.writeTo(f"dlog.{table}").append()
    frame.write.mode("append").saveAsTable(f"dlog.{table}")
    frame.selectExpr("id + 10", "at", "'x'").write.insertInto(f"dlog.{table}")
    copied = sql.readStream.table(f"dlog.{table}").selectExpr("*", "_log.segment", "_error")
    writer = copied.where("item = 'none'").drop("_error").writeStream.trigger(availableNow=True)
    target = f"dlog.{table}.copy"
    writer.option("checkpointLocation", str(checkpoint)).toTable(target).awaitTermination()
    assert sql.table(target).columns == ["id", "at", "item", "segment"]
    original = rows(sql, f"SELECT id, item, _log.segment FROM dlog.{table} WHERE id < 10")
    assert {item for _, item, _ in original} == {"none"}
    assert sorted(original) == sorted(rows(sql, f"SELECT id, item, segment FROM {target}"))  # type: ignore[type-var]
    assert len(original) == 6


def test_a_query_makes_a_table_with_its_columns_or_none(sql: SparkSession, table: str, sandbox: Sandbox) -> None:
    query = "SELECT id, CAST(id AS TINYINT) AS small, timestamp_millis(id) AS at FROM range(5)"
    sql.sql(f"CREATE TABLE dlog.{table} TBLPROPERTIES (format = 'avro', timestamp = 'at') AS {query}")
    assert str(declared(sandbox, table).current) == "id long, small int, at timestamptz not null"
    assert rows(sql, f"SELECT sum(id), sum(small), max(_log.transaction_id) FROM dlog.{table}") == [(10, 10, 4)]
    sql.sql(f"DROP TABLE dlog.{table}")
    with pytest.raises(Exception, match="Column at is NOT NULL"):
        sql.sql(
            f"CREATE TABLE dlog.{table} TBLPROPERTIES (timestamp = 'at') AS SELECT 1 AS a, nullif(now(), now()) AS at"
        )
    assert not sql.catalog.tableExists(f"dlog.{table}")
    sql.sql(f"CREATE TABLE dlog.{table} TBLPROPERTIES (format = 'arrow') AS SELECT 'v' AS value")
    assert rows(sql, f"SELECT * FROM dlog.{table}") == [("v",)]


def test_records_that_do_not_fit_are_rows_that_say_why_unless_the_table_is_strict(
    sql: SparkSession, table: str, sandbox: Sandbox
) -> None:
    sql.sql(f"CREATE TABLE dlog.{table} (id BIGINT NOT NULL)")
    sql.sql(f"INSERT INTO dlog.{table} VALUES (1)")
    write_bytes(sandbox, table, b"no JSON", b'{"id": 2}')
    assert rows(sql, f"SELECT * FROM dlog.{table}") == [(1,), (None,), (2,)]
    misfits = f"SELECT _log.value, length(_error) > 0 FROM dlog.{table} WHERE _error IS NOT NULL AND id IS NULL"
    assert [(bytes(value), said) for value, said in rows(sql, misfits)] == [(b"no JSON", True)]  # type: ignore[arg-type]
    assert rows(sql, f"SELECT count(*), count(id) FROM dlog.{table}") == [(3, 2)]
    sql.sql(f"ALTER TABLE dlog.{table} SET TBLPROPERTIES (strict = 'true')")
    with pytest.raises(Exception, match="does not fit the log's schema"):
        rows(sql, f"SELECT * FROM dlog.{table}")
    sql.sql(f"ALTER TABLE dlog.{table} SET TBLPROPERTIES (columns = 'raw')")
    assert rows(sql, f"SELECT count(*), min(length(value)) FROM dlog.{table}") == [(3, 7)]
    sql.sql(f"INSERT INTO dlog.{table} (value) VALUES ('bytes')")
    sql.sql(f"ALTER TABLE dlog.{table} UNSET TBLPROPERTIES ('columns')")
    assert sql.table(f"dlog.{table}").columns == ["id"]


def test_an_older_version_a_cached_table_and_a_frame_keep_their_rows_and_take_their_columns(
    sql: SparkSession, table: str
) -> None:
    sql.sql(f"CREATE TABLE dlog.{table} (id BIGINT NOT NULL, at TIMESTAMP NOT NULL) TBLPROPERTIES (timestamp = 'at')")
    sql.sql(f"INSERT INTO dlog.{table} SELECT id, timestamp_millis(id) FROM range(4)")
    frame = sql.table(f"dlog.{table}")
    sql.sql(f"CACHE TABLE dlog.{table}")
    sql.sql(f"ALTER TABLE dlog.{table} ADD COLUMN note STRING DEFAULT 'old' FIRST")
    sql.sql(f"INSERT INTO dlog.{table} VALUES ('new', 9, timestamp_millis(9))")
    assert rows(sql, f"SELECT note, count(*) FROM dlog.{table} GROUP BY ALL ORDER BY 1") == [("new", 1), ("old", 4)]
    sql.sql(f"UNCACHE TABLE dlog.{table}")
    assert [(frame.columns, frame.count())] == [(["id", "at"], 5)]
    assert rows(sql, f"SELECT note, id FROM dlog.{table} TIMESTAMP AS OF timestamp_millis(1)") == [
        ("old", 0),
        ("old", 1),
    ]
    ((segment, entry, slot),) = rows(sql, f"SELECT _log.segment, _log.entry, _log.slot FROM dlog.{table} WHERE id = 2")
    older = rows(sql, f"SELECT max(id), max(note) FROM dlog.{table} VERSION AS OF '{segment}:{entry}:{slot}'")
    assert older == [(2, "old")]
