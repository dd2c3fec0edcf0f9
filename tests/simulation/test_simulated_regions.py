"""Regions in simulation: one of three is killed, cut off or slow, and comes back; writes and reads go on elsewhere.

`python -m simulation --regions --seeds 1000` prints how long it takes, for each way to survive and each way to go.
"""

from __future__ import annotations

import pytest

from simulation.runs.many import run_many
from simulation.runs.regions import RegionLoss, losses_table, region_command, run_region

ROUNDS = 3
FIRST = 500


@pytest.mark.timeout(900)
def test_any_region_may_go_and_come_back(seed: int | None, rounds: int | None) -> None:
    seeds = range(FIRST, FIRST + (rounds or ROUNDS)) if seed is None else range(seed, seed + 1)
    played: list[RegionLoss] = []
    run_many(run_region, seeds, heard=played.append)
    print(losses_table(played))
    assert [f"{region_command(one.seed)}: {one.failure}" for one in played if one.failure is not None] == []
    assert len(played) == len(seeds)
    # The rounds were what they are to be: records were written and read after the loss.
    assert all(one.written_s >= 0 and one.read_s >= 0 for one in played)
    one = played[0]
    again = run_region(one.seed)
    assert (again.trace_sum, again.steps, again.written_s) == (one.trace_sum, one.steps, one.written_s)
