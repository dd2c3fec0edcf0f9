"""Rows as JSON records: one object a row, made of whole columns by Arrow's kernels, without a step for each row.

    {"id":7,"price":12.50,"at":"2026-11-01T12:00:00.000000Z","tags":["a","b"],"by":{"k":1}}

| column | in JSON |
|---|---|
| boolean, int, long | `true`, `7` |
| float, double | the shortest number that a double reads as the same one; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | a number with all its digits |
| string | as it is; `"`, `\\` and control characters are escaped, nothing else |
| binary | base64, with padding |
| date | `"2026-11-01"` |
| timestamptz, timestamp | `"2026-11-01T12:00:00.123456Z"` in UTC; without the `Z` |
| list, struct | array, object |
| map | object; keys that are not strings as the text of their JSON |

Columns stand in the schema's order, without white space. What is null is left out, but for elements of lists, values
of maps, and columns with a default: those say `null`, since a record without them has the default. So equal rows give
equal bytes (`ENCODER`); another form would be another version. Spark's `to_json` writes the same but for times, whose
form depends on the session there, and floats.

Source: RFC 8259. Times outside of the years 1 to 9999 have no form here, and are refused with the column's name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.errors import missing_value_error, repeated_key_error, untold_time_error
from dlspark.tables.resolution import has_key_twice, lists_of, outside_years
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    ListOf,
    MapOf,
    Primitive,
    Schema,
    Struct,
    Type,
)

ENCODER: Final = 1
"""The version of what is written here."""
_CONTROLS: Final = "[\x00-\x1f]"
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def encode_rows(rows: pa.RecordBatch, schema: Schema) -> pa.Array:
    """Return the payload of each row: a large_binary array without nulls.

    `rows` has the columns of the schema, in any order, with its types. Raises RowRefusedError for a row without a value
    of a required column, or with a time that no record can say; it names the column.
    """
    columns = [rows.column(one.name) for one in schema.fields]
    return _object(schema.fields, columns, "", len(rows)).cast(pa.large_binary())


def _object(fields: Sequence[Field], columns: Sequence[pa.Array], path: str, count: int) -> pa.Array:
    """Return objects, of rows that are there: null columns are left out."""
    members = []
    for one, column in zip(fields, columns, strict=True):
        text = _text(_checked(one, column, path), one.type, f"{path}{one.name}")
        if one.default is not None:
            text = text.fill_null("null")  # left out it would read as the default
        members.append(pc.binary_join_element_wise(_name(one.name), text, _large("")).fill_null(""))
    # Each member begins with a comma, of which the first one is taken away: Arrow's own way to leave nulls out of a
    # join (null_handling="skip") leaves out whole rows in which all are null (seen with 26.0.1).
    joined = pc.binary_join_element_wise(_large("{"), *members, _large("}"), _large(""))
    return pc.replace_substring(joined, "{,", "{", max_replacements=1)


def _checked(one: Field, column: pa.Array, path: str) -> pa.Array:
    """Return the column in the field's type. Raises RowRefusedError where a required value is missing."""
    if one.required and column.null_count:
        row = pc.index(column.is_null(), pa.scalar(True)).as_py()
        raise missing_value_error(f"{path}{one.name}", row)
    return column


def _text(column: pa.Array, type_: Type, path: str) -> pa.Array:
    """Return the JSON of each value; null for null."""
    if isinstance(type_, Struct):
        # Of a struct that is null no field is there, so none can be missing: only the others are looked at.
        there = column.drop_null()
        parts = [pc.struct_field(there, [i]) for i in range(column.type.num_fields)]
        return _among_nulls(column, _object(type_.fields, parts, f"{path}.", len(there)))
    if isinstance(type_, ListOf):
        values = _checked(type_.element, pc.list_flatten(column), f"{path}.")
        texts = _text(values, type_.element.type, f"{path}.element").fill_null("null")
        return _joined(column, texts, "[", "]")
    if isinstance(type_, MapOf):
        there = column.drop_null()
        first, end = there.offsets[0].as_py(), there.offsets[-1].as_py()
        keys, values = there.keys.slice(first, end - first), there.items.slice(first, end - first)
        names = _text(_checked(type_.key, keys, f"{path}."), type_.key.type, f"{path}.key")
        if type_.key.type not in _QUOTED:
            names = _string(names, path)
        _check_keys(there, names, path)
        texts = _text(_checked(type_.value, values, f"{path}."), type_.value.type, f"{path}.value").fill_null("null")
        return _joined(column, pc.binary_join_element_wise(names, texts, _large(":")), "{", "}")
    return _decimal(column, path) if isinstance(type_, Decimal) else _PRIMITIVES[type_](column, path)


def _joined(column: pa.Array, texts: pa.Array, opening: str, closing: str) -> pa.Array:
    """Return one text for each list or map, of the texts of all their members."""
    there = column.drop_null()
    lengths = pc.list_value_length(there) if pa.types.is_list(column.type) else _map_lengths(there)
    joined = pc.binary_join(lists_of(lengths, texts), _large(","))
    return _among_nulls(column, pc.binary_join_element_wise(_large(opening), joined, _large(closing), _large("")))


def _check_keys(maps: pa.MapArray, names: pa.Array, path: str) -> None:
    """Raise RowRefusedError for a map with a key twice: of two members of a name readers take one."""
    if has_key_twice(_map_lengths(maps), names):
        raise repeated_key_error(path)


def _map_lengths(maps: pa.MapArray) -> pa.Array:
    offsets = maps.offsets
    return pc.subtract(offsets[1:], offsets[:-1])


def _among_nulls(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Return the texts of the values that are not null, at their rows of `column`."""
    if not column.null_count:
        return texts
    valid = column.is_valid()
    rows = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return texts.take(pc.if_else(valid, rows, pa.scalar(None, pa.int64())))


# ---------------------------------------------------------------------- single values


def _plain(column: pa.Array, path: str) -> pa.Array:
    return column.cast(pa.large_string())


def _float(column: pa.Array, path: str) -> pa.Array:
    # A float's own shortest digits are another double, and a column may be widened to one: records do not say when.
    texts = column.cast(pa.float64()).cast(pa.large_string())
    if not pc.all(pc.is_finite(column)).as_py():  # None where all are null
        for said, written in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
            texts = pc.if_else(pc.equal(texts, said), _large(written), texts)
    return texts


def _decimal(column: pa.Array, path: str) -> pa.Array:
    return column.cast(pa.large_string())


def _string(column: pa.Array, path: str) -> pa.Array:
    texts = column.cast(pa.large_string())
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROLS)).as_py():
        for code in range(0x20):
            texts = pc.replace_substring(texts, chr(code), _SHORT.get(chr(code), f"\\u{code:04x}"))
    return _quoted(texts)


def _binary(column: pa.Array, path: str) -> pa.Array:
    # Arrow has no kernel for it.
    texts = [None if one is None else base64.b64encode(one).decode() for one in column.to_pylist()]
    return _quoted(pa.array(texts, pa.large_string()))


def _date(column: pa.Array, path: str) -> pa.Array:
    _check_years(DATE, column, path)
    return _quoted(column.cast(pa.large_string()))


def _time(column: pa.Array, path: str) -> pa.Array:
    _check_years(TIMESTAMP, column, path)
    # Without the zone: Arrow makes text of times that have one thirty times slower.
    texts = pc.replace_substring(column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.large_string()), " ", "T")
    return pc.binary_join_element_wise(
        _large('"'), texts, _large("" if column.type.tz is None else "Z"), _large('"'), _large("")
    )


def _check_years(type_: Type, column: pa.Array, path: str) -> None:
    if outside_years(type_, column):
        raise untold_time_error(path)


_PRIMITIVES: Final[dict[Primitive, Callable[[pa.Array, str], pa.Array]]] = {
    BOOLEAN: _plain,
    INT: _plain,
    LONG: _plain,
    FLOAT: _float,
    DOUBLE: _float,
    STRING: _string,
    BINARY: _binary,
    DATE: _date,
    TIMESTAMP: _time,
    TIMESTAMP_NTZ: _time,
}
_QUOTED: Final = frozenset({STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ})
"""Types whose JSON is a string, so that it can be a key."""


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_large('"'), texts, _large('"'), _large(""))


def _name(name: str) -> pa.Scalar:
    """Return a column's name as it stands before its value, behind a comma."""
    return _large(f",{_string(pa.array([name]), name)[0].as_py()}:")
