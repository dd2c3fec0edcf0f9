"""Many seeds, on several processors; and what they reached.

Each seed is a run of its own (`scenarios.run_seed`), so nothing is shared but the count.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from simulation.loop import unheard
from simulation.scenarios import Report, run_seed

COLLECT_EVERY = 25
"""Runs between two garbage collections, which are off within a run."""
_RUNS = itertools.count(1)
"""Counts the runs of this process."""
PROGRESS_EVERY = 250
"""Runs between two lines that say how far it has come."""


@dataclass(slots=True)
class Summary:
    """What many runs came to."""

    runs: int = 0
    points: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0
    failures: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.runs += 1
        self.points += report.points
        self.operations += report.operations
        self.virtual_s += report.virtual_s
        self.real_s += report.real_s
        if report.failure is not None:
            self.failures.append(report)

    def missing(self, points: Iterable[str]) -> list[str]:
        """Those of the named points that no run has reached."""
        return [point for point in points if not self.points[point]]


def replay_command(seed: int, *, logs: bool = False, names: bool = False) -> str:
    """How to see one run again."""
    kind = "--names " if names else "--logs " if logs else ""
    return f"python -m simulation {kind}--seed {seed} --trace"


def reports(seeds: Iterable[int], processes: int = 1, *, logs: bool = False, names: bool = False) -> Iterator[Report]:
    """One report a seed, in no particular order where there are several processes."""
    run = partial(_run_and_collect, logs=logs, names=names)
    if processes <= 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=10)


def _run_and_collect(seed: int, *, logs: bool, names: bool) -> Report:
    """One run; what it and those before it left behind goes after every `COLLECT_EVERY` of them."""
    report = run_seed(seed, logs=logs, names=names)
    if next(_RUNS) % COLLECT_EVERY == 0:
        with unheard():
            gc.collect()
    return report


def run_many(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    logs: bool = False,
    names: bool = False,
    failed: Callable[[Report], None] | None = None,
    progress: Callable[[Summary], None] | None = None,
    stop_at: int = 10,
) -> Summary:
    """Run them all, or until `stop_at` of them have failed. With `logs` every workload is logs, with `names`
    logs whose names move."""
    summary = Summary()
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


def print_failure(report: Report, *, logs: bool = False, names: bool = False) -> None:
    """A failing seed, and how to see it again."""
    print(
        f"seed {report.seed}: {report.failure}\n    {replay_command(report.seed, logs=logs, names=names)}", flush=True
    )


def print_progress(summary: Summary) -> None:
    """How far it has come."""
    print(f"{summary.runs} runs so far, {len(summary.failures)} failed", flush=True)


def print_summary(summary: Summary, *, began: float, verbose: bool) -> None:
    """Counts, times and the points that were reached."""
    wall_s = time.monotonic() - began
    print(
        f"{summary.runs} runs, {len(summary.failures)} failed; {summary.virtual_s / 3600:.1f} hours of virtual time, "
        f"{summary.real_s:.0f} s of processors, {wall_s:.0f} s on the clock"
    )
    if verbose:
        for name, counter in (("points", summary.points), ("operations", summary.operations)):
            print(f"{name}:")
            for key in sorted(counter):
                print(f"    {key:34}{counter[key]:>10}")
    sys.stdout.flush()
