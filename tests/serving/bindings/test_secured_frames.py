"""Frames under TLS over real sockets: who is let in, who is not, and sessions that end with their proofs."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers.security.minting import MintedAuthority, MintedPair, now, replace_file, write_folder
from helpers.serving.scripted_service import NoRuns, ScriptedService
from helpers.waiting import until

from dlspark.errors import ProxyUnreachableError, SettingsError
from dlspark.serving.bindings import frames_client, frames_sessions
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.bindings.frames_server import FramesServer, frames_network
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    CreateStream,
    Done,
    Handshake,
    ReadBatch,
    ReadFrom,
    Refusal,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.credentials import ClientCredentials, client_credentials
from dlspark.serving.security.settings import ProxySecurity
from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
from dlspark.serving.security.tokens import TokenSettings
from metadata.security.identity import CERTIFICATE_FILE, REVOKED_FILE, TlsFiles, TlsIdentity
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import UNRESTRICTED, Restrictions
from metadata.security.secrets import Secret
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.transport.tcp import TcpNetwork

HOSTS = ["localhost", "127.0.0.1"]
STREAM = CreateStream("orders")


class Notes:
    """The audit trail of a test."""

    refuses = None

    def __init__(self) -> None:
        self.refused: list[tuple[str, str | None]] = []
        self.entered: list[tuple[str, str | None]] = []

    def note(self, event: str, *, allowed: bool, reason: str, principal: str | None, **_: object) -> None:
        (self.entered if allowed else self.refused).append((reason, principal))


class Secured:
    """An authority, a proxy's binding, and clients of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = MintedAuthority()
        self.authority.folder(folder / "proxy", "proxy-1", roles=["proxy"], hosts=HOSTS)
        self.key = SigningKey.make("ES256")
        self.key.publish(folder / "keys.json")
        self.service = ScriptedService()
        self.notes = Notes()
        self.now = time.time()
        self.elapsed = 0.0
        self.authentication: Authentication
        self.server: FramesServer

    async def start(
        self, *, proves: bool = False, plain_too: bool = False, roles: frozenset[str] = frozenset(), **limits: int
    ) -> None:
        files = replace(TlsFiles.of_folder(self.folder / "proxy"), peers_prove=proves)
        revoked = self.folder / "revoked"
        revoked.write_text("")
        tokens = TokenSettings(token_keys=str(self.folder / "keys.json"), token_revoked=str(revoked), token_leeway_s=0)
        self.authentication = Authentication(
            TlsIdentity(files, clock=lambda: self.now),
            tokens.verifier(now=lambda: self.now, elapsed=lambda: self.elapsed),
            plain_too=plain_too,
            roles=roles,
            audit=self.notes,
            elapsed=lambda: self.elapsed,
        )
        bounds = FramesLimits(**{"stuck_ms": 200, **limits})  # looked at every 50 ms
        self.server = FramesServer(
            frames_network(bounds), self.service, limits=bounds, authentication=self.authentication
        )
        await self.server.start("127.0.0.1", 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def token(self, seconds: int = 300, restrictions: Restrictions = UNRESTRICTED, **given: Any) -> Secret:
        return self.key.issue(TokenGrant("alice", seconds, restrictions, **given), self.now)

    def credentials(self, name: str | None = None, token: Secret | None = None, **given: Any) -> ClientCredentials:
        """Of a client with a certificate, or without."""
        files = TlsFiles(authorities=str(self.folder / "proxy" / "authorities.pem"))
        if name is not None:
            files = TlsFiles.of_folder(self.authority.folder(self.folder / name, name, **given))
        return ClientCredentials(TlsIdentity(files), token=token)

    async def client(self, credentials: ClientCredentials | None) -> FramesClient:
        return await FramesClient.connect(TcpNetwork(), self.address, timeout_ms=60_000, credentials=credentials)


@pytest.fixture(name="secured")
async def _secured(tmp_path: Path) -> AsyncIterator[Secured]:
    world = Secured(tmp_path)
    try:
        yield world
    finally:
        if hasattr(world, "server"):
            await world.server.close(grace_s=0)


@asynccontextmanager
async def connected(world: Secured, credentials: ClientCredentials | None) -> AsyncIterator[FramesClient]:
    client = await world.client(credentials)
    try:
        yield client
    finally:
        await client.close()


async def refused(world: Secured, credentials: ClientCredentials | None) -> str:
    """Ask what must not be answered; return why it was not."""
    try:
        client = await world.client(credentials)
    except (ProxyUnreachableError, NotAuthenticatedError) as error:
        return error.message
    try:
        answer = await client.call(STREAM)
        assert isinstance(answer, Refusal), answer
        return answer.message
    finally:
        await client.close()


async def test_a_certificate_proves_who_the_client_is(secured: Secured) -> None:
    await secured.start(proves=True)
    async with connected(secured, secured.credentials("client-1", roles=["client"])) as client:
        assert await client.call(STREAM) == Done()
    caller = secured.service.callers[-1]
    assert caller.principal is not None
    assert (caller.principal.name, caller.principal.roles, caller.restrictions) == ("client-1", {"client"}, None)
    assert secured.notes.refused == []


async def test_a_token_proves_it_without_a_certificate_and_narrows_it(secured: Secured) -> None:
    await secured.start()
    restrictions = Restrictions(("orders",), frozenset({"read"}))
    async with connected(secured, secured.credentials(token=secured.token(restrictions=restrictions))) as client:
        assert await client.call(STREAM) == Done()
    caller = secured.service.callers[-1]
    assert caller.principal is not None
    assert (caller.principal.name, caller.restrictions) == ("alice", restrictions)
    assert all(request.token is None for request in secured.service.requests if isinstance(request, Handshake))


async def test_a_token_takes_the_place_of_a_certificate(secured: Secured) -> None:
    await secured.start(proves=True)
    async with connected(secured, secured.credentials("client-1", secured.token())) as client:
        assert await client.call(STREAM) == Done()
    by_certificate, (by_token, alice) = secured.notes.entered
    assert by_certificate == ("it has shown a certificate", "client-1")
    assert alice == "alice"
    assert by_token.startswith("it has shown a token (")  # its id, by which it can be revoked
    assert str(secured.service.callers[-1].principal) == "alice"


async def test_who_comes_without_tls_in_the_middle_of_a_change_is_noted(secured: Secured) -> None:
    """The page says to wait until the trail shows nobody without a principal; it showed nobody from the start."""
    await secured.start(plain_too=True)
    async with connected(secured, None) as client:
        assert await client.call(STREAM) == Done()
    ((reason, principal),) = secured.notes.entered
    assert "no TLS" in reason
    assert principal is None


# ---------------------------------------------------------------------- who is not let in


async def _asks_nothing_first(self: FramesClient, credentials: ClientCredentials, timeout_ms: int) -> None:
    """What a client of another project does, or an attacker."""


async def test_nobody_is_refused_request_by_request_and_then_closed(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramesClient, "_prove", _asks_nothing_first)
    await secured.start(first_request_ms=60_000)
    client = await secured.client(secured.credentials())
    for request in (STREAM, Handshake(), WriteRecords("orders", (b"x",))):
        answer = await client.call(request)
        assert isinstance(answer, Refusal)
        assert isinstance(error_of(answer, stream=None), NotAuthenticatedError)
        assert answer.code is StatusCode.REQUEST_DENIED
    for one in secured.server._connections:
        one.excuse(-61)  # as time that has passed
    await until(lambda: client.closed)
    assert secured.service.requests == []
    assert len(secured.notes.refused) >= 3


async def test_certificates_that_are_refused(secured: Secured, tmp_path: Path) -> None:
    await secured.start(proves=True, roles=frozenset({"client"}))
    foreign = MintedAuthority("Another authority")
    write_folder(tmp_path / "foreign", foreign.issue("client-1", roles=["client"]), secured.authority.pem)
    assert "has none" in await refused(secured, secured.credentials())
    unknown = ClientCredentials(TlsIdentity(TlsFiles.of_folder(tmp_path / "foreign")))
    assert "does not know its authority" in await refused(secured, unknown)
    assert "roles" in await refused(secured, secured.credentials("node-1", roles=["node"]))
    reasons = [reason for reason, _ in secured.notes.refused]
    assert sum("no certificate" in one for one in reasons) == 1
    assert sum("certificate is refused" in one for one in reasons) == 1
    assert any("roles" in reason and name == "node-1" for reason, name in secured.notes.refused)
    assert secured.service.requests == []
    async with connected(secured, secured.credentials("client-1", roles=["client"])) as client:
        assert await client.call(STREAM) == Done()  # others are not touched by that


async def test_a_certificate_that_ended_is_refused(secured: Secured) -> None:
    await secured.start(proves=True)
    credentials = secured.credentials("client-1", ends=now() + timedelta(hours=1))
    secured.now += 7_200  # the proxy's clock; OpenSSL's own is not ours to set
    with pytest.raises(NotAuthenticatedError, match="ended"):
        await secured.client(credentials)
    assert secured.service.requests == []


async def test_a_revoked_certificate_is_refused(secured: Secured) -> None:
    pair = secured.authority.issue("client-1", roles=["client"])
    write_folder(secured.folder / "client-1", pair, secured.authority.pem)
    replace_file(secured.folder / "proxy" / "revoked.pem", secured.authority.revoke(pair))
    await secured.start(proves=True)
    credentials = ClientCredentials(TlsIdentity(TlsFiles.of_folder(secured.folder / "client-1")))
    assert "is revoked" in await refused(secured, credentials)
    assert secured.service.requests == []


async def test_tokens_that_are_refused(secured: Secured) -> None:
    await secured.start()
    other = SigningKey.make("ES256")
    for token in (
        other.issue(TokenGrant("alice", 300, UNRESTRICTED), secured.now),
        secured.token(issuer="evil"),
        secured.token(audience="others"),
        secured.key.issue(TokenGrant("alice", 10, UNRESTRICTED), secured.now - 60),
        secured.key.issue(TokenGrant("alice", 10, UNRESTRICTED), secured.now + 600),
        secured.token(seconds=365 * 86_400),
        Secret("garbage"),
        Secret("a.b.c"),
        Secret("é" * 20),
        Secret("x" * 60_000),
    ):
        said = await refused(secured, secured.credentials(token=token))
        assert "token is refused" in said
        assert token.reveal() not in said
    assert secured.service.requests == []
    async with connected(secured, secured.credentials(token=secured.token())) as client:
        assert await client.call(STREAM) == Done()


@pytest.mark.parametrize("runs", [NoRuns(), None], ids=["together", "alone"])
async def test_whoever_guesses_tokens_is_closed_after_three(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, runs: NoRuns | None
) -> None:
    """However many of them come at once, and with a good one behind them."""
    monkeypatch.setattr(FramesClient, "_prove", _asks_nothing_first)
    await secured.start(first_request_ms=3_600_000)  # else the end of that time would close it
    secured.server.runs = runs
    client = await secured.client(secured.credentials())
    tokens = [*(b"a.b.%d" % number for number in range(40)), secured.token().reveal().encode()]
    answers = await asyncio.gather(*(client.call(Handshake(token=token)) for token in tokens))
    assert all(isinstance(answer, Refusal) for answer in answers)
    await until(lambda: client.closed)
    assert secured.service.requests == []
    assert secured.notes.entered == []
    assert len(secured.notes.refused) == frames_sessions.MAX_FAILURES


async def test_a_client_does_not_trust_another_proxy(secured: Secured, tmp_path: Path) -> None:
    await secured.start()
    stranger = MintedAuthority("Another authority").folder(tmp_path / "stranger", "client-1")
    with pytest.raises(NotAuthenticatedError, match="certificate is refused"):
        await secured.client(ClientCredentials(TlsIdentity(TlsFiles.of_folder(stranger))))
    assert secured.service.requests == []


async def test_a_client_does_not_trust_a_proxy_of_another_name(secured: Secured) -> None:
    secured.authority.folder(secured.folder / "proxy", "proxy-1", hosts=["elsewhere.example"])
    await secured.start()
    with pytest.raises(NotAuthenticatedError, match=r"(?i)certificate is refused.*(IP address|hostname) mismatch"):
        await secured.client(secured.credentials(token=secured.token()))
    assert secured.service.requests == []


async def test_plain_bytes_are_refused_where_tls_is_demanded(secured: Secured) -> None:
    await secured.start()
    client = await secured.client(None)
    answer = await client.call(WriteRecords("orders", (b"x",)))
    assert isinstance(answer, Refusal)
    error = error_of(answer, stream=None)
    assert isinstance(error, NotAuthenticatedError), "nothing is in doubt"
    assert "the other end speaks TLS" in error.message
    assert "security=on" in error.message
    assert secured.service.requests == []


async def test_a_client_never_falls_back_to_plain(secured: Secured) -> None:
    plain = FramesServer(TcpNetwork(), secured.service)
    await plain.start("127.0.0.1", 0)
    try:
        with pytest.raises(
            NotAuthenticatedError, match=r"could not be secured: the peer does not speak TLS.*security=off"
        ):
            await FramesClient.connect(
                TcpNetwork(), f"127.0.0.1:{plain.port}", credentials=secured.credentials(token=secured.token())
            )
    finally:
        await plain.close(grace_s=0)
    assert secured.service.requests == []


async def test_old_versions_of_tls_are_refused(secured: Secured) -> None:
    await secured.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1

    def shake() -> None:
        with socket.create_connection(("127.0.0.1", secured.server.port), 60) as sock, context.wrap_socket(sock):
            pass

    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(shake)


async def test_a_token_in_plain_is_refused_wherever_it_comes(secured: Secured) -> None:
    await secured.start(plain_too=True)
    plain = FramesServer(TcpNetwork(), secured.service)
    await plain.start("127.0.0.1", 0)
    try:
        for port in (secured.server.port, plain.port):
            client = await FramesClient.connect(TcpNetwork(), f"127.0.0.1:{port}", timeout_ms=60_000)
            answer = await client.call(Handshake(token=secured.token().reveal().encode()))
            assert isinstance(answer, Refusal)
            assert "without TLS" in answer.message
            await client.close()
    finally:
        await plain.close(grace_s=0)
    assert secured.service.requests == []


async def test_both_kinds_are_taken_on_one_port_in_the_middle_of_a_change(secured: Secured) -> None:
    await secured.start(plain_too=True)
    async with connected(secured, None) as client:
        assert await client.call(STREAM) == Done()
    assert secured.service.callers[-1].principal is None
    async with connected(secured, secured.credentials("client-1")) as client:
        assert await client.call(STREAM) == Done()
    assert str(secured.service.callers[-1].principal) == "client-1"


# ---------------------------------------------------------------------- sessions that end


async def test_a_session_ends_when_its_token_does(secured: Secured) -> None:
    await secured.start()
    client = await secured.client(secured.credentials(token=secured.token(60)))
    assert await client.call(STREAM) == Done()
    secured.service.hold = True
    waiting = asyncio.ensure_future(client.call(ReadBatch("orders", ReadFrom.OLDEST)))
    await until(lambda: bool(secured.service.held))
    secured.now += 61
    answer = await asyncio.wait_for(waiting, 60)
    assert isinstance(answer, Refusal)  # a read that waited: not done, and to be asked again
    assert (answer.code, answer.message.count("token has expired")) == (StatusCode.SERVICE_UNAVAILABLE, 1)
    await until(lambda: client.closed)  # the end comes behind the answer, in a read of its own or not
    assert any("token has expired" in reason and name == "alice" for reason, name in secured.notes.refused)


async def test_writes_under_way_are_answered_when_a_session_ends(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_sessions, "OVER_S", 3_600)
    await secured.start()
    client = await secured.client(secured.credentials(token=secured.token(60)))
    secured.service.hold, secured.service.served_anyway = True, (CreateStream,)
    waiting = asyncio.ensure_future(client.call(WriteRecords("orders", (b"x",))))
    await until(lambda: bool(secured.service.held))
    secured.now += 61
    late = await client.call(STREAM)
    while late == Done():
        late = await client.call(STREAM)
    assert isinstance(late, Refusal)
    assert (late.code, client.closed) == (StatusCode.SERVICE_UNAVAILABLE, False)
    secured.service.release()
    assert not isinstance(await waiting, Refusal)
    await until(lambda: client.closed)


async def test_a_renewed_token_keeps_a_session(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    await secured.start()
    monkeypatch.setattr(frames_client, "LOOK_S", 0.02)
    monkeypatch.setattr("dlspark.serving.security.credentials.LOOK_S", 0.0)
    place = secured.folder / "token"
    replace_file(place, secured.token(60).reveal().encode())
    identity = TlsIdentity(TlsFiles(authorities=str(secured.folder / "proxy" / "authorities.pem")))
    async with connected(secured, ClientCredentials(identity, str(place))) as client:
        for _ in range(5):
            before = secured.service.requests.copy()
            secured.now += 50
            replace_file(place, secured.token(60).reveal().encode())
            await until(lambda before=before: secured.service.requests != before)  # type: ignore[misc]
            assert await client.call(STREAM) == Done()
        # Another principal's is refused, and the old one holds on.
        stolen = secured.key.issue(TokenGrant("mallory", 60, UNRESTRICTED), secured.now)
        answer = await client.call(Handshake(token=stolen.reveal().encode()))
        assert isinstance(answer, Refusal)
        assert "another principal" in answer.message
        for _ in range(2 * frames_sessions.MAX_FAILURES):  # in a long life: each is forgotten with the next good one
            assert isinstance(await client.call(Handshake(token=stolen.reveal().encode())), Refusal)
            good = await client.call(Handshake(token=secured.token(60).reveal().encode()))
            assert not isinstance(good, Refusal)
        assert await client.call(STREAM) == Done()
        assert str(secured.service.callers[-1].principal) == "alice"


async def test_a_token_that_is_revoked_ends_its_session(secured: Secured) -> None:
    await secured.start()
    token = secured.token()
    client = await secured.client(secured.credentials(token=token))
    assert await client.call(STREAM) == Done()
    claims = json.loads(base64.urlsafe_b64decode(token.reveal().split(".")[1] + "=="))
    (secured.folder / "revoked").write_text(claims["jti"] + "\n")
    secured.authentication.refresh()
    await until(lambda: client.closed)
    assert "revoked" in await refused(secured, secured.credentials(token=token))


async def test_a_revocation_reaches_an_open_connection_and_no_other(secured: Secured) -> None:
    await secured.start(proves=True)
    pair = secured.authority.issue("client-1")
    write_folder(secured.folder / "client-1", pair, secured.authority.pem)
    client = await secured.client(ClientCredentials(TlsIdentity(TlsFiles.of_folder(secured.folder / "client-1"))))
    other = await secured.client(secured.credentials("client-2"))
    assert await client.call(STREAM) == Done()
    replace_file(secured.folder / "proxy" / "revoked.pem", secured.authority.revoke(pair))
    secured.authentication.refresh()
    secured.elapsed += 10
    await until(lambda: client.closed)
    assert any("revoked" in reason and name == "client-1" for reason, name in secured.notes.refused)
    assert await other.call(STREAM) == Done()
    await other.close()


async def test_an_authority_between_that_is_revoked_ends_what_is_open_below_it_and_no_other(secured: Secured) -> None:
    await secured.start(proves=True)
    between = MintedAuthority("Between", secured.authority, says_key=True)
    pair = between.issue("client-1", roles=["client"])
    folder = write_folder(secured.folder / "below", pair, secured.authority.pem)
    replace_file(folder / CERTIFICATE_FILE, pair.certificate_pem + between.pem)
    below = ClientCredentials(TlsIdentity(TlsFiles.of_folder(folder)))
    async with (
        connected(secured, below) as client,
        connected(secured, secured.credentials("client-2", roles=["client"])) as other,
    ):
        assert await client.call(STREAM) == await other.call(STREAM) == Done()
        lists = between.revoke() + secured.authority.revoke(MintedPair(between.certificate, between.key))
        replace_file(secured.folder / "proxy" / REVOKED_FILE, lists)
        secured.authentication.refresh()
        secured.elapsed += 10
        await until(lambda: client.closed)
        assert await other.call(STREAM) == Done()


async def test_a_certificate_that_ends_ends_its_session(secured: Secured) -> None:
    await secured.start(proves=True)
    client = await secured.client(secured.credentials("client-1", ends=now() + timedelta(hours=1)))
    assert await client.call(STREAM) == Done()
    secured.now += 3_700
    secured.elapsed += 10
    await until(lambda: client.closed)


async def test_new_certificates_of_the_proxy_hold_for_the_next_connection(secured: Secured) -> None:
    await secured.start(proves=True)
    client = await secured.client(secured.credentials("client-1"))
    secured.authority.folder(secured.folder / "proxy", "proxy-2", hosts=HOSTS)
    secured.authentication.refresh()
    context = secured.credentials("client-2").context()

    def name_shown() -> object:
        with (
            socket.create_connection(("127.0.0.1", secured.server.port), 60) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
        ):
            return dict(part[0] for part in tls.getpeercert()["subject"])["commonName"]  # type: ignore

    assert await asyncio.to_thread(name_shown) == "proxy-2"
    assert await client.call(STREAM) == Done()
    await client.close()


async def test_a_client_with_a_renewed_certificate_is_stale_until_it_connects_anew(secured: Secured) -> None:
    await secured.start(proves=True)
    credentials = secured.credentials("client-1")
    async with connected(secured, credentials) as client:
        assert not client.stale
        secured.authority.folder(secured.folder / "client-1", "client-1")
        credentials._look_at = 0.0
        assert client.stale
        waiting = asyncio.ensure_future(client.call(STREAM))
        await asyncio.sleep(0)
        client.finish()
        assert await waiting == Done()
        await until(lambda: client.closed)


# ---------------------------------------------------------------------- whatever is sent


@pytest.mark.torture
async def test_no_bytes_get_past_the_door_or_bring_it_down(
    secured: Secured, rounds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramesClient, "_prove", _asks_nothing_first)
    await secured.start()
    seeded = random.Random(7)
    context = secured.credentials().context()
    hello = _client_hello(context)

    async def send(data: bytes, *, under_tls: bool) -> None:
        try:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", secured.server.port, ssl=context if under_tls else None
            )
            writer.write(data)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass

    for _ in range(rounds or 4):
        batch = []
        for _ in range(10):
            begun = bytearray(hello[: seeded.randrange(1, len(hello))])
            begun[seeded.randrange(len(begun))] ^= 1 << seeded.randrange(8)
            batch.append(send(bytes(begun) if seeded.random() < 0.7 else seeded.randbytes(200), under_tls=False))
            frame = bytearray(b"".join(encode_request(seeded.randrange(1, 9), Handshake(token=seeded.randbytes(40)))))
            frame[seeded.randrange(len(frame))] ^= 1 << seeded.randrange(8)
            unproven = b"".join(encode_request(1, WriteRecords("orders", (b"x",))))
            batch.append(send(bytes(frame) + unproven, under_tls=True))
        await asyncio.gather(*batch)
    assert secured.service.requests == []
    monkeypatch.undo()
    async with connected(secured, secured.credentials(token=secured.token())) as client:
        assert await client.call(STREAM) == Done()


def _client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# ---------------------------------------------------------------------- settings


def test_a_proxy_without_what_it_needs_does_not_start(tmp_path: Path) -> None:
    on = SecuritySettings(security="on", security_directory=str(tmp_path))
    with pytest.raises(SettingsError):
        ProxySecurity(on).authentication()
    for wrong in (
        ProxySecurity(tokens=TokenSettings(token_keys="/keys.json")),
        ProxySecurity(on, tokens=TokenSettings(token_keys="/keys.json", token_audience="")),
        ProxySecurity(on, tokens=TokenSettings(token_keys="/keys.json", token_algorithms=("none",))),
    ):
        with pytest.raises(SettingsError):
            wrong.check()
    assert ProxySecurity(admission=AdmissionSettings()).authentication() is None


def test_a_token_without_tls_is_refused_where_it_is_set(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="security is off"):
        client_credentials(SecuritySettings(), str(tmp_path / "token"), {})
    assert client_credentials(SecuritySettings(), "", {}) is None
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "client", "client-1")
    found = client_credentials(SecuritySettings(), "", {"DLSPARK_SECURITY": str(folder), "DLSPARK_TOKEN": "a.b.c"})
    assert found is not None
    assert found.token == Secret("a.b.c")
    with pytest.raises(SettingsError, match="cannot be read"):
        client_credentials(SecuritySettings(), str(tmp_path / "none"), {"DLSPARK_SECURITY": str(folder)})
