"""The bound of what a read proxy reads holds over all clients, and makes no log unreadable: in memory, and whole."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from helpers.logs import written
from helpers.serving.memory_proxies import MemoryProxies
from helpers.serving.read_world import ReadWorld, submitted
from helpers.serving.scripted_service import ScriptedService
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_network import Pipes

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.bindings.service import Caller
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.reading import AsyncProxyReader
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import (
    READ_PROXIES,
    Announcement,
    ProxyEndpoint,
    proxy_member,
    read_members,
    read_proxy_member,
)
from dlspark.serving.process.peers import ProxyDirectory, ProxyPeers
from dlspark.serving.protocol.operations import (
    Delivery,
    Handshake,
    ProxyInfo,
    ProxyKind,
    ProxyStatus,
    ReadBatch,
    ReadFrom,
    Refusal,
    RequestContext,
    StatusCode,
)
from dlspark.serving.read_proxy import proxy as peer_counts
from dlspark.serving.read_proxy.balance import ReadBalance
from dlspark.serving.read_proxy.proxy import PeerCounts, ReadProxy, count_in
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.ring import HostRing

ADDRESSES = tuple(f"10.0.0.{number}:8100" for number in range(1, 6))
_SEEDS = itertools.count(1)


def bits(number: int) -> int:
    """As random as tests need: never the same twice."""
    return next(_SEEDS) % (1 << number)


class Readers:
    """Clients of proxies in memory, with a few readers each."""

    def __init__(self, fleet: MemoryProxies) -> None:
        self.fleet = fleet
        self.clients: list[AsyncClient] = []
        self.readers: list[AsyncProxyReader] = []

    async def client(self, addresses: Sequence[str] = ADDRESSES, **settings: object) -> AsyncClient:
        made = ThinClientSettings.from_mapping(settings)
        client = AsyncClient([StaticFleet(tuple(addresses))], made, self.fleet.connect, random_bits=bits)
        await client.open()
        self.clients.append(client)
        return client

    async def read(self, client: AsyncClient, log: str) -> None:
        """One more reader, which has read the first record and waits for the second."""
        reader = client.reader(log, "earliest")
        self.readers.append(reader)
        assert (await reader.read_next()).payload == log.encode()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    @property
    def counts(self) -> list[int]:
        return [len(proxy.reads) for proxy in self.fleet.proxies.values() if proxy.up]

    def check_bound(self) -> None:
        share = sum(self.counts) / len(self.counts)
        assert max(self.counts) <= math.ceil(1.25 * share), self.counts


def with_logs(names: Sequence[str]) -> MemoryProxies:
    fleet = MemoryProxies(*ADDRESSES)
    for name in names:
        fleet.log(name).append((name.encode(),))
    return fleet


def named(count: int) -> list[str]:
    return [f"log-{number}" for number in range(count)]


def at_home_at_one(count: int) -> list[str]:
    """Logs whose hash gives them to the first proxy."""
    ring = HostRing(map(ProxyHost, ADDRESSES))
    names = (f"log-{number}" for number in itertools.count())
    return list(itertools.islice((one for one in names if ring.lookup(one) == ADDRESSES[0]), count))


SCENARIOS: dict[str, tuple[Callable[[int], list[str]], Callable[[int], Sequence[str]]]] = {
    "the hash gives all logs to one proxy": (at_home_at_one, lambda _: ADDRESSES),
    "lists name two of five proxies": (named, lambda _: ADDRESSES[:2]),
    "most lists name one proxy": (named, lambda number: ADDRESSES[:1] if number % 3 else ADDRESSES),
}
"""The names of logs, and the proxies that the n-th client knows."""


@pytest.mark.parametrize("name", SCENARIOS)
@virtual_time
async def test_two_hundred_clients_with_three_logs_each_leave_no_proxy_above_its_share_and_the_balance(name: str):
    names, known_to = SCENARIOS[name]
    logs = names(600)
    fleet = with_logs(logs)
    fleet.bound_reads()
    readers = Readers(fleet)
    for number in range(200):
        client = await readers.client(known_to(number))
        for log in logs[3 * number : 3 * number + 3]:
            await readers.read(client, log)
        if number % 10 == 9:
            fleet.tell_counts()
    assert sum(readers.counts) == 600, "no log is read twice"
    readers.check_bound()
    await readers.close()


@pytest.mark.parametrize("shares", [True, False])
@virtual_time
async def test_clients_that_read_the_same_logs_are_sent_to_the_same_proxy(shares: bool):
    """A burst: no proxy hears of another one's count meanwhile. What is read twice is so by clients' own bounds."""
    fleet = with_logs(named(10))
    if shares:
        fleet.bound_reads()
    readers = Readers(fleet)
    for _ in range(30):
        client = await readers.client(readBalance=1_000)
        for log in fleet.logs:
            await readers.read(client, log)
    assert sum(readers.counts) == 10
    assert any(proxy.sent_on for proxy in fleet.proxies.values()) is shares
    await readers.close()


@virtual_time
async def test_a_proxy_that_goes_leaves_its_logs_within_the_bound_and_one_that_comes_takes_new_ones():
    fleet = with_logs(named(300))
    fleet.bound_reads()
    readers = Readers(fleet)
    for number in range(40):
        client = await readers.client(ADDRESSES[:2])
        for part in range(5):
            await readers.read(client, f"log-{number * 5 + part}")
        fleet.tell_counts()
    gone = fleet[ADDRESSES[0]]
    gone.stop()
    fleet.tell_counts()
    for number, reader in enumerate(readers.readers):
        fleet.log(reader.name).append((b"more",))
        assert (await reader.read_next()).payload == b"more"
        if number % 10 == 9:
            fleet.tell_counts()
    readers.check_bound()
    assert sum(readers.counts) == 200, "no log is read twice"
    stayed = {address: set(proxy.reads) for address, proxy in fleet.proxies.items()}
    gone.up = True
    fleet.bound_reads()
    late = await readers.client(ADDRESSES[:2])
    for number in range(200, 300):
        await readers.read(late, f"log-{number}")
        fleet.tell_counts()
    assert all(stayed[address] <= proxy.reads for address, proxy in fleet.proxies.items()), "a log was moved"
    readers.check_bound()
    await readers.close()


@virtual_time
async def test_proxies_that_do_not_answer_each_other_serve_whoever_comes():
    fleet = with_logs(named(60))
    fleet.bound_reads()
    for proxy in fleet.proxies.values():
        assert proxy.balance is not None
        for address in ADDRESSES:
            proxy.balance.lost(address)
    readers = Readers(fleet)
    client = await readers.client(ADDRESSES[:1])
    for number in range(60):
        await readers.read(client, f"log-{number}")
    assert [len(proxy.reads) for proxy in fleet.proxies.values()] == [60, 0, 0, 0, 0]
    await readers.close()


@virtual_time
async def test_a_client_whose_target_is_down_is_served_by_who_sent_it():
    fleet = with_logs(named(60))
    fleet.bound_reads()
    for address in ADDRESSES[1:]:
        fleet[address].up = False  # and nobody has noticed
    readers = Readers(fleet)
    client = await readers.client(ADDRESSES[:1])
    for number in range(60):
        await readers.read(client, f"log-{number}")
    assert len(fleet[ADDRESSES[0]].reads) == 60
    assert fleet[ADDRESSES[0]].sent_on
    await readers.close()


@virtual_time
async def test_a_client_that_may_try_once_is_sent_on_all_the_same():
    fleet = with_logs(named(20))
    fleet.bound_reads()
    readers = Readers(fleet)
    client = await readers.client(ADDRESSES[:1], maxRedirects=0)
    for number in range(20):
        await readers.read(client, f"log-{number}")
    readers.check_bound()
    await readers.close()


# ---------------------------------------------------------------------- whole proxies, over frames


@asynccontextmanager
async def running(read_world: ReadWorld, pipes: Pipes, **settings: object) -> AsyncIterator[ReadProxy]:
    values = {"advertised_host": "host", "insecure_listen": "allow", "port": 0, "linger_ms": 0, **settings}
    namespace = await read_world.namespace()
    read_world.clients.remove(namespace)
    proxy = ReadProxy(None, ReadProxySettings(**values), network=pipes, namespace=namespace)  # type: ignore[arg-type]
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def known(proxy: ReadProxy) -> int:
    """How many others have said what they read."""
    assert proxy.service.balance is not None
    return len(proxy.service.balance.counts())


async def logs_of(read_world: ReadWorld, count: int) -> AsyncNamespace:
    namespace = await read_world.namespace()
    for number in range(count):
        await written(namespace, f"log-{number}", [[b"a"]])
    return namespace


async def test_whole_proxies_ask_each_other_and_share_what_a_client_of_one_reads(read_world: ReadWorld, monkeypatch):
    monkeypatch.setattr(peer_counts, "INTERVAL_S", 0.05)
    monkeypatch.setattr(peer_counts, "BUSY_S", 0.01)
    await logs_of(read_world, 20)
    pipes = Pipes()
    async with (
        running(read_world, pipes) as one,
        running(read_world, pipes) as two,
        running(read_world, pipes) as three,
    ):
        await until(lambda: [known(proxy) for proxy in (one, two, three)] == [2, 2, 2])
        client = await AsyncClient.connect(str(one.member.endpoint), network=pipes)
        readers = [client.reader(f"log-{number}", "earliest") for number in range(20)]
        for reader in readers:
            assert (await reader.read_next()).payload == b"a"
        figures = [proxy.service.figures() for proxy in (one, two, three)]
        assert sum(one.logs for one in figures) == 20
        assert max(one.logs for one in figures) <= math.ceil(1.25 * 20 / 3)
        assert figures[0].redirects == 20 - figures[0].logs
        await three.stop()
        await until(lambda: [known(proxy) for proxy in (one, two)] == [1, 1])
        await client.close()


async def test_a_proxy_of_an_older_release_is_not_asked_and_not_sent_to(read_world: ReadWorld, monkeypatch):
    monkeypatch.setattr(peer_counts, "INTERVAL_S", 0.05)
    await logs_of(read_world, 8)
    pipes = Pipes()
    asked: list[Handshake] = []
    async with running(read_world, pipes) as new, running(read_world, pipes, read_balance=0.0) as old:
        old_submit = old.service.submit
        store = read_world.operator
        await old.host.withdraw()
        member = proxy_member(old.member.endpoint, -1)
        announcement = Announcement(store, f"/dl/{READ_PROXIES}", member)
        await announcement.begin()
        await until(lambda: member.location in [one.location for one in new.host.directory.listed().proxies])
        monkeypatch.setattr(
            old.service, "submit", lambda request, *rest: (asked.append(request), old_submit(request, *rest))
        )
        client = await AsyncClient.connect(str(new.member.endpoint), network=pipes)
        for number in range(8):
            assert (await client.reader(f"log-{number}", "earliest").read_next()).payload == b"a"
        assert (new.service.figures().logs, new.service.figures().redirects, known(new)) == (8, 0, 0)
        assert asked == []
        await client.close()
        await announcement.withdraw()


async def test_without_a_bound_a_proxy_reads_what_it_is_asked_for_and_says_how_much(read_world: ReadWorld):
    await logs_of(read_world, 5)
    pipes = Pipes()
    async with running(read_world, pipes, read_balance=0.0) as one, running(read_world, pipes) as two:
        assert one.service.balance is None
        await until(lambda: known(two) == 1)
        client = await AsyncClient.connect(str(one.member.endpoint), network=pipes)
        for number in range(5):
            await client.reader(f"log-{number}", "earliest").read_next()
        peers = ProxyPeers(pipes)
        answer = await peers.call(one.member.location, Handshake(ownerships=False, count_logs=True))
        assert count_in(answer) == 5
        assert count_in(await peers.call(one.member.location, Handshake())) is None
        await peers.close()
        await client.close()
        members = await read_members(read_world.operator, f"/dl/{READ_PROXIES}")
        assert [member.logs_read == member.endpoint for member in members] == [True, True]


def test_what_is_no_count_is_none():
    assert count_in(ProxyInfo("1;-1;a:1", ProxyStatus.WRITE_AND_ACCEPT, logs_read=3)) == 3
    assert count_in(ProxyInfo("1;-1;a:1", ProxyStatus.DOWN, logs_read=3)) is None
    assert count_in(ProxyInfo("1;-1;a:1", ProxyStatus.WRITE_AND_ACCEPT)) is None
    assert count_in(Refusal(StatusCode.NOT_IMPLEMENTED, "what?")) is None


@virtual_time
async def test_a_peer_that_stands_still_is_not_known_and_delays_no_other():
    pipes, balance = Pipes(), ReadBalance(1.25)
    services = [ScriptedService(lambda *_: ProxyInfo("", ProxyStatus.WRITE_AND_ACCEPT, logs_read=7)) for _ in range(2)]
    servers = [FramesServer(pipes, service) for service in services]
    for server in servers:
        await server.start("host", 0)
    members = [read_proxy_member(ProxyEndpoint("host", server.port), -1) for server in servers]
    own = read_proxy_member(ProxyEndpoint("own", 1), -1)
    counts = PeerCounts(balance, pipes, own)
    counts.use_members([*members, own])
    await asyncio.sleep(0.5)
    addresses = [str(member.endpoint) for member in members]
    assert balance.counts() == dict.fromkeys(addresses, 7)
    services[0].hold = True
    await asyncio.sleep(4)
    assert balance.counts() == {addresses[1]: 7}
    services[0].release()
    await asyncio.sleep(4)
    assert balance.counts() == dict.fromkeys(addresses, 7)
    asked = services[1].count
    assert asked <= 6
    for number in range(20):
        balance.elsewhere(f"log-{number}", 100, (), 0.0)
        await asyncio.sleep(0.05)
    assert 5 <= services[1].count - asked <= 12, "counts matter while clients are sent on"
    await servers[1].close(grace_s=0)
    await asyncio.sleep(0)
    assert balance.counts().keys() == {addresses[0]}, "its connection ended"
    counts.use_members([own])
    await counts.close()
    await servers[0].close(grace_s=0)


# ---------------------------------------------------------------------- clients that are not this project's


async def full_proxy(read_world: ReadWorld, *, grpc: bool) -> ReadProxyService:
    """A proxy that reads much more than the other one that there is."""
    service = await read_world.proxy()
    directory = ProxyDirectory()
    endpoint = ProxyEndpoint("other", 8101) if grpc else None
    directory.use(ProxyKind.READ, [read_proxy_member(ProxyEndpoint("other", 8100), -1, grpc=endpoint)])
    service._directory = directory
    balance = service.balance = ReadBalance(1.0)
    balance.use_members([ProxyHost("other:8100")])
    balance.heard("other:8100", 0)
    await written(await read_world.namespace(), "first", [[b"a"]])
    assert isinstance(await submitted(service, ReadBatch("first", ReadFrom.OLDEST), Caller("c:1")), Delivery)
    await written(await read_world.namespace(), "second", [[b"a"]])
    return service


async def test_a_client_of_grpc_is_sent_to_proxies_that_speak_it_and_need_not_say_whom_it_asked(read_world: ReadWorld):
    service = await full_proxy(read_world, grpc=True)
    request = ReadBatch("second", ReadFrom.OLDEST)
    sent = await submitted(service, request, Caller("client:5", grpc=True))
    assert isinstance(sent, Refusal)
    assert (sent.code, sent.location) == (StatusCode.FOUND, "1;-1;other:8100")
    again = await submitted(service, request, Caller("client:5", grpc=True))
    assert isinstance(again, Delivery), "it does not follow: it is served"
    assert again.next > DLSN.INITIAL


async def test_a_client_of_grpc_is_served_where_the_others_do_not_speak_it(read_world: ReadWorld):
    service = await full_proxy(read_world, grpc=False)
    request = ReadBatch("second", ReadFrom.OLDEST)
    assert isinstance(await submitted(service, request, Caller("client:5", grpc=True)), Delivery)


async def test_a_client_that_was_sent_here_or_read_here_before_is_served(read_world: ReadWorld):
    service = await full_proxy(read_world, grpc=True)
    came = ReadBatch("second", ReadFrom.OLDEST, context=RequestContext(("1;-1;other:8100",)))
    assert isinstance(await submitted(service, came, Caller("c:2")), Delivery)
    for log in ("first", "second"):
        assert isinstance(await submitted(service, ReadBatch(log, ReadFrom.OLDEST), Caller("c:3")), Delivery)
    assert service.figures().redirects == 0
