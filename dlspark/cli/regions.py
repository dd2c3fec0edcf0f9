"""`dlspark regions ...`: what it costs to survive the loss of a node, a rack or a region, and which ledgers would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, Json, exit_with, over_namespace, table
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.foundation.regions import region_names

if TYPE_CHECKING:
    from dlspark.core.settings.survival import SurvivalPlan


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
    one does not keep it."""
    from storage_node.autorecovery.auditor import PlacementCheck

    async with at.open() as namespace:
        policy = namespace.settings.client_settings().placement.policy
        if policy == "uniform":
            raise CallerError(
                "ensemblePlacementPolicy=uniform has no rule that a ledger could break",
                advice="Set the policy that writers have: rackaware, or regionaware",
            )
        report = await PlacementCheck(namespace.services.ledger_store, namespace.ledgers.judge_placement).run()
    strict = report.closed - report.softly_adhering - report.not_adhering
    result: dict[str, Json] = {
        "policy": policy,
        "closed": report.closed,
        "strict": strict,
        "soft": report.softly_adhering,
        "fail": report.not_adhering,
        "unreadable": report.unreadable,
        "failing": [{"ledger": ledger, "fragments": list(parts)} for ledger, parts in report.named.items()],
    }
    text = [
        f"{counted(report.closed, 'closed ledger')} by the policy {policy}: {strict} keep it, "
        f"{report.softly_adhering} keep it unevenly or as far as locations are known, {report.not_adhering} do not"
    ]
    text += [f"ledger {ledger}: {'; '.join(parts)}" for ledger, parts in report.named.items()]
    if report.not_adhering > len(report.named):
        text.append(f"and {report.not_adhering - len(report.named)} more")
    if report.unreadable:
        text.append(f"{counted(report.unreadable, 'ledger')} could not be read")
    at.result(result, text)
    exit_with(attention=bool(report.not_adhering or report.unreadable))
