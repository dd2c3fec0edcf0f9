"""The frames server and its connections, on a network in memory and on virtual time."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from helpers.serving.scripted_service import ScriptedService
from helpers.virtual_time import VirtualTimeLoop, virtual_time
from helpers.waiting import until
from helpers.worlds.memory_network import PipeEnd, Pipes

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.frames_server import LEAVE_S, FramesServer
from dlspark.serving.bindings.service import STEP_BYTES, FramesLimits
from dlspark.serving.protocol.answer_frames import decode_answer
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    CreateStream,
    Delivery,
    Done,
    Handshake,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import encode_request


class RawClient:
    """The client's end of one connection: it sends what it is told to, and keeps the answers by their numbers."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.order: list[int] = []
        self.batches: list[int] = []
        self.closed = False
        self.link: PipeEnd

    def frame_received(self, frame: memoryview) -> None:
        number, answer = decode_answer(frame)
        assert number == 0 or number not in self.answers, "answered twice"
        self.answers[number] = answer
        self.order.append(number)

    def batch_done(self) -> None:
        self.batches.append(len(self.order))

    def link_closed(self, error: Exception | None) -> None:
        self.closed = True

    def send(self, number: int, request: object) -> None:
        self.link.send(*encode_request(number, request))  # type: ignore[arg-type]

    async def answered(self, count: int) -> None:
        await until(lambda: len(self.answers) >= count, lambda: f"{len(self.answers)} of {count}", every_s=0)


class World:
    """A server, its service and its clients."""

    def __init__(self, **limits: int) -> None:
        self.pipes = Pipes()
        self.service = ScriptedService()
        self.server = FramesServer(self.pipes, self.service, limits=FramesLimits(**limits))

    async def __aenter__(self) -> World:
        await self.server.start("proxy", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close(grace_s=0)

    async def client(self) -> RawClient:
        client = RawClient()
        client.link = await self.pipes.connect("proxy", self.server.port, client, timeout_ms=20_000)
        return client


def write(payload: bytes = b"x") -> WriteRecords:
    return WriteRecords("stream", (payload,))


@virtual_time
async def test_requests_are_pipelined_and_answers_come_in_the_order_in_which_they_are_ready():
    async with World() as world:
        client = await world.client()
        world.service.hold = True
        for number in range(1, 101):
            client.send(number, write(b"%d" % number))
        await until(lambda: len(world.service.held) == 100, every_s=0)
        assert [bytes(r.payloads[0]) for r in world.service.requests] == [b"%d" % n for n in range(1, 101)]
        held = list(world.service.held)
        world.service.held.clear()
        random.Random(7).shuffle(held)
        for answer in held:
            answer()
        await client.answered(100)
        assert sorted(client.order) == list(range(1, 101)) != client.order
        assert client.batches == [100], "answers of one turn leave together"
        assert {number: answer.dlsn.entry_id for number, answer in client.answers.items()} == {  # type: ignore[union-attr]
            number: number - 1 for number in range(1, 101)
        }


@virtual_time
async def test_a_connection_with_too_many_requests_is_paused_and_goes_on_when_half_of_them_are_answered():
    async with World(requests_under_way=10) as world:
        client = await world.client()
        world.service.hold = True
        for number in range(1, 101):
            client.send(number, write())
        await until(lambda: world.service.count > 10, every_s=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.service.count == 11, "the one that reached the bound, and none behind it"
        assert client.link.other.paused
        world.service.release(3)
        await client.answered(3)
        assert world.service.count == 11, "it goes on when half of them are answered, not at each one"
        while world.service.count < 100:
            world.service.release(len(world.service.held))
            await asyncio.sleep(0.01)
        world.service.release()
        await client.answered(100)
        assert world.service.most_held <= 11 + 5
        assert not client.link.other.paused
        assert world.server.held_bytes == 0


@virtual_time
async def test_requests_under_way_are_bounded_in_bytes_however_few_they_are():
    async with World(bytes_under_way=1_000_000) as world:
        client = await world.client()
        world.service.hold = True
        for number in range(1, 51):
            client.send(number, write(bytes(100_000)))
        await until(lambda: client.link.other.paused, every_s=0)
        assert 9 <= world.service.count <= 11
        while len(client.answers) < 50:
            world.service.release(len(world.service.held))
            await asyncio.sleep(0.01)


@virtual_time
async def test_reads_that_wait_are_bounded_in_number_and_hold_no_memory():
    async with World(reads_under_way=3, read_bytes=70_000) as world:
        client = await world.client()
        world.service.hold = True
        for number in range(1, 6):
            client.send(number, ReadBatch("stream", ReadFrom.LATEST, max_bytes=2**32 - 1))
        client.send(6, write())
        await client.answered(2)
        assert {client.answers[number].code for number in (4, 5)} == {StatusCode.OVER_CAPACITY}  # type: ignore[union-attr]
        assert [getattr(request, "max_bytes", 0) for request in world.service.requests] == [70_000] * 3 + [0]
        assert world.server.held_bytes < 4 * 1024
        world.service.release()
        await client.answered(6)
        client.send(7, ReadBatch("stream", ReadFrom.LATEST))
        await client.answered(7)
        assert isinstance(client.answers[7], Delivery)


@virtual_time
async def test_what_many_reads_bring_for_a_client_that_takes_nothing_is_not_queued():
    async with World(answer_bytes=200_000, delivery_bytes=500_000) as world:
        piece = bytes(50_000)
        world.service.answer = lambda _request, number: Delivery(ReadForm.ENTRIES, DLSN(1, number, 0), (piece,))
        world.service.hold = True
        client = await world.client()
        for number in range(1, 101):
            client.send(number, ReadBatch("stream", ReadFrom.OLDEST))
        await until(lambda: len(world.service.held) == 100, every_s=0)
        client.link.pause_reading()
        world.service.release()
        assert client.link.other.most_queued < 600_000
        client.link.resume_reading()
        await client.answered(100)
        kinds = [type(answer) for answer in client.answers.values()]
        assert kinds.count(Delivery) == 10
        assert kinds.count(Refusal) == 90


@virtual_time
async def test_a_client_that_takes_no_answers_stops_itself_and_is_closed_after_its_time_and_no_other():
    async with World(answer_bytes=1_000_000, bytes_under_way=10_000_000, stuck_ms=5_000) as world:
        piece = bytes(100_000)
        world.service.answer = lambda _request, number: Delivery(ReadForm.ENTRIES, DLSN(1, number, 0), (piece,))
        client, other = await world.client(), await world.client()
        client.link.pause_reading()
        for number in range(1, 200):
            client.send(number, ReadBatch("stream", ReadFrom.OLDEST, max_bytes=100_000))
        await until(lambda: client.link.other.paused, every_s=0)
        assert client.link.other.queued_bytes < 1_000_000 + 2 * 100_000
        began = asyncio.get_running_loop().time()
        number = 0
        while not client.closed:
            number += 1
            other.send(number, ReadBatch("stream", ReadFrom.OLDEST, max_bytes=100_000))
            await other.answered(number)
            await asyncio.sleep(0.5)
        assert 5 <= asyncio.get_running_loop().time() - began < 9
        assert client.link.other.most_queued < 1_000_000 + 2 * 100_000
        assert len(world.service.gone) == 1
        assert world.server.connection_count == 1


@virtual_time
async def test_a_client_that_takes_its_answers_late_gets_all_of_them():
    async with World(answer_bytes=200_000) as world:
        piece = bytes(50_000)
        world.service.answer = lambda _request, number: Delivery(ReadForm.ENTRIES, DLSN(1, number, 0), (piece,))
        client = await world.client()
        for number in range(1, 101):
            client.send(number, ReadBatch("stream", ReadFrom.OLDEST, max_bytes=50_000))
        client.link.pause_reading()
        await until(lambda: client.link.other.paused, every_s=0)
        await asyncio.sleep(3)
        assert world.service.count < 30
        client.link.resume_reading()
        await client.answered(100)


@virtual_time
async def test_a_client_that_takes_its_answers_just_before_it_stops_again_is_not_forgotten():
    """Between the moment when its queue is short and the look at that, more is queued than may be: it is paused."""
    async with World(answer_bytes=200_000) as world:
        piece = bytes(100_000)
        world.service.answer = lambda _request, number: Delivery(ReadForm.ENTRIES, DLSN(1, number, 0), (piece,))
        world.service.hold = True
        client = await world.client()
        client.link.pause_reading()
        for number in range(1, 10):
            client.send(number, ReadBatch("stream", ReadFrom.OLDEST, max_bytes=100_000))
        await until(lambda: len(world.service.held) == 9, every_s=0)
        server_end = client.link.other
        world.service.release(3)
        await until(lambda: server_end._drainers, every_s=0)
        client.link._in += server_end._take(300_000)
        world.service.release()
        assert server_end.queued_bytes > 500_000
        for _ in range(10):
            await asyncio.sleep(0)  # it has been looked at
        client.link.resume_reading()
        await client.answered(9)
        client.send(10, Handshake())
        await until(lambda: 10 in client.answers, "the connection goes on")


@virtual_time
async def test_nothing_large_is_begun_while_all_connections_hold_all_the_memory_and_small_requests_are():
    async with World(memory_bytes=1_000_000) as world:
        hungry, honest = await world.client(), await world.client()
        world.service.hold = True
        hungry.send(1, write(bytes(1_100_000)))
        await until(lambda: world.server.memory.exceeded, every_s=0)
        world.service.hold = False
        honest.send(1, write(bytes(STEP_BYTES + 1)))
        honest.send(2, write(bytes(100)))
        await honest.answered(2)
        refusal = honest.answers[1]
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.applied) == (StatusCode.OVER_CAPACITY, Applied.NO)
        assert isinstance(honest.answers[2], WriteReceipt)
        hungry.send(2, write())
        for _ in range(20):
            await asyncio.sleep(0)
        assert 2 not in hungry.answers, "who holds the memory is paused"
        world.service.release()
        await hungry.answered(2)
        honest.send(3, write(bytes(STEP_BYTES + 1)))
        await honest.answered(3)
        assert isinstance(honest.answers[3], WriteReceipt)
        assert world.server.memory.used == 0


@virtual_time
async def test_a_connection_that_floods_while_memory_is_spent_twice_is_closed():
    async with World(memory_bytes=200_000, requests_under_way=10) as world:
        world.service.hold = True
        client = await world.client()
        for number in range(1, 20_000):
            client.send(number, write())
        await until(lambda: client.closed, every_s=0)
        assert world.server.memory.used == 0
        assert len(world.service.gone) == 1


@virtual_time
async def test_a_request_longer_than_the_bound_is_refused_by_its_number_and_the_connection_goes_on():
    async with World(request_bytes=10_000) as world:
        client = await world.client()
        client.send(1, write(bytes(10_000)))
        client.send(2, write(bytes(9_000)))
        await client.answered(2)
        refusal = client.answers[1]
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.applied) == (StatusCode.TOO_LARGE_RECORD, Applied.WRONG)
        assert isinstance(client.answers[2], WriteReceipt)
        assert not client.closed


@virtual_time
async def test_what_is_no_request_is_refused_by_its_number_and_closes_this_connection_alone():
    async with World() as world:
        client, other = await world.client(), await world.client()
        body = struct.pack(">BBHQ", 1, 99, 0, 4711)
        client.link.send_raw(struct.pack(">i", len(body)) + body)
        await until(lambda: client.closed, every_s=0)
        refusal = client.answers[4711]
        assert isinstance(refusal, Refusal)
        assert "its kind is 99" in refusal.message
        assert world.service.gone == world.service.gone[:1] != []
        other.send(1, Handshake())
        await other.answered(1)


@virtual_time
async def test_a_number_under_way_cannot_be_used_again_and_the_first_request_stays_unanswered_in_doubt():
    async with World() as world:
        client = await world.client()
        world.service.hold = True
        client.send(5, write())
        client.send(5, write())
        await until(lambda: client.closed, every_s=0)
        assert isinstance(client.answers[0], Refusal), "the answer to 5 could be either's"
        assert 5 not in client.answers
        assert world.service.count == 1
        world.service.release()


@virtual_time
async def test_an_answer_for_a_client_that_has_gone_is_dropped_and_the_service_hears_of_it_once():
    async with World() as world:
        client = await world.client()
        world.service.hold = True
        client.send(1, write())
        await until(lambda: world.service.held, every_s=0)
        client.link.close()
        await until(lambda: world.service.gone, every_s=0)
        world.service.release()
        await asyncio.sleep(1)
        assert len(world.service.gone) == 1
        assert world.service.gone[0] is world.service.callers[0]
        assert world.server.connection_count == 0
        assert world.server.memory.used == 0


@virtual_time
async def test_a_service_that_fails_leaves_no_client_without_an_answer():
    async with World() as world:
        client = await world.client()
        world.service.failing = RuntimeError("a mistake")
        client.send(1, write())
        await client.answered(1)
        refusal = client.answers[1]
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.applied) == (StatusCode.UNEXPECTED, Applied.UNKNOWN)
        assert not client.closed


@virtual_time
async def test_an_answer_that_fits_in_no_frame_is_answered_as_in_doubt():
    async with World() as world:
        client = await world.client()
        world.service.answer = lambda *_: Delivery(ReadForm.ENTRIES, DLSN(1, 0, 0), (bytes(6_000_000),))
        client.send(1, ReadBatch("stream", ReadFrom.OLDEST))
        await client.answered(1)
        refusal = client.answers[1]
        assert isinstance(refusal, Refusal)
        assert refusal.applied is Applied.UNKNOWN


@virtual_time
async def test_who_asks_nothing_in_time_is_closed_and_who_asked_may_be_silent_for_longer():
    async with World(first_request_ms=3_000, idle_ms=60_000) as world:
        silent, asking = await world.client(), await world.client()
        asking.send(1, Handshake())
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: silent.closed, every_s=0.1)
        assert 3 <= loop.time() - began < 5
        assert not asking.closed
        await until(lambda: asking.closed, every_s=1)
        assert 60 <= loop.time() - began < 63


@virtual_time
async def test_time_in_which_the_process_did_not_run_is_not_held_against_its_clients():
    async with World(first_request_ms=3_000, idle_ms=5_000) as world:
        asking, silent, late = await world.client(), await world.client(), await world.client()
        asking.send(1, Handshake())
        await asking.answered(1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        began = loop.time()
        for _ in range(3):
            loop.stand_still(20)
            await asyncio.sleep(0.5)  # connections are looked at by now
        assert not any(one.closed for one in (asking, silent, late))
        late.send(1, Handshake())
        await late.answered(1)
        await until(lambda: silent.closed, every_s=0.1)
        assert 60 < loop.time() - began < 65, "what it let pass itself counts"
        await until(lambda: asking.closed, every_s=0.1)
        assert 62 < loop.time() - began < 68


@virtual_time
async def test_half_a_first_frame_is_no_request():
    async with World(first_request_ms=3_000) as world:
        client = await world.client()
        whole = b"".join(encode_request(1, write(bytes(1000))))
        for at in range(5):
            client.link.send_raw(whole[at : at + 1])
            await asyncio.sleep(1)
        assert client.closed


@virtual_time
async def test_who_waits_for_an_answer_is_not_idle():
    async with World(idle_ms=5_000) as world:
        client = await world.client()
        world.service.hold = True
        client.send(1, ReadBatch("stream", ReadFrom.LATEST, wait_ms=60_000))
        await asyncio.sleep(60)
        assert not client.closed
        world.service.release()
        await client.answered(1)
        await asyncio.sleep(7)
        assert client.closed


@virtual_time
async def test_a_newcomer_takes_the_place_of_one_that_asks_nothing_or_is_refused_where_all_are_in_use():
    async with World(connections=3) as world:
        silent = await world.client()
        busy = [await world.client() for _ in range(2)]
        for client in busy:
            client.send(1, Handshake())
            await client.answered(1)
        third = await world.client()
        await until(lambda: silent.closed, every_s=0)
        third.send(1, Handshake())
        await third.answered(1)
        refused = await world.client()
        await until(lambda: refused.closed, every_s=0)
        assert world.server.connection_count == 3
        assert not any(client.closed for client in (*busy, third))


@virtual_time
async def test_close_refuses_what_is_new_answers_what_is_under_way_and_ends():
    async with World() as world:
        client = await world.client()
        world.service.hold = True
        client.send(1, write())
        await until(lambda: world.service.held, every_s=0)
        closing = asyncio.create_task(world.server.close(grace_s=30))
        await asyncio.sleep(0.1)
        client.send(2, CreateStream("another"))
        await client.answered(1)
        refusal = client.answers[2]
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.applied) == (StatusCode.SERVICE_UNAVAILABLE, Applied.NO)
        with pytest.raises(Exception, match="refused"):
            await world.client()
        assert not closing.done()
        world.service.release()
        await until(lambda: 0 in client.answers)
        client.send(3, write())
        await asyncio.sleep(LEAVE_S / 2)
        assert not closing.done(), "it is the client that closes: a reset must not reach it before the last answer"
        client.link.close()
        await closing
        assert isinstance(client.answers[1], WriteReceipt)
        assert world.service.count == 1
        last = client.answers[0]
        assert isinstance(last, Refusal)
        assert (last.code, last.applied) == (StatusCode.SERVICE_UNAVAILABLE, Applied.NO), "nothing else was begun"
        assert client.order[-1] == 0


@virtual_time
async def test_a_client_that_does_not_close_its_connection_at_the_end_is_not_waited_for_long():
    async with World() as world:
        client = await world.client()
        client.send(1, write())
        await client.answered(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await world.server.close()
        assert LEAVE_S <= loop.time() - began < LEAVE_S + 0.1
        await until(lambda: client.closed, every_s=0)


@virtual_time
async def test_close_waits_no_longer_than_its_grace():
    async with World() as world:
        client = await world.client()
        world.service.hold = True
        client.send(1, CreateStream("s"))
        await until(lambda: world.service.held, every_s=0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await world.server.close(grace_s=2)
        assert 2 <= loop.time() - began < 2.2
        await until(lambda: client.closed, every_s=0)
        assert client.answers == {}
        world.service.release()
        assert isinstance(world.service.answer(CreateStream("s"), 0), Done)


@pytest.mark.parametrize(("name", "value"), [("connections", 0), ("answer_bytes", 1000), ("idle_ms", -1)])
def test_bounds_that_bound_nothing_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        FramesLimits(**{name: value})
