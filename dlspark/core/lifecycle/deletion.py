"""What deletes: whole logs, and segments that were kept for long enough.

Deletion of a log: its segments off the list, their ledgers, its znodes; all of it while the log's lock is held.

| the process dies | that leaves | cleaned by |
|---|---|---|
| before the first transaction | the log, whole | the caller, who deletes it again |
| after it | a log without segments, their ledgers noted | a second deletion; or whoever writes it, which sweeps |
| after the ledgers | a log without segments | a second deletion |
| between two transactions on a large tree | a log without segments, parts of its tree gone | a second deletion |

The first transaction also moves the versions that a deposed writer's transactions depend on: it can add no segment to a
log that is being taken apart (I7). Segment numbers go on behind those that were removed, should somebody write to what
is left of the log.

Retention: which segments have been kept for long enough, and the runs in which a writer takes them off the list.

Candidates are the completed segments at the head of the list, without the last of them: the next segment's sequence ids
continue from its (docs/reference/records.md#retention). From the oldest on they go while

    by time      their completion is longer ago than `logSegmentRetentionHours`; with `explicitTruncationByApp` they
                 must have been truncated as well
    by txid      their last transaction id is below the given one

The first one that stays ends the walk, so the list never has a hole.

A run follows each start of a segment, beside the writing: one at a time, a moment that finds one under way is passed
over. It reads settings and clock when it begins, and the list only where something has expired by what the writer
knows, so that it costs nothing as a rule. Its failures are told to the log and concern nobody else: the next run does
what this one left. What a crash leaves:

| the process dies | that leaves | cleaned by |
|---|---|---|
| before the transaction | the segments, whole | the next run |
| after it, ledgers not yet deleted | ledgers without readers, noted | the next owner's first run, or a deletion |
| some ledgers deleted | notes of ledgers that are gone | the same: deleting a missing ledger is a success |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeAlias

from dlspark.core.lifecycle.owned_segments import OwnedSegments, completed_head, taken
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segments import is_truncated
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from dlspark.errors import DistributedLogError
from metadata.foundation.errors import NoNodeError
from metadata.foundation.tasks import end_tasks
from metadata.log_names import log_not_found
from metadata.logs import SegmentMetadata
from metadata.retry import repeat
from metadata.segment_changes import check_guard
from storage_node.edge import Clock


async def delete_log(services: Services, name: str, settings: Settings, client_id: str) -> None:
    """Delete a log with everything in it. After any error it may be called again, and finishes what was begun.

    Raises LogNotFoundError, OwnershipAcquireFailedError while somebody writes it, LockingError where the lock was lost
    on the way.
    """
    async with taken(services, name, settings, client_id) as owned:
        await _delete(services, owned)


async def delete_unwritten_log(services: Services, name: str, settings: Settings, client_id: str, created: int) -> bool:
    """Delete a log that has had no segment; False, and nothing is done, if it has, or is not the one `created` tells.

    For whoever created a log and does not need it after all: others may have found it meanwhile. Raises as
    `delete_log`.
    """
    async with taken(services, name, settings, client_id) as owned:
        if await creation_of(services, name) != created or await owned.written():
            return False
        await _delete(services, owned)
        return True


async def creation_of(services: Services, name: str) -> int:
    """What tells a log from a later one of its name: ZooKeeper's number of the transaction that created it.

    Raises LogNotFoundError.
    """
    path = (await services.logs.located(name)).ledgers
    stat = await repeat(services.store, lambda: services.store.exists(path))
    if stat is None:
        raise log_not_found(name, path)
    return stat.czxid


async def _delete(services: Services, owned: OwnedSegments) -> None:
    await owned.clear()
    try:
        await services.logs.delete_tree(owned.name, owned.guard)
    except NoNodeError as error:
        check_guard(error, owned.name)
        raise


# ------------------------------------------------------------------ retention

_log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
Rule: TypeAlias = Callable[[Sequence[SegmentMetadata]], list[SegmentMetadata]]
"""Which segments of a list may go."""


def _oldest(segments: Sequence[SegmentMetadata], may_go: Callable[[SegmentMetadata], bool]) -> list[SegmentMetadata]:
    return list(takewhile(may_go, completed_head(segments)[:-1]))


def expired(segments: Sequence[SegmentMetadata], *, before_ms: int, only_truncated: bool) -> list[SegmentMetadata]:
    """Those completed before `before_ms` (milliseconds since the epoch)."""

    def may_go(segment: SegmentMetadata) -> bool:
        return segment.completion_time_ms < before_ms and (is_truncated(segment) or not only_truncated)

    return _oldest(segments, may_go)


def older_than(segments: Sequence[SegmentMetadata], txid: int) -> list[SegmentMetadata]:
    """Those whose transaction ids are all below `txid`."""
    return _oldest(segments, lambda segment: segment.last_txid < txid)


class Retention:
    """The runs of one writer. `begin` starts one, `close` ends it wherever it is: every step is safe to leave."""

    def __init__(
        self,
        owned: OwnedSegments,
        known: Callable[[], Sequence[SegmentMetadata]],
        settings: Callable[[], Settings],
        clock: Clock,
    ) -> None:
        """`known` are the segments that the writer knows: those that it found, and what it has made of them."""
        self._owned = owned
        self._known = known
        self._first_left = 0
        self._settings = settings
        self._clock = clock
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
                await self._purge_expired(before_ms, settings.explicit_truncation)
            elif self._owned.unswept:
                await self._owned.sweep()
        except DistributedLogError as error:
            name = self._owned.name
            _log.warning("log %s: expired segments stay until the next roll: %s", name, error, extra=about(log=name))

    def _may_be_due(self, before_ms: int) -> bool:
        """Whether the list is worth reading: by what is known, which lacks truncations, something has expired."""
        known = [segment for segment in self._known() if segment.lssn >= self._first_left]
        return bool(expired(known, before_ms=before_ms, only_truncated=False))

    async def _purge_expired(self, before_ms: int, only_truncated: bool) -> None:
        first_left = 0

        def rule(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
            nonlocal first_left
            doomed = expired(segments, before_ms=before_ms, only_truncated=only_truncated)
            first_left = segments[len(doomed)].lssn if len(segments) > len(doomed) else 0
            return doomed

        await self._owned.purge(rule)
        self._first_left = first_left

    async def close(self) -> None:
        """End the run that is under way; there will be no other."""
        self._closed = True
        if self._run is not None:
            await end_tasks([self._run])
