"""Rows P11 and P12: our storage nodes beside Java bookies, and our client beside the Java client.

Four pairs of client and cluster take turns with each load before the next load begins: appends one after the other;
1 KB entries, 256 under way; 256 KB entries, 16 under way; and a ledger of 256 KB entries read from end to end with two
batches of 16 entries asked for ahead, the same one by both clients. Entries go to three nodes, are acknowledged by two,
and are on disk then (journalSyncData).

A Java bookie writes 64 MB/s in one window of 256 KB entries and 235 in the next, whoever its client is, as it syncs its
entry logs and journals of what came before: of that load a round has several windows, and their mean counts.

What a window leaves to be written, some GB in the system's memory, is written before the next one begins: bookies sync
their entry logs every ten seconds, and the window that writes then would pay for what others wrote before.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cluster import ACK_QUORUM, NODES, REPLICAS, Cluster, run
from benchmarks.costs import CLIENT, COUNTED_S, CallCount, Watch, Window, costs_of
from benchmarks.java_cluster import ROOT, JavaCluster, rss_bytes
from benchmarks.payloads import ENTRY_BYTES
from benchmarks.results import Measured, Row, Target, add_all, percentile
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
from dlspark.sandbox.beginning import LEDGERS_PATH
from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerReader
from storage_node.protocol.frames import Buffer

LARGE_BYTES = 320 << 20
"""At most so much is written in a window of large entries: nothing is collected meanwhile, and disks have an end."""
LARGE_WINDOWS = 4
"""As many as that swing takes to come back."""
READ_BATCH = 16
SMALL_WARM_UPS = 6
"""So many windows of 1 KB entries every pair has before anything counts: JVMs with few cores compile for that long."""


class Load(Enum):
    """Which work does a client do, and which figures does it report?"""

    APPENDS = auto()
    """Median and 99th percentile, microseconds."""
    SMALL = auto()
    """Thousands of entries a second."""
    LARGE = auto()
    """MB/s."""
    READ = auto()
    """MB/s."""


class LoadingClient(Protocol):
    """A client that can be made to work."""

    name: str

    def measure(self, load: Load, root: str, seconds: float) -> Measured:
        """Do `load` on the cluster below `root` for about `seconds`."""
        ...


class JavaPairs:
    """Rows P11 and P12 on our cluster and one of Java bookies."""

    def __init__(
        self,
        java_client: LoadingClient,
        our_client: LoadingClient,
        memory: Callable[[], tuple[float, float]],
        settle: Callable[[], None] = os.sync,
    ) -> None:
        """Compare with Java. `memory` gives the bytes of a node of ours, and of a Java bookie; `settle` has disks take
        what is left.
        """
        self._clients = (java_client, our_client)
        self._memory_of_nodes = memory
        self._settle = settle
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
        self.rows = [*(row for group in groups for rows in group.values() for row in rows), self._memory]

    def round(self, seconds: float) -> None:
        """Measure every load by every pair once; which pair begins changes from round to round."""
        pairs = [(client, root) for client in self._clients for root in (LEDGERS_PATH, ROOT)]
        if self._warm_up_due:
            self._warm_up_due = False
            for load in (*[Load.SMALL] * SMALL_WARM_UPS, Load.APPENDS, Load.LARGE, Load.READ):
                for client, root in pairs:
                    client.measure(load, root, seconds)
        turn = self._count % len(pairs)
        self._count += 1
        for load in Load:
            self._compare(load, pairs[turn:] + pairs[:turn], seconds)
        own, other = self._memory_of_nodes()
        self._memory.add(own / 1e6, other / 1e6)

    def _compare(self, load: Load, pairs: list[tuple[LoadingClient, str]], seconds: float) -> None:
        windows: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
        for _ in range(LARGE_WINDOWS if load is Load.LARGE else 1):
            for client, root in pairs:
                self._settle()
                windows[client.name, root].append(client.measure(load, root, seconds))
        found = {pair: _mean(measured) for pair, measured in windows.items()}
        java, ours = (client.name for client in self._clients)
        for name, rows in self._nodes.items():
            add_all(rows[load], found[name, LEDGERS_PATH], found[name, ROOT], "Java bookies")
        for rows, root in zip(self._peers.values(), (ROOT, LEDGERS_PATH), strict=True):
            # What an entry costs is in the rows above.
            add_all(rows[load], Measured(found[ours, root].figures), found[java, root], java)


def _mean(windows: Sequence[Measured]) -> Measured:
    """Return the mean of each figure, and what a unit cost in the last window."""
    figures = zip(*(window.figures for window in windows), strict=True)
    return Measured(tuple(map(statistics.fmean, figures)), windows[-1].costs)


def _rows(key: str, who: str, other: str, *, targets: bool = True) -> dict[Load, list[Row]]:
    """Return a row for each figure of each load."""
    fast, short = (Target(1.0), Target(1.0, at_most=True)) if targets else (None, None)
    return {
        Load.APPENDS: [
            Row(key, f"{who}: append 100 B, depth 1, p50", "us", f"us: {other}", short),
            Row(key, f"{who}: append 100 B, depth 1, p99", "us", f"us: {other}", short),
        ],
        Load.SMALL: [Row(key, f"{who}: 1 KB entries, depth {SMALL_DEPTH}", "k/s", f"k/s: {other}", fast)],
        Load.LARGE: [Row(key, f"{who}: write 256 KB, depth {LARGE_DEPTH}", "MB/s", f"MB/s: {other}", fast)],
        Load.READ: [Row(key, f"{who}: read 256 KB", "MB/s", f"MB/s: {other}", fast)],
    }


class _ReadLedgers:
    """The ledger that is read on each cluster, by one client and then by the other one.

    A Java bookie has the newest entries in memory and reads the others by 512 bytes (`readBufferSizeBytes`), each by
    hundreds of system calls. How many it has depends on what was written before: of two ledgers it is not the same.
    """

    def __init__(self, java: JavaCluster) -> None:
        self._java = java
        self._read_once: dict[str, int] = {}

    @contextmanager
    def ledger(self, root: str) -> Iterator[int]:
        """Give the ledger, which is filled before the first client reads it, and deleted behind the second one."""
        ask: Callable[..., Any] = self._java.on(root)
        ledger = self._read_once.pop(root, None)
        if ledger is not None:
            yield ledger
            ask("load.delete", ledger=ledger)
            return
        entries = READ_BYTES // ENTRY_BYTES
        ledger = ask("load.fill", size=ENTRY_BYTES, entries=entries, ensemble=REPLICAS, ack_quorum=ACK_QUORUM)
        os.sync()
        yield ledger
        self._read_once[root] = ledger


class _JavaClient:
    """The loads of `bench.Load`."""

    name = "Java client"

    def __init__(self, java: JavaCluster, ledgers: _ReadLedgers) -> None:
        self._java = java
        self._ledgers = ledgers

    def measure(self, load: Load, root: str, seconds: float) -> Measured:
        return Measured(self._measure(load, root, seconds))

    def _measure(self, load: Load, root: str, seconds: float) -> tuple[float, ...]:
        ask: Callable[..., Any] = self._java.on(root)
        window = {"ensemble": REPLICAS, "ack_quorum": ACK_QUORUM, "warm_up": WARM_UP, "seconds": seconds}
        if load is Load.APPENDS:
            latencies: list[float] = ask("load.latencies", size=SMALL_BYTES, **window)
            return percentile(latencies, 0.5), percentile(latencies, 0.99)
        if load is Load.SMALL:
            small = ask("load.write", size=SMALL_ENTRY_BYTES, depth=SMALL_DEPTH, entries=NO_LIMIT, **window)
            return (small["entries"] / small["seconds"] / 1e3,)
        if load is Load.LARGE:
            entries = LARGE_BYTES // ENTRY_BYTES
            large = ask("load.write", size=ENTRY_BYTES, depth=LARGE_DEPTH, entries=entries, **window)
            return (large["entries"] * ENTRY_BYTES / large["seconds"] / 1e6,)
        with self._ledgers.ledger(root) as ledger:
            read = ask("load.read", ledger=ledger, batch=READ_BATCH, seconds=seconds)
        return (read["bytes"] / read["seconds"] / 1e6,)


class _OurClient:
    """The same loads with our client."""

    name = "our client"

    def __init__(self, cluster: Cluster, java: JavaCluster, ledgers: _ReadLedgers) -> None:
        self._cluster = cluster
        self._java = java
        self._ledgers = ledgers

    def measure(self, load: Load, root: str, seconds: float) -> Measured:
        return run(self._measure(load, root, seconds))

    async def _measure(self, load: Load, root: str, seconds: float) -> Measured:
        watch, calls = self._windows(root)
        async with self._cluster.client(root) as client:
            if load is Load.APPENDS:
                latencies = await append_latencies_us(client, seconds, watch)
                await append_latencies_us(client, COUNTED_S, calls)
                figures = (percentile(latencies, 0.5), percentile(latencies, 0.99))
                return Measured(figures, costs_of("append", watch, calls))
            if load is Load.SMALL:
                rate = await _entries_per_s(client, SMALL_ENTRY_BYTES, SMALL_DEPTH, seconds, NO_LIMIT, watch)
                await _entries_per_s(client, SMALL_ENTRY_BYTES, SMALL_DEPTH, COUNTED_S, NO_LIMIT, calls)
                return Measured((rate / 1e3,), costs_of("entry", watch, calls))
            if load is Load.LARGE:
                most = LARGE_BYTES // ENTRY_BYTES
                rate = await _entries_per_s(client, ENTRY_BYTES, LARGE_DEPTH, seconds, most, watch)
                return Measured((rate * ENTRY_BYTES / 1e6,), costs_of("entry", watch))
            with self._ledgers.ledger(root) as ledger:
                read = await _read_bytes_per_s(client, ledger, seconds, watch)
            return Measured((read / 1e6,), costs_of("entry", watch))

    def _windows(self, root: str) -> tuple[Watch, CallCount]:
        """Return what looks at this process and at the nodes of the cluster below `root`."""
        if root == LEDGERS_PATH:
            return self._cluster.watch(), self._cluster.calls()
        processes = {CLIENT: [os.getpid()], NODES: [bookie.pid for bookie in self._java.bookies]}
        return Watch(processes), CallCount(processes)


async def _entries_per_s(
    client: LedgerClient, size: int, depth: int, seconds: float, most: int, window: Window
) -> float:
    writer = await new_writer(client)
    payload = os.urandom(size)
    with window:
        pump = Pump(writer, _repeated(payload), seconds, most=most)
        counted = await pump.run(depth)
    window.units = pump.sent
    await finish(client, writer)
    return pump.entries / counted


async def _read_bytes_per_s(client: LedgerClient, ledger_id: int, seconds: float, window: Window) -> float:
    """Read the ledger from end to end, over and over, once uncounted."""
    reader = await client.open(ledger_id, recover=False)
    try:
        await _read_once(reader)
        with window:
            size, begin = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < seconds or not size:
                size += await _read_once(reader)
        window.units = size / ENTRY_BYTES
    finally:
        await reader.close()
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
    """Set the benchmark up, with Java bookies beside the cluster's nodes. Raises OutOfReachError."""
    sandbox = cluster.sandbox
    with JavaCluster(directory / "java", sandbox.zookeeper_address) as java:

        def memory() -> tuple[float, float]:
            own = [rss_bytes(sandbox.node_pid(index)) for index in range(sandbox.node_count)]
            return sum(own) / len(own), java.rss_bytes()

        ledgers = _ReadLedgers(java)
        yield JavaPairs(_JavaClient(java, ledgers), _OurClient(cluster, java, ledgers), memory)
