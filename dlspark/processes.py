"""Processes that are not this one's children: whether a recorded process still runs, and signals to it alone.

A number alone names no process: the kernel gives it to another one later. With the time at which the process started it
does, on this machine since it was booted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

_STARTED_FIELD = 19
"""Of /proc/PID/stat behind the name in parentheses: the start, in clock ticks since the machine was booted."""
_STATE_FIELD = 0


def started(pid: int) -> str | None:
    """When the process started, as text to be compared; None where there is none that runs (or it is a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _started_by_ps(pid)
    return None if fields[_STATE_FIELD] == "Z" else f"{boot}:{fields[_STARTED_FIELD]}"


def _started_by_ps(pid: int) -> str | None:
    """Where there is no /proc (macOS): to the second, which a number is not given again within."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    state, _, when = done.stdout.strip().partition(" ")
    return None if not when or state.startswith("Z") else " ".join(when.split())


def send(pid: int, start: str, number: signal.Signals) -> bool:
    """Send a signal to the process that has this number and started then; False where there is no such process.

    On Linux the process is held before it is looked at, so that the signal reaches that one and no successor. Raises
    PermissionError for another user's.
    """
    if not hasattr(os, "pidfd_open"):
        if started(pid) != start:
            return False
        os.kill(pid, number)
        return True
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if started(pid) != start:
            return False
        signal.pidfd_send_signal(held, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(held)
    return True
