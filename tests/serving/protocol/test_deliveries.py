"""The parts of deliveries: what is encoded comes back, and whatever else comes is refused or whole."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, EntryBuilder, encode_record_set
from dlspark.core.codec.records import FLAG_CONTROL, FLAG_END_OF_STREAM, FLAG_RECORD_SET, MAX_TXID, LogRecord
from dlspark.core.codec.vector_decoding import decode_entries, record_rows
from dlspark.errors import InvalidEntryError
from dlspark.serving.protocol.deliveries import (
    HEAD_BYTES,
    ROW_BYTES,
    StoredEntry,
    batches_of,
    decode_arrow,
    decode_records,
    decode_stored,
    encode_arrow,
    encode_columns,
    encode_records,
    encode_stored,
    position_behind,
    records_of,
)
from dlspark.serving.protocol.operations import Delivery, ReadForm
from metadata.foundation.errors import CallerError
from storage_node.errors import ProtocolError

UNASSIGNED = -(2**63)
starts = st.sampled_from([0, 1, 12345, UNASSIGNED])


@st.composite
def batches(draw):
    """Records of one segment, in order, as entries hold them."""
    start, lssn = draw(starts), draw(st.integers(0, 2**40))
    entry_id, position = draw(st.integers(0, 2**40)), draw(st.integers(1, 1000))
    records = []
    for slots in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
        for slot in range(slots):
            payload = draw(st.binary(max_size=30))
            txid = draw(st.integers(0, MAX_TXID - 1))
            number = (start + position - 1 + 2**63) % 2**64 - 2**63
            records.append(LogRecord(txid, payload, DLSN(lssn, entry_id, slot), position, 0, number))
            position += 1
        entry_id += draw(st.integers(1, 1000))
    return records


def entry(*payloads, first=1, compression=Compression.NONE, flags=0):
    builder = EntryBuilder(compression)
    for i, payload in enumerate(payloads):
        builder.add(100 + i, payload, first + i, flags)
    return b"".join(bytes(buffer) for buffer in builder.finish().buffers)


@given(batches())
def test_a_batch_of_records_comes_back_as_it_was(records):
    part = encode_records(records)
    assert len(part) == HEAD_BYTES + len(records) * ROW_BYTES + sum(len(record.payload) for record in records)
    assert decode_records(part) == records
    assert decode_records(memoryview(bytearray(part))) == records


@given(
    st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=5), min_size=1, max_size=5),
    starts,
    st.sampled_from(Compression),
    st.integers(0, 10),
)
def test_columns_and_records_make_the_same_batch(entries, start, compression, skipped):
    stored, position = [], 1
    for i, payloads in enumerate(entries):
        stored.append((i * 3, memoryview(entry(*payloads, first=position, compression=compression))))
        position += len(payloads)
    batch = decode_entries(stored, lssn=7, start_sequence_id=start)
    batch = batch.sliced(min(skipped, len(batch) - 1), len(batch))
    assert encode_columns(batch) == encode_records(batch.records())
    assert decode_records(encode_columns(batch)) == batch.records()


@given(batches(), st.data())
def test_a_damaged_batch_is_refused_or_whole(records, data):
    part = bytearray(encode_records(records))
    if data.draw(st.booleans()):
        part = part[: data.draw(st.integers(0, len(part) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_records(part)
    except ProtocolError:
        return
    # What holds together by its own lengths is a batch: as many records as it says, all of its bytes in them.
    assert len(found) * ROW_BYTES + HEAD_BYTES + sum(len(record.payload) for record in found) == len(part)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_part_are_refused_and_nothing_else(part):
    for decode in (decode_records, decode_stored, decode_arrow):
        try:
            decode(part)
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 2), (4, 0xFF), (8, 0x80), (24, 0x80), (HEAD_BYTES + 8, 0xFF), (HEAD_BYTES + 24, 0xFF)],
)
def test_each_field_of_a_batch_is_bounded(at, value):
    part = bytearray(encode_records([LogRecord(1, b"x", DLSN(1, 2, 3), 1, 0, 0)]))
    part[at] = value
    with pytest.raises(ProtocolError):
        decode_records(part)


def test_an_empty_batch_has_nothing_behind_its_head():
    empty = bytearray(encode_records([LogRecord(1, b"", DLSN(1, 2, 3), 1, 0, 0)])[:HEAD_BYTES])
    empty[4:8] = bytes(4)
    assert decode_records(empty) == []
    with pytest.raises(ProtocolError):
        decode_records(empty + b"x")


def test_a_stored_entry_shows_its_reader_what_is_the_readers():
    builder = EntryBuilder()
    builder.add(1, b"control", 0, FLAG_CONTROL)
    builder.add(2, b"a", 1)
    builder.add(3, encode_record_set([b"b", b"c"]), 2, FLAG_RECORD_SET)
    builder.add(MAX_TXID, b"end", 3, FLAG_END_OF_STREAM)
    payload = b"".join(bytes(buffer) for buffer in builder.finish().buffers)
    whole = StoredEntry(4, 9, 77, 100, 5, payload)
    found = decode_stored(encode_stored(whole))
    assert (found.lssn, found.entry_id, found.ledger_id) == (4, 9, 77)
    assert (found.start_sequence_id, found.metadata_version) == (100, 5)
    assert [record.payload for record in found.records()] == [b"a", b"b", b"c"]
    assert [record.sequence_id for record in found.records()] == [100, 101, 102]
    later = decode_stored(encode_stored(StoredEntry(4, 9, 77, 100, 5, payload, first_slot=3)))
    assert [record.payload for record in later.records()] == [b"c"]


def test_entries_of_old_segments_have_no_envelope():
    builder = EntryBuilder(enveloped=False)
    builder.add(2, b"a", 1)
    payload = b"".join(bytes(buffer) for buffer in builder.finish().buffers)
    assert [r.payload for r in decode_stored(encode_stored(StoredEntry(1, 0, 9, 0, 3, payload))).records()] == [b"a"]
    with pytest.raises(InvalidEntryError):
        decode_stored(encode_stored(StoredEntry(1, 0, 9, 0, 4, payload))).records()


def test_arrow_streams_come_back_and_others_are_refused():
    records = [LogRecord(5, b"a", DLSN(1, 0, 0), 1, 0, 0), LogRecord(6, b"bb", DLSN(1, 0, 1), 2, 0, 1)]
    batch = record_rows("log", records)
    delivery = Delivery(ReadForm.ARROW, DLSN(1, 1, 0), (encode_arrow(batch), encode_arrow(batch)))
    assert batches_of(delivery) == [batch, batch]
    with pytest.raises(CallerError):
        records_of(delivery)
    other = pa.RecordBatch.from_pydict({"value": [1]})
    with pytest.raises(ProtocolError):
        decode_arrow(encode_arrow(other))
    with pytest.raises(ProtocolError):
        decode_arrow(bytes(encode_arrow(batch))[:-60])


def test_a_delivery_has_its_records_in_order_whatever_its_form():
    payload = entry(b"a", b"b")
    records = StoredEntry(1, 0, 9, 0, 5, payload).records()
    stored = Delivery(ReadForm.ENTRIES, DLSN(1, 1, 0), (encode_stored(StoredEntry(1, 0, 9, 0, 5, payload)),))
    plain = Delivery(ReadForm.RECORDS, DLSN(1, 1, 0), (encode_records(records[:1]), encode_records(records[1:])))
    assert records_of(stored) == records_of(plain) == records
    assert position_behind(records[-1]) == DLSN(1, 0, 2)
    with pytest.raises(CallerError):
        batches_of(plain)
