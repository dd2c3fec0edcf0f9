"""The task's side of cold files that are read as columns: row groups are fetched, and become record batches.

A plan says of such a span which rows of which row group it is (`planning.ColdRows`). Only the columns that are wanted
are fetched, some row groups ahead of what was taken. Columns of records come from here, if need be the bytes of each;
columns that a log declares from `cold_typed_rows`.

Nothing of this is loaded by a task that reads no cold file's columns, as pyarrow.parquet takes a while to load.

Fault model: as `ColdFileReader`: a store that is out of reach is waited for (`outageTimeout`), page checksums are
checked, and a damaged file is an error with its place. A file that is gone fails the task: it was replaced or deleted
since the plan was made, and only a new plan finds what is there now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.vector_decoding import timestamps
from dlspark.core.cold.files.columns import LOG
from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.reading.cold_files import ColdFilesHold
from dlspark.core.cold.reading.file_reader import ColdFileReader
from dlspark.core.runtime import Runtime
from dlspark.objects.errors import ObjectNotFoundError
from dlspark.spark.errors import TruncatedDataLossError
from dlspark.spark.source.partition_reader import TARGET_BATCH_BYTES, TYPES, LogPartition
from dlspark.spark.source.planning import ColdRows, SegmentSpan
from dlspark.spark.source.schema import ColumnNames
from dlspark.spark.source.span_entries import PLAN_AGAIN, cold_files_hold, task_reads_from
from metadata.foundation.errors import present
from metadata.foundation.tasks import end_tasks

AHEAD_BYTES: Final = 32 << 20
"""Columns that are on their way to a task, by what they take in memory; one row group always may be."""
_IDS: Final = "transaction_id"
_PLACES: Final = ("entry", "slot")

Columns = TypeVar("Columns")


@dataclass(frozen=True, slots=True)
class FetchedGroup(Generic[Columns]):
    """What was fetched of a row group?

    Args:
        span: whose rows these are; those outside of its slots are still among them.
        footer: of its file.
        columns: what was asked for.
        batch: the columns.
    """

    span: SegmentSpan
    footer: Footer
    columns: Columns
    batch: pa.RecordBatch


ColumnsOf = Callable[[Footer, SegmentSpan], tuple[Sequence[str], Columns]]
"""Says which paths of a file's columns a span needs, and whatever else is known of them."""


def fetched_groups(partition: LogPartition, columns_of: ColumnsOf[Columns]) -> Iterator[FetchedGroup[Columns]]:
    """Yield what is read of the spans of a partition, in order, each of which has `cold_rows`.

    Raises TruncatedDataLossError where a file is gone, and what reading it raises.
    """
    runtime = Runtime.shared()
    groups = _GroupFetcher(partition, columns_of)
    try:
        while (found := runtime.run(groups.take(runtime))) is not None:
            yield found
    finally:
        # Also when Spark stops asking early (LIMIT, a killed task).
        runtime.run(groups.stop())


class _GroupFetcher(Generic[Columns]):
    """Fetches row groups ahead of what was taken. Lives on the event loop."""

    def __init__(self, partition: LogPartition, columns_of: ColumnsOf[Columns]) -> None:
        self._waiting = deque(partition.spans)
        self._patience_s = partition.client_settings.outage_wait_ms / 1000
        self._reads_from = task_reads_from(partition.client_settings)
        self._columns_of = columns_of
        self._fetching: deque[tuple[int, asyncio.Task[FetchedGroup[Columns]]]] = deque()
        self._reader: ColdFileReader | None = None
        """The one of the file that was last asked for a row group."""

    async def take(self, runtime: Runtime) -> FetchedGroup[Columns] | None:
        """Return the next row group, None at the end, and have others on their way."""
        hold = cold_files_hold(runtime)
        self._fill(hold, 1)
        if not self._fetching:
            return None
        found = await self._fetching[0][1]
        self._fetching.popleft()
        self._fill(hold, 1)
        return found

    def _fill(self, hold: ColdFilesHold, least: int) -> None:
        while self._waiting:
            size = cold_rows(self._waiting[0]).bytes
            if len(self._fetching) >= least and sum(one for one, _ in self._fetching) + size > AHEAD_BYTES:
                return
            task = asyncio.get_running_loop().create_task(self._fetch(hold, self._waiting.popleft()))
            self._fetching.append((size, task))

    async def _fetch(self, hold: ColdFilesHold, span: SegmentSpan) -> FetchedGroup[Columns]:
        rows = cold_rows(span)
        file = present(present(span.cold, "a span has rows of a file and does not say of which").file, "it has a file")
        if self._reader is None or self._reader.file != file:
            self._reader = hold.files.reader(file, self._patience_s, self._reads_from)
        reader = self._reader
        try:
            footer = await reader.footer()
            names, columns = self._columns_of(footer, span)
            if not names:
                return FetchedGroup(span, footer, columns, empty_rows(rows.count))
            batch = await reader.batch(rows.group, names)
        except ObjectNotFoundError as error:
            raise TruncatedDataLossError(
                f"The cold file of segment {span.lssn} is not there any more: the segment was truncated, or records of "
                "it erased, since the batch was planned",
                advice=PLAN_AGAIN,
                log=span.log,
                dlsn=span.start,
                path=file.url,
            ) from error
        return FetchedGroup(span, footer, columns, batch.slice(rows.first, rows.count))

    async def stop(self) -> None:
        """End what is on its way."""
        await end_tasks([task for _, task in self._fetching], drop_errors=True)


def cold_rows(span: SegmentSpan) -> ColdRows:
    """Return which rows of its file a span is."""
    return present(span.cold_rows, "entries of a span were planned, and its file's columns are read")


def empty_rows(count: int) -> pa.RecordBatch:
    """Return rows without columns. Arrow counts the rows of what it is given by its columns, so there is one at
    first."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["row"]).select([])


# ---------------------------------------------------------------------- rows and their places


def numbers(batch: pa.RecordBatch, part: str) -> npt.NDArray[np.int64]:
    """Return a field of a file's `_log`."""
    return np.asarray(batch.column(LOG).field(part)).astype(np.int64, copy=False)


def is_cut(span: SegmentSpan) -> bool:
    """Return whether a span leaves out slots of an entry."""
    return bool(span.first_slot) or span.end_slot is not None


def within_slots(batch: pa.RecordBatch, span: SegmentSpan) -> pa.RecordBatch:
    """Return the rows of a span's entries without those before its first slot, and from its end slot on."""
    if not is_cut(span):
        return batch
    entry, slot = (numbers(batch, part) for part in _PLACES)
    kept = (entry != span.first_entry) | (slot >= span.first_slot)
    if span.end_slot is not None:
        kept &= (entry != span.last_entry) | (slot < span.end_slot)
    at = np.flatnonzero(kept)
    # Rows are sorted by position: what is left is one piece.
    return batch.slice(int(at[0]), len(at)) if len(at) else batch.slice(0, 0)


# ---------------------------------------------------------------------- columns of records


def gives_records(footer: Footer, groups: range, names: Sequence[str]) -> bool:
    """Return whether row groups have these columns of their records: all have but `value`, which typed columns may
    stand for."""
    if "value" not in names:
        return True
    return not footer.redacted and all(footer.row_groups[at].values == footer.row_groups[at].records for at in groups)


def record_columns(footer: Footer, group: int, names: Sequence[str], *, cut: bool) -> list[str]:
    """Return the paths of a row group's columns that have those of its records. `cut` tells that slots are left out."""
    parts = {_IDS if name == "timestamp" else name for name in names} - {"log", "segment", "value"}
    if cut:
        parts |= set(_PLACES)
    said = footer.row_groups[group]
    if said.rows != said.records:
        parts.add("row")
    return [*(f"{LOG}.{part}" for part in sorted(parts)), *([footer.value_column] if "value" in names else ())]


def read_cold_records(partition: LogPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of the records of a partition, whose spans have `cold_rows`. Raises as
    `fetched_groups`."""

    def columns_of(footer: Footer, span: SegmentSpan) -> tuple[Sequence[str], None]:
        return record_columns(footer, cold_rows(span).group, names, cut=is_cut(span)), None

    required = names.required if isinstance(names, ColumnNames) else frozenset()
    schema = pa.schema([pa.field(name, TYPES[name], nullable=name not in required) for name in names])
    for found in fetched_groups(partition, columns_of):
        batch = within_slots(found.batch, found.span)
        if LOG in batch.schema.names and "row" in batch.column(LOG).type.names:
            row = numbers(batch, "row")
            batch = batch.take(pa.array(np.flatnonzero(row <= 0))) if (row > 0).any() else batch
        if not len(batch):
            continue
        made = empty_rows(len(batch))
        if names:
            columns = [_record_column(name, batch, found) for name in names]
            made = pa.RecordBatch.from_arrays(columns, schema=schema)
        yield from in_pieces(made)


def _record_column(name: str, batch: pa.RecordBatch, found: FetchedGroup[None]) -> pa.Array:
    if name == "log":
        return pa.repeat(pa.scalar(found.span.log, TYPES[name]), len(batch))
    if name == "segment":
        return pa.repeat(pa.scalar(found.span.lssn, TYPES[name]), len(batch))
    if name == "value":
        return batch.column(found.footer.value_column).cast(TYPES[name])
    if name == "timestamp":
        return timestamps(numbers(batch, _IDS))
    return pa.array(numbers(batch, name), TYPES[name])


def in_pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in equal pieces of about TARGET_BATCH_BYTES."""
    count = len(rows)
    pieces = min(count, -(-rows.nbytes // TARGET_BATCH_BYTES)) or 1
    for i in range(pieces):
        start = count * i // pieces
        yield rows.slice(start, count * (i + 1) // pieces - start)
