"""Fixtures for the tests of metadata: each store, and a fresh znode of the test's own on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from helpers.worlds.metadata import MemoryWorld, World, ZooKeeperWorld

from metadata.store import MetadataStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(Path(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.processes)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made: MemoryWorld | ZooKeeperWorld
    made = MemoryWorld() if request.param == "memory" else ZooKeeperWorld(request.getfixturevalue("zookeeper"))
    first = await made.open()
    await first.create(made.root)
    await first.close()
    yield made
    for store in made.stores:
        await store.close()


@pytest.fixture
async def store(world: World) -> MetadataStore:
    return await world.open()


@pytest.fixture
async def other(world: World) -> MetadataStore:
    """A second session on the same server."""
    return await world.open()


@pytest.fixture
def root(world: World) -> str:
    """A znode of this test alone."""
    return world.root
