"""A real ensemble is secured server by server while sessions go on, and opened again; who is let into a secured one.

In the order that docs/security/zookeeper.md gives: open, both kinds on every port, servers dial each other by TLS,
secured alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from helpers.keeper_identities import KeeperAuthority, client_context
from helpers.worlds.metadata import Heard

from dlspark.testing.java_process import free_port
from metadata.foundation.errors import MetadataUnavailableError
from metadata.retry import repeat
from metadata.store import SessionState
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper, EnsembleMember
from metadata.zookeeper.homing import four_letters
from metadata.zookeeper.secure_server import Among, ClientPort, ServerSecurity
from metadata.zookeeper.tls_socket import ClientTls, FixedTls

pytestmark = [pytest.mark.processes, pytest.mark.long]

OPEN = None
TAKES_BOTH = (ClientPort.BOTH, Among.TAKE_TLS)
DIALS_TLS = (ClientPort.BOTH, Among.DIAL_TLS)
SECURED = (ClientPort.TLS, Among.TLS)
State = tuple[ClientPort, Among] | None


class SecurableEnsemble:
    """Three servers, each of which can be restarted in another state."""

    def __init__(self, directory: Path) -> None:
        self.authority = KeeperAuthority()
        self.client = self.authority.issue(directory / "client", "client", "client")
        self.tls = FixedTls(client_context(self.client))
        self._identities = [self.authority.issue(directory / f"id-{n}", f"zookeeper-{n}") for n in (1, 2, 3)]
        self.peer_ports = {n: (free_port(), free_port()) for n in (1, 2, 3)}
        members = {n: f"127.0.0.1:{learner}:{election}" for n, (learner, election) in self.peer_ports.items()}
        self.servers = [
            EmbeddedZooKeeper(directory / str(n), port=free_port(), member=EnsembleMember(n, members)) for n in members
        ]

    @property
    def addresses(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self, state: State) -> None:
        for number in range(3):
            self._set(number, state)
            self.servers[number].launch()
        for server in self.servers:
            server.await_serving()

    async def change(self, state: State) -> None:
        """Restart one server after the other; each serves again before the next one is stopped."""
        for number, server in enumerate(self.servers):
            await asyncio.to_thread(server.stop)
            self._set(number, state)
            server.launch()
            await asyncio.to_thread(server.await_serving)

    def _set(self, number: int, state: State) -> None:
        folder = self._identities[number]
        self.servers[number].security = (
            None if state is None else ServerSecurity.of_folder(folder, clients=state[0], among=state[1])
        )

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[SecurableEnsemble]:
    made = SecurableEnsemble(tmp_path)
    yield made
    made.kill()


class Worker:
    """Writes numbers all the time by one session, which has an ephemeral znode."""

    def __init__(self, store: ZooKeeperStore, name: str) -> None:
        self.store = store
        self.written = 0
        self._path = f"/count-{name}"
        self.ephemeral = f"/alive-{name}"
        self._session = store.session_id
        self._states = Heard()
        store.on_session(self._states)
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, servers: str, name: str, tls: ClientTls | None) -> AsyncIterator[Worker]:
        store = await ZooKeeperStore.connect(servers, session_timeout_ms=20_000, tls=tls)
        worker = cls(store, name)
        await store.create(worker._path)
        await store.create(worker.ephemeral, ephemeral=True)
        worker._task = asyncio.ensure_future(worker._write())
        try:
            yield worker
        finally:
            worker._stopped = True
            await worker._task
            await store.close()

    async def _write(self) -> None:
        while not self._stopped:
            number = self.written + 1
            await repeat(self.store, lambda number=number: self.store.put(self._path, b"%d" % number, -1), 60_000)
            self.written = number

    async def check(self, *, moved: bool) -> None:
        """It is the same session as at first, lost its connection (`moved`), and lost nothing that was written."""
        written = self.written
        data, _ = await repeat(self.store, lambda: self.store.get(self._path))
        assert int(data or b"0") >= written > 0
        assert self.store.session_id == self._session
        assert SessionState.EXPIRED not in self._states.items
        assert (await repeat(self.store, lambda: self.store.exists(self.ephemeral))) is not None
        assert (SessionState.SUSPENDED in self._states.items) is moved


async def test_an_ensemble_is_secured_and_opened_again_while_sessions_go_on(
    ensemble: SecurableEnsemble, rounds: int | None
) -> None:
    ensemble.start(OPEN)
    for turn in range(rounds or 1):
        async with Worker.at(ensemble.addresses, f"plain-{turn}", None) as plain:
            await ensemble.change(TAKES_BOTH)
            await ensemble.change(DIALS_TLS)
            await plain.check(moved=True)
            async with Worker.at(ensemble.addresses, f"tls-{turn}", ensemble.tls) as by_tls:
                await plain.check(moved=True)
                while not by_tls.written:
                    await by_tls.store.sync("/")
                await by_tls.check(moved=False)
        async with Worker.at(ensemble.addresses, f"secured-{turn}", ensemble.tls) as by_tls:
            await ensemble.change(SECURED)
            await by_tls.check(moved=True)
            with pytest.raises(MetadataUnavailableError):
                await ZooKeeperStore.connect(ensemble.addresses, connect_timeout_ms=1_000)
            await ensemble.change(DIALS_TLS)
            await ensemble.change(TAKES_BOTH)
            await by_tls.check(moved=True)
        async with Worker.at(ensemble.addresses, f"opened-{turn}", None) as plain:
            await ensemble.change(OPEN)
            await plain.check(moved=True)


def _says(port: int, context: ssl.SSLContext | None, *, within_s: float) -> str:
    """Say something at a port for servers; returns what becomes of the connection within this time."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        try:
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname="127.0.0.1"))
            connection.settimeout(within_s)
            connection.sendall(b"\xff" * 8 if context is None else b"\0")
            return "ended" if connection.recv(1) == b"" else "answered"
        except TimeoutError:
            return "waits for more"
        except (ssl.SSLError, ConnectionError):
            return "refused"


async def test_servers_of_a_secured_ensemble_speak_with_nobody_else(
    ensemble: SecurableEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(ensemble.start, SECURED)
    monkeypatch.setattr("metadata.zookeeper.homing.ASK_S", 30.0)  # a JVM's handshake may take longer than a second
    foreign = KeeperAuthority("another").issue(tmp_path / "foreign", "zookeeper-3", trusts=ensemble.authority.pem)
    modes = [four_letters("127.0.0.1", one.port, "srvr", tls=ensemble.tls) for one in ensemble.servers]
    leader = next(number for number, said in enumerate(modes, 1) if "Mode: leader" in said)
    for port in ensemble.peer_ports[leader]:
        assert _says(port, client_context(ensemble.client), within_s=2) == "waits for more", (
            "one of the same authority is let in"
        )
        for stranger in (
            None,
            client_context(foreign),
            client_context(ensemble.client, with_certificate=False),
        ):
            assert _says(port, stranger, within_s=60) in ("refused", "ended"), (port, stranger)
    async with Worker.at(ensemble.addresses, "undisturbed", ensemble.tls) as worker:
        while worker.written < 10:
            await worker.store.sync("/")
        await worker.check(moved=False)
