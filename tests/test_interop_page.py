"""docs/interop.md names every test of interoperability, every state of the matrix, and nothing that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from helpers.interop.verdicts import DIFFERENCES
from helpers.parsing import parse
from helpers.paths import DOCS, TESTS

PAGE = (DOCS / "interop.md").read_text()
ACROSS = TESTS / "interop"


def functions(path: Path) -> list[str]:
    nodes = parse(path.read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_page_names_every_test_of_interoperability_and_no_other() -> None:
    named = re.findall(r"`(test_\w+\.py::test_\w+)`", PAGE)
    existing = [
        f"{path.name}::{name}"
        for path in sorted(ACROSS.glob("test_*.py"))
        for name in functions(path)
        if name.startswith("test_")
    ]
    assert sorted(named) == sorted(existing)


def test_the_page_has_a_row_for_every_state_of_a_log() -> None:
    """A state is a function that leaves a log `Written`."""
    nodes = parse((ACROSS / "test_log_matrix_across.py").read_text()).body
    states = [
        node.name.replace("_", " ")
        for node in nodes
        if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "Written"
    ]
    assert sorted(re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.M)) == sorted(states)
    assert len(states) == 11


def test_the_page_has_a_row_for_every_difference_of_placement() -> None:
    table = PAGE.split("| difference |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| ([a-z ]+) \|", table, re.M)) == sorted(DIFFERENCES)
