"""`dlspark regions ...`: what it costs to survive the loss of a node, a rack or a region, which ledgers would, which
regions there are, and which of them take copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, Json, exit_with, over_namespace, table
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.foundation.regions import region_names

if TYPE_CHECKING:
    from dlspark.core.administration.regions import ClusterRegions
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings.survival import SurvivalPlan
    from metadata.bookkeeper.ledger_metadata import Ensemble
    from metadata.bookkeeper.topology import TopologyStore
    from storage_node.settings.placement import PlacementSettings

RegionArgument = Annotated[str, typer.Argument(metavar="REGION", help="The region's name.")]


def _plans(regions: tuple[str, ...]) -> list[tuple[str, SurvivalPlan]]:
    """Return every goal that can be set with these regions, and how it is set."""
    from dlspark.core.settings.survival import ACKNOWLEDGEMENTS, COPIES, NODE, RACK, REGION, survival_plan

    goals = [(NODE, COPIES), (RACK, COPIES), (REGION, COPIES), (REGION, ACKNOWLEDGEMENTS)]
    return [
        (f"survive={goal}" + (f" surviveBy={by}" if by != COPIES else ""), survival_plan(goal, by, regions))
        for goal, by in goals
    ]


@over_namespace
async def goals(
    at: At,
    regions: Annotated[
        str, typer.Option("--regions", metavar="A;B;C", help="The regions to write to: three at least.")
    ] = "r1;r2;r3",
) -> None:
    """Show what each goal of survival means: the quorums, the storage nodes that it needs, and its price in words."""
    plans = _plans(region_names(regions))
    rows: list[Json] = [
        {
            "set": given,
            "ensemble_size": plan.ensemble_size,
            "write_quorum": plan.write_quorum,
            "ack_quorum": plan.ack_quorum,
            "nodes_a_place": plan.nodes_a_place,
            "price": plan.price,
        }
        for given, plan in plans
    ]
    cells = [(given, "/".join(map(str, plan.quorums)), plan.nodes_a_place, plan.price) for given, plan in plans]
    at.result({"goals": rows}, table("set", "quorums", "nodes a place", "price", rows=cells))


@over_namespace
async def check(at: At) -> None:
    """Judge every closed ledger of the namespace's cluster by the placement policy of these settings. Exits with 3 if
    one does not keep it; shows where those lie that do, but not strictly, ten of them."""
    from storage_node.autorecovery.auditor import PlacementCheck

    async with at.open() as namespace:
        found, _ = await _regions_of(namespace)
        policy = namespace.settings.client_settings().placement.policy
        if policy == "uniform":
            raise CallerError(
                "ensemblePlacementPolicy=uniform has no rule that a ledger could break",
                advice="Set the policy that writers have: rackaware, or regionaware",
            )
        report = await PlacementCheck(namespace.services.ledger_store, namespace.ledgers.judge_placement).run()
    notes: list[str] = []
    if policy != "regionaware" and len(found.names) > 1:
        notes.append(_JUDGED_OTHERWISE.format(policy, ", ".join(found.names), _IN_SANDBOX))
    spread = {ledger: [_spread(part, found, policy) for part in parts] for ledger, parts in report.soft.items()}
    strict = report.closed - report.softly_adhering - report.not_adhering
    result: dict[str, Json] = {
        "policy": policy,
        "closed": report.closed,
        "strict": strict,
        "soft": report.softly_adhering,
        "fail": report.not_adhering,
        "unreadable": report.unreadable,
        "failing": [{"ledger": ledger, "fragments": list(parts)} for ledger, parts in report.named.items()],
        "softly": [{"ledger": ledger, "fragments": parts} for ledger, parts in spread.items()],
        "notes": notes,
    }
    text = [
        f"{counted(report.closed, 'closed ledger')} by the policy {policy}: {strict} keep it, "
        f"{report.softly_adhering} keep it unevenly or as far as locations are known, {report.not_adhering} do not"
    ]
    text += [f"ledger {ledger}: {'; '.join(parts)}" for ledger, parts in report.named.items()]
    if report.not_adhering > len(report.named):
        text.append(f"and {report.not_adhering - len(report.named)} more")
    text += [f"ledger {ledger}, not strictly: {'; '.join(parts)}" for ledger, parts in list(spread.items())[:_SHOWN]]
    if report.softly_adhering > _SHOWN:
        text.append(f"and {report.softly_adhering - _SHOWN} more that do not keep it strictly")
    if report.unreadable:
        text.append(f"{counted(report.unreadable, 'ledger')} could not be read")
    at.result(result, [*text, *notes])
    exit_with(attention=bool(report.not_adhering or report.unreadable))


_SHOWN = 10
"""Ledgers that keep a policy softly, of which people see where they lie; a hundred are in the JSON."""
_JUDGED_OTHERWISE = (
    "Judged without regard to regions, for these settings say ensemblePlacementPolicy={}, and storage nodes are in {}. "
    "To judge by what writers over regions have, give their settings (--conf FILE, DLSPARK_CONF; {})"
)
_IN_SANDBOX = 'in a sandbox be in a region: eval "$(dlspark sandbox region env r1)"'


def _spread(part: Ensemble, found: ClusterRegions, policy: str) -> str:
    """Return where the nodes of a fragment are, and where none is: that is why it does not keep its policy strictly."""
    by_region = policy == "regionaware"
    places = {node.bookie_id: node.region if by_region else node.location for node in found.nodes}
    grouped: dict[str | None, list[str]] = {}
    for bookie in part.bookies:
        grouped.setdefault(places.get(bookie), []).append(bookie)
    named = sorted((place, bookies) for place, bookies in grouped.items() if place is not None)
    words = [f"{place} ({', '.join(bookies)})" for place, bookies in named]
    if None in grouped:
        words.append(f"no known place ({', '.join(grouped[None])})")
    if by_region and (without := [name for name in found.names if name not in grouped]):
        words.append(f"none in {', '.join(without)}")
    return f"from entry {part.first_entry} on {', '.join(words)}"


# ---------------------------------------------------------------------- which regions there are


@over_namespace
async def list_regions(at: At) -> None:
    """Show the regions of the namespace's cluster, which of them get new copies, and where each storage node is."""
    async with at.open() as namespace:
        found, _ = await _regions_of(namespace)
        notes = _notes(found, namespace.ledgers.settings.placement, namespace.services.settings.survival)
    regions: list[Json] = [
        {
            "region": name,
            "new_copies": name in found.open,
            "disallowed": name in found.disallowed,
            "switched_off": name in found.switched_off,
            **_counts(found, name),
        }
        for name in found.names
    ]
    nodes: list[Json] = [
        {
            "node": node.bookie_id,
            "region": node.region,
            "location": node.location,
            "announced": node.announced,
            "state": node.state.value,
        }
        for node in found.nodes
    ]
    rows = [(name, _new_copies(found, name), *_counts(found, name).values()) for name in found.names]
    text = list(table("region", "new copies", "nodes", "writable", "read-only", "not registered", rows=rows).lines())
    where = sorted(found.nodes, key=lambda node: (node.region is None, node.region or "", node.bookie_id))
    cells = [(node.region, node.bookie_id, node.location or node.announced, node.state.value) for node in where]
    text += ["", *table("region", "node", "location", "state", rows=cells).lines(), *notes]
    at.result({"regions": regions, "nodes": nodes, "notes": notes}, text)


@over_namespace
async def disallow(at: At, region: RegionArgument) -> None:
    """Have no new copies placed in a region, of no new ledger and of none that is repaired, by processes that place
    over regions (`regionaware`), and by auto-recovery. What is there stays. Exits with 3 where these settings then ask
    for more regions than are left."""
    from dlspark.core.administration.regions import close_region

    async with at.open() as namespace:
        found, topology = await _regions_of(namespace)
        changed = await close_region(topology, found, region)
        left = [name for name in found.open if name != region]
        placement = namespace.ledgers.settings.placement
    result: dict[str, Json] = {"region": region, "disallowed": True, "changed": changed, "left": left}
    text = [f"{region} was disallowed already; nothing was changed"]
    if changed:
        nodes = counted(len(found.of(region)), "storage node")
        text = [
            f"{region} gets no new copies from now on by what places over regions, nor by auto-recovery; what is on "
            f"its {nodes} stays, and segments that are being written go on there until they end",
            f"New copies go to {', '.join(left)}. To undo it: dlspark regions allow {region}",
        ]
    if placement.policy != "regionaware":
        text.append(_PLACED_OTHERWISE.format(placement.ensemble_placement_policy))
    minimum = placement.repp_minimum_regions_for_durability
    demanded = bool(placement.regions_to_write or placement.enforce_min_num_fault_domains_for_write)
    too_few = placement.policy == "regionaware" and demanded and len(left) < minimum
    if too_few:
        text.append(
            f"These settings ask for copies in {minimum} regions, and {counted(len(left), 'region is', 'regions are')} "
            "left: until one more is allowed no ledger is made by them, and no segment begins"
        )
    at.result(result, text)
    exit_with(attention=too_few)


@over_namespace
async def allow(at: At, region: RegionArgument) -> None:
    """Have copies placed in a region again that was disallowed."""
    from dlspark.core.administration.regions import open_region

    async with at.open() as namespace:
        found, topology = await _regions_of(namespace)
        changed = await open_region(topology, found, region)
    text = [f"{region} was not disallowed; nothing was changed"]
    if changed:
        text = [
            f"{region} gets new copies again. Ledgers that were made or repaired meanwhile lie elsewhere: "
            "dlspark regions check judges them"
        ]
    if region in found.switched_off:
        text.append(f"A feature switch of these settings closes {region} as well: {_SWITCH.format(region)}")
    at.result({"region": region, "disallowed": False, "changed": changed}, text)


_SWITCH = "bkc.{}.disallow_bookie_placement"
_PLACED_OTHERWISE = (
    "These settings place without regard to regions (ensemblePlacementPolicy={}): writers that have them go on as "
    "before"
)


async def _regions_of(namespace: AsyncNamespace) -> tuple[ClusterRegions, TopologyStore]:
    """Return the regions of the namespace's cluster as its settings have them, and where regions are closed."""
    from dlspark.core.administration.regions import cluster_regions
    from dlspark.core.dynamic.features import BKC_SCOPE
    from metadata.foundation.errors import InvariantViolation

    client = namespace.ledgers
    placement = client.settings.placement
    if client.topology is None:
        raise InvariantViolation("the namespace was opened without the topology of its cluster")
    switches = namespace.services.features.scope(BKC_SCOPE)
    feature = placement.repp_disallow_bookie_placement_in_region_feature_name

    def is_off(region: str) -> bool:
        return bool(feature) and switches.scope(region).feature(feature).is_available()

    return await cluster_regions(client.bookies, client.topology, placement, is_off), client.topology


def _new_copies(found: ClusterRegions, region: str) -> str:
    """Return whether a region gets new copies, and why not."""
    if region in found.disallowed:
        return "no: disallowed"
    if region in found.switched_off:
        return "no: a switch"
    return "yes" if region in found.open else "no: none writable"


def _counts(found: ClusterRegions, region: str) -> dict[str, int]:
    """Return how many nodes a region has, and in which state."""
    from dlspark.core.administration.cluster import NodeState

    nodes = found.of(region)
    by_state = {state: sum(node.state is state for node in nodes) for state in NodeState}
    return {
        "nodes": len(nodes),
        "writable": by_state[NodeState.WRITABLE],
        "read_only": by_state[NodeState.READ_ONLY],
        "not_registered": by_state[NodeState.MISSING],
    }


def _notes(found: ClusterRegions, placement: PlacementSettings, plan: SurvivalPlan | None) -> list[str]:
    """Return what an operator should know of how these regions were found, and what they lack for the goal that is
    set."""
    from dlspark.core.settings.survival import RACK, shortfall

    notes: list[str] = []
    if plan is not None:
        places = found.nodes_by_rack if plan.goal == RACK else {name: len(found.of(name)) for name in found.names}
        lacking = shortfall(plan, {place: count for place, count in places.items() if count})
        notes += [] if lacking is None else [lacking]
    placeless = found.of(None)
    if placeless:
        having = (
            "storage node has no region and gets" if len(placeless) == 1 else "storage nodes have no region and get"
        )
        notes.append(
            f"{len(placeless)} {having} no copies by a placement over regions: set networkLocation=/region/rack in "
            "the node's file and restart it, or have a script or the hosts' names say it"
        )
    if placement.resolver != "announced":
        announcing = [node for node in found.nodes if node.announced is not None]
        unfound = [node for node in announcing if node.location is None]
        if unfound:
            source = "a script" if placement.resolver == "script" else "the names of hosts"
            listed = "it is listed where it announces" if len(unfound) == 1 else "they are listed where they announce"
            notes.append(
                f"These settings find no location of {counted(len(unfound), 'storage node')}, for they go by {source}: "
                f"{listed} to be. To place by that: bkEnsemblePlacementDnsResolverClass=announced ({_IN_SANDBOX})"
            )
        differing = [node for node in announcing if node.location not in (None, node.announced)]
        if differing:
            which = counted(len(differing), "storage node announces", "storage nodes announce")
            notes.append(
                f"{which} another location than these settings find; to place by what nodes announce: "
                "bkEnsemblePlacementDnsResolverClass=announced"
            )
    if placement.policy != "regionaware" and found.disallowed:
        notes.append(_PLACED_OTHERWISE.format(placement.ensemble_placement_policy))
    if found.error is not None:
        notes.append(f"Where storage nodes are could not be found: {found.error}")
    return notes
