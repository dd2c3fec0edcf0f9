"""Every step of cold storage against each request at which its worker may die, and each answer that may be lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_steps import ColdMovedError, ColdTakenError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdSegment
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_changes import SegmentChanges
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.store import Create, MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

MOVED = (1, 3)
COUNT = 5
STEPS = 8
"""begin, retry, finish, delete_hot, replace_file, forget_replaced, begin_cold_delete, end_cold_delete."""
MOST = 80
"""Requests of a whole life; a round of each of them."""
WRITES = ("create", "put", "delete", "multi")


class Died(BaseException):
    """The process ends here."""


class Mortal:
    """A session whose process dies at its `at`-th request: before it is sent, or once it was applied."""

    def __init__(self, store: MetadataStore, at: int, *, applied: bool) -> None:
        self._store = store
        self._left = at
        self._applied = applied
        self.dead = False

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name not in ("get", "exists", "children", "sync", *WRITES):
            return found

        async def request(*args, **kwargs):
            self._left -= 1
            if self._left != 0:
                return await found(*args, **kwargs)
            self.dead = True
            if self._applied:
                await found(*args, **kwargs)
            raise Died

        return request


def segment(lssn: int) -> SegmentMetadata:
    base = SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, last_txid=lssn * 10 + 9)
    return replace(base, record_count=3, last_entry=2, last_slot=0, start_sequence_id=(lssn - 1) * 3)


def file_of(url: str) -> ColdFile:
    return ColdFile(url, 10, "aa", "bb", 9, 9)


async def advance(cold: ColdStore) -> bool:
    """Take the next step of the log's unit, by what is found alone, as a worker does; False at the end."""
    first, last = MOVED
    unit = await cold.unit("log", first, last)
    if unit is None:
        for attempt in await cold.attempts("log"):
            attempt = await cold.copies.retry("log", attempt, root="file:///r", worker="next", now_ms=1)
            places = [ColdSegment(segment(lssn), 3 * (lssn - first), 3, 50) for lssn in range(first, last + 1)]
            await cold.copies.finish("log", attempt, places, file_of(attempt.value.url), now_ms=2)
            return True
        log = await cold.cold_log("log")
        if log is not None and log.value.truncated_to >= (last + 1, 0, 0):
            return False
        await cold.copies.begin("log", first, last, root="file:///r", worker="first", now_ms=1)
    elif unit.value.state is UnitState.FINISHED:
        await cold.delete_hot("log", unit, now_ms=3)
    elif unit.value.replaced:
        unit = await cold.forget_replaced("log", unit, unit.value.replaced[0].url)
        await cold.end_cold_delete("log", await cold.begin_cold_delete("log", unit))
    elif unit.value.state is UnitState.HOT_DELETED and unit.value.attempt != "redacted":
        await cold.replace_file("log", unit, file_of("file:///redacted"), attempt="redacted")
    elif unit.value.state is UnitState.HOT_DELETED:
        await cold.begin_cold_delete("log", unit)
    else:
        await cold.end_cold_delete("log", unit)
    return True


async def world() -> tuple[MemoryTree, LogStore]:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    logs = LogStore(store, "/ns")
    await logs.create("log")
    await store.multi(
        [Create(logs.paths("log").segment(one), one.encode()) for one in map(segment, range(1, COUNT + 1))]
    )
    return tree, logs


async def check_whole(logs: LogStore) -> None:
    """Each segment is shown once, and hidden only where a file of its may go."""
    found = await logs.segments("log")
    numbers = [one.lssn for one in found]
    assert numbers in ([1, 2, 3, 4, 5], [4, 5])
    units = await ColdStore(logs).units("log")
    going = bool(units) and units[0].value.state is UnitState.COLD_DELETE_STARTED
    assert {one.truncation is TruncationStatus.TRUNCATED for one in found[:-2]} <= {going}
    assert not any(one.truncation for one in found[-2:])
    for one in found[:-2]:
        assert one == replace(segment(one.lssn), truncation=one.truncation)


async def check_ended(logs: LogStore) -> None:
    cold = ColdStore(logs)
    assert await cold.units("log") == await cold.attempts("log") == []
    assert [one.lssn for one in await logs.segments("log")] == [4, 5]
    assert await SegmentChanges(logs, "log").noted() == [101, 102, 103]


async def state_of(logs: LogStore) -> tuple[UnitState, int, int | None] | None:
    """Return how far the unit has come, without the ids, which a second try makes anew."""
    unit = await ColdStore(logs).unit("log", *MOVED)
    return (unit.value.state, len(unit.value.replaced), unit.value.hot_deleted_ms) if unit else None


@pytest.mark.parametrize("applied", [False, True])
async def test_a_worker_that_dies_anywhere_is_followed_by_one_that_ends_its_work(applied: bool) -> None:
    died = 0
    for at in range(1, MOST):
        tree, logs = await world()
        mortal = Mortal(MemoryStore(tree), at, applied=applied)
        cold = ColdStore(LogStore(mortal, "/ns"))
        try:
            while await advance(cold):
                await check_whole(logs)
        except Died:
            died += 1
        await check_whole(logs)
        survivor = ColdStore(LogStore(MemoryStore(tree), "/ns"))
        while await advance(survivor):
            await check_whole(logs)
        await check_ended(logs)
        if not mortal.dead:
            break
    assert 30 < died < MOST - 1  # A round for each request there is.


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_answer_changes_nothing_of_what_is_done(fault: Fault) -> None:
    plain: list[object] = []
    met = 0
    for at in range(MOST):
        tree, logs = await world()
        working = MemoryStore(tree)
        ids = iter(f"id{number}" for number in range(100))
        cold = ColdStore(LogStore(working, "/ns"), new_id=lambda ids=ids: next(ids))
        left = at

        def inject(session_id: int, operation: str, path: str, working=working) -> Fault | None:
            nonlocal left, met
            if session_id != working.session_id:
                return None
            left -= 1
            met += left == 0
            return fault if left == 0 else None

        tree.inject = inject
        seen: list[object] = []
        while await advance(cold):
            await check_whole(logs)
            seen.append(await state_of(logs))
        await check_ended(logs)
        log = await cold.cold_log("log")
        assert log is not None
        if at == 0:
            plain = seen
        # The same states one after the other, and not one step more in `P/cold`: none was taken twice.
        assert seen == plain
        assert log.version == STEPS
        if at and left > 0:
            break
    assert 30 < met < MOST - 1


@pytest.mark.parametrize("seed", range(4))
async def test_two_workers_at_once_do_each_thing_once(seed: int) -> None:
    tree, logs = await world()
    await ColdStore(logs).ensure("log")

    async def work(turns: int) -> None:
        cold = ColdStore(LogStore(MemoryStore(tree), "/ns"))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(40):
            try:
                if not await advance(cold):
                    return
            except (ColdMovedError, ColdTakenError):
                pass  # The other one was first.
            await check_whole(logs)

    await asyncio.gather(work(0), work(seed * 7))
    while await advance(ColdStore(logs)):
        pass
    await check_ended(logs)
