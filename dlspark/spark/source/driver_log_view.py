"""One log as the driver of a source sees it: where it begins and ends, how many records lie between, what to read.

Everything is found from segment metadata and a few entries: positions by transaction id or by count of records are
searched, never scanned for. A view lives as long as a query (or one plan); it reads the segment list again only when
its watch fired, and asks the LAC of the segment that is still being written anew each time.

What lies behind a segment in progress does not exist for a reader yet: the view ends with the first such segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import EntrySummary
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.transitions import lssn_without_segments
from dlspark.spark.errors import RecreatedDataLossError
from dlspark.spark.source.offsets import LogIdentity
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.segment_records import SegmentRecords
from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.distributedlog.segments import UNKNOWN_LEDGER, SegmentMetadata, TruncationStatus
from metadata.foundation.errors import InvariantViolation, NoNodeError, check
from metadata.foundation.tasks import end_tasks
from metadata.store import WatchEvent
from storage_node.client.reader import LedgerLocation, ReplicaReader
from storage_node.errors import NoSuchEntryError, NoSuchLedgerError

MAX_PARALLEL_LOOKUPS = 32
"""Ledgers whose metadata is read at the same time while planning."""

UNKNOWN_ENTRY_BYTES = 64 << 10
"""Assumed size of an entry of a ledger that is still open: its metadata has no length yet."""

LONG_POLL_MS = 1_000
"""How long a storage node may hold back its answer at the tail."""

_MAX_SIZES = 4096
"""Ledgers, and positions in them, whose stored bytes a view keeps."""


class DriverLogView:
    """The driver's view of one log; only one call at a time."""

    def __init__(self, namespace: AsyncNamespace, log: AsyncLog) -> None:
        self.name = log.name
        self.probes = log.probes
        """What searches have read."""
        self._namespace = namespace
        self._log = log
        self.cluster = ""
        """The id of the cluster, as in `LogIdentity`; "" where it is not known."""
        self._sessions: tuple[int, int] | None = None
        """The sessions in which the list was read; the one with the ledgers has no watch of ours."""
        self._segments: list[SegmentMetadata] = []
        self._records = SegmentRecords(log)
        self._locations: dict[int, LedgerLocation] = {}
        self._max_lssn = 0
        self._next_lssn = 1
        self._known_end: DLSN | None = None
        self._sizes: dict[int, tuple[int, int]] = {}
        self._lengths: dict[tuple[int, int], int] = {}
        self._changed = asyncio.Event()
        self._changed.set()

    @classmethod
    async def open(cls, namespace: AsyncNamespace, name: str) -> DriverLogView:
        """Open a view of the log. Raises LogNotFoundError if it does not exist."""
        view = cls(namespace, await namespace.open_log(name))
        try:
            await view._refresh()
        except BaseException:
            await view.close()
            raise
        return view

    async def close(self) -> None:
        """Close the log and the readers of its segments' entries."""
        await self._records.close()
        await self._log.close()

    # ------------------------------------------------------------------ where the log begins and ends

    def earliest(self) -> DLSN:
        """Return the first position that is still there (I8)."""
        for segment in self._segments:
            if segment.truncation is TruncationStatus.TRUNCATED:
                continue
            return _first_position(segment)
        return _end_position(self._segments[-1]) if self._segments else DLSN(self._next_lssn, 0, 0)

    def lost_before(self, position: DLSN) -> bool:
        """Return whether records at or above `position`, which lies before `earliest`, are gone.

        Segments that were truncated but are still listed show what they held. Of deleted ones nothing is known, so
        they count as lost. So do all of a log that has no segments and had some: its deletion goes on, or was cut off.
        """
        if not self._segments:
            return self._max_lssn > 0
        if position.lssn < self._segments[0].lssn:
            return True
        for segment in self._segments:
            if segment.truncation is not TruncationStatus.TRUNCATED:
                return (segment.min_entry, segment.min_slot) > (0, 0)
            if segment.last_entry >= 0 and position < _end_position(segment):
                return True
        return False

    async def latest(self, *, acknowledged: bool = False) -> DLSN:
        """Return the position after the last user record that is committed now: control records do not make news.

        With `acknowledged` it is not before what is acknowledged now: readers learn of that a moment later, and this
        waits for it.
        """
        await self._refresh()
        self._known_end = await self._end(acknowledged=acknowledged)
        return self._known_end

    async def _end(self, *, acknowledged: bool = False) -> DLSN:
        """Return the end within the segments as last listed."""
        return max(await self._last_end(acknowledged), self.earliest())

    async def _last_end(self, acknowledged: bool) -> DLSN:
        for segment in reversed(self._visible()):
            if segment.in_progress:
                tail = await self._records.look_at_tail(segment, acknowledged=acknowledged)
                if tail.end is not None:
                    return tail.end
            elif segment.last_entry >= 0:
                return _end_position(segment)
        return self.earliest()

    async def at_txid(self, txid: int) -> DLSN | None:
        """Return the first record whose transaction id is `txid` or higher; None if there is none yet."""
        await self._refresh()
        found = await self._log.find_txid(txid)
        return found if found < await self.latest() else None

    async def beyond_end(self, position: DLSN) -> bool:
        """Return whether the log cannot have such a position (yet): the identity of a log that was deleted and created
        again.

        The LAC that this reader learns may lie below one that an earlier reader saw (the node that knew it is down), so
        in the open segment the entry itself decides.
        """
        # An end that was found is not asked for again: committed records stay, unless the segment list changes (I6).
        known = not self._changed.is_set() and self._known_end is not None and position <= self._known_end
        if known or position <= await self.latest():
            return False
        last = self._visible()[-1] if self._segments else None
        if last is None:
            return position > DLSN(self._max_lssn + 1, 0, 0)
        if position.lssn > last.lssn:
            return position > DLSN(last.lssn + 1, 0, 0)
        if position.lssn < last.lssn:
            # Between two segments: behind the last record of one and before the first of the next.
            return False
        if not last.in_progress:
            return position > DLSN(last.lssn, max(last.last_entry, await self._lac(last)) + 1, 0)
        needed = position.entry_id - (0 if position.slot_id else 1)
        if needed <= await self._lac(last):
            return False
        return not await self._is_stored(last, needed)

    # ------------------------------------------------------------------ which log it is

    def identity(self, position: DLSN) -> LogIdentity | None:
        """Return what distinguishes this log from a later one of its name, for a reader that has come to `position`.

        The segment at the position, unless nothing of it was read and it may yet prove empty: then it is removed and
        its number given to another ledger. Then the one before. None: nothing has been read that is still listed.
        """
        for segment in reversed(self._segments):
            here = segment.lssn == position.lssn and (position[1:] > (0, 0) or segment.last_entry >= 0)
            known = segment.lssn >= 1 and segment.first_ledger != UNKNOWN_LEDGER
            if known and (here or segment.lssn < position.lssn):
                return LogIdentity(segment.lssn, segment.first_ledger, self.cluster)
        return None

    def differs(self, identity: LogIdentity | None) -> bool:
        """Return whether this is certainly not the log that the identity was made of."""
        if identity is None:
            return False
        here = identity.same_cluster(self.cluster)
        if not here and not any(segment.from_files for segment in self._segments):
            return True
        return any(
            segment.lssn == identity.lssn
            and not (segment.was_ledger(identity.ledger_id) and (here or segment.from_files))
            for segment in self._segments
        )

    # ------------------------------------------------------------------ records between positions

    async def count(self, start: DLSN, end: DLSN) -> int:
        """User records from `start` to before `end`; found from segment metadata and at most two entries."""
        return sum([here async for _, _, here in self._counts(start, end)])

    async def advance(self, start: DLSN, end: DLSN, records: int) -> DLSN:
        """Return the position `records` user records after `start`, at most `end`; one binary search in one segment."""
        left = records
        async for segment, first, here in self._counts(start, end):
            if left < here:
                return DLSN(segment.lssn, *await self._records.located(segment, first + left + 1))
            left -= here
            if left == 0:
                return end if segment.lssn == end.lssn else _end_position(segment)
        return end

    async def record_at(self, start: DLSN, end: DLSN, number: int) -> tuple[int, int]:
        """Segment and transaction id of user record `number`, counted from 0, of those from `start` to before `end`.

        Raises InvariantViolation if there are not that many.
        """
        left = number
        async for segment, first, here in self._counts(start, end):
            if left < here:
                entry_id, slot_id = await self._records.located(segment, first + left + 1)
                records = await (await self._records.reader(segment)).records(entry_id)
                return segment.lssn, next(record.txid for record in records if record.dlsn.slot_id == slot_id)
            left -= here
        raise InvariantViolation(f"record {number} lies behind the end", log=self.name, dlsn=end)

    async def _counts(self, start: DLSN, end: DLSN) -> AsyncIterator[tuple[SegmentMetadata, int, int]]:
        """Yield each segment of a range, how many user records of it lie before the range, and how many in it."""
        for segment in self._between(start, end):
            first = await self._records.count_before(segment, start) if segment.lssn == start.lssn else 0
            last = (
                await self._records.count_before(segment, end)
                if segment.lssn == end.lssn
                else await self._records.count(segment)
            )
            yield segment, first, max(0, last - first)

    # ------------------------------------------------ what a lag is measured by (`source.extents`)

    def between(self, start: DLSN, end: DLSN) -> list[SegmentMetadata]:
        """Return the segments that hold what lies from `start` to `end`, as last listed."""
        return list(self._between(start, end))

    async def entry(self, segment: SegmentMetadata, entry_id: int) -> EntrySummary:
        """Return counts and transaction ids of one committed entry."""
        return await self._records.entry(segment, entry_id)

    async def stored(self, segment: SegmentMetadata) -> tuple[int, int]:
        """Return bytes and entries of a segment's ledger: of the one in progress up to its present LAC, of a cold one
        as they were."""
        if segment.in_progress:
            reader = await self._records.reader(segment)
            last = reader.lac
            return (await reader.stored_bytes(last) if last >= 0 else 0), last + 1
        if segment.cold is not None and not segment.cold.listed:
            return segment.cold.ledger_bytes, segment.last_entry + 1
        found = self._sizes.get(segment.ledger_id)
        if found is None:
            ledger = (await self._namespace.services.ledger_store.read(segment.ledger_id)).value
            found = ledger.length, ledger.last_entry + 1
            if ledger.is_closed:
                if len(self._sizes) >= _MAX_SIZES:
                    self._sizes.clear()
                self._sizes[segment.ledger_id] = found
        return found

    async def stored_to(self, segment: SegmentMetadata, entry_id: int) -> int:
        """Return bytes of a segment's ledger up to a committed entry, itself included; 0 for entry -1."""
        if entry_id < 0:
            return 0
        key = (segment.ledger_id, entry_id)
        found = self._lengths.get(key)
        if found is None:
            found = await (await self._records.reader(segment)).stored_bytes(entry_id)
            if len(self._lengths) >= _MAX_SIZES:
                self._lengths.clear()
            self._lengths[key] = found
        return found

    # ------------------------------------------------------------------ what to read

    async def spans(self, start: DLSN, end: DLSN) -> list[SegmentSpan]:
        """Return what tasks have to read from `start` to before `end`: complete, so that they need no ZooKeeper."""
        limit = asyncio.Semaphore(MAX_PARALLEL_LOOKUPS)
        ranges = [
            (segment, first, stop)
            for segment in self._between(start, end)
            for first, stop in [self._range(segment, start, end)]
            if first < stop
        ]
        return list(await asyncio.gather(*(self._span(*item, limit) for item in ranges)))

    def _range(self, segment: SegmentMetadata, start: DLSN, end: DLSN) -> tuple[DLSN, DLSN]:
        """Return the part of a segment between two positions: first record to read, and the position after the last."""
        first = max(start, _first_position(segment))
        if segment.lssn < end.lssn:
            check(not segment.in_progress, "an offset lies behind a segment in progress", log=self.name, dlsn=end)
            return first, _end_position(segment)
        return first, end if segment.in_progress else min(end, _end_position(segment))

    async def _span(self, segment: SegmentMetadata, first: DLSN, stop: DLSN, limit: asyncio.Semaphore) -> SegmentSpan:
        async with limit:
            location = await self._location(segment)
        whole = stop.slot_id == 0
        return SegmentSpan(
            log=self.name,
            lssn=segment.lssn,
            ledger=location,
            first_entry=first.entry_id,
            first_slot=first.slot_id,
            last_entry=stop.entry_id - 1 if whole else stop.entry_id,
            end_slot=None if whole else stop.slot_id,
            start_sequence_id=self._start_sequence_id(segment),
            enveloped=segment.enveloped,
            entry_bytes=_entry_bytes(location) or UNKNOWN_ENTRY_BYTES,
            cold=None if segment.cold is None else ColdLocation.of(segment),
            former_ledgers=segment.former_ledgers,
        )

    async def _location(self, segment: SegmentMetadata) -> LedgerLocation | ColdLocation:
        """Return where the entries are. For an open ledger it is read each time: its last fragment may have moved
        (D12).

        It is also read again if a node was away when the ledger was located: that node may be the only one left by now.
        """
        if segment.cold is not None and not segment.cold.listed:
            return ColdLocation.of(segment)
        found = self._locations.get(segment.ledger_id)
        if found is None:
            try:
                found = await self._namespace.ledgers.locate(segment.ledger_id)
            except NoNodeError:
                # Java's retention deletes a ledger before the segment's znode; the file has it by then.
                if segment.cold is None:
                    raise
                return ColdLocation.of(segment)
            # Only what cannot change any more is kept.
            if found.metadata.state is LedgerState.CLOSED and found.complete:
                self._locations[segment.ledger_id] = found
        return found

    def _start_sequence_id(self, segment: SegmentMetadata) -> int:
        """Return the sequence id with which a segment begins: the metadata of one in progress does not have it, and it
        follows from the completed segment before."""
        if not segment.in_progress or segment.version < 5:
            return segment.effective_start_sequence_id
        before = [other for other in self._segments if other.lssn < segment.lssn and not other.in_progress]
        return before[-1].effective_start_sequence_id + before[-1].record_count if before else 0

    # ------------------------------------------------------------------ segments

    async def _refresh(self) -> None:
        """Read the segment list again if it changed since, or a session is a new one."""
        if not self._changed.is_set() and self._sessions == self._sessions_now():
            return
        self._changed.clear()  # before the list is read: a change meanwhile sets it again and is not overlooked
        try:
            self._segments = await self._list()
            if not self._segments:
                self._max_lssn = (await self._namespace.logs_store.open(self.name)).max_lssn.value
                first = self._namespace.binding.first_lssn or self._namespace.settings.first_lssn
                self._next_lssn = lssn_without_segments(self._max_lssn, first)
        except BaseException:
            self._changed.set()
            raise
        live = {(segment.ledger_id, segment.in_progress) for segment in self._segments}
        await self._records.keep(live)
        ledgers = {segment.ledger_id for segment in self._segments}
        self._locations = {ledger: found for ledger, found in self._locations.items() if ledger in ledgers}

    def _sessions_now(self) -> tuple[int, int]:
        services = self._namespace.services
        return services.store.session_id, services.ledger_store.store.session_id

    async def _list(self) -> list[SegmentMetadata]:
        """Return the segments as they are now, in the cluster that it was before."""
        while True:
            sessions = self._sessions_now()
            await self._know_cluster()
            segments = await self._namespace.logs_store.segments(self.name, self._on_change)
            if sessions == self._sessions_now():
                self._sessions = sessions
                return segments

    async def _know_cluster(self) -> None:
        """Read the cluster's id. Raises RecreatedDataLossError where it is another one than before: all that is known
        of ledgers, here and below, is of the one that is gone (I8)."""
        cluster = quote(await self._namespace.ledgers.bookies.instance_id() or "", safe="")
        if self.cluster and cluster and cluster != self.cluster:
            raise RecreatedDataLossError(
                f"The cluster was made anew while the query ran: it was {self.cluster}, and is {cluster} now; nothing "
                "more was read",
                advice="Start the query again; failOnDataLoss then decides whether it reads the new log",
                log=self.name,
            )
        self.cluster = cluster or self.cluster

    async def look(self) -> None:
        """Read the segment list again if it changed: what follows, without a wait between, is as of now."""
        await self._refresh()

    def look_again(self) -> None:
        """Note that what is known proved to be out of date: read the segment list again when next asked."""
        self._changed.set()

    def _on_change(self, event: WatchEvent) -> None:
        self._changed.set()

    def _visible(self) -> list[SegmentMetadata]:
        """Return the segments up to the first one in progress."""
        # The one in progress may still grow: to read what lies behind it first would pass over records (I4).
        for position, segment in enumerate(self._segments):
            if segment.in_progress:
                return self._segments[: position + 1]
        return self._segments

    def _between(self, start: DLSN, end: DLSN) -> Iterator[SegmentMetadata]:
        return (segment for segment in self._visible() if start.lssn <= segment.lssn <= end.lssn)

    async def _lac(self, segment: SegmentMetadata) -> int:
        return (await self._records.reader(segment)).lac

    async def _is_stored(self, segment: SegmentMetadata, entry_id: int) -> bool:
        """Return whether some replica has the entry, whatever LAC is known."""
        # Only for deciding whether a position may exist. What is read from here does not count as committed (I6).
        location = await self._namespace.ledgers.locate(segment.ledger_id)
        reader = ReplicaReader(settings=self._namespace.ledgers.settings)
        try:
            async for _ in reader.entries(location, entry_id, entry_id):
                return True
        except (NoSuchEntryError, NoSuchLedgerError):
            return False
        finally:
            await reader.close()
        return False

    # ------------------------------------------------------------------ waiting

    async def wait_for_news(self, known: DLSN | None) -> None:
        """Return when the segment list has changed, or the log does not end at `known` any more.

        `known` is the end that the caller has acted upon: the view itself may have seen a later one since.
        Waits by long poll and watch, without limit; to be cancelled.
        """
        changed = asyncio.ensure_future(self._changed.wait())
        polled = asyncio.ensure_future(self._poll_tail(known))
        try:
            await asyncio.wait({changed, polled}, return_when=asyncio.FIRST_COMPLETED)
            if polled.done():
                polled.result()
        finally:
            await end_tasks([changed, polled], drop_errors=True)

    async def _poll_tail(self, known: DLSN | None) -> None:
        while await self._end() == known:
            tail, reader = self._records.tail, self._records.tail_reader()
            if tail is None or reader is None or (reader.closed and reader.lac < tail.scanned):
                # No segment is open, or it ended but not yet in the log's metadata: only a change of that is news.
                await self._changed.wait()
                return
            # From the last entry looked at: what was committed meanwhile is known to the reader, and not looked at.
            await reader.poll(tail.scanned - 1, LONG_POLL_MS)


def _entry_bytes(location: LedgerLocation | ColdLocation) -> int:
    """Return about the bytes of an entry; 0 where that is not known."""
    if isinstance(location, ColdLocation):
        return location.entry_bytes
    entries = location.metadata.last_entry + 1
    return location.metadata.length // entries if entries > 0 else 0


def _first_position(segment: SegmentMetadata) -> DLSN:
    """Return the first position of a segment that is not truncated."""
    return DLSN(segment.lssn, segment.min_entry, segment.min_slot)


def _end_position(segment: SegmentMetadata) -> DLSN:
    """Return the position after the last record of a completed segment."""
    return DLSN(segment.lssn, segment.last_entry + 1, 0)
