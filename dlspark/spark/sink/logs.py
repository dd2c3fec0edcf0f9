"""What publishing does with the logs of a namespace: create, lock, recover, find the end (`LogAccess`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dlspark.spark.sink.commit import LogTail
from dlspark.spark.sink.errors import BatchRefusedError, LogBusyError
from dlspark.spark.sink.messages import Publication, StagedSegment
from metadata.errors import BadVersionError, DistributedLogError, NoNodeError
from metadata.locks import DistributedLock, OwnershipAcquireFailedError
from metadata.logs import LogStore, SegmentMetadata
from metadata.store import MetadataStore, Op

Recover = Callable[[str], Awaitable[None]]
Permit = Callable[[str], Awaitable[None]]
Rewrite = Callable[[Publication, Sequence[StagedSegment], int | None], Awaitable[StagedSegment]]

_log = logging.getLogger(__name__)


async def _everything_permitted(log: str) -> None:
    """What a namespace without access control says."""


@dataclass(frozen=True, slots=True)
class LogRules:
    """How this sink treats logs. `owner` is what others read who wait for a lock that we hold."""

    owner: str
    lock_timeout_ms: int
    create_missing: bool = True
    first_lssn: int = 1


class NamespaceLogs:
    """The logs of one namespace. `recover` completes what a dead writer left in progress, under the lock we hold.

    `permit` raises RequestDeniedError for a log that the namespace's access control does not let us write.
    """

    def __init__(
        self,
        store: MetadataStore,
        logs: LogStore,
        rules: LogRules,
        *,
        recover: Recover,
        rewrite: Rewrite,
        permit: Permit = _everything_permitted,
    ) -> None:
        self._store = store
        self._logs = logs
        self._rules = rules
        self._recover = recover
        self._rewrite = rewrite
        self._permit = permit
        self._known: set[str] = set()
        """Logs that were seen to exist; one that is gone after all fails its publication, and is asked for again."""

    async def prepare(self, log: str) -> None:
        """Create `log` if it is missing and may be created. Raises RequestDeniedError where it may not be written."""
        await self._permit(log)
        if log in self._known:
            return
        if not await self._logs.exists(log):
            if not self._rules.create_missing:
                raise missing(log)
            await self._logs.ensure(log)
        self._known.add(log)

    @asynccontextmanager
    async def lock(self, log: str) -> AsyncIterator[DistributedLock]:
        """Hold the write lock of `log`. A dead owner is waited out, until its session must have ended."""
        lock = DistributedLock(self._store, self._logs.paths(log).lock, self._rules.owner)
        try:
            await lock.acquire(self._rules.lock_timeout_ms)
        except OwnershipAcquireFailedError as error:
            raise LogBusyError(
                f"The log is being written by {error.owner}; nothing of the batch is visible",
                log=log,
                advice="Close that writer, or write to another log: a log has one writer at a time",
            ) from error
        except NoNodeError:
            self._known.discard(log)
            raise
        try:
            yield lock
        except NoNodeError:
            self._known.discard(log)
            raise
        finally:
            try:
                await lock.release()
            except DistributedLogError as error:
                # The batch's fate is decided; the member node goes with the session at the latest.
                _log.warning("the lock of log %s was not released, it ends with the session: %s", log, error)

    async def tail(self, log: str) -> LogTail:
        """Where `log` ends. The versions are read first, so whatever changes afterwards fails the publication."""
        tail, open_segments = await self._look(log)
        if open_segments:
            await self._recover(log)
            tail, open_segments = await self._look(log)
        if open_segments:
            raise BadVersionError(f"{open_segments[0]} appeared although we hold the lock of log {log}")
        return tail

    async def _look(self, log: str) -> tuple[LogTail, list[str]]:
        state = await self._logs.open(log)
        path = self._logs.paths(log).ledgers
        newest_name = f"logrecs_{state.max_lssn.value:018d}"
        (names, _), newest = await asyncio.gather(self._store.children(path), self._segment(f"{path}/{newest_name}"))
        open_segments = [name for name in names if name.startswith("inprogress")]
        if newest is None or newest_name not in names:
            completed = [segment for segment in await self._logs.segments(log) if not segment.in_progress]
            newest = completed[-1] if completed else None
        if newest is None:
            stored = state.max_lssn.value
            return LogTail(state, max(self._rules.first_lssn, stored), 0), open_segments
        # Sequence ids go on where the newest segment ends; before metadata version 5 there were none (section 3.6).
        sequence_id = newest.effective_start_sequence_id + newest.record_count if newest.version >= 5 else 0
        return LogTail(state, newest.lssn + 1, sequence_id), open_segments

    async def _segment(self, path: str) -> SegmentMetadata | None:
        """A segment by its znode: mostly the newest one, whose name follows from the highest number."""
        try:
            data, _ = await self._store.get(path)
        except NoNodeError:
            return None
        return SegmentMetadata.decode(data, path)

    def publish_ops(self, log: str, tail: LogTail, segments: Sequence[SegmentMetadata]) -> list[Op]:
        """Create the segments' znodes and move the log's two conditional values."""
        return self._logs.publish_ops(log, tail.state, segments)

    async def rewrite(
        self, publication: Publication, segments: Sequence[StagedSegment], txid: int | None
    ) -> StagedSegment:
        """Write the records of neighbouring segments again, as one, to a new listed ledger."""
        return await self._rewrite(publication, segments, txid)


def missing(log: str) -> BatchRefusedError:
    """The error for a log that is not there and may not be created."""
    return BatchRefusedError(
        "The log does not exist, and createStreamIfNotExists is false; nothing of the batch is visible",
        log=log,
        advice="Create the log first, or leave the option at true",
    )
