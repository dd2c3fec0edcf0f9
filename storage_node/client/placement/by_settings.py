"""`Placements` has the policy that the settings name, over one client's connections, and those of ledgers with a rule
of their own; `make_racks` makes the map of where bookies are."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.regions import said_region
from storage_node.client.connections import Answer, ConnectionPool
from storage_node.client.health import Timer
from storage_node.client.placement.announced import AnnouncedRacks
from storage_node.client.placement.candidates import Candidates, FreeSpace, Weighing
from storage_node.client.placement.ledger_rules import LedgerRule, rule_of, rule_of_settings
from storage_node.client.placement.policies import Placement, RackAwarePlacement, UniformPlacement, none_disallowed
from storage_node.client.placement.racks import RackMap, RackResolver, resolver_of
from storage_node.client.placement.region_policy import RegionAwarePlacement, RegionSwitches
from storage_node.protocol.encoding import encode_bookie_info_request
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import BookieInfoResponse
from storage_node.settings.placement import PlacementSettings

_FREE_SPACE: Final = 2
_MAX_RULES: Final = 100


class Placements:
    """Which placement holds for a ledger? The one that the settings name; for a ledger with a rule of its own, one over
    regions that keeps it, whatever the settings name.

    Args:
        registry, pool, rng: of the client.
        racks: knows where bookies are.
        switches: what operators switch.
        policy: holds instead of what the settings name.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        pool: ConnectionPool,
        rng: random.Random,
        racks: RackMap,
        switches: RegionSwitches | None = None,
        policy: Placement | None = None,
    ) -> None:
        client = pool.settings
        self._settings = settings = client.placement
        weighing = None
        if settings.disk_weight_based_placement_enabled:
            free_space = FreeSpace(partial(_ask_free_space, pool), settings, pool.loop)
            weighing = Weighing(free_space, settings.bookie_max_multiple_for_weight_based_placement)
        self._candidates = Candidates(registry, pool.health, pool.quarantine, rng, weighing)
        self._times = {
            "memory_ms": client.failure_memory_ms,
            "replacement_pause_ms": client.replacement_pause_ms,
            "replacement_timeout_ms": client.replacement_timeout_ms,
        }
        self._usual_rule = rule_of_settings(settings)
        self._racks = racks
        self._switches = switches or RegionSwitches()
        self._rng = rng
        self._own: dict[LedgerRule, Placement] = {}
        self.usual = policy or self._by_settings()
        """For new ledgers, and for those without a rule."""

    def of(self, metadata: LedgerMetadata) -> Placement:
        """Return the placement of a ledger. Raises CorruptDataError where its rule cannot be read."""
        rule = rule_of(metadata)
        if rule is None or rule == self._usual_rule:
            return self.usual
        found = self._own.get(rule)
        if found is None:
            if len(self._own) >= _MAX_RULES:
                self._own.clear()
            found = self._own[rule] = self._over_regions(rule)
        return found

    def _by_settings(self) -> Placement:
        if self._settings.policy == "uniform":
            return UniformPlacement(self._candidates, **self._times)
        if self._settings.policy == "rackaware":
            disallowed = self._switches.disallowed if self._switches.by_racks_too else none_disallowed
            return RackAwarePlacement(self._candidates, self._racks, self._settings, disallowed, **self._times)
        return self._over_regions(None)

    def _over_regions(self, rule: LedgerRule | None) -> Placement:
        return RegionAwarePlacement(
            self._candidates, self._racks, self._settings, self._switches, self._rng, rule, **self._times
        )


def make_racks(
    settings: PlacementSettings,
    timer: Timer,
    resolver: RackResolver | None = None,
    topology: TopologyStore | None = None,
) -> RackMap:
    """Return what knows where bookies are: by `resolver`, if given, else as the settings say; where they name no source
    at all, by what bookies announce. Raises CallerError."""
    region = said_region(settings.region)
    # Auto-recovery with a file that says nothing of locations keeps the rules of ledgers that others have placed.
    unnamed = settings.resolver == "script" and not settings.network_topology_script_file_name
    if resolver is None and (unnamed or settings.resolver == "announced") and topology is not None:
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
