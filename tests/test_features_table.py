"""docs/features.md: every feature of the inventory has its row, and every test that a row names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "features.md").read_text().splitlines()
    if re.match(r"\| (F\d|-)", line)
]


def _numbers(cell: str) -> range:
    first, _, last = cell.replace("F", "").partition("-")
    return range(int(first), int(last or first) + 1) if first else range(0)


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


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
    for number, _, _, test in ROWS:
        if test == "-":
            continue
        path, _, name = test.strip("`").partition("::")
        assert (ROOT / path).is_file(), (number, path)
        if name:
            assert name in _functions(ROOT / path), (number, test)
