"""What is on disk survives crashes; what is damaged is refused or named, never served (I1, I11, I12, D7, D11, D19)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry
from helpers.bookie.journal_files import batches, flip

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.foundation.errors import CorruptDataError
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.journal.files import parse_file_name
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store.log_files import log_name
from storage_node.errors import BookieConfigurationError, CookieMismatchError, JournalCorruptError
from storage_node.protocol.schema import Status


async def fill(client: WireClient, ledger: int, numbers: range, size: int = 50) -> None:
    """Add entries one by one, each in a batch of its own."""
    for number in numbers:
        assert await client.add(entry(ledger, number, bytes([number % 256]) * size)) == Status.EOK


async def check(client: WireClient, ledger: int, numbers: range, size: int = 50) -> None:
    for number in numbers:
        answer = await client.read(ledger, number)
        assert answer.status == Status.EOK, number
        assert bytes(answer.body or b"") == entry(ledger, number, bytes([number % 256]) * size)


def copies_of(directories: tuple[str, ...]) -> set[bytes]:
    """The different checkpoint files of some ledger directories, each of which has an entry log."""
    assert all(list(Path(name, "current").glob("*.log")) for name in directories)
    return {Path(name, "current", "checkpoint").read_bytes() for name in directories}


def without_checkpoints(bookie: Bookie) -> None:
    """Let the journal grow: no checkpoint retires its files."""
    assert bookie.storage.checkpoints._ticker is not None
    bookie.storage.checkpoints._ticker.cancel()


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_everything_acknowledged_is_there_after_a_restart(cluster: BookieCluster, how: str) -> None:
    end = cluster.kill if how == "kill" else cluster.stop
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for round_number in range(4):
        await fill(client, 5, range(round_number * 10, round_number * 10 + 10))
        await client.write_lac(6, round_number)
        await end(bookie)
        bookie = await cluster.start()
        client = await cluster.connect(bookie)
        await check(client, 5, range(round_number * 10 + 10))
        assert (await client.read(5, 0)).max_lac == round_number * 10 + 8
        assert (await client.read_lac(6)).status == Status.EOK
    assert (await client.add(entry(5, 99), key=b"x" * 20)) == Status.EUA


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_fence_survives_a_crash_with_and_without_a_checkpoint(
    cluster: BookieCluster, checkpointed: bool
) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    assert (await client.fence(5)).status == Status.EOK
    assert (await client.fence(6)).status == Status.ENOENTRY
    if checkpointed:
        await bookie.storage.checkpoint()
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    assert await client.add(entry(5, 1)) == Status.EFENCED
    assert await client.add(entry(6, 0)) == Status.EFENCED, "a fence that found nothing is durable too (D19)"
    assert await client.add(entry(6, 0), key=b"x" * 20) == Status.EUA
    assert (await client.fence(6)).status == Status.ENOENTRY
    assert await client.add(entry(6, 0), recovery=True) == Status.EOK


async def test_a_checkpoint_in_the_middle_changes_nothing(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await fill(client, 5, range(20), 3000)
    await bookie.storage.checkpoint()
    await fill(client, 5, range(20, 40), 70_000)
    await bookie.storage.checkpoint()
    await fill(client, 5, range(40, 50))
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    await check(client, 5, range(20), 3000)
    await check(client, 5, range(20, 40), 70_000)
    await check(client, 5, range(40, 50))


@pytest.mark.parametrize("checkpoints", [True, False])
async def test_the_journal_rolls_is_recycled_and_replayed_over_several_files(
    cluster: BookieCluster, checkpoints: bool
) -> None:
    bookie = await cluster.start()
    if not checkpoints:
        without_checkpoints(bookie)
    client = await cluster.connect(bookie)
    for start in range(0, 60, 20):
        bodies = [entry(5, number, bytes([number]) * 1_000_000) for number in range(start, start + 20)]
        answers = await asyncio.gather(*(client.send_add(body) for body in bodies))
        assert {answer.status for answer in answers} == {Status.EOK}
    spares = list((cluster.tmp_path / "a" / "journal" / "current").glob("spare-*"))
    assert parse_file_name(cluster.journal()[-1].name) == 4, "60 MB in files of 16 MiB"
    assert len(cluster.journal()) + len(spares) <= 6
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    await check(client, 5, range(60), 1_000_000)


async def test_several_ledger_directories_take_turns_and_all_hold_the_checkpoint(cluster: BookieCluster) -> None:
    names = tuple(str(cluster.tmp_path / "a" / f"l{index}") for index in range(3))
    options = {"ledger_directories": names, "log_size_limit": 16 * 1024 * 1024}
    bookie = await cluster.start(**options)
    client = await cluster.connect(bookie)
    await fill(client, 5, range(50), 1_000_000)
    await bookie.storage.checkpoint()
    copies = copies_of(names)
    assert len(copies) == 1, "the mark moves only when every directory has it (D7)"
    await fill(client, 6, range(3))
    await cluster.kill(bookie)
    flip(Path(names[1], "current", "checkpoint"), 40)
    client = await cluster.connect(await cluster.start(**options))
    await check(client, 5, range(50), 1_000_000)
    await check(client, 6, range(3))


# ------------------------------------------------------------------------------------------- journal damage


async def test_a_torn_last_batch_ends_the_replay_there(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await fill(client, 5, range(10))
    await cluster.kill(bookie)
    path = cluster.journal()[-1]
    flip(path, batches(path)[-1][0] + 100)
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await check(client, 5, range(9))
    assert (await client.read(5, 9)).status == Status.ENOENTRY
    await fill(client, 5, range(9, 12))
    await cluster.kill(bookie)
    await check(await cluster.connect(await cluster.start()), 5, range(12))


async def test_a_batch_that_was_in_flight_beside_a_torn_one_is_no_damage(cluster: BookieCluster) -> None:
    """Two batches may be under way: the second may reach the disk and the first not, and neither was acknowledged."""
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    (journal,) = bookie.storage.journal.journals
    durable, journal._durable = journal._durable, 0
    await asyncio.gather(client.send_add(entry(5, 1)))
    journal._durable = durable
    await cluster.kill(bookie)
    path = cluster.journal()[-1]
    found = batches(path)
    flip(path, found[-2][0] + 100)
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 0)).status in (Status.ENOENTRY, Status.ENOLEDGER)


@pytest.mark.parametrize("where", ["records", "header"])
async def test_damage_in_the_middle_of_the_journal_refuses_the_start(cluster: BookieCluster, where: str) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await fill(client, 5, range(10))
    await cluster.kill(bookie)
    path = cluster.journal()[-1]
    offset, sequence = batches(path)[4]
    flip(path, offset + (100 if where == "records" else 20))
    with pytest.raises(JournalCorruptError) as caught:
        await cluster.start()
    assert path.name in str(caught.value)
    assert str(offset) in str(caught.value)
    assert f"batch {sequence} " in str(caught.value)
    flip(path, offset + (100 if where == "records" else 20))
    await check(await cluster.connect(await cluster.start()), 5, range(10))


async def test_a_missing_or_beheaded_journal_file_refuses_the_start(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    without_checkpoints(bookie)
    await fill(client, 5, range(40), 1_000_000)
    await cluster.kill(bookie)
    files = [path for path in cluster.journal() if batches(path)]
    assert len(files) >= 3
    for path in files[:2]:
        away = path.with_suffix(".away")
        path.rename(away)
        with pytest.raises(JournalCorruptError):
            await cluster.start()
        away.rename(path)
    flip(files[1], 3)
    with pytest.raises(JournalCorruptError, match=files[1].name):
        await cluster.start()
    flip(files[1], 3)
    await check(await cluster.connect(await cluster.start()), 5, range(40), 1_000_000)


@pytest.mark.parametrize("how", ["emptied", "zeroed", "cut behind its header"])
async def test_a_journal_file_of_which_nothing_is_left_refuses_the_start(cluster: BookieCluster, how: str) -> None:
    """The checkpoint's mark names it, so it has been whole: a node that passed over it would deny all it had (I11)."""
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(3))
    await cluster.kill(bookie)
    (path,) = cluster.journal()
    data = path.read_bytes()
    path.write_bytes({"emptied": b"", "zeroed": bytes(len(data)), "cut behind its header": data[:4096]}[how])
    with pytest.raises(JournalCorruptError, match="cut off" if how.startswith("cut") else "header"):
        await cluster.start()
    path.write_bytes(data)
    await check(await cluster.connect(await cluster.start()), 5, range(3))


async def test_a_spare_journal_file_that_a_crash_left_with_its_header_alone_is_not_used(cluster: BookieCluster) -> None:
    """Named by a checkpoint before anything was written to it, it would look as if it had been cut off."""
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(3))
    await cluster.kill(bookie)
    (path,) = cluster.journal()
    (path.parent / f"spare-{0:016x}.log").write_bytes(path.read_bytes()[:4096])
    await cluster.kill(await cluster.start())
    await check(await cluster.connect(await cluster.start()), 5, range(3))


async def test_a_stale_tail_of_a_recycled_file_is_not_replayed(cluster: BookieCluster) -> None:
    bookie = await cluster.start(journal_max_backups=5)
    client = await cluster.connect(bookie)
    await fill(client, 5, range(70), 1_000_000)
    await bookie.storage.checkpoint()
    await bookie.storage.checkpoint()
    await client.add(entry(6, 0))
    await cluster.kill(bookie)
    for _ in range(3):
        bookie = await cluster.start()
        await fill(await cluster.connect(bookie), 6, range(1, 3))
        await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    await check(client, 5, range(70), 1_000_000)
    await check(client, 6, range(1, 3))


async def test_a_lost_checkpoint_beside_data_refuses_the_start(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(3))
    await cluster.kill(bookie)
    (path,) = cluster.ledger_files("checkpoint")
    flip(path, 30)
    with pytest.raises(CorruptDataError, match="checkpoint"):
        await cluster.start()
    flip(path, 30)
    away = path.rename(path.with_name("away"))
    with pytest.raises(CorruptDataError, match="checkpoint"):
        await cluster.start()
    away.rename(path)
    await check(await cluster.connect(await cluster.start()), 5, range(3))


# ------------------------------------------------------------------------------------------- entry log damage


async def filled_and_stopped(cluster: BookieCluster, count: int = 30) -> Path:
    """Entries of 20,000 bytes in one entry log, its path."""
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(count), 20_000)
    await cluster.stop(bookie)
    (log,) = cluster.ledger_files(".log")
    return log


async def test_a_flipped_bit_in_an_entry_log_costs_that_entry_only(cluster: BookieCluster) -> None:
    log = await filled_and_stopped(cluster)
    offset = log.read_bytes().index(entry(5, 7, bytes([7]) * 20_000))
    flip(log, offset + 5000)
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 7)).status == Status.EIO
    await check(client, 5, range(7), 20_000)
    await check(client, 5, range(8, 30), 20_000)
    assert (await client.fence(5, 7)).status == Status.EIO
    repair = entry(5, 7, bytes([7]) * 20_000)
    assert await client.add(repair, recovery=True) == Status.EOK
    assert bytes((await client.read(5, 7)).body or b"") == repair, "a copy added again is served"


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
async def test_a_missing_or_damaged_sidecar_is_rebuilt(cluster: BookieCluster, damage: str) -> None:
    await filled_and_stopped(cluster)
    (sidecar,) = cluster.ledger_files(".idx")
    before = sidecar.read_bytes()
    if damage == "missing":
        sidecar.unlink()
    elif damage == "flipped":
        flip(sidecar, 70)
    else:
        sidecar.write_bytes(before[:-5])
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await check(client, 5, range(30), 20_000)
    assert (await client.read(5, 30)).status == Status.ENOENTRY, "nothing was lost"
    assert sidecar.read_bytes() == before
    assert not bookie.storage.lossy


async def test_a_damaged_header_in_a_log_without_sidecar_makes_the_absent_unknown(cluster: BookieCluster) -> None:
    log = await filled_and_stopped(cluster)
    offset = log.read_bytes().index(entry(5, 7, bytes([7]) * 20_000))
    flip(log, offset - 20)
    (sidecar,) = cluster.ledger_files(".idx")
    sidecar.unlink()
    for _ in range(2):
        bookie = await cluster.start()
        client = await cluster.connect(bookie)
        assert (await client.read(5, 7)).status == Status.EUNKNOWNLEDGERSTATE, "not: no such entry (I11)"
        assert (await client.read(5, 99)).status == Status.EUNKNOWNLEDGERSTATE
        assert (await client.fence(5, 99)).status == Status.EUNKNOWNLEDGERSTATE
        assert (await client.read(77, 0)).status == Status.ENOLEDGER, "the checkpoint knows every ledger that was here"
        assert (await client.read_lac(99)).status == Status.ENOENTRY
        assert (await client.send_poll(99, 0, 10)).status == Status.ENOLEDGER
        await check(client, 5, range(7), 20_000)
        await check(client, 5, range(8, 30), 20_000)
        await cluster.stop(bookie)


async def test_a_lost_log_is_an_error_for_its_entries_or_makes_the_absent_unknown(cluster: BookieCluster) -> None:
    log = await filled_and_stopped(cluster)
    log.unlink()
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert (await client.read(5, 3)).status == Status.EIO
    await fill(client, 6, range(3))
    await cluster.stop(bookie)
    (log.parent / log.name.replace(".log", ".idx")).unlink()
    client = await cluster.connect(await cluster.start())
    assert (await client.read(5, 3)).status == Status.EUNKNOWNLEDGERSTATE
    await check(client, 6, range(3))


async def test_logs_that_no_checkpoint_knows_are_replaced_from_the_journal(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(20), 300_000)
    await cluster.kill(bookie)
    assert [path.name for path in cluster.ledger_files(".log")] == [log_name(1)]
    bookie = await cluster.start()
    assert [path.name for path in cluster.ledger_files(".log")] == [log_name(2)]
    await check(await cluster.connect(bookie), 5, range(20), 300_000)


# ------------------------------------------------------------------------------------------- identity


async def test_a_wiped_node_is_refused_under_its_old_name(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    await fill(await cluster.connect(bookie), 5, range(3))
    await cluster.stop(bookie)
    for what in ("ledgers", "journal"):
        place = cluster.tmp_path / "a" / what
        place.rename(cluster.tmp_path / "kept")
        with pytest.raises(CookieMismatchError, match="wiped"):
            await cluster.start()
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        place.rmdir()
        (cluster.tmp_path / "kept").rename(place)
    await check(await cluster.connect(await cluster.start()), 5, range(3))


async def test_another_identity_is_refused(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    with pytest.raises(CookieMismatchError, match="bookie id is 'a' there and 'b' here"):
        await cluster.start("a", bookie_id="b")
    store = MemoryStore(cluster.tree)
    data, stat = await store.get("/ledgers/INSTANCEID")
    await store.put("/ledgers/INSTANCEID", b"another-cluster", stat.version)
    with pytest.raises(CookieMismatchError, match="instance id"):
        await cluster.start()
    await store.put("/ledgers/INSTANCEID", data, stat.version + 1)
    await BookieRegistry(store).delete_cookie("a")
    with pytest.raises(CookieMismatchError, match="no cookie in metadata"):
        await cluster.start()
    await store.close()


async def test_a_new_node_in_a_directory_with_foreign_files_is_refused(cluster: BookieCluster) -> None:
    foreign = cluster.tmp_path / "a" / "ledgers" / "current"
    foreign.mkdir(parents=True)
    (foreign / "letter.txt").write_text("not ours")
    with pytest.raises(CookieMismatchError, match="not empty"):
        await cluster.start()


async def test_two_nodes_on_one_directory_are_refused(cluster: BookieCluster) -> None:
    await cluster.start()
    with pytest.raises(BookieConfigurationError, match="another process"):
        await cluster.start()


async def test_a_node_is_registered_while_it_serves_and_again_after_its_session_expired(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    watcher = MemoryStore(cluster.tree)
    registry = BookieRegistry(watcher)
    assert [address.bookie_id for address in await registry.writable()] == ["a"]
    assert (await registry.resolve("a")).port == bookie.address.port
    changed = asyncio.Event()
    registry.watch(changed.set)
    await asyncio.wait_for(changed.wait(), 60)
    cluster.tree.expire(cluster.running[0][1].session_id)
    for _ in range(100):
        changed.clear()
        if await registry.writable():
            break
        await asyncio.wait_for(changed.wait(), 60)
    assert [address.bookie_id for address in await registry.writable()] == ["a"]
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0), key=KEY) == Status.EOK
    await cluster.stop(bookie)
    assert await registry.writable() == []
    await watcher.close()
