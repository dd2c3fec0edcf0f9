"""A run: cluster, workload and faults drawn from a seed, then healing, then the proof that everything goes on.

`run_seed` is what everything else is made of: the test command, `make sim`, the mutation check and
`python -m simulation --seed N`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from simulation.cluster import World
from simulation.faults import Nemesis
from simulation.life_workload import LifeWorkload
from simulation.log_workload import LogWorkload
from simulation.name_workload import NameWorkload
from simulation.roles import HEALTHY_S, Roles
from simulation.workload import Workload, draw_chains

CONTESTED_SHARE = 0.25
REPLACING_SHARE = 0.15
"""Of the others with chains of ledgers, in which nodes are replaced all the time."""
LOG_SHARE = 0.25
"""Runs whose workload is logs; the others have chains of ledgers."""
LIFE_SHARE = 0.4
"""Runs, of those with logs, whose logs are truncated, purged, sealed and deleted."""
NAME_SHARE = 0.25
"""Runs, of the other ones with logs, whose logs are renamed, deleted and made again."""


@dataclass(slots=True)
class Report:
    """What one run came to."""

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
    """No garbage collection in the middle of a run: its moment is not the seed's. No log lines of expected trouble."""
    enabled, disabled_level = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled_level)
        if enabled:
            gc.enable()


def run_seed(seed: int, *, trace: bool = False, logs: bool = False, names: bool = False) -> Report:
    """One run, to its end or to its first violation. With `logs` its workload is logs, whatever the seed says, and with
    `names` logs whose names move."""
    report = Report(seed)
    began = time.perf_counter()
    with undisturbed():
        world = World(seed, trace=trace)
        try:
            world.run(_scenario(world, LOG_SHARE if not logs else 1.0, names=names))
        except Exception as error:
            report.failure = _trouble(world) if world.checkers.violation is None else str(error)
            report.failure = report.failure or f"{type(error).__name__}: {error}"
        report.trace_sum = world.trace.sum
        report.trace = world.trace.lines
        report.points = world.points
        report.operations = world.history.counts()
        report.virtual_s = world.loop.time() - 1000.0
        report.steps = world.loop.steps
        report.failure = report.failure or _trouble(world)
    report.real_s = time.perf_counter() - began
    return report


def _trouble(world: World) -> str | None:
    """What went wrong without anybody having been told."""
    notes = [*world.fabric.failures, *world.loop.unhandled]
    return f"unhandled: {notes[0]}" if notes else None


def draw_workload(world: World, rng: Random, log_share: float, *, names: bool = False) -> Roles:
    """Chains of ledgers, or logs, some of them with the whole of their lives or names that move; contested or not."""
    contested = rng.random() < CONTESTED_SHARE
    replacing = not contested and world.rng("replacing").random() < REPLACING_SHARE
    workload: Roles
    if names:
        workload = NameWorkload(world, rng)
    elif world.rng("workload").random() >= log_share:
        workload = Workload(world, draw_chains(rng, contested=contested, replacing=replacing))
        workload.replacing = replacing
    elif world.rng("whole-life").random() < LIFE_SHARE:
        workload = LifeWorkload(world, rng)
    elif world.rng("moving-names").random() < NAME_SHARE:
        workload = NameWorkload(world, rng)
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
    world.checkers.final_state()


async def all_serve(world: World, when: str) -> None:
    """Wait until every node that can serve does."""
    deadline = world.loop.time() + HEALTHY_S
    while not all(node.healthy or node.refused is not None for node in world.nodes):
        if world.loop.time() > deadline:
            idle = [(n.name, n.last_error) for n in world.nodes if not n.healthy and n.refused is None]
            world.checkers.fail(f"{when}, these nodes do not come up: {idle}")
        for node in world.nodes:
            if not node.running:
                node.start()
        await asyncio.sleep(0.2)


async def _heal(world: World, nemesis: Nemesis) -> None:
    nemesis.heal()
    for node in world.nodes:
        if node.serving and node.bookie is not None and node.bookie.storage.writing_failed:
            world.reached("node.degraded")
            node.kill()  # read-only until somebody mends the disk and starts it again
    await all_serve(world, "after healing")


async def _verify(world: World, workload: Roles, rng: Random) -> None:
    """With everything healthy, but perhaps an ack quorum less one of the nodes: what was written is whole, and writing
    goes on."""
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
