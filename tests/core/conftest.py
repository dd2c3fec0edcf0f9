"""A cluster with real storage nodes on a background loop, for synchronous clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlspark.core.runtime import Runtime
from dlspark.core.settings.settings import Settings
from dlspark.testing.cluster import InProcessCluster


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """Run a background loop of this test alone; its thread has ended when it is closed."""
    runtime = Runtime("tests-of-the-core")
    yield runtime
    runtime.close()
    assert "tests-of-the-core" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def background_cluster(runtime: Runtime, tmp_path: Path) -> Iterator[InProcessCluster]:
    """Run three storage nodes of this process in the background loop, for synchronous clients."""
    cluster = InProcessCluster(tmp_path, nodes=3, settings=Settings(long_poll_ms=300, read_ahead_wait_ms=50))
    runtime.run(cluster.start())
    yield cluster
    runtime.run(cluster.stop())
