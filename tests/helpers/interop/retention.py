"""What goes from a log by age, for tests of either library: segments made old, and ledgers that are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dlspark.testing.java_process import JavaError, JavaTool
from helpers.interop.clusters import InteropCluster
from helpers.interop.log_sides import Side
from helpers.waiting import wait_until
from metadata.store import MetadataStore
from metadata.zookeeper.client import ZooKeeperStore

NAMESPACE = "/distributedlog"
HOUR_MS = 3_600_000
COMPLETED_MS_FIELD = 4
NO_SUCH_LEDGER = -25
T = TypeVar("T")


def with_store(zk: str, do: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Do something with ZooKeeper, on a loop of its own."""

    async def run() -> T:
        store = await ZooKeeperStore.connect(zk)
        try:
            return await do(store)
        finally:
            await store.close()

    return asyncio.run(run())


def age_segments(zk: str, log: str, count: int, hours: int) -> None:
    """Have the first `count` segments of a log be completed so many hours ago."""
    parent = f"{NAMESPACE}/{log}/<default>/ledgers"

    async def age(store: MetadataStore) -> None:
        names, _ = await store.children(parent)
        for name in sorted(names)[:count]:
            data, stat = await store.get(f"{parent}/{name}")
            fields = data.decode().split(";")
            fields[COMPLETED_MS_FIELD] = str(int(fields[COMPLETED_MS_FIELD]) - hours * HOUR_MS)
            await store.put(f"{parent}/{name}", ";".join(fields).encode(), stat.version)

    with_store(zk, age)


def ledger_exists(java: JavaTool, cluster: InteropCluster, ledger: int) -> bool:
    """Return whether the cluster's metadata has a ledger, as Java sees it."""
    try:
        java.call("ledger.metadata", zk=cluster.zk, root=cluster.root, ledger=ledger)
    except JavaError as error:
        if error.code != NO_SUCH_LEDGER:
            raise
        return False
    return True


def wait_until_purged(
    side: Side, left: Sequence[int], java: JavaTool, cluster: InteropCluster, gone: Sequence[int]
) -> None:
    """Return once the log has the segments `left`, and no ledger of those that are gone: this goes on unseen."""

    def is_purged() -> bool:
        listed = [segment["lssn"] for segment in side.segments()]
        return listed == list(left) and not any(ledger_exists(java, cluster, ledger) for ledger in gone)

    wait_until(is_purged, side.segments, every_s=0.05)
