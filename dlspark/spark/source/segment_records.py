"""`SegmentRecords`: how many records lie in the segments of a log and before their positions, found by few entries.

A segment's metadata count its records once it is completed. Before that, and within it, entries do: each record carries
the number of user records up to it. The counts of entries are kept, because batch after batch asks for them (P8). A
writer may be set not to count: that is an OptionError where counts are needed, and is never taken for no records.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import EntrySummary
from dlspark.core.log import AsyncLog
from dlspark.core.reading.segments import EntrySearch, SegmentReader, proportional
from dlspark.spark.errors import OptionError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import check, present

_MAX_REMEMBERED = 256
_MAX_SUMMARIES = 4096
"""Entries whose counts are kept; some 200 bytes each."""


@dataclass(frozen=True, slots=True)
class SegmentTail:
    """The segment in progress up to its LAC: `end` follows the last user record, `records` user records lie before it.

    `scanned` is the first entry that has not been looked at.
    """

    ledger_id: int
    scanned: int = 0
    end: DLSN | None = None
    records: int = 0


class SegmentRecords:
    """The records of one log's segments, with the readers of their entries; only one call at a time."""

    def __init__(self, log: AsyncLog) -> None:
        self.tail: SegmentTail | None = None
        """The segment in progress, as last looked at."""
        self._log = log
        self._readers: dict[tuple[int, bool], SegmentReader] = {}
        self._before: dict[tuple[int, int, int], int] = {}
        self._summaries: dict[tuple[int, int], EntrySummary] = {}

    async def close(self) -> None:
        """Close all readers of entries."""
        await self.keep(())

    async def keep(self, live: Container[tuple[int, bool]]) -> None:
        """Close the readers of all but these ledgers, each with whether its segment is in progress."""
        for key in [key for key in self._readers if key not in live]:
            await self._readers.pop(key).close()

    def tail_reader(self) -> SegmentReader | None:
        """Return the reader of the segment in progress, if one was opened."""
        return None if self.tail is None else self._readers.get((self.tail.ledger_id, True))

    async def reader(self, segment: SegmentMetadata) -> SegmentReader:
        """Return the one reader of a segment; another one once it was completed."""
        key = (segment.ledger_id, segment.in_progress)
        if key not in self._readers:
            self._readers[key] = await self._log.open_segment(segment)
        return self._readers[key]

    # ------------------------------------------------------------------ the segment in progress

    async def look_at_tail(self, segment: SegmentMetadata, *, acknowledged: bool = False) -> SegmentTail:
        """Bring what is known of the segment in progress up to its present LAC; as `SegmentReader.refresh` does.

        Every record carries the position of the last user record, so a tail of control records need not be walked.
        """
        reader = await self.reader(segment)
        last = await reader.refresh(acknowledged=acknowledged)
        tail = self.tail
        if tail is None or tail.ledger_id != segment.ledger_id:
            tail = SegmentTail(segment.ledger_id)
        # Only what is new is looked at: what was seen before never changes, since it lies below a LAC (I6).
        if last >= tail.scanned:
            summary = await self.entry(segment, last)
            end: DLSN | None
            if summary.user_count:
                end, records = DLSN(segment.lssn, last + 1, 0), summary.last_position
            elif summary.last_position > tail.records:
                # Control records alone: they carry the number of the user record before them, which is searched for.
                entry_id, _ = await self.located(segment, summary.last_position)
                end, records = DLSN(segment.lssn, entry_id + 1, 0), summary.last_position
            else:
                end, records = await self._walk_back(segment, last - 1, tail)
            tail = SegmentTail(segment.ledger_id, last + 1, end, records)
        self.tail = tail
        return tail

    async def _walk_back(self, segment: SegmentMetadata, last: int, tail: SegmentTail) -> tuple[DLSN | None, int]:
        """Look for a user record among the entries not yet seen, of a writer that does not count records.

        One that does reaches this only with control records since the last look, and the loop ends at once.
        """
        if tail.records:
            return tail.end, tail.records
        for entry_id in range(last, tail.scanned - 1, -1):
            if (await self.entry(segment, entry_id)).user_count:
                return DLSN(segment.lssn, entry_id + 1, 0), 0
        return tail.end, tail.records

    # ------------------------------------------------------------------ entries

    async def located(self, segment: SegmentMetadata, position: int) -> tuple[int, int]:
        """Return entry and slot of a user record that is known to exist, by its number in the segment."""
        reader = await self.reader(segment)
        if reader.in_file:
            place = await reader.locate_position(position)
            return present(place, f"record {position} of a segment is not in its cold file", log=self._log.name)
        search = EntrySearch(reader.lac + 1)
        guess = proportional(reader.lac + 1, position, 1, self._counted_last(segment))
        if guess is not None:
            search.look_near(guess)
        while probes := search.probes():
            for entry_id in probes:
                summary = await self.entry(segment, entry_id)
                reaches = summary.last_position >= position
                has_it = reaches and bool(summary.user_count) and summary.first_position <= position
                search.tell(entry_id, begins_before=has_it, reaches=reaches)
                if reaches:
                    break
        # Control records carry the position of the user record before them, so the entry found has the record itself.
        entry_id = search.found if search.found is not None else reader.lac
        found = await self.entry(segment, entry_id)
        check(
            bool(found.user_count) and found.first_position <= position <= found.last_position,
            f"record {position} of a segment is not where it was counted",
            log=self._log.name,
        )
        if found.user_count == found.record_count:
            return entry_id, position - found.first_position
        records = await reader.records(entry_id)
        return entry_id, next(r.dlsn.slot_id for r in records if r.is_user and r.last_position >= position)

    def _counted_last(self, segment: SegmentMetadata) -> int:
        """Return the number of a segment's last user record, by what is known without a request."""
        if not segment.in_progress:
            return segment.record_count
        return self.tail.records if self.tail is not None else 0

    async def entry(self, segment: SegmentMetadata, entry_id: int) -> EntrySummary:
        """Return the counts of one committed entry; it never changes, so it is read once (P8: batch after batch asks
        for it)."""
        key = (segment.ledger_id, entry_id)
        found = self._summaries.get(key)
        if found is None:
            found = await (await self.reader(segment)).summary(entry_id)
            if len(self._summaries) >= _MAX_SUMMARIES:
                self._summaries.clear()
            self._summaries[key] = found
        return found

    # ------------------------------------------------------------------ counting

    async def count(self, segment: SegmentMetadata) -> int:
        """Return how many user records a whole segment has."""
        if segment.in_progress:
            return self._counted(await self.look_at_tail(segment))
        if segment.record_count == 0:
            await self._check_counted_before(segment, segment.last_entry + 1)
        return segment.record_count

    def _counted(self, tail: SegmentTail) -> int:
        """Return how many user records the segment in progress has; OptionError where its writer does not count
        them."""
        if tail.end is not None and not tail.records:
            raise _uncounted_error(self._log.name)
        return tail.records

    async def _check_counted_before(self, segment: SegmentMetadata, entry_id: int) -> None:
        """Raise OptionError where records before an entry were not counted, and are not just none."""
        for earlier in range(entry_id - 1, -1, -1):
            summary = await self.entry(segment, earlier)
            if summary.user_count:
                _check_counted(summary, self._log.name)
                return

    async def count_before(self, segment: SegmentMetadata, position: DLSN) -> int:
        """Return how many user records of a segment lie before a position in it."""
        if (position.entry_id, position.slot_id) <= (0, 0):
            return 0
        if self.tail is not None and self.tail.end == position and segment.in_progress:
            return self._counted(self.tail)
        reader = await self.reader(segment)
        if position.entry_id > (reader.lac if segment.in_progress else min(reader.lac, segment.last_entry)):
            return await self.count(segment)
        key = (segment.ledger_id, position.entry_id, position.slot_id)
        if key not in self._before:
            if len(self._before) >= _MAX_REMEMBERED:
                self._before.clear()
            self._before[key] = await self._count_before_slot(reader, segment, position)
        return self._before[key]

    async def _count_before_slot(self, reader: SegmentReader, segment: SegmentMetadata, position: DLSN) -> int:
        summary = await self.entry(segment, position.entry_id)
        _check_counted(summary, self._log.name)
        if not summary.user_count:
            if summary.first_position == 0:
                await self._check_counted_before(segment, position.entry_id)
            return summary.first_position
        before = summary.first_position - 1
        if position.slot_id == 0:
            return before
        if summary.user_count == summary.record_count:
            return before + min(position.slot_id, summary.user_count)
        # Control records among user records: slots count both, positions only the latter.
        records = await reader.records(position.entry_id)
        return before + sum(record.is_user and record.dlsn.slot_id < position.slot_id for record in records)


def _check_counted(summary: EntrySummary, log: str) -> None:
    """Raise OptionError for an entry of a writer that was set not to count records: positions are all 0 then, and
    records cannot be counted by search."""
    if summary.user_count and summary.first_position == 0:
        raise _uncounted_error(log)


def _uncounted_error(log: str) -> OptionError:
    return OptionError(
        "Options maxOffsetsPerTrigger, minOffsetsPerTrigger and maxRecordsPerPartition need record counts, and "
        "this log was written without them",
        advice="Leave these options out for this log, or use maxBytesPerTrigger and maxBytesPerPartition",
        log=log,
    )
