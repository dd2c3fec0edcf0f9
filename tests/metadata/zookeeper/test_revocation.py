"""What a real ZooKeeper makes of revoked certificates: at its door, and of connections that are open."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.keeper_identities import client_context
from helpers.security.minting import DAY, MintedAuthority, MintedPair, now, replace_file, write_folder
from helpers.waiting import until
from helpers.worlds.metadata import Heard

from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.retry import reconnected
from metadata.store import SessionState
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.secure_server import STORES, ServerSecurity
from metadata.zookeeper.tls_socket import FixedTls

pytestmark = pytest.mark.processes


@dataclass
class Keeper:
    """A secured server, its authority, and two clients: one that will be revoked, one that stays."""

    authority: MintedAuthority
    identity: Path
    server: EmbeddedZooKeeper
    thief: MintedPair
    thief_tls: FixedTls
    other_tls: FixedTls

    async def connect(self, tls: FixedTls) -> ZooKeeperStore:
        return await ZooKeeperStore.connect(self.server.address, tls=tls, connect_timeout_ms=60_000)

    def lists(self, content: bytes) -> None:
        replace_file(self.identity / "revoked.pem", content)

    def log(self) -> str:
        return self.server.log_path.read_text()

    async def refused(self, tls: FixedTls) -> None:
        with pytest.raises(MetadataUnavailableError, match="the server refuses this process's certificate"):
            await asyncio.wait_for(self.connect(tls), 60)


class DeafClient:
    """Speaks to a server, with a session, and reads none of the answers."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, port = address.rsplit(":", 1)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        raw.connect((host, int(port)))
        self._socket = context.wrap_socket(raw, server_hostname=host)
        self._said = 0
        self._frame(struct.pack(">iqiq", 0, 0, 60_000, 0) + _of_length(bytes(16)) + b"\0")
        length = struct.unpack(">i", self._socket.recv(4))[0]
        while length > 0:
            length -= len(self._socket.recv(length))

    def get(self, path: str) -> None:
        self._request(4, _of_length(path.encode()) + b"\0")

    def create(self, path: str) -> None:
        everyone = struct.pack(">ii", 1, 31) + _of_length(b"world") + _of_length(b"anyone")
        self._request(1, _of_length(path.encode()) + _of_length(b"") + everyone + struct.pack(">i", 0))

    def is_cut_off(self) -> bool:
        try:
            self._frame(struct.pack(">ii", -2, 11))
        except OSError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def _request(self, kind: int, content: bytes) -> None:
        self._said += 1
        self._frame(struct.pack(">ii", self._said, kind) + content)

    def _frame(self, content: bytes) -> None:
        self._socket.sendall(_of_length(content))


def _of_length(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr("metadata.zookeeper.embedded.REFRESH_S", 0.05)
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "id", "zk", roles=["zookeeper"], hosts=["127.0.0.1"], revoked=None)
    thief, other = authority.issue("thief", roles=["client"]), authority.issue("other", roles=["client"])
    tls = [
        FixedTls(client_context(write_folder(tmp_path / name, pair, authority.pem)))
        for name, pair in (("thief", thief), ("other", other))
    ]
    with EmbeddedZooKeeper(tmp_path / "server", security=ServerSecurity.of_folder(folder)) as server:
        yield Keeper(authority, folder, server, thief, *tls)


async def test_a_revoked_client_is_ended_and_cannot_return_whatever_becomes_of_the_list(keeper: Keeper) -> None:
    thief, other = await keeper.connect(keeper.thief_tls), await keeper.connect(keeper.other_tls)
    heard, of_the_other = Heard(), Heard()
    thief.on_session(heard)
    other.on_session(of_the_other)
    # A list that revokes nobody changes nothing.
    keeper.lists(keeper.authority.revoke())
    await until(lambda: (keeper.server.log_path.parent / STORES / "revoked.pem").exists())
    await thief.get("/")
    keeper.lists(keeper.authority.revoke(keeper.thief))
    await heard.wait(1)
    assert heard.items == [SessionState.SUSPENDED]
    assert not await reconnected(thief, 500)
    await keeper.refused(keeper.thief_tls)
    said = keeper.log()
    assert "ended the connection of CN=thief,OU=client from /127.0.0.1:" in said
    assert "refused a client, CN=thief,OU=client: its authority, CN=Authority of tests, has revoked it" in said
    # Neither without the file nor with one that cannot be read does the door open.
    (keeper.identity / "revoked.pem").unlink()
    (keeper.server.log_path.parent / STORES / "revoked.pem").unlink()
    await until(lambda: "cannot be read: the file is not there. What it had before stays in force" in keeper.log())
    await keeper.refused(keeper.thief_tls)
    (keeper.server.log_path.parent / STORES / "revoked.pem").write_text("-----BEGIN X509 CRL-----\nhalf of")
    await until(lambda: "it holds no whole revocation list" in keeper.log())
    await keeper.refused(keeper.thief_tls)
    # All that did not touch the other one.
    await other.get("/")
    assert of_the_other.items == []
    newcomer = await keeper.connect(keeper.other_tls)
    await newcomer.get("/")
    for store in (thief, other, newcomer):
        await store.close()


async def test_a_revoked_client_that_reads_no_answers_is_not_heard_any_more(keeper: Keeper) -> None:
    other = await keeper.connect(keeper.other_tls)
    await other.create("/large", bytes(500_000))
    thief = DeafClient(keeper.server.address, keeper.thief_tls.context)
    thief.create("/before")
    for _ in range(20):  # more than lies in sockets between them
        thief.get("/large")
    await until(lambda: other.exists("/before"))
    keeper.lists(keeper.authority.revoke(keeper.thief))
    await until(lambda: "ended the connection of CN=thief,OU=client" in keeper.log())
    try:
        thief.create("/after")
    except OSError:
        pass  # it is cut off already
    await until(thief.is_cut_off)
    assert await other.exists("/after") is None
    thief.close()
    await other.close()


async def test_where_there_is_a_list_each_authority_needs_one(keeper: Keeper) -> None:
    store = await keeper.connect(keeper.other_tls)
    heard = Heard()
    store.on_session(heard)
    keeper.lists(MintedAuthority("Another one").revoke())
    await heard.wait(1)
    await keeper.refused(keeper.other_tls)
    assert "there is no revocation list that holds now" in keeper.log()
    keeper.lists(keeper.authority.revoke(keeper.thief, signed_by=MintedAuthority("Another one")))
    await keeper.refused(keeper.other_tls)
    keeper.lists(keeper.authority.revoke(keeper.thief))
    assert await reconnected(store, 60_000)
    await store.get("/")
    await store.close()


def test_bad_lists_leave_the_old_ones_and_do_not_keep_certificates_away(tmp_path: Path) -> None:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "id", "zk", revoked=authority.revoke())
    security, stores = ServerSecurity.of_folder(folder), tmp_path / STORES
    assert security.install(tmp_path)
    first, lists = (stores / "identity.pem").read_bytes(), (stores / "revoked.pem").read_bytes()
    ended = authority.revoke(begins=now() - 2 * DAY, ends=now() - DAY)
    for bad, words in ((b"no list", "holds none"), (ended, "ended at"), (None, "not there any more")):
        authority.folder(folder, "zk")
        (folder / "revoked.pem").unlink()
        if bad is not None:
            (folder / "revoked.pem").write_bytes(bad)
        with pytest.raises(CallerError, match=words):
            security.install(tmp_path)
        assert (stores / "revoked.pem").read_bytes() == lists
        assert (stores / "identity.pem").read_bytes() != first
        (folder / "revoked.pem").write_bytes(lists)
