"""Servers that accept and never answer, take no connection, or fall silent: what they may cost a session."""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from helpers.worlds.metadata import LONG_SESSION_MS, Heard
from kazoo.client import KazooClient
from kazoo.handlers.utils import selector_select

from metadata.foundation.errors import DistributedLogError, MetadataUnavailableError
from metadata.foundation.socks import SocksProxy
from metadata.retry import reconnected
from metadata.store import SessionState
from metadata.zookeeper import edge
from metadata.zookeeper.client import MAX_IN_FLIGHT, ZooKeeperStore
from metadata.zookeeper.edge import FIRST_VARIABLE, BoundedConnection, LoopHandler, ready_of
from metadata.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = pytest.mark.processes


class Middle:
    """A TCP server before a ZooKeeper that passes bytes on, unless it is told not to."""

    def __init__(self, zookeeper: EmbeddedZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.to_ignore = 0
        self.ignored = 0
        self._answers = asyncio.Event()
        self._answers.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.break_connections()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def break_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def hold_back_answers(self) -> None:
        self._answers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.to_ignore > 0:
            self.to_ignore -= 1
            self.ignored += 1
            return
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._zookeeper.port)
        self._writers.append(ours)
        for source, sink, gate in ((reader, ours, None), (theirs, writer, self._answers)):
            task = asyncio.ensure_future(self._pass_on(source, sink, gate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if gate is not None:
                    await gate.wait()
                sink.write(data)
        sink.close()


@pytest.fixture
async def middle(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[Middle]:
    middle = Middle(zookeeper)
    await middle.start()
    yield middle
    await middle.stop()


@pytest.fixture
def short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attempts last 1 s, 2 s, 4 s, also where the session, which a busy machine must not cost, is long."""
    monkeypatch.setattr(edge, "_DOUBLINGS", 5)


@pytest.mark.usefixtures("short_attempts")
async def test_a_server_that_accepts_twice_and_does_not_answer_yet_costs_no_session(middle: Middle) -> None:
    store = await ZooKeeperStore.connect(f"127.0.0.1:{middle.port}", session_timeout_ms=LONG_SESSION_MS)
    states, first = Heard(), store.session_id
    store.on_session(states)
    await store.create("/e-of-the-unanswered", ephemeral=True)
    middle.to_ignore = 2
    middle.break_connections()
    await states.wait(1)
    assert await reconnected(store, 60_000)
    assert middle.ignored == 2
    assert states.items == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert store.session_id == first
    assert await store.exists("/e-of-the-unanswered") is not None
    await store.close()


@contextlib.contextmanager
def _silent_address(accepts: bool) -> Iterator[str]:
    """Where connections are accepted and never read, or not even accepted: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(100 if accepts else 0)
        for _ in range(0 if accepts else 4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.usefixtures("short_attempts")
@pytest.mark.parametrize("accepts", [True, False], ids=["accepts and is silent", "takes no connection"])
async def test_servers_that_do_not_answer_leave_time_for_one_that_does(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda servers: None)  # kazoo tries the last one last
    with _silent_address(accepts) as silent:
        store = await ZooKeeperStore.connect(
            f"{silent},{silent},{zookeeper.address}",
            session_timeout_ms=LONG_SESSION_MS,
            connect_timeout_ms=LONG_SESSION_MS // 2,
        )
        assert store.state is SessionState.CONNECTED
        await store.close()


async def test_silence_is_noticed_while_requests_go_out(middle: Middle) -> None:
    store = await ZooKeeperStore.connect(f"127.0.0.1:{middle.port}", session_timeout_ms=3_000)
    states = Heard()
    store.on_session(states)
    middle.hold_back_answers()
    requests: list[asyncio.Future[object]] = []
    while not states.items and len(requests) < MAX_IN_FLIGHT:
        requests.append(asyncio.ensure_future(store.exists("/")))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(states.wait(1), 0.1)
    assert states.items == [SessionState.SUSPENDED]
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(outcome, DistributedLogError)
    await store.close()


async def servers_in_order(
    servers: str, monkeypatch: pytest.MonkeyPatch, proxy: SocksProxy | None = None, first: str = ""
) -> tuple[BoundedConnection, list[tuple[str, str, int]]]:
    """A connection that was not begun, and the addresses that it would try."""
    monkeypatch.setattr(random, "shuffle", lambda found: None)
    monkeypatch.setenv(FIRST_VARIABLE, first)
    handler = LoopHandler(asyncio.get_running_loop(), proxy)
    connection = BoundedConnection(KazooClient(servers, handler=handler), handler, 10)
    return connection, connection._expand_client_hosts()


async def test_servers_that_are_dialled_directly_are_tried_before_those_behind_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = SocksProxy("127.0.0.1", 1080, frozenset({"127.0.0.2"}))
    _, order = await servers_in_order("127.0.0.1:1,127.0.0.2:2,127.0.0.3:3", monkeypatch, proxy)
    assert [address for _, address, _ in order] == ["127.0.0.2", "127.0.0.1", "127.0.0.3"]


async def test_servers_that_the_environment_names_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = "127.0.0.1:1,127.0.0.1:2,127.0.0.3:3"
    for first, ports in (("", [1, 2, 3]), ("127.0.0.1:2", [2, 1, 3]), ("127.0.0.3, other", [3, 1, 2])):
        _, order = await servers_in_order(servers, monkeypatch, first=first)
        assert [port for _, _, port in order] == ports


async def test_names_of_servers_behind_the_proxy_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = SocksProxy("127.0.0.1", 1080, frozenset({"localhost"}))
    connection, order = await servers_in_order("known-there.example:1,localhost:2", monkeypatch, proxy)
    assert order[-1] == ("known-there.example", "known-there.example", 1)
    direct = order[0]
    assert direct[0] == "localhost"
    with socket.create_server((direct[1], 0)) as server:  # by its address, which is not in the proxy's list
        connection._edge.create_connection((direct[1], server.getsockname()[1]), 10.0).close()


async def test_who_reaches_no_server_by_way_of_a_gateway_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSPARK_SOCKS", "127.0.0.1:1")
    monkeypatch.setenv("DLSPARK_REGION", "r2")
    with pytest.raises(MetadataUnavailableError, match="no ZooKeeper server answered within 50 ms") as caught:
        await ZooKeeperStore.connect("zk.r1:2181", connect_timeout_ms=50)
    assert "gateway 127.0.0.1:1" in str(caught.value)
    assert "dlspark sandbox region heal r2" in str(caught.value)


async def test_a_near_server_that_hangs_is_tried_last_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with _silent_address(accepts=True) as silent:
        other = "127.0.0.1:1"
        connection, order = await servers_in_order(f"{other},{silent}", monkeypatch, first=silent)
        near = order[0]
        assert f"{near[1]}:{near[2]}" == silent
        monkeypatch.setattr(connection, "_attempt_limit_s", lambda: 0.05)
        with pytest.raises(connection._edge.timeout_exception):
            await asyncio.to_thread(connection._connect, *near)
        connection._socket.close()
        assert connection._expand_client_hosts()[-1] == near


class Asked:
    """A question to a server's port; another one begins while it is ended."""

    def __init__(self, connection: BoundedConnection, *, ended: bool) -> None:
        self._connection = connection
        self.ended = ended
        self.given_up = False

    def end(self) -> None:
        self.given_up = True
        self._connection._kinds["127.0.0.9", 9] = Asked(self._connection, ended=True)  # type: ignore[assignment]


async def test_of_servers_that_are_not_listed_any_more_nothing_is_kept_and_an_end_meets_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, _ = await servers_in_order("127.0.0.1:1", monkeypatch)
    kinds: dict[tuple[str, int], Asked] = connection._kinds  # type: ignore[assignment]
    for where, ended in ((("127.0.0.1", 1), True), (("127.0.0.2", 2), True), (("127.0.0.3", 3), False)):
        kinds[where] = Asked(connection, ended=ended)
    connection._expand_client_hosts()
    assert set(kinds) == {("127.0.0.1", 1), ("127.0.0.3", 3)}, "a question that goes on has to be ended yet"
    before = list(kinds.values())
    connection.stop(0)
    assert all(one.given_up for one in before)


@pytest.mark.parametrize("by_poll", [True, False])
def test_sockets_are_waited_for_as_kazoo_does(by_poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_poll:
        monkeypatch.delattr(select, "poll")
    near, far = socket.socketpair()
    pipe, other = socket.socketpair()
    with near, far, pipe, other:
        near.setblocking(False)

        def same(
            readers: list[socket.socket], writers: list[socket.socket], timeout: float | None
        ) -> list[socket.socket]:
            found = ready_of(readers, writers, timeout)
            assert found == selector_select(readers, writers, [], timeout)
            return found[0] + found[1]

        assert same([near, pipe], [], 0) == []
        assert same([near], [], 0.0005) == []
        assert same([], [near], None) == [near]
        far.send(b"1")
        assert same([near, pipe], [], None) == [near]
        other.send(b"2")
        assert same([near, pipe], [], 1.0) == [near, pipe]
        with contextlib.suppress(BlockingIOError):
            while True:
                near.send(bytes(65536))
        assert same([], [near], 0) == [], "what the other side does not take cannot be written"
        far.close()
        assert same([near], [], None) == [near], "its end is read"
        assert same([], [near], None) == [near], "and writing says so"
