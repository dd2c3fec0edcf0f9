"""The tests of what has changed, for `make quick`: `python -m helpers.changed` prints their files, one a line.

Changed is what differs from the branch's beginning (`origin/main`, else `main`), committed or not. A test file is among
them if it has changed itself, lies in the folder that mirrors a changed module's, or imports a changed module or helper
of tests; files of the first tier only, and no more than take `BUDGET_S` together: the nearest first. What is left out
is said on standard error.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from helpers.parsing import parse
from helpers.paths import ROOT, TESTS
from helpers.sharing import known_durations
from helpers.tiers import second_tier

BUDGET_S: Final = 120.0
"""Seconds of tests, which three processes share."""
UNKNOWN_S: Final = 1.5
"""What a file takes that is not listed."""
ALWAYS: Final = ("test_house.py", "test_citations.py")


def changed_files() -> set[Path]:
    """Return the files that differ from where this branch began, and those that are new; below the root."""
    begins = [found[0] for name in ("origin/main", "main") if (found := _git("merge-base", "HEAD", name))]
    begin = begins[0] if begins else "HEAD"
    return {Path(line) for line in (*_git("diff", "--name-only", begin), *_git("ls-files", "-o", "--exclude-standard"))}


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def module_of(path: Path) -> str:
    """Return the dotted name of a file below the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_by(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, wherever in it, as it is when this is first asked."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def nearest_first(changed: Iterable[Path], tests: Iterable[Path]) -> list[Path]:
    """Return those of the test files, which are below the tests' folder, that have to do with what has changed."""
    changed = set(changed)
    python = [path for path in changed if path.suffix == ".py"]
    modules = {module_of(path.relative_to("tests") if path.parts[0] == "tests" else path) for path in python}
    folders = {_mirror(path) for path in python if path.parts[0] != "tests"}
    found: list[tuple[int, Path]] = []
    for test in tests:
        if Path("tests") / test in changed or test.name in ALWAYS:
            found.append((0, test))
        elif test.parent in folders:
            found.append((1, test))
        elif modules & imported_by(TESTS / test):
            found.append((2, test))
    return [test for _, test in sorted(found)]


def _mirror(path: Path) -> Path:
    """Return the folder with a module's tests: core/ for dlspark/core/x.py, storage_node/ for storage_node/y.py."""
    return Path(*path.parts[1:-1]) if path.parts[0] == "dlspark" else Path(*path.parts[:-1])


def main() -> None:
    """Print the files."""
    known, second = known_durations(), second_tier()
    tests = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    left, out = BUDGET_S, 0
    for test in nearest_first(changed_files(), (one for one in tests if one.as_posix() not in second)):
        left -= known.get(test.as_posix(), UNKNOWN_S)
        if left < 0:
            out += 1
            left += known.get(test.as_posix(), UNKNOWN_S)
        else:
            print(f"tests/{test.as_posix()}")
    if out:
        print(f"{out} test files more have to do with what has changed: `make test` runs them", file=sys.stderr)


if __name__ == "__main__":
    main()
