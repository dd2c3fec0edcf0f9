"""Objects as HTML: positions, ranges, records, a log, a namespace. Pure: what is to be shown has been asked before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dlspark.core.display.picture import Unit, svg
from dlspark.core.display.text import code, escaped, heading, preview, table

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
    title = "1 record" if len(records) == 1 else f"{len(records):,} records"
    return heading(title) + records_table(records)


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


@dataclass(frozen=True, slots=True)
class LogPicture:
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
        known = self.sizes
        if known is None:
            known = {one.lssn: one.record_count for one in self.status.segments if not one.in_progress}
        span = (self.mark.start, self.mark.end) if self.mark is not None else None
        return svg(self.status.segments, known, self.unit, span)

    def __str__(self) -> str:
        return str(self.status)

    def _repr_html_(self) -> str:
        picture = self.svg if self.status.segments else ""
        return heading(f"log {self.status.name}", summary(self.status)) + picture


def summary(status: LogStatus) -> str:
    """A log in one line."""
    if not status.segments:
        return "no segments yet"
    growing = " and what is being written" if any(one.in_progress for one in status.segments) else ""
    return (
        f"{len(status.segments):,} segments, {status.records:,} records{growing}, begins at {status.start}; "
        f"{log_state(status)}"
    )


def log_state(status: LogStatus) -> str:
    """Who may still add to a log, in words."""
    if status.sealed:
        return "sealed"
    if status.owner is not None:
        return f"written by {status.owner}"
    return "left in progress" if any(one.in_progress for one in status.segments) else "nobody writes it"


@dataclass(frozen=True, slots=True)
class Overview:
    """A namespace's logs as far as there was time to look at them."""

    uri: str
    logs: Sequence[tuple[str, LogStatus | str]]
    """Names with what was found, or with why nothing was."""
    more: int = 0
    """Logs that were not looked at."""
    notes: Sequence[str] = field(default_factory=tuple)

    def _repr_html_(self) -> str:
        rows = [_log_row(name, found) for name, found in self.logs]
        counted = len(self.logs) + self.more
        parts = [heading(f"namespace {self.uri}", f"{counted:,} {'name' if counted == 1 else 'names'}")]
        if rows:
            parts.append(table(("log", "state", "segments", "records", "begins at"), rows))
        if self.more:
            parts.append(f"<div>and {self.more:,} more: <code>namespace.logs()</code> names all</div>")
        parts += [f"<div>{escaped(note)}</div>" for note in self.notes]
        return "".join(parts)


def _log_row(name: str, found: LogStatus | str) -> tuple[str, ...]:
    if isinstance(found, str):
        return name, found, "", "", ""
    return name, log_state(found), f"{len(found.segments):,}", f"{found.records:,}", str(found.start)
