"""A write proxy as a whole: how it starts, is found, loses its session, hands over and ends. Frames in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from helpers.serving.proxy_world import ProxyWorld, proxies
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_network import Pipes
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.core.settings.settings import Settings
from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.process.membership import (
    READ_PROXIES,
    WRITE_PROXIES,
    Announcement,
    ProxyEndpoint,
    ProxyMember,
    proxy_member,
    read_members,
)
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol import rpc_requests
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Done,
    FindOwner,
    Handshake,
    Heartbeat,
    ListedProxy,
    ListProxies,
    MoveStream,
    OwnerFound,
    ProxyInfo,
    ProxyKind,
    ProxyList,
    ProxyStatus,
    Refusal,
    Request,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.write_proxy.proxy import ProxyRole, WriteProxy, grpc_limits
from dlspark.serving.write_proxy.settings import ProxyConfiguration, read_configuration
from dlspark.serving.write_proxy.streams.model import OTHERS_KEPT_S
from metadata.foundation.errors import CallerError, NotAppliedError
from metadata.store import join

FOLDER = f"/dl/{WRITE_PROXIES}"


class Tier:
    """Whole proxies over a cluster in memory; frames go over pipes."""

    def __init__(self, world: ProxyWorld) -> None:
        self.world = world
        self.pipes = Pipes()
        self.peers = ProxyPeers(self.pipes)
        self.registry = CollectorRegistry()
        self.proxies: list[WriteProxy] = []

    async def made(
        self, role: ProxyRole | None = None, logs: Settings | None = None, *, region: str = "", **settings: object
    ) -> WriteProxy:
        """A proxy that is not started."""
        given = {
            "server_grpc_port": -1,
            "server_advertised_host": "host",
            "insecureListen": "allow",
            "server_shard": len(self.proxies),
            **settings,
        }
        configuration = read_configuration(None, given, {})  # type: ignore[arg-type]
        if logs is not None:
            configuration = ProxyConfiguration(configuration.proxy, logs)
        proxy = WriteProxy(
            None,
            configuration,
            role,
            network=self.pipes,
            clock=self.world.clock,
            statistics=Statistics(self.registry),
            namespace=await self.world.namespace(region=region),
        )
        self.proxies.append(proxy)
        return proxy

    async def add(self, role: ProxyRole | None = None, logs: Settings | None = None, **settings: object) -> WriteProxy:
        proxy = await self.made(role, logs, **settings)
        await proxy.start()
        return proxy

    async def ask(self, proxy: WriteProxy | str, request: Request) -> Answer:
        location = proxy if isinstance(proxy, str) else proxy.location
        return await self.peers.call(location, request, 60_000)

    async def write(self, proxy: WriteProxy, stream: str, payload: bytes = b"x") -> Answer:
        return await self.ask(proxy, WriteRecords(stream, (payload,)))

    async def payloads(self, stream: str) -> list[bytes]:
        """All that readers find: a heartbeat makes what was answered visible."""
        for proxy in self.proxies:
            if stream in proxy.streams():
                assert isinstance(await self.ask(proxy, Heartbeat(stream, to_readers=True)), Done)
        return await self.world.payloads(stream)

    async def members(self) -> tuple[ProxyMember, ...]:
        return await read_members(self.world.operator, FOLDER)

    async def know_each_other(self) -> None:
        await until(lambda: all(len(one.members) == len(self.proxies) for one in self.proxies), every_s=0)

    async def kill(self, proxy: WriteProxy) -> None:
        """As far as the cluster can tell, the process dies, and its session ends."""
        namespace = proxy._given
        assert namespace is not None
        await namespace.ledgers.close()
        self.world.tree.expire(namespace.store.session_id)
        await namespace.store.close()

    async def stop(self) -> None:
        await self.peers.close()
        for proxy in self.proxies:
            await proxy.stop()


@asynccontextmanager
async def tiers() -> AsyncIterator[Tier]:
    async with proxies() as world:
        tier = Tier(world)
        yield tier
        await tier.stop()


@virtual_time
async def test_a_proxy_is_found_where_it_listens_and_writes() -> None:
    async with tiers() as tier:
        proxy = await tier.add(server_shard=3)
        (member,) = await tier.members()
        assert member.location == proxy.location == f"1;3;host:{member.endpoint.port}"
        assert (member.frames, member.grpc, member.stats) == (member.endpoint, None, None)
        assert isinstance(await tier.write(proxy, "a"), WriteReceipt)
        info = await tier.ask(proxy, Handshake())
        assert isinstance(info, ProxyInfo)
        assert (info.location, info.status) == (proxy.location, ProxyStatus.WRITE_AND_ACCEPT)
        assert info.ownerships == {"a": proxy.location}
        assert (proxy.serving, proxy.announced, proxy.streams()) == (True, True, ["a"])
        assert await tier.payloads("a") == [b"x"]


@virtual_time
async def test_an_audit_trail_without_security_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tiers() as tier:
        await tier.add()
        assert "auditLog is set" not in caplog.text
        await tier.add(auditLog=str(tmp_path / "audit.log"))
        assert "auditLog is set, and security is off" in caplog.text


@virtual_time
async def test_proxies_with_one_number_warn_of_each_other_once(caplog: pytest.LogCaptureFixture) -> None:
    async with tiers() as tier:
        first, other = await tier.add(server_shard=0), await tier.add(server_shard=1)
        unnumbered = [await tier.add(), await tier.add()]
        await asyncio.sleep(1)
        assert "too: give each a server_shard" not in caplog.text
        twin = await tier.add(server_shard=0)
        await asyncio.sleep(1)
        said = [one.getMessage() for one in caplog.records if "too: give each a server_shard" in one.getMessage()]
        assert sorted(line.split()[2] for line in said) == sorted([first.location, twin.location])
        await tier.add()  # another change of the members
        await asyncio.sleep(1)
        assert sum("too: give each a server_shard" in one.getMessage() for one in caplog.records) == 2
        assert all(one.serving for one in (other, *unnumbered))


@virtual_time
async def test_a_foreign_owner_is_answered_at_once() -> None:
    async with tiers() as tier:
        first, second = await tier.add(), await tier.add()
        await tier.write(first, "a")
        began = asyncio.get_running_loop().time()
        answer = await tier.write(second, "a")
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.location) == (StatusCode.FOUND, first.location)
        assert asyncio.get_running_loop().time() - began < 1


@virtual_time
async def test_an_owner_whose_session_has_ended_is_not_named_any_more() -> None:
    """Whatever is remembered of it, and though the client does not say that it has been there."""
    async with tiers() as tier:
        first, second = await tier.add(), await tier.add()
        await tier.know_each_other()
        await tier.write(first, "a")
        assert isinstance(await tier.write(second, "a"), Refusal)
        await tier.kill(first)
        await until(lambda: len(second.members) == 1, every_s=0)
        assert isinstance(await tier.write(second, "a", b"y"), WriteReceipt)
        assert isinstance(await tier.ask(second, Heartbeat("a", to_readers=True)), Done)
        assert await tier.world.payloads("a") == [b"x", b"y"]


@virtual_time
async def test_an_owner_that_is_no_proxy_is_remembered_for_a_second() -> None:
    """A program that writes by itself, say: no member shows when its session has ended."""
    async with tiers() as tier:
        proxy = await tier.add()
        other = await tier.world.namespace()
        writer = await (await other.open_log("a")).open_writer("a program", producers=True)
        refused = await tier.write(proxy, "a")
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.location) == (StatusCode.FOUND, "a program")
        await writer.close()
        assert isinstance(await tier.write(proxy, "a"), Refusal), "from memory"
        await asyncio.sleep(OTHERS_KEPT_S + 0.01)
        assert isinstance(await tier.write(proxy, "a"), WriteReceipt)
        await other.close()


@virtual_time
async def test_every_proxy_lists_all() -> None:
    async with tiers() as tier:
        made = [await tier.add(), await tier.add()]
        await tier.know_each_other()
        folder = join("/dl", READ_PROXIES)
        reading = proxy_member(ProxyEndpoint("reads", 8100), 0, grpc=ProxyEndpoint("reads", 8101))
        announced = Announcement(tier.world.operator, folder, reading)
        await announced.begin()
        wanted = {ListedProxy(ProxyKind.WRITE, one.location) for one in made}
        wanted.add(ListedProxy(ProxyKind.READ, reading.location, "reads:8101"))
        for one in made:
            while True:
                answer = await tier.ask(one, ListProxies())
                assert isinstance(answer, ProxyList)
                if set(answer.proxies) == wanted:
                    break
                await asyncio.sleep(0)
        await announced.withdraw()


@virtual_time
async def test_a_proxy_that_stops_hands_its_streams_over_and_says_where_they_are() -> None:
    async with tiers() as tier:
        first = await tier.add(server_graceful_shutdown_period_ms=5000)
        second = await tier.add()
        await tier.know_each_other()
        for number in range(3):
            assert isinstance(await tier.write(first, f"s{number}"), WriteReceipt)
        stopping = asyncio.get_running_loop().create_task(first.stop())
        await until(lambda: not first.streams(), every_s=0.01)
        assert sorted(second.streams()) == ["s0", "s1", "s2"]
        assert [one.location for one in await tier.members()] == [second.location]
        found = await tier.write(first, "s0")
        assert isinstance(found, Refusal)
        assert (found.code, found.location) == (StatusCode.FOUND, second.location)
        unknown = await tier.write(first, "other")
        assert isinstance(unknown, Refusal)
        assert unknown.code is StatusCode.SERVICE_UNAVAILABLE
        assert isinstance(await tier.write(second, "s0", b"y"), WriteReceipt)
        await stopping
        assert await tier.payloads("s0") == [b"x", b"y"]
        refused = await tier.write(first, "s0")
        assert isinstance(refused, Refusal)
        assert refused.error == "ProxyUnreachableError"


@virtual_time
async def test_the_last_proxy_stops_without_another_to_take_its_streams() -> None:
    async with tiers() as tier:
        proxy = await tier.add()
        await tier.write(proxy, "a")
        await proxy.stop()
        await proxy.stop()
        assert await tier.members() == ()
        again = await tier.add()
        assert isinstance(await tier.write(again, "a", b"y"), WriteReceipt)
        assert await tier.payloads("a") == [b"x", b"y"]


@virtual_time
async def test_a_lost_session_is_announced_again_and_ends_what_others_took() -> None:
    async with tiers() as tier:
        first = await tier.add()
        await tier.write(first, "kept")
        await tier.write(first, "lost")
        store = first._given.store if first._given is not None else None
        assert store is not None
        name = (await tier.members())[0].name
        other = await tier.world.namespace(lock_timeout_s=0)
        log = await other.open_log("lost")
        taking = asyncio.get_running_loop().create_task(until(lambda: not first.announced, every_s=0))
        tier.world.tree.expire(store.session_id)
        await taking
        writer = None
        while writer is None:  # whoever comes first: the proxy takes its own lock again, too
            try:
                writer = await log.open_writer("another", producers=True)
            except NotAppliedError:
                break
        await until(lambda: first.announced, every_s=0.01)
        (member,) = await tier.members()
        assert member.name != name
        assert member.location == first.location
        if writer is not None:
            answer = await tier.write(first, "lost")
            assert isinstance(answer, Refusal)
            assert answer.code is StatusCode.FOUND
            assert answer.location == "another"
        assert isinstance(await tier.write(first, "kept", b"y"), WriteReceipt)
        await other.close()
        assert await tier.payloads("kept") == [b"x", b"y"]


@virtual_time
async def test_streams_are_moved_to_members_only() -> None:
    async with tiers() as tier:
        first, second = await tier.add(), await tier.add()
        hidden = await tier.add(ProxyRole(announce=False))
        await until(lambda: len(first.members) == 2, every_s=0)
        await tier.write(first, "a")
        for target in ("1;9;nowhere:1", hidden.location, "nonsense"):
            refused = await tier.ask(first, MoveStream("a", target))
            assert isinstance(refused, Refusal), target
        assert first.streams() == ["a"]
        assert await tier.ask(first, MoveStream("a", second.location)) == Done()
        assert (first.streams(), second.streams()) == ([], ["a"]), "whoever asks now finds it there"
        assert isinstance(await tier.write(second, "a", b"y"), WriteReceipt)
        assert await tier.payloads("a") == [b"x", b"y"]


@virtual_time
async def test_all_proxies_say_the_same_of_a_stream_that_nobody_owns() -> None:
    async with tiers() as tier:
        made = [await tier.add(server_shard=shard) for shard in (1, 2, 3)]  # without 0 nobody computes loads
        await tier.know_each_other()
        said = set()
        for stream in map(str, range(20)):
            answers = [await tier.ask(one, FindOwner(stream)) for one in made]
            assert all(isinstance(one, OwnerFound) for one in answers), answers
            assert len(set(answers)) == 1
            said |= set(answers)
        assert len(said) > 1


@virtual_time
async def test_a_proxy_that_takes_no_streams_keeps_those_that_it_has() -> None:
    async with tiers() as tier:
        proxy = await tier.add()
        await tier.write(proxy, "a")
        assert await tier.ask(proxy, AcceptStreams(False)) == Done()
        assert isinstance(await tier.write(proxy, "a"), WriteReceipt)
        refused = await tier.write(proxy, "b")
        assert isinstance(refused, Refusal)
        assert refused.code is StatusCode.SERVICE_UNAVAILABLE
        assert proxy.status is ProxyStatus.WRITE_ONLY


@virtual_time
async def test_what_comes_before_it_serves_is_refused_and_a_start_that_fails_leaves_nothing() -> None:
    async with tiers() as tier:
        proxy = await tier.made(server_port=40)
        answers: list[Answer] = []
        proxy.host.door.submit(FindOwner("a"), None, answers.append)  # type: ignore[arg-type]
        assert isinstance(answers[0], Refusal)
        assert answers[0].code is StatusCode.SERVICE_UNAVAILABLE
        assert (proxy.location, proxy.serving, proxy.status) == ("", False, ProxyStatus.DOWN)
        other = FramesServer(tier.pipes, proxy.host.door)
        await other.start("host", 40)
        with pytest.raises(OSError):
            await proxy.start()
        assert await tier.members() == ()
        await other.close(grace_s=0)


@virtual_time
async def test_a_proxy_that_cannot_go_on_says_why() -> None:
    async with tiers() as tier:
        proxy = await tier.add()
        assert not proxy.failed.is_set()
        proxy._fail("its location has a log by another session")
        proxy._fail("later")
        assert proxy.failed.is_set()
        assert proxy.failure == "its location has a log by another session"


@virtual_time
async def test_its_page_shows_what_it_does() -> None:
    async with tiers() as tier:
        proxy = await tier.made()
        service = None
        await proxy.start()
        assert proxy._service is not None
        service = proxy._measured(proxy._service, proxy._given)  # type: ignore[arg-type]
        proxy.host.door.open(service)
        await tier.write(proxy, "a")
        root = proxy._scopes.root
        assert (root.proxy_status.value, root.streams_acquired.value, root.announced.value) == (1, 1, 1)
        assert root.records_received.value == 1
        assert proxy._scopes.of("a").records_success.value == 1
        tier.world.features.set("region_stop_accept_new_stream", 1)
        assert root.proxy_status.value == 3
        await until(lambda: proxy.traffic() == {"a": 1}, every_s=10)


async def test_a_proxy_has_the_page_that_its_settings_ask_for() -> None:
    async with proxies() as world:
        tier = Tier(world)
        without = await tier.add(server_host="127.0.0.1")
        assert without.member.stats is None
        hidden = await tier.add(server_host="127.0.0.1", server_stats_port=0)
        assert hidden.host._page is not None
        assert hidden.member.stats is None, "others would ask a process of their own at 127.0.0.1"
        await hidden.stop()
        proxy = await tier.add(server_host="127.0.0.1", server_stats_port=0, server_stats_host="0.0.0.0")
        page = proxy.member.stats
        assert page is not None
        assert page.host == "host"
        (await asyncio.open_connection("127.0.0.1", page.port))[1].close()
        await proxy.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", page.port)


async def test_a_streams_file_limits_it_from_the_next_look_on(tmp_path: Path) -> None:
    async with proxies() as world:
        tier = Tier(world)
        logs = Settings.from_mapping({"streamConfigDirectory": str(tmp_path), "dynamicConfigReloadIntervalSec": 1})
        proxy = await tier.add(logs=logs)
        assert isinstance(await tier.write(proxy, "a"), WriteReceipt)
        (tmp_path / "a.conf").write_text("rpsHardWriteLimit=1\n")

        async def limited() -> bool:
            answer = await tier.write(proxy, "a")
            return isinstance(answer, Refusal) and answer.code is StatusCode.OVER_CAPACITY

        await until(limited)
        assert isinstance(await tier.write(proxy, "b"), WriteReceipt)
        assert isinstance(await tier.write(proxy, "b"), WriteReceipt)
        await tier.stop()


@pytest.mark.parametrize("keep_alive_ms", [None, 300_000])
def test_clients_of_grpc_may_ping_every_ten_seconds_however_often_the_proxy_does(keep_alive_ms: int | None) -> None:
    given = {"server_keep_alive_ms": keep_alive_ms} if keep_alive_ms is not None else {}
    limits = grpc_limits(read_configuration(None, given, {}))
    assert limits.least_ping_ms <= 5_000
    assert limits.keepalive_ms == (keep_alive_ms or 60_000)


async def test_a_grpc_client_is_sent_to_where_the_owner_speaks_grpc() -> None:
    async with proxies() as world:
        tier = Tier(world)
        local = {"server_grpc_port": 0, "server_host": "127.0.0.1", "server_advertised_host": "127.0.0.1"}
        first, second = await tier.add(**local), await tier.add(**local)
        framed = await tier.add()
        await tier.know_each_other()
        await tier.write(first, "a")
        await tier.write(framed, "b")
        write, owner = rpc_requests.METHODS["Write"], rpc_requests.METHODS["GetOwner"]
        async with grpc.aio.insecure_channel(str(second.member.grpc)) as channel:

            async def ask(method: rpc_requests.RpcMethod, message: Message) -> Any:
                call = channel.unary_unary(
                    f"/{rpc_requests.SERVICE}/{method.name}",
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                )
                return await call(message, timeout=60)

            found = (await ask(write, pb.WriteRequest(stream="a", payloads=[b"x"]))).status
            assert (found.code, found.location) == (pb.Status.FOUND, first.location)
            assert found.grpc_address == str(first.member.grpc)
            assert (await ask(owner, pb.StreamRequest(stream="a"))).grpc_address == str(first.member.grpc)
            shaken = await ask(rpc_requests.METHODS["Handshake"], pb.HandshakeRequest())
            assert dict(shaken.grpc_addresses) == {second.location: str(second.member.grpc)}
            listed = await ask(rpc_requests.METHODS["ListProxies"], pb.ListProxiesRequest())
            assert {one.location: one.grpc_address for one in listed.proxies} == {
                first.location: str(first.member.grpc),
                second.location: str(second.member.grpc),
                framed.location: "",
            }
            without = (await ask(write, pb.WriteRequest(stream="b", payloads=[b"x"]))).status
            assert (without.location, without.grpc_address) == (framed.location, "")
            await ask(write, pb.WriteRequest(stream="c", payloads=[b"x"]))
            assert (await ask(owner, pb.StreamRequest(stream="c"))).grpc_address == str(second.member.grpc)
        await tier.stop()


# ---- regions ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_the_region_of_its_settings_or_its_environment_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tiers() as tier:
        unsaid = await tier.add()
        said = await tier.made(region="eu")
        monkeypatch.setenv("DLSPARK_REGION", "us")
        await said.start()
        by_environment = await tier.add()
        members = await tier.members()
        assert {one.location: one.region for one in members} == {
            unsaid.location: None,
            said.location: "eu",
            by_environment.location: "us",
        }
        monkeypatch.setenv("DLSPARK_REGION", "not one")
        with pytest.raises(CallerError, match="DLSPARK_REGION"):
            await tier.add()
