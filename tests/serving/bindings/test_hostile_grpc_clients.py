"""Clients of the gRPC port that mean harm, or are something else: each case ends with a status, or their connection.

Over real sockets, some of them in HTTP/2 by hand. Meanwhile an honest client on a connection of its own is served, and
calls and what they hold stay bounded; when they are gone nothing is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from helpers.serving.scripted_service import ScriptedService, answer_to
from helpers.serving.strangers import Honest, Stranger
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.grpc_server import GrpcServer, client_options
from dlspark.serving.bindings.service import GrpcLimits
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.operations import Answer, Delivery, Handshake, ReadBatch, ReadForm, Request, WriteRecords
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.protocol.rpc_requests import SERVICE

LIMITS = GrpcLimits(
    connections=30,
    streams_per_connection=50,
    calls=200,
    calls_per_host=150,
    message_ms=60_000,
    message_bytes=1_000_000,
    metadata_bytes=8_192,
    append_requests=100,
    append_bytes=2_000_000,
    memory_bytes=8_000_000,
    idle_ms=60_000,
    handshake_ms=60_000,
)
HELD_BYTES = 8_000_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4


@dataclass
class World:
    service: ScriptedService
    server: GrpcServer
    honest: Honest
    channel: grpc.aio.Channel
    """The stranger's."""

    async def stranger(self) -> Stranger:
        return await Stranger.connect(self.server.port)

    async def call(self, method: str, data: bytes, *, timeout: float | None = 60, **more: object) -> bytes:
        answer: bytes = await self.channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=timeout, **more)
        return answer


@asynccontextmanager
async def world(**limits: int) -> AsyncIterator[World]:
    """Serve strangers and an honest client. Limits of time are long but for a test's own, lest a busy machine meets
    them."""
    service = ScriptedService()
    service.keep = False
    service.served_anyway = (Handshake,)
    server = GrpcServer(service, limits=replace(LIMITS, **limits))
    await server.start("::", 0)
    address, most = f"127.0.0.1:{server.port}", 0
    honest_channel = grpc.aio.insecure_channel(f"[::1]:{server.port}", options=client_options())
    own = (
        *client_options(message_bytes=50_000_000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # A window that stays as it is: on a busy machine the library takes long answers for a long way, and opens it.
        ("grpc.http2.bdp_probe", 0),
    )
    channel = grpc.aio.insecure_channel(address, options=own)
    handshake = honest_channel.unary_unary(f"/{SERVICE}/Handshake")

    async def ask() -> object:
        nonlocal most
        most = max(most, server.held_bytes)
        assert server.calls_under_way <= LIMITS.calls
        return await handshake(b"", wait_for_ready=True)

    try:
        async with Honest(ask) as honest:
            yield World(service, server, honest, channel)
            await honest.served(5)
            await channel.close()
            service.release()
            await until(lambda: server.calls_under_way <= 1)
        await until(lambda: server.calls_under_way == 0)
        assert most < HELD_BYTES
        assert server.held_bytes == 0
    finally:
        await channel.close()
        await honest_channel.close()
        await server.close(grace_s=0)


def write(*payloads: bytes, stream: str = "stream") -> bytes:
    return pb.WriteRequest(stream=stream, payloads=payloads or (b"x",)).SerializeToString()


def field_of(number: int, data: bytes) -> bytes:
    """A field of bytes, as Protocol Buffers has it."""
    size, length = b"", len(data)
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + data


INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNKNOWN_CALL = grpc.StatusCode.UNIMPLEMENTED

ENDED: dict[str, tuple[str, bytes, grpc.StatusCode]] = {
    "a message above the limit": ("Write", write(bytes(1_100_000)), EXHAUSTED),
    "an unknown call": ("Steal", b"", UNKNOWN_CALL),
    "a call of another service": (f"../{SERVICE}x/Write", b"", UNKNOWN_CALL),
    "an empty name of a call": ("", b"", UNKNOWN_CALL),
    "bytes that are no message": ("Write", b"\xff" * 50, INVALID),
    "a message that is cut off": ("Write", write(b"payload" * 10)[:-20], INVALID),
    "random bytes": ("Truncate", random.Random(3).randbytes(1000), INVALID),
    "a stream that is not UTF-8": ("Write", field_of(2, b"\xff\xfe\x80"), INVALID),
    "a producer that is not UTF-8": ("BeginEpoch", field_of(1, b"s") + field_of(2, b"\xc3\x28"), INVALID),
    "more payloads than a request may have": ("Write", field_of(2, b"s") + field_of(3, b"") * 100_000, INVALID),
    "more hosts than may have been tried": (
        "Create",
        field_of(1, b"s") + field_of(2, field_of(1, b"h") * 5000),
        INVALID,
    ),
    "fewer transaction ids than payloads": (
        "Write",
        pb.WriteRequest(stream="s", payloads=[b"a", b"b"], transaction_ids=[1]).SerializeToString(),
        INVALID,
    ),
    "nested groups without an end": ("Write", b"\x0b" * 10_000, INVALID),
    "a length that goes on for ever": ("Write", b"\x1a" + b"\xff" * 100, INVALID),
}
"""Call, message, and the status that ends it."""


@pytest.mark.parametrize(("method", "data", "status"), ENDED.values(), ids=ENDED)
async def test_what_no_message_can_answer_ends_the_call(method, data, status):
    async with world() as it:
        it.service.keep = True
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.call(method, data)
        assert error.value.code() is status
        assert {type(request) for request in it.service.requests} <= {Handshake}, "nothing of it reached the service"
        answer = pb.WriteResponse.FromString(await it.call("Write", write()))
        assert answer.status.code == pb.Status.SUCCESS, "the connection goes on"


NO_HTTP2: dict[str, bytes] = {
    "an HTTP/1.1 request": b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "random bytes": random.Random(7).randbytes(10_000),
    "a frame of our own": b"".join(encode_request(1, WriteRecords("stream", (b"x",)))),
    "nothing": b"",
    "half of what HTTP/2 begins with": PREFACE[:10],
}


@pytest.mark.parametrize("data", NO_HTTP2.values(), ids=NO_HTTP2)
async def test_what_is_not_http2_is_closed(data):
    async with world(handshake_ms=500) as it:
        stranger = await it.stranger()
        await stranger.send(data)
        assert (await stranger.hear()).closed
        await stranger.close()


# ---------------------------------------------------------------------- HTTP/2 by hand


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def header(name: str, value: str) -> bytes:
    """A literal, not indexed."""
    size = len(value).to_bytes(1, "big") if len(value) < 127 else b"\x7f" + bytes([len(value) - 127])
    return b"\x00" + bytes([len(name)]) + name.encode() + size + value.encode()


def headers_of(path: str, content_type: str = "application/grpc") -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "proxy",
        "content-type": content_type,
        "te": "trailers",
    }
    return b"".join(header(name, value) for name, value in fields.items())


WRITE_PATH = f"/{SERVICE}/Write"
BEGINNING = PREFACE + frame(SETTINGS, 0, 0)


def frames_in(data: bytes) -> list[tuple[int, int, bytes]]:
    """(kind, stream, body) of the whole frames."""
    found, at = [], 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        if at + 9 + length > len(data):
            break
        found.append((data[at + 3], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + length]))
        at += 9 + length
    return found


async def wrong_content_type(it: World) -> None:
    """gRPC takes any: whoever speaks HTTP/2 and its messages is answered as its clients are."""
    stranger = await it.stranger()
    data = write()
    opened = frame(HEADERS, END_HEADERS, 1, headers_of(WRITE_PATH, "text/html"))
    await stranger.send(BEGINNING + opened + frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(data)) + data))
    heard = await stranger.hear(lambda heard: b"grpc-status" in heard.data)
    (answered,) = [body for kind, _, body in frames_in(heard.data) if kind == DATA]
    assert pb.WriteResponse.FromString(answered[5:]).status.code == pb.Status.SUCCESS
    await stranger.close()


async def a_call_that_ends_without_a_message(it: World) -> None:
    it.service.keep = True
    stranger = await it.stranger()
    calls = [frame(HEADERS, END_HEADERS | END_STREAM, stream, headers_of(WRITE_PATH)) for stream in range(1, 81, 2)]
    await stranger.send(BEGINNING + b"".join(calls))
    await it.honest.served(10)
    await until(lambda: it.server.calls_under_way <= 1)
    assert {type(request) for request in it.service.requests} <= {Handshake}
    await stranger.close()


async def resets_in_a_flood(it: World) -> None:
    """Rapid reset: calls that are opened and cancelled by the thousand."""
    stranger = await it.stranger()
    await stranger.send(BEGINNING)
    opened = headers_of(WRITE_PATH)
    for first in range(1, 10_000, 200):
        await stranger.send(
            b"".join(
                frame(HEADERS, END_HEADERS, stream, opened) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
                for stream in range(first, first + 200, 2)
            )
        )
    await it.honest.served(10)
    await stranger.close()


async def pings_in_a_flood(it: World) -> None:
    stranger = await it.stranger()
    await stranger.send(BEGINNING + frame(PING, 0, 0, bytes(8)) * 2000)
    heard = await stranger.hear()
    assert heard.closed
    assert GOAWAY in {kind for kind, _, _ in frames_in(heard.data)}
    await stranger.close()


async def settings_in_a_flood(it: World) -> None:
    stranger = await it.stranger()
    await stranger.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * 5000)
    await it.honest.served(10)
    await stranger.close()


async def headers_without_an_end(it: World) -> None:
    stranger = await it.stranger()
    part = header("x-long", "v" * 200) * 70
    await stranger.send(BEGINNING + frame(HEADERS, 0, 1, headers_of(WRITE_PATH)))
    for _ in range(500):
        await stranger.send(frame(CONTINUATION, 0, 1, part))
    await it.honest.served(10)
    assert it.server.calls_under_way <= 1
    await stranger.close()


async def a_frame_longer_than_agreed(it: World) -> None:
    stranger = await it.stranger()
    await stranger.send(BEGINNING + frame(DATA, 0, 1, bytes(5_000_000)))
    assert (await stranger.hear()).closed
    await stranger.close()


async def data_for_no_call(it: World) -> None:
    stranger = await it.stranger()
    await stranger.send(BEGINNING + frame(DATA, 0, 99, bytes(1000)) * 1000)
    await it.honest.served(10)
    await stranger.close()


async def half_a_message(it: World) -> None:
    """The beginning of a call, and nothing more: the connection ends, and with it the call."""
    stranger = await it.stranger()
    announced = frame(DATA, 0, 1, struct.pack(">BI", 0, 500_000) + bytes(1000))
    await stranger.send(BEGINNING + frame(HEADERS, END_HEADERS, 1, headers_of(WRITE_PATH)) + announced)
    await it.honest.served(10)
    stranger.reset()


# ---------------------------------------------------------------------- by gRPC's own client


async def metadata_bomb(it: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await it.call("Write", write(), metadata=[("x-bomb", "b" * 100_000)])
    assert error.value.code() in (EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


async def a_deadline_of_zero(it: World) -> None:
    """By hand: gRPC's own client would not send it."""
    it.service.keep = True
    stranger = await it.stranger()
    data = write()
    opened = headers_of(WRITE_PATH) + header("grpc-timeout", "0n")
    message = frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(data)) + data)
    await stranger.send(BEGINNING + frame(HEADERS, END_HEADERS, 1, opened) + message)
    heard = await stranger.hear(lambda heard: {1} & {of for _, of, _ in frames_in(heard.data)})
    assert DATA not in {kind for kind, _, _ in frames_in(heard.data)}, "it was not answered"
    assert {type(request) for request in it.service.requests} <= {Handshake}
    await stranger.close()


async def calls_cancelled_in_a_storm(it: World) -> None:
    it.service.hold = True
    for _ in range(10):
        calls = [asyncio.create_task(it.call("Write", write(bytes(1000)))) for _ in range(100)]
        await it.honest.served(1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await until(lambda: it.server.calls_under_way <= 1)


async def streams_without_messages(it: World) -> None:
    """More of them than one connection may have wait at their client."""
    opened = it.channel.stream_stream(f"/{SERVICE}/Append")
    calls = [opened() for _ in range(120)]
    await until(lambda: it.server.calls_under_way >= LIMITS.streams_per_connection)
    await it.honest.served(10)
    assert it.server.calls_under_way <= LIMITS.streams_per_connection + 1
    for call in calls:
        call.cancel()
    await until(lambda: it.server.calls_under_way <= 1)


async def more_calls_than_a_host_may_have(it: World) -> None:
    """The honest client comes from another host."""
    it.service.hold = True
    options = (*client_options(), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{it.server.port}", options=options) for _ in range(6)]
    writes = [channel.unary_unary(WRITE_PATH) for channel in channels]
    calls = [asyncio.ensure_future(_outcome(one(write(), timeout=60))) for one in writes for _ in range(50)]
    await until(lambda: sum(call.done() for call in calls) == 150)
    await it.honest.served(10)
    assert len(it.service.held) == 150
    it.service.release()
    outcomes = await asyncio.gather(*calls)
    assert outcomes.count(grpc.StatusCode.OK) == outcomes.count(EXHAUSTED) == 150
    for channel in channels:
        await channel.close()


async def more_calls_of_headers_alone_than_there_are_places(it: World) -> None:
    """gRPC counts a call before its message has come: those of one host leave places to the others."""
    it.service.keep = True
    strangers = [await it.stranger() for _ in range(8)]
    for stranger in strangers:
        calls = [frame(HEADERS, END_HEADERS, number, headers_of(WRITE_PATH)) for number in range(1, 90, 2)]
        await stranger.send(BEGINNING + b"".join(calls))
        await it.honest.served(5)
    assert {type(request) for request in it.service.requests} <= {Handshake}
    for stranger in strangers:
        await stranger.close()


async def more_watches_of_its_health_than_there_are_places(it: World) -> None:
    options = (*client_options(), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{it.server.port}", options=options) for _ in range(8)]
    states: list[asyncio.Future[object]] = []

    def all_answered() -> bool:
        return all(state.done() for state in states)

    for channel in channels:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        states += [asyncio.ensure_future(watch(health_pb2.HealthCheckRequest()).read()) for _ in range(40)]
        await until(all_answered)
        await it.honest.served(5)
    watched = await asyncio.gather(*states, return_exceptions=True)
    assert sum(isinstance(one, health_pb2.HealthCheckResponse) for one in watched) == LIMITS.calls_per_host
    for channel in channels:
        await channel.close()


async def a_call_whose_message_does_not_come(it: World) -> None:
    stranger = await it.stranger()
    opened = frame(HEADERS, END_HEADERS, 1, headers_of(WRITE_PATH))
    await stranger.send(BEGINNING + opened + frame(DATA, 0, 1, struct.pack(">BI", 0, 5)))
    heard = await stranger.hear(lambda heard: b"its message has not come within 2000 ms" in heard.data)
    assert not heard.closed
    await stranger.close()


async def _outcome(call: Awaitable[bytes]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def more_than_all_may_hold(it: World) -> None:
    it.service.hold = True
    calls = [asyncio.create_task(it.call("Write", write(bytes(900_000)))) for _ in range(20)]
    await until(lambda: len(it.service.held) == 8)
    done = [pb.WriteResponse.FromString(await call) for call in await _first(calls, 12)]
    assert {answer.status.code for answer in done} == {pb.Status.OVER_CAPACITY}
    it.service.release()
    await asyncio.gather(*calls)


async def _first(calls: list[asyncio.Task[bytes]], count: int) -> list[asyncio.Task[bytes]]:
    await until(lambda: sum(call.done() for call in calls) >= count)
    return [call for call in calls if call.done()]


async def appends_that_are_not_answered(it: World) -> None:
    """The window is read, and no more."""
    it.service.hold = True
    call = it.channel.stream_stream(f"/{SERVICE}/Append")()
    data = write(bytes(10_000))

    async def send() -> None:
        with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for _ in range(1000):
                await call.write(data)

    sending = asyncio.create_task(send())
    await until(lambda: len(it.service.held) == 100)
    await it.honest.served(20)
    assert len(it.service.held) == 100
    call.cancel()
    await asyncio.wait([sending])


async def a_reader_that_takes_nothing(it: World) -> None:
    asked = 0

    def answer(request: Request, number: int) -> Answer:
        nonlocal asked
        if not isinstance(request, ReadBatch):
            return answer_to(request, number)
        asked += 1
        return Delivery(ReadForm.ENTRIES, DLSN(1, 1, 0), (bytes(500_000),))

    it.service.answer = answer
    reads = [it.channel.unary_stream(f"/{SERVICE}/Read")(field_of(1, b"s") + b"\x28\x01") for _ in range(10)]
    await until(lambda: asked >= 10)
    before = 0
    while asked != before:  # until it has come to rest
        before = asked
        await it.honest.served(40)
    assert before < 400
    for read in reads:
        read.cancel()


async def a_bomb_of_zeros(it: World) -> None:
    """40 MB of zeros, compressed to 40 KB: the limit is on what comes out."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = write(bytes(40_000_000))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await it.call("Write", bomb, compression=grpc.Compression.Gzip)
    assert error.value.code() is EXHAUSTED
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 300_000_000, "the client is in this process, too, and has three copies"


async def more_connections_than_there_are_places(it: World) -> None:
    strangers = [await it.stranger() for _ in range(100)]
    for stranger in strangers:
        await stranger.send(BEGINNING)
    await it.honest.served(10)
    await until(lambda: sum(bool(one.reader.at_eof() or one.reader.exception()) for one in strangers) >= 60)
    for stranger in strangers:
        await stranger.close()


ATTACKS: list[Callable[[World], Awaitable[None]]] = [
    wrong_content_type,
    a_call_that_ends_without_a_message,
    resets_in_a_flood,
    pings_in_a_flood,
    settings_in_a_flood,
    headers_without_an_end,
    a_frame_longer_than_agreed,
    data_for_no_call,
    half_a_message,
    metadata_bomb,
    a_deadline_of_zero,
    calls_cancelled_in_a_storm,
    streams_without_messages,
    more_calls_than_a_host_may_have,
    more_calls_of_headers_alone_than_there_are_places,
    more_watches_of_its_health_than_there_are_places,
    a_call_whose_message_does_not_come,
    more_than_all_may_hold,
    appends_that_are_not_answered,
    a_reader_that_takes_nothing,
    a_bomb_of_zeros,
    more_connections_than_there_are_places,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_an_attack_ends_itself_and_no_other(attack):
    async with world(**({"message_ms": 2_000} if attack is a_call_whose_message_does_not_come else {})) as it:
        await attack(it)
