"""Mutual TLS across: Java's clients and ours on storage nodes of both kinds in one ensemble, by upstream's own keys.

Without --rounds: the newest Java, each side's client once, keys in PEM files.
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
from helpers.interop.secured import BY_ROLE, HOSTS, Keys, pem_keys, store_keys
from helpers.rounds import with_rounds
from helpers.security.minting import MintedAuthority

from dlspark.testing.java_process import JavaTool
from metadata.foundation.errors import DistributedLogError
from storage_node.settings.client import ClientSettings

KINDS = ["pem", *with_rounds("pkcs12", "jks")]
WHOLE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}


@dataclass(frozen=True)
class Secured:
    """A JVM, and a cluster of a real bookie and two nodes of ours, which take the roles `client` and `node`."""

    java: JavaTool
    cluster: InteropCluster
    authority: MintedAuthority
    folder: Path

    def keys(self, role: str | None, kind: str = "pem", authority: MintedAuthority | None = None) -> Keys:
        """Return the keys of a client with a certificate of its own."""
        by = authority or self.authority
        pair = by.issue("a client", roles=[] if role is None else [f"0:{role}"], hosts=HOSTS)
        place = self.folder / f"client-{len(list(self.folder.iterdir()))}"
        if kind == "pem":
            return pem_keys(place, pair, self.authority)
        return store_keys(kind, place, pair, self.authority)

    def ask(self, keys: Mapping[str, object]) -> Any:
        return partial(self.cluster.on(self.java), settings=dict(keys))


def ours(keys: Mapping[str, str]) -> ClientSettings:
    return ClientSettings.from_mapping({"addEntryTimeoutSec": 5, "readEntryTimeoutSec": 5, **keys})


@pytest.fixture(scope="module", params=[NEWEST, *with_rounds(*VERSIONS[1:])])
def secured(
    request: pytest.FixtureRequest, processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    java = processes.get(request.param)
    folder, root = tmp_path_factory.mktemp("tls"), f"/tls-{request.param}"
    authority = MintedAuthority()
    node = authority.issue("a node", roles=["0:node"], hosts=HOSTS)
    asks = {"bookieAuthProviderFactoryClass": BY_ROLE, "authorizedRoles": "client,node"}
    keys = {**pem_keys(folder / "node", node, authority), **asks}
    with ExitStack() as stack:
        theirs = JavaBookies(java, zk, root, folder / "theirs", 1, keys)
        stack.callback(theirs.stop_all)
        demands = {**keys, "security": "on", "zookeeper.client.secure": "false"}
        nodes = [OurBookie(zk, root, folder / f"ours-{number}", settings=demands) for number in (1, 2)]
        for one in nodes:
            one.start()
            stack.callback(one.stop)
        bookies = (*theirs.cluster.bookies, *(one.id for one in nodes))
        yield Secured(java, InteropCluster(zk, root, bookies, lambda _: None, lambda: False), authority, folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version_2", [False, *with_rounds(True)])
async def test_a_java_client_writes_to_both_kinds_of_nodes_and_ours_reads(
    secured: Secured, kind: str, version_2: bool
) -> None:
    keys = secured.keys("client", kind)
    ask = secured.ask({**keys, "useV2WireProtocol": version_2})
    ledger = await java_creates(ask, **WHOLE)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    assert await java_reads(ask, ledger["ledger"]) == as_java_tells(payloads(SIZES))
    async with secured.cluster.client(ours(keys)) as client:
        assert await we_read(client, ledger["ledger"]) == payloads(SIZES)


@pytest.mark.parametrize("kind", KINDS)
async def test_our_client_writes_to_both_kinds_of_nodes_and_java_reads(secured: Secured, kind: str) -> None:
    keys = secured.keys("client", kind)
    async with secured.cluster.client(ours(keys)) as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await we_add(writer, SIZES)
        await writer.close()
        assert await we_read(client, writer.ledger_id) == payloads(SIZES)
    assert await java_reads(secured.ask(keys), writer.ledger_id) == as_java_tells(payloads(SIZES))


@pytest.mark.long
async def test_each_side_fences_and_recovers_the_others_ledger(secured: Secured) -> None:
    keys = secured.keys("client")
    ask = secured.ask(keys)
    left = await java_creates(ask, **WHOLE)
    await java_adds(ask, left, SIZES)
    async with secured.cluster.client(ours(keys)) as client:
        reader = await client.open(left["ledger"], recover=True)
        assert (reader.closed, reader.last_add_confirmed) == (True, len(SIZES) - 1)
        assert [bytes(entry.payload) for entry in await reader.read(0, len(SIZES) - 1)] == payloads(SIZES)
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await we_add(writer, SIZES)
        assert await java_reads(ask, writer.ledger_id, recover=True) == as_java_tells(payloads(SIZES))
        with pytest.raises(DistributedLogError):
            await writer.add(b"after the fence")


@pytest.mark.long
@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("who", ["plain", "another role", "no role", "another authority"])
async def test_who_may_not_is_refused_by_nodes_of_either_kind(secured: Secured, who: str, version_2: bool) -> None:
    good = ours(secured.keys("client"))
    bad: Mapping[str, str] = {}
    if who == "another role":
        bad = secured.keys("console")
    elif who == "no role":
        bad = secured.keys(None)
    elif who == "another authority":
        bad = secured.keys("client", authority=MintedAuthority("Somebody else's"))
    ask = secured.ask({**bad, "useV2WireProtocol": version_2})
    ledger = await java_creates(ask, **WHOLE)
    answer = await java_adds(ask, ledger, (1,))
    assert (answer["acknowledged"], len(answer["failed"])) == ([], 1)
    async with secured.cluster.client(ours({**bad, **({} if bad else {"security": "off"})})) as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        with pytest.raises(DistributedLogError):
            await we_add(writer, (1,))
    async with secured.cluster.client(good) as client:
        for ledger_id in (ledger["ledger"], writer.ledger_id):
            reader = await client.open(ledger_id, recover=True)
            assert reader.last_add_confirmed == -1, "nothing of theirs is anywhere"
            await reader.close()
