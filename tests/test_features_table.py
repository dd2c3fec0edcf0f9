"""docs/features.md: every feature of the inventory has its row, and every test that a row names exists."""

from __future__ import annotations

import re

from helpers.documents import pages
from helpers.paths import DOCS

ROWS = [row for _, row in pages.table_rows(DOCS / "features.md") if re.match(r"(F\d|-)", row[0])]


def _numbers(cell: str) -> range:
    first, _, last = cell.replace("F", "").partition("-")
    return range(int(first), int(last or first) + 1) if first else range(0)


def test_every_feature_of_the_inventory_has_one_row() -> None:
    numbers = [number for row in ROWS for number in _numbers(row[0])]
    assert numbers == list(range(1, 113))


def test_what_is_there_is_shown_by_a_test_and_what_is_not_has_its_reason() -> None:
    for number, feature, here, test in ROWS:
        assert re.match(r"(yes|partly|no)\b", here), (number, here)
        if here.startswith("no"):
            assert here.startswith("no: "), (number, feature)
        else:
            assert test.startswith("`tests/"), (number, feature)


def test_every_test_that_is_named_exists() -> None:
    assert [row for row in ROWS if row[3] != "-" and not pages.is_test(row[3])] == []
