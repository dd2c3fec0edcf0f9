"""The state of a log and of a namespace for people: `LogStatus`, `LogPicture` and `Overview`.

Each is a plain value that holds what was found at one moment, and knows its own text and HTML. Functions below fill
them from metadata, within bounds: on logs, on segments drawn, and on time. `log_status`, `log_picture` and
`overview` are asked for by a caller, and raise.

A notebook asks any object for its HTML by itself, so that must neither hang nor raise. `shown` stands in between: it
gives a question `REPR_TIMEOUT_S`, and shows the reason in place of the object where the question fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlspark.core.codec.dlsn import DLSN, DLSNRange
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.display.picture import MAX_DRAWN, Unit, description, image, rows, svg
from dlspark.core.lifecycle.owned_segments import truncation_point
from dlspark.core.lock_owners import lock_owner
from dlspark.core.markup import Printed, escaped, failure, folded, heading, printable, table
from dlspark.core.reading.segments import first_active
from dlspark.core.runtime import Runtime
from dlspark.core.services import Services
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segment_changes import SegmentChanges
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError, NoNodeError, NotAppliedError
from metadata.foundation.plurals import counted
from metadata.foundation.times import short_time

MAX_LOGS: Final = 50
"""Logs of a namespace that its overview looks at."""
REPR_TIMEOUT_S: Final = 5.0
"""How long a notebook waits for an object that it shows."""
_AT_ONCE: Final = 16
_HEAD = ("segment", "ledger", "state", "records", "first txid", "last txid", "completed")
_RIGHT = frozenset(("segment", "ledger", "records", "first txid", "last txid"))


def segment_state(segment: SegmentMetadata) -> str:
    """Return a segment's state in words, and whether it lies in a file."""
    if segment.in_progress:
        return "in progress"
    hidden = _hidden_state(segment)
    if segment.cold is None:
        return hidden
    return f"{hidden}, also in a file" if segment.cold.listed else f"{hidden}, in a file"


def _hidden_state(segment: SegmentMetadata) -> str:
    if segment.truncation == TruncationStatus.TRUNCATED:
        return "truncated"
    if segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED:
        return f"truncated below {first_active(segment)}"
    return "completed"


@dataclass(frozen=True, slots=True, repr=False)
class LogStatus(Printed):
    """A log as it was at one moment. `str` gives a table of it."""

    name: str
    segments: tuple[SegmentMetadata, ...]
    start: DLSN
    """The first position that is not truncated."""
    max_lssn: int
    """Highest segment sequence number assigned so far; 0 for none."""
    max_txid: int
    """Highest transaction id of a completed segment; 0 for none."""
    owner: str | None
    """Client id of the holder of the log's lock; None if it is free."""
    deleted_ledgers: tuple[int, ...]
    """Ledgers of purged segments that are still to be deleted."""

    @property
    def records(self) -> int:
        """Records of completed segments, truncated ones included."""
        return sum(segment.record_count for segment in self.segments)

    @property
    def sealed(self) -> bool:
        """True if a completed segment ends the stream."""
        return self.max_txid == MAX_TXID

    def __str__(self) -> str:
        writer = f"written by {self.owner}" if self.owner is not None else "no writer"
        lines = [
            f"log {self.name}: {counted(len(self.segments), 'segment')}, begins at {self.start}; "
            f"{'sealed' if self.sealed else writer}",
            *_lines([_HEAD, *(_row(segment) for segment in self.segments)]),
        ]
        if self.deleted_ledgers:
            lines.append(f"ledgers to be deleted: {', '.join(map(str, self.deleted_ledgers))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return LogPicture(self)._repr_html_()


def _row(segment: SegmentMetadata) -> tuple[str, ...]:
    open_ended = segment.in_progress
    return (
        str(segment.lssn),
        str(segment.ledger_id),
        segment_state(segment),
        "" if open_ended else str(segment.record_count),
        str(segment.first_txid),
        "" if open_ended else "end of stream" if segment.last_txid == MAX_TXID else str(segment.last_txid),
        "" if open_ended else short_time(segment.completion_time_ms),
    )


def _lines(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, _HEAD, strict=True)
        ).rstrip()
        for row in cells
    ]


@dataclass(frozen=True, slots=True, repr=False)
class LogPicture(Printed):
    """A log's segments as they were when `AsyncLog.picture` asked: shown by notebooks, printed as a table."""

    status: LogStatus
    unit: Unit = "records"
    sizes: Mapping[int, int] | None = None
    """Bytes by segment number, where the unit is bytes; segments whose ledger is open or gone are missing."""
    mark: DLSNRange | None = None
    """The range that the picture highlights."""

    @property
    def svg(self) -> str:
        """The picture alone, as SVG text, for a file."""
        span = (self.mark.start, self.mark.end) if self.mark is not None else None
        return svg(self.status.segments, self._known(), self.unit, span)

    def _known(self) -> Mapping[int, int]:
        """Return the sizes of the closed segments."""
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
    """Return a log in one line."""
    if not status.segments:
        return "no segments yet"
    growing = " and what is being written" if any(one.in_progress for one in status.segments) else ""
    return (
        f"{counted(len(status.segments), 'segment')}, {counted(status.records, 'record')}{growing}, "
        f"begins at {status.start}; {log_state(status)}"
    )


def log_state(status: LogStatus) -> str:
    """Return the writer, or why there is none, in words."""
    if status.sealed:
        return "sealed"
    if status.owner is not None:
        return f"written by {status.owner}"
    return "left in progress" if any(one.in_progress for one in status.segments) else "no writer"


@dataclass(frozen=True, slots=True, repr=False)
class Overview(Printed):
    """A namespace's logs, those that there was time to look at."""

    uri: str
    logs: Sequence[tuple[str, LogStatus | str]]
    """Names with what was found, or with the reason why nothing was."""
    more: int = 0
    """Logs that were left out."""
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


# ------------------------------------------------------------------ looking


async def log_status(services: Services, name: str) -> LogStatus:
    """Look at a log. Raises LogNotFoundError."""
    state = await services.logs.open(name)
    segments, owner, noted = await asyncio.gather(
        services.logs.segments(name),
        lock_owner(services, services.logs.paths(name).lock),
        SegmentChanges(services.logs, name).noted(),
    )
    return LogStatus(
        name=name,
        segments=tuple(segments),
        start=truncation_point(segments),
        max_lssn=state.max_lssn.value,
        max_txid=state.max_txid.value,
        owner=owner,
        deleted_ledgers=tuple(noted),
    )


async def log_picture(services: Services, name: str, by: Unit, mark: DLSNRange | None) -> LogPicture:
    """Look at a log for a picture of it. Raises LogNotFoundError, CallerError for another unit.

    Bytes are asked of each drawn segment's ledger: one request each, `MAX_DRAWN` at most.
    """
    if by not in ("records", "bytes"):
        raise CallerError(f"a picture has no scale of {by!r}", advice="Give by='records' or by='bytes'")
    status = await log_status(services, name)
    sizes = await _ledger_bytes(services, status.segments[-MAX_DRAWN:]) if by == "bytes" else None
    return LogPicture(status, by, sizes, mark)


async def _ledger_bytes(services: Services, segments: tuple[SegmentMetadata, ...]) -> dict[int, int]:
    """Return bytes of the segments' ledgers, as the ledgers' metadata has them: entries with their envelopes, one
    replica."""

    async def one(segment: SegmentMetadata) -> int | None:
        if segment.cold is not None:
            return segment.cold.ledger_bytes
        try:
            ledger = (await services.ledger_store.read(segment.ledger_id)).value
        except NoNodeError:
            # It lies in a cold file, which knows what its ledger had; else it was purged meanwhile.
            return segment.cold.ledger_bytes if segment.cold is not None else None
        return ledger.length if ledger.is_closed else None

    found = await asyncio.gather(*map(one, segments))
    return {segment.lssn: size for segment, size in zip(segments, found, strict=True) if size is not None}


async def overview(services: Services, uri: str, seconds: float) -> Overview:
    """Look at the namespace's first `MAX_LOGS` logs, for at most `seconds`; the others are listed as not seen."""
    names = sorted(await services.logs.list(""))
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str) -> LogStatus | str:
        async with limit:
            try:
                return await log_status(services, name)
            except LogNotFoundError:
                return "holds other logs"
            except DistributedLogError as error:
                return f"{type(error).__name__}: {error.message}"

    tasks = [asyncio.ensure_future(look(name)) for name in names[:MAX_LOGS]]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        found = [task.result() if task.done() else f"not seen within {seconds:g} s" for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Overview(uri, tuple(zip(names, found, strict=False)), max(len(names) - MAX_LOGS, 0))


def shown(
    runtime: Runtime,
    title: str,
    question: Callable[[], Coroutine[object, object, LogPicture | Overview]],
    seconds: float = REPR_TIMEOUT_S,
) -> str:
    """Return the HTML of what `question` finds within `seconds`, else of the reason why not. Never raises an
    Exception."""

    async def limited() -> LogPicture | Overview:
        try:
            return await asyncio.wait_for(question(), seconds)
        except asyncio.TimeoutError as error:
            raise NotAppliedError(f"it took longer than {seconds:g} s, the most that a display waits") from error

    try:
        return runtime.run(limited())._repr_html_()
    except Exception as error:
        return failure(title, error)
