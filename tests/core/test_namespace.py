"""Namespaces: federated ones, access control, readers' own servers, and what is done with whole logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import ALLOW_ALL, Action, Permissions, RequestDeniedError
from metadata.distributedlog.segments import UnsupportedMetadataVersionError
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import Fault, MemoryStore

BINDING = Binding.for_cluster("memory:2181")


async def bound(memory_cluster, path: str, binding: Binding, *, stores: int = 1, **values) -> AsyncNamespace:
    """A client of a namespace at `path`; with two stores the second one is the readers'."""
    store = MemoryStore(memory_cluster.tree)
    readers = MemoryStore(memory_cluster.tree) if stores == 2 else store
    await NamespaceStore(store, path).bind(binding)
    settings = Settings(**{"lock_timeout_s": 0, "long_poll_ms": 200, "rolling_concurrency": 0, **values})
    namespace = await AsyncNamespace.over(
        store,
        f"distributedlog://memory:2181{path}",
        settings,
        reader_store=readers,
        reader_ledger_store=readers,
        network=memory_cluster.network,
        own=(store, readers),
    )
    memory_cluster.clients.append(namespace)
    return namespace


async def write(namespace, name: str, *payloads: bytes) -> None:
    log = await namespace.open_log(name)
    async with await log.open_writer() as writer:
        written = [writer.write(writer.last_txid + 1, payload) for payload in payloads]
    await asyncio.gather(*written)
    await log.close()


async def read(namespace, name: str, count: int) -> list[bytes]:
    log = await namespace.open_log(name)
    async with await log.open_reader() as reader:
        payloads = [(await asyncio.wait_for(reader.read_next(), 60)).payload for _ in range(count)]
    await log.close()
    return payloads


# ---------------------------------------------------------------------- federated namespaces


async def test_logs_of_a_federated_namespace_are_written_and_read_wherever_they_are(memory_cluster):
    federated = replace(BINDING, federated=True)
    one = await bound(memory_cluster, "/fed", federated, federated_max_logs=1)
    other = await bound(memory_cluster, "/fed", federated, federated_max_logs=1)
    for name in ("a", "b", "c/d"):
        await one.create_log(name)
    for name in ("a", "b", "c/d"):
        await write(one, name, name.encode(), b"second")
        assert await read(other, name, 2) == [name.encode(), b"second"]
    assert await other.logs() == ["a", "b", "c"]
    assert await other.logs(recursive=True) == ["a", "b", "c/d"]
    assert (await memory_cluster.operator.children("/fed/.subnamespaces"))[0] == ["NS_0000000000", "NS_0000000001"]
    assert one.federated
    await other.delete_log("b")
    assert not await one.log_exists("b")
    assert len([ledger async for ledger in one.ledgers._ledgers.ids()]) == 2  # its ledger went too


async def test_a_writer_creates_no_log_in_a_namespace_bound_as_federated(memory_cluster):
    namespace = await bound(memory_cluster, "/fed", replace(BINDING, federated=True))
    log = await namespace.open_log("missing")
    assert log.settings.create_log_if_missing
    with pytest.raises(LogNotFoundError):
        await log.open_writer()
    await namespace.create_log("missing")
    await write(namespace, "missing", b"x")


async def test_the_setting_alone_makes_a_plain_namespace_federated(memory_cluster):
    namespace = await bound(memory_cluster, "/plain", BINDING, federated=True, federated_max_logs=1)
    for name in ("a", "b"):
        await write(namespace, name, b"created by its writer")
    assert (await memory_cluster.operator.children("/plain/.subnamespaces/NS_0000000000"))[0] == ["b"]
    assert await namespace.logs() == ["a", "b"]


async def test_a_log_that_moves_to_another_sub_namespace_is_followed(memory_cluster):
    federated = replace(BINDING, federated=True)
    one = await bound(memory_cluster, "/fed", federated, federated_max_logs=1)
    other = await bound(memory_cluster, "/fed", federated, federated_max_logs=1)
    await one.create_log("a")
    await write(one, "a", b"first life")
    assert await read(other, "a", 1) == [b"first life"]
    handle = await other.open_log("a")
    await one.delete_log("a")
    await one.create_log("filler")
    await one.create_log("a")
    await write(one, "a", b"second life")
    assert await read(other, "a", 1) == [b"second life"]
    assert (await handle.first_record()).payload == b"second life"


# ---------------------------------------------------------------------- access control

GUARDED = replace(BINDING, acl_root_path=".acl")


@pytest.mark.parametrize("action", [Action.ACQUIRE, Action.WRITE])
@pytest.mark.parametrize("own", [True, False])
async def test_a_log_that_may_not_be_written_gets_no_writer_and_is_not_made_for_one(memory_cluster, action, own):
    namespace = await bound(memory_cluster, "/acl", GUARDED)
    denied = Permissions(**{f"deny_{action.name.lower()}": True})
    await namespace.access_control.set(denied, "log" if own else None)
    log = await namespace.open_log("log")
    with pytest.raises(RequestDeniedError, match=action.name.lower()) as caught:
        await log.open_writer()
    assert caught.value.log == "log"
    assert not await namespace.log_exists("log")
    await namespace.access_control.set(ALLOW_ALL, "log")
    await write(namespace, "log", b"x")
    assert await read(namespace, "log", 1) == [b"x"]


async def test_truncating_and_deleting_are_denied_by_their_own_fields(memory_cluster):
    namespace = await bound(memory_cluster, "/acl", GUARDED)
    await write(namespace, "log", b"1", b"2")
    await namespace.access_control.set(Permissions(deny_truncate=True), "log")
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        with pytest.raises(RequestDeniedError, match="truncate"):
            await writer.truncate("1:0:1")
    for call in (log.truncate("1:0:1"), log.purge_older_than(2)):
        with pytest.raises(RequestDeniedError, match="truncate"):
            await call
    await namespace.access_control.set(Permissions(deny_delete=True), "log")
    await log.truncate("1:0:1")
    for call in (namespace.delete_log("log"), namespace.rename_log("log", "other")):
        with pytest.raises(RequestDeniedError, match="delete"):
            await call
    assert await namespace.logs() == ["log"]
    assert await namespace.access_control.delete("log")
    await namespace.delete_log("log")
    assert await namespace.logs() == []


async def test_what_is_denied_goes_along_with_a_renamed_log(memory_cluster):
    namespace = await bound(memory_cluster, "/acl", GUARDED)
    await write(namespace, "old", b"x")
    await namespace.access_control.set(Permissions(deny_write=True), "old")
    await namespace.rename_log("old", "new")
    with pytest.raises(RequestDeniedError):
        await write(namespace, "new", b"y")
    await write(namespace, "old", b"a new log of the old name")


async def test_without_a_root_in_the_binding_there_is_no_access_control(memory_cluster):
    namespace = await bound(memory_cluster, "/open", BINDING)
    with pytest.raises(CallerError, match="without access control"):
        namespace.access_control  # noqa: B018
    await write(namespace, "log", b"x")


async def test_entries_are_asked_for_by_names_that_can_be_logs(memory_cluster):
    namespace = await bound(memory_cluster, "/acl", GUARDED)
    for call in (namespace.access_control.set(ALLOW_ALL, ".x"), namespace.access_control.of("a b")):
        with pytest.raises(InvalidLogNameError):
            await call


# ---------------------------------------------------------------------- readers' own servers


async def test_readers_use_the_readers_servers_alone(memory_cluster):
    namespace = await bound(memory_cluster, "/split", BINDING, stores=2)
    writers, readers = namespace.store, namespace.services.reading.store
    assert writers is not readers
    await write(namespace, "log", b"1", b"2")
    memory_cluster.tree.inject = lambda session, operation, path: (
        Fault.REFUSE if session == writers.session_id else None
    )
    log = await namespace.open_log("log")
    assert await read(namespace, "log", 2) == [b"1", b"2"]
    assert len(await log.segments()) == 1
    assert (await log.last_record()).payload == b"2"
    memory_cluster.tree.inject = lambda session, operation, path: (
        Fault.REFUSE if session == readers.session_id else None
    )
    await write(namespace, "log", b"3", b"4")
    memory_cluster.tree.inject = None
    assert await read(namespace, "log", 4) == [b"1", b"2", b"3", b"4"]


async def test_where_they_are_the_same_there_is_one_session(memory_cluster):
    namespace = await bound(memory_cluster, "/one", BINDING)
    assert namespace.services.reading is namespace.services


# ---------------------------------------------------------------------- whole logs


async def test_a_renamed_log_is_read_and_written_on_under_its_new_name(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    await write(one, "old", b"1", b"2")
    await other.rename_log("old", "team/new")
    assert await one.logs(recursive=True) == ["team/new"]
    log = await one.open_log("team/new")
    async with await log.open_writer() as writer:
        assert writer.last_txid == 1
        writer.write(3, b"3")
    assert await read(other, "team/new", 3) == [b"1", b"2", b"3"]
    with pytest.raises(LogNotFoundError):
        await read(one, "old", 1)


async def test_a_log_that_is_being_written_is_not_renamed_and_its_writer_goes_on(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log = await one.open_log("busy")
    writer = await log.open_writer("the writer")
    writer.write(1, b"1")
    with pytest.raises(OwnershipAcquireFailedError, match="the writer"):
        await other.rename_log("busy", "idle")
    writer.write(2, b"2")
    await writer.close()
    await other.create_log("taken")
    with pytest.raises(LogExistsError):
        await other.rename_log("busy", "taken")
    await other.rename_log("busy", "idle")
    assert await read(other, "idle", 2) == [b"1", b"2"]


async def test_an_application_keeps_bytes_with_its_log(memory_cluster):
    namespace = await memory_cluster.namespace()
    await namespace.create_log("log", b'{"owner": "me"}')
    log = await namespace.open_log("log")
    found = await log.metadata()
    assert found.value == b'{"owner": "me"}'
    version = await log.set_metadata(b"two", found.version)
    assert (await log.metadata()).value == b"two"
    await log.delete_metadata(version)
    assert (await log.metadata()).value == b""
    await write(namespace, "log", b"x")
    with pytest.raises(LogNotFoundError):
        await (await namespace.open_log("other")).metadata()


async def test_logs_that_come_and_go_are_watched_until_the_namespace_is_closed(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    await one.create_log("a")
    told: list[tuple[str, bool]] = []
    heard = asyncio.Event()

    async def watch() -> None:
        async for change in one.watch_logs(existing=True):
            told.append((change.name, change.added))
            heard.set()

    watching = asyncio.ensure_future(watch())

    async def until(count: int) -> None:
        while len(told) < count:
            heard.clear()
            await asyncio.wait_for(heard.wait(), 60)

    await until(1)
    await other.create_log("b")
    await until(2)
    await other.delete_log("a")
    await until(3)
    assert told == [("a", True), ("b", True), ("a", False)]
    await one.close()
    await asyncio.wait_for(watching, 60)


async def test_new_names_are_stricter_than_those_of_logs_that_exist(memory_cluster):
    namespace = await memory_cluster.namespace()
    with pytest.raises(InvalidLogNameError, match="reserved"):
        await namespace.create_log("a/.b")
    await memory_cluster.operator.create(
        "/dl/a/.b/<default>/ledgers", b"0", make_parents=True
    )  # as upstream lets it be
    assert await namespace.log_exists("a/.b")


# ---------------------------------------------------------------------- segments of long ago


async def test_segments_below_the_minimum_version_are_read_only_where_the_check_is_skipped(memory_cluster):
    strict, lenient = await memory_cluster.namespace(), await memory_cluster.namespace(skip_minimum_version=True)
    await strict.create_log("old")
    await memory_cluster.operator.create(
        "/dl/old/<default>/ledgers/logrecs_000000000000000001", b"1073741824001;12345;1001;2002;17"
    )
    with pytest.raises(UnsupportedMetadataVersionError, match="ledgerMetadataSkipMinVersionCheck"):
        await (await strict.open_log("old")).segments()
    (segment,) = await (await lenient.open_log("old")).segments()
    assert (segment.version, segment.ledger_id, segment.last_txid, segment.record_count) == (1, 12345, 2002, 250)


# ---------------------------------------------------------------------- sessions that end


async def test_a_namespace_goes_on_with_the_session_that_follows_an_expired_one(memory_cluster):
    namespace = await bound(memory_cluster, "/fed", replace(BINDING, federated=True), federated_max_logs=1)
    for name in ("a", "b"):
        await namespace.create_log(name)
    await write(namespace, "b", b"before")
    memory_cluster.tree.expire(namespace.store.session_id)
    await namespace.create_log("c")
    await write(namespace, "b", b"after")
    assert await read(namespace, "b", 2) == [b"before", b"after"]
    assert await namespace.logs() == ["a", "b", "c"]
