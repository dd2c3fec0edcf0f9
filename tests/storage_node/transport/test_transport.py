"""Frames and TCP links over real loopback sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from helpers.security.secured_network import SecuredNetwork
from helpers.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from storage_node.edge import Link
from storage_node.errors import BookieUnreachableError, ConnectionClosedError, ProtocolError
from storage_node.protocol.frames import MAX_FRAME_BYTES, ChunkPool, FrameBuffer
from storage_node.transport.links import LOW_WATER_BYTES
from storage_node.transport.tcp import TcpNetwork

KINDS = [TcpNetwork, SecuredNetwork]
"""What a link promises, it promises under TLS as well."""


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Collector:
    """A handler that keeps what it gets, and can be waited for."""

    def __init__(self) -> None:
        self.frames: list[memoryview] = []
        self.batches: list[int] = []
        self.closed: list[Exception | None] = []
        self._changed = asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(frame)
        self._changed.set()

    def batch_done(self) -> None:
        self.batches.append(len(self.frames))
        self._changed.set()

    def link_closed(self, error: Exception | None) -> None:
        self.closed.append(error)
        self._changed.set()

    async def until(self, *, frames: int = 0, closed: bool = False) -> None:
        while len(self.frames) < frames or (closed and not self.closed):
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)


class Echo:
    """Sends every frame back in two pieces."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.closed: list[Exception | None] = []

    def frame_received(self, frame: memoryview) -> None:
        if bytes(frame[:5]) == b"boom!":
            raise RuntimeError("a handler's own mistake")
        self.link.send(struct.pack(">i", len(frame)), frame)

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=30), st.data())
def test_any_cutting_of_the_stream_yields_the_same_frames_and_held_views_do_not_change(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(framed(body) for body in bodies)
    buffer = FrameBuffer(ChunkPool(chunk_bytes=70_000))
    held: list[memoryview] = []
    while stream:
        space = buffer.writable()
        take = min(len(space), len(stream), data.draw(st.integers(1, 5000)))
        space[:take] = stream[:take]
        space.release()
        held += buffer.advance(take)
        buffer.rewind()
        stream = stream[take:]
    assert [bytes(view) for view in held] == bodies
    buffer.close()


def test_chunks_are_used_again_only_when_nobody_reads_them() -> None:
    pool = ChunkPool(chunk_bytes=100_000, keep=2)
    buffer = FrameBuffer(pool)
    kept: list[memoryview] = []
    for number in range(40):
        body = bytes([number]) * 30_000
        piece = framed(body)
        while piece:
            space = buffer.writable()
            take = min(len(space), len(piece))
            space[:take] = piece[:take]
            space.release()
            frames = buffer.advance(take)
            if number % 5 == 0:
                kept += frames
            frames.clear()
            buffer.rewind()
            piece = piece[take:]
    assert [(view[0], len(view), len(set(view))) for view in kept] == [(n, 30_000, 1) for n in range(0, 40, 5)]


@pytest.mark.parametrize("length", [0, -1, MAX_FRAME_BYTES - 3, 2**31 - 1, -(2**31)])
def test_impossible_lengths_are_protocol_errors(length: int) -> None:
    buffer = FrameBuffer(ChunkPool())
    buffer.writable()[:4] = struct.pack(">i", length)
    with pytest.raises(ProtocolError, match=str(length)):
        buffer.advance(4)


@pytest.mark.parametrize("kind", KINDS)
async def test_frames_travel_both_ways_up_to_the_largest(kind: type[TcpNetwork]) -> None:
    network = kind()
    listener = await network.listen("127.0.0.1", 0, Echo)
    client = Collector()
    link = await network.connect("127.0.0.1", listener.port, client, timeout_ms=60_000)
    bodies = [b"x", b"y" * 100, b"z" * 300_000, bytes(MAX_FRAME_BYTES - 4)] * 3
    for body in bodies:
        link.send(struct.pack(">i", len(body)), body)
    await client.until(frames=len(bodies))
    assert [bytes(frame) for frame in client.frames] == bodies
    assert client.batches[-1] == len(bodies)
    link.close()
    link.close()
    await client.until(closed=True)
    assert client.closed == [None]
    await listener.close()
    await until(lambda: not network.links(), every_s=0)


@pytest.mark.parametrize("kind", KINDS)
async def test_ends_of_a_link_name_each_other_with_brackets_around_an_ipv6_address(kind: type[TcpNetwork]) -> None:
    network = kind()
    accepted: list[str] = []

    def accept(link: Link) -> Echo:
        accepted.append(link.peer)
        return Echo(link)

    try:
        listener = await network.listen("::1", 0, accept)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    client = Collector()
    link = await network.connect("::1", listener.port, client, timeout_ms=60_000)
    assert link.peer == f"[::1]:{listener.port}"
    link.send(struct.pack(">i", 1), b"x")
    await client.until(frames=1)
    assert accepted[0].startswith("[::1]:")
    link.close()
    await listener.close()
    await until(lambda: not network.links(), every_s=0)
    with pytest.raises(BookieUnreachableError, match=rf"cannot connect to \[::1\]:{listener.port}"):
        await network.connect("::1", listener.port, Collector(), timeout_ms=60_000)


@pytest.mark.parametrize("kind", KINDS)
async def test_small_frames_before_a_large_one_and_behind_it_arrive_whole(kind: type[TcpNetwork]) -> None:
    network = kind()
    collector = Collector()
    listener = await network.listen("127.0.0.1", 0, lambda _: collector)
    sender = Collector()
    link = await network.connect("127.0.0.1", listener.port, sender, timeout_ms=60_000)
    bodies = [b"%d" % number for number in range(300)] + [bytes(range(256)) * 12_000, b"last"]
    for body in bodies:
        link.send(struct.pack(">i", len(body)), body)
    await collector.until(frames=len(bodies))
    assert [bytes(frame) for frame in collector.frames] == bodies
    link.close()
    await collector.until(closed=True)
    await listener.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_small_frames_of_one_turn_leave_together_and_arrive_in_batches(kind: type[TcpNetwork]) -> None:
    network = kind()
    listener = await network.listen("127.0.0.1", 0, Echo)
    client = Collector()
    link = await network.connect("127.0.0.1", listener.port, client, timeout_ms=60_000)
    for number in range(5000):
        link.send(framed(b"%d" % number))
    await client.until(frames=5000)
    assert [int(bytes(frame)) for frame in client.frames] == list(range(5000))
    assert len(client.batches) < 500
    link.close()
    await client.until(closed=True)
    await listener.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_does_not_read_fills_the_queue_and_drain_waits_for_it(kind: type[TcpNetwork]) -> None:
    network = kind()
    accepted: list[Link] = []

    def accept(link: Link) -> Collector:
        accepted.append(link)
        link.pause_reading()
        return server

    server, client = Collector(), Collector()
    listener = await network.listen("127.0.0.1", 0, accept)
    link = await network.connect("127.0.0.1", listener.port, client, timeout_ms=60_000)
    body = bytes(1 << 20)
    for _ in range(40):
        link.send(framed(body))
    drained = asyncio.ensure_future(link.drain())
    await asyncio.sleep(0.05)
    assert not drained.done()
    assert link.queued_bytes > LOW_WATER_BYTES
    accepted[0].resume_reading()
    await asyncio.wait_for(drained, 60)
    assert link.queued_bytes <= LOW_WATER_BYTES
    await server.until(frames=40)
    link.close()
    await server.until(closed=True)
    await listener.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_wakes_who_waits_for_room_with_an_error(kind: type[TcpNetwork]) -> None:
    network = kind()

    def accept(link: Link) -> Collector:
        link.pause_reading()
        return server

    server, client = Collector(), Collector()
    listener = await network.listen("127.0.0.1", 0, accept)
    link = await network.connect("127.0.0.1", listener.port, client, timeout_ms=60_000)
    for _ in range(40):
        link.send(bytes(1 << 20))
    drained = asyncio.ensure_future(link.drain())
    await asyncio.sleep(0)
    link.close()
    with pytest.raises(ConnectionClosedError):
        await drained
    with pytest.raises(ConnectionClosedError):
        await link.drain()
    link.send(b"dropped")
    await client.until(closed=True)
    for other in network.links():
        other.close()
    await server.until(closed=True)
    await listener.close()


class Misjudging(Collector):
    """Fails over bytes that it should know."""

    def recognise(self, received: memoryview) -> int:
        raise RuntimeError(f"a handler's own mistake over {len(received)} bytes")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_mistake_over_what_is_recognised_closes_that_link_alone(
    kind: type[TcpNetwork], caplog: pytest.LogCaptureFixture
) -> None:
    network = kind()
    handlers = [Misjudging(), Collector()]
    listener = await network.listen("127.0.0.1", 0, lambda _: handlers.pop(0))
    (bad, good), clients = handlers, (Collector(), Collector())
    for client in clients:
        link = await network.connect("127.0.0.1", listener.port, client, timeout_ms=60_000)
        link.send(framed(b"hello"))
    await bad.until(closed=True)
    assert str(bad.closed[0]) == "a handler's own mistake over 9 bytes"
    assert "a handler's own mistake" in caplog.text
    await clients[0].until(closed=True)
    await good.until(frames=1)
    assert (bad.frames, good.closed) == ([], [])
    link.close()
    await good.until(closed=True)
    await listener.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_garbage_and_a_handlers_mistake_close_that_link_alone(
    kind: type[TcpNetwork], caplog: pytest.LogCaptureFixture
) -> None:
    network = kind()
    handlers: list[Echo] = []

    def accept(link: Link) -> Echo:
        handlers.append(Echo(link))
        return handlers[-1]

    listener = await network.listen("127.0.0.1", 0, accept)
    good, bad, wrong = Collector(), Collector(), Collector()
    good_link = await network.connect("127.0.0.1", listener.port, good, timeout_ms=60_000)
    bad_link = await network.connect("127.0.0.1", listener.port, bad, timeout_ms=60_000)
    wrong_link = await network.connect("127.0.0.1", listener.port, wrong, timeout_ms=60_000)
    bad_link.send(b"GET / HTTP/1.1\r\n\r\n")
    await bad.until(closed=True)
    wrong_link.send(framed(b"boom!"))
    await wrong.until(closed=True)
    good_link.send(framed(b"still here"))
    await good.until(frames=1)
    assert bytes(good.frames[0]) == b"still here"
    assert [type(handler.closed[0]) for handler in handlers[1:]] == [ProtocolError, RuntimeError]
    assert "announces 1195725856 bytes" in caplog.text
    good_link.close()
    await good.until(closed=True)
    await listener.close()


async def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        with pytest.raises(BookieUnreachableError, match=str(port)):
            await TcpNetwork().connect("127.0.0.1", port, Collector(), timeout_ms=2000)


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    with pytest.raises(BookieUnreachableError):
        await TcpNetwork().connect("no-such-host.invalid", 3181, Collector(), timeout_ms=10_000)


async def test_a_port_that_is_taken_is_an_error_of_listen() -> None:
    network = TcpNetwork()
    listener = await network.listen("127.0.0.1", 0, Echo)
    with pytest.raises(OSError):
        await network.listen("127.0.0.1", listener.port, Echo)
    await listener.close()
    await listener.close()


async def test_a_peers_death_is_told_once() -> None:
    network = TcpNetwork()
    server = Collector()
    listener = await network.listen("127.0.0.1", 0, lambda link: server)
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", listener.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(framed(b"last words")[:-2])
    await server.until(closed=True)
    assert server.frames == []
    assert len(server.closed) == 1
    await listener.close()


def test_it_works_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        for kind in KINDS:
            await test_frames_travel_both_ways_up_to_the_largest(kind)
            await test_a_peer_that_does_not_read_fills_the_queue_and_drain_waits_for_it(kind)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
