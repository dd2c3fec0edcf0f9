"""What tests of the sink share: drivers over a namespace in memory, and drivers that are processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import zlib
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


TYPED = "json"
TYPED_RUNS, TYPED_PROCESS_RUNS = 3, 1
ONLY_IN_ROUNDS = frozenset(
    {
        "test_exactly_once_session.py",
        "test_exactly_once_spark.py",
        "test_sink_appender_process.py",
        "test_sink_outages.py",
        "test_sink_proxy_processes.py",
        "test_who_waits.py",
        "test_the_next_appending_process_does_not_wait_for_the_session_of_one_that_was_killed",
        "test_a_task_that_fails_after_writing_and_runs_again_leaves_one_copy",
        "test_two_drivers_with_one_checkpoint_leave_one_copy",
        "test_a_batch_whose_log_changes_before_its_replay_is_there_once_or_refused",
        "test_a_stream_is_written_once_though_its_newest_commit_entries_are_lost",
    }
)
"""Files and tests that run with typed frames under --rounds alone: others show the same in memory, or with one fault of
its kind."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test with typed frames, but with all of its seeds and parameters only under --rounds: else with a few,
    and where it starts processes with one, which is not the same for all tests."""
    if config.getoption("--rounds") is not None or config.getoption("--seed") is not None:
        return
    runs: dict[str, list[pytest.Item]] = {}
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("frames") == TYPED:
            runs.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for name, found in runs.items():
        most = TYPED_PROCESS_RUNS if found[0].get_closest_marker("processes") else TYPED_RUNS
        if not ONLY_IN_ROUNDS.isdisjoint((found[0].path.name, name.rpartition("::")[2])):
            most = 0
        first = zlib.crc32(name.encode()) % len(found)
        left |= set([*found[first:], *found[:first]][most:])
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


@pytest.fixture(params=["raw", TYPED])
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
