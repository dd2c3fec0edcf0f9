"""What becomes of a request on an open log: records, and an answer.

    Execution          begins requests on an open log, and makes their answers of what the log's writer says
    _SendRound         what is sent together
    _Bulk              records of one request that each have their own fate

Nothing here waits: what the writer answers later comes by callbacks, so that a write costs neither a task nor an
`await`.

A request that finds nothing of its stream under way, where the last one came alone, is sent at once. Records that came
one by one in one turn of the event loop are given to the writer together at its end, and what was written in a turn is
sent together. While several entries of the stream are under way (`server_entries_under_way`), what comes is collected
until one of them is answered: entries then grow with the load instead of in number. A buffer that is full goes out at
once, whatever is under way.

Fault model: the writer says what became of records, and its errors, whether they may have been stored. A request is
answered with success only after that was said of each of its records. What requests hold is bounded, for their payloads
come from clients.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, Protocol, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_record_set, record_set_count
from dlspark.core.codec.producer_records import ProducerRequest
from dlspark.core.writing.acknowledgements import Appended, RunEnded
from dlspark.core.writing.conditional_appends import Condition
from dlspark.core.writing.proxy_writes import append_epoch, append_run, append_token, write_run
from dlspark.core.writing.write_kinds import CheckedSet
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import InvalidEntryError, InvalidRecordError, WriteCancelledError
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
    Request,
    SetFencingToken,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import check_record_sets
from dlspark.serving.write_proxy.streams.limits import ClientProducers
from dlspark.serving.write_proxy.streams.runs import TakenRun
from dlspark.serving.write_proxy.streams.taken_requests import RequestHandlers, TakenRequest
from metadata.foundation.errors import CallerError, OutcomeUnknownError
from storage_node.protocol.frames import Buffer

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", bound=Request)

OF_THE_WHOLE_BULK: Final = frozenset(
    {StatusCode.FOUND, StatusCode.ALREADY_CLOSED, StatusCode.LOCKING_EXCEPTION},
)
"""A bulk whose first record fails with one of these is refused as one; else each record has a result of its own."""


# ---------------------------------------------------------------------- execution


class Failures(Protocol):
    """Hears of failures: the stream."""

    def request_failed(self, error: BaseException) -> None:
        """Note that a request, or a record of one, has ended with `error`."""
        ...


class _SendRound:
    """The writes that are sent together: a round is under way until all of them have their outcome."""

    __slots__ = ("sent", "waiting")

    def __init__(self) -> None:
        self.sent = False
        self.waiting = 0


class _GivenRecords:
    """Records that are given to the writer together: each has one outcome, also where giving them fails."""

    __slots__ = ("_over", "_told", "_written")

    def __init__(self, written: RunEnded) -> None:
        self._written = written
        self._told: list[range] = []
        self._over = False

    def ended(self, first: int, count: int, outcome: Appended | BaseException) -> None:
        """Tell the outcome of some of them."""
        if not self._over:
            self._told.append(range(first, first + count))
            self._written(first, count, outcome)

    def fail(self, records: int, error: Exception) -> None:
        """Tell `error` of each that has no outcome yet. Some may be with the writer: what that says later comes too
        late."""
        self._over = True
        for number in range(records):
            if not any(number in told for told in self._told):
                self._written(number, 1, error)


def _ends(taken: Sequence[TakenRequest | TakenRun], records: int) -> Sequence[int]:
    """Return behind how many records each ends: of thousands, one is found by that."""
    if records == len(taken):
        return range(1, records + 1)
    return list(accumulate(one.records for one in taken))


class Execution:
    """How does a request become records of the log, and an answer? Begins requests on one open writer.

    Args:
        entries_under_way: how many rounds are sent before one of them is answered.
        producers_per_client: how many producers one client may begin on the stream; 0 or less: any number.
    """

    def __init__(
        self, writer: AsyncLogWriter, failures: Failures, entries_under_way: int, producers_per_client: int
    ) -> None:
        self.writer = writer
        self._producers = ClientProducers(lambda name: writer.producer_state(name) is not None)
        self._most_producers = producers_per_client
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._most_sent = entries_under_way
        self._sent = 0
        self._round = _SendRound()
        self._scheduled = False
        self._beginning = False
        """A request is being begun, behind which `_send_now` looks."""
        self._came = 0
        """Requests that were begun since something was sent."""
        self._alone = True
        """What was sent last was one request. Where it was several, others will come in the turn of the next one, too:
        sent before them, it would make of one entry two."""
        self._held_back = False
        """Something is to be sent when an entry that is under way is answered."""
        # Records that came one by one and are not with the writer yet.
        self._taken: list[TakenRequest | TakenRun] = []
        self._payloads: list[Buffer] = []
        self._handlers = RequestHandlers[None]()
        self._handlers.add(WriteRecords, self._write)
        self._handlers.add(BeginEpoch, self._begin_epoch)
        self._handlers.add(SetFencingToken, self._set_token)
        self._handlers.add(Heartbeat, self._heartbeat)

    def begins(self, kind: type) -> bool:
        """Return whether requests of this class are begun here."""
        return self._handlers.handles(kind)

    def begin(self, taken: TakenRequest) -> None:
        """Begin a request behind all that were begun before. Never raises."""
        self._came += 1
        self._beginning = self._alone and not self._sent and not self._scheduled
        try:
            request = taken.request
            # One record that nothing is asked of but to be stored: what most clients send. Such ones are only put
            # together here, and cost the writer one call for all that came in this turn of the loop.
            if type(request) is WriteRecords and request.is_plain:
                self._taken.append(taken)
                self._payloads.append(request.payloads[0])
                if not self._scheduled:
                    self._send_soon()
            else:
                self._write_taken()  # first: what one client sends is written in the order in which it came
                self._handlers.call(taken)
        except Exception as error:
            self._fail(taken, error)
        if self._beginning:
            self._send_now()

    def begin_run(self, run: TakenRun) -> None:
        """Begin writes that came together behind all that were begun before. Never raises."""
        self._came += run.records
        self._beginning = self._alone and not self._sent and not self._scheduled
        self._taken.append(run)
        self._payloads += run.payloads
        self._send_soon()
        if self._beginning:
            self._send_now()

    # ------------------------------------------------------------------ records

    def _write_taken(self) -> None:
        """Give the writer the records that came one by one, before what comes behind them."""
        taken, payloads = self._taken, self._payloads
        if taken:
            self._taken, self._payloads = [], []
            given = _GivenRecords(partial(self._written, taken, _ends(taken, len(payloads)), self._begun()))
            try:
                write_run(self.writer, None, payloads, given.ended, bulk=False)
            except Exception as error:  # a mistake in the writer: nobody else would answer them
                _LOG.exception("writes could not be given to the writer")
                given.fail(len(payloads), error)

    def _written(
        self,
        taken: Sequence[TakenRequest | TakenRun],
        ends: Sequence[int],
        round_: _SendRound,
        first: int,
        count: int,
        outcome: Appended | BaseException,
    ) -> None:
        after = first + count
        # With the last record's outcome the round is over: entries have theirs in the order of their records.
        if after == ends[-1]:
            self._ended(round_)
        positions = _positions(outcome, count) if isinstance(outcome, Appended) else []
        for at in range(bisect_right(ends, first), len(taken)):
            one, end = taken[at], ends[at]
            begin = end - one.records
            low, high = max(begin, first), min(end, after)  # a run may lie in several entries
            if not isinstance(outcome, Appended):
                self._fail(one, outcome, low - begin, high - low)
            elif isinstance(one, TakenRun):
                one.ended(low - begin, positions[low - first : high - first], high - low)
            else:
                one.answer(WriteReceipt(positions[low - first], 1))
            if end >= after:
                return

    def _write(self, taken: TakenRequest, request: WriteRecords) -> None:
        # Ids that the client has not given come with a record's position: a request that is refused moves none (I4).
        payloads, ids = request.payloads, request.transaction_ids
        if not payloads:
            raise InvalidRecordError("a request has no records; nothing was written", advice="Give one at least")
        if ids is not None and len(ids) != len(payloads):
            raise InvalidRecordError(
                f"{len(ids)} transaction ids came with {len(payloads)} payloads; nothing was written",
                advice="Give one for each, or none",
            )
        if request.context.is_record_set:
            check_record_sets(request)
        if request.is_whole:
            self._append(taken, request, ids)
        elif request.context.is_record_set:
            self._write_sets(taken, payloads, ids)
        elif len(payloads) == 1:
            write_run(self.writer, ids, payloads, partial(self._written, [taken], (1,), self._begun()), bulk=True)
        else:
            bulk = _Bulk(taken, len(payloads), self._failures)
            write_run(self.writer, ids, payloads, partial(self._bulk_written, bulk, self._begun()), bulk=True)

    def _bulk_written(
        self, bulk: _Bulk, round_: _SendRound, first: int, count: int, outcome: Appended | BaseException
    ) -> None:
        if first + count == bulk.records:
            self._ended(round_)
        bulk.ended(first, count, outcome)

    def _write_sets(self, taken: TakenRequest, payloads: Sequence[Buffer], ids: Sequence[int] | None) -> None:
        sets = opened_sets(payloads) if taken.sets is None else taken.sets
        futures = [self._write_set(ids[number] if ids is not None else None, one) for number, one in enumerate(sets)]
        if len(futures) == 1:
            self._when_done(taken, futures[0], lambda dlsn: WriteReceipt(dlsn, record_set_count(payloads[0])))
            return
        bulk, round_ = _Bulk(taken, len(futures), self._failures), self._begun()

        def ended(number: int, future: asyncio.Future[DLSN]) -> None:
            error = _error_of(future)
            self._bulk_written(bulk, round_, number, 1, Appended(future.result(), 1) if error is None else error)

        for number, future in enumerate(futures):
            future.add_done_callback(partial(ended, number))

    def _write_set(self, txid: int | None, one: CheckedSet | CallerError) -> asyncio.Future[DLSN]:
        if isinstance(one, CheckedSet):
            return self.writer.write_encoded_set(txid, one)
        refused: asyncio.Future[DLSN] = self._loop.create_future()
        refused.set_exception(one)
        return refused

    def _append(self, taken: TakenRequest, request: WriteRecords, ids: Sequence[int] | None) -> None:
        stamp, position, token = request.stamp, request.expected_position, request.fencing_token
        payloads: Sequence[Buffer] = request.payloads
        if request.context.is_record_set:
            ids, payloads = _members(payloads, ids)
        producer: ProducerRequest | None = None
        if stamp is not None:
            _check_stamp(stamp)
            self._check_producer(taken, stamp.name)
            producer = ProducerRequest(stamp.name, stamp.epoch, stamp.sequence, len(payloads))
        asked = position is not None or token is not None
        append_run(
            self.writer,
            ids,
            payloads,
            partial(self._appended, taken, self._begun()),
            producer=producer,
            condition=Condition(position, token) if asked else None,
        )

    def _appended(
        self, taken: TakenRequest, round_: _SendRound, first: int, count: int, outcome: Appended | BaseException
    ) -> None:
        del first, count  # all of it is in one entry
        self._ended(round_)
        if isinstance(outcome, Appended):
            taken.answer(WriteReceipt(outcome.first, outcome.records, outcome.repeated))
        else:
            self._fail(taken, outcome)

    # ------------------------------------------------------------------ other requests

    def _begin_epoch(self, taken: TakenRequest, request: BeginEpoch) -> None:
        if request.epoch is not None and request.epoch < 0:
            raise InvalidRecordError(f"{request.epoch} is not an epoch; nothing was written", advice="They begin at 0")
        self._check_producer(taken, request.producer)
        epoch, appended = append_epoch(self.writer, request.producer, request.epoch)

        def answer(result: Appended) -> Answer | None:
            if request.epoch is None and result.repeated:
                # Another call has begun this one at the same time: two clients with one epoch would take each other's
                # requests for repetitions (I19). So the next one is begun.
                self._begin_epoch(taken, request)
                return None
            known = self.writer.producer_state(request.producer)
            return EpochBegun(epoch, known.last + 1 if known is not None and known.epoch == epoch else 0)

        self._when_done(taken, appended, answer)

    def _check_producer(self, taken: TakenRequest, name: str) -> None:
        # By host, not by connection: a client that connects anew would be another one each time.
        caller = taken.caller
        proven = caller.principal.name if caller.principal is not None else None
        client = proven or caller.address.rpartition(":")[0] or caller.address
        self._producers.check(client, name, self._most_producers, self._loop.time())

    def _set_token(self, taken: TakenRequest, request: SetFencingToken) -> None:
        appended = append_token(self.writer, request.token, request.expected)
        self._when_done(taken, appended, lambda result: Done())

    def _heartbeat(self, taken: TakenRequest, request: Heartbeat) -> None:
        if not request.to_readers:
            taken.answer(Done())
            return
        beat = self.writer.heartbeat()
        self._when_done(taken, beat, lambda result: Done(result.first))

    # ------------------------------------------------------------------ answers

    def _when_done(self, taken: TakenRequest, future: asyncio.Future[T], answer: Callable[[T], Answer | None]) -> None:
        """Answer the request with what `answer` makes of the future's result, unless that is None."""
        round_ = self._begun()

        def ended(done: asyncio.Future[T]) -> None:
            self._ended(round_)
            error = _error_of(done)
            try:
                if error is None and (made := answer(done.result())) is not None:
                    taken.answer(made)
            except Exception as failure:
                error = failure
            if error is not None:
                self._fail(taken, error)

        future.add_done_callback(ended)

    def _fail(self, taken: TakenRequest | TakenRun, error: BaseException, first: int = 0, count: int = 1) -> None:
        # First the stream: a client that asks again in the answer's callback finds it in its new state.
        self._failures.request_failed(error)
        if isinstance(taken, TakenRun):
            taken.ended(first, refusal_of(error), count)
        else:
            taken.fail(error)

    # ------------------------------------------------------------------ sending

    def _begun(self) -> _SendRound:
        """Note that something more is written, and return the round with which it is sent. `_ended` must follow."""
        self._round.waiting += 1
        self._send_soon()
        return self._round

    def _send_now(self) -> None:
        """Send what was begun just now, with nothing under way: another turn of the loop would find nothing more to
        send with it but what came in the same one."""
        try:
            self._write_taken()
        finally:
            self._beginning = False  # only now: what is written need not be sent in another turn
        if self._round.waiting:
            self._send()
        if self._taken:  # by callers that were answered within this call
            self._send_soon()

    def _send_soon(self) -> None:
        if not (self._scheduled or self._beginning):
            self._scheduled = True
            # Behind all that came together from the network: records of many clients become one entry.
            self._loop.call_soon(self._send_taken)

    def _send_taken(self) -> None:
        try:
            self._write_taken()
        finally:
            self._scheduled = False  # only now: what is written need not be sent in another turn
        self._send()
        if self._taken:
            self._send_soon()

    def _send(self) -> None:
        self._held_back = self._sent >= self._most_sent
        if self._held_back:
            return
        round_, self._round = self._round, _SendRound()
        # It is empty where this comes behind a round that has just been sent: counted, nothing would ever end it.
        if round_.waiting:
            round_.sent = True
            self._sent += 1
            self._alone, self._came = self._came <= 1, 0
        try:
            self.writer.push()
        except Exception as error:  # a mistake in the writer: with its end, what it has not sent is answered
            _LOG.exception("the writer could not send")
            self._failures.request_failed(error)

    def _ended(self, round_: _SendRound) -> None:
        """Note that something of a round has its outcome."""
        round_.waiting -= 1
        if round_.sent and not round_.waiting:
            self._sent -= 1
            if self._held_back:
                self._send()


class _Bulk:
    """Records of one request that each have their own fate."""

    __slots__ = ("_failures", "_results", "_taken", "_waiting", "records")

    def __init__(self, taken: TakenRequest, records: int, failures: Failures) -> None:
        self.records = records
        self._taken = taken
        self._failures = failures
        self._results: list[DLSN | Refusal | None] = [None] * records
        self._waiting = records

    def ended(self, first: int, count: int, outcome: Appended | BaseException) -> None:
        """Note the outcome of some records; with the last of them, answer."""
        if isinstance(outcome, Appended):
            self._results[first : first + count] = _positions(outcome, count)
        else:
            # One that was not tried, because one before it was refused, says nothing of the log.
            if not isinstance(outcome, WriteCancelledError) or outcome.__cause__ is not None:
                self._failures.request_failed(outcome)
            self._results[first : first + count] = [refusal_of(outcome)] * count
        self._waiting -= count
        if not self._waiting:
            self._taken.answer(bulk_answer([one for one in self._results if one is not None]))


def bulk_answer(results: Sequence[DLSN | Refusal]) -> BulkReceipt | Refusal:
    """Return the answer to a bulk: the header's refusal only where the first record's failure is one of ownership, else
    each record's result."""
    first = results[0]
    if isinstance(first, DLSN) or first.code not in OF_THE_WHOLE_BULK:
        return BulkReceipt(tuple(results))
    if all(isinstance(one, Refusal) and one.applied is not Applied.UNKNOWN for one in results):
        return first
    # One refusal stands for all records here, and some may be in the log: it must say that this is not known.
    return Refusal(first.code, first.message, first.location, Applied.UNKNOWN, "", first.actual, first.advice)


def opened_sets(payloads: Sequence[Buffer]) -> list[CheckedSet | CallerError]:
    """Return the record sets, those that readers could not open as the error that says so. Any thread may call it."""
    sets: list[CheckedSet | CallerError] = []
    for payload in payloads:
        try:
            sets.append(CheckedSet.check(payload))
        except CallerError as error:
            sets.append(error)
    return sets


def _error_of(future: asyncio.Future[T]) -> BaseException | None:
    if future.cancelled():
        return OutcomeUnknownError("the write was cancelled", advice="Read the log's end before writing again")
    return future.exception()


def _positions(outcome: Appended, count: int) -> list[DLSN]:
    """Return the positions of `count` records that lie side by side."""
    first = outcome.first
    return first.run(count) if first is not None else [DLSN.INVALID] * count


def _members(payloads: Sequence[Buffer], ids: Sequence[int] | None) -> tuple[list[int] | None, list[Buffer]]:
    """Return the records of record sets: what is written whole lies in one entry as it is."""
    txids: list[int] = []
    members: list[Buffer] = []
    for number, encoded in enumerate(payloads):
        try:
            found = decode_record_set(memoryview(encoded))
        except InvalidEntryError as error:
            raise InvalidRecordError(
                f"the record set cannot be opened: {error.message}; nothing was written", advice="Encode it again"
            ) from error
        if ids is not None:
            txids += [ids[number]] * len(found)
        members += found
    return txids if ids is not None else None, members


def _check_stamp(stamp: ProducerStamp) -> None:
    if stamp.sequence < 0 or stamp.epoch < 0:
        raise InvalidRecordError(
            f"epoch {stamp.epoch} or sequence number {stamp.sequence} is below 0; nothing was written",
            advice="Both begin at 0",
        )
