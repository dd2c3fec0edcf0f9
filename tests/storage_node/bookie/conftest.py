"""Fixtures of the bookie's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.bookie.harness import Cluster

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """An initialised cluster in memory, without bookies yet; whatever a test starts is stopped."""
    made = Cluster(tmp_path)
    store = MemoryStore(made.tree)
    await LedgerStore(store).format()
    yield made
    await made.close()
    await store.close()
