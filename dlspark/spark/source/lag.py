"""How much lies between two positions of a log: in records, in stored bytes, in time. Found at a bounded cost.

Records are counted exactly, from segment metadata and at most two entries, and so are stored bytes; only where more
than `MAX_LEDGERS` segments lie between the first and the last, as many of them, spread evenly, stand for those between.
Time is the distance from the transaction id of the first record to that of the last one: milliseconds where ids are
times, as the source takes them to be. It needs no clock, so a log of past years has no lag of years.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.errors import OptionError
from dlspark.spark.source.log_bytes import bytes_between, segment_bytes
from dlspark.spark.source.log_view import LogView
from metadata.segments import SegmentMetadata

MAX_LEDGERS: Final = 64
"""Ledgers that are looked at for one log's bytes, beside the first and the last."""
MAX_STEPS: Final = 16
"""Entries that are looked at for one transaction id: those with control records alone have none."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What a reader of one log has not read yet. `records` is None for a log whose writer did not count them,
    `milliseconds` where the records have no transaction id that could be found at a bounded cost."""

    records: int | None
    bytes: int
    milliseconds: int | None

    def reported(self) -> dict[str, int | None]:
        """The form in a query's progress."""
        return {"records": self.records, "bytes": self.bytes, "ms": self.milliseconds}

    @classmethod
    def of_report(cls, report: object) -> Lag | None:
        """Read back what `reported` gave; None for anything else."""
        if not isinstance(report, Mapping):
            return None
        records, stored, milliseconds = (_number(report.get(name)) for name in ("records", "bytes", "ms"))
        return None if stored is None else cls(records, stored, milliseconds)


@dataclass(frozen=True, slots=True)
class Extent:
    """The records from one position to before another; None as in `Lag`, and where there are no records."""

    records: int | None
    bytes: int
    first_txid: int | None
    last_txid: int | None

    @property
    def lag(self) -> Lag:
        """Of a reader that has read none of them."""
        if self.records == 0:
            return NO_LAG
        first, last = self.first_txid, self.last_txid
        return Lag(self.records, self.bytes, None if first is None or last is None else max(last - first, 0))


NO_LAG: Final = Lag(0, 0, 0)
NOTHING: Final = Extent(0, 0, None, None)


async def extent(view: LogView, start: DLSN, end: DLSN) -> Extent:
    """What lies from `start` to before `end`, a position that `view` has told. Raises what reading raises."""
    start = max(start, view.earliest())
    if start >= end:
        return NOTHING
    try:
        records: int | None = await view.count(start, end)
    except OptionError:  # The writer was set not to count.
        records = None
    if records == 0:
        return NOTHING
    segments = view.between(start, end)
    return Extent(
        records,
        await _bytes(view, start, end),
        await _first_txid(view, segments, start),
        await _last_txid(view, segments, end),
    )


async def _bytes(view: LogView, start: DLSN, end: DLSN) -> int:
    segments = view.between(start, end)
    if len(segments) <= MAX_LEDGERS + 2:
        return await bytes_between(view, start, end)
    first, *inner, last = segments
    seen = [inner[len(inner) * part // MAX_LEDGERS] for part in range(MAX_LEDGERS)]
    sizes = await asyncio.gather(*(segment_bytes(view, one, start, end) for one in (first, last, *seen)))
    return sum(sizes[:2]) + sum(sizes[2:]) * len(inner) // MAX_LEDGERS


async def _first_txid(view: LogView, segments: list[SegmentMetadata], start: DLSN) -> int | None:
    """Transaction id of the first record at or behind `start`."""
    for segment in segments:
        if segment.lssn != start.lssn or start[1:] <= (0, 0):
            return segment.first_txid
        _, entries = await view.stored(segment)
        for entry_id in range(start.entry_id, min(entries, start.entry_id + MAX_STEPS)):
            found = (await view.entry(segment, entry_id)).first_txid
            if found is not None:
                return found
        if entries > start.entry_id + MAX_STEPS:
            return None
    return None


async def _last_txid(view: LogView, segments: list[SegmentMetadata], end: DLSN) -> int | None:
    """Transaction id of the last record before `end`."""
    for segment in reversed(segments):
        if segment.lssn == end.lssn:
            after = end.entry_id + (end.slot_id > 0)
        elif segment.last_txid != MAX_TXID and segment.record_count:
            return segment.last_txid
        else:
            after = segment.last_entry + 1
        for entry_id in range(after - 1, max(after - 1 - MAX_STEPS, -1), -1):
            found = (await view.entry(segment, entry_id)).last_txid
            if found is not None:
                return found
    return None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
