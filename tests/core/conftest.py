"""A namespace over metadata and storage nodes in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from helpers.worlds.memory_bookies import PATIENT, MemoryBookie, MemoryNetwork

from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

URI = "distributedlog://memory:2181/dl"


class World:
    """A cluster in memory, and as many clients of it as a test wants: each has a session and connections of its own."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.network = MemoryNetwork()
        self.bookies = [MemoryBookie(f"node{i}:3181") for i in range(4)]
        self.operator = MemoryStore(self.tree)
        self.clients: list[AsyncNamespace] = []

    async def start(self) -> None:
        ledgers = LedgerStore(self.operator)
        await ledgers.format()
        registry = BookieRegistry(self.operator)
        for bookie in self.bookies:
            self.network.add(bookie)
            await registry.register(bookie.address)
        await NamespaceStore(self.operator, "/dl").bind(Binding.for_cluster("memory:2181"))

    def bookie(self, bookie_id: str) -> MemoryBookie:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    async def namespace(
        self, features: FeatureProvider | None = None, *, statistics: Statistics | None = None, **settings: object
    ) -> AsyncNamespace:
        """A new client: a process of its own, as far as the cluster can tell."""
        store = MemoryStore(self.tree)
        values: dict[str, object] = {
            "lock_timeout_s": 5,
            "zk_session_timeout_s": 2,
            "long_poll_ms": 200,
            "read_ahead_wait_ms": 20,
            "rolling_concurrency": 0,
            **settings,
        }
        namespace = await AsyncNamespace.over(
            store,
            URI,
            Settings(**values),  # type: ignore[arg-type]
            network=self.network,
            rng=random.Random(7),
            client_settings=PATIENT,
            features=features,
            statistics=statistics,
            own=(store,),
        )
        self.clients.append(namespace)
        return namespace

    async def crash(self, namespace: AsyncNamespace) -> None:
        """The client's process dies: connections break, the session expires, nothing is said good-bye to."""
        await namespace.ledgers.close()
        self.tree.expire(namespace.store.session_id)
        await namespace.store.close()
        self.clients.remove(namespace)

    def cut_off(self, namespace: AsyncNamespace) -> None:
        """The client loses its session, and its metadata store stays out of reach; its storage nodes do not."""
        store = namespace.store
        self.tree.inject = lambda session, operation, path: Fault.REFUSE if session == store.session_id else None
        self.tree.expire(store.session_id)

    async def stop(self) -> None:
        for namespace in self.clients:
            await namespace.close()
        await self.operator.close()


@pytest.fixture
def make_world() -> type[World]:
    """For tests that have an event loop of their own, which starts it."""
    return World


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    before = asyncio.all_tasks()
    yield world
    await world.stop()
    # I16: nothing runs on after everything was closed.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        await asyncio.wait([task], timeout=1)
    assert [task for task in left if not task.done()] == []


@pytest_asyncio.fixture
async def namespace(world: World) -> AsyncNamespace:
    return await world.namespace()
