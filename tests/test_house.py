"""The figures of the house: short functions, rooms that are read at once, no circles, one meaning and one address for
each name.

What is known to be otherwise is listed here, with its reason; a line whose reason is gone fails the test, too.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.parsing import parse
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
ROOM_CIRCLES: dict[frozenset[str], str] = {
    frozenset({"dlspark.core", "dlspark.default_namespace", "dlspark.sandbox"}): "without a URI a namespace is that "
    "of the sandbox that runs, and a sandbox makes its metadata on the process's background loop",
}
"""Rooms of one package (its modules and folders) that lead to each other through what is in them -> why, still."""
NAMES_TWICE: dict[str, str] = {}
"""Class -> why two modules may each have one of this name."""
PUBLIC_DOORS = {
    "dlspark": "what users begin with, imported when it is first used",
    "dlspark.errors": "every error that a user can meet",
    "dlspark.sandbox": "the class that examples begin with, imported when it is first used",
    "dlspark.spark": "what users of Spark begin with, imported when it is first used",
}
"""Modules that hand on names which others define, for users -> what for."""
THROUGH_A_DOOR = {"dlspark.cli.demo": "makes its session as the README advises users to"}
"""Modules of ours that take a name from a door -> why."""


def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Every module of production code, of the simulation and of the test kit, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = parse(path.read_text("utf-8"), str(path))
    return found


@pytest.fixture(scope="module", name="with_kit")
def _with_kit() -> dict[str, ast.Module]:
    return sources()


@pytest.fixture(scope="module", name="modules")
def _modules(with_kit: dict[str, ast.Module]) -> dict[str, ast.Module]:
    return {name: tree for name, tree in with_kit.items() if not name.startswith(TEST_KIT)}


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


def circles(leads_to: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules, or rooms, that lead to each other."""
    reach: dict[str, set[str]] = {}
    for module in leads_to:
        seen: set[str] = set()
        todo = list(leads_to[module])
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo.extend(leads_to[one])
        reach[module] = seen
    found: list[set[str]] = []
    for module in sorted(leads_to):
        if module in reach[module] and not any(module in circle for circle in found):
            found.append({other for other in reach[module] if module in reach[other]})
    return found


def module_circles(modules: dict[str, ast.Module]) -> list[set[str]]:
    return circles({module: imported(modules, module) for module in modules})


def room_circles(modules: dict[str, ast.Module]) -> list[set[str]]:
    """Rooms of one package that lead to each other: a folder leads where any module in it leads."""
    imports = {module: imported(modules, module) for module in modules}
    packages = {module.rsplit(".", 1)[0] for module in modules if "." in module}
    found = []
    for package in sorted(packages):
        inside = {module: ".".join(module.split(".")[: package.count(".") + 2]) for module in modules}
        inside = {module: room for module, room in inside.items() if module.startswith(f"{package}.")}
        leads_to: dict[str, set[str]] = {room: set() for room in inside.values()}
        for module, room in inside.items():
            leads_to[room] |= {inside[other] for other in imports[module] if other in inside} - {room}
        found += circles(leads_to)
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when the module is imported: branches too, functions and classes not."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from statements(getattr(node, part, []))


def handed_on(module: ast.Module) -> set[str]:
    """Names that a module has because it imports them."""
    return {
        name.asname or name.name
        for node in statements(module.body)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def all_of(module: ast.Module) -> set[str]:
    """What its `__all__` lists."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def second_addresses(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> the names that it does not take from where they are defined, as `module.name`."""
    handing_on = {module: handed_on(tree) for module, tree in modules.items()}
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules.items():
        taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{name.name}" for node in taken for name in node.names}
        wholes = {name.asname or name.name: f"{node.module}.{name.name}" for node in taken for name in node.names}
        opened = {name: whole for name, whole in wholes.items() if whole in modules}
        for node in ast.walk(tree):  # `errors.CallerError`, where `errors` is a module of ours
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in opened:
                names.add(f"{opened[node.value.id]}.{node.attr}")
        for whole in names - modules.keys():
            origin, name = whole.rsplit(".", 1)
            if name in handing_on.get(origin, ()):
                found[module].add(whole)
    return dict(found)


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
    found = module_circles(modules)
    assert [circle for circle in found if circle not in CIRCLES] == []
    assert [circle for circle in CIRCLES if circle not in found] == [], "undone: take it off the list"


def test_no_rooms_of_a_package_lead_to_each_other(modules):
    found = room_circles(modules)
    assert [circle for circle in found if frozenset(circle) not in ROOM_CIRCLES] == []
    assert [circle for circle in ROOM_CIRCLES if circle not in found] == [], "undone: take it off the list"


def test_a_name_is_taken_from_where_it_is_defined(with_kit):
    found = second_addresses(with_kit)
    assert {module: names for module, names in found.items() if module not in THROUGH_A_DOOR} == {}
    assert THROUGH_A_DOOR.keys() - found.keys() == set(), "one is gone: take it off the list"
    doors = {name.rsplit(".", 1)[0] for module in THROUGH_A_DOOR for name in found[module]}
    assert doors <= PUBLIC_DOORS.keys()


def test_only_doors_for_users_hand_names_on(modules):
    found = {module: all_of(tree) & handed_on(tree) for module, tree in modules.items()}
    assert {module: names for module, names in found.items() if names and module not in PUBLIC_DOORS} == {}


def test_a_class_has_a_name_of_its_own(modules):
    found = names_twice(modules)
    assert {name: where for name, where in found.items() if name not in NAMES_TWICE} == {}
    assert NAMES_TWICE.keys() - found.keys() == set(), "one is gone: take it off the list"


def test_a_test_file_has_a_name_of_its_own():
    """pytest refuses to collect two of one name, wherever they lie."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_in_production_imports_the_test_kit(modules, with_kit):
    kit = with_kit.keys() - modules.keys()
    production = {name for name in modules if not name.startswith("simulation")}
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
    door = "from metadata import one\nfrom metadata.one import Name\n\n__all__ = ['Name']\n"
    (tmp_path / "dlspark" / "door.py").write_text(door)
    for room, other in (("upper", "lower"), ("lower", "upper")):
        (tmp_path / "simulation" / room).mkdir()
        (tmp_path / "simulation" / room / "uses.py").write_text(f"import simulation.{other}.used\n")
        (tmp_path / "simulation" / room / "used.py").write_text("from dlspark import door\n\nprint(door.Name)\n")
    (tmp_path / "simulation" / "through.py").write_text("def act():\n    from dlspark.door import Name\n")
    modules = sources(tmp_path)
    assert [name for name, lines in functions(modules) if lines > MAX_FUNCTION_LINES] == ["dlspark.long.long"]
    assert long_files(tmp_path) == {"dlspark/alone.py"}
    assert module_circles(modules) == [{"metadata.one", "metadata.two"}]
    assert room_circles(modules) == [{"metadata.one", "metadata.two"}, {"simulation.lower", "simulation.upper"}]
    assert {module for module, tree in modules.items() if all_of(tree) & handed_on(tree)} == {"dlspark.door"}
    second = {"dlspark.door.Name"}
    through = {f"simulation.{name}" for name in ("lower.used", "upper.used", "through")}
    assert second_addresses(modules) == dict.fromkeys(through, second)
    assert names_twice(modules) == {"Name": ["metadata.one", "dlspark.long"]}
    assert imported(modules, "dlspark.long") == {"dlspark.alone"}
