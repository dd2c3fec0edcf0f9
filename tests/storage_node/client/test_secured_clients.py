"""Ledger clients on secured storage nodes: what is refused, in which words, and that nothing is sent or ended by it."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from helpers.bookie.nodes import SETTINGS, Nodes, running
from helpers.security.minting import MintedAuthority, MintedPair, now, replace_file, secured_by, write_folder
from helpers.waiting import until

from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.security.identity import CERTIFICATE_FILE, REVOKED_FILE, TlsIdentity
from metadata.security.settings import AdmissionSettings, SecuritySettings
from metadata.zookeeper.memory import MemoryStore
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.client.connections import ask_disk_space
from storage_node.edge import FrameHandler, Link, Listener
from storage_node.errors import (
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerRecoveryError,
    QuorumWriteError,
    SecureConnectionError,
    certificate_refused,
)
from storage_node.protocol.authentication import ClientAuthentication
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.encoding import encode_error_response
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import BatchReadResponse, StartTlsRequest
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.transport.tcp import TcpNetwork

OFF = SecuritySettings(security="off")


class World:
    """One secured node, and clients of many kinds."""

    def __init__(self, nodes: Nodes, folder: Path, authority: MintedAuthority) -> None:
        self.nodes = nodes
        self.folder = folder
        self.authority = authority

    def client_of(self, name: str, **given: object) -> SecuritySettings:
        """Return the settings of a client with a certificate of its own."""
        return secured_by(self.authority.folder(self.folder / name, name, **given))

    async def ask(self, security: SecuritySettings, bookie: str = "node-0") -> None:
        """Ask the node something by a client of these settings. Raises what kept it from answering."""
        client = self.nodes.client(security=security)
        await ask_disk_space(client._use().pool, bookie)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "node", "node-0", roles=["node"], hosts=["127.0.0.1"])
    client = secured_by(authority.folder(tmp_path / "client", "client", roles=["client"]))
    async with running(Nodes(tmp_path, secured_by(folder), client), 1) as nodes:
        yield World(nodes, tmp_path, authority)


def a_ledger() -> dict[str, int]:
    return {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


async def test_entries_are_written_read_in_batches_and_waited_for(world: World) -> None:
    client = world.nodes.client()
    writer = await client.create(**a_ledger())
    reader = await world.nodes.client().open(writer.ledger_id, recover=False)
    waiting = asyncio.ensure_future(reader.poll(0, 60_000))
    bodies = [b"%d" % number * 2000 for number in range(300)]
    await asyncio.gather(*(writer.add(body) for body in bodies[:299]))
    await writer.add(bodies[299])  # with it travels that the others are confirmed
    first = await waiting
    assert first is not None
    await writer.close()
    whole = await world.nodes.client().open(writer.ledger_id, recover=True)
    assert [bytes(entry.payload) for entry in await whole.read(0, 299)] == bodies
    (bookie, _) = world.nodes.running["node-0"]
    assert {connection.principal and connection.principal.name for connection in bookie._connections} == {"client"}


async def test_a_foreign_client_is_refused_and_learns_why(world: World) -> None:
    foreign = MintedAuthority("Somebody else's").issue("client")
    settings = secured_by(write_folder(world.folder / "foreign", foreign, world.authority.pem))
    with pytest.raises(DistributedLogError, match="refuses this side's certificate: it does not know its authority"):
        await world.ask(settings)


async def test_a_client_whose_certificate_has_expired_does_not_even_begin(world: World) -> None:
    settings = world.client_of("late", ends=now() - timedelta(hours=1))
    with pytest.raises(CallerError, match=r"the certificate holds from .* only"):
        await world.ask(settings)


async def test_a_revoked_client_is_refused(world: World) -> None:
    pair = world.authority.issue("leaving")
    settings = secured_by(write_folder(world.folder / "leaving", pair, world.authority.pem))
    await world.ask(settings)
    replace_file(world.folder / "node" / REVOKED_FILE, world.authority.revoke(pair))
    bookie, _ = world.nodes.running["node-0"]
    identity = bookie._security.identity
    assert identity is not None
    await until(lambda: identity.refresh() or identity.judge(pair.der))  # the node looks by itself, too
    with pytest.raises(DistributedLogError, match="refuses this side's certificate, which is revoked") as caught:
        await world.ask(settings)
    assert certificate_refused(caught.value)


async def test_a_node_of_another_authority_or_name_or_time_gets_no_request(world: World) -> None:
    nodes = world.nodes
    other = MintedAuthority("Somebody else's")
    nodes.security = secured_by(other.folder(world.folder / "foreign-node", "node-1", hosts=["127.0.0.1"]))
    await nodes.start("node-1")
    nodes.security = secured_by(world.authority.folder(world.folder / "elsewhere", "node-2", hosts=["127.0.0.9"]))
    await nodes.start("node-2")
    for name, why in [("node-1", "certificate is refused"), ("node-2", "not valid for '127.0.0.1'")]:
        with pytest.raises(SecureConnectionError, match=f"the storage node {name} .* could not be secured: .*{why}"):
            await world.ask(nodes.client_security, name)
        bookie, _ = nodes.running[name]
        await until(lambda bookie=bookie: not bookie._connections)  # type: ignore[misc]


async def test_names_are_not_checked_where_that_is_switched_off(world: World) -> None:
    nodes = world.nodes
    nodes.security = secured_by(world.authority.folder(world.folder / "elsewhere", "node-2", hosts=["127.0.0.9"]))
    await nodes.start("node-2")
    folder = nodes.client_security.security_directory
    lax = SecuritySettings(security="on", security_directory=folder, tls_hostname_verification_enabled=False)
    await world.ask(lax, "node-2")


async def test_a_node_without_tls_is_never_spoken_to_in_plain_unless_that_is_meant(world: World) -> None:
    nodes = world.nodes
    nodes.security = OFF
    await nodes.start("open")
    with pytest.raises(SecureConnectionError, match=r"the storage node open .* it speaks no TLS \(EBADREQ\)"):
        await world.ask(nodes.client_security, "open")
    folder = nodes.client_security.security_directory
    await world.ask(SecuritySettings(security="optional", security_directory=folder), "open")
    await world.ask(SecuritySettings(security="optional", security_directory=folder), "node-0")


async def test_a_role_that_is_not_let_in_is_told_so_by_the_client(world: World) -> None:
    nodes = world.nodes
    nodes.admission = AdmissionSettings(authorized_roles=("proxy",))
    await nodes.start("strict")
    with pytest.raises(SecureConnectionError, match=r"the storage node strict .*refuses the request \(EUA\)"):
        await world.ask(nodes.client_security, "strict")
    await world.ask(world.client_of("proxy", roles=["proxy"]), "strict")


async def test_a_writer_that_gets_nowhere_says_which_node_refused_it_and_why(world: World) -> None:
    foreign = MintedAuthority("Somebody else's").issue("client")
    settings = secured_by(write_folder(world.folder / "foreign", foreign, MintedAuthority("Nobody's").pem))
    for security, why in [(OFF, "refuses the request"), (settings, "certificate is refused")]:
        writer = await world.nodes.client(security=security).create(**a_ledger())
        with pytest.raises(QuorumWriteError, match=f"the storage node node-0 .*could not be secured: .*{why}"):
            await writer.add(b"x")


@pytest.mark.parametrize("noticed", [False, True])
async def test_a_writer_whose_certificate_is_revoked_says_so(noticed: bool, world: World) -> None:
    pair = world.authority.issue("leaving", roles=["client"])
    settings = secured_by(write_folder(world.folder / "leaving", pair, world.authority.pem))
    client = world.nodes.client(security=settings)
    writer = await client.create(**a_ledger())
    assert await writer.add(b"x") == 0
    replace_file(world.folder / "node" / REVOKED_FILE, world.authority.revoke(pair))
    bookie, _ = world.nodes.running["node-0"]
    identity = bookie._security.identity
    assert identity is not None
    await until(lambda: identity.refresh() or identity.judge(pair.der))
    await bookie._watch.look()
    if noticed:
        await until(lambda: all(one._link is None for one in client._use().pool._connections.values()), every_s=0)
    why = "refuses this side's certificate, which is revoked"
    if not noticed:  # but the node looks by itself, too: it may have ended the connection before
        why = f"(its audit trail says why|{why})"
    with pytest.raises(QuorumWriteError, match=f"no replacement for node-0, .*{why}") as caught:
        await writer.add(b"y")
    if "which is revoked" in caught.value.message:
        assert "Look at this client's certificate" in (caught.value.advice or "")


async def test_an_authority_between_that_is_revoked_ends_open_connections_below_it(world: World) -> None:
    """Though the client's own certificate is good."""
    between = MintedAuthority("Between", world.authority, says_key=True)
    signed = MintedPair(between.certificate, between.key)
    pair = between.issue("client", roles=["client"])
    folder = write_folder(world.folder / "below", pair, world.authority.pem)
    replace_file(folder / CERTIFICATE_FILE, pair.certificate_pem + between.pem)
    client = world.nodes.client(security=secured_by(folder))
    writer = await client.create(**a_ledger())
    assert await writer.add(b"x") == 0
    bookie, _ = world.nodes.running["node-0"]
    identity = bookie._security.identity
    assert identity is not None
    lists = between.revoke() + world.authority.revoke()
    replace_file(world.folder / "node" / REVOKED_FILE, lists)
    await until(lambda: identity.refresh() or identity.material.revoked)
    await bookie._watch.look()
    assert await writer.add(b"y") == 1, "a list that revokes nothing ends nothing"
    replace_file(world.folder / "node" / REVOKED_FILE, between.revoke() + world.authority.revoke(signed))
    before = identity.generation
    await until(lambda: identity.refresh() or identity.generation > before)
    await bookie._watch.look()
    with pytest.raises(QuorumWriteError, match="no replacement for node-0"):
        await writer.add(b"z")


async def test_a_plain_client_is_refused_and_ends_no_ledger_by_it(world: World) -> None:
    """EUA means to recovery that a bookie holds what another client wrote: here it must not (D3)."""
    writer = await world.nodes.client().create(**a_ledger(), password=b"pw")
    for number in range(5):
        await writer.add(b"%d" % number)
    with pytest.raises(SecureConnectionError, match=r"the storage node node-0 .* without TLS.*DLSPARK_SECURITY"):
        await world.ask(OFF)
    plain = world.nodes.client(security=OFF)
    with pytest.raises(LedgerRecoveryError):
        await plain.open(writer.ledger_id, password=b"pw", recover=True)
    assert (await world.nodes.ledgers.read(writer.ledger_id)).value.state is not LedgerState.CLOSED
    mine = await world.nodes.client().open(writer.ledger_id, password=b"pw", recover=True)
    assert mine.last_add_confirmed == 4


class Stripping:
    """A network on which somebody answers START_TLS in the node's place, and passes everything else on in plain."""

    def __init__(self) -> None:
        self.sent: list[Operation] = []

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        return StrippedLink(self, handler)

    async def listen(self, host: str, port: int, accept: object) -> Listener:
        raise NotImplementedError


class StrippedLink(Link):
    """The client's end of such a connection."""

    peer = "somebody in between:1"
    queued_bytes = 0

    def __init__(self, network: Stripping, handler: FrameHandler) -> None:
        self._network = network
        self._handler = handler

    def send(self, *buffers: Buffer) -> None:
        request = decode_request(memoryview(b"".join(buffers))[4:])
        self._network.sent.append(request.operation)
        if isinstance(request, StartTlsRequest):
            answer = encode_error_response(request.txn_id, Operation.START_TLS, Status.EBADREQ)
            asyncio.get_running_loop().call_soon(self._handler.frame_received, memoryview(answer)[4:])

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    async def drain(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


async def test_a_refusal_that_somebody_in_between_has_made_up_lets_nothing_out(world: World) -> None:
    client = world.nodes.client()
    client._network = Stripping()
    with pytest.raises(SecureConnectionError, match="it speaks no TLS"):
        await ask_disk_space(client._use().pool, "node-0")
    assert client._network.sent == [Operation.START_TLS]


async def test_an_answer_with_plain_bytes_behind_it_ends_the_connection(world: World) -> None:
    """Somebody in between adds an answer behind the node's, to be taken for what came under TLS."""
    answers: list[Link] = []

    class Injecting:
        def __init__(self, link: Link) -> None:
            self.link = link
            answers.append(link)

        def frame_received(self, frame: memoryview) -> None:
            request = decode_request(frame)
            assert isinstance(request, StartTlsRequest), "nothing else leaves in plain"
            answer = encode_error_response(request.txn_id, Operation.START_TLS, Status.EOK)
            self.link.send(answer, encode_error_response(1, Operation.BOOKIE_INFO, Status.EOK))

        def batch_done(self) -> None: ...

        def link_closed(self, error: Exception | None) -> None: ...

    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0, Injecting)
    client = world.nodes.client()
    pool = client._use().pool

    async def there(_bookie: str) -> tuple[str, int]:
        return "127.0.0.1", listener.port

    pool.resolve = there
    with pytest.raises(SecureConnectionError, match="bytes came in plain behind the last frame before TLS"):
        await ask_disk_space(pool, "node-0")
    await listener.close()
    await until(lambda: not network.links())


async def test_a_node_that_says_nothing_is_given_up_in_time(world: World) -> None:
    class Silent:
        def frame_received(self, frame: memoryview) -> None: ...
        def batch_done(self) -> None: ...
        def link_closed(self, error: Exception | None) -> None: ...

    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0, lambda _: Silent())
    client = world.nodes.client()
    pool = client._use().pool
    pool.security.limit_s = 0.05

    async def there(_bookie: str) -> tuple[str, int]:
        return "127.0.0.1", listener.port

    pool.resolve = there
    with pytest.raises(SecureConnectionError, match=r"the answer to START_TLS did not come within 0\.05 s"):
        await ask_disk_space(pool, "node-0")
    await listener.close()
    await until(lambda: not network.links())


async def test_the_environment_alone_secures_a_client(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSPARK_SECURITY", world.nodes.client_security.security_directory)
    await world.ask(SecuritySettings())
    monkeypatch.delenv("DLSPARK_SECURITY")
    with pytest.raises(BookieUnreachableError):
        await world.ask(SecuritySettings())


async def taken_over(identity: TlsIdentity, chain: bytes) -> None:
    """Wait until an identity has this certificate; its process looks by itself, too."""

    def has() -> bool:
        identity.refresh()
        return identity.material.chain.strip() == chain.strip()

    await until(has)


async def test_certificates_are_changed_and_the_old_ones_revoked_under_load_and_no_request_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.client.channels.RENEW_AGAIN_S", 0.0)
    nodes, authority = world.nodes, world.authority
    client = nodes.client()
    writer = await client.create(**a_ledger())
    reader = await nodes.client().open(writer.ledger_id, recover=False)
    bookie, _ = nodes.running["node-0"]
    security = [client._use().pool.security for client in nodes.clients]
    identities = [bookie._security.identity, *(one.identity for one in security)]
    stop = asyncio.Event()

    async def write() -> int:
        count = 0
        while not stop.is_set():
            assert await writer.add(b"x" * 100) == count
            count += 1
        return count

    async def follow() -> int:
        count = 0
        while not stop.is_set():
            entry = await reader.poll(count, 500)
            count += entry is not None
        return count

    def names() -> set[str]:
        return {one.principal.name for one in bookie._connections if one.principal is not None}

    load = asyncio.ensure_future(asyncio.gather(write(), follow()))
    before = authority.issue("client-0", roles=["client"])
    for number in range(1, 6):
        pair = authority.issue(f"client-{number}", roles=["client"])
        write_folder(world.folder / "node", authority.issue("node-0", hosts=["127.0.0.1"]), authority.pem)
        write_folder(world.folder / "client", pair, authority.pem)
        for identity, folder in zip(identities, ("node", "client", "client"), strict=True):
            assert identity is not None
            await taken_over(identity, (world.folder / folder / CERTIFICATE_FILE).read_bytes())
        await until(lambda: names() == {f"client-{number}"})  # noqa: B023
        replace_file(world.folder / "node" / REVOKED_FILE, authority.revoke(before))
        node = identities[0]
        assert node is not None
        await until(lambda: node.refresh() or node.judge(before.der))  # noqa: B023
        await bookie._watch.look()
        at = writer.last_add_confirmed
        await until(lambda: writer.last_add_confirmed > at + 20)  # noqa: B023
        assert not load.done()
        before = pair
    assert [channel.losses for one in nodes.clients for channel in one._use().pool._connections.values()] == [0, 0]
    stop.set()
    written, read = await load
    assert written >= read > 20
    await writer.close()


async def test_a_link_of_certificates_that_changed_while_it_was_made_is_renewed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.nodes.client()
    pool = client._use().pool
    identity = pool.security.identity
    assert identity is not None
    taken = identity.client_context

    def exchanged() -> ssl.SSLContext:
        """Return the old context, and have the files change behind it."""
        context = taken()
        pair = world.authority.issue("client-1", roles=["client"])
        write_folder(world.folder / "client", pair, world.authority.pem)
        assert identity.refresh()
        return context

    monkeypatch.setattr(identity, "client_context", exchanged)
    await ask_disk_space(pool, "node-0")
    (channel,) = pool._connections.values()
    assert pool.security.outdated(channel._proof)
    monkeypatch.setattr(identity, "client_context", taken)
    channel._look(1e9)
    await until(lambda: not pool.security.outdated(channel._proof))


async def test_a_new_revocation_list_renews_no_link_but_those_of_nodes_that_it_names(world: World) -> None:
    nodes, authority = world.nodes, world.authority
    pair = authority.issue("node-1", roles=["node"], hosts=["127.0.0.1"])
    nodes.security = secured_by(write_folder(world.folder / "node-1", pair, authority.pem))
    await nodes.start("node-1")
    pool = nodes.client()._use().pool
    for name in ("node-0", "node-1"):
        await ask_disk_space(pool, name)
    links = {channel.bookie: channel._link for channel in pool._connections.values()}
    identity = pool.security.identity
    assert identity is not None
    replace_file(world.folder / "client" / REVOKED_FILE, authority.revoke(pair))
    await until(lambda: identity.refresh() or identity.generation > 1)
    for channel in pool._connections.values():
        channel._look(1e9)
        assert (channel._renewing is not None) is (channel.bookie == "node-1")
    for channel in pool._connections.values():
        if channel.bookie == "node-0":
            assert channel._link is links["node-0"]
            assert not pool.security.outdated(channel._proof)
        else:
            await until(lambda channel=channel: channel._link is None)  # type: ignore[misc]
            with pytest.raises(SecureConnectionError, match="certificate is refused: certificate revoked"):
                await ask_disk_space(pool, "node-1")


async def test_batches_are_read_once_the_rights_for_them_have_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.client.connections.BATCHES_AGAIN_S", 0.01)
    writer = await world.nodes.client().create(**a_ledger())
    for _ in range(3):
        await writer.add(b"x")
    bookie, _ = world.nodes.running["node-0"]
    allowing = bookie._security
    bookie._security = replace(allowing, roles=frozenset({"proxy"}))  # version 2 has no answer to that: it is cut
    batches = world.nodes.client()._use().pool.batches_of("node-0")

    async def ask(number: int) -> object:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        batches.read(
            number, writer.ledger_id, 0, max_count=3, max_bytes=1000, timeout_ms=60_000, answer=answered.set_result
        )
        return await answered

    assert isinstance(await ask(1), ConnectionClosedError)
    assert 0 < batches._refused_until_s < math.inf
    bookie._security = allowing
    await until(lambda: not batches.refused)
    assert isinstance(await ask(2), BatchReadResponse)
    await writer.close()


async def test_files_that_cannot_be_looked_at_keep_nobody_from_connecting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = world.nodes.client()._use().pool

    def out_of_descriptors() -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pool.security.identity, "refresh", out_of_descriptors)
    await ask_disk_space(pool, "node-0")
    assert "the files of certificates could not be looked at" in caplog.text


async def test_a_proof_that_breaks_on_its_thread_is_not_waited_for(world: World) -> None:
    class Broken:
        blocks = True
        done = False

        def first(self) -> tuple[str, bytes]:
            raise RuntimeError("the library has failed")

    pool = world.nodes.client()._use().pool
    pool.security.authenticating = lambda _: cast(ClientAuthentication, Broken())
    pool.security.limit_s = 1000.0
    with pytest.raises(SecureConnectionError, match=r"the proof could not be made: .*the library has failed"):
        await ask_disk_space(pool, "node-0")


@pytest.mark.long
async def test_auto_recovery_copies_between_secured_nodes_by_the_nodes_own_certificate(world: World) -> None:
    nodes = world.nodes
    nodes.admission = AdmissionSettings(authorized_roles=("node", "client"))
    for number in (1, 2, 3):
        await nodes.start(f"node-{number}")
    writer = await nodes.client().create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await asyncio.gather(*(writer.add(b"%d" % number) for number in range(50)))
    await writer.close()
    lost = next(name for name in writer.metadata.last_ensemble.bookies if name != "node-0")
    store = MemoryStore(nodes.tree)
    settings = AutoRecoverySettings(client=replace(SETTINGS, security=nodes.security))
    daemon = AutoRecovery(settings, store, bookie_id="recovery")
    await nodes.stop(lost)
    await daemon.start()

    async def replaced() -> bool:
        return lost not in (await nodes.ledgers.read(writer.ledger_id)).value.last_ensemble.bookies

    await until(replaced)
    await daemon.stop()
    await store.close()
    reader = await nodes.client().open(writer.ledger_id, recover=False)
    assert len(await reader.read(0, 49)) == 50
