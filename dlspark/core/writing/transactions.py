"""`OwnersTransactions`: running a conditional transaction of a log's owner until its outcome is known.

Each is one conditional multi on the versions that this owner read after it took the lock, so a deposed owner changes
nothing; and on its lock's member, because a log that was deleted and made again has the same versions again. Three
things can go wrong and each has one answer:

| outcome | answer |
|---|---|
| a version does not match | somebody else owns the log: WriterDeposedError, never a second try with fresh versions |
| the answer was lost | read back: our ledger's id in the list, and versions exactly one above ours, mean applied |
| the store cannot be reached | try again for as long as the session may live, then say so |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dlspark.core.services import Services
from dlspark.core.writing.ledger_allocators import AllocatorLostError
from dlspark.core.writing.write_lock import WriteLock
from dlspark.errors import WriterDeposedError
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
from metadata.locks import LockingError, OwnershipAcquireFailedError
from metadata.logs import LogNotFoundError, LogState, SegmentMetadata
from metadata.store import ANY_VERSION, Check, Op

_T = TypeVar("_T")

_ADVICE_REOPEN = "Open the writer again; it will wait for the other owner or report it"
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a read-back saw."""

    state: LogState
    segments: tuple[SegmentMetadata, ...]


class DeposedInDoubtError(WriterDeposedError):
    """Another owner has gone on, and this owner's last transaction, whose answer was lost, is not to be seen."""


class DeposedAfterwardsError(WriterDeposedError):
    """Our transaction was applied, but another owner has already gone on from it."""


def versions(state: LogState) -> tuple[int, int]:
    """Of what every owner's transactions set. The allocator knows its own."""
    return state.max_lssn.version, state.max_txid.version


class OwnersTransactions:
    """The transactions of one log's owner, who holds `lock`; without one they depend on versions alone."""

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
    ) -> LogState:
        """Run a transaction from the state `before` to the state `after`, until its outcome is known; returns `after`.

        `attempt` is given operations that fail it unless the lock is held.

        `shared` is the allocator of a pool that is part of it: one that somebody else has set raises
        AllocatorLostError, and says nothing about the log.
        """
        pauses = self._pauses()
        doubt: OutcomeUnknownError | None = None
        while True:
            failure: DistributedLogError
            refusal: DistributedLogError | None = None
            owned: list[Op] = []
            try:
                owned = await self.owned()
                return await attempt(owned)
            except OutcomeUnknownError as error:
                failure = doubt = error
            except (LockingError, OwnershipAcquireFailedError) as error:
                if doubt is None:
                    raise self.deposed() from error
                failure, refusal = doubt, error
            except MetadataUnavailableError as error:
                failure = doubt or error
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                if any(error.path == check.path for check in owned):
                    failure = doubt or self.deposed()  # The lock is lost; that is heard of soon, or it is had again.
                elif doubt is None:
                    raise self._refused(error, shared) from error
                else:
                    # After a lost answer it may be our own first try that was in the way.
                    failure, refusal = doubt, error
            if doubt is not None:
                found = await self._look(doubt)
                if applied(found):
                    if versions(found.state) != versions(after):
                        raise DeposedAfterwardsError(
                            "this transaction was applied, but another owner has gone on from it meanwhile",
                            log=self._name,
                            advice=_ADVICE_REOPEN,
                        ) from failure
                    self._services.counters["lost-answer-applied"] += 1
                    return after
                if versions(found.state) != versions(before):
                    raise DeposedInDoubtError(
                        "the log was changed by another owner; whether this was applied before is not known",
                        log=self._name,
                        advice=_ADVICE_REOPEN,
                    ) from failure
                self._services.counters["lost-answer-not-applied"] += 1
                if refusal is not None:
                    raise self._refused(refusal, shared) from refusal
            await self._pause(pauses, failure)

    async def owned(self) -> list[Op]:
        """Operations that fail the transaction that they are part of unless the lock is held.

        Raises MetadataUnavailableError while a lost one is being taken again, and what `ensure_held` raises.
        """
        if self._lock is None:
            return []
        await self._lock.ensure_held()
        if not self._lock.held:
            raise MetadataUnavailableError("the log's lock is being taken again; nothing was changed", log=self._name)
        return [Check(self._lock.member_path, ANY_VERSION)]

    async def _look(self, doubt: OutcomeUnknownError) -> Found:
        """State and segments as they are now; raises `doubt` if they cannot be read."""
        logs, path = self._services.logs, self._services.logs.paths(self._name).ledgers

        async def read() -> Found:
            await self._services.store.sync(path)
            return Found(await logs.open(self._name), tuple(await logs.segments(self._name)))

        try:
            return await self.retried(read)
        except LogNotFoundError:
            raise  # Without a log it is in no list.
        except DistributedLogError as error:
            raise doubt from error

    async def retried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat an idempotent call while the store cannot be reached."""
        pauses = self._pauses()
        while True:
            try:
                return await call()
            except (ConnectionLossError, SessionExpiredError, MetadataUnavailableError) as error:
                await self._pause(pauses, error)

    def _pauses(self) -> list[float]:
        """Pauses between tries, that add up to the session timeout: after it the lock is lost anyhow."""
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

    def _refused(self, error: DistributedLogError, shared: str | None) -> NotAppliedError:
        """What a transaction that a version stopped means."""
        if shared is not None and error.path == shared:
            return AllocatorLostError("the allocator is used by somebody else; nothing was started", path=shared)
        return self.deposed()

    def deposed(self) -> WriterDeposedError:
        return WriterDeposedError(
            "the log was changed by another owner; nothing of this transaction was applied",
            log=self._name,
            advice=_ADVICE_REOPEN,
        )
