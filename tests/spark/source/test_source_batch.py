"""Batch reads on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from dlspark.core.sync.namespace import Namespace
from dlspark.spark import register
from dlspark.spark.connection import CONF_KEY
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import batch_reader
from dlspark.spark.source.schema import SCHEMA
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

MS = 1_000_000
"""Transaction ids of the tests begin here: a time in 1970."""


def reading(spark: SparkSession, **options: object) -> DataFrameReader:
    reader = spark.read.format("distributedlog")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader


def txids(frame: DataFrame) -> list[int]:
    """Transaction ids in log order; one log."""
    return [row[0] for row in frame.orderBy("segment", "entry", "slot").select("transaction_id").collect()]


def test_an_acknowledged_record_is_read_without_another_one_after_it(spark: SparkSession, sandbox: Sandbox) -> None:
    with Namespace.open(sandbox.uri) as namespace, namespace.open_log("one-record").open_writer() as writer:
        for txid in range(3):
            assert str(writer.write(txid, b"quiet").result()) == f"1:{txid}:0"
            assert reading(spark, log="one-record").load().count() == txid + 1
            assert reading(spark, log="one-record", startingTransactionId=txid).load().count() == 1


def test_every_record_of_completed_and_open_segments_is_read_with_its_place(
    spark: SparkSession, three_segments: str
) -> None:
    frame = reading(spark).load(three_segments)
    assert frame.schema.simpleString() == (
        "struct<log:string,segment:bigint,entry:bigint,slot:bigint,sequence_id:bigint,transaction_id:bigint,"
        "timestamp:timestamp,value:binary>"
    )
    rows = frame.orderBy("segment", "entry", "slot").withColumn("ms", f.unix_millis("timestamp")).collect()
    assert [row.transaction_id for row in rows] == list(range(MS, MS + 120))
    assert [row.sequence_id for row in rows] == list(range(120))
    assert [row.ms for row in rows] == list(range(MS, MS + 120))
    assert [bytes(row.value) for row in rows] == [f"{three_segments}:{n}".encode() for n in range(MS, MS + 120)]
    assert {row.log for row in rows} == {three_segments}
    assert [row.segment for row in rows] == [1] * 40 + [2] * 40 + [3] * 40


@pytest.mark.parametrize("wanted", [1, 5, 12, 100])
def test_min_partitions_splits_segments_between_entries(spark: SparkSession, three_segments: str, wanted: int) -> None:
    frame = reading(spark, minPartitions=wanted).load(three_segments)
    assert min(wanted, 12) <= frame.rdd.getNumPartitions() <= max(wanted, 12)
    assert txids(frame) == list(range(MS, MS + 120))


def test_positions_of_offsets_are_exact_to_the_slot(spark: SparkSession, three_segments: str) -> None:
    start, end = json.dumps({three_segments: "1:3:7"}), json.dumps({three_segments: "3:1:4"})
    frame = reading(spark, startingOffsets=start, endingOffsets=end).load(three_segments)
    rows = frame.orderBy("sequence_id").select("segment", "entry", "slot", "transaction_id").collect()
    ids = [row.transaction_id for row in rows]
    assert tuple(rows[0])[:3] == (1, 3, 7)
    assert ids == list(range(ids[0], ids[-1] + 1))
    assert (rows[-1].segment, rows[-1].entry, rows[-1].slot) == (3, 1, 3)


@pytest.mark.parametrize(("low", "high"), [(0, 120), (0, 0), (35, 85), (39, 41), (119, 120), (-5, 3)])
def test_ranges_of_time_and_id_include_the_start_and_exclude_the_end(
    spark: SparkSession, three_segments: str, low: int, high: int
) -> None:
    expected = list(range(max(MS, MS + low), min(MS + 120, MS + high)))
    for kind in ("Timestamp", "TransactionId"):
        options = {f"starting{kind}": MS + low, f"ending{kind}": MS + high}
        assert txids(reading(spark, **options).load(three_segments)) == expected, kind


def test_a_start_in_iso_time(spark: SparkSession, three_segments: str) -> None:
    frame = reading(spark, startingTimestamp="1970-01-01T00:16:40.100Z").load(three_segments)
    assert txids(frame) == list(range(MS + 100, MS + 120))


def test_logs_are_read_by_list_and_by_pattern(spark: SparkSession, logs: Logs) -> None:
    names = [logs.create(logs.name(f"many-{n}")) for n in range(3)]
    for n, name in enumerate(names):
        logs.write(name, range(MS, MS + 10 * (n + 1)))
    expected = {name: 10 * (n + 1) for n, name in enumerate(names)}
    by_pattern = reading(spark, subscribePattern=logs.name("many-[0-9]")).load()
    assert {row["log"]: row["count"] for row in by_pattern.groupBy("log").count().collect()} == expected
    by_list = reading(spark, subscribe=",".join(names[:2])).load()
    assert by_list.count() == 30


def test_a_log_without_records_is_empty_and_not_an_error(spark: SparkSession, logs: Logs) -> None:
    assert reading(spark).load(logs.create(logs.name())).count() == 0


def test_ids_that_are_no_time_have_a_null_timestamp(spark: SparkSession, logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, [5, 2**62])
    rows = reading(spark).load(name).orderBy("transaction_id").collect()
    assert [row.timestamp is None for row in rows] == [False, True]


def test_a_sealed_log_ends_with_its_last_user_record(spark: SparkSession, logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 20))
    logs.seal(name)
    assert txids(reading(spark).load(name)) == list(range(MS, MS + 20))


def test_some_columns_can_be_named_by_schema(spark: SparkSession, three_segments: str) -> None:
    frame = reading(spark).schema("value binary, transaction_id bigint").load(three_segments)
    assert frame.columns == ["value", "transaction_id"]
    assert frame.count() == 120
    declared = reading(spark).schema("value binary NOT NULL, timestamp timestamp, slot bigint NOT NULL")
    assert [field.nullable for field in declared.load(three_segments).schema.fields] == [False, True, False]
    assert len([row for row in declared.load(three_segments).collect() if row.slot == 9]) == 12
    with pytest.raises(AnalysisException, match="timestamp was declared NOT NULL, and may be null"):
        reading(spark).schema("timestamp timestamp NOT NULL").load(three_segments).collect()


def test_sql_reads_through_a_view(spark: SparkSession, three_segments: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING distributedlog OPTIONS (subscribe '{three_segments}')")
    assert spark.sql("SELECT count(*), max(transaction_id) FROM v").first() == (120, MS + 119)


def test_an_early_stop_leaves_nothing_open(spark: SparkSession, logs: Logs, three_segments: str) -> None:
    before = logs.sessions()
    assert len(reading(spark).load(three_segments).limit(3).collect()) == 3
    assert not logs.sessions() - before


@pytest.mark.parametrize("on", ["with the jar", "true", pytest.param("false", marks=pytest.mark.long)])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, three_segments: str, plain_format: str, on: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false" if on == "false" else "true")
    try:
        frame = reading(spark).format("distributedlog" if on == "with the jar" else plain_format).load(three_segments)
        at = f.timestamp_millis(f.lit(MS + 50))
        for condition, expected in [
            (f.col("transaction_id").between(MS + 35, MS + 44), range(MS + 35, MS + 45)),
            (f.col("transaction_id") == MS + 77, [MS + 77]),
            (f.col("timestamp") >= at, range(MS + 50, MS + 120)),
            (f.col("timestamp") < at, range(MS, MS + 50)),
            ((f.col("segment") == 2) & (f.col("transaction_id") > MS + 70), range(MS + 71, MS + 80)),
            (f.col("log") == "another", []),
            (f.col("log").isin(three_segments, "x") & (f.col("entry") == 0) & (f.col("segment") > 2), None),
            ((f.col("segment") == 2) & (f.col("entry") > 0) & (f.col("entry") <= 2), range(MS + 50, MS + 70)),
            (f.col("transaction_id").isin(MS + 3, MS + 81), [MS + 3, MS + 81]),
            (f.col("transaction_id") != MS, range(MS + 1, MS + 120)),
            (f.col("transaction_id") > MS + 500, []),
        ]:
            found = txids(frame.where(condition))
            if expected is None:
                assert len(found) == 10
            else:
                assert found == list(expected), condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_pushed_filters_decide_what_is_planned(spark: SparkSession, three_segments: str) -> None:
    frame = reading(spark, minPartitions=12).load(three_segments).where(f"transaction_id = {MS + 55}")
    assert frame.rdd.getNumPartitions() == 1
    assert "Filter (" not in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == 1


def test_settings_of_the_clients_reach_the_tasks(sandbox: Sandbox, three_segments: str) -> None:
    raw = {"uri": sandbox.uri, "log": three_segments, "bkc.speculativereadtimeout": "777"}
    reader = batch_reader(Options(raw, Scope.SOURCE_BATCH), SCHEMA)
    (partition,) = reader.partitions()
    assert isinstance(partition, LogPartition)
    assert partition.client_settings.speculative_read_ms == 777
    wrong = Options({**raw, "bkc.speculativereadtimeot": "7"}, Scope.SOURCE_BATCH)
    with pytest.raises(CallerError, match="speculativereadtimeot"):
        batch_reader(wrong, SCHEMA).partitions()


def test_a_task_needs_no_metadata_client_at_all(sandbox: Sandbox, three_segments: str, tmp_path: Path) -> None:
    """It runs in a process that cannot even import one."""
    options = Options({"uri": sandbox.uri, "log": three_segments, "maxRecordsPerPartition": "50"}, Scope.SOURCE_BATCH)
    reader = batch_reader(options, SCHEMA)
    (tmp_path / "task").write_bytes(pickle.dumps((reader, reader.partitions())))
    program = textwrap.dedent("""
        import pickle, sys
        sys.modules["kazoo"] = sys.modules["metadata.zookeeper.client"] = None
        reader, partitions = pickle.loads(open(sys.argv[1], "rb").read())
        print([sum(batch.num_rows for batch in reader.read(partition)) for partition in partitions])
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "task")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    counts = json.loads(done.stdout)
    assert sum(counts) == 120
    assert max(counts) <= 50


def failure(action: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def test_mistakes_are_told_before_any_task_runs(spark: SparkSession, three_segments: str) -> None:
    missing = f"{three_segments}-missing"
    both = {"startingOffsets": "earliest", "startingTimestamp": "5"}
    cases: list[tuple[dict[str, object], str | None, list[str]]] = [
        ({}, missing, ["LogNotFoundError", missing, "dlspark log create"]),
        (
            {"subscribePattern": "nothing-.*-here"},
            None,
            ["No log outside of all folders", "not in those below"],
        ),
        ({"subscribePattern": "nowhere/.*"}, None, ["No log in folder 'nowhere' matches subscribePattern"]),
        ({"startingOfsets": "latest"}, three_segments, ["Unknown option", "startingOffsets"]),
        (both, three_segments, ["startingOffsets and startingTimestamp contradict"]),
        ({"subscribe": "x"}, three_segments, ["named 2 ways"]),
        ({}, None, ["No log to read is named"]),
        ({"startingOffsets": "{"}, three_segments, ["neither earliest, latest nor JSON"]),
        ({"startingOffsets": json.dumps({three_segments: "9:0:0"})}, three_segments, ["behind the log's end"]),
        ({"endingOffsets": json.dumps({three_segments: "3:99:0"})}, three_segments, ["endingOffsets", "behind the"]),
        ({"maxOffsetsPerTrigger": 5}, three_segments, ["maxOffsetsPerTrigger has no meaning here"]),
        ({"minPartitions": 0}, three_segments, ["minPartitions=0 is outside 1"]),
        ({"uri": "distributedlog://127.0.0.1:1/x"}, three_segments, ["cannot be reached", "option uri"]),
        ({"uri": "kafka://127.0.0.1:1/x"}, three_segments, ["kafka"]),
    ]
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("mistakes", "mistakes")
    for options, path, words in cases:
        text = failure(lambda o=options, p=path: reading(spark, **o).load(p).collect())
        assert all(word in text for word in words), (options, text)
    assert list(tracker.getJobIdsForGroup("mistakes")) == []


def test_a_wrong_column_type_is_told(spark: SparkSession, three_segments: str) -> None:
    for given in ("value string", "value string, log string"):
        text = failure(lambda given=given: reading(spark).schema(given).load(three_segments).count())
        assert "Column value string" in text


def test_a_position_in_a_deleted_segment_is_data_loss_or_a_documented_skip(
    spark: SparkSession, logs: Logs, three_segments: str
) -> None:
    logs.delete_first_segment(three_segments)
    start = json.dumps({three_segments: "1:2:0"})
    text = failure(lambda: reading(spark, startingOffsets=start).load(three_segments).collect())
    assert "DataLossError" in text
    assert "failOnDataLoss" in text
    frame = reading(spark, startingOffsets=start, failOnDataLoss="false").load(three_segments)
    assert txids(frame) == list(range(MS + 40, MS + 120))
    assert txids(reading(spark).load(three_segments)) == list(range(MS + 40, MS + 120))


def test_one_storage_node_down_is_read_around(spark: SparkSession, sandbox: Sandbox, three_segments: str) -> None:
    sandbox.kill_node(0)
    try:
        assert txids(reading(spark, minPartitions=4).load(three_segments)) == list(range(MS, MS + 120))
    finally:
        sandbox.start_node(0)


def test_too_few_storage_nodes_are_told_before_any_task_runs(
    spark: SparkSession, sandbox: Sandbox, three_segments: str
) -> None:
    for node in range(sandbox.node_count):
        sandbox.kill_node(node)
    try:
        # A completed segment only, so that the LAC need not be asked for.
        end = json.dumps({three_segments: "2:0:0"})
        spark.sparkContext.setJobGroup("dead", "dead")
        hasty = reading(spark, endingOffsets=end, outageTimeout="1s")
        text = failure(lambda: hasty.load(three_segments).collect())
        assert "Error" in text
        assert "waited 1 s for what is away" in text
        assert "storage node" in text.lower() or "bookie" in text.lower()
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("dead")) == []
    finally:
        for node in range(sandbox.node_count):
            sandbox.start_node(node)
    assert txids(reading(spark).load(three_segments)) == list(range(MS, MS + 120)), "the nodes are back"


def test_a_conf_set_in_a_running_session_is_handed_on_by_register(
    spark: SparkSession, sandbox: Sandbox, three_segments: str
) -> None:
    spark.conf.set(CONF_KEY, "distributedlog://127.0.0.1:1/elsewhere")
    try:
        register(spark)
        assert "cannot be reached" in failure(lambda: reading(spark).load(three_segments).collect())
    finally:
        spark.conf.set(CONF_KEY, sandbox.uri)
        register(spark)
    assert reading(spark).load(three_segments).count() == 120
