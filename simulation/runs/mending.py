"""Rounds of mending: ledgers that were placed without a rule over regions, while auto-recovery moves their copies.

A round is a function of its seed: real storage nodes in three regions, writers that place at random, two processes of
auto-recovery with the rule, and the faults that other rounds have. What must hold beside what the checkers watch (I1
above all: nothing acknowledged is lost, although copies are moved, and nodes collect those that nobody names any more):
once all is healthy, every closed ledger comes to keep the rule, and is read whole.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from metadata.bookkeeper.ledgers import LedgerStore
from simulation.cluster import CLIENT_SETTINGS, PORT, ClientMachine, World
from simulation.environment.network import SimulatedNetwork
from simulation.faults.nemesis import Nemesis
from simulation.runs.many import RunReport, play
from simulation.runs.seeds import all_serve, heal, verify
from simulation.workloads.ledgers import LedgerWorkload, draw_chains
from simulation.workloads.programs import HEALTHY_S
from storage_node.autorecovery.auditor import PlacementCheck, PlacementReport
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.placement import PlacementSettings

REGIONS: Final = ("eu", "us", "asia")
NODES_A_REGION: Final = 3
RULE: Final = PlacementSettings(
    ensemble_placement_policy="regionaware",
    repp_dns_resolver_class="racks",  # from the hosts' names
    enforce_min_num_fault_domains_for_write=True,
)


@dataclass(slots=True)
class MendingReport(RunReport):
    """How did one round end?"""

    closed: int = 0
    """Closed ledgers at its end, all of which keep the rule."""
    mended: int = 0
    """Fragments whose copies were moved by workers that lived to the end of a fragment."""


class MendingWorkload(LedgerWorkload):
    """Chains of ledgers, and auto-recovery that knows a rule over regions which the writers do not."""

    def __init__(self, world: World, rng: Random, outcome: MendingReport) -> None:
        # Of which each write set can lie in two regions.
        chains = draw_chains(rng)
        super().__init__(
            world, [replace(chain, sizes=rng.choice(((3, 3, 2), (4, 3, 2), (3, 2, 2)))) for chain in chains]
        )
        self._outcome = outcome

    def start_programs(self, rng: Random) -> None:
        """Add the programs of other rounds, and two processes of auto-recovery."""
        super().start_programs(rng)
        for index in range(2):
            self.add_program(f"mender{index}", self.replicate)

    async def replicate(self, client: ClientMachine) -> None:
        """Run auto-recovery that moves copies: all of a round does, for an auditor without the key checks nothing."""
        daemon = AutoRecovery(
            AutoRecoverySettings(
                open_ledger_grace_period_ms=1_500,
                failed_ledger_lock_period_ms=500,
                rereplicate_backoff_ms=200,
                periodic_placement_check_interval_s=1,
                repair_placement=True,
                client=replace(client.settings, placement=RULE),
            ),
            client.session,
            bookie_id=f"{client.name}:{PORT}",
            network=SimulatedNetwork(self.world.fabric),
            clock=client.clock,
            rng=self.world.rng(f"mend/{client.name}/{client.runs}"),
        )
        await daemon.start()
        had = 0
        while not self.over and not daemon.failed.is_set():
            await asyncio.sleep(0.1)
            self._outcome.mended += daemon.worker.mender.mended - had
            had = daemon.worker.mender.mended
        if daemon.failed.is_set():
            self.world.ledger_checkers.fail(f"auto-recovery gave up: {daemon.failure!r}")
        await daemon.stop()

    async def all_keep_the_rule(self) -> None:
        """Wait until every closed ledger keeps the rule: with all healthy, each must."""
        client = self.world.add_client("judge", replace(CLIENT_SETTINGS, placement=RULE))
        client.start()
        deadline = self.world.loop.time() + HEALTHY_S
        while True:
            report = await client.spawn(self._check(client))
            self._outcome.closed = report.closed
            if report.not_adhering == report.unreadable == 0:
                break
            if self.world.loop.time() > deadline:
                self.world.ledger_checkers.fail(f"not mended {HEALTHY_S} s after healing: {report.named}")
            await asyncio.sleep(0.5)
        await client.spawn(client.ledgers.close())
        client.kill()

    async def _check(self, client: ClientMachine) -> PlacementReport:
        return await PlacementCheck(LedgerStore(client.session), client.ledgers.judge_placement).run()


def run_mending(seed: int, *, trace: bool = False) -> MendingReport:
    """Return one round, to its end or to its first violation."""
    report = MendingReport(seed)
    return play(report, lambda: World(f"mending/{seed}", trace=trace), partial(_scenario, report))


async def _scenario(report: MendingReport, world: World) -> None:
    rng = world.rng("plan")
    workload = MendingWorkload(world, rng, report)
    for number in range(len(REGIONS) * NODES_A_REGION):
        world.add_node(f"{REGIONS[number % len(REGIONS)]}-{rng.choice('xyz')}-n-")
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002))
    await world.format()
    for node in world.nodes:
        node.start()
    workload.draw_amount(rng)
    await all_serve(world, "at the start")
    await workload.prepare()
    workload.start_programs(rng)
    nemesis = Nemesis(world, world.rng("nemesis"), may_damage=False)
    await nemesis.run(rng.uniform(1.5, 4.0))
    await heal(world, nemesis)
    await workload.all_keep_the_rule()
    workload.over = True
    await workload.finished(HEALTHY_S)
    await verify(world, workload, rng)
    world.ledger_checkers.final_state()
