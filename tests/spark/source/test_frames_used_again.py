"""One frame in many queries, and many times in one: with the connector's jar, and without it, pushdown on and off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
JAR, OFFERED, PLAIN = "with the jar", "plain, filters offered", "plain"
WITH_ROUNDS = pytest.param(PLAIN, marks=pytest.mark.long)
"""Without the jar a frame is planned in each action; one test of that is enough for each run."""


@pytest.fixture(params=[JAR, WITH_ROUNDS])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """How frames are read."""
    spark.conf.set(PUSHDOWN, str(request.param != PLAIN).lower())
    yield request.param
    spark.conf.unset(PUSHDOWN)


class Reading:
    """Frames of one log of 30 records in two segments, ids 1 to 30, read in one way."""

    def __init__(self, spark: SparkSession, name: str, log: str) -> None:
        self.log = log
        self._spark = spark
        self._format = name

    def frame(self, **options: str) -> DataFrame:
        given = options or {"log": self.log}
        return self._spark.read.format(self._format).options(**given).load()


@pytest.fixture
def reading(spark: SparkSession, way: str, plain_format: str, logs: Logs) -> Reading:
    log = logs.create(logs.name(f"used-{len(way)}-{threading.get_ident()}"))
    logs.write(log, range(1, 21), entry_records=4)
    logs.write(log, range(21, 31), entry_records=4)
    return Reading(spark, "distributedlog" if way == JAR else plain_format, log)


def ids(frame: DataFrame) -> list[int]:
    # By another frame each time, which Spark plans anew.
    return sorted(row.transaction_id for row in frame.select("transaction_id").collect())


@pytest.mark.parametrize("way", [JAR, OFFERED, WITH_ROUNDS], indirect=True)
def test_uses_of_one_frame_leave_each_other_alone(spark: SparkSession, reading: Reading, way: str) -> None:
    frame = reading.frame()
    assert ("distributedlog {" in frame._jdf.queryExecution().executedPlan().toString()) == (way == JAR)  # type: ignore[attr-defined]
    assert (frame.where("transaction_id > 28").count(), frame.count(), len(frame.collect())) == (2, 30, 30)
    both = frame.where("transaction_id <= 3").union(frame.where("transaction_id > 28"))
    assert ids(both) == [1, 2, 3, 29, 30]
    few = frame.where("transaction_id > 28").selectExpr("transaction_id AS other")
    assert frame.select("transaction_id").crossJoin(few).count() == 60
    assert frame.select("value").crossJoin(frame.select("log", "transaction_id").limit(2)).count() == 60
    assert (len(frame.limit(3).collect()), len(frame.select("value").collect()), frame.count()) == (3, 30, 30)
    frame.createOrReplaceTempView("used")
    found = spark.sql("SELECT (SELECT count(*) FROM used WHERE segment = 2), max(transaction_id), count(*) FROM used")
    assert tuple(found.collect()[0]) == (10, 30, 30)


def test_each_action_reads_what_the_log_has_by_then(spark: SparkSession, reading: Reading, logs: Logs) -> None:
    frame = reading.frame()
    until_then = reading.frame(log=reading.log, endingTransactionId="26")
    later = reading.frame(log=reading.log, endingTransactionId="33", startingTransactionId="30")
    pattern = reading.frame(subscribePattern=f"{reading.log}.*")
    frame.createOrReplaceTempView("growing")
    frames = [frame, until_then, later, pattern, spark.table("growing")]
    assert [one.count() for one in frames] == [30, 25, 1, 30, 30]
    logs.write(reading.log, range(31, 35), keep_open=True)
    assert [one.count() for one in frames] == [34, 25, 3, 34, 34]
    assert frame.rdd.map(lambda row: row.transaction_id).max() == 34
    logs.write(logs.create(f"{reading.log}-new"), [100])
    logs.write(reading.log, [35])
    assert [one.count() for one in frames] == [35, 25, 3, 36, 35]
    assert ids(frame) == list(range(1, 36))
    kept = reading.frame().cache()
    assert kept.count() == 35
    logs.write(reading.log, [36])
    assert (kept.count(), frame.where("transaction_id > 34").count(), reading.frame().count()) == (35, 2, 36)
    kept.unpersist()
    assert kept.count() == 36


def test_the_very_same_frame_object_collected_again_reads_what_the_log_has_by_then(
    spark: SparkSession, reading: Reading, logs: Logs, way: str
) -> None:
    frame = reading.frame()
    narrow = frame.where("transaction_id > 28").where("length(value) > 0").select("transaction_id")
    pattern = reading.frame(subscribePattern=f"{reading.log}.*")
    ended = reading.frame(log=reading.log, endingTransactionId="26")
    frames = [frame, narrow, pattern, ended]
    in_memory = frame.where("transaction_id > 20").cache()
    joined = frame.join(f.broadcast(frame.select("transaction_id")), "transaction_id")
    repeated = [in_memory, frame.orderBy("transaction_id"), joined]

    def counts(these: list[DataFrame]) -> list[int]:
        return [len(one.collect()) for one in these]

    assert (counts(frames), counts(repeated)) == ([30, 2, 30, 25], [10, 30, 30])
    logs.write(reading.log, range(31, 35), keep_open=True)
    assert counts(frames) == [34, 6, 34, 25]
    assert [row.transaction_id for row in narrow.collect()] == [29, 30, 31, 32, 33, 34]
    logs.write(logs.create(f"{reading.log}-new"), [100])
    logs.write(reading.log, [35])
    assert counts(frames) == [35, 7, 36, 25]
    assert (len(frame.toPandas()), len(narrow.toPandas())) == (35, 7)
    # Spark keeps the outputs of exchanges, and broadcasts: nothing new in one part of such a query alone.
    assert counts(repeated) == [10, 30, 30]
    assert counts([one.select("*") for one in repeated]) == [10, 35, 35]
    in_memory.unpersist()
    if way == JAR:
        logs.delete_first_segment(reading.log)
        with pytest.raises(Exception, match="OutdatedPlanError") as caught:
            frame.collect()
        assert "Load the frame again" in str(caught.value)
        assert len(frame.select("*").collect()) == 15


def test_each_micro_batch_is_joined_with_what_the_log_has_by_then(
    spark: SparkSession, reading: Reading, logs: Logs, checkpoint: Path
) -> None:
    totals: list[int] = []
    source = logs.create(f"{reading.log}-source")
    logs.write(source, [1])
    stream = spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", 5).load(source).select("value")
    joined = stream.crossJoin(reading.frame().groupBy().agg(f.count("value").alias("total")))
    query = (
        joined.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _: totals.extend(row.total for row in batch.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        logs.write(reading.log, range(31, 35))
        logs.write(source, [2])
        query.processAllAvailable()
    finally:
        query.stop()
    assert totals == [30, 34]


class Appender:
    """Appends records, one at a time, until it is stopped."""

    def __init__(self, logs: Logs, log: str) -> None:
        self._logs = logs
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._append)
        self.last = 1_000

    def _append(self) -> None:
        while not self._stop.is_set():
            self.last += 1
            self._logs.write(self._log, [self.last], keep_open=self.last % 20 > 0)

    def __enter__(self) -> Appender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_all_uses_in_one_query_see_the_same_records_while_others_append(
    spark: SparkSession, reading: Reading, logs: Logs
) -> None:
    frame, other = reading.frame(), reading.frame(subscribePattern=f"{reading.log}.*")
    frame.createOrReplaceTempView("appended")
    sides: list[Any] = []
    with Appender(logs, reading.log):
        for _ in range(2):
            union = frame.selectExpr("1 AS side").union(frame.selectExpr("2")).union(other.selectExpr("3"))
            sides.append({row["count"] for row in union.groupBy("side").count().collect()})
            question = """
                SELECT (SELECT count(*) FROM appended), (SELECT sum(1) FROM appended), sum(1), count(DISTINCT value)
                FROM appended JOIN (SELECT transaction_id FROM appended) USING (transaction_id)"""
            sides.append(set(spark.sql(question).collect()[0]))
    assert [len(one) for one in sides] == [1] * 4, sides
    counts = [one.pop() for one in sides]
    assert counts == sorted(counts)
    assert counts[-1] > 30


def test_a_log_that_has_lost_what_was_planned_is_read_as_it_is_or_refused(
    reading: Reading, logs: Logs, way: str
) -> None:
    def again(frame: DataFrame) -> list[int] | str:
        try:
            return ids(frame)
        except Exception as error:
            return str(error)

    frame = reading.frame()
    assert frame.count() == 30
    logs.delete_first_segment(reading.log)
    truncated = again(frame)
    logs.delete(reading.log)
    deleted = again(frame)
    logs.write(logs.create(reading.log), range(500, 540))
    made_again = again(frame)
    assert "LogNotFoundError" in deleted
    if way == JAR:
        assert (truncated, made_again) == (list(range(21, 31)), list(range(500, 540)))
    else:
        for text in (truncated, made_again):
            assert "OutdatedPlanError" in text
            assert "Load the frame again" in text
    assert ids(reading.frame()) == list(range(500, 540))
