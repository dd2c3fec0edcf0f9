"""The sweep and the audit: what goes, and what never does."""

from __future__ import annotations

from helpers.cold.places import put

from dlspark.cold.moving.auditing import ColdFindingKind, audit_log
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from metadata.distributedlog.cold_store import ColdStore


async def _moved(world):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    (unit,) = world.right(await world.mover(namespace, "log").run(at_once=True)).moved
    return namespace, ColdStore(namespace.services.logs), MoverStores(world.open_store), unit


async def test_a_stray_object_goes_only_when_it_is_old_and_in_the_logs_folder(world):
    namespace, cold, stores, unit = await _moved(world)
    folder = unit.file.url.rpartition("/")[0]
    elsewhere = "s3://memory/cold/other/other/000-001-stray.parquet"
    for url in (f"{folder}/000-001-stray.parquet", elsewhere):
        await put(world.open_store("s3://memory/cold"), url, b"x")
    young = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert young.objects == []
    world.clock.moment_ms += 25 * 3_600_000
    swept = await sweep_log(namespace.services, cold, stores, "log", namespace.settings)
    assert swept.objects == [f"{folder}/000-001-stray.parquet"]
    assert set(world.bucket.objects) == {unit.file.url, elsewhere}


async def test_files_of_a_deleted_log_go_and_its_note_stays_for_a_day(world):
    namespace, cold, stores, unit = await _moved(world)
    await namespace.delete_log("log")
    assert unit.file.url in world.bucket.objects
    (note,) = await cold.deleted_logs()
    first = await sweep_deleted_log(namespace.services, cold, stores, note)
    assert (first.objects, first.logs) == ([unit.file.url], [])
    assert world.bucket.objects == {}
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
