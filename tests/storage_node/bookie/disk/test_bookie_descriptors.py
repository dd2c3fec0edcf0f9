"""File descriptors: shared between files and clients, and a lack of them is one that ends."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from pathlib import Path

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import MIB, BookieCluster, WireClient, entry
from helpers.waiting import until

from storage_node.bookie.disk import resources
from storage_node.bookie.disk.resources import SpareDescriptors, connection_limit
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.node.bookie import Bookie
from storage_node.errors import BookieConfigurationError, NoSpaceToStartError
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings

SETTINGS = BookieSettings(("/j",), ("/l",))


def test_connections_get_what_files_do_not_need() -> None:
    room = connection_limit(SETTINGS, 1024)
    assert 600 < room < 1024 - 2 * 8 - resources.BASE - resources.read_files(1024)
    many = BookieSettings(("/j", "/k"), ("/l", "/m", "/n"), http_server_enabled=True)
    assert connection_limit(many, 1024) == room - 3 * 8 - 64
    assert connection_limit(BookieSettings(("/j",), ("/l",), bookie_max_connections=100), 1024) == 100
    assert connection_limit(BookieSettings(("/j",), ("/l",), bookie_max_connections=5000), 1024) == room
    with pytest.raises(BookieConfigurationError, match="ulimit -n"):
        connection_limit(SETTINGS, 180)


async def test_idle_connections_beyond_the_bound_make_room_for_clients(
    cluster: BookieCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bookie = await cluster.start(bookie_max_connections=40)
    honest = await cluster.connect(bookie)
    assert await honest.add(entry(5, 0)) is Status.EOK
    idle = [await cluster.connect(bookie) for _ in range(100)]
    late = await cluster.connect(bookie)
    assert await late.add(entry(5, 1)) is Status.EOK
    assert await honest.add(entry(5, 2)) is Status.EOK
    for client in idle[:62]:
        await asyncio.wait_for(client.closed.wait(), 60)
    assert bookie.connection_count == 40
    assert "it was the most idle" in caplog.text
    assert len([line for line in caplog.messages if "most idle" in line]) <= 20


# ------------------------------------------------------------------------------------------- spare ones


class Scarce:
    """A call that finds no descriptor until some are given up."""

    def __init__(self, wants: int, code: int = errno.EMFILE) -> None:
        self.wants, self.code = wants, code
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.wants:
            raise OSError(self.code, "injected")
        return 7


def test_a_spare_descriptor_is_given_up_for_a_file_and_taken_back() -> None:
    spare = SpareDescriptors()
    spare.hold(4)
    held = list(spare._held)
    assert spare.have(Scarce(3)) == 7
    assert len(spare._held) == 4, "there are others again, and so it holds as many as before"
    with pytest.raises(OSError, match="injected"):
        spare.have(Scarce(5))
    assert spare._held == []
    assert spare.have(Scarce(0)) == 7
    assert len(spare._held) == 4
    with pytest.raises(OSError, match="injected"):
        spare.have(Scarce(1, errno.ENOENT))
    assert len(spare._held) == 4, "another error costs none"
    spare.let_go()
    for descriptor in held:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)


def take_all(taken: list[int]) -> None:
    """Open files until there are no descriptors."""
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise


def test_a_disk_opens_files_with_its_spare_descriptors(tmp_path: Path, open_file_limits: None) -> None:
    disk = SystemDisk()
    disk._spare.hold(2)
    (tmp_path / "data").mkdir()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        take_all(taken)
        disk.write_file(str(tmp_path / "data" / "a"), b"x")
        assert disk.read_file(str(tmp_path / "data" / "a")) == b"x"
        assert disk.list_directory(str(tmp_path / "data")) == ["a"]
        first = disk.open(str(tmp_path / "data" / "b"), create=True)
        second = disk.open(str(tmp_path / "data" / "c"), create=True)
        with pytest.raises(OSError, match="Too many"):
            disk.open(str(tmp_path / "data" / "d"), create=True)
        first.close()
        disk.sync_directory(str(tmp_path / "data"))
        second.close()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        disk.close()


# ------------------------------------------------------------------------------------------- a lack that ends


class Short(FaultyDisk):
    """A disk that finds no descriptors for the calls that `lacks` names: (call, part of the path)."""

    def __init__(self) -> None:
        super().__init__()
        self.lacks: set[tuple[str, str]] = set()
        self.refused: list[tuple[str, str]] = []

    def _look(self, call: str, path: str) -> None:
        if any(call == wanted and part in path for wanted, part in self.lacks):
            self.refused.append((call, path))
            raise OSError(errno.EMFILE, "Too many open files", path)

    def before(self, call: str, path: str) -> None:
        self._look(call, path)
        super().before(call, path)

    def sync_directory(self, path: str) -> None:
        self._look("directory", path)
        super().sync_directory(path)

    def list_directory(self, path: str) -> list[str]:
        self._look("list", path)
        return super().list_directory(path)


async def write(client: WireClient, numbers: range) -> set[Status]:
    """A megabyte an entry: enough for the journal to roll after sixteen."""
    answers = [client.send_add(entry(5, number, bytes(MIB))) for number in numbers]
    return {answer.status for answer in await asyncio.wait_for(asyncio.gather(*answers), 60)}


async def refused(disk: Short) -> None:
    await until(lambda: disk.refused)


@pytest.mark.parametrize(
    "lack", [("create", "/journal-"), ("directory", "/journal/"), ("list", "/journal/")], ids=lambda lack: lack[0]
)
async def test_a_journal_that_finds_no_descriptor_for_its_next_file_waits_and_goes_on(
    cluster: BookieCluster, lack: tuple[str, str]
) -> None:
    disk = Short()
    bookie = await cluster.start(disk=disk, journal_max_backups=0)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) is Status.EOK
    disk.lacks.add(lack)
    writing = asyncio.ensure_future(write(client, range(1, 24)))
    await asyncio.wait_for(refused(disk), 60)
    disk.lacks.clear()
    assert await writing == {Status.EOK}
    assert not bookie.read_only
    assert bookie.failure is None
    await cluster.kill(bookie)
    again = await cluster.connect(await cluster.start())
    for number in (0, 1, 23):
        assert (await again.read(5, number)).status is Status.EOK


async def test_a_spare_journal_file_whose_directory_cannot_be_opened_is_made_anew(cluster: BookieCluster) -> None:
    disk = Short()
    bookie = await cluster.start(disk=disk, journal_max_backups=2)
    client = await cluster.connect(bookie)
    await write(client, range(40))
    await bookie.storage.checkpoint()
    assert [path for path in cluster.journal()[0].parent.iterdir() if path.name.startswith("spare-")]
    disk.lacks.add(("directory", "/journal/"))
    writing = asyncio.ensure_future(write(client, range(40, 64)))
    await asyncio.wait_for(refused(disk), 60)
    disk.lacks.clear()
    assert await writing == {Status.EOK}
    assert (bookie.read_only, bookie.failure) == (False, None)


@pytest.mark.parametrize("lack", [("create", ".log"), ("create", ".idx"), ("directory", "/ledgers/")], ids=str)
async def test_entry_logs_and_checkpoints_wait_for_descriptors(cluster: BookieCluster, lack: tuple[str, str]) -> None:
    disk = Short()
    bookie = await cluster.start(disk=disk, read_only_mode_enabled=False)
    client = await cluster.connect(bookie)
    disk.lacks.add(lack)
    assert await client.add(entry(5, 0)) is Status.EOK
    checkpoint = asyncio.ensure_future(bookie.storage.checkpoint())
    await asyncio.wait_for(refused(disk), 60)
    assert await client.add(entry(5, 1)) is Status.EOK, "what comes meanwhile waits in memory"
    await bookie.check_disks()
    assert (bookie.read_only, bookie.failure) == (False, None)
    before = len(disk.refused)
    disk.lacks.clear()
    await asyncio.wait_for(checkpoint, 60)
    assert before >= 1
    assert bookie.storage.checkpoints.error is None
    assert await client.add(entry(5, 2)) is Status.EOK
    if lack[0] == "directory":
        assert bookie.storage.checkpoints._unsynced == set(), "the directory was synced when that was possible"


async def test_a_node_that_lacks_descriptors_for_long_says_that_it_is_read_only_until_there_are_some(
    cluster: BookieCluster,
) -> None:
    disk = Short()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    disk.lacks.add(("create", ".log"))
    assert await client.add(entry(5, 0)) is Status.EOK
    checkpoint = asyncio.ensure_future(bookie.storage.checkpoint())
    await asyncio.wait_for(refused(disk), 60)
    assert not bookie.read_only
    await bookie.check_disks()
    assert bookie.read_only
    disk.lacks.clear()
    await bookie.check_disks()
    assert not bookie.read_only
    await asyncio.wait_for(checkpoint, 60)


async def test_reads_wait_for_a_descriptor(cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.bookie.store.entry_logs.DESCRIPTOR_PAUSES_S", (0.001, 0.001))
    name, bookie, disk = await _node_with_entries_on_disk(cluster)
    client = await cluster.connect(bookie)
    disk.misses = 2
    answer = await client.read(5, 0)
    assert (answer.status, bytes(answer.body or b"")) == (Status.EOK, entry(5, 0)), name
    await cluster.stop(bookie)
    name, bookie, disk = await _node_with_entries_on_disk(cluster)
    client = await cluster.connect(bookie)
    disk.misses = 3
    assert (await client.read(5, 0)).status is Status.EIO, "in the end it is an error, of this entry"
    assert (await client.read(5, 0)).status is Status.EOK


class Missing(SystemDisk):
    """Finds no descriptor for the next `misses` logs that are opened for reading."""

    misses = 0

    def _open(self, path: str, flags: int) -> int:
        if self.misses and path.endswith(".log") and "/ledgers/" in path:
            self.misses -= 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super()._open(path, flags)


async def _node_with_entries_on_disk(cluster: BookieCluster) -> tuple[str, Bookie, Missing]:
    disk = Missing()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    await cluster.stop(bookie)
    disk = Missing()
    return "after a restart nothing is in memory", await cluster.start(disk=disk), disk


async def test_a_start_without_descriptors_says_so(cluster: BookieCluster) -> None:
    disk = Short()
    disk.lacks.add(("create", "/journal-"))
    with pytest.raises(NoSpaceToStartError, match=r"no file descriptors left.*ulimit -n"):
        await cluster.start(disk=disk)
