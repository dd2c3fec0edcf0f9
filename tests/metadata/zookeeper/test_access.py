"""Who may do what with znodes, on a real ZooKeeper by TLS: the shared identity, named subjects, old znodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from helpers.keeper_identities import KeeperAuthority, client_context
from hypothesis import given
from hypothesis import strategies as st

from metadata.foundation.errors import CallerError, NoAuthError
from metadata.security.secrets import Secret
from metadata.zookeeper.access import (
    ALL,
    OPEN,
    READ,
    WORLD_READS,
    Access,
    AclEntry,
    Credential,
    access_by_id,
    folder_credential,
    named_identities,
    shared_entries,
)
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.list_change import ListChange
from metadata.zookeeper.secure_server import ServerSecurity
from metadata.zookeeper.tls_socket import FixedTls

SHARED = Credential(Secret("cluster:a-long-random-text"))
CLUSTER = Access((SHARED,), (SHARED.entry(),), needs_tls=True)
STRANGER = Access((Credential(Secret("cluster:a guess")),), needs_tls=True)
Opener = Callable[..., Awaitable[ZooKeeperStore]]


@pytest.fixture(scope="module")
def authority() -> KeeperAuthority:
    return KeeperAuthority()


@pytest.fixture(scope="module")
def secured(authority: KeeperAuthority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory = tmp_path_factory.mktemp("secured")
    security = ServerSecurity.of_folder(authority.issue(directory / "identity"), operator="CN=op,OU=operator")
    with EmbeddedZooKeeper(directory / "server", security=security) as server:
        yield server


@pytest.fixture
async def session(secured: EmbeddedZooKeeper, authority: KeeperAuthority, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens sessions of certificates by name."""
    opened: list[ZooKeeperStore] = []

    async def opener(name: str, role: str = "node", access: Access = CLUSTER) -> ZooKeeperStore:
        tls = FixedTls(client_context(authority.issue(tmp_path / name, name, role)))
        opened.append(await ZooKeeperStore.connect(secured.address, connect_timeout_ms=60_000, tls=tls, access=access))
        return opened[-1]

    yield opener
    for store in opened:
        await store.close()


@pytest.mark.processes
async def test_what_one_process_of_a_cluster_creates_is_all_theirs_and_nobody_elses(session: Opener) -> None:
    first, second = await session("node-1"), await session("node-2")
    stranger, nobody = await session("guest", access=STRANGER), await session("client", "client", Access())
    await first.create("/ours", b"of the first")
    await second.put("/ours", b"of the second", 0)
    await second.create("/ours/below", ephemeral=True)
    await first.delete("/ours/below")
    for other in (stranger, nobody):
        for act in (
            other.get("/ours"),
            other.put("/ours", b"", -1),
            other.children("/ours"),
            other.create("/ours/mine"),
            other.get_list("/ours"),
            other.put_list("/ours", OPEN, -1),
        ):
            with pytest.raises(NoAuthError):
                await act
    assert (await first.get_list("/ours"))[0] == (SHARED.entry(),)


@pytest.mark.processes
async def test_the_operators_certificate_may_do_everything(session: Opener) -> None:
    owner, operator = await session("node-1"), await session("op", "operator", Access())
    assert "super" in {scheme for scheme, _ in await operator.who_am_i()}
    await owner.create("/lost", b"x")
    await operator.put_list("/lost", OPEN, -1)
    assert (await (await session("anybody", "client", Access())).get("/lost"))[0] == b"x"


@pytest.mark.processes
async def test_a_subject_can_be_named_for_software_that_shows_no_digest(session: Opener) -> None:
    named = named_identities("x509:CN=java-1,OU=node; x509:CN=look,OU=client:r")
    owner = await session("node-1", access=Access((SHARED,), shared_entries(SHARED, named, world_reads=False)))
    java, looker = await session("java-1", "node", Access()), await session("look", "client", Access())
    await owner.create("/shared-with-java")
    await java.put("/shared-with-java", b"by Java", 0)
    assert (await looker.get("/shared-with-java"))[0] == b"by Java"
    with pytest.raises(NoAuthError):
        await looker.put("/shared-with-java", b"", -1)
    with pytest.raises(NoAuthError):  # another role, so another subject
        await (await session("java-1", "client", Access())).get("/shared-with-java")


@pytest.mark.processes
async def test_upstreams_identity_is_the_same_by_tls_and_no_certificate_is_in_its_list(session: Opener) -> None:
    store = await session("node-1", access=access_by_id("alice"))
    await store.create("/of-alice")
    assert (await store.get_list("/of-alice"))[0] == (
        AclEntry("digest", "alice:zMr7NGSJC8xGc4J0Bbvj5q51MxE=", ALL),
        WORLD_READS,
    )


async def _tree(store: ZooKeeperStore, root: str) -> list[str]:
    await store.create(root)
    for name in ("a", "b"):
        await store.create(f"{root}/{name}", b"x")
        for number in range(20):
            await store.create(f"{root}/{name}/{number}")
    names = [root, f"{root}/a", f"{root}/b"]
    return names + [f"{root}/{name}/{number}" for name in ("a", "b") for number in range(20)]


@pytest.mark.processes
async def test_old_znodes_get_lists_and_lose_them_again(session: Opener) -> None:
    old, cluster = await session("old", access=Access()), await session("node-1")
    tree = await _tree(old, "/old")
    wanted = CLUSTER.entries
    planned = await ListChange(cluster, CLUSTER, wanted, dry_run=True).run(["/old"])
    assert (planned.changed, planned.kept, planned.done) == (len(tree), 0, True)
    await old.put("/old/a", b"still open", 0)

    report = await ListChange(cluster, CLUSTER, wanted).run(["/old", "/not-there"])
    assert (report.changed, report.kept, report.others, report.refused) == (len(tree), 0, [], [])
    with pytest.raises(NoAuthError):
        await old.get("/old/a")
    again = await ListChange(cluster, CLUSTER, wanted).run(["/old"])
    assert (again.changed, again.kept) == (0, len(tree))

    # Another subject is added later: what is the cluster's own takes the new list.
    more = shared_entries(SHARED, named_identities("x509:CN=java-1,OU=node"), world_reads=False)
    assert (await ListChange(cluster, CLUSTER, more).run(["/old"])).changed == len(tree)

    opened = await ListChange(cluster, CLUSTER, OPEN).run(["/old"])
    assert (opened.changed, opened.done) == (len(tree), True)
    await old.put("/old/a", b"open again", 1)


@pytest.mark.processes
async def test_lists_of_others_stay_and_are_named(session: Opener) -> None:
    cluster, alice = await session("node-1"), await session("alice", access=access_by_id("alice"))
    nobody = await session("nobody", access=Access())
    private = Credential(Secret("private:one"))
    closed = await session("closed", access=Access((private,), (private.entry(),), needs_tls=True))
    await nobody.create("/mixed")
    await alice.create("/mixed/of-alice")
    await nobody.create("/mixed/open")
    await closed.create("/mixed/closed")
    report = await ListChange(cluster, CLUSTER, CLUSTER.entries).run(["/mixed"])
    assert (report.changed, report.others, report.refused) == (2, ["/mixed/of-alice"], ["/mixed/closed"])
    assert not report.done
    with pytest.raises(NoAuthError):
        await cluster.put("/mixed/of-alice", b"", -1)
    # ZooKeeper refuses what one would force; the operator's certificate may.
    forced = await ListChange(cluster, CLUSTER, CLUSTER.entries, all_lists=True).run(["/mixed"])
    assert sorted(forced.refused) == ["/mixed/closed", "/mixed/of-alice"]
    operator = await session("op", "operator")
    done = await ListChange(operator, CLUSTER, CLUSTER.entries, all_lists=True).run(["/mixed"])
    assert (done.changed, done.kept, done.done) == (2, 2, True)
    await cluster.put("/mixed/closed", b"", -1)


@pytest.mark.processes
async def test_below_a_znode_that_may_be_changed_and_not_read_nothing_is_left_out(session: Opener) -> None:
    unread = Access((SHARED,), (SHARED.entry(ALL & ~READ),), needs_tls=True)
    blind, cluster = await session("blind", access=unread), await session("node-1")
    for path in ("/unread", "/unread/a", "/unread/a/b"):
        await blind.create(path)
    report = await ListChange(cluster, CLUSTER, CLUSTER.entries).run(["/unread"])
    assert (report.changed, report.refused) == (3, [])
    assert (await ListChange(cluster, CLUSTER, CLUSTER.entries).run(["/unread"])).kept == 3


@pytest.mark.processes
async def test_nobody_shuts_themselves_out(session: Opener) -> None:
    nobody = await session("nobody", access=Access())
    await nobody.create("/mine")
    for wanted in (CLUSTER.entries, (AclEntry("x509", "CN=nobody,OU=node", READ),)):
        with pytest.raises(CallerError, match="could not take it back"):
            await ListChange(nobody, Access(), wanted).run(["/mine"])
    with pytest.raises(CallerError, match="shuts everybody out"):
        await nobody.put_list("/mine", (), -1)
    assert (await nobody.get_list("/mine"))[0] == OPEN
    by_subject = (AclEntry("x509", "CN=nobody,OU=node"),)
    assert (await ListChange(nobody, Access(), by_subject).run(["/mine"])).changed == 1
    await nobody.put("/mine", b"still", -1)


@pytest.mark.processes
async def test_a_change_that_was_broken_off_is_made_again_and_goes_on(session: Opener) -> None:
    old, cluster = await session("old", access=Access()), await session("node-1")
    tree = await _tree(old, "/broken-off")

    def stop(looked_at: int) -> None:
        if looked_at > 5:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ListChange(cluster, CLUSTER, CLUSTER.entries, progress=stop).run(["/broken-off"])
    report = await ListChange(cluster, CLUSTER, CLUSTER.entries).run(["/broken-off"])
    assert 0 < report.changed < len(tree)
    assert report.changed + report.kept == len(tree)


@pytest.mark.processes
async def test_the_secret_stands_in_no_log_however_much_is_logged(
    session: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(1, "metadata.zookeeper.client.kazoo"):
        store = await session("node-1")
        await store.get("/")
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "Sending request" in said
    assert "a-long-random-text" not in said
    assert "passwd" not in said
    assert logging.getLogger("metadata.zookeeper.client.kazoo").level == logging.WARNING


@pytest.mark.processes
async def test_the_secret_is_not_sent_in_clear_text(zookeeper: EmbeddedZooKeeper) -> None:
    with pytest.raises(CallerError, match="in clear text") as caught:
        await ZooKeeperStore.connect(zookeeper.address, access=CLUSTER)
    assert "a-long-random-text" not in f"{caught.value!r} {CLUSTER!r}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("CN=a,OU=b", "begins with one of"),
        ("x509:", "begins with one of"),
        ("digest:name:password", "never with the password"),
        ("world:everybody", "`anyone` alone"),
    ],
)
def test_entries_that_are_none_are_refused_and_show_no_password(text: str, wrong: str) -> None:
    with pytest.raises(CallerError, match=wrong) as caught:
        AclEntry.parse(text)
    assert ":password'" not in str(caught.value)


@given(
    scheme=st.sampled_from(["x509", "sasl", "ip"]),
    identity=st.text("abcABC=,.+ -/@", min_size=1).filter(lambda text: text == text.strip()),
    rights=st.integers(1, 31),
)
def test_an_entry_reads_what_it_writes(scheme: str, identity: str, rights: int) -> None:
    entry = AclEntry(scheme, identity, rights)
    assert AclEntry.parse(str(entry)) == entry


def test_the_list_of_a_cluster_names_who_can_do_everything_or_is_none() -> None:
    looker = AclEntry("x509", "CN=look", READ)
    assert shared_entries(None, [], world_reads=True) == ()
    assert shared_entries(None, [looker], world_reads=False) == ()
    assert shared_entries(SHARED, [looker], world_reads=True) == (SHARED.entry(), looker, WORLD_READS)


def test_a_folders_secret_is_for_its_owner_and_has_a_name_and_a_password(tmp_path: Path) -> None:
    assert folder_credential(tmp_path) is None
    secret = tmp_path / "zookeeper.secret"
    secret.write_text("cluster:word\n")
    secret.chmod(0o604)
    with pytest.raises(CallerError, match="everybody may read"):
        folder_credential(tmp_path)
    secret.chmod(0o600)
    assert folder_credential(tmp_path) == Credential(Secret("cluster:word"))
    for content in ("cluster", "cluster:", ":word", "a:b\nc:d"):
        secret.write_text(content)
        with pytest.raises(CallerError, match="one line, name:password"):
            folder_credential(tmp_path)
