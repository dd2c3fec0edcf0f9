"""`SegmentReader`: one segment's entries, and how a record is found among them by reading few.

Of a segment in a cold file the file's index answers (`ColdLedger`). Of one in its ledger: a storage node returns whole
entries, often of some 256 KB, so the cost of a search is the entries that it reads. `Probes` counts them: a logarithm
of a segment's entries, whatever the length of the log. Three questions are asked:

* *The first record that reaches a value* (a transaction id, or a position). `EntrySearch`, which is pure, decides which
  entry to look at next; `SegmentReader` reads it, and at last walks over the records of the entry that was found.
  Transaction ids are mostly times, from a writer that writes evenly, and positions count records. So the first look is
  at a *guess*, in proportion between the values at the segment's ends. From there the search walks in growing steps,
  forwards or back as each entry shows, until the record lies between two entries that were looked at. What is between
  them is cut into parts of equal length. A good guess costs one or two entries, and a useless one a logarithm of the
  segment's, as a search without it.
* *The last record of some kind*: `backward_scan` gives ranges of entries from the end on, which double.
* *Where a log begins, and with which sequence ids a segment does*: from metadata alone (`first_left`,
  `start_sequence_id`).

Values may be equal, and must not decrease: for transaction ids writers check that, unless `maxIdSanityCheck` is off.
Where they do decrease, the result is one position between a lower value and a higher one, as upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.records import LogRecord
from dlspark.core.codec.vector_decoding import EntrySummary, entry_summary
from dlspark.core.reading.segment_ledger import SegmentLedger
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import DistributedLogError
from storage_node.client.reader import LedgerLocation, LedgerReader
from storage_node.protocol.digests import Entry

if TYPE_CHECKING:
    from dlspark.core.cold.reading.cold_ledger import ColdLedger
    from dlspark.core.cold.reading.locations import ColdLocation

_MOST_AT_ONCE = 64
"""Truncated segments that are passed over at a time."""


@dataclass(slots=True)
class Probes:
    """Counters of what searches have read since the counters were last set to 0."""

    segments: int = 0
    """Segments whose entries were read."""
    entries: int = 0
    bytes: int = 0
    """Stored bytes of these entries."""
    metadata: int = 0
    """Segments whose metadata was read; what was known already does not count."""


class SegmentReader:
    """A segment and its open ledger, read without fencing its writer. Close it after use."""

    def __init__(
        self,
        metadata: SegmentMetadata,
        ledger: LedgerReader | SegmentLedger,
        probes: Probes | None = None,
        *,
        start_sequence_id: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Take over an open ledger. `start_sequence_id`: of one in progress, whose metadata lacks it; `settings`: how
        searches and scans read."""
        self.metadata = metadata
        self._ledger = ledger
        self._probes = probes if probes is not None else Probes()
        self._settings = settings if settings is not None else Settings()
        self.start_sequence_id = (
            metadata.effective_start_sequence_id if start_sequence_id is None else start_sequence_id
        )

    @property
    def lac(self) -> int:
        """Last entry that may be read, -1 for none; grows while the segment is in progress."""
        return self._ledger.last_add_confirmed

    @property
    def closed(self) -> bool:
        """True if the ledger's end is fixed (I2). The log's metadata may say so only later."""
        return self._ledger.closed

    @property
    def settled(self) -> bool:
        """True if nothing can come behind `lac`, so that the log goes on in the next segment.

        An empty segment that has ended may still be removed, and its number be used again.
        """
        return not self.metadata.in_progress or (self.closed and self.lac >= 0)

    @property
    def in_file(self) -> bool:
        """True once its entries come out of a cold file, whose index answers searches."""
        return self._cold is not None

    @property
    def _cold(self) -> ColdLedger | None:
        return self._ledger.cold if isinstance(self._ledger, SegmentLedger) else None

    async def location(self) -> LedgerLocation | ColdLocation:
        """Return where the entries are, for a task that reads them without a metadata store."""
        return await self._ledger.location()

    async def refresh(self, *, acknowledged: bool = True) -> int:
        """Ask the storage nodes how far the segment has grown; returns the new `lac`.

        With `acknowledged` it covers every record that was acknowledged before this call, provided that the writer is
        alive: the entry that makes them visible is waited for (`LedgerReader.read_last_acknowledged`).
        """
        if not self._ledger.closed:
            await (self._ledger.read_last_acknowledged if acknowledged else self._ledger.read_last_confirmed)()
        return self.lac

    async def poll(self, seen: int, timeout_ms: int) -> bool:
        """Wait, at most `timeout_ms`, until `lac` is past entry `seen` or the segment has ended; returns whether it is.

        `seen` is the caller's own mark, because `lac` also moves with answers to other requests: entries between the
        two would be missed.
        """
        if self.lac <= seen and not self._ledger.closed:
            await self._ledger.poll(seen + 1, timeout_ms)
        return self.lac > seen

    def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """Return entries first..last in order, read ahead; `last` may not be past `lac`."""
        return self._ledger.entries(first, last)

    async def records(self, entry_id: int) -> list[LogRecord]:
        """Return all records of one entry, control records included."""
        return self._decoded(await self._read(entry_id))

    def _decoded(self, entry: Entry) -> list[LogRecord]:
        return decode_entry(
            entry.payload,
            lssn=self.metadata.lssn,
            entry_id=entry.entry_id,
            start_sequence_id=self.start_sequence_id,
            enveloped=self.metadata.enveloped,
        )

    async def summary(self, entry_id: int) -> EntrySummary:
        """Return counts, ids and positions of one entry."""
        entry = await self._read(entry_id)
        return entry_summary(entry.payload, self.metadata.enveloped, DLSN(self.metadata.lssn, entry_id, 0))

    async def stored_bytes(self, entry_id: int) -> int:
        """Return bytes of the ledger up to this entry, itself included, as it says (one replica; it was checked).

        Of a segment in a cold file they are reckoned: in proportion to records.
        """
        if (cold := self._cold) is not None:
            return cold.stored_to(entry_id)
        length = (await self._read(entry_id)).length
        # Its ledger may have gone under this very read: an entry out of a file knows no length of its own.
        return length if (cold := self._cold) is None else cold.stored_to(entry_id)

    async def locate_txid(self, txid: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the first record with a transaction id of `txid` or above; None if there is none.

        It may be a control record, or the end of stream (whose id is above all): a reader that begins there skips them.
        """
        while isinstance(self._ledger, SegmentLedger) and (cold := self._ledger.cold) is not None:
            try:
                return await cold.locate_txid(txid)
            except DistributedLogError as error:
                await self._ledger.go_on_elsewhere(0, cold, error)
        segment = self.metadata
        high = None if segment.in_progress else segment.last_txid
        return await self._locate(lambda record: record.txid, txid, segment.first_txid, high)

    async def locate_position(self, position: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the segment's `position`-th user record, counted from 1; None if there is none."""
        while isinstance(self._ledger, SegmentLedger) and (cold := self._ledger.cold) is not None:
            try:
                return await cold.locate_position(position)
            except DistributedLogError as error:
                await self._ledger.go_on_elsewhere(0, cold, error)
        high = None if self.metadata.in_progress else self.metadata.record_count
        return await self._locate(lambda record: record.last_position, position, 1, high)

    async def _locate(
        self, value: Callable[[LogRecord], int], wanted: int, low: int, high: int | None
    ) -> tuple[int, int] | None:
        """Return the first record with a value of `wanted` or above, if they go from `low` to `high` (None: not
        known)."""
        count = self.lac + 1
        search = EntrySearch(count, self._settings.search_ways)
        best: list[LogRecord] = []

        async def look(entry_ids: list[int]) -> None:
            nonlocal best
            found = await asyncio.gather(*map(self.records, entry_ids), return_exceptions=True)
            for entry_id, records in zip(entry_ids, found, strict=True):
                if isinstance(records, BaseException):
                    raise records
                reaches = bool(records) and value(records[-1]) >= wanted
                search.tell(entry_id, begins_before=reaches and value(records[0]) < wanted, reaches=reaches)
                if reaches:
                    best = records
                    break

        if high is None and wanted > low and count:
            await look([count - 1])  # it shows how far values go, and whether there is anything to be found
        guess = proportional(count, wanted, low, high if high is not None else value(best[-1]) if best else low)
        if guess is not None:
            search.look_near(guess)
        while probes := search.probes():
            await look(probes)
        return next(((r.dlsn.entry_id, r.dlsn.slot_id) for r in best if value(r) >= wanted), None)

    async def records_before(self, dlsn: DLSN | None) -> int:
        """Return how many user records lie before `dlsn`, or up to `lac` without one: by the numbers that records
        carry."""
        last = self.lac if dlsn is None else min(dlsn.entry_id, self.lac)
        for entry_id in range(last, -1, -1):
            records = await self.records(entry_id)
            within = dlsn is not None and entry_id == dlsn.entry_id
            below = [r for r in records if not within or r.dlsn < dlsn]  # type: ignore[operator]
            if below:
                return below[-1].last_position
            if records:
                # None lies before `dlsn`. A control record has the position of the user record before it.
                return records[0].position - records[0].is_user
        return 0

    async def first_user_record(self, start: DLSN) -> LogRecord | None:
        """Return the first record from `start` on that is neither control nor end of stream; None if there is none
        yet."""
        for entry_id in range(start.entry_id, self.lac + 1):
            for record in await self.records(entry_id):
                if record.is_user and record.dlsn >= start:
                    return record
        return None

    async def last_user_record(self, *, with_end_of_stream: bool = False) -> LogRecord | None:
        """Return the last user record, or the end-of-stream record where that is wanted and there; None if there is
        none."""
        for first, last in backward_scan(self.lac, self._settings):
            entries = await self._ledger.read(first, last)
            self._probes.entries += len(entries)
            self._probes.bytes += sum(len(entry.payload) for entry in entries)
            for entry in reversed(entries):
                for record in reversed(self._decoded(entry)):
                    if record.is_user or (with_end_of_stream and record.is_end_of_stream):
                        return record
        return None

    async def _read(self, entry_id: int) -> Entry:
        entry = (await self._ledger.read(entry_id, entry_id))[0]
        self._probes.entries += 1
        self._probes.bytes += len(entry.payload)
        return entry

    async def close(self) -> None:
        """Close the ledger."""
        await self._ledger.close()


def is_truncated(segment: SegmentMetadata) -> bool:
    """Return whether all of the segment is hidden from readers."""
    return segment.truncation == TruncationStatus.TRUNCATED


def first_active(segment: SegmentMetadata) -> DLSN:
    """Return the first position of the segment that truncation has not hidden; for segments that are not TRUNCATED."""
    if segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED:
        return DLSN(segment.lssn, segment.min_entry, segment.min_slot)
    return DLSN(segment.lssn, 0, 0)


async def first_left(listing: SegmentListing, index: int = 0) -> tuple[int, SegmentMetadata] | None:
    """Return the first segment from this index on that is not truncated, and its index; None if all are."""
    step = 1
    while index < len(listing):
        for offset, segment in enumerate(await listing.read_all(index, index + step)):
            if not is_truncated(segment):
                return index + offset, segment
        index += step
        step = min(2 * step, _MOST_AT_ONCE)
    return None


async def start_sequence_id(listing: SegmentListing, segment: SegmentMetadata) -> int:
    """Return the first sequence id of a segment: stored once it is completed, else where the one before it ended.

    See docs/reference/znodes.md#start-sequence-ids.
    """
    if not segment.in_progress or segment.version < 5:
        return segment.effective_start_sequence_id
    listed = listing.find(segment.lssn - 1)
    if listed is None:
        return 0
    before = await listing.read(listed)
    if before.in_progress or before.version < 5:
        return segment.effective_start_sequence_id
    return before.effective_start_sequence_id + before.record_count


# ------------------------------------------------------------------ the search

_GROWTH = 4
"""By how much the steps away from a guess grow."""


class EntrySearch:
    """Finds the first entry that reaches a value, for a caller that reads entries.

    `probes` returns the entries to look at. Report them with `tell`, in order, up to the first one that reaches the
    value; then ask again, until there are no probes left.
    """

    def __init__(self, count: int, ways: int = 2) -> None:
        """Search entries 0 to `count` - 1; `ways`: how many to look at in parallel where there is no guess."""
        self._first, self._after = 0, count
        self._ways = max(ways, 2)
        self._guess: int | None = None
        self._step = 1
        self._backwards: bool | None = None
        """The direction of the walk from the guess; None before the guess was looked at."""
        self.found: int | None = None
        """The first entry known to reach the value: once no probes are left, the result. None if none reaches it."""

    def look_near(self, entry_id: int) -> None:
        """Begin at an entry that is probably near the result."""
        self._guess = entry_id

    def probes(self) -> list[int]:
        """Return entries to look at now, in their order; empty once the search is over."""
        if self._first >= self._after:
            return []
        if self._guess is not None:
            return [min(max(self._guess, self._first), self._after - 1)]
        return _spread(self._first, self._after, self._ways)

    def tell(self, entry_id: int, *, begins_before: bool, reaches: bool) -> None:
        """Report an entry: whether its first record is below the value, and whether its last one reaches it."""
        if not reaches:
            self._first = entry_id + 1
        else:
            self.found = self._after = entry_id
            if begins_before:
                self._first = entry_id  # The record lies in this very entry: nothing is left to be searched.
        if self._guess is not None:
            self._walk(entry_id, reaches)

    def _walk(self, entry_id: int, reaches: bool) -> None:
        """Go on from a guess that missed, unless the result lies between two looked-at entries now."""
        if self._backwards is None:
            self._backwards = reaches
        following = entry_id - self._step if reaches else entry_id + self._step
        self._guess = following if reaches == self._backwards else None
        self._step *= _GROWTH


def proportional(count: int, wanted: int, low: int, high: int) -> int | None:
    """Return the entry of `count` that has `wanted` if values grow evenly from `low` to `high`; None where they do
    not."""
    if wanted <= low or count <= 0:
        return 0
    return min((wanted - low) * count // (high - low + 1), count - 1) if high > low else None


def _spread(first: int, after: int, ways: int) -> list[int]:
    """Return up to `ways` numbers that cut first..after-1 into parts of equal length."""
    count = after - first
    if count <= ways:
        return list(range(first, after))
    return [first + count * part // (ways + 1) for part in range(1, ways + 1)]


# ------------------------------------------------------------------ scans


def backward_scan(last: int, settings: Settings) -> Iterator[tuple[int, int]]:
    """Yield ranges of entries (first, last) from `last` down to 0.

    They double, from `firstNumEntriesEachPerLastRecordScan` to `maxNumEntriesPerReadLastRecordScan` entries.
    """
    size = settings.first_scan_entries
    while last >= 0:
        first = max(0, last - size + 1)
        yield first, last
        last = first - 1
        size = max(size, min(2 * size, settings.max_scan_entries))
