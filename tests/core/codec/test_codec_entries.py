"""Entries as properties: what is encoded comes back, both decoders agree, bad bytes are only ever InvalidEntryError."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import (
    ENVELOPE,
    Compression,
    EncodedEntry,
    EntryBuilder,
    decode_entry,
    decode_record_set,
    encode_record_set,
)
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    MAX_LOGRECORDSET_SIZE,
    MAX_PAYLOAD_BYTES,
    MAX_POSITION,
    MAX_TXID,
    LogRecord,
    encode_record,
    sequence_id,
)
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_entries, entry_summary
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.errors import (
    InvalidEntryError,
    InvalidRecordError,
    RecordTooLongError,
    SegmentFullError,
    TransactionIdOutOfOrderError,
)
from metadata.foundation.errors import CallerError

LSSN = 3
START = 100
Row = tuple[int, int, int, int, int, int, bytes]

txids = st.integers(0, MAX_TXID - 1)
small_payloads = st.binary(max_size=40)
payload_lists = st.one_of(
    st.lists(small_payloads, max_size=120),
    st.builds(lambda payload, n: [payload] * n, small_payloads, st.integers(0, 200)),
    st.builds(lambda n: [b""] * n, st.integers(0, 100)),
    # Zero bytes look like headers to the search for record starts.
    st.lists(st.builds(lambda n, b: bytes(n) + b, st.integers(0, 90), small_payloads), max_size=120),
)
compressions = st.sampled_from(Compression)


@st.composite
def raw_records(draw: st.DrawFn) -> tuple[int, bytes, int, int]:
    """(txid, payload, position, flags) of any kind of record."""
    kind = draw(st.sampled_from(["user"] * 5 + ["control", "end", "set"]))
    position = draw(st.integers(1, 1000))
    if kind == "set":
        members = draw(st.lists(small_payloads, min_size=1, max_size=4))
        return draw(txids), encode_record_set(members, draw(compressions)), position, FLAG_RECORD_SET
    if kind == "end":
        return MAX_TXID, b"endOfStream", position, FLAG_END_OF_STREAM
    return draw(txids), draw(small_payloads), position, FLAG_CONTROL if kind == "control" else 0


entries_of_records = st.lists(st.lists(raw_records(), min_size=1, max_size=12), min_size=1, max_size=6)


def joined(entry: EncodedEntry) -> memoryview:
    return memoryview(b"".join(entry.buffers))


def build(records: list[tuple[int, bytes, int, int]], compression: Compression, enveloped: bool = True) -> memoryview:
    builder = EntryBuilder(compression, enveloped=enveloped)
    for txid, payload, position, flags in records:
        builder.add(txid, payload, position, flags)
    return joined(builder.finish())


def rows(batch: DecodedBatch) -> list[Row]:
    batch.payload.validate(full=True)
    columns = (batch.entry_id, batch.slot_id, batch.txid, batch.position, batch.sequence_id, batch.flags)
    assert all(column.dtype == np.int64 and len(column) == len(batch) for column in columns)
    return [tuple(row) for row in zip(*(c.tolist() for c in columns), batch.payload.to_pylist(), strict=True)]


def plain(entries: list[tuple[int, memoryview]], *, enveloped: bool = True) -> list[LogRecord]:
    found = []
    for entry_id, payload in entries:
        found += decode_entry(payload, lssn=LSSN, entry_id=entry_id, start_sequence_id=START, enveloped=enveloped)
    return found


def rows_of(records: list[LogRecord], hidden: int) -> list[Row]:
    return [
        (r.dlsn.entry_id, r.dlsn.slot_id, r.txid, r.position, r.sequence_id, r.flags, r.payload)
        for r in records
        if not r.flags & hidden
    ]


def vector(entries: list[tuple[int, memoryview]], **options: bool) -> DecodedBatch:
    return decode_entries(entries, lssn=LSSN, start_sequence_id=START, **options)


@given(payload_lists, compressions, st.integers(60, 3000), st.booleans(), st.data())
def test_what_is_encoded_by_columns_comes_back_the_same(
    payloads: list[bytes], compression: Compression, max_entry_bytes: int, enveloped: bool, data: st.DataObject
) -> None:
    ids = np.array(data.draw(st.lists(txids, min_size=len(payloads), max_size=len(payloads))), np.int64)
    encoded = list(
        encode_entries(
            ids,
            pa.array(payloads, pa.binary()),
            first_position=5,
            compression=compression,
            max_entry_bytes=max_entry_bytes,
            enveloped=enveloped,
        )
    )
    entries = [(e, joined(entry)) for e, entry in enumerate(encoded)]
    batch = vector(entries, enveloped=enveloped)
    assert batch.payload.to_pylist() == payloads
    assert batch.txid.tolist() == ids.tolist()
    assert batch.position.tolist() == list(range(5, 5 + len(payloads)))
    assert batch.sequence_id.tolist() == list(range(START + 4, START + 4 + len(payloads)))
    assert rows(batch) == rows_of(plain(entries, enveloped=enveloped), 0)
    assert [entry.record_count for entry in encoded] == np.bincount(batch.entry_id, minlength=len(encoded)).tolist()
    assert sum(entry.user_bytes for entry in encoded) == sum(map(len, payloads))
    for (_, stored), entry in zip(entries, encoded, strict=True):
        assert entry.size == len(stored)
        assert entry.record_count == 1 or compression or len(stored) <= max_entry_bytes
        assert entry_summary(stored, enveloped).last_txid == entry.last_txid


@given(payload_lists.filter(bool), compressions)
def test_columns_and_single_records_encode_to_the_same_bytes(payloads: list[bytes], compression: Compression) -> None:
    [by_columns] = encode_entries(
        np.arange(len(payloads)), pa.array(payloads, pa.large_binary()), first_position=1, compression=compression
    )
    by_records = build([(i, payload, i + 1, 0) for i, payload in enumerate(payloads)], compression)
    assert joined(by_columns) == by_records


@given(entries_of_records, compressions, st.booleans(), st.booleans())
def test_the_vectorised_decoder_equals_the_plain_one(
    entries: list[list[tuple[int, bytes, int, int]]], compression: Compression, enveloped: bool, controls: bool
) -> None:
    stored = [(10 + 2 * e, build(records, compression, enveloped)) for e, records in enumerate(entries)]
    expected = plain(stored, enveloped=enveloped)
    batch = vector(stored, enveloped=enveloped, include_control=controls)
    hidden = FLAG_END_OF_STREAM | (0 if controls else FLAG_CONTROL)
    assert rows(batch) == rows_of(expected, hidden)
    assert batch.end_of_stream == next((r.dlsn for r in expected if r.is_end_of_stream), None)
    assert batch.records() == [record for record in expected if not record.flags & hidden]


@given(entries_of_records, compressions)
def test_the_summary_says_what_the_records_say(
    entries: list[list[tuple[int, bytes, int, int]]], compression: Compression
) -> None:
    for records in entries:
        stored = build(records, compression)
        expected = plain([(0, stored)])
        user = [r for r in expected if r.is_user]
        summary = entry_summary(stored)
        assert summary.record_count == len(expected)
        assert summary.user_count == len(user)
        assert summary.first_txid == (user[0].txid if user else None)
        assert summary.last_txid == (user[-1].txid if user else None)
        assert summary.first_position == (user or expected)[0].position
        assert summary.last_position == (user or expected)[-1].position
        assert summary.end_of_stream == any(r.is_end_of_stream for r in expected)


@pytest.mark.parametrize("shape", ["text", "zeros", "random", "long"])
@pytest.mark.parametrize("compression", Compression)
def test_entries_of_full_size_decode_alike_by_every_way_of_finding_records(
    shape: str, compression: Compression
) -> None:
    rng = random.Random(f"{shape}")
    spread = (600, 1400) if shape == "long" else (0, 200)
    fill = {"text": lambda n: b"x" * n, "zeros": bytes, "random": rng.randbytes, "long": rng.randbytes}[shape]
    payloads = [fill(rng.randint(*spread)) for _ in range(6000 if shape != "long" else 1500)]
    ids = 1_357_034_400_000 + np.arange(len(payloads)) * 60_000
    encoded = encode_entries(ids, pa.array(payloads), first_position=70_000, compression=compression)
    entries = [(e, joined(entry)) for e, entry in enumerate(encoded)]
    assert len(entries) > 2
    assert rows(vector(entries)) == rows_of(plain(entries), 0)


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_decode_or_raise_the_typed_error(data: bytes, enveloped: bool) -> None:
    agree_on(data, enveloped)


@given(st.binary(max_size=200), st.integers(-3, 300), st.sampled_from([0, 1, 2, 3, 4, 0x10]))
def test_arbitrary_bytes_in_an_envelope_decode_or_raise_the_typed_error(data: bytes, length: int, codec: int) -> None:
    agree_on(ENVELOPE.pack(1, codec, length, len(data)) + data, True)


@settings(max_examples=300)
@given(entries_of_records, compressions, st.data())
def test_changed_cut_or_lengthened_entries_decode_or_raise_the_typed_error(
    entries: list[list[tuple[int, bytes, int, int]]], compression: Compression, data: st.DataObject
) -> None:
    stored = bytearray(build(entries[0], compression))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stored)))
        if data.draw(st.booleans()) and at < len(stored):
            stored[at] = data.draw(
                st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, stored[at] ^ 1 << data.draw(st.integers(0, 7))])
            )
        else:
            stored[at:] = data.draw(st.binary(max_size=8))
    agree_on(bytes(stored), True)


def agree_on(data: bytes, enveloped: bool) -> None:
    """Both decoders, and the summary, take the bytes or refuse them in the same way (I12)."""
    good = EntryBuilder(enveloped=enveloped)
    good.add(1, b"before", 1)
    entries = [(7, joined(good.finish())), (8, memoryview(data))]
    refusal: InvalidEntryError | None = None
    try:
        expected = plain(entries, enveloped=enveloped)
    except InvalidEntryError as error:
        refusal = error
    if refusal is None:
        assert rows(vector(entries, enveloped=enveloped, include_control=True)) == rows_of(expected, FLAG_END_OF_STREAM)
        assert entry_summary(memoryview(data), enveloped).record_count == len(expected) - 1
        return
    assert isinstance(refusal.dlsn, DLSN)
    assert refusal.dlsn.entry_id == 8
    with pytest.raises(InvalidEntryError) as raised:
        vector(entries, enveloped=enveloped)
    assert (raised.value.message, raised.value.dlsn) == (refusal.message, refusal.dlsn)


def enveloped(
    content: bytes, codec: int = 0, length: int | None = None, stored: int | None = None, version: int = 1
) -> bytes:
    lengths = (len(content) if length is None else length, len(content) if stored is None else stored)
    return ENVELOPE.pack(version, codec, *lengths) + content


GOOD = encode_record(1, b"payload", 1)
FORGED = {
    "no bytes at all": (b"", "no bytes at all"),
    "a cut envelope": (enveloped(GOOD)[:12], "shorter than its envelope"),
    "envelope version 0": (enveloped(GOOD, version=0), "envelope version 0"),
    "envelope version 2": (enveloped(GOOD, version=2), "envelope version 2"),
    "codec 2": (enveloped(GOOD, 2), "compression 0x2 is not known"),
    "codec 3": (enveloped(GOOD, 3), "compression 0x3 is not known"),
    "an unassigned envelope flag": (enveloped(GOOD, 4), "compression 0x4 is not known"),
    "codec 0 with unequal lengths": (enveloped(GOOD, length=len(GOOD) - 1), "declared to be"),
    "a stored length too long": (enveloped(GOOD, stored=len(GOOD) + 1), "claims 28 stored bytes"),
    "bytes after the stored payload": (enveloped(GOOD) + b"x", "and holds 28"),
    "a negative stored length": (enveloped(GOOD, stored=-1), "claims -1 stored bytes"),
    "LZ4 garbage": (enveloped(b"\xff" * 20, 1, length=100), "cannot be decompressed"),
    "a negative decompressed length": (enveloped(b"\0" * 20, 1, length=-1), "declared to hold -1"),
    "a decompression bomb": (enveloped(bytes(5000), 1, length=MAX_LOGRECORDSET_SIZE + 1), "at most 1044480"),
    "more than LZ4 can expand": (enveloped(bytes(10), 1, length=2551), "declared to hold 2551"),
    "a cut header": (enveloped(GOOD + GOOD[:19]), "19 bytes into a record's header"),
    "a cut payload": (enveloped(GOOD[:-1]), "claims a payload of 7 bytes where 6 are left"),
    "a negative length": (enveloped(struct.pack(">qqi", 1 << 16, 1, -1)), "claims a payload of -1 bytes"),
    "the length that would stand still": (enveloped(struct.pack(">qqi", 1 << 16, 1, -20)), "payload of -20 bytes"),
    "a position over 2^31-1": (enveloped(struct.pack(">qqi", (2**31) << 16, 1, 0)), "claims position 2147483648"),
    "a byte after the last record": (enveloped(GOOD + b"\0"), "1 bytes into a record's header"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_entry_is_refused_with_its_place_and_nothing_is_returned(name: str) -> None:
    data, message = FORGED[name]
    with pytest.raises(InvalidEntryError, match=message) as error:
        vector([(40, memoryview(enveloped(GOOD))), (41, memoryview(data))])
    assert isinstance(error.value.dlsn, DLSN)
    assert error.value.dlsn[:2] == (LSSN, 41)
    agree_on(data, True)


def record_set(
    count: int, content: bytes, *, word: int = 0x1000, length: int | None = None, stored: int | None = None
) -> bytes:
    lengths = (len(content) if length is None else length, len(content) if stored is None else stored)
    return struct.pack(">Iiii", word, count, *lengths) + content


ONE = b"\0\0\0\2ab"
FORGED_SETS = {
    "a cut header": (b"\0\0\x10\0", "shorter than its header"),
    "version 0": (record_set(1, ONE, word=0), "version word 0x0"),
    "version 2": (record_set(1, ONE, word=0x2000), "version word 0x2000"),
    "codec 2": (record_set(1, ONE, word=0x1002), "compression 0x2"),
    "a negative count": (record_set(-1, ONE), "claims -1 payloads"),
    "more payloads than bytes": (record_set(2**31 - 1, ONE), "claims 2147483647 payloads in 6 bytes"),
    "a wrong stored length": (record_set(1, ONE, stored=7), "claims 7 stored bytes"),
    "a missing payload": (record_set(1, b"\0\0\0\3ab"), "ends inside a payload"),
    "a missing length": (record_set(2, b"\0\0\0\3abc\0"), "ends inside a length"),
    "bytes after the last payload": (record_set(1, ONE + b"x"), "1 bytes after its last payload"),
    "a decompression bomb": (record_set(1, bytes(400_000), word=0x1001, length=80_000_000), "at most 67108864"),
}


@pytest.mark.parametrize("name", FORGED_SETS)
def test_forged_record_set_is_refused(name: str) -> None:
    payload, message = FORGED_SETS[name]
    with pytest.raises(InvalidEntryError, match=message):
        decode_record_set(memoryview(payload))
    agree_on(enveloped(GOOD + encode_record(2, payload, 2, FLAG_RECORD_SET)), True)


def test_many_small_bombs_in_one_entry_are_bounded_together() -> None:
    members = [bytes(9_000_000 // 10)] * 10
    bomb = encode_record_set(members, Compression.LZ4)
    data = memoryview(enveloped(b"".join(encode_record(1, bomb, 1 + 10 * i, FLAG_RECORD_SET) for i in range(8))))
    with pytest.raises(InvalidEntryError, match="are accepted"):
        decode_entry(data, lssn=1, entry_id=0, start_sequence_id=0)


def test_a_record_set_past_the_last_position_is_refused() -> None:
    agree_on(enveloped(encode_record(1, encode_record_set([b"a", b"b"]), MAX_POSITION, FLAG_RECORD_SET)), True)
    with pytest.raises(InvalidEntryError, match="goes past"):
        plain([(0, memoryview(enveloped(encode_record(1, encode_record_set([b"a", b"b"]), MAX_POSITION, 4))))])


def test_record_sets_that_expand_beyond_the_batch_make_it_grow() -> None:
    members = [bytes([65 + i]) * 200_000 for i in range(20)]
    entry = build(
        [(9, encode_record_set(members, Compression.LZ4), 1, FLAG_RECORD_SET), (9, b"z", 21, 0)], Compression.NONE
    )
    assert vector([(0, entry)]).payload.to_pylist() == [*members, b"z"]


def test_flags_of_later_versions_are_ignored() -> None:
    content = struct.pack(">QqI", 5 << 16 | 0x8 | 1 << 63, 9, 2) + b"ab"
    batch = vector([(0, memoryview(enveloped(content)))])
    assert (batch.position.tolist(), batch.payload.to_pylist()) == ([5], [b"ab"])
    agree_on(enveloped(content), True)


def test_no_entries_decode_to_no_rows() -> None:
    batch = vector([])
    assert rows(batch) == []
    assert rows(vector([(0, memoryview(enveloped(b"")))])) == []


def test_the_decoded_batch_keeps_no_view_of_the_entries() -> None:
    data = bytearray(build([(1, b"x" * 30, i, 0) for i in range(1, 50)], Compression.NONE))
    batch = vector([(0, memoryview(data))])
    data.clear()
    assert batch.payload.to_pylist() == [b"x" * 30] * 49


def test_sequence_ids_wrap_as_upstreams_do() -> None:
    entry = build([(1, b"a", 1, 0)], Compression.NONE)
    start = -(2**63)
    batch = decode_entries([(0, entry)], lssn=1, start_sequence_id=start)
    assert batch.sequence_id.tolist() == [start]
    assert sequence_id(start, 0) == 2**63 - 1


def arrays() -> dict[str, pa.Array]:
    return {
        "string": pa.array(["a", "é", ""]),
        "large string": pa.array(["a", "é", ""], pa.large_string()),
        "large binary": pa.array([b"a", "é".encode(), b""], pa.large_binary()),
        "binary view": pa.array([b"a", "é".encode(), b""], pa.binary_view()),
        "string view": pa.array(["a", "é", ""], pa.string_view()),
        "slice": pa.array([b"no", b"a", "é".encode(), b"", None], pa.binary()).slice(1, 3),
    }


@pytest.mark.parametrize("kind", arrays())
def test_every_arrow_layout_of_bytes_and_text_is_taken(kind: str) -> None:
    [entry] = encode_entries(np.array([1, 2, 3]), arrays()[kind], first_position=1)
    assert vector([(0, joined(entry))]).payload.to_pylist() == [b"a", "é".encode(), b""]


def test_fixed_size_binary_and_its_slices_are_taken() -> None:
    payloads = pa.array([b"aa", b"bb", b"cc"], pa.binary(2)).slice(1)
    [entry] = encode_entries(np.array([1, 2]), payloads, first_position=1)
    assert vector([(0, joined(entry))]).payload.to_pylist() == [b"bb", b"cc"]


REFUSED = {
    "null payload": ([1, 2], pa.array([b"a", None]), 1, InvalidRecordError, "record 1 is null"),
    "numbers as payload": ([1], pa.array([1]), 1, InvalidRecordError, "type int64"),
    "a table's column": ([1], pa.chunked_array([[b"a"]]), 1, InvalidRecordError, "ChunkedArray"),
    "too few ids": ([1], pa.array([b"a", b"b"]), 1, InvalidRecordError, "2 payloads came"),
    "negative id": ([1, -1], pa.array([b"a", b"b"]), 1, TransactionIdOutOfOrderError, "transaction id -1"),
    "reserved id": ([MAX_TXID], pa.array([b"a"]), 1, TransactionIdOutOfOrderError, "outside"),
    "position 0": ([1], pa.array([b"a"]), 0, SegmentFullError, "positions"),
    "position past the end": ([1, 2], pa.array([b"a", b"b"]), MAX_POSITION, SegmentFullError, "do not fit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_that_cannot_be_written_is_refused_before_anything_is_encoded(name: str) -> None:
    ids, payloads, position, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        encode_entries(np.array(ids), payloads, first_position=position)


def test_unsigned_ids_beyond_64_signed_bits_are_refused_not_wrapped() -> None:
    with pytest.raises(TransactionIdOutOfOrderError):
        encode_entries(np.array([2**63 + 5], np.uint64), pa.array([b"a"]), first_position=1)


@pytest.mark.parametrize("size", [13, MAX_LOGRECORDSET_SIZE + 1])
def test_an_entry_size_that_cannot_be_kept_is_refused(size: int) -> None:
    with pytest.raises(CallerError, match="max_entry_bytes"):
        encode_entries(np.array([1]), pa.array([b"a"]), first_position=1, max_entry_bytes=size)


def test_the_longest_record_fits_alone_and_one_byte_more_is_refused() -> None:
    longest = pa.array([b"a", bytes(MAX_PAYLOAD_BYTES), b"b"])
    entries = list(encode_entries(np.array([1, 2, 3]), longest, first_position=1))
    assert [entry.record_count for entry in entries] == [1, 1, 1]
    assert entries[1].size == 1_040_384 + 13
    assert vector([(e, joined(x)) for e, x in enumerate(entries)]).payload.to_pylist() == longest.to_pylist()
    with pytest.raises(RecordTooLongError, match="1040365"):
        encode_entries(np.array([1]), pa.array([bytes(MAX_PAYLOAD_BYTES + 1)]), first_position=1)
    with pytest.raises(RecordTooLongError):
        EntryBuilder().add(1, bytes(MAX_PAYLOAD_BYTES + 1), 1)


def test_the_builder_tells_when_it_is_full_and_is_empty_after_finishing() -> None:
    builder = EntryBuilder()
    assert builder.size == 13
    slot = [builder.add(5, b"x" * 400_000, 1), builder.add(6, b"x" * 400_000, 2)]
    assert slot == [0, 1]
    assert builder.has_room(MAX_LOGRECORDSET_SIZE - builder.size - 20)
    assert not builder.has_room(MAX_LOGRECORDSET_SIZE - builder.size - 19)
    entry = builder.finish()
    assert (entry.record_count, entry.first_txid, entry.last_txid, entry.user_bytes) == (2, 5, 6, 800_000)
    assert (builder.size, builder.count) == (13, 0)


def test_the_builder_counts_the_slots_of_a_record_set_and_refuses_a_false_one() -> None:
    builder = EntryBuilder()
    assert builder.add(5, encode_record_set([b"a", b"b", b"c"]), 1, FLAG_RECORD_SET) == 0
    assert builder.add(5, b"d", 4) == 3
    with pytest.raises(InvalidRecordError, match="not a record set"):
        builder.add(6, b"plain", 5, FLAG_RECORD_SET)
    assert builder.count == 4


@pytest.mark.parametrize("txid", [-1, MAX_TXID, 2**63])
def test_the_builder_refuses_ids_that_no_user_record_may_carry(txid: int) -> None:
    with pytest.raises(TransactionIdOutOfOrderError):
        EntryBuilder().add(txid, b"", 1)


def test_the_builder_refuses_positions_past_the_last() -> None:
    with pytest.raises(SegmentFullError):
        EntryBuilder().add(1, b"", MAX_POSITION + 1)
    with pytest.raises(SegmentFullError):
        EntryBuilder().add(1, encode_record_set([b"", b""]), MAX_POSITION, FLAG_RECORD_SET)


def test_a_member_too_long_for_a_record_set_is_refused() -> None:
    with pytest.raises(RecordTooLongError):
        encode_record_set([bytes(1_040_385)])
    with pytest.raises(RecordTooLongError):
        encode_record_set([bytes(600_000), bytes(600_000)])
