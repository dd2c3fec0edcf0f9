"""The sweep and the audit: what goes, and what never does."""

from __future__ import annotations

import pytest
from helpers.cold.places import put

from dlspark.cold.moving import daemon
from dlspark.cold.moving.auditing import ColdFindingKind, audit_log
from dlspark.cold.moving.folders import ColdFolder
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.objects.errors import StoreRefusedError
from metadata.distributedlog.cold_steps import ColdSteps
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import object_name, unit_name


async def _moved(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    (unit,) = world.right(await world.mover(namespace, "log").run(at_once=True)).moved
    return namespace, ColdStore(namespace.services.logs), MoverStores(world.open_store), unit


async def test_a_stray_object_goes_only_when_it_is_old_and_in_the_logs_folder(world):
    namespace, cold, stores, unit = await _moved(world)
    folder = unit.file.url.rpartition("/")[0]
    stray = f"{folder}/{unit.name}-0123.parquet"
    elsewhere = f"s3://memory/cold/other/other/{unit.name}-0123.parquet"
    for url in (stray, elsewhere):
        await put(world.open_store("s3://memory/cold"), url, b"x")
    young = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert young.objects == []
    world.clock.moment_ms += 25 * 3_600_000
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert swept.objects == [stray]
    assert world.files == {unit.file.url, elsewhere}


async def test_files_of_a_deleted_log_go_and_its_note_stays_for_a_day(world):
    namespace, cold, stores, unit = await _moved(world)
    await namespace.delete_log("log")
    assert unit.file.url in world.bucket.objects
    (note,) = await cold.deleted_logs()
    first = await sweep_deleted_log(namespace.services, cold, stores, note)
    assert (first.objects, first.logs) == ([unit.file.url], [])
    assert world.files == set()
    world.clock.moment_ms += 25 * 3_600_000
    last = await sweep_deleted_log(namespace.services, cold, stores, note)
    assert last.logs == ["log"]
    assert await cold.deleted_logs() == []


async def test_an_audit_names_what_is_missing_or_of_another_size(world):
    namespace, cold, stores, unit = await _moved(world)
    assert await audit_log(namespace.services, cold, stores, "log", namespace.settings) == (1, [])
    world.bucket.damage(unit.file.url, b"short")
    _, (finding,) = await audit_log(namespace.services, cold, stores, "log", namespace.settings)
    assert (finding.kind, finding.only_copy) == (ColdFindingKind.SIZE, False)
    await world.open_store("s3://memory/cold").delete(unit.file.url)
    _, (finding,) = await audit_log(namespace.services, cold, stores, "log", namespace.settings)
    assert finding.kind is ColdFindingKind.MISSING


async def test_what_may_be_the_only_copy_of_something_stays(world):
    namespace, cold, stores, unit = await _moved(world)
    folder = unit.file.url.rpartition("/")[0]
    # As after a restore of ZooKeeper from an older state: a file of segments that it does not know.
    newer = f"{folder}/{unit_name(unit.last + 1, unit.last + 2)}-0123.parquet"
    partly = f"{folder}/{unit_name(unit.last, unit.last + 1)}-0123.parquet"
    same = f"{folder}/{unit.name}-0123.parquet"
    for url in (newer, partly, same):
        await put(world.open_store("s3://memory/cold"), url, b"x")
    await world.open_store("s3://memory/cold").delete(unit.file.url)
    world.clock.moment_ms += 25 * 3_600_000
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert swept.objects == []
    assert sorted(swept.kept) == sorted([newer, partly, same]), "the unit's own file is missing"


async def test_a_file_that_is_older_than_the_segments_of_its_numbers_is_not_theirs(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 1)
    cold, stores = ColdStore(namespace.services.logs), MoverStores(world.open_store)
    await cold.ensure("log")
    about = (await cold.cold_log("log")).value
    before = f"s3://memory/cold/{object_name(about, 2, 2, '0123')}"
    await put(world.open_store("s3://memory/cold"), before, b"x")
    world.clock.moment_ms += 3_600_000
    await world.write(namespace, "log", 2, first=2)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    world.clock.moment_ms += 25 * 3_600_000
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert (swept.objects, swept.kept) == ([], [before])


async def test_a_log_that_is_renamed_while_it_is_swept_loses_nothing(world, monkeypatch):
    namespace, cold, stores, unit = await _moved(world)
    world.clock.moment_ms += 25 * 3_600_000
    reads = []
    every = ColdSteps.all

    async def renamed_between(steps, parent, decode):
        reads.append(parent)
        if len(reads) == 3:  # those before the listing were two
            # As of a worker whose session has ended: its lock holds nobody off.
            worker = f"{parent.rpartition('/')[0]}/worker"
            members, _ = await namespace.services.store.children(worker)
            for name in members:
                await namespace.services.store.delete(f"{worker}/{name}", -1)
            await namespace.rename_log("log", "other")
        return await every(steps, parent, decode)

    monkeypatch.setattr(ColdSteps, "all", renamed_between)
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert len(reads) >= 4
    assert swept.objects == []
    assert unit.file.url in world.bucket.objects
    assert [one.value.file.url for one in await cold.units("other")] == [unit.file.url]


async def test_a_host_whose_clock_is_days_ahead_sweeps_nothing_early(world):
    namespace, cold, stores, unit = await _moved(world)
    stray = f"{unit.file.url.rpartition('/')[0]}/{unit.name}-0123.parquet"
    await put(world.open_store("s3://memory/cold"), stray, b"x")
    store_clock = world.clock.moment_ms
    world.cluster.tree._now_ms = lambda: store_clock
    world.clock.moment_ms += 48 * 3_600_000
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert swept.objects == []


async def test_a_deleted_logs_folder_that_was_never_made_has_no_files_and_a_root_that_is_not_there_is_told(tmp_path):
    stores = MoverStores()
    folder = ColdFolder(f"file://{tmp_path}/namespace/log/")
    assert [one async for one in stores.at(folder.root, {}).list(folder.url)] == []
    # A reader's store of the same folder says that it may be gone: another one all the same.
    url = f"file://{tmp_path}/gone/{unit_name(1, 2)}-0123.parquet"
    assert stores.at(url, {}) is not stores.at(f"file://{tmp_path}/gone", {})
    with pytest.raises(StoreRefusedError):
        [one async for one in stores.at(f"file://{tmp_path}/gone", {}).list(f"file://{tmp_path}/gone/")]
    await stores.close()


async def test_one_bad_log_and_one_bad_note_keep_no_others_from_their_turn(world, monkeypatch):
    namespace, cold, stores, _unit = await _moved(world)
    await world.write(namespace, "other", 2)
    world.right(await world.mover(namespace, "other").run(at_once=True))
    await namespace.delete_log("log")
    await namespace.delete_log("other")
    notes = await cold.deleted_logs()
    asked = []

    async def refused(services, cold, stores, subject, *rest):
        asked.append(subject)
        raise StoreRefusedError("it does not answer")

    monkeypatch.setattr(daemon, "sweep_deleted_log", refused)
    monkeypatch.setattr(daemon, "audit_log", refused)
    one = daemon.MoverDaemon(namespace, stores=stores)
    await one.sweep()
    assert sorted(note.value.log for note in asked) == ["log", "other"], "in any order"
    assert len(notes) == 2
    asked.clear()
    for name in ("log", "other"):
        await world.write(namespace, name, 1)
        one._tasks[name] = None
    assert await one.audit() == []
    assert sorted(asked) == ["log", "other"]


async def test_a_host_whose_clock_is_days_ahead_forgets_no_deleted_log_early(world):
    namespace, cold, stores, unit = await _moved(world)
    await namespace.delete_log("log")
    (note,) = await cold.deleted_logs()
    store_clock = world.clock.moment_ms
    world.cluster.tree._now_ms = lambda: store_clock
    world.clock.moment_ms += 48 * 3_600_000
    first = await sweep_deleted_log(namespace.services, cold, stores, note)
    assert first.objects == [unit.file.url]
    second = await sweep_deleted_log(namespace.services, cold, stores, note)
    assert second.logs == []
    (stamped,) = await cold.deleted_logs()
    assert (stamped.value, stamped.version) == (note.value, note.version + 1)
    store_clock += 25 * 3_600_000
    third = await sweep_deleted_log(namespace.services, cold, stores, stamped)
    assert third.logs == ["log"]
    assert await cold.deleted_logs() == []


async def test_a_dead_try_of_the_very_second_in_which_its_segment_ended_goes(world):
    """S3 tells of times in whole seconds: the object seems to be older than its segment."""
    namespace, cold, stores, unit = await _moved(world)
    stray = f"{unit.file.url.rpartition('/')[0]}/{unit.name}-0123.parquet"
    ended = unit.segments[-1].metadata.completion_time_ms
    for seems_ms, goes in ((ended - 1_000, False), (ended - 999, True)):
        world.bucket._now_ms, before = (lambda: seems_ms), world.bucket._now_ms  # noqa: B023
        await put(world.open_store("s3://memory/cold"), stray, b"x")
        world.bucket._now_ms = before
        world.clock.moment_ms += 25 * 3_600_000
        swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
        assert (swept.objects == [stray], swept.kept == [stray]) == (goes, not goes)
        await world.open_store("s3://memory/cold").delete(stray)
