"""The figures of the house: short functions, rooms that are read at once, no circles, one meaning for each name.

What is known to be otherwise is listed here, with its reason; a line whose reason is gone fails the test, too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT

PACKAGES = ("metadata", "storage_node", "dlspark", "simulation")
TEST_KIT = "dlspark.testing"
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600

LONG_FUNCTIONS: dict[str, str] = {}
"""`module.function` -> why it is one piece."""
LONG_FILES: dict[str, str] = {}
"""Path -> why it is one room."""
CIRCLES: list[set[str]] = []
"""Modules of one package that import each other, still."""
NAMES_TWICE: dict[str, str] = {}
"""Class -> why two modules may each have one of this name."""


def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Every module of production code and of the simulation, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name != TEST_KIT and not name.startswith(f"{TEST_KIT}."):
                found[name] = ast.parse(path.read_text("utf-8"), filename=str(path))
    return found


@pytest.fixture(scope="module", name="modules")
def _modules() -> dict[str, ast.Module]:
    return sources()


def functions(modules: dict[str, ast.Module]) -> Iterator[tuple[str, int]]:
    """`module.function` and its lines, docstring included."""
    for module, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def long_files(root: Path = ROOT) -> set[str]:
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    return {str(path.relative_to(root)) for path in files if len(path.read_text("utf-8").splitlines()) > MAX_FILE_LINES}


def imported(modules: dict[str, ast.Module], module: str) -> set[str]:
    """What a module imports of `modules`, for types and inside functions as well."""
    found = set()
    for node in ast.walk(modules[module]):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found.add(whole if whole in modules else node.module)
    return (found & modules.keys()) - {module}


def circles(modules: dict[str, ast.Module]) -> list[set[str]]:
    """Groups of modules that lead to each other."""
    leads_to = {module: imported(modules, module) for module in modules}
    reach: dict[str, set[str]] = {}
    for module in modules:
        seen: set[str] = set()
        todo = list(leads_to[module])
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo.extend(leads_to[one])
        reach[module] = seen
    found: list[set[str]] = []
    for module in sorted(modules):
        if module in reach[module] and not any(module in circle for circle in found):
            found.append({other for other in reach[module] if module in reach[other]})
    return found


def names_twice(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Classes that more than one module defines."""
    where: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(module)
    return {name: found for name, found in where.items() if len(found) > 1}


def test_no_function_is_longer_than_a_page(modules):
    assert {name for name, lines in functions(modules) if lines > MAX_FUNCTION_LINES} == LONG_FUNCTIONS.keys()


def test_no_file_is_longer_than_is_read_at_once():
    assert long_files() == LONG_FILES.keys()


def test_no_modules_lead_to_each_other(modules):
    found = circles(modules)
    assert [circle for circle in found if circle not in CIRCLES] == []
    assert [circle for circle in CIRCLES if circle not in found] == [], "undone: take it off the list"


def test_a_class_has_a_name_of_its_own(modules):
    found = names_twice(modules)
    assert {name: where for name, where in found.items() if name not in NAMES_TWICE} == {}
    assert NAMES_TWICE.keys() - found.keys() == set(), "one is gone: take it off the list"


def test_nothing_in_production_imports_the_test_kit(modules):
    production = {name: tree for name, tree in modules.items() if not name.startswith("simulation")}
    with_kit = {**production, TEST_KIT: ast.parse("")}
    for path in (ROOT / "dlspark" / "testing").glob("*.py"):
        with_kit[f"{TEST_KIT}.{path.stem}"] = ast.parse("")
    kit = {name for name in with_kit if name.startswith(TEST_KIT)}
    assert {name: found for name in production if (found := imported(with_kit, name) & kit)} == {}


def test_the_figures_see_what_they_are_to_see(tmp_path):
    """Each of them, on a small house with every fault."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "metadata" / "one.py").write_text("from metadata import two\n\n\nclass Name:\n    pass\n")
    types_only = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from metadata.one import Name\n"
    (tmp_path / "metadata" / "two.py").write_text(types_only)
    inside = "def long():\n    import dlspark.alone\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1)
    (tmp_path / "dlspark" / "long.py").write_text(inside + "\n\nclass Name:\n    pass\n")
    (tmp_path / "dlspark" / "alone.py").write_text("\n" * (MAX_FILE_LINES + 1))
    modules = sources(tmp_path)
    assert [name for name, lines in functions(modules) if lines > MAX_FUNCTION_LINES] == ["dlspark.long.long"]
    assert long_files(tmp_path) == {"dlspark/alone.py"}
    assert circles(modules) == [{"metadata.one", "metadata.two"}]
    assert names_twice(modules) == {"Name": ["metadata.one", "dlspark.long"]}
    assert imported(modules, "dlspark.long") == {"dlspark.alone"}
