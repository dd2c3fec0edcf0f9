"""Fleets of write proxies and thin clients in simulation: a few seeds, with --rounds a few dozen;
`make sim-proxies SEEDS=n` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

import pytest

from simulation import mutations
from simulation.faults.coverage import FLEET_POINTS
from simulation.runs.fleets import KINDS, FleetReport, fleet_command, fleet_table, percentile, run_fleet, run_fleets
from simulation.runs.many import RunsSummary

FIRST_SEEDS = (0, 1, 2, 3, 8)
"""One fleet of each kind at least, with readers and with writes on conditions; the quick ones of the first few."""
SEEDS = 24
MORE_SEEDS = 300
"""Within which every point is reached."""
MISSED_BY_FIRST = {
    "client.replaced",
    "client.replaced-wakes",
    "condition.in-doubt",
    "log.ProducerFencedError",
    "log.unknown-kept",
    "metadata.doubt",
    "net.broken-link",
    "net.unknown-delivery",
    "node.kill",
    "node.pause",
    "proxy.balanced",
    "proxy.slow-path",
    "read.resumed",
    "reading.expire",
    "reading.reader",
}
"""Points that the first seeds did not reach when this was written; they are to reach all others."""
FREQUENT_POINTS = (
    "client.came-and-went",
    "condition.fenced",
    "condition.held",
    "condition.refused",
    "fleet.conditions",
    "fleet.readers",
    "log.reader-crossed",
    "metadata.expire",
    "metadata.session-timeout",
    "net.half-open-reset",
    "proxy.cut-off",
    "proxy.expire",
    "proxy.freeze",
    "proxy.moved",
    "proxy.turnover",
    "read.caught-up",
    "writer.ensemble-change",
)
"""Those that a few dozen seeds reach several times."""
NOTICED_FROM = {
    "conditions": 2,
    "ended-epochs": 3,
    "known-requests": 0,
    "move-finishes": 59,
    "plain-once": 15,
    "ring-begins": 1,
    "stored-first": 0,
    "take-over-reads": 3,
    "waiting-order": 0,
    "window": 23,
}
"""The first seed that noticed each rule's absence when this was written. Where it does no more, a later one does."""


def test_no_fleet_loses_doubles_or_disorders_a_record_and_all_serve_again(seed: int | None) -> None:
    reports = passed(FIRST_SEEDS if seed is None else (seed,))
    if seed is None:
        assert {one.kind for one in reports} == set(KINDS)
        assert any(one.points["fleet.readers"] for one in reports)
        assert any(one.points["fleet.conditions"] for one in reports)
        assert set(FLEET_POINTS) >= MISSED_BY_FIRST
        missing = missing_of(reports, sorted(set(FLEET_POINTS) - MISSED_BY_FIRST))
        # A change of the code changes what a seed reaches: then another one of the next few does.
        for other in (one for one in range(2 * SEEDS) if one not in FIRST_SEEDS):
            if missing:
                missing = missing_of(passed((other,)), missing)
        assert missing == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_fleets_reach_what_is_to_go_wrong(rounds: int | None) -> None:
    reports = passed(range(max(rounds or 0, SEEDS)))
    print(fleet_table(reports))
    assert missing_of(reports, FLEET_POINTS if len(reports) >= MORE_SEEDS else FREQUENT_POINTS) == []


def missing_of(reports: Iterable[FleetReport], points: Iterable[str]) -> list[str]:
    """Return the points that none of the fleets has reached."""
    summary = RunsSummary()
    for report in reports:
        summary.add(report)
    return summary.missing(points)


def passed(seeds: Sequence[int]) -> list[FleetReport]:
    """Run fleets, none of which may fail."""
    reports = run_fleets(seeds, stop_at=3)
    assert [f"seed {one.seed}: {one.failure}\n    {fleet_command(one.seed)}" for one in reports if one.failure] == []
    assert len(reports) == len(seeds)
    return reports


def test_the_same_seed_gives_the_same_fleet() -> None:
    first, second = run_fleet(2, trace=True), run_fleet(2, trace=True)
    assert first.trace == second.trace
    assert (first.trace_sum, first.steps) == (second.trace_sum, second.steps)


@pytest.mark.processes
def test_the_same_seed_gives_the_same_fleet_whatever_the_hashes_of_strings_are() -> None:
    program = "from simulation.runs.fleets import run_fleet\nprint([run_fleet(s).trace_sum for s in (0, 2)])"
    sums = set()
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        sums.add(done.stdout)
    assert len(sums) == 1


@pytest.mark.parametrize("name", NOTICED_FROM)
def test_a_missing_rule_of_proxies_or_clients_is_noticed_at_once(name: str) -> None:
    assert mutations.seeds_needed(name, 60, NOTICED_FROM[name]) is not None


def test_the_table_shows_percentiles_of_what_was_measured() -> None:
    assert [percentile(range(1, 101), share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
    table = fleet_table([FleetReport(1, moves_s=[0.05, 0.07], failovers_s=[("crash", 0.2)], served_s=[0.1])])
    assert [line.split()[-5:] for line in table.splitlines()[1:]] == [
        ["1", "200", "200", "200", "200"],
        ["2", "50", "70", "70", "70"],
        ["1", "100", "100", "100", "100"],
    ]
