"""Compaction copies what is live, makes that durable, and only then lets the old log go (D8)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.bookie.gc_harness import LOG_BYTES, Node, body_of
from helpers.bookie.harness import DIGEST, KEY, MIB
from helpers.waiting import until

from metadata.zookeeper.memory import MemoryTree
from storage_node.bookie.store.compaction import WINDOW_BYTES, Throttle
from storage_node.protocol.schema import Status


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path, MemoryTree())
    await made.metadata.format()
    await made.start()
    yield made
    await made.close()


async def interleaved(node: Node, ledgers: int = 10, entries: int = 60, kept: tuple[int, ...] = (1,)) -> None:
    """Several sealed logs that hold a little of every ledger; all ledgers but `kept` are deleted and collected."""
    await node.create(*kept)
    await node.add_all(
        [(ledger_id, entry_id) for entry_id in range(entries) for ledger_id in range(1, ledgers + 1)], 3000
    )
    await node.bookie.storage.checkpoint()
    node.forget_memory()
    await node.bookie.collect_garbage()


async def test_logs_with_little_that_lives_are_rewritten_and_go(node: Node) -> None:
    await interleaved(node)
    before = node.log_ids()
    assert len(before) >= 6
    assert node.bookie.storage.contents.stats.logs_deleted == 0, "each holds something of ledger 1"
    assert await node.bookie.compact(major=False) == len(before) - 1, "all but the one that is written to"
    stats = node.bookie.storage.contents.stats
    assert stats.logs_compacted == stats.logs_deleted == len(before) - 1
    assert 0 < stats.entries_copied <= 60
    assert not set(before[:-1]) & set(node.log_ids())
    await node.check(1, range(60), 3000)
    assert node.counted() == node.kept_count()
    assert await node.bookie.compact() == 0
    await node.kill()
    await node.start()
    await node.check(1, range(60), 3000)
    assert node.counted() == node.kept_count()
    assert node.files() < 60 * 3000 * 3 + LOG_BYTES


async def test_the_thresholds_tell_minor_from_major_and_zero_is_never(node: Node) -> None:
    await interleaved(node, kept=(1, 2, 3, 4, 5))
    assert await node.bookie.compact(major=False) == 0
    await node.stop()
    node._overrides["major_compaction_threshold"] = 0.0
    await node.start()
    assert await node.bookie.compact() == 0
    await node.stop()
    node._overrides["major_compaction_threshold"] = 0.8
    await node.start()
    assert await node.bookie.compact() >= 5
    for ledger_id in range(1, 6):
        await node.check(ledger_id, range(60), 3000)


async def test_what_only_the_old_log_tells_of_a_ledger_survives_it(node: Node) -> None:
    """Key, fence, LAC and explicit LAC are in the checkpoint; the records in the log are not needed for them."""
    storage = node.bookie.storage
    await node.create(1, 20, 30)
    assert storage.write_lac(20, KEY, memoryview(DIGEST.package_lac(20, 41)), lambda: None) is Status.EOK
    await node.add(30, range(3))
    fenced = storage.fence(30, KEY)
    assert not isinstance(fenced, Status)
    await fenced
    await interleaved(node, kept=())
    assert set(node.bookie.storage.ledgers) == {1, 20, 30}
    first = node.log_ids()[0]
    assert await node.bookie.compact() >= 1
    assert first not in node.log_ids()
    for _ in range(2):
        await node.kill()
        await node.start()
        storage = node.bookie.storage
        assert storage.ledgers[20].explicit_lac == DIGEST.package_lac(20, 41)
        assert storage.ledgers[20].lac == 41
        assert storage.ledgers[30].lac == 1
        assert await node.add(30, [5]) is Status.EFENCED
        assert storage.add(memoryview(body_of(20, 0)), b"x" * 20, False, None, b"") is Status.EUA  # type: ignore[arg-type]
        await node.check(30, range(3))


async def test_a_read_under_way_on_the_old_log_comes_to_its_end(node: Node) -> None:
    await interleaved(node)
    entered, gate = threading.Event(), threading.Event()
    old = node.log_ids()[0]

    def hold(path: str) -> None:
        if f"{old:016x}" in path and threading.current_thread().name.startswith("bookie-reads"):
            node.disk.read_gate = None
            entered.set()
            gate.wait(60)

    node.disk.read_gate = hold
    reading = asyncio.ensure_future(node.read(1, 0))
    await until(entered.is_set)
    assert await node.bookie.compact() >= 5
    assert old not in node.log_ids()
    gate.set()
    assert await reading == body_of(1, 0, 3000)
    assert await node.read(1, 0) == body_of(1, 0, 3000)


async def test_a_damaged_record_stops_its_logs_compaction_and_is_never_dropped(node: Node) -> None:
    await interleaved(node)
    place = node.bookie.storage.ledgers[1].index.get(8)
    assert place is not None
    damaged = node.path_of(place[0])
    with damaged.open("r+b") as stream:
        stream.seek(place[1] * 32 + 100)
        byte = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([byte ^ 4]))
    before = len(node.log_ids())
    assert await node.bookie.compact() == before - 2
    stats = node.bookie.storage.contents.stats
    assert stats.compactions_stopped == 1
    assert damaged.exists()
    assert await node.read(1, 8) is Status.EIO, "an error, and not: no such entry"
    await node.check(1, [entry_id for entry_id in range(60) if entry_id != 8], 3000)
    assert await node.bookie.compact() == 0, "not copied over and over"
    assert stats.compactions_stopped == 1
    await node.delete(1)
    await node.bookie.collect_garbage()
    assert not damaged.exists(), "it goes when nothing in it is live any more"


@pytest.mark.parametrize("how", ["unreadable", "cut", "header"])
async def test_a_log_that_cannot_be_gone_through_is_kept(node: Node, how: str) -> None:
    await interleaved(node)
    bad = node.log_ids()[1]
    path = node.path_of(bad)
    if how == "unreadable":
        node.disk.unreadable.add(path.name)
    elif how == "cut":
        with path.open("r+b") as stream:
            stream.truncate(8192)
    else:
        with path.open("r+b") as stream:
            stream.seek(64)
            stream.write(bytes(32))
    before = len(node.log_ids())
    assert await node.bookie.compact() == before - 2
    assert path.exists()
    assert node.bookie.storage.contents.stats.compactions_stopped == 1


async def test_an_entry_overwritten_or_collected_while_its_log_is_copied_stays_so(node: Node) -> None:
    await interleaved(node, kept=(1, 2))
    await node.delete(2)
    compacting = asyncio.ensure_future(node.bookie.storage.compactor.compact(0.9))
    for number in range(12):
        await asyncio.sleep(0)
        await node.add(1, [number * 5], 2000)
    node.bookie.storage.contents.delete(2, 0)
    assert await compacting >= 5
    for _ in range(2):
        for entry_id in range(60):
            size = 2000 if entry_id % 5 == 0 else 3000
            assert await node.read(1, entry_id) == body_of(1, entry_id, size)
        assert node.counted() == node.kept_count()
        await node.kill()
        await node.start()


async def test_a_copy_that_waits_for_memory_looks_again_before_it_is_made(node: Node) -> None:
    """Between the reading of a record and its copying, its ledger may go, or a later copy may come."""
    await interleaved(node, kept=(1, 2))
    writing, gate = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if "/journal" not in path and threading.current_thread().name.startswith("bookie-entries"):
            writing.set()
            gate.wait(60)

    node.disk.write_gate = hold
    await node.create(3)
    number = 0
    while not node.bookie.storage.contents.logs.lagging:
        await node.add(3, [number], 60_000)
        number += 1
    assert writing.is_set()
    compacting = asyncio.ensure_future(node.bookie.storage.compactor.compact(0.9))
    storage = node.bookie.storage
    await until(lambda: storage._room_waiters)
    await node.add(1, range(60), 2000)
    storage.contents.delete(2, 0)
    node.disk.write_gate = None
    gate.set()
    assert await compacting == 1, "in the other logs nothing was live any more"
    assert storage.contents.stats.logs_deleted >= 5
    await node.check(1, range(60), 2000)
    assert 2 not in storage.ledgers
    assert node.counted() == node.kept_count()


def collected_while_waiting(node: Node, monkeypatch: pytest.MonkeyPatch, ledger_id: int) -> list[int]:
    """Have a ledger deleted and collected where compaction first waits for its pace; returns how many were, by then."""
    collected = list[int]()

    async def collect_then(units: int) -> None:
        if not collected:
            await node.delete(ledger_id)
            collected.append(await node.bookie.collect_garbage())

    monkeypatch.setattr(node.bookie.storage.compactor._throttle, "spend", collect_then)
    return collected


async def test_a_log_that_is_collected_while_it_is_copied_is_left_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interleaved(node)
    collected = collected_while_waiting(node, monkeypatch, 1)
    await node.bookie.compact()
    assert collected == [1]
    assert len(node.log_ids()) <= 1, "only the one that is written to"
    assert node.bookie.storage.contents.stats.compactions_stopped == 0
    assert not node.bookie.storage.compactor._stopped


async def test_logs_that_are_collected_while_others_are_copied_end_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create(11)
    await interleaved(node)
    first = len(node.log_ids())
    await node.add_all([(ledger_id, entry_id) for entry_id in range(60) for ledger_id in range(11, 21)], 3000)
    await node.create(30)
    await node.add(30, range(90), 3000)
    await node.bookie.storage.checkpoint()
    node.forget_memory()
    await node.bookie.collect_garbage()
    second = len(node.log_ids())
    assert second - first >= 5
    collected = collected_while_waiting(node, monkeypatch, 11)
    done = await node.bookie.compact()
    assert collected == [1]
    assert first - 1 <= done < second - 2, "those of ledger 1; of ledger 11 there was nothing left to copy"
    assert node.bookie.storage.contents.stats.compactions_stopped == 0
    await node.check(1, range(60), 3000)
    await node.check(30, range(90), 3000)
    assert node.counted() == node.kept_count()


@pytest.mark.parametrize("how", ["gone", "cut off"])
async def test_an_entry_that_was_copied_while_it_was_read_is_read_where_it_lies_now(
    node: Node, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await interleaved(node)
    storage = node.bookie.storage
    logs, place = storage.contents.logs, storage.ledgers[1].index.get(0)
    assert place is not None

    async def too_late(log_id: int, offset: int, size: int) -> memoryview:
        monkeypatch.undo()
        await node.bookie.compact()
        assert log_id == place[0]
        assert log_id not in node.log_ids()
        if how == "gone":
            raise FileNotFoundError(how)
        return memoryview(b"")

    monkeypatch.setattr(logs, "read", too_late)
    assert await node.read(1, 0) == body_of(1, 0, 3000)
    assert storage.unreadable == storage.damaged == 0


async def test_a_damaged_log_without_a_sidecar_is_kept_with_what_might_be_in_it(node: Node) -> None:
    await interleaved(node, kept=(1, 2, 3))
    await node.stop()
    bad = node.path_of(node.log_ids()[1])
    bad.with_suffix(".idx").unlink()
    with bad.open("r+b") as stream:
        stream.seek(64)
        stream.write(bytes(32))
    await node.start()
    assert node.bookie.storage.lossy
    await node.delete(1, 2)
    await node.create(20)
    await node.add(20, range(3))
    assert await node.bookie.collect_garbage() == 2
    await node.add(3, range(60), 3000)
    assert node.bookie.storage.contents.live.live(int(bad.stem, 16)) == 0, "all that is known of it lies elsewhere too"
    await node.bookie.compact()
    await node.bookie.storage.checkpoint()
    assert bad.exists(), "what cannot be made out may be of ledger 3"
    assert not isinstance(await node.read(20, 3), bytes)
    await node.delete(3)
    assert await node.bookie.collect_garbage() == 1
    assert not bad.exists(), "no ledger is left that it might hold something of"
    assert not node.bookie.storage.lossy
    for _ in range(2):
        await node.check(20, range(3))
        assert await node.read(20, 3) is Status.ENOENTRY
        await node.kill()
        await node.start()


async def test_the_current_log_is_ended_when_it_is_mostly_dead(node: Node) -> None:
    """A node to which nobody writes any more gives that space back as well."""
    await node.stop()
    node._overrides["log_size_limit"] = 16 * LOG_BYTES
    await node.start()
    await node.create(1)
    await node.add_all([(ledger, entry) for entry in range(60) for ledger in (1, 2, 3, 4, 5, 6, 7, 8)], 3000)
    await node.bookie.collect_garbage()
    assert len(node.log_ids()) == 1
    before = node.files()
    assert await node.bookie.compact(major=False) == 1
    await node.check(1, range(60), 3000)
    assert node.files() < before / 3
    await node.delete(1)
    await node.bookie.collect_garbage()
    await node.add_all([(2, entry) for entry in range(60)], 3000)
    await node.bookie.collect_garbage()
    await node.bookie.compact(major=False)
    assert node.files() == 0, "not even one log"
    await node.create(4)
    for _ in range(2):
        await node.add(4, range(5))
        await node.kill()
        await node.start()
        await node.check(4, range(5))


@pytest.mark.parametrize("full", ["both", "ledgers0", "ledgers1"])
async def test_compaction_goes_on_where_there_is_room(node: Node, full: str) -> None:
    await node.stop()
    node._overrides["min_usable_size_for_entry_log_creation"] = MIB
    await node.start()
    await interleaved(node)

    def usage(path: str) -> tuple[int, int, int]:
        return (1, 1 << 40, 1000 if full == "both" or full in path else 1 << 39)

    node.disk.usage = usage  # type: ignore[method-assign]
    node.bookie.disks.look()
    before = node.log_ids()
    assert await node.bookie.compact() == (0 if full == "both" else len(before) - 1)
    if full != "both":
        place = node.bookie.storage.ledgers[1].index.get(0)
        assert place is not None
        assert full not in str(node.path_of(place[0]))
    await node.check(1, range(60), 3000)


async def test_copying_waits_for_space_and_for_its_pace(node: Node) -> None:
    await interleaved(node)
    node.disk.free = 100
    assert await node.bookie.compact() == 0
    node.disk.free = None
    assert await node.bookie.compact() >= 5
    loop = asyncio.get_running_loop()
    pace, begun = Throttle(1000), loop.time()
    for _ in range(5):
        await pace.spend(20)
    assert loop.time() - begun >= 0.079, "the fifth waits for the four before it"


async def test_no_more_is_copied_between_two_looks_at_the_pace_than_one_read_brings(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interleaved(node, kept=(1, 2, 3))
    paid = list[int]()

    async def note(units: int) -> None:
        paid.append(units)

    monkeypatch.setattr(node.bookie.storage.compactor._throttle, "spend", note)
    rewritten = await node.bookie.compact()
    copied = node.bookie.storage.contents.stats.entries_copied
    assert rewritten >= 5
    assert len(paid) >= 2 * rewritten, "logs of 256 KB, which are read in pieces of 128 KB"
    assert max(paid) <= WINDOW_BYTES / 3000
    assert sum(paid) >= copied - WINDOW_BYTES / 3000


async def test_the_log_that_is_written_and_what_no_checkpoint_covers_are_never_deleted(node: Node) -> None:
    await node.add(1, range(50), 3000)
    contents = node.bookie.storage.contents
    assert contents.delete(1, 0)
    assert node.bookie.storage.checkpoints._idle_logs() == {}
    await node.bookie.storage.checkpoint()
    assert len(node.log_ids()) == 1, "the current log stays, whatever is dead in it"
    await node.add(2, range(300), 3000)
    assert contents.delete(2, 0)
    assert set(node.bookie.storage.checkpoints._idle_logs()) == {node.log_ids()[0]} - set(contents.logs.writing)
    await node.bookie.storage.checkpoint()
    await node.bookie.storage.checkpoint()
    assert len(node.log_ids()) == 1
    assert await node.add(3, range(3)) is Status.EOK


async def test_a_file_that_cannot_be_removed_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await interleaved(node, kept=())

    def refuse(path: str) -> None:
        raise OSError(16, "busy", path)

    await node.add(1, range(200), 3000)
    monkeypatch.setattr(node.disk, "remove", refuse)
    await node.bookie.collect_garbage()
    await node.bookie.storage.checkpoint()
    left = len(node.log_ids())
    assert left > 2
    assert not node.bookie.storage.writing_failed
    monkeypatch.undo()
    await node.bookie.storage.checkpoint()
    assert len(node.log_ids()) < left


# ------------------------------------------------------------------------------------------- counting (D9, D11)


async def test_live_bytes_are_what_a_new_start_counts(node: Node) -> None:
    """The header of a log is derived from its content (D9): nothing about liveness is stored that could be stale."""
    rng = random.Random(5)
    await node.create(*range(8))
    for step in range(60):
        ledger_id = rng.randrange(8)
        await node.add(ledger_id, [rng.randrange(50) for _ in range(20)], rng.randrange(50, 4000))
        if step % 9 == 0:
            await node.bookie.storage.checkpoint()
        if step % 20 == 19:
            await node.delete(ledger_id)
            await node.bookie.collect_garbage()
        assert node.counted() == node.kept_count()
    counted = node.counted()
    stored = {log_id: usage.stored for log_id, usage in node.bookie.storage.contents.live.logs.items()}
    await node.stop()
    await node.start()
    again = {log_id: usage.stored for log_id, usage in node.bookie.storage.contents.live.logs.items()}
    assert node.counted() == node.kept_count() == counted
    known = node.bookie.storage.checkpoints.logs_known
    assert {log_id: stored[log_id] for log_id in known} == {log_id: again[log_id] for log_id in known}


@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "foreign"])
async def test_a_spoiled_sidecar_changes_no_answer_and_no_count(node: Node, how: str) -> None:
    await interleaved(node, kept=(1, 2, 3))
    await node.stop()
    counted_log, other = node.log_ids()[1:3]
    sidecar = node.path_of(counted_log, ".idx")
    data = sidecar.read_bytes()
    if how == "missing":
        sidecar.unlink()
    else:
        foreign = node.path_of(other, ".idx").read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 16
        sidecar.write_bytes({"cut": data[:-7], "flipped": bytes(flipped), "foreign": foreign}[how])
    await node.start()
    for ledger_id in (1, 2, 3):
        await node.check(ledger_id, range(60), 3000)
    assert set(node.bookie.storage.ledgers) == {1, 2, 3}
    assert node.counted() == node.kept_count()
    assert await node.bookie.compact() >= 5
    assert not node.bookie.storage.lossy
    for ledger_id in (1, 2, 3):
        await node.check(ledger_id, range(60), 3000)
