"""The benchmark of regions does what it measures: what was added is taken away, and bytes are those that were sent.

It runs with --rounds: what it measures is tested by its parts, and it ends with an error where a row has none.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.costs import CLIENT, PROCESSOR, SYSTEM_CALLS
from benchmarks.region_jobs import catch_up
from benchmarks.regions import ABROAD, HOME, SECOND, RegionBenchmark

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="regions need an address each"),
]
TRIP_MS = 8.0


def test_a_small_round_fills_every_row_with_what_can_be(tmp_path: Path) -> None:
    with ExitStack() as stack:
        small = RegionBenchmark(tmp_path, stack, spark=False, round_trips_ms=(TRIP_MS,), records=3, megabytes=1)
        small.round(0.1)
        small._set_round_trips(0.0, 0.0)
        before = small._between_nodes("r3", sent=False)
        reading = small._looks({CLIENT: [small._pids["r3"]]})
        _, abroad = small._in["r3"].do(catch_up, reading, small._uri, ABROAD, 1)
        assert abroad.figures["nodes in r1"]["entries read"] + abroad.figures["nodes in r2"]["entries read"] > 0
        assert abroad.figures["nodes in r3"]["entries read"] == 0
        assert small._between_nodes("r3", sent=False) - before > 1 << 20  # all of it came from elsewhere
        rows = {row.what: row for row in small.rows}
        assert all(len(row.measured) == 1 and not row.faults for row in small.rows), [
            (row.what, row.faults) for row in small.rows
        ]
        found = {row.what: row.costs[0] for row in small.rows if row.costs}
        servers = {"nodes in r1", "nodes in r2", "nodes in r3", "ZooKeeper", "gateways"}
        writing = found[f"write 6/6/4, {TRIP_MS:g} ms, p50 less {TRIP_MS:g}"]
        tailing = found[f"tail in the writer's region, {TRIP_MS:g} ms, p50"]
        proxied = found[f"append by another region's proxy, {TRIP_MS:g} ms, p50 less {2 * TRIP_MS:g}"]
        assert set(writing.figures) == {CLIENT, *servers}
        assert set(tailing.figures) == {CLIENT, "reader in r1", "reader in r2", *servers}
        assert set(proxied.figures) == {CLIENT, "proxy in r2", *servers}
        assert min(writing.figures[f"nodes in r{number}"]["adds"] for number in (1, 2, 3)) >= 2, "copies in each region"
        for costs in (writing, tailing, proxied):
            assert all(each[PROCESSOR] > 0 for each in costs.figures.values())
        for costs in (writing, proxied):
            assert (SYSTEM_CALLS in costs.figures[CLIENT]) != bool(costs.missing)
        for how, copies in (("3/3/2", 2), ("6/6/4", 4)):
            row = rows[f"bytes sent abroad, {how}"]
            assert row.limit == f"MB: {copies} copies"
            assert 1.0 <= row.ratios[0] < 1.1  # a log so small has more heads of requests
        # Delays are at least what was asked for: what is left without them is never below nothing.
        far = rows[f"append by another region's proxy, {TRIP_MS:g} ms, p50 less {2 * TRIP_MS:g}"]
        near = rows[f"append by the own region's proxy, {TRIP_MS:g} ms, p50 less {TRIP_MS:g}"]
        assert far.measured[0] > 0
        assert near.measured[0] > 0
        figures = {"3/3/2": 0.0, "6/6/4": 0.0, "own": 2.0, "abroad": 4.0, "here": 0.001, "there": 0.007}
        plain = {
            **figures,
            "own": 1.0,
            "3/3/2": 0.002,
            "6/6/4": 0.003,
            f"proxy {HOME}": 0.004,
            f"proxy {SECOND}": 0.004,
        }
        measured = {**figures, "3/3/2": 0.010, "6/6/4": 0.012, f"proxy {HOME}": 0.013, f"proxy {SECOND}": 0.021}
        small._add(TRIP_MS, measured, plain, {})
        last = {what: (row.measured[-1], row.limits[-1]) for what, row in rows.items()}
        assert last[f"write 3/3/2, {TRIP_MS:g} ms, p50 less {TRIP_MS:g}"] == pytest.approx((2, 3))
        assert last[f"tail elsewhere, {TRIP_MS:g} ms, p50 less {TRIP_MS / 2:g}"] == pytest.approx((3, 2))
        assert last[near.what] == pytest.approx((5, 5))
        assert last[far.what] == pytest.approx((5, 5))
        assert last[f"catch up from copies here, {TRIP_MS:g} ms"] == (2, 1)
        assert last[f"catch up from copies elsewhere, {TRIP_MS:g} ms"] == (4, 2)
