"""`Staging`: one task with what it asks of the metadata store, so that the answers come while Spark gets the rows.

| asked for | why it may be asked before the rows are there |
|---|---|
| the mark | it only rises (D15): a batch that it covers stays published |
| the highest transaction ids of logs that are known by name | a timestamp is a first choice, which the commit mends |
| a ledger id, the storage nodes | they belong to nobody yet |

A ledger is made when its log has its first rows, and where the sink is known to be there without waiting for the mark:
what a replay has made in vain is listed under a batch that is published, and goes with its commit's sweep. No entry is
sent before the mark was seen, and none before its ledger exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dlspark.spark.sink.messages import JobId, StagedSegment
from dlspark.spark.sink.schema import LogRows, SinkColumns
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.task import StageSettings, TaskWriter
from metadata.errors import NoNodeError
from metadata.tasks import end_tasks
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
        self._covered = asyncio.ensure_future(session.covered(job))
        logs = columns.known_logs if columns.transaction_id is None else ()
        self._stamps = {log: asyncio.ensure_future(session.stamp(log, stamp_ms)) for log in logs[:STAMPS_AHEAD]}
        session.get_ready()

    async def meet(self, rows: Sequence[LogRows]) -> bool:
        """Get ready for new logs. True: the batch has been published before, and nothing of it is to be written."""
        if not self._sink_seen and await self._covered:
            return True
        await self.task.meet(rows)
        return await self._covered

    async def _create(self) -> LedgerWriter:
        try:
            return await self.session.create_ledger(self.job)
        except NoNodeError:
            if not self._sink_seen:
                raise
            await self._covered  # Somebody has removed the sink since the last task; by now it is there again.
            return await self.session.create_ledger(self.job)

    async def _stamp(self, log: str) -> int:
        asked = self._stamps.pop(log, None)
        return await (self.session.stamp(log, self._stamp_ms) if asked is None else asked)

    async def finish(self) -> tuple[StagedSegment, ...]:
        """Close what was written; without rows, too, the sink is there for the commit."""
        await self._covered
        segments = await self.task.finish()
        await self._end()
        self.session.get_ready()  # For the next batch: Spark uses a worker again.
        return segments

    async def give_up(self) -> None:
        """Leave what was begun as it is, listed, for a sweep."""
        await self._end()
        await self.task.abandon()

    async def _end(self) -> None:
        await end_tasks([self._covered, *self._stamps.values()], drop_errors=True)
