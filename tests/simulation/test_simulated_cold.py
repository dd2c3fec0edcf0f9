"""The real mover over a simulated metadata store and a bucket with faults.

`python -m simulation --cold --seeds 10000` runs many.
"""

from __future__ import annotations

from simulation.cold.runs import run_cold

SEED = 4
"""Movers die and stand still, the log is truncated, units come and go: the cheapest of such runs."""


def test_every_record_is_readable_once_in_order_and_nothing_is_left_over_and_a_run_is_a_function_of_its_seed() -> None:
    report = run_cold(SEED)
    assert report.failure is None
    for point in ("cold.finished", "cold.truncated", "cold.mover-killed", "cold.mover-stood-still"):
        assert report.points[point] > 0, point
    assert run_cold(SEED).trace_sum == report.trace_sum
