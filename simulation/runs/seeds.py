"""A run: cluster, workload and faults drawn from a seed, then healing, then the proof that everything goes on.

`run_seed` is what everything else is made of: the test command, `make sim`, the mutation check and
`python -m simulation --seed N`. `many` runs many seeds, on several processors.
"""

from __future__ import annotations

import asyncio
from random import Random

from simulation.cluster import World
from simulation.faults.nemesis import Nemesis
from simulation.runs.many import RunReport, play
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


def run_seed(seed: int, *, trace: bool = False, logs: bool = False, names: bool = False) -> RunReport:
    """Return one run, to its end or to its first violation. With `logs` its workload is logs for every seed, and with
    `names` logs whose names move."""
    share = LOG_SHARE if not logs else 1.0
    return play(RunReport(seed), lambda: World(seed, trace=trace), lambda world: _scenario(world, share, names=names))


def replay_command(seed: int, *, logs: bool = False, names: bool = False) -> str:
    """Return how to see one run again."""
    kind = "--names " if names else "--logs " if logs else ""
    return f"python -m simulation {kind}--seed {seed} --trace"


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
    await heal(world, nemesis)
    await asyncio.sleep(rng.uniform(0, 1.0))
    workload.over = True
    await workload.finished(HEALTHY_S)
    await verify(world, workload, rng)
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


async def heal(world: World, nemesis: Nemesis) -> None:
    """End all faults, and wait until every node serves."""
    nemesis.heal()
    for node in world.nodes:
        if node.serving and node.bookie is not None and node.bookie.storage.writing_failed:
            world.reached("node.degraded")
            node.kill()  # read-only until an operator mends the disk and starts it again
    await all_serve(world, "after healing")


async def verify(world: World, workload: Workload, rng: Random) -> None:
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
