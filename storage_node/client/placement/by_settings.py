"""`make_placement` makes the policy that the settings name, over one client's connections; `make_racks` its map of
where bookies are."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.regions import said_region
from storage_node.client.connections import Answer, ConnectionPool
from storage_node.client.health import Timer
from storage_node.client.placement.announced import AnnouncedRacks
from storage_node.client.placement.candidates import Candidates, FreeSpace, Weighing
from storage_node.client.placement.policies import Placement, RackAwarePlacement, UniformPlacement
from storage_node.client.placement.racks import RackMap, RackResolver, resolver_of
from storage_node.client.placement.region_policy import RegionAwarePlacement, RegionSwitches
from storage_node.protocol.encoding import encode_bookie_info_request
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import BookieInfoResponse
from storage_node.settings.placement import PlacementSettings

_FREE_SPACE: Final = 2


def make_placement(
    registry: BookieRegistry,
    pool: ConnectionPool,
    rng: random.Random,
    resolver: RackResolver | None = None,
    switches: RegionSwitches | None = None,
    topology: TopologyStore | None = None,
) -> Placement:
    """Return the placement that the settings name, with `resolver`, if given, instead of theirs; `topology` is where
    bookies announce their locations. Raises CallerError."""
    client = pool.settings
    settings = client.placement
    weighing = None
    if settings.disk_weight_based_placement_enabled:
        free_space = FreeSpace(partial(_ask_free_space, pool), settings, pool.loop)
        weighing = Weighing(free_space, settings.bookie_max_multiple_for_weight_based_placement)
    candidates = Candidates(registry, pool.health, pool.quarantine, rng, weighing)
    times = {
        "memory_ms": client.failure_memory_ms,
        "replacement_pause_ms": client.replacement_pause_ms,
        "replacement_timeout_ms": client.replacement_timeout_ms,
    }
    if settings.policy == "uniform":
        return UniformPlacement(candidates, **times)
    racks = make_racks(settings, pool.loop, resolver, topology)
    if settings.policy == "rackaware":
        return RackAwarePlacement(candidates, racks, settings, **times)
    return RegionAwarePlacement(candidates, racks, settings, switches or RegionSwitches(), rng, **times)


def make_racks(
    settings: PlacementSettings,
    timer: Timer,
    resolver: RackResolver | None = None,
    topology: TopologyStore | None = None,
) -> RackMap:
    """Return what knows where bookies are: by `resolver`, if given, else as the settings say. Raises CallerError."""
    region = said_region(settings.region)
    if resolver is None and settings.resolver == "announced" and topology is not None:
        return AnnouncedRacks(topology, timer, region)
    return RackMap(resolver or resolver_of(settings), timer, region)


def _ask_free_space(pool: ConnectionPool, bookie: str, deliver: Callable[[int | None], None]) -> None:
    txn_id = pool.next_txn_id()

    def answered(answer: Answer) -> None:
        known = isinstance(answer, BookieInfoResponse) and answer.status is Status.EOK
        deliver(answer.free_disk_space if known and isinstance(answer, BookieInfoResponse) else None)

    frame = encode_bookie_info_request(txn_id, _FREE_SPACE)
    timeout_ms = pool.settings.placement.get_bookie_info_timeout_s * 1000
    pool.to(bookie).request(txn_id, Operation.BOOKIE_INFO, frame, timeout_ms, answered)
