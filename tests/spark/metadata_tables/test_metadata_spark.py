"""Metadata tables and the lag listener on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.spark import LagListener
from dlspark.spark.metadata_tables.registry import TABLES
from dlspark.spark.source.lag import NO_LAG

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

MS = 1_000_000


@pytest.fixture(scope="module")
def two_logs(sandbox: object) -> Iterator[tuple[str, str]]:
    """A log of two completed segments and one in progress, and a log of one segment; nobody changes them."""
    from helpers.spark.logs import Logs

    logs = Logs(sandbox.uri)  # type: ignore[attr-defined]
    first, second = logs.create(logs.name("tables-a")), logs.create(logs.name("tables-b"))
    logs.write(first, range(MS, MS + 40))
    logs.write(first, range(MS + 40, MS + 65))
    logs.write(first, range(MS + 65, MS + 70), keep_open=True)
    logs.write(second, range(MS, MS + 5))
    yield first, second
    logs.close()


def table(spark: SparkSession, name: str, **options: str) -> DataFrame:
    return spark.read.format("distributedlog").option("metadata", name).options(**options).load()


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def test_every_table_is_read_by_spark_with_its_types(spark: SparkSession, two_logs: tuple[str, str]) -> None:
    found = {}
    for name, described in TABLES.items():
        frame = table(spark, name)
        assert frame.schema == described.schema
        found[name] = frame.collect()
    assert {row.log for row in found["logs"]} >= set(two_logs)
    # Not those of segments that are in files alone, as other tests of this namespace have left some.
    hot = {row.ledger for row in found["segments"] if row.place != "cold"}
    assert {row.ledger for row in found["ledgers"]} >= hot
    assert any(row.answers and row.free_bytes for row in found["bookies"])


def test_segments_by_sql_through_a_view_with_filters_pushed_or_not(
    spark: SparkSession, two_logs: tuple[str, str]
) -> None:
    first, second = two_logs
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW segments USING distributedlog OPTIONS (metadata 'segments')")
    question = f"""
        SELECT log, count(*) AS segments, sum(records) AS records, max(last_transaction_id) AS last
        FROM segments WHERE log IN ('{first}', '{second}') GROUP BY log ORDER BY log"""
    wanted = [(first, 3, 70, MS + 69), (second, 1, 5, MS + 4)]
    assert [tuple(row) for row in spark.sql(question).collect()] == wanted
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert [tuple(row) for row in spark.sql(question).collect()] == wanted
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    joined = table(spark, "ledgers", subscribe=first).join(table(spark, "segments", subscribe=first), ["log", "ledger"])
    assert joined.count() == 3


def test_a_stream_over_a_metadata_table_is_refused(spark: SparkSession, checkpoint: Path) -> None:
    from pyspark.errors import StreamingQueryException

    frame = spark.readStream.format("distributedlog").option("metadata", "segments").load()
    with pytest.raises(StreamingQueryException, match="cannot be streamed"):
        frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start().awaitTermination(60)


def test_the_listener_hears_how_far_a_query_is_behind(spark: SparkSession, logs: Logs, checkpoint: Path) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 40))
    logs.write(name, range(MS + 40, MS + 60), keep_open=True)
    registry = CollectorRegistry()
    listener = LagListener(Statistics(registry))
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("distributedlog")
            .option("maxOffsetsPerTrigger", 25)
            .load(name)
            .writeStream.format("noop")
            .queryName("behind")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        until(lambda: listener.lags().get("behind") == {name: NO_LAG})
        samples = listener.picture("behind").samples
        assert [one.lags[name][0] for one in samples] == [35, 10, 0]
        assert [one.lags[name][2] for one in samples] == [59 - 20, 59 - 50, 0]
        stored = [one.lags[name][1] for one in samples]
        assert stored == sorted(stored, reverse=True)  # type: ignore[type-var]
        labels = {"query_id": str(query.id), "query_name": "behind", "log": name}
        assert registry.get_sample_value("query_lag_records", labels) == 0
        assert "running, batch 2: 0 records" in listener._repr_html_()
        query.stop()
        assert "ended, batch 2: 0 records" in str(listener.picture("behind"))
        assert listener.lags() == {}
        assert registry.get_sample_value("query_lag_records", labels) is None
    finally:
        spark.streams.removeListener(listener)


def test_a_cursor_moves_in_its_table(spark: SparkSession, logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 40))
    logs.commit(name, "reporting", 1, 2)
    (row,) = table(spark, "cursors", subscribe=name).collect()
    assert (row.cursor, row.position, row.lag_records, row.lost) == ("reporting", "1:2:0", 20, False)
