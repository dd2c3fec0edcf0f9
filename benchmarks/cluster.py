"""A cluster of real processes for one run: ZooKeeper and three storage nodes, in a directory of their own."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from dlspark.core.runtime import new_event_loop
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.settings.client import ClientSettings

REPLICAS = 3
ACK_QUORUM = 2
_T = TypeVar("_T")


class Cluster:
    """As many nodes as replicas, so that each node stores every entry."""

    def __init__(self, directory: Path) -> None:
        pages = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": 0}
        self.sandbox = Sandbox(directory, nodes=REPLICAS, node_settings=pages)

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
        return sum(_entries_read(self.sandbox.node_directory(i)) for i in range(self.sandbox.node_count))


def run(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run on a loop like the product's: uvloop where it is installed."""
    loop = new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _entries_read(node_directory: Path) -> int:
    """Read the number from the node's page, whose port its log says."""
    port = re.findall(r"HTTP is served on port (\d+)", (node_directory / "bookie.log").read_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("bookie_reads_total ")))


def _written(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
