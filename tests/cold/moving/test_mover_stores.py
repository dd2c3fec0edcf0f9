"""What can be put off asks a place that is out of reach once a minute, for all logs together."""

from __future__ import annotations

import asyncio
import random

import pytest
import pytest_asyncio
from helpers.cold.mirrored_world import ASIA, US, MirroredWorld, moved, no_pause
from helpers.cold.moving_world import AT_ONCE, ROOT
from helpers.cold.places import put

from dlspark.cli.cold import _mirror_lines, _mirrors, _verify_log
from dlspark.cold.moving.daemon import MoverDaemon
from dlspark.cold.moving.mirroring import LogMirrors
from dlspark.cold.moving.sweeping import sweep_deleted_log
from dlspark.core.codec.dlsn import DLSN
from dlspark.objects.errors import ObjectNotFoundError, StoreUnavailableError, StoreUnreachedError
from dlspark.objects.memory_faults import ObjectFault, StoreCall
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation import fault_points

LOGS = ("log", "orders", "flights")


@pytest_asyncio.fixture
async def world():
    made = MirroredWorld()
    await made.start()
    yield made
    await made.stop()


async def logs_of(world):
    """Some logs with files that their mirrors have."""
    for name in LOGS:
        namespace, _ = await moved(world, log=name)
        assert (await world.mirror(namespace, name)).problems == []
    return namespace


async def test_deletions_of_many_logs_ask_a_mirror_that_is_away_once_and_the_sweep_finds_the_copies(world, caplog):
    caplog.set_level("INFO", "dlspark.cold.moving.stores")
    namespace = await logs_of(world)
    stores = world.stores()
    world.away.add(US)
    before = len(world.copies(US))
    for name in LOGS:
        async with await namespace.open_log(name) as log:
            await log.truncate(DLSN(3, 0, 0))
    left = []
    world.clock.moment_ms += 100 * 3_600_000
    for name in LOGS:
        done = world.right(await world.mover(namespace, name, stores=stores).run())
        assert len(done.cold_deleted) == 2, "what is away keeps no file in the own place"
        left += done.copies_left
    assert world.missed[US] == 1
    assert len(left) == 6
    assert all("region us" in text for text in left)
    assert all("out of reach since 2025-" in text for text in left)
    assert caplog.text.count(f"{US} is out of reach since 2025-") == 1
    assert len(world.copies(US)) == before
    world.away.clear()
    for name in LOGS:
        assert len((await world.sweep_old(namespace, name, stores)).objects) == 2
    assert caplog.text.count(f"{US}, which had been out of reach since 2025-") == 1
    assert world.copies(US) == world.copies(ASIA) == world.own()


async def test_a_round_over_logs_asks_a_mirror_that_is_away_once_and_fills_it_when_it_is_back(world):
    for name in LOGS:
        namespace, _ = await moved(world, log=name)
    stores = world.stores()
    world.away.add(US)
    for name in LOGS:
        done = await world.mirror(namespace, name, stores)
        assert len(done.copied) == 4, "the other mirror is filled"
        assert [text for text in done.problems if "region us" in text]
    assert world.missed[US] == 1
    world.away.clear()
    assert (await world.mirror(namespace, "log", stores)).copied == [], "within the minute nothing is asked of it"
    world.clock.moment_ms += 60_000
    for name in LOGS:
        done = await world.mirror(namespace, name, stores)
        assert (len(done.copied), done.problems) == (4, [])
    assert world.copies(US) == world.copies(ASIA) == world.own()


async def test_a_mirror_that_goes_while_it_is_written_to_is_noted_as_well(world):
    """Its list is known, and its owner was seen a moment ago: the first that fails is the copy itself."""
    namespace, _ = await moved(world)
    stores = world.stores()
    assert (await world.mirror(namespace, "log", stores)).problems == []
    await world.write(namespace, "log", 1, first=5)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    world.buckets[US].put_part = world.buckets[US].put = gone
    mirrors = LogMirrors(namespace.services, ColdStore(namespace.services.logs), stores, "log", no_pause)
    assert len((await mirrors.run(namespace.settings)).copied) == 1
    (away,) = stores.put_off.away
    assert (away.root, away.said) == (US, "gone")
    assert "out of reach since 2025-" in (await mirrors.run(namespace.settings)).problems[0]


def gone(*_arguments):
    raise StoreUnreachedError("gone")


async def test_one_request_finds_out_whether_a_place_is_back_and_the_others_do_not_wait_for_it(world):
    stores = world.stores()
    world.away.add(US)
    store = stores.put_off.at(US, {})
    with pytest.raises(StoreUnavailableError) as first:
        await store.head(f"{US}/a")
    world.clock.moment_ms += 60_000
    answers = await asyncio.gather(*(store.head(f"{US}/a") for _ in range(4)), return_exceptions=True)
    assert [str(one) for one in answers] == [str(first.value)] * 4, "it is one absence"
    assert world.missed[US] == 2
    world.clock.moment_ms += 60_000
    world.away.clear()
    with pytest.raises(ObjectNotFoundError):
        await store.head(f"{US}/a")
    assert stores.put_off.away == [], "an answer is an answer, whatever it says of the object"
    await put(store, f"{US}/a", b"data")
    assert [one.url async for one in store.list(f"{US}/")] == [f"{US}/a"]


async def test_two_servers_of_one_address_are_two_places(world):
    stores = world.stores()
    world.away.add(US)
    with pytest.raises(StoreUnavailableError):
        await stores.put_off.at(US, {"endpoint": "http://one"}).head(f"{US}/a")
    world.away.clear()
    with pytest.raises(ObjectNotFoundError):
        await stores.put_off.at(US, {"endpoint": "http://two"}).head(f"{US}/a")
    with pytest.raises(ObjectNotFoundError):
        await stores.put_off.at(US, {"endpoint": "http://one", "region": "r"}).head(f"{US}/a")
    with pytest.raises(StoreUnreachedError, match="out of reach since"):
        await stores.put_off.at(US, {"endpoint": "http://one"}).head(f"{US}/a")


async def test_an_error_of_one_object_keeps_nobody_from_the_place(world):
    """A 503 for one folder is an answer: the others are asked, and one that had been away is back by it."""
    stores = world.stores()
    store = stores.put_off.at(US, {})
    faults = world.buckets[US].faults
    faults.order(StoreCall.HEAD, *[ObjectFault.REFUSED] * AT_ONCE.attempts)
    with pytest.raises(StoreUnavailableError, match="503 SlowDown"):
        await store.head(f"{US}/a")
    assert stores.put_off.away == []
    await put(store, f"{US}/b", b"data")
    assert (await store.head(f"{US}/b")).bytes == 4
    faults.order(StoreCall.HEAD, *[ObjectFault.CUT] * AT_ONCE.attempts)
    with pytest.raises(StoreUnreachedError, match="out of reach since"):
        await store.head(f"{US}/a")
    assert len(stores.put_off.away) == 1
    world.clock.moment_ms += 60_000
    faults.order(StoreCall.HEAD, *[ObjectFault.REFUSED] * AT_ONCE.attempts)
    with pytest.raises(StoreUnavailableError, match="503 SlowDown"):
        await store.head(f"{US}/a")
    assert stores.put_off.away == []


async def test_a_mirror_that_refuses_the_files_of_one_log_gets_those_of_the_others(world):
    for name in LOGS:
        namespace, _ = await moved(world, log=name)
    stores, bucket = world.stores(), world.buckets[US]
    complete = bucket.complete
    refused_folder = (await world.units(namespace, "flights"))[0].file.url.split("/")[-2]

    def completed(upload_id, url, *rest):
        if refused_folder in url:
            raise StoreUnavailableError("500 InternalError")
        complete(upload_id, url, *rest)

    bucket.complete = completed
    done = {name: await world.mirror(namespace, name, stores) for name in sorted(LOGS)}
    assert {name: len(one.copied) for name, one in done.items()} == {"flights": 4, "log": 8, "orders": 8}
    assert stores.put_off.away == []


async def test_an_object_whose_bytes_are_there_is_made_whatever_others_have_met_meanwhile(world):
    stores = world.stores()
    store = stores.put_off.at(US, {})
    out = await store.create(f"{US}/a")
    await out.write(b"x" * 5_000)
    world.away.add(US)
    with pytest.raises(StoreUnreachedError):
        await store.head(f"{US}/b")
    world.away.clear()
    await out.commit()
    assert world.buckets[US].objects == {f"{US}/a": b"x" * 5_000}
    assert stores.put_off.away == [], "it has answered"


async def test_a_copy_may_be_what_finds_out_that_a_place_is_back(world):
    stores = world.stores()
    store = stores.put_off.at(US, {})
    world.away.add(US)
    with pytest.raises(StoreUnreachedError):
        await store.head(f"{US}/a")
    with pytest.raises(StoreUnreachedError):
        await store.create(f"{US}/a")
    assert world.missed[US] == 1
    world.away.clear()
    world.clock.moment_ms += 60_000
    await put(store, f"{US}/a", b"data")
    assert stores.put_off.away == []


async def test_it_is_not_always_the_same_log_that_asks_first(world):
    for name in LOGS:
        namespace, _ = await moved(world, log=name)
    moving = MoverDaemon(namespace, stores=world.stores(), rng=random.Random(3))
    moving._mirrored.update(LOGS)
    assert {moving._in_turn(moving._mirrored)[0] for _ in range(20)} == set(LOGS)
    asked = []

    async def look(log):
        asked.append(log.name)

    await moving._each(moving._in_turn(LOGS), look, "could not be looked at")
    assert sorted(asked) == sorted(LOGS)


async def test_the_files_own_place_is_asked_with_each_pass(world):
    """What is moved does not wait a minute for a place that was away for a moment."""
    namespace, _ = await moved(world)
    stores = world.stores()
    mover = world.mover(namespace, "log", stores=stores)
    world.away.add(ROOT)
    for asked in (1, 2):
        assert (await mover.run()).problems
        assert world.missed[ROOT] == asked
    world.away.clear()
    world.right(await mover.run())


async def test_what_deleted_logs_left_in_a_mirror_that_is_away_costs_one_request_for_all(world):
    namespace = await logs_of(world)
    for name in LOGS:
        await namespace.delete_log(name)
    cold, stores = ColdStore(namespace.services.logs), world.stores()
    notes = await cold.deleted_logs()
    world.away.add(US)
    for note in notes:
        with pytest.raises(StoreUnavailableError):
            await sweep_deleted_log(namespace.services, cold, stores, note)
    assert world.missed[US] == 1
    assert (world.own(), world.copies(ASIA), len(world.copies(US))) == ({}, {}, 12)
    assert len(await cold.deleted_logs()) == 3, "their notes stay"
    world.away.clear()
    world.clock.moment_ms += 60_000
    for note in notes:
        await sweep_deleted_log(namespace.services, cold, stores, note)
    assert world.copies(US) == {}


async def test_a_daemon_notes_which_mirrors_are_away_and_status_says_since_when(world):
    namespace, _ = await moved(world)
    moving = MoverDaemon(namespace, stores=world.stores(), worker="host-1")
    moving._mirrored.add("log")

    async def shown():
        away = await ColdStore(namespace.services.logs).away.all()
        async with await namespace.open_log("log") as log:
            return _mirror_lines({"log": "log", "mirrors": await _mirrors(namespace, log, away)})

    async def round_of_mirrors():
        await moving.mirror()
        await moving._tell_away()

    await round_of_mirrors()
    assert await shown() == [f"log: mirror of region us: {US}", f"log: mirror of region asia: {ASIA}"]
    world.away.add(US)
    await world.write(namespace, "log", 1, first=5)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    await round_of_mirrors()
    since = moving.stores.put_off.away[0].since
    us, asia = await shown()
    assert us == f"log: mirror of region us: {US}, out of reach for the mover host-1 since {since}"
    assert asia == f"log: mirror of region asia: {ASIA}"
    world.clock.moment_ms += 600_000
    await round_of_mirrors()
    assert (await shown())[0] == us, "it is the same absence"
    world.away.clear()
    world.clock.moment_ms += 60_000
    await round_of_mirrors()
    assert (await shown())[0] == f"log: mirror of region us: {US}"
    assert world.copies(US) == world.own()


async def test_a_mirror_that_goes_while_it_is_swept_keeps_nothing_else_from_being_swept(world, monkeypatch):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    (unit, *_) = await world.units(namespace, "log")
    name = f"{unit.file.url.rpartition('-')[0]}-0123.parquet"  # a try of a segment that another file has
    for root in (US, ASIA, ROOT):
        await put(world.open_store(root), name.replace(ROOT, root), b"x")
    upload = await world.open_store(US).create(name.replace(ROOT, US).replace("0123", "4567"))
    await upload.write(b"x" * 5_000)
    reach = fault_points.reach

    def go_away(point):
        if point == "cold.sweep-listed":
            world.away.add(US)
        reach(point)

    monkeypatch.setattr(fault_points, "reach", go_away)
    swept = await world.sweep_old(namespace)
    assert sorted(swept.objects) == sorted(name.replace(ROOT, root) for root in (ASIA, ROOT))
    assert swept.unreached
    assert all(text.startswith(US) for text in swept.unreached)
    monkeypatch.setattr(fault_points, "reach", reach)
    world.away.clear()
    swept = await world.sweep_old(namespace)
    assert (swept.objects, swept.uploads) == (
        [name.replace(ROOT, US)],
        [name.replace(ROOT, US).replace("0123", "4567")],
    )
    await upload.abort()


async def test_verifying_copies_asks_a_mirror_that_is_away_once_and_calls_none_of_them_right(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    world.away.add(US)
    reports = []
    await _verify_log(namespace, world.stores(), "log", reports, True)
    assert world.missed[US] == 1
    assert [one.url.startswith(US) for one in reports if one.wrong is not None] == [True] * 4
    assert len(reports) == 12
