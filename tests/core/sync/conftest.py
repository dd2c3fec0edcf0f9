"""A namespace as programs without asyncio use it, over storage nodes in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlspark import Namespace, Runtime
from dlspark.testing.cluster import InProcessCluster


@pytest.fixture
def namespace(runtime: Runtime, background_cluster: InProcessCluster) -> Iterator[Namespace]:
    """Open the synchronous namespace of a cluster that runs in the background loop."""
    with Namespace(runtime, runtime.run(background_cluster.connect())) as namespace:
        yield namespace
