"""Rights in a whole tier under TLS: thin clients, write proxies that hand over to each other, a read proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority
from helpers.serving.proxy_world import ProxyWorld
from helpers.waiting import until
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.errors import LogNotFoundError, RequestDeniedError
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration
from metadata.distributedlog.rights_store import RightsStore
from metadata.foundation.settings import Value
from metadata.security.rights import LogPattern, Rule, Subject, Verb

HERE = "127.0.0.1"


def rule(who: str, *verbs: Verb, logs: str = "orders*", allow: bool = True) -> Rule:
    return Rule(allow, Subject.parse(who), frozenset(verbs), LogPattern.parse(logs))


class SecuredTier:
    """Two write proxies and a read proxy with `security=on`, of a cluster in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = MintedAuthority()
        self.world = ProxyWorld()
        self.ending = AsyncExitStack()
        self.writers: list[WriteProxy] = []

    def identity(self, name: str, *roles: str) -> str:
        return str(self.authority.folder(self.folder / name, name, roles=roles, hosts=[HERE]))

    async def start(self) -> None:
        await self.world.start()
        self.ending.push_async_callback(self.world.stop)
        self.rights = RightsStore(self.world.operator, "/dl")
        for number in range(2):
            name = f"writer{number}"
            given: dict[str, Value] = {
                "server_host": HERE,
                "server_advertised_host": HERE,
                "server_port": 0,
                "server_grpc_port": -1,
                "server_shard": number,
                "security": "on",
                "securityDirectory": self.identity(name, "proxy"),
                "auditLog": str(self.folder / f"{name}.log"),
            }
            writer = WriteProxy(
                None,
                read_configuration(None, given, {}),
                namespace=await self.world.namespace(),
                statistics=Statistics(CollectorRegistry()),
            )
            self.writers.append(writer)
            await writer.start()
            self.ending.push_async_callback(writer.stop)
        values = {"listenHost": HERE, "advertisedHost": HERE, "port": 0, "security": "on"}
        settings = ReadProxySettings.from_mapping(values | {"securityDirectory": self.identity("reader", "proxy")})
        self.reader = ReadProxy(
            None, settings, namespace=await self.world.namespace(), statistics=Statistics(CollectorRegistry())
        )
        await self.reader.start()
        self.ending.push_async_callback(self.reader.stop)
        await until(lambda: all(len(one.members) == 2 for one in self.writers))

    async def client(self, name: str, *roles: str) -> AsyncClient:
        where = ",".join(str(one.member.endpoint) for one in self.writers)
        client = await AsyncClient.connect(
            where,
            {"security": "on", "securityDirectory": self.identity(name, *roles), "requestTimeoutMs": 120_000},
            read_from=str(self.reader.member.endpoint),
        )
        self.ending.push_async_callback(client.close)
        return client

    async def rules_reach(self, text: str) -> None:
        """Wait until every proxy has this rule, or, behind a `-`, has it no more."""
        wanted = not text.startswith("-")
        hosts = [*(one.host for one in self.writers), self.reader.host]

        def reached() -> bool:
            doors = [host.rights for host in hosts]
            found = [door is not None and text.lstrip("-") in map(str, door._book().rules) for door in doors]
            return found == [wanted] * 3

        await until(reached)

    def noted(self) -> list[tuple[str, str, str]]:
        lines = [
            json.loads(line)
            for number in range(2)
            for line in (self.folder / f"writer{number}.log").read_text().splitlines()
        ]
        return [(one["principal"], one["verb"], one["result"]) for one in lines if one["event"] == "request"]


@pytest.fixture(name="tier")
async def _tier(tmp_path: Path) -> AsyncIterator[SecuredTier]:
    made = SecuredTier(tmp_path)
    async with made.ending:
        await made.start()
        yield made


async def test_rights_hold_over_writing_reading_moving_and_their_withdrawal(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.rights.change(
        add=[
            rule("user:alice", Verb.WRITE, Verb.READ, Verb.CREATE),
            rule("user:carl", Verb.WRITE),
            rule("user:bob", Verb.READ),
        ]
    )
    await tier.rules_reach("allow user:bob read orders*")
    alice, bob, carl = [await tier.client(name, "client") for name in ("alice", "bob", "carl")]
    operator = await tier.client("root", "operator")

    with pytest.raises(LogNotFoundError):
        await carl.write("orders", b"0")
    with pytest.raises(RequestDeniedError, match="bob may not write this log"):
        await bob.write("orders", b"0")
    producer = alice.producer("orders")
    await producer.write(b"1")
    await carl.write("orders", b"2")
    with pytest.raises(RequestDeniedError):
        await alice.truncate("orders", "1:0:0")
    with pytest.raises(RequestDeniedError):
        await alice.move("orders", tier.writers[0].location)
    with pytest.raises(RequestDeniedError):
        await alice.accept_streams(str(tier.writers[0].member.endpoint), enabled=False)

    owner = next(one for one in tier.writers if "orders" in one.streams())
    (other,) = [one for one in tier.writers if one is not owner]
    await operator.move("orders", other.location)
    await until(lambda: "orders" in other.streams())
    await producer.write(b"3")
    await alice.heartbeat("orders", to_readers=True)

    reader = bob.reader("orders", "earliest")
    assert [(await reader.read_next()).payload for _ in range(3)] == [b"1", b"2", b"3"]
    with pytest.raises(RequestDeniedError, match="carl may not read this log"):
        await carl.reader("orders", "earliest").read_next()
    waiting = asyncio.ensure_future(reader.read_next())
    await tier.rights.change(add=[rule("user:alice", Verb.WRITE, allow=False)], remove=[rule("user:bob", Verb.READ)])
    with pytest.raises(RequestDeniedError, match="bob may not read this log"):
        await asyncio.wait_for(waiting, 60)
    await tier.rules_reach("deny user:alice write orders*")
    with pytest.raises(RequestDeniedError, match="alice may not write this log"):
        await producer.write(b"4")
    await carl.write("orders", b"5")

    for proxy in tier.writers:
        noted = proxy.host.noted
        assert hasattr(noted, "flush")
        noted.flush()
    assert {("bob", "write", "refused"), ("alice", "administer", "refused"), ("alice", "truncate", "refused")} <= set(
        tier.noted()
    )
    assert ("root", "administer", "allowed") in tier.noted()
    assert ("alice", "write", "refused") in tier.noted()
