"""When to audit, how much at once; and an audit of very many ledgers."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.recovery_world import QUICK, RecoveryWorld

from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.repairs import RepairQueue
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.pacing import for_each
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree
from storage_node.autorecovery.auditor import METADATA_READS, AuditNeed, Auditor, LossTracker
from storage_node.autorecovery.checker import LedgerChecker
from storage_node.client.client import LedgerClient
from storage_node.edge import SystemClock

ALL = {"a", "b", "c"}


def test_who_was_known_and_is_not_there_is_lost() -> None:
    assert LossTracker(ALL).saw({"a", "b"}, 0) is AuditNeed.AUDIT
    assert LossTracker(ALL).saw({"a", "b"}, 10) is AuditNeed.WAIT
    assert LossTracker(ALL).saw({"a"}, 10) is AuditNeed.AUDIT
    assert LossTracker(ALL).saw(ALL | {"d"}, 10) is AuditNeed.NOTHING


def test_one_that_comes_back_needs_no_audit() -> None:
    losses = LossTracker(ALL)
    assert losses.saw({"a", "b"}, 10) is AuditNeed.WAIT
    assert losses.saw(ALL, 10) is AuditNeed.NOTHING
    assert losses.saw({"b", "c"}, 10) is AuditNeed.WAIT
    assert losses.lost == {"a"}


def test_one_after_the_other_counts_as_two() -> None:
    losses = LossTracker(ALL)
    assert losses.saw({"a", "b"}, 10) is AuditNeed.WAIT
    assert losses.saw({"a"}, 10) is AuditNeed.AUDIT
    losses.audited({"b", "c"})
    assert losses.saw({"a"}, 10) is AuditNeed.NOTHING, "audited: that they are still away is no news"
    assert losses.saw({"a", "b"}, 10) is AuditNeed.NOTHING
    assert losses.saw({"a"}, 10) is AuditNeed.WAIT


def test_who_is_lost_during_an_audit_is_not_covered_by_it() -> None:
    losses = LossTracker(ALL)
    losses.saw({"a", "b"}, 0)
    began_with = set(losses.lost)
    losses.saw({"a"}, 0)
    losses.audited(began_with)
    assert losses.lost == {"b"}


@virtual_time
async def test_ledgers_that_cannot_be_read_stop_no_audit() -> None:
    async with RecoveryWorld() as world:
        good = await world.closed(3)
        bad = good + 1
        await world.store.create(world.ledgers.path(bad), b"no metadata", make_parents=True)
        await world.lose((await world.metadata(good)).ensembles[0].bookies[0])
        await world.recover()
        await world.until_marked([good])
        await world.until_repaired()
        await world.assert_whole(good, 3)


@virtual_time
async def test_an_audit_that_the_metadata_store_interrupted_is_begun_anew() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(3)
        await world.recover()
        await world.settle(1)
        session = world.recoveries["r1"][1].session_id
        refused = 0

        def refuse(by: int, operation: str, path: str) -> Fault | None:
            nonlocal refused
            if by == session and operation == "get" and path == world.ledgers.path(ledger_id) and refused < 50:
                refused += 1
                return Fault.REFUSE
            return None

        world.faults = refuse
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        assert refused == 50
        await world.until_repaired()
        await world.assert_whole(ledger_id, 3)


async def audit_many(count: int) -> tuple[int, int]:
    """Audit so many ledgers, a tenth of which lost a copy: requests under way at most, and memory at the peak."""
    tree = MemoryTree()
    store = MemoryStore(tree)
    ledgers, marks, registry = LedgerStore(store), ReplicationStore(store), BookieRegistry(store)
    await ledgers.format()
    await marks.prepare()
    for name in ("a", "b", "c"):
        await store.create(f"/ledgers/available/{name}")

    async def create(number: int) -> None:
        bookies = ("a", "b", "lost" if number % 10 == 0 else "c")
        metadata = LedgerMetadata(3, 3, 2, (Ensemble(0, bookies),))
        await ledgers.create(number, metadata)

    await for_each(range(count), 50, create)
    reading = most = 0
    read = ledgers.read

    async def counted(ledger_id: int) -> object:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            return await read(ledger_id)
        finally:
            reading -= 1

    ledgers.read = counted  # type: ignore[method-assign, assignment]
    client = LedgerClient(ledgers, registry)
    auditors = AuditorStore(store)
    checker = LedgerChecker(client, ledgers, auditors, QUICK, random.Random(1))
    judging = client.judge_placement, client.knows_places
    auditor = Auditor(marks, auditors, ledgers, registry, checker, QUICK, SystemClock(), *judging)
    tracemalloc.start()
    try:
        report = await auditor.audit_bookies()
        before, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.ledgers, report.marked, report.lost) == (count, count // 10, {"lost"})
    assert [n async for n in marks.marked()] == list(range(0, count, 10))
    claims = RepairQueue(marks, "w", random.Random(1))
    listed = 0

    def count_lists(_session: int, operation: str, _path: str) -> None:
        nonlocal listed
        listed += operation == "children"

    tree.inject = count_lists
    for _ in range(count // 20):
        claim = await claims.next()
        assert claim is not None
        assert await claims.settle(claim)
    # One list for each ledger's own folder; the folders above are listed once, however many there are in them.
    assert listed <= count // 20 + 10
    await client.close()
    await store.close()
    return most, peak - before


async def test_an_audit_reads_few_ledgers_at_once_and_keeps_none() -> None:
    most, memory = await audit_many(500)
    assert most <= METADATA_READS
    assert memory < 2_000_000


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_an_audit_of_a_hundred_thousand_ledgers_keeps_none() -> None:
    """What it holds at the peak is the names of one folder of ledgers, not the ledgers."""
    most, memory = await audit_many(100_000)
    assert most <= METADATA_READS
    assert memory < 8_000_000
