"""A run with cold storage, drawn from a seed.

A run writes, rolls, truncates, moves and reads for some virtual seconds while things go wrong; then everything heals,
the movers come to rest, the log is read by a new client, and the bucket is swept and looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest import mock

from dlspark.cold.moving import daemon, planning, sweeping
from dlspark.cold.moving.log_mover import LogMover
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.settings.settings import Settings
from dlspark.objects.memory_faults import ObjectFault
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.namespaces import NamespaceStore
from simulation.checkers.logs import NAMESPACE_PATH
from simulation.cluster import ClientMachine
from simulation.cold.checker import SECOND_MS
from simulation.cold.programs import LOG, ColdPrograms
from simulation.cold.world import ColdWorld, drawn_settings
from simulation.environment.loop import Process
from simulation.runs.many import RunReport, play
from simulation.runs.seeds import all_serve
from simulation.tier import SERVERS, QuietNode

NODES = 3
WORK_S = (6.0, 14.0)
HEALTHY_S = 60.0
STEPS = 400
"""A process that is struck is struck right before one of so many of its next callbacks."""
COLD_POINTS = (
    "cold.finished",
    "cold.hot_deleted",
    "cold.cold_delete_started",
    "cold.unit-gone",
    "cold.expired",
    "cold.truncated",
    "cold.mover-killed",
    "cold.mover-stood-still",
    "cold.swept",
)


class ColdNemesis:
    """What goes wrong: movers, readers and the writer die and stand still, answers of the metadata store are lost, the
    bucket refuses, loses, tears and is late."""

    def __init__(self, world: ColdWorld, programs: ColdPrograms, rng: Random) -> None:
        self._world = world
        self._programs = programs
        self._rng = rng
        self.over = False
        every: list[Callable[[], None]] = [self._kill, self._stop, self._lose_answers, self._store_fails]
        self._kinds = rng.sample(every, rng.randint(1, len(every)))
        self._mean_s = rng.choice((0.2, 0.5, 1.0))

    async def run(self) -> None:
        """Strike until it is over."""
        while not self.over:
            await asyncio.sleep(self._rng.expovariate(1 / self._mean_s))
            if not self.over:
                self._rng.choice(self._kinds)()

    def _machine(self) -> ClientMachine:
        machines = self._programs.machines
        movers = [one for one in machines if one.name.startswith("mover")]
        return self._rng.choice(movers if self._rng.random() < 0.7 else machines)

    def _kill(self) -> None:
        machine = self._machine()
        process = machine.process
        if process is not None and not process.dead:
            process.at_step(self._rng.randint(1, STEPS), machine.kill)
            if machine.name.startswith("mover"):
                self._world.reached("cold.mover-killed")

    def _stop(self) -> None:
        machine = self._machine()
        process = machine.process
        if process is None or process.halted:
            return
        length_s = self._rng.choice((0.1, 1.0, 3.0, 6.0))

        def stop() -> None:
            machine.pause()
            if machine.name.startswith("mover"):
                self._world.reached("cold.mover-stood-still")
            self._world.loop.call_later(length_s, self._resume, machine, process, context=self._world.context)

        process.at_step(self._rng.randint(1, STEPS), stop)

    def _resume(self, machine: ClientMachine, process: Process) -> None:
        if machine.process is process:
            machine.resume()

    def _lose_answers(self) -> None:
        service = self._world.service
        service.lose_reply, service.lose, service.refuse = (self._rng.choice((0.0, 0.05, 0.2)) for _ in range(3))
        self._world.loop.call_later(self._rng.uniform(0.2, 2.0), self._calm, context=self._world.context)

    def _calm(self) -> None:
        service = self._world.service
        service.lose_reply = service.lose = service.refuse = 0.0

    def _store_fails(self) -> None:
        faults = self._world.faults
        faults._rates = {fault: self._rng.choice((0.0, 0.05, 0.3)) for fault in ObjectFault}
        self._world.loop.call_later(self._rng.uniform(0.2, 3.0), faults.stop, context=self._world.context)

    def heal(self) -> None:
        """Have nothing go wrong any more."""
        self.over = True
        self._calm()
        self._world.faults.stop()
        self._world.bucket.settle()
        for machine in self._programs.machines:
            if machine.process is not None:
                machine.process.trap = None
                machine.resume()


def run_cold(seed: int, *, trace: bool = False) -> RunReport:
    """Return one run, to its end or to its first violation."""
    with short_times():
        return play(RunReport(seed), lambda: ColdWorld(f"cold-{seed}", trace=trace), _scenario, limit_s=300.0)


def cold_command(seed: int) -> str:
    """Return how to see one run again."""
    return f"python -m simulation --cold --seed {seed} --trace"


@contextmanager
def short_times() -> Iterator[None]:
    """Have the product count an hour of retention as a second, and look at logs often."""
    looks = {"LOOK_S": 2.0, "LOGS_S": 1.0, "LONGEST_PAUSE_S": 1.0, "FIRST_PAUSE_S": 0.1, "SWEEP_S": 1e6, "AUDIT_S": 1e6}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(planning, "HOUR_MS", SECOND_MS))
        for name, value in looks.items():
            stack.enter_context(mock.patch.object(daemon, name, value))
        yield


async def _scenario(world: ColdWorld) -> None:
    rng = world.rng("plan")
    for number in range(NODES):
        world.nodes.append(QuietNode(world, f"b{number}"))
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002))
    world.service.session_timeout_s = 2.0
    await world.format()
    for node in world.nodes:
        node.start()
    await all_serve(world, "at the start")
    settings = world.cold_checker.settings = drawn_settings(rng)
    await _bind(world, settings)
    programs = ColdPrograms(world, settings, rng)
    nemesis = ColdNemesis(world, programs, world.rng("nemesis"))
    programs.start()
    striking = world.start(nemesis.run())
    await asyncio.sleep(rng.uniform(*WORK_S))
    nemesis.heal()
    await striking
    programs.over.set()
    await _come_to_rest(world, programs, settings)
    programs.reading_over.set()
    for machine in programs.machines:
        if machine.running:
            machine.kill()
    await asyncio.wait_for(programs.ended(), HEALTHY_S)


async def _bind(world: ColdWorld, settings: Settings) -> None:
    client = world.add_client("operator")
    client.begin()
    await client.spawn(NamespaceStore(client.session, NAMESPACE_PATH).bind(Binding.for_cluster(SERVERS)))
    namespace = await client.spawn(world.namespace(client, settings))
    await client.spawn(namespace.create_log(LOG))
    await client.spawn(namespace.close())
    client.kill()


async def _come_to_rest(world: ColdWorld, programs: ColdPrograms, settings: Settings) -> None:
    """Have the movers finish what can be finished, then judge the log and the bucket."""
    await asyncio.sleep(4.0)
    for machine in programs.machines:
        if machine.name.startswith("mover") and machine.running:
            machine.kill()
    client = world.add_client("verifier")
    client.start()
    await asyncio.wait_for(client.spawn(_verify(world, client, programs, settings)), HEALTHY_S)


async def _verify(world: ColdWorld, client: ClientMachine, programs: ColdPrograms, settings: Settings) -> None:
    namespace = await world.namespace(client, settings)
    cold = ColdStore(namespace.services.logs)
    stores = MoverStores(world.open_store)
    mover = LogMover(namespace.services, cold, stores, LOG, lambda: settings, "verifier")
    for _ in range(400):
        # The movers were killed: their locks go with their sessions.
        done = await mover.run(at_once=True)
        if done.problems:
            world.ledger_checkers.fail(f"in a healthy world the mover cannot go on: {done.problems}")
        if done.busy is None and not (done.moved or done.hot_deleted or done.cold_deleted):
            break
        await asyncio.sleep(0.05)
    else:
        world.ledger_checkers.fail("the movers do not come to rest")
    if await cold.attempts(LOG):
        world.ledger_checkers.fail("attempts are left")
    await programs.look(namespace)
    world.bucket.settle()
    swept = await sweeping.sweep_log(namespace.services, cold, stores, LOG, settings, min_age_s=0)
    if swept.objects or swept.uploads:
        world.reached("cold.swept")
    world.cold_checker.tidy()
    await programs.look(namespace)
    await stores.close()
    await namespace.close()
