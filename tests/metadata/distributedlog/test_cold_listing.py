"""What a reader asks again of a log whose past lies in files: what is new, whatever its length."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest
from helpers.cold.unit_znodes import ROOT, add, cold_log, copy_segment, log_store, unit

from metadata.distributedlog import cold_listing, cold_units
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdLog, ColdUnit
from metadata.distributedlog.logs import LogStore
from metadata.store import SetData
from metadata.zookeeper.memory import MemoryTree


class Reader:
    """A client that lists logs whole, and counts what it asks for."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self.asked: list[str] = []
        logs.store.observe(lambda operation, path, seconds, error: self.asked.append(f"{operation} {path}"))

    async def units_asked(self, name: str = "log") -> list[int]:
        """List the log whole; the units that were asked for, by their first segments."""
        self.asked.clear()
        self.found = await self.logs.segments(name)
        parent = f"get {self.logs.paths(name).cold_units}/"
        return sorted(int(one[len(parent) :].split("-")[0]) for one in self.asked if one.startswith(parent))


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.mark.parametrize(("units", "segments"), [(300, 2), (2_000, 50)], ids=["600", "100000"])
async def test_a_log_that_has_one_more_segment_is_asked_for_that_one(
    tree: MemoryTree, units: int, segments: int
) -> None:
    logs = await cold_log(tree, units, segments)
    reader = Reader(await log_store(tree))
    assert len(await reader.units_asked()) == units
    newest = units * segments + 1
    assert [one.lssn for one in reader.found] == list(range(1, newest + 2))

    # A new segment on the list, and the one before it goes into a file.
    await add(logs, newest + 2)
    cold = ColdStore(logs)
    await cold.delete_hot("log", await copy_segment(logs, newest), now_ms=3)

    assert await reader.units_asked() == [newest]
    assert [one.lssn for one in reader.found] == list(range(1, newest + 3))
    assert len(reader.asked) <= 5, reader.asked
    assert await reader.units_asked() == []


async def test_a_changed_unit_is_read_again_and_no_other(tree: MemoryTree) -> None:
    logs = await cold_log(tree, 10, 2)
    cold, reader = ColdStore(logs), Reader(await log_store(tree))

    async def swapped(first: int, number: int) -> None:
        now = await cold.unit("log", first, first + 1)
        file = replace(now.value.file, url=f"{ROOT}/swapped-{number}")
        now = await cold.replace_file("log", now, file, attempt=f"again-{number}")
        await cold.forget_replaced("log", now, now.value.replaced[0].url)

    assert len(await reader.units_asked()) == 10
    await swapped(5, 0)
    await swapped(9, 1)
    assert await reader.units_asked() == [5, 9]
    assert [one.cold.file.url for one in reader.found if one.lssn in (5, 6, 9)] == [
        f"{ROOT}/swapped-{number}" for number in (0, 0, 1)
    ]
    for number in range(2, 2 + cold_units.MAX_CHANGES):
        await swapped(1, number)
    assert await reader.units_asked() == [1]
    # One more than the log's mark tells of: the reader cannot know that it was not another unit.
    for number in range(100, 101 + cold_units.MAX_CHANGES):
        await swapped(3, number)
    assert len(await reader.units_asked()) == 10


async def test_a_release_that_does_not_tell_which_unit_it_changed_has_all_read_again(tree: MemoryTree) -> None:
    logs = await cold_log(tree, 10, 2)
    reader = Reader(await log_store(tree))
    await reader.units_asked()
    path = logs.paths("log").cold
    data, stat = await logs.store.get(path)
    before = ColdLog.decode(data, path)
    await logs.store.multi([SetData(path, replace(before, generation=before.generation + 1).encode(), stat.version)])
    assert len(await reader.units_asked()) == 10


async def test_of_more_than_there_is_room_for_the_rest_alone_is_asked_again(
    tree: MemoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cold_listing.UNIT_BYTES + 2 * cold_listing.SEGMENT_BYTES
    monkeypatch.setattr(cold_listing, "MAX_KEPT_BYTES", 6 * one)
    await cold_log(tree, 10, 2)
    await cold_log(tree, 3, 2, name="other")
    reader = Reader(await log_store(tree))
    assert len(await reader.units_asked()) == 10
    assert len(await reader.units_asked()) == 4
    # Another log makes room for itself: what was used longest ago goes.
    assert len(await reader.units_asked("other")) == 3
    assert await reader.units_asked("other") == []
    assert len(await reader.units_asked()) == 10
    assert len(await reader.units_asked()) == 4


async def test_units_and_logs_that_are_gone_take_no_room(tree: MemoryTree) -> None:
    logs = await cold_log(tree, 10, 2)
    cold, reader = ColdStore(logs), Reader(await log_store(tree))
    await reader.units_asked()
    kept = reader.logs._cold_lister._kept
    before = kept.bytes
    await cold.end_cold_delete("log", await cold.begin_cold_delete("log", await cold.unit("log", 1, 2)))
    assert await reader.units_asked() == []
    assert kept.bytes == before * 9 // 10
    names = [
        f"{logs.paths('log').cold_units}/{name}"
        for name in (await logs.store.children(logs.paths("log").cold_units))[0]
    ]
    await reader.logs._cold_lister.names(logs.paths("log"))
    for path in [*names, *(f"{logs.paths('log').cold}/{one}" for one in ("units", "attempts", "worker"))]:
        await logs.store.delete(path)
    await logs.store.delete(logs.paths("log").cold)
    assert await reader.logs._cold_lister.names(logs.paths("log")) is None
    assert kept.bytes == 0


@pytest.mark.parametrize(("units", "segments"), [(500, 1), (50, 10), (2, 500)])
def test_what_units_are_taken_to_weigh_is_about_what_they_do(units: int, segments: int) -> None:
    encoded = [unit(1 + index * segments, segments).encode() for index in range(units)]
    ColdUnit.decode(encoded[0], "/p")  # what the interpreter keeps of the first time is not the units'
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [ColdUnit.decode(data, "/p") for data in encoded]
        weighed = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    taken = len(held) * (cold_listing.UNIT_BYTES + cold_listing.SEGMENT_BYTES * segments)
    # Strings and numbers weigh something else in each Python (a string 8 bytes less from 3.12 on).
    assert 0.7 < taken / weighed < 2, (taken, weighed)
