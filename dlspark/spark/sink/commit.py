"""Publishing a batch: one conditional multi makes every segment of it visible, or none.

What the multi holds, and what each part keeps true:

| operation | refuses |
|---|---|
| set the sink's mark, at the version read | a second publication of the batch, whoever tries it (I9, D13, D15) |
| delete each winner's listing, at version 0 | a ledger that a sweep has condemned |
| delete each log's lock member | publishing after the lock was lost; the lock is given up by it |
| create each completed segment's znode | an LSSN that somebody else took |
| set `ledgers` and `maxtxid` of each log, at the versions read | a log that moved between reading and publishing (I7) |

Fault model: the process may die anywhere (the ledgers it leaves are listed, and a later commit sweeps them); an answer
may be lost, so after an unknown outcome the mark is read again, and it alone says what happened.
A request whose answer was lost may even be applied later, after the mark was read: then the retry fails on the version
of the mark, and the next reading finds our own attempt there.

Mark, logs' ends and listings are read in the same round trip as the locks are taken in, and the multi is the next one.
That is no weaker than one after the other: what is built on is conditional in the multi by its version, a log's
segments are known to belong to its versions (`NamespaceLogs`), and the lock's own member tells a log from one that was
made in its place since.

Only the mark is asked whether the batch is published; parts are never published or compared one by one (D14, D16).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from dlspark.spark.sink.checks import check_above, check_replay, order_segments, sealed, swept
from dlspark.spark.sink.errors import (
    BatchRefusedError,
    LogBusyError,
    PublishContendedError,
    PublishUnknownError,
)
from dlspark.spark.sink.merge import plan_merges
from dlspark.spark.sink.messages import JobId, Publication, StagedSegment
from dlspark.spark.sink.schema import MAX_TXID
from dlspark.testing import faults
from metadata.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.ledgers import Versioned
from metadata.locks import DistributedLock, LockingError
from metadata.logs import LogEnd, SegmentMetadata
from metadata.sinks import Mark, SinkStore, StagedLedger
from metadata.store import Create, Delete, MetadataStore, Op, SetData
from metadata.tasks import end_tasks
from storage_node.edge import Clock, SystemClock

MAX_MULTI_BYTES = 900_000
"""Bound of one publishing multi. ZooKeeper refuses requests above 1 MiB - 1 and closes the connection, which would look
like an unknown outcome each time; so the size is checked before anything is sent."""
_OP_OVERHEAD_BYTES = 64
SURELY_FITS = 100
"""So few segments fit into a multi whatever their logs are called."""
_MARK_BYTES = 2048
_LOCK_NAME_BYTES = 100

TAILS_AT_ONCE = 16
"""Logs whose ends are read, and recovered if need be, at the same time."""
PUBLISH_DEADLINE_S = 120.0
MAX_CONFLICTS = 20
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0


class Outcome(Enum):
    """PUBLISHED: by this attempt. COVERED: the mark had reached the batch before, nothing was to be done."""

    PUBLISHED = "published"
    COVERED = "covered"


@dataclass(frozen=True, slots=True)
class LogTail:
    """Where a log ends, read under its write lock with no segment in progress."""

    state: LogEnd
    next_lssn: int
    next_sequence_id: int

    @property
    def highest_txid(self) -> int:
        return self.state.max_txid.value


_LONGEST = LogTail(LogEnd(Versioned(0, 0), Versioned(0, 0)), 2**31, 2**53)
"""The end of a log whose numbers take more digits than any log's will."""


@dataclass(slots=True)
class _Batch:
    """A batch over the tries to publish it: what was merged for one try is not merged again for the next."""

    publication: Publication


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log whose write lock is held.

    `unlock` gives up the very member that was acquired: the multi that has it fails if that one is gone, also where the
    lock was lost and won again. `at_once`: nobody was before us, so that what was asked right behind the lock was
    answered under it. `tail()` completes what a dead writer left in progress, then says where the log ends.
    """

    log: str
    lock: DistributedLock
    unlock: Delete
    at_once: bool
    tail: Callable[[], Awaitable[LogTail]]


@dataclass(frozen=True, slots=True)
class Commit:
    """What came of publishing a batch.

    `left`: ledgers that the publication has settled and not taken, as listed when it began: garbage of failed attempts
    and of its own. None: nobody has looked.
    """

    outcome: Outcome
    left: tuple[StagedLedger, ...] | None = None


class LogAccess(Protocol):
    """What publishing needs of the logs of a namespace."""

    def known(self, log: str) -> bool:
        """Whether `prepare` has nothing to ask."""
        ...

    async def prepare(self, log: str) -> None:
        """Create `log` if it is missing and may be created. Raises BatchRefusedError."""
        ...

    def hold(self, log: str) -> AbstractAsyncContextManager[HeldLog]:
        """Hold the log's write lock, until it is released within. Raises LogBusyError naming the owner."""
        ...

    def publish_ops(self, log: str, tail: LogTail, segments: Sequence[SegmentMetadata]) -> list[Op]:
        """Create the segments' znodes and move the log's two conditional values."""
        ...

    async def rewrite(
        self, publication: Publication, segments: Sequence[StagedSegment], txid: int | None
    ) -> StagedSegment:
        """Write the records of neighbouring segments of a log again, as one, to a new listed ledger.

        With `txid` (not None) in place of their ids. The old ledgers are left as they are.
        """
        ...


class Publisher:
    """Publishes batches, one at a time, for the driver."""

    def __init__(
        self,
        store: MetadataStore,
        sinks: SinkStore,
        logs: LogAccess,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        deadline_s: float = PUBLISH_DEADLINE_S,
    ) -> None:
        self._store = store
        self._sinks = sinks
        self._logs = logs
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._deadline_s = deadline_s

    async def publish(self, publication: Publication) -> Commit:
        """Make the batch visible, whole and once (I9).

        Raises BatchRefusedError (and its leaves), LogBusyError, BatchSweptError or PublishContendedError with nothing
        visible, or PublishUnknownError if the metadata store stayed out of reach. ReplayDiffersError: the mark covers
        the number, and what was published under it had another number of rows.
        """
        commit = await self._repeated(publication)
        if commit.outcome is Outcome.COVERED:
            check_replay(publication, (await self._read_mark(publication)).value)
        return commit

    async def _repeated(self, publication: Publication) -> Commit:
        """Try until the batch's fate is known."""
        batch = _Batch(publication)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._deadline_s
        conflicts = 0
        pause_s = _FIRST_PAUSE_S
        unknown = False
        while True:
            try:
                return await self._try(batch)
            except (BatchRefusedError, LogBusyError):
                # What refuses the batch may be the batch itself, published by another driver while we looked.
                settled = await self._settled(publication)
                if settled is None:
                    raise
                return Commit(settled)
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                conflicts += 1
                if conflicts > MAX_CONFLICTS:
                    raise PublishContendedError(
                        f"{conflicts} races for the logs of {publication.job} were lost ({error}); nothing is visible",
                        advice="Let one query write a log at a time, then run the batch again",
                    ) from error
            except (OutcomeUnknownError, MetadataUnavailableError, LockingError) as error:
                unknown = unknown or isinstance(error, OutcomeUnknownError)
                if clock() + pause_s > deadline:
                    raise self._gave_up(publication, error, unknown) from error
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _gave_up(
        self, publication: Publication, error: Exception, unknown: bool
    ) -> PublishUnknownError | MetadataUnavailableError:
        told = f"ZooKeeper did not answer for {self._deadline_s:.0f} s while {publication.job} was published"
        if unknown:
            return PublishUnknownError(
                f"{told}: it is visible whole or not at all ({error})",
                advice="Start the query again from its checkpoint, or repeat the write with the same txnVersion",
            )
        return MetadataUnavailableError(f"{told}: nothing is visible ({error})", advice="Run it again")

    async def _read_mark(self, publication: Publication) -> Versioned[Mark]:
        mark = await self._sinks.read(publication.job.sink_id)
        if mark is None:
            # Only a sweep of abandoned jobs removes a sink; its ledgers were condemned before. It must not be created
            # again here, or a zombie's publication would start a new life.
            raise swept(publication.job)
        return mark

    async def _settled(self, publication: Publication) -> Outcome | None:
        """What the mark says of the batch; None if it has not been published."""
        return _outcome(publication, await self._read_mark(publication))

    async def _try(self, batch: _Batch) -> Commit:
        """One attempt at the multi; raises what it failed with."""
        settled = await self._prepared(batch)
        if settled is not None:
            return Commit(settled)
        publication = batch.publication
        # Listed before the publication instead of after it: what comes meanwhile is listed for the next commit.
        listing = asyncio.ensure_future(self._sinks.staged(publication.job.sink_id))
        try:
            async with AsyncExitStack() as stack:
                mark, held = await self._begin(publication, stack)
                settled = _outcome(publication, mark)
                if settled is not None:
                    return Commit(settled)
                winners = await self._decide(publication, mark, held)
            return Commit(Outcome.PUBLISHED, _left(publication.job, listing, winners))
        finally:
            await end_tasks([listing], drop_errors=True)

    async def _prepared(self, batch: _Batch) -> Outcome | None:
        """Check the batch, create missing logs, merge what is too much. The outcome if there is one already."""
        publication = batch.publication
        for log in publication.logs:
            order_segments(log, publication.of_log(log))
        unknown = [log for log in publication.logs if not self._logs.known(log)]
        if not unknown and len(publication.segments) <= SURELY_FITS:
            return None
        # Nothing is created or written for a batch that was published before.
        settled = await self._settled(publication)
        if settled is None:
            for log in unknown:
                await self._logs.prepare(log)
            batch.publication = await self._merged(publication)
        return settled

    async def _begin(self, publication: Publication, stack: AsyncExitStack) -> tuple[Versioned[Mark], list[HeldLog]]:
        """Read the mark and lock the logs, all asked at once; no logs are locked if the mark covers the batch.

        The mark that the multi is conditional on need not be read under the locks: if it has moved by then, whoever
        moved it, the multi fails. Nor is anything in doubt of an earlier try of ours: what is still under way is
        conditional on the same version of the mark, or an older one, so it fails, or makes this try fail. After a wait
        for a lock it is read again: that was likely another driver's commit, perhaps of this batch.
        """
        locking = asyncio.ensure_future(self._lock(publication.logs, stack))
        try:
            mark = await self._read_mark(publication)
            if _outcome(publication, mark) is not None:
                return mark, []
            held = await locking
        finally:
            await end_tasks([locking], drop_errors=True)
        if not all(one.at_once for one in held):
            mark = await self._read_mark(publication)
        return mark, held

    async def _lock(self, logs: Sequence[str], stack: AsyncExitStack) -> list[HeldLog]:
        """Sorted and one by one, so that two commits over the same logs cannot wait for each other."""
        return [await stack.enter_async_context(self._logs.hold(log)) for log in logs]

    async def _decide(
        self, publication: Publication, mark: Versioned[Mark], held: Sequence[HeldLog]
    ) -> list[StagedLedger]:
        """Find the logs' ends and send the multi; what it has published."""
        reading = self._begin_tails(held)
        try:
            tails = dict(zip((one.log for one in held), await asyncio.gather(*reading), strict=True))
        finally:
            # None goes on without the locks: recovering a log writes to it.
            await end_tasks(reading, drop_errors=True)
        publication = await self._restamp(publication, tails)
        winners = [publication.job.staged(segment.ledger_id) for segment in publication.segments]
        moved = mark.value.moved(publication.job.batch, publication.job.attempt, publication.rows)
        ops = self._sinks.publish_ops(publication.job.sink_id, moved, mark.version, winners)
        # Any version: the node's existence is the lock. Nothing is done under it after this.
        ops += [one.unlock for one in held]
        for log, tail in tails.items():
            ops += self._logs.publish_ops(log, tail, self._place(publication, log, tail))
        check_size(publication, ops)
        faults.reach("sink.before-publish")
        await self._multi(publication, ops, winners)
        for one in held:
            one.lock.deleted(one.unlock)
        faults.reach("sink.applied")
        return winners

    def _begin_tails(self, held: Sequence[HeldLog]) -> list[asyncio.Task[LogTail]]:
        gate = asyncio.Semaphore(TAILS_AT_ONCE)

        async def tail(one: HeldLog) -> LogTail:
            async with gate:
                return await one.tail()

        return [asyncio.ensure_future(tail(one)) for one in held]

    async def _multi(self, publication: Publication, ops: Sequence[Op], winners: Sequence[StagedLedger]) -> None:
        try:
            await self._store.multi(ops)
        except (BadVersionError, NoNodeError) as error:
            index = getattr(error, "op_index", 0)
            if not 1 <= index <= len(winners):
                raise
            # A token is gone. Either our own multi was applied after all, or another driver published this batch and
            # swept our ledgers, or an abandoned job was swept: the mark knows.
            if await self._settled(publication) is None:
                raise swept(publication.job) from error
            raise

    async def _restamp(self, publication: Publication, tails: dict[str, LogTail]) -> Publication:
        """Give a batch without ids of its own one timestamp in each log, not below that log's highest.

        The timestamp was chosen when the job began. If another batch was published into the log since, with a later
        one, the records have to be written again: ids are part of them.
        """
        segments: list[StagedSegment] = []
        lowest = {
            log: max([tail.highest_txid, *(segment.first_txid for segment in publication.of_log(log))])
            for log, tail in tails.items()
        }
        for segment in publication.segments:
            txid = lowest[segment.log]
            if segment.stamped and txid == MAX_TXID:
                raise sealed(segment.log)
            if segment.stamped and segment.first_txid != txid:
                segment = await self._logs.rewrite(publication, [segment], txid)
            segments.append(segment)
        return replace(publication, segments=tuple(segments))

    async def _merged(self, publication: Publication) -> Publication:
        """The batch with neighbouring segments merged until it fits into one multi; mostly as it is.

        Raises BatchRefusedError, with nothing visible, if that would take too much.
        """
        if len(publication.segments) <= SURELY_FITS:
            return publication
        by_log = {log: order_segments(log, publication.of_log(log)) for log in publication.logs}
        sizes, rest = self._sizes(publication, by_log)
        size = sum(sizes.values()) + rest
        if size <= MAX_MULTI_BYTES:
            return publication
        runs = plan_merges(list(by_log.values()), size - MAX_MULTI_BYTES, lambda one: sizes[one.ledger_id])
        if runs is None:
            raise too_many(publication, size)
        segments = {segment.ledger_id: segment for segment in publication.segments}
        for run in runs:
            merged = await self._logs.rewrite(publication, run, None)
            for segment in run:
                del segments[segment.ledger_id]
            segments[merged.ledger_id] = merged
        return replace(publication, segments=tuple(segments.values()))

    def _sizes(self, publication: Publication, by_log: dict[str, list[StagedSegment]]) -> tuple[dict[int, int], int]:
        """What each segment takes in the multi (its listing's end, its znode), and what all else takes, at most."""
        job = publication.job
        sizes: dict[int, int] = {}
        rest = _MARK_BYTES
        for log, segments in by_log.items():
            tokens = self._sinks.publish_ops(job.sink_id, Mark(), 0, (job.staged(one.ledger_id) for one in segments))
            znodes = self._logs.publish_ops(log, _LONGEST, self._place(publication, log, _LONGEST))
            for segment, token, znode in zip(segments, tokens[1:], znodes, strict=False):
                sizes[segment.ledger_id] = operations_size([token, znode])
            values = operations_size(znodes[len(segments) :])
            rest += values + values // 2 + _LOCK_NAME_BYTES  # the lock lies beside the two values
        return sizes, rest

    def _place(self, publication: Publication, log: str, tail: LogTail) -> list[SegmentMetadata]:
        """The batch's segments of one log as completed segments that continue it."""
        ordered = order_segments(log, publication.of_log(log))
        check_above(log, tail.highest_txid, ordered[0])
        placed: list[SegmentMetadata] = []
        sequence_id = tail.next_sequence_id
        now_ms = self._clock.now_ms()
        for lssn, segment in enumerate(ordered, tail.next_lssn):
            placed.append(
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
        return placed


def _outcome(publication: Publication, mark: Versioned[Mark]) -> Outcome | None:
    job = publication.job
    if not mark.value.covers(job.batch):
        return None
    return Outcome.PUBLISHED if mark.value == Mark(job.batch, job.attempt) else Outcome.COVERED


def _left(
    job: JobId, listing: asyncio.Future[list[StagedLedger]], winners: Iterable[StagedLedger]
) -> tuple[StagedLedger, ...] | None:
    """Of what was listed before a publication, what it has settled and not taken; None if the listing failed."""
    if not listing.done() or listing.cancelled() or listing.exception() is not None:
        return None
    taken = set(winners)
    return tuple(ledger for ledger in listing.result() if ledger.batch <= job.batch and ledger not in taken)


def operations_size(ops: Iterable[Op]) -> int:
    """What the operations take in a request, in bytes; never less than they do."""
    return sum(
        len(op.path) + _OP_OVERHEAD_BYTES + (len(op.data) if isinstance(op, Create | SetData) else 0) for op in ops
    )


def check_size(publication: Publication, ops: Sequence[Op]) -> None:
    """Raise BatchRefusedError if the multi would be too large for ZooKeeper; nothing has been sent then."""
    size = operations_size(ops)
    if size > MAX_MULTI_BYTES:
        raise too_many(publication, size)


def too_many(publication: Publication, size: int) -> BatchRefusedError:
    """The error for a batch that no multi can hold."""
    return BatchRefusedError(
        f"The {len(publication.segments)} segments in {len(publication.logs)} logs of {publication.job} are "
        f"too many to publish in one step ({size} bytes of at most {MAX_MULTI_BYTES}); nothing of it is visible",
        advice="Write with fewer tasks, df.coalesce(n), or fewer logs a batch: each task makes one segment a log",
    )
