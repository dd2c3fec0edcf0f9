"""A cluster in memory, a bucket in memory, and movers over both."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from helpers.cold.moving_world import MovingWorld


@pytest_asyncio.fixture
async def world() -> AsyncIterator[MovingWorld]:
    world = MovingWorld()
    await world.start()
    yield world
    await world.stop()
