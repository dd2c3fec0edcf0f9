"""Waiting for logs that come or go, so that a query over a pattern takes up a new one at once."""

from __future__ import annotations

import asyncio
import logging

from dlspark.core.namespace import AsyncNamespace
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks

_log = logging.getLogger(__name__)


async def logs_in(namespace: AsyncNamespace, folder: str) -> list[str]:
    """Full names of what is directly in `folder` ("" for the root): logs, and folders with logs."""
    names = await namespace.logs(folder)
    return [f"{folder}/{name}" for name in names] if folder else names


class FolderWatch:
    """A watch on the logs of one folder. It only wakes the caller, which then lists the logs.

    If the watch fails, the caller is not woken any more, and finds new logs when it next lists them.
    """

    def __init__(self, namespace: AsyncNamespace, folder: str = "") -> None:
        self._changed = asyncio.Event()
        self._watch = asyncio.ensure_future(self._follow(namespace, folder))

    async def _follow(self, namespace: AsyncNamespace, folder: str) -> None:
        try:
            async for _ in namespace.watch_logs(folder, existing=True):  # those there are, too: none is missed
                self._changed.set()
        except DistributedLogError as error:
            _log.warning("new logs are taken up a little later, their watch failed: %s", error)

    async def wait(self) -> None:
        """Return when a log has come or gone since this last returned; to be cancelled."""
        await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        """End the watch."""
        await end_tasks([self._watch])
