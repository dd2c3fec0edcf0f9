"""Logs that tests of the source read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.spark.logs import Logs

FIRST_ID = 1_000_000


@pytest.fixture
def three_segments(logs: Logs) -> str:
    """Write 120 records: segments 1 and 2 of 40 completed, segment 3 of 40 open; their ids rise from `FIRST_ID`."""
    name = logs.create(logs.name())
    for part in range(3):
        first = FIRST_ID + 40 * part
        logs.write(name, range(first, first + 40), keep_open=part == 2)
    return name
