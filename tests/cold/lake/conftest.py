"""A cluster in memory whose segments a test moves by hand, and places for tables of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.moved import HandMover
from helpers.cold.places import folder_place
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.namespace import AsyncNamespace
from metadata.distributedlog.cold_tables import DELTA, ICEBERG, ColdTable, table_logs


@pytest_asyncio.fixture
async def memory_cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster()
    await cluster.start()
    before = asyncio.all_tasks()
    yield cluster
    await cluster.stop()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        await asyncio.wait([task], timeout=1)
    assert [task for task in left if not task.done()] == []


@pytest_asyncio.fixture
async def namespace(memory_cluster: MemoryCluster) -> AsyncNamespace:
    return await memory_cluster.namespace()


@pytest_asyncio.fixture
async def mover(memory_cluster: MemoryCluster, tmp_path: Path) -> AsyncIterator[HandMover]:
    root = folder_place(tmp_path / "cold").root
    moving = HandMover(await memory_cluster.namespace(), root, memory_cluster.bookies, row_group_bytes=2_000)
    yield moving
    await moving.files.close()


@pytest.fixture
def declared(tmp_path: Path) -> Callable[..., ColdTable]:
    """Return what makes declarations of tables in the test's folder."""
    (tmp_path / "lake").mkdir()

    def make(kind: str, *logs: str, name: str = "flights") -> ColdTable:
        if kind == DELTA:
            return ColdTable(name, f"id-{name}", DELTA, f"{tmp_path}/lake/{name}", "", table_logs(logs))
        options = {"warehouse": f"file://{tmp_path}/lake"}
        catalog = f"sqlite:///{tmp_path}/lake/catalog.db"
        return ColdTable(name, f"id-{name}", ICEBERG, catalog, f"air.{name}", table_logs(logs), options)

    return make
