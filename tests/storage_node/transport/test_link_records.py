"""What a link makes of records that no library sends: those who do not belong there end their own connection, soon."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from helpers.security.records import ALERT, HANDSHAKE, RecordsPeer
from helpers.security.secured_network import SecuredNetwork, client_context, server_context
from helpers.waiting import until

from storage_node.edge import Link
from storage_node.transport.tls import (
    DATA_FOR_A_SILENT_BYTE,
    MAX_SILENT_BYTES,
    MAX_WAITING_BYTES,
    RECORD_BYTES,
    waiting_bytes,
)


class Heard:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: list[Exception | None] = []

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def batch_done(self) -> None: ...

    def link_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Served(SecuredNetwork):
    """A listener, and what was heard of those that came."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Heard] = []
        self.port = 0

    def accept(self, _: Link) -> Heard:
        self.heard.append(Heard())
        return self.heard[-1]

    async def peer(self) -> RecordsPeer:
        server_context()  # made here: two threads would make an authority each
        context = client_context()

        def dial() -> RecordsPeer:
            return RecordsPeer(socket.create_connection(("127.0.0.1", self.port), 60), context)

        return await asyncio.to_thread(dial)


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    listener = await served.listen("127.0.0.1", 0, served.accept)
    served.port = listener.port
    try:
        yield served
    finally:
        await listener.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("asks", [False, True], ids=["its keys", "and ours"])
async def test_a_peer_that_does_nothing_but_change_its_keys_is_cut(asks: bool) -> None:
    """OpenSSL goes on with such records within one read, for as long as any come: it may be given few at a time."""
    async with serving() as served:
        peer = await served.peer()
        with peer.sock:
            data = await asyncio.to_thread(peer.key_updates, 3 * MAX_SILENT_BYTES // 27, asks=asks)
            await asyncio.to_thread(peer.send, data + peer.record(framed(b"behind them")))
            await until(lambda: served.heard and served.heard[0].closed, every_s=0)
        assert served.heard[0].frames == []
        assert "records without data" in str(served.heard[0].closed[0])


@pytest.mark.parametrize("apart", [False, True], ids=["at once", "one by one"])
async def test_a_byte_of_data_behind_each_change_of_keys_buys_no_more_of_them(apart: bool) -> None:
    """Sent one by one, each of them is all that there is to read: nothing is left over by which it would be noticed."""
    async with serving() as served:
        peer = await served.peer()
        with peer.sock:
            body = framed(bytes(2 * MAX_SILENT_BYTES // 27))
            pieces = [peer.key_update(asks=True) + peer.record(body[at : at + 1]) for at in range(len(body))]
            await until(lambda: served.heard, every_s=0)
            (link,) = served.links()
            for piece in pieces if apart else [b"".join(pieces)]:
                await asyncio.to_thread(peer.send, piece)
                await until(lambda: not waiting_bytes(link._sock), every_s=0)
                if served.heard[0].closed:
                    break
            await until(lambda: served.heard[0].closed, every_s=0)
        assert served.heard[0].frames == []
        assert "records without data" in str(served.heard[0].closed[0])


async def test_a_peer_that_changes_its_keys_between_much_data_is_served() -> None:
    async with serving() as served:
        peer = await served.peer()
        with peer.sock:
            count = MAX_SILENT_BYTES // 27 + 100
            frame = framed(bytes(27 * DATA_FOR_A_SILENT_BYTE))
            records = [frame[:RECORD_BYTES], frame[RECORD_BYTES:]]

            def stream() -> None:
                for _ in range(count):
                    peer.send(b"".join([peer.key_update(asks=False), *map(peer.record, records)]))

            await asyncio.to_thread(stream)
            await until(lambda: served.heard and len(served.heard[0].frames) == count, every_s=0)
        await until(lambda: served.heard[0].closed, every_s=0)


async def test_a_peer_that_takes_no_answers_to_its_changes_of_keys_is_not_heard_until_it_does() -> None:
    async with serving() as served:
        peer = await served.peer()
        with peer.sock:
            await until(lambda: served.heard, every_s=0)
            (link,) = served.links()
            link._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            link.send(framed(bytes(16 << 20)))  # more than the kernel takes: what follows waits
            await until(lambda: link._writing, every_s=0)
            frame, taken = framed(bytes(27 * DATA_FOR_A_SILENT_BYTE)), threading.Event()

            def change_keys() -> None:
                for _ in range(2 * MAX_WAITING_BYTES // 27):
                    if taken.is_set():
                        break
                    records = map(peer.record, (frame[:RECORD_BYTES], frame[RECORD_BYTES:]))
                    peer.send(b"".join([peer.key_update(asks=True), *records]))
                peer.send(peer.record(framed(b"the last")))

            def take() -> None:
                while b"the last" not in served.heard[0].frames and not served.heard[0].closed:
                    if select.select([peer.sock], [], [], 0.01)[0]:
                        peer.sock.recv(1 << 20)

            changing = asyncio.create_task(asyncio.to_thread(change_keys))
            await until(lambda: link._tls.stalled or b"the last" in served.heard[0].frames, every_s=0)
            assert b"the last" not in served.heard[0].frames, "all was heard, and no answer taken"
            assert not link._reading
            assert link._tls._waiting == sum(map(len, link._tls._leaving))
            assert MAX_WAITING_BYTES < link._tls._waiting < MAX_WAITING_BYTES + MAX_SILENT_BYTES
            assert len(link._tls._leaving) < 16, "small pieces are joined"
            taken.set()
            await asyncio.gather(changing, asyncio.to_thread(take))
            assert served.heard[0].frames[-1] == b"the last"
            assert served.heard[0].closed == []
        await until(lambda: served.heard[0].closed, every_s=0)


@pytest.mark.parametrize("kind", ["empty", "alerts", "handshake", "long", "damaged"])
async def test_records_that_do_not_belong_there_end_their_connection_alone(kind: str) -> None:
    async with serving() as served:
        honest = await served.connect("127.0.0.1", served.port, Heard(), timeout_ms=60_000)
        peer = await served.peer()
        with peer.sock:
            bad = bad_records(peer, kind)
            await asyncio.to_thread(peer.send, bad + peer.record(framed(b"behind it")))
            await until(lambda: len(served.heard) == 2 and served.heard[1].closed, every_s=0)
        assert served.heard[1].frames == []
        honest.send(framed(b"meanwhile"))
        await until(lambda: served.heard[0].frames == [b"meanwhile"], every_s=0)
        honest.close()
        await until(lambda: served.heard[0].closed, every_s=0)


def bad_records(peer: RecordsPeer, kind: str) -> bytes:
    if kind == "empty":
        return b"".join(peer.record(b"") for _ in range(100))
    if kind == "alerts":
        return b"".join(peer.record(b"\1\x5a", ALERT) for _ in range(100))
    if kind == "handshake":
        return peer.record(b"\1\0\0\4abcd", HANDSHAKE)
    if kind == "long":
        return peer.record(bytes(RECORD_BYTES + 300))
    good = peer.record(framed(b"x"))
    return good[:-1] + bytes((good[-1] ^ 1,))
