"""A cluster of real processes for one run: ZooKeeper and three storage nodes, in a directory of their own."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.costs import CLIENT, REQUESTS, CallCount, Figures, Watch
from dlspark.core.runtime import new_event_loop
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import present
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.settings.client import ClientSettings

REPLICAS = 3
ACK_QUORUM = 2
NODES: Final = "nodes"
ZOOKEEPER: Final = "ZooKeeper"
GATEWAYS: Final = "gateways"
PAGES: Final[Mapping[str, object]] = {
    "httpServerEnabled": "true",
    "httpServerHost": "127.0.0.1",
    "httpServerPort": 0,
}
"""Settings of nodes: each says on a page what it has counted."""
_COUNTED_BY_NODES: Final = {
    "adds": "bookie_adds_total",
    "journal commits": "bookie_journal_commits_total",
    "entries read": "bookie_reads_total",
}
_T = TypeVar("_T")


class Cluster:
    """As many nodes as replicas, so that each node stores every entry."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.sandbox = Sandbox(directory, nodes=REPLICAS, node_settings={**PAGES, **settings})

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
        return int(counted_by_nodes(_node_directories(self.sandbox))[NODES]["entries read"])

    def watch(
        self,
        others: Mapping[str, Sequence[int]] | None = None,
        *,
        jvm: int | None = None,
        client: LedgerClient | None = None,
    ) -> Watch:
        """Return what looks at all that takes part: this process as the client unless `others` say otherwise, the
        cluster, and a JVM with its Python workers. `client`: that of this process, which counts its requests."""
        return watch_of(self.sandbox, others or {CLIENT: [os.getpid()]}, jvm=jvm, client=client)

    def calls(self, others: Mapping[str, Sequence[int]] | None = None) -> CallCount:
        """Return what counts system calls of the same processes."""
        return calls_of(self.sandbox, others or {CLIENT: [os.getpid()]})


# ------------------------------------------------------------------------------------ costs of a sandbox's servers


def watch_of(
    sandbox: Sandbox,
    others: Mapping[str, Sequence[int]],
    *,
    jvm: int | None = None,
    client: LedgerClient | None = None,
) -> Watch:
    """Return what looks at these processes and the sandbox's servers, whose nodes serve `PAGES`, and at a JVM with its
    Python workers. With regions, the nodes of each are apart."""
    counters = partial(counted_by_all, _node_directories(sandbox), client)
    return Watch({**others, **server_pids(sandbox)}, jvm=jvm, counters=counters)


def calls_of(sandbox: Sandbox, others: Mapping[str, Sequence[int]]) -> CallCount:
    """Return what counts system calls of the same processes."""
    return CallCount({**others, **server_pids(sandbox)})


def counted_by_all(directories: Mapping[str, Sequence[Path]], client: LedgerClient | None) -> Figures:
    """Return what these nodes and the client, if there is one, have counted so far."""
    found = dict(counted_by_nodes(directories))
    return found if client is None else {CLIENT: {REQUESTS: float(client.requests)}, **found}


def counted_by_nodes(directories: Mapping[str, Sequence[Path]]) -> Figures:
    """Return what the nodes of these directories have counted since they started, those of one name together."""
    pages = {name: [_metrics(directory) for directory in each] for name, each in directories.items()}
    return {
        name: {what: sum(page[of] for page in each) for what, of in _COUNTED_BY_NODES.items()}
        for name, each in pages.items()
    }


def _node_groups(sandbox: Sandbox) -> dict[str, list[int]]:
    """Return the indexes of nodes by what they are called."""
    if not sandbox.state.regions:
        return {NODES: list(range(sandbox.node_count))}
    return {f"{NODES} in {name}": sandbox.region_nodes(name) for name in sandbox.regions.names}


def _node_directories(sandbox: Sandbox) -> dict[str, list[Path]]:
    return {name: [sandbox.node_directory(index) for index in each] for name, each in _node_groups(sandbox).items()}


def server_pids(sandbox: Sandbox) -> dict[str, list[int]]:
    """Return the processes of nodes and ZooKeeper, and of the gateways between regions. Raises InvariantViolation if
    one of them does not run."""
    found: dict[str, list[int | None]] = {
        name: [sandbox.node_pid(index) for index in each] for name, each in _node_groups(sandbox).items()
    }
    if sandbox.state.regions:
        found[ZOOKEEPER] = [sandbox.regions.zookeeper_pid(name) for name in sandbox.regions.names]
        found[GATEWAYS] = [sandbox.regions.gateways_pid]
    else:
        found[ZOOKEEPER] = [sandbox.zookeeper_pid]
    return {name: [present(pid, f"one of {name} does not run") for pid in pids] for name, pids in found.items()}


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
