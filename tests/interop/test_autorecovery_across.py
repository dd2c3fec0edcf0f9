"""Auto-recovery of both kinds on one cluster at once: whoever is the auditor, workers of both kinds do the work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from helpers.interop.auto_recovery import (
    REPAIR_WITHIN_S,
    java_auto_recovery,
    ledgers_of_both,
    nodes,
    our_auto_recovery,
    read_by_both,
    repaired,
)
from helpers.waiting import until

from dlspark.testing.java_process import JavaTool
from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.zookeeper.client import ZooKeeperStore

OURS = "127.0.0.1:1"
ROUNDS = 3
"""Each gives one ledger of either writer to repair."""
PATIENCE_S = 240.0
"""Java's auditor and workers wait for sessions to end, and for their own periods."""


async def until_auditor(auditors: AuditorStore, *, ours: bool) -> None:
    async def elected() -> bool:
        found = await auditors.auditor()
        return found is not None and (found == OURS) == ours

    await until(elected, patience_s=PATIENCE_S, every_s=0.1)


async def until_nothing_is_left(marks: ReplicationStore) -> None:
    """No mark, and no lock: who held one has given it back."""

    async def nothing_is_left() -> bool:
        return not [n async for n in marks.marked()] and not await marks.locked()

    await until(nothing_is_left, patience_s=PATIENCE_S, every_s=0.2)


async def test_auditors_and_workers_of_both_kinds_share_a_cluster(java: JavaTool, zk: str, tmp_path: Path) -> None:
    store = await ZooKeeperStore.connect(zk)
    try:
        with nodes(java, zk, tmp_path, 1, 4) as running:
            cluster = running.cluster
            ask = cluster.on(java)
            auditors, marks = AuditorStore(store, cluster.root), ReplicationStore(store, cluster.root)
            every: list[int] = []
            for java_first in (True, False):
                lost = running.own.pop()
                ledgers = [n for _ in range(ROUNDS) for n in await ledgers_of_both(ask, cluster, lost.id)]
                every += ledgers
                kinds = [java_auto_recovery(cluster, java), our_auto_recovery(cluster)]
                first, second = kinds if java_first else reversed(kinds)
                async with first:
                    await asyncio.wait_for(until_auditor(auditors, ours=not java_first), REPAIR_WITHIN_S)
                    async with second:
                        await asyncio.to_thread(lost.kill)
                        await asyncio.wait_for(repaired(ask, ledgers, lost.id), REPAIR_WITHIN_S)
                        await asyncio.wait_for(until_nothing_is_left(marks), REPAIR_WITHIN_S)
            await read_by_both(ask, cluster, every)
    finally:
        await store.close()


async def test_a_java_worker_takes_a_mark_that_names_no_bookie_for_done(
    java: JavaTool, zk: str, tmp_path: Path
) -> None:
    """Ours marks so what lies in the wrong place; a worker that does not mend it must not stumble over it."""
    store = await ZooKeeperStore.connect(zk)
    try:
        with nodes(java, zk, tmp_path, 1, 3) as running:
            cluster = running.cluster
            ask = cluster.on(java)
            marks, ledgers = ReplicationStore(store, cluster.root), LedgerStore(store, cluster.root)
            every = await ledgers_of_both(ask, cluster, running.own[0].id)
            before = [await ledgers.read(ledger_id) for ledger_id in every]
            async with java_auto_recovery(cluster, java):
                await asyncio.wait_for(until_auditor(AuditorStore(store, cluster.root), ours=False), REPAIR_WITHIN_S)
                for ledger_id in every:
                    assert await marks.mark_placement(ledger_id, 1_700_000_000_000)
                await asyncio.wait_for(until_nothing_is_left(marks), REPAIR_WITHIN_S)
            assert [await ledgers.read(ledger_id) for ledger_id in every] == before
            await read_by_both(ask, cluster, every)
    finally:
        await store.close()
