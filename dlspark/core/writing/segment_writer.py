"""`SegmentWriter`: fills one segment's ledger: buffers records, sends entries, makes what is acknowledged visible.

It knows nothing of locks, metadata or other segments. It has three states: *open*; *failed*, from the first entry that
was not acknowledged (nothing is sent any more, everything buffered is cancelled); *closed*.

What a reader may see follows the ledger's last-add-confirmed, which an entry carries for those before it. So the last
acknowledged entry stays invisible until another one follows: a *control record*, alone in its entry, is written for
that by `commit`, by the periodic flush and by the immediate flush (`send_timing`). `publish_needed` says that one is
due: the last acknowledged user entry is above the last-add-confirmed that the newest sent entry carries.

Outcomes: the outcome of a record whose entry was sent and failed is unknown (TransmitError), because the next owner's
recovery may find it on a storage node. A record that was only buffered was definitely not written
(WriteCancelledError).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import MAX_EXPANDED_BYTES, Compression, EncodedEntry, EntryBuilder, reading_bytes
from dlspark.core.codec.records import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    HEADER_BYTES,
    MAX_LOGRECORDSET_SIZE,
    MAX_POSITION,
    MAX_TXID,
)
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.core.metrics.meter import EntryMeasures, Meter, Moments
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.acknowledgements import (
    Appended,
    Group,
    LateAcknowledgements,
    OutcomeCallback,
    RequestOutcome,
    RunEnded,
    SentBatch,
    SentEntry,
    Waiting,
    WrittenEntry,
    fail_records,
)
from dlspark.core.writing.record_runs import RecordRun
from dlspark.core.writing.send_timing import SendTimers
from dlspark.errors import TransmitError, WriteCancelledError, WriteError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import DistributedLogError, check
from storage_node.client.writer import LedgerWriter

_COMPRESSIONS = {"none": Compression.NONE, "lz4": Compression.LZ4}


def _brief(error: BaseException | None) -> str:
    return error.message if isinstance(error, DistributedLogError) else repr(error)


class AppendRequest(NamedTuple):
    """Records that lie in one entry or nowhere; `control` says whose they are, None for nobody's."""

    run: RecordRun
    control: bytes | None

    @property
    def bytes(self) -> int:
        """Bytes that it takes of an entry."""
        return self.run.size + (HEADER_BYTES + len(self.control) if self.control is not None else 0)


class SegmentWriter:
    """Writes the records of one in-progress segment. All calls come from one event loop."""

    def __init__(
        self,
        ledger: LedgerWriter,
        answers: LateAcknowledgements,
        metadata: SegmentMetadata,
        settings: Settings,
        on_failure: Callable[[BaseException], None],
        on_acknowledged: Callable[[int], None],
        meter: Meter | None = None,
        log: str = "",
    ) -> None:
        """Have `on_failure` called with the first failure, `on_acknowledged` with the highest transaction id that is
        acknowledged.

        `meter` counts what becomes of entries, as those of `log`.
        """
        self.metadata = metadata
        self.ledger = ledger
        self._answers = answers
        self.error: BaseException | None = None
        self.position = 0
        """Number of user records written, sent or not."""
        self.last_txid = metadata.first_txid
        self.last_entry = -1
        self.last_slot = -1
        self._last_written: tuple[int, int] | None = None
        """Entry and slot of the last user record, sent or not."""
        self.unacknowledged = 0
        """User records buffered or sent, not yet acknowledged."""
        self._settings = settings
        self._on_failure = on_failure
        self._on_acknowledged = on_acknowledged
        self._loop = asyncio.get_running_loop()
        self._compression = _COMPRESSIONS[settings.compression]
        self._builder = EntryBuilder(self._compression, enveloped=metadata.enveloped)
        self._futures: list[Waiting] = []
        self._groups: list[Group] = []
        """The records that `_futures` are for, where records are answered in groups; an entry holds groups or single
        records."""
        self.snapshot_entry = -1
        """The last entry of the newest snapshot of the log's producers in this segment."""
        self._first_snapshot: int | None = None
        """The last entry of the first one."""
        self._snapshot_end = self._snapshot_bytes = 0
        """Up to which byte of the ledger that snapshot is, and how many bytes it takes."""
        self._buffered_user_data = False
        self._buffered_at = self._accepted_at = 0.0
        self.waiting_since: float | None = None
        """Since when the records that come now have waited for this segment, None for not at all."""
        self._outstanding_bytes = 0
        self.highest_txid = -1
        """Highest transaction id of the records written, sent or not; -1 for none."""
        self._expanded_bytes = 0
        """Bytes to which the record sets in the buffer expand."""
        self._carried = -1
        """Last-add-confirmed that the newest sent entry carries to readers."""
        self._in_flight = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.last_sent = self._loop.time()
        """When an entry was sent last, by the event loop's clock."""
        self._closed = False
        self._ledger_closed = False
        self._measures = EntryMeasures(meter or Meter(), log, metadata.lssn, metadata.ledger_id)
        counts = self._measures.counts
        self._forget_gauges = (
            counts.seg_writer_pending.follow(self, lambda segment: segment.unacknowledged),
            counts.transmit_outstanding_requests.follow(self, lambda segment: segment._in_flight),
        )
        self._pace = SendTimers(self, settings, counts)

    def use_settings(self, settings: Settings) -> None:
        """Use `settings` from the next record or timer on."""
        self._settings = settings
        self._pace.use_settings(settings)

    def moved_to(self, metadata: SegmentMetadata) -> None:
        """Use another segment and ledger in place of these, of which nothing was acknowledged yet."""
        # Acknowledged entries would lie in the old ledger, which is deleted (I1).
        check(self.last_entry < 0, "a segment was replaced that holds entries", ledger_id=metadata.ledger_id)
        self.metadata = metadata
        self._answers.ledger_id = metadata.ledger_id
        self._measures.moved_to(metadata.lssn, metadata.ledger_id)

    @property
    def _threshold(self) -> int:
        """Buffered bytes above which an entry is sent."""
        return min(self._settings.output_buffer_bytes, MAX_LOGRECORDSET_SIZE)

    # ------------------------------------------------------------------ writing

    def write(self, txid: int, payload: bytes, future: asyncio.Future[DLSN], *, may_transmit: bool = True) -> None:
        """Append one user record; `future` gets its DLSN. The caller has checked id, size and room for a position."""
        self._write(txid, payload, 0, [future], may_transmit)

    def write_set(self, txid: int, payload: bytes, futures: Sequence[Waiting]) -> None:
        """Append a record set of `len(futures)` payloads; each future gets the DLSN of its own member."""
        expanded = reading_bytes(payload)
        if self._expanded_bytes + expanded > MAX_EXPANDED_BYTES:
            self._transmit()  # Readers bound what the sets of one entry expand to.
        self._write(txid, payload, FLAG_RECORD_SET, futures, True, expanded)

    def _write(
        self,
        txid: int,
        payload: bytes,
        flags: int,
        futures: Sequence[Waiting],
        may_transmit: bool,
        expanded: int = 0,
    ) -> None:
        if not self._append(txid, payload, self.position + 1, flags, futures):
            return
        self._note_written()
        self.position += len(futures)
        self.last_txid = txid
        self.highest_txid = max(self.highest_txid, txid)
        self.unacknowledged += len(futures)
        self._expanded_bytes += expanded
        self._outstanding_bytes += HEADER_BYTES + len(payload)
        if may_transmit:
            self.send_due()

    def write_batch(
        self, txids: npt.NDArray[np.int64], payloads: pa.Array, future: asyncio.Future[tuple[WrittenEntry, ...]]
    ) -> None:
        """Append user records as entries of their own, sent at once; `future` gets the entries once all are stored."""
        if self._refuse([future]):
            return
        check(self.position + len(txids) <= MAX_POSITION, "a batch would pass the last position of its segment")
        # What is buffered goes first: entries are in the order of the writes (I4).
        self._transmit()
        self._begin_entry()
        batch = SentBatch(future)
        for encoded in encode_entries(
            txids,
            payloads,
            first_position=self.position + 1,
            compression=self._compression,
            enveloped=self.metadata.enveloped,
        ):
            self.position += encoded.record_count
            self.last_txid = encoded.last_txid
            self.highest_txid = max(self.highest_txid, encoded.first_txid, encoded.last_txid)
            self.unacknowledged += encoded.record_count
            batch.waiting += 1
            self._send(encoded, [], batch, has_user_data=True)
            if self.error is not None:
                return
            self._last_written = (self.ledger.last_add_pushed, encoded.record_count - 1)
        if not batch.waiting:
            future.set_result(())

    def _note_written(self) -> None:
        """Note that the last record in the buffer is a user record."""
        self._last_written = (self.ledger.last_add_pushed + 1, self._builder.count - 1)

    @property
    def last_dlsn(self) -> DLSN | None:
        """Where the last user record is, or will be with the entry that is being filled; None where there is none."""
        return DLSN(self.metadata.lssn, *self._last_written) if self._last_written is not None else None

    def dlsn_of(self, request: AppendRequest) -> DLSN:
        """Send what must go before `request`, and say where its first record will be: in the next entry."""
        if not self._builder.has_room(request.bytes - HEADER_BYTES) or (self._futures and not self._groups):
            self._transmit()
        slot = self._builder.count + (request.control is not None)
        return DLSN(self.metadata.lssn, self.ledger.last_add_pushed + 1, slot)

    def write_run(self, run: RecordRun, ended: RunEnded, *, bulk: bool) -> None:
        """Append user records; `ended` is called for those of each entry. Of a `bulk` as many go into an entry as fit,
        else as many as are enough for one. The caller has checked that there is room for their positions."""
        first = 0
        while first < len(run):
            if self._futures and not self._groups:
                self._transmit()
            count = run.fitting(first, self._builder.room)
            if not count:
                self._transmit()
                continue
            if not bulk:
                count = min(count, run.fitting(first, self._threshold - self._outstanding_bytes) + 1)
            outcome = OutcomeCallback(partial(ended, first, count))
            if not self._refuse([outcome]):
                self._buffer(run.part(first, count), outcome)
            first += count
            if not bulk or first == len(run):
                self.send_due()

    def write_request(self, request: AppendRequest, outcome: RequestOutcome) -> bool:
        """Append a request's records, all in one entry, behind the control record that says whose they are. The caller
        has asked `dlsn_of` just before. False where this segment takes no more, and `outcome` has failed."""
        if self._refuse([outcome]):
            return False
        if request.control is not None:
            self._begin_entry()
            self._builder.add(self.last_txid, request.control, self.position, FLAG_CONTROL)
            self._outstanding_bytes += request.bytes - request.run.size
        self._buffer(request.run, outcome)
        self.send_due()
        return True

    def _buffer(self, run: RecordRun, outcome: Waiting) -> None:
        """Put records that fit into the buffer, to be answered together."""
        self._begin_entry()
        self._futures.append(outcome)
        self._groups.append(Group(self._builder.count, len(run)))
        if not len(run):
            return
        self._builder.add_run(run.txids, run.payloads, self.position + 1)
        self._note_written()
        self.position += len(run)
        self.last_txid = run.txids[-1]
        self.highest_txid = max(self.highest_txid, *run.txids)
        self._buffered_user_data = True
        self.unacknowledged += len(run)
        self._outstanding_bytes += run.size

    def write_snapshot(self, parts: Sequence[bytes]) -> None:
        """Send what is known of the log's producers: control records, each in an entry of its own."""
        for part in parts:
            self.write_control(part)
        self.snapshot_entry = self.ledger.last_add_pushed
        self._snapshot_end, self._snapshot_bytes = self.ledger.length, sum(map(len, parts))
        if self._first_snapshot is None:
            self._first_snapshot = self.snapshot_entry

    @property
    def has_snapshot(self) -> bool:
        """True if a whole snapshot of the log's producers is stored in this segment."""
        return self._first_snapshot is not None and self._first_snapshot <= self.ledger.last_add_confirmed

    @property
    def since_snapshot(self) -> int:
        """Entries since the newest snapshot in this segment, what is buffered as one."""
        return self.ledger.last_add_pushed - self.snapshot_entry + bool(self._builder.count)

    def snapshot_is_due(self) -> bool:
        """Return whether to write another one: a successor reads what has come since, so that has bounds in entries and
        in bytes. A large snapshot is stored less often, or it would be the most of what is written."""
        settings = self._settings
        enough = max(settings.producer_snapshot_bytes, 2 * self._snapshot_bytes)
        return (
            self.since_snapshot >= settings.producer_snapshot_entries
            or self.ledger.length - self._snapshot_end + self._builder.size >= enough
        )

    def write_end_of_stream(self, future: asyncio.Future[DLSN]) -> None:
        """Append the record after which nothing may follow, and send it. It has no position of its own."""
        if not self._append(MAX_TXID, END_OF_STREAM_PAYLOAD, self.position, FLAG_END_OF_STREAM, [future]):
            return
        self.last_txid = self.highest_txid = MAX_TXID
        self._transmit()

    def write_control(self, payload: bytes = CONTROL_PAYLOAD, future: asyncio.Future[Appended] | None = None) -> None:
        """Send what is buffered, then a control record in an entry of its own; `future` ends when that is stored."""
        # A control record is alone in its entry: docs/reference/records.md#filling-entries.
        self._transmit()
        if self._refuse([future] if future is not None else []) or self.error is not None:
            return
        self._begin_entry()
        self._builder.add(self.last_txid, payload, self.position, FLAG_CONTROL)
        futures, groups = ([future], [Group(0, 0)]) if future is not None else ([], [])
        self._send(self._builder.finish(), list(futures), None, has_user_data=False, groups=groups)

    def _append(self, txid: int, payload: bytes, position: int, flags: int, futures: Sequence[Waiting]) -> bool:
        """Buffer one record; False where this segment takes no more, and `futures` have failed."""
        if not self._builder.has_room(len(payload)) or self._groups:
            self._transmit()
        if self._refuse(futures):  # also where the ledger has just refused what was buffered
            return False
        self._begin_entry()
        slot = self._builder.add(txid, payload, position, flags)
        check(slot == len(self._futures), "a record's slot is not its place in the buffer")
        self._futures += futures
        self._buffered_user_data = True
        return True

    def _begin_entry(self) -> None:
        """Remember when an entry's first record came; nothing where the buffer has one."""
        if self._builder.count:
            return
        self._buffered_at = self._loop.time()
        self._accepted_at = self._buffered_at if self.waiting_since is None else self.waiting_since

    def _refuse(self, futures: Sequence[Waiting]) -> bool:
        """Fail `futures` where this segment takes no more records."""
        if self.error is None and not self._closed:
            return False
        for future in futures:
            if not future.done():
                future.set_exception(self._write_error("The segment failed earlier; the record was not sent"))
        return True

    # ------------------------------------------------------------------ sending

    def send(self) -> None:
        """Send what is buffered, without waiting. A refusal is the error of the records' futures."""
        self._transmit()

    def send_due(self) -> None:
        """Send what is buffered where that is enough for an entry."""
        if self._outstanding_bytes > self._threshold:
            self._pace.send_soon()

    async def flush(self) -> None:
        """Send what is buffered and wait until every entry is acknowledged. Raises TransmitError."""
        self._transmit()
        await self._settled()

    async def commit(self) -> None:
        """Flush, and make everything acknowledged visible to readers."""
        await self.flush()
        if self.publish_needed:
            self.write_control()
            await self._settled()

    async def _settled(self) -> None:
        """Wait until everything sent up to now is answered."""
        if self._in_flight and self.error is None:
            waiter = self._loop.create_future()
            self._waiters.append((self.ledger.last_add_pushed, waiter))
            await waiter
        if self.error is not None:
            raise self._transmit_error("Entries were not acknowledged") from self.error

    @property
    def has_buffered(self) -> bool:
        """True if records wait to be sent."""
        return self._builder.count > 0

    @property
    def publish_needed(self) -> bool:
        """True if readers cannot see the last acknowledged user entry yet, and another entry may follow it."""
        return self.last_entry > self._carried and self.error is None and not self._closed

    def _wake(self, entry_id: int | None) -> None:
        """End the waits for entries up to `entry_id` (None: all waits)."""
        while self._waiters and (entry_id is None or self._waiters[0][0] <= entry_id):
            _, waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)

    def _transmit(self) -> None:
        self._pace.sending()
        if self.error is not None or not self._builder.count:
            self._measures.counts.data_miss.inc()
            return
        futures, self._futures = self._futures, []
        groups, self._groups = self._groups, []
        has_user_data, self._buffered_user_data = self._buffered_user_data, False
        self._outstanding_bytes = self._expanded_bytes = 0
        self._send(self._builder.finish(), futures, None, has_user_data=has_user_data, groups=groups)

    def _send(
        self,
        encoded: EncodedEntry,
        futures: list[Waiting],
        batch: SentBatch | None,
        *,
        has_user_data: bool,
        groups: list[Group] | None = None,
    ) -> None:
        self.last_sent = self._loop.time()
        # Before `add`: a pause of the process during it must not make the answer look younger than it is (I5).
        carried = self.ledger.last_add_confirmed
        sent_at = self._answers.moment()
        try:
            added = self.ledger.add(*encoded.buffers)
        except Exception as error:
            # Refused before anything was sent: these records were definitely not written. Fail the segment first, for
            # the error of the records names its cause.
            self._fail(error)
            if batch is not None and batch.is_sent_in_part:
                doubt = self._transmit_error("An entry of the batch was refused, and others of it had been sent")
                fail_records(futures, batch, doubt)
            else:
                fail_records(futures, batch, self._write_error("The entry was refused; the record was not sent"))
            return
        sent = SentEntry(
            self.ledger.last_add_pushed,
            encoded,
            futures,
            groups or [],
            batch,
            has_user_data,
            self.highest_txid,
            Moments(self._accepted_at, self._buffered_at, self.last_sent),
        )
        if self._measures.wanted:
            self._measures.sent(encoded.size, has_user_data=has_user_data)
        self._carried = carried
        self._in_flight += 1
        self._answers.watch(added, sent_at, lambda done: self._answered(sent, done))

    def _answered(self, sent: SentEntry, added: asyncio.Future[int]) -> None:
        self._in_flight -= 1
        answered_at = self._loop.time()
        cause = WriteError("the ledger was given up") if added.cancelled() else added.exception()
        self._measures.answered(
            sent.entry_id, sent.records, sent.moments, answered_at, cause, self._settings.data_latency_warn_ms
        )
        if cause is None:
            self._acknowledged(sent)
        else:
            self._fail(cause)
            error = self._transmit_error("The entry was sent, but not acknowledged", sent.entry_id)
            fail_records(sent.futures, sent.batch, error)
        self._measures.settled(self._loop.time() - answered_at, cause)

    def _acknowledged(self, sent: SentEntry) -> None:
        if sent.has_user_data:
            # Entries are acknowledged in order (I4), so this only moves forward.
            self.last_entry, self.last_slot = sent.entry_id, sent.encoded.record_count - 1
            self.unacknowledged -= sent.encoded.user_count
            self._on_acknowledged(sent.highest_txid)
        # Behind that: a caller that hears of it may write again at once.
        sent.acknowledged(self.metadata.lssn)
        sent.batch_acknowledged(self.metadata.lssn)
        self._wake(sent.entry_id)
        # While others are under way, the last of their answers decides whether one more entry has to follow.
        if not self._in_flight:
            self._pace.acknowledged()

    def _end_gauges(self) -> None:
        """Take this segment's part out of the gauges: nothing is under way any more."""
        for forget in self._forget_gauges:
            forget()

    # ------------------------------------------------------------------ ending

    async def finish(self) -> None:
        """Send what is buffered, wait for it, and take no more.

        Raises TransmitError where entries were not acknowledged; the segment stays in progress then, and the next
        owner's recovery decides.
        """
        self._pace.stop()
        await self.commit()
        self._closed = True  # Only now: a closed segment does not publish, and `commit` may have to.

    async def close_ledger(self) -> None:
        """Close the ledger of a finished segment: its end is then fixed for ever (I2).

        Raises the ledger's error; where the metadata store could not be reached, it may be called again.
        """
        await self.ledger.close()
        self._ledger_closed = True
        self._end_gauges()

    def cancel(self, cause: BaseException) -> None:
        """Drop what is buffered and take no more: the segment is given up."""
        self._fail(cause)

    async def abandon(self) -> None:
        """Let go of the ledger as it is; entries under way end as unknown, recovery closes the ledger. Idempotent."""
        self._pace.stop()
        if not self._ledger_closed:
            self._closed = self._ledger_closed = True
            # First the answers that are held back: they end as unknown, and are not believed any more (I5).
            await self._answers.close()
            await self.ledger.abandon()
            self._end_gauges()

    def _fail(self, cause: BaseException) -> None:
        """End the segment with its first failure; everything buffered behind it is cancelled."""
        if self.error is not None:
            return
        self.error = cause
        self._pace.stop()
        futures, self._futures, self._groups = self._futures, [], []
        if self._builder.count:
            self._builder.finish()
        error = WriteCancelledError(
            f"The record was not sent, because an earlier one failed: {_brief(cause)}",
            advice="Open the writer again, and write again from the first record that was not acknowledged",
        )
        error.__cause__ = cause
        fail_records(futures, None, error)
        self._wake(None)
        self._on_failure(cause)

    def _transmit_error(self, what: str, entry_id: int | None = None) -> TransmitError:
        error = TransmitError(
            f"{what}: {_brief(self.error)}; whether the log keeps it is decided when it is opened for writing again",
            advice="Open the writer again and read the log's end before writing these records again",
            ledger_id=self.ledger.ledger_id,
            entry_id=entry_id,
        )
        error.__cause__ = self.error
        return error

    def _write_error(self, what: str) -> WriteError:
        error = WriteError(
            f"{what}: {_brief(self.error)}" if self.error is not None else what,
            advice="Open the writer again, and write again from the first record that was not acknowledged",
            ledger_id=self.ledger.ledger_id,
        )
        error.__cause__ = self.error
        return error
