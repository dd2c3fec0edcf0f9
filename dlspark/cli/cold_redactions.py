"""`dlspark cold redact`: records erased from a log's cold files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    DryRunOption,
    Json,
    NameArgument,
    YesOption,
    confirm,
    exit_with,
    over_namespace,
    table,
)
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.cold.redaction.erasing import ErasedUnit, ErasurePlan, ErasureReport
    from dlspark.cold.redaction.selection import ErasureRequest


@over_namespace
async def redact(
    at: At,
    name: NameArgument,
    where: Annotated[
        str, typer.Option("--where", help="A condition as after WHERE in SQL, on the log's columns and on _log.")
    ] = "",
    dlsn: Annotated[
        list[str] | None, typer.Option("--dlsn", help="A record by its position, such as 3:1200:0; repeatable.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", help="Only records before this transaction id, or time (2013-07-01T00:00Z)."),
    ] = None,
    even_strict: Annotated[
        bool,
        typer.Option("--even-strict", help="Also in a strict log, where reading rows ends at an erased record."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Erase records from a log's cold files, for good: payload and columns go, the record's place stays.

    Files that have such records are written anew, read back and put in place; the former ones go within minutes, by a
    mover; their copies in mirrors go at once. Counts first, by file, and asks. Exits with 3 where records that are
    meant are in ledgers as well, or may be: those are not erased; and where a mirror could not be cleared, which is
    named: run it again then.
    """
    from dlspark.cold.redaction.erasing import LogErasure

    request = _request(where, dlsn or [], before)
    async with at.open() as namespace, await namespace.open_log(name) as log:
        erasure = LogErasure(namespace.services, log.settings, name)
        plan = await erasure.plan(request)
        report: ErasureReport | None = None
        if plan.meant and not dry_run:
            if not at.as_json:
                for line in _plan_lines(name, plan):
                    typer.echo(line)
            files = counted(sum(one.meant > 0 for one in plan.units), "file")
            confirm(f"Erase {counted(plan.meant, 'record')} of {name} for good, in {files}?", yes=yes)
            report = await erasure.run(plan, even_strict=even_strict, told=lambda one: _tell(at, one))
        left = [] if dry_run else report.copies_left if report is not None else await erasure.clear_mirrors()
    lines = _plan_lines(name, plan) if report is None else _done_lines(name, plan, report)
    lines += [f"not erased in a mirror yet: {one}" for one in left]
    if left:
        lines.append("run the same command again until no mirror is named; movers try it with each pass as well")
    at.result({**_fields(name, plan, report, dry_run=dry_run), "copies_left": list(left)}, lines)
    exit_with(attention=bool(plan.hot or plan.unfiled or left))


def _request(where: str, dlsns: list[str], before: str | None) -> ErasureRequest:
    from dlspark.cli.positions import parse_start
    from dlspark.cold.redaction.selection import ErasureRequest
    from dlspark.core.codec.dlsn import DLSN

    bound: int | None = None
    if before is not None:
        parsed = parse_start(before)
        if not isinstance(parsed, int):
            raise CallerError(
                f"{before!r} is neither a transaction id nor a time; nothing was done",
                advice="Give --before a number, or a time such as 2013-07-01T00:00Z",
            )
        bound = parsed
    return ErasureRequest(where, tuple(map(DLSN.parse, dlsns)), bound)


def _tell(at: At, one: ErasedUnit) -> None:
    if not at.as_json:
        at.line({}, f"segments {one.first} to {one.last}: {counted(one.records, 'record')} erased; now {one.url}")


def _fields(name: str, plan: ErasurePlan, report: ErasureReport | None, *, dry_run: bool) -> dict[str, Json]:
    units: list[Json] = [
        {
            "first": one.first,
            "last": one.last,
            "file": one.url,
            "records": one.records,
            "meant": one.meant,
            "erased_before": one.erased,
            "misfits": one.misfits,
            "in_ledgers": one.hot,
        }
        for one in plan.units
        if one.meant or one.misfits
    ]
    return {
        "log": name,
        "meant": plan.meant,
        "misfits": plan.misfits,
        "in_ledgers": plan.hot,
        "not_looked_at": None if plan.unfiled is None else list(plan.unfiled),
        "files": units,
        "erased": 0 if report is None else report.records,
        "gone": [] if report is None else list(report.gone),
        "dry_run": dry_run,
    }


def _plan_lines(name: str, plan: ErasurePlan) -> list[str]:
    rows = [(f"{one.first}-{one.last}", one.meant, one.records, one.url) for one in plan.units if one.meant]
    lines = list(table("segments", "to erase", "records", "file", rows=rows).lines()) if rows else []
    looked = counted(len(plan.units), "file")
    return [*lines, f"{counted(plan.meant, 'record')} of {name} to erase; {looked} looked at", *_warnings(name, plan)]


def _done_lines(name: str, plan: ErasurePlan, report: ErasureReport) -> list[str]:
    lines = [f"{counted(report.records, 'record')} of {name} erased, in {counted(len(report.units), 'file')}"]
    lines += [f"unit {one} was taken away meanwhile, with its file" for one in report.gone]
    if report.units:
        lines.append("the former files are deleted by a mover (dlspark cold run, or move): until then they are there")
    return [*lines, *_warnings(name, plan)]


def _warnings(name: str, plan: ErasurePlan) -> list[str]:
    lines = []
    if plan.misfits:
        lines.append(
            f"{counted(plan.misfits, 'record')} do not fit the schema, and the condition cannot be asked of them: see "
            "them with _error is not null"
        )
    if plan.hot:
        lines.append(
            f"{counted(plan.hot, 'record')} of these are in ledgers, too, where readers see them until the hot copies "
            "go (coldHotRetentionSeconds)"
        )
    if plan.unfiled is not None:
        lines.append(
            f"segments {plan.unfiled[0]} to {plan.unfiled[1]} are in no file and were not looked at: dlspark cold move "
            f"{name} --all, then erase again"
        )
    return lines
