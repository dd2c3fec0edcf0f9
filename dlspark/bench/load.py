"""`Load`: hands over what is due to a publisher, for one run after the other, and counts what becomes of it.

No step is taken for a single record: every millisecond at most, the records of a log that have fallen due since are one
burst. Where the publisher has no room they wait, and the next burst is larger. Records that were never handed over, or
had no outcome when the run was given up, count with the time that they had waited by then: a system that stands still
is not measured by what it did before. `count_undelivered` does the same for those that were not delivered.

What is under way is bounded for each system alike (`MAX_UNDER_WAY_BYTES`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from dlspark.bench.latencies import Latencies
from dlspark.bench.processors import Spending
from dlspark.bench.records import RecordMaker
from dlspark.bench.systems import Burst, BurstPublisher, Outcome
from dlspark.bench.workloads import SECOND_NS, BenchWorkload, Schedule
from metadata.foundation.errors import InvariantViolation

TURN_NS: Final = 1_000_000
"""Records that fall due within it are handed over together, as clients of brokers gather theirs (`linger.ms` 1)."""
BURST_BYTES: Final = 256 << 10
MAX_UNDER_WAY_BYTES: Final = 32 << 20
GRACE_S: Final = 15.0
"""How long outcomes are waited for when nothing is handed over any more."""


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Which part of a run is measured? Records that are due in it, by the monotonic clock."""

    from_ns: int
    to_ns: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.to_ns - self.from_ns) / SECOND_NS

    def part_of(self, due_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the due times that lie in it."""
        return due_ns[(due_ns >= self.from_ns) & (due_ns < self.to_ns)]


@dataclass
class Published:
    """What has become of the records that were due in a window?"""

    latencies: Latencies = field(default_factory=Latencies)
    """From due to acknowledged."""
    due: int = 0
    acknowledged: int = 0
    """Records that were acknowledged within the window, whenever they were due."""
    not_handed_over: int = 0
    """Records that were due and that the publisher had no room for until the end."""
    without_outcome: int = 0
    refused: int = 0
    reason: str | None = None
    """Of the first refusal."""


class Load:
    """Writes records to logs at a rate. Numbers of records go on from run to run.

    Args:
        publisher: takes bursts.
        workload: how many logs, which records.
    """

    def __init__(self, publisher: BurstPublisher, workload: BenchWorkload) -> None:
        self._publisher = publisher
        self._logs = workload.logs
        self._record_bytes = workload.record_bytes
        self._maker = RecordMaker(workload.record_bytes)
        self._outcomes: deque[Outcome] = deque()
        self._under_way: set[Burst] = set()
        self._under_way_bytes = 0
        self._burst_records = max(1, BURST_BYTES // workload.record_bytes)
        self.handed_over = [0] * workload.logs
        """Records of each log so far, in all runs."""
        self.acknowledged = 0
        """Records so far, in all runs."""
        self.unacknowledged: list[list[tuple[int, int]]] = [[] for _ in range(workload.logs)]
        """For each log the numbers (first, count) of records that were refused or have no outcome."""
        self._refused: list[list[tuple[int, int]]] = [[] for _ in range(workload.logs)]
        """Which of them were refused."""
        self._last: tuple[Schedule, list[int], MeasuredWindow] | None = None
        """The last run, and `handed_over` before it."""

    async def run(
        self,
        schedule: Schedule,
        window: MeasuredWindow,
        spendings: tuple[Spending, ...] = (),
        backlog: Callable[[], Awaitable[int]] | None = None,
    ) -> tuple[Published, int]:
        """Hand over what falls due until the schedule's end, then wait for outcomes. Return what became of it, and the
        backlog at the end of the schedule.
        """
        published = Published()
        before = list(self.handed_over)
        self._last = schedule, before, window
        with ThreadPoolExecutor(1, "dlspark-bench-pace") as pace:
            while (now := time.monotonic_ns()) < schedule.end_ns:
                for spending in spendings:
                    spending.look(now)
                self._settle(published, window)
                self._hand_over(schedule, before, now)
                wake_ns = max(schedule.next_ns(now), now + TURN_NS)
                # By a thread: timers of event loops are exact to a millisecond at best.
                delay_s = (min(wake_ns, schedule.end_ns) - time.monotonic_ns()) / SECOND_NS
                await asyncio.get_running_loop().run_in_executor(pace, time.sleep, max(0.0, delay_s))
        for spending in spendings:
            spending.look(time.monotonic_ns())
        self._settle(published, window)
        self._hand_over(schedule, before, schedule.end_ns)  # what has fallen due in the last turn
        left = await backlog() if backlog is not None else 0
        self._count_left(schedule, before, window, published)
        await self._drain(published, window)
        return published, left

    def _hand_over(self, schedule: Schedule, before: list[int], now: int) -> None:
        for log in range(self._logs):
            handed = self.handed_over[log] - before[log]
            waiting = schedule.due_in(log, now) - handed
            while waiting and self._under_way_bytes < MAX_UNDER_WAY_BYTES and self._publisher.has_room(log):
                count = min(waiting, self._burst_records)
                due_ns = schedule.due_ns(log, handed, count)
                first = self.handed_over[log]
                burst = Burst(log, first, due_ns, self._maker.make(first, due_ns), self._outcomes)
                self._under_way.add(burst)
                self._under_way_bytes += count * self._record_bytes
                self.handed_over[log] += count
                handed += count
                waiting -= count
                self._publisher.publish(burst)

    def _settle(self, published: Published, window: MeasuredWindow) -> None:
        """Count bursts that have ended since."""
        while self._outcomes:
            burst, at_ns, reason = self._outcomes.popleft()
            if burst not in self._under_way:
                continue  # another record of it was refused before
            self._forget(burst)
            if reason is None:
                self.acknowledged += len(burst)
                if window.from_ns <= at_ns < window.to_ns:
                    published.acknowledged += len(burst)
                _count_latencies(published, burst.due_ns, at_ns, window)
            else:
                self.unacknowledged[burst.log].append((burst.first, len(burst)))
                self._refused[burst.log].append((burst.first, len(burst)))
                published.refused += len(burst)
                published.reason = published.reason or reason

    def _forget(self, burst: Burst) -> None:
        self._under_way.remove(burst)
        self._under_way_bytes -= len(burst) * self._record_bytes

    def _count_left(self, schedule: Schedule, before: list[int], window: MeasuredWindow, published: Published) -> None:
        """Count what was due and not handed over, with the time that it has waited."""
        for due_ns in self._not_handed_over(schedule, before):
            published.not_handed_over += _count_latencies(published, due_ns, schedule.end_ns, window)

    def _not_handed_over(self, schedule: Schedule, before: list[int]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield when records were due that were not handed over, some at a time."""
        for log in range(self._logs):
            handed = self.handed_over[log] - before[log]
            yield from self._due_ns(schedule, log, handed, schedule.due_in(log, schedule.end_ns))

    def _due_ns(self, schedule: Schedule, log: int, begin: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
        for first in range(begin, end, self._burst_records):
            yield schedule.due_ns(log, first, min(self._burst_records, end - first))

    def count_undelivered(self, latencies: Latencies, missing: Sequence[Sequence[tuple[int, int]]], at_ns: int) -> None:
        """Count records of the last run that were not delivered, with the time that they have waited. What was refused
        is left out, as it is where acknowledgements are counted. `missing`: as in `Delivered`, given up at `at_ns`.
        """
        if self._last is None:
            raise InvariantViolation("no load was run: there is nothing that could be delivered")
        schedule, before, window = self._last
        for due_ns in self._not_handed_over(schedule, before):
            latencies.add(schedule.end_ns - window.part_of(due_ns))
        for log, pairs in enumerate(missing):
            for begin, end in without(pairs, self._refused[log]):
                first = max(begin, before[log]) - before[log]
                for due_ns in self._due_ns(schedule, log, first, end - before[log]):
                    latencies.add(at_ns - window.part_of(due_ns))

    async def _drain(self, published: Published, window: MeasuredWindow) -> None:
        """Wait until everything under way has its outcome, `GRACE_S` at most."""
        give_up_ns = time.monotonic_ns() + round(GRACE_S * SECOND_NS)
        while self._under_way and time.monotonic_ns() < give_up_ns:
            await asyncio.sleep(TURN_NS / SECOND_NS)
            self._settle(published, window)
        for burst in list(self._under_way):
            self._forget(burst)
            self.unacknowledged[burst.log].append((burst.first, len(burst)))
            published.without_outcome += len(burst)
            _count_latencies(published, burst.due_ns, time.monotonic_ns(), window)


def without(pairs: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of ranges (begin, end), in order, without others (first, count)."""
    others = sorted(taken)
    at = 0
    for start, end in pairs:
        begin = start
        while at < len(others) and sum(others[at]) <= begin:
            at += 1
        for first, count in islice(others, at, None):
            if first >= end:
                break
            if first > begin:
                yield begin, first
            begin = max(begin, first + count)
        if begin < end:
            yield begin, end


def _count_latencies(published: Published, due_ns: np.ndarray, at_ns: int, window: MeasuredWindow) -> int:
    """Count the records of the window with the time from due to `at_ns`, and return how many these are."""
    measured = window.part_of(due_ns)
    published.latencies.add(at_ns - measured)
    published.due += len(measured)
    return len(measured)
