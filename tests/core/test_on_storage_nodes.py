"""The same log over real storage nodes in this process: TCP, journals, restarts; and the test kit's cluster itself."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from helpers.bookie.strangers import write_as_stranger

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.settings.settings import Settings


@pytest.fixture
def cluster_options():
    return {"settings": Settings(long_poll_ms=300, read_ahead_wait_ms=50, rolling_concurrency=0)}


async def _drained(reader):
    records = []
    while more := await reader.read_available(1000, wait=True):
        records += more
    return records


async def test_records_survive_the_restart_of_every_node(in_process_cluster):
    namespace = await in_process_cluster.connect()
    log = await namespace.open_log("durable")
    async with await log.open_writer() as writer:
        written = [writer.write(i, b"%d" % i) for i in range(500)]
    for index in range(4):
        await in_process_cluster.stop_node(index)
    assert await in_process_cluster.writable_nodes() == []
    for index in range(4):
        await in_process_cluster.start_node(index)
    async with await log.open_reader() as reader:
        assert [record.dlsn for record in await _drained(reader)] == [await future for future in written]


async def test_a_node_may_go_and_come_back_under_a_writer_and_a_tailing_reader(in_process_cluster):
    writing, reading = await in_process_cluster.connect(), await in_process_cluster.connect()
    writer = await (await writing.open_log("tail")).open_writer()
    written = [writer.write(0, b"0")]
    await writer.commit()
    async with await (await reading.open_log("tail")).open_reader() as reader:
        tail = asyncio.ensure_future(_take(reader, 300))
        for i in range(1, 300):
            written.append(writer.write(i, b"%d" % i))
            if i % 10 == 0:
                await writer.commit()
            if i == 100:
                await in_process_cluster.stop_node(0)
            if i == 200:
                await in_process_cluster.start_node(0)
        await writer.commit()
        records = await asyncio.wait_for(tail, 60)
        assert [record.dlsn for record in records] == [await future for future in written]
    await writer.close()


async def _take(reader, count):
    return [await reader.read_next() for _ in range(count)]


async def test_a_crash_of_the_writer_loses_nothing_that_was_acknowledged(in_process_cluster):
    one, other = await in_process_cluster.connect(), await in_process_cluster.connect()
    writer = await (await one.open_log("crash")).open_writer()
    payloads = pa.array([b"x" * 100] * 50_000)
    entries = await writer.write_batch(np.arange(50_000), payloads)
    await in_process_cluster.crash(one)
    log = await other.open_log("crash")
    async with await log.open_writer() as writer:
        assert writer.last_txid == 49_999
        last = writer.write(50_000, b"after")
    assert await last == DLSN(2, 0, 0)
    async with await log.open_reader() as reader:
        rows = 0
        while rows < 50_001:
            rows += (await reader.next_batch()).num_rows
    assert sum(entry.record_count for entry in entries) == 50_000


async def test_the_old_writer_is_fenced_by_the_new_one(in_process_cluster):
    one, other = await in_process_cluster.connect(), await in_process_cluster.connect()
    old = await (await one.open_log("fenced")).open_writer()
    old.write(1, b"first")
    await old.flush()
    await one.store.delete(old._lock.member_path)  # an operator breaks the lock
    log = await other.open_log("fenced")
    new = await log.open_writer()
    late = old.write(2, b"late")
    with pytest.raises(Exception, match=r"not acknowledged|was not"):
        await old.flush()
    assert late.exception() is not None
    kept = new.write(2, b"kept")
    await new.close()
    with pytest.raises(Exception, match="failed"):
        await old.close()
    assert await kept == DLSN(2, 0, 0)
    async with await log.open_reader() as reader:
        assert [record.payload for record in await _drained(reader)] == [b"first", b"kept"]


async def test_a_deleted_logs_segments_are_collected_and_no_other_log_loses_a_record(in_process_cluster):
    """Also those that are open, or only allocated: a ledger is in metadata before its first entry is on a node."""
    namespace = await in_process_cluster.connect()
    kept, dropped = await namespace.open_log("kept"), await namespace.open_log("dropped")
    async with await dropped.open_writer() as writer:
        for i in range(300):
            writer.write(i, b"x" * 1000)
    async with await kept.open_writer() as writer:
        written = [writer.write(i, b"%d" % i) for i in range(200)]
    tail = await kept.open_writer()
    written += [tail.write(200 + i, b"%d" % i) for i in range(100)]
    await tail.commit()
    before = [set(node.storage.ledgers) for node in in_process_cluster.bookies]
    assert [await node.collect_garbage() for node in in_process_cluster.bookies] == [0] * 4
    await namespace.delete_log("dropped")
    collected = [await node.collect_garbage() for node in in_process_cluster.bookies]
    assert sum(collected) >= 3, "every replica"
    assert [len(ids) - count for ids, count in zip(before, collected, strict=True)] == [
        len(node.storage.ledgers) for node in in_process_cluster.bookies
    ]
    written += [tail.write(300 + i, b"%d" % i) for i in range(50)]
    await tail.close()
    async with await kept.open_reader() as reader:
        assert [record.dlsn for record in await _drained(reader)] == [await future for future in written]


async def test_storage_nodes_give_back_the_space_of_purged_segments_and_of_deleted_logs(in_process_cluster):
    namespace = await in_process_cluster.connect()
    log = await namespace.open_log("aging")
    for txid in (10, 20, 30):
        async with await log.open_writer() as writer:
            writer.write(txid, b"x" * 1000)
    ledgers = [segment.ledger_id for segment in await log.segments()]

    async def stored() -> set[int]:
        for bookie in in_process_cluster.bookies:
            await bookie.collect_garbage()
        return {ledger_id for bookie in in_process_cluster.bookies for ledger_id in bookie.storage.contents.ledgers}

    assert await stored() == set(ledgers)
    await log.truncate(DLSN(3, 0, 0))
    assert await stored() == set(ledgers), "what is truncated is only hidden"
    assert await log.purge_older_than(30) == 2
    assert await stored() == set(ledgers[2:])
    await namespace.delete_log("aging")
    assert await stored() == set()


@pytest.mark.parametrize("nodes", [1, 2, 4])
async def test_logs_go_on_where_strangers_wrote_under_the_next_hundred_ledger_ids(in_process_cluster, nodes):
    namespace, other = await in_process_cluster.connect(), await in_process_cluster.connect()
    log = await namespace.open_log("taken")
    async with await log.open_writer() as writer:
        written = [writer.write(0, b"0")]
    (first,) = await log.segments()
    taken = [bookie.address for bookie in in_process_cluster.bookies[:nodes]]
    await write_as_stranger(taken, range(first.ledger_id + 1, first.ledger_id + 101))
    for i in range(1, 4):
        async with await log.open_writer() as writer:
            written.append(writer.write(i, b"%d" % i))
    writer = await log.open_writer()
    written.append(writer.write(4, b"4"))
    await writer.flush()
    await in_process_cluster.crash(namespace)
    log = await other.open_log("taken")
    async with await log.open_writer() as writer:
        written.append(writer.write(5, b"5"))
    async with await log.open_reader() as reader:
        records = await _drained(reader)
    assert [(record.dlsn, record.payload) for record in records] == [
        (await future, b"%d" % i) for i, future in enumerate(written)
    ]
    assert [s.lssn for s in await log.segments()] == [1, 2, 3, 4, 5, 6]


async def test_a_segment_whose_ledger_strangers_took_before_its_writer_died_is_recovered(in_process_cluster):
    namespace, other = await in_process_cluster.connect(), await in_process_cluster.connect()
    log = await namespace.open_log("left")
    async with await log.open_writer() as writer:
        writer.write(0, b"0")
    writer = await log.open_writer()
    await writer._sequence.start(1)
    (left,) = [s for s in await log.segments() if s.in_progress]
    await in_process_cluster.crash(namespace)
    await write_as_stranger([bookie.address for bookie in in_process_cluster.bookies], [left.ledger_id])
    log = await other.open_log("left")
    async with await log.open_writer() as writer:
        writer.write(1, b"1")
    async with await log.open_reader() as reader:
        assert [record.payload for record in await _drained(reader)] == [b"0", b"1"]
