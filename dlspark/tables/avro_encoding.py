"""Rows as Avro records: the single-object encoding, by fastavro.

    C3 01 | the schema's fingerprint, 8 bytes, little-endian | the datum

The fingerprint is CRC-64-AVRO of the Parsing Canonical Form of `avro_schema.avro_schema`, so a record says its version.
Arrays and maps are one block, and entries of maps keep their order; a NaN is the same one always. So equal rows give
equal bytes (`ENCODER`); another form would be another version.

Source: Apache Avro 1.11, Specification, "Single-object encoding" and "Schema Fingerprints".
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal as Number
from itertools import pairwise
from types import ModuleType
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.avro_schema import avro_names, avro_schema, bytes_of_decimal, without_logical_types
from dlspark.tables.errors import MissingExtraError, missing_value_error, repeated_key_error, untold_time_error
from dlspark.tables.resolution import outside_years
from dlspark.tables.types import (
    DATE,
    DOUBLE,
    FLOAT,
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

ENCODER: Final = 1
"""The version of what is written here."""
MARKER: Final = b"\xc3\x01"
_Member = TypeVar("_Member")


def fastavro() -> ModuleType:
    """Return the library. Raises MissingExtraError where it is not installed."""
    try:
        import fastavro
        import fastavro.schema
    except ImportError as error:
        raise MissingExtraError(
            "Avro records need the library fastavro, and it is not installed", advice="pip install 'dlspark[avro]'"
        ) from error
    return fastavro


def fingerprint(avro: object) -> bytes:
    """Return the 8 bytes by which records name an Avro schema."""
    schemas = fastavro().schema
    return bytes.fromhex(schemas.fingerprint(schemas.to_parsing_canonical_form(avro), "CRC-64-AVRO"))


def encode_rows(rows: pa.RecordBatch, schema: Schema) -> pa.Array:
    """Return the payload of each row: a large_binary array without nulls.

    `rows` has the columns of the schema, in any order, with its types. Raises RowRefusedError for a row without a value
    of a required column, with a key of a map twice, or with a time that no record can say; it names the column.
    """
    library = fastavro()
    avro = without_logical_types(avro_schema(schema))
    prefix = MARKER + fingerprint(avro)
    parsed = library.parse_schema(avro)
    columns = [_present(one, rows.column(one.name), one.name) for one in schema.fields]
    payloads = []
    for datum in _records(schema.fields, columns, len(rows)):
        written = io.BytesIO()
        written.write(prefix)
        library.schemaless_writer(written, parsed, datum)
        payloads.append(written.getvalue())
    return pa.array(payloads, pa.large_binary())


def _records(fields: Sequence[Field], columns: Sequence[Iterable[object]], count: int) -> list[dict[str, object]]:
    names = avro_names(fields)
    found = zip(*columns, strict=True) if columns else iter([()] * count)
    return [dict(zip(names, values, strict=True)) for values in found]


def _present(one: Field, column: pa.Array, path: str) -> list[object]:
    """Return a field's values. Raises RowRefusedError where a required one is missing."""
    if one.required and column.null_count:
        row = pc.index(column.is_null(), pa.scalar(True)).as_py()
        raise missing_value_error(path, row)
    if not column.null_count:
        return _values(column, one.type, path)
    # What is null has no parts, so none can be missing: only the others are looked at.
    there = iter(_values(column.drop_null(), one.type, path))
    return [next(there) if valid else None for valid in column.is_valid().to_pylist()]


def _values(column: pa.Array, type_: Type, path: str) -> list[object]:
    """Return the data of a column without nulls."""
    if isinstance(type_, Struct):
        parts = [pc.struct_field(column, [at]) for at in range(column.type.num_fields)]
        found = [_present(one, part, f"{path}.{one.name}") for one, part in zip(type_.fields, parts, strict=True)]
        return [*_records(type_.fields, found, len(column))]
    if isinstance(type_, ListOf):
        elements = _present(type_.element, pc.list_flatten(column), f"{path}.element")
        return [*_slices(elements, column)]
    if isinstance(type_, MapOf):
        return _maps(column, type_, path)
    if isinstance(type_, Decimal):
        size = bytes_of_decimal(type_.precision)
        return [_unscaled(one, type_.scale).to_bytes(size, "big", signed=True) for one in column.to_pylist()]
    if type_ in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return _times(column, type_, path)
    found = column.to_pylist()
    return [math.nan if one != one else one for one in found] if type_ in (FLOAT, DOUBLE) else found


def _slices(members: Sequence[_Member], column: pa.Array) -> list[list[_Member]]:
    """Return the members of each list or map of a column."""
    ends = column.offsets.to_pylist()
    first = ends[0] if ends else 0
    return [list(members[start - first : end - first]) for start, end in pairwise(ends)]


def _maps(column: pa.Array, type_: MapOf, path: str) -> list[object]:
    offsets = column.offsets
    first = offsets[0].as_py() if len(offsets) else 0
    size = offsets[-1].as_py() - first if len(offsets) else 0
    keys = _present(type_.key, column.keys.slice(first, size), f"{path}.key")
    values = _present(type_.value, column.items.slice(first, size), f"{path}.value")
    made: list[object] = []
    for entries in _slices([*zip(keys, values, strict=True)], column):
        if len({repr(key) for key, _ in entries}) < len(entries):
            raise repeated_key_error(path)
        in_array = type_.key.type != STRING
        made.append([{"key": key, "value": value} for key, value in entries] if in_array else dict(entries))
    return made


def _unscaled(number: Number, scale: int) -> int:
    """Return a decimal's digits as a whole number; it has no more behind the point than `scale`."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    found = int("".join(map(str, digits))) * int(10 ** (scale + exponent))
    return -found if sign else found


def _times(column: pa.Array, type_: Type, path: str) -> list[object]:
    if outside_years(type_, column):
        raise untold_time_error(path)
    found: list[object] = column.cast(pa.int32() if type_ == DATE else pa.int64()).to_pylist()
    return found
