"""Cold units back in the list: the same records at the same positions, in ledgers that old readers open; whole or not
at all, whatever is killed, lost or done meanwhile."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.moved import HandMover
from helpers.cold.moved_logs import all_ledgers, damage_value, delete_files, moved, truncate_cold, units_of
from helpers.logs import written
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.cold.restoring.returning import LogReturn
from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog import cold_returns
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.store import Create, Delete
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1", b"c2"], [b"d0", b"d1"], [b"e0"]]
HOUR_MS = 3_600_000


@pytest_asyncio.fixture
async def cluster():
    cluster = MemoryCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest_asyncio.fixture
async def namespace(cluster):
    return await cluster.namespace()


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "cold").mkdir()
    return f"file://{tmp_path}/cold"


async def records_of(namespace, name="log", start="earliest"):
    async with await namespace.open_log(name) as log, await log.open_reader(start) as reader:
        found = []
        while more := await reader.read_available(100, wait=True):
            found += more
        return found


def returns(namespace, **changes):
    return LogReturn(namespace.services, replace(namespace.services.settings, **changes), "log")


async def hot(namespace) -> list[SegmentMetadata]:
    return await namespace.logs_store.hot_segments("log")


async def check_nothing_is_orphaned(namespace):
    named = {one.ledger_id for name in await namespace.logs() for one in await namespace.logs_store.hot_segments(name)}
    assert await all_ledgers(namespace) == named
    assert await namespace.store.children("/dl/.sinks") == ([], (await namespace.store.children("/dl/.sinks"))[1])


async def test_all_units_come_back_in_ledgers_that_old_readers_open(namespace, root):
    await written(namespace, "log", SEGMENTS)
    before_hot, before = await hot(namespace), await records_of(namespace)
    await moved(namespace, "log", root, [(1, 2), (3, 4)])
    assert [one.lssn for one in await hot(namespace)] == [5]
    assert await records_of(namespace) == before

    plan = await returns(namespace).plan()
    assert [(one.first, one.last, one.records) for one in plan.units] == [(3, 4, 5), (1, 2, 4)]
    assert not plan.hidden
    done = await returns(namespace).run(keep_hot_ms=HOUR_MS)

    assert done == list(plan.units)
    after = await hot(namespace)
    assert [replace(one, ledger_id=0) for one in after] == [replace(one, ledger_id=0) for one in before_hot]
    assert not {one.ledger_id for one in after[:4]} & {one.ledger_id for one in before_hot}
    units = await units_of(namespace, "log")
    assert [one.state for one in units] == [UnitState.FINISHED] * 2
    assert [one.hot_deleted_ms for one in units] == [None] * 2
    now_ms = namespace.services.clock.now_ms()
    assert all(abs(one.keep_hot_until_ms - now_ms - HOUR_MS) < HOUR_MS for one in units)
    assert [one.metadata.ledger_id for unit in units for one in unit.segments] == [one.ledger_id for one in after[:4]]
    # Without the files: what is read now comes from the ledgers.
    delete_files(root)
    assert await records_of(namespace) == before
    await check_nothing_is_orphaned(namespace)
    assert (await returns(namespace).plan()).units == ()


async def test_a_segment_is_known_by_all_ledgers_that_it_ever_was(namespace, root, tmp_path, monkeypatch):
    monkeypatch.setattr(cold_returns, "MAX_FORMER", 3)
    await written(namespace, "log", SEGMENTS)
    first = [one.ledger_id for one in await hot(namespace)][:2]
    await moved(namespace, "log", root, [(1, 2)])
    mover = HandMover(namespace, root)
    ledgers = [first]
    for round_ in range(5):
        await returns(namespace).run(keep_hot_ms=HOUR_MS)
        listed = (await namespace.logs_store.segments("log"))[:2]
        former = list(ledgers) if round_ < 3 else [ledgers[0], *ledgers[-2:]]
        assert [one.former_ledgers for one in listed] == list(zip(*former, strict=True))
        ledgers.append([one.ledger_id for one in listed])
        # Erased in between, and moved again: a swapped file and a unit without hot copies know them as well.
        erasure = LogErasure(namespace.services, namespace.services.settings, "log")
        await erasure.run(await erasure.plan(ErasureRequest(dlsns=(DLSN(1, round_ % 3, 0),))))
        (unit,) = await mover.cold.units("log")
        await mover.delete_hot("log", unit)
        cold = (await namespace.logs_store.segments("log"))[:2]
        assert [one.former_ledgers for one in cold] == list(zip(*former, strict=True))
        assert [one.first_ledger for one in cold] == first
    await mover.files.close()


async def test_the_list_has_no_hole_where_only_the_newer_units_are_wanted(namespace, root):
    await written(namespace, "log", SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", root, [(1, 1), (2, 2), (3, 3)])
    done = await returns(namespace).run(keep_hot_ms=HOUR_MS, from_segment=2)
    assert [one.first for one in done] == [3, 2]
    assert [one.lssn for one in await hot(namespace)] == [2, 3, 4, 5]
    assert await records_of(namespace) == before
    done = await returns(namespace).run(keep_hot_ms=HOUR_MS)
    assert [one.first for one in done] == [1]
    assert [one.lssn for one in await hot(namespace)] == [1, 2, 3, 4, 5]


async def test_what_a_truncation_has_hidden_does_not_come_back(namespace, root):
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 2), (3, 4)])
    await truncate_cold(namespace, "log", (3, 1, 0))
    before = await records_of(namespace)
    assert [one.payload for one in before] == [b"c1", b"c2", b"d0", b"d1", b"e0"]
    assert (await returns(namespace).plan()).hidden
    done = await returns(namespace).run(keep_hot_ms=0)
    assert [(one.first, one.last) for one in done] == [(3, 4)]
    found = await hot(namespace)
    assert [(one.lssn, one.truncation) for one in found[:1]] == [(3, TruncationStatus.PARTIALLY_TRUNCATED)]
    assert (found[0].min_entry, found[0].min_slot) == (1, 0)
    assert await records_of(namespace) == before


async def test_of_a_unit_that_is_hidden_in_part_only_the_rest_comes_back(namespace, root):
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 4)])
    await truncate_cold(namespace, "log", (3, 0, 0))
    before = await records_of(namespace)
    assert (await returns(namespace).plan()).hidden is True
    await returns(namespace).run(keep_hot_ms=0)
    assert [one.lssn for one in await hot(namespace)] == [3, 4, 5]
    assert await records_of(namespace) == before


async def test_control_records_and_units_without_a_file_come_back_as_entries(namespace, root):
    log = await written(namespace, "log", [[b"a0"]])
    for epoch in (1, 2):
        async with await log.open_writer(producers=True) as writer:
            await writer.begin_epoch("producer", epoch)
            if epoch == 2:
                writer.write(50, b"b0")
    await written(namespace, "log", [[b"c0"]], start=100)
    before, listed = await records_of(namespace), await hot(namespace)
    assert [one.record_count for one in listed] == [1, 0, 1, 1]
    units = await moved(namespace, "log", root, [(1, 1), (2, 2), (3, 3)])
    assert [one.file is None for one in units] == [False, True, False]
    await returns(namespace).run(keep_hot_ms=0)
    assert await records_of(namespace) == before
    for segment in (await hot(namespace))[:3]:
        reader = await namespace.ledgers.open(segment.ledger_id, recover=False)
        assert reader.last_add_confirmed == segment.last_entry
        await reader.close()
    assert [one.last_entry for one in await hot(namespace)] == [one.last_entry for one in listed]


async def test_two_workers_do_not_work_on_one_log(cluster, namespace, root):
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 4)])
    other = await cluster.namespace()
    lock = await ColdStore(other.logs_store).worker("log", "a mover")
    await lock.acquire(0)
    with pytest.raises(OwnershipAcquireFailedError, match="a mover"):
        await returns(namespace, lock_timeout_s=0).run(keep_hot_ms=0)
    await lock.release()
    assert await returns(namespace).run(keep_hot_ms=0)


async def test_a_log_with_nothing_cold_says_so(namespace):
    await written(namespace, "log", SEGMENTS)
    with pytest.raises(CallerError, match="nothing of the log is in cold files"):
        await returns(namespace).run(keep_hot_ms=0)


async def test_a_damaged_file_gets_no_byte_into_the_list(namespace, root):
    await written(namespace, "log", SEGMENTS)
    units = await moved(namespace, "log", root, [(1, 2), (3, 4)])
    damage_value(units[0].file)
    with pytest.raises(DistributedLogError, match="damaged"):
        await returns(namespace).run(keep_hot_ms=0)
    assert [one.lssn for one in await hot(namespace)] == [3, 4, 5], "what came before is back, and stays"
    await check_nothing_is_orphaned(namespace)


async def test_a_truncation_meanwhile_is_seen_before_anything_is_put_back(namespace, root):
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 4)])
    returning = returns(namespace)
    put_back, tries = returning._returns.put_back, []

    async def overtaken(*given, **named):
        tries.append(given)
        if len(tries) == 1:
            await truncate_cold(namespace, "log", (2, 0, 0))
        return await put_back(*given, **named)

    returning._returns.put_back = overtaken
    await returning.run(keep_hot_ms=0)
    assert len(tries) == 2
    assert [one.lssn for one in await hot(namespace)] == [2, 3, 4, 5]
    await check_nothing_is_orphaned(namespace)


async def test_what_is_erased_while_a_return_stands_still_does_not_come_back(namespace, root):
    """Its lock passes on meanwhile: the erasure does not know of it."""
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 4)])
    returning = returns(namespace)
    put_back, tries = returning._returns.put_back, []

    async def overtaken(*given, **named):
        tries.append(given)
        if len(tries) == 1:
            members = namespace.logs_store.paths("log").cold + "/worker"
            for member in (await namespace.store.children(members))[0]:
                await namespace.store.delete(f"{members}/{member}")
            erasure = LogErasure(namespace.services, namespace.services.settings, "log")
            await erasure.run(await erasure.plan(ErasureRequest(dlsns=(DLSN(3, 1, 0),))))
        return await put_back(*given, **named)

    returning._returns.put_back = overtaken
    with suppress(DistributedLogError):  # of the lock, which is gone
        await returning.run(keep_hot_ms=0)
    assert len(tries) == 2
    assert [one.lssn for one in await hot(namespace)] == [1, 2, 3, 4, 5]
    assert {one.dlsn: one.payload for one in await records_of(namespace)}[DLSN(3, 1, 0)] == b""
    await check_nothing_is_orphaned(namespace)


@pytest.mark.parametrize("late", [False, True])
async def test_what_upstreams_software_truncates_does_not_come_back(namespace, root, late):
    """It moves the list alone: before a return begins, or while it writes ledgers."""
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 2), (3, 3)])

    async def truncate():
        (fourth, *_) = await hot(namespace)
        path = namespace.logs_store.paths("log").segment(fourth)
        gone = replace(fourth, truncation=TruncationStatus.TRUNCATED)
        await namespace.store.multi([Delete(path), Create(path, gone.encode())])

    returning = returns(namespace)
    as_readers_do, opened = returning._open_source, []

    @asynccontextmanager
    async def source(segment):
        opened.append(segment.lssn)
        if late and len(opened) == 1:
            await truncate()
        async with as_readers_do(segment) as one:
            yield one

    returning._open_source = source
    if not late:
        await truncate()
    assert await returning.run(keep_hot_ms=0) == []
    assert opened == ([3] if late else [])
    assert [one.lssn for one in await hot(namespace)] == [4, 5]
    assert [one.payload for one in await records_of(namespace)] == [b"e0"]
    await check_nothing_is_orphaned(namespace)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("lost", [1, 4, 5, 6])
async def test_a_lost_answer_to_any_transaction_changes_nothing_of_the_outcome(cluster, root, lost, fault):
    namespace = await cluster.namespace()
    await written(namespace, "log", SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", root, [(1, 2), (3, 4)])
    count = 0

    def inject(session, operation, path):
        nonlocal count
        if operation == "multi" and session == namespace.store.session_id:
            count += 1
            return fault if count == lost else None
        return None

    cluster.tree.inject = inject
    await returns(namespace).run(keep_hot_ms=0)
    cluster.tree.inject = None
    assert count >= lost, "each of them was lost once"
    assert [one.lssn for one in await hot(namespace)] == [1, 2, 3, 4, 5]
    assert await records_of(namespace) == before
    await check_nothing_is_orphaned(namespace)


async def test_killed_anywhere_it_is_run_again_and_leaves_nothing_behind(tmp_path, rounds):
    for seed in range(rounds or 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        cluster = MemoryCluster()
        await cluster.start()
        await _killed(cluster, f"file://{folder}", random.Random(seed))
        await cluster.stop()


async def _killed(cluster, root, rng):
    namespace = await cluster.namespace()
    await written(namespace, "log", SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", root, [(1, 2), (3, 4)])
    for _ in range(20):
        victim = await cluster.namespace()
        left = rng.randrange(1, 80)
        killed = False

        def inject(session, operation, path, victim=victim):
            nonlocal left, killed
            if session != victim.store.session_id:
                return None
            left -= 1
            if left == 0:
                killed = True
                return rng.choice([Fault.LOSE_REPLY, Fault.REFUSE])
            return Fault.REFUSE if killed else None

        cluster.tree.inject = inject
        try:
            await returns(victim).run(keep_hot_ms=0)
        except DistributedLogError:
            pass
        await cluster.crash(victim)
        cluster.tree.inject = None
        # At every moment: the list has no hole, and readers miss nothing.
        numbers = [one.lssn for one in await hot(namespace)]
        assert numbers == list(range(numbers[0], 6))
        assert [one.dlsn for one in await records_of(namespace)] == [one.dlsn for one in before]
        if not killed:
            break
    await returns(namespace).run(keep_hot_ms=0)
    assert [one.lssn for one in await hot(namespace)] == [1, 2, 3, 4, 5]
    assert await records_of(namespace) == before
    await check_nothing_is_orphaned(namespace)


async def test_a_reader_at_a_position_in_the_past_goes_on(namespace, root):
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", root, [(1, 2), (3, 4)])
    async with await namespace.open_log("log") as log, await log.open_reader("earliest") as reader:
        first = await reader.read_next()
        await returns(namespace).run(keep_hot_ms=0)
        rest = []
        while more := await reader.read_available(100, wait=True):
            rest += more
    assert [one.payload for one in [first, *rest]] == [payload for part in SEGMENTS for payload in part]
    assert first.dlsn == DLSN(1, 0, 0)
