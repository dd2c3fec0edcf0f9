"""Which marked ledger is repaired next: those that lack copies first, however many are marked for placement."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.virtual_time import virtual_time

from metadata.bookkeeper.ledgers import LedgerStore, Versioned
from metadata.bookkeeper.repairs import LONGEST_PAUSE_S, SEARCH_PAUSE_S, RepairQueue, RepairTask
from metadata.bookkeeper.replication import ReplicationStore, UnderReplicatedLedger, folder_of, ledger_of, mark_name
from metadata.foundation.errors import NotAppliedError
from metadata.zookeeper.memory import MemoryStore, MemoryTree


class Marks:
    """The marks of a cluster, and what is asked of its metadata."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.marks = ReplicationStore(MemoryStore(self.tree))
        self.requests: list[str] = []

    async def fill(self, placement: range, lost: range) -> None:
        await LedgerStore(self.marks.store).format()
        await self.marks.prepare()
        for ledger_id in placement:
            await self.marks.mark_placement(ledger_id)
        for ledger_id in lost:
            await self.marks.mark(ledger_id, ["gone"])

    def queue(self, seed: int = 0) -> RepairQueue:
        return RepairQueue(self.marks, "w", random.Random(seed))

    def count_requests(self) -> None:
        def note(_session: object, name: str, _path: object) -> None:
            self.requests.append(name)

        self.tree.inject = note


async def taken(queue: RepairQueue, count: int) -> list[RepairTask]:
    found = [await queue.next() for _ in range(count)]
    return [task for task in found if task is not None]


@virtual_time
async def test_lost_copies_come_before_all_that_is_to_be_looked_at_for_placement() -> None:
    marks = Marks()
    await marks.fill(placement=range(200), lost=range(200, 204))
    for seed in range(4):
        queue = marks.queue(seed)
        tasks = await taken(queue, 204)
        order = [task.ledger_id for task in tasks]
        assert sorted(order[:4]) == [200, 201, 202, 203]
        assert sorted(order[4:]) == list(range(200))
        assert order[4:] != list(range(200)), "workers do not meet at the same ledgers"
        assert await queue.next() is None
        for task in tasks:
            await queue.give_back(task)


@virtual_time
async def test_what_is_lost_while_placement_is_mended_is_found_within_the_pause() -> None:
    marks = Marks()
    await marks.fill(placement=range(50), lost=range(0))
    queue = marks.queue()
    (first,) = await taken(queue, 1)
    others = [ledger_id for ledger_id in range(50) if ledger_id != first.ledger_id]
    await marks.marks.mark(others[7], ["gone"])  # it was to be looked at already
    await marks.marks.mark(1_000_000, ["gone"])
    await asyncio.sleep(SEARCH_PAUSE_S)
    order = [task.ledger_id for task in await taken(queue, 50)]
    assert sorted(order[:2]) == [others[7], 1_000_000]
    assert sorted([first.ledger_id, *order]) == [*range(50), 1_000_000]


@virtual_time
async def test_a_search_that_took_long_is_begun_anew_later_but_not_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    read_s = 0.0

    async def slowly(ledger_id: int) -> Versioned[UnderReplicatedLedger] | None:
        await asyncio.sleep(read_s)
        return await read(ledger_id)

    for read_s, pause_s in ((0.0, SEARCH_PAUSE_S), (5.0, 50.0), (40.0, LONGEST_PAUSE_S)):
        marks = Marks()
        await marks.fill(placement=range(20), lost=range(0))
        read = marks.marks.read
        monkeypatch.setattr(marks.marks, "read", slowly)
        queue = marks.queue()
        marks.count_requests()
        locks = len(await taken(queue, 1))
        monkeypatch.setattr(marks.marks, "read", read)
        began = asyncio.get_running_loop().time() - 2 * read_s  # of the task itself: before its lock, and under it
        await marks.marks.mark(1_000, ["gone"])
        while locks < 20 and marks.requests.count("children") == 5:
            await asyncio.sleep(pause_s / 15)
            (task,) = await taken(queue, 1)
            locks += 1
        assert task.ledger_id == 1_000
        assert pause_s <= asyncio.get_running_loop().time() - began < pause_s * 1.1


@virtual_time
async def test_a_search_reads_each_mark_once_and_is_not_begun_anew_for_every_ledger() -> None:
    marks = Marks()
    await marks.fill(placement=range(300), lost=range(300, 301))
    marks.count_requests()
    queue = marks.queue()
    await taken(queue, 1)
    await taken(queue, 1)
    # The folders, and what is locked; each mark; and for each task a look before its lock, the lock, and one under it.
    assert marks.requests.count("children") == 5
    assert marks.requests.count("get") == 301 + 2 * 2
    assert marks.requests.count("create") == 2
    del marks.requests[:]
    await taken(queue, 20)
    assert (marks.requests.count("children"), marks.requests.count("get")) == (0, 40)


@virtual_time
async def test_a_mark_in_a_folder_that_was_left_behind_is_heard_of() -> None:
    marks, heard = Marks(), asyncio.Event()
    await marks.fill(placement=range(0), lost=range(5, 6))
    mark = await marks.marks.read(5)
    assert mark is not None
    path = marks.marks.mark_path(5)
    await marks.marks.store.delete(path, mark.version)
    queue = RepairQueue(marks.marks, "w", random.Random(0), lambda _event: heard.set())
    assert await queue.next() is None
    assert not heard.is_set()
    await marks.marks.mark(5, ["gone"])
    await asyncio.wait_for(heard.wait(), 1)
    assert [task.ledger_id for task in await taken(queue, 1)] == [5]


@virtual_time
async def test_a_search_that_was_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks()
    await marks.fill(placement=range(0), lost=range(40))
    queue = marks.queue()
    marks.count_requests()
    read, reads = marks.marks.read, 0

    async def fail_once(ledger_id: int) -> Versioned[UnderReplicatedLedger] | None:
        nonlocal reads
        reads += 1
        if reads == 20:
            raise NotAppliedError("the answer did not come")
        return await read(ledger_id)

    monkeypatch.setattr(marks.marks, "read", fail_once)
    with pytest.raises(NotAppliedError):
        await queue.next()
    assert sorted(task.ledger_id for task in await taken(queue, 40)) == list(range(40))
    assert marks.requests.count("children") == 5, "nothing is listed twice"


def test_a_folder_says_its_ledger() -> None:
    for ledger_id in (0, 12345, 2**62):
        assert ledger_of(folder_of(ledger_id)) == ledger_id
        assert folder_of(ledger_id) in ReplicationStore(MemoryStore(MemoryTree())).mark_path(ledger_id)
    assert mark_name(1) == "urL0000000001"
    assert ledger_of("0000/0000") is None
    assert ledger_of("") is None
