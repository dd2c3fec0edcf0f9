"""Deletion of whole logs, and of segments that have been kept for long enough.

**How anything is deleted.** Both deletions do the same three steps while the log's lock is held (`OwnedSegments`), and
the order is what makes a crash harmless. First one transaction takes segments off the log's list and notes their
ledgers: from then on no reader can find them (I7). Then the noted ledgers are deleted, and each is taken off the notes.
A whole log's znodes go last. Files of cold storage are not deleted here, but by a sweep that may run anywhere: what it
may delete is noted, of a whole log beside the logs (`ColdStore.bury`), since its own znodes go. Whatever is left by a
crash is found and finished by the same steps, run again:

| the process dies | that leaves | finished by |
|---|---|---|
| before the transaction | the log, or the segments, whole | a second deletion; the next run |
| after a log's files were noted | the log without what lies in files alone | a second deletion |
| after it | ledgers without readers, noted | a second deletion, or the next owner's first run |
| after some ledgers | notes of ledgers that are gone | the same: deleting a missing ledger is a success |
| after the ledgers of a whole log | a log without segments | a second deletion |
| between two transactions on a large tree | a log without segments, parts of its tree gone | a second deletion |

**A whole log** (`delete_log`). Whoever owns the log keeps it: a writer, a query, a proxy; that is said at once, as by
renaming. The transaction also moves the versions that a deposed writer's transactions depend on,
so that writer cannot add a segment to a log that is being deleted (I7). If a client writes to what a crash has left of
the log, segment numbers go on behind those that were removed. A process that stood still after that transaction may
find its lock free again, and a log that another client has written meanwhile: the tree goes only with the version that
the transaction left.

**Retention** (`expired`, `older_than`, `Retention`). Candidates are the completed segments at the head of the list,
without the last of them: the next segment's sequence ids continue from that one's
(docs/reference/records.md#retention). From the oldest on they go while

    by time      their completion is longer ago than `logSegmentRetentionHours`; with `explicitTruncationByApp` they
                 must have been truncated as well
    by txid      their last transaction id is below the given one

The first one that stays ends the walk, so the list never has a hole. Where the log goes to cold storage
(`coldStoragePath`), or has anything in files that is not hidden, only what a truncation has hidden goes by these rules:
the rest is the mover's to take off the list, once it is in a file. So nothing is lost where no mover runs.

A writer starts a run with each start of a segment, beside the writing, unless one is still under way. A run reads
settings and clock when it begins. It reads the list only where, by what the writer knows, a segment has expired, so as
a rule it costs nothing. A failed run only logs a warning: the next run does what this one left.

A host whose clock is days ahead would find that everything has expired. So a run believes its own clock no further than
the metadata store's, which has just stamped the segment that was started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import takewhile

from dlspark.core.lifecycle.owned_segments import OwnedSegments, completed_head, taken
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segments import is_truncated
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import log_not_found_error
from metadata.distributedlog.segment_changes import check_guard
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import BadVersionError, DistributedLogError, NoNodeError
from metadata.foundation.tasks import end_tasks
from metadata.retry import repeat
from storage_node.edge import Clock


async def delete_log(services: Services, name: str, settings: Settings, client_id: str) -> None:
    """Delete a log with everything in it. After any error it may be called again, and finishes what was begun.

    Raises LogNotFoundError, OwnershipAcquireFailedError at once while another client owns it, LockingError where the
    lock was lost on the way.
    """
    begun = False
    try:
        # It does not wait in the lock's queue: an owner that gives way to others must not lose its log for good.
        async with taken(services, name, settings, client_id, wait=False) as owned:
            begun = True
            await _delete(services, owned)
    except OwnershipAcquireFailedError as error:
        if begun:
            raise
        raise OwnershipAcquireFailedError(
            error.owner, path=error.path or "", log=name, kept="nothing was deleted"
        ) from error


async def delete_unwritten_log(services: Services, name: str, settings: Settings, client_id: str, created: int) -> bool:
    """Delete a log that has never had a segment. Returns False, and does nothing, if it had one, or if its creation
    number (`creation_of`) is not `created`.

    For a caller that created a log and does not need it after all: other clients may have begun to use it meanwhile.
    Raises as `delete_log`.
    """
    async with taken(services, name, settings, client_id) as owned:
        # Asked under the lock: from here on no client can begin to write.
        if await creation_of(services, name) != created or await owned.written():
            return False
        await _delete(services, owned)
        return True


async def creation_of(services: Services, name: str) -> int:
    """Return what distinguishes a log from a later one of its name: ZooKeeper's number of the transaction that created
    it.

    Raises LogNotFoundError.
    """
    path = (await services.logs.located(name)).ledgers
    stat = await repeat(services.store, lambda: services.store.exists(path))
    if stat is None:
        raise log_not_found_error(name, path)
    return stat.czxid


async def _delete(services: Services, owned: OwnedSegments) -> None:
    cold = ColdStore(services.logs)
    # First of all: once the tree is gone nothing says that there are files (I21).
    await cold.bury(owned.name, owned.guard, now_ms=services.clock.now_ms())
    version = await owned.clear()  # First: the znodes that name the ledgers go only once the ledgers are gone.
    # Again: the log's first segments may have been taken since. No more are, now that none is on the list.
    await cold.bury(owned.name, owned.guard, now_ms=services.clock.now_ms())
    try:
        await services.logs.delete_tree(owned.name, owned.guard, version)
    except NoNodeError as error:
        check_guard(error, owned.name)
        raise
    except BadVersionError as error:
        # This process stood still, its lock passed on, and was free again when it went on (I7).
        raise LockingError(
            "the lock was lost while the log was being deleted, and another client has owned the log since: what was "
            "in it before is gone, what was written since is there",
            log=owned.name,
            advice="Delete it again, if that is to go too",
        ) from error


# ------------------------------------------------------------------ retention

_log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
CLOCK_WARN_MS = 5 * 60 * 1000
"""A clock that is further ahead is worth a warning; below it, a run may only have begun late."""


def _oldest(segments: Sequence[SegmentMetadata], may_go: Callable[[SegmentMetadata], bool]) -> list[SegmentMetadata]:
    # Without the newest: the next segment's sequence ids continue from it. From the oldest on: the list gets no hole.
    return list(takewhile(may_go, completed_head(segments)[:-1]))


def expired(segments: Sequence[SegmentMetadata], *, before_ms: int, only_truncated: bool) -> list[SegmentMetadata]:
    """Return the oldest segments that were completed before `before_ms` (milliseconds since the epoch)."""

    def may_go(segment: SegmentMetadata) -> bool:
        return segment.completion_time_ms < before_ms and (is_truncated(segment) or not only_truncated)

    return _oldest(segments, may_go)


def older_than(segments: Sequence[SegmentMetadata], txid: int) -> list[SegmentMetadata]:
    """Return the oldest segments whose transaction ids are all below `txid`."""
    return _oldest(segments, lambda segment: segment.last_txid < txid)


class Retention:
    """The runs of one writer. `begin` starts one; `close` cancels it at any step, which is safe after each of them."""

    def __init__(
        self,
        owned: OwnedSegments,
        known: Callable[[], Sequence[SegmentMetadata]],
        settings: Callable[[], Settings],
        clock: Clock,
        needed: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Begin nothing yet. `known` returns the segments that the writer knows: those that it found, and those that it
        has made since. `needed`: the number of one that stays with all behind it, since what it says is nowhere else;
        None for none."""
        self._owned = owned
        self._known = known
        self._first_left = 0  # What the writer knows still has purged segments: those below this number.
        self._settings = settings
        self._clock = clock
        self._needed = needed
        self._run: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self) -> None:
        """Start a run, unless one is under way."""
        if not self._closed and (self._run is None or self._run.done()):
            self._run = asyncio.get_running_loop().create_task(self._purge())

    async def _purge(self) -> None:
        settings = self._settings()
        before_ms = self._clock.now_ms() - settings.retention_hours * HOUR_MS
        try:
            if settings.retention_hours > 0 and self._may_be_due(before_ms):
                before_ms -= await self._ahead_ms()
                only_truncated = settings.explicit_truncation or bool(settings.cold_path)
                await self._purge_expired(before_ms, only_truncated)
            elif self._owned.unswept:
                await self._owned.sweep()
        except DistributedLogError as error:
            name = self._owned.name
            _log.warning("log %s: expired segments stay until the next roll: %s", name, error, extra=about(log=name))

    async def _ahead_ms(self) -> int:
        """Return how far this host's clock is ahead of the metadata store's, by the segment whose start began this
        run."""
        store_ms = await self._owned.list_changed_ms()
        ahead_ms = max(0, self._clock.now_ms() - store_ms)
        if ahead_ms > CLOCK_WARN_MS:
            _log.warning(
                "log %s: this host's clock is %d s ahead of the metadata store's, by which segments expire. Set it, "
                "and keep it by NTP",
                self._owned.name,
                ahead_ms // 1000,
                extra=about(log=self._owned.name),
            )
        return ahead_ms

    def _may_be_due(self, before_ms: int) -> bool:
        """Return whether the list is worth reading: a known segment has expired by its age. Truncations are not known
        here."""
        known = [segment for segment in self._known() if segment.lssn >= self._first_left]
        return bool(expired(known, before_ms=before_ms, only_truncated=False))

    async def _purge_expired(self, before_ms: int, only_truncated: bool) -> None:
        first_left = 0

        def rule(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
            nonlocal first_left
            doomed = expired(segments, before_ms=before_ms, only_truncated=only_truncated)
            needed = self._needed()
            if needed is not None:
                doomed = [segment for segment in doomed if segment.lssn < needed]
            first_left = segments[len(doomed)].lssn if len(segments) > len(doomed) else 0
            return doomed

        await self._owned.purge(rule, keeps_files=True)
        self._first_left = first_left

    async def close(self) -> None:
        """Cancel the run that is under way, and start no other. Idempotent."""
        self._closed = True
        if self._run is not None:
            await end_tasks([self._run])
