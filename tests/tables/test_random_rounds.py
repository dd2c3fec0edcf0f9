"""Random rows over random lives of schemas come back equal in every format, or an error names the column."""

from __future__ import annotations

import pytest
from random_rounds import run

from dlspark.tables.declaration import RecordFormat

ROWS_A_ROUND = 5_000


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("format_", list(RecordFormat))
def test_rows_come_back_through_every_version(format_: RecordFormat, rounds: int | None, seed: int | None) -> None:
    """200 rounds are a million rows."""
    seeds = [seed] if seed is not None else range(1 if rounds is None else rounds)
    for one in seeds:
        counted = run(format_, one, 500 if rounds is None else ROWS_A_ROUND)
        assert counted["read as the current version"] == counted["rows"]
        assert counted["read as an older version"]
        assert counted["refused"]
