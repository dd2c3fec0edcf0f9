"""Read proxies of a sandbox's namespace, as processes that tests kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from helpers.security.secured_runs import role_settings

START_S = 60


class ReadProxyProcesses:
    """Some read proxies, each at an address of its own that it keeps."""

    def __init__(self, uri: str, place: Path, count: int, settings: Mapping[str, object] | None = None) -> None:
        self._settings = dict(role_settings("proxy") if settings is None else settings)
        self._uri = uri
        self._place = place
        self._processes: list[subprocess.Popen[str]] = []
        self.addresses: list[str] = []
        for _ in range(count):
            self._processes.append(self._start(0))
            self.addresses.append(self._served(self._processes[-1]))

    @property
    def option(self) -> str:
        """Return the value of option `proxy` that names all of them."""
        return ",".join(self.addresses)

    def asked_by(self, pid: int) -> list[int]:
        """Return those that a process has connections to."""
        ports = {
            link.raddr.port
            for link in psutil.Process(pid).net_connections("tcp")
            if link.raddr and link.status == psutil.CONN_ESTABLISHED
        }
        return [number for number, address in enumerate(self.addresses) if int(address.rpartition(":")[2]) in ports]

    def kill(self, number: int) -> None:
        """Send SIGKILL to one."""
        self._processes[number].kill()
        self._processes[number].wait()

    def end(self, number: int) -> None:
        """End one in order: it is not announced any more."""
        self._processes[number].send_signal(signal.SIGTERM)
        self._processes[number].wait(START_S)

    def restart(self, number: int) -> None:
        """Start one again, at its address."""
        self._processes[number] = self._start(int(self.addresses[number].rpartition(":")[2]))
        assert self._served(self._processes[number]) == self.addresses[number]

    def restart_missing(self) -> None:
        """Start all that do not run."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self.restart(number)

    def close(self) -> None:
        """End all."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            process.wait(START_S)

    def _start(self, port: int) -> subprocess.Popen[str]:
        values = {"listenHost": "127.0.0.1", "advertisedHost": "127.0.0.1", "port": port, **self._settings}
        command = [sys.executable, "-m", "dlspark.serving.read_proxy", f"--uri={self._uri}"]
        with (self._place / "read-proxies.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *(f"--set={key}={value}" for key, value in values.items())],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "DLSPARK_SET_zkSessionTimeoutSeconds": "4"},
            )

    def _served(self, process: subprocess.Popen[str]) -> str:
        """Return the address of one that serves now, by the line that it prints then."""
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline().strip()
        assert line, (self._place / "read-proxies.log").read_text()[-3000:]
        return line.removesuffix(" serves").rpartition(";")[2]
