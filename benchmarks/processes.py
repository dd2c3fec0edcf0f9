"""Processes: what trees of them cost in processor time, the workers of Spark's; and bytes that cross the loopback."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import psutil

from metadata.foundation.errors import check

WORKERS_END_S = 10.0
_Key: TypeAlias = "tuple[int, float]"
"""A process id, and when that process began: ids are used again."""


@dataclass(frozen=True, slots=True)
class Spent:
    """How many seconds had a process spent when it was looked at?"""

    parent: int
    own: float
    """Exact."""
    ended_children: float
    """Of children that it has waited for, and theirs; in hundredths of seconds."""


class TreeCpu:
    """Processor time of these processes and all that they start, from the making of this on.

    Two sums over the tree cannot be subtracted: a process that ends takes along what it had spent where nothing waits
    for it, as Spark's Python daemons wait for none of their workers (SIGCHLD is ignored), and the difference may be
    below 0. So each process is followed by itself, and of what its parent got by waiting only that counts which was not
    seen of it before. What a process spends between the last look at it and its end is missed where nothing waits.
    """

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = list(roots)
        self._first: dict[_Key, Spent] = spent_in(self._roots)
        self._last = dict(self._first)

    def seconds(self) -> float:
        """Return the time spent so far; this is also a look, so that what ends later is known."""
        now = spent_in(self._roots)
        self._last.update(now)
        return spent_between(self._first, self._last, now)


def spent_in(roots: Iterable[int]) -> dict[_Key, Spent]:
    """Return the time that every process of the trees has spent."""
    found: dict[_Key, Spent] = {}
    for root in roots:
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            try:
                with one.oneshot():
                    times, key = one.cpu_times(), (one.pid, one.create_time())
                    ended = float(times.children_user + times.children_system)
                    found[key] = Spent(one.ppid(), exact_cpu_s(one.pid), ended)
            # It ended between the listing and this look; what it had spent then is in an earlier one.
            except (psutil.NoSuchProcess, OSError):
                continue
    return found


def spent_between(first: dict[_Key, Spent], last: dict[_Key, Spent], now: dict[_Key, Spent]) -> float:
    """Return the processor seconds from the first look to now. `last`: every process as it was seen last."""
    nothing = Spent(0, 0.0, 0.0)
    total = 0.0
    for key, spent in last.items():
        before = first.get(key, nothing)
        total += spent.own - before.own
        # A parent that waited for a child has all of it now; what was seen of the child itself is counted there.
        gone = (one for other, one in last.items() if other not in now and one.parent == key[0])
        waited_for = spent.ended_children - before.ended_children
        total += max(0.0, waited_for - sum(one.own + one.ended_children for one in gone))
    return total


def exact_cpu_s(pid: int) -> float:
    """Return the processor seconds of one process without its children, so far, to the nanosecond: the kernel keeps a
    clock for each process (Linux). Windows may be short, and what others show counts in hundredths of a second."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a process id


def end_workers(jvm: int) -> int:
    """End the Python workers of a JVM as Spark ends those that were idle for a minute: their daemons stay, and fork new
    ones. Returns how many there were. None may be at work."""
    workers = [
        worker
        for daemon in psutil.Process(jvm).children()
        for worker in daemon.children()
        if (command := _command_of(worker)) and command == _command_of(daemon)  # forked by it, and no other program
    ]
    for worker in workers:
        worker.terminate()
    _, left = psutil.wait_procs(workers, WORKERS_END_S)
    check(not left, f"{len(left)} Python workers of Spark have not ended within {WORKERS_END_S:g} s")
    return len(workers)


def largest_worker_bytes(jvm: int) -> float:
    """Return the resident memory of the largest Python process that a JVM has started and that still lives."""
    sizes = [0.0]
    for process in psutil.Process(jvm).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes.append(float(process.memory_info().rss))
    return max(sizes)


def _command_of(process: psutil.Process) -> list[str]:
    """Return a process's command line; none where it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def loopback_bytes() -> int:
    """Return the bytes that the loopback interface has carried (each counts once), of whatever process."""
    interfaces = psutil.net_io_counters(pernic=True)
    return int(interfaces["lo"].bytes_recv)
