"""A cluster in memory, a folder for cold files, and a mover that a test leads by the hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.moved import HandMover
from helpers.cold.places import folder_place
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


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the address of a folder."""
    return folder_place(tmp_path / "cold").root


@pytest_asyncio.fixture
async def mover(memory_cluster: MemoryCluster, root: str) -> AsyncIterator[HandMover]:
    """Move by a session of its own, into small row groups: some entries each."""
    moving = HandMover(await memory_cluster.namespace(), root, memory_cluster.bookies, row_group_bytes=2_000)
    yield moving
    await moving.files.close()
