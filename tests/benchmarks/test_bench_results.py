"""The benchmark's arithmetic: ratios within a round, targets from either side, a table that says what was missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.codec import CodecBenchmark
from benchmarks.limits import RawFiles, direct_io, loopback_bytes_per_s, memory_bytes_per_s, round_trips_us
from benchmarks.payloads import ENTRY_BYTES, any_lengths, equal_lengths
from benchmarks.results import Row, Target, as_json, number, percentile, spread, table
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
    assert lines[2].split("|")[-3:-1] == [" yes  ", " yes            "]
    assert lines[3].split("|")[-3:-1] == [" NO   ", " no             "]
    assert "not measured" in lines[4]
    assert [row.reached_half for row in (fast, slow, missing, informative)] == [True, False, False, True]
    assert as_json([fast])[0]["ratios"] == [1.0]


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.01234, 1.5, 123.4, 12345.6)] == ["0.0123", "1.5", "123", "12,346"]
    assert spread([1.0, 3.0, 2.0]) == "2 (1-3)"
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
