"""Writes that come together over one connection are taken as one, and are answered as if each had come alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from helpers.serving.proxy_world import Proxy, ProxyWorld, proxies
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_network import PipeEnd, Pipes
from prometheus_client import CollectorRegistry

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.registries import Statistics
from dlspark.core.writing.proxy_writes import write_run
from dlspark.serving.bindings import frames_connection
from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.bindings.service import Caller, RunReply
from dlspark.serving.protocol.answer_frames import decode_answer
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    Heartbeat,
    Refusal,
    Request,
    RequestContext,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import request_checksum
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.protocol.write_runs import WriteRun, take_run
from dlspark.serving.write_proxy.metrics import MeasuredService, ProxyScopes, StreamTraffic, shown_in
from dlspark.serving.write_proxy.streams import execution
from storage_node.protocol.frames import Buffer

BOTH_WAYS = pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
TOO_LONG = b"x" * 1_100_000


class Client:
    """One connection; what is sent in one call arrives at once."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.link: PipeEnd

    def frame_received(self, frame: memoryview) -> None:
        number, answer = decode_answer(frame)
        assert number not in self.answers, "answered twice"
        self.answers[number] = answer

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        pass

    def send(self, requests: Iterable[Request], first: int = 1) -> None:
        frames: list[Buffer] = []
        for number, request in enumerate(requests, first):
            frames += encode_request(number, request)
        self.link.send(*frames)

    async def ask(self, requests: Sequence[Request]) -> list[Answer]:
        self.send(requests)
        await until(lambda: len(self.answers) == len(requests), lambda: f"{len(self.answers)} answers", every_s=0.001)
        return [self.answers[number] for number in sorted(self.answers)]


class CountedRuns:
    """Hands runs on, and remembers how many writes each had that was taken."""

    def __init__(self, proxy: Proxy) -> None:
        self._service = proxy.service
        self.taken: list[int] = []
        self.refused: list[int] = []

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        took = self._service.submit_run(run, caller, reply)
        (self.taken if took else self.refused).append(len(run.numbers))
        return took


class Entrance:
    """A proxy with a frames server before it, and one client."""

    def __init__(self, world: ProxyWorld) -> None:
        self.world = world
        self.proxy: Proxy
        self.server: FramesServer
        self.runs: CountedRuns
        self.client = Client()

    @classmethod
    async def open(cls, world: ProxyWorld, *, together: bool, **settings: object) -> Entrance:
        entrance = cls(world)
        entrance.proxy = await world.proxy(**settings)
        pipes = Pipes()
        entrance.server = FramesServer(pipes, entrance.proxy.service)
        entrance.runs = CountedRuns(entrance.proxy)
        if together:
            entrance.server.runs = entrance.runs
        await entrance.server.start("proxy", 0)
        entrance.client.link = await pipes.connect("proxy", entrance.server.port, entrance.client, timeout_ms=20_000)
        return entrance

    async def close(self) -> None:
        assert self.server.held_bytes == 0
        await self.server.close(grace_s=0)


def summed(request: WriteRecords, error: int = 0) -> WriteRecords:
    return request.within(RequestContext(checksum=(request_checksum(request) or 0) + error))


def mixed() -> list[Request]:
    """Writes of two streams in turns of three, and among them what cannot be taken with the others."""
    requests: list[Request] = [WriteRecords("ab"[n // 3 % 2], (b"%d" % n,)) for n in range(30)]
    requests[4:4] = [WriteRecords("b", (b"whole", b"together"), atomic=True)]
    requests[9:9] = [summed(WriteRecords("a", (b"good",))), WriteRecords("a", (TOO_LONG,))]
    requests[16:16] = [summed(WriteRecords("a", (b"wrong",)), error=1), Heartbeat("a")]
    return requests


@virtual_time
async def test_writes_that_come_together_are_taken_together_and_lie_in_one_entry() -> None:
    async with proxies() as world:
        entrance = await Entrance.open(world, together=True)
        await entrance.proxy.written("a", b"first")
        answers = await entrance.client.ask([WriteRecords("a", (b"%d" % n,)) for n in range(40)])
        assert answers == [WriteReceipt(DLSN(1, 2, n), 1) for n in range(40)]
        assert entrance.runs.taken == [40]
        assert await world.payloads("a") == [b"first", *(b"%d" % n for n in range(40))]
        await entrance.close()


@virtual_time
async def test_where_streams_come_in_turn_a_run_is_looked_for_a_few_times_and_not_at_each_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    def counted(frames: list[memoryview], first: int, longest: int) -> WriteRun | None:
        looks.append(first)
        return take_run(frames, first, longest)

    monkeypatch.setattr(frames_connection, "take_run", counted)
    async with proxies() as world:
        entrance = await Entrance.open(world, together=True)
        for stream in "abc":
            await entrance.proxy.written(stream, b"first")
        in_turn = [WriteRecords("abc"[n % 3], (b"%d" % n,)) for n in range(48)]
        answers = await entrance.client.ask([*in_turn, *(WriteRecords("a", (b"%d" % n,)) for n in range(48, 64))])
        assert all(isinstance(answer, WriteReceipt) for answer in answers)
        assert looks == [0, 1, 3, 7, 15, 31, 63]
        for number, stream in enumerate("abc"):
            written = [b"first", *(b"%d" % n for n in range(number, 48, 3))]
            assert (await world.payloads(stream))[: len(written)] == written
        await entrance.close()


@virtual_time
async def test_whatever_comes_among_them_answers_and_records_are_those_of_writes_that_come_alone() -> None:
    seen = []
    for together in (True, False):
        async with proxies() as world:
            entrance = await Entrance.open(world, together=together)
            for stream in "ab":
                await entrance.proxy.written(stream, b"first")
            world.hold()  # with something under way what comes in one turn is sent together, however it came
            held = [entrance.proxy.asked(WriteRecords(stream, (b"held",))) for stream in "ab"]
            asking = asyncio.ensure_future(entrance.client.ask(mixed()))
            await asyncio.sleep(0.01)
            world.release()
            answers = await asking
            assert all(isinstance(one, WriteReceipt) for one in await asyncio.gather(*held))
            kinds = [one if isinstance(one, WriteReceipt) else getattr(one, "code", type(one)) for one in answers]
            seen.append((kinds, await world.payloads("a"), await world.payloads("b")))
            assert bool(entrance.runs.taken) is together
            await entrance.close()
    assert seen[0] == seen[1]
    assert seen[0][0].count(StatusCode.TOO_LARGE_RECORD) == seen[0][0].count(StatusCode.CHECKSUM_FAILED) == 1


@BOTH_WAYS
@virtual_time
async def test_writes_wait_in_their_order_for_a_log_that_is_not_open(together: bool) -> None:
    async with proxies() as world:
        entrance = await Entrance.open(world, together=together)
        answers = await entrance.client.ask([WriteRecords("a", (b"%d" % n,)) for n in range(20)])
        assert all(isinstance(one, WriteReceipt) for one in answers)
        assert entrance.runs.taken == []
        assert await world.payloads("a") == [b"%d" % n for n in range(20)]
        await entrance.close()


@BOTH_WAYS
@pytest.mark.parametrize("bound", [{"max_stream_requests": 5}, {"max_bytes_under_way": 50}, {"rps_hard_write": 5}])
@virtual_time
async def test_each_write_beyond_a_bound_is_refused_by_itself(together: bool, bound: dict[str, int]) -> None:
    async with proxies() as world:
        entrance = await Entrance.open(world, together=together, **bound)
        await entrance.proxy.written("a", b"first")
        await asyncio.sleep(5)
        answers = await entrance.client.ask([WriteRecords("a", (b"x" * 10,)) for _ in range(8)])
        codes = [one.code for one in answers if isinstance(one, Refusal)]
        assert len(codes) > 0
        assert set(codes) == {StatusCode.OVER_CAPACITY}
        assert 5 <= 8 - len(codes) < 8
        assert entrance.runs.taken == []
        await entrance.close()


@BOTH_WAYS
@virtual_time
@pytest.mark.parametrize("wrong", [2, 0], ids=["given twice", "0"])
async def test_of_requests_that_came_together_those_before_one_with_a_wrong_number_are_begun(
    together: bool, wrong: int
) -> None:
    async with proxies() as world:
        entrance = await Entrance.open(world, together=together)
        await entrance.proxy.written("a", b"first")
        frames: list[Buffer] = []
        for number in (1, 2, 3, wrong, 5):
            frames += encode_request(number, WriteRecords("a", (b"%d" % number,)))
        entrance.client.link.send(*frames)
        await until(lambda: entrance.client.link.closed, every_s=0.001)
        [(number, answer)] = entrance.client.answers.items()
        assert number == 0
        assert isinstance(answer, Refusal)
        assert await world.payloads("a") == [b"first", b"1", b"2", b"3"]
        assert entrance.server.held_bytes == 0


@BOTH_WAYS
@virtual_time
async def test_of_writes_under_way_when_the_proxy_loses_its_nodes_each_client_hears_that_they_are_in_doubt(
    together: bool,
) -> None:
    async with proxies() as world:
        entrance = await Entrance.open(world, together=together)
        await entrance.proxy.written("a", b"first")
        world.hold()
        entrance.client.send([WriteRecords("a", (b"%d" % n,)) for n in range(6)])
        await asyncio.sleep(0.01)
        assert entrance.runs.taken == ([6] if together else [])
        await entrance.proxy.namespace.ledgers.close()
        await until(lambda: len(entrance.client.answers) == 6, every_s=0.001)
        refusals = [entrance.client.answers[number] for number in range(1, 7)]
        assert all(isinstance(one, Refusal) and one.applied is Applied.UNKNOWN for one in refusals), refusals
        assert entrance.proxy.service.requests_under_way == 0
        await entrance.proxy.crash()
        await entrance.close()


@BOTH_WAYS
@pytest.mark.parametrize("held", [True, False], ids=["something under way", "nothing under way"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken by the writer", "not taken"])
@virtual_time
async def test_writes_that_a_mistake_meets_are_answered_as_in_doubt_and_those_behind_them_are_written(
    together: bool, held: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistakes = [RuntimeError("a mistake")]

    def mistaken(*given: Any, **named: Any) -> None:
        if taken or not mistakes:
            write_run(*given, **named)
        if mistakes:
            raise mistakes.pop()

    async with proxies() as world:
        entrance = await Entrance.open(world, together=together)
        await entrance.proxy.written("a", b"first")
        if held:
            world.hold()
            before = entrance.proxy.asked(WriteRecords("a", (b"held",)))
            await asyncio.sleep(0.01)
        monkeypatch.setattr(execution, "write_run", mistaken)
        asking = asyncio.ensure_future(entrance.client.ask([WriteRecords("a", (b"%d" % n,)) for n in range(3)]))
        await asyncio.sleep(0.01)
        if held:
            world.release()
            await before
        answers = await asking
        assert all(isinstance(one, Refusal) and "a mistake" in one.message for one in answers), answers
        in_doubt = [one for one in answers if isinstance(one, Refusal) and one.applied is Applied.UNKNOWN]
        assert len(in_doubt) == (3 if together or held else 1), (
            "one alone ended the stream: those behind it were not begun"
        )
        assert entrance.proxy.service.requests_under_way == 0
        await asyncio.sleep(60)  # the stream has ended, and is opened anew
        for n in range(9):
            await entrance.proxy.written("a", b"after %d" % n)
        await entrance.close()


def test_each_of_them_is_counted_as_one_that_came_alone() -> None:
    requests = [WriteRecords("a", (b"xx",)) for _ in range(3)]
    found = []
    for together in (True, False):
        scopes, registry, now = ProxyScopes(), CollectorRegistry(), [1.0]
        end = shown_in(Statistics(registry), scopes)
        fake = _Answering()
        service = MeasuredService(fake, scopes, StreamTraffic(), lambda now=now: now[0], fake)
        if together:
            run = WriteRun("a", [1, 2, 3], [b"xx"] * 3, 6, True)
            assert service.submit_run(run, Caller("c:1"), lambda *_: None)
        else:
            for request in requests:
                service.submit(request, Caller("c:1"), lambda _: None)
        fake.answer()
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        found.append(samples)
        end()
    assert found[0] == found[1]
    assert found[0]["records_success_total", (("stream", "a"),)] == 2


class _Answering:
    """Stores the first two writes, and refuses the third."""

    REFUSAL = Refusal(StatusCode.WRITE_CANCELLED, "not tried")

    def __init__(self) -> None:
        self._replies: list[object] = []
        self._run: RunReply | None = None

    def submit(self, request: Request, caller: Caller, reply: object) -> None:
        self._replies.append(reply)

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        self._run = reply
        return True

    def caller_gone(self, caller: Caller) -> None:
        pass

    def answer(self) -> None:
        if self._run is not None:
            self._run(0, DLSN(1, 0, 0).run(2), 2)
            self._run(2, self.REFUSAL, 1)
        for number, reply in enumerate(self._replies):
            answer = WriteReceipt(DLSN(1, 0, number), 1) if number < 2 else self.REFUSAL
            reply(answer)  # type: ignore[operator]
