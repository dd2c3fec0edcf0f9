"""What connections hold of memory: chunks only while they need them, and nobody else's for long."""

from __future__ import annotations

import asyncio
import socket

import pytest
from helpers.security.secured_network import dial_secured, server_context
from helpers.waiting import until

from storage_node.edge import Link
from storage_node.protocol.frames import CHUNK_BYTES, READ_BYTES, ChunkPool, FrameBuffer
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def receive(buffer: FrameBuffer, data: bytes) -> list[memoryview]:
    """As a link does: read, hand out, rewind."""
    frames: list[memoryview] = []
    while data:
        space = buffer.writable()
        take = min(len(space), len(data))
        space[:take] = data[:take]
        space.release()
        frames += buffer.advance(take)
        buffer.rewind()
        data = data[take:]
    return frames


def test_a_quiet_connection_holds_no_chunk_and_many_share_one() -> None:
    pool = ChunkPool()
    buffers = [FrameBuffer(pool) for _ in range(1000)]
    for buffer in buffers:
        for view in receive(buffer, framed(b"x" * 100) * 3):
            view.release()
        buffer.rewind()
    assert [buffer.held_bytes for buffer in buffers] == [0] * 1000
    assert (pool.lent, len(pool._retired)) == (0, 1)


def test_one_of_many_peers_receives_no_more_at_a_time_than_it_may_make_wait_except_for_a_frame_that_needs_it() -> None:
    pool = ChunkPool(keep=4)
    buffer, others = FrameBuffer(pool), [FrameBuffer(pool) for _ in range(4)]
    assert len(buffer.writable()) == READ_BYTES
    receive(buffer, framed(bytes(1_000_000))[:1000])
    assert len(buffer.writable()) == 1_000_004 - 1000
    others.pop().close()
    assert len(buffer.writable()) == CHUNK_BYTES - 1000


def test_a_view_that_somebody_keeps_keeps_the_chunk_filling_up_behind_it() -> None:
    pool = ChunkPool()
    buffer = FrameBuffer(pool)
    kept = [view for _ in range(50) for view in receive(buffer, framed(b"y" * 1000))]
    assert (buffer.held_bytes, pool.lent) == (CHUNK_BYTES, 1)
    assert {bytes(view) for view in kept} == {b"y" * 1000}


@pytest.mark.parametrize("announced", [100_000, 1_000_000, 5_000_000])
def test_begun_frames_of_many_peers_take_no_more_than_twice_what_was_sent(announced: int) -> None:
    pool = ChunkPool(keep=4)
    buffers = [FrameBuffer(pool) for _ in range(24)]
    body = bytes(range(256)) * (announced // 256)
    stream = framed(body)
    for buffer in buffers:
        receive(buffer, stream[:5000])
    assert sum(buffer.held_bytes for buffer in buffers) <= 5 * max(CHUNK_BYTES, announced + 4) + 24 * 70_000
    for buffer in buffers:
        receive(buffer, stream[5000:90_000])
    held = sorted(buffer.held_bytes for buffer in buffers)
    assert held[18] <= 200_000
    for buffer in buffers:
        (view,) = receive(buffer, stream[90_000:])
        assert bytes(view) == body
        view.release()
        buffer.rewind()
    assert sum(buffer.held_bytes for buffer in buffers) == 0
    assert pool.lent == 0


def test_whole_frames_that_wait_stay_where_they_are_while_chunks_are_short() -> None:
    """A link that ended while frames waited failed half-way over it, and stayed in the counts of the node for good."""
    pool = ChunkPool(keep=4)
    buffer, others = FrameBuffer(pool), [FrameBuffer(pool) for _ in range(5)]
    stream = framed(b"y" * 100) * 2000  # more than a small chunk holds
    buffer.writable()[: len(stream)] = stream
    for other in others:
        receive(other, framed(b"x" * 100)[:50])
    assert pool.crowded
    (first,) = buffer.advance(len(stream), 1)
    buffer.rewind()
    assert {bytes(frame) for frame in [first, *buffer.cut(3000)]} == {b"y" * 100}


def _is_free(memory: bytearray) -> bool:
    """Whether nothing holds a view of it any more."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True


@pytest.mark.parametrize("tls", [None, TlsEntrance(server_context)], ids=["plain", "TLS"])
async def test_what_a_peer_does_not_read_is_copied_so_that_its_owner_has_the_memory_back(
    tls: TlsEntrance | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.transport.links.STUCK_S", 0.01)
    network = TcpNetwork()
    accepted: asyncio.Queue[Link] = asyncio.Queue()
    closed = asyncio.Event()

    class Handler:
        def frame_received(self, frame: memoryview) -> None: ...
        def batch_done(self) -> None: ...
        def link_closed(self, error: Exception | None) -> None:
            closed.set()

    def accept(link: Link) -> Handler:
        accepted.put_nowait(link)
        return Handler()

    listener = await network.listen("127.0.0.1", 0, accept, tls=tls)
    with await (dial(listener.port) if tls is None else dial_secured(listener.port)) as peer:
        link = await accepted.get()
        memory = bytearray(b"z" * 16_000_000)
        link.send(memoryview(memory)[:8_000_000], memoryview(memory)[8_000_000:])
        await asyncio.sleep(0)
        with pytest.raises(BufferError):
            memory.clear()
        await until(lambda: _is_free(memory), "the sender's memory is free")
        memory.clear()
        received = await asyncio.get_running_loop().run_in_executor(None, _receive_all, peer, 16_000_000)
    assert received == b"z" * 16_000_000
    await asyncio.wait_for(closed.wait(), 60)
    await listener.close()


async def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def _receive_all(peer: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = peer.recv(1 << 20)
        assert piece, f"the peer has closed after {len(received)} bytes"
        received += piece
    return bytes(received)
