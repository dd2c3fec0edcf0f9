"""Types of columns: Iceberg's JSON, Arrow's types, and what a log cannot have."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from dlspark.tables.arrow_types import FIELD_ID, arrow_schema, schema_from_arrow
from dlspark.tables.types import (
    BOOLEAN,
    INT,
    LONG,
    MAX_DEPTH,
    PRIMITIVES,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    check_schema,
    schema_from_json,
    schema_to_json,
)

NESTED = Schema(
    2,
    (
        Field(1, "id", LONG, required=True, doc="the order's number"),
        Field(2, "price", Decimal(9, 2), default="0.00"),
        Field(3, "tags", ListOf(Field(4, "element", STRING, required=True))),
        Field(5, "by", MapOf(Field(6, "key", STRING, required=True), Field(7, "value", Struct((Field(8, "n", INT),))))),
        Field(9, "at", TIMESTAMP),
        Field(10, "wall", TIMESTAMP_NTZ),
    ),
)
ICEBERG = """
{"type": "struct", "schema-id": 2, "fields": [
  {"id": 1, "name": "id", "required": true, "type": "long", "doc": "the order's number"},
  {"id": 2, "name": "price", "required": false, "type": "decimal(9, 2)",
   "initial-default": "0.00", "write-default": "0.00"},
  {"id": 3, "name": "tags", "required": false,
   "type": {"type": "list", "element-id": 4, "element": "string", "element-required": true}},
  {"id": 5, "name": "by", "required": false,
   "type": {"type": "map", "key-id": 6, "key": "string", "value-id": 7,
            "value": {"type": "struct", "fields": [{"id": 8, "name": "n", "required": false, "type": "int"}]},
            "value-required": false}},
  {"id": 9, "name": "at", "required": false, "type": "timestamptz"},
  {"id": 10, "name": "wall", "required": false, "type": "timestamp"}]}
"""


def test_a_schema_is_icebergs_json() -> None:
    assert schema_to_json(NESTED) == json.loads(ICEBERG)
    assert schema_from_json(json.loads(ICEBERG)) == NESTED
    assert sorted(NESTED.by_id()) == list(range(1, 11))
    assert NESTED.highest_id == 10


def test_a_schema_is_arrows_and_comes_back_with_ids_of_its_own() -> None:
    arrow = arrow_schema(NESTED)
    assert arrow.field("price").type == pa.decimal128(9, 2)
    assert arrow.field("at").type == pa.timestamp("us", tz="UTC")
    assert not arrow.field("id").nullable
    assert arrow.field("tags").type.value_field.metadata == {FIELD_ID: b"4"}
    back = schema_from_arrow(arrow, highest_id=100)
    assert str(back) == str(NESTED)
    assert sorted(back.by_id()) == list(range(101, 111))
    assert [one.id for one in back.fields] == list(range(101, 107)), "siblings first"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (pa.int8(), INT),
        (pa.uint16(), INT),
        (pa.uint32(), LONG),
        (pa.large_string(), STRING),
        (pa.dictionary(pa.int32(), pa.string()), STRING),
        (pa.timestamp("ms", tz="Europe/Berlin"), TIMESTAMP),
        (pa.timestamp("s"), TIMESTAMP_NTZ),
        (pa.bool_(), BOOLEAN),
        (pa.decimal256(38, 4), Decimal(38, 4)),
    ],
)
def test_narrower_types_of_arrow_are_taken(given: pa.DataType, taken: object) -> None:
    (column,) = schema_from_arrow(pa.schema([("c", given)])).fields
    assert column.type == taken


@pytest.mark.parametrize(
    "given",
    [
        pa.uint64(),
        pa.time64("us"),
        pa.duration("s"),
        pa.timestamp("ns"),
        pa.null(),
        pa.decimal256(50, 2),
        pa.struct([]),
    ],
)
def test_what_no_column_holds_is_refused_with_the_column(given: pa.DataType) -> None:
    with pytest.raises(InvalidSchemaError, match=r"c\.inner.*nothing was changed"):
        schema_from_arrow(pa.schema([("c", pa.struct([("inner", given)]))]))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ((), "one column at least"),
        ((Field(1, "a", INT), Field(2, "A", INT)), "have one name"),
        ((Field(1, "a", INT), Field(1, "b", INT)), "each given once"),
        ((Field(0, "a", INT),), "each given once"),
        ((Field(1, "", INT),), "cannot be the name"),
        ((Field(1, "a\nb", INT),), "cannot be the name"),
        ((Field(1, "a" * 256, INT),), "cannot be the name"),
        ((Field(1, "a", Decimal(39, 2)),), "1 to 38 digits"),
        ((Field(1, "a", Decimal(3, 4)),), "1 to 38 digits"),
        ((Field(1, "a", Decimal(0, 0)),), "1 to 38 digits"),
        ((Field(1, "a", Struct(())),), "struct without fields"),
        ((Field(1, "a", MapOf(Field(2, "key", INT), Field(3, "value", INT))),), "keys of a map are never null"),
        (tuple(Field(i + 1, f"c{i}", INT) for i in range(4_097)), "4097 fields"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(fields: tuple[Field, ...], says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says) as caught:
        check_schema(Schema(0, fields))
    assert caught.value.advice


def test_types_are_nested_so_far() -> None:
    one = Field(1, "c0", INT)
    for depth in range(1, MAX_DEPTH):
        one = Field(depth + 1, f"c{depth}", Struct((one,)))
    check_schema(Schema(0, (one,)))
    assert schema_from_json(schema_to_json(Schema(0, (one,)))) == Schema(0, (one,))
    deeper = Schema(0, (Field(MAX_DEPTH + 1, "top", Struct((one,))),))
    with pytest.raises(InvalidSchemaError, match="nested"):
        check_schema(deeper)
    with pytest.raises(InvalidSchemaError, match="nested"):
        schema_from_json(schema_to_json(deeper))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "1",
        '"int"',
        '{"type": "struct"}',
        '{"type": "struct", "fields": [{"id": "1", "name": "a", "required": true, "type": "int"}]}',
        '{"type": "struct", "fields": [{"id": true, "name": "a", "required": true, "type": "int"}]}',
        '{"type": "struct", "fields": [{"id": 1, "name": "a", "type": "int"}]}',
        '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": true, "type": "uuid"}]}',
        '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": true, "type": "decimal(9)"}]}',
        '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": true, "type": {"type": "list"}}]}',
        '{"type": "struct", "schema-id": -1, "fields": [{"id": 1, "name": "a", "required": true, "type": "int"}]}',
        '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": true, "type": "int", "initial-default": 1}]}',
    ],
)
def test_what_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        schema_from_json(json.loads(text))


def test_every_primitive_type_has_its_name() -> None:
    for name, type_ in PRIMITIVES.items():
        schema = Schema(0, (Field(1, "c", type_),))
        assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema
        assert schema_from_arrow(arrow_schema(schema)) == schema
        assert str(type_) == name
