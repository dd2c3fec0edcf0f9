"""Running the sink from Spark's threads: `run_task` in a task, `commit_batch` and `abort_batch` on the driver.

These are the only synchronous parts; they drive coroutines on the process's `Runtime` and share its open session.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TYPE_CHECKING

from dlspark.core.runtime import Runtime
from dlspark.spark.options.registry import Options
from dlspark.spark.sink.messages import JobId, Publication, SinkMessage, gather
from dlspark.spark.sink.schema import LogRows, SinkColumns
from dlspark.spark.sink.session import SinkSession, open_session
from dlspark.spark.sink.staging import Staging
from dlspark.spark.sink.standing import Outcome
from dlspark.spark.sink.task import Cut, TaskWriter
from dlspark.spark.worker_memory import begin_use
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, DistributedLogError, check
from metadata.sinks import JOB_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

# Set only in the worker that plans a write; the commit's worker makes a writer as well, and must not ask again whether
# the batch could be written.
_PLANNER_MODULE = "pyspark.sql.worker.write_into_data_source"


def on_planner() -> bool:
    """Whether this process plans writes, so that an error ends the query before any task runs."""
    return _PLANNER_MODULE in sys.modules


def check_ready(options: Options, logs: tuple[str, ...]) -> None:
    """Raise what would keep every task from writing: no ZooKeeper, too few storage nodes, a missing or sealed log."""
    begin_use()
    Runtime.shared().run(_check_ready(options, logs))


async def _check_ready(options: Options, logs: tuple[str, ...]) -> None:
    session = await open_session(options, patient=False)
    await session.check_ready(logs)


def run_task(
    options: Options,
    columns: SinkColumns,
    job: JobId,
    partition: int,
    stamp_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    """Stage a task's rows; called in Spark's thread.

    Rows for logs that have the batch (a replay) are counted and not written. The same holds if that turns out only when
    something goes wrong: another driver may have published the batch and swept what this task was writing.
    """
    begin_use()
    runtime = Runtime.shared()
    opening = runtime.submit(_begin(options, columns, job, partition, stamp_ms))
    try:
        first = list(islice(batches, 1))
    except Exception:
        runtime.run(opening.result().give_up())
        raise
    staging = opening.result()
    seen: Counter[str] = Counter()
    rest = chain(first, batches)
    try:
        message = _stage(runtime, staging, rest, seen)
    except Exception as error:
        runtime.run(staging.give_up())
        if not isinstance(error, DistributedLogError) or isinstance(error, CallerError):
            raise
        message = _replayed(runtime, staging, rest, seen, error)
    fault_points.reach("sink.staged")
    return message


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
    """What a task that failed has to tell if all of its logs have the batch by now. Raises `error` if one has not."""
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

    def push(self, cut: Cut) -> None:
        self.drain()
        self._under_way = self._runtime.submit(self._task.send(cut))

    def drain(self) -> None:
        """Wait for the cut under way. Raises what it failed with."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()


def commit_batch(
    options: Options, messages: Sequence[SinkMessage], batch: int, known_logs: tuple[str, ...] = ()
) -> None:
    """Publish a batch from its tasks' messages; called in the driver's commit worker. Raises as `Publisher.publish`.

    `known_logs`: those that the write names without a look at its rows.
    """
    begin_use()
    publication = _one_publication(messages, known_logs)
    if publication is None:
        return
    check(publication.job.batch == batch, f"tasks wrote batch {publication.job.batch}, and {batch} is to be committed")
    Runtime.shared().run(_commit(options, publication))


async def _commit(options: Options, publication: Publication) -> Outcome:
    session = await open_session(options)
    if not publication.rows:
        await _create_named(session, options, publication.job)
    commit = await session.publisher.publish(publication, skip_differing=not options.flag("failOnDataLoss"))
    fault_points.reach("sink.published")
    sink_id = publication.job.sink_id
    # Before the sweep: it removes the sink of a finished job, which is the one that tells the server's time.
    if session.abandoned_jobs_due(always=sink_id.startswith(JOB_PREFIX)):
        await session.sweeper.abandoned_jobs(sink_id)
    await session.sweeper.after_commit(publication.job, publication.logs, commit.left)
    return commit.outcome


async def _create_named(session: SinkSession, options: Options, job: JobId) -> None:
    """A batch without rows has the log that it names created, too, so that what it wrote can be read: no rows.

    Logs that rows name have none to name them. A batch that was published before has created it, and if it is gone
    since, somebody has deleted it.
    """
    log = None if options.given("numLogs") else options.one_log()
    if log is not None and not session.logs.known(log) and job.batch > (await session.state(job)).batch:
        await session.logs.prepare(log)


def abort_jobs(options: Options, jobs: Iterable[JobId]) -> None:
    """Sweep what aborted jobs have listed so far; tasks of theirs that still run add to it, for a later commit's sweep.

    A commit whose answer was lost is followed by an abort as well: what it published has no listing any more, so the
    sweep cannot touch it.
    """
    doomed = list(jobs)
    if doomed:
        Runtime.shared().run(_abort(options, doomed))


async def _abort(options: Options, jobs: Sequence[JobId]) -> None:
    session = await open_session(options)
    for job in jobs:
        await session.sweeper.own(job)


def _one_publication(messages: Sequence[SinkMessage], known_logs: tuple[str, ...]) -> Publication | None:
    publications = gather(messages, known_logs)
    check(len(publications) <= 1, f"tasks of {len(publications)} different jobs are to be committed as one batch")
    return publications[0] if publications else None
