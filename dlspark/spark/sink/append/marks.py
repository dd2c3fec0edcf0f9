"""`KeptMark`: the mark of one sink in one log, as a process that appends batches of the sink keeps it.

It is read, held against a batch that is to be appended, and moved, always at the version that this process has read or
set last. So of two processes that move it one fails, and reads again (I20).

Fault model: the answer to a move may be lost. Then what was read is not what is stored any more, and everything that
depends on it is begun anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.sink.batch_rules import CommitOutcome, judge, old_logs, replay_differs_error
from dlspark.spark.sink.messages import InlineRows, JobId, Publication
from dlspark.spark.sink.segments.leftovers import LedgerSweeper
from dlspark.spark.sink.segments.log_access import NamespaceLogs, session_logs
from dlspark.spark.sink.session import SinkSession
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.sink_marks import NO_BATCH, LogMark, SinkState, history_kept
from metadata.distributedlog.sinks import SinkStore
from metadata.foundation import fault_points
from metadata.foundation.errors import NoNodeError

HISTORY: Final = history_kept(1)
"""Batches whose rows the mark keeps."""


@dataclass(frozen=True, slots=True)
class AppendTools:
    """The tools that appending works with. `owner`: the name that other writers see."""

    namespace: AsyncNamespace
    logs: NamespaceLogs
    sinks: SinkStore
    sweeper: LedgerSweeper
    owner: str

    @classmethod
    def of(cls, session: SinkSession) -> AppendTools:
        """Return the tools for a session's namespace."""
        sweeper = LedgerSweeper(session.sinks, session.namespace.services.ledgers.delete)
        return cls(session.namespace, session_logs(session), session.sinks, sweeper, session.owner)


class KeptMark:
    """One mark. `mark` is what this process knows; what is in ZooKeeper may lack some of it."""

    def __init__(
        self,
        tools: AppendTools,
        log: str,
        sink_id: str,
        state: Versioned[SinkState],
        stored: Versioned[LogMark] | None,
    ) -> None:
        """Keep what `read` has found."""
        self.sink_id = sink_id
        self.mark = stored.value if stored is not None else LogMark()
        self._tools = tools
        self._log = log
        self._paths = _paths(tools, log)
        self._state = state
        self._stored = stored

    @classmethod
    async def read(cls, tools: AppendTools, log: str, sink_id: str) -> KeptMark:
        """Return the mark as it is stored; the sink is made if this is its first batch."""
        state = await tools.sinks.ensure(sink_id)
        return cls(tools, log, sink_id, state, await tools.sinks.mark_in(_paths(tools, log), sink_id))

    @property
    def lacks_something(self) -> bool:
        """Whether the mark is stored as one that is not the whole truth."""
        return self._stored is not None and self._stored.value.appending_ms is not None

    @property
    def now_ms(self) -> int:
        """The time that a mark carries."""
        return self._tools.namespace.services.clock.now_ms()

    async def known(self, job: JobId, rows: InlineRows) -> CommitOutcome | None:
        """Return what came of a batch before, by the mark; None where it is to be appended. The rules are those of
        `commit` (I9). Raises ReplayDiffersError."""
        publication = Publication(job, (), inline=(rows,), known=(self._log,))
        # What this process knows, and not only what is stored: the stored mark may lack batches of its own (I20).
        marks = {} if self.mark.batch == NO_BATCH else {self._log: Versioned(self.mark, 0)}
        asked = old_logs(publication, self._state.value, marks)
        histories = {log: await self._tools.logs.history(log) for log in asked}
        progress = judge(publication, self._state, marks, histories)
        if progress.differing:
            raise replay_differs_error(publication, progress)
        return progress.outcome if rows.record_count else progress.outcome or CommitOutcome.PUBLISHED

    def check_known(self, forgotten_epoch: int) -> None:
        """Raise where the log does not know the sink, and has forgotten what the mark does not say: producers of epochs
        up to `forgotten_epoch`. The mark names each epoch before anything is written in it."""
        if self.mark.appending_ms is not None and forgotten_epoch >= self.mark.epoch:
            raise self.forgotten_error()
        self.check_remembered()

    def forgotten_error(self) -> BatchRefusedError:
        """Return the error for a log that has forgotten the sink's requests, and with them what the mark lacks."""
        return BatchRefusedError(
            f"The process that appended batches of sink {self.sink_id} ended without a word, and the log has forgotten "
            "its requests since: the segments that knew them were deleted (by retention, or a purge), or the sink was "
            f"silent for producerExpirySeconds. Whether the log has batches above {self.mark.batch} is not known; "
            "nothing was published now",
            log=self._log,
            advice="Look at the log's end; start behind it with an empty checkpoint, or with another txnAppId",
        )

    def check_remembered(self) -> None:
        """Raise where an owner of an older dlspark may have forgotten what the mark does not say: it did not note that
        it did."""
        if self.mark.appending_ms is None:
            return
        expiry_ms = int(self._tools.namespace.settings.producer_expiry_s * 1000)
        # Half of it: clocks of two machines differ, and the log may forget while this batch is on its way.
        if self.now_ms - self.mark.appending_ms >= expiry_ms // 2:
            raise BatchRefusedError(
                f"The process that appended batches of sink {self.sink_id} ended without a word, so long ago that the "
                f"log may have forgotten them (producerExpirySeconds): whether it has batches above {self.mark.batch} "
                "is not known; nothing was published now",
                log=self._log,
                advice="Look at the log's end; start behind it with an empty checkpoint, or with another txnAppId",
            )

    async def move(self, mark: LogMark) -> None:
        """Store `mark`, at the version that was read or set last, and the sink's state with it.

        Raises BadVersionError, NodeExistsError or NoNodeError where another process was faster, or the log is gone.
        """
        tools = self._tools
        # The state anew: batches of the sink for other logs move it as well. The mark at the version that is known: it
        # must not be read again here, or a move by another process would be overwritten (I20).
        state = await tools.sinks.read(self.sink_id)
        if state is None:
            raise NoNodeError(f"sink {self.sink_id} is gone", log=self._log)
        moved = replace(state.value, old=False)
        if mark.batch != NO_BATCH:
            moved = state.value.moved(mark.batch, mark.attempt, mark.rows_of(mark.batch) or 0)
        ops = tools.sinks.publish_ops(self.sink_id, state, moved, ())
        ops.append(tools.sinks.mark_op(self._paths, self.sink_id, self._stored, mark))
        fault_points.reach("sink.before-mark")
        await tools.namespace.store.multi(ops)
        fault_points.reach("sink.marked")
        self._state = Versioned(moved, state.version + 1)
        self._stored = Versioned(mark, 0 if self._stored is None else self._stored.version + 1)
        self.mark = mark

    async def sweep(self) -> None:
        """Sweep ledgers of failed attempts at batches that the log has. Never raises."""
        if self.mark.batch != NO_BATCH:
            job = JobId(self.sink_id, self.mark.batch, self.mark.attempt)
            await self._tools.sweeper.after_commit(job, [self._log])


def _paths(tools: AppendTools, log: str) -> LogPaths:
    return tools.namespace.services.logs.paths(log)
