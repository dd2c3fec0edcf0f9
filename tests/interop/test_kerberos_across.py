"""Kerberos across: clients of Java's at our node, ours at a real bookie, in a realm of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.interop.clusters import VERSIONS, InteropCluster, JavaBookies, JavaProcesses, OurBookie
from helpers.interop.ledgers import SIZES, as_java_tells, java_adds, java_creates, java_reads, payloads, we_add, we_read
from helpers.security.realm import REALM, no_realm, started_realm

from dlspark.testing.java_process import JavaTool
from metadata.foundation.errors import DistributedLogError
from storage_node.settings.client import ClientSettings

MISSING = no_realm()
pytestmark = [pytest.mark.long, pytest.mark.skipif(MISSING is not None, reason=MISSING or "")]
OF_NODES = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
OF_CLIENTS = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true doNotPrompt=true"


@dataclass(frozen=True)
class Sides:
    """A JVM that knows the realm, and one cluster with a node of ours, one with a real bookie."""

    java: JavaTool
    jaas: Path
    ours: InteropCluster
    theirs: InteropCluster

    def of_java(self, section: str = "BookKeeper") -> dict[str, object]:
        return {"clientAuthProviderFactoryClass": OF_CLIENTS, "saslJaasClientSectionName": section}

    def of_ours(self, section: str = "BookKeeper") -> ClientSettings:
        times = {"addEntryTimeoutSec": 5, "readEntryTimeoutSec": 5, "startTLSTimeoutSecs": 5}
        given = {"saslJaasConfigurationFile": str(self.jaas), **self.of_java(section)}
        return ClientSettings.from_mapping({**times, **{key: str(value) for key, value in given.items()}})

    def asks(self, cluster: InteropCluster, settings: dict[str, object]) -> Any:
        return partial(cluster.on(self.java), settings=settings)


@pytest.fixture(scope="module", params=VERSIONS)
def sides(
    request: pytest.FixtureRequest, processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    version: str = request.param
    folder = tmp_path_factory.mktemp("kerberos")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        (folder / "realm").mkdir()
        realm = stack.enter_context(started_realm(folder / "realm"))
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        service = realm.keytab("bookkeeper/localhost")
        keys = {name: realm.keytab(name) for name in ("bookkeeper-flights", "guest")}
        jaas = folder / "jaas.conf"
        logins = {
            "Bookie": (service, "bookkeeper/localhost"),
            "BookKeeper": (keys["bookkeeper-flights"], "bookkeeper-flights"),
            "Guest": (keys["guest"], "guest"),
        }
        jaas.write_text(
            "".join(
                f'{section} {{ {MODULE} keyTab="{keytab}" principal="{name}@{REALM}"; }};\n'
                for section, (keytab, name) in logins.items()
            )
        )
        jaas.chmod(0o600)
        places = (
            f"-Djava.security.auth.login.config={jaas} -Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}"
        )
        patch.setenv("JAVA_TOOL_OPTIONS", places)
        java = processes.spawn(version, f"kerberos-{version}.log")
        stack.callback(java.stop)
        roots = {kind: f"/kerberos-{version}-{kind}" for kind in ("ours", "theirs")}
        proof = {"bookieAuthProviderFactoryClass": OF_NODES, "saslJaasClientAllowedIds": "bookkeeper-.*"}
        named = {"advertisedAddress": "localhost"}  # principals are by the names of hosts
        theirs = JavaBookies(java, zk, roots["theirs"], folder / "theirs", 1, {**proof, **named})
        stack.callback(theirs.stop_all)
        java.call("cluster.init", zk=zk, root=roots["ours"])
        known = {"saslJaasConfigurationFile": str(jaas)}
        ours = OurBookie(zk, roots["ours"], folder / "ours", settings={**proof, **named, **known})
        ours.start()
        stack.callback(ours.stop)

        def one(root: str) -> InteropCluster:
            return InteropCluster(zk, root, ("one",), lambda _: None, lambda: False)

        yield Sides(java, jaas, one(roots["ours"]), one(roots["theirs"]))


async def test_a_java_client_with_a_ticket_enters_our_node(sides: Sides) -> None:
    ask = sides.asks(sides.ours, sides.of_java())
    ledger = await java_creates(ask, **ONE)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    assert await java_reads(ask, ledger["ledger"]) == as_java_tells(payloads(SIZES))
    async with sides.ours.client(sides.of_ours()) as client:
        assert await we_read(client, ledger["ledger"]) == payloads(SIZES)
    refused = sides.asks(sides.ours, sides.of_java("Guest"))
    ledger = await java_creates(refused, **ONE)
    assert (await java_adds(refused, ledger, (1,)))["acknowledged"] == []


async def test_our_client_with_a_ticket_enters_a_real_bookie(sides: Sides) -> None:
    async with sides.theirs.client(sides.of_ours()) as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await we_add(writer, SIZES)
        await writer.close()
        assert await we_read(client, writer.ledger_id) == payloads(SIZES)
    assert await java_reads(sides.asks(sides.theirs, sides.of_java()), writer.ledger_id) == as_java_tells(
        payloads(SIZES)
    )
    async with sides.theirs.client(sides.of_ours("Guest")) as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(DistributedLogError):
            await we_add(writer, (1,))
