"""A node whose disk is full already when it starts: read-only if it can, or an error that says all there is to say."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.bookie.faulty_disk import FaultyDisk, ForwardingFile
from helpers.bookie.harness import MIB, BookieCluster, WireClient, entry, lists
from helpers.bookie.journal_files import batches, flip

from metadata.foundation.errors import DistributedLogError
from storage_node.bookie.disk.records import BLOCK
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.node.bookie import Bookie
from storage_node.edge import DiskFile
from storage_node.errors import JournalCorruptError, NoSpaceToStartError
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status

SPARE = f"spare-{0:016x}.log"


class SmallDisk(SystemDisk):
    """The real disk, where directories with a limit are file systems of so many bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, int] = {}

    def fill(self, directory: Path) -> None:
        """Leave no byte free."""
        self.limits[str(directory)] = self._used(str(directory))

    def need(self, path: str, more: int) -> None:
        for directory, limit in self.limits.items():
            if path.startswith(f"{directory}/") and self._used(directory) + more > limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @staticmethod
    def _used(directory: str) -> int:
        return sum(max(path.stat().st_size, 1) for path in Path(directory).rglob("*") if path.is_file())

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        if create and not Path(path).exists():
            self.need(path, 1)
        return SmallFile(super().open(path, create=create, direct=direct), self)

    def write_file(self, path: str, data: bytes) -> None:
        self.need(path, len(data))
        super().write_file(path, data)

    def usage(self, path: str) -> tuple[int, int, int]:
        for directory, limit in self.limits.items():
            if f"{path}/".startswith(f"{directory}/"):
                return 2, limit, max(limit - self._used(directory), 0)
        return super().usage(path)


class SmallFile(ForwardingFile):
    def __init__(self, inner: DiskFile, disk: SmallDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        end = offset + sum(memoryview(buffer).nbytes for buffer in buffers)
        self._disk.need(self.path, max(end - self.size(), 0))
        super().write_at(offset, buffers)


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk()


def ledgers(cluster: BookieCluster) -> Path:
    return cluster.tmp_path / "a" / "ledgers"


def only_journal_file(directory: str) -> Path:
    (path,) = Path(directory, "current").glob("journal-*.log")
    return path


async def started(cluster: BookieCluster, disk: SmallDisk, **options: object) -> tuple[Bookie, WireClient]:
    bookie = await cluster.start(disk=disk, **options)
    return bookie, await cluster.connect(bookie)


async def filled(cluster: BookieCluster, disk: SmallDisk, ending: str, size: int = 50_000, **options: object) -> None:
    """A node with ten entries and a fenced ledger ends; then its ledger directory is full."""
    bookie, client = await started(cluster, disk, **options)
    for number in range(10):
        assert await client.add(entry(5, number, bytes(size))) == Status.EOK
    await client.add(entry(4, 0))
    assert (await client.fence(4)).status == Status.EOK
    await (cluster.stop(bookie) if ending == "stopped" else cluster.kill(bookie))
    if ending == "killed":
        for stray in cluster.ledger_files(".log"):  # no checkpoint knows them: they would go, and make room
            stray.unlink()
    disk.fill(ledgers(cluster))


async def all_there(client: WireClient, size: int = 50_000) -> None:
    for number in range(10):
        assert bytes((await client.read(5, number)).body or b"") == entry(5, number, bytes(size))
    assert (await client.read(4, 0)).status == Status.EOK


@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize("again", ["stopped", "killed"])
async def test_a_node_on_a_full_disk_starts_read_only_and_is_writable_with_room(
    cluster: BookieCluster, disk: SmallDisk, ending: str, again: str
) -> None:
    """What is fenced meanwhile stays so over further starts without space, and after them."""
    await filled(cluster, disk, ending)
    for round_ in range(3):
        bookie, client = await started(cluster, disk)
        assert bookie.read_only
        assert await lists(cluster) == ([], ["a"])
        await all_there(client)
        assert await client.add(entry(5, 10)) == Status.EREADONLY
        assert await client.add(entry(5, 10), recovery=True, priority=100) == Status.EREADONLY
        assert (await client.fence(100 + round_)).status == Status.ENOENTRY
        await bookie.check_disks()
        assert bookie.read_only, "there is still no room"
        assert [bookie.storage.ledgers[100 + before].fenced for before in range(round_ + 1)] == [True] * (round_ + 1)
        if round_ < 2:
            await (cluster.stop(bookie) if again == "stopped" else cluster.kill(bookie))

    disk.limits.clear()
    await bookie.check_disks()
    await bookie.storage.checkpoint()
    await bookie.check_disks()
    assert not bookie.read_only
    assert await lists(cluster) == (["a"], [])
    assert bookie.storage.checkpoints.error is None
    assert await client.add(entry(5, 10)) == Status.EOK
    await cluster.kill(bookie)
    bookie, client = await started(cluster, disk)
    await all_there(client)
    assert (await client.read(5, 10)).status == Status.EOK
    for ledger in (4, 100, 101, 102):
        assert await client.add(entry(ledger, 7)) == Status.EFENCED


async def test_what_a_dead_node_had_written_twice_makes_room(cluster: BookieCluster, disk: SmallDisk) -> None:
    """Entry logs that no checkpoint knows only take space: their records are in the journal."""
    bookie, client = await started(cluster, disk)
    for number in range(10):
        assert await client.add(entry(5, number, bytes(50_000))) == Status.EOK
    await client.add(entry(4, 0))
    await bookie.storage._logs.flush_target()
    await cluster.kill(bookie)
    (stray,) = cluster.ledger_files(".log")
    disk.limits[str(ledgers(cluster))] = disk._used(str(ledgers(cluster))) + 20_000
    bookie, client = await started(cluster, disk)
    await all_there(client)
    assert not stray.exists()
    assert not bookie.storage.full
    assert await client.add(entry(5, 10)) == Status.EOK


async def test_logs_that_a_journal_names_stay_until_a_checkpoint_covers_them(
    cluster: BookieCluster, disk: SmallDisk
) -> None:
    """What was written once lies nowhere else: no want of space makes such a log a stray (I1)."""
    once: dict[str, object] = {"journal_write_once_from_bytes": 10_000, "journal_write_once_always": True}
    bookie, client = await started(cluster, disk, **once)
    await client.add(entry(4, 0))
    await bookie.storage._disk.submit("entries", lambda: None)
    for number in range(10):
        assert await client.add(entry(5, number, bytes(50_000))) == Status.EOK
    await cluster.kill(bookie)
    (log,) = cluster.ledger_files(".log")
    disk.limits[str(ledgers(cluster))] = disk._used(str(ledgers(cluster))) + 20_000
    for _ in range(2):
        bookie, client = await started(cluster, disk, **once)
        await all_there(client)
        assert bookie.read_only
        assert log.exists()
        await cluster.kill(bookie)
    disk.limits.clear()
    bookie, client = await started(cluster, disk, **once)
    await all_there(client)
    assert not log.exists(), "a checkpoint covers what was replayed from it"
    await cluster.kill(bookie)
    await all_there((await started(cluster, disk, **once))[1])


async def test_more_than_memory_holds_needs_room_and_the_error_says_how_much(
    cluster: BookieCluster, disk: SmallDisk
) -> None:
    size = 4 * MIB
    await filled(cluster, disk, "killed", size, journal_max_size_mb=64, skip_list_size_limit=128 * MIB)
    journal = [path.read_bytes() for path in cluster.journal()]
    with pytest.raises(NoSpaceToStartError) as raised:
        await cluster.start(disk=disk, skip_list_size_limit=32 * MIB)
    error = raised.value
    assert error.path == str(ledgers(cluster))
    needed = re.search(r"(\d+) bytes have to be written, and the disk is full; 0 bytes are free", error.message)
    assert needed is not None
    assert 10 * size < int(needed[1]) < 11 * size
    assert "Nothing is lost" in (error.advice or "")
    assert [path.read_bytes() for path in cluster.journal()] == journal
    disk.limits.clear()
    _, client = await started(cluster, disk, skip_list_size_limit=32 * MIB)
    await all_there(client, size)


async def test_with_several_journals_all_of_them_count_and_are_read_before_anything_goes(
    cluster: BookieCluster, disk: SmallDisk
) -> None:
    size = 4 * MIB
    journals = tuple(str(cluster.tmp_path / "a" / f"journal{number}") for number in range(3))
    options: dict[str, object] = {"journal_directories": journals, "journal_max_size_mb": 64}
    bookie, client = await started(cluster, disk, skip_list_size_limit=128 * MIB, **options)
    for number in range(5):
        for ledger_id in (3, 4):
            assert await client.add(entry(ledger_id, number, bytes(size))) == Status.EOK
    for number in range(3):
        assert await client.add(entry(5, number)) == Status.EOK
    await bookie.storage._logs.flush_target()
    await cluster.kill(bookie)
    strays = cluster.ledger_files(".log")
    disk.limits[str(ledgers(cluster))] = 0
    last = only_journal_file(journals[2])
    flip(last, batches(last)[0][0] + 100)
    with pytest.raises(JournalCorruptError):
        await cluster.start(disk=disk, skip_list_size_limit=32 * MIB, **options)
    assert cluster.ledger_files(".log") == strays
    flip(last, batches(last)[0][0] + 100)
    with pytest.raises(NoSpaceToStartError) as raised:
        await cluster.start(disk=disk, skip_list_size_limit=32 * MIB, **options)
    needed = re.search(r"(\d+) bytes have to be written", raised.value.message)
    assert needed is not None
    assert 10 * size < int(needed[1]) < 11 * size


@pytest.mark.parametrize("place", ["journal", "ledgers"])
async def test_a_new_node_needs_room_and_starts_once_there_is_some(
    cluster: BookieCluster, disk: SmallDisk, place: str
) -> None:
    directory = cluster.tmp_path / "a" / place
    directory.mkdir(parents=True)
    for room in (0, 20):
        disk.limits[str(directory)] = room
        with pytest.raises(NoSpaceToStartError) as raised:
            await cluster.start(disk=disk)
        assert raised.value.path == str(directory)
        assert "bytes have to be written" in raised.value.message
        assert await lists(cluster) == ([], [])
    disk.limits.clear()
    _, client = await started(cluster, disk)
    assert await client.add(entry(5, 0)) == Status.EOK


async def test_a_full_journal_directory_is_no_obstacle_while_it_has_a_file_to_use_again(
    cluster: BookieCluster, disk: SmallDisk
) -> None:
    await filled(cluster, disk, "killed")
    journal = cluster.tmp_path / "a" / "journal"
    disk.limits = {}
    disk.fill(journal)
    with pytest.raises(NoSpaceToStartError) as raised:
        await cluster.start(disk=disk)
    assert raised.value.path == str(journal)
    assert f"{BLOCK + MIB} bytes have to be written, and the disk is full; 0 bytes are free" in raised.value.message
    (journal / "current" / SPARE).write_bytes(bytes(4 * MIB))
    disk.fill(journal)
    disk.fill(ledgers(cluster))
    for _ in range(3):  # a file to which nothing was written serves the next start
        bookie, client = await started(cluster, disk)
        assert bookie.read_only
        await all_there(client)
        await cluster.kill(bookie)
    bookie, client = await started(cluster, disk)
    assert (await client.fence(100)).status == Status.ENOENTRY
    await cluster.kill(bookie)
    with pytest.raises(NoSpaceToStartError):
        await cluster.start(disk=disk)
    disk.limits.clear()
    _, client = await started(cluster, disk)
    await all_there(client)
    assert await client.add(entry(100, 0)) == Status.EFENCED


async def test_a_lost_sidecar_needs_no_space(cluster: BookieCluster, disk: SmallDisk) -> None:
    await filled(cluster, disk, "stopped")
    for sidecar in cluster.ledger_files(".idx"):
        sidecar.unlink()
    disk.fill(ledgers(cluster))
    _, client = await started(cluster, disk)
    await all_there(client)


async def test_without_read_only_mode_a_full_disk_refuses_the_start(cluster: BookieCluster, disk: SmallDisk) -> None:
    await filled(cluster, disk, "killed")
    with pytest.raises(DistributedLogError, match="readOnlyModeEnabled is off"):
        await cluster.start(disk=disk, read_only_mode_enabled=False)
    assert await lists(cluster) == ([], [])
    disk.limits.clear()
    _, client = await started(cluster, disk, read_only_mode_enabled=False)
    await all_there(client)


async def test_a_torn_last_batch_does_not_end_a_later_replay(cluster: BookieCluster, disk: SmallDisk) -> None:
    await filled(cluster, disk, "killed")
    (path,) = cluster.journal()
    flip(path, batches(path)[-1][0] + 100)  # the fence of ledger 4, as if it had not reached the disk
    for round_ in range(3):
        bookie, client = await started(cluster, disk)
        await all_there(client)
        assert not bookie.storage.ledgers[4].fenced
        assert (await client.fence(100 + round_)).status == Status.ENOENTRY
        assert all(bookie.storage.ledgers[100 + before].fenced for before in range(round_ + 1))
        await cluster.kill(bookie)


async def test_batches_behind_a_torn_one_make_the_checkpoint_necessary(cluster: BookieCluster, disk: SmallDisk) -> None:
    """The journal would go on behind their numbers, and the next start take the gap for damage."""
    bookie, client = await started(cluster, disk)
    await client.add(entry(5, 0))
    (journal,) = bookie.storage.journal.journals
    journal._durable = 0
    await client.add(entry(5, 1))
    await cluster.kill(bookie)
    (path,) = cluster.journal()
    flip(path, batches(path)[-2][0] + 100)
    disk.fill(ledgers(cluster))
    with pytest.raises(NoSpaceToStartError):
        await cluster.start(disk=disk)
    disk.limits.clear()
    _, client = await started(cluster, disk)
    assert await client.add(entry(6, 0)) == Status.EOK


@pytest.mark.parametrize("part", ["/journal-", "/ledgers/current/0000000000000001"])
async def test_a_sync_that_finds_no_space_is_told_the_same_way(cluster: BookieCluster, part: str) -> None:
    """Some file systems find room for what was written only when it is synced."""
    bookie, client = await started(cluster, SmallDisk())
    await client.add(entry(5, 0))
    await cluster.kill(bookie)
    for stray in cluster.ledger_files(".log"):
        stray.unlink()
    disk = FaultyDisk()
    disk.errors[("sync", part)] = errno.ENOSPC
    with pytest.raises(NoSpaceToStartError, match="something has to be written, and the disk is full; 1000 bytes") as e:
        await cluster.start(disk=disk)
    assert str(e.value.path) == str(cluster.tmp_path / "a" / part.strip("/").split("-")[0].split("/")[0])
    _, client = await started(cluster, SmallDisk())
    assert (await client.read(5, 0)).status == Status.EOK
