"""What a storage node hears before a connection has proved itself: nothing, in any order, by either version."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry
from helpers.bookie.wire_harness import PacketClient
from helpers.security.minting import MintedAuthority, MintedPair, now, replace_file, write_folder
from helpers.waiting import until

from metadata.security.exchange import DISABLED_PLUGIN, ChannelFacts, Step
from metadata.security.identity import REVOKED_FILE, TlsFiles, TlsIdentity
from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.binding import server_end_point
from metadata.security.sasl.machine import SaslError
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.security import node_security
from storage_node.bookie.requests import unproved
from storage_node.bookie.requests.gate import MAX_UNPROVEN
from storage_node.edge import Link, TlsTerms
from storage_node.errors import BookieConfigurationError, SecureConnectionError
from storage_node.protocol import v2
from storage_node.protocol.encoding import (
    encode_auth_request,
    encode_bookie_info_request,
    encode_force_ledger_request,
    encode_read_lac_request,
    encode_start_tls_request,
)
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import AuthResponse, ErrorResponse, StartTlsResponse
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import securable, secure
from storage_node.transport.turns import Turns

NODE = "node-1"


class Notes:
    """An audit trail in memory."""

    def __init__(self) -> None:
        self.lines: list[tuple[bool, str, str | None]] = []
        self.refuses: str | None = None

    def note(self, event: str, *, allowed: bool, reason: str, principal: str | None, peer: str, **more: object) -> None:
        assert event == "connection"
        self.lines.append((allowed, reason, principal))

    def refused(self) -> str:
        return "\n".join(reason for allowed, reason, _ in self.lines if not allowed)


class Moving:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return int((now().timestamp() + self.ahead_s) * 1000)

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s


class Secured:
    """A node with an identity, and clients of many kinds."""

    def __init__(self, cluster: BookieCluster, folder: Path) -> None:
        self.authority = MintedAuthority()
        self.notes = Notes()
        self.clock = Moving()
        self.node_folder = self.authority.folder(folder / "node", NODE, roles=["node"], hosts=["127.0.0.1"])
        self._folder = folder
        self._cluster = cluster
        self._kinds = 0

    async def start(self, mode: str = "on", roles: tuple[str, ...] = (), **more: object) -> Bookie:
        settings = SecuritySettings(security=mode, security_directory=str(self.node_folder))
        return await self._cluster.start(
            security=settings,
            admission=AdmissionSettings(authorized_roles=roles),
            audit=self.notes,
            clock=self.clock,
            **more,  # type: ignore[arg-type]
        )

    def context(self, pair: MintedPair | None = None, authorities: bytes | None = None) -> ssl.SSLContext:
        """Return a client's context: with a good certificate, unless another is given."""
        self._kinds += 1
        pair = pair or self.authority.issue("client-1", roles=["client"])
        folder = write_folder(self._folder / f"client-{self._kinds}", pair, authorities or self.authority.pem)
        return TlsIdentity(TlsFiles.of_folder(folder)).client_context()

    async def enter(self, bookie: Bookie, context: ssl.SSLContext | None = None) -> WireClient:
        """Return a client whose connection is secured."""
        client = await self._cluster.connect(bookie)
        answer = await client.ask(encode_start_tls_request)
        assert answer == StartTlsResponse(answer.txn_id, Status.EOK)
        assert client.link is not None
        await secure(client.link, TlsTerms(context or self.context(), "127.0.0.1"))
        return client


@pytest.fixture
def secured(cluster: BookieCluster, tmp_path: Path) -> Secured:
    return Secured(cluster, tmp_path / "identities")


def silent(bookie: Bookie) -> int:
    """Count connections that have asked nothing yet, as admission sees it."""
    return len(bookie._admission._silent)


async def test_a_secured_connection_is_heard_and_known_by_name(secured: Secured) -> None:
    bookie = await secured.start()
    client = await secured.enter(bookie)
    assert silent(bookie) == 1
    assert await client.add(entry(1, 0)) is Status.EOK
    read = await client.read(1, 0)
    assert read.body is not None
    (connection,) = bookie._connections
    assert connection.principal is not None
    assert (connection.principal.name, connection.principal.roles) == ("client-1", frozenset({"client"}))
    assert secured.notes.lines == [(True, "TLS", "client-1")]
    assert silent(bookie) == 0


async def test_a_plain_connection_hears_no_but_may_still_be_secured(cluster: BookieCluster, secured: Secured) -> None:
    bookie = await secured.start()
    client = await cluster.connect(bookie)
    asked = [
        await client.send_add(entry(1, 0)),
        await client.send_read(1, 0),
        await client.send_read(1, 0, key=KEY, fence=True),
        await client.ask(lambda txn_id: encode_read_lac_request(txn_id, 1)),
        await client.ask(lambda txn_id: encode_force_ledger_request(txn_id, 1)),
        await client.ask(encode_bookie_info_request),
        await client.ask(lambda txn_id: encode_auth_request(txn_id, "sasl", b"")),
    ]
    # No message of the operation's own: no client takes it for what a ledger's password has to do with.
    assert all(isinstance(answer, ErrorResponse) and answer.status is Status.EUA for answer in asked)
    assert not bookie.storage.ledgers
    assert silent(bookie) == 1, "it goes first where there are too many"
    answer = await client.ask(encode_start_tls_request)
    assert answer == StartTlsResponse(answer.txn_id, Status.EOK)
    assert client.link is not None
    await secure(client.link, TlsTerms(secured.context(), "127.0.0.1"))
    assert await client.add(entry(1, 0)) is Status.EOK
    assert {reason for allowed, reason, _ in secured.notes.lines if not allowed} == {"the connection is not secured"}


async def test_version_2_in_plain_is_refused_by_its_code_or_by_the_end(
    cluster: BookieCluster, secured: Secured
) -> None:
    bookie = await secured.start()
    client = await PacketClient.connect(cluster, bookie)
    assert await client.add(entry(1, 0)) is Status.EUA
    assert (await client.read(1, 0)).status is Status.EUA
    client.send(v2.encode_batch_read_request(1, 0, 1, max_count=1, max_bytes=100))
    await until(client.closed.is_set, every_s=0)
    assert not bookie.storage.ledgers
    assert "the connection is not secured" in secured.notes.refused()


async def test_version_2_under_tls_begins_with_a_request_of_version_3(cluster: BookieCluster, secured: Secured) -> None:
    bookie = await secured.start()
    first = await secured.enter(bookie)
    client = PacketClient.over(first)
    assert await client.add(entry(1, 0)) is Status.EOK
    assert (await client.read(1, 0)).status is Status.EOK
    assert (await client.batch(1, 0)).status is Status.EOK


@pytest.mark.parametrize("kind", ["none", "foreign", "impostor", "expired", "not yet", "revoked"])
async def test_certificates_that_are_not_good_end_the_connection(kind: str, secured: Secured) -> None:
    authority = secured.authority
    pair = authority.issue("client-1")
    if kind == "foreign":
        pair = MintedAuthority("Somebody else's").issue("client-1")
    elif kind == "impostor":
        pair = MintedAuthority().issue("client-1")  # by the name of the right one
    elif kind == "expired":
        pair = authority.issue("client-1", ends=now() - timedelta(days=1))
    elif kind == "not yet":
        pair = authority.issue("client-1", begins=now() + timedelta(days=1))
    elif kind == "revoked":
        replace_file(secured.node_folder / REVOKED_FILE, authority.revoke(pair))
    bookie = await secured.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())
    if kind != "none":
        folder = write_folder(secured.node_folder.parent / "bad", pair, authority.pem)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    client = await secured.enter(bookie, context)  # in TLS 1.3 the client has done its part before it is judged
    with pytest.raises(ConnectionError):
        await client.send_add(entry(1, 0))
    await until(lambda: secured.notes.lines, every_s=0)
    words = {
        "none": "showed no certificate",
        "foreign": "issuer",
        "impostor": "signature",
        "expired": "expired",
        "not yet": "not yet valid",
    }
    assert words.get(kind, kind) in secured.notes.refused()
    assert not any(allowed for allowed, _, _ in secured.notes.lines)
    assert not bookie.storage.ledgers


async def test_only_roles_that_are_let_in_are_heard(secured: Secured) -> None:
    bookie = await secured.start(roles=("client", "proxy"))
    stranger = await secured.enter(bookie, secured.context(secured.authority.issue("console-1", roles=["operator"])))
    assert await stranger.send_add(entry(1, 0)) == ErrorResponse(Operation.ADD, stranger._txn, Status.EUA)
    nobody = await secured.enter(bookie, secured.context(secured.authority.issue("nobody")))
    assert (await nobody.send_read(1, 0)).status is Status.EUA
    proxy = await secured.enter(bookie, secured.context(secured.authority.issue("proxy-1", roles=["proxy", "other"])))
    assert await proxy.add(entry(1, 0)) is Status.EOK
    assert (False, "the client's roles (operator) are none of those that are let in (client, proxy)", "console-1") in (
        secured.notes.lines
    )
    assert (True, "TLS", "proxy-1") in secured.notes.lines


async def test_while_both_kinds_are_taken_plain_connections_are_heard_unless_roles_are_asked_for(
    cluster: BookieCluster, secured: Secured
) -> None:
    bookie = await secured.start("optional")
    plain = await cluster.connect(bookie)
    assert await plain.add(entry(1, 0)) is Status.EOK
    assert (await plain.ask(encode_start_tls_request)).status is Status.EBADREQ, "too late: it is heard in plain"
    under_tls = await secured.enter(bookie)
    assert await under_tls.add(entry(1, 1)) is Status.EOK
    assert secured.notes.lines == [(True, "a plain connection", None), (True, "TLS", "client-1")]
    strict = await secured.start("optional", roles=("client",), name="b")
    assert (await (await cluster.connect(strict)).send_add(entry(1, 0))).status is Status.EUA
    assert await (await secured.enter(strict)).add(entry(1, 0)) is Status.EOK


async def test_a_request_behind_start_tls_is_never_heard(cluster: BookieCluster, secured: Secured) -> None:
    bookie = await secured.start()
    client = await cluster.connect(bookie)
    assert client.link is not None
    client.link.send(encode_start_tls_request(1), encode_bookie_info_request(2))
    await until(client.closed.is_set, every_s=0)
    assert "bytes came in plain behind the last frame before TLS" in secured.notes.refused()


async def test_start_tls_under_tls_is_refused(secured: Secured) -> None:
    bookie = await secured.start()
    client = await secured.enter(bookie)
    assert await client.ask(encode_start_tls_request) == ErrorResponse(Operation.START_TLS, client._txn, Status.EBADREQ)
    waiting = await secured.start(name="b", authenticators={"guest": GuestBook()})
    client = await secured.enter(waiting)
    client.send_ask(encode_start_tls_request)
    await until(client.closed.is_set, every_s=0)
    assert "TLS was asked for twice" in secured.notes.refused()


async def test_whoever_goes_on_in_plain_is_cut(cluster: BookieCluster, secured: Secured) -> None:
    bookie = await secured.start()
    client = await cluster.connect(bookie)
    asked = [client.send_add(entry(1, number)) for number in range(MAX_UNPROVEN + 1)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [getattr(answer, "status", None) for answer in answers] == [Status.EUA] * MAX_UNPROVEN + [None]
    await until(client.closed.is_set, every_s=0)


async def test_a_certificate_that_expires_ends_its_connection_and_no_other(secured: Secured) -> None:
    bookie = await secured.start()
    short = secured.authority.issue("short", ends=now() + timedelta(hours=1))
    ending = await secured.enter(bookie, secured.context(short))
    staying = await secured.enter(bookie)
    assert await ending.add(entry(1, 0)) is Status.EOK
    await bookie._watch.look()
    assert await ending.add(entry(1, 1)) is Status.EOK
    secured.clock.ahead_s = 3601
    await bookie._watch.look()
    await until(ending.closed.is_set, every_s=0)
    assert await staying.add(entry(2, 0)) is Status.EOK
    assert "the client's certificate is not good any more: it ended at" in secured.notes.refused()


async def test_a_certificate_that_is_revoked_ends_its_connection_and_no_other(secured: Secured) -> None:
    pair = secured.authority.issue("leaving", roles=["client"])
    replace_file(secured.node_folder / REVOKED_FILE, secured.authority.revoke())
    bookie = await secured.start()
    leaving, staying = await secured.enter(bookie, secured.context(pair)), await secured.enter(bookie)
    assert await leaving.add(entry(1, 0)) is Status.EOK
    replace_file(secured.node_folder / REVOKED_FILE, secured.authority.revoke(pair))
    secured.clock.ahead_s = 10
    await bookie._watch.look()
    await until(leaving.closed.is_set, every_s=0)
    assert await staying.add(entry(2, 0)) is Status.EOK
    assert "has revoked it" in secured.notes.refused()
    again = await secured.enter(bookie, secured.context(pair))
    with pytest.raises(ConnectionError):
        await again.send_add(entry(3, 0))


async def test_the_watch_looks_by_itself(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.bookie.node.security.LOOK_S", 0.01)
    bookie = await secured.start()
    client = await secured.enter(bookie)
    assert await client.add(entry(1, 0)) is Status.EOK
    secured.clock.ahead_s = 100 * 24 * 3600
    await until(client.closed.is_set)


async def test_nothing_is_allowed_that_cannot_be_noted(secured: Secured) -> None:
    secured.notes.refuses = "the disk is full"
    bookie = await secured.start()
    client = await secured.enter(bookie)
    await until(client.closed.is_set, every_s=0)
    assert "the audit trail cannot be written: the disk is full" in secured.notes.refused()


# ------------------------------------------------------------------------------------------- AUTH


class GuestBook:
    """Lets in whoever says a word twice."""

    plugin = "guest"

    def __init__(self) -> None:
        self.facts: list[ChannelFacts] = []
        self.gone = ""

    def begin(self, facts: ChannelFacts) -> GuestBook:
        self.facts.append(facts)
        self._last = b""
        return self

    def step(self, payload: bytes) -> Step:
        if payload == b"wrong":
            raise SaslError("not the word")
        if self._last == payload:
            return Step(b"welcome", Principal("guest-1", Scheme.DIGEST_MD5))
        self._last = payload
        return Step(b"again", None)

    def still(self, principal: Principal) -> str | None:
        return self.gone or None


def said(word: bytes, plugin: str = "guest") -> Callable[[int], bytes]:
    return lambda txn_id: encode_auth_request(txn_id, plugin, word)


@pytest.mark.parametrize("mode", ["on", "off"])
async def test_a_client_that_has_to_prove_itself_is_heard_once_it_has(
    mode: str, cluster: BookieCluster, secured: Secured
) -> None:
    book = GuestBook()
    bookie = await secured.start(mode, authenticators={"guest": book})
    client = await (secured.enter(bookie) if mode == "on" else cluster.connect(bookie))
    assert (await client.send_add(entry(1, 0))).status is Status.EUA
    answer = cast(AuthResponse, await client.ask(said(b"word")))
    assert (answer.status, answer.plugin, answer.payload) == (Status.EOK, "guest", b"again")
    assert (await client.send_read(1, 0)).status is Status.EUA
    assert silent(bookie) == 1
    assert cast(AuthResponse, await client.ask(said(b"word"))).payload == b"welcome"
    assert await client.add(entry(1, 0)) is Status.EOK
    assert silent(bookie) == 0
    (connection,) = bookie._connections
    assert connection.principal == Principal("guest-1", Scheme.DIGEST_MD5)
    assert (True, "AUTH", "guest-1") in secured.notes.lines
    assert book.facts[0].secured is (mode == "on")
    assert (book.facts[0].binding() is not None) is (mode == "on")
    more = cast(AuthResponse, await client.ask(said(b"more")))
    assert more.plugin == DISABLED_PLUGIN, "there is nothing more to prove"
    book.gone = "the user was deleted"
    await bookie._watch.look()
    await until(client.closed.is_set, every_s=0)


async def test_a_proof_is_bound_to_the_certificate_that_was_shown_though_it_was_exchanged_meanwhile(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = GuestBook()
    bookie = await secured.start(authenticators={"guest": book})
    identity = bookie._security.identity
    assert identity is not None
    taken, pairs = identity.server_context, [secured.authority.issue(NODE, hosts=["127.0.0.1"]) for _ in range(2)]

    def exchanged() -> ssl.SSLContext:
        """Return the old context, and have the files change behind it."""
        context = taken()
        if pairs:
            write_folder(secured.node_folder, pairs.pop(), secured.authority.pem)
            assert identity.refresh()
        return context

    monkeypatch.setattr(identity, "server_context", exchanged)
    client = await secured.enter(bookie)
    await client.ask(said(b"word"))
    shown = securable(cast(Link, client.link)).certificate
    assert shown is not None
    assert book.facts[0].binding() == server_end_point(shown)


async def test_a_proof_that_fails_ends_the_connection(secured: Secured) -> None:
    bookie = await secured.start(authenticators={"guest": GuestBook()})
    client = await secured.enter(bookie)
    assert (await client.ask(said(b"", "other"))).status is Status.EUA
    assert (await client.ask(said(b"wrong"))).status is Status.EUA
    await until(client.closed.is_set, every_s=0)
    assert "not the word" in secured.notes.refused()
    assert not any(allowed for allowed, _, _ in secured.notes.lines)


async def test_requests_behind_the_last_proof_are_heard_with_it(secured: Secured) -> None:
    bookie = await secured.start(authenticators={"guest": GuestBook()})
    client = await secured.enter(bookie)
    await client.ask(said(b"word"))
    proof = client.send_ask(said(b"word"))
    added = client.send_add(entry(1, 0))
    assert (await proof).status is Status.EOK
    assert (await added).status is Status.EOK
    assert silent(bookie) == 0


# ------------------------------------------------------------------------------------------- settings


def test_roles_that_nobody_could_show_are_refused_at_the_start(cluster: BookieCluster, secured: Secured) -> None:
    roles = AdmissionSettings(authorized_roles=("client",))
    with pytest.raises(BookieConfigurationError, match="without TLS nobody can show one"):
        node_security(cluster.settings(admission=roles))
    folder = str(secured.node_folder)
    security = SecuritySettings(security="on", security_directory=folder, tls_client_authentication=False)
    with pytest.raises(BookieConfigurationError, match="no certificate is demanded"):
        node_security(cluster.settings(admission=roles, security=security))


async def test_a_client_without_a_certificate_is_heard_where_none_is_demanded(
    cluster: BookieCluster, secured: Secured
) -> None:
    folder = str(secured.node_folder)
    security = SecuritySettings(security="on", security_directory=folder, tls_client_authentication=False)
    bookie = await cluster.start(security=security)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=secured.authority.pem.decode())
    client = await secured.enter(bookie, context)
    assert await client.add(entry(1, 0)) is Status.EOK
    (connection,) = bookie._connections
    assert connection.principal is None


async def test_a_client_does_not_go_on_with_a_node_of_another_name(secured: Secured) -> None:
    bookie = await secured.start()
    client = await secured._cluster.connect(bookie)
    await client.ask(encode_start_tls_request)
    assert client.link is not None
    with pytest.raises(SecureConnectionError, match="is not valid for 'localhost'"):
        await secure(client.link, TlsTerms(secured.context(), "localhost"))
    await until(lambda: secured.notes.lines, every_s=0)
    assert "certificate" in secured.notes.refused()


@pytest.mark.parametrize("apart", [0, 1, 2])
async def test_the_empty_auth_that_java_sends_behind_start_tls_is_answered_under_tls(
    apart: int, cluster: BookieCluster, secured: Secured
) -> None:
    book = GuestBook()
    bookie = await secured.start(authenticators={"guest": book})
    client = await cluster.connect(bookie)
    started = client.send_ask(encode_start_tls_request)
    early = encode_auth_request(2, "guest", b"")
    client._txn = 2
    if apart:
        await started
    answered = client._ask(early[:3] if apart == 2 else early)
    assert client.link is not None
    if apart == 2:
        await until(lambda: client.link is not None and client.link.queued_bytes == 0, every_s=0)
        client.link.send(early[3:])
        await until(lambda: client.link is not None and client.link.queued_bytes == 0, every_s=0)
    assert (await started).status is Status.EOK
    assert not book.facts, "nothing is begun in plain"
    await secure(client.link, TlsTerms(secured.context(), "127.0.0.1"))
    assert cast(AuthResponse, await answered).payload == b"welcome"
    assert book.facts[0].secured
    assert await client.add(entry(1, 0)) is Status.EOK


@pytest.mark.parametrize("version", [3, 2])
async def test_the_empty_auth_that_overtakes_java_s_start_tls_is_answered_under_tls(
    version: int, cluster: BookieCluster, secured: Secured
) -> None:
    """Two threads of Java's send the two: on a busy machine AUTH comes first."""
    book = GuestBook()
    bookie = await secured.start(authenticators={"guest": book})
    client = await cluster.connect(bookie)
    assert client.link is not None
    early = encode_auth_request(1, "guest", b"") if version == 3 else v2.encode_auth("guest", b"")
    client._txn = 1
    answered = client._ask(early) if version == 3 else None
    if answered is None:
        client.link.send(early)
    client._txn = 2
    started = client._ask(encode_start_tls_request(2))
    assert (await started).status is Status.EOK
    assert not book.facts, "nothing is begun in plain"
    await secure(client.link, TlsTerms(secured.context(), "127.0.0.1"))
    if answered is not None:
        assert cast(AuthResponse, await answered).payload == b"welcome"
        assert await client.add(entry(1, 0)) is Status.EOK
    await until(lambda: book.facts, every_s=0)
    assert book.facts[0].secured


@pytest.mark.parametrize("what", ["nothing", "an early AUTH", "and dribbles", "refused requests", "a stuck handshake"])
async def test_whoever_proves_nothing_is_cut_in_time_whatever_it_says(
    what: str, cluster: BookieCluster, secured: Secured
) -> None:
    """From when it came: an early AUTH neither ends its time nor begins it anew."""
    bookie = await secured.start(authenticators={"guest": GuestBook()})
    client = await cluster.connect(bookie)
    await until(lambda: len(bookie._unproved) == 1, every_s=0)
    ((gate, timer),) = bookie._unproved._waiting.items()
    assert client.link is not None
    early = encode_auth_request(1, "guest", b"")
    if what in ("an early AUTH", "and dribbles"):
        client.link.send(early)
        await until(lambda: bookie._gates()[0]._early, every_s=0)
        client.link.send(early[:3] if what == "and dribbles" else b"")
    elif what == "refused requests":
        await client.send_ask(lambda txn: encode_read_lac_request(txn, 1))
    elif what == "a stuck handshake":
        await client.ask(encode_start_tls_request)
    assert list(bookie._unproved._waiting.items()) == [(gate, timer)]
    assert not timer.cancelled()
    assert timer.when() <= asyncio.get_running_loop().time() + bookie._security.handshake_s
    timer._run()  # its time is over
    await until(client.closed.is_set, every_s=0)
    assert "has not proved itself within 10 s" in secured.notes.refused()
    await until(lambda: not bookie._connections, every_s=0)
    assert not len(bookie._unproved)


async def test_those_that_have_proved_nothing_are_bounded_in_number(
    cluster: BookieCluster, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unproved, "MAX_NEWCOMERS", 3)
    bookie = await secured.start(authenticators={"guest": GuestBook()})
    clients = []
    for _ in range(5):
        client = await cluster.connect(bookie)
        assert client.link is not None
        client.link.send(encode_auth_request(1, "guest", b""))
        clients.append(client)
        await until(lambda: bookie._gates() and bookie._gates()[-1]._early, every_s=0)
    await until(lambda: clients[1].closed.is_set(), every_s=0)
    assert [client.closed.is_set() for client in clients] == [True, True, False, False, False]
    assert len(bookie._unproved) == 3
    assert not bookie._unproved._silent, "an AUTH begins a proof"
    assert "others wait to" in secured.notes.refused()


async def test_whoever_has_proved_itself_is_not_waited_for_any_more(secured: Secured) -> None:
    bookie = await secured.start()
    client = await secured.enter(bookie)
    assert await client.add(entry(1, 0)) is Status.EOK
    assert not len(bookie._unproved)
    assert not client.closed.is_set()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", ["a payload", "another plugin", "two", "a read", "long", "noise"])
async def test_whatever_else_comes_behind_start_tls_is_cut(
    kind: str, apart: bool, cluster: BookieCluster, secured: Secured
) -> None:
    book = GuestBook()
    bookie = await secured.start(authenticators={"guest": book})
    client = await cluster.connect(bookie)
    early = encode_auth_request(2, "guest", b"")
    behind = {
        "a payload": encode_auth_request(2, "guest", b"word"),
        "another plugin": encode_auth_request(2, "other", b""),
        "two": early + early,
        "a read": encode_read_lac_request(2, 1),
        "long": encode_auth_request(2, "guest", bytes(1000)),
        "noise": b"\0\0\0\x05noise",
    }[kind]
    assert client.link is not None
    if apart:
        await client.ask(encode_start_tls_request)
        client.link.send(behind)
    else:
        client.link.send(encode_start_tls_request(1), behind)
    await until(client.closed.is_set, every_s=0)
    assert secured.notes.refused()
    assert not book.facts
    assert not any(allowed for allowed, _, _ in secured.notes.lines)


@pytest.mark.parametrize("what", ["START_TLS", "AUTH"])
async def test_what_is_answered_before_a_proof_is_counted_too(
    what: str, cluster: BookieCluster, secured: Secured
) -> None:
    """A peer that reads nothing must not have answers piled up: the gate does not wait for them to leave."""
    if what == "AUTH":
        bookie = await secured.start("optional")
        frame = said(b"", "whichever")
    else:
        bookie = await secured.start("off", authenticators={"guest": GuestBook()})
        frame = encode_start_tls_request
    client = await cluster.connect(bookie)
    answers = await asyncio.gather(*(client.send_ask(frame) for _ in range(MAX_UNPROVEN + 1)), return_exceptions=True)
    assert [isinstance(answer, Exception) for answer in answers] == [False] * MAX_UNPROVEN + [True]
    await until(client.closed.is_set, every_s=0)
    assert "proved nothing" in secured.notes.refused()


@pytest.mark.parametrize("cut", [0, 5])
async def test_the_empty_auth_is_waited_for_where_the_turn_ends_or_the_read_does_in_it(
    cut: int, cluster: BookieCluster, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = GuestBook()
    bookie = await secured.start(authenticators={"guest": book})
    turns = cast(TcpNetwork, bookie._network).turns
    monkeypatch.setattr(Turns, "_share", lambda _: None)
    if not cut:
        turns.share_s = -1.0  # each frame has a turn of its own
    client = await cluster.connect(bookie)
    assert client.link is not None
    early = encode_auth_request(2, "guest", b"")
    client._txn = 1
    started = client._ask(encode_start_tls_request(1), early[:cut] if cut else early)
    client._txn = 2
    answered = client._ask()
    if cut:
        await until(lambda: client.closed.is_set() or any(one._starting for one in bookie._gates()), every_s=0)
        client.link.send(early[cut:])
    assert (await started).status is Status.EOK
    await secure(client.link, TlsTerms(secured.context(), "127.0.0.1"))
    assert cast(AuthResponse, await answered).payload == b"welcome"
