"""The lag of a query over time: one line a log, in SVG without scripts, and a table of the last moment.

At most `MAX_LINES` logs have a line, those that were furthest behind; the others are one line together. Each line also
has its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dlspark.core.display.picture import INK, drawing, image, words
from dlspark.core.markup import Printed, heading, table
from metadata.foundation.plurals import counted

Measure: TypeAlias = Literal["records", "bytes", "ms"]

MAX_LINES: Final = 6
MAX_ROWS: Final = 50
"""Logs in the table."""
_WIDTH: Final = 960.0
_LEFT: Final = 90.0
_RIGHT: Final = 190.0
_TOP: Final = 12.0
_HEIGHT: Final = 150.0
_COLOURS: Final = ("#4a8fc7", "#d0632b", "#3f9e5f", "#a5824b", "#9467bd", "#c75b8f")
_OTHERS: Final = "#8c8c8c"
_WORDS: Final[Mapping[Measure, str]] = {"records": "records", "bytes": "bytes", "ms": "milliseconds"}


@dataclass(frozen=True, slots=True)
class LagSample:
    """The lags of one query's logs at a moment (seconds since the epoch): records, bytes, milliseconds; None: not
    known."""

    at_s: float
    batch: int
    lags: Mapping[str, tuple[int | None, int | None, int | None]]

    def value(self, log: str, measure: Measure) -> int | None:
        """Return one log's lag; None where it is not known, or the log was not read then."""
        lag = self.lags.get(log)
        return None if lag is None else lag[("records", "bytes", "ms").index(measure)]


@dataclass(frozen=True, slots=True, repr=False)
class LagPicture(Printed):
    """A query's lag over time: shown by notebooks, printed as a table."""

    title: str
    note: str
    samples: Sequence[LagSample]
    measure: Measure = "records"

    @property
    def svg(self) -> str:
        """The picture alone, to be kept in a file; empty where there is nothing to draw yet."""
        return _svg(self.samples, self.measure, self._behind()) if self.samples else ""

    def _behind(self) -> str:
        return f"{_WORDS[self.measure]} behind, over {_span(self.samples):,.0f} s"

    def _rows(self) -> list[tuple[str, ...]]:
        last = self.samples[-1]
        ranked = sorted(last.lags, key=lambda log: (-(last.value(log, self.measure) or 0), log))
        return [(log, *(_number_text(value) for value in last.lags[log])) for log in ranked[:MAX_ROWS]]

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.note}"]
        if self.samples:
            lines += [
                f"  {log}: {records} records, {size} bytes, {ms} ms behind" for log, records, size, ms in self._rows()
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [heading(self.title, self.note)]
        if self.samples:
            parts += [
                image(self.svg, f"{self._behind()} of {self.title}: {self.note}"),
                table(("log", "records behind", "bytes behind", "ms behind"), self._rows()),
            ]
            more = len(self.samples[-1].lags) - MAX_ROWS
            parts += [f"<div>and {counted(more, 'other log')}</div>"] if more > 0 else []
        return "".join(parts)


def _number_text(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def lines(samples: Sequence[LagSample], measure: Measure) -> dict[str, list[float]]:
    """Return a value a sample for each line, furthest behind first; what is not known is drawn as what was known
    before."""
    logs = sorted({log for sample in samples for log in sample.lags})
    found = {log: _filled([sample.value(log, measure) for sample in samples]) for log in logs}
    ranked = sorted(logs, key=lambda log: (-max(found[log]), log))
    if len(ranked) <= MAX_LINES:
        return {log: found[log] for log in ranked}
    kept, rest = ranked[: MAX_LINES - 1], ranked[MAX_LINES - 1 :]
    together = [sum(values) for values in zip(*(found[log] for log in rest), strict=True)]
    return {**{log: found[log] for log in kept}, f"{len(rest):,} other logs": together}


def _filled(values: Sequence[int | None]) -> list[float]:
    filled, before = [], 0.0
    for value in values:
        before = before if value is None else float(value)
        filled.append(before)
    return filled


def _span(samples: Sequence[LagSample]) -> float:
    """Return seconds from the first sample to the last."""
    return max(samples[-1].at_s - samples[0].at_s, 1e-9)


def _svg(samples: Sequence[LagSample], measure: Measure, title: str) -> str:
    drawn = lines(samples, measure)
    top = max((max(values) for values in drawn.values()), default=0.0)
    begin, span = samples[0].at_s, _span(samples)
    room, base = _WIDTH - _LEFT - _RIGHT, _TOP + _HEIGHT
    parts = [
        f'<path d="M{_LEFT:.0f} {_TOP:.0f}V{base:.0f}H{_LEFT + room:.0f}" stroke="{INK}" fill="none" '
        'stroke-opacity="0.5"/>',
        words(_LEFT - 6, _TOP + 8, f"{top:,.0f}", "end"),
        words(_LEFT - 6, base, "0", "end"),
        words(_LEFT - 6, _TOP + _HEIGHT / 2, _WORDS[measure], "end"),
        words(_LEFT, base + 16, f"{span:,.0f} s before", "start"),
        words(_LEFT + room, base + 16, "last heard of", "end"),
    ]
    for index, (log, values) in enumerate(drawn.items()):
        colour = _COLOURS[index] if index < len(_COLOURS) and "other logs" not in log else _OTHERS
        points = [
            f"{_LEFT + room * (sample.at_s - begin) / span:.1f} {base - _HEIGHT * value / (top or 1):.1f}"
            for sample, value in zip(samples, values, strict=True)
        ]
        parts.append(f'<path d="M{"L".join(points)}" stroke="{colour}" stroke-width="1.6" fill="none"/>')
        y = _TOP + 10 + 15 * index
        parts.append(f'<rect x="{_LEFT + room + 12:.0f}" y="{y - 9:.0f}" width="10" height="10" fill="{colour}"/>')
        parts.append(words(_LEFT + room + 26, y, f"{log[:20]}: {values[-1]:,.0f}", "start"))
    return drawing(_WIDTH, base + 26, title, parts)
