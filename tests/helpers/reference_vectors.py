"""The test vectors of the pages under docs/reference: bytes that the code must read and write exactly as they stand.

A page holds them in fenced blocks whose info string is `vectors`, one `name: hex` a line. Spaces may split the
digits, a line that begins with two spaces continues the one above it, `#` begins a line of comment, and empty lines
separate. A name is unique on its page, over all its blocks.
"""

from __future__ import annotations

import re

from helpers.paths import DOCS

REFERENCE = DOCS / "reference"

_NAME = re.compile(r"\S[^:`]*")
_DIGITS = re.compile(r"(?:[0-9a-f]{2})+")
_OPENED, _CLOSED, _CONTINUED = "```vectors", "```", "  "


def vectors(page: str) -> dict[str, bytes]:
    """Return the vectors of a page by name, in the page's order; `page` is its file name, as `wire.md`.

    Raises FileNotFoundError for a page that is not there, and ValueError for one without vectors, for a name that
    stands twice, for what is not hexadecimal digits in pairs and for a block without an end.
    """
    found = read_vectors((REFERENCE / page).read_text(), page)
    if not found:
        raise ValueError(f"{page}: no vectors")
    return found


def read_vectors(text: str, page: str) -> dict[str, bytes]:
    """Return the vectors in the text of a page; `page` names it in errors. Raises as `vectors` does."""
    digits: dict[str, list[str]] = {}
    lines_of: dict[str, int] = {}
    name = None
    within = False
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{page}, line {number}"
        if not within:
            within = line.rstrip() == _OPENED
            name = None
        elif line.rstrip() == _CLOSED:
            within = False
        elif not line.strip() or line.startswith("#"):
            continue
        elif line.startswith(_CONTINUED):
            if name is None:
                raise ValueError(f"{place}: continues no vector")
            digits[name].append(line)
        else:
            name, colon, first = line.partition(":")
            if not colon or not _NAME.fullmatch(name):
                raise ValueError(f"{place}: not `name: hex`")
            if name in digits:
                raise ValueError(f"{place}: the name {name!r} stands twice, first in line {lines_of[name]}")
            digits[name], lines_of[name] = [first], number
    if within:
        raise ValueError(f"{page}: a block of vectors has no end")
    return {name: _bytes("".join(parts), f"{page}, line {lines_of[name]}: {name}") for name, parts in digits.items()}


def _bytes(digits: str, place: str) -> bytes:
    digits = "".join(digits.split())
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{place}: not pairs of hexadecimal digits 0-9a-f")
    return bytes.fromhex(digits)
