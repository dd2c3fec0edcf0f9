"""Waiting for storage nodes that are away: an operation that too few of them answer is tried again for a while.

Off by default: a program that writes or reads a ledger gets the error at once, and decides. Spark's queries cannot:
they set `outageWaitMillis`. It is looked at in few places, each of which repeats what has had no effect yet:

| operation | what is repeated |
|---|---|
| making a ledger | the choice of its nodes |
| adding, where no ack quorum is left | the choice of replacements; nothing is acknowledged meanwhile (D4) |
| reading entries, the LAC | the question |
| recovery | all of it (I10) |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from metadata.bookies import BookieRegistry, UnknownBookieError
from metadata.foundation.errors import DistributedLogError
from storage_node.errors import (
    BookieFailedError,
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerRecoveryError,
    LedgerStateUnknownError,
    LedgerTakenError,
    NotEnoughBookiesError,
    QuorumWriteError,
    ReadOnlyError,
    RequestTimeoutError,
    TooManyRequestsError,
)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

_AWAY = (
    BookieFailedError,
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerRecoveryError,
    LedgerStateUnknownError,
    NotEnoughBookiesError,
    QuorumWriteError,
    ReadOnlyError,
    RequestTimeoutError,
    TooManyRequestsError,
    UnknownBookieError,
)

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


def is_outage(error: DistributedLogError) -> bool:
    """Whether an operation failed because storage nodes are away, or not able to answer yet: they may come back."""
    # A ledger that others have written under stays taken, however long one waits.
    return isinstance(error, _AWAY) and not isinstance(error, LedgerTakenError)


class Outage:
    """An outage as one operation meets it, from its first failure to its next success (`over`)."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, error: DistributedLogError | None = None) -> bool:
        """Pause before the next try; False, at once, if the outage has lasted too long for another."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
            if error is not None and self._limit_s:
                logger.warning("what is away is waited for, up to %g s: %s", self._limit_s, error)
        left_s = self._since + self._limit_s - now
        if left_s <= 0:
            return False
        await asyncio.sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def over(self) -> None:
        """The operation succeeded, or a part of it."""
        self._since = None
        self._pause_s = FIRST_PAUSE_S

    def lasted(self, error: DistributedLogError) -> DistributedLogError:
        """`error`; its message now also says how long this has waited."""
        if self._limit_s and self._since is not None:
            error.message = f"{error.message} (waited {self._limit_s:g} s for what is away to come back)"
        return error


class Members:
    """The nodes of a cluster, of which an operation needs `needed`."""

    def __init__(self, bookies: BookieRegistry, needed: int) -> None:
        self._bookies = bookies
        self._needed = needed

    async def too_few(self) -> bool:
        """Whether fewer nodes than that belong to the cluster: then it is not an outage, and no wait helps."""
        return 0 < len(await self._bookies.cookies()) < self._needed

    async def away(self) -> list[str]:
        """Ids of the nodes that belong to the cluster and are not registered."""
        members, writable, readonly = await asyncio.gather(
            self._bookies.cookies(), self._bookies.writable(), self._bookies.readonly()
        )
        return sorted(set(members) - {one.bookie_id for one in [*writable, *readonly]})


async def outlast(limit_ms: int, operation: Callable[[], Awaitable[_T]], members: Members | None = None) -> _T:
    """Run `operation`, which must be harmless to run again, until storage nodes that are away do not stop it.

    Raises what it failed with otherwise, or still fails with after `limit_ms`; with `members` at once where there have
    never been enough of them, and naming those that are away.
    """
    outage = Outage(limit_ms)
    while True:
        try:
            return await operation()
        except DistributedLogError as error:
            if not is_outage(error) or (limit_ms and members is not None and await members.too_few()):
                raise
            if not await outage.wait(error):
                outage.lasted(error)
                away = await members.away() if limit_ms and members is not None else []
                if away:
                    error.message += f"; away: {', '.join(away)}"
                raise
