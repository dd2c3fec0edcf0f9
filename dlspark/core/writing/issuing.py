"""`WriteIssuer`: hands the writes of one log to its segments, in the order in which they were taken.

The first write starts a segment. While a segment is being started or rolled (a *transition*, one task at a time),
writes queue; when it ends they are issued in order.

    ready      writes go straight into the segment's buffer
    transition writes queue: starting (first write), rolling, starting over after a failed segment
    failed     nothing is taken any more; every queued write was refused with WriteError: definitely not written
    sealed     an end-of-stream record was written; nothing may follow

Fault model: that of `AsyncLogWriter`, whose part it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dlspark.core.codec.records import MAX_TXID
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import WriteLock
from dlspark.core.writing.conditional_appends import RequestLog
from dlspark.core.writing.failures import (
    OwnershipWatch,
    UnawaitedFailures,
    explain_failure,
    step_failed_error,
    writer_failed_error,
)
from dlspark.core.writing.producer_recovery import read_producers
from dlspark.core.writing.record_runs import RecordRun
from dlspark.core.writing.segment_sequence import SegmentSequence
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.core.writing.write_kinds import QueuedWrite
from dlspark.core.writing.write_queue import WriteLimits, WriteQueue
from dlspark.errors import EndOfStreamError, StreamNotReadyError, TransactionIdOutOfOrderError, WriteCancelledError
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation


class WriteIssuer:
    """The writes of one `AsyncLogWriter`, on their way into segments.

    `on_segment` is called when a segment has begun; `on_failed`, once, with the reason when the writer fails.
    """

    def __init__(
        self,
        services: Services,
        name: str,
        settings: Settings,
        lock: WriteLock,
        transitions: SegmentTransitions,
        *,
        on_segment: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._services = services
        self._name = name
        self._settings = settings
        self._lock = lock
        self._transitions = transitions
        self._on_segment = on_segment
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue = WriteQueue()
        self.limits = WriteLimits(services, name)
        self.unawaited = UnawaitedFailures(name)
        self.sequence = SegmentSequence(
            services,
            settings,
            lock,
            transitions,
            self._segment_failed,
            self._segment_acknowledged,
            self._slot_ended,
        )
        self.last_txid = -1
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        self.acknowledged_txid = self._recovered_txid = -1
        self._issued_txid = -1
        """Highest transaction id in the log or on its way into a segment: what waits in the queue does not count, for
        it may yet be refused."""
        self._transition: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self.sealed = False
        self.ownership = OwnershipWatch(services, lock, self.fail)
        self.requests: RequestLog | None = None
        self._gaps_allowed = False
        self._push_late = False
        self._measures = services.meter.of(name)

    async def take_over(self, *, producers: bool, gaps_allowed: bool) -> None:
        """Recover what the last owner left in progress; with `producers`, learn what the log says of its producers."""
        self._gaps_allowed = gaps_allowed
        self._adopt(await self.sequence.take_over(self._learn_requests if producers else None))
        if producers:
            self.sequence.on_started = self._segment_begun

    def use_settings(self, settings: Settings) -> None:
        """Go on with the log's changed settings."""
        self._settings = settings
        self.sequence.use_settings(settings)
        if self.requests is not None:
            self.requests.producers.most = settings.max_producers

    @property
    def unacknowledged(self) -> int:
        """Records accepted and not yet acknowledged; those of a failed segment never will be, and do not count."""
        segment = self.sequence.current
        return self._queue.records + (segment.unacknowledged if segment is not None and segment.error is None else 0)

    # ------------------------------------------------------------------ sending

    async def wait_for_room(self) -> None:
        """Return when more may be taken without piling up."""
        while self._transition is not None and self._queue.crowded:
            await asyncio.wait([self._transition])
        segment = self.sequence.current
        if segment is not None and segment.error is None and self.error is None:
            await segment.ledger.wait_for_room()

    async def send(self) -> None:
        """Send everything taken without waiting for acknowledgement, only for a segment being started."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self.sequence.current is not None:
            self.sequence.current.send()

    def push(self) -> None:
        """Send everything taken, and wait for nothing: what waits for a segment is sent once that has started."""
        if self._transition is not None or self._queue:
            self._push_late = True
        elif self.sequence.current is not None:
            self.sequence.current.send()

    def send_due(self) -> None:
        """Send what is buffered where that is enough for an entry."""
        if self.sequence.current is not None:
            self.sequence.current.send_due()

    # ------------------------------------------------------------------ taking

    def takes_all(self, run: RecordRun) -> bool:
        """Return whether none of these records would be refused for its id, or for a limit."""
        in_order = not self._settings.max_id_sanity_check or (run.in_order and not 0 <= run.first_txid < self.last_txid)
        return in_order and self.limits.has_room(self._settings, run, self.unacknowledged, self._queue)

    def check(self, operation: QueuedWrite) -> None:
        """Raise the error by which `operation` is to be refused now, if there is one."""
        if self.error is not None:
            raise writer_failed_error(self._name, self.error)
        self.unawaited.raise_failure("; this record was not written")
        if self.sealed:
            raise EndOfStreamError("the log is sealed; the record was not written", log=self._name)
        if self._settings.fail_fast and (self._transition is not None):
            raise StreamNotReadyError(
                "a segment is being started; the record was not taken", log=self._name, advice="Try again"
            )
        operation.check()
        if self._settings.max_id_sanity_check:
            operation.check_follows(self.last_txid, self._name)
        self.limits.check(self._settings, operation, self.unacknowledged, self._queue)

    def take(self, operation: QueuedWrite) -> None:
        """Issue or queue `operation`, which was checked."""
        if not self._lock.held:
            # The write goes on: fencing and versions give safety. Only a confirmed loss stops the writer.
            self.ownership.look()
        self.last_txid = max(self.last_txid, operation.last_txid)
        # Past the queue only where nothing is in line: records keep the order in which they were accepted (I4).
        waits = self._transition is not None or bool(self._queue)
        step = None if waits else self._obstacle(operation)
        if waits or step is not None:
            self._queue.add(operation)
            if step is not None:
                self._begin(step)
        else:
            self._issue(operation)
        self.limits.count(self.unacknowledged)

    def _obstacle(self, operation: QueuedWrite) -> Callable[[], Awaitable[None]] | None:
        """Return the transition without which `operation` cannot go into the current segment; None if it can, or need
        not."""
        usable = self.sequence.usable
        if (usable and self.sequence.takes(operation.records)) or operation.is_answered():
            return None
        return self._roll if usable else self._start

    def _issue(self, operation: QueuedWrite) -> None:
        """Hand `operation` to the current segment; roll if it was the segment's last."""
        segment = self.sequence.current
        if operation.is_answered():
            return
        if segment is None:
            raise InvariantViolation("a record was issued without a segment", log=self._name)
        if self.requests is not None and segment.snapshot_is_due():
            segment.write_snapshot(self.requests.snapshot(self._settings.producer_expiry_s))
        operation.number(self._next_txid())
        operation.issue(segment)
        if segment.error is None:
            self._issued_txid = max(self._issued_txid, segment.highest_txid)
            self.last_txid = max(self.last_txid, self._issued_txid)
        if self.sequence.roll_is_due():
            self._begin(self._roll)

    def _next_txid(self) -> int:
        """Return the id of records that came without: the time, but never below the log's highest (I4)."""
        return max(self._services.clock.now_ms(), self._issued_txid)

    def _issue_queued(self) -> None:
        while self._queue and self._transition is None and self.error is None:
            step = self._obstacle(self._queue.first)
            if step is not None:
                self._begin(step)
                return
            self._issue_late(self._queue.take())
        if self._push_late and not self._queue and self._transition is None:
            self._push_late = False
            self.push()

    def _issue_late(self, operation: QueuedWrite) -> None:
        """Hand over what had to wait, with the time since when it waited."""
        segment = self.sequence.current
        self._measures.log_writer_pending_request_dispatch.inc()
        if segment is not None:
            segment.waiting_since = self._queue.since
        try:
            if self._settings.max_id_sanity_check:
                # Again: what was accepted before it was not certain to be written, or recovery found more than was.
                operation.check_follows(self._issued_txid, self._name)
            self._issue(operation)
        except TransactionIdOutOfOrderError as error:
            operation.fail(error)
            self.send_due()  # The last record of a bulk sends the others, and it may be this one.
        finally:
            if segment is not None:
                segment.waiting_since = None

    # ------------------------------------------------------------------ transitions

    def _begin(self, step: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        self._transition = self._loop.create_task(self._transit(step))
        return self._transition

    async def _transit(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run one transition to its end; afterwards the queue is issued, or refused if the writer has failed."""
        try:
            await step()
            self._measure_waiting(True)
        except DistributedLogError as error:
            self._measure_waiting(False)
            self.fail(error)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            # Before the queue is issued: a queued record may need the next transition. After a failure it is empty.
            self._transition = None
            self._issue_queued()

    def _measure_waiting(self, success: bool) -> None:
        if self._queue:
            self._measures.log_writer_get_writer.record(self._loop.time() - self._queue.since, success)

    async def run_transition(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` as the writer's transition, after any other, and wait for it."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self.error is None:
            await asyncio.wait([self._begin(step)])
        self.raise_failure()

    async def _start(self) -> None:
        """Start a segment for the first queued record: for the first time, or after a segment that failed."""
        highest = await self.sequence.give_up_failed()
        if highest is not None:
            self._adopt(highest)
            if self.requests is not None:
                # Of what was under way, recovery has decided what the log keeps: only the log knows.
                await self._learn_requests(highest)
        if self._queue:
            first = self._queue.first
            first.number(self._next_txid())  # for good: nothing is issued before it
            await self.sequence.start(first.first_txid if first.first_txid >= 0 else max(self._issued_txid, 0))
            self._on_segment()

    def request_log(self) -> RequestLog:
        """Return the log of requests. Raises CallerError for a writer without producers."""
        if self.requests is None:
            raise CallerError(
                "the writer was opened without producers; nothing was written",
                log=self._name,
                advice="Open it with open_writer(producers=True)",
            )
        return self.requests

    async def _learn_requests(self, highest: int) -> None:
        """Read what the log says of its producers: all its segments have their end, the last one at `highest`."""
        known = await read_producers(self._services, self._transitions, self._settings, gaps_allowed=self._gaps_allowed)
        self.requests = RequestLog(known.producers, known.last, highest, known.time)
        self._transitions.note_producers(known.whole, known.producers.losses)

    def only_snapshot(self) -> int | None:
        """Return from which segment on the log has its only whole snapshot of producers; None where ours is stored,
        too."""
        segment = self.sequence.current
        stored = segment is not None and segment.has_snapshot
        return None if stored else self._transitions.whole_snapshot

    def _segment_begun(self, segment: SegmentWriter, first_sequence_id: int | None) -> None:
        """Note that a segment begins with a snapshot of the log's producers, before any request that it does not
        hold."""
        if self.requests is not None:
            self.requests.begin_segment(segment, first_sequence_id)
            segment.write_snapshot(self.requests.snapshot(self._settings.producer_expiry_s))

    def _adopt(self, highest: int) -> None:
        """Go on from the log's highest transaction id, as recovery found it."""
        # Records of a failed segment count only as far as recovery found them: the others are not in the log.
        self.last_txid = self._issued_txid = self._recovered_txid = highest
        if highest == MAX_TXID:
            self.sealed = True
            self._queue.refuse(EndOfStreamError("the log is sealed; the record was not written", log=self._name))
        self.last_txid = max(self.last_txid, self._queue.last_txid)

    async def _roll(self) -> None:
        def must() -> bool:
            return bool(self._queue) and self._obstacle(self._queue.first) is not None

        if await self.sequence.roll(must, idle=lambda: not self._queue):
            self._on_segment()

    def _slot_ended(self) -> bool:
        """Roll a segment whose slot of cold storage is over, though no record comes; returns whether that is settled:
        it has begun, or there is nothing to roll."""
        if self.error is not None or not self.sequence.waits_to_roll:
            return True
        if self._transition is None and not self._queue and self.sequence.roll_is_due():
            self._begin(self._roll)
            return True
        return False

    async def settle(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> None:
        """Run `action` on the segment that has everything taken up to now. Raises what was not written or stored."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        self.raise_failure()
        segment = self.sequence.current
        if segment is not None:
            try:
                await action(segment)
            except DistributedLogError:
                await asyncio.sleep(0)  # The futures of the records that failed with it are settled by then.
                self.unawaited.forget()
                raise
        self.unawaited.raise_failure()

    # ------------------------------------------------------------------ failing

    def _segment_acknowledged(self, highest_txid: int) -> None:
        self.acknowledged_txid = max(self.acknowledged_txid, highest_txid)
        self.limits.count(self.unacknowledged)

    def _segment_failed(self, cause: BaseException) -> None:
        """Note that an entry was not acknowledged: this writer fails, or (by setting) starts over with the next
        record."""
        self.limits.count(self.unacknowledged)
        if self.requests is not None:
            self.requests.failed = True
        # What was not acknowledged may not be in the log: recovery decides, and until then it keeps no record out.
        self._issued_txid = max(self.acknowledged_txid, self._recovered_txid)
        self.last_txid = max(self._issued_txid, self._queue.last_txid)
        if self._settings.disable_rolling_on_error:
            self.fail(cause)

    def fail(self, cause: BaseException) -> None:
        """End the writer with its first failure: later writes are refused, and so is what waits in the queue."""
        cause = explain_failure(self._name, cause)
        if self.error is None:
            self.error = cause
            self.ownership.end()
            self._on_failed(cause)
            if isinstance(cause, InvariantViolation):
                self._measures.alerts.inc()
        self._queue.refuse(writer_failed_error(self._name, self.error))
        if self.sequence.current is not None:
            self.sequence.current.cancel(cause)
        self.limits.count(self.unacknowledged)

    def raise_failure(self) -> None:
        """Raise a WriteError if the writer has failed."""
        if self.error is not None:
            raise step_failed_error(self._name, self.error)

    async def flush_last(self, segment: SegmentWriter) -> None:
        """Flush a segment that is closed, and is not rolled any more. The next owner finds the producers at its end: it
        may wait for the log now, and reads what is behind the newest snapshot before it writes."""
        self.sequence.slots.stop()
        behind = segment.since_snapshot
        if self.requests is not None and segment.error is None and behind >= self._settings.first_scan_entries:
            segment.write_snapshot(self.requests.snapshot(self._settings.producer_expiry_s))
        await segment.flush()

    async def abort(self) -> None:
        """Refuse what waits, and drop what is buffered; the segment stays in progress."""
        cause = WriteCancelledError("the writer was aborted; the record was not sent", log=self._name)
        transition = self._transition
        if self.error is None:
            self.error = cause
        self._queue.refuse(cause)
        if self.sequence.current is not None:
            self.sequence.current.cancel(cause)
        if transition is not None:
            # A transaction under way is not cut off: whether it was applied would stay unknown.
            await asyncio.wait([transition])
