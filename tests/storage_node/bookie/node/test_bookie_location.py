"""A node says in metadata where it is before it is found there, and what it said stays while it is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from helpers.bookie.harness import BookieCluster
from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.topology import Topology, TopologyStore
from metadata.foundation.errors import CallerError, CorruptDataError, NodeExistsError
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.identity import announce_location
from storage_node.bookie.tools.cluster import Cluster, StillReferredToError
from storage_node.errors import BookieConfigurationError


@pytest.fixture
async def store(cluster: BookieCluster) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(cluster.tree)
    yield store
    await store.close()


@pytest.fixture
def topology(store: MemoryStore) -> TopologyStore:
    return TopologyStore(store)


async def test_a_location_is_there_before_the_registration_and_stays_while_the_node_is_away(
    cluster: BookieCluster,
    topology: TopologyStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str | None] = []
    register = BookieRegistry.register

    async def registered(registry: BookieRegistry, address: BookieAddress, *, readonly: bool = False) -> None:
        seen.append((await topology.read()).location_of(address.bookie_id))
        await register(registry, address, readonly=readonly)

    monkeypatch.setattr(BookieRegistry, "register", registered)
    other = await cluster.start("b", network_location="/us/r1")
    bookie = await cluster.start(network_location="/eu/r1")
    assert seen == ["/us/r1", "/eu/r1"]
    await cluster.stop(bookie)
    await cluster.kill(other)
    assert dict((await topology.read()).nodes) == {"a": "/eu/r1", "b": "/us/r1"}
    bookie = await cluster.start(network_location="/ap/r9")
    assert seen[-1] == "/ap/r9", "it came back elsewhere"
    assert dict((await topology.read()).nodes) == {"a": "/ap/r9", "b": "/us/r1"}
    await cluster.stop(bookie)
    with caplog.at_level(logging.WARNING):
        await cluster.start()
    assert dict((await topology.read()).nodes) == {"a": "/ap/r9", "b": "/us/r1"}, (
        "it says nothing, and takes back nothing"
    )
    assert "networkLocation is not set; in metadata it stays at /ap/r9" in caplog.text


async def test_nodes_without_a_location_make_no_znode(cluster: BookieCluster, topology: TopologyStore) -> None:
    await cluster.start()
    assert await topology.read() == Topology()


async def test_what_a_living_node_announced_is_not_changed_by_another_process(
    cluster: BookieCluster, store: MemoryStore, topology: TopologyStore
) -> None:
    """Its directories were copied, say, so that the cookie fits: it is refused as a registration under that id is."""
    await cluster.start(network_location="/eu/r1")
    twin = MemoryStore(cluster.tree)
    registry = BookieRegistry(twin, predecessor_timeout_ms=1)
    with pytest.raises(NodeExistsError, match=r"another session .* second bookie running under the same id"):
        await announce_location(TopologyStore(twin), registry, "a", "/us/r1")
    await announce_location(TopologyStore(twin), registry, "a", None)  # nothing is said, so nothing changes
    assert (await topology.read()).location_of("a") == "/eu/r1"
    await announce_location(TopologyStore(twin), registry, "a", "/eu/r1")  # nothing to change: `register` refuses it
    await twin.close()


async def test_a_dead_predecessors_registration_is_waited_out(cluster: BookieCluster, topology: TopologyStore) -> None:
    store, new = MemoryStore(cluster.tree), MemoryStore(cluster.tree)
    await BookieRegistry(store).register(BookieAddress("a", "127.0.0.1", 1), readonly=True)
    await topology.announce("a", "/eu/r1")
    announcing = asyncio.ensure_future(
        announce_location(TopologyStore(new), BookieRegistry(new), "a", "/us/r1")  # readonly counts as well
    )
    await until(lambda: cluster.tree._data_watches.get("/ledgers/available/readonly/a"), every_s=0)
    assert not announcing.done()
    assert (await topology.read()).location_of("a") == "/eu/r1"
    await store.close()
    await asyncio.wait_for(announcing, 60)
    assert (await topology.read()).location_of("a") == "/us/r1"
    await new.close()


async def test_an_unreadable_topology_keeps_those_from_starting_that_have_to_say_something(
    cluster: BookieCluster, store: MemoryStore, topology: TopologyStore
) -> None:
    await store.create(topology.path, b'{"v":2}', make_parents=True)
    with pytest.raises(CorruptDataError, match="Nothing was changed"):
        await cluster.start(network_location="/eu/r1")
    assert await BookieRegistry(store).writable() == []
    await cluster.start("b")
    assert (await store.get(topology.path))[0] == b'{"v":2}'


@pytest.mark.parametrize("location", ["eu/r1", "/eu/r1/x", "/eu/", "/", "/eu;us/r1", "/e u/r1"])
def test_what_is_no_location_is_refused(cluster: BookieCluster, location: str) -> None:
    with pytest.raises(BookieConfigurationError, match=r"networkLocation=.*Write /region/rack, or /rack"):
        cluster.settings(network_location=location)


async def test_the_location_goes_with_the_cookie(
    cluster: BookieCluster, store: MemoryStore, topology: TopologyStore
) -> None:
    tools = Cluster(store, "/ledgers")
    for name in ("a", "b", "c"):
        await cluster.stop(await cluster.start(name, network_location=f"/eu/{name}"))
    await tools.delete_cookie("a")
    assert sorted((await topology.read()).nodes) == ["b", "c"]
    await tools.decommission("b", now_ms=lambda: 9, timeout_s=1, progress=print)
    assert sorted((await topology.read()).nodes) == ["c"]
    assert await tools.cookies() == ["c"]
    # A crash between the two steps leaves the cookie, by which it can be done again.
    await topology.announce("c", None)
    await tools.delete_cookie("c")
    assert await tools.cookies() == []


async def test_a_forced_deletion_keeps_the_location_while_a_ledger_names_the_node(
    cluster: BookieCluster, store: MemoryStore, topology: TopologyStore
) -> None:
    """Recovery of that ledger counts its entries by regions, and the node is gone for good: nobody says it again."""
    tools = Cluster(store, "/ledgers")
    await cluster.stop(await cluster.start("a", network_location="/us/r1"))
    await LedgerStore(store).create(3, LedgerMetadata(2, 2, 2, (Ensemble(0, ("a", "b")),)))
    assert not await tools.delete_cookie("a", force=True)
    assert await tools.cookies() == []
    assert (await topology.read()).location_of("a") == "/us/r1"
    for force in (False, True):
        with pytest.raises(StillReferredToError, match="1 ledger still names"):
            await tools.delete_cookie("a", force=force)
    await LedgerStore(store).delete(3)
    assert await tools.delete_cookie("a")
    assert (await topology.read()).location_of("a") is None
    with pytest.raises(CallerError, match="no cookie"):
        await tools.delete_cookie("a")
