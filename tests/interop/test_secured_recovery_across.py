"""Auto-recovery of either kind mends ledgers on secured nodes of both kinds in one ensemble."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.interop.auto_recovery import (
    REPAIR_WITHIN_S,
    java_auto_recovery,
    ledgers_of_both,
    our_auto_recovery_process,
    read_by_both,
    repaired,
)
from helpers.interop.clusters import VERSIONS, InteropCluster, JavaBookies, JavaProcesses, OurBookie
from helpers.interop.secured import BY_ROLE, HOSTS, SASL_OF_CLIENTS, SASL_OF_NODES, Keys, pem_keys
from helpers.security.minting import MintedAuthority
from helpers.waiting import until

from dlspark.testing.java_process import JavaTool
from storage_node.settings.client import ClientSettings

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
MECHANISMS = ("roles", "DIGEST-MD5", "DIGEST-MD5 in TLS")
PLAIN_ZOOKEEPER = {"zookeeper.client.secure": "false"}
"""The ZooKeeper of these tests."""
OTHER_USER = {"saslJaasAuditorSectionName": "Guest"}
STRANGERS = re.compile("roles \\(console\\)|user 'guest'")
"""In the audit trail's reasons."""
JAAS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required
    user_bookkeeper-client="a secret" user_bookkeeper-auditor="another" user_guest="two"; };
BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required
    username="bookkeeper-client" password="a secret"; };
Auditor { org.apache.zookeeper.server.auth.DigestLoginModule required
    username="bookkeeper-auditor" password="another"; };
Guest { org.apache.zookeeper.server.auth.DigestLoginModule required username="guest" password="two"; };
"""


@dataclass(frozen=True)
class SecuredNodes:
    """Two real bookies and three nodes of ours that ask for one kind of proof, and the keys of those who have it."""

    java: JavaTool
    cluster: InteropCluster
    own: list[OurBookie]
    theirs: list[str]
    client: Mapping[str, str]
    auditor: Mapping[str, str]
    """What Java's auto-recovery is given."""
    stranger: Mapping[str, str]
    """The same of one that may not enter."""
    of_ours: Mapping[str, str]
    """Keys that only ours need."""
    folder: Path
    _runs: list[str] = field(default_factory=list)

    @property
    def ask(self) -> Any:
        return partial(self.cluster.on(self.java), settings=dict(self.client))

    @property
    def ours(self) -> ClientSettings:
        return ClientSettings.from_mapping(
            {**self.client, **{k: v for k, v in self.of_ours.items() if k != "zookeeper.client.secure"}}
        )

    def recovery(self, repairer: str, keys: Mapping[str, str]) -> Any:
        if repairer == "Java's":
            return java_auto_recovery(self.cluster, self.java, keys)
        self._runs.append(repairer)
        return our_auto_recovery_process(
            self.cluster, self.folder / f"recovery-{len(self._runs)}", {**keys, **self.of_ours}
        )

    def refusals(self) -> int:
        """Count the strangers whom our nodes' audit trails have as refused: a connection that broke is refused too."""
        notes = [json.loads(line) for path in self.folder.glob("audit-*") for line in path.read_text().splitlines()]
        return sum(
            note.get("count", 1) for note in notes if note["result"] == "refused" and STRANGERS.search(note["reason"])
        )


@pytest.fixture(scope="module", params=VERSIONS)
def java_with_users(
    request: pytest.FixtureRequest, processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JavaTool, Path, str]]:
    version: str = request.param
    jaas = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    jaas.write_text(JAAS)
    jaas.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
        tool = processes.spawn(version, f"secured-recovery-{version}.log")
    try:
        yield tool, jaas, version
    finally:
        tool.stop()


@pytest.fixture(scope="module", params=MECHANISMS)
def secured(
    request: pytest.FixtureRequest,
    java_with_users: tuple[JavaTool, Path, str],
    zk: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SecuredNodes]:
    java, jaas, version = java_with_users
    mechanism: str = request.param
    folder = tmp_path_factory.mktemp("recovery")
    root = f"/secured-{version}-{MECHANISMS.index(mechanism)}"
    node, client, auditor, stranger, of_ours = _keys(mechanism, folder, jaas)
    with ExitStack() as stack:
        bookies = JavaBookies(java, zk, root, folder / "theirs", 2, node)
        stack.callback(bookies.stop_all)
        own = []
        for number in range(3):
            settings = {**node, **of_ours, "auditLog": folder / f"audit-{number}", "zkTimeout": 3000}
            own.append(OurBookie(zk, root, folder / f"ours-{number}", settings=settings))
            own[-1].start()
            stack.callback(own[-1].stop)
        theirs = list(bookies.cluster.bookies)
        cluster = InteropCluster(zk, root, (*theirs, *(one.id for one in own)), bookies.stop, bookies.start_all)
        yield SecuredNodes(java, cluster, own, theirs, client, auditor, stranger, of_ours, folder)


def _keys(mechanism: str, folder: Path, jaas: Path) -> tuple[Keys, Keys, Keys, Keys, Keys]:
    """Return the keys of a node, a client, auto-recovery, and one that may not; and what ours need beside them."""
    authority = MintedAuthority()

    def tls(name: str, *roles: str) -> Keys:
        return pem_keys(folder / name, authority.issue(name, roles=roles, hosts=HOSTS), authority)

    if mechanism == "roles":
        asks = {"bookieAuthProviderFactoryClass": BY_ROLE, "authorizedRoles": "client,auditor"}
        node = {**tls("node", "0:node"), **asks}
        who = tls("client", "0:client"), tls("auditor", "0:auditor"), tls("stranger", "0:console")
        return (node, *who, {"security": "on", **PLAIN_ZOOKEEPER})
    under = tls("everybody", "0:node") if mechanism.endswith("TLS") else {}
    node = {**under, "bookieAuthProviderFactoryClass": SASL_OF_NODES}
    client = {**under, "clientAuthProviderFactoryClass": SASL_OF_CLIENTS}
    known = {"saslJaasConfigurationFile": str(jaas), "saslDigestMd5WithoutTls": str(not under).lower()}
    on = {"security": "on", **PLAIN_ZOOKEEPER} if under else {}
    return node, client, client, {**client, **OTHER_USER}, {**known, **on}


@pytest.mark.parametrize("lost", ["our node", "a real bookie"])
@pytest.mark.parametrize("repairer", ["Java's", "ours"])
async def test_what_a_lost_secured_node_held_is_replicated_again(
    secured: SecuredNodes, repairer: str, lost: str
) -> None:
    """A stranger's auto-recovery is refused and mends nothing; one with the proof then mends it all."""
    cluster, ask = secured.cluster, secured.ask
    gone = secured.own[0] if lost == "our node" else None
    name = gone.id if gone is not None else secured.theirs[0]
    ledger_ids = await ledgers_of_both(ask, cluster, name, secured.ours)
    before, refused = [await ask("ledger.metadata", ledger=one) for one in ledger_ids], secured.refusals()
    await asyncio.to_thread(gone.kill if gone is not None else partial(cluster.lose, name))
    try:
        async with secured.recovery(repairer, secured.stranger):
            await until(lambda: secured.refusals() > refused, "our nodes refuse the stranger", every_s=0.1)
        assert [await ask("ledger.metadata", ledger=one) for one in ledger_ids] == before
        async with secured.recovery(repairer, secured.auditor):
            await asyncio.wait_for(repaired(ask, ledger_ids, name, secured.theirs), REPAIR_WITHIN_S)
        await read_by_both(ask, cluster, ledger_ids, secured.ours)
    finally:
        await asyncio.to_thread(gone.start if gone is not None else cluster.restore)
        await ask("ledger.reach", nodes=len(cluster.bookies))
