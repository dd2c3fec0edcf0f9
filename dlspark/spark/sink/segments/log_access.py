"""The logs of a namespace, as publishing needs them: it creates and locks them, recovers them and finds their ends.

A log's end is asked for together with its lock. ZooKeeper answers a session's requests in their order. So where no
other owner holds the lock, and no request failed, the end was read under the lock, one round trip after the first
request. After a wait for the lock its last owner may have changed everything: the end is read again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from dlspark.spark.errors import BatchRefusedError, LogBusyError
from dlspark.spark.sink.batch_rules import LogHistory
from dlspark.spark.sink.messages import Publication, StagedSegment
from dlspark.spark.sink.session import SinkSession
from metadata.distributedlog.locks import DistributedLock, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogEnd, LogNotFoundError, LogPaths
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.permissions import Action
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import BadVersionError, DistributedLogError, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from metadata.retry import repeat
from metadata.store import Delete, MetadataStore, Op

SEGMENTS_AT_ONCE = 64
MOMENT_MS = 20

_log = logging.getLogger(__name__)

Recover = Callable[[str], Awaitable[None]]
Permit = Callable[[str], Awaitable[None]]
Rewrite = Callable[[Publication, Sequence[StagedSegment], int], Awaitable[StagedSegment]]
AskedToYield = Callable[[str], AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True)
class LockedLogEnd:
    """The end of a log, read under its write lock with no segment in progress."""

    state: LogEnd
    next_lssn: int
    next_sequence_id: int

    @property
    def highest_txid(self) -> int:
        """No record that is published here may have a lower transaction id."""
        return self.state.max_txid.value


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log whose write lock is held.

    `unlock` gives up the very member that was acquired: the multi that has it fails if that one is gone, also where the
    lock was lost and won again. `at_once`: no other owner was waited for, so that what was asked right behind the lock
    was answered under it. `find_end()` completes what a dead writer left in progress, then says where the log ends.
    """

    log: str
    lock: DistributedLock
    unlock: Delete
    at_once: bool
    find_end: Callable[[], Awaitable[LockedLogEnd]]


_Look = tuple[LockedLogEnd, list[str]]


@dataclass(frozen=True, slots=True)
class LogRules:
    """The sink's rules for logs. `owner` is the name that other writers see while we hold a lock."""

    owner: str
    lock_timeout_ms: int
    create_missing: bool = True
    first_lssn: int = 1


class NamespaceLogs:
    """The logs of one namespace, as publishing needs them: made where they are missing, locked, read to their ends.

    Args:
        store: the metadata store of the namespace.
        logs: its logs there.
        rules: how the sink treats logs.
        recover: completes what a dead writer left in progress, under the lock that is held.
        rewrite: writes records of staged segments again.
        permit: raises RequestDeniedError for a log that the namespace's access control does not let the sink write;
            None: the namespace has no access control.
        asked_to_yield: while a log is waited for, its owner is asked to give it up, where it would.
    """

    def __init__(
        self,
        store: MetadataStore,
        logs: LogStore,
        rules: LogRules,
        *,
        recover: Recover,
        rewrite: Rewrite,
        permit: Permit | None = None,
        asked_to_yield: AskedToYield = nullcontext,
    ) -> None:
        self._store = store
        self._logs = logs
        self._rules = rules
        self._recover = recover
        self._rewrite = rewrite
        self._permit = permit
        self._asked_to_yield = asked_to_yield
        self._known: set[str] = set()
        """Logs that were seen to exist; one that is gone after all fails its publication, and is looked up again."""
        self._newest: dict[str, int] = {}
        """The number that each log's newest segment has if no other writer has added one since: worth a guess."""

    def known(self, log: str) -> bool:
        """Return whether `prepare` has nothing to ask."""
        return self._permit is None and log in self._known

    def forget(self, log: str) -> None:
        """Forget that the log exists: it was deleted, and is looked up again."""
        self._known.discard(log)

    async def prepare(self, log: str) -> None:
        """Create `log` if it is missing and may be created. Raises RequestDeniedError where it may not be written."""
        if self._permit is not None:
            await self._permit(log)
        if log in self._known:
            return
        if not await self._whole(log):
            if not self._rules.create_missing:
                raise log_missing_error(log)
            await self._logs.ensure(log)
        self._known.add(log)

    async def _whole(self, log: str) -> bool:
        """Return whether the log exists with everything that belongs to one: later looks at it ask for less."""
        if not await self._logs.exists(log):
            return False
        try:
            await self._logs.open(log)
        except LogNotFoundError:
            return False
        return True

    async def paths(self, log: str) -> LogPaths | None:
        """Return where the log is; None if that is not known before it exists."""
        try:
            return await self._logs.located(log)
        except LogNotFoundError:
            return None

    async def history(self, log: str) -> LogHistory | None:
        """Return which transactions made what the log holds; None if the log does not exist. Reads each of its
        segments."""
        paths = await self.paths(log)
        stat = None if paths is None else await repeat(self._store, lambda: self._store.exists(paths.max_txid))
        if paths is None or stat is None:
            return None
        brought: Counter[int] = Counter()

        async def add(name: str) -> None:
            path = f"{paths.ledgers}/{name}"
            try:
                data, made = await repeat(self._store, lambda: self._store.get(path))
            except NoNodeError:
                return  # it has just been completed, or deleted
            brought[made.czxid] += SegmentMetadata.decode(data, path).record_count

        names, _ = await repeat(self._store, lambda: self._store.children(paths.ledgers))
        highest, _ = await repeat(self._store, lambda: self._store.get(paths.ledgers))
        await for_each([name for name in names if name.startswith("logrecs")], SEGMENTS_AT_ONCE, add)
        return LogHistory(stat.czxid, dict(brought), untouched=not names and highest == b"0")

    @asynccontextmanager
    async def hold(self, log: str, *, wait: bool = True) -> AsyncIterator[HeldLog]:
        """Hold the write lock of `log`. A dead owner is waited out, until its session must have ended; unless `wait`
        is false: then LogBusyError is raised for any owner that does not give it up in a moment."""
        lock = DistributedLock(self._store, self._logs.paths(log).lock, self._rules.owner)
        looking: list[asyncio.Task[_Look]] = []
        try:
            async with self._releasing(log, lock):
                async with self._asked_to_yield(log) if wait else nullcontext():
                    timeout_ms = self._rules.lock_timeout_ms if wait else MOMENT_MS
                    at_once = await self._acquire(log, lock, looking, timeout_ms)
                    # Before anything else is done: a lock lost and won again in between is another member.
                    unlock = lock.release_op()
                ahead = looking[0] if at_once else None
                yield HeldLog(log, lock, unlock, at_once, lambda: self._find_end(log, ahead))
        except NoNodeError:
            self.forget(log)
            raise
        finally:
            await end_tasks(looking, drop_errors=True)

    async def _acquire(
        self, log: str, lock: DistributedLock, looking: list[asyncio.Task[_Look]], timeout_ms: int
    ) -> bool:
        try:
            return await lock.acquire(
                timeout_ms,
                lambda: looking.append(asyncio.get_running_loop().create_task(self._look(log))),
            )
        except OwnershipAcquireFailedError as error:
            raise log_busy_error(log, error.owner) from error

    @asynccontextmanager
    async def _releasing(self, log: str, lock: DistributedLock) -> AsyncIterator[None]:
        try:
            yield
        finally:
            try:
                await lock.release()
            except DistributedLogError as error:
                # The batch's fate is decided; the member node goes with the session at the latest.
                _log.warning("the lock of log %s was not released, it ends with the session: %s", log, error)

    async def _find_end(self, log: str, ahead: asyncio.Task[_Look] | None) -> LockedLogEnd:
        """Return where `log` ends, whose lock we hold; `ahead` is a look that was made under it."""
        end, open_segments = await (self._look(log) if ahead is None else ahead)
        if open_segments:
            # A log has one open segment at a time, and ours come after it: a dead writer's gets its end first (I7).
            await self._recover(log)
            end, open_segments = await self._look(log)
        if open_segments:
            raise BadVersionError(f"{open_segments[0]} appeared although we hold the lock of log {log}")
        return end

    async def _look(self, log: str) -> _Look:
        """Return the log's end as of one moment, and its segments in progress. Raises BadVersionError if it moved
        meanwhile.

        Everything is asked at once, so the list may be older or newer than the versions, and must not be taken for
        theirs. The list shows its own version: each transaction that begins or ends a segment sets `ledgers`, the
        segments' parent.
        """
        path = self._logs.paths(log).ledgers
        guess = self._newest.get(log)
        state, (names, stat), newest = await asyncio.gather(
            self._logs.end(log),
            repeat(self._store, lambda: self._store.children(path)),
            self._segment(f"{path}/{_completed(guess)}" if guess is not None else None),
        )
        if stat.version != state.max_lssn.version:
            raise BadVersionError("the log was changed while it was read", log=log, path=path)
        open_segments = [name for name in names if name.startswith("inprogress")]
        newest_name = _completed(state.max_lssn.value)
        if newest_name not in names:
            # The segment with the highest number is in progress or deleted, or there is none yet: read the whole list.
            newest = None
        elif guess != state.max_lssn.value:
            newest = await self._segment(f"{path}/{newest_name}")
        if newest is None:
            completed = [segment for segment in await self._logs.hot_segments(log) if not segment.in_progress]
            newest = completed[-1] if completed else None
        if newest is None:
            stored = state.max_lssn.value
            return LockedLogEnd(state, max(self._rules.first_lssn, stored), 0), open_segments
        # Sequence ids go on where the newest segment ends; before metadata version 5 there were none
        # (docs/reference/znodes.md#start-sequence-ids).
        sequence_id = newest.effective_start_sequence_id + newest.record_count if newest.version >= 5 else 0
        return LockedLogEnd(state, newest.lssn + 1, sequence_id), open_segments

    async def _segment(self, path: str | None) -> SegmentMetadata | None:
        """Return a segment by its znode, if there is one."""
        if path is None:
            return None
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return SegmentMetadata.decode(data, path)

    def publish_ops(self, log: str, end: LockedLogEnd, segments: Sequence[SegmentMetadata]) -> list[Op]:
        """Create the segments' znodes and move the log's two conditional values."""
        self._newest[log] = segments[-1].lssn
        return self._logs.publish_ops(log, end.state, segments)

    async def rewrite(
        self, publication: Publication, segments: Sequence[StagedSegment], lowest_txid: int = -1
    ) -> StagedSegment:
        """Write the records of neighbouring segments of a log again, as one, to a new listed ledger.

        Ids below the one before them, or below `lowest_txid`, are raised to it. The old ledgers are left as they are.
        """
        return await self._rewrite(publication, segments, lowest_txid)


def session_logs(session: SinkSession) -> NamespaceLogs:
    """Return the logs of a session's namespace, written in its name and by its settings."""
    services = session.namespace.services
    rules = LogRules(
        owner=session.owner,
        lock_timeout_ms=session.settings.lock_timeout_s * 1000,
        create_missing=session.create_missing,
        first_lssn=services.binding.first_lssn or session.settings.first_lssn,
    )

    async def recover(log: str) -> None:
        # Few commits recover or write again: others load neither readers nor Arrow.
        from dlspark.core.writing.recovery import recover_segments
        from dlspark.core.writing.transitions import SegmentTransitions

        # Under the log's lock, which the caller holds: recovery fences and closes ledgers of the log (I7, I10).
        transitions = SegmentTransitions(services, log, session.settings, await services.logs.open(log))
        await transitions.load()
        await recover_segments(services, transitions, session.settings)

    async def write_again(
        publication: Publication, segments: Sequence[StagedSegment], lowest_txid: int
    ) -> StagedSegment:
        from dlspark.spark.sink.segments.rewriting import rewrite

        return await rewrite(
            services.ledgers,
            await session.create_ledger(publication.job, segments[0].log),
            segments,
            lowest_txid,
            password=session.settings.password,
            compression=session.compression,
        )

    async def permit(log: str) -> None:
        await services.permit(log, Action.ACQUIRE, Action.WRITE)

    return NamespaceLogs(
        session.namespace.store,
        services.logs,
        rules,
        recover=recover,
        rewrite=write_again,
        permit=None if services.permissions is None else permit,
        asked_to_yield=functools.partial(session.proxies.asked_to_yield, services),
    )


def _completed(lssn: int) -> str:
    """Return the name of a completed segment's znode."""
    return f"logrecs_{lssn:018d}"


def log_busy_error(log: str, owner: str) -> LogBusyError:
    """Return the error for a log whose owner did not give it up in time."""
    return LogBusyError(
        f"The log is being written by {owner}; nothing of the batch is visible",
        log=log,
        advice="Close that writer, or write to another log: a log has one writer at a time. How long its owner is "
        "waited for is option outageTimeout",
    )


def log_missing_error(log: str, near: str = "") -> BatchRefusedError:
    """Return the error for a log that is not there and may not be created; `near` begins its advice."""
    return BatchRefusedError(
        "The log does not exist, and createStreamIfNotExists is false; nothing of the batch is visible",
        log=log,
        advice=f"{near}Create the log first, or leave the option at true",
    )
