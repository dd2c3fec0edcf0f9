"""The proxies of a sandbox: write proxies, and one read proxy, as local processes.

Their ports are the sandbox's, kept across restarts. A write proxy's session with ZooKeeper is short, as the storage
nodes' are: when one is killed, the others have its logs a few seconds later. Each has a folder below the sandbox's, for
its log (`write-proxy-0/proxy.log`); nothing here holds data.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from dlspark.sandbox.processes import (
    START_TIMEOUT_S,
    SandboxError,
    child_environment,
    end_processes,
    first_line,
    log_tail,
)
from dlspark.sandbox.state import SandboxState
from metadata.foundation.private_files import make_private_directory
from metadata.foundation.processes import ending_with_parent

SESSION_S: Final = 4
"""How long a killed write proxy keeps its logs."""
READER: Final = -1
"""The read proxy's number among the processes; the others count from 0."""
_LOG: Final = "proxy.log"


class SandboxProxies:
    """The proxies of one running sandbox."""

    def __init__(
        self, directory: Path, state: SandboxState, spawner: ThreadPoolExecutor, conf: Path | None = None
    ) -> None:
        """Start nothing yet; `spawner` is the thread that starts all processes of the sandbox, `conf` the file of the
        namespace's settings, if it has one."""
        self._conf = conf
        self._directory = directory
        self._state = state
        self._spawner = spawner
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._log_begins: dict[int, int] = {}

    @property
    def write_addresses(self) -> list[str]:
        """Where the write proxies listen for frames, by index."""
        return [f"127.0.0.1:{port}" for port in self._state.proxy_ports[: self._state.proxies]]

    @property
    def read_address(self) -> str:
        """Where the read proxy listens for frames."""
        return f"127.0.0.1:{self._state.read_proxy_port}"

    @property
    def write_grpc_addresses(self) -> list[str]:
        """Where the write proxies listen for gRPC, by index."""
        return [f"127.0.0.1:{port}" for port in self._state.proxy_grpc_ports[: self._state.proxies]]

    @property
    def read_grpc_address(self) -> str:
        """Where the read proxy listens for gRPC."""
        return f"127.0.0.1:{self._state.read_proxy_grpc_port}"

    def pid(self, index: int) -> int | None:
        """Return the process of a write proxy, or of the read proxy (`READER`); None where it does not run."""
        process = self._processes.get(index)
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start all of them and wait until they serve. Raises SandboxError."""
        numbers = [*range(self._state.proxies), READER]
        for index in numbers:
            self._spawn(index)
        for index in numbers:
            self._await_ready(index)

    def start_one(self, index: int) -> None:
        """Start one that was killed again, at its old address, and wait until it serves. Raises SandboxError."""
        self._spawn(index)
        self._await_ready(index)

    def kill(self, index: int) -> None:
        """Kill one with SIGKILL."""
        process = self._processes[index]
        process.kill()
        process.wait()

    def pause(self, index: int) -> None:
        """Stop one with SIGSTOP; `resume` lets it go on."""
        self._processes[index].send_signal(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        """Let one go on with SIGCONT that `pause` has stopped."""
        self._processes[index].send_signal(signal.SIGCONT)

    def stop_one(self, index: int) -> None:
        """End one in order: it hands its streams over to the others. Returns when it has ended."""
        end_processes([self._processes.pop(index)])

    def stop(self) -> None:
        """End all in order. Idempotent."""
        end_processes(self._processes.values())
        self._processes.clear()

    def _folder(self, index: int) -> Path:
        return self._directory / ("read-proxy" if index == READER else f"write-proxy-{index}")

    def _arguments(self, index: int) -> list[str]:
        uri = f"--uri={self._state.uri}"
        if index == READER:
            values = {
                "listenHost": "127.0.0.1",
                "advertisedHost": "127.0.0.1",
                "port": self._state.read_proxy_port,
                "grpcPort": self._state.read_proxy_grpc_port,
                "statsPort": 0,
            }
            module = "dlspark.serving.read_proxy"
        else:
            values = {
                "server_host": "127.0.0.1",
                "server_advertised_host": "127.0.0.1",
                "server_port": self._state.proxy_ports[index],
                "server_grpc_port": self._state.proxy_grpc_ports[index],
                "server_stats_port": 0,
                "server_shard": index,
                "zkSessionTimeoutSeconds": SESSION_S,
            }
            module = "dlspark.serving.write_proxy"
        return [sys.executable, "-m", module, uri, *(f"--set={key}={value}" for key, value in values.items())]

    def _spawn(self, index: int) -> None:
        if not self._folder(index).is_dir():
            make_private_directory(self._folder(index))
        self._processes[index] = self._spawner.submit(self._start_process, index).result()

    def _start_process(self, index: int) -> subprocess.Popen[bytes]:
        with (self._folder(index) / _LOG).open("ab") as log:
            self._log_begins[index] = log.tell()
            return subprocess.Popen(
                ending_with_parent(self._arguments(index), signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C at the terminal is for the sandbox alone, which then ends its processes in order.
                start_new_session=True,
                cwd=self._folder(index),
                env=child_environment() | ({} if self._conf is None else {"DLSPARK_CONF": str(self._conf)}),
            )

    def _await_ready(self, index: int) -> None:
        process = self._processes[index]
        output = process.stdout
        served = output is not None and first_line(output, START_TIMEOUT_S)
        if output is not None:
            output.close()
        if served:
            return
        process.kill()
        process.wait()
        what = "the read proxy" if index == READER else f"write proxy {index}"
        raise SandboxError(
            f"{what} did not start (exit status {process.returncode}); its log ends with:\n"
            f"{log_tail(self._folder(index) / _LOG, self._log_begins[index])}"
        )
