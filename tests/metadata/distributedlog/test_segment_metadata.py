"""Segment metadata: every vector of docs/reference/znodes.md#znode-vectors, and what is not segment metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.distributedlog.segments import (
    SegmentMetadata,
    TruncationStatus,
    UnsupportedMetadataVersionError,
    gap_in,
    order,
)
from metadata.foundation.errors import CorruptDataError, InvariantViolation

OPEN = SegmentMetadata(ledger_id=12345, lssn=3, first_txid=1001, in_progress=True)
DONE = OPEN.completed(
    last_txid=2002,
    completion_time_ms=1700000000123,
    record_count=250,
    last_entry=41,
    last_slot=7,
    start_sequence_id=500,
)
TRUNCATED, PARTLY = TruncationStatus.TRUNCATED, TruncationStatus.PARTIALLY_TRUNCATED


def _of(segment: SegmentMetadata, version: int, **change: object) -> SegmentMetadata:
    if version < 5:
        change.setdefault("start_sequence_id", -1)
    if version < 2:
        change.setdefault("lssn", 0)
        change.setdefault("last_entry", -1)
        change.setdefault("last_slot", -1)
    return replace(segment, version=version, **change)


VECTORS = vectors("znodes.md")
SEGMENTS = {
    "v1 in-progress": _of(OPEN, 1),
    "v1 completed": _of(DONE, 1),
    "v2 in-progress": _of(OPEN, 2),
    "v2 completed": _of(DONE, 2),
    "v2 truncated": _of(DONE, 2, truncation=TRUNCATED),
    "v2 partially truncated": _of(DONE, 2, truncation=PARTLY),
    "v2 in-progress, region 9": _of(OPEN, 2, region=9),
    "v3 in-progress": _of(OPEN, 3),
    "v3 completed": _of(DONE, 3),
    "v3 truncated": _of(DONE, 3, truncation=TRUNCATED),
    "v3 partially truncated": _of(DONE, 3, truncation=PARTLY, min_entry=20, min_slot=4),
    "v3 in-progress, region 9": _of(OPEN, 3, region=9),
    "v4 in-progress": _of(OPEN, 4),
    "v4 completed": _of(DONE, 4),
    "v4 truncated": _of(DONE, 4, truncation=TRUNCATED),
    "v4 partially truncated": _of(DONE, 4, truncation=PARTLY, min_entry=20, min_slot=4),
    "v4 in-progress, region 9": _of(OPEN, 4, region=9),
    "v5 in-progress": OPEN,
    "v5 completed, rebuilt while unset": replace(DONE, start_sequence_id=-9223372023969873920),
    "v5 completed, start sequence id 500": DONE,
    "v5 truncated": replace(DONE, truncation=TRUNCATED),
    "v5 partially truncated": replace(DONE, truncation=PARTLY, min_entry=20, min_slot=4),
    "v5 in-progress, region 9": replace(OPEN, region=9),
    "v5 count 2^31-1, region 9, truncated, ledger 1, LSSN 1, nothing else set": SegmentMetadata(
        ledger_id=1,
        lssn=1,
        first_txid=0,
        record_count=2**31 - 1,
        region=9,
        truncation=TRUNCATED,
        start_sequence_id=-9223372032559808512,
    ),
    "v5 end-of-stream segment, ledger 77, LSSN 2, 2 records, last entry 19": SegmentMetadata(
        ledger_id=77,
        lssn=2,
        first_txid=1001,
        last_txid=2**63 - 1,
        record_count=2,
        last_entry=19,
    ),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_segment_metadata_has_the_bytes_of_the_vectors(name: str) -> None:
    data, segment = VECTORS[f"segment {name}"], SEGMENTS[name]
    assert segment.encode() == data
    assert SegmentMetadata.decode(data, "p/x", skip_minimum_version=True) == segment


def test_no_vector_of_a_segment_is_left_out() -> None:
    assert {name for name in VECTORS if name.startswith("segment v")} == {f"segment {name}" for name in SEGMENTS}


def test_segment_names_for_lssn_3() -> None:
    for segment, name in ((OPEN, "in progress"), (DONE, "completed")):
        assert segment.znode_name.encode() == VECTORS[f"segment name, {name}"]
        assert segment.named(0).znode_name.encode() == VECTORS[f"old segment name, {name}"]


def test_a_segment_read_from_a_legacy_name_keeps_it_until_it_is_completed() -> None:
    old = SegmentMetadata.decode(b"5;12345;1001;3;0;0;-1", "/ns/log/<default>/ledgers/inprogress_3e9")
    assert old == OPEN
    assert old.znode_name == "inprogress_3e9"
    done = old.completed(last_txid=1, completion_time_ms=1, record_count=1, last_entry=0, last_slot=0)
    assert done.znode_name == "logrecs_000000000000000003"


def test_an_unassigned_start_sequence_id_is_negative_and_grows() -> None:
    assert OPEN.effective_start_sequence_id == -9223372023969873920
    assert replace(OPEN, lssn=1).effective_start_sequence_id == -9223372032559808512
    assert replace(OPEN, version=4, start_sequence_id=7).effective_start_sequence_id == -9223372023969873920
    assert DONE.effective_start_sequence_id == 500
    assert replace(OPEN, lssn=2**33).effective_start_sequence_id == -(2**63) + 2**65 - 2**65


def test_entries_are_enveloped_from_version_4_on() -> None:
    assert [replace(OPEN, version=version).enveloped for version in (2, 3, 4, 5)] == [False, False, True, True]


def test_below_version_5_a_completed_segment_has_no_start_sequence_id() -> None:
    done = replace(OPEN, version=4).completed(
        last_txid=1, completion_time_ms=1, record_count=1, last_entry=0, last_slot=0, start_sequence_id=9
    )
    assert done.start_sequence_id == -1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"5",
        b"5;12345;1001;3;0;0",
        b"5;12345;1001;3;0;0;-1;9",
        b"5;12345;1001;x;0;0;-1",
        b"5;12345;1001;3;0;0;-1;",
        b"5;12345;1001;3;0;0; -1",
        b"5;12345;1001;3;0;0;1_0",
        b"5;12345;1001;3;0;0;\xd9\xa1",
        b"5;-1;1001;3;0;0;-1",
        b"5;1;1001;-3;0;0;-1",
        b"5;99999999999999999999;1001;3;0;0;-1",
        b"-4294967291;12345;1001;2002;1700000000123;3;41;7;0;0;500",
        b"5;9999999999999999999;1001;3;0;0;-1",
    ],
)
def test_what_is_no_segment_metadata_is_corrupt_and_names_its_path(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        SegmentMetadata.decode(data, "/ns/log/<default>/ledgers/logrecs_1")
    assert caught.value.path == "/ns/log/<default>/ledgers/logrecs_1"


@pytest.mark.parametrize("data", [b"0;1;2;3", b"6;12345;1001;3;0;0;-1", b"1;12345;1001", b"255;1;1"])
def test_other_versions_are_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedMetadataVersionError) as caught:
        SegmentMetadata.decode(data, "p")
    assert caught.value.code == 521


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_corrupt(data: bytes) -> None:
    try:
        found = SegmentMetadata.decode(data, "p", skip_minimum_version=True)
    except CorruptDataError:
        return
    assert SegmentMetadata.decode(found.encode(), "p", skip_minimum_version=True) == found


_LONG = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        SegmentMetadata,
        ledger_id=st.integers(0, 2**63 - 1),
        lssn=st.integers(0, 2**63 - 1),
        first_txid=_LONG,
        last_txid=_LONG,
        completion_time_ms=_LONG,
        record_count=st.integers(0, 2**31 - 1),
        last_entry=_LONG,
        last_slot=_LONG,
        min_entry=_LONG,
        min_slot=_LONG,
        start_sequence_id=_LONG,
        truncation=st.sampled_from(TruncationStatus),
        region=st.integers(0, 15),
    )
)
def test_every_completed_segment_comes_back(segment: SegmentMetadata) -> None:
    assert SegmentMetadata.decode(segment.encode(), "p") == segment


def test_a_count_that_does_not_fit_is_never_written() -> None:
    with pytest.raises(InvariantViolation):
        replace(DONE, record_count=2**31).encode()
    with pytest.raises(InvariantViolation):
        DONE.completed(last_txid=1, completion_time_ms=1, record_count=1, last_entry=0, last_slot=0)


def test_segments_are_ordered_by_lssn_and_in_progress_first() -> None:
    shuffled = [replace(DONE, lssn=5), replace(DONE, lssn=4), replace(OPEN, lssn=5)]
    assert [(segment.lssn, segment.in_progress) for segment in order(shuffled)] == [(4, False), (5, True), (5, False)]


def test_segments_without_lssn_are_ordered_by_first_transaction_id() -> None:
    shuffled = [replace(DONE, lssn=1, first_txid=30), _of(DONE, 1, first_txid=20), _of(DONE, 1, first_txid=10)]
    assert [segment.first_txid for segment in order(shuffled)] == [10, 20, 30]


def test_a_gap_is_the_first_pair_that_does_not_follow() -> None:
    def run(*numbers: int) -> list[SegmentMetadata]:
        return [replace(DONE, lssn=number) for number in numbers]

    assert gap_in(run()) is None
    assert gap_in(run(7, 8, 9)) is None
    assert gap_in(run(1, 2, 4, 6)) == (2, 4)
    assert gap_in(run(1, 1)) == (1, 1)
    assert gap_in([_of(DONE, 1), replace(DONE, lssn=5)]) is None
