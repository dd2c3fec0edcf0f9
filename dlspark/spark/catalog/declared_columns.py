"""Tables with columns of their own: what `CREATE TABLE` and `ALTER TABLE` say of them as a log's schema, and a schema
as the Java side makes a table of it. Pure: no I/O.

Loaded where a log has a schema, or gets one: with it come the codecs of records, which a table of bytes has no use for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import DataType, StructField, StructType

from dlspark.core.typed.declarations import Declared, declaration_of
from dlspark.spark.catalog.column_defaults import sql_default, with_default
from dlspark.spark.catalog.creation import OF_THE_SCHEMA, RECORD_FORMAT, STRICT, TIMESTAMP
from dlspark.spark.catalog.tables import Json
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.schema_version import METADATA, SchemaVersion
from dlspark.spark.typed_columns import SYSTEM, schema_of_spark, spark_columns, type_of_spark
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import (
    AddColumn,
    AllowNull,
    Change,
    DocumentColumn,
    DropColumn,
    MoveColumn,
    Place,
    RenameColumn,
    WidenColumn,
)
from dlspark.tables.types import Field, Schema, children
from metadata.foundation.errors import InvariantViolation

_SYSTEM_COMMENTS: Final = {
    "_log": "where the row's record is; its bytes where it does not fit",
    "_error": "why the record does not fit, and all columns are null",
}


def declared_by(
    columns: StructType, said: Mapping[str, str], defaults: Mapping[str, object], *, as_select: bool
) -> Declaration:
    """Return what a new log declares.

    Args:
        columns: The columns of the statement, with comments and whether they may be null.
        said: Properties of the schema's.
        defaults: Constants, by names of columns.
        as_select: Whether the columns are those of a query, whose names and types alone are known.

    Raises SchemaError, OptionError and InvalidSchemaError for what no log can declare.
    """
    if not columns.fields:
        raise SchemaError(
            f"Property {next(iter(said))} is of tables with columns, and the statement names none; nothing was created",
            advice=f"Name the columns, or leave {', '.join(OF_THE_SCHEMA)} out: the log then holds bytes",
        )
    made = schema_of_spark(_not_null_by_timestamp(columns, said.get(TIMESTAMP)) if as_select else columns)
    fields = [with_default(one, _mapping(defaults.get(one.name))) for one in made.fields]
    return declaration_of(
        Schema(0, tuple(fields)),
        said.get(RECORD_FORMAT, RecordFormat.JSON.value).lower(),
        timestamp=said.get(TIMESTAMP),
        strict=_truth(said.get(STRICT, "false")),
    )


def _not_null_by_timestamp(columns: StructType, timestamp: str | None) -> StructType:
    """Return a query's columns, which Spark says may all be null, but for the one that gives transaction ids."""
    return StructType(
        [
            StructField(
                one.name,
                one.dataType,
                one.nullable and (timestamp is None or one.name.lower() != timestamp.lower()),
                one.metadata,
            )
            for one in columns.fields
        ]
    )


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"Property strict is {text!r}; nothing was done", advice="Give it true or false")
    return text.lower() == "true"


# ---------------------------------------------------------------------- ALTER TABLE


def changed_strictness(declaration: Declaration, set_: Mapping[str, str], removed: Sequence[str]) -> bool | None:
    """Return what `strict` becomes where properties of the schema's are set and removed; None where it stays.

    Raises OptionError for those that are fixed when the log is created.
    """
    fixed = properties_of(declaration)
    for name in (RECORD_FORMAT, TIMESTAMP):
        new = None if name in removed else set_.get(name, fixed.get(name))
        if (new or "").lower() != fixed.get(name, "").lower():
            raise OptionError(
                f"Property {name} is {fixed.get(name, 'not set')}, for good: records that are there were written by "
                "it; nothing was changed",
                advice="Declare another log, and INSERT INTO it SELECT from this one",
            )
    if STRICT in removed:
        return False
    return _truth(set_[STRICT]) if STRICT in set_ else None


def changes_of(said: Sequence[Mapping[str, object]], schema: Schema) -> list[Change]:
    """Return the changes of a schema that a statement says, in its order. Raises SchemaError for one that cannot be."""
    return [change for one in said if (change := _change(one, schema)) is not None]


def _change(said: Mapping[str, object], schema: Schema) -> Change | None:
    parts = said.get("path")
    path = tuple(str(part) for part in parts) if isinstance(parts, list) else ()
    name = ".".join(path)
    match said["kind"]:
        case "add":
            return _added(said, path)
        case "drop":
            return None if said["if_exists"] is True and not _is_there(schema, path) else DropColumn(path)
        case "rename":
            return RenameColumn(path, str(said["name"]))
        case "type":
            return WidenColumn(path, type_of_spark(_type(said["type"]), name))
        case "position":
            return MoveColumn(path, _place(said["position"]) or Place())
        case "comment":
            return DocumentColumn(path, str(said["comment"]) if said["comment"] else None)
        case "nullable" if said["nullable"] is True:
            return AllowNull(path)
        case "nullable":
            raise SchemaError(
                f"Column {name} cannot become NOT NULL: rows without a value may be there; nothing was changed",
                advice="Add a column that is NOT NULL with a DEFAULT, or filter: WHERE ... IS NOT NULL",
            )
        case "default":
            raise SchemaError(
                f"The default of column {name} cannot be changed: rows from before the column show it; nothing was "
                "changed",
                advice="A default is given with ADD COLUMN; write other values by name in INSERT INTO",
            )
    raise InvariantViolation(f"a change of columns came as {said!r}")


def _added(said: Mapping[str, object], path: tuple[str, ...]) -> AddColumn:
    type_ = type_of_spark(_type(said["type"]), ".".join(path))
    one = with_default(Field(1, path[-1], type_), _mapping(said.get("default")))
    comment = said.get("comment")
    return AddColumn(
        path,
        type_,
        required=said["nullable"] is not True,
        doc=str(comment) if comment else None,
        default=one.default,
        place=_place(said.get("position")),
    )


def _place(said: object) -> Place | None:
    if said is None:
        return None
    return Place(str(said["after"]) if isinstance(said, dict) and said.get("after") is not None else None)


def _is_there(schema: Schema, path: Sequence[str]) -> bool:
    fields = schema.fields
    for part in path:
        found = next((one for one in fields if one.name.casefold() == part.casefold()), None)
        if found is None:
            return False
        fields = children(found.type)
    return True


def _type(said: object) -> DataType:
    """Read Spark's JSON of a type."""
    field = {"name": "c", "type": json.loads(str(said)), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType


def _mapping(said: object) -> Mapping[str, object] | None:
    return said if isinstance(said, dict) else None


# ---------------------------------------------------------------------- a table of it


def properties_of(declaration: Declaration) -> dict[str, str]:
    """Return the properties of the schema's."""
    found = {RECORD_FORMAT: declaration.format.value, STRICT: str(declaration.strict).lower()}
    column = declaration.timestamp_field(declaration.current)
    return found if column is None else {**found, TIMESTAMP: column.name}


def columns_of(declared: Declared) -> list[Json]:
    """Return a log's own columns for the Java side."""
    spark = spark_columns(declared.declaration.current)
    return [
        {
            "name": one.name,
            "type": field.dataType.json(),
            "comment": one.doc,
            "required": one.required,
            "default": sql_default(one),
            "metadata": _pin(declared),
        }
        for one, field in zip(declared.declaration.current.fields, spark.fields, strict=True)
    ]


def metadata_columns_of(declared: Declared) -> list[Json]:
    """Return the columns that come with a log's own, which `SELECT *` leaves out, for the Java side."""
    return [
        {
            "name": one.name,
            "type": one.dataType.json(),
            "comment": _SYSTEM_COMMENTS[one.name],
            "metadata": _pin(declared),
        }
        for one in SYSTEM.fields
    ]


def _pin(declared: Declared) -> Json:
    """Return the metadata of each column."""
    version = SchemaVersion(declared.stored.id, declared.declaration.current.id)
    return {METADATA: version.to_json()}
