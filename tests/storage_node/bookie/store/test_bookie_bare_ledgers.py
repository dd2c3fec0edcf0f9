"""Ledgers that anybody can call into existence without an entry: by an explicit LAC, or by a fence."""

from __future__ import annotations

import asyncio

import pytest
from helpers.bookie.harness import DIGEST, KEY, MIB, BookieCluster, WireClient, entry
from helpers.bookie.wire_harness import HeldDisk
from helpers.waiting import until

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store import collection, contents
from storage_node.bookie.store.storage import MAX_LAC_BYTES
from storage_node.protocol.encoding import encode_write_lac_request
from storage_node.protocol.schema import Status

BARE = 40


async def write_lacs(client: WireClient, ledgers: range) -> list[Status]:
    answers = await asyncio.wait_for(asyncio.gather(*(client.write_lac(ledger, 7) for ledger in ledgers)), 60)
    return list(answers)


async def write_large_lac(client: WireClient, ledger_id: int, size: int) -> Status:
    body = DIGEST.package_lac(ledger_id, 7).ljust(size, b"x")
    answer = await client.ask(lambda txn: encode_write_lac_request(txn, ledger_id, 7, KEY, body))
    return answer.status


async def test_an_explicit_lac_is_no_larger_than_any_client_sends(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    assert await write_large_lac(client, 5, MAX_LAC_BYTES) is Status.EOK
    assert await write_large_lac(client, 6, MAX_LAC_BYTES + 1) is Status.EBADREQ
    assert await write_large_lac(client, 6, 0xFFFF) is Status.EBADREQ


async def test_an_explicit_lac_may_come_before_the_first_entry_and_only_for_so_many_ledgers(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.bookie.store.storage.MAX_BARE_BY_LAC", BARE)
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) is Status.EOK
    answers = await write_lacs(client, range(100, 100 + BARE + 10))
    assert answers == [Status.EOK] * BARE + [Status.ETOOMANYREQUESTS] * 10
    assert len(bookie.storage.ledgers) == BARE + 1
    assert await client.write_lac(5, 0) is Status.EOK, "a ledger whose entries are here"
    assert await client.write_lac(100, 9) is Status.EOK, "a ledger that is known"
    assert await client.add(entry(100, 0, lac=-1)) is Status.EOK, "its first entry comes later, with the key it has"
    assert (await client.read_lac(100)).lac_body == DIGEST.package_lac(100, 9)
    assert await client.add(entry(1_000_000, 0)) is Status.EOK, "ledgers come into existence by entries as ever"
    again = [await client.write_lac(1_000_001, 3) for _ in range(BARE // 8 + 1)]
    assert again[-1] is Status.EOK, "in the place of the one that has an entry now, which is looked for bit by bit"
    assert await client.write_lac(1_000_002, 3) is Status.ETOOMANYREQUESTS


async def test_fences_of_ledgers_that_are_not_here_are_bounded_and_those_of_others_are_not(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.bookie.store.storage.MAX_BARE_BY_FENCE", 20)
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    assert [(await client.fence(ledger)).status for ledger in range(100, 122)] == (
        [Status.ENOENTRY] * 20 + [Status.ETOOMANYREQUESTS] * 2
    )
    assert (await client.fence(5, 0)).status is Status.EOK
    assert (await client.fence(100)).status is Status.ENOENTRY, "it is fenced already"
    assert await client.add(entry(100, 0)) is Status.EFENCED


async def test_explicit_lacs_wait_for_memory_as_adds_do(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.bookie.requests.connections.ROOM_WAIT_S", 0.3)
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk, skip_list_size_limit=32 * MIB)
    client, other = await cluster.connect(bookie), await cluster.connect(bookie)
    await client.add(entry(5, 0))
    disk.holds.add("entries")
    body = bytes(2 * MIB)
    adds = [client.send_add(entry(6, number, body)) for number in range(20)]
    refused = [await asyncio.wait_for(add, 60) for add in adds]
    assert refused[0].status is Status.EOK
    assert refused[-1].status is Status.ETOOMANYREQUESTS, "memory is full"
    slabs = len(bookie.storage._logs._pool._slabs)
    flood = [asyncio.ensure_future(other.write_lac(5, number)) for number in range(1, 2000)]
    answers = set(await asyncio.wait_for(asyncio.gather(*flood), 60))
    assert answers <= {Status.EOK, Status.ETOOMANYREQUESTS}
    assert len(bookie.storage._logs._pool._slabs) == slabs, "and takes no memory beyond its limit"
    disk.release()
    await bookie.storage.checkpoint()
    assert await other.write_lac(5, 3000) is Status.EOK


async def test_many_new_ledgers_bring_the_next_round_of_garbage_collection_forward(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "CROWD", 50)
    monkeypatch.setattr(collection, "CROWDED_WAIT_S", 0.01)
    store = MemoryStore(cluster.tree)
    await LedgerStore(store).format()
    bookie = await cluster.start(
        gc_wait_time_ms=3_600_000, minor_compaction_interval_s=0, major_compaction_interval_s=0
    )
    client = await cluster.connect(bookie)
    for ledger in range(60):
        await client.add(entry(ledger, 0))
    await asyncio.wait_for(_collected(bookie), 60)
    assert bookie.storage.contents.stats.ledgers_collected >= 50
    await store.close()


async def _collected(bookie: Bookie) -> None:
    await until(lambda: bookie.storage.contents.stats.rounds != 0)


def test_fences_of_deleted_ledgers_are_remembered_for_the_newest_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_FENCES_KEPT", 3)
    kept = contents.Contents.__new__(contents.Contents)
    kept.fenced_gone = {ledger: 1000 + ledger for ledger in range(6)}
    kept.forget_fences(1001)
    assert list(kept.fenced_gone) == [3, 4, 5]
