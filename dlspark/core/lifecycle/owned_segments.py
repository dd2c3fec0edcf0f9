"""`OwnedSegments`: the segments of one log in the hands of who holds its lock: truncation, purging, deletion.

Each operation reads the list, decides, and changes it in transactions that hold only while the lock does. After a lost
answer, or when the list has moved on meanwhile, it starts again from what is there: every decision is one that may be
made twice. Two truncations of one owner go one after the other, because the later one must build on the earlier one's
outcome (I8); of two owners only one has the lock.

Explicit truncation, as rules on a list of segments: which of them become hidden, and where a log begins then.

    segment ends below the DLSN         TRUNCATED
    the DLSN lies within the segment    PARTIALLY_TRUNCATED, the DLSN is its minimum active position
    it begins at or above the DLSN      stays, and so does everything behind it

Only the completed segments at the head of the list are looked at: what is in progress, or stands behind that, stays as
it is. A truncation never moves back: what is hidden stays hidden, a minimum only rises (I8). Nothing is deleted by it;
that is for retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segments import first_active, is_truncated
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from dlspark.core.writing.write_lock import WriteLock, release
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.locks import DistributedLock
from metadata.logs import SegmentMetadata, TruncationStatus
from metadata.retry import MAX_REPEATS, repeat
from metadata.segment_changes import Change, SegmentChanges, SegmentsMovedError
from metadata.store import ANY_VERSION, Check

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class OwnedSegments:
    """What the holder of `lock` may do to the log `name`. The lock stays the caller's."""

    def __init__(self, services: Services, name: str, lock: WriteLock) -> None:
        self.name = name
        self.lock = lock
        self.unswept = True
        """Whether ledgers may be noted that are to be deleted."""
        self._services = services
        self._changes = SegmentChanges(services.logs, name)
        self._subscriptions = Subscriptions(services.logs, name)
        self._truncating = asyncio.Lock()

    def guard(self) -> Check:
        """Fails the transaction that it is part of unless the lock is held."""
        return Check(self.lock.member_path, ANY_VERSION)

    async def _settled(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run `attempt`, which begins by reading the list, until it was not disturbed."""
        for _ in range(MAX_REPEATS - 1):
            await self.lock.ensure_held()
            try:
                return await repeat(self._services.store, attempt)
            except SegmentsMovedError:
                self._services.counters["segments-moved"] += 1
        return await repeat(self._services.store, attempt)

    async def _segments(self) -> list[SegmentMetadata]:
        """The list with everything in it that this session has sent, answered or not."""
        await self._services.store.sync(self._services.logs.paths(self.name).ledgers)
        return await self._services.logs.segments(self.name)

    # ------------------------------------------------------------------ truncation

    async def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False) -> DLSN:
        """Hide the records below `dlsn`; returns the log's first position afterwards.

        With `respect_subscribers` nothing is hidden that one of the log's subscribers has still to read.
        Raises LockingError or OwnershipAcquireFailedError where the lock was lost.
        """
        wanted = as_dlsn(dlsn)

        async def attempt() -> DLSN:
            subscribed = await self._subscriptions.positions() if respect_subscribers else {}
            turn = await self._changes.turn()
            segments = await self._segments()
            changes = truncation(segments, min([wanted, *subscribed.values()]))
            await self._changes.mark(changes, self.guard, turn)
            return truncation_point(with_changes(segments, changes))

        async with self._truncating:
            return await self._settled(attempt)

    # ------------------------------------------------------------------ purging

    async def purge(self, rule: Callable[[Sequence[SegmentMetadata]], list[SegmentMetadata]]) -> int:
        """Take the segments that `rule` chooses off the list, then delete their ledgers; how many went."""
        removed: set[int] = set()

        async def attempt() -> None:
            doomed = rule(await self._segments())
            removed.update(segment.ledger_id for segment in doomed)
            self.unswept = self.unswept or bool(doomed)
            await self._changes.remove(doomed, self.guard)

        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._settled(attempt)
        if removed:
            self._services.counters["segments-purged"] += len(removed)
            _log.info("log %s: %d segments were purged", self.name, len(removed), extra=about(log=self.name))
        await self.sweep()
        if removed:
            self._services.meter.of(self.name).segments_delete.record(loop.time() - began, times=len(removed))
        return len(removed)

    async def written(self) -> bool:
        """Whether the log has, or has had, a segment: it may have been written to."""
        segments = await self._segments()
        return bool(segments) or (await self._services.logs.open(self.name)).max_lssn.value > 0

    async def clear(self) -> None:
        """Take every segment off the list, whatever its state, and delete their ledgers: the log is to be deleted."""

        async def attempt() -> None:
            state = await self._services.logs.open(self.name)
            await self._changes.clear(state, await self._segments(), self.guard)

        await self._settled(attempt)
        await self.sweep()

    async def sweep(self) -> int:
        """Delete the ledgers of segments that are off the list, whoever took them off; how many there were.

        One that cannot be deleted stays noted, and so do those behind it: raises why.
        """
        swept = await sweep(self._services, self.name)
        self.unswept = False
        return swept


def as_dlsn(dlsn: DLSN | str) -> DLSN:
    """A position given as a DLSN or its text. Raises CallerError."""
    if isinstance(dlsn, str):
        return DLSN.parse(dlsn)
    if not isinstance(dlsn, DLSN):
        raise CallerError(f"{dlsn!r} is not a DLSN; nothing was truncated", advice="Give a DLSN, or its text")
    return dlsn


@asynccontextmanager
async def taken(services: Services, name: str, settings: Settings, client_id: str) -> AsyncIterator[OwnedSegments]:
    """The segments of a log that nobody writes: its lock is held for the length of the block.

    Raises LogNotFoundError, and OwnershipAcquireFailedError with the owner's name after `lockTimeoutSeconds`.
    """
    await services.logs.check(name)  # A missing log is an error of its own, not of its lock.
    lock = DistributedLock(services.store, services.logs.paths(name).lock, client_id)
    await lock.acquire(settings.lock_timeout_s * 1000)
    try:
        yield OwnedSegments(services, name, lock)
    finally:
        await release(lock)


async def sweep(services: Services, name: str) -> int:
    """`OwnedSegments.sweep`, which needs no lock: what is noted belongs to nobody."""
    changes = SegmentChanges(services.logs, name)
    noted = await changes.noted()
    try:
        for ledger_id in noted:
            await services.ledgers.delete(ledger_id)
            await changes.forget(ledger_id)
    except DistributedLogError:
        services.counters["purged-ledger-left"] += 1
        raise
    if noted:
        await changes.forget_all()
    return len(noted)


# ------------------------------------------------------------------ the rules of truncation

STATUS_VERSION = 2
"""The first metadata version that can say that a segment is truncated."""
MINIMUM_VERSION = 3
"""The first one that can say from where on it is not."""


def completed_head(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
    """The completed segments before the first one in progress."""
    return list(takewhile(lambda segment: not segment.in_progress, segments))


def truncation(segments: Sequence[SegmentMetadata], dlsn: DLSN) -> list[Change]:
    """What hides every record below `dlsn`, oldest segment first; nothing for DLSN.INVALID.

    A segment of an old metadata version that cannot say what it would have to ends the truncation before it.
    """
    changes: list[Change] = []
    for segment in completed_head(segments):
        last = DLSN(segment.lssn, segment.last_entry, segment.last_slot)
        if last < dlsn and segment.version >= STATUS_VERSION:
            if not is_truncated(segment):
                changes.append((segment, replace(segment, truncation=TruncationStatus.TRUNCATED)))
            continue
        if DLSN(segment.lssn, 0, 0) < dlsn <= last and segment.version >= MINIMUM_VERSION:
            changes += _partial(segment, dlsn)
        break
    return changes


def _partial(segment: SegmentMetadata, dlsn: DLSN) -> list[Change]:
    """Raise the segment's minimum to `dlsn`, unless it is there already."""
    if is_truncated(segment) or first_active(segment) >= dlsn:
        return []
    hidden = replace(
        segment,
        truncation=TruncationStatus.PARTIALLY_TRUNCATED,
        min_entry=dlsn.entry_id,
        min_slot=dlsn.slot_id,
    )
    return [(segment, hidden)]


def truncation_point(segments: Sequence[SegmentMetadata]) -> DLSN:
    """The first position that is not hidden; DLSN.INITIAL for a log without segments."""
    for segment in segments:
        if not is_truncated(segment):
            return first_active(segment)
    return DLSN(segments[-1].lssn + 1, 0, 0) if segments else DLSN.INITIAL


def with_changes(segments: Sequence[SegmentMetadata], changes: Sequence[Change]) -> list[SegmentMetadata]:
    """The list once `changes` are applied to it."""
    new = {before.lssn: after for before, after in changes}
    return [segment if segment.in_progress else new.get(segment.lssn, segment) for segment in segments]
