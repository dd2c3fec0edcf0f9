"""Publishing a batch: one conditional multi makes every segment of it visible, or none.

What the multi holds, and what each part keeps true:

| operation | refuses |
|---|---|
| set the sink's state | a sink that is gone; one that an older dlspark has published through since it was read |
| set or create the sink's mark in each log, at the version read | a second publication of the batch into that log, |
| | by any driver (I9, D13, D15) |
| delete each winner's listing, at version 0 | a ledger that a sweep has condemned |
| delete each log's lock member | publishing after the lock was lost; the lock is given up by it |
| create each completed segment's znode | an LSSN that another writer took |
| set `ledgers` and `maxtxid` of each log, at the versions read | a log that moved between reading and publishing (I7) |

Fault model: the process may die anywhere (the ledgers it leaves are listed, and a later commit sweeps them); an answer
may be lost, so after an unknown outcome the marks are read again, and they alone say what happened.
A request whose answer was lost may even be applied later, after the marks were read: then the retry fails on a mark's
version, and the next reading finds our own attempt there.

Marks, logs' ends and listings are read in the same round trip as the locks are taken in, and the multi is the next one.
That is as safe as one after the other: the multi checks the version of everything that was read, a log's segments are
known to belong to its versions (`NamespaceLogs`), and the lock's own member distinguishes a log from another one that
was made in its place since.

A batch is published into those of its logs that do not have it yet (`progress`), into all of them in one multi (D16).
Only a log's mark says whether it has the batch; segments are never compared (D14). A mark that is not the whole truth,
because batches were appended to the log, is settled first (I20: `owned_log`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.errors import (
    BatchRefusedError,
    LogBusyError,
    PublishContendedError,
    PublishUnknownError,
    ReplayDiffersError,
)
from dlspark.spark.sink.batch_rules import (
    BatchProgress,
    CommitOutcome,
    batch_swept_error,
    check_above,
    judge,
    judge_job,
    log_sealed_error,
    old_logs,
    replay_differs_error,
)
from dlspark.spark.sink.messages import JobId, Publication, StagedSegment, order_segments
from dlspark.spark.sink.segments.leftovers import settled_by
from dlspark.spark.sink.segments.log_access import HeldLog, LockedLogEnd, NamespaceLogs
from dlspark.spark.sink.segments.merging import check_raised_size, plan_merges, plan_raises
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.locks import LockingError
from metadata.distributedlog.log_names import LogEnd
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import LogMark, SinkState, history_kept
from metadata.distributedlog.sinks import JOB_PREFIX, SinkStore, StagedLedger
from metadata.foundation import fault_points
from metadata.foundation.errors import (
    BadVersionError,
    InvariantViolation,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from metadata.store import Create, MetadataStore, Op, SetData
from storage_node.edge import Clock, SystemClock

MAX_MULTI_BYTES = 900_000
"""Bound of one publishing multi. ZooKeeper refuses requests above 1 MiB - 1 and closes the connection, which would look
like an unknown outcome each time; so the size is checked before anything is sent."""
_OP_OVERHEAD_BYTES = 64
SURELY_FITS = 100
"""So few segments fit into a multi whatever their logs are called."""
_LOCK_NAME_BYTES = 100

ENDS_AT_ONCE = 16
"""Logs whose ends are read, and recovered if need be, at the same time."""
LOCKS_AT_ONCE = 64
REWRITES_AT_ONCE = 16
"""Ledgers that are written again at the same time."""
PUBLISH_DEADLINE_S = 120.0
MAX_CONFLICTS = 20
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_LONGEST = LockedLogEnd(LogEnd(Versioned(0, 0), Versioned(0, 0)), 2**31, 2**53)
"""The end of a log whose numbers take more digits than any log's will."""

_log = logging.getLogger(__name__)

Settle = Callable[[str, str], Awaitable[None]]


@dataclass(slots=True)
class _Publishing:
    """A batch over the tries to publish it: what was merged for one try is not merged again for the next."""

    given: Publication
    """As the tasks made it: what its logs' marks are held against."""
    skip_differing: bool
    publication: Publication = field(init=False)
    """The batch that the next try publishes: `given`, with the merges of the tries before."""
    open: tuple[str, ...] = ()
    """The logs that lacked it at the last look."""
    warned: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.publication = self.given


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of publishing a batch.

    `left`: ledgers that the publication has settled and not taken, as listed when it began: garbage of failed attempts
    and of its own. None: they were not listed.
    """

    outcome: CommitOutcome
    left: tuple[StagedLedger, ...] | None = None


class Publisher:
    """Publishes batches, one at a time, for the driver."""

    def __init__(
        self,
        store: MetadataStore,
        sinks: SinkStore,
        logs: NamespaceLogs,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        deadline_s: float = PUBLISH_DEADLINE_S,
        settle: Settle | None = None,
    ) -> None:
        """Make a publisher.

        Args:
            store: the metadata store, for the one multi.
            sinks: the sinks of the namespace, their listings and marks.
            logs: the logs of the namespace.
            clock: shows the time that segments carry; None: the system's.
            rng: spreads the pauses between tries.
            deadline_s: how long a publication is tried where the metadata store is out of reach.
            settle: `settle(log, sink id)` makes a mark say everything that is not the whole truth, because batches of
                the sink were appended to the log (I20); None: no batches are.
        """
        self._store = store
        self._sinks = sinks
        self._logs = logs
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._deadline_s = deadline_s
        self._settle = settle

    async def publish(self, publication: Publication, *, skip_differing: bool = False) -> Commit:
        """Make the batch visible, whole and once in each of its logs (I9).

        Raises BatchRefusedError (and its leaves), LogBusyError, BatchSweptError or PublishContendedError with nothing
        visible, or PublishUnknownError if the metadata store stayed out of reach. ReplayDiffersError: a log's mark has
        reached the number, and nothing shows that the log has these rows. With `skip_differing` such logs are left out
        with a warning, and the others get the batch.
        """
        batch = _Publishing(publication, skip_differing)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._deadline_s
        conflicts = 0
        pause_s = _FIRST_PAUSE_S
        unknown = False
        while True:
            try:
                return await self._try(batch)
            except ReplayDiffersError:
                raise  # the marks refuse the batch, and marks only grow
            except (BatchRefusedError, LogBusyError, BadVersionError, NodeExistsError, NoNodeError) as error:
                if isinstance(error, BatchRefusedError | LogBusyError):
                    # What refuses the batch may be the batch itself, published by another driver while we looked: into
                    # all of its logs, or into some, whose ids are above the batch's now.
                    before = batch.open
                    progress = await self._progress(batch)
                    if progress.outcome is not None:
                        return Commit(progress.outcome)
                    if progress.open == before:
                        raise
                # A lost race is tried again with everything read anew: nothing of this try is visible (I9).
                conflicts += 1
                if conflicts > MAX_CONFLICTS:
                    raise PublishContendedError(
                        f"{conflicts} races for the logs of {publication.job} were lost ({error}); nothing is visible",
                        advice="Let one query write a log at a time, then run the batch again",
                    ) from error
            except (OutcomeUnknownError, MetadataUnavailableError, LockingError) as error:
                # The next try begins with the marks. If the multi was applied they show this attempt, and it succeeds.
                unknown = unknown or isinstance(error, OutcomeUnknownError)
                if clock() + pause_s > deadline:
                    raise self._gave_up_error(publication, error, unknown) from error
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _gave_up_error(
        self, publication: Publication, error: Exception, unknown: bool
    ) -> PublishUnknownError | MetadataUnavailableError:
        silence = f"ZooKeeper did not answer for {self._deadline_s:.0f} s while {publication.job} was published"
        # One request whose answer was lost is enough, however the later ones failed: it may still be applied.
        if unknown:
            return PublishUnknownError(
                f"{silence}: it is visible whole or not at all ({error})",
                advice="Start the query again from its checkpoint, or repeat the write with the same txnVersion",
            )
        return MetadataUnavailableError(f"{silence}: nothing is visible ({error})", advice="Run it again")

    async def _progress(self, batch: _Publishing) -> BatchProgress:
        """Return how far the batch is published by now. Raises ReplayDiffersError, PublishContendedError,
        BatchSweptError."""
        progress = await self._look(batch)
        batch.open = progress.open
        return progress

    async def _look(self, batch: _Publishing) -> BatchProgress:
        publication = batch.given
        job = publication.job
        if job.sink_id.startswith(JOB_PREFIX):
            return judge_job(publication, await self._read_state(job))
        logs = publication.logs or list(publication.known)
        state, marks = await asyncio.gather(self._read_state(job), self._read_marks(job, logs))
        asked = old_logs(publication, state.value, marks)
        histories = dict(zip(asked, await asyncio.gather(*map(self._logs.history, asked)), strict=True))
        progress = judge(publication, state, marks, histories)
        if progress.differing and not batch.skip_differing:
            raise replay_differs_error(publication, progress)
        if progress.differing and progress.differing != batch.warned:
            batch.warned = dict(progress.differing)
            _log.warning("skipped, because failOnDataLoss is false: %s", replay_differs_error(publication, progress))
        # The tasks wrote no rows for these logs, because the logs had the batch. If they lack it now, publishing would
        # leave those rows out.
        gone = {log for log, _ in publication.covered} & set(progress.open)
        if gone:
            raise PublishContendedError(
                f"The log had {job} when its tasks looked, and has not now: it was deleted, or another one has its "
                "name; nothing of the batch was published now",
                log=min(gone),
                advice="Run the batch again: it is written into the log that is there",
            )
        return progress

    async def _read_state(self, job: JobId) -> Versioned[SinkState]:
        state = await self._sinks.read(job.sink_id)
        if state is None:
            # Only a sweep of abandoned jobs removes a sink; its ledgers were condemned before. It must not be created
            # again here, or a zombie's publication would start a new life.
            raise batch_swept_error(job)
        return state

    async def _read_marks(self, job: JobId, logs: Sequence[str]) -> dict[str, Versioned[LogMark]]:
        """Return the sink's marks in those logs that have one, all asked at once."""

        async def read(log: str) -> Versioned[LogMark] | None:
            paths = await self._logs.paths(log)
            return None if paths is None else await self._sinks.mark_in(paths, job.sink_id)

        found = await asyncio.gather(*map(read, logs))
        return {log: mark for log, mark in zip(logs, found, strict=True) if mark is not None}

    async def _try(self, batch: _Publishing) -> Commit:
        """Try to publish once; raises what that failed with."""
        settled = await self._prepared(batch)
        if settled is not None:
            return Commit(settled)
        job, logs = batch.given.job, batch.given.logs
        # Listed before the publication instead of after it: what comes meanwhile is listed for the next commit.
        listing = asyncio.ensure_future(self._sinks.staged(job.sink_id))
        try:
            async with AsyncExitStack() as stack:
                progress, held = await self._begin(batch, stack)
                if progress.outcome is not None:
                    return Commit(progress.outcome)
                winners = await self._decide(batch, progress, held)
            return Commit(CommitOutcome.PUBLISHED, _left(job, logs, listing, winners))
        finally:
            await end_tasks([listing], drop_errors=True)

    async def _prepared(self, batch: _Publishing) -> CommitOutcome | None:
        """Check the batch, create missing logs, merge what is too much. The outcome if there is one already."""
        by_log = batch.publication.by_log()
        for log, segments in by_log.items():
            order_segments(log, segments)
        unknown = [log for log in by_log if not self._logs.known(log)]
        if not unknown and len(batch.publication.segments) <= SURELY_FITS:
            return None
        # Nothing is created or written for what was published before.
        progress = await self._progress(batch)
        if progress.outcome is None:
            await for_each([log for log in unknown if log in progress.open], ENDS_AT_ONCE, self._logs.prepare)
            batch.publication = await self._merged(batch, progress)
        return progress.outcome

    async def _begin(self, batch: _Publishing, stack: AsyncExitStack) -> tuple[BatchProgress, list[HeldLog]]:
        """Read the marks and lock the logs, all asked at once; it waits for no lock where the logs have the batch.

        The marks that the multi is conditional on need not be read under the locks: if one has moved by then, the multi
        fails. An earlier try of ours that is still under way does no harm either: it is conditional on the same
        versions of the marks, or older ones, so either it fails or this try does. After a wait for a lock the marks are
        read again: the other owner was probably another driver's commit, perhaps of this batch.
        """
        logs = tuple(batch.publication.by_log())
        locking = asyncio.ensure_future(self._lock(logs, stack))
        try:
            progress = await self._progress(batch)
            if progress.unsettled and not logs:
                await self._settle_all(batch.given.job, progress.unsettled)
            if progress.outcome is not None:
                return progress, []
            held = await locking if progress.open == logs else None
        finally:
            await end_tasks([locking], drop_errors=True)
        if held is not None and not progress.unsettled and all(one.at_once for one in held):
            return progress, held
        if held is None:
            await stack.aclose()  # the locks of logs that have the batch are not needed
            held = await self._lock(progress.open, stack)
        again = await self._progress(batch)
        if again.outcome is None and again.open != progress.open:
            # The locks that are held, and the rows that are left to publish, belong to other logs: begin again.
            raise BadVersionError("the batch was published into some of its logs meanwhile")
        if again.outcome is None and again.unsettled:
            # Its owner would have settled it before it gave the lock up: it died. Settling takes the lock, too.
            await stack.aclose()
            await self._settle_all(batch.given.job, again.unsettled)
        return again, held

    async def _settle_all(self, job: JobId, logs: Sequence[str]) -> None:
        """Have the marks say everything, then begin again: raises BadVersionError."""
        if self._settle is None:
            raise InvariantViolation("a batch was appended to a log of a sink that appends none")
        for log in logs:
            await self._settle(log, job.sink_id)
        raise BadVersionError("the marks are read again: batches were appended to the log")

    async def _lock(self, logs: Sequence[str], stack: AsyncExitStack) -> list[HeldLog]:
        """Lock the logs: all at once if they are free; else sorted and one by one, so that two commits over the same
        logs cannot wait for each other."""
        if len(logs) > 1:
            held: dict[str, HeldLog] = {}
            attempt = await stack.enter_async_context(AsyncExitStack())

            async def take(log: str) -> None:
                held[log] = await attempt.enter_async_context(self._logs.hold(log, wait=False))

            try:
                await for_each(logs, LOCKS_AT_ONCE, take)
                return [held[log] for log in logs]
            except LogBusyError:
                # No lock may be held during a wait for another one out of order.
                await attempt.aclose()
        return [await stack.enter_async_context(self._logs.hold(log)) for log in logs]

    async def _decide(self, batch: _Publishing, progress: BatchProgress, held: Sequence[HeldLog]) -> list[StagedLedger]:
        """Find the logs' ends and send the multi; what it has published."""
        reading = self._find_ends(held)
        try:
            ends = dict(zip((one.log for one in held), await asyncio.gather(*reading), strict=True))
        finally:
            # None of them may go on without the locks: recovering a log writes to it (I7).
            await end_tasks(reading, drop_errors=True)
        publication = await self._raised(batch.publication.only(progress.open), ends)
        by_log = publication.by_log()
        winners = [publication.job.staged(one.ledger_id, one.log) for one in publication.segments]
        ops = await self._sink_ops(batch.given, progress, ends, winners)
        # The winners' tokens stand right behind the sink's state: `_multi` finds a lost token by its index.
        # Any version of the lock's member: that it exists is the lock. Nothing is done under it after this.
        ops += [one.unlock for one in held]
        for log, end in ends.items():
            ops += self._logs.publish_ops(log, end, self._complete_segments(log, by_log[log], end))
        check_size(publication, ops)
        fault_points.reach("sink.before-publish")
        await self._multi(batch, progress, ops, winners)
        for one in held:
            one.lock.deleted(one.unlock)
        fault_points.reach("sink.applied")
        return winners

    async def _sink_ops(
        self, given: Publication, progress: BatchProgress, logs: Iterable[str], winners: Iterable[StagedLedger]
    ) -> list[Op]:
        """Set the sink's state, take the winners' tokens, move the marks of these logs.

        A batch write's sink ends with its one publication, and leaves no marks.
        """
        job, rows, keep = given.job, given.rows_by_log, history_kept(len(progress.open))
        moved = progress.state.value.moved(job.batch, job.attempt, given.rows)
        ops = self._sinks.publish_ops(job.sink_id, progress.state, moved, winners)
        for log in () if job.sink_id.startswith(JOB_PREFIX) else logs:
            paths, found = await self._logs.paths(log), progress.marks.get(log)
            if paths is None:
                raise NoNodeError("the log was deleted meanwhile", log=log)
            # Conditional on the version that was read: of two drivers with one batch the second fails here (I9, D13).
            mark = (LogMark() if found is None else found.value).moved(job.batch, job.attempt, rows[log], keep)
            ops.append(self._sinks.mark_op(paths, job.sink_id, found, mark))
        return ops

    def _find_ends(self, held: Sequence[HeldLog]) -> list[asyncio.Task[LockedLogEnd]]:
        gate = asyncio.Semaphore(ENDS_AT_ONCE)

        async def find(one: HeldLog) -> LockedLogEnd:
            async with gate:
                return await one.find_end()

        return [asyncio.ensure_future(find(one)) for one in held]

    async def _multi(
        self, batch: _Publishing, progress: BatchProgress, ops: Sequence[Op], winners: Sequence[StagedLedger]
    ) -> None:
        try:
            await self._store.multi(ops)
        except (BadVersionError, NoNodeError) as error:
            index = error.op_index or 0
            if not 1 <= index <= len(winners):
                raise
            # A token is gone. Either our own multi was applied after all, or another driver published this batch and
            # swept our ledgers, or an abandoned job was swept: the marks know.
            again = await self._progress(batch)
            if again.open == progress.open and not again.unsettled:
                raise batch_swept_error(batch.given.job) from error
            raise

    async def _raised(self, publication: Publication, ends: dict[str, LockedLogEnd]) -> Publication:
        """Raise ids that no user gave and that would take a log back: a batch's own timestamp, which is one in each
        log, and times of rows.

        They were chosen when the job began, task by task. If another batch was published into the log since, with
        later ones, or times of two tasks overlap, the records have to be written again: ids are part of them.
        """
        by_log = publication.by_log()
        for log, end in ends.items():
            if end.highest_txid == MAX_TXID:
                raise log_sealed_error(log)
        late = [plan for log, end in ends.items() for plan in plan_raises(by_log[log], end.highest_txid)]
        check_raised_size(one for one, _ in late)
        again: dict[int, StagedSegment] = {}

        async def write_again(plan: tuple[StagedSegment, int]) -> None:
            segment, lowest = plan
            again[segment.ledger_id] = await self._logs.rewrite(publication, [segment], lowest)

        await for_each(late, REWRITES_AT_ONCE, write_again)
        segments = tuple(again.get(one.ledger_id, one) for one in publication.segments)
        return replace(publication, segments=segments)

    async def _merged(self, batch: _Publishing, progress: BatchProgress) -> Publication:
        """Return the batch with neighbouring segments of open logs merged until they fit into one multi; mostly as it
        is.

        Raises BatchRefusedError, with nothing visible, if that would take too much.
        """
        publication = batch.publication
        chosen = publication.only(progress.open)
        if len(chosen.segments) <= SURELY_FITS:
            return publication
        by_log = {log: order_segments(log, segments) for log, segments in chosen.by_log().items()}
        sizes, rest = self._sizes(chosen, by_log)
        rest += operations_size(await self._sink_ops(batch.given, progress, progress.open, []))
        size = sum(sizes.values()) + rest
        if size <= MAX_MULTI_BYTES:
            return publication
        runs = plan_merges(list(by_log.values()), size - MAX_MULTI_BYTES, lambda one: sizes[one.ledger_id])
        if runs is None:
            raise too_many_segments_error(chosen, size)
        segments = {segment.ledger_id: segment for segment in publication.segments}

        async def merge(run: list[StagedSegment]) -> None:
            merged = await self._logs.rewrite(publication, run)
            for segment in run:
                del segments[segment.ledger_id]
            segments[merged.ledger_id] = merged

        await for_each(runs, REWRITES_AT_ONCE, merge)
        return replace(publication, segments=tuple(segments.values()))

    def _sizes(self, publication: Publication, by_log: dict[str, list[StagedSegment]]) -> tuple[dict[int, int], int]:
        """Return what each segment takes in the multi (its listing's end, its znode), and what its logs take, at
        most."""
        job = publication.job
        sizes: dict[int, int] = {}
        rest = 0
        state = Versioned(SinkState(), 0)
        for log, segments in by_log.items():
            winners = (job.staged(one.ledger_id, log) for one in segments)
            tokens = self._sinks.publish_ops(job.sink_id, state, state.value, winners)
            znodes = self._logs.publish_ops(log, _LONGEST, self._complete_segments(log, segments, _LONGEST))
            for segment, token, znode in zip(segments, tokens[1:], znodes, strict=False):
                sizes[segment.ledger_id] = operations_size([token, znode])
            values = operations_size(znodes[len(segments) :])
            rest += values + values // 2 + _LOCK_NAME_BYTES  # the lock lies beside the two values
        return sizes, rest

    def _complete_segments(
        self, log: str, segments: Sequence[StagedSegment], end: LockedLogEnd
    ) -> list[SegmentMetadata]:
        """Return the batch's segments of one log as completed segments that continue it."""
        ordered = order_segments(log, segments)
        check_above(log, end.highest_txid, ordered[0])  # readers that go by transaction id rely on their order (I4)
        completed: list[SegmentMetadata] = []
        sequence_id = end.next_sequence_id
        now_ms = self._clock.now_ms()
        for lssn, segment in enumerate(ordered, end.next_lssn):
            completed.append(
                SegmentMetadata(
                    ledger_id=segment.ledger_id,
                    lssn=lssn,
                    first_txid=segment.first_txid,
                    last_txid=segment.last_txid,
                    completion_time_ms=now_ms,
                    record_count=segment.record_count,
                    last_entry=segment.last_entry,
                    last_slot=segment.last_slot,
                    start_sequence_id=sequence_id,
                    in_progress=False,
                )
            )
            sequence_id += segment.record_count
        return completed


def _left(
    job: JobId, logs: Iterable[str], listing: asyncio.Future[list[StagedLedger]], winners: Iterable[StagedLedger]
) -> tuple[StagedLedger, ...] | None:
    """Return what a publication has settled and not taken, of what was listed before it; None if the listing failed."""
    # No wait for a listing that is not there yet: the sweep reads it again, after the batch is visible.
    if not listing.done() or listing.cancelled() or listing.exception() is not None:
        return None
    taken = set(winners)
    return tuple(ledger for ledger in settled_by(job, logs, listing.result()) if ledger not in taken)


def operations_size(ops: Iterable[Op]) -> int:
    """Return what the operations take in a request, in bytes; never less than they do."""
    return sum(
        len(op.path) + _OP_OVERHEAD_BYTES + (len(op.data) if isinstance(op, Create | SetData) else 0) for op in ops
    )


def check_size(publication: Publication, ops: Sequence[Op]) -> None:
    """Raise BatchRefusedError if the multi would be too large for ZooKeeper; nothing has been sent then."""
    size = operations_size(ops)
    if size > MAX_MULTI_BYTES:
        raise too_many_segments_error(publication, size)


def too_many_segments_error(publication: Publication, size: int) -> BatchRefusedError:
    """Return the error for a batch that no multi can hold."""
    return BatchRefusedError(
        f"The {len(publication.segments)} segments in {len(publication.logs)} logs of {publication.job} are "
        f"too many to publish in one step ({size} bytes of at most {MAX_MULTI_BYTES}); nothing of it is visible",
        advice="Write with fewer tasks, df.coalesce(n), or fewer logs a batch: each task makes one segment a log",
    )
