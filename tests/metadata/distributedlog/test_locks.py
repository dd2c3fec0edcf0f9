"""The distributed lock: names, queueing, expiry, and what lost answers leave behind."""

from __future__ import annotations

import asyncio
import pickle
import re

import pytest
from helpers.reference_vectors import vectors
from helpers.waiting import until
from helpers.worlds.metadata import Heard, MetadataServer

from metadata.distributedlog.lock_members import LockId, member_prefix, parse_member, sequence_of
from metadata.distributedlog.locks import (
    DistributedLock,
    LockClosedError,
    LockingError,
    LockSessionExpiredError,
    OwnershipAcquireFailedError,
)
from metadata.foundation.errors import CallerError, NoNodeError
from metadata.retry import reconnected
from metadata.store import Check, MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
SESSION = 72057594037927937


@pytest.fixture
async def path(store: MetadataStore, root: str) -> str:
    return await store.create(f"{root}/lock")


async def members(store: MetadataStore, path: str) -> list[str]:
    return (await store.children(path))[0]


async def settled(task: asyncio.Task[None], store: MetadataStore, path: str, count: int) -> None:
    """Wait until `count` members queue, while `task` waits for the lock."""
    heard = Heard()

    async def queued() -> bool:
        return len((await store.children(path, heard))[0]) == count

    await heard.until(queued)
    assert not task.done()


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        ("host-1/10.0.0.5", "host-1/10.0.0.5"),
        ("1;3;10.0.0.5:4181", "a proxy, 1;3;10.0.0.5 with port 4181"),
        ("my client_id*~", "my client_id*~"),
        ("Unknown-ClientId", "Unknown-ClientId"),
    ],
)
def test_a_lock_member_begins_with_the_client_as_in_the_vectors(client_id: str, name: str) -> None:
    assert member_prefix(client_id, SESSION).encode() == VECTORS[f"lock member of {name}"]


def test_a_lock_member_names_its_session_as_in_the_vectors() -> None:
    for session_id in (12345, -72057594037927937):
        assert member_prefix("c", session_id).encode() == VECTORS[f"lock member of c, session {session_id}"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("member_host-1%2F10.0.0.5_s72057594037927937_0000000007", LockId("host-1/10.0.0.5", SESSION)),
        ("member_c_s     12345_0000000001", LockId("c", 12345)),
        ("member_a+b_s-5_0000000001", LockId("a b", -5)),
        ("member_my+client_id*%7E_s72057594037927937_0000000001", None),
        ("member_0000000001", None),
        ("member_c_0000000001", None),
        ("member_c_x12345_0000000001", None),
        ("member_c_sxyz_0000000001", None),
        ("member_%FF_s1_0000000001", None),
    ],
)
def test_owners_are_read_from_names_where_names_tell_them(name: str, owner: LockId | None) -> None:
    assert parse_member(name) == owner


def test_members_queue_by_sequence_and_one_without_comes_last() -> None:
    names = ["member_b_s1_0000000010", "junk", "member_a_0000000009", "member_0000000011"]
    assert sorted(names, key=sequence_of) == [names[2], names[0], names[3], names[1]]


def test_the_owner_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(OwnershipAcquireFailedError("them", path="/lock", log="flights")))
    assert (error.owner, error.code, error.path, error.log) == ("them", 302, "/lock", "flights")
    assert "them" in str(error)


# ---- acquire and release ---------------------------------------------------------------------------------------------


async def test_a_free_lock_is_acquired_at_once_and_leaves_nothing_after_release(
    store: MetadataStore, path: str
) -> None:
    for timeout_ms in (0, -1, 60_000):
        lock = DistributedLock(store, path, "me")
        assert not lock.held
        await lock.acquire(timeout_ms)
        assert lock.held
        await lock.ensure_held()
        (name,) = await members(store, path)
        assert lock.member_path == f"{path}/{name}"
        assert name.startswith(member_prefix("me", store.session_id))
        data, stat = await store.get(lock.member_path)
        assert (data, stat.ephemeral_owner) == (b"me", store.session_id)
        await lock.release()
        await lock.release()
        assert not lock.held
        assert await members(store, path) == []


@pytest.mark.parametrize("timeout_ms", [0, -1, -30_000])
async def test_timeout_0_or_less_tries_once_and_makes_no_node(
    store: MetadataStore, other: MetadataStore, path: str, timeout_ms: int
) -> None:
    owner = DistributedLock(store, path, "the_owner")
    await owner.acquire(0)
    before = (await store.children(path))[1].cversion
    with pytest.raises(OwnershipAcquireFailedError) as caught:
        await DistributedLock(other, path, "me").acquire(timeout_ms)
    assert (caught.value.owner, caught.value.code) == ("the_owner", 302)
    assert (await store.children(path))[1].cversion == before
    assert owner.held
    await owner.release()


async def test_a_waiting_client_gets_the_lock_when_the_owner_releases_it(
    store: MetadataStore, other: MetadataStore, path: str
) -> None:
    owner, waiter = DistributedLock(store, path, "owner"), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(60_000))
    await settled(waiting, store, path, 2)
    await owner.release()
    await asyncio.wait_for(waiting, 60)
    assert waiter.held
    await waiter.release()


@pytest.mark.parametrize(
    ("name", "advice"), [("owner", ""), ("1;0;host:8000", ". A write proxy has it (dlspark proxy owners): ")]
)
async def test_who_waits_for_long_says_for_whom_and_what_a_proxy_s_log_is_had_by(
    store: MetadataStore,
    other: MetadataStore,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    advice: str,
) -> None:
    monkeypatch.setattr("metadata.distributedlog.locks.SAID_AFTER_S", 0.0)
    owner, waiter = DistributedLock(store, path, name), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(86_400_000))
    await until(lambda: "waiting for it" in caplog.text, "a word of the wait")
    (said,) = [one.getMessage() for one in caplog.records if "waiting for it" in one.getMessage()]
    assert said.startswith(f"{name} has the lock {path} since 20")
    expected = rf"Z; waiting for it, \d+ s so far and up to 24 hours more{re.escape(advice)}"
    assert re.search(expected, said), said
    await owner.release()
    await asyncio.wait_for(waiting, 60)
    await waiter.release()


async def test_waiting_ends_with_the_timeout_and_leaves_no_node(
    store: MetadataStore, other: MetadataStore, path: str
) -> None:
    owner = DistributedLock(store, path, "owner")
    await owner.acquire(0)
    waiter = DistributedLock(other, path, "waiter")
    with pytest.raises(OwnershipAcquireFailedError) as caught:
        await waiter.acquire(50)
    assert caught.value.owner == "owner"
    assert len(await members(store, path)) == 1
    await owner.release()
    await waiter.acquire(0)
    assert waiter.held
    await waiter.release()


async def test_each_waiter_watches_only_its_predecessor(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, path: str
) -> None:
    third_store = await metadata_server.open()
    first, second, third = (
        DistributedLock(session, path, name)
        for session, name in ((store, "first"), (other, "second"), (third_store, "third"))
    )
    await first.acquire(0)
    waiting_second = asyncio.ensure_future(second.acquire(60_000))
    await settled(waiting_second, store, path, 2)
    waiting_third = asyncio.ensure_future(third.acquire(60_000))
    await settled(waiting_third, store, path, 3)
    waiting_second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting_second
    await settled(waiting_third, store, path, 2)
    await first.release()
    await asyncio.wait_for(waiting_third, 60)
    assert third.held
    await third.release()


async def test_a_dead_owners_lock_passes_on(store: MetadataStore, other: MetadataStore, path: str) -> None:
    owner, waiter = DistributedLock(store, path, "owner"), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(60_000))
    await settled(waiting, other, path, 2)
    await store.close()
    await asyncio.wait_for(waiting, 60)
    assert not owner.held
    with pytest.raises(LockClosedError):
        await owner.ensure_held()
    await waiter.release()


async def test_what_is_asked_behind_a_free_lock_is_answered_under_it(
    store: MetadataStore, other: MetadataStore, path: str
) -> None:
    asked: list[asyncio.Task[list[str]]] = []

    def ask() -> None:
        asked.append(asyncio.ensure_future(members(store, path)))

    for timeout_ms in (60_000, 0):
        lock = DistributedLock(store, path, "me")
        assert await lock.acquire(timeout_ms, ask)
        assert lock.member_path.rpartition("/")[2] in await asked.pop()
        await lock.release()
    holder = DistributedLock(other, path, "them")
    assert await holder.acquire(0)
    lock = DistributedLock(store, path, "me")
    waiting = asyncio.ensure_future(lock.acquire(60_000, ask))
    await settled(waiting, other, path, 2)
    assert len(await asked.pop()) == 2  # Somebody was before us: with this answer in, they may leave.
    await holder.release()
    assert not await waiting
    await lock.release()


async def test_a_free_lock_takes_one_round_trip() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/lock")
    made: list[str] = []
    store.observe(lambda operation, path, seconds, error: made.append(operation))
    tree.stall()
    acquiring = asyncio.ensure_future(DistributedLock(store, "/lock", "me").acquire(60_000))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not acquiring.done()
    tree.resume()  # What is asked from here on would be a second one.
    tree.stall()
    assert await asyncio.wait_for(acquiring, 60)
    assert made == ["create", "children"]
    tree.resume()


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
async def test_what_was_asked_behind_a_first_try_that_failed_does_not_count(fault: Fault) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/lock")
    creations = 0

    def inject(_session: int, operation: str, _path: str) -> Fault | None:
        nonlocal creations
        creations += operation == "create"
        return fault if operation == "create" and creations == 1 else None

    tree.inject = inject
    lock = DistributedLock(store, "/lock", "me")
    assert not await lock.acquire(60_000)
    assert lock.held
    assert creations == 2
    assert len(await members(store, "/lock")) == 1


async def test_a_list_of_members_without_ours_is_no_reason_to_give_up() -> None:
    """It may have been answered before ours was made, by a store that keeps no order."""
    store = MemoryStore(MemoryTree())
    await store.create("/lock")
    original, lists = store.children, []

    async def children(path: str, watch=None):
        names, stat = await original(path, watch)
        lists.append(names)
        return ([], stat) if len(lists) == 1 else (names, stat)

    store.children = children  # type: ignore[method-assign]
    lock = DistributedLock(store, "/lock", "me")
    assert not await lock.acquire(60_000)
    assert lock.held
    assert len(lists) == 2


async def test_two_locks_of_one_process_exclude_each_other(store: MetadataStore, path: str) -> None:
    first, second = DistributedLock(store, path, "same"), DistributedLock(store, path, "same")
    await first.acquire(0)
    with pytest.raises(OwnershipAcquireFailedError):
        await second.acquire(0)
    waiting = asyncio.ensure_future(second.acquire(60_000))
    await settled(waiting, store, path, 2)
    await first.release()
    await asyncio.wait_for(waiting, 60)
    await second.release()


async def test_of_many_contenders_one_at_a_time_has_the_lock(store: MetadataStore, path: str) -> None:
    inside = 0
    turns = 0

    async def contend(number: int) -> None:
        nonlocal inside, turns
        lock = DistributedLock(store, path, f"client-{number}")
        await lock.acquire(60_000)
        inside += 1
        assert inside == 1
        await store.exists(path)
        turns += 1
        inside -= 1
        await lock.release()

    await asyncio.gather(*(contend(number) for number in range(8)))
    assert turns == 8
    assert await members(store, path) == []


async def test_an_owner_with_an_underscore_or_an_old_name_is_read_from_its_node(
    store: MetadataStore, other: MetadataStore, path: str
) -> None:
    await other.create(f"{path}/member_", "ol_d/é".encode(), ephemeral=True, sequential=True)
    with pytest.raises(OwnershipAcquireFailedError) as caught:
        await DistributedLock(store, path, "me").acquire(0)
    assert caught.value.owner == "ol_d/é"


async def test_a_lock_is_acquired_once_and_not_after_release(store: MetadataStore, path: str) -> None:
    lock = DistributedLock(store, path, "me")
    with pytest.raises(LockingError):
        await lock.ensure_held()
    with pytest.raises(LockingError):
        _ = lock.member_path
    await lock.acquire(0)
    with pytest.raises(CallerError):
        await lock.acquire(0)
    await lock.release()
    with pytest.raises(LockClosedError):
        await lock.acquire(0)
    with pytest.raises(LockClosedError):
        await lock.ensure_held()


async def test_a_transaction_that_releases_needs_the_lock(store: MetadataStore, path: str) -> None:
    lock = DistributedLock(store, path, "a")
    await lock.acquire(0)
    op = lock.release_op()
    assert await members(store, path) == [op.path.rpartition("/")[2]]
    await store.multi([op])
    lock.deleted(op)
    await lock.release()
    assert await members(store, path) == []
    again = DistributedLock(store, path, "a")
    await again.acquire(0)
    with pytest.raises(NoNodeError):
        await store.multi([op])
    again.deleted(op)  # another member than its own
    await again.release()
    assert await members(store, path) == []
    with pytest.raises(LockingError):
        again.release_op()


async def test_the_locks_path_must_exist(store: MetadataStore, root: str) -> None:
    with pytest.raises(NoNodeError):
        await DistributedLock(store, f"{root}/nowhere", "me").acquire(0)
    with pytest.raises(NoNodeError):
        await DistributedLock(store, f"{root}/nowhere", "me").acquire(1_000)


async def test_release_ends_an_acquisition_under_way(store: MetadataStore, other: MetadataStore, path: str) -> None:
    owner, waiter = DistributedLock(store, path, "owner"), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(60_000))
    await settled(waiting, store, path, 2)
    await waiter.release()
    with pytest.raises(LockClosedError):
        await waiting
    assert len(await members(store, path)) == 1
    await owner.release()


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_acquisition_leaves_no_member(store: MetadataStore, path: str, turns: int) -> None:
    lock = DistributedLock(store, path, "me")
    acquiring = asyncio.ensure_future(lock.acquire(1_000))
    for _ in range(turns):
        await asyncio.sleep(0)
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    if lock.held:
        await lock.release()
    assert await members(store, path) == []


async def test_the_member_can_guard_a_transaction(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, path: str
) -> None:
    lock = DistributedLock(store, path, "me")
    await lock.acquire(0)
    guard = Check(lock.member_path, 0)
    await other.multi([guard])
    await lock.release()
    with pytest.raises(NoNodeError):
        await other.multi([guard])


# ---- losing the session ----------------------------------------------------------------------------------------------


async def test_a_lock_lost_with_its_session_is_acquired_again(
    metadata_server: MetadataServer, store: MetadataStore, path: str
) -> None:
    lock = DistributedLock(store, path, "me")
    await lock.acquire(0)
    old, old_session = lock.member_path, store.session_id
    states = Heard()
    store.on_session(states)
    await metadata_server.expire(store)

    async def renewed() -> bool:
        return store.session_id != old_session

    await states.until(renewed)
    assert await reconnected(store, 60_000)
    heard = Heard()

    async def queued_again() -> bool:
        await lock.ensure_held()
        return len((await store.children(path, heard))[0]) == 1

    await heard.until(queued_again)
    while not lock.held:
        await store.exists(path)
    assert lock.member_path != old
    assert (await store.get(lock.member_path))[1].ephemeral_owner == store.session_id
    assert len(await members(store, path)) == 1
    await lock.release()
    assert await members(store, path) == []


async def test_a_lock_that_somebody_took_meanwhile_is_lost_for_good(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, path: str
) -> None:
    lock, rival = DistributedLock(store, path, "me"), DistributedLock(other, path, "rival")
    await lock.acquire(0)
    waiting = asyncio.ensure_future(rival.acquire(60_000))
    await settled(waiting, other, path, 2)
    await metadata_server.expire(store)
    await asyncio.wait_for(waiting, 60)
    assert rival.held

    async def until_failed() -> None:
        while True:
            await lock.ensure_held()
            await store_turn(store, other, path)

    with pytest.raises(OwnershipAcquireFailedError) as caught:
        await asyncio.wait_for(until_failed(), 60)
    assert caught.value.owner == "rival"
    assert not lock.held
    with pytest.raises(OwnershipAcquireFailedError):
        await lock.ensure_held()
    await lock.release()
    assert rival.held
    assert len(await members(other, path)) == 1
    await rival.release()


async def store_turn(store: MetadataStore, other: MetadataStore, path: str) -> None:
    """One round trip of a healthy session: time for the sick one to get on."""
    await other.exists(path)


async def test_a_session_that_expires_while_waiting_fails_the_acquisition(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, path: str
) -> None:
    owner, waiter = DistributedLock(store, path, "owner"), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(60_000))
    await settled(waiting, store, path, 2)
    await metadata_server.expire(other)
    with pytest.raises(LockSessionExpiredError):
        await asyncio.wait_for(waiting, 60)
    assert not waiter.held
    assert len(await members(store, path)) == 1
    await owner.release()
    await waiter.acquire(0)
    await waiter.release()


async def test_a_lost_connection_does_not_cost_the_lock_or_the_place_in_the_queue(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, path: str
) -> None:
    owner, waiter = DistributedLock(store, path, "owner"), DistributedLock(other, path, "waiter")
    await owner.acquire(0)
    waiting = asyncio.ensure_future(waiter.acquire(60_000))
    await settled(waiting, store, path, 2)
    for session in (store, other):
        back = Heard()
        unsubscribe = session.on_session(back)
        await metadata_server.break_connection(session)
        await back.wait(2)
        unsubscribe()
    assert owner.held
    assert not waiting.done()
    await owner.release()
    await asyncio.wait_for(waiting, 60)
    await waiter.release()


# ---- lost answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
@pytest.mark.parametrize("operation", ["create", "children", "delete", "exists"])
@pytest.mark.parametrize("timeout_ms", [0, 60_000])
async def test_lost_answers_leave_no_stray_member(operation: str, fault: Fault, timeout_ms: int) -> None:
    tree = MemoryTree()
    store, other = MemoryStore(tree), MemoryStore(tree)
    await store.create("/lock")
    blocker = DistributedLock(other, "/lock", "blocker")
    if timeout_ms:
        await blocker.acquire(0)
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if session_id == store.session_id and name == operation and len(met) < 2:
            met.append(path)
            return fault
        return None

    tree.inject = inject
    lock = DistributedLock(store, "/lock", "me")
    acquiring = asyncio.ensure_future(lock.acquire(timeout_ms))
    if timeout_ms:
        await settled(acquiring, other, "/lock", 2)
        for _ in range(50):
            await other.exists("/lock")
        await blocker.release()
    await acquiring
    assert lock.held
    assert len(await members(other, "/lock")) == 1
    await lock.release()
    assert await members(other, "/lock") == []
    if operation in ("create", "children", "delete") or timeout_ms:
        assert len(met) == 2 or operation in ("exists", "delete")


async def test_remains_of_our_own_session_do_not_block_us(store: MetadataStore, path: str) -> None:
    stray = await store.create(
        f"{path}/{member_prefix('me', store.session_id)}", b"me", ephemeral=True, sequential=True
    )
    for timeout_ms in (0, 60_000):
        lock = DistributedLock(store, path, "me")
        await lock.acquire(timeout_ms)
        assert await store.exists(stray) is None
        await lock.release()
