"""A killed node's registration is taken over at once, by ending its session, and never by guessing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster
from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.bookie import Bookie
from storage_node.errors import CookieMismatchError


async def crash(cluster: BookieCluster, bookie: Bookie) -> MemoryStore:
    """End a node and leave its session as it is, as a SIGKILL does; its store, which only the server knows now."""
    (pair,) = (pair for pair in cluster.running if pair[0] is bookie)
    await bookie.abort()
    cluster.running.remove(pair)
    return pair[1]


async def owner(store: MemoryStore, name: str = "a") -> int:
    stat = await store.exists(f"/ledgers/available/{name}")
    return 0 if stat is None else stat.ephemeral_owner


async def test_a_restarted_node_ends_its_predecessors_session_and_registers_at_once(cluster: BookieCluster) -> None:
    watcher = MemoryStore(cluster.tree)
    former = await crash(cluster, await cluster.start())
    former_id = former.session_id
    assert await owner(watcher) == former_id, "the registration outlives the process"
    bookie = await asyncio.wait_for(cluster.start(), 60)
    assert await owner(watcher) == cluster.running[0][1].session_id
    assert former_id not in cluster.tree._sessions
    path = cluster.tmp_path / "a" / "journal" / "current" / "SESSION"
    assert path.exists()
    await cluster.stop(bookie)
    assert not path.exists(), "an orderly stop leaves nothing to end"
    await former.close()
    await watcher.close()


async def test_the_session_that_followed_an_expired_one_is_ended_too(cluster: BookieCluster) -> None:
    watcher = MemoryStore(cluster.tree)
    bookie = await cluster.start()
    store = cluster.running[0][1]
    path = cluster.tmp_path / "a" / "journal" / "current" / "SESSION"
    before = path.read_bytes()
    cluster.tree.expire(store.session_id)

    async def another_session() -> bool:
        return await owner(watcher) not in (0, int(before, 16)) and path.read_bytes() != before

    await until(another_session, every_s=0)
    former = await crash(cluster, bookie)
    await asyncio.wait_for(cluster.start(), 60)
    assert await owner(watcher) == cluster.running[0][1].session_id
    await former.close()
    await watcher.close()


@pytest.mark.parametrize("what", [b"", b"not hexadecimal", b"0011"])
async def test_without_a_readable_token_the_registration_waits_for_the_session_to_expire(
    cluster: BookieCluster, what: bytes
) -> None:
    watcher = MemoryStore(cluster.tree)
    former = await crash(cluster, await cluster.start())
    (cluster.tmp_path / "a" / "journal" / "current" / "SESSION").write_bytes(what)
    starting = asyncio.ensure_future(cluster.start())
    await until(lambda: cluster.tree._data_watches.get("/ledgers/available/a"), every_s=0)
    assert not starting.done()
    assert await owner(watcher) == former.session_id
    await former.close()
    await asyncio.wait_for(starting, 60)
    await watcher.close()


async def test_another_bookies_session_is_not_touched(cluster: BookieCluster) -> None:
    """The same id on other directories: that is not the predecessor, and its cookie refuses the start anyway."""
    watcher = MemoryStore(cluster.tree)
    await cluster.start()
    before = await owner(watcher)
    with pytest.raises(CookieMismatchError):
        await cluster.start("b", bookie_id="a")
    assert await owner(watcher) == before
    await watcher.close()


@pytest.mark.processes
async def test_the_same_with_a_real_zookeeper(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        cluster = BookieCluster(tmp_path)
        loop = asyncio.get_running_loop()
        stores = [await ZooKeeperStore.connect(server.address, session_timeout_ms=30_000) for _ in range(3)]
        await LedgerStore(stores[0]).format()
        first = Bookie(cluster.settings(), stores[0])
        await first.start()
        await first.abort()
        began = loop.time()
        second = Bookie(cluster.settings(), stores[1])
        await second.start()
        assert loop.time() - began < 15, "it did not wait for a session of 30 s"
        assert [found.bookie_id for found in await BookieRegistry(stores[2]).writable()] == ["a"]
        stat = await stores[2].exists("/ledgers/available/a")
        assert stat is not None
        assert stat.ephemeral_owner == stores[1].session_id
        await second.stop()
        for store in stores:
            await store.close()
