"""The small HTTP server under TLS: who is let in, what is bounded, what is told of."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from helpers.security.java_stores import java_key_store, java_trust_store
from helpers.security.minting import DAY, MintedAuthority, now, replace_file, write_folder
from helpers.security.records import RecordsPeer
from helpers.waiting import until

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.identity import REVOKED_FILE, TlsFiles, TlsIdentity
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.endpoints import shown
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import NodeFile
from storage_node.transport import http_server
from storage_node.transport.http_server import HttpServer, Reply

BODY = b"x" * 3_000_000
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def authority() -> MintedAuthority:
    return MintedAuthority()


@pytest.fixture
def identity(authority: MintedAuthority, tmp_path: Path) -> TlsIdentity:
    place = authority.folder(tmp_path / "server", hosts=["localhost"], revoked=authority.revoke())
    return TlsIdentity(TlsFiles.of_folder(place))


@pytest.fixture
def refused() -> list[tuple[str, str]]:
    return []


@asynccontextmanager
async def serving(identity: TlsIdentity, refused: list[tuple[str, str]]) -> AsyncIterator[int]:
    server = HttpServer(
        lambda _path: Reply(BODY),
        tls=identity.server_context,
        refused=lambda *told: refused.append(told),
        judge=identity.judge,
    )
    await server.start("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.stop()


def client(authority: MintedAuthority, folder: Path, **given: object) -> ssl.SSLContext:
    return TlsIdentity(TlsFiles.of_folder(authority.folder(folder, "probe", **given))).client_context()


async def get(port: int, context: ssl.SSLContext | None, request: bytes = REQUEST) -> bytes:
    host = "localhost" if context is not None else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


async def test_a_page_of_megabytes_comes_whole_and_the_end_is_said(
    authority: MintedAuthority, identity: TlsIdentity, refused: list[tuple[str, str]], tmp_path: Path
) -> None:
    async with serving(identity, refused) as port:
        context = client(authority, tmp_path / "c")
        answer = await get(port, context)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(BODY)
        too_large = await get(port, context, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 4000)
        assert too_large.startswith(b"HTTP/1.1 431 ")
    assert refused == []


@pytest.mark.parametrize("by", ["tls", "plain"])
async def test_an_answer_comes_whole_though_the_client_says_more_than_its_request(
    by: str, authority: MintedAuthority, identity: TlsIdentity, tmp_path: Path
) -> None:
    """A server that closes over bytes it has not read resets the connection, and the answer's end is lost."""
    server = HttpServer(lambda _path: Reply(BODY), tls=identity.server_context if by == "tls" else None)
    await server.start("127.0.0.1", 0)
    context = client(authority, tmp_path / "c")

    def ask() -> int:
        sock = socket.create_connection(("127.0.0.1", server.port), 60)
        with context.wrap_socket(sock, server_hostname="localhost") if by == "tls" else sock as talker:
            talker.sendall(REQUEST)
            talker.sendall(b"x" * 60_000)
            found = 0
            while piece := talker.recv(65536):
                found += len(piece)
            return found

    try:
        for _ in range(5):
            assert await asyncio.to_thread(ask) > len(BODY)
    finally:
        await server.stop()


async def test_a_client_that_does_not_end_after_its_answer_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LINGER_S", 0.05)
    server = HttpServer(lambda _path: Reply(b"short"))
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(REQUEST)
    assert (await reader.read()).endswith(b"short")
    await until(lambda: not server._tasks, every_s=0)
    writer.close()
    await server.stop()


async def test_a_session_of_tls_1_2_that_is_taken_up_again_is_judged_anew(
    authority: MintedAuthority, tmp_path: Path, refused: list[tuple[str, str]]
) -> None:
    ahead_s = 0.0
    place = authority.folder(tmp_path / "server", hosts=["localhost"])
    identity = TlsIdentity(TlsFiles.of_folder(place), clock=lambda: now().timestamp() + ahead_s)
    context = client(authority, tmp_path / "c", ends=now() + DAY)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session: ssl.SSLSession | None = None

    def ask(port: int) -> bytes:
        nonlocal session
        sock = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(sock, server_hostname="localhost", session=session) as secured:
            assert secured.session_reused is (session is not None)
            session = secured.session
            secured.sendall(REQUEST)
            begin = secured.recv(100)
            while secured.recv(65536):
                pass  # to its end: the server forgets the session of a connection that breaks off
            return begin

    async with serving(identity, refused) as port:
        assert (await asyncio.to_thread(ask, port)).startswith(b"HTTP/1.1 200 OK")
        ahead_s = 2 * DAY.total_seconds()
        try:
            assert await asyncio.to_thread(ask, port) == b""
        except OSError:
            pass  # it was cut
    assert [reason for _, reason in refused if "the client's certificate is not good: it ended at" in reason]


async def test_a_client_that_is_gone_before_it_hears_why_is_told_of_all_the_same(
    authority: MintedAuthority,
    identity: TlsIdentity,
    refused: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = http_server._PlainStream.send
    sent: list[object] = []

    async def gone(stream: http_server._PlainStream, data: bytes) -> None:
        sent.append(data)
        if len(sent) > 1:
            raise ConnectionResetError(104, "Connection reset by peer")
        await whole(stream, data)

    monkeypatch.setattr(http_server._PlainStream, "send", gone)
    async with serving(identity, refused) as port:
        with suppress(OSError):
            await get(port, ssl.create_default_context(cadata=authority.pem.decode()))
        await until(lambda: refused, every_s=0)
    assert len(sent) == 2
    assert [reason for _, reason in refused if "certificate" in reason]


async def test_a_client_that_breaks_off_in_its_handshake_is_told_of(
    identity: TlsIdentity, refused: list[tuple[str, str]]
) -> None:
    async with serving(identity, refused) as port:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends by a reset
        sock.sendall(b"\x16\x03\x01")
        await asyncio.sleep(0)
        sock.close()
        await until(lambda: refused, every_s=0)
    assert [reason for _, reason in refused if "the connection broke in the handshake" in reason]


@pytest.mark.parametrize("kind", ["none", "foreign", "expired", "revoked", "plain", "old"])
async def test_who_has_no_good_certificate_sees_nothing_and_is_told_of(
    kind: str, authority: MintedAuthority, identity: TlsIdentity, refused: list[tuple[str, str]], tmp_path: Path
) -> None:
    context: ssl.SSLContext | None = None
    if kind == "none":
        context = ssl.create_default_context(cadata=authority.pem.decode())
    elif kind == "foreign":
        other = MintedAuthority("Another one")
        place = write_folder(tmp_path / "c", other.issue("probe"), authority.pem)
        context = TlsIdentity(TlsFiles.of_folder(place)).client_context()
    elif kind == "expired":
        pair = authority.issue("probe", ends=now() - DAY)
        context = ssl.create_default_context(cadata=authority.pem.decode())
        (tmp_path / "pair.pem").write_bytes(pair.certificate_pem + pair.key_pem)
        context.load_cert_chain(tmp_path / "pair.pem")
    elif kind == "revoked":
        pair = authority.issue("probe")
        replace_file(tmp_path / "server" / REVOKED_FILE, authority.revoke(pair))
        assert identity.refresh()
        context = TlsIdentity(TlsFiles.of_folder(write_folder(tmp_path / "c", pair, authority.pem))).client_context()
    elif kind == "old":
        context = client(authority, tmp_path / "c")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA")  # neither new nor authenticated
    async with serving(identity, refused) as port:
        try:
            answer = await get(port, context)
        except OSError:
            answer = b""
        assert b"HTTP" not in answer
        assert b"xxx" not in answer
        good = client(authority, tmp_path / "good")
        assert (await get(port, good)).endswith(BODY), "others are served all the same"
    ((peer, reason),) = refused
    assert peer == "127.0.0.1"
    assert reason.startswith("TLS: ")


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)
    return


@pytest.mark.parametrize("data", [b"", b"x"], ids=["nothing between", "a byte between"])
async def test_a_client_that_does_nothing_but_change_its_keys_is_cut(
    data: bytes, authority: MintedAuthority, identity: TlsIdentity, refused: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Each of them takes longer than it is: they count as bytes of its request."""
    async with serving(identity, refused) as port:
        context = client(authority, tmp_path / "c")

        def attack() -> bytes:
            with socket.create_connection(("127.0.0.1", port), 60) as sock:
                peer = RecordsPeer(sock, context, "localhost")
                storm = [peer.key_update(asks=False) + (peer.record(data) if data else b"") for _ in range(5_000)]
                peer.send(b"".join(storm) + peer.record(REQUEST))
                found = b""
                with suppress(ConnectionError):
                    while piece := sock.recv(65536):
                        found += piece
                return found

        assert len(await asyncio.to_thread(attack)) < len(BODY), "the request behind them is not heard"
        assert (await get(port, context)).endswith(BODY)


@pytest.mark.usefixtures("short_time")
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_that_does_not_go_on_is_broken_off(
    begun: bytes, identity: TlsIdentity, refused: list[tuple[str, str]]
) -> None:
    async with serving(identity, refused) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await until(lambda: refused, every_s=0)
        assert refused == [("127.0.0.1", "TLS: the handshake took too long, or made room for others")]


async def test_a_handshake_without_end_is_broken_off(
    identity: TlsIdentity, refused: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_HANDSHAKE_BYTES", 5_000)
    async with serving(identity, refused) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"\x00" * 8_000)  # a hello of 16 KB, half of it
        try:
            await asyncio.wait_for(reader.read(), 60)
        except OSError:
            pass
        writer.close()
        await until(lambda: refused, every_s=0)
    assert len(refused) == 1


async def test_new_certificates_hold_from_the_next_connection_on(
    authority: MintedAuthority, identity: TlsIdentity, refused: list[tuple[str, str]], tmp_path: Path
) -> None:
    context = client(authority, tmp_path / "c")

    async def shown_serial(port: int) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        writer.close()
        return int(found, 16)

    async with serving(identity, refused) as port:
        before = await shown_serial(port)
        pair = authority.issue("node-1", hosts=["localhost"])
        write_folder(tmp_path / "server", pair, authority.pem, authority.revoke())
        assert identity.refresh()
        assert (before, await shown_serial(port)) != (before, before)
        assert await shown_serial(port) == pair.certificate.serial_number


# ---------------------------------------------------------------------- a node's settings


def settings(tmp_path: Path, **values: object) -> BookieSettings:
    given = {"journalDirectories": f"{tmp_path}/j", "ledgerDirectories": f"{tmp_path}/l", "httpServerEnabled": "true"}
    given |= {"httpServerPort": "0", **{key: str(value) for key, value in values.items()}}
    return NodeFile(given).bookie()


@pytest.mark.parametrize("stores", [True, False])
async def test_a_nodes_pages_take_upstreams_stores_or_the_nodes_own_folder(
    stores: bool, authority: MintedAuthority, tmp_path: Path
) -> None:
    pair = authority.issue("node-1", hosts=["localhost"])
    if stores:
        (tmp_path / "key.jks").write_bytes(java_key_store(pair, "to the key"))
        der = ssl.PEM_cert_to_DER_cert(authority.pem.decode())
        (tmp_path / "trust.jks").write_bytes(java_trust_store([der], "to the key"))
        keys: dict[str, object] = {
            "httpServerKeyStorePath": tmp_path / "key.jks",
            "httpServerKeyStorePassword": "to the key",
            "httpServerTrustStorePath": tmp_path / "trust.jks",
        }
    else:
        keys = {"securityDirectory": write_folder(tmp_path / "node", pair, authority.pem), "security": "on"}
    made = settings(tmp_path, httpServerTlsEnable="true", httpServerHost="127.0.0.1", **keys)
    assert "to the key" not in repr(made)
    store = MemoryStore(MemoryTree())
    await LedgerStore(store, "/ledgers").format()
    async with shown(made, Bookie(made, store)) as server:
        assert server is not None
        context = client(authority, tmp_path / "c")
        answer = await get(server.port, context, b"GET /heartbeat HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"OK\n")
        try:
            unproved = await get(server.port, ssl.create_default_context(cadata=authority.pem.decode()))
        except OSError:
            unproved = b""
        assert unproved == b""
    await store.close()


def test_stores_that_nothing_would_look_at_and_tls_without_any_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigurationError, match="nothing switches its TLS on"):
        settings(tmp_path, httpServerKeyStorePath="/x.jks")
    made = settings(tmp_path, httpServerTlsEnable="true")
    with pytest.raises(BookieConfigurationError, match="no certificate to show"):
        made.http_tls.identity(made.security)
    with pytest.raises(BookieConfigurationError, match="httpServerKeyStorePassword"):
        settings(tmp_path, httpServerKeystorePassword="secret of the store")
