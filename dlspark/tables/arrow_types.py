"""Columns of tables as Arrow's types and back: the form in which rows are encoded, decoded and handed to users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import pyarrow as pa

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
    InvalidSchemaError,
    ListOf,
    MapOf,
    Primitive,
    Schema,
    Struct,
    Type,
    check_schema,
)

FIELD_ID: Final = b"PARQUET:field_id"
"""Key of a field's metadata under which Parquet's writers and readers find its id."""
_ARROW: Final = {
    BOOLEAN: pa.bool_(),
    INT: pa.int32(),
    LONG: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP_NTZ: pa.timestamp("us"),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
_PRIMITIVES: Final[dict[pa.DataType, Primitive]] = {
    **{arrow: one for one, arrow in _ARROW.items()},
    pa.int8(): INT,
    pa.int16(): INT,
    pa.uint8(): INT,
    pa.uint16(): INT,
    pa.uint32(): LONG,
    pa.float16(): FLOAT,
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.large_binary(): BINARY,
    pa.binary_view(): BINARY,
    pa.date64(): DATE,
}
"""Types whose every value a column has room for."""


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return a schema as Arrow has it, with the ids of fields where Parquet looks for them."""
    return pa.schema([arrow_field(one) for one in schema.fields])


def arrow_field(one: Field) -> pa.Field:
    """Return one column, or a field of a nested type."""
    metadata = {FIELD_ID: str(one.id).encode()}
    return pa.field(one.name, arrow_type(one.type), nullable=not one.required, metadata=metadata)


def arrow_type(type_: Type) -> pa.DataType:
    """Return a column's type."""
    if isinstance(type_, Primitive):
        return _ARROW[type_]
    if isinstance(type_, Decimal):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, Struct):
        return pa.struct([arrow_field(one) for one in type_.fields])
    if isinstance(type_, ListOf):
        return pa.list_(arrow_field(type_.element))
    return pa.map_(arrow_field(type_.key), arrow_field(type_.value))


def all_nullable(type_: pa.DataType) -> pa.DataType:
    """Return a type whose fields may all be null, but for keys: casts are not to look at what is required."""
    if pa.types.is_struct(type_):
        fields = [type_.field(at) for at in range(type_.num_fields)]
        return pa.struct([pa.field(one.name, all_nullable(one.type)) for one in fields])
    if pa.types.is_map(type_):
        return pa.map_(all_nullable(type_.key_type), pa.field("value", all_nullable(type_.item_type)))
    return pa.list_(pa.field("element", all_nullable(type_.value_type))) if pa.types.is_list(type_) else type_


def schema_from_arrow(schema: pa.Schema, highest_id: int = 0, schema_id: int = 0) -> Schema:
    """Return the schema of a table that has these columns, with new ids above `highest_id`.

    Raises InvalidSchemaError for a type that no column has.
    """
    number = count(highest_id + 1).__next__
    made = Schema(schema_id, _fields(list(schema), number, ""))
    check_schema(made)
    return made


def _fields(arrow: Sequence[pa.Field], number: Callable[[], int], where: str) -> tuple[Field, ...]:
    ids = [number() for _ in arrow]  # siblings first, as Iceberg numbers
    return tuple(
        Field(id_, one.name, _type(one.type, number, f"{where}{one.name}"), not one.nullable)
        for id_, one in zip(ids, arrow, strict=True)
    )


def _type(arrow: pa.DataType, number: Callable[[], int], path: str) -> Type:
    if arrow in _PRIMITIVES:
        return _PRIMITIVES[arrow]
    if pa.types.is_dictionary(arrow) or pa.types.is_run_end_encoded(arrow):
        return _type(arrow.value_type, number, path)
    if pa.types.is_timestamp(arrow):
        if arrow.unit == "ns":
            raise InvalidSchemaError(
                f"Column {path} counts nanoseconds, and a table's times count microseconds; nothing was changed",
                advice="Cast it to timestamp('us'), or keep it as int64",
            )
        return TIMESTAMP_NTZ if arrow.tz is None else TIMESTAMP
    if pa.types.is_decimal(arrow) and arrow.scale >= 0:
        return Decimal(arrow.precision, arrow.scale)
    if pa.types.is_struct(arrow):
        return Struct(_fields([arrow.field(i) for i in range(arrow.num_fields)], number, f"{path}."))
    if pa.types.is_map(arrow):
        key, value = _fields([arrow.key_field, arrow.item_field], number, f"{path}.")
        return MapOf(
            Field(key.id, "key", key.type, required=True), Field(value.id, "value", value.type, value.required)
        )
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        (element,) = _fields([arrow.value_field], number, f"{path}.")
        return ListOf(Field(element.id, "element", element.type, element.required))
    raise InvalidSchemaError(
        f"Column {path} is {arrow}, which no column of a table can be; nothing was changed",
        advice="Cast it: unsigned 64-bit numbers to decimal(20, 0) or int64, times of day and durations to int64",
    )
