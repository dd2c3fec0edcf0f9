"""How a request is begun on an open log, and how its answer is made. Nothing here waits: what the writer answers later
comes by callbacks of its futures, so that a write costs neither a task nor an `await`.

What is written in one turn of the event loop is sent together at its end. While several entries of the stream are under
way (`server_entries_under_way`), what comes is collected until one of them is answered: entries then grow with the load
instead of in number. A buffer that is full goes out at once, whatever is under way.

Fault model: the writer's futures say what became of records, and their errors, whether they may have been stored. A
request is answered with success only after the future of each of its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_record_set, record_set_count
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.appending import append_epoch, append_token
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import InvalidEntryError, InvalidRecordError, OutcomeUnknownError, WriteCancelledError
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BeginEpoch,
    BulkReceipt,
    Done,
    EpochBegun,
    Heartbeat,
    ProducerStamp,
    Refusal,
    SetFencingToken,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.record_sets import check_record_sets
from dlspark.serving.write_proxy.requests import TakenRequest
from dlspark.serving.write_proxy.transaction_ids import TransactionIds
from storage_node.protocol.frames import Buffer

T = TypeVar("T")

OF_THE_WHOLE_BULK: Final = frozenset(
    {StatusCode.FOUND, StatusCode.ALREADY_CLOSED, StatusCode.LOCKING_EXCEPTION},
)
"""A bulk whose first record fails with one of these is refused as one; else each record has a result of its own."""


class Failures(Protocol):
    """Who hears of failures: the stream."""

    def request_failed(self, error: BaseException) -> None:
        """A request, or a record of one, has ended with `error`."""
        ...


class Execution:
    """Begins requests on one open writer."""

    def __init__(self, writer: AsyncLogWriter, ids: TransactionIds, failures: Failures, entries_under_way: int) -> None:
        self.writer = writer
        self._ids = ids
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._most_sent = entries_under_way
        self._sent = 0
        self._last: asyncio.Future[object] | None = None
        self._scheduled = False
        self._begin: Mapping[type, Callable[[TakenRequest], None]] = {
            WriteRecords: self._write,
            BeginEpoch: self._begin_epoch,
            SetFencingToken: self._set_token,
            Heartbeat: self._heartbeat,
        }

    def begins(self, kind: type) -> bool:
        """Whether requests of this kind are begun here."""
        return kind in self._begin

    def begin(self, taken: TakenRequest) -> None:
        """Begin a request behind all that were begun before. Never raises."""
        try:
            if type(taken.request) is WriteRecords:
                self._write(taken)
            else:
                self._begin[type(taken.request)](taken)
        except Exception as error:
            self._fail(taken, error)

    # ------------------------------------------------------------------ records

    def _write(self, taken: TakenRequest) -> None:
        request = taken.request
        assert isinstance(request, WriteRecords)
        payloads, given = request.payloads, request.transaction_ids
        if given is None and len(payloads) == 1 and not (request.is_whole or request.context.is_record_set):
            future = self.writer.write(self._ids.next(), payloads[0])
            future.add_done_callback(partial(self._written, taken))
            self._push_later(future)
            return
        if not payloads:
            raise InvalidRecordError("a request has no records; nothing was written", advice="Give one at least")
        if given is not None and len(given) != len(payloads):
            raise InvalidRecordError(
                f"{len(given)} transaction ids came with {len(payloads)} payloads; nothing was written",
                advice="Give one for each, or none",
            )
        if request.context.is_record_set:
            check_record_sets(request)
        ids = given if given is not None else (self._ids.next(),) * len(payloads)
        if request.is_whole:
            self._append(taken, request, ids)
        elif request.context.is_record_set:
            self._write_sets(taken, payloads, ids)
        else:
            records = [(txid, bytes(payload)) for txid, payload in zip(ids, payloads, strict=True)]
            self._several(taken, self.writer.write_bulk(records))
        if given is not None:
            self._ids.note(given)

    def _written(self, taken: TakenRequest, future: asyncio.Future[DLSN]) -> None:
        error = _error_of(future) if future.cancelled() else future.exception()
        if error is None:
            taken.answer(WriteReceipt(future.result(), 1))
        else:
            self._fail(taken, error)

    def _write_sets(self, taken: TakenRequest, payloads: Sequence[Buffer], ids: Sequence[int]) -> None:
        futures = [self.writer.write_encoded_set(txid, one) for txid, one in zip(ids, payloads, strict=True)]
        if len(futures) > 1:
            self._several(taken, futures)
            return
        self._push_later(futures[0])
        self._when_done(taken, futures[0], lambda dlsn: WriteReceipt(dlsn, record_set_count(payloads[0])))

    def _several(self, taken: TakenRequest, futures: Sequence[asyncio.Future[DLSN]]) -> None:
        if len(futures) == 1:
            futures[0].add_done_callback(partial(self._written, taken))
            self._push_later(futures[0])
            return
        bulk = _Bulk(taken, len(futures), self._failures)
        for at, future in enumerate(futures):
            future.add_done_callback(partial(bulk.ended, at))
        self._push_later(futures[-1])

    def _append(self, taken: TakenRequest, request: WriteRecords, ids: Sequence[int]) -> None:
        stamp = request.stamp
        records = _members(request.payloads, ids) if request.context.is_record_set else _records(request.payloads, ids)
        if stamp is None:
            appended = self.writer.append(
                records, expected_position=request.expected_position, fencing_token=request.fencing_token
            )
        else:
            _check_stamp(stamp)
            appended = self.writer.append(
                records,
                producer=stamp.name,
                epoch=stamp.epoch,
                sequence=stamp.sequence,
                expected_position=request.expected_position,
                fencing_token=request.fencing_token,
            )
        self._when_done(taken, appended, _receipt)
        self._push_later(appended)

    # ------------------------------------------------------------------ other requests

    def _begin_epoch(self, taken: TakenRequest) -> None:
        request = taken.request
        assert isinstance(request, BeginEpoch)
        if request.epoch is not None and request.epoch < 0:
            raise InvalidRecordError(f"{request.epoch} is not an epoch; nothing was written", advice="They begin at 0")
        epoch, appended = append_epoch(self.writer, request.producer, request.epoch)

        def answer(result: Appended) -> Answer | None:
            if request.epoch is None and result.repeated:  # another call has begun this one at the same time
                self._begin_epoch(taken)
                return None
            known = self.writer.producer_state(request.producer)
            return EpochBegun(epoch, known.last + 1 if known is not None and known.epoch == epoch else 0)

        self._when_done(taken, appended, answer)
        self._push_later(appended)

    def _set_token(self, taken: TakenRequest) -> None:
        request = taken.request
        assert isinstance(request, SetFencingToken)
        appended = append_token(self.writer, request.token, request.expected)
        self._when_done(taken, appended, lambda result: Done())
        self._push_later(appended)

    def _heartbeat(self, taken: TakenRequest) -> None:
        request = taken.request
        assert isinstance(request, Heartbeat)
        if not request.to_readers:
            taken.answer(Done())
            return
        beat = self.writer.heartbeat()
        self._when_done(taken, beat, lambda result: Done(result.first))
        self._push_later(beat)  # where it waits for a segment

    # ------------------------------------------------------------------ answers

    def _when_done(self, taken: TakenRequest, future: asyncio.Future[T], answer: Callable[[T], Answer | None]) -> None:
        """Answer the request with what `answer` makes of the future's result, unless that is None."""

        def ended(done: asyncio.Future[T]) -> None:
            error = _error_of(done)
            try:
                if error is None and (made := answer(done.result())) is not None:
                    taken.answer(made)
            except Exception as failure:
                error = failure
            if error is not None:
                self._fail(taken, error)

        future.add_done_callback(ended)

    def _fail(self, taken: TakenRequest, error: BaseException) -> None:
        # First the stream: who asks again in the answer's callback finds it in its new state.
        self._failures.request_failed(error)
        taken.fail(error)

    # ------------------------------------------------------------------ sending

    def _push_later(self, last: asyncio.Future[T]) -> None:
        """Have what was written sent at the end of this turn of the loop; `last` is the newest of it."""
        self._last = last  # type: ignore[assignment]
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._push)

    def _push(self) -> None:
        if self._sent >= self._most_sent:
            return  # `_answered` comes here again: `_scheduled` stays
        self._scheduled = False
        last, self._last = self._last, None
        if last is not None:
            self._sent += 1
            last.add_done_callback(self._answered)
            self.writer.push()

    def _answered(self, _: asyncio.Future[object]) -> None:
        self._sent -= 1
        if self._scheduled:
            self._push()


class _Bulk:
    """Records of one request that each have their own fate."""

    __slots__ = ("_failures", "_results", "_taken", "_waiting")

    def __init__(self, taken: TakenRequest, count: int, failures: Failures) -> None:
        self._taken = taken
        self._failures = failures
        self._results: list[DLSN | Refusal | None] = [None] * count
        self._waiting = count

    def ended(self, at: int, future: asyncio.Future[DLSN]) -> None:
        """Note one record's outcome; with the last of them, answer."""
        error = _error_of(future)
        if error is None:
            self._results[at] = future.result()
        else:
            # One that was not tried, because one before it was refused, says nothing of the log.
            if not isinstance(error, WriteCancelledError) or error.__cause__ is not None:
                self._failures.request_failed(error)
            self._results[at] = refusal_of(error)
        self._waiting -= 1
        if not self._waiting:
            self._taken.answer(bulk_answer([one for one in self._results if one is not None]))


def bulk_answer(results: Sequence[DLSN | Refusal]) -> BulkReceipt | Refusal:
    """The answer to a bulk: the header's refusal only where the first record's failure is one of ownership, else each
    record's result."""
    first = results[0]
    if isinstance(first, DLSN) or first.code not in OF_THE_WHOLE_BULK:
        return BulkReceipt(tuple(results))
    if all(isinstance(one, Refusal) and one.applied is not Applied.UNKNOWN for one in results):
        return first
    # Said as such, for one refusal stands for all of them: some may be in the log.
    return Refusal(first.code, first.message, first.location, Applied.UNKNOWN, "", first.actual, first.advice)


def _error_of(future: asyncio.Future[T]) -> BaseException | None:
    if future.cancelled():
        return OutcomeUnknownError("the write was cancelled", advice="Read the log's end before writing again")
    return future.exception()


def _receipt(appended: Appended) -> WriteReceipt:
    return WriteReceipt(appended.first, appended.records, appended.repeated)


def _records(payloads: Sequence[Buffer], ids: Sequence[int]) -> list[tuple[int, bytes]]:
    return [(txid, bytes(payload)) for txid, payload in zip(ids, payloads, strict=True)]


def _members(payloads: Sequence[Buffer], ids: Sequence[int]) -> list[tuple[int, bytes]]:
    """The records of record sets: what is written whole lies in one entry as it is."""
    records: list[tuple[int, bytes]] = []
    for txid, encoded in zip(ids, payloads, strict=True):
        try:
            records += ((txid, bytes(member)) for member in decode_record_set(memoryview(encoded)))
        except InvalidEntryError as error:
            raise InvalidRecordError(
                f"the record set cannot be opened: {error.message}; nothing was written", advice="Encode it again"
            ) from error
    return records


def _check_stamp(stamp: ProducerStamp) -> None:
    if stamp.sequence < 0 or stamp.epoch < 0:
        raise InvalidRecordError(
            f"epoch {stamp.epoch} or sequence number {stamp.sequence} is below 0; nothing was written",
            advice="Both begin at 0",
        )
