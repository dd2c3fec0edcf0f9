"""`LogReadAhead`: fetches a log's entries in order, ahead of their reader, and follows the log as it grows.

One task walks the segments (`SegmentFollower`). In a closed ledger it streams entries; in an open one it streams up to
the last confirmed entry and then makes one long poll for the next. Only the ledger says that it has ended (its metadata
says CLOSED, with the last entry, for ever: I2). The log's metadata may say so earlier or later; neither loses or
repeats an entry. The next segment is taken from the log's list, which a watch keeps fresh, and only when every segment
before it is completed: from then on its first sequence id is known, and no segment before it can still be removed and
its number be given again.

Fetched entries wait in a queue bounded in entries and in bytes. Errors of storage nodes are waited out, for a while;
all others end the read-ahead, and its reader, for good. `close` ends it and leaves no task behind (I16).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.beginnings import beginning
from dlspark.core.reading.segment_follower import FetchedEntry, SegmentFollower
from dlspark.core.reading.segment_list import SegmentList
from dlspark.core.reading.segments import first_active, is_truncated, start_sequence_id
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, ReadError, SegmentNotFoundError
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, UnsupportedMetadataVersionError
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks

MAX_QUEUED_BYTES = 32 << 20
"""Bytes of entries that wait for the reader, besides the bound in entries."""
LEDGER_GONE_S = 10.0
"""How long a segment may be listed without its ledger: recovery removes an empty one's ledger first."""


class LogReadAhead:
    """Entries of one log from `start` on, which may lie in the future; up to DLSN.INITIAL it means the earliest."""

    def __init__(self, services: Services, name: str, settings: Settings, start: DLSN, creation: int = -1) -> None:
        """Read nothing before `start`. `creation` says which log of that name is meant (see `SegmentList`); -1 takes
        whichever it finds first."""
        self.caught_up = False
        """Everything that was confirmed when the read-ahead last looked has been fetched."""
        self.first = start
        """Records below this are not to be delivered; moves up once, where a truncated start is skipped."""
        self.passed = start
        """All entries before this were queued. It moves from segment to segment, also past where the last one ended."""
        self._services = services
        self._name = name
        self._settings = settings
        self._list = SegmentList(services, name, settings, creation)
        self._queue: deque[FetchedEntry] = deque()
        self._queued_bytes = 0
        self._error: DistributedLogError | None = None
        self._activity = asyncio.Event()
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.measures = services.meter.of(name)
        self._forget_gauges = (
            self.measures.read_ahead_queued_entries.follow(self, lambda ahead: len(ahead._queue)),
            self.measures.read_ahead_queued_bytes.follow(self, lambda ahead: ahead._queued_bytes),
        )
        self._follower: SegmentFollower | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ------------------------------------------------------------------ for the reader

    @property
    def lag_s(self) -> float | None:
        """How far the end of what is confirmed may be behind (`AsyncLogReader.lag_s`)."""
        return None if self._follower is None else self._follower.lag_s

    @property
    def creation(self) -> int:
        """The creation number of the log that it follows; -1 until it has read the list."""
        return self._list.creation

    def use_settings(self, settings: Settings) -> None:
        """Use `settings` from the next step on. Waits for room or activity end early, to look at them."""
        self._settings = settings
        self._list.use_settings(settings)
        self._room.set()
        self._activity.set()

    def take(self) -> FetchedEntry | None:
        """Take the next entry; None if none is there yet. Raises the final error once all before it are taken."""
        if self._queue:
            fetched = self._queue.popleft()
            self._queued_bytes -= len(fetched.payload)
            self._room.set()
            if fetched.fetched_at is not None:
                self.measures.read_ahead_delivery.record(self._loop.time() - fetched.fetched_at)
            return fetched
        if self._error is not None:
            raise self._error
        return None

    def put_back(self, entries: Sequence[FetchedEntry]) -> None:
        """Put entries back that were taken last, in their order: they are the next ones again."""
        self._queue.extendleft(reversed(entries))
        self._queued_bytes += sum(len(fetched.payload) for fetched in entries)

    def peek(self) -> FetchedEntry | None:
        """Return the next entry, which stays in the queue; None if none is there yet."""
        return self._queue[0] if self._queue else None

    def has_queued(self, position: DLSN) -> bool:
        """Return whether the entry of `position` is among those fetched and not yet taken, or comes before the first of
        them in the same segment."""
        if not self._queue:
            return False
        last = self._queue[-1]
        return DLSN(self._queue[0].segment.lssn, 0, 0) <= position < DLSN(last.segment.lssn, last.entry_id + 1, 0)

    def wake(self) -> None:
        """End a wait in `activity`, so that the reader looks again."""
        self._activity.set()

    async def activity(self) -> None:
        """Wait until something happens: an entry, an error, or the tail was reached. May also return early."""
        if not self._queue and self._error is None:
            self._activity.clear()
            await self._activity.wait()

    async def close(self, error: DistributedLogError) -> None:
        """End the read-ahead; reads that wait, and later ones, raise `error`. What was fetched is dropped."""
        # The task first: it would set a watch again, and fill the queue (I16).
        await end_tasks([self._task])
        self._list.close()
        self._queue.clear()
        self._queued_bytes = 0
        for forget in self._forget_gauges:
            forget()
        self._end(error)

    # ------------------------------------------------------------------ the task

    async def _run(self) -> None:
        try:
            await self._follow()
        except DistributedLogError as error:
            if error.log is None:
                error.log = self._name
            self._end(error)
        except Exception as error:
            failure = ReadError(f"the read-ahead failed: {error!r}", log=self._name)
            failure.__cause__ = error
            self._end(failure)

    def _end(self, error: DistributedLogError) -> None:
        self._error = error
        self._activity.set()

    async def _follow(self) -> None:
        position = await self._first_position()
        while True:
            self.passed = position
            segment = await self._segment(position)
            position = await self._read_segment(segment, position)

    async def _first_position(self) -> DLSN:
        """Return where to start: at the position asked for, or, if that is allowed, at the first position that is
        left."""
        while not len(await self._list.load()):
            await self._wait_for_change()
        self.first = await beginning(self._name, self._list, self.first, self._settings, self._services.counters)
        return self.first

    async def _segment(self, position: DLSN) -> SegmentMetadata:
        """Return the segment of `position`, as soon as it exists and those before it are completed."""
        lssn = position.lssn
        while True:
            listing = await self._list.load()
            # Records go in order (I4): while a segment before it is open, more may come that belongs before this one.
            earlier_open = any(listed.lssn < lssn for listed in listing.open)
            if listing.find(lssn) is not None and not earlier_open:
                self._check_numbered(listing, lssn)
                found = await self._list.segment(lssn)
                if found is None:
                    continue  # The list has changed.
                self._check_truncation(found, max(position.entry_id, 0))
                return found
            if listing.find(lssn) is None and len(listing) and listing[-1].lssn > lssn:
                raise self._removed_error(DLSN(lssn, 0, 0))
            await self._wait_for_change()

    def _check_numbered(self, listing: SegmentListing, lssn: int) -> None:
        """Raise where several segments have the number of the position, so that none is passed over."""
        same = listing.index_of(lssn + 1) - listing.index_of(lssn)
        if same > 1:
            raise UnsupportedMetadataVersionError(
                f"{same} segments have the number {lssn}: nothing of them was delivered",
                log=self._name,
                advice="Segments of version 1 have no numbers: of a log with several, copy each one's records "
                "to another log with a library that can",
            )

    async def _wait_for_change(self) -> None:
        self.reached_tail()
        await self._list.changed()

    def _check_truncation(self, segment: SegmentMetadata, next_entry: int) -> None:
        """Raise if truncation has hidden entries that would be delivered next (I8)."""
        if self._settings.ignore_truncation:
            return
        after = segment.last_entry + 1 if is_truncated(segment) else first_active(segment).entry_id
        if after > next_entry:
            raise AlreadyTruncatedError(
                f"segment {segment.lssn} was truncated before it was read",
                log=self._name,
                dlsn=DLSN(segment.lssn, next_entry, 0),
                advice="Start again at the log's first record; what was between is not kept",
            )

    def _removed_error(self, position: DLSN) -> AlreadyTruncatedError:
        return AlreadyTruncatedError(
            f"segment {position.lssn} was removed before it was read",
            log=self._name,
            dlsn=position,
            advice="Start again at the log's first record; what was between is not kept",
        )

    # ------------------------------------------------------------------ one segment

    async def _read_segment(self, segment: SegmentMetadata, position: DLSN) -> DLSN:
        """Fetch a segment from `position` to its end; returns where to go on.

        That is the same position again if the segment was empty and recovery removed it: its number is given again.
        """
        first = await self._list.ask(lambda listing: start_sequence_id(listing, segment))
        follower = self._follower = SegmentFollower(self, segment, first, max(position.entry_id, 0))
        try:
            if await follower.run():
                return position.next_segment
            return DLSN(position.lssn, follower.next_entry, position.slot_id)
        finally:
            await follower.close()

    async def still_there(self, segment: SegmentMetadata, next_entry: int) -> bool:
        """Look at the list if it changed: False if `segment` was empty and is gone. Raises if it was truncated."""
        if not self._list.stale:
            return True
        listed = await self._list.find(segment)
        if listed is not None:
            self._check_truncation(listed, next_entry)
            return True
        # Recovery removes only segments without records; one that had an entry was truncated or deleted (I8).
        if segment.in_progress and next_entry == 0:
            return False
        raise self._removed_error(DLSN(segment.lssn, next_entry, 0))

    async def completed(self, segment: SegmentMetadata) -> bool:
        """Wait until an ended segment is completed; False if recovery removed it, as it does with an empty one.

        The number of a removed segment is given to another one, which a reader that went on behind it would miss (I4).
        """
        while segment.in_progress:
            listed = await self._list.find(segment)
            if listed is None:
                return False
            segment = listed
            if segment.in_progress:
                await self._wait_for_change()
        return True

    async def ledger_gone(self, segment: SegmentMetadata, next_entry: int, cause: DistributedLogError) -> None:
        """Wait until a segment whose ledger is missing leaves the list too; raise SegmentNotFoundError if it stays.

        Recovery removes an empty segment's ledger first (I10), so for a moment this is not an error.
        """
        deadline = asyncio.get_running_loop().time() + LEDGER_GONE_S
        while await self.still_there(segment, next_entry):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._list.changed(left):
                raise SegmentNotFoundError(
                    f"ledger {segment.ledger_id} of segment {segment.lssn} does not exist",
                    log=self._name,
                    dlsn=DLSN(segment.lssn, next_entry, 0),
                    advice="The segment's data was deleted outside of the log; start after it",
                ) from cause

    async def put(self, fetched: FetchedEntry) -> None:
        """Queue an entry; waits until there is room."""
        while self._full():
            self._room.clear()
            await self._room.wait()
        self.caught_up = False
        self._queue.append(fetched)
        self._queued_bytes += len(fetched.payload)
        self._activity.set()

    def _full(self) -> bool:
        if not self._queue:
            return False  # One entry is always taken, whatever its size, or the reader would wait for ever.
        return len(self._queue) >= self._settings.read_ahead_entries or self._queued_bytes >= MAX_QUEUED_BYTES

    def reached_tail(self) -> None:
        """Note that nothing more is confirmed at present: the reader has caught up once the queue is empty."""
        self.caught_up = True
        lag_s = self.lag_s
        if lag_s is not None:
            self.measures.reader_region_lag.record(lag_s)
        self._activity.set()

    @property
    def name(self) -> str:
        """The log's name."""
        return self._name

    @property
    def services(self) -> Services:
        """The namespace's services."""
        return self._services

    @property
    def settings(self) -> Settings:
        """The settings that hold now."""
        return self._settings
