"""What the repository's files cite, and whether it is there: rules by their codes, rows by their numbers, pages.

Of Python files comments, docstrings and strings are read, of Java files and of settings their comments, of pages and
notebooks the text. Codes and pages are the forms of docs/reference/README.md; whatever else names a place in a document
that is not in the repository is a dead form.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from helpers.documents.pages import anchors, broken_links, table_rows
from helpers.paths import DOCS, ROOT

DEFINED_IN = {
    "I": "docs/reference/invariants.md",
    "D": "docs/reference/invariants.md",
    "F": "docs/features.md",
    "P": "docs/performance.md",
}
"""Letters of codes, and the page that has a heading or a row for each."""

SUFFIXES = (".py", ".java", ".md", ".toml", ".cfg", ".conf", ".ipynb")
_CODE = re.compile(r"\b([IDFP])(\d{1,3})\b")
_PAGE = re.compile(r"(?<!\]\()(?<![\w./:-])((?:[\w.-]+/)*[\w-]+\.md)\b(#[\w-]+)?")
_DEAD = re.compile(
    r"""
      \b(?:the|wire|format|log|protocol|metadata)\s+specifications?\b | \bspecification,?\s+(?:sections?\s+)?\d
    | \bspecs?\s+(?:traps?\b|sections?\b|of\s+the\b|\d) | \bspec/\w+
    | \btraps?\s+\d+ | \bdesign\s+(?:rule|section)s?\s+\d+ | \b(?:in|by)\s+the\s+design\b
    | \bsections?\s+\d+(?:\.\d+)*
    | \bformat,\s+sections?\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BARE = re.compile(
    r"""(?:(?<=\() | (?<=,\s) | (?<=\bof\s) | (?<=\band\s)) [1-9]\d?\.[1-9]\d? (?=\)) | -{9}\s+\d+\.\d+""", re.VERBOSE
)
"""A section's number without any word, as comments in code have it; versions and fractions look otherwise."""
_RFC = re.compile(r"\bRFC\s+\d+,?\s+sections?\s+[\d.]+", re.IGNORECASE)
_NOQA = re.compile(r"noqa:[\sA-Z0-9,]+")
_VECTORS = re.compile(r"^```vectors$.*?^```$", re.M | re.S)
_JAVA_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
_JAVA_MARK = re.compile(r"^\s*(?:/\*+|\*+/?|//)", re.M)
_ENDS_LINE = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}
_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Piece(NamedTuple):
    """Text of a file from a line on, by its kind: a program's comment or docstring, its string, or a page.

    Strings may name pages that are made up, for a test; pages may say 1.5 in brackets, and mean a figure.
    """

    line: int
    text: str
    kind: Literal["comment", "string", "page"] = "comment"


def is_read(path: str) -> bool:
    """Return whether a file of this name is looked through."""
    return path.endswith(SUFFIXES) or Path(path).name == "Makefile"


def pieces(path: str, content: str) -> Iterator[Piece]:
    """Yield what people read in a file, by the kind that its name tells."""
    if path.endswith(".py"):
        yield from _of_python(content)
    elif path.endswith(".java"):
        for found in _JAVA_COMMENT.finditer(content):
            if not found[0].startswith('"'):
                yield Piece(_line(content, found.start()), _JAVA_MARK.sub(" ", found[0]))
    elif path.endswith(".md"):
        yield Piece(1, _VECTORS.sub(lambda block: "\n" * block[0].count("\n"), content), "page")
    elif path.endswith(".ipynb"):
        for cell in json.loads(content)["cells"]:
            yield Piece(1, "".join(cell["source"]), "page")
    else:
        yield from _comments(
            (number, line.partition("#")[2]) for number, line in enumerate(content.splitlines(), 1) if "#" in line
        )


def _of_python(content: str) -> Iterator[Piece]:
    comments: list[tuple[int, str]] = []
    before, depth = tokenize.NEWLINE, 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            comments.append((token.start[0], _NOQA.sub("", token.string.lstrip("#"))))
        elif token.type in _STRINGS:
            described = before in _ENDS_LINE and not depth  # a statement of its own
            yield Piece(token.start[0], token.string, "comment" if described else "string")
        elif token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        before = token.type
    yield from _comments(iter(comments))


def _comments(lines: Iterator[tuple[int, str]]) -> Iterator[Piece]:
    """Yield comments; those on lines that follow each other are one text."""
    first, last = 0, -1
    texts: list[str] = []
    for number, text in lines:
        if number != last + 1:
            if texts:
                yield Piece(first, "\n".join(texts))
            first, texts = number, []
        texts.append(text)
        last = number
    if texts:
        yield Piece(first, "\n".join(texts))


def dead_citations(path: str, content: str) -> list[str]:
    """Return what a file (a page must be on disk) cites that is not there, as `path:line: what`."""
    found = [
        (piece.line + line - 1, what)
        for piece in pieces(path, content)
        for line, what in [*_dead_forms(piece), *_dead_codes(piece), *_dead_pages(piece, path)]
    ]
    links = broken_links(ROOT / path) if path.endswith(".md") else []
    return [f"{path}:{line}: {what}" for line, what in sorted(found)] + [f"{path}: leads nowhere: {x}" for x in links]


def _dead_forms(piece: Piece) -> Iterator[tuple[int, str]]:
    text = _RFC.sub(lambda rfc: "\n" * rfc[0].count("\n"), piece.text)
    for found in [*_DEAD.finditer(text), *(_BARE.finditer(text) if piece.kind == "comment" else ())]:
        said = " ".join(found[0].split())
        yield _line(text, found.start()), f"cites a document that is not here: {said!r}"


def _dead_codes(piece: Piece) -> Iterator[tuple[int, str]]:
    for found in _CODE.finditer(piece.text):
        page = DEFINED_IN[found[1]]
        if found[0] not in defined_codes(page):
            yield _line(piece.text, found.start()), f"{found[0]} is not defined in {page}"


def _dead_pages(piece: Piece, path: str) -> Iterator[tuple[int, str]]:
    for found in _PAGE.finditer(piece.text):
        name, anchor = found[1], (found[2] or "")[1:]
        if piece.kind == "string" and not name.startswith("docs/"):
            continue
        homes = (ROOT, DOCS, DOCS / "reference", (ROOT / path).parent)
        page = next((home / name for home in homes if (home / name).is_file()), None)
        if page is None:
            yield _line(piece.text, found.start()), f"there is no page {name}"
        elif anchor and anchor not in anchors(page):
            yield _line(piece.text, found.start()), f"{name} has no heading #{anchor}"


@cache
def defined_codes(page: str) -> frozenset[str]:
    """Return the codes of a page: a heading that is the code, or a row's first cell (`P1-P5` are five)."""
    text = (ROOT / page).read_text() if (ROOT / page).is_file() else ""
    found = set(re.findall(r"^#+ ([ID]\d+)$", text, re.M))
    for _, row in table_rows(ROOT / page) if text else ():
        cell = re.match(r"([FP])(\d+)(?:-[FP]?(\d+))?\b", row[0])
        if cell is not None:
            found |= {f"{cell[1]}{number}" for number in range(int(cell[2]), int(cell[3] or cell[2]) + 1)}
    return frozenset(found)


def _line(text: str, at: int) -> int:
    """Return the line, counted from 1, in which a place of the text is."""
    return text.count("\n", 0, at) + 1
