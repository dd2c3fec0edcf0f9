"""The driver's side of the source over real storage nodes in this process and metadata in memory; no Spark."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import pickle
from collections.abc import Sequence

import pytest
from helpers.spark.memory_world import DriverWorld

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import EntrySummary
from dlspark.core.runtime import Runtime
from dlspark.spark.errors import DataLossError, OffsetError, OptionError
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import driver_log_view
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.log_spans import entries_without_replica
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from dlspark.spark.source.planning import Partition
from dlspark.spark.source.segment_records import SegmentRecords
from dlspark.spark.source.selection import NO_BATCH_LIMITS, BatchLimits
from dlspark.spark.source.span_entries import SHARED_READERS
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from storage_node.settings.client import ClientSettings


async def read(partitions: Sequence[Partition]) -> list[int]:
    """Transaction ids that tasks read, in order."""

    def run() -> list[int]:
        found: list[int] = []
        for spans in partitions:
            for batch in read_partition(LogPartition(spans, ClientSettings()), ["transaction_id"]):
                found += batch["transaction_id"].to_pylist()
        return found

    return await asyncio.get_running_loop().run_in_executor(None, run)


async def mixed_log(driver_world: DriverWorld) -> tuple[str, list[DLSN]]:
    """Segments of 7, 0 (only control records), 12 and 5 records, the last one open; and the place of each record."""
    name = await driver_world.create()
    await driver_world.write(name, range(7), entry=3)
    await driver_world.write(name, range(7, 19), entry=5)
    await driver_world.write(name, range(19, 22), entry=2, keep_open=True)
    await driver_world.commit(name)
    await driver_world.write(name, range(22, 24), entry=2, keep_open=True)
    reader = await (await driver_world.namespace.open_log(name)).open_reader()
    records = [await reader.read_next() for _ in range(24)]
    await reader.close()
    return name, [record.dlsn for record in records]


# ---------------------------------------------------------------------- positions and counts


async def test_counting_and_advancing_agree_with_a_walk_over_every_record(driver_world: DriverWorld) -> None:
    name, places = await mixed_log(driver_world)
    view = await driver_world.view(name)
    end = await view.latest()
    assert end == DLSN(places[-1].lssn, places[-1].entry_id + 1, 0)
    for first, last in itertools.combinations(range(len(places)), 2):
        assert await view.count(places[first], places[last]) == last - first
    for first in range(len(places)):
        assert await view.count(places[first], end) == len(places) - first
        for records in range(1, len(places) - first):
            reached = await view.advance(places[first], end, records)
            assert await view.count(places[first], reached) == records
            assert await view.count(reached, end) == len(places) - first - records


async def test_the_end_does_not_move_for_control_records_or_the_end_of_stream(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), keep_open=True)
    view = await driver_world.view(name)
    before = await view.latest()
    for _ in range(4):
        await driver_world.commit(name)
        assert await view.latest() == before
    await driver_world.write(name, [5], keep_open=True)
    assert await view.latest() > before
    await driver_world.seal(name)
    assert await view.count(view.earliest(), await view.latest()) == 6


async def test_positions_are_found_by_search_not_by_scanning(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(0, 4_000, 2), entry=2, keep_open=True)
    view = await driver_world.view(name)
    end = await view.latest()
    assert end.entry_id >= 1_000
    allowed = math.ceil(math.log2(1_001)) + 4
    for action in (
        lambda: view.at_txid(2_501),
        lambda: view.advance(DLSN.INITIAL, end, 777),
        lambda: view.count(DLSN(1, 123, 1), DLSN(1, 901, 1)),
    ):
        view.probes.entries = 0
        await action()
        assert view.probes.entries <= allowed
    assert await view.at_txid(2_501) == DLSN(1, 625, 1)
    assert await view.at_txid(3_999) is None


async def test_where_records_are_evenly_spread_a_place_is_found_in_two_entries(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(0, 4_000, 2), entry=2)
    await driver_world.write(name, range(4_000, 8_000, 2), entry=2, keep_open=True)
    view = await driver_world.view(name)
    end = await view.latest()
    for action, found in (
        (lambda: view.at_txid(2_501), DLSN(1, 625, 1)),
        (lambda: view.at_txid(2_500), DLSN(1, 625, 0)),
        (lambda: view.advance(DLSN.INITIAL, end, 777), DLSN(1, 388, 1)),
        (lambda: view.advance(DLSN(2, 0, 0), end, 778), DLSN(2, 389, 0)),
    ):
        view.probes.entries = 0
        assert await action() == found
        assert view.probes.entries <= 2
    view.probes.entries = 0
    assert await view.at_txid(6_501) == DLSN(2, 625, 1)
    assert view.probes.entries <= 3, "the last one tells how far ids go in the open segment"


@pytest.mark.parametrize(("begin", "most"), [(300, 0), (250, 0), (600, 0), (455, 2), (450, 2)])
async def test_a_rewind_reads_next_to_nothing_but_its_rows(driver_world: DriverWorld, begin: int, most: int) -> None:
    """Whole entries are read, 256 KB each in a log that is written fast; none where a segment begins at the place."""
    name = await driver_world.create()
    for ids in (range(250), range(300, 600), range(600, 620)):
        await driver_world.write(name, ids)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name, startingTimestamp=begin)
    start = await driver.resolve(driver.query.start)
    planned = await driver.plan(start, await driver.latest())
    probes = (await driver.views())[name].probes
    entry_bytes = planned[0][0].entry_bytes
    assert probes.entries <= most
    assert probes.bytes <= 1.2 * most * entry_bytes
    assert (probes.bytes > 0) == (most > 0)
    assert await read(planned) == [number for number in (*range(250), *range(300, 620)) if number >= begin]


async def test_a_log_without_records_has_one_position(driver_world: DriverWorld) -> None:
    view = await driver_world.view(await driver_world.create())
    assert view.earliest() == DLSN.INITIAL
    assert await view.latest() == DLSN.INITIAL
    assert not await view.beyond_end(DLSN.INITIAL)
    assert await view.beyond_end(DLSN(1, 0, 1))


# ---------------------------------------------------------------------- plans


async def test_any_two_positions_plan_exactly_the_records_between_them(driver_world: DriverWorld) -> None:
    name, places = await mixed_log(driver_world)
    driver = await driver_world.driver(log=name, minPartitions=4)
    end = await (await driver_world.view(name)).latest()
    for first, last in [(0, 24), (1, 23), (6, 7), (6, 8), (3, 3), (17, 20), (19, 24), (7, 19)]:
        until = places[last] if last < 24 else end
        planned = await driver.plan(Offsets({name: places[first]}), Offsets({name: until}))
        assert await read(planned) == list(range(first, last))


async def test_a_plan_is_made_from_offsets_alone(driver_world: DriverWorld) -> None:
    name, _ = await mixed_log(driver_world)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    end = await driver.end_of_batch(start, BatchLimits(9), None)
    first = await driver.plan(start, end)
    await driver_world.write(name, range(24, 40))
    replayed = await (await driver_world.driver(log=name)).plan(
        Offsets.from_stored(json.loads(json.dumps(start.stored()))),
        Offsets.from_stored(json.loads(json.dumps(end.stored()))),
    )
    assert await read(replayed) == await read(first) == list(range(9))


async def test_sequence_ids_are_the_same_before_and_after_a_segment_is_completed(driver_world: DriverWorld) -> None:
    name, _ = await mixed_log(driver_world)

    async def sequence_ids() -> list[int]:
        driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
        start = await driver.resolve(driver.query.start)
        planned = await driver.plan(start, await driver.latest())
        found = []
        for spans in planned:
            for span in spans:
                found.append((span.lssn, span.start_sequence_id))
        return found

    before = await sequence_ids()
    await driver_world.seal(name)
    assert await sequence_ids() == before == [(1, 0), (2, 7), (3, 19)]


async def test_bounds_of_filters_narrow_a_plan(driver_world: DriverWorld) -> None:
    name, _ = await mixed_log(driver_world)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    end = await driver.latest()
    for bounds, expected in [
        (Bounds(min_txid=5, end_txid=21), range(5, 21)),
        (Bounds(min_segment=2, end_segment=3), range(7, 19)),
        (Bounds(logs=frozenset({"other"})), []),
        (Bounds(min_txid=1_000), []),
        (Bounds(min_segment=1, end_segment=1), []),
    ]:
        assert await read(await driver.plan(start, end, bounds)) == list(expected), bounds


# ---------------------------------------------------------------------- how far a batch goes


async def test_a_limit_is_exact_over_logs_and_all_of_them_get_on(driver_world: DriverWorld) -> None:
    names = [await driver_world.create(f"log-{n}") for n in range(3)]
    for name, count in zip(names, (50, 5, 1), strict=True):
        await driver_world.write(name, range(count), entry=4)
    driver = await driver_world.driver(subscribePattern="log-.*")
    position = await driver.resolve(driver.query.start)
    sizes = []
    while (end := await driver.end_of_batch(position, BatchLimits(8), None)) != position:
        sizes.append(len(await read(await driver.plan(position, end))))
        if len(sizes) == 1:
            assert all(end[name] > position[name] for name in names)
        position = end
    assert sizes == [8] * 7
    assert position == await driver.latest()


async def test_a_target_is_not_passed_and_new_logs_wait(driver_world: DriverWorld) -> None:
    name = await driver_world.create("log-1")
    await driver_world.write(name, range(10))
    driver = await driver_world.driver(subscribePattern="log-.*")
    start = await driver.resolve(driver.query.start)
    target = await driver.latest()
    await driver_world.write(name, range(10, 20))
    await driver_world.write(await driver_world.create("log-2"), range(5))
    end = await driver.end_of_batch(start, NO_BATCH_LIMITS, target)
    assert end == target
    assert await driver.end_of_batch(end, NO_BATCH_LIMITS, target) == end
    beyond = await driver.end_of_batch(end, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(end, beyond)) == [*range(10, 20), *range(5)]


async def test_a_log_that_is_not_read_any_more_keeps_its_position(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    start = Offsets({name: DLSN.INITIAL, "formerly": DLSN(3, 4, 5)})
    end = await driver.end_of_batch(start, NO_BATCH_LIMITS, None)
    assert end["formerly"] == DLSN(3, 4, 5)
    assert await read(await driver.plan(start, end)) == list(range(5))


# ---------------------------------------------------------------------- what is gone


async def test_truncated_segments_are_not_read_and_positions_in_them_are_data_loss(driver_world: DriverWorld) -> None:
    name, places = await mixed_log(driver_world)
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    await driver_world.truncate(name, 1, TruncationStatus.PARTIALLY_TRUNCATED, entry=1)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    assert start[name] == DLSN(2, 1, 0)
    end = await driver.latest()
    assert await read(await driver.plan(start, end)) == list(range(12, 24))
    for lost in (places[2], places[8], DLSN.INITIAL):
        with pytest.raises(DataLossError, match="now begins at 2:1:0") as caught:
            await driver.plan(Offsets({name: lost}), end)
        assert "failOnDataLoss" in str(caught.value)
        assert caught.value.log == name
        tolerant = await driver_world.driver(log=name, failOnDataLoss="false")
        assert await read(await tolerant.plan(Offsets({name: lost}), end)) == list(range(12, 24))


async def test_a_truncated_segment_that_was_read_to_its_end_is_no_loss(driver_world: DriverWorld) -> None:
    name, places = await mixed_log(driver_world)
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    driver = await driver_world.driver(log=name)
    after = DLSN(places[6].lssn, places[6].entry_id + 1, 0)
    assert await read(await driver.plan(Offsets({name: after}), await driver.latest())) == list(range(7, 24))


async def test_a_skip_is_logged_once(driver_world: DriverWorld, caplog: pytest.LogCaptureFixture) -> None:
    name, places = await mixed_log(driver_world)
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    driver = await driver_world.driver(log=name, failOnDataLoss="false")
    start = Offsets({name: places[2]})
    for _ in range(2):
        await driver.plan(start, await driver.end_of_batch(start, NO_BATCH_LIMITS, None))
    warnings = [record.getMessage() for record in caplog.records if record.name == "dlspark.spark.source.data_loss"]
    assert len(warnings) == 1
    assert "failOnDataLoss is false" in warnings[0]


async def test_a_log_created_again_shorter_is_noticed(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    ahead = Offsets({name: DLSN(4, 0, 0)})
    with pytest.raises(DataLossError, match="deleted and created again"):
        await driver.end_of_batch(ahead, NO_BATCH_LIMITS, None)
    tolerant = await driver_world.driver(log=name, failOnDataLoss="false")
    end = await tolerant.end_of_batch(ahead, NO_BATCH_LIMITS, None)
    assert await read(await tolerant.plan(ahead, end)) == list(range(5))


async def test_a_deleted_log_is_data_loss(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    end = await driver.latest()
    await driver_world.namespace.delete_log(name)
    for action in (lambda: driver.end_of_batch(start, NO_BATCH_LIMITS, None), lambda: driver.plan(start, end)):
        with pytest.raises(DataLossError, match="does not exist any more"):
            await action()
    tolerant = await driver_world.driver(log=name, failOnDataLoss="false")
    assert await tolerant.end_of_batch(start, NO_BATCH_LIMITS, None) == start
    assert await tolerant.plan(start, end) == []


async def test_missing_logs_and_foreign_positions_are_named(driver_world: DriverWorld) -> None:
    await driver_world.create("there")
    with pytest.raises(LogNotFoundError, match="missing"):
        await (await driver_world.driver(subscribe="there,missing")).required_views()
    driver = await driver_world.driver(subscribePattern="th.*", startingOffsets='{"other": "1:0:0"}')
    with pytest.raises(OffsetError, match="position for other"):
        await driver.resolve(driver.query.start)
    driver = await driver_world.driver(log="there", startingOffsets='{"there": "7:0:0"}')
    with pytest.raises(OffsetError, match="behind the log's end"):
        await driver.resolve(driver.query.start)


async def test_a_closed_driver_says_so(driver_world: DriverWorld) -> None:
    driver = await driver_world.driver(log=await driver_world.create())
    await driver.close()
    with pytest.raises(OptionError, match="closed"):
        await driver.views()


# ---------------------------------------------------------------------- storage nodes


def test_orphans_are_the_write_sets_without_a_living_node() -> None:
    metadata = LedgerMetadata(3, 2, 2, (Ensemble(0, ("a", "b", "c")), Ensemble(100, ("a", "b", "d"))))
    everyone = {"a", "b", "c", "d"}
    assert entries_without_replica(metadata, 0, 200, everyone) == []
    assert entries_without_replica(metadata, 0, 200, {"a", "b", "c"}) == []
    assert entries_without_replica(metadata, 0, 200, {"a"}) == [1, 100]
    assert entries_without_replica(metadata, 0, 99, {"a", "d"}) == [1]
    assert entries_without_replica(metadata, 100, 200, {"a", "d"}) == []
    assert entries_without_replica(metadata, 2, 3, {"a"}) == []
    assert entries_without_replica(metadata, 0, 0, set()) == [0]


async def test_a_plan_that_no_node_can_serve_is_refused_with_the_nodes_names(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    end = await driver.latest()
    for index in (2, 1):
        await driver_world.stop_node(index)
    assert await read(await driver.plan(start, end)) == list(range(5))
    await driver_world.stop_node(0)
    with pytest.raises(Exception, match="node-0, node-1, node-2") as caught:
        await driver.plan(start, end)
    assert "nothing was read" in str(caught.value)


# ---------------------------------------------------------------------- waiting


@pytest.mark.parametrize("news", ["record", "segment"])
async def test_waiting_ends_with_news(driver_world: DriverWorld, news: str) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), keep_open=news == "record")
    driver = await driver_world.driver(log=name)
    before = await driver.latest()
    waiting = asyncio.ensure_future(driver.wait_for_news(30))
    await driver_world.write(name, range(5, 8), keep_open=True)
    await asyncio.wait_for(waiting, 60)
    assert (await driver.latest())[name] > before[name]


async def test_waiting_without_news_ends_in_time_and_leaves_no_task(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), keep_open=True)
    driver = await driver_world.driver(log=name)
    await driver.latest()
    before = len(asyncio.all_tasks())
    began = asyncio.get_running_loop().time()
    await driver.wait_for_news(0.3)
    assert asyncio.get_running_loop().time() - began >= 0.25
    assert len(asyncio.all_tasks()) <= before


async def test_control_records_do_not_end_the_wait(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5), keep_open=True)
    driver = await driver_world.driver(log=name)
    await driver.latest()
    waiting = asyncio.ensure_future(driver.wait_for_news(30))
    await driver_world.append(name, [9])  # which makes the control record before it visible
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    await driver_world.commit(name)
    await asyncio.wait_for(waiting, 60)


async def test_a_record_that_is_committed_while_the_tail_is_looked_at_ends_the_wait(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer with the control record that is looked at tells of it; the next record may be a long time away."""
    monkeypatch.setattr(driver_log_view, "LONG_POLL_MS", 600_000)
    name = await driver_world.create()
    await driver_world.write(name, range(5), keep_open=True)
    driver = await driver_world.driver(log=name)
    await driver.latest()
    looked_at = SegmentRecords.entry
    written = asyncio.Event()

    async def busy(view: SegmentRecords, segment: SegmentMetadata, entry_id: int) -> EntrySummary:
        found = await looked_at(view, segment, entry_id)
        if not written.is_set():
            written.set()
            await driver_world.commit(name)
            await (await view.reader(segment)).refresh()
        return found

    monkeypatch.setattr(SegmentRecords, "entry", busy)
    waiting = asyncio.ensure_future(driver.wait_for_news(600))
    await driver_world.append(name, [5])
    await asyncio.wait_for(waiting, 60)
    assert written.is_set()
    assert (await driver.latest())[name] == DLSN(1, 3, 0)


@pytest.mark.parametrize("keep_open", [True, False])
async def test_what_the_view_alone_has_seen_since_the_answer_ends_the_wait(
    driver_world: DriverWorld, keep_open: bool
) -> None:
    """Looking whether a position is still there reads a list that changed, and the end with it."""
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    driver = await driver_world.driver(log=name)
    before = await driver.latest()
    await driver_world.write(name, range(5, 8), keep_open=keep_open)
    assert await (await driver.views())[name].latest() > before[name]
    await asyncio.wait_for(driver.wait_for_news(600), 60)


async def test_a_task_that_stops_early_leaves_the_connections_to_the_next_one(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(2_000), entry=100)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    start = await driver.resolve(driver.query.start)
    (spans,) = await driver.plan(start, await driver.latest())

    def first_batch() -> int:
        batches = read_partition(LogPartition(spans, driver.client_settings), ["entry"])
        rows: int = next(batches).num_rows
        batches.close()  # type: ignore[attr-defined]
        return rows

    for _ in range(2):
        assert await asyncio.get_running_loop().run_in_executor(None, first_batch) > 0


async def test_the_drivers_settings_of_the_ledger_client_travel_to_the_tasks(driver_world: DriverWorld) -> None:
    """What `bkc.` keys say on the driver holds in the tasks too, which see neither its files nor its environment."""
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    start = await driver.resolve(driver.query.start)
    (spans,) = await driver.plan(start, await driver.latest())
    partition = pickle.loads(pickle.dumps(LogPartition(spans, driver.client_settings)))
    assert partition.client_settings == driver.client_settings != ClientSettings()
    runtime = Runtime.shared()
    reader = SHARED_READERS.get(runtime, partition.client_settings)
    assert reader.settings.speculative_read_ms == 500
    assert SHARED_READERS.get(runtime, driver.client_settings) is reader
    assert SHARED_READERS.get(runtime, ClientSettings()) is not reader
    assert await read([spans]) == list(range(10))


async def test_a_query_that_starts_while_an_empty_segment_is_gone_reads_what_takes_its_number(
    driver_world: DriverWorld,
) -> None:
    """Recovery removes a segment without records; the next one gets its number, and the query began before it."""
    name = await driver_world.create()
    logs = driver_world.namespace.logs_store
    ledger = await driver_world.namespace.ledgers.create()
    state = await logs.open(name)
    empty = SegmentMetadata(ledger.ledger_id, 1, 0, in_progress=True)
    await logs.start_segment(name, state, empty)
    await logs.delete_segment(name, empty)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    assert start[name] == DLSN(1, 0, 0)
    await driver_world.write(name, range(5))
    assert await read(await driver.plan(start, await driver.latest())) == list(range(5))


# ---------------------------------------------------------------------- how far a query is behind


async def test_a_query_is_told_how_far_it_is_behind_and_pays_nothing_where_it_is_not(driver_world: DriverWorld) -> None:
    for name in ("done", "late", "fresh"):
        await driver_world.create(name)
    await driver_world.write("done", range(5))
    await driver_world.write("late", range(1000, 1030), entry=10)
    await driver_world.write("late", range(1030, 1040), entry=5, keep_open=True)
    await driver_world.write("fresh", range(7), keep_open=True)
    driver = await driver_world.driver(subscribe="done,late,fresh")
    end = await driver.end_of_batch(Offsets({}), NO_BATCH_LIMITS, None)
    assert await driver.lags(end) == {}
    probes = {name: view.probes.entries for name, view in (await driver.views()).items()}
    assert await driver.lags(end) == {}
    assert {name: view.probes.entries for name, view in (await driver.views()).items()} == probes
    behind = await driver.lags(Offsets({"done": end["done"], "late": DLSN(1, 1, 0)}))
    assert {log: (lag.records, lag.milliseconds) for log, lag in behind.items() if lag is not None} == {
        "late": (30, 1039 - 1010),
        "fresh": (7, 6),
    }
    assert behind["late"] is not None
    assert behind["late"].bytes > 30 * 4


async def test_a_lag_that_nobody_can_tell_costs_a_query_a_warning_and_not_its_life(
    driver_world: DriverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(20), entry=5)
    await driver_world.write(name, range(20, 40), entry=5, keep_open=True)
    driver = await driver_world.driver(log=name)
    await driver.latest()
    for _ in range(3):
        await driver_world.stop_node(0)
    assert await driver.lags(Offsets({name: DLSN(2, 1, 0)})) == {name: None}
    assert "is not known" in caplog.text


async def test_a_pattern_that_matches_nothing_is_told_where_was_looked_and_which_folders_there_are(
    driver_world: DriverWorld,
) -> None:
    for name in ("team/raw/a", "team/b", "other"):
        await driver_world.create(name)
    driver = await driver_world.driver(subscribePattern="fl.*")
    assert not await driver.views()
    outside = str(await driver.nothing_matches_error())
    assert "No log outside of all folders matches subscribePattern 'fl.*'; folders there: team; nothing" in outside
    assert "folder a/b for a/b/c-.*" in outside
    below = str(await (await driver_world.driver(subscribePattern="team/fl.*")).nothing_matches_error())
    assert "No log in folder 'team' matches subscribePattern 'team/fl.*'; folders there: raw;" in below
    nowhere = str(await (await driver_world.driver(subscribePattern="gone/.*")).nothing_matches_error())
    assert "No log in folder 'gone' matches subscribePattern 'gone/.*'; nothing was read" in nowhere
