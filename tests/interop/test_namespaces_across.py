"""Namespaces between the Java DistributedLog core and ours: federated ones, renaming, access control, identities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from helpers.interop.clusters import InteropCluster, both_versions
from helpers.waiting import until

from dlspark.core.namespace import AsyncNamespace
from dlspark.testing.java_process import JavaError, JavaTool
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogExistsError
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import Permissions
from metadata.foundation.errors import NoAuthError
from metadata.store import MetadataStore
from metadata.zookeeper.client import ZooKeeperStore

JAVA_LOG_EXISTS = 522
LOGS_A_SUB_NAMESPACE = 2
JAVA_HEARS_S = 30.0
_roots = count(1)


@pytest.fixture
def root() -> str:
    return f"/namespaces-{next(_roots)}"


@pytest.fixture
async def store(zk: str) -> AsyncIterator[MetadataStore]:
    connected = await ZooKeeperStore.connect(zk)
    yield connected
    await connected.close()


class Both:
    """One namespace, opened by us and by Java."""

    def __init__(self, java: JavaTool, uri: str, ours: AsyncNamespace, theirs: int) -> None:
        self.uri = uri
        self.ours = ours
        self._java = java
        self._theirs = theirs

    async def ask(self, command: str, **arguments: Any) -> Any:
        """The Java namespace."""
        return await self._java.ask(f"dl.{command}", namespace=self._theirs, **arguments)

    async def until_java_lists(self, names: list[str]) -> None:
        """Java keeps the sub-namespaces it knows in memory, and hears of one that we made by a watch."""
        found: list[str] = []

        async def listed() -> bool:
            found[:] = await self.ask("list")
            return found == names

        await until(listed, lambda: f"Java lists {found}", patience_s=JAVA_HEARS_S, every_s=0.02)

    async def until_ours_lists(self, names: list[str]) -> None:
        """Java answers a deletion with the first znode's: ZooKeeper's recursive deletion calls back for each one."""
        found: list[str] = []

        async def listed() -> bool:
            found[:] = await self.ours.logs()
            return found == names

        await until(listed, lambda: f"we list {found}", patience_s=JAVA_HEARS_S, every_s=0.02)

    async def write_java(self, log: str, first_txid: int) -> None:
        writer = await self.ask("writer", log=log)
        await self._java.ask("dl.write", writer=writer, txid=first_txid, count=3, size=20)
        await self._java.ask("dl.close_writer", writer=writer)

    async def write_ours(self, log: str, first_txid: int) -> None:
        handle = await self.ours.open_log(log)
        async with await handle.open_writer() as writer:
            for txid in range(first_txid, first_txid + 3):
                writer.write(txid, b"ours")
        await handle.close()

    async def txids(self, log: str) -> list[int]:
        """As we read them; Java must agree on the first and last one, and on their number."""
        handle = await self.ours.open_log(log)
        records = (await handle.last_record()).sequence_id + 1
        async with await handle.open_reader() as reader:
            found = [(await reader.read_next()).txid for _ in range(records)]
        await handle.close()
        facts = await self.ask("facts", log=log)
        assert (facts["first_txid"], facts["last_txid"], facts["count"]) == (found[0], found[-1], len(found))
        return found

    async def close(self) -> None:
        await self.ours.close()
        await self.ask("close")


@pytest.fixture
async def both(java: JavaTool, theirs: InteropCluster, root: str, store: MetadataStore) -> AsyncIterator[Any]:
    """Opens a namespace bound as told, by both."""
    opened: list[Both] = []

    async def open_both(binding: Binding, **settings: object) -> Both:
        uri = f"distributedlog://{theirs.zk}{root}"
        await NamespaceStore(store, root).bind(binding)
        namespace = await AsyncNamespace.open(uri, {"lockTimeoutSeconds": 0, **settings})
        made = await java.ask("dl.open", uri=uri, settings={key: str(value) for key, value in settings.items()})
        opened.append(Both(java, uri, namespace, made))
        return opened[-1]

    yield open_both
    for one in opened:
        await one.close()


@pytest.fixture
def binding(theirs: InteropCluster) -> Binding:
    return Binding.for_cluster(theirs.zk, theirs.root)


@both_versions
async def test_logs_of_a_federated_namespace_are_made_by_either_and_found_by_both(
    both: Any, binding: Binding, store: MetadataStore, root: str
) -> None:
    here = await both(replace(binding, federated=True), federatedMaxLogsPerSubnamespace=LOGS_A_SUB_NAMESPACE)
    for number in range(6):
        if number % 2:
            await here.ours.create_log(f"log-{number}")
        else:
            await here.ask("create", log=f"log-{number}")
    names = [f"log-{number}" for number in range(6)]
    assert await here.ours.logs() == names
    await here.until_java_lists(names)
    places = [[name for name in (await store.children(root))[0] if not name.startswith(".")]]
    for child in (await store.children(f"{root}/.subnamespaces"))[0]:
        places.append((await store.children(f"{root}/.subnamespaces/{child}"))[0])
    assert sorted(name for place in places for name in place) == names
    assert max(map(len, places)) <= LOGS_A_SUB_NAMESPACE
    for name in names:
        assert await here.ask("exists", log=name)
        assert await here.ours.log_exists(name)
        await here.write_ours(name, 1)
        await here.write_java(name, 11)
        assert await here.txids(name) == [1, 2, 3, 11, 12, 13]
    with pytest.raises(JavaError) as refused:
        await here.ask("create", log="log-1")
    assert refused.value.code == JAVA_LOG_EXISTS
    await here.ask("delete", log="log-1")
    await here.ours.delete_log("log-2")
    assert await here.ours.logs() == ["log-0", "log-3", "log-4", "log-5"]
    assert not await here.ours.log_exists("log-1")


@both_versions
async def test_a_log_that_either_renames_is_read_and_written_by_both(both: Any, binding: Binding) -> None:
    here = await both(binding)
    await here.ours.create_log("one")
    await here.write_java("one", 1)
    await here.ours.rename_log("one", "two")
    assert await here.ask("list") == ["two"]
    await here.write_java("two", 11)
    await here.ask("rename", log="two", name="three")
    assert await here.ours.logs() == ["three"]
    await here.write_ours("three", 21)
    assert await here.txids("three") == [1, 2, 3, 11, 12, 13, 21, 22, 23]
    await here.ask("create", log="taken")
    with pytest.raises(LogExistsError):
        await here.ours.rename_log("three", "taken")
    writer = await here.ask("writer", log="three")
    await here._java.ask("dl.write", writer=writer, txid=31, count=1, size=20)
    with pytest.raises(OwnershipAcquireFailedError):
        await here.ours.rename_log("three", "four")
    await here._java.ask("dl.close_writer", writer=writer)


@both_versions
async def test_what_we_deny_java_denies(both: Any, binding: Binding) -> None:
    here = await both(replace(binding, acl_root_path=".acl"))
    access = here.ours.access_control
    await access.set(Permissions(deny_release=True))
    await access.set(Permissions(deny_write=True, deny_truncate=True, deny_delete=False), "own")
    await access.set(Permissions(deny_acquire=True), "forgotten")
    await access.delete("forgotten")
    allowed = {"write": True, "truncate": True, "delete": True, "acquire": True, "release": True}
    # Java hears of later changes by watches; these were made before it looked first.
    assert await here.ask("allowed", log="any") == allowed | {"release": False}
    assert await here.ask("allowed", log="own") == allowed | {"write": False, "truncate": False}
    assert await here.ask("allowed", log="forgotten") == allowed | {"release": False}


@both_versions
async def test_without_entries_both_allow_everything(both: Any, binding: Binding) -> None:
    """The binding's quorums are a field that Java passes over."""
    here = await both(replace(binding, acl_root_path=".acl", quorums=(2, 2, 2)))
    assert here.ours.settings.quorums == (2, 2, 2)
    assert all((await here.ask("allowed", log="any")).values())
    assert await here.ours.access_control.of("any") == Permissions()


@both_versions
async def test_an_applications_bytes_are_seen_by_both(both: Any, binding: Binding) -> None:
    here = await both(binding)
    await here.ours.create_log("log", b"ours")
    assert await here.ask("metadata", log="log") == "ours"
    assert await here.ask("metadata", log="log", data="theirs") == "theirs"
    handle = await here.ours.open_log("log")
    assert (await handle.metadata()).value == b"theirs"


@both_versions
async def test_one_identity_is_the_same_for_both(both: Any, binding: Binding, store: MetadataStore, root: str) -> None:
    here = await both(binding, zkAclId="alice")
    await here.ours.create_log("of-us")
    await here.ask("create", log="of-java")
    await here.write_java("of-us", 1)
    await here.write_ours("of-java", 1)
    for log in ("of-us", "of-java"):
        with pytest.raises(NoAuthError):
            await store.create(f"{root}/{log}/intruder")
        with pytest.raises(NoAuthError):
            await store.put(f"{root}/{log}/<default>/ledgers", b"9", -1)
        assert await here.txids(log) == [1, 2, 3]
    await here.ours.delete_log("of-java")
    await here.ask("delete", log="of-us")
    await here.until_ours_lists([])
