"""Rows as JSON records: their bytes, and what cannot be said."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal as Number

import pyarrow as pa
import pytest

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.json_decoding import decode_rows
from dlspark.tables.json_encoding import encode_rows
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
    Schema,
    Struct,
    Type,
)


def encoded(schema: Schema, rows: list[dict[str, object]]) -> list[str]:
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    found = encode_rows(batch, schema)
    assert found.type == pa.large_binary()
    assert found.null_count == 0
    return [one.decode() for one in found.to_pylist()]


def value(type_: Type, *values: object) -> list[str]:
    """The JSON of single values."""
    schema = Schema(0, (Field(1, "c", type_),))
    return [one.removeprefix('{"c":').removesuffix("}") for one in encoded(schema, [{"c": one} for one in values])]


ELEMENT = Field(2, "element", LONG)
POINT = Struct((Field(2, "x", INT, required=True), Field(3, "y", STRING)))


@pytest.mark.parametrize(
    ("type_", "given", "written"),
    [
        (BOOLEAN, [True, False], ["true", "false"]),
        (INT, [0, -(2**31), 2**31 - 1], ["0", "-2147483648", "2147483647"]),
        (LONG, [-(2**63), 2**63 - 1], ["-9223372036854775808", "9223372036854775807"]),
        (DOUBLE, [1.0, 0.1, 1e20, 5e-324, -0.0], ["1", "0.1", "1e+20", "5e-324", "-0"]),
        (DOUBLE, [math.nan, math.inf, -math.inf], ['"NaN"', '"Infinity"', '"-Infinity"']),
        (FLOAT, [0.5, 0.1, 3.4028234663852886e38], ["0.5", "0.10000000149011612", "3.4028234663852886e+38"]),
        (Decimal(9, 2), [Number("12.50"), Number("-0.01"), Number(0)], ["12.50", "-0.01", "0.00"]),
        (Decimal(38, 0), [Number(10**38 - 1)], ["9" * 38]),
        (
            STRING,
            ["", 'a"b\\c', "\n\t\x00\x1f/", "ä😀\u2028"],
            ['""', '"a\\"b\\\\c"', '"\\n\\t\\u0000\\u001f/"', '"ä😀\u2028"'],
        ),
        (BINARY, [b"", b"\x00\xff"], ['""', '"AP8="']),
        (DATE, [dt.date(1, 1, 1), dt.date(9999, 12, 31)], ['"0001-01-01"', '"9999-12-31"']),
        (
            TIMESTAMP,
            [dt.datetime(2026, 11, 1, 12, 0, 0, 7, dt.timezone.utc), dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)],
            ['"2026-11-01T12:00:00.000007Z"', '"0001-01-01T00:00:00.000000Z"'],
        ),
        (TIMESTAMP_NTZ, [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)], ['"1969-12-31T23:59:59.999999"']),
        (ListOf(ELEMENT), [[], [1, None, 2], [None]], ["[]", "[1,null,2]", "[null]"]),
        (POINT, [{"x": 1, "y": None}, {"x": 2, "y": "b"}], ['{"x":1}', '{"x":2,"y":"b"}']),
        (
            MapOf(Field(2, "key", STRING, required=True), Field(3, "value", INT)),
            [[], [('a"', 1), ("b", None)]],
            ["{}", '{"a\\"":1,"b":null}'],
        ),
        (
            MapOf(Field(2, "key", LONG, required=True), Field(3, "value", ListOf(Field(4, "element", INT)))),
            [[(7, [1])]],
            ['{"7":[1]}'],
        ),
        (ListOf(Field(4, "element", POINT)), [[None, {"x": 3, "y": ""}]], ['[null,{"x":3,"y":""}]']),
        (
            Struct((Field(2, "p", POINT), Field(5, "l", ListOf(Field(6, "element", POINT))))),
            [{"p": None, "l": None}],
            ["{}"],
        ),
    ],
)
def test_a_value_has_one_form_and_json_reads_it(type_: Type, given: list[object], written: list[str]) -> None:
    assert value(type_, *given) == written
    for text in written:
        json.loads(text)
    schema = Schema(0, (Field(1, "c", type_),))
    among_nulls: list[dict[str, object]] = [{"c": None}, *({"c": one} for one in given), {"c": None}]
    assert encoded(schema, among_nulls) == ["{}", *(f'{{"c":{text}}}' for text in written), "{}"]
    batch = pa.RecordBatch.from_pylist([{"c": None}, *among_nulls], schema=arrow_schema(schema)).slice(1)
    assert [one.decode() for one in encode_rows(batch, schema).to_pylist()] == encoded(schema, among_nulls), (
        "of a slice"
    )


def test_columns_stand_in_the_schemas_order_and_a_default_is_not_taken_for_null() -> None:
    schema = Schema(0, (Field(1, 'b"', INT), Field(2, "a", INT, default=5), Field(3, "c", STRING)))
    rows = pa.RecordBatch.from_pydict(
        {"c": ["x", None], "a": pa.array([None, 1], pa.int32()), 'b"': pa.array([1, None], pa.int32())}
    )
    assert encode_rows(rows, schema).to_pylist() == [b'{"b\\"":1,"a":null,"c":"x"}', b'{"a":1}']
    assert encoded(schema, []) == []


@pytest.mark.parametrize(
    ("type_", "required", "row", "says"),
    [
        (INT, True, None, r"Column c is NOT NULL, and row 1"),
        (POINT, False, {"x": None, "y": "a"}, r"Column c\.x is NOT NULL"),
        (ListOf(Field(2, "element", INT, required=True)), False, [1, None], r"Column c\.element is NOT NULL"),
    ],
)
def test_a_missing_value_of_a_required_column_is_refused(type_: Type, required: bool, row: object, says: str) -> None:
    loose = Schema(0, (Field(1, "c", _loose(type_)),))
    strict = Schema(0, (Field(1, "c", type_, required=required),))
    good = {"x": 1, "y": None} if isinstance(type_, Struct) else [1] if isinstance(type_, ListOf) else 1
    batch = pa.RecordBatch.from_pylist([{"c": good}, {"c": row}], schema=arrow_schema(loose))
    with pytest.raises(RowRefusedError, match=says) as caught:
        encode_rows(batch, strict)
    assert "nothing was written" in str(caught.value)


def _loose(type_: Type) -> Type:
    if isinstance(type_, Struct):
        return Struct(tuple(Field(one.id, one.name, one.type) for one in type_.fields))
    return ListOf(Field(2, "element", INT)) if isinstance(type_, ListOf) else type_


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_a_time_that_no_record_can_say_is_refused(days: int) -> None:
    for type_, array in (
        (DATE, pa.array([days], pa.date32())),
        (TIMESTAMP, pa.array([days * 86_400_000_000], pa.timestamp("us", tz="UTC"))),
    ):
        with pytest.raises(RowRefusedError, match=r"Column when .* years 1 to 9999"):
            encode_rows(pa.RecordBatch.from_arrays([array], ["when"]), Schema(0, (Field(1, "when", type_),)))


@pytest.mark.parametrize(
    ("key", "given", "written"),
    [
        (
            DOUBLE,
            [(float("nan"), 1), (float("-inf"), 2), (-0.0, 3), (1.0, 4)],
            r'{"\"NaN\"":1,"\"-Infinity\"":2,"-0":3,"1":4}',
        ),
        (
            Struct((Field(4, "x", INT), Field(5, "y", STRING))),
            [({"x": 1, "y": 'a"'}, 1)],
            r'{"{\"x\":1,\"y\":\"a\\\"\"}":1}',
        ),
        (ListOf(Field(4, "element", STRING)), [(["a"], 1), ([], 2)], r'{"[\"a\"]":1,"[]":2}'),
    ],
)
def test_keys_that_are_not_strings_are_the_text_of_their_json(key: Type, given: list[object], written: str) -> None:
    type_ = MapOf(Field(2, "key", key, required=True), Field(3, "value", INT))
    assert value(type_, given) == [written]
    schema = Schema(0, (Field(1, "c", type_),))
    rows = pa.RecordBatch.from_pylist([{"c": given}], schema=arrow_schema(schema))
    found = decode_rows(encode_rows(rows, schema), schema)
    assert found.errors.to_pylist() == [None]
    assert repr(found.rows.to_pylist()) == repr(rows.to_pylist())


def test_a_map_with_a_key_twice_is_refused() -> None:
    """A reader would take one of its two values."""
    schema = Schema(0, (Field(1, "c", MapOf(Field(2, "key", INT, required=True), Field(3, "value", INT))),))
    rows = pa.RecordBatch.from_pylist([{"c": [(2, 1)]}, {"c": [(1, 1), (2, 2), (1, 3)]}], schema=arrow_schema(schema))
    with pytest.raises(RowRefusedError, match="Column c has a map with a key twice; nothing was written"):
        encode_rows(rows, schema)
    assert len(encode_rows(rows.slice(0, 1), schema)) == 1
