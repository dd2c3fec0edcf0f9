"""A system under a workload: at one rate, or at the highest that it sustains. This is the one way for every system."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from dlspark.bench.consuming import ConsumerProcess, CountDelivered, Delivered, Finish, MeasureWindow, consumer_process
from dlspark.bench.load import Load, MeasuredWindow
from dlspark.bench.processors import Spending
from dlspark.bench.rate_search import Bound, highest_rate
from dlspark.bench.systems import System
from dlspark.bench.workloads import SECOND_NS, BenchWorkload, Schedule
from metadata.foundation.errors import InvariantViolation, NotAppliedError

FIRST_RATE: Final = 10_000
"""Records a second with which the search for the highest rate begins."""
PRIMING_RATE: Final = 20
PRIMING_S: Final = 0.5
_LEAD_NS: Final = 50_000_000
"""From the decision to run until the first record is due."""


@dataclass(frozen=True)
class RunResult:
    """What came of one run: a system, a workload, a rate. Times are in milliseconds, from when a record was due."""

    system: str
    workload: str
    about: str
    seconds: float
    offered: float
    """Records a second that fell due."""
    achieved: float
    """Records a second that were acknowledged."""
    publish_ms: dict[str, float]
    """From due to acknowledged: p50, p95, p99, p99_9, max."""
    end_to_end_ms: dict[str, float]
    """From due to delivered, or until given up."""
    not_handed_over: int
    """Records that were due and for which there was no room until the end."""
    refused: int
    """Records that were answered with an error, and records without an answer."""
    backlog: int
    """Records that were acknowledged at the end and not delivered yet."""
    lost: int
    """Acknowledged and never delivered."""
    twice: int
    """Delivered more than once."""
    writing_us: float | None
    """Processor time of the process that writes, microseconds a record."""
    reading_us: float | None
    """The same of the one that reads."""
    servers_us: float | None
    """The same of all servers together; None where they are not known, or run elsewhere."""
    reason: str | None = None
    """Of the first refusal."""
    is_maximum: bool = False
    steps: list[dict[str, float]] = field(default_factory=list)
    """With the highest rate: what was tried, as `offered`, `achieved`, `p99`, `sustained` (1 or 0)."""

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return asdict(self)


class Measurement:
    """One system under one workload, ready for runs. Make it with `measurement`."""

    def __init__(self, system: System, workload: BenchWorkload, load: Load, consumers: ConsumerProcess) -> None:
        self._system = system
        self._workload = workload
        self._load = load
        self._consumers = consumers

    async def prime(self) -> None:
        """Have a few records of each log written and delivered: segments are begun, and readers have found them."""
        begin_ns = time.monotonic_ns()
        schedule = Schedule(PRIMING_RATE * self._workload.logs, self._workload.logs, begin_ns, PRIMING_S)
        published, _ = await self._load.run(schedule, MeasuredWindow(begin_ns, schedule.end_ns))
        if published.refused or published.without_outcome:
            why = published.reason or "they were not answered"
            raise NotAppliedError(f"{self._system.name} has not taken the first records: {why}")
        await self._consumers.ask(Finish(self._load.handed_over, self._load.unacknowledged))

    async def at_rate(self, rate: float, seconds: float, warm_up_s: float) -> RunResult:
        """Run at this rate: first to warm up, then for so many seconds that are measured."""
        begin_ns = time.monotonic_ns() + _LEAD_NS
        schedule = Schedule(rate, self._workload.logs, begin_ns, warm_up_s + seconds)
        window = MeasuredWindow(begin_ns + round(warm_up_s * SECOND_NS), schedule.end_ns)
        await self._consumers.ask(MeasureWindow(window))
        writing = Spending(None, window.from_ns, window.to_ns)
        servers = Spending(self._system.server_pids, window.from_ns, window.to_ns)
        published, backlog = await self._load.run(schedule, window, (writing, servers), self._backlog)
        finish = Finish(self._load.handed_over, self._load.unacknowledged)
        delivered: Delivered = await self._consumers.ask(finish)
        self._load.count_undelivered(delivered.latencies, delivered.missing, delivered.at_ns)
        count = published.acknowledged
        return RunResult(
            system=self._system.name,
            workload=self._workload.name,
            about=self._system.about,
            seconds=seconds,
            offered=published.due / window.seconds,
            achieved=count / window.seconds,
            publish_ms=published.latencies.as_ms(),
            end_to_end_ms=delivered.latencies.as_ms(),
            not_handed_over=published.not_handed_over,
            refused=published.refused + published.without_outcome,
            backlog=backlog,
            lost=delivered.lost,
            twice=delivered.twice,
            writing_us=_micros_each(writing.seconds, count),
            reading_us=_micros_each(delivered.processor_s, count),
            servers_us=_micros_each(servers.seconds, count),
            reason=published.reason,
        )

    async def _backlog(self) -> int:
        delivered: int = await self._consumers.ask(CountDelivered())
        return max(0, self._load.acknowledged - delivered)

    async def at_most(
        self, seconds: float, warm_up_s: float, bound: Bound, tell: Callable[[RunResult], None]
    ) -> RunResult:
        """Run at rates until the highest one is found that is within the bound. Without any, the last one's result.

        `tell` hears of each run.
        """
        steps: list[dict[str, float]] = []
        best: RunResult | None = None
        last: RunResult | None = None

        async def sustains(rate: int) -> bool:
            nonlocal best, last
            last = await self.at_rate(rate, seconds, warm_up_s)
            p99_ms = last.publish_ms["p99"]
            held = bound.holds(rate, last.achieved, p99_ms, last.backlog) and not last.refused
            steps.append({"offered": rate, "achieved": last.achieved, "p99": p99_ms, "sustained": float(held)})
            tell(last)
            if held and (best is None or rate > best.offered):
                best = last
            return held

        await highest_rate(sustains, FIRST_RATE)
        found = best or last
        if found is None:
            raise InvariantViolation("the search for the highest rate has tried none")
        return replace(found, is_maximum=best is not None, steps=steps)


def _micros_each(seconds: float | None, count: int) -> float | None:
    return None if seconds is None or not count else seconds / count * 1e6


@asynccontextmanager
async def measurement(system: System, workload: BenchWorkload) -> AsyncIterator[Measurement]:
    """Make logs, open both sides of a system, and delete the logs when the block is left."""
    prefix = f"bench-{uuid.uuid4().hex[:12]}"
    names = [f"{prefix}-{number}" for number in range(workload.logs)]
    async with system.logs(names):
        with consumer_process(system, names, workload.record_bytes) as consumers:
            await consumers.opened()
            async with system.publisher(names) as publisher:
                made = Measurement(system, workload, Load(publisher, workload), consumers)
                await made.prime()
                yield made
