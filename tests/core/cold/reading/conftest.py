"""A cluster in memory, a place for cold files, and a mover that a test leads by the hand.

What takes the mover runs on a folder and a real S3 server; with --rounds on a strict mock of S3 and on HDFS, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.fixtures import place_of
from helpers.cold.moved import HandMover
from helpers.cold.places import ObjectPlace
from helpers.rounds import with_rounds
from helpers.worlds.memory_cluster import MemoryCluster


@pytest.fixture(params=["folder", "seaweed", *with_rounds("moto", "hdfs")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    """Give a place that readers open by the address of a file."""
    return place_of(request, tmp_path)


@pytest_asyncio.fixture
async def mover(memory_cluster: MemoryCluster, place: ObjectPlace) -> AsyncIterator[HandMover]:
    """Move by a session of its own, into small row groups: some entries each."""
    moving = HandMover(
        await memory_cluster.namespace(),
        place.root,
        memory_cluster.bookies,
        options=place.options,
        row_group_bytes=2_000,
    )
    yield moving
    await moving.files.close()
