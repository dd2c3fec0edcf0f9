"""Positions in a log: first and last, counts between two, sequence ids, and what their answers cost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EntryBuilder
from dlspark.core.codec.records import FLAG_CONTROL
from dlspark.core.reading.segment_ledger import SegmentLedger
from dlspark.errors import AlreadyTruncatedError, LogEmptyError, SegmentNotFoundError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.store import Create, Delete


async def _filled(namespace, name, segments, entries=3):
    """Segments of so many one-record entries, a control record behind each; transaction ids count up by 10."""
    log = await namespace.open_log(name)
    txid = 0
    for _ in range(segments):
        async with await log.open_writer() as writer:
            for _ in range(entries):
                writer.write(txid, b"%d" % txid)
                await writer.send()
                txid += 10
    return log


async def _all(log):
    async with await log.open_reader() as reader:
        records = []
        while more := await reader.read_available(100, wait=True):
            records += more
        return records


async def _truncated(namespace, log, lssn, **changes):
    segment = next(s for s in await log.segments() if s.lssn == lssn)
    path = namespace.logs_store.paths(log.name).segment(segment)
    await namespace.store.multi([Delete(path), Create(path, replace(segment, **changes).encode())])


async def test_first_and_last_are_told_of_the_records_that_are_left(namespace):
    log = await _filled(namespace, "ends", 3)
    assert (await log.first_dlsn(), await log.first_txid()) == (DLSN(1, 0, 0), 0)
    assert (await log.last_dlsn(), await log.last_txid()) == (DLSN(3, 2, 0), 80)
    await _truncated(namespace, log, 1, truncation=TruncationStatus.TRUNCATED)
    await _truncated(namespace, log, 2, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=1, min_slot=0)
    assert (await log.first_dlsn(), await log.first_txid()) == (DLSN(2, 1, 0), 40)
    await _truncated(namespace, log, 2, truncation=TruncationStatus.TRUNCATED)
    await _truncated(namespace, log, 3, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=9, min_slot=0)
    for question in (log.first_dlsn, log.last_txid):
        with pytest.raises(LogEmptyError):
            await question()
    missing = await namespace.open_log("missing")
    with pytest.raises(LogNotFoundError):
        await missing.last_txid()


async def test_the_last_record_is_where_last_begins(namespace):
    log = await _filled(namespace, "last", 2)
    async with await log.open_reader("last") as reader:
        assert (await reader.read_next()).txid == 50
    await namespace.create_log("empty")
    empty = await namespace.open_log("empty")
    async with await empty.open_reader("last") as reader:
        reading = asyncio.ensure_future(reader.read_next())
        await _filled(namespace, "empty", 1)
        assert (await asyncio.wait_for(reading, 60)).txid == 0


async def test_records_between_any_two_positions_are_counted(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=60)
    log = await namespace.open_log("count")
    for segment in range(3):
        async with await log.open_writer() as writer:
            for i in range(7):
                writer.write(100 * segment + i, b"x" * (i % 4) * 9)
                if i % 3 == 0:
                    await writer.commit()
    dlsns = [record.dlsn for record in await _all(log)]
    assert await log.record_count() == len(dlsns) == 21
    positions = sorted({*dlsns, *(d.next for d in dlsns), *(d.next_entry for d in dlsns), DLSN(2, 0, 0), DLSN(9, 0, 0)})
    for start in positions[::3]:
        assert await log.record_count(start) == sum(start <= d for d in dlsns)
        assert await log.record_count(end=start) == sum(d < start for d in dlsns)
        for end in positions[::4]:
            assert await log.record_count(start, end) == sum(start <= d < end for d in dlsns), (start, end)


async def test_counting_reads_entries_of_the_outer_segments_only(namespace):
    log = await _filled(namespace, "outer", 20)
    log.probes.segments = log.probes.entries = 0
    assert await log.record_count() == 60
    assert (log.probes.segments, log.probes.entries) == (0, 0)
    assert await log.record_count(DLSN(2, 1, 0), DLSN(19, 2, 0)) == 2 + 16 * 3 + 2
    assert (log.probes.segments, log.probes.entries) == (2, 2)


async def test_what_is_committed_of_a_segment_in_progress_counts_and_truncated_records_do_not(namespace):
    log = await _filled(namespace, "open", 2)
    writer = await log.open_writer()
    writer.write(60, b"a")
    writer.write(61, b"b")
    await writer.commit()
    writer.write(62, b"not committed")
    assert await log.record_count() == 8
    await _truncated(namespace, log, 1, truncation=TruncationStatus.TRUNCATED)
    await _truncated(namespace, log, 2, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=2, min_slot=0)
    assert await log.record_count() == await log.record_count(DLSN.INITIAL) == 3
    assert await log.record_count(DLSN(3, 0, 1)) == 1
    assert await log.record_count(DLSN(4, 0, 0)) == 0
    await writer.close()


async def test_sequence_ids_and_positions_are_found_from_each_other(namespace):
    log = await _filled(namespace, "ids", 3)
    writer = await log.open_writer()
    for txid in (90, 91):
        writer.write(txid, b"open")
    await writer.commit()
    records = await _all(log)
    assert [r.sequence_id for r in records] == list(range(11))
    for record in records:
        assert await log.sequence_id(record.dlsn) == record.sequence_id
        assert await log.find_sequence_id(record.sequence_id) == record.dlsn
    assert await log.sequence_id(DLSN(3, 0, 0)) == 6
    assert await log.sequence_id(await log.end()) == 11
    assert await log.find_sequence_id(11) == await log.end()
    assert (await log.last_record()).sequence_id == 10, "of a segment in progress, too"
    await _truncated(namespace, log, 1, truncation=TruncationStatus.TRUNCATED)
    assert await log.find_sequence_id(1) == DLSN(2, 0, 0)
    await writer.close()


async def test_sequence_ids_go_on_where_the_oldest_segments_were_deleted(namespace):
    log = await _filled(namespace, "deleted", 3)
    (oldest, *_) = await log.segments()
    await namespace.store.delete(namespace.logs_store.paths("deleted").segment(oldest))
    assert (await log.first_record()).sequence_id == 3
    assert await log.find_sequence_id(7) == DLSN(3, 1, 0)
    assert await log.find_sequence_id(0) == DLSN(2, 0, 0)
    with pytest.raises(AlreadyTruncatedError):
        await log.sequence_id(DLSN(1, 0, 0))


async def test_an_empty_log_has_positions_too(namespace):
    await namespace.create_log("none")
    log = await namespace.open_log("none")
    assert await log.record_count() == 0
    assert await log.sequence_id(DLSN.INITIAL) == 0
    assert await log.find_sequence_id(0) == await log.find_txid(0) == await log.end() == DLSN.INITIAL


# ---------------------------------------------------------------------- changes


async def test_changes_of_the_segments_are_told_as_they_come(namespace):
    await namespace.create_log("watched")
    log = await namespace.open_log("watched")
    changes = log.watch_segments()
    assert await anext(changes) == []
    waiting = asyncio.ensure_future(anext(changes))
    writer = await log.open_writer()
    writer.write(1, b"x")
    await writer.flush()
    (segment,) = await asyncio.wait_for(waiting, 60)
    assert (segment.lssn, segment.in_progress) == (1, True)
    await writer.close()
    (segment,) = await asyncio.wait_for(anext(changes), 60)
    assert not segment.in_progress
    await _truncated(namespace, log, 1, truncation=TruncationStatus.TRUNCATED)
    (segment,) = await asyncio.wait_for(anext(changes), 60)
    assert segment.truncation is TruncationStatus.TRUNCATED

    async def watch_on():
        return [segments async for segments in changes]

    waiting = asyncio.ensure_future(watch_on())
    await namespace.delete_log("watched")
    with pytest.raises(LogNotFoundError):
        await asyncio.wait_for(waiting, 60)


async def test_watching_survives_the_loss_of_the_metadata_session(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await _filled(other, "session", 1)
    changes = (await namespace.open_log("session")).watch_segments()
    assert len(await anext(changes)) == 1
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0.01)
    memory_cluster.tree.expire(namespace.store.session_id)
    async with await log.open_writer() as writer:
        writer.write(1000, b"")
    assert len(await asyncio.wait_for(waiting, 60)) == 2
    await changes.aclose()


async def test_a_last_record_is_looked_for_from_the_end_in_growing_steps(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, first_scan_entries=2, max_scan_entries=8)
    logs = namespace.logs_store
    await logs.create("behind")
    ledger = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    builder = EntryBuilder()
    for payload, flags in [(b"the last one", 0), *[(b"control", FLAG_CONTROL)] * 20]:
        builder.add(1, payload, 1, flags)
        await ledger.add(*builder.finish().buffers)
    await ledger.close()
    segment = SegmentMetadata(ledger.ledger_id, 1, 1, 1, 1, 1, 0, 0, start_sequence_id=0)
    await namespace.store.multi(logs.publish_ops("behind", await logs.open("behind"), [segment]))
    log = await namespace.open_log("behind")
    steps = []
    read = SegmentLedger.read

    async def spy(ledger, first, last):
        steps.append(last - first + 1)
        return await read(ledger, first, last)

    monkeypatch.setattr(SegmentLedger, "read", spy)
    assert (await log.last_record()).payload == b"the last one"
    assert steps[:3] == [2, 4, 8]
    assert max(steps) == 8
    assert sum(steps) == log.probes.entries <= 22


async def test_watching_ends_when_the_handle_is_closed(namespace):
    log = await _filled(namespace, "closed", 1)

    async def watch():
        return [len(segments) async for segments in log.watch_segments()]

    watching = asyncio.ensure_future(watch())
    other = log.watch_segments()
    assert len(await anext(other)) == 1
    await log.close()
    assert await asyncio.wait_for(watching, 60) == [1]
    assert await anext(other, None) is None


async def test_a_segment_that_is_purged_while_it_is_asked_about_is_passed_over(namespace, monkeypatch):
    log = await _filled(namespace, "purged", 3)
    (oldest, *_) = await log.segments()
    opened = namespace.ledgers.open

    async def purged_before(ledger_id, **how):
        monkeypatch.undo()
        await namespace.store.delete(namespace.logs_store.paths("purged").segment(oldest))
        await namespace.ledgers.delete(oldest.ledger_id)
        return await opened(ledger_id, **how)

    monkeypatch.setattr(namespace.ledgers, "open", purged_before)
    assert (await log.first_record()).dlsn == DLSN(2, 0, 0)


async def test_a_segment_without_its_data_is_an_error_of_the_segment(namespace):
    log = await _filled(namespace, "hollow", 2)
    await namespace.ledgers.delete((await log.segments())[0].ledger_id)
    with pytest.raises(SegmentNotFoundError, match="hollow"):
        await log.find_txid(10)
    assert await log.find_txid(30) == DLSN(2, 0, 0)
