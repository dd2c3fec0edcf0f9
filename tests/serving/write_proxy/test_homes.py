"""A log's home: moved to a proxy of another region, and left to any proxy where that breaks off. In memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from helpers.serving.proxy_world import SESSION_S, LoopClock
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from test_proxy import Tier, tiers

from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.client.channels import ProxyChannel
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import AnnouncedFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import proxy_member
from dlspark.serving.protocol.operations import AcceptStreams, Done
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.streams.model import OTHERS_KEPT_S
from dlspark.serving.write_proxy.tier.homes import home_proxy, move_home
from metadata.foundation.errors import CallerError, NotAppliedError, OutcomeUnknownError
from metadata.zookeeper.memory import MemoryStore
from storage_node.errors import ConnectionClosedError

URI = "distributedlog://memory:2181/dl"


class Regions:
    """Write proxies in two regions, and clients of each."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.of: dict[str, list[WriteProxy]] = {}
        self.clients: list[AsyncClient] = []

    async def begin(self, each: int, **settings: object) -> None:
        for region in ("eu", "us"):
            self.of[region] = [await self.tier.add(region=region, **settings) for _ in range(each)]
        await self.tier.know_each_other()

    async def client(self, region: str, **values: object) -> AsyncClient:
        async def connect(address: str, on_closed: Callable[[], None]) -> ProxyChannel:
            return await FramesClient.connect(self.tier.pipes, address, on_closed=on_closed)

        fleet = AnnouncedFleet(URI, lambda servers: MemoryStore(self.tier.world.tree))
        settings = ThinClientSettings.from_mapping({"region": region, **values})
        client = AsyncClient([fleet], settings, connect, clock=LoopClock())
        await client.open()
        self.clients.append(client)
        return client

    def owner(self, stream: str) -> WriteProxy | None:
        return next((one for one in self.tier.proxies if one.serving and stream in one.streams()), None)

    def region(self, stream: str) -> str | None:
        return next((region for region, some in self.of.items() if self.owner(stream) in some), None)

    async def move(self, stream: str, region: str):
        return await move_home(self.tier.peers, await self.tier.members(), stream, region)

    async def die(self, proxy: WriteProxy) -> None:
        """The process ends at once: its connections break, its session runs out."""
        port = proxy.member.endpoint.port
        self.tier.pipes.listeners.pop(port)
        for end in self.tier.pipes.ends:
            if end.peer.endswith(f":{port}"):
                end.shut(ConnectionClosedError("the process has ended"))
        await self.tier.kill(proxy)

    async def read(self, stream: str) -> list[bytes]:
        return await self.tier.payloads(stream)


@asynccontextmanager
async def regions(each: int = 2, **settings: object) -> AsyncIterator[Regions]:
    async with tiers() as tier:
        made = Regions(tier)
        await made.begin(each, **settings)
        yield made
        for client in made.clients:
            await client.close()


@virtual_time
async def test_a_log_moves_while_clients_of_both_regions_write_and_each_record_is_written_once() -> None:
    async with regions() as world:
        near, far = await world.client("eu"), await world.client("us")
        await near.write("x", b"first")
        assert world.region("x") == "eu"
        written: list[list[bytes]] = [[], []]
        stop = asyncio.Event()

        async def write(number: int, client: AsyncClient) -> None:
            while not stop.is_set():
                payload = b"%d-%d" % (number, len(written[number]))
                await client.write("x", payload)  # it raises where a client sees an error
                written[number].append(payload)

        writing = [asyncio.create_task(write(number, client)) for number, client in enumerate((near, far))]
        await until(lambda: min(map(len, written)) > 20, every_s=0)
        source = world.owner("x")
        assert source is not None
        done = await world.move("x", "us")
        assert (done.moved, done.source, done.round_trips) == (True, source.location, 3)
        at_move = [len(some) for some in written]
        await until(lambda: all(len(some) > had + 20 for some, had in zip(written, at_move, strict=True)), every_s=0)
        stop.set()
        await asyncio.gather(*writing)
        assert world.region("x") == "us"
        found = await world.read("x")
        for number in (0, 1):
            assert [one for one in found if one.startswith(b"%d-" % number)] == written[number], "in order, once"
        assert len(found) == 1 + sum(map(len, written))
        # It lies where clients of that region ask first.
        fresh = await world.client("us")
        await fresh.write("x", b"last")
        assert fresh.counters.attempts <= 2, "the producer's epoch, and the write"


@virtual_time
async def test_a_move_that_is_repeated_or_not_needed_changes_nothing() -> None:
    async with regions() as world:
        client = await world.client("eu")
        await client.write("x", b"1")
        moved = await world.move("x", "us")
        again = await world.move("x", "us")
        assert (again.moved, again.source, again.target, again.round_trips) == (False, moved.target, moved.target, 1)
        await client.write("x", b"2")  # it is sent on, and knows the owner
        await client.release("x")
        opened = await world.move("x", "eu")
        assert (opened.moved, opened.source, world.region("x")) == (True, None, "eu")
        await client.write("x", b"3")
        assert await world.read("x") == [b"1", b"2", b"3"]


@virtual_time
async def test_what_cannot_be_moved_is_refused_and_stays_where_it_is() -> None:
    async with regions(each=1) as world:
        client = await world.client("eu")
        await client.write("x", b"1")
        with pytest.raises(CallerError, match="no write proxy of region asia") as refused:
            await world.move("x", "asia")
        assert "DLSPARK_REGION=asia" in str(refused.value.advice)
        assert "eu, us" in str(refused.value.advice)
        (far,) = world.of["us"]
        assert await world.tier.ask(far, AcceptStreams(False)) == Done()
        with pytest.raises(NotAppliedError, match="WRITE_ONLY"):
            await world.move("x", "us")
        assert await world.tier.ask(far, AcceptStreams(True)) == Done()
        assert world.region("x") == "eu"
        namespace = await world.tier.world.namespace()
        log = await namespace.open_log("fat")
        writer = await log.open_writer("somebody")
        with pytest.raises(NotAppliedError, match="is no proxy"):
            await world.move("fat", "us")
        await writer.close()
        await namespace.close()
        await asyncio.sleep(OTHERS_KEPT_S + 0.1)  # so long a proxy remembers an owner that is none
        assert (await world.move("fat", "us")).source is None


@virtual_time
async def test_a_source_that_dies_in_the_middle_leaves_the_log_to_any_proxy() -> None:
    async with regions(each=1, server_take_timeout_ms=1000) as world:
        near = await world.client("eu", attemptTimeoutMs=1000)
        await near.write("x", b"0")
        (source,), (target,) = world.of["eu"], world.of["us"]
        world.tier.world.hold()  # its last entries are not acknowledged, so that it cannot close
        pending = asyncio.create_task(near.write("x", b"1"))
        await asyncio.sleep(0.01)
        with pytest.raises(OutcomeUnknownError, match="the move was begun") as unknown:
            await world.move("x", "us")
        assert "Move it again" in str(unknown.value.advice)
        await world.die(source)
        world.tier.world.release()
        await asyncio.sleep(2 * SESSION_S)
        done = await world.move("x", "us")
        assert done.target == target.location
        await asyncio.wait_for(pending, 120)
        await near.write("x", b"2")
        assert await world.read("x") == [b"0", b"1", b"2"]


@virtual_time
async def test_a_target_that_dies_when_it_has_agreed_leaves_the_log_to_any_proxy() -> None:
    async with regions(each=1) as world:
        near = await world.client("eu", attemptTimeoutMs=1000)
        await near.write("x", b"0")
        (source,), (target,) = world.of["eu"], world.of["us"]
        moving = asyncio.create_task(world.move("x", "us"))
        await until(lambda: "x" not in source.streams(), every_s=0)  # it gives the log up: the target has agreed
        await world.die(target)
        result = (await asyncio.gather(moving, return_exceptions=True))[0]
        assert isinstance(result, OutcomeUnknownError), result
        assert "Move it again" in str(result.advice)
        await asyncio.sleep(2 * SESSION_S)
        await asyncio.wait_for(near.write("x", b"1"), 120)
        assert world.region("x") == "eu"
        assert world.owner("x") is source
        assert await world.read("x") == [b"0", b"1"]


def test_the_proxy_of_a_region_does_not_depend_on_those_of_others() -> None:
    from dlspark.serving.process.membership import ProxyEndpoint

    members = [proxy_member(ProxyEndpoint(f"{region}{n}", 1), -1, region=region) for region in "ab" for n in (1, 2, 3)]
    for number in range(20):
        chosen = home_proxy(f"s{number}", members, "a")
        assert chosen is not None
        assert chosen.region == "a"
        assert chosen == home_proxy(f"s{number}", members[:3], "a")
    assert home_proxy("s", members, "c") is None


@virtual_time
async def test_a_proxy_that_ends_hands_its_logs_over_within_its_region_while_another_runs_there() -> None:
    async with regions() as world:
        client = await world.client("eu")
        streams = [f"s{number}" for number in range(12)]
        for stream in streams:
            await client.write(stream, b"1")
        assert {world.region(stream) for stream in streams} == {"eu"}
        first, second = world.of["eu"]
        assert first.streams()
        assert second.streams()
        await first.stop()
        assert sorted(second.streams()) == sorted(streams), "none went across, though a proxy of the region runs"
        await second.stop()
        assert {world.region(stream) for stream in streams} == {"us"}, "nobody else is left"
        for stream in streams:
            await client.write(stream, b"2")
        assert await world.read(streams[0]) == [b"1", b"2"]
