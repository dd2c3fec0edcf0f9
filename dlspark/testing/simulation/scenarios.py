"""A run: cluster, workload and faults drawn from a seed, then healing, then the proof that everything goes on.

`run_seed` is what everything else is made of: the test command, `make sim`, the mutation check and
`python -m dlspark.testing.simulation --seed N`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from dlspark.testing.simulation.cluster import Client, World
from dlspark.testing.simulation.faults import Nemesis
from dlspark.testing.simulation.workload import PASSWORD, SIZES, Chain, Workload
from metadata.errors import DistributedLogError, InvariantViolation
from metadata.ledger_metadata import DigestType

HEALTHY_S = 60.0
"""Virtual time in which a healthy cluster must have done what was asked of it."""


CONTESTED_SHARE = 0.25


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
def _undisturbed() -> Iterator[None]:
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


def run_seed(seed: int, *, trace: bool = False) -> Report:
    """One run, to its end or to its first violation."""
    report = Report(seed)
    began = time.perf_counter()
    with _undisturbed():
        world = World(seed, trace=trace)
        try:
            world.run(_scenario(world))
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


def draw_chains(rng: Random) -> list[Chain]:
    digests = (DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC)
    return [Chain(f"chain{index}", rng.choice(SIZES), rng.choice(digests)) for index in range(rng.choice((1, 1, 2)))]


async def _scenario(world: World) -> None:
    rng = world.rng("plan")
    chains = draw_chains(rng)
    for _ in range(max(chain.sizes[0] for chain in chains) + rng.choice((1, 1, 2))):
        world.add_node()
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002, 0.01))
    for machine in world.nodes:
        machine.clock.offset_ms = rng.randint(-60_000, 60_000)
    await world.format()
    for node in world.nodes:
        node.start()
    workload = Workload(world, rng, chains)
    workload.contested = rng.random() < CONTESTED_SHARE
    await _all_serve(world, "at the start")
    _start_programs(workload, rng)
    may_damage = min(chain.sizes[2] for chain in chains) >= 2
    nemesis = Nemesis(world, world.rng("nemesis"), may_damage=may_damage)
    if workload.contested:
        world.reached("scenario.contested")
        nemesis.contest()
    await nemesis.run(rng.uniform(0.8, 3.0))
    await _heal(world, nemesis)
    await asyncio.sleep(rng.uniform(0, 1.0))
    workload.over = True
    await workload.finished(HEALTHY_S)
    await _verify(world, workload, rng)
    world.checkers.final_state()


def _start_programs(workload: Workload, rng: Random) -> None:
    for chain in workload.chains:
        for index in range(rng.choice((1, 2, 2))):
            workload.add_role(f"w{index}-{chain.name}", partial(workload.write, chain))
        for index in range(rng.choice((0, 1, 1))):
            workload.add_role(f"r{index}-{chain.name}", partial(workload.tail, chain))
    for index in range(2 if workload.contested else rng.choice((0, 0, 1, 2))):
        workload.add_role(f"recoverer{index}", workload.recover_some)
    for index in range(rng.choice((0, 0, 0, 2))):
        workload.add_role(f"auto{index}", workload.replicate)
    if rng.random() < 0.3:
        workload.add_role("deleter", workload.delete_some)


async def _all_serve(world: World, when: str) -> None:
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
    await _all_serve(world, "after healing")


async def _verify(world: World, workload: Workload, rng: Random) -> None:
    """With everything healthy, but perhaps an ack quorum less one of the nodes: every ledger is whole, and writing
    goes on."""
    damaged = any(node.damaged or node.refused is not None for node in world.nodes)
    smallest = min(chain.sizes[2] for chain in workload.chains)
    spare = len(world.nodes) > max(chain.sizes[0] for chain in workload.chains)
    if smallest >= 2 and not damaged and spare and rng.random() < 0.5:
        world.reached("end.node-away")
        rng.choice(world.nodes).kill(power=rng.random() < 0.5)
    client = world.add_client("verifier")
    client.start()
    task = client.spawn(_verify_all(world, workload, client))
    await asyncio.wait_for(task, 2 * HEALTHY_S)


async def _verify_all(world: World, workload: Workload, client: Client) -> None:
    for chain in workload.chains:
        for ledger_id in chain.ledgers:
            if not world.checkers.truth(ledger_id).deleted:
                await _patiently(world, f"reading ledger {ledger_id}", partial(_read_all, world, client, ledger_id))
        await _patiently(world, "writing", partial(_write_and_read, world, workload, client, chain))


async def _patiently(world: World, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
    """Progress must follow: repeat for HEALTHY_S at most."""
    deadline = world.loop.time() + HEALTHY_S
    while True:
        try:
            await attempt()
            return
        except InvariantViolation as error:
            world.checkers.fail(f"{what}: {error!r}")
        except DistributedLogError as error:
            if world.loop.time() > deadline:
                world.checkers.fail(f"no progress: {what} fails {HEALTHY_S} s after healing: {error!r}")
        await asyncio.sleep(0.3)


async def _read_all(world: World, client: Client, ledger_id: int) -> None:
    reader = await client.ledgers.open(ledger_id, password=PASSWORD, recover=True)
    try:
        end = reader.last_add_confirmed
        world.checkers.end_seen(client.name, ledger_id, end, reader.length)
        if end >= 0:
            entries = await reader.read(0, end)
            for entry in entries:
                world.checkers.entry_read(client.name, ledger_id, entry.entry_id, bytes(entry.payload))
            if [entry.entry_id for entry in entries] != list(range(end + 1)):
                world.checkers.fail(f"reading ledger {ledger_id} gave other entries than 0 to {end} (I4)")
    finally:
        await reader.close()


async def _write_and_read(world: World, workload: Workload, client: Client, chain: Chain) -> None:
    writer = await workload._take_over(chain, client)
    rng = world.rng(f"verify/{chain.name}")
    await asyncio.gather(*(workload._add(writer, client, rng) for _ in range(3)))
    await workload._close(writer, client)
    await _read_all(world, client, writer.ledger_id)
