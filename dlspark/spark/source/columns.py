"""Decoded entries as the record batches that Spark wants: the columns of the core, nullable, a few megabytes each.

`timestamp` is the transaction id read as milliseconds since the epoch. An id outside the years 1970 to 9999 (they are
free numbers) has no timestamp: null, not an overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from dlspark.core.codec.entries import DecodedBatch
from dlspark.core.codec.rows import ROW_SCHEMA, timestamps

TARGET_BATCH_BYTES = 4 << 20
"""Size of one record batch. Spark's transport is flat from 2 to 10 MB and slower beyond."""

_FIXED_BYTES_PER_ROW = 7 * 8 + 8

TYPES: dict[str, pa.DataType] = {field.name: field.type for field in ROW_SCHEMA}


def record_batches(rows: DecodedBatch, log: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns `names` of `rows`, which are of `log`, in record batches of about TARGET_BATCH_BYTES.

    Without names the batches have no column, and as many rows: `isEmpty()`, `EXISTS` and `limit(5).count()` of the SQL
    catalog ask for that. Arrow counts the rows of what it is given by its columns, so there is one at first.
    """
    count = len(rows)
    if count == 0:
        return
    made = names or ["slot"]
    batch = pa.RecordBatch.from_arrays(
        [_column(name, rows, log) for name in made],
        schema=pa.schema([pa.field(name, TYPES[name]) for name in made]),
    ).select(list(names))
    per_row = _FIXED_BYTES_PER_ROW + rows.payload.nbytes // count
    step = max(1, TARGET_BATCH_BYTES // per_row)
    # Equal pieces: no small rest at the end.
    pieces = -(-count // step)
    for i in range(pieces):
        start = count * i // pieces
        yield batch.slice(start, count * (i + 1) // pieces - start)


def select(rows: DecodedBatch, first: int, end: int) -> DecodedBatch:
    """Rows `first` to `end` - 1, without copying."""
    return replace(
        rows,
        entry_id=rows.entry_id[first:end],
        slot_id=rows.slot_id[first:end],
        txid=rows.txid[first:end],
        position=rows.position[first:end],
        sequence_id=rows.sequence_id[first:end],
        flags=rows.flags[first:end],
        payload=rows.payload.slice(first, end - first),
    )


def _column(name: str, rows: DecodedBatch, log: str) -> pa.Array:
    if name == "log":
        return pa.repeat(pa.scalar(log, TYPES["log"]), len(rows))
    if name == "segment":
        return pa.repeat(pa.scalar(rows.lssn, TYPES["segment"]), len(rows))
    if name == "timestamp":
        return timestamps(rows.txid)
    if name == "value":
        return rows.payload if rows.payload.type.equals(TYPES["value"]) else rows.payload.cast(TYPES["value"])
    source = {
        "entry": rows.entry_id,
        "slot": rows.slot_id,
        "sequence_id": rows.sequence_id,
        "transaction_id": rows.txid,
    }[name]
    return pa.array(source, type=pa.int64())
