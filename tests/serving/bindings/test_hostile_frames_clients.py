"""Clients of the frames port that mean harm, or are something else: each case ends their connection or refuses them.

Over real sockets. Meanwhile an honest client on another connection is served, and what the server holds stays bounded;
when they are gone nothing is left of them.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from helpers.serving.scripted_service import ScriptedService
from helpers.serving.strangers import HEADER, Heard, Honest, Stranger, frame, framed
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.bindings.frames_server import FramesServer, frames_network
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.protocol.answer_frames import encode_answer
from dlspark.serving.protocol.operations import (
    Delivery,
    Done,
    Handshake,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    Request,
    StatusCode,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import encode_request
from storage_node.transport.tcp import TcpNetwork

LIMITS = FramesLimits(
    connections=40,
    request_bytes=1_000_000,
    requests_under_way=100,
    bytes_under_way=2_000_000,
    reads_under_way=20,
    answer_bytes=300_000,
    delivery_bytes=2_000_000,
    memory_bytes=8_000_000,
    first_request_ms=400,
    idle_ms=60_000,
    stuck_ms=600,
)
HELD_BYTES = 12_000_000
"""The most that may be held: what all together may, and one request of each connection that is not counted."""
WRITE = 2
HANDSHAKE = 1


@dataclass
class World:
    service: ScriptedService
    server: FramesServer
    honest: Honest

    async def stranger(self) -> Stranger:
        return await Stranger.connect(self.server.port)

    async def say(self, data: bytes) -> Heard:
        """What comes back for these bytes, until the connection is closed."""
        stranger = await self.stranger()
        try:
            await stranger.send(data)
            return await stranger.hear()
        finally:
            await stranger.close()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    service = ScriptedService()
    service.keep = False
    service.served_anyway = (Handshake,)
    server = FramesServer(frames_network(LIMITS), service, limits=LIMITS)
    await server.start("127.0.0.1", 0)
    client = await FramesClient.connect(TcpNetwork(), f"127.0.0.1:{server.port}")
    most = 0

    async def ask() -> object:
        nonlocal most
        most = max(most, server.held_bytes)
        return await client.call(Handshake())

    try:
        async with Honest(ask) as honest:
            yield World(service, server, honest)
            await honest.served(5)
            service.release()
            await until(lambda: server.connection_count == 1)
        assert most < HELD_BYTES
        await until(lambda: server.held_bytes == 0)
        assert server.memory.used == 0
    finally:
        await client.close()
        await server.close(grace_s=0)


def request(value: Request, number: int = 7) -> bytes:
    return b"".join(encode_request(number, value))


def answer(value: object, number: int = 7) -> bytes:
    return b"".join(encode_answer(number, value))  # type: ignore[arg-type]


def write(payload: bytes = b"x", number: int = 7) -> bytes:
    return request(WriteRecords("stream", (payload,)), number)


def on_stream(name: bytes, rest: bytes = b"") -> bytes:
    """What requests on a stream begin with, behind their header."""
    return struct.pack(">IIH", 0, 0, len(name)) + name + rest


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

CLOSED: dict[str, bytes] = {
    "a length of zero": framed(b""),
    "a negative length": struct.pack(">i", -1) + bytes(100),
    "the lowest length": struct.pack(">i", -(2**31)),
    "the highest length": struct.pack(">i", 2**31 - 1) + bytes(100),
    "a length just above the transport's": struct.pack(">i", 5 * 1024 * 1024 - 3),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n",
    "gRPC": HTTP2,
    "TLS": TLS_HELLO,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "random bytes": b"\x7f" + random.Random(7).randbytes(100_000),
    "garbage behind a whole request": request(Handshake(), 1) + b"\xff" * 1000,
}
"""Where the stream itself is broken there is no frame to answer: the connection is closed."""

REFUSED: dict[str, tuple[bytes, int]] = {
    "a frame of one byte": (framed(b"\x01"), 0),
    "a header that is cut off": (framed(HEADER.pack(1, WRITE, 0, 7)[:11]), 0),
    "another version": (frame(WRITE, version=2), 7),
    "version zero": (frame(WRITE, version=0), 7),
    "kind zero": (frame(0), 7),
    "an unknown kind": (frame(77), 7),
    "the highest kind": (frame(255), 7),
    "a receipt": (answer(WriteReceipt(DLSN(1, 2, 3), 1)), 7),
    "a refusal": (answer(Refusal(StatusCode.FOUND, "no", location="1;-1;h:1")), 7),
    "a delivery": (answer(Delivery(ReadForm.ENTRIES, DLSN(1, 2, 3), (b"x" * 1000,))), 7),
    "done": (answer(Done()), 7),
    "unknown flags": (frame(HANDSHAKE, flags=0x8000), 7),
    "a write without a body": (frame(WRITE), 7),
    "a body that is cut off": (framed(write(b"payload" * 10)[4:-30]), 7),
    "bytes behind the last field": (framed(request(TruncateStream("s", DLSN(1, 2, 3)))[4:] + b"x"), 7),
    "a stream that is not UTF-8": (frame(WRITE, on_stream(b"\xff\xfe\x80", struct.pack(">II", 1, 1) + b"x")), 7),
    "a stream longer than the frame": (frame(WRITE, struct.pack(">IIH", 0, 0, 65535) + b"short"), 7),
    "four thousand million payloads": (frame(WRITE, on_stream(b"s", struct.pack(">I", 2**32 - 1))), 7),
    "a million empty payloads": (frame(WRITE, on_stream(b"s", struct.pack(">I", 200_000) + bytes(800_000))), 7),
    "payloads longer than the frame": (frame(WRITE, on_stream(b"s", struct.pack(">III", 2, 2**31, 2**31))), 7),
    "payloads shorter than the frame": (frame(WRITE, on_stream(b"s", struct.pack(">III", 2, 1, 1) + b"xyz")), 7),
    "hosts tried that are not there": (frame(WRITE, on_stream(b"s", b"\xff"), flags=4), 7),
    "an unknown form": (frame(14, on_stream(b"s", struct.pack(">IBIIBB", 0, 9, 1, 1, 3, 1))), 7),
    "an unknown start": (frame(14, on_stream(b"s", struct.pack(">IBIIBB", 0, 1, 1, 1, 3, 99))), 7),
    "the number 0": (request(Handshake(), 0), 0),
}
"""Frame, and the number of the refusal. Then the connection is closed."""


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED)
async def test_a_broken_stream_is_closed(data):
    async with world() as it:
        assert (await it.say(data)).closed


@pytest.mark.parametrize(("data", "number"), REFUSED.values(), ids=REFUSED)
async def test_what_is_no_request_is_refused_and_closed(data, number):
    async with world() as it:
        it.service.keep = True
        heard = await it.say(data)
        assert heard.closed
        ((answered, code),) = heard.refusals
        assert (answered, code) == (number, StatusCode.INTERNAL_SERVER_ERROR)
        assert {type(request) for request in it.service.requests} <= {Handshake}, "nothing of it reached the service"


Attack = Callable[[World], Awaitable[None]]


async def duplicate_numbers(it: World) -> None:
    it.service.hold = True
    stranger = await it.stranger()
    await stranger.send(write(number=5) + write(number=5))
    heard = await stranger.hear()
    assert heard.closed
    assert [number for number, _ in heard.refusals] == [0]
    await stranger.close()


async def a_long_request(it: World) -> None:
    stranger = await it.stranger()
    await stranger.send(write(bytes(1_500_000), 1) + request(Handshake(), 2))
    heard = await stranger.hear(lambda heard: len(heard.answers) == 2)
    assert heard.refusals == [(1, StatusCode.TOO_LARGE_RECORD)]
    assert not heard.closed
    await stranger.close()


async def a_flood_of_tiny_frames(it: World) -> None:
    """It is served, in its turn."""
    count = 50_000
    data = b"".join(request(Handshake(), n + 1) for n in range(count))
    size = len(answer(await it.honest.ask()))  # type: ignore[arg-type]
    stranger = await it.stranger()
    sending = asyncio.create_task(stranger.send(data))
    hearing = asyncio.create_task(stranger.hear(lambda heard: len(heard.data) >= count * size))
    await it.honest.served(5)
    await hearing
    await sending
    assert len(stranger.heard.answers) == count
    await stranger.close()


async def a_flood_whose_answers_are_not_taken(it: World) -> None:
    asked = b"".join(request(ReadBatch("s", ReadFrom.OLDEST), n + 1) for n in range(2000))
    it.service.answer = _long_answer
    stranger = await it.stranger()
    stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sending = asyncio.create_task(stranger.send(asked))
    await until(lambda: it.server.connection_count == 1)
    await sending
    await stranger.close()


def _long_answer(asked: Request, _number: int) -> Delivery | Done:
    return Delivery(ReadForm.ENTRIES, DLSN(1, 0, 0), (bytes(90_000),)) if isinstance(asked, ReadBatch) else Done()


async def more_reads_than_it_may_have(it: World) -> None:
    it.service.hold = True
    stranger = await it.stranger()
    await stranger.send(b"".join(request(ReadBatch("s", ReadFrom.LATEST), n + 1) for n in range(60)))
    heard = await stranger.hear(lambda heard: len(heard.answers) == 40)
    assert heard.refusals == [(n + 1, StatusCode.OVER_CAPACITY) for n in range(20, 60)]
    it.service.release()
    await stranger.close()


async def a_flood_of_writes_that_are_not_answered(it: World) -> None:
    """The connection is paused: the proxy holds what it may, the rest stays with the stranger."""
    it.service.hold = True
    data = b"".join(write(bytes(10_000), n + 1) for n in range(1000))
    stranger = await it.stranger()
    sending = asyncio.create_task(stranger.send(data))
    await until(lambda: len(it.service.held) > 100)
    for _ in range(20):
        await it.honest.served(1)
    assert len(it.service.held) == 101
    assert it.server.held_bytes < 4_000_000
    stranger.reset()
    await sending


async def silence(it: World) -> None:
    stranger = await it.stranger()
    assert (await stranger.hear()).closed
    await stranger.close()


async def a_slow_drip(it: World) -> None:
    stranger = await it.stranger()
    for byte in write(bytes(1000)):
        if it.server.connection_count == 1:
            break
        await stranger.send(bytes([byte]))
        await asyncio.sleep(0.02)
    await stranger.hear()
    assert stranger.heard.closed
    assert stranger.heard.data == b""
    await stranger.close()


async def halves_of_long_frames(it: World) -> None:
    strangers = [await it.stranger() for _ in range(20)]
    for stranger in strangers:
        await stranger.send(framed(bytes(5_000_000))[:400_000])
    await until(lambda: it.server.connection_count == 1)
    for stranger in strangers:
        await stranger.close()


async def more_connections_than_there_are_places(it: World) -> None:
    strangers = [await it.stranger() for _ in range(150)]
    assert it.server.connection_count <= LIMITS.connections
    await it.honest.served(5)
    for stranger in strangers:
        await stranger.close()


async def connections_that_are_reset_at_once(it: World) -> None:
    for _ in range(200):
        (await it.stranger()).reset()
    await until(lambda: it.server.connection_count == 1)


async def a_reset_with_requests_under_way(it: World) -> None:
    it.service.hold = True
    for _ in range(10):
        stranger = await it.stranger()
        await stranger.send(b"".join(write(number=n + 1) for n in range(50)))
        stranger.reset()
    await until(lambda: it.server.connection_count == 1)
    assert len(it.service.gone) == 10
    it.service.release()


async def a_request_and_its_end(it: World) -> None:
    """Who closes its side waits for nothing more."""
    stranger = await it.stranger()
    await stranger.send(write())
    stranger.writer.write_eof()
    assert (await stranger.hear()).closed
    await stranger.close()


async def the_same_garbage_again_and_again(it: World) -> None:
    for _ in range(300):
        stranger = await it.stranger()
        await stranger.send(frame(77))
        await stranger.close()
    await until(lambda: it.server.connection_count == 1)


async def payloads_that_are_empty(it: World) -> None:
    """16,384 of them take 64 KiB on the way, and far more as values: they count as what they take."""
    it.service.hold = True
    many = WriteRecords("s", (b"",) * 16_384)
    data = b"".join(request(many, n + 1) for n in range(50))
    stranger = await it.stranger()
    sending = asyncio.create_task(stranger.send(data))
    await until(lambda: it.service.held)
    for _ in range(20):
        await it.honest.served(1)
    assert len(it.service.held) == 1
    stranger.reset()
    await sending


ATTACKS: list[Attack] = [
    duplicate_numbers,
    a_long_request,
    a_flood_of_tiny_frames,
    a_flood_whose_answers_are_not_taken,
    more_reads_than_it_may_have,
    a_flood_of_writes_that_are_not_answered,
    silence,
    a_slow_drip,
    halves_of_long_frames,
    more_connections_than_there_are_places,
    connections_that_are_reset_at_once,
    a_reset_with_requests_under_way,
    a_request_and_its_end,
    the_same_garbage_again_and_again,
    payloads_that_are_empty,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_an_attack_ends_itself_and_no_other(attack):
    async with world() as it:
        await attack(it)


@pytest.mark.parametrize("seed", range(8))
async def test_requests_with_changed_bytes_are_answered_refused_or_closed(seed):
    rng = random.Random(seed)
    whole = [
        request(WriteRecords("stream", (b"a" * 40, b"b" * 3)), 1),
        request(ReadBatch("stream", DLSN(1, 2, 3)), 2),
        request(TruncateStream("stream", DLSN(1, 2, 3)), 3),
    ]
    async with world() as it:
        for _ in range(25):
            data = bytearray(rng.choice(whole))
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(4, len(data))] = rng.randrange(256)
            stranger = await it.stranger()
            await stranger.send(bytes(data))
            heard = await stranger.hear(lambda heard: heard.answers)
            assert heard.answers or heard.closed
            await stranger.close()
