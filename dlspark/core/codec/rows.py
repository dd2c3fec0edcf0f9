"""The columns in which records leave the core: one schema for the reader's batches and for Spark's rows.

`timestamp` is the transaction id read as milliseconds since the epoch; null where it is no time that the type can hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dlspark.core.codec.entries import DecodedBatch
from dlspark.core.codec.records import LogRecord

ROW_SCHEMA = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("sequence_id", pa.int64(), nullable=False),
        pa.field("transaction_id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary(), nullable=False),
    ]
)

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def rows(log: str, batch: DecodedBatch) -> pa.RecordBatch:
    """`batch` with the columns of ROW_SCHEMA."""
    count = len(batch)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(log, pa.string()), count),
            pa.array(np.full(count, batch.lssn, np.int64)),
            pa.array(batch.entry_id),
            pa.array(batch.slot_id),
            pa.array(batch.sequence_id),
            pa.array(batch.txid),
            timestamps(batch.txid),
            batch.payload,
        ],
        schema=ROW_SCHEMA,
    )


def record_rows(log: str, records: Sequence[LogRecord]) -> pa.RecordBatch:
    """Single records with the columns of ROW_SCHEMA."""
    txids = np.array([record.txid for record in records], np.int64)
    columns = [
        pa.array([log] * len(records), pa.string()),
        *(pa.array([record.dlsn[i] for record in records], pa.int64()) for i in range(3)),
        pa.array([record.sequence_id for record in records], pa.int64()),
        pa.array(txids),
        timestamps(txids),
        pa.array([record.payload for record in records], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def timestamps(txids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Transaction ids as times."""
    beyond = (txids > MAX_TIMESTAMP_MS) | (txids < 0)
    micros = np.where(beyond, 0, txids) * 1000
    return pa.array(micros, type=pa.int64(), mask=beyond).cast(pa.timestamp("us", tz="UTC"))
