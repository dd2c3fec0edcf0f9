"""A log over regions: its segments go where nodes announce to be, and no new one into a region that was closed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from helpers.worlds.memory_bookies import MemoryBookie
from helpers.worlds.memory_cluster import URI, MemoryCluster

from dlspark.core.administration.regions import ClusterRegions, close_region, cluster_regions, open_region
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.errors import NotEnoughBookiesError, WriteError
from metadata.bookkeeper.topology import TopologyStore
from metadata.zookeeper.memory import MemoryStore

SETTINGS = Settings.from_mapping(
    {
        "survive": "region",
        "surviveBy": "acknowledgements",
        "bkc.reppRegionsToWrite": "eu;us;ap",
        "bkEnsemblePlacementDnsResolverClass": "announced",
        "region": "eu",
    }
)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster([MemoryBookie(f"{region}{n}:3181") for region in ("eu", "us", "ap") for n in range(2)])
    await cluster.start()
    topology = TopologyStore(cluster.operator)
    for bookie in cluster.bookies:
        await topology.announce(bookie.id, f"/{bookie.id[:2]}/r{bookie.id[2]}")
    yield cluster
    await cluster.stop()


async def namespace_over(cluster: MemoryCluster) -> AsyncNamespace:
    store = MemoryStore(cluster.tree)
    namespace = await AsyncNamespace.over(
        store, URI, SETTINGS, network=cluster.network, rng=random.Random(7), own=(store,)
    )
    cluster.clients.append(namespace)
    return namespace


async def test_no_segment_begins_in_a_region_that_was_closed_also_not_in_the_ledger_made_ahead(
    cluster: MemoryCluster,
) -> None:
    namespace, operator = await namespace_over(cluster), await namespace_over(cluster)
    log = await namespace.open_log("flights")

    async def regions() -> list[str]:
        """Of the newest segment, which a writer of its own writes."""
        writer = await log.open_writer()
        written = writer.write(1, b"record")
        await writer.flush()
        await written
        await writer.close()
        ledger = (await log.segments())[-1].ledger_id
        ensemble = (await namespace.services.ledger_store.read(ledger)).value.ensembles[0]
        return sorted(bookie[:2] for bookie in ensemble.bookies)

    topology = operator.ledgers.topology
    assert topology is not None

    async def look() -> ClusterRegions:
        placement = operator.ledgers.settings.placement
        return await cluster_regions(operator.ledgers.bookies, topology, placement, lambda region: False)

    assert await regions() == ["ap", "eu", "us"]
    writer = await log.open_writer()
    await writer._sequence._transitions.prepare()  # type: ignore[union-attr]
    (ahead,) = {n async for n in namespace.services.ledger_store.ids()} - {s.ledger_id for s in await log.segments()}
    made = (await namespace.services.ledger_store.read(ahead)).value
    assert "ap" in {bookie[:2] for bookie in made.ensembles[0].bookies}
    await close_region(topology, await look(), "ap")
    written = writer.write(1, b"behind the closing")
    await writer.flush()
    await written
    newest = (await log.segments())[-1].ledger_id
    assert newest != ahead
    placed = (await namespace.services.ledger_store.read(newest)).value.ensembles[0].bookies
    assert {bookie[:2] for bookie in placed} == {"eu", "us"}
    await writer.close()
    for _ in range(3):
        assert "ap" not in await regions()
    # Two are needed: with one left the error names what a client sets, not what a node's file has.
    await close_region(topology, await look(), "us")
    refused = await log.open_writer()
    record = refused.write(1, b"nowhere")
    with pytest.raises(WriteError, match="there is no ensemble") as caught:
        await record
    await refused.abort()
    cause = caught.value.__cause__
    assert isinstance(cause, NotEnoughBookiesError)
    assert cause.advice is not None
    assert "(bkEnsemblePlacementDnsResolverClass)" in cause.advice
    assert "lower bkc.reppMinimumRegionsForDurability" in cause.advice
    await open_region(topology, await look(), "us")
    await open_region(topology, await look(), "ap")
    assert await regions() == ["ap", "eu", "us"]
