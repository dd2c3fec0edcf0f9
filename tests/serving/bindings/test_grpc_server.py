"""The gRPC binding over real sockets: what a program in any language sees of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from helpers.serving.scripted_service import ScriptedService
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.serving.bindings.grpc_calls import GrpcCalls
from dlspark.serving.bindings.grpc_server import CallsOfHosts, GrpcServer, client_options, server_options
from dlspark.serving.bindings.service import GrpcLimits
from dlspark.serving.process.membership import ProxyEndpoint, proxy_member
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.deliveries import encode_records
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    CreateStream,
    Delivery,
    Done,
    Handshake,
    MoveStream,
    ProxyKind,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    Request,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.rpc_answers import RESPONSE_RECORDS
from dlspark.serving.protocol.rpc_requests import METHODS, SERVICE

HEALTHY = health_pb2.HealthCheckResponse.SERVING
STOPPING = health_pb2.HealthCheckResponse.NOT_SERVING


class Client:
    """Calls by their names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    def _codec(self, name: str) -> dict[str, object]:
        method = METHODS[name]
        return {
            "request_serializer": method.request.SerializeToString,
            "response_deserializer": method.response.FromString,
        }

    async def call(
        self,
        name: str,
        message: Message,
        timeout: float | None = 60,
        metadata: grpc.aio.Metadata | None = None,
    ) -> object:
        call = self.channel.unary_unary(f"/{SERVICE}/{name}", **self._codec(name))
        return await call(message, timeout=timeout, metadata=metadata)

    def read(self, message: Message, metadata: grpc.aio.Metadata | None = None) -> grpc.aio.UnaryStreamCall:
        return self.channel.unary_stream(f"/{SERVICE}/Read", **self._codec("Read"))(message, metadata=metadata)

    def append(self, metadata: grpc.aio.Metadata | None = None) -> grpc.aio.StreamStreamCall:
        return self.channel.stream_stream(f"/{SERVICE}/Append", **self._codec("Append"))(metadata=metadata)


@dataclass
class World:
    service: ScriptedService
    server: GrpcServer
    client: Client


def directory_of(addresses: dict[str, str]) -> ProxyDirectory:
    """Proxies, by location, and where they speak gRPC."""
    directory = ProxyDirectory()
    members = []
    for location, address in addresses.items():
        _, shard, endpoint = location.split(";")
        members.append(proxy_member(ProxyEndpoint.parse(endpoint), int(shard), grpc=ProxyEndpoint.parse(address)))
    directory.use(ProxyKind.WRITE, members)
    return directory


@asynccontextmanager
async def world(**limits: int) -> AsyncIterator[World]:
    service = ScriptedService()
    server = GrpcServer(service, limits=GrpcLimits(**limits))
    await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=client_options()) as channel:
            yield World(service, server, Client(channel))
    finally:
        service.release()
        await server.close(grace_s=0)


def write(*payloads: bytes, **fields: object) -> pb.WriteRequest:
    return pb.WriteRequest(stream="stream", payloads=payloads or (b"payload",), **fields)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- single calls


@pytest.mark.parametrize(
    ("said", "region"), [({"dlspark-region": "eu"}, "eu"), ({"dlspark-region": ""}, None), ({"other": "us"}, None)]
)
async def test_a_client_says_its_region_in_each_call_s_metadata(said: dict[str, str], region: str | None):
    metadata = grpc.aio.Metadata(*said.items())
    async with world() as it:
        await it.client.call("Write", write(), metadata=metadata)
        append = it.client.append(metadata)
        await append.write(write())
        await append.read()
        await append.done_writing()
        read = it.client.read(pb.ReadRequest(stream="stream"), metadata)
        await read.read()
        read.cancel()
        assert {type(request) for request in it.service.requests} >= {WriteRecords, ReadBatch}
        assert {caller.region for caller in it.service.callers} == {region}


async def test_the_name_of_no_region_is_refused_before_the_service_hears_of_the_call():
    async with world() as it:
        with pytest.raises(grpc.aio.AioRpcError, match="not the name of a region") as caught:
            await it.client.call("Write", write(), metadata=grpc.aio.Metadata(("dlspark-region", "a/b")))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert not it.service.callers


async def test_every_unary_call_reaches_the_service_and_is_answered():
    async with world() as it:
        for name, method in METHODS.items():
            if method.requests_stream or method.responses_stream:
                continue
            message = method.request()
            for text in ("stream", "producer", "target", "source"):
                if text in method.request.DESCRIPTOR.fields_by_name:
                    setattr(message, text, "127.0.0.1:4181" if text in ("target", "source") else "name")
            if name == "Write":
                message.payloads.append(b"x")
            if name == "Truncate":
                message.dlsn.segment = 3
            answer = await it.client.call(name, message)
            assert answer.status.code == pb.Status.SUCCESS, name  # type: ignore[attr-defined]
        assert len({type(request) for request in it.service.requests}) == 14
        assert len(it.service.gone) == len(it.service.requests), "each call is a caller, and goes"


async def test_a_write_of_many_payloads_is_one_request_and_its_correlation_comes_back():
    async with world() as it:
        answer = await it.client.call("Write", write(*(b"%d" % n for n in range(100)), correlation=7))
        (request,) = it.service.requests
        assert isinstance(request, WriteRecords)
        assert [bytes(payload) for payload in request.payloads] == [b"%d" % n for n in range(100)]
        assert (answer.correlation, len(answer.results)) == (7, 100)  # type: ignore[attr-defined]


async def test_a_refusal_is_the_message_s_status_and_no_error_of_grpc():
    async with world() as it:
        it.service.answer = lambda *_: Refusal(
            StatusCode.FOUND, "owned elsewhere", location="1;-1;10.0.0.5:4181", applied=Applied.NO
        )
        answer = await it.client.call("Write", write())
        status = answer.status  # type: ignore[attr-defined]
        assert (status.code, status.location, status.applied) == (
            pb.Status.FOUND,
            "1;-1;10.0.0.5:4181",
            pb.Status.NOT_APPLIED,
        )


async def test_an_owner_is_named_by_the_address_that_a_grpc_client_dials():
    service = ScriptedService()
    service.answer = lambda *_: Refusal(StatusCode.FOUND, "owned elsewhere", location="1;0;host:4181")
    server = GrpcServer(service, names=directory_of({"1;0;host:4181": "host:9000"}))
    await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=client_options()) as channel:
        client = Client(channel)
        single = await client.call("Write", write())
        call = client.append()
        await call.write(write(correlation=3))
        appended = await call.read()
        await call.done_writing()
        read = await client.read(pb.ReadRequest(stream="s")).read()
        for answer in (single, appended, read):
            assert answer.status.grpc_address == "host:9000"  # type: ignore[attr-defined]
    await server.close(grace_s=0)


async def test_a_client_may_name_proxies_by_the_addresses_that_it_dials():
    service = ScriptedService()
    server = GrpcServer(service, names=directory_of({"1;0;host:4181": "host:9000"}))
    await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=client_options()) as channel:
        client = Client(channel)
        tried = pb.RequestContext(tried_hosts=["host:9000", "other:1"])
        await client.call("Write", write(context=tried))
        call = client.append()
        await call.write(write(context=tried))
        await call.read()
        await call.done_writing()
        await client.call("Move", pb.MoveRequest(stream="s", target="host:9000"))
        written, appended, moved = service.requests
        for request in (written, appended):
            assert isinstance(request, WriteRecords)
            assert request.context.tried_hosts == ("1;0;host:4181", "other:1")
        assert isinstance(moved, MoveStream)
        assert moved.target == "1;0;host:4181"
    await server.close(grace_s=0)


async def test_a_service_that_fails_is_answered_as_in_doubt():
    async with world() as it:
        it.service.failing = RuntimeError("a mistake")
        answer = await it.client.call("Create", pb.StreamRequest(stream="s"))
        status = answer.status  # type: ignore[attr-defined]
        assert (status.code, status.applied) == (pb.Status.UNEXPECTED, pb.Status.OUTCOME_UNKNOWN)


async def test_the_client_s_deadline_is_the_request_s_timeout_where_that_is_shorter():
    async with world() as it:
        await it.client.call("Create", pb.StreamRequest(stream="s"), timeout=None)
        await it.client.call("Create", pb.StreamRequest(stream="s"), timeout=600)
        own = pb.RequestContext(timeout_ms=500)
        await it.client.call("Create", pb.StreamRequest(stream="s", context=own), timeout=600)
        times = [request.context.timeout_ms for request in it.service.requests if isinstance(request, CreateStream)]
        assert times[0] == 0
        assert 300_000 < times[1] <= 601_000, "gRPC rounds up"
        assert times[2] == 500


async def test_a_cancelled_call_is_dropped_and_the_service_hears_of_it():
    async with world() as it:
        it.service.hold = True
        calling = asyncio.create_task(it.client.call("Write", write()))
        await until(lambda: it.service.held)
        calling.cancel()
        await asyncio.wait([calling])
        await until(lambda: it.service.gone)
        assert it.service.gone == it.service.callers
        it.service.release()
        await until(lambda: it.server.calls_under_way == 0)
        assert it.server.held_bytes == 0


@pytest.mark.parametrize("size", [4 * 1024 * 1024, 5 * 1024 * 1024 - 1000])
async def test_messages_may_be_as_long_as_frames_and_not_only_as_grpc_has_it(size):
    async with world() as it:
        answer = await it.client.call("Write", write(bytes(size)))
        assert answer.status.code == pb.Status.SUCCESS  # type: ignore[attr-defined]


async def test_a_call_whose_message_has_come_may_take_longer_than_a_message_may():
    async with world(message_ms=500) as it:
        it.service.hold = True
        call = asyncio.ensure_future(it.client.call("Write", write()))
        await until(lambda: it.service.requests)
        await asyncio.sleep(0.6)
        it.service.release()
        assert (await call).status.code == pb.Status.SUCCESS


async def test_more_than_all_calls_may_hold_is_refused():
    async with world(memory_bytes=100_000) as it:
        it.service.hold = True
        first = asyncio.create_task(it.client.call("Write", write(bytes(90_000))))
        await until(lambda: it.service.held)
        answer = await it.client.call("Write", write(bytes(20_000)))
        status = answer.status  # type: ignore[attr-defined]
        assert (status.code, status.applied) == (pb.Status.OVER_CAPACITY, pb.Status.NOT_APPLIED)
        it.service.release()
        assert (await first).status.code == pb.Status.SUCCESS  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- Append


class NoCall:
    """A call whose client has no deadline, and waits."""

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    def invocation_metadata(self) -> None:
        return None

    def time_remaining(self) -> None:
        return None


async def test_large_requests_that_arrive_together_are_begun_one_in_a_turn_of_the_loop():
    service = ScriptedService()
    handler = GrpcCalls(service, GrpcLimits())._unary(METHODS["Write"])
    large, small = write(*[b""] * 5_000).SerializeToString(), write().SerializeToString()
    calls = [asyncio.ensure_future(handler(one, NoCall())) for one in [*[large] * 20, *[small] * 20]]
    before, steps = 0, []
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        steps.append(service.count - before)
        before = service.count
    assert max(steps) <= 21, "all small ones, and one large one"
    assert sum(step > 0 for step in steps) >= 20
    sizes = [len(request.payloads) for request in service.requests if isinstance(request, WriteRecords)]
    assert sizes[1:21] == [1] * 20 or sizes[:20] == [1] * 20, "the small ones do not wait for the large ones"


async def test_append_is_answered_by_correlation_in_the_order_in_which_answers_are_ready():
    async with world() as it:
        it.service.hold = True
        call = it.client.append()
        for number in range(1, 51):
            await call.write(write(b"%d" % number, correlation=number))
        await until(lambda: len(it.service.held) == 50)
        assert [bytes(r.payloads[0]) for r in it.service.requests] == [b"%d" % n for n in range(1, 51)]  # type: ignore[union-attr]
        assert len(set(map(id, it.service.callers))) == 1, "one caller: its requests are in order"
        it.service.held.reverse()
        it.service.release()
        await call.done_writing()
        assert [answer.correlation async for answer in call] == list(range(50, 0, -1))
        assert await call.code() is grpc.StatusCode.OK
        await until(lambda: it.service.gone)
        assert it.server.held_bytes == 0


async def test_append_reads_no_more_than_its_window_and_goes_on():
    async with world(append_requests=10) as it:
        it.service.hold = True
        call = it.client.append()

        async def send() -> None:
            for number in range(1, 101):
                await call.write(write(correlation=number))
            await call.done_writing()

        sending = asyncio.create_task(send())
        await until(lambda: len(it.service.held) == 10)
        answers: list[int] = []

        async def take() -> None:
            async for answer in call:
                answers.append(answer.correlation)

        taking = asyncio.create_task(take())
        while len(answers) < 100:
            assert len(it.service.held) <= 10
            it.service.release(len(it.service.held))
            await asyncio.sleep(0.001)
        await asyncio.gather(sending, taking)
        assert it.service.most_held == 10
        assert answers == list(range(1, 101))


async def test_append_that_is_cancelled_leaves_nothing_behind():
    async with world() as it:
        it.service.hold = True
        call = it.client.append()
        for number in range(1, 11):
            await call.write(write(correlation=number))
        await until(lambda: len(it.service.held) == 10)
        call.cancel()
        await until(lambda: it.service.gone)
        it.service.release()
        await until(lambda: it.server.calls_under_way == 0)
        assert it.server.held_bytes == 0


async def test_append_ends_with_an_error_at_what_is_no_request_and_answers_what_was_before_it():
    async with world() as it:
        raw = it.client.channel.stream_stream(f"/{SERVICE}/Append")()
        await raw.write(write(correlation=1).SerializeToString())
        await raw.write(b"\xff\xff\xff")
        answer = pb.WriteResponse.FromString(await raw.read())
        assert answer.correlation == 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await raw.read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---------------------------------------------------------------------- Read


@dataclass
class Log:
    """Answers reads from a list of entries, and waits at its end until something is appended."""

    entries: list[bytes] = field(default_factory=list)
    sealed: bool = False
    asked: list[ReadBatch] = field(default_factory=list)

    def answer(self, request: Request, _number: int) -> Answer:
        assert isinstance(request, ReadBatch)
        self.asked.append(request)
        at = request.start.entry_id if isinstance(request.start, DLSN) else 0
        parts = tuple(self.entries[at : at + 2])
        after = DLSN(1, at + len(parts), 0)
        return Delivery(request.form, after, parts, self.sealed and at + len(parts) == len(self.entries))


async def test_read_goes_on_until_the_log_is_sealed():
    async with world() as it:
        log = Log([b"entry-%d" % n for n in range(7)])
        log.sealed = True
        it.service.answer = log.answer
        got = [answer async for answer in it.client.read(pb.ReadRequest(stream="s", form=pb.ReadRequest.ENTRIES))]
        assert [part for answer in got for part in answer.parts] == log.entries
        assert [answer.end_of_stream for answer in got] == [False, False, False, True]
        assert got[-1].next == pb.Dlsn(segment=1, entry=7, slot=0)
        assert log.asked[0].start is ReadFrom.OLDEST
        assert all(request.wait_ms > 0 for request in log.asked)
        assert len(set(map(id, it.service.callers))) == 1


async def test_read_asks_for_more_only_as_the_client_takes_it():
    async with world() as it:
        log = Log([bytes(500_000)] * 200)
        log.sealed = True
        it.service.answer = log.answer
        call = it.client.read(pb.ReadRequest(stream="s", form=pb.ReadRequest.ENTRIES))
        first = await call.read()
        assert len(first.parts) == 2
        before = -1
        while len(log.asked) != before:  # until it has come to rest
            before = len(log.asked)
            await asyncio.sleep(0.2)
        assert before < 60, "the client has taken one response of 100"
        count = 1
        while await call.read() is not grpc.aio.EOF:
            count += 1
        assert count == 100
        await until(lambda: it.server.held_bytes == 0)


async def test_read_says_that_nothing_came_and_ends_when_the_client_goes():
    async with world() as it:
        it.service.hold = True
        call = it.client.read(pb.ReadRequest(stream="s"))
        await until(lambda: it.service.held)
        it.service.release(1)
        beat = await call.read()
        assert (beat.status.code, len(beat.records), beat.next) == (pb.Status.SUCCESS, 0, pb.Dlsn(segment=1, entry=1))
        await until(lambda: it.service.held)
        call.cancel()
        await until(lambda: it.service.gone)
        await until(lambda: it.server.calls_under_way == 0)


async def test_a_client_that_goes_while_much_is_sent_to_it_is_no_mistake_of_ours(caplog):
    async with world() as it:
        log = Log([bytes(500_000)] * 200)
        it.service.answer = log.answer
        call = it.client.read(pb.ReadRequest(stream="s", form=pb.ReadRequest.ENTRIES))
        await call.read()
        call.cancel()
        await until(lambda: it.server.calls_under_way == 0)
        assert it.server.held_bytes == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(("asked", "waits"), [(0, 10_000), (1, 500), (2_000, 2_000), (2**32 - 1, 60_000)])
async def test_a_reader_says_how_often_it_hears_that_nothing_came(asked, waits):
    async with world() as it:
        log = Log()
        log.sealed = True
        it.service.answer = log.answer
        async for _ in it.client.read(pb.ReadRequest(stream="s", heartbeat_ms=asked)):
            pass
        assert [request.wait_ms for request in log.asked] == [waits]


ENTRIES = pb.ReadRequest.ENTRIES
MISSING = Refusal(StatusCode.LOG_NOT_FOUND, "no such log", applied=Applied.WRONG)


@pytest.mark.parametrize("start", [pb.ReadRequest.OLDEST, pb.ReadRequest.LATEST])
async def test_a_log_is_waited_for_and_read_from_its_begin(start):
    """What is in it was written after the call, so that it is all "from now on"."""
    async with world() as it:
        it.service.answer = lambda *_: MISSING
        call = it.client.read(pb.ReadRequest(stream="s", at=start, form=ENTRIES, wait_for_log=True, heartbeat_ms=1))
        for _ in range(2):
            beat = await call.read()
            assert (beat.status.code, beat.HasField("next"), beat.end_of_stream) == (pb.Status.SUCCESS, False, False)
        assert it.service.requests[0].start is (ReadFrom.OLDEST if start == pb.ReadRequest.OLDEST else ReadFrom.LATEST)
        log = Log([b"entry"])
        log.sealed = True
        it.service.answer = log.answer
        while not (answer := await call.read()).end_of_stream:
            assert not answer.HasField("next"), "nothing but a heartbeat that was on its way"
        assert (len(log.asked), log.asked[0].start) == (1, ReadFrom.OLDEST)


async def test_who_reads_from_the_end_hears_at_once_where_that_is():
    """A client that lost its proxy before would begin again at the end, behind what was written meanwhile."""
    async with world() as it:
        log = Log([b"entry"] * 2)
        it.service.answer = log.answer
        call = it.client.read(pb.ReadRequest(stream="s", at=pb.ReadRequest.LATEST, form=ENTRIES, heartbeat_ms=60_000))
        assert (await call.read()).HasField("next")
        await until(lambda: len(log.asked) > 1)
        assert [(one.start, one.wait_ms) for one in log.asked[:2]] == [
            (ReadFrom.LATEST, 0),
            (DLSN(1, 2, 0), 60_000),
        ]


async def test_who_waits_for_a_log_at_its_end_hears_at_once_that_there_is_none():
    """From then on all of it is new, to whichever proxy the client goes."""
    async with world() as it:
        it.service.answer = lambda *_: MISSING
        wanted = pb.ReadRequest(stream="s", at=pb.ReadRequest.LATEST, wait_for_log=True, heartbeat_ms=60_000)
        call = it.client.read(wanted)
        beat = await call.read()
        assert (beat.status.code, beat.HasField("next")) == (pb.Status.SUCCESS, False)
        await until(lambda: it.service.count > 1)
        assert [request.start for request in it.service.requests[:2]] == [ReadFrom.LATEST, ReadFrom.OLDEST]
        call.cancel()


async def test_a_delivery_of_many_records_comes_in_several_responses_each_of_which_says_where_it_ends():
    records = [LogRecord(n, b"%d" % n, DLSN(7, n // 9, n % 9), n + 1, 0, n) for n in range(3 * RESPONSE_RECORDS)]
    async with world() as it:
        delivery = Delivery(ReadForm.RECORDS, DLSN(8, 0, 0), (encode_records(records),), end_of_stream=True)
        it.service.answer = lambda *_: delivery
        got = [answer async for answer in it.client.read(pb.ReadRequest(stream="s"))]
        assert [len(answer.records) for answer in got] == [RESPONSE_RECORDS] * 3
        assert [one.payload for answer in got for one in answer.records] == [record.payload for record in records]
        assert [answer.next for answer in got] == [got[1].records[0].dlsn, got[2].records[0].dlsn, pb.Dlsn(segment=8)]
        assert [answer.end_of_stream for answer in got] == [False, False, True]
        await until(lambda: it.server.held_bytes == 0)


async def test_what_cannot_be_sent_ends_a_read():
    async with world() as it:
        it.service.answer = lambda *_: Delivery(ReadForm.RECORDS, DLSN(8, 0, 0), (b"no batch",))
        (refused,) = [answer async for answer in it.client.read(pb.ReadRequest(stream="s"))]
        assert refused.status.code == pb.Status.UNEXPECTED
        assert it.service.count == 1


async def test_readers_that_wait_for_their_logs_are_bounded():
    async with world(waiting_reads=2) as it:
        it.service.answer = lambda *_: MISSING
        waiting = [it.client.read(pb.ReadRequest(stream="s", wait_for_log=True)) for _ in range(2)]
        await until(lambda: it.service.count == 2)
        refused = await it.client.read(pb.ReadRequest(stream="s", wait_for_log=True)).read()
        assert (refused.status.code, refused.status.applied) == (pb.Status.OVER_CAPACITY, pb.Status.NOT_APPLIED)
        for call in waiting:
            call.cancel()
        await until(lambda: it.server.calls_under_way == 0)
        it.service.count = 0
        again = it.client.read(pb.ReadRequest(stream="s", wait_for_log=True))
        await until(lambda: it.service.count == 2), "it has looked twice"
        again.cancel()


async def test_a_log_that_was_there_is_not_waited_for_again():
    async with world() as it:
        log = Log([b"entry"])
        it.service.answer = log.answer
        call = it.client.read(pb.ReadRequest(stream="s", form=ENTRIES, wait_for_log=True))
        assert (await call.read()).next == pb.Dlsn(segment=1, entry=1)
        it.service.answer = lambda *_: MISSING
        while (answer := await call.read()).status.code == pb.Status.SUCCESS:
            pass
        assert answer.status.code == pb.Status.LOG_NOT_FOUND
        assert await call.read() is grpc.aio.EOF


async def test_a_log_that_is_waited_for_may_be_refused_and_ends_with_the_server():
    async with world() as it:
        it.service.answer = lambda *_: MISSING
        call = it.client.read(pb.ReadRequest(stream="s", wait_for_log=True))
        await until(lambda: it.service.requests)
        it.service.answer = lambda *_: Refusal(StatusCode.REQUEST_DENIED, "no", applied=Applied.WRONG)
        assert (await call.read()).status.code == pb.Status.REQUEST_DENIED
        await until(lambda: it.server.calls_under_way == 0)
        it.service.answer = lambda *_: MISSING
        call = it.client.read(pb.ReadRequest(stream="s", wait_for_log=True))
        await until(lambda: it.server.calls_under_way == 1)
        closing = asyncio.create_task(it.server.close(grace_s=30))
        assert (await call.read()).status.code == pb.Status.SERVICE_UNAVAILABLE
        await closing


async def test_read_ends_with_the_refusal_that_it_meets():
    async with world() as it:
        it.service.answer = lambda *_: Refusal(StatusCode.LOG_NOT_FOUND, "no such log", applied=Applied.WRONG)
        (answer,) = [answer async for answer in it.client.read(pb.ReadRequest(stream="s"))]
        assert answer.status.code == pb.Status.LOG_NOT_FOUND


async def test_a_read_gets_no_more_at_a_time_than_clients_of_grpc_take():
    async with world() as it:
        log = Log()
        log.sealed = True
        it.service.answer = log.answer
        async for _ in it.client.read(pb.ReadRequest(stream="s", max_bytes=2**32 - 1)):
            pass
        assert log.asked[0].max_bytes < 4 * 1024 * 1024


# ---------------------------------------------------------------------- health, reflection, the end


async def test_health_and_reflection_are_the_standard_ones():
    async with world() as it:
        health = health_pb2_grpc.HealthStub(it.client.channel)
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == HEALTHY
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health.Check(health_pb2.HealthCheckRequest(service="another"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        reflection = reflection_pb2_grpc.ServerReflectionStub(it.client.channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, described = [answer async for answer in reflection.ServerReflectionInfo(iter(requests))]
        names = {service.name for service in listed.list_services_response.service}
        assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert b"WriteRequest" in described.file_descriptor_response.file_descriptor_proto[0]


async def test_close_says_that_it_is_not_serving_first_and_then_drains():
    async with world() as it:
        it.service.hold = True
        watch = health_pb2_grpc.HealthStub(it.client.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == HEALTHY
        under_way = asyncio.create_task(it.client.call("Write", write()))
        append = it.client.append()
        await append.write(write(correlation=1))
        reading = it.client.read(pb.ReadRequest(stream="s"))
        await until(lambda: len(it.service.held) == 3)
        closing = asyncio.create_task(it.server.close(grace_s=30))
        assert (await watch.read()).status == STOPPING
        refused = await it.client.call("Create", pb.StreamRequest(stream="s"))
        assert refused.status.code == pb.Status.SERVICE_UNAVAILABLE  # type: ignore[attr-defined]
        assert [answer.status.code async for answer in reading] == [pb.Status.SERVICE_UNAVAILABLE]
        await append.write(write(correlation=2))
        assert (await append.read()).status.code == pb.Status.SERVICE_UNAVAILABLE
        assert not closing.done()
        it.service.release()
        assert (await under_way).status.code == pb.Status.SUCCESS  # type: ignore[attr-defined]
        answer = await append.read()
        assert (answer.correlation, answer.status.code) == (1, pb.Status.SUCCESS)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await append.read()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        watch.cancel()
        await closing


async def test_close_waits_no_longer_than_its_grace():
    async with world() as it:
        it.service.hold = True
        calling = asyncio.create_task(it.client.call("Write", write()))
        await until(lambda: it.service.held)
        await asyncio.wait_for(it.server.close(grace_s=0.2), 60)
        with pytest.raises(grpc.aio.AioRpcError):
            await calling


async def test_a_port_that_is_taken_is_an_os_error():
    async with world() as it:
        another = GrpcServer(ScriptedService())
        with pytest.raises(OSError, match="cannot listen"):
            await another.start("127.0.0.1", it.server.port)
        await another.close()


# ---------------------------------------------------------------------- keep-alive


class Relay:
    """Passes bytes between a client and a server of HTTP/2, and counts the frames of each kind."""

    PING, GOAWAY = 6, 7

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.from_client: dict[int, int] = {}
        self.from_server: dict[int, int] = {}
        self.connections = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        passing = (
            self._pass(reader, far_writer, self.from_client, 24),
            self._pass(far_reader, writer, self.from_server, 0),
        )
        for one in passing:
            self._tasks.add(asyncio.create_task(one))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: dict[int, int], preface: int
    ) -> None:
        try:
            writer.write(await reader.readexactly(preface))
            while True:
                head = await reader.readexactly(9)
                counts[head[3]] = counts.get(head[3], 0) + 1
                writer.write(head + await reader.readexactly(int.from_bytes(head[:3], "big")))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@pytest.mark.parametrize(("bearing", "reading"), [(True, False), (True, True), (False, False)])
async def test_an_idle_channel_whose_client_pings_lives_on(bearing, reading):
    """With gRPC's own five minutes between pings, the same client is sent away: the test sees what it is to see."""
    async with world(least_ping_ms=10 if bearing else 300_000) as it:
        relay = Relay(it.server.port)
        options = client_options(keepalive_ms=50)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await relay.start()}", options=options) as channel:
            client = Client(channel)
            await client.call("Handshake", pb.HandshakeRequest())
            if reading:
                it.service.hold, it.service.served_anyway = True, (Handshake,)
                _idle = client.read(pb.ReadRequest(stream="idle"))
                await until(lambda: it.server.calls_under_way == 1)
            if bearing:
                await until(lambda: relay.from_client.get(Relay.PING, 0) >= 5)  # gRPC sends no more than one a second
                assert Relay.GOAWAY not in relay.from_server
                await client.call("Handshake", pb.HandshakeRequest())
                assert relay.connections == 1
            else:
                await until(lambda: Relay.GOAWAY in relay.from_server)
        await relay.close()


def test_what_both_sides_do_by_default_fits_together():
    client, server = dict(client_options()), dict(server_options(GrpcLimits()))
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.max_receive_message_length"] >= server["grpc.max_send_message_length"]
    assert client["grpc.max_send_message_length"] <= server["grpc.max_receive_message_length"]
    assert server["grpc.max_receive_message_length"] > 5 * 1024 * 1024


@pytest.mark.parametrize("name", ["connections", "message_bytes", "least_ping_ms"])
def test_bounds_that_bound_nothing_are_refused(name):
    with pytest.raises(ValueError, match=name):
        GrpcLimits(**{name: 0})


async def test_answers_that_are_the_service_s_own_are_passed_on():
    async with world() as it:
        it.service.answer = lambda request, _: (
            Done() if isinstance(request, MoveStream) else WriteReceipt(None, 1, repeated=True)
        )
        moved = await it.client.call("Move", pb.MoveRequest(stream="s", target="127.0.0.1:1"))
        assert moved.status.code == pb.Status.SUCCESS  # type: ignore[attr-defined]
        repeated = await it.client.call("Write", write())
        assert repeated.repetition  # type: ignore[attr-defined]
        assert not repeated.HasField("dlsn")  # type: ignore[attr-defined]


async def test_a_message_that_came_in_time_is_taken_although_the_loop_stood_still():
    """Its arrival and the end of its time are then found in one turn of the loop."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    read: asyncio.Future[str] = loop.create_future()

    class CallOfAStub:
        async def read(self):
            return await read

    def arrived():
        loop.remove_reader(ours)
        read.set_result("the message")

    loop.add_reader(ours, arrived)
    reading = asyncio.ensure_future(CallsOfHosts(GrpcLimits(message_ms=20))._message(CallOfAStub()))
    await asyncio.sleep(0)
    theirs.send(b"!")
    time.sleep(0.1)  # noqa: ASYNC251  # the loop stands still
    assert await reading == "the message"
    for end in (ours, theirs):
        end.close()
