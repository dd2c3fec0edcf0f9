"""`OwnedSegments`: what the holder of a log's lock may do to its segments: truncate, purge, delete.

Each operation reads the list, decides, and changes the list in transactions that fail unless the lock is held. After a
lost answer, or when the list has moved on meanwhile, it starts again from the list as it is then: every decision may be
made twice. Two truncations of one owner go one after the other, because the later one must build on the earlier one's
outcome (I8); of two owners only one has the lock. A ledger is deleted only once its segment is off the list (I7): the
transaction that takes the segment off notes the ledger, and `sweep` deletes what is noted. Sweeping needs no lock, for
no log refers to these ledgers.

Truncation hides and never deletes; deleting is for retention (`deletion`). Its rules are pure functions on a list of
segments, at the end of this file:

    segment ends below the DLSN         TRUNCATED
    the DLSN lies within the segment    PARTIALLY_TRUNCATED, the DLSN is its minimum active position
    it begins at or above the DLSN      stays, and so does everything behind it

Where older segments lie in files alone (`metadata.distributedlog.cold_units`) they are hidden by the same transactions,
all of them at once; an owner lists segments first and reads what is said of files behind that, since a segment leaves
the list for a file.

They look only at the completed segments at the head of the list. A segment in progress, and all behind it, stay as they
are. A truncation never moves back: what is hidden stays hidden, a minimum only rises (I8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segments import first_active, first_left, is_truncated
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import WriteLock, release
from metadata.distributedlog.cold_units import Position, end_of
from metadata.distributedlog.locks import DistributedLock
from metadata.distributedlog.segment_changes import Change, SegmentChanges, SegmentsMovedError
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError, NoNodeError
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, Check

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Rule: TypeAlias = Callable[[Sequence[SegmentMetadata]], list[SegmentMetadata]]
"""Chooses the segments of a list that may be deleted."""


class OwnedSegments:
    """Changes that the holder of `lock` may make to the log `name`. The caller takes the lock and releases it."""

    def __init__(self, services: Services, name: str, lock: WriteLock) -> None:
        self.name = name
        self.lock = lock
        self.unswept = True
        """True if there may be noted ledgers that are still to be deleted."""
        self._services = services
        self._changes = SegmentChanges(services.logs, name)
        self._subscriptions = Subscriptions(services.logs, name)
        self._truncating = asyncio.Lock()

    def guard(self) -> Check:
        """Return an operation to be part of a transaction, which then fails unless the lock is held."""
        return Check(self.lock.member_path, ANY_VERSION)

    async def _settled(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run `attempt`, which begins by reading the list, until no other client has changed the list meanwhile."""
        for _ in range(MAX_REPEATS - 1):
            await self.lock.ensure_held()
            try:
                return await repeat(self._services.store, attempt)
            except SegmentsMovedError:
                self._services.counters["segments-moved"] += 1
        return await repeat(self._services.store, attempt)

    async def _segments(self) -> list[SegmentMetadata]:
        """Return the list, with all changes in it that this session has sent, answered or not."""
        # After a lost answer a server that lags behind would show the list before our own change.
        await self._services.store.sync(self._services.logs.paths(self.name).ledgers)
        return await self._services.logs.hot_segments(self.name)

    async def list_changed_ms(self) -> int:
        """Return when the list last grew, by the metadata store's clock, in milliseconds since the epoch."""
        stat = await self._services.store.exists(self._services.logs.paths(self.name).ledgers)
        return 0 if stat is None else stat.mtime_ms

    # ------------------------------------------------------------------ truncation

    async def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False) -> DLSN:
        """Hide the records below `dlsn`; returns the log's first position afterwards.

        With `respect_subscribers` nothing is hidden that one of the log's subscribers has still to read. Raises
        CallerError, and LockingError or OwnershipAcquireFailedError where the lock was lost. After any error it may be
        called again.
        """
        wanted = as_dlsn(dlsn)

        async def attempt() -> DLSN:
            # Read anew with each attempt: a subscriber may have been added since, and it must find its records.
            subscribed = await self._subscriptions.positions() if respect_subscribers else {}
            turn = await self._changes.turn()
            segments = await self._segments()
            cold = await self._changes.cold()
            allowed = min([wanted, *subscribed.values()])
            changes = truncation(segments, allowed)
            after = with_changes(segments, changes)
            # What is not hidden of the list stays, and so does what lies behind it.
            hidden = position_of(min(allowed, truncation_point(after)))
            # `turn` was read before the list: another owner's change in between refuses this one (I8).
            await self._changes.mark(changes, self.guard, turn, cold, hidden)
            return truncation_point(after) if cold is None else await self._first_left()

        async with self._truncating:
            return await self._settled(attempt)

    async def _first_left(self) -> DLSN:
        """Return the log's first position for readers, in a file or on the list."""

        async def question(listing: SegmentListing) -> DLSN:
            left = await first_left(listing)
            if left is not None:
                return first_active(left[1])
            return DLSN(listing[-1].lssn + 1, 0, 0) if len(listing) else DLSN.INITIAL

        return await self._services.logs.ask(self.name, question)

    # ------------------------------------------------------------------ purging

    async def purge(self, rule: Rule, *, keeps_files: bool = False) -> int:
        """Take the segments that `rule` chooses off the list, then delete their ledgers; returns how many there were.

        The rule is given those that lie in files alone as well, and what it chooses of them is hidden for good. With
        `keeps_files` it is given the list alone, and while the log has files, or is about to, only what a truncation
        has hidden goes. Raises what `truncate` raises, and the error of a ledger that cannot be deleted: it stays noted
        for `sweep`.
        """
        removed: set[int] = set()

        async def attempt() -> None:
            hot = await self._segments()
            cold = await self._changes.cold()
            files = await self._only_in_files(hot) if cold is not None and not cold.value.deleted else []
            if keeps_files:
                chosen = rule(hot)
                if cold is not None and not cold.value.deleted and await self._has_files():
                    # What goes hides all before it, and its own copy in a file: that is the cold retention's alone to
                    # decide (I21). Asked behind `cold`: an attempt that began since refuses what is done below.
                    chosen = list(takewhile(is_truncated, chosen))
            else:
                chosen = rule([*files, *hot])
            doomed = chosen if not files or keeps_files else [one for one in chosen if one.lssn > files[-1].lssn]
            hidden = end_of(chosen[-1]) if chosen else (0, 0, 0)
            # Of all attempts: one whose answer was lost may have been applied, and the next does not find its segments.
            numbers = {segment.lssn for segment in doomed}
            removed.update(one.ledger_id for one in chosen if one.lssn in numbers or not is_truncated(one))
            self.unswept = self.unswept or bool(doomed)
            # Off the list and noted in one transaction; the ledgers are deleted only afterwards (I7).
            await self._changes.remove(doomed, self.guard, cold, hidden)

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

    async def _has_files(self) -> bool:
        """Return whether the log has a unit, hot copies or not, or an attempt at one."""
        paths = self._services.logs.paths(self.name)
        for parent in (paths.cold_units, paths.cold_attempts):
            try:
                names, _ = await self._services.store.children(parent)
            except NoNodeError:
                continue
            if names:
                return True
        return False

    async def _only_in_files(self, hot: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
        """Return the segments before those of the list, which lie in files alone; `hot` was read before this call."""

        async def question(listing: SegmentListing) -> list[SegmentMetadata]:
            # Those that have left the list since are on ours: what is done to them there fails then.
            after = listing.index_of(hot[0].lssn) if hot else len(listing)
            return [one for one in await listing.read_all(0, after) if one.cold is not None and not one.cold.listed]

        return await self._services.logs.ask(self.name, question)

    async def written(self) -> bool:
        """Return whether the log has, or has had, a segment, so that it may have been written to."""
        segments = await self._segments()
        return bool(segments) or (await self._services.logs.open(self.name)).max_lssn.value > 0

    async def clear(self) -> int:
        """Take every segment off the list, whatever its state, and delete its ledger. Only for a log that is to be
        deleted.

        Returns the version that it gave the znode `ledgers`: it moves with the next segment that begins. Raises
        as `purge`.
        """

        async def attempt() -> int:
            state = await self._services.logs.open(self.name)
            await self._changes.clear(state, await self._segments(), self.guard)
            return state.max_lssn.version + 1

        version = await self._settled(attempt)
        await self.sweep()
        return version

    async def sweep(self) -> int:
        """Delete the noted ledgers of segments that are off the list, also of earlier owners; returns how many.

        Raises the error of the first ledger that cannot be deleted: it stays noted, with those behind it.
        """
        swept = await sweep(self._services, self.name)
        self.unswept = False
        return swept


def position_of(dlsn: DLSN) -> Position:
    """Return a DLSN as what is said of files has it."""
    return (dlsn.lssn, dlsn.entry_id, dlsn.slot_id)


def as_dlsn(dlsn: DLSN | str) -> DLSN:
    """Return a DLSN, given as one or as its text. Raises CallerError."""
    if isinstance(dlsn, str):
        return DLSN.parse(dlsn)
    if not isinstance(dlsn, DLSN):
        raise CallerError(f"{dlsn!r} is not a DLSN; nothing was truncated", advice="Give a DLSN, or its text")
    return dlsn


@asynccontextmanager
async def taken(
    services: Services, name: str, settings: Settings, client_id: str, *, wait: bool = True
) -> AsyncIterator[OwnedSegments]:
    """Yield the segments of a log that no writer has open: the log's lock is held for the length of the block.

    Raises LogNotFoundError, and OwnershipAcquireFailedError with the owner's name after `lockTimeoutSeconds`; without
    `wait` at once, and no owner learns that the log was wanted.
    """
    await services.logs.check(name)  # A missing log is an error of its own, not of its lock.
    lock = DistributedLock(services.store, services.logs.paths(name).lock, client_id)
    await lock.acquire(settings.lock_timeout_s * 1000 if wait else 0)
    try:
        yield OwnedSegments(services, name, lock)
    finally:
        await release(lock)


async def sweep(services: Services, name: str) -> int:
    """Sweep as `OwnedSegments.sweep` does, which needs no lock: a noted ledger belongs to no log."""
    changes = SegmentChanges(services.logs, name)
    noted = await changes.noted()
    try:
        for ledger_id in noted:
            # Delete before forget: a note that is left over does no harm, a ledger without a note would stay for ever.
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
"""The first metadata version that can say from which position on a segment is not."""


def completed_head(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return the completed segments before the first one in progress."""
    return list(takewhile(lambda segment: not segment.in_progress, segments))


def truncation(segments: Sequence[SegmentMetadata], dlsn: DLSN) -> list[Change]:
    """Return the changes that hide every record below `dlsn`, oldest segment first; none for DLSN.INVALID.

    A segment whose metadata version cannot express its change ends the truncation before it.
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
        break  # What lies behind begins above `dlsn`, or must not be hidden before this segment is.
    return changes


def _partial(segment: SegmentMetadata, dlsn: DLSN) -> list[Change]:
    """Raise the segment's minimum to `dlsn`, unless it is there or above already (I8)."""
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
    """Return the first position that is not hidden; DLSN.INITIAL for a log without segments."""
    for segment in segments:
        if not is_truncated(segment):
            return first_active(segment)
    return DLSN(segments[-1].lssn + 1, 0, 0) if segments else DLSN.INITIAL


def with_changes(segments: Sequence[SegmentMetadata], changes: Sequence[Change]) -> list[SegmentMetadata]:
    """Return the list once `changes` are applied to it."""
    new = {before.lssn: after for before, after in changes}
    return [segment if segment.in_progress else new.get(segment.lssn, segment) for segment in segments]
