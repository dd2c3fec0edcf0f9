"""Several journals: a ledger has one, each has its own commits and mark, and none may be missing or another's."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import BookieCluster, WireClient, entry

from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.records import ENTRY, Slab, aligned_memory, scan
from storage_node.bookie.journal.batches import GATHER_BYTES, Batch
from storage_node.bookie.journal.files import parse_batch_header, parse_file_name
from storage_node.bookie.store import checkpoints
from storage_node.errors import CookieMismatchError, JournalCorruptError
from storage_node.protocol.digests import crc32
from storage_node.protocol.schema import Status

LEDGERS = range(3, 9)


def options(cluster: BookieCluster, count: int = 3) -> dict[str, object]:
    home = cluster.tmp_path / "a"
    return {
        "journal_directories": tuple(str(home / f"j{number}") for number in range(count)),
        "ledger_directories": tuple(str(home / f"l{number}") for number in range(2)),
    }


def journal_files(cluster: BookieCluster, number: int) -> list[Path]:
    return sorted((cluster.tmp_path / "a" / f"j{number}" / "current").glob("journal-*.log"))


def ledgers_in(path: Path) -> set[int]:
    """The ledgers whose entries lie in a journal file."""
    data, file_id = path.read_bytes(), parse_file_name(path.name) or 0
    found: set[int] = set()
    for at in range(0, len(data), 4096):
        batch = parse_batch_header(data, at, at, file_id)
        if batch is not None:
            start = at + batch.records_at
            for record in scan(memoryview(data)[start : start + batch.records_length]):
                assert not isinstance(record, int)
                if record.kind == ENTRY:
                    found.add(record.ledger_id)
    return found


async def fill(client: WireClient, numbers: range, sizes: Sequence[int] = (50, 3000, 70_000)) -> None:
    """Entries of several sizes for all ledgers, all under way at once."""
    adds = [
        client.send_add(entry(ledger, number, bytes([number]) * sizes[(number + ledger) % len(sizes)]))
        for number in numbers
        for ledger in LEDGERS
    ]
    assert {answer.status for answer in await asyncio.gather(*adds)} == {Status.EOK}


async def check(client: WireClient, numbers: range, sizes: Sequence[int] = (50, 3000, 70_000)) -> None:
    for number in numbers:
        for ledger in LEDGERS:
            answer = await client.read(ledger, number)
            assert answer.status == Status.EOK, (ledger, number)
            body = entry(ledger, number, bytes([number]) * sizes[(number + ledger) % len(sizes)])
            assert bytes(answer.body or b"") == body


async def test_each_ledgers_records_are_in_its_journal_and_all_are_replayed(cluster: BookieCluster) -> None:
    bookie = await cluster.start(**options(cluster))
    client = await cluster.connect(bookie)
    await fill(client, range(20))
    await bookie.storage.checkpoint()
    await fill(client, range(20, 40))
    await client.fence(4)
    await client.write_lac(5, 30)
    await cluster.kill(bookie)
    for number in range(3):
        found: set[int] = set()
        for path in journal_files(cluster, number):
            found |= ledgers_in(path)
        assert found == {ledger for ledger in LEDGERS if ledger % 3 == number}
    bookie = await cluster.start(**options(cluster))
    client = await cluster.connect(bookie)
    await check(client, range(40))
    assert await client.add(entry(4, 99)) == Status.EFENCED
    assert (await client.read_lac(5)).status == Status.EOK
    await fill_others(client)
    await cluster.stop(bookie)
    await check(await cluster.connect(await cluster.start(**options(cluster))), range(40))


async def fill_others(client: WireClient) -> None:
    for ledger in LEDGERS:
        if ledger != 4:
            assert await client.add(entry(ledger, 40)) == Status.EOK


async def test_a_journal_that_hangs_holds_up_only_its_own_ledgers(cluster: BookieCluster) -> None:
    class OneHangs(FaultyDisk):
        def before(self, call: str, path: str) -> None:
            gate = self.gate
            if call == "sync" and "/j1/" in path and "/journal-" in path and gate is not None:
                gate.wait(60)

    disk = OneHangs()
    bookie = await cluster.start(disk=disk, **options(cluster))
    client = await cluster.connect(bookie)
    await fill(client, range(2))
    disk.gate = threading.Event()
    stuck = client.send_add(entry(4, 2))
    for ledger in (3, 5, 6, 8):
        assert await client.add(entry(ledger, 2)) == Status.EOK
    assert not stuck.done()
    disk.gate.set()
    assert (await stuck).status == Status.EOK


async def test_the_marks_move_only_when_every_ledger_directory_has_the_checkpoint(cluster: BookieCluster) -> None:
    """D7, from both sides: a failed copy leaves the marks, and the journals' files, where they were."""

    class SecondFails(FaultyDisk):
        fails = False

        def write_file(self, path: str, data: bytes) -> None:
            if self.fails and path.endswith("l1/current/checkpoint"):
                raise OSError(5, "injected", path)
            super().write_file(path, data)

    disk = SecondFails()
    bookie = await cluster.start(disk=disk, **options(cluster))
    client = await cluster.connect(bookie)
    await fill(client, range(10))
    before = {number: journal_files(cluster, number) for number in range(3)}
    disk.fails = True
    await bookie.storage.checkpoint()
    assert bookie.read_only
    assert {number: journal_files(cluster, number) for number in range(3)} == before
    await cluster.kill(bookie)
    (cluster.tmp_path / "a" / "l0" / "current" / "checkpoint").unlink()
    await check(await cluster.connect(await cluster.start(**options(cluster))), range(10))


async def test_a_checkpoint_has_a_mark_for_each_journal(cluster: BookieCluster) -> None:
    bookie = await cluster.start(**options(cluster))
    client = await cluster.connect(bookie)
    for number in range(5):
        assert await client.add(entry(4, number)) == Status.EOK
    await bookie.storage.checkpoint()
    data = (cluster.tmp_path / "a" / "l1" / "current" / "checkpoint").read_bytes()
    decoded = checkpoints.decode(data)
    assert decoded is not None
    assert [mark.sequence for mark in decoded[0].marks] == [0, 5, 0]


# ------------------------------------------------------------------------------------------- what must not start


async def killed(cluster: BookieCluster) -> None:
    bookie = await cluster.start(**options(cluster))
    await fill(await cluster.connect(bookie), range(3))
    await cluster.kill(bookie)


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_another_number_of_journals_is_refused(cluster: BookieCluster, count: int) -> None:
    await killed(cluster)
    with pytest.raises(CookieMismatchError, match="journal directories"):
        await cluster.start(**options(cluster, count))
    with pytest.raises(CookieMismatchError, match="journal directories"):
        await cluster.start(allow_storage_expansion=True, **options(cluster, count))


async def test_journals_in_another_order_are_refused(cluster: BookieCluster) -> None:
    await killed(cluster)
    chosen = options(cluster)
    with pytest.raises(CookieMismatchError, match="journal directories"):
        await cluster.start(**{**chosen, "journal_directories": chosen["journal_directories"][::-1]})  # type: ignore[index]


async def test_journals_mounted_in_each_others_place_are_refused(cluster: BookieCluster) -> None:
    await killed(cluster)
    home = cluster.tmp_path / "a"
    (home / "j0").rename(home / "aside")
    (home / "j1").rename(home / "j0")
    (home / "aside").rename(home / "j1")
    with pytest.raises(JournalCorruptError, match="belongs to journal 2 of 3"):
        await cluster.start(**options(cluster))


async def test_a_journal_of_another_node_is_refused(cluster: BookieCluster) -> None:
    await killed(cluster)
    other = await cluster.start("b")
    await (await cluster.connect(other)).add(entry(3, 0))
    await cluster.kill(other)
    for path in journal_files(cluster, 0):
        path.unlink()
    for path in cluster.journal("b"):
        shutil.copy(path, cluster.tmp_path / "a" / "j0" / "current" / path.name)
    with pytest.raises(JournalCorruptError, match="belongs to journal 1 of 1 of node"):
        await cluster.start(**options(cluster))


async def test_a_missing_journal_directory_or_file_is_refused(cluster: BookieCluster) -> None:
    await killed(cluster)
    home = cluster.tmp_path / "a"
    (home / "j2").rename(home / "aside")
    with pytest.raises(CookieMismatchError, match="wiped"):
        await cluster.start(**options(cluster))
    shutil.rmtree(home / "j2")
    (home / "aside").rename(home / "j2")
    (path,) = [path for path in journal_files(cluster, 2) if ledgers_in(path)]
    path.rename(home / "aside")
    with pytest.raises(JournalCorruptError, match="is missing"):
        await cluster.start(**options(cluster))
    (home / "aside").rename(path)
    await check(await cluster.connect(await cluster.start(**options(cluster))), range(3))


async def test_a_checkpoint_that_speaks_of_another_number_of_journals_is_refused(cluster: BookieCluster) -> None:
    await killed(cluster)
    for number in range(2):
        path = cluster.tmp_path / "a" / f"l{number}" / "current" / "checkpoint"
        decoded = checkpoints.decode(path.read_bytes())
        assert decoded is not None
        found, ledgers = decoded
        less = checkpoints.Checkpoint(found.counter, found.marks[:2], found.next_log_id, found.logs, False, False)
        path.write_bytes(checkpoints.encode(less, [ledger.encode() for ledger in ledgers.values()]))
    with pytest.raises(CorruptDataError, match="knows 2 journals"):
        await cluster.start(**options(cluster))


# ------------------------------------------------------------------------------------------- batches


def test_a_batch_gathers_pieces_up_to_its_bound_and_sums_them_as_one() -> None:
    slab = Slab(aligned_memory(4 * 1024 * 1024), 1, 0)
    slab.view[:] = bytes(range(256)) * (len(slab.view) // 256)
    batch = Batch(slab, 0)
    batch.end = 64
    assert batch.gather(128, 256)
    batch.end = 256
    assert batch.gather(256, 320)
    batch.end = 320
    assert batch.earlier == [(0, 64)]
    assert batch.length == 64 + 192
    batch.close(1)
    assert batch.copied
    assert not batch.placed, "it is not in one piece"
    assert batch.total == 4096
    target = memoryview(bytearray(batch.length))
    batch.copy_to(target)
    assert bytes(target) == bytes(slab.view[:64]) + bytes(slab.view[128:320])
    assert batch.records_sum() == crc32(target, 0)
    assert not batch.gather(1000, 1000 + GATHER_BYTES)
    assert batch.length == 256, "a refusal changes nothing"


async def test_journals_that_fail_together_end_the_node_once(cluster: BookieCluster) -> None:
    """Whoever waits for `failed` finds everything closed: another node may start on the directories at once."""
    disk = FaultyDisk()
    bookie = await cluster.start(disk=disk, **options(cluster))
    client = await cluster.connect(bookie)
    await fill(client, range(2))
    disk.errors[("sync", "/journal-")] = errno.EIO
    doomed = [client.send_add(entry(ledger, 9)) for ledger in LEDGERS]
    await asyncio.wait_for(bookie.failed.wait(), 60)
    assert len({path for _, path in disk.hits}) > 1, "more than one journal failed"
    answers = await asyncio.gather(*doomed, return_exceptions=True)
    assert all(isinstance(answer, ConnectionError) for answer in answers)
    again = await cluster.start(**options(cluster))
    await check(await cluster.connect(again), range(2))


class FullOnce(FaultyDisk):
    """The second journal's disk is full for its first new file."""

    left = 1

    def before(self, call: str, path: str) -> None:
        if call == "create" and "/j1/" in path and self.left:
            self.left -= 1
            raise OSError(errno.ENOSPC, "injected", path)
        super().before(call, path)


async def test_a_journal_that_finds_space_at_the_second_attempt_does_not_stop_the_others(
    cluster: BookieCluster,
) -> None:
    bookie = await cluster.start(**options(cluster, 2))
    await fill(await cluster.connect(bookie), range(2))
    await cluster.kill(bookie)
    disk = FullOnce()
    bookie = await cluster.start(disk=disk, **options(cluster, 2))
    assert not disk.left
    await fill(await cluster.connect(bookie), range(2, 4))
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start(**options(cluster, 2))), range(4))
