"""Rows of a typed frame as records: cut by log, and encoded by what each log declares, column by column.

**Which columns are a log's own.** All of the frame, but for `transaction_id`, `log` and keys of `partitionBy` where the
log does not declare a column of that name: these keep their meaning. A name is compared without case.

**Transaction ids.**

| the frame has | the log takes ids from a column | the ids are |
|---|---|---|
| `transaction_id` | either | those, and no row may be later than its id |
| no such column | yes | times of rows, raised where they would go back |
| no such column | no | the batch's own timestamp |

A user who gives ids has reasons, such as the order of another system, so they are neither raised nor passed over. But
a record whose id is below its row's time is one that no reader takes for a row: it is refused here, where it can still
be mended.

**Records of many rows** (format `arrow`). Where rows have ids of their own, only rows with one id share a record. A
record that travels inline has one row, for the log's producers count records, and a replay must be known by the number
of its rows, however it is cut (I20).

Nothing here does I/O; only tasks of typed frames, and the planner of one, load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.errors import BatchRefusedError, SchemaError, TransactionOrderError
from dlspark.spark.sink.columns import SinkColumns, TypedFrame
from dlspark.spark.sink.log_rows import (
    LogRows,
    check_order,
    in_order_of_logs,
    logs_of,
    refuse_long,
    transaction_ids,
)
from dlspark.spark.typed_columns import type_of_spark
from dlspark.tables.arrow_types import arrow_type
from dlspark.tables.codecs import EncodedRows, RecordEncoder, conform
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.types import InvalidSchemaError, Schema
from metadata.foundation.errors import check

RECORD_BYTES: Final = 240 * 1024
"""Most bytes of a record that holds many rows: an entry is filled to a little more."""
_NOT_WRITTEN: Final = "; nothing was written"

FindDeclared = Callable[[Sequence[str]], Mapping[str, Declaration]]
"""Returns what logs declare that were not known before. Raises BatchRefusedError for one that declares nothing."""


def own_columns(names: Sequence[str], keys: Sequence[str], schema: Schema) -> tuple[list[int], int | None]:
    """Return the places of a log's own columns in a frame, and that of `transaction_id` where it is not one of them."""
    own: list[int] = []
    txid: int | None = None
    for place, name in enumerate(names):
        lower = name.lower()
        if schema.column(name) is None and (lower in ("transaction_id", "log") or lower in keys):
            txid = place if lower == "transaction_id" else txid
        else:
            own.append(place)
    return own, txid


def check_fits(log: str, schema: StructType, keys: Sequence[str], declaration: Declaration) -> None:
    """Raise SchemaError unless a frame's columns can be rows of the log, as far as that is known without a row."""
    current = declaration.current
    own, txid = own_columns(schema.names, keys, current)
    try:
        empty = [_empty(schema.fields[place]) for place in own]
        conform(pa.RecordBatch.from_arrays(empty, names=[schema.fields[place].name for place in own]), current)
    except (RowRefusedError, InvalidSchemaError) as error:
        said = error.message.partition("; nothing was ")[0].replace("in the rows", "in the frame")
        raise SchemaError(f"{said}; no task was started", log=log, advice=error.advice) from error
    there = {schema.fields[place].name.casefold() for place in own}
    missing = [
        one.name for one in current.fields if one.required and one.default is None and one.name.casefold() not in there
    ]
    if missing:
        raise SchemaError(
            f"The frame has no column {', '.join(missing)}, which the log declares NOT NULL; no task was started",
            log=log,
            advice="Select it, or give it a default in the log's schema",
        )
    if txid is not None and not pa.types.is_integer(_empty(schema.fields[txid]).type):
        raise SchemaError(
            f"Column transaction_id must be bigint, not {schema.fields[txid].dataType.simpleString()}",
            log=log,
            advice="Convert it, or drop it: ids then come from the batch, or from the log's timestamp column",
        )


def _empty(field: StructField) -> pa.Array:
    return pa.array([], arrow_type(type_of_spark(field.dataType, field.name)))


@dataclass(frozen=True, slots=True)
class _LogEncoder:
    """How rows for one log are encoded."""

    encoder: RecordEncoder
    own: list[int]
    txid: int | None


class FrameEncoder:
    """How do I make records of a task's rows? Keep one for the task.

    Args:
        columns: Where the sink's columns are, of a typed frame.
        task: The task's name in messages.
        find: Finds what logs declare that only rows name.
        one_row: Whether each record holds one row, in any format.
    """

    def __init__(self, columns: SinkColumns, task: str, find: FindDeclared, *, one_row: bool = False) -> None:
        typed = columns.typed
        check(typed is not None, "a frame of bytes is to be encoded")
        self._columns = columns
        self._typed: TypedFrame = typed  # type: ignore[assignment]
        self._task = task
        self._find = find
        self._max_rows = 1 if one_row else None
        self._logs = {log: self._encoder(declaration) for log, declaration in self._typed.declared.items()}

    def _encoder(self, declaration: Declaration) -> _LogEncoder:
        own, txid = own_columns(self._typed.names, self._typed.keys, declaration.current)
        return _LogEncoder(RecordEncoder(declaration, RECORD_BYTES, self._max_rows), own, txid)

    def rows_by_log(self, batch: pa.RecordBatch) -> list[LogRows]:
        """Cut `batch` by log and encode it, keeping the order of rows within each.

        Raises BatchRefusedError for rows that do not fit, and for bad names of logs: the whole batch fails with nothing
        visible.
        """
        if batch.num_rows == 0:
            return []
        parts = self._split(batch)
        unknown = [log for log, _ in parts if log not in self._logs]
        if unknown:
            self._logs |= {log: self._encoder(found) for log, found in self._find(unknown).items()}
        return [self._encode(log, part) for log, part in parts]

    def _split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        logs, codes = logs_of(batch, self._columns, self._task)
        if codes is None:
            return [(logs[0], batch)]
        order, ends = in_order_of_logs(codes, len(logs))
        ordered = batch.take(pa.array(order))
        begins = [0, *ends[:-1]]
        return [
            (log, ordered.slice(begin, end - begin))
            for log, begin, end in zip(logs, begins, ends, strict=True)
            if end > begin
        ]

    def _encode(self, log: str, part: pa.RecordBatch) -> LogRows:
        how = self._logs[log]
        names = [self._typed.names[place] for place in how.own]
        rows = pa.RecordBatch.from_arrays([part.column(place) for place in how.own], names=names)
        try:
            made = self._given(how, rows, part, log) if how.txid is not None else self._made(how, rows, log)
        except RowRefusedError as error:
            raise BatchRefusedError(
                f"{error.message.removesuffix(_NOT_WRITTEN)} (in {self._task}); nothing of the batch is visible",
                log=log,
                advice=error.advice,
            ) from error
        refuse_long(made.values, self._task, "A row's record has")
        return made

    def _made(self, how: _LogEncoder, rows: pa.RecordBatch, log: str) -> LogRows:
        encoded = how.encoder.encode(rows)
        return LogRows(log, self._times(encoded, log), encoded.payloads, encoded.times is not None, len(rows))

    def _times(self, encoded: EncodedRows, log: str) -> npt.NDArray[np.int64] | None:
        if encoded.times is None:
            return None
        times: npt.NDArray[np.int64] = encoded.times.to_numpy(zero_copy_only=False)
        if len(times) and int(times.max()) == MAX_TXID:
            raise TransactionOrderError(
                f"The column that the log takes transaction ids from is {MAX_TXID} in {self._task}, and ids lie from 0 "
                "to 2^63 - 2; nothing of the batch is visible",
                log=log,
                advice="Write milliseconds since the epoch",
            )
        return times

    def _given(self, how: _LogEncoder, rows: pa.RecordBatch, part: pa.RecordBatch, log: str) -> LogRows:
        """Encode rows that have ids of their own."""
        column = part.column(how.txid)
        if not pa.types.is_integer(column.type):
            raise BatchRefusedError(
                f"Column transaction_id is {column.type} in {self._task}, and must be bigint; nothing of the batch is "
                "visible",
                log=log,
                advice="Convert it, or drop it",
            )
        txids = transaction_ids(column, self._task)
        check_order(txids, log, self._task)
        if how.encoder.declaration.format is RecordFormat.ARROW:
            # A record has one id, so rows that share one have the same.
            begins = [0, *(np.flatnonzero(txids[1:] != txids[:-1]) + 1).tolist()]
            runs = [(begin, end) for begin, end in zip(begins, [*begins[1:], len(txids)], strict=True)]
            encodings = [how.encoder.encode(rows.slice(begin, end - begin)) for begin, end in runs]
            counts = [len(one.payloads) for one in encodings]
            payloads = pa.concat_arrays([one.payloads for one in encodings])
            ids = np.repeat(txids[begins], counts)
            times = [self._times(one, log) for one in encodings]
            found = None if times[0] is None else np.concatenate([one for one in times if one is not None])
        else:
            encoded = how.encoder.encode(rows)
            payloads, ids, found = encoded.payloads, txids, self._times(encoded, log)
        if found is not None:
            self._refuse_late(found, ids, log)
        return LogRows(log, ids, payloads, rows=len(rows))

    def _refuse_late(self, times: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], log: str) -> None:
        late = np.flatnonzero(times > ids)
        if len(late):
            first = int(late[0])
            raise TransactionOrderError(
                f"The transaction id of a row in {self._task} is {int(ids[first])}, and its time, by the column that "
                f"the log takes ids from, {int(times[first])}: readers that look for its time would miss it; nothing "
                "of the batch is visible",
                log=log,
                advice="Leave transaction_id out: ids are then taken from that column",
            )
