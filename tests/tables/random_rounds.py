"""Random rows to records and back, with evolution in between: `python random_rounds.py FORMAT SEED ROWS`.

A round draws the life of a schema, writes rows by each of its versions, and reads them as rows of the current version
and of an older one. Each row is then what evolution makes of it (`expected_row`), with the same values and signs; or an
error says which column keeps newer records from being rows of an older version. Rows with a value that its column has
no room for are refused by the column's name. What is printed is how many rows there were, by what became of them.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pyarrow as pa
from random_evolution import expected_row, random_life
from random_rows import random_row

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat, SchemaChangedError
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.types import DATE, INT, LONG, Decimal, Schema

Written: TypeAlias = "list[tuple[Schema, list[dict[str, object]]]]"
"""Rows by the versions that they were written by."""
OVERFLOWING = {INT: pa.int64(), LONG: pa.uint64()}


def run(format_: RecordFormat, seed: int, how_many: int) -> Counter[str]:
    """Write and read so many rows. Raises AssertionError for the first that came back as another one."""
    rng, counted = Random(f"{format_.value} {seed}"), Counter[str]()
    while counted["rows"] < how_many:
        declaration = random_life(rng, format_, steps=rng.randint(0, 6))
        per_version = rng.choice((1, 20, 200, 500)) if how_many > 2_000 else 10
        payloads: list[bytes] = []
        written: Written = []
        for schema in declaration.schemas:
            rows = pa.RecordBatch.from_pylist(
                [random_row(rng, schema) for _ in range(per_version)], schema=arrow_schema(schema)
            )
            encoder = RecordEncoder(_until(declaration, schema), max_bytes=rng.choice((None, None, 5_000)))
            made = encoder.encode(_as_given(rng, rows)).payloads
            assert made.equals(encoder.encode(rows).payloads), "equal rows, equal bytes"
            payloads += made.to_pylist()
            written.append((schema, rows.to_pylist()))
            counted["rows"] += len(rows)
            counted["refused"] += _refused(rng, encoder, rows)
        array = pa.array(payloads, rng.choice((pa.binary(), pa.large_binary())))
        _compare(RecordDecoder(declaration).decode(array), written, declaration.current)
        counted["read as the current version"] += sum(len(rows) for _, rows in written)
        older = rng.choice(declaration.schemas)
        try:
            decoder = RecordDecoder(declaration, older)
        except SchemaChangedError as error:
            _says(error, r"Column .+ (was dropped|was widened to|may be null).*nothing more was read")
            counted["not read as an older version, and the column named"] += sum(len(rows) for _, rows in written)
            continue
        _compare(decoder.decode(array), written, older)
        counted["read as an older version"] += sum(len(rows) for _, rows in written)
    return counted


def _until(declaration: Declaration, schema: Schema) -> Declaration:
    """Return the declaration as it was when a schema was the current one."""
    return replace(declaration, schemas=declaration.schemas[: schema.id + 1])


def _compare(found: DecodedRows, written: Written, target: Schema) -> None:
    expected = [expected_row(row, schema.fields, target.fields) for schema, rows in written for row in rows]
    assert found.errors.null_count == len(expected), (str(target), found.errors.drop_null()[:1])
    found.rows.validate(full=True)
    wanted = pa.RecordBatch.from_pylist(expected, schema=found.rows.schema)
    if repr(found.rows.to_pylist()) != repr(wanted.to_pylist()):
        for one, other in zip(found.rows.to_pylist(), wanted.to_pylist(), strict=True):
            assert repr(one) == repr(other), str(target)


def _as_given(rng: Random, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as another caller may give them: columns in another order and case, as a slice, with dictionaries,
    large and view types."""
    around = pa.Table.from_batches([rows.slice(0, 1), rows, rows.slice(0, 1)]).combine_chunks().to_batches()[0]
    sliced = around.slice(1, len(rows))
    order = rng.sample(range(rows.num_columns), rows.num_columns)
    others: dict[pa.DataType, list[Callable[[pa.Array], pa.Array]]] = {
        pa.string(): [
            lambda column: column.cast(pa.large_string()),
            lambda column: column.cast(pa.string_view()),
            lambda column: column.dictionary_encode(),
        ],
        pa.binary(): [lambda column: column.cast(pa.large_binary()), lambda column: column.cast(pa.binary_view())],
        pa.int64(): [lambda column: column.dictionary_encode()],
    }
    columns, names = [], []
    for at in order:
        column, name = sliced.column(at), rows.schema.names[at]
        same: list[Callable[[pa.Array], pa.Array]] = [lambda column: column]
        columns.append(rng.choice(same + others.get(column.type, []))(column))
        names.append(rng.choice((name, name.upper())) if name.upper().casefold() == name.casefold() else name)
    return pa.RecordBatch.from_arrays(columns, names)


def _refused(rng: Random, encoder: RecordEncoder, rows: pa.RecordBatch) -> int:
    """Give rows with a value that a column has no room for, or without one that it needs: return how many."""
    schema = encoder.declaration.current
    one = rng.choice(schema.fields)
    at = rows.schema.get_field_index(one.name)
    if one.type in OVERFLOWING:
        wide = OVERFLOWING[one.type]
        column = pa.array([2**31 if one.type == INT else 2**63] * len(rows), wide)
    elif isinstance(one.type, Decimal) and one.type.precision < 38:
        column = pa.array([10 ** (one.type.precision - one.type.scale)] * len(rows), pa.decimal128(38, 0))
    elif one.type == DATE:
        column = pa.array([rng.choice((-719_163, 2_932_897))] * len(rows), pa.date32())
    elif one.required:
        column = pa.nulls(len(rows), rows.column(at).type)
    else:
        return 0
    try:
        encoder.encode(rows.set_column(at, pa.field(one.name, column.type), column))
    except RowRefusedError as error:
        _says(error, rf"Column {re.escape(one.name)} .*nothing was written")
        return len(rows)
    raise AssertionError(f"{one.name} {one.type}: {column[:1]} was written")


def _says(error: Exception, pattern: str) -> None:
    assert re.search(pattern, str(error), re.DOTALL), str(error)


def main() -> None:
    """Print what became of the rows."""
    format_, seed, how_many = RecordFormat(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    begun = time.monotonic()
    counted = run(format_, seed, how_many)
    said = ", ".join(f"{what}: {number:,}" for what, number in counted.items())
    print(f"{format_.value}, seed {seed}: {said}; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
