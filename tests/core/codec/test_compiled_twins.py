"""The compiled core and its twins: the same results and the same errors for the same input, good or bad.

200 inputs to each pair in the ordinary run, `--rounds` times as many thousands otherwise: a million with 1000.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from helpers.entry_mutations import drawn_entry, mutated
from helpers.twins import built, outcome, running_on

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_up_to
from dlspark.core.codec.vector_encoding import encode_entries
from metadata.foundation.compiled import CompiledCore

INPUTS, INPUTS_A_ROUND = 200, 1_000
SEED = 34
pytestmark = [pytest.mark.timeout(0)]  # as many rounds as one has patience for


@pytest.fixture(scope="module", name="twin")
def _both_are_run_here() -> str:
    return "both"


@pytest.fixture(name="core")
def _core() -> CompiledCore:
    return built()


@pytest.fixture(name="draws")
def _draws(rounds: int | None, seed: int | None) -> list[random.Random]:
    """One source of chance for each input, so that one that fails can be run alone: the seed is in the message."""
    first = SEED if seed is None else seed
    return [random.Random(first + number) for number in range(rounds * INPUTS_A_ROUND if rounds else INPUTS)]


def alike(core: CompiledCore, draws: list[random.Random], made: Callable[[random.Random], Callable[[], object]]) -> int:
    """Run each input on both, and return how many had a result; the others had an error."""
    good = 0
    for number, draw in enumerate(draws):
        work = made(draw)
        with running_on(None):
            plain = outcome(work)
        with running_on(core):
            quick = outcome(work)
        assert quick == plain, f"input {number}, from its seed on"
        good += plain[0] == "result"
    return good


def shown(batch: DecodedBatch) -> tuple[object, ...]:
    numbers = (batch.entry_id, batch.slot_id, batch.txid, batch.position, batch.sequence_id, batch.flags)
    payload = batch.payload
    payload.validate(full=True)
    offsets = np.frombuffer(payload.buffers()[1], np.int32, len(payload) + 1)
    return (
        *((one.dtype.str, one.tobytes()) for one in numbers),
        offsets.tobytes(),
        b"".join(payload.to_pylist()),
        batch.end_of_stream,
        batch.lssn,
    )


def decoding(draw: random.Random) -> Callable[[], object]:
    enveloped = draw.random() < 0.7
    entries = []
    for number in range(draw.choice((1, 1, 2, 6))):
        entry = drawn_entry(draw, enveloped=enveloped)
        if draw.random() < 0.25:
            entry = mutated(draw, entry)
        entries.append((number + 5, memoryview(entry)))
    options = {
        "lssn": 3,
        "start_sequence_id": draw.choice((0, 100, -(2**63), 2**63 - 1)),
        "enveloped": enveloped,
        "include_control": draw.random() < 0.5,
        "max_bytes": draw.choice((None, None, 0, 50, 500)),
    }

    def work() -> object:
        batch, count = decode_up_to(entries, **options)
        return (*shown(batch), count)

    return work


def test_columns_of_entries_good_and_bad(core: CompiledCore, draws: list[random.Random]) -> None:
    good = alike(core, draws, decoding)
    assert 0.4 * len(draws) < good < 0.9 * len(draws)


def encoding(draw: random.Random) -> Callable[[], object]:
    count, length = draw.choice((0, 1, 2, 30)), draw.choice((0, 3, 90))
    equal = draw.random() < 0.4
    values = [draw.randbytes(length if equal else draw.randrange(2 * length + 1)) for _ in range(count)]
    if values and draw.random() < 0.05:
        values[-1] = bytes(draw.choice((1_040_364, 1_040_365)))
    kind = draw.choice((pa.binary(), pa.binary(), pa.large_binary(), pa.binary_view()))
    payloads = pa.array([None if draw.random() < 0.01 else one for one in values], kind)
    ids = [draw.randrange(2**63 - 1) if draw.random() > 0.01 else draw.choice((-1, 2**63 - 1)) for _ in values]
    first = draw.randrange(3)
    position = draw.choice((1, 1, 9, 2**31 - 20)) if draw.random() > 0.02 else 0
    options = {
        "first_position": position,
        "compression": Compression.LZ4 if draw.random() < 0.1 else Compression.NONE,
        "max_entry_bytes": draw.choice((14, 100, 1_000, 262_144)),
        "enveloped": draw.random() < 0.7,
    }

    def work() -> object:
        entries = encode_entries(np.array(ids[first:], np.int64), payloads.slice(first), **options)
        return [(b"".join(one.buffers), one.record_count, one.first_txid, one.last_txid, one.size) for one in entries]

    return work


def test_entries_of_columns_good_and_bad(core: CompiledCore, draws: list[random.Random]) -> None:
    good = alike(core, draws, encoding)
    assert 0.5 * len(draws) < good < len(draws)


def anything(draw: random.Random, depth: int = 0) -> object:
    """Return an argument that is as good as any other, or none at all."""
    kind = draw.randrange(9 if depth else 12)
    if kind < 4:
        data = drawn_entry(draw, enveloped=False) if draw.random() < 0.5 else draw.randbytes(draw.randrange(90))
        data = mutated(draw, data) if draw.random() < 0.3 else data
        return (bytes, bytearray, memoryview, lambda one: np.frombuffer(one, np.uint8).copy())[kind](data)
    if kind == 4:
        return np.zeros(draw.randrange(9), np.int64) if draw.random() < 0.7 else np.zeros((4, 4), np.int64)[:, ::2]
    if kind == 5:
        return bytearray(8 * draw.randrange(9))
    if kind == 6:
        return draw.choice((0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, True))
    if kind == 7:
        return draw.choice((None, "text", 1.5, object(), {}, b""))
    if kind == 8:
        return np.arange(draw.randrange(6), dtype=np.int64) * draw.choice((1, 7, -1, 2**62))
    several = [anything(draw, depth + 1) for _ in range(draw.choice((0, 1, 2, 6)))]
    return several if draw.random() < 0.8 else [several[0]] * 6 if several else tuple(several)


REFUSALS = (TypeError, ValueError, BufferError, OverflowError)


GOOD_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "measure_records": ([bytes(19) + b"\1x"], 1),
    "record_columns": ([bytes(19) + b"\1x"], [4], 1, 0, [bytearray(8) for _ in range(6)], bytearray(8), bytearray(1)),
    "lay_out_records": (bytes(20), np.array([0, 1], np.int64), b"x", bytearray(21)),
}


@pytest.mark.parametrize("name", GOOD_ARGUMENTS)
def test_no_argument_is_too_much_for_a_function(name: str, core: CompiledCore, draws: list[random.Random]) -> None:
    """Whatever it gets, it answers or refuses; a panic would be a BaseException of another kind."""
    function, good = getattr(core, name), GOOD_ARGUMENTS[name]
    assert function(*good)
    answered = 0
    for draw in draws:
        arguments = [one if draw.random() < 0.7 else anything(draw) for one in good]
        try:
            function(*arguments)
            answered += 1
        except REFUSALS:
            pass
    assert answered > len(draws) // 20


def test_results_may_not_share_memory_with_what_is_read(core: CompiledCore) -> None:
    data = np.zeros(60, np.uint8)
    with pytest.raises(ValueError, match="shares memory"):
        core.lay_out_records(data[:20], np.array([0, 0], np.int64), b"", data[10:30])
    assert core.lay_out_records(data[:20], np.array([0, 0], np.int64), b"", data[20:40])
    with pytest.raises(BufferError):
        core.lay_out_records(bytes(20), np.array([0, 0], np.int64), b"", bytes(20))
