"""The power goes after every disk call of collection and compaction, in every way that unsynced bytes go (D8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from helpers.bookie.crash_disk import CrashDisk, Cut, NoNetwork
from helpers.bookie.gc_harness import FixedClock, body_of
from helpers.bookie.harness import KEY, MIB

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.journal.batches import Answers
from storage_node.bookie.node.bookie import Bookie
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings

SIZE = 6000
KEPT, DELETED, FENCED = (1, 2), (3, 4, 5, 6, 7), 7

SETTINGS = BookieSettings(
    journal_directories=("/j0", "/j1"),
    ledger_directories=("/l0", "/l1"),
    bookie_id="a",
    listening_address="127.0.0.1",
    flush_interval_ms=3_600_000,
    log_size_limit=256 * 1024,
    skip_list_size_limit=2 * MIB,
    netty_max_frame_size_bytes=128 * 1024,
    journal_pre_alloc_size_mb=1,
    journal_max_size_mb=16,
    min_usable_size_for_entry_log_creation=0,
    compaction_rate_by_entries=1_000_000,
    gc_wait_time_ms=3_600_000,
)


@dataclass(eq=False)
class Life:
    """A recorded life, and after how many of the disk's calls what was promised."""

    disk: CrashDisk = field(default_factory=CrashDisk)
    tree: MemoryTree = field(default_factory=MemoryTree)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    """(calls before, ledger, entry)"""
    collected_at: int = 1 << 60
    served_from: int = 0

    def durable(self, answers: Answers) -> None:
        for frame in answers.frames:
            ledger_id, entry_id = map(int, frame.split())
            self.entries.append((len(self.disk.calls), ledger_id, entry_id))

    async def add(self, bookie: Bookie, ledger_ids: tuple[int, ...], entries: range) -> None:
        for entry_id in entries:
            for ledger_id in ledger_ids:
                body = memoryview(body_of(ledger_id, entry_id, SIZE))
                assert bookie.storage.add(body, KEY, False, self, b"%d %d" % (ledger_id, entry_id)) is Status.EOK
        await bookie.storage.journal.durable()


async def start(disk: CrashDisk, tree: MemoryTree) -> tuple[Bookie, MemoryStore]:
    store = MemoryStore(tree)
    bookie = Bookie(SETTINGS, store, network=NoNetwork(), disk=disk, clock=FixedClock())
    await bookie.start()
    return bookie, store


async def live() -> Life:
    """Two ledgers among seven are kept; what the others took is freed while more is written."""
    life = Life()
    admin = MemoryStore(life.tree)
    ledgers = LedgerStore(admin)
    await ledgers.format()
    for ledger_id in (*KEPT, *DELETED):
        await ledgers.create(ledger_id, LedgerMetadata(1, 1, 1, (Ensemble(0, ("a",)),)))
    bookie, store = await start(life.disk, life.tree)
    await life.add(bookie, (*KEPT, *DELETED), range(12))
    await bookie.storage.checkpoint()
    await life.add(bookie, (*KEPT, *DELETED), range(12, 24))
    pending = bookie.storage.fence(FENCED, KEY)
    assert not isinstance(pending, Status)
    await pending
    await bookie.storage.checkpoint()
    life.served_from = len(life.disk.calls)
    for ledger_id in DELETED:
        await ledgers.delete(ledger_id)
    collecting = asyncio.ensure_future(bookie.collect_garbage())
    await asyncio.sleep(0)
    await life.add(bookie, KEPT, range(24, 26))
    assert await collecting == len(DELETED)
    life.collected_at = len(life.disk.calls)
    compacting = asyncio.ensure_future(bookie.compact())
    await asyncio.sleep(0)
    await life.add(bookie, KEPT, range(26, 30))
    assert await compacting >= 3
    await life.add(bookie, KEPT, range(30, 33))
    assert bookie.storage.contents.stats.logs_deleted >= 3
    await bookie.abort()
    await store.close()
    await admin.close()
    return life


async def verify(life: Life, bookie: Bookie, count: int, *, collected: bool) -> None:
    storage = bookie.storage
    assert not storage.lossy
    for at, ledger_id, entry_id in life.entries:
        gone = ledger_id in DELETED and ledger_id not in storage.ledgers
        if at > count or gone:
            continue
        assert not (collected and ledger_id in DELETED), f"ledger {ledger_id} is here again"
        place = storage.find(ledger_id, entry_id)
        assert not isinstance(place, Status), (ledger_id, entry_id, place)
        read = await storage.read(*place)
        assert read is not None, (ledger_id, entry_id)
        assert bytes(read) == body_of(ledger_id, entry_id, SIZE)
    late = memoryview(body_of(FENCED, 99))
    assert storage.add(late, KEY, False, life, b"") is Status.EFENCED
    assert storage.contents.live.logs.keys() <= storage.contents.logs.paths.keys()


async def test_no_point_of_collection_and_compaction_loses_or_revives_anything() -> None:
    life = await live()
    calls = len(life.disk.calls)
    seen: set[tuple[int, int, bool]] = set()
    for count in range(life.served_from, calls + 1):
        for cut in Cut:
            found = life.disk.after(count, cut)
            promised = sum(at <= count for at, *_ in life.entries)
            key = found.signature(), promised, count >= life.collected_at
            if key in seen:
                continue
            seen.add(key)
            try:
                bookie, store = await start(found, life.tree)
                await verify(life, bookie, count, collected=count >= life.collected_at)
                await bookie.collect_garbage()
                await bookie.compact()
                await verify(life, bookie, count, collected=True)
                await bookie.abort()
                await store.close()
            except Exception as error:
                before = [call.kind for call in life.disk.calls[max(0, count - 5) : count]]
                raise AssertionError(f"after call {count} of {calls} ({before}), {cut.value}: {error!r}") from error
    assert len(seen) > 60
    print(f"{calls - life.served_from} calls, {len(seen)} different disks")
