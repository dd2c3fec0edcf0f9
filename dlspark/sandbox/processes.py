"""Processes of the sandbox: how they are ended, and when one has begun to serve."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from metadata.foundation.errors import NotAppliedError
from metadata.security.settings import VARIABLE as SECURITY_VARIABLE

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 2_000


class SandboxError(NotAppliedError):
    """A process of the sandbox did not start; what was started has been stopped again."""


def end_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End all of them by SIGTERM, together; those that do not end in time by SIGKILL."""
    ending = list(processes)
    running = [process for process in ending if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGCONT)  # a paused one would not see the SIGTERM
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in ending:
        if process.stdout is not None:
            process.stdout.close()


def child_environment() -> dict[str, str]:
    """Return the environment in which a child finds the same packages as this process, installed or not. What a shell
    shows other clusters is not for it: a sandbox tells its processes who they are."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    kept = {name: value for name, value in os.environ.items() if name != SECURITY_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def first_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """Return the first line a child prints, or empty if it ends or the time runs out."""
    import select

    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        # Not readline(): it would wait beyond the time for a child that hangs in the midst of its start.
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(stream.fileno(), 4096) if ready else b""
        if not chunk:
            return b""
        line += chunk
    return line


def log_tail(path: Path, begin: int) -> str:
    """Return what was logged from `begin` on, at most the end of it."""
    return path.read_bytes()[begin:][-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
