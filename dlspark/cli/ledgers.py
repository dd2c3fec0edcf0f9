"""`dlspark ledger ...`: single ledgers of a namespace's BookKeeper cluster, and all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    DryRunOption,
    Json,
    YesOption,
    confirm,
    exit_with,
    over_namespace,
    shown,
    table,
)
from dlspark.cli.logs import HexOption
from metadata.distributedlog.segments import VERSION
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.foundation.times import short_time, time_text

if TYPE_CHECKING:
    from dlspark.core.administration.audit import LedgerAudit, Space, UnnamedLedger
    from dlspark.core.administration.ledger_entries import ReadEntry

_HOUR_MS = 3_600_000
_MIN_AGE_HOURS = 24.0

LedgerArgument = Annotated[int, typer.Argument(min=0, help="Ledger id.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Though an application may need it that nothing names.")]
AlsoOption = Annotated[
    list[str] | None, typer.Option("--also", help="URI of another namespace on this cluster; may be given again.")
]
AgeOption = Annotated[
    float, typer.Option("--min-age", min=0, help="Hours that a ledger must be old before it is called an orphan.")
]


@over_namespace
async def find(at: At, ledger: LedgerArgument) -> None:
    """Show which log of the namespace, or what else in it, has a ledger. Exits with 3 if nothing has."""
    from dlspark.core.administration.ledger_entries import find_ledger

    async with at.open() as namespace:
        found = await find_ledger(namespace.services, ledger)
    rows: list[Json] = [
        {
            "use": one.reference.use.value,
            "log": one.log,
            "segment": None if one.reference.segment is None else one.reference.segment.lssn,
            "path": one.reference.path,
        }
        for one in found
    ]
    text = []
    for one in found:
        segment = one.reference.segment
        what = one.reference.use.value if segment is None else f"segment {segment.lssn}"
        text.append(f"{what} of {one.log}: {one.reference.path}" if one.log else f"{what}: {one.reference.path}")
    at.result({"ledger": ledger, "found": rows}, text or "nothing in this namespace has it")
    exit_with(attention=not found)


@over_namespace
async def lac(at: At, ledger: LedgerArgument) -> None:
    """Print a ledger's last add confirmed, its state and where its entries are. Its writer is not disturbed."""
    from dlspark.core.administration.ledger_entries import read_lac

    async with at.open() as namespace:
        metadata, last = await read_lac(namespace.services, ledger)
    ensembles: list[Json] = [{"first": one.first_entry, "nodes": list(one.bookies)} for one in metadata.ensembles]
    result: dict[str, Json] = {
        "ledger": ledger,
        "last_add_confirmed": last,
        "state": metadata.state.name,
        "bytes": metadata.length if metadata.is_closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "ensembles": ensembles,
    }
    text = [f"ledger {ledger} is {metadata.state.name}, its last add confirmed is {last}"]
    text += [f"from entry {one.first_entry} on: {', '.join(one.bookies)}" for one in metadata.ensembles]
    at.result(result, text)


@over_namespace
async def read_entries_of(
    at: At,
    ledger: LedgerArgument,
    first: Annotated[int, typer.Option("--first", min=0, help="First entry.")] = 0,
    last: Annotated[
        int | None, typer.Option("--last", min=0, help="Last entry; the ledger's last if not said.")
    ] = None,
    as_hex: HexOption = False,
    skip_payload: Annotated[bool, typer.Option("--skip-payload", help="Records without their payloads.")] = False,
    every_copy: Annotated[bool, typer.Option("--copies", help="Each storage node's copy, compared.")] = False,
    corrupt: Annotated[bool, typer.Option("--corrupt", help="Only what is damaged.")] = False,
    show_lac: Annotated[bool, typer.Option("--lac", help="The LAC that each entry carries.")] = False,
    version: Annotated[
        int, typer.Option("--metadata-version", min=1, max=VERSION, help="Of the segment that the ledger is.")
    ] = VERSION,
) -> None:
    """Print a ledger's entries with their records, a JSON line or some lines each. Exits with 3 if any is damaged."""
    from dlspark.core.administration.ledger_entries import read_entries

    damaged = False
    async with at.open() as namespace:
        entries = read_entries(namespace.services, ledger, first, last, every_copy=every_copy, metadata_version=version)
        async for entry in entries:
            damaged |= entry.corrupt
            if entry.corrupt or not corrupt:
                records = [_record(entry, number, as_hex, skip_payload) for number in range(len(entry.records))]
                at.line(_entry(entry, records), "\n".join(_entry_lines(entry, records, show_lac)))
    exit_with(attention=damaged)


def _record(entry: ReadEntry, number: int, as_hex: bool, skip_payload: bool) -> dict[str, Json]:
    record = entry.records[number]
    kind = "control" if record.is_control else "end of stream" if record.is_end_of_stream else "record"
    fields: dict[str, Json] = {
        "slot": record.dlsn.slot_id,
        "transaction_id": record.txid,
        "position": record.position,
        "kind": kind,
        "bytes": len(record.payload),
    }
    return fields if skip_payload else fields | {"value": shown(record.payload, as_hex=as_hex)}


def _entry(entry: ReadEntry, records: list[dict[str, Json]]) -> dict[str, Json]:
    return {
        "entry": entry.entry_id,
        "node": entry.bookie,
        "last_add_confirmed": entry.last_add_confirmed,
        "bytes": entry.length,
        "error": None if entry.error is None else str(entry.error),
        "corrupt": entry.corrupt,
        "records": records,
    }


def _entry_lines(entry: ReadEntry, records: list[dict[str, Json]], show_lac: bool) -> list[str]:
    where = f" on {entry.bookie}" if entry.bookie is not None else ""
    lac_text = f", LAC {entry.last_add_confirmed}" if show_lac else ""
    state = "DAMAGED" if entry.corrupt else "not read"
    what = f"{counted(entry.length, 'byte')}{lac_text}" if entry.error is None else f"{state}: {entry.error}"
    lines = [f"entry {entry.entry_id}{where}: {what}"]
    for one in records:
        value = one.get("value", f"{one['bytes']} bytes")
        kind = "" if one["kind"] == "record" else f"[{one['kind']}] "
        lines.append(f"  {one['slot']:<6} {one['transaction_id']:>19}  {kind}{value}")
    return lines


@over_namespace
async def recover(at: At, ledger: LedgerArgument, force: ForceOption = False, yes: YesOption = False) -> None:
    """Fence a ledger's writer and close the ledger. Refused while its log is written."""
    from dlspark.core.administration.ledger_entries import recover_ledger

    confirm(f"Fence the writer of ledger {ledger}, and close it?", yes=yes)
    async with at.open() as namespace:
        last = await recover_ledger(namespace.services, ledger, namespace.settings, force=force)
    at.result({"ledger": ledger, "last_entry": last}, f"ledger {ledger} is closed, its last entry is {last}")


@over_namespace
async def delete(
    at: At,
    ledgers: Annotated[list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A file with ids, as audit --orphans writes it.")] = None,
    also: AlsoOption = None,
    min_age: AgeOption = _MIN_AGE_HOURS,
    force: ForceOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete ledgers that nothing names; one that is in use never. Exits with 3 if any was left."""
    from dlspark.core.administration.audit import UnnamedLedgerState, delete_ledgers

    wanted = sorted({*(ledgers or ()), *(_ids_in(file) if file is not None else ())})
    if not wanted:
        raise CallerError("no ledger was named", advice="Give ids, or --file")
    if not dry_run:
        confirm(f"Delete {counted(len(wanted), 'ledger')}?", yes=yes)
    async with AsyncExitStack() as stack:
        services = [(await stack.enter_async_context(at.open(uri))).services for uri in (None, *(also or ()))]
        done = await delete_ledgers(services, wanted, min_age_ms=int(min_age * _HOUR_MS), force=force, dry_run=dry_run)
    rows: list[Json] = [{"ledger": d.ledger_id, "verdict": d.verdict.value, "deleted": d.deleted} for d in done]
    did = "would be deleted" if dry_run else "deleted"
    text = [f"ledger {d.ledger_id}: {did if d.deleted else f'left, it is {d.verdict.value}'}" for d in done]
    at.result({"ledgers": rows, "dry_run": dry_run}, text)
    exit_with(attention=any(not d.deleted and d.verdict is not UnnamedLedgerState.GONE for d in done))


def _ids_in(file: Path) -> list[int]:
    """Return the ids, which are separated by white space or commas. Raises CallerError."""
    try:
        words = re.split(r"[\s,]+", file.read_text().strip())
    except OSError as error:
        raise CallerError(f"{file} cannot be read: {error.strerror}; nothing was done") from error
    # All words before any ledger: a file of another kind must not delete what its first lines happen to name.
    bad = [word for word in words if word and not re.fullmatch(r"\d{1,19}", word)]
    if bad:
        raise CallerError(f"{bad[0]!r} in {file} is not a ledger id; nothing was done", advice="Give one id a line")
    return [int(word) for word in words if word]


@over_namespace
async def audit(
    at: At,
    also: AlsoOption = None,
    min_age: AgeOption = _MIN_AGE_HOURS,
    orphans: Annotated[
        Path | None, typer.Option("--orphans", help="Write the orphans' ids to this file, one a line.")
    ] = None,
) -> None:
    """Compare BookKeeper's ledgers with all that names ledgers. Exits with 3 if anything is lost or left over.

    Everything on the namespaces' ZooKeeper ensembles counts, whatever namespace it belongs to; namespaces on other
    ensembles must be named with --also, or their ledgers look like orphans.
    """
    from dlspark.core.administration.audit import audit_ledgers

    async with AsyncExitStack() as stack:
        services = [(await stack.enter_async_context(at.open(uri))).services for uri in (None, *(also or ()))]
        found = await audit_ledgers(services, min_age_ms=int(min_age * _HOUR_MS))
    if orphans is not None:
        try:
            orphans.write_text("".join(f"{ledger}\n" for ledger in found.orphans))
        except OSError as error:
            raise CallerError(f"{orphans} cannot be written: {error.strerror}", advice="Name another file") from error
    at.result(_audit(found), _audit_lines(found))
    exit_with(attention=not found.clean)


def _audit(found: LedgerAudit) -> dict[str, Json]:
    unnamed: list[Json] = [_unnamed(one) for one in found.unnamed]
    missing: list[Json] = [
        {"ledger": one.ledger_id, "path": one.path, "in_progress": one.in_progress} for one in found.missing
    ]
    shared: list[Json] = [{"ledger": ledger, "paths": list(paths)} for ledger, paths in found.shared]
    return {
        "ledgers": found.ledgers,
        "uses": dict(found.uses),
        "orphans": found.orphans,
        "unnamed": unnamed,
        "missing": missing,
        "shared": shared,
        "unreadable": [{"path": one.path, "why": one.why} for one in found.unreadable],
    }


def _unnamed(one: UnnamedLedger) -> dict[str, Json]:
    return {
        "ledger": one.ledger_id,
        "verdict": one.verdict.value,
        "created": time_text(one.created_ms),
        "bytes": one.length,
    }


def _audit_lines(found: LedgerAudit) -> list[str]:
    words = {"segment": "segments"}
    uses = ", ".join(counted(count, use, words.get(use, use)) for use, count in found.uses.items())
    lines = [f"{counted(found.ledgers, 'ledger')}: {uses}; nothing names {len(found.unnamed)}"]
    for one in found.unnamed:
        size = "not closed" if one.length is None else counted(one.length, "byte")
        lines.append(f"ledger {one.ledger_id}: {one.verdict.value}, since {short_time(one.created_ms)}, {size}")
    lines += [f"ledger {one.ledger_id}: missing, {one.path} has it" for one in found.missing]
    lines += [
        f"ledger {ledger}: in {counted(len(paths), 'segment')}: {', '.join(paths)}" for ledger, paths in found.shared
    ]
    return lines + [f"{one.path} cannot be read: {one.why}" for one in found.unreadable]


@over_namespace
async def space(
    at: At,
    group_by: Annotated[
        str | None,
        typer.Option("--group-by", help="Regular expression: logs with the same match (first group) count together."),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="All ledgers of the BookKeeper cluster.")] = False,
) -> None:
    """Show how many bytes logs hold, or the whole cluster: payload, and with all copies."""
    from dlspark.core.administration.audit import Space, cluster_space, log_space

    async with at.open() as namespace:
        if cluster:
            found = {"": await cluster_space(namespace.services)}
        else:
            group = _grouping(group_by)
            found = await log_space(namespace.services, await namespace.logs(recursive=True), group)
    rows: list[Json] = [{"group": name, **_space(one)} for name, one in found.items()]
    total = Space()
    for one in found.values():
        total.ledgers += one.ledgers
        total.bytes += one.bytes
        total.stored_bytes += one.stored_bytes
        total.unknown += one.unknown
    columns = ("logs", "ledgers", "bytes", "with copies", "of unknown length")
    cells = [[name, one.ledgers, one.bytes, one.stored_bytes, one.unknown] for name, one in found.items() if name]
    cells.append(["all", total.ledgers, total.bytes, total.stored_bytes, total.unknown])
    at.result({"groups": [] if cluster else rows, "total": _space(total)}, table(*columns, rows=cells))


def _grouping(pattern: str | None) -> Callable[[str], str]:
    """Return what gives the group of a log's name: each is by itself without a pattern, or where that does not
    match.
    """
    if pattern is None:
        return lambda name: name
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise CallerError(f"{pattern!r} is not a regular expression: {error}") from error

    def group(name: str) -> str:
        found = compiled.search(name)
        return name if found is None else (found[1] if compiled.groups else found[0])

    return group


def _space(one: Space) -> dict[str, Json]:
    return {"ledgers": one.ledgers, "bytes": one.bytes, "stored_bytes": one.stored_bytes, "unknown": one.unknown}
