"""Mirrors: filled with the very bytes, cleared with the files, and never a reason to lose or to keep anything."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from functools import partial

import pytest
import pytest_asyncio
from helpers.cold.mirrored_world import ASIA, DAY_MS, MIRRORS, US, MirroredWorld, moved, no_pause, truncated
from helpers.cold.moving_world import ROOT
from helpers.cold.places import put
from helpers.waiting import until

from dlspark.cli.cold_mirrors import _lines
from dlspark.cold.moving import daemon
from dlspark.cold.moving.log_mover import REPLACED_LAG_S
from dlspark.cold.moving.mirroring import LogMirrors, clear_replaced, forget_mirror
from dlspark.cold.moving.owning import is_owner_mark
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import StoreUnavailableError
from dlspark.objects.memory_faults import ObjectFault, ObjectFaults
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError
from metadata.foundation.tasks import end_tasks
from metadata.store import SetData


@pytest_asyncio.fixture
async def world():
    made = MirroredWorld()
    await made.start()
    yield made
    await made.stop()


def erasure(world, namespace):
    stores = MoverStores(world.open_store)
    world._movers.append(stores)
    clear = partial(clear_replaced, namespace.services, ColdStore(namespace.services.logs), stores, "log")
    return LogErasure(namespace.services, namespace.settings, "log", opener=world.open_store, clear_copies=clear)


async def noted(namespace):
    about = await ColdStore(namespace.services.logs).cold_log("log")
    return [(one.region, one.root) for one in about.value.mirrors]


async def test_mirrors_get_what_they_lack_and_a_second_run_does_nothing(world):
    namespace, _ = await moved(world)
    assert len(world.own()) == 4
    done = await world.mirror(namespace)
    assert (done.problems, len(done.copied), done.there, done.more) == ([], 8, 0, False)
    assert world.copies(US) == world.copies(ASIA) == world.own()
    assert await noted(namespace) == [("us", US), ("asia", ASIA)]
    again = await world.mirror(namespace)
    assert (again.problems, again.copied, again.there) == ([], [], 8)
    await world.write(namespace, "log", 1, first=5)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    assert len((await world.mirror(namespace)).copied) == 2
    assert world.copies(US) == world.copies(ASIA) == world.own()


async def test_a_log_names_its_mirrors_once_a_mover_was_there_and_its_readers_are_told(world):
    namespace, written = await moved(world)
    assert await noted(namespace) == [("us", US), ("asia", ASIA)]
    async with await namespace.open_log("log") as log:
        listed = await log.segments()
    assert [one.region for one in listed[0].cold.file.mirrors] == ["us", "asia"]
    await world.mirror(namespace)
    reader = await world.namespace(region="us")
    assert await world.read(reader, "log") == written
    assert reader.services.meter.root.cold_mirror_reads.value > 0
    # The files' own place is away: readers of any region read on, those that have not read before as well.
    world.away.add(ROOT)
    for region in ("asia", "eu"):
        other = await world.namespace(region=region)
        assert await world.read(other, "log") == written


async def test_a_file_that_is_damaged_is_copied_nowhere_and_the_others_are(world):
    namespace, _ = await moved(world)
    url = sorted(world.files)[1]
    data = bytearray(world.bucket.objects[url])
    data[len(data) // 2] ^= 1
    world.bucket.damage(url, bytes(data))
    done = await world.mirror(namespace)
    assert len(done.copied) == 6
    assert [one for one in done.problems if "SHA-256" in one]
    assert url.rpartition("/")[2] not in world.copies(US)
    assert world.buckets[US].open_uploads == []


async def test_a_copy_of_another_size_is_made_anew(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    copy = sorted(url for url in world.buckets[US].objects if not is_owner_mark(url))[2]
    world.buckets[US].damage(copy, b"short")
    done = await world.mirror(namespace)
    assert (done.mended, done.copied) == ([copy], [copy])
    assert world.copies(US) == world.own()


async def test_a_copy_is_not_replaced_where_it_may_be_the_very_file_by_another_name(world):
    """The file was cut short, and the mirror is its own place under another address: what is left of it stays."""
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    copy = sorted(url for url in world.buckets[US].objects if not is_owner_mark(url))[2]
    for bucket, url in ((world.buckets[US], copy), (world.bucket, copy.replace(US, ROOT))):
        bucket.damage(url, bucket.objects[url][:100])
    done = await world.mirror(namespace)
    assert (done.mended, done.copied) == ([], [])
    assert [one for one in done.problems if "left alone" in one]
    assert len(world.buckets[US].objects[copy]) == 100
    world.bucket.remove(copy.replace(US, ROOT))
    assert (await world.mirror(namespace)).mended == []
    assert len(world.buckets[US].objects[copy]) == 100


async def adopted(world, namespace):
    """A log that has the moved one's files for its own, as `restore --adopt` leaves it: they keep their names."""
    cold, logs = ColdStore(namespace.services.logs), namespace.services.logs
    paths = await logs.located("log")
    about = await cold.cold_log("log")
    own = replace(about.value, log_id="e" * 32)
    await logs.store.multi([SetData(paths.cold, own.encode(), about.version)])
    return about.value.log_id


async def test_copies_of_adopted_files_are_found_again_and_swept(world):
    """They go by the ids of the log that made them, and this one has others."""
    namespace, _ = await moved(world)
    first = await adopted(world, namespace)
    assert len((await world.mirror(namespace)).copied) == 8
    assert all(f"/{first}/" in url for url in world.buckets[US].objects if not is_owner_mark(url))
    again = await world.mirror(namespace)
    assert (again.copied, again.there) == ([], 8)
    world.away.add(US)
    assert len((await truncated(world, namespace)).copies_left) == 2
    world.away.clear()
    assert len((await world.sweep_old(namespace)).objects) == 2
    assert world.copies(US) == world.own()
    cold, stores = ColdStore(namespace.services.logs), MoverStores(world.open_store)
    await namespace.delete_log("log")
    (note,) = await cold.deleted_logs()
    assert {url.split("/")[2] for url, _ in note.value.folders if first in url} == {
        url.split("/")[2] for url in (ROOT, US, ASIA)
    }
    world.clock.moment_ms += DAY_MS
    await sweep_deleted_log(namespace.services, cold, stores, note)
    assert (world.own(), world.copies(US), world.copies(ASIA)) == ({}, {}, {})
    await stores.close()


async def test_a_mirror_that_is_away_keeps_no_other_from_being_filled(world):
    namespace, _ = await moved(world)
    world.away.add(US)
    done = await world.mirror(namespace)
    assert [one for one in done.problems if "region us" in one]
    assert world.copies(ASIA) == world.own()
    world.away.clear()
    assert (await world.mirror(namespace)).problems == []
    assert world.copies(US) == world.own()


async def test_files_that_are_gone_are_one_failure_of_their_log_with_their_number(world, caplog):
    namespace, _ = await moved(world)
    gone = {url: world.bucket.objects[url] for url in world.files}
    for url in gone:
        world.bucket.remove(url)
    done = await world.mirror(namespace)
    assert (len(done.problems), done.lacking) == (4, 8)
    assert done.failure == f"8 copies are lacking: {done.problems[0]} (and 3 failures more)"
    assert caplog.records == [], "who has it run says what failed: not each file twice"
    (line,) = _lines("log", done)
    assert line == f"log: 0 copies made (0 B), 0 were there; {done.failure}"
    for url, data in gone.items():
        await put(world.open_store(ROOT), url, data)
    again = await world.mirror(namespace)
    assert (again.failure, again.lacking, len(again.copied)) == (None, 0, 8)


POINTS = ("cold.mirrors-noted", "cold.mirror-before-commit", "cold.mirror-copied")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [0, 3])
async def test_a_copier_that_ends_anywhere_is_gone_on_with(world, monkeypatch, tmp_path, point, after):
    namespace, written = await moved(world)
    flag = tmp_path / "struck"
    script = {point: {"do": "raise", "flag": str(flag), "after": after}}
    monkeypatch.setenv(fault_points.VARIABLE, json.dumps(script))
    if point != POINTS[0] or not after:
        with pytest.raises(RuntimeError):
            await world.mirror(namespace)
        assert flag.exists()
    monkeypatch.delenv(fault_points.VARIABLE)
    # What is there is right, whatever is missing.
    assert world.copies(US).items() <= world.own().items()
    assert await world.read(await world.namespace(region="us"), "log") == written
    assert (await world.mirror(namespace)).problems == []
    assert world.copies(US) == world.copies(ASIA) == world.own()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_stores_answer_copies_are_right_or_missing(world, seed):
    namespace, written = await moved(world)
    for bucket in world.buckets.values():
        bucket.faults = ObjectFaults(
            random.Random(seed), {one: 0.04 for one in ObjectFault if one is not ObjectFault.TORN}
        )
    for _ in range(3):
        await world.mirror(namespace)
    for bucket in world.buckets.values():
        bucket.faults.stop()
        bucket.settle()
    assert world.copies(US).items() <= world.own().items()
    assert (await world.mirror(namespace)).problems == []
    assert world.copies(US) == world.copies(ASIA) == world.own()
    assert await world.read(await world.namespace(region="asia"), "log") == written


async def test_files_that_go_by_retention_go_in_mirrors_and_what_is_left_there_is_swept(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    world.away.add(US)
    done = await truncated(world, namespace)
    assert len(done.cold_deleted) == 2
    assert len(done.copies_left) == 2
    assert all("region us" in one for one in done.copies_left)
    assert set(world.copies(ASIA)) == set(world.own())
    assert len(world.own()) == 2
    assert len(world.copies(US)) == 4
    swept = await world.sweep_old(namespace)
    assert (swept.objects, len(swept.unreached)) == ([], 1)
    world.away.clear()
    swept = await world.sweep_old(namespace)
    assert len(swept.objects) == 2
    assert world.copies(US) == world.copies(ASIA) == world.own()


async def test_the_sweep_of_a_mirror_spares_what_may_be_the_only_copy_and_what_is_young(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    folder = next(url for url in world.buckets[US].objects if not is_owner_mark(url)).rpartition("/")[0]
    (unit, *_) = await world.units(namespace, "log")
    store = world.open_store(US)
    dead = f"{folder}/{unit.name}-0123.parquet"  # a try of a segment that another file has
    only = f"{folder}/{9:018d}-{9:018d}-0123.parquet"  # of a segment that nothing else has
    for url in (dead, only):
        await put(store, url, b"x")
    stores = MoverStores(world.open_store)
    young = await sweep_log(namespace.services, ColdStore(namespace.services.logs), stores, "log", namespace.settings)
    await stores.close()
    assert young.objects == []
    swept = await world.sweep_old(namespace)
    assert (swept.objects, swept.kept) == ([dead], [only])


async def test_files_of_a_deleted_log_go_in_mirrors_and_the_note_stays_until_they_have(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    await namespace.delete_log("log")
    cold = ColdStore(namespace.services.logs)
    (note,) = await cold.deleted_logs()
    world.away.add(ASIA)
    stores = world.stores()
    world.clock.moment_ms += DAY_MS
    with pytest.raises(StoreUnavailableError):
        await sweep_deleted_log(namespace.services, cold, stores, note)
    assert (world.own(), world.copies(US)) == ({}, {})
    assert len(world.copies(ASIA)) == 4
    world.away.clear()
    world.clock.moment_ms += 60_000
    assert (await sweep_deleted_log(namespace.services, cold, stores, note)).logs == []
    assert world.copies(ASIA) == {}
    assert (await sweep_deleted_log(namespace.services, cold, stores, note)).logs == ["log"]
    await stores.close()


async def test_an_erased_record_is_in_no_mirror_or_it_is_said_in_which(world):
    namespace, written = await moved(world)
    await world.mirror(namespace)
    secret = written[4]  # the second record of the second segment
    name = next(unit.file.url for unit in await world.units(namespace, "log") if unit.first == 2).rpartition("/")[2]
    world.away.add(US)
    request = ErasureRequest(dlsns=(DLSN(2, 1, 0),))
    one = erasure(world, namespace)
    report = await one.run(await one.plan(request))
    assert report.records == 1
    assert len(report.copies_left) == 1
    assert "region us" in report.copies_left[0]
    assert name in world.copies(US)
    assert name not in world.copies(ASIA)
    assert set(world.copies(ASIA)) < set(world.own())
    # Nobody forgets it while the mirror is away: neither the command nor a mover, for which its time has come.
    assert len(await erasure(world, namespace).clear_mirrors()) == 1
    world.clock.moment_ms += (REPLACED_LAG_S + 60) * 1000
    done = await world.mover(namespace, "log").run()
    assert [text for text in done.problems if "region us" in text]
    assert done.replaced_deleted == []
    assert len(await erasure(world, namespace).clear_mirrors()) == 1
    # A run of the mirrors does not bring it back, and makes copies of the new file alone.
    await world.mirror(namespace)
    assert name not in world.copies(ASIA)
    world.away.clear()
    assert await erasure(world, namespace).clear_mirrors() == []
    assert name not in world.copies(US)
    done = world.right(await world.mover(namespace, "log").run())
    assert len(done.replaced_deleted) == 1
    assert (await world.mirror(namespace)).problems == []
    assert world.copies(US) == world.copies(ASIA) == world.own()
    for region in ("us", "asia", "eu"):
        found = await world.read(await world.namespace(region=region), "log")
        assert secret not in found
        assert len(found) == len(written)


async def test_a_copy_that_ends_after_its_file_was_replaced_is_taken_away(world, monkeypatch):
    """A copier whose lock has gone, and who does not know, while an erasure swaps the file and clears the mirrors."""
    namespace, _ = await moved(world)
    cold = ColdStore(namespace.services.logs)
    stores = MoverStores(world.open_store)
    mirrors = LogMirrors(namespace.services, cold, stores, "log", no_pause)
    taken: list[str] = []
    reach = fault_points.reach

    def erase_now(point):
        if point == "cold.mirror-copied" and not taken:
            taken.append(point)
            raise_in.append(True)
        reach(point)

    raise_in: list[bool] = []
    monkeypatch.setattr(fault_points, "reach", erase_now)
    unit_of = cold.unit

    async def unit(name, first, last):
        if raise_in:
            raise_in.clear()
            found = await unit_of(name, first, last)
            one = erasure(world, namespace)
            one._cold.worker = _no_lock  # the copier's lock is gone
            await one.run(await one.plan(ErasureRequest(dlsns=(DLSN(found.value.first, 1, 0),))))
            taken.append(found.value.file.url.rpartition("/")[2])
        return await unit_of(name, first, last)

    monkeypatch.setattr(cold, "unit", unit)
    await mirrors.run(namespace.settings)
    await stores.close()
    assert len(taken) == 2
    assert taken[1] not in world.copies(US)
    assert taken[1] not in world.copies(ASIA)


class _NoLock:
    async def acquire(self, _timeout_ms):
        """Hold nothing."""

    async def release(self):
        """Hold nothing."""


async def _no_lock(_name, _client_id):
    return _NoLock()


async def test_a_mirror_that_settings_name_no_more_is_forgotten_on_demand_and_nothing_is_deleted(world):
    namespace, written = await moved(world)
    await world.mirror(namespace)
    cold = ColdStore(namespace.services.logs)
    with pytest.raises(CallerError, match="no former mirror") as caught:
        await forget_mirror(namespace.services, cold, "log", namespace.settings, "us")
    assert "take it out there first" in caught.value.advice
    fewer = await world.namespace(cold_mirror_places=f"asia={ASIA}", cold_hot_retention_s=0)
    world.right(await world.mover(fewer, "log").run())
    assert await noted(fewer) == [("asia", ASIA), ("us", US)], "copies are there, so it stays noted"
    before = world.copies(US)
    world.away.add(US)  # it is gone for good
    (folder,) = await forget_mirror(fewer.services, cold, "log", fewer.settings, "us")
    assert all(url.startswith(folder) for url in world.buckets[US].objects if not is_owner_mark(url))
    assert (world.copies(US), await noted(fewer)) == (before, [("asia", ASIA)])
    assert await world.read(await world.namespace(region="us"), "log") == written
    assert (await truncated(world, fewer)).copies_left == [], "it holds up nothing any more"


async def test_a_mirror_is_forgotten_by_nobody_before_its_first_file_where_it_is_the_place_by_now(world):
    """The files' own place is lost, and settings name the mirror instead: its copies are all there is."""
    namespace, written = await moved(world)
    await world.mirror(namespace)
    there = await world.namespace(cold_path=US, cold_mirror_places=f"asia={ASIA}", cold_hot_retention_s=0)
    world.away.add(ROOT)
    cold, before = ColdStore(there.services.logs), world.copies(US)
    with pytest.raises(CallerError, match="nothing was done"):
        await forget_mirror(there.services, cold, "log", there.settings, "us")
    assert world.copies(US) == before
    assert await world.read(await world.namespace(region="us"), "log") == written


async def test_a_mirror_that_became_the_place_for_files_is_never_forgotten(world):
    """The region of the files is given up: new ones go where the mirror was."""
    namespace, written = await moved(world)
    await world.mirror(namespace)
    there = await world.namespace(
        cold_path=US, cold_mirror_places=f"asia={ASIA}", cold_hot_retention_s=0, cold_target_bytes=1
    )
    more = await world.write(there, "log", 2, first=5)
    world.right(await world.mover(there, "log").run(at_once=True))
    assert (await world.mirror(there)).problems == []
    assert set(world.copies(ASIA)) == set(world.own()) | {
        unit.file.url.rpartition("/")[2] for unit in await world.units(there, "log")
    }
    with pytest.raises(CallerError, match="is a place for its files"):
        await forget_mirror(there.services, ColdStore(there.services.logs), "log", there.settings, "us")
    assert (await world.sweep_old(there)).objects == []
    assert await world.read(await world.namespace(region="asia"), "log") == written + more


async def test_a_copy_of_the_namespace_neither_fills_nor_clears_mirrors(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    for url in [one for one in world.buckets[US].objects if is_owner_mark(one)]:
        folder, _, name = url.rpartition("/")
        world.buckets[US].remove(url)
        await put(world.open_store(US), f"{folder}/{name.split('-')[0]}-abc-def", b"another ZooKeeper's")
    await world.write(namespace, "log", 1, first=5)
    world.right(await world.mover(namespace, "log").run(at_once=True))
    done = await world.mirror(namespace)
    assert [one for one in done.problems if "region us" in one and "another ZooKeeper" in one]
    assert len(world.copies(US)) == 4
    done = await truncated(world, namespace)
    assert len(done.copies_left) == 2
    swept = await world.sweep_old(namespace)
    assert [one for one in swept.foreign if one.startswith(US)]
    assert len(world.copies(US)) == 4


async def test_turns_are_short_and_what_is_left_is_said(world, monkeypatch):
    monkeypatch.setattr("dlspark.cold.moving.mirroring.TURN_S", 0.0)
    namespace, _ = await moved(world)
    done = await world.mirror(namespace, turns=3)
    assert (len(done.copied), done.more) == (3, True)
    newest = max(world.own())
    assert newest in world.copies(US)
    done = await world.mirror(namespace)
    assert (len(done.copied), done.there, done.more) == (5, 3, False)


async def test_a_daemon_fills_mirrors_beside_its_moving(world, monkeypatch, caplog):
    for name, seconds in (("LOOK_S", 0.1), ("LOGS_S", 0.05), ("MIRRORS_S", 0.1), ("PAUSE_S", 0.0)):
        monkeypatch.setattr(daemon, name, seconds)
    monkeypatch.setattr("dlspark.cold.moving.mirroring.TURN_S", 0.0)
    namespace = await world.namespace(cold_mirror_places=MIRRORS, cold_target_bytes=1, cold_max_delay_s=1)
    await world.write(namespace, "log", 2)
    world.clock.moment_ms += 60_000
    moving = daemon.MoverDaemon(namespace, stores=world.stores(), rng=random.Random(1))
    running = asyncio.get_running_loop().create_task(moving.run())
    try:
        await until(lambda: len(world.copies(US)) == 2, "copies in us", every_s=0.02)
        world.away.add(US)  # it keeps neither the moving nor the other mirror up
        await world.write(namespace, "log", 2, first=3)
        world.clock.moment_ms += 60_000
        await until(lambda: len(world.copies(ASIA)) == 4, "copies in asia", every_s=0.02)
        assert len(world.own()) == 4
        await until(lambda: "lacking: the mirror of region us" in caplog.text, "a warning", every_s=0.02)
        world.away.clear()
        world.clock.moment_ms += 60_000
        await until(lambda: world.copies(US) == world.own(), "copies in us again", every_s=0.02)
    finally:
        await end_tasks([running])


async def test_a_daemon_says_once_what_keeps_mirrors_from_being_filled(world, caplog):
    namespace, _ = await moved(world)
    moving = daemon.MoverDaemon(namespace, stores=world.stores())
    moving._mirrored.add("log")
    world.away.add(US)
    for _ in range(5):
        await moving.mirror()
        world.clock.moment_ms += 40_000
    assert world.missed[US] == 3
    place, said = [one.getMessage() for one in caplog.records]
    assert place.startswith(f"{US} is out of reach since ")
    assert said.startswith("log log: ")
    assert "region us" in said


async def test_an_erasure_clears_mirrors_that_settings_name_and_nobody_has_noted_yet(world):
    """A store fills them by itself, and no mover has passed since they were set."""
    namespace, _ = await moved(world, cold_mirror_places="")
    with_mirrors = await world.namespace(cold_mirror_places=MIRRORS, cold_hot_retention_s=0)
    for url in world.files:
        await put(world.open_store(US), url.replace(ROOT, US), world.bucket.objects[url])
    assert await noted(namespace) == []
    name = next(unit.file.url for unit in await world.units(namespace, "log") if unit.first == 2).rpartition("/")[2]
    world.away.add(US)
    one = erasure(world, with_mirrors)
    report = await one.run(await one.plan(ErasureRequest(dlsns=(DLSN(2, 1, 0),))))
    assert len(report.copies_left) == 1
    world.away.clear()
    assert name in world.copies(US)
    assert await erasure(world, with_mirrors).clear_mirrors() == []
    assert name not in world.copies(US)


async def test_an_erasure_that_fails_half_way_clears_what_it_has_erased(world):
    namespace, _ = await moved(world)
    await world.mirror(namespace)
    before = {unit.first: unit.file.url for unit in await world.units(namespace, "log")}
    one = erasure(world, namespace)
    plan = await one.plan(ErasureRequest(dlsns=(DLSN(1, 1, 0), DLSN(2, 1, 0))))
    world.bucket.damage(before[2], b"x" * len(world.bucket.objects[before[2]]))
    with pytest.raises(DamagedColdFileError):
        await one.run(plan)
    first, second = (before[number].rpartition("/")[2] for number in (1, 2))
    assert first not in world.copies(US)
    assert second in world.copies(US)


async def test_a_log_without_mirrors_needs_no_turn_to_have_none_cleared(world):
    namespace, _ = await moved(world, cold_mirror_places="")
    other = await ColdStore(namespace.services.logs).worker("log", "a mover")
    await other.acquire(0)
    assert await erasure(world, namespace).clear_mirrors() == []
    await other.release()


async def test_an_erasure_that_cannot_clear_mirrors_tells_of_all_copies(world):
    namespace, _ = await moved(world)
    one = LogErasure(namespace.services, namespace.settings, "log", opener=world.open_store)
    report = await one.run(await one.plan(ErasureRequest(dlsns=(DLSN(2, 1, 0),))))
    assert [text.split("/")[2] for text in report.copies_left] == ["bucket-us", "bucket-asia"]
    assert await one.clear_mirrors() == report.copies_left
