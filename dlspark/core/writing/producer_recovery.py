"""A log's producers, as a new owner reads them from the log: the newest snapshot, and the requests behind it.

Every segment of a writer with producers begins with a snapshot, and there is another one every
`producerSnapshotEntries` entries or `producerSnapshotBytes` bytes; so the end of one segment is read (`segment_ends`),
and little more than so much of it.
Segments of other writers (upstream's, the Spark sink's, one without producers) say nothing of producers. Those behind
the newest segment of a writer with producers are not looked at, nor those before the one that has a whole snapshot
(`metadata.distributedlog.producer_segments`); those between are passed over, by their first entry.

A snapshot that a crash cut off is passed over too: there is an older one before it, since requests only follow a whole
one. The segments have their end: recovery comes first.

Segments are deleted: by retention, by `purge`, by upstream's tools, which know nothing of producers. Where none is left
with a whole snapshot, and one that may have had it is gone, nothing is known of the log's producers any more, and that
is said (`Producers.lose`): a request that was written would look like one that never was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.producers import LogTime, Producers
from dlspark.core.writing.segment_ends import BETWEEN_PAUSES, Following, SegmentEnd
from dlspark.core.writing.transitions import SegmentTransitions
from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.foundation.pacing import Slices
from metadata.foundation.plurals import counted

MOST_STEPS: Final = 8
"""A wrong clock makes producers older by so small a part of their lives, each time that a log gets another owner."""

_log = logging.getLogger(__name__)


class Known(NamedTuple):
    """A log's producers, as far as the log says."""

    producers: Producers
    whole: int | None
    """The number of a segment from which on a whole snapshot is found; None where the log never had producers."""
    last: DLSN | None
    """Where its last user record is; None where it has none."""
    time: LogTime
    lost: bool
    """True if what it said of them is gone: `whole` is None then, for there is nothing to look for."""


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
    for segment in reversed(transitions.segments):  # the newest whole snapshot says all that counts
        looked_for = not restored and found is not None and found.whole <= segment.lssn <= found.newest
        if not looked_for and (last is not None or not segment.record_count):
            continue
        ledger = await services.ledgers.open(segment.ledger_id, password=settings.password, recover=False)
        try:
            end = SegmentEnd(ledger, segment, settings, services.counters)
            following = await end.read(producers if looked_for else None, find_last=last is None)
            last = last or end.last
            if following is not None:
                # Only now: the log's time goes on from the newest producer that the snapshot has (I19).
                restored, whole, time = True, segment.lssn, _time(services, settings, producers)
                await _replay(producers, following, time.now_ms())
            passed += looked_for and not restored
        finally:
            await ledger.close()
    lost = not restored and found is not None and _is_lost(found, transitions)
    if lost:
        producers.lose()
        whole = None  # Nothing is left to look for; the loss itself is noted with the log, apart from its segments.
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


async def _replay(producers: Producers, following: Sequence[Following], now_ms: int) -> None:
    slices = Slices()
    for number, (control, dlsn) in enumerate(following):
        if number % BETWEEN_PAUSES == 0:
            await slices.pause()
        producers.replay(control, dlsn, now_ms)
