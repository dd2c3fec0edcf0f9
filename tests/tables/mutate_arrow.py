"""Read Arrow records with changed bytes, in a process of its own: `python mutate_arrow.py SEED HOW_MANY`.

Every value of every row is used afterwards. The answer is how many records were refused, and how many were read. The
last record before a crash is in the file that the third argument names.
"""

from __future__ import annotations

import faulthandler
import resource
import struct
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
from random_rows import random_row, random_schema

from dlspark.tables.arrow_decoding import ArrowReader
from dlspark.tables.arrow_encoding import encode_rows
from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.declaration import Declaration, RecordFormat

MEMORY_BYTES = 4 << 30
INTERESTING = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, 1 << 62)


def mutated(rng: Random, payload: bytes, other: bytes) -> bytes:
    """Return a record that was changed a little: bits, numbers of 1 to 8 bytes, parts that move or are missing."""
    made = bytearray(payload)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(made))
        what = rng.randrange(6)
        if what == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            made[at] = rng.randrange(256)
        elif what in (2, 3):
            size = rng.choice((1, 2, 4, 8))
            at -= at % size
            number = rng.choice(INTERESTING) + rng.choice((-1, 0, 0, 1))
            made[at : at + size] = struct.pack("<Q", number & (1 << 64) - 1)[:size]
        elif what == 4:
            size, source = rng.choice((4, 8, 16, 64)), rng.randrange(len(other))
            made[at : at + size] = other[source : source + size]
        else:
            del made[at : at + rng.choice((1, 4, 8, 100))]
        if not made:
            break
    return bytes(made)


def foreign(rows: pa.RecordBatch) -> bytes:
    """Return a record as others write it: without ids, with large offsets, with room behind what is used."""
    larger = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    columns = []
    for one in rows.columns:
        as_list = pa.types.is_list(one.type)
        columns.append(one.cast(pa.large_list(one.type.value_field) if as_list else larger.get(one.type, one.type)))
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays(columns, rows.schema.names)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, max(1, len(rows) - 1)))
    payload = sink.getvalue().to_pybytes()
    assert isinstance(payload, bytes)
    return payload


def main(seed: int, how_many: int, last: Path | None) -> None:
    """Read so many records."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    rng = Random(seed)
    refused = read = 0
    while refused + read < how_many:
        schema = random_schema(rng)
        reader = ArrowReader(Declaration.of(RecordFormat.ARROW, schema))
        payloads: list[bytes] = []
        for _ in range(2):
            pylist = [random_row(rng, schema) for _ in range(rng.choice((1, 5, 30)))]
            rows = pa.RecordBatch.from_pylist(pylist, schema=arrow_schema(schema))
            payloads += [foreign(rows)] if rng.random() < 0.3 else encode_rows(rows, schema).to_pylist()
        for _ in range(min(100, how_many - refused - read)):
            payload = mutated(rng, *payloads)
            if last is not None:
                last.write_bytes(payload)
            found = reader.decode(pa.array([payload], pa.binary()))
            found.rows.validate(full=True)
            repr(found.rows.to_pylist())
            assert found.counts is not None
            assert len(found.errors) == found.rows.num_rows == found.counts[0].as_py()
            if found.errors.null_count < len(found.errors):
                refused += 1
            else:
                read += 1
    print(refused, read)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
