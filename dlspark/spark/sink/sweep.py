"""Sweeping: removing the ledgers of failed attempts, after a commit that settled their batch.

A ledger is garbage once it is listed under a batch that the mark covers: the publication took the listings of its own
ledgers away in the same multi. The order is condemn (from here on no publication can take it, however late), delete the
ledger, remove the listing; a crash between leaves a listing for the next sweep. A task that is still writing to such a
ledger fails at its next metadata update, and nothing it wrote was ever visible.

Sweeping never fails a batch: it has been published by then. What could not be swept stays listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from metadata.errors import DistributedLogError
from metadata.sinks import JOB_PREFIX, SinkStore, StagedLedger

if TYPE_CHECKING:
    from dlspark.spark.sink.messages import JobId

MAX_SWEPT_PER_COMMIT = 500
"""Bound of the work that one commit does for failed attempts; the rest waits for the next commit."""
ABANDONED_AFTER_MS = 24 * 60 * 60 * 1000
"""A one-shot batch write whose newest ledger is older than this is taken for dead. If it lives it fails cleanly."""
_AT_ONCE = 16

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps the sinks of one namespace. `delete_ledger(id)` succeeds where there is no such ledger."""

    def __init__(self, sinks: SinkStore, delete_ledger: Callable[[int], Awaitable[None]]) -> None:
        self._sinks = sinks
        self._delete_ledger = delete_ledger

    async def after_commit(
        self, sink_id: str, published: int | None = None, left: Sequence[StagedLedger] | None = None
    ) -> int:
        """Sweep what the sink's mark has settled, and a finished one-shot sink itself. Returns the ledgers deleted.

        `published` is a batch that the mark is known to have reached; without it the mark is read. `left` is what there
        is to sweep, for who has listed it: what came since, from a task that did not know of the publication, is left
        to the next commit. Without it the listings are read.
        """
        try:
            if left is None:
                left = await self._settled(sink_id, published)
            swept = await self._sweep(sink_id, left[:MAX_SWEPT_PER_COMMIT])
            if sink_id.startswith(JOB_PREFIX) and not await self._sinks.remove(sink_id):
                # No other commit will come by.
                swept += await self._sweep(sink_id, (await self._settled(sink_id, published))[:MAX_SWEPT_PER_COMMIT])
                await self._sinks.remove(sink_id)
            return swept
        except DistributedLogError as error:
            _log.warning("left-over ledgers of sink %s were not swept, the next commit tries again: %s", sink_id, error)
            return 0

    async def _settled(self, sink_id: str, published: int | None) -> list[StagedLedger]:
        """What is listed of batches that the mark has reached."""
        if published is None:
            mark = await self._sinks.read(sink_id)
            if mark is None:
                return []
            published = mark.value.batch
        return [ledger for ledger in await self._sinks.staged(sink_id) if ledger.batch <= published]

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
