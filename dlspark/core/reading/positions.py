"""`LogPositions`: questions about a log's positions, answered from metadata and as few entries as possible.

What a question costs does not grow with the log: the names of its segments come in one request, a binary search reads a
few of them, and in one segment another search reads a few entries; `probes` counts them. Counting records reads the
metadata of the segments counted, and entries of the first and the last of them.

Positions are next-to-read: an end is exclusive. Control records and the end of stream are not counted
(docs/reference/records.md#positions).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.reading.segment_ledger import SegmentLedger
from dlspark.core.reading.segments import (
    Probes,
    SegmentReader,
    first_active,
    first_left,
    is_truncated,
    start_sequence_id,
)
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, LogEmptyError, SegmentNotFoundError
from metadata.distributedlog.segment_listing import SegmentListing, SegmentVanishedError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, NoNodeError

_T = TypeVar("_T")

EARLIEST = "earliest"
LAST = "last"
LATEST = "latest"


class LogPositions:
    """Base of `AsyncLog`."""

    name: str
    probes: Probes
    _services: Services
    _settings: Settings

    def _check_open(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ segments

    async def segments(self) -> list[SegmentMetadata]:
        """Return all segments, oldest first, truncated ones included. Raises LogNotFoundError."""
        self._check_open()
        return await self._services.reading.logs.segments(self.name)

    async def open_segment(self, segment: SegmentMetadata) -> SegmentReader:
        """Return one segment's entries. An in-progress segment is opened without disturbing its writer. Close it after
        use."""
        start = segment.effective_start_sequence_id
        if segment.in_progress:
            start = await self._ask(lambda listing: start_sequence_id(listing, segment))
        self._check_open()
        return await self._open_segment(segment, start)

    async def _open_segment(self, segment: SegmentMetadata, first_sequence_id: int) -> SegmentReader:
        settings = self._settings
        ledger = await SegmentLedger.open(self._services.reading, settings, self.name, segment)
        return SegmentReader(segment, ledger, self.probes, start_sequence_id=first_sequence_id, settings=settings)

    @asynccontextmanager
    async def _opened(self, segment: SegmentMetadata, first_sequence_id: int = 0) -> AsyncIterator[SegmentReader]:
        self.probes.segments += 1
        try:
            reader = await self._open_segment(segment, first_sequence_id)
            try:
                yield reader
            finally:
                await reader.close()
        except (NoNodeError, AlreadyTruncatedError) as error:
            # Purged, or recovered as empty, or its cold file deleted, since it was listed: the list is read again.
            raise SegmentVanishedError("a segment's data is gone", log=self.name) from error

    async def _ask(self, question: Callable[[SegmentListing], Awaitable[_T]]) -> _T:
        """Return the answer `question` finds in the list of segments. Raises LogNotFoundError."""
        self._check_open()

        async def counted(listing: SegmentListing) -> _T:
            try:
                return await question(listing)
            finally:
                self.probes.metadata += listing.reads

        try:
            return await self._services.reading.logs.ask(self.name, counted)
        except SegmentVanishedError as error:
            raise SegmentNotFoundError(
                f"{error.message}, though the log keeps listing the segment",
                log=self.name,
                advice="Its data may have been deleted outside of the log; a recovery under way may be asked again",
            ) from error

    async def _first_left(self, listing: SegmentListing, index: int = 0) -> tuple[int, SegmentMetadata] | None:
        """Return the first segment from this index on that readers may see, and its index."""
        if not self._settings.ignore_truncation:
            return await first_left(listing, index)
        return (index, await listing.read(listing[index])) if index < len(listing) else None

    def _first_active(self, segment: SegmentMetadata) -> DLSN:
        return DLSN(segment.lssn, 0, 0) if self._settings.ignore_truncation else first_active(segment)

    # ------------------------------------------------------------------ first and last

    async def start(self) -> DLSN:
        """Return the first position that truncation and retention have left; the end of a log without any. Raises
        LogNotFoundError."""
        found = await self._ask(self._first_left)
        return self._first_active(found[1]) if found is not None else await self.end()

    async def end(self) -> DLSN:
        """Return the next position to read once everything committed up to now has been read: an exclusive end.

        It lies in the first segment whose end is still open: what follows such a segment is not readable yet. Covers
        every record that was acknowledged before this call by a writer that is alive. Raises LogNotFoundError.
        """

        async def question(listing: SegmentListing) -> DLSN:
            # The first open one: while a writer rolls there may be two, and nothing of the second is readable yet (I4).
            for listed in listing.open:
                async with self._opened(await listing.read(listed)) as reader:
                    lac = await reader.refresh()
                    if not reader.settled:
                        return DLSN(listed.lssn, lac + 1, 0)
            return _behind(listing)

        return await self._ask(question)

    async def first_record(self) -> LogRecord:
        """Return the first record that is left. Raises LogEmptyError."""

        async def question(listing: SegmentListing) -> LogRecord | None:
            found = await self._first_left(listing)
            while found is not None:
                index, segment = found
                if segment.in_progress or segment.record_count:
                    first = await start_sequence_id(listing, segment)
                    async with self._opened(segment, first) as reader:
                        settled = reader.settled
                        record = await reader.first_user_record(self._first_active(segment))
                    if record is not None or not settled:
                        # Not settled: its first record is not readable yet, and later segments do not have the first.
                        return record
                found = await self._first_left(listing, index + 1)
            return None

        return self._required(await self._ask(question))

    async def last_record(self, *, with_end_of_stream: bool = False) -> LogRecord:
        """Return the last committed record. Raises LogEmptyError."""

        async def question(listing: SegmentListing) -> LogRecord | None:
            for index in range(len(listing) - 1, -1, -1):
                segment = await listing.read(listing[index])
                if is_truncated(segment) and not self._settings.ignore_truncation:
                    break
                async with self._opened(segment, await start_sequence_id(listing, segment)) as reader:
                    await reader.refresh()
                    record = await reader.last_user_record(with_end_of_stream=with_end_of_stream)
                if record is not None:
                    return record if record.dlsn >= self._first_active(segment) else None
            return None

        return self._required(await self._ask(question))

    def _required(self, record: LogRecord | None) -> LogRecord:
        if record is None:
            raise LogEmptyError("the log has no records", log=self.name)
        return record

    async def first_dlsn(self) -> DLSN:
        """Return the position of the first record that is left. Raises LogEmptyError."""
        return (await self.first_record()).dlsn

    async def first_txid(self) -> int:
        """Return the transaction id of the first record that is left. Raises LogEmptyError."""
        return (await self.first_record()).txid

    async def last_dlsn(self) -> DLSN:
        """Return the position of the last committed record (`end` is the one behind it). Raises LogEmptyError."""
        return (await self.last_record()).dlsn

    async def last_txid(self) -> int:
        """Return the transaction id of the last committed record. Raises LogEmptyError."""
        return (await self.last_record()).txid

    async def is_sealed(self) -> bool:
        """Return whether the log ends with an end-of-stream record. Raises LogNotFoundError."""
        try:
            return (await self.last_record(with_end_of_stream=True)).is_end_of_stream
        except LogEmptyError:
            return False

    # ------------------------------------------------------------------ searches

    async def find_txid(self, txid: int) -> DLSN:
        """Return the position of the first record with a transaction id of `txid` or above; the end if there is none
        yet.

        Reads about log2(segments) segments' metadata and log2(entries) entries of one of them at most (P9), a few where
        ids grow evenly, none where it begins a completed segment; `probes` counts.
        Meaningful where transaction ids do not decrease, which writers ensure unless `maxIdSanityCheck` is off. Raises
        LogNotFoundError.
        """

        async def question(listing: SegmentListing) -> DLSN:
            index = await listing.first_where(lambda s: s.in_progress or s.last_txid >= txid)

            async def locate(reader: SegmentReader, _: int) -> tuple[int, int] | None:
                return await reader.locate_txid(txid)

            return await self._search(listing, index, locate, begins_with=lambda s: s.first_txid >= txid)

        return await self._ask(question)

    async def find_sequence_id(self, sequence_id: int) -> DLSN:
        """Return the position of the record with this sequence id, or of the first one left behind it; the end if none
        is yet.

        Segments of metadata versions below 5 have no sequence ids; they are passed over. Raises LogNotFoundError.
        """

        async def question(listing: SegmentListing) -> DLSN:
            index = await listing.first_where(
                lambda s: s.in_progress or s.effective_start_sequence_id + s.record_count > sequence_id
            )

            async def locate(reader: SegmentReader, first: int) -> tuple[int, int] | None:
                return await reader.locate_position(sequence_id - first + 1)

            return await self._search(listing, index, locate)

        return await self._ask(question)

    async def _search(
        self,
        listing: SegmentListing,
        index: int,
        locate: Callable[[SegmentReader, int], Awaitable[tuple[int, int] | None]],
        begins_with: Callable[[SegmentMetadata], bool] = lambda _: False,
    ) -> DLSN:
        """Return the first position that `locate` finds in the segments from this index on, not below what is left.

        `begins_with`: whether a segment's metadata alone show that its first record is the one looked for.
        """
        left = await self._first_left(listing, index)
        while left is not None:
            index, segment = left
            if segment.record_count and begins_with(segment):  # of one in progress the count is 0
                return self._first_active(segment)
            first = await start_sequence_id(listing, segment)
            async with self._opened(segment, first) as reader:
                searched, settled = reader.lac, reader.settled
                found = await locate(reader, first)
            if found is None and not settled:
                # Records that came meanwhile, here or in later segments, were not searched: they may be the result.
                found = (searched + 1, 0)
            if found is not None:
                return max(DLSN(segment.lssn, *found), self._first_active(segment))
            left = await self._first_left(listing, index + 1)
        return _behind(listing)

    async def position(self, start: DLSN | int | str) -> DLSN:
        """Return the position that a start stands for: a DLSN or its text, a transaction id, "earliest", "last" or
        "latest".

        Raises CallerError for anything else, LogNotFoundError.
        """
        if isinstance(start, bool) or not isinstance(start, DLSN | int | str):
            raise CallerError(f"{start!r} is not a position", advice="Give a DLSN, a transaction id or 'earliest'")
        if isinstance(start, int):
            return await self.find_txid(start)
        if start == LATEST:
            return await self.end()
        if start == LAST:
            return await self._last_or_end()
        self._check_open()
        await self._services.reading.logs.check_layout(self.name)
        if isinstance(start, DLSN):
            return start
        if start != EARLIEST:
            return DLSN.parse(start)
        # Segments of version 1 have no number, and count as 0.
        return DLSN(0, 0, 0) if self._settings.skip_minimum_version else DLSN.INITIAL

    async def _last_or_end(self) -> DLSN:
        try:
            return await self.last_dlsn()
        except LogEmptyError:
            return await self.end()

    # ------------------------------------------------------------------ counting

    async def record_count(self, start: DLSN | None = None, end: DLSN | None = None) -> int:
        """Return how many records there are from `start` to before `end`: by default, all that are left and committed.

        Whole segments are counted by their metadata. What truncation hides does not count. Raises LogNotFoundError.
        """

        async def question(listing: SegmentListing) -> int:
            left = await self._first_left(listing, 0 if start is None else listing.index_of(start.lssn))
            if left is None:
                return 0
            index, oldest = left
            first = max(start or DLSN.INITIAL, self._first_active(oldest))
            after = len(listing) if end is None else listing.index_of(end.lssn + 1)
            count = 0
            for segment in await listing.read_all(index, after):
                last = end if end is not None and end.lssn == segment.lssn else None
                count += await self._records_before(segment, last)
                if segment.lssn == first.lssn:
                    count -= await self._records_before(segment, first)
            return max(count, 0)

        return await self._ask(question)

    async def sequence_id(self, dlsn: DLSN) -> int:
        """Return the sequence id of the first record at or after `dlsn`: how many records the log had before it.

        Meaningless below metadata version 5, as upstream's: a negative number that grows. Raises AlreadyTruncatedError
        for a segment that was deleted.
        """

        async def question(listing: SegmentListing) -> int:
            listed = listing.find(dlsn.lssn)
            if listed is None and len(listing) and dlsn.lssn > listing[-1].lssn:
                listed = listing[-1]
            if listed is None and dlsn.lssn > 0 and not len(listing):
                return 0
            if listed is None:
                raise AlreadyTruncatedError(
                    f"segment {dlsn.lssn} was deleted", log=self.name, dlsn=dlsn, advice="Ask from `start` on"
                )
            segment = await listing.read(listed)
            before = await self._records_before(segment, dlsn if listed.lssn == dlsn.lssn else None)
            return await start_sequence_id(listing, segment) + before

        return await self._ask(question)

    async def _records_before(self, segment: SegmentMetadata, dlsn: DLSN | None) -> int:
        """Return how many records of the segment lie before `dlsn`; without one, all that are committed."""
        if dlsn is not None and (dlsn.entry_id < 0 or dlsn[1:] <= (0, 0)):
            return 0
        if not segment.in_progress and (dlsn is None or dlsn[1:] > (segment.last_entry, segment.last_slot)):
            return segment.record_count
        async with self._opened(segment) as reader:
            await reader.refresh(acknowledged=dlsn is None)
            return await reader.records_before(dlsn)


def _behind(listing: SegmentListing) -> DLSN:
    """Return where the next segment will begin."""
    return DLSN(listing[-1].lssn + 1, 0, 0) if len(listing) else DLSN.INITIAL
