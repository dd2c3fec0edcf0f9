"""`LogStatus`: a log at a glance, for people: its segments and their states, where it begins, who writes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timezone

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.display.text import Printed
from dlspark.core.lifecycle.truncation import truncation_point
from dlspark.core.reading.segments import first_active
from dlspark.core.services import Services
from metadata.foundation.errors import NoNodeError
from metadata.foundation.plurals import counted
from metadata.locks import parse_member, sequence_of
from metadata.logs import SegmentMetadata, TruncationStatus
from metadata.retry import repeat
from metadata.segment_changes import SegmentChanges

_HEAD = ("segment", "ledger", "state", "records", "first txid", "last txid", "completed")
_RIGHT = frozenset(("segment", "ledger", "records", "first txid", "last txid"))


def segment_state(segment: SegmentMetadata) -> str:
    """A segment's state in words."""
    if segment.in_progress:
        return "in progress"
    if segment.truncation == TruncationStatus.TRUNCATED:
        return "truncated"
    if segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED:
        return f"truncated below {first_active(segment)}"
    return "completed"


@dataclass(frozen=True, slots=True, repr=False)
class LogStatus(Printed):
    """A log as it was when it was looked at. `str` gives a table of it."""

    name: str
    segments: tuple[SegmentMetadata, ...]
    start: DLSN
    """The first position that is not truncated."""
    max_lssn: int
    """Highest segment sequence number assigned so far; 0 for none."""
    max_txid: int
    """Highest transaction id of a completed segment; 0 for none."""
    owner: str | None
    """Client id of who holds the log's lock; None if nobody does."""
    deleted_ledgers: tuple[int, ...]
    """Ledgers of purged segments that are still to be deleted."""

    @property
    def records(self) -> int:
        """Records of completed segments, truncated ones included."""
        return sum(segment.record_count for segment in self.segments)

    @property
    def sealed(self) -> bool:
        """Whether a completed segment ends the stream."""
        return self.max_txid == MAX_TXID

    def __str__(self) -> str:
        writer = f"written by {self.owner}" if self.owner is not None else "nobody writes it"
        lines = [
            f"log {self.name}: {counted(len(self.segments), 'segment')}, begins at {self.start}; "
            f"{'sealed' if self.sealed else writer}",
            *_table([_HEAD, *(_row(segment) for segment in self.segments)]),
        ]
        if self.deleted_ledgers:
            lines.append(f"ledgers to be deleted: {', '.join(map(str, self.deleted_ledgers))}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from dlspark.core.display.objects import LogPicture

        return LogPicture(self)._repr_html_()


def _row(segment: SegmentMetadata) -> tuple[str, ...]:
    open_ended = segment.in_progress
    completed = datetime.fromtimestamp(segment.completion_time_ms / 1000, timezone.utc)
    return (
        str(segment.lssn),
        str(segment.ledger_id),
        segment_state(segment),
        "" if open_ended else str(segment.record_count),
        str(segment.first_txid),
        "" if open_ended else "end of stream" if segment.last_txid == MAX_TXID else str(segment.last_txid),
        "" if open_ended else completed.isoformat(sep=" ", timespec="seconds"),
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, _HEAD, strict=True)
        ).rstrip()
        for row in rows
    ]


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


async def lock_owner(services: Services, path: str) -> str | None:
    """The client id of who holds the lock at `path`; None if nobody does, or the lock does not exist."""
    try:
        names, _ = await repeat(services.store, lambda: services.store.children(path))
    except NoNodeError:
        return None
    for name in sorted(names, key=sequence_of):
        known = parse_member(name)
        if known is not None:
            return known.client_id
        try:
            data, _ = await repeat(services.store, lambda name=name: services.store.get(f"{path}/{name}"))  # type: ignore[misc]
        except NoNodeError:
            continue  # gone since it was listed
        return data.decode("utf-8", "replace")
    return None
