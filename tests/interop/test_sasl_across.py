"""DIGEST-MD5 across: clients of Java's at our node, ours at a real bookie, on plain connections and inside TLS.

Without --rounds: the newest Java, each side's client once, inside TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.interop.clusters import NEWEST, VERSIONS, InteropCluster, JavaBookies, JavaProcesses, OurBookie
from helpers.interop.ledgers import SIZES, as_java_tells, java_adds, java_creates, java_reads, payloads, we_add, we_read
from helpers.rounds import with_rounds
from helpers.security.minting import MintedAuthority

from dlspark.testing.java_process import JavaTool
from metadata.foundation.errors import DistributedLogError
from storage_node.settings.client import ClientSettings

OF_NODES = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
OF_CLIENTS = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
SECTION = "saslJaasClientSectionName"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
JAAS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required
    user_bookkeeper-1="a secret" user_guest="two" user_bookkeeper-süß="Straße"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required
    username="bookkeeper-1" password="a secret"; };
Umlauts { org.apache.zookeeper.server.auth.DigestLoginModule required
    username="bookkeeper-süß" password="Straße"; };
Liar { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper-1" password="two"; };
Unknown { org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper-2" password="two"; };
Guest { org.apache.zookeeper.server.auth.DigestLoginModule required username="guest" password="two"; };
"""
IN_VAIN = ("Liar", "Unknown", "Guest")
"""Sections of users with another password, unknown to the node, and known but not allowed."""


@dataclass(frozen=True)
class Sides:
    """A JVM with the login configuration, and one cluster with a node of ours, one with a real bookie."""

    java: JavaTool
    jaas: Path
    tls: Mapping[str, str]
    """Keys of TLS that both libraries understand; none: plain connections."""
    ours: InteropCluster
    theirs: InteropCluster

    def of_java(self, section: str = "BookKeeper") -> dict[str, object]:
        return {"clientAuthProviderFactoryClass": OF_CLIENTS, SECTION: section, **self.tls}

    def of_ours(self, section: str | None = "BookKeeper") -> ClientSettings:
        proof = {"clientAuthProviderFactoryClass": OF_CLIENTS, **self.sasl, SECTION: section or ""}
        times = {"addEntryTimeoutSec": 5, "readEntryTimeoutSec": 5}
        return ClientSettings.from_mapping({**times, **self.tls, **(proof if section is not None else {})})

    @property
    def sasl(self) -> dict[str, str]:
        return {"saslJaasConfigurationFile": str(self.jaas), "saslDigestMd5WithoutTls": str(not self.tls).lower()}

    def asks(self, cluster: InteropCluster, settings: Mapping[str, object]) -> Any:
        return partial(cluster.on(self.java), settings=settings)


def of_one(zk: str, root: str, bookies: tuple[str, ...]) -> InteropCluster:
    return InteropCluster(zk, root, bookies, lambda _: None, lambda: False)


def tls_keys(folder: Path) -> dict[str, str]:
    MintedAuthority().folder(folder, "everybody", roles=["node"], hosts=["127.0.0.1", "localhost"])
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(folder / "key.pem"),
        "tlsCertificatePath": str(folder / "certificate.pem"),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(folder / "authorities.pem"),
    }


@pytest.fixture(scope="module", params=[NEWEST, *with_rounds(*VERSIONS[1:])])
def java_with_users(
    request: pytest.FixtureRequest, processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JavaTool, Path, str]]:
    version: str = request.param
    jaas = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    jaas.write_text(JAAS)
    jaas.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
        tool = processes.spawn(version, f"sasl-{version}.log")
    try:
        yield tool, jaas, version
    finally:
        tool.stop()


@pytest.fixture(scope="module", params=["TLS", *with_rounds("plain")])
def sides(
    request: pytest.FixtureRequest,
    java_with_users: tuple[JavaTool, Path, str],
    zk: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    java, jaas, version = java_with_users
    folder = tmp_path_factory.mktemp("sasl")
    keys = tls_keys(folder / "identity") if request.param == "TLS" else {}
    roots = {kind: f"/sasl-{version}-{request.param}-{kind}" for kind in ("ours", "theirs")}
    proof = {"bookieAuthProviderFactoryClass": OF_NODES, **keys}
    with ExitStack() as stack:
        theirs = JavaBookies(java, zk, roots["theirs"], folder / "theirs", 1, proof)
        stack.callback(theirs.stop_all)
        java.call("cluster.init", zk=zk, root=roots["ours"])
        known = {"saslJaasConfigurationFile": str(jaas), "saslDigestMd5WithoutTls": str(not keys).lower()}
        # The ZooKeeper of these tests is a plain one.
        demanded = {"security": "on", "zookeeper.client.secure": "false"} if keys else {}
        ours = OurBookie(zk, roots["ours"], folder / "ours", settings={**proof, **known, **demanded})
        ours.start()
        stack.callback(ours.stop)
        yield Sides(java, jaas, keys, of_one(zk, roots["ours"], (ours.id,)), theirs.cluster)


@pytest.mark.parametrize("section", ["BookKeeper", *with_rounds("Umlauts")])
@pytest.mark.parametrize("version_2", [False, *with_rounds(True)])
async def test_a_java_client_proves_itself_to_our_node(sides: Sides, section: str, version_2: bool) -> None:
    ask = sides.asks(sides.ours, {**sides.of_java(section), "useV2WireProtocol": version_2})
    ledger = await java_creates(ask, **ONE)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    assert await java_reads(ask, ledger["ledger"]) == as_java_tells(payloads(SIZES))
    async with sides.ours.client(sides.of_ours(section)) as client:
        assert await we_read(client, ledger["ledger"]) == payloads(SIZES)


@pytest.mark.long
@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("section", [*IN_VAIN, None])
async def test_a_java_client_without_a_proof_is_refused_by_our_node(
    sides: Sides, section: str | None, version_2: bool
) -> None:
    settings = sides.of_java(section) if section is not None else dict(sides.tls)
    ask = sides.asks(sides.ours, {**settings, "useV2WireProtocol": version_2})
    ledger = await java_creates(ask, **ONE)
    answer = await java_adds(ask, ledger, (1,))
    assert answer["acknowledged"] == []
    assert len(answer["failed"]) == 1
    async with sides.ours.client(sides.of_ours()) as client:
        reader = await client.open(ledger["ledger"], recover=False)
        assert reader.last_add_confirmed == -1
        await reader.close()


@pytest.mark.parametrize("section", ["BookKeeper", *with_rounds("Umlauts")])
async def test_our_client_proves_itself_to_a_real_bookie(sides: Sides, section: str) -> None:
    async with sides.theirs.client(sides.of_ours(section)) as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await we_add(writer, SIZES)
        await writer.close()
        assert await we_read(client, writer.ledger_id) == payloads(SIZES)
    ask = sides.asks(sides.theirs, sides.of_java())
    assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads(SIZES))


@pytest.mark.long
@pytest.mark.parametrize("section", [*IN_VAIN, None])
async def test_our_client_without_a_proof_is_refused_by_a_real_bookie(sides: Sides, section: str | None) -> None:
    settings = ClientSettings.from_mapping({"addEntryTimeoutSec": 2, "startTLSTimeoutSecs": 2}, sides.of_ours(section))
    async with sides.theirs.client(settings) as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(DistributedLogError):
            await we_add(writer, (1,))


@pytest.mark.long
async def test_a_java_client_with_a_proof_goes_on_at_a_node_that_asks_for_none(
    sides: Sides, ours: InteropCluster
) -> None:
    if sides.tls:
        pytest.skip("the sandbox's nodes speak no TLS")
    ask = sides.asks(ours, sides.of_java())
    ledger = await java_creates(ask)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    async with ours.client(sides.of_ours()) as client:
        assert await we_read(client, ledger["ledger"]) == payloads(SIZES)
