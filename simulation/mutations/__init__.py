"""The mutation check: each safety rule taken out in memory, one at a time; the simulator must notice.

A mutation replaces a method or function of the product for the length of a run and puts it back. It says nothing about
the product, only about the simulator: a rule whose absence no run notices is a rule that no run tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from simulation.cold.runs import run_cold
from simulation.mutations import cold, ledgers, logs, nodes, proxies
from simulation.mutations.mutation import Mutation
from simulation.runs.fleets import run_fleet
from simulation.runs.many import RunReport
from simulation.runs.seeds import run_seed

__all__ = ["COLD_MUTATIONS", "FLEET_MUTATIONS", "MUTATIONS", "NAME_MUTATIONS", "applied", "run_mutated", "seeds_needed"]

MUTATIONS: dict[str, Mutation] = {
    **ledgers.WRITER,
    **ledgers.RECOVERY,
    **ledgers.METADATA,
    **ledgers.READERS,
    **nodes.JOURNAL,
    **nodes.WRITTEN_ONCE,
    **nodes.CHECKPOINTS,
    **nodes.NODES,
    **logs.OWNERS,
    **logs.PRODUCERS,
    **logs.READERS,
    **logs.LIVES,
    **logs.NAMES,
    **proxies.FLEETS,
    **cold.COLD,
}
"""By name, in the order of docs/simulation.md."""
FLEET_MUTATIONS = tuple(proxies.FLEETS)
"""The mutations that only runs of proxies and thin clients can notice."""
COLD_MUTATIONS = tuple(cold.COLD)
"""The mutations that only runs with cold storage can notice."""
NAME_MUTATIONS = tuple(logs.NAMES)
"""The mutations that only runs with logs whose names move can notice."""


@contextmanager
def applied(name: str) -> Iterator[None]:
    """Take one of the product's rules away, for the length of the block."""
    mutation = MUTATIONS[name]
    original = getattr(mutation.owner, mutation.attribute)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(mutation.owner, mutation.attribute, mutation.replace(original)))
        for other in mutation.also:
            stack.enter_context(applied(other))
        yield


def run_mutated(name: str, seed: int, *, logs: bool = False) -> RunReport:
    """Return one run without the rule: of a fleet where the rule is one of proxies or thin clients, with names that
    move where it is one of those."""
    with applied(name):
        if name in FLEET_MUTATIONS:
            return run_fleet(seed)
        if name in COLD_MUTATIONS:
            return run_cold(seed)
        return run_seed(seed, logs=logs, names=name in NAME_MUTATIONS)


def seeds_needed(name: str, limit: int, first: int = 0, *, logs: bool = False) -> tuple[int, str] | None:
    """Return how many seeds passed before one failed, and how it failed; None if none of `limit` did."""
    for count in range(limit):
        failure = run_mutated(name, first + count, logs=logs).failure
        if failure is not None:
            return count, failure
    return None
