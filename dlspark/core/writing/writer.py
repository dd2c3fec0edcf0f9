"""`AsyncLogWriter`: the one writer of a log: ownership, segments one after the other, records into the current one.

Opening takes the log's lock, then reads the versions that every later transaction is conditional on, then recovers
what a dead owner left in progress. The first write starts a segment. While a segment is being started or rolled
(a *transition*, one task at a time), records queue; when it ends they are issued in order.

    ready      records go straight into the segment's buffer
    transition records queue: starting (first write), rolling, starting over after a failed segment
    failed     nothing is taken any more; every queued record was refused with WriteError: definitely not written
    sealed     an end-of-stream record was written; nothing may follow
    closed     by `close` (the segment completed) or `abort` (the segment left for the next owner)

Fault model: storage nodes, metadata store and this process may fail at any await. Safety never rests on the lock: a
deposed writer is stopped by fencing (its adds fail, I5) and by versions (its transactions fail); the lock only keeps
owners from deposing each other all the time.

Each future ends in one of three ways: a DLSN (stored by an ack quorum), a NotAppliedError or CallerError (not
written), an OutcomeUnknownError (the next owner's recovery decides).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.lifecycle.deletion import Retention
from dlspark.core.lifecycle.owned_segments import OwnedSegments
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.append_requests import RequestLog
from dlspark.core.writing.appending import Appending
from dlspark.core.writing.failures import OwnershipWatch, UnawaitedFailures, explain_failure, writer_failed_error
from dlspark.core.writing.producer_recovery import read_producers
from dlspark.core.writing.queued_writes import EndOfStreamWrite, QueuedWrite, WriteLimits, WriteQueue
from dlspark.core.writing.record_runs import RecordRun
from dlspark.core.writing.segment_sequence import SegmentSequence
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.core.writing.write_lock import WriteLock, release, take_lock
from dlspark.errors import (
    AlreadyClosedError,
    EndOfStreamError,
    StreamNotReadyError,
    TransactionIdOutOfOrderError,
    WriteCancelledError,
)
from metadata.distributedlog.permissions import Action
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation
from metadata.foundation.opened_here import OnOneLoop

_log = logging.getLogger(__name__)


class AsyncLogWriter(OnOneLoop, Appending):
    """Writes one log. Open it with `AsyncLog.open_writer`; all calls come from one event loop."""

    def __init__(
        self, services: Services, name: str, settings: Settings, lock: WriteLock, transitions: SegmentTransitions
    ) -> None:
        """Used by `open`, which makes a writer ready for records."""
        self.name = name
        self.last_txid = -1
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        self._services = services
        self._settings = settings
        self._lock = lock
        self.owned = OwnedSegments(services, name, lock)
        """The log's segments, as long as this writer has the lock."""
        self._retention = Retention(
            self.owned, lambda: transitions.segments, lambda: self._settings, services.clock, self._only_snapshot
        )
        self._loop = asyncio.get_running_loop()
        self._transitions = transitions
        self._queue = WriteQueue()
        self._limits = WriteLimits(services, name)
        self._unawaited = UnawaitedFailures(name)
        self._sequence = SegmentSequence(
            services, settings, lock, transitions, self._segment_failed, self._segment_acknowledged
        )
        self._acknowledged_txid = self._recovered_txid = -1
        self._issued_txid = -1
        """Highest transaction id in the log or on its way into a segment: what waits in the queue does not count, for
        it may yet be refused."""
        self._transition: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._sealed = False
        self.on_failed: Callable[[BaseException], None] | None = None
        """Called once with the reason when the writer fails, also while nothing is written: it takes nothing more."""
        self._ownership = OwnershipWatch(services, lock, self._fail)
        self._requests: RequestLog | None = None
        self._gaps_allowed = False
        self._push_late = False
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
                writer._gaps_allowed = gaps_allowed
                highest = await writer._sequence.take_over(writer._learn_requests if producers else None)
                writer._adopt(highest)
                if producers:
                    writer._sequence.on_started = writer._segment_begun
            except BaseException:
                await writer._ownership.close()
                await writer._sequence.close()
                raise
            return writer
        except BaseException:
            await release(lock)
            raise

    def use_settings(self, settings: Settings) -> None:
        """Called when the log's dynamic settings change."""
        self._settings = settings
        self._sequence.use_settings(settings)
        if self._requests is not None:
            self._requests.producers.most = settings.max_producers

    # ------------------------------------------------------------------ for users

    async def wait_for_room(self) -> None:
        """Return when more may be written without piling up: back-pressure from storage nodes and transitions."""
        self._check_loop()
        while self._transition is not None and self._queue.crowded:
            await asyncio.wait([self._transition])
        segment = self._sequence.current
        if segment is not None and segment.error is None and self._error is None:
            await segment.ledger.wait_for_room()

    async def send(self) -> None:
        """Send everything accepted without waiting for acknowledgement, only for a segment being started."""
        self._check_loop()
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self._sequence.current is not None:
            self._sequence.current.send()

    def push(self) -> None:
        """Send everything accepted, and wait for nothing: what waits for a segment is sent once that has started."""
        self._check_loop()
        if self._transition is not None or self._queue:
            self._push_late = True
        elif self._sequence.current is not None:
            self._sequence.current.send()

    async def flush(self) -> int:
        """Send everything accepted and wait until it is acknowledged.

        Returns the highest transaction id that is acknowledged, -1 for none; MAX_TXID in a sealed log. Raises the error
        of the records that failed.
        """
        return await self._when_settled(lambda segment: segment.flush())

    async def commit(self) -> int:
        """`flush`, and make every acknowledged record visible to readers."""
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
        self._sealed = True  # Before the outcome is known: a record behind it could never be read.
        try:
            await self.flush()
        except BaseException:
            if future.done() and not future.cancelled():
                future.exception()  # Seen: flush has raised the same failure.
            if not self._sequence.usable:
                self._sealed = False  # Recovery says whether it is: before it nothing is written behind this record.
            raise
        dlsn = await future
        await self._run_transition(self._sequence.complete_current)
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
        await self._shut_down(self._abort)

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
        """Whether `close` or `abort` was called and has ended."""
        return self._shutdown is not None and self._shutdown.done()

    @property
    def unacknowledged(self) -> int:
        """Records accepted and not yet acknowledged; those of a failed segment never will be, and do not count."""
        segment = self._sequence.current
        return self._queue.records + (segment.unacknowledged if segment is not None and segment.error is None else 0)

    @property
    def over_limit(self) -> int:
        """Records over an outstanding-write limit: refused, or only counted in dark mode."""
        return self._limits.over_limit

    @property
    def segment(self) -> int | None:
        """Sequence number of the segment being written, None between segments."""
        segment = self._sequence.current
        return segment.metadata.lssn if segment is not None else None

    # ------------------------------------------------------------------ accepting

    def _send_due(self) -> None:
        if self._sequence.current is not None:
            self._sequence.current.send_due()

    def _takes_all(self, run: RecordRun) -> bool:
        in_order = not self._settings.max_id_sanity_check or (run.in_order and not 0 <= run.first_txid < self.last_txid)
        return in_order and self._limits.has_room(self._settings, run, self.unacknowledged, self._queue)

    def _accept(self, operation: QueuedWrite) -> bool:
        """Issue or queue `operation`, or fail it; False if it was refused."""
        try:
            self._check_writable()
            operation.check()
            if self._settings.max_id_sanity_check:
                operation.check_follows(self.last_txid, self.name)
            self._limits.check(self._settings, operation, self.unacknowledged, self._queue)
        except DistributedLogError as error:
            operation.fail(error)
            return False
        if not self._lock.held:
            # The write goes on: fencing and versions give safety. Only a confirmed loss stops the writer.
            self._ownership.look()
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
        self._limits.count(self.unacknowledged)
        return True

    def _check_writable(self) -> None:
        self._check_loop()
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed; the record was not written", log=self.name)
        if self._error is not None:
            raise writer_failed_error(self.name, self._error)
        self._unawaited.raise_failure("; this record was not written")
        if self._sealed:
            raise EndOfStreamError("the log is sealed; the record was not written", log=self.name)
        if self._settings.fail_fast and (self._transition is not None):
            raise StreamNotReadyError(
                "a segment is being started; the record was not taken", log=self.name, advice="Try again"
            )

    def _obstacle(self, operation: QueuedWrite) -> Callable[[], Awaitable[None]] | None:
        """The transition without which `operation` cannot go into the current segment; None if it can, or need not."""
        usable = self._sequence.usable
        if (usable and self._sequence.takes(operation.records)) or operation.is_answered():
            return None
        return self._roll if usable else self._start

    def _issue(self, operation: QueuedWrite) -> None:
        """Hand `operation` to the current segment; roll if it was the segment's last."""
        segment = self._sequence.current
        if operation.is_answered():
            return
        if segment is None:
            raise InvariantViolation("a record was issued without a segment", log=self.name)
        if self._requests is not None and segment.snapshot_is_due():
            segment.write_snapshot(self._requests.snapshot(self._settings.producer_expiry_s))
        operation.number(self._next_txid())
        operation.issue(segment)
        if segment.error is None:
            self._issued_txid = max(self._issued_txid, segment.highest_txid)
            self.last_txid = max(self.last_txid, self._issued_txid)
        if self._sequence.roll_is_due():
            self._begin(self._roll)

    def _next_txid(self) -> int:
        """The id of records that came without: the time, but never below the log's highest (I4)."""
        return max(self._services.clock.now_ms(), self._issued_txid)

    def _issue_queued(self) -> None:
        while self._queue and self._transition is None and self._error is None:
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
        segment = self._sequence.current
        self._measures.log_writer_pending_request_dispatch.inc()
        if segment is not None:
            segment.waiting_since = self._queue.since
        try:
            if self._settings.max_id_sanity_check:
                # Again: what was accepted before it was not certain to be written, or recovery found more than was.
                operation.check_follows(self._issued_txid, self.name)
            self._issue(operation)
        except TransactionIdOutOfOrderError as error:
            operation.fail(error)
            self._send_due()  # The last record of a bulk sends the others, and it may be this one.
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
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            # Before the queue is issued: a queued record may need the next transition. After a failure it is empty.
            self._transition = None
            self._issue_queued()

    def _measure_waiting(self, success: bool) -> None:
        if self._queue:
            self._measures.log_writer_get_writer.record(self._loop.time() - self._queue.since, success)

    async def _run_transition(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` as the writer's transition, after any other, and wait for it."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self._error is None:
            await asyncio.wait([self._begin(step)])
        self._raise_failure()

    async def _start(self) -> None:
        """Start a segment for the first queued record: for the first time, or after a segment that failed."""
        highest = await self._sequence.give_up_failed()
        if highest is not None:
            self._adopt(highest)
            if self._requests is not None:
                # Of what was under way, recovery has decided what the log keeps: only the log knows.
                await self._learn_requests(highest)
        if self._queue:
            first = self._queue.first
            first.number(self._next_txid())  # for good: nothing is issued before it
            await self._sequence.start(first.first_txid if first.first_txid >= 0 else max(self._issued_txid, 0))
            self._retention.begin()

    def _request_log(self) -> RequestLog:
        if self._requests is None:
            raise CallerError(
                "the writer was opened without producers; nothing was written",
                log=self.name,
                advice="Open it with open_writer(producers=True)",
            )
        return self._requests

    async def _learn_requests(self, highest: int) -> None:
        """Read what the log says of its producers: all its segments have their end, the last one at `highest`."""
        known = await read_producers(self._services, self._transitions, self._settings, gaps_allowed=self._gaps_allowed)
        self._requests = RequestLog(known.producers, known.last, highest, known.time)
        self._transitions.note_producers(known.whole, known.producers.losses)

    def _only_snapshot(self) -> int | None:
        """From which segment on the log has its only whole snapshot of producers; None where ours is stored, too."""
        segment = self._sequence.current
        stored = segment is not None and segment.has_snapshot
        return None if stored else self._transitions.whole_snapshot

    def _segment_begun(self, segment: SegmentWriter, first_sequence_id: int | None) -> None:
        """A segment begins with a snapshot of the log's producers, before any request that it does not hold."""
        if self._requests is not None:
            self._requests.begin_segment(segment, first_sequence_id)
            segment.write_snapshot(self._requests.snapshot(self._settings.producer_expiry_s))

    def _adopt(self, highest: int) -> None:
        """Go on from the log's highest transaction id, as recovery found it."""
        # Records of a failed segment count only as far as recovery found them: the others are not in the log.
        self.last_txid = self._issued_txid = self._recovered_txid = highest
        if highest == MAX_TXID:
            self._sealed = True
            self._queue.refuse(EndOfStreamError("the log is sealed; the record was not written", log=self.name))
        self.last_txid = max(self.last_txid, self._queue.last_txid)

    async def _roll(self) -> None:
        def must() -> bool:
            return bool(self._queue) and self._obstacle(self._queue.first) is not None

        if await self._sequence.roll(must, idle=lambda: not self._queue):
            self._retention.begin()

    async def _when_settled(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> int:
        """Run `action` on the segment that has everything accepted up to now."""
        self._check_loop()
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed", log=self.name)
        await self._settle(action)
        return self._acknowledged_txid

    async def _settle(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> None:
        while self._transition is not None:
            await asyncio.wait([self._transition])
        self._raise_failure()
        segment = self._sequence.current
        if segment is not None:
            try:
                await action(segment)
            except DistributedLogError:
                await asyncio.sleep(0)  # The futures of the records that failed with it are settled by then.
                self._unawaited.forget()
                raise
        self._unawaited.raise_failure()

    # ------------------------------------------------------------------ failing

    def _segment_acknowledged(self, highest_txid: int) -> None:
        self._acknowledged_txid = max(self._acknowledged_txid, highest_txid)
        self._limits.count(self.unacknowledged)

    def _segment_failed(self, cause: BaseException) -> None:
        """An entry was not acknowledged: this writer fails, or (by setting) starts over with the next record."""
        self._limits.count(self.unacknowledged)
        if self._requests is not None:
            self._requests.failed = True
        # What was not acknowledged may not be in the log: recovery decides, and until then it keeps no record out.
        self._issued_txid = max(self._acknowledged_txid, self._recovered_txid)
        self.last_txid = max(self._issued_txid, self._queue.last_txid)
        if self._settings.disable_rolling_on_error:
            self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        """The first failure is final: later writes are refused, and so is what waits in the queue."""
        cause = explain_failure(self.name, cause)
        if self._error is None:
            self._error = cause
            self._ownership.end()
            if self.on_failed is not None:  # Not now: records that fail with it are answered first.
                self._loop.call_soon(self.on_failed, cause)
            _log.warning(
                "log %s: the writer failed: %s", self.name, cause, extra=about(log=self.name, segment=self.segment)
            )
            if isinstance(cause, InvariantViolation):
                self._measures.alerts.inc()
        self._queue.refuse(writer_failed_error(self.name, self._error))
        if self._sequence.current is not None:
            self._sequence.current.cancel(cause)
        self._limits.count(self.unacknowledged)

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise writer_failed_error(self.name, self._error)

    # ------------------------------------------------------------------ closing

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
            await self._ownership.close()
            await self._retention.close()
            await self._sequence.close()
            self._limits.end()
            await release(self._lock, self._measures.lock_unlock)
            self._forget_gauge()

    async def _close(self) -> None:
        await self._settle(self._flush_last)
        # The lock goes with the end of the last segment, in one step, so that the next owner waits for one only. What
        # else may change the log ends before (I16).
        await self._ownership.close()
        await self._retention.close()
        await self._run_transition(self._sequence.complete_last)

    async def _flush_last(self, segment: SegmentWriter) -> None:
        """Flush a segment that is closed. The next owner finds the producers at its end: it may wait for the log now,
        and reads what is behind the newest snapshot before it writes."""
        behind = segment.since_snapshot
        if self._requests is not None and segment.error is None and behind >= self._settings.first_scan_entries:
            segment.write_snapshot(self._requests.snapshot(self._settings.producer_expiry_s))
        await segment.flush()

    async def _abort(self) -> None:
        cause = WriteCancelledError("the writer was aborted; the record was not sent", log=self.name)
        transition = self._transition
        if self._error is None:
            self._error = cause
        self._queue.refuse(cause)
        if self._sequence.current is not None:
            self._sequence.current.cancel(cause)
        if transition is not None:
            # A transaction under way is not cut off: whether it was applied would stay unknown.
            await asyncio.wait([transition])
