"""`AsyncLogWriter`: the one writer of a log: ownership, segments one after the other, records into the current one.

Opening takes the log's lock, then reads the versions that every later transaction is conditional on, then recovers
what a dead owner left in progress. The first write starts a segment. While a segment is being started or rolled
(a *transition*), records queue: see `issuing`. The writer ends by `close` (the segment completed) or `abort` (the
segment left for the next owner).

Each way of giving records to it makes a write with futures of its own, which is issued, queued or refused: none of them
raises.

Fault model: storage nodes, metadata store and this process may fail at any await. Safety never rests on the lock: a
deposed writer is stopped by fencing (its adds fail, I5) and by versions (its transactions fail); the lock only keeps
owners from deposing each other all the time.

Each future ends in one of three ways: a DLSN (stored by an ack quorum), a NotAppliedError or CallerError (not written),
an OutcomeUnknownError (the next owner's recovery decides).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import FencingToken, ProducerRequest, ProducerState
from dlspark.core.lifecycle.deletion import Retention
from dlspark.core.lifecycle.owned_segments import OwnedSegments
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.typed.table_writes import TableWrites
from dlspark.core.write_lock import WriteLock, release, take_lock
from dlspark.core.writing.acknowledgements import Appended, RunEnded, Waiting, WrittenEntry
from dlspark.core.writing.conditional_appends import AppendWrite, Condition
from dlspark.core.writing.issuing import WriteIssuer
from dlspark.core.writing.record_runs import Columns
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.core.writing.write_kinds import (
    UNNUMBERED,
    BatchWrite,
    CheckedSet,
    EncodedSetWrite,
    EndOfStreamWrite,
    HeartbeatWrite,
    QueuedWrite,
    RecordSetWrite,
    RecordWrite,
    not_tried_error,
)
from dlspark.errors import AlreadyClosedError
from metadata.distributedlog.permissions import Action
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.opened_here import OnOneLoop

_log = logging.getLogger(__name__)


class AsyncLogWriter(OnOneLoop):
    """Appends records to one log, as its only writer.

    `AsyncLog.open_writer` returns it. `write` takes a record, `write_bulk` several, `write_record_set` payloads that
    are stored together, `write_batch` columns, `append` requests that may come again or hang on a condition. None of
    these raises: each returns futures, which get positions or errors. `write_table` takes rows of the log's schema.
    `flush` waits for all, `commit` shows readers the last ones. As an asynchronous context manager it completes its
    segment, or leaves it for the next owner after an exception. All calls come from one event loop.
    """

    def __init__(
        self, services: Services, name: str, settings: Settings, lock: WriteLock, transitions: SegmentTransitions
    ) -> None:
        """Use `open` instead, which makes a writer ready for records."""
        self.name = name
        self._services = services
        self._settings = settings
        self._lock = lock
        self.owned = OwnedSegments(services, name, lock)
        """The log's segments, as long as this writer has the lock."""
        self._issuer = WriteIssuer(
            services,
            name,
            settings,
            lock,
            transitions,
            on_segment=lambda: self._retention.begin(),
            on_failed=self._failed,
        )
        self._sequence = self._issuer.sequence
        self._retention = Retention(
            self.owned,
            lambda: transitions.segments,
            lambda: self._settings,
            services.clock,
            self._issuer.only_snapshot,
        )
        self._tables = TableWrites(services, name)
        self._loop = asyncio.get_running_loop()
        self._shutdown: asyncio.Task[None] | None = None
        self.on_failed: Callable[[BaseException], None] | None = None
        """Called once with the reason when the writer fails, also while nothing is written: it takes nothing more."""
        self._measures = services.meter.of(name)
        self._measured = services.meter.wanted
        self._forget_gauge = self._measures.stream_write_limiter_permits.follow(
            self, lambda writer: writer.unacknowledged
        )

    @classmethod
    async def open(
        cls,
        services: Services,
        name: str,
        settings: Settings,
        client_id: str | None = None,
        *,
        producers: bool = False,
        gaps_allowed: bool = False,
    ) -> AsyncLogWriter:
        """Become the log's owner and recover what the last owner left in progress; with `producers`, learn what the log
        says of its producers.

        Raises OwnershipAcquireFailedError naming the owner, LogNotFoundError, and what recovery raises; the lock is
        not held then.
        """
        lock = await take_lock(services, name, settings, client_id)
        try:
            # Versions are read only now that the lock is held: the last owner's transactions may still move those that
            # were read earlier, and ours would then be refused (I7).
            transitions = SegmentTransitions(services, name, settings, lock=lock, producers=producers)
            writer = cls(services, name, settings, lock, transitions)
            try:
                await writer._issuer.take_over(producers=producers, gaps_allowed=gaps_allowed)
            except BaseException:
                await writer._issuer.ownership.close()
                await writer._sequence.close()
                raise
            return writer
        except BaseException:
            await release(lock)
            raise

    def use_settings(self, settings: Settings) -> None:
        """Go on with the log's changed settings."""
        self._settings = settings
        self._issuer.use_settings(settings)

    # ------------------------------------------------------------------ for users: records

    def write(self, txid: int, payload: bytes | bytearray | memoryview) -> asyncio.Future[DLSN]:
        """Append one record; the future gets its DLSN once an ack quorum has it on disk.

        A record is sent when the buffer fills (`writerOutputBufferSize`), by the periodic flush, or by `flush`.
        Never raises: a refusal is the future's error. Await `wait_for_room` between writes to bound memory.

        With `isDurableWriteEnabled` off the future has DLSN.INVALID as soon as the record is taken. Where the record is
        then not stored, the next call that writes, flushes or closes raises that.
        """
        future: asyncio.Future[DLSN] = self._loop.create_future()
        self._accept(RecordWrite(txid, payload, future))
        return self._promised([future])[0]

    def write_bulk(self, records: Iterable[tuple[int, bytes]]) -> list[asyncio.Future[DLSN]]:
        """Append records of (transaction id, payload), together where they fit.

        If one is refused, those after it are cancelled with WriteCancelledError without being tried.
        """
        writes = [
            RecordWrite(txid, payload, self._loop.create_future(), may_transmit=False) for txid, payload in records
        ]
        self._accept_each(writes, cancel_behind=True)
        futures = [write.future for write in writes]
        if futures:
            self._measure_bulk(futures[-1])
        return self._promised(futures)

    def write_record_set(
        self, txid: int, payloads: Sequence[bytes | bytearray | memoryview], compression: str = "none"
    ) -> list[asyncio.Future[DLSN]]:
        """Append payloads as one record set: one transaction id, one record in the entry, all stored or none.

        Each payload gets a future, and a DLSN, of its own; readers see records like any others. `compression` is that
        of the set: "none" or "lz4". Refused, by RecordTooLongError, are a payload above 1,040,384 bytes and a finished
        set above 1,040,364. Never raises.
        """
        futures: list[asyncio.Future[DLSN]] = [self._loop.create_future() for _ in payloads]
        if futures:
            self._accept(RecordSetWrite(txid, payloads, futures, compression))
            self._measure_bulk(futures[-1])
        return self._promised(futures)

    def write_encoded_set(
        self, txid: int | None, encoded: bytes | bytearray | memoryview | CheckedSet
    ) -> asyncio.Future[DLSN]:
        """Append a record set that was encoded elsewhere; the future gets the DLSN of its first payload.

        `txid`: None for the time at which it gets its place, or the log's highest id where that is above it.

        It is opened before, to see that readers can: InvalidRecordError where they could not. That takes 0.1 s for one
        that expands to 64 MiB; a CheckedSet was opened elsewhere. Never raises.
        """
        try:
            checked = encoded if isinstance(encoded, CheckedSet) else CheckedSet.check(encoded)
        except CallerError as error:
            refused: asyncio.Future[DLSN] = self._loop.create_future()
            refused.set_exception(error)
            return refused
        first: asyncio.Future[DLSN] = self._loop.create_future()
        self._accept(EncodedSetWrite(txid if txid is not None else UNNUMBERED, checked, first))
        return self._promised([first])[0]

    def write_batch(self, txids: npt.NDArray[np.int64], payloads: pa.Array) -> asyncio.Future[tuple[WrittenEntry, ...]]:
        """Append records by columns, encoded at once into entries of their own and sent.

        The future gets the entries once all of them are stored, or one for all with DLSN.INVALID at once where
        `isDurableWriteEnabled` is off. All records go into one segment. Never raises.
        """
        future: asyncio.Future[tuple[WrittenEntry, ...]] = self._loop.create_future()
        if not (len(txids) or len(payloads)):
            future.set_result(())
            return future
        batch = BatchWrite(txids, payloads, future)
        self._measure_bulk(future)
        if not self._accept(batch) or self._settings.durable_writes:
            return future
        at_once = WrittenEntry(DLSN.INVALID, batch.records, batch.first_txid, batch.last_txid)
        return self._issuer.unawaited.instead_of(future, (at_once,))

    async def write_table(
        self, table: pa.Table | pa.RecordBatch, txids: Sequence[int] | npt.NDArray[np.int64] | None = None
    ) -> tuple[WrittenEntry, ...]:
        """Append the rows of a table as the log's schema says, and return the entries once all are stored.

        Transaction ids are the times of the schema's column, or of now, raised to the highest so far; or `txids`, one a
        row, as they are. Raises RowRefusedError, NoSchemaError: nothing was written; and the errors of `write_batch`.
        """
        async with self._tables.turn:
            await self.wait_for_room()
            made = await self._tables.encode(table, txids)
            written = self.write_batch(made.txids(self.last_txid), made.payloads)
        return await written

    def append(
        self,
        records: Sequence[tuple[int, bytes]],
        *,
        producer: str | None = None,
        epoch: int = 0,
        sequence: int = 0,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> asyncio.Future[Appended]:
        """Append records of (transaction id, payload) as one request: all of them in one entry, or none.

        Args:
            producer: the name of the producer that writes; a request that comes again, after a lost answer or from
                another process, is written once, and answered with its first position. Epochs: `begin_epoch`.
            sequence: the request's number, from 0 in each epoch.
            expected_position: the sequence id that comes next, or the DLSN behind which no record may be.
            fencing_token: the token that `set_fencing_token` was called with last, in any process.

        The future gets an `Appended`. Its errors besides those of `write`: ProducerFencedError, SequenceGapError,
        SequencePassedError, ProducerForgottenError, TooManyProducersError, ConditionError, and RecordTooLongError for
        more than an entry holds. Never raises. The writer must have been opened with `producers=True`.
        """
        request = ProducerRequest(producer, epoch, sequence, len(records)) if producer is not None else None
        asked = expected_position is not None or fencing_token is not None
        condition = Condition(expected_position, fencing_token) if asked else None
        columns = [txid for txid, _ in records], [payload for _, payload in records]
        return self._append_soon(columns, request, condition)

    async def begin_epoch(self, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, and return it: requests of older ones are refused from now on, whoever owns
        the log. Its requests are numbered from 0, unless `epoch` names one that has begun before.

        Without `epoch` it is one that no other call has begun. Raises ProducerFencedError where `epoch` has ended.
        """
        while True:
            wanted, begun = self._append_epoch(producer, epoch)
            await self._at_once(begun)
            if epoch is not None or not begun.result().repeated:
                return wanted
            # Another call has begun it at the same time: two processes with one epoch would take each other's requests
            # for repetitions (I19).

    def producer_state(self, producer: str) -> ProducerState | None:
        """Return what is known of a producer, what is under way as well; None where it has not written, or was
        forgotten: in an epoch up to `forgotten_epoch`.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._issuer.request_log().producers.state(producer)

    @property
    def forgotten_epoch(self) -> int:
        """The highest epoch in which a producer may have written that is not known any more; -1 where none has.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._issuer.request_log().producers.forgotten

    async def set_fencing_token(self, token: bytes, expected: bytes | None = None) -> None:
        """Have every append that names another fencing token refused from now on; empty bytes: none.

        `expected` is the one that the log must have now. Raises ConditionError with the one that it has.
        """
        await self._at_once(self._append_token(token, expected))

    def heartbeat(self) -> asyncio.Future[Appended]:
        """Write the control record `heartbeat`, by which readers see that the log has an owner; sent at once.

        The future ends when it is stored. Never raises.
        """
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._accept(HeartbeatWrite(future))
        return future

    # ------------------------------------------------------------------ for users: all that was written

    async def wait_for_room(self) -> None:
        """Return when more may be written without piling up: back-pressure from storage nodes and transitions."""
        self._check_loop()
        await self._issuer.wait_for_room()

    async def send(self) -> None:
        """Send everything accepted without waiting for acknowledgement, only for a segment being started."""
        self._check_loop()
        await self._issuer.send()

    def push(self) -> None:
        """Send everything accepted, and wait for nothing: what waits for a segment is sent once that has started."""
        self._check_loop()
        self._issuer.push()

    async def flush(self) -> int:
        """Send everything accepted and wait until it is acknowledged.

        Returns the highest id acknowledged, -1 for none, MAX_TXID in a sealed log. Raises the error of failed records.
        """
        return await self._when_settled(lambda segment: segment.flush())

    async def commit(self) -> int:
        """Flush, and make every acknowledged record visible to readers."""
        return await self._when_settled(lambda segment: segment.commit())

    async def mark_end_of_stream(self) -> DLSN:
        """Seal the log: nothing can ever follow. Completes the segment; the writer can then only be closed.

        Raises EndOfStreamError if it is sealed already. After an OutcomeUnknownError, open the writer again: its
        recovery decides, and `AsyncLog.is_sealed` then says which.
        """
        with self._measures.log_writer_mark_end_of_stream.measured():
            return await self._mark_end_of_stream()

    async def _mark_end_of_stream(self) -> DLSN:
        self._check_loop()
        future: asyncio.Future[DLSN] = self._loop.create_future()
        if not self._accept(EndOfStreamWrite(future)):
            return await future
        self._issuer.sealed = True  # Before the outcome is known: a record behind it could never be read.
        try:
            await self.flush()
        except BaseException:
            if future.done() and not future.cancelled():
                future.exception()  # Seen: flush has raised the same failure.
            if not self._sequence.usable:
                # Recovery says whether it is: before it nothing is written behind this record.
                self._issuer.sealed = False
            raise
        dlsn = await future
        await self._issuer.run_transition(self._sequence.complete_current)
        return dlsn

    async def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False) -> DLSN:
        """Hide every record below `dlsn`; see `AsyncLog.truncate`."""
        self._check_loop()
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed; nothing was truncated", log=self.name)
        await self._services.permit(self.name, Action.TRUNCATE)
        return await self.owned.truncate(dlsn, respect_subscribers=respect_subscribers)

    async def close(self) -> None:
        """Flush, complete the segment, release the lock. Raises the writer's failure after the lock is released."""
        await self._shut_down(self._close)

    async def abort(self) -> None:
        """Drop what is buffered and release the lock; the segment stays in progress for the next owner to recover."""
        await self._shut_down(self._issuer.abort)

    async def __aenter__(self) -> AsyncLogWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    @property
    def closed(self) -> bool:
        """True if `close` or `abort` was called and has ended."""
        return self._shutdown is not None and self._shutdown.done()

    @property
    def last_txid(self) -> int:
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        return self._issuer.last_txid

    @property
    def unacknowledged(self) -> int:
        """Records accepted and not yet acknowledged; those of a failed segment never will be, and do not count."""
        return self._issuer.unacknowledged

    @property
    def over_limit(self) -> int:
        """Records over an outstanding-write limit: refused, or only counted in dark mode."""
        return self._issuer.limits.over_limit

    @property
    def segment(self) -> int | None:
        """Sequence number of the segment being written, None between segments."""
        segment = self._sequence.current
        return segment.metadata.lssn if segment is not None else None

    async def _when_settled(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> int:
        """Run `action` on the segment that has everything accepted up to now."""
        self._check_loop()
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed", log=self.name)
        await self._issuer.settle(action)
        return self._issuer.acknowledged_txid

    # ------------------------------------------------------------------ accepting

    def _accept(self, operation: QueuedWrite) -> bool:
        """Have `operation` issued or queued, or fail it; False if it was refused."""
        try:
            self._check_loop()
            if self._shutdown is not None:
                raise AlreadyClosedError("the writer is closed; the record was not written", log=self.name)
            self._issuer.check(operation)
        except DistributedLogError as error:
            operation.fail(error)
            return False
        self._issuer.take(operation)
        return True

    def _accept_each(self, writes: Sequence[RecordWrite], *, cancel_behind: bool) -> None:
        """Accept records one by one, and send with the last. Those behind a refused one are tried, or cancelled."""
        if writes:
            writes[-1].may_transmit = True
        refused = False
        for write in writes:
            if refused and cancel_behind:
                write.fail(not_tried_error())
            else:
                refused = not self._accept(write) or refused
        if refused:
            self._end_bulk(writes)

    def _end_bulk(self, writes: Sequence[RecordWrite]) -> None:
        """Send what was accepted before a refusal: only the last record of a bulk sends it, and that was refused."""
        for write in writes:
            write.may_transmit = True  # for those that still wait for a segment
        self._issuer.send_due()

    async def _at_once(self, appended: asyncio.Future[Appended]) -> None:
        """Send what was appended, and wait until it is stored."""
        if not appended.done():
            await self.send()
        await appended

    def _append(
        self,
        records: Columns,
        waiting: Waiting,
        producer: ProducerRequest | None = None,
        condition: Condition | None = None,
        fence: FencingToken | None = None,
    ) -> None:
        try:
            self._issuer.request_log()
        except CallerError as error:
            waiting.set_exception(error)
            return
        self._accept(
            AppendWrite(
                self._issuer.request_log,
                records,
                waiting,
                in_order=self._settings.max_id_sanity_check,
                producer=producer,
                condition=condition,
                fence=fence,
            )
        )

    def _append_soon(
        self,
        records: Columns,
        producer: ProducerRequest | None,
        condition: Condition | None = None,
        fence: FencingToken | None = None,
    ) -> asyncio.Future[Appended]:
        """Append with a future, which is measured."""
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._append(records, future, producer, condition, fence)
        self._measure_bulk(future)
        return future

    def _append_epoch(self, producer: str, epoch: int | None) -> tuple[int, asyncio.Future[Appended]]:
        producers = self._issuer.request_log().producers
        wanted = epoch if epoch is not None else producers.next_epoch(producer)
        return wanted, self._append_soon(((), ()), ProducerRequest(producer, wanted, -1, 0))

    def _append_token(self, token: bytes, expected: bytes | None) -> asyncio.Future[Appended]:
        condition = Condition(None, expected) if expected is not None else None
        return self._append_soon(((), ()), None, condition, FencingToken(token))

    def _measure_bulk(self, last: asyncio.Future[Any]) -> None:
        """Time a bulk from now until its last future ends."""
        if not self._measured:
            return
        noted = self._note_bulk()

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                # Not by `exception()`: asyncio would take the failure for seen, and not report it if the caller never
                # looks at it.
                noted(future._exception is None)

        last.add_done_callback(ended)

    def _note_bulk(self) -> Callable[[bool], None]:
        """Return what to call when a bulk that begins now has ended, with whether it is stored."""
        began, timing = self._loop.time(), self._measures.log_writer_bulk_write
        return lambda stored: timing.record(self._loop.time() - began, stored)

    def _measured_run(self, ended: RunEnded, records: int) -> RunEnded:
        """Return `ended`, with the bulk timed from now until its last record ends."""
        if not self._measured:
            return ended
        noted = self._note_bulk()

        def last_noted(first: int, count: int, outcome: Appended | BaseException) -> None:
            if first + count == records:
                noted(isinstance(outcome, Appended))
            ended(first, count, outcome)

        return last_noted

    def _promised(self, futures: list[asyncio.Future[DLSN]]) -> list[asyncio.Future[DLSN]]:
        """Return the futures for the caller: of records that are stored, or (non-durable) that were only taken."""
        if self._settings.durable_writes:
            return futures
        return [self._issuer.unawaited.instead_of(future, DLSN.INVALID) for future in futures]

    # ------------------------------------------------------------------ closing

    def _failed(self, cause: BaseException) -> None:
        """Say that the writer has failed: called once."""
        if self.on_failed is not None:  # Not now: records that fail with it are answered first.
            self._loop.call_soon(self.on_failed, cause)
        _log.warning(
            "log %s: the writer failed: %s", self.name, cause, extra=about(log=self.name, segment=self.segment)
        )

    async def _shut_down(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` and release everything, once, for all callers, and even if a caller is cancelled (I16)."""
        self._check_loop()
        if self._shutdown is None:
            self._shutdown = self._loop.create_task(self._release_after(step))
        await asyncio.shield(self._shutdown)

    async def _release_after(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        finally:
            # The lock goes last: until everything that may change the log has ended, the next owner waits for it.
            await self._issuer.ownership.close()
            await self._retention.close()
            await self._sequence.close()
            self._issuer.limits.end()
            await release(self._lock, self._measures.lock_unlock)
            self._forget_gauge()

    async def _close(self) -> None:
        await self._issuer.settle(self._issuer.flush_last)
        # The lock goes with the end of the last segment, in one step, so that the next owner waits for one only. What
        # else may change the log ends before (I16).
        await self._issuer.ownership.close()
        await self._retention.close()
        await self._issuer.run_transition(self._sequence.complete_last)
