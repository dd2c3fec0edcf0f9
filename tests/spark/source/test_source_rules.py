"""What a query does with limits, frozen ends, cursors and logs that are not the ones it knew; no Spark.

Real storage nodes in this process, metadata in memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.spark.memory_world import DriverWorld
from test_source_driver import read

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import EntrySummary
from dlspark.spark.errors import (
    DataLossError,
    DeletedDataLossError,
    OffsetError,
    OptionError,
    RecreatedDataLossError,
    TruncatedDataLossError,
    UnreachableEndDataLossError,
)
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import extents
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.extents import advance_bytes, bytes_between, extent, next_entry_bytes
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.segment_records import SegmentRecords
from dlspark.spark.source.selection import NO_BATCH_LIMITS, BatchLimits
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.store import ANY_VERSION


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries as a writer leaves them that does not count (enableRecordCounts of Java's library); ours always does."""
    counted = SegmentRecords.entry

    async def summary(view: SegmentRecords, segment: SegmentMetadata, entry_id: int) -> EntrySummary:
        return replace(await counted(view, segment, entry_id), first_position=0, last_position=0)

    monkeypatch.setattr(SegmentRecords, "entry", summary)


@pytest.mark.usefixtures("uncounted")
async def test_records_of_an_open_segment_that_are_not_counted_are_never_taken_for_none(
    driver_world: DriverWorld,
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), entry=1, keep_open=True)
    for behind in range(3):  # control records behind the last record
        view = await driver_world.view(name)
        end = await view.latest()
        assert end == DLSN(1, 5, 0)
        for start, until in ((view.earliest(), end), (DLSN(1, 2, 0), end), (view.earliest(), DLSN(1, 6, 0))):
            with pytest.raises(OptionError, match="written without them"):
                await view.count(start, until)
        assert (await extent(view, DLSN(1, 0, 0), end)).records is None, behind
        await driver_world.commit(name)
    driver = await driver_world.driver(subscribe=name, maxOffsetsPerTrigger=2)
    with pytest.raises(OptionError, match="maxBytesPerTrigger"):
        await driver.end_of_batch(await driver.resolve(driver.query.start), driver.query.limits, None)
    await driver_world.write(name, [])


@pytest.mark.usefixtures("uncounted")
async def test_records_before_a_control_record_that_are_not_counted_are_never_taken_for_none(
    driver_world: DriverWorld,
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), entry=1, keep_open=True)  # a control record is entry 5
    await driver_world.write(name, [5])
    view = await driver_world.view(name)
    [segment] = view.between(DLSN(1, 0, 0), await view.latest())
    assert (segment.last_entry, segment.record_count) == (6, 6)
    with pytest.raises(OptionError, match="written without them"):
        await view.count(DLSN(1, 0, 0), DLSN(1, 5, 0))
    view._segments = [replace(segment, record_count=0, last_entry=5)]
    with pytest.raises(OptionError, match="written without them"):
        await view.count(DLSN(1, 0, 0), DLSN(2, 0, 0))


def through_checkpoint(offsets: Offsets) -> Offsets:
    return Offsets.from_stored(json.loads(json.dumps(offsets.stored())))


# ---------------------------------------------------------------------- which log it is


async def recreated(driver_world: DriverWorld, driver: SourceDriver) -> Offsets:
    """The end of everything in a log of 12 records, which then is deleted and created again, and grows further."""
    name = await driver_world.create()
    await driver_world.write(name, range(12), entry=4)
    begin = await driver.resolve(driver.query.start)
    end = through_checkpoint(await driver.end_of_batch(begin, NO_BATCH_LIMITS, None))
    await driver_world.namespace.delete_log(name)
    await driver_world.create(name)
    await driver_world.write(name, range(100, 140), entry=4)
    return end


async def test_a_log_created_again_and_grown_past_the_position_is_refused(driver_world: DriverWorld) -> None:
    driver = await driver_world.driver(log="flights")
    end = await recreated(driver_world, driver)
    fresh = await driver_world.driver(log="flights")
    for one in (driver, fresh):
        with pytest.raises(RecreatedDataLossError, match="deleted and created again") as caught:
            await one.end_of_batch(end, NO_BATCH_LIMITS, None)
        assert isinstance(caught.value, DataLossError)
        assert (caught.value.log, str(caught.value.dlsn)) == ("flights", str(end["flights"]))
        assert "failOnDataLoss" in str(caught.value)
    with pytest.raises(RecreatedDataLossError):
        await fresh.plan(end, await fresh.latest())
    with pytest.raises(RecreatedDataLossError):
        await fresh.plan(Offsets({"flights": DLSN(1, 0, 0)}), end)


async def test_a_log_created_again_is_read_from_its_beginning_where_loss_is_allowed(
    driver_world: DriverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await driver_world.driver(log="flights", failOnDataLoss="false")
    old = await recreated(driver_world, driver)
    end = await driver.end_of_batch(old, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(old, end)) == list(range(100, 140))
    assert not old.moved(old)
    assert old.moved(end)
    assert "created again" in caplog.text
    # A batch that was fixed in the old log cannot be made up from the new one.
    assert await read(await driver.plan(Offsets({"flights": DLSN(1, 0, 0)}), old)) == []


async def test_a_log_created_again_with_as_many_records_is_a_batch_although_its_position_reads_the_same(
    driver_world: DriverWorld,
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name, failOnDataLoss="false")
    old = await driver.latest()
    await driver_world.namespace.delete_log(name)
    await driver_world.create(name)
    await driver_world.write(name, range(50, 55))
    end = await driver.end_of_batch(old, NO_BATCH_LIMITS, None)
    assert end.positions == old.positions
    assert json.dumps(end.stored()) != json.dumps(old.stored())
    assert await read(await driver.plan(old, end)) == list(range(50, 55))


async def test_a_checkpoint_without_marks_is_read_on_and_gets_them_with_its_next_batch(
    driver_world: DriverWorld,
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    old = Offsets((await driver.latest()).positions)
    assert await driver.end_of_batch(old, NO_BATCH_LIMITS, None) == old
    await driver_world.write(name, range(5, 9))
    end = await driver.end_of_batch(old, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(old, end)) == list(range(5, 9))
    assert end.identities.keys() == {name}


async def test_marks_stay_true_while_segments_roll_end_and_are_truncated(driver_world: DriverWorld) -> None:
    """Batch after batch over a log that changes: the mark of one batch never contradicts the next."""
    name = await driver_world.create()
    driver = await driver_world.driver(log=name)
    position = await driver.resolve(driver.query.start)
    assert position.identities == {}, "of an empty log nothing was read"
    found: list[int] = []
    for part in range(6):
        await driver_world.write(name, range(10 * part, 10 * part + 10), entry=3, keep_open=part % 2 == 0)
        if part == 4:
            await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
        end = through_checkpoint(await driver.end_of_batch(position, BatchLimits(7), None))
        found += await read(await driver.plan(position, end))
        position = end
    while position.moved(end := await driver.end_of_batch(position, NO_BATCH_LIMITS, None)):
        found += await read(await driver.plan(position, end))
        position = end
    assert found == list(range(60))


async def test_a_start_copied_from_a_checkpoint_of_another_log_of_that_name_is_refused(
    driver_world: DriverWorld,
) -> None:
    old = await recreated(driver_world, await driver_world.driver(log="flights"))
    text = json.dumps(old.stored())
    driver = await driver_world.driver(log="flights", startingOffsets=text)
    with pytest.raises(OffsetError, match="names a position of a log that was deleted"):
        await driver.resolve(driver.query.start)


async def test_truncation_and_deletion_have_errors_of_their_own(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10), entry=2)
    await driver_world.write(name, range(10, 20), entry=2)
    driver = await driver_world.driver(log=name)
    start = Offsets({name: DLSN(1, 2, 0)})
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    with pytest.raises(TruncatedDataLossError, match="now begins at 2:0:0"):
        await driver.end_of_batch(start, NO_BATCH_LIMITS, None)
    await driver_world.namespace.delete_log(name)
    with pytest.raises(DeletedDataLossError, match="does not exist any more"):
        await driver.end_of_batch(start, NO_BATCH_LIMITS, None)


@pytest.mark.parametrize("status", [TruncationStatus.TRUNCATED, TruncationStatus.PARTIALLY_TRUNCATED])
async def test_what_a_truncation_has_hidden_is_not_passed_over_by_whoever_comes_from_before_it(
    driver_world: DriverWorld, status: TruncationStatus
) -> None:
    """A list that was read while the log was truncated knows of the younger segments alone (I8)."""
    name = await driver_world.create()
    for first in (0, 10, 20):
        await driver_world.write(name, range(first, first + 10), entry=2)
    driver = await driver_world.driver(log=name)
    await driver_world.truncate(name, 1, status, entry=1)
    begins = "2:1:0" if status is TruncationStatus.PARTIALLY_TRUNCATED else "3:0:0"
    with pytest.raises(TruncatedDataLossError, match=f"now begins at {begins}"):
        await driver.end_of_batch(Offsets({name: DLSN(1, 2, 0)}), NO_BATCH_LIMITS, None)
    assert (await driver.resolve(driver.query.start)).get(name) == DLSN.parse(begins)


async def test_an_empty_segment_that_was_truncated_is_no_loss(driver_world: DriverWorld) -> None:
    """Java's writers complete segments that nothing was written to."""
    name = await driver_world.create()
    for first in (0, 10, 20):
        await driver_world.write(name, range(first, first + 10))
    logs = driver_world.namespace.logs_store
    first, second, _ = await logs.segments(name)
    second = replace(second, record_count=0, last_entry=-1, last_slot=-1)
    await driver_world.namespace.store.put(logs.paths(name).segment(second), second.encode(), ANY_VERSION)
    for index in range(2):
        await driver_world.truncate(name, index, TruncationStatus.TRUNCATED)
    driver = await driver_world.driver(log=name)
    for behind in (DLSN(1, first.last_entry + 1, 0), DLSN(2, 0, 0)):
        assert await read(await driver.plan(Offsets({name: behind}), await driver.latest())) == list(range(20, 30))


async def test_a_log_whose_deletion_was_cut_off_is_data_loss(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await driver_world.create()
    for first in (0, 10, 20):
        await driver_world.write(name, range(first, first + 10), entry=2)
    driver = await driver_world.driver(log=name)
    tolerant = await driver_world.driver(log=name, failOnDataLoss="false")

    async def dies(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(type(driver_world.namespace.logs_store), "delete_tree", dies)
    with pytest.raises(RuntimeError, match="killed"):
        await driver_world.namespace.delete_log(name)
    start = Offsets({name: DLSN(1, 2, 0)})
    with pytest.raises(TruncatedDataLossError):
        await driver.end_of_batch(start, NO_BATCH_LIMITS, None)
    end = await tolerant.end_of_batch(start, NO_BATCH_LIMITS, None)
    assert await read(await tolerant.plan(start, end)) == []


async def test_a_segment_deleted_after_the_plan_is_data_loss_in_the_task(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10), entry=2)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    ((span,),) = await driver.plan(start, await driver.latest())
    collected = replace(span, first_entry=2, ledger=replace(span.ledger, ledger_id=span.ledger.ledger_id + 1000))
    with pytest.raises(TruncatedDataLossError, match="was deleted since the batch was planned") as caught:
        await read([(collected,)])
    assert (caught.value.log, str(caught.value.dlsn)) == (name, "1:2:0")
    assert "failOnDataLoss" in str(caught.value)
    # A node that does not answer may have it: that is another error.
    await driver_world.stop_node(0)
    with pytest.raises(Exception) as other:
        await read([(collected,)])
    assert not isinstance(other.value, DataLossError)


# ---------------------------------------------------------------------- AvailableNow


async def test_a_frozen_end_is_verified_before_each_batch(driver_world: DriverWorld) -> None:
    names = [await driver_world.create(f"log-{n}") for n in range(2)]
    for name in names:
        await driver_world.write(name, range(10), entry=2)
    driver = await driver_world.driver(subscribePattern="log-.*")
    start, target = await driver.resolve(driver.query.start), await driver.latest()
    reached = await driver.end_of_batch(start, BatchLimits(4), target)
    # One that the query has no position in yet is looked at, too.
    nowhere = Offsets({names[0]: reached[names[0]]}, {names[0]: reached.identities[names[0]]})
    await driver_world.namespace.delete_log(names[1])
    with pytest.raises(DeletedDataLossError):
        await driver.end_of_batch(nowhere, BatchLimits(4), target)
    await driver_world.create(names[1])
    await driver_world.write(names[1], range(50), entry=2)
    with pytest.raises(RecreatedDataLossError):
        await driver.end_of_batch(nowhere, BatchLimits(4), target)
    tolerant = await driver_world.driver(subscribePattern="log-.*", failOnDataLoss="false")
    end = await tolerant.end_of_batch(nowhere, NO_BATCH_LIMITS, target)
    assert end[names[0]] == target[names[0]]
    assert names[1] not in end


async def test_a_frozen_end_that_the_log_does_not_have_is_refused(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10), entry=2)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    target = Offsets({name: DLSN(1, 900, 0)})
    with pytest.raises(UnreachableEndDataLossError, match="before the end that was fixed when the query began"):
        await driver.end_of_batch(start, NO_BATCH_LIMITS, target)
    tolerant = await driver_world.driver(log=name, failOnDataLoss="false")
    end = await tolerant.end_of_batch(start, NO_BATCH_LIMITS, target)
    assert await read(await tolerant.plan(start, end)) == list(range(10))
    assert not end.moved(await tolerant.end_of_batch(end, NO_BATCH_LIMITS, target)), "it ends"


# ---------------------------------------------------------------------- limits


async def test_bytes_between_positions_are_those_of_the_entries_and_advancing_agrees(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(40), entry=3)
    await driver_world.write(name, range(40, 45), entry=1)
    await driver_world.write(name, range(45, 90), entry=7, keep_open=True)
    view = await driver_world.view(name)
    begin, end = view.earliest(), await view.latest()
    walk = [begin]
    while walk[-1] < end:
        size = await next_entry_bytes(view, walk[-1], end)
        after = await advance_bytes(view, walk[-1], end, size)
        assert await bytes_between(view, walk[-1], after) == size > 0
        assert await advance_bytes(view, walk[-1], end, size - 1) == walk[-1], "not even one entry fits"
        walk.append(after)
    total = await bytes_between(view, begin, end)
    assert total == sum([await bytes_between(view, one, after) for one, after in pairwise(walk)])
    assert await advance_bytes(view, begin, end, total) == end
    for budget in range(0, total, 37):
        reached = await advance_bytes(view, begin, end, budget)
        assert reached in walk
        assert await bytes_between(view, begin, reached) <= budget
        assert budget < await bytes_between(view, begin, walk[walk.index(reached) + 1])


async def test_the_bytes_of_a_lag_are_those_of_the_entries_that_were_not_read(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small record behind large entries has few bytes; entries were taken for equally large once."""
    name = await driver_world.create()
    await driver_world.write(name, range(2000), entry=1000, keep_open=True)
    await driver_world.write(name, [2000])
    view = await driver_world.view(name)
    end = await view.latest()
    small = await view.at_txid(2000)
    assert small is not None
    assert (small.lssn, small[1:] > (0, 0)) == (1, True)
    behind = await extent(view, small, end)
    assert behind.records == 1
    assert 4 <= behind.bytes == await bytes_between(view, small, end) < 200
    for number in range(2001, 2008):
        await driver_world.write(name, range(number * 10, number * 10 + (100 if number == 2007 else 2)), entry=100)
    end = await view.latest()
    exact = await bytes_between(view, small, end)
    assert (await extent(view, small, end)).bytes == exact
    monkeypatch.setattr(extents, "MAX_LEDGERS", 3)  # of the six between the first and the last, which are alike
    assert (await extent(view, small, end)).bytes == exact


async def test_a_limit_of_bytes_is_kept_and_starves_no_log(driver_world: DriverWorld) -> None:
    names = [await driver_world.create(f"log-{n}") for n in range(3)]
    await driver_world.write(names[0], range(1000, 1400), entry=4)
    await driver_world.write(names[1], range(1000, 1300), entry=100)
    await driver_world.write(names[2], range(1000, 1003), entry=1)
    driver = await driver_world.driver(subscribePattern="log-.*")
    views = await driver.views()
    big = await next_entry_bytes(views[names[1]], DLSN(1, 0, 0), await views[names[1]].latest())
    limit = big + 50
    position = await driver.resolve(driver.query.start)
    target = await driver.latest()
    served: list[set[str]] = []
    rows: list[int] = []
    while position.moved(end := await driver.end_of_batch(position, BatchLimits(max_bytes=limit), target)):
        sizes = {log: await bytes_between(views[log], position[log], end[log]) for log in end}
        assert sum(sizes.values()) <= limit
        served.append({log for log, size in sizes.items() if size})
        rows += await read(await driver.plan(position, end))
        position = end
    assert position.positions == target.positions
    assert sorted(rows) == sorted([*range(1000, 1400), *range(1000, 1300), *range(1000, 1003)])
    assert set.union(*served[:3]) == set(names), "each log has its turn, whatever its entries and the others' are"


async def test_an_entry_above_the_limit_is_a_batch_of_its_own(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(60), entry=20)
    driver = await driver_world.driver(log=name)
    position = await driver.resolve(driver.query.start)
    sizes = []
    while position.moved(end := await driver.end_of_batch(position, BatchLimits(max_bytes=1), None)):
        sizes.append(len(await read(await driver.plan(position, end))))
        position = end
    assert sizes == [20, 20, 20], "and control records behind it make none"


async def test_limits_of_records_and_of_bytes_hold_together(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(100), entry=2)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    by_records = await driver.end_of_batch(start, BatchLimits(9, 1 << 20), None)
    assert await read(await driver.plan(start, by_records)) == list(range(9))
    one = await next_entry_bytes((await driver.views())[name], start[name], by_records[name])
    by_bytes = await driver.end_of_batch(start, BatchLimits(9, 3 * one), None)
    assert await read(await driver.plan(start, by_bytes)) == list(range(6))


async def test_fewer_records_than_the_minimum_wait_until_the_delay_is_over(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(3))
    driver = await driver_world.driver(log=name)
    limits = BatchLimits(min_records=10, max_delay_ms=60_000)
    start = await driver.resolve(driver.query.start)
    first = await driver.end_of_batch(start, limits, None)
    assert start.moved(first), "a query that starts does not wait"
    await driver_world.write(name, range(3, 8))
    driver_world.now_s = 59.0
    assert not first.moved(await driver.end_of_batch(first, limits, None))
    assert not first.moved(await driver.wait_for_batch(first, limits, 0.2))
    driver_world.now_s = 60.0
    second = await driver.end_of_batch(first, limits, None)
    assert await read(await driver.plan(first, second)) == [3, 4, 5, 6, 7]
    await driver_world.write(name, range(8, 17))
    assert not second.moved(await driver.end_of_batch(second, limits, None))
    waiting = asyncio.ensure_future(driver.wait_for_batch(second, limits, 60))
    await driver_world.write(name, range(17, 19))
    third = await asyncio.wait_for(waiting, 60)
    assert await read(await driver.plan(second, third)) == list(range(8, 19))


async def test_the_minimum_does_not_hold_an_available_now_query_up(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(12))
    driver = await driver_world.driver(log=name)
    limits = BatchLimits(max_records=5, min_records=5, max_delay_ms=60_000)
    position, target = await driver.resolve(driver.query.start), await driver.latest()
    sizes = []
    while position.moved(end := await driver.end_of_batch(position, limits, target)):
        sizes.append(len(await read(await driver.plan(position, end))))
        position = end
    assert sizes == [5, 5, 2]


async def test_most_records_of_a_partition_are_exact(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(50), entry=20)
    await driver_world.write(name, range(50, 53), entry=1)
    await driver_world.write(name, range(53, 60), entry=1)
    await driver_world.write(name, range(60, 90), entry=25, keep_open=True)
    for most in (1, 7, 20, 49, 1000):
        driver = await driver_world.driver(log=name, maxRecordsPerPartition=most)
        start = Offsets({name: DLSN(1, 0, 3)})
        planned = await driver.plan(start, await driver.latest())
        parts = [await read([part]) for part in planned]
        assert [txid for part in parts for txid in part] == list(range(3, 90))
        assert all(1 <= len(part) <= most for part in parts), most
        assert len(parts) <= 87 // most + 4


# ---------------------------------------------------------------------- places


async def test_each_log_begins_and_ends_at_its_own_time_or_id(driver_world: DriverWorld) -> None:
    for name in ("a", "b"):
        await driver_world.write(await driver_world.create(name), range(100), entry=7)
    for kind in ("Timestamp", "TransactionId"):
        places = {
            f"startingOffsetsBy{kind}": json.dumps({"a": 10, "b": 95}),
            f"endingOffsetsBy{kind}": json.dumps({"a": 13, "b": 1000}),
        }
        driver = await driver_world.driver(Scope.SOURCE_BATCH, subscribe="a,b", **places)
        start = await driver.resolve(driver.query.start)
        end = await driver.resolve(driver.query.end, ending=True)
        assert await read(await driver.plan(start, end)) == [10, 11, 12, 95, 96, 97, 98, 99]


async def test_a_time_that_has_not_come_begins_at_the_end_or_is_an_error_as_the_strategy_says(
    driver_world: DriverWorld,
) -> None:
    for name in ("a", "b"):
        await driver_world.write(await driver_world.create(name), range(100), entry=7)
    times = json.dumps({"a": 10, "b": 5000})
    driver = await driver_world.driver(subscribe="a,b", startingOffsetsByTimestamp=times)
    assert (await driver.resolve(driver.query.start))["b"] == (await driver.latest())["b"]
    strict = await driver_world.driver(
        subscribe="a,b", startingOffsetsByTimestamp=times, startingOffsetsByTimestampStrategy="error"
    )
    with pytest.raises(OffsetError, match="has no record at or after 5000 yet") as caught:
        await strict.resolve(strict.query.start)
    assert caught.value.log == "b"
    single = await driver_world.driver(
        subscribe="a,b", startingTimestamp=5000, startingOffsetsByTimestampStrategy="error"
    )
    with pytest.raises(OffsetError, match="startingTimestamp"):
        await single.resolve(single.query.start)


async def test_entries_narrow_a_plan(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(20), entry=5)
    await driver_world.write(name, range(20, 40), entry=5)
    driver = await driver_world.driver(log=name)
    start, end = await driver.resolve(driver.query.start), await driver.latest()
    planned = await driver.plan(start, end, Bounds(min_entry=1, end_entry=3))
    assert await read(planned) == [*range(5, 15), *range(25, 35)]
    assert sum(span.entries for part in planned for span in part) == 4, "only these entries are fetched"
    assert await read(await driver.plan(start, end, Bounds(min_entry=900))) == []
    of_one_segment = Bounds(min_segment=2, end_segment=3, min_entry=1, end_entry=3)
    view = (await driver.views())[name]
    assert await driver.range(view, start, end, of_one_segment) == (DLSN(2, 1, 0), DLSN(2, 3, 0))
    assert await read(await driver.plan(start, end, of_one_segment)) == list(range(25, 35))
    assert not of_one_segment.scattered
    assert Bounds(min_entry=1).scattered


# ---------------------------------------------------------------------- news


@pytest.mark.parametrize("folder", ["", "team/raw/"])
async def test_a_log_that_comes_under_a_pattern_wakes_the_query(driver_world: DriverWorld, folder: str) -> None:
    """Nothing but the watch ends this wait within its time; there may be no log at all when it begins."""
    driver = await driver_world.driver(subscribePattern=f"{folder}log-.*")
    start = await driver.resolve(driver.query.start)
    for name in (f"{folder}log-1", f"{folder}log-2"):
        waiting = asyncio.ensure_future(driver.wait_for_batch(start, NO_BATCH_LIMITS, 600))
        await asyncio.sleep(0)
        await driver_world.write(await driver_world.create(name), range(5))
        end = await asyncio.wait_for(waiting, 60)
        while name not in end:  # woken by the log before its records were there
            end = await asyncio.wait_for(driver.wait_for_batch(start, NO_BATCH_LIMITS, 600), 60)
        assert await read(await driver.plan(start, end)) == list(range(5))
        start = end


async def test_a_watch_for_new_logs_ends_with_its_driver(driver_world: DriverWorld) -> None:
    before = asyncio.all_tasks()
    driver = await driver_world.driver(subscribePattern="log-.*")
    await driver.latest()
    await driver.wait_for_news(0.05)
    await driver.close()
    assert asyncio.all_tasks() <= before


async def test_looking_again_and_again_for_logs_that_are_not_there_leaves_nothing_open(
    driver_world: DriverWorld,
) -> None:
    await driver_world.create("team/raw/log")  # so that "team" is in the list, and no log
    for given in ({"subscribePattern": "t.*"}, {"subscribe": "nowhere"}):
        driver = await driver_world.driver(**given)
        for _ in range(3):
            assert await driver.latest() == Offsets({})
        assert [log.name for log in driver._opened()._logs if not log.closed] == []


# ---------------------------------------------------------------------- cursors


async def test_a_cursor_stands_where_the_query_began_follows_it_and_keeps_truncation_back(
    driver_world: DriverWorld,
) -> None:
    for name in ("a", "b"):
        await driver_world.create(name)
        for part in range(3):
            await driver_world.write(name, range(10 * part, 10 * part + 10), entry=5)
    driver = await driver_world.driver(subscribe="a,b", cursorName="billing")
    begin = await driver.resolve(driver.query.start)
    await driver.begin_cursor(begin)
    log = await driver_world.namespace.open_log("a")
    assert await log.subscribers() == {"billing": DLSN(1, 0, 0)}
    assert await log.truncate(DLSN(3, 0, 0), respect_subscribers=True) == DLSN(1, 0, 0)
    await driver.move_cursor(Offsets({"a": DLSN(2, 1, 0), "b": DLSN(1, 1, 0)}))
    assert await log.subscribers() == {"billing": DLSN(2, 1, 0)}
    assert await log.truncate(DLSN(3, 0, 0), respect_subscribers=True) == DLSN(2, 1, 0)
    # It does not go back, neither for a batch that is run again nor for a query that begins again.
    await driver.move_cursor(begin)
    again = await driver_world.driver(subscribe="a,b", cursorName="billing")
    await again.begin_cursor(Offsets({"a": DLSN(3, 0, 0), "b": DLSN(3, 0, 0)}))
    assert await log.subscribers() == {"billing": DLSN(2, 1, 0)}
    await log.close()


async def test_a_cursor_passes_over_logs_that_are_gone(
    driver_world: DriverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name, cursorName="billing")
    with caplog.at_level(logging.WARNING):
        await driver.move_cursor(Offsets({name: DLSN(1, 1, 0), "gone": DLSN(7, 0, 0)}))
    assert caplog.text == ""
    log = await driver_world.namespace.open_log(name)
    assert await log.subscribers() == {"billing": DLSN(1, 1, 0)}
    await log.close()
