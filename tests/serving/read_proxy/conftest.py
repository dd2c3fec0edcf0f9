"""A read proxy in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from helpers.serving.read_world import ReadWorld


@pytest_asyncio.fixture
async def read_world() -> AsyncIterator[ReadWorld]:
    read_world = ReadWorld()
    await read_world.start()
    before = asyncio.all_tasks()
    yield read_world
    await read_world.stop()
    # I16: nothing runs on after everything was closed.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        await asyncio.wait([task], timeout=60)
    assert [task for task in left if not task.done()] == []
