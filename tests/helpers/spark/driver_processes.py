"""Drivers that need no JVM (`sink_driver`), as processes that a test starts and kills."""

from __future__ import annotations

import json
import os
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from helpers.spark.sink_driver import Plan, run_driver
from metadata.foundation import fault_points

SESSION_VARIABLE = "DLSPARK_SET_zkSessionTimeoutSeconds"
SESSION_TIMEOUT_S = "4"
"""A killed process's lock on a log ends soon."""
PATIENCE_S = 90


class Spawner:
    """Starts drivers as processes and sees to it that none is left."""

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context
        self._started: list[ForkServerProcess] = []

    def __call__(self, plan: Plan, seed: int, environment: dict[str, str] | None = None) -> ForkServerProcess:
        # The fork server has the environment of the test that used it first: as whom a test acts is in this one's.
        own = {**os.environ, **(environment or {})}
        process = self._context.Process(target=drive, args=(plan, seed, own))
        process.start()
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.join(10)
            process.close()


def drive(plan: Plan, seed: int, environment: dict[str, str]) -> None:
    """Be a driver's process: the environment is set first, as Spark's would be."""
    os.environ.update({SESSION_VARIABLE: SESSION_TIMEOUT_S, **environment})
    run_driver(plan, seed)


def finish(process: ForkServerProcess) -> int | None:
    process.join(PATIENCE_S)
    return process.exitcode


def fault(point: str, do: str, flag: Path, after: int = 0, until: Path | None = None) -> dict[str, str]:
    """Return the environment where `point` strikes once, on its `after`-th passage but one; `wait` ends at `until`."""
    action = {"do": do, "flag": str(flag), "after": after, **({"until": str(until)} if until is not None else {})}
    return {fault_points.VARIABLE: json.dumps({point: action})}
