"""`dlspark log inspect`, `dlspark namespace check` and `repair-lssn`: what is wrong with logs, and repairs.

They end with status 3 where faults were found (inspect) or are left (check, repair-lssn).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    ConcurrencyOption,
    DryRunOption,
    FilterOption,
    Json,
    NamesArgument,
    YesOption,
    chosen_logs,
    confirm,
    each,
    exit_with,
    over_namespace,
)
from dlspark.core.administration.finding_kinds import FindingKind
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.core.administration.inspection import LogFinding, LogInspection
    from dlspark.core.administration.repair import LogCheck, Repair
    from dlspark.core.namespace import AsyncNamespace


@over_namespace
async def inspect(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    kinds: Annotated[
        list[FindingKind] | None, typer.Option("--only", help="Findings of this kind; may be given several times.")
    ] = None,
    names_only: Annotated[bool, typer.Option("--names", help="Only the names of logs with findings.")] = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Look for what is wrong in the metadata of logs, all of them if none is named. Nothing is changed."""
    from dlspark.core.administration.inspection import inspect_log

    found: dict[str, LogInspection] = {}
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)

        async def look(name: str) -> None:
            found[name] = await inspect_log(namespace.services, name)

        failed = await each(chosen, concurrency, look)
    wanted = set(kinds or FindingKind)
    findings = {name: [one for one in found[name].findings if one.kind in wanted] for name in sorted(found)}
    rows: list[Json] = [
        {
            "log": name,
            "segments": len(found[name].segments),
            "owner": found[name].owner,
            "findings": [_as_dict(one) for one in of_log],
        }
        for name, of_log in findings.items()
        if of_log
    ]
    if names_only:
        text = [name for name, of_log in findings.items() if of_log]
    else:
        text = [f"{name}: {one.kind.value}: {one.what}" for name, of_log in findings.items() for one in of_log]
        text.append(_faulty(len(found), "inspected", sum(map(_has_fault, findings.values()))))
    at.result({"inspected": len(found), "logs": rows, "failed": failed}, text)
    exit_with(failed=failed, attention=any(map(_has_fault, findings.values())))


def _faulty(logs: int, done: str, faulty: int) -> str:
    return f"{counted(logs, 'log was', 'logs were')} {done}, {counted(faulty, 'has', 'have')} faults"


def _has_fault(findings: list[LogFinding]) -> bool:
    return any(one.is_fault for one in findings)


def _as_dict(one: LogFinding) -> dict[str, Json]:
    return {
        "kind": one.kind.value,
        "what": one.what,
        "fault": one.is_fault,
        "segment": None if one.segment is None else one.segment.lssn,
        "ledger": None if one.segment is None else one.segment.ledger_id,
    }


@over_namespace
async def check(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Inspect logs and the ends of their segments, and repair what can be. A log that has a writer is left alone."""
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)
        found, failed = await _checked(namespace, chosen, concurrency, repair=False)
        repairable = [name for name in found if {one.kind for one in found[name].left} & _REPAIRABLE]
        if repairable and not dry_run:
            if not at.as_json:
                _tell(found)
            confirm(f"Repair the metadata of {counted(len(repairable), 'log')}?", yes=yes)
            repaired, unrepaired = await _checked(namespace, repairable, concurrency, repair=True)
            found |= repaired
            failed = sorted({*failed, *unrepaired})
    rows: list[Json] = [
        {
            "log": name,
            "findings": [_as_dict(one) for one in found[name].findings],
            "repairs": [_repair(one) for one in found[name].repairs],
            "left": [_as_dict(one) for one in found[name].left],
        }
        for name in sorted(found)
        if found[name].findings
    ]
    text = [f"{name}: repaired: {one.finding.what}" for name in sorted(found) for one in found[name].repairs]
    text += [f"{name}: {one.kind.value}: {one.what}" for name in sorted(found) for one in found[name].left]
    text.append(_faulty(len(found), "checked", sum(bool(one.left) for one in found.values())))
    at.result({"checked": len(found), "logs": rows, "failed": failed, "dry_run": dry_run}, text)
    exit_with(failed=failed, attention=any(one.left for one in found.values()))


_REPAIRABLE = {FindingKind.LOW_NUMBER, FindingKind.SHORT, FindingKind.OPEN_LEDGER}


async def _checked(
    namespace: AsyncNamespace, names: list[str], concurrency: int, *, repair: bool
) -> tuple[dict[str, LogCheck], list[str]]:
    from dlspark.core.administration.repair import check_log

    found: dict[str, LogCheck] = {}

    async def look(name: str) -> None:
        found[name] = await check_log(namespace.services, name, namespace.settings, repair=repair)

    return found, await each(names, concurrency, look)


def _tell(found: dict[str, LogCheck]) -> None:
    for name in sorted(found):
        for one in found[name].left:
            typer.echo(f"{name}: {one.kind.value}: {one.what}", err=True)


def _repair(one: Repair) -> dict[str, Json]:
    return {
        "kind": one.finding.kind.value,
        "what": one.finding.what,
        "before": one.before.encode().decode("ascii"),
        "after": one.after.encode().decode("ascii"),
    }


@over_namespace
async def repair_lssn(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Give segments in progress that are numbered below a completed one the next number, in logs without a writer."""
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)
        wrong, failed = await _renumbered(namespace, chosen, concurrency, dry_run=True)
        done: dict[str, Repair] = {}
        if wrong and not dry_run:
            confirm(f"Number the segments in progress of {', '.join(sorted(wrong))} anew?", yes=yes)
            done, unrepaired = await _renumbered(namespace, sorted(wrong), concurrency, dry_run=False)
            failed = sorted({*failed, *unrepaired})
    rows: list[Json] = [
        {"log": name, "was": one.before.lssn, "is": one.after.lssn, "ledger": one.before.ledger_id}
        for name, one in sorted((wrong if dry_run else done).items())
    ]
    would = "would be" if dry_run else "is"
    text = [
        f"{name}: segment {one.before.lssn} {would} {one.after.lssn} now"
        for name, one in sorted((wrong if dry_run else done).items())
    ]
    at.result({"checked": len(chosen), "repaired": rows, "failed": failed, "dry_run": dry_run}, text or "none is wrong")
    exit_with(failed=failed, attention=dry_run and bool(wrong))


async def _renumbered(
    namespace: AsyncNamespace, names: list[str], concurrency: int, *, dry_run: bool
) -> tuple[dict[str, Repair], list[str]]:
    from dlspark.core.administration.repair import raise_number

    found: dict[str, Repair] = {}

    async def work(name: str) -> None:
        one = await raise_number(namespace.services, name, namespace.settings, dry_run=dry_run)
        if one is not None:
            found[name] = one

    return found, await each(names, concurrency, work)
