"""What marks say, byte by byte (docs/reference/znodes.md#znode-vectors): of the old form and of the new."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors

from metadata.distributedlog.sink_marks import (
    MAX_HISTORY,
    MIN_HISTORY,
    NO_BATCH,
    Floor,
    LogMark,
    NamedBatch,
    SinkMark,
    SinkState,
    history_kept,
)
from metadata.foundation.errors import CorruptDataError
from metadata.store import Stat

VECTORS = vectors("znodes.md")


def stat(version: int, mzxid: int = 99) -> Stat:
    return Stat(version, 0, 1, mzxid, 0, 0, 0, 0, 0)


def test_a_mark_of_the_old_form_survives_its_json_and_the_golden_text_stays() -> None:
    assert SinkMark(7, "a1").encode() == VECTORS["sink root 1, one batch"]
    assert SinkMark.decode(VECTORS["sink root 1, one batch"], "/x") == SinkMark(7, "a1")
    assert SinkMark.decode(SinkMark().encode(), "/x") == SinkMark(NO_BATCH, "")
    text = VECTORS["sink root 1, with rows"]
    assert SinkMark.decode(text, "/x").rows == ((7, 1000), (6, 998))
    assert SinkMark.decode(text, "/x").encode() == text
    assert SinkMark.decode(text, "/x").rows_of(5) is None


def test_a_logs_mark_survives_its_json_and_the_golden_text_stays() -> None:
    mark = LogMark()
    for batch, attempt, rows in ((3, "x", 5), (6, "y", 998), (7, "z", 1000)):
        mark = mark.moved(batch, attempt, rows, 2)
    assert mark.encode() == VECTORS["sink mark"]
    again = LogMark.decode(mark.encode(), "/x")
    assert (again, again.rows, again.since) == (mark, mark.rows, 4)
    assert [again.covers(batch) for batch in (6, 7, 8)] == [True, True, False]
    assert [again.rows_of(batch) for batch in (3, 5, 6)] == [None, None, 998]
    assert [again.forgot(batch) for batch in (3, 4, 5)] == [True, False, False]
    assert not LogMark().covers(0)


def test_a_mark_that_is_not_the_whole_truth_says_so_and_older_releases_do_not_read_it() -> None:
    whole = LogMark().moved(6, "y", 998, 64).moved(7, "z", 1000, 64)
    mark = replace(whole, appending_ms=1784000000000)
    assert mark.encode() == VECTORS["sink mark, appending"]
    again = LogMark.decode(mark.encode(), "/x")
    assert (again, again.rows, again.appending_ms) == (mark, mark.rows, 1784000000000)
    assert LogMark.decode(whole.encode(), "/x").appending_ms is None
    assert again.moved(8, "a", 1, 64).appending_ms is None
    with pytest.raises(CorruptDataError, match="appending is None"):
        LogMark.decode(whole.encode().replace(b'"v":2', b'"v":3'), "/x")


def test_a_mark_that_names_a_batch_says_so_and_keeps_its_epoch_once_that_is_known() -> None:
    whole = LogMark().moved(6, "y", 998, 64).moved(7, "z", 1000, 64)
    mark = replace(whole, appending_ms=1784000000000, epoch=3, sent=NamedBatch(2, 8))
    assert mark.encode() == VECTORS["sink mark, sent"]
    again = LogMark.decode(mark.encode(), "/x")
    assert (again.rows, again.appending_ms, again.epoch, again.sent) == (mark.rows, 1784000000000, 3, NamedBatch(2, 8))
    moved = again.moved(8, "a", 5, 64)
    assert (moved.batch, moved.appending_ms, moved.epoch, moved.sent) == (8, None, 3, None)
    assert LogMark.decode(moved.encode(), "/x").epoch == 3
    for damaged in (b"[2]", b"[2,-8]", b'["2",8]', b"7"):
        with pytest.raises(CorruptDataError, match="sent is"):
            LogMark.decode(mark.encode().replace(b"[2,8]", damaged), "/x")


def test_a_mark_that_goes_past_a_batch_takes_no_rows_of_it_and_does_not_say_that_it_has_none() -> None:
    mark = replace(LogMark().moved(6, "y", 998, 64), epoch=3, sent=NamedBatch(2, 8)).gone_past(8)
    assert (mark.batch, mark.sent, mark.rows_of(6), mark.rows_of(8)) == (8, None, 998, None)
    assert mark.covers(8)
    assert [mark.forgot(batch) for batch in (7, 8, 9)] == [True, True, False]
    for batch in range(9, 9 + MAX_HISTORY):
        mark = mark.moved(batch, "a", 1, MAX_HISTORY)
    assert mark.forgot(8)


def test_a_mark_takes_in_what_the_logs_producers_have_above_it() -> None:
    mark = LogMark().moved(3, "a", 10, 64)
    assert mark.with_appended([(2, 7), (3, 8)], 64) is mark
    taken = mark.with_appended([(3, 10), (5, 1), (6, 2)], 64)
    assert (taken.batch, taken.rows) == (6, ((6, 2), (5, 1), (3, 10)))
    assert taken.rows_of(4) is None


def test_a_sinks_state_survives_its_json_and_keeps_what_was_of_old() -> None:
    assert SinkState().encode() == VECTORS["sink root 2, new"]
    old = VECTORS["sink root 1, three batches"]
    found = SinkState.decode(old, stat(3), "/x")
    assert (found.batch, found.rows, found.old) == (2, 12, True)
    assert found.floor == Floor(SinkMark(2, "a2"), 99)
    assert found.floor.mark.rows == ((2, 12), (1, 11), (0, 10))
    moved = found.moved(3, "b", 20)
    text = VECTORS["sink root 2, with a floor"]
    assert moved.encode() == text
    assert SinkState.decode(text, stat(4), "/x") == moved
    assert moved.moved(1, "c", 5) == moved  # a fork's, which is behind
    assert SinkState.decode(b'{"v":1,"batch":-1,"attempt":""}', stat(0), "/x") == SinkState(old=True)


def test_a_mark_of_old_that_was_copied_does_not_say_which_transaction_moved_it() -> None:
    found = SinkState.decode(b'{"v":1,"batch":2,"attempt":"a2"}', stat(0), "/x")
    assert found.floor == Floor(SinkMark(2, "a2"), 0)


def test_marks_of_many_logs_keep_fewer_batches_and_stay_small() -> None:
    assert [history_kept(logs) for logs in (0, 1, 32, 64, 500)] == [MAX_HISTORY, MAX_HISTORY, 64, 32, MIN_HISTORY]
    mark = LogMark()
    for batch in range(MAX_HISTORY + 1):
        mark = mark.moved(2**62 + batch, "f" * 32, 2**62, MAX_HISTORY)
    assert len(mark.encode()) < 3_000
    shorter = mark.moved(2**63 - 1, "g", 1, MIN_HISTORY)
    assert len(shorter.rows) == MIN_HISTORY
    assert shorter.since == mark.rows[MIN_HISTORY - 1][0] + 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b"[]",
        b"{",
        b'{"v":9,"batch":7,"attempt":""}',
        b'{"v":%d,"batch":"7","attempt":""}',
        b'{"v":%d,"batch":true,"attempt":""}',
        b'{"v":%d,"batch":-2,"attempt":""}',
        b'{"v":%d,"batch":7}',
        b'{"v":%d,"batch":7,"attempt":"a","rows":"7"}',
        b'{"v":%d,"batch":7,"attempt":"a","rows":[[7]]}',
        b'{"v":%d,"batch":7,"attempt":"a","rows":[["7","8"]]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_mark_is_an_error_with_its_place_and_never_a_mark(data: bytes) -> None:
    def with_version(version: int) -> bytes:
        return data % version if b"%d" in data else data

    readings = [
        lambda: SinkMark.decode(with_version(1), "/ns/.sinks/q"),
        lambda: LogMark.decode(with_version(2), "/ns/.sinks/q"),
        lambda: SinkState.decode(with_version(1), stat(1), "/ns/.sinks/q"),
        lambda: SinkState.decode(with_version(2), stat(1), "/ns/.sinks/q"),
    ]
    for read in readings:
        with pytest.raises(CorruptDataError) as caught:
            read()
        assert caught.value.path == "/ns/.sinks/q"
        assert caught.value.advice


def test_forms_are_not_taken_for_each_other() -> None:
    with pytest.raises(CorruptDataError, match="not a mark of version 2"):
        LogMark.decode(SinkMark(7, "a").encode(), "/x")
    for new in (LogMark(7, "a"), SinkState(7, "a")):
        with pytest.raises(CorruptDataError, match="not a mark of version 1"):
            SinkMark.decode(new.encode(), "/x")
    with pytest.raises(CorruptDataError):
        SinkState.decode(b'{"v":2,"batch":3,"attempt":"b","floor":7}', stat(1), "/x")
