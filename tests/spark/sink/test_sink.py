"""Writing with a real Spark session: batch, streaming, foreachBatch, and every refusal with its mend.

What is written once whatever is run again, is so with typed frames as well. More of these: `test_sink_typed_spark`.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.spark.sink_driver import Plan, declare_logs, read_values, run_driver
from helpers.spark.typed_frames import Using

from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.spark.errors import LogBusyError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

FreshLog = Callable[..., str]
PER_BATCH = 100
BOTH = pytest.mark.usefixtures("frames")
TYPED_COLUMNS = [
    "cast(value as binary) as body",
    "cast(length(value) as int) as length",
    "1000 + crc32(cast(value as binary)) % 500 as at",
]
"""Of a string `value`; times of all tasks and batches overlap."""


@pytest.fixture
def fresh_log() -> FreshLog:
    """Names of logs that no other test uses."""
    mark = uuid.uuid4().hex[:8]
    return lambda name="log": f"{name}-{mark}"


def rows(spark: SparkSession, count: int, tasks: int = 2, columns: str = "transaction_id, value") -> DataFrame:
    source = spark.range(0, count, 1, tasks)
    return source.selectExpr("id as transaction_id", "concat('row ', id) as value").selectExpr(*columns.split(", "))


def save(frame: DataFrame, log: str | None = None, **options: object) -> None:
    writer = frame.write.format("distributedlog").mode("append")
    for name, value in options.items():
        writer = writer.option(name, value)  # type: ignore[arg-type]
    writer.save(log) if log is not None else writer.save()


def stream(spark: SparkSession) -> DataFrame:
    """A replayable stream in two tasks: batch n always holds the same rows."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", PER_BATCH)
        .option("numPartitions", 2)
        .option("startTimestamp", 1000)
        .load()
    )
    return source.selectExpr("cast(value as string) as value")


def framed(frame: DataFrame) -> DataFrame:
    """Rows with a string `value` as a frame of the test's kind."""
    return frame.selectExpr(*TYPED_COLUMNS) if Using.frames.typed else frame


def declared(sandbox: Sandbox, *logs: str) -> tuple[str, ...]:
    """The logs, which declare the columns of the test's frames if they are typed."""
    if Using.frames.typed:
        declare_logs(sandbox.uri, Using.frames.declaration, *logs)
    return logs


def written(sandbox: Sandbox, log: str) -> tuple[list[int], list[bytes]]:
    """Transaction ids and values of a log, whatever its records are."""
    txids, payloads = read_values(sandbox.uri, log)
    return txids, Using.frames.read(payloads, txids)


def check_stream(txids: list[int], values: list[bytes], batches: int) -> None:
    """Each of `batches` whole and once, under one timestamp: the first task's rows (even), then the second's.

    Rows of typed frames have times of their own, and are in any order in their batch.
    """
    if Using.frames.typed:
        parts = [values[begin : begin + PER_BATCH] for begin in range(0, len(values), PER_BATCH)]
        found = [sorted(map(int, part)) for part in parts]
        assert found == [list(range(n * PER_BATCH, (n + 1) * PER_BATCH)) for n in range(batches)]
        assert txids == sorted(txids)
        return
    expected = [
        str(batch * PER_BATCH + n).encode()
        for batch in range(batches)
        for n in (*range(0, PER_BATCH, 2), *range(1, PER_BATCH, 2))
    ]
    assert values == expected
    stamps = [set(txids[batch * PER_BATCH : (batch + 1) * PER_BATCH]) for batch in range(batches)]
    assert [len(stamp) for stamp in stamps] == [1] * batches
    assert txids == sorted(txids)


def run_batches(frame: DataFrame, log: str, checkpoint: Path, until: int) -> None:
    """Run the query until batch `until` is committed, then stop it."""
    query = (
        frame.writeStream.format("distributedlog")
        .option("log", log)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        while not (checkpoint / "commits" / str(until)).exists():
            if query.awaitTermination(0.05):
                raise AssertionError(query.exception())
    finally:
        query.stop()


def committed(checkpoint: Path) -> int:
    return max(int(entry.name) for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit())


def sinks_left(sandbox: Sandbox) -> list[str]:
    async def names() -> list[str]:
        session = await open_session(Options({"uri": sandbox.uri}, Scope.SINK_BATCH))
        return await session.sinks.sinks()

    return Runtime.shared().run(names())


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # Spark wraps every error in one of its own
        call()
    return str(caught.value)


def test_a_batch_write_appears_in_order_of_its_ids(spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog) -> None:
    log = fresh_log()
    save(rows(spark, 1000), log)
    txids, values = read_values(sandbox.uri, log)
    assert txids == list(range(1000))
    assert values == [f"row {n}".encode() for n in range(1000)]
    assert not any(name.startswith("job-") for name in sinks_left(sandbox))


def test_several_writes_continue_a_log(spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog) -> None:
    log = fresh_log()
    for _ in range(3):
        save(rows(spark, 10, columns="value"), log)
    txids, values = read_values(sandbox.uri, log)
    assert values == 3 * [f"row {n}".encode() for n in range(10)]
    assert len(set(txids)) == 3
    assert txids == sorted(txids)


def test_the_log_column_routes_rows_and_all_logs_appear_together(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog
) -> None:
    first, second = fresh_log("even"), fresh_log("odd")
    frame = rows(spark, 100).selectExpr("*", f"if(transaction_id % 2 = 0, '{first}', '{second}') as log")
    save(frame)
    assert read_values(sandbox.uri, first)[0] == list(range(0, 100, 2))
    assert read_values(sandbox.uri, second)[0] == list(range(1, 100, 2))


def test_binary_values_and_compression(spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog) -> None:
    log = fresh_log()
    save(rows(spark, 500).selectExpr("transaction_id", "cast(value as binary) as value"), log, compressionType="lz4")
    assert read_values(sandbox.uri, log)[1] == [f"row {n}".encode() for n in range(500)]


def test_what_spark_wrote_spark_reads(spark: SparkSession, fresh_log: FreshLog) -> None:
    log = fresh_log()
    save(rows(spark, 1000), log)
    back = spark.read.format("distributedlog").load(log)
    assert back.selectExpr("count(*)", "min(sequence_id)", "max(sequence_id)", "sum(transaction_id)").collect()[0][
        :
    ] == (
        1000,
        0,
        999,
        999 * 500,
    )


def test_an_empty_batch_write_creates_the_log_that_it_names(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog
) -> None:
    log = fresh_log()
    nothing = rows(spark, 10).where("transaction_id < 0")
    save(nothing, log)
    assert spark.read.format("distributedlog").load(log).count() == 0
    save(nothing.selectExpr("*", f"'{fresh_log('other')}' as log"))  # names none
    save(nothing, fresh_log("parts-{}"), numLogs=2)
    with Namespace.open(sandbox.uri) as namespace:
        assert not {fresh_log("other"), fresh_log("parts-0")} & set(namespace.logs())


def test_an_empty_micro_batch_creates_the_log_that_it_names(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, checkpoint: Path
) -> None:
    run_batches(stream(spark).where("value < ''"), fresh_log(), checkpoint, 1)
    assert spark.read.format("distributedlog").load(fresh_log()).count() == 0


@BOTH
def test_a_numbered_write_is_done_once(spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog) -> None:
    (log,) = declared(sandbox, fresh_log())
    application = fresh_log("etl")
    for version in (1, 1, 2, 1, 2):
        save(framed(rows(spark, 10, columns="value")), log, txnAppId=application, txnVersion=version)
    txids, values = written(sandbox, log)
    assert len(txids) == 20
    assert all(sorted(part) == [f"row {n}".encode() for n in range(10)] for part in (values[:10], values[10:]))
    assert Using.frames.typed or len(set(txids)) == 2


@BOTH
def test_a_stream_is_written_once_though_its_newest_commit_entries_are_lost(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, checkpoint: Path
) -> None:
    (log,) = declared(sandbox, fresh_log())
    run_batches(framed(stream(spark)), log, checkpoint, until=2)
    for _ in range(2):
        newest = committed(checkpoint)
        (checkpoint / "commits" / str(newest)).unlink()
        (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
        run_batches(framed(stream(spark)), log, checkpoint, until=newest + 1)
    txids, values = written(sandbox, log)
    batches = len(values) // PER_BATCH  # one more than are committed, if the stop came between the two commits
    assert batches in (committed(checkpoint) + 1, committed(checkpoint) + 2)
    check_stream(txids, values, batches)


@BOTH
def test_foreach_batch_with_a_version_is_written_once(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, checkpoint: Path
) -> None:
    (log,), application = declared(sandbox, fresh_log()), fresh_log("app")

    def write(frame: DataFrame, batch: int) -> None:
        for _ in range(2):  # as if the function had been run again after a failure
            save(framed(frame), log, txnAppId=application, txnVersion=batch)

    query = stream(spark).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
    while not (checkpoint / "commits" / "2").exists():
        assert not query.awaitTermination(0.05), query.exception()
    query.stop()
    txids, values = written(sandbox, log)
    assert len(values) >= 3 * PER_BATCH
    check_stream(txids, values, len(values) // PER_BATCH)


@BOTH
def test_foreach_batch_with_one_version_for_two_logs_writes_both(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, checkpoint: Path
) -> None:
    """Delta's idiom: the application's name and the batch's number for every table."""
    logs, application = declared(sandbox, fresh_log("flights"), fresh_log("trains")), fresh_log("app")

    def write(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            for log in logs:
                save(framed(frame), log, txnAppId=application, txnVersion=batch)

    query = stream(spark).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
    while not (checkpoint / "commits" / "1").exists():
        assert not query.awaitTermination(0.05), query.exception()
    query.stop()
    for log in logs:
        txids, values = written(sandbox, log)
        assert len(values) >= 2 * PER_BATCH, log
        check_stream(txids, values, len(values) // PER_BATCH)


@BOTH
def test_a_fork_of_a_checkpoint_writes_its_batches_into_another_log(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, checkpoint: Path
) -> None:
    """The checkpoint is copied, each copy goes on by itself, and each log has its query's batches, once."""
    log, other = declared(sandbox, fresh_log("flights"), fresh_log("trains"))
    run_batches(framed(stream(spark)), log, checkpoint, until=1)
    fork = checkpoint.with_name("fork")
    shutil.copytree(checkpoint, fork)
    newest = committed(fork)
    # Spark repeats the newest planned batch: one that was planned when the query was stopped would be repeated instead.
    for folder, number in (("commits", newest), ("offsets", newest + 1)):
        for name in (f"{number}", f".{number}.crc"):
            (fork / folder / name).unlink(missing_ok=True)
    run_batches(framed(stream(spark)), log, checkpoint, until=newest + 2)
    run_batches(framed(stream(spark)), other, fork, until=newest + 2)
    for name, first in ((log, 0), (other, newest)):
        txids, values = written(sandbox, name)
        batches = len(values) // PER_BATCH
        assert batches >= newest + 3 - first, name
        check_stream(txids, [str(int(value) - first * PER_BATCH).encode() for value in values], batches)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("transaction_id", "needs a column value"),
        ("value, transaction_id as other", "'other'"),
        ("cast(transaction_id as int) as value", "value must be string or binary"),
        ("value, value as transaction_id", "transaction_id must be bigint"),
        ("value, transaction_id as log", "log must be string"),
    ],
)
def test_wrong_columns_are_refused_before_any_task(
    spark: SparkSession, fresh_log: FreshLog, columns: str, says: str
) -> None:
    text = error_of(lambda: save(rows(spark, 10, columns=columns), fresh_log()))
    assert "SchemaError" in text
    assert says in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"txnAppId": "a"}, "belong together"),
        ({"txnVersion": 1}, "belong together"),
        ({"txnAppId": "a", "txnVersion": -1}, "txnVersion=-1 is outside 0"),
        ({"compressionType": "zip"}, "compressionType"),
        ({"subscribe": "x"}, "subscribe has no meaning here"),
        ({"nonsense": "x"}, "Unknown option"),
        ({"createStreamIfNotExists": "false"}, "does not exist"),
        ({"ensembleSize": 9}, "4 storage nodes are writable, and a segment needs 9"),
        ({"uri": "distributedlog://127.0.0.1:1/nowhere"}, "127.0.0.1:1"),
    ],
)
def test_wrong_options_are_refused_before_any_task(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, options: dict[str, object], says: str
) -> None:
    log = fresh_log()
    assert says in error_of(lambda: save(rows(spark, 10), log, **options))
    with Namespace.open(sandbox.uri) as namespace:
        assert not namespace.log_exists(log)


def test_overwrite_complete_and_update_are_refused(spark: SparkSession, fresh_log: FreshLog, checkpoint: Path) -> None:
    frame = rows(spark, 10)
    text = error_of(lambda: frame.write.format("distributedlog").mode("overwrite").save(fresh_log()))
    assert "a log only grows" in text
    counts = stream(spark).groupBy("value").count().selectExpr("value")
    writer = counts.writeStream.format("distributedlog").option("log", fresh_log()).outputMode("complete")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert "a log only grows" in error_of(lambda: query.awaitTermination(60))
    # Spark says this one by itself, of every Python sink.
    query = writer.outputMode("update").start()
    assert "does not support Update mode" in error_of(lambda: query.awaitTermination(60))


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("if(id = 7, null, 'x') as value, id as transaction_id", "value is null"),
        ("'x' as value, if(id = 7, null, id) as transaction_id", "transaction_id is null"),
        ("'x' as value, 9 - id as transaction_id", "Transaction ids"),
        ("'x' as value, id % 5 as transaction_id, 'fine' as log", "Transaction ids"),
    ],
)
def test_bad_rows_fail_the_batch_whole(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog, expression: str, says: str
) -> None:
    log = fresh_log()
    frame = spark.range(0, 10, 1, 2).selectExpr(*(f"{part} as {name}" for part, name in split_columns(expression)))
    text = error_of(lambda: save(frame, log))
    assert says in text
    assert "nothing of the batch is visible" in text
    assert read_values(sandbox.uri, log) == ([], [])


def split_columns(expression: str) -> list[tuple[str, str]]:
    """`a as x, b as y` as pairs; commas inside parentheses do not separate."""
    parts: list[str] = []
    depth = 0
    for piece in expression.split(", "):
        parts = [*parts[:-1], f"{parts[-1]}, {piece}"] if depth else [*parts, piece]
        depth += piece.count("(") - piece.count(")")
    return [(part.rpartition(" as ")[0], part.rpartition(" as ")[2]) for part in parts]


def test_ids_below_the_logs_highest_fail_the_batch_with_the_log_and_the_mend(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog
) -> None:
    log = fresh_log()
    save(rows(spark, 100), log)
    text = error_of(lambda: save(rows(spark, 50), log))
    assert "below the log's highest, 99" in text
    assert log in text
    assert len(read_values(sandbox.uri, log)[0]) == 100


def test_a_log_with_a_live_writer_is_refused_with_the_writers_name(
    sandbox: Sandbox, fresh_log: FreshLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = fresh_log()
    monkeypatch.setenv("DLSPARK_SET_lockTimeoutSeconds", "1")
    plan = Plan(sandbox.uri, fresh_log("query"), (log,), 3, 10, str(tmp_path), stamped=True)
    with Namespace.open(sandbox.uri) as namespace:
        namespace.create_log(log)
        with namespace.open_log(log) as opened, opened.open_writer() as writer:
            writer.write(5, b"mine").result(60)
            with pytest.raises(LogBusyError, match="is being written by") as caught:
                run_driver(plan, 1)
            assert caught.value.log == log
            writer.write(6, b"still mine").result(60)
    assert read_values(sandbox.uri, log)[1] == [b"mine", b"still mine"]


def test_what_a_dead_writer_left_is_recovered_and_continued(
    spark: SparkSession, sandbox: Sandbox, fresh_log: FreshLog
) -> None:
    log = fresh_log()
    with Namespace.open(sandbox.uri) as namespace:
        namespace.create_log(log)
        with namespace.open_log(log) as opened:
            writer = opened.open_writer()
            writer.write(5, b"left behind").result(60)
            writer.abort()
    save(rows(spark, 10).where("transaction_id >= 5"), log)
    txids, values = read_values(sandbox.uri, log)
    assert txids == [5, 5, 6, 7, 8, 9]
    assert values[0] == b"left behind"
