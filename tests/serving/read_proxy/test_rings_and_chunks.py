"""Rings, chunks and cursors without I/O: whatever comes, goes and is asked for, a reader gets the log."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, EntryBuilder, encode_record_set
from dlspark.core.codec.records import FLAG_CONTROL, FLAG_END_OF_STREAM, FLAG_RECORD_SET, MAX_TXID
from dlspark.core.reading.segment_follower import FetchedEntry
from dlspark.errors import InvalidEntryError, PositionGapError
from dlspark.serving.protocol.deliveries import batches_of, decode_stored, records_of
from dlspark.serving.protocol.operations import Delivery, ReadForm
from dlspark.serving.read_proxy import chunks
from dlspark.serving.read_proxy.chunks import CHUNK_OVERHEAD_BYTES, ChunkMaker, Chunks, ReadCursor
from dlspark.serving.read_proxy.ring import ENTRY_OVERHEAD_BYTES, EntryRing, RingBudget
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import InvariantViolation

FORMS = list(ReadForm)
MANY = 1 << 30


def segment(lssn: int) -> SegmentMetadata:
    return SegmentMetadata(lssn=lssn, ledger_id=100 + lssn, first_txid=0, version=5, start_sequence_id=0)


def fetched(lssn, entry_id, records, *, compression=Compression.NONE, broken=False):
    """An entry of (payload, position, flags) records."""
    builder = EntryBuilder(compression)
    for payload, position, flags in records:
        txid = MAX_TXID if flags & FLAG_END_OF_STREAM else 1000 * lssn + position
        builder.add(txid, payload, position, flags)
    payload = b"" if broken else b"".join(bytes(buffer) for buffer in builder.finish().buffers)
    return FetchedEntry(segment(lssn), 0, entry_id, memoryview(payload), broken)


def plain(lssn, entry_id, first, *payloads):
    return fetched(lssn, entry_id, [(payload, first + i, 0) for i, payload in enumerate(payloads)])


def ring_of(entries, *, begin=DLSN.INITIAL, max_bytes=MANY, budget=None):
    ring = EntryRing(begin, max_bytes, budget or RingBudget(MANY))
    for one in entries:
        ring.append(one)
    return ring


def cursor_at(position, *, chunks=None, gap_detection=True, max_bytes=MANY, chunk_bytes=1 << 18, counters=None):
    maker = ChunkMaker("log", counters or Counter(), gap_detection=gap_detection, max_bytes=max_bytes)
    return ReadCursor(position, maker, chunks or Chunks(MANY), Counter(), chunk_bytes=chunk_bytes)


def values(form, parts):
    delivery = Delivery(form, DLSN.INITIAL, parts)
    if form is ReadForm.ARROW:
        return [value for batch in batches_of(delivery) for value in batch.column("value").to_pylist()]
    return [record.payload for record in records_of(delivery)]


# ---------------------------------------------------------------------- rings


def test_a_ring_keeps_the_newest_entries_and_says_from_where_nothing_is_missing():
    ring = EntryRing(DLSN(1, 0, 0), 3 * (ENTRY_OVERHEAD_BYTES + 100), RingBudget(MANY))
    assert ring.covers(DLSN(1, 0, 0))
    assert ring.covers(DLSN(9, 0, 0))
    for i in range(5):
        ring.append(plain(1, i, i + 1, b"x"))
    assert (ring.first, ring.after, len(ring), ring.evicted) == (2, 5, 3, 2)
    assert ring.begin == DLSN(1, 2, 0)
    assert not ring.covers(DLSN(1, 1, 5))
    assert [ring.find(DLSN(1, i, 1)) for i in range(2, 6)] == [2, 3, 4, 5]
    assert ring.kept_bytes <= ring.max_bytes


def test_the_newest_entry_stays_however_long_it_is():
    ring = EntryRing(DLSN(1, 0, 0), 1, RingBudget(1))
    for i in range(3):
        ring.append(plain(1, i, i + 1, b"x" * 1000))
        assert len(ring) == 1
    assert ring[2].entry_id == 2


def test_of_all_rings_the_entry_that_came_first_goes_first():
    budget = RingBudget(4 * (ENTRY_OVERHEAD_BYTES + 40))
    quiet, busy = (EntryRing(DLSN(1, 0, 0), MANY, budget) for _ in range(2))
    quiet.append(plain(1, 0, 1, b"q"))
    for i in range(10):
        busy.append(plain(1, i, i + 1, b"b"))
        assert budget.used_bytes == quiet.kept_bytes + busy.kept_bytes <= budget.max_bytes
    assert (len(quiet), len(busy)) == (0, 4)
    assert quiet.begin == DLSN(1, 1, 0)
    busy.clear()
    assert budget.used_bytes == 0


def test_entries_come_in_order_or_not_at_all():
    ring = ring_of([plain(1, 0, 1, b"a"), plain(1, 1, 2, b"b")])
    with pytest.raises(InvariantViolation):
        ring.append(plain(1, 1, 2, b"b"))
    assert ring.advance(DLSN(2, 0, 0))
    assert not ring.advance(DLSN(2, 0, 0))
    with pytest.raises(InvariantViolation):
        ring.append(plain(1, 2, 3, b"c"))


def test_a_ring_keeps_a_copy_and_not_what_the_entry_came_in():
    received = bytearray(1000)
    one = plain(1, 0, 1, b"a")
    received[: len(one.payload)] = one.payload
    ring = ring_of([FetchedEntry(one.segment, 0, 0, memoryview(received)[: len(one.payload)])])
    received[:] = bytes(1000)
    assert ring[0].payload == bytes(one.payload)


# ---------------------------------------------------------------------- chunks


def test_readers_that_came_different_ways_share_chunks():
    ring = ring_of([plain(1, i, i + 1, b"x" * 100) for i in range(100)])
    chunks = Chunks(MANY)
    for start in (0, 1, 7, 33):
        cursor = cursor_at(DLSN(1, start, 0), chunks=chunks, chunk_bytes=1000)
        cursor.attach(ring)
        assert len(values(ReadForm.RECORDS, cursor.collect(ReadForm.RECORDS, MANY).parts)) == 100 - start
    assert chunks.shared > 2 * chunks.made


def test_kept_chunks_are_bounded():
    ring = ring_of([plain(1, i, i + 1, b"x" * 100) for i in range(50)])
    chunks = Chunks(3 * (CHUNK_OVERHEAD_BYTES + 300))
    cursor = cursor_at(DLSN(1, 0, 0), chunks=chunks, chunk_bytes=1)
    cursor.attach(ring)
    cursor.collect(ReadForm.RECORDS, MANY)
    assert chunks.made == 50
    assert 0 < chunks.kept_bytes <= chunks.max_bytes


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("form", FORMS)
def test_a_gap_ends_a_reader_behind_what_came_before_it(form, size):
    entries = [plain(1, 0, 1, b"a" * size, b"b" * size), plain(1, 1, 3, b"c" * size), plain(1, 2, 6, b"d" * size)]
    cursor = cursor_at(DLSN(1, 0, 0))
    cursor.attach(ring_of(entries))
    assert [value[:1] for value in values(form, cursor.collect(form, MANY).parts)] == [b"a", b"b", b"c"]
    assert isinstance(cursor.failure, PositionGapError)
    lenient = cursor_at(DLSN(1, 0, 0), gap_detection=False)
    lenient.attach(ring_of(entries))
    assert len(values(form, lenient.collect(form, MANY).parts)) == 4


@pytest.mark.parametrize("form", FORMS)
def test_a_gap_between_two_chunks_is_seen_by_who_read_the_first(form):
    entries = [plain(1, 0, 1, b"a"), plain(1, 1, 3, b"c"), plain(2, 0, 1, b"d")]
    cursor = cursor_at(DLSN(1, 0, 0), chunk_bytes=1)
    cursor.attach(ring_of(entries))
    assert values(form, cursor.collect(form, MANY).parts) == [b"a"]
    assert isinstance(cursor.failure, PositionGapError)
    assert cursor.position == DLSN(1, 1, 0)
    later = cursor_at(DLSN(1, 1, 0), chunk_bytes=1)
    later.attach(ring_of(entries))
    assert values(form, later.collect(form, MANY).parts) == [b"c", b"d"]


@pytest.mark.parametrize("form", FORMS)
def test_entries_that_are_passed_over_are_a_known_loss_and_no_gap(form):
    entries = [plain(1, 0, 1, b"a"), fetched(1, 1, [], broken=True), plain(1, 2, 3, b"c")]
    cursor = cursor_at(DLSN(1, 0, 0))
    cursor.attach(ring_of(entries))
    assert values(form, cursor.collect(form, MANY).parts) == [b"a", b"c"]
    assert cursor.failure is None


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("form", FORMS)
def test_an_entry_that_cannot_be_decoded_ends_a_reader_behind_what_came_before_it(form, size):
    damaged = FetchedEntry(segment(1), 0, 1, memoryview(b"\x09" + b"?" * 40))
    cursor = cursor_at(DLSN(1, 0, 0))
    cursor.attach(ring_of([plain(1, 0, 1, b"a" * size), damaged, plain(1, 2, 3, b"c")]))
    assert values(form, cursor.collect(form, MANY).parts) == [b"a" * size]
    assert isinstance(cursor.failure, InvalidEntryError)
    assert cursor.failure.log == "log"
    assert cursor.position == DLSN(1, 1, 0)
    assert cursor.collect(form, MANY).parts == ()


def test_stored_entries_come_without_a_hole_those_of_control_records_too_with_their_ledger():
    entries = [
        fetched(1, 0, [(b"", 0, FLAG_CONTROL)]),
        plain(1, 1, 1, b"a", b"b"),
        fetched(1, 2, [(b"", 2, FLAG_CONTROL)]),
        plain(1, 3, 3, b"c"),
        fetched(1, 4, [(b"", 3, FLAG_CONTROL)]),
        plain(2, 0, 1, b"d"),
        fetched(2, 1, [(b"end", 2, FLAG_END_OF_STREAM)]),
    ]
    cursor = cursor_at(DLSN(1, 1, 1))
    cursor.attach(ring_of(entries))
    parts: list[bytes | bytearray | memoryview] = []
    while not cursor.end_of_stream:
        parts += cursor.collect(ReadForm.ENTRIES, 200).parts
    found = [decode_stored(part) for part in parts]
    assert [(one.lssn, one.entry_id) for one in found] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 1)]
    assert [one.ledger_id for one in found] == [101] * 4 + [102] * 2
    assert [record.payload for one in found for record in one.records()] == [b"b", b"c", b"d"]


@pytest.mark.parametrize("form", [ReadForm.RECORDS, ReadForm.ARROW])
@pytest.mark.parametrize("size", [1000, 9000])
def test_what_expands_is_cut_into_several_deliveries(form, size):
    members = [bytes([65 + i]) * size for i in range(20)]
    one = fetched(1, 0, [(encode_record_set(members, Compression.LZ4), 1, FLAG_RECORD_SET)])
    cursor = cursor_at(DLSN(1, 0, 0), max_bytes=3 * size)
    cursor.attach(ring_of([one, plain(1, 1, 21, b"last")]))
    found, deliveries = [], 0
    while not cursor.at_end:
        collected = cursor.collect(form, 3 * size)
        assert len(collected.parts) == 1 or collected.size <= 3 * size
        found += values(form, collected.parts)
        deliveries += 1
    assert found == [*members, b"last"]
    assert deliveries >= 7
    assert cursor.failure is None


# ---------------------------------------------------------------------- any interleaving


@st.composite
def logs(draw):
    """Entries of a log, and its records."""
    entries, records = [], []
    for lssn in range(1, draw(st.integers(1, 3)) + 1):
        position, entry_id = 1, 0
        for _ in range(draw(st.integers(0, 8))):
            shown = []
            slot = 0
            for kind in draw(st.lists(st.sampled_from("rrrsc"), min_size=1, max_size=3)):
                if kind == "c":
                    shown.append((b"control", max(position - 1, 0), FLAG_CONTROL))
                    slot += 1
                    continue
                members = [b"%d:%d:%d" % (lssn, entry_id, slot + i) for i in range(1 if kind == "r" else 3)]
                payload = members[0] if kind == "r" else encode_record_set(members)
                shown.append((payload, position, 0 if kind == "r" else FLAG_RECORD_SET))
                records += [(DLSN(lssn, entry_id, slot + i), member) for i, member in enumerate(members)]
                position += len(members)
                slot += len(members)
            compression = draw(st.sampled_from(Compression))
            entries.append(fetched(lssn, entry_id, shown, compression=compression))
            entry_id += 1
    return entries, records


@given(logs(), st.data())
def test_each_reader_gets_the_log_from_its_start_whatever_happens_to_the_rings(log, data):
    """Entries come, the ring at the end forgets, readers ask in any form and amount, fall out, catch up and join."""
    entries, records = log
    budget = RingBudget(data.draw(st.integers(1, 8)) * (ENTRY_OVERHEAD_BYTES + 60))
    tail = EntryRing(DLSN.INITIAL, MANY, budget)
    chunks = Chunks(data.draw(st.sampled_from([0, 2000, MANY])))
    places = [DLSN.INITIAL, *(place for place, _ in records)]
    readers = []
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from(places))
        chunk_bytes = data.draw(st.sampled_from([1, 100, 1000]))
        readers.append((start, cursor_at(start, chunks=chunks, chunk_bytes=chunk_bytes), []))
    come = 0

    def step(reader, form, amount):
        _start, cursor, found = reader
        if cursor.fallen_out:
            cursor.detach()
        if cursor.ring is not tail and tail.covers(cursor.position):
            cursor.attach(tail)
        if cursor.ring is None:
            behind = [e for e in entries[:come] if DLSN(e.segment.lssn, e.entry_id + 1, 0) > cursor.position]
            cursor.attach(ring_of(behind, begin=cursor.position))
        before = cursor.position
        found += values(form, cursor.collect(form, amount).parts)
        assert cursor.position >= before
        assert cursor.failure is None
        if cursor.ring is not tail and cursor.at_end:
            cursor.detach()

    for _ in range(data.draw(st.integers(0, 40))):
        if come < len(entries) and data.draw(st.booleans()):
            tail.append(entries[come])
            come += 1
        else:
            step(data.draw(st.sampled_from(readers)), data.draw(st.sampled_from(FORMS)), data.draw(st.integers(1, 200)))
    while come < len(entries):
        tail.append(entries[come])
        come += 1
    for reader in readers:
        while reader[1].ring is not tail or not reader[1].at_end:
            step(reader, ReadForm.RECORDS, MANY)
        assert reader[2] == [payload for place, payload in records if place >= reader[0]]


@pytest.mark.parametrize("form", FORMS)
def test_no_more_of_a_run_is_expanded_than_a_part_takes_and_one_entry(form, monkeypatch):
    """Three sets of 4 MB, compressed twice, lie in one chunk."""
    encoded = encode_record_set([bytes(4_000)] * 1_000, Compression.LZ4)
    entries = [
        fetched(1, number, [(encoded, 1_000 * number + 1, FLAG_RECORD_SET)], compression=Compression.LZ4)
        for number in range(3)
    ]
    decoded = []
    decode = chunks.decode_up_to

    def noted(*arguments, **options):
        batch, taken = decode(*arguments, **options)
        decoded.append(batch.payload.nbytes)
        return batch, taken

    monkeypatch.setattr(chunks, "decode_up_to", noted)
    cursor, ring = cursor_at(DLSN(1, 0, 0), max_bytes=1_500_000), ring_of(entries)
    cursor.attach(ring)
    found = []
    while parts := cursor.collect(form, 1_500_000).parts:
        found += values(form, parts)
    assert found == [bytes(4_000)] * 3_000
    assert [size // 4_000_000 for size in decoded] == ([] if form is ReadForm.ENTRIES else [1] * 3), "each set once"


@pytest.mark.parametrize("form", [ReadForm.RECORDS, ReadForm.ARROW])
@pytest.mark.parametrize("compression", list(Compression))
def test_records_without_a_byte_are_bounded_like_others(form, compression, monkeypatch):
    """A few hundred bytes of a client are tens of thousands of records here: no more than an entry of them is made at a
    time, and each entry once."""
    each, count = 16_384, 3
    encoded = encode_record_set([b""] * each, Compression.LZ4)
    entries = [
        fetched(1, number, [(encoded, each * number + 1, FLAG_RECORD_SET)], compression=compression)
        for number in range(count)
    ]
    made = []
    for name in ("decode_up_to", "decode_entry"):
        decode = getattr(chunks, name)

        def noted(*arguments, decode=decode, name=name, **options):
            found = decode(*arguments, **options)
            made.append(len(found[0] if name == "decode_up_to" else found))
            return found

        monkeypatch.setattr(chunks, name, noted)
    cursor = cursor_at(DLSN(1, 0, 0), max_bytes=1 << 19)
    cursor.attach(ring_of(entries))
    found = 0
    while parts := cursor.collect(form, 1 << 19).parts:
        found += len(values(form, parts))
    assert found == each * count
    assert [size for size in made if size > 100] == [each] * count
