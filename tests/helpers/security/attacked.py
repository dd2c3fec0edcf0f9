"""`Attacked`: a storage node, a proxy's frames and gRPC, and an HTTPS page, secured, with one audit trail, and honest
clients of each. What is attacked in test_attacks.py."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry

from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.bindings.frames_server import FramesServer, frames_network
from dlspark.serving.bindings.grpc_server import GrpcServer
from dlspark.serving.bindings.grpc_tls import GrpcTls
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.process.rights_door import RightsDoor
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.operations import CreateStream, Done
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.protocol.rpc_requests import SERVICE
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.credentials import ClientCredentials
from dlspark.serving.security.tokens import TokenSettings
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry
from helpers.security.minting import MintedAuthority, MintedPair, write_folder
from helpers.serving.scripted_service import ScriptedService
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security import audit
from metadata.security.audit import AuditTrail
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.rights import LogPattern, Rule, RuleBook, RuleSet, Subject, Verb
from metadata.security.secrets import Secret
from metadata.security.settings import AdmissionSettings, SecuritySettings
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.endpoints import _note_refused
from storage_node.edge import TlsTerms
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_add_request, encode_start_tls_request
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, ErrorResponse
from storage_node.transport.http_server import HttpServer, Reply
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import secure

HOSTS = ["localhost", "127.0.0.1"]
DOORS = ("node", "frames", "gRPC", "page")
ROLES = ("client", "operator")
"""Those that are let in."""
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
PAGE = b"a page for who may see it"
OURS, THEIRS = 1, 2
"""Ledgers: of honest clients, and of nobody yet."""
ANSWER_S = 60.0
"""A server that neither answers nor closes within it has left an attacker waiting."""


def rule(text: str) -> Rule:
    """Return the rule `allow WHO VERBS PATTERN`."""
    effect, who, verbs, logs = text.split(" ")
    return Rule(
        effect == "allow", Subject.parse(who), frozenset(map(Verb.parse, verbs.split(","))), LogPattern.parse(logs)
    )


class Attacked:
    """Servers and honest clients; every attack has one of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = MintedAuthority()
        self.server_folder = self.authority.folder(
            folder / "server", "server-1", roles=["proxy"], hosts=HOSTS, revoked=self.authority.revoke()
        )
        self.key = ECKey.generate_key("P-256", {"kid": "ours"})
        (folder / "keys.json").write_text(json.dumps({"keys": [self.key.as_dict(private=False)]}))
        self.revoked_tokens = folder / "revoked"
        self.revoked_tokens.write_text("")
        self.trail = AuditTrail(folder / "audit.log", max_bytes=1 << 20, files=2)
        self.service = ScriptedService()
        self.use("allow user:honest read,write,create orders", "allow user:mallory read,write,create hers")
        self.ahead_s = 0.0
        """How much the servers' clocks are ahead."""
        self.cluster = BookieCluster(folder)
        self.ports: dict[str, int] = {}
        self.ending = AsyncExitStack()
        self.guests = AsyncExitStack()
        """Clients of one test."""
        self.bookie: Bookie
        self._honest: dict[str, Callable[[], Awaitable[bool]]] = {}
        self._seen = 0
        """Bytes of the trail that a test before this one made."""
        self._count = 0
        self._kinds = 0

    # ------------------------------------------------------------------ clocks

    def now_s(self) -> float:
        """Return the servers' time."""
        return time.time() + self.ahead_s

    def now_ms(self) -> int:
        """Return the same for the node."""
        return int(self.now_s() * 1000)

    def elapsed_s(self) -> float:
        """Return a time that only goes on."""
        return asyncio.get_running_loop().time() + self.ahead_s

    def use(self, *rules: str) -> None:
        """Have other rules hold."""
        self.book = RuleBook(RuleSet.of(map(rule, rules)), [Subject.parse("role:operator")])

    async def look(self) -> None:
        """Have the servers see files that have changed, as they do every few seconds, and look at connections."""
        self.ahead_s += 10
        self.authentication.refresh()
        await self.bookie._watch.look()

    # ------------------------------------------------------------------ servers

    async def start(self) -> None:
        """Start all of them, and connect an honest client to each."""
        self.ending.callback(self.trail.close)
        each = audit.REFUSALS_A_SECOND
        self.ending.callback(setattr, audit, "REFUSALS_A_SECOND", each)
        vars(audit)["REFUSALS_A_SECOND"] = 1 << 30  # all attacks come from one host, and each is to have its line
        store = MemoryStore(self.cluster.tree)
        await LedgerStore(store).format()
        await store.close()
        self.bookie = await self.cluster.start(
            security=SecuritySettings(security="on", security_directory=str(self.server_folder)),
            admission=AdmissionSettings(authorized_roles=ROLES),
            audit=self.trail,
            clock=self,
        )
        self.ending.push_async_callback(self.cluster.close)
        self.identity = TlsIdentity(replace(TlsFiles.of_folder(self.server_folder), peers_prove=True), clock=self.now_s)
        tokens = TokenSettings(
            token_keys=str(self.folder / "keys.json"), token_revoked=str(self.revoked_tokens), token_leeway_s=0
        )
        self.authentication = Authentication(
            self.identity,
            tokens.verifier(now=self.now_s, elapsed=self.elapsed_s),
            roles=frozenset(ROLES),
            audit=self.trail,
            elapsed=self.elapsed_s,
        )
        self.door = RightsDoor(self.service, lambda: self.book, demands_proof=True, noted=self.trail, now_s=self.now_s)
        limits = FramesLimits(stuck_ms=200)  # looked at every 50 ms
        frames = FramesServer(frames_network(limits), self.door, limits=limits, authentication=self.authentication)
        rpc = GrpcServer(self.door, tls=GrpcTls(self.authentication, proves=True))
        page = HttpServer(
            lambda _path: Reply(PAGE), tls=self.identity.server_context, refused=partial(_note_refused, self.trail)
        )
        for server, ended in (
            (frames, partial(frames.close, grace_s=0)),
            (rpc, partial(rpc.close, grace_s=0)),
            (page, page.stop),
        ):
            await server.start("127.0.0.1", 0)
            self.ending.push_async_callback(ended)
        self.ports = {
            "node": self.bookie.address.port,
            "frames": frames.port,
            "gRPC": rpc.port,
            "page": page.port,
        }
        await self._connect_honest()
        self.ending.push_async_exit(self.guests.pop_all())

    async def stop(self) -> None:
        """End everything."""
        await self.ending.aclose()

    # ------------------------------------------------------------------ honest clients

    async def _connect_honest(self) -> None:
        pair = self.authority.issue("honest", roles=["client"])
        wire = await self.entered(pair)
        frames = await self.frames_client(self.credentials(pair))
        calls = await self.calls(pair)
        context = self.context(pair)

        async def add() -> bool:
            self._count += 1
            return await wire.add(entry(OURS, self._count)) is Status.EOK

        async def page() -> bool:
            return PAGE in await asyncio.to_thread(self.heard, "page", context)

        async def create() -> bool:
            return await frames.call(CreateStream("orders")) == Done()

        async def rpc() -> bool:
            return await calls.create("orders") == pb.Status.SUCCESS

        self._honest = dict(zip(DOORS, (add, create, rpc, page), strict=True))

    async def unaffected(self, door: str) -> None:
        """Raise AssertionError where the honest client of a door is not served."""
        assert await asyncio.wait_for(self._honest[door](), 60), f"the honest client of {door} is not served"

    # ------------------------------------------------------------------ clients of all kinds

    def context(self, pair: MintedPair | None, *above: MintedPair) -> ssl.SSLContext:
        """Return the context of a client with this certificate, or without; what it thinks of servers is its own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority.pem.decode())
        context.set_alpn_protocols(["h2"])  # as gRPC demands; the others do not look
        if pair is not None:
            self._kinds += 1
            place = self.folder / f"pair-{self._kinds}.pem"
            place.write_bytes(pair.key_pem + pair.certificate_pem + b"".join(one.certificate_pem for one in above))
            context.load_cert_chain(place)
        return context

    def credentials(self, pair: MintedPair, token: Secret | None = None) -> ClientCredentials:
        """Return what a thin client shows."""
        self._kinds += 1
        folder = write_folder(self.folder / f"client-{self._kinds}", pair, self.authority.pem)
        return ClientCredentials(TlsIdentity(TlsFiles.of_folder(folder)), token=token)

    async def entered(self, pair: MintedPair) -> WireClient:
        """Return a client of the node under TLS."""
        client = await self.cluster.connect(self.bookie)
        await client.ask(encode_start_tls_request)
        assert client.link is not None
        await secure(client.link, TlsTerms(self.context(pair), "127.0.0.1"))
        return client

    async def frames_client(self, credentials: ClientCredentials) -> FramesClient:
        """Return a thin client."""
        address = f"127.0.0.1:{self.ports['frames']}"
        client = await FramesClient.connect(TcpNetwork(), address, timeout_ms=60_000, credentials=credentials)
        self.guests.push_async_callback(client.close)
        return client

    async def calls(self, pair: MintedPair) -> Calls:
        """Return a client of gRPC."""
        credentials = grpc.ssl_channel_credentials(self.authority.pem, pair.key_pem, pair.certificate_pem)
        channel = grpc.aio.secure_channel(f"localhost:{self.ports['gRPC']}", credentials)
        self.guests.push_async_callback(channel.close)
        return Calls(channel)

    def token(
        self, claims: dict[str, object], header: dict[str, object] | None = None, key: ECKey | None = None
    ) -> str:
        """Return a token that a key has signed, whatever it says; claims and headers of None are left out."""
        now_s = int(self.now_s())
        good = {"iss": "dlspark", "aud": "dlspark", "sub": "mallory", "roles": ["client"], "nbf": now_s - 5}
        said = {**good, "exp": now_s + 300, **claims}
        head = {"alg": "ES256", "kid": "ours", "typ": "JWT", **(header or {})}
        parts = [{name: one for name, one in part.items() if one is not None} for part in (head, said)]
        body = ".".join(base64_of(json.dumps(part).encode()) for part in parts)
        return f"{body}.{base64_of(JWSRegistry.algorithms['ES256'].sign(body.encode(), key or self.key))}"

    # ------------------------------------------------------------------ bytes

    def request(self, door: str) -> bytes:
        """Return a request that is answered where it is heard."""
        if door == "node":
            body = entry(THEIRS, 0)
            head, tail = encode_add_request(1, THEIRS, 0, KEY, len(body))
            return head + body + tail
        if door == "frames":
            return b"".join(encode_request(1, CreateStream("orders")))
        return HTTP2 if door == "gRPC" else b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

    def dial(self, door: str) -> socket.socket:
        """Return a blocking socket on which TLS is next."""
        sock = socket.create_connection(("127.0.0.1", self.ports[door]), ANSWER_S)
        if door == "node":
            sock.sendall(encode_start_tls_request(1))
            head = sock.recv(4, socket.MSG_WAITALL)
            sock.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        return sock

    def heard(self, door: str, context: ssl.SSLContext) -> bytes:
        """Return what a client of this kind is answered under TLS, b"" where it is not heard. Blocks."""
        with self.dial(door) as sock:
            try:
                with context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
                    tls.sendall(self.request(door))
                    return until_answered(tls, 2 if door == "page" else 1)
            except (ssl.SSLError, ConnectionError):
                return b""

    def thrown(self, door: str, data: bytes, *, plain: bool = False) -> bytes:
        """Return what is answered to bytes that are no handshake (plain: nor is there START_TLS before). Blocks."""
        with socket.create_connection(("127.0.0.1", self.ports[door]), ANSWER_S) if plain else self.dial(door) as sock:
            found = b""
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(65536):
                    found += piece
            except TimeoutError:
                raise
            except OSError:
                pass  # it was cut already
            return found

    # ------------------------------------------------------------------ the audit trail

    def refusals(self) -> list[dict[str, object]]:
        """Return the refused ones of the trail's lines since `forget`."""
        self.trail.flush()
        with (self.folder / "audit.log").open("rb") as file:
            file.seek(self._seen)
            lines = [json.loads(line) for line in file]
        return [line for line in lines if line["result"] == "refused"]

    async def forget(self) -> None:
        """Send the clients of a test away, and count what was noted and asked until now no more."""
        await self.guests.aclose()
        self.trail.flush()
        self._seen = (self.folder / "audit.log").stat().st_size
        self.service.requests.clear()
        self.service.callers.clear()


class Calls:
    """A client of gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def create(self, stream: str, *metadata: tuple[str, str]) -> int:
        """Return the status of what was answered. Raises AioRpcError."""
        return await self.ask("Create", pb.StreamRequest(stream=stream), *metadata)

    async def ask(self, method: str, message: object, *metadata: tuple[str, str]) -> int:
        """Ask whatever has a status alone as its answer."""
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(message).SerializeToString,  # type: ignore[attr-defined]
            response_deserializer=pb.DoneResponse.FromString,
        )
        answer = await asyncio.wait_for(call(message, metadata=metadata), ANSWER_S)
        return int(answer.status.code)


def base64_of(data: bytes) -> str:
    """Return it as tokens have it."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def until_answered(sock: socket.socket, pieces: int) -> bytes:
    """Read so many pieces, or to the end."""
    found = b""
    for _ in range(pieces):
        piece = sock.recv(65536)
        if not piece:
            break
        found += piece
    return found


def node_refuses(answer: bytes) -> bool:
    """Return whether the node's answers, plain frames, are refusals alone."""
    while answer:
        size = int.from_bytes(answer[:4], "big")
        response = decode_response(memoryview(answer[4 : 4 + size]))
        if not (isinstance(response, ErrorResponse | AddResponse) and response.status is Status.EUA):
            return False
        answer = answer[4 + size :]
    return True


def issued_by(leaf: MintedPair, name: str, **given: object) -> MintedPair:
    """Return a certificate that was signed with the key of one which may sign nothing."""
    false = MintedAuthority()
    false.key, false.name = leaf.key, leaf.certificate.subject
    return false.issue(name, **given)  # type: ignore[arg-type]


def by_itself(name: str) -> MintedPair:
    """Return a certificate that its own key has signed."""
    made = MintedAuthority(name)
    return MintedPair(made.certificate, made.key)
