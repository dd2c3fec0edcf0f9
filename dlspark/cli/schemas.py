"""`dlspark log schema show|set|history|withdraw`: what a log declares of its records, and how that changes."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dlspark.cli.common import At, DryRunOption, Json, NameArgument, YesOption, confirm, over_namespace
from dlspark.cli.schema_files import SchemaFile, read_registered, read_schema
from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlspark.core.log import AsyncLog
    from dlspark.tables.declaration import Declaration
    from dlspark.tables.evolution import Change
    from dlspark.tables.types import Schema


class SchemaFormat(str, Enum):
    """How a record holds a row."""

    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"


FileArgument = Annotated[
    Path | None,
    typer.Argument(help="The columns: as in SQL, in Iceberg's JSON, or an Avro schema; - is standard input."),
]
FormatOption = Annotated[
    SchemaFormat | None, typer.Option("--format", help="How a record holds a row; json, or avro for an Avro schema.")
]
TimestampOption = Annotated[
    str | None, typer.Option("--timestamp", metavar="COLUMN", help="The column that gives the transaction id.")
]


@over_namespace
async def show(
    at: At,
    name: NameArgument,
    version: Annotated[
        int | None, typer.Option("--version", help="Of the schema; the current one if not said.")
    ] = None,
) -> None:
    """Print the columns that a log declares, as `set` takes them."""
    async with at.open() as namespace, await namespace.open_log(name) as log:
        declaration = await declared(log)
    schema = declaration.current if version is None else declaration.version(version)
    if schema is None:
        raise CallerError(
            f"there is no version {version} of the schema",
            log=name,
            advice=f"Versions are 0 to {declaration.current.id}: dlspark log schema history {name}",
        )
    from dlspark.tables.ddl import ddl_of
    from dlspark.tables.types import schema_to_json

    columns = cast("Json", schema_to_json(schema))
    result = about(name, declaration) | {"version": schema.id, "schema": columns}
    at.result(result, [*(f"-- {line}" for line in _head(declaration, schema)), ddl_of(schema)])


@over_namespace
async def history(at: At, name: NameArgument) -> None:
    """Print the versions of a log's schema, with what each changed."""
    from dlspark.tables.comparison import change_text, changes_between

    async with at.open() as namespace, await namespace.open_log(name) as log:
        declaration = await declared(log)
    first = declaration.schemas[0]
    rows: list[Json] = [{"version": 0, "columns": len(first.fields), "changes": []}]
    text = [f"version 0: {counted(len(first.fields), 'column')}"]
    for old, new in zip(declaration.schemas, declaration.schemas[1:], strict=False):
        changes = [change_text(one) for one in changes_between(old, new, by_ids=True)]
        rows.append({"version": new.id, "columns": len(new.fields), "changes": changes})
        text += [f"version {new.id}: {counted(len(new.fields), 'column')}", *(f"    {one}" for one in changes)]
    at.result(about(name, declaration) | {"versions": rows}, text)


@over_namespace
async def set_schema(
    at: At,
    name: NameArgument,
    file: FileArgument = None,
    form: FormatOption = None,
    timestamp: TimestampOption = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Whether reading ends at a record that does not fit.")
    ] = None,
    confluent: Annotated[
        list[str] | None,
        typer.Option("--confluent", metavar="N=FILE", help="An Avro schema by its number in a registry; repeatable."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Declare anew, in the place of what is declared with all its versions.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Declare the columns of a log's records, or change those that are declared.

    A log that declares a schema gets the changes that lead to the given one, within the rules of evolution. Columns are
    matched by name; in the JSON that `show` prints by id, so that a new name is a renaming. No record is changed.
    """
    given = None if file is None else read_schema(file)
    registered = read_registered(confluent or ())
    if given is None and (replace or (strict is None and not registered)):
        raise CallerError("nothing was changed: no columns were given", advice="Give a file, or - for standard input")
    async with at.open() as namespace, await namespace.open_log(name) as log:
        before, former = await _before(log, replace=replace)
        if before is None or replace:
            await _declare(at, log, former, given, form, timestamp, strict, registered, yes=yes, dry_run=dry_run)
            return
        _check_kept(name, before, form, timestamp)
        changes = _changes(before, given)
        others = _others(before, strict, registered)
        lines = [_text(one) for one in changes] + others
        if changes:
            before.evolved(changes)  # What is refused is said before it is asked about, and in a dry run too.
        if lines and not dry_run:
            if changes:
                confirm(f"Change the schema of {name}: {'; '.join(lines)}?", yes=yes)
            before = await log.change_schema(changes, strict=strict, confluent=registered or None)
    result = about(name, before) | {"changes": lines, "dry_run": dry_run}
    did = "would be changed" if dry_run else f"is at version {before.current.id}"
    at.result(result, [f"the schema of {name} {did}: {'; '.join(lines)}" if lines else "nothing is to be changed"])


@over_namespace
async def withdraw(at: At, name: NameArgument, yes: YesOption = False) -> None:
    """Take away what a log declares of its records, with all versions. The records stay, and are bytes again."""
    async with at.open() as namespace, await namespace.open_log(name) as log:
        _, former = await _before(log, replace=True)
        if former is None:
            await declared(log)  # raises that there is none
        confirm(f"Withdraw the schema of {name}, with {former}?", yes=yes)
        await log.withdraw_schema()
    at.result({"log": name, "withdrawn": True}, f"{name} declares no schema now")


# ---------------------------------------------------------------------- shared with samples


async def _before(log: AsyncLog, *, replace: bool) -> tuple[Declaration | None, str | None]:
    """Return what a log declares, and how that is called; None for nothing. What cannot be read is only to be replaced:
    this is the way out."""
    try:
        found = await log.schema()
    except CorruptDataError:
        if not replace:
            raise
        return None, "all versions, which cannot be read"
    return found, None if found is None else counted(len(found.schemas), "version")


async def declared(log: AsyncLog) -> Declaration:
    """Return what a log declares. Raises NoSchemaError."""
    from dlspark.errors import NoSchemaError

    found = await log.schema()
    if found is None:
        raise NoSchemaError(
            "the log declares no schema",
            log=log.name,
            advice=f"dlspark log schema set {log.name} FILE declares one, and `infer` proposes it",
        )
    return found


def about(name: str, declaration: Declaration) -> dict[str, Json]:
    """Return what a declaration says besides its columns."""
    column = declaration.timestamp_field(declaration.current)
    return {
        "log": name,
        "format": declaration.format.value,
        "strict": declaration.strict,
        "timestamp": None if column is None else column.name,
        "confluent": sorted(declaration.confluent),
        "version": declaration.current.id,
    }


# ---------------------------------------------------------------------- setting


async def _declare(
    at: At,
    log: AsyncLog,
    former: str | None,
    given: SchemaFile | None,
    form: SchemaFormat | None,
    timestamp: str | None,
    strict: bool | None,
    registered: dict[int, object],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    from dlspark.core.typed.declarations import declaration_of

    if given is None:
        raise CallerError("nothing was changed: no columns were given", advice="Give a file, or - for standard input")
    chosen = form.value if form is not None else "avro" if given.avro else "json"
    made = declaration_of(given.schema, chosen, timestamp=timestamp, strict=bool(strict), confluent=registered or None)
    if not dry_run:
        if former is not None:
            question = f"Withdraw the schema of {log.name}, with {former}, for another?"
            confirm(f"{question} Records that were written by it may not fit then.", yes=yes)
        made = await log.declare_schema(
            given.schema, chosen, timestamp, bool(strict), registered or None, replace=former is not None
        )
    count = counted(len(made.current.fields), "column")
    did = "would declare" if dry_run else "declares"
    result = about(log.name, made) | {"changes": [], "dry_run": dry_run}
    at.result(result, f"{log.name} {did} {count} now, in {made.format.value}")


def _check_kept(name: str, before: Declaration, form: SchemaFormat | None, timestamp: str | None) -> None:
    """Raise CallerError where what cannot be changed is to be."""
    column = before.timestamp_field(before.current)
    for what, is_, wanted in (
        ("its format", before.format.value, None if form is None else form.value),
        ("the column of its transaction ids", "none" if column is None else column.name, timestamp),
    ):
        if wanted is not None and wanted.casefold() != is_.casefold():
            raise CallerError(
                f"{what} is {is_}, and stays: records are there by it; nothing was changed",
                log=name,
                advice="Leave the option out, or give --replace to declare all anew",
            )


def _changes(before: Declaration, given: SchemaFile | None) -> Sequence[Change]:
    from dlspark.tables.comparison import changes_between

    return [] if given is None else changes_between(before.current, given.schema, by_ids=given.by_ids)


def _others(before: Declaration, strict: bool | None, registered: dict[int, object]) -> list[str]:
    """Return what is changed besides the columns."""
    lines = [] if strict in (None, before.strict) else ["strict" if strict else "not strict"]
    new = [number for number, avro in sorted(registered.items()) if before.confluent.get(number) != avro]
    return lines + [f"schema {number} of a registry" for number in new]


def _text(change: Change) -> str:
    from dlspark.tables.comparison import change_text

    return change_text(change)


def _head(declaration: Declaration, schema: Schema) -> list[str]:
    column = declaration.timestamp_field(schema)
    parts = [f"version {schema.id} of {len(declaration.schemas)}", declaration.format.value]
    if column is not None:
        parts.append(f"transaction ids from {column.name}")
    if declaration.strict:
        parts.append("strict")
    if declaration.confluent:
        parts.append(f"schemas of a registry: {', '.join(map(str, sorted(declaration.confluent)))}")
    return [", ".join(parts)]
