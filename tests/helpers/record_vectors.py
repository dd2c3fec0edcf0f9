"""What the vectors of docs/reference/tables.md are records of: a value of each type, alone in a column.

`python -m helpers.record_vectors`, in tests/, prints their blocks as the page has them, for a new encoder's version.
"""

from __future__ import annotations

import datetime as dt
import textwrap
from dataclasses import replace
from decimal import Decimal as Number
from itertools import count
from typing import Final

import pyarrow as pa

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn
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
    renumbered,
)

CLOCK = dt.datetime(2026, 11, 1, 12, 0, 0, 7)
VALUES: dict[str, tuple[Type, object]] = {
    "boolean": (BOOLEAN, True),
    "int": (INT, -2_147_483_648),
    "long": (LONG, 9_223_372_036_854_775_807),
    "float": (FLOAT, 0.10000000149011612),
    "double": (DOUBLE, -0.0),
    "double that is not a number": (DOUBLE, float("nan")),
    "decimal": (Decimal(9, 2), Number("-12.50")),
    "string": (STRING, 'tea "é" \n\U0001f600'),
    "empty string": (STRING, ""),
    "binary": (BINARY, b"\x00\xff"),
    "date": (DATE, dt.date(2026, 11, 1)),
    "timestamptz": (TIMESTAMP, CLOCK.replace(tzinfo=dt.timezone.utc)),
    "timestamp": (TIMESTAMP_NTZ, CLOCK),
    "struct": (Struct((Field(2, "x", INT, required=True), Field(3, "a b", STRING))), {"x": 1, "a b": None}),
    "list": (ListOf(Field(2, "element", LONG)), [1, None]),
    "map by strings": (MapOf(Field(2, "key", STRING, required=True), Field(3, "value", INT)), [("b", 1), ("a", None)]),
    "map by numbers": (MapOf(Field(2, "key", INT, required=True), Field(3, "value", INT)), [(7, 1)]),
    "null": (INT, None),
}
"""Types and values by the names that vectors have on the page."""


ID: Final = "9f0d3c5b7a2e4f6180c1d2e3f4a5b6c7"
"""The id of the declarations that vectors are of."""


def declared(format_: RecordFormat, type_: Type) -> Declaration:
    """Return what a log declares whose records have one column `c`."""
    return Declaration.of(format_, Schema(0, (Field(1, "c", type_),)))


def record(format_: RecordFormat, type_: Type, value: object) -> bytes:
    """Return the record of a value."""
    declaration = declared(format_, type_)
    rows = pa.RecordBatch.from_pylist([{"c": value}], schema=arrow_schema(declaration.current))
    (payload,) = RecordEncoder(declaration).encode(rows).payloads.to_pylist()
    assert isinstance(payload, bytes)
    return payload


def all_types() -> tuple[Declaration, pa.RecordBatch]:
    """Return a declaration with a column of each type, and two rows: the values, and nulls."""
    kinds = {name: one for name, one in VALUES.items() if name not in ("null", "empty string")}
    number = count(100).__next__
    columns = (Field(at, name, renumbered(type_, number)) for at, (name, (type_, _)) in enumerate(kinds.items(), 1))
    made = replace(Declaration.of(RecordFormat.ARROW, Schema(0, tuple(columns))), id=ID)
    rows: list[dict[str, object]] = [{name: value for name, (_, value) in kinds.items()}, dict.fromkeys(kinds)]
    return made, pa.RecordBatch.from_pylist(rows, schema=arrow_schema(made.current))


def declaration() -> Declaration:
    """Return the declaration that the vector of docs/reference/znodes.md is."""
    columns = (
        Field(1, "id", LONG, required=True, doc="the order's number"),
        Field(2, "price", Decimal(9, 2)),
        Field(3, "at", TIMESTAMP, required=True),
        Field(4, "tags", ListOf(Field(5, "element", STRING, required=True))),
        Field(6, "by", MapOf(Field(7, "key", STRING, required=True), Field(8, "value", Struct((Field(9, "n", INT),))))),
    )
    first = replace(Declaration.of(RecordFormat.JSON, Schema(0, columns), timestamp="at"), id=ID)
    return first.evolved([AddColumn(("é",), STRING, required=True, default="none")])


def text(payload: bytes) -> str:
    """Return the comment that shows what a vector says."""
    return f"# text: {payload.decode().encode('unicode_escape').decode()}"


def lines(name: str, payload: bytes) -> str:
    """Return a vector as a page has it."""
    return textwrap.fill(f"{name}: {payload.hex()}", 118, subsequent_indent="  ")


def main() -> None:
    """Print the blocks."""
    for format_ in (RecordFormat.JSON, RecordFormat.AVRO):
        print("```vectors")
        for name, (type_, value) in VALUES.items():
            payload = record(format_, type_, value)
            if format_ is RecordFormat.JSON:
                print(text(payload))
            print(lines(f"{format_.value} {name}", payload))
        print("```\n")
    made, rows = all_types()
    (payload,) = RecordEncoder(made).encode(rows).payloads.to_pylist()
    print("```vectors")
    print(lines("arrow all types", payload))
    print("```\n\n```vectors")
    data = declaration().encode()
    print(text(data))
    print(lines("declaration", data))
    print("```")


if __name__ == "__main__":
    main()
