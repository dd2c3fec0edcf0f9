"""Every citation in the repository leads to something in the repository: see docs/reference/README.md for the forms.

The rules are tried on small made-up texts; this file, which has those, is the only one that is not looked through.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from helpers.documents.citations import dead_citations, defined_codes, is_read, pieces
from helpers.paths import ROOT

MADE_UP = "tests/test_citations.py"


def _files() -> list[str]:
    """All files of the repository that are read, those that are not committed yet as well."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for path in listed.split("\0") if path and is_read(path) and (ROOT / path).is_file()]


def test_every_citation_leads_to_something_that_is_here() -> None:
    files = _files()
    assert {"Makefile", "setup.cfg", "conf/bookie.conf", "README.md", "metadata/store.py"} <= set(files)
    dead = [line for path in files if path != MADE_UP for line in dead_citations(path, (ROOT / path).read_text())]
    assert dead == [], f"{len(dead)} citations lead nowhere:\n" + "\n".join(dead)


def test_all_codes_are_defined() -> None:
    defined = defined_codes("docs/reference/invariants.md")
    assert defined == {f"I{n}" for n in range(1, 22)} | {f"D{n}" for n in range(1, 20)}
    assert {"F1", "F112"} <= defined_codes("docs/features.md")
    assert {"P1", "P3", "P5", "P17"} <= defined_codes("docs/performance.md")


# ------------------------------------------------------------------------------------------- the rules can fail


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("x = 1  # keeps I99", 1, "I99 is not defined"),
        ('"""Fine.\n\nKeeps D20, too.\n"""', 3, "D20 is not defined"),
        ('raise Broken("two ends (I99)")', 1, "I99 is not defined"),
        ("f'{name}: two ends (I99)'", 1, "I99 is not defined"),
        ("# as row F113", 1, "F113 is not defined in docs/features.md"),
        ("# as row P99", 1, "P99 is not defined in docs/performance.md"),
        ("# (spec trap 41)", 1, "'spec trap'"),
        ("# what a (trap 31) is", 1, "'trap 31'"),
        ('"""Reads (wire specification 7.3)."""', 1, "'wire specification'"),
        ("# the longest line that there can be (wire\n# specification 7.3)", 1, "'wire specification'"),
        ('"""Listing (wire\nspecification 7.9)."""', 1, "'wire specification'"),
        ("# as the specification has it", 1, "'the specification'"),
        ("# (log format, section 2)", 1, "'format, section'"),
        ("# (section 3.7)", 1, "'section 3.7'"),
        ("# in order (design rule 1)", 1, "'design rule 1'"),
        ("# an exception is in the design", 1, "'in the design'"),
        ("# Sections 1.1 and 2", 1, "'Sections 1.1'"),
        ("# (spec 6.6)", 1, "'spec 6'"),
        ("# facts (spec of the connector)", 1, "'spec of the'"),
        ("x = 1\n# spec/cold", 2, "'spec/cold'"),
        ("# ends as a timeout (5.9).", 1, "'5.9'"),
        ("# is repaired (or collected, 7.8)", 1, "'7.8'"),
        ("# precedence (of 5.7)", 1, "'5.7'"),
        ("# ------------- 7.9", 1, "7.9"),
        ("# see docs/no_such_page.md", 1, "there is no page docs/no_such_page.md"),
        ("# see design.md", 1, "there is no page design.md"),
        ("# docs/faults.md#no-such-heading", 1, "docs/faults.md has no heading #no-such-heading"),
        ("# docs/reference/invariants.md#i99", 1, "has no heading #i99"),
        ("advice = 'see docs/faults.md#nowhere'", 1, "has no heading #nowhere"),
    ],
)
def test_a_dead_citation_in_code_is_found_where_it_stands(source: str, line: int, what: str) -> None:
    found = dead_citations("made/up.py", source + "\n")
    assert any(text.startswith(f"made/up.py:{line}: ") and what in text for text in found), found


@pytest.mark.parametrize(
    "source",
    [
        "# I7, D12, and D13 to D16 (I9); F68, and rows P13 to P17",
        "# docs/reference/invariants.md#i7, docs/faults.md, docs/faults.md#the-history",
        '"""See docs/faults.md#the-history, and README.md."""',
        "FORMAT = Struct('>I4s'); MAGIC = 0xD15BAC00; KEY = 'd41d8cd9'  # 4D5A",
        "import os  # noqa: F401",
        "D99 = spec.section  # spec = find_spec(name)",
        "# RFC 9110, section 15.4",
        "# Arrow leaves it out (26.0); before Python 3.12; 1.5 of them (0.5)",
        "page = tmp_path / 'no-such-page.md'",
        "call('7.8',\n  '(7.8)')",
        "# https://example.org/blob/main/docs/nowhere.md",
        "self.trap = trap  # sets a trap 3_000 callbacks ahead".replace("3_000", "some"),
    ],
)
def test_what_is_no_dead_citation_in_code_is_left_alone(source: str) -> None:
    assert dead_citations("made/up.py", source + "\n") == []


@pytest.mark.parametrize(
    ("path", "content", "line", "what"),
    [
        ("made/Up.java", "int I99;\n/** Keeps\n  * I99. */", 3, "I99"),
        ("made/Up.java", "foo(); // the\n // wire specification", 2, "'wire specification'"),
        ("made/up.toml", 'select = ["F401"]\n# I99', 2, "I99"),
        ("made/up.conf", "a=1\n# see docs/nowhere.md", 2, "docs/nowhere.md"),
        ("setup.cfg", "# (section 3.7)", 1, "'section 3.7'"),
        ("Makefile", "all: # I99", 1, "I99"),
        ("made/up.ipynb", '{"cells": [{"source": ["# I99"]}]}', 1, "I99"),
    ],
)
def test_other_files_are_read_as_their_kind_asks(path: str, content: str, line: int, what: str) -> None:
    found = dead_citations(path, content + "\n")
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}:{line}: ")
    assert what in found[0]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("| `I99` | a row |", ":1: I99 is not defined"),
        ("text\n```vectors\nI99: 00\n```\nthe specification", ":5: cites a document that is not here"),
        ("as `docs/nowhere.md` has it", ":1: there is no page docs/nowhere.md"),
        ("see [there](nowhere.md)", ": leads nowhere: page.md: nowhere.md"),
        ("# Here\n[there](#elsewhere)", ": leads nowhere: page.md: #elsewhere"),
        ("```vectors\n# comment\n```\n[there](#comment)", ": leads nowhere: page.md: #comment"),
    ],
)
def test_a_dead_citation_in_a_page_is_found(text: str, where: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    assert [line.startswith(f"{page}{where}") for line in dead_citations(str(page), page.read_text())] == [True]


def test_links_within_pages_and_figures_in_brackets_are_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `one`: here\n## Twice\n## Twice\n[a](#the-one-here) [b](#twice-1) 18.2 MB/s (29.2)\n")
    assert dead_citations(str(page), page.read_text()) == []
    assert len(dead_citations("made/up.py", "# 18.2 MB/s (29.2)\n")) == 1, "in a comment it stands for a section"


def test_what_a_release_joins_into_the_change_log_links_from_there(tmp_path: Path) -> None:
    changes = tmp_path / "docs" / "changes"
    changes.mkdir(parents=True)
    (tmp_path / "docs" / "there.md").touch()
    for name, target, broken in (
        ("one.added.md", "docs/there.md", False),
        ("two.added.md", "../there.md", True),
        ("README.md", "../there.md", False),
    ):
        page = changes / name
        page.write_text(f"[there]({target})\n")
        assert bool(dead_citations(str(page), page.read_text())) == broken, name


def test_comments_on_lines_that_follow_each_other_are_one_text() -> None:
    found = list(pieces("made/up.py", "# one\n# two\nx = 1  # three\n\n# four\n"))
    assert [(piece.line, piece.text) for piece in found] == [(1, " one\n two\n three"), (5, " four")]
