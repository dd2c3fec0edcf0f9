"""Rows cut from a task's Arrow batches by log: payloads, transaction ids and logs, checked before anything is sent.

`columns` says which column of a frame is which. It is apart from this, as planner and commit need it, and no Arrow.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.records import MAX_PAYLOAD_BYTES, MAX_TXID
from dlspark.spark.errors import BatchRefusedError, TransactionOrderError
from dlspark.spark.sink.columns import SEPARATOR, HashRoute, SinkColumns
from metadata.distributedlog.log_names import InvalidLogNameError
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import check


@dataclass(frozen=True, slots=True)
class LogRows:
    """Records of one log in their order. `txids` is None where the batch carries its own timestamp; `timed`: they are
    times of rows, in any order, which are to be raised. `rows`: how many rows of the frame they hold; None: one each.
    """

    log: str
    txids: npt.NDArray[np.int64] | None
    values: pa.Array
    timed: bool = False
    rows: int | None = None

    @property
    def row_count(self) -> int:
        """How many rows of the frame the records hold."""
        return len(self.values) if self.rows is None else self.rows


def rows_by_log(batch: pa.RecordBatch, columns: SinkColumns, task: str) -> list[LogRows]:
    """Cut `batch` by log, keeping the order of rows within each; `task` is for messages.

    Raises BatchRefusedError for nulls and bad names: the whole batch fails with nothing visible.
    """
    if batch.num_rows == 0:
        return []
    values = _payloads(batch.column(columns.value), task)
    txids = transaction_ids(batch.column(columns.transaction_id), task) if columns.transaction_id is not None else None
    logs, codes = logs_of(batch, columns, task)
    if codes is None:
        check_order(txids, logs[0], task)
        return [LogRows(logs[0], txids, values)]
    order, ends = in_order_of_logs(codes, len(logs))
    values = values.take(pa.array(order))
    sorted_txids = None if txids is None else txids[order]
    rows: list[LogRows] = []
    begin = 0
    for log, end in zip(logs, ends, strict=True):
        if begin == end:
            continue
        part = None if sorted_txids is None else sorted_txids[begin:end]
        check_order(part, log, task)
        rows.append(LogRows(log, part, values.slice(begin, end - begin)))
        begin = end
    return rows


def logs_of(batch: pa.RecordBatch, columns: SinkColumns, task: str) -> tuple[list[str], npt.NDArray[np.int64] | None]:
    """Return the logs that rows go to, and the number of each row's among them; None: all go to the first.

    Raises BatchRefusedError for nulls and bad names.
    """
    if columns.route is not None:
        return list(columns.route.logs), log_numbers(columns.route, batch)
    if columns.log is None:
        return [str(columns.one_log)], None
    names = batch.column(columns.log)
    _refuse_nulls(names, "log", task, "fill it: coalesce(log, 'name')")
    coded = names.dictionary_encode()
    logs: list[str] = coded.dictionary.to_pylist()
    for log in logs:
        _check_name(log, task)
    return logs, None if len(logs) == 1 else coded.indices.to_numpy(zero_copy_only=False)


def in_order_of_logs(codes: npt.NDArray[np.int64], count: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the order in which rows lie log by log, those of one log as they came (I4), and where each log's end."""
    return np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=count)).tolist()


def check_order(txids: npt.NDArray[np.int64] | None, log: str, task: str, last: int = -1) -> None:
    """Raise TransactionOrderError if ids decrease, also from `last`, the highest that the task wrote before."""
    if txids is None or len(txids) == 0:
        return
    steps = np.flatnonzero(txids[1:] < txids[:-1])
    if len(steps):
        raise _decreasing_error(log, task, int(txids[steps[0]]), int(txids[steps[0] + 1]))
    if txids[0] < last:
        raise _decreasing_error(log, task, last, int(txids[0]))


def _decreasing_error(log: str, task: str, before: int, after: int) -> TransactionOrderError:
    return TransactionOrderError(
        f"Transaction ids decrease in {task}: {after} follows {before}; nothing of the batch is visible",
        log=log,
        advice='Write df.repartitionByRange("transaction_id").sortWithinPartitions("transaction_id")',
    )


def _payloads(column: pa.Array, task: str) -> pa.Array:
    _refuse_nulls(column, "value", task, "drop such rows: df.where('value is not null')")
    if not (
        pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_string(column.type)
    ):
        column = column.cast(pa.large_binary())  # large strings, views: the bytes are not touched
    refuse_long(column, task)
    return column


def refuse_long(values: pa.Array, task: str, what: str = "Column value has") -> None:
    """Raise BatchRefusedError for a value that fits in no record, before anything of these rows is sent."""
    if values.nbytes <= MAX_PAYLOAD_BYTES:
        return
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py()
    if longest > MAX_PAYLOAD_BYTES:
        raise BatchRefusedError(
            f"{what} {longest} bytes in row {pc.index(lengths, longest).as_py()} in {task}, and a record "
            f"holds {MAX_PAYLOAD_BYTES} at most; nothing of the batch is visible",
            advice="Cut or compress such values, or keep them in files and write their names",
        )


def transaction_ids(column: pa.Array, task: str) -> npt.NDArray[np.int64]:
    _refuse_nulls(column, "transaction_id", task, "fill it, or leave the column out: the batch then carries one time")
    txids: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    refuse_outside(txids, task)
    return txids


def refuse_outside(txids: npt.NDArray[np.int64], task: str) -> None:
    """Raise TransactionOrderError for ids that no record may carry."""
    outside = np.flatnonzero((txids < 0) | (txids == MAX_TXID))
    if len(outside):
        raise TransactionOrderError(
            f"Transaction id {int(txids[outside[0]])} in {task}: ids lie from 0 to 2^63 - 2; "
            "nothing of the batch is visible",
            advice="Write ids in that range, for example milliseconds since the epoch",
        )


def _refuse_nulls(column: pa.Array, name: str, task: str, mend: str) -> None:
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise BatchRefusedError(
            f"Column {name} is null in {column.null_count} of {len(column)} rows in {task}, first in row {row}; "
            "nothing of the batch is visible",
            advice=f"Correct the column: {mend}",
        )


def _check_name(log: str, task: str) -> None:
    try:
        LogStore.validate_name(log)
    except InvalidLogNameError as error:
        raise BatchRefusedError(
            f"Column log in {task} holds {log!r}, which cannot name a log: {error.message}; nothing of the batch is "
            "visible",
            advice=error.advice,
        ) from None


def log_numbers(route: HashRoute, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the number of the log of each row."""
    return crc32s([batch.column(index) for index in route.indices]) % len(route.logs)


def crc32s(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the CRC-32 of each row's columns, as text joined by SEPARATOR with nulls left out."""
    texts = [_bytes(column) for column in columns]
    if len(texts) > 1:
        # Arrow leaves out a row of which every part is null (26.0), and takes each row after it for another one.
        # So each begins with a part that is there; it and the separator after it are not hashed.
        first = pa.array([b""] * len(texts[0]), pa.large_binary())
        # Not a constant of the module: Arrow imports pandas for a scalar, which takes a process a quarter of a second.
        separator = pa.scalar(SEPARATOR, first.type)
        joined = pc.binary_join_element_wise(first, *texts, separator, null_handling="skip")
        check(len(joined) == len(first), f"{len(joined)} keys were made of {len(first)} rows")
    else:
        joined = texts[0].fill_null(b"")
    begin = 1 if len(texts) > 1 else 0
    # Keys repeat: each is hashed once a batch.
    coded = joined.dictionary_encode()
    keys = coded.dictionary.to_numpy(zero_copy_only=False)
    hashes = np.fromiter((zlib.crc32(key[begin:]) for key in keys), np.int64)
    numbers: npt.NDArray[np.int64] = hashes[coded.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _bytes(column: pa.Array) -> pa.Array:
    binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary()) if binary else column.cast(pa.large_string()).cast(pa.large_binary())
