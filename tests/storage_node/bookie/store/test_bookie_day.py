"""A day of writes in a few seconds: ledgers come, are filled and deleted, and the disk holds what the living need.

A minute of the day writes one ledger, which is deleted an hour later; one in twenty is kept until the evening. Logs,
intervals and memory are small, so that collection and compaction work all the time, by themselves, beside the load.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from helpers.bookie.gc_harness import Node, body_of
from helpers.bookie.harness import MIB, WireClient
from helpers.waiting import until

from metadata.zookeeper.memory import MemoryTree
from storage_node.protocol.schema import Status
from storage_node.transport.tcp import TcpNetwork

FACTOR = 1.35
"""What the disk may hold for a byte of live entries: 1 / 0.8 by the threshold of the major compaction, the rest for
headers, alignment and sidecars. Two logs come on top: the one that is written to, and the one that was last."""
LOG = MIB // 2
HOUR = 60

SETTINGS: dict[str, object] = {
    "log_size_limit": LOG,
    "skip_list_size_limit": 2 * MIB,
    "flush_interval_ms": 100,
    "gc_wait_time_ms": 100,
    "minor_compaction_interval_s": 1,
    "major_compaction_interval_s": 2,
    "compaction_rate_by_entries": 20_000,
}


class Day:
    """The load of a day on one node."""

    def __init__(self, node: Node, entries: int, seed: int) -> None:
        self.node = node
        self.entries = entries
        self.rng = random.Random(seed)
        self.sizes: dict[int, int] = {}
        self.gone: list[int] = []
        self.client = WireClient()
        self.reads = 0
        self.peak = 0
        self.written = 0

    async def connect(self) -> None:
        address = self.node.bookie.address
        self.client = WireClient()
        self.client.link = await TcpNetwork().connect(address.host, address.port, self.client, timeout_ms=60_000)

    async def disconnect(self) -> None:
        assert self.client.link is not None
        self.client.link.close()
        await self.client.closed.wait()

    async def minute(self, number: int) -> None:
        await self.node.create(number)
        size = self.rng.randrange(200, 4000)
        bodies = [body_of(number, entry_id, size) for entry_id in range(self.entries)]
        answers = await asyncio.gather(*(self.client.send_add(body) for body in bodies))
        assert {answer.status for answer in answers} == {Status.EOK}
        self.sizes[number] = size
        self.written += sum(map(len, bodies))
        if number > HOUR and (number - HOUR) % 20:
            await self.delete(number - HOUR)
        await self.read_some()
        if number % 10 == 0:
            self.peak = max(self.peak, self.node.files())

    async def delete(self, number: int) -> None:
        await self.node.delete(number)
        del self.sizes[number]
        self.gone.append(number)

    async def read_some(self) -> None:
        """Living ledgers answer with their entries; deleted ones with the same, or that there is no such ledger."""
        for number in self.rng.sample(sorted(self.sizes), min(5, len(self.sizes))):
            await self.check(number, self.rng.randrange(self.entries))
        if self.gone:
            answer = await self.client.read(self.rng.choice(self.gone), 0)
            assert answer.status in (Status.EOK, Status.ENOLEDGER)

    async def check(self, number: int, entry_id: int) -> None:
        answer = await self.client.read(number, entry_id)
        assert answer.status == Status.EOK, (number, entry_id, answer.status)
        assert bytes(answer.body or b"") == body_of(number, entry_id, self.sizes[number])
        self.reads += 1

    async def run(self, minutes: int) -> None:
        await self.connect()
        for number in range(1, minutes + 1):
            await self.minute(number)
            if number in (minutes // 3, 2 * minutes // 3):
                await self.disconnect()
                await (self.node.kill() if number < minutes // 2 else self.node.stop())
                await self.node.start()
                await self.connect()

    async def evening(self) -> None:
        """Let the node come to rest, by itself: nothing left to collect, to remove or to rewrite."""
        storage = self.node.bookie.storage

        def rests() -> bool:
            busy = set(storage.ledgers) != set(self.sizes) or storage.checkpoints.can_free
            return not busy and not storage.compactor.candidates(0.8)

        await until(rests, "the node does not come to rest", every_s=0.05)

    @property
    def live(self) -> int:
        return sum(len(body_of(number, 0, size)) * self.entries for number, size in self.sizes.items())


async def live_through(path: Path, minutes: int, entries: int, seed: int) -> None:
    node = Node(path, MemoryTree(), **SETTINGS)
    await node.metadata.format()
    await node.start()
    day = Day(node, entries, seed)
    await day.run(minutes)
    for number in [number for number in day.sizes if number <= minutes - HOUR][::2]:
        await day.delete(number)
    await day.evening()
    for number in day.sizes:
        for entry_id in range(0, entries, 5):
            await day.check(number, entry_id)
    await node.bookie.storage.checkpoint()
    stats, used, live = node.bookie.storage.contents.stats, node.files(), day.live
    print(
        f"{minutes} minutes, {day.written / MIB:.0f} MiB written, peak on disk {day.peak / MIB:.1f} MiB; at the end "
        f"{used / MIB:.2f} MiB for {live / MIB:.2f} MiB live: factor {used / live:.2f}; {day.reads} reads; {stats}"
    )
    assert stats.compactions_stopped == 0
    assert stats.logs_compacted > 0
    assert day.peak < day.written * 3 / 4  # collection keeps up; how closely, the machine decides
    assert used <= FACTOR * live + 2 * LOG
    await day.disconnect()
    await node.close()


async def test_a_day_of_writes_leaves_the_disk_with_what_living_ledgers_need(tmp_path: Path) -> None:
    await live_through(tmp_path, minutes=24 * HOUR, entries=16, seed=1)


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_whole_days_of_writes(tmp_path: Path, rounds: int | None, seed: int | None) -> None:
    for number in [seed] if seed is not None else range(rounds or 3):
        await live_through(tmp_path / str(number), minutes=24 * HOUR, entries=60, seed=number)
