"""Records on loan to another thread: each is delivered once or taken back, whoever comes between."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from dlspark.core.codec.vector_decoding import DecodedBatch, decode_entries
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.core.reading.decoded_records import SLICE, DecodedRecords

TOTAL = 2 * SLICE + 1


@pytest.fixture
def lent():
    encoded = encode_entries(np.arange(TOTAL), pa.array([b"x"] * TOTAL), first_position=1)
    entries = [(entry_id, memoryview(b"".join(one.buffers))) for entry_id, one in enumerate(encoded)]
    records = DecodedRecords()
    records.add_columns(decode_entries(entries, lssn=1, start_sequence_id=0, enveloped=True))
    return records, records.lend()


def in_the_midst_of(monkeypatch, number, action):
    """Run `action` while the loan makes its slice of that number, as a signal's handler may: in the same thread."""
    made, slices = DecodedBatch.records, iter(range(1, 100))

    def records(batch, *part):
        done = made(batch, *part)
        if next(slices) == number:
            action()
        return done

    monkeypatch.setattr(DecodedBatch, "records", records)


def delivered(loan):
    """What the loan delivers to a thread of its own, which must come to its end."""
    txids = []
    thread = threading.Thread(target=lambda: txids.extend(record.txid for record in loan.rest), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return txids


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_was_delivered_last_is_known_while_the_next_records_are_made(lent, monkeypatch, number):
    _, loan = lent
    seen = []
    in_the_midst_of(monkeypatch, number, lambda: seen.append(loan.last))
    assert delivered(loan) == list(range(TOTAL))
    assert [record and record.txid for record in seen] == [(number - 1) * SLICE - 1 if number > 1 else None]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_records_that_are_being_made_when_a_loan_is_taken_back_are_not_lost_and_not_repeated(lent, monkeypatch, number):
    records, loan = lent
    in_the_midst_of(monkeypatch, number, lambda: records.take_back(loan))
    before = delivered(loan)
    assert before == list(range((number - 1) * SLICE))
    assert [record.txid for record in records.take_up_to(len(records))] == list(range(len(before), TOTAL))
    assert loan.last is None if number == 1 else loan.last.txid == before[-1]
