"""Whether each entry of a plan has a living replica, asked before any task runs; if not, the error names the nodes.

An entry needs one living node of its write set. Which nodes live is known from their registrations, which may lag
behind; so where registrations say that an entry has no node left, that entry is read before the query is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.source.planning import SegmentSpan
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CorruptDataError, NotAppliedError
from storage_node.client.reader import ReplicaReader
from storage_node.errors import NotEnoughBookiesError


async def check_live_replicas(namespace: AsyncNamespace, spans: Iterable[SegmentSpan]) -> None:
    """Raise NotEnoughBookiesError if some entry of `spans` has no node that answers."""
    spans = list(spans)
    if not spans:
        return
    registry = namespace.ledgers.bookies
    writable, readonly = await asyncio.gather(registry.writable(), registry.readonly())
    living = {address.bookie_id for address in [*writable, *readonly]}
    probed: set[tuple[int, int]] = set()
    for span in spans:
        for entry_id in entries_without_replica(span.ledger.metadata, span.first_entry, span.last_entry, living):
            # Spans that were cut within an entry share it: it is read once.
            if (span.ledger.ledger_id, entry_id) not in probed:
                probed.add((span.ledger.ledger_id, entry_id))
                await _probe(namespace, span, entry_id, living)


def entries_without_replica(metadata: LedgerMetadata, first: int, last: int, living: set[str]) -> list[int]:
    """Return for each write set within entries `first` to `last` of which no node lives, its first entry."""
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


async def _probe(namespace: AsyncNamespace, span: SegmentSpan, entry_id: int, living: set[str]) -> None:
    # No waiting here: a caller that waits for nodes to come back makes the whole plan again, with their new addresses.
    reader = ReplicaReader(settings=replace(namespace.ledgers.settings, outage_wait_ms=0))
    try:
        async for _ in reader.entries(span.ledger, entry_id, entry_id):
            return
    except CorruptDataError:
        raise
    except NotAppliedError as error:
        nodes = sorted({node for ensemble in span.ledger.metadata.ensembles for node in ensemble.bookies} - living)
        raise NotEnoughBookiesError(
            f"No storage node that has the entry answers; not running: {', '.join(nodes)}; nothing was read",
            advice="Start these storage nodes again (`dlspark sandbox status`, `dlspark bookie`), then the query",
            log=span.log,
            ledger_id=span.ledger.ledger_id,
            entry_id=entry_id,
        ) from error
    finally:
        await reader.close()
