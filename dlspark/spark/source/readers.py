"""The readers that Spark calls: `spark.read` and `spark.readStream` with `format("distributedlog")`.

A batch read is planned completely before a task runs, and read by tasks alone: once for each scan of each query where
the connector's jar is there, else once for a frame; what Spark runs again is brought up to date by tasks (`kept_plan`).
A stream is asked for the end of
each micro-batch and for the plan of it; its tasks are the same.

Facts of Spark that shape the stream (each was measured):

* One long-lived process a query run calls all methods but `read`. A second instance is made in a planner worker and
  pickled to the tasks: so nothing is opened before `initialOffset`, `latestOffset` or `partitions` is called.
* `stop()` of the query ends that process by SIGTERM, usually without calling `stop()` here. A handler turns the signal
  into SystemExit, and then `stop()` runs and the ZooKeeper session ends at once (I16).
* An idle query asks `latestOffset` every 10 ms. So when it asks again right after the answer "nothing new", the next
  answer is held back until something is new (long poll). A query with other, busy sources does not ask at once and is
  never held up.
* The start of the first batch is not in the checkpoint: after a crash `initialOffset` is asked again and may find
  another one ("latest", or a log truncated since). So the end of that batch, which is kept, carries its start.
* After a restart `partitions` may be called for a batch of the run before, with no other call first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dlspark.core.runtime import Runtime
from dlspark.spark.options.query_options import Options
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.handed_rows import few_rows, hand_over
from dlspark.spark.source.kept_plan import KeptPartition, KeptPlan, kept_partitions, later_records
from dlspark.spark.source.offsets import BEHIND, Offsets, StoredOffset
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from dlspark.spark.source.query_snapshot import QuerySnapshot, packed
from dlspark.spark.source.selection import NO_BATCH_LIMITS, SourceQuery
from dlspark.spark.worker_daemon import begin_use, without_traceback
from metadata.foundation.errors import DistributedLogError, check

if TYPE_CHECKING:
    from dlspark.spark.source.declared_columns import DeclaredColumns
    from dlspark.spark.source.driver import SourceDriver
    from dlspark.spark.source.log_spans import Take

LONG_POLL_S = 1.5
"""How long an answer is held back for news; `stop()` interrupts it."""
ASKED_AGAIN_S = 0.05
"""Asking again within this time means that the query idles: a batch in between takes longer."""

_T = TypeVar("_T")


def batch_reader(
    options: Options,
    schema: StructType,
    *,
    bounds: Bounds | None = None,
    take: Take | None = None,
    seen: Mapping[str, object] | None = None,
    planned_in: int | None = None,
    version: SchemaVersion | None = None,
    hints: Sequence[Filter] = (),
) -> DataSourceReader:
    """Return the reader of one batch query.

    The connector's Java side has a reader made for each scan of each query: `seen` is what the query has seen of logs
    before it, `bounds` and `take` are what Spark's planner has pushed down, and `planned_in` is the execution that asks
    where its plan may be run by others later (`kept_plan`). Without `seen` it is Spark's own side that asks, which
    keeps the reader and its plan as long as the frame.

    `version` is the version of the log's declaration that a typed frame has the columns of, and `hints` are the filters
    on them: Spark sees to those itself.
    """
    query = SourceQuery.of(options)
    frame = FrameColumns.of(query, schema, version, settled=seen is not None)
    return BatchReader(query, frame, bounds, take, seen, planned_in, hints)


def stream_reader(
    options: Options, schema: StructType, *, version: SchemaVersion | None = None, settled: bool = False
) -> DataSourceStreamReader:
    """Return the reader of one streaming query; `version` and `settled` are as for `FrameColumns.of`."""
    query = SourceQuery.of(options)
    hand_over(StreamReader)
    return StreamReader(query, FrameColumns.of(query, schema, version, settled=settled))


@without_traceback
class BatchReader(DataSourceReader):
    """Plans one scan of one query, or a frame for its life, on the driver; reads in tasks; pickled in between."""

    def __init__(
        self,
        query: SourceQuery,
        frame: FrameColumns,
        bounds: Bounds | None,
        take: Take | None,
        seen: Mapping[str, object] | None,
        planned_in: int | None,
        hints: Sequence[Filter],
    ) -> None:
        self._query = query
        self._frame = frame
        self._hints = tuple(hints)
        self._bounds = bounds or Bounds()
        self._take = take
        self._seen = seen
        self._planned_in = planned_in

    def partitions(self) -> Sequence[InputPartition]:
        """Return on the driver: the whole plan, made with a session of its own."""
        begin_use()
        runtime = Runtime("dlspark-plan")
        try:
            return runtime.run(self._plan())
        finally:
            runtime.close()

    async def _plan(self) -> list[LogPartition]:
        # Not needed, and not loaded, where tasks run.
        from dlspark.spark.source.driver import PlannedReads, SourceDriver

        query, seen, bounds, take = self._query, self._seen or {}, self._bounds, self._take
        snapshot = QuerySnapshot.of(seen, query.uri)
        driver = SourceDriver(query, snapshot=snapshot)
        try:
            await driver.open()
            start, end = await driver.ends()
            declared = await driver.declared(self._frame)
            if declared is not None:
                bounds, take = declared.bounds(self._hints), declared.take(take)
            reads = PlannedReads(self._frame, declared, self._hints)
            planned = await driver.plan(start, end, bounds, take, reads)
            proxies, settings, token = await driver.read_proxies(), driver.client_settings, driver.task_token()
        finally:
            await driver.close()
        report = "" if self._seen is None else packed(snapshot.within(seen, query.uri))
        first, *others = planned or [()]
        for_tasks = None if declared is None else declared.packed
        made = [
            LogPartition(first, settings, proxies, report, for_tasks, token),
            *(LogPartition(one, settings, proxies, declared=for_tasks, token=token) for one in others),
        ]
        # A task of the jar's plan that reads through proxies reaches nothing else: it repeats the plan.
        again = self._planned_in is not None and not proxies
        if self._seen is not None and not again:
            return made
        columns = self._frame.of_version(None if declared is None else declared.version)
        return kept_partitions(KeptPlan(query, start, end, bounds, self._planned_in, columns), snapshot, made)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield in a task: the partition's records, and with the last one of a plan that runs again what was appended
        since."""
        begin_use()
        # Before any row: what was planned may be gone, and another log have its name.
        later = later_records(partition) if isinstance(partition, KeptPartition) else None
        yield from _read(partition, self._frame)
        if later is not None:
            yield from _read(later, self._frame)


def _read(partition: InputPartition, frame: FrameColumns) -> Iterator[pa.RecordBatch]:
    """Return in a task: what a frame has of a partition."""
    if not isinstance(partition, LogPartition) or partition.declared is None:
        return _read_of_records(partition, frame.names or ())
    from dlspark.spark.source.typed_records import read_typed  # most tasks need none of it

    return read_typed(partition, frame.schema)


def _read_of_records(partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield in a task: columns of records, from entries and from columns of cold files as the plan says."""
    for part, columns in partition.by_way() if isinstance(partition, LogPartition) else ():
        if columns:
            from dlspark.spark.source.cold_columns import read_cold_records  # pyarrow.parquet takes a while to load

            yield from read_cold_records(part, names)
        else:
            yield from read_partition(part, names)


@without_traceback
class RefusedStream(DataSourceStreamReader):
    """Stands for a query that cannot run: it raises why as soon as Spark asks it for an offset.

    Where `streamReader` itself raises, Spark's runner fails over a name it has not set yet, and reports that instead.
    """

    def __init__(self, error: DistributedLogError) -> None:
        self._error = error

    def initialOffset(self) -> StoredOffset:
        """Raise why the query cannot run."""
        raise self._error

    def latestOffset(self, start: StoredOffset, limit: ReadLimit) -> StoredOffset:
        """Raise why the query cannot run."""
        raise self._error

    def partitions(self, start: StoredOffset, end: StoredOffset) -> Sequence[InputPartition]:
        """Raise why the query cannot run."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise why the query cannot run."""
        raise self._error


@without_traceback
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query. Only what the query is gets pickled; connections belong to one process."""

    def __init__(self, query: SourceQuery, frame: FrameColumns) -> None:
        self._query = query
        self._frame = frame
        self._runtime: Runtime | None = None
        self._driver: SourceDriver | None = None
        self._target: Offsets | None = None
        self._unsaved_start: Offsets | None = None
        self._reached: Offsets | None = None
        self._nothing_new: tuple[Offsets, float] | None = None
        """Where the last answer was "nothing new", and when it was given (monotonic)."""
        self._planned: Sequence[LogPartition] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (StreamReader, (self._query, self._frame))

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> StoredOffset:
        """Return where the query begins; asked without a checkpoint, and again after a crash in its first batch."""
        self._unsaved_start = self._run(self._opened().resolve(self._query.start))
        # The cursor may be there and behind: this is also asked before the first batch is run again.
        self._run(self._opened().begin_cursor(self._unsaved_start))
        return self._unsaved_start.stored()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit of many; the others are in the options, as this one."""
        limits = self._query.limits
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_records is None else ReadMinRows(limits.min_records)

    def latestOffset(self, start: StoredOffset, limit: ReadLimit) -> StoredOffset:
        """Return the end of the next batch, within the limits; `start` itself where nothing is new, after a while."""
        begin = Offsets.from_stored(start)
        limits = NO_BATCH_LIMITS if isinstance(limit, ReadAllAvailable) else self._query.limits
        driver = self._opened()
        end = self._run(driver.end_of_batch(begin, limits, self._target))
        if not begin.moved(end) and self._idles(begin):
            end = self._run(driver.wait_for_batch(begin, limits, LONG_POLL_S))
        first, self._unsaved_start = begin == self._unsaved_start, None
        if begin.moved(end):
            self._nothing_new = None
        else:
            end = begin  # Spark compares texts: nothing new is the same text
            self._nothing_new = (begin, time.monotonic())
        self._reached = end
        return (replace(end, begin=begin.positions) if first else end).stored()

    def reportLatestOffset(self) -> StoredOffset | None:
        """Return the logs' ends, and what lies between them and the end of this batch: a listener needs no
        connection."""
        newest = None if self._driver is None else self._driver.newest
        if newest is None or self._driver is None or self._reached is None:
            return None if newest is None else newest.stored()
        lags = self._run(self._driver.lags(self._reached))
        behind = {log: None if lag is None else lag.reported() for log, lag in sorted(lags.items())}
        return {**newest.stored(), BEHIND: behind}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends, once, whatever is appended meanwhile (I15)."""
        self._target = self._run(self._opened().latest(acknowledged=True))

    def _idles(self, begin: Offsets) -> bool:
        """Return whether Spark asks again right after the answer that nothing is new; AvailableNow ends then."""
        last = self._nothing_new
        return (
            self._target is None
            and last is not None
            and last[0] == begin
            and time.monotonic() - last[1] < ASKED_AGAIN_S
        )

    # ------------------------------------------------------------------ batches

    def partitions(self, start: StoredOffset, end: StoredOffset) -> Sequence[InputPartition]:
        """Return the plan of a batch, from its two offsets alone."""
        begin, until = Offsets.from_stored(start), Offsets.from_stored(end)
        if until.begin is not None:
            # The query's first batch. `start` may be a later answer of `initialOffset` than the one it was planned by.
            begin = Offsets(until.begin)
        self._planned = ()
        if not begin.moved(until):
            return []
        from dlspark.spark.source.driver import PlannedReads  # as `_opened`

        driver = self._opened()
        declared = self._declared(driver)
        planned = self._run(driver.plan(begin, until, reads=PlannedReads(self._frame, declared)))
        proxies = self._run(driver.read_proxies())
        for_tasks = None if declared is None else declared.packed
        token = driver.task_token()
        self._planned = [
            LogPartition(spans, driver.client_settings, proxies, declared=for_tasks, token=token) for spans in planned
        ]
        return self._planned

    def rows_at_hand(self) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of the plan that was made last, where they are few; None: tasks read them (`handed_rows`)."""
        rows = few_rows(self._planned, self._frame)
        return None if rows is None else iter(rows)

    def _declared(self, driver: SourceDriver) -> DeclaredColumns | None:
        """Return what the log declares by now; the columns stay those of the version that the query began with."""
        if self._frame.log is None:
            return None
        found = self._run(driver.declared(self._frame))
        # What `schema(...)` gave says no version: the first plan finds it.
        self._frame = self._frame.of_version(None if found is None else found.version)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return in a task: the partition's records."""
        begin_use()
        return _read(partition, self._frame)

    def commit(self, end: StoredOffset) -> None:
        """Note that the position lives in Spark's checkpoint; it is only published if the query has a cursor."""
        if self._query.cursor is not None:
            self._run(self._opened().move_cursor(Offsets.from_stored(end)))

    # ------------------------------------------------------------------ life cycle

    def stop(self) -> None:
        """Close the driver with its ZooKeeper session; it can be called again."""
        # Taken away first: a signal in the middle of this must not close them twice.
        driver, self._driver = self._driver, None
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        try:
            if driver is not None:
                runtime.run(driver.close())
        finally:
            runtime.close()
            if _ending:
                # Spark has closed its side: going on would only print the trace of a broken pipe.
                sys.stderr.flush()
                os._exit(0)

    def _opened(self) -> SourceDriver:
        if self._driver is None:
            from dlspark.spark.source.driver import SourceDriver  # not needed, and not loaded, where tasks run

            _exit_on_sigterm()
            self._runtime = self._runtime or Runtime("dlspark-source")
            driver = SourceDriver(self._query)
            self._runtime.run(driver.open())
            self._driver = driver  # not before it is open: a failed opening is tried again by the next call
        return self._driver

    def _run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        runtime = self._runtime
        check(runtime is not None, "the source was used before it was opened")
        return runtime.run(coroutine)  # type: ignore[union-attr]


_ending = False
"""Whether this process was asked to end by SIGTERM, which only the process of a query's source waits for.

A plain name: a signal handler that takes a lock, as `threading.Event` does, waits for ever if the next signal meets it
holding that lock.
"""


def _exit_on_sigterm() -> None:
    """Let SIGTERM end the process in order: SystemExit runs Spark's `finally: reader.stop()`."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(signum: int, frame: FrameType | None) -> None:
    global _ending
    if _ending:
        return  # Asked twice: the end has begun, and cutting it off would leave the session to expire.
    _ending = True
    sys.exit(0)
