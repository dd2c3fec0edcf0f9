"""The ways to open a log to append batches to it: as its owner, or through the process that owns it.

| the option `proxy` | the log's lock is | opened |
|---|---|---|
| given | whatever it is | through the proxies: one of them will own the log |
| not given | held by a write proxy that the namespace announces | through the proxies |
| not given | held by the process of another query on this machine, of the same user | through that process |
| not given | held by that of a query elsewhere, and a proxy can be reached | through the proxies: so will the other |
| not given | the same, and none can | as its owner, in turns with the other query: that is said |
| not given | free, or another writer's | as its owner: it is waited for |

All ways keep one mark and send under one name, so they may follow each other at any time (I20). Two of them have files
of their own (`owned_log`, `proxied_log`); here is `SharedLog`, a log that another query's process owns.

Two queries that append to one log would take it from each other with every batch, and each hand-over ends a segment. So
the second one hands its batches to the process of the first one, whose log takes those of any number of sinks.

What that process does with a batch is what it does with its own driver's: all that is known of the batch is in the log,
and in the sink's mark. So it does not matter which process appends it, nor which one appended the batch before.

A request names the session that holds the log's lock. The process that is asked takes it only if that is its own
session, and if it owns the log at that moment; else nothing is done, and the log is opened anew.

Fault model: that process may die, stand still, or lose the log at any line. Where it is lost, or the lock is another's
while an answer is waited for, the outcome is not known: the log is opened anew, and whoever owns it then knows.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from dlspark.core.lock_owners import lock_holder
from dlspark.spark.errors import LogBusyError
from dlspark.spark.sink.append.appender import DEADLINE_S, AppendedLog, BatchToAppend
from dlspark.spark.sink.append.marks import AppendTools
from dlspark.spark.sink.append.owned_log import OwnedLog
from dlspark.spark.sink.append.proxied_log import ProxiedLog
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import InlineRows, JobId
from dlspark.spark.sink.write_proxies import WriteProxies
from metadata.distributedlog.lock_members import LockId
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.owner_names import appends
from metadata.foundation.errors import OutcomeUnknownError
from metadata.foundation.tasks import end_tasks

LOOK_EVERY_S: Final = 2.0
"""How often it is looked whether the owner has the log still, while its answer is waited for."""

_log = logging.getLogger(__name__)


class LogOpener:
    """Opens the logs of one namespace for a process that appends."""

    def __init__(
        self, tools: AppendTools, proxies: WriteProxies, *, always: bool, find: FindAppender, idle_ms: int = 0
    ) -> None:
        """Make an opener.

        Args:
            tools: what appending works with, in the namespace of the logs.
            proxies: the write proxies of that namespace.
            always: whether every log is written through the proxies.
            find: finds the process of another query that holds a lock.
            idle_ms: how long that process holds a log behind a batch of this one's.
        """
        self._tools = tools
        self._proxies = proxies
        self._always = always
        self._find = find
        self._idle_ms = idle_ms
        self._warned: set[str] = set()

    async def open(self, log: str) -> AppendedLog:
        """Open the log. Raises as `OwnedLog.open` and `ProxiedLog.open`."""
        if self._always:
            return await self._through_proxies(log)
        holder = await self._holder(log)
        if holder is not None and await self._proxies.are(self._tools.namespace.services, holder.client_id):
            return await self._through_proxies(log)
        # Free, or another writer's, which ends: waiting for its lock is enough.
        if holder is None or not appends(holder.client_id):
            return await OwnedLog.open(self._tools, log)
        other = self._find(holder)
        if other is not None:
            await self._tools.logs.prepare(log)
            return SharedLog(
                log, holder, other, functools.partial(self._is_held_by, holder, log), idle_ms=self._idle_ms
            )
        # A lock of this process's own session is a former handle's, which is just being given up.
        if holder.session_id != self._tools.namespace.store.session_id:
            if await self._proxies.within_reach(self._tools.namespace.services):
                return await self._through_proxies(log)
            self._warn_taking_turns(log, holder)
        return await OwnedLog.open(self._tools, log)

    async def _through_proxies(self, log: str) -> AppendedLog:
        return await ProxiedLog.open(
            self._tools, self._proxies, log, functools.partial(settle, self._tools, self._proxies)
        )

    async def _holder(self, log: str) -> LockId | None:
        services = self._tools.namespace.services
        return await lock_holder(services, services.logs.paths(log).lock)

    async def _is_held_by(self, holder: LockId, log: str) -> bool:
        return await self._holder(log) == holder

    def _warn_taking_turns(self, log: str, holder: LockId) -> None:
        if log not in self._warned:
            self._warned.add(log)
            _log.warning(
                "log %s is another query's as well, that of %s, which cannot be asked from here: while it runs the two "
                "take turns, and each turn ends a segment; through a write proxy (dlspark proxy write) neither waits",
                log,
                holder.client_id,
            )


async def settle(tools: AppendTools, proxies: WriteProxies, log: str, sink_id: str) -> None:
    """Make the sink's mark in the log say everything (I20), as the log's owner; a live owner is waited for.

    Raises OwnershipAcquireFailedError naming that one, and what `OwnedLog.settle` raises.
    """
    async with proxies.asked_to_yield(tools.namespace.services, log):
        owned = await OwnedLog.open(tools, log)
    try:
        await owned.settle(sink_id)
    except BaseException:
        await owned.abandon()
        raise
    await owned.close()


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
        """Make one. `still_owns()`: whether `holder` has the log's lock now. `idle_ms`: how long the log stays held
        behind a batch."""
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
        """Return False: the owner moves the marks."""
        return False

    async def fold(self, sink_id: str) -> None:
        """Do nothing: the owner moves the marks."""

    async def wanted(self) -> None:
        """Wait for ever: nothing is held from other writers."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Ask the owner no more. Never raises."""
        await self._appender.close()

    async def abandon(self) -> None:
        """Ask the owner no more, as `close`. Never raises."""
        await self._appender.close()
