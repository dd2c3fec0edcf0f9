"""Entries through a cold file and back: the same numbers, slots, positions, ids and bytes."""

from __future__ import annotations

import random

import pytest
from helpers.cold_segments import (
    LARGEST,
    MadeSegment,
    SegmentMaker,
    columns,
    decoded,
    footer_of,
    random_segment,
    rebuilt,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.footer import Footer


def digest_of(segments: list[MadeSegment]) -> str:
    """Return the digest of records as their ledgers have them."""
    digest = RecordDigest()
    for one in segments:
        if one.entries:
            digest.update(
                RecordColumns.of(
                    decode_entries(
                        one.entries,
                        lssn=one.metadata.lssn,
                        start_sequence_id=one.metadata.effective_start_sequence_id,
                        enveloped=one.metadata.enveloped,
                    )
                )
            )
    return digest.hexdigest()


def check_round_trip(segments: list[MadeSegment], data: bytes, footer: Footer) -> None:
    """Check that each segment comes back: user records equal, all others in their slots."""
    assert footer.digest == digest_of(segments)
    for one in segments:
        entries = rebuilt(data, footer, one.metadata.lssn)
        assert [number for number, _ in entries] == [number for number, _ in one.entries]
        for before, after in zip(one.records(), decoded(one, entries), strict=True):
            assert len(before) == len(after)
            for old, new in zip(before, after, strict=True):
                if old.is_user:
                    assert new == old
                else:
                    assert (new.dlsn, new.flags) == (old.dlsn, old.flags)
                    assert new.position == old.position
                    assert new.payload == (old.payload if old.is_end_of_stream else b"")


def check_columns(
    segments: list[MadeSegment], data: bytes, footer: Footer, first: int = 0, max_bytes: int = 500
) -> None:
    """Check that the columns of each segment's entries from `first` on are what its ledger's entries are decoded to."""
    for one in segments:
        runs = columns(data, footer, one, first, max_bytes=max_bytes)
        numbers = [number for run in runs for number in range(run.first_entry, run.last_entry + 1)]
        assert numbers == [number for number, _ in one.entries[first:]]
        wanted = decode_entries(
            one.entries[first:],
            lssn=one.metadata.lssn,
            start_sequence_id=one.metadata.effective_start_sequence_id,
            enveloped=one.metadata.enveloped,
        )
        found = [record for run in runs for record in run.records.records()]
        assert found == wanted.records()
        for run in runs:
            within = (wanted.entry_id >= run.first_entry) & (wanted.entry_id <= run.last_entry)
            for name in ("entry_id", "slot_id", "txid", "position", "sequence_id", "flags"):
                assert getattr(run.records, name).tolist() == getattr(wanted, name)[within].tolist()
            assert run.records.payload.null_count == 0
        ends = [run.records.end_of_stream for run in runs if run.records.end_of_stream is not None]
        assert ends == ([] if wanted.end_of_stream is None else [wanted.end_of_stream])


@pytest.mark.parametrize("seed", range(12))
def test_segments_of_any_records_come_back(seed: int) -> None:
    segments = [
        random_segment(seed * 10 + n, n + 3, records=(seed * 37 + n * 91) % 300, version=2 + (seed + n) % 4)
        for n in range(4)
    ]
    segments.append(random_segment(seed, 7, records=50, sealed=True))
    data, done = written(segments, at_once=1 + seed % 9)
    footer = footer_of(data)
    check_round_trip(segments, data, footer)
    check_columns(segments, data, footer, first=seed % 3)
    assert done.records == footer.records == sum(one.metadata.record_count for one in segments)
    assert [one.metadata for one in done.segments] == [one.metadata for one in segments]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 80), st.integers(2, 5), st.integers(1, 30), st.booleans())
def test_whatever_is_drawn_comes_back(seed: int, records: int, version: int, at_once: int, sealed: bool) -> None:
    segments = [random_segment(seed, 1, records=records, version=version, largest=300, sealed=sealed)]
    data, _ = written(segments, at_once=at_once, row_group_bytes=2_000)
    check_round_trip(segments, data, footer_of(data))
    check_columns(segments, data, footer_of(data), max_bytes=1 + seed % 3_000)


def test_the_largest_records_come_back_and_make_row_groups_alone() -> None:
    maker = SegmentMaker(1)
    for size in (LARGEST, 0, LARGEST, 1):
        maker.record(random.Random(size).randbytes(size))
        maker.end_entry()
    segment = maker.finish()
    data, _ = written([segment], row_group_bytes=1_000)
    footer = footer_of(data)
    check_round_trip([segment], data, footer)
    assert [one.records for one in footer.row_groups] == [1, 1, 1, 1]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_segments_without_records_come_back(version: int) -> None:
    empty = SegmentMaker(1, version=version).finish(last_txid=1)
    control = SegmentMaker(2, version=version)
    control.control()
    control.end_entry()
    segments = [empty, control.finish(), random_segment(5, 3, records=9, version=version)]
    data, _ = written(segments)
    footer = footer_of(data)
    check_round_trip(segments, data, footer)
    check_columns(segments, data, footer)
    assert footer.groups_of(2, 0, 0) == range(0)


@pytest.mark.parametrize(("version", "sealed"), [(3, False), (5, True)])
def test_entries_whose_record_sets_were_large_come_back_as_entries_that_storage_nodes_take(
    version: int, sealed: bool
) -> None:
    maker = SegmentMaker(1, version=version)
    for count, size, codec in (
        (6, 500_000, Compression.LZ4),
        (20_000, 46, Compression.NONE),
        (5, 400_000, Compression.LZ4),
    ):
        maker.control()
        maker.record(b"before")
        maker.record_set([bytes([n % 7]) * size for n in range(count)], codec)
        maker.record(b"after", maker.txid + 1)
        if not sealed:
            maker.end_entry()
    if sealed:
        maker.end_of_stream()
    segment = maker.finish()
    data, _ = written([segment])
    footer = footer_of(data)
    check_round_trip([segment], data, footer)
    for (_, after), (_, before) in zip(rebuilt(data, footer, 1), segment.entries, strict=True):
        assert len(before) <= MAX_LOGRECORDSET_SIZE
        assert len(after) <= MAX_LOGRECORDSET_SIZE


def test_parts_of_a_segment_come_back_at_any_bounds() -> None:
    segment = random_segment(3, 1, records=200)
    data, _ = written([segment], row_group_bytes=4_000)
    footer = footer_of(data)
    assert len(footer.row_groups) > 3
    whole = dict(rebuilt(data, footer, 1))
    last = footer.last_entry(1)
    for first in range(0, last + 1, 3):
        for end in (first, min(first + 5, last), last):
            assert rebuilt(data, footer, 1, first, end) == [(n, whole[n]) for n in range(first, end + 1)]
