"""A log's segments as a picture: one bar each, side by side in the log's order, in SVG without scripts.

A bar is as long as its segment has records (or bytes), with a few pixels at least. What truncation hides is hatched,
what is being written is open at its right end. Colours show states; so do the legend's words and, in a file, tooltips.
At most `MAX_DRAWN` segments have a bar; those before are one block that says how many they are.

A drawing is put on a notebook's page as an image in the page's text, with words for readers who cannot see it
(`image`). A saved notebook is not trusted when it is opened: JupyterLab, VS Code and the like then take `<svg>` out of
the output and leave the text of its titles. An `<img>` whose data are in its address stays. Such an image cannot see
the page's colours, and a page's dark theme is not the system's, so every drawing has a background of its own, and dark
ink.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.markup import escaped
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.plurals import counted

GROUND: Final = "#fbfbfa"
INK: Final = "#24292f"
FRAME: Final = "#c4c9cf"
PADDING: Final = 10.0
"""Between the background's edge and what is drawn, in the drawing's units."""


def drawing(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return an SVG document of `parts`, drawn from (0, 0) to (`width`, `height`), on a background that is a bit
    larger."""
    outer_width, outer_height = width + 2 * PADDING, height + 2 * PADDING
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{outer_width:.0f}" height="{outer_height:.0f}" '
            f'viewBox="{-PADDING:.0f} {-PADDING:.0f} {outer_width:.0f} {outer_height:.0f}" '
            f'style="font:11px sans-serif" fill="{INK}">',
            f"<title>{escaped(title)}</title>",
            f'<rect x="{0.5 - PADDING}" y="{0.5 - PADDING}" width="{outer_width - 1:.0f}" '
            f'height="{outer_height - 1:.0f}" rx="5" fill="{GROUND}" stroke="{FRAME}"/>',
            *parts,
            "</svg>",
        )
    )


def words(x: float, y: float, content: str, anchor: str = "middle") -> str:
    """Return text in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="{anchor}">{escaped(content)}</text>'


def image(svg: str, description: str) -> str:
    """Return a drawing as HTML that pages keep; `description` is what it shows, in words. Empty for an empty
    drawing."""
    if not svg:
        return ""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{escaped(description)}" '
        'style="max-width:100%;height:auto;margin:0.3em 0">'
    )


# ------------------------------------------------------------------ a log's segments
Unit: TypeAlias = Literal["records", "bytes"]

MAX_DRAWN: Final = 60
"""Segments with a bar of their own."""
_WIDTH: Final = 960.0
_TOP: Final = 16.0
_HEIGHT: Final = 34.0
_BASE: Final = _TOP + _HEIGHT
_LEGEND: Final = _BASE + 36
_SUMMARY_WIDTH: Final = 70.0
_OPEN_WIDTH: Final = 60.0
_MIN_WIDTH: Final = 4.0
_LABEL_WIDTH: Final = 8.0
_MAX_STROKES: Final = 40
_COLOURS: Final = {"completed": "#4a8fc7", "in progress": "#3f9e5f", "truncated": "#8c8c8c", "earlier": "#a5824b"}
_MARK: Final = "#d0632b"


@dataclass(frozen=True, slots=True)
class Bar:
    """A segment's place in the picture, in the picture's own units."""

    segment: SegmentMetadata
    x: float
    width: float

    @property
    def state(self) -> str:
        """The state that gives the bar its colour; a segment truncated in part counts as completed, and is hatched."""
        return _state(self.segment)

    @property
    def hidden(self) -> float:
        """How much of it truncation hides, 0 to 1."""
        if self.segment.truncation == TruncationStatus.TRUNCATED:
            return 1.0
        if self.segment.truncation != TruncationStatus.PARTIALLY_TRUNCATED:
            return 0.0
        return self.share(DLSN(self.segment.lssn, self.segment.min_entry, self.segment.min_slot))

    def share(self, dlsn: DLSN) -> float:
        """Return how far into the segment a position in it is, by entries; that is not known in a segment that still
        grows."""
        if self.segment.in_progress:
            return 0.0 if dlsn[1:] <= (0, 0) else 0.5
        return min(max(dlsn.entry_id, 0) / (self.segment.last_entry + 1), 1.0) if self.segment.last_entry >= 0 else 1.0


def _state(segment: SegmentMetadata) -> str:
    if segment.in_progress:
        return "in progress"
    return "truncated" if segment.truncation == TruncationStatus.TRUNCATED else "completed"


def bars(segments: Sequence[SegmentMetadata], sizes: Mapping[int, int]) -> list[Bar]:
    """Return the bars of the newest `MAX_DRAWN` segments. `sizes`: records or bytes by segment number; none counts as
    0."""
    drawn = segments[-MAX_DRAWN:]
    start = _SUMMARY_WIDTH if len(segments) > len(drawn) else 0.0
    open_ended = sum(segment.in_progress for segment in drawn)
    closed = len(drawn) - open_ended
    room = _WIDTH - start - open_ended * _OPEN_WIDTH - closed * _MIN_WIDTH
    total = sum(sizes.get(segment.lssn, 0) for segment in drawn if not segment.in_progress)
    placed, x = [], start
    for segment in drawn:
        share = sizes.get(segment.lssn, 0) / total if total else 1 / max(closed, 1)
        width = _OPEN_WIDTH if segment.in_progress else _MIN_WIDTH + room * share
        placed.append(Bar(segment, x, width))
        x += width
    return placed


def svg(
    segments: Sequence[SegmentMetadata],
    sizes: Mapping[int, int],
    unit: Unit = "records",
    mark: tuple[DLSN, DLSN] | None = None,
) -> str:
    """Return the picture. `mark` is a range to highlight, its end not included."""
    placed = bars(segments, sizes)
    earlier = len(segments) - len(placed)
    parts = []
    if earlier:
        parts.append(_block(earlier))
    for bar in placed:
        parts += _bar(bar, sizes.get(bar.segment.lssn), unit)
    if mark is not None and placed:
        parts += _marked(placed, *mark)
    parts += _legend(placed, earlier, mark)
    return drawing(_WIDTH, _LEGEND + 14, description(segments, unit), parts)


def description(segments: Sequence[SegmentMetadata], unit: Unit) -> str:
    """Return what the picture shows, in a line."""
    states = Counter(_state(segment) for segment in segments)
    text = ", ".join(f"{states[state]:,} {state}" for state in _COLOURS if states[state])
    return f"{counted(len(segments), 'segment')} in proportion to their {unit}: {text}"


def _rectangle(x: float, width: float, fill: str, more: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{_TOP:.0f}" width="{max(width - 1, 1):.1f}" height="{_HEIGHT:.0f}" fill="{fill}"{more}/>'
    )


def _block(earlier: int) -> str:
    return (
        f"<g><title>{counted(earlier, 'earlier segment')}</title>"
        + _rectangle(0, _SUMMARY_WIDTH, _COLOURS["earlier"], ' fill-opacity="0.6"')
        + words(_SUMMARY_WIDTH / 2, _BASE + 13, f"{earlier:,} more")
        + "</g>"
    )


def _bar(bar: Bar, size: int | None, unit: Unit) -> Iterator[str]:
    segment = bar.segment
    yield f"<g><title>segment {segment.lssn}, {_described(bar)}: {_measured(bar, size, unit)}, "
    yield f"ledger {segment.ledger_id}</title>"
    colour = _COLOURS[bar.state]
    if segment.in_progress:
        right = bar.x + bar.width - 14
        yield _rectangle(bar.x, bar.width - 13, colour)
        # The open end: nothing closes the segment at its right side.
        yield "".join(
            f'<rect x="{right + 4 * step:.1f}" y="{_TOP:.0f}" width="2" height="{_HEIGHT:.0f}" fill="{colour}"/>'
            for step in range(3)
        )
    else:
        faded = ' fill-opacity="0.35"' if bar.state == "truncated" else ""
        yield _rectangle(bar.x, bar.width, colour, faded)
    if bar.hidden:
        yield _hatching(bar.x, max((bar.width - 1) * bar.hidden, 1.0))
    label = str(segment.lssn)
    if bar.width >= _LABEL_WIDTH * len(label):
        yield words(bar.x + bar.width / 2, _BASE + 13, label)
    yield "</g>"


def rows(segments: Sequence[SegmentMetadata], sizes: Mapping[int, int], unit: Unit) -> list[tuple[str, ...]]:
    """Return the numbers behind the bars: segment, state, size, ledger."""
    return [
        (
            str(bar.segment.lssn),
            _described(bar),
            _measured(bar, sizes.get(bar.segment.lssn), unit),
            str(bar.segment.ledger_id),
        )
        for bar in bars(segments, sizes)
    ]


def _measured(bar: Bar, size: int | None, unit: Unit) -> str:
    if bar.segment.in_progress:
        return "still growing"
    return counted(size, unit.removesuffix("s")) if size is not None else f"{unit} not known"


def _described(bar: Bar) -> str:
    return f"truncated in part ({bar.hidden:.0%})" if 0 < bar.hidden < 1 else bar.state


def _hatching(x: float, width: float) -> str:
    """Draw strokes from bottom left to top right, cut off at the sides, as one path."""
    step = max(6.0, (width + _HEIGHT) / _MAX_STROKES)
    strokes, offset = [], step - _HEIGHT
    while offset < width:
        left, right = max(offset, 0.0), min(offset + _HEIGHT, width)
        if left < right:
            strokes.append(
                f"M{x + left:.1f} {_BASE - (left - offset):.1f}L{x + right:.1f} {_BASE - (right - offset):.1f}"
            )
        offset += step
    return f'<path d="{"".join(strokes)}" stroke="{INK}" stroke-opacity="0.75" fill="none"/>'


def _marked(placed: Sequence[Bar], start: DLSN, end: DLSN) -> Iterator[str]:
    """Yield a line above the bars from one position to another, if any of what lies between is drawn."""
    first, last = _x_of(placed, start), _x_of(placed, end)
    if last < first:
        return
    yield f"<g><title>{start} to before {end}</title>"
    yield (
        f'<path d="M{first:.1f} {_TOP - 3:.0f}V{_TOP - 9:.0f}H{max(last, first + 2):.1f}V{_TOP - 3:.0f}" '
        f'stroke="{_MARK}" stroke-width="2" fill="none"/></g>'
    )


def _x_of(placed: Sequence[Bar], dlsn: DLSN) -> float:
    for bar in placed:
        if dlsn.lssn < bar.segment.lssn:
            return bar.x
        if dlsn.lssn == bar.segment.lssn:
            return bar.x + bar.width * bar.share(dlsn)
    return placed[-1].x + placed[-1].width


def _legend(placed: Sequence[Bar], earlier: int, mark: tuple[DLSN, DLSN] | None) -> Iterator[str]:
    counts = Counter(bar.state for bar in placed)
    x = 0.0
    for state, colour in _COLOURS.items():
        count = earlier if state == "earlier" else counts[state]
        if count:
            text = f"{count:,} {state}"
            yield f'<rect x="{x:.1f}" y="{_LEGEND:.0f}" width="10" height="10" fill="{colour}"/>'
            yield words(x + 14, _LEGEND + 9, text, "start")
            x += 30 + 7 * len(text)
    if any(bar.hidden for bar in placed):
        yield words(x, _LEGEND + 9, "hatched: hidden by truncation", "start")
    if mark is not None:
        yield words(_WIDTH, _LEGEND + 9, f"line above: {mark[0]} to before {mark[1]}", "end")
