"""Watching a namespace for logs that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace

import pytest
from helpers.worlds.metadata import MetadataServer

from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_folders import FederatedFolders
from metadata.distributedlog.log_watch import LogChange, watch_logs
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.store import MetadataStore, Watcher
from metadata.zookeeper.memory import MemoryStore, MemoryTree


@pytest.fixture(params=["plain", "federated"])
async def logs(request: pytest.FixtureRequest, store: MetadataStore, root: str) -> LogStore:
    federated = request.param == "federated"
    await NamespaceStore(store, f"{root}/ns").bind(replace(Binding.for_cluster("h:1"), federated=federated))
    folders = FederatedFolders(store, f"{root}/ns", max_logs=2) if federated else None
    return LogStore(store, f"{root}/ns", log_folders=folders)


async def take(changes: AsyncIterator[LogChange], count: int) -> list[tuple[str, bool]]:
    found = [await asyncio.wait_for(changes.__anext__(), 60) for _ in range(count)]
    return [(change.name, change.added) for change in found]


async def test_logs_that_come_and_go_are_told(logs: LogStore) -> None:
    await logs.create("a")
    changes = watch_logs(logs, existing=True)
    assert await take(changes, 1) == [("a", True)]
    for name in "bcd":
        await logs.create(name)
    assert sorted(await take(changes, 3)) == [("b", True), ("c", True), ("d", True)]
    await logs.delete_tree("c")
    assert await take(changes, 1) == [("c", False)]
    await changes.aclose()


async def test_logs_there_are_not_told_unless_wanted(logs: LogStore) -> None:
    await logs.create("old")
    changes = watch_logs(logs)
    first = asyncio.ensure_future(take(changes, 1))
    count = 0
    while not first.done():  # what is made before the first look is not told either
        await logs.create(f"new-{count}")
        count += 1
    assert (await first)[0][0].startswith("new-")
    await changes.aclose()


async def test_logs_there_are_told_first_if_wanted(logs: LogStore) -> None:
    for name in ("b", "a", "c/d"):
        await logs.create(name)
    changes = watch_logs(logs, existing=True)
    assert await take(changes, 3) == [("a", True), ("b", True), ("c", True)]
    await logs.delete_tree("a")
    assert await take(changes, 1) == [("a", False)]
    await changes.aclose()


async def test_logs_below_a_prefix_are_told_also_where_it_is_still_to_come(logs: LogStore) -> None:
    changes = watch_logs(logs, "team", existing=True)
    waiting = asyncio.ensure_future(take(changes, 1))
    await logs.create("other")
    await logs.create("team/a")
    assert await waiting == [("a", True)]
    await logs.create("team/b")
    assert await take(changes, 1) == [("b", True)]
    await changes.aclose()


async def test_what_changed_while_the_session_was_lost_is_told_after_it(
    metadata_server: MetadataServer, logs: LogStore, store: MetadataStore
) -> None:
    other = LogStore(await metadata_server.open(), logs.namespace_path, log_folders=None)
    changes = watch_logs(logs, existing=True)
    await logs.create("a")
    assert await take(changes, 1) == [("a", True)]
    waiting = asyncio.ensure_future(take(changes, 2))
    await metadata_server.expire(store)
    await other.create("b")
    await other.create("c")
    assert sorted(await waiting) == [("b", True), ("c", True)]
    await changes.aclose()


async def test_every_one_of_many_logs_is_told_whenever_it_comes(
    metadata_server: MetadataServer, logs: LogStore
) -> None:
    changes = watch_logs(logs, existing=True)
    names = [f"log-{number:02d}" for number in range(30)]

    async def create() -> None:
        for name in names:
            await logs.create(name)

    creating = asyncio.ensure_future(create())
    told = await take(changes, len(names))
    assert sorted(told) == [(name, True) for name in names]
    await creating
    await changes.aclose()


async def test_the_end_of_the_session_ends_the_watch(logs: LogStore, store: MetadataStore) -> None:
    await logs.create("a")
    changes = watch_logs(logs, existing=True)
    assert await take(changes, 1) == [("a", True)]

    async def rest() -> list[LogChange]:
        return [change async for change in changes]

    waiting = asyncio.ensure_future(rest())
    await logs.create("b")
    await store.close()
    assert [change.name for change in await asyncio.wait_for(waiting, 60)] in ([], ["b"])


@pytest.mark.parametrize("federated", [False, True])
async def test_all_who_watch_share_a_watch_and_leave_no_other_behind(federated: bool) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(replace(Binding.for_cluster("h:1"), federated=federated))
    folders = FederatedFolders(store, "/ns", max_logs=9) if federated else None
    logs = LogStore(store, "/ns", log_folders=folders)

    def left() -> int:
        """Watches on lists of names; those on single logs tell where they are."""
        return sum(path == "/ns" or path.startswith("/ns/.") for path, _ in every_watch())

    def every_watch() -> Iterator[tuple[str, Watcher]]:
        for kind in (tree._child_watches, tree._data_watches):
            for path, watches in kind.items():
                yield from ((path, watch) for _, watch in watches)

    async def watched() -> list[AsyncGenerator[LogChange, None]]:
        """Five who have looked and wait."""
        every = [watch_logs(logs, existing=True) for _ in range(5)]
        for changes in every:
            assert await take(changes, 1) == [("a", True)]
        return every

    await logs.create("a")
    one = watch_logs(logs, existing=True)
    await take(one, 1)
    alone = left()
    every = await watched()
    assert left() == alone
    await one.aclose()
    await logs.create("b")
    for changes in every:
        assert await take(changes, 1) == [("b", True)]
        await changes.aclose()
    assert len(logs.list_watches) == 0
    for _ in range(20):
        changes = watch_logs(logs, existing=True)
        await take(changes, 2)
        await changes.aclose()
    assert left() <= alone
    assert len(logs.list_watches) == 0
    await store.close()
