"""Rows of the table: what was measured, the limit measured beside it, their ratio and the target for that.

A ratio is taken within a round, of the measured figure and the mean of the limit before and after it, so that a machine
that is slower for a while slows both. Absolute figures only show the order of size.

A row says where it cannot be believed (`remarks`), here and nowhere else: a figure that cannot be (below 0, 0, not
finite), or two rows that contradict each other over the same job. Such a row has reached nothing, whatever its ratio
says. Rounds that differ by more than half of their median are said to, and count.

What one unit of a row's work costs each process is in a second table (`costs`). Rows of one load have it once, at the
first of them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.costs import Costs, beside

WIDE: Final = 0.5
"""Rounds whose smallest and largest figure are further apart than this share of their median say so."""
CONTRADICTION: Final = 1.5
"""Medians of one job in two rows are at most this far apart."""


@dataclass(frozen=True, slots=True)
class Target:
    """`ratio` is to be reached from above (speed) or from below (`at_most`: latency, overhead)."""

    ratio: float
    at_most: bool = False

    def met(self, ratio: float) -> bool:
        """Return whether a measured ratio reaches the target."""
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def half_met(self, ratio: float) -> bool:
        """Return whether it reaches half of the target: twice the ratio where less is better."""
        return ratio <= 2 * self.ratio if self.at_most else ratio >= self.ratio / 2

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.ratio:g}"


@dataclass(slots=True)
class Row:
    """One line of the table, filled round by round."""

    key: str
    what: str
    unit: str
    limit: str
    """In words, what `limits` measure."""
    target: Target | None
    """None: for information only."""
    counts: bool = False
    """True where 0 can be: a number of events is measured, and not a time, a rate or a size."""
    job: str = ""
    """The name of what is measured where a second row measures it too; and of what `limits` measure:"""
    limit_job: str = ""
    measured: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    """Said by `compare`: other rows that measured the same job otherwise."""
    costs: list[Costs] = field(default_factory=list)
    """Of each round, where they were looked at."""

    def add(self, measured: float, *limits: float, costs: Costs | None = None) -> None:
        """Add one round: the figure, the limit as often as it was measured around it, and what a unit cost."""
        self.measured.append(measured)
        self.limits.append(statistics.mean(limits))
        if costs is not None:
            self.costs.append(costs)

    @property
    def cost_rounds(self) -> dict[str, dict[str, list[float]]]:
        """Every round's costs of one unit, by process and by what is counted."""
        found: dict[str, dict[str, list[float]]] = {}
        for costs in self.costs:
            for process, figures in costs.figures.items():
                for what, figure in figures.items():
                    found.setdefault(process, {}).setdefault(what, []).append(figure)
        return found

    @property
    def more_is_better(self) -> bool:
        """True for rates; times, sizes and numbers of events are better the less they are."""
        return self.unit.endswith("/s")

    @property
    def ratios(self) -> list[float]:
        """Measured over limit, round by round; not a number where the limit was 0."""
        return [figure / limit if limit else math.nan for figure, limit in zip(self.measured, self.limits, strict=True)]

    @property
    def faults(self) -> list[str]:
        """Why the row cannot be believed; empty where it can."""
        floor = -math.ulp(0.0) if self.counts else 0.0
        wrong = [figure for figure in self.measured if not floor < figure < math.inf]
        wrong += [limit for limit in self.limits if not 0.0 < limit < math.inf]
        wrong += [
            figure
            for figures in self.cost_rounds.values()
            for rounds in figures.values()
            for figure in rounds
            if not 0.0 <= figure < math.inf
        ]
        return [f"{number(figure)} cannot be" for figure in wrong] + self.contradictions

    @property
    def remarks(self) -> list[str]:
        """`faults`, and that rounds differ by more than half."""
        parts = (("measured", self.measured), ("limit", self.limits), ("ratio", self.ratios))
        wide = [name for name, values in parts if is_wide(values)]
        return self.faults + ([f"rounds differ by more than half: {', '.join(wide)}"] if wide else [])

    @property
    def reached_half(self) -> bool:
        """True where half of the target was reached (in the median); rows without a target have nothing to reach but to
        be believed.
        """
        if self.faults:
            return False
        return self.target is None or (bool(self.measured) and self.target.half_met(statistics.median(self.ratios)))


@dataclass(frozen=True, slots=True)
class Measured:
    """What did a system find of a load that several rows share?"""

    figures: tuple[float, ...]
    """One a row."""
    costs: Costs | None = None
    """Of one unit, where it knows how many there were."""


def add_all(rows: Sequence[Row], own: Measured, peer: Measured, name: str) -> None:
    """Add a round to the rows of a load; the first has what a unit costs, beside what it costs the peer."""
    costs = own.costs if peer.costs is None or own.costs is None else beside(own.costs, name, peer.costs)
    for number, (row, figure, limit) in enumerate(zip(rows, own.figures, peer.figures, strict=True)):
        row.add(figure, limit, costs=None if number else costs)


def compare(rows: Sequence[Row]) -> None:
    """Note in rows that measured the same job where they contradict each other. Called once, behind the last round."""
    found: defaultdict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row in rows:
        for job, values in ((row.job, row.measured), (row.limit_job, row.limits)):
            if job and values:
                found[job].append((row, statistics.median(values)))
    for job, figures in found.items():
        least, most = min(figure for _, figure in figures), max(figure for _, figure in figures)
        if most > CONTRADICTION * least:
            for row, _ in figures:
                row.contradictions.append(f"{job}: {number(least)} in one row, {number(most)} in another")


HEADINGS = ("row", "what", "measured", "limit", "ratio", "target", "half", "target reached", "remarks")
COST_HEADINGS = ("row", "what", "one", "process")


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table, medians with their smallest and largest value."""
    return markdown([HEADINGS, *(_cells(row) for row in rows)])


def cost_table(rows: Iterable[Row]) -> str:
    """Return what one unit costs each process, as a Markdown table; empty where no row knows that."""
    known = [row for row in rows if row.costs]
    kinds = dict.fromkeys(what for row in known for figures in row.cost_rounds.values() for what in figures)
    lines = [(*COST_HEADINGS, *kinds)] if known else []
    for row in known:
        for process, figures in row.cost_rounds.items():
            cells = (spread(figures[what]) if what in figures else "" for what in kinds)
            lines.append((row.key, row.what, row.costs[0].per, process, *cells))
    missing = dict.fromkeys(costs.missing for row in known for costs in row.costs if costs.missing)
    return "\n".join([markdown(lines), *(f"No system calls: {reason}" for reason in missing)]) if lines else ""


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table, the first of the lines its headings."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    printed = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    printed.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(printed)


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return the rows with every round's figures, for comparing runs."""
    return [
        {
            "row": row.key,
            "what": row.what,
            "unit": row.unit,
            "limit": row.limit,
            "measured": row.measured,
            "limits": row.limits,
            "ratios": row.ratios,
            "costs": {"one": row.costs[0].per, "processes": row.cost_rounds} if row.costs else None,
            "target": None if row.target is None else str(row.target),
            "remarks": row.remarks,
        }
        for row in rows
    ]


def _cells(row: Row) -> tuple[str, ...]:
    if not row.measured:
        return (row.key, row.what, "not measured", row.limit, "", str(row.target or ""), "", "", "")
    ratio = statistics.median(row.ratios)
    target = row.target
    believed = not row.faults
    return (
        row.key,
        row.what,
        f"{spread(row.measured)} {row.unit}",
        f"{number(statistics.median(row.limits))} {row.limit}",
        spread(row.ratios),
        "" if target is None else str(target),
        "" if target is None else ("yes" if believed and target.half_met(ratio) else "NO"),
        "" if target is None else ("yes" if believed and target.met(ratio) else "no"),
        "; ".join(row.remarks),
    )


def spread(values: Sequence[float]) -> str:
    """Return `median (smallest-largest)`; of one round its figure alone."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def is_wide(values: Sequence[float]) -> bool:
    """Return whether the smallest and the largest are further apart than `WIDE` of the median."""
    return bool(values) and max(values) - min(values) > WIDE * abs(statistics.median(values))


def number(value: float) -> str:
    """Return three significant digits, no exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
