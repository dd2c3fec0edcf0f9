"""Records, entries and record sets against the byte vectors of docs/reference/records.md#record-vectors."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest
from helpers.reference_vectors import vectors

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, EntryBuilder, decode_entry, decode_record_set, encode_record_set
from dlspark.core.codec.records import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    KEEPALIVE_PAYLOAD,
    MAX_TXID,
    LogRecord,
    encode_record,
    sequence_id,
)
from dlspark.core.codec.vector_decoding import decode_entries, entry_summary

VECTORS = vectors("records.md")
RECORDS = [
    ("record, user 1", 1001, b"hello", 1, 0),
    ("record, user 2", 1002, b"world!", 2, 0),
    ("record, control", 1002, CONTROL_PAYLOAD, 2, FLAG_CONTROL),
    ("record, keep-alive", 1002, KEEPALIVE_PAYLOAD, 2, FLAG_CONTROL),
    ("record, end of stream", MAX_TXID, END_OF_STREAM_PAYLOAD, 2, FLAG_END_OF_STREAM),
    ("record, last position", 7, b"", 2147483647, 0),
]
ENTRY_17, ENTRY_18, ENTRY_19 = VECTORS["entry 17"], VECTORS["entry 18"], VECTORS["entry 19"]
ENTRY_20, ENTRY_21 = VECTORS["entry 20"], VECTORS["entry 21"]
BARE_ENTRY_17 = VECTORS["entry 17, no envelope"]
LZ4_BY_JAVA, LZ4_BY_LIBLZ4 = VECTORS["LZ4 entry by Java"], VECTORS["LZ4 entry by liblz4"]
RECORD_SET, LZ4_RECORD_SET = VECTORS["record set"], VECTORS["LZ4 record set"]


def decoded(entry: bytes, entry_id: int, *, enveloped: bool = True, expand: bool = True) -> list[LogRecord]:
    return decode_entry(
        memoryview(entry),
        lssn=3,
        entry_id=entry_id,
        start_sequence_id=100,
        enveloped=enveloped,
        expand_record_sets=expand,
    )


def built(
    *records: tuple[int, bytes, int, int], compression: Compression = Compression.NONE, enveloped: bool = True
) -> bytes:
    builder = EntryBuilder(compression, enveloped=enveloped)
    for txid, payload, position, flags in records:
        builder.add(txid, payload, position, flags)
    return b"".join(builder.finish().buffers)


@pytest.mark.parametrize(("name", "txid", "payload", "position", "flags"), RECORDS)
def test_a_record_has_the_bytes_of_its_vector(name: str, txid: int, payload: bytes, position: int, flags: int) -> None:
    data = VECTORS[name]
    assert encode_record(txid, payload, position, flags) == data
    [record] = decoded(data, 0, enveloped=False)
    assert (record.txid, record.payload, record.position, record.flags) == (txid, payload, position, flags)


def test_the_vector_of_two_user_records_without_compression() -> None:
    assert built((1001, b"hello", 1, 0), (1002, b"world!", 2, 0)) == ENTRY_17
    assert decoded(ENTRY_17, 17) == [
        LogRecord(1001, b"hello", DLSN(3, 17, 0), 1, 0, 100),
        LogRecord(1002, b"world!", DLSN(3, 17, 1), 2, 0, 101),
    ]


def test_the_vector_of_an_entry_of_a_version_3_segment_has_no_envelope() -> None:
    assert built((1001, b"hello", 1, 0), (1002, b"world!", 2, 0), enveloped=False) == BARE_ENTRY_17
    assert decoded(BARE_ENTRY_17, 17, enveloped=False) == decoded(ENTRY_17, 17)


def test_the_vector_of_a_control_record() -> None:
    assert built((1002, CONTROL_PAYLOAD, 2, FLAG_CONTROL)) == ENTRY_18
    assert decoded(ENTRY_18, 18) == [LogRecord(1002, b"control", DLSN(3, 18, 0), 2, FLAG_CONTROL, 101)]
    assert len(columns(ENTRY_18, 18)) == 0


def test_the_vector_of_the_end_of_stream_is_neither_user_nor_control_record() -> None:
    assert built((MAX_TXID, END_OF_STREAM_PAYLOAD, 2, FLAG_END_OF_STREAM)) == ENTRY_19
    [record] = decoded(ENTRY_19, 19)
    assert record == LogRecord(MAX_TXID, b"endOfStream", DLSN(3, 19, 0), 2, FLAG_END_OF_STREAM, 101)
    assert (record.is_control, record.is_end_of_stream, record.is_user) == (False, True, False)
    batch = decode_entries([(19, memoryview(ENTRY_19))], lssn=3, start_sequence_id=100)
    assert len(batch) == 0
    assert batch.end_of_stream == DLSN(3, 19, 0)


@pytest.mark.parametrize("entry", [LZ4_BY_JAVA, LZ4_BY_LIBLZ4], ids=["by Java", "by liblz4"])
def test_the_vectors_of_two_lz4_compressors_hold_the_same_records(entry: bytes) -> None:
    records = decoded(entry, 4)
    assert [(r.txid, r.position, r.payload) for r in records] == [
        (1001, 1, b"abcdefgh" * 8),
        (1002, 2, b"abcdefgh" * 8),
    ]
    assert columns(entry, 4) == [(4, 0, 1001, 1, 100, b"abcdefgh" * 8), (4, 1, 1002, 2, 101, b"abcdefgh" * 8)]


def test_an_lz4_entry_written_here_is_read_as_the_vector_of_liblz4() -> None:
    ours = built((1001, b"abcdefgh" * 8, 1, 0), (1002, b"abcdefgh" * 8, 2, 0), compression=Compression.LZ4)
    assert decoded(ours, 4) == decoded(LZ4_BY_LIBLZ4, 4)
    assert ours[:9] == LZ4_BY_LIBLZ4[:9]


def test_the_vector_of_a_record_set_without_compression() -> None:
    payload = encode_record_set([b"r1", b"r22", b"r333"])
    assert payload == RECORD_SET
    assert encode_record(2000, payload, 1, FLAG_RECORD_SET) == VECTORS["record of the set"]
    assert [bytes(member) for member in decode_record_set(memoryview(payload))] == [b"r1", b"r22", b"r333"]


def test_the_vector_of_an_entry_with_a_record_set_expanded() -> None:
    assert built((2000, RECORD_SET, 1, FLAG_RECORD_SET), (2001, b"tail", 4, 0)) == ENTRY_20
    expected = [
        (20, 0, 2000, 1, 100, b"r1"),
        (20, 1, 2000, 2, 101, b"r22"),
        (20, 2, 2000, 3, 102, b"r333"),
        (20, 3, 2001, 4, 103, b"tail"),
    ]
    records = decoded(ENTRY_20, 20)
    assert [(20, r.dlsn.slot_id, r.txid, r.position, r.sequence_id, r.payload) for r in records] == expected
    assert [r.last_position for r in records] == [1, 2, 3, 4]
    assert columns(ENTRY_20, 20) == expected


def test_the_vector_of_an_entry_with_a_record_set_whole() -> None:
    records = decoded(ENTRY_20, 20, expand=False)
    rows = [(r.dlsn.slot_id, r.txid, r.position, r.last_position, r.sequence_id, len(r.payload)) for r in records]
    assert rows == [(0, 2000, 1, 3, 100, 37), (3, 2001, 4, 4, 103, 4)]
    assert records[0].is_record_set


def test_the_vector_of_an_lz4_record_set_alone_and_in_an_lz4_entry() -> None:
    members = [b"abcdefgh" * 8, b"abcdefgh" * 8, b"z"]
    assert [bytes(m) for m in decode_record_set(memoryview(LZ4_RECORD_SET))] == members
    ours = encode_record_set(members, Compression.LZ4)
    assert [bytes(m) for m in decode_record_set(memoryview(ours))] == members
    assert columns(ENTRY_21, 21) == [(21, i, 2000, 1 + i, 100 + i, member) for i, member in enumerate(members)]


def test_entries_of_all_kinds_decode_together_in_order() -> None:
    entries = [(17, ENTRY_17), (18, ENTRY_18), (20, ENTRY_20), (21, ENTRY_21), (22, ENTRY_18), (23, ENTRY_19)]
    batch = decode_entries(
        [(e, memoryview(data)) for e, data in entries],
        lssn=3,
        start_sequence_id=100,
        include_control=True,
    )
    assert list(batch.entry_id) == [17, 17, 18, 20, 20, 20, 20, 21, 21, 21, 22]
    assert list(batch.slot_id) == [0, 1, 0, 0, 1, 2, 3, 0, 1, 2, 0]
    assert list(batch.flags) == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert batch.end_of_stream == DLSN(3, 23, 0)
    batch.payload.validate(full=True)


def test_the_summary_counts_slots_and_tells_user_records_apart() -> None:
    summary = entry_summary(memoryview(ENTRY_20))
    assert (summary.record_count, summary.user_count) == (4, 4)
    assert (summary.first_txid, summary.last_txid, summary.first_position, summary.last_position) == (2000, 2001, 1, 4)
    control = entry_summary(memoryview(ENTRY_18))
    assert (control.record_count, control.user_count, control.first_txid, control.last_position) == (1, 0, None, 2)
    assert entry_summary(memoryview(ENTRY_19)).end_of_stream


def columns(entry: bytes, entry_id: int) -> list[tuple[int, int, int, int, int, bytes]]:
    batch = decode_entries([(entry_id, memoryview(entry))], lssn=3, start_sequence_id=100)
    batch.payload.validate(full=True)
    numbers = zip(batch.entry_id, batch.slot_id, batch.txid, batch.position, batch.sequence_id, strict=True)
    return [
        (int(e), int(s), int(t), int(p), int(q), payload)
        for (e, s, t, p, q), payload in zip(numbers, batch.payload.to_pylist(), strict=True)
    ]


def test_a_record_is_a_value_that_nothing_changes() -> None:
    record = LogRecord(1001, b"hello", DLSN(3, 17, 4), 9, FLAG_RECORD_SET, 108, slots=2)
    assert record == LogRecord(1001, b"hello", DLSN(3, 17, 4), 9, FLAG_RECORD_SET, 108, slots=2)
    assert record != LogRecord(1001, b"hello", DLSN(3, 17, 5), 9, FLAG_RECORD_SET, 108, slots=2)
    assert record != "hello"
    assert (record.dlsn, record.sequence_id, record.flags, record.slots) == (DLSN(3, 17, 4), 108, FLAG_RECORD_SET, 2)
    assert repr(record) == (
        "LogRecord(txid=1001, payload=b'hello', dlsn=DLSN(lssn=3, entry_id=17, slot_id=4), position=9, flags=4, "
        "sequence_id=108, slots=2)"
    )
    assert len({record, copy.copy(record), pickle.loads(pickle.dumps(record))}) == 1
    unnumbered = LogRecord(1, b"", DLSN(1, 0, 0), 5, 0, sequence_id(-(2**63), 5))
    assert unnumbered.sequence_id == -(2**63) + 4
    for name in ("txid", "dlsn", "colour"):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, 1)
    with pytest.raises(FrozenInstanceError):
        del record.payload
