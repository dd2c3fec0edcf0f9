"""`Registrations`: asks the cluster's lists of bookies when a bookie failed, so that reads go elsewhere at once.

While all is well nothing is asked. What is learned goes into `BookieHealth`: bookies in neither list are asked last,
read-only ones behind the writable.
"""

from __future__ import annotations

import logging

from metadata.bookies import BookieRegistry
from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import ConnectionPool
from storage_node.client.pipeline import Tasks

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""The lists are not read more often than this."""


class Registrations:
    """One object for each client; `stop` it with the client."""

    def __init__(self, registry: BookieRegistry, pool: ConnectionPool) -> None:
        self._registry = registry
        self._pool = pool
        self._next_look = 0.0
        self._tasks = Tasks(lambda violation: logger.error("%s", violation))
        pool.health.on_trouble = self._trouble

    def _trouble(self) -> None:
        now = self._pool.loop.time()
        if now >= self._next_look and not self._pool.closed:
            self._next_look = now + LOOK_EVERY_S
            self._tasks.start(self._look())

    async def _look(self) -> None:
        try:
            writable = [address.bookie_id for address in await self._registry.writable()]
            read_only = [address.bookie_id for address in await self._registry.readonly()]
        except DistributedLogError as error:
            logger.info("which storage nodes are registered is not known at present: %s", error)
            return
        self._pool.health.registered(writable, read_only, self._pool.bookies)

    async def stop(self) -> None:
        """End what runs."""
        self._pool.health.on_trouble = None
        await self._tasks.stop()
