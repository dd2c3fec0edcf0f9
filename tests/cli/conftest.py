"""A cluster of processes for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest
import typer.testing

from dlspark.sandbox.sandbox import Sandbox


@pytest.fixture(scope="session", autouse=True)
def _one_tree_of_commands() -> Iterator[None]:
    """Have typer's runner make the tree of commands once: it takes a tenth of a second, a hundred times a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", lru_cache(typer.main.get_command), raising=False)
        yield


@pytest.fixture(scope="package")
def cli_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("cli") / "sandbox", nodes=3) as running:
        yield running
