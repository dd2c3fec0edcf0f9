"""`SinkAppender`: appends batches to logs, and keeps each log held for the next one.

A log is opened with its first batch. It is given up when no batch has come for a while, when another client waits for
its lock, after any error, and at the end. Batches for one log follow each other; logs do not wait for each other.

Fault model: that of the ways into a log (`log_opening`). A batch that failed is tried again, with the log opened anew,
as long as the failure may pass; what is not known then is said as such.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from dlspark.errors import EndOfStreamError
from dlspark.spark.errors import BatchRefusedError, PublishUnknownError
from dlspark.spark.sink.batch_rules import CommitOutcome, log_sealed_error
from dlspark.spark.sink.messages import InlineRows, JobId
from dlspark.spark.sink.segments.log_access import log_busy_error
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import DistributedLogError, NotAppliedError, OutcomeUnknownError
from metadata.foundation.tasks import end_tasks
from storage_node.errors import NotEnoughBookiesError

MAX_TRIES: Final = 6
DEADLINE_S: Final = 120.0
"""Neither more tries nor later ones are made for a batch."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0

_log = logging.getLogger(__name__)


class AppendedLog(Protocol):
    """A log that is open for batches (`owned_log`, `log_opening`, `proxied_log`). One call at a time; after any error
    `abandon` it."""

    @property
    def log(self) -> str:
        """Its name."""
        ...

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log."""
        ...

    async def append(self, job: JobId, rows: InlineRows) -> CommitOutcome:
        """Append a batch, unless the log has it. Raises BatchRefusedError and its leaves with nothing visible."""
        ...

    def fold_is_due(self, sink_id: str) -> bool:
        """Return whether the sink's mark is to be moved, once no batch waits for it."""
        ...

    async def fold(self, sink_id: str) -> None:
        """Move the mark to the last batch."""
        ...

    async def wanted(self) -> None:
        """Return when another client waits for what is held here."""
        ...

    async def close(self) -> None:
        """Give it up, with nothing under way. Never raises."""
        ...

    async def abandon(self) -> None:
        """Give it up as it is. Never raises."""
        ...


OpenLog = Callable[[str], Awaitable[AppendedLog]]


@dataclass(frozen=True, slots=True)
class BatchToAppend:
    """A batch for one log. `idle_ms`: how long the log stays held behind it."""

    job: JobId
    rows: InlineRows
    idle_ms: int = 0


@dataclass(slots=True)
class _HeldLog:
    """One log, held or not. The lock is a queue: first come, first served.

    `opened` is the log while it is held.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: AppendedLog | None = None
    watching: asyncio.Task[None] | None = None
    folding: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class SinkAppender:
    """Appends to any log of one namespace. All calls come from one event loop; `close` gives up everything.

    Args:
        open_log: opens a log for batches, in whichever way is right for it now.
        rng: spreads the pauses between tries.
        deadline_s: for how long a batch is tried.
    """

    def __init__(self, open_log: OpenLog, *, rng: random.Random | None = None, deadline_s: float = DEADLINE_S) -> None:
        self._open_log = open_log
        self._rng = rng or random.Random()
        self._deadline_s = deadline_s
        self._logs: dict[str, _HeldLog] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> list[str]:
        """The logs that are held now."""
        return [log for log, held in self._logs.items() if held.opened is not None]

    async def append(self, batch: BatchToAppend) -> CommitOutcome | None:
        """Append a batch, unless its log has it: each once, whole, whichever way it came before (I20). None for a batch
        without rows of a log that is not held: nothing was done.

        Raises BatchRefusedError and its leaves, LogBusyError or another NotAppliedError with nothing visible, or
        PublishUnknownError: a repetition decides.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + self._deadline_s
        pause_s = _FIRST_PAUSE_S
        unknown: OutcomeUnknownError | None = None
        tries_left = MAX_TRIES
        while True:
            tries_left -= 1
            try:
                return await self._try(batch)
            except OwnershipAcquireFailedError as error:
                failure: DistributedLogError = log_busy_error(batch.rows.log, error.owner)
                raise _append_error(batch, failure, unknown) from error
            except EndOfStreamError as error:
                raise _append_error(batch, log_sealed_error(batch.rows.log), unknown) from error
            except NotEnoughBookiesError as error:
                raise _append_error(batch, error, unknown) from error  # they were waited for
            except (NotAppliedError, OutcomeUnknownError) as error:
                unknown = error if isinstance(error, OutcomeUnknownError) else unknown
                if not tries_left or now() + pause_s > deadline:
                    raise _append_error(batch, error, unknown) from error
                _log.info("%s is tried again: %s", batch.job, error)
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try(self, batch: BatchToAppend) -> CommitOutcome | None:
        log = batch.rows.log
        held = self._logs.setdefault(log, _HeldLog())
        async with held.lock:
            if held.timer is not None:
                held.timer.cancel()
            if held.opened is None and not batch.rows.record_count:
                return None
            if held.opened is None:
                held.opened = await self._open_log(log)
                held.watching = asyncio.ensure_future(self._release_when_wanted(held, held.opened))
            return await self._append_to(held, held.opened, batch)

    async def append_as_owner(self, batch: BatchToAppend) -> CommitOutcome | None:
        """Append another process's batch, where this one owns its log now; None: it does not, and nothing was done.

        It is tried once. Raises what appending raises, of which that process finds out what became of the batch.
        """
        held = self._logs.get(batch.rows.log)
        if held is None:
            return None
        async with held.lock:
            # Only as the owner: a log that another process owns for this one would make a chain, or a ring.
            if held.opened is None or not held.opened.is_owner:
                return None
            if held.timer is not None:
                held.timer.cancel()
            return await self._append_to(held, held.opened, batch)

    async def _append_to(self, held: _HeldLog, opened: AppendedLog, batch: BatchToAppend) -> CommitOutcome:
        """Append to a log that is open, under its lock."""
        try:
            outcome = await opened.append(batch.job, batch.rows)
        except BatchRefusedError:
            self._release_after(held, opened, batch.idle_ms)
            raise  # the log is as it was
        except BaseException:
            # What the request has done is not known. Only recovery of the log says, so nothing may go on with what is
            # open (I20).
            await self._give_up(held, abandon=True)
            raise
        if opened.fold_is_due(batch.job.sink_id) and (held.folding is None or held.folding.done()):
            held.folding = asyncio.ensure_future(self._fold(held, opened, batch.job.sink_id))
        self._release_after(held, opened, batch.idle_ms)
        return outcome

    def _release_after(self, held: _HeldLog, opened: AppendedLog, idle_ms: int) -> None:
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(idle_ms / 1000, self._release_later, held, opened)

    async def _fold(self, held: _HeldLog, opened: AppendedLog, sink_id: str) -> None:
        """Move the mark while no batch waits for it."""
        async with held.lock:
            if held.opened is not opened or not opened.fold_is_due(sink_id):
                return
            try:
                await opened.fold(sink_id)
            except DistributedLogError as error:
                _log.info("log %s is opened anew, a mark could not be moved: %s", opened.log, error)
                await self._give_up(held, abandon=True)

    async def _release_when_wanted(self, held: _HeldLog, opened: AppendedLog) -> None:
        """Give the log up once another client waits for it."""
        try:
            await opened.wanted()
        except DistributedLogError as error:
            _log.info("log %s is given up: %s", opened.log, error)
        self._release_later(held, opened)

    def _release_later(self, held: _HeldLog, opened: AppendedLog) -> None:
        """Begin to give the log up, behind the batch that is being appended."""
        task = asyncio.ensure_future(self._release(held, opened))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, held: _HeldLog, opened: AppendedLog) -> None:
        async with held.lock:
            if held.opened is opened:  # and not one that was opened anew since
                await self._give_up(held, abandon=False)

    async def _give_up(self, held: _HeldLog, *, abandon: bool) -> None:
        opened, held.opened = held.opened, None
        if held.timer is not None:
            held.timer.cancel()
        if held.watching is not None:
            await end_tasks([held.watching], drop_errors=True)
        if opened is not None:
            await (opened.abandon() if abandon else opened.close())

    async def close(self) -> None:
        """Give up all logs, with their segments completed."""
        for held in self._logs.values():
            async with held.lock:
                await self._give_up(held, abandon=False)
        await asyncio.gather(*self._releasing)
        await asyncio.gather(*(held.folding for held in self._logs.values() if held.folding is not None))


def _append_error(
    batch: BatchToAppend, error: DistributedLogError, unknown: OutcomeUnknownError | None
) -> DistributedLogError:
    """Return what the caller is to learn: one request without an answer is enough, however the later tries failed."""
    if unknown is None:
        return error
    return PublishUnknownError(
        f"{batch.job} was appended, and no answer came: it is visible whole or not at all ({error})",
        log=batch.rows.log,
        advice="Start the query again from its checkpoint, or repeat the write with the same txnVersion",
    )
