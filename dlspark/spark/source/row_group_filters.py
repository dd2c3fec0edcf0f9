"""Which row groups of a cold file may have rows that a query's filters want: by Parquet's statistics alone.

Filters on a typed frame are hints: Spark looks at all rows again. So a row group may be left out where it certainly
has no row that satisfies them all, and where anything is in doubt it is read. `None` in a filter is SQL's null: no
comparison with it holds, but for `<=>`.

What is in doubt: a value of another type than its column; a column whose statistics are missing; a column within a list
or map; a floating-point column that is to be above something, for statistics pass over NaN, and to Spark NaN is above
all numbers.

Fault model: statistics are part of the footer, which is checked as a whole before anything of it is used. Nothing here
does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from dlspark.core.cold.files.columns import ERROR, LOG
from dlspark.core.cold.files.footer import Footer
from dlspark.tables.arrow_types import FIELD_ID, arrow_type
from dlspark.tables.json_decoding import value_of_default
from dlspark.tables.types import Field, Schema, Struct, children

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OF_RECORDS: Final = frozenset({"segment", "entry", "slot", "row", "sequence_id", "transaction_id"})
"""Fields of `_log` that a file has as they are."""

Value: TypeAlias = "int | float | str | bool | date | Decimal"


@dataclass(frozen=True, slots=True)
class ColumnExtent:
    """What is known of a column's values in a row group?

    Args:
        type: what it holds.
        rows: how many values, nulls included.
        nulls: how many of them are null; None: not known.
        low, high: the least and the greatest; None: not known, or there is none.
    """

    type: pa.DataType
    rows: int
    nulls: int | None
    low: Value | None
    high: Value | None

    @property
    def empty(self) -> bool:
        """Whether all values are null."""
        return self.nulls == self.rows


class RowGroupFilters:
    """Which row groups of a file may have rows that satisfy all of some filters?

    Args:
        footer: of the file.
        target: the version whose columns rows have.
        filters: what is asked of them.
    """

    def __init__(self, footer: Footer, target: Schema, filters: Sequence[Filter]) -> None:
        self._footer = footer
        self._target = target
        self._leaves = leaf_numbers(footer.schema) if filters else {}
        self._wanted: list[tuple[Filter, tuple[str, ...]]] = []
        for one in filters:
            attribute = getattr(one, "attribute", None)  # filters of other filters have none, and are not understood
            if isinstance(attribute, tuple) and attribute:
                self._wanted.append((one, attribute))

    def may_have_rows(self, at: int, *, known: bool) -> bool:
        """Return whether a row group may have such rows. `known`: all its rows are what its columns say; else some come
        from records' bytes."""
        if not self._wanted:
            return True
        statistics = RowGroupStatistics(self._footer, at, self._target, self._leaves, as_stored=known)
        return all(_may_satisfy(one, statistics.extent(attribute)) for one, attribute in self._wanted)


def _may_satisfy(wanted: Filter, column: ColumnExtent | None) -> bool:
    if column is None:
        return True
    if isinstance(wanted, IsNull):
        return column.nulls != 0
    if isinstance(wanted, IsNotNull):
        return not column.empty
    if isinstance(wanted, EqualNullSafe) and wanted.value is None:
        return column.nulls != 0
    if isinstance(wanted, In):
        return any(_may_equal(value, column) for value in wanted.value)
    if isinstance(wanted, EqualTo | EqualNullSafe):
        return _may_equal(wanted.value, column)
    if isinstance(wanted, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return _may_compare(wanted, column)
    return True


def _may_equal(wanted: object, column: ColumnExtent) -> bool:
    if wanted is None or column.empty:
        return False
    value = _comparable(wanted, column.type)
    if value is None or column.low is None or column.high is None:
        return True
    return bool(column.low <= value <= column.high)  # type: ignore[operator]


def _may_compare(wanted: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual, column: ColumnExtent) -> bool:
    if wanted.value is None or column.empty:
        return False
    value = _comparable(wanted.value, column.type)
    above = isinstance(wanted, GreaterThan | GreaterThanOrEqual)
    end = column.high if above else column.low
    if value is None or end is None or (above and pa.types.is_floating(column.type)):
        return True
    if end == value:
        return isinstance(wanted, GreaterThanOrEqual | LessThanOrEqual)
    return bool(end > value if above else end < value)  # type: ignore[operator]


def _comparable(value: object, type_: pa.DataType) -> Value | None:
    """Return a filter's value in the form in which a column's extent is; None for one that is not of its type."""
    kinds = pa.types
    if kinds.is_boolean(type_):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if kinds.is_integer(type_):
        return value if isinstance(value, int) else None
    if kinds.is_floating(type_):
        # NaN is not less than itself, and equal to none: it is in doubt.
        return value if isinstance(value, int | float) and value == value else None
    if kinds.is_decimal(type_):
        return value if isinstance(value, int | Decimal) else None
    if kinds.is_string(type_):
        return value if isinstance(value, str) else None
    if kinds.is_date(type_):
        return value if type(value) is date else None
    if kinds.is_timestamp(type_) and type_.tz is not None:
        return _microseconds(value)
    return None


def _microseconds(value: object) -> int | None:
    """Return a point in time as microseconds since the epoch; None for what is none."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


class RowGroupStatistics:
    """What do statistics say of the columns of one row group, as rows of a version have them?

    Args:
        footer: of its file.
        index: which row group.
        target: the version whose columns rows have.
        leaves: `leaf_numbers` of the file's columns.
        as_stored: whether all its rows are what its columns say; then those of `target` that it does not have are
            known, too. False: some are read from records' bytes, and only what is said of records (`_log`) is known.
    """

    def __init__(
        self, footer: Footer, index: int, target: Schema, leaves: Mapping[tuple[int, ...], int], *, as_stored: bool
    ) -> None:
        self._footer = footer
        self._group = footer.parquet.row_group(index)
        self._target = target
        self._leaves = leaves
        self._as_stored = as_stored

    def extent(self, attribute: tuple[str, ...]) -> ColumnExtent | None:
        """Return what is known of a column, named as filters name it; None: nothing."""
        if attribute[0] == LOG:
            return self._of_records(attribute[1]) if len(attribute) == 2 else None
        if not self._as_stored:
            return None
        if attribute == (ERROR,):
            return self._stored((_id(self._footer.schema.field(ERROR)),))
        return self._own(attribute)

    def _of_records(self, name: str) -> ColumnExtent | None:
        """Return what is known of a field of `_log`."""
        log = self._footer.schema.field(LOG)
        stored = "transaction_id" if name == "timestamp" else name
        if stored not in _OF_RECORDS or (stored == "row" and not self._as_stored):
            return None  # A record that is decoded anew may have other rows than when the file was written.
        found = self._stored((_id(log), _id(log.type.field(stored))))
        if found is None or name == stored:
            return found
        # Ids that are no time are null, and satisfy nothing: the extent is that of a superset.
        low, high = (None if end is None else _times_of_id(end) for end in (found.low, found.high))
        return ColumnExtent(pa.timestamp("us", "UTC"), found.rows, None, low, high)

    def _own(self, attribute: Sequence[str]) -> ColumnExtent | None:
        """Return what is known of a column that the log declares, or of a field of a struct."""
        fields: Sequence[Field] = self._target.fields
        ids: list[int] = []
        one: Field | None = None
        for name in attribute:
            one = next((other for other in fields if other.name == name), None)
            if one is None:
                return None
            ids.append(one.id)
            fields = one.type.fields if isinstance(one.type, Struct) else ()
        if one is None or children(one.type):
            return None
        if tuple(ids) in self._leaves:
            return self._stored(tuple(ids))
        return self._added_later(one) if len(ids) == 1 else None

    def _added_later(self, one: Field) -> ColumnExtent | None:
        """Return what rows have of a column that was declared after the file was written."""
        type_, rows = arrow_type(one.type), self._group.num_rows
        if one.default is None:
            return ColumnExtent(type_, rows, rows, None, None)
        # Records that hold no row are counted as rows, so that nulls are not known exactly.
        value = _plain(value_of_default(one), type_)
        return None if value is None else ColumnExtent(type_, rows, None, value, value)

    def _stored(self, ids: tuple[int, ...]) -> ColumnExtent | None:
        """Return what the statistics of a leaf column say."""
        leaf = self._leaves.get(ids)
        if leaf is None:
            return None
        chunk = self._group.column(leaf)
        said = chunk.statistics if chunk.is_stats_set else None
        if said is None:
            return None
        type_ = _leaf_type(self._footer.schema, ids)
        nulls = said.null_count if said.has_null_count else None
        low = high = None
        if said.has_min_max:
            low, high = _plain(said.min, type_), _plain(said.max, type_)
        return ColumnExtent(type_, self._group.num_rows, nulls, low, high)


def leaf_numbers(schema: pa.Schema) -> dict[tuple[int, ...], int]:
    """Return which of a file's leaf columns is which: their numbers, by the ids of the fields that lead to them.

    Only those that are in no list or map: of others a row has many values, or none.
    """
    number = 0
    found: dict[tuple[int, ...], int] = {}

    def walk(one: pa.Field, above: tuple[int, ...], plain: bool) -> None:
        nonlocal number
        said = one.metadata or {}
        plain = plain and FIELD_ID in said
        ids = (*above, int(said[FIELD_ID])) if plain else above
        for part, same in _parts(one.type):
            walk(part, ids, plain and same)
        if not one.type.num_fields:
            if plain:
                found[ids] = number
            number += 1

    for one in schema:
        walk(one, (), True)
    return found


def _parts(type_: pa.DataType) -> Iterator[tuple[pa.Field, bool]]:
    """Yield the fields that a type is made of, each with whether a row has one value of it."""
    if pa.types.is_struct(type_):
        yield from ((type_.field(at), True) for at in range(type_.num_fields))
    elif pa.types.is_map(type_):
        yield from ((one, False) for one in (type_.key_field, type_.item_field))
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield type_.value_field, False


def _leaf_type(schema: pa.Schema, ids: Sequence[int]) -> pa.DataType:
    fields = list(schema)
    for id_ in ids:
        type_ = next(one.type for one in fields if _id(one) == id_)
        fields = [part for part, _ in _parts(type_)]
    return type_


def _id(one: pa.Field) -> int:
    said = (one.metadata or {}).get(FIELD_ID)
    return -1 if said is None else int(said)


def _plain(value: object, type_: pa.DataType) -> Value | None:
    """Return an end of a column's values in the form that is compared here; None for one that has none."""
    if isinstance(value, datetime) and value.tzinfo is None and pa.types.is_timestamp(type_) and type_.tz is not None:
        value = value.replace(tzinfo=timezone.utc)
    return _comparable(value, type_)


def _times_of_id(id_: Value) -> int | None:
    return id_ * 1000 if isinstance(id_, int) else None
