"""Readers of all kinds go on into cold files: the same records, at the same positions, without being told."""

from __future__ import annotations

import asyncio
import itertools

import pyarrow as pa
import pytest
from helpers.logs import written

from dlspark import Namespace, Runtime
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.settings.settings import Settings
from dlspark.errors import EndOfStreamError
from dlspark.testing.cluster import InProcessCluster
from metadata.distributedlog.cold_places import UnitState

SEGMENTS = [[f"{part}-{number}".encode() * 20 for number in range(30)] for part in range(5)]
FLAT = [payload for segment in SEGMENTS for payload in segment]


async def records_of(log, start="earliest"):
    found = []
    async with await log.open_reader(start) as reader:
        while more := await reader.read_available(1000, wait=True):
            found += more
    return found


async def moved(namespace, mover, name="flights"):
    """A log of five segments: 1 and 2 in one file, 3 in another, 4 in a file and hot, 5 hot alone; and its records."""
    log = await written(namespace, name, SEGMENTS)
    before = await records_of(log)
    await mover.move(name, 1, 2)
    await mover.move(name, 3, 3)
    await mover.copy(name, 4, 4)
    return log, before


async def test_a_reader_from_the_beginning_reads_files_and_then_ledgers(namespace, mover):
    log, before = await moved(namespace, mover)
    assert [record.payload for record in before] == FLAT
    listed = await log.segments()
    assert [(one.lssn, one.cold and one.cold.state, one.cold and one.cold.listed) for one in listed] == [
        (1, UnitState.HOT_DELETED, False),
        (2, UnitState.HOT_DELETED, False),
        (3, UnitState.HOT_DELETED, False),
        (4, UnitState.FINISHED, True),
        (5, None, None),
    ]
    assert await records_of(log) == before


async def test_readers_that_know_nothing_of_the_move_read_on(memory_cluster, namespace, mover):
    """A client whose list was read before the move, and one that begins after it."""
    log = await written(namespace, "flights", SEGMENTS)
    other = await (await memory_cluster.namespace()).open_log("flights")
    before = await records_of(other)
    async with await other.open_reader() as reader:
        first = await exactly(reader, 7)
        await mover.move("flights", 1, 4)
        assert first + await exactly(reader, len(FLAT) - 7) == before
        assert await reader.read_available(10, wait=False) == []
        async with await log.open_writer() as writer:
            await writer.write(10_000, b"the next one")
            await writer.flush()
        assert (await reader.read_next()).payload == b"the next one"
    assert await records_of(log) == [*before, *(await records_of(log))[-1:]]


async def exactly(reader, count):
    found = []
    while len(found) < count:
        found += await reader.read_bulk(count - len(found))
    return found


async def test_a_reader_starts_at_any_position_of_a_file(namespace, mover):
    log, before = await moved(namespace, mover)
    for index in (0, 1, 29, 30, 31, 59, 60, 75, 89, 90, 91, 149):
        record = before[index]
        for start in (record.dlsn, record.txid, str(record.dlsn)):
            assert await records_of(log, start) == before[index:]
    assert await records_of(log, DLSN(1, 500, 0)) == before[30:]
    assert await records_of(log, before[59].txid + 1) == before[60:]


async def test_rewinds_go_from_ledgers_into_files_and_back(namespace, mover):
    log, before = await moved(namespace, mover)
    async with await log.open_reader() as reader:
        for index in (140, 3, 95, 60, 0, 149, 31):
            assert await reader.skip_to(before[index].dlsn) == before[index].dlsn
            assert await reader.read_next() == before[index]
            await reader.skip_to(before[index].txid)
            wanted = before[index : index + 3]
            assert await exactly(reader, len(wanted)) == wanted


async def test_positions_are_what_they_were(namespace, mover):
    log = await written(namespace, "flights", SEGMENTS)
    before = await records_of(log)
    dlsns = [record.dlsn for record in before]

    async def asked():
        found = [await log.start(), await log.end(), await log.first_record(), await log.last_record()]
        found += [await log.find_txid(txid) for txid in (0, 1, 290, 291, 305, 599, 600, 899, 1_490, 1_491)]
        found += [await log.find_sequence_id(number) for number in (0, 29, 30, 59, 77, 149, 150)]
        found += [await log.sequence_id(dlsns[at]) for at in (0, 29, 30, 59, 77, 149)]
        found += [
            await log.record_count(dlsns[first], dlsns[last])
            for first, last in itertools.combinations((0, 17, 45, 88, 120), 2)
        ]
        return [*found, await log.record_count()]

    hot = await asked()
    assert hot[4:14] == [
        *(dlsns[at] for at in (0, 1, 29, 30, 31, 60, 60, 90, 149)),
        await log.end(),
    ]
    await mover.move("flights", 1, 2)
    await mover.move("flights", 3, 4)
    assert await asked() == hot


async def test_bulks_batches_tables_and_single_records_are_the_same(namespace, mover):
    await namespace.create_log("orders")
    log = await namespace.open_log("orders")
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])
    await log.declare_schema(columns)
    for part in range(3):
        async with await log.open_writer() as writer:
            for number in range(20):
                writer.write(part * 20 + number, b'{"id": %d, "item": "%d"}' % (number, part))

    async def asked():
        async with await log.open_reader() as reader:
            batches = []
            while sum(map(len, batches)) < 60:
                batches.append(await reader.next_batch())
        async with await log.open_reader() as reader:
            tables = []
            while sum(map(len, tables)) < 60:
                tables.append(await reader.next_table())
        async with await log.open_reader() as reader:
            single = [await reader.read_next() for _ in range(60)]
        async with await log.open_reader() as reader:
            bulk = await exactly(reader, 60)
        return pa.Table.from_batches(batches).combine_chunks(), pa.concat_tables(tables).combine_chunks(), single, bulk

    hot = await asked()
    assert hot[1].column("id").to_pylist() == list(range(20)) * 3
    await mover.move("orders", 1, 2)
    assert await asked() == hot


def behind(record):
    return record.dlsn._replace(slot_id=record.dlsn.slot_id + 1)


async def test_batches_of_files_are_cut_between_entries_as_their_reader_asks(namespace, mover):
    log, before = await moved(namespace, mover)
    for max_bytes in (1, 300, 1 << 20):
        found, sizes = [], []
        async with await log.open_reader() as reader:
            while len(found) < 60:
                batch = await reader.next_batch(max_bytes)
                found += batch.column("value").to_pylist()
                sizes.append(len(batch))
                assert reader.position == behind(before[len(found) - 1])
        assert found == FLAT[: len(found)]
        assert max_bytes > 1 or set(sizes) == {1}
        assert max_bytes == 1 or max(sizes) > 1


async def test_a_reader_changes_its_way_and_place_within_columns(namespace, mover):
    """Records, batches and skips in turn, within what one row group has, and out of it."""
    log, before = await moved(namespace, mover)
    async with await log.open_reader() as reader:
        at = 0
        for step in range(12):
            assert await reader.read_next() == before[at]
            at += 1
            values = (await reader.next_batch(150 * (step % 3))).column("value").to_pylist()
            assert values == FLAT[at : at + len(values)]
            at += len(values) + 1
            assert await reader.skip_to(before[at].dlsn) == before[at].dlsn
    assert reader.gaps == []


async def test_record_sets_that_are_wanted_whole_come_from_files_as_their_members(namespace, mover):
    """A file keeps none; in ledgers they are what they were."""
    log = await namespace.open_log("sets", {"writerOutputBufferSize": 0})
    for part in range(3):
        async with await log.open_writer() as writer:
            await asyncio.gather(*writer.write_record_set(part, [b"%d-%d" % (part, one) for one in range(4)]))
            await writer.write(part, b"%d" % part)
    await mover.move("sets", 1, 2)
    whole = await namespace.open_log("sets", {"deserializeRecordSetOnReads": False})
    async with await whole.open_reader() as reader:
        found = [await reader.read_next() for _ in range(12)]
    members = [b"0-0", b"0-1", b"0-2", b"0-3", b"0", b"1-0", b"1-1", b"1-2", b"1-3", b"1"]
    assert [one.payload for one in found[:10]] == members
    assert [one.is_record_set for one in found] == [False] * 10 + [True, False]
    assert found[-1].payload == b"2"


async def test_locked_readers_with_a_subscriber_go_on(namespace, mover):
    log, before = await moved(namespace, mover)
    async with await log.open_reader(subscriber="billing") as reader:
        assert await exactly(reader, 40) == before[:40]
        await reader.commit_position()
    async with await log.open_reader(subscriber="billing") as reader:
        assert await exactly(reader, 20) == before[40:60]


async def test_streams_of_bytes_are_read_from_files(namespace, mover):
    log = await namespace.open_log("bytes", {"writerOutputBufferSize": 0})
    wanted = b""
    for part in range(3):
        async with await log.open_append_stream() as stream:
            for number in range(10):
                data = b"%d/%d," % (part, number) * 50
                await stream.append(data)
                wanted += data
    await mover.move("bytes", 1, 2)
    async with await log.open_append_reader() as reader:
        assert await reader.read(len(wanted)) == wanted
        await reader.seek(1234)
        assert await reader.read(500) == wanted[1234:1734]
    async with await log.open_append_stream() as stream:
        assert await stream.append(b"more") == len(wanted) + 4


async def test_a_sealed_log_still_ends(namespace, mover):
    log = await written(namespace, "sealed", SEGMENTS[:2])
    async with await log.open_writer() as writer:
        await writer.write(1_000, b"last")
        await writer.mark_end_of_stream()
    await mover.move("sealed", 1, 2)
    async with await log.open_reader() as reader:
        assert len(await exactly(reader, 61)) == 61
        with pytest.raises(EndOfStreamError):
            await reader.read_next()
    assert await log.is_sealed()
    assert await log.find_txid(5_000) < await log.end()


async def test_segments_without_records_need_no_file(namespace, mover):
    """Control records alone: their unit has no file, and their entries are stood in for."""
    log = await namespace.open_log("quiet", {"writerOutputBufferSize": 0})
    for part in range(3):
        async with await log.open_writer() as writer:
            if part == 0:
                await writer.write(5, b"only")
            await writer.heartbeat()
            await writer.heartbeat()
    async with await log.open_writer() as writer:
        await writer.write(10, b"newest")
    before = await records_of(log)
    units = [await mover.move("quiet", 1, 1), await mover.move("quiet", 2, 3)]
    assert [unit.value.file is None for unit in units] == [False, True]
    assert await records_of(log) == before
    assert await log.find_txid(6) == before[1].dlsn
    assert await log.record_count() == 2
    segment = await log.open_segment((await log.segments())[1])
    assert (segment.lac, segment.in_file, await segment.last_user_record()) == (-1, True, None)
    await segment.close()


async def test_a_truncation_into_a_file_hides_what_is_before_it(namespace, mover):
    log, before = await moved(namespace, mover)
    await log.truncate(before[40].dlsn)
    assert await records_of(log) == before[40:]
    assert (await log.first_record()) == before[40]
    await log.truncate(before[70].dlsn)
    assert await records_of(log) == before[70:]
    assert await log.record_count() == 80


def test_synchronous_readers_go_on_over_real_nodes(tmp_path):
    from helpers.cold.moved import HandMover
    from helpers.cold.places import folder_place

    runtime = Runtime("cold-readers")
    settings = Settings(long_poll_ms=300, read_ahead_wait_ms=50, lock_timeout_s=0, rolling_concurrency=0)
    cluster = InProcessCluster(tmp_path / "nodes", nodes=3, settings=settings)
    runtime.run(cluster.start())
    try:
        with Namespace(runtime, runtime.run(cluster.connect())) as namespace:
            log = namespace.open_log("flights")
            for segment in range(3):
                with log.open_writer() as writer:
                    for i in range(50):
                        writer.write(segment * 100 + i, b"%d" % (segment * 50 + i))

            async def move():
                mover = HandMover(await cluster.connect(), folder_place(tmp_path / "cold").root)
                await mover.move("flights", 1, 2)

            runtime.run(move())
            with log.open_reader() as reader:
                assert [int(record.payload) for record in reader.read_bulk(150)] == list(range(150))
                reader.skip_to(105)
                assert reader.next_batch().num_rows >= 1
            assert (log.record_count(), log.find_txid(130)) == (150, DLSN(2, 0, 30))
    finally:
        runtime.run(cluster.stop())
        runtime.close()
