"""Garbage collection deletes what metadata, read after the local scan, does not know, and nothing else (I13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.bookie.gc_harness import NAME, Node, body_of
from helpers.bookie.harness import KEY, WireClient
from helpers.waiting import until

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import DistributedLogError, MetadataUnavailableError, NoNodeError
from metadata.store import Stat, Watcher
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.store.collection import FENCE_MEMORY_MS
from storage_node.errors import BookieFailedError, CookieMismatchError
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ReadResponse
from storage_node.transport.tcp import TcpNetwork


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A started node; its collector does nothing by itself."""
    tree = MemoryTree()
    made = Node(tmp_path, tree)
    await made.metadata.format()
    await made.start()
    yield made
    await made.close()


class ScriptedStore(MemoryStore):
    """A session whose listings can be watched, falsified or refused."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.listed: list[str] = []
        self.synced: list[str] = []
        self.fail_at: int | None = None
        self.hidden: set[str] = set()
        self.before_listing: asyncio.Event | None = None
        self.go_on = asyncio.Event()

    async def children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        if self.before_listing is not None and not self.before_listing.is_set():
            self.before_listing.set()
            await self.go_on.wait()
        if self.fail_at is not None and len(self.listed) == self.fail_at:
            raise MetadataUnavailableError("injected", path=path)
        self.listed.append(path)
        names, stat = await super().children(path, watch)
        return [name for name in names if name not in self.hidden], stat

    async def sync(self, path: str) -> None:
        self.synced.append(path)
        await super().sync(path)


async def scripted(node: Node, **overrides: object) -> ScriptedStore:
    """Start the node again, on a session with a script."""
    await node.stop()
    node._overrides.update(overrides)
    store = ScriptedStore(node._tree)
    await node.start(store)
    return store


async def test_a_deleted_ledger_goes_with_its_space_and_the_others_stay(node: Node) -> None:
    await node.create(*range(1, 11))
    for ledger_id in range(1, 11):
        await node.add(ledger_id, range(40), 5000)
    await node.bookie.storage.checkpoint()
    before = node.files()
    await node.delete(*range(1, 10))
    assert await node.bookie.collect_garbage() == 9
    assert sorted(node.bookie.storage.ledgers) == [10]
    stats = node.bookie.storage.contents.stats
    assert (stats.rounds, stats.ledgers_collected) == (1, 9)
    assert stats.logs_deleted >= 5
    assert stats.bytes_freed > before / 2
    assert node.files() < before / 2
    assert await node.read(3, 0) is Status.ENOLEDGER
    await node.check(10, range(40), 5000)
    assert node.counted() == node.kept_count()
    for end in (node.kill, node.stop):
        await end()
        await node.start()
        assert sorted(node.bookie.storage.ledgers) == [10], "deleted for good, whatever sidecars tell of them"
        await node.check(10, range(40), 5000)
        assert node.counted() == node.kept_count()
    assert await node.bookie.collect_garbage() == 0


async def test_what_is_local_is_noted_before_metadata_is_asked(node: Node) -> None:
    """A ledger that comes while metadata is listed is no candidate, though the listing does not show it (I13)."""
    store = await scripted(node)
    await node.create(1)
    await node.add(1, range(3))
    store.before_listing = asyncio.Event()
    round_ = asyncio.ensure_future(node.bookie.collect_garbage())
    await asyncio.wait_for(store.before_listing.wait(), 60)
    assert store.synced == ["/ledgers"], "others' ledgers are seen: synced before the listing"
    store.hidden.add("L0002")
    await node.create(2)
    await node.add(2, range(3))
    await node.add(3, range(3))
    store.go_on.set()
    assert await round_ == 0
    assert sorted(node.bookie.storage.ledgers) == [1, 2, 3]
    store.hidden.clear()
    assert await node.bookie.collect_garbage() == 1
    assert sorted(node.bookie.storage.ledgers) == [1, 2]


@pytest.mark.parametrize("fail_at", [0, 1, 2, 3, 4])
async def test_any_error_of_the_listing_ends_the_round_without_a_deletion(node: Node, fail_at: int) -> None:
    await node.create(1, 20_000, 300_000_000)
    for ledger_id in (1, 2, 20_000, 20_001, 300_000_000, 300_000_001):
        await node.add(ledger_id, range(2))
    store = await scripted(node)
    store.listed.clear()
    store.fail_at = fail_at
    with pytest.raises(MetadataUnavailableError):
        await node.bookie.collect_garbage()
    assert len(node.bookie.storage.ledgers) == 6
    assert node.bookie.storage.contents.stats.rounds_aborted == 1
    store.fail_at = None
    assert await node.bookie.collect_garbage() == 3


async def test_a_tree_that_is_gone_or_another_clusters_deletes_nothing(node: Node) -> None:
    await node.add(1, range(2))
    data, stat = await node.admin.get("/ledgers/INSTANCEID")
    await node.admin.put("/ledgers/INSTANCEID", b"another-cluster", stat.version)
    with pytest.raises(CookieMismatchError, match="another cluster"):
        await node.bookie.collect_garbage()
    await node.admin.put("/ledgers/INSTANCEID", data, stat.version + 1)
    elsewhere = node.bookie.collector._ledgers
    await elsewhere.layout()
    elsewhere._root = "/nowhere"
    with pytest.raises(NoNodeError):
        await node.bookie.collect_garbage()
    elsewhere._root = "/ledgers"
    assert list(node.bookie.storage.ledgers) == [1]
    assert await node.bookie.collect_garbage() == 1


async def test_a_session_that_ends_during_the_listing_deletes_nothing(node: Node) -> None:
    """The next session's server may be behind the one that was synced."""
    store = await scripted(node)
    await node.add(1, range(2))
    store.before_listing = asyncio.Event()
    round_ = asyncio.ensure_future(node.bookie.collect_garbage())
    await asyncio.wait_for(store.before_listing.wait(), 60)
    node._tree.expire(store.session_id)
    store.go_on.set()
    with pytest.raises(DistributedLogError):
        await round_
    assert list(node.bookie.storage.ledgers) == [1]


async def test_with_verification_a_ledger_that_a_listing_missed_is_kept(node: Node) -> None:
    store = await scripted(node, verify_metadata_on_gc=True)
    await node.create(1)
    await node.add(1, range(2))
    await node.add(2, range(2))
    store.hidden.add("L0001")
    assert await node.bookie.collect_garbage() == 1
    assert list(node.bookie.storage.ledgers) == [1]


async def test_rounds_come_by_themselves(node: Node) -> None:
    await scripted(node, gc_wait_time_ms=20, minor_compaction_interval_s=0, major_compaction_interval_s=0)
    await node.add(1, range(2))
    stats = node.bookie.storage.contents.stats
    await until(lambda: stats.ledgers_collected > 0)
    assert stats.ledgers_collected == 1
    assert not node.bookie.storage.ledgers


async def test_compaction_needs_no_metadata_and_rounds_go_on_beside_it(node: Node) -> None:
    """A slow compaction (an entry a second) does not hold up collection, nor does a failing listing hold up it."""
    slow = {"compaction_rate_by_entries": 1, "minor_compaction_interval_s": 1, "major_compaction_interval_s": 0}
    store = await scripted(node, gc_wait_time_ms=50, **slow)
    stats = node.bookie.storage.contents.stats
    await node.create(1, 2)
    await node.add_all([(ledger, entry) for entry in range(60) for ledger in range(1, 11)], 3000)
    await node.bookie.storage.checkpoint()
    await until(lambda: sorted(node.bookie.storage.ledgers) == [1, 2])
    await node.delete(2)
    await until(lambda: list(node.bookie.storage.ledgers) == [1])
    store.fail_at = len(store.listed)
    await until(lambda: stats.rounds_aborted > 2 and stats.entries_copied > 0)
    store.fail_at = None
    rounds = stats.rounds
    await until(lambda: stats.rounds > rounds + 1)
    assert node.bookie.collector._compaction is not None
    assert not node.bookie.collector._compaction.done(), "still at it"
    await node.check(1, range(60), 3000)


async def test_a_node_that_cannot_write_collects_nothing(node: Node) -> None:
    await node.add(1, range(2))
    node.bookie.storage.contents.logs.give_up(OSError("injected"))
    with pytest.raises(BookieFailedError, match="cannot be written"):
        await node.bookie.collect_garbage()
    assert list(node.bookie.storage.ledgers) == [1]


async def test_a_long_poll_ends_when_its_ledger_is_collected(node: Node) -> None:
    await node.add(1, range(2))
    client = WireClient()
    address = node.bookie.address
    client.link = await TcpNetwork().connect(address.host, address.port, client, timeout_ms=60_000)
    poll = client.send_poll(1, 5, 3_600_000)
    await until(lambda: node.bookie.storage.ledgers[1].waiters)
    await node.bookie.collect_garbage()
    answer = await asyncio.wait_for(poll, 60)
    assert isinstance(answer, ReadResponse)
    assert answer.status == Status.ENOLEDGER
    client.link.close()
    await client.closed.wait()


# ------------------------------------------------------------------------------------------- fences outlive ledgers


async def fenced_and_collected(node: Node) -> None:
    await node.add(1, range(3))
    pending = node.bookie.storage.fence(1, KEY)
    assert not isinstance(pending, Status)
    await pending
    await node.add(2, range(3))
    assert await node.bookie.collect_garbage() == 2


@pytest.mark.parametrize("how", ["runs on", "kill", "stop"])
async def test_a_collected_ledger_that_was_fenced_refuses_its_writer_for_seven_days(node: Node, how: str) -> None:
    await fenced_and_collected(node)
    if how != "runs on":
        await (node.kill() if how == "kill" else node.stop())
        await node.start()
    storage = node.bookie.storage
    assert await node.add(1, [3]) is Status.EFENCED
    fence = storage.fence(1, KEY)
    assert not isinstance(fence, Status)
    await fence  # what is answered then is what a read finds: ENOLEDGER
    assert storage.write_lac(1, KEY, memoryview(bytes(32)), lambda: None) is Status.ENOLEDGER
    assert await node.read(1, 0) is Status.ENOLEDGER
    assert await node.add(2, [3]) is Status.EOK, "it was not fenced; the next round collects it again"
    node.clock.now += FENCE_MEMORY_MS - 1000
    await node.bookie.collect_garbage()
    assert await node.add(1, [3]) is Status.EFENCED
    node.clock.now += 2000
    await node.bookie.collect_garbage()
    assert await node.add(1, [3]) is Status.EOK


async def test_recovery_may_bring_a_collected_ledger_back_and_its_fence_with_it(node: Node) -> None:
    """Its replica may be wanted here again; its old writer is refused all the same (I5)."""
    await fenced_and_collected(node)
    assert await node.add(1, [7], recovery=True) is Status.EOK
    for _ in range(2):
        assert await node.add(1, [8]) is Status.EFENCED
        assert await node.read(1, 7) == body_of(1, 7)
        assert await node.read(1, 0) is Status.ENOENTRY
        await node.kill()
        await node.start()


async def test_an_id_that_comes_back_does_not_show_what_was_collected(node: Node) -> None:
    """Neither from sidecars nor from a scan, nor where old and new records lie in one log."""
    await node.add(1, range(5))
    await node.add(2, range(5))
    await node.bookie.storage.checkpoint()
    await node.create(2)
    await node.bookie.collect_garbage()
    await node.add(1, [5, 6])
    await node.bookie.storage.checkpoint()
    assert len(node.log_ids()) == 1
    for damage in (False, True, False):
        await node.kill()
        if damage:
            node.path_of(node.log_ids()[0], ".idx").unlink()
        await node.start()
        assert [await node.read(1, entry_id) for entry_id in (0, 4)] == [Status.ENOENTRY] * 2
        await node.check(1, [5, 6])
        await node.check(2, range(5))
        assert node.counted() == node.kept_count()


async def test_a_collected_ledger_does_not_come_back_from_the_journal(node: Node) -> None:
    await node.add(1, range(5))
    await node.create(2)
    await node.add(2, range(5))
    await node.bookie.collect_garbage()
    await node.add(2, range(5, 10))
    await node.kill()
    await node.start()
    assert list(node.bookie.storage.ledgers) == [2]
    await node.check(2, range(10))


# ------------------------------------------------------------------------------------------- ledgers that moved away


async def closed_in(ledgers: LedgerStore, ledger_id: int, *bookies: str) -> None:
    await ledgers.create(ledger_id, LedgerMetadata(1, 1, 1, (Ensemble(0, bookies),)).closed(2, 3000))


async def closed(node: Node, ledger_id: int, *bookies: str) -> None:
    await closed_in(node.metadata, ledger_id, *bookies)
    await node.add(ledger_id, range(3))


async def test_closed_ledgers_that_others_store_by_now_are_collected_open_or_own_ones_never(node: Node) -> None:
    await closed(node, 1, "b")
    await closed(node, 2, NAME)
    await node.create(3, bookies=("b",))
    await node.add(3, range(3))
    assert await node.bookie.collect_garbage() == 0
    assert await node.bookie.collect_garbage(moved_away=True) == 1
    assert sorted(node.bookie.storage.ledgers) == [2, 3]
    assert node.bookie.storage.contents.stats.ledgers_moved_away == 1
    assert await ReplicationStore(node.admin).locked() == set()


async def test_a_ledger_under_repair_is_left_alone(node: Node) -> None:
    """A worker may be copying it here, and name this node in the metadata next."""
    await closed(node, 1, "b")
    locks = ReplicationStore(node.admin)
    lock = await locks.lock(1, "a worker")
    assert lock is not None
    assert await node.bookie.collect_garbage(moved_away=True) == 0
    await locks.unlock(lock)
    assert await node.bookie.collect_garbage(moved_away=True) == 1


async def test_metadata_is_read_again_under_the_lock(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await closed(node, 1, "b")
    inner = node.bookie.collector._replication.lock

    async def repaired_first(ledger_id: int, owner: str) -> object:
        found = await node.metadata.read(1)
        ensembles = (Ensemble(0, (NAME,)),)
        metadata = LedgerMetadata(1, 1, 1, ensembles).closed(2, 3000)
        await node.metadata.write(1, metadata, found.version)
        return await inner(ledger_id, owner)

    monkeypatch.setattr(node.bookie.collector._replication, "lock", repaired_first)
    assert await node.bookie.collect_garbage(moved_away=True) == 0
    assert list(node.bookie.storage.ledgers) == [1]


@pytest.mark.processes
async def test_the_same_with_a_real_zookeeper(tmp_path: Path) -> None:
    """Listing, sync and locks as the server has them; ids of both widths; changes of another session."""
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        mine, theirs = await ZooKeeperStore.connect(server.address), await ZooKeeperStore.connect(server.address)
        metadata = LedgerStore(theirs)
        await metadata.format()
        node = Node(tmp_path / "node", MemoryTree())
        await node.start(mine)
        numbers = [1, 2, 10_001, 10_002, 2_000_000_000, 5_000_000_000, 5_000_000_001]
        for number in numbers:
            await metadata.create(number, LedgerMetadata(1, 1, 1, (Ensemble(0, (NAME,)),)))
            await node.add(number, range(3))
        await closed_in(metadata, 7, "elsewhere")
        await node.add(7, range(3))
        assert await node.bookie.collect_garbage() == 0
        for number in numbers[::2]:
            await metadata.delete(number)
        assert await node.bookie.collect_garbage() == 4
        lock = await ReplicationStore(theirs).lock(7, "a worker")
        assert lock is not None
        assert await node.bookie.collect_garbage(moved_away=True) == 0
        await ReplicationStore(theirs).unlock(lock)
        assert await node.bookie.collect_garbage(moved_away=True) == 1
        assert sorted(node.bookie.storage.ledgers) == numbers[1::2]
        assert await ReplicationStore(theirs).locked() == set()
        for number in numbers[1::2]:
            await node.check(number, range(3))
        await node.close()
        await theirs.close()
