"""The proxies of a sandbox: write proxies, and one read proxy, as local processes; with regions, so many in each.

Their ports are the sandbox's, kept across restarts. A write proxy's session with ZooKeeper is short, as the storage
nodes' are: when one is killed, the others have its logs a few seconds later. Each has a folder below the sandbox's, for
its log (`write-proxy-0/proxy.log`); nothing here holds data.

One that is in a region has the region's environment, as any program there: so it announces the region, and reaches the
others by way of the gateway. It listens at the region's address and announces that: a gateway serves no other one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
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
from dlspark.sandbox.regions import SandboxRegions
from dlspark.sandbox.state import ProxyPlace, SandboxState
from metadata.foundation.errors import CallerError
from metadata.foundation.private_files import make_private_directory, private_opener
from metadata.foundation.processes import ending_with_parent

if TYPE_CHECKING:
    from dlspark.sandbox.security import SandboxSecurity

SESSION_S: Final = 4
"""How long a killed write proxy keeps its logs."""
READER: Final = -1
"""The read proxy's number among the processes, the first region's where there are any; those of further regions count
down from here. Write proxies count from 0."""
_LOG: Final = "proxy.log"
AUDIT_LOG: Final = "audit.log"
"""The audit trail of each proxy of a secured sandbox, in the proxy's folder."""


class SandboxProxies:
    """The proxies of one running sandbox."""

    def __init__(
        self,
        directory: Path,
        state: SandboxState,
        spawner: ThreadPoolExecutor,
        conf: Path | None = None,
        regions: SandboxRegions | None = None,
        security: SandboxSecurity | None = None,
    ) -> None:
        """Start nothing yet; `spawner` is the thread that starts all processes of the sandbox, `conf` the file of the
        namespace's settings, if it has one, `regions` what it has of them, `security` the identities of a secured
        one."""
        self._conf = conf
        self._security = {} if security is None else security.proxy_settings()
        self._regions = regions
        self._directory = directory
        readers = {READER - number: place for number, place in enumerate(state.read_proxies)}
        self._places: dict[int, ProxyPlace] = {**dict(enumerate(state.write_proxies)), **readers}
        self._uri = state.uri
        self._spawner = spawner
        self._stopping = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._log_begins: dict[int, int] = {}

    @property
    def write_addresses(self) -> list[str]:
        """Where the write proxies listen for frames, by index."""
        return [place.frames for index, place in self._places.items() if index > READER]

    @property
    def read_address(self) -> str:
        """Where the read proxy listens for frames, that of the first region where there are any."""
        return self._places[READER].frames

    @property
    def write_grpc_addresses(self) -> list[str]:
        """Where the write proxies listen for gRPC, by index."""
        return [place.grpc for index, place in self._places.items() if index > READER]

    @property
    def read_grpc_address(self) -> str:
        """Where the read proxy listens for gRPC, that of the first region where there are any."""
        return self._places[READER].grpc

    def numbers_in(self, region: str) -> list[int]:
        """Return the numbers of a region's proxies, those of its write proxies first."""
        return [
            index for index, place in self._places.items() if place.region is not None and place.region.name == region
        ]

    def pid(self, index: int) -> int | None:
        """Return the process of a write proxy, or of the read proxy (`READER`); None where it does not run."""
        process = self._processes.get(index)
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start all of them and wait until they serve. Raises SandboxError."""
        self._start_all(list(self._places))

    def start_region(self, region: str) -> None:
        """Start those of a region that do not run, and wait until they serve. Raises SandboxError, and CallerError
        while the sandbox is being stopped."""
        self._start_all([index for index in self.numbers_in(region) if self.pid(index) is None])

    def _start_all(self, numbers: list[int]) -> None:
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

    def kill_region(self, region: str) -> None:
        """Kill all of a region with SIGKILL."""
        killed = [self._processes[index] for index in self.numbers_in(region) if index in self._processes]
        for process in killed:
            process.kill()
        for process in killed:
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
        """End all in order; from then on none is started. Idempotent."""
        self._stopping = True
        end_processes(self._processes.values())
        self._processes.clear()

    def _folder(self, index: int) -> Path:
        region = self._places[index].region
        reader = "read-proxy" if region is None else f"read-proxy-{region.name}"
        return self._directory / (reader if index <= READER else f"write-proxy-{index}")

    def _arguments(self, index: int) -> list[str]:
        place = self._places[index]
        if index <= READER:
            values = {
                "listenHost": place.host,
                "advertisedHost": place.host,
                "port": place.frames_port,
                "grpcPort": place.grpc_port,
                "statsPort": 0,
                "statsHost": place.host,
            }
            module = "dlspark.serving.read_proxy"
        else:
            values = {
                "server_host": place.host,
                "server_advertised_host": place.host,
                "server_port": place.frames_port,
                "server_grpc_port": place.grpc_port,
                "server_stats_port": 0,
                "server_stats_host": place.host,
                "server_shard": index,
                "zkSessionTimeoutSeconds": SESSION_S,
            }
            module = "dlspark.serving.write_proxy"
        if self._security:
            values["auditLog"] = str(self._folder(index).absolute() / AUDIT_LOG)
        settings = [f"--set={key}={value}" for key, value in {**values, **self._security}.items()]
        return [sys.executable, "-m", module, f"--uri={self._uri}", *settings]

    def _environment(self, index: int) -> dict[str, str]:
        region = self._places[index].region
        conf = {} if self._conf is None else {"DLSPARK_CONF": str(self._conf)}
        place = {} if self._regions is None or region is None else self._regions.environment(region.name)
        return child_environment() | conf | place

    def _spawn(self, index: int) -> None:
        if self._stopping:  # a region that is being healed in another thread: what it starts now would stay
            raise CallerError("the sandbox is being stopped; its proxies are not started")
        if not self._folder(index).is_dir():
            make_private_directory(self._folder(index))
        self._processes[index] = self._spawner.submit(self._start_process, index).result()

    def _start_process(self, index: int) -> subprocess.Popen[bytes]:
        with open(self._folder(index) / _LOG, "ab", opener=private_opener) as log:
            self._log_begins[index] = log.tell()
            return subprocess.Popen(
                ending_with_parent(self._arguments(index), signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C at the terminal is for the sandbox alone, which then ends its processes in order.
                start_new_session=True,
                cwd=self._folder(index),
                env=self._environment(index),
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
        region = self._places[index].region
        what = "the read proxy" if index <= READER else f"write proxy {index}"
        what += "" if region is None else f" of region {region.name}"
        raise SandboxError(
            f"{what} did not start (exit status {process.returncode}); its log ends with:\n"
            f"{log_tail(self._folder(index) / _LOG, self._log_begins[index])}"
        )
