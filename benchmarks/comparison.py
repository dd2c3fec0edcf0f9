"""Two revisions compared, row by row: what their rounds measured, how far apart they are, and what that says.

Rounds differ though nothing was changed. So a figure is called faster or slower only where the rounds of one revision
lie all on one side of the rounds of the other: then the difference is more than the spread of either. With few rounds
that happens by chance as well (`chance`), which the table says below itself; one round says nothing about a spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from benchmarks.results import is_wide, markdown, number, spread

Turn: TypeAlias = "Sequence[Mapping[str, Any]]"
"""What one turn has measured: the rows that `python -m benchmarks --json` wrote."""
OLD, NEW = "old", "new"
MEASURED: Final = "measured"
RATIO: Final = "ratio"
NO_DIFFERENCE: Final = "no difference that rounds would not make"
UNKNOWN: Final = "one round says nothing of it"
SPEEDS: Final = ("us", "ms", "s")
"""Units of times; what is measured in others, and is no rate, is not faster or slower but less or more."""


@dataclass(frozen=True, slots=True)
class Figure:
    """How do two revisions differ in one figure of a row?"""

    what: str
    unit: str
    old: list[float]
    new: list[float]

    @property
    def times(self) -> float:
        """The median of the new one over that of the old one; not a number where that is 0."""
        old = statistics.median(self.old)
        return statistics.median(self.new) / old if old else math.nan

    @property
    def verdict(self) -> str:
        """What may be said of the difference."""
        if min(len(self.old), len(self.new)) < 2:
            return UNKNOWN
        if max(self.old) >= min(self.new) and max(self.new) >= min(self.old):
            return NO_DIFFERENCE
        more = min(self.new) > max(self.old)
        if self.unit.endswith("/s"):
            return "faster" if more else "slower"
        if self.unit in SPEEDS:
            return "slower" if more else "faster"
        return "more" if more else "less"


@dataclass(frozen=True, slots=True)
class Pair:
    """Which figures does a row have in both revisions?"""

    key: str
    what: str
    limit: str
    main: list[Figure]
    """Measured, and its ratio to the limit."""
    costs: list[Figure]
    remarks: list[str]


@dataclass(slots=True)
class Comparison:
    """Which rows have both revisions measured, and which only one of them?"""

    pairs: list[Pair] = field(default_factory=list)
    only: dict[str, list[str]] = field(default_factory=lambda: {OLD: [], NEW: []})


def chance(rounds: int) -> float:
    """Return how probable it is that so many rounds of two equal revisions lie apart: all of one above the other's."""
    return 2 / math.comb(2 * rounds, rounds)


def compare_turns(old: Sequence[Turn], new: Sequence[Turn]) -> Comparison:
    """Match the rows of all turns of both revisions, by row, words, limit and unit."""
    found = Comparison()
    sides = {OLD: _rows(old), NEW: _rows(new)}
    for name in dict.fromkeys([*sides[NEW], *sides[OLD]]):
        rounds = {side: rows[name] for side, rows in sides.items() if name in rows}
        if len(rounds) == 1:
            key, what, limit, unit = name
            of_unit = f" in {unit}" if unit else ""
            found.only[next(iter(rounds))].append(f"{key} {what}{of_unit}, over {limit}")
        else:
            found.pairs.append(_pair(name, rounds[OLD], rounds[NEW]))
    return found


_Name: TypeAlias = "tuple[str, str, str, str]"
"""Row, words, limit and unit: figures of different units are not compared."""


def _rows(turns: Sequence[Turn]) -> dict[_Name, list[Mapping[str, Any]]]:
    """Return the rows with a figure, those of all turns together."""
    found: dict[_Name, list[Mapping[str, Any]]] = {}
    for turn in turns:
        for row in turn:
            if row["measured"]:
                found.setdefault((row["row"], row["what"], row["limit"], row["unit"]), []).append(row)
    return found


def _pair(name: _Name, old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Pair:
    key, what, limit, unit = name
    figures = {kind: (_all(old, kind), _all(new, kind)) for kind in ("measured", "ratios")}
    main = [Figure(MEASURED, unit, *figures["measured"]), Figure(RATIO, unit, *figures["ratios"])]
    remarks = dict.fromkeys(
        f"{side}: {remark}" for side, rows in ((OLD, old), (NEW, new)) for row in rows for remark in row["remarks"]
    )
    for side, values in zip((OLD, NEW), figures["measured"], strict=True):
        if is_wide(values):
            remarks[f"{side}: rounds differ by more than half"] = None
    return Pair(key, what, limit, main, _cost_figures(old, new), list(remarks))


def _all(rows: Sequence[Mapping[str, Any]], kind: str) -> list[float]:
    return [figure for row in rows for figure in row[kind]]


def _cost_figures(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return the costs that both know; none of a revision from before there were any."""
    before, after = _costs(old), _costs(new)
    return [
        Figure(f"{process}: {what}", "", before[process, what], rounds)
        for (process, what), rounds in after.items()
        if (process, what) in before
    ]


def _costs(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for process, figures in ((row.get("costs") or {}).get("processes") or {}).items():
            for what, rounds in figures.items():
                found.setdefault((process, what), []).extend(rounds)
    return found


HEADINGS: Final = (
    *("row", "what", "old", "new", "new/old", "difference"),
    *("limit", "old ratio", "new ratio", "new/old ratio", "difference of ratios", "remarks"),
)
COST_HEADINGS: Final = ("row", "what", "of one unit", "old", "new", "new/old", "difference")


def comparison_table(found: Comparison) -> str:
    """Return everything in Markdown: the rows, what a unit costs, rows of one revision alone."""
    parts = []
    if found.pairs:
        parts.append(markdown([HEADINGS, *map(_cells, found.pairs)]))
    costs = [(pair.key, pair.what, *_compared(figure)) for pair in found.pairs for figure in pair.costs]
    if costs:
        parts.append(markdown([COST_HEADINGS, *costs]))
    parts += [f"Only the {side} revision has: {row}" for side, rows in found.only.items() for row in rows]
    rounds = min((len(figure.old) for pair in found.pairs for figure in pair.main), default=0)
    if rounds > 1:
        parts.append(
            f"Where nothing was changed, {chance(rounds):.1%} of the figures lie so far apart by chance "
            f"({rounds} rounds each)."
        )
    return "\n\n".join(parts)


def _cells(pair: Pair) -> tuple[str, ...]:
    measured, ratio = pair.main
    _, old, new, times, verdict = _compared(measured)
    unit = f" {measured.unit}" if measured.unit else ""
    _, *ratios = _compared(ratio)
    figures = (pair.key, pair.what, old + unit, new + unit, times, verdict)
    return (*figures, pair.limit, *ratios, "; ".join(pair.remarks))


def _compared(figure: Figure) -> tuple[str, str, str, str, str]:
    times = figure.times
    shown = "" if math.isnan(times) else number(times)
    return figure.what, spread(figure.old), spread(figure.new), shown, figure.verdict


def comparison_json(found: Comparison) -> dict[str, object]:
    """Return the same with every round's figures."""
    return {
        "rows": [
            {
                "row": pair.key,
                "what": pair.what,
                "limit": pair.limit,
                "figures": [_figure_json(figure) for figure in pair.main],
                "costs": [_figure_json(figure) for figure in pair.costs],
                "remarks": pair.remarks,
            }
            for pair in found.pairs
        ],
        "only": found.only,
    }


def _figure_json(figure: Figure) -> dict[str, object]:
    times = figure.times
    return {
        "what": figure.what,
        "unit": figure.unit,
        "old": figure.old,
        "new": figure.new,
        "new_over_old": None if math.isnan(times) else times,
        "difference": figure.verdict,
    }
