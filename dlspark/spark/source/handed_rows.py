"""Rows that travel with the plan of a micro-batch: where they are few, no task of it needs a Python worker.

A task's Python worker costs a small batch more than its rows do, wherever they come from: Spark finds the worker,
sends it the reader, and takes Arrow batches from it. Spark takes rows along with a plan as well, from one kind of
reader, its wrapper of a `SimpleDataSourceStreamReader`: it keeps them as a block of the driver's, and a task reads the
block. So the process that plans reads a small batch itself (`few_rows`), and Spark's runner is shown our reader as one
of that kind while it asks for a plan, and only then (`hand_over`): in all else that kind of reader can do less.

The block has what the partition gives (`partition_reader`), and a task whose block is gone reads the partition itself.
A batch whose rows cannot be had here and now is left to its tasks as well: they wait for storage nodes, and say what is
wrong.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.offsets import StoredOffset
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from metadata.foundation.errors import DistributedLogError

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _TakesRows
except ImportError:  # a later Spark has no such kind of reader: tasks read all rows there
    _TakesRows = object  # type: ignore[assignment, misc]

MAX_STORED_BYTES: Final = 64 * 1024
"""Most bytes of entries, as the plan estimates them, that are read here."""
MAX_BYTES: Final = 4 * MAX_STORED_BYTES
"""Most bytes of rows that are handed over: they may have been compressed."""
MAX_ROWS: Final = 1_000
"""Spark serialises them one by one."""
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"

_log = logging.getLogger(__name__)


class PlansWithRows(Protocol):
    """A reader that can say which rows the plan has that it made last."""

    def partitions(self, start: StoredOffset, end: StoredOffset) -> Sequence[InputPartition]:
        """Return the plan of a batch."""
        ...

    def rows_at_hand(self) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of the plan that was made last; None: tasks are to read them."""
        ...


class _Handing(_TakesRows):
    """A reader as Spark's runner takes rows from it."""

    def __init__(self, reader: PlansWithRows) -> None:
        self._reader = reader

    def partitions(self, start: StoredOffset, end: StoredOffset) -> Sequence[InputPartition]:
        return self._reader.partitions(start, end)

    def getCache(self, start: StoredOffset, end: StoredOffset) -> Iterator[pa.RecordBatch] | None:
        return self._reader.rows_at_hand()


def hand_over(kind: type[PlansWithRows]) -> None:
    """Let Spark's runner, in whose process this is called, take rows along with the plans of readers of this kind."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) != _RUNNER:
        return
    plan = getattr(main, "partitions_func", None)
    if plan is None or plan.__module__ == __name__:
        return  # a later Spark plans in another way: tasks read all rows there

    def partitions_func(reader: object, *rest: object) -> None:
        plan(_Handing(reader) if isinstance(reader, kind) else reader, *rest)

    main.partitions_func = partitions_func  # type: ignore[attr-defined]


def few_rows(planned: Sequence[LogPartition], frame: FrameColumns) -> list[pa.RecordBatch] | None:
    """Return the rows of a plan, read now, if they are few and simple to read; None: they are left to the plan's tasks.

    Only entries of one partition are read, from storage nodes: cold files have to be opened, and proxies take tokens of
    tasks.
    """
    names = frame.names
    # Spark compares the rows' schema with the frame's, and Arrow knows of no metadata of Spark's.
    if len(planned) != 1 or not names or any(field.metadata for field in frame.schema.fields):
        return None
    partition = planned[0]
    stored = sum(span.bytes for span in partition.spans)
    plain = not partition.proxies and partition.declared is None and all(span.hot for span in partition.spans)
    if not plain or stored > MAX_STORED_BYTES:
        return None
    # Whatever does not answer now is waited for by the tasks, and not by them after this.
    here = LogPartition(partition.spans, replace(partition.client_settings, outage_wait_ms=0))
    found: list[pa.RecordBatch] = []
    try:
        for batch in read_partition(here, names):
            found.append(batch)
            if sum(one.nbytes for one in found) > MAX_BYTES or sum(map(len, found)) > MAX_ROWS:
                return None
    except DistributedLogError as error:
        _log.info("a batch is left to its tasks to read: %s", error)
        return None
    return found or None
