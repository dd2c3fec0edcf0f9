"""The cursor of a streaming query: how far it has come in each log, for operators to see and for truncation to respect.

It stands among the log's subscribers (`metadata.distributedlog.subscribers`), where any reader's position stands, and
only moves forwards. The query itself never reads it: its position is the one in its checkpoint. So a cursor that could
not be moved does not stop the query: truncation keeps more than it has to until the cursor is moved the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.spark.source.offsets import Offsets
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError

_log = logging.getLogger(__name__)

MAX_AT_ONCE = 32
"""Logs whose cursor is moved at the same time."""


class QueryCursor:
    """One query's cursor in all its logs."""

    def __init__(self, logs: LogStore, name: str) -> None:
        self._logs = logs
        self._name = name
        self._moved: dict[str, DLSN] = {}

    async def begin(self, position: Offsets) -> None:
        """Publish the position in the logs where the cursor does not stand yet."""
        await self._each(dict(position), self._begin_one)

    async def move(self, position: Offsets) -> None:
        """Publish the positions that have changed since. Logs that are gone are passed over."""
        changed = {log: dlsn for log, dlsn in position.items() if self._moved.get(log) != dlsn}
        await self._each(changed, self._move_one)

    async def _each(self, positions: dict[str, DLSN], what: Callable[[str, DLSN], Awaitable[None]]) -> None:
        limit = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(log: str, dlsn: DLSN) -> None:
            try:
                async with limit:
                    await what(log, dlsn)
            except LogNotFoundError:
                return
            except (NotAppliedError, OutcomeUnknownError) as error:
                _log.warning("log %s: cursor %s was not moved to %s: %s", log, self._name, dlsn, error)

        await asyncio.gather(*(one(log, dlsn) for log, dlsn in positions.items()))

    async def _begin_one(self, log: str, dlsn: DLSN) -> None:
        if await Subscriptions(self._logs, log).position(self._name) is None:
            await self._move_one(log, dlsn)

    async def _move_one(self, log: str, dlsn: DLSN) -> None:
        await Subscriptions(self._logs, log).commit(self._name, dlsn)
        self._moved[log] = dlsn  # only then: a move that failed is tried again with the next batch
