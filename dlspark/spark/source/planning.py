"""Cutting ranges of segments into Spark partitions. Pure: no I/O.

A `Span` is what one segment contributes to a read: entries and the slots at its two ends, and all that a task needs to
fetch them without ZooKeeper. Large spans are split between entries, small neighbours share a partition, because a
partition costs a Spark task and a log written by many small batches has many small segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN

if TYPE_CHECKING:
    from storage_node.client import LedgerLocation


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous range of one segment's records, read by one task or cut further.

    Entries `first_entry` to `last_entry`, both included; of the first the slots from `first_slot` on, of the last those
    below `end_slot` (None: all). `entry_bytes` estimates the stored size of an entry. `records` is the most records
    that it can have, as far as that was asked for; else 0.
    """

    log: str
    lssn: int
    ledger: LedgerLocation
    first_entry: int
    first_slot: int
    last_entry: int
    end_slot: int | None
    start_sequence_id: int
    enveloped: bool
    entry_bytes: int
    records: int = 0

    @property
    def start(self) -> DLSN:
        return DLSN(self.lssn, self.first_entry, self.first_slot)

    @property
    def stop(self) -> DLSN:
        """The position behind it."""
        return DLSN(self.lssn, *_behind(self))

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1

    @property
    def bytes(self) -> int:
        return self.entries * max(1, self.entry_bytes)


Partition = tuple[Span, ...]


def _behind(span: Span) -> tuple[int, int]:
    return (span.last_entry + 1, 0) if span.end_slot is None else (span.last_entry, span.end_slot)


def cut(span: Span, places: Sequence[DLSN], records: int) -> list[Span]:
    """Cut a span at positions within it, which may lie within entries, into pieces of at most `records` records."""
    starts = [span.start, *places]
    stops = [*places, span.stop]
    return [
        replace(
            span,
            first_entry=start.entry_id,
            first_slot=start.slot_id,
            last_entry=stop.entry_id if stop.slot_id else stop.entry_id - 1,
            end_slot=stop.slot_id or None,
            records=records,
        )
        for start, stop in zip(starts, stops, strict=True)
    ]


def clip(span: Span, min_entry: int, end_entry: int | None) -> Span | None:
    """What a span has of the entries from `min_entry` to before `end_entry` (None: to its end); None if nothing."""
    if min_entry > span.first_entry:
        span = replace(span, first_entry=min_entry, first_slot=0)
    if end_entry is not None and end_entry <= span.last_entry:
        span = replace(span, last_entry=end_entry - 1, end_slot=None)
    return span if span.entries > 0 else None


def split(span: Span, pieces: int) -> list[Span]:
    """Cut a span between entries into at most `pieces` of nearly equal numbers of entries."""
    pieces = max(1, min(pieces, span.entries))
    bounds = [span.first_entry + span.entries * i // pieces for i in range(pieces + 1)]
    parts = []
    for i in range(pieces):
        first, last = i == 0, i == pieces - 1
        parts.append(
            replace(
                span,
                first_entry=bounds[i],
                first_slot=span.first_slot if first else 0,
                last_entry=bounds[i + 1] - 1,
                end_slot=span.end_slot if last else None,
            )
        )
    return parts


def partitions(
    spans: Sequence[Span], *, min_partitions: int, max_bytes: int, max_records: int | None = None
) -> list[Partition]:
    """Cut and pack `spans`, in order, into `min_partitions` or more partitions of about `max_bytes` or less.

    The minimum is reached as far as there are entries: an entry is not cut here, so that none is fetched twice. Spans
    that have at most `max_records` records each share a partition as far as that has no more.
    """
    total = sum(span.bytes for span in spans)
    target = max(1, min(max_bytes, -(-total // min_partitions)))
    packed: list[list[Span]] = []
    room, more = 0, 0
    for span in spans:
        for part in split(span, -(-span.bytes // target)):
            if packed and part.bytes <= room and (max_records is None or part.records <= more):
                packed[-1].append(part)
            else:
                packed.append([part])
                room, more = target, max_records or 0
            room -= part.bytes
            more -= part.records
    _split_further(packed, min_partitions)
    return [tuple(group) for group in packed]


def _split_further(packed: list[list[Span]], wanted: int) -> None:
    """Halve the partitions of most entries until there are `wanted`, or nothing is left to halve."""
    while len(packed) < wanted:
        at = max(range(len(packed)), key=lambda i: sum(span.entries for span in packed[i]), default=-1)
        entries = sum(span.entries for span in packed[at]) if at >= 0 else 0
        if entries < 2:
            return
        packed[at : at + 1] = _halves(packed[at], entries // 2)


def _halves(group: Sequence[Span], entries: int) -> list[list[Span]]:
    """Cut a partition after its first `entries` entries."""
    left: list[Span] = []
    right: list[Span] = []
    for span in group:
        if entries <= 0:
            right.append(span)
        elif span.entries <= entries:
            left.append(span)
        else:
            cut = span.first_entry + entries
            left.append(replace(span, last_entry=cut - 1, end_slot=None))
            right.append(replace(span, first_entry=cut, first_slot=0))
        entries -= span.entries
    return [left, right]
