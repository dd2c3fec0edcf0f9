"""Simulated clusters from the command line.

python -m simulation --seed 17 --trace          one run, with everything that happened
python -m simulation --seeds 2000 --first 300   many runs
python -m simulation --logs --seeds 2000        many runs with logs
python -m simulation --names --seeds 500        many runs with logs that are renamed and made again
python -m simulation --proxies --seeds 10000    fleets of write proxies and thin clients
python -m simulation --cold --seeds 10000       logs whose past moves into files, by movers that die
python -m simulation --regions --seeds 10000    one of three regions goes away, and comes back
python -m simulation --failovers 100            failovers of a log's writer, with the time they take
python -m simulation --mutations                take the safety rules out, one after the other
python -m simulation --proxies --mutations      those of proxies and their clients
python -m simulation --cold --mutations         those of cold storage
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from simulation import mutations
from simulation.cold.runs import COLD_POINTS, cold_command, run_cold
from simulation.faults.coverage import COVERAGE_POINTS, FLEET_POINTS, NAME_POINTS
from simulation.runs.failover import run_failovers, table
from simulation.runs.fleets import print_fleets, run_fleet, run_fleets
from simulation.runs.many import (
    R,
    RunReport,
    RunsSummary,
    print_failure,
    print_progress,
    print_summary,
    run_many,
)
from simulation.runs.regions import REGION_POINTS, RegionLoss, losses_table, region_command, run_region
from simulation.runs.seeds import replay_command, run_seed

ENOUGH_FOR_ALL_POINTS = 300
CHAINS_ALONE = ("ledger.", "net.late-answers", "reader.", "recovery.closed", "recovery.of-doubtful", "writer.")
"""Points of the workload that has chains of ledgers."""


def main() -> int:
    """Return 0 if every run passed, 1 if some did not, 2 if points were never reached, or a mutation was never
    noticed.
    """
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulated clusters")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--mutation", help="with --seed or --mutations: with this safety rule taken out")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--logs", action="store_true", help="with logs in every run, not in a quarter of them")
    parser.add_argument("--names", action="store_true", help="with logs that are renamed, deleted and made again")
    parser.add_argument("--proxies", action="store_true", help="write proxies and thin clients, not logs alone")
    parser.add_argument("--cold", action="store_true", help="with cold storage: movers and a bucket with faults")
    parser.add_argument("--regions", action="store_true", help="with three regions, one of which goes away")
    parser.add_argument("--failovers", type=int, help="run this many failovers of a log's writer instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutations", action="store_true", help="find the seeds that notice each missing safety rule")
    arguments = parser.parse_args()
    logs: bool = arguments.logs
    names: bool = arguments.names
    if arguments.failovers is not None:
        return _failovers(range(arguments.first, arguments.first + arguments.failovers))
    if arguments.proxies and not arguments.mutations:
        return _fleets(arguments)
    if arguments.cold and not arguments.mutations:
        return _colds(arguments)
    if arguments.regions:
        return _regions(arguments)
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.trace, arguments.mutation, logs, names)
    if arguments.mutations:
        return _mutations(arguments)
    return _logs_or_chains(arguments)


def _fleets(arguments: argparse.Namespace) -> int:
    seed, mutation = arguments.seed, arguments.mutation
    if seed is not None:
        with mutations.applied(mutation) if mutation else nullcontext():
            return _show(run_fleet(seed, trace=arguments.trace))
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    reports = run_fleets(seeds, processes=arguments.processes, progress=print_progress)
    summary = print_fleets(reports, began=began)
    if summary.failures:
        return 1
    return _never_reached(summary, FLEET_POINTS if len(seeds) >= ENOUGH_FOR_ALL_POINTS else ())


def _colds(arguments: argparse.Namespace) -> int:
    if arguments.seed is not None:
        with mutations.applied(arguments.mutation) if arguments.mutation else nullcontext():
            return _show(run_cold(arguments.seed, trace=arguments.trace))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _many(run_cold, cold_command, seeds, arguments.processes, COLD_POINTS)


def _regions(arguments: argparse.Namespace) -> int:
    if arguments.seed is not None:
        report = run_region(arguments.seed, trace=arguments.trace)
        code = _show(report)
        print(losses_table([report]))
        return code
    rounds: list[RegionLoss] = []
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    code = _many(run_region, region_command, seeds, arguments.processes, REGION_POINTS, rounds.append)
    print(losses_table(rounds))
    return code


def _one(seed: int, trace: bool, mutation: str | None, logs: bool, names: bool) -> int:
    with mutations.applied(mutation) if mutation else nullcontext():
        return _show(run_seed(seed, trace=trace, logs=logs, names=names))


def _show(report: RunReport) -> int:
    for line in report.trace or ():
        print(line)
    for point, count in sorted(report.points.items()):
        print(f"    {point:34}{count:>10}")
    ran = f"{report.virtual_s:.1f} virtual s, {report.steps} callbacks"
    print(f"seed {report.seed}: trace sum {report.trace_sum:08x}, {ran}")
    print(f"failed: {report.failure}" if report.failure else "passed")
    return int(report.failure is not None)


def _failovers(seeds: range) -> int:
    rounds = run_failovers(seeds)
    print(table(rounds))
    failed = [one for one in rounds if one.failure is not None]
    for one in failed:
        print(f"failover {one.seed}: {one.failure}")
    return int(bool(failed))


def _logs_or_chains(arguments: argparse.Namespace) -> int:
    logs, names = arguments.logs, arguments.names
    points: Sequence[str] = COVERAGE_POINTS
    if names:
        points = NAME_POINTS
    elif logs:
        points = [point for point in COVERAGE_POINTS if not point.startswith(CHAINS_ALONE)]
    return _many(
        partial(run_seed, logs=logs, names=names),
        partial(replay_command, logs=logs, names=names),
        range(arguments.first, arguments.first + arguments.seeds),
        arguments.processes,
        points,
    )


def _many(
    run: Callable[[int], R],
    command: Callable[[int], str],
    seeds: range,
    processes: int,
    points: Iterable[str],
    also: Callable[[R], None] = lambda report: None,
) -> int:
    began = time.monotonic()

    def heard(report: R) -> None:
        also(report)
        if report.failure is not None:
            print_failure(report, command(report.seed))

    summary = run_many(run, seeds, processes=processes, heard=heard, progress=print_progress)
    print_summary(summary, began=began)
    if summary.failures:
        return 1
    return _never_reached(summary, points if len(seeds) >= ENOUGH_FOR_ALL_POINTS else ())


def _never_reached(summary: RunsSummary, points: Iterable[str]) -> int:
    missing = summary.missing(points)
    if missing:
        print(f"never reached: {', '.join(missing)}")
    return 2 if missing else 0


def _mutations(arguments: argparse.Namespace) -> int:
    only: str | None = arguments.mutation
    groups = {"proxies": mutations.FLEET_MUTATIONS, "cold": mutations.COLD_MUTATIONS}
    chosen = next((names for group, names in groups.items() if getattr(arguments, group)), None)
    unnoticed = 0
    for name, mutation in mutations.MUTATIONS.items():
        wanted = only == name if only is not None else chosen is None or name in chosen
        if wanted:
            found = mutations.seeds_needed(name, arguments.seeds, arguments.first, logs=arguments.logs)
            unnoticed += found is None
            text = f"not noticed in {arguments.seeds} seeds" if found is None else f"{found[0] + 1} seeds: {found[1]}"
            print(f"{name:28} {mutation.rule:28} {text}", flush=True)
    return 2 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
