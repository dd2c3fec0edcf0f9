"""A cluster of real processes for one run: ZooKeeper and three storage nodes, in a directory of their own."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.costs import CLIENT, CallCount, Figures, Watch
from dlspark.core.runtime import new_event_loop
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import check
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.settings.client import ClientSettings

REPLICAS = 3
ACK_QUORUM = 2
NODES: Final = "nodes"
ZOOKEEPER: Final = "ZooKeeper"
_COUNTED_BY_NODES: Final = {
    "adds": "bookie_adds_total",
    "journal commits": "bookie_journal_commits_total",
    "entries read": "bookie_reads_total",
}
_T = TypeVar("_T")


class Cluster:
    """As many nodes as replicas, so that each node stores every entry."""

    def __init__(self, directory: Path, **settings: object) -> None:
        pages = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": 0}
        self.sandbox = Sandbox(directory, nodes=REPLICAS, node_settings={**pages, **settings})

    def __enter__(self) -> Cluster:
        self.sandbox.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.stop()

    @property
    def uri(self) -> str:
        """The URI of the sandbox's namespace."""
        return self.sandbox.uri

    @asynccontextmanager
    async def client(self, root: str = LEDGERS_PATH) -> AsyncIterator[LedgerClient]:
        """Open a ledger client with a ZooKeeper session of its own, of the cluster whose metadata lie below `root`."""
        store = await ZooKeeperStore.connect(self.sandbox.zookeeper_address)
        client = LedgerClient(LedgerStore(store, root), BookieRegistry(store, root), settings=ClientSettings())
        try:
            yield client
        finally:
            await client.close()
            await store.close()

    def disk_bytes_written(self) -> int:
        """Return the bytes that the nodes have handed to the disk since they started (Linux)."""
        return sum(_written(self.sandbox.node_pid(i)) for i in range(self.sandbox.node_count))

    def entries_read(self) -> int:
        """Return the entries that the nodes have read for clients since they started."""
        return int(self._counted()[NODES]["entries read"])

    @property
    def server_pids(self) -> dict[str, list[int]]:
        """The processes of the nodes and of ZooKeeper. Raises InvariantViolation if one of them does not run."""
        nodes = [self.sandbox.node_pid(index) for index in range(self.sandbox.node_count)]
        found = {NODES: [pid for pid in nodes if pid is not None]}
        zookeeper = self.sandbox.zookeeper_pid
        check(len(found[NODES]) == len(nodes) and zookeeper is not None, "a server of the cluster is not running")
        return found if zookeeper is None else {**found, ZOOKEEPER: [zookeeper]}

    def watch(self, others: Mapping[str, Sequence[int]] | None = None, *, jvm: int | None = None) -> Watch:
        """Return what looks at all that takes part: this process as the client unless `others` say otherwise, the
        cluster, and a JVM with its Python workers."""
        processes = {**(others or {CLIENT: [os.getpid()]}), **self.server_pids}
        return Watch(processes, jvm=jvm, counters=self._counted)

    def calls(self, others: Mapping[str, Sequence[int]] | None = None) -> CallCount:
        """Return what counts system calls of the same processes."""
        return CallCount({**(others or {CLIENT: [os.getpid()]}), **self.server_pids})

    def _counted(self) -> Figures:
        """Return what all nodes together have counted since they started."""
        pages = [_metrics(self.sandbox.node_directory(index)) for index in range(self.sandbox.node_count)]
        return {NODES: {what: sum(page[name] for page in pages) for what, name in _COUNTED_BY_NODES.items()}}


def run(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run on a loop like the product's: uvloop where it is installed."""
    loop = new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _metrics(node_directory: Path) -> dict[str, float]:
    """Read a node's page; its log says the port."""
    port = re.findall(r"HTTP is served on port (\d+)", (node_directory / "bookie.log").read_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return numbers_in(page.read().decode())


def numbers_in(page: str) -> dict[str, float]:
    """Return the numbers of a page in Prometheus' format that have no labels."""
    lines = [line.split() for line in page.splitlines() if line and line[0] != "#" and "{" not in line]
    return {words[0]: float(words[1]) for words in lines}


def _written(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
