"""A log whose writer this process is, and into which it appends batches of sinks: each once, whole (I20).

A batch is one request of an idempotent producer: its name is the sink's id, its number the batch's. So the log itself
knows the newest batches (I19). The sink's mark in ZooKeeper is moved once in a few batches, and when the log is given
up. Both together are the truth, whoever asks:

| | by | conditional on | afterwards the mark |
|---|---|---|---|
| *enter* | the log's owner, before it appends | the mark as read since it is the owner | says that it lacks something |
| *fold* | the same | the mark as it was set last | lacks nothing up to now |
| *leave* | the same, with nothing under way | the same | says everything |
| publish segments | the holder of the lock (`commit`) | a mark that says everything, as read | says everything |

Why no batch is written twice. Whoever publishes segments needs a mark that says everything, at the version read; an
owner that enters moves that version. So a publication that was read before fails; and one that was applied before was
so before this owner's versions (I7), and *enter* reads what it has set. A mark that lacks something is settled first:
the log's owner (or its successor, after recovery) reads the producers and leaves. An owner that was deposed can neither
append (I5, I7) nor move the mark, for its successor's *enter* has moved the version; and before it appends anything as
an owner again, it enters anew.

Each *enter* has an epoch of its own, which the mark names. Where the mark names a batch that was perhaps sent to a
proxy (`proxied_log`) and the log does not have it, that epoch is begun in the log before the mark is moved: what is
still on its way is refused then, whoever owns the log when it arrives.

The log's producers forget: all but the last KEPT requests, producers that were silent for `producerExpirySeconds`, and
what lay in segments that were deleted. What a mark lacks is never more than KEPT. Of the others the log says up to
which epoch it has forgotten some. Where it does not know the sink, and that epoch is not below the mark's, it is not
known what the mark lacks: that is refused (I20). Each *enter* takes an epoch above both.

Fault model: the process may die, or be stopped and wake up, at any line; any answer may be lost. After any error of the
writer or the metadata store the log is abandoned and opened again: recovery decides what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from dlspark.core.codec.producer_records import KEPT, ProducerState
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.log import AsyncLog
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.spark.sink.append.marks import HISTORY, AppendTools, KeptMark
from dlspark.spark.sink.batch_rules import CommitOutcome, check_above, log_sealed_error
from dlspark.spark.sink.inline_rows import records
from dlspark.spark.sink.messages import InlineRows, JobId
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.sink_marks import LogMark
from metadata.foundation import fault_points
from metadata.foundation.errors import DistributedLogError, MetadataUnavailableError, NoNodeError, OutcomeUnknownError
from metadata.retry import repeat
from metadata.store import WatchEvent

MAX_UNFOLDED: Final = KEPT - 1
"""Batches that a mark may lack when another one is appended: with that one they are as many as the log remembers."""
SILENT_S: Final = 600.0
"""A sink that has appended nothing for so long is left, though others go on in the log: it would be forgotten."""
LOOK_AGAIN_S: Final = 5.0
"""How often an owner looks at least whether another client waits for its log."""
_AT_ONCE: Final = {"failFastOnStreamNotReady": False}
"""Settings of the writer: an append waits for the segment that is begun for it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _EnteredSink:
    """A sink that may append."""

    kept: KeptMark
    epoch: int
    unfolded: int = 0
    used_at: float = 0.0


class OwnedLog:
    """One log, its writer, and the sinks that have entered. One call at a time; after any error `abandon` it."""

    def __init__(self, tools: AppendTools, handle: AsyncLog, writer: AsyncLogWriter, paths: LogPaths) -> None:
        """Keep what `open` has opened."""
        self.log = handle.name
        self._tools = tools
        self._handle = handle
        self._writer = writer
        self._paths = paths
        self._sinks: dict[str, _EnteredSink] = {}

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log, as `AppendedLog.is_owner`: it does."""
        return True

    @classmethod
    async def open(cls, tools: AppendTools, log: str) -> OwnedLog:
        """Become the log's owner; it is created where that is allowed.

        Raises OwnershipAcquireFailedError naming the owner, BatchRefusedError for a log that is missing, and what
        opening a writer raises.
        """
        await tools.logs.prepare(log)
        handle = await tools.namespace.open_log(log, _AT_ONCE)
        try:
            writer = await handle.open_writer(tools.owner, producers=True, gaps_allowed=True)
        except BaseException:
            await handle.close()
            raise
        return cls(tools, handle, writer, tools.namespace.services.logs.paths(log))

    # ------------------------------------------------------------------ batches

    async def append(self, job: JobId, rows: InlineRows) -> CommitOutcome:
        """Append a batch, unless the log has it. Raises BatchRefusedError and its leaves with nothing visible,
        OutcomeUnknownError where it is stored and readers may not see it yet, and what writing raises."""
        await self._leave_silent(job.sink_id)
        sink = await self._enter(job.sink_id)
        sink.used_at = asyncio.get_running_loop().time()
        known = await sink.kept.known(job, rows)
        if known is not None:
            return known
        self._check_order(rows)
        if self.fold_is_due(job.sink_id):
            await self.fold(job.sink_id)
        fault_points.reach("sink.before-publish")
        appended = self._writer.append(
            records(rows, self._writer.last_txid), producer=job.sink_id, epoch=sink.epoch, sequence=job.batch
        )
        await self._writer.send()
        repeated = (await appended).repeated
        if not self._tools.namespace.services.ledgers.settings.explicit_lac_interval_ms:
            await self._make_visible(job)
        fault_points.reach("sink.applied")
        sink.kept.mark = sink.kept.mark.moved(job.batch, job.attempt, rows.record_count, HISTORY)
        sink.unfolded += 1
        return CommitOutcome.COVERED if repeated else CommitOutcome.PUBLISHED

    async def _make_visible(self, job: JobId) -> None:
        """Show readers a batch that is stored: they would not see it before the next one."""
        try:
            await self._writer.commit()
        except DistributedLogError as error:
            # A writer that has failed says of each later step that it was not done. So it was: but the batch is on the
            # disks of an ack quorum, and whoever recovers the log shows it. It must not pass for one that is not there.
            raise OutcomeUnknownError(
                f"{job} is stored, and readers may not see it before the log is opened again: {error.message}",
                log=self.log,
            ) from error

    def _check_order(self, rows: InlineRows) -> None:
        highest = self._writer.last_txid
        if highest == MAX_TXID:
            raise log_sealed_error(self.log)
        if rows.stamp_ms is None and not rows.raisable:
            check_above(self.log, highest, rows)  # readers that go by transaction id rely on their order (I4)

    # ------------------------------------------------------------------ marks

    async def _enter(self, sink_id: str) -> _EnteredSink:
        found = self._sinks.get(sink_id)
        if found is not None and self._is_forgotten(sink_id, found):
            await self._set(found, appending=False)  # the mark says what the log does not know any more
            del self._sinks[sink_id]
            found = None
        if found is None:
            kept = await self._read(sink_id)
            found = _EnteredSink(kept, self._next_epoch(kept))
            await self._set(found, appending=True)  # also where it says so: what a former owner sends fails
            self._sinks[sink_id] = found
            await kept.sweep()
        return found

    async def _read(self, sink_id: str) -> KeptMark:
        """Return what the mark and the log's producers say. As the owner, so nothing of a former one is applied any
        more; nor will be what is on its way to a proxy."""
        kept = await KeptMark.read(self._tools, self.log, sink_id)
        producer = self._writer.producer_state(sink_id)
        if producer is None:
            kept.check_known(self._writer.forgotten_epoch)
        kept.mark = with_producer(kept.mark, producer)
        if kept.mark.sent is not None:
            epoch = self._next_epoch(kept)
            await self._writer.begin_epoch(sink_id, epoch)
            kept.mark = replace(kept.mark, epoch=epoch, sent=None)
        return kept

    def _is_forgotten(self, sink_id: str, sink: _EnteredSink) -> bool:
        """Return whether the log has forgotten the sink meanwhile: others went on in it, and the sink was silent for
        long."""
        return sink.epoch <= self._writer.forgotten_epoch and self._writer.producer_state(sink_id) is None

    def _next_epoch(self, kept: KeptMark) -> int:
        """Return an epoch in which nothing of the sink was ever written."""
        return max(kept.mark.epoch, self._writer.forgotten_epoch) + 1

    def fold_is_due(self, sink_id: str) -> bool:
        """Return whether the mark lacks as many batches as it may."""
        found = self._sinks.get(sink_id)
        return found is not None and found.unfolded >= MAX_UNFOLDED

    async def fold(self, sink_id: str) -> None:
        """Move the mark to the last batch."""
        await self._set(self._sinks[sink_id], appending=True)

    async def settle(self, sink_id: str) -> None:
        """Make the mark say everything: enough for another driver to publish segments into the log."""
        kept = await self._read(sink_id)
        if kept.lacks_something:
            await kept.move(replace(kept.mark, appending_ms=None))

    async def _set(self, sink: _EnteredSink, *, appending: bool) -> None:
        kept = sink.kept
        await kept.move(replace(kept.mark, appending_ms=kept.now_ms if appending else None, epoch=sink.epoch))
        sink.unfolded = 0

    async def _leave_silent(self, besides: str) -> None:
        oldest = asyncio.get_running_loop().time() - SILENT_S
        for sink_id, sink in list(self._sinks.items()):
            if sink_id != besides and sink.used_at < oldest:
                del self._sinks[sink_id]  # before it is left: it has to enter again
                await self._set(sink, appending=False)

    # ------------------------------------------------------------------ the end

    async def wanted(self) -> None:
        """Return when another client waits for the log's lock."""
        store = self._tools.namespace.store
        while True:
            moved = asyncio.Event()

            def wake(_: WatchEvent, moved: asyncio.Event = moved) -> None:
                moved.set()

            try:
                names, _ = await repeat(store, lambda wake=wake: store.children(self._paths.lock, wake))  # type: ignore[misc]
            except NoNodeError:
                return  # the log is gone
            except MetadataUnavailableError:
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if len(names) > 1:
                return
            # A watch ends with its session, and nothing wakes us then.
            again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, moved.set)
            await moved.wait()
            again.cancel()

    async def close(self) -> None:
        """Leave all sinks, complete the segment, give the lock up. Never raises: what is not done is the next owner's.

        Only where nothing is under way: a request without an answer may be in the log (I20).
        """
        sinks, self._sinks = self._sinks, {}
        for sink_id, sink in sinks.items():
            try:
                await self._set(sink, appending=False)
            except DistributedLogError as error:
                _log.warning("sink %s did not leave log %s, its next batch settles that: %s", sink_id, self.log, error)
            else:
                await sink.kept.sweep()
        fault_points.reach("sink.left")
        await self._end(self._writer.close)

    async def abandon(self) -> None:
        """Give the lock up and leave everything else as it is, for the next owner's recovery. Never raises."""
        self._sinks = {}
        await self._end(self._writer.abort)

    async def _end(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
            await self._handle.close()
        except DistributedLogError as error:
            _log.warning("log %s was given up with its segment as it was: %s", self.log, error)


def with_producer(mark: LogMark, producer: ProducerState | None) -> LogMark:
    """Return the mark with the batches that the log has above it, and with the newest epoch that the mark or the log
    has.

    `sent` is left where the log does not have that batch. Read by the log's owner, with nothing under way.
    """
    if producer is None:
        return mark
    newest = max(mark.epoch, producer.epoch)
    found = mark
    if mark.sent is not None:
        # Its number is not the batch's: a proxy may take no gaps.
        rows = [one.records for one in producer.kept if one.sequence == mark.sent.number]
        if rows and producer.epoch == mark.epoch:
            found = mark.with_appended([(mark.sent.batch, rows[0])], HISTORY)
    elif mark.appending_ms is not None and producer.epoch >= mark.epoch:
        found = mark.with_appended(((one.sequence, one.records) for one in producer.kept), HISTORY)
    return replace(found, epoch=newest, appending_ms=mark.appending_ms)
