"""The mark of the owner: a copy of a namespace in another ZooKeeper deletes nothing that the first one has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import pytest_asyncio
from helpers.cold.moving_world import ROOT, MovingWorld
from helpers.cold.places import put

from dlspark.cold.moving import log_mover, sweeping, unit_steps
from dlspark.cold.moving.owning import (
    OWNED_FOR_S,
    OwnerMark,
    PlaceOwnedElsewhereError,
    check_owner,
    is_owner_mark,
    may_delete,
    owner_of,
    take_over_place,
)
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.errors import ObjectOutcomeUnknownError, StoreUnavailableError
from dlspark.objects.memory_faults import POSSIBLE, StoreCall
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
    swept = await sweep_deleted_log(second.services, cold, stores, note, min_age_s=-1)
    assert (swept.objects, swept.foreign) == ([], [f"{url}/" for url, _ in note.value.folders])
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
    swept = await sweep_deleted_log(first.services, cold, stores, note)
    assert (swept.objects, len(swept.foreign)) == ([], 1)
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
    (old,) = await world.units(first, "log")
    done = world.right(await world.mover(moved_on, "log").run(at_once=True))
    assert before <= world.files
    assert done.left == [old.file.url]
    assert [unit.name for unit in done.cold_deleted] == [old.name]
    # And what is newer, in its own place, goes when it is due.
    (newer,) = await world.units(first, "log")
    assert newer.file.url.startswith("s3://memory/new/")
    world.clock.moment_ms += 2 * 3_600_000
    await world.write(moved_on, "log", 1, first=6)
    done = world.right(await world.mover(moved_on, "log").run(at_once=True))
    assert ([unit.name for unit in done.cold_deleted], done.left) == ([newer.name], [])
    assert newer.file.url not in world.files


async def test_what_is_in_the_own_place_is_swept_where_a_former_one_belongs_to_another(world, clone):
    first, second = await cloned(world, clone)
    stores = MoverStores(world.open_store)
    await take_over_place(second.services, ColdStore(second.services.logs), MoverStores(clone.open_store), ROOT, {})
    world.clock.moment_ms += 3_600_000
    moved_on = await world.namespace(cold_path="s3://memory/new")
    await world.write(moved_on, "log", 2, first=4)
    world.right(await world.mover(moved_on, "log").run(at_once=True))
    old, new = await world.units(first, "log")
    strays = [f"{unit.file.url.rpartition('/')[0]}/{unit.name}-0123.parquet" for unit in (old, new)]
    for url in strays:
        await put(world.open_store(url), url, b"x")
    cold = ColdStore(moved_on.services.logs)
    theirs = f"{old.file.url.rpartition('/')[0]}/"
    swept = await sweep_log(moved_on.services, cold, stores, "log", moved_on.settings, min_age_s=0)
    assert (swept.objects, swept.foreign, swept.kept) == ([strays[1]], [theirs], [])

    await moved_on.delete_log("log")
    (note,) = await cold.deleted_logs()
    assert len(note.value.folders) == 2
    swept = await sweep_deleted_log(moved_on.services, cold, stores, note, min_age_s=-1)
    assert (swept.objects, swept.foreign) == ([new.file.url], [theirs])
    swept = await sweep_deleted_log(moved_on.services, cold, stores, note, min_age_s=-1)
    assert (swept.objects, swept.foreign, swept.logs) == ([], [theirs], [])
    assert len(await cold.deleted_logs()) == 1, "it alone says what is to be deleted, should the place be taken over"
    await take_over_place(moved_on.services, cold, stores, ROOT, {})
    swept = await sweep_deleted_log(moved_on.services, cold, stores, note, min_age_s=-1)
    assert (set(swept.objects), swept.foreign) == ({old.file.url, strays[0]}, [])
    assert (await sweep_deleted_log(moved_on.services, cold, stores, note, min_age_s=-1)).logs == ["log"]


async def test_a_replaced_file_stays_where_its_place_belongs_to_another(world, clone):
    first, second = await cloned(world, clone)
    await take_over_place(second.services, ColdStore(second.services.logs), MoverStores(clone.open_store), ROOT, {})
    cold = ColdStore(first.services.logs)
    (unit,) = await cold.units("log")
    moved_on = await world.namespace(cold_path="s3://memory/new")
    other = replace(unit.value.file, url=unit.value.file.url.replace(ROOT, "s3://memory/new"))
    await put(world.open_store(other.url), other.url, bytes(other.bytes))
    await cold.replace_file("log", unit, other, attempt="0123")
    world.clock.moment_ms += 3_600_000
    done = world.right(await world.mover(moved_on, "log").run())
    assert (done.replaced_deleted, done.left) == ([], [unit.value.file.url])
    assert unit.value.file.url in world.files
    (unit,) = await cold.units("log")
    assert unit.value.replaced == ()


@pytest.mark.parametrize("what", ["unit", "replaced", "stray", "deleted log"])
async def test_who_is_the_owner_is_asked_again_right_before_a_deletion(world, clone, monkeypatch, what):
    """Between a look and the deletion lie calls that take as long as they like; meanwhile another one takes over."""
    first, second = await cloned(world, clone)
    copy = ColdStore(second.services.logs)
    taken = []

    async def take_over(*_):
        if not taken:
            taken.append(await take_over_place(second.services, copy, MoverStores(clone.open_store), ROOT, {}))

    for module, name in (
        (unit_steps, "release_unit"),
        (log_mover, "release_unit"),
        (sweeping, "release_deleted_log"),
    ):
        monkeypatch.setattr(module, name, take_over)
    cold, stores = ColdStore(first.services.logs), MoverStores(world.open_store)
    (unit,) = await cold.units("log")
    if what == "unit":
        world.clock.moment_ms += 100 * 3_600_000
        soon = await world.namespace(cold_hot_retention_s=0, cold_retention_hours=1)
        await world.write(soon, "log", 2, first=4)
        done = world.right(await world.mover(soon, "log").run(at_once=True))
        assert done.left == [unit.value.file.url]
    elif what == "replaced":
        other = replace(unit.value.file, url=unit.value.file.url.replace(unit.value.attempt, "0123"))
        await put(world.open_store(ROOT), other.url, bytes(other.bytes))
        await cold.replace_file("log", unit, other, attempt="0123")
        world.clock.moment_ms += 3_600_000
        done = world.right(await world.mover(first, "log").run())
        assert (done.replaced_deleted, done.left) == ([], [unit.value.file.url])
    elif what == "stray":
        stray = f"{unit.value.file.url.rpartition('/')[0]}/{unit.value.name}-0123.parquet"
        await put(world.open_store(ROOT), stray, b"x")
        covers = sweeping._Proof.covers

        async def proved(self, info):
            await take_over()
            return await covers(self, info)

        monkeypatch.setattr(sweeping._Proof, "covers", proved)
        swept = await sweep_log(first.services, cold, stores, "log", first.settings, min_age_s=0)
        assert (swept.objects, len(swept.foreign)) == ([], 1)
        assert stray in world.files
    else:
        await first.delete_log("log")
        (note,) = await cold.deleted_logs()
        swept = await sweep_deleted_log(first.services, cold, stores, note)
        assert (swept.objects, len(swept.foreign)) == ([], 1)
    assert len(taken) == 1
    assert unit.value.file.url in world.files


async def test_two_that_make_the_first_mark_at_once_are_both_refused_until_one_takes_over(world, clone):
    first = await world.namespace()
    second = await clone.namespace()
    await ColdStore(first.services.logs).namespace_id()
    await copied_znodes(first, second)
    (id_, one), (_, other) = await ColdStore(first.services.logs).owner(), await ColdStore(second.services.logs).owner()
    assert one != other
    store = world.open_store(ROOT)
    (cold, copy), stores = (ColdStore(each.services.logs) for each in (first, second)), MoverStores(world.open_store)
    await check_owner(first.services, cold, stores, ROOT, {})
    url = f"{ROOT}/{id_}/{'d' * 32}/some.parquet"
    assert await may_delete(first.services, cold, stores, url, {})
    # As by one that had listed before the other one's was there.
    await put(store, f"{ROOT}/{id_}/owner/000001-{other}", b"{}")
    assert await owner_of(store, f"{ROOT}/{id_}/") == OwnerMark(1, None)
    assert not await may_delete(first.services, cold, stores, url, {}), "whatever it has seen a moment ago"
    for each, its in ((first, cold), (second, copy)):
        with pytest.raises(PlaceOwnedElsewhereError, match="so it is nobody's"):
            await check_owner(each.services, its, MoverStores(world.open_store), ROOT, {})
    assert await take_over_place(first.services, cold, stores, ROOT, {}) == OwnerMark(2, one)
    await check_owner(first.services, cold, stores, ROOT, {})
    with pytest.raises(PlaceOwnedElsewhereError, match="belong to another"):
        await check_owner(second.services, copy, MoverStores(world.open_store), ROOT, {})


async def test_a_mark_that_names_an_owner_in_another_way_is_anothers(world):
    """As other releases may: it is not passed over."""
    namespace = await world.namespace()
    cold = ColdStore(namespace.services.logs)
    await put(world.open_store(ROOT), f"{ROOT}/{await cold.namespace_id()}/owner/000001-abc", b"{}")
    with pytest.raises(PlaceOwnedElsewhereError, match="owner abc"):
        await check_owner(namespace.services, cold, MoverStores(world.open_store), ROOT, {})


async def test_two_fresh_stores_that_did_the_same_are_two_owners(world, clone):
    """The number of a transaction is a counter: a script that copies znodes brings it to the same value each time."""
    clone.cluster.tree._now_ms = world.clock.now_ms
    found = []
    for one in (world, clone):
        namespace = await one.namespace()
        _, owner = await ColdStore(namespace.services.logs).owner()
        found.append(owner.split("-"))
    assert found[0][0] == found[1][0], "this test needs them to be the same"
    assert found[0][1] != found[1][1]


async def test_an_adopted_file_lies_in_a_folder_of_its_own_and_is_not_asked_for(world):
    namespace = await world.namespace()
    stores = MoverStores(world.open_store)
    cold = ColdStore(namespace.services.logs)
    assert await may_delete(namespace.services, cold, stores, f"{ROOT}/{'c' * 32}/{'d' * 32}/some.parquet", {})
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
