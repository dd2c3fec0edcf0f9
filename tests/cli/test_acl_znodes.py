"""`dlspark acl apply`: a namespace that was made open is closed, and opened again, on a real ZooKeeper by TLS."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.keeper_identities import KeeperAuthority
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.sandbox.beginning import initialise
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import Action, Permissions, PermissionStore, RequestDeniedError
from metadata.foundation.errors import NoAuthError
from metadata.security.settings import SecuritySettings
from metadata.store import MetadataStore
from metadata.zookeeper.access import AclEntry
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.secure_server import ClientPort, ServerSecurity
from metadata.zookeeper.securing import open_session

pytestmark = pytest.mark.processes

PATHS = (f"/namespace-{number}" for number in itertools.count())


class MixedCluster:
    """A ZooKeeper whose port takes both kinds, and a namespace that was made in clear text."""

    def __init__(self, server: EmbeddedZooKeeper, identities: Path) -> None:
        self.server = server
        self.identities = identities
        self.path = next(PATHS)

    async def begin(self) -> None:
        """Make the namespace, and a log in it."""
        await initialise(self.server.address)
        store = await ZooKeeperStore.connect(self.server.address)
        await NamespaceStore(store, self.path).bind(Binding.for_cluster(self.server.address))
        await LogStore(store, self.path).create("old")
        await store.close()

    def acl_apply(self, *arguments: str, role: str = "node", status: int = 0) -> Any:
        switch = f"security=optional --set securityDirectory={self.identities / role}"
        command = ["acl", "apply", "--existing", "--yes", *arguments, "--output", "json", "--set", *switch.split()]
        uri = f"distributedlog://{self.server.address}{self.path}"
        done = CliRunner().invoke(app, command, env={"DLSPARK_URI": uri})
        assert done.exit_code == status, (done.output, done.stderr, done.exception)
        return json.loads(done.stdout)

    def plainly(self, work: Callable[[MetadataStore], Coroutine[Any, Any, Any]]) -> Any:
        return self._run(ZooKeeperStore.connect(self.server.address), work)

    def securely(self, work: Callable[[MetadataStore], Coroutine[Any, Any, Any]]) -> Any:
        settings = SecuritySettings(security="on", security_directory=str(self.identities / "node"))
        return self._run(open_session(self.server.address, settings), work)

    def _run(self, opening: Coroutine[Any, Any, MetadataStore], work: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            store = await opening
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedZooKeeper, Path]]:
    """One server for the module, and the folder of the identities."""
    directory = tmp_path_factory.mktemp("mixed")
    authority = KeeperAuthority()
    for role in ("node", "operator", "zookeeper"):
        folder = authority.issue(directory / role, role, role)
        (folder / "zookeeper.secret").write_text("cluster:a-long-random-text\n")
        (folder / "zookeeper.secret").chmod(0o600)
    security = ServerSecurity.of_folder(
        directory / "zookeeper", clients=ClientPort.BOTH, operator="CN=operator,OU=operator"
    )
    with EmbeddedZooKeeper(directory / "server", security=security) as server:
        yield server, directory


@pytest.fixture
def cluster(mixed: tuple[EmbeddedZooKeeper, Path]) -> Iterator[MixedCluster]:
    made = MixedCluster(*mixed)
    asyncio.run(made.begin())
    yield made
    made.acl_apply("--open", "--all-lists", role="operator")  # the ledgers are the next test's, too


def test_a_namespace_is_closed_and_opened_again(cluster: MixedCluster) -> None:
    planned = cluster.acl_apply("--dry-run")
    changes = [tree["changed"] for tree in planned["trees"]]
    assert [tree["root"] for tree in planned["trees"]] == [cluster.path, "/ledgers"]
    assert min(changes) > 3
    cluster.plainly(lambda store: store.put(cluster.path + "/old", b"still open", -1))

    done = cluster.acl_apply()
    assert [tree["changed"] for tree in done["trees"]] == changes
    assert [tree["changed"] for tree in cluster.acl_apply()["trees"]] == [0, 0]
    for path in (cluster.path, cluster.path + "/old", "/ledgers/available"):
        with pytest.raises(NoAuthError):
            cluster.plainly(lambda store, path=path: store.put(path, b"", -1))
        with pytest.raises(NoAuthError):
            cluster.plainly(lambda store, path=path: store.children(path))
    cluster.securely(lambda store: LogStore(store, cluster.path).create("new"))

    opened = cluster.acl_apply("--open")
    assert sum(tree["changed"] for tree in opened["trees"]) > sum(changes)
    cluster.plainly(lambda store: LogStore(store, cluster.path).delete_tree("new"))
    cluster.plainly(lambda store: store.put(cluster.path + "/old", b"open again", -1))


def test_the_top_is_closed_where_that_is_asked_for(cluster: MixedCluster) -> None:
    """`/` is other programs', too, so a namespace's lists leave it alone."""
    cluster.acl_apply()
    cluster.plainly(lambda store: store.create("/of-another-program"))
    cluster.plainly(lambda store: store.delete("/of-another-program"))

    planned = cluster.acl_apply("--top", "--dry-run")["trees"][-1]
    assert (planned["root"], planned["changed"]) == ("/", 3)
    assert cluster.acl_apply("--top")["trees"][-1]["changed"] == 3
    for path in ("/filled", "/zookeeper/filled", "/zookeeper/quota/filled"):
        with pytest.raises(NoAuthError):
            cluster.plainly(lambda store, path=path: store.create(path, b"x"))
    assert "ledgers" in cluster.plainly(lambda store: store.children("/"))[0]
    cluster.securely(lambda store: store.create("/of-the-cluster"))
    cluster.securely(lambda store: store.delete("/of-the-cluster"))
    assert cluster.acl_apply("--top")["trees"][-1]["changed"] == 0

    assert cluster.acl_apply("--top", "--open")["trees"][-1]["changed"] == 3
    cluster.plainly(lambda store: store.create("/of-another-program"))
    cluster.plainly(lambda store: store.delete("/of-another-program"))


def test_what_zookeeper_refuses_is_named_and_the_operator_can_do_it(cluster: MixedCluster) -> None:
    async def leave_one_behind(store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await store.create(cluster.path + "/of-a-lost-identity")
        await store.put_list(cluster.path + "/of-a-lost-identity", [AclEntry("x509", "CN=nobody")], -1)

    cluster.securely(leave_one_behind)
    done = cluster.acl_apply(status=3)
    assert done["trees"][0]["refused"] == [cluster.path + "/of-a-lost-identity"]
    assert [tree["changed"] for tree in cluster.acl_apply("--all-lists", role="operator")["trees"]] == [1, 0]


def test_denials_of_upstreams_format_keep_their_effect(cluster: MixedCluster) -> None:
    """They are read and enforced the same before, under and after lists; from outside nobody takes one away."""

    async def deny(store: MetadataStore) -> None:
        await PermissionStore(store, cluster.path + "/.acl").set(Permissions(deny_write=True), "old")

    async def is_denied(store: MetadataStore) -> None:
        with pytest.raises(RequestDeniedError):
            await PermissionStore(store, cluster.path + "/.acl").check("old", Action.WRITE)
        await PermissionStore(store, cluster.path + "/.acl").check("old", Action.TRUNCATE)

    async def allow(store: MetadataStore) -> None:
        await PermissionStore(store, cluster.path + "/.acl").delete("old")

    cluster.plainly(deny)
    cluster.plainly(is_denied)
    cluster.acl_apply()
    cluster.securely(is_denied)
    for work in (allow, is_denied):  # nor is a denial that cannot be read taken for none
        with pytest.raises(NoAuthError):
            cluster.plainly(work)
    cluster.acl_apply("--open")
    cluster.plainly(is_denied)


def test_without_existing_nothing_is_done(cluster: MixedCluster) -> None:
    uri = f"distributedlog://{cluster.server.address}{cluster.path}"
    done = CliRunner().invoke(app, ["acl", "apply", "--yes"], env={"DLSPARK_URI": uri})
    assert done.exit_code == 1
    assert "Give --existing" in done.stderr
