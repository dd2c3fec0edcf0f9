"""Readers in particular: whole record sets, damaged entries passed over, idleness, going elsewhere, what they ask."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from helpers.serving.proxy_world import LoopClock
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EntryBuilder, encode_record_set
from dlspark.core.codec.records import FLAG_RECORD_SET
from dlspark.core.reading.reader_checks import Gap
from dlspark.core.settings.settings import Settings
from dlspark.errors import EndOfStreamError, IdleReaderError, InvalidEntryError, PositionGapError, SettingsError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError
from storage_node.errors import DigestError


async def _written(namespace, name, segments, *, start=0):
    """A log of these segments (lists of payloads), a record an entry; transaction ids count up by 10."""
    log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
    txid = start
    for payloads in segments:
        async with await log.open_writer() as writer:
            for payload in payloads:
                await writer.write(txid, payload)
                txid += 10
    return log


async def _published(namespace, name, *entries):
    """A log of one completed segment with these entries (functions that fill a builder)."""
    logs = namespace.logs_store
    await logs.create(name)
    ledger = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    builder = EntryBuilder()
    for fill in entries:
        fill(builder)
        await ledger.add(*builder.finish().buffers)
    await ledger.close()
    segment = SegmentMetadata(ledger.ledger_id, 1, 1, 9, 1, 7, len(entries) - 1, 0, start_sequence_id=0)
    await namespace.store.multi(logs.publish_ops(name, await logs.open(name), [segment]))
    return await namespace.open_log(name)


async def _payloads(reader):
    found = []
    while more := await reader.read_available(100, wait=True):
        found += [record.payload for record in more]
    return found


# ---------------------------------------------------------------------- record sets


def _with_sets(builder):
    builder.add(1, b"one", 1)
    builder.add(2, encode_record_set([b"s1", b"s2", b"s3"]), 2, FLAG_RECORD_SET)
    builder.add(3, b"five", 5)


async def test_record_sets_are_delivered_whole_where_that_is_wanted(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await _published(namespace, "sets", _with_sets, lambda builder: builder.add(4, b"six", 6))
    async with await log.open_reader() as reader:
        assert await _payloads(reader) == [b"one", b"s1", b"s2", b"s3", b"five", b"six"]
    whole = await namespace.open_log("sets", {"deserializeRecordSetOnReads": False})
    async with await whole.open_reader() as reader:
        records = await reader.read_bulk(10)
        assert [(r.dlsn.slot_id, r.position, r.last_position, r.slots) for r in records] == [
            (0, 1, 1, 1),
            (1, 2, 4, 3),
            (4, 5, 5, 1),
            (0, 6, 6, 1),
        ]
        assert records[1].is_record_set
        assert records[1].payload == encode_record_set([b"s1", b"s2", b"s3"])
        assert reader.position == DLSN(1, 1, 1)
    async with await whole.open_reader() as reader:
        columns = (await reader.next_batch()).to_pydict()
        assert columns["slot"] == [0, 1, 4]
        assert columns["value"][1] == encode_record_set([b"s1", b"s2", b"s3"])
        assert reader.position == DLSN(1, 0, 5)


async def test_a_whole_record_set_is_not_lost_to_a_start_in_the_middle_of_it(memory_cluster):
    namespace = await memory_cluster.namespace()
    await _published(namespace, "middle", _with_sets)
    log = await namespace.open_log("middle", {"deserializeRecordSetOnReads": False})
    for start, first in ((DLSN(1, 0, 1), 2), (DLSN(1, 0, 3), 2), (DLSN(1, 0, 4), 5)):
        async with await log.open_reader(start) as reader:
            assert (await reader.read_next()).position == first


# ---------------------------------------------------------------------- damaged entries


def _damage(memory_cluster, ledger_id, entry_id, *bookies):
    damaged = 0
    for bookie in bookies or memory_cluster.bookies:
        entries = bookie.ledgers[ledger_id].entries if ledger_id in bookie.ledgers else {}
        if entry_id in entries:
            entries[entry_id] = entries[entry_id][:-1] + bytes([entries[entry_id][-1] ^ 1])
            damaged += 1
    return damaged


async def test_entries_damaged_everywhere_are_passed_over_and_told_where_that_is_wanted(memory_cluster):
    namespace = await memory_cluster.namespace(skip_broken_entries=True)
    log = await _written(namespace, "broken", [[b"%d" % i for i in range(8)], [b"next", b"and last"]])
    first, second = await log.segments()
    for entry_id in (2, 3, 6):
        assert _damage(memory_cluster, first.ledger_id, entry_id) == 3
    assert _damage(memory_cluster, second.ledger_id, 0) == 3
    async with await log.open_reader() as reader:
        assert await _payloads(reader) == [b"0", b"1", b"4", b"5", b"7", b"and last"]
        told = [Gap(DLSN(1, 2, 0), 2, 2), Gap(DLSN(1, 6, 0), 1, 1), Gap(DLSN(2, 0, 0), 1, 1)]
        assert list(reader.gaps) == told
    async with await log.open_reader() as reader:
        batches = [(await reader.next_batch()).column("value").to_pylist() for _ in range(4)]
        assert [value for batch in batches for value in batch] == [b"0", b"1", b"4", b"5", b"7", b"and last"]
        assert list(reader.gaps) == told
    assert namespace.counters["broken-entry-skipped"] == 8
    assert namespace.counters["records-skipped"] == 8


async def test_a_damaged_entry_is_an_error_where_nothing_else_is_wanted(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await _written(namespace, "strict", [[b"0", b"1", b"2"]])
    _damage(memory_cluster, (await log.segments())[0].ledger_id, 1)
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"0"
        with pytest.raises(DigestError) as caught:
            await reader.read_next()
        assert "Everything before 1:0:1 was delivered" in str(caught.value)


@pytest.mark.parametrize("skipping", [False, True])
async def test_an_entry_is_not_given_up_while_a_node_that_may_have_it_whole_is_away(memory_cluster, skipping):
    namespace = await memory_cluster.namespace(skip_broken_entries=skipping)
    log = await _written(namespace, "away", [[b"0", b"1", b"2"]])
    ledger_id = (await log.segments())[0].ledger_id
    having = [bookie for bookie in memory_cluster.bookies if ledger_id in bookie.ledgers]
    assert _damage(memory_cluster, ledger_id, 1, *having[:2]) == 2
    having[2].stop()
    async with await log.open_reader() as reader:
        reading = asyncio.ensure_future(_until(reader, 3))
        await until(lambda: namespace.counters["read-retried"])
        having[2].up = True
        assert await asyncio.wait_for(reading, 60) == [b"0", b"1", b"2"]
        assert not reader.gaps


async def _until(reader, count):
    return [(await reader.read_next()).payload for _ in range(count)]


async def test_an_entry_whose_content_is_wrong_is_not_passed_over(memory_cluster):
    namespace = await memory_cluster.namespace(skip_broken_entries=True)
    logs = namespace.logs_store
    await logs.create("content")
    ledger = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await ledger.add(b"not an entry of records")
    await ledger.close()
    segment = SegmentMetadata(ledger.ledger_id, 1, 1, 9, 1, 1, 0, 0, start_sequence_id=0)
    await namespace.store.multi(logs.publish_ops("content", await logs.open("content"), [segment]))
    async with await (await namespace.open_log("content")).open_reader() as reader:
        with pytest.raises(InvalidEntryError, match="another reader goes on there"):
            await reader.read_next()


async def test_a_gap_is_counted_also_where_it_fails_nobody(memory_cluster):
    strict, lenient = await memory_cluster.namespace(), await memory_cluster.namespace(gap_detection=False)
    await _published(strict, "gap", lambda b: b.add(1, b"one", 1), lambda b: b.add(2, b"three", 3))
    for namespace in (strict, lenient):
        async with await (await namespace.open_log("gap")).open_reader() as reader:
            assert (await reader.read_next()).payload == b"one"
            if namespace is strict:
                with pytest.raises(PositionGapError):
                    await reader.read_next()
            else:
                assert (await reader.read_next()).payload == b"three"
        assert namespace.counters["position-gap"] == 1


# ---------------------------------------------------------------------- idleness


@virtual_time
async def test_idleness_is_counted_over_long_polls_and_reads_that_found_nothing(caplog):
    memory_cluster = MemoryCluster(clock=LoopClock())
    await memory_cluster.start()
    # A threshold of many long polls: each of them wakes the reader, and must not start the time anew.
    namespace = await memory_cluster.namespace(long_poll_ms=10, idle_warn_ms=60, idle_error_ms=200)
    log = await namespace.open_log("idle")
    writer = await log.open_writer()
    writer.write(1, b"x")
    await writer.commit()
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"x"

        async def read_on():
            while not await reader.read_available(1, wait=True):
                pass

        with caplog.at_level(logging.WARNING), pytest.raises(IdleReaderError, match="200 ms"):
            await read_on()
        with pytest.raises(IdleReaderError):
            await reader.read_next()
    assert sum("nothing has arrived" in record.message for record in caplog.records) == 1
    assert namespace.counters["reader-idle-warned"] == namespace.counters["reader-idle-failed"] == 1
    await writer.close()
    await memory_cluster.stop()


async def test_what_arrives_ends_idleness(memory_cluster):
    namespace = await memory_cluster.namespace(long_poll_ms=10, idle_warn_ms=21, idle_error_ms=600_000)
    log = await namespace.open_log("busy")
    writer = await log.open_writer()
    writer.write(1, b"x")
    await writer.commit()
    async with await log.open_reader() as reader:
        await reader.read_next()
        reading = asyncio.ensure_future(reader.read_next())
        for warned in range(1, 4):
            await until(lambda warned=warned: namespace.counters["reader-idle-warned"] >= warned)
            writer.write(warned + 1, b"y")
            await writer.commit()
            assert (await asyncio.wait_for(reading, 60)).txid == warned + 1
            reading = asyncio.ensure_future(reader.read_next())
        assert namespace.counters["reader-idle-failed"] == 0
        reading.cancel()
        await asyncio.wait([reading])
    await writer.close()


def test_the_warning_comes_later_than_two_long_polls_or_never():
    with pytest.raises(SettingsError, match="twice"):
        Settings(idle_warn_ms=2000)
    assert Settings(idle_warn_ms=2001).idle_warn_ms == 2001
    assert Settings.from_mapping({"readerIdleWarnThresholdMillis": 2**31 - 1}).idle_warn_ms == 2**31 - 1


# ---------------------------------------------------------------------- going elsewhere


async def test_a_reader_goes_on_at_another_position_forwards_and_back(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=4)
    log = await _written(namespace, "skip", [[b"%d" % i for i in range(10)], [b"%d" % i for i in range(10, 20)]])
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"0"
        for start, payload in (
            (DLSN(1, 2, 0), b"2"),
            ("1:9:0", b"9"),
            (150, b"15"),
            (DLSN(1, 1, 0), b"1"),
            ("last", b"19"),
            (DLSN.INITIAL, b"0"),
        ):
            position = await reader.skip_to(start)
            assert position <= (await reader.read_next()).dlsn
            await reader.skip_to(position)
            assert (await reader.next_batch()).column("value").to_pylist()[0] == payload
        await reader.skip_to("latest")
        assert await reader.read_available(1, wait=True) == []
        with pytest.raises(CallerError, match="not a DLSN"):
            await reader.skip_to("nowhere at all")


async def test_a_reader_at_the_end_of_a_sealed_log_may_go_back(namespace):
    log = await namespace.open_log("sealed")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
        await writer.mark_end_of_stream()
    async with await log.open_reader() as reader:
        assert [r.payload async for r in reader] == [b"one"]
        await reader.skip_to("earliest")
        assert [r.payload async for r in reader] == [b"one"]
        with pytest.raises(EndOfStreamError):
            await reader.read_next()


# ---------------------------------------------------------------------- what is asked


class _Asked:
    """Counts what a cluster in memory is asked from now on: metadata requests, and reads by their kind."""

    def __init__(self, memory_cluster):
        self.metadata = Counter()
        self.reads = Counter()
        memory_cluster.tree.inject = self._metadata
        for bookie in memory_cluster.bookies:
            serve = bookie.serve

            async def counted(link, frame, serve=serve):
                self._read(frame)
                await serve(link, frame)

            bookie.serve = counted

    def _metadata(self, session, operation, path):
        self.metadata[operation] += 1

    def _read(self, frame):
        from storage_node.protocol import v2
        from storage_node.protocol.decoding import decode_request
        from storage_node.protocol.values import ReadRequest

        request = decode_request(frame) if frame[0] != v2.VERSION else None
        polls = isinstance(request, ReadRequest) and request.previous_lac is not None
        self.reads["long poll" if polls else "other"] += 1


async def test_an_idle_reader_asks_for_nothing_but_the_next_entry_by_long_polls(memory_cluster):
    writing, reading = await memory_cluster.namespace(), await memory_cluster.namespace()
    writer = await (await writing.open_log("quiet")).open_writer()
    writer.write(1, b"x")
    await writer.commit()
    async with await (await reading.open_log("quiet")).open_reader() as reader:
        assert (await reader.read_next()).payload == b"x"
        assert await reader.read_available(1, wait=True) == []
        asked = _Asked(memory_cluster)
        waiting = asyncio.ensure_future(reader.read_next())
        await asyncio.sleep(1.0)
        assert asked.metadata == {}
        assert set(asked.reads) == {"long poll"}
        # Each lasts its 200 ms on every node that is asked; a loop without waiting would make thousands.
        assert asked.reads["long poll"] <= 3 * (1000 / 200 + 1)
        writer.write(2, b"y")
        await writer.commit()
        assert (await asyncio.wait_for(waiting, 60)).payload == b"y"
    memory_cluster.tree.inject = None
    await writer.close()


async def test_a_reader_behind_the_last_segment_asks_for_nothing_until_a_watch_tells(memory_cluster):
    writing, reading = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await _written(writing, "between", [[b"x"]])
    async with await (await reading.open_log("between")).open_reader() as reader:
        assert (await reader.read_next()).payload == b"x"
        assert await reader.read_available(1, wait=True) == []
        listed = reading.counters["segments-listed"]
        asked = _Asked(memory_cluster)
        waiting = asyncio.ensure_future(reader.read_next())
        await asyncio.sleep(0.5)
        assert (asked.metadata, asked.reads) == ({}, {})
        memory_cluster.tree.inject = None
        await _written(writing, "between", [[b"y"]], start=100)
        assert (await asyncio.wait_for(waiting, 60)).payload == b"y"
        # Begun and completed: as many lists as changes, at most.
        assert 1 <= reading.counters["segments-listed"] - listed <= 3
    assert await log.record_count() == 2


async def test_a_reader_of_a_long_log_reads_the_segments_it_comes_to(memory_cluster):
    writing, reading = await memory_cluster.namespace(), await memory_cluster.namespace()
    await _written(writing, "many", [[b"%d" % i] for i in range(60)])
    log = await reading.open_log("many")
    asked = _Asked(memory_cluster)
    async with await log.open_reader(DLSN(50, 0, 0)) as reader:
        assert (await reader.read_next()).payload == b"49"
        read_at_once = sum(asked.metadata.values())
        assert read_at_once < 40, asked.metadata
        memory_cluster.tree.inject = None
        assert len(await _payloads(reader)) == 10


# ---------------------------------------------------------------------- bounds


async def test_what_is_read_ahead_is_bounded_in_bytes_too(memory_cluster, monkeypatch):
    monkeypatch.setattr("dlspark.core.reading.read_ahead.MAX_QUEUED_BYTES", 10_000)
    namespace = await memory_cluster.namespace(read_ahead_entries=1000, prefetch_entries=1, max_prefetch_entries=2)
    log = await _written(namespace, "bytes", [[b"x" * 1000] * 100])
    async with await log.open_reader() as reader:
        await reader.read_next()
        await until(lambda: len(reader._ahead._queue) >= 10)
        await asyncio.sleep(0.05)
        assert reader._ahead._queued_bytes <= 10_000 + 1100
        assert sum(bookie.reads for bookie in memory_cluster.bookies) <= 20
        assert len(await _payloads(reader)) == 99


async def test_a_segment_is_requested_in_advance_by_little_at_first_and_then_by_more(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=1000, prefetch_entries=2, max_prefetch_entries=8)
    log = await _written(namespace, "window", [[b"x"] * 60])
    windows = []
    opened = namespace.ledgers.open

    async def spying(*args, **named):
        ledger = await opened(*args, **named)
        entries = ledger.entries

        def spy(first, last, *, window_entries):
            windows.append((first, last, window_entries))
            return entries(first, last, window_entries=window_entries)

        ledger.entries = spy
        return ledger

    namespace.ledgers.open = spying
    async with await log.open_reader() as reader:
        assert len(await _payloads(reader)) == 60
    assert [window for _, _, window in windows] == [2, 4, 8]
    assert windows[0][:2] == (0, 3)
    assert windows[1][:2] == (4, 11)


async def test_a_reader_goes_on_after_going_elsewhere_was_cancelled_at_any_moment(namespace):
    log = await _written(namespace, "cancelled", [[b"0", b"1"], [b"2", b"3"]])
    async with await log.open_reader() as reader:
        for turns in range(40):
            going = asyncio.ensure_future(reader.skip_to("2:1:0" if turns % 2 else "1:1:0"))
            for _ in range(turns):
                await asyncio.sleep(0)
            going.cancel()
            await asyncio.wait([going])
            assert (await asyncio.wait_for(reader.read_next(), 60)).payload in (b"0", b"1", b"2", b"3")
            await reader.skip_to("earliest")
