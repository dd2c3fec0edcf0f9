"""`Appending`: the ways of giving records to a writer: one by one, in bulk, as a set of one transaction id, by columns.

Each becomes an operation with futures of its own, which the writer issues, queues or refuses; nothing here raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import FencingToken, ProducerRequest, ProducerState
from dlspark.core.metrics.catalog import Measures
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.acknowledgements import Appended, OutcomeCallback, RunEnded, Waiting, WrittenEntry
from dlspark.core.writing.append_requests import AppendWrite, Condition, RequestLog
from dlspark.core.writing.failures import UnawaitedFailures
from dlspark.core.writing.queued_writes import (
    UNNUMBERED,
    BatchWrite,
    CheckedSet,
    EncodedSetWrite,
    HeartbeatWrite,
    QueuedWrite,
    RecordSetWrite,
    RecordWrite,
)
from dlspark.core.writing.record_runs import NO_RECORDS, Columns, RecordRun, run_of
from dlspark.core.writing.run_writes import RunWrite, not_tried_error
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer


class Appending:
    """Base of `AsyncLogWriter`."""

    last_txid: int
    _loop: asyncio.AbstractEventLoop
    _settings: Settings
    _measures: Measures
    _measured: bool
    _unawaited: UnawaitedFailures

    def _accept(self, operation: QueuedWrite) -> bool:
        """Issue or queue `operation`, or fail it; False if it was refused."""
        raise NotImplementedError

    def _takes_all(self, run: RecordRun) -> bool:
        """Whether none of these records would be refused for its id, or for a limit."""
        raise NotImplementedError

    def _send_due(self) -> None:
        """Send what is buffered where that is enough for an entry."""
        raise NotImplementedError

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
        self._send_due()

    def _write_run(self, columns: Columns, ended: RunEnded, *, bulk: bool) -> None:
        """See `write_run`."""
        if bulk:
            ended = self._measured_run(ended, len(columns[1]))
        try:
            run = run_of(*columns)
        except CallerError:
            run = NO_RECORDS
        if not run or not self._settings.durable_writes or not self._takes_all(run):
            self._write_each(columns, ended, bulk=bulk)
            return
        write = RunWrite(run, ended, bulk=bulk)
        write.accepted = self._accept(write)

    def _write_each(self, columns: Columns, ended: RunEnded, *, bulk: bool) -> None:
        """The same one by one: some are refused, or none is waited for."""
        txids, payloads = columns
        if txids is None:
            txids = [UNNUMBERED] * len(payloads)
        writes = [
            RecordWrite(txid, payload, self._loop.create_future(), may_transmit=not bulk)
            for txid, payload in zip(txids, payloads, strict=True)
        ]
        self._accept_each(writes, cancel_behind=bulk)
        for number, future in enumerate(self._promised([write.future for write in writes])):
            future.add_done_callback(partial(_ended_alone, ended, number))

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
        return self._unawaited.instead_of(future, (at_once,))

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
            producer: who writes; a request that comes again, after a lost answer or from another process, is written
                once, and answered with its first position. Epochs: `begin_epoch`.
            sequence: the request's number, from 0 in each epoch.
            expected_position: the sequence id that comes next, or the DLSN behind which no record may be.
            fencing_token: what `set_fencing_token` was called with last, by anybody.

        The future gets an `Appended`. Its errors besides those of `write`: ProducerFencedError, SequenceGapError,
        SequencePassedError, ProducerForgottenError, TooManyProducersError, ConditionError, and RecordTooLongError for
        more than an entry holds. Never raises. The writer must have been opened with `producers=True`.
        """
        who = ProducerRequest(producer, epoch, sequence, len(records)) if producer is not None else None
        asked = expected_position is not None or fencing_token is not None
        condition = Condition(expected_position, fencing_token) if asked else None
        columns = [txid for txid, _ in records], [payload for _, payload in records]
        return self._append_soon(columns, who, condition)

    async def begin_epoch(self, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, and return it: requests of older ones are refused from now on, whoever owns
        the log. Its requests are numbered from 0, unless `epoch` names one that has begun before.

        Without `epoch` it is one that no other call has begun. Raises ProducerFencedError where `epoch` has ended.
        """
        while True:
            wanted, begun = append_epoch(self, producer, epoch)
            await self._at_once(begun)
            if epoch is not None or not begun.result().repeated:
                return wanted
            # Another call has begun it at the same time: two processes with one epoch would take each other's requests
            # for repetitions (I19).

    def producer_state(self, producer: str) -> ProducerState | None:
        """What is known of a producer, what is under way as well; None where it has not written, or was forgotten: in
        an epoch up to `forgotten_epoch`.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._request_log().producers.state(producer)

    @property
    def forgotten_epoch(self) -> int:
        """The highest epoch in which a producer may have written that is not known any more; -1 where none has.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._request_log().producers.forgotten

    async def set_fencing_token(self, token: bytes, expected: bytes | None = None) -> None:
        """Have every append that names another fencing token refused from now on; empty bytes: none.

        `expected` is the one that the log must have now. Raises ConditionError with the one that it has.
        """
        await self._at_once(append_token(self, token, expected))

    def heartbeat(self) -> asyncio.Future[Appended]:
        """Write the control record `heartbeat`, by which readers see that the log has an owner; sent at once.

        The future ends when it is stored. Never raises.
        """
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._accept(HeartbeatWrite(future))
        return future

    async def _at_once(self, appended: asyncio.Future[Appended]) -> None:
        """Send what was appended, and wait until it is stored."""
        if not appended.done():
            await self.send()
        await appended

    async def send(self) -> None:
        """Send everything accepted without waiting for acknowledgement, only for a segment being started."""
        raise NotImplementedError

    def _request_log(self) -> RequestLog:
        """What is known of requests. Raises CallerError for a writer without producers."""
        raise NotImplementedError

    def _append(
        self,
        records: Columns,
        waiting: Waiting,
        producer: ProducerRequest | None = None,
        condition: Condition | None = None,
        fence: FencingToken | None = None,
    ) -> None:
        try:
            self._request_log()
        except CallerError as error:
            waiting.set_exception(error)
            return
        self._accept(
            AppendWrite(
                self._request_log,
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
        """`_append` with a future, which is measured."""
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._append(records, future, producer, condition, fence)
        self._measure_bulk(future)
        return future

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
        """What to call when a bulk that begins now has ended, with whether it is stored."""
        began, timing = self._loop.time(), self._measures.log_writer_bulk_write
        return lambda stored: timing.record(self._loop.time() - began, stored)

    def _measured_run(self, ended: RunEnded, records: int) -> RunEnded:
        """`ended`, with the bulk timed from now until its last record ends."""
        if not self._measured:
            return ended
        noted = self._note_bulk()

        def last_noted(first: int, count: int, outcome: Appended | BaseException) -> None:
            if first + count == records:
                noted(isinstance(outcome, Appended))
            ended(first, count, outcome)

        return last_noted

    def _promised(self, futures: list[asyncio.Future[DLSN]]) -> list[asyncio.Future[DLSN]]:
        """The futures for the caller: of records that are stored, or (non-durable) that were only taken."""
        if self._settings.durable_writes:
            return futures
        return [self._unawaited.instead_of(future, DLSN.INVALID) for future in futures]


# ------------------------------------------------------------------ for those who pass requests on in their order


def write_run(
    writer: Appending, txids: Sequence[int] | None, payloads: Sequence[Buffer], ended: RunEnded, *, bulk: bool
) -> None:
    """As `write` for each record, or with `bulk` as `write_bulk`. Not sent before the writer is asked to.

    `txids`: None for the time at which the records get their place, or the log's highest id where that is above it.

    In place of a future for each record, `ended` is called for those that lie in one entry, in the turn of the loop in
    which their outcome is known. Never raises.
    """
    writer._write_run((txids, payloads), ended, bulk=bulk)


def append_run(
    writer: Appending,
    txids: Sequence[int] | None,
    payloads: Sequence[Buffer],
    ended: RunEnded,
    *,
    producer: ProducerRequest | None = None,
    condition: Condition | None = None,
) -> None:
    """As `append`, without sending it; `ended` is called, and `txids` are, as in `write_run`. Never raises."""
    count = len(payloads)
    outcome = OutcomeCallback(partial(writer._measured_run(ended, count), 0, count))
    writer._append((txids, payloads), outcome, producer, condition)


def append_epoch(writer: Appending, producer: str, epoch: int | None = None) -> tuple[int, asyncio.Future[Appended]]:
    """As `begin_epoch`, in line with what was appended before, and without sending it: the epoch, and its answer.

    Where no `epoch` was given and the answer is a repetition, another call has begun this one: try again. Raises
    CallerError for a writer that was opened without producers.
    """
    producers = writer._request_log().producers
    wanted = epoch if epoch is not None else producers.next_epoch(producer)
    return wanted, writer._append_soon(((), ()), ProducerRequest(producer, wanted, -1, 0))


def append_token(writer: Appending, token: bytes, expected: bytes | None = None) -> asyncio.Future[Appended]:
    """As `set_fencing_token`, in line with what was appended before, and without sending it. Never raises."""
    condition = Condition(None, expected) if expected is not None else None
    return writer._append_soon(((), ()), None, condition, FencingToken(token))


def _ended_alone(ended: RunEnded, number: int, future: asyncio.Future[DLSN]) -> None:
    error = future.exception()
    ended(number, 1, Appended(future.result(), 1) if error is None else error)
