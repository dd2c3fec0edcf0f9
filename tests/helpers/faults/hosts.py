"""What runs on the hosts of a fault test: ZooKeeper and storage nodes as they are in production, on edges that fail.

Functions to be run by a `ForkServer`. Both print one line when they serve and take commands, JSON objects a line, on
standard input:

| command | effect |
|---|---|
| `{"step_clock_ms": n}` | the process's wall clock is `n` ms off from now on |
| `{"slow_disk_ms": n}` | every write and sync of journal and entry log takes `n` ms longer |
| `{"full_disk": true}` | the disk has no room: files do not grow, and its usage says so; false ends it |

Each is answered by a line `done`. The end of standard input ends the process as SIGTERM does.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dlspark.sandbox import beginning
from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.edge import DiskFile, FrameHandler, Link
from storage_node.protocol.frames import Buffer
from storage_node.settings.files import NodeFile
from storage_node.transport.tcp import TcpNetwork

T = TypeVar("T")
Route = tuple[str, int, str, int]
"""To reach the first host and port, dial the second."""


class RoutedNetwork(TcpNetwork):
    """The real network, on which some addresses are reached by way of others."""

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        super().__init__()
        self._routes = {(host, port): (by_host, by_port) for host, port, by_host, by_port in routes}

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        by_host, by_port = self._routes.get((host, port), (host, port))
        return await super().connect(by_host, by_port, handler, timeout_ms=timeout_ms)


class WallClock:
    """The wall clock of this process as Python code sees it; it can be stepped. Elapsed time is not touched."""

    def __init__(self) -> None:
        self.offset_ms = 0
        real_s, real_ns = time.time, time.time_ns
        time.time = lambda: real_s() + self.offset_ms / 1000
        time.time_ns = lambda: real_ns() + self.offset_ms * 1_000_000


class FaultyFile:
    """A file on a `FaultyDisk`."""

    def __init__(self, inner: DiskFile, disk: FaultyDisk) -> None:
        self._inner = inner
        self._disk = disk

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def direct(self) -> bool:
        return self._inner.direct

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        if self._disk.full and offset + sum(memoryview(piece).nbytes for piece in buffers) > self._inner.size():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._inner.write_at(offset, buffers)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._inner.read_at(offset, length)

    def read_now(self, offset: int, length: int) -> bytearray | None:
        return self._inner.read_now(offset, length)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def sync_data(self) -> None:
        self._inner.sync_data()

    def close(self) -> None:
        self._inner.close()


class FaultyDisk(SystemDisk):
    """The real disk, which can be slow, or full."""

    slow_pools = ("journal", "entries")

    def __init__(self) -> None:
        super().__init__()
        self.delay_s = 0.0
        self.full = False

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        return FaultyFile(super().open(path, create=create, direct=direct), self)

    def write_file(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().write_file(path, data)

    def usage(self, path: str) -> tuple[int, int, int]:
        device, total, free = super().usage(path)
        return device, total, 0 if self.full else free

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        return super().submit(pool, self._slowly(call) if pool in self.slow_pools else call)

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        return super().at_once(pool, self._slowly(call) if pool in self.slow_pools else call, limit_s)

    def _slowly(self, call: Callable[[], T]) -> Callable[[], T]:
        def slowly() -> T:
            if self.delay_s:
                time.sleep(self.delay_s)
            return call()

        return slowly


def storage_node(name: str, settings: Mapping[str, str], routes: Sequence[Route], log: str) -> int:
    """Run a storage node; returns its exit status."""
    from storage_node.bookie.__main__ import run  # not at the top: the module is a program of its own as well

    _log_to(log)
    clock, disk = WallClock(), FaultyDisk()

    def obey(command: Mapping[str, object]) -> None:
        for what, value in command.items():
            if what == "step_clock_ms" and isinstance(value, int):
                clock.offset_ms = value
            elif what == "slow_disk_ms" and isinstance(value, int):
                disk.delay_s = value / 1000
            elif what == "full_disk":
                disk.full = bool(value)
            else:
                raise ValueError(f"unknown command {what}={value!r}")

    _take_commands(obey)
    try:
        return run(NodeFile(settings).bookie(), network=RoutedNetwork(routes), disk=disk)
    except DistributedLogError as error:
        logging.critical("%s", error)
    except OSError as error:
        logging.critical("the node cannot go on: %s", error)
    return 1


def initialise(name: str, zookeeper: str) -> int:
    """Format the metadata of an empty ZooKeeper and bind the namespace, as a sandbox does; prints `done`."""
    asyncio.run(beginning.initialise(zookeeper))
    print("done", flush=True)
    return 0


def zookeeper(name: str, directory: str, host: str, port: int, tick_ms: int) -> int:
    """Run a ZooKeeper server and print, before it, the number of its process; it is killed with this process."""
    with EmbeddedZooKeeper(Path(directory), host=host, port=port, tick_ms=tick_ms, insecure_listen=True) as server:
        print(server.pid, flush=True)
        sys.stdin.read()
    return 0


def _log_to(path: str) -> None:
    logging.basicConfig(
        level=logging.INFO, filename=path, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


def _take_commands(obey: Callable[[Mapping[str, object]], None]) -> None:
    """Obey what standard input says, in a thread; its end is a SIGTERM."""

    def listen() -> None:
        for line in sys.stdin:
            obey(json.loads(line))
            print("done", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, name="commands", daemon=True).start()
