"""Rows of the table: what was measured, the limit measured beside it, their ratio and the target for that.

A ratio is taken within a round, of the measured figure and the mean of the limit before and after it, so that a machine
that is slower for a while slows both. Absolute figures only show the order of size.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """`ratio` is to be reached from above (speed) or from below (`at_most`: latency, overhead)."""

    ratio: float
    at_most: bool = False

    def met(self, ratio: float) -> bool:
        """Whether a measured ratio reaches the target."""
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def half_met(self, ratio: float) -> bool:
        """Whether it reaches half of the target: twice the ratio where less is better."""
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
    measured: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def add(self, measured: float, *limits: float) -> None:
        """One round: the figure, and the limit as often as it was measured around it."""
        self.measured.append(measured)
        self.limits.append(statistics.mean(limits))

    @property
    def ratios(self) -> list[float]:
        """Measured over limit, round by round."""
        return [figure / limit for figure, limit in zip(self.measured, self.limits, strict=True)]

    @property
    def reached_half(self) -> bool:
        """Whether half of the target was reached (in the median); rows without a target have nothing to reach."""
        return self.target is None or (bool(self.measured) and self.target.half_met(statistics.median(self.ratios)))


HEADINGS = ("row", "what", "measured", "limit", "ratio", "target", "half", "target reached")


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, medians with their smallest and largest value."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    printed = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    printed.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(printed)


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """The rows with every round's figures, for comparing runs."""
    return [
        {
            "row": row.key,
            "what": row.what,
            "unit": row.unit,
            "limit": row.limit,
            "measured": row.measured,
            "limits": row.limits,
            "ratios": row.ratios,
            "target": None if row.target is None else str(row.target),
        }
        for row in rows
    ]


def _cells(row: Row) -> tuple[str, ...]:
    if not row.measured:
        return (row.key, row.what, "not measured", row.limit, "", str(row.target or ""), "", "")
    ratio = statistics.median(row.ratios)
    target = row.target
    return (
        row.key,
        row.what,
        f"{spread(row.measured)} {row.unit}",
        f"{number(statistics.median(row.limits))} {row.limit}",
        spread(row.ratios),
        "" if target is None else str(target),
        "" if target is None else ("yes" if target.half_met(ratio) else "NO"),
        "" if target is None else ("yes" if target.met(ratio) else "no"),
    )


def spread(values: Sequence[float]) -> str:
    """`median (smallest-largest)`."""
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
