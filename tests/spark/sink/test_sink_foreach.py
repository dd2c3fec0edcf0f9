"""`ForeachLogWriter`: groups of rows appear whole, at least once, whoever else writes the log."""

from __future__ import annotations

import pickle
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pytest
from helpers.spark.sink_driver import read_values
from helpers.spark.typed_frames import bodies, declaration_of, declare
from pyspark.sql import DataFrame, Row

from dlspark.core.runtime import Runtime
from dlspark.spark import ForeachLogWriter
from dlspark.spark.errors import BatchRefusedError, OptionError, SchemaError, TransactionOrderError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.session import open_session
from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

NEVER_MS = 1 << 40


@pytest.fixture
def log() -> str:
    return f"foreach-{uuid.uuid4().hex[:8]}"


def values(sandbox: Sandbox, log: str) -> list[bytes]:
    return read_values(sandbox.uri, log)[1]


def staged_jobs(sandbox: Sandbox) -> set[str]:
    async def names() -> set[str]:
        session = await open_session(Options({"uri": sandbox.uri}, Scope.SINK_STREAM))
        return {name for name in await session.sinks.sinks() if await session.sinks.staged(name)}

    return Runtime.shared().run(names())


@pytest.fixture
def staged_by_others(sandbox: Sandbox) -> set[str]:
    """What failed batches of the tests before have left in the servers that tests share."""
    return staged_jobs(sandbox)


def as_in_a_task(writer: ForeachLogWriter, partition: int = 0, epoch: int = 0) -> ForeachLogWriter:
    """A copy, as Spark gives each task one."""
    copy: ForeachLogWriter = pickle.loads(pickle.dumps(writer))
    assert copy.open(partition, epoch)
    return copy


def go_on_for_ever(writer: ForeachLogWriter) -> NoReturn:
    while True:
        writer.process(Row(value="never"))


def test_rows_are_there_when_the_task_has_ended_in_order_and_in_groups(
    sandbox: Sandbox, log: str, staged_by_others: set[str]
) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_rows=4, group_ms=NEVER_MS))
    for number in range(10):
        writer.process(Row(value=f"row {number}"))
    assert values(sandbox, log) == [f"row {number}".encode() for number in range(8)]
    writer.close(None)
    assert values(sandbox, log) == [f"row {number}".encode() for number in range(10)]
    assert staged_jobs(sandbox) <= staged_by_others


def test_a_group_ends_by_bytes_or_with_time_as_well(sandbox: Sandbox, log: str) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_bytes=1000, group_ms=NEVER_MS))
    for size in (999, 1, 500):
        writer.process(Row(value=bytearray(size)))
    assert len(values(sandbox, log)) == 2
    writer.close(None)
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_ms=0))
    writer.process(Row(value="at once"))
    assert values(sandbox, log)[-1] == b"at once"
    writer.close(None)
    assert len(values(sandbox, log)) == 4


def test_a_task_that_fails_publishes_nothing_more_and_one_that_runs_again_writes_again(
    sandbox: Sandbox, log: str
) -> None:
    writer = ForeachLogWriter(log, uri=sandbox.uri, group_rows=2, group_ms=NEVER_MS)
    task = as_in_a_task(writer)
    for number in range(3):
        task.process(Row(value=f"{number}"))
    task.close(RuntimeError("the task failed"))
    assert values(sandbox, log) == [b"0", b"1"]
    task = as_in_a_task(writer)
    for number in range(3):
        task.process(Row(value=f"{number}"))
    task.close(None)
    assert values(sandbox, log) == [b"0", b"1", b"0", b"1", b"2"]  # at least once


def test_a_group_is_published_in_time_though_no_other_row_comes(sandbox: Sandbox, log: str) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_ms=20))
    for row in ("first", "second"):
        writer.process(Row(value=row))
        while values(sandbox, log)[-1:] != [row.encode()]:
            assert writer._task is not None
            assert writer._task._failure is None
    writer.close(None)
    assert values(sandbox, log) == [b"first", b"second"]


def test_a_group_that_could_not_be_published_in_time_fails_the_task(sandbox: Sandbox, log: str) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_ms=20))
    writer.process(Row(value=None))
    with pytest.raises(BatchRefusedError, match="value is null"):
        go_on_for_ever(writer)
    with pytest.raises(BatchRefusedError, match="value is null"):
        writer.close(None)  # whoever swallows the first error loses no rows without another
    assert values(sandbox, log) == []


def test_a_task_without_rows_makes_no_log(sandbox: Sandbox, log: str) -> None:
    as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri)).close(None)
    assert values(sandbox, log) == []


def test_tasks_of_one_log_take_turns_and_rows_go_by_column_or_hash(sandbox: Sandbox, log: str) -> None:
    one = ForeachLogWriter(log, uri=sandbox.uri, group_rows=5)
    routed = ForeachLogWriter(log + "-{}", uri=sandbox.uri, numLogs=3, partitionBy="k")
    by_column = ForeachLogWriter(uri=sandbox.uri)

    def task(partition: int) -> None:
        writers = [as_in_a_task(writer, partition) for writer in (one, routed, by_column)]
        for number in range(10):
            value = f"{partition}:{number}"
            writers[0].process(Row(value=value))
            writers[1].process(Row(k=number, value=value))
            writers[2].process(Row(value=value.encode(), log=f"{log}-{'even' if number % 2 == 0 else 'odd'}"))
        for writer in writers:
            writer.close(None)

    with ThreadPoolExecutor(3) as tasks:
        list(tasks.map(task, range(3)))
    found = values(sandbox, log)
    assert sorted(found) == sorted(f"{p}:{n}".encode() for p in range(3) for n in range(10))
    for partition in range(3):
        mine = [value for value in found if value.startswith(b"%d:" % partition)]
        assert mine == [f"{partition}:{number}".encode() for number in range(10)]
    for number in range(3):
        keys = [key for key in range(10) if zlib.crc32(str(key).encode()) % 3 == number]
        expected = sorted(f"{p}:{n}".encode() for p in range(3) for n in keys)
        assert sorted(values(sandbox, f"{log}-{number}")) == expected
    assert len(values(sandbox, f"{log}-even")) == len(values(sandbox, f"{log}-odd")) == 15


def test_transaction_ids_hold_as_in_the_sink(sandbox: Sandbox, log: str, staged_by_others: set[str]) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_ms=NEVER_MS))
    writer.process(Row(value="a", transaction_id=7))
    writer.close(None)
    assert read_values(sandbox.uri, log)[0] == [7]
    writer = as_in_a_task(writer)
    writer.process(Row(value="b", transaction_id=6))
    with pytest.raises(TransactionOrderError, match="below the log's highest, 7"):
        writer.close(None)
    assert values(sandbox, log) == [b"a"]
    assert staged_jobs(sandbox) <= staged_by_others


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        (Row(other="x"), SchemaError, "'other'"),
        (Row(value=1), SchemaError, "value must be string or binary"),
        (Row(value="x", transaction_id="y"), SchemaError, "transaction_id holds values"),
        (Row("no names"), SchemaError, "without the columns"),
        (Row(value=None), BatchRefusedError, "value is null"),
        (Row(value="x", transaction_id=None), BatchRefusedError, "transaction_id is null"),
    ],
)
def test_bad_rows_fail_the_task_with_nothing_of_their_group_visible(
    sandbox: Sandbox, log: str, row: Row, error: type[Exception], says: str
) -> None:
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_ms=NEVER_MS))
    writer.process(row)
    with pytest.raises(error, match=says):
        writer.close(None)
    assert values(sandbox, log) == []
    assert writer.open(0, 1)
    writer.process(Row(value="fine"))
    writer.close(None)
    assert values(sandbox, log) == [b"fine"]


@pytest.mark.usefixtures("no_namespace")
def test_wrong_options_are_refused_where_the_writer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspark.spark.sink.foreach._session_confs", dict)  # a session of other tests knows a namespace
    uri = "distributedlog://127.0.0.1:1/x"
    for options, says in (
        ({"failOnDataLoss": False}, "recognises no replay"),
        ({"subscribe": "x"}, "no meaning here"),
        ({"numlogs": 3}, "needs a template"),
        ({"nonsense": 3}, "Unknown option"),
        ({"group_rows": 0}, "group_rows=0 cannot be"),
        ({"group_ms": "1000"}, "group_ms='1000' cannot be"),
    ):
        with pytest.raises(OptionError, match=says):
            ForeachLogWriter("log", uri=uri, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="No namespace"):
        ForeachLogWriter("log")
    with pytest.raises(CallerError, match="before open"):
        ForeachLogWriter("log", uri=uri).process(Row(value="x"))


def test_a_query_in_update_mode_writes_through_foreach(
    spark: SparkSession, sandbox: Sandbox, log: str, checkpoint: Path
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2)
    counts = source.load().groupBy("value").count()
    frame = counts.selectExpr("concat(value, '=', count) as value")
    query = (
        frame.writeStream.foreach(ForeachLogWriter(log))  # the namespace comes from the session's conf
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        while not (checkpoint / "commits" / "0").exists():
            assert not query.awaitTermination(0.05), query.exception()
    finally:
        query.stop()
    assert {f"{number}=1".encode() for number in range(10)} <= set(values(sandbox, log))


def test_a_query_in_real_time_mode_writes_through_foreach(
    spark: SparkSession, sandbox: Sandbox, log: str, checkpoint: Path
) -> None:
    """Spark's own source for tests of that mode, which only its JVM can make."""
    jvm = cast("Any", spark)._jvm
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    module = getattr(getattr(sources, "LowLatencyMemoryStream$"), "MODULE$")
    source = module.apply(cast("Any", spark)._jsparkSession, 2, jvm.org.apache.spark.sql.Encoders.STRING())

    def add(*rows: str) -> None:
        source.addData(jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(rows)))

    spark.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1s")
    writer = DataFrame(source.toDF(), spark).writeStream.foreach(ForeachLogWriter(log, group_ms=100))
    query = (
        writer.outputMode("update").trigger(realTime="2 seconds").option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        for rows in (["a", "b", "c"], ["d"]):
            add(*rows)
            while rows[-1].encode() not in values(sandbox, log):
                assert not query.awaitTermination(0.05), query.exception()
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.realTimeMode.minBatchDuration")
    assert sorted(values(sandbox, log)) == [b"a", b"b", b"c", b"d"]


def test_rows_of_columns_that_a_log_declares_are_encoded_as_it_says(sandbox: Sandbox, log: str) -> None:
    fields = [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("place", pa.struct([pa.field("lat", pa.float64()), pa.field("names", pa.list_(pa.string()))])),
        pa.field("more", pa.map_(pa.string(), pa.int64())),
    ]
    declaration = Declaration.of(RecordFormat.JSON, schema_from_arrow(pa.schema(fields)), timestamp="at")
    declare_in(sandbox, log, declaration)
    writer = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_rows=2, group_ms=NEVER_MS))
    local = [datetime(2026, 11, 26, 12, 0, second) for second in (5, 3, 9)]  # as Spark gives them
    for number, at in enumerate(local):
        writer.process(Row(id=number, AT=at, place=Row(lat=0.5, names=["x", None]), more={"k": number}))
    writer.close(None)
    txids, payloads = read_values(sandbox.uri, log)
    found = RecordDecoder(declaration).decode(pa.array(payloads, pa.binary()), pa.array(txids)).rows.to_pylist()
    assert [row["id"] for row in found] == [0, 1, 2]
    assert [row["at"] for row in found] == [at.astimezone(timezone.utc) for at in local]
    assert found[0]["place"] == {"lat": 0.5, "names": ["x", None]}
    assert found[2]["more"] == [("k", 2)]
    times = [int(at.timestamp() * 1000) for at in local]
    assert txids == [times[0], times[0], times[2]]


def test_typed_rows_that_do_not_fit_fail_the_task_with_nothing_of_their_group_visible(
    sandbox: Sandbox, log: str
) -> None:
    declare_in(sandbox, log, declaration_of("json"))
    for row, kind, says in (
        (Row(body=bytearray(b"x"), length="long"), SchemaError, "Column length is int"),
        (Row(body=bytearray(b"x"), size=1), SchemaError, "no column size"),
        (Row(body=None), BatchRefusedError, "NOT NULL.*nothing of the batch is visible"),
    ):
        task = as_in_a_task(ForeachLogWriter(log, uri=sandbox.uri, group_rows=1, group_ms=NEVER_MS))
        with pytest.raises(kind, match=says):
            task.process(row)
    task = as_in_a_task(ForeachLogWriter(uri=sandbox.uri, group_rows=2, group_ms=NEVER_MS))
    task.process(Row(body=bytearray(b"x"), log=log))
    task.process(Row(body=bytearray(b"y"), log=log))
    task.close(None)
    assert bodies(values(sandbox, log), declaration_of("json")) == [b"x", b"y"]


def declare_in(sandbox: Sandbox, log: str, declaration: Declaration) -> None:
    async def make() -> None:
        session = await open_session(Options({"uri": sandbox.uri}, Scope.SINK_STREAM))
        await declare(session.namespace.logs_store, log, declaration)

    Runtime.shared().run(make())
