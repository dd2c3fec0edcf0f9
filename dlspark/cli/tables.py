"""Tables for people, never wider than the terminal: what does not fit beside goes below.

A row that is too wide is folded between its columns, and the head with it in the same way. Nothing is cut off: a cell
that is wider than the terminal is left to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence

_GAP = "  "
_INDENT = "    "


class Table:
    """Rows below their columns' names; numbers stand to the right, None is an empty cell."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._columns = list(columns)
        self._rows = [list(row) for row in rows]

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The table in lines of at most `width` characters; the terminal's (80 where there is none) if not said."""
        width = shutil.get_terminal_size().columns if width is None else width
        texts = [[_text(cell) for cell in row] for row in self._rows]
        widths = [max(map(len, column)) for column in zip(self._columns, *texts, strict=True)]
        right = [all(_is_number(row[place]) for row in self._rows) for place in range(len(widths))]
        folds = _folds(widths, width)
        for row in (self._columns, *texts):
            cells = [
                text.rjust(size) if to_right else text.ljust(size)
                for text, size, to_right in zip(row, widths, right, strict=True)
            ]
            for number, (first, after) in enumerate(folds):
                line = (_INDENT if number else "") + _GAP.join(cells[first:after])
                # A fold of empty cells only would be a line of nothing.
                if number == 0 or line.strip():
                    yield line.rstrip()


def _folds(widths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Which columns stand on which line: (first, behind the last) of each."""
    folds: list[tuple[int, int]] = []
    first, used = 0, 0
    for place, size in enumerate(widths):
        needed = used + size + (len(_GAP) if place > first else 0)
        if needed > width and place > first:
            folds.append((first, place))
            first, needed = place, len(_INDENT) + size
        used = needed
    return [*folds, (first, len(widths))]


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int) and not isinstance(cell, bool))
