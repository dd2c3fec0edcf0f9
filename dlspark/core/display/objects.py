"""Objects as HTML: positions, ranges, records, a log, a namespace. Pure: what is to be shown has been asked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dlspark.core.display.image import image
from dlspark.core.display.picture import Unit, description, rows, svg
from dlspark.core.display.text import Printed, code, counted, escaped, folded, heading, preview, printable, table

if TYPE_CHECKING:
    from dlspark.core.codec.dlsn import DLSN
    from dlspark.core.codec.dlsn_range import DLSNRange
    from dlspark.core.codec.records import LogRecord
    from dlspark.core.lifecycle.status import LogStatus

MAX_RECORDS: Final = 50
"""Records that a table shows; of more, the first and the last ones."""
_RECORD_HEAD: Final = ("DLSN", "transaction id", "sequence id", "bytes", "payload")


def dlsn_html(dlsn: DLSN) -> str:
    """A position, with what its three numbers mean."""
    if dlsn.lssn < 1 or dlsn.entry_id < 0 or dlsn.slot_id < 0:
        return f"{code(dlsn)} <small>no record's position</small>"
    return f"{code(dlsn)} <small>segment {dlsn.lssn:,}, entry {dlsn.entry_id:,}, slot {dlsn.slot_id:,}</small>"


def range_html(span: DLSNRange) -> str:
    """A range: from, to, and over how many segments it goes."""
    if span.empty:
        return f"{code(span.start)} <small>empty range</small>"
    last = span.end.lssn - (1 if span.end[1:] <= (0, 0) else 0)
    over = max(last - span.start.lssn + 1, 1)
    said = "in one segment" if over == 1 else f"over {over:,} segments"
    return f"{code(span.start)} to before {code(span.end)} <small>{said}</small>"


def record_cells(record: LogRecord) -> tuple[str, ...]:
    """A record in the columns of a table."""
    number = str(record.sequence_id) if record.sequence_id >= 0 else ""
    return str(record.dlsn), str(record.txid), number, f"{len(record.payload):,}", preview(record.payload)


def records_html(records: Sequence[LogRecord]) -> str:
    """Records as a table under their number."""
    return heading(counted(len(records), "record")) + records_table(records)


def records_table(records: Sequence[LogRecord]) -> str:
    """Records as a table; of a long list its two ends; of none nothing."""
    if not records:
        return ""
    if len(records) <= MAX_RECORDS:
        rows = [record_cells(record) for record in records]
    else:
        half = MAX_RECORDS // 2
        between = (f"… {len(records) - 2 * half:,} more …", "", "", "", "")
        rows = [*map(record_cells, records[:half]), between, *map(record_cells, records[-half:])]
    return table(_RECORD_HEAD, rows)


@dataclass(frozen=True, slots=True, repr=False)
class LogPicture(Printed):
    """A log's segments as they were when `AsyncLog.picture` asked: shown by notebooks, printed as a table."""

    status: LogStatus
    unit: Unit = "records"
    sizes: Mapping[int, int] | None = None
    """Bytes by segment number, where the unit is bytes; a segment whose ledger tells none is missing."""
    mark: DLSNRange | None = None
    """What the picture points out."""

    @property
    def svg(self) -> str:
        """The picture alone, to be kept in a file."""
        span = (self.mark.start, self.mark.end) if self.mark is not None else None
        return svg(self.status.segments, self._known(), self.unit, span)

    def _known(self) -> Mapping[int, int]:
        """The sizes of the closed segments."""
        if self.sizes is not None:
            return self.sizes
        return {one.lssn: one.record_count for one in self.status.segments if not one.in_progress}

    def __str__(self) -> str:
        return str(self.status)

    def _repr_html_(self) -> str:
        title = heading(f"log {self.status.name}", summary(self.status))
        segments = self.status.segments
        if not segments:
            return title
        numbers = table(("segment", "state", "size", "ledger"), rows(segments, self._known(), self.unit))
        return title + image(self.svg, description(segments, self.unit)) + folded("numbers of the segments", numbers)


def summary(status: LogStatus) -> str:
    """A log in one line."""
    if not status.segments:
        return "no segments yet"
    growing = " and what is being written" if any(one.in_progress for one in status.segments) else ""
    return (
        f"{counted(len(status.segments), 'segment')}, {counted(status.records, 'record')}{growing}, "
        f"begins at {status.start}; {log_state(status)}"
    )


def log_state(status: LogStatus) -> str:
    """Who may still add to a log, in words."""
    if status.sealed:
        return "sealed"
    if status.owner is not None:
        return f"written by {status.owner}"
    return "left in progress" if any(one.in_progress for one in status.segments) else "nobody writes it"


@dataclass(frozen=True, slots=True, repr=False)
class Overview(Printed):
    """A namespace's logs as far as there was time to look at them."""

    uri: str
    logs: Sequence[tuple[str, LogStatus | str]]
    """Names with what was found, or with why nothing was."""
    more: int = 0
    """Logs that were not looked at."""
    notes: Sequence[str] = field(default_factory=tuple)

    def _counted(self) -> str:
        return counted(len(self.logs) + self.more, "name")

    def __str__(self) -> str:
        lines = [f"namespace {self.uri}: {self._counted()}"]
        lines += [
            f"  {printable(name)}: {found}" if isinstance(found, str) else f"  {printable(name)}: {summary(found)}"
            for name, found in self.logs
        ]
        if self.more:
            lines.append(f"  and {self.more:,} more: namespace.logs() names all")
        return "\n".join((*lines, *self.notes))

    def _repr_html_(self) -> str:
        parts = [heading(f"namespace {self.uri}", self._counted())]
        if self.logs:
            found = [_log_row(name, found) for name, found in self.logs]
            parts.append(table(("log", "state", "segments", "records", "begins at"), found))
        if self.more:
            parts.append(f"<div>and {self.more:,} more: <code>namespace.logs()</code> names all</div>")
        parts += [f"<div>{escaped(note)}</div>" for note in self.notes]
        return "".join(parts)


def _log_row(name: str, found: LogStatus | str) -> tuple[str, ...]:
    if isinstance(found, str):
        return name, found, "", "", ""
    return name, log_state(found), f"{len(found.segments):,}", f"{found.records:,}", str(found.start)
