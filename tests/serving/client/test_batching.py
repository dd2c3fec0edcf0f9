"""Records gathered into requests: by bytes, count and time, in order, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import HEADER_BYTES, MAX_LOGRECORDSET_SIZE
from dlspark.serving.client.batching import RECORD_ROOM_BYTES, BatchBounds, RecordAccumulator, record_outcomes
from dlspark.serving.client.settings import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dlspark.serving.protocol.frame_parts import MAX_PAYLOADS
from dlspark.serving.protocol.operations import Applied, BulkReceipt, Done, Refusal, StatusCode, WriteReceipt
from metadata.foundation.errors import InvariantViolation

SMALL = BatchBounds(max_bytes=3 * (10 + RECORD_ROOM_BYTES), max_records=5, linger_ms=100)


def filled(sizes: list[int], limits: BatchBounds = SMALL) -> RecordAccumulator:
    accumulator = RecordAccumulator(limits)
    for number, size in enumerate(sizes):
        assert accumulator.add(number, b"x" * size, 0.0)
    return accumulator


def test_a_full_request_fits_in_one_entry_and_one_frame() -> None:
    assert HEADER_BYTES + 4 <= RECORD_ROOM_BYTES
    assert MAX_BATCH_BYTES + 1024 < MAX_LOGRECORDSET_SIZE
    assert MAX_BATCH_RECORDS <= MAX_PAYLOADS


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_requests_have_all_records_in_order_and_none_is_above_its_bounds(sizes: list[int]) -> None:
    accumulator, seen = filled(sizes), []
    while len(accumulator):
        batch = accumulator.take()
        seen += batch.keys
        assert len(batch.payloads) == len(batch.keys) <= SMALL.max_records
        assert batch.bytes <= SMALL.max_bytes or len(batch.keys) == 1
        accumulator.settled(batch)
    assert seen == list(range(len(sizes)))
    assert accumulator.pending_bytes == 0


def test_a_record_waits_for_its_linger_unless_the_request_is_full() -> None:
    accumulator = filled([10, 10])
    assert accumulator.next_due() == 0.1
    assert not accumulator.is_ready(0.09)
    assert accumulator.is_ready(0.1)
    accumulator.add("third", b"x" * 10, 0.05)
    assert accumulator.is_ready(0.05), "the bytes are there"
    assert filled([0] * 5).is_ready(0.0), "the records are there"
    assert RecordAccumulator(SMALL).next_due() is None
    assert not RecordAccumulator(SMALL).is_ready(1e9)


def test_without_a_linger_a_record_is_ready_at_once() -> None:
    assert filled([1], BatchBounds()).is_ready(0.0)


def test_what_waits_is_bounded_in_bytes_and_records_until_its_fate_is_known() -> None:
    accumulator = RecordAccumulator(BatchBounds(max_pending_records=2))
    assert accumulator.add(1, b"", 0.0)
    assert accumulator.add(2, b"", 0.0)
    assert not accumulator.has_room
    assert not accumulator.add(3, b"", 0.0)
    batch = accumulator.take()
    assert not accumulator.has_room, "it is under way"
    accumulator.settled(batch)
    assert accumulator.add(3, b"", 0.0)
    with pytest.raises(InvariantViolation):
        accumulator.settled(batch)
    huge = RecordAccumulator(BatchBounds(max_pending_bytes=10))
    assert huge.add(1, b"x" * 1000, 0.0), "a record alone always finds room"
    assert not huge.add(2, b"", 0.0)


def test_a_record_can_be_taken_back_until_it_is_in_a_request() -> None:
    accumulator = filled([10, 10, 10])
    assert accumulator.give_up(1)
    assert not accumulator.give_up(1)
    batch = accumulator.take()
    assert batch.keys == (0, 2)
    assert not accumulator.give_up(0)
    accumulator.settled(batch)
    assert accumulator.pending_bytes == 0


def test_records_with_transaction_ids_travel_apart_from_those_without() -> None:
    accumulator = RecordAccumulator()
    for key, txid in (("a", None), ("b", 7), ("c", 8), ("d", None)):
        accumulator.add(key, b"", 0.0, txid)
    batches = [accumulator.take() for _ in range(3)]
    assert [(batch.keys, batch.transaction_ids) for batch in batches] == [
        (("a",), None),
        (("b", "c"), (7, 8)),
        (("d",), None),
    ]
    assert batches[1].request("s").is_whole


def test_two_records_cannot_have_one_key_and_nothing_is_taken_of_nothing() -> None:
    accumulator = filled([1])
    with pytest.raises(InvariantViolation):
        accumulator.add(0, b"", 0.0)
    with pytest.raises(InvariantViolation):
        RecordAccumulator().take()


def test_each_record_has_the_place_behind_the_one_before() -> None:
    batch = filled([1, 1, 1]).take()
    found = list(record_outcomes(batch, WriteReceipt(DLSN(3, 9, 1), 3)))
    assert found == [(0, DLSN(3, 9, 1)), (1, DLSN(3, 9, 2)), (2, DLSN(3, 9, 3))]
    assert all(isinstance(place, DLSN) for _, place in found)
    assert [place for _, place in record_outcomes(batch, WriteReceipt(None, 3, repeated=True))] == [None] * 3


def test_each_record_of_a_bulk_has_its_own_fate_and_a_refusal_is_that_of_all() -> None:
    batch = filled([1, 1]).take()
    refusal = Refusal(StatusCode.OVER_CAPACITY, "full")
    assert list(record_outcomes(batch, BulkReceipt((DLSN(1, 0, 0), refusal)))) == [(0, DLSN(1, 0, 0)), (1, refusal)]
    assert list(record_outcomes(batch, refusal)) == [(0, refusal), (1, refusal)]


@pytest.mark.parametrize("answer", [Done(), WriteReceipt(DLSN(1, 0, 0), 1), BulkReceipt(())])
def test_an_answer_that_does_not_fit_says_nothing_of_the_records(answer: Done | WriteReceipt | BulkReceipt) -> None:
    for _, fate in record_outcomes(filled([1, 1]).take(), answer):
        assert isinstance(fate, Refusal)
        assert fate.applied is Applied.UNKNOWN
