"""What tests of the documentation's pages share: examples, links, rows of tables, and the tests that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from helpers.parsing import parse
from helpers.paths import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_BLOCK = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")
_SEPARATOR = re.compile(r"\|(?:-+\|)+")


class Example(NamedTuple):
    """A block of Python, and what it prints: the block of text right behind it."""

    line: int
    source: str
    printed: str | None


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    found = list(_FENCE.finditer(text))
    blocks = []
    for number, block in enumerate(found):
        if block[1] != "python":
            continue
        behind = found[number + 1] if number + 1 < len(found) else None
        follows = behind is not None and behind[1] == "text" and not text[block.end() : behind.start()].strip()
        line = text.count("\n", 0, block.start(2)) + 1
        blocks.append(Example(line, block[2], behind[2] if behind is not None and follows else None))
    return blocks


def linked_files(page: Path) -> set[Path]:
    """Return the files that a page's relative links lead to."""
    return {(page.parent / target).resolve() for target, _ in _LINK.findall(page.read_text()) if target}


def broken_links(page: Path) -> list[str]:
    """Return relative links of a page that lead to no file, or to no heading in it."""
    broken = []
    home = page.parent
    if home.parts[-2:] == ("docs", "changes") and page.name != "README.md":
        home = home.parents[1]  # a release joins these into CHANGELOG.md, so their links lead from there
    for target, anchor in _LINK.findall(page.read_text()):
        linked = (home / target).resolve() if target else page
        if not linked.exists() or (anchor and anchor[1:] not in anchors(linked)):
            broken.append(f"{page.name}: {target}{anchor}")
    return broken


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them; the second of a name has `-1` behind it."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text()), re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(rf"{anchor}(-\d+)?", other))
        found.append(f"{anchor}-{again}" if again else anchor)
    return frozenset(found)


def table_rows(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Return the rows of all tables of a page, each with the heading that it is under, without tables' headers."""
    heading, lines = "", [*page.read_text().splitlines(), ""]
    for line, following in pairwise(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not _SEPARATOR.fullmatch(line) and not _SEPARATOR.fullmatch(following):
            yield heading, [cell.strip() for cell in line.strip("|").split(" | ")]


@cache
def _functions(path: Path) -> frozenset[str]:
    nodes = ast.walk(parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_test(cell: str) -> bool:
    """Return whether the test that a table's cell names, as `path` or `path::name` in backticks, exists."""
    path, _, name = cell.strip("`").partition("::")
    file = ROOT / path
    return path.startswith("tests/") and file.is_file() and (not name or name in _functions(file))
