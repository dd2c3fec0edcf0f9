"""A tree without LAYOUT, as Apache Pulsar's set-up leaves it: collected and repaired by nodes of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.bookie.node.bookie import Bookie
from storage_node.client.client import LedgerClient
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings

ROOT = "/pulsar/ledgers"


class LayoutlessCluster:
    """Nodes below one root of a tree."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.ledgers = LedgerStore(self.store, ROOT)
        self.client = LedgerClient(self.ledgers, BookieRegistry(self.store, ROOT))
        self.running: dict[str, tuple[Bookie, MemoryStore]] = {}

    async def set_up(self) -> None:
        await self.store.create(f"{ROOT}/available/readonly", make_parents=True)
        await self.store.create(f"{ROOT}/INSTANCEID", b"6d1e9f5c-0a51-4b0e-9c52-4e3c0e0f8f10")

    async def start(self, name: str) -> Bookie:
        settings = BookieSettings(
            zk_ledgers_root_path=ROOT,
            journal_directories=(str(self.directory / name / "journal"),),
            ledger_directories=(str(self.directory / name / "ledgers"),),
            bookie_port=0,
            listening_address="127.0.0.1",
            bookie_id=name,
            journal_max_size_mb=16,
            journal_pre_alloc_size_mb=1,
        )
        store = MemoryStore(self.tree)
        bookie = Bookie(settings, store)
        try:
            await bookie.start()
        except BaseException:
            await store.close()
            raise
        self.running[name] = (bookie, store)
        return bookie

    async def lose(self, name: str) -> None:
        bookie, store = self.running.pop(name)
        await bookie.stop()
        await store.close()

    async def written(self, entries: int) -> int:
        writer = await self.client.create()
        await asyncio.gather(*(writer.add(b"%d" % number) for number in range(entries)))
        await writer.close()
        return writer.ledger_id


@pytest.fixture
async def layoutless_cluster(tmp_path: Path) -> AsyncIterator[LayoutlessCluster]:
    layoutless_cluster = LayoutlessCluster(tmp_path)
    await layoutless_cluster.set_up()
    try:
        yield layoutless_cluster
    finally:
        await layoutless_cluster.client.close()
        for name in list(layoutless_cluster.running):
            await layoutless_cluster.lose(name)
        await layoutless_cluster.store.close()


async def test_it_is_collected_and_repaired(layoutless_cluster: LayoutlessCluster) -> None:
    for number in range(4):
        await layoutless_cluster.start(f"node-{number}")
    assert (
        await layoutless_cluster.store.exists(f"{ROOT}/LAYOUT") is not None
    )  # by the first node, before it served anybody
    kept, doomed = await layoutless_cluster.written(20), await layoutless_cluster.written(20)
    await layoutless_cluster.client.delete(doomed)
    collected = [await bookie.collect_garbage() for bookie, _ in layoutless_cluster.running.values()]
    assert sum(collected) == 3
    lost = (await layoutless_cluster.ledgers.read(kept)).value.last_ensemble.bookies[0]
    await layoutless_cluster.lose(lost)
    store = MemoryStore(layoutless_cluster.tree)
    recovery = AutoRecovery(AutoRecoverySettings(rereplicate_backoff_ms=50), store, ROOT, bookie_id="recovery")
    await recovery.start()

    async def repaired() -> None:
        changed = asyncio.Event()
        while True:
            changed.clear()
            current = await layoutless_cluster.ledgers.read(kept, lambda _event: changed.set())
            if lost not in current.value.last_ensemble.bookies:
                return
            await changed.wait()

    try:
        await asyncio.wait_for(repaired(), 60)
    finally:
        await recovery.stop()
        await store.close()
    reader = await layoutless_cluster.client.open(kept, recover=False)
    assert [bytes(entry.payload) for entry in await reader.read(0, 19)] == [b"%d" % number for number in range(20)]


async def test_auto_recovery_alone_writes_the_layout_as_well(layoutless_cluster: LayoutlessCluster) -> None:
    recovery = AutoRecovery(AutoRecoverySettings(), layoutless_cluster.store, ROOT, bookie_id="recovery")
    await recovery.start()
    await recovery.stop()
    assert await layoutless_cluster.store.exists(f"{ROOT}/LAYOUT") is not None


async def test_a_node_does_not_start_over_ledgers_of_another_layout(layoutless_cluster: LayoutlessCluster) -> None:
    await layoutless_cluster.store.create(f"{ROOT}/L0000000012")
    with pytest.raises(CallerError, match="dlspark cluster init --layout flat"):
        await layoutless_cluster.start("node-0")
    assert await layoutless_cluster.store.exists(f"{ROOT}/LAYOUT") is None
    assert await layoutless_cluster.store.exists(f"{ROOT}/cookies") is None
