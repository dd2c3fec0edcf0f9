"""A log from its files alone: every record of them, at the same positions, and writers go on behind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import pytest_asyncio
from helpers.cold.moved_logs import FIVE_SEGMENTS, all_ledgers, moved, units_of
from helpers.logs import records_of, written
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.cold.restoring.checking import check_file, read_footer
from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
from dlspark.cold.restoring.returning import LogReturn
from dlspark.objects.opening import open_store
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_rebuilds import ColdRebuilds
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.zookeeper.memory import Fault

FILED = [payload for part in FIVE_SEGMENTS[:4] for payload in part]


@pytest_asyncio.fixture
async def filed(namespace, folder):
    return await filed_log(namespace, folder)


async def filed_log(namespace, folder):
    """The records of a log, all but its newest segment in files; the log is gone."""
    await written(namespace, "log", FIVE_SEGMENTS)
    await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 4)])
    found = [one for one in await records_of(namespace) if one.dlsn.lssn < 5]
    await namespace.delete_log("log")
    await forget_deletions(namespace)
    assert [one.payload for one in found] == FILED
    return found


async def forget_deletions(namespace):
    """As where ZooKeeper was lost: nothing says that there are files to be deleted."""
    cold = ColdStore(namespace.logs_store)
    for note in await cold.deleted_logs():
        await cold.forget_deleted(note)


async def rebuilt(namespace, folder, name="again", *, adopt=False, told=lambda unit: None, **choice):
    store = open_store(f"file://{folder}")
    try:
        found = await find_files(store, f"file://{folder}/", **choice)
        checked = await check_files(store, found)
        rebuild = LogRebuild(namespace.services, namespace.services.settings, name, options={}, adopt=adopt)
        await rebuild.run(found, checked, namespace_id="b" * 32, told=told)
        return found
    finally:
        await store.close()


async def test_every_record_of_the_files_is_there_again_and_writers_go_on_behind(namespace, folder, filed):
    found = await rebuilt(namespace, folder)
    assert (found.first, found.last, found.records) == (1, 4, len(FILED))
    assert await records_of(namespace, "again") == filed
    units = await units_of(namespace, "again")
    assert [(one.first, one.last, one.state) for one in units] == [
        (1, 2, UnitState.HOT_DELETED),
        (3, 4, UnitState.HOT_DELETED),
    ]
    assert all(one.file.borrowed for one in units)
    await written(namespace, "again", [[b"new0", b"new1"], [b"new2"]], start=1_000)
    after = await records_of(namespace, "again")
    assert after[: len(filed)] == filed
    assert [(one.payload, one.dlsn.lssn) for one in after[len(filed) :]] == [(b"new0", 6), (b"new1", 6), (b"new2", 7)]
    assert [one.sequence_id for one in after] == list(range(len(after)))
    async with await namespace.open_log("again") as log, await log.open_writer() as writer:
        with pytest.raises(DistributedLogError, match="transaction id"):
            await writer.write(5, b"old")
    assert len(list(folder.rglob("*.parquet"))) == 2
    named = {one.ledger_id for one in await namespace.logs_store.hot_segments("again")}
    assert await all_ledgers(namespace) == named
    # And from here into ledgers.
    await LogReturn(namespace.services, namespace.services.settings, "again").run(keep_hot_ms=0)
    assert [one.lssn for one in await namespace.logs_store.hot_segments("again")] == [1, 2, 3, 4, 5, 6, 7]
    assert await records_of(namespace, "again") == after


async def test_a_rebuilt_log_that_was_not_written_yet_can_come_back_as_well(namespace, folder, filed):
    await rebuilt(namespace, folder, adopt=True)
    assert not any(one.file.borrowed for one in await units_of(namespace, "again"))
    await LogReturn(namespace.services, namespace.services.settings, "again").run(keep_hot_ms=0)
    assert await records_of(namespace, "again") == filed


async def test_deleting_a_rebuilt_log_leaves_the_files(namespace, folder, filed):
    await rebuilt(namespace, folder)
    await namespace.delete_log("again")
    await rebuilt(namespace, folder, "once-more")
    assert await records_of(namespace, "once-more") == filed


@pytest.mark.parametrize("adopt", [False, True])
async def test_files_that_a_deletion_has_condemned_are_refused(namespace, folder, adopt):
    await written(namespace, "log", FIVE_SEGMENTS)
    await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 4)])
    await namespace.delete_log("log")
    with pytest.raises(CallerError, match="which was deleted from this namespace"):
        await rebuilt(namespace, folder, adopt=adopt)
    assert "again" not in await namespace.logs()
    (note,) = await ColdStore(namespace.logs_store).deleted_logs()
    with pytest.raises(CallerError) as raised:
        await rebuilt(namespace, folder, adopt=adopt)
    assert raised.value.path.endswith(note.value.log_id)
    await namespace.store.delete(raised.value.path)  # as its advice says
    await rebuilt(namespace, folder, adopt=adopt)
    assert [one.payload for one in await records_of(namespace, "again")] == FILED


async def test_a_log_that_is_there_is_left_alone(namespace, folder, filed):
    await written(namespace, "other", [[b"x"]])
    with pytest.raises(CallerError, match="there is such a log, and it has been written"):
        await rebuilt(namespace, folder, "other")
    assert [one.payload for one in await records_of(namespace, "other")] == [b"x"]
    await rebuilt(namespace, folder)
    with pytest.raises(CallerError, match="it is not one that is being rebuilt from these files"):
        await rebuilt(namespace, folder)
    # An empty one is taken.
    await namespace.create_log("empty")
    await rebuilt(namespace, folder, "empty")
    assert await records_of(namespace, "empty") == filed


@pytest.mark.parametrize("moment", ["ensure_untouched", "find"])
async def test_a_mover_that_finds_the_log_first_is_no_other_client(namespace, folder, filed, monkeypatch, moment):
    """A mover of the namespace names each log that goes to cold storage, also one that was made a moment ago."""
    cold = ColdStore(namespace.logs_store)
    real = getattr(ColdRebuilds, moment)
    seen = []

    async def and_then_the_mover(self, name):
        found = await real(self, name)
        if await namespace.logs_store.exists(name) and not seen:
            seen.append(found)
            await cold.ensure(name)
        return found

    monkeypatch.setattr(ColdRebuilds, moment, and_then_the_mover)
    await rebuilt(namespace, folder)
    assert seen == [None]
    assert await records_of(namespace, "again") == filed


async def test_a_mover_that_moves_the_empty_head_of_a_rebuild_that_died_is_no_hindrance(
    namespace, folder, filed, monkeypatch
):
    """Killed between its first transaction and its first unit: all that the log has is an empty completed segment."""

    async def killed(self, name, found, unit, *, last):
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ColdRebuilds, "add", killed)
        with pytest.raises(RuntimeError, match="killed"):
            await rebuilt(namespace, folder)
    await moved(namespace, "again", f"file://{folder}", [(5, 5)])
    (unit,) = await units_of(namespace, "again")
    assert (unit.first, unit.last, unit.file) == (5, 5, None)
    await rebuilt(namespace, folder)
    assert [(one.first, one.last) for one in await units_of(namespace, "again")] == [(1, 2), (3, 4), (5, 5)]
    assert await records_of(namespace, "again") == filed
    await written(namespace, "again", [[b"new"]], start=1_000)
    assert [one.payload for one in await records_of(namespace, "again")][len(filed) :] == [b"new"]


async def test_a_log_that_only_a_mover_has_seen_is_taken(namespace, folder, filed):
    await namespace.create_log("again")
    await ColdStore(namespace.logs_store).ensure("again")
    await rebuilt(namespace, folder)
    assert await records_of(namespace, "again") == filed
    await written(namespace, "other", [[b"x"]])
    await ColdStore(namespace.logs_store).ensure("other")
    with pytest.raises(CallerError, match="there is such a log, and it has been written"):
        await rebuilt(namespace, folder, "other")


async def test_a_damaged_file_is_refused_before_anything_is_made(namespace, folder, filed):
    path = sorted(folder.rglob("*.parquet"))[0]
    data = path.read_bytes()
    store = open_store(f"file://{folder}")
    for at in random.Random(4).sample(range(len(data)), 12):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises((DistributedLogError, CallerError)):
            await rebuilt(namespace, folder)
    path.write_bytes(data)
    (info,) = [one async for one in store.list(f"file://{folder}/") if one.url.endswith(path.name)]
    assert (await check_file(store, await read_footer(store, info))).erased == 0
    await store.close()
    assert "again" not in await namespace.logs()


async def test_a_file_that_is_torn_is_missed_by_its_name(namespace, folder, filed):
    paths = sorted(folder.rglob("*.parquet"))
    (folder / "notes.txt").write_text("not one")
    for path, run in zip(paths, ("1 to 2", "3 to 4"), strict=True):
        data = path.read_bytes()
        path.write_bytes(data[:-5])
        with pytest.raises(CallerError, match=f"segments {run} are not in other files"):
            await rebuilt(namespace, folder)
        path.write_bytes(data)
    paths[0].write_bytes(b"PAR1")
    found = await rebuilt(namespace, folder, from_segment=3)
    assert [one.url.rpartition("/")[2] for one in found.other] == [paths[0].name]
    assert await records_of(namespace, "again") == [one for one in filed if one.dlsn.lssn > 2]
    paths[1].write_bytes(b"PAR1")
    with pytest.raises(CallerError, match="there is no cold file"):
        await rebuilt(namespace, folder, "another")


async def test_segments_without_a_record_and_without_a_file_are_no_hole(namespace, folder):
    log = await written(namespace, "log", [[b"a0"]])
    for epoch in (1, 2):
        async with await log.open_writer(producers=True) as writer:
            await writer.begin_epoch("producer", epoch)
    await written(namespace, "log", [[b"d0"], [b"e0"]], start=100)
    units = await moved(namespace, "log", f"file://{folder}", [(1, 1), (2, 3), (4, 4)])
    assert [one.file is None for one in units] == [False, True, False]
    before = [one for one in await records_of(namespace) if one.dlsn.lssn < 5]
    await rebuilt(namespace, folder)
    assert await records_of(namespace, "again") == before
    rebuilt_units = await units_of(namespace, "again")
    assert [(one.first, one.last) for one in rebuilt_units] == [(1, 1), (2, 3), (4, 4)]
    # Which ledgers they were no file says: whoever knows one of these must not take the log for another.
    empty = [one.metadata for one in rebuilt_units[1].segments]
    assert [one.was_ledger(known.metadata.ledger_id) for one, known in zip(empty, units[1].segments, strict=True)] == [
        True,
        True,
    ]
    await LogReturn(namespace.services, namespace.services.settings, "again").run(keep_hot_ms=0)
    assert await records_of(namespace, "again") == before
    assert [one.was_ledger(1_000) for one in await namespace.logs_store.segments("again")] == [
        False,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("lost", range(1, 6))
async def test_a_lost_answer_to_any_transaction_does_no_harm(memory_cluster, namespace, folder, filed, lost, fault):
    count = 0

    def inject(session, operation, path):
        nonlocal count
        if operation == "multi" and session == namespace.store.session_id:
            count += 1
            return fault if count == lost else None
        return None

    memory_cluster.tree.inject = inject
    await rebuilt(namespace, folder)
    memory_cluster.tree.inject = None
    assert count >= lost
    assert await records_of(namespace, "again") == filed


async def test_killed_anywhere_it_is_run_again(tmp_path, rounds):
    for seed in range(rounds or 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        cluster = MemoryCluster()
        await cluster.start()
        filed = await filed_log(await cluster.namespace(), folder)
        await _killed(cluster, folder, filed, random.Random(seed))
        await cluster.stop()


async def _killed(cluster, folder, filed, rng):
    for _ in range(30):
        victim = await cluster.namespace()
        left, killed = rng.randrange(1, 60), False

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
            await rebuilt(victim, folder)
        except DistributedLogError:
            pass
        await cluster.crash(victim)
        cluster.tree.inject = None
        namespace = await cluster.namespace()
        if "again" in await namespace.logs():
            # What is there is the end of the log, without a hole.
            there = await records_of(namespace, "again")
            assert there == filed[len(filed) - len(there) :]
        if not killed:
            break
    else:
        await rebuilt(namespace, folder)
    assert await records_of(namespace, "again") == filed
    units = await units_of(namespace, "again")
    assert [replace(one, segments=()).file.borrowed for one in units] == [True, True]
    assert await all_ledgers(namespace) == {
        one.ledger_id for one in await namespace.logs_store.hot_segments("again")
    } | {ledger async for ledger in _staged(namespace)}


async def _staged(namespace):
    """Yield ledgers that a killed rebuild has listed: the next restore of the log sweeps them, or a sweep of sinks."""
    try:
        sinks, _ = await namespace.store.children("/dl/.sinks")
    except DistributedLogError:
        return
    for sink in sinks:
        names, _ = await namespace.store.children(f"/dl/.sinks/{sink}/attempts")
        for name in names:
            yield int(name.split("-")[2])
