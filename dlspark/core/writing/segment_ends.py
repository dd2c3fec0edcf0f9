"""`SegmentEnd`: the end of one segment as the log's next owner reads it: what it says of producers, its last record.

It is read backwards, in reads that double, each entry once as a rule. A client decides what lies there, and how much of
it, so everything has a bound in bytes. Of a read no more than `READ_BYTES` are on their way. Of an entry its outline is
kept (`codec.entry_outline`): nothing of a user's payload, no record set is expanded. Of outlines that have not been
looked at `KEPT_BYTES` are kept: more than that is read again. Of what the records say no more is kept than is known of
each producer at last. And of all that others have to wait for nothing lasts longer than a slice (`Slices`).

How much there is to read the writer bounds: it stores a snapshot again after `producerSnapshotEntries` entries, or
`producerSnapshotBytes` bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entry_outline import EntryOutline, outline_entry
from dlspark.core.codec.producer_records import KEPT, FencingToken, ProducerRequest, SnapshotPart, decode_control
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.producers import Producers
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.pacing import Slices
from metadata.foundation.tasks import end_tasks
from storage_node.client.reader import LedgerReader

READ_BYTES: Final = 4 << 20
"""About how much is read at a time, and the most that is on its way; one entry always may."""
KEPT_BYTES: Final = 8 << 20
"""Outlines of one read that are kept, about; one always is."""
MOST_ENTRIES: Final = 1024
"""Most entries of one read."""
BETWEEN_PAUSES: Final = 64
"""Control records that are looked at without a pause."""

Following: TypeAlias = "tuple[ProducerRequest | FencingToken, DLSN]"
"""A control record behind a snapshot, and its position."""


class SegmentEnd:
    """Reads one segment, which has its end, once."""

    def __init__(
        self, ledger: LedgerReader, segment: SegmentMetadata, settings: Settings, counters: Counter[str]
    ) -> None:
        self._ledger = ledger
        self._segment = segment
        self._first_read = settings.first_scan_entries
        self._counters = counters
        self._fitting = MOST_ENTRIES
        """How many entries such as those that were read last are to be read at a time."""
        self._slices = Slices()
        self.last: DLSN | None = None
        """Where the segment's last user record is, as far as it was looked for."""

    async def read(self, producers: Producers | None, *, find_last: bool) -> list[Following] | None:
        """Have the newest whole snapshot taken in by `producers`, if there are any; and find the last user record, if
        it is wanted and the segment has any.

        Returns what follows the snapshot of each producer's last requests, oldest first; None where there is no
        snapshot. Raises what reading raises, and InvalidEntryError.
        """
        find_last = find_last and bool(self._segment.record_count)
        end = self._ledger.last_add_confirmed
        if end < 0 or not (find_last or producers is not None):
            return None
        # Both ends are read at the same time. A short segment lies in the first read as a whole.
        reads_first = producers is not None and end >= self._first_read
        first = asyncio.ensure_future(self._begins_with_snapshot()) if reads_first else None
        taken = _TakenIn() if producers is not None else None
        following: list[Following] | None = None  # stays so where a crash cut the segment's first snapshot off
        try:
            async with aclosing(self._backwards(end)) as outlines:
                async for entry_id, outline in outlines:
                    if self.last is None and outline.last_user_slot >= 0:
                        self.last = DLSN(self._segment.lssn, entry_id, outline.last_user_slot)
                    if first is not None and not await first:
                        taken = None
                    first = None
                    if producers is not None and taken is not None and await self._take_in(taken, entry_id, outline):
                        producers.restore(taken.snapshot)
                        following, taken = taken.following[::-1], None
                    if taken is None and (self.last is not None or not find_last):
                        break
        finally:
            if first is not None:
                await end_tasks([first], drop_errors=True)
        return following

    async def _take_in(self, taken: _TakenIn, entry_id: int, outline: EntryOutline) -> bool:
        """Look at an entry's control records, last to first; whether a whole snapshot begins here."""
        for number, (slot, payload) in enumerate(reversed(outline.control)):
            if number % BETWEEN_PAUSES == 0:
                await self._slices.pause()
            dlsn = DLSN(self._segment.lssn, entry_id, slot)
            if taken.take(decode_control(payload, dlsn), dlsn):
                return True
        return False

    async def _begins_with_snapshot(self) -> bool:
        (entry,) = await self._ledger.read(0, 0)
        self._counters["producer-entries-read"] += 1
        first = next(iter(self._outline(entry.entry_id, entry.payload).control), None)
        return first is not None and isinstance(decode_control(first[1], self._dlsn_of(0)), SnapshotPart)

    async def _backwards(self, end: int) -> AsyncGenerator[tuple[int, EntryOutline], None]:
        """Yield the entries from `end` down to the first one."""
        size = self._first_read
        while end >= 0:
            found = await self._read(max(0, end - size + 1), end)
            end = found[0][0] - 1
            size = max(1, min(2 * size, MOST_ENTRIES, self._fitting))
            while found:
                yield found.pop()

    async def _read(self, first: int, end: int) -> deque[tuple[int, EntryOutline]]:
        """Return entries up to `end`, from `first` on, or from a later one where their outlines would be too much."""
        found: deque[tuple[int, EntryOutline]] = deque()
        kept = read = 0
        self._slices.begin()
        async with aclosing(self._ledger.entries(first, end, window_bytes=READ_BYTES)) as entries:
            async for entry in entries:
                outline = self._outline(entry.entry_id, entry.payload)
                found.append((entry.entry_id, outline))
                read += len(entry.payload)
                kept += outline.kept_bytes
                while kept > KEPT_BYTES and len(found) > 1:
                    kept -= found.popleft()[1].kept_bytes
                await self._slices.pause()
        self._counters["producer-entries-read"] += end - first + 1
        self._counters["producer-bytes-read"] += read
        self._fitting = min(READ_BYTES * (end - first + 1) // max(read, 1), KEPT_BYTES * len(found) // max(kept, 1))
        return found

    def _outline(self, entry_id: int, payload: memoryview) -> EntryOutline:
        return outline_entry(payload, enveloped=self._segment.enveloped, dlsn=self._dlsn_of(entry_id))

    def _dlsn_of(self, entry_id: int) -> DLSN:
        return DLSN(self._segment.lssn, entry_id, 0)


class _TakenIn:
    """The content of control records, taken from the last to the first: of each producer, what is known of it at
    last."""

    def __init__(self) -> None:
        self.following: list[Following] = []
        self._parts: list[SnapshotPart] = []
        self._taken: dict[str, tuple[int, int]] = {}
        """Of each producer the newest epoch, and how many requests of that were taken."""
        self._token_taken = False

    @property
    def snapshot(self) -> list[SnapshotPart]:
        """The parts found so far, first to last."""
        return self._parts[::-1]

    def take(self, control: ProducerRequest | SnapshotPart | FencingToken | None, dlsn: DLSN) -> bool:
        """Take in the record before those that were taken in; whether a whole snapshot is there."""
        if isinstance(control, SnapshotPart):
            self._parts = _with(self._parts, control)
            return bool(self._parts) and control.number == 0
        if isinstance(control, FencingToken):
            if not self._token_taken:
                self._token_taken = True
                self.following.append((control, dlsn))
        elif control is not None and self._counts(control):
            self.following.append((control, dlsn))
        return False

    def _counts(self, request: ProducerRequest) -> bool:
        """Return whether a request says something that later ones of its producer do not: epochs and numbers only
        grow."""
        epoch, taken = self._taken.get(request.name, (-1, 0))
        if request.epoch < epoch or taken >= KEPT or (taken and request.sequence < 0):
            return False
        self._taken[request.name] = request.epoch, taken + 1
        return True


def _with(parts: list[SnapshotPart], found: SnapshotPart) -> list[SnapshotPart]:
    """Return the parts found so far, last to first, with the one before them; empty where they are not of one
    snapshot."""
    if found.number == found.parts - 1:
        return [found]
    if parts and parts[-1].number == found.number + 1 and parts[-1].parts == found.parts:
        return [*parts, found]
    return []
