"""Reads over three regions with real bookies and real sockets, between which relays delay, count and cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.client.client import LedgerClient
from storage_node.client.placement.racks import StaticResolver
from storage_node.client.reader import LedgerReader
from storage_node.edge import FrameHandler, Link
from storage_node.settings.bookie import MIB, BookieSettings
from storage_node.settings.client import ClientSettings
from storage_node.transport.tcp import TcpNetwork

REGIONS = ("eu", "us", "ap")
HOSTS = {region: f"127.0.{index}.1" for index, region in enumerate(REGIONS, 1)}
LOCATIONS = {host: f"/{region}/rack" for region, host in HOSTS.items()}
ENTRY = bytes(20_000)
SETTINGS = ClientSettings(explicit_lac_interval_ms=20, vacancy_retry_ms=60_000)
LIMIT_S = 60
"""Behind this a test has failed; nothing is concluded from how long anything takes."""


class Relay:
    """The way from one client to one bookie: late, counted, and cut if it is told to."""

    def __init__(self, bookie: BookieAddress, one_way_s: float) -> None:
        self._bookie = bookie
        self._one_way_s = one_way_s
        self.cut = False
        self.to_client = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        far_reader, far_writer = await asyncio.open_connection(self._bookie.host, self._bookie.port)
        self._ends.append(far_writer)
        for source, target, back in ((reader, far_writer, False), (far_reader, writer, True)):
            task = asyncio.ensure_future(self._pass_on(source, target, back=back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, back: bool) -> None:
        loop = asyncio.get_running_loop()

        def deliver(data: bytes) -> None:
            if not self.cut and not target.is_closing():
                self.to_client += len(data) if back else 0
                target.write(data)

        while data := await source.read(1 << 16):
            loop.call_later(self._one_way_s, deliver, data)
        loop.call_later(self._one_way_s, target.close)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)


class RelayedNetwork(TcpNetwork):
    """A client's network: each bookie is reached by a relay of its own."""

    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__()
        self._ports = ports

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        return await super().connect("127.0.0.1", self._ports[port], handler, timeout_ms=timeout_ms)


class World:
    """Three bookies, one in each region; clients by `client`, each with relays to all of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.ledgers = LedgerStore(self.store)
        self.registry = BookieRegistry(self.store)
        self.bookies: dict[str, Bookie] = {}
        self.clients: list[LedgerClient] = []
        self.relays: list[Relay] = []
        self.stores = [self.store]

    async def start(self) -> None:
        await self.ledgers.format()
        for region in REGIONS:
            settings = BookieSettings(
                journal_directories=(str(self.directory / region / "journal"),),
                ledger_directories=(str(self.directory / region / "ledgers"),),
                bookie_port=0,
                listening_address=HOSTS[region],
                bookie_id=region,
                journal_max_size_mb=16,
                journal_pre_alloc_size_mb=1,
                skip_list_size_limit=32 * MIB,
            )
            store = MemoryStore(self.tree)
            self.stores.append(store)
            self.bookies[region] = Bookie(settings, store)
            await self.bookies[region].start()

    async def client(self, region: str) -> tuple[LedgerClient, dict[str, Relay]]:
        relays: dict[str, Relay] = {}
        ports: dict[int, int] = {}
        for index, (name, bookie) in enumerate(self.bookies.items()):
            distance = abs(index - REGIONS.index(region))
            relay = relays[name] = Relay(bookie.address, (0.0, 0.010, 0.030)[distance])
            ports[bookie.address.port] = await relay.start()
            self.relays.append(relay)
        settings = replace(SETTINGS, placement=replace(SETTINGS.placement, region=region))
        client = LedgerClient(
            self.ledgers,
            self.registry,
            settings=settings,
            network=RelayedNetwork(ports),
            racks=StaticResolver(LOCATIONS),
        )
        self.clients.append(client)
        return client, relays

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for relay in self.relays:
            await relay.close()
        for bookie in self.bookies.values():
            await bookie.stop()
        for store in reversed(self.stores):
            await store.close()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    made = World(directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def take(reader: LedgerReader, first: int, last: int) -> None:
    following = first
    while following <= last:
        entry = await reader.poll(following, 1_000)
        if entry is not None:
            assert entry.entry_id == following
            following += 1


async def test_a_tail_is_read_nearby_until_the_near_node_is_cut_from_the_writer(tmp_path: Path) -> None:
    async with world(tmp_path) as regions:
        writing, ways_of_writer = await regions.client("us")
        writer = await writing.create()
        await asyncio.gather(*(writer.add(ENTRY) for _ in range(5)))
        reading, ways = await regions.client("eu")
        reader = await reading.open(writer.ledger_id, recover=False)
        following = reader.last_add_confirmed + 1

        async def write(count: int) -> None:
            for _ in range(count):
                await writer.add(ENTRY)
                await asyncio.sleep(0.02)

        # The question for the LAC goes to all, and each answer has the last entry.
        await until(lambda: all(relay.to_client > len(ENTRY) for relay in ways.values()))
        for relay in ways.values():
            relay.to_client = 0
        tail = asyncio.ensure_future(take(reader, following, 24))
        await asyncio.wait_for(asyncio.gather(write(20), tail), LIMIT_S)
        # How many questions met the news on their way, each with an entry from elsewhere, is a matter of time: what is
        # asked when is tested on virtual time (test_client_over_regions).
        assert ways["eu"].to_client > 10 * len(ENTRY)

        ways_of_writer["eu"].cut = True
        for relay in ways.values():
            relay.to_client = 0
        tail = asyncio.ensure_future(take(reader, 25, 44))
        await asyncio.wait_for(asyncio.gather(write(20), tail), LIMIT_S)
        assert ways["eu"].to_client < 2 * len(ENTRY)  # it has none of them
        assert ways["us"].to_client + ways["ap"].to_client >= 20 * len(ENTRY)
