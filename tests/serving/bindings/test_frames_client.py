"""The frames client: what it is answered, and what it says itself where no answer comes."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys

import pytest
from helpers.serving.scripted_service import ScriptedService
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_network import PipeEnd, Pipes

from dlspark.errors import ProxyLostError, ProxyUnreachableError
from dlspark.serving.bindings.frames_client import LAST_NUMBER, FramesClient, host_and_port
from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.bindings.service import FramesClientLimits
from dlspark.serving.protocol.answer_frames import encode_answer
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    Done,
    FindOwner,
    Handshake,
    OwnerFound,
    ReadBatch,
    ReadFrom,
    Refusal,
    Request,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import decode_request
from metadata.foundation.errors import CallerError
from storage_node.edge import Link

WRITE = WriteRecords("stream", (b"payload",))


class RawProxy:
    """A server's end: it keeps what is asked, and sends what a test gives it."""

    def __init__(self) -> None:
        self.pipes = Pipes()
        self.requests: dict[int, Request] = {}
        self.order: list[int] = []
        self.link: PipeEnd
        self.closed = False
        self.echo = False

    async def start(self) -> RawProxy:
        await self.pipes.listen("proxy", 1, self.accept)
        return self

    def accept(self, link: Link) -> RawProxy:
        assert isinstance(link, PipeEnd)
        self.link = link
        return self

    def frame_received(self, frame: memoryview) -> None:
        number, request = decode_request(frame)
        self.requests[number] = request
        self.order.append(number)
        if self.echo:
            self.answer(number, Done())

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.closed = True

    def answer(self, number: int, answer: Answer) -> None:
        self.link.send(*encode_answer(number, answer))

    async def client(self, **limits: int) -> FramesClient:
        return await FramesClient.connect(self.pipes, "proxy:1", limits=FramesClientLimits(**limits))


@virtual_time
async def test_requests_and_answers_pass_through_the_real_server():
    pipes, service = Pipes(), ScriptedService()
    server = FramesServer(pipes, service)
    await server.start("proxy", 0)
    client = await FramesClient.connect(pipes, f"proxy:{server.port}")
    answers: list[Answer] = []
    for _ in range(500):
        client.submit(WRITE, answers.append)
    await until(lambda: len(answers) == 500, every_s=0)
    assert [answer.dlsn.entry_id for answer in answers] == list(range(500))  # type: ignore[union-attr]
    assert await client.call(FindOwner("stream")) == OwnerFound("1;-1;127.0.0.1:1")
    assert client.requests_under_way == 0
    await client.close()
    await client.close()
    await until(lambda: service.gone, every_s=0)
    await server.close()


@virtual_time
async def test_a_lost_connection_leaves_writes_in_doubt_and_questions_undone():
    proxy = await RawProxy().start()
    closed: list[str] = []
    client = await FramesClient.connect(proxy.pipes, "proxy:1", on_closed=lambda: closed.append("closed"))
    answers: dict[str, Answer] = {}
    client.submit(WRITE, lambda answer: answers.update(write=answer))
    client.submit(FindOwner("s"), lambda answer: answers.update(owner=answer))
    client.submit(ReadBatch("s", ReadFrom.OLDEST), lambda answer: answers.update(read=answer))
    await until(lambda: len(proxy.order) == 3, every_s=0)
    proxy.link.close()
    await until(lambda: client.closed, every_s=0)
    assert closed == ["closed"]
    write, owner, read = answers["write"], answers["owner"], answers["read"]
    assert isinstance(write, Refusal)
    assert write.applied is Applied.UNKNOWN
    assert isinstance(error_of(write, stream="stream"), ProxyLostError)
    for answer in (owner, read):
        assert isinstance(answer, Refusal)
        assert answer.applied is Applied.NO
        assert isinstance(error_of(answer, stream="s"), ProxyUnreachableError)
    late: list[Answer] = []
    client.submit(WRITE, late.append)
    assert isinstance(late[0], Refusal)
    assert late[0].applied is Applied.NO, "it was never sent"


@virtual_time
async def test_what_ends_with_the_connection_may_ask_again_at_once_and_is_not_sent():
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []

    def again(answer: Answer) -> None:
        answers.append(answer)
        client.submit(WRITE, answers.append)

    client.submit(WRITE, again)
    await client.close()
    assert [answer.applied for answer in answers] == [Applied.UNKNOWN, Applied.NO]  # type: ignore[union-attr]


@virtual_time
async def test_a_caller_that_fails_on_an_end_leaves_the_others_not_waiting(caplog):
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []

    def fail(_answer: Answer) -> None:
        raise RuntimeError("a caller's mistake")

    client.submit(WRITE, fail)
    client.submit(WRITE, answers.append)
    await client.close()
    assert len(answers) == 1
    assert "a caller failed" in caplog.text


@virtual_time
async def test_numbers_begin_again_behind_the_last_and_pass_over_those_under_way():
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []
    assert client.submit(WRITE, answers.append) == 1
    client._number = LAST_NUMBER - 1
    assert client.submit(WRITE, answers.append) == LAST_NUMBER
    assert client.submit(WRITE, answers.append) == 2, "1 is under way, and 0 is about the connection"
    await until(lambda: len(proxy.order) == 3, every_s=0)
    for number in proxy.order:
        proxy.answer(number, Done())
    await until(lambda: len(answers) == 3, every_s=0)
    await client.close()


@pytest.mark.parametrize("number", [2, 7, LAST_NUMBER])
@virtual_time
async def test_an_answer_to_what_was_not_asked_closes_the_connection(number):
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []
    client.submit(WRITE, answers.append)
    proxy.answer(number, Done())
    await until(lambda: client.closed, every_s=0)
    assert isinstance(answers[0], Refusal)
    assert answers[0].applied is Applied.UNKNOWN
    assert f"an answer to request {number}" in answers[0].message


@virtual_time
async def test_bytes_that_are_no_answer_close_the_connection():
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []
    client.submit(WRITE, answers.append)
    body = struct.pack(">BBHQ", 9, 9, 9, 9)
    proxy.link.send(struct.pack(">i", len(body)), body)
    await until(lambda: client.closed, every_s=0)
    assert "version 9" in answers[0].message  # type: ignore[union-attr]


@virtual_time
async def test_what_the_proxy_says_of_the_connection_is_what_callers_are_told():
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []
    client.submit(WRITE, answers.append)
    proxy.answer(0, Refusal(StatusCode.ILLEGAL_STATE, "two requests have the number 5"))
    proxy.link.close()
    await until(lambda: answers, every_s=0)
    assert "two requests have the number 5" in answers[0].message  # type: ignore[union-attr]


@virtual_time
async def test_an_answer_that_is_not_wanted_any_more_is_dropped_and_its_number_not_used_meanwhile():
    proxy = await RawProxy().start()
    client = await proxy.client()
    waiting = asyncio.create_task(client.call(WRITE))
    await until(lambda: proxy.order, every_s=0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert client.requests_under_way == 1
    proxy.answer(proxy.order[0], Done())
    await until(lambda: client.requests_under_way == 0, every_s=0)
    assert not client.closed
    await client.close()


@virtual_time
async def test_more_requests_than_may_be_under_way_are_not_sent():
    proxy = await RawProxy().start()
    client = await proxy.client(requests_under_way=2)
    answers: list[Answer] = []
    for _ in range(3):
        client.submit(WRITE, answers.append)
    (refusal,) = answers
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.applied) == (StatusCode.OVER_CAPACITY, Applied.NO)
    await client.close()


@virtual_time
async def test_more_bytes_than_the_network_takes_are_not_sent():
    proxy = await RawProxy().start()
    client = await proxy.client(queued_bytes=1_000_000)
    proxy.link.pause_reading()
    answers: list[Answer] = []
    for _ in range(100):
        client.submit(WriteRecords("s", (bytes(100_000),)), answers.append)
    assert 85 <= len(answers) <= 90
    assert client.queued_bytes < 1_200_000
    await client.close()


@virtual_time
async def test_a_request_that_fits_in_no_frame_is_refused_here():
    proxy = await RawProxy().start()
    client = await proxy.client()
    answer = await client.call(WriteRecords("s", (bytes(6_000_000),)))
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.applied) == (StatusCode.TOO_LARGE_RECORD, Applied.WRONG)
    assert not proxy.order
    await client.close()


@virtual_time
async def test_a_quiet_connection_asks_now_and_then_so_that_the_proxy_keeps_it():
    proxy = await RawProxy().start()
    proxy.echo = True
    client = await proxy.client(first_ping_ms=2_000, ping_ms=60_000)
    await asyncio.sleep(601)
    assert set(map(type, proxy.requests.values())) == {Handshake}
    assert 8 <= len(proxy.requests) <= 12
    assert not client.closed
    assert client.requests_under_way == 0
    await client.close()


@virtual_time
async def test_a_proxy_from_which_nothing_comes_any_more_is_given_up():
    proxy = await RawProxy().start()
    client = await proxy.client(ping_ms=60_000, ping_timeout_ms=20_000)
    answers: list[Answer] = []
    client.submit(WRITE, answers.append)
    began = asyncio.get_running_loop().time()
    await until(lambda: client.closed, every_s=1)
    assert 80 <= asyncio.get_running_loop().time() - began <= 84
    assert answers[0].applied is Applied.UNKNOWN  # type: ignore[union-attr]
    assert "nothing has come from the proxy for 80 s" in answers[0].message  # type: ignore[union-attr]


@virtual_time
async def test_a_busy_connection_is_not_asked():
    proxy = await RawProxy().start()
    proxy.echo = True
    client = await proxy.client(ping_ms=60_000)
    for _ in range(20):
        assert await client.call(WRITE) == Done()
        await asyncio.sleep(10)
    assert not [request for request in proxy.requests.values() if isinstance(request, Handshake)]
    await client.close()


@virtual_time
async def test_where_nothing_listens_nothing_was_sent():
    with pytest.raises(ProxyUnreachableError, match="refused"):
        await FramesClient.connect(Pipes(), "proxy:1")


@virtual_time
async def test_a_connection_that_is_refused_is_refused_as_unreachable_or_closed():
    proxy = await RawProxy().start()
    client = await proxy.client()
    proxy.link.close()
    assert isinstance(await client.call(WRITE), Refusal)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host:80", ("host", 80)), ("[::1]:4181", ("::1", 4181)), ("10.0.0.5:65535", ("10.0.0.5", 65535))],
)
def test_addresses(address, parts):
    assert host_and_port(address) == parts


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:8x", "host:١"]
)
def test_what_is_no_address_is_said_to_be_none(address):
    with pytest.raises(CallerError, match="host:port"):
        host_and_port(address)


def test_frames_need_no_grpc():
    """A process that has imported grpc misbehaves when it forks, as Spark's Python daemon does."""
    program = (
        "import sys, dlspark.serving.bindings.frames_client, dlspark.serving.bindings.frames_server;"
        "print([name for name in sys.modules if name.partition('.')[0] == 'grpc'])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@virtual_time
async def test_what_a_proxy_that_stopped_has_not_answered_was_not_begun_where_it_says_so():
    """A write that crosses the end of its connection can be sent elsewhere, even one that is not a producer's."""
    proxy = await RawProxy().start()
    client = await proxy.client()
    answers: list[Answer] = []
    client.submit(WRITE, answers.append)
    await until(lambda: proxy.order, every_s=0)
    proxy.answer(0, Refusal(StatusCode.SERVICE_UNAVAILABLE, "it has stopped"))
    await until(lambda: proxy.closed, "the client closes the connection, once it has heard that", every_s=0)
    await until(lambda: answers, every_s=0)
    (refusal,) = answers
    assert isinstance(refusal, Refusal)
    assert refusal.applied is Applied.NO
    assert isinstance(error_of(refusal, stream="stream"), ProxyUnreachableError)
