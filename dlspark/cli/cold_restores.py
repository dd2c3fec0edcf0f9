"""`dlspark cold restore`: cold files back into ledgers, or a log from its files alone."""

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
    file_address,
    over_namespace,
    size_text,
)
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.cold.restoring.rebuilding import FoundFiles
    from dlspark.cold.restoring.returning import ReturnPlan, UnitToReturn
    from dlspark.objects.store import ObjectStore

_DAY_MS = 86_400_000
_NOT_RESTORED = (
    "producers' sequence numbers, marks of Spark's sinks, subscribers' positions, the application's own bytes, "
    "permissions, and records that were in no file yet"
)


@over_namespace
async def restore(
    at: At,
    name: NameArgument,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Make the log NAME from the files below this folder, in place."),
    ] = None,
    from_segment: Annotated[
        int | None, typer.Option("--from-segment", min=1, help="The oldest segment that is wanted; all if not said.")
    ] = None,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0, help="Days that copies in ledgers stay at least, without --from.")
    ] = 7.0,
    log_id: Annotated[
        list[str] | None,
        typer.Option("--log-id", help="Whose files, with --from, where there are those of several logs; repeatable."),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="With --from: the first log is gone for good, its files are this log's now."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Put cold segments of a log back into ledgers, where Java reads them; or make a log from its files alone (--from).

    Without --from: from the newest cold segment downwards, each unit whole or not at all; the files stay. With --from:
    nothing is copied, the new log's past is the very files, and writers go on behind them. Files stay the first log's
    unless --adopt is given: no truncation or deletion of the new log deletes one. A restore that was stopped is run
    again, with the same options.
    """
    if source is None:
        if log_id or adopt:
            raise CallerError("nothing was done: --log-id and --adopt go with --from", advice="Give --from URL as well")
        await _return(at, name, from_segment or 0, int(keep_days * _DAY_MS), yes=yes, dry_run=dry_run)
    else:
        await _rebuild(at, name, source, from_segment, log_id or [], adopt=adopt, yes=yes, dry_run=dry_run)


# ---------------------------------------------------------------------- back into ledgers


async def _return(at: At, name: str, from_segment: int, keep_ms: int, *, yes: bool, dry_run: bool) -> None:
    from dlspark.cold.restoring.returning import LogReturn

    async with at.open() as namespace, await namespace.open_log(name) as log:
        returning = LogReturn(namespace.services, log.settings, name)
        plan = await returning.plan(from_segment)
        copies = log.settings.quorums[1]
        if plan.units and not dry_run:
            confirm(_question(name, plan, copies), yes=yes)
        done: list[UnitToReturn] = list(plan.units)
        if not dry_run:
            done = await returning.run(
                keep_hot_ms=keep_ms, from_segment=from_segment, told=lambda unit: _tell(at, "back in ledgers", unit)
            )
    fields: list[Json] = [
        {"first": one.first, "last": one.last, "records": one.records, "bytes": one.bytes} for one in done
    ]
    lines = [f"would come back: {_unit_text(one)}" for one in done] if dry_run else []
    lines.append(_ended_text(name, done, plan, copies, dry_run=dry_run))
    at.result({"log": name, "units": fields, "hidden": plan.hidden, "dry_run": dry_run}, lines)


def _question(name: str, plan: ReturnPlan, copies: int) -> str:
    size = sum(one.bytes for one in plan.units) * copies
    return f"Write {counted(len(plan.units), 'unit')} of {name} into ledgers, about {size_text(size)} on storage nodes?"


def _unit_text(one: UnitToReturn) -> str:
    return f"segments {one.first} to {one.last}, {counted(one.records, 'record')}"


def _tell(at: At, what: str, unit: UnitToReturn) -> None:
    if not at.as_json:
        at.line({}, f"{what}: {_unit_text(unit)}")


def _ended_text(name: str, done: list[UnitToReturn], plan: ReturnPlan, copies: int, *, dry_run: bool) -> str:
    if not done:
        return f"nothing of {name} is to come back: what is cold is in ledgers too, or hidden by truncation"
    records = counted(sum(one.records for one in done), "record")
    size = size_text(sum(one.bytes for one in done) * copies)
    said = f"{counted(len(done), 'unit')}, {records}, about {size} on storage nodes"
    said += "; below that all is hidden by truncation" if plan.hidden else ""
    return f"dry run: {said}" if dry_run else f"{name}: {said} came back from segment {done[-1].first} on"


# ---------------------------------------------------------------------- from files alone


async def _rebuild(
    at: At,
    name: str,
    source: str,
    from_segment: int | None,
    log_ids: list[str],
    *,
    adopt: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
    from dlspark.objects.addresses import parse_root
    from dlspark.objects.opening import open_store
    from metadata.distributedlog.cold_store import ColdStore

    folder = parse_root(file_address(source).rstrip("/"))
    options = at.settings.cold_options if not folder.url.startswith("file:") else {}
    store: ObjectStore = open_store(folder.url, options)
    try:
        found = await find_files(store, f"{folder.url}/", log_ids=log_ids, from_segment=from_segment)
        async with at.open() as namespace:
            async with await namespace.open_log(name) as log:
                settings = log.settings
            rebuild = LogRebuild(namespace.services, settings, name, options=options, adopt=adopt)
            await rebuild.check(found)
            if not dry_run:
                lines = _found_lines(name, found, settings.cold_retention_hours)
                if not at.as_json:
                    for line in lines:
                        typer.echo(line)
                whose = "take over" if adopt else "borrow"
                confirm(f"Make log {name} of them, and {whose} {counted(len(found.chosen.files), 'file')}?", yes=yes)
                checked = await check_files(store, found)
                namespace_id = await ColdStore(namespace.services.logs).namespace_id()
                await rebuild.run(found, checked, namespace_id=namespace_id)
    finally:
        await store.close()
    text = (
        _found_lines(name, found, settings.cold_retention_hours)
        if dry_run
        else [f"{name} has {counted(found.records, 'record')}; writers go on with segment {found.last + 2}"]
    )
    at.result(_found_fields(name, found, adopt=adopt, dry_run=dry_run), text)


def _found_fields(name: str, found: FoundFiles, *, adopt: bool, dry_run: bool) -> dict[str, Json]:
    passed: list[Json] = [{"url": one.url, "why": one.why} for one in (*found.chosen.passed, *found.other)]
    declaration = found.declaration
    return {
        "log": name,
        "files": [one.url for one in found.chosen.files],
        "first": found.first,
        "last": found.last,
        "records": found.records,
        "bytes": found.bytes,
        "schema": None if declaration is None else declaration.current.id,
        "left_out": passed,
        "adopted": adopt,
        "dry_run": dry_run,
    }


def _found_lines(name: str, found: FoundFiles, retention_hours: int) -> list[str]:
    files = found.chosen.files
    lines = [
        f"{counted(len(files), 'file')} of log {files[-1].log}: segments {found.first} to {found.last}, "
        f"{counted(found.records, 'record')}, {size_text(found.bytes)}"
    ]
    lines += [f"left out: {one.url}: {one.why}" for one in (*found.chosen.passed, *found.other)]
    lines.append(f"not in files, and not restored: {_NOT_RESTORED}")
    if retention_hours >= 0:
        lines.append(f"coldRetentionHours is {retention_hours} for {name}: a mover hides what is older than that")
    return lines
