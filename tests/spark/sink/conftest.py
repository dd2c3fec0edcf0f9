"""What tests of the sink share: drivers over a namespace in memory, and drivers that are processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import AsyncIterator, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING

import pytest
from helpers.paths import TESTS

if TYPE_CHECKING:
    from helpers.spark.driver_processes import Spawner
    from helpers.spark.sink_world import Process, SinkWorld
    from helpers.spark.typed_frames import Frames


@pytest.fixture(params=["raw", "json"])
def frames(request: pytest.FixtureRequest) -> Iterator[Frames]:
    """Have the test write frames of bytes, and frames of columns that their log declares, with times of rows."""
    from helpers.spark.typed_frames import Frames, Using

    Using.frames = Frames(request.param)
    yield Using.frames
    Using.frames = Frames()


@pytest.fixture
async def sink_world() -> SinkWorld:
    """Make a namespace in memory, for commits of the sink."""
    from helpers.spark.sink_world import SinkWorld

    made = SinkWorld()
    await made.set_up()
    return made


@pytest.fixture
async def driver(sink_world: SinkWorld) -> AsyncIterator[Process]:
    """Give a process that commits batches to the namespace."""
    from helpers.spark.sink_world import Process

    process = Process(sink_world)
    yield process
    await process.store.close()


@pytest.fixture
async def other_driver(sink_world: SinkWorld) -> AsyncIterator[Process]:
    """Give a second one, of another owner."""
    from helpers.spark.sink_world import Process

    process = Process(sink_world, seed=1, owner="other")
    yield process
    await process.store.close()


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Start processes that have loaded the sink."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.spark.sink_driver"])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 gives its fork server no path, and says nothing of a module that it could not load beforehand.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])))
        forkserver.ensure_running()
    return context


@pytest.fixture
def spawn(processes: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    """Start drivers, and ends those that are left. Sessions with ZooKeeper are short, here too."""
    from helpers.spark.driver_processes import SESSION_TIMEOUT_S, SESSION_VARIABLE, Spawner

    monkeypatch.setenv(SESSION_VARIABLE, SESSION_TIMEOUT_S)
    spawner = Spawner(processes)
    yield spawner
    spawner.end()
