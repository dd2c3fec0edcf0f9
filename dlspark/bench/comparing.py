"""Several systems under several workloads, one after the other, and what came of it as a table and a plot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

from dlspark.bench.consuming import words_of
from dlspark.bench.ending import ENDING, Handlers
from dlspark.bench.latencies import PERCENTILES
from dlspark.bench.measuring import RunResult, measurement
from dlspark.bench.rate_search import Bound
from dlspark.bench.systems import System
from dlspark.bench.workloads import BenchWorkload
from dlspark.core.runtime import new_event_loop
from metadata.foundation.errors import CallerError

_T = TypeVar("_T")
COLUMNS: Final = (
    *("system", "workload", "offered/s", "achieved/s", "pub p50", "p95", "p99", "p99.9", "max"),
    *("e2e p50", "e2e p95", "e2e p99", "e2e p99.9", "e2e max", "backlog", "lost", "twice"),
    *("us/rec write", "us/rec read", "us/rec servers"),
)
SPARE: Final = ("e2e max", "max", "e2e p95", "p95", "e2e p99.9", "p99.9", "us/rec read")
"""Columns that a narrow terminal can do without."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run?"""

    workloads: Sequence[BenchWorkload]
    rate: float | None
    """Records a second; None: the highest rate is looked for."""
    seconds: float
    """That are measured of each run."""
    warm_up_s: float
    """That go before them at the same rate."""
    bound: Bound


async def compare(
    systems: Sequence[System],
    plan: Plan,
    results: list[RunResult],
    tell: Callable[[RunResult], None],
    tell_failure: Callable[[str], None],
) -> None:
    """Run all workloads on all systems. `results` gets what is measured as it comes, so that it is there if all is
    cancelled; `tell` hears of each run, those of a search too.

    A system that fails under a workload has no result there, unless it fails behind that: `tell_failure` hears why, and
    the others go on.
    """
    for workload in plan.workloads:
        for system in systems:
            try:
                async with measurement(system, workload) as made:
                    if plan.rate is None:
                        results.append(await made.at_most(plan.seconds, plan.warm_up_s, plan.bound, tell))
                    else:
                        results.append(await made.at_rate(plan.rate, plan.seconds, plan.warm_up_s))
                        tell(results[-1])
            except Exception as error:
                tell_failure(f"{system.name}, {workload.name}: {words_of(error)}")


def run_interruptibly(work: Coroutine[Any, Any, _T]) -> _T:
    """Run on a loop like the product's; Ctrl-C or SIGTERM cancels the work, which then ends in order.

    Raises KeyboardInterrupt when it has ended.
    """
    loop = new_event_loop()
    task = loop.create_task(work)
    before = Handlers()
    try:
        asyncio.set_event_loop(loop)
        for number in ENDING:
            loop.add_signal_handler(number, task.cancel)
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
        before.restore()  # the loop has set what the system does by default: SIGTERM would leave a sandbox behind
        asyncio.set_event_loop(None)
        loop.close()


def table_rows(results: Sequence[RunResult]) -> Iterator[list[object]]:
    """Yield a row of `COLUMNS` for each result."""
    for one in results:
        yield [
            *(one.system, one.workload, rate_text(one), round(one.achieved)),
            *(_ms(one.publish_ms[name]) for name in (*PERCENTILES, "max")),
            *(_ms(one.end_to_end_ms[name]) for name in (*PERCENTILES, "max")),
            *(one.backlog, one.lost, one.twice),
            *(_micros(value) for value in (one.writing_us, one.reading_us, one.servers_us)),
        ]


def rate_text(result: RunResult) -> str:
    """Return the offered rate; the highest that was sustained is marked, and one that was not."""
    mark = " (highest)" if result.is_maximum else " (not sustained)" if result.steps else ""
    return f"{result.offered:.0f}{mark}"


def notes(results: Sequence[RunResult]) -> Iterator[str]:
    """Yield lines below the table: durability of each system, and what was refused."""
    about = {one.system: one.about for one in results}
    yield "times: milliseconds from when a record was due; pub: until acknowledged; e2e: until delivered"
    for system, text in about.items():
        yield f"{system}: {text}"
    if len(set(about.values())) > 1:
        yield "the systems are not alike in durability: see above"
    for one in results:
        if one.refused or one.not_handed_over:
            why = f": {one.reason}" if one.reason else ""
            yield (
                f"{one.system}, {one.workload}: {one.refused} records refused or not answered{why}; "
                f"{one.not_handed_over} due and not handed over in time"
            )


def is_wrong(result: RunResult) -> bool:
    """Return whether records were lost or came twice."""
    return bool(result.lost or result.twice)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _micros(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


# ---------------------------------------------------------------------- the plot


def check_plot(path: Path) -> None:
    """Raise CallerError unless a plot can be drawn there: before anything is started."""
    if find_spec("matplotlib") is None:
        raise CallerError(
            "a plot needs matplotlib; nothing was started", advice="Install it with: pip install 'dlspark[bench]'"
        )
    if path.suffix.lower() != ".svg":
        raise CallerError(f"{path.name}: plots are SVG; nothing was started", advice="Name a file that ends with .svg")
    if not path.absolute().parent.is_dir():
        raise CallerError("there is no such folder; nothing was started", path=str(path.absolute().parent))


def plot(results: Sequence[RunResult], path: Path) -> None:
    """Draw percentiles of each result; and for searches what each rate has come to."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    searches = [one for one in results if one.steps]
    figure, axes = pyplot.subplots(1, 3 if searches else 2, figsize=(15 if searches else 10, 5), squeeze=False)
    try:
        _draw_percentiles(axes[0][0], {_label(one): one.publish_ms for one in results}, "due to acknowledged")
        _draw_percentiles(axes[0][1], {_label(one): one.end_to_end_ms for one in results}, "due to delivered")
        if searches:
            _draw_rates(axes[0][2], searches)
        figure.tight_layout()
        figure.savefig(path, format="svg")
    finally:
        pyplot.close(figure)


def _label(one: RunResult) -> str:
    return f"{one.system}, {one.workload}, {one.offered:.0f}/s"


def _draw_percentiles(axes: Any, lines: Mapping[str, Mapping[str, float]], title: str) -> None:
    names = [*PERCENTILES, "max"]
    for label, values in lines.items():
        axes.plot(names, [max(values[name], 0.01) for name in names], marker="o", label=label)
    axes.set(title=title, ylabel="milliseconds", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")


def _draw_rates(axes: Any, searches: Sequence[RunResult]) -> None:
    for one in searches:
        steps = sorted(one.steps, key=lambda step: step["offered"])
        achieved, p99 = [step["achieved"] for step in steps], [max(step["p99"], 0.01) for step in steps]
        axes.plot(achieved, p99, marker="o", label=f"{one.system}, {one.workload}")
    axes.set(title="rates tried", xlabel="achieved records/s", ylabel="p99, due to acknowledged, ms", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
