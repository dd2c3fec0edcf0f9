"""What only the driver does with an open session: see whether a batch could be written, and publish it.

It joins both ways of writing to the session that the tasks know as well: `segments` publishes, and has the marks of
batches that were appended settled by `append`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.missing_logs import near_log
from dlspark.spark.options.proxies import ProxyChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.marks import AppendTools
from dlspark.spark.sink.batch_rules import log_sealed_error
from dlspark.spark.sink.inline_rows import runs_between
from dlspark.spark.sink.messages import InlineRows, Publication, StagedSegment
from dlspark.spark.sink.segments.commit import ENDS_AT_ONCE, Publisher
from dlspark.spark.sink.segments.log_access import log_busy_error, log_missing_error
from dlspark.spark.sink.segments.merging import write_rows
from dlspark.spark.sink.session import SinkSession, open_session
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.pacing import for_each
from metadata.store import SessionState
from storage_node.client.health import Members, outlast
from storage_node.errors import NotEnoughBookiesError

ABANDONED_JOBS_EVERY_S = 3600.0
READY_FOR_S = 60.0
"""A running query asks once whether it can write, and again only after a pause of this long."""


class PublishingSession:
    """An open session with what publishes its batches. All coroutines run on the process's `Runtime`."""

    def __init__(self, session: SinkSession) -> None:
        """One of a session: it keeps what it has seen of the logs."""
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
        from dlspark.spark.announced_proxies import announced_proxies

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
        parts = [part for part in publication.inline if part.log == log]
        staged = [one for one in publication.segments if one.log == log]
        if parts[0].stamp_ms is not None:
            # That of the tasks which have staged theirs, or the publication would have to write some again.
            stamp = max([await self.session.stamp(log, parts[0].stamp_ms), *(one.first_txid for one in staged)])
            parts = [replace(part, stamp_ms=stamp, first_txid=stamp, last_txid=stamp) for part in parts]
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
