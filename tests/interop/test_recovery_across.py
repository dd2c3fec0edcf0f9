"""Auto-recovery of either kind repairs ledgers of either writer, on real bookies and nodes of ours alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers.interop.auto_recovery import (
    REPAIR_WITHIN_S,
    Nodes,
    java_auto_recovery,
    ledgers_of_both,
    nodes,
    our_auto_recovery,
    read_by_both,
    repaired,
)
from helpers.interop.clusters import NEWEST, JavaProcesses

from dlspark.testing.java_process import JavaTool
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.client import ZooKeeperStore


@pytest.fixture(scope="module")
def five(processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two real bookies and three nodes of ours; each test loses one of the latter."""
    with nodes(processes.get(NEWEST), zk, tmp_path_factory.mktemp("repair"), 2, 3) as running:
        yield running


@pytest.mark.parametrize("repairer", ["Java's auto-recovery", "our auto-recovery"])
async def test_what_a_lost_node_held_is_replicated_again(java: JavaTool, five: Nodes, repairer: str) -> None:
    cluster = five.cluster
    ask = cluster.on(java)
    lost = five.own.pop()
    ledger_ids = await ledgers_of_both(ask, cluster, lost.id)
    await asyncio.to_thread(lost.kill)
    recovery = java_auto_recovery(cluster, java) if repairer.startswith("Java") else our_auto_recovery(cluster)
    async with recovery:
        await asyncio.wait_for(repaired(ask, ledger_ids, lost.id), REPAIR_WITHIN_S)
    await read_by_both(ask, cluster, ledger_ids)


@pytest.mark.torture
@pytest.mark.long
async def test_the_shell_decommissions_a_node_of_ours_with_our_auto_recovery(
    java: JavaTool, zk: str, tmp_path: Path
) -> None:
    """The command waits for thirty seconds at least, whatever there is to do."""
    with nodes(java, zk, tmp_path, 2, 2) as running:
        cluster, given_up = running.cluster, running.own[0]
        ask = cluster.on(java)
        ledger_ids = await ledgers_of_both(ask, cluster, given_up.id)
        decommission = partial(ask, "shell", arguments=["decommissionbookie", "-bookieid", given_up.id])
        async with our_auto_recovery(cluster):
            assert (await decommission())["status"] != 0, "it still runs"
            await asyncio.to_thread(given_up.stop)
            future = java.submit(
                "shell", zk=zk, root=cluster.root, arguments=["decommissionbookie", "-bookieid", given_up.id]
            )
            told = await asyncio.wait_for(asyncio.wrap_future(future), 150)
            assert told["status"] == 0, told
            await asyncio.wait_for(repaired(ask, ledger_ids, given_up.id), REPAIR_WITHIN_S)
        await read_by_both(ask, cluster, ledger_ids)
        store = await ZooKeeperStore.connect(zk)
        try:
            assert await BookieRegistry(store, cluster.root).read_cookie(given_up.id) is None
        finally:
            await store.close()
        with pytest.raises(RuntimeError, match="no cookie in metadata"):
            await asyncio.to_thread(given_up.start)
