"""Fixtures of the bookie's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BookieCluster]:
    """Give an initialised cluster in memory, without bookies yet; whatever a test starts is stopped."""
    made = BookieCluster(tmp_path)
    store = MemoryStore(made.tree)
    await LedgerStore(store).format()
    yield made
    await made.close()
    await store.close()
