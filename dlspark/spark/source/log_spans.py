"""The spans of each log that a plan reads: what filters and a limit leave of them, and whether storage nodes have it.

Positions of the query that are not there any more are data loss (I8), which `data_loss` decides about. An entry that is
there needs one living node of its write set, unless its segment has a cold file. Which nodes live is known from their
registrations, which may lag behind; so where registrations say that an entry has no node left, that entry is read
before the query is refused, by an error that names the nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import AlreadyTruncatedError
from dlspark.spark.errors import OptionError, UnreachableEndDataLossError
from dlspark.spark.source.data_loss import DataLossPolicy
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.planning import SegmentSpan, clip, cut
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError, NotAppliedError
from storage_node.client.reader import LedgerLocation, ReplicaReader
from storage_node.errors import NotEnoughBookiesError


@dataclass(frozen=True, slots=True)
class Take:
    """A limit of rows that will do of each log: the first ones by position, or the `last` ones.

    `timed`: they are wanted by `timestamp`, in whose order rows without one stand elsewhere than by position.
    """

    records: int
    last: bool = False
    timed: bool = False


class LogSpans:
    """Finds what one query's plans read of its logs.

    Args:
        data_loss: decides what becomes of positions that are gone.
        max_records: the most records of a span; None: any number.
    """

    def __init__(self, data_loss: DataLossPolicy, max_records: int | None) -> None:
        self._data_loss = data_loss
        self._max_records = max_records

    async def spans(
        self, view: DriverLogView, start: Offsets, end: Offsets, bounds: Bounds | None, take: Take | None
    ) -> list[SegmentSpan]:
        """Return the spans of one log from `start` to before `end` that `bounds` and `take` leave. Raises
        DataLossError, where a position is gone and `failOnDataLoss` is set."""
        try:
            return await self._spans_now(view, start, end, bounds, take)
        except (NoNodeError, AlreadyTruncatedError):
            # A segment was deleted after it was listed: the list as it is now shows what is lost by that (I8).
            view.look_again()
            await view.latest()
            return await self._spans_now(view, start, end, bounds, take)

    async def _spans_now(
        self, view: DriverLogView, start: Offsets, end: Offsets, bounds: Bounds | None, take: Take | None
    ) -> list[SegmentSpan]:
        while True:
            await view.look()
            found = await self._spans_of_list(view, start, end, bounds, take)
            if found is not None:
                return found

    async def _spans_of_list(
        self, view: DriverLogView, start: Offsets, end: Offsets, bounds: Bounds | None, take: Take | None
    ) -> list[SegmentSpan] | None:
        """Return the spans by the list of segments as the view has it; None where it went on from there meanwhile."""
        left = view.earliest()
        begin, until = await self.range(view, start, end, bounds)
        if begin < until and take is not None and not (bounds is not None and bounds.scattered):
            begin, until = await _taken(view, begin, until, take)
        spans = await view.spans(begin, until) if begin < until else []
        if bounds is not None and bounds.scattered:
            spans = [kept for span in spans if (kept := clip(span, bounds.min_entry, bounds.end_entry)) is not None]
        most = self._max_records
        if most is not None:
            spans = [piece for span in spans for piece in await _pieces(view, span, most)]
        # What was deleted while this looked is missing among the spans, and would be passed over in silence (I8).
        return spans if view.earliest() == left else None

    async def range(
        self, view: DriverLogView, start: Offsets, end: Offsets, bounds: Bounds | None
    ) -> tuple[DLSN, DLSN]:
        """Return from where to where reading one log really goes; empty where the first is not below the second.

        Of `bounds` that are `scattered`, what they leave of each segment is not examined.
        """
        begin = await self._data_loss.begin(view, start.get(view.name), start.identities.get(view.name))
        until, identity = end[view.name], end.identities.get(view.name)
        # The end is checked as well as the begin: the log may have been replaced between two batches, and the new one
        # may have grown past the old position.
        if identity is not None and view.differs(identity):
            self._data_loss.recreated(view, until, identity, "nothing of it is read")
            return begin, begin
        if await view.beyond_end(until):
            what = f"the log ends at {await view.latest()}"
            self._data_loss.lost(UnreachableEndDataLossError, view.name, until, what, "only what is there is read")
            until = await view.latest()
        return (begin, until) if bounds is None else await _narrowed(view, begin, until, bounds)


async def _narrowed(view: DriverLogView, begin: DLSN, end: DLSN, bounds: Bounds) -> tuple[DLSN, DLSN]:
    """Return the part of a range that pushed-down filters leave."""
    if bounds.empty or not bounds.admits(view.name):
        return begin, begin
    begin = max(begin, DLSN(bounds.min_segment, 0, 0))
    if bounds.end_segment is not None:
        end = min(end, DLSN(bounds.end_segment, 0, 0))
        if not bounds.scattered:
            begin = max(begin, DLSN(bounds.min_segment, bounds.min_entry, 0))
            if bounds.end_entry is not None:
                end = min(end, DLSN(bounds.min_segment, bounds.end_entry, 0))
    # Ids never decrease along a log (I4), so bounds on ids are positions, found by search.
    if bounds.min_txid > 0:
        first = await view.at_txid(bounds.min_txid)
        begin = max(begin, first) if first is not None else end
    if bounds.end_txid is not None:
        last = await view.at_txid(bounds.end_txid)
        end = min(end, last) if last is not None else end
    return begin, end


async def _taken(view: DriverLogView, begin: DLSN, end: DLSN, take: Take) -> tuple[DLSN, DLSN]:
    """Return the part of a range that will do, or all of it where that is not known: the caller limits again."""
    if take.timed:
        # Ids beyond the year 9999 have no timestamp, so the last records by position are not the last ones by time.
        timeless = await view.at_txid(MAX_TIMESTAMP_MS + 1)
        if timeless is not None and timeless < end:
            return begin, end
    try:
        if not take.last:
            return begin, await view.advance(begin, end, take.records)
        surplus = await view.count(begin, end) - take.records
        return (begin if surplus <= 0 else await view.advance(begin, end, surplus)), end
    except OptionError:  # The writer was set not to count records.
        return begin, end


async def _pieces(view: DriverLogView, span: SegmentSpan, most: int) -> list[SegmentSpan]:
    """Return a span in pieces of nearly equal numbers of records, none of more than `most`; found by search."""
    total = await view.count(span.start, span.stop)
    count = max(1, -(-total // most))
    ends = [total * i // count for i in range(1, count)]
    positions = [await view.advance(span.start, span.stop, records) for records in ends]
    return cut(span, positions, -(-total // count))


# ---------------------------------------------------------------------- nodes that have it


async def check_live_replicas(namespace: AsyncNamespace, spans: Iterable[SegmentSpan]) -> None:
    """Raise NotEnoughBookiesError if some entry of `spans` has no node that answers, and no cold file either."""
    hot = [(span, ledger) for span in spans if (ledger := span.hot) is not None and span.cold is None]
    if not hot:
        return
    # Read-only nodes serve reads as well.
    registry = namespace.ledgers.bookies
    writable, readonly = await asyncio.gather(registry.writable(), registry.readonly())
    living = {address.bookie_id for address in [*writable, *readonly]}
    probed: set[tuple[int, int]] = set()
    for span, ledger in hot:
        for entry_id in entries_without_replica(ledger.metadata, span.first_entry, span.last_entry, living):
            # Spans that were cut within an entry share it: it is read once.
            if (ledger.ledger_id, entry_id) not in probed:
                probed.add((ledger.ledger_id, entry_id))
                await _probe(namespace, span.log, ledger, entry_id, living)


def entries_without_replica(metadata: LedgerMetadata, first: int, last: int, living: set[str]) -> list[int]:
    """Return the first entry of each write set, within entries `first` to `last`, of which no node lives."""
    found = []
    ensembles = metadata.ensembles
    for index, ensemble in enumerate(ensembles):
        end = ensembles[index + 1].first_entry - 1 if index + 1 < len(ensembles) else last
        begin, end = max(first, ensemble.first_entry), min(last, end)
        size = len(ensemble.bookies)
        for entry_id in range(begin, min(end, begin + size - 1) + 1):
            nodes = (ensemble.bookies[(entry_id + i) % size] for i in range(metadata.write_quorum))
            if living.isdisjoint(nodes):
                found.append(entry_id)
    return found


async def _probe(namespace: AsyncNamespace, log: str, ledger: LedgerLocation, entry_id: int, living: set[str]) -> None:
    # No waiting here: a caller that waits for nodes to come back makes the whole plan again, with their new addresses.
    reader = ReplicaReader(settings=replace(namespace.ledgers.settings, outage_wait_ms=0))
    try:
        async for _ in reader.entries(ledger, entry_id, entry_id):
            return
    except CorruptDataError:
        raise
    except NotAppliedError as error:
        nodes = sorted({node for ensemble in ledger.metadata.ensembles for node in ensemble.bookies} - living)
        raise NotEnoughBookiesError(
            f"No storage node that has the entry answers; not running: {', '.join(nodes)}; nothing was read",
            advice="Start these storage nodes again (`dlspark sandbox status`, `dlspark bookie`), then the query",
            log=log,
            ledger_id=ledger.ledger_id,
            entry_id=entry_id,
        ) from error
    finally:
        await reader.close()
