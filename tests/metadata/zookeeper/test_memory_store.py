"""Faults of the store in memory, repetition over lost connections, and stores on loops of different threads."""

from __future__ import annotations

import asyncio
import threading

import pytest
from helpers.worlds.metadata import Heard

from metadata.foundation.errors import (
    ConnectionLossError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from metadata.retry import MAX_REPEATS, reconnected, repeat
from metadata.store import EventKind, SessionState, WatchEvent
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree


@pytest.fixture
async def tree() -> MemoryTree:
    return MemoryTree(now_ms=lambda: 1_234)


@pytest.fixture
async def store(tree: MemoryTree) -> MemoryStore:
    return MemoryStore(tree)


def once(operation: str, fault: Fault):
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name == operation and not met:
            met.append(path)
            return fault
        return None

    return inject


async def test_times_come_from_the_injected_clock(store: MemoryStore) -> None:
    await store.create("/a")
    stat = await store.exists("/a")
    assert stat is not None
    assert (stat.ctime_ms, stat.mtime_ms) == (1_234, 1_234)


@pytest.mark.parametrize(
    ("fault", "kind", "applied"),
    [
        (Fault.LOSE_REPLY, ConnectionLossError, True),
        (Fault.LOSE_REQUEST, ConnectionLossError, False),
        (Fault.REFUSE, MetadataUnavailableError, False),
    ],
)
async def test_each_fault_applies_or_not_as_its_name_says(
    tree: MemoryTree, store: MemoryStore, fault: Fault, kind: type[DistributedLogError], applied: bool
) -> None:
    states = Heard()
    store.on_session(states)
    tree.inject = once("create", fault)
    with pytest.raises(kind):
        await store.create("/a")
    assert await reconnected(store, 1_000)
    assert (await store.exists("/a") is not None) is applied
    expected = [] if fault is Fault.REFUSE else [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert states.items == expected


async def test_a_lost_answer_hides_also_an_error(tree: MemoryTree, store: MemoryStore) -> None:
    tree.inject = once("get", Fault.LOSE_REPLY)
    with pytest.raises(ConnectionLossError):
        await store.get("/missing")


async def test_a_lost_answer_leaves_no_watch(tree: MemoryTree, store: MemoryStore) -> None:
    heard = Heard()
    tree.inject = once("exists", Fault.LOSE_REPLY)
    with pytest.raises(ConnectionLossError):
        await store.exists("/a", heard)
    await repeat(store, lambda: store.create("/a"))
    assert heard.items == []


async def test_a_stalled_server_answers_after_resume(tree: MemoryTree, store: MemoryStore) -> None:
    tree.stall()
    waiting = asyncio.ensure_future(store.create("/a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    tree.resume()
    assert await waiting == "/a"


async def test_an_expiry_during_a_stall_fails_what_waits(tree: MemoryTree, store: MemoryStore) -> None:
    tree.stall()
    waiting = asyncio.ensure_future(store.create("/a"))
    for _ in range(5):
        await asyncio.sleep(0)
    tree.expire(store.session_id)
    with pytest.raises(SessionExpiredError):
        await waiting
    tree.resume()
    assert await repeat(store, lambda: store.exists("/a")) is None


async def test_a_sequence_number_overflows_into_negative_ones(tree: MemoryTree, store: MemoryStore) -> None:
    await store.create("/s")
    tree.set_sequence("/s", 2**31 - 1)
    names = [await store.create("/s/n-", sequential=True) for _ in range(2)]
    assert names == ["/s/n-2147483647", "/s/n--2147483648"]


async def test_a_failed_multi_gives_back_its_sequence_numbers(store: MemoryStore) -> None:
    from metadata.store import Create, Delete

    with pytest.raises(NoNodeError):
        await store.multi([Create("/s-", sequential=True), Delete("/missing")])
    assert await store.create("/s-", sequential=True) == "/s-0000000000"


# ---- repeat ----------------------------------------------------------------------------------------------------------


async def test_repeat_comes_through_lost_connections_but_raises_other_errors(
    tree: MemoryTree, store: MemoryStore
) -> None:
    lost = 0

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        nonlocal lost
        lost += 1
        return Fault.LOSE_REPLY if lost < 5 else None

    tree.inject = inject
    with pytest.raises(NodeExistsError):
        await repeat(store, lambda: store.create("/a"))
    assert lost == 5


async def test_repeat_gives_up_after_a_bounded_number_of_losses(tree: MemoryTree, store: MemoryStore) -> None:
    count = 0

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        nonlocal count
        count += 1
        return Fault.LOSE_REQUEST

    tree.inject = inject
    with pytest.raises(ConnectionLossError):
        await repeat(store, lambda: store.exists("/a"))
    assert count == MAX_REPEATS


async def test_repeat_gives_up_when_the_connection_stays_away(tree: MemoryTree, store: MemoryStore) -> None:
    tree.disconnect(store.session_id)
    with pytest.raises((ConnectionLossError, MetadataUnavailableError)):
        await repeat(store, lambda: store.exists("/"), timeout_ms=30)
    tree.reconnect(store.session_id)
    assert await repeat(store, lambda: store.exists("/")) is not None


async def test_repeat_goes_on_in_the_session_after_an_expiry(tree: MemoryTree, store: MemoryStore) -> None:
    old = store.session_id
    tree.expire(old)
    await repeat(store, lambda: store.create("/e", ephemeral=True))
    stat = await store.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id != old


async def test_repeat_on_a_closed_store_fails_at_once(store: MemoryStore) -> None:
    await store.close()
    with pytest.raises(MetadataUnavailableError):
        await repeat(store, lambda: store.exists("/"))


# ---- threads ---------------------------------------------------------------------------------------------------------


async def test_stores_of_one_tree_may_live_on_loops_of_different_threads(tree: MemoryTree, store: MemoryStore) -> None:
    heard = Heard()
    await store.exists("/from-thread", heard)

    async def elsewhere() -> int:
        other = MemoryStore(tree)
        await other.create("/from-thread", ephemeral=True)
        await other.close()
        return threading.get_ident()

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) != threading.get_ident()
    assert await heard.wait(1) == [WatchEvent(EventKind.CREATED, "/from-thread")]
    assert await store.exists("/from-thread") is None


def test_a_store_made_outside_a_loop_is_bound_at_its_first_request() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    states: list[SessionState] = []
    store.on_session(states.append)
    tree.expire(store.session_id)
    assert states == [SessionState.EXPIRED, SessionState.CONNECTED]

    async def use() -> str:
        return await store.create("/a")

    assert asyncio.run(use()) == "/a"
    tree.expire(store.session_id)  # the loop is closed: nobody is told, nothing is raised
