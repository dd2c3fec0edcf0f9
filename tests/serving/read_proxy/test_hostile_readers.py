"""Readers that mean harm to a read proxy, and logs that are hard to read: what is answered fits, others are served."""

from __future__ import annotations

import pytest
from helpers.logs import written
from helpers.serving.read_world import Puller, ReadWorld

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.answer_frames import encode_answer
from dlspark.serving.protocol.operations import (
    Applied,
    Delivery,
    FindOwner,
    OwnerFound,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    StatusCode,
)
from dlspark.serving.read_proxy.service import ReadProxyService
from storage_node.protocol.frames import MAX_FRAME_BYTES

THREE_BYTE_NAME = "€" * 300


async def still_serves(service: ReadProxyService) -> None:
    reader = Puller(service, "honest", caller=Caller("honest:1"), number=77)
    await reader.until(2)
    assert reader.payloads == [b"a", b"b"]
    service.caller_gone(reader.caller)


@pytest.mark.parametrize("form", list(ReadForm))
async def test_a_long_name_does_not_make_deliveries_that_no_frame_takes(read_world: ReadWorld, form: ReadForm) -> None:
    namespace = await read_world.namespace()
    payloads = [b""] * 30_000
    log = await namespace.open_log(THREE_BYTE_NAME, {"writerOutputBufferSize": 1_000_000})
    async with await log.open_writer() as writer:
        for number, payload in enumerate(payloads):
            writer.write(number, payload)
    service = await read_world.proxy()
    reader = Puller(service, THREE_BYTE_NAME, form=form, max_bytes=2**32 - 1)
    while len(reader.payloads) < len(payloads):
        answer = await reader.pull()
        assert isinstance(answer, Delivery), answer
        assert sum(map(len, encode_answer(1, answer))) <= MAX_FRAME_BYTES
    assert reader.payloads == payloads


@pytest.mark.parametrize(
    "name", ["", "/honest", "a//b", "..", "a/../b", ".hidden", "a b", "\x00", "\ud800", "a/" * 16_000 + "a"]
)
async def test_a_name_that_no_log_can_have_is_refused_for_good(read_world: ReadWorld, name: str) -> None:
    namespace = await read_world.namespace()
    await written(namespace, "honest", [[b"a", b"b"]])
    service = await read_world.proxy()
    answer = await Puller(service, name).pull()
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.applied) == (StatusCode.INVALID_STREAM_NAME, Applied.WRONG)
    assert (service.figures().readers, service.figures().logs) == (0, 0)
    await still_serves(service)


@pytest.mark.parametrize(
    "start",
    [DLSN(-1, -1, -1), DLSN(-(2**63), 0, 0), DLSN(1, -5, -5), -1, -(2**63), 2**63 - 1, DLSN(2**63 - 1, 0, 0)],
)
async def test_a_start_that_makes_no_sense_ends_no_reader_but_its_own(read_world: ReadWorld, start: DLSN | int) -> None:
    namespace = await read_world.namespace()
    await written(namespace, "honest", [[b"a", b"b"]])
    service = await read_world.proxy()
    strange = Puller(service, "honest", start, wait_ms=50)
    assert isinstance(await strange.pull(), Delivery | Refusal)
    await still_serves(service)
    service.caller_gone(strange.caller)
    await still_serves(service)


async def test_readers_numbers_that_are_used_again_and_again_leave_one_reader(read_world: ReadWorld) -> None:
    namespace = await read_world.namespace()
    await written(namespace, "honest", [[b"a", b"b"]])
    service = await read_world.proxy()
    caller, answers = Caller("stranger:1"), []
    for turn in range(500):
        start = ReadFrom.LATEST if turn % 2 else ReadFrom.OLDEST
        service.submit(ReadBatch("honest", start, 2**32 - 1), caller, answers.append)
    assert service.figures().readers == 1
    await still_serves(service)
    service.caller_gone(caller)
    assert len(answers) == 500, "each is answered, once"
    owner: list[object] = []
    service.submit(FindOwner("x" * 60_000), caller, owner.append)
    assert owner == [OwnerFound(service.location)]
