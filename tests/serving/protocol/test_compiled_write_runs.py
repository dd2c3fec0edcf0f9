"""Writes that came together are read by columns, by the compiled core and by its twin, as they are one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest
from helpers.entry_mutations import mutated
from helpers.twins import Draws, alike, answered_of
from helpers.twins import core as core
from helpers.twins import draws as draws
from helpers.twins import twin as twin

from dlspark.serving.protocol.operations import ProducerStamp, Request, RequestContext, WriteRecords
from dlspark.serving.protocol.request_checks import request_checksum
from dlspark.serving.protocol.request_frames import decode_request, encode_request
from dlspark.serving.protocol.write_runs import WriteRun, take_run
from metadata.foundation.compiled import CompiledCore

pytestmark = [pytest.mark.timeout(0)]  # as many rounds as one has patience for
OTHERS = (
    WriteRecords("a", (b"1", b"2")),
    WriteRecords("a", (b"whole",), atomic=True),
    WriteRecords("a", (b"set",), RequestContext(is_record_set=True)),
    WriteRecords("a", (b"tried",), RequestContext(tried_hosts=("h:1",))),
    WriteRecords("a", (b"stamped",), stamp=ProducerStamp("p", 0, 0)),
)


def frame_of(request: Request, number: int) -> bytes:
    return b"".join(encode_request(number, request))[4:]


def drawn(draw: random.Random, stream: str) -> bytes:
    """The frame of a write, most of them of one record."""
    if draw.random() < 0.05:
        return frame_of(draw.choice(OTHERS), 7)
    request = WriteRecords(stream, (draw.randbytes(draw.choice((0, 1, 15, 300))),))
    if draw.random() < 0.5:
        wrong = draw.random() < 0.05
        checksum = ((request_checksum(request) or 0) + wrong) % 2**32
        request = request.within(RequestContext(checksum=checksum, timeout_ms=draw.choice((0, 60_000))))
    return frame_of(request, draw.choice((0, 1, 7, 2**63, 2**64 - 1)))


def taking(draw: random.Random) -> Callable[[], object]:
    stream = draw.choice(("a", "/log/\u00e9", "", "x" * 1000))
    frames = [drawn(draw, stream if draw.random() < 0.98 else "other") for _ in range(draw.randrange(6))]
    if frames and draw.random() < 0.3:
        at = draw.randrange(len(frames))
        frames[at] = mutated(draw, frames[at]) or b"\0"
    views, first = [memoryview(frame) for frame in frames], draw.choice((0, 0, 0, 1, 5, 9))
    longest = draw.choice((2000, 2000, 2000, 60, 0))
    return lambda: take_run(views, first, longest)


def test_runs_of_frames_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    assert alike(core, draws, taking) == len(draws), "nothing is raised"
    runs = [taking(draw)() for draw in draws]
    assert 0.2 * len(runs) < sum(isinstance(one, WriteRun) for one in runs) < len(runs)


def test_no_argument_is_too_much_for_frames_of_writes(core: CompiledCore, draws: Draws) -> None:
    good = ([frame_of(WriteRecords("a", (b"1",)), 1)] * 3, 0, 100)
    assert answered_of(core, "take_writes", good, draws) > len(draws) // 20


@pytest.mark.usefixtures("twin")
def test_nothing_behind_the_first_frame_that_is_no_part_of_a_run_is_looked_at() -> None:
    """Streams that come in turn would have each frame looked at as often as there are frames before it."""
    frames = [memoryview(frame_of(WriteRecords(name, (b"1",)), 1)) for name in ("a", "a", "b")]
    taken = take_run([*frames, *[cast(memoryview, "no frame")] * 3], 0, 100)
    assert taken is not None
    assert taken.numbers == [1, 1]
    assert take_run([*frames[1:], cast(memoryview, "no frame")], 0, 100) is None


@pytest.mark.usefixtures("twin")
def test_a_run_is_what_its_frames_say_one_by_one() -> None:
    taken = 0
    for seed in range(300):
        draw = random.Random(seed)
        frames = [drawn(draw, "a") for _ in range(6)]
        run = take_run([memoryview(frame) for frame in frames], 0, 2000)
        requests = [decode_request(memoryview(frame)) for frame in frames]
        count = next((n for n, (_, one) in enumerate(requests) if one in OTHERS), len(frames))
        if run is None:
            assert count < 2
            continue
        taken += len(run.numbers)
        assert [(run.stream, *one) for one in zip(run.numbers, run.payloads, strict=True)] == [
            (one.stream, number, one.payloads[0]) for number, one in requests[:count] if isinstance(one, WriteRecords)
        ]
        sums = [(one.context.checksum, request_checksum(one)) for _, one in requests[:count]]
        assert run.summed is all(said in (None, right) for said, right in sums)
        assert run.size == sum(map(len, run.payloads))
    assert taken > 1000
