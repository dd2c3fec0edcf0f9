"""A region is away for an hour of virtual time and comes back: all is repaired, checked, and the bytes are counted.

`pytest -s tests/storage_node/autorecovery/test_region_away.py` prints the table of docs/regions.md; with `--rounds 1` a
record is written each second of the hour, as there, instead of every half minute.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace

import pytest
from helpers.virtual_time import VirtualTimeLoop
from helpers.worlds.model_cluster import FAST, ModelLink
from helpers.worlds.recovery_world import QUICK, RecoveryWorld

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.zookeeper.memory import MemoryStore
from storage_node.autorecovery.auditor import PlacementCheck, PlacementReport
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.client.client import LedgerClient
from storage_node.client.placement import by_settings
from storage_node.client.placement.racks import StaticResolver
from storage_node.client.writer import LedgerWriter
from storage_node.edge import FrameHandler, Link, Listener, Network
from storage_node.errors import BookieUnreachableError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.frames import LENGTH, Buffer
from storage_node.protocol.striping import write_set
from storage_node.protocol.values import AddRequest
from storage_node.settings.placement import PlacementSettings

REGIONS = ("eu", "us", "ap")
HOME, AWAY = "eu", "us"
PAYLOAD = b"x" * 1000
DIGEST_BYTES = 40
"""Of each entry: its header and CRC32 (docs/reference/wire.md)."""
AWAY_S = 3_600
SEGMENT_S = 300
LISTED = PlacementSettings(
    ensemble_placement_policy="regionaware",
    repp_regions_to_write=";".join(REGIONS),
    region=HOME,
    network_topology_script_file_name="places",  # no such program: PLACES stand for it
)


PLACES = {
    host: f"/{REGIONS[number % len(REGIONS)]}/r{number}"
    for number in range(9)
    for host in (f"b{number}:3181", f"b{number}")
}
"""By host as registered, and as in the id of a node that is away."""


@dataclass
class Way:
    """A way to survive a region."""

    name: str
    sizes: tuple[int, int, int]
    nodes: int
    placement: PlacementSettings

    @property
    def abroad(self) -> int:
        """Copies outside of the writer's region, while none is away."""
        return self.sizes[0] * 2 // 3


WAYS = (
    Way("3/3/2", (3, 3, 2), 2, replace(LISTED, enforce_min_num_fault_domains_for_write=True)),
    Way("6/6/4", (6, 6, 4), 3, LISTED),
)


@dataclass
class Traffic:
    """What one purpose has sent, by (from, to)."""

    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    payload: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    received: Counter[tuple[str, str]] = field(default_factory=Counter)

    def across(self, counts: Counter[tuple[str, str]]) -> int:
        return sum(count for (source, target), count in counts.items() if source != target)


class CountedLink(ModelLink):
    """A connection whose bytes are counted, and those of its entries apart from them."""

    def __init__(self, world: Away, name: str, handler: FrameHandler, traffic: Traffic, region: str) -> None:
        super().__init__(world, world.bookies[name], handler)
        self._traffic = traffic
        self._way = region, world.region[name]

    def send(self, *buffers: Buffer) -> None:
        data = b"".join(bytes(piece) for piece in buffers)
        if self._open:
            self._traffic.sent[self._way] += len(data)
            at = 0
            while at < len(data):
                end = at + 4 + LENGTH.unpack_from(data, at)[0]
                self._count(data[at + 4 : end])
                at = end
        super().send(data)

    def _count(self, frame: bytes) -> None:
        request = None if frame[0] == v2.VERSION else decode_request(memoryview(frame))
        if isinstance(request, AddRequest):
            self._traffic.copies[self._way] += 1
            self._traffic.payload[self._way] += len(request.body) - DIGEST_BYTES

    def _deliver(self, data: bytes) -> None:
        self._traffic.received[self._way] += len(data)
        super()._deliver(data)


class Seen(Network):
    """The network as a process in one region sees it."""

    def __init__(self, world: Away, region: str, traffic: Traffic) -> None:
        self._world, self._region, self._traffic = world, region, traffic

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        await asyncio.sleep(self._world.rng.uniform(0, self._world.jitter_s))
        name = host if ":" in host else f"{host}:{port}"  # by registration, or by the id of one that is away
        if self._world.bookies[name].down:
            raise BookieUnreachableError("connection refused", node=name)
        return CountedLink(self._world, name, handler, self._traffic, self._region)

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        raise NotImplementedError("nobody listens here")


class Away(RecoveryWorld):
    """Three regions; a writer in one of them, and auto-recovery in the two that stay."""

    def __init__(self, way: Way, every_s: float, *, seed: int = 0) -> None:
        super().__init__(len(REGIONS) * way.nodes, seed=seed)
        self.way = way
        self.every_s = every_s
        self.region = {name: PLACES[name].split("/")[1] for name in self.bookies}
        self.writing, self.repair = Traffic(), Traffic()
        self.counts: dict[int, int] = {}
        """Acknowledged entries of each ledger."""
        self.copies_abroad = 0
        """Of acknowledged entries, by the ensembles that they were written to."""
        self.busy = False
        """An entry is under way, or a ledger begins or ends."""
        self.over = False
        settings = replace(FAST, placement=way.placement)
        self.home = LedgerClient(
            self.ledgers,
            self.registry,
            settings=settings,
            network=Seen(self, HOME, self.writing),
            rng=random.Random(seed),
            racks=StaticResolver(PLACES),
        )
        self.clients.append(self.home)

    async def recovery_in(self, region: str) -> AutoRecovery:
        """Start auto-recovery in a region; of the ledgers' rule its settings say nothing."""
        store = MemoryStore(self.tree)
        settings = replace(
            QUICK,
            repair_placement=True,
            open_ledger_grace_period_ms=60_000,  # writers write each half minute
            periodic_placement_check_interval_s=600,
            client=replace(FAST, placement=PlacementSettings(region=region)),
        )
        network, rng = Seen(self, region, self.repair), random.Random(region)
        recovery = AutoRecovery(settings, store, bookie_id=f"r-{region}", network=network, rng=rng)
        self.recoveries[region] = (recovery, store)
        await recovery.start()
        return recovery

    async def write_on(self) -> None:
        """Write a record each `every_s`, and begin a new ledger each SEGMENT_S, until it is `over`."""
        while not self.over:
            self.busy = True
            e, w, a = self.way.sizes
            writer = await self.home.create(ensemble_size=e, write_quorum=w, ack_quorum=a)
            end = self.loop.time() + SEGMENT_S
            while self.loop.time() < end and not self.over:
                await self._write(writer)
                self.busy = False
                await asyncio.sleep(self.every_s)
                self.busy = True
            await writer.close()
            self.busy = False

    async def _write(self, writer: LedgerWriter) -> None:
        entry_id = await writer.add(PAYLOAD)
        self.counts[writer.ledger_id] = entry_id + 1
        self.copies_abroad += sum(self.region[b] != HOME for b in writer.metadata.ensemble_for(entry_id).bookies)

    async def until_idle(self) -> None:
        """Wait until no entry is under way."""
        await self.settle(0.1)
        while self.busy:  # noqa: ASYNC110 (a moment, not an event)
            await asyncio.sleep(0.01)

    def nodes_of(self, region: str) -> list[str]:
        return [name for name in self.bookies if self.region[name] == region]

    async def all_metadata(self) -> dict[int, LedgerMetadata]:
        return {ledger_id: await self.metadata(ledger_id) for ledger_id in self.counts}

    async def named_in(self, region: str) -> int:
        """Return how many copies of entries the metadata put into a region."""
        found = 0
        for ledger_id, metadata in (await self.all_metadata()).items():
            for entry_id in range(self.counts[ledger_id]):
                bookies = metadata.ensemble_for(entry_id).bookies
                places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
                found += sum(self.region[bookies[index]] == region for index in places)
        return found

    async def assert_all_whole(self) -> None:
        """Assert that every acknowledged entry is on each of its bookies, and in two regions."""
        for ledger_id, metadata in (await self.all_metadata()).items():
            assert metadata.is_closed
            assert metadata.last_entry == self.counts[ledger_id] - 1
            for entry_id in range(self.counts[ledger_id]):
                bookies = metadata.ensemble_for(entry_id).bookies
                held = [bookies[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)]
                assert all(entry_id in self.bookies[bookie].ledgers[ledger_id].entries for bookie in held)
                assert not any(self.bookies[bookie].down for bookie in held)
                assert len({self.region[bookie] for bookie in held}) >= 2


@dataclass
class Hour:
    """What one hour came to."""

    way: Way
    repairing: bool
    records: int
    before: int
    """Records that were written before the region went."""
    missing: int
    """Copies that the region held, by the metadata, when it went."""
    world: Away
    report: PlacementReport

    def row(self) -> str:
        writing, repair = self.world.writing, self.world.repair
        copies = writing.across(writing.copies)
        overhead = (writing.across(writing.sent) - writing.across(writing.payload)) / copies
        return (
            f"| {self.way.name} | {'on' if self.repairing else 'off'} | {self.records:,} | {copies:,} | "
            f"{writing.across(writing.payload):,} | {overhead:.0f} | {self.missing if self.repairing else 0:,} | "
            f"{sum(repair.payload.values()):,} | {repair.across(repair.payload):,} | "
            f"{repair.across(repair.received):,} |"
        )


HEADER = (
    "| copies | auto-recovery | records | copies abroad | their payload, bytes | overhead of each | copies missing | "
    "payload restored | of it across regions | checks and answers across |\n|" + "---|" * 10
)


async def an_hour(way: Way, every_s: float, *, repairing: bool) -> Hour:
    async with Away(way, every_s) as world:
        for region in REGIONS:
            if region != AWAY:
                await world.recovery_in(region)
        if not repairing:
            await world.marks.disable()
        writing = asyncio.ensure_future(world.write_on())
        await asyncio.sleep(650)  # in the middle of a ledger
        await world.until_idle()
        before = sum(world.counts.values())
        # While none is away, exactly: each copy abroad once, and nothing else of the payload.
        assert world.writing.across(world.writing.payload) == way.abroad * before * len(PAYLOAD)
        assert world.writing.across(world.writing.copies) == way.abroad * before
        assert not world.repair.payload
        missing = await world.named_in(AWAY)
        for name in world.nodes_of(AWAY):
            await world.lose(name)
        await asyncio.sleep(AWAY_S)
        if repairing:
            await world.until_repaired()
            assert await world.named_in(AWAY) == 0
        for name in world.nodes_of(AWAY):
            await world.bring_back(name)
        await world.marks.enable()
        await asyncio.sleep(600)
        world.over = True
        await writing
        await world.settle(30)
        await world.until_repaired()
        await world.assert_all_whole()
        return await judged(world, repairing, before, missing)


async def judged(world: Away, repairing: bool, before: int, missing: int) -> Hour:
    """Have every ledger checked in both ways, and hold the bytes against what they should be."""
    way, records = world.way, sum(world.counts.values())
    # As `dlspark regions check` does, by the settings of the writer.
    report = await PlacementCheck(world.ledgers, world.home.judge_placement).run()
    assert report.closed == len(world.counts)
    assert (report.not_adhering, report.unreadable) == (0, 0)
    elected = [one.auditor for one, _ in world.recoveries.values() if one.election.elected]
    assert len(elected) == 1
    assert elected[0] is not None
    restored = sum(world.repair.payload.values())
    assert (await elected[0].check_placement()).not_adhering == 0
    assert (await elected[0].check_all_ledgers()).marked == 0, "by reading, every copy is there"
    await world.settle(10)
    assert sum(world.repair.payload.values()) == restored, "the checks found nothing to copy"
    # Every copy that was missing was stored once, and no other.
    assert restored == (missing * len(PAYLOAD) if repairing else 0)
    assert sum(world.repair.copies.values()) == (missing if repairing else 0)
    assert world.repair.across(world.repair.payload) <= restored
    # Writing, the loss included: exactly the copies abroad.
    assert world.writing.across(world.writing.copies) == world.copies_abroad
    assert world.writing.across(world.writing.payload) == world.copies_abroad * len(PAYLOAD)
    return Hour(way, repairing, records, before, missing, world, report)


def run(work: Coroutine[object, None, Hour]) -> Hour:
    """Run more than an hour of virtual time."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work, 4 * AWAY_S))
    finally:
        loop.close()


def test_after_an_hour_every_copy_is_there_and_no_byte_too_many_went_between_regions(
    rounds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_settings, "resolver_of", lambda _settings: StaticResolver(PLACES))
    every_s = 30.0 if rounds is None else 1.0
    found = [run(an_hour(way, every_s, repairing=on)) for way in WAYS for on in (True, False)]
    print("\n" + HEADER)
    for one in found:
        print(one.row())
