"""The reader: every record once and in order, from any position, at the tail, over rolls, truncation and loss."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.logs import waits_at_tail
from helpers.serving.proxy_world import LoopClock
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import ROW_SCHEMA
from dlspark.core.reading.segment_follower import REFUSED_IN_A_ROW, REFUSED_S
from dlspark.errors import (
    AlreadyTruncatedError,
    EndOfStreamError,
    IdleReaderError,
    PositionGapError,
    ReadCancelledError,
    ReadError,
    SegmentNotFoundError,
)
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.store import Create, Delete
from storage_node.client.entering import ClientSecurity
from storage_node.errors import TlsRefusedError
from storage_node.transport.tls import insecure_error


async def _written(namespace, name, segments, *, start=0):
    """A log of these segments (lists of payloads); transaction ids count up by 10. Returns its handle."""
    log = await namespace.open_log(name)
    txid = start
    for payloads in segments:
        async with await log.open_writer() as writer:
            for payload in payloads:
                writer.write(txid, payload)
                txid += 10
    return log


async def _drained(reader):
    records = []
    while more := await reader.read_available(100, wait=True):
        records += more
    return records


async def _read(log, start="earliest"):
    async with await log.open_reader(start) as reader:
        return [record.payload for record in await _drained(reader)]


SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0", b"b1"], [b"c0", b"c1", b"c2", b"c3"]]
FLAT = [payload for segment in SEGMENTS for payload in segment]


# ---------------------------------------------------------------------- positions


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        (DLSN.INITIAL, 0),
        (DLSN.NON_INCLUSIVE_LOWER_BOUND, 0),
        (DLSN(1, 0, 1), 1),
        ("1:0:2", 2),
        (DLSN(1, 0, 3), 3),
        (DLSN(1, 7, 0), 3),
        (DLSN(2, 0, 0), 3),
        (DLSN(3, 0, 3), 8),
        (DLSN(4, 0, 0), 9),
        ("latest", 9),
        (0, 0),
        (1, 1),
        (10, 1),
        (29, 3),
        (30, 3),
        (41, 5),
        (80, 8),
        (81, 9),
    ],
)
async def test_a_reader_starts_at_any_position(memory_cluster, start, first):
    namespace = await memory_cluster.namespace()
    log = await _written(namespace, "positions", SEGMENTS)
    assert await _read(log, start) == FLAT[first:]


@pytest.mark.parametrize("start", [True, b"1:0:0", 1.5, "somewhere", "1:2"])
async def test_what_is_no_position_is_refused(namespace, start):
    log = await _written(namespace, "refused", [[b"x"]])
    with pytest.raises(CallerError):
        await log.open_reader(start)


async def test_a_missing_log_is_not_found(namespace):
    log = await namespace.open_log("missing")
    for start in ("earliest", "latest", 5, DLSN(1, 0, 0)):
        with pytest.raises(LogNotFoundError):
            await log.open_reader(start)


async def test_a_position_that_does_not_exist_yet_is_waited_for(namespace):
    log = await _written(namespace, "future", [[b"a"]])
    async with await log.open_reader(DLSN(2, 0, 1)) as reader:
        reading = asyncio.ensure_future(reader.read_next())
        await _written(namespace, "future", [[b"b", b"c"]], start=100)
        assert (await asyncio.wait_for(reading, 60)).payload == b"c"


async def test_position_is_where_the_next_reader_goes_on(namespace):
    log = await _written(namespace, "resumed", SEGMENTS)
    seen, position = [], DLSN.INITIAL
    for _ in range(len(FLAT)):
        async with await log.open_reader(position) as reader:
            seen.append((await reader.read_next()).payload)
            position = reader.position
    assert seen == FLAT


# ---------------------------------------------------------------------- the tail


async def test_a_tailing_reader_sees_every_record_once_and_in_order_while_segments_roll(memory_cluster):
    writing = await memory_cluster.namespace(
        rolling_minutes=0, max_segment_bytes=3000, output_buffer_bytes=200, periodic_flush_ms=20
    )
    reading = await memory_cluster.namespace()
    log = await writing.open_log("rolling")
    writer = await log.open_writer()
    async with await (await reading.open_log("rolling")).open_reader() as reader:

        async def read():
            return [(await reader.read_next()) for _ in range(1000)]

        tail = asyncio.ensure_future(read())
        written = []
        for i in range(1000):
            written.append(writer.write(i, b"%d" % i + b"." * (i % 50)))
            if i % 7 == 0:
                await asyncio.sleep(0)
        await writer.flush()
        records = await asyncio.wait_for(tail, 60)
        assert [record.dlsn for record in records] == [await future for future in written]
        assert [record.txid for record in records] == list(range(1000))
        assert [record.sequence_id for record in records] == list(range(1000))
        assert len({record.dlsn.lssn for record in records}) > 5
        await writer.close()
    segments = await log.segments()
    assert [segment.in_progress for segment in segments] == [False] * len(segments)
    assert sum(segment.record_count for segment in segments) == 1000
    again = await (await reading.open_log("rolling")).open_reader()
    assert [record.dlsn for record in await _drained(again)] == [record.dlsn for record in records]


async def test_a_reader_follows_the_log_over_a_crash_of_its_writer(memory_cluster):
    one, other, reading = (
        await memory_cluster.namespace(),
        await memory_cluster.namespace(),
        await memory_cluster.namespace(),
    )
    writer = await (await one.open_log("crash")).open_writer()
    writer.write(1, b"one")
    await writer.commit()
    async with await (await reading.open_log("crash")).open_reader() as reader:
        assert (await reader.read_next()).payload == b"one"
        pending = asyncio.ensure_future(reader.read_next())
        last = writer.write(2, b"acknowledged, not visible")
        await writer.flush()
        await last
        await memory_cluster.crash(one)
        writer = await (await other.open_log("crash")).open_writer()
        assert (await asyncio.wait_for(pending, 60)).payload == b"acknowledged, not visible"
        writer.write(3, b"three")
        await writer.commit()
        record = await asyncio.wait_for(reader.read_next(), 60)
        assert (record.payload, record.dlsn, record.sequence_id) == (b"three", DLSN(2, 0, 0), 2)
        await writer.close()


async def test_the_end_of_the_stream_ends_reading(namespace):
    log = await namespace.open_log("sealed")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
        writer.write(2, b"two")
        await writer.mark_end_of_stream()
    async with await log.open_reader() as reader:
        assert [record.payload async for record in reader] == [b"one", b"two"]
        with pytest.raises(EndOfStreamError):
            await reader.read_next()
        with pytest.raises(EndOfStreamError):
            await reader.read_available(1, wait=False)
    async with await log.open_reader() as reader:
        assert [batch.num_rows async for batch in reader.batches()] == [2]


async def test_bulk_reads_wait_for_what_was_asked(namespace):
    log = await namespace.open_log("bulk")
    writer = await log.open_writer()
    async with await log.open_reader() as reader:
        assert await reader.read_available(5, wait=False) == []
        assert await reader.read_available(5, wait=True) == []
        reading = asyncio.ensure_future(reader.read_bulk(3))
        writer.write(1, b"a")
        await writer.commit()
        assert [r.payload for r in await asyncio.wait_for(reading, 60)] == [b"a"]
        reading = asyncio.ensure_future(reader.read_bulk(2, wait_ms=600_000))
        writer.write(2, b"b")
        await writer.commit()
        writer.write(3, b"c")
        await writer.commit()
        assert [r.payload for r in await asyncio.wait_for(reading, 60)] == [b"b", b"c"]
        assert reader.caught_up or await reader.read_available(1, wait=True) == []
    await writer.close()


async def test_batches_that_are_available_end_where_the_log_has_no_more(namespace):
    log = await _written(namespace, "available", [[b"a", b"b"], [b"c"]])
    async with await log.open_reader() as reader:
        assert await reader.batch_available(wait=False) is None
        assert (await reader.read_next()).payload == b"a"
        rest = [await reader.batch_available() for _ in range(3)]
        assert [None if one is None else one.column("value").to_pylist() for one in rest] == [[b"b"], [b"c"], None]
        assert rest[1].schema == ROW_SCHEMA
        assert reader.position == DLSN(2, 0, 1)
        async with await log.open_writer() as writer:
            writer.write(100, b"d")
            await writer.mark_end_of_stream()
        assert (await reader.batch_available()).column("value").to_pylist() == [b"d"]
        with pytest.raises(EndOfStreamError):
            await reader.batch_available()


async def test_a_cancelled_read_loses_nothing(namespace):
    log = await _written(namespace, "cancelled", [[b"a"]])
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"a"
        reading = asyncio.ensure_future(reader.read_next())
        await waits_at_tail(reader)
        reading.cancel()
        await asyncio.wait([reading])
        await _written(namespace, "cancelled", [[b"b"]], start=100)
        assert (await asyncio.wait_for(reader.read_next(), 60)).payload == b"b"


async def test_readers_that_come_and_go_leave_no_watches_behind(memory_cluster, namespace):
    log = await _written(namespace, "idle", [[b"a"]])
    for _ in range(5):
        assert await _read(log) == [b"a"]
        async for _ in (watching := log.watch_segments()):
            break
        await watching.aclose()
    watched = memory_cluster.tree._child_watches.items()
    left = [watch for path, watches in watched if path.startswith("/dl/idle/") for _, watch in watches]
    assert len(left) <= 1
    assert len(namespace.logs_store._watches) == 0


async def test_closing_a_reader_ends_its_waiting_reads(namespace):
    log = await _written(namespace, "closing", [[]])
    reader = await log.open_reader()
    reading = asyncio.ensure_future(reader.read_next())
    await waits_at_tail(reader)
    await reader.close()
    await reader.close()
    with pytest.raises(ReadCancelledError):
        await reading
    with pytest.raises(ReadCancelledError):
        await reader.read_next()


@virtual_time
async def test_a_reader_for_which_nothing_arrives_fails_after_its_threshold():
    memory_cluster = MemoryCluster(clock=LoopClock())
    await memory_cluster.start()
    namespace = await memory_cluster.namespace(idle_error_ms=50)
    log = await _written(namespace, "idle", [[b"a"]])
    async with await log.open_reader() as reader:
        await reader.read_next()
        with pytest.raises(IdleReaderError):
            await reader.read_next()
    await memory_cluster.stop()


# ---------------------------------------------------------------------- columns


async def test_batches_carry_the_columns_of_a_spark_row(namespace):
    log = await _written(namespace, "columns", SEGMENTS, start=1_372_636_800_000)
    async with await log.open_reader(DLSN(1, 0, 1)) as reader:
        batches = [await reader.next_batch() for _ in range(3)]
    table = pa.Table.from_batches(batches)
    assert table.schema == ROW_SCHEMA
    rows = table.to_pylist()
    assert [row["value"] for row in rows] == FLAT[1:]
    assert [(row["segment"], row["entry"], row["slot"]) for row in rows[:3]] == [(1, 0, 1), (1, 0, 2), (2, 0, 0)]
    assert [row["sequence_id"] for row in rows] == list(range(1, 9))
    assert rows[0]["timestamp"].isoformat() == "2013-07-01T00:00:00.010000+00:00"
    assert {row["log"] for row in rows} == {"columns"}


async def test_batches_and_single_records_share_one_position(namespace):
    log = await _written(namespace, "mixed", SEGMENTS)
    async with await log.open_reader() as reader:
        first = await reader.read_next()
        batch = await reader.next_batch()
        record = await reader.read_next()
        rest = await _drained(reader)
    assert first.payload == b"a0"
    assert batch.column("value").to_pylist() == [b"a1", b"a2"]
    assert record.payload == b"b0"
    assert [r.payload for r in rest] == FLAT[4:]


async def test_large_batches_come_back_equal(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("large")
    txids = np.arange(20_000, dtype=np.int64)
    payloads = pa.array([b"%d" % i * (i % 9) for i in range(20_000)])
    async with await log.open_writer() as writer:
        await writer.write_batch(txids, payloads)
        await writer.mark_end_of_stream()
    async with await log.open_reader() as reader:
        table = pa.Table.from_batches([batch async for batch in reader.batches(max_bytes=100_000)])
    assert table["value"].to_pylist() == payloads.to_pylist()
    assert table["transaction_id"].to_numpy().tolist() == txids.tolist()
    assert table["sequence_id"].to_numpy().tolist() == txids.tolist()


async def test_a_transaction_id_that_is_no_time_gives_no_timestamp(namespace):
    log = await namespace.open_log("no-time")
    async with await log.open_writer() as writer:
        writer.write(5, b"")
        writer.write(2**62, b"")
    async with await log.open_reader() as reader:
        times = (await reader.next_batch()).column("timestamp").to_pylist()
    assert times[0] is not None
    assert times[1] is None


async def test_what_is_read_ahead_is_bounded(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, read_ahead_entries=5)
    log = await _written(namespace, "ahead", [[b"x"] * 200])
    async with await log.open_reader() as reader:
        await reader.read_next()
        await asyncio.sleep(0.05)
        assert len(reader._ahead._queue) <= 5
        assert len(await _drained(reader)) == 199


# ---------------------------------------------------------------------- truncation, loss


async def _rewrite(namespace, name, lssn, **changes):
    """Change a segment's metadata as upstream's truncation does: delete and create in one transaction."""
    segment = next(s for s in await namespace.logs_store.segments(name) if s.lssn == lssn)
    path = namespace.logs_store.paths(name).segment(segment)
    await namespace.store.multi([Delete(path), Create(path, replace(segment, **changes).encode())])


async def _remove(namespace, name, lssn):
    segment = next(s for s in await namespace.logs_store.segments(name) if s.lssn == lssn)
    await namespace.ledgers.delete(segment.ledger_id)
    await namespace.logs_store.delete_segment(name, segment)


async def test_a_reader_from_the_start_skips_what_was_truncated(namespace):
    log = await _written(namespace, "truncated", SEGMENTS)
    await _rewrite(namespace, "truncated", 1, truncation=TruncationStatus.TRUNCATED)
    await _rewrite(namespace, "truncated", 2, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=0, min_slot=1)
    assert await _read(log) == FLAT[4:]
    assert await log.start() == DLSN(2, 0, 1)
    assert await log.find_txid(0) == DLSN(2, 0, 1)
    assert (await log.first_record()).payload == b"b1"
    for start in (DLSN(1, 0, 1), DLSN(2, 0, 0)):
        async with await log.open_reader(start) as reader:
            with pytest.raises(AlreadyTruncatedError, match="the log begins at 2:0:1") as caught:
                await reader.read_next()
            assert "another reader goes on there" not in str(caught.value), "it would fail there as well"
    assert await _read(log, DLSN(2, 0, 1)) == FLAT[4:]


async def test_a_position_behind_the_last_truncated_record_has_lost_nothing(namespace):
    log = await _written(namespace, "behind", SEGMENTS)
    await _rewrite(namespace, "behind", 1, truncation=TruncationStatus.TRUNCATED)
    assert await _read(log, DLSN(1, 0, 3)) == FLAT[3:]
    assert await _read(log, DLSN(1, 9, 0)) == FLAT[3:]
    assert await _read(log, DLSN(2, 0, 0)) == FLAT[3:]


async def test_truncation_can_be_skipped_or_ignored_by_setting(memory_cluster):
    namespace = await memory_cluster.namespace()
    await _written(namespace, "tools", SEGMENTS)
    await _rewrite(namespace, "tools", 1, truncation=TruncationStatus.TRUNCATED)
    lenient = await memory_cluster.namespace(fail_on_truncated=False)
    assert await _read(await lenient.open_log("tools"), DLSN(1, 0, 1)) == FLAT[3:]
    curious = await memory_cluster.namespace(ignore_truncation=True)
    assert await _read(await curious.open_log("tools"), DLSN(1, 0, 1)) == FLAT[1:]


async def test_a_position_below_the_oldest_segment_left_is_truncated(namespace):
    log = await _written(namespace, "purged", SEGMENTS)
    await _remove(namespace, "purged", 1)
    assert await _read(log) == FLAT[3:]
    async with await log.open_reader(DLSN(1, 0, 1)) as reader:
        with pytest.raises(AlreadyTruncatedError):
            await reader.read_next()


@pytest.mark.parametrize("how", ["truncated", "removed"])
async def test_what_goes_away_before_it_was_read_is_an_error_not_a_gap(memory_cluster, how):
    namespace = await memory_cluster.namespace(read_ahead_entries=1, output_buffer_bytes=0)
    name = f"going-{how}"
    log = await _written(namespace, name, [[b"a"] * 5, [b"b"] * 5, [b"c"]])
    async with await log.open_reader() as reader:
        await reader.read_next()
        for lssn in (1, 2):
            if how == "truncated":
                await _rewrite(namespace, name, lssn, truncation=TruncationStatus.TRUNCATED)
            else:
                await _remove(namespace, name, lssn)
        with pytest.raises(AlreadyTruncatedError):
            await _drained(reader)
        with pytest.raises(AlreadyTruncatedError):
            await reader.read_next()


async def test_a_ledger_deleted_behind_the_logs_back_is_an_error_of_the_segment(memory_cluster, monkeypatch):
    monkeypatch.setattr("dlspark.core.reading.read_ahead.LEDGER_GONE_S", 0.1)
    namespace = await memory_cluster.namespace()
    log = await _written(namespace, "vanished", SEGMENTS)
    await namespace.ledgers.delete((await log.segments())[1].ledger_id)
    async with await log.open_reader() as reader:
        assert [(await reader.read_next()).payload for _ in range(3)] == SEGMENTS[0]
        with pytest.raises(SegmentNotFoundError):
            await reader.read_next()


async def test_deleting_the_log_fails_its_readers(namespace):
    log = await _written(namespace, "deleted", [[b"a"]])
    async with await log.open_reader() as reader:
        await reader.read_next()
        reading = asyncio.ensure_future(reader.read_next())
        await waits_at_tail(reader)
        await namespace.delete_log("deleted")
        with pytest.raises(LogNotFoundError):
            await asyncio.wait_for(reading, 60)


def _tamper(memory_cluster, change):
    for bookie in memory_cluster.bookies:
        for ledger in bookie.ledgers.values():
            change(ledger)


async def test_a_missing_record_between_two_is_a_gap(memory_cluster):
    # The writer's count jumps: what a lost record would look like to a reader.
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await namespace.open_log("gap")
    async with await log.open_writer() as writer:
        await writer.write(1, b"one")
        writer._sequence.current.position += 1
        await writer.write(2, b"three")
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"one"
        with pytest.raises(PositionGapError) as failure:
            await reader.read_next()
        assert failure.value.dlsn == DLSN(1, 1, 0)
    async with await log.open_reader() as reader:
        batch = await reader.next_batch()
        assert batch.column("value").to_pylist() == [b"one"]
        with pytest.raises(PositionGapError):
            await reader.next_batch()
    lenient = await memory_cluster.namespace(gap_detection=False)
    assert await _read(await lenient.open_log("gap")) == [b"one", b"three"]


async def test_an_entry_damaged_on_every_node_is_never_delivered(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await _written(namespace, "damaged", [[b"one", b"two", b"three"]])

    def damage(ledger):
        if 1 in ledger.entries:
            body = bytearray(ledger.entries[1])
            body[-1] ^= 1
            ledger.entries[1] = bytes(body)

    _tamper(memory_cluster, damage)
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"one"
        with pytest.raises(CorruptDataError):
            await reader.read_next()


LONG = [bytes([65 + i]) * 9_000 for i in range(6)]
"""Each is decoded by columns, also where records are read one by one."""


async def test_records_of_large_entries_come_one_by_one_as_they_were_written(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=20_000)
    log = await _written(namespace, "long", [LONG, LONG[:3]])
    async with await log.open_reader(DLSN(1, 0, 1)) as reader:
        first = await reader.read_next()
        assert reader.position == first.dlsn.next == DLSN(1, 0, 2)
        rest = await _drained(reader)
    assert [record.payload for record in (first, *rest)] == LONG[1:] + LONG[:3]
    assert [record.txid for record in (first, *rest)] == list(range(10, 90, 10))
    assert [record.sequence_id for record in (first, *rest)] == list(range(1, 9))
    assert [record.position for record in (first, *rest)] == [2, 3, 4, 5, 6, 1, 2, 3]
    assert reader.position == DLSN(2, rest[-1].dlsn.entry_id, rest[-1].dlsn.slot_id + 1)


async def test_what_stands_before_a_large_entry_that_is_none_is_delivered_one_by_one(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await namespace.open_log("long-damaged")
    async with await log.open_writer() as writer:
        await writer.write(0, LONG[0])
        await writer.write(10, LONG[1])
        await writer._sequence.current.ledger.add(bytes(9_000))
        await writer.write(20, LONG[2])
    async with await log.open_reader() as reader:
        read = [await reader.read_next(), await reader.read_next()]
        assert [record.payload for record in read] == LONG[:2]
        with pytest.raises(CorruptDataError) as failure:
            await reader.read_next()
        assert failure.value.dlsn == DLSN(1, 2, 0)
        assert reader.position == DLSN(1, 1, 1)


async def test_a_gap_before_a_large_entry_ends_reading_one_by_one_behind_the_last_record(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await namespace.open_log("long-gap")
    async with await log.open_writer() as writer:
        await writer.write(1, LONG[0])
        await writer.write(2, LONG[1])
        writer._sequence.current.position += 1
        await writer.write(3, LONG[2])
    async with await log.open_reader() as reader:
        assert [(await reader.read_next()).payload for _ in range(2)] == LONG[:2]
        with pytest.raises(PositionGapError) as failure:
            await reader.read_next()
        assert failure.value.dlsn == DLSN(1, 2, 0)
        assert reader.position == DLSN(1, 1, 1)


async def test_storage_nodes_that_are_away_are_not_named_with_every_attempt(memory_cluster, caplog):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, read_ahead_entries=1, read_ahead_wait_ms=1)
    log = await _written(namespace, "away", [[b"x"]])
    for bookie in memory_cluster.bookies:
        bookie.stop()
    async with await log.open_reader() as reader:
        reading = asyncio.ensure_future(_drained(reader))
        await until(lambda: namespace.counters["read-retried"] >= 20)
        for bookie in memory_cluster.bookies:
            bookie.up = True
        assert len(await asyncio.wait_for(reading, 60)) == 1
    said = sum("cannot be read yet" in record.message for record in caplog.records)
    assert 1 <= said <= namespace.counters["read-retried"].bit_length()


class _RefusingNodes:
    """Nodes that refuse this client's certificate, as long as `refuse`; where `away`, they are not there instead."""

    def __init__(self, monkeypatch):
        self.refuse = self.away = False
        self.asked = set()
        connected = ClientSecurity.connect

        async def connect(security, network, host, port, handler, *, timeout_ms, node):
            self.asked.add(node)
            if self.refuse and not self.away:
                error = TlsRefusedError("the peer refuses this side's certificate, which is revoked")
                raise insecure_error(f"the storage node {node}", error, node=node)
            port = 1 if self.away else port
            return await connected(security, network, host, port, handler, timeout_ms=timeout_ms, node=node)

        monkeypatch.setattr(ClientSecurity, "connect", connect)


@virtual_time
async def test_a_reader_whose_certificate_every_node_refuses_fails_soon_and_says_so(monkeypatch):
    memory_cluster = MemoryCluster(clock=LoopClock())
    await memory_cluster.start()
    log = await _written(await memory_cluster.namespace(output_buffer_bytes=0), "refused", [[b"x"]])
    namespace = await memory_cluster.namespace()
    nodes, clock = _RefusingNodes(monkeypatch), asyncio.get_running_loop()
    nodes.refuse = True
    async with await (await namespace.open_log(log.name)).open_reader() as reader:
        reading = asyncio.ensure_future(reader.read_next())
        await asyncio.sleep(REFUSED_S - 1)
        nodes.away = True  # which may pass: only what comes in a row behind that is final
        await asyncio.sleep(5)
        nodes.away, since = False, clock.time()
        with pytest.raises(ReadError, match="refuses this side's certificate, which is revoked") as caught:
            await reading
    assert REFUSED_S <= clock.time() - since < REFUSED_S + 5
    assert "Check both sides' certificates" in (caught.value.advice or "")
    assert len(nodes.asked) == 3  # each node that has it was asked
    await memory_cluster.stop()


@virtual_time
async def test_a_reader_outlasts_that_nodes_have_not_read_yet_that_its_certificate_is_good(monkeypatch):
    memory_cluster = MemoryCluster(clock=LoopClock())
    await memory_cluster.start()
    log = await _written(await memory_cluster.namespace(output_buffer_bytes=0), "renewed", [[b"x"]])
    namespace = await memory_cluster.namespace()
    nodes = _RefusingNodes(monkeypatch)
    nodes.refuse = True
    async with await (await namespace.open_log(log.name)).open_reader() as reader:
        reading = asyncio.ensure_future(reader.read_next())
        await asyncio.sleep(15)  # all processes have read what was changed by then (docs/security.md)
        assert namespace.counters["read-retried"] > REFUSED_IN_A_ROW
        nodes.refuse = False
        assert (await reading).payload == b"x"
    await memory_cluster.stop()


async def test_storage_nodes_that_are_away_for_a_while_are_waited_for(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, read_ahead_entries=1)
    log = await _written(namespace, "away", [[b"x"] * 50])
    async with await log.open_reader() as reader:
        await reader.read_next()
        for bookie in memory_cluster.bookies:
            bookie.stop()
        reading = asyncio.ensure_future(_drained(reader))
        await until(lambda: namespace.counters["read-retried"])
        for bookie in memory_cluster.bookies:
            bookie.up = True
        assert len(await asyncio.wait_for(reading, 60)) == 49


async def test_a_reader_survives_the_loss_of_its_metadata_session(memory_cluster):
    writing, reading = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await _written(writing, "session", [[b"a"]])
    async with await (await reading.open_log("session")).open_reader() as reader:
        assert (await reader.read_next()).payload == b"a"
        pending = asyncio.ensure_future(reader.read_next())
        await waits_at_tail(reader)
        memory_cluster.tree.expire(reading.store.session_id)
        await _written(writing, "session", [[b"b"]], start=100)
        assert (await asyncio.wait_for(pending, 60)).payload == b"b"
    assert await _read(log) == [b"a", b"b"]


# ---------------------------------------------------------------------- a number that is used again


async def _empty_segment(namespace, name):
    """A log whose owner died right after it had started its first segment."""
    await namespace.create_log(name)
    logs = namespace.logs_store
    state = await logs.open(name)
    ledger = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await logs.start_segment(name, state, SegmentMetadata(ledger.ledger_id, 1, 0, in_progress=True))
    return ledger.ledger_id


async def test_a_reader_does_not_miss_the_segment_that_takes_the_number_of_an_empty_one(memory_cluster):
    owner, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    ledger_id = await _empty_segment(owner, "again")
    log = await other.open_log("again", {"readLACLongPollTimeout": 50})
    async with await log.open_reader() as reader:
        recovered = await owner.ledgers.open(ledger_id, recover=True)
        assert (recovered.closed, recovered.last_add_confirmed) == (True, -1)
        await recovered.close()
        for _ in range(10):  # the reader hears that the ledger has ended
            assert await reader.read_available(1, wait=True) == []
        async with await (await owner.open_log("again")).open_writer() as writer:
            written = writer.write(1, b"first")
            await writer.commit()
        assert await written == DLSN(1, 0, 0)
        record = await asyncio.wait_for(reader.read_next(), 60)
        assert (record.dlsn, record.payload) == (DLSN(1, 0, 0), b"first")


async def test_the_end_of_a_log_is_not_behind_an_empty_segment_that_may_be_removed(memory_cluster):
    namespace = await memory_cluster.namespace()
    ledger_id = await _empty_segment(namespace, "end")
    await (await namespace.ledgers.open(ledger_id, recover=True)).close()
    assert await (await namespace.open_log("end")).end() == DLSN(1, 0, 0)


async def test_a_read_whose_time_is_up_waits_for_the_read_ahead_without_spinning(namespace, monkeypatch):
    log = await _written(namespace, "spin", [[b"a"]])
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"a"
        assert await reader.read_available(1, wait=True) == []
        assert reader.caught_up
        deadlines = []

        async def activity(deadline):
            """An entry comes that holds no record: the tail is elsewhere until the read-ahead has looked again."""
            deadlines.append(deadline)
            reader._ahead.caught_up = len(deadlines) > 1
            if deadline is not None:
                await asyncio.sleep(max(deadline - asyncio.get_running_loop().time(), 0))

        monkeypatch.setattr(reader, "_activity", activity)
        assert await reader.read_available(1, wait=True) == []
        assert deadlines[0] is not None
        assert deadlines[1] is None


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("turns", range(6))
async def test_a_read_that_is_cancelled_just_as_something_happens_ends(namespace, turns, columns):
    log = await _written(namespace, "cancelled", [[b"a"]])
    async with await log.open_reader("latest") as reader:
        reading = asyncio.ensure_future(reader.next_batch() if columns else reader.read_next())
        await waits_at_tail(reader)
        reader._ahead.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading], timeout=60)
        assert reading.cancelled()
