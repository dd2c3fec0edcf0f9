"""What every metadata store must do: run against memory and against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import time

import pytest
from helpers.worlds.metadata import Heard, MetadataServer

from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    ConnectionLossError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
)
from metadata.retry import reconnected, repeat
from metadata.store import (
    MAX_REQUEST_BYTES,
    Check,
    Create,
    Delete,
    EventKind,
    MetadataStore,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
)
from metadata.zookeeper.session import SessionHub

# ---- nodes and versions ----------------------------------------------------------------------------------------------


async def test_a_new_node_has_version_0_and_each_set_adds_one(store: MetadataStore, root: str) -> None:
    assert await store.create(f"{root}/a", b"one") == f"{root}/a"
    data, stat = await store.get(f"{root}/a")
    assert (data, stat.version, stat.data_length, stat.num_children, stat.ephemeral_owner) == (b"one", 0, 3, 0, 0)
    assert stat.czxid == stat.mzxid > 0
    assert abs(stat.ctime_ms - time.time() * 1000) < 60_000
    changed = await store.put(f"{root}/a", b"three", 0)
    assert (changed.version, changed.data_length, changed.czxid) == (1, 5, stat.czxid)
    assert changed.mzxid > stat.mzxid
    assert (await store.put(f"{root}/a", b"", -1)).version == 2
    assert await store.get(f"{root}/a") == (b"", await store.exists(f"{root}/a"))


async def test_conditional_updates_lose_against_another_version(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"kept")
    for version in (1, 7):
        with pytest.raises(BadVersionError):
            await store.put(f"{root}/a", b"lost", version)
        with pytest.raises(BadVersionError):
            await store.delete(f"{root}/a", version)
    assert (await store.get(f"{root}/a"))[0] == b"kept"
    await store.delete(f"{root}/a", 0)
    assert await store.exists(f"{root}/a") is None


async def test_missing_nodes_are_named_in_the_error(store: MetadataStore, root: str) -> None:
    missing = f"{root}/missing"
    for call in (store.get(missing), store.children(missing), store.put(missing, b"", -1), store.delete(missing)):
        with pytest.raises(NoNodeError) as caught:
            await call
        assert caught.value.path == missing
    with pytest.raises(NoNodeError):
        await store.create(f"{missing}/child")
    assert await store.exists(missing) is None


async def test_a_node_that_exists_or_has_children_stays(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a/b", b"kept", make_parents=True)
    with pytest.raises(NodeExistsError):
        await store.create(f"{root}/a/b", b"lost")
    with pytest.raises(NotEmptyError):
        await store.delete(f"{root}/a")
    assert (await store.get(f"{root}/a/b"))[0] == b"kept"


async def test_make_parents_creates_them_empty_and_persistent(store: MetadataStore, root: str) -> None:
    path = await store.create(f"{root}/x/y/z", b"leaf", ephemeral=True, make_parents=True)
    assert path == f"{root}/x/y/z"
    for parent in (f"{root}/x", f"{root}/x/y"):
        data, stat = await store.get(parent)
        assert (data, stat.ephemeral_owner) == (b"", 0)
    assert (await store.get(path))[1].ephemeral_owner == store.session_id


async def test_sequential_nodes_count_creations_and_never_reuse_a_number(store: MetadataStore, root: str) -> None:
    first = await store.create(f"{root}/s-", sequential=True)
    assert first == f"{root}/s-0000000000"
    await store.delete(first)
    second = await store.create(f"{root}/s-", sequential=True, ephemeral=True)
    assert second == f"{root}/s-0000000001"
    assert await store.create(f"{root}/other-", sequential=True) == f"{root}/other-0000000002"


async def test_children_are_sorted_and_versioned(store: MetadataStore, root: str) -> None:
    for name in ("b", "a", "c"):
        await store.create(f"{root}/{name}")
    names, stat = await store.children(root)
    assert names == ["a", "b", "c"]
    assert (stat.num_children, stat.cversion) == (3, 3)
    await store.delete(f"{root}/b")
    names, after = await store.children(root)
    assert (names, after.cversion, after.version) == (["a", "c"], 4, 0)


async def test_large_and_binary_data_comes_back_unchanged(store: MetadataStore, root: str) -> None:
    data = bytes(range(256)) * 3_600
    await store.create(f"{root}/large", data)
    assert (await store.get(f"{root}/large"))[0] == data


async def test_many_requests_at_once_are_all_answered(store: MetadataStore, root: str) -> None:
    await asyncio.gather(*(store.create(f"{root}/n{number}", b"%d" % number) for number in range(500)))
    found = await asyncio.gather(*(store.get(f"{root}/n{number}") for number in range(500)))
    assert [data for data, _ in found] == [b"%d" % number for number in range(500)]


# ---- bad requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//a", "/a//b", "/a/../b", "/./a", "/a\0", "/a\x1f", "/a\x85", "/\ue000", "/\U0001f600"]
)
async def test_invalid_paths_are_refused_before_anything_is_sent(store: MetadataStore, path: str) -> None:
    for call in (
        store.get(path),
        store.exists(path),
        store.children(path),
        store.create(path),
        store.put(path, b"", 0),
        store.delete(path),
        store.sync(path),
        store.multi([Check(path, 0)]),
    ):
        with pytest.raises(CallerError):
            await call


async def test_a_request_too_large_is_refused_and_the_session_lives_on(store: MetadataStore, root: str) -> None:
    with pytest.raises(CallerError, match="exceeds"):
        await store.create(f"{root}/a", bytes(MAX_REQUEST_BYTES))
    with pytest.raises(CallerError, match="exceeds"):
        await store.multi([Create(f"{root}/{name}", bytes(400_000)) for name in "abc"])
    assert (await store.children(root))[0] == []


async def test_the_root_cannot_be_created_or_deleted(store: MetadataStore) -> None:
    for call in (store.create("/"), store.delete("/")):
        with pytest.raises(CallerError):
            await call


async def test_an_ephemeral_node_has_no_children(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/e", ephemeral=True)
    with pytest.raises(CallerError):
        await store.create(f"{root}/e/child")


# ---- multi -----------------------------------------------------------------------------------------------------------


async def test_a_multi_answers_each_operation_by_its_kind(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"old")
    await store.create(f"{root}/gone")
    results = await store.multi(
        [
            Check(f"{root}/a", 0),
            SetData(f"{root}/a", b"new", 0),
            Create(f"{root}/b", b"made"),
            Create(f"{root}/s-", sequential=True, ephemeral=True),
            Delete(f"{root}/gone", 0),
        ]
    )
    assert results[0] is None
    assert isinstance(results[1], Stat)
    assert results[1].version == 1
    assert results[2:] == [f"{root}/b", f"{root}/s-0000000003", None]
    assert (await store.children(root))[0] == ["a", "b", "s-0000000003"]
    assert (await store.get(f"{root}/s-0000000003"))[1].ephemeral_owner == store.session_id


async def test_later_operations_of_a_multi_see_earlier_ones(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/segment", b"active")
    await store.multi(
        [
            Create(f"{root}/parent"),
            Create(f"{root}/parent/child"),
            Delete(f"{root}/segment", 0),
            Create(f"{root}/segment", b"truncated"),
            SetData(f"{root}/segment", b"twice", 0),
        ]
    )
    assert (await store.get(f"{root}/segment"))[1].version == 1
    assert (await store.children(f"{root}/parent"))[0] == ["child"]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (lambda root: Check(f"{root}/a", 5), BadVersionError),
        (lambda root: SetData(f"{root}/a", b"", 5), BadVersionError),
        (lambda root: SetData(f"{root}/missing", b"", -1), NoNodeError),
        (lambda root: Check(f"{root}/missing", -1), NoNodeError),
        (lambda root: Create(f"{root}/a"), NodeExistsError),
        (lambda root: Create(f"{root}/missing/child"), NoNodeError),
        (lambda root: Delete(f"{root}/full"), NotEmptyError),
    ],
)
async def test_a_multi_fails_whole_and_says_which_operation(
    store: MetadataStore, root: str, place: int, failing, kind: type[DistributedLogError]
) -> None:
    await store.create(f"{root}/a", b"kept")
    await store.create(f"{root}/full/child", make_parents=True)
    watched = Heard()
    before = await store.children(root, watched)
    ops = [Create(f"{root}/new"), SetData(f"{root}/a", b"lost", 0), Delete(f"{root}/full/child")]
    if kind is NotEmptyError:
        ops[2] = Create(f"{root}/new2")
    ops.insert(place, failing(root))
    with pytest.raises(kind) as caught:
        await store.multi(ops)
    assert caught.value.op_index == place
    assert caught.value.path == ops[place].path
    assert await store.children(root) == before
    assert (await store.get(f"{root}/a"))[0] == b"kept"
    assert (await store.children(f"{root}/full"))[0] == ["child"]
    assert watched.items == []


async def test_an_empty_multi_does_nothing(store: MetadataStore) -> None:
    assert await store.multi([]) == []


# ---- watches ---------------------------------------------------------------------------------------------------------


async def test_a_data_watch_fires_once(store: MetadataStore, other: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a")
    heard = Heard()
    await store.get(f"{root}/a", heard)
    await other.put(f"{root}/a", b"1", -1)
    await other.put(f"{root}/a", b"2", -1)
    assert (await heard.wait(1)) == [WatchEvent(EventKind.CHANGED, f"{root}/a")]
    assert (await store.get(f"{root}/a"))[0] == b"2"
    assert len(heard.items) == 1


async def test_an_exists_watch_sees_creation_change_and_deletion(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    heard = Heard()
    path = f"{root}/a"
    assert await store.exists(path, heard) is None
    await other.create(path)
    await heard.wait(1)
    assert await store.exists(path, heard) is not None
    await other.put(path, b"x", -1)
    await heard.wait(2)
    assert await store.exists(path, heard) is not None
    await other.delete(path)
    await heard.wait(3)
    assert [event.kind for event in heard.items] == [EventKind.CREATED, EventKind.CHANGED, EventKind.DELETED]


async def test_a_children_watch_sees_children_come_and_go_but_not_data(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    heard = Heard()
    await store.children(root, heard)
    await other.put(root, b"data", -1)
    await other.create(f"{root}/a")
    assert await heard.wait(1) == [WatchEvent(EventKind.CHILDREN, root)]
    await store.children(root, heard)
    await other.put(f"{root}/a", b"data", -1)
    await other.delete(f"{root}/a")
    assert await heard.wait(2) == [WatchEvent(EventKind.CHILDREN, root)] * 2


async def test_the_deletion_of_a_node_ends_its_children_watch(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a")
    heard = Heard()
    await store.children(f"{root}/a", heard)
    await other.delete(f"{root}/a")
    assert await heard.wait(1) == [WatchEvent(EventKind.DELETED, f"{root}/a")]


async def test_the_same_watcher_left_twice_is_one_watch(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a")
    heard = Heard()
    await store.get(f"{root}/a", heard)
    await store.exists(f"{root}/a", heard)
    await store.put(f"{root}/a", b"", -1)
    await store.sync(root)
    assert await heard.wait(1) == [WatchEvent(EventKind.CHANGED, f"{root}/a")]


async def test_a_failed_get_leaves_no_watch(store: MetadataStore, root: str) -> None:
    heard = Heard()
    for call in (store.get(f"{root}/a", heard), store.children(f"{root}/a", heard)):
        with pytest.raises(NoNodeError):
            await call
    await store.create(f"{root}/a")
    await store.sync(root)
    assert heard.items == []


async def test_an_event_is_heard_before_an_answer_that_shows_its_cause(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"0")
    for number in range(1, 30):
        heard = Heard()
        await store.get(f"{root}/a", heard)
        change = asyncio.ensure_future(other.put(f"{root}/a", b"%d" % number, -1))
        while (await store.get(f"{root}/a"))[0] != b"%d" % number:
            pass
        assert len(heard.items) == 1
        await change


async def test_an_error_in_a_watcher_stops_nobody_else(store: MetadataStore, root: str) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    def broken(event: WatchEvent) -> None:
        raise ValueError("broken watcher")

    heard = Heard()
    await store.create(f"{root}/a")
    await store.get(f"{root}/a", broken)
    await store.get(f"{root}/a", heard)
    await store.put(f"{root}/a", b"", -1)
    await heard.wait(1)
    assert [str(context["exception"]) for context in reported] == ["broken watcher"]


# ---- sessions --------------------------------------------------------------------------------------------------------


async def test_ephemeral_nodes_end_with_the_close_of_their_session(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/e", ephemeral=True)
    heard = Heard()
    assert await other.exists(f"{root}/e", heard) is not None
    await store.close()
    assert await heard.wait(1) == [WatchEvent(EventKind.DELETED, f"{root}/e")]


async def test_close_is_final_and_idempotent(store: MetadataStore, root: str) -> None:
    states, watched = Heard(), Heard()
    store.on_session(states)
    await store.exists(f"{root}/a", watched)
    await store.close()
    await store.close()
    assert states.items == [SessionState.CLOSED]
    assert watched.items == [WatchEvent(EventKind.SESSION, f"{root}/a")]
    assert store.state is SessionState.CLOSED
    for call in (store.get(root), store.create(f"{root}/a"), store.sync(root), store.multi([Check(root, -1)])):
        with pytest.raises(MetadataUnavailableError):
            await call
    assert await reconnected(store, 1_000) is False


async def test_observers_are_told_of_every_request_and_what_it_raised(store: MetadataStore, root: str) -> None:
    told: list[tuple[str, str, type[BaseException] | None]] = []

    def observer(operation: str, path: str, seconds: float, error: BaseException | None) -> None:
        assert seconds >= 0
        told.append((operation, path, type(error) if error is not None else None))

    forget = store.observe(observer)
    await store.create(f"{root}/a", b"")
    await store.exists(f"{root}/a")
    await store.children(root)
    with pytest.raises(NoNodeError):
        await store.get(f"{root}/b")
    with pytest.raises(BadVersionError):
        await store.multi([SetData(f"{root}/a", b"", 7)])
    forget()
    await store.delete(f"{root}/a")
    assert told == [
        ("create", f"{root}/a", None),
        ("exists", f"{root}/a", None),
        ("children", root, None),
        ("get", f"{root}/b", NoNodeError),
        ("multi", f"{root}/a", BadVersionError),
    ]


async def test_a_session_can_be_ended_by_its_token_and_one_that_has_ended_too(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    """What the restarted owner of a dead process's session does, instead of waiting for it to expire."""
    token, old = store.session_token, store.session_id
    await store.create(f"{root}/e", ephemeral=True)
    await other.create(f"{root}/mine", ephemeral=True)
    await other.end_session(token)
    assert await other.exists(f"{root}/e") is None
    await other.end_session(token)
    assert await other.exists(f"{root}/mine") is not None
    states = Heard()
    store.on_session(states)

    async def renewed() -> bool:
        return store.session_id != old and store.state is SessionState.CONNECTED

    await states.until(renewed)
    assert store.session_token != token
    with pytest.raises(CallerError):
        await other.end_session(b"none")


async def test_an_expired_session_loses_its_ephemerals_and_a_new_one_follows(
    metadata_server: MetadataServer, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    states, watched, gone = Heard(), Heard(), Heard()
    store.on_session(states)
    old = store.session_id
    await store.create(f"{root}/e", ephemeral=True)
    await store.exists(f"{root}/e", watched)
    await other.exists(f"{root}/e", gone)
    await metadata_server.expire(store)
    assert await gone.wait(1) == [WatchEvent(EventKind.DELETED, f"{root}/e")]

    async def expired() -> bool:
        return SessionState.EXPIRED in states.items

    await states.until(expired)
    assert await reconnected(store, 60_000)
    assert states.items[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED]
    assert len(watched.items) == 1
    assert watched.items[0] in (WatchEvent(EventKind.SESSION, f"{root}/e"), WatchEvent(EventKind.DELETED, f"{root}/e"))
    assert store.session_id != old
    assert await store.exists(f"{root}/e") is None
    await store.create(f"{root}/e", ephemeral=True)
    assert (await other.get(f"{root}/e"))[1].ephemeral_owner == store.session_id


async def test_a_watch_of_an_expired_session_says_that_it_is_void(
    metadata_server: MetadataServer, store: MetadataStore, root: str
) -> None:
    watched = [Heard(), Heard(), Heard()]
    await store.get(root, watched[0])
    await store.exists(f"{root}/a", watched[1])
    await store.children(root, watched[2])
    await metadata_server.expire(store)
    for heard, path in zip(watched, (root, f"{root}/a", root), strict=True):
        assert await heard.wait(1) == [WatchEvent(EventKind.SESSION, path)]
    await repeat(store, lambda: store.create(f"{root}/a"))
    await store.sync(root)
    assert [len(heard.items) for heard in watched] == [1, 1, 1]


async def test_a_lost_connection_keeps_the_session_and_voids_watches_once_it_is_back(
    metadata_server: MetadataServer, store: MetadataStore, root: str
) -> None:
    heard: list[object] = []
    done = asyncio.Event()

    def on_watch(event: WatchEvent) -> None:
        heard.append((event.kind, store.state))
        done.set()

    store.on_session(heard.append)
    session_id = store.session_id
    await store.create(f"{root}/e", ephemeral=True)
    await store.get(f"{root}/e", on_watch)
    await metadata_server.break_connection(store)
    await asyncio.wait_for(done.wait(), 60)
    assert heard == [
        SessionState.SUSPENDED,
        SessionState.CONNECTED,
        (EventKind.SESSION, SessionState.CONNECTED),
    ]
    assert store.session_id == session_id
    assert (await store.get(f"{root}/e"))[1].ephemeral_owner == session_id


async def test_a_request_while_the_connection_is_down_is_refused_unsent(
    metadata_server: MetadataServer, store: MetadataStore, root: str
) -> None:
    refused: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def on_state(state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            task = asyncio.ensure_future(store.create(f"{root}/never"))
            task.add_done_callback(lambda done: refused.set_result(done.exception()))

    store.on_session(on_state)
    await metadata_server.break_connection(store)
    assert isinstance(await asyncio.wait_for(refused, 60), MetadataUnavailableError)
    assert await reconnected(store, 60_000)
    assert await store.exists(f"{root}/never") is None


async def test_a_request_under_way_when_the_connection_is_lost_has_an_unknown_outcome(
    metadata_server: MetadataServer, store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a")
    suspended = Heard()
    store.on_session(suspended)
    metadata_server.freeze()
    try:
        requests = [
            asyncio.ensure_future(store.put(f"{root}/a", b"perhaps", 0)),
            asyncio.ensure_future(store.multi([Create(f"{root}/b")])),
            asyncio.ensure_future(store.get(f"{root}/a")),
        ]
        await asyncio.sleep(0.05)  # the requests leave; nothing answers, so there is no event to wait for
        await metadata_server.break_connection(store)
        await suspended.wait(1)
        results = await asyncio.gather(*requests, return_exceptions=True)
    finally:
        metadata_server.thaw()
    assert [type(result) for result in results] == [ConnectionLossError] * 3
    assert all(isinstance(result, OutcomeUnknownError) for result in results)
    assert await reconnected(store, 60_000)
    assert (await repeat(store, lambda: store.get(f"{root}/a")))[0] in (b"", b"perhaps")


async def test_a_listener_that_unsubscribed_hears_nothing(
    metadata_server: MetadataServer, store: MetadataStore, root: str
) -> None:
    heard, kept = Heard(), Heard()
    unsubscribe = store.on_session(heard)
    store.on_session(kept)
    unsubscribe()
    unsubscribe()
    await metadata_server.break_connection(store)
    await kept.wait(2)
    assert heard.items == []


async def test_what_was_committed_before_a_sync_is_seen_after_it(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await other.create(f"{root}/a", b"committed")
    await store.sync(root)
    assert (await store.get(f"{root}/a"))[0] == b"committed"


async def test_a_cancelled_request_harms_no_other(store: MetadataStore, root: str) -> None:
    requests = [asyncio.ensure_future(store.create(f"{root}/n{number}")) for number in range(20)]
    await asyncio.sleep(0)
    for request in requests[::2]:
        request.cancel()
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert results[1::2] == [f"{root}/n{number}" for number in range(1, 20, 2)]
    assert await store.exists(root) is not None


def test_a_watch_that_learns_of_the_end_after_the_state_is_still_told() -> None:
    heard = Heard()
    hub = SessionHub(SessionState.CONNECTED, 1)
    hub.hear(SessionState.CLOSED, 1)
    hub.void("/a", heard)
    hub.hear(SessionState.CLOSED, 1)
    assert heard.items == [WatchEvent(EventKind.SESSION, "/a")]
