"""Files that lie in several regions: the nearest place is read, and whatever it does not give comes from another."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import pytest_asyncio
from helpers.cold.moved import file_of
from helpers.cold.places import MemoryPlace, put

from dlspark.core.codec.entries import EntryBuilder
from dlspark.core.cold.files.footer import FileIdentity
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.core.cold.reading import places
from dlspark.core.cold.reading.cold_files import ColdFiles
from dlspark.core.cold.reading.places import ReadsFrom, order_of
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import ObjectNotFoundError, StoreUnavailableError
from dlspark.objects.memory_faults import ObjectFault, StoreCall
from dlspark.objects.opened_store import ReadPolicy
from dlspark.tables.errors import MissingExtraError
from metadata.distributedlog.cold_places import ColdFile, ColdMirror
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CorruptDataError

OWN = "s3://memory/cold"
URL = f"{OWN}/ns/log/one.parquet"
US, ASIA = ColdMirror("us", "s3://bucket-us/cold", {"region": "us-east-2"}), ColdMirror("asia", "s3://bucket-asia/cold")


class Regions:
    """A file in its own place and in two mirrors, each a bucket in memory, and readers of any region."""

    def __init__(self) -> None:
        self.places = {root: MemoryPlace(root, part_bytes=1 << 20) for root in (OWN, US.root, ASIA.root)}
        self.asked: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.hangs: set[str] = set()
        self.unusable: set[str] = set()
        self.files = ColdFiles(self._open)
        self.hold = self.files.hold()
        self.file: ColdFile | None = None
        self.data = b""

    def _open(self, url, options):
        root = url.rsplit("/", 3)[0]
        if root in self.unusable:
            raise MissingExtraError("no library")
        store = self.places[root].open(ReadPolicy(attempts=1))
        read = store.read

        async def counted(url, ranges):
            self.asked[root] += 1
            if root in self.hangs:
                await asyncio.Event().wait()
            return await read(url, ranges)

        store.read = counted
        return store

    @staticmethod
    @cache
    def write(seed):
        """Made once: all tests have the same file."""
        parts: list[bytes] = []
        writer = ColdFileWriter(parts.append, FileIdentity("n", "l", "flights", "a"), row_group_bytes=2_000)
        metadata, stored = segment(seed)
        writer.begin_segment(metadata, sum(len(payload) for _, payload in stored))
        writer.add(stored)
        writer.end_segment()
        written = writer.finish()
        return written, b"".join(parts)

    async def make(self):
        written, self.data = self.write(1)
        self.file = replace(file_of(written, URL), mirrors=(US, ASIA))
        for root in self.places:
            await self.put(root, self.data)

    async def put(self, root, data):
        bucket = self.places[root].bucket
        for url in list(bucket.objects):
            bucket.remove(url)
        await put(self.places[root].open(), f"{root}/ns/log/one.parquet", data)

    def damage(self, root, data):
        self.places[root].bucket.damage(f"{root}/ns/log/one.parquet", data)

    def take_away(self, root):
        self.places[root].bucket.remove(f"{root}/ns/log/one.parquet")

    def refuse(self, root, count=1_000):
        self.places[root].bucket.faults.order(StoreCall.READ, *[ObjectFault.REFUSED] * count)

    def reader(self, region="", patience_s=0):
        count = ReadsFrom(
            region,
            lambda: self.counted.update(["mirror"]),
            lambda: self.counted.update(["fell over"]),
        )
        return self.files.reader(self.file, patience_s, count)

    async def records(self, region=""):
        reader = self.reader(region)
        groups = range(len((await reader.footer()).row_groups))
        found = [records.value.to_pylist() async for _, records in reader.all_records(groups)]
        return [one for some in found for one in some]


def segment(seed, entries=100):
    """A segment of entries with one record each, of lengths that are the same for every seed, but for their bytes."""
    rng, stored, builder = random.Random(seed), [], EntryBuilder(enveloped=True)
    for entry_id in range(entries):
        builder.add(entry_id, rng.randbytes(50 + 7 * (entry_id % 40)), entry_id + 1, 0)
        stored.append((entry_id, memoryview(b"".join(map(bytes, builder.finish().buffers)))))
    metadata = SegmentMetadata(
        ledger_id=101,
        lssn=1,
        first_txid=0,
        last_txid=entries - 1,
        completion_time_ms=1_001,
        record_count=entries,
        last_entry=entries - 1,
        last_slot=0,
        start_sequence_id=0,
        version=5,
    )
    return metadata, stored


@pytest_asyncio.fixture
async def regions():
    made = Regions()
    await made.make()
    yield made
    await made.hold.close()


@pytest_asyncio.fixture
async def wanted():
    """What is in the file, read where there is nothing else."""
    alone = Regions()
    await alone.make()
    alone.file = replace(alone.file, mirrors=())
    found = await alone.records()
    await alone.hold.close()
    assert len(found) > 50
    return found


def test_the_own_region_comes_first_then_the_files_place_then_the_rest():
    file = ColdFile(URL, 1, "", "", 0, 0, mirrors=(US, ASIA))
    assert order_of(file, "us") == (US, None, ASIA)
    assert order_of(file, "asia") == (ASIA, None, US)
    assert order_of(file, "eu") == (None, US, ASIA)
    assert order_of(file, "") == (None, US, ASIA)
    assert order_of(replace(file, mirrors=()), "us") == (None,)
    assert order_of(replace(file, mirrors=(ColdMirror("", "s3://x/y"),)), "")[0] is None


def test_a_copy_has_the_files_name_below_another_root_and_a_borrowed_file_has_none():
    assert US.url_of(URL) == "s3://bucket-us/cold/ns/log/one.parquet"
    assert US.url_of(f"{OWN}/ns/log/") == "s3://bucket-us/cold/ns/log/"
    file = ColdFile(URL, 1, "", "", 0, 0)
    assert file.mirrored((US,)).mirrors == (US,)
    assert replace(file, borrowed=True).mirrored((US,)).mirrors == ()
    travelled = pickle.loads(pickle.dumps(file.mirrored((US, ASIA))))
    assert (travelled, travelled.mirrors) == (file, (US, ASIA))


@pytest.mark.parametrize(("region", "root"), [("us", US.root), ("asia", ASIA.root), ("eu", OWN), ("", OWN)])
async def test_a_reader_reads_in_its_own_region(regions, wanted, region, root):
    assert await regions.records(region) == wanted
    assert set(regions.asked) == {root}
    assert regions.counted["fell over"] == 0
    assert (regions.counted["mirror"] > 0) == (root != OWN)


async def test_a_copy_that_is_not_there_yet_comes_from_the_files_place_and_is_not_asked_for_again(regions, wanted):
    regions.take_away(US.root)
    assert await regions.records("us") == wanted
    assert regions.asked[US.root] == 1
    assert regions.asked[ASIA.root] == 0
    assert regions.counted == {"fell over": 1}
    await regions.put(US.root, regions.data)
    assert (await regions.reader("us").batch(0, ["value"])).num_rows > 0  # another reader asks there anew
    assert regions.asked[US.root] == 2


@pytest.mark.parametrize("seed", range(4))
async def test_a_damaged_byte_of_a_mirror_is_never_data(regions, wanted, seed):
    """One bit wrong in each of many places, in the footer and in row groups: the records are what they were."""
    damaged = bytearray(regions.data)
    for at in range(seed * 7, len(damaged), 397):
        damaged[at] ^= 1 << (at % 8)
    regions.damage(US.root, bytes(damaged))
    assert await regions.records("us") == wanted
    assert regions.counted["fell over"] > 0


async def test_a_damaged_row_group_of_a_mirror_is_never_data(regions, wanted):
    """The footer is right, so the mirror is believed until its first row group comes."""
    damaged = bytearray(regions.data)
    for at in range(64, 600):
        damaged[at] ^= 0xFF
    regions.damage(US.root, bytes(damaged))
    assert await regions.records("us") == wanted
    assert regions.counted["mirror"] > 0
    assert regions.counted["fell over"] > 0


@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
async def test_a_copy_of_another_size_is_never_data(regions, wanted, change):
    data = {"shorter": regions.data[:-9], "longer": b"x" * 9 + regions.data, "empty": b""}[change]
    await regions.put(US.root, data)
    assert await regions.records("us") == wanted
    assert regions.counted["fell over"] > 0
    assert regions.counted["mirror"] == 0


async def test_another_whole_file_of_the_same_size_is_never_data(regions, wanted):
    """Records of the same lengths, so that everything is right but the digest that the mark has."""
    _, data = regions.write(2)
    assert len(data) == len(regions.data)
    await regions.put(US.root, data)
    assert await regions.records("us") == wanted
    assert regions.counted["mirror"] == 0


async def test_a_mirror_out_of_reach_is_passed_over_for_a_while_and_told_once(regions, wanted, caplog, monkeypatch):
    regions.refuse(US.root)
    with caplog.at_level(logging.INFO, logger=places.__name__):
        assert await regions.records("us") == wanted
        assert await regions.records("us") == wanted
        assert regions.asked[US.root] == 1
        warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "the mirror of region us" in warnings[0]
        monkeypatch.setattr(places, "AWAY_S", 0.0)
        regions.files._places._away_until.clear()
        regions.files._known.records.forget()
        assert await regions.records("us") == wanted
    assert regions.asked[US.root] > 1
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1


async def test_the_way_back_is_told_too_and_the_mirror_is_read_again(regions, wanted, caplog):
    regions.refuse(US.root, 1)
    assert await regions.records("us") == wanted
    regions.files._places._away_until = dict.fromkeys(regions.files._places._away_until, -1.0)
    regions.files._known.records.forget()
    with caplog.at_level(logging.INFO, logger=places.__name__):
        assert await regions.records("us") == wanted
    assert [one.message for one in caplog.records if "can be read again" in one.message]
    assert regions.counted["mirror"] > 0


async def test_a_mirror_that_never_answers_is_waited_for_within_bounds(regions, wanted, monkeypatch):
    monkeypatch.setattr(places, "ANSWER_S", 0.02)
    monkeypatch.setattr(places, "SLOWEST_BYTES_S", 1 << 40)
    regions.hangs.add(US.root)
    assert await regions.records("us") == wanted
    assert regions.asked[US.root] == 1


async def test_a_mirror_whose_library_is_missing_is_one_out_of_reach(regions, wanted):
    regions.unusable.add(US.root)
    assert await regions.records("us") == wanted
    assert regions.counted == {"fell over": 1}


@pytest.mark.parametrize("how", ["refused", "hangs", "gone"])
async def test_reading_goes_on_in_mirrors_while_the_files_place_is_away(regions, wanted, how, monkeypatch):
    monkeypatch.setattr(places, "ANSWER_S", 0.02)
    monkeypatch.setattr(places, "SLOWEST_BYTES_S", 1 << 40)
    if how == "refused":
        regions.refuse(OWN)
    elif how == "hangs":
        regions.hangs.add(OWN)
    else:
        regions.take_away(OWN)
    assert await regions.records("eu") == wanted
    assert regions.asked[US.root] > 0
    assert regions.asked[ASIA.root] == 0
    # A mirror that is away as well: the third place has it.
    regions.files._known.records.forget()
    regions.refuse(US.root)
    assert await regions.records("asia") == wanted
    assert await regions.records("us") == wanted


async def test_what_is_raised_is_what_the_files_own_place_says(regions):
    for root in (US.root, ASIA.root):
        regions.take_away(root)
    regions.refuse(OWN)
    with pytest.raises(StoreUnavailableError):
        await regions.records("us")
    other = Regions()
    await other.make()
    for root in (OWN, US.root, ASIA.root):
        other.take_away(root)
    with pytest.raises(ObjectNotFoundError) as caught:
        await other.records("us")
    assert caught.value.path == URL
    await other.hold.close()
    damaged = Regions()
    await damaged.make()
    for root in (OWN, US.root, ASIA.root):
        damaged.damage(root, b"x" * len(damaged.data))
    with pytest.raises(DamagedColdFileError) as hurt:
        await damaged.records("us")
    assert hurt.value.url == URL
    await damaged.hold.close()


@pytest.mark.parametrize("how", ["damaged", "gone"])
async def test_a_file_is_given_up_by_nobody_while_a_mirror_cannot_be_asked(regions, wanted, how):
    """The mirror was out of reach for another file, so it is passed over; it has a good copy of this one."""
    regions.take_away(ASIA.root)
    reader = regions.reader("us")
    regions.refuse(US.root)
    await reader.footer()  # the mirror in us is passed over from now on
    if how == "gone":
        regions.take_away(OWN)
    else:
        regions.damage(OWN, b"x" * len(regions.data))
    with pytest.raises(StoreUnavailableError, match="cannot be asked") as caught:
        await regions.records("us")
    assert isinstance(caught.value.__cause__, DamagedColdFileError | ObjectNotFoundError)
    assert not isinstance(caught.value, CorruptDataError)
    regions.places[US.root].bucket.faults.stop()
    assert await regions.records("us") == wanted, "it is back, and is asked though its time is not over"


async def test_a_file_whose_own_place_was_away_and_is_damaged_is_not_given_up_either(regions, wanted):
    regions.refuse(US.root)
    regions.refuse(OWN)
    regions.take_away(ASIA.root)
    with pytest.raises(StoreUnavailableError):
        await regions.records("us")
    regions.places[OWN].bucket.faults.stop()
    regions.damage(OWN, b"x" * len(regions.data))
    with pytest.raises(StoreUnavailableError, match="cannot be asked"):
        await regions.records("us")
    regions.places[US.root].bucket.faults.stop()
    assert await regions.records("us") == wanted


async def test_a_copy_that_came_later_is_found_once_the_files_own_place_fails(regions, wanted):
    for root in (US.root, ASIA.root):
        regions.take_away(root)
    reader = regions.reader("us")
    footer = await reader.footer()
    await regions.put(US.root, regions.data)
    regions.damage(OWN, b"x" * len(regions.data))
    found = [records.value.to_pylist() async for _, records in reader.all_records(range(len(footer.row_groups)))]
    assert [one for some in found for one in some] == wanted


async def test_a_files_place_that_is_only_slow_is_waited_for_where_mirrors_have_nothing(regions, wanted, monkeypatch):
    """With mirrors a file is never harder to read than without: what was given up for time is asked again."""
    monkeypatch.setattr(places, "ANSWER_S", 0.0)
    monkeypatch.setattr(places, "SLOWEST_BYTES_S", 1 << 40)
    for root in (US.root, ASIA.root):
        regions.take_away(root)
    assert await regions.records("eu") == wanted


async def test_a_store_that_comes_back_within_the_patience_costs_time_only(regions, monkeypatch):
    monkeypatch.setattr("dlspark.core.cold.reading.file_reader.RETRY_S", 0.0)
    for root in (US.root, ASIA.root):
        regions.take_away(root)
    regions.refuse(OWN, 3)
    assert (await regions.reader("us", patience_s=60).footer()).rows == regions.file.rows
