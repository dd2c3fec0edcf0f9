"""How a log is opened to append batches to it: as its owner, or through the proxy that owns it.

| the option `proxy` | the log's lock is | opened |
|---|---|---|
| given | whatever it is | through the proxies: one of them will own the log |
| not given | held by a write proxy that the namespace announces | through the proxies |
| not given | free, or another writer's | as its owner: it is waited for |

Both ways keep one mark and send under one name, so they may follow each other at any time (I20).
"""

from __future__ import annotations

import functools

from dlspark.spark.sink.appender import AppendedLog
from dlspark.spark.sink.kept_mark import AppendTools
from dlspark.spark.sink.owned_log import OwnedLog
from dlspark.spark.sink.proxied_log import ProxiedLog
from dlspark.spark.sink.write_proxies import WriteProxies


async def open_log(tools: AppendTools, proxies: WriteProxies, log: str, *, always: bool) -> AppendedLog:
    """Open the log; `always`: through the proxies. Raises as `OwnedLog.open` and `ProxiedLog.open`."""
    if always or await proxies.own(tools.namespace.services, log):
        return await ProxiedLog.open(tools, proxies, log, functools.partial(settle, tools, proxies))
    return await OwnedLog.open(tools, log)


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
