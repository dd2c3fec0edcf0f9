"""A folder for the cold files of a test's logs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the folder."""
    (tmp_path / "cold").mkdir()
    return tmp_path / "cold"


@pytest.fixture
def root(folder: Path) -> str:
    """Give its address."""
    return f"file://{folder}"
