"""A plan that Spark keeps, brought up to date by tasks; and what one query sees of its logs. Without Spark."""

from __future__ import annotations

import json

import pytest
from helpers.spark.memory_world import URI, DriverWorld
from pyspark import TaskContext

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.connection import driver_process
from dlspark.spark.errors import OutdatedPlanError, RecreatedDataLossError, TruncatedDataLossError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import kept_plan
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.kept_plan import KeptPartition, KeptPlan, kept_partitions, later_records, look
from dlspark.spark.source.offsets import LogIdentity
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.query_snapshot import QuerySnapshot, SeenLog, packed
from dlspark.spark.source.selection import SourceQuery
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import TruncationStatus


def query_of(**raw: str) -> SourceQuery:
    return SourceQuery.of(Options({"uri": URI, **raw}, Scope.SOURCE_BATCH))


async def planned(
    driver_world: DriverWorld, *, bounds: Bounds | None = None, planned_in: int | None = None, **raw: str
) -> list[LogPartition]:
    """The partitions of a frame, as its driver makes them."""
    query, snapshot = query_of(**raw), QuerySnapshot()
    driver = SourceDriver(query, driver_world.connect, snapshot=snapshot)
    await driver.open()
    try:
        ends = await driver.ends()
        spans = await driver.plan(*ends, bounds or Bounds()) or [()]
        partitions = [LogPartition(one, driver.client_settings) for one in spans]
    finally:
        await driver.close()
    # No process of Spark's is above this one.
    plan = KeptPlan(query, *ends, bounds=bounds or Bounds(), planned_in=planned_in, driver="driver")
    return kept_partitions(plan, snapshot, partitions)


async def beyond(driver_world: DriverWorld, partitions: list[LogPartition], execution: int = 1) -> list[str]:
    """What an execution reads beyond the plan: ranges of records, `log segment:entry to entry`."""
    *_, last = partitions
    assert isinstance(last, KeptPartition)
    found = await look(last, "", execution, driver_world.connect)
    assert found is not None
    return [said(span) for span in found.spans]


def said(span: SegmentSpan) -> str:
    return f"{span.log} {span.lssn}:{span.first_entry}:{span.first_slot} to {span.last_entry}"


async def test_what_was_appended_since_is_read_to_where_the_first_task_saw_the_end(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(20), keep_open=True)
    frame = await planned(driver_world, log="t")
    assert [said(span) for span in frame[0].spans] == ["t 1:0:0 to 1"]
    assert await beyond(driver_world, frame) == []
    await driver_world.write("t", range(20, 30), keep_open=True)
    assert await beyond(driver_world, frame) == [], "the execution is the same"
    assert await beyond(driver_world, frame, 2) == ["t 1:2:0 to 3"], "with a control record"
    await driver_world.write("t", range(30, 40))
    await driver_world.write("t", range(40, 50))
    assert await beyond(driver_world, frame, 2) == ["t 1:2:0 to 3"]
    assert await beyond(driver_world, frame, 3) == ["t 1:2:0 to 5", "t 2:0:0 to 0"]


async def test_two_frames_of_one_execution_end_at_the_same_record(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    first = await planned(driver_world, log="t")
    await driver_world.write("t", range(10))
    second = await planned(driver_world, subscribePattern="t.*")
    await driver_world.write("t", range(10, 20))
    assert await beyond(driver_world, second, 5) == ["t 2:0:0 to 0"]
    await driver_world.write("t", range(20, 30))
    assert await beyond(driver_world, first, 5) == ["t 1:0:0 to 0", "t 2:0:0 to 0"]


async def test_a_pattern_takes_up_new_logs_and_an_end_that_was_named_stays(driver_world: DriverWorld) -> None:
    await driver_world.create("t-1")
    await driver_world.write("t-1", range(10))
    by_pattern = await planned(driver_world, subscribePattern="t-.*")
    reached = await planned(driver_world, log="t-1", endingTransactionId="7")
    by_position = await planned(driver_world, log="t-1", endingOffsets=json.dumps({"t-1": "1:0:4"}))
    not_yet = await planned(driver_world, log="t-1", endingTransactionId="14", startingTransactionId="5")
    await driver_world.create("t-2")
    await driver_world.write("t-2", range(5))
    await driver_world.write("t-1", range(10, 20))
    assert await beyond(driver_world, by_pattern) == ["t-1 2:0:0 to 0", "t-2 1:0:0 to 0"]
    assert await beyond(driver_world, not_yet) == ["t-1 2:0:0 to 0"]
    for settled in (reached, by_position):
        assert not any(isinstance(partition, KeptPartition) for partition in settled), "nobody looks"


async def test_a_start_that_was_not_there_yet_is_looked_for_again(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    frame = await planned(
        driver_world, log="t", startingTransactionId="15", startingOffsetsByTimestampStrategy="latest"
    )
    assert [span for partition in frame for span in partition.spans] == []
    await driver_world.write("t", range(10, 20), entry=5)
    assert await beyond(driver_world, frame) == ["t 2:1:0 to 1"]


async def test_the_first_task_and_the_last_one_look_and_no_other(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(40), entry=5)
    frame = await planned(driver_world, log="t", minPartitions="4")
    assert len(frame) == 4
    looking = [(partition.last if isinstance(partition, KeptPartition) else None) for partition in frame]
    assert looking == [False, None, None, True]
    first = frame[0]
    assert isinstance(first, KeptPartition)
    assert await look(first, "", 1, driver_world.connect) is None


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_a_plan_of_records_that_are_gone_is_refused(driver_world: DriverWorld, fails: str) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    await driver_world.write("t", range(10, 20))
    await driver_world.create("u")
    frame = await planned(driver_world, subscribePattern="[tu]", failOnDataLoss=fails)
    named = await planned(driver_world, log="t", failOnDataLoss=fails)
    later_half = await planned(driver_world, log="t", startingTransactionId="10", failOnDataLoss=fails)
    await driver_world.truncate("t", 0, TruncationStatus.TRUNCATED)
    with pytest.raises(OutdatedPlanError, match=r"from 1:0:0 to 2:1:0, and it is from 2:0:0 to 2:1:0 now"):
        await beyond(driver_world, frame)
    assert await beyond(driver_world, later_half) == [], "all that it reads is there"
    await driver_world.namespace.delete_log("t")
    with pytest.raises(OutdatedPlanError, match="does not exist any more"):
        await beyond(driver_world, frame, 2)
    with pytest.raises(LogNotFoundError):
        await beyond(driver_world, named, 2)
    await driver_world.create("t")
    with pytest.raises(OutdatedPlanError, match="Load the frame again"):
        await beyond(driver_world, named, 3)
    await driver_world.write("t", range(10))
    for part in range(3):
        await driver_world.write("t", range(10 + part, 11 + part))
    with pytest.raises(OutdatedPlanError, match="made again"):
        await beyond(driver_world, named, 4)


async def test_a_start_that_was_named_is_gone_where_its_records_are(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    for part in range(3):
        await driver_world.write("t", range(10 * part, 10 * part + 10))
    given = {"log": "t", "startingOffsets": '{"t": "1:0:0"}', "failOnDataLoss": "false"}
    frame = await planned(driver_world, **given)
    behind = await planned(driver_world, **{**given, "startingOffsets": '{"t": "1:1:0"}'})
    await driver_world.truncate("t", 0, TruncationStatus.TRUNCATED)
    with pytest.raises(OutdatedPlanError, match=r"from 1:0:0 to 3:1:0, and it begins at 2:0:0 now"):
        await beyond(driver_world, frame)
    assert await beyond(driver_world, behind) == [], "of the segment it reads nothing"
    later = await planned(driver_world, **given)
    assert await beyond(driver_world, later, 2) == [], "it was planned to begin behind it"
    logs = driver_world.namespace.logs_store
    await logs.delete_segment("t", (await logs.segments("t"))[0])
    for number, one in enumerate([behind, later], 3):
        assert await beyond(driver_world, one, number) == [], "what they read is there"


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_what_came_behind_an_empty_plan_and_was_truncated_is_data_loss(
    driver_world: DriverWorld, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    frame = await planned(driver_world, log="t", startingOffsets='{"t": "1:1:0"}', failOnDataLoss=fails)
    for part in range(1, 4):
        await driver_world.write("t", range(10 * part, 10 * part + 10))
    for index in range(2):
        await driver_world.truncate("t", index, TruncationStatus.TRUNCATED)
    if fails == "true":
        with pytest.raises(TruncatedDataLossError):
            await beyond(driver_world, frame)
    else:
        assert await beyond(driver_world, frame) == ["t 3:0:0 to 0", "t 4:0:0 to 0"]
        assert "failOnDataLoss is false" in caplog.text


async def test_a_plan_that_runs_again_reads_of_later_records_what_was_pushed_down_to_it(
    driver_world: DriverWorld,
) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    frame = await planned(driver_world, log="t", bounds=Bounds(min_txid=8, end_txid=25), planned_in=7)
    assert [said(span) for span in frame[0].spans] == ["t 1:0:8 to 0"]
    await driver_world.write("t", range(10, 20))
    await driver_world.write("t", range(20, 30), entry=5)
    await driver_world.write("t", range(30, 40))
    assert await beyond(driver_world, frame, 8) == ["t 2:0:0 to 0", "t 3:0:0 to 0"]


async def test_the_execution_that_has_planned_a_read_does_not_look(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver_world.create("t")
    (only,) = await planned(driver_world, log="t", planned_in=7)
    assert isinstance(only, KeptPartition)

    class Context:
        number: str | None = "7"

        def getLocalProperty(self, name: str) -> str | None:
            assert name == "spark.sql.execution.id"
            return self.number

        def stageId(self) -> int:
            return 7

    async def looked(*asked: object) -> LogPartition:
        return LogPartition((), only.client_settings)

    context = Context()
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    monkeypatch.setattr(kept_plan, "look", looked)
    assert later_records(only) is None
    for other in ("8", None):
        context.number = other
        assert later_records(only) is not None, "another execution, or the tasks of a stage without one"


async def test_outside_of_spark_a_partition_is_what_was_planned(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    frame = await planned(driver_world, log="t")
    (only,) = frame
    assert isinstance(only, KeptPartition)
    assert TaskContext.get() is None
    assert later_records(only) is None
    assert list(read_partition(only, ["value"])) == []
    assert driver_process() is None, "no process of Spark's is above this one"


# ---------------------------------------------------------------------- what one query sees


def test_a_snapshot_travels_as_text_without_a_bracket() -> None:
    seen = QuerySnapshot(
        {
            "a]b": SeenLog(DLSN(1, 0, 0), DLSN(3, 4, 5), LogIdentity(3, 17, "6c5d%5D")),
            "new": SeenLog(DLSN(1, 0, 0), DLSN(1, 0, 0), None),
        },
        {"[a-z]+": ("a]b", "new"), "nothing": ()},
    )
    all_ = seen.within({"other": {"logs": {}, "matched": {}}}, URI)
    text = packed(all_)
    assert "]" not in text
    assert QuerySnapshot.of(json.loads(text), URI) == seen
    assert QuerySnapshot.of(json.loads(text), "other") == QuerySnapshot()
    assert QuerySnapshot.of({}, URI) == QuerySnapshot()


async def driver_seeing(driver_world: DriverWorld, snapshot: QuerySnapshot, **raw: str) -> SourceDriver:
    driver = SourceDriver(query_of(**raw), driver_world.connect, snapshot=snapshot)
    await driver.open()
    driver_world._drivers.append(driver)
    return driver


async def test_later_scans_of_a_query_see_what_the_first_one_saw(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    snapshot = QuerySnapshot()
    start, end = await (await driver_seeing(driver_world, snapshot, log="t")).ends()
    pattern, _ = QuerySnapshot(), await (await driver_seeing(driver_world, snapshot, subscribePattern="t.*")).ends()
    await driver_world.write("t", range(10, 20))
    await driver_world.create("t-new")
    assert await (await driver_seeing(driver_world, snapshot, log="t")).ends() == (start, end)
    assert list((await (await driver_seeing(driver_world, snapshot, subscribePattern="t.*")).ends())[1]) == ["t"]
    by_id = await driver_seeing(driver_world, snapshot, log="t", endingTransactionId="15")
    assert (await by_id.ends())[1] == end
    by_id = await driver_seeing(driver_world, snapshot, log="t", endingTransactionId="7")
    assert (await by_id.ends())[1]["t"] == DLSN(1, 0, 7)
    assert (await (await driver_seeing(driver_world, pattern, subscribePattern="t.*")).ends())[1]["t"] == DLSN(2, 1, 0)


async def test_what_is_lost_between_two_scans_of_a_query_is_data_loss(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    await driver_world.write("t", range(10, 20))
    snapshot = QuerySnapshot()
    await (await driver_seeing(driver_world, snapshot, log="t")).ends()
    await driver_world.truncate("t", 0, TruncationStatus.TRUNCATED)
    for start in ({}, {"startingTransactionId": "3"}):
        driver = await driver_seeing(driver_world, snapshot, log="t", **start)
        with pytest.raises(TruncatedDataLossError):
            await driver.plan(*await driver.ends())
    later = await driver_seeing(driver_world, snapshot, log="t", startingTransactionId="12")
    assert [said(span) for part in await later.plan(*await later.ends()) for span in part] == ["t 2:0:2 to 0"]
    await driver_world.namespace.delete_log("t")
    await driver_world.create("t")
    await driver_world.write("t", range(10))
    await driver_world.write("t", range(10, 20))
    with pytest.raises(RecreatedDataLossError):
        await (await driver_seeing(driver_world, snapshot, log="t")).ends()
