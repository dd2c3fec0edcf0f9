"""Clusters under the tests of logs: in memory on this loop, and with real storage nodes on a background loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.settings.settings import Settings
from dlspark.testing.cluster import InProcessCluster


@pytest_asyncio.fixture
async def memory_cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    await cluster.start()
    before = asyncio.all_tasks()
    yield cluster
    await cluster.stop()
    # I16: nothing runs on after everything was closed.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        await asyncio.wait([task], timeout=1)
    assert [task for task in left if not task.done()] == []


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """Run a background loop of this test alone; its thread has ended when it is closed."""
    runtime = Runtime("tests-of-the-core")
    yield runtime
    runtime.close()
    assert "tests-of-the-core" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def background_cluster(runtime: Runtime, tmp_path: Path) -> Iterator[InProcessCluster]:
    """Run three storage nodes of this process in the background loop, for synchronous clients."""
    cluster = InProcessCluster(tmp_path, nodes=3, settings=Settings(long_poll_ms=300, read_ahead_wait_ms=50))
    runtime.run(cluster.start())
    yield cluster
    runtime.run(cluster.stop())


@pytest_asyncio.fixture
async def namespace(memory_cluster: MemoryCluster) -> AsyncNamespace:
    return await memory_cluster.namespace()
