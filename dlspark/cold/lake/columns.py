"""Which columns has the table of some logs? Those of their files, by the files' own field ids; all may be null.

A table of several logs has one set of columns. Their declarations must then be one history at different points: each
log's versions are the first ones of the longest history. Logs that declare nothing fit into any table: they have
`_log`, the record's bytes and `_error` alone.

Columns may be null, nested ones too, though the log says NOT NULL: a record that does not fit is a row without values,
and files that were written before a column was there lack it. Defaults are the log's readers' alone: Iceberg's format 2
has none, so those rows are null in the table.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from dlspark.core.cold.files.columns import file_schema
from dlspark.tables.arrow_types import FIELD_ID
from dlspark.tables.declaration import Declaration
from metadata.foundation.errors import CallerError

PARTITION: Final = "_log_name"
"""Delta: the column by which a table of several logs is partitioned; no file has it."""
_NOT_IN_DELTA: Final = frozenset(" ,;{}()\n\t=")


def table_columns(logs: Mapping[str, Declaration | None]) -> pa.Schema:
    """Return the columns of the table of these logs, all nullable, with field ids.

    Raises CallerError, which names log and column, where the logs' declarations are not one history.
    """
    declared = {log: one for log, one in logs.items() if one is not None}
    if not declared:
        return _nullable(file_schema(None))
    longest = max(declared, key=lambda log: (len(declared[log].schemas), log))
    leader = declared[longest]
    for log, one in declared.items():
        for mine, other in zip(one.schemas, leader.schemas, strict=False):
            if mine.fields != other.fields:
                ours, theirs = set(mine.fields), set(other.fields)
                column = next((field.name for field in mine.fields if field not in theirs), None)
                column = column or next((field.name for field in other.fields if field not in ours), "(their order)")
                raise CallerError(
                    f"Logs {log} and {longest} have different columns in version {mine.id}: {column}; one table cannot "
                    "show both, and nothing was changed",
                    log=log,
                    advice="Declare a table of its own for each, or give both the same declaration",
                )
    return _nullable(file_schema(leader))


def check_names(columns: pa.Schema, kind: str) -> None:
    """Raise CallerError for a column that a table of this kind cannot have; it is named."""
    for path in _paths(columns):
        if kind == "delta" and (set(path[-1]) & _NOT_IN_DELTA or path[-1] == PARTITION):
            raise CallerError(
                f"Column {'.'.join(path)!r} cannot be a column of a Delta table; nothing was changed",
                advice=f"Names there have no space and none of ,;{{}}()= and are not {PARTITION}: rename it in the log "
                "before there are cold files, or take an Iceberg table",
            )
        if kind == "iceberg" and "." in path[-1]:
            raise CallerError(
                f"Column {path[-1]!r} cannot be a column of an Iceberg table here: its name has a '.', which would "
                "name a field of a struct; nothing was changed",
                advice="Rename it in the log (dlspark log schema set), or take a Delta table",
            )


def field_id(one: pa.Field) -> int:
    """Return the id of a field of a file's or table's columns."""
    return int(one.metadata[FIELD_ID])


def _paths(columns: pa.Schema) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def walk(one: pa.Field, above: tuple[str, ...]) -> None:
        found.append((*above, one.name))
        for part in _parts(one.type):
            walk(part, (*above, one.name))

    for one in columns:
        walk(one, ())
    return found


def _parts(type_: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(type_):
        return [type_.field(at) for at in range(type_.num_fields)]
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.value_field] if pa.types.is_list(type_) else []


def _nullable(columns: pa.Schema) -> pa.Schema:
    return pa.schema([_nullable_field(one) for one in columns])


def _nullable_field(one: pa.Field, nullable: bool = True) -> pa.Field:
    type_ = one.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_nullable_field(part) for part in _parts(type_)])
    elif pa.types.is_map(type_):
        type_ = pa.map_(_nullable_field(type_.key_field, False), _nullable_field(type_.item_field))
    elif pa.types.is_list(type_):
        type_ = pa.list_(_nullable_field(type_.value_field))
    return pa.field(one.name, type_, nullable=nullable, metadata=one.metadata)
