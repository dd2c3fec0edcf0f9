"""Cold units as values: what each znode says to the letter, what is refused, and what truncation hides of a segment."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from metadata.distributedlog.cold_places import ColdFile, ColdPlace, UnitState
from metadata.distributedlog.cold_units import (
    ColdAttempt,
    ColdLog,
    ColdSegment,
    ColdUnit,
    DeletedLog,
    hidden_below,
    hidden_to,
    namespace_data,
    object_name,
    parse_namespace_data,
    parse_unit_name,
    unit_name,
)
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CorruptDataError

FILE = ColdFile("s3://b/n/l/7-8-x.parquet", 900, "ab" * 32, "cd" * 32, 4, 6, {"endpoint": "http://h:1"}, 3, True, True)
METADATA = SegmentMetadata(
    ledger_id=70,
    lssn=7,
    first_txid=1,
    last_txid=9,
    completion_time_ms=5,
    record_count=3,
    last_entry=4,
    last_slot=2,
    start_sequence_id=40,
)
SEGMENTS = (
    ColdSegment(METADATA, 0, 3, 500),
    ColdSegment(replace(METADATA, ledger_id=71, lssn=8, record_count=1, name="logrecs_old"), 3, 1, 100),
)
UNIT = ColdUnit(UnitState.HOT_DELETED, "x", SEGMENTS, FILE, 11, 12, (replace(FILE, url="s3://b/n/l/y"),))


def test_a_unit_is_this_to_the_letter() -> None:
    file = {
        "url": "s3://b/n/l/7-8-x.parquet",
        "bytes": 900,
        "sha256": "ab" * 32,
        "digest": "cd" * 32,
        "rows": 4,
        "entries": 6,
        "options": {"endpoint": "http://h:1"},
        "schema": 3,
        "redacted": True,
        "borrowed": True,
    }
    assert json.loads(UNIT.encode()) == {
        "v": 1,
        "state": "HOT_DELETED",
        "attempt": "x",
        "finished": 11,
        "segments": [
            {"m": "12884901893;70;1;9;5;7;4;2;0;0;40", "at": 0, "rows": 3, "bytes": 500},
            {"m": "4294967301;71;1;9;5;8;4;2;0;0;40", "at": 3, "rows": 1, "bytes": 100, "name": "logrecs_old"},
        ],
        "file": file,
        "hotDeleted": 12,
        "replaced": [file | {"url": "s3://b/n/l/y"}],
    }
    read = ColdUnit.decode(UNIT.encode(), "/p")
    assert read == UNIT
    assert [one.metadata.znode_name for one in read.segments] == ["logrecs_000000000000000007", "logrecs_old"]
    assert (read.first, read.last, read.name) == (7, 8, "000000000000000007-000000000000000008")


def test_former_ledgers_are_told_where_there_are_any_and_older_znodes_are_read() -> None:
    back = replace(METADATA, ledger_id=90, former_ledgers=(70, 80))
    unit = replace(UNIT, segments=(replace(SEGMENTS[0], metadata=back), SEGMENTS[1]))
    told = json.loads(unit.encode())
    assert [one.get("former") for one in told["segments"]] == [[70, 80], None]
    read = ColdUnit.decode(unit.encode(), "/p")
    assert [one.metadata.former_ledgers for one in read.segments] == [(70, 80), ()]
    shown = read.segment(7, listed=False, truncated_to=(7, 2, 1))
    assert (shown.first_ledger, shown.ledger_id, shown.min_entry) == (70, 90, 2)
    assert [shown.was_ledger(one) for one in (70, 80, 90, 71)] == [True, True, True, False]
    del told["segments"][0]["former"]
    assert ColdUnit.decode(json.dumps(told).encode(), "/p").segments[0].metadata.first_ledger == 90


def test_attempt_log_and_deleted_log_are_these_to_the_letter() -> None:
    attempt = ColdAttempt("x", "host:1", 7, 8, "file:///r/o", 5)
    assert json.loads(attempt.encode()) == {
        "v": 1,
        "attempt": "x",
        "worker": "host:1",
        "first": 7,
        "last": 8,
        "url": "file:///r/o",
        "started": 5,
    }
    assert ColdAttempt.decode(attempt.encode(), "/p") == attempt
    log = ColdLog("n", "l", (7, 1, 2))
    assert log.encode() == b'{"v":1,"namespace":"n","log":"l","truncatedTo":"7:1:2"}'
    changed = replace(log, generation=3, deleted=True)
    assert changed.encode() == log.encode()[:-1] + b',"generation":3,"deleted":true}'
    assert [ColdLog.decode(one.encode(), "/p") for one in (log, changed)] == [log, changed]
    deleted = DeletedLog("l", "flights", 9, (("s3://b/n/l", {"region": "r"}), ("file:///n/l", {})))
    assert json.loads(deleted.encode()) == {
        "v": 1,
        "log": "flights",
        "deleted": 9,
        "folders": [{"url": "s3://b/n/l", "options": {"region": "r"}}, {"url": "file:///n/l"}],
    }
    borrower = replace(deleted, borrowed=("s3://b/n/other",))
    assert json.loads(borrower.encode())["borrowed"] == ["s3://b/n/other"]
    assert [DeletedLog.decode(one.encode(), "/d/l") for one in (deleted, borrower)] == [deleted, borrower]
    assert parse_namespace_data(namespace_data("n"), "/p") == "n"
    assert object_name(log, 7, 8, "x") == "n/l/000000000000000007-000000000000000008-x.parquet"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v":2}',
        UNIT.encode().replace(b"HOT_DELETED", b"LUKEWARM"),
        UNIT.encode().replace(b";8;4;2", b";9;4;2"),  # a hole between its segments
        UNIT.encode().replace(b'"rows":3', b'"rows":"many"'),
        UNIT.encode().replace(b'"m":"12884901893;70;1;9;5;7;4;2;0;0;40"', b'"m":"5;70;1;7;0;0;40"'),  # in progress
    ],
)
def test_anything_else_is_no_unit(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as error:
        ColdUnit.decode(data, "/p")
    assert error.value.path == "/p"


@pytest.mark.parametrize("data", [b"x", b"{}", b'{"v":1}', b'{"v":1,"log":3,"deleted":1,"folders":[]}'])
def test_anything_else_is_no_attempt_log_or_note(data: bytes) -> None:
    for decode in (ColdAttempt.decode, ColdLog.decode, DeletedLog.decode, parse_namespace_data):
        with pytest.raises(CorruptDataError):
            decode(data, "/p")


def test_names_of_units() -> None:
    assert parse_unit_name(unit_name(7, 12)) == (7, 12)
    for name in ("7-12", unit_name(12, 7), f"{unit_name(7, 12)}-x", "attempts"):
        assert parse_unit_name(name) is None


def test_where_a_segment_is_changes_neither_its_data_nor_what_it_equals() -> None:
    placed = UNIT.segment(7, listed=False)
    assert placed.cold == ColdPlace(FILE, UnitState.HOT_DELETED, 0, 3, 500, "x", listed=False)
    assert placed == METADATA
    assert hash(placed) == hash(METADATA)
    assert placed.encode() == METADATA.encode()
    assert SegmentMetadata.decode(placed.encode(), "/p").cold is None
    assert pickle.loads(pickle.dumps(placed)).cold == placed.cold


@pytest.mark.parametrize(
    ("truncated_to", "status", "minimum"),
    [
        ((0, 0, 0), TruncationStatus.ACTIVE, (0, 0)),
        ((7, 0, 0), TruncationStatus.ACTIVE, (0, 0)),
        ((7, 0, 1), TruncationStatus.PARTIALLY_TRUNCATED, (0, 1)),
        ((7, 4, 2), TruncationStatus.PARTIALLY_TRUNCATED, (4, 2)),
        ((7, 4, 3), TruncationStatus.TRUNCATED, (0, 0)),
        ((8, 0, 0), TruncationStatus.TRUNCATED, (0, 0)),
    ],
)
def test_what_lies_below_a_position_is_hidden(truncated_to, status, minimum) -> None:
    hidden = UNIT.segment(7, listed=False, truncated_to=truncated_to)
    assert (hidden.truncation, (hidden.min_entry, hidden.min_slot)) == (status, minimum)


def test_what_is_hidden_stays_hidden() -> None:
    partly = replace(METADATA, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=3, min_slot=1)
    assert hidden_to(partly) == (7, 3, 1)
    assert hidden_below(partly, (7, 2, 0)) == hidden_below(partly, (0, 0, 0)) == partly
    assert hidden_below(partly, (7, 3, 2)).min_slot == 2
    whole = replace(METADATA, truncation=TruncationStatus.TRUNCATED)
    assert hidden_below(whole, (7, 3, 2)) == whole
    assert hidden_to(whole) == (8, 0, 0)


def test_nothing_is_shown_of_a_unit_whose_files_go() -> None:
    going = replace(UNIT, state=UnitState.COLD_DELETE_STARTED)
    assert going.segment(8, listed=False).truncation is TruncationStatus.TRUNCATED
