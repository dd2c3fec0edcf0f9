"""Logs whose next ledger ids others have written under, with a password of their own: writing and recovery go on."""

from __future__ import annotations

import asyncio

import pytest
from helpers.logs import payloads
from helpers.waiting import until
from helpers.worlds.memory_bookies import StoredLedger

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import TransmitError
from metadata.zookeeper.memory import Fault
from storage_node.protocol.digests import master_key

POOL = {"allocator_pool": True, "allocator_pool_name": "here", "allocator_pool_size": 2}


def _take(bookies, ledger_ids):
    """What adds of somebody else leave under these ids. None is in use."""
    for bookie in bookies:
        for ledger_id in ledger_ids:
            assert ledger_id not in bookie.ledgers
            bookie.ledgers[ledger_id] = StoredLedger(key=master_key(b"somebody else's"))


async def _ledgers(memory_cluster, namespace):
    return {ledger_id async for ledger_id in namespace.services.ledger_store.ids()}


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("settings", [{}, POOL], ids=["own allocators", "pool"])
async def test_a_writer_goes_on_in_other_ledgers_and_keeps_every_record(memory_cluster, settings, nodes):
    _take(memory_cluster.bookies[:nodes], range(100))
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, **settings)
    log = await namespace.open_log("taken")
    written = []
    for segment in range(3):
        async with await log.open_writer() as writer:
            futures = [writer.write(10 * segment + i, b"%d" % (10 * segment + i)) for i in range(10)]
            await writer.commit()
            written += [await future for future in futures]
    assert await payloads(log) == [b"%d" % i for i in range(30)]
    segments = await log.segments()
    assert [(s.lssn, s.record_count) for s in segments] == [(1, 10), (2, 10), (3, 10)]  # no number is missing (I7)
    assert [(d.lssn, d.entry_id) for d in written] == [(s, e) for s in (1, 2, 3) for e in range(10)]
    assert not namespace.counters["segment-recovered"]
    if nodes == 4:
        assert 0 < namespace.counters["ledger-taken"] <= 8  # not one for each id
        assert segments[0].ledger_id >= 100
    await namespace.close()
    kept = await _ledgers(memory_cluster, await memory_cluster.namespace())
    assert {s.ledger_id for s in segments} <= kept
    assert len(kept) <= 3 + POOL["allocator_pool_size"]  # what was taken is deleted


async def test_records_written_while_the_ledger_is_replaced_follow_in_order(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await namespace.open_log("order")
    writer = await log.open_writer()
    _take(memory_cluster.bookies, range(20))
    futures = []
    for i in range(50):
        futures.append(writer.write(i, b"%d" % i))
        await asyncio.sleep(0.001)
    await writer.close()
    assert [await future for future in futures] == [DLSN(1, i, 0) for i in range(50)]
    assert await payloads(log) == [b"%d" % i for i in range(50)]


async def test_a_segment_that_was_rolled_to_is_replaced_too(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, rolling_minutes=0, max_segment_bytes=50)
    log = await namespace.open_log("rolled")
    async with await log.open_writer() as writer:
        for i in range(40):
            newest = max(id for bookie in memory_cluster.bookies for id in [-1, *bookie.ledgers])
            if i % 10 == 5:
                _take(memory_cluster.bookies, range(newest + 1, newest + 10))
            await writer.write(i, b"record %d" % i)
    assert await payloads(log) == [b"record %d" % i for i in range(40)]
    assert namespace.counters["ledger-taken"]
    segments = await log.segments()
    assert [s.lssn for s in segments] == list(range(1, len(segments) + 1))
    assert sum(s.record_count for s in segments) == 40


async def test_a_tailing_reader_meets_every_record_once(memory_cluster):
    namespace, other = await memory_cluster.namespace(output_buffer_bytes=0), await memory_cluster.namespace()
    log = await namespace.open_log("tail")
    writer = await log.open_writer()
    _take(memory_cluster.bookies, range(8))
    seen = []

    async def follow():
        async with await (await other.open_log("tail")).open_reader() as reader:
            while len(seen) < 20:
                seen.extend(record.payload for record in await reader.read_available(100, wait=True))

    tail = asyncio.ensure_future(follow())
    for i in range(20):
        await writer.write(i, b"%d" % i)
    await writer.commit()
    await asyncio.wait_for(tail, 60)
    assert seen == [b"%d" % i for i in range(20)]
    await writer.close()


@pytest.mark.parametrize("nodes", [1, 2, 4])
async def test_a_log_whose_newest_ledger_was_taken_is_recovered_and_written_on(memory_cluster, nodes):
    one, other = (
        await memory_cluster.namespace(output_buffer_bytes=0),
        await memory_cluster.namespace(output_buffer_bytes=0),
    )
    log = await one.open_log("left")
    async with await log.open_writer() as writer:
        await writer.write(1, b"kept")
    writer = await log.open_writer()
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    writer.write(2, b"under way")
    await until(lambda: writer.segment == 2)
    (ledger_id,) = [s.ledger_id for s in await log.segments() if s.in_progress]
    await memory_cluster.crash(one)
    for bookie in memory_cluster.bookies:
        bookie.release()
    for bookie in memory_cluster.bookies[:nodes]:  # as if others had been first there
        bookie.ledgers[ledger_id] = StoredLedger(key=master_key(b"somebody else's"))
    log = await other.open_log("left")
    async with await log.open_writer() as writer:
        await writer.write(3, b"next")
    read = await payloads(log)
    assert [read[0], read[-1]] == [b"kept", b"next"]
    assert set(read) <= {b"kept", b"under way", b"next"}  # what was under way: the nodes decide
    if nodes == 4:
        assert read == [b"kept", b"next"]


async def test_where_the_metadata_cannot_be_changed_the_records_are_unknown_and_the_log_recovers(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await namespace.open_log("away")
    writer = await log.open_writer()
    _take(memory_cluster.bookies, range(3))
    session = namespace.store.session_id
    closings = []

    def refuse(of, operation, path):
        if of == session and operation == "put" and path.startswith("/ledgers/00/"):
            closings.append(path)
            return Fault.REFUSE
        return None

    memory_cluster.tree.inject = refuse
    future = writer.write(1, b"one")
    with pytest.raises(TransmitError):
        await asyncio.wait_for(future, 60)
    assert closings
    memory_cluster.tree.inject = None
    await writer.abort()
    async with await log.open_writer() as writer:
        await writer.write(2, b"two")
    assert await payloads(log) == [b"two"]
