"""Where a connection is ended from here, nothing is begun any more of what had arrived behind the reason for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from helpers.serving.scripted_service import NoRuns, ScriptedService
from helpers.waiting import until
from helpers.worlds.memory_network import PipeEnd, Pipes

from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.answer_frames import decode_answer
from dlspark.serving.protocol.operations import Refusal, Request, WriteReceipt, WriteRecords
from dlspark.serving.protocol.request_frames import encode_request
from storage_node.protocol.frames import LENGTH

GARBAGE = LENGTH.pack(60) + b"\x09" + bytes(59)


class Heard:
    """A client's end."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.closed = False

    def frame_received(self, frame: memoryview) -> None:
        self.answers.append(decode_answer(frame)[1])

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.closed = True


class AnsweredBetween(ScriptedService):
    """Answers in the turn of the loop in which the request came, but behind all that came with it; and the turn in
    which connections go on comes in it too, as where another connection waits for that."""

    server: FramesServer

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        asyncio.get_running_loop().call_soon(super().submit, request, caller, reply)
        self.server.turns.join(lambda: None)


def write(number: int) -> bytes:
    return b"".join(encode_request(number, WriteRecords("stream", (b"%d" % number,))))


async def heard_of(service: AnsweredBetween, sent: Sequence[bytes], *, together: bool) -> Heard:
    pipes, client = Pipes(), Heard()
    service.server = FramesServer(pipes, service)
    service.server.runs = NoRuns() if together else None
    await service.server.start("proxy", 0)
    link: PipeEnd = await pipes.connect("proxy", service.server.port, client, timeout_ms=20_000)
    link.send(*sent)
    await until(lambda: client.closed)
    await until(lambda: service.server.held_bytes == 0)
    await service.server.close(grace_s=0)
    return client


@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
@pytest.mark.parametrize("reason", [GARBAGE, write(1)], ids=["no request", "a number twice"])
async def test_what_had_arrived_behind_the_reason_of_an_end_is_not_begun(reason: bytes, together: bool) -> None:
    service = AnsweredBetween()
    client = await heard_of(service, [write(1), reason, write(2), write(3)], together=together)
    assert [request.payloads for request in service.requests if isinstance(request, WriteRecords)] == [(b"1",)]
    assert [type(answer) for answer in client.answers][:1] == [Refusal]
    assert all(isinstance(answer, Refusal | WriteReceipt) for answer in client.answers)
