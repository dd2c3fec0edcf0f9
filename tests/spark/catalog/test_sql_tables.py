"""Tables with columns of their own, in SQL on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

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
    from dlspark.core.sync.namespace import Namespace

    with Namespace.open(sandbox.uri) as namespace, namespace.open_log(log) as opened:
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
    assert declared(sandbox, table) == found
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
        ("(a INTERVAL DAY)", "no column of a log can be"),
        ("(a STRING COLLATE UTF8_LCASE)", "no column of a log can be"),
        ("(a INT) PARTITIONED BY (a)", "cannot be partitioned by a"),
        ("(a INT PRIMARY KEY)", "does not support table constraint"),
        ("(a BIGINT GENERATED ALWAYS AS IDENTITY)", "does not support identity column"),
        ("(a INT, b INT GENERATED ALWAYS AS (a))", "does not support generated columns"),
        ("(a INT) TBLPROPERTIES (timestamp = 'b')", "There is no column 'b'"),
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
        ("ALTER COLUMN id TYPE INT", "INT"),  # Spark's own rule comes first
        ("ALTER COLUMN item SET NOT NULL", "non-nullable"),
        ("ALTER COLUMN item SET DEFAULT 'x'", "cannot be changed"),
        ("ALTER COLUMN item DROP DEFAULT", "cannot be changed"),
        ("ADD COLUMN n INT NOT NULL", "Give it a default"),
        ("ADD COLUMN n INTERVAL DAY", "no column of a log can be"),
        ("DROP COLUMN at", "gives each record its transaction id"),
        ("REPLACE COLUMNS (a INT)", "nothing was changed"),
        ("CLUSTER BY (id)", "cannot be changed by ClusterBy"),
        ("SET TBLPROPERTIES (format = 'avro')", "for good"),
        ("UNSET TBLPROPERTIES ('timestamp')", "for good"),
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
