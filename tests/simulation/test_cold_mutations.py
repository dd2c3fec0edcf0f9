"""The checkers of runs with cold storage notice each missing rule; and more seeds than the first tier has."""

from __future__ import annotations

import pytest

from simulation import mutations
from simulation.cold.runs import run_cold


@pytest.mark.parametrize("seed", [1, 5, 7])
def test_more_seeds(seed: int) -> None:
    assert run_cold(seed).failure is None


@pytest.mark.parametrize("name", mutations.COLD_MUTATIONS)
def test_a_rule_that_is_missing_is_noticed(name: str) -> None:
    assert mutations.seeds_needed(name, 12) is not None
