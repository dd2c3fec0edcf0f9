"""`dlspark log ...`: whole logs: create, list, show, count, rename, delete, truncate, purge, seal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    ConcurrencyOption,
    DryRunOption,
    FilterOption,
    Json,
    NameArgument,
    NamesArgument,
    YesOption,
    confirm,
    each,
    exit_with,
    over_namespace,
    shown,
    some_logs,
    table,
)
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError, NoNodeError
from metadata.foundation.plurals import counted
from metadata.foundation.settings import UnreadableValue
from metadata.foundation.times import read_first_ms, short_time, time_text

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from metadata.distributedlog.segments import SegmentMetadata

MAX_CREATED = 100_000
"""Logs that one expression may stand for."""
_CREATIONS = 20
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")

HexOption = Annotated[bool, typer.Option("--hex", "-x", help="Bytes in hexadecimal.")]


@over_namespace
async def create(
    at: At,
    name: Annotated[str, typer.Argument(help="The log's name; with --expression what the names begin with.")],
    expression: Annotated[
        str | None,
        typer.Option("--expression", "-e", help="What names end with: numbers from-to (0-15) or a list (a,b,c)."),
    ] = None,
    metadata: Annotated[str, typer.Option("--metadata", help="The application's own bytes, as text.")] = "",
) -> None:
    """Create an empty log, or many by an expression; those that exist are left as they are."""
    names = [name] if expression is None else [name + suffix for suffix in suffixes(expression)]
    from metadata.distributedlog.log_names import LogExistsError

    existed: set[str] = set()
    async with at.open() as namespace:

        async def make(one: str) -> None:
            for _ in range(_CREATIONS):
                there = await namespace.log_exists(one)
                if there and metadata:
                    raise LogExistsError(
                        "it exists already; its metadata were left as they are",
                        log=one,
                        advice=f"Change them with: dlspark log metadata set {one} TEXT",
                    )
                try:
                    # Also of one that is there: what half of a creation left is completed.
                    await namespace.create_log(one, metadata.encode())
                except LogExistsError:
                    continue  # another client made it meanwhile, or one of our calls the folder that both are in
                if there:
                    existed.add(one)
                return
            raise LogExistsError("other logs keep being created beside it; it was not", log=one)

        failed = await each(names, 16, make)
    created = [one for one in names if one not in existed and one not in failed]
    kept = [one for one in names if one in existed]
    text = [f"created {one}" for one in created] + [f"{one} exists already; it was left as it is" for one in kept]
    at.result({"created": created, "existed": kept, "failed": failed}, text)
    exit_with(failed=failed)


def suffixes(expression: str) -> list[str]:
    """Return the suffixes that an expression stands for: `x-y`, or a list. Numbers are as wide as the first is written
    (00-15).

    Raises CallerError.
    """
    ends = _RANGE.fullmatch(expression)
    if ends is None:
        found = expression.split(",")
        if not all(found):
            raise CallerError(f"{expression!r} has an empty part; no log was created", advice="Write 0-15, or a,b,c")
        return found
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MAX_CREATED:
        raise CallerError(
            f"{expression!r} stands for no logs, or more than {MAX_CREATED}; no log was created",
            advice="Write the lower number first",
        )
    width = len(ends[1]) if ends[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


@over_namespace
async def list_logs(
    at: At,
    prefix: Annotated[str, typer.Argument(help="Only logs below this name.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Full names, at any depth.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", "-m", help="With the application's bytes.")] = False,
    as_hex: HexOption = False,
) -> None:
    """List the logs of the namespace, one a line."""
    async with at.open() as namespace:
        names = await namespace.logs(prefix, recursive=recursive or metadata)
        if not names and not at.as_json:
            typer.echo(f"there are no logs below {prefix}" if prefix else "there are no logs", err=True)
        if not metadata:
            at.result({"logs": names}, names)
            return
        found: dict[str, str] = {}

        async def look(name: str) -> None:
            async with await namespace.open_log(name) as log:
                found[name] = shown((await log.metadata()).value, as_hex=as_hex)

        failed = await each(names, 16, look)
    logs: list[Json] = [{"log": name, "metadata": found[name]} for name in names if name in found]
    at.result({"logs": logs}, [f"{name}\t{found[name]}" for name in names if name in found])
    exit_with(failed=failed)


@over_namespace
async def show(
    at: At,
    name: NameArgument,
    segments: Annotated[bool, typer.Option("--segments/--no-segments", help="List the segments.")] = True,
    first: Annotated[int | None, typer.Option("--first", help="From the segment of this number on.")] = None,
    last: Annotated[int | None, typer.Option("--last", help="To the segment of this number.")] = None,
    placement: Annotated[bool, typer.Option("--placement", help="Entries by storage node, for each segment.")] = False,
) -> None:
    """Show a log: where it begins and ends, its writer, its segments with their ledgers."""
    async with at.open() as namespace, await namespace.open_log(name) as log:
        status = await log.status()
        end = await log.end()
        listed = [
            one
            for one in (status.segments if segments else ())
            if (first is None or one.lssn >= first) and (last is None or one.lssn <= last)
        ]
        rows = [_as_dict(one) for one in listed]
        for row, segment in zip(rows, listed, strict=True) if placement else ():
            row["placement"] = await _placement(namespace, segment)
    head = f"{name}: {counted(len(status.segments), 'segment')}, {counted(status.records, 'record')} in completed ones"
    owner = "sealed" if status.sealed else f"written by {status.owner}" if status.owner else "no writer"
    result: dict[str, Json] = {
        "log": status.name,
        "start": str(status.start),
        "end": str(end),
        "owner": status.owner,
        "sealed": status.sealed,
        "records": status.records,
        "highest_segment": status.max_lssn,
        "highest_transaction_id": status.max_txid,
        "deleted_ledgers": list(status.deleted_ledgers),
        "segments": rows,
    }
    if not at.as_json:
        typer.echo(f"{head}; {owner}")
    columns = ["segment", "state", "records", "first txid", "last txid", "last entry", "ledger", "completed"]
    columns += ["entries by storage node"] if placement else []
    if segments or at.as_json:
        cells = [_cells(row, segment) for row, segment in zip(rows, listed, strict=True)]
        at.result(result, table(*columns, rows=cells, spare=("first txid", "last entry")))
    if not at.as_json:
        typer.echo(f"begins at {status.start}; next position to read: {end}")
        if status.deleted_ledgers:
            typer.echo(f"ledgers to be deleted: {', '.join(map(str, status.deleted_ledgers))}")


def _cells(row: dict[str, Json], segment: SegmentMetadata) -> list[Json]:
    """Return a segment's row of the table: shorter than its JSON."""
    from dlspark.core.codec.records import MAX_TXID

    cells = {name: value for name, value in row.items() if name != "cold"}  # The state says it in words.
    if not segment.in_progress:
        cells["completed"] = short_time(segment.completion_time_ms)
        # Its highest id is not a time, and as wide as a column can be.
        cells["last_txid"] = "end of stream" if segment.last_txid == MAX_TXID else segment.last_txid
    placed = row.get("placement")
    if isinstance(placed, dict):
        cells["placement"] = ", ".join(f"{bookie} {count}" for bookie, count in placed.items())
    return list(cells.values())


async def _placement(namespace: AsyncNamespace, segment: SegmentMetadata) -> Json:
    from dlspark.core.administration.ledger_entries import copies_by_bookie

    try:
        ledger = (await namespace.services.ledger_store.read(segment.ledger_id)).value
    except NoNodeError:
        return None
    last = ledger.last_entry if ledger.is_closed else ledger.last_ensemble.first_entry - 1
    return dict(copies_by_bookie(ledger, last))


def _as_dict(segment: SegmentMetadata) -> dict[str, Json]:
    from dlspark.core.display.status import segment_state

    closed = not segment.in_progress
    row: dict[str, Json] = {
        "segment": segment.lssn,
        "state": segment_state(segment),
        "records": segment.record_count if closed else None,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid if closed else None,
        "last_entry": segment.last_entry if closed else None,
        "ledger": segment.ledger_id,
        "completed": time_text(segment.completion_time_ms) if closed else None,
    }
    if segment.cold is not None:
        file = segment.cold.file
        row["cold"] = {
            "listed": segment.cold.listed,
            "unit_state": segment.cold.state.value,
            "file": file.url if file is not None else None,
            "rows": segment.cold.rows,
            "ledger_bytes": segment.cold.ledger_bytes,
        }
    return row


@over_namespace
async def count(
    at: At,
    name: NameArgument,
    start: Annotated[str | None, typer.Argument(help="DLSN of the first one; the log's beginning if not said.")] = None,
    end: Annotated[str | None, typer.Argument(help="DLSN before which to stop; the end if not said.")] = None,
) -> None:
    """Count the records between two DLSNs: from the first to before the second."""
    first, after = (None if text is None else DLSN.parse(text) for text in (start, end))
    async with at.open() as namespace, await namespace.open_log(name) as log:
        records = await log.record_count(first, after)
    at.result({"log": name, "start": start, "end": end, "records": records}, str(records))


@over_namespace
async def rename(
    at: At,
    old: Annotated[str, typer.Argument(help="The log's name.")],
    new: Annotated[str, typer.Argument(help="Its name from now on.")],
) -> None:
    """Give a log another name, in one step. A log that a writer, a query or a proxy has is refused at once."""
    async with at.open() as namespace:
        await namespace.rename_log(old, new)
    at.result({"log": new, "was": old}, f"{old} is {new} now")


@over_namespace
async def delete(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Delete logs with all their records. A log that a writer, a query or a proxy has is refused at once; a second call
    finishes a first one."""
    failed: list[str] = []
    async with at.open() as namespace:
        doomed = await some_logs(namespace, names, pattern)
        if not dry_run:
            what = f"the log {doomed[0]}" if len(doomed) == 1 else f"{len(doomed)} logs"
            confirm(f"Delete {what} and every record?", yes=yes or not doomed)
            failed = await each(doomed, concurrency, namespace.delete_log)
    deleted = [one for one in doomed if one not in failed]
    did = "would delete" if dry_run else "deleted"
    result: dict[str, Json] = {"deleted": deleted, "failed": failed, "dry_run": dry_run}
    at.result(result, [f"{did} {one}" for one in deleted])
    exit_with(failed=failed)


@over_namespace
async def truncate(
    at: At,
    name: NameArgument,
    dlsn: Annotated[str, typer.Argument(help="The first position to keep.")],
    respect_subscribers: Annotated[
        bool, typer.Option("--respect-subscribers", help="Keep what a subscriber has still to read.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Hide the records below a DLSN from readers, for good. Nothing is deleted by it: see `purge`."""
    from dlspark.core.display.status import segment_state
    from dlspark.core.lifecycle.owned_segments import truncation

    wanted = DLSN.parse(dlsn)
    async with at.open() as namespace, await namespace.open_log(name) as log:
        # A mistyped position would hide records that are still to be written, for good (I8).
        if wanted > (end := await log.end()):
            raise CallerError(
                f"{wanted} is behind the end of the log, {end}; nothing was hidden",
                log=name,
                advice=f"Give a position up to {end}, which hides all that there is",
            )
        if dry_run:
            # By the same rules as the truncation itself, which looks again under the log's lock.
            least = min([wanted, *((await log.subscribers()).values() if respect_subscribers else ())])
            changes = [after for _, after in truncation((await log.status()).segments, least)]
            rows: list[Json] = [{"segment": one.lssn, "state": segment_state(one)} for one in changes]
            text = [f"segment {one.lssn} would be {segment_state(one)}" for one in changes]
            at.result({"log": name, "changes": rows}, text or "nothing would change")
            return
        confirm(f"Hide every record of {name} below {wanted}?", yes=yes)
        start = await log.truncate(wanted, respect_subscribers=respect_subscribers)
    at.result({"log": name, "start": str(start)}, f"{name} begins at {start}")


@over_namespace
async def purge(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            help="Lowest transaction id to keep, or the time from which to keep; all but the newest if not said.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Delete the oldest completed segments of logs without a writer (a query gives way). The newest one stays."""
    from dlspark.core.codec.records import MAX_TXID
    from dlspark.core.lifecycle.deletion import older_than

    lowest = MAX_TXID if before is None else _lowest_kept(before)
    purged: dict[str, int] = {}
    async with at.open() as namespace:
        chosen = await some_logs(namespace, names, pattern)
        if not dry_run:
            what = chosen[0] if len(chosen) == 1 else f"{len(chosen)} logs"
            which = "but the newest completed" if lowest == MAX_TXID else f"below transaction id {lowest}"
            confirm(f"Delete the segments of {what}, all {which}?", yes=yes or not chosen)

        async def purge_one(name: str) -> None:
            async with await namespace.open_log(name) as log:
                if dry_run:
                    purged[name] = len(older_than(await log.segments(), lowest))
                else:
                    purged[name] = await log.purge_older_than(lowest)

        failed = await each(chosen, concurrency, purge_one)
    done = sorted(purged.items())
    rows: list[Json] = [{"log": name, "segments": segments} for name, segments in done]
    did = "would be deleted" if dry_run else "deleted"
    result: dict[str, Json] = {"purged": rows, "failed": failed, "dry_run": dry_run}
    at.result(result, [f"{name}: {counted(segments, 'segment')} {did}" for name, segments in done])
    exit_with(failed=failed)


def _lowest_kept(text: str) -> int:
    """Return the transaction id that is given, or that of a time: the first that is not before it. Raises
    CallerError.
    """
    from dlspark.core.codec.records import MAX_TXID

    try:
        lowest = read_first_ms(text)
    except UnreadableValue as error:
        raise CallerError(f"--before {text!r} is neither a transaction id nor a time; {error}") from None
    if not 0 <= lowest <= MAX_TXID:
        raise CallerError(f"--before {text} is outside 0..{MAX_TXID}; nothing was deleted")
    return lowest


@over_namespace
async def seal(at: At, name: NameArgument, yes: YesOption = False) -> None:
    """End a log's stream: readers stop there, and nothing can be written any more."""
    confirm(f"Seal the log {name} for good?", yes=yes)
    async with at.open() as namespace:
        log = await namespace.open_log(name, {"createStreamIfNotExists": False})
        async with log, await log.open_writer() as writer:
            end = await writer.mark_end_of_stream()
    at.result({"log": name, "end": str(end)}, f"{name} ends at {end}")
