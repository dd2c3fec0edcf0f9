"""Which proxies there are: lists, and what is announced in a namespace, as it comes and goes; several regions."""

from __future__ import annotations

import asyncio

import pytest
from helpers.security.minting import MintedAuthority
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time
from test_thin_client import LoopClock, bits, written

from dlspark.errors import SettingsError
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import AnnouncedFleet, NoProxiesError, StaticFleet, fleet_of, fleets_of
from dlspark.serving.client.ownership import RETURN_S
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import READ_PROXIES, WRITE_PROXIES, Announcement, ProxyEndpoint, proxy_member
from dlspark.serving.protocol.operations import ReadBatch, Refusal, StatusCode, WriteRecords
from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.memory import MemoryStore, MemoryTree

URI = "distributedlog://zk:2181/ns"


def announced(tree: MemoryTree) -> AnnouncedFleet:
    return AnnouncedFleet(URI, lambda servers: MemoryStore(tree))


async def announce(
    tree: MemoryTree, address: str, shard: int = -1, *, folder: str = WRITE_PROXIES, region: str | None = None
) -> tuple[MemoryStore, Announcement]:
    store = MemoryStore(tree)
    member = proxy_member(ProxyEndpoint.parse(address), shard, region=region)
    announcement = Announcement(store, f"/ns/{folder}", member)
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
async def test_the_session_of_a_client_is_secured_as_its_settings_say(tmp_path, monkeypatch):
    """It was opened as the environment said: in plain, though security was on."""
    opened: list[SecuritySettings] = []

    async def open_session(_servers, security, **_others):
        opened.append(security)
        raise MetadataUnavailableError("enough was seen")

    monkeypatch.setattr("metadata.zookeeper.securing.open_session", open_session)
    folder = str(MintedAuthority().folder(tmp_path / "client", "client"))
    uri = "distributedlog://127.0.0.1:1/ns"
    monkeypatch.setenv("DLSPARK_SECURITY", folder)
    with pytest.raises(MetadataUnavailableError):
        await AsyncClient.connect(uri, {"security": "off"})
    monkeypatch.delenv("DLSPARK_SECURITY")
    with pytest.raises(MetadataUnavailableError):
        await AsyncClient.connect("a:1", {"security": "on", "securityDirectory": folder}, read_from=uri)
    with pytest.raises(MetadataUnavailableError):
        await AsyncClient.connect(uri, {"security": "on", "securityDirectory": folder})
    assert [(one.security, one.security_directory) for one in opened] == [("off", ""), ("on", folder), ("on", folder)]


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


# ---- regions that are announced --------------------------------------------------------------------------------------


class Regions:
    """A namespace with two write proxies and a read proxy in each region."""

    def __init__(self, *regions: str) -> None:
        self.tree = MemoryTree()
        self.regions = regions
        self.fleet = MemoryProxies(
            *(f"{kind}-{region}{number}:1" for region in regions for kind in ("write", "read") for number in (1, 2))
        )
        self.announced: dict[str, tuple[MemoryStore, Announcement]] = {}
        self.sessions: list[MemoryStore] = []
        self.clients: list[AsyncClient] = []

    async def begin(self) -> Regions:
        for address in self.fleet.proxies:
            await self.back(address)
        return self

    async def back(self, address: str) -> None:
        """A proxy runs, and is announced."""
        kind, _, rest = address.partition("-")
        self.fleet[address].up = True
        folder = WRITE_PROXIES if kind == "write" else READ_PROXIES
        self.announced[address] = await announce(self.tree, address, folder=folder, region=rest.partition(":")[0][:-1])
        self.sessions.append(self.announced[address][0])

    async def gone(self, address: str, *, known: bool) -> None:
        """A proxy dies; `known`: its session has ended, too."""
        self.fleet[address].stop()
        if known:
            store, announcement = self.announced.pop(address)
            await announcement.withdraw()
            await store.close()
        await asyncio.sleep(0.1)

    async def client(self, **values: object) -> AsyncClient:
        self.clients.append(await made([announced(self.tree)], self.fleet.connect, **values))
        return self.clients[-1]

    def region(self, stream: str) -> str:
        """Return the region of a stream's owner."""
        return self.fleet.owners[stream].partition("-")[2].partition(":")[0][:-1]

    async def end(self) -> None:
        for client in self.clients:
            await client.close()
        for store in self.sessions:
            await store.close()


@virtual_time
async def test_a_log_is_opened_in_the_region_of_its_first_writer_and_others_follow_it_there(monkeypatch):
    regions = await Regions("eu", "us").begin()
    near = await regions.client(region="eu")
    monkeypatch.setenv("DLSPARK_REGION", "us")
    far = await regions.client()
    streams = [f"s{number}" for number in range(20)]
    for stream in streams:
        await near.write(stream, b"near")
    assert {regions.region(stream) for stream in streams} == {"eu"}
    for stream in streams:
        await far.write(stream, b"far")
        await far.write(f"own-{stream}", b"far")
    assert {regions.region(stream) for stream in streams} == {"eu"}, "an owner keeps its log"
    assert {regions.region(f"own-{stream}") for stream in streams} == {"us"}
    assert regions.fleet.log("s3").payloads == [b"near", b"far"]
    # The owner is remembered: the second write of a log takes one request.
    sent = far.counters.attempts
    await far.write("s3", b"again")
    assert far.counters.attempts == sent + 1
    agreeing = await regions.client()
    sent = agreeing.counters.attempts
    for stream in streams:
        await agreeing.write(f"own-{stream}", b"x")
    assert agreeing.counters.attempts <= sent + 2 * len(streams), "it asks the same proxies of its region"
    await regions.end()


@virtual_time
async def test_without_a_proxy_in_the_own_region_others_are_asked_and_new_logs_come_home_when_it_is_back():
    regions = await Regions("eu", "us").begin()
    client = await regions.client(region="eu")
    await client.write("x", b"1")
    for address in ("write-eu1:1", "write-eu2:1"):
        await regions.gone(address, known=False)  # the members are there: connections fail
    await client.write("x", b"2")
    await client.write("y", b"1")
    assert (regions.region("x"), regions.region("y")) == ("us", "us")
    for address in ("write-eu1:1", "write-eu2:1"):
        await regions.gone(address, known=True)
        await regions.back(address)
    await asyncio.sleep(0.1)
    await client.write("z", b"1")
    await client.write("x", b"3")
    assert (regions.region("z"), regions.region("x")) == ("eu", "us"), "an owner is followed, wherever it is"
    assert regions.fleet.log("x").payloads == [b"1", b"2", b"3"], "each once, in order"
    await regions.end()


@virtual_time
async def test_a_region_that_says_it_is_not_available_is_passed_over():
    regions = await Regions("eu", "us").begin()
    client = await regions.client(region="eu")
    for number in (1, 2):
        regions.fleet[f"write-eu{number}:1"].refusals += [Refusal(StatusCode.REGION_UNAVAILABLE, "moving out")] * 3
    await client.write("x", b"1")
    assert regions.region("x") == "us"
    asked = [len(regions.fleet[f"write-eu{number}:1"].of(WriteRecords)) for number in (1, 2)]
    assert sum(asked) <= 1, "one of them speaks for its region"
    await regions.end()


@pytest.mark.parametrize("known", [True, False], ids=["sessions ended", "back before their sessions have ended"])
@virtual_time
async def test_reads_stay_in_the_own_region_go_elsewhere_while_it_is_away_and_come_back(known):
    regions = await Regions("eu", "us").begin()
    client = await regions.client(region="eu", blackoutMs=60_000)

    def reads() -> dict[str, int]:
        return {
            region: sum(len(regions.fleet[f"read-{region}{number}:1"].of(ReadBatch)) for number in (1, 2))
            for region in regions.regions
        }

    await client.write("x", b"0")
    async with client.reader("x", poll_ms=500) as reader:
        assert (await reader.read_next()).payload == b"0"
        assert (reads()["eu"] > 0, reads()["us"]) == (True, 0)
        for address in ("read-eu1:1", "read-eu2:1"):
            await regions.gone(address, known=known)
        await client.write("x", b"1")
        assert (await reader.read_next()).payload == b"1"
        assert reads()["us"] > 0
        for address in ("read-eu1:1", "read-eu2:1"):
            await regions.back(address)
        await asyncio.sleep(0.1)
        last = 1
        for last in range(2, 40):
            await client.write("x", b"%d" % last)
            assert (await reader.read_next()).payload == b"%d" % last
            await asyncio.sleep(RETURN_S / 20)
        before = reads()
        await client.write("x", b"%d" % (last + 1))
        assert (await reader.read_next()).payload == b"%d" % (last + 1)
        after = reads()
        assert after["eu"] > before["eu"], "at home again"
        assert after["us"] == before["us"]
    await regions.end()


@virtual_time
async def test_where_the_own_regions_read_proxies_refuse_they_are_tried_again_only_now_and_then():
    regions = await Regions("eu", "us").begin()
    client = await regions.client(region="eu")
    for number in (1, 2):
        refused = [Refusal(StatusCode.SERVICE_UNAVAILABLE, "full of readers")] * 1_000
        regions.fleet[f"read-eu{number}:1"].refusals += refused
    async with client.reader("x", poll_ms=100) as reader:
        for number in range(100):
            await client.write("x", b"%d" % number)
            assert (await reader.read_next()).payload == b"%d" % number
            await asyncio.sleep(0.1)
    asked = sum(len(regions.fleet[f"read-eu{number}:1"].of(ReadBatch)) for number in (1, 2))
    assert 2 <= asked <= 8
    await regions.end()


@virtual_time
async def test_several_lists_are_regions_for_readers_too():
    fleet = MemoryProxies("near:1", "far:1")
    client = await made([StaticFleet(["near:1"]), StaticFleet(["far:1"])], fleet.connect)
    for number in range(10):
        await client.write(f"x{number}", b"one")
        async with client.reader(f"x{number}") as reader:
            assert (await reader.read_next()).payload == b"one"
    assert (len(fleet["near:1"].of(ReadBatch)) >= 10, len(fleet["far:1"].of(ReadBatch))) == (True, 0)
    await client.close()


@virtual_time
async def test_a_region_from_which_nothing_follows_is_refused(monkeypatch):
    fleet = MemoryProxies("a:1", "b:1")
    for fleets in ([StaticFleet(["a:1"])], [StaticFleet(["a:1"]), StaticFleet(["b:1"])]):
        with pytest.raises(SettingsError, match="region=eu says nothing here"):
            await made(fleets, fleet.connect, region="eu")
    for values in (
        {"region": "a/b"},
        {"region": "eu", "routing": "single-host"},
        {"region": "eu", "finagleNameStrs": "a:1 b:1"},
    ):
        with pytest.raises(SettingsError, match="region"):
            ThinClientSettings.from_mapping(values)
    monkeypatch.setenv("DLSPARK_REGION", "eu")  # of the process, whatever its clients are given
    client = await made([StaticFleet(["a:1"])], fleet.connect)
    await client.write("x", b"one")
    await client.close()
    monkeypatch.setenv("DLSPARK_REGION", "e u")
    with pytest.raises(CallerError, match="DLSPARK_REGION"):
        await made([StaticFleet(["a:1"])], fleet.connect)
