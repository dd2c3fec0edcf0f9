"""The thin client with real proxies: real writers, locks and readers, over metadata and storage nodes in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from helpers.paths import TESTS
from helpers.serving.memory_proxies import MemoryLink
from helpers.virtual_time import virtual_time
from test_thin_client import bits, numbered

from dlspark.errors import ConditionError, EndOfStreamError, ProxyUnreachableError
from dlspark.serving.bindings.service import Caller, ProxyService
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.distributedlog.log_names import LogNotFoundError

sys.path.append(str(TESTS / "serving" / "write_proxy"))
from helpers.serving.proxy_world import LoopClock, ProxyWorld, proxies

READS = "reads:8100"


class Served:
    """A service at an address, as `MemoryLink` connects to it."""

    def __init__(self, address: str, service: ProxyService) -> None:
        self.address = address
        self.service = service
        self.links: list[MemoryLink] = []
        self.up = True

    def submit(self, request, caller: Caller, reply) -> None:
        self.service.submit(request, caller, reply)

    def caller_gone(self, caller: Caller) -> None:
        self.service.caller_gone(caller)

    def lose(self) -> None:
        for link in list(self.links):
            link.lose()


class Tier:
    """The world's write proxies and one read proxy, each at its address."""

    def __init__(self, world: ProxyWorld) -> None:
        self.world = world
        self.served: dict[str, Served] = {}

    async def start(self, writers: int = 2) -> None:
        for number in range(writers):
            proxy = await self.world.proxy(number)
            address = proxy.location.rpartition(";")[2]
            self.served[address] = Served(address, proxy.service)
        self.namespace = await self.world.namespace()
        self.reads = ReadProxyService(self.namespace, ReadProxySettings(), location=READS)
        self.served[READS] = Served(READS, self.reads)

    async def connect(self, address: str, on_closed: Callable[[], None]) -> MemoryLink:
        await asyncio.sleep(0.001)
        served = self.served.get(address)
        if served is None or not served.up:
            raise ProxyUnreachableError("it is down", node=address)
        return MemoryLink(served, on_closed)  # type: ignore[arg-type]

    async def client(self, **values: object) -> AsyncClient:
        writers = [address for address in self.served if address != READS]
        settings = ThinClientSettings.from_mapping(values)
        fleet = StaticFleet(writers, [READS])
        client = AsyncClient([fleet], settings, self.connect, clock=LoopClock(), random_bits=bits)
        await client.open()
        return client

    async def stop(self) -> None:
        await self.reads.close()
        await self.namespace.close()


async def read_all(client: AsyncClient, stream: str, count: int) -> list[bytes]:
    """The first records of a stream. A heartbeat makes them visible: these nodes take no explicit LAC."""
    await client.heartbeat(stream, to_readers=True)
    async with client.reader(stream) as reader:
        return [(await asyncio.wait_for(reader.read_next(), 60)).payload for _ in range(count)]


@virtual_time
async def test_what_many_clients_write_is_read_once_and_in_each_one_s_order():
    async with proxies() as world:
        tier = Tier(world)
        await tier.start()
        clients = [await tier.client() for _ in range(5)]

        async def write(number: int) -> None:
            producer = clients[number].producer("log")
            futures = []
            for payload in numbered(100):
                futures.append(producer.send(b"%d-%s" % (number, payload)))
                await asyncio.sleep(0.001)
            places = await asyncio.gather(*futures)
            assert places == sorted(set(places))

        await asyncio.gather(*map(write, range(5)))
        found = await read_all(clients[0], "log", 500)
        assert len(set(found)) == 500
        for number in range(5):
            mine = [one for one in found if one.startswith(b"%d-" % number)]
            assert mine == sorted(mine)
        for client in clients:
            await client.close()
        await tier.stop()


@virtual_time
async def test_a_stream_that_moves_and_a_proxy_that_dies_lose_and_double_nothing():
    async with proxies() as world:
        tier = Tier(world)
        await tier.start()
        client = await tier.client(attemptTimeoutMs=2000)
        producer = client.producer("log")
        futures = []
        for number, payload in enumerate(numbered(400)):
            futures.append(producer.send(payload))
            await asyncio.sleep(0.002)
            if number == 100:
                owner = await client.owner("log")
                target = next(one.location for one in world.proxies if not one.location.endswith(owner))
                await client.move("log", target)
            if number == 250:
                owner = await client.owner("log")
                dying = next(one for one in world.proxies if one.location.endswith(owner))
                tier.served[owner].up = False
                tier.served[owner].lose()
                await dying.crash()
        await asyncio.gather(*futures)
        assert await world.payloads("log") == numbered(400)
        await client.close()
        await tier.stop()


@virtual_time
async def test_operations_and_conditions_with_a_real_log():
    async with proxies() as world:
        tier = Tier(world)
        await tier.start()
        client = await tier.client()
        await client.create("log")
        assert (await client.append("log", [b"one", b"two"], expected_position=0)).lssn == 1
        with pytest.raises(ConditionError) as caught:
            await client.append("log", [b"three"], expected_position=0)
        assert caught.value.actual == 2
        await client.set_fencing_token("log", b"mine")
        with pytest.raises(ConditionError):
            await client.append("log", [b"three"], fencing_token=b"yours")
        third = await client.append("log", [b"three"], fencing_token=b"mine")
        assert await read_all(client, "log", 3) == [b"one", b"two", b"three"]
        await client.release("log")
        await client.truncate("log", third)
        await client.heartbeat("log")
        await client.delete("log")
        await client.close()
        await tier.stop()


@virtual_time
async def test_record_sets_of_several_streams_are_read_record_by_record():
    async with proxies() as world:
        tier = Tier(world)
        await tier.start()
        client = await tier.client()
        for name in ("s1", "s2"):
            await client.heartbeat(name)
        writer = client.multi_stream_writer(["s1", "s2"])
        positions = await asyncio.gather(*(writer.write(payload) for payload in numbered(10)))
        stream = positions[0].stream
        await client.heartbeat(stream, to_readers=True)
        async with client.reader(stream) as reader:
            records = [await asyncio.wait_for(reader.read_next(), 60) for _ in range(10)]
        assert [record.payload for record in records] == numbered(10)
        assert [record.dlsn for record in records] == [position.dlsn for position in positions]
        await writer.close()
        await client.close()
        await tier.stop()


@virtual_time
async def test_all_forms_of_reading_give_the_same_records():
    async with proxies() as world:
        tier = Tier(world)
        await tier.start()
        client = await tier.client()
        await client.write_bulk("log", numbered(200))
        assert await read_all(client, "log", 200) == numbered(200)
        entries: list[bytes] = []
        async with client.reader("log", form="entries") as reader:
            while len(entries) < 200:
                for entry in await asyncio.wait_for(reader.next_entries(), 60):
                    entries += [record.payload for record in entry.records()]
        assert entries == numbered(200)
        rows: list[bytes] = []
        async with client.reader("log", form="arrow") as reader:
            while len(rows) < 200:
                for batch in await asyncio.wait_for(reader.next_batches(), 60):
                    rows += batch.column("value").to_pylist()
        assert rows == numbered(200)
        with pytest.raises((LogNotFoundError, EndOfStreamError)):
            await client.reader("nothing").read_next()
        await client.close()
        await tier.stop()
