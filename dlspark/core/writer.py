"""`AsyncLogWriter`: the one writer of a log: ownership, segments one after the other, records into the current one.

Opening takes the log's lock, then reads the versions that every later transaction is conditional on, then recovers
what a dead owner left in progress. The first write starts a segment. While a segment is being started or rolled
(a *transition*, one task at a time), records queue; when it ends they are issued in order.

    ready      records go straight into the segment's buffer
    transition records queue: starting (first write), rolling, starting over after a failed segment
    failed     nothing is taken any more; every queued record was refused with WriteError, definitely not written
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
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.dlsn import DLSN
from dlspark.core.operations import BatchWrite, EndOfStreamWrite, Operation, RecordWrite
from dlspark.core.owned_segments import OwnedSegments, release
from dlspark.core.records import MAX_POSITION, MAX_TXID
from dlspark.core.recovery import recover_segments
from dlspark.core.retention import Retention
from dlspark.core.segment_writer import SegmentWriter, WrittenEntry
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from dlspark.core.transitions import SegmentTransitions
from dlspark.errors import (
    AlreadyClosedError,
    DistributedLogError,
    EndOfStreamError,
    InvariantViolation,
    NotAppliedError,
    OverCapacityError,
    StreamNotReadyError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
    WriterDeposedError,
)
from metadata.errors import BadVersionError
from metadata.locks import DistributedLock, LockingError, OwnershipAcquireFailedError
from metadata.permissions import Action
from metadata.store import SessionState
from metadata.tasks import end_tasks

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 << 20
"""Payload bytes that may wait while a segment is being started; more are refused with OverCapacityError."""
LOCK_CHECK_S = 0.2
"""How often a lost lock is looked at while it is being taken again."""
_ADVICE_REOPEN = "Open the writer again, and write again from the first record that was not acknowledged"


def default_client_id() -> str:
    """How this process names itself in a lock: host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


class AsyncLogWriter:
    """Writes one log. Open it with `AsyncLog.open_writer`; all calls come from one event loop."""

    def __init__(
        self, services: Services, name: str, settings: Settings, lock: DistributedLock, transitions: SegmentTransitions
    ) -> None:
        """Used by `open`, which makes a writer ready for records."""
        self.name = name
        self.last_txid = -1
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        self.over_limit = 0
        """Writes beyond `perWriterOutstandingWriteLimit`: refused, or only counted in dark mode."""
        self._services = services
        self._settings = settings
        self._lock = lock
        self._transitions = transitions
        self.owned = OwnedSegments(services, name, lock)
        """The log's segments, as long as this writer has the lock."""
        self._retention = Retention(self.owned, lambda: self._settings, services.clock)
        self._loop = asyncio.get_running_loop()
        self._segment: SegmentWriter | None = None
        self._needs_recovery = False
        self._queue: deque[Operation] = deque()
        self._queued_records = 0
        self._queued_bytes = 0
        self._transition: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._sealed = False
        self._last_roll = self._loop.time()
        self._forget_session = services.store.on_session(self._session_changed)

    @classmethod
    async def open(
        cls, services: Services, name: str, settings: Settings, client_id: str | None = None
    ) -> AsyncLogWriter:
        """Become the log's owner and recover what the last one left.

        Raises OwnershipAcquireFailedError naming the owner, LogNotFoundError, and what recovery raises; the lock is
        not held then.
        """
        await services.logs.open(name)  # A missing log is an error of its own, not of its lock.
        paths = services.logs.paths(name)
        lock = DistributedLock(services.store, paths.lock, client_id or default_client_id())
        try:
            await lock.acquire(settings.lock_timeout_s * 1000)
            # Versions are read only now that the lock is held: read earlier, they could be the last owner's.
            transitions = SegmentTransitions(services, name, settings, await services.logs.open(name))
            writer = cls(services, name, settings, lock, transitions)
            try:
                await writer._recover()
            except BaseException:
                writer._forget_session()
                raise
            return writer
        except BaseException:
            await release(lock)
            raise

    def use_settings(self, settings: Settings) -> None:
        """Called when the log's dynamic settings change."""
        self._settings = settings
        self._transitions.use_settings(settings)
        if self._segment is not None:
            self._segment.use_settings(settings)

    # ------------------------------------------------------------------ for users

    def write(self, txid: int, payload: bytes | bytearray | memoryview) -> asyncio.Future[DLSN]:
        """Append one record; the future gets its DLSN once an ack quorum has it on disk.

        A record is sent when the buffer fills (`writerOutputBufferSize`), by the periodic flush, or by `flush`.
        Never raises: a refusal is the future's error. Await `wait_for_room` between writes to bound memory.
        """
        future: asyncio.Future[DLSN] = self._loop.create_future()
        self._accept(RecordWrite(txid, payload, future))
        return future

    def write_bulk(self, records: Iterable[tuple[int, bytes]]) -> list[asyncio.Future[DLSN]]:
        """Append records of (transaction id, payload), together where they fit.

        If one is refused, those after it are cancelled with WriteCancelledError without being tried.
        """
        futures: list[asyncio.Future[DLSN]] = []
        writes: list[RecordWrite] = []
        for txid, payload in records:
            futures.append(self._loop.create_future())
            writes.append(RecordWrite(txid, payload, futures[-1], may_transmit=False))
        if writes:
            writes[-1].may_transmit = True
        refused = False
        for write in writes:
            if refused:
                write.fail(WriteCancelledError("A record before it was refused; this one was not written"))
            else:
                refused = not self._accept(write)
        return futures

    def write_batch(self, txids: npt.NDArray[np.int64], payloads: pa.Array) -> asyncio.Future[tuple[WrittenEntry, ...]]:
        """Append records by columns, encoded at once into entries of their own and sent.

        The future gets the entries once all of them are stored. All records go into one segment. Never raises.
        """
        future: asyncio.Future[tuple[WrittenEntry, ...]] = self._loop.create_future()
        if len(txids) or len(payloads):
            self._accept(BatchWrite(txids, payloads, future))
        else:
            future.set_result(())
        return future

    async def wait_for_room(self) -> None:
        """Return when more may be written without piling up: back-pressure from storage nodes and transitions."""
        while self._transition is not None and self._queued_bytes > MAX_QUEUED_BYTES // 2:
            await asyncio.wait([self._transition])
        if self._segment is not None and self._segment.error is None and self._error is None:
            await self._segment.ledger.wait_for_room()

    async def send(self) -> None:
        """Send everything accepted without waiting for acknowledgement, only for a segment being started."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self._segment is not None:
            self._segment.send()

    async def flush(self) -> None:
        """Send everything accepted and wait until it is acknowledged. Raises what the failed records were given."""
        await self._when_settled(lambda segment: segment.flush())

    async def commit(self) -> None:
        """`flush`, and make every acknowledged record visible to readers."""
        await self._when_settled(lambda segment: segment.commit())

    async def mark_end_of_stream(self) -> DLSN:
        """Seal the log: nothing can ever follow. Completes the segment; the writer can then only be closed.

        Raises EndOfStreamError if it is sealed already. After an OutcomeUnknownError, open the writer again: sealed
        or not, that tells.
        """
        future: asyncio.Future[DLSN] = self._loop.create_future()
        if not self._accept(EndOfStreamWrite(future)):
            return await future
        self._sealed = True
        try:
            await self.flush()
        except BaseException:
            if future.done() and not future.cancelled():
                future.exception()  # Seen: flush has raised the same failure.
            raise
        dlsn = await future
        await self._run_transition(self._complete_current)
        return dlsn

    async def truncate(self, dlsn: DLSN | str) -> DLSN:
        """Hide every record below `dlsn`; see `AsyncLog.truncate`."""
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed; nothing was truncated", log=self.name)
        await self._services.permit(self.name, Action.TRUNCATE)
        return await self.owned.truncate(dlsn)

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
        """Records accepted and not yet acknowledged."""
        return self._queued_records + (self._segment.unacknowledged if self._segment is not None else 0)

    @property
    def segment(self) -> int | None:
        """Sequence number of the segment being written, None between segments."""
        return self._segment.metadata.lssn if self._segment is not None else None

    # ------------------------------------------------------------------ accepting

    def _accept(self, operation: Operation) -> bool:
        """Issue or queue `operation`, or fail it; False if it was refused."""
        try:
            self._check_writable()
            operation.check()
            self._check_order(operation)
            self._check_capacity(operation)
        except DistributedLogError as error:
            operation.fail(error)
            return False
        if not self._lock.held:
            # The write goes on: fencing and versions give safety. Only a confirmed loss stops the writer.
            self._check_ownership()
        self.last_txid = max(self.last_txid, operation.last_txid)
        step = self._obstacle(operation)
        if self._transition is None and not self._queue and step is None:
            self._issue(operation)
        else:
            self._queue.append(operation)
            self._queued_records += operation.records
            self._queued_bytes += operation.size
            if self._transition is None and step is not None:
                self._begin(step)
        return True

    def _check_writable(self) -> None:
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed; the record was not written", log=self.name)
        if self._error is not None:
            raise self._failed()
        if self._sealed:
            raise EndOfStreamError("the log is sealed; the record was not written", log=self.name)
        if self._settings.fail_fast and (self._transition is not None):
            raise StreamNotReadyError(
                "a segment is being started; the record was not taken", log=self.name, advice="Try again"
            )

    def _check_order(self, operation: Operation) -> None:
        if not self._settings.max_id_sanity_check:
            return
        operation.check_order()
        if operation.first_txid < self.last_txid:
            raise TransactionIdOutOfOrderError(
                f"transaction id {operation.first_txid} is below the log's highest, {self.last_txid}; "
                "the record was not written",
                log=self.name,
                advice="Write with ids that do not decrease, or set maxIdSanityCheck=false",
            )

    def _check_capacity(self, operation: Operation) -> None:
        limit = self._settings.outstanding_write_limit
        if limit > 0 and self.unacknowledged + operation.records > limit:
            self.over_limit += operation.records
            if not self._settings.write_limit_dark_mode:
                raise OverCapacityError(
                    f"{self.unacknowledged} records wait for acknowledgement, the limit is {limit}; "
                    "this one was not taken",
                    log=self.name,
                    advice="Wait for earlier writes, or raise perWriterOutstandingWriteLimit",
                )
        if self._queued_bytes + operation.size > MAX_QUEUED_BYTES and self._queue:
            raise OverCapacityError(
                f"{self._queued_bytes} bytes wait for a segment to be started; this record was not taken",
                log=self.name,
                advice="Await wait_for_room() between writes",
            )

    def _obstacle(self, operation: Operation) -> Callable[[], Awaitable[None]] | None:
        """The transition without which `operation` cannot go into the current segment; None if it can."""
        segment = self._segment
        if segment is None or segment.error is not None:
            return self._start
        if segment.position + operation.records > MAX_POSITION:
            return self._roll  # Positions are 31 bits wide; upstream would wrap to negative ones.
        return None

    def _issue(self, operation: Operation) -> None:
        """Hand `operation` to the current segment; roll if it was the segment's last."""
        segment = self._segment
        if segment is None:
            raise InvariantViolation("a record was issued without a segment", log=self.name)
        operation.issue(segment)
        if segment.error is None and self._roll_due(segment) and self._may_roll():
            self._begin(self._roll)

    def _issue_queued(self) -> None:
        while self._queue and self._transition is None and self._error is None:
            step = self._obstacle(self._queue[0])
            if step is not None:
                self._begin(step)
                return
            operation = self._queue.popleft()
            self._queued_records -= operation.records
            self._queued_bytes -= operation.size
            self._issue(operation)

    def _roll_due(self, segment: SegmentWriter) -> bool:
        settings = self._settings
        if segment.position == 0 or segment.last_txid == MAX_TXID:
            return False
        if settings.rolling_minutes > 0:
            return self._loop.time() - self._last_roll > 60 * settings.rolling_minutes
        return 0 < settings.max_segment_bytes < segment.ledger.length

    def _may_roll(self) -> bool:
        """Rolling is put off while the metadata store is out of reach, and while too many segments roll at once."""
        return self._services.store.state is SessionState.CONNECTED and self._services.permits.take()

    # ------------------------------------------------------------------ transitions

    def _begin(self, step: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        self._transition = self._loop.create_task(self._transit(step))
        return self._transition

    async def _transit(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run one transition to its end; afterwards the queue is issued, or refused if the writer has failed."""
        try:
            await step()
        except DistributedLogError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._transition = None
            self._issue_queued()

    async def _run_transition(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` as the writer's transition, after any other, and wait for it."""
        while self._transition is not None:
            await asyncio.wait([self._transition])
        if self._error is None:
            await asyncio.wait([self._begin(step)])
        self._raise_failure()

    async def _start(self) -> None:
        """Start a segment for the first queued record: for the first time, or after a segment that failed."""
        failed, self._segment = self._segment, None
        if failed is not None:
            self._needs_recovery = True
            await failed.abandon()
        if self._needs_recovery:
            await self._recover()
        if self._queue:
            await self._lock.ensure_held()
            metadata, ledger = await self._transitions.start(self._queue[0].first_txid)
            self._segment = SegmentWriter(ledger, metadata, self._settings, self._segment_failed)
            self._last_roll = self._loop.time()
            self._retention.begin()

    async def _recover(self) -> None:
        """Learn the log's state and give segments in progress their end. Only while the lock is held."""
        await self._lock.ensure_held()
        await self._transitions.load()
        await recover_segments(self._services, self._transitions, self._settings)
        self._needs_recovery = False
        known = [segment.last_txid for segment in self._transitions.segments]
        # Records of a failed segment do not count any more: recovery has told which of them the log keeps.
        self.last_txid = max([self._transitions.state.max_txid.value, -1, *known])
        if self.last_txid == MAX_TXID:
            self._sealed = True
            self._refuse_queue(EndOfStreamError("the log is sealed; the record was not written", log=self.name))
            return
        if self._queue:
            self.last_txid = max(self.last_txid, *(operation.last_txid for operation in self._queue))

    async def _roll(self) -> None:
        """Start the next segment, then complete the current one (section 5.8): readers may see both for a moment."""
        old = self._segment
        if old is None:
            return
        try:
            await old.flush()
        except TransmitError:
            if self._error is None:
                return  # By setting, the writer starts over instead of failing.
            raise
        try:
            await self._lock.ensure_held()
            metadata, ledger = await self._transitions.start(old.last_txid)
        except (WriterDeposedError, OwnershipAcquireFailedError, LockingError):
            raise
        except NotAppliedError as error:
            if self._queue and self._obstacle(self._queue[0]) is not None:
                raise
            # Nothing was started, the old segment is as good as before: go on with it and try again later.
            self._services.counters["roll-postponed"] += 1
            self._last_roll = self._loop.time()
            _log.warning("log %s: no new segment yet, going on with %s: %s", self.name, old.metadata.lssn, error)
            return
        self._segment = SegmentWriter(ledger, metadata, self._settings, self._segment_failed)
        self._last_roll = self._loop.time()
        try:
            await self._complete(old)
        except BaseException:
            await old.abandon()
            raise
        if not self._queue:
            # The ledger has to exist on storage nodes, or tailing readers would ask in vain.
            self._segment.write_control()
        self._retention.begin()

    async def _complete(self, segment: SegmentWriter) -> None:
        """Close the segment's ledger and record its end. After an error it stays in progress, for recovery."""
        await segment.close()
        await self._lock.ensure_held()
        await self._transitions.complete(
            segment.metadata,
            last_txid=segment.last_txid,
            record_count=segment.position,
            last_entry=segment.last_entry,
            last_slot=segment.last_slot,
        )

    async def _complete_current(self) -> None:
        if self._segment is not None:
            await self._complete(self._segment)
            self._segment = None

    async def _when_settled(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> None:
        """Run `action` on the segment that has everything accepted up to now."""
        if self._shutdown is not None:
            raise AlreadyClosedError("the writer is closed", log=self.name)
        await self._settle(action)

    async def _settle(self, action: Callable[[SegmentWriter], Awaitable[None]]) -> None:
        while self._transition is not None:
            await asyncio.wait([self._transition])
        self._raise_failure()
        segment = self._segment
        if segment is not None:
            await action(segment)

    # ------------------------------------------------------------------ failing

    def _segment_failed(self, cause: BaseException) -> None:
        """An entry was not acknowledged: this writer fails, or (by setting) starts over with the next record."""
        if self._settings.disable_rolling_on_error:
            self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        """The first failure is final: later writes are refused, and so is what waits in the queue."""
        if isinstance(cause, BadVersionError | OwnershipAcquireFailedError | LockingError):
            error = WriterDeposedError(
                f"another owner has the log: {cause.message}",
                log=self.name,
                advice="Open the writer again; it waits for the other owner or reports it",
            )
            error.__cause__ = cause
            cause = error
        if self._error is None:
            self._error = cause
            _log.warning("log %s: the writer failed: %s", self.name, cause)
        self._refuse_queue(self._failed())
        if self._segment is not None:
            self._segment.cancel(cause)

    def _refuse_queue(self, error: DistributedLogError) -> None:
        queue, self._queue = self._queue, deque()
        self._queued_records = self._queued_bytes = 0
        for operation in queue:
            operation.fail(error)

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._failed()

    def _failed(self) -> WriteError:
        kind = WriterDeposedError if isinstance(self._error, WriterDeposedError) else WriteError
        cause = self._error.message if isinstance(self._error, DistributedLogError) else repr(self._error)
        error = kind(
            f"The record was not written, the writer has failed: {cause}", log=self.name, advice=_ADVICE_REOPEN
        )
        error.__cause__ = self._error
        return error

    # ------------------------------------------------------------------ ownership

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._check_ownership()

    def _check_ownership(self) -> None:
        """Watch the lock being taken again; only when somebody else has it does the writer fail."""
        if self._watching is None and self._shutdown is None and self._error is None:
            self._watching = self._loop.create_task(self._watch_lock())

    async def _watch_lock(self) -> None:
        try:
            while self._error is None and not self._lock.held:
                await self._lock.ensure_held()
                await asyncio.sleep(LOCK_CHECK_S)
        except DistributedLogError as error:
            self._fail(error)
        finally:
            self._watching = None

    # ------------------------------------------------------------------ closing

    async def _shut_down(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` and release everything, once, whoever asks and even if the caller is cancelled."""
        if self._shutdown is None:
            self._shutdown = self._loop.create_task(self._release_after(step))
        await asyncio.shield(self._shutdown)

    async def _release_after(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        finally:
            self._forget_session()
            watching = self._watching
            if watching is not None:
                await end_tasks([watching])
            await self._retention.close()
            if self._segment is not None:
                await self._segment.abandon()
            await release(self._lock)

    async def _close(self) -> None:
        await self._settle(lambda segment: segment.flush())
        await self._run_transition(self._complete_current)

    async def _abort(self) -> None:
        cause = WriteCancelledError("the writer was aborted; the record was not sent", log=self.name)
        transition = self._transition
        if self._error is None:
            self._error = cause
        self._refuse_queue(cause)
        if self._segment is not None:
            self._segment.cancel(cause)
        if transition is not None:
            # A transaction under way is not cut off: half of it could not be told from none.
            await asyncio.wait([transition])
