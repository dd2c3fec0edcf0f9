"""`dlspark read --columns --where`: a log's records as rows of its columns, for people and as lines of JSON.

The JSON is that of records of such a log: times in ISO 8601, bytes in base64, and nothing for null.
"""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import typer

from dlspark.cli.common import check_output, json_text
from dlspark.cli.schemas import declared
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from dlspark.core.log import AsyncLog
    from dlspark.core.reading.reader import AsyncLogReader

_LOOK_S: Final = 1.0
"""While nothing comes, the reader of the output is looked for this often."""
_GAP: Final = "  "


@dataclass(slots=True)
class Wanted:
    """Which rows of a log are wanted, and how are they printed?

    Args:
        columns: Names, with commas between them; None: the log's own.
        where: A condition in SQL; None: all rows.
        as_json: Whether rows are lines of JSON, else a table.
        limit: How many at most; None: all.
        follow: Whether to wait for more at the end.
    """

    columns: str | None
    where: str | None
    as_json: bool
    limit: int | None
    follow: bool


async def print_rows(log: AsyncLog, start: DLSN | int | str, wanted: Wanted) -> None:
    """Print rows of a log's records from a position on.

    Raises NoSchemaError, CallerError for columns that are not there, SqlTextError, and what reading raises.
    """
    from dlspark.tables.codecs import RecordDecoder
    from dlspark.tables.conditions import condition
    from dlspark.tables.typed_rows import ERROR, LOG, TypedRows

    schema = TypedRows(RecordDecoder(await declared(log))).schema
    own = [name for name in schema.names if name not in (LOG, ERROR)]
    names = own if wanted.columns is None else _names(wanted.columns, schema)
    which = None if wanted.where is None else condition(wanted.where, schema)
    printer = _Printer(names, as_json=wanted.as_json)
    left, misfits = wanted.limit, 0
    async with await log.open_reader(start) as reader, aclosing(_tables(log, reader, follow=wanted.follow)) as tables:
        async for table in tables:
            misfits += len(table) - table.column(ERROR).null_count
            rows = _rows(table, names, which)
            if left is not None:
                rows = rows.slice(0, left)
                left -= len(rows)
            printer.print(rows)
            if left == 0:
                break
    if misfits and ERROR not in names:
        are = "row does" if misfits == 1 else "rows do"
        note = f"{misfits:,} {are} not fit the log's columns; `dlspark log errors {log.name}` lists them"
        typer.echo(f"dlspark: {note}", err=True)


def _names(text: str, schema: pa.Schema) -> list[str]:
    """Return the columns that are named, as the log writes them."""
    found: list[str] = []
    for name in (one.strip() for one in text.split(",")):
        column = next((one for one in schema.names if one.casefold() == name.casefold()), None)
        if column is None or column in found:
            raise CallerError(
                f"there is no column {name!r}; nothing was read"
                if column is None
                else f"column {column} is named twice; nothing was read",
                advice=f"There are {', '.join(schema.names)}",
            )
        found.append(column)
    return found


def _rows(table: pa.Table, names: Sequence[str], which: pc.Expression | None) -> pa.Table:
    return (table if which is None else table.filter(which)).select(names)


async def _tables(log: AsyncLog, reader: AsyncLogReader, *, follow: bool) -> AsyncGenerator[pa.Table, None]:
    """Yield the rows of the records that the log has now, or with `follow` of those that come, too."""
    from dlspark.errors import EndOfStreamError, LogEmptyError

    try:
        # Before the first record is read, so that records which come meanwhile are not followed for ever.
        last = None if follow else (await log.last_record()).dlsn
    except LogEmptyError:
        return
    while last is None or reader.position <= last:
        try:
            table = await _next(reader) if follow else await reader.next_table()
        except EndOfStreamError:
            return
        yield table if last is None else _up_to(table, last)


async def _next(reader: AsyncLogReader) -> pa.Table:
    """Return the next rows, once there are some, as long as somebody reads the output."""
    import asyncio

    reading = asyncio.ensure_future(reader.next_table())
    try:
        while not (await asyncio.wait([reading], timeout=_LOOK_S))[0]:
            check_output()
        return await reading
    finally:
        reading.cancel()


def _up_to(table: pa.Table, last: DLSN) -> pa.Table:
    """Return the rows of records up to one."""
    import pyarrow.compute as pc

    log = table.column("_log")
    segment, entry, slot = (pc.struct_field(log, name) for name in ("segment", "entry", "slot"))
    before = pc.or_(
        pc.less(segment, last.lssn),
        pc.and_(
            pc.equal(segment, last.lssn),
            pc.or_(
                pc.less(entry, last.entry_id),
                pc.and_(pc.equal(entry, last.entry_id), pc.less_equal(slot, last.slot_id)),
            ),
        ),
    )
    return table.filter(before)


@dataclass(slots=True)
class _Printer:
    """Prints rows; a table's columns become as wide as what came so far."""

    names: Sequence[str]
    as_json: bool
    _widths: list[int] = field(default_factory=list)

    def print(self, rows: pa.Table) -> None:
        """Print rows. Raises OSError, among them BrokenPipeError."""
        lines = _json_lines(rows)
        if self.as_json:
            unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            for line in lines:
                typer.echo(line if unicode else json_text(json.loads(line)))
        elif lines or not self._widths:
            # Numbers with the digits that they have: 9.50 is no 9.5 in a column of two.
            self._table([json.loads(line, parse_float=str) for line in lines])
        sys.stdout.flush()

    def _table(self, rows: list[dict[str, object]]) -> None:
        cells = [[_cell(row.get(name)) for name in self.names] for row in rows]
        head = [] if self._widths else [list(self.names)]
        before = self._widths or [0] * len(self.names)
        self._widths = [max(width, *(len(row[place]) for row in [*head, *cells])) for place, width in enumerate(before)]
        for row in [*head, *cells]:
            parts = [cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]
            typer.echo(_GAP.join(parts).rstrip())


def _json_lines(rows: pa.Table) -> list[str]:
    """Return each row as the JSON of a record."""
    from dlspark.tables.arrow_types import schema_from_arrow
    from dlspark.tables.codecs import conform
    from dlspark.tables.json_encoding import encode_rows

    schema = schema_from_arrow(rows.schema)
    batches = rows.combine_chunks().to_batches()
    return [
        payload.decode() for batch in batches for payload in encode_rows(conform(batch, schema), schema).to_pylist()
    ]


def _cell(value: object) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
