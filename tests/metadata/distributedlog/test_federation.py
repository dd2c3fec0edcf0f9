"""Federated namespaces: where logs are made, how they are found, and what keeps them from being in two folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from helpers.worlds.metadata import MetadataServer

from metadata.distributedlog import log_folders as federation
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_folders import DuplicateLogError, FederatedFolders
from metadata.distributedlog.log_names import LogExistsError, LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore, NotBoundError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import BadVersionError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

FEDERATED = replace(Binding.for_cluster("h:1"), federated=True)


def federated(store: MetadataStore, root: str, *, max_logs: int = 2, ask_on_miss: bool = True) -> LogStore:
    folders = FederatedFolders(store, root, max_logs=max_logs, ask_on_miss=ask_on_miss)
    return LogStore(store, root, log_folders=folders)


@pytest.fixture
async def ns(store: MetadataStore, root: str) -> str:
    await NamespaceStore(store, f"{root}/ns").bind(FEDERATED)
    return f"{root}/ns"


@pytest.fixture
async def logs(store: MetadataStore, ns: str) -> LogStore:
    return federated(store, ns)


@pytest.fixture
async def others(metadata_server: MetadataServer, ns: str) -> AsyncIterator[LogStore]:
    """Another process's view."""
    return federated(await metadata_server.open(), ns)


async def placed(logs: LogStore, name: str) -> str:
    return (await logs.located(name)).root.removeprefix(logs.namespace_path)


async def test_logs_fill_one_sub_namespace_after_the_other(logs: LogStore, store: MetadataStore, ns: str) -> None:
    for name in "abcde":
        await logs.create(name)
    assert [await placed(logs, name) for name in "abcde"] == [
        "/a",
        "/b",
        "/.subnamespaces/NS_0000000000/c",
        "/.subnamespaces/NS_0000000000/d",
        "/.subnamespaces/NS_0000000001/e",
    ]
    data, stat = await store.get(f"{ns}/.subnamespaces")
    assert data.decode() == f"{ns}/.subnamespaces/NS_0000000001"
    assert stat.version == 5  # one more for each log: that is what keeps creators apart
    assert await logs.list() == list("abcde")


async def test_room_that_a_deleted_log_leaves_in_the_newest_is_used_again(logs: LogStore) -> None:
    for name in "abcd":
        await logs.create(name)
    await logs.delete_tree("d")
    await logs.create("e")
    assert await placed(logs, "e") == "/.subnamespaces/NS_0000000000/e"


async def test_logs_of_the_time_before_the_federation_stay_where_they_are(store: MetadataStore, root: str) -> None:
    await NamespaceStore(store, f"{root}/ns").bind(Binding.for_cluster("h:1"))
    plain = LogStore(store, f"{root}/ns")
    for name in "abc":
        await plain.create(name)
    await NamespaceStore(store, f"{root}/ns").bind(FEDERATED)
    logs = federated(store, f"{root}/ns")
    await logs.create("d")
    assert (await placed(logs, "a"), await placed(logs, "d")) == ("/a", "/.subnamespaces/NS_0000000000/d")
    assert await logs.list() == list("abcd")


async def test_without_an_index_the_first_log_makes_it(store: MetadataStore, root: str) -> None:
    logs = federated(store, f"{root}/ns")
    with pytest.raises(NotBoundError):
        await logs.create("a")
    await store.create(f"{root}/ns")
    assert not await logs.exists("a")
    assert await logs.list() == []
    await logs.create("a")
    assert await logs.list() == ["a"]


async def test_everything_about_a_log_goes_to_its_sub_namespace(logs: LogStore, others: LogStore, ns: str) -> None:
    for name in "abc":
        await logs.create(name)
    state = await others.open("c")
    segment = SegmentMetadata(ledger_id=7, lssn=1, first_txid=3, in_progress=True)
    state = await others.start_segment("c", state, segment)
    assert await logs.segments("c") == [segment]
    done = segment.completed(last_txid=9, completion_time_ms=1, record_count=2, last_entry=1, last_slot=0)
    await others.complete_segment("c", state, done, segment)
    assert await logs.segments("c") == [done]
    assert await logs.highest_txid("c") == 9
    assert (await logs.store.exists(f"{ns}/.subnamespaces/NS_0000000000/c/<default>/ledgers")) is not None
    await others.delete_segment("c", done)
    await others.delete_tree("c")
    assert not await logs.exists("c")


async def test_a_missing_log_is_not_found_by_any_call(logs: LogStore) -> None:
    assert not await logs.exists("nothing")
    assert await logs.highest_txid("nothing") is None
    await logs.delete_tree("nothing")
    for call in (logs.open("nothing"), logs.segments("nothing"), logs.located("nothing")):
        with pytest.raises(LogNotFoundError):
            await call
    with pytest.raises(LogNotFoundError):
        logs.paths("nothing")


async def test_nested_logs_are_together_with_the_first_component_of_their_names(logs: LogStore) -> None:
    await logs.create("x")
    await logs.create("a/1")
    await logs.create("y")  # full from here on
    await logs.create("a/2")
    await logs.create("a")
    assert [await placed(logs, name) for name in ("a/1", "a/2", "a", "y")] == [
        "/a/1",
        "/a/2",
        "/a",
        "/.subnamespaces/NS_0000000000/y",
    ]
    assert await logs.list() == ["a", "x", "y"]
    assert await logs.list("a") == ["1", "2"]
    assert await logs.list("nothing") == []


@pytest.mark.parametrize("count", [12])
async def test_concurrent_creators_put_each_log_in_one_place_and_keep_the_limit(
    metadata_server: MetadataServer, store: MetadataStore, ns: str, count: int
) -> None:
    stores = [federated(await metadata_server.open(), ns, max_logs=4) for _ in range(3)]
    names = [f"log-{number}" for number in range(count)]
    outcomes = await asyncio.gather(*(one.create(name) for name in names for one in stores), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), LogExistsError}
    fresh = federated(store, ns, max_logs=4)
    assert await fresh.list() == sorted(names)  # raises for a log in two folders
    folders = await fresh.log_folders.folders()
    for folder in folders:
        children, _ = await store.children(folder)
        assert len([child for child in children if not child.startswith(".")]) <= 4
    assert all([await one.exists(name) for one in stores for name in names])


async def test_a_creator_that_looked_too_early_has_to_look_again(logs: LogStore, others: LogStore) -> None:
    place = await logs.log_folders.choose("log")
    assert place.folder == logs.namespace_path
    for name in ("a", "b", "log"):
        await others.create(name)
    assert "NS_" in await placed(others, "log")
    with pytest.raises(BadVersionError):
        await logs._create_at(place, "log", b"")
    await logs.create("log")
    assert await logs.list() == ["a", "b", "log"]


async def test_a_deleted_log_that_comes_back_elsewhere_is_found_there(logs: LogStore, others: LogStore) -> None:
    for name in "ab":
        await logs.create(name)
    assert await placed(others, "a") == "/a"
    await logs.delete_tree("a")
    for name in "cda":
        await logs.create(name)
    assert await placed(logs, "a") == "/.subnamespaces/NS_0000000000/a"
    assert await others.exists("a")
    assert await placed(others, "a") == "/.subnamespaces/NS_0000000000/a"


async def test_what_was_found_once_is_not_asked_for_again_until_it_goes(ns: str) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(FEDERATED)
    logs = federated(store, "/ns")
    for name in "abc":
        await logs.create(name)
    asked: list[tuple[str, str]] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        asked.append((name, path))
        return None

    tree.inject = inject
    for _ in range(3):
        assert (await logs.located("c")).root.endswith("/c")
    assert asked == []
    tree.expire(store.session_id)  # the watches are gone: whether the log still is there has to be asked
    await asyncio.sleep(0)
    assert logs.paths("c").root.endswith("NS_0000000000/c")  # the last place known
    await logs.located("c")
    assert asked != []


async def test_a_log_in_two_places_is_an_error_that_names_them(logs: LogStore, store: MetadataStore, ns: str) -> None:
    for name in "abc":
        await logs.create(name)
    await store.create(f"{ns}/.subnamespaces/NS_0000000000/a")
    fresh = federated(store, ns)
    for call in (fresh.open("a"), fresh.exists("a"), fresh.create("a"), fresh.list()):
        with pytest.raises(DuplicateLogError) as caught:
            await call
        assert caught.value.code == 600
        assert "NS_0000000000" in str(caught.value)
    assert await fresh.exists("b")


class TestTrustingTheLists:
    """`federatedCheckExistenceWhenCacheMiss=false`."""

    async def test_what_is_listed_is_found_without_asking_for_it(self, store: MetadataStore, ns: str) -> None:
        writer = federated(store, ns)
        for name in "abc":
            await writer.create(name)
        logs = federated(store, ns, ask_on_miss=False)
        assert [await logs.exists(name) for name in "abcd"] == [True, True, True, False]

    async def test_a_miss_costs_nothing_once_the_lists_are_there(self) -> None:
        tree = MemoryTree()
        store = MemoryStore(tree)
        await NamespaceStore(store, "/ns").bind(FEDERATED)
        logs = federated(store, "/ns", ask_on_miss=False)
        await logs.create("a")
        assert not await logs.exists("b")
        asked: list[str] = []
        tree.inject = lambda session_id, name, path: asked.append(name)
        assert not await logs.exists("b")
        assert asked == []

    async def test_a_log_of_ones_own_and_later_one_of_another_process_is_found(
        self, metadata_server: MetadataServer, store: MetadataStore, ns: str
    ) -> None:
        logs = federated(store, ns, ask_on_miss=False)
        other = federated(await metadata_server.open(), ns)
        for name in "abc":
            await logs.create(name)
            assert await logs.exists(name)
        await other.create("d")
        await store.sync(ns)  # by now the watch was heard
        assert await logs.exists("d")


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("operation", ["multi", "create"])
async def test_a_lost_answer_leaves_one_log_in_one_place(fault: Fault, operation: str) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(FEDERATED)
    logs = federated(store, "/ns", max_logs=1)
    await logs.create("a")
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name == operation and not met:
            met.append(path)
            return fault
        return None

    tree.inject = inject
    await logs.ensure("b")
    assert met
    assert await federated(store, "/ns").list() == ["a", "b"]


async def test_a_log_that_went_and_came_back_elsewhere_is_not_created_where_it_was(
    logs: LogStore, others: LogStore
) -> None:
    for name in "abc":
        await logs.create(name)
    place = await logs.log_folders.choose("a")
    await others.delete_tree("a")
    await others.create("a")
    assert await placed(others, "a") == "/.subnamespaces/NS_0000000000/a"
    with pytest.raises(BadVersionError):
        await logs._create_at(place, "a", b"")
    await logs.create("a")
    assert await placed(logs, "a") == "/.subnamespaces/NS_0000000000/a"


async def test_places_beyond_the_limit_of_watches_are_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "MAX_WATCHED", 3)
    tree = MemoryTree()
    store, others = MemoryStore(tree), MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(FEDERATED)
    logs, elsewhere = federated(store, "/ns"), federated(others, "/ns")
    for name in "abcdefgh":
        await elsewhere.create(name)
    for _ in range(3):
        found = {name: await placed(logs, name) for name in "abcdefgh"}
    assert found == {name: await placed(elsewhere, name) for name in "abcdefgh"}
    for name in "ah":  # one that is watched, and one that is not
        assert logs.paths(name).root == f"/ns{found[name]}"
        await elsewhere.delete_tree(name)
        with pytest.raises(LogNotFoundError):
            await logs.located(name)
    await elsewhere.create("i")
    await elsewhere.create("h")
    assert await placed(logs, "h") == await placed(elsewhere, "h")
    watches = [path for path, left in tree._data_watches.items() for session, _ in left if session == store.session_id]
    assert 0 < len(watches) <= 3
    await store.close()
    await others.close()


async def test_of_places_that_are_not_watched_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "MAX_WATCHED", 0)
    monkeypatch.setattr(federation, "MAX_PASSING", 2)
    store = MemoryStore(MemoryTree())
    await NamespaceStore(store, "/ns").bind(FEDERATED)
    logs = federated(store, "/ns")
    for name in "abc":
        await logs.create(name)
        await logs.located(name)
    with pytest.raises(LogNotFoundError):
        logs.paths("a")
    assert [logs.paths(name).root for name in "bc"] == ["/ns/b", "/ns/.subnamespaces/NS_0000000000/c"]
    assert (await logs.located("a")).root == "/ns/a"
    await store.close()
