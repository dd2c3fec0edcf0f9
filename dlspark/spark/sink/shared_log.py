"""A log that another query's process owns, and into which that one appends for this one (I20).

Two queries that append to one log would take it from each other with every batch, and each hand-over ends a segment. So
the second one hands its batches to the process of the first one, whose log takes those of any number of sinks.

What that process does with a batch is what it does with its own driver's: all that is known of the batch is in the log,
and in the sink's mark. So it does not matter who appends it, nor who appended the one before.

A request names the session that holds the log's lock. Who is asked takes it only if that is its own session, and if it
owns the log at that moment; else nothing is done, and the log is opened anew.

Fault model: that process may die, stand still, or lose the log at any line. Where it is lost, or the lock is another's
while an answer is waited for, the outcome is not known: the log is opened anew, and whoever owns it then knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from dlspark.spark.errors import LogBusyError
from dlspark.spark.sink.appender import DEADLINE_S, BatchToAppend
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import InlineRows, JobId
from metadata.distributedlog.locks import LockId, OwnershipAcquireFailedError
from metadata.foundation.errors import OutcomeUnknownError
from metadata.foundation.tasks import end_tasks

LOOK_EVERY_S: Final = 2.0
"""How often it is looked whether the owner has the log still, while its answer is waited for."""


class OtherAppender(Protocol):
    """Another process that appends."""

    async def append_as_owner(self, batch: BatchToAppend, session_id: int) -> CommitOutcome | None:
        """Append a batch, if it owns the batch's log by the lock of this session. None: it does not, nothing was done.

        Raises what appending raises, a NotAppliedError where it cannot be reached, and an OutcomeUnknownError where it
        does not answer.
        """
        ...

    async def close(self) -> None:
        """Ask it no more. Never raises."""
        ...


FindAppender = Callable[[LockId], OtherAppender | None]
"""The process that holds a lock, where it is another one that appends and can be asked."""
StillOwns = Callable[[], Awaitable[bool]]


class SharedLog:
    """One log of another process's. One call at a time; after any error `abandon` it."""

    def __init__(
        self, log: str, holder: LockId, appender: OtherAppender, still_owns: StillOwns, *, idle_ms: int = 0
    ) -> None:
        """`still_owns()`: whether `holder` has the log's lock now. `idle_ms`: how long the log stays held behind a
        batch."""
        self.log = log
        self._holder = holder
        self._appender = appender
        self._still_owns = still_owns
        self._idle_ms = idle_ms

    @property
    def is_owner(self) -> bool:
        """As `AppendedLog.is_owner`."""
        return False

    async def append(self, job: JobId, rows: InlineRows) -> CommitOutcome:
        """Have the owner append a batch, unless the log has it. Raises as `OtherAppender.append_as_owner`, and
        LogBusyError where that one owns the log no longer."""
        batch = BatchToAppend(job, rows, self._idle_ms)
        appending = asyncio.ensure_future(self._appender.append_as_owner(batch, self._holder.session_id))
        try:
            await self._until_done(appending)
        finally:
            await end_tasks([appending], drop_errors=True)
        try:
            outcome = appending.result()
        except OwnershipAcquireFailedError:
            outcome = None  # it was deposed, and says so: nothing was done
        if outcome is None:
            raise LogBusyError(
                f"{self._holder.client_id} owned the log, and owns it no longer; nothing of the batch is visible",
                log=self.log,
            )
        return outcome

    async def _until_done(self, appending: asyncio.Future[CommitOutcome | None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while not (await asyncio.wait([appending], timeout=LOOK_EVERY_S))[0]:
            # One that stands still is deposed once its session has ended, and its successor knows what it did.
            if loop.time() > deadline or not await self._still_owns():
                raise OutcomeUnknownError(
                    f"{self._holder.client_id}, which owned the log, did not answer: the batch is visible whole or not "
                    "at all",
                    log=self.log,
                )

    def fold_is_due(self, sink_id: str) -> bool:
        """Never: the owner moves the marks."""
        return False

    async def fold(self, sink_id: str) -> None:
        """There is nothing to do."""

    async def wanted(self) -> None:
        """Never returns: nothing is held from other writers."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Ask the owner no more. Never raises."""
        await self._appender.close()

    async def abandon(self) -> None:
        """The same."""
        await self._appender.close()
