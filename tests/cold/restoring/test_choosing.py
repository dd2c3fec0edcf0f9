"""Which files make a log: no segment twice, none left out, nothing that was erased, and no guess where files differ."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dlspark.cold.restoring.choosing import (
    FileClaim,
    FilesDisagreeError,
    SegmentHoleError,
    choose,
    counted_first,
    one_log,
)
from metadata.distributedlog.cold_units import ColdSegment
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError


def claim(first, last, attempt="a", *, digest="d", records=2, **changes):
    segments = tuple(
        ColdSegment(
            SegmentMetadata(
                ledger_id=lssn,
                lssn=lssn,
                first_txid=lssn,
                last_txid=lssn,
                record_count=records,
                last_entry=1,
                last_slot=0,
                start_sequence_id=lssn * records,
            ),
            0,
            records,
            100,
        )
        for lssn in range(first, last + 1)
    )
    made = FileClaim(
        f"file:///c/{first}-{last}-{attempt}.parquet", 10, 5, "ns", "log", "flights", attempt, segments, digest, False
    )
    return replace(made, **changes)


def urls(chosen):
    return [one.url.rpartition("/")[2].removesuffix(".parquet") for one in chosen.files]


def test_runs_that_follow_each_other_are_taken_whole_and_in_order():
    assert urls(choose([claim(4, 6), claim(1, 3), claim(7, 7)])) == ["1-3-a", "4-6-a", "7-7-a"]


def test_of_two_attempts_with_the_same_records_one_is_taken():
    chosen = choose([claim(1, 3), claim(1, 3, "b", modified_ms=9), claim(4, 4)])
    assert urls(chosen) == ["1-3-b", "4-4-a"]
    assert [one.why for one in chosen.passed] == ["a file with the same records is taken"]


def test_two_attempts_with_other_records_are_refused():
    with pytest.raises(FilesDisagreeError, match="2 files have segments 1 to 3, and not the same records"):
        choose([claim(1, 3), claim(1, 3, "b", digest="e")])


def test_what_was_erased_never_comes_back():
    erased = claim(1, 3, "b", digest="e", redacted=True)
    chosen = choose([claim(1, 3, modified_ms=99), erased])
    assert urls(chosen) == ["1-3-b"]
    assert [one.why for one in chosen.passed] == ["records were erased since"]


def test_of_two_erasures_the_one_with_more_is_taken_and_has_to_be_counted():
    first = claim(1, 3, "b", digest="e", redacted=True, modified_ms=99)
    second = claim(1, 3, "c", digest="f", redacted=True)
    assert counted_first([claim(1, 3), first, second]) == [first, second]
    assert counted_first([claim(1, 3), first]) == []
    counted = [replace(first, erased=1), replace(second, erased=2)]
    assert urls(choose([claim(1, 3), *counted])) == ["1-3-c"]
    with pytest.raises(FilesDisagreeError):
        choose([replace(first, erased=2), replace(second, erased=2)])


def test_a_file_with_records_that_another_run_has_erased_is_not_taken_in_silence():
    erased = claim(2, 5, "b", digest="e", redacted=True)
    with pytest.raises(FilesDisagreeError, match="records of segments 2 to 5 are erased"):
        choose([claim(1, 3), claim(4, 6), erased])
    # Where it fits, it is the one.
    assert urls(choose([claim(1, 1), claim(2, 3), claim(4, 5), erased, claim(6, 6)])) == ["1-1-a", "2-5-b", "6-6-a"]


def test_runs_that_were_cut_otherwise_are_chosen_so_that_none_is_twice():
    chosen = choose([claim(1, 2), claim(1, 5), claim(3, 4), claim(6, 8), claim(5, 5)])
    assert urls(chosen) == ["1-5-a", "6-8-a"], "fewest files"
    assert {one.why for one in chosen.passed} == {"its segments are in other files"}
    assert urls(choose([claim(1, 2), claim(2, 5), claim(3, 4), claim(5, 8)])) == ["1-2-a", "3-4-a", "5-8-a"]


def test_runs_that_tell_different_things_of_a_segment_are_refused():
    other = claim(2, 4, "b", records=3)
    with pytest.raises(FilesDisagreeError, match="say different things of segment 2"):
        choose([claim(1, 3), other])


def test_a_segment_that_came_back_in_another_ledger_is_the_same_segment():
    back = claim(1, 3, "b")
    back = replace(
        back, segments=tuple(replace(one, metadata=replace(one.metadata, ledger_id=77)) for one in back.segments)
    )
    assert len(choose([claim(1, 3), back]).files) == 1


def test_a_hole_is_refused_unless_the_log_is_to_begin_behind_it():
    files = [claim(1, 3), claim(6, 8), claim(9, 9)]
    with pytest.raises(SegmentHoleError, match="segments 4 to 5 are in no file") as caught:
        choose(files)
    assert "--from-segment 6" in caught.value.advice
    assert urls(choose(files, 6)) == ["6-8-a", "9-9-a"]
    assert urls(choose(files, 7)) == ["6-8-a", "9-9-a"], "files are taken whole"
    with pytest.raises(SegmentHoleError):
        choose(files, 2)
    assert [one.why for one in choose(files, 9).passed][:1] == [
        "it was not asked for: its segments are before the first one that was"
    ]
    with pytest.raises(SegmentHoleError, match="no file has segment 10"):
        choose(files, 10)


def test_numbers_between_two_files_are_no_hole_where_sequence_ids_go_on():
    behind = claim(6, 7)
    shifted = tuple(
        replace(one, metadata=replace(one.metadata, start_sequence_id=one.metadata.start_sequence_id - 4))
        for one in behind.segments
    )
    assert urls(choose([claim(1, 3), replace(behind, segments=shifted)])) == ["1-3-a", "6-7-a"]


def test_files_of_several_logs_need_a_choice():
    files = [claim(1, 3), claim(1, 2, log_id="other", log="trains")]
    with pytest.raises(CallerError, match=r"files of 2 logs: log \(flights\), other \(trains\)"):
        one_log(files)
    assert one_log(files, ["other"]) == [files[1]]
    assert one_log(files, ["other", "log"]) == files
    with pytest.raises(CallerError, match="there is no cold file of log none there"):
        one_log(files, ["none", "log"])
    with pytest.raises(CallerError, match="there is no cold file there"):
        one_log([])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_runs_there_are_each_segment_is_chosen_once_or_it_is_refused(seed):
    rng = random.Random(seed)
    firsts = [rng.randrange(1, 12) for _ in range(rng.randrange(1, 14))]
    runs = {(first, first + rng.randrange(0, 4)) for first in firsts}
    claims = [claim(first, last) for first, last in runs]
    rng.shuffle(claims)
    reachable = _lowest(runs)
    try:
        chosen = choose(claims)
    except SegmentHoleError:
        assert reachable > min(first for first, _ in runs)
        return
    covered = [lssn for one in chosen.files for lssn in range(one.run[0], one.run[1] + 1)]
    assert covered == list(range(min(first for first, _ in runs), max(last for _, last in runs) + 1))
    assert {one.url for one in chosen.files} | {one.url for one in chosen.passed} == {one.url for one in claims}


def _lowest(runs):
    """The lowest segment that runs without overlap reach back to from the newest one: by trying all of them."""
    newest = max(last for _, last in runs)
    ends, lowest = {newest}, newest + 1
    while ends:
        end = ends.pop()
        for first, last in runs:
            if last == end:
                lowest = min(lowest, first)
                ends.add(first - 1)
    return lowest
