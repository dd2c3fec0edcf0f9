"""What a log declares of its records, looked at on the driver: when a frame is loaded, and whenever it is planned.

A frame keeps the version that it was loaded with. Each plan reads the declaration anew, after the end of what it reads
was fixed: so it knows the versions of all records that tasks will meet, and is refused where newer ones cannot be rows
of the frame (`SchemaChangedError`), before a task runs.

Filters on a typed frame are hints: Spark looks at all rows again. One of them is worth something here. Where the log
takes transaction ids from a column, no record has an id below its column's time (`dlspark.tables.codecs`), so a lower
bound on the column is one on ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Final

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.typed.declarations import Declarations
from dlspark.spark.errors import SchemaError
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.frame_columns import FrameColumns, PackedDeclaration, undeclared_error
from dlspark.spark.source.log_spans import Take
from dlspark.spark.source.schema import column_names
from dlspark.spark.source.selection import SourceQuery
from dlspark.spark.typed_columns import frame_columns
from dlspark.tables.declaration import Declaration, RecordFormat, SchemaChangedError
from dlspark.tables.typed_rows import LOG, VALUE
from dlspark.tables.types import DATE, LONG, Field, Schema

_DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """Which rows are a log's records? What the log declares now, and the version of it whose columns a frame has."""

    declaration: Declaration
    version: SchemaVersion
    target: Schema

    @property
    def packed(self) -> PackedDeclaration:
        """What a task needs of it."""
        return PackedDeclaration(zlib.compress(self.declaration.encode()), self.target.id)

    @property
    def newer(self) -> bool:
        """Whether the log has a newer version than the frame."""
        return self.declaration.current.id > self.target.id

    @property
    def counted(self) -> bool:
        """Whether each record is a row, and none ends a query: so what is known of their number is known of rows."""
        return self.declaration.format is not RecordFormat.ARROW and not self.declaration.strict

    def bounds(self, filters: Iterable[Filter]) -> Bounds:
        """Return among which records all rows are that filters (all must hold) want."""
        one = self.declaration.timestamp_field(self.target)
        lowest = [] if one is None else [_lowest_time(wanted, one) for wanted in filters]
        return Bounds(min_txid=max((time for time in lowest if time is not None), default=0))

    def take(self, take: Take | None) -> Take | None:
        """Return how many records will do; None for all. A record of Arrow's may hold no row."""
        return None if self.declaration.format is RecordFormat.ARROW else take


def _lowest_time(wanted: Filter, one: Field) -> int | None:
    """Return the lowest id of a record whose column satisfies a filter; None where it says nothing of that."""
    if not isinstance(wanted, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | In):
        return None
    if wanted.attribute != (one.name,):
        return None
    values = wanted.value if isinstance(wanted, In) else (wanted.value,)
    times = [_time(value, one) for value in values]
    known = [time for time in times if time is not None]
    # A value that is not understood might be lower than all others.
    return max(0, min(known)) if known and len(known) == len(times) else None


def _time(value: object, one: Field) -> int | None:
    """Return the milliseconds that a column's value says, rounded down as those of records are."""
    if one.type == LONG:
        return value if type(value) is int else None
    if one.type == DATE:
        return (value - _EPOCH.date()).days * _DAY_MS if type(value) is date else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)


async def given_columns(namespace: AsyncNamespace, query: SourceQuery, schema: StructType) -> StructType:
    """Return columns that a user has given by `schema(...)`, checked, and with the version that they are of.

    Raises SchemaError, or as `declared_columns`.
    """
    frame = FrameColumns.of(query, schema)
    found = await declared_columns(namespace, frame)
    if found is None:
        return schema
    all_ = {one.name: one for one in frame_columns(found.target, found.version.declaration, both=frame.both)}
    made = StructType()
    for one in schema:
        made = made.add(one.name, one.dataType, one.nullable, all_[one.name].metadata)
    return made


# ---------------------------------------------------------------------- when it is planned


async def declared_columns(namespace: AsyncNamespace, frame: FrameColumns) -> DeclaredColumns | None:
    """Return what the log of a frame declares now; None where the frame has columns of records.

    Raises SchemaChangedError where the log's declaration is another one by now, or records of its current version
    cannot be rows of the frame; SchemaError where the columns are not the log's; OptionError, LogNotFoundError.
    """
    if frame.log is None:
        return None
    found = await Declarations(namespace.logs_store, frame.log).find()
    if found is None:
        if frame.version is not None:
            raise _other_declaration_error(frame.log, "declares nothing of its records now")
        if frame.names is None:
            column_names(frame.schema)  # raises: they are not columns of records either
            raise undeclared_error(frame.log, ColumnChoice.BOTH if frame.both else ColumnChoice.TYPED)
        return None
    declaration, id_ = found.declaration, found.stored.id
    version = frame.version or SchemaVersion(id_, declaration.current.id)
    target = declaration.version(version.version)
    if version.declaration != id_ or target is None:
        raise _other_declaration_error(frame.log, "has another declaration now")
    if frame.names is not None:
        if _misfit(frame, target) is None:
            raise SchemaError(
                f"The columns {', '.join(frame.names)} that schema(...) names are columns of records, and the log "
                "declares columns of these names; nothing was read",
                advice="Say which are meant: columns=raw, or columns=typed",
                log=frame.log,
            )
        return None
    _check_columns(frame, target)
    declaration.check_readable_as(target)
    return DeclaredColumns(declaration, version, target)


def _other_declaration_error(log: str, what: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"The columns of the frame are those of another declaration: the log {what}; nothing was read",
        advice="Load the frame again, and start the query again. Where the log was deleted and made again a stream "
        "needs another checkpoint; columns=raw reads records whatever is declared",
        log=log,
    )


def _check_columns(frame: FrameColumns, target: Schema) -> None:
    found = _misfit(frame, target)
    if found is not None:
        raise SchemaError(
            f"{found}; nothing was read",
            advice="Leave out schema(...) and select or cast columns afterwards; columns=raw reads records as bytes",
            log=frame.log,
        )


def _misfit(frame: FrameColumns, target: Schema) -> str | None:
    """Return what is wrong with the columns of a frame whose rows have those of a version; None: nothing."""
    both = frame.both and target.column(VALUE) is None
    all_ = {one.name: one.dataType for one in frame_columns(target, "", both=both)}
    never_null = {LOG, VALUE} if both else {LOG}
    for one in frame.schema:
        if one.name not in all_:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in all_.items())
            return f"Column {one.name} is not one of those that the log declares: {known}"
        if not _part_of(one.dataType, all_[one.name]):
            return f"Column {one.name} is {all_[one.name].simpleString()}, and not {one.dataType.simpleString()}"
        if not one.nullable and one.name not in never_null:
            return f"Column {one.name} was declared NOT NULL, and is null where a record does not fit"
    return None


def _part_of(wanted: DataType, ours: DataType) -> bool:
    """Return whether a type is another one, or has some of the fields of its structs; what is never null may be
    nullable."""
    if isinstance(wanted, StructType) and isinstance(ours, StructType):
        fields = {one.name: one for one in ours}
        return all(
            one.name in fields
            and _part_of(one.dataType, fields[one.name].dataType)
            and (one.nullable or not fields[one.name].nullable)
            for one in wanted
        )
    if isinstance(wanted, ArrayType) and isinstance(ours, ArrayType):
        return (wanted.containsNull or not ours.containsNull) and _part_of(wanted.elementType, ours.elementType)
    if isinstance(wanted, MapType) and isinstance(ours, MapType):
        return (
            (wanted.valueContainsNull or not ours.valueContainsNull)
            and _part_of(wanted.keyType, ours.keyType)
            and _part_of(wanted.valueType, ours.valueType)
        )
    return wanted == ours
