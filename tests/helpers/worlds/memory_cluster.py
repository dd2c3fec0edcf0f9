"""`MemoryCluster`: metadata and storage nodes in memory, a bound namespace, and clients that may die."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from helpers.worlds.memory_bookies import PATIENT, MemoryBookie, MemoryNetwork
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree
from storage_node.edge import Clock

URI = "distributedlog://memory:2181/dl"


class MemoryCluster:
    """A cluster in memory, and as many clients of it as a test wants: each has a session and connections of its own."""

    defaults: ClassVar[Mapping[str, object]] = {
        "lock_timeout_s": 5,
        "zk_session_timeout_s": 2,
        "long_poll_ms": 200,
        "read_ahead_wait_ms": 20,
        "rolling_concurrency": 0,
    }
    """Settings of every client, unless a test gives others."""

    def __init__(self, bookies: Sequence[MemoryBookie] | None = None, clock: Clock | None = None) -> None:
        self.tree = MemoryTree()
        self.network = MemoryNetwork()
        self.bookies = list(bookies or (MemoryBookie(f"node{i}:3181") for i in range(4)))
        self.operator = MemoryStore(self.tree)
        """The session that registers the storage nodes: they are there as long as it lives."""
        self.clients: list[AsyncNamespace] = []
        self._clock = clock

    async def start(self, binding: Binding | None = None) -> None:
        """Register the storage nodes and bind the namespace."""
        await LedgerStore(self.operator).format()
        registry = BookieRegistry(self.operator)
        for bookie in self.bookies:
            self.network.add(bookie)
            await registry.register(bookie.address)
        await NamespaceStore(self.operator, "/dl").bind(binding or Binding.for_cluster("memory:2181"))

    def bookie(self, bookie_id: str) -> MemoryBookie:
        """Return the storage node of this id."""
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    async def namespace(
        self, features: FeatureProvider | None = None, *, statistics: Statistics | None = None, **settings: object
    ) -> AsyncNamespace:
        """Return a new client, a process of its own as far as the cluster can tell. `stop` closes it."""
        namespace = await self.connect(settings, features, statistics)
        self.clients.append(namespace)
        return namespace

    async def connect(
        self,
        settings: Mapping[str, object],
        features: FeatureProvider | None = None,
        statistics: Statistics | None = None,
    ) -> AsyncNamespace:
        """Return a new client that the caller closes."""
        store = MemoryStore(self.tree)
        placement = replace(PATIENT.placement, region=str(settings.get("region", "")))
        return await AsyncNamespace.over(
            store,
            URI,
            Settings(**{**self.defaults, **settings}),  # type: ignore[arg-type]
            network=self.network,
            rng=random.Random(7),
            clock=self._clock,
            client_settings=replace(PATIENT, placement=placement),
            features=features,
            statistics=statistics,
            own=(store,),
        )

    async def crash(self, namespace: AsyncNamespace) -> None:
        """End a client as the death of its process does: connections break, and the session expires."""
        await namespace.ledgers.close()
        self.tree.expire(namespace.store.session_id)
        await namespace.store.close()
        self.clients.remove(namespace)

    def cut_off(self, namespace: AsyncNamespace) -> None:
        """Take a client's session from it, and the metadata store out of its reach; it reaches the storage nodes."""
        store = namespace.store
        self.tree.inject = lambda session, operation, path: Fault.REFUSE if session == store.session_id else None
        self.tree.expire(store.session_id)

    async def stop(self) -> None:
        """Close the clients and the cluster."""
        for namespace in self.clients:
            await namespace.close()
        await self.operator.close()
