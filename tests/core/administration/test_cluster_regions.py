"""The regions of a cluster: where nodes are by settings and by announcement, and what may be closed and opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dlspark.core.administration.cluster import NodeState
from dlspark.core.administration.regions import ClusterRegions, close_region, cluster_regions, open_region
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry, Cookie
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.settings.placement import PlacementSettings

ANNOUNCED = PlacementSettings(ensemble_placement_policy="regionaware", repp_dns_resolver_class="announced")


class World:
    """eu has a writable node and one that is away, us a writable one, ap a read-only one; x says nothing."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.registry = BookieRegistry(self.store)
        self.topology = TopologyStore(self.store)
        self.off: set[str] = set()

    async def begin(self) -> None:
        await LedgerStore(self.store).format()
        for name, location, state in (
            ("e1", "/eu/r1", NodeState.WRITABLE),
            ("e2", "/eu/r2", NodeState.MISSING),
            ("u1", "/us/r1", NodeState.WRITABLE),
            ("a1", "/ap/r1", NodeState.READ_ONLY),
            ("x", None, NodeState.WRITABLE),
        ):
            await self.registry.write_cookie(Cookie(name, ("/j",), ("/l",), None))
            await self.topology.announce(name, location)
            if state is not NodeState.MISSING:
                await self.registry.register(BookieAddress(name, name, 1), readonly=state is NodeState.READ_ONLY)

    async def look(self, settings: PlacementSettings = ANNOUNCED) -> ClusterRegions:
        return await cluster_regions(self.registry, self.topology, settings, self.off.__contains__)

    async def disallowed(self) -> frozenset[str]:
        return (await self.topology.read()).disallowed


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.begin()
    yield world
    await world.store.close()


async def test_each_node_is_listed_where_it_is_and_how_it_is(world: World) -> None:
    found = await world.look()
    assert found.names == ("ap", "eu", "us")
    assert [(one.bookie_id, one.state.value) for one in found.of("eu")] == [
        ("e1", "writable"),
        ("e2", "not registered"),
    ]
    assert [one.bookie_id for one in found.of(None)] == ["x"]
    assert found.open == ("eu", "us"), "a read-only node takes no copies"
    world.off.add("us")
    assert (await world.look()).open == ("eu",)


async def test_what_settings_find_counts_before_what_is_announced(world: World) -> None:
    """Writers with these settings place by it."""
    await world.registry.register(BookieAddress("h1", "us-r7-a-b", 1))
    await world.topology.announce("h1", "/eu/r1")
    found = await world.look(PlacementSettings(repp_dns_resolver_class="racks"))
    (node,) = (one for one in found.nodes if one.bookie_id == "h1")
    assert (node.location, node.announced, node.region) == ("/us/r7", "/eu/r1", "us")
    assert [one.bookie_id for one in found.of("eu")] == ["e1", "e2"], "nothing is found, so what they say"


async def test_a_region_is_closed_and_opened_once(world: World) -> None:
    assert await close_region(world.topology, await world.look(), "eu") is True
    assert await close_region(world.topology, await world.look(), "eu") is False
    found = await world.look()
    assert (found.disallowed, found.open) == ({"eu"}, ("us",))
    assert await open_region(world.topology, found, "eu") is True
    assert await open_region(world.topology, await world.look(), "eu") is False
    assert await world.disallowed() == frozenset()


async def test_an_unknown_region_is_refused_with_those_that_there_are(world: World) -> None:
    for change in (close_region, open_region):
        with pytest.raises(CallerError, match=r"region 'uss': there are ap, eu, us\. Nothing was changed"):
            await change(world.topology, await world.look(), "uss")
    assert (await world.topology.read()).disallowed == frozenset()


async def test_a_region_whose_nodes_are_all_gone_can_still_be_opened(world: World) -> None:
    await close_region(world.topology, await world.look(), "us")
    await world.registry.unregister("u1")
    await world.registry.delete_cookie("u1")
    await world.topology.announce("u1", None)
    assert await open_region(world.topology, await world.look(), "us") is True


async def test_the_last_region_that_takes_copies_stays_open(world: World) -> None:
    await close_region(world.topology, await world.look(), "us")
    with pytest.raises(
        CallerError, match=r"no other region than eu .*disallowed already: us\. Nothing .*regions allow"
    ):
        await close_region(world.topology, await world.look(), "eu")  # ap has no writable node
    assert await close_region(world.topology, await world.look(), "ap") is True
    assert await world.disallowed() == {"us", "ap"}
    # What is closed stays closed whatever there is: nothing is changed by it.
    await world.registry.unregister("e1")
    assert await close_region(world.topology, await world.look(), "us") is False


async def test_two_operators_do_not_close_the_last_two_regions(world: World) -> None:
    found = await world.look()
    other = MemoryStore(world.tree)
    done = await asyncio.gather(
        close_region(world.topology, found, "eu"),
        close_region(TopologyStore(other), found, "us"),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in done) == ["CallerError", "bool"]
    assert len(await world.disallowed()) == 1
    await other.close()


async def test_a_switch_counts_as_closed_where_the_last_one_is_looked_for(world: World) -> None:
    world.off.add("us")
    with pytest.raises(CallerError, match="no other region than eu"):
        await close_region(world.topology, await world.look(), "eu")
