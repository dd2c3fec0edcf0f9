"""Auto-recovery of both kinds on one cluster at once: whoever is the auditor, workers of both kinds do the work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from java_tool import JavaTool
from test_recovery_across import (
    REPAIR_WITHIN_S,
    java_auto_recovery,
    ledgers_of_both,
    nodes,
    our_auto_recovery,
    read_by_both,
    repaired,
)

from metadata.auditors import AuditorStore
from metadata.replication import ReplicationStore
from metadata.zookeeper import ZooKeeperStore

OURS = "127.0.0.1:1"
ROUNDS = 3
"""Each gives one ledger of either writer to repair."""


async def until_auditor(auditors: AuditorStore, *, ours: bool) -> None:
    while (found := await auditors.auditor()) is None or (found == OURS) != ours:  # noqa: ASYNC110 (a question)
        await asyncio.sleep(0.1)


async def until_nothing_is_left(marks: ReplicationStore) -> None:
    """No mark, and no lock: who held one has given it back."""
    while [n async for n in marks.marked()] or await marks.locked():  # noqa: ASYNC110 (a question)
        await asyncio.sleep(0.2)


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
