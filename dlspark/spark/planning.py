"""Cutting ranges of segments into Spark partitions, and a trigger's limit into shares of logs. Pure: no I/O.

A `Span` is what one segment contributes to a read: entries and the slots at its two ends, and all that a task needs to
fetch them without ZooKeeper. Large spans are split between entries, small neighbours share a partition, because a
partition costs a Spark task and a log written by many small batches has many small segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metadata.errors import check

if TYPE_CHECKING:
    from storage_node.client import LedgerLocation


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous range of one segment's records, read by one task or cut further.

    Entries `first_entry` to `last_entry`, both included; of the first the slots from `first_slot` on, of the last those
    below `end_slot` (None: all). `entry_bytes` estimates the stored size of an entry.
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

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1

    @property
    def bytes(self) -> int:
        return self.entries * max(1, self.entry_bytes)


Partition = tuple[Span, ...]


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


def partitions(spans: Sequence[Span], *, min_partitions: int, max_bytes: int) -> list[Partition]:
    """Cut and pack `spans`, in order, into `min_partitions` or more partitions of about `max_bytes` or less.

    The minimum is reached as far as there are entries: an entry is never cut, so that none is fetched twice.
    """
    total = sum(span.bytes for span in spans)
    target = max(1, min(max_bytes, -(-total // min_partitions)))
    packed: list[list[Span]] = []
    room = 0
    for span in spans:
        for part in split(span, -(-span.bytes // target)):
            if packed and part.bytes <= room:
                packed[-1].append(part)
            else:
                packed.append([part])
                room = target
            room -= part.bytes
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


def shares(limit: int, available: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` records over logs that have `available` ones: in proportion, but at least one each (none starves).

    The shares sum to exactly min(limit, all available). If the limit is below the number of logs with news, that many
    take one record each, beginning with the one at `turn`, so that a caller that counts `turn` up serves all of them.
    """
    waiting = {log: count for log, count in sorted(available.items()) if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    if limit <= len(waiting):
        names = list(waiting)
        return {names[(turn + i) % len(names)]: 1 for i in range(limit)}
    given = {log: max(1, limit * count // total) for log, count in waiting.items()}
    left = limit - sum(given.values())
    by_remainder = sorted(waiting, key=lambda log: (-(limit * waiting[log] % total), log))
    by_size = sorted(given, key=lambda log: (-given[log], log))
    while left > 0:
        for log in by_remainder:
            if left > 0 and given[log] < waiting[log]:
                given[log] += 1
                left -= 1
    while left < 0:
        for log in by_size:
            if left < 0 and given[log] > 1:
                given[log] -= 1
                left += 1
    check(sum(given.values()) == limit, "the shares of a trigger do not sum to its limit")
    return given
