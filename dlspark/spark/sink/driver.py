"""The driver's side of the sink, called in Spark's thread: `check_ready` on the planner, `commit_batch`, `abort_jobs`.

Like `staging.run_task`, they drive coroutines on the process's `Runtime` and share its open session.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence

from dlspark.core.runtime import Runtime
from dlspark.spark.errors import AppenderStartError, ReplayDiffersError
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.append.clients import append_in_process
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.commit_modes import CommitMode, CommitWay, commit_way
from dlspark.spark.sink.inline_rows import joined, no_rows
from dlspark.spark.sink.messages import JobId, Publication, SinkMessage, gather
from dlspark.spark.sink.publishing import PublishingSession, open_publishing
from dlspark.spark.workers import begin_use
from metadata.distributedlog.sinks import JOB_PREFIX
from metadata.foundation import fault_points
from metadata.foundation.errors import check

# Set only in the worker that plans a write; the commit's worker makes a writer as well, and must not ask again whether
# the batch could be written.
_PLANNER_MODULE = "pyspark.sql.worker.write_into_data_source"

_log = logging.getLogger(__name__)


def on_planner() -> bool:
    """Return whether this process plans writes, so that an error ends the query before any task runs."""
    return _PLANNER_MODULE in sys.modules


def check_ready(options: Options, logs: tuple[str, ...]) -> None:
    """Raise what would keep every task from writing: no ZooKeeper, too few storage nodes, a missing or sealed log."""
    begin_use()
    Runtime.shared().run(_check_ready(options, logs))


async def _check_ready(options: Options, logs: tuple[str, ...]) -> None:
    publishing = await open_publishing(options, patient=False)
    await publishing.check_ready(logs, options.proxies)


AppendBatch = Callable[[Options, BatchToAppend], "CommitOutcome | None"]


def commit_batch(
    options: Options,
    messages: Sequence[SinkMessage],
    batch: int,
    known_logs: tuple[str, ...] = (),
    append: AppendBatch = append_in_process,
) -> None:
    """Make a batch visible from its tasks' messages; called in the driver's commit worker.

    `known_logs`: those that the write names without a look at its rows. `append` is called where the batch is appended
    and not published as segments. Raises as `Publisher.publish` and `SinkAppender.append`.
    """
    begin_use()
    publication = _one_publication(messages, known_logs)
    if publication is None:
        return
    check(publication.job.batch == batch, f"tasks wrote batch {publication.job.batch}, and {batch} is to be committed")
    numbered = not publication.job.sink_id.startswith(JOB_PREFIX)
    way = commit_way(options, numbered=numbered)
    if way.proxied and not publication.rows:
        Runtime.shared().run(_make_log(options, publication.job))
    elif not (way.appends(publication) and _append(options, way, publication, append)):
        Runtime.shared().run(_commit(options, publication))


def _append(options: Options, way: CommitWay, publication: Publication, append: AppendBatch) -> bool:
    """Append the batch. False: it was not, and may be published as segments."""
    rows = joined(publication.inline) if publication.inline else no_rows(publication.known[0])
    try:
        if append(options, BatchToAppend(publication.job, rows, way.idle_ms)) is None:
            return False
    except ReplayDiffersError as error:
        if options.flag("failOnDataLoss"):
            raise
        _log.warning("skipped, because failOnDataLoss is false: %s", error)
    except AppenderStartError as error:
        if way.mode is CommitMode.APPEND:
            raise
        _log.warning("%s is published as segments: %s", publication.job, error)
        return False
    fault_points.reach("sink.published")
    return True


async def _commit(options: Options, publication: Publication) -> CommitOutcome:
    publishing = await open_publishing(options)
    session = publishing.session
    if not publication.segments and not publication.job.sink_id.startswith(JOB_PREFIX):
        await session.state(publication.job)  # no task has made the sink
    if not publication.rows:
        await _create_named(publishing, options, publication.job)
    publication = await publishing.inline_staged(publication)
    commit = await publishing.publisher.publish(publication, skip_differing=not options.flag("failOnDataLoss"))
    fault_points.reach("sink.published")
    # The batch is visible from here on. A failure below leaves only garbage, which a later commit sweeps.
    sink_id = publication.job.sink_id
    # Before the sweep, which removes the sink of a finished job: that sink's znode shows the server's time.
    if publishing.abandoned_jobs_due(always=sink_id.startswith(JOB_PREFIX)):
        await publishing.sweeper.abandoned_jobs(sink_id)
    await publishing.sweeper.after_commit(publication.job, publication.logs, commit.left)
    return commit.outcome


async def _make_log(options: Options, job: JobId) -> None:
    """Note that all that there is to do for a batch without rows that is not published."""
    publishing = await open_publishing(options)
    await publishing.session.state(job)
    await _create_named(publishing, options, job)


async def _create_named(publishing: PublishingSession, options: Options, job: JobId) -> None:
    """Create the log that a batch without rows names, so that a query that reads it finds an empty log.

    Logs that rows name are not known without rows. A batch that was published before has created the log: if it is
    gone since, it was deleted, and is not made again.
    """
    log = None if options.given("numLogs") else options.one_log()
    if log is not None and not publishing.logs.known(log) and job.batch > (await publishing.session.state(job)).batch:
        await publishing.logs.prepare(log)


def abort_jobs(options: Options, jobs: Iterable[JobId]) -> None:
    """Sweep what aborted jobs have listed so far; tasks of theirs that still run add to it, for a later commit's sweep.

    A commit whose answer was lost is followed by an abort as well: what it published has no listing any more, so the
    sweep cannot touch it.
    """
    doomed = list(jobs)
    if doomed:
        Runtime.shared().run(_abort(options, doomed))


async def _abort(options: Options, jobs: Sequence[JobId]) -> None:
    publishing = await open_publishing(options)
    for job in jobs:
        await publishing.sweeper.own(job)


def _one_publication(messages: Sequence[SinkMessage], known_logs: tuple[str, ...]) -> Publication | None:
    publications = gather(messages, known_logs)
    check(len(publications) <= 1, f"tasks of {len(publications)} different jobs are to be committed as one batch")
    return publications[0] if publications else None
