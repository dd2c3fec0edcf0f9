"""Memory of begun frames is bounded over all links, and one link's many frames keep nobody else waiting."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from helpers.security.secured_network import client_context, server_context
from helpers.waiting import until

from storage_node.edge import Link
from storage_node.transport import receive_memory
from storage_node.transport.receive_memory import ALWAYS_READ, PROGRESS_BYTES, ReceiveMemory
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance
from storage_node.transport.turns import TURN_S

MIB = 1 << 20


class Sender:
    """What a link would be told."""

    def __init__(self, pending: bool = False) -> None:
        self.pending = pending
        self.starved = False
        self.reason = ""

    def starve(self) -> None:
        self.starved = True

    def feed(self) -> None:
        self.starved = False

    def has_more(self) -> bool:
        return self.pending

    def cut(self, reason: str) -> None:
        self.reason = reason


async def test_small_requests_are_neither_counted_nor_stopped() -> None:
    memory = ReceiveMemory(10 * MIB)
    slow = Sender()
    memory.begun(slow, 11 * MIB, MIB, MIB)
    small = Sender()
    memory.begun(small, 64 * 1024, 1000, MIB)
    assert (memory.used, small.starved) == (11 * MIB, False)
    memory.ended(slow)
    memory.ended(slow)
    assert memory.used == 0


async def test_beyond_the_bound_all_but_the_first_are_stopped_and_go_on_when_there_is_room() -> None:
    memory = ReceiveMemory(10 * MIB)
    senders = [Sender(pending=True) for _ in range(20)]
    for sender in senders:
        memory.begun(sender, MIB, 1000, MIB)
    assert [sender.starved for sender in senders] == [False] * 10 + [True] * 10
    assert memory.short
    for sender in senders[:10]:
        memory.begun(sender, 2 * MIB, 2000, MIB)
    assert [sender.starved for sender in senders] == [False] * ALWAYS_READ + [True] * (20 - ALWAYS_READ)
    for sender in senders[:ALWAYS_READ]:
        memory.ended(sender)
    assert not any(sender.starved for sender in senders[ALWAYS_READ : 2 * ALWAYS_READ]), "they are the first now"
    for sender in senders:
        memory.ended(sender)
    assert (memory.used, memory.short) == (0, False)
    assert not any(sender.starved or sender.reason for sender in senders)


async def test_who_lacks_least_goes_on_whatever_others_hold() -> None:
    memory = ReceiveMemory(10 * MIB)
    large = [Sender(pending=True) for _ in range(40)]
    for sender in large:
        memory.begun(sender, MIB, 1000, 4 * MIB)
    assert sum(sender.starved for sender in large) == 30
    entry = Sender(pending=True)
    memory.begun(entry, 100_000, 70_000, 30_000)
    assert not entry.starved
    late = Sender(pending=True)
    memory.begun(late, MIB, 1000, 2 * MIB)
    assert not late.starved
    for sender in large[:10]:
        memory.ended(sender)
    assert not late.starved
    for sender in (*large, entry, late):
        memory.ended(sender)
    assert (memory.used, memory.short) == (0, False)


async def test_slow_senders_are_cut_for_others_and_those_that_come_on_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_memory, "PROGRESS_S", 0.0)
    memory = ReceiveMemory(10 * MIB)
    idle, dripping, pending, steady = Sender(), Sender(), Sender(pending=True), Sender()
    for sender in (idle, dripping, pending, steady):
        memory.begun(sender, 2 * MIB, 1000, MIB)
    memory.begun(dripping, 2 * MIB, 1001, MIB)
    memory.begun(steady, 2 * MIB, 1000 + PROGRESS_BYTES - 1, MIB)
    memory._begun[steady].marked_bytes -= PROGRESS_BYTES  # as if that had come since the last look
    late = Sender(pending=True)
    memory.begun(late, 4 * MIB, 500, MIB)
    assert "stopped after 1000 bytes" in idle.reason
    assert [sender.reason for sender in (pending, steady, dripping)] == [""] * 3, "one was enough"
    memory.begun(late, 8 * MIB, 500_000, MIB)
    assert dripping.reason
    assert [sender.reason for sender in (pending, steady)] == [""] * 2
    assert memory.used == 12 * MIB


async def test_whoever_was_stopped_goes_on_without_anybody_else_doing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_memory, "LOOK_S", 0.001)
    monkeypatch.setattr(receive_memory, "PROGRESS_S", 0.01)
    memory = ReceiveMemory(4 * MIB)
    slow = [Sender() for _ in range(ALWAYS_READ)]
    for sender in slow:
        memory.begun(sender, MIB // 2, 1000, MIB)
    honest = Sender(pending=True)
    memory.begun(honest, MIB, 1000, MIB)
    assert honest.starved
    await asyncio.wait_for(_fed(honest), 60)
    # One cut is enough: it is among those that are read in any case then, whether or not the next is slow yet.
    assert memory.used < 5 * MIB
    assert any(sender.reason for sender in slow)


async def _fed(sender: Sender) -> None:
    await until(lambda: not sender.starved)


# ------------------------------------------------------------------------------------------- with real sockets


class Handler:
    def __init__(self, took: Callable[[memoryview], None]) -> None:
        self.took = took
        self.closed = asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        self.took(frame)

    def batch_done(self) -> None: ...

    def link_closed(self, error: Exception | None) -> None:
        self.closed.set()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def test_half_frames_of_many_peers_stay_within_the_bound_and_whole_ones_come_through() -> None:
    network = TcpNetwork(begun_bytes=8 * MIB)
    received: asyncio.Queue[int] = asyncio.Queue()
    listener = await network.listen("127.0.0.1", 0, lambda link: Handler(lambda frame: received.put_nowait(len(frame))))
    loop = asyncio.get_running_loop()
    announced = framed(bytes(4 * MIB))
    slow = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(60)]
    for peer in slow:
        peer.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_sendall(peer, announced[: 3 * MIB]), 0.05)
        except (asyncio.TimeoutError, OSError):
            pass  # it is not read any more, or was cut: that is what shall be
        held = sum(link._frames.held_bytes for link in network.links())
        assert held < 8 * MIB + (ALWAYS_READ + network.pool._keep + 1) * 4 * MIB
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(announced)
        await asyncio.wait_for(writer.drain(), 60)
        assert await asyncio.wait_for(received.get(), 60) == 4 * MIB
        writer.close()
    for peer in slow:
        peer.close()
    await asyncio.wait_for(_nobody(network), 60)
    assert (network.receiving.used, network.receiving.short) == (0, False)
    await listener.close()


@pytest.mark.long
async def test_half_frames_under_tls_stay_within_the_same_bound() -> None:
    network = TcpNetwork(begun_bytes=8 * MIB)
    received: asyncio.Queue[int] = asyncio.Queue()
    listener = await network.listen(
        "127.0.0.1",
        0,
        lambda link: Handler(lambda frame: received.put_nowait(len(frame))),
        tls=TlsEntrance(server_context),
    )
    announced = framed(bytes(4 * MIB))

    async def connect() -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, ssl=client_context(), server_hostname="127.0.0.1"
        )
        return writer

    slow = [await connect() for _ in range(60)]
    for peer in slow:
        peer.write(announced[: 3 * MIB])
        with suppress(asyncio.TimeoutError, OSError):  # it is not read any more, or was cut: that is what shall be
            await asyncio.wait_for(peer.drain(), 0.05)
        held = sum(link._frames.held_bytes for link in network.links())
        assert held < 8 * MIB + (ALWAYS_READ + network.pool._keep + 1) * 4 * MIB
    assert len(network.links()) < len(slow), "those that stopped were cut for others"
    for _ in range(3):
        writer = await connect()
        writer.write(announced)
        assert await asyncio.wait_for(received.get(), 60) == 4 * MIB
        writer.transport.abort()
    for peer in slow:
        peer.transport.abort()
    await asyncio.wait_for(_nobody(network), 60)
    assert (network.receiving.used, network.receiving.short) == (0, False)
    await listener.close()


async def _nobody(network: TcpNetwork) -> None:
    await until(lambda: not network.links())


async def test_a_peer_with_many_frames_has_its_share_of_a_turn_and_no_more() -> None:
    network = TcpNetwork()
    handled: list[bytes] = []
    done = asyncio.Event()
    frame_s = TURN_S / 10

    def took(frame: memoryview) -> None:
        handled.append(bytes(frame))
        if frame == b"many":
            until = time.monotonic() + frame_s
            while time.monotonic() < until:
                pass
        if len(handled) == 203:
            done.set()

    links: list[Link] = []

    def accept(link: Link) -> Handler:
        links.append(link)
        return Handler(took)

    listener = await network.listen("127.0.0.1", 0, accept)
    greedy, honest = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(2)]
    await until(lambda: len(links) >= 2, every_s=0)
    greedy.sendall(framed(b"many") * 200)
    await until(lambda: handled, every_s=0)
    assert len(handled) <= 11, "a turn's share"
    honest.sendall(framed(b"one") * 3)
    await asyncio.wait_for(done.wait(), 60)
    assert max(at for at, frame in enumerate(handled) if frame == b"one") < 60, "not behind all of the others'"
    assert handled.count(b"many") == 200
    for peer in (greedy, honest):
        peer.close()
    await asyncio.wait_for(_nobody(network), 60)
    await listener.close()


async def test_a_link_that_is_closed_in_the_midst_of_its_frames_hands_out_no_more() -> None:
    network = TcpNetwork()
    handled: list[int] = []
    links: list[Link] = []

    def took(frame: memoryview) -> None:
        handled.append(len(handled))
        until = time.monotonic() + TURN_S
        while time.monotonic() < until:
            pass
        if len(handled) == 3:
            links[0].close()

    def accept(link: Link) -> Handler:
        links.append(link)
        return Handler(took)

    listener = await network.listen("127.0.0.1", 0, accept)
    with socket.create_connection(("127.0.0.1", listener.port)) as peer:
        peer.sendall(framed(b"x") * 10)
        await asyncio.wait_for(_nobody_again(network, links), 60)
    assert len(handled) == 3
    assert (len(network.turns), network.pool.users) == (0, 0)
    await listener.close()


async def _nobody_again(network: TcpNetwork, links: list[Link]) -> None:
    await until(lambda: links and not network.links() and not network.pool.users)
