"""What a namespace's logs shall survive, as quorums: `survive=node|rack|region`, and the price of it in words.

Users name a goal, and the numbers follow (docs/regions.md). Two rules are behind all of them, for whatever may be
lost: **an entry counts only when two places have it**, so that one may go; and wherever nothing is away **no place
holds more than W - A copies of it**, W the write quorum and A the ack quorum, so that A copies are left to write on
with, and recovery hears a decisive number of nodes.

    node                          3/3/2   places are nodes
    rack                          3/3/2   places are racks, three at least; two of them must have an entry
    region, by copies             6/6/4   over three regions, two copies in each
                                  4/4/3   over four regions or more, one copy in each of four
    region, by acknowledgements   3/3/2   one copy in each of three; two regions must have an entry

By copies the numbers alone keep the first rule, as BookKeeper's own region-aware policy demands it
(A > W - floor(W / 2)): Java's writers keep the goal too. By acknowledgements they do not: half the storage, but only
this library's writers count regions.

Two regions cannot do it: whichever holds A copies of an entry is one that must not be lost, and with less than A in
each no writing goes on when the other is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlspark.errors import SettingsError
from metadata.foundation.settings import Value

NODE, RACK, REGION = "node", "rack", "region"
COPIES, ACKNOWLEDGEMENTS = "copies", "acknowledgements"
FEWEST_REGIONS: Final = 3
FEWEST_RACKS: Final = 3
DURABLE_PLACES: Final = 2
"""Racks or regions that must have an entry before it counts, so that one of them may go."""


REGIONS_TO_WRITE: Final = "reppRegionsToWrite"
"""The ledger client's key for the regions."""


@dataclass(frozen=True, slots=True)
class SurvivalPlan:
    """What must be set so that logs survive the loss of a node, a rack or a region?"""

    goal: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    nodes_a_place: int
    """Storage nodes that each node's rack or region must have, so that segments begin while another place is away."""
    price: str
    """What it costs, in words: storage, bytes between regions, what a write waits for."""
    placement: Mapping[str, Value] = field(default_factory=dict)
    """The ledger client's settings that keep the goal, by BookKeeper's keys."""

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Ensemble size, write quorum and ack quorum."""
        return self.ensemble_size, self.write_quorum, self.ack_quorum


def shortfall(plan: SurvivalPlan, nodes: Mapping[str, int]) -> str | None:
    """Return what a cluster lacks for a goal, in words: `nodes` counts the storage nodes of each rack, or region, also
    those that are away. None: nothing, or the goal is a node's loss."""
    if plan.goal == NODE:
        return None
    needed = FEWEST_RACKS if plan.goal == RACK else FEWEST_REGIONS
    seen = ", ".join(f"{count} in {place}" for place, count in sorted(nodes.items())) or "none of a known place"
    if len(nodes) < needed:
        return (
            f"survive={plan.goal} needs storage nodes in {needed} {plan.goal}s, and there are {seen}: it does not "
            f"survive the loss of one; where {DURABLE_PLACES} {plan.goal}s have all copies writing stops then"
        )
    enough = [place for place, count in nodes.items() if count >= plan.nodes_a_place]
    if len(enough) < needed:
        return (
            f"survive={plan.goal} needs {plan.nodes_a_place} storage nodes in each of {needed} {plan.goal}s, and there "
            f"are {seen}: while one {plan.goal} is away no new segment may begin"
        )
    return None


def survival_plan(goal: str, by: str, regions: Sequence[str]) -> SurvivalPlan:
    """Return the plan of a goal.

    Args:
        goal: `node`, `rack` or `region`.
        by: for a region, `copies` or `acknowledgements`.
        regions: the regions to write to, for a region.

    Raises:
        SettingsError: there are too few regions; it says what is missing, and both ways on.
    """
    if goal == NODE:
        price = (
            "3 copies; a write waits for the second-fastest of three storage nodes; one may go, and writing goes on, "
            "with a fourth one also into new segments"
        )
        return SurvivalPlan(NODE, 3, 3, 2, 1, price)
    if goal == RACK:
        price = (
            "3 copies in three racks, of which two must have an entry before it counts; a write waits for the "
            "second-fastest rack; one rack may go, and writing goes on, with two storage nodes in each rack also into "
            "new segments"
        )
        return SurvivalPlan(
            RACK,
            3,
            3,
            2,
            2,
            price,
            {
                "minNumRacksPerWriteQuorum": DURABLE_PLACES,
                "enforceMinNumRacksPerWriteQuorum": True,
                "enforceMinNumFaultDomainsForWrite": True,
            },
        )
    if len(regions) < FEWEST_REGIONS:
        listed = ", ".join(regions) or "none"
        raise SettingsError(
            f"survive=region needs {FEWEST_REGIONS} regions, with semicolons between them, and bkc.reppRegionsToWrite "
            f"lists {len(regions)} ({listed}): with two, either one holds every acknowledged copy of some entry, or no "
            "writing goes on when one is away",
            advice="List a third region, where a few storage nodes are enough (r1;r2;r3), or take survive=rack, which "
            "does not survive the loss of a region",
        )
    return _by_acknowledgements() if by == ACKNOWLEDGEMENTS else _by_copies(len(regions))


def _by_copies(regions: int) -> SurvivalPlan:
    if regions == FEWEST_REGIONS:
        price = (
            "6 copies, of which each byte crosses between regions 4 times; a write waits for both copies in the "
            "nearest other region; one region may go, and writing goes on without a new ensemble. With three storage "
            "nodes in each region new segments begin meanwhile, too"
        )
        return SurvivalPlan(REGION, 6, 6, 4, 3, price, _over_regions())
    price = (
        "4 copies in four regions, of which each byte crosses between regions 3 times; a write waits for the "
        "second-nearest other region; one region may go, and writing goes on without a new ensemble. With two storage "
        "nodes in each region new segments begin meanwhile, too"
    )
    return SurvivalPlan(REGION, 4, 4, 3, 2, price, _over_regions())


def _by_acknowledgements() -> SurvivalPlan:
    price = (
        "3 copies in three regions, of which each byte crosses between regions 2 times; a write waits for the nearest "
        "other region; one region may go, and writing goes on, with two storage nodes in each region also into new "
        "segments. Only this library's writers keep it: Java's count "
        "network locations, so that two racks of one region would do"
    )
    return SurvivalPlan(REGION, 3, 3, 2, 2, price, _over_regions() | {"enforceMinNumFaultDomainsForWrite": True})


def _over_regions() -> dict[str, Value]:
    return {
        "ensemblePlacementPolicy": "regionaware",
        "reppMinimumRegionsForDurability": DURABLE_PLACES,
        "reppEnableDurabilityEnforcementInReplace": True,
        # By copies the numbers keep it; counting would relax their rule.
        "enforceMinNumFaultDomainsForWrite": False,
    }
