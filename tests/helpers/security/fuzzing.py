"""Damaged frames, handshakes and tokens against a secured node and proxy, in this process: no port, no thread, no time.

Each of the four takes what a link would hand on: `NodeGate` and `ProxyDoor` frames, as whole as a length can make them,
`Handshakes` bytes over pairs of sockets, at the very code that links of nodes and of proxies' frames shake hands with
(`TlsSocket`), `Tokens` texts. Nothing damaged may be heard; what is raised for it is what links expect, and no more.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.protocol.operations import Handshake
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
from dlspark.serving.security.tokens import TokenSettings
from helpers.bookie.damaged_frames import REQUESTS, RESPONSES, body
from helpers.bookie.fuzzed_connection import PretendedLink
from helpers.bookie.harness import BookieCluster
from helpers.security.attack_kinds import REQUESTS as ASKED
from helpers.security.minting import MintedAuthority, secured_by
from helpers.serving.scripted_service import ScriptedService
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.exchange import ChannelFacts, Exchange, Step
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.principals import Principal
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import UNRESTRICTED
from metadata.security.sasl.machine import SaslError
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.requests.gate import SecurityGate
from storage_node.edge import FrameHandler, TlsTerms
from storage_node.errors import ProtocolError, TlsError
from storage_node.protocol.encoding import encode_auth_request, encode_start_tls_request
from storage_node.protocol.frames import Buffer
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsSocket

CLOSED_EVERY = 50
"""A connection that is let go on is ended after so many frames, as clients do."""


class Fuzzed:
    """What has been sent, and what came of it."""

    def __init__(self) -> None:
        self.sent = 0
        self.refused = 0
        """Connections, handshakes and tokens that were ended, or taken for nothing."""

    def one(self) -> None:
        """Send something damaged. Raises AssertionError where it is heard, and what breaks by it."""
        raise NotImplementedError


class ShutLink(PretendedLink):
    """Says whether anything was let through; TLS never stands on it."""

    secured = False
    certificate: bytes | None = None
    shown: tuple[bytes, ...] | None = None
    between_frames = True

    def __init__(self) -> None:
        super().__init__()
        self.opened = False

    def deliver_to(self, handler: FrameHandler) -> None:
        self.opened = True

    def start_tls(self, terms: object, ended: object) -> None:
        self.closed = True


class Nobody:
    """Lets nobody in."""

    plugin = "sasl"

    def begin(self, facts: ChannelFacts) -> Exchange:
        return self

    def step(self, payload: bytes) -> Step:
        raise SaslError("not this one")

    def still(self, principal: Principal) -> str | None:
        return "not this one"


@asynccontextmanager
async def shut_node(folder: Path) -> AsyncIterator[Bookie]:
    """Run a node that lets nobody in."""
    identity = MintedAuthority().folder(folder / "identity", "node", roles=["node"], hosts=["127.0.0.1"])
    cluster = BookieCluster(folder)
    store = MemoryStore(cluster.tree)
    await LedgerStore(store).format()
    yield await cluster.start(security=secured_by(identity), authenticators={"sasl": Nobody()})
    await cluster.close()
    await store.close()


def gate_frame(r: random.Random) -> bytes:
    """Return what a gate has to judge: a damaged message, or one of those that it may hear."""
    kind = r.random()
    if kind < 0.05:
        return encode_start_tls_request(r.getrandbits(32))[4:]
    if kind < 0.15:
        return encode_auth_request(r.getrandbits(32), r.choice(("sasl", "other", "")), r.randbytes(r.randrange(20)))[4:]
    return body(r, RESPONSES if kind > 0.95 else REQUESTS)


class NodeGate(Fuzzed):
    """Frames at the gate of a node."""

    def __init__(self, bookie: Bookie, r: random.Random) -> None:
        super().__init__()
        self._bookie, self._r = bookie, r
        self._connect()

    def _connect(self) -> None:
        self._link = ShutLink()
        gate = self._bookie._accept(self._link)
        assert isinstance(gate, SecurityGate)
        self._gate = gate

    def one(self) -> None:
        """Send a frame, or a few in one read."""
        r, link, gate = self._r, self._link, self._gate
        try:
            for _ in range(r.choice((1, 1, 1, 2, 3))):
                self.sent += 1
                gate.frame_received(memoryview(gate_frame(r)))
                if link.closed:
                    break
            else:
                gate.batch_done()
        except ProtocolError:
            link.closed = True
        assert not link.opened, f"frame {self.sent} opened the gate"
        assert gate._connection.principal is None
        if link.closed:
            self.refused += 1
            self.end()
            self._connect()

    def end(self) -> None:
        """End the connection."""
        self._gate.link_closed(None)


class SecuredLink(PretendedLink):
    """TLS stands, and the client has shown no certificate."""

    secured = True
    certificate: bytes | None = None
    shown: tuple[bytes, ...] | None = None
    between_frames = True

    def send(self, *buffers: Buffer) -> None:
        """Take answers; they are frames of the other protocol."""
        self.answers += 1

    def deliver_to(self, handler: FrameHandler) -> None:
        raise AssertionError("frames of proxies have one handler")

    def start_tls(self, terms: object, ended: object) -> None:
        raise AssertionError("frames of proxies have TLS from their first byte on")


class ProxyDoor(Fuzzed):
    """Frames at a proxy that takes certificates and tokens, and is shown neither."""

    def __init__(self, folder: Path, r: random.Random) -> None:
        super().__init__()
        self.service = ScriptedService()
        identity = MintedAuthority().folder(folder / "proxy", "proxy-1", roles=["proxy"], hosts=["127.0.0.1"])
        SigningKey.make("ES256").publish(folder / "keys.json")
        tokens = TokenSettings(token_keys=str(folder / "keys.json")).verifier()
        authentication = Authentication(TlsIdentity(TlsFiles.of_folder(identity)), tokens)
        self._server = FramesServer(TcpNetwork(), self.service, authentication=authentication)
        self._r = r
        self._frames = [b"".join(encode_request(7, request)) for request, _ in ASKED.values()]
        self._frames += [b"".join(encode_request(7, Handshake())), b"".join(encode_request(7, Handshake(token=b"a.b")))]
        self._connect()

    def _connect(self) -> None:
        self._link = SecuredLink()
        self._handler = self._server._accept(self._link)

    def one(self) -> None:
        """Send a frame."""
        self.sent += 1
        data = self._r.choice(self._frames)
        if self._r.random() < 0.9:
            data = data[:4] + damaged(self._r, data[4:])
        try:
            self._handler.frame_received(memoryview(data[4:]))
            self._handler.batch_done()
        except ProtocolError:
            self._link.closed = True
        assert not self.service.requests, f"frame {self.sent} was heard: {self.service.requests}"
        if self._link.closed or self.sent % CLOSED_EVERY == 0:
            self.refused += self._link.closed
            self.end()
            self._connect()

    def end(self) -> None:
        """End the connection."""
        self._handler.link_closed(None)


class Handshakes(Fuzzed):
    """Handshakes of which something is damaged: the hello, or what the client says of itself behind it."""

    def __init__(self, folder: Path, r: random.Random) -> None:
        super().__init__()
        authority = MintedAuthority()
        hosts = ["localhost", "127.0.0.1"]
        server = authority.folder(folder / "shaken", "node", roles=["node"], hosts=hosts, revoked=authority.revoke())
        client = authority.folder(folder / "shaking", "client", roles=["client"])
        self._server = TlsIdentity(TlsFiles.of_folder(server)).server_context()
        self._client = TlsIdentity(TlsFiles.of_folder(client)).client_context()
        self._r = r
        self.whole = 0
        """Handshakes that stood: where the damage said nothing else, or was done to nothing."""

    def one(self) -> None:
        """Begin a handshake, damaged, and break it off."""
        self.sent += 1
        r = self._r
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            served = TlsSocket(ours, TlsTerms(self._server, server_side=True))
            into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = self._client.wrap_bio(into, out, server_hostname="localhost")
            _step(client)
            hello = out.read()
            second = r.random() < 0.1
            try:
                theirs.send(hello if second else damaged(r, hello))
                stands = served.shake()
                if second and stands is None:
                    into.write(theirs.recv(65536))
                    _step(client)
                    theirs.send(damaged(r, out.read()))
                    stands = served.shake()
                assert not (stands and not second), f"handshake {self.sent} stands though its hello was damaged"
                self.whole += bool(stands)
                self.refused += not stands
            except TlsError:
                self.refused += 1
            except OSError:
                self.refused += 1  # it was cut while the client still spoke
            finally:
                served.socket.close()


def _step(client: ssl.SSLObject) -> None:
    try:
        client.do_handshake()
    except ssl.SSLError:
        pass  # it waits, or has refused what the damage has made of the server


class Tokens(Fuzzed):
    """Texts that a good token was made into."""

    def __init__(self, folder: Path, r: random.Random) -> None:
        super().__init__()
        key = SigningKey.make("ES256")
        key.publish(folder / "good-keys.json")
        self._good = key.issue(TokenGrant("alice", 3600, UNRESTRICTED)).reveal()
        verifier = TokenSettings(token_keys=str(folder / "good-keys.json")).verifier()
        assert verifier is not None
        self._verify: Callable[[str], object] = verifier.verify
        self._r = r
        self._verify(self._good)

    def one(self) -> None:
        """Show a text."""
        self.sent += 1
        text = damaged(self._r, self._good.encode()).decode("latin-1")
        if text == self._good:
            return
        try:
            proven = self._verify(text)
        except NotAuthenticatedError:
            self.refused += 1
        else:
            raise AssertionError(f"token {self.sent} was taken: {json.dumps(text)}: {proven}")


def damaged(r: random.Random, good: bytes) -> bytes:
    """Return bytes with a few changes."""
    data = bytearray(good or b"\0")
    for _ in range(r.randrange(1, 6)):
        kind, at = r.random(), r.randrange(len(data) or 1)
        if kind < 0.5 and data:
            data[at] = r.randrange(256)
        elif kind < 0.7:
            data[at:at] = r.randbytes(r.randrange(1, 40))
        elif kind < 0.9:
            del data[at : at + r.randrange(1, 20)]
        else:
            data += r.randbytes(r.randrange(2000))
    return bytes(data) or b"\x16"
