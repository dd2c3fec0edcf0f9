"""`AsyncLogReader`: a log's records in order, each once, from a position on, across segments and at the growing tail.

Two ways of reading share one position: record by record, and by columns (`next_batch`, `batches`), which decodes many
entries at a time. Control records are hidden. At the end-of-stream record reading ends with EndOfStreamError; a loop
just ends. Errors are final for a reader: everything before the error has been delivered, and `position` says where the
next reader should start.

Records of a segment are numbered by their writer; a missing number between two records is a gap, and a gap fails the
reader (I4). Entries that were passed over because all their copies are damaged (`readAheadSkipBrokenEntries`) do not
fail it: they are listed in `gaps`. Cancelling a read loses nothing: records are taken off the queue only when they are
delivered.

The way of a record: `LogReadAhead` fetches entries in a task of its own; a read takes them, decodes them (those of a
file are columns already) into `DecodedRecords` and delivers from there. `_turn` lets one read at a time do so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import declared_bytes, decode_entry
from dlspark.core.codec.records import LogRecord
from dlspark.core.codec.vector_decoding import EXPANDED_BYTES, DecodedBatch, decode_up_to, record_rows, rows
from dlspark.core.reading.decoded_records import DecodedRecords, Loan
from dlspark.core.reading.read_ahead import LogReadAhead
from dlspark.core.reading.reader_checks import (
    Gap,
    GapCheck,
    Idleness,
    add_position,
    end_of_stream_error,
    first_damaged,
    gap_error,
    lies_below,
    position_behind,
)
from dlspark.core.reading.segment_follower import FetchedEntry
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.typed.table_reads import TableReads
from dlspark.errors import EndOfStreamError, PositionGapError, ReadCancelledError
from metadata.foundation.errors import CallerError, DistributedLogError, check
from metadata.foundation.opened_here import OnOneLoop

BATCH_BYTES = 8 << 20
"""A batch takes fetched entries up to about this size."""
RECORDS_BYTES = 1 << 20
"""Fetched entries are decoded together up to about this size, also where records are read one by one. A loop in another
thread asks for more once it has had them, which takes as long as some hundreds of records."""
VECTOR_BYTES = 8 << 10
"""Less is decoded record by record, which is faster for the few records of a growing tail."""
Start: TypeAlias = "DLSN | int | str"
"""A position, or what stands for one: its text, a transaction id, "earliest", "last" or "latest"."""

_log = logging.getLogger(__name__)


class AsyncLogReader(OnOneLoop):
    """Reads the records of one log in order, each once, and waits at its end for more.

    `AsyncLog.open_reader` returns it. Iterate over it, or take what there is: a record (`read_next`), several
    (`read_bulk`), columns (`next_batch`, `batches`), rows by the log's schema (`next_table`, `tables`). `position` is
    where another reader goes on. After an error other than the end of the stream it stays failed: open another one
    there. All calls come from one event loop.
    """

    def __init__(
        self,
        services: Services,
        name: str,
        settings: Settings,
        start: DLSN,
        locate: Callable[[Start], Awaitable[DLSN]] | None = None,
    ) -> None:
        """Use `AsyncLog.open_reader` instead. `start`: the first position to deliver; DLSN.INITIAL or below means the
        first record there is.

        `locate` finds positions for `skip_to`, which takes a DLSN only without it.
        """
        self.name = name
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._locate = locate
        self._ahead = self._read_ahead(start)
        self._measures = services.meter.of(name)
        self._idleness = Idleness(name, services.counters)
        self._numbers = GapCheck(name, services.counters)
        self._records = DecodedRecords()
        self._tables = TableReads(services.logs, name, self._measures.misfit_records)
        self._loan: Loan | None = None
        self._delivered: LogRecord | None = None  # the last one, if it moved the position
        self._moved_to = start
        self._final: DistributedLogError | None = None
        self._explained: DistributedLogError | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    def use_settings(self, settings: Settings) -> None:
        """Go on with the log's changed settings."""
        self._settings = settings
        self._ahead.use_settings(settings)

    # ------------------------------------------------------------------ for users

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed

    @property
    def position(self) -> DLSN:
        """Where another reader has to start to go on behind the last record delivered."""
        loan, delivered = self._loan, self._delivered
        if loan is not None:
            delivered = loan.last or delivered
        return self._moved_to if delivered is None else position_behind(delivered)

    @property
    def gaps(self) -> list[Gap]:
        """Damaged entries that were passed over so far, oldest first; with `readAheadSkipBrokenEntries` only."""
        return list(self._numbers.gaps)

    @property
    def caught_up(self) -> bool:
        """True if everything that was confirmed when the log was last read has been delivered."""
        loan = self._loan  # Once: it may end in another thread.
        lent = loan is not None and not loan.spent
        return self._ahead.caught_up and not lent and not self._records and self._ahead.peek() is None

    @property
    def lag_s(self) -> float | None:
        """Seconds by which this reader may be behind a writer in the farthest region of the copies, when it waits at
        the tail (`LedgerReader.lag_s`); None: no distance is known, as without a region of its own (`region`)."""
        return self._ahead.lag_s

    async def read_next(self) -> LogRecord:
        """Return the next record; waits at the tail. Raises EndOfStreamError and the reader's other final errors."""
        self._check_loop()
        # No other read is under way, so records keep their order without the lock.
        if self._records.made and not self._turn.locked():
            return self._deliver()
        async with self._own_turn():
            self._end_loan()
            await self._wait_for_records(None)
            return self._deliver()

    async def lend(self) -> Loan:
        """Return the next records, for another thread that delivers them one by one; waits at the tail.

        What has not been delivered comes back with the next call of any method that reads, this one included, and is
        taken away where the reader ends.
        """
        async with self._own_turn():
            self._end_loan()
            await self._wait_for_records(None)
            self._loan = self._records.lend()
            return self._loan

    async def read_bulk(self, count: int, wait_ms: int | None = None) -> list[LogRecord]:
        """Return up to `count` records: as soon as there is one; or, given `wait_ms`, once there are `count` or it is
        over.

        There is always at least one: with none, it waits on.
        """
        loop = self._loop
        deadline = None if wait_ms is None else loop.time() + wait_ms / 1000
        async with self._own_turn():
            self._end_loan()
            await self._wait_for_records(None)
            if deadline is not None:
                while not self._has(count) and self._final is None and loop.time() < deadline:
                    await self._activity(deadline)
            return self._deliver_up_to(count)

    async def read_available(self, count: int, *, wait: bool) -> list[LogRecord]:
        """Return up to `count` records of those fetched; an empty list, with `wait`, means that the log has no more
        now.

        With `wait`, records that are confirmed are fetched first; at the tail it waits `readAheadWaitTime` once more.
        Raises EndOfStreamError and other final errors only when no record is left before them.
        """
        async with self._own_turn():
            self._end_loan()
            await self._find_available(count, wait=wait)
            return self._deliver_up_to(count)

    async def batch_available(self, *, wait: bool = True) -> pa.RecordBatch | None:
        """Return the next records as columns, of one segment; None, with `wait`, means that the log has no more now.

        It waits, and raises, as `read_available` does.
        """
        async with self._own_turn():
            self._end_loan()
            await self._find_available(1, wait=wait)
            return self._leftover() if self._records else None

    async def _find_available(self, count: int, *, wait: bool) -> None:
        """Have `count` records at hand, if the log has as many now. Raises the final error where none is left."""
        loop = self._loop
        deadline: float | None = None
        while wait and not self._has(count) and self._final is None:
            at_tail = self._ahead.caught_up and self._ahead.peek() is None
            if at_tail:
                if self._records:
                    break
                deadline = deadline or loop.time() + self._settings.read_ahead_wait_ms / 1000
                if loop.time() >= deadline:
                    break
            # A deadline that has passed does not hurry the read-ahead on to the tail: without it, this would spin.
            await self._activity(deadline if at_tail else None)
        if not self._has(count) and not self._records and self._final is None:
            self._check_idleness()
        if not self._records and self._final is not None:
            raise self._final_error(self._final)

    async def skip_to(self, start: Start) -> DLSN:
        """Go on at another position, forwards or back; returns it. What was read ahead and still fits is kept.

        Raises what finding the position raises; a reader that has failed stays failed.
        """
        position = await self._locate(start) if self._locate is not None else start
        if not isinstance(position, DLSN):
            raise CallerError(f"{start!r} is not a position", advice="Give a DLSN")
        async with self._own_turn():
            self._end_loan()
            if self._final is not None and not isinstance(self._final, EndOfStreamError):
                raise self._final_error(self._final)
            if position == self.position:
                return position
            within = self.position < position and self._ahead.has_queued(position)
            self._records.keep(lambda record: within and not lies_below(record, position))
            self._go_on_at(position)
            if not within:
                await self._restart(position)
            elif not self._records:
                self._numbers.forget()  # What is passed over now is not decoded far enough to be numbered.
            return position

    def _read_ahead(self, start: DLSN, creation: int = -1) -> LogReadAhead:
        return LogReadAhead(self._services, self.name, self._settings, start, creation, by_columns=True)

    async def _restart(self, position: DLSN) -> None:
        """Read from `position` on, as a new reader would."""
        before = self._ahead
        self._ahead = self._read_ahead(position, before.creation)
        self._final = None
        self._numbers.forget()
        self._idleness.arrived()
        # Last: a caller that cancels this may go on reading, from the new read-ahead.
        await before.close(ReadCancelledError("the reader went elsewhere", log=self.name))

    async def next_batch(self, max_bytes: int = BATCH_BYTES) -> pa.RecordBatch:
        """Return the next records as columns (`rows.ROW_SCHEMA`), of one segment, at least one; waits at the tail.

        Raises EndOfStreamError and the reader's other final errors.
        """
        async with self._own_turn():
            self._end_loan()
            while True:
                if not self._settings.expand_record_sets:
                    await self._wait_for_records(None)
                if self._records:
                    return self._leftover()
                fetched = await self._wait_for_entries(max_bytes)
                batch = self._decode_columns(fetched)
                if len(batch):
                    self._go_on_behind(batch)
                    return rows(self.name, batch)

    async def batches(self, max_bytes: int = BATCH_BYTES) -> AsyncIterator[pa.RecordBatch]:
        """Yield batches of `next_batch`, for ever or until the end of the stream. Raises the reader's other final
        errors."""
        while True:
            try:
                batch = await self.next_batch(max_bytes)
            except EndOfStreamError:
                return
            yield batch

    async def next_table(self, max_bytes: int = BATCH_BYTES) -> pa.Table:
        """Return the next rows by the log's schema: its columns, `_log` and `_error`; waits at the tail.

        The columns stay those of the version that is current at the first call. Raises NoSchemaError;
        SchemaChangedError where newer records are no rows of it (`position` is before them); in a strict log
        RecordMisfitError; and the reader's final errors.
        """
        async with self._own_turn():
            self._end_loan()
            await self._tables.begin()
            while True:
                while not self._records:  # What is decoded waits there: a read that is cancelled below loses nothing.
                    self._records.add_columns(self._decode_columns(await self._wait_for_entries(max_bytes)))
                await self._tables.renew()
                table, misfit = self._tables.rows(self._leftover())
                if misfit is not None:
                    self._lose(misfit)
                    self._go_on_at(DLSN.parse(str(misfit.dlsn)))
                if table.num_rows or misfit is None:
                    return table

    async def tables(self, max_bytes: int = BATCH_BYTES) -> AsyncGenerator[pa.Table, None]:
        """Yield tables of `next_table`, for ever or until the end of the stream."""
        with suppress(EndOfStreamError):
            while True:
                yield await self.next_table(max_bytes)

    def __aiter__(self) -> AsyncLogReader:
        return self

    async def __anext__(self) -> LogRecord:
        made = self._records.made
        if made and not self._turn.locked():
            record = self._delivered = made.popleft()
            return record
        try:
            return await self.read_next()
        except EndOfStreamError:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """End the read-ahead; reads that wait get ReadCancelledError. Idempotent."""
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        self._end_loan()
        self._records.clear()
        error = ReadCancelledError("the reader was closed", log=self.name, dlsn=self.position)
        self._final = error
        await self._ahead.close(error)

    async def __aenter__(self) -> AsyncLogReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ record by record

    def _own_turn(self) -> asyncio.Lock:
        """Return the turn to read, for a caller on this reader's loop."""
        self._check_loop()
        return self._turn

    def _end_loan(self) -> None:
        """Take back what another thread has not delivered; the position is behind what it has."""
        loan = self._loan
        if loan is not None:
            self._records.take_back(loan)
            self._delivered = loan.last or self._delivered
            self._loan = None

    def _go_on_at(self, position: DLSN) -> None:
        self._moved_to, self._delivered = position, None

    def _go_on_behind(self, batch: DecodedBatch) -> None:
        self._go_on_at(DLSN(batch.lssn, int(batch.entry_id[-1]), int(batch.slot_id[-1]) + 1))

    def _deliver(self) -> LogRecord:
        record = self._delivered = self._records.take()
        return record

    def _deliver_up_to(self, count: int) -> list[LogRecord]:
        self._has(count)
        records = self._records.take_up_to(max(count, 1))
        if records:
            self._delivered = records[-1]
        return records

    async def _wait_for_records(self, deadline: float | None) -> None:
        if self._has(1):
            return
        with self._measures.async_reader_delay.measured():
            while not self._has(1):
                if self._final is not None:
                    raise self._final_error(self._final)
                await self._activity(deadline)

    def _has(self, count: int) -> bool:
        """Decode what was fetched until `count` records are at hand; whether they are."""
        while len(self._records) < count and self._final is None:
            fetched = self._take()
            if fetched is None:
                return False
            self._decode_records(fetched)
        return len(self._records) >= count

    def _take(self) -> FetchedEntry | None:
        """Return the next entry that is not broken; None if none was fetched, or the reader has failed."""
        try:
            while (fetched := self._ahead.take()) is not None:
                self._idleness.arrived()
                if not fetched.broken:
                    return fetched
                self._numbers.pass_over(DLSN(fetched.segment.lssn, fetched.entry_id, 0))
        except DistributedLogError as error:
            self._final = error
        return None

    def _decode_records(self, first: FetchedEntry) -> None:
        """Decode an entry and those fetched behind it: by columns where that pays. Columns expand record sets."""
        if first.columns is not None:  # of a file, in which no record set is left
            entries, one_by_one = self._gather(first, RECORDS_BYTES), False
        elif self._settings.expand_record_sets:
            entries = self._gather(first, RECORDS_BYTES)
            size = sum(declared_bytes(one.payload, one.segment.enveloped) for one in entries)
            one_by_one = size < VECTOR_BYTES
        else:
            entries, one_by_one = [first], True
        if one_by_one:
            for fetched in entries:
                if self._final is None:
                    self._decode(fetched)
            return
        try:
            self._records.add_columns(self._decode_columns(entries))
        except DistributedLogError:
            check(self._final is not None, "an entry could not be decoded, and the reader did not fail")

    def _decode(self, fetched: FetchedEntry) -> None:
        segment = fetched.segment
        try:
            records = decode_entry(
                fetched.payload,
                lssn=segment.lssn,
                entry_id=fetched.entry_id,
                start_sequence_id=fetched.start_sequence_id,
                enveloped=segment.enveloped,
                expand_record_sets=self._settings.expand_record_sets,
            )
        except DistributedLogError as error:
            self._fail(error)
            return
        self._numbers.enter(segment.lssn)
        start = self._start
        may_be_below = DLSN(segment.lssn, fetched.entry_id, 0) < start
        for record in records:
            if record.is_control or (may_be_below and lies_below(record, start)):
                continue
            if record.is_end_of_stream:
                self._final = end_of_stream_error(self.name, record.dlsn)
                return
            # Before it is delivered: a reader that passes a gap would take the log for whole (I4).
            if self._numbers.missing_before(record.position) and self._settings.gap_detection:
                self._fail(self._gap_error(record.dlsn, record.position))
                return
            self._numbers.last = record.last_position
            self._records.add(record)

    @property
    def _start(self) -> DLSN:
        return max(self._ahead.first, self.position)

    def _gap_error(self, dlsn: DLSN, position: int) -> PositionGapError:
        self._measures.alerts.inc()
        return gap_error(self.name, dlsn, position, self._numbers.last)

    def _fail(self, error: DistributedLogError) -> None:
        if error.log is None:
            error.log = self.name
        self._final = error

    def _final_error(self, error: DistributedLogError) -> DistributedLogError:
        """Return the final error as a read raises it: with the position at which another reader goes on."""
        if isinstance(error, EndOfStreamError | ReadCancelledError) or error is self._explained:
            return error
        self._explained = error
        add_position(error, self.position)
        return error

    def _lose(self, error: DistributedLogError) -> None:
        """Fail at once, for a cause outside of the log: what was read ahead is not delivered any more."""
        if self._final is None or not isinstance(self._final, ReadCancelledError):
            self._end_loan()
            self._records.clear()
            self._final = error
            self._ahead.wake()

    async def _activity(self, deadline: float | None) -> None:
        """Wait for the read-ahead, until `deadline`; the reader fails where nothing happens for too long."""
        loop = asyncio.get_running_loop()
        limits = [moment for moment in (deadline, self._idleness.next_moment(self._settings)) if moment is not None]
        # Not `wait_for`: before Python 3.12 it may lose a cancellation, and the cancelled read would wait on.
        timer = loop.call_at(min(limits), self._ahead.wake) if limits else None
        try:
            await self._ahead.activity()
        finally:
            if timer is not None:
                timer.cancel()
        if self._final is None and self._ahead.peek() is None:
            self._check_idleness()

    def _check_idleness(self) -> None:
        self._final = self._idleness.check(self._settings, self.position)
        if self._final is not None:
            self._measures.async_reader_idle_reader_error.inc()

    # ------------------------------------------------------------------ by columns

    async def _wait_for_entries(self, max_bytes: int) -> list[FetchedEntry]:
        """Return at least one entry, and those of the same segment that were fetched already."""
        while True:
            if self._final is not None:
                raise self._final_error(self._final)
            fetched = self._take()
            if fetched is not None:
                break
            if self._final is None:
                with self._measures.async_reader_delay.measured():
                    await self._activity(None)
        return self._gather(fetched, max_bytes)

    def _gather(self, fetched: FetchedEntry, max_bytes: int) -> list[FetchedEntry]:
        """Return `fetched`, and the fetched entries of the same segment behind it, up to about `max_bytes`."""
        first, rest = fetched.split(max_bytes)
        if rest is not None:
            self._ahead.put_back([rest])
        entries, size = [first], first.size
        while size < max_bytes and first.columns is None:
            following = self._ahead.peek()
            if following is None or following.broken or not following.may_follow(first):
                break
            entries.append(following)
            size += following.size
            self._take()
        return entries

    def _decode_columns(self, fetched: list[FetchedEntry]) -> DecodedBatch:
        """Return the user records of `fetched` from the start on. Records before an error come first, the error next.
        Where they expand to more than EXPANDED_BYTES, the last entries are left for the next time."""
        segment, columns = fetched[0].segment, fetched[0].columns
        if columns is not None:
            return self._checked(columns.records)
        try:
            batch, taken = decode_up_to(
                [(f.entry_id, f.payload) for f in fetched],
                lssn=segment.lssn,
                start_sequence_id=fetched[0].start_sequence_id,
                enveloped=segment.enveloped,
                max_bytes=EXPANDED_BYTES,
            )
        except DistributedLogError as error:
            if len(fetched) == 1:
                self._fail(error)
                raise self._final_error(error) from None
            return self._decode_before_error(fetched)
        self._ahead.put_back(fetched[taken:])
        return self._checked(batch)

    def _checked(self, batch: DecodedBatch) -> DecodedBatch:
        """Return the records of a batch from the start on, up to the first gap; note its end of the stream."""
        self._numbers.enter(batch.lssn)
        if batch.end_of_stream is not None:
            self._final = end_of_stream_error(self.name, batch.end_of_stream)
        batch = batch.starting_at(self._start)  # Only the first entries can hold records below it.
        gap = self._numbers.first_gap(batch.position)
        if gap is not None and self._settings.gap_detection:
            # What stands before the gap is whole, and is delivered; the next read raises.
            if gap:
                self._numbers.last = int(batch.position[gap - 1])
            self._fail(self._gap_error(batch.dlsn(gap), int(batch.position[gap])))
            batch = batch.sliced(0, gap)
        if len(batch):
            self._numbers.last = int(batch.position[-1])
        return batch

    def _decode_before_error(self, fetched: list[FetchedEntry]) -> DecodedBatch:
        """Decode the entries before the first damaged one of several; that one, and what is behind it, comes next."""
        number, error = first_damaged(self.name, fetched)
        if not number:
            self._fail(error)
            raise self._final_error(error) from None
        self._ahead.put_back(fetched[number:])
        return self._decode_columns(fetched[:number])

    def _leftover(self) -> pa.RecordBatch:
        """Return records that were decoded and not yet delivered, as columns."""
        waiting = self._records.take_columns()
        if isinstance(waiting, DecodedBatch):
            self._go_on_behind(waiting)
            return rows(self.name, waiting)
        self._delivered = waiting[-1]
        return record_rows(self.name, waiting)
