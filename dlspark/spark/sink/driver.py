"""The driver's side of the sink: what is checked before a batch is written, and how it becomes visible at its end.

Spark calls `plan_columns` on the planner, then `commit_batch` or `abort_jobs` in a worker of the driver's. Like
`segments.task.run_task` they are called in Spark's thread, and drive coroutines on the process's `Runtime`.

`PublishingSession` is what only the driver does with the session that tasks know as well. It joins both ways of
writing: `segments` publishes, and has the marks of batches that were appended settled by `append`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dlspark.core.codec.records import MAX_TXID
from dlspark.core.runtime import Runtime
from dlspark.spark.connection import announced_proxies, near_log
from dlspark.spark.errors import AppenderStartError, ReplayDiffersError, SchemaError
from dlspark.spark.options.proxies import ProxyChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.append.clients import append_in_process
from dlspark.spark.sink.append.marks import AppendTools
from dlspark.spark.sink.batch_rules import CommitOutcome, log_sealed_error
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.commit_modes import CommitMode, CommitWay, commit_way
from dlspark.spark.sink.messages import InlineRows, JobId, Publication, SinkMessage, StagedSegment
from dlspark.spark.sink.row_cutting import FramePlan
from dlspark.spark.sink.segments.commit import ENDS_AT_ONCE, Publisher
from dlspark.spark.sink.segments.log_access import log_busy_error, log_missing_error
from dlspark.spark.sink.session import SinkSession, open_session
from dlspark.spark.worker_daemon import begin_use
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.sinks import JOB_PREFIX
from metadata.foundation import fault_points
from metadata.foundation.errors import check
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState
from storage_node.client.health import Members, outlast
from storage_node.errors import NotEnoughBookiesError

ABANDONED_JOBS_EVERY_S = 3600.0
READY_FOR_S = 60.0
"""A running query asks once whether it can write, and again only after a pause of this long."""
# Set only in the worker that plans a write; the commit's worker makes a writer as well, and must not ask again whether
# the batch could be written.
_PLANNER_MODULE = "pyspark.sql.worker.write_into_data_source"

_log = logging.getLogger(__name__)


def on_planner() -> bool:
    """Return whether this process plans writes, so that an error ends the query before any task runs."""
    return _PLANNER_MODULE in sys.modules


def plan_columns(options: Options, frame: FramePlan) -> SinkColumns:
    """Return where the columns are of a frame that is to be written (on the planner).

    Raises what would keep every task from writing: no ZooKeeper, too few storage nodes, a missing or sealed log; and
    SchemaError for columns that the log does not declare.
    """
    return Runtime.shared().run(_plan_columns(options, frame))


async def _plan_columns(options: Options, frame: FramePlan) -> SinkColumns:
    publishing = await open_publishing(options, patient=False)
    return await publishing.plan_columns(frame, options.proxies)


AppendBatch = Callable[[Options, BatchToAppend], "CommitOutcome | None"]


def commit_batch(
    options: Options,
    messages: Sequence[SinkMessage],
    batch: int,
    known_logs: tuple[str, ...] = (),
    append: AppendBatch = append_in_process,
) -> None:
    """Make a batch visible from its tasks' messages; called in the driver's commit worker.

    Args:
        options: the options of the write.
        messages: what the tasks that succeeded have reported.
        batch: the number that Spark commits.
        known_logs: the logs that the write names without a look at its rows.
        append: called where the batch is appended and not published as segments.

    Raises as `Publisher.publish` and `SinkAppender.append`.
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


def _one_publication(messages: Sequence[SinkMessage], known_logs: tuple[str, ...]) -> Publication | None:
    publications = gather(messages, known_logs)
    check(len(publications) <= 1, f"tasks of {len(publications)} different jobs are to be committed as one batch")
    return publications[0] if publications else None


def gather(messages: Iterable[SinkMessage], known: Sequence[str] = ()) -> list[Publication]:
    """Return the publications that `messages` belong to: one, unless tasks of different attempts were mixed up."""
    found: dict[JobId, list[SinkMessage]] = {}
    for message in messages:
        found.setdefault(message.job, []).append(message)
    return [_publication(job, parts, tuple(known)) for job, parts in found.items()]


def _publication(job: JobId, messages: Sequence[SinkMessage], known: tuple[str, ...]) -> Publication:
    covered: Counter[str] = Counter()
    for message in messages:
        for log, rows in message.covered:
            covered[log] += rows
    segments = tuple(segment for message in messages for segment in message.segments)
    inline = tuple(rows for message in messages for rows in message.inline)
    return Publication(job, segments, tuple(sorted(covered.items())), known, inline)


def _append(options: Options, way: CommitWay, publication: Publication, append: AppendBatch) -> bool:
    """Append the batch. False: it was not, and may be published as segments."""
    from dlspark.spark.sink.inline_rows import joined, no_rows

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
    """Make the log that a batch without rows names. Such a batch is not published through proxies: this is all there
    is to do."""
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


class PublishingSession:
    """An open session with what publishes its batches. All coroutines run on the process's `Runtime`."""

    def __init__(self, session: SinkSession) -> None:
        """Publish by `session`; what is seen of the logs is kept."""
        self.session = session
        self.append_tools = AppendTools.of(session)
        self.logs = self.append_tools.logs
        self.sweeper = self.append_tools.sweeper
        self._services = session.namespace.services
        self.publisher = Publisher(
            session.namespace.store, session.sinks, self.logs, clock=self._services.clock, settle=self._settle
        )
        self._abandoned_due_at = 0.0
        self._ready_until: dict[tuple[str, ...], float] = {}

    async def plan_columns(self, frame: FramePlan, proxies: ProxyChoice | None = None) -> SinkColumns:
        """Return where a frame's columns are, with what its logs declare asked beside `check_ready`. Raises as that,
        and SchemaError."""
        asked = frame.logs if frame.looks else ()
        looking = asyncio.ensure_future(self.session.declared.find(asked))
        try:
            await self.check_ready(frame.logs, proxies)
            declared = await looking
        finally:
            await end_tasks([looking], drop_errors=True)
        try:
            return frame.decide(declared)
        except SchemaError:
            if not asked:
                raise
        # What was declared a moment ago counts as well, where the frame does not fit without it.
        return frame.decide(await self.session.declared.find(asked, anew=True))

    async def check_ready(self, logs: tuple[str, ...], proxies: ProxyChoice | None = None) -> None:
        """Raise what would keep every task from writing: too few storage nodes, a log that is missing or sealed; or, of
        `proxies` that are to be found in the namespace, that there is none.

        A query that has just been found ready is not asked again: a storage node that fails while it runs is the
        ledger client's affair.
        """
        now = asyncio.get_running_loop().time()
        fresh = self._ready_until.get(logs, 0.0) > now
        if not fresh:
            await (self._check_storage() if proxies is None else self._check_proxies(proxies))
            await for_each(logs, ENDS_AT_ONCE, self._check_log)
        self._ready_until[logs] = now + READY_FOR_S

    async def _check_storage(self) -> None:
        ledgers = self._services.ledgers
        members = Members(ledgers.bookies, self.session.settings.quorums[0])
        await outlast(ledgers.settings.outage_wait_ms, self._check_nodes, members)

    async def _check_proxies(self, chosen: ProxyChoice) -> None:
        from dlspark.serving.process.membership import WRITE_PROXIES

        if chosen.discover:
            await announced_proxies(self.session.namespace, WRITE_PROXIES)

    async def _check_nodes(self) -> None:
        ensemble_size, _, _ = self.session.settings.quorums
        writable = len(await self._services.ledgers.bookies.writable())
        if writable < ensemble_size:
            raise NotEnoughBookiesError(
                f"{writable} storage nodes are writable, and a segment needs {ensemble_size}; no task was started",
                advice="Start storage nodes, or lower ensembleSize (with writeQuorumSize and ackQuorumSize)",
            )

    async def _check_log(self, log: str) -> None:
        highest = await self._highest_txid(log)
        if highest is None and not self.session.create_missing:
            raise log_missing_error(log, await near_log(self.session.namespace, log))
        if highest == MAX_TXID:
            raise log_sealed_error(log)

    async def _highest_txid(self, log: str) -> int | None:
        """Return the log's highest transaction id, without segments in progress; None if the log does not exist."""
        try:
            state = await self._services.logs.open(log)
        except LogNotFoundError:
            return None
        return state.max_txid.value

    def abandoned_jobs_due(self, *, always: bool) -> bool:
        """Return whether this commit should look for abandoned jobs: batch writes always do, a query now and then."""
        now = asyncio.get_running_loop().time()
        if not always and now < self._abandoned_due_at:
            return False
        self._abandoned_due_at = now + ABANDONED_JOBS_EVERY_S
        return True

    async def inline_staged(self, publication: Publication) -> Publication:
        """Return the batch with its inline rows in ledgers, as tasks stage theirs; those that its log has are only
        counted.

        Raises BatchRefusedError, and what writing raises; what was written is listed, for a sweep.
        """
        if not publication.inline:
            return publication
        from dlspark.spark.sink.segments.rewriting import write_rows

        job = publication.job
        state = await self.session.state(job)
        logs = sorted({part.log for part in publication.inline})
        covered = await self.session.covered(job, logs) if job.batch <= state.batch else set()
        counted = [(part.log, part.record_count) for part in publication.inline if part.log in covered]
        runs: list[InlineRows] = []
        for log in logs:
            if log not in covered:
                runs += await self._runs(publication, log)
        staged: list[StagedSegment] = []

        async def stage(run: InlineRows) -> None:
            staged.append(
                await write_rows(await self.session.create_ledger(job, run.log), run, self.session.compression)
            )

        await for_each(runs, ENDS_AT_ONCE, stage)
        segments = (*publication.segments, *staged)
        return replace(publication, segments=segments, covered=(*publication.covered, *counted), inline=())

    async def _runs(self, publication: Publication, log: str) -> list[InlineRows]:
        """Return the rows for one log in as few parts as there are ledgers to be written."""
        from dlspark.spark.sink.inline_rows import raised, runs_between

        parts = [part for part in publication.inline if part.log == log]
        staged = [one for one in publication.segments if one.log == log]
        if parts[0].stamp_ms is not None:
            # That of the tasks which have staged theirs, or the publication would have to write some again.
            stamp = max([await self.session.stamp(log, parts[0].stamp_ms), *(one.first_txid for one in staged)])
            parts = [replace(part, stamp_ms=stamp, first_txid=stamp, last_txid=stamp) for part in parts]
        elif parts[0].raisable:
            # What is raised here need not be written again by the publication.
            lowest = await self.session.stamp(log, 0)
            parts = [raised(part, lowest) for part in parts]
        return runs_between(parts, staged)

    async def _settle(self, log: str, sink_id: str) -> None:
        """Make the sink's mark in the log say everything (I20); a live owner of the log is waited for."""
        from dlspark.spark.sink.append.log_opening import settle  # a commit that settles nothing loads no writer

        try:
            await settle(self.append_tools, self.session.proxies, log, sink_id)
        except OwnershipAcquireFailedError as error:
            raise log_busy_error(log, error.owner) from error


_open: dict[SinkSession, PublishingSession] = {}


async def open_publishing(options: Options, *, patient: bool = True) -> PublishingSession:
    """Return this process's session for the target of `options`, to publish there. As `open_session`."""
    session = await open_session(options, patient=patient)
    if session not in _open:
        for ended in [one for one in _open if one.namespace.store.state is SessionState.CLOSED]:
            del _open[ended]
        _open[session] = PublishingSession(session)
    return _open[session]
