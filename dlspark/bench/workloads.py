"""Workloads: how many logs, and records of which size. And when each record is due.

They are those of the OpenMessaging benchmark that have one topic of one and of sixteen partitions, one producer and one
consumer. A record is due at a time that is known before the run; whatever delays it counts (no coordinated omission).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from metadata.foundation.errors import CallerError

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """How many logs are written at the same time, and how long is each record?"""

    name: str
    logs: int
    record_bytes: int


WORKLOADS: Final = tuple(
    BenchWorkload(f"{logs}-log{'s' if logs > 1 else ''}-{size}", logs, record_bytes)
    for logs in (1, 16)
    for size, record_bytes in (("100B", 100), ("1KB", 1024))
)


def workload_named(name: str) -> BenchWorkload:
    """Return a workload by its name, in whatever case. Raises CallerError."""
    for workload in WORKLOADS:
        if workload.name.lower() == name.lower():
            return workload
    names = ", ".join(workload.name for workload in WORKLOADS)
    raise CallerError(f"there is no workload {name!r}; nothing was started", advice=f"There are {names}")


class Schedule:
    """When is each record of a run due? Record k, k / rate seconds after the beginning, in log k modulo logs.

    Args:
        rate: records a second, in all logs together.
        logs: how many there are.
        begin_ns: when the first record is due, by the monotonic clock.
        seconds: how long records fall due.
    """

    def __init__(self, rate: float, logs: int, begin_ns: int, seconds: float) -> None:
        self.logs = logs
        self.begin_ns = begin_ns
        self.end_ns = begin_ns + round(seconds * SECOND_NS)
        self.total = max(1, round(rate * seconds))
        self._period_ns = SECOND_NS / rate

    def due_in_all(self, now_ns: int) -> int:
        """Return how many records are due at that time or were before it."""
        if now_ns < self.begin_ns:
            return 0
        return min(self.total, int((now_ns - self.begin_ns) / self._period_ns) + 1)

    def due_in(self, log: int, now_ns: int) -> int:
        """Return how many of them go to this log."""
        return max(0, (self.due_in_all(now_ns) - log + self.logs - 1) // self.logs)

    def due_ns(self, log: int, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return when `count` records of a log are due, from its record number `first` of this run on."""
        numbers = (np.arange(first, first + count) * self.logs + log) * self._period_ns
        return np.asarray(numbers.astype(np.int64) + self.begin_ns, np.int64)

    def next_ns(self, now_ns: int) -> int:
        """Return when the next record is due after that time; the end, where none is."""
        number = self.due_in_all(now_ns)
        if number >= self.total:
            return self.end_ns
        return self.begin_ns + int(number * self._period_ns)
