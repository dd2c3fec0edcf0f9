"""The compiled core and its twins: the same results and the same errors for the same input, good or bad.

200 inputs to each pair in the ordinary run, `--rounds` times as many thousands otherwise: a million with 1000.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pyarrow as pa
import pytest
from helpers.entry_mutations import drawn_entry, mutated
from helpers.twins import RECORDS, Draws, alike, answered_of, running_on
from helpers.twins import core as core
from helpers.twins import draws as draws

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression
from dlspark.core.codec.records import RECORD_FIELDS, LogRecord
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_up_to
from dlspark.core.codec.vector_encoding import encode_entries
from metadata.foundation.compiled import CompiledCore

pytestmark = [pytest.mark.timeout(0)]  # as many rounds as one has patience for


@pytest.fixture(scope="module", name="twin")
def _both_are_run_here() -> str:
    return "both"


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


def test_columns_of_entries_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, decoding)
    assert 0.4 * len(draws) < good < 0.9 * len(draws)


def making(draw: random.Random) -> Callable[[], object]:
    """Rows that share more or less with the one before them; now and then with one value too few."""
    count = draw.choice((0, 1, 2, 9, 300))
    entries, slots = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
    position, flags = np.arange(count, dtype=np.int64) + draw.choice((0, 1, 7, 2**31)), np.zeros(count, np.int64)
    for _ in range(draw.randrange(4) if count else 0):
        column = draw.choice((entries, slots, position, flags))
        column[draw.randrange(count) :] += draw.choice((1, -1, 2**62))
    columns = {"entry_id": entries, "slot_id": slots, "position": position, "flags": flags, "txid": position * 1_000}
    if count and draw.random() < 0.1:
        short = draw.choice(list(columns))
        columns[short] = columns[short][:-1]
    offset = draw.randrange(3)
    payload = pa.array([draw.randbytes(draw.randrange(9)) for _ in range(offset + count)], pa.binary()).slice(offset)
    start = draw.choice((0, 100, -(2**63), 2**63 - 1))
    batch = DecodedBatch(
        lssn=3, sequence_id=columns["position"] + start, payload=payload, end_of_stream=None, **columns
    )
    first, after = draw.choice((0, 0, 1, 5)), draw.choice((None, 4, count, count + 5))

    def work() -> object:
        return [(repr(one), type(one).__name__) for one in batch.records(first, after)]

    return work


def test_records_of_columns_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, making)
    assert 0.5 * len(draws) < good < len(draws)


def test_records_made_by_the_core_are_immutable_and_nothing_that_the_collector_looks_at(core: CompiledCore) -> None:
    batch = decode_up_to([(5, memoryview(RECORDS))], lssn=3, start_sequence_id=7, enveloped=False, max_bytes=None)[0]
    with running_on(core):
        records = batch.records()
    assert records == [LogRecord(0, b"hello", DLSN(3, 5, slot), 0, 0, 6) for slot in range(3)]
    assert not any(gc.is_tracked(one) for one in records)
    assert all(sys.getrefcount(one.payload) == 2 for one in records)
    with pytest.raises(FrozenInstanceError):
        records[0].txid = 5  # type: ignore[misc]


def test_columns_that_do_not_lie_in_one_piece_make_the_same_records(core: CompiledCore) -> None:
    payload = pa.array([b"%d" % n for n in range(6)], pa.binary())
    table = np.arange(36).reshape(6, 6)
    in_pieces = DecodedBatch(3, *(table[:, n] for n in range(6)), payload, None)
    in_one = DecodedBatch(3, *(table[:, n].copy() for n in range(6)), payload, None)
    with running_on(core):
        assert in_pieces.records() == in_one.records()


def test_payloads_of_another_type_make_the_same_records(core: CompiledCore) -> None:
    """Where they lie in memory is what the core reads: offsets of 64 bits would be taken for those of 32."""
    payloads = [b"first", b"", b"the third"]
    numbers = np.arange(3)
    plain, large = (
        DecodedBatch(3, numbers, numbers, numbers, numbers, numbers, numbers, pa.array(payloads, kind), None)
        for kind in (pa.binary(), pa.large_binary())
    )
    with running_on(core):
        assert [one.payload for one in large.records()] == payloads
        assert large.records() == plain.records()


def test_records_made_by_the_core_are_freed_with_their_last_reference(core: CompiledCore) -> None:
    payload = pa.array([bytes(100_000)] * 50, pa.binary())
    numbers = np.arange(50)
    batch = DecodedBatch(3, numbers, numbers, numbers, numbers, numbers, numbers, payload, None)
    with running_on(core):
        kept = batch.records(0, 1)
        tracemalloc.start()
        try:
            for _ in range(20):
                kept = batch.records()
            del kept
            assert tracemalloc.get_traced_memory()[0] < 1_000_000
        finally:
            tracemalloc.stop()


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


def test_entries_of_columns_good_and_bad(core: CompiledCore, draws: Draws) -> None:
    good = alike(core, draws, encoding)
    assert 0.5 * len(draws) < good < len(draws)


GOOD_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "measure_records": ([bytes(19) + b"\1x"], 1),
    "record_columns": ([bytes(19) + b"\1x"], [4], 1, 0, [bytearray(8) for _ in range(6)], bytearray(8), bytearray(1)),
    "make_records": (LogRecord, RECORD_FIELDS, (3, 7), [bytes(8)] * 5, bytes(8), b""),
    "lay_out_records": (bytes(20), np.array([0, 1], np.int64), b"x", bytearray(21)),
}


@pytest.mark.parametrize("name", GOOD_ARGUMENTS)
def test_no_argument_is_too_much_for_a_function(name: str, core: CompiledCore, draws: Draws) -> None:
    """Whatever it gets, it answers or refuses; a panic would be a BaseException of another kind."""
    assert answered_of(core, name, GOOD_ARGUMENTS[name], draws) > len(draws) // 20


def test_results_may_not_share_memory_with_what_is_read(core: CompiledCore) -> None:
    data = np.zeros(60, np.uint8)
    with pytest.raises(ValueError, match="shares memory"):
        core.lay_out_records(data[:20], np.array([0, 0], np.int64), b"", data[10:30])
    assert core.lay_out_records(data[:20], np.array([0, 0], np.int64), b"", data[20:40])
    with pytest.raises(BufferError):
        core.lay_out_records(bytes(20), np.array([0, 0], np.int64), b"", bytes(20))
