"""`OwnersTransactions`: running a conditional transaction of a log's owner until its outcome is known.

Each is one conditional multi. It depends on the versions that this owner read after it took the lock, so a deposed
owner changes nothing (I7). It also depends on the lock's member, because a log that was deleted and made again may have
the same versions again. Three things can go wrong and each has one answer:

| outcome | answer |
|---|---|
| a version does not match | another owner has the log: WriterDeposedError, never a second try with fresh versions |
| the answer was lost | read back: our ledger's id in the list, and versions exactly one above ours, mean applied |
| the store cannot be reached | try again for as long as the session may live, then say so |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dlspark.core.services import Services
from dlspark.core.write_lock import WriteLock
from dlspark.core.writing.ledger_allocators import AllocatorLostError
from dlspark.errors import WriterDeposedError
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError, LogState
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import (
    BadVersionError,
    ConnectionLossError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from metadata.store import ANY_VERSION, Check, Delete, Op

_T = TypeVar("_T")

_ADVICE_REOPEN = "Open the writer again; it will wait for the other owner or report it"
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """The state of the log, read after a lost answer."""

    state: LogState
    segments: tuple[SegmentMetadata, ...]


class DeposedInDoubtError(WriterDeposedError):
    """Another owner has gone on, and this owner's last transaction, whose answer was lost, cannot be seen: unknown."""


class DeposedAfterwardsError(WriterDeposedError):
    """Our transaction was applied, but another owner has already gone on from it."""


def versions(state: LogState) -> tuple[int, int]:
    """Return the versions of what every owner's transactions set. An allocator keeps the version of its own znode."""
    return state.max_lssn.version, state.max_txid.version


class OwnersTransactions:
    """The transactions of one log's owner, which holds `lock`; without a lock they depend on versions alone."""

    def __init__(self, services: Services, name: str, lock: WriteLock | None, session_timeout_s: float) -> None:
        self._services = services
        self._name = name
        self._lock = lock
        self._session_timeout_s = session_timeout_s

    async def run(
        self,
        before: LogState,
        attempt: Callable[[list[Op]], Awaitable[LogState]],
        applied: Callable[[Found], bool],
        after: LogState,
        *,
        shared: str | None = None,
        releases: bool = False,
    ) -> LogState:
        """Run a transaction from the state `before` to the state `after`, until its outcome is known; returns `after`.

        `attempt` is called with operations that fail the transaction unless the lock is held, and give it up if it
        `releases`. `shared` is the path of a pool's allocator that is part of it. Where another process has set that
        allocator, AllocatorLostError is raised; that says nothing about the log.

        Raises WriterDeposedError where nothing was applied, DeposedAfterwardsError where it was, DeposedInDoubtError
        where that is not known; and the store's error once it was out of reach for a session timeout, an
        OutcomeUnknownError where the transaction may have been applied.
        """
        pauses = self._pauses()
        # An answer that was lost. From then on a refusal does not mean "not applied": our own try may have caused it.
        doubt: OutcomeUnknownError | None = None
        while True:
            failure: DistributedLogError
            refusal: DistributedLogError | None = None
            owned: list[Op] = []
            try:
                owned = await self.owned(releases=releases)
                return self._heard(owned, await attempt(owned))
            except OutcomeUnknownError as error:
                failure = doubt = error
            except (LockingError, OwnershipAcquireFailedError) as error:
                if doubt is None:
                    raise self.deposed_error() from error
                failure, refusal = doubt, error
            except MetadataUnavailableError as error:
                failure = doubt or error
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                if any(error.path == check.path for check in owned):
                    # The lock is lost. The next try finds that out, or goes on if it was taken again.
                    failure = doubt or self.deposed_error()
                elif doubt is None:
                    raise self._refused_error(error, shared) from error
                else:
                    # After a lost answer it may be our own first try that was in the way.
                    failure, refusal = doubt, error
            if doubt is not None:
                found = await self._look(doubt)
                if applied(found):
                    # Versions one above ours: the transaction was the last one. Any further: another owner goes on.
                    if versions(found.state) != versions(after):
                        raise DeposedAfterwardsError(
                            "this transaction was applied, but another owner has gone on from it meanwhile",
                            log=self._name,
                            advice=_ADVICE_REOPEN,
                        ) from failure
                    self._services.counters["lost-answer-applied"] += 1
                    return after
                if versions(found.state) != versions(before):
                    # The list moved on since. It may have been applied and its traces changed by the other owner.
                    raise DeposedInDoubtError(
                        "the log was changed by another owner; whether this was applied before is not known",
                        log=self._name,
                        advice=_ADVICE_REOPEN,
                    ) from failure
                self._services.counters["lost-answer-not-applied"] += 1
                if refusal is not None:
                    raise self._refused_error(refusal, shared) from refusal
            await self._pause(pauses, failure)

    async def owned(self, *, releases: bool = False) -> list[Op]:
        """Return operations to be part of a transaction, which then fails unless the lock is held.

        With `releases` they give it up. Raises MetadataUnavailableError while a lost one is being taken again, and what
        `ensure_held` raises.
        """
        if self._lock is None:
            return []
        await self._lock.ensure_held()
        if not self._lock.held:
            raise MetadataUnavailableError("the log's lock is being taken again; nothing was changed", log=self._name)
        return [self._lock.release_op() if releases else Check(self._lock.member_path, ANY_VERSION)]

    def _heard(self, owned: list[Op], after: LogState) -> LogState:
        """Note that a transaction with these operations was applied, and that the lock is gone if one of them gave it
        up; return `after`."""
        for op in owned:
            if isinstance(op, Delete) and self._lock is not None:
                self._lock.deleted(op)
        return after

    async def _look(self, doubt: OutcomeUnknownError) -> Found:
        """Read state and segments as they are now; raises `doubt` if they cannot be read."""
        logs, path = self._services.logs, self._services.logs.paths(self._name).ledgers

        async def read() -> Found:
            # Or a server that lags behind would show the state before our own transaction.
            await self._services.store.sync(path)
            return Found(await logs.open(self._name), tuple(await logs.hot_segments(self._name)))

        try:
            return await self.retried(read)
        except LogNotFoundError:
            raise  # The log is gone, so what was to be applied is not there.
        except DistributedLogError as error:
            raise doubt from error

    async def retried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat an idempotent call while the store cannot be reached, for a session timeout; then raise its error."""
        pauses = self._pauses()
        while True:
            try:
                return await call()
            except (ConnectionLossError, SessionExpiredError, MetadataUnavailableError) as error:
                await self._pause(pauses, error)

    def _pauses(self) -> list[float]:
        """Return pauses between tries, that add up to the session timeout: after it the lock is lost anyhow."""
        pauses: list[float] = []
        left, pause = self._session_timeout_s, FIRST_PAUSE_S
        while left > 0:
            pauses.append(min(pause, left))
            left -= pause
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return pauses[::-1]

    async def _pause(self, pauses: list[float], failure: DistributedLogError) -> None:
        if not pauses:
            raise failure
        await asyncio.sleep(pauses.pop())

    def _refused_error(self, error: DistributedLogError, shared: str | None) -> NotAppliedError:
        """Return the error for a transaction that a version stopped."""
        if shared is not None and error.path == shared:
            return AllocatorLostError("the allocator is used by another process; nothing was started", path=shared)
        return self.deposed_error()

    def deposed_error(self) -> WriterDeposedError:
        """Return the error of an owner that finds the log changed by another one: nothing was applied."""
        return WriterDeposedError(
            "the log was changed by another owner; nothing of this transaction was applied",
            log=self._name,
            advice=_ADVICE_REOPEN,
        )
