"""`run_task` stages the rows of one task, called in Spark's thread; `Staging` is the task on the event loop.

A task of which few rows come, for one log, stages nothing: where the batch may be appended, it hands its rows over in
its message and asks nothing of the metadata store or of storage nodes (`inline_rows`).

What a task needs from the metadata store it asks for before the rows are there, so that the answers come while Spark
fetches the rows:

| asked for | why it may be asked before the rows are there |
|---|---|
| the sink | where nothing was published up to the batch, no log has it: their marks need not be asked |
| the highest transaction ids of logs that are known by name | a timestamp is a first choice, which the commit mends |
| a ledger id, the storage nodes | an id that is not used is lost, which does no harm |

A ledger is made when its log has its first rows. Where the sink is known to exist, that does not wait for the sink's
state: what a replay has made in vain is listed under a batch that is published, and its commit sweeps it. Rows of a log
whose mark has reached the batch are only counted: the commit decides whether they are the rows that are there. No entry
is sent before the marks were read, and none before its ledger exists.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TYPE_CHECKING

from dlspark.core.runtime import Runtime
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.columns import LogRows, SinkColumns
from dlspark.spark.sink.commit_modes import commit_way
from dlspark.spark.sink.inline_rows import gather_inline
from dlspark.spark.sink.messages import JobId, SinkMessage, StagedSegment
from dlspark.spark.sink.segments.task import EntriesToSend, StageSettings, TaskWriter
from dlspark.spark.sink.session import SinkSession, open_session
from dlspark.spark.workers import begin_use
from metadata.distributedlog.sinks import JOB_PREFIX
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, DistributedLogError, NoNodeError
from metadata.foundation.tasks import end_tasks
from storage_node.client.writer import LedgerWriter

if TYPE_CHECKING:
    import pyarrow as pa

STAMPS_AHEAD = 16
"""Logs whose highest ids are asked for before there are rows for them."""


class Staging:
    """A task under way. Made on the event loop, as all coroutines run there; ended by `finish` or `give_up`."""

    def __init__(self, session: SinkSession, job: JobId, columns: SinkColumns, partition: int, stamp_ms: int) -> None:
        self.session = session
        self.job = job
        settings = StageSettings(columns, session.compression, session.settings.max_segment_bytes, partition)
        self.task = TaskWriter(settings, self._create, self._stamp)
        self._stamp_ms = stamp_ms
        self._sink_seen = session.has_seen(job)
        self._state = asyncio.ensure_future(session.state(job))
        logs = columns.known_logs if columns.transaction_id is None else ()
        self._stamps = {log: asyncio.ensure_future(session.stamp(log, stamp_ms)) for log in logs[:STAMPS_AHEAD]}
        session.get_ready()

    async def meet(self, rows: Sequence[LogRows]) -> None:
        """Get ready for new logs; those that have the batch are skipped from here on."""
        if self._sink_seen:
            await self.task.meet(rows)
            covered = await self._covered(rows)
        else:
            covered = await self._covered(rows)
            await self.task.meet([part for part in rows if part.log not in covered])
        await self.task.skip(covered)

    async def _covered(self, rows: Sequence[LogRows]) -> set[str]:
        """Return the logs that have the batch. Where the sink has published nothing so far, no log needs to be
        asked."""
        state = await self._state
        # This only saves work: a fork of the query may have set the state back, and the commit decides by the marks.
        if self.job.batch > state.batch:
            return set()
        return await self.session.covered(self.job, [part.log for part in rows])

    async def _create(self, log: str) -> LedgerWriter:
        try:
            return await self.session.create_ledger(self.job, log)
        except NoNodeError:
            if not self._sink_seen:
                raise
            await self._state  # The sink was removed since the last task; reading its state has created it again.
            return await self.session.create_ledger(self.job, log)

    async def _stamp(self, log: str) -> int:
        asked = self._stamps.pop(log, None)
        return await (self.session.stamp(log, self._stamp_ms) if asked is None else asked)

    async def finish(self) -> tuple[StagedSegment, ...]:
        """Close what was written; without rows, too, the sink is there for the commit."""
        await self._state
        segments = await self.task.finish()
        await self._end()
        self.session.get_ready()  # For the next batch: Spark uses a worker again.
        return segments

    async def give_up(self) -> None:
        """Leave what was begun as it is, listed, for a sweep."""
        await self._end()
        await self.task.abandon()

    async def _end(self) -> None:
        await end_tasks([self._state, *self._stamps.values()], drop_errors=True)


def run_task(
    options: Options,
    columns: SinkColumns,
    job: JobId,
    partition: int,
    stamp_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    """Stage a task's rows, or hand them over where they are few; called in Spark's thread.

    Rows for logs that have the batch (a replay) are counted and not written. The same holds if that turns out only when
    something goes wrong: another driver may have published the batch and swept what this task was writing.
    """
    begin_use()
    way = commit_way(options, numbered=not job.sink_id.startswith(JOB_PREFIX))
    share = way.share(partition)
    if share:
        inline, looked_at = gather_inline(columns, partition, stamp_ms, share, batches)
        if inline is not None:
            fault_points.reach("sink.writing")
            fault_points.reach("sink.staged")
            return SinkMessage(job, inline=inline)
        if way.proxied:
            raise way.commit_mode_error(f"Task {partition} has rows for several logs, or more than fit into a request")
        batches = chain(looked_at, batches)
    message = _staged(options, columns, job, partition, stamp_ms, batches)
    fault_points.reach("sink.staged")
    return message


def _staged(
    options: Options,
    columns: SinkColumns,
    job: JobId,
    partition: int,
    stamp_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    runtime = Runtime.shared()
    opening = runtime.submit(_begin(options, columns, job, partition, stamp_ms))
    try:
        # Spark fetches the first rows while the session opens and asks.
        first = list(islice(batches, 1))
    except Exception:
        runtime.run(opening.result().give_up())
        raise
    staging = opening.result()
    seen: Counter[str] = Counter()
    rest = chain(first, batches)
    try:
        return _stage(runtime, staging, rest, seen)
    except Exception as error:
        runtime.run(staging.give_up())
        # The query's own errors, and rows that are refused, do not come from another driver's publication.
        if not isinstance(error, DistributedLogError) or isinstance(error, CallerError):
            raise
        return _replayed(runtime, staging, rest, seen, error)


async def _begin(options: Options, columns: SinkColumns, job: JobId, partition: int, stamp_ms: int) -> Staging:
    return Staging(await open_session(options), job, columns, partition, stamp_ms)


def _stage(runtime: Runtime, staging: Staging, batches: Iterator[pa.RecordBatch], seen: Counter[str]) -> SinkMessage:
    """Stage all rows; `seen` counts those that were looked at, by log."""
    task = staging.task
    pipe = _Pipe(runtime, task)
    for batch in batches:
        rows = task.split(batch)
        _count(rows, seen)
        unmet = task.unmet(rows)
        if unmet:
            runtime.run(staging.meet(unmet))
        for cut in task.take(rows):
            pipe.push(cut)
    for cut in task.rest():
        pipe.push(cut)
    pipe.drain()
    fault_points.reach("sink.writing")
    return SinkMessage(staging.job, runtime.run(staging.finish()), task.covered)


def _replayed(
    runtime: Runtime, staging: Staging, rest: Iterator[pa.RecordBatch], seen: Counter[str], error: DistributedLogError
) -> SinkMessage:
    """Return the message of a task that failed, if all of its logs have the batch by now. Raises `error` if one has
    not."""
    # The rows that were not looked at yet count as well: the commit compares rows by number.
    for batch in rest:
        _count(staging.task.split(batch), seen)
    if not seen or runtime.run(staging.session.covered(staging.job, list(seen))) != set(seen):
        raise error
    return SinkMessage(staging.job, covered=tuple(sorted(seen.items())))


def _count(rows: Sequence[LogRows], seen: Counter[str]) -> None:
    for part in rows:
        seen[part.log] += len(part.values)


class _Pipe:
    """Sends cuts in order, one at a time on the event loop while the next one is being encoded."""

    def __init__(self, runtime: Runtime, task: TaskWriter) -> None:
        self._runtime = runtime
        self._task = task
        self._under_way: Future[None] | None = None

    def push(self, cut: EntriesToSend) -> None:
        self.drain()  # one cut at a time: a log's entries are sent in the order of its rows (I4)
        self._under_way = self._runtime.submit(self._task.send(cut))

    def drain(self) -> None:
        """Wait for the cut under way. Raises what it failed with."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()
