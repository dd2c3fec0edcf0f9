"""What processes cost: processor time of whole trees, and bytes that cross the loopback interface."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def tree_cpu_s(roots: Iterable[int]) -> float:
    """Processor seconds of these processes and all that they started, so far.

    A child that ended counts on in the process that waited for it, so that of two readings nothing is missing.
    """
    return sum(_cpu_s(process) for root in roots for process in _tree(root))


def own_cpu_s(pid: int) -> float:
    """Processor seconds of one process without its children, so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def loopback_bytes() -> int:
    """Bytes that the loopback interface has carried (each counts once), of whatever process."""
    interfaces = psutil.net_io_counters(pernic=True)
    return int(interfaces["lo"].bytes_recv)


def _tree(root: int) -> list[psutil.Process]:
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
