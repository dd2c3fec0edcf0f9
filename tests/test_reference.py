"""docs/reference/: each code has its entry, and each entry names files that cite it, tests and mutations that exist."""

from __future__ import annotations

import re

import pytest
from helpers.documents.pages import is_test, linked_files, table_rows
from helpers.paths import DOCS, ROOT

PAGE = DOCS / "reference" / "invariants.md"
INDEX = DOCS / "reference" / "README.md"
CODES = [f"I{number}" for number in range(1, 22)] + [f"D{number}" for number in range(1, 20)]
ENTRY = re.compile(r"\n\*\*.+?\*\*.*?\n\* Kept in:\s(?P<kept>.+?)\n\* Held by:\s(?P<held>.+?)(?=\n\n|\Z)", re.S)
MUTATIONS = {row[0].strip("`") for heading, row in table_rows(DOCS / "simulation.md") if heading == "Mutation check"}


def _entries() -> dict[str, str]:
    parts = re.split(r"^### (\w+)$", PAGE.read_text().partition("\n## Faults\n")[0], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_every_code_has_one_entry_in_order() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.M)
    assert headings == CODES


@pytest.mark.parametrize("code", CODES)
def test_an_entry_names_files_that_cite_it_and_tests_that_exist(code: str) -> None:
    entry = ENTRY.match(_entries()[code])
    assert entry is not None, "a rule in bold, `Kept in`, `Held by`"
    for path in _named(entry["kept"]):
        assert re.search(rf"\b{code}\b", (ROOT / path).read_text()), f"{path} does not cite {code}"
    tests, _, mutations = entry["held"].partition("mutation")
    assert _named(tests)
    assert [name for name in _named(tests) if not is_test(name)] == []
    assert [name for name in _named(mutations) if name not in MUTATIONS] == []


def test_the_index_links_every_page() -> None:
    assert linked_files(INDEX) >= set(INDEX.parent.glob("*.md")) - {INDEX}
    assert INDEX in linked_files(DOCS / "architecture.md") & linked_files(ROOT / "README.md")
