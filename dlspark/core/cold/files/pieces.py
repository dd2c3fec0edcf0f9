"""`PieceMaker`: records into pieces of a file's columns, small enough that row groups can be cut between them.

A piece is some entries, or one that is larger. How much it will take compressed is told by trying a sample of its
payloads: what the last row group compressed to says nothing of a log whose records change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.record_chain import IntArray
from dlspark.core.cold.files.columns import FLAG_ERASED, LOG, LOG_TYPE, STORED
from dlspark.core.cold.files.digests import RecordColumns, offsets_of
from dlspark.core.cold.files.typed_columns import TypedColumns, TypedPart
from dlspark.tables.declaration import Declaration

_SAMPLE_BYTES: Final = 64 << 10
_ROW_BYTES: Final = 2
"""What the numbers of a record take compressed, about."""
_ERASED: Final = "the record was erased"


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of some entries, as records and as rows.

    Args:
        records: as they are digested.
        rows: the file's columns.
        counts: rows of each record; None: one each.
        raw_bytes: of the rows, not compressed.
        expected_bytes: of the rows, compressed.
        erased: records whose bytes are gone.
    """

    records: RecordColumns
    rows: pa.RecordBatch
    counts: IntArray | None
    raw_bytes: int
    expected_bytes: float
    erased: int


class PieceMaker:
    """How do records become columns of a file?

    Args:
        schema: the file's columns.
        log: the log's name.
        declaration: what it says of its records; None: nothing.
        target_bytes: of payloads in a piece; an entry that has more is a piece alone.
    """

    def __init__(self, schema: pa.Schema, log: str, declaration: Declaration | None, target_bytes: int) -> None:
        self._schema = schema
        self._log = log
        self._typed = None if declaration is None else TypedColumns(declaration)
        self._target = target_bytes
        self._codec = pa.Codec("zstd", compression_level=1)

    def cut(self, records: RecordColumns) -> Iterator[Piece]:
        """Yield pieces of records of one segment, cut between entries."""
        if not len(records):
            return
        ends = offsets_of(records.value)[1:] - offsets_of(records.value)[0]
        changes = np.append(np.flatnonzero(records.entry[1:] != records.entry[:-1]) + 1, len(records))
        first = 0
        while first < len(records):
            before = int(ends[first - 1]) if first else 0
            fits = int(np.searchsorted(ends, before + self._target, side="right"))
            at = int(np.searchsorted(changes, fits, side="right")) - 1
            after = (
                int(changes[at])
                if at >= 0 and changes[at] > first
                else int(changes[np.searchsorted(changes, first, side="right")])
            )
            yield self._piece(records.sliced(first, after))
            first = after

    def _piece(self, records: RecordColumns) -> Piece:
        typed = None if self._typed is None else self._typed.of(records.value, records.transaction_id)
        rows = self._rows(records, typed)
        data = rows.drop_columns([LOG]).nbytes
        return Piece(
            records=records,
            rows=rows,
            counts=None if typed is None else typed.counts,
            raw_bytes=rows.nbytes,
            expected_bytes=self._sampled(records) * data + _ROW_BYTES * len(rows),
            erased=records.value.null_count,
        )

    def _rows(self, records: RecordColumns, typed: TypedPart | None) -> pa.RecordBatch:
        """Return the file's columns of records; `typed` are their rows, None where each is one without a schema."""
        count = len(records)
        errors = pa.nulls(count, pa.string()) if typed is None else typed.errors
        value, flags = records.value, records.flags
        record = np.arange(count) if typed is None else typed.record
        number = np.zeros(count, np.int64) if typed is None else typed.number
        version = np.full(count, STORED, np.int64) if typed is None else typed.version
        if value.null_count:
            erased = value.is_null().to_numpy(zero_copy_only=False)
            flags = np.where(erased, flags | FLAG_ERASED, flags)
            errors = pc.if_else(pa.array(erased[record]), _ERASED, errors)
        if typed is not None:
            # A record of many rows has its bytes in the first of them; those that come back have none.
            kept = (version[record] == STORED) & (number <= 0)
            value = value if kept.all() else value.take(pa.array(record, mask=~kept))
        log = _log_column(records, self._log, record, number, flags, version)
        columns = [] if typed is None else typed.rows.columns
        return pa.RecordBatch.from_arrays([log, *columns, value, errors], schema=self._schema)

    def _sampled(self, records: RecordColumns) -> float:
        """Return to what part of their size payloads compress, by a sample from their middle."""
        data = records.value.buffers()[2]
        offsets = offsets_of(records.value)
        first, last = int(offsets[0]), int(offsets[-1])
        if data is None or last == first:
            return 1.0
        start = max(first, (first + last - _SAMPLE_BYTES) // 2)
        sample = data.slice(start, min(_SAMPLE_BYTES, last - start))
        return min(len(self._codec.compress(sample)) / len(sample), 1.0)


def _log_column(
    records: RecordColumns, log: str, record: IntArray, number: IntArray, flags: IntArray, version: IntArray
) -> pa.StructArray:
    """Return where each row's record is; `record` has the index of each row's record, `number` its number in it."""
    parts = [
        pa.repeat(pa.scalar(log, pa.string()), len(record)),
        pa.array(records.segment[record]),
        pa.array(records.entry[record]),
        pa.array(records.slot[record]),
        pa.array(number.astype(np.int32)),
        pa.array(records.sequence_id[record]),
        pa.array(records.transaction_id[record]),
        pa.array(flags[record].astype(np.int32)),
        pa.array(version[record].astype(np.int32)),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(LOG_TYPE))
