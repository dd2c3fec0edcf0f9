"""What a log says of its producers, as a new owner reads it: the newest snapshot, and the requests behind it.

Every segment of a writer with producers begins with a snapshot, and there is another one every
`producerSnapshotEntries` entries; so the end of one segment is read, and little more than that many entries of it.
Segments of other writers (upstream's, the Spark sink's, one without producers) say nothing of producers. Those behind
the newest segment of a writer with producers are not looked at, nor those before the one that has a whole snapshot
(`metadata.producer_segments`); those between are passed over, by their first entry.

A snapshot that a crash cut off is passed over too: there is an older one before it, since requests only follow a whole
one. The segments have their end: recovery comes first.

Segments are deleted: by retention, by `purge`, by upstream's tools, which know nothing of producers. Where none is left
with a whole snapshot, and one that may have had it is gone, nothing is known of the log's producers any more, and that
is said (`Producers.lose`): a request that was written would look like one that never was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final, NamedTuple, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.producer_records import FencingToken, ProducerRequest, SnapshotPart, decode_control
from dlspark.core.codec.records import LogRecord
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.log_time import LogTime
from dlspark.core.writing.producers import Producers
from dlspark.core.writing.transitions import SegmentTransitions
from metadata.foundation.plurals import counted
from metadata.foundation.tasks import end_tasks
from metadata.producer_segments import ProducerSegments
from metadata.segments import SegmentMetadata
from storage_node.client.reader import LedgerReader

MOST_STEPS: Final = 8
"""A wrong clock makes producers older by so small a part of their lives, each time that a log gets another owner."""

Following: TypeAlias = tuple[ProducerRequest | FencingToken, DLSN]
"""A control record behind a snapshot, and its place."""

_log = logging.getLogger(__name__)


class Known(NamedTuple):
    """What a log says of its producers."""

    producers: Producers
    whole: int | None
    """The number of a segment from which on a whole snapshot is found; None where the log never had producers."""
    last: DLSN | None
    """Where its last user record is; None where it has none."""
    time: LogTime
    lost: bool
    """Whether what it said of them is gone: `whole` is None then, for there is nothing to look for."""


async def read_producers(
    services: Services, transitions: SegmentTransitions, settings: Settings, *, gaps_allowed: bool
) -> Known:
    """Read a log whose segments all have their end.

    Raises what reading raises, and WriterDeposedError; InvalidEntryError where the log's control records cannot be
    understood, and CorruptDataError where it is not known in which segments they are: a request could be written twice
    then (I19).
    """
    name = transitions.name
    found = transitions.producer_segments
    losses = found.losses if found is not None else 0
    producers = Producers(gaps_allowed=gaps_allowed, most=settings.max_producers, losses=losses)
    time = _time(services, settings, producers)
    whole = found.whole if found is not None else None
    last: DLSN | None = None
    restored = found is None
    passed = 0
    for segment in reversed(transitions.segments):
        looked_for = not restored and found is not None and found.whole <= segment.lssn <= found.newest
        if not looked_for and (last is not None or not segment.record_count):
            continue
        ledger = await services.ledgers.open(segment.ledger_id, password=settings.password, recover=False)
        try:
            end = _SegmentEnd(ledger, segment, settings, services.counters)
            if looked_for:
                await end.fetch_both_ends()
            last = last or await end.last_user_record()
            if looked_for and (following := await end.restore(producers)) is not None:
                restored, whole, time = True, segment.lssn, _time(services, settings, producers)
                for said, place in following:
                    producers.replay(said, place, time.now_ms())
            passed += looked_for and not restored
        finally:
            await ledger.close()
    lost = not restored and found is not None and _is_lost(found, transitions)
    if lost:
        producers.lose()
        whole = None
        _log.warning(
            "log %s: the segments that said what its producers have written are gone: producers up to epoch %d are "
            "forgotten, and their requests refused",
            name,
            producers.forgotten,
            extra=about(log=name),
        )
    _log.info(
        "log %s: %s known, %s passed over",
        name,
        counted(len(producers), "producer is", "producers are"),
        counted(passed, "segment without any was", "segments without any were"),
        extra=about(log=name),
    )
    return Known(producers, whole, last, time, lost)


def _is_lost(found: ProducerSegments, transitions: SegmentTransitions) -> bool:
    first = transitions.segments[0].lssn if transitions.segments else None
    return found.is_lost(first, transitions.state.max_lssn.value)


def _time(services: Services, settings: Settings, producers: Producers) -> LogTime:
    return LogTime(services.clock, producers.newest_ms(), settings.producer_expiry_s * 1000 // MOST_STEPS)


class _SegmentEnd:
    """Reads one segment backwards, each entry once, in reads that double."""

    def __init__(
        self, ledger: LedgerReader, segment: SegmentMetadata, settings: Settings, counters: Counter[str]
    ) -> None:
        self._ledger = ledger
        self._segment = segment
        self._read: dict[int, list[LogRecord]] = {}
        self._at_once = settings.first_scan_entries
        self._most = max(settings.max_scan_entries, self._at_once)
        self._counters = counters

    async def records(self, entry_id: int) -> list[LogRecord]:
        """All records of an entry, read with some of those before it."""
        if entry_id not in self._read:
            entries = await self._ledger.read(max(0, entry_id - self._at_once + 1), entry_id)
            self._at_once = min(2 * self._at_once, self._most)
            self._counters["producer-entries-read"] += len(entries)
            for entry in entries:
                self._read[entry.entry_id] = decode_entry(
                    entry.payload,
                    lssn=self._segment.lssn,
                    entry_id=entry.entry_id,
                    start_sequence_id=0,
                    enveloped=self._segment.enveloped,
                )
        return self._read[entry_id]

    async def fetch_both_ends(self) -> None:
        """Read the first entry and the last ones at the same time: both are needed."""
        end = self._ledger.last_add_confirmed
        if end >= 0:
            reading = [asyncio.ensure_future(self.records(entry_id)) for entry_id in {0, end}]
            try:
                await asyncio.gather(*reading)
            finally:
                await end_tasks(reading, drop_errors=True)

    async def last_user_record(self) -> DLSN | None:
        """Where it is; None in a segment without user records."""
        if not self._segment.record_count:
            return None
        for entry_id in range(self._ledger.last_add_confirmed, -1, -1):
            for record in reversed(await self.records(entry_id)):
                if record.is_user:
                    return record.dlsn
        return None

    async def restore(self, producers: Producers) -> list[Following] | None:
        """Take in the newest whole snapshot; what follows it, oldest first, or None where the segment has none."""
        end = self._ledger.last_add_confirmed
        if end < 0 or not isinstance(await self._said_first(), SnapshotPart):
            return None
        parts: list[SnapshotPart] = []
        following: list[Following] = []
        for entry_id in range(end, -1, -1):
            for record in reversed(await self.records(entry_id)):
                said = decode_control(record.payload, record.dlsn) if record.is_control else None
                if isinstance(said, SnapshotPart):
                    parts = _with(parts, said)
                    if parts and said.number == 0:
                        producers.restore(parts[::-1])
                        return following[::-1]
                elif said is not None:
                    following.append((said, record.dlsn))
        return None  # a crash cut the segment's first snapshot off

    async def _said_first(self) -> ProducerRequest | SnapshotPart | FencingToken | None:
        first = await self.records(0)
        return decode_control(first[0].payload, first[0].dlsn) if first and first[0].is_control else None


def _with(parts: list[SnapshotPart], found: SnapshotPart) -> list[SnapshotPart]:
    """The parts found so far, last to first, with the one before them; empty where they are not of one snapshot."""
    if found.number == found.parts - 1:
        return [found]
    if parts and parts[-1].number == found.number + 1 and parts[-1].parts == found.parts:
        return [*parts, found]
    return []
