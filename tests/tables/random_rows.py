"""Random schemas, and rows that they have: the ends of each type, every plane of Unicode, nulls at every depth."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal as Number
from itertools import count
from random import Random

from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    PRIMITIVES,
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

NAMES = ("id", "ID2", "naïve", 'q"uote', "back\\slash", "a b", "dot.ted", "表", "😀", "null", "{}", "very_long_" * 9)
CHARACTERS = 'ab"\\/\x00\x08\n\r\t\x1f\x7fäß\u2028\ufeff\uffff中😀\U0010ffff{}[]:,'
_EPOCH = dt.datetime(1970, 1, 1)
_ENDS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in microseconds since the epoch."""


def random_schema(rng: Random, *, columns: int = 4, maps: bool = True) -> Schema:
    """Return a schema of up to so many columns."""
    names = rng.sample(NAMES, rng.randint(1, columns))
    fields = tuple(
        Field(0, name, random_type(rng, rng.randint(0, 3), maps=maps), required=rng.random() < 0.3) for name in names
    )
    whole = renumbered(Struct(fields), count(1).__next__)
    assert isinstance(whole, Struct)
    return Schema(0, whole.fields)


def random_type(rng: Random, depth: int, *, maps: bool = True) -> Type:
    """Return a type, nested up to so deep. Its fields have no ids of their own."""
    if depth == 0:
        if rng.random() < 0.15:
            precision = rng.choice((1, 9, 18, 38))
            return Decimal(precision, rng.randint(0, precision))
        return rng.choice(list(PRIMITIVES.values()))
    inner = Field(0, "element", random_type(rng, depth - 1, maps=maps), required=rng.random() < 0.3)
    kind = rng.choice(("struct", "list", "map") if maps else ("struct", "list"))
    if kind == "list":
        return ListOf(inner)
    if kind == "map":
        return MapOf(Field(0, "key", random_key(rng), required=True), Field(0, "value", inner.type, inner.required))
    return Struct(
        tuple(
            Field(0, name, random_type(rng, rng.randint(0, depth - 1), maps=maps), required=rng.random() < 0.3)
            for name in rng.sample(NAMES, rng.randint(1, 3))
        )
    )


def random_key(rng: Random) -> Type:
    """Return the type of a map's keys: mostly a plain one."""
    others: tuple[Type, ...] = (
        *PRIMITIVES.values(),
        Decimal(9, 2),
        Struct((Field(0, "x", INT), Field(0, 'q"', STRING))),
        ListOf(Field(0, "element", STRING, required=True)),
    )
    return rng.choice((STRING, INT, LONG, DATE, BOOLEAN) if rng.random() < 0.6 else others)


def random_row(rng: Random, schema: Schema) -> dict[str, object]:
    """Return a row of a schema."""
    return {one.name: random_field(rng, one) for one in schema.fields}


def random_field(rng: Random, one: Field) -> object:
    """Return a value of a field, or None where it may be null."""
    return None if not one.required and rng.random() < 0.2 else random_value(rng, one.type)


def random_value(rng: Random, type_: Type) -> object:
    """Return a value, as Arrow takes it from Python."""
    if isinstance(type_, Decimal):
        digits = rng.choice((0, 1, 10**type_.precision - 1, rng.randrange(10**type_.precision)))
        return Number(f"{rng.choice((1, -1)) * digits}e-{type_.scale}")
    if isinstance(type_, Struct):
        return {one.name: random_field(rng, one) for one in type_.fields}
    if isinstance(type_, ListOf):
        return [random_field(rng, type_.element) for _ in range(rng.randint(0, 3))]
    if isinstance(type_, MapOf):
        drawn = [random_value(rng, type_.key.type) for _ in range(rng.randint(0, 3))]
        keys = {repr(one): one for one in drawn}.values()
        return [(key, random_field(rng, type_.value)) for key in keys]
    return _PRIMITIVE[type_](rng)


def _text(rng: Random) -> str:
    return "".join(rng.choices(CHARACTERS, k=rng.choice((0, 1, 2, 7, 30))))


def _bits(rng: Random, size: int) -> int:
    return rng.choice(
        (0, -1, 1, -(1 << (size - 1)), (1 << (size - 1)) - 1, rng.randrange(1 << size) - (1 << (size - 1)))
    )


def _double(rng: Random) -> float:
    said = (0.0, -0.0, 1.0, 0.1, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 2.0**53 + 2)
    found = struct.unpack("<d", rng.randbytes(8))[0]
    return rng.choice((*said, found, rng.random()))


def _single(rng: Random) -> float:
    return float(struct.unpack("<f", rng.randbytes(4))[0]) if rng.random() < 0.5 else rng.choice((0.5, -0.0, math.nan))


def _moment(rng: Random) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=rng.choice((*_ENDS_US, 0, -1, rng.randint(*_ENDS_US))))


_PRIMITIVE: dict[Type, Callable[[Random], object]] = {
    BOOLEAN: lambda rng: rng.random() < 0.5,
    INT: lambda rng: _bits(rng, 32),
    LONG: lambda rng: _bits(rng, 64),
    FLOAT: _single,
    DOUBLE: _double,
    STRING: _text,
    BINARY: lambda rng: rng.randbytes(rng.choice((0, 1, 2, 3, 40))),
    DATE: lambda rng: _moment(rng).date(),
    TIMESTAMP_NTZ: _moment,
    TIMESTAMP: lambda rng: _moment(rng).replace(tzinfo=dt.timezone.utc),
}
