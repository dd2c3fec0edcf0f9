"""A crash at any step of collection and compaction: what is live is there, equal; what is deleted stays so (I1, D8)."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from helpers.bookie.gc_harness import Node, Sink, body_of
from helpers.bookie.harness import KEY
from helpers.waiting import until

from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.memory import MemoryTree
from storage_node.protocol.schema import Status

LIVE = {1: 60, 2: 20, 3: 7}
DELETED = range(10, 16)
SIZE = 3000


async def prepared(path: Path, tree: MemoryTree) -> None:
    """Stopped directories with live, deleted and fenced ledgers mixed in several logs, and something in the journal."""
    node = Node(path, tree)
    await node.metadata.format()
    await node.create(*LIVE, *DELETED)
    await node.start()
    everything = [
        (ledger, entry) for entry in range(60) for ledger in (*LIVE, *DELETED) if entry < LIVE.get(ledger, 60)
    ]
    await node.add_all(everything[:250], SIZE)
    await node.bookie.storage.checkpoint()
    await node.add_all(everything[250:], SIZE)
    pending = node.bookie.storage.fence(10, KEY)
    assert not isinstance(pending, Status)
    await pending
    await node.kill()
    await node.delete(*DELETED)
    await node.admin.close()


async def verify(node: Node, *, collected: bool) -> None:
    """Everything live is there; a deleted ledger is whole, or gone, and certainly gone if that was promised."""
    for ledger, entries in LIVE.items():
        await node.check(ledger, range(entries), SIZE)
    storage = node.bookie.storage
    for ledger in DELETED:
        if ledger in storage.ledgers:
            assert not collected, f"ledger {ledger} is here again"
            await node.check(ledger, range(60), SIZE)
        else:
            assert await node.read(ledger, 5) is Status.ENOLEDGER
    assert await node.add(10, [99]) is Status.EFENCED, "fenced when it was deleted, or still here and fenced"
    assert not storage.lossy
    assert node.counted() == node.kept_count()


async def collect_and_compact(node: Node) -> bool:
    """True if the collection came to its end."""
    try:
        await node.bookie.collect_garbage()
    except (DistributedLogError, OSError):
        return False
    try:
        await node.bookie.compact()
    except (DistributedLogError, OSError):
        pass
    return True


async def one_crash(path: Path, tree: MemoryTree, at: int) -> bool:
    """Let the disk die after `at` changes. True if that was in time."""
    node = Node(path, tree)
    await node.start()
    node.forget_memory()
    node.disk.die_in(at)
    collected = await collect_and_compact(node)
    died = node.disk.dead
    await node.kill()
    await node.start()
    await verify(node, collected=collected)
    assert await collect_and_compact(node)
    await verify(node, collected=True)
    assert node.bookie.storage.contents.stats.compactions_stopped == 0
    await node.kill()
    await node.start()
    await verify(node, collected=True)
    await node.close()
    return died


async def test_a_crash_at_any_change_of_the_disk_loses_nothing_and_brings_nothing_back(
    tmp_path: Path, rounds: int | None
) -> None:
    tree = MemoryTree()
    await prepared(tmp_path / "node", tree)
    shutil.copytree(tmp_path / "node", tmp_path / "before")
    at, died = 0, True
    while died:
        shutil.rmtree(tmp_path / "node")  # its cookie holds the names of its directories: always the same ones
        shutil.copytree(tmp_path / "before", tmp_path / "node")
        died = await one_crash(tmp_path / "node", tree, at)
        at += 1 if rounds else 4  # every single one, in every way: test_bookie_gc_power
    assert at > 20, "collection and compaction change the disk more often than that"


# ------------------------------------------------------------------------------------------- random operations


class Model:
    """What the node must hold: entries that are certain, entries that may be there, and fences."""

    def __init__(self) -> None:
        self.certain: dict[int, set[int]] = {}
        self.possible: dict[int, set[int]] = {}
        self.fenced: set[int] = set()
        self.perhaps_fenced: set[int] = set()
        self.deleted: set[int] = set()

    def doubt(self, ledger_id: int) -> None:
        """All of it may be there or not."""
        self.possible.setdefault(ledger_id, set()).update(self.certain.pop(ledger_id, ()))

    def gone(self, ledger_id: int) -> None:
        self.certain.pop(ledger_id, None)
        self.possible.pop(ledger_id, None)


class Play:
    """Random operations on one node, each followed by a comparison with the model."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.model = Model()
        self.next_ledger = 0
        self.done: list[str] = []

    async def run(self, steps: int) -> None:
        await self.node.metadata.format()
        await self.node.start()
        for _ in range(steps):
            action = self.rng.choices(
                (self.create, self.add, self.delete, self.collect, self.compact, self.checkpoint, self.fence, self.end),
                (4, 14, 3, 4, 4, 2, 1, 2),
            )[0]
            self.done.append(action.__name__)
            if self.rng.random() < 0.15:
                self.node.disk.die_in(self.rng.randrange(12))
            await action()
            if self.node.disk.dead:
                self.done.append("died")
                await self.node.kill()
                await self.node.start()
            await self.compare()
        await self.node.close()

    async def create(self) -> None:
        self.next_ledger += 1
        await self.node.create(self.next_ledger)
        self.model.certain[self.next_ledger] = set()

    async def add(self) -> None:
        """A burst to some ledgers, now and then to one that is deleted, or of entries that are there already."""
        if not self.next_ledger:
            return
        storage, sink = self.node.bookie.storage, Sink()
        for _ in range(self.rng.randrange(1, 80)):
            ledger_id, entry_id = (
                self.rng.randint(max(1, self.next_ledger - 8), self.next_ledger),
                self.rng.randrange(120),
            )
            name = b"%d:%d" % (ledger_id, entry_id)
            status = storage.add(memoryview(body_of(ledger_id, entry_id, SIZE)), KEY, False, sink, name)
            if status is Status.EOK:
                assert ledger_id not in self.model.fenced, f"ledger {ledger_id} is fenced"
                self.model.possible.setdefault(ledger_id, set()).add(entry_id)
            elif status is None:
                await asyncio.sleep(0.001)
            else:
                assert status is Status.EFENCED
                assert ledger_id in self.model.fenced | self.model.perhaps_fenced
        try:
            await storage.journal.durable()
        except (DistributedLogError, OSError):
            assert self.node.disk.dead
        for name in sink.durable_adds:
            ledger_id, entry_id = map(int, name.split(b":"))
            self.model.certain.setdefault(ledger_id, set()).add(entry_id)

    async def delete(self) -> None:
        living = [ledger_id for ledger_id in range(1, self.next_ledger + 1) if ledger_id not in self.model.deleted]
        if living:
            ledger_id = self.rng.choice(living)
            await self.node.delete(ledger_id)
            self.model.deleted.add(ledger_id)

    async def collect(self) -> None:
        deleted = list(self.model.deleted)
        try:
            await self.node.bookie.collect_garbage()
        except (DistributedLogError, OSError):
            assert self.node.disk.dead
            for ledger_id in deleted:
                self.model.doubt(ledger_id)
        else:
            for ledger_id in deleted:
                self.model.gone(ledger_id)

    async def compact(self) -> None:
        self.node.forget_memory()
        try:
            await self.node.bookie.compact(major=self.rng.random() < 0.7)
        except (DistributedLogError, OSError):
            assert self.node.disk.dead

    async def checkpoint(self) -> None:
        await self.node.bookie.storage.checkpoint()

    async def fence(self) -> None:
        if not self.next_ledger:
            return
        ledger_id = self.rng.randint(1, self.next_ledger)
        pending = self.node.bookie.storage.fence(ledger_id, KEY)
        if isinstance(pending, Status):
            assert pending is Status.ENOLEDGER
            assert ledger_id in self.model.deleted & (self.model.fenced | self.model.perhaps_fenced)
            return
        self.model.perhaps_fenced.add(ledger_id)
        await until(lambda: pending.done() or self.node.disk.dead)
        if pending.done():
            self.model.fenced.add(ledger_id)

    async def end(self) -> None:
        if self.rng.random() < 0.7:
            await self.node.kill()
        else:
            self.node.disk.dies_at = None
            await self.node.stop()
        await self.node.start()

    async def compare(self) -> None:
        model = self.model
        for ledger_id in range(1, self.next_ledger + 1):
            certain, possible = model.certain.get(ledger_id, set()), model.possible.get(ledger_id, set())
            for entry_id in range(120):
                found = await self.node.read(ledger_id, entry_id)
                if entry_id in certain or (entry_id in possible and isinstance(found, bytes)):
                    assert found == body_of(ledger_id, entry_id, SIZE), (ledger_id, entry_id, found)
                else:
                    assert found in (Status.ENOENTRY, Status.ENOLEDGER), (ledger_id, entry_id, found)
        assert not self.node.bookie.storage.lossy
        assert self.node.bookie.storage.contents.stats.compactions_stopped == 0
        assert self.node.counted() == self.node.kept_count()


async def play(path: Path, seed: int, steps: int) -> list[str]:
    journals = tuple(str(path / str(seed) / f"journal{number}") for number in range(1 + seed % 2))
    player = Play(Node(path / str(seed), MemoryTree(), journal_directories=journals), random.Random(seed))
    try:
        await player.run(steps)
    except BaseException:
        print(f"replay: --seed {seed}; {' '.join(player.done)}")
        raise
    shutil.rmtree(path / str(seed))
    return player.done


async def test_random_operations_and_crashes_agree_with_a_model(
    tmp_path: Path, rounds: int | None, seed: int | None
) -> None:
    seeds = [seed] if seed is not None else list(range(rounds or 4))
    done: list[str] = []
    for number in seeds:
        done += await play(tmp_path, number, 40)
    assert seed is not None or {"died", "collect", "compact", "end", "fence", "delete"} <= set(done)


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_random_operations_for_long(tmp_path: Path, rounds: int | None, seed: int | None) -> None:
    seeds = [seed] if seed is not None else list(range(1000, 1000 + (rounds or 100)))
    for number in seeds:
        await play(tmp_path, number, 120)
