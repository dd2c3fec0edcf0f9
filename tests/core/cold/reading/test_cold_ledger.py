"""A segment of a cold file with the calls of a closed ledger's reader, and what of the file each call fetches."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import pytest_asyncio
from helpers.cold.moved import file_of
from helpers.cold.places import memory_place, put
from helpers.waiting import until

from dlspark.core.codec.entries import Compression, EntryBuilder, decode_entry, encode_record_set
from dlspark.core.codec.records import FLAG_CONTROL, FLAG_END_OF_STREAM, FLAG_RECORD_SET, MAX_TXID
from dlspark.core.cold.files.footer import TAIL_BYTES, FileIdentity
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.core.cold.reading import cold_files, file_reader
from dlspark.core.cold.reading.cold_files import ColdFiles, shared_cold_files
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import StoreUnavailableError
from dlspark.objects.memory_faults import ObjectFault, StoreCall
from dlspark.objects.opened_store import ReadPolicy
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError
from storage_node.errors import LedgerClosedError

URL = "s3://memory/cold/ns/log/one.parquet"


class CountedStore:
    """A store whose reads are counted and may be held back."""

    def __init__(self, store) -> None:
        self._store = store
        self.reads: list[list[tuple[int, int]]] = []
        self.opened = 0
        self.closed = 0
        self.under_way = 0
        self.most_under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, url, ranges):
        self.reads.append(list(ranges))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            return await self._store.read(url, ranges)
        finally:
            self.under_way -= 1

    @property
    def requests(self) -> int:
        return sum(map(len, self.reads))

    async def close(self):
        self.closed += 1


class World:
    """A file of three segments in memory, and its readers."""

    def __init__(self) -> None:
        self.place = memory_place()
        self.store = CountedStore(self.place.open(ReadPolicy(attempts=1)))
        self.files = ColdFiles(self._open)
        self.hold = self.files.hold()
        self.entries: dict[int, list[tuple[int, memoryview]]] = {}
        self.segments: dict[int, SegmentMetadata] = {}
        self.file = None

    def _open(self, url, options):
        self.store.opened += 1
        return self.store

    async def write(self, segments, *, version=5, row_group_bytes=3_000):
        parts: list[bytes] = []
        writer = ColdFileWriter(parts.append, FileIdentity("n", "l", "flights", "a"), row_group_bytes=row_group_bytes)
        start = 0
        for lssn, entries in enumerate(segments, 1):
            metadata, stored = segment_of(lssn, entries, version, start)
            self.segments[lssn], self.entries[lssn] = metadata, stored
            writer.begin_segment(metadata, sum(len(payload) for _, payload in stored))
            writer.add(stored)
            writer.end_segment()
            start += metadata.record_count
        written = writer.finish()
        self.file = file_of(written, URL)
        await put(self.place.open(), URL, b"".join(parts))
        return written

    def location(self, lssn) -> ColdLocation:
        metadata, stored = self.segments[lssn], self.entries[lssn]
        size = sum(len(payload) for _, payload in stored)
        return ColdLocation(
            self.file,
            lssn,
            metadata.ledger_id,
            metadata.first_txid,
            metadata.completion_time_ms,
            metadata.version,
            metadata.last_entry,
            size,
        )

    async def ledger(self, lssn):
        return await self.files.open(self.location(lssn))

    def records(self, lssn):
        found = []
        for entry_id, payload in self.entries[lssn]:
            found += self.decoded(lssn, entry_id, payload)
        return found

    def decoded(self, lssn, entry_id, payload):
        metadata = self.segments[lssn]
        return decode_entry(
            payload,
            lssn=lssn,
            entry_id=entry_id,
            start_sequence_id=metadata.effective_start_sequence_id,
            enveloped=metadata.enveloped,
        )


def segment_of(lssn, entries, version, start):
    """A segment's metadata and stored entries: lists of (transaction id, payload, flags), a list an entry."""
    stored, position, txids, last = [], 0, [], (-1, -1)
    builder = EntryBuilder(enveloped=version >= 4)
    for entry_id, records in enumerate(entries):
        slot = 0
        for txid, payload, flags in records:
            count = len(payload) if flags & FLAG_RECORD_SET else 1
            is_user = not flags & (FLAG_CONTROL | FLAG_END_OF_STREAM)
            first = position + 1 if is_user else position
            body = encode_record_set(payload, Compression.LZ4) if flags & FLAG_RECORD_SET else payload
            builder.add(txid, body, first, flags)
            position += count if is_user else 0
            slot += count
            txids.append(txid)
            last = (entry_id, slot - 1)
        stored.append((entry_id, memoryview(b"".join(map(bytes, builder.finish().buffers)))))
    metadata = SegmentMetadata(
        ledger_id=100 + lssn,
        lssn=lssn,
        first_txid=txids[0],
        last_txid=txids[-1],
        completion_time_ms=1_000 + lssn,
        record_count=position,
        last_entry=last[0],
        last_slot=last[1],
        start_sequence_id=start,
        version=version,
    )
    return metadata, stored


def mixed(lssn, entries=40, seed=0):
    """Entries of all kinds: records, sets, control records before, between and behind them, and control alone."""
    rng = random.Random(seed + lssn)
    found, txid = [], lssn * 1_000_000
    for number in range(entries):
        records = []
        for _ in range(rng.randint(1, 6)):
            txid += rng.choice([0, 1, 7])
            kind = rng.randint(0, 9)
            if kind < 2 or number % 7 == 3:
                records.append((txid, b"control", FLAG_CONTROL))
            elif kind == 2:
                records.append((txid, [rng.randbytes(rng.randint(0, 200)) for _ in range(3)], FLAG_RECORD_SET))
            else:
                records.append((txid, rng.randbytes(rng.randint(0, 400)), 0))
        found.append(records)
    return found


@pytest_asyncio.fixture
async def world():
    made = World()
    yield made
    await made.hold.close()
    assert made.store.opened == made.store.closed


def users(records):
    return [(one.dlsn, one.txid, one.payload, one.position, one.sequence_id) for one in records if one.is_user]


async def decoded(world, ledger, lssn, first, last):
    found = []
    async for entry in ledger.entries(first, last):
        found += world.decoded(lssn, entry.entry_id, entry.payload)
    return found


# ---------------------------------------------------------------------- entries


@pytest.mark.parametrize("version", [2, 3, 4, 5])
async def test_entries_come_back_with_their_records_slots_and_positions(world, version):
    await world.write([mixed(1), mixed(2), mixed(3, 5)], version=version)
    for lssn in (1, 2, 3):
        ledger = await world.ledger(lssn)
        last = len(world.entries[lssn]) - 1
        assert (ledger.closed, ledger.last_add_confirmed, ledger.ledger_id) == (True, last, 100 + lssn)
        entries = await ledger.read(0, last)
        assert [entry.entry_id for entry in entries] == list(range(last + 1))
        records = await decoded(world, ledger, lssn, 0, last)
        wanted = world.records(lssn)
        assert users(records) == users(wanted)
        assert [one.dlsn for one in records if one.slots == 1][-1] == [one.dlsn for one in wanted][-1]
        await ledger.close()


async def test_every_range_of_entries_is_the_same_part(world):
    await world.write([mixed(1, 12), mixed(2, 12)], row_group_bytes=1_000)
    for lssn in (1, 2):
        ledger = await world.ledger(lssn)
        wanted = world.records(lssn)
        for first in range(12):
            for last in range(first, 12):
                part = [one for one in wanted if first <= one.dlsn.entry_id <= last]
                assert users(await decoded(world, ledger, lssn, first, last)) == users(part)


async def test_what_is_not_there_is_not_asked_for(world):
    await world.write([mixed(1, 5)])
    ledger = await world.ledger(1)
    for first, last in ((0, 5), (-1, 2), (3, 2)):
        with pytest.raises(CallerError):
            await ledger.read(first, last)
    with pytest.raises(CallerError):
        await ledger.poll(-1, 10)
    assert await ledger.poll(5, 10_000) is None
    assert (await ledger.poll(4, 0)).entry_id == 4
    assert (await ledger.read_last_confirmed(), await ledger.read_last_acknowledged()) == (4, 4)
    await ledger.close()
    with pytest.raises(LedgerClosedError):
        await ledger.read(0, 0)


async def test_the_end_of_the_stream_comes_back(world):
    last = [(50, b"x", 0), (MAX_TXID, b"endOfStream", FLAG_END_OF_STREAM)]
    await world.write([[[(40, b"y", 0)], last, [(50, b"", FLAG_CONTROL)]]])
    ledger = await world.ledger(1)
    records = await decoded(world, ledger, 1, 0, 2)
    assert [one.is_end_of_stream for one in records] == [False, False, True, False]
    assert await ledger.locate_txid(51) == (1, 1)
    assert await ledger.locate_txid(50) == (1, 0)


async def test_a_unit_without_a_file_has_control_records(world):
    location = ColdLocation(None, 7, 3, 10, 5, 5, 2, 90)
    ledger = await world.files.open(location)
    world.segments[7] = SegmentMetadata(3, 7, 10)
    records = await decoded(world, ledger, 7, 0, 2)
    assert [(one.dlsn.entry_id, one.is_user) for one in records] == [(0, False), (1, False), (2, False)]
    assert (await ledger.locate_txid(0), await ledger.locate_position(1)) == (None, None)
    assert (ledger.stored_to(0), ledger.stored_to(2)) == (30, 90)


@pytest.mark.parametrize("wrong", [{"lssn": 9}, {"first_txid": 5}, {"completion_ms": 5}])
async def test_a_file_of_other_segments_is_refused(world, wrong):
    await world.write([mixed(1, 3)])
    with pytest.raises(DamagedColdFileError, match="it should have segment"):
        await world.files.open(replace(world.location(1), **wrong))


async def test_a_restored_segment_has_another_ledger_and_the_same_file(world):
    await world.write([mixed(1, 3)])
    ledger = await world.files.open(replace(world.location(1), ledger_id=555))
    assert [entry.ledger_id for entry in await ledger.read(0, 2)] == [555] * 3


# ---------------------------------------------------------------------- searches


async def test_searches_find_what_a_walk_finds(world):
    await world.write([mixed(1), mixed(2, 30), mixed(3, 4)], row_group_bytes=1_500)
    for lssn in (1, 2, 3):
        ledger = await world.ledger(lssn)
        records = [one for one in world.records(lssn) if one.is_user]
        flat = [
            (one.dlsn.entry_id, one.dlsn.slot_id, one.txid)
            for one in await decoded(world, ledger, lssn, 0, ledger.last_add_confirmed)
            if one.is_user
        ]
        first, last = flat[0][2], flat[-1][2]
        for txid in range(first - 1, last + 2):
            wanted = next(((entry, slot) for entry, slot, one in flat if one >= txid), None)
            assert await ledger.locate_txid(txid) == wanted
        for position in range(1, len(flat) + 1):
            assert await ledger.locate_position(position) == flat[position - 1][:2]
        assert [await ledger.locate_position(one) for one in (0, -1, len(flat) + 1)] == [None] * 3
        assert len(records) <= len(flat)


@pytest.mark.parametrize("entries", [50, 2_000])
async def test_a_search_costs_three_requests_whatever_the_length(entries):
    for action in ("txid", "position", "slot"):
        world = World()
        control = [(0, b"", FLAG_CONTROL)] if action == "slot" else []
        made = [[*control, *((number, b"%d" % number, 0) for _ in range(3))] for number in range(entries)]
        written = await world.write([made], row_group_bytes=2_000)
        assert len(written.segments) == 1
        ledger = await world.ledger(1)
        if action == "txid":
            assert await ledger.locate_txid(entries // 2) == (entries // 2, 0)
        else:
            slot = 1 if action == "slot" else 0
            assert await ledger.locate_position(3 * (entries // 2) + 1) == (entries // 2, slot)
        assert world.store.requests <= 3
        # The footer is known from then on, and the row group too.
        before = world.store.requests
        assert await (await world.ledger(1)).locate_txid(entries // 3) == (entries // 3, 1 if control else 0)
        assert world.store.requests <= before + 1
        await world.hold.close()


async def test_bytes_are_reckoned_by_records(world):
    await world.write([mixed(1)])
    ledger = await world.ledger(1)
    sizes = [ledger.stored_to(entry_id) for entry_id in range(40)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == ledger.length == world.location(1).bytes
    assert 0 < sizes[19] < ledger.length


# ---------------------------------------------------------------------- what is fetched


def plain(entries, size=400):
    rng = random.Random(5)
    return [[(number, rng.randbytes(size), 0)] for number in range(entries)]


async def test_a_look_costs_one_row_group_and_a_walk_fetches_ahead(world):
    await world.write([plain(200)], row_group_bytes=4_000)
    ledger = await world.ledger(1)
    footer = await world.files.reader(world.file).footer()
    assert len(footer.row_groups) > 10
    assert world.store.requests == 1
    entries = ledger.entries(0, 199)
    await anext(entries)
    assert len(world.store.reads) <= 3  # the footer, the first row group, and the next one on its way
    await entries.aclose()
    world.store.reads.clear()
    async for _ in ledger.entries(0, 199):
        pass
    assert world.store.most_under_way > 2
    assert {one[0][0] for one in world.store.reads} <= {group.range[0] + 0 for group in footer.row_groups} | {
        one[0][0] for one in world.store.reads
    }


async def test_what_is_under_way_is_bounded(world, monkeypatch):
    await world.write([plain(200)], row_group_bytes=4_000)
    ledger = await world.ledger(1)
    footer = await world.files.reader(world.file).footer()
    most = max(footer.parquet.row_group(index).total_byte_size for index in range(len(footer.row_groups)))
    async for _ in ledger.entries(0, 199, window_bytes=3 * most):
        assert world.store.under_way <= 4
    assert 1 < world.store.most_under_way <= 4


async def test_readers_of_one_segment_share_what_is_fetched(world):
    await world.write([plain(100)], row_group_bytes=4_000)

    async def read():
        ledger = await world.ledger(1)
        return [bytes(entry.payload) async for entry in ledger.entries(0, 99)]

    found = await asyncio.gather(*(read() for _ in range(4)))
    assert found[0] == found[1] == found[2] == found[3]
    footer = await world.files.reader(world.file).footer()
    assert world.store.requests <= 1 + 2 * len(footer.row_groups)
    assert world.store.opened == 1


async def test_a_footer_longer_than_the_tail_takes_a_second_request(world, monkeypatch):
    await world.write([plain(30)], row_group_bytes=4_000)
    monkeypatch.setattr(file_reader, "TAIL_BYTES", 64)
    await (await world.ledger(1)).close()
    assert world.store.requests == 2
    assert sum(world.store.reads[1][0]) == world.file.bytes
    assert TAIL_BYTES == 128 << 10


async def test_a_reader_that_is_cancelled_leaves_no_task(world):
    await world.write([plain(200)], row_group_bytes=4_000)
    ledger = await world.ledger(1)
    world.store.gate.clear()
    reading = asyncio.ensure_future(ledger.read(0, 199))
    await until(lambda: world.store.under_way)
    reading.cancel()
    await asyncio.wait([reading])
    await until(lambda: len(asyncio.all_tasks()) == 1)  # those that were cancelled end in their own turns
    assert world.store.under_way == 0


async def test_a_store_that_is_away_is_asked_again_for_a_while(world, monkeypatch):
    await world.write([plain(20)])
    monkeypatch.setattr(file_reader, "RETRY_S", 0.001)
    world.place.bucket.faults.order(StoreCall.READ, *[ObjectFault.REFUSED] * 3)
    with pytest.raises(StoreUnavailableError):
        await world.files.open(world.location(1))
    ledger = await world.files.open(world.location(1), patience_s=60)
    assert len(await ledger.read(0, 19)) == 20


async def read_until_error(ledger, last):
    found = []
    try:
        async for entry in ledger.entries(0, last):
            found.append(bytes(entry.payload))
    except DamagedColdFileError as error:
        return found, error
    return found, None


async def test_a_bit_anywhere_in_a_row_group_is_damage_and_never_data(world):
    await world.write([plain(60)], row_group_bytes=4_000)
    footer = await world.files.reader(world.file).footer()
    data = world.place.bucket.objects[URL]
    wanted = [bytes(payload) for _, payload in world.entries[1]]
    rng = random.Random(1)
    for _ in range(40):
        at = rng.randrange(4, footer.row_groups[-1].range[0] + footer.row_groups[-1].range[1])
        wrong = bytearray(data)
        wrong[at] ^= 1 << rng.randrange(8)
        world.place.bucket.damage(URL, bytes(wrong))
        await world.files._known.close()
        ledger = await world.ledger(1)
        found, error = await read_until_error(ledger, 59)
        if error is not None:
            assert (error.url, error.row_group is None) == (URL, False)
        else:
            # The one chunk that is not fetched for records: the log's name.
            assert any(
                group.columns["_log.log"].offset <= at < group.columns["_log.log"].end for group in footer.row_groups
            )
        assert found == wanted[: len(found)]


# ---------------------------------------------------------------------- one for a loop, none over a fork


async def test_stores_are_shared_while_someone_holds_them(world):
    await world.write([plain(5)])
    second = world.files.hold()
    await world.ledger(1)
    await second.close()
    await second.close()
    assert (world.store.opened, world.store.closed) == (1, 0)
    await world.hold.close()
    assert world.store.closed == 1
    world.hold = world.files.hold()
    await (await world.ledger(1)).read(0, 4)
    assert world.store.opened == 2


async def test_each_loop_has_its_own():
    here = shared_cold_files()
    assert shared_cold_files() is here

    async def there():
        return shared_cold_files()

    assert await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(there())) is not here


async def test_a_loop_that_holds_nothing_any_more_is_not_kept():
    first, second = shared_cold_files().hold(), shared_cold_files().hold()
    loop = asyncio.get_running_loop()
    await first.close()
    assert loop in cold_files._SHARED
    await second.close()
    assert loop not in cold_files._SHARED


async def test_a_child_process_has_nothing_of_its_parent():
    here = shared_cold_files()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = here in cold_files._INHERITED and not list(cold_files._SHARED.values())
        os.write(writing, b"y" if kept else b"n")
        os._exit(0)
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it ends at once
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)
    assert shared_cold_files() is here


def test_locations_and_readers_of_hot_segments_load_neither_parquet_nor_a_store_s_library():
    program = (
        "import sys, dlspark.core.namespace, dlspark.core.cold.reading.locations, dlspark.spark.source.planning;"
        "print([one for one in ('pyarrow.parquet', 'obstore', 'dlspark.core.cold.files.footer') if one in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
