"""A log whose writer this process is, and into which it appends batches of sinks: each once, whole (I20).

A batch is one request of an idempotent producer: its name is the sink's id, its number the batch's. So the log itself
knows the newest batches (I19). The sink's mark in ZooKeeper is moved once in a few batches, and when the log is given
up. Both together are the truth, whoever asks:

| | who | conditional on | afterwards the mark |
|---|---|---|---|
| *enter* | the log's owner, before it appends | the mark as read since it is the owner | says that it lacks something |
| *fold* | the same | the mark as it was set last | lacks nothing up to now |
| *leave* | the same, with nothing under way | the same | says everything |
| publish segments | who has the lock (`commit`) | a mark that says everything, as read | says everything |

Why no batch is written twice. Whoever publishes segments needs a mark that says everything, at the version read; an
owner that enters moves that version. So a publication that was read before fails; and one that was applied before was
so before this owner's versions (I7), and *enter* reads what it has set. A mark that lacks something is settled first:
the log's owner (or its successor, after recovery) reads the producers and leaves. An owner that was deposed can neither
append (I5, I7) nor move the mark, for its successor's *enter* has moved the version; and before it appends anything as
an owner again, it enters anew.

The log's producers forget: all but the last KEPT requests, and who was silent for `producerExpirySeconds`. What a mark
lacks is never more than KEPT; and one that was set too long ago by a process that did not leave is refused.

Fault model: the process may die, or be stopped and wake up, at any line; any answer may be lost. After any error of the
writer or the metadata store the log is abandoned and opened again: recovery decides what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from dlspark.core.codec.producer_records import KEPT
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.sink.batch_rules import CommitOutcome, check_above, judge, old_logs, refusal, sealed
from dlspark.spark.sink.inline_rows import records
from dlspark.spark.sink.leftovers import LedgerSweeper
from dlspark.spark.sink.log_access import NamespaceLogs
from dlspark.spark.sink.messages import InlineRows, JobId, Publication
from metadata.foundation import fault_points
from metadata.foundation.errors import DistributedLogError, MetadataUnavailableError, NoNodeError
from metadata.ledgers import Versioned
from metadata.log_names import LogPaths
from metadata.retry import repeat
from metadata.sink_marks import NO_BATCH, LogMark, SinkState, history_kept
from metadata.sinks import SinkStore
from metadata.store import WatchEvent

MAX_UNFOLDED: Final = KEPT - 1
"""Batches that a mark may lack when another one is appended: with that one they are as many as the log remembers."""
SILENT_S: Final = 600.0
"""A sink that has appended nothing for so long is left, though others go on in the log: it would be forgotten."""
LOOK_AGAIN_S: Final = 5.0
"""How often an owner looks at least whether another client waits for its log."""
_HISTORY: Final = history_kept(1)
_AT_ONCE: Final = {"failFastOnStreamNotReady": False}
"""Settings of the writer: an append waits for the segment that is begun for it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppendTools:
    """What owned logs work with. `owner`: the name that other writers see."""

    namespace: AsyncNamespace
    logs: NamespaceLogs
    sinks: SinkStore
    sweeper: LedgerSweeper
    owner: str


@dataclass(slots=True)
class _Entered:
    """A sink that may append. `mark` is the whole truth, `stored` what is in ZooKeeper."""

    state: Versioned[SinkState]
    stored: Versioned[LogMark] | None
    mark: LogMark
    epoch: int
    unfolded: int = 0
    used_at: float = 0.0


class OwnedLog:
    """One log, its writer, and the sinks that have entered. One call at a time; after any error `abandon` it."""

    def __init__(self, tools: AppendTools, handle: AsyncLog, writer: AsyncLogWriter, paths: LogPaths) -> None:
        """Used by `open`."""
        self.log = handle.name
        self._tools = tools
        self._handle = handle
        self._writer = writer
        self._paths = paths
        self._sinks: dict[str, _Entered] = {}

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
        """Append a batch, unless the log has it. Raises BatchRefusedError and its leaves with nothing visible, and what
        writing raises."""
        await self._leave_silent(job.sink_id)
        sink = await self._enter(job.sink_id)
        sink.used_at = asyncio.get_running_loop().time()
        known = await self._known(sink, job, rows)
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
            await self._writer.commit()  # or readers would not see the batch before the next one
        fault_points.reach("sink.applied")
        sink.mark = sink.mark.moved(job.batch, job.attempt, rows.record_count, _HISTORY)
        sink.unfolded += 1
        return CommitOutcome.COVERED if repeated else CommitOutcome.PUBLISHED

    async def _known(self, sink: _Entered, job: JobId, rows: InlineRows) -> CommitOutcome | None:
        """What came of the batch before; None where it is to be appended. The rules are those of `commit` (I9)."""
        publication = Publication(job, (), inline=(rows,), known=(self.log,))
        marks = {} if sink.mark.batch == NO_BATCH else {self.log: Versioned(sink.mark, 0)}
        asked = old_logs(publication, sink.state.value, marks)
        histories = {log: await self._tools.logs.history(log) for log in asked}
        progress = judge(publication, sink.state, marks, histories)
        if progress.differing:
            raise refusal(publication, progress)
        return progress.outcome if rows.record_count else progress.outcome or CommitOutcome.PUBLISHED

    def _check_order(self, rows: InlineRows) -> None:
        highest = self._writer.last_txid
        if highest == MAX_TXID:
            raise sealed(self.log)
        if rows.stamp_ms is None:
            check_above(self.log, highest, rows)  # readers that go by transaction id rely on their order (I4)

    # ------------------------------------------------------------------ marks

    async def _enter(self, sink_id: str) -> _Entered:
        found = self._sinks.get(sink_id)
        if found is None:
            found = await self._read(sink_id)
            await self._set(sink_id, found, appending=True)  # also where it says so: what a former owner sends fails
            self._sinks[sink_id] = found
            await self._sweep(sink_id, found)
        return found

    async def _read(self, sink_id: str) -> _Entered:
        """What the mark and the log's producers say. As the owner, so nothing of a former one is applied any more."""
        state = await self._tools.sinks.ensure(sink_id)
        stored = await self._tools.sinks.mark_in(self._paths, sink_id)
        mark = stored.value if stored is not None else LogMark()
        producer = self._writer.producer_state(sink_id)
        if producer is None:
            self._check_remembered(sink_id, mark)
            return _Entered(state, stored, mark, 0)
        requests = ((sequence, count) for sequence, _, count in producer.kept)
        return _Entered(state, stored, mark.with_appended(requests, _HISTORY), producer.epoch)

    def _check_remembered(self, sink_id: str, mark: LogMark) -> None:
        """Raise where the log's producers may have forgotten what the mark lacks; else nothing was appended."""
        services = self._tools.namespace.services
        if mark.appending_ms is None:
            return
        expiry_ms = int(self._tools.namespace.settings.producer_expiry_s * 1000)
        if services.clock.now_ms() - mark.appending_ms >= expiry_ms // 2:
            raise BatchRefusedError(
                f"The process that appended batches of sink {sink_id} ended without a word, so long ago that the log "
                f"may have forgotten them (producerExpirySeconds): whether it has batches above {mark.batch} is not "
                "known; nothing was published now",
                log=self.log,
                advice="Look at the log's end; start behind it with an empty checkpoint, or with another txnAppId",
            )

    def fold_is_due(self, sink_id: str) -> bool:
        """Whether the mark lacks as many batches as it may."""
        found = self._sinks.get(sink_id)
        return found is not None and found.unfolded >= MAX_UNFOLDED

    async def fold(self, sink_id: str) -> None:
        """Move the mark to the last batch."""
        await self._set(sink_id, self._sinks[sink_id], appending=True)

    async def settle(self, sink_id: str) -> None:
        """Make the mark say everything: enough for who publishes segments into the log."""
        found = await self._read(sink_id)
        if found.stored is not None and found.stored.value.appending_ms is not None:
            await self._set(sink_id, found, appending=False)

    async def _set(self, sink_id: str, sink: _Entered, *, appending: bool) -> None:
        tools = self._tools
        now_ms = tools.namespace.services.clock.now_ms()
        mark = replace(sink.mark, appending_ms=now_ms if appending else None)
        state = await tools.sinks.read(sink_id)
        if state is None:
            raise NoNodeError(f"sink {sink_id} is gone", log=self.log)
        moved = replace(state.value, old=False)
        if mark.batch != NO_BATCH:
            moved = state.value.moved(mark.batch, mark.attempt, mark.rows_of(mark.batch) or 0)
        ops = tools.sinks.publish_ops(sink_id, state, moved, ())
        # Conditional on the version that this owner read or set: another owner's *enter* has moved it (I20).
        ops.append(tools.sinks.mark_op(self._paths, sink_id, sink.stored, mark))
        fault_points.reach("sink.before-mark")
        await tools.namespace.store.multi(ops)
        fault_points.reach("sink.marked")
        sink.state = Versioned(moved, state.version + 1)
        sink.stored = Versioned(mark, 0 if sink.stored is None else sink.stored.version + 1)
        sink.mark = mark
        sink.unfolded = 0

    async def _leave_silent(self, besides: str) -> None:
        oldest = asyncio.get_running_loop().time() - SILENT_S
        for sink_id, sink in list(self._sinks.items()):
            if sink_id != besides and sink.used_at < oldest:
                del self._sinks[sink_id]  # before it is left: it has to enter again
                await self._set(sink_id, sink, appending=False)

    async def _sweep(self, sink_id: str, sink: _Entered) -> None:
        """Sweep ledgers of failed attempts at batches that the log has. Never raises."""
        if sink.mark.batch != NO_BATCH:
            await self._tools.sweeper.after_commit(JobId(sink_id, sink.mark.batch, sink.mark.attempt), [self.log])

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
                await self._set(sink_id, sink, appending=False)
            except DistributedLogError as error:
                _log.warning("sink %s did not leave log %s, its next batch settles that: %s", sink_id, self.log, error)
            else:
                await self._sweep(sink_id, sink)
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
