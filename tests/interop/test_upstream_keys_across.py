"""The keys and stores with which BookKeeper tests its own TLS, from the jar of its tests: taken as they are.

They are self-signed, each side trusts the other's certificate; what is trusted in a store of Java's is the other side's
store, key and all; the client's roles stand in its subject; no host is named.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.interop.clusters import VERSIONS, InteropCluster, JavaBookies, JavaProcesses, OurBookie
from helpers.interop.ledgers import SIZES, as_java_tells, java_adds, java_creates, java_reads, payloads, we_add, we_read
from helpers.interop.secured import BY_ROLE, SWITCH, Keys
from helpers.paths import TESTS

from dlspark.testing.java_process import JavaTool, OutOfReachError, class_path_of
from metadata.foundation.errors import DistributedLogError
from storage_node.settings.client import ClientSettings

pytestmark = pytest.mark.long
POM = TESTS / "interop" / "java" / "upstream_keys.xml"
KINDS = {"PEM": "pem", "PKCS12": "p12", "JKS": "jks"}
TWO = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
NO_HOST = {"tlsHostnameVerificationEnabled": "false"}
"""Upstream's certificates name no host, and upstream's clients do not ask."""


@pytest.fixture(scope="module")
def upstream_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upstream")
    try:
        jar = class_path_of(POM)
    except OutOfReachError as reason:
        pytest.skip(str(reason))
    with zipfile.ZipFile(jar) as packed:
        for name in packed.namelist():
            if name.endswith((".pem", ".p12", ".jks", "Password.txt")):
                packed.extract(name, folder)
                (folder / name).chmod(0o600)
    return folder


def keys_of(files: Path, me: str, other: str, kind: str) -> Keys:
    """Return the keys as upstream's own test of TLS sets them."""
    if kind == "PEM":
        stores = {
            "tlsKeyStore": files / f"{me}-key.pem",
            "tlsCertificatePath": files / f"{me}-cert.pem",
            "tlsTrustStore": files / f"{other}-cert.pem",
        }
    else:
        stores = {
            "tlsKeyStore": files / f"{me}-key.{KINDS[kind]}",
            "tlsKeyStorePasswordPath": files / f"keyStore{me.title()}Password.txt",
            "tlsTrustStore": files / f"{other}-key.{KINDS[kind]}",
            "tlsTrustStorePasswordPath": files / f"keyStore{other.title()}Password.txt",
        }
    kinds = {"tlsKeyStoreType": kind, "tlsTrustStoreType": kind}
    return {**SWITCH, **kinds, **{key: str(path) for key, path in stores.items()}}


@dataclass(frozen=True)
class Both:
    """A real bookie and a node of ours with the server's keys, which take the client's first role."""

    java: JavaTool
    cluster: InteropCluster
    client: Keys
    server: Keys

    def ask(self, **more: object) -> Any:
        return partial(self.cluster.on(self.java), settings={**self.client, **more})

    @property
    def ours(self) -> ClientSettings:
        return ClientSettings.from_mapping({**self.client, **NO_HOST})


@pytest.fixture(scope="module", params=[(version, kind) for version in VERSIONS for kind in KINDS], ids="-".join)
def both(
    request: pytest.FixtureRequest,
    processes: JavaProcesses,
    zk: str,
    upstream_files: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Both]:
    version, kind = request.param
    java, root, folder = processes.get(version), f"/upstream-{version}-{kind}", tmp_path_factory.mktemp("both")
    server, client = (
        keys_of(upstream_files, "server", "client", kind),
        keys_of(upstream_files, "client", "server", kind),
    )
    asks = {**server, "bookieAuthProviderFactoryClass": BY_ROLE, "authorizedRoles": "testRole,testRole1"}
    with ExitStack() as stack:
        theirs = JavaBookies(java, zk, root, folder / "theirs", 1, asks)
        stack.callback(theirs.stop_all)
        demands = {**asks, **NO_HOST, "security": "on", "zookeeper.client.secure": "false"}
        node = OurBookie(zk, root, folder / "ours", settings=demands)
        node.start()
        stack.callback(node.stop)
        bookies = (*theirs.cluster.bookies, node.id)
        yield Both(java, InteropCluster(zk, root, bookies, lambda _: None, lambda: False), client, server)


@pytest.mark.parametrize("version_2", [False, True], ids=["v3", "v2"])
async def test_both_libraries_write_and_read_with_upstreams_own_keys(both: Both, version_2: bool) -> None:
    ask = both.ask(useV2WireProtocol=version_2)
    ledger = await java_creates(ask, **TWO)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    async with both.cluster.client(both.ours) as client:
        assert await we_read(client, ledger["ledger"]) == payloads(SIZES)
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await we_add(writer, SIZES)
        await writer.close()
    assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads(SIZES))


async def test_upstreams_server_key_is_nobody_s_to_either_kind_of_node(both: Both) -> None:
    """It is not among what the nodes trust."""
    ask = partial(both.cluster.on(both.java), settings=dict(both.server))
    ledger = await java_creates(ask, **TWO)
    answer = await java_adds(ask, ledger, (1,))
    assert (answer["acknowledged"], len(answer["failed"])) == ([], 1)
    async with both.cluster.client(ClientSettings.from_mapping({**both.server, **NO_HOST})) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        with pytest.raises(DistributedLogError):
            await we_add(writer, (1,))
