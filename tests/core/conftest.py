"""A namespace over metadata and storage nodes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.namespace import AsyncNamespace


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


@pytest_asyncio.fixture
async def namespace(memory_cluster: MemoryCluster) -> AsyncNamespace:
    return await memory_cluster.namespace()
