"""The benchmark of cold storage does what it measures: what is late, lost or there twice is seen, files are counted.

The benchmark itself runs with --rounds, on a small scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.cluster import NODES, ZOOKEEPER, Cluster
from benchmarks.cold import ColdBenchmark
from benchmarks.cold_logs import FLIGHTS, YEAR_MS, another_year, flights
from benchmarks.costs import CLIENT, PROCESSOR
from benchmarks.freshness import DEFAULT_S, FILES_A_DAY, ROWS, WRITER, FreshLog, FreshnessRun, figures
from benchmarks.object_server import object_server
from dlspark.core.settings.cold import slot_length_s, slot_start_ms
from metadata.foundation.errors import present

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

processes = pytest.mark.processes


def written(batches: int, freshness_s: int = 30, mode: str = "append") -> FreshLog:
    """A log with batches that were acknowledged one a second, and seen three seconds later."""
    log = FreshLog(mode, freshness_s)
    for number in range(batches):
        log.acknowledged[number] = 1_000.0 + number
        log.seen[number] = 1_003.0 + number
        log.rows[number] = ROWS
    return log


def in_slots(log: FreshLog, slots: list[int]) -> FreshLog:
    """The log with a file in the middle of each of these slots."""
    length_s = slot_length_s(log.freshness_s)
    log.finished = [slot_start_ms(log.name, length_s, slot) + round(length_s * 500) for slot in slots]
    return log


def test_delays_are_from_the_acknowledgement_to_the_look_that_found_the_batch() -> None:
    fresh, middle, files = figures([in_slots(written(100), [1, 2, 3])])
    assert (fresh.measured, fresh.limits, middle.measured) == ([3.0], [30], [3.0])
    assert fresh.reached_half
    assert files.ratios == pytest.approx([1.0])


def test_a_batch_that_is_late_is_in_the_99th_percentile() -> None:
    log = in_slots(written(50), [1, 2])
    log.seen[7] = 1_107.0
    assert figures([log])[0].measured == [100.0]
    assert not figures([log])[0].reached_half


def test_files_a_day_are_those_of_slots_whatever_the_freshness() -> None:
    for freshness_s in (30, DEFAULT_S):
        log = written(1, freshness_s)
        assert in_slots(log, [5, 6, 7, 8]).files_a_day == pytest.approx(FILES_A_DAY)
        assert in_slots(log, [5, 7, 9]).files_a_day == pytest.approx(FILES_A_DAY / 2)
        assert in_slots(log, [5, 5, 6, 6, 7]).files_a_day == pytest.approx(2 * FILES_A_DAY), (
            "two in a slot are too many"
        )


def test_rows_of_a_log_that_lost_something_or_has_it_twice_cannot_be_believed() -> None:
    lost = in_slots(written(5), [1, 2])
    del lost.seen[3]
    twice = in_slots(written(5), [1, 2])
    twice.rows[2] += ROWS
    failed = in_slots(written(5), [1, 2])
    failed.failure = "the query ended"
    for log, said in (
        (lost, "batches [3] never came into the table"),
        (twice, f"the table has not {ROWS} rows of batches [2]"),
        (failed, "it was not written to the end: the query ended"),
        (FreshLog("append", 30), "nothing was written"),
    ):
        for row in figures([log]):
            assert said in row.remarks
            assert not row.reached_half


def test_another_year_has_the_same_flights_under_new_ids() -> None:
    rows = flights()
    assert rows.schema == FLIGHTS
    later = another_year(rows, 2)
    assert later.schema == FLIGHTS
    first, moved = rows.slice(0, 1).to_pylist()[0], later.slice(0, 1).to_pylist()[0]
    assert (moved.pop("id"), moved.pop("scheduled_ms")) == (2 * len(rows), first["scheduled_ms"] + 2 * YEAR_MS)
    assert moved == {name: value for name, value in first.items() if name in moved}


@processes
@pytest.mark.long
def test_all_rows_are_measured_on_a_small_scale(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster, object_server(tmp_path / "objects") as server:
        benchmark = ColdBenchmark(cluster, tmp_path, server, flights().slice(0, 5_000), noise_bytes=2_000_000)
        benchmark.round(0.01)
    assert not [fault for row in benchmark.rows for fault in row.faults]
    found = {(row.key, row.what): row for row in benchmark.rows}
    assert len(found) == 7
    costs = {what: row.costs[0] for (_, what), row in found.items() if row.costs}
    assert [each.per for each in costs.values()] == ["row", "record", "record", "record", "first record"]
    assert set(costs["the flights with their schema, cold"].figures) == {"mover", NODES, ZOOKEEPER}
    ours = costs["records read from S3"].figures
    assert {CLIENT, "S3 server", f"one GET: {CLIENT}", "one GET: S3 server"} <= set(ours)
    assert ours[NODES]["entries read"] == 0, "what is read lies in the S3 server"
    together = costs["8 readers of one segment, together"].figures
    assert together[CLIENT][PROCESSOR] < 3 * together[f"one reader: {CLIENT}"][PROCESSOR], "of one record, not of 8"
    for (key, _), row in found.items():
        if row.target is not None and key in ("P27", "P31"):
            assert row.target.met(row.ratios[0]), f"{key}: bytes and entries are counted, not timed"


@processes
@pytest.mark.long
def test_a_writer_s_batches_are_all_seen_in_its_table_once(tmp_path: Path) -> None:
    log = FreshLog(WRITER, 3)
    with Cluster(tmp_path / "cluster") as cluster:
        none = cast("SparkSession", None)  # nothing but queries needs it
        run = FreshnessRun(cluster, none, tmp_path / "run", [log], 0.5, late_s=60.0, files=2)
        run.run(1.5, tmp_path / "report.json")
    assert len(log.acknowledged) >= 3
    assert not log.missing
    assert not log.wrong
    assert len(log.finished) == len(log.files) >= 2
    costs = present(run.costs, "what a batch costs is not known")
    assert set(costs.figures) == {"driver, writer and looks", "mover", NODES, ZOOKEEPER}
    assert all(each[PROCESSOR] > 0 for each in costs.figures.values())
    rows = figures([log, log], costs)
    assert [bool(row.costs) for row in rows] == [True, False, False, False, False, False], "of both logs together"
