"""Cold storage for one run: a folder for files, settings of each log, and a mover process as users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlspark.sandbox.processes import START_TIMEOUT_S, SandboxError, child_environment, end_processes, first_line
from metadata.foundation.processes import ending_with_parent


@dataclass(frozen=True, slots=True)
class ColdPlace:
    """Where do a run's files go, and where are the settings of each log?"""

    directory: Path

    @property
    def files(self) -> Path:
        """The folder for files."""
        return self.directory / "files"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of whoever opens the namespace, a mover or a writer."""
        return {"coldStoragePath": str(self.files), "streamConfigDirectory": str(self.directory / "streams")}

    def make(self) -> None:
        """Make the folders."""
        for name in ("files", "streams"):
            (self.directory / name).mkdir(parents=True)

    def set(self, log: str, values: Mapping[str, object]) -> None:
        """Give one log settings of its own, before it is opened."""
        lines = [f"{key}={value}\n" for key, value in values.items()]
        (self.directory / "streams" / f"{log}.conf").write_text("".join(lines))


@contextmanager
def mover(uri: str, place: ColdPlace) -> Iterator[int]:
    """Run a mover of the namespace until the block ends, and yield its process; its log is in the place's folder.
    Raises SandboxError."""
    conf = place.directory / "mover.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in place.settings.items()))
    command = [sys.executable, "-m", "dlspark.cli", "--verbose", "cold", "run", f"--uri={uri}", f"--conf={conf}"]
    log = place.directory / "mover.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            ending_with_parent(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(),
        )
    try:
        if process.stdout is None or not first_line(process.stdout, START_TIMEOUT_S):
            raise SandboxError(f"the mover did not start; its log ends with:\n{log.read_text()[-2_000:]}")
        yield process.pid
    finally:
        end_processes([process])
