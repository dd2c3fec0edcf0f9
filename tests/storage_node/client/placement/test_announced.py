"""Placement by what bookies announce: each decision is by what is said then, and closed regions get nothing new."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster, payload
from helpers.worlds.recovery_world import QUICK, RecoveryWorld
from test_placement import Clock

from metadata.bookkeeper.bookies import BookieAddress
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree
from storage_node.client.client import LedgerClient
from storage_node.client.placement.announced import AnnouncedRacks
from storage_node.client.placement.ledger_rules import CUSTOM_KEY, rule_of_settings
from storage_node.client.placement.region_policy import RegionSwitches
from storage_node.errors import NotEnoughBookiesError
from storage_node.settings.placement import PlacementSettings

ANNOUNCED = PlacementSettings(ensemble_placement_policy="regionaware", repp_dns_resolver_class="announced")
COUNTED = replace(ANNOUNCED, enforce_min_num_fault_domains_for_write=True)
REGIONS = ("eu", "us", "ap")


# ------------------------------------------------------------------------------------ the map


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryTree())
    await LedgerStore(store).format()
    yield store
    await store.close()


async def test_a_bookie_is_where_it_announces_to_be_by_its_id_and_stays_there_while_it_is_away(
    store: MemoryStore,
) -> None:
    topology = TopologyStore(store)
    await topology.announce("node-a", "/eu/r1")
    await topology.announce("node-b", "/r7")
    racks = AnnouncedRacks(TopologyStore(store), Clock(), region="us")
    here = [BookieAddress("node-a", "10.0.0.1", 3181), BookieAddress("c", "10.0.0.3", 3181)]
    await racks.see(here)
    assert (racks.rack_of("node-a"), racks.region_of("node-a")) == ("/eu/r1", "eu")
    assert (racks.rack_of("node-b"), racks.region_of("node-b")) == ("/r7", None)
    assert (racks.is_known("node-b"), racks.is_known("c"), racks.region_of("c")) == (True, False, None)
    assert (await racks.own_rack(), await racks.own_region()) == (None, "us")
    await racks.see([])
    assert racks.region_of("node-a") == "eu", "bookkeeper issue 2642: the region of a dead node"
    # Bookkeeper issue 4504: it came back elsewhere, so quickly that no list without it was seen.
    await topology.announce("node-a", "/us/r2")
    await racks.see(here)
    assert racks.region_of("node-a") == "us"


async def test_the_znode_is_read_again_only_after_a_change(store: MemoryStore) -> None:
    asked: list[str] = []

    def inject(_session: int, operation: str, path: str) -> Fault | None:
        asked.append(path)
        return None

    topology = TopologyStore(store)
    await topology.announce("a", "/eu/r1")
    racks = AnnouncedRacks(TopologyStore(store), Clock())
    await racks.see([])
    store._tree.inject = inject
    for _ in range(10):
        await racks.see([])
    assert asked == []
    await topology.announce("a", "/eu/r2")
    await racks.see([])
    assert racks.rack_of("a") == "/eu/r2"


async def test_what_was_known_counts_while_the_znode_cannot_be_read_and_that_is_said_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    topology = TopologyStore(store)
    await topology.announce("a", "/eu/r1")
    racks = AnnouncedRacks(TopologyStore(store), Clock())
    await racks.see([])
    written = (await store.get(topology.path))[0]
    await store.put(topology.path, b'{"v":9}', -1)
    with caplog.at_level(logging.WARNING):
        await racks.see([])
        await racks.see([])
    assert racks.region_of("a") == "eu"
    assert isinstance(racks.error, CorruptDataError)
    assert caplog.text.count("cannot be read") == 2, "one line, which has the error's own words in it"
    await store.put(topology.path, written, -1)
    await racks.see([])
    assert racks.error is None


# ------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dns_resolver_overrides": "a:eu"}, "racks are announced by the nodes"),
        ({"network_topology_script_file_name": "/bin/true"}, "racks come from announced"),
    ],
)
def test_settings_of_other_resolvers_are_refused(wrong: Mapping[str, str], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        PlacementSettings(repp_dns_resolver_class="announced", **wrong)  # type: ignore[arg-type]


@virtual_time
async def test_a_client_without_a_topology_is_refused_and_not_placed_blindly() -> None:
    async with ModelCluster(3) as cluster:
        for policy in ("regionaware", "rackaware", "uniform"):
            settings = replace(FAST, placement=replace(ANNOUNCED, ensemble_placement_policy=policy))
            with pytest.raises(CallerError, match="not given where nodes announce"):
                await cluster.client(settings).create()


# ------------------------------------------------------------------------------------ a client, a cluster


class Announced(ModelCluster):
    """Bookies of three regions, two or more of each; b0, b3, ... are in eu."""

    def __init__(self, bookies: int = 6, *, seed: int = 0) -> None:
        super().__init__(bookies, seed=seed)
        self.topology = TopologyStore(self.store)

    async def announce(self) -> None:
        for number, name in enumerate(self.bookies):
            await self.topology.announce(name, f"/{REGIONS[number % 3]}/r{number}")

    async def regions_of(self, bookies: tuple[str, ...]) -> list[str]:
        topology = await self.topology.read()
        return sorted((topology.location_of(name) or "").split("/")[1] for name in bookies)

    def placing_client(self, placement: PlacementSettings = COUNTED) -> LedgerClient:
        topology = TopologyStore(self.store)
        client = LedgerClient(
            self.ledgers,
            self.registry,
            settings=replace(FAST, placement=placement),
            network=self,
            rng=random.Random(3),
            regions=RegionSwitches(topology.disallowed_regions),
            topology=topology,
        )
        self.clients.append(client)
        return client


@asynccontextmanager
async def world(bookies: int = 6) -> AsyncIterator[Announced]:
    async with Announced(bookies) as cluster:
        await cluster.announce()
        yield cluster


@virtual_time
async def test_a_closed_region_gets_no_new_ledgers_and_no_replacements_until_it_is_open_again() -> None:
    async with world(9) as cluster:
        client = cluster.placing_client()
        writer = await client.create()
        assert await cluster.regions_of(writer.metadata.last_ensemble.bookies) == ["ap", "eu", "us"]
        await cluster.topology.disallow("eu")
        for _ in range(10):
            assert set(await cluster.regions_of((await client.create()).metadata.last_ensemble.bookies)) == {"us", "ap"}
        # What is there stays, but the place of one that fails is not given to the closed region.
        nodes = (await cluster.topology.read()).nodes
        (lost,) = (b for b in writer.metadata.last_ensemble.bookies if nodes[b].startswith("/eu/"))
        cluster.bookies[lost].kill()
        await asyncio.gather(*(writer.add(payload(number)) for number in range(10)))
        assert set(await cluster.regions_of(writer.metadata.last_ensemble.bookies)) == {"us", "ap"}
        await cluster.topology.allow("eu")
        assert "eu" in await cluster.regions_of((await client.create()).metadata.last_ensemble.bookies)


@virtual_time
async def test_a_ledger_made_ahead_is_not_begun_once_its_region_is_closed_or_its_nodes_are_elsewhere() -> None:
    async with world() as cluster:
        client = cluster.placing_client()
        made = (await client.create()).metadata
        assert await client.may_begin(made)
        await cluster.topology.disallow("us")
        assert not await client.may_begin(made)
        await cluster.topology.allow("us")
        assert await client.may_begin(made)
        for bookie in made.last_ensemble.bookies:
            await cluster.topology.announce(bookie, "/eu/r1")
        assert not await client.may_begin(made), "all of its copies would be in one region"


@virtual_time
async def test_a_ledger_made_ahead_by_another_process_is_judged_by_where_its_nodes_are() -> None:
    async with world() as cluster:
        made = (await cluster.placing_client().create()).metadata
        assert await cluster.placing_client().may_begin(made)
        await cluster.topology.disallow("ap")
        assert not await cluster.placing_client().may_begin(made)


@virtual_time
async def test_nothing_is_placed_while_what_is_announced_cannot_be_read() -> None:
    async with world() as cluster:
        client = cluster.placing_client()
        await client.create()
        await cluster.store.put(cluster.topology.path, b"{}", -1)
        with pytest.raises(CorruptDataError, match="topology"):
            await client.create()


@virtual_time
async def test_nodes_that_announce_nothing_get_no_copies_where_regions_are_demanded() -> None:
    async with Announced(6) as cluster:
        with pytest.raises(NotEnoughBookiesError, match="6 writable storage nodes have no known region"):
            await cluster.placing_client().create()


@virtual_time
async def test_racks_are_announced_as_well() -> None:
    async with Announced(6) as cluster:
        for number, name in enumerate(cluster.bookies):
            await cluster.topology.announce(name, f"/r{number % 2}")
        rackaware = PlacementSettings(repp_dns_resolver_class="announced", enforce_min_num_racks_per_write_quorum=True)
        client = cluster.placing_client(rackaware)
        for _ in range(10):
            bookies = (await client.create()).metadata.last_ensemble.bookies
            assert set(await cluster.regions_of(bookies)) == {"r0", "r1"}


# ------------------------------------------------------------------------------------ auto-recovery


@virtual_time
async def test_auto_recovery_copies_into_the_lost_node_s_region_and_never_into_a_closed_one() -> None:
    async with RecoveryWorld(9) as cluster:
        topology = TopologyStore(cluster.store)
        places = {name: REGIONS[number % 3] for number, name in enumerate(cluster.bookies)}
        for name, region in places.items():
            await topology.announce(name, f"/{region}/{name[:2]}")
        recovering = replace(QUICK, client=replace(FAST, placement=ANNOUNCED))

        async def repaired_in(lost: str, ledgers: list[int]) -> set[str]:
            before = {n: set((await cluster.metadata(n)).ensembles[0].bookies) for n in ledgers}
            holders = [n for n in ledgers if lost in before[n]]
            await cluster.lose(lost)
            await cluster.until_marked(holders)
            await cluster.until_repaired()
            new = [set((await cluster.metadata(n)).ensembles[0].bookies) - before[n] for n in holders]
            assert all(len(one) == 1 for one in new)
            return {places[bookie] for (bookie,) in new}

        client = cluster.client()
        ledgers: list[int] = []
        for _ in range(12):
            writer = await client.create()
            await asyncio.gather(*(writer.add(payload(number)) for number in range(5)))
            await writer.close()
            ledgers.append(writer.ledger_id)
        await cluster.recover(settings=recovering)
        held = {b for n in ledgers for b in (await cluster.metadata(n)).ensembles[0].bookies}
        of_eu = sorted(name for name in held if places[name] == "eu")
        # Known by what a node that is away announced: its region is where the copy goes.
        assert await repaired_in(of_eu[0], ledgers) == {"eu"}
        await topology.disallow("eu")
        found = await repaired_in(of_eu[1], ledgers)
        assert found
        assert "eu" not in found


@pytest.mark.parametrize("announced", [True, False])
@virtual_time
async def test_auto_recovery_with_a_default_file_restores_ledgers_that_carry_a_rule(announced: bool) -> None:
    """By where nodes announce to be; where they do not, anywhere: one copy less would be worse."""
    async with RecoveryWorld(9) as cluster:
        topology = TopologyStore(cluster.store)
        places = {name: REGIONS[number % 3] for number, name in enumerate(cluster.bookies)}
        for name, region in places.items():
            if announced:
                await topology.announce(name, f"/{region}/{name[:2]}")
        ledgers = [await cluster.closed(5) for _ in range(6)]
        rule = rule_of_settings(COUNTED)
        assert rule is not None
        for ledger_id in ledgers:
            found = await cluster.ledgers.read(ledger_id)
            ruled = replace(found.value, custom={CUSTOM_KEY: rule.encode()})
            await cluster.ledgers.write(ledger_id, ruled, found.version)
        before = {n: (await cluster.metadata(n)).ensembles[0].bookies for n in ledgers}
        lost = before[ledgers[0]][1]
        held = [n for n in ledgers if lost in before[n]]
        await cluster.recover()
        await cluster.lose(lost)
        await cluster.until_marked(held)
        await cluster.until_repaired()
        for ledger_id in held:
            after = (await cluster.assert_whole(ledger_id, 5)).ensembles[0].bookies
            (new,) = set(after) - set(before[ledger_id])
            assert not announced or places[new] == places[lost]
