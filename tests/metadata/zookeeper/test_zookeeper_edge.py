"""Servers that accept and never answer, take no connection, or fall silent: what they may cost a session."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from helpers.worlds.metadata import Heard

from metadata.foundation.errors import DistributedLogError
from metadata.retry import reconnected
from metadata.store import SessionState
from metadata.zookeeper.client import MAX_IN_FLIGHT, ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = pytest.mark.processes

SESSION_MS = 6_000


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


async def test_a_server_that_accepts_twice_and_does_not_answer_yet_costs_no_session(middle: Middle) -> None:
    store = await ZooKeeperStore.connect(f"127.0.0.1:{middle.port}", session_timeout_ms=SESSION_MS)
    states, first = Heard(), store.session_id
    store.on_session(states)
    await store.create("/e-of-the-unanswered", ephemeral=True)
    middle.to_ignore = 2
    middle.break_connections()
    await states.wait(1)
    assert await reconnected(store, 30_000)
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


@pytest.mark.parametrize("accepts", [True, False], ids=["accepts and is silent", "takes no connection"])
async def test_servers_that_do_not_answer_leave_time_for_one_that_does(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda servers: None)  # kazoo tries the last one last
    with _silent_address(accepts) as silent:
        store = await ZooKeeperStore.connect(f"{silent},{silent},{zookeeper.address}", connect_timeout_ms=3_000)
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
