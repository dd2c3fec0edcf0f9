"""Failing disks: the journal's failure stops the node, a ledger directory's makes it read-only."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import KEY, BookieCluster, entry
from helpers.bookie.wire_harness import HeldDisk
from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node import bookie as bookie_module
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store.log_files import log_name
from storage_node.edge import DiskFile
from storage_node.errors import BookieFailedError
from storage_node.protocol.encoding import encode_force_ledger_request
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse


@pytest.mark.parametrize("call", ["sync", "write"])
async def test_a_journal_that_fails_stops_the_node_and_acknowledges_nothing_more(
    cluster: BookieCluster, call: str
) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    disk.errors[(call, "/journal-")] = errno.EIO
    doomed = [client.send_add(entry(5, number)) for number in range(1, 4)]
    fence = client.send_read(6, -1, key=KEY, fence=True)
    await asyncio.wait_for(bookie.failed.wait(), 60)
    answers = await asyncio.gather(*doomed, fence, return_exceptions=True)
    assert all(isinstance(answer, ConnectionError) for answer in answers)
    assert len(disk.hits) <= 2, "a failed sync is never tried again"
    assert isinstance(bookie.failure, BookieFailedError)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", bookie.address.port)
    registry = BookieRegistry(cluster.running[0][1])
    assert await registry.writable() == []
    await cluster.stop(bookie)
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 0)).status == Status.EOK


async def test_nothing_is_answered_before_the_sync_returns(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client, other = await cluster.connect(bookie), await cluster.connect(bookie)
    await client.add(entry(5, 0))
    disk.gate = threading.Event()
    add = client.send_add(entry(5, 1))
    fence = client.send_read(5, -1, key=KEY, fence=True)
    lac = asyncio.ensure_future(client.write_lac(7, 3))
    force = client.ask(lambda txn: encode_force_ledger_request(txn, 5))
    forced = asyncio.ensure_future(force)
    unknown = other.send_read(8, -1, key=KEY, fence=True)
    for _ in range(5):
        assert (await other.read(5, 0)).status == Status.EOK
    assert (await other.read(5, 1)).status == Status.EOK, "readable before it is durable"
    assert await other.add(entry(5, 2)) == Status.EFENCED
    assert not any(waiting.done() for waiting in (add, fence, lac, forced, unknown))
    disk.gate.set()
    statuses = [(await one).status for one in (add, fence, unknown)]
    assert statuses == [Status.EOK, Status.EOK, Status.ENOENTRY]
    assert await lac == Status.EOK
    assert (await forced).status == Status.EOK


async def test_batches_that_finish_out_of_order_are_answered_in_order(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    first_gate = disk.gate = threading.Event()
    first = client.send_add(entry(5, 1))
    await until(lambda: bookie.storage.journal.journals[0]._calls, every_s=0)
    await until(lambda: disk.waiting != 0, every_s=0)
    disk.gate = None
    before = disk.passed
    second = client.send_add(entry(5, 2))
    await until(lambda: disk.passed != before, every_s=0)
    for _ in range(3):
        await client.read(5, 0)
    assert not first.done()
    assert not second.done(), "its own batch is durable, the one before it is not"
    first_gate.set()
    assert [(await answer).status for answer in (first, second)] == [Status.EOK] * 2


@pytest.mark.parametrize(("call", "part"), [("write", ".log"), ("sync", ".idx"), ("write", ".idx")])
async def test_a_failing_ledger_directory_makes_the_node_read_only_and_loses_nothing(
    cluster: BookieCluster, call: str, part: str
) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    for number in range(3):
        await client.add(entry(5, number))
    disk.errors[(call, f"/ledgers/current/0000000000000001{part}")] = errno.EIO
    await bookie.storage.checkpoint()
    assert bookie.read_only
    assert await client.add(entry(5, 3)) == Status.EREADONLY
    assert await client.add(entry(5, 3), recovery=True, priority=100) == Status.EREADONLY
    assert await client.write_lac(5, 1) == Status.EREADONLY
    for number in range(3):
        assert bytes((await client.read(5, number)).body or b"") == entry(5, number)
    assert (await client.fence(5)).status == Status.EOK
    store = MemoryStore(cluster.tree)
    registry = BookieRegistry(store)

    async def is_read_only() -> bool:
        return [address.bookie_id for address in await registry.readonly()] == ["a"]

    await until(is_read_only, every_s=0)
    assert await registry.writable() == []
    await store.close()
    await cluster.stop(bookie)
    client = await cluster.connect(await cluster.start())
    for number in range(3):
        assert bytes((await client.read(5, number)).body or b"") == entry(5, number)
    assert await client.add(entry(5, 3)) == Status.EFENCED


async def test_a_full_disk_makes_the_node_read_only_until_there_is_room(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, disk_usage_threshold=0.95)
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    store = MemoryStore(cluster.tree)
    registry = BookieRegistry(store)
    disk.full = True
    await bookie.check_disks()
    assert await client.add(entry(5, 1)) == Status.EREADONLY
    assert (await client.read(5, 0)).status == Status.EOK
    assert [address.bookie_id for address in await registry.readonly()] == ["a"]
    assert await registry.writable() == []
    disk.full = False
    await bookie.check_disks()
    assert await client.add(entry(5, 1)) == Status.EOK
    assert [address.bookie_id for address in await registry.writable()] == ["a"]
    assert await registry.readonly() == []
    await store.close()


async def test_high_priority_adds_are_taken_while_read_only_for_space(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    bookie.read_only = True
    assert await client.add(entry(5, 0)) == Status.EREADONLY
    assert await client.add(entry(5, 0), recovery=True, priority=100) == Status.EOK


async def test_a_read_that_fails_is_an_error_for_that_entry_only(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    await cluster.stop(bookie)
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await client.add(entry(6, 0))
    disk.errors[("read", ".log")] = errno.EIO
    assert (await client.read(5, 0)).status == Status.EIO
    assert (await client.read(6, 0)).status == Status.EOK
    assert (bookie.storage.unreadable, bookie.storage.damaged) == (1, 0)
    assert not bookie.read_only, "reading says nothing about writing"
    disk.errors.clear()
    assert (await client.read(5, 0)).status == Status.EOK


async def test_the_threads_of_a_stopped_node_are_gone(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    assert any(thread.name.startswith("bookie-") for thread in threading.enumerate())
    await cluster.stop(bookie)
    assert not any(thread.name.startswith("bookie-") for thread in threading.enumerate())
    await bookie.stop()


async def test_adds_are_answered_before_an_orderly_stop(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    adds = [client.send_add(entry(5, number)) for number in range(1, 200)]
    await client.read(5, 0)
    await cluster.stop(bookie)
    answers = await asyncio.gather(*adds, return_exceptions=True)
    accepted = [a for a in answers if not isinstance(a, BaseException) and a.status == Status.EOK]
    client = await cluster.connect(await cluster.start())
    for answer in accepted:
        assert isinstance(answer, AddResponse)
        assert (await client.read(5, answer.entry_id)).status == Status.EOK


async def test_a_journal_that_fails_while_the_node_registers_ends_the_start_and_leaves_no_registration(
    cluster: BookieCluster,
) -> None:
    store = MemoryStore(cluster.tree)
    bookie = Bookie(cluster.settings("b"), store)

    def fail_at_registration(_session: int, name: str, path: str) -> None:
        if name == "create" and path == "/ledgers/available/b" and bookie.failure is None:
            bookie.journal_failed(OSError(errno.EIO, "made up"))

    cluster.tree.inject = fail_at_registration
    with pytest.raises(BookieFailedError, match="made up"):
        await bookie.start()
    cluster.tree.inject = None
    assert [address.bookie_id for address in await BookieRegistry(store).writable()] == []
    await store.close()


async def test_a_journal_that_fails_while_the_node_stops_leaves_nothing_open(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it failed with: a commit that was interrupted is no OSError."""
    monkeypatch.setattr(bookie_module, "DRAIN_S", 0)
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    (journal,) = bookie.storage.journal.journals
    disk.holds.add("journal")
    doomed = client.send_add(entry(5, 1))
    doomed.add_done_callback(lambda answer: answer.exception())
    await until(lambda: disk.waiting)
    stopped = asyncio.get_running_loop().create_task(cluster.stop(bookie))
    await until(lambda: journal._idle)
    journal._fail(BookieFailedError("a commit was interrupted"))
    disk.release()
    await asyncio.wait_for(stopped, 60)
    logs = bookie.storage._logs
    assert logs.error is not None
    assert all(log.file is None or closed(log.file) for log in logs.writing.values())
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 0)).status == Status.EOK


def closed(file: DiskFile) -> bool:
    try:
        file.size()
    except (OSError, ValueError):
        return True
    return False


async def test_a_log_that_is_begun_while_strays_are_removed_is_none(cluster: BookieCluster) -> None:
    """The first checkpoint of a start runs beside adds where it had to wait for space."""
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    logs = bookie.storage._logs
    await logs.flush_target()
    (known,) = cluster.ledger_files(".log")
    stray = known.with_name(log_name(logs.next_log_id))
    stray.write_bytes(b"")
    logs.next_log_id += 1
    disk.holds.add("files")
    removing = asyncio.get_running_loop().create_task(bookie.storage.checkpoints.remove_strays())
    await until(lambda: disk.waiting)
    logs.roll()
    assert await client.add(entry(5, 1)) == Status.EOK
    await logs.flush_target()
    assert len(cluster.ledger_files(".log")) == 3
    disk.release()
    await removing
    left = cluster.ledger_files(".log")
    assert len(left) == 2
    assert stray not in left
