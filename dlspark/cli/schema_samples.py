"""`dlspark log schema check|infer` and `dlspark log errors`: a log's records held against the columns that it declares.

They look at the last records of a log, as many as are asked for, and change nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlspark.cli.common import At, Json, NameArgument, exit_with, over_namespace, shown, table
from dlspark.cli.logs import HexOption
from dlspark.cli.positions import parse_start
from dlspark.cli.schema_files import read_schema
from dlspark.cli.schemas import FileArgument, FormatOption, SchemaFormat, TimestampOption, declared
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import pyarrow as pa

    from dlspark.core.log import AsyncLog
    from dlspark.tables.declaration import Declaration
    from dlspark.tables.inference import Proposal

SAMPLE: Final = 10_000
_MOST_FREQUENT: Final = 20
_FIRST_BYTES: Final = 60
_MAX_KIND_CHARS: Final = 200
_PARTICULARS: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?\d[\d.]*")
"""What two records with the same mistake have their own of: values and places."""
_FORMS: Final = {
    "avro": "records of Avro with a fingerprint of their schema",
    "confluent": "records of Avro as Confluent's serialisers write them",
    "arrow": "streams of Arrow's",
    "other": "of no form that is known",
}

SampleOption = Annotated[int, typer.Option("--sample", min=1, metavar="N", help="Records to look at, the last ones.")]


@over_namespace
async def check(
    at: At,
    name: NameArgument,
    sample: SampleOption = SAMPLE,
    file: FileArgument = None,
    form: FormatOption = None,
    timestamp: TimestampOption = None,
) -> None:
    """Say how many of a log's last records fit its columns, or those of a file before they are declared, and which do
    not.

    Ends with status 3 where some do not.
    """
    kinds: dict[str, _Mistake] = {}
    records = misfits = 0
    async with at.open() as namespace, await namespace.open_log(name) as log:
        declaration = await declared(log) if file is None else _of_file(file, form, timestamp)
        async for batch in _last(log, sample):
            records += len(batch)
            for one in _misfits(declaration, batch):
                misfits += 1
                kind = _PARTICULARS.sub("...", one.error)[:_MAX_KIND_CHARS]
                kinds.setdefault(kind, _Mistake(one)).records += 1
    frequent = sorted(kinds.values(), key=lambda one: -one.records)[:_MOST_FREQUENT]
    rows: list[Json] = [
        {"records": one.records, "dlsn": one.example.dlsn, "error": one.example.error} for one in frequent
    ]
    result: dict[str, Json] = {"log": name, "records": records, "fit": records - misfits, "errors": rows}
    text = [f"{name}: {records - misfits:,} of {counted(records, 'record')} fit"]
    if frequent:
        cells = [(one.records, one.example.dlsn, one.example.error) for one in frequent]
        text += table("records", "first at", "why the first does not fit", rows=cells).lines()
    at.result(result, text)
    exit_with(attention=misfits > 0)


@over_namespace
async def infer(at: At, name: NameArgument, sample: SampleOption = SAMPLE) -> None:
    """Propose columns for a log, from its last records in JSON, as `set` takes them. Ends with status 3 without any."""
    from dlspark.tables.ddl import ddl_of
    from dlspark.tables.inference import infer as inferred
    from dlspark.tables.types import schema_to_json

    payloads: list[bytes] = []
    async with at.open() as namespace, await namespace.open_log(name) as log:
        async for batch in _last(log, sample):
            payloads += batch.column("value").to_pylist()
    found = inferred(payloads)
    schema = found.schema
    notes = [*_forms(name, found), *found.notes]
    result: dict[str, Json] = {
        "log": name,
        "records": found.records,
        "forms": dict(found.kinds),
        "registered": {str(number): records for number, records in sorted(found.registered.items())},
        "notes": notes,
        "ddl": None if schema is None else ddl_of(schema),
        "schema": None if schema is None else schema_to_json(schema),  # type: ignore[dict-item]
    }
    at.result(result, [*(f"-- {note}" for note in notes), *([] if schema is None else [ddl_of(schema)])])
    exit_with(attention=schema is None)


@over_namespace
async def errors(
    at: At,
    name: NameArgument,
    last: Annotated[
        int, typer.Option("--last", min=1, metavar="N", help="Records to look through, from the end.")
    ] = SAMPLE,
    since: Annotated[
        str | None, typer.Option("--since", help="Look from there on: earliest, a DLSN, epoch milliseconds or a time.")
    ] = None,
    as_hex: HexOption = False,
) -> None:
    """Print the records that do not fit the log's columns, a line each: where, when, why, and their first bytes."""
    found = 0
    async with at.open() as namespace, await namespace.open_log(name) as log:
        declaration = await declared(log)
        start = None if since is None else parse_start(since)
        async for batch in _last(log, last) if start is None else _from(log, await log.position(start)):
            for one in _misfits(declaration, batch):
                found += 1
                begins = shown(one.value[:_FIRST_BYTES], as_hex=as_hex)
                result: dict[str, Json] = {
                    "dlsn": one.dlsn,
                    "transaction_id": one.txid,
                    "error": one.error,
                    "bytes": len(one.value),
                    "begins": begins,
                }
                line = begins if begins.isprintable() else begins.encode("unicode_escape").decode()
                more = "..." if len(one.value) > _FIRST_BYTES else ""
                at.line(result, f"{one.dlsn:<16} {one.txid:>15}  {one.error}  |  {line}{more}")
    if not found and not at.as_json:
        typer.echo("all records that were looked at fit", err=True)


# ---------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class _Misfit:
    """A record that does not fit."""

    dlsn: str
    txid: int
    error: str
    value: bytes


@dataclass(slots=True)
class _Mistake:
    """Records that do not fit for one reason."""

    example: _Misfit
    records: int = field(default=0)


async def _last(log: AsyncLog, number: int) -> AsyncIterator[pa.RecordBatch]:
    """Yield the last records that a log has now, so many."""
    from dlspark.errors import LogEmptyError

    try:
        last = await log.last_record()
    except LogEmptyError:
        return
    start = await log.find_sequence_id(max(last.sequence_id - number + 1, 0))
    async for batch in _from(log, start):
        yield batch


async def _from(log: AsyncLog, start: DLSN) -> AsyncIterator[pa.RecordBatch]:
    """Yield the records that a log has now, from a position on."""
    from dlspark.errors import EndOfStreamError, LogEmptyError

    try:
        last = (await log.last_record()).dlsn
    except LogEmptyError:
        return
    async with await log.open_reader(start) as reader:
        while reader.position <= last:
            try:
                batch = await reader.next_batch()
            except EndOfStreamError:
                return
            segments, entries, slots = (batch.column(one).to_pylist() for one in ("segment", "entry", "slot"))
            end = len(batch)
            while end and DLSN(segments[end - 1], entries[end - 1], slots[end - 1]) > last:
                end -= 1  # it came since
            yield batch.slice(0, end)


def _misfits(declaration: Declaration, batch: pa.RecordBatch) -> Iterator[_Misfit]:
    """Yield the records of a batch that do not fit, each once."""
    import pyarrow.compute as pc

    from dlspark.tables.codecs import RecordDecoder
    from dlspark.tables.typed_rows import ERROR, LOG, TypedRows

    typed = TypedRows(RecordDecoder(replace(declaration, strict=False)), [LOG, ERROR]).of(batch)
    seen = ""
    for row in typed.filter(pc.is_valid(typed.column(ERROR))).to_pylist():
        where = row[LOG]
        dlsn = f"{where['segment']}:{where['entry']}:{where['slot']}"
        if dlsn != seen:  # a record of many rows has them one after the other
            seen = dlsn
            yield _Misfit(dlsn, where["transaction_id"], row[ERROR], where["value"])


def _of_file(file: Path, form: SchemaFormat | None, timestamp: str | None) -> Declaration:
    from dlspark.core.typed.declarations import declaration_of

    given = read_schema(file)
    chosen = form.value if form is not None else "avro" if given.avro else "json"
    return declaration_of(given.schema, chosen, timestamp=timestamp)


def _forms(name: str, found: Proposal) -> list[str]:
    """Return what is to be said of the form of records."""
    if not found.records:
        raise CallerError("the log has no records to propose columns from", log=name)
    json = found.kinds.get("json", 0)
    lines = [f"{json:,} of {counted(found.records, 'record')} are objects in JSON"]
    lines += [f"{found.kinds[kind]:,} are {text}" for kind, text in _FORMS.items() if found.kinds.get(kind)]
    if found.registered:
        numbers = ", ".join(f"{number} ({records:,})" for number, records in sorted(found.registered.items()))
        first = min(found.registered)
        lines.append(f"they name schemas of a registry: {numbers}; declare them with their Avro schemas:")
        lines.append(f"dlspark log schema set {name} {first}.avsc --format avro --confluent {first}={first}.avsc")
    return lines
