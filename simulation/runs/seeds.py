"""A run: cluster, workload and faults drawn from a seed, then healing, then the proof that everything goes on.

`run_seed` is what everything else is made of: the test command, `make sim`, the mutation check and
`python -m simulation --seed N`. `run_many` runs many seeds, on several processors, and counts what they reached: each
is a run of its own, so nothing is shared but the count.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from simulation.cluster import World
from simulation.environment.loop import unheard
from simulation.faults.nemesis import Nemesis
from simulation.workloads.ledgers import LedgerWorkload, draw_chains
from simulation.workloads.logs import LogWorkload
from simulation.workloads.moving_names import MovingNamesWorkload
from simulation.workloads.programs import HEALTHY_S, Workload
from simulation.workloads.whole_lives import WholeLifeWorkload

CONTESTED_SHARE = 0.25
REPLACING_SHARE = 0.15
"""Of the others with chains of ledgers, in which nodes are replaced all the time."""
LOG_SHARE = 0.25
"""Runs whose workload is logs; the others have chains of ledgers."""
LIFE_SHARE = 0.4
"""Runs, of those with logs, whose logs are truncated, purged, sealed and deleted."""
NAME_SHARE = 0.25
"""Runs, of the other ones with logs, whose logs are renamed, deleted and made again."""
PROGRESS_EVERY = 250
"""Runs between two lines that say how far it has come."""
_RUNS = itertools.count(1)
"""Counts the runs of this process."""
COLLECT_EVERY = 25
"""Runs between two garbage collections, which are off within a run."""


@dataclass(slots=True)
class RunReport:
    """How did one run end?"""

    seed: int
    trace_sum: int = 0
    points: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0
    steps: int = 0
    failure: str | None = None
    trace: list[str] | None = None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep garbage collection away from the middle of a run, whose moments are not the seed's; and log lines of
    expected trouble.
    """
    enabled, disabled_level = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled_level)
        if enabled:
            gc.enable()


def run_seed(seed: int, *, trace: bool = False, logs: bool = False, names: bool = False) -> RunReport:
    """Return one run, to its end or to its first violation. With `logs` its workload is logs for every seed, and with
    `names` logs whose names move."""
    report = RunReport(seed)
    began = time.perf_counter()
    with undisturbed():
        world = World(seed, trace=trace)
        try:
            world.run(_scenario(world, LOG_SHARE if not logs else 1.0, names=names))
        except Exception as error:
            report.failure = trouble(world) if world.ledger_checkers.violation is None else str(error)
            report.failure = report.failure or f"{type(error).__name__}: {error}"
        report.trace_sum = world.trace.sum
        report.trace = world.trace.lines
        report.points = world.points
        report.operations = world.history.counts()
        report.virtual_s = world.loop.time() - 1000.0
        report.steps = world.loop.steps
        report.failure = report.failure or trouble(world)
    report.real_s = time.perf_counter() - began
    return report


def trouble(world: World) -> str | None:
    """Return what went wrong in the background, where no caller was waiting."""
    notes = [*world.fabric.failures, *world.loop.unhandled]
    return f"unhandled: {notes[0]}" if notes else None


def draw_workload(world: World, rng: Random, log_share: float, *, names: bool = False) -> Workload:
    """Draw a workload: chains of ledgers, or logs, some of them with the whole of their lives or names that move;
    contested or not.
    """
    contested = rng.random() < CONTESTED_SHARE
    replacing = not contested and world.rng("replacing").random() < REPLACING_SHARE
    workload: Workload
    if names:
        workload = MovingNamesWorkload(world, rng)
    elif world.rng("workload").random() >= log_share:
        workload = LedgerWorkload(world, draw_chains(rng, contested=contested, replacing=replacing))
        workload.replacing = replacing
    elif world.rng("whole-life").random() < LIFE_SHARE:
        workload = WholeLifeWorkload(world, rng)
    elif world.rng("moving-names").random() < NAME_SHARE:
        workload = MovingNamesWorkload(world, rng)
    else:
        workload = LogWorkload(world, rng)
    workload.contested = contested
    return workload


async def _scenario(world: World, log_share: float, *, names: bool) -> None:
    rng = world.rng("plan")
    workload = draw_workload(world, rng, log_share, names=names)
    for _ in range(max(sizes[0] for sizes in workload.sizes) + rng.choice((1, 1, 2))):
        world.add_node()
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002, 0.01))
    for machine in world.nodes:
        machine.clock.offset_ms = rng.randint(-60_000, 60_000)
    await world.format()
    for node in world.nodes:
        node.start()
    workload.draw_amount(rng)
    await all_serve(world, "at the start")
    await workload.prepare()
    workload.start_programs(rng)
    may_damage = min(sizes[2] for sizes in workload.sizes) >= 2
    nemesis = Nemesis(world, world.rng("nemesis"), may_damage=may_damage)
    if workload.contested:
        world.reached("scenario.contested")
        nemesis.contest()
    if workload.replacing:
        nemesis.replace_nodes()
    if isinstance(workload, LogWorkload):
        nemesis.disturb_owners()
    await nemesis.run(rng.uniform(2.0, 3.0) if workload.replacing else rng.uniform(0.8, 3.0))
    await _heal(world, nemesis)
    await asyncio.sleep(rng.uniform(0, 1.0))
    workload.over = True
    await workload.finished(HEALTHY_S)
    await _verify(world, workload, rng)
    world.ledger_checkers.final_state()


async def all_serve(world: World, when: str) -> None:
    """Wait until every node that can serve does."""
    deadline = world.loop.time() + HEALTHY_S
    while not all(node.healthy or node.refused is not None for node in world.nodes):
        if world.loop.time() > deadline:
            idle = [(n.name, n.last_error) for n in world.nodes if not n.healthy and n.refused is None]
            world.ledger_checkers.fail(f"{when}, these nodes do not come up: {idle}")
        for node in world.nodes:
            if not node.running:
                node.start()
        await asyncio.sleep(0.2)


async def _heal(world: World, nemesis: Nemesis) -> None:
    nemesis.heal()
    for node in world.nodes:
        if node.serving and node.bookie is not None and node.bookie.storage.writing_failed:
            world.reached("node.degraded")
            node.kill()  # read-only until an operator mends the disk and starts it again
    await all_serve(world, "after healing")


async def _verify(world: World, workload: Workload, rng: Random) -> None:
    """Verify, with everything healthy but perhaps an ack quorum less one of the nodes, that what was written is whole,
    and writing goes on.
    """
    damaged = any(node.damaged or node.refused is not None for node in world.nodes)
    smallest = min(sizes[2] for sizes in workload.sizes)
    spare = len(world.nodes) > max(sizes[0] for sizes in workload.sizes)
    if smallest >= 2 and not damaged and spare and rng.random() < 0.5:
        world.reached("end.node-away")
        rng.choice(world.nodes).kill(power=rng.random() < 0.5)
    client = world.add_client("verifier")
    client.start()
    task = client.spawn(workload.verify(client))
    await asyncio.wait_for(task, 3 * HEALTHY_S)


@dataclass(slots=True)
class RunsSummary:
    """How did many runs end?"""

    runs: int = 0
    points: Counter[str] = field(default_factory=Counter)
    """How often each was reached."""
    runs_with: Counter[str] = field(default_factory=Counter)
    """How many runs reached it."""
    operations: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0
    failures: list[RunReport] = field(default_factory=list)

    def add(self, report: RunReport) -> None:
        """Count a run's report in."""
        self.runs += 1
        self.points += report.points
        self.runs_with.update(report.points.keys())
        self.operations += report.operations
        self.virtual_s += report.virtual_s
        self.real_s += report.real_s
        if report.failure is not None:
            self.failures.append(report)

    def missing(self, points: Iterable[str]) -> list[str]:
        """Return those of the named points that no run has reached."""
        return [point for point in points if not self.points[point]]


def replay_command(seed: int, *, logs: bool = False, names: bool = False) -> str:
    """Return how to see one run again."""
    kind = "--names " if names else "--logs " if logs else ""
    return f"python -m simulation {kind}--seed {seed} --trace"


def reports(
    seeds: Iterable[int], processes: int = 1, *, logs: bool = False, names: bool = False
) -> Iterator[RunReport]:
    """Yield one report a seed, in no particular order where there are several processes."""
    run = partial(_run_and_collect, logs=logs, names=names)
    if processes <= 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=gc.disable, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=10)


def _run_and_collect(seed: int, *, logs: bool, names: bool) -> RunReport:
    report = run_seed(seed, logs=logs, names=names)
    collect_at_times()
    return report


def collect_at_times() -> None:
    """Collect what runs left behind, after every `COLLECT_EVERY` of them; to be called after each run."""
    if next(_RUNS) % COLLECT_EVERY == 0:
        with unheard():
            gc.collect()


def run_many(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    logs: bool = False,
    names: bool = False,
    failed: Callable[[RunReport], None] | None = None,
    progress: Callable[[RunsSummary], None] | None = None,
    stop_at: int = 10,
) -> RunsSummary:
    """Run them all, or until `stop_at` of them have failed. With `logs` every workload is logs, with `names`
    logs whose names move."""
    summary = RunsSummary()
    for report in reports(seeds, processes, logs=logs, names=names):
        summary.add(report)
        if report.failure is not None:
            if failed is not None:
                failed(report)
            if len(summary.failures) >= stop_at:
                break
        if progress is not None and summary.runs % PROGRESS_EVERY == 0:
            progress(summary)
    with unheard():
        gc.collect()  # what the runs left behind goes now, not in the middle of something else
    return summary


def print_failure(report: RunReport, *, logs: bool = False, names: bool = False) -> None:
    """Print a failing seed, and how to see it again."""
    print(
        f"seed {report.seed}: {report.failure}\n    {replay_command(report.seed, logs=logs, names=names)}", flush=True
    )


def print_progress(summary: RunsSummary) -> None:
    """Print how far it has come."""
    print(f"{summary.runs} runs so far, {len(summary.failures)} failed", flush=True)


def print_summary(summary: RunsSummary, *, began: float, verbose: bool) -> None:
    """Print counts, times and the points that were reached."""
    wall_s = time.monotonic() - began
    print(
        f"{summary.runs} runs, {len(summary.failures)} failed; {summary.virtual_s / 3600:.1f} hours of virtual time, "
        f"{summary.real_s:.0f} s of processors, {wall_s:.0f} s on the clock"
    )
    if verbose:
        print("points: how often, and in how many runs")
        for point, times in sorted(summary.points.items()):
            print(f"    {point:34}{times:>10}{summary.runs_with[point]:>10}")
        print("operations:")
        for kind, times in sorted(summary.operations.items()):
            print(f"    {kind:34}{times:>10}")
    sys.stdout.flush()
