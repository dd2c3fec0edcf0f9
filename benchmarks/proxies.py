"""Proxies of one run: processes as users start them, on ports of their own, each with the namespace of the cluster.

A write proxy is `python -m dlspark.serving.write_proxy`, a read proxy `python -m dlspark.serving.read_proxy`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from dlspark.sandbox.processes import (
    START_TIMEOUT_S,
    SandboxError,
    child_environment,
    end_processes,
    first_line,
    log_tail,
)
from metadata.foundation.processes import ending_with_parent

LOCAL = "127.0.0.1"
GRPC_OFF = -1


@dataclass(frozen=True, slots=True)
class ProxyProcess:
    """A proxy that serves."""

    address: str
    """Where it speaks frames."""
    location: str
    grpc_address: str | None
    pid: int


@contextmanager
def write_proxy(
    uri: str,
    directory: Path,
    *,
    grpc_port: int = GRPC_OFF,
    shard: int = -1,
    hands_over: bool = True,
    host: str = LOCAL,
    environment: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ProxyProcess]:
    """Start a write proxy with default settings, which has ended when the block is left. Unless it `hands_over` it is
    killed then: other proxies would open all its logs while other rows are measured. One client is all clients here, so
    it may begin any number of producers. `environment` is added to what it inherits,
    `settings` to the defaults.
    """
    values: dict[str, object] = {
        "server_host": host,
        "server_advertised_host": host,
        "server_producers_per_client": 0,
        "zkSessionTimeoutSeconds": 4,
        **settings,
    }
    options = (f"--grpc-port={grpc_port}", f"--shard={shard}", "--port=0", *_settings(values))
    with _serving("dlspark.serving.write_proxy", uri, options, directory, environment) as (location, pid):
        grpc = f"{host}:{grpc_port}" if grpc_port != GRPC_OFF else None
        yield ProxyProcess(location.split(";")[-1], location, grpc, pid)
        if not hands_over:
            os.kill(pid, signal.SIGKILL)


@contextmanager
def read_proxy(uri: str, directory: Path) -> Iterator[ProxyProcess]:
    """Start a read proxy with default settings, which has ended when the block is left."""
    options = _settings({"listenHost": LOCAL, "advertisedHost": LOCAL, "port": 0})
    with _serving("dlspark.serving.read_proxy", uri, options, directory) as (location, pid):
        yield ProxyProcess(location.split(";")[-1], location, None, pid)


def _settings(values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--set={key}={value}" for key, value in values.items())


@contextmanager
def _serving(
    module: str,
    uri: str,
    options: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[str, int]]:
    """Yield the location of a proxy that runs, and its process."""
    arguments = [sys.executable, "-m", module, f"--uri={uri}", *options]
    with (directory / "proxies.log").open("ab") as log:
        process = subprocess.Popen(
            ending_with_parent(arguments, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=child_environment() | dict(environment),
        )
    try:
        output = process.stdout
        said = first_line(output, START_TIMEOUT_S).decode() if output is not None else ""
        if not said:
            raise SandboxError(f"{module} did not start; its log ends with:\n{log_tail(Path(log.name), 0)}")
        yield said.split()[2], process.pid
    finally:
        end_processes([process])
        if process.stdout is not None:
            process.stdout.close()


def resident_mb(pid: int) -> float:
    """Return the memory of a process that is in use now."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6
