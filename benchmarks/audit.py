"""`python -m benchmarks.audit`: how long the auditor takes for many ledgers, and how much memory.

A real ZooKeeper (or, with `--memory`, the store in memory, whose own share of the time is then included) gets so many
closed ledgers, three copies each, spread over the bookies. Then one bookie is lost, and its ledgers are marked. Nothing
but metadata is there: no storage node runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.repairs import RepairQueue
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.pacing import for_each
from metadata.store import MetadataStore
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.autorecovery.auditor import Auditor, AuditReport
from storage_node.autorecovery.checker import LedgerChecker
from storage_node.client.client import LedgerClient
from storage_node.edge import SystemClock
from storage_node.settings.autorecovery import AutoRecoverySettings

LEDGERS = 100_000
BOOKIES = 20
CREATIONS = 128
CLAIMS = 100
HEAP_MB = 1024
KIB, MIB = 1024, 1024 * 1024


def bookies(count: int = BOOKIES) -> list[str]:
    """Return the ids of `count` storage nodes, none of which exists."""
    return [f"bookie-{number}.example:3181" for number in range(count)]


def closed_ledger(ledger_id: int, names: list[str]) -> LedgerMetadata:
    """Return the metadata of a ledger with three copies, on bookies that take turns."""
    members = tuple(names[(ledger_id + index) % len(names)] for index in range(3))
    return LedgerMetadata(
        3, 3, 2, (Ensemble(0, members),), state=LedgerState.CLOSED, last_entry=999, length=1_000_000, ctime_ms=1
    )


class AuditRig:
    """The auditor of a cluster that consists of metadata alone."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.ledgers = LedgerStore(store)
        self.marks = ReplicationStore(store)
        self.auditors = AuditorStore(store)
        self.registry = BookieRegistry(store)
        settings = AutoRecoverySettings()
        client = LedgerClient(self.ledgers, self.registry, settings=settings.client)
        checker = LedgerChecker(client, self.ledgers, self.auditors, settings, random.Random(0))
        self.auditor = Auditor(
            self.marks,
            self.auditors,
            self.ledgers,
            self.registry,
            checker,
            settings,
            SystemClock(),
            client.judge_placement,
            client.knows_places,
        )

    async def fill(self, count: int) -> None:
        """Register the bookies, and create the ledgers."""
        names = bookies()
        await self.ledgers.format()
        await self.marks.prepare()
        for name in names:
            await self.registry.register(BookieAddress(name, "127.0.0.1", 3181))

        async def create(ledger_id: int) -> None:
            await self.ledgers.create(ledger_id, closed_ledger(ledger_id, names))

        await for_each(range(count), CREATIONS, create)

    async def lose_one(self) -> None:
        """Take one node's registration away, as if its session had ended."""
        await self.registry.unregister(bookies()[0])

    async def audit(self) -> AuditReport:
        """Run one audit of the nodes. Raises what the metadata store raises."""
        return await self.auditor.audit_bookies()


@asynccontextmanager
async def metadata_store(in_memory: bool) -> AsyncIterator[MetadataStore]:
    """Open a fresh store, gone afterwards."""
    if in_memory:
        store: MetadataStore = MemoryStore(MemoryTree())
        yield store
        await store.close()
        return
    with (
        tempfile.TemporaryDirectory(prefix="dlspark-audit-") as name,
        EmbeddedZooKeeper(Path(name), heap_mb=HEAP_MB) as server,
    ):
        real = await ZooKeeperStore.connect(server.address, session_timeout_ms=60_000)
        try:
            yield real
        finally:
            await real.close()


def peak_rss_bytes() -> int:
    """Return the most memory that this process has had resident so far, in bytes (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


async def timed_audit(what: str, rig: AuditRig) -> str:
    """Run one audit; a line with its time, processor time and memory, beginning with `what`."""
    before, begin, used = peak_rss_bytes(), time.monotonic(), time.process_time()
    report = await rig.audit()
    seconds, used = time.monotonic() - begin, time.process_time() - used
    peak = peak_rss_bytes()
    return (
        f"{what}: {report.ledgers} ledgers in {seconds:.1f} s ({used:.1f} s of processor), {report.marked} marked; "
        f"peak resident set {peak / MIB:.0f} MB ({(peak - before) / MIB:+.1f} MB)"
    )


async def measure(count: int, in_memory: bool) -> None:
    """Print one line for each pass."""
    async with metadata_store(in_memory) as store:
        rig = AuditRig(store)
        begin = time.monotonic()
        await rig.fill(count)
        print(f"{count} ledgers created in {time.monotonic() - begin:.1f} s", flush=True)
        print(await timed_audit("no node is lost", rig), flush=True)
        await rig.lose_one()
        print(await timed_audit(f"one of {BOOKIES} is lost", rig), flush=True)
        print(await timed_audit("the same again", rig), flush=True)
        begin = time.monotonic()
        marked = [ledger_id async for ledger_id in rig.marks.marked()]
        print(f"{len(marked)} marks listed in {time.monotonic() - begin:.1f} s", flush=True)
        begin, claims = time.monotonic(), RepairQueue(rig.marks, "bench", random.Random(0))
        taken = 0
        while taken < CLAIMS and (claim := await claims.next()) is not None:
            taken += await claims.settle(claim)
        print(f"{taken} of them claimed and removed in {time.monotonic() - begin:.1f} s", flush=True)


def main() -> int:
    """Measure as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=LEDGERS)
    parser.add_argument("--memory", action="store_true", help="the store in memory instead of a real ZooKeeper")
    options = parser.parse_args()
    asyncio.run(measure(options.ledgers, options.memory))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
