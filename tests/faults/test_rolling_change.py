"""A cluster is secured, and opened again, while programs write and read: docs/security/rolling-change.md.

Real processes: a ZooKeeper, four storage nodes with auto-recovery, two write proxies and a read proxy. Two programs
write, one by storage nodes and one by proxies, and two follow them. Each step of the page is done with the settings
that it names. In the secured state all certificates are renewed, a bystander's is taken back, and the authority itself
is exchanged.

No request of a program fails: what the libraries try again within a request is all the retries there are. Each record
is there once, in order, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from helpers.security.rolling_cluster import NODES, READER, SESSION_S, RollingCluster
from helpers.security.rolling_load import DirectReader, DirectWriter, Program, Reader, ThinReader, ThinWriter, Writer
from helpers.waiting import until

from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.client.client import AsyncClient
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.settings import Value

pytestmark = [pytest.mark.processes, pytest.mark.torture, pytest.mark.long, pytest.mark.timeout(0)]

DIRECT_LOG, THIN_LOG = "direct", "proxied"
RECORDS_A_STEP = 20
COPIES_WITHIN_S = 120.0
HOSTS = ("--host", "127.0.0.1", "--host", "localhost")
BOTH_WAYS = {"proxy", "nodes"}
BELIEVED_AFTER_S = 15.0
"""After which docs/security.md takes changed files for read everywhere."""


class Load:
    """Two writers and two readers, and how they are restarted."""

    def __init__(self, cluster: RollingCluster) -> None:
        proxies = (cluster.write_addresses, cluster.read_address)
        self.direct_writer = DirectWriter(cluster.uri, DIRECT_LOG, {})
        self.direct_reader = DirectReader(cluster.uri, DIRECT_LOG, {})
        self.thin_writer = ThinWriter(*proxies, THIN_LOG, {})
        self.thin_reader = ThinReader(*proxies, THIN_LOG, {})
        self.pairs: list[tuple[Writer, Reader]] = [
            (self.direct_writer, self.direct_reader),
            (self.thin_writer, self.thin_reader),
        ]
        self.programs: list[Program] = [program for pair in self.pairs for program in pair]

    async def direct(self, settings: Mapping[str, str]) -> None:
        for program in (self.direct_writer, self.direct_reader):
            await program.restart(settings)

    async def thin(self, settings: Mapping[str, str]) -> None:
        for program in (self.thin_writer, self.thin_reader):
            await program.restart(settings)

    async def goes_on(self) -> None:
        """Wait until each writer has written some more, and all of it is read. Raises what failed."""
        for writer, reader in self.pairs:
            wanted = writer.acknowledged + RECORDS_A_STEP

            def reached(writer: Writer = writer, wanted: int = wanted) -> bool:
                for program in self.programs:
                    program.check()
                return writer.acknowledged >= wanted

            await until(reached, f"{writer.log} does not go on")
            await reader.follow(writer)

    async def end(self) -> None:
        """End all, writers first, once everything is read. Raises what failed."""
        for writer, reader in self.pairs:
            await writer.end()
            await reader.follow(writer)
            assert reader.read == writer.sent
            await reader.end()

    async def check_contents(self, uri: str) -> None:
        """Read both logs once more from their beginnings, by a reader that has seen nothing of the change."""
        for writer, _ in self.pairs:
            afterwards = DirectReader(uri, writer.log, {})
            afterwards.start()
            await afterwards.follow(writer)
            await afterwards.end()
            assert afterwards.read == writer.sent


class Change:
    """The steps of the page, each a rolling restart of one kind of process."""

    def __init__(self, cluster: RollingCluster, load: Load) -> None:
        self.cluster = cluster
        self.load = load

    async def zookeeper(self, mode: str) -> None:
        await asyncio.to_thread(self.cluster.restart_zookeeper, mode)
        await self.load.goes_on()

    async def nodes(self, mode: str) -> None:
        for index in range(NODES):
            await asyncio.to_thread(self.cluster.restart_node, index, mode)
            await self.load.goes_on()
        heard = await asyncio.to_thread(self.cluster.plain_heard)
        assert set(heard.values()) == {mode != "on"}, heard

    async def proxies(self, mode: str) -> None:
        for index in range(READER + 1):
            await asyncio.to_thread(self.cluster.restart_proxy, index, mode)
            await self.load.goes_on()

    async def direct_clients(self, mode: str) -> None:
        await self.load.direct(self.cluster.settings("client", mode))
        await self.load.goes_on()

    async def thin_clients(self, mode: str) -> None:
        await self.load.thin(self.cluster.settings("client", mode))
        await self.load.goes_on()

    async def lists(self, *arguments: str, role: str = "client") -> None:
        await asyncio.to_thread(
            self.cluster.dlspark,
            "acl",
            "apply",
            "--existing",
            "--yes",
            "--uri",
            self.cluster.uri,
            *arguments,
            role=role,
        )
        await self.load.goes_on()

    async def to_secured(self) -> None:
        """Steps 2 to 7 of the page."""
        await self.zookeeper("optional")
        await self.nodes("optional")
        await self.proxies("optional")
        await self.direct_clients("optional")
        await self.thin_clients("on")
        await self.nodes("on")
        await self.proxies("on")
        await self.direct_clients("on")
        await self.lists()
        await self.zookeeper("on")

    async def to_open(self) -> None:
        """The same steps, backwards."""
        await self.zookeeper("optional")
        await self.direct_clients("optional")
        await self.proxies("optional")
        await self.nodes("optional")
        await self.lists("--open")
        await self.thin_clients("off")
        await self.direct_clients("off")
        await self.proxies("off")
        await self.nodes("off")
        await self.zookeeper("off")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RollingCluster]:
    made = RollingCluster(tmp_path)
    try:
        await made.begin()
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.close)


@contextlib.asynccontextmanager
async def loaded(cluster: RollingCluster) -> AsyncIterator[Load]:
    async with await AsyncNamespace.open(cluster.uri) as namespace:
        for log in (DIRECT_LOG, THIN_LOG):
            await namespace.create_log(log)
    load = Load(cluster)
    for program in load.programs:
        program.start()
    try:
        yield load
        await load.end()
        await load.check_contents(cluster.uri)
    finally:
        for program in load.programs:
            with contextlib.suppress(Exception):
                await program.end()


async def refuses_strangers(cluster: RollingCluster) -> None:
    """Nobody without a certificate gets anywhere."""
    with pytest.raises(DistributedLogError):
        await AsyncNamespace.open(cluster.uri, {"zkSessionTimeoutSeconds": 4})
    async with await AsyncClient.connect(cluster.write_addresses, {"requestTimeoutMs": 60_000}) as stranger:
        with pytest.raises(DistributedLogError):
            await stranger.write(THIN_LOG, b"0")


async def has_all_copies(cluster: RollingCluster, role: str | None) -> None:
    """Wait until auto-recovery has made every copy again that is missing since a node was away."""

    async def whole() -> bool:
        status, said = await asyncio.to_thread(cluster.run, "cluster", "status", "--uri", cluster.uri, role=role)
        heard.append(said)
        return status == 0

    heard: list[str] = []
    await until(whole, lambda: heard[-1], patience_s=COPIES_WITHIN_S, every_s=1)


async def renew_all(cluster: RollingCluster, load: Load) -> None:
    """Every server shows its new certificate within seconds, and nothing is restarted."""
    before = await asyncio.to_thread(cluster.certificates)
    await asyncio.to_thread(cluster.dlspark, "tls", "renew", str(cluster.authority))

    async def all_new() -> bool:
        now = await asyncio.to_thread(cluster.certificates)
        return all(now[name] != shown for name, shown in before.items())

    await until(all_new, "a server keeps its old certificate", every_s=0.5)
    await load.goes_on()


async def exchange_authority(cluster: RollingCluster, load: Load) -> None:
    """The authority itself is exchanged, as docs/security.md says: both are believed, then every certificate is one of
    the new authority, then the new one alone is believed. Nothing is restarted."""
    new = await asyncio.to_thread(cluster.prepare_authority, HOSTS)
    arrived = cluster.settings("client", "on") | {"securityDirectory": str(new / "client")}
    left = cluster.directory / f"left-by-{new.name}"
    await asyncio.to_thread(shutil.copytree, cluster.folder("client"), left)
    await asyncio.sleep(BELIEVED_AFTER_S)  # what the page says to wait: nothing shows what a client believes by now
    await load.goes_on()
    assert await ways_in(cluster, arrived) == BOTH_WAYS, "a client of the new authority is refused"
    before = await asyncio.to_thread(cluster.certificates)
    await asyncio.to_thread(cluster.give_out, new)

    async def all_new() -> bool:
        now = await asyncio.to_thread(cluster.certificates)
        return all(now[name] != shown for name, shown in before.items())

    await until(all_new, "a server keeps a certificate of the old authority", every_s=0.5)
    await load.goes_on()
    await asyncio.sleep(BELIEVED_AFTER_S)
    await asyncio.to_thread(cluster.forget_others)
    gone = {"security": "on", "securityDirectory": str(left)}

    async def refused() -> bool:
        return not await ways_in(cluster, gone)  # servers read their files one after the other, each within seconds

    await until(refused, "a client of the old authority is not refused", every_s=0.5)
    await load.goes_on()


async def ways_in(cluster: RollingCluster, settings: Mapping[str, str]) -> set[str]:
    """Return by which ways a client with these settings may write: by a proxy, by storage nodes."""
    values: dict[str, Value] = {**settings, "requestTimeoutMs": 60_000}
    found = set()
    with contextlib.suppress(DistributedLogError):
        async with await AsyncClient.connect(cluster.write_addresses, values) as thin:
            await thin.write("visited", b"by a proxy")
        found.add("proxy")
    direct = DirectWriter(cluster.uri, f"visited-{secrets.token_hex(4)}", settings)
    direct.start()
    # One that got its session just before and is refused from then on ends with that session, and not sooner.
    done = "a visitor neither writes nor ends"
    await until(lambda: direct.acknowledged or direct.ended, done, patience_s=SESSION_S + 140.0)
    with contextlib.suppress(DistributedLogError):
        await direct.end()
        found.add("nodes")
    return found


async def revoke_bystander(cluster: RollingCluster, load: Load, name: str) -> None:
    """A client's certificate is taken back: its open connections to proxies and nodes end, and it is not let in again;
    the others notice nothing."""
    await asyncio.to_thread(cluster.dlspark, "tls", "issue", str(cluster.authority), name, "--role", "client")
    values: dict[str, Value] = {**cluster.settings(name, "on"), "requestTimeoutMs": 60_000}
    secret = {"bkc.zkAclSecretPath": str(cluster.folder("client") / "zookeeper.secret")}  # a new name may have none
    direct = DirectWriter(cluster.uri, f"{name}-direct", {**cluster.settings(name, "on"), **secret})
    direct.start()
    async with await AsyncClient.connect(cluster.write_addresses, values) as thin:
        await thin.write(name, b"before")
        await until(lambda: direct.acknowledged or direct.ended, "the bystander does not write")
        direct.check()
        await asyncio.to_thread(cluster.dlspark, "tls", "revoke", str(cluster.authority), name, "--yes")

        async def refused() -> bool:
            try:
                await thin.write(name, b"after")
            except DistributedLogError:
                return "proxy" in await asyncio.to_thread(cluster.revoked_at, name)
            return False

        await until(refused, "a revoked client still writes by proxies", every_s=0.5)
        await until(lambda: direct.ended, "a revoked client still writes by storage nodes")
    with pytest.raises(DistributedLogError):
        await direct.end()
    assert "node" in await asyncio.to_thread(cluster.revoked_at, name)
    await load.goes_on()


async def test_a_cluster_is_secured_and_opened_again_under_load(cluster: RollingCluster, rounds: int | None) -> None:
    await asyncio.to_thread(cluster.dlspark, "tls", "init", str(cluster.authority), *HOSTS)
    await asyncio.to_thread(
        cluster.dlspark, "acl", "add", "allow", "role:client", "read,write,create", "*", "--uri", cluster.uri
    )
    async with loaded(cluster) as load:
        change = Change(cluster, load)
        for turn in range(rounds or 1):
            await change.to_secured()
            await refuses_strangers(cluster)
            await has_all_copies(cluster, "operator")
            await renew_all(cluster, load)
            await revoke_bystander(cluster, load, f"bystander-{turn}")
            await exchange_authority(cluster, load)
            await change.to_open()
            await has_all_copies(cluster, None)
            longest = {writer.log: f"{writer.longest_s:.2f} s" for writer, _ in load.pairs}
            print(f"round {turn + 1}: {[writer.acknowledged for writer, _ in load.pairs]} records, longest {longest}")
