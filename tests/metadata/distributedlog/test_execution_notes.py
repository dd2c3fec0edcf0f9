"""What the tasks of one execution agree on: one note, whoever comes first, and none after it is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from metadata.distributedlog import execution_notes
from metadata.distributedlog.execution_notes import ExecutionStore, ForgottenExecutionError, Note
from metadata.zookeeper.memory import MemoryStore, MemoryTree

NS = "/dl/ns"
PLACE = f"{NS}/.executions/driver"


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryTree())
    await store.create(NS, make_parents=True)
    yield store
    await store.close()


async def noted(store: MemoryStore, execution: int, **said: object) -> Note:
    """The note of an execution by a task that finds out `said`."""

    async def extend(note: Note) -> Note:
        return {**said, **note}

    return await ExecutionStore(store, NS).agree("driver", execution, extend)


async def test_the_first_task_of_an_execution_decides_and_later_ones_may_add(store: MemoryStore) -> None:
    assert await noted(store, 7, flights="3:0:0") == {"flights": "3:0:0"}
    assert await noted(store, 7, flights="4:0:0") == {"flights": "3:0:0"}
    assert await noted(store, 7, flights="4:0:0", alerts="1:0:0") == {"flights": "3:0:0", "alerts": "1:0:0"}
    assert await noted(store, 8, flights="4:0:0") == {"flights": "4:0:0"}
    stored = json.loads((await store.get(PLACE))[0])
    assert stored["notes"] == {"7": {"flights": "3:0:0", "alerts": "1:0:0"}, "8": {"flights": "4:0:0"}}


async def test_tasks_that_come_at_once_agree(store: MemoryStore) -> None:
    arrived = asyncio.Barrier(5)

    async def task(number: int) -> Note:
        first = True

        async def extend(note: Note) -> Note:
            nonlocal first
            if first:  # all have read before one writes
                first = False
                await arrived.wait()
            return note or {"flights": number}

        return await ExecutionStore(store, NS).agree("driver", 1, extend)

    answers = await asyncio.gather(*(task(number) for number in range(5)))
    assert all(answer == answers[0] for answer in answers)


async def test_an_execution_that_is_forgotten_is_refused_and_never_noted_anew(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_notes, "MAX_NOTES", 3)
    for execution in (5, 9, 12, 20):
        await noted(store, execution, end=execution)
    stored = json.loads((await store.get(PLACE))[0])
    assert (sorted(stored["notes"], key=int), stored["forgotten"]) == (["9", "12", "20"], 5)
    with pytest.raises(ForgottenExecutionError, match="since number 5"):
        await noted(store, 5, end=99)
    assert await noted(store, 9, end=99) == {"end": 9}
    assert await noted(store, 13, end=13) == {"end": 13}


async def test_notes_are_bounded_in_bytes(store: MemoryStore) -> None:
    for execution in range(8):
        await noted(store, execution, text="x" * 60_000)
    data, _ = await store.get(PLACE)
    assert len(data) <= execution_notes.MAX_BYTES
    assert set(json.loads(data)["notes"]) == {"4", "5", "6", "7"}
    assert await noted(store, 9, text="x" * 300_000), "the newest is kept in any case"


async def test_notes_of_drivers_that_ended_long_ago_go_when_another_begins() -> None:
    now_ms = 1_000
    store = MemoryStore(MemoryTree(lambda: now_ms))
    for driver, at_ms, left in (
        ("a", 1_000, ["a"]),
        ("b", execution_notes.KEPT_MS, ["a", "b"]),
        ("c", execution_notes.KEPT_MS + 1_001, ["b", "c"]),
    ):
        now_ms = at_ms

        async def extend(note: Note) -> Note:
            return {"end": 1}

        await ExecutionStore(store, NS).agree(driver, 1, extend)
        assert (await store.children(f"{NS}/.executions"))[0] == left
    await store.close()
