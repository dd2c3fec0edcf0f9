"""Appends that are applied whole or not at all, and at most once: a producer's requests, and conditional ones.

All records of a request lie in one entry, behind a control record that says whose they are; what may follow what,
`producers` decides. It is asked when the request is handed to a segment and not when it is accepted, for what waits for
a segment may be overtaken by a recovery: a request that was under way then is in the log, or it is not.

A request that meets its own first copy while that is under way waits for its outcome (I19). So each request has an
outcome of its own, to which the futures of all its copies are attached: a caller who gives up takes no answer of
another away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import FencingToken, ProducerRequest
from dlspark.core.codec.records import HEADER_BYTES, MAX_LOGRECORDSET_SIZE
from dlspark.core.writing.acknowledgements import Appended, RequestOutcome, Waiting
from dlspark.core.writing.producers import LogTime, Producers, UnderWay, Written
from dlspark.core.writing.record_runs import NO_RECORDS, Columns, run_of
from dlspark.core.writing.segment_writer import AppendRequest, SegmentWriter
from dlspark.core.writing.write_kinds import QueuedWrite, below_highest_error
from dlspark.errors import ConditionError, InvalidRecordError, RecordTooLongError, TransactionIdOutOfOrderError
from metadata.foundation.errors import DistributedLogError

_ENVELOPE_ROOM = 64
"""Bytes of an entry that a request leaves free: the envelope."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that must hold when a request is written; None for the part that is not asked.

    `position`: a sequence id, that of the request's first record; or a DLSN, behind which no record may have been
    written. `token`: the log's fencing token.
    """

    position: int | DLSN | None = None
    token: bytes | None = None


class AppendWrite(QueuedWrite):
    """One request on its way into a segment. Its future gets an `Appended`."""

    __slots__ = ("_given", "_log", "condition", "fence", "future", "in_order", "producer", "request")

    def __init__(
        self,
        log: Callable[[], RequestLog],
        records: Columns,
        future: Waiting,
        *,
        in_order: bool = True,
        producer: ProducerRequest | None = None,
        condition: Condition | None = None,
        fence: FencingToken | None = None,
    ) -> None:
        """Ask `log` when the request is issued: a recovery that it waited for has learnt the log anew.

        With `in_order`, a request whose ids are below those before it is refused; but not one that comes again, whose
        ids are old.
        """
        self.in_order = in_order
        self._log = log
        self._given = records
        self.future = future
        self.producer = producer
        self.condition = condition
        self.fence = fence
        self.request = AppendRequest(NO_RECORDS, None)

    @property
    def first_txid(self) -> int:
        """-1: a segment that is started for it begins at the log's highest id. With its own ids a request that is then
        refused would move those of all requests behind it (I4)."""
        return -1

    @property
    def last_txid(self) -> int:
        """-1: its ids count once it is written, for it may have been written before, or be refused."""
        return -1

    @property
    def records(self) -> int:
        """One position for each record."""
        return len(self._given[1])

    @property
    def size(self) -> int:
        """Bytes it takes of an entry."""
        return self.request.bytes

    def check(self) -> None:
        """Raise CallerError unless it may be written; copies payloads that the caller could still change (I3)."""
        run = run_of(*self._given)
        if not run and self.fence is None and (self.producer is None or self.producer.sequence >= 0):
            raise InvalidRecordError("a request has no records; nothing was written", advice="Give one at least")
        control = self.producer or self.fence
        self.request = AppendRequest(run, control.encode() if control is not None else None)
        room = MAX_LOGRECORDSET_SIZE - _ENVELOPE_ROOM
        if self.request.bytes > room:
            raise RecordTooLongError(
                f"a request of {len(run)} records takes {self.request.bytes} bytes with their headers of "
                f"{HEADER_BYTES}; it lies in one entry, which has room for {room}. Nothing was written",
                advice="Send fewer records a request",
            )

    def check_order(self) -> None:
        """Raise TransactionIdOutOfOrderError where an id is below the one before it."""
        run = self.request.run
        if run.in_order:
            return
        before, txid = next(pair for pair in pairwise(run.txids) if pair[1] < pair[0])
        raise TransactionIdOutOfOrderError(
            f"transaction id {txid} comes behind {before} in a request; nothing of it was written",
            advice="Sort the request's records by transaction id",
        )

    def check_follows(self, highest: int, log: str | None) -> None:
        """Check only its own order: ids below the log's highest may be those of a request that comes again."""
        self.check_order()

    def number(self, txid: int) -> None:
        """Note one id for all records, where they came without."""
        self.request = AppendRequest(self.request.run.at(txid), self.request.control)

    def check_new(self, highest: int) -> None:
        """Raise TransactionIdOutOfOrderError where it is not one that comes again, and its ids are too low (I4).

        A request without records has none, whatever was written while it waited in line.
        """
        run = self.request.run
        if self.in_order and run and run.txids[0] < highest:
            raise below_highest_error(run.txids[0], highest, None)

    def is_answered(self) -> bool:
        """Return whether it was written before, or is refused for what its producer has written."""
        return self._log().answer(self)

    def issue(self, segment: SegmentWriter) -> None:
        """Write it to `segment`, answer it from what was written before, or refuse it."""
        self._log().issue(self, segment)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to its future, unless that has ended."""
        if not self.future.done():
            self.future.set_exception(error)


class RequestLog:
    """The requests that were written to a log, as its writer knows them."""

    def __init__(self, producers: Producers, last: DLSN | None, highest_txid: int, time: LogTime) -> None:
        """Begin with what was read. `last`: where the log's last user record is, None for a log without any."""
        self.producers = producers
        self.failed = False
        """Set once an entry was not acknowledged: this is not what the log says any more."""
        self._last = last
        self._highest_txid = highest_txid
        self._segment: SegmentWriter | None = None
        self._start_sequence_id: int | None = None
        self._time = time
        self._outcomes: dict[ProducerRequest, RequestOutcome] = {}
        self._new: AppendWrite | None = None
        """The write that `answer` has just found to be new: it is issued next, and not judged again. Whatever changes
        what is known of producers takes that back."""

    def snapshot(self, expiry_s: float) -> list[bytes]:
        """Return what is known of all producers, as the payloads of control records."""
        self._new = None  # producers that were silent are forgotten with it
        return self.producers.snapshot(self._time.now_ms(), int(expiry_s * 1000))

    def begin_segment(self, segment: SegmentWriter, start_sequence_id: int | None) -> None:
        """Note that what is written from now on goes into `segment`; its first record has this sequence id, None for
        none."""
        # A segment without user records leaves the log's end where it was.
        if self._segment is not None and self._segment.last_dlsn is not None:
            self._last, self._highest_txid = self._segment.last_dlsn, self._segment.last_txid
        self._segment, self._start_sequence_id = segment, start_sequence_id

    def issue(self, write: AppendWrite, segment: SegmentWriter) -> None:
        """Write a request that is not answered yet, or refuse it."""
        new, self._new = self._new, None  # one that is refused is not kept: it may have a megabyte
        try:
            if write.producer is not None and not self.failed and new is not write:
                repeated = self.producers.judge(write.producer)
                if isinstance(repeated, UnderWay):
                    self._outcomes[repeated.request].attach(write.future, repeated=True)
                    return
            self._check(write, segment)  # a repetition met all this when it was written
        except DistributedLogError as error:
            write.fail(error)
            return
        self._write(write, segment)

    def answer(self, write: AppendWrite) -> bool:
        """Answer a request that was written before, or refuse it for what its producer has written, if that is so.

        Not after a failure: what was under way is in the table, and in the log or not (I3).
        """
        self._new = None
        if write.producer is None or self.failed:
            return False
        try:
            known = self.producers.judge(write.producer)
        except DistributedLogError as error:
            write.fail(error)
            return True
        if not isinstance(known, Written):
            self._new = write if known is None else None
            return False
        if not write.future.done():
            write.future.set_result(Appended(known.first, known.records, repeated=True))
        return True

    def _write(self, write: AppendWrite, segment: SegmentWriter) -> None:
        first = segment.dlsn_of(write.request)  # before it is written: afterwards the next free position has moved
        producer = write.producer
        outcome = RequestOutcome(partial(self._ended, producer))
        outcome.attach(write.future, repeated=False)
        if not segment.write_request(write.request, outcome):
            return
        if write.fence is not None:
            self.producers.token = write.fence.token
        # A segment that fails at once has ended the outcome already: that request is not under way.
        if producer is not None and not outcome.done():
            self.producers.begin(producer, first, self._time.now_ms())
            self._outcomes[producer] = outcome

    def _ended(self, producer: ProducerRequest | None, stored: bool) -> None:
        if producer is not None:
            self._outcomes.pop(producer, None)
            if stored:
                self.producers.answered(producer)

    # ------------------------------------------------------------------ conditions

    def _check(self, write: AppendWrite, segment: SegmentWriter) -> None:
        write.check_new(segment.last_txid if segment.last_dlsn is not None else self._highest_txid)
        if write.condition is not None:
            self._check_condition(write.condition, segment)

    def _check_condition(self, condition: Condition, segment: SegmentWriter) -> None:
        if condition.token is not None and condition.token != self.producers.token:
            raise ConditionError(
                f"the log's fencing token is {self.producers.token!r}, not {condition.token!r}; nothing was written",
                actual=self.producers.token,
                advice="Another process has fenced the log; write only if it is yours to take back",
            )
        if isinstance(condition.position, DLSN):
            self._check_last(condition.position, segment)
        elif condition.position is not None:
            self._check_next(condition.position, segment)

    def _check_last(self, wanted: DLSN, segment: SegmentWriter) -> None:
        last = segment.last_dlsn or self._last
        if last != wanted:
            where = f"at {last}" if last is not None else "nowhere, it has none"
            raise ConditionError(
                f"the log's last record is {where}, and not at {wanted}; nothing was written",
                actual=last,
                advice="Read what was written meanwhile, and decide again",
            )

    def _check_next(self, wanted: int, segment: SegmentWriter) -> None:
        if self._start_sequence_id is None:
            raise ConditionError(
                "the log's segments have no sequence ids; nothing was written",
                actual=None,
                advice="Give the DLSN of the last record, or ledgerMetadataLayoutVersion=5 from the first segment on",
            )
        comes = self._start_sequence_id + segment.position
        if comes != wanted:
            raise ConditionError(
                f"the next record has sequence id {comes}, not {wanted}; nothing was written",
                actual=comes,
                advice="Read what was written meanwhile, and decide again",
            )
