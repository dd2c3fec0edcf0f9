"""Segments that leave for files, and files that go, under readers that are inside them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partialmethod
from unittest import mock

import pyarrow as pa
import pytest
from helpers.cold.moved import HandMover
from helpers.cold.places import memory_place
from helpers.logs import written
from helpers.waiting import until

from dlspark.cold.restoring.returning import LogReturn
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.reading import file_reader
from dlspark.core.cold.reading.cold_ledger import ColdLedger
from dlspark.core.reading import segment_follower
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.reading.reader_checks import Gap
from dlspark.core.reading.segment_ledger import SegmentLedger
from dlspark.errors import AlreadyTruncatedError, DamagedColdFileError, ReadError, SegmentNotFoundError
from dlspark.objects.errors import unavailable_error
from dlspark.objects.memory_faults import ObjectFault, StoreCall
from dlspark.objects.opened_store import ReadPolicy
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import CorruptDataError, MetadataUnavailableError
from storage_node.client.reader import LedgerReader

RECORDS = 6
SEGMENTS = [[f"{part}-{number}".encode() * 20 for number in range(RECORDS)] for part in range(2 * RECORDS + 4)]
FLAT = [payload for segment in SEGMENTS for payload in segment]
LONG = [random.Random(number).randbytes(300) for number in range(60)]
"""A segment of ten row groups: a reader that is ahead of one is never at its end."""


@pytest.fixture
def ahead_of_one(memory_cluster):
    """A client that reads one entry ahead, so that a reader is where its last record was."""
    return memory_cluster.namespace(read_ahead_entries=1, prefetch_entries=1, max_prefetch_entries=1)


async def copied(namespace, mover, name="flights", segments=SEGMENTS):
    """A log whose segments, but the newest, are each copied to a file; and the units."""
    await written(namespace, name, segments)
    return [await mover.copy(name, lssn, lssn) for lssn in range(1, len(segments))]


async def taken(reader, count):
    return [(await reader.read_next()).payload for _ in range(count)]


@pytest.mark.parametrize("swept", [True, False], ids=["ledger-deleted", "off-the-list-only"])
async def test_a_ledger_may_go_at_every_point_of_its_reading(namespace, mover, ahead_of_one, swept):
    client = await ahead_of_one
    units = await copied(namespace, mover)
    log = await client.open_log("flights")
    found = []
    async with await log.open_reader() as reader:
        for index, unit in enumerate(units):
            before = index % (RECORDS + 1)
            found += await taken(reader, before)
            if swept:
                await mover.delete_hot("flights", unit)
            else:
                await mover.cold.delete_hot("flights", unit, now_ms=1)
            found += await taken(reader, RECORDS - before)
        found += await taken(reader, RECORDS)
    assert found == FLAT
    if swept:
        assert client.counters["segment-continued-elsewhere"] >= RECORDS


async def test_a_reader_that_followed_a_segment_to_its_end_goes_on_in_files(namespace, mover, ahead_of_one):
    """The segment was in progress when the reader came to it: it has been ended, moved and swept since."""
    client = await ahead_of_one
    log = await namespace.open_log("live", {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    for number in range(20):
        await writer.write(number, b"%d" % number)
    async with await (await client.open_log("live")).open_reader() as reader:
        found = await taken(reader, 3)
        await writer.close()
        await written(namespace, "live", [[b"20", b"21"]], start=20)
        await mover.move("live", 1, 1)
        found += await taken(reader, 19)
    assert found == [b"%d" % number for number in range(22)]


async def test_a_reader_that_never_heard_of_its_ledgers_end_goes_on_in_the_file(
    namespace, mover, memory_cluster, monkeypatch
):
    """It was cut off from the metadata while the segment was ended, moved and swept."""
    log = await namespace.open_log("live", {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    for number in range(6):
        await writer.write(number, b"%d" % number)
    (segment,) = await log.segments()
    inside = await (await (await memory_cluster.namespace()).open_log("live")).open_segment(segment)
    assert not inside.closed
    ledger = inside._ledger._now
    assert isinstance(ledger, LedgerReader)
    monkeypatch.setattr(ledger, "_take", lambda current: None)
    await writer.close()
    await written(namespace, "live", [[b"6"]], start=6)
    await mover.move("live", 1, 1)
    assert [record.payload for record in await inside.records(2)] == [b"2"]
    assert inside.closed
    await inside.close()


@pytest.mark.parametrize("again", [False, True], ids=["restored", "restored-and-moved-again"])
async def test_a_reader_that_knew_the_segment_in_progress_goes_on_where_it_was_restored_since(
    namespace, mover, memory_cluster, monkeypatch, again
):
    """It was cut off from the metadata meanwhile, so it knows nothing of the segment but its first ledger."""
    log = await namespace.open_log("live", {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    for number in range(6):
        await writer.write(number, b"%d" % number)
    (segment,) = await log.segments()
    inside = await (await (await memory_cluster.namespace()).open_log("live")).open_segment(segment)
    ledger = inside._ledger._now
    assert isinstance(ledger, LedgerReader)
    monkeypatch.setattr(ledger, "_take", lambda current: None)
    await writer.close()
    await written(namespace, "live", [[b"6"]], start=6)
    await mover.move("live", 1, 1)
    await LogReturn(namespace.services, namespace.services.settings, "live").run(keep_hot_ms=0)
    if again:
        (unit,) = await mover.cold.units("live")
        await mover.delete_hot("live", unit)
    assert [record.payload for record in await inside.records(2)] == [b"2"]
    await inside.close()


async def test_a_damaged_ledger_is_read_from_its_file(memory_cluster, namespace, mover):
    await copied(namespace, mover, segments=SEGMENTS[:3])
    log = await namespace.open_log("flights")
    ledger = (await log.segments())[0].ledger_id
    for node in memory_cluster.bookies:
        if ledger in node.ledgers:
            entries = node.ledgers[ledger].entries
            entries[2] = entries[2][:-1] + bytes([entries[2][-1] ^ 1])
    async with await log.open_reader() as reader:
        assert await taken(reader, 3 * RECORDS) == FLAT[: 3 * RECORDS]
    assert namespace.counters["segment-continued-elsewhere"] == 1


async def test_nodes_that_are_away_matter_not_where_there_is_a_file(memory_cluster, namespace, mover):
    await copied(namespace, mover, segments=SEGMENTS[:3])
    log = await namespace.open_log("flights")
    newest = (await log.segments())[-1].ledger_id
    for node in memory_cluster.bookies:
        if newest not in node.ledgers:
            continue
        node.ledgers = {newest: node.ledgers[newest]}
    async with await log.open_reader() as reader:
        assert await taken(reader, 3 * RECORDS) == FLAT[: 3 * RECORDS]


async def test_searches_in_a_ledger_that_goes_find_the_same(namespace, mover):
    units = await copied(namespace, mover, segments=SEGMENTS[:4])
    log = await namespace.open_log("flights")
    listed = await log.segments()
    inside = [await log.open_segment(segment) for segment in listed]
    before = [(await one.locate_txid(90), await one.locate_position(4), await one.records(2)) for one in inside[:3]]
    for unit in units:
        await mover.delete_hot("flights", unit)
    for number, one in enumerate(inside[:3]):
        assert await one.records(2) == before[number][2]
        assert one.in_file
        assert (await one.locate_txid(90), await one.locate_position(4)) == before[number][:2]
        assert (await one.location()).lssn == number + 1
    for one in inside:
        await one.close()


# ---------------------------------------------------------------------- files that go


async def test_retention_under_a_reader_is_told_as_truncation(namespace, mover, ahead_of_one):
    """What it has fetched it may still deliver: a row group or two, never the whole segment."""
    client = await ahead_of_one
    segments = [LONG, *SEGMENTS[1:4]]
    units = [await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=segments)]
    log = await client.open_log("flights")
    found = []

    async def read_on(reader):
        while True:
            found.append((await reader.read_next()).payload)

    async with await log.open_reader() as reader:
        found += await taken(reader, 2)
        hidden = await mover.cold.begin_cold_delete("flights", units[0])
        await mover.end_delete("flights", hidden)
        with pytest.raises(AlreadyTruncatedError):
            await read_on(reader)
    assert 2 <= len(found) < len(LONG)
    assert found == LONG[: len(found)]
    async with await log.open_reader() as reader:
        assert await taken(reader, 3 * RECORDS) == FLAT[RECORDS : 4 * RECORDS]


@pytest.mark.parametrize("read", [AsyncLogReader.read_next, AsyncLogReader.next_batch], ids=["records", "batches"])
async def test_a_file_that_goes_between_two_of_its_row_groups_is_told_as_truncation(
    namespace, mover, ahead_of_one, monkeypatch, read
):
    """The next range of it is answered by "no such object": on S3 a 404, on HDFS a file that is not found."""
    monkeypatch.setattr(ColdLedger, "columns", partialmethod(ColdLedger.columns, window_bytes=1))
    rng = random.Random(3)
    segments = [[rng.randbytes(300) for _ in range(60)], [b"newest"], [b"open"]]
    (unit, _) = [await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=segments)]
    client = await ahead_of_one
    log = await client.open_log("flights")
    found = []

    async def read_on(reader):
        while True:
            more = await read(reader)
            found.extend(more.column("value").to_pylist() if isinstance(more, pa.RecordBatch) else [more.payload])

    async with await log.open_reader() as reader:
        found.append((await reader.read_next()).payload)
        await mover.delete_cold("flights", unit)
        with pytest.raises(AlreadyTruncatedError):
            await read_on(reader)
    assert 1 <= len(found) < 60
    assert found == segments[0][: len(found)]
    assert [record.payload for record in await all_of(log)] == [b"newest", b"open"]


async def test_searches_pass_over_a_file_that_retention_takes_away(memory_cluster, namespace, mover):
    """The list that was read before still names it; the object is gone."""
    units = [await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=SEGMENTS[:4])]
    log = await (await memory_cluster.namespace()).open_log("flights")
    read = type(log).segments
    assert len(await read(log)) == 4
    asked = []

    async def question(listing):
        if not asked:
            asked.append(True)
            await mover.delete_cold("flights", units[0])
        segment = await listing.read(listing[0])
        async with log._opened(segment) as reader:
            return await reader.records(0)

    assert (await log._ask(question))[0].dlsn == DLSN(2, 0, 0)
    assert (await log.first_record()).dlsn == DLSN(2, 0, 0)


async def test_a_file_that_is_replaced_is_read_on_in_the_other_one(namespace, mover, ahead_of_one):
    client = await ahead_of_one
    units = [await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=SEGMENTS[:3])]
    log = await client.open_log("flights")
    async with await log.open_reader() as reader:
        assert await taken(reader, 2) == FLAT[:2]
        units[1] = await mover.replace("flights", units[1])
        assert await taken(reader, 3 * RECORDS - 2) == FLAT[2 : 3 * RECORDS]
    assert [record.payload for record in await all_of(log)] == FLAT[: 3 * RECORDS]
    await mover.replace("flights", units[1])
    assert [record.payload for record in await all_of(log)] == FLAT[: 3 * RECORDS]


async def all_of(log):
    found = []
    async with await log.open_reader() as reader:
        while more := await reader.read_available(1000, wait=True):
            found += more
    return found


async def test_a_file_that_somebody_has_deleted_is_a_clear_error(namespace, mover):
    (unit, _) = [
        await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=SEGMENTS[:3])
    ]
    await mover.files.delete(unit.value.file.url)
    log = await namespace.open_log("flights")
    async with await log.open_reader() as reader:
        with pytest.raises(SegmentNotFoundError, match="not there, though the log names it") as caught:
            await taken(reader, 1)
    assert caught.value.path == unit.value.file.url
    assert caught.value.dlsn == DLSN(1, 0, 0)
    with pytest.raises(SegmentNotFoundError):
        await log.first_record()
    async with await log.open_reader(DLSN(2, 0, 0)) as reader:
        assert await taken(reader, 2 * RECORDS) == FLAT[RECORDS : 3 * RECORDS]


async def test_a_deleted_log_ends_its_readers(memory_cluster, namespace, mover, ahead_of_one):
    client = await ahead_of_one
    for unit in await copied(namespace, mover, segments=[LONG, *SEGMENTS[1:4]]):
        await mover.delete_hot("flights", unit)
    async with await (await client.open_log("flights")).open_reader() as reader:
        assert await taken(reader, 2) == LONG[:2]
        # It waits for room, and looks at the list when the log is gone: in the middle of that it misses segments.
        await until(lambda: reader._ahead.peek() is not None)
        await namespace.delete_log("flights")
        with pytest.raises(LogNotFoundError):
            await taken(reader, len(LONG) + 3 * RECORDS)


# ---------------------------------------------------------------------- stores that are away, and damage


@pytest.fixture
def bucket(monkeypatch):
    """A bucket in memory that every reader of this loop reads; each request is tried once by its store."""
    place = memory_place()

    def opener(url, options):
        return place.open(ReadPolicy(attempts=1))

    monkeypatch.setattr("dlspark.core.cold.reading.cold_files.open_store", opener)
    return place


async def test_a_store_that_is_away_is_waited_for(memory_cluster, namespace, bucket, ahead_of_one):
    client = await ahead_of_one
    mover = HandMover(namespace, bucket.root, memory_cluster.bookies, store=bucket.open(), row_group_bytes=500)
    for unit in await copied(namespace, mover, segments=SEGMENTS[:3]):
        await mover.delete_hot("flights", unit)
    bucket.bucket.faults.order(StoreCall.READ, *[ObjectFault.REFUSED] * 3)
    async with await (await client.open_log("flights")).open_reader() as reader:
        assert await taken(reader, 2) == FLAT[:2]
        bucket.bucket.faults.order(StoreCall.READ, *[ObjectFault.CUT, ObjectFault.REFUSED] * 3)
        assert await taken(reader, 3 * RECORDS - 2) == FLAT[2 : 3 * RECORDS]
    assert client.counters["read-retried"] >= 3


async def test_a_store_that_stays_away_ends_the_reader_in_the_end(
    memory_cluster, namespace, bucket, ahead_of_one, monkeypatch
):
    client = await ahead_of_one
    mover = HandMover(namespace, bucket.root, memory_cluster.bookies, store=bucket.open())
    await mover.delete_hot("flights", (await copied(namespace, mover, segments=SEGMENTS[:2]))[0])
    monkeypatch.setattr(segment_follower, "GIVE_UP_S", 0.1)
    bucket.bucket.faults.order(StoreCall.READ, *[ObjectFault.REFUSED] * 10_000)
    async with await (await client.open_log("flights")).open_reader() as reader:
        with pytest.raises(ReadError, match="could not be read for"):
            await taken(reader, 1)


async def test_a_damaged_file_is_an_error_with_its_place_and_never_data(memory_cluster, namespace, bucket):
    mover = HandMover(namespace, bucket.root, memory_cluster.bookies, store=bucket.open(), row_group_bytes=500)
    segments = [[bytes([65 + part]) * 300 for _ in range(40)] for part in range(3)]
    (unit, _) = [await mover.delete_hot("flights", unit) for unit in await copied(namespace, mover, segments=segments)]
    url = unit.value.file.url
    data = bucket.bucket.objects[url]
    wrong = bytearray(data)
    wrong[len(data) // 3] ^= 0x10
    bucket.bucket.damage(url, bytes(wrong))
    log = await namespace.open_log("flights")
    found = []

    async def read_on(reader):
        while True:
            found.append((await reader.read_next()).payload)

    async with await log.open_reader() as reader:
        with pytest.raises(DamagedColdFileError) as caught:
            await read_on(reader)
    assert caught.value.url == url
    assert found == segments[0][: len(found)]
    bucket.bucket.damage(url, data[:-1])
    with pytest.raises(CorruptDataError):
        await (await (await memory_cluster.namespace()).open_log("flights")).first_record()


async def damaged_group(memory_cluster, namespace, bucket, *, beating=False):
    """Two cold segments of 100 records in row groups of some, and a hot one; a row group of the first is damaged.
    `beating`: a control record lies behind each record."""
    mover = HandMover(namespace, bucket.root, memory_cluster.bookies, store=bucket.open(), row_group_bytes=500)
    segments = [[bytes([65 + part]) * 300 for _ in range(100)] for part in range(3)]
    log = await namespace.open_log("flights", {"writerOutputBufferSize": 0})
    for part, payloads in enumerate(segments):
        async with await log.open_writer() as writer:
            for number, payload in enumerate(payloads):
                await writer.write(100 * part + number, payload)
                if beating:
                    await writer.heartbeat()
    units = [await mover.move("flights", lssn, lssn) for lssn in (1, 2)]
    url = units[0].value.file.url
    data = bucket.bucket.objects[url]
    footer = Footer.parse(data[-Footer.bytes_needed(data, len(data), url) :], len(data), url)
    assert len(footer.row_groups) >= 3
    index = 1
    begin, length = footer.ranges(index, footer.record_columns(index))[-1]
    wrong = bytearray(data)
    wrong[begin + length // 2] ^= 0x10
    bucket.bucket.damage(url, bytes(wrong))
    return footer.row_groups[index], url, data


async def with_gaps(log, start="earliest"):
    async with await log.open_reader(start) as reader:
        found = []
        while more := await reader.read_available(100, wait=True):
            found += more
        return found, reader.gaps


async def test_a_damaged_row_group_is_passed_over_where_settings_ask_for_it(memory_cluster, namespace, bucket, caplog):
    group, url, data = await damaged_group(memory_cluster, namespace, bucket)
    with pytest.raises(DamagedColdFileError):
        await with_gaps(await (await memory_cluster.namespace()).open_log("flights"))
    client = await memory_cluster.namespace(skip_broken_entries=True)
    log = await client.open_log("flights")
    found, gaps = await with_gaps(log)
    lost = {(1, entry) for entry in range(group.first.entry_id, group.last.entry_id + 1)}
    entries = [one.dlsn[:2] for one in found]
    assert not lost & set(entries)
    assert len(found) == 300 - group.records
    assert sorted(entries) == entries
    assert gaps == [Gap(DLSN(1, group.first.entry_id, 0), len(lost), group.records)]
    assert client.counters["broken-entry-skipped"] == len(lost)
    (said,) = [one.getMessage() for one in caplog.records if "is damaged" in one.getMessage()]
    assert url in said
    assert f"entries 1:{group.first.entry_id}:0 to 1:{group.last.entry_id}:0 are skipped" in said
    # From within it, from before it, and from behind it.
    assert [one.dlsn for one in (await with_gaps(log, DLSN(1, group.first.entry_id + 1, 0)))[0]] == [
        one.dlsn for one in found if one.dlsn > group.last
    ]
    assert len((await with_gaps(log, DLSN(2, 0, 0)))[0]) == 200
    # Where the object is brought back, all is there again.
    bucket.bucket.damage(url, data)
    assert len((await with_gaps(log))[0]) == 300


async def test_a_row_group_that_was_damaged_on_its_way_is_read_again(memory_cluster, namespace, bucket, monkeypatch):
    _, url, data = await damaged_group(memory_cluster, namespace, bucket)
    client = await memory_cluster.namespace(skip_broken_entries=True)
    decode, failed = file_reader.decode_records, []

    def mended(footer, index, parts):
        try:
            return decode(footer, index, parts)
        except DamagedColdFileError:
            failed.append(index)
            bucket.bucket.damage(url, data)
            raise

    monkeypatch.setattr(file_reader, "decode_records", mended)
    found, gaps = await with_gaps(await client.open_log("flights"))
    assert (len(found), gaps, len(failed)) == (300, [], 1)


@pytest.mark.parametrize("fault", ["metadata", "store"])
async def test_a_short_outage_while_a_row_group_is_passed_over_is_waited_out(
    memory_cluster, namespace, bucket, monkeypatch, fault
):
    """Both requests that are made then: whether the file is the only copy, and what lies before the first record."""
    group, url, _ = await damaged_group(memory_cluster, namespace, bucket, beating=True)
    client = await memory_cluster.namespace(skip_broken_entries=True)
    log = await client.open_log("flights")
    left = 3
    if fault == "metadata":
        located, only_in = client.services.logs.located, SegmentLedger.is_only_in

        async def away(name):
            nonlocal left
            left -= 1
            if left >= 0:
                raise MetadataUnavailableError("the list cannot be read at present")
            return await located(name)

        async def asked(ledger, damaged):
            with mock.patch.object(client.services.logs, "located", away):
                return await only_in(ledger, damaged)

        monkeypatch.setattr(SegmentLedger, "is_only_in", asked)
    else:
        entries = SegmentLedger.entries_or_columns

        async def cut_off(ledger, first, last, **window):
            nonlocal left
            if last == group.first.entry_id - 1:
                left -= 1
                if left >= 0:
                    raise unavailable_error(url, "return bytes of an object", "connection reset")
            async for entry in entries(ledger, first, last, **window):
                yield entry

        monkeypatch.setattr(SegmentLedger, "entries_or_columns", cut_off)
    found, gaps = await with_gaps(log)
    assert left < 0
    assert client.counters["read-retried"] == 3
    assert len(found) == 300 - group.records
    # The control records between its own are lost with it.
    lost = range(group.first.entry_id, group.last.entry_id + 1)
    assert gaps == [Gap(DLSN(1, lost.start, 0), len(lost), group.records)]


async def test_a_list_that_stays_out_of_reach_is_not_taken_for_damage(memory_cluster, namespace, bucket, monkeypatch):
    await damaged_group(memory_cluster, namespace, bucket)
    client = await memory_cluster.namespace(skip_broken_entries=True)
    log = await client.open_log("flights")
    monkeypatch.setattr(segment_follower, "GIVE_UP_S", 0.1)

    async def away(ledger):
        raise MetadataUnavailableError("the list cannot be read")

    monkeypatch.setattr(SegmentLedger, "_listed", away)
    with pytest.raises(ReadError, match="could not be read for") as caught:
        await with_gaps(log)
    assert isinstance(caught.value.__cause__, MetadataUnavailableError)


async def test_what_is_damaged_in_a_file_is_not_passed_over_while_ledgers_have_it(memory_cluster, namespace, bucket):
    """A reader is in the file, and the segment is put back meanwhile: its ledger is for the next reader to open."""
    await damaged_group(memory_cluster, namespace, bucket)
    client = await memory_cluster.namespace(skip_broken_entries=True, read_ahead_entries=1, prefetch_entries=1)
    listed = SegmentLedger._listed

    async def restored(ledger):
        found = await listed(ledger)
        return replace(found, cold=replace(found.cold, listed=True))

    async with await (await client.open_log("flights")).open_reader() as reader:
        await reader.read_next()
        with mock.patch.object(SegmentLedger, "_listed", restored), pytest.raises(DamagedColdFileError):
            await taken(reader, 299)
        assert reader.gaps == []


async def test_a_damaged_footer_is_never_passed_over(memory_cluster, namespace, bucket):
    _, url, data = await damaged_group(memory_cluster, namespace, bucket)
    wrong = bytearray(data)
    wrong[-200] ^= 1
    bucket.bucket.damage(url, bytes(wrong))
    client = await memory_cluster.namespace(skip_broken_entries=True)
    with pytest.raises(DamagedColdFileError):
        await with_gaps(await client.open_log("flights"))
