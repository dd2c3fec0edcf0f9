"""Mending in simulation: auto-recovery moves copies of ledgers that were placed without a rule, under faults.

`--rounds 300` plays as many; a failing seed prints how to see it again.
"""

from __future__ import annotations

import pytest

from simulation.runs.many import run_many
from simulation.runs.mending import MendingReport, run_mending

ROUNDS = 6


@pytest.mark.timeout(900)
def test_copies_are_moved_under_faults_and_none_is_lost(seed: int | None, rounds: int | None) -> None:
    seeds = range(rounds or ROUNDS) if seed is None else range(seed, seed + 1)
    played: list[MendingReport] = []
    run_many(run_mending, seeds, heard=played.append)
    closed, mended = sum(one.closed for one in played), sum(one.mended for one in played)
    print(f"{len(played)} rounds: {closed} closed ledgers keep the rule, {mended} fragments were seen to be mended")
    assert [f"--seed {one.seed}: {one.failure}" for one in played if one.failure is not None] == []
    assert len(played) == len(seeds)
    if seed is None:
        assert mended > 0, "something was to be mended"
    again = run_mending(played[0].seed)
    assert (again.trace_sum, again.steps) == (played[0].trace_sum, played[0].steps)
