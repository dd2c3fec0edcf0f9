"""Which proxies there are: lists, and what is announced in a namespace, as it comes and goes; several regions."""

from __future__ import annotations

import asyncio

import pytest
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time
from test_thin_client import LoopClock, bits, written

from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import AnnouncedFleet, NoProxiesError, StaticFleet, fleet_of, fleets_of
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import WRITE_PROXIES, Announcement, ProxyEndpoint, proxy_member
from dlspark.serving.protocol.operations import ReadBatch, Refusal, StatusCode
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore, MemoryTree

URI = "distributedlog://zk:2181/ns"


def announced(tree: MemoryTree) -> AnnouncedFleet:
    return AnnouncedFleet(URI, lambda servers: MemoryStore(tree))


async def announce(tree: MemoryTree, address: str, shard: int = -1) -> tuple[MemoryStore, Announcement]:
    store = MemoryStore(tree)
    announcement = Announcement(store, f"/ns/{WRITE_PROXIES}", proxy_member(ProxyEndpoint.parse(address), shard))
    await announcement.begin()
    return store, announcement


async def made(fleets: list, connect, **values: object) -> AsyncClient:
    settings = ThinClientSettings.from_mapping(values)
    client = AsyncClient(fleets, settings, connect, clock=LoopClock(), random_bits=bits)
    await client.open()
    return client


def test_a_list_is_read_and_what_is_none_is_refused() -> None:
    fleet = fleet_of(" a:1, b:2 ,[::1]:3 ")
    assert isinstance(fleet, StaticFleet)
    assert [host.address for host in fleet.write_hosts] == ["a:1", "b:2", "[::1]:3"]
    assert len(fleets_of(["a:1", "b:1"])) == 2
    for wrong in ("", ",", "a", "a:b", "a:0", "http://a:1", "distributedlog://"):
        with pytest.raises(CallerError):
            fleet_of(wrong)


@virtual_time
async def test_a_client_follows_the_proxies_that_are_announced():
    tree, fleet = MemoryTree(), MemoryProxies("a:1", "b:1")
    store_a, announcement_a = await announce(tree, "a:1", 0)
    client = await made([announced(tree)], fleet.connect)
    assert client.proxies == ("a:1",)
    await client.write("x", b"one")
    store_b, _ = await announce(tree, "b:1")
    await asyncio.sleep(1)
    assert set(client.proxies) == {"a:1", "b:1"}
    await announcement_a.withdraw()
    fleet["a:1"].stop()
    await client.write("x", b"two")
    assert fleet.owners["x"] == "b:1"
    assert written(fleet) == [b"one", b"two"]
    await client.close()
    await store_a.close()
    await store_b.close()


@virtual_time
async def test_a_namespace_without_a_proxy_is_waited_for_and_then_an_error():
    tree = MemoryTree()
    with pytest.raises(NoProxiesError, match="no proxy is announced"):
        await made([announced(tree)], MemoryProxies().connect)
    opening = asyncio.create_task(made([announced(tree)], MemoryProxies("a:1").connect))
    await asyncio.sleep(5)
    store, _ = await announce(tree, "a:1")
    client = await opening
    assert client.proxies == ("a:1",)
    await client.close()
    await store.close()


@virtual_time
async def test_another_region_is_asked_where_the_local_one_is_not_available():
    fleet = MemoryProxies("near:1", "far:1")
    client = await made([StaticFleet(["near:1"]), StaticFleet(["far:1"])], fleet.connect)
    await client.write("x", b"one")
    assert fleet.owners["x"] == "near:1"
    fleet.owners.clear()
    fleet["near:1"].refusals += [Refusal(StatusCode.REGION_UNAVAILABLE, "moving out")] * 3
    await client.write("x", b"two")
    assert fleet.owners["x"] == "far:1"
    fleet["far:1"].stop()
    await client.write("x", b"three")
    assert fleet.owners["x"] == "near:1"
    assert written(fleet) == [b"one", b"two", b"three"]
    await client.close()


@virtual_time
async def test_readers_ask_the_proxies_for_reading_where_there_are_any():
    fleet = MemoryProxies("write:1", "read:1")
    client = await made([StaticFleet(["write:1"], ["read:1"])], fleet.connect)
    await client.write("x", b"one")
    async with client.reader("x") as reader:
        assert (await reader.read_next()).payload == b"one"
    assert fleet["read:1"].of(ReadBatch)
    assert not fleet["write:1"].of(ReadBatch)
    await client.close()
