"""What only a real ZooKeeper can show: threads, loops that end, servers that are silent or away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.waiting import wait_until
from helpers.worlds.metadata import Heard, ZooKeeperServer
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists, GetChildren2, GetData

from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.retry import reconnected
from metadata.store import EventKind, SessionState, WatchEvent
from metadata.zookeeper.client import MAX_IN_FLIGHT, ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = pytest.mark.processes


def begun_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that run now and did not then; others that ran then may end meanwhile."""
    return set(threading.enumerate()) - before


@pytest.mark.parametrize("servers", ["", "host", "host:", "host:port", "host:0", "a:1,,b:2", "a:1/chroot", "u@a:1"])
async def test_a_bad_server_list_is_a_callers_mistake(servers: str) -> None:
    with pytest.raises(CallerError, match="host:port"):
        await ZooKeeperStore.connect(servers)


async def test_connecting_to_nobody_ends_in_time_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(MetadataUnavailableError, match="within 300 ms") as caught:
        await asyncio.wait_for(ZooKeeperStore.connect("127.0.0.1:1", connect_timeout_ms=300), 60)
    assert caught.value.node == "127.0.0.1:1"
    assert not begun_since(before)


async def test_one_of_several_servers_is_enough(zookeeper: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(f"127.0.0.1:1;{zookeeper.address}")
    assert store.state is SessionState.CONNECTED
    assert await store.exists("/zookeeper") is not None
    await store.close()


async def test_a_session_needs_one_thread_and_close_ends_it(zookeeper: EmbeddedZooKeeper) -> None:
    before = set(threading.enumerate())
    store = await ZooKeeperStore.connect(zookeeper.address)
    assert len(begun_since(before)) == 1
    await asyncio.gather(*(store.exists("/") for _ in range(3 * MAX_IN_FLIGHT)))
    await store.close()
    assert not begun_since(before)


async def test_a_cancelled_connect_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    connecting = asyncio.ensure_future(ZooKeeperStore.connect("127.0.0.1:1"))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert not begun_since(before)


async def test_requests_under_way_are_answered_before_a_close(zookeeper: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(zookeeper.address)
    requests = [asyncio.ensure_future(store.exists("/zookeeper")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert all(not isinstance(result, BaseException) for result in results)


@pytest.mark.parametrize("asked", ["get", "exists", "children"])
async def test_a_watch_whose_answer_is_read_while_the_store_closes_hears_of_the_end(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """kazoo passes the answer on, and leaves the watch out of its lists once it was told to stop."""
    loop = asyncio.get_running_loop()
    store = await ZooKeeperStore.connect(zookeeper.address)
    stopping: list[KazooClient] = []
    closing: list[asyncio.Task[None]] = []

    def noted_stop(client: KazooClient, stop: Callable[[KazooClient], None] = KazooClient.stop) -> None:
        stopping.append(client)
        stop(client)

    request = {"get": GetData, "exists": Exists, "children": GetChildren2}[asked]
    decode = request.deserialize

    def read_late(*given: object) -> object:
        loop.call_soon_threadsafe(lambda: closing.append(loop.create_task(store.close())))
        wait_until(lambda: bool(stopping) and stopping[0]._stopped.is_set())
        return decode(*given)

    monkeypatch.setattr(KazooClient, "stop", noted_stop)
    monkeypatch.setattr(request, "deserialize", staticmethod(read_late))
    heard = Heard()
    await getattr(store, asked)("/", heard)
    await closing[0]
    assert heard.items == [WatchEvent(EventKind.SESSION, "/")]


async def test_a_silent_server_does_not_hold_up_close(zookeeper: EmbeddedZooKeeper) -> None:
    metadata_server, before = ZooKeeperServer(zookeeper), set(threading.enumerate())
    store = await metadata_server.open()
    states = Heard()
    store.on_session(states)
    metadata_server.freeze()
    try:
        await store.close()
        assert states.items == [SessionState.CLOSED], "closed before its silence could be noticed"
        assert not begun_since(before)
    finally:
        metadata_server.thaw()


async def test_the_loop_goes_on_while_the_server_is_silent(zookeeper: EmbeddedZooKeeper) -> None:
    metadata_server = ZooKeeperServer(zookeeper)
    store = await metadata_server.open()
    metadata_server.freeze()
    try:
        requests = [asyncio.ensure_future(store.exists("/zookeeper")) for _ in range(2_000)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert store.state is SessionState.CONNECTED, "a loop that waits for the server waits until the session is lost"
    finally:
        metadata_server.thaw()
    await asyncio.gather(*requests)
    await store.close()


def test_a_loop_that_was_closed_first_raises_in_no_thread(tmp_path: Path) -> None:
    raised: list[object] = []
    hook, threading.excepthook = threading.excepthook, raised.append
    server = EmbeddedZooKeeper(tmp_path)
    try:
        server.start()
        kept: list[ZooKeeperStore] = []

        async def abandon() -> None:
            store = await ZooKeeperStore.connect(server.address)
            await store.exists("/", lambda event: None)
            kept.append(store)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(abandon())
        loop.close()
        server.kill()
        client = kept[0]._client
        wait_until(lambda: client.client_state == "CONNECTING")
        client.stop()
        client.close()
    finally:
        server.kill()
        threading.excepthook = hook
    assert raised == []


async def test_uvloop_serves_as_well(zookeeper: EmbeddedZooKeeper) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> int:
        store = await ZooKeeperStore.connect(zookeeper.address)
        found = await asyncio.gather(*(store.exists("/zookeeper") for _ in range(300)))
        await store.close()
        return sum(stat is not None for stat in found)

    def run() -> int:
        loop = uvloop.new_event_loop()
        try:
            return int(loop.run_until_complete(use()))
        finally:
            loop.close()

    assert await asyncio.to_thread(run) == 300


async def test_an_ephemeral_is_there_after_an_outage_if_and_only_if_the_session_is_the_same(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    store = await ZooKeeperStore.connect(server.address, session_timeout_ms=2_000)
    states = Heard()
    store.on_session(states)
    first = store.session_id
    await store.create("/e", ephemeral=True)
    server.kill()
    await states.wait(1)
    assert states.items == [SessionState.SUSPENDED]
    with pytest.raises(MetadataUnavailableError):
        await store.exists("/")
    server.start()
    assert await reconnected(store, 60_000)
    assert states.items[-1] is SessionState.CONNECTED
    owner = await store.exists("/e")
    assert (owner is not None) == (store.session_id == first)
    await store.close()
    server.stop()


async def test_null_data_of_other_clients_reads_as_empty(zookeeper: EmbeddedZooKeeper) -> None:
    store = await ZooKeeperStore.connect(zookeeper.address)
    from kazoo.protocol.serialization import Create as RawCreate
    from kazoo.security import OPEN_ACL_UNSAFE

    result = store._client.handler.async_result()
    store._client._call(RawCreate("/null-data", None, OPEN_ACL_UNSAFE, 0), result)
    await store.sync("/")
    data, stat = await store.get("/null-data")
    assert (data, stat.data_length) == (b"", 0)
    await store.close()


async def test_requests_of_a_session_with_a_limit_wait_their_turn(zookeeper: EmbeddedZooKeeper) -> None:
    limited = await ZooKeeperStore.connect(zookeeper.address, requests_per_second=0.0001)
    unlimited = await ZooKeeperStore.connect(zookeeper.address, requests_per_second=-1.0)
    try:
        await limited.exists("/")  # the one request that is free
        waiting = asyncio.ensure_future(limited.exists("/"))
        for _ in range(100):
            await unlimited.exists("/")
        assert not waiting.done()
        waiting.cancel()
    finally:
        await limited.close()
        await unlimited.close()
