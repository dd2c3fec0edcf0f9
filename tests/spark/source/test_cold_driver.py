"""Logs whose past lies in cold files, as the driver plans them and tasks read them; no Spark."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.cold.moved import HandMover
from helpers.cold.places import folder_place
from helpers.spark.memory_read_proxies import ProxyFleet
from helpers.spark.memory_world import DriverWorld
from helpers.waiting import until

from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
from dlspark.cold.restoring.returning import LogReturn
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.objects.local import LocalStore
from dlspark.spark.errors import DataLossError, TruncatedDataLossError
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import advance_bytes, extent
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.log_spans import Take
from dlspark.spark.source.offsets import LogIdentity, Offsets
from dlspark.spark.source.partition_reader import LogPartition, hosts_of, read_partition
from dlspark.spark.source.planning import Partition
from dlspark.spark.source.proxy_entries import ProxyEntries, TaskProxies
from dlspark.spark.source.selection import BatchLimits
from metadata.distributedlog.cold_places import ColdMirror
from metadata.distributedlog.cold_store import ColdStore
from metadata.store import ANY_VERSION
from storage_node.client.reader import LedgerLocation

COUNTS = (30, 17, 1, 40, 22)


@pytest.fixture
async def mover(driver_world: DriverWorld, tmp_path: Path) -> AsyncIterator[HandMover]:
    made = HandMover(driver_world.namespace, folder_place(tmp_path / "cold").root, row_group_bytes=1_000)
    yield made
    await made.files.close()


async def written(world: DriverWorld, name: str = "flights") -> str:
    """Segments of so many records as `COUNTS` has, with consecutive ids."""
    await world.create(name)
    first = 0
    for count in COUNTS:
        await world.write(name, range(first, first + count), entry=4)
        first += count
    return name


async def moved(world: DriverWorld, mover: HandMover) -> str:
    """Segments 1 and 2 in one file, 3 in another, 4 in a file and hot, 5 hot."""
    name = await written(world)
    await mover.move(name, 1, 2)
    await mover.move(name, 3, 3)
    await mover.copy(name, 4, 4)
    return name


async def read(partitions: Sequence[Partition], driver: SourceDriver) -> list[int]:
    """Transaction ids that tasks read, in order; each partition travels as Spark sends it."""

    def run() -> list[int]:
        found: list[int] = []
        for spans in partitions:
            sent = pickle.loads(pickle.dumps(LogPartition(spans, driver.client_settings)))
            for batch in read_partition(sent, ["transaction_id"]):
                found += batch["transaction_id"].to_pylist()
        return found

    return await asyncio.get_running_loop().run_in_executor(None, run)


async def whole(driver: SourceDriver) -> tuple[Offsets, Offsets]:
    return await driver.resolve(driver.query.start), await driver.latest()


async def test_a_plan_names_files_where_the_ledger_is_gone_and_beside_it_where_it_is_not(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name)
    spans = [span for part in await driver.plan(*await whole(driver)) for span in part]
    kinds = {span.lssn: (type(span.ledger), span.is_cold, span.cold is not None) for span in spans}
    assert kinds == {
        1: (ColdLocation, True, True),
        2: (ColdLocation, True, True),
        3: (ColdLocation, True, True),
        4: (LedgerLocation, False, True),
        5: (LedgerLocation, False, False),
    }
    assert await read(await driver.plan(*await whole(driver)), driver) == list(range(sum(COUNTS)))
    assert hosts_of(tuple(span for span in spans if span.is_cold)) == []
    assert hosts_of(tuple(spans)) != []


async def test_positions_counts_and_sizes_are_those_of_the_ledgers(driver_world: DriverWorld, mover: HandMover) -> None:
    name = await written(driver_world)
    view = await driver_world.view(name)
    end = await view.latest()
    places = [DLSN(1, 0, 0), DLSN(1, 3, 2), DLSN(2, 1, 0), DLSN(2, 4, 0), DLSN(3, 0, 0), DLSN(4, 5, 1), end]

    async def asked(view: DriverLogView) -> list[object]:
        found: list[object] = [view.earliest(), await view.latest()]
        found += [await view.at_txid(txid) for txid in (0, 29, 30, 40, 46, 47, 48, 87, 88, 1_000)]
        for first, last in itertools.combinations(places, 2):
            found.append(await view.count(first, last))
            found += [await view.advance(first, last, number) for number in (1, 5, 30)]
        found += [await view.record_at(places[0], end, number) for number in (0, 7, 30, 46, 47, 100)]
        found += [view.identity(place) for place in places]
        return found

    hot = await asked(view)
    hot_bytes = (await extent(view, DLSN(1, 0, 0), end)).bytes
    await mover.move(name, 1, 2)
    await mover.move(name, 3, 4)
    assert await asked(view) == hot  # the view that was there, and one that is new
    fresh = await driver_world.view(name)
    assert await asked(fresh) == hot
    found = await extent(fresh, DLSN(1, 0, 0), end)
    assert (found.records, found.bytes, found.first_txid, found.last_txid) == (sum(COUNTS), hot_bytes, 0, 109)
    steps = []
    reached = DLSN(1, 0, 0)
    while (further := await advance_bytes(fresh, reached, end, hot_bytes // 6)) > reached:
        steps.append(await fresh.count(reached, further))
        reached = further
    assert (reached, sum(steps)) == (end, sum(COUNTS))


@pytest.mark.parametrize(
    ("options", "partitions"),
    [({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 10}, 11), ({"maxBytesPerPartition": 2_000}, 2)],
)
async def test_partitions_are_cut_as_of_ledgers(
    driver_world: DriverWorld, mover: HandMover, options: dict[str, Any], partitions: int
) -> None:
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name, **options)
    plan = await driver.plan(*await whole(driver))
    assert len(plan) >= partitions
    assert await read(plan, driver) == list(range(sum(COUNTS)))


async def test_filters_and_limits_leave_the_same(driver_world: DriverWorld, mover: HandMover) -> None:
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    for bounds, expected in [
        (Bounds(min_txid=25, end_txid=50), range(25, 50)),
        (Bounds(min_segment=2, end_segment=4), range(30, 48)),
        (Bounds(min_txid=1_000), []),
    ]:
        assert await read(await driver.plan(start, end, bounds), driver) == list(expected)
    assert (await read(await driver.plan(start, end, take=Take(5)), driver))[:5] == list(range(5))
    assert (await read(await driver.plan(start, end, take=Take(70, last=True)), driver))[-70:] == list(range(40, 110))


async def test_a_stream_from_the_beginning_goes_through_files_in_batches(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name, startingOffsets="earliest")
    position = await driver.resolve(driver.query.start)
    found: list[int] = []
    while (end := await driver.end_of_batch(position, BatchLimits(13), None)) != position:
        batch = await read(await driver.plan(position, end), driver)
        assert len(batch) <= 13
        found += batch
        position = end
    assert found == list(range(sum(COUNTS)))


async def test_batches_that_were_planned_before_a_move_are_planned_again_the_same(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await written(driver_world)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    middle = await driver.end_of_batch(start, BatchLimits(35), None)
    before = await read(await driver.plan(start, middle), driver)
    await mover.move(name, 1, 4)
    assert await read(await driver.plan(start, middle), driver) == before
    assert await read(await driver.plan(middle, end), driver) == list(range(35, sum(COUNTS)))
    other = await driver_world.driver(log=name)
    assert await read(await other.plan(start, middle), other) == before


async def test_a_task_goes_on_in_the_file_where_the_nodes_have_the_ledger_no_more(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await written(driver_world)
    for lssn in range(1, 5):
        await mover.copy(name, lssn, lssn)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    plan = await driver.plan(start, Offsets({name: DLSN(5, 0, 0)}))
    assert not any(span.is_cold for part in plan for span in part)
    for _ in range(3):
        await driver_world.stop_node(0)
    assert await read(plan, driver) == list(range(sum(COUNTS[:4])))


async def test_a_plan_needs_no_node_for_what_has_a_file(driver_world: DriverWorld, mover: HandMover) -> None:
    name = await written(driver_world)
    for lssn in range(1, 5):
        await mover.copy(name, lssn, lssn)
    driver = await driver_world.driver(log=name)
    start = await driver.resolve(driver.query.start)
    for _ in range(3):
        await driver_world.stop_node(0)
    registry = driver._opened().ledgers.bookies

    async def none_is_left() -> bool:
        return not await registry.writable()

    await until(none_is_left, "all nodes are gone")
    plan = await driver.plan(start, Offsets({name: DLSN(5, 0, 0)}))
    assert await read(plan, driver) == list(range(sum(COUNTS[:4])))


async def test_tasks_read_in_the_mirror_of_their_own_region(
    driver_world: DriverWorld, mover: HandMover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await moved(driver_world, mover)
    shutil.copytree(tmp_path / "cold", tmp_path / "us")
    mirror = ColdMirror("us", f"file://{tmp_path}/us")
    await ColdStore(driver_world.namespace.services.logs).note_mirrors(name, [mirror])
    driver = await driver_world.driver(log=name)
    plan = await driver.plan(*await whole(driver))
    read_at: set[str] = set()
    found = LocalStore.read

    async def noted(store: LocalStore, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        read_at.add(url.rsplit("/", 3)[0])
        return await found(store, url, ranges)

    monkeypatch.setattr(LocalStore, "read", noted)
    monkeypatch.setenv("DLSPARK_REGION", "us")  # of the executor; the driver has planned without
    assert await read(plan, driver) == list(range(sum(COUNTS)))
    assert read_at == {mirror.root}


async def test_a_file_that_went_after_the_plan_is_data_loss(driver_world: DriverWorld, mover: HandMover) -> None:
    name = await written(driver_world)
    unit = await mover.move(name, 1, 2)
    await mover.copy(name, 3, 3)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    plan = await driver.plan(start, end)
    await mover.delete_cold(name, unit)
    with pytest.raises(TruncatedDataLossError, match="cold file of segment 1 is not there"):
        await read(plan, driver)
    with pytest.raises(DataLossError):
        await driver.plan(Offsets({name: DLSN(1, 2, 0)}), end)
    lenient = await driver_world.driver(log=name, failOnDataLoss="false")
    assert await read(await lenient.plan(start, end), lenient) == list(range(47, sum(COUNTS)))


async def test_tasks_read_files_through_proxies(driver_world: DriverWorld, mover: HandMover) -> None:
    """A proxy reads the files: the task needs to reach neither nodes nor a store."""
    name = await moved(driver_world, mover)
    fleet = ProxyFleet(driver_world)
    await fleet.add("proxy-a:8100")
    driver = await driver_world.driver(log=name)
    plan = await driver.plan(*await whole(driver))
    proxies = TaskProxies(("proxy-a:8100",), 60_000, fleet.connect)
    entries = []
    for spans in plan:
        source = ProxyEntries(proxies, spans)
        for span in spans:
            entries += [(span.lssn, entry_id) async for entry_id, _ in source.entries(span)]
        await source.close()
    assert entries == [
        (span.lssn, entry_id)
        for spans in plan
        for span in spans
        for entry_id in range(span.first_entry, span.last_entry + 1)
    ]
    await proxies.close()
    await fleet.stop()


async def restored(world: DriverWorld, name: str) -> None:
    await LogReturn(world.namespace.services, world.namespace.services.settings, name).run(keep_hot_ms=0)


@pytest.mark.parametrize("again", [False, True], ids=["restored", "restored-and-moved-again"])
async def test_a_stream_goes_on_over_a_restore(driver_world: DriverWorld, mover: HandMover, again: bool) -> None:
    name = await written(driver_world)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    middle = await driver.end_of_batch(start, BatchLimits(35), None)
    assert middle.identities[name].lssn == 2
    await mover.move(name, 1, 4)
    await restored(driver_world, name)
    if again:
        (unit,) = await mover.cold.units(name)
        await mover.delete_hot(name, unit)
    # The query that is there, and one that begins with its checkpoint.
    for one in (driver, await driver_world.driver(log=name)):
        assert await one.other_logs(middle) == await one.other_logs(end) == []
        assert await read(await one.plan(middle, end), one) == list(range(35, sum(COUNTS)))
        assert middle.moved(await one.end_of_batch(middle, BatchLimits(0), None)) == []
        assert (await one.latest()).identities == end.identities
    # Offsets that were made while it lay in the restored ledgers, by a release that named those.
    now = (await driver_world.namespace.logs_store.segments(name))[1]
    assert now.ledger_id != now.first_ledger
    later = replace(middle, identities={name: LogIdentity(now.lssn, now.ledger_id)})
    assert await driver.other_logs(later) == []
    other = replace(middle, identities={name: LogIdentity(now.lssn, now.ledger_id + 1)})
    assert await driver.other_logs(other) == [name]


async def test_what_lies_in_files_may_have_been_written_in_another_cluster(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    """As in a log that was rebuilt from its files: a stream that had read the lost one goes on."""
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name)
    start, _ = await whole(driver)
    await driver_world.namespace.store.put("/ledgers/INSTANCEID", b"another", ANY_VERSION)
    there = await driver_world.driver(log=name)
    for records, segment, others in ((35, 2, []), (60, 4, []), (100, 5, [name])):
        middle = await driver.end_of_batch(start, BatchLimits(records), None)
        ledger = (await driver_world.namespace.logs_store.segments(name))[-1].ledger_id - 5 + segment
        made_there = replace(middle, identities={name: LogIdentity(segment, ledger, "a-lost-one")})
        assert await there.other_logs(made_there) == others


async def test_a_position_whose_file_is_gone_is_still_told_as_truncated(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await written(driver_world)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    middle = await driver.end_of_batch(start, BatchLimits(35), None)
    await mover.move(name, 1, 2)
    await restored(driver_world, name)
    (unit,) = await mover.cold.units(name)
    await mover.delete_cold(name, await mover.delete_hot(name, unit))
    assert await driver.other_logs(middle) == []
    with pytest.raises(TruncatedDataLossError):
        await driver.plan(middle, end)


async def test_tasks_that_were_planned_before_a_restore_read_through_proxies(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    name = await moved(driver_world, mover)
    driver = await driver_world.driver(log=name)
    before = await driver.plan(*await whole(driver))
    await restored(driver_world, name)
    after = await driver.plan(*await whole(driver))
    fleet = ProxyFleet(driver_world)
    await fleet.add("proxy-a:8100")
    proxies = TaskProxies(("proxy-a:8100",), 60_000, fleet.connect)
    for plan in (before, after):
        for spans in plan:
            source = ProxyEntries(proxies, spans)
            for span in spans:
                ids = [entry_id async for entry_id, _ in source.entries(span)]
                assert ids == list(range(span.first_entry, span.last_entry + 1))
            await source.close()
    await proxies.close()
    await fleet.stop()


async def test_a_stream_goes_on_in_a_log_that_was_rebuilt_from_its_files(
    driver_world: DriverWorld, mover: HandMover, tmp_path: Path
) -> None:
    """Files name the ledgers that their segments were written into, erased or not."""
    name = await written(driver_world)
    driver = await driver_world.driver(log=name)
    start, end = await whole(driver)
    middle = await driver.end_of_batch(start, BatchLimits(35), None)
    await mover.move(name, 1, 4)
    await restored(driver_world, name)
    services = driver_world.namespace.services
    erasure = LogErasure(services, services.settings, name)
    await erasure.run(await erasure.plan(ErasureRequest(dlsns=(DLSN(1, 0, 0),))))
    (unit,) = await mover.cold.units(name)
    await mover.delete_hot(name, unit)
    await driver_world.namespace.delete_log(name)
    for note in await mover.cold.deleted_logs():
        await mover.cold.forget_deleted(note)
    folder = f"file://{tmp_path}/cold/"
    found = await find_files(mover.files, folder)
    checked = await check_files(mover.files, found)
    await LogRebuild(services, services.settings, name, options={}).run(found, checked, namespace_id="b" * 32)
    again = await driver_world.driver(log=name)
    assert await again.other_logs(middle) == []
    assert await read(await again.plan(middle, await again.latest()), again) == list(range(35, sum(COUNTS[:4])))
    # Segment 5 was read of and is in no file: that is another log as far as the stream is concerned.
    assert await again.other_logs(end) == [name]
