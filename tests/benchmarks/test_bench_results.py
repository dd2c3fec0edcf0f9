"""The benchmark's arithmetic: ratios within a round, targets from either side, a table that says what was missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.codec import CodecBenchmark
from benchmarks.limits import RawFiles, direct_io, loopback_bytes_per_s, memory_bytes_per_s, round_trips_us
from benchmarks.payloads import ENTRY_BYTES, any_lengths, equal_lengths
from benchmarks.results import Row, Target, as_json, compare, number, percentile, spread, table
from dlspark.core.codec.vector_decoding import decode_entries


def test_a_ratio_is_of_a_round_and_its_own_limits() -> None:
    row = Row("P", "what", "MB/s", "MB/s: limit", Target(0.5))
    row.add(50.0, 90.0, 110.0)
    row.add(20.0, 40.0)
    assert row.ratios == [0.5, 0.5]
    assert row.limits == [100.0, 40.0]


@pytest.mark.parametrize(
    ("target", "ratio", "met", "half"),
    [
        (Target(0.8), 0.8, True, True),
        (Target(0.8), 0.5, False, True),
        (Target(0.8), 0.39, False, False),
        (Target(1.5, at_most=True), 1.5, True, True),
        (Target(1.5, at_most=True), 2.9, False, True),
        (Target(1.5, at_most=True), 3.1, False, False),
    ],
)
def test_half_of_a_target_is_half_the_speed_or_twice_the_time(
    target: Target, ratio: float, met: bool, half: bool
) -> None:
    assert (target.met(ratio), target.half_met(ratio)) == (met, half)


def test_the_table_says_which_rows_missed_and_which_were_not_measured() -> None:
    fast, slow = Row("A", "fast", "x", "x", Target(0.5)), Row("B", "slow", "x", "x", Target(0.5))
    fast.add(1.0, 1.0)
    slow.add(0.1, 1.0)
    missing, informative = Row("C", "missing", "x", "x", Target(0.5)), Row("D", "info", "x", "x", None)
    lines = table([fast, slow, missing, informative]).splitlines()
    assert len(lines) == 6
    assert lines[2].split("|")[-4:-2] == [" yes  ", " yes            "]
    assert lines[3].split("|")[-4:-2] == [" NO   ", " no             "]
    assert "not measured" in lines[4]
    assert [row.reached_half for row in (fast, slow, missing, informative)] == [True, False, False, True]
    assert as_json([fast])[0]["ratios"] == [1.0]


@pytest.mark.parametrize(
    ("figure", "limit"),
    [(-1.2, 7.0), (0.0, 7.0), (float("inf"), 7.0), (float("nan"), 7.0), (1.0, -7.0), (1.0, 0.0), (1.0, float("inf"))],
)
def test_a_figure_that_cannot_be_is_said_to_and_reaches_nothing(figure: float, limit: float) -> None:
    """A process that ended between two readings once gave -1.2 s of processor time, which is below any target."""
    row = Row("P16", "idle query", "CPU s/min", "CPU s/min: Kafka", Target(1.0, at_most=True))
    for _ in range(3):
        row.add(0.5, 7.0)
    assert row.reached_half
    row.add(figure, limit)
    assert not row.reached_half
    assert [fault.split()[1:] for fault in row.faults] == [["cannot", "be"]]
    cells = [cell.strip() for cell in table([row]).splitlines()[2].split("|")[-4:-1]]
    assert cells[:2] == ["NO", "no"]
    assert cells[2].startswith(row.faults[0])
    assert as_json([row])[0]["remarks"] == row.remarks
    for_information = Row("P16", "no query", "CPU s/min", "CPU s/min", None)
    for_information.add(figure, limit)
    assert not for_information.reached_half


def test_of_events_there_may_be_none_but_not_fewer() -> None:
    row = Row("P20", "writes that failed", "", "writes", Target(0.0, at_most=True), counts=True)
    row.add(0, 1000)
    assert (row.faults, row.reached_half) == ([], True)
    row.add(-1, 1000)
    assert (row.faults, row.reached_half) == (["-1 cannot be"], False)


def test_rows_that_contradict_each_other_over_one_job_reach_nothing() -> None:
    def rows(in_one: float, in_another: float) -> list[Row]:
        one = Row("P6", "source", "k rows/s", "k rows/s: no-op source", Target(0.85), job="source")
        one.add(in_one, in_one)
        other = Row("P6", "through a proxy", "k rows/s", "k rows/s: from nodes", None, limit_job="source")
        other.add(300.0, in_another)
        apart = Row("P7", "sink", "k rows/s", "k rows/s: not published", Target(0.9))
        apart.add(100.0, 100.0)
        return [one, other, apart]

    contradicting = rows(427.0, 1317.0)
    compare(contradicting)
    assert [row.reached_half for row in contradicting] == [False, False, True]
    assert contradicting[0].faults == ["source: 427 in one row, 1,317 in another"] == contradicting[1].faults
    agreeing = rows(900.0, 1317.0)
    compare(agreeing)
    assert [row.faults for row in agreeing] == [[], [], []]


def test_rounds_that_differ_by_more_than_half_of_their_median_say_so() -> None:
    steady, wide = (Row("A", "job", "k/s", "k/s", Target(0.5)) for _ in range(2))
    for figure in (80.0, 100.0, 130.0):
        steady.add(figure, 100.0)
    for figure in (60.0, 100.0, 111.0):
        wide.add(figure, 100.0)
    assert steady.remarks == []
    assert wide.remarks == ["rounds differ by more than half: measured, ratio"]
    assert wide.reached_half
    assert table([wide]).splitlines()[2].split("|")[-2].strip() == wide.remarks[0]


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.01234, 1.5, 123.4, 12345.6)] == ["0.0123", "1.5", "123", "12,346"]
    assert spread([1.0, 3.0, 2.0]) == "2 (1-3)"
    assert spread([2.0]) == "2"
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([1.0, 2.0], 0.99) == 2.0


def test_batches_of_records_fill_entries_of_the_declared_size() -> None:
    for records in (equal_lengths(100), any_lengths(100), any_lengths(1024)):
        entries = records.entries()
        assert len(entries) in (16, 17)
        assert all(ENTRY_BYTES - 2048 < len(entry) <= ENTRY_BYTES for entry in entries[:-1])
        batch = decode_entries([(i, memoryview(e)) for i, e in enumerate(entries)], lssn=1, start_sequence_id=0)
        assert batch.payload.equals(records.payloads)


def test_the_codec_is_measured() -> None:
    benchmark = CodecBenchmark()
    benchmark.round(0.05)
    assert len(benchmark.rows) == 8
    assert all(row.ratios[0] > 0 for row in benchmark.rows)


@pytest.mark.processes
def test_the_machines_limits_are_measured_and_leave_no_process(tmp_path: Path) -> None:
    assert direct_io(tmp_path) in (True, False)
    raw = RawFiles(tmp_path)
    assert raw.commits(0.2).p50_us > 0
    assert raw.stream(0.2).bytes_per_s > 0
    assert percentile(round_trips_us(100, 0.2), 0.5) > 0
    assert loopback_bytes_per_s(ENTRY_BYTES, 0.2) > 0
    assert memory_bytes_per_s(ENTRY_BYTES, 0.05) > 0
    import multiprocessing

    assert multiprocessing.active_children() == []
