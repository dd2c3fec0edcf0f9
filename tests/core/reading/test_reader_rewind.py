"""What a rewind by transaction id costs in a long log, counted: `pytest -s` prints the table of docs/performance.md.

The logs have 10 to 10,000 segments of 1,000 entries each. Their entries are made when a storage node is asked for them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from helpers.worlds.memory_bookies import StoredLedger

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EntryBuilder
from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble, LedgerMetadata, LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.store import Create
from storage_node.protocol.digests import EntryDigest

ENTRIES = 1_000
FIRST_LEDGER = 1_000_000
STEP = 10
POSITIONS = 20


class GeneratedLedgers(dict[int, StoredLedger]):
    """The ledgers of a log of one-record entries; transaction ids count up by STEP over all segments."""

    def get(self, ledger_id: int, default: StoredLedger | None = None) -> StoredLedger | None:  # type: ignore[override]
        if ledger_id not in self and ledger_id >= FIRST_LEDGER:
            self[ledger_id] = _ledger(ledger_id)
        return super().get(ledger_id, default)


def _ledger(ledger_id: int) -> StoredLedger:
    digest, builder = EntryDigest(DigestType.CRC32, b""), EntryBuilder()
    entries, first = {}, (ledger_id - FIRST_LEDGER) * ENTRIES
    for entry_id in range(ENTRIES):
        builder.add((first + entry_id) * STEP, b"x", entry_id + 1)
        payload = b"".join(bytes(buffer) for buffer in builder.finish().buffers)
        entries[entry_id] = digest.package(ledger_id, entry_id, entry_id - 1, 0, payload) + payload
    return StoredLedger(entries, fenced=True, lac=ENTRIES - 1)


async def _long_log(memory_cluster, segments: int) -> None:
    ledgers = LedgerStore(memory_cluster.operator)
    logs = LogStore(memory_cluster.operator, "/dl")
    await logs.create("long")
    bookies = tuple(bookie.id for bookie in memory_cluster.bookies[:3])
    shape = LedgerMetadata(3, 3, 2, (Ensemble(0, bookies),), LedgerState.CLOSED, ENTRIES - 1, ENTRIES)
    creations = []
    for index in range(segments):
        first = index * ENTRIES
        segment = SegmentMetadata(
            FIRST_LEDGER + index,
            index + 1,
            first * STEP,
            (first + ENTRIES - 1) * STEP,
            1,
            ENTRIES,
            ENTRIES - 1,
            0,
            start_sequence_id=first,
        )
        creations.append(Create(logs.paths("long").segment(segment), segment.encode()))
    for begin in range(0, segments, 1000):
        await memory_cluster.operator.multi(creations[begin : begin + 1000])
    shared = GeneratedLedgers()
    for bookie in memory_cluster.bookies[:3]:
        bookie.ledgers = shared
    memory_cluster.ledgers, memory_cluster.shape = ledgers, shape


@dataclass
class Cost:
    """Of one rewind, or the mean of several."""

    segments: int
    metadata: float
    opened: float
    entries: float
    requests: float


async def _rewind(memory_cluster, segments: int, record: int) -> Cost:
    """Open a reader at a record's transaction id, by a client that has read nothing before."""
    target = FIRST_LEDGER + record // ENTRIES
    if target not in memory_cluster.made:
        await memory_cluster.ledgers.create(target, memory_cluster.shape)
        memory_cluster.made.add(target)
    namespace = await memory_cluster.namespace(long_poll_ms=5_000)
    log = await namespace.open_log("long")
    requests: Counter[str] = Counter()
    memory_cluster.tree.inject = lambda session, operation, path: requests.update([operation])
    async with await log.open_reader(record * STEP - STEP // 2) as reader:
        found = await reader.read_next()
        assert found is not None
        assert found.dlsn == DLSN(record // ENTRIES + 1, record % ENTRIES, 0)
        assert found.sequence_id == record
        cost = Cost(segments, log.probes.metadata, log.probes.segments, log.probes.entries, requests.total())
    memory_cluster.tree.inject = None
    return cost


@pytest.mark.parametrize("segments", [10, 100, 1_000, 10_000])
async def test_a_rewind_costs_a_logarithm_of_the_logs_length(memory_cluster, segments):
    await _long_log(memory_cluster, segments)
    memory_cluster.made = set()
    rng = random.Random(segments)
    records = [1, segments * ENTRIES - 1, *(rng.randrange(1, segments * ENTRIES) for _ in range(POSITIONS - 2))]
    costs = [await _rewind(memory_cluster, segments, record) for record in records]
    for cost in costs:
        assert cost.metadata <= math.log2(segments) + 2
        assert cost.opened == 1
        # Three parts a round, two entries a round: 2 * log3(1000) = 12.6.
        assert cost.entries <= 2 * (math.log(ENTRIES, 3) + 1)
        # The names, the binary search, looks at the ledger, and what the reader reads ahead until it is closed.
        assert cost.requests <= math.log2(segments) + 20
    print(
        f"\n| {segments:,} | {segments * ENTRIES:,} | {_mean(c.metadata for c in costs):.1f} "
        f"| {_mean(c.entries for c in costs):.1f} | {_mean(c.requests for c in costs):.1f} |"
    )


def _mean(values) -> float:
    found = list(values)
    return sum(found) / len(found)
