"""Entries that expand to far more than they are: a batch has a bound, and the next one goes on behind it."""

from __future__ import annotations

import pytest

from dlspark.core.codec import entries
from dlspark.core.codec.entries import Compression, EntryBuilder, declared_bytes, encode_record_set
from dlspark.core.codec.records import FLAG_CONTROL, FLAG_RECORD_SET, encode_header
from dlspark.core.codec.vector_decoding import decode_entries, decode_up_to
from dlspark.errors import InvalidEntryError

MIB = 1 << 20
SET = encode_record_set([bytes(4_000)] * 1_000, Compression.LZ4)
"""4 MB in 16 KB, and in less than 1 KB once it is compressed again."""


def entries_of(*kinds: str) -> list[tuple[int, memoryview]]:
    found, position = [], 1
    for number, kind in enumerate(kinds):
        builder = EntryBuilder(Compression.LZ4)
        if kind == "set":
            builder.add(number, SET, position, FLAG_RECORD_SET)
        elif kind == "control":
            builder.add(number, b"control", position - 1, FLAG_CONTROL)
        else:
            builder.add(number, bytes(1_000_000 if kind == "zeros" else 20), position)
        position += builder.count if kind != "control" else 0
        found.append((number, memoryview(b"".join(builder.finish().buffers))))
    return found


@pytest.mark.parametrize(
    ("kinds", "most"),
    [
        (["set"] * 8, 12),
        (["zeros"] * 24, 9),
        (["small", "set", "control"] * 6, 12),
        (["control"] * 5 + ["set"] * 5 + ["control"], 12),
    ],
)
def test_a_batch_has_no_more_than_its_bound_and_one_entry_and_all_of_them_have_all(kinds, most):
    stored = left = entries_of(*kinds)
    assert sum(len(payload) for _, payload in stored) < MIB
    rows = []
    while left:
        batch, taken = decode_up_to(left, lssn=1, start_sequence_id=0, max_bytes=8 * MIB)
        assert taken > 0
        assert batch.payload.nbytes <= most * MIB
        rows += [(record.dlsn, record.position, record.payload) for record in batch.records()]
        left = left[taken:]
    whole = decode_entries(stored, lssn=1, start_sequence_id=0)
    assert rows == [(record.dlsn, record.position, record.payload) for record in whole.records()]


def test_a_run_of_small_entries_is_one_piece_as_before():
    stored = entries_of(*["small"] * 1_000)
    assert decode_up_to(stored, lssn=1, start_sequence_id=0, max_bytes=8 * MIB)[1] == 1_000


def test_what_an_entry_declares_is_known_without_opening_it():
    (_, entry), (_, zeros) = entries_of("set", "zeros")
    assert (declared_bytes(entry, True), declared_bytes(entry, False)) == (20 + len(SET), len(entry))
    assert declared_bytes(zeros, True) == 1_000_020
    assert declared_bytes(b"short", True) == 5


def test_records_without_a_byte_count_as_well():
    """16,384 of them, as many as a proxy takes in a request, are stored in some 300 bytes."""
    encoded = encode_record_set([b""] * 16_384, Compression.LZ4)
    left, position = [], 1
    for number in range(4):
        builder = EntryBuilder(Compression.LZ4)
        builder.add(number, encoded, position, FLAG_RECORD_SET)
        left.append((number, memoryview(b"".join(builder.finish().buffers))))
        position += 16_384
    sizes = []
    while left:
        batch, taken = decode_up_to(left, lssn=1, start_sequence_id=0, max_bytes=MIB)
        sizes.append(len(batch))
        left = left[taken:]
    assert sizes == [16_384] * 4


def test_all_sets_of_an_entry_share_its_bound_also_where_their_payloads_are_empty(monkeypatch):
    monkeypatch.setattr(entries, "MAX_EXPANDED_BYTES", 100_000)
    encoded = encode_record_set([b""] * 20_000, Compression.LZ4)
    one, three = (
        b"".join(encode_header(1, len(encoded), 20_000 * n, FLAG_RECORD_SET) + encoded for n in range(count))
        for count in (1, 3)
    )
    assert len(entries.decode_content(memoryview(one), 1, 0, 0)) == 20_000
    with pytest.raises(InvalidEntryError, match="at most 20000 are accepted"):
        entries.decode_content(memoryview(three), 1, 0, 0)


def test_lengths_take_nothing_from_the_bound_of_payloads(monkeypatch):
    """Sets of short payloads, whose payloads alone are within the bound of an entry, were always readable."""
    monkeypatch.setattr(entries, "MAX_EXPANDED_BYTES", 100_000)
    encoded = encode_record_set([b"12345678"] * 1_000, Compression.LZ4)  # 8,000 bytes of payload, 4,000 of lengths
    sets = b"".join(encode_header(1, len(encoded), 1_000 * n, FLAG_RECORD_SET) + encoded for n in range(12))
    assert len(entries.decode_content(memoryview(sets), 1, 0, 0)) == 12_000
