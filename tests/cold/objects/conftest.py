"""Every place for objects: a test that takes `place` runs on each."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cold.places import ObjectPlace, folder_place, memory_place


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    """Give a place that has nothing in it."""
    if request.param == "memory":
        return memory_place()
    return folder_place(tmp_path / "cold")
