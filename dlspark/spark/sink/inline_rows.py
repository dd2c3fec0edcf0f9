"""Rows that travel in the tasks' messages: made in a task, put together on the driver. No I/O.

In a task `gather_inline` keeps rows as long as they are for one log and not above the task's share, and gives up as
soon as they are not: then a ledger is written for each log, from the first row on.

On the driver `joined` puts the parts of one log into one, in the order in which the log is to have them. Ids that are
times of rows are raised where they would go back: in a task to the highest so far, then over all tasks, and to the
log's highest by whoever puts them into the log (`records`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.records import HEADER_BYTES
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.log_rows import LogRows, check_order
from dlspark.spark.sink.messages import InlineRows, StagedSegment, order_segments
from dlspark.spark.sink.row_cutting import Cut, cutter
from metadata.foundation.errors import CorruptDataError, InvariantViolation, check


def gather_inline(
    columns: SinkColumns,
    partition: int,
    stamp_ms: int,
    share: int,
    batches: Iterable[pa.RecordBatch],
    cut: Cut | None = None,
) -> tuple[tuple[InlineRows, ...] | None, list[pa.RecordBatch]]:
    """Return a task's rows as one part (or none, of a task without rows), and the batches that were looked at.

    `cut`: what cuts them by log, each row a record; None: as the columns say. None in the place of the parts: they are
    too many, or for several logs; `batches` has what was not looked at.
    Raises BatchRefusedError and TransactionOrderError, as staging them would.
    """
    seen: list[pa.RecordBatch] = []
    found: list[LogRows] = []
    size = 0
    task = f"task {partition}"
    cut = cut or cutter(columns, task, one_row=True)
    for batch in batches:
        seen.append(batch)
        for rows in cut(batch):
            if found:
                # Several logs show a batch in one instant only by a multi (D16): it is staged.
                if rows.log != found[0].log:
                    return None, seen
                last = found[-1].txids
                if not rows.timed:
                    check_order(rows.txids, rows.log, task, -1 if last is None else int(last[-1]))
            found.append(rows)
            size += _entry_bytes(rows.values)
        if size > share:
            return None, seen
    return ((_part(found, partition, stamp_ms, size),) if found else ()), seen


def _entry_bytes(values: pa.Array) -> int:
    """Return what records of these values take of an entry."""
    return (pc.sum(pc.binary_length(values)).as_py() or 0) + HEADER_BYTES * len(values)


def _part(found: Sequence[LogRows], partition: int, stamp_ms: int, size: int) -> InlineRows:
    values = pa.concat_arrays([rows.values.cast(pa.binary()) for rows in found])
    txids = None
    if found[0].txids is not None:
        txids = np.concatenate([rows.txids for rows in found if rows.txids is not None])
        if found[0].timed:
            txids = np.maximum.accumulate(txids)
    first, last = (stamp_ms, stamp_ms) if txids is None else (int(txids[0]), int(txids[-1]))
    stamp = stamp_ms if txids is None else None
    rows, timed = _encoded(txids, values), found[0].timed
    return InlineRows(found[0].log, partition, first, last, len(values), size, stamp, rows, timed)


def _encoded(txids: npt.NDArray[np.int64] | None, values: pa.Array) -> bytes:
    columns = {"value": values} if txids is None else {"value": values, "txid": pa.array(txids, pa.int64())}
    batch = pa.record_batch(columns)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue())


def decoded(part: InlineRows) -> tuple[npt.NDArray[np.int64] | None, pa.Array]:
    """Return a part's transaction ids (None: it carries the batch's timestamp) and values."""
    try:
        with pa.ipc.open_stream(part.rows) as reader:
            table = reader.read_all()
        values = table.column("value").combine_chunks()
        txids = None if part.stamp_ms is not None else table.column("txid").combine_chunks().to_numpy()
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise CorruptDataError(f"rows of task {part.partition} came damaged: {error}", log=part.log) from None
    check(len(values) == part.record_count, f"{len(values)} rows came where {part.record_count} were sent")
    return txids, values


def no_rows(log: str) -> InlineRows:
    """Return what a batch without rows has for its log."""
    return InlineRows(log, 0, -1, -1, 0, 0, None, b"")


def joined(parts: Sequence[InlineRows]) -> InlineRows:
    """Join parts of one log, in the order in which they continue it. Raises TransactionOrderError if two overlap whose
    ids cannot be raised."""
    ordered = order_segments(parts[0].log, parts)
    if len(ordered) == 1:
        return ordered[0]
    decodings = [decoded(part) for part in ordered]
    txids = [ids for ids, _ in decodings if ids is not None]
    values = pa.concat_arrays([values for _, values in decodings])
    ids = np.concatenate(txids) if txids else None
    if ids is not None and ordered[0].raisable:
        ids = np.maximum.accumulate(ids)
    return replace(
        ordered[0],
        last_txid=ordered[-1].last_txid if ids is None else int(ids[-1]),
        record_count=len(values),
        size=sum(part.size for part in ordered),
        rows=_encoded(ids, values),
    )


def runs_between(parts: Sequence[InlineRows], staged: Sequence[StagedSegment]) -> list[InlineRows]:
    """Join neighbouring parts of one log, as far as no segment that another task has staged comes in between."""
    # A staged segment keeps its place in the order of ids (I4), so rows on its two sides cannot be one segment.
    every: list[InlineRows | StagedSegment] = [*parts, *staged]
    if parts[0].stamp_ms is not None:
        every.sort(key=lambda part: (part.partition, part.ordinal))  # they will all have one timestamp
    else:
        every = order_segments(parts[0].log, every)
    runs: list[list[InlineRows]] = [[]]
    for part in every:
        if isinstance(part, InlineRows):
            runs[-1].append(part)
        elif runs[-1]:
            runs.append([])
    return [joined(run) for run in runs if run]


def raised(part: InlineRows, lowest_txid: int) -> InlineRows:
    """Return a part whose ids are times with none of them below `lowest_txid`."""
    txids, values = decoded(part)
    if txids is None or part.first_txid >= lowest_txid:
        return part
    ids = np.maximum(txids, lowest_txid)
    return replace(part, first_txid=int(ids[0]), last_txid=int(ids[-1]), rows=_encoded(ids, values))


def records(part: InlineRows, lowest_txid: int) -> list[tuple[int, bytes]]:
    """Return the part as (transaction id, payload). A timestamp is not below `lowest_txid`, the log's highest so far,
    nor are ids that are times of rows."""
    txids, values = decoded(part)
    payloads: list[bytes] = values.to_pylist()
    if part.stamp_ms is not None:
        stamp = max(part.stamp_ms, lowest_txid)
        return [(stamp, payload) for payload in payloads]
    if txids is None:
        raise InvariantViolation("rows came without their transaction ids")
    if part.raisable:
        txids = np.maximum(txids, lowest_txid)
    return list(zip(txids.tolist(), payloads, strict=True))
