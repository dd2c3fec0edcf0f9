"""The writer refuses a segment that is not what its metadata says, and cuts row groups by what they compress to."""

from __future__ import annotations

import gc
import random
import zlib
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.cold_segments import IDENTITY, MadeSegment, SegmentMaker, footer_of, random_segment, records_of, written

from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.cold.files.checksums import crc_between
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.errors import InvalidEntryError, SegmentStateError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, InvariantViolation


def segment_of(count: int = 10, **changes: int) -> MadeSegment:
    """Return a segment of some records, whose metadata may say something else."""
    maker = SegmentMaker(1)
    for number in range(count):
        maker.record(b"%d" % number, 100 + number)
        maker.end_entry() if number % 3 == 2 else None
    return maker.finish(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"record_count": 9}, "10 user records were added, and it has 9"),
        ({"record_count": 11}, "10 user records were added, and it has 11"),
        ({"last_entry": 4}, "its last record is at 4:0, which was not added"),
        ({"last_slot": 1}, "its last record is at 3:1, which was not added"),
        ({"last_entry": 2, "last_slot": 2}, "a user record at 3:0 is behind its last one"),
        ({"last_txid": 108}, "its last transaction id is 108, and that of the last record added is 109"),
    ],
)
def test_a_segment_that_is_not_what_its_metadata_says_is_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(SegmentStateError, match=said):
        written([segment_of(**changes)])


def test_a_segment_of_which_entries_are_missing_is_refused() -> None:
    whole = segment_of()
    with pytest.raises(SegmentStateError):
        written([MadeSegment(whole.metadata, whole.entries[:-1])])
    with pytest.raises(InvariantViolation, match="entries came with a hole"):
        written([MadeSegment(whole.metadata, whole.entries[:1] + whole.entries[2:])])


def test_after_an_error_nothing_ends_well_and_nothing_more_reaches_the_sink() -> None:
    got: list[bytes] = []
    writer = ColdFileWriter(got.append, IDENTITY)
    segment = segment_of()
    writer.begin_segment(segment.metadata, 1)
    with pytest.raises(InvalidEntryError):
        writer.add([(0, memoryview(b"\1 no entry"))])
    with pytest.raises(InvariantViolation, match="after it had failed"):
        writer.add(segment.entries)
    with pytest.raises(InvariantViolation, match="after it had failed"):
        writer.finish()
    before = len(got)
    del writer
    gc.collect()
    assert len(got) == before


def test_what_the_sink_raises_ends_the_writing() -> None:
    def full(_: bytes) -> None:
        if done:
            raise OSError("no space left")

    done: list[int] = []
    writer = ColdFileWriter(full, IDENTITY, row_group_bytes=1)
    segment = segment_of()
    writer.begin_segment(segment.metadata, 1)
    done.append(1)
    with pytest.raises(OSError, match="no space left"):
        writer.add(segment.entries)
    with pytest.raises(InvariantViolation):
        writer.end_segment()


def test_segments_follow_each_other_and_are_complete() -> None:
    writer = ColdFileWriter(lambda _: None, IDENTITY)
    with pytest.raises(CallerError, match="in progress"):
        writer.begin_segment(SegmentMetadata(ledger_id=1, lssn=1, first_txid=1, in_progress=True), 0)
    one = segment_of()
    writer.begin_segment(one.metadata, 1)
    writer.add(one.entries)
    writer.end_segment()
    with pytest.raises(CallerError, match="segment 3 does not follow 1"):
        writer.begin_segment(SegmentMaker(3).finish().metadata, 0)


def test_the_last_id_may_be_that_of_a_control_record() -> None:
    maker = SegmentMaker(1)
    maker.record(b"x", 5)
    maker.end_entry()
    maker.txid = 9
    maker.control()
    segment = maker.finish(last_txid=9, last_entry=1, last_slot=0)
    data, _ = written([segment])
    assert footer_of(data).segments[0].metadata == segment.metadata


@pytest.mark.parametrize("text", [True, False])
def test_row_groups_have_about_the_bytes_that_were_asked_for(text: bool) -> None:
    dice = random.Random(1)
    maker = SegmentMaker(1)
    for number in range(6_000):
        line = b'{"flight": %d, "from": "JFK", "to": "LAX", "delay": %d}' % (dice.randrange(10_000), number % 60)
        maker.record(line if text else dice.randbytes(100))
        maker.end_entry() if number % 50 == 49 else None
    limit = 8_000 if text else 50_000
    data, _ = written([maker.finish()], row_group_bytes=limit)
    sizes = [one.range[1] for one in footer_of(data).row_groups]
    assert len(sizes) > 1
    assert max(sizes) < 1.5 * limit
    assert sum(sizes[1:-1]) > 0.5 * limit * len(sizes[1:-1])


def test_a_log_whose_records_begin_to_be_incompressible_has_no_huge_row_group() -> None:
    dice = random.Random(1)
    maker = SegmentMaker(1)
    for number in range(2_000):
        maker.record(bytes(1_000) if number < 1_000 else dice.randbytes(1_000))
        maker.end_entry() if number % 10 == 9 else None
    data, _ = written([maker.finish()], row_group_bytes=100_000)
    assert max(one.range[1] for one in footer_of(data).row_groups) < 200_000


def test_row_groups_are_cut_between_entries() -> None:
    segment = random_segment(4, 1, records=500)
    data, _ = written([segment], row_group_bytes=3_000)
    groups = footer_of(data).row_groups
    assert len(groups) > 5
    for one, other in pairwise(groups):
        assert one.last.entry_id < other.first.entry_id


def test_the_digest_is_of_records_and_not_of_how_they_lie() -> None:
    segment = random_segment(7, 2, records=300)
    _, done = written([segment], row_group_bytes=1_000, at_once=1)
    _, again = written([segment], row_group_bytes=1 << 20, at_once=1_000)
    assert done.digest == again.digest
    assert done.sha256 != again.sha256
    digest = RecordDigest()
    for entry in segment.entries:
        batch = decode_entries([entry], lssn=2, start_sequence_id=segment.metadata.effective_start_sequence_id)
        digest.update(RecordColumns.of(batch))
    assert digest.hexdigest() == done.digest


def test_parquet_s_own_features_are_as_the_specification_says() -> None:
    data, done = written([random_segment(1, 1, records=300)], row_group_bytes=3_000)
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    assert len(file.read()) == done.rows
    for group in range(file.metadata.num_row_groups):
        for leaf in range(file.metadata.num_columns):
            column = file.metadata.row_group(group).column(leaf)
            assert column.compression == "ZSTD"
            is_value = column.path_in_schema == "value"
            assert column.is_stats_set is not is_value
            assert column.has_offset_index
            if column.path_in_schema.startswith("_log.") and column.path_in_schema != "_log.log":
                assert "DELTA_BINARY_PACKED" in column.encodings
            assert not (is_value and column.has_dictionary_page)


def test_positions_are_found_in_the_footer_alone() -> None:
    segments = [random_segment(n, n + 5, records=200) for n in range(3)]
    data, _ = written(segments, row_group_bytes=3_000)
    footer = footer_of(data)
    for segment in segments:
        lssn, users = segment.metadata.lssn, segment.users()
        for number, record in enumerate(users):
            assert footer.entry_of_record(lssn, number) == record.dlsn.entry_id
            index = footer.locate_position(lssn, record.position)
            assert index is not None
            assert footer.row_groups[index].first <= record.dlsn <= footer.row_groups[index].last
            found = footer.locate_txid(lssn, record.txid)
            assert found is not None
            assert found <= index
            first = next(one for one in users if one.txid >= record.txid)
            assert footer.row_groups[found].first <= first.dlsn <= footer.row_groups[found].last
        assert footer.locate_position(lssn, len(users) + 1) is None
        assert footer.entry_of_record(lssn, len(users)) == len(segment.entries) or not users


def test_a_column_named_with_dots_is_told_from_a_part_of_another() -> None:
    data, _ = written([segment_of()])
    footer = footer_of(data)
    assert footer.leaves(["_log.entry", "value"]) == [2, 9]
    assert len(records_of(data, footer, 0)) == 10


@pytest.mark.parametrize("length", [0, 1, 7, 8, 255, 4_096, 123_457])
def test_checksums_of_parts_follow_from_those_of_beginnings(length: int) -> None:
    data = random.Random(length).randbytes(1_000 + length)
    assert crc_between(zlib.crc32(data[:1_000]), zlib.crc32(data), length) == zlib.crc32(data[1_000:])
