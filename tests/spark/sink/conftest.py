"""What tests of the sink share: drivers that are processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from driver_processes import Spawner

TESTS_OF_SPARK = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Starts processes that have loaded the sink."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sink_driver"])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 gives its fork server no path, and says nothing of a module that it could not load beforehand.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS_OF_SPARK), os.environ.get("PYTHONPATH")])))
        forkserver.ensure_running()
    return context


@pytest.fixture
def spawn(processes: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    """Starts drivers, and ends those that are left. Sessions with ZooKeeper are short, here too."""
    from driver_processes import SESSION_TIMEOUT_S, SESSION_VARIABLE, Spawner

    monkeypatch.setenv(SESSION_VARIABLE, SESSION_TIMEOUT_S)
    spawner = Spawner(processes)
    yield spawner
    spawner.end()
