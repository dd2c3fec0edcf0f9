"""Both metadata stores behind one face, so that one suite holds them to the same semantics."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from kazoo.client import KazooClient

from helpers.security.secured_runs import is_secured, role_security
from helpers.waiting import wait_until
from metadata.store import MetadataStore
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from metadata.zookeeper.securing import open_session
from metadata.zookeeper.tls_socket import SessionTlsSocket

_NUMBERS = itertools.count(1)
LONG_SESSION_MS = 40_000
"""The longest that a ZooKeeper with default ticks grants: no session ends because the machine is busy."""


class Heard:
    """A callback that remembers what it was called with, and lets a test wait for it."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self._more = asyncio.Event()

    def __call__(self, *args: object) -> None:
        self.items.append(args[0] if args else None)
        self._more.set()

    async def wait(self, count: int) -> list[object]:
        while len(self.items) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)
        return self.items

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Try `condition` now and after each further call; what is heard while it is tried counts."""
        while True:
            seen = len(self.items)
            if await condition():
                return
            await self.wait(seen + 1)


class MetadataServer(Protocol):
    """A metadata server that stores can be opened on and that can be made to fail."""

    root: str

    async def open(self, acl_id: str | None = None, restrict: bool = True) -> MetadataStore: ...

    async def expire(self, store: MetadataStore) -> None: ...

    async def break_connection(self, store: MetadataStore) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class MemoryServer:
    def __init__(self) -> None:
        self.root = f"/t{next(_NUMBERS)}"
        self.tree = MemoryTree()
        self.stores: list[MetadataStore] = []

    async def open(self, acl_id: str | None = None, restrict: bool = True) -> MetadataStore:
        self.stores.append(MemoryStore(self.tree, acl_id=acl_id, restrict=restrict))
        return self.stores[-1]

    async def expire(self, store: MetadataStore) -> None:
        self.tree.expire(store.session_id)

    async def break_connection(self, store: MetadataStore) -> None:
        self.tree.disconnect(store.session_id)
        asyncio.get_running_loop().call_later(0.02, self.tree.reconnect, store.session_id)

    def freeze(self) -> None:
        self.tree.stall()

    def thaw(self) -> None:
        self.tree.resume()


def _state_of(thread: Path) -> str:
    """Return the letter of a thread's state, `T` for one that is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


class ZooKeeperServer:
    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self.root = f"/t{next(_NUMBERS)}"
        self.server = server
        self.stores: list[MetadataStore] = []

    async def open(self, acl_id: str | None = None, restrict: bool = True) -> MetadataStore:
        self.stores.append(
            await open_session(
                self.server.address,
                role_security("client"),
                session_timeout_ms=LONG_SESSION_MS,
                acl_id=acl_id or "",
                restrict=restrict,
            )
        )
        return self.stores[-1]

    async def expire(self, store: MetadataStore) -> None:
        """End a session by a second client that takes it over and closes it."""
        assert isinstance(store, ZooKeeperStore)
        if is_secured():
            await store.end_session(store.session_token)
            return
        identity = store._client.client_id

        def take_over() -> None:
            thief = KazooClient(self.server.address, client_id=identity)
            thief.start()
            thief.stop()
            thief.close()

        await asyncio.to_thread(take_over)

    async def break_connection(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        connection = store._handler._socket
        if isinstance(connection, SessionTlsSocket):
            connection.break_off()
            return
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGSTOP)
        # A signal takes its time on a busy machine: until then the server's threads go on to answer.
        threads = Path(f"/proc/{self.server.pid}/task")
        wait_until(lambda: all(_state_of(thread) == "T" for thread in threads.iterdir()))

    def thaw(self) -> None:
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGCONT)
