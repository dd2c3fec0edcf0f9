"""Runs of any kind: played to their end, and many of them, on several processors, counted.

What a run is, its kind says: `seeds`, `fleets`, `simulation.cold.runs`. Each is drawn from a seed, in a world of its
own, so runs in several processes share nothing but the count.
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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from metadata.foundation.errors import is_a_bug
from simulation.cluster import World
from simulation.environment.loop import unheard

PROGRESS_EVERY = 250
"""Runs between two lines that say how far it has come."""
COLLECT_EVERY = 25
"""Runs between two garbage collections, which are off within a run."""
LIMIT_S = 600.0
"""Virtual time that a run may take, unless its kind says less."""
_RUNS = itertools.count(1)
"""Counts the runs of this process."""
_BEGINNING_S = 1000.0
"""Virtual time at which a world begins."""


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


R = TypeVar("R", bound=RunReport)
W = TypeVar("W", bound=World)


# ---------------------------------------------------------------------- one run


def play(
    report: R, made: Callable[[], W], scenario: Callable[[W], Coroutine[object, None, None]], limit_s: float = LIMIT_S
) -> R:
    """Play a scenario in a new world, to its end or to its first violation; return the report, with what came of it."""
    began = time.perf_counter()
    with undisturbed() as swallowed:
        world = made()
        try:
            world.run(scenario(world), limit_s=limit_s)
        except Exception as error:
            violation = world.ledger_checkers.violation
            report.failure = str(violation) if violation is not None else trouble(world, swallowed)
            report.failure = report.failure or f"{type(error).__name__}: {error}"
        report.trace_sum = world.trace.sum
        report.trace = world.trace.lines
        report.points = world.points
        report.operations = world.history.counts()
        report.virtual_s = world.loop.time() - _BEGINNING_S
        report.steps = world.loop.steps
        report.failure = report.failure or trouble(world, swallowed)
    report.real_s = time.perf_counter() - began
    return report


class SwallowedErrors(logging.Handler):
    """Notes errors that no fault brings, and that were caught and logged so that work goes on: in a run they are bugs.

    Nothing else of what is logged is kept: it is expected trouble.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the error of a line that has one."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and is_a_bug(error) and not isinstance(error, asyncio.TimeoutError):
            self.notes.append(f"{record.name}: {record.msg}: {error!r}")


@contextmanager
def undisturbed() -> Iterator[SwallowedErrors]:
    """Keep garbage collection away from the middle of a run, whose moments are not the seed's; and log lines from all
    but the handler that it yields.
    """
    root = logging.root
    enabled, disabled_level, handlers = gc.isenabled(), root.manager.disable, root.handlers
    swallowed = SwallowedErrors()
    gc.disable()
    logging.disable(logging.WARNING)
    root.handlers = [swallowed]
    try:
        yield swallowed
    finally:
        root.handlers = handlers
        logging.disable(disabled_level)
        if enabled:
            gc.enable()


def trouble(world: World, swallowed: SwallowedErrors) -> str | None:
    """Return what went wrong in the background, where no caller was waiting."""
    notes = [*world.fabric.failures, *world.loop.unhandled, *swallowed.notes]
    return f"unhandled: {notes[0]}" if notes else None


# ---------------------------------------------------------------------- many runs


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


def run_many(
    run: Callable[[int], R],
    seeds: Iterable[int],
    *,
    processes: int = 1,
    heard: Callable[[R], None] | None = None,
    progress: Callable[[RunsSummary], None] | None = None,
    stop_at: int = 10,
) -> RunsSummary:
    """Run them all, or until `stop_at` of them have failed.

    Args:
        run: a function of a module, or a partial one: it is sent to other processes.
        seeds: one run each, in no particular order where there are several processes.
        heard: called with each report.
        progress: called now and then.
    """
    summary = RunsSummary()
    for report in _reports(run, seeds, processes):
        summary.add(report)
        if heard is not None:
            heard(report)
        if len(summary.failures) >= stop_at:
            break
        if progress is not None and summary.runs % PROGRESS_EVERY == 0:
            progress(summary)
    with unheard():
        gc.collect()  # what the runs left behind goes now, not in the middle of something else
    return summary


def _reports(run: Callable[[int], R], seeds: Iterable[int], processes: int) -> Iterator[R]:
    one = partial(_run_and_collect, run)
    if processes <= 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=gc.disable, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=10)


def _run_and_collect(run: Callable[[int], R], seed: int) -> R:
    report = run(seed)
    if next(_RUNS) % COLLECT_EVERY == 0:
        with unheard():
            gc.collect()
    return report


def print_failure(report: RunReport, command: str) -> None:
    """Print a failing seed, and the command with which it is seen again."""
    print(f"seed {report.seed}: {report.failure}\n    {command}", flush=True)


def print_progress(summary: RunsSummary) -> None:
    """Print how far it has come."""
    print(f"{summary.runs} runs so far, {len(summary.failures)} failed", flush=True)


def print_summary(summary: RunsSummary, *, began: float) -> None:
    """Print counts, times and the points that were reached."""
    wall_s = time.monotonic() - began
    print(
        f"{summary.runs} runs, {len(summary.failures)} failed; {summary.virtual_s / 3600:.1f} hours of virtual time, "
        f"{summary.real_s:.0f} s of processors, {wall_s:.0f} s on the clock"
    )
    print("points: how often, and in how many runs")
    for point, times in sorted(summary.points.items()):
        print(f"    {point:34}{times:>10}{summary.runs_with[point]:>10}")
    print("operations:")
    for kind, times in sorted(summary.operations.items()):
        print(f"    {kind:34}{times:>10}")
    sys.stdout.flush()
