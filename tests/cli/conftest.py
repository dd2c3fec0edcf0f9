"""A cluster of processes for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlspark.sandbox.sandbox import Sandbox


@pytest.fixture(scope="package")
def cli_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("cli") / "sandbox", nodes=3) as running:
        yield running
