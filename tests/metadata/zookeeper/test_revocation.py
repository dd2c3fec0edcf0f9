"""What a real ZooKeeper makes of revoked certificates: at its door, and of connections that are open."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

    def believe(self, *authorities: MintedAuthority) -> None:
        """Let it trust these beside its own."""
        replace_file(self.identity / "authorities.pem", b"".join(one.pem for one in (self.authority, *authorities)))

    def client(self, pair: MintedPair, *shown: MintedAuthority) -> FixedTls:
        """Return the TLS of a client that shows these authorities' certificates beside its own."""
        folder = write_folder(self.identity.parent / "client", pair, self.authority.pem)
        replace_file(folder / "certificate.pem", pair.certificate_pem + b"".join(one.pem for one in shown))
        return FixedTls(client_context(folder))

    async def has_taken(self, what: str, times: int = 1) -> None:
        """Wait until it has taken a changed file over so many times."""
        await until(lambda: len(re.findall(f"{what}, .*, has changed and is in use", self.log())) >= times)

    async def has_lists(self) -> None:
        """Wait until the file of the lists lies where the server reads it."""
        await until((self.server.log_path.parent / STORES / "revoked.pem").exists)

    async def is_let_in(self, tls: FixedTls) -> None:
        """Wait until a client has a session: the log may say a moment too early that a file is in use."""
        await until(lambda: self._has_session(tls))

    async def is_kept_out(self, tls: FixedTls) -> None:
        """Wait until a client has none."""
        await until(lambda: self._has_none(tls))

    async def _has_none(self, tls: FixedTls) -> bool:
        return not await self._has_session(tls)

    async def _has_session(self, tls: FixedTls) -> bool:
        try:
            store = await asyncio.wait_for(self.connect(tls), 60)
        except MetadataUnavailableError as error:
            if "the server refuses this process's certificate" not in str(error):
                raise
            return False
        await store.get("/")
        await store.close()
        return True

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
    await keeper.has_lists()
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


async def test_a_list_that_has_ended_keeps_out_its_own_authority_alone(keeper: Keeper) -> None:
    late = MintedAuthority("Late")
    keeper.believe(late)
    await keeper.has_taken("the trust store")
    of_late = keeper.client(late.issue("of-late"))
    thief = await keeper.connect(keeper.thief_tls)
    heard = Heard()
    thief.on_session(heard)
    await keeper.is_let_in(of_late)
    keeper.lists(late.revoke(begins=now() - 2 * DAY, ends=now() - DAY) + keeper.authority.revoke(keeper.thief))
    await heard.wait(1)
    assert "the revocation list of CN=Late ended at" in keeper.log()
    await keeper.is_kept_out(of_late)
    await keeper.is_kept_out(keeper.thief_tls)
    await keeper.is_let_in(keeper.other_tls)
    await thief.close()
    # At a start as well.
    keeper.server.stop()
    keeper.server.start()
    await keeper.is_kept_out(of_late)
    await keeper.is_kept_out(keeper.thief_tls)
    await keeper.is_let_in(keeper.other_tls)


async def test_lists_of_authorities_of_one_name_count_each_for_its_own(keeper: Keeper) -> None:
    first, second = (MintedAuthority("Shared name", says_key=True) for _ in range(2))
    revoked = first.issue("revoked")
    of_first, of_second = first.issue("of-first"), second.issue("a", serial=revoked.certificate.serial_number)
    keeper.lists(first.revoke(revoked, begins=now() - 2 * DAY) + second.revoke() + keeper.authority.revoke())
    await keeper.has_lists()
    keeper.believe(first, second)
    await keeper.has_taken("the trust store")
    await keeper.is_let_in(keeper.client(of_first))
    await keeper.is_let_in(keeper.client(of_second))
    await keeper.is_kept_out(keeper.client(revoked))
    assert "refused a client, CN=revoked: its authority, CN=Shared name, has revoked it" in keeper.log()
    # Without the list of one of them, the other's does not stand for it.
    keeper.lists(second.revoke() + keeper.authority.revoke())
    await keeper.has_taken("the file of revocation lists")
    await keeper.is_kept_out(keeper.client(of_first))
    await keeper.is_let_in(keeper.client(of_second))


async def test_a_renewed_authority_counts_beside_its_ended_certificate(keeper: Keeper) -> None:
    root = MintedAuthority("Root", says_key=True)
    ended = root.renewed(ends=now() - DAY)
    client = keeper.client(root.issue("client"))
    keeper.lists(root.revoke() + keeper.authority.revoke())
    await keeper.has_lists()
    for taken, believed in enumerate(([ended, root], [root, ended]), 1):
        keeper.believe(*believed)
        await keeper.has_taken("the trust store", taken)
        await keeper.is_let_in(client)
    keeper.believe(ended)
    await keeper.has_taken("the trust store", 3)
    await keeper.is_kept_out(client)
    assert "its authority, CN=Root, has ended" in keeper.log()


async def test_a_good_way_counts_beside_one_that_is_revoked(keeper: Keeper) -> None:
    root = MintedAuthority("Root", says_key=True)
    between = MintedAuthority("Between", root, says_key=True)
    again = root.cross(between)
    client = between.issue("client")
    revoked = root.revoke(MintedPair(between.certificate, between.key))
    keeper.lists(revoked + between.revoke() + keeper.authority.revoke())
    await keeper.has_lists()
    keeper.believe(root)
    await keeper.has_taken("the trust store")
    await keeper.is_let_in(keeper.client(client, between, again))
    await keeper.is_let_in(keeper.client(client, again, between))
    await keeper.is_kept_out(keeper.client(client, between))
    assert "its authority, CN=Root, has revoked the certificate of CN=Between" in keeper.log()


class SecurityThatNamesLists(ServerSecurity):
    """As an administrator's zoo.cfg has it."""

    def config(self, host: str, port: int) -> str:
        return super().config(host, port) + "ssl.revocationLists.location=./named.pem\n"


async def test_where_the_file_of_lists_is_named_and_missing_nobody_is_let_in(keeper: Keeper) -> None:
    assert "there is no file of revocation lists" in keeper.log()
    await keeper.is_let_in(keeper.other_tls)
    keeper.server.stop()
    keeper.server.security = SecurityThatNamesLists.of_folder(keeper.identity)
    keeper.server.launch()
    await until(lambda: "named.pem, cannot be read: the file is not there. Nobody is let in" in keeper.log())
    # There may be no port yet: the log says who was refused.
    with pytest.raises(MetadataUnavailableError):
        await ZooKeeperStore.connect(keeper.server.address, tls=keeper.other_tls, connect_timeout_ms=60_000)
    await until(lambda: "nobody is let in, because files were never read: the file of revocation lists" in keeper.log())
    replace_file(keeper.server.log_path.parent / "named.pem", keeper.authority.revoke())
    await keeper.is_let_in(keeper.other_tls)


def test_lists_of_an_earlier_start_are_removed_where_none_are_wanted(tmp_path: Path) -> None:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "id", "zk", revoked=authority.revoke())
    security, place = ServerSecurity.of_folder(folder), tmp_path / STORES / "revoked.pem"
    assert security.install(tmp_path)
    assert place.exists()
    without = replace(security, revoked=None)
    assert without.install(tmp_path)
    assert not place.exists()
    assert not without.install(tmp_path)


def test_bad_lists_leave_the_old_ones_and_do_not_keep_certificates_away(tmp_path: Path) -> None:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "id", "zk", revoked=authority.revoke())
    security, stores = ServerSecurity.of_folder(folder), tmp_path / STORES
    assert security.install(tmp_path)
    first, lists = (stores / "identity.pem").read_bytes(), (stores / "revoked.pem").read_bytes()
    for bad, words in ((b"no list", "holds none"), (lists[:-40], "cannot be read"), (None, "not there any more")):
        authority.folder(folder, "zk")
        (folder / "revoked.pem").unlink()
        if bad is not None:
            (folder / "revoked.pem").write_bytes(bad)
        with pytest.raises(CallerError, match=words):
            security.install(tmp_path)
        assert (stores / "revoked.pem").read_bytes() == lists
        assert (stores / "identity.pem").read_bytes() != first
        (folder / "revoked.pem").write_bytes(lists)


def test_a_list_that_has_ended_is_taken_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority, late = MintedAuthority(), MintedAuthority("Late")
    ended = late.revoke(begins=now() - 2 * DAY, ends=now() - DAY)
    folder = authority.folder(tmp_path / "id", "zk", revoked=ended + authority.revoke())
    assert ServerSecurity.of_folder(folder).install(tmp_path)
    assert (tmp_path / STORES / "revoked.pem").read_bytes() == (folder / "revoked.pem").read_bytes()
    (said,) = caplog.messages
    assert "the revocation list of CN=Late ended at" in said
    # A newer list of the same authority takes its place.
    replace_file(folder / "revoked.pem", ended + late.revoke() + authority.revoke())
    assert ServerSecurity.of_folder(folder).install(tmp_path)
    assert caplog.messages == [said]
