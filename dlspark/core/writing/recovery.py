"""Recovery of segments that a dead owner left in progress: before anything new is written, each gets its end.

For each such segment, oldest first (a segment's sequence ids continue from the one before it): its ledger is opened
with recovery, which fences the old owner (it gets no further acknowledgement, I5) and fixes the ledger's end (I2); the
last record gives what the completed metadata must say. A segment without any record is removed: ledger first, then
znode. Doing it again, or half of it again, leads to the same end (I10). The caller holds the log's lock.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entry_outline import outline_entry
from dlspark.core.codec.records import INVALID_TXID
from dlspark.core.metrics.cells import Histogram
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segments import backward_scan
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.transitions import SegmentTransitions
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.retry import repeat
from storage_node.client.reader import LedgerReader
from storage_node.errors import NoSuchLedgerError

_log = logging.getLogger(__name__)


async def recover_segments(services: Services, transitions: SegmentTransitions, settings: Settings) -> None:
    """Give every in-progress segment that `transitions` knows its end.

    Raises what opening with recovery raises (LedgerRecoveryError and others): nothing was lost then, and it may be
    called again.
    """
    for segment in [s for s in transitions.segments if s.in_progress]:
        await recover_segment(services, transitions, segment, settings)


async def recover_segment(
    services: Services, transitions: SegmentTransitions, segment: SegmentMetadata, settings: Settings
) -> None:
    """Complete one in-progress segment, or remove it if it has no record. Raises as `recover_segments`."""
    meter, name = services.meter, transitions.name
    with meter.step(meter.of(name).segments_recover, "segment recover", log=name, segment=segment.lssn):
        await _recover(services, transitions, segment, settings)


async def _recover(
    services: Services, transitions: SegmentTransitions, segment: SegmentMetadata, settings: Settings
) -> None:
    measures = services.meter.of(transitions.name)
    ledger = await _opened(services, segment.ledger_id, settings)
    if ledger is None:
        # A recovery before this one removed the ledger of an empty segment and died before it removed the znode.
        _log.warning(
            "log %s: segment %s has no ledger; it is removed",
            transitions.name,
            segment.lssn,
            extra=about(log=transitions.name, segment=segment.lssn, ledger=segment.ledger_id),
        )
        services.counters["segment-without-ledger"] += 1
        await transitions.delete(segment)
        return
    try:
        with measures.logsegments_recover_last_entry.measured():
            last = await last_record(ledger, segment, settings, measures.logsegments_recover_scanned_entries)
    finally:
        await ledger.close()
    if last is None:
        # Not completed as empty: its number is given again, so that no segment without records stops readers (I7).
        services.counters["empty-segment-removed"] += 1
        await transitions.delete(segment)
        return
    if last.txid == INVALID_TXID:
        raise CorruptDataError(
            f"the last record of segment {segment.lssn} has the reserved transaction id {INVALID_TXID}",
            log=transitions.name,
            dlsn=last.dlsn,
            advice="It cannot be completed as it is; see what is in it: dlspark ledger read-entries",
        )
    services.counters["segment-recovered"] += 1
    await transitions.complete(
        segment,
        last_txid=last.txid,
        record_count=last.position,
        last_entry=last.dlsn.entry_id,
        last_slot=last.dlsn.slot_id,
    )


async def _opened(services: Services, ledger_id: int, settings: Settings) -> LedgerReader | None:
    """Return the ledger, fenced and closed; None if it was deleted.

    Only the ledgers' own store decides that, after a sync: a server that lags behind may not know a new ledger yet, and
    a ledger that is taken for deleted is lost with its records (I1).
    """
    try:
        return await services.ledgers.open(ledger_id, password=settings.password, recover=True)
    except (NoNodeError, NoSuchLedgerError):
        ledgers = services.ledger_store
        await repeat(ledgers.store, lambda: ledgers.store.sync(ledgers.path(ledger_id)))
        try:
            await ledgers.read(ledger_id)
        except NoNodeError:
            return None
    # The store has the ledger: the server that was asked first had lagged behind.
    return await services.ledgers.open(ledger_id, password=settings.password, recover=True)


class SegmentsLast(NamedTuple):
    """The last record of a segment; of a record set, its last payload."""

    dlsn: DLSN
    txid: int
    position: int


async def last_record(
    ledger: LedgerReader, segment: SegmentMetadata, settings: Settings, scanned: Histogram | None = None
) -> SegmentsLast | None:
    """Return the last record of any kind, control and end of stream included; None for a ledger without records.

    `scanned` counts how many entries were read for it.

    Entries are read backwards in growing batches: nearly always the very last one has a record. None of their payloads
    is kept or expanded: what they are, clients decide.
    """
    read = 0
    found: SegmentsLast | None = None
    try:
        for first, end in backward_scan(ledger.last_add_confirmed, settings):
            async with aclosing(ledger.entries(first, end)) as entries:
                async for entry in entries:
                    read += 1
                    dlsn = DLSN(segment.lssn, entry.entry_id, 0)
                    last = outline_entry(entry.payload, enveloped=segment.enveloped, dlsn=dlsn).last
                    if last is not None:
                        found = SegmentsLast(dlsn._replace(slot_id=last.slot), last.txid, last.position)
            if found is not None:
                return found
        return None
    finally:
        if scanned is not None:
            scanned.observe(read)
