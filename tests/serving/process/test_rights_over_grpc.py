"""Rights and restrictions end to end over gRPC, at real proxies: what is refused, and what ends in mid-session.

Real processes: a ZooKeeper, four storage nodes, two write proxies and a read proxy, all of them secured from the start;
certificates of `dlspark tls`, tokens of `dlspark token`, rules of `dlspark acl`. The clients are gRPC's own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from helpers.security.minting import replace_file
from helpers.security.rolling_cluster import HOST, READER, RollingCluster
from helpers.serving.grpc_callers import GrpcCaller
from helpers.waiting import until

from dlspark.sandbox.ports import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.torture, pytest.mark.long, pytest.mark.timeout(0)]

LOG = "orders"
DENIED, REFUSED = "REQUEST_DENIED", "UNAUTHENTICATED"
RULES = (
    "user:writer write,create orders*",
    "user:reader read orders*",
    "user:cutter truncate orders*",
    "user:remover delete orders*",
    "role:app read,write,create shared*",
    "user:etl read,write,create,truncate,delete orders*",
)
NAMES = ("writer", "reader", "cutter", "remover", "nobody")


class Secured:
    """The cluster, and who asks it."""

    def __init__(self, cluster: RollingCluster) -> None:
        self.cluster = cluster
        self.ports = free_ports(READER + 1, set(cluster.proxy_ports + cluster.node_ports), HOST)
        self.keys = cluster.directory / "token-keys.json"
        self.key = cluster.directory / "token-key.jwk"
        self.revoked = cluster.directory / "token-revoked"
        self.callers: list[GrpcCaller] = []

    @property
    def writers(self) -> list[str]:
        return [f"{HOST}:{port}" for port in self.ports[:READER]]

    @property
    def reader(self) -> str:
        return f"{HOST}:{self.ports[READER]}"

    async def run(self, *arguments: str, role: str | None = None) -> None:
        await asyncio.to_thread(self.cluster.dlspark, *arguments, role=role)

    async def rule(self, change: str, rule: str, effect: str = "allow") -> None:
        await self.run("acl", change, effect, *rule.split(), "--uri", self.cluster.uri, role="operator")

    async def begin(self) -> None:
        cluster = self.cluster
        await cluster.begin()
        hosts = ("--host", HOST, "--host", "localhost")
        await self.run("tls", "init", str(cluster.authority), *hosts)
        await self.run("token", "key", str(self.key), "--keys", str(self.keys))
        for name in NAMES:
            await self.run(
                "tls", "issue", str(cluster.authority), name, "--role", "app" if name == "nobody" else "user"
            )
        self.revoked.write_text("")
        for index, port in enumerate(self.ports):
            cluster.more[index] = {
                "grpcPort" if index == READER else "server_grpc_port": str(port),
                "tokenKeys": str(self.keys),
                "tokenLeewaySeconds": "0",
                "tokenRevoked": str(self.revoked),
            }
        await asyncio.to_thread(cluster.restart_zookeeper, "on")
        await asyncio.to_thread(cluster.start, "on")
        for rule in RULES:
            await self.rule("add", rule)
        writer = self.caller("writer")
        await until(lambda: _is(writer.create(LOG), "SUCCESS"), "no right has arrived", every_s=0.2)
        assert await writer.write(LOG) == "SUCCESS"

    def caller(self, name: str | None, token: str = "") -> GrpcCaller:
        folder = None if name is None else self.cluster.folder(name)
        made = GrpcCaller(self.writers, self.cluster.folder("proxy"), folder, token)
        self.callers.append(made)
        return made

    async def token(self, name: str, *restrictions: str, seconds: int = 300) -> str:
        out = self.cluster.directory / f"{name}.token"
        given = ("--for", name, "--seconds", str(seconds), *restrictions, "--out", str(out))
        await self.run("token", "issue", "--key", str(self.key), *given)
        return out.read_text().strip()

    def noted(self, principal: str) -> set[tuple[str, str | None]]:
        """Return what the audit trails have of a principal: results and verbs."""
        lines = [
            json.loads(line)
            for trail in self.cluster.directory.glob("proxy-*-audit.log")
            for line in trail.read_text().rpartition("\n")[0].splitlines()
        ]
        return {(one["result"], one["verb"]) for one in lines if one["principal"] == principal}

    async def close(self) -> None:
        for caller in self.callers:
            await caller.close()
        await asyncio.to_thread(self.cluster.close)


async def _is(answer: Awaitable[str], wanted: str) -> bool:
    return await answer == wanted


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    made = Secured(RollingCluster(folder))
    try:
        await made.begin()
        yield made
    finally:
        await made.close()


async def each_verb(world: Secured, caller: GrpcCaller, log: str = LOG) -> dict[str, str]:
    """What a caller is answered to each verb, the one that ends the log last."""
    return {
        "write": await caller.write(log),
        "read": await caller.read(log, world.reader),
        "truncate": await caller.truncate(log),
        "create": await caller.create(f"{log}-new"),
        "delete": await caller.delete(f"{log}-new"),
    }


def but(**others: str) -> dict[str, str]:
    return dict.fromkeys(("write", "read", "truncate", "create", "delete"), DENIED) | others


async def rights_hold(world: Secured) -> None:
    """Each certificate may what its name's rules give, and nothing else."""
    assert await each_verb(world, world.caller("nobody")) == but()
    assert await each_verb(world, world.caller("reader")) == but(read="SUCCESS")
    assert await each_verb(world, world.caller("cutter")) == but(truncate="SUCCESS")
    assert await each_verb(world, world.caller("writer")) == but(write="SUCCESS", create="SUCCESS")
    assert await each_verb(world, world.caller("remover")) == but(delete="SUCCESS")
    assert await world.caller("nobody").create("shared") == "SUCCESS"
    assert await world.caller("writer").write("shared") == DENIED
    wanted = {("refused", verb) for verb in ("write", "read", "truncate", "create", "delete")}
    await until(lambda: wanted <= world.noted("nobody"), lambda: world.noted("nobody"), every_s=0.2)


async def tokens_narrow(world: Secured) -> None:
    """A token takes the certificate's place for its call, and restrictions hold by log and by verb."""
    whole = but(**dict.fromkeys(but(), "SUCCESS"))
    assert await each_verb(world, world.caller("nobody", await world.token("etl"))) == whole
    reading = await world.token("etl", "--log", "orders*", "--verb", "read")
    assert await each_verb(world, world.caller("nobody", reading)) == but(read="SUCCESS")
    elsewhere = await world.token("etl", "--log", "shared*")
    assert await each_verb(world, world.caller("nobody", elsewhere)) == but()
    assert await world.caller("nobody", elsewhere).write("shared") == DENIED, "restrictions give no right"
    operator = await world.token("nobody", "--role", "operator")
    assert await each_verb(world, world.caller("nobody", operator)) == but(), "a token's roles make no super user"
    for bad in (reading[:-4] + "AAAA", "a.b.c", reading + " " + reading):
        assert await world.caller("writer", bad).write(LOG) == REFUSED, "a bad token is not made good by a certificate"


async def ends(
    world: Secured, what: str, caller: GrpcCaller, change: Callable[[], Awaitable[None]], wanted: str
) -> None:
    """A Read that waits, an Append under way and single requests end by a change, with what is wanted."""
    await until(lambda: _is(caller.write(LOG), "SUCCESS"), f"{what}: no right has arrived", every_s=0.2)
    owner = await caller.owner(LOG)
    read, written = asyncio.Event(), asyncio.Event()
    reading = asyncio.ensure_future(caller.last_word(LOG, world.reader, read))
    writing = asyncio.ensure_future(caller.append_until_refused(LOG, owner, written))
    try:
        await asyncio.wait_for(asyncio.gather(read.wait(), written.wait()), 60)
        await change()
        began = time.monotonic()
        assert wanted in await asyncio.wait_for(writing, 60)
        assert wanted in await asyncio.wait_for(reading, 60)
        print(f"{what}: a Read and an Append have ended {time.monotonic() - began:.1f} s behind the change")
    finally:
        reading.cancel()
        writing.cancel()
    assert await caller.write(LOG) == await caller.read(LOG, world.reader) == wanted
    again = GrpcCaller(world.writers, world.cluster.folder("proxy"))
    again._credentials, again.token = caller._credentials, caller.token
    world.callers.append(again)
    assert await again.write(LOG) == wanted, "by a new connection as well"


async def sessions_end(world: Secured, turn: int) -> None:
    """Rights that are withdrawn, certificates and tokens that are taken back or end: within the calls that go on."""

    async def withdraw() -> None:
        await world.rule("remove", f"user:both-{turn} read,write orders*")

    async def deny() -> None:
        await world.rule("add", f"user:denied-{turn} write,read orders*", "deny")

    both, denied, taken = (f"{name}-{turn}" for name in ("both", "denied", "taken"))
    for name in (both, denied, taken):
        await world.run("tls", "issue", str(world.cluster.authority), name, "--role", "user")
        await world.rule("add", f"user:{name} read,write orders*")
    for name, change in ((both, withdraw), (denied, deny)):
        await ends(world, name, world.caller(name), change, DENIED)

    async def revoke() -> None:
        await world.run("tls", "revoke", str(world.cluster.authority), taken, "--yes")

    async def revoke_token() -> None:
        replace_file(world.revoked, f"{claims(token)['jti']}\n".encode())

    async def retire_key() -> None:
        replace_file(world.keys, b'{"keys": []}')

    await ends(world, "a revoked certificate", world.caller(taken), revoke, REFUSED)
    token = await world.token("etl", seconds=20)
    await ends(world, "a token's end", world.caller("nobody", token), partial(expired, token), REFUSED)
    token = await world.token("etl")
    await ends(world, "a revoked token", world.caller("nobody", token), revoke_token, REFUSED)
    kept = world.keys.read_bytes()
    await ends(world, "a retired key", world.caller("nobody", await world.token("etl")), retire_key, REFUSED)
    replace_file(world.keys, kept)
    caller = world.caller("nobody", await world.token("etl"))
    await until(lambda: _is(caller.write(LOG), "SUCCESS"), "the key is not taken again", every_s=0.2)


async def expired(token: str) -> None:
    """Return at the end of a token's time."""
    await until(lambda: time.time() >= float(str(claims(token)["exp"])), every_s=0.1)


def claims(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


async def tokens_alone(world: Secured) -> None:
    """Proxies that ask for no certificate: a token is all there is, and without one there is nothing."""
    for index in range(READER + 1):
        world.cluster.more[index]["tlsClientAuthentication"] = "false"
        await asyncio.to_thread(world.cluster.restart_proxy, index, "on")
    assert await each_verb(world, world.caller(None)) == dict.fromkeys(but(), REFUSED)
    assert await each_verb(world, world.caller("writer")) == dict.fromkeys(but(), REFUSED), "it is not asked for"
    reading = await world.token("etl", "--log", LOG, "--verb", "read", "--verb", "write")
    caller = world.caller(None, reading)
    assert await each_verb(world, caller) == but(read="SUCCESS", write="SUCCESS")

    caller = world.caller(None, await world.token("etl", seconds=20))
    await ends(world, "a token's end, alone", caller, partial(expired, caller.token), REFUSED)
    for index in range(READER + 1):
        del world.cluster.more[index]["tlsClientAuthentication"]
        await asyncio.to_thread(world.cluster.restart_proxy, index, "on")


async def test_rights_hold_over_grpc_and_end_what_is_under_way(tmp_path: Path, rounds: int | None) -> None:
    async with secured(tmp_path) as world:
        for turn in range(rounds or 1):
            await rights_hold(world)
            await tokens_narrow(world)
            await sessions_end(world, turn)
            await tokens_alone(world)
