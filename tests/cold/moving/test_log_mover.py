"""Passes over a log: what is due is done, and whatever fails or dies on the way costs no record."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.cold.moving_world import ROOT, MovingWorld
from helpers.cold.places import put
from helpers.cold.unit_znodes import copy_segment, make_cold_log
from helpers.waiting import until

from dlspark.cold.moving import copying
from dlspark.cold.moving.log_mover import LogMover
from dlspark.cold.moving.stores import MoverStores
from dlspark.objects.errors import StoreRefusedError
from dlspark.objects.memory_faults import ObjectFault, StoreCall
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation import fault_points

HOUR_MS = 3_600_000
HOT_S = 14_400


async def _moved(world: MovingWorld, segments: int = 3, **settings):
    namespace = await world.namespace(**settings)
    written = await world.write(namespace, "log", segments)
    world.clock.moment_ms += 20_000
    done = world.right(await world.mover(namespace, "log").run())
    return namespace, written, done


async def test_completed_segments_become_one_file_and_readers_see_the_same(world):
    namespace, written, done = await _moved(world)
    (unit,) = done.moved
    assert (unit.first, unit.last, unit.state, unit.file.rows) == (1, 3, UnitState.FINISHED, 9)
    assert await world.read(namespace, "log") == written
    await world.check_tidy(namespace, "log")
    assert namespace.services.meter.root.cold_files.value == 1


async def test_a_run_waits_for_its_time_unless_it_is_asked_for_at_once(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    mover = world.mover(namespace, "log")
    done = world.right(await mover.run())
    assert not done.moved
    assert done.next_ms is not None
    assert 0 < done.lag_ms < 10_000
    world.clock.moment_ms = done.next_ms
    assert len(world.right(await mover.run()).moved) == 1
    await world.write(namespace, "log", 1, first=3)
    assert len(world.right(await mover.run(at_once=True)).moved) == 1


async def test_hot_copies_go_after_their_time_and_readers_go_on_in_the_file(world):
    namespace, written, _ = await _moved(world)
    written += await world.write(namespace, "log", 1, first=4)
    mover = world.mover(namespace, "log")
    assert not world.right(await mover.run()).hot_deleted
    world.clock.moment_ms += HOT_S * 1000
    done = world.right(await mover.run())
    assert [unit.first for unit in done.hot_deleted] == [1]
    assert [one.lssn for one in await namespace.services.logs.hot_segments("log")] == [4]
    assert await world.read(namespace, "log") == written
    other = await world.namespace()
    assert await world.read(other, "log") == written
    await world.check_tidy(namespace, "log")


async def test_the_newest_completed_segment_stays_hot(world):
    namespace, written, _ = await _moved(world, cold_hot_retention_s=0)
    done = world.right(await world.mover(namespace, "log").run())
    assert not done.hot_deleted
    written += await world.write(namespace, "log", 1, first=4)
    assert world.right(await world.mover(namespace, "log").run()).hot_deleted
    assert await world.read(namespace, "log") == written


async def test_files_go_by_age(world):
    namespace, _, _ = await _moved(world, cold_hot_retention_s=0, cold_retention_hours=24)
    newest = await world.write(namespace, "log", 1, first=4)
    mover = world.mover(namespace, "log")
    world.right(await mover.run())
    world.clock.moment_ms += 20 * HOUR_MS
    assert not world.right(await mover.run()).cold_deleted
    world.clock.moment_ms += 5 * HOUR_MS
    done = world.right(await mover.run())
    assert [unit.first for unit in done.cold_deleted] == [1]
    assert await world.read(namespace, "log") == newest
    await world.check_tidy(namespace, "log")


async def test_segments_without_records_are_a_unit_without_a_file(world):
    namespace = await world.namespace()
    writer = await (await namespace.open_log("log")).open_writer()
    await writer.write(1, b"a")
    writer._sequence.last_roll -= 10_000 * 60
    await writer.write(2, b"b")
    await until(lambda: writer.segment == 2)
    await writer.close()
    world.clock.moment_ms += 20_000
    mover = world.mover(namespace, "log")
    mover._settings = lambda: namespace.settings.with_values({"coldTargetBytes": 1})
    done = world.right(await mover.run())
    assert [unit.file is None for unit in done.moved] == [False, True]
    assert await world.read(namespace, "log") == [b"a", b"b"]
    await world.check_tidy(namespace, "log")


async def test_a_truncation_while_it_is_copied_costs_no_second_copy(world, monkeypatch):
    namespace = await world.namespace()
    written = await world.write(namespace, "log", 3)
    copies = []
    original = copying.copy_segments

    async def copy_and_truncate(*arguments):
        copied = await original(*arguments)
        copies.append(copied)
        async with await namespace.open_log("log") as log:
            await log.truncate("1:1:0")
        return copied

    monkeypatch.setattr("dlspark.cold.moving.unit_steps.copy_segments", copy_and_truncate)
    done = world.right(await world.mover(namespace, "log").run(at_once=True))
    assert len(done.moved) == len(copies) == 1
    assert await world.read(namespace, "log") == written[1:]


async def test_a_file_that_is_not_there_keeps_the_hot_copies(world):
    namespace, written, done = await _moved(world, cold_hot_retention_s=0)
    written += await world.write(namespace, "log", 1, first=4)
    await world.open_store("s3://memory/cold").delete(done.moved[0].file.url)
    done = await world.mover(namespace, "log").run()
    assert not done.hot_deleted
    assert "hot copies" in done.problems[0]
    assert await world.read(namespace, "log") == written


async def test_another_worker_is_let_alone(world):
    namespace, _, _ = await _moved(world)
    lock = await ColdStore(namespace.services.logs).worker("log", "someone")
    await lock.acquire(0)
    other = await world.namespace()
    assert (await world.mover(other, "log").run()).busy == "someone"
    await lock.release()
    assert (await world.mover(other, "log").run()).busy is None


# ------------------------------------------------------------------ what goes wrong


CHANGES = [
    (call, fault)
    for call in (StoreCall.BEGIN, StoreCall.PART, StoreCall.COMMIT)
    for fault in (ObjectFault.REFUSED, ObjectFault.CUT, ObjectFault.ANSWER_LOST)
] + [
    (StoreCall.COMMIT, ObjectFault.LATE),
    (StoreCall.COMMIT, ObjectFault.TORN),
    (StoreCall.READ, ObjectFault.FLIPPED),
    (StoreCall.READ, ObjectFault.SHORT),
    (StoreCall.READ, ObjectFault.REFUSED),
    (StoreCall.HEAD, ObjectFault.REFUSED),
]


@pytest.mark.parametrize(("call", "fault"), CHANGES, ids=lambda one: one.value)
@pytest.mark.parametrize("times", [1, 3, 8])
async def test_faults_of_the_store_cost_time_and_nothing_else(world, call, fault, times):
    namespace = await world.namespace(cold_hot_retention_s=0)
    written = await world.write(namespace, "log", 3)
    world.bucket.faults.order(call, *[fault] * times)
    mover = world.mover(namespace, "log")
    for _ in range(6):
        await mover.run(at_once=True)
        assert await world.read(await world.namespace(), "log") == written
    assert [(unit.first, unit.last) for unit in await world.units(namespace, "log")] == [(1, 3)]
    await world.check_tidy(namespace, "log")
    assert await world.read(await world.namespace(), "log") == written


POINTS = [
    f"cold.{when}-{what}"
    for when in ("before", "after")
    for what in (
        "begin",
        "copy",
        "read-back",
        "finish",
        "head",
        "delete-hot",
        "sweep-ledgers",
        "begin-cold-delete",
        "delete-object",
        "end-cold-delete",
    )
] + ["cold.segment-copied", "cold.written"]


class _Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_anywhere_is_followed_by_another(world, monkeypatch, point):
    namespace = await world.namespace(cold_hot_retention_s=0, cold_retention_hours=24)
    written = await world.write(namespace, "log", 3)
    mover = world.mover(namespace, "log")
    await mover.run(at_once=True)
    world.clock.moment_ms += 25 * HOUR_MS
    written += await world.write(namespace, "log", 2, first=4)
    victim = await world.namespace(cold_hot_retention_s=0, cold_retention_hours=24)
    deaths = []

    def reach(name: str) -> None:
        if name == point and not deaths:
            deaths.append(name)
            raise _Died

    monkeypatch.setattr(fault_points, "reach", reach)
    with pytest.raises(_Died):
        await world.mover(victim, "log", "victim").run(at_once=True)
    await world.cluster.crash(victim)
    left = await world.read(await world.namespace(), "log")
    assert left == written[-len(left) :]
    assert len(left) >= 6, "only what retention takes may be hidden"
    world.right(await world.mover(namespace, "log").run(at_once=True))
    written += await world.write(namespace, "log", 1, first=6)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    await world.check_tidy(namespace, "log")
    assert await ColdStore(namespace.services.logs).attempts("log") == []
    assert await world.read(await world.namespace(), "log") == written[9:], "and retention has taken the oldest unit"


@pytest.mark.parametrize("point", ["cold.before-copy", "cold.before-read-back", "cold.before-finish"])
async def test_a_worker_that_stood_still_finishes_nothing(world, monkeypatch, point):
    namespace = await world.namespace(cold_hot_retention_s=0)
    written = await world.write(namespace, "log", 3)
    stopped, go_on = asyncio.Event(), asyncio.Event()
    slow = world.mover(await world.namespace(), "log", "slow")
    steps = {"cold.before-copy": "_copy", "cold.before-read-back": "_read_back", "cold.before-finish": "_finish"}

    from dlspark.cold.moving.unit_steps import UnitSteps

    original = getattr(UnitSteps, steps[point])

    async def stand_still(self):
        if self._worker == "slow":
            stopped.set()
            await go_on.wait()
        return await original(self)

    monkeypatch.setattr(UnitSteps, steps[point], stand_still)
    # The steps are bound when they are made, after this.
    running = asyncio.get_running_loop().create_task(slow.run(at_once=True))
    await stopped.wait()
    # Its session goes meanwhile, and with it the lock; another session of it goes on.
    locks = (await namespace.services.logs.located("log")).cold + "/worker"
    for member in (await world.cluster.operator.children(locks))[0]:
        await world.cluster.operator.delete(f"{locks}/{member}")
    quick = world.mover(namespace, "log", "quick")
    done = world.right(await quick.run(at_once=True))
    assert len(done.moved) == 1
    go_on.set()
    late = await running
    assert late.moved == []
    units = await world.units(namespace, "log")
    assert units == [*done.moved]
    assert units[0].file.url in world.bucket.objects, "the unit's own object was not touched"
    assert await world.read(await world.namespace(), "log") == written
    await world.check_tidy(namespace, "log")


async def test_what_was_begun_in_a_place_that_is_out_of_reach_for_good_is_given_up(world):
    """Its worker died, then its bucket was deleted, or its folder unmounted: the segments go to the new place."""
    namespace = await world.namespace()
    written = await world.write(namespace, "log", 2)
    cold = ColdStore(namespace.services.logs)
    gone = "s3://gone/cold"
    dead = await cold.copies.begin("log", 1, 2, root=gone, worker="dead", now_ms=world.clock.now_ms())

    def opened(address, options=None):
        if address.startswith(gone):
            raise StoreRefusedError("there is no such bucket", path=address)
        return world.open_store(address, options)

    stores = MoverStores(opened)
    mover = LogMover(namespace.services, cold, stores, "log", lambda: namespace.settings, "worker")
    done = await mover.run(at_once=True)
    assert [(unit.first, unit.last) for unit in done.moved] == [(1, 2)]
    (problem,) = done.problems
    assert "there is no such bucket" in problem
    assert dead.value.url in problem
    assert await cold.attempts("log") == []
    world.right(await mover.run())
    assert await world.read(namespace, "log") == written
    await stores.close()


async def test_a_copy_of_the_namespace_with_a_place_of_its_own_gives_up_what_it_did_not_begin(world):
    """Its object is the first one's, which is at work there: it stays."""
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    cold = ColdStore(namespace.services.logs)
    theirs = await cold.copies.begin("log", 1, 2, root=ROOT, worker="theirs", now_ms=world.clock.now_ms())
    for url in (f"{ROOT}/{await cold.namespace_id()}/owner/000001-1-2", theirs.value.url):
        await put(world.open_store(ROOT), url, b"x")
    copy = await world.namespace(cold_path="s3://memory/copy")
    done = world.right(await world.mover(copy, "log").run(at_once=True))
    assert [(unit.first, unit.last) for unit in done.moved] == [(1, 2)]
    assert done.left == [theirs.value.url]
    assert theirs.value.url in world.files


async def test_a_replaced_file_stays_where_the_one_in_its_place_is_not_there(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    mover = world.mover(namespace, "log")
    world.right(await mover.run(at_once=True))
    cold = ColdStore(namespace.services.logs)
    (unit,) = await cold.units("log")
    other = replace(unit.value.file, url=unit.value.file.url.replace(unit.value.attempt, "0123"))
    await cold.replace_file("log", unit, other, attempt="0123")
    world.clock.moment_ms += 3_600_000
    done = await mover.run()
    assert done.replaced_deleted == []
    assert "delete the replaced files" in done.problems[0]
    assert unit.value.file.url in world.bucket.objects
    await put(world.open_store("s3://memory/cold"), other.url, bytes(other.bytes))
    assert world.right(await mover.run()).replaced_deleted == [unit.value.file.url]


async def test_a_pass_over_a_thousand_units_asks_for_those_that_are_new_or_changed(world):
    # Without a place for files nothing is copied, and here nothing is to go: what is asked for is to see that.
    namespace = await world.namespace(cold_path="", cold_hot_retention_s=-1)
    logs = namespace.services.logs
    await make_cold_log(logs, 1_000, 1)
    asked: list[str] = []
    logs.store.observe(lambda operation, path, seconds, error: asked.append(f"{operation} {path}"))
    other, mover = ColdStore((await world.namespace()).services.logs), world.mover(namespace, "log")
    parent = f"get {logs.paths('log').cold_units}/"

    async def units_asked() -> set[int]:
        asked.clear()
        world.right(await mover.run())
        return {int(one[len(parent) :].split("-")[0]) for one in asked if one.startswith(parent)}

    assert len(await units_asked()) == 1_000
    assert await units_asked() == set()
    await copy_segment(logs, 1_001)
    now = await other.unit("log", 500, 500)
    await other.replace_file("log", now, replace(now.value.file, url="s3://memory/cold/again"), attempt="again")
    assert await units_asked() == {500, 1_001}
    assert len(asked) < 100, len(asked)


async def test_two_workers_in_turn_find_what_the_other_one_has_done(world):
    settings = {"cold_hot_retention_s": 3_600, "cold_retention_hours": 6}
    namespaces = [await world.namespace(**settings), await world.namespace(**settings)]
    movers = [world.mover(one, "log", f"worker-{number}") for number, one in enumerate(namespaces)]
    cold = ColdStore(namespaces[1].services.logs)
    gone: list[int] = []
    for hour in range(12):
        await world.write(namespaces[0], "log", 1, first=hour + 1)
        world.clock.moment_ms += HOUR_MS
        for number in (hour % 2, (hour + 1) % 2):
            done = world.right(await movers[number].run(at_once=True))
            gone += [one.first for one in done.cold_deleted]
        # Records are erased from one that neither has made just now; the file that it had goes with a later pass.
        now = (await cold.units("log"))[0]
        if not now.value.replaced:
            attempt = f"{hour:032x}"
            url = now.value.file.url.replace(now.value.attempt, attempt)
            await put(world.open_store("s3://memory/cold"), url, bytes(now.value.file.bytes))
            await cold.replace_file("log", now, replace(now.value.file, url=url), attempt=attempt)
    assert gone == list(range(1, gone[-1] + 1))
    assert len(gone) >= 4
    world.clock.moment_ms += HOUR_MS
    world.right(await movers[0].run(at_once=True))  # what was replaced last goes, too
    await world.check_tidy(namespaces[0], "log")
