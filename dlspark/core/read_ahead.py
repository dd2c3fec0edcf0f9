"""`ReadAhead`: fetches a log's entries in order, ahead of their reader, and follows the log as it grows.

One task walks the segments. In a closed ledger it streams entries; in an open one it streams up to the last
confirmed entry and then long-polls for the next, so it waits without polling. That a ledger has ended is known from
the ledger itself (its metadata says CLOSED, with the last entry, for ever): it may be before or after the log's
metadata says so, and neither loses nor repeats an entry. The next segment is taken from the log's list, which a watch
keeps fresh, and only when every segment before it is completed: from then on its first sequence id is known.

Fetched entries wait in a queue bounded in entries and in bytes. Errors of storage nodes are waited out, for a while;
all others end the read-ahead, and its reader, for good. It ends by `close`, which leaves no task behind (I16).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from dlspark.core.dlsn import DLSN
from dlspark.core.segment_list import SegmentList
from dlspark.core.segments import first_active, is_truncated
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from dlspark.errors import (
    AlreadyTruncatedError,
    CallerError,
    CorruptDataError,
    DistributedLogError,
    InvariantViolation,
    ReadError,
    SegmentNotFoundError,
)
from metadata.errors import NoNodeError
from metadata.logs import SegmentMetadata
from metadata.tasks import end_tasks
from storage_node.client import LedgerReader
from storage_node.errors import UnauthorizedAccessError
from storage_node.protocol.digests import Entry

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 32 << 20
"""Bytes of entries that wait for the reader, besides the bound in entries."""
GIVE_UP_S = 120.0
"""How long storage nodes may fail a read before the reader fails."""
LEDGER_GONE_S = 10.0
"""How long a segment may be listed without its ledger: recovery removes an empty one's ledger first."""

_FINAL = (CallerError, CorruptDataError, InvariantViolation, UnauthorizedAccessError)


@dataclass(frozen=True, slots=True)
class FetchedEntry:
    """An entry with what it takes to decode it."""

    segment: SegmentMetadata
    start_sequence_id: int
    entry: Entry


class ReadAhead:
    """Entries of one log from `start` on, which may lie in the future; up to DLSN.INITIAL it means the earliest."""

    def __init__(self, services: Services, name: str, settings: Settings, start: DLSN) -> None:
        self.caught_up = False
        """Everything that was confirmed when the read-ahead last looked has been fetched."""
        self.first = start
        """Records below this are not to be delivered; moves up once, where a truncated start is skipped."""
        self._services = services
        self._name = name
        self._settings = settings
        self._list = SegmentList(services, name, settings)
        self._queue: deque[FetchedEntry] = deque()
        self._queued_bytes = 0
        self._error: DistributedLogError | None = None
        self._activity = asyncio.Event()
        self._room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ------------------------------------------------------------------ for the reader

    def use_settings(self, settings: Settings) -> None:
        """From the next step on: whoever waits for room or for something to happen looks again."""
        self._settings = settings
        self._list.use_settings(settings)
        self._room.set()
        self._activity.set()

    def take(self) -> FetchedEntry | None:
        """The next entry, None if none is there yet. Raises the final error once all entries before it are taken."""
        if self._queue:
            fetched = self._queue.popleft()
            self._queued_bytes -= len(fetched.entry.payload)
            self._room.set()
            return fetched
        if self._error is not None:
            raise self._error
        return None

    def peek(self) -> FetchedEntry | None:
        return self._queue[0] if self._queue else None

    async def activity(self) -> None:
        """Wait until something happens: an entry, an error, or the tail was reached."""
        if not self._queue and self._error is None:
            self._activity.clear()
            await self._activity.wait()

    async def close(self, error: DistributedLogError) -> None:
        """End; reads that wait, and later ones, get `error`."""
        await end_tasks([self._task])
        self._queue.clear()
        self._queued_bytes = 0
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
            segment = await self._segment(position)
            position = await self._read_segment(segment, position)

    async def _first_position(self) -> DLSN:
        """Where to start: the asked position, or the first one that is left if that is allowed (section 6.2)."""
        settings = self._settings
        while not await self._list.load():
            await self._wait_for_change()
        segments = self._list.segments
        left = segments if settings.ignore_truncation else [s for s in segments if not is_truncated(s)]
        if not left:
            earliest = DLSN(segments[-1].lssn + 1, 0, 0)
        else:
            earliest = DLSN(left[0].lssn, 0, 0) if settings.ignore_truncation else first_active(left[0])
        if self.first >= earliest:
            return self.first
        if self.first > DLSN.INITIAL and settings.fail_on_truncated and self._lost(earliest):
            raise AlreadyTruncatedError(
                f"position {self.first} was truncated; the log begins at {earliest}",
                log=self._name,
                dlsn=self.first,
                advice=f"Start at {earliest}, or set alertPositionOnTruncated=false to go on there",
            )
        self.first = earliest
        return earliest

    def _lost(self, earliest: DLSN) -> bool:
        """Whether there was a record at or after the start and before `earliest`; assumed where nothing tells."""
        if self.first.lssn < self._list.segments[0].lssn or earliest > DLSN(earliest.lssn, 0, 0):
            return True
        hidden = (segment for segment in self._list.segments if segment.lssn < earliest.lssn)
        return any(DLSN(segment.lssn, segment.last_entry, segment.last_slot) >= self.first for segment in hidden)

    async def _segment(self, position: DLSN) -> SegmentMetadata:
        """The segment of `position`, as soon as it exists and those before it are completed."""
        lssn = position.lssn
        while True:
            segments = await self._list.load()
            earlier_open = any(s.in_progress and s.lssn < lssn for s in segments)
            found = next((s for s in segments if s.lssn == lssn), None)
            if found is not None and not earlier_open:
                self._check_truncation(found, max(position.entry_id, 0))
                return found
            if found is None and any(s.lssn > lssn for s in segments):
                raise self._removed(DLSN(lssn, 0, 0))
            await self._wait_for_change()

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

    def _removed(self, position: DLSN) -> AlreadyTruncatedError:
        return AlreadyTruncatedError(
            f"segment {position.lssn} was removed before it was read",
            log=self._name,
            dlsn=position,
            advice="Start again at the log's first record; what was between is not kept",
        )

    # ------------------------------------------------------------------ one segment

    async def _read_segment(self, segment: SegmentMetadata, position: DLSN) -> DLSN:
        """Fetch a segment from `position` to its end; returns where to go on.

        That is the same place again if the segment was empty and removed by recovery: its number is given once more.
        """
        follower = _SegmentFollower(self, segment, max(position.entry_id, 0))
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
        await self._list.load()
        listed = self._list.find(segment)
        if listed is not None:
            self._check_truncation(listed, next_entry)
            return True
        if segment.in_progress and next_entry == 0:
            return False
        raise self._removed(DLSN(segment.lssn, next_entry, 0))

    async def completed(self, segment: SegmentMetadata) -> bool:
        """Wait until an ended segment is completed; False if it is gone, as recovery removes an empty one.

        The number of a removed segment is given to another one, which a reader that went on here would miss.
        """
        while segment.in_progress:
            await self._list.load()
            listed = self._list.find(segment)
            if listed is None:
                return False
            segment = listed
            if segment.in_progress:
                await self._wait_for_change()
        return True

    async def ledger_gone(self, segment: SegmentMetadata, next_entry: int, cause: DistributedLogError) -> None:
        """The list has a segment without a ledger: wait until it is gone from the list as well, or fail."""
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
        """Queue an entry, when there is room."""
        while self._full():
            self._room.clear()
            await self._room.wait()
        self.caught_up = False
        self._queue.append(fetched)
        self._queued_bytes += len(fetched.entry.payload)
        self._activity.set()

    def _full(self) -> bool:
        if not self._queue:
            return False
        return len(self._queue) >= self._settings.read_ahead_entries or self._queued_bytes >= MAX_QUEUED_BYTES

    def reached_tail(self) -> None:
        """Nothing more is confirmed at present."""
        self.caught_up = True
        self._activity.set()

    @property
    def services(self) -> Services:
        return self._services

    @property
    def settings(self) -> Settings:
        return self._settings

    def start_sequence_id(self, segment: SegmentMetadata) -> int:
        """First sequence id of a segment: stored once it is completed, else where the one before it ended."""
        if not segment.in_progress:
            return segment.effective_start_sequence_id
        before = next((s for s in self._list.segments if s.lssn == segment.lssn - 1), None)
        if before is None or before.version < 5 or segment.version < 5:
            return 0 if before is None and segment.version >= 5 else segment.effective_start_sequence_id
        return before.effective_start_sequence_id + before.record_count


class _SegmentFollower:
    """Fetches one segment's entries from `next_entry` on, until its ledger is closed and all of it was fetched."""

    def __init__(self, owner: ReadAhead, segment: SegmentMetadata, next_entry: int) -> None:
        self.next_entry = next_entry
        self._owner = owner
        self._segment = segment
        self._start_sequence_id = owner.start_sequence_id(segment)
        self._ledger: LedgerReader | None = None
        self._asked_for_lac = True  # Opening has asked.
        self._failures = 0
        self._failing_since = 0.0

    async def run(self) -> bool:
        """True at the segment's end; False if it was empty and is gone."""
        while True:
            try:
                if not await self._owner.still_there(self._segment, self.next_entry):
                    return False
                if await self._step():
                    return self.next_entry > 0 or await self._owner.completed(self._segment)
            except NoNodeError as error:
                await self._owner.ledger_gone(self._segment, self.next_entry, error)
                return False
            except _FINAL:
                raise
            except ReadError:
                raise
            except DistributedLogError as error:
                await self._wait_out(error)

    async def _step(self) -> bool:
        """Fetch what is confirmed, or wait for one more entry; True at the segment's end."""
        ledger = await self._open()
        if self.next_entry <= ledger.last_add_confirmed:
            await self._fetch(ledger)
            return False
        if ledger.closed:
            return True
        if not self._asked_for_lac:
            # The tail has moved on while entries were streamed; only the storage nodes know how far.
            await ledger.read_last_confirmed()
            self._asked_for_lac = True
            return False
        self._owner.reached_tail()
        entry = await ledger.poll(self.next_entry, self._owner.settings.long_poll_ms)
        self._failures = 0
        if entry is not None:
            await self._put(entry)
        return False

    async def _open(self) -> LedgerReader:
        if self._ledger is None:
            owner = self._owner
            self._ledger = await owner.services.ledgers.open(
                self._segment.ledger_id, password=owner.settings.password, recover=False
            )
        return self._ledger

    async def _fetch(self, ledger: LedgerReader) -> None:
        window = self._owner.settings.prefetch_entries
        entries = ledger.entries(self.next_entry, ledger.last_add_confirmed, window_entries=window)
        try:
            async for entry in entries:
                await self._put(entry)
                self._failures = 0
                if not await self._owner.still_there(self._segment, self.next_entry):
                    return
        finally:
            await entries.aclose()
        self._asked_for_lac = False

    async def _put(self, entry: Entry) -> None:
        await self._owner.put(FetchedEntry(self._segment, self._start_sequence_id, entry))
        self.next_entry = entry.entry_id + 1

    async def _wait_out(self, error: DistributedLogError) -> None:
        """Pause after a failure of storage nodes; raise ReadError when it has lasted too long."""
        loop = asyncio.get_running_loop()
        if not self._failures:
            self._failing_since = loop.time()
        self._failures += 1
        if loop.time() - self._failing_since > GIVE_UP_S:
            raise ReadError(
                f"segment {self._segment.lssn} could not be read for {GIVE_UP_S:.0f} s: {error}",
                dlsn=DLSN(self._segment.lssn, self.next_entry, 0),
                advice="Open another reader at this position when the storage nodes are back",
            ) from error
        _log.warning("segment %s, entry %s cannot be read yet: %s", self._segment.lssn, self.next_entry, error)
        self._owner.services.counters["read-retried"] += 1
        await asyncio.sleep(min(self._failures, 4) * self._owner.settings.read_ahead_wait_ms / 1000)

    async def close(self) -> None:
        if self._ledger is not None:
            await self._ledger.close()
