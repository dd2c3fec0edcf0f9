"""Sessions by TLS with a real ZooKeeper: what they do, and who is refused, in which words."""

from __future__ import annotations

import asyncio
import datetime
import logging
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.keeper_identities import HOUR, FolderTls, KeeperAuthority, client_context
from helpers.security.minting import MintedAuthority, replace_file, write_folder
from helpers.waiting import PATIENCE_S
from helpers.worlds.metadata import Heard

from dlspark.testing.java_process import free_port
from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.retry import reconnected
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.store import Create, SessionState
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.homing import HomeProbe, four_letters
from metadata.zookeeper.port_kinds import KindProbe, PortKind
from metadata.zookeeper.secure_server import STORES, ClientPort, ServerSecurity
from metadata.zookeeper.tls_socket import FixedTls

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def authority() -> KeeperAuthority:
    return KeeperAuthority()


@pytest.fixture(scope="module")
def secured(authority: KeeperAuthority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One server for the module, whose only port is the secure one."""
    directory = tmp_path_factory.mktemp("secured")
    security = ServerSecurity.of_folder(authority.issue(directory / "identity", hosts=("127.0.0.1",)))
    with EmbeddedZooKeeper(directory / "server", security=security) as server:
        yield server


@pytest.fixture
def client(authority: KeeperAuthority, tmp_path: Path) -> Path:
    return authority.issue(tmp_path / "client", "reader", "client")


def asked(server: EmbeddedZooKeeper, tls: FixedTls | None = None, limit_s: float = PATIENCE_S) -> str:
    """Return the answer to `srvr`. A second does for a server that is to be chosen, but not for the first handshakes of
    a JVM on a busy machine."""
    return four_letters("127.0.0.1", server.port, "srvr", tls=tls, limit_s=limit_s)


def fixed(folder: Path, **options: bool) -> FixedTls:
    return FixedTls(client_context(folder, **options))


async def refused(server: EmbeddedZooKeeper, tls: FixedTls, host: str = "127.0.0.1") -> str:
    """Return why there is no session; it is told long before the time for connecting is up."""
    connecting = ZooKeeperStore.connect(f"{host}:{server.port}", connect_timeout_ms=3_600_000, tls=tls)
    with pytest.raises(MetadataUnavailableError) as caught:
        await asyncio.wait_for(connecting, PATIENCE_S)
    return str(caught.value)


async def test_a_session_by_tls_does_what_any_session_does(secured: EmbeddedZooKeeper, client: Path) -> None:
    store = await ZooKeeperStore.connect(secured.address, connect_timeout_ms=60_000, tls=fixed(client))
    # Answers of many records at a time, and one of many records' length.
    big = bytes(range(256)) * 2_000
    await store.create("/big", big)
    assert (await store.get("/big"))[0] == big
    await store.create("/many")
    await asyncio.gather(*(store.create(f"/many/{number}", b"x" * 100) for number in range(500)))
    assert len((await store.children("/many"))[0]) == 500
    fired = Heard()
    await store.get("/big", fired)
    await store.multi([Create("/of-a-multi")])
    await store.put("/big", b"", 0)
    await fired.wait(1)
    other = await ZooKeeperStore.connect(secured.address, connect_timeout_ms=60_000, tls=fixed(client))
    await other.create("/ephemeral", ephemeral=True)
    await other.close()
    assert await store.exists("/ephemeral") is None
    await store.close()


@pytest.mark.long
async def test_a_session_lives_on_while_nothing_is_asked(secured: EmbeddedZooKeeper, client: Path) -> None:
    """A third of the time is enough for a ticket of TLS's own to be taken for an answer that is to come."""
    store = await ZooKeeperStore.connect(secured.address, tls=fixed(client), session_timeout_ms=4_000)
    states, first = Heard(), store.session_id
    store.on_session(states)
    observer = await ZooKeeperStore.connect(secured.address, connect_timeout_ms=60_000, tls=fixed(client))
    gone = Heard()
    await store.create("/lives", ephemeral=True)
    await observer.get("/lives", gone)
    await asyncio.wait([asyncio.ensure_future(gone.wait(1))], timeout=12)
    assert (states.items, gone.items, store.session_id) == ([], [], first)
    await observer.close()
    await store.close()


async def test_no_certificate_no_session(secured: EmbeddedZooKeeper, client: Path) -> None:
    assert "the server refuses this process's certificate" in await refused(
        secured, fixed(client, with_certificate=False)
    )


async def test_a_certificate_of_a_foreign_authority_gets_no_session(
    secured: EmbeddedZooKeeper, authority: KeeperAuthority, tmp_path: Path
) -> None:
    stranger = KeeperAuthority("another").issue(tmp_path / "stranger", "reader", "client", trusts=authority.pem)
    assert "the server refuses this process's certificate" in await refused(secured, fixed(stranger))


async def test_an_expired_certificate_gets_no_session(
    secured: EmbeddedZooKeeper, authority: KeeperAuthority, tmp_path: Path
) -> None:
    late = authority.issue(tmp_path / "late", "reader", "client", ends=datetime.timedelta(seconds=-1))
    assert "the server refuses this process's certificate" in await refused(secured, fixed(late))


async def test_a_server_of_a_foreign_authority_hears_nothing(secured: EmbeddedZooKeeper, tmp_path: Path) -> None:
    believer = KeeperAuthority("another").issue(tmp_path / "believer", "reader", "client")
    assert "the certificate of 127.0.0.1 is not accepted" in await refused(secured, fixed(believer))


async def test_a_server_of_another_name_hears_nothing(secured: EmbeddedZooKeeper, client: Path) -> None:
    said = await refused(secured, fixed(client), "localhost")
    assert "the certificate of localhost is not accepted: Hostname mismatch" in said


async def test_plain_text_gets_nothing_at_the_secure_port(secured: EmbeddedZooKeeper, client: Path) -> None:
    with pytest.raises(MetadataUnavailableError) as caught:  # long before the time for connecting is up
        await asyncio.wait_for(ZooKeeperStore.connect(secured.address, connect_timeout_ms=3_600_000), PATIENCE_S)
    assert f"{secured.address}: the server speaks TLS at this port, and this session is without" in str(caught.value)
    assert "DLSPARK_SECURITY=DIR" in str(caught.value)
    assert asked(secured, limit_s=1.0) == ""
    assert "Mode: standalone" in asked(secured, fixed(client))
    assert asked(secured, fixed(client, with_certificate=False)) == ""


async def test_tls_gets_nothing_at_a_plain_port_and_says_so(zookeeper: EmbeddedZooKeeper, client: Path) -> None:
    said = await refused(zookeeper, fixed(client))
    assert "the server speaks no TLS at this port: it answers in plain" in said
    assert "security=off" in said


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_of_tls_are_refused(secured: EmbeddedZooKeeper, client: Path) -> None:
    context = client_context(client)
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert "TLS" in await refused(secured, FixedTls(context))


@pytest.mark.long
async def test_one_server_that_refuses_costs_no_session_where_another_one_does_not(
    secured: EmbeddedZooKeeper, authority: KeeperAuthority, tmp_path: Path, client: Path
) -> None:
    elsewhere = authority.issue(tmp_path / "elsewhere", hosts=("zk.example.org",))
    with EmbeddedZooKeeper(tmp_path / "server", security=ServerSecurity.of_folder(elsewhere)) as wrong:
        for _ in range(4):  # in any order
            store = await ZooKeeperStore.connect(f"{wrong.address},{secured.address}", tls=fixed(client))
            await store.close()


@pytest.mark.long
async def test_a_session_goes_on_with_a_renewed_certificate_and_says_why_it_could_not_before(
    authority: KeeperAuthority, tmp_path: Path, client: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedZooKeeper(tmp_path / "server", security=ServerSecurity.of_folder(authority.issue(tmp_path / "id")))
    server.start()
    try:
        tls = FolderTls(client)
        store = await ZooKeeperStore.connect(server.address, tls=tls, session_timeout_ms=60_000)
        states, first = Heard(), store.session_id
        store.on_session(states)
        authority.issue(client, "reader", "client", ends=datetime.timedelta(seconds=-1))
        server.stop()
        with caplog.at_level(logging.WARNING, "metadata.zookeeper.client"):
            server.start()
            await states.wait(1)
            heard_why = False
            while not heard_why:
                await reconnected(store, 200)
                with pytest.raises(MetadataUnavailableError) as caught:
                    await store.get("/")
                heard_why = "refuses this process's certificate" in str(caught.value)
            said = [record for record in caplog.records if "refuses this process's certificate" in record.message]
            assert len(said) == 1
            authority.issue(client, "reader", "client")
            assert await reconnected(store, 60_000)
        assert store.session_id == first
        assert states.items == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await store.close()
    finally:
        server.kill()


@pytest.mark.long
async def test_a_server_whose_certificate_is_revoked_is_left_and_not_spoken_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metadata.zookeeper.edge.JUDGE_EVERY_S", 0.05)
    minted = MintedAuthority()
    pair, other = (minted.issue(name, roles=["zookeeper"], hosts=["127.0.0.1"]) for name in ("zk-1", "zk-2"))
    identity = write_folder(tmp_path / "id", pair, minted.pem)
    client = minted.folder(tmp_path / "client", "client", roles=["client"], revoked=minted.revoke(other))
    with EmbeddedZooKeeper(tmp_path / "server", security=ServerSecurity.of_folder(identity)) as server:
        tls = TlsIdentity(TlsFiles.of_folder(client))
        store = await ZooKeeperStore.connect(server.address, tls=tls)
        states = Heard()
        store.on_session(states)
        await store.get("/")
        replace_file(client / "revoked.pem", minted.revoke(pair, other))
        await states.wait(1)
        assert states.items == [SessionState.SUSPENDED]
        assert "the server's certificate is not good any more" in caplog.text
        assert not await reconnected(store, 500)
        with pytest.raises(MetadataUnavailableError, match=r"is not accepted: certificate revoked"):
            await store.get("/")
        with pytest.raises(MetadataUnavailableError, match=r"certificate revoked"):
            await ZooKeeperStore.connect(server.address, tls=tls, connect_timeout_ms=60_000)
        await store.close()


@pytest.mark.long
async def test_a_running_server_takes_up_a_renewed_certificate(
    authority: KeeperAuthority, tmp_path: Path, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.zookeeper.embedded.REFRESH_S", 0.05)
    identity = authority.issue(tmp_path / "id", ends=HOUR)
    with EmbeddedZooKeeper(tmp_path / "server", security=ServerSecurity.of_folder(identity)) as server:
        store = await ZooKeeperStore.connect(server.address, tls=fixed(client))
        before = _certificate(server, client)
        authority.issue(identity, ends=2 * HOUR)

        async def renewed() -> None:
            while _certificate(server, client) == before:
                await store.get("/")  # its connection is the one it had

        await asyncio.wait_for(renewed(), 60)
        await store.close()


def _certificate(server: EmbeddedZooKeeper, client: Path) -> bytes | None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 60) as connection,
        client_context(client).wrap_socket(connection, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(True)


@pytest.mark.long
async def test_both_ports_in_one_take_both_kinds(authority: KeeperAuthority, tmp_path: Path, client: Path) -> None:
    security = ServerSecurity.of_folder(authority.issue(tmp_path / "id"), clients=ClientPort.BOTH)
    with EmbeddedZooKeeper(tmp_path / "server", security=security) as server:
        plain = await ZooKeeperStore.connect(server.address)
        by_tls = await ZooKeeperStore.connect(server.address, tls=fixed(client))
        await plain.create("/of-the-plain-one")
        assert await by_tls.exists("/of-the-plain-one") is not None
        await plain.close()
        await by_tls.close()
        assert [kind_of(server, by_tls=ours) for ours in (False, True)] == [PortKind.BOTH, PortKind.BOTH]


def kind_of(server: EmbeddedZooKeeper, *, by_tls: bool) -> PortKind | None:
    """Return which kinds of connection a server takes, as it is asked by a session of one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metadata.zookeeper.port_kinds.ANSWER_S", PATIENCE_S)
        probe = KindProbe("127.0.0.1", server.port, by_tls=by_tls)
        probe._thread.join()
    return probe.found


async def test_a_port_says_of_which_kind_it_is(secured: EmbeddedZooKeeper, zookeeper: EmbeddedZooKeeper) -> None:
    for by_tls in (False, True):
        assert await asyncio.to_thread(kind_of, secured, by_tls=by_tls) is PortKind.TLS
        assert await asyncio.to_thread(kind_of, zookeeper, by_tls=by_tls) is PortKind.PLAIN


async def test_a_session_goes_on_to_the_server_of_its_own_kind(
    secured: EmbeddedZooKeeper, zookeeper: EmbeddedZooKeeper, client: Path
) -> None:
    """One of each kind, as while an ensemble is secured server by server, and one that is not there."""
    for tls in (None, fixed(client)):
        for _ in range(4):  # in any order
            servers = f"{secured.address},127.0.0.1:{free_port()},{zookeeper.address}"
            store = await ZooKeeperStore.connect(servers, connect_timeout_ms=60_000, tls=tls)
            assert await store.exists("/") is not None
            await store.close()


async def test_who_returns_home_asks_by_tls(secured: EmbeddedZooKeeper, client: Path) -> None:
    home = [("127.0.0.1", secured.port)]
    probe = HomeProbe(home, lambda host, port: [(host, port)], 0, fixed(client), limit_s=PATIENCE_S)
    probe._thread.join(2 * PATIENCE_S)
    assert probe.found == ("127.0.0.1", "127.0.0.1", secured.port)
    plain = HomeProbe(home, lambda host, port: [(host, port)], 0)
    plain._thread.join(PATIENCE_S)
    assert plain.found is None
    probe.end()
    plain.end()


def test_what_does_not_fit_together_is_not_handed_to_the_server(authority: KeeperAuthority, tmp_path: Path) -> None:
    identity, other = authority.issue(tmp_path / "id"), authority.issue(tmp_path / "other")
    security = ServerSecurity.of_folder(identity)
    assert security.install(tmp_path / "server")
    assert not security.install(tmp_path / "server")
    before = (tmp_path / "server/tls/identity.pem").read_bytes()
    shutil.copy(other / "key.pem", identity / "key.pem")
    with pytest.raises(CallerError, match="do not fit together"):
        security.install(tmp_path / "server")
    assert (tmp_path / "server/tls/identity.pem").read_bytes() == before
    assert (tmp_path / "server/tls/identity.pem").stat().st_mode & 0o777 == 0o600
    (identity / "key.pem").write_text("-----BEGIN EC PRIVATE KEY-----\n")
    with pytest.raises(CallerError, match="PKCS#8"):
        security.install(tmp_path / "server")


def test_what_is_handed_to_the_server_is_what_was_looked_at(
    authority: KeeperAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment exchanges the certificate between two readings: what it leaves fits together, what was read not."""
    identity, other = authority.issue(tmp_path / "id"), authority.issue(tmp_path / "other")
    security = ServerSecurity.of_folder(identity)
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        content = real(path)
        if path == identity / "key.pem":
            for name in ("key.pem", "certificate.pem"):
                shutil.copy(other / name, identity / name)
        return content

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(CallerError, match="do not fit together"):
        security.install(tmp_path / "server")
    assert list((tmp_path / "server" / STORES).iterdir()) == []
    assert security.install(tmp_path / "server"), "the next look finds them whole"


def test_beyond_loopback_a_server_listens_secured_or_not_at_all(authority: KeeperAuthority, tmp_path: Path) -> None:
    security = ServerSecurity.of_folder(authority.issue(tmp_path / "id"))
    with pytest.raises(CallerError, match="without security"):
        EmbeddedZooKeeper(tmp_path / "server", host="0.0.0.0")
    server = EmbeddedZooKeeper(tmp_path / "server", host="0.0.0.0", security=security)
    server.security = None
    with pytest.raises(CallerError, match="without security"):
        server.start()
    assert not server.running
