"""The outline of an entry says what decoding it would say of control records and the last ones, and expands nothing."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.core.codec import entry_outline
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, EntryBuilder, decode_entry, encode_record_set, wrap
from dlspark.core.codec.entry_outline import EntryOutline, LastRecord, outline_entry
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    MAX_POSITION,
    MAX_TXID,
    encode_header,
)
from dlspark.errors import InvalidEntryError

FIRST_DLSN = DLSN(3, 7, 0)
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.binary(max_size=200)),
        st.tuples(st.just(FLAG_CONTROL), st.binary(max_size=60)),
        st.tuples(
            st.just(FLAG_RECORD_SET),
            st.builds(
                encode_record_set, st.lists(st.binary(max_size=20), max_size=5), st.sampled_from(list(Compression))
            ),
        ),
        st.tuples(st.just(FLAG_END_OF_STREAM), st.just(b"endOfStream")),
    ),
    min_size=1,
    max_size=30,
)


def entry_of(records, compression=Compression.NONE, *, enveloped=True):
    builder, position = EntryBuilder(compression, enveloped=enveloped), 1
    for number, (flags, payload) in enumerate(records):
        txid = MAX_TXID if flags & FLAG_END_OF_STREAM else number
        before = builder.count
        builder.add(txid, payload, position, flags)
        position += builder.count - before
    return memoryview(b"".join(builder.finish().buffers))


def by_decoding(payload, *, enveloped=True):
    records = decode_entry(payload, lssn=3, entry_id=7, start_sequence_id=0, enveloped=enveloped)
    user = [record.dlsn.slot_id for record in records if record.is_user]
    last = records[-1] if records else None
    return EntryOutline(
        tuple((record.dlsn.slot_id, record.payload) for record in records if record.is_control),
        LastRecord(last.dlsn.slot_id, last.txid, last.position) if last is not None else None,
        user[-1] if user else -1,
    )


@settings(max_examples=40)
@given(RECORDS, st.sampled_from(list(Compression)), st.booleans(), st.booleans())
def test_an_outline_says_what_decoding_says(records, compression, enveloped, short):
    entry = entry_of(records, compression if enveloped else Compression.NONE, enveloped=enveloped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_outline, "SHORT_BYTES", 1 << 20 if short else 0)
        assert outline_entry(entry, enveloped=enveloped, dlsn=FIRST_DLSN) == by_decoding(entry, enveloped=enveloped)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        encode_header(1, 5, 1) + b"abc",
        encode_header(1, 3, 1) + b"abc" + b"\0" * 7,
        encode_header(1, 4, 1, FLAG_RECORD_SET) + b"none",
        encode_header(1, 35, MAX_POSITION, FLAG_RECORD_SET) + encode_record_set([b"abc", b"defg", b""]),
        b"",
    ],
)
def test_what_is_damaged_is_refused_with_its_place(content, short, monkeypatch):
    monkeypatch.setattr(entry_outline, "SHORT_BYTES", 1 << 20 if short else 0)
    header, stored = wrap(content, Compression.NONE)
    entry = memoryview(header + bytes(stored))
    if not content:
        assert outline_entry(entry, enveloped=True, dlsn=FIRST_DLSN) == EntryOutline((), None, -1)
        return
    with pytest.raises(InvalidEntryError) as raised:
        outline_entry(entry, enveloped=True, dlsn=FIRST_DLSN)
    assert raised.value.dlsn is not None


def test_record_sets_are_not_expanded():
    entry = entry_of([(FLAG_RECORD_SET, encode_record_set([bytes(4_000)] * 4_000, Compression.LZ4))] * 3)
    tracemalloc.start()
    try:
        outline = outline_entry(entry, enveloped=True, dlsn=FIRST_DLSN)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20, "they hold 48 MB"
    finally:
        tracemalloc.stop()
    assert (outline.last_user_slot, outline.last) == (11_999, LastRecord(11_999, 2, 12_000))
