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
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.offsets import StoredOffset
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from storage_node.settings.client import ClientSettings

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
MOST_WAIT_MS: Final = 1_000
"""How long the planner waits for storage nodes: it keeps the query from all else."""
LEFT_FOR_S: Final = 60.0
"""After a read that failed tasks read for so long."""
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"

_left_until = -math.inf
"""By the monotonic clock."""
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
    global _left_until
    if time.monotonic() < _left_until:
        return None
    # Whatever does not answer now is waited for by the tasks, and not by them after this.
    here = LogPartition(partition.spans, _impatient(partition.client_settings))
    found: list[pa.RecordBatch] = []
    try:
        for batch in read_partition(here, names):
            found.append(batch)
            if sum(one.nbytes for one in found) > MAX_BYTES or sum(map(len, found)) > MAX_ROWS:
                return None
    except Exception as error:  # a task says what is wrong, and is run again; this process is the query's only one
        _left_until = time.monotonic() + LEFT_FOR_S
        _log.info("batches are left to their tasks to read for %g s: %s", LEFT_FOR_S, error)
        return None
    return found or None


def _impatient(settings: ClientSettings) -> ClientSettings:
    most = min(settings.read_entry_timeout_ms, MOST_WAIT_MS)
    return replace(
        settings,
        outage_wait_ms=0,
        read_entry_timeout_ms=most,
        read_operation_timeout_ms=most,
        connect_timeout_ms=min(settings.connect_timeout_ms, most),
        long_poll_ms=min(settings.long_poll_ms, most // 2),
    )
