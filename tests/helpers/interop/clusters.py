"""What the interoperability tests run against: Java processes, real bookies, nodes of ours, and clients on them."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dlspark.sandbox.sandbox import Sandbox
from dlspark.testing.java_process import JavaSoftware, JavaTool, OutOfReachError, free_port
from helpers.interop.java_tool import PROGRAM
from helpers.paths import ROOT
from helpers.rounds import with_rounds
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.settings.client import ClientSettings

NEWEST = "4.18.0"
VERSIONS = (NEWEST, "4.17.3")
both_versions = pytest.mark.parametrize("version", VERSIONS)
newest_version = pytest.mark.parametrize("version", [NEWEST, *with_rounds(*VERSIONS[1:])])
"""Both with --rounds: bytes and metadata of both are compared by tests of `both_versions`."""

BOOKIE_START_S = 60
BOOKIE_STOP_S = 20


@dataclass
class JavaProcesses:
    """JVMs by version, started when first asked for, and throw-away ones that a test will kill."""

    directory: Path
    running: dict[str, JavaTool] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def get(self, version: str) -> JavaTool:
        if version not in self.running:
            self.running[version] = self.spawn(version, f"java-{version}.log")
        return self.running[version]

    def spawn(self, version: str, log: str) -> JavaTool:
        if version not in self.unreachable:
            try:
                return JavaTool(JavaSoftware.prepare(version, PROGRAM), self.directory / log)
            except OutOfReachError as reason:
                self.unreachable[version] = str(reason)  # asked once: Maven takes its time to give up
        pytest.skip(self.unreachable[version])

    def stop(self) -> None:
        for tool in self.running.values():
            tool.stop()
        self.running.clear()


@dataclass(frozen=True)
class InteropCluster:
    """A BookKeeper cluster: where its metadata is, its bookies, and how to lose one and get all back."""

    zk: str
    root: str
    bookies: tuple[str, ...]
    lose: Callable[[str], None]
    restore: Callable[[], bool]
    """Brings the lost ones back, and returns whether there was one. They serve then; clients that saw the loss have
    still to hear of it: `all_back`, or `restored` in helpers/interop/ledgers.py, waits for that."""

    def on(self, tool: JavaTool) -> Callable[..., Awaitable[Any]]:
        """Return a function that sends commands to the Java ledger client on this cluster."""
        return partial(tool.ask, zk=self.zk, root=self.root)

    @asynccontextmanager
    async def client(self, settings: ClientSettings | None = None) -> AsyncIterator[LedgerClient]:
        """Open our ledger client on this cluster."""
        store = await ZooKeeperStore.connect(self.zk)
        try:
            registry = BookieRegistry(store, self.root)
            client = LedgerClient(
                LedgerStore(store, self.root), registry, settings=settings or ClientSettings(), rng=random.Random(7)
            )
            try:
                yield client
            finally:
                await client.close()
        finally:
            await store.close()


class JavaBookies:
    """Real bookies inside a JVM, under a root of their own in ZooKeeper."""

    def __init__(
        self,
        tool: JavaTool,
        zk: str,
        root: str,
        directory: Path,
        count: int,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._start = partial(tool.call, "bookie.start", zk=zk, root=root, settings=dict(settings))
        self._tool = tool
        self._places: dict[str, tuple[int, Path]] = {}
        self._down: set[str] = set()
        tool.call("cluster.init", zk=zk, root=root)
        for index in range(count):
            port, place = free_port(), directory / f"bookie-{index}"
            self._places[self._start(port=port, directory=str(place))] = (port, place)
        self.cluster = InteropCluster(zk, root, tuple(self._places), self.stop, self.start_all)

    def stop(self, bookie: str) -> None:
        self._tool.call("bookie.stop", bookie=bookie)
        self._down.add(bookie)

    def stop_all(self) -> None:
        for bookie in self._places.keys() - self._down:
            self.stop(bookie)

    def start_all(self) -> bool:
        """Bring back the bookies that a test stopped; return whether there was one."""
        had_lost = bool(self._down)
        for bookie in sorted(self._down):
            port, directory = self._places[bookie]
            self._start(port=port, directory=str(directory))
        self._down.clear()
        return had_lost


class OurBookie:
    """A storage node of ours as a process of its own."""

    def __init__(
        self,
        zk: str,
        root: str,
        directory: Path,
        port: int | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.port = port or free_port()
        self.id = f"127.0.0.1:{self.port}"
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._conf = directory / "bookie.conf"
        given = {
            "bookiePort": self.port,
            "listeningAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "zkServers": zk,
            "zkLedgersRootPath": root,
            **settings,
        }
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for the line that it prints once it serves."""
        with (self.directory / "bookie.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "storage_node.bookie", "--conf", str(self._conf)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._process = process
        stdout = process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], BOOKIE_START_S)
        if not ready or not stdout.readline().endswith(b"\n"):
            self.kill()
            raise RuntimeError(f"the node did not start: {(self.directory / 'bookie.log').read_text()[-2000:]}")
        stdout.close()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(BOOKIE_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def sandbox_cluster(sandbox: Sandbox) -> InteropCluster:
    """Return the sandbox's nodes as a cluster; losing one is SIGKILL."""

    def lose(bookie: str) -> None:
        sandbox.kill_node(sandbox.node_ids.index(bookie))

    def restore() -> bool:
        lost = [index for index in range(sandbox.node_count) if sandbox.node_pid(index) is None]
        for index in lost:
            sandbox.start_node(index)
        return bool(lost)

    return InteropCluster(sandbox.zookeeper_address, "/ledgers", tuple(sandbox.node_ids), lose, restore)


def all_back(cluster: InteropCluster, processes: JavaProcesses) -> None:
    """Bring back the nodes that a test lost, and wait until every client in the JVMs that run writes to all of them:
    clients last for the session, and one that has not heard of the return yet has too few nodes."""
    if cluster.restore():
        for tool in processes.running.values():
            tool.call("ledger.reach", zk=cluster.zk, root=cluster.root, nodes=len(cluster.bookies))


@contextmanager
def our_bookie(zk: str, root: str, directory: Path) -> Iterator[OurBookie]:
    """Run a storage node of ours for the length of a block."""
    bookie = OurBookie(zk, root, directory)
    try:
        bookie.start()
        yield bookie
    finally:
        bookie.stop()
