"""gRPC under TLS over real sockets: who is let in, who is not, and calls that end with their proofs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from helpers.security.minting import MintedAuthority, MintedPair, now, replace_file, write_folder
from helpers.serving.scripted_service import ScriptedService
from helpers.waiting import until

from dlspark.serving.bindings import grpc_tls
from dlspark.serving.bindings.grpc_server import GrpcServer
from dlspark.serving.bindings.grpc_tls import NO_PORT, GrpcTls
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.rpc_requests import SERVICE
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
from dlspark.serving.security.tokens import TokenSettings
from metadata.foundation.errors import CallerError
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.restrictions import UNRESTRICTED, Restrictions

UNAUTHENTICATED, UNAVAILABLE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
HOSTS = ["localhost", "127.0.0.1"]


class SecuredGrpc:
    """An authority, a server, and channels of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = MintedAuthority()
        self.authority.folder(folder / "proxy", "proxy-1", hosts=HOSTS)
        self.key = SigningKey.make("ES256")
        self.key.publish(folder / "keys.json")
        self.entered: list[str | None] = []
        self.service = ScriptedService()
        self.now = time.time()
        self.elapsed = 0.0
        self.authentication: Authentication
        self.server: GrpcServer

    async def start(self, *, proves: bool = True, plain_too: bool = False, port: int = NO_PORT) -> None:
        files = replace(TlsFiles.of_folder(self.folder / "proxy"), peers_prove=proves)
        tokens = TokenSettings(token_keys=str(self.folder / "keys.json"), token_leeway_s=0)
        self.authentication = Authentication(
            TlsIdentity(files, clock=lambda: self.now),
            tokens.verifier(now=lambda: self.now, elapsed=lambda: self.elapsed),
            plain_too=plain_too,
            audit=self,
            elapsed=lambda: self.elapsed,
        )
        self.server = GrpcServer(self.service, tls=GrpcTls(self.authentication, port, proves=proves))
        await self.server.start("127.0.0.1", 0)

    refuses = None
    """This is its own audit trail."""

    def note(self, event: str, *, allowed: bool, principal: str | None, **_: object) -> None:
        if allowed:
            self.entered.append(principal)

    def bearer(self, seconds: int = 300, restrictions: Restrictions = UNRESTRICTED) -> tuple[tuple[str, str], ...]:
        token = self.key.issue(TokenGrant("alice", seconds, restrictions), self.now)
        return (("authorization", f"Bearer {token.reveal()}"),)

    @asynccontextmanager
    async def channel(self, name: str | None = None, port: int | None = None, **given: object) -> AsyncIterator[Calls]:
        """With a certificate of this name, or without."""
        pair = self.authority.issue(name, **given) if name is not None else None  # type: ignore[arg-type]
        credentials = grpc.ssl_channel_credentials(
            self.authority.pem, *((pair.key_pem, pair.certificate_pem) if pair is not None else ())
        )
        address = f"localhost:{port or self.server.tls_port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            yield Calls(channel)


class Calls:
    """Calls by their names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def create(self, metadata: tuple[tuple[str, str], ...] = ()) -> int:
        call = self.channel.unary_unary(
            f"/{SERVICE}/Create",
            request_serializer=pb.StreamRequest.SerializeToString,
            response_deserializer=pb.DoneResponse.FromString,
        )
        answer = await asyncio.wait_for(call(pb.StreamRequest(stream="orders"), metadata=metadata), 60)
        return int(answer.status.code)

    def read(self, metadata: tuple[tuple[str, str], ...] = ()) -> object:
        call = self.channel.unary_stream(
            f"/{SERVICE}/Read",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.ReadResponse.FromString,
        )
        return call(pb.ReadRequest(stream="orders", at=pb.ReadRequest.OLDEST), metadata=metadata)

    async def refused(self, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.create(metadata)
        return caught.value


@pytest.fixture(name="secured")
async def _secured(tmp_path: Path) -> AsyncIterator[SecuredGrpc]:
    world = SecuredGrpc(tmp_path)
    try:
        yield world
    finally:
        if hasattr(world, "server"):
            await world.server.close(grace_s=0)


async def test_a_certificate_proves_who_calls_and_a_token_narrows_it(secured: SecuredGrpc) -> None:
    await secured.start()
    restrictions = Restrictions(("orders",), frozenset({"create"}))
    async with secured.channel("client-1", roles=["client"]) as calls:
        assert await calls.create() == pb.Status.SUCCESS
        assert await calls.create(secured.bearer(restrictions=restrictions)) == pb.Status.SUCCESS
    first, second = secured.service.callers
    assert first.principal is not None
    assert (first.principal.name, first.principal.roles, first.restrictions) == ("client-1", {"client"}, None)
    assert (str(second.principal), second.restrictions) == ("alice", restrictions)


async def test_a_token_alone_proves_it_where_no_certificate_is_demanded(secured: SecuredGrpc) -> None:
    await secured.start(proves=False)
    async with secured.channel() as calls:
        assert await calls.create(secured.bearer()) == pb.Status.SUCCESS
        assert (await calls.refused()).code() is UNAUTHENTICATED
    assert [str(one.principal) for one in secured.service.callers] == ["alice"]


async def test_connections_that_are_refused(secured: SecuredGrpc) -> None:
    await secured.start()
    async with secured.channel() as calls:
        assert (await calls.refused(secured.bearer())).code() is UNAVAILABLE  # no certificate, no connection
    foreign = MintedAuthority("Another authority").issue("client-1")
    credentials = grpc.ssl_channel_credentials(secured.authority.pem, foreign.key_pem, foreign.certificate_pem)
    async with grpc.aio.secure_channel(f"localhost:{secured.server.port}", credentials) as channel:
        assert (await Calls(channel).refused()).code() is UNAVAILABLE
    async with grpc.aio.insecure_channel(f"localhost:{secured.server.port}") as channel:
        assert (await Calls(channel).refused(secured.bearer())).code() is UNAVAILABLE
    async with secured.channel("over", begins=now() - timedelta(2), ends=now() - timedelta(1)) as calls:
        assert (await calls.refused()).code() is UNAVAILABLE
    assert secured.service.requests == []


async def test_revoked_and_ended_certificates_are_refused_call_by_call(secured: SecuredGrpc) -> None:
    pair = secured.authority.issue("client-1")
    write_folder(secured.folder / "proxy", secured.authority.issue("proxy-1", hosts=HOSTS), secured.authority.pem)
    await secured.start()
    credentials = grpc.ssl_channel_credentials(secured.authority.pem, pair.key_pem, pair.certificate_pem)
    async with grpc.aio.secure_channel(f"localhost:{secured.server.port}", credentials) as channel:
        calls = Calls(channel)
        assert await calls.create() == pb.Status.SUCCESS
        replace_file(secured.folder / "proxy" / "revoked.pem", secured.authority.revoke(pair))
        secured.authentication.refresh()
        secured.elapsed += 10
        error = await calls.refused()
        assert (error.code(), "revoked" in (error.details() or "")) == (UNAUTHENTICATED, True)
    async with secured.channel("client-2", ends=now() + timedelta(hours=1)) as calls:
        assert await calls.create() == pb.Status.SUCCESS
        secured.now += 3_700
        secured.elapsed += 10
        error = await calls.refused()
        assert (error.code(), "ended" in (error.details() or "")) == (UNAUTHENTICATED, True)


async def test_what_is_below_a_revoked_authority_is_refused_though_its_own_issuer_has_not_revoked_it(
    secured: SecuredGrpc,
) -> None:
    """gRPC's handshake looks at no lists: the certificates that the client has shown are judged call by call."""
    middle = MintedAuthority("Middle", secured.authority)
    pair = middle.issue("client-1", roles=["client"])
    folder = secured.folder / "proxy"
    lists = secured.authority.revoke() + middle.revoke()
    write_folder(folder, secured.authority.issue("proxy-1", hosts=HOSTS), secured.authority.pem, lists)
    await secured.start()
    chain = pair.certificate_pem + middle.pem
    credentials = grpc.ssl_channel_credentials(secured.authority.pem, pair.key_pem, chain)
    address, options = f"localhost:{secured.server.port}", [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        assert await Calls(channel).create() == pb.Status.SUCCESS
        revoked = secured.authority.revoke(MintedPair(middle.certificate, middle.key))
        replace_file(folder / "revoked.pem", revoked + middle.revoke())
        secured.authentication.refresh()
        secured.elapsed += 10
        async with grpc.aio.secure_channel(address, credentials, options) as another:
            for one in (channel, another):
                error = await Calls(one).refused()
                assert error.code() is UNAUTHENTICATED
                assert "CN=Middle, is not good" in (error.details() or "")


async def test_tokens_that_are_refused(secured: SecuredGrpc) -> None:
    await secured.start(proves=False)
    other = SigningKey.make("ES256").issue(TokenGrant("alice", 300, UNRESTRICTED), secured.now).reveal()
    late = secured.key.issue(TokenGrant("alice", 10, UNRESTRICTED), secured.now - 60).reveal()
    ((_, good),) = secured.bearer()
    async with secured.channel() as calls:
        for metadata in (
            (("authorization", f"Bearer {other}"),),
            (("authorization", f"Bearer {late}"),),
            (("authorization", "Bearer "),),
            (("authorization", "Bearer a.b.c"),),
            (("authorization", f"Basic {good}"),),
            (("authorization", good[len("Bearer ") :]),),
            (("authorization", good), ("authorization", good)),
            (("authorization", good), ("authorization", f"Bearer {other}")),
        ):
            error = await calls.refused(metadata)
            assert error.code() is UNAUTHENTICATED
            assert other not in (error.details() or "")
        assert await calls.create((("authorization", good.replace("Bearer", "bearer")),)) == pb.Status.SUCCESS


async def test_a_long_call_ends_with_its_proof(secured: SecuredGrpc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_tls, "LOOK_S", 0.02)
    await secured.start(proves=False)
    secured.service.hold = True
    async with secured.channel() as calls:
        reading = asyncio.ensure_future(_drained(calls.read(secured.bearer(60))))
        await until(lambda: bool(secured.service.held))
        secured.now += 61
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(reading, 60)
    assert caught.value.code() is UNAUTHENTICATED
    assert "token has expired" in (caught.value.details() or "")
    await until(lambda: secured.server.calls_under_way == 0)


async def _drained(call: object) -> None:
    async for _ in call:  # type: ignore[attr-defined]
        pass


async def test_health_is_open_to_who_could_connect_and_reflection_is_not(secured: SecuredGrpc) -> None:
    await secured.start(proves=False)
    async with secured.channel() as calls:
        health = health_pb2_grpc.HealthStub(calls.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(calls.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _drained(reflection.ServerReflectionInfo(iter([asked])))
        assert caught.value.code() is UNAUTHENTICATED
        await _drained(reflection.ServerReflectionInfo(iter([asked]), metadata=secured.bearer()))


async def test_new_certificates_hold_for_the_next_connection_without_a_restart(secured: SecuredGrpc) -> None:
    await secured.start()
    other = MintedAuthority("The next authority")
    async with secured.channel("client-1") as calls:
        assert await calls.create() == pb.Status.SUCCESS
        both = secured.authority.pem + other.pem
        write_folder(secured.folder / "proxy", other.issue("proxy-1", hosts=HOSTS), both)
        secured.authentication.refresh()
        pair = other.issue("client-2")
        credentials = grpc.ssl_channel_credentials(other.pem, pair.key_pem, pair.certificate_pem)
        async with grpc.aio.secure_channel(f"localhost:{secured.server.port}", credentials) as channel:
            assert await Calls(channel).create() == pb.Status.SUCCESS
        assert await calls.create() == pb.Status.SUCCESS  # the old connection lives on


async def test_in_the_middle_of_a_change_each_kind_has_a_port(secured: SecuredGrpc) -> None:
    with pytest.raises(CallerError, match="a port for each kind"):
        await secured.start(plain_too=True)
    await secured.start(plain_too=True, port=0)
    async with grpc.aio.insecure_channel(f"localhost:{secured.server.port}") as channel:
        assert await Calls(channel).create() == pb.Status.SUCCESS
        assert (await Calls(channel).refused(secured.bearer())).code() is UNAUTHENTICATED  # a token in plain
    async with secured.channel("client-1") as calls:
        assert await calls.create() == pb.Status.SUCCESS
        assert await calls.create() == pb.Status.SUCCESS
    assert [str(one.principal) for one in secured.service.callers] == ["None", "client-1", "client-1"]
    assert secured.entered == [None, "client-1"], "each connection is noted once"
