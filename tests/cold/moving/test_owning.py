"""The mark of the owner: a copy of a namespace in another ZooKeeper deletes nothing that the first one has."""

from __future__ import annotations

import pytest
import pytest_asyncio
from helpers.cold.moving_world import ROOT, MovingWorld
from helpers.cold.places import put

from dlspark.cold.moving.owning import (
    OWNED_FOR_S,
    OwnerMark,
    PlaceOwnedElsewhereError,
    check_owner,
    check_owner_of,
    is_owner_mark,
    owner_of,
    take_over_place,
)
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.errors import ObjectOutcomeUnknownError, StoreUnavailableError
from dlspark.objects.memory_faults import POSSIBLE, StoreCall
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.store import Create, Op


async def copied_znodes(source: AsyncNamespace, target: AsyncNamespace, path: str = "/dl") -> None:
    """Make in another ZooKeeper what one has, znode by znode, as tools do that copy trees; but for what goes with a
    session."""
    data, stat = await source.services.store.get(path)
    if stat.ephemeral_owner:
        return
    there = await target.services.store.exists(path)
    ops: list[Op] = [Create(path, data)]
    if there is None:
        await target.services.store.multi(ops)
    else:
        await target.services.store.put(path, data, -1)
    names, _ = await source.services.store.children(path)
    for name in sorted(names):
        await copied_znodes(source, target, f"{path}/{name}")


@pytest_asyncio.fixture
async def clone(world: MovingWorld):
    """A second cluster, over the first one's bucket."""
    other = MovingWorld()
    other.clock, other.bucket = world.clock, world.bucket
    await other.start()
    yield other
    await other.stop()


async def cloned(world: MovingWorld, clone: MovingWorld) -> tuple[AsyncNamespace, AsyncNamespace]:
    """A namespace that has moved a log, and its copy."""
    first = await world.namespace(cold_hot_retention_s=0)
    await world.write(first, "log", 3)
    world.right(await world.mover(first, "log").run(at_once=True))
    second = await clone.namespace(cold_hot_retention_s=0)
    await copied_znodes(first, second)
    cold = ColdStore(second.services.logs)
    assert await cold.namespace_id() == await ColdStore(first.services.logs).namespace_id()
    return first, second


async def test_the_first_mover_makes_the_mark_and_others_of_its_namespace_find_it(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    cold = ColdStore(namespace.services.logs)
    id_, owner = await cold.owner()
    marks = [url for url in world.bucket.objects if is_owner_mark(url)]
    assert marks == [f"{ROOT}/{id_}/owner/000001-{owner}"]
    world.clock.moment_ms += round(2 * OWNED_FOR_S * 1000)
    world.right(await world.mover(namespace, "log", "another").run(at_once=True))
    assert [url for url in world.bucket.objects if is_owner_mark(url)] == marks


async def test_a_copy_of_the_namespace_moves_and_deletes_nothing(world, clone):
    first, second = await cloned(world, clone)
    before = dict(world.bucket.objects)
    done = await clone.mover(second, "log").run(at_once=True)
    assert len(done.problems) == 1
    assert "belong to another ZooKeeper's copy" in done.problems[0]
    assert "dlspark cold owner --take-over" in done.problems[0]
    assert (done.moved, done.hot_deleted, done.cold_deleted) == ([], [], [])

    stores = MoverStores(clone.open_store)
    cold = ColdStore(second.services.logs)
    world.clock.moment_ms += 25 * 3_600_000
    with pytest.raises(PlaceOwnedElsewhereError):
        await sweep_log(second.services, cold, stores, "log", second.settings)
    await second.delete_log("log")
    (note,) = await cold.deleted_logs()
    with pytest.raises(PlaceOwnedElsewhereError):
        await sweep_deleted_log(second.services, cold, stores, note)
    assert [one.value for one in await cold.deleted_logs()] == [note.value]
    assert dict(world.bucket.objects) == before
    # The first one goes on.
    await world.write(first, "log", 1, first=4)
    world.right(await world.mover(first, "log").run(at_once=True))


async def test_an_attempt_that_came_with_the_copy_is_not_given_up(world, clone):
    first = await world.namespace()
    await world.write(first, "log", 2)
    cold = ColdStore(first.services.logs)
    stores = MoverStores(world.open_store)
    await check_owner(first.services, cold, stores, ROOT, {})
    attempt = await cold.copies.begin("log", 1, 1, root=ROOT, worker="at work", now_ms=world.clock.now_ms())
    second = await clone.namespace()
    await copied_znodes(first, second)
    await put(world.open_store(ROOT), attempt.value.url, b"under way")
    done = await clone.mover(second, "log").run()
    assert len(done.problems) == 1
    assert attempt.value.url in world.bucket.objects


async def test_who_takes_over_goes_on_and_the_former_owner_is_refused_soon(world, clone):
    first, second = await cloned(world, clone)
    former, stores = MoverStores(world.open_store), MoverStores(clone.open_store)
    cold, copy = ColdStore(first.services.logs), ColdStore(second.services.logs)
    await check_owner(first.services, cold, former, ROOT, {})
    _, mine = await copy.owner()
    assert await take_over_place(second.services, copy, stores, ROOT, {}) == OwnerMark(2, mine)
    assert await take_over_place(second.services, copy, stores, ROOT, {}) == OwnerMark(2, mine), "once is enough"
    await check_owner(first.services, cold, former, ROOT, {})  # it has just looked
    world.clock.moment_ms += round(OWNED_FOR_S * 1000)
    with pytest.raises(PlaceOwnedElsewhereError):
        await check_owner(first.services, cold, former, ROOT, {})
    clone.right(await clone.mover(second, "log").run())
    done = await world.mover(first, "log").run(at_once=True)
    assert len(done.problems) == 1


async def test_what_was_seen_some_seconds_ago_does_not_allow_a_deletion(world, clone):
    first, second = await cloned(world, clone)
    world.clock.moment_ms += 25 * 3_600_000
    stores, cold = MoverStores(world.open_store), ColdStore(first.services.logs)
    await first.delete_log("log")
    (note,) = await cold.deleted_logs()
    await check_owner(first.services, cold, stores, ROOT, {})
    await take_over_place(second.services, ColdStore(second.services.logs), MoverStores(clone.open_store), ROOT, {})
    before = dict(world.bucket.objects)
    await check_owner(first.services, cold, stores, ROOT, {})  # it has just looked
    with pytest.raises(PlaceOwnedElsewhereError):
        await sweep_deleted_log(first.services, cold, stores, note)
    assert dict(world.bucket.objects) == before
    with pytest.raises(PlaceOwnedElsewhereError):
        await check_owner(first.services, cold, stores, ROOT, {})  # it knows now


async def test_one_address_on_two_servers_is_two_places(world, clone):
    first, second = await cloned(world, clone)
    cold = ColdStore(first.services.logs)
    await take_over_place(second.services, ColdStore(second.services.logs), MoverStores(clone.open_store), ROOT, {})
    servers = {"old": world, "new": MovingWorld()}
    stores = MoverStores(lambda address, options: servers[options["endpoint"]].open_store(address))
    await check_owner(first.services, cold, stores, ROOT, {"endpoint": "new"})
    with pytest.raises(PlaceOwnedElsewhereError):
        await check_owner(first.services, cold, stores, ROOT, {"endpoint": "old"})
    await check_owner(first.services, cold, stores, ROOT, {"endpoint": "new"})


async def test_a_file_that_was_due_stays_where_another_one_has_taken_over(world, clone):
    """Below a root that settings do not name any more, so the pass itself goes on."""
    first, second = await cloned(world, clone)
    stores = MoverStores(clone.open_store)
    await take_over_place(second.services, ColdStore(second.services.logs), stores, ROOT, {})
    world.clock.moment_ms += 100 * 3_600_000
    moved_on = await world.namespace(cold_hot_retention_s=0, cold_retention_hours=1, cold_path="s3://memory/new")
    await world.write(moved_on, "log", 2, first=4)
    before = world.files
    done = await world.mover(moved_on, "log").run(at_once=True)
    assert any("belong to another ZooKeeper's copy" in one for one in done.problems)
    assert before <= world.files
    units = await world.units(first, "log")
    assert units[0].state is UnitState.COLD_DELETE_STARTED


async def test_two_that_make_the_first_mark_at_once_are_one_owner(world, clone):
    first = await world.namespace()
    second = await clone.namespace()
    await ColdStore(first.services.logs).namespace_id()
    await copied_znodes(first, second)
    (id_, one), (_, other) = await ColdStore(first.services.logs).owner(), await ColdStore(second.services.logs).owner()
    assert one != other
    store = world.open_store(ROOT)
    for owner in (one, other):
        await put(store, f"{ROOT}/{id_}/owner/000001-{owner}", b"{}")
    assert await owner_of(store, f"{ROOT}/{id_}/") == OwnerMark(1, min(one, other))


async def test_an_adopted_file_lies_in_a_folder_of_its_own_and_is_not_asked_for(world):
    namespace = await world.namespace()
    stores = MoverStores(world.open_store)
    cold = ColdStore(namespace.services.logs)
    await check_owner_of(namespace.services, cold, stores, f"{ROOT}/{'c' * 32}/{'d' * 32}/some.parquet", {})
    assert world.bucket.objects == {}


@pytest.mark.parametrize("listed", [None, *POSSIBLE[StoreCall.LIST]])
@pytest.mark.parametrize("put_fault", POSSIBLE[StoreCall.PUT])
async def test_faults_of_the_store_make_one_mark_or_none_and_an_error(world, put_fault, listed):
    namespace = await world.namespace()
    cold = ColdStore(namespace.services.logs)
    id_, owner = await cold.owner()
    world.bucket.faults.order(StoreCall.PUT, put_fault)
    if listed is not None:
        world.bucket.faults.order(StoreCall.LIST, listed, listed)  # more often than it is tried
    stores = MoverStores(world.open_store)
    try:
        await check_owner(namespace.services, cold, stores, ROOT, {})
    except (ObjectOutcomeUnknownError, StoreUnavailableError):
        pass
    world.bucket.faults.stop()
    world.bucket.settle()
    await check_owner(namespace.services, cold, stores, ROOT, {})
    assert set(world.bucket.objects) == {f"{ROOT}/{id_}/owner/000001-{owner}"}
