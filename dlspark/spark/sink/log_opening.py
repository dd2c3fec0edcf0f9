"""How a log is opened to append batches to it: as its owner, or through who owns it.

| the option `proxy` | the log's lock is | opened |
|---|---|---|
| given | whatever it is | through the proxies: one of them will own the log |
| not given | held by a write proxy that the namespace announces | through the proxies |
| not given | held by the process of another query on this machine, of the same user | through that process |
| not given | held by that of a query elsewhere, and a proxy can be reached | through the proxies: so will the other |
| not given | the same, and none can | as its owner, in turns with the other query: that is said |
| not given | free, or another writer's | as its owner: it is waited for |

All ways keep one mark and send under one name, so they may follow each other at any time (I20).
"""

from __future__ import annotations

import functools
import logging

from dlspark.core.display.status import lock_holder
from dlspark.spark.sink.appender import AppendedLog
from dlspark.spark.sink.kept_mark import AppendTools
from dlspark.spark.sink.owned_log import OwnedLog
from dlspark.spark.sink.proxied_log import ProxiedLog
from dlspark.spark.sink.shared_log import FindAppender, SharedLog
from dlspark.spark.sink.write_proxies import WriteProxies
from metadata.distributedlog.locks import LockId
from metadata.distributedlog.owner_names import appends

_log = logging.getLogger(__name__)


class LogOpener:
    """Opens the logs of one namespace for a process that appends."""

    def __init__(
        self, tools: AppendTools, proxies: WriteProxies, *, always: bool, find: FindAppender, idle_ms: int = 0
    ) -> None:
        """`always`: through the proxies. `find`: the process of another query. `idle_ms`: how long that one holds a log
        behind a batch of this one's."""
        self._tools = tools
        self._proxies = proxies
        self._always = always
        self._find = find
        self._idle_ms = idle_ms
        self._said: set[str] = set()

    async def open(self, log: str) -> AppendedLog:
        """Open the log. Raises as `OwnedLog.open` and `ProxiedLog.open`."""
        if self._always:
            return await self._through_proxies(log)
        holder = await self._holder(log)
        if holder is not None and await self._proxies.are(self._tools.namespace.services, holder.client_id):
            return await self._through_proxies(log)
        if holder is None or not appends(holder.client_id):
            return await OwnedLog.open(self._tools, log)
        other = self._find(holder)
        if other is not None:
            await self._tools.logs.prepare(log)
            return SharedLog(
                log, holder, other, functools.partial(self._is_held_by, holder, log), idle_ms=self._idle_ms
            )
        if holder.session_id != self._tools.namespace.store.session_id:
            if await self._proxies.within_reach(self._tools.namespace.services):
                return await self._through_proxies(log)
            self._say_taking_turns(log, holder)
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

    def _say_taking_turns(self, log: str, holder: LockId) -> None:
        if log not in self._said:
            self._said.add(log)
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
