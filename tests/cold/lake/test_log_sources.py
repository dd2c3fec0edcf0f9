"""What a sync asks of a log: its units once, and then those that are new or changed."""

from __future__ import annotations

from dataclasses import replace

from helpers.cold.unit_znodes import add, cold_log, copy_segment, log_store

from dlspark.cold.lake.log_sources import ColdLogSource
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_tables import DELTA, ColdTable, TableLog
from metadata.zookeeper.memory import MemoryTree


async def test_a_sync_reads_the_units_that_are_new_or_changed_and_sees_all_that_leave():
    tree = MemoryTree()
    worker = await cold_log(tree, 1_000, 1)
    cold, logs = ColdStore(worker), await log_store(tree)
    log_id = (await cold.cold_log("log")).value.log_id
    table = ColdTable("flights", "id", DELTA, "/lake/flights", "", (TableLog("log", log_id),))
    asked: list[str] = []
    logs.store.observe(lambda operation, path, seconds, error: asked.append(f"{operation} {path}"))
    parent = f"get {logs.paths('log').cold_units}/"

    async def check(*read: int) -> None:
        asked.clear()
        # Each sync has a source of its own, and so has each release of a unit's files.
        (found,) = await ColdLogSource(logs).logs(table)
        assert sorted(int(one[len(parent) :].split("-")[0]) for one in asked if one.startswith(parent)) == list(read)
        now = [one.value for one in await cold.units("log")]
        # Whether hot copies are gone does not matter to a table.
        assert [_for_tables(one) for one in found.units] == [_for_tables(one) for one in now]

    await check(*range(1, 1_001))
    await check()
    await add(worker, 1_003)
    await cold.delete_hot("log", await copy_segment(worker, 1_001), now_ms=3)
    await check(1_001)
    now = await cold.unit("log", 7, 7)
    now = await cold.replace_file("log", now, replace(now.value.file, url="s3://bucket/again"), attempt="again")
    await check(7)
    await cold.forget_replaced("log", now, now.value.replaced[0].url)
    await check(7)
    await check()
    oldest = await cold.begin_cold_delete("log", await cold.unit("log", 1, 1))
    await check(1)
    await cold.begin_cold_delete("log", await cold.unit("log", 2, 2))
    await cold.end_cold_delete("log", oldest)
    await check(2)


def _for_tables(unit):
    return unit.name, unit.file, unit.replaced, unit.state is UnitState.COLD_DELETE_STARTED


async def test_a_log_of_another_id_has_nothing_for_the_table():
    logs = await cold_log(MemoryTree(), 3, 1)
    other = ColdTable("flights", "id", DELTA, "/lake/flights", "", (TableLog("log", "another"),))
    assert await ColdLogSource(logs).logs(other) == []
