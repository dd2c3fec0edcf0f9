"""`OwnershipWatch`: what follows when a writer's lock is lost.

A lock that is lost with its session is taken again in the background, while writing goes on: fencing (I5) and versions
(I7) keep a deposed owner from doing harm, and only a lock that somebody else has now ends the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlspark.core.services import Services
from dlspark.core.writing.write_lock import WriteLock
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState

LOCK_CHECK_S = 0.2
"""How often a lost lock is looked at while it is being taken again."""


class OwnershipWatch:
    """Has a lost lock taken again, and tells `on_lost` when that is not possible any more."""

    def __init__(self, services: Services, lock: WriteLock, on_lost: Callable[[DistributedLogError], None]) -> None:
        self._lock = lock
        self._on_lost = on_lost
        self._watching: asyncio.Task[None] | None = None
        self._ended = False
        self._forget_session = services.store.on_session(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.look()

    def look(self) -> None:
        """Watch the lock until it is held again, or somebody else has it. Called where it is not held."""
        if self._watching is None and not self._ended:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while not self._ended and not self._lock.held:
                await self._lock.ensure_held()
                await asyncio.sleep(LOCK_CHECK_S)
        except DistributedLogError as error:
            self._on_lost(error)
        finally:
            self._watching = None

    def end(self) -> None:
        """Start watching no more: the writer has failed."""
        self._ended = True

    async def close(self) -> None:
        """End for good. Idempotent."""
        self.end()
        self._forget_session()
        if self._watching is not None:
            await end_tasks([self._watching])
