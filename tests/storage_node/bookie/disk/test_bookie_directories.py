"""Space: which directory takes the next log, when a node is read-only, and when it is writable again."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import MIB, BookieCluster, entry, lists
from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.disk.resources import Disks
from storage_node.bookie.node.identity import was_read_only, write_status
from storage_node.errors import BookieFailedError
from storage_node.protocol.schema import Status

LEVELS = {"disk_usage_threshold": 0.8, "disk_usage_lwm_threshold": 0.6}


def disks_of(cluster: BookieCluster, disk: FaultyDisk, *, was_full: bool = False, **options: object) -> Disks:
    settings = cluster.settings(**{"min_usable_size_for_entry_log_creation": 50, **LEVELS, **options})
    return Disks(settings, disk, journals=["/j"], ledgers=["/l0", "/l1", "/l2"], was_full=was_full)


def chosen(disks: Disks, count: int) -> list[str]:
    return [disks.choose() for _ in range(count)]


def logs_in(directory: str) -> list[Path]:
    return list(Path(directory, "current").glob("*.log"))


# ------------------------------------------------------------------------------------------- choosing


def test_equal_disks_take_turns_and_unequal_ones_get_their_share(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    disks = disks_of(cluster, disk)
    disks.look()
    assert sorted(chosen(disks, 3)) == ["/l0", "/l1", "/l2"]
    disk.usages = {"/l0": (1, 1000, 600), "/l1": (2, 1000, 300), "/l2": (3, 1000, 300)}
    disks.look()
    counts = [chosen(disks, 40).count(name) for name in ("/l0", "/l1", "/l2")]
    assert counts[0] in (19, 20, 21)
    assert abs(counts[1] - counts[2]) <= 1


def test_a_full_directory_takes_no_new_log_until_it_is_below_the_low_water_mark(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    disks = disks_of(cluster, disk, read_only_mode_on_any_disk_full_enabled=False)
    for free, full in ((500, False), (199, True), (300, True), (400, False), (300, False), (199, True)):
        disk.usages = {"/l1": (2, 1000, free)}
        disks.look()
        assert ("/l1" not in chosen(disks, 6)) is full, free
        assert disks.full_ledger_directories == (["/l1"] if full else [])
        assert not disks.full, "the others have room"
    disk.usages = {"/l": (2, 1000, 100)}
    disks.look()
    assert disks.full
    assert sorted(chosen(disks, 3)) == ["/l0", "/l1", "/l2"], "what recovery writes must go somewhere"


def test_any_full_directory_counts_where_that_is_wished_and_a_full_journal_always(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    disk.usages = {"/l2": (2, 1000, 100)}
    disks = disks_of(cluster, disk)
    disks.look()
    assert disks.full
    for anyone in (True, False):
        disk.usages = {"/j": (2, 1000, 10)}
        disks = disks_of(cluster, disk, read_only_mode_on_any_disk_full_enabled=anyone)
        disks.look()
        assert disks.full


def test_free_bytes_count_whatever_the_threshold_says_and_an_unreadable_disk_is_full(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    disk.usages = {"/l0": (1, 100, 49)}
    disks = disks_of(cluster, disk)
    disks.look()
    assert disks.full_ledger_directories == ["/l0"]

    def fails(path: str) -> tuple[int, int, int]:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(disk, "usage", fails)
    disks.look()
    assert disks.full


def test_a_filling_disk_is_warned_of_once(cluster: BookieCluster, caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    disks = disks_of(cluster, disk, disk_usage_warn_threshold=0.7)
    disk.usages = {"/l0": (1, 1000, 250)}
    with caplog.at_level(logging.WARNING):
        disks.look()
        disks.look()
    assert sum("fills up" in record.message for record in caplog.records) == 1


def test_high_priority_writes_need_their_own_reserve(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    disks = disks_of(cluster, disk, min_usable_size_for_high_priority_writes=30)
    for free, takes in ((40, True), (30, False)):
        disk.usages = {"/l": (1, 1000, free)}
        disks.look()
        assert disks.full
        assert disks.takes_high_priority is takes
    disks = disks_of(cluster, disk)
    disk.usages = {"/l": (1, 1000, 40)}
    disks.look()
    assert not disks.takes_high_priority, "unset: the reserve for entry logs"


def test_capacity_counts_each_disk_once(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    disk.usages = {"/l0": (1, 1000, 500), "/l1": (1, 1000, 500), "/l2": (2, 300, 100)}
    disks = disks_of(cluster, disk)
    disks.look()
    assert disks.capacity() == (1300, 600)


# ------------------------------------------------------------------------------------------- the node


async def test_logs_move_to_a_directory_with_room_and_the_node_stays_writable(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    names = tuple(str(cluster.tmp_path / "a" / name) for name in ("l0", "l1"))
    options = {
        "ledger_directories": names,
        "disk_usage_threshold": 0.9,
        "read_only_mode_on_any_disk_full_enabled": False,
    }
    bookie = await cluster.start(disk=disk, **options)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    await bookie.storage.checkpoint()
    first = next(name for name in names if logs_in(name))
    (second,) = set(names) - {first}
    disk.usages = {first: (1, 1000, 50)}
    await bookie.check_disks()
    assert not bookie.read_only
    for number in range(1, 13):
        assert await client.add(entry(5, number, bytes(MIB))) == Status.EOK
    await bookie.storage.checkpoint()
    assert len(logs_in(first)) == 1
    assert logs_in(second)
    disk.usages = {"/l0": (1, 1000, 50), "/l1": (1, 1000, 50)}
    await bookie.check_disks()
    assert bookie.read_only
    for number in range(13):
        assert (await client.read(5, number)).status == Status.EOK


async def test_read_only_is_announced_in_the_order_that_leaves_the_node_listed(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, disk_usage_threshold=0.9)
    seen: list[tuple[list[str], list[str]]] = []
    store = MemoryStore(cluster.tree)
    registry = BookieRegistry(store)
    changed = asyncio.Event()
    registry.watch(changed.set)
    await changed.wait()

    async def follow() -> None:
        while True:
            changed.clear()
            seen.append(await lists(cluster))
            await changed.wait()

    following = asyncio.ensure_future(follow())
    for full in (True, False):
        disk.full = full
        await bookie.check_disks()
        wanted = ([], ["a"]) if full else (["a"], [])
        await until(lambda wanted=wanted: seen[-1:] == [wanted], every_s=0)
    following.cancel()
    await store.close()
    assert ([], []) not in seen, "a node that only changes its mode is never gone"


async def test_a_node_forced_read_only_takes_nothing_though_there_is_room(cluster: BookieCluster) -> None:
    bookie = await cluster.start(force_read_only_bookie=True, read_only_mode_enabled=False)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EREADONLY
    assert await lists(cluster) == ([], ["a"])
    await bookie.check_disks()
    assert await client.add(entry(5, 0), recovery=True, priority=100) == Status.EOK
    assert await lists(cluster) == ([], ["a"])


async def test_without_read_only_mode_a_full_disk_stops_the_node_in_good_order(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    options = {"read_only_mode_enabled": False, "disk_usage_threshold": 0.9}
    bookie = await cluster.start(disk=disk, **options)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    disk.full = True
    await bookie.check_disks()
    await asyncio.wait_for(bookie.failed.wait(), 60)
    assert isinstance(bookie.failure, BookieFailedError)
    assert "readOnlyModeEnabled" in str(bookie.failure)
    await cluster.stop(bookie)
    assert await lists(cluster) == ([], [])
    with pytest.raises(BookieFailedError, match="readOnlyModeEnabled"):
        await cluster.start(disk=disk, **options)
    disk.full = False
    client = await cluster.connect(await cluster.start(disk=disk, **options))
    assert (await client.read(5, 0)).status == Status.EOK


@pytest.mark.parametrize("persist", [True, False])
async def test_whether_it_was_read_only_is_remembered_on_request(cluster: BookieCluster, persist: bool) -> None:
    disk = FaultyDisk()
    options = {"persist_bookie_status_enabled": persist, "disk_usage_threshold": 0.9, "disk_usage_lwm_threshold": 0.5}
    bookie = await cluster.start(disk=disk, **options)
    disk.full = True
    await bookie.check_disks()
    await cluster.stop(bookie)
    disk.full, disk.usages = False, {"/": (1, 1000, 300)}
    bookie = await cluster.start(disk=disk, **options)
    assert bookie.read_only is persist, "between the marks it stays what it was, if it knows"
    disk.usages = {"/": (1, 1000, 600)}
    await bookie.check_disks()
    assert not bookie.read_only
    await cluster.stop(bookie)
    disk.usages = {"/": (1, 1000, 300)}
    assert not (await cluster.start(disk=disk, **options)).read_only


def test_the_newest_status_file_counts_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    disk = FaultyDisk()
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place in places:
        place.mkdir()
    names = [str(place) for place in places]
    assert not was_read_only(disk, names)
    write_status(disk, names[:2], read_only=True, now_ms=5)
    assert (places[0] / "BOOKIE_STATUS").read_text() == "1,READ_ONLY,5\n"
    write_status(disk, names[1:2], read_only=False, now_ms=4)
    assert was_read_only(disk, names)
    write_status(disk, names[1:2], read_only=False, now_ms=6)
    (places[2] / "BOOKIE_STATUS").write_text("nonsense")
    assert not was_read_only(disk, names)


# ------------------------------------------------------------------------------------------- no space left


async def test_a_journal_that_cannot_grow_makes_the_node_read_only_and_writable_again(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, journal_pre_alloc_size_mb=2)
    (journal,) = bookie.storage.journal.journals
    prepared = journal._file.file

    def no_longer(offset: int, buffers: list[bytes], write: object = prepared.write_at) -> None:
        if offset >= 2 * MIB:
            raise OSError(errno.ENOSPC, "no space left")
        write(offset, buffers)  # type: ignore[operator]

    prepared.write_at = no_longer  # type: ignore[method-assign, assignment]
    client = await cluster.connect(bookie)
    count = 0
    while (status := await client.add(entry(5, count, bytes(60_000)))) == Status.EOK:
        count += 1
        assert count < 100
        await until(lambda: journal._preparing is None, every_s=0)
    assert status == Status.EREADONLY
    assert count > 10, "what was prepared took them"
    assert bookie.storage.journal.full
    await bookie.check_disks()
    assert bookie.storage.journal.full, "it was tried again, and there is still no space"
    assert await lists(cluster) == ([], ["a"])
    assert (await client.fence(6)).status == Status.ENOENTRY, "what is prepared still takes a fence"
    assert await client.add(entry(5, count), recovery=True, priority=100) == Status.EREADONLY
    del prepared.write_at
    await bookie.check_disks()
    assert await lists(cluster) == (["a"], [])
    for number in range(count, count + 60):
        assert await client.add(entry(5, number, bytes(60_000))) == Status.EOK
    assert bookie.failure is None
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    for number in range(count + 60):
        assert (await client.read(5, number)).status == Status.EOK
    assert await client.add(entry(6, 0)) == Status.EFENCED


async def test_records_that_wait_for_space_are_answered_when_there_is_some(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, journal_pre_alloc_size_mb=1)
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    disk.errors = {("write", "/journal-"): errno.ENOSPC}
    (journal,) = bookie.storage.journal.journals
    written = journal._file.file
    inner = written.write_at
    limit = journal._file.prepared

    def only_prepared(offset: int, buffers: list[bytes]) -> None:
        if offset >= limit:
            raise OSError(errno.ENOSPC, "no space left")
        disk.errors.clear()
        inner(offset, buffers)

    written.write_at = only_prepared  # type: ignore[method-assign, assignment]
    adds = [client.send_add(entry(5, number, bytes(200_000))) for number in range(1, 12)]
    await until(lambda: bookie.storage.journal.stalled, every_s=0)
    assert bookie.read_only
    assert not all(add.done() for add in adds)
    await bookie.storage.checkpoint()
    assert bookie.storage.checkpoints.error is None, "a checkpoint does not wait for the journal's space"
    del written.write_at
    await bookie.check_disks()
    answers = await asyncio.gather(*adds)
    assert {answer.status for answer in answers} <= {Status.EOK, Status.EREADONLY}
    assert not bookie.read_only
    stored = [a.entry_id for a in answers if a.status == Status.EOK]  # type: ignore[attr-defined]
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    for number in stored:
        assert (await client.read(5, number)).status == Status.EOK


async def test_a_node_stopped_while_records_wait_for_space_loses_only_what_it_never_acknowledged(
    cluster: BookieCluster,
) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, journal_pre_alloc_size_mb=1)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    (journal,) = bookie.storage.journal.journals
    written, limit = journal._file.file, journal._file.prepared
    inner = written.write_at

    def only_prepared(offset: int, buffers: list[bytes]) -> None:
        if offset >= limit:
            raise OSError(errno.ENOSPC, "no space left")
        inner(offset, buffers)

    written.write_at = only_prepared  # type: ignore[method-assign, assignment]
    adds = [client.send_add(entry(5, number, bytes(200_000))) for number in range(1, 12)]
    await until(lambda: bookie.storage.journal.stalled, every_s=0)
    await asyncio.wait_for(cluster.stop(bookie), 60)
    answers = await asyncio.gather(*adds, return_exceptions=True)
    acknowledged = [
        index + 1
        for index, answer in enumerate(answers)
        if not isinstance(answer, BaseException) and answer.status == Status.EOK
    ]
    client = await cluster.connect(await cluster.start())
    for number in (0, *acknowledged):
        assert (await client.read(5, number)).status == Status.EOK


async def test_a_write_of_a_batch_that_finds_no_space_stops_the_node_all_the_same(cluster: BookieCluster) -> None:
    """A file system that needs space to write again what was written (copy on write): half of a batch may be there."""
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    disk.errors[("write", "/journal-")] = errno.ENOSPC
    doomed = client.send_add(entry(5, 1))
    await asyncio.wait_for(bookie.failed.wait(), 60)
    assert isinstance((await asyncio.gather(doomed, return_exceptions=True))[0], ConnectionError)


@pytest.mark.parametrize("part", [".log", ".idx", "checkpoint"])
async def test_entry_logs_without_space_wait_read_only_and_go_on(cluster: BookieCluster, part: str) -> None:
    """Whichever file meets the full disk: nothing is lost, and the checkpoint that was stopped is finished."""

    class NoRoom(FaultyDisk):
        def write_file(self, path: str, data: bytes) -> None:
            self.before("write", path)
            super().write_file(path, data)

    disk = NoRoom()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    for number in range(3):
        assert await client.add(entry(5, number, bytes(50_000))) == Status.EOK
    disk.errors[("write", f"/ledgers/current/{'' if part == 'checkpoint' else '0000000000000001'}{part}")] = (
        errno.ENOSPC
    )
    checkpoint = asyncio.ensure_future(bookie.storage.checkpoint())
    await until(lambda: bookie.storage.full, every_s=0)
    assert await client.add(entry(5, 3)) == Status.EREADONLY
    assert await client.add(entry(5, 3), recovery=True, priority=100) == Status.EREADONLY
    for number in range(3):
        assert (await client.read(5, number)).status == Status.EOK
    assert (await client.fence(6)).status == Status.ENOENTRY
    await bookie.check_disks()
    await until(lambda: bookie.storage.full, every_s=0)
    assert not checkpoint.done()
    disk.errors.clear()
    await bookie.check_disks()
    await asyncio.wait_for(checkpoint, 60)
    assert bookie.storage.checkpoints.error is None
    await bookie.check_disks()
    assert await lists(cluster) == (["a"], [])
    assert await client.add(entry(5, 3)) == Status.EOK
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    for number in range(4):
        assert (await client.read(5, number)).status == Status.EOK
    assert await client.add(entry(6, 0)) == Status.EFENCED


async def test_a_node_stops_while_its_entry_logs_wait_for_space(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    disk.errors[("write", "0000000000000001.log")] = errno.ENOSPC
    checkpoint = asyncio.ensure_future(bookie.storage.checkpoint())
    await until(lambda: bookie.storage.full, every_s=0)
    await asyncio.wait_for(cluster.stop(bookie), 60)
    await checkpoint
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 0)).status == Status.EOK
