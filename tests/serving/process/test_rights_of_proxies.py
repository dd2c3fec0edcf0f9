"""Whole proxies of both kinds keep to the rules in ZooKeeper, and hear of their changes. A cluster in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from helpers.serving.proxy_world import ProxyWorld, proxies
from helpers.virtual_time import virtual_time
from helpers.worlds.memory_network import Pipes
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.serving.bindings.service import Caller
from dlspark.serving.process.host import ServiceHost
from dlspark.serving.protocol.operations import (
    Answer,
    CreateStream,
    Delivery,
    Done,
    Heartbeat,
    ReadBatch,
    ReadFrom,
    Refusal,
    Request,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.permissions import Permissions, PermissionStore
from metadata.distributedlog.rights_store import RightsStore
from metadata.foundation.settings import Value
from metadata.security.principals import Principal, Scheme
from metadata.security.rights import LogPattern, Rule, Subject, Verb

REACHES_S = 10.0
"""So long a change may take, as is promised."""


def allowed(*verbs: Verb, to: str = "alice", logs: str = "orders*") -> Rule:
    return Rule(True, Subject.parse(f"user:{to}"), frozenset(verbs), LogPattern.parse(logs))


class Guarded:
    """A write proxy and a read proxy that demand proof, and the rules of their namespace."""

    def __init__(self, world: ProxyWorld, trail: Path) -> None:
        self.world = world
        self.trail = trail
        self.rights = RightsStore(world.operator, "/dl")
        self.callers: dict[str, Caller] = {}

    async def start(self) -> None:
        settings: dict[str, Value] = {
            "server_grpc_port": -1,
            "server_advertised_host": "host",
            "auditLog": str(self.trail),
            "insecureListen": "allow",
        }
        given = {"network": Pipes(), "statistics": Statistics(CollectorRegistry())}
        self.write_proxy = WriteProxy(
            None,
            read_configuration(None, settings, {}),
            namespace=await self.world.namespace(),
            clock=self.world.clock,
            **given,  # type: ignore[arg-type]
        )
        self.read_proxy = ReadProxy(
            None,
            ReadProxySettings.from_mapping({"advertisedHost": "host", "insecureListen": "allow"}),
            namespace=await self.world.namespace(),
            **given,  # type: ignore[arg-type]
        )
        for proxy in (self.write_proxy, self.read_proxy):
            proxy.host.demands_proof = True
            await proxy.start()

    async def stop(self) -> None:
        await self.read_proxy.stop()
        await self.write_proxy.stop()

    def asked(self, host: ServiceHost, request: Request, who: str) -> asyncio.Future[Answer]:
        caller = self.callers.setdefault(who, Caller(f"{who}:1", Principal(who, Scheme.TLS)))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        host._entrance.submit(request, caller, future.set_result)
        return future

    async def write(self, stream: str = "orders", who: str = "alice") -> Answer:
        return await self.asked(self.write_proxy.host, WriteRecords(stream, (b"x",)), who)

    def read(
        self, who: str = "alice", start: object = ReadFrom.OLDEST, wait_ms: int = 60_000
    ) -> asyncio.Future[Answer]:
        request = ReadBatch("orders", start, wait_ms=wait_ms)  # type: ignore[arg-type]
        return self.asked(self.read_proxy.host, request, who)


@asynccontextmanager
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with proxies(replace(Binding.for_cluster("memory:2181"), acl_root_path=".acl")) as world:
        one = Guarded(world, tmp_path / "audit.log")
        await one.start()
        yield one
        await one.stop()


def is_denied(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code is StatusCode.REQUEST_DENIED


@virtual_time
async def test_a_change_of_rights_reaches_writers_and_readers_that_wait(tmp_path: Path) -> None:
    async with guarded(tmp_path) as tier:
        assert is_denied(await tier.write())
        await tier.rights.change(add=[allowed(Verb.WRITE, Verb.READ, Verb.CREATE), allowed(Verb.READ, to="bob")])
        await asyncio.sleep(REACHES_S)
        assert isinstance(await tier.write(), WriteReceipt)
        assert is_denied(await tier.write(who="bob"))
        assert isinstance(await tier.asked(tier.write_proxy.host, Heartbeat("orders", to_readers=True), "alice"), Done)
        delivery = await tier.read()
        assert isinstance(delivery, Delivery)
        assert delivery.parts
        waiting = {who: tier.read(who, delivery.next) for who in ("alice", "bob")}
        await asyncio.sleep(REACHES_S)
        assert not any(one.done() for one in waiting.values())
        await tier.rights.change(remove=[allowed(Verb.READ, Verb.WRITE)])
        await asyncio.sleep(REACHES_S)
        assert is_denied(waiting["alice"].result())
        assert not waiting["bob"].done()
        assert is_denied(await tier.write())
        tier.read_proxy.host._entrance.caller_gone(tier.callers["bob"])
    noted = [json.loads(line) for line in tier.trail.read_text().splitlines()]
    assert [(one["principal"], one["verb"], one["result"]) for one in noted] == [
        ("alice", "write", "refused"),
        ("alice", "create", "allowed"),
        ("bob", "write", "refused"),
        ("alice", "write", "refused"),
    ]


@virtual_time
async def test_who_may_write_and_not_create_makes_no_log_and_keeps_nobody_from_making_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as tier:
        await tier.rights.change(add=[allowed(Verb.WRITE), allowed(Verb.WRITE, Verb.CREATE, to="bob")])
        await asyncio.sleep(REACHES_S)
        answer = await tier.write()
        assert isinstance(answer, Refusal)
        assert answer.code is StatusCode.LOG_NOT_FOUND
        assert is_denied(await tier.asked(tier.write_proxy.host, CreateStream("orders"), "alice"))
        assert isinstance(await tier.write(who="bob"), WriteReceipt)
        assert isinstance(await tier.write(), WriteReceipt)
    noted = [json.loads(line) for line in tier.trail.read_text().splitlines()]
    assert [(one["principal"], one["verb"], one["result"]) for one in noted] == [
        ("alice", "create", "refused"),
        ("alice", "create", "refused"),
        ("bob", "create", "allowed"),
    ]


@virtual_time
async def test_a_log_is_made_for_who_may_although_another_asked_first(tmp_path: Path) -> None:
    """The first caller's right counted for all who waited: it could keep others from making the log."""
    async with guarded(tmp_path) as tier:
        await tier.rights.change(add=[allowed(Verb.WRITE), allowed(Verb.WRITE, Verb.CREATE, to="bob")])
        await asyncio.sleep(REACHES_S)
        writes = [
            tier.asked(tier.write_proxy.host, WriteRecords("orders-2", (b"x",)), who)
            for who in ("alice", "bob", "alice")
        ]
        assert [type(await one) for one in writes] == [WriteReceipt, WriteReceipt, WriteReceipt]
    (line,) = [json.loads(line) for line in tier.trail.read_text().splitlines()]
    assert (line["principal"], line["verb"], line["log"], line["result"]) == ("bob", "create", "orders-2", "allowed")


@virtual_time
async def test_what_upstreams_entries_deny_stays_denied_to_who_has_the_right(tmp_path: Path) -> None:
    async with guarded(tmp_path) as tier:
        await tier.rights.change(add=[allowed(*Verb)])
        control = PermissionStore(tier.world.operator, "/dl/.acl")
        await control.set(Permissions(deny_write=True), "orders-closed")
        await asyncio.sleep(REACHES_S)
        assert isinstance(await tier.write(), WriteReceipt)
        denied = await tier.write("orders-closed")
        assert is_denied(denied)
        assert "access control denies" in denied.message  # type: ignore[union-attr]


@virtual_time
async def test_damaged_rules_keep_all_out_but_super_users(tmp_path: Path) -> None:
    async with guarded(tmp_path) as tier:
        await tier.rights.change(add=[allowed(*Verb)])
        await asyncio.sleep(REACHES_S)
        assert isinstance(await tier.write(), WriteReceipt)
        await tier.world.operator.put(tier.rights.path, b"{", -1)
        await asyncio.sleep(REACHES_S)
        refused = await tier.write()
        assert isinstance(refused, Refusal)
        assert refused.code is StatusCode.SERVICE_UNAVAILABLE
        tier.callers["root"] = Caller("root:1", Principal("root", Scheme.TLS, frozenset({"operator"})))
        assert isinstance(await tier.write(who="root"), WriteReceipt)
