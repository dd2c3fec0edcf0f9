"""Runs of thin clients and write proxies: a fleet drawn from a seed, faults, healing, and what every log holds then.

    kind         what goes wrong                                              what is measured
    calm         nothing: operators move logs, proxies leave and come back    how long a log has no acknowledgement
    failover     one proxy at a time crashes, stands still, or is cut off     from then to its successor's first one
    rough        anything, several things at a time                           -

In two fifths of them readers follow the logs through read proxies, and in a third clients contend for one more log by
conditions.

In each of them every log must take writes again soon after the last fault, every client's records get their outcome,
the proxies end in order, and the logs hold what they must (`checkers.proxies`, `checkers.logs`, `checkers.ledgers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from simulation.cluster import World
from simulation.faults.tier_nemesis import TierNemesis
from simulation.reading_tier import ReadTier
from simulation.runs.many import RunReport, RunsSummary, play, print_failure, print_summary, run_many
from simulation.runs.seeds import all_serve
from simulation.tier import QuietNode
from simulation.workloads.conditional_writers import ConditionalWriters
from simulation.workloads.operators import Operator
from simulation.workloads.programs import HEALTHY_S
from simulation.workloads.proxy_readers import ProxyReaders
from simulation.workloads.thin_clients import ProxyWorkload

KINDS = ("calm", "failover", "failover", "rough", "rough", "rough", "rough", "rough")
READ_SHARE = 0.4
"""Of the runs, those with read proxies and readers."""
CONDITIONS_SHARE = 0.35
"""Of the runs, those with clients that write on conditions."""
NODES = 4
FAILOVERS = 2
QUIET_S = (0.1, 0.5)
ASKED_WITHIN_S = 0.3
"""A failover counts where a client had something to write so soon after the fault."""


@dataclass(slots=True)
class FleetReport(RunReport):
    """How did one run end? Times are virtual seconds."""

    kind: str = ""
    moves_s: list[float] = field(default_factory=list)
    """Of calm runs: the time without an acknowledgement, for each change of a log's owner."""
    failovers_s: list[tuple[str, float]] = field(default_factory=list)
    """Of runs of failovers: what went wrong, and the time beyond the session's timeout to the successor's first
    acknowledgement."""
    served_s: list[float] = field(default_factory=list)
    """From the end of all faults to each log's next acknowledged write."""


def run_fleet(seed: int, *, trace: bool = False) -> FleetReport:
    """Return one run, to its end or to its first violation."""
    report = FleetReport(seed)
    return play(report, lambda: World(f"fleet-{seed}", trace=trace), lambda world: _scenario(world, report))


async def _scenario(world: World, report: FleetReport) -> None:
    rng = world.rng("plan")
    report.kind = rng.choice(KINDS)
    world.reached(f"fleet.{report.kind}")
    read = rng.random() < READ_SHARE
    workload = ProxyWorkload(world, rng, report.kind, read=read)
    readers = ProxyReaders(workload, ReadTier(world, workload.settings, world.rng("reading"))) if read else None
    for number in range(NODES):
        world.nodes.append(QuietNode(world, f"b{number}"))
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002, 0.01))
    await world.format()
    for node in world.nodes:
        node.start()
    await all_serve(world, "at the start")
    await workload.prepare()
    workload.start_programs(rng)
    if rng.random() < CONDITIONS_SHARE:
        world.reached("fleet.conditions")
        ConditionalWriters(workload).start_programs()
    if readers is not None:
        world.reached("fleet.readers")
        await readers.prepare()
        readers.start_programs(world.rng("readers"))
    operator = Operator(workload, world.rng("operator"))
    nemesis = TierNemesis(workload.tier, world.rng("nemesis"), readers.tier if readers is not None else None)
    await asyncio.sleep(rng.uniform(*QUIET_S))
    if report.kind == "calm":
        await _plan(operator, workload)
    elif report.kind == "failover":
        await nemesis.fail_over(QUIET_S, FAILOVERS)
    else:
        await _trouble(operator, workload, nemesis)
    nemesis.heal()
    await all_serve(world, "after healing")
    await operator.end()
    await workload.served_again(world.loop.time())
    workload.over = True
    await workload.finished(2 * HEALTHY_S)
    await workload.tier.end()
    if readers is not None:
        await readers.to_the_end()
        await readers.tier.end()
    await _verify(world, workload)
    _measure(report, workload, nemesis)


async def _plan(operator: Operator, workload: ProxyWorkload) -> None:
    """Do what operators do, one thing after the other."""
    rng = workload.world.rng("planned")
    plans = (operator.move, operator.move, operator.move, operator.restart, operator.balance, operator.drain)
    await operator.begin()
    for _ in range(rng.randint(4, 8)):
        await asyncio.sleep(rng.uniform(0, 0.2))
        await rng.choice(plans)()


async def _trouble(operator: Operator, workload: ProxyWorkload, nemesis: TierNemesis) -> None:
    """Make trouble: faults, with operators at work in half of the runs."""
    world = workload.world
    rng = world.rng("trouble")
    moves: list[asyncio.Task[None]] = []
    if rng.random() < 0.5:
        await operator.begin()
        moves.append(world.start(_move_on(operator, workload)))
    await nemesis.run(rng.uniform(1.5, 3.5))
    for task in moves:
        task.cancel()


async def _move_on(operator: Operator, workload: ProxyWorkload) -> None:
    rng = workload.world.rng("moves")
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        number = rng.random()
        if number < 0.15:
            workload.world.reached("proxy.leaves")
            rng.choice(workload.tier.proxies).leave()
        elif number < 0.3:
            await rng.choice((operator.balance, operator.drain))()
        else:
            await operator.move()


async def _verify(world: World, workload: ProxyWorkload) -> None:
    client = world.add_client("verifier")
    client.start()
    await asyncio.wait_for(client.spawn(workload.verify(client)), 3 * HEALTHY_S)
    world.ledger_checkers.final_state()


def _measure(report: FleetReport, workload: ProxyWorkload, nemesis: TierNemesis) -> None:
    report.served_s = workload.served_s
    turnovers = workload.tier.checkers.turnovers
    if report.kind == "calm":
        report.moves_s = [one.pause_s for one in turnovers]
    elif report.kind == "failover":
        for fault in nemesis.disablements:
            for one in turnovers:
                met = one.last_s <= fault.since_s <= one.first_s and one.asked_s < fault.since_s + ASKED_WITHIN_S
                if one.before is fault.process and met:
                    beyond_s = one.first_s - fault.since_s - workload.session_timeout_s
                    report.failovers_s.append((fault.kind, beyond_s))


# ---------------------------------------------------------------------- many runs


def run_fleets(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    stop_at: int = 10,
    progress: Callable[[RunsSummary], None] | None = None,
) -> list[FleetReport]:
    """Return all of these runs, or until `stop_at` of them have failed; a failure is printed with its command."""
    done: list[FleetReport] = []

    def heard(report: FleetReport) -> None:
        done.append(report)
        if report.failure is not None:
            print_failure(report, fleet_command(report.seed))

    run_many(run_fleet, seeds, processes=processes, heard=heard, progress=progress, stop_at=stop_at)
    return done


def fleet_command(seed: int) -> str:
    """Return how to see one run again."""
    return f"python -m simulation --proxies --seed {seed} --trace"


def print_fleets(reports: Sequence[FleetReport], *, began: float) -> RunsSummary:
    """Print counts, times, and the points that were reached; return the summary of all runs."""
    summary = RunsSummary()
    for report in reports:
        summary.add(report)
    print_summary(summary, began=began)
    print(fleet_table(reports))
    return summary


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so many of the others do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]


def fleet_table(reports: Iterable[FleetReport]) -> str:
    """Return the times of moves, failovers and of being served again, as percentiles."""
    measured: dict[str, list[float]] = {}
    for report in reports:
        measured.setdefault("planned change of owner", []).extend(report.moves_s)
        for kind, beyond_s in report.failovers_s:
            measured.setdefault(f"{kind}: beyond the timeout", []).append(beyond_s)
        measured.setdefault("served again after faults", []).extend(report.served_s)
    lines = [f"{'milliseconds':30}{'count':>8}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}"]
    for what, values in sorted(measured.items()):
        if values:
            shown = [percentile(values, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
            lines.append(f"{what:30}{len(values):>8}" + "".join(f"{one:>9.0f}" for one in shown))
    return "\n".join(lines)
