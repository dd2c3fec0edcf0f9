"""`RecordSelection`: which records of a log are to be erased? Asked of records, as they were written.

What is meant is said by a condition in SQL (`dlspark.tables.conditions`: no code, nothing is called), by positions, or
both; and bounded by a transaction id. Where the log declares a schema, a condition is on its columns, and on `_log`;
where it does not, on the columns that records have (`ROW_SCHEMA`). The condition is asked of rows that are decoded from
the records by the declaration that the erasure was planned with, whatever columns a file has: so renamed columns,
older versions and files from before the declaration are all asked the same.

A record of Arrow's format with many rows is meant where one of its rows is: it is erased whole.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import ROW_SCHEMA, timestamps
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.conditions import condition
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.typed_rows import ERROR, LOG, TypedRows
from metadata.foundation.errors import CallerError

_ROW: str = "__record"
"""The column that says which record a row is of, while the condition is asked."""


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """Which records are to be erased? At least one of the first two is given; all that are given hold.

    Args:
        where: a condition, as after WHERE in SQL; "": none.
        dlsns: positions; empty: any.
        before_txid: only records with a transaction id below it; None: any.
    """

    where: str = ""
    dlsns: tuple[DLSN, ...] = ()
    before_txid: int | None = None

    def __post_init__(self) -> None:
        if not self.where.strip() and not self.dlsns:
            raise CallerError(
                "it is not said which records are to be erased; nothing was done",
                advice="Give a condition (--where), or positions (--dlsn)",
            )


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """Which of some records are meant?

    Args:
        chosen: one truth value for each record; of those that are erased already always False.
        misfits: records that do not fit the schema, of which the condition cannot be asked.
    """

    chosen: npt.NDArray[np.bool_]
    misfits: int


class RecordSelection:
    """Which records does a request mean? Keep one for all records of a log.

    Args:
        request: what is meant.
        log: the log's name.
        declaration: what the log declares of its records; None: nothing.

    Raises SqlTextError for a condition that makes no sense on the log's columns.
    """

    def __init__(self, request: ErasureRequest, log: str, declaration: Declaration | None) -> None:
        self.request = request
        self._log = log
        self._dlsns = frozenset(request.dlsns)
        self._lssns = frozenset(one.lssn for one in request.dlsns)
        self._rows: TypedRows | None = None
        self._many = False
        self._condition: pc.Expression | None = None
        if not request.where.strip():
            return
        if declaration is None:
            self._condition = condition(request.where, ROW_SCHEMA)
            return
        # A record that does not fit ends no erasure: it is counted.
        self._rows = TypedRows(RecordDecoder(replace(declaration, strict=False)))
        self._many = declaration.format is RecordFormat.ARROW
        self._condition = condition(request.where, self._rows.schema)

    def may_have(self, first: DLSN, last: DLSN, lowest_txid: int) -> bool:
        """Return whether one of the records from `first` to `last` may be meant."""
        before = self.request.before_txid
        if before is not None and lowest_txid >= before:
            return False
        return not self._dlsns or any(first <= one <= last for one in self._dlsns)

    def of(self, records: RecordColumns) -> SelectedRecords:
        """Return which of these records are meant."""
        there = np.asarray(records.value.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        chosen = there.copy()
        if self.request.before_txid is not None:
            chosen &= records.transaction_id < self.request.before_txid
        if self._dlsns:
            chosen &= self._at_positions(records)
        misfits = 0
        if self._condition is not None and chosen.any():
            meant, misfits = self._where(records, chosen)
            chosen &= meant
        return SelectedRecords(chosen, misfits)

    def _at_positions(self, records: RecordColumns) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(records), np.bool_)
        for at in np.flatnonzero(np.isin(records.segment, list(self._lssns))).tolist():
            place = DLSN(int(records.segment[at]), int(records.entry[at]), int(records.slot[at]))
            found[at] = place in self._dlsns
        return found

    def _where(self, records: RecordColumns, asked: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], int]:
        """Return of which records the condition is true, and how many of those that are asked do not fit."""
        at = np.flatnonzero(asked)
        table, record, misfits = self._table(_rows_of(records, self._log, at))
        table = table.append_column(_ROW, pa.array(at[record], pa.int64()))
        meant = np.zeros(len(records), np.bool_)
        meant[table.filter(self._condition).column(_ROW).to_numpy()] = True
        return meant, misfits

    def _table(self, batch: pa.RecordBatch) -> tuple[pa.Table, npt.NDArray[np.int64], int]:
        """Return the rows of records, which record each is of, and how many do not fit."""
        if self._rows is None:
            return pa.Table.from_batches([batch]), np.arange(len(batch)), 0
        rows = self._rows.of(batch)
        record = _records_of(rows, batch) if self._many else np.arange(len(batch))
        errors = rows.column(ERROR)
        return pa.Table.from_batches([rows]), record, len(errors) - errors.null_count


def _rows_of(records: RecordColumns, log: str, at: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return some of the records as readers hand them out."""
    chosen = pa.array(at)
    txids = np.ascontiguousarray(records.transaction_id[at])
    numbers = (records.segment, records.entry, records.slot, records.sequence_id)
    columns = [
        pa.repeat(pa.scalar(log), len(at)),
        *(pa.array(np.ascontiguousarray(one[at]), pa.int64()) for one in numbers),
        pa.array(txids, pa.int64()),
        timestamps(txids),
        records.value.take(chosen),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _records_of(rows: pa.RecordBatch, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the index of each row's record, by its position: a record may have no row, and many."""
    log = rows.column(LOG)
    names = ("segment", "entry", "slot")
    places: Sequence[tuple[int, ...]] = list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
    index = {place: at for at, place in enumerate(places)}
    own = zip(*(log.field(log.type.get_field_index(name)).to_pylist() for name in names), strict=True)
    return np.fromiter((index[place] for place in own), np.int64, len(rows))
