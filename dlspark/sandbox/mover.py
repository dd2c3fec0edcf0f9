"""The cold storage of a sandbox: a folder for files, a file of settings with short times, and a mover process.

What is set stands in `cold.conf` below the sandbox's folder. The mover and the proxies get it; a program that writes by
itself takes it as `DLSPARK_CONF`, or `Sandbox.settings`: then its segments end in time. Nothing here holds data but the
files in the folder, which stay.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlspark.sandbox.processes import (
    START_TIMEOUT_S,
    SandboxError,
    child_environment,
    end_processes,
    first_line,
    log_tail,
)
from metadata.foundation.private_files import DIRECTORY_MODE, make_private_directory, private_opener, write_private_text
from metadata.foundation.processes import ending_with_parent

if TYPE_CHECKING:
    from dlspark.sandbox.security import SandboxSecurity

CONF: Final = "cold.conf"
FRESHNESS_S: Final = 10
HOT_RETENTION_S: Final = 60
_FOLDER: Final = "mover"
_LOG: Final = "mover.log"


def cold_settings(files: Path) -> dict[str, str]:
    """Return the settings of a sandbox's namespace, by key."""
    return {
        "coldStoragePath": str(files),
        "coldFreshnessSeconds": str(FRESHNESS_S),
        "coldHotRetentionSeconds": str(HOT_RETENTION_S),
    }


def write_conf(directory: Path, files: Path) -> Path:
    """Write the file of settings, and make the folder for files; returns the former."""
    import javaproperties

    files.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    conf = directory / CONF
    write_private_text(conf, javaproperties.dumps(cold_settings(files), timestamp=None))
    return conf


class SandboxMover:
    """The mover of one running sandbox.

    Args:
        directory: the sandbox's.
        uri: the namespace's.
        files: the folder for files.
        spawner: the thread that starts all processes of the sandbox.
        security: the identities of a secured sandbox: the mover is one of its nodes.
    """

    def __init__(
        self,
        directory: Path,
        uri: str,
        files: Path,
        spawner: ThreadPoolExecutor,
        security: SandboxSecurity | None = None,
    ) -> None:
        self.files = files
        self.conf = write_conf(directory, files)
        self._folder = directory / _FOLDER
        self._uri = uri
        self._spawner = spawner
        self._environment = {} if security is None else security.environment("node")
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of programs that write by themselves."""
        return cold_settings(self.files)

    @property
    def pid(self) -> int | None:
        """Its process; None where it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it and wait until it is at work. Raises SandboxError."""
        if not self._folder.is_dir():
            make_private_directory(self._folder)
        self._process = self._spawner.submit(self._start_process).result()
        output = self._process.stdout
        working = output is not None and first_line(output, START_TIMEOUT_S)
        if output is not None:
            output.close()
        if not working:
            self._process.kill()
            self._process.wait()
            raise SandboxError(
                f"the mover did not start (exit status {self._process.returncode}); its log ends with:\n"
                f"{log_tail(self._folder / _LOG, self._log_begin)}"
            )

    def _start_process(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dlspark.cli", "--verbose", "cold", "run"]
        with open(self._folder / _LOG, "ab", opener=private_opener) as log:
            self._log_begin = log.tell()
            return subprocess.Popen(
                ending_with_parent([*command, f"--uri={self._uri}", f"--conf={self.conf}"], signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=self._folder,
                env={**child_environment(), **self._environment},
            )

    def kill(self) -> None:
        """Kill it with SIGKILL; `start` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it. Idempotent."""
        if self._process is not None:
            end_processes([self._process])
            self._process = None
