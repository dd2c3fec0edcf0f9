"""Other processes: children that end with this one, and processes that are not its children.

A child ends with the process that started it, even where that one is killed (Linux; elsewhere it is on its own).

The request to the kernel is made by a small Python that then becomes the command. It is not made between fork and exec
(`preexec_fn`): that runs this process's other threads' end in the child, where objects of theirs are finalised: sockets
they share with their originals are shut down, py4j's to the JVM among them.

A number alone does not name a process that is not a child: the kernel gives it to another one later. Together with the
time at which the process started it does, on this machine since it was booted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LAUNCHER: Final = """\
import ctypes, os, sys
parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
os.execv(command[0], command)
"""


def ending_with_parent(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command line that runs `command` (its first word a path) and gets signal `number` when this process
    ends.

    The kernel sends it at the end of the *thread* that starts the command: that thread has to live as long.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(number)), *command]


_STARTED_FIELD = 19
"""Of /proc/PID/stat behind the name in parentheses: the start, in clock ticks since the machine was booted."""
_STATE_FIELD = 0


def started(pid: int) -> str | None:
    """Return when the process started, as text to be compared; None where no such process runs (or it is a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _started_by_ps(pid)
    return None if fields[_STATE_FIELD] == "Z" else f"{boot}:{fields[_STARTED_FIELD]}"


def _started_by_ps(pid: int) -> str | None:
    """Return where there is no /proc (macOS): to the second, which a number is not given again within."""
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
