"""TLS on links: begun in band and from the first byte on, what it refuses, and what it does not let pass for more."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from helpers.security.secured_network import (
    SecuredNetwork,
    authority,
    client_context,
    dial_secured,
    fresh_server_context,
    server_context,
)
from helpers.waiting import until

from metadata.foundation.errors import CallerError
from storage_node.edge import Link, TlsTerms
from storage_node.errors import SecureConnectionError, TlsError, TlsRefusedError
from storage_node.protocol.frames import ChunkPool
from storage_node.transport import newcomers
from storage_node.transport.links import TcpLink
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import (
    RECORD_BYTES,
    TlsEntrance,
    _records,
    connect_secured,
    securable,
    secure,
    tls_error,
)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """Keeps what it gets; begins TLS when it is asked to, and sends back what comes after that."""

    def __init__(self, link: Link | None = None, terms: TlsTerms | None = None) -> None:
        self.link = link
        self.frames: list[bytes] = []
        self.closed: list[Exception | None] = []
        self.tls: list[TlsError | None] = []
        self._terms = terms

    def frame_received(self, frame: memoryview) -> None:
        body = bytes(frame)
        self.frames.append(body)
        if self.link is None:
            return
        self.link.send(framed(body))
        if body == b"tls":
            securable(self.link).start_tls(self._terms or TlsTerms(server_context(), server_side=True), self.tls.append)

    def batch_done(self) -> None: ...

    def link_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Served:
    """A listener, and the peers that came."""

    def __init__(self) -> None:
        self.network = TcpNetwork()
        self.peers: list[Peer] = []
        self.port = 0

    def accept(self, link: Link) -> Peer:
        self.peers.append(Peer(link, self.terms))
        return self.peers[-1]

    terms: TlsTerms | None = None

    async def connect(self, handler: Peer | None = None) -> Link:
        return await self.network.connect("127.0.0.1", self.port, handler or Peer(), timeout_ms=60_000)


@asynccontextmanager
async def serving(
    tls: TlsEntrance | None = None, terms: TlsTerms | None = None, network: TcpNetwork | None = None
) -> AsyncIterator[Served]:
    served = Served()
    served.network = network or served.network
    served.terms = terms
    listener = await TcpNetwork.listen(served.network, "127.0.0.1", 0, served.accept, tls=tls)
    served.port = listener.port
    yield served
    await listener.close()
    for link in served.network.links():
        link.close()
    await until(lambda: not served.network.links(), every_s=0)
    await until(lambda: all(len(peer.closed) == 1 for peer in served.peers), every_s=0)


def terms_of_client(context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> TlsTerms:
    return TlsTerms(context or client_context(), host)


async def test_tls_is_begun_in_band_and_each_side_sees_the_others_certificate() -> None:
    async with serving() as served:
        client = Peer()
        link = securable(await served.connect(client))
        link.send(framed(b"plain"), framed(b"tls"))
        await until(lambda: client.frames == [b"plain", b"tls"], every_s=0)
        assert (link.secured, link.certificate) == (False, None)
        await secure(link, terms_of_client())
        link.send(framed(b"secret"))
        await until(lambda: client.frames[2:] == [b"secret"], every_s=0)
        (peer,) = served.peers
        assert peer.tls == [None]
        seen = securable(peer.link or link).certificate
        assert link.secured
        assert seen is not None
        assert seen == link.certificate, "the tests' one certificate, from both ends"


async def test_what_is_sent_while_tls_is_begun_waits_for_it_and_leaves_under_it() -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = Peer()
        link = securable(await served.connect(client))
        begun = asyncio.ensure_future(secure(link, terms_of_client()))
        await asyncio.sleep(0)
        link.send(framed(b"early"))
        await begun
        await until(lambda: client.frames == [b"early"], every_s=0)


async def test_another_handler_gets_what_comes_after_the_change() -> None:
    async with serving() as served:
        first, second = Peer(), Peer()
        link = securable(await served.connect(first))
        link.send(framed(b"one"))
        await until(lambda: first.frames, every_s=0)
        link.deliver_to(second)
        link.send(framed(b"two"))
        await until(lambda: second.frames, every_s=0)
        assert (first.frames, second.frames) == ([b"one"], [b"two"])
        link.close()
        await until(lambda: second.closed, every_s=0)
        assert not first.closed


@pytest.mark.parametrize("behind", [framed(b"GET me"), b"\0", b"\0\0\0\x09half"])
async def test_bytes_behind_the_request_for_tls_cut_the_link_and_are_never_heard(
    behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        with socket.create_connection(("127.0.0.1", served.port)) as attacker:
            attacker.sendall(framed(b"tls") + behind)
            await until(lambda: served.peers and served.peers[0].closed, every_s=0)
        (peer,) = served.peers
        assert peer.frames == [b"tls"]
        assert isinstance(peer.tls[0], TlsError)
        assert "bytes came in plain behind the last frame before TLS" in caplog.text


async def test_plain_frames_that_follow_the_answer_are_a_broken_handshake_and_never_heard() -> None:
    async with serving() as served:
        with socket.create_connection(("127.0.0.1", served.port)) as attacker:
            attacker.setblocking(False)
            attacker.sendall(framed(b"tls"))
            assert await asyncio.get_running_loop().sock_recv(attacker, 100) == framed(b"tls")
            attacker.sendall(framed(b"GET me") * 10)
            await until(lambda: served.peers[0].closed, every_s=0)
        (peer,) = served.peers
        assert peer.frames == [b"tls"]
        assert [str(error) for error in peer.tls] == [str(error) for error in peer.closed]
        assert "does not speak TLS" in str(peer.tls[0])


async def test_tls_twice_cuts_the_link() -> None:
    async with serving() as served:
        client = Peer()
        link = securable(await served.connect(client))
        link.send(framed(b"tls"))
        await until(lambda: client.frames, every_s=0)
        await secure(link, terms_of_client())
        link.send(framed(b"tls"))
        await until(lambda: served.peers[0].closed, every_s=0)
        assert [type(error) for error in served.peers[0].tls] == [type(None), TlsError]
        assert "TLS was begun before" in str(served.peers[0].tls[1])


def _client_of(other: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    other.issue_cert("127.0.0.1").configure_cert(context)
    authority().configure_trust(context)
    return context


def _expired() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    authority().issue_cert("127.0.0.1", not_after=past).configure_cert(context)
    authority().configure_trust(context)
    return context


@pytest.mark.parametrize(
    ("context", "seen_by_server", "told"),
    [
        (lambda: client_context(shows=False), "the peer showed no certificate", "has none"),
        (lambda: _client_of(trustme.CA()), "certificate is refused", "does not know its authority"),
        (_expired, "certificate is refused: certificate has expired", "has expired"),
    ],
)
async def test_a_client_without_a_good_certificate_is_never_heard_and_learns_why(
    context: Callable[[], ssl.SSLContext], seen_by_server: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = Peer()
        link = await served.connect(client)
        # In TLS 1.3 a client has ended its handshake before the server judges its certificate.
        under_tls = await secure(link, terms_of_client(context()))
        under_tls.send(framed(b"let me in"))
        await until(lambda: client.closed, every_s=0)
        assert told in str(client.closed[0])
        await until(lambda: seen_by_server in caplog.text, every_s=0)
        assert not served.peers


def _foreign_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


def _server_of_another_host() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("127.0.0.2", "elsewhere").configure_cert(context)
    return context


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (_foreign_server, "certificate is refused: .*(issuer|self.signed)"),
        (_server_of_another_host, "certificate is not valid for '127.0.0.1'"),
    ],
)
async def test_a_server_that_is_another_one_gets_no_request(context: Callable[[], ssl.SSLContext], why: str) -> None:
    tls = context()
    async with serving(TlsEntrance(lambda: tls)) as served:
        with pytest.raises(SecureConnectionError, match=why):
            await connect_secured(
                served.network, "127.0.0.1", served.port, Peer(), timeout_ms=60_000, context=client_context()
            )
        assert not any(peer.frames for peer in served.peers)


async def test_a_plain_server_is_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        said = f"127.0.0.1:{served.port} could not be secured: the peer does not speak TLS.*security=off"
        with pytest.raises(SecureConnectionError, match=said) as caught:
            await connect_secured(
                served.network, "127.0.0.1", served.port, Peer(), timeout_ms=60_000, context=client_context()
            )
        assert caught.value.refused, "it is no use to come again"
        assert not any(peer.frames for peer in served.peers)
        assert "the other end begins TLS, and none is spoken at this port" in caplog.text


async def test_a_server_that_ends_without_a_word_is_not_said_to_be_a_plain_one() -> None:
    """A Java bookie does so where TLS is begun at once; so does any server that stops."""
    async with serving() as served:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            connecting = asyncio.ensure_future(
                connect_secured(served.network, "127.0.0.1", port, Peer(), timeout_ms=60_000, context=client_context())
            )
            accepted, _ = await asyncio.to_thread(silent.accept)
            await asyncio.to_thread(accepted.recv, 65_536)
            accepted.close()
            with pytest.raises(SecureConnectionError, match="it may not speak TLS at this port") as caught:
                await connecting
        assert not caught.value.refused


async def test_plain_frames_on_a_secured_port_are_never_heard(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = Peer()
        link = await served.connect(client)
        link.send(framed(b"let me in"))
        await until(lambda: client.closed, every_s=0)
        assert not served.peers
        assert "the peer does not speak TLS" in caplog.text
        assert "the other end speaks TLS" in caplog.text, "the plain side hears why"


async def test_a_handshake_that_does_not_end_in_time_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(terms=TlsTerms(server_context(), server_side=True, limit_s=0.05)) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as slow:
            slow.sendall(framed(b"tls"))
            await until(lambda: served.peers and served.peers[0].closed)
        assert "did not end its handshake within 0.05 s" in caplog.text


async def test_a_handshake_that_is_too_large_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    # One greeting of 130,000 bytes, in records: OpenSSL would collect it to its end.
    hello = b"\x01" + (130_000).to_bytes(3, "big") + b"\x03\x03" + bytes(130_000)
    records = [hello[at : at + 16_000] for at in range(0, len(hello), 16_000)]
    stream = b"".join(b"\x16\x03\x01" + len(record).to_bytes(2, "big") + record for record in records)
    async with serving(TlsEntrance(server_context)) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(stream[:100_000])
        await until(lambda: "handshake has more than 65536 bytes" in caplog.text, every_s=0)
        writer.close()
        assert not served.peers


async def test_a_stream_that_is_cut_off_is_told_from_one_that_ends() -> None:
    async with serving(TlsEntrance(server_context)) as served:
        whole = await dial_secured(served.port)
        await until(lambda: len(served.peers) == 1, every_s=0)
        whole.sendall(framed(b"whole"))
        await until(lambda: served.peers[0].frames, every_s=0)
        whole.setblocking(False)
        with pytest.raises(ssl.SSLError):  # the echo was not read; the end was sent before that is found
            whole.unwrap()
        await until(lambda: served.peers[0].closed, every_s=0)
        whole.close()
        cut = await dial_secured(served.port)
        await until(lambda: len(served.peers) == 2, every_s=0)
        cut.sendall(framed(b"cut off"))
        cut.close()
        await until(lambda: served.peers[1].closed, every_s=0)
        assert served.peers[0].closed == [None]
        assert "broke off without ending TLS" in str(served.peers[1].closed[0])


class CountedPool(ChunkPool):
    """Counts the chunks that it has made."""

    made = 0

    def take(self, need: int) -> bytearray:
        kept = {id(chunk) for chunk in self._retired}
        chunk = super().take(need)
        self.made += id(chunk) not in kept
        return chunk


async def test_links_that_are_cut_off_together_hold_no_memory_for_what_they_could_not_read() -> None:
    """Each had taken a chunk to read into; its error held it, so that the next one took another."""
    network = TcpNetwork()
    network.pool = pool = CountedPool()
    async with serving(TlsEntrance(server_context), network=network) as served:
        ends = [await asyncio.open_connection("127.0.0.1", served.port, ssl=client_context()) for _ in range(60)]
        await until(lambda: len(served.peers) == len(ends), every_s=0)
        for _, writer in ends:
            writer.transport.abort()
        await until(lambda: not network.links(), every_s=0)
    assert all(isinstance(peer.closed[0], TlsError) for peer in served.peers)
    assert pool.made <= 2


async def test_our_end_is_told_to_the_peer_with_all_that_was_sent_before() -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = Peer()
        link = securable(await served.connect(client))
        await secure(link, terms_of_client())
        link.send(framed(b"last words"))
        link.close()
        await until(lambda: served.peers and served.peers[0].closed, every_s=0)
        assert (served.peers[0].frames, served.peers[0].closed) == ([b"last words"], [None])


async def test_what_was_decrypted_and_not_read_is_read_though_the_socket_stays_silent() -> None:
    # Chunks smaller than a few records: reads end in the middle of one.
    network = TcpNetwork(pool=ChunkPool(chunk_bytes=70_001))
    async with serving(TlsEntrance(server_context), network=network) as served:
        client = await dial_secured(served.port)
        bodies = [bytes([number]) * 9_973 for number in range(200)]
        sent = asyncio.get_running_loop().run_in_executor(None, client.sendall, b"".join(map(framed, bodies)))
        await until(lambda: served.peers and len(served.peers[0].frames) == 200, every_s=0)
        assert served.peers[0].frames == bodies
        await sent
        client.close()


async def test_one_byte_in_a_record_is_enough_for_a_record() -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = await dial_secured(served.port)
        await until(lambda: served.peers, every_s=0)
        for byte in framed(b"x" * 400):
            client.send(bytes([byte]))
        await until(lambda: served.peers[0].frames, every_s=0)
        assert served.peers[0].frames == [b"x" * 400]
        client.close()


async def test_a_read_that_has_to_write_first_goes_on_once_the_socket_takes_something() -> None:
    """OpenSSL answers a peer's change of keys from within a read."""
    async with serving(TlsEntrance(server_context)) as served:
        client = Peer()
        link = await served.connect(client)
        await secure(link, terms_of_client())
        await until(lambda: served.peers, every_s=0)
        theirs = served.peers[0].link
        assert isinstance(theirs, TcpLink)
        assert theirs._tls is not None
        read, tries = theirs._receive, []

        def write_first(view: memoryview) -> int:
            tries.append(theirs._reading)
            if len(tries) == 1:
                theirs._tls.stalled = True  # type: ignore[union-attr]  # see above
                raise BlockingIOError
            return read(view)

        theirs._receive = write_first
        link.send(framed(b"after a change of keys"))
        await until(lambda: client.frames == [b"after a change of keys"], every_s=0)
        assert len(tries) >= 2
        assert not theirs._tls.stalled
        assert not theirs._writing


def test_pieces_are_cut_into_full_records_whatever_they_are() -> None:
    pieces = [b"a" * 30, b"b" * 40_000, b"", b"c" * 5, memoryview(b"d" * RECORD_BYTES), b"e" * 3 * RECORD_BYTES, b"f"]
    records = [bytes(record) for record in _records(pieces)]
    assert b"".join(records) == b"".join(pieces)
    assert {len(record) for record in records[:-1]} == {RECORD_BYTES}


async def test_both_kinds_come_in_by_one_port_where_both_are_taken() -> None:
    async with serving(TlsEntrance(server_context, plain_too=True)) as served:
        plain, secured = Peer(), Peer()
        link = await served.connect(plain)
        link.send(framed(b"plain"))
        await until(lambda: plain.frames, every_s=0)
        other = await served.connect(secured)
        await secure(other, terms_of_client())
        other.send(framed(b"secured"))
        await until(lambda: secured.frames, every_s=0)
        kinds = {peer.frames[0]: securable(peer.link or link).secured for peer in served.peers}
        assert kinds == {b"plain": False, b"secured": True}


@pytest.mark.parametrize("plain_too", [False, True])
async def test_those_that_wait_to_be_secured_are_bounded_in_number(
    plain_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers, "MAX_NEWCOMERS", 3)
    async with serving(TlsEntrance(server_context, plain_too=plain_too, limit_s=600.0)) as served:
        idle = _idle(served.port, 5)
        for sock in idle[:2]:
            assert await _ended(sock)
        client = Peer()
        await secure(await served.connect(client), terms_of_client())
        assert await _ended(idle[2])
        assert len(served.peers) == 1
        for sock in idle:
            sock.close()


@pytest.mark.parametrize("plain_too", [False, True])
async def test_those_that_wait_to_be_secured_are_bounded_in_time(plain_too: bool) -> None:
    async with serving(TlsEntrance(server_context, plain_too=plain_too, limit_s=0.01)) as served:
        for sock in _idle(served.port, 3):
            assert await _ended(sock)
            sock.close()
        assert not served.peers


def _idle(port: int, count: int) -> list[socket.socket]:
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for sock in idle:
        sock.setblocking(False)
    return idle


async def _ended(sock: socket.socket) -> bool:
    async def end() -> bool:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while await loop.sock_recv(sock, 1000):
                pass
        return True

    return await asyncio.wait_for(end(), 60)


async def test_certificates_that_cannot_be_read_refuse_the_connection_and_not_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    contexts: list[ssl.SSLContext] = []
    async with serving(TlsEntrance(lambda: contexts[0])) as served:
        with pytest.raises(SecureConnectionError):
            await secure(await served.connect(), terms_of_client())
        contexts.append(server_context())
        await secure(await served.connect(), terms_of_client())
        await until(lambda: served.peers, every_s=0)
    assert "it cannot be secured: list index out of range" in caplog.text


async def test_a_link_that_is_closed_meanwhile_says_so_to_who_waits_for_tls() -> None:
    async with serving() as served:
        link = await served.connect()
        begun = asyncio.ensure_future(secure(link, terms_of_client()))
        await asyncio.sleep(0)
        link.close()
        with pytest.raises(SecureConnectionError, match="the connection was lost"):
            await begun
        with pytest.raises(SecureConnectionError, match="the connection is closed"):
            await secure(link, terms_of_client())


async def test_a_network_without_tls_refuses_to_begin_it() -> None:
    class Wire:
        peer = "somebody:1"

    with pytest.raises(CallerError, match="knows no TLS"):
        securable(Wire())  # type: ignore[arg-type]


class OpenSsl:
    """OpenSSL's own client: it changes keys, and asks for another handshake, which Python's does not."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def connect(cls, port: int, folder: Path, *options: str) -> OpenSsl:
        program = shutil.which("openssl")
        if program is None:
            pytest.skip("there is no openssl here")
        certificate = authority().issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(folder / "pair.pem")
        pair = str(folder / "pair.pem")
        process = await asyncio.create_subprocess_exec(
            *(program, "s_client", "-connect", f"127.0.0.1:{port}", "-cert", pair, "-key", pair, *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process)

    def say(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)

    async def command(self, letter: bytes, done: bytes) -> None:
        """Have it do something, and wait until it says so: what is typed meanwhile would be lost."""
        self.say(letter + b"\n")
        assert self._process.stdout is not None
        await asyncio.wait_for(self._process.stdout.readuntil(done), 60)

    async def end(self) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return (await self._process.communicate())[0]


async def test_a_peer_may_change_its_keys_and_ask_for_ours(tmp_path: Path) -> None:
    async with serving(TlsEntrance(server_context)) as served:
        client = await OpenSsl.connect(served.port, tmp_path, "-tls1_3")
        await until(lambda: served.peers)
        for number in range(3):
            await client.command(b"K", b"KEYUPDATE")  # a change of keys, and a request for one
            client.say(framed(b"after %d\n" % number))
            await until(lambda n=number: len(served.peers[0].frames) == n + 1)  # type: ignore[misc]
        assert served.peers[0].frames == [b"after 0\n", b"after 1\n", b"after 2\n"]
        assert b"after 2" in await client.end(), "read under the keys that it asked for"


async def test_another_handshake_on_the_same_connection_is_refused(tmp_path: Path) -> None:
    context = fresh_server_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(TlsEntrance(lambda: context)) as served:
        client = await OpenSsl.connect(served.port, tmp_path, "-tls1_2")
        await until(lambda: served.peers)
        client.say(framed(b"before\n"))
        await until(lambda: served.peers[0].frames)
        await client.command(b"R", b"RENEGOTIATING")
        assert b"no renegotiation" in await client.end()
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_it_works_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        await test_tls_is_begun_in_band_and_each_side_sees_the_others_certificate()
        await test_what_was_decrypted_and_not_read_is_read_though_the_socket_stays_silent()
        await test_both_kinds_come_in_by_one_port_where_both_are_taken()

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [("TLSV13_ALERT_CERTIFICATE_REQUIRED", True), ("SSLV3_ALERT_CERTIFICATE_REVOKED", False), ("HTTP_REQUEST", False)],
)
def test_that_the_peer_wants_a_certificate_is_told_by_more_than_words(reason: str, wanted: bool) -> None:
    said = ssl.SSLError(1, "what OpenSSL says")
    said.reason = reason
    error = tls_error(said)
    assert isinstance(error, TlsRefusedError)
    assert error.certificate_wanted is wanted


async def test_a_secured_network_is_what_its_name_says() -> None:
    network = SecuredNetwork()
    accepted: list[Link] = []

    def accept(link: Link) -> Peer:
        accepted.append(link)
        return Peer(link)

    listener = await network.listen("127.0.0.1", 0, accept)
    link = await network.connect("127.0.0.1", listener.port, Peer(), timeout_ms=60_000)
    await until(lambda: accepted, every_s=0)
    assert securable(link).secured
    assert securable(accepted[0]).secured
    link.close()
    await listener.close()
    await until(lambda: not network.links(), every_s=0)
