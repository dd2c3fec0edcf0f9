"""Rows P11 and P12: our storage nodes beside Java bookies, and our client beside the Java client.

Four pairs of client and cluster take turns within a round, each with the same loads: appends one after the other;
1 KB entries, 256 under way; 256 KB entries, 16 under way; and a ledger of 256 KB entries read from end to end with two
batches of 16 entries asked for ahead. Entries go to three nodes, are acknowledged by two, and are on disk then
(journalSyncData). Before the first round every pair runs once uncounted, so that the JVMs have compiled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cluster import ACK_QUORUM, REPLICAS, Cluster, run
from benchmarks.java_cluster import ROOT, JavaCluster, rss_bytes
from benchmarks.payloads import ENTRY_BYTES
from benchmarks.results import Row, Target, percentile
from benchmarks.storage import (
    LARGE_DEPTH,
    NO_LIMIT,
    READ_BYTES,
    SMALL_BYTES,
    SMALL_DEPTH,
    SMALL_ENTRY_BYTES,
    WARM_UP,
    Pump,
    append_latencies_us,
    finish,
    new_writer,
)
from dlspark.sandbox import LEDGERS_PATH
from storage_node.client import LedgerClient, LedgerReader
from storage_node.protocol.frames import Buffer

LARGE_BYTES = 320 << 20
"""At most so much is written in a window of large entries: nothing is collected meanwhile, and disks have an end."""
READ_BATCH = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """What one client reached on one cluster."""

    p50_us: float
    p99_us: float
    small_per_s: float
    write_mb_per_s: float
    read_mb_per_s: float


class LoadingClient(Protocol):
    """A client that can be made to work."""

    name: str

    def measure(self, root: str, seconds: float) -> Figures: ...


class JavaPairs:
    """Rows P11 and P12 on our cluster and one of Java bookies."""

    def __init__(
        self, java_client: LoadingClient, our_client: LoadingClient, memory: Callable[[], tuple[float, float]]
    ) -> None:
        """`memory` gives the bytes of a node of ours, and of a Java bookie."""
        self._clients = (java_client, our_client)
        self._memory_of_nodes = memory
        self._warm_up_due = True
        self._count = 0
        self._nodes = {
            client.name: _rows("P11", f"our nodes, {client.name}", "Java bookies") for client in self._clients
        }
        self._peers = {
            "Java bookies": _rows("P12", "our client, Java bookies", "Java client"),
            "our nodes": _rows("P12", "our client, our nodes", "Java client", targets=False),
        }
        self._memory = Row("P11", "memory of a node (RSS)", "MB", "MB: Java bookie", Target(0.5, at_most=True))
        groups = (*self._nodes.values(), *self._peers.values())
        self.rows = [*(row for group in groups for row in group), self._memory]

    def round(self, seconds: float) -> None:
        """Every pair once; who begins changes from round to round."""
        pairs = [(client, root) for client in self._clients for root in (LEDGERS_PATH, ROOT)]
        if self._warm_up_due:
            self._warm_up_due = False
            for client, root in pairs:
                client.measure(root, seconds)
        turn = self._count % len(pairs)
        self._count += 1
        found = {(client.name, root): client.measure(root, seconds) for client, root in pairs[turn:] + pairs[:turn]}
        java, ours = (client.name for client in self._clients)
        for name, rows in self._nodes.items():
            _add(rows, found[name, LEDGERS_PATH], found[name, ROOT])
        for (_, rows), root in zip(self._peers.items(), (ROOT, LEDGERS_PATH), strict=True):
            _add(rows, found[ours, root], found[java, root])
        own, other = self._memory_of_nodes()
        self._memory.add(own / 1e6, other / 1e6)


def _rows(key: str, who: str, other: str, *, targets: bool = True) -> list[Row]:
    """One row for each field of `Figures`."""
    fast, short = (Target(1.0), Target(1.0, at_most=True)) if targets else (None, None)
    return [
        Row(key, f"{who}: append 100 B, depth 1, p50", "us", f"us: {other}", short),
        Row(key, f"{who}: append 100 B, depth 1, p99", "us", f"us: {other}", short),
        Row(key, f"{who}: 1 KB entries, depth {SMALL_DEPTH}", "k/s", f"k/s: {other}", fast),
        Row(key, f"{who}: write 256 KB, depth {LARGE_DEPTH}", "MB/s", f"MB/s: {other}", fast),
        Row(key, f"{who}: read 256 KB", "MB/s", f"MB/s: {other}", fast),
    ]


def _add(rows: list[Row], measured: Figures, limit: Figures) -> None:
    p50, p99, small, write, read = rows
    p50.add(measured.p50_us, limit.p50_us)
    p99.add(measured.p99_us, limit.p99_us)
    small.add(measured.small_per_s / 1e3, limit.small_per_s / 1e3)
    write.add(measured.write_mb_per_s, limit.write_mb_per_s)
    read.add(measured.read_mb_per_s, limit.read_mb_per_s)


class _JavaClient:
    """The loads of `bench.Load`."""

    name = "Java client"

    def __init__(self, java: JavaCluster) -> None:
        self._java = java

    def measure(self, root: str, seconds: float) -> Figures:
        ask: Callable[..., Any] = self._java.on(root)
        quorum = {"ensemble": REPLICAS, "ack_quorum": ACK_QUORUM, "warm_up": WARM_UP, "seconds": seconds}
        latencies: list[float] = ask("load.latencies", size=SMALL_BYTES, **quorum)
        small = ask("load.write", size=SMALL_ENTRY_BYTES, depth=SMALL_DEPTH, entries=NO_LIMIT, **quorum)
        entries = LARGE_BYTES // ENTRY_BYTES
        large = ask("load.write", size=ENTRY_BYTES, depth=LARGE_DEPTH, entries=entries, **quorum)
        ledger = ask("load.fill", size=ENTRY_BYTES, entries=READ_BYTES // ENTRY_BYTES, **quorum)
        read = ask("load.read", ledger=ledger, batch=READ_BATCH, seconds=seconds)
        ask("load.delete", ledger=ledger)
        return Figures(
            percentile(latencies, 0.5),
            percentile(latencies, 0.99),
            small["entries"] / small["seconds"],
            large["entries"] * ENTRY_BYTES / large["seconds"] / 1e6,
            read["bytes"] / read["seconds"] / 1e6,
        )


class _OurClient:
    """The same loads with our client."""

    name = "our client"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def measure(self, root: str, seconds: float) -> Figures:
        return run(self._measure(root, seconds))

    async def _measure(self, root: str, seconds: float) -> Figures:
        async with self._cluster.client(root) as client:
            latencies = await append_latencies_us(client, seconds)
            small = await _entries_per_s(client, SMALL_ENTRY_BYTES, SMALL_DEPTH, seconds, NO_LIMIT)
            large = await _entries_per_s(client, ENTRY_BYTES, LARGE_DEPTH, seconds, LARGE_BYTES // ENTRY_BYTES)
            read = await _read_bytes_per_s(client, seconds)
        return Figures(
            percentile(latencies, 0.5), percentile(latencies, 0.99), small, large * ENTRY_BYTES / 1e6, read / 1e6
        )


async def _entries_per_s(client: LedgerClient, size: int, depth: int, seconds: float, most: int) -> float:
    writer = await new_writer(client)
    payload = os.urandom(size)
    pump = Pump(writer, _repeated(payload), seconds, most=most)
    counted = await pump.run(depth)
    await finish(client, writer)
    return pump.entries / counted


async def _read_bytes_per_s(client: LedgerClient, seconds: float) -> float:
    """The ledger from end to end, over and over, once uncounted."""
    writer = await new_writer(client)
    payload = os.urandom(ENTRY_BYTES)
    for _ in range(READ_BYTES // ENTRY_BYTES):
        await writer.wait_for_room()
        added = writer.add(payload)
    await added
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=False)
    try:
        await _read_once(reader)
        size, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            size += await _read_once(reader)
    finally:
        await reader.close()
        await client.delete(writer.ledger_id)
    return size / elapsed


async def _read_once(reader: LedgerReader) -> int:
    last, window = reader.last_add_confirmed, 2 * READ_BATCH
    size = 0
    async for entry in reader.entries(0, last, window_bytes=window * ENTRY_BYTES, window_entries=window):
        size += len(entry.payload)
    return size


def _repeated(payload: bytes) -> Iterator[tuple[Buffer, ...]]:
    while True:
        yield (payload,)


@contextmanager
def java_pairs(cluster: Cluster, directory: Path) -> Iterator[JavaPairs]:
    """The benchmark, with Java bookies beside the cluster's nodes. Raises OutOfReachError."""
    sandbox = cluster.sandbox
    with JavaCluster(directory / "java", sandbox.zookeeper_address) as java:

        def memory() -> tuple[float, float]:
            own = [rss_bytes(sandbox.node_pid(index)) for index in range(sandbox.node_count)]
            return sum(own) / len(own), java.rss_bytes()

        yield JavaPairs(_JavaClient(java), _OurClient(cluster), memory)
