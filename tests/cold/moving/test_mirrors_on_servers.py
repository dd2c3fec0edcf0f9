"""Mirrors at real servers: two of S3, and HDFS, each region behind a way of its own that may break.

.venv/bin/python -m pytest --rounds 1 tests/cold/moving/test_mirrors_on_servers.py
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest
import pytest_asyncio
from helpers.cold.fault_proxy import HttpFault, running_proxy
from helpers.cold.mirrored_world import DAY_MS, no_pause
from helpers.cold.places import get, names, open_uploads, put
from helpers.logs import payloads
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.cold.moving.log_mover import REPLACED_LAG_S, LogMover
from dlspark.cold.moving.mirroring import LogMirrors, clear_replaced, forget_mirror
from dlspark.cold.moving.owning import is_owner_mark
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_log
from dlspark.cold.moving.verifying import verify_object
from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.reading.cold_files import ColdFiles
from dlspark.objects.opening import open_store
from metadata.distributedlog.cold_store import ColdStore

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("place", ["moto", "seaweed", "hdfs"], indirect=True),
]

REGIONS = ("eu", "us", "asia")
SECRET = b"2/1/" * 40


class ShiftedClock:
    """This machine's clock, and what the test has let pass: servers stamp objects by theirs."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def elapsed_s(self) -> float:
        return time.monotonic() + self.ahead_ms / 1000


@dataclass
class Regions:
    """A log whose files are in eu, with mirrors in us and asia, and the ways to all three."""

    cluster: MemoryCluster
    clock: ShiftedClock
    roots: dict[str, str]
    options: dict[str, dict[str, str]]
    ways: dict[str, object]
    direct: object
    written: list[bytes] = field(default_factory=list)

    def break_way(self, region):
        """Have a region out of reach of all clients."""
        self.ways[region].plan.rates = {HttpFault.CUT_BEFORE: 1.0}

    def mend_ways(self):
        for way in self.ways.values():
            way.plan.stop()
        self.clock.ahead_ms += 60_000  # movers ask again

    def settings(self, **more):
        mirrors = "; ".join(
            f"{one}={self.roots[one]} " + " ".join(f"{key}={value}" for key, value in self.options[one].items())
            for one in more.pop("mirrors", ("us", "asia"))
        )
        own = {"cold_path": self.roots["eu"], "cold_endpoint": self.options["eu"]["endpoint"]}
        if "region" in self.options["eu"]:
            own["cold_region"] = self.options["eu"]["region"]
        times = {"cold_freshness_s": 0, "cold_max_delay_s": 10, "cold_hot_retention_s": 0, "cold_target_bytes": 1}
        return {**own, **times, "cold_mirror_places": mirrors, "output_buffer_bytes": 0, **more}

    async def namespace(self, **more):
        made = await self.cluster.namespace(**self.settings(**more))
        # As in a process of its own: what others have read, and know of places, is not shared.
        made.services.shared.cold = ColdFiles().hold()
        return made

    async def write(self, namespace, segments, first=1):
        for segment in range(first, first + segments):
            async with await (await namespace.open_log("log")).open_writer() as writer:
                for number in range(3):
                    self.written.append(f"{segment}/{number}/".encode() * 40)
                    await writer.write(segment * 100 + number, self.written[-1])

    async def with_stores(self, work):
        """Do something as a process of its own does."""
        stores = MoverStores(clock=self.clock)
        try:
            return await work(stores)
        finally:
            await stores.close()

    async def move(self, namespace, *, at_once=False):
        cold, services = ColdStore(namespace.services.logs), namespace.services

        async def work(stores):
            mover = LogMover(services, cold, stores, "log", lambda: namespace.settings, "worker")
            return await mover.run(at_once=at_once)

        return await self.with_stores(work)

    async def mirror(self, namespace):
        cold, services = ColdStore(namespace.services.logs), namespace.services

        async def work(stores):
            return await LogMirrors(services, cold, stores, "log", no_pause).run(namespace.settings)

        return await self.with_stores(work)

    async def sweep(self, namespace):
        self.clock.ahead_ms += DAY_MS
        cold, services = ColdStore(namespace.services.logs), namespace.services
        return await self.with_stores(lambda stores: sweep_log(services, cold, stores, "log", namespace.settings))

    async def erase(self, namespace, request=None):
        """Erase what is meant, or clear the mirrors of what was; return what is left there."""

        async def work(stores):
            cold = ColdStore(namespace.services.logs)
            clear = partial(clear_replaced, namespace.services, cold, stores, "log")
            one = LogErasure(namespace.services, namespace.settings, "log", clear_copies=clear)
            if request is None:
                return await one.clear_mirrors()
            report = await one.run(await one.plan(request))
            assert report.records == 1
            return report.copies_left

        return await self.with_stores(work)

    async def files(self, region):
        """What a region has, by name."""
        found = {}
        for url in await names(self.direct, f"{self.roots[region]}/"):
            if not is_owner_mark(url):
                found[url.rpartition("/")[2]] = await get(self.direct, url)
        return found

    async def units(self, namespace):
        return [one.value for one in await ColdStore(namespace.services.logs).units("log")]

    async def check_level(self):
        """Both mirrors have the very bytes of all files, and nothing else."""
        own = await self.files("eu")
        assert own
        assert await self.files("us") == await self.files("asia") == own
        assert await open_uploads(self.direct) == []

    async def read(self, region):
        """What a new reader of a region finds, and how often it was given a mirror's copy and had to ask elsewhere."""
        namespace = await self.namespace(region=region)
        async with await namespace.open_log("log") as log:
            found = await payloads(log)
        measures = namespace.services.meter.root
        return found, measures.cold_mirror_reads.value, measures.cold_fall_overs.value


@pytest_asyncio.fixture
async def regions(place):
    clock = ShiftedClock()
    cluster = MemoryCluster(clock=clock)
    cluster.tree._now_ms = clock.now_ms
    await cluster.start()
    direct = open_store(place.root, place.options)
    with ExitStack() as stack:
        ways = {one: stack.enter_context(running_proxy(place.options["endpoint"])) for one in REGIONS}
        made = Regions(
            cluster,
            clock,
            {one: f"{place.root}/{one}" for one in REGIONS},
            {one: {**place.options, "endpoint": ways[one].endpoint} for one in REGIONS},
            ways,
            direct,
        )
        yield made
        await direct.close()
        await cluster.stop()


async def filled(regions, segments=4):
    """Four files, the mirrors level."""
    namespace = await regions.namespace()
    await regions.write(namespace, segments)
    done = await regions.move(namespace, at_once=True)
    assert (done.problems, done.busy, len(done.moved)) == ([], None, segments)
    mirrored = await regions.mirror(namespace)
    assert (mirrored.problems, len(mirrored.copied)) == ([], 2 * segments)
    await regions.check_level()
    return namespace


async def test_mirrors_are_filled_and_are_read_by_their_regions(regions):
    namespace = await filled(regions)
    again = await regions.mirror(namespace)
    assert (again.problems, again.copied, again.there) == ([], [], 8)
    await regions.write(namespace, 1, first=5)
    assert (await regions.move(namespace, at_once=True)).problems == []
    assert len((await regions.mirror(namespace)).copied) == 2
    await regions.check_level()
    for region in REGIONS:
        found, from_mirror, fell_over = await regions.read(region)
        assert found == regions.written
        assert (from_mirror > 0, fell_over) == (region != "eu", 0)


@pytest.mark.parametrize("damage", ["missing", "short", "damaged"])
async def test_a_copy_that_is_missing_or_damaged_is_read_elsewhere_and_made_anew(regions, damage):
    namespace = await filled(regions)
    unit = (await regions.units(namespace))[1]
    copy = unit.file.url.replace(regions.roots["eu"], regions.roots["us"])
    data = bytearray(await get(regions.direct, copy))
    await regions.direct.delete(copy)
    if damage != "missing":
        for at in range(len(data) // 4, len(data) // 2):
            data[at] ^= 0xFF
        await put(regions.direct, copy, bytes(data[:200] if damage == "short" else data))
    found, from_mirror, fell_over = await regions.read("us")
    assert found == regions.written
    assert from_mirror > 0
    assert fell_over > 0
    done = await regions.mirror(namespace)
    if damage == "damaged":
        # Its size is right: nobody but `verify` sees it, which says what is to be deleted.
        assert (done.problems, done.copied) == ([], [])
        report = await verify_object(regions.direct, copy, unit.file)
        assert report.wrong is not None
        await regions.direct.delete(copy)
        done = await regions.mirror(namespace)
    assert (done.problems, done.copied) == ([], [done.copied[0]])
    assert done.copied[0] == copy
    assert done.mended == ([copy] if damage == "short" else [])
    await regions.check_level()
    found, from_mirror, fell_over = await regions.read("us")
    assert (found, fell_over) == (regions.written, 0)
    assert from_mirror > 0


async def test_the_files_own_place_goes_away_and_comes_back(regions):
    namespace = await filled(regions)
    await regions.write(namespace, 1, first=5)
    regions.break_way("eu")
    for region in REGIONS:
        found, from_mirror, _ = await regions.read(region)
        assert found == regions.written
        assert from_mirror > 0
    done = await regions.move(namespace, at_once=True)
    assert done.problems
    assert done.moved == []
    assert len(await regions.files("eu")) == 4, "nothing has gone"
    regions.mend_ways()
    assert (await regions.move(namespace, at_once=True)).problems == []
    assert (await regions.mirror(namespace)).problems == []
    await regions.check_level()
    assert (await regions.read("eu"))[::2] == (regions.written, 0)


async def test_a_mirror_goes_away_and_comes_back(regions):
    namespace = await filled(regions)
    await regions.write(namespace, 2, first=5)
    regions.break_way("us")
    assert (await regions.move(namespace, at_once=True)).problems == []
    done = await regions.mirror(namespace)
    assert len(done.copied) == 2
    assert len([text for text in done.problems if "region us" in text]) == 1
    assert (await regions.read("us"))[0] == regions.written
    async with await namespace.open_log("log") as log:
        await log.truncate(DLSN(3, 0, 0))
    regions.clock.ahead_ms += 5 * DAY_MS
    gone = await regions.move(namespace)
    assert (gone.problems, len(gone.cold_deleted), len(gone.copies_left)) == ([], 2, 2)
    assert all("out of reach since" in text for text in gone.copies_left)
    assert await regions.files("asia") == await regions.files("eu")
    swept = await regions.sweep(namespace)
    assert (swept.objects, len(swept.unreached)) == ([], 1)
    regions.mend_ways()
    assert len((await regions.sweep(namespace)).objects) == 2
    done = await regions.mirror(namespace)
    assert (done.problems, len(done.copied)) == ([], 2)
    await regions.check_level()
    for region in REGIONS:
        assert (await regions.read(region))[0] == regions.written[6:]


async def test_an_erased_record_is_in_no_mirror_once_they_could_be_asked(regions):
    namespace = await filled(regions)
    former = (await regions.units(namespace))[1].file.url.rpartition("/")[2]
    regions.break_way("us")
    left = await regions.erase(namespace, ErasureRequest(dlsns=(DLSN(2, 1, 0),)))
    assert len(left) == 1
    assert "region us" in left[0]
    assert former in await regions.files("us")
    assert former not in await regions.files("asia")
    assert len(await regions.erase(namespace)) == 1, "run again while it is away"
    regions.mend_ways()
    assert await regions.erase(namespace) == []
    assert former not in await regions.files("us")
    regions.clock.ahead_ms += (REPLACED_LAG_S + 60) * 1000
    done = await regions.move(namespace)
    assert (done.problems, len(done.replaced_deleted)) == ([], 1)
    assert (await regions.mirror(namespace)).problems == []
    await regions.check_level()
    for region in REGIONS:
        found = (await regions.read(region))[0]
        assert SECRET not in found
        assert len(found) == len(regions.written)


async def test_a_mirror_is_given_up_without_being_asked_and_keeps_what_it_has(regions):
    await filled(regions)
    before = await regions.files("us")
    fewer = await regions.namespace(mirrors=("asia",))
    regions.break_way("us")
    cold = ColdStore(fewer.services.logs)
    (folder,) = await forget_mirror(fewer.services, cold, "log", fewer.settings, "us")
    about = await cold.cold_log("log")
    assert [one.region for one in about.value.mirrors] == ["asia"]
    assert await regions.files("us") == before
    assert all(
        url.startswith(folder)
        for url in await names(regions.direct, f"{regions.roots['us']}/")
        if not is_owner_mark(url)
    )
    assert await regions.read("us") == (regions.written, 0, 0), "it is not asked any more"
    async with await fewer.open_log("log") as log:
        await log.truncate(DLSN(3, 0, 0))
    regions.clock.ahead_ms += 5 * DAY_MS
    done = await regions.move(fewer)
    assert (done.problems, done.copies_left, len(done.cold_deleted)) == ([], [], 2)
