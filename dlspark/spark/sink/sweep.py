"""Sweeping: removing the ledgers of failed attempts, after a commit that settled their batch.

A ledger is garbage once it is listed under a batch that its log's mark has reached: the publication took the listings
of its own ledgers away in the same multi. A listing's name says which log it is for, so a commit sweeps what is for its
own logs, and nothing that a fork of the query may still publish into others. The order is condemn (from here on no
publication can take it, however late), delete the ledger, remove the listing; a crash between leaves a listing for the
next sweep. A task that is still writing to such a ledger fails at its next metadata update, and nothing it wrote was
ever visible.

Sweeping never fails a batch: it has been published by then. What could not be swept stays listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from metadata.foundation.errors import DistributedLogError
from metadata.sinks import JOB_PREFIX, SinkStore, StagedLedger, log_tag

if TYPE_CHECKING:
    from dlspark.spark.sink.messages import JobId

MAX_SWEPT_PER_COMMIT = 20_000
"""Bound of the work that one commit does for failed attempts; the rest waits for the next commit."""
ABANDONED_AFTER_MS = 24 * 60 * 60 * 1000
"""A one-shot batch write whose newest ledger is older than this is taken for dead. If it lives it fails cleanly."""
_AT_ONCE = 16

_log = logging.getLogger(__name__)


def settled_by(job: JobId, logs: Iterable[str], listed: Iterable[StagedLedger]) -> list[StagedLedger]:
    """Of what is listed, what a commit of `job` has settled: its `logs` have the batch now.

    That is what any attempt has staged for these logs up to the batch, and whatever else the job itself has staged.
    What an older dlspark has listed is for logs unknown, but it cannot publish any more beside what has just been.
    """
    tags = {log_tag(log) for log in logs}
    return [
        one
        for one in listed
        if (one.batch, one.attempt) == (job.batch, job.attempt)
        or (one.batch <= job.batch and (one.tag in tags or not one.tag))
    ]


class Sweeper:
    """Sweeps the sinks of one namespace. `delete_ledger(id)` succeeds where there is no such ledger."""

    def __init__(self, sinks: SinkStore, delete_ledger: Callable[[int], Awaitable[None]]) -> None:
        self._sinks = sinks
        self._delete_ledger = delete_ledger

    async def after_commit(self, job: JobId, logs: Sequence[str], left: Sequence[StagedLedger] | None = None) -> int:
        """Sweep what a commit has settled, and a finished one-shot sink itself. Returns the ledgers deleted.

        `logs` are those of the batch; each has it now. `left` is what there is to sweep, for who has listed it: what
        came since, from a task that did not know of the publication, is left to the next commit. Without it the
        listings are read.
        """
        sink_id = job.sink_id
        try:
            if left is None:
                left = settled_by(job, logs, await self._sinks.staged(sink_id))
            swept = await self._sweep(sink_id, left[:MAX_SWEPT_PER_COMMIT])
            if sink_id.startswith(JOB_PREFIX) and not await self._sinks.remove(sink_id):
                # No other commit will come by.
                swept += await self._sweep(sink_id, await self._sinks.staged(sink_id))
                await self._sinks.remove(sink_id)
            return swept
        except DistributedLogError as error:
            _log.warning("left-over ledgers of sink %s were not swept, the next commit tries again: %s", sink_id, error)
            return 0

    async def own(self, job: JobId) -> int:
        """Sweep the ledgers of a job that its own driver has given up.

        Needs no look at the mark: ledgers that were published after all (the answer was lost) have no listing, so they
        cannot be condemned; and if a publication is still under way, condemning decides against it.
        """
        try:
            staged = await self._sinks.staged(job.sink_id)
            mine = [ledger for ledger in staged if (ledger.batch, ledger.attempt) == (job.batch, job.attempt)]
            swept = await self._sweep(job.sink_id, mine[:MAX_SWEPT_PER_COMMIT])
            if job.sink_id.startswith(JOB_PREFIX):
                await self._sinks.remove(job.sink_id)
            return swept
        except DistributedLogError as error:
            _log.warning("ledgers of aborted %s were not swept, a later commit does so: %s", job, error)
            return 0

    async def abandoned_jobs(self, sink_id: str) -> int:
        """Sweep one-shot sinks whose job died a day ago; `sink_id`, just written to, tells the server's time."""
        try:
            current = await self._sinks.stat(sink_id)
            if current is None:
                return 0
            swept = 0
            for other in await self._sinks.sinks():
                if other.startswith(JOB_PREFIX) and other != sink_id:
                    swept += await self._abandoned_job(other, current.mtime_ms - ABANDONED_AFTER_MS)
                if swept >= MAX_SWEPT_PER_COMMIT:
                    break
            return swept
        except DistributedLogError as error:
            _log.warning("abandoned batch writes were not swept, a later commit tries again: %s", error)
            return 0

    async def ledgers(self, sink_id: str, ledgers: Iterable[StagedLedger]) -> int:
        """Sweep these, whoever chose them; one that was published meanwhile is left alone. Returns how many.

        Raises what the metadata store or the deletion raised; what was not swept stays listed.
        """
        return await self._sweep(sink_id, ledgers)

    async def _abandoned_job(self, sink_id: str, before_ms: int) -> int:
        stat = await self._sinks.stat(sink_id)
        if stat is None or stat.mtime_ms >= before_ms:
            return 0
        staged = await self._sinks.staged(sink_id)
        for ledger in staged:
            listing = await self._sinks.stat(sink_id, ledger)
            if listing is not None and listing.ctime_ms >= before_ms:
                return 0
        swept = await self._sweep(sink_id, staged)
        await self._sinks.remove(sink_id)
        return swept

    async def _sweep(self, sink_id: str, ledgers: Iterable[StagedLedger]) -> int:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(ledger: StagedLedger) -> bool:
            async with gate:
                if not await self._sinks.condemn(sink_id, ledger):
                    return False
                await self._delete_ledger(ledger.ledger_id)
                await self._sinks.forget(sink_id, ledger)
                return True

        results = await asyncio.gather(*map(one, ledgers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(result is True for result in results)
