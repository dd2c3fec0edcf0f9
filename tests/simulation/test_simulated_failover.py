"""Failovers in simulation: a log's writer is stopped at any await point, another takes over, the first one goes on.

`python -m simulation --failovers 100` prints how long it takes, beside the session's timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

import pytest

from dlspark.core.writing.acknowledgements import LateAcknowledgements
from simulation import mutations
from simulation.runs.failover import SESSION_TIMEOUTS_S, run_failover, run_failovers, table

ROUNDS = 100


@pytest.mark.timeout(900)
def test_a_writer_that_was_stopped_gets_no_acknowledgement_after_the_first_one_of_its_successor(
    seed: int | None, rounds: int | None
) -> None:
    seeds = range(rounds or ROUNDS) if seed is None else range(seed, seed + 1)
    played = run_failovers(seeds)
    print(table(played))
    assert [f"seed {one.seed}: {one.failure}" for one in played if one.failure is not None] == []
    assert [one.seed for one in played if one.tries > 1] == [], "successors that had to open the log more than once"
    if len(seeds) < ROUNDS:
        return
    # The rounds were what they are to be: most first writers had written, went on, were refused, and were told why.
    assert sum(one.acknowledged_before > 0 for one in played) > len(played) / 2
    assert sum(one.refused_after > 0 for one in played) > len(played) / 3
    assert any(one.begun_again for one in played), "recoveries that a last transaction has met"
    assert {"WriterDeposedError", "WriteError"} <= {one.ended_with for one in played}
    assert {one.session_timeout_s for one in played} == set(SESSION_TIMEOUTS_S)


def test_the_same_seed_gives_the_same_failover() -> None:
    assert run_failover(3) == run_failover(3)


def test_a_writer_that_is_not_fenced_is_noticed() -> None:
    """Storage nodes that take adds to a fenced ledger: acknowledged is what the recovered segment does not hold."""
    with mutations.applied("fenced-adds"):
        assert any(one.failure is not None for one in run_failovers(range(15)))


def test_an_answer_that_waited_in_the_stopped_process_and_is_believed_is_noticed() -> None:
    def believe(
        _: LateAcknowledgements,
        added: asyncio.Future[int],
        _sent_at: float,
        answered: Callable[[asyncio.Future[int]], None],
    ) -> None:
        added.add_done_callback(answered)

    with mock.patch.object(LateAcknowledgements, "watch", believe):
        failures = [one.failure for one in run_failovers(range(15)) if one.failure is not None]
    assert failures
    assert all("was acknowledged after the second writer's first acknowledgement" in one for one in failures), failures
