"""Cutting ranges of segments into Spark partitions. Pure: no I/O.

A `SegmentSpan` is what one segment contributes to a read: entries and the slots at its two ends, and all that a task
needs to fetch them without ZooKeeper. Large spans are split between entries, small neighbours share a partition,
because a partition costs a Spark task and a log written by many small batches has many small segments.

Where a cold file's columns give the rows (`cold_plan`), a span is what one row group has of them: it is read as one,
and weighs what the columns weigh that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.reading.locations import ColdLocation

if TYPE_CHECKING:
    from storage_node.client.reader import LedgerLocation


@dataclass(frozen=True, slots=True)
class ColdRows:
    """Which rows of a cold file are a span's, where their columns are read in place of entries?

    Args:
        group: the number of their row group.
        first: the first of them, counted in the row group; of the span's first entry those before its first slot are
            among them, and of the last one those from its end slot on.
        count: how many they are.
        bytes: what the columns weigh that are read of them.
    """

    group: int
    first: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A contiguous range of one segment's records, read by one task or cut further.

    Entries `first_entry` to `last_entry`, both included; of the first the slots from `first_slot` on, of the last those
    below `end_slot` (None: all). `entry_bytes` estimates the stored size of an entry. `records` is the most records
    that it can have, or 0 if no limit of records was asked for.

    `ledger` says where the entries are to be read: from storage nodes, or from a cold file where the ledger is gone.
    `cold` is the file that has the segment, also while its ledger is there: a task goes on in it when the ledger goes
    after the plan was made. `cold_rows`: what is read of that file's columns; None: entries are read.
    `former_ledgers` are those that the segment was before, if it came back from a file.
    """

    log: str
    lssn: int
    ledger: LedgerLocation | ColdLocation
    first_entry: int
    first_slot: int
    last_entry: int
    end_slot: int | None
    start_sequence_id: int
    enveloped: bool
    entry_bytes: int
    records: int = 0
    cold: ColdLocation | None = None
    cold_rows: ColdRows | None = None
    former_ledgers: tuple[int, ...] = ()

    @property
    def hot(self) -> LedgerLocation | None:
        """Where storage nodes have it; None where it is read from its cold file alone."""
        return None if isinstance(self.ledger, ColdLocation) else self.ledger

    @property
    def is_cold(self) -> bool:
        """True where it is read from its cold file alone."""
        return self.hot is None

    @property
    def start(self) -> DLSN:
        """The position of its first record."""
        return DLSN(self.lssn, self.first_entry, self.first_slot)

    @property
    def stop(self) -> DLSN:
        """The position behind it."""
        return DLSN(self.lssn, *_behind(self))

    @property
    def entries(self) -> int:
        """How many entries it has."""
        return self.last_entry - self.first_entry + 1

    @property
    def pieces(self) -> int:
        """Into how many pieces it can be cut here: entries, or one where rows of a cold file are read."""
        return self.entries if self.cold_rows is None else 1

    @property
    def bytes(self) -> int:
        """The estimated stored bytes of its entries, or of the columns that are read in place of them."""
        return self.pieces * _piece_bytes(self)


Partition = tuple[SegmentSpan, ...]


def _piece_bytes(span: SegmentSpan) -> int:
    return max(1, span.entry_bytes if span.cold_rows is None else span.cold_rows.bytes)


def _behind(span: SegmentSpan) -> tuple[int, int]:
    return (span.last_entry + 1, 0) if span.end_slot is None else (span.last_entry, span.end_slot)


def cut(span: SegmentSpan, positions: Sequence[DLSN], records: int) -> list[SegmentSpan]:
    """Cut a span at positions within it, which may lie within entries, into pieces of at most `records` records."""
    starts = [span.start, *positions]
    stops = [*positions, span.stop]
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


def clip(span: SegmentSpan, min_entry: int, end_entry: int | None) -> SegmentSpan | None:
    """Return what a span has of the entries from `min_entry` to before `end_entry` (None: to its end); None if
    nothing."""
    if min_entry > span.first_entry:
        span = replace(span, first_entry=min_entry, first_slot=0)
    if end_entry is not None and end_entry <= span.last_entry:
        span = replace(span, last_entry=end_entry - 1, end_slot=None)
    return span if span.entries > 0 else None


def partitions(
    spans: Sequence[SegmentSpan], *, min_partitions: int, max_bytes: int, max_records: int | None = None
) -> list[Partition]:
    """Cut and pack `spans`, in order, into partitions of nearly equal bytes.

    There are as many as it takes for each to have at most `max_bytes`, and at most `max_records` where spans know how
    many they have; or `min_partitions` if that is more and there are enough entries. An entry is not cut here, so that
    none is fetched twice: an entry larger than `max_bytes` is a partition by itself.
    """
    needed = _pack(spans, max_bytes, max_records)  # what the limits alone ask for
    wanted = max(min_partitions, len(needed))
    share = -(-sum(span.bytes for span in spans) // wanted)
    # A partition that takes no further entry of the largest kind has its share: so they are `wanted` at most, but for
    # limits of records, which may close one before.
    even = _pack(spans, min(max_bytes, share + max(map(_piece_bytes, spans), default=1) - 1), max_records)
    packed = even if len(even) <= wanted else needed
    return [tuple(group) for group in _split_further(packed, min_partitions)]


def _pack(spans: Sequence[SegmentSpan], max_bytes: int, max_records: int | None) -> list[list[SegmentSpan]]:
    """Fill one partition after the other, with one entry at least."""
    packed: list[list[SegmentSpan]] = []
    room, more = 0, 0
    for span in spans:
        rest: SegmentSpan | None = span
        while rest is not None:
            open_ = bool(packed) and (max_records is None or rest.records <= more)
            if not open_ or room < _piece_bytes(rest):
                packed.append([])
                room, more = max_bytes, max_records or 0
            part, rest = _divided(rest, max(1, room // _piece_bytes(rest)))
            packed[-1].append(part)
            room -= part.bytes
            more -= part.records
    return packed


def _divided(span: SegmentSpan, pieces: int) -> tuple[SegmentSpan, SegmentSpan | None]:
    """Return the first `pieces` entries of a span, and what is left of it: None if that is nothing."""
    if pieces >= span.pieces:
        return span, None
    at = span.first_entry + pieces
    return replace(span, last_entry=at - 1, end_slot=None), replace(span, first_entry=at, first_slot=0)


def _split_further(packed: list[list[SegmentSpan]], wanted: int) -> list[list[SegmentSpan]]:
    """Halve the largest partitions until there are `wanted`, or nothing is left to halve."""
    divisible: list[tuple[int, tuple[int, ...], list[SegmentSpan]]] = []
    settled: list[tuple[tuple[int, ...], list[SegmentSpan]]] = []

    def settle(at: tuple[int, ...], group: list[SegmentSpan]) -> None:
        if sum(span.pieces for span in group) > 1:
            heappush(divisible, (-sum(span.bytes for span in group), at, group))
        else:
            settled.append((at, group))

    for index, group in enumerate(packed):
        settle((index,), group)
    while divisible and len(divisible) + len(settled) < wanted:
        _, at, group = heappop(divisible)
        for side, half in enumerate(_halves(group)):
            settle((*at, side), half)
    settled += [(at, group) for _, at, group in divisible]
    return [group for _, group in sorted(settled, key=lambda one: one[0])]


def _halves(group: Sequence[SegmentSpan]) -> list[list[SegmentSpan]]:
    """Cut a partition of two entries or more where it has half its bytes; neither half is empty."""
    left: list[SegmentSpan] = []
    right: list[SegmentSpan] = []
    room = sum(span.bytes for span in group) // 2
    for span in group:
        rest: SegmentSpan | None = span
        if not right and (not left or room >= _piece_bytes(span)):
            part, rest = _divided(span, max(1, room // _piece_bytes(span)))
            left.append(part)
            room -= part.bytes
        if rest is not None:
            right.append(rest)
    return [left, right]
