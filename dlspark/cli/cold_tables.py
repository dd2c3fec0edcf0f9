"""`dlspark cold table create|list|sync|show|check|drop`: cold files as Iceberg and Delta tables."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlspark.cli.common import At, Json, check_output, exit_with, over_namespace
from dlspark.cli.common import table as text_table
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.plurals import counted
from metadata.foundation.times import time_text

if TYPE_CHECKING:
    from dlspark.cold.lake.syncing import TableReport
    from dlspark.core.namespace import AsyncNamespace
    from metadata.distributedlog.cold_tables import ColdTable, ColdTableStore

_SQLITE: Final = "sqlite:///"
_PLACES: Final = ("warehouse", "location")
"""Options that are places of the store."""
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The declaration's name.")]
TablesArgument = Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables; all if none is named.")]


@over_namespace
async def create(
    at: At,
    name: TableArgument,
    logs: Annotated[list[str], typer.Option("--log", "-l", help="A log; may be given up to 1,000 times.")],
    iceberg: Annotated[
        str | None,
        typer.Option(
            "--iceberg",
            metavar="CATALOG",
            help="Iceberg's catalog: sqlite:///FILE, the address of a REST catalog, or a name of pyiceberg's settings.",
        ),
    ] = None,
    delta: Annotated[
        str | None, typer.Option("--delta", metavar="PATH", help="A Delta table's folder or address.")
    ] = None,
    identifier: Annotated[
        str | None, typer.Option("--as", metavar="NAMESPACE.TABLE", help="The table's name in the catalog.")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=VALUE", help="Of the catalog or the store, never a secret: warehouse=, location=."
        ),
    ] = None,
) -> None:
    """Declare a table of a log, or of several (partitioned by log then), and make it, empty; `sync` fills it.

    The table names the very files of cold storage: nothing is copied. Secrets are never stored: whoever syncs has them
    in its environment.
    """
    from dlspark.cold.lake.syncing import TableSync
    from metadata.distributedlog.cold_tables import DELTA, ICEBERG, ColdTable, table_logs

    if (iceberg is None) == (delta is None):
        raise CallerError("nothing was declared", advice="Give --iceberg CATALOG or --delta PATH")
    if delta is not None and identifier is not None:
        raise CallerError("A Delta table has no name in a catalog; nothing was declared", advice="Leave out --as")
    kind, place = (DELTA, str(delta)) if iceberg is None else (ICEBERG, iceberg)
    place = _placed(place) if kind == DELTA else _catalog(place)
    chosen = "" if kind == DELTA else identifier or f"dlspark.{name.replace('-', '_')}"
    if kind == ICEBERG and not chosen.rpartition(".")[0]:
        raise CallerError(f"{chosen!r} names no namespace; nothing was declared", advice="Give --as NAMESPACE.TABLE")
    pairs = [one.partition("=") for one in options or ()]
    if any(not sign or not key for key, sign, _ in pairs):
        raise CallerError("An option without '='; nothing was declared", advice="Give --option KEY=VALUE")
    given = {key: _placed(value) if key in _PLACES else value for key, _, value in pairs}
    async with at.open() as namespace:
        for log in logs:
            await namespace.logs_store.check(log)
        now_ms = namespace.services.clock.now_ms()
        wanted = ColdTable(name, uuid.uuid4().hex, kind, place, chosen, table_logs(logs), given, now_ms)
        made = await TableSync.over(namespace.logs_store).create(wanted)
    at.result(
        _as_json(made),
        f"table {made.name} is there, of {counted(len(made.logs), 'log')}; fill it: "
        f"dlspark cold table sync {made.name}",
    )


@over_namespace
async def sync(
    at: At,
    names: TablesArgument = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until it is ended.")] = False,
    every: Annotated[float, typer.Option("--every", min=1, help="Seconds between two looks, with --follow.")] = 60,
) -> None:
    """Bring tables level with cold storage: all new files of all their logs, in one commit for each table.

    Ends with status 3 where a table was changed from outside: it is followed all the same, and nothing is undone.
    """
    from asyncio import sleep

    from dlspark.cold.lake.syncing import TableReport, TableSync

    async with at.open() as namespace:
        syncing = TableSync.over(namespace.logs_store)
        while True:
            reports: list[TableReport] = []
            for one in await _chosen(syncing.tables, names):
                try:
                    reports.append(await syncing.sync(one))
                except DistributedLogError as error:
                    if not follow and names and len(names) == 1:
                        raise
                    reports.append(TableReport(one.name, error=error))
            if not follow:
                break
            for report in reports:
                at.line(_report(report), "\n".join(_lines(report)))
            check_output()
            await sleep(every)
    at.result({"tables": [_report(one) for one in reports]}, [line for one in reports for line in _lines(one)])
    exit_with(
        failed=[one.table for one in reports if one.error is not None],
        attention=any(one.findings for one in reports),
    )


@over_namespace
async def check(at: At, names: TablesArgument = None) -> None:
    """Compare tables with cold storage file by file, and say what was changed from outside; nothing is changed."""
    from dlspark.cold.lake.syncing import TableSync

    async with at.open() as namespace:
        syncing = TableSync.over(namespace.logs_store)
        reports = [await syncing.check(one) for one in await _chosen(syncing.tables, names)]
    at.result({"tables": [_report(one) for one in reports]}, [line for one in reports for line in _lines(one)])
    exit_with(attention=any(one.findings for one in reports))


@over_namespace
async def show(at: At, name: TableArgument) -> None:
    """Show what a table was declared as."""
    async with at.open() as namespace:
        (found,) = await _chosen(_tables(namespace), [name])
    said = _as_json(found)
    at.result(said, text_table("what", "is", rows=[(key, _text(value)) for key, value in said.items()]))


@over_namespace
async def list_tables(at: At) -> None:
    """List the tables that are declared."""
    async with at.open() as namespace:
        found = await _tables(namespace).tables()
    rows = [(one.name, one.kind, one.identifier or one.place, len(one.logs)) for one in found]
    at.result({"tables": [_as_json(one) for one in found]}, text_table("table", "kind", "where", "logs", rows=rows))


@over_namespace
async def drop(at: At, name: TableArgument) -> None:
    """Forget a declaration. The table itself stays, with what it has: nothing follows the log, or gives up files that
    the log deletes, any more."""
    async with at.open() as namespace:
        store = _tables(namespace)
        await _chosen(store, [name])
        await store.drop(name)
    at.result({"table": name, "dropped": True}, f"table {name} is declared no more")


def _placed(given: str) -> str:
    """Return an address as it is, and a path absolute: whoever syncs later stands in another folder."""
    return given if "://" in given else os.path.abspath(Path(given).expanduser())


def _catalog(given: str) -> str:
    """Return a catalog's address or name, with an absolute path where it is a file.

    Raises CallerError for a file that cannot be made, or that nobody else would find.
    """
    if not given.startswith(_SQLITE):
        return given
    path = given.removeprefix(_SQLITE)
    if path in ("", ":memory:"):
        raise CallerError(
            "A catalog in memory is gone with this command; nothing was declared", advice=f"Give {_SQLITE}FILE"
        )
    file = Path(_placed(path))
    if not file.parent.is_dir():
        raise CallerError(
            f"There is no folder {file.parent} for the catalog; nothing was declared", advice="Make it, or name another"
        )
    return f"{_SQLITE}{file}"


def _tables(namespace: AsyncNamespace) -> ColdTableStore:
    from metadata.distributedlog.cold_tables import ColdTableStore

    return ColdTableStore(namespace.store, namespace.uri.path)


async def _chosen(store: ColdTableStore, names: list[str] | None) -> list[ColdTable]:
    if not names:
        return await store.tables()
    found = [(name, await store.get(name)) for name in names]
    missing = next((name for name, one in found if one is None), None)
    if missing is not None:
        known = ", ".join(one.name for one in await store.tables()) or "none"
        raise CallerError(f"There is no table {missing}; nothing was done", advice=f"Declared are: {known}")
    return [one for _, one in found if one is not None]


def _as_json(one: ColdTable) -> dict[str, Json]:
    return {
        "table": one.name,
        "kind": one.kind,
        "place": one.place,
        "as": one.identifier or None,
        "logs": list(one.logs),
        "deleted": [log.name for log in one.members if log.deleted],
        "options": dict(one.options),
        "created": time_text(one.created_ms),
    }


def _text(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return "" if value is None else str(value)


def _report(one: TableReport) -> dict[str, Json]:
    return {
        "table": one.table,
        "rows": one.rows,
        "files": one.files,
        "added": one.added,
        "removed": one.removed,
        "exchanged": one.exchanged,
        "commits": one.commits,
        "findings": list(one.findings),
        "error": None if one.error is None else str(one.error),
    }


def _lines(one: TableReport) -> list[str]:
    if one.error is not None:
        return [f"{one.table}: {one.error}"]
    said = f"{one.table}: {counted(one.rows, 'row')} in {counted(one.files, 'file')}"
    done = {"added": one.added, "exchanged": one.exchanged, "given up": one.removed}
    if any(done.values()):
        said += f"; by this sync: {', '.join(f'{number} {what}' for what, number in done.items() if number)}"
    return [said, *(f"  {finding}" for finding in one.findings)]
