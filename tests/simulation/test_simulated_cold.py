"""The real mover over a simulated metadata store and a bucket with faults; and that the checkers notice what is wrong.

`python -m simulation --cold --seeds 10000` runs many.
"""

from __future__ import annotations

import pytest

from simulation import mutations
from simulation.cold.runs import run_cold

SEEDS = (1, 4, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_is_readable_once_in_order_and_nothing_is_left_over(seed: int) -> None:
    report = run_cold(seed)
    assert report.failure is None
    assert report.points["cold.finished"] > 0


def test_a_run_is_a_function_of_its_seed() -> None:
    assert run_cold(4).trace_sum == run_cold(4).trace_sum


@pytest.mark.parametrize("name", mutations.COLD_MUTATIONS)
def test_a_rule_that_is_missing_is_noticed(name: str) -> None:
    assert mutations.seeds_needed(name, 30) is not None
