"""Rows as Arrow records: a record is an Arrow IPC stream of one batch, and holds many rows.

The stream has the log's schema, with each field's id in its metadata (`PARQUET:field_id`) and the declaration's own id
in the schema's (`dlspark:declaration`); and nothing is compressed or kept in dictionaries. So any reader of Arrow reads
a record alone.

Arrow lets one and the same array lie in memory in many ways: with bytes under what is null, with a bitmap that says
that nothing is null, as a slice of another one. Here each has one: zeros under nulls, a bitmap only where a column may
be null and something is, offsets from zero, one NaN. So equal rows give equal bytes (`ENCODER`), for as long as Arrow's
writer frames them the same; another form would be another version.

Source: Apache Arrow, "Columnar Format", the sections on IPC.
"""

from __future__ import annotations

import math
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.arrow_types import all_nullable, arrow_schema, arrow_type
from dlspark.tables.errors import RowRefusedError, missing_value_error, repeated_key_error, untold_time_error
from dlspark.tables.resolution import has_key_twice, outside_years
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Field,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)

DECLARATION: Final = b"dlspark:declaration"
"""Key of a schema's metadata under which a record says the declaration that its ids of fields are of."""
ENCODER: Final = 1
"""The version of what is written here."""
MAX_ROWS: Final = 1_000_000
"""Rows of one record: a bit of it is a row, so a small one could give more columns' values than there is memory."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, compression=None, use_threads=False
)


def encode_rows(
    rows: pa.RecordBatch, schema: Schema, declaration: str = "", *, max_bytes: int | None = None
) -> pa.Array:
    """Return the payloads of records that hold these rows, in their order: a large_binary array without nulls.

    `declaration` is the id of what declares the schema. `rows` has the columns of the schema, in any order, with its
    types or dictionaries of them. One record holds them all, or, where that would have more than `max_bytes` or
    MAX_ROWS, two hold half of them each, and so on; a single row may have more bytes. No rows are no record. Raises
    RowRefusedError for a row without a value of a required column, or with a time that no record can say; it names the
    column.
    """
    return encode_sized(rows, schema, declaration, max_bytes=max_bytes)[0]


def encode_sized(
    rows: pa.RecordBatch,
    schema: Schema,
    declaration: str = "",
    *,
    max_bytes: int | None = None,
    max_rows: int | None = None,
) -> tuple[pa.Array, list[int]]:
    """Return the payloads as `encode_rows`, and how many rows each record holds: `max_rows` at most."""
    arrow = arrow_schema(schema)
    if declaration:
        arrow = arrow.with_metadata({DECLARATION: declaration.encode()})
    records = _records(rows, schema, arrow, max_bytes, min(max_rows or MAX_ROWS, MAX_ROWS)) if len(rows) else []
    return pa.array([payload for payload, _ in records], pa.large_binary()), [count for _, count in records]


def _records(
    given: pa.RecordBatch, schema: Schema, arrow: pa.Schema, max_bytes: int | None, max_rows: int
) -> list[tuple[bytes, int]]:
    """Return the records of rows, one of them or more, and how many rows each holds."""
    if len(given) <= max_rows:
        # Made anew of each part: a slice's buffers are those of the whole.
        columns = [_column(one, _plain(given.column(one.name), one), None, one.name) for one in schema.fields]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, arrow, options=_OPTIONS) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=arrow))
        payload = sink.getvalue().to_pybytes()
        if max_bytes is None or len(payload) <= max_bytes or len(given) == 1:
            return [(payload, len(given))]
    half = len(given) // 2
    return [
        made
        for part in (given.slice(0, half), given.slice(half))
        for made in _records(part, schema, arrow, max_bytes, max_rows)
    ]


def _plain(column: pa.Array, one: Field) -> pa.Array:
    """Return a column in the schema's type, but for what may be null. Raises RowRefusedError for another type."""
    wanted = all_nullable(arrow_type(one.type))
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise RowRefusedError(
            f"Column {one.name} is {one.type}, and these rows have {column.type}; nothing was written: {error}",
            advice="Cast it before",
        ) from error


def _column(one: Field, column: pa.Array, there: pa.Array | None, path: str) -> pa.Array:
    """Return a field's values as they lie in a record.

    `there` says where what the field is part of is not null; None: everywhere. Raises RowRefusedError where a required
    value is missing there.
    """
    missing = column.is_null() if one.required and column.null_count else None
    if missing is not None and there is not None:
        missing = pc.and_(missing, there)
    if missing is not None and pc.any(missing).as_py():
        row = pc.index(missing, True).as_py()
        raise missing_value_error(path, row)
    type_, made = one.type, arrow_type(one.type)
    if not len(column):
        return pa.array([], made)
    bitmap = None if one.required or not column.null_count else _bitmap(column.is_valid())
    if isinstance(type_, Struct):
        valid = column.is_valid()
        parts = [
            _column(part, pc.struct_field(column, [at]), valid, f"{path}.{part.name}")
            for at, part in enumerate(type_.fields)
        ]
        return pa.Array.from_buffers(made, len(column), [bitmap], children=parts)
    if isinstance(type_, ListOf):
        element = _column(type_.element, pc.list_flatten(column), None, f"{path}.element")
        offsets = _offsets(pc.list_value_length(column))
        return pa.Array.from_buffers(made, len(column), [bitmap, offsets], children=[element])
    if isinstance(type_, MapOf):
        return _map(type_, column, bitmap, path)
    return pa.Array.from_buffers(made, len(column), [bitmap, *_values(type_, column, path)])


def _map(type_: MapOf, column: pa.Array, bitmap: pa.Buffer | None, path: str) -> pa.Array:
    made = arrow_type(type_)
    lengths = pc.subtract(column.offsets[1:], column.offsets[:-1])
    if column.null_count:
        lengths = pc.if_else(column.is_valid(), lengths, 0)
    entries = column.drop_null()
    first = entries.offsets[0].as_py() if len(entries) else 0
    size = entries.offsets[-1].as_py() - first if len(entries) else 0
    key = _column(type_.key, entries.keys.slice(first, size), None, f"{path}.key")
    value = _column(type_.value, entries.items.slice(first, size), None, f"{path}.value")
    if has_key_twice(lengths, key):
        raise repeated_key_error(path)
    pairs = pa.Array.from_buffers(pa.struct([made.key_field, made.item_field]), size, [None], children=[key, value])
    return pa.Array.from_buffers(made, len(column), [bitmap, _offsets(lengths)], children=[pairs])


def _values(type_: Type, column: pa.Array, path: str) -> list[pa.Buffer]:
    """Return the buffers of values that are not nested, behind the bitmap."""
    if type_ in (STRING, BINARY):
        filled = column.fill_null(pa.scalar(b"" if type_ == BINARY else "", column.type))
        _, ends, data = filled.buffers()
        offsets = pa.Array.from_buffers(pa.int32(), len(filled) + 1, [None, ends], offset=filled.offset)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        text = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
        return [_numbers(pc.subtract(offsets, offsets[0])), text]
    filled = column.fill_null(pa.scalar(0 if type_ != BOOLEAN else False, column.type)) if column.null_count else column
    if type_ == BOOLEAN:
        return [_bitmap(filled)]
    if type_ in (FLOAT, DOUBLE):
        filled = pc.if_else(pc.is_nan(filled), pa.scalar(math.nan, filled.type), filled)
    if type_ in (DATE, TIMESTAMP, TIMESTAMP_NTZ) and outside_years(type_, filled):
        raise untold_time_error(path)
    return [_numbers(filled)]


def _numbers(column: pa.Array) -> pa.Buffer:
    """Return the bytes of numbers without nulls, of these alone."""
    width = column.type.bit_width // 8
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


def _offsets(lengths: pa.Array) -> pa.Buffer:
    ends = pc.cumulative_sum(lengths.fill_null(0).cast(pa.int64()))
    return _numbers(pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32()))


def _bitmap(flags: pa.Array) -> pa.Buffer:
    """Return the bits of booleans without nulls, with zeros behind them: what kernels leave there is any."""
    start = flags.offset // 8
    held = flags.buffers()[1].slice(start)
    bits = int.from_bytes(held.to_pybytes(), "little") >> (flags.offset % 8)
    size = len(flags)
    return pa.py_buffer((bits & ((1 << size) - 1)).to_bytes((size + 7) // 8, "little"))
