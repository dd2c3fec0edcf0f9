"""Batches that are written once: where their bytes go, what they wait for, and how they are found again, or missed."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import KEY, MIB, BookieCluster, WireClient, entry
from helpers.bookie.journal_files import batches, flip
from helpers.waiting import until

from storage_node.bookie.disk import records
from storage_node.bookie.disk.records import BLOCK, aligned_memory, parse_header
from storage_node.bookie.disk.resources import NoSpaceError
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.journal.batches import Answers
from storage_node.bookie.journal.places import LogPlace
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store.log_files import LogFile
from storage_node.bookie.tools.offline import Offline
from storage_node.bookie.tools.verify import verify
from storage_node.errors import JournalCorruptError
from storage_node.protocol.schema import Status

SIZE = 100_000
ONCE = {"journal_write_once_from_bytes": 50_000, "journal_write_once_always": True}
"""An entry of SIZE is written once, a small one twice."""


async def begun(cluster: BookieCluster, disk: SystemDisk | None = None, **more: object) -> tuple[Bookie, WireClient]:
    """A node that writes once, with an entry log whose name is durable."""
    bookie = await cluster.start(disk=disk, **{**ONCE, **more})
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    await bookie.storage._disk.submit("entries", lambda: None)
    return bookie, client


async def fill(client: WireClient, numbers: range) -> None:
    for number in numbers:
        assert await client.add(large(number)) == Status.EOK


def large(number: int) -> bytes:
    return entry(5, number, b"%d " % number * (SIZE // 4))


async def check(client: WireClient, numbers: range) -> None:
    for number in numbers:
        assert bytes((await client.read(5, number)).body or b"") == large(number)


def places(cluster: BookieCluster) -> list[tuple[int, LogPlace]]:
    """The places in the node's journal: (offset of the batch, place)."""
    found: list[tuple[int, LogPlace]] = []
    (path,) = cluster.journal()
    data = path.read_bytes()
    for offset, *_ in batches(path):
        length = int.from_bytes(data[offset + 40 : offset + 44], "big")
        place = LogPlace.parse(memoryview(data)[offset + 64 : offset + 64 + length])
        if place is not None:
            found.append((offset, place))
    return found


def log_path(cluster: BookieCluster, place: LogPlace) -> Path:
    return cluster.tmp_path / "a" / "ledgers" / "current" / f"{place.log_id:016x}.log"


class MeasuringDisk(FaultyDisk):
    """Counts the bytes that are written to each kind of file, and holds calls at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ""
        """Part of the path of files whose sync waits."""
        self.let_go = threading.Event()
        self.reached = threading.Event()

    def before(self, call: str, path: str) -> None:
        if call == "sync" and self.held and self.held in path:
            self.reached.set()
            assert self.let_go.wait(60)
        super().before(call, path)


async def test_a_large_batch_lies_in_its_log_alone_and_a_checkpoint_does_not_write_it_again(
    cluster: BookieCluster,
) -> None:
    bookie, client = await begun(cluster)
    await fill(client, range(1, 4))
    assert await client.add(entry(5, 4)) == Status.EOK
    found = places(cluster)
    assert len(found) == 3
    (journal,) = cluster.journal()
    assert large(1) not in journal.read_bytes()
    log = log_path(cluster, found[0][1])
    before = log.read_bytes()
    for number, (_, place) in enumerate(found, 1):
        head = parse_header(memoryview(before), place.offset)
        assert head is not None
        assert head[2:4] == (5, number)
        assert large(number) in before[place.offset : place.offset + place.length]
    written = bookie.storage._logs.writing[found[0][1].log_id].written
    await bookie.storage.checkpoint()
    assert bookie.storage.checkpoints.error is None
    assert bookie.storage._logs.writing[found[0][1].log_id].written - written == BLOCK, "the small entry behind them"
    assert log.read_bytes().startswith(before[:written])
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 4))


async def test_a_large_batch_is_written_once_while_another_is_under_way_and_twice_while_none_is(
    cluster: BookieCluster,
) -> None:
    disk = MeasuringDisk()
    bookie, client = await begun(cluster, disk, journal_write_once_always=False)
    await fill(client, range(1, 3))
    assert places(cluster) == [], "each of them was alone"
    disk.held = "/journal-"
    asked = [client.send_add(large(3))]
    await asyncio.get_running_loop().run_in_executor(None, disk.reached.wait, 60)
    asked.append(client.send_add(large(4)))
    (journal,) = bookie.storage.journal.journals
    await until(lambda: len(journal._flying) == 2)
    disk.let_go.set()
    for answer in await asyncio.wait_for(asyncio.gather(*asked), 60):
        assert answer.status == Status.EOK
    assert len(places(cluster)) == 1
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 5))


@pytest.mark.parametrize("held", ["/journal-", ".log"], ids=["place", "records"])
async def test_an_answer_waits_for_both_the_records_and_their_place(cluster: BookieCluster, held: str) -> None:
    disk = MeasuringDisk()
    bookie, client = await begun(cluster, disk)
    disk.held = held if held == "/journal-" else "/ledgers/"
    answer = client.send_add(large(1))
    await asyncio.get_running_loop().run_in_executor(None, disk.reached.wait, 60)
    for pool in ("reads", "files"):
        await bookie.storage._disk.submit(pool, lambda: None)  # turns of the loop, and of threads
    other = "entries" if held == "/journal-" else "journal"
    await bookie.storage._disk.submit(other, lambda: None)
    assert not answer.done(), "one half alone is no commit (I1)"
    disk.let_go.set()
    await asyncio.wait_for(answer, 60)
    await check(client, range(1, 2))


async def test_records_that_were_torn_end_the_journal_as_a_torn_batch_does(cluster: BookieCluster) -> None:
    """Nothing behind the last batch says that it was on disk; behind the one before it the last one does."""
    bookie, client = await begun(cluster)
    await fill(client, range(1, 4))
    await cluster.kill(bookie)
    last, before = places(cluster)[-1][1], places(cluster)[-2][1]
    flip(log_path(cluster, before), before.offset + 1000)
    with pytest.raises(JournalCorruptError, match=rf"{before.length} bytes of the entry log {before.log_id:016x}.log"):
        await cluster.start(**ONCE)
    flip(log_path(cluster, before), before.offset + 1000)
    flip(log_path(cluster, last), last.offset + 1000)
    bookie = await cluster.start(**ONCE)
    client = await cluster.connect(bookie)
    await check(client, range(1, 3))
    assert (await client.read(5, 3)).status == Status.ENOENTRY
    assert await client.add(large(3)) == Status.EOK
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 4))


async def test_a_log_that_is_cut_within_the_last_place_is_torn(cluster: BookieCluster) -> None:
    bookie, client = await begun(cluster)
    await fill(client, range(1, 3))
    await cluster.kill(bookie)
    last = places(cluster)[-1][1]
    with log_path(cluster, last).open("r+b") as file:
        file.truncate(last.offset + last.length - 1)
    client = await cluster.connect(await cluster.start(**ONCE))
    await check(client, range(1, 2))
    assert (await client.read(5, 2)).status == Status.ENOENTRY


@pytest.mark.parametrize("later", [ONCE, {}], ids=["on", "off"])
async def test_a_missing_log_is_damage_even_behind_the_last_place(
    cluster: BookieCluster, later: dict[str, object]
) -> None:
    """Its name was durable before any place in it was written. What was written twice before it is replayed into a new
    log, which no later start may take for the missing one (I11)."""
    bookie, client = await begun(cluster)
    await fill(client, range(1, 2))
    await cluster.kill(bookie)
    place = places(cluster)[-1][1]
    log_path(cluster, place).rename(cluster.tmp_path / "away")
    for _ in range(2):
        with pytest.raises(JournalCorruptError, match="has lost its records"):
            await cluster.start(**later)
        assert cluster.ledger_files(".log") == []
    (cluster.tmp_path / "away").rename(log_path(cluster, place))
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 2))


@pytest.mark.parametrize(("before", "after"), [(ONCE, {}), ({}, ONCE)], ids=["off", "on"])
async def test_the_setting_may_change_between_starts(
    cluster: BookieCluster, before: dict[str, object], after: dict[str, object]
) -> None:
    for turn, options in enumerate((before, after, before)):
        bookie = await cluster.start(**options)
        client = await cluster.connect(bookie)
        await check(client, range(1, 1 + 3 * turn))
        assert await client.add(entry(5, 0)) == Status.EOK
        await bookie.storage._disk.submit("entries", lambda: None)
        await fill(client, range(1 + 3 * turn, 4 + 3 * turn))
        assert bool(places_of_last(cluster)) == bool(options)
        await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**after)), range(1, 10))


def places_of_last(cluster: BookieCluster) -> int:
    data = cluster.journal()[-1].read_bytes()
    return sum(
        data[at : at + 8] == b"dlsBATCH" and data[at + 64 : at + 68] == records.PLACE.to_bytes(4, "big")
        for at in range(BLOCK, len(data), BLOCK)
    )


async def test_a_version_that_does_not_know_places_refuses_the_journal_unless_the_node_was_stopped(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie, client = await begun(cluster)
    await fill(client, range(1, 3))
    await cluster.kill(bookie)
    files = {path: path.read_bytes() for path in cluster.ledger_files(".log")}
    known = records.KINDS - {records.PLACE}
    with monkeypatch.context() as older:
        older.setattr(records, "KINDS", known)
        with pytest.raises(JournalCorruptError, match="holds a malformed record"):
            await cluster.start()
    assert {path: path.read_bytes() for path in cluster.ledger_files(".log")} == files
    bookie = await cluster.start(**ONCE)
    await fill(await cluster.connect(bookie), range(3, 4))
    await cluster.stop(bookie)
    monkeypatch.setattr(records, "KINDS", known)
    await check(await cluster.connect(await cluster.start()), range(1, 4))


async def test_a_log_whose_sync_failed_stops_the_node_and_no_checkpoint_covers_it(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie, client = await begun(cluster, disk)
    await fill(client, range(1, 2))
    taken = (cluster.tmp_path / "a" / "ledgers" / "current" / "checkpoint").read_bytes()
    disk.errors[("sync", "/ledgers/")] = errno.EIO
    doomed = client.send_add(large(2))
    await asyncio.wait_for(bookie.failed.wait(), 60)
    disk.errors.clear()  # as by Linux: a second sync reports success
    with pytest.raises(ConnectionError):
        await doomed
    await cluster.stop(bookie)
    assert (cluster.tmp_path / "a" / "ledgers" / "current" / "checkpoint").read_bytes() == taken
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 2))


async def test_what_waits_for_space_in_the_log_is_answered_once_there_is_some(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie, client = await begun(cluster, disk)
    disk.errors[("write", "/ledgers/")] = errno.ENOSPC
    waiting = client.send_add(large(1))
    await until(lambda: bookie.storage.full)
    assert not waiting.done()
    disk.errors.clear()
    await bookie.storage.try_again()
    await asyncio.wait_for(waiting, 60)
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 2))


async def test_a_node_that_waits_for_space_in_the_log_can_be_stopped(cluster: BookieCluster) -> None:
    disk = FaultyDisk()
    bookie, client = await begun(cluster, disk)
    await fill(client, range(1, 2))
    disk.errors[("write", "/ledgers/")] = errno.ENOSPC
    asked = [client.send_add(large(number)) for number in range(2, 6)]
    await until(lambda: bookie.storage.full)
    await asyncio.wait_for(cluster.stop(bookie), 60)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, ConnectionError) for answer in answers)
    disk.errors.clear()
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 2))


async def test_tools_read_what_a_stopped_nodes_journal_names(cluster: BookieCluster) -> None:
    bookie, client = await begun(cluster)
    await fill(client, range(1, 4))
    await cluster.kill(bookie)
    with Offline(cluster.settings(**ONCE)) as node:
        (summary,) = node.summaries()
        assert summary.entries == 4
        assert node.read_entry(5, 3) == large(3)
        assert verify(node).lost == []
        before = places(cluster)[-2][1]
        flip(log_path(cluster, before), before.offset + 1000)
        (damage,) = verify(node).lost
        assert "damaged or missing" in damage.what


async def test_many_places_bring_a_checkpoint_as_a_full_journal_file_does(cluster: BookieCluster) -> None:
    """A replay never has much more to read than without places."""
    bookie, client = await begun(cluster, journal_max_size_mb=1)
    counter = bookie.storage.checkpoints._counter
    await fill(client, range(1, 2 * MIB // SIZE))
    await bookie.storage.checkpoints.idle()
    await until(lambda: bookie.storage.checkpoints._counter > counter)
    assert len(cluster.journal()) == 1, "the journal itself is far from full"


def test_a_sync_of_a_log_that_failed_fails_for_good(tmp_path: Path) -> None:
    """A checkpoint may come behind it: the kernel would report success for what it has dropped."""
    disk = FaultyDisk()
    log = LogFile(1, str(tmp_path))
    log.name(disk)
    log.write(disk, 0, memoryview(aligned_memory(2 * BLOCK)))
    disk.errors[("sync", ".log")] = errno.EIO
    with pytest.raises(OSError, match="injected"):
        log.sync()
    disk.errors.clear()
    with pytest.raises(OSError, match="injected"):
        log.sync()
    assert log.on_disk == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_directory_whose_sync_failed_takes_nothing_more_whatever_the_reason(
    cluster: BookieCluster, number: int
) -> None:
    """A later sync of it would report success without the name of the log."""
    disk = FaultyDirectories()
    bookie = await cluster.start(disk=disk, **ONCE)
    client = await cluster.connect(bookie)
    taken = bookie.storage.checkpoints._counter
    disk.number = number
    assert await client.add(entry(5, 0)) == Status.EOK, "it is in the journal"
    await until(lambda: bookie.storage.writing_failed)
    disk.number = 0
    await bookie.storage.checkpoint()
    assert bookie.storage.checkpoints._counter == taken
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start(**ONCE))
    assert (await client.read(5, 0)).status == Status.EOK


@pytest.mark.parametrize("stopped", ["full", "failed"])
async def test_what_waits_for_a_log_is_answered_where_a_checkpoint_stops_the_logs(
    cluster: BookieCluster, stopped: str
) -> None:
    """The logs themselves can be written: neither a fence nor another answer behind it waits, and the node goes on."""
    disk = MeasuringDisk()
    bookie, client = await begun(cluster, disk)
    logs = bookie.storage._logs
    (journal,) = bookie.storage.journal.journals
    disk.held = "/ledgers/"
    asked = [client.send_add(large(1))]
    await asyncio.get_running_loop().run_in_executor(None, disk.reached.wait, 60)
    asked.append(client.send_add(large(2)))
    await until(lambda: len(logs._flushes) == 2)
    asked.append(client.send_add(large(3)))
    await until(lambda: journal._open is not None)
    bookie.storage.journal.mark()  # as a checkpoint does: it is settled now that this one is to be written once
    if stopped == "full":
        assert logs.wait_for_space(NoSpaceError(errno.ENOSPC, "injected", "checkpoint"))
    else:
        logs.give_up(OSError(errno.EIO, "injected"))
    disk.let_go.set()
    fence = client.send_read(5, 0, key=KEY, fence=True)
    for answer in await asyncio.wait_for(asyncio.gather(*asked, fence), 20):
        assert answer.status == Status.EOK
    assert bookie.failure is None
    assert len(places(cluster)) == 2, "the last one went to the journal whole"
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**ONCE)), range(1, 4))


class FaultyDirectories(FaultyDisk):
    """Fails the sync of a ledger directory."""

    number = 0

    def sync_directory(self, path: str) -> None:
        if self.number and "/ledgers/" in path:
            raise OSError(self.number, "injected", path)
        super().sync_directory(path)


class Sink:
    """Notes the answers that leave."""

    def __init__(self) -> None:
        self.left: list[bytes] = []

    def durable(self, answers: Answers) -> None:
        self.left += answers.frames


async def test_adds_with_deferred_sync_are_answered_once(cluster: BookieCluster) -> None:
    bookie, _ = await begun(cluster)
    sink = Sink()
    sent: list[bytes] = []
    for number in range(1, 9):
        body = large(number) if number % 3 else entry(5, number)
        sent.append(b"%d" % number)
        assert bookie.storage.add(memoryview(body), KEY, False, sink, sent[-1], number % 2 == 0) is Status.EOK
        if number % 2:
            await asyncio.sleep(0)
    await bookie.storage.journal.durable()
    assert sorted(sink.left) == sent
    assert len(places(cluster)) >= 2
