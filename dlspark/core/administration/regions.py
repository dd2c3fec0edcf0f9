"""The regions of a cluster: which storage nodes they have, and which of them get no new copies.

Where a node is, is what the settings at hand find; where they find nothing, what the node announces. A region is closed
in the metadata (`close_region`), for all clients that place over regions and for auto-recovery, or by a switch of the
process at hand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlspark.core.administration.cluster import NodeState
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import CallerError, DistributedLogError
from storage_node.client.placement.by_settings import make_racks
from storage_node.client.placement.policies import addresses_of
from storage_node.client.placement.racks import region_of
from storage_node.settings.placement import PlacementSettings

Switch = Callable[[str], bool]
"""Returns whether a switch of this process closes a region."""


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """Where is a storage node? `location` is what the settings find, `announced` what it says; None: nothing."""

    bookie_id: str
    state: NodeState
    location: str | None
    announced: str | None

    @property
    def region(self) -> str | None:
        """Its region, by what the settings find, else by what it announces."""
        return region_of(self.location or self.announced or "")


@dataclass(frozen=True, slots=True)
class ClusterRegions:
    """Which regions does a cluster have? `error` says why the settings could not find where nodes are."""

    nodes: tuple[PlacedNode, ...]
    disallowed: frozenset[str]
    """In the metadata."""
    switched_off: frozenset[str]
    """By a switch of this process."""
    error: DistributedLogError | None

    @property
    def names(self) -> tuple[str, ...]:
        """All regions that have nodes, or are disallowed."""
        return tuple(sorted({node.region for node in self.nodes if node.region is not None} | self.disallowed))

    def of(self, region: str | None) -> list[PlacedNode]:
        """Return the nodes of a region; of None: those without one."""
        return [node for node in self.nodes if node.region == region]

    @property
    def nodes_by_rack(self) -> Mapping[str, int]:
        """How many nodes each rack has that the settings find, also of those that are away."""
        return Counter(node.location for node in self.nodes if node.location is not None)

    @property
    def open(self) -> tuple[str, ...]:
        """The regions that get new copies, and have a writable node to take them."""
        writable = {node.region for node in self.nodes if node.state is NodeState.WRITABLE}
        return tuple(name for name in self.names if name in writable - self.disallowed - self.switched_off)


async def cluster_regions(
    registry: BookieRegistry, topology: TopologyStore, settings: PlacementSettings, is_off: Switch
) -> ClusterRegions:
    """Return the regions of a cluster as `settings` and the nodes' announcements have them. Raises CallerError where no
    cluster is initialised, CorruptDataError, and the metadata store's errors."""
    registered = {one.bookie_id: one for one in await registry.registrations()}
    announced = await topology.read()
    # A node that is away counts by its cookie; what only announces has lost it, or never got so far.
    names = sorted({*registered, *await registry.cookies()})
    racks = make_racks(settings, asyncio.get_running_loop(), topology=topology)
    there = [one.address for one in registered.values() if one.address is not None]
    await racks.see(there, addresses_of([name for name in names if name not in registered]))
    nodes = []
    for name in names:
        state = NodeState.MISSING
        if name in registered:
            state = NodeState.READ_ONLY if registered[name].readonly else NodeState.WRITABLE
        found = racks.rack_of(name) if racks.is_known(name) else None
        nodes.append(PlacedNode(name, state, found, announced.location_of(name)))
    off = frozenset(node.region for node in nodes if node.region is not None and is_off(node.region))
    return ClusterRegions(tuple(nodes), announced.disallowed, off, racks.error)


async def announced_regions(registry: BookieRegistry, topology: TopologyStore) -> dict[str, str]:
    """Return by host the region that its storage nodes announce, of those that are registered; without hosts whose
    nodes announce several. Raises CorruptDataError, and the metadata store's errors."""
    announced = await topology.read()
    if not announced.nodes:
        return {}
    found: dict[str, set[str]] = {}
    for one in await registry.registrations():
        region = region_of(announced.location_of(one.bookie_id) or "")
        if region is not None and one.address is not None:
            found.setdefault(one.address.host, set()).add(region)
    return {host: regions.pop() for host, regions in found.items() if len(regions) == 1}


async def close_region(topology: TopologyStore, found: ClusterRegions, region: str) -> bool:
    """Have no new copies placed in a region; returns whether that is news. Raises CallerError for a region that has no
    node and for the last one that could take copies, CorruptDataError, and the metadata store's errors."""
    _check_known(found, region)
    return await topology.disallow(region, {*found.open, region})


async def open_region(topology: TopologyStore, found: ClusterRegions, region: str) -> bool:
    """Have copies placed in a region again; returns whether that is news. Raises CallerError for a region that has no
    node and is not disallowed, CorruptDataError, and the metadata store's errors."""
    _check_known(found, region)
    return await topology.allow(region)


def _check_known(found: ClusterRegions, region: str) -> None:
    if region not in found.names:
        known = f"there are {', '.join(found.names)}" if found.names else "none is known"
        raise CallerError(
            f"no storage node is in the region {region!r}: {known}. Nothing was changed",
            advice="dlspark regions list shows where each node is. A node says it by networkLocation in its file; a "
            "client finds it as bkEnsemblePlacementDnsResolverClass says",
        )
