"""`Staging`: one task with what it asks of the metadata store, so that the answers come while Spark gets the rows.

| asked for | why it may be asked before the rows are there |
|---|---|
| the sink | where nothing was published up to the batch, no log has it: their marks need not be asked |
| the highest transaction ids of logs that are known by name | a timestamp is a first choice, which the commit mends |
| a ledger id, the storage nodes | they belong to nobody yet |

A ledger is made when its log has its first rows, and where the sink is known to be there without waiting for what it
says: what a replay has made in vain is listed under a batch that is published, and goes with its commit's sweep. Rows
of a log whose mark has reached the batch are only counted: the commit says whether they are the ones that are there. No
entry is sent before the marks were seen, and none before its ledger exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dlspark.spark.sink.messages import JobId, StagedSegment
from dlspark.spark.sink.schema import LogRows, SinkColumns
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.task import StageSettings, TaskWriter
from metadata.foundation.errors import NoNodeError
from metadata.foundation.tasks import end_tasks
from storage_node.client import LedgerWriter

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
        """The logs that have the batch. Where nothing has got so far yet, none needs to be asked."""
        state = await self._state
        if self.job.batch > state.batch:
            return set()
        return await self.session.covered(self.job, [part.log for part in rows])

    async def _create(self, log: str) -> LedgerWriter:
        try:
            return await self.session.create_ledger(self.job, log)
        except NoNodeError:
            if not self._sink_seen:
                raise
            await self._state  # Somebody has removed the sink since the last task; by now it is there again.
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
