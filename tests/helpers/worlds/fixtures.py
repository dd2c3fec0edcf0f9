"""Fixtures that tests of several folders take. What only one folder takes is in its conftest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Every process of the tests loads this module: what is needed for a fixture is imported when a test takes it.
if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.testing.cluster import InProcessCluster
    from helpers.worlds.memory_cluster import MemoryCluster
    from helpers.worlds.metadata import MetadataServer
    from helpers.worlds.warm_sandbox import WarmSandbox
    from metadata.zookeeper.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """Run one ZooKeeper for all tests of a process, each of which has paths of its own in it."""
    from helpers.security.secured_runs import zookeeper_security
    from metadata.zookeeper.embedded import EmbeddedZooKeeper

    with EmbeddedZooKeeper(Path(tmp_path_factory.mktemp("zookeeper")), security=zookeeper_security()) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.processes)])
async def metadata_server(request: pytest.FixtureRequest) -> AsyncIterator[MetadataServer]:
    """Give each kind of metadata server, with a znode `root` of the test's own; a test that takes it runs on both."""
    from helpers.worlds.metadata import MemoryServer, ZooKeeperServer

    made: MemoryServer | ZooKeeperServer
    made = MemoryServer() if request.param == "memory" else ZooKeeperServer(request.getfixturevalue("zookeeper"))
    first = await made.open()
    await first.create(made.root)
    await first.close()
    yield made
    for store in made.stores:
        await store.close()


@pytest.fixture
async def memory_cluster() -> AsyncIterator[MemoryCluster]:
    """Run a cluster in memory, on the test's own loop."""
    from helpers.worlds.memory_cluster import MemoryCluster

    cluster = MemoryCluster()
    await cluster.start()
    before = asyncio.all_tasks()
    yield cluster
    await cluster.stop()
    # I16: nothing runs on after everything was closed.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        await asyncio.wait([task], timeout=60)
    assert [task for task in left if not task.done()] == []


@pytest.fixture
async def namespace(memory_cluster: MemoryCluster) -> AsyncNamespace:
    """Give a client of the cluster in memory."""
    return await memory_cluster.namespace()


@pytest.fixture
def cluster_options() -> Mapping[str, object]:
    """Give the arguments of `in_process_cluster`; a file whose tests need others defines this fixture again."""
    return {}


@pytest.fixture
async def in_process_cluster(tmp_path: Path, cluster_options: Mapping[str, object]) -> AsyncIterator[InProcessCluster]:
    """Run the cluster of `dlspark.testing`: storage nodes in this process, on disk, with metadata in memory."""
    from dlspark.testing.cluster import InProcessCluster

    async with InProcessCluster(tmp_path, **cluster_options) as cluster:  # type: ignore[arg-type]
        yield cluster
    await asyncio.sleep(0)
    # I16: nothing runs on after everything was closed.
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("dlspark")] == []


@pytest.fixture(scope="module")
def warm_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSandbox]:
    """Run ZooKeeper and three storage nodes, as processes that start quickly, for the tests of one file."""
    from helpers.worlds.warm_sandbox import WarmSandbox

    made = WarmSandbox(tmp_path_factory.mktemp("warm-sandbox"), nodes=3)
    with made:
        yield made
