"""The writer: records into segments, one owner at a time, outcomes that are never guessed."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import (
    AlreadyClosedError,
    EndOfStreamError,
    InvalidRecordError,
    OverCapacityError,
    RecordTooLongError,
    TransactionIdOutOfOrderError,
)
from metadata.distributedlog.locks import OwnershipAcquireFailedError


async def _payloads(namespace, name, start="earliest"):
    """Every record that is there now."""
    log = await namespace.open_log(name)
    async with await log.open_reader(start) as reader:
        records = []
        while True:
            try:
                more = await reader.read_available(1000, wait=True)
            except EndOfStreamError:
                return records
            if not more:
                return records
            records += more


async def test_what_was_written_is_read_back_in_order_with_its_dlsns(namespace):
    log = await namespace.open_log("flights")
    async with await log.open_writer() as writer:
        futures = [writer.write(i, b"record %d" % i) for i in range(100)]
        await writer.flush()
        written = [await future for future in futures]
    records = await _payloads(namespace, "flights")
    assert [record.dlsn for record in records] == written
    assert [record.payload for record in records] == [b"record %d" % i for i in range(100)]
    assert [record.txid for record in records] == list(range(100))
    assert [record.sequence_id for record in records] == list(range(100))
    (segment,) = await log.segments()
    assert (segment.lssn, segment.record_count, segment.first_txid, segment.last_txid) == (1, 100, 0, 99)
    assert (segment.last_entry, segment.last_slot) == written[-1][1:]


async def test_a_batch_of_columns_is_written_as_entries_of_its_own(namespace):
    log = await namespace.open_log("columns")
    txids = np.arange(5000, dtype=np.int64)
    payloads = pa.array([b"x" * (i % 300) for i in range(5000)])
    async with await log.open_writer() as writer:
        first = await _sent(writer, writer.write(0, b"before"))
        entries = await writer.write_batch(txids, payloads)
        after = await _sent(writer, writer.write(9000, b"after"))
    assert first == DLSN(1, 0, 0)
    assert sum(entry.record_count for entry in entries) == 5000
    assert entries[0].dlsn == DLSN(1, 1, 0)
    assert after.entry_id == entries[-1].dlsn.entry_id + 1
    records = await _payloads(namespace, "columns")
    assert [record.payload for record in records[1:-1]] == payloads.to_pylist()
    assert [record.position for record in records] == list(range(1, 5003))


async def _sent(writer, future):
    await writer.flush()
    return await future


async def test_lz4_entries_are_written_and_read(memory_cluster):
    namespace = await memory_cluster.namespace(compression="lz4")
    log = await namespace.open_log("packed")
    async with await log.open_writer() as writer:
        await _sent(writer, writer.write(1, b"abc" * 1000))
    assert [record.payload for record in await _payloads(namespace, "packed")] == [b"abc" * 1000]


async def test_the_buffer_is_sent_when_it_exceeds_its_size(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=100)
    writer = await (await namespace.open_log("small")).open_writer()
    first = writer.write(1, b"x" * 50)
    second = writer.write(2, b"y" * 50)
    assert (await first, await second) == (DLSN(1, 0, 0), DLSN(1, 0, 1))
    third = writer.write(3, b"z")
    done, _ = await asyncio.wait([third], timeout=0.05)
    assert not done
    await writer.close()
    assert await third == DLSN(1, 1, 0)


async def test_with_a_buffer_of_zero_every_record_is_an_entry(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    async with await (await namespace.open_log("each")).open_writer() as writer:
        written = [await writer.write(i, b"") for i in range(3)]
    assert written == [DLSN(1, 0, 0), DLSN(1, 1, 0), DLSN(1, 2, 0)]


@pytest.mark.parametrize(
    "settings",
    [{"immediate_flush": True, "output_buffer_bytes": 0}, {"periodic_flush_ms": 20}, {"immediate_flush": True}],
    ids=["immediate", "periodic", "immediate with a buffer"],
)
async def test_a_record_becomes_visible_without_another_one(memory_cluster, settings):
    namespace = await memory_cluster.namespace(**settings)
    log = await namespace.open_log("visible")
    writer = await log.open_writer()
    future = writer.write(7, b"alone" * 300)
    async with await log.open_reader() as reader:
        record = await asyncio.wait_for(reader.read_next(), 60)
    assert (record.payload, record.dlsn) == (b"alone" * 300, await future)
    await writer.close()


async def test_an_acknowledged_record_becomes_visible_by_commit(namespace):
    log = await namespace.open_log("commit")
    writer = await log.open_writer()
    future = writer.write(7, b"one")
    await writer.flush()
    assert await log.end() == DLSN(1, 0, 0)
    await writer.commit()
    assert await log.end() > await future
    entries = writer._sequence.current.ledger.last_add_pushed
    await writer.commit()
    assert writer._sequence.current.ledger.last_add_pushed == entries, "nothing new, nothing written"
    await writer.close()


async def test_keep_alives_are_written_while_nothing_else_is(memory_cluster):
    namespace = await memory_cluster.namespace(keep_alive_ms=20)
    log = await namespace.open_log("alive")
    writer = await log.open_writer()
    await _sent(writer, writer.write(1, b"one"))
    ledger = writer._sequence.current.ledger
    await until(lambda: ledger.last_add_confirmed >= 2)
    await writer.close()
    assert [record.payload for record in await _payloads(namespace, "alive")] == [b"one"]


# ---------------------------------------------------------------------- refusals


async def test_a_transaction_id_below_the_highest_is_refused_record_by_record(namespace):
    log = await namespace.open_log("ordered")
    async with await log.open_writer() as writer:
        kept = [writer.write(5, b"a"), writer.write(5, b"b"), writer.write(9, b"c")]
        with pytest.raises(TransactionIdOutOfOrderError, match="below the log's highest, 9"):
            await writer.write(8, b"late")
        with pytest.raises(TransactionIdOutOfOrderError, match="record 2"):
            await writer.write_batch(np.array([9, 11, 10]), pa.array([b"", b"", b""]))
        await writer.flush()
        await asyncio.gather(*kept)
    async with await log.open_writer() as writer:
        assert writer.last_txid == 9
        with pytest.raises(TransactionIdOutOfOrderError):
            await writer.write(8, b"late")
        await _sent(writer, writer.write(9, b"d"))
    assert [record.payload for record in await _payloads(namespace, "ordered")] == [b"a", b"b", b"c", b"d"]


async def test_the_check_of_transaction_ids_can_really_be_switched_off(memory_cluster):
    namespace = await memory_cluster.namespace(max_id_sanity_check=False)
    log = await namespace.open_log("unordered")
    for txid in (50, 3):
        async with await log.open_writer() as writer:
            await _sent(writer, writer.write(txid, b"%d" % txid))
            await _sent(writer, writer.write(txid - 1, b"%d" % (txid - 1)))
    assert [record.txid for record in await _payloads(namespace, "unordered")] == [50, 49, 3, 2]


@pytest.mark.parametrize(
    ("txid", "payload", "error"),
    [
        (-1, b"", TransactionIdOutOfOrderError),
        (2**63 - 1, b"", TransactionIdOutOfOrderError),
        (1, b"x" * 1_040_365, RecordTooLongError),
        (1, "text", InvalidRecordError),
        (1, None, InvalidRecordError),
        ("1", b"", InvalidRecordError),
    ],
)
async def test_a_record_that_cannot_be_written_is_refused_and_nothing_else_suffers(namespace, txid, payload, error):
    async with await (await namespace.open_log("refusals")).open_writer() as writer:
        with pytest.raises(error):
            await writer.write(txid, payload)
        assert await _sent(writer, writer.write(0, b"x" * 1_040_364)) == DLSN(1, 0, 0)


async def test_a_refused_record_cancels_the_rest_of_its_bulk(namespace):
    async with await (await namespace.open_log("bulk")).open_writer() as writer:
        futures = writer.write_bulk([(1, b"a"), (2, b"x" * 2_000_000), (3, b"c")])
        await writer.flush()
        assert await futures[0] == DLSN(1, 0, 0)
        with pytest.raises(RecordTooLongError):
            await futures[1]
        with pytest.raises(Exception, match="not written"):
            await futures[2]
    assert [record.payload for record in await _payloads(namespace, "bulk")] == [b"a"]


async def test_a_mutable_payload_may_be_changed_after_the_call(namespace):
    async with await (await namespace.open_log("mutable")).open_writer() as writer:
        payload = bytearray(b"before")
        future = writer.write(1, payload)
        payload[:] = b"after!"
        await _sent(writer, future)
    assert [record.payload for record in await _payloads(namespace, "mutable")] == [b"before"]


async def test_writes_over_the_limit_are_refused_unless_in_dark_mode(memory_cluster):
    strict = await memory_cluster.namespace(outstanding_write_limit=2, write_limit_dark_mode=False)
    async with await (await strict.open_log("strict")).open_writer() as writer:
        kept = [writer.write(i, b"") for i in range(2)]
        with pytest.raises(OverCapacityError):
            await writer.write(2, b"")
        await writer.flush()
        await asyncio.gather(*kept)
        await _sent(writer, writer.write(2, b""))
    dark = await memory_cluster.namespace(outstanding_write_limit=2)
    async with await (await dark.open_log("dark")).open_writer() as writer:
        kept = [writer.write(i, b"") for i in range(3)]
        await writer.flush()
        await asyncio.gather(*kept)
        assert writer.over_limit == 1


async def test_a_closed_writer_refuses_and_closes_only_once(namespace):
    writer = await (await namespace.open_log("closed")).open_writer()
    await asyncio.gather(writer.close(), writer.close())
    with pytest.raises(AlreadyClosedError):
        await writer.write(1, b"")
    with pytest.raises(AlreadyClosedError):
        await writer.flush()


async def test_closing_a_writer_that_wrote_nothing_starts_no_segment(namespace):
    log = await namespace.open_log("nothing")
    await (await log.open_writer()).close()
    assert await log.segments() == []


# ---------------------------------------------------------------------- ownership


async def test_only_one_writer_at_a_time_and_the_other_learns_who_it_is(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    writer = await (await one.open_log("owned")).open_writer("the owner")
    with pytest.raises(OwnershipAcquireFailedError, match="the owner"):
        await (await other.open_log("owned")).open_writer()
    await writer.close()
    await (await (await other.open_log("owned")).open_writer()).close()


async def test_sealing_ends_the_log_for_ever(namespace):
    log = await namespace.open_log("sealed")
    writer = await log.open_writer()
    writer.write(1, b"last")
    sealed_at = await writer.mark_end_of_stream()
    assert sealed_at == DLSN(1, 0, 1)
    with pytest.raises(EndOfStreamError):
        await writer.write(2, b"more")
    await writer.close()
    assert await log.is_sealed()
    writer = await log.open_writer()
    with pytest.raises(EndOfStreamError):
        await writer.write(2, b"more")
    with pytest.raises(EndOfStreamError):
        await writer.mark_end_of_stream()
    await writer.close()
    (segment,) = await log.segments()
    assert (segment.last_txid, segment.record_count) == (2**63 - 1, 1)


async def test_an_empty_log_can_be_sealed(namespace):
    log = await namespace.open_log("sealed-empty")
    async with await log.open_writer() as writer:
        assert await writer.mark_end_of_stream() == DLSN(1, 0, 0)
    async with await log.open_reader() as reader:
        with pytest.raises(EndOfStreamError):
            await reader.read_next()
        with pytest.raises(EndOfStreamError):
            await reader.read_next()


# ---------------------------------------------------------------------- rolling


async def test_a_segment_rolls_by_age(memory_cluster):
    namespace = await memory_cluster.namespace(rolling_minutes=1)
    log = await namespace.open_log("aged")
    async with await log.open_writer() as writer:
        first = await _sent(writer, writer.write(1, b"a"))
        writer._sequence.last_roll -= 61
        last_of_old = writer.write(2, b"b")
        queued = writer.write(3, b"c")
        await writer.flush()
    assert (first, await last_of_old, await queued) == (DLSN(1, 0, 0), DLSN(1, 1, 0), DLSN(2, 0, 0))
    old, new = await log.segments()
    assert (old.record_count, new.record_count) == (2, 1)
    assert (new.first_txid, new.start_sequence_id) == (2, 2), "it begins where the old one ended"


async def test_a_roll_with_nothing_waiting_writes_a_control_record_into_the_new_segment(memory_cluster):
    namespace = await memory_cluster.namespace(rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0)
    log = await namespace.open_log("idle-roll")
    writer = await log.open_writer()
    await writer.write(1, b"a")
    await until(lambda: writer.segment == 2 and writer._sequence.current.ledger.last_add_confirmed == 0)
    await writer.close()
    assert [segment.record_count for segment in await log.segments()] == [1, 0]
    assert [record.payload for record in await _payloads(namespace, "idle-roll")] == [b"a"]


async def test_closing_waits_for_a_roll_under_way(memory_cluster):
    namespace = await memory_cluster.namespace(rolling_minutes=0, max_segment_bytes=100, output_buffer_bytes=0)
    log = await namespace.open_log("roll-close")
    writer = await log.open_writer()
    written = [writer.write(i, b"x" * 200) for i in range(3)]
    await writer.close()
    dlsns = [await future for future in written]
    assert [record.dlsn for record in await _payloads(namespace, "roll-close")] == dlsns
    assert not any(segment.in_progress for segment in await log.segments())


async def test_without_a_permit_the_old_segment_goes_on(memory_cluster):
    namespace = await memory_cluster.namespace(
        rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0, rolling_concurrency=1
    )
    log = await namespace.open_log("permit")
    async with await log.open_writer() as writer:
        for i in range(10):
            await writer.write(i, b"x")
    assert len(await log.segments()) == 2


async def test_a_segment_whose_positions_are_used_up_is_rolled_before_the_record(memory_cluster, monkeypatch):
    monkeypatch.setattr("dlspark.core.writing.segment_sequence.MAX_POSITION", 3)
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("positions")
    async with await log.open_writer() as writer:
        written = [writer.write(i, b"%d" % i) for i in range(7)]
        batch = writer.write_batch(np.array([7, 8, 9]), pa.array([b"7", b"8", b"9"]))
    assert [(await future).lssn for future in written] == [1, 1, 1, 2, 2, 2, 3]
    assert (await batch)[0].dlsn == DLSN(4, 0, 0)
    assert [record.sequence_id for record in await _payloads(namespace, "positions")] == list(range(10))


async def test_sends_keep_a_minimum_distance_where_that_is_set(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, immediate_flush=True, immediate_flush_delay_ms=60)
    writer = await (await namespace.open_log("spaced")).open_writer()
    written = [writer.write(i, b"") for i in range(20)]
    dlsns = [await future for future in written]
    assert {dlsn.entry_id for dlsn in dlsns} <= {0, 1}, "what came within the delay shares an entry"
    await writer.close()
