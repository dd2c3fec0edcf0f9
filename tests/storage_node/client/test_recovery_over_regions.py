"""Recovery of ledgers whose entries count by their regions, while the look-up of locations fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from storage_node.client.client import LedgerClient
from storage_node.client.placement.racks import StaticResolver
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerRecoveryError, RackResolutionError
from storage_node.settings.placement import PlacementSettings

COUNTED = PlacementSettings(ensemble_placement_policy="regionaware", enforce_min_num_fault_domains_for_write=True)
COUNTED_RACKS = PlacementSettings(
    repp_dns_resolver_class="racks",
    min_num_racks_per_write_quorum=2,
    enforce_min_num_racks_per_write_quorum=True,
    enforce_min_num_fault_domains_for_write=True,
)


class FailingResolver(StaticResolver):
    """A script that fails for its first `failures` runs, and does not know some hosts at all."""

    def __init__(self, table: dict[str, str], failures: int = 0, strangers: frozenset[str] = frozenset()) -> None:
        super().__init__(table)
        self.failures = failures
        self.strangers = strangers

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        if self.failures:
            self.failures -= 1
            raise RackResolutionError("the topology script ended with status 1")
        found = await super().locations(hosts)
        return [None if host in self.strangers else place for host, place in zip(hosts, found, strict=True)]


class TwoRegions(ModelCluster):
    """Two nodes in each of two regions."""

    def __init__(self) -> None:
        super().__init__(4)
        self.places = dict(zip(sorted(self.bookies), ("/eu/r1", "/eu/r2", "/us/r1", "/us/r2"), strict=True))

    def counting_client(
        self,
        failures: int = 0,
        strangers: frozenset[str] = frozenset(),
        placement: PlacementSettings = COUNTED,
    ) -> LedgerClient:
        client = LedgerClient(
            self.ledgers,
            self.registry,
            settings=replace(FAST, placement=placement, add_entry_timeout_ms=60_000),
            network=self,
            rng=random.Random(4),
            racks=FailingResolver(self.places, failures, strangers),
        )
        self.clients.append(client)
        return client

    async def written(self, placement: PlacementSettings = COUNTED) -> tuple[LedgerWriter, str]:
        """Write an entry; returns the writer, and the one node that is alone in its region, which is mute now."""
        writer = await self.counting_client(placement=placement).create()
        await writer.add(b"first")
        ensemble = writer.metadata.last_ensemble.bookies
        regions = [self.places[other].split("/")[1] for other in ensemble]
        alone = next(b for b, region in zip(ensemble, regions, strict=True) if regions.count(region) == 1)
        self.bookies[alone].mute = True
        return writer, alone


@pytest.mark.parametrize("placement", [COUNTED, COUNTED_RACKS])
@virtual_time
async def test_a_recovery_that_cannot_learn_where_its_bookies_lie_is_refused(placement: PlacementSettings) -> None:
    async with TwoRegions() as cluster:
        writer, _ = await cluster.written(placement)
        client = cluster.counting_client(failures=1_000, placement=placement)
        with pytest.raises(LedgerRecoveryError, match="it is not known in which racks or regions") as refused:
            await client.open(writer.ledger_id, recover=True)
        assert "was not closed, and nothing is lost" in refused.value.message
        assert "reppDnsResolverClass" in (refused.value.advice or "")
        assert not (await cluster.ledgers.read(writer.ledger_id)).value.is_closed


@virtual_time
async def test_it_asks_again_and_then_entries_count_by_their_regions() -> None:
    async with TwoRegions() as cluster:
        writer, alone = await cluster.written()
        recovering = asyncio.ensure_future(cluster.counting_client(2).open(writer.ledger_id, recover=True))
        await cluster.settle(20)
        assert not recovering.done(), "both acknowledgements come from one region"
        cluster.bookies[alone].mute = False
        cluster.bookies[alone].kill()
        await recovering
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        assert closed.is_closed
        assert len({cluster.places[bookie].split("/")[1] for bookie in closed.last_ensemble.bookies}) == 2


@virtual_time
async def test_a_bookie_of_unknown_region_is_no_hindrance_where_the_others_suffice() -> None:
    async with TwoRegions() as cluster:
        writer, alone = await cluster.written()
        cluster.bookies[alone].mute = False
        other = next(b for b in writer.metadata.last_ensemble.bookies if b != alone)
        cluster.bookies[other].kill()
        reader = await cluster.counting_client(0, frozenset({other})).open(writer.ledger_id, recover=True)
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]
        assert reader.metadata.is_closed


@virtual_time
async def test_a_bookie_of_unknown_region_proves_nothing() -> None:
    async with TwoRegions() as cluster:
        writer, alone = await cluster.written()
        with pytest.raises(LedgerRecoveryError, match=alone):
            await cluster.counting_client(0, frozenset({alone})).open(writer.ledger_id, recover=True)


@virtual_time
async def test_a_ledger_that_is_known_to_lie_in_one_region_is_recovered_all_the_same() -> None:
    """Who created it did not ask for regions; no acknowledgement could ever satisfy the rule."""
    async with TwoRegions() as cluster:
        writer, _ = await cluster.written()
        client = cluster.counting_client()
        cluster.places.update(dict.fromkeys(cluster.places, "/eu/r1"))
        reader = await client.open(writer.ledger_id, recover=True)
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]


@pytest.mark.parametrize("ruled", [True, False])
@virtual_time
async def test_a_recoverer_that_asks_for_more_regions_than_there_are_asks_for_those_that_there_are(ruled: bool) -> None:
    """Else entries that were acknowledged in two regions would be closed on copies in one."""
    async with TwoRegions() as cluster:
        writer, alone = await cluster.written()
        if not ruled:
            found = await cluster.ledgers.read(writer.ledger_id)
            await cluster.ledgers.write(writer.ledger_id, replace(found.value, custom={}), found.version)
        stronger = replace(COUNTED, repp_minimum_regions_for_durability=3)
        client = cluster.counting_client(placement=stronger)
        recovering = asyncio.ensure_future(client.open(writer.ledger_id, recover=True))
        await cluster.settle(20)
        assert not recovering.done(), "both acknowledgements come from one region"
        cluster.bookies[alone].mute = False
        cluster.bookies[alone].kill()
        await recovering
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        spread = {cluster.places[bookie].split("/")[1] for bookie in closed.last_ensemble.bookies}
        assert closed.is_closed
        assert spread == {"eu", "us"}
