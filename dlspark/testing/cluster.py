"""`InProcessCluster`: a whole cluster in the process of a test: metadata in memory, real storage nodes, one namespace.

The nodes are the real thing: they listen on TCP, write journals and entry logs below a directory and sync them. What
is not real is the metadata store, which is in memory, so a cluster starts in a fraction of a second. Each `connect`
gives a client with a session and connections of its own, as another process would have.

    async with InProcessCluster(tmp_path) as cluster:
        namespace = await cluster.connect()
        log = await namespace.open_log("flights")

Everything runs on one event loop. Leaving the context closes clients and nodes; the directory stays.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.foundation.opened_here import OpenedHere
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.edge import Network
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import ClientSettings

NAMESPACE_PATH = "/dlspark"
URI = f"distributedlog://in-process:2181{NAMESPACE_PATH}"
HOST = "127.0.0.1"


class InProcessCluster(OpenedHere):
    """`nodes` storage nodes below `directory`, and a bound namespace. Start it, or use it as a context manager.

    `settings` is what `connect` uses by default; `tree` lets several clusters, or a test's faults, share the metadata.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 4,
        settings: Settings | None = None,
        tree: MemoryTree | None = None,
        network: Network | None = None,
    ) -> None:
        self.directory = directory
        self.tree = tree or MemoryTree()
        """The metadata "server": expire sessions and inject faults here."""
        self.bookies: list[Bookie | None] = [None] * nodes
        """The running nodes; None where one is stopped."""
        self.clients: list[AsyncNamespace] = []
        self._settings = settings or Settings()
        self._network = network
        self._stores: list[MemoryStore | None] = [None] * nodes
        self._ports = [0] * nodes
        self._operator: MemoryStore | None = None

    @property
    def uri(self) -> str:
        """The namespace's URI, for messages and paths only: no server listens there; `connect` gives clients."""
        return URI

    @property
    def operator(self) -> MemoryStore:
        """A metadata session for looking around; the cluster closes it."""
        if self._operator is None:
            self._operator = MemoryStore(self.tree)
        return self._operator

    async def start(self) -> None:
        """Format the metadata, start every node, bind the namespace."""
        try:
            await LedgerStore(self.operator).format()
            for index in range(len(self.bookies)):
                await self.start_node(index)
            await NamespaceStore(self.operator, NAMESPACE_PATH).bind(Binding.for_cluster("in-process:2181"))
        except BaseException:
            await self.stop()
            raise

    async def start_node(self, index: int) -> Bookie:
        """Start a node, again with its data and port if it ran before."""
        home = self.directory / f"node-{index}"
        settings = BookieSettings(
            journal_directories=(str(home / "journal"),),
            ledger_directories=(str(home / "ledgers"),),
            bookie_port=self._ports[index],
            listening_address=HOST,
            bookie_id=f"node-{index}",
            journal_max_size_mb=16,
            min_usable_size_for_entry_log_creation=0,
        )
        store = MemoryStore(self.tree)
        bookie = Bookie(settings, store, network=self._network)
        try:
            await bookie.start()
        except BaseException:
            await store.close()
            raise
        self._ports[index] = bookie.address.port
        self.bookies[index], self._stores[index] = bookie, store
        return bookie

    async def stop_node(self, index: int) -> None:
        """Stop a node in an orderly way; it goes from the list of usable nodes at once."""
        bookie, self.bookies[index] = self.bookies[index], None
        store, self._stores[index] = self._stores[index], None
        if bookie is not None:
            await bookie.stop()
        if store is not None:
            await store.close()

    async def connect(
        self, settings: Settings | None = None, *, client: ClientSettings | None = None
    ) -> AsyncNamespace:
        """Return a new client of the cluster, with a metadata session of its own. The cluster closes it at the end."""
        store = MemoryStore(self.tree)
        namespace = await AsyncNamespace.over(
            store, URI, settings or self._settings, network=self._network, client_settings=client, own=(store,)
        )
        self.clients.append(namespace)
        return namespace

    async def crash(self, namespace: AsyncNamespace) -> None:
        """End a client as if its process had died: connections break, its session expires, nothing is completed."""
        self.clients.remove(namespace)
        await namespace.ledgers.close()
        await namespace.store.close()

    async def writable_nodes(self) -> list[str]:
        """Return ids of the nodes that are registered as usable."""
        return [address.bookie_id for address in await BookieRegistry(self.operator).writable()]

    async def stop(self) -> None:
        """Close every client and node. Idempotent. Raises a client's failure, after all is closed."""
        failures: list[Exception] = []
        for namespace in self.clients:
            try:
                await namespace.close()
            except Exception as error:
                failures.append(error)
        self.clients.clear()
        for index in range(len(self.bookies)):
            await self.stop_node(index)
        if self._operator is not None:
            await self._operator.close()
            self._operator = None
        if failures:
            raise failures[0]

    async def __aenter__(self) -> InProcessCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
