"""A mover that a test leads by the hand, and places for tables of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.moved import HandMover
from helpers.worlds.memory_cluster import MemoryCluster

from metadata.distributedlog.cold_tables import DELTA, ICEBERG, ColdTable, table_logs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give rounds as long as they take where their number is asked for; each of them still has its own limit."""
    if config.getoption("--rounds") is not None:
        for item in items:
            if item.path.parent == HERE and item.get_closest_marker("torture"):
                item.add_marker(pytest.mark.timeout(0))


@pytest_asyncio.fixture
async def mover(memory_cluster: MemoryCluster, root: str) -> AsyncIterator[HandMover]:
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
