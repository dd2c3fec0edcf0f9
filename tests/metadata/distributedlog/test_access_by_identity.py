"""Access control lists by digest (`zkAclId`): the same rules in memory and on a real ZooKeeper."""

from __future__ import annotations

import pytest
from helpers.worlds.metadata import Heard, MetadataServer, ZooKeeperServer
from kazoo.client import KazooClient

from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.foundation.errors import NoAuthError, NoNodeError
from metadata.store import Create, Delete, SessionState, SetData

pytestmark = pytest.mark.asyncio


async def test_what_an_identity_made_is_changed_by_that_identity_alone_and_read_by_all(
    metadata_server: MetadataServer,
) -> None:
    path = f"{metadata_server.root}/guarded"
    owner, same, stranger, other = [await metadata_server.open(acl_id) for acl_id in ("alice", "alice", None, "bob")]
    await owner.create(path, b"mine")
    await same.put(path, b"ours", 0)
    await same.create(f"{path}/child")
    for one in (stranger, other):
        assert (await one.get(path))[0] == b"ours"
        assert (await one.children(path))[0] == ["child"]
        for refused in (
            lambda one=one: one.put(path, b"theirs", -1),
            lambda one=one: one.create(f"{path}/intruder"),
            lambda one=one: one.create(f"{path}/lock-", ephemeral=True, sequential=True),
            lambda one=one: one.delete(f"{path}/child"),
            lambda one=one: one.delete(f"{path}/nothing"),
        ):
            with pytest.raises(NoAuthError, match="zkAclId"):
                await refused()
    assert (await owner.get(path))[0] == b"ours"
    assert (await owner.children(path))[0] == ["child"]


async def test_a_missing_znode_is_told_as_missing_also_where_nobody_may_write(metadata_server: MetadataServer) -> None:
    owner, stranger = await metadata_server.open("alice"), await metadata_server.open()
    await owner.create(f"{metadata_server.root}/guarded")
    with pytest.raises(NoNodeError):
        await stranger.put(f"{metadata_server.root}/guarded/x", b"", -1)
    with pytest.raises(NoNodeError):
        await stranger.create(f"{metadata_server.root}/guarded/x/y")


async def test_a_refused_operation_fails_its_whole_transaction(metadata_server: MetadataServer) -> None:
    owner, stranger = await metadata_server.open("alice"), await metadata_server.open()
    path = f"{metadata_server.root}/guarded"
    await owner.create(path, b"mine")
    for op in (SetData(path, b"theirs", 0), Create(f"{path}/x"), Delete(f"{path}/x")):
        with pytest.raises(NoAuthError) as caught:
            await stranger.multi([Create(f"{metadata_server.root}/open"), op])
        assert caught.value.path == op.path
        assert caught.value.op_index == 1
    assert await stranger.exists(f"{metadata_server.root}/open") is None


async def test_an_identity_that_does_not_restrict_passes_guards_and_leaves_none(
    metadata_server: MetadataServer,
) -> None:
    owner, helper, stranger = (
        await metadata_server.open("alice"),
        await metadata_server.open("alice", False),
        await metadata_server.open(),
    )
    await owner.create(f"{metadata_server.root}/guarded")
    await helper.create(f"{metadata_server.root}/guarded/open", b"")
    await stranger.put(f"{metadata_server.root}/guarded/open", b"by anybody", 0)
    with pytest.raises(NoAuthError):
        await stranger.delete(f"{metadata_server.root}/guarded/open")  # that is the parent's affair


async def test_the_identity_outlives_an_expired_session(metadata_server: MetadataServer) -> None:
    store = await metadata_server.open("alice")
    path = f"{metadata_server.root}/guarded"
    await store.create(path)
    heard, before = Heard(), store.session_id
    store.on_session(heard)
    await metadata_server.expire(store)

    async def renewed() -> bool:
        return store.session_id != before and store.state is SessionState.CONNECTED

    await heard.until(renewed)
    await store.put(path, b"still mine", 0)


async def test_a_namespace_of_an_identity_is_closed_to_sessions_without_it(metadata_server: MetadataServer) -> None:
    owner, stranger = await metadata_server.open("alice"), await metadata_server.open()
    path = f"{metadata_server.root}/ns"
    await NamespaceStore(owner, path).bind(Binding.for_cluster("h:1"))
    await LogStore(owner, path).create("log")
    with pytest.raises(NoAuthError):
        await LogStore(stranger, path).create("other")
    with pytest.raises(NoAuthError):
        await LogStore(stranger, path).delete_tree("log")
    with pytest.raises(NoAuthError):
        await NamespaceStore(stranger, path).bind(Binding.for_cluster("h:2"))
    assert await LogStore(stranger, path).exists("log")
    assert (await NamespaceStore(stranger, path).resolve()).bk_servers == "h:1"


@pytest.mark.processes
@pytest.mark.parametrize("metadata_server", ["zookeeper"], indirect=True)
async def test_the_list_on_zookeeper_is_upstreams_creator_all_and_world_read(metadata_server: MetadataServer) -> None:
    assert isinstance(metadata_server, ZooKeeperServer)
    store = await metadata_server.open("alice")
    await store.create(f"{metadata_server.root}/one")
    await store.multi([Create(f"{metadata_server.root}/two")])
    client = KazooClient(metadata_server.server.address, auth_data=[("digest", "alice:alice")])
    client.start()
    try:
        for name in ("one", "two"):
            entries = {
                (acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(f"{metadata_server.root}/{name}")[0]
            }
            # base64(sha1("alice:alice")): the digest of the credential that upstream forms of the same id.
            assert entries == {("digest", "alice:zMr7NGSJC8xGc4J0Bbvj5q51MxE=", 31), ("world", "anyone", 1)}
    finally:
        client.stop()
        client.close()
