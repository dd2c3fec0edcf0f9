"""Operations on whole logs, and who may do what: creating, deleting, truncating; access control by log.

A request is permitted by the entry of its log, else by the namespace's default one (`permissions`):

| request | denied by |
|---|---|
| write, producer's epoch, fencing token | write |
| truncate | truncate |
| delete | delete (upstream asks for truncate, a slip) |
| create, heartbeat, taking a stream over | acquire |
| release, move | release |

A proxy knows a stream's entry from the moment at which it opens the log, and looks at it again at intervals: a request
costs no question to ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.serving.protocol.operations import (
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Heartbeat,
    MoveStream,
    ReleaseStream,
    Request,
    SetFencingToken,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.permissions import ALLOW_ALL, Action, Permissions, RequestDeniedError

ACTION_OF: Final[Mapping[type, Action]] = {
    WriteRecords: Action.WRITE,
    BeginEpoch: Action.WRITE,
    SetFencingToken: Action.WRITE,
    TruncateStream: Action.TRUNCATE,
    DeleteStream: Action.DELETE,
    CreateStream: Action.ACQUIRE,
    Heartbeat: Action.ACQUIRE,
    TakeStream: Action.ACQUIRE,
    ReleaseStream: Action.RELEASE,
    MoveStream: Action.RELEASE,
}


async def permissions_of(namespace: AsyncNamespace, stream: str) -> Permissions:
    """Return what holds for a log now: its own entry, else the default one; everything where there is no access
    control."""
    store = namespace.services.permissions
    return await store.of(stream) if store is not None else ALLOW_ALL


def check_permitted(permissions: Permissions, request: Request, stream: str) -> None:
    """Raise RequestDeniedError where `permissions`, those of the stream, deny the request."""
    action = ACTION_OF[type(request)]
    if permissions.denies(action):
        raise RequestDeniedError(
            f"the namespace's access control denies {action.name.lower()}; nothing was done",
            log=stream,
            advice="Ask the namespace's administrator to change the log's entry or the default one",
        )


async def read_ahead(namespace: AsyncNamespace, stream: str) -> None:
    """Fetch what the log's next owner needs and can have before it has the lock: the segments that have their end,
    which are kept, and what a ledger is made of. Raises the metadata store's errors."""
    services = namespace.services
    try:
        await asyncio.gather(
            services.logs.segments(stream),
            services.ledger_store.reserve_id(),
            services.ledgers.bookies.writable(),
        )
    except LogNotFoundError:
        pass  # It is made when it is opened.


async def create_stream(namespace: AsyncNamespace, request: CreateStream) -> None:
    """Create the log; one that exists is left as it is. Raises what `AsyncNamespace.create_log` does."""
    check_permitted(await permissions_of(namespace, request.stream), request, request.stream)
    await namespace.create_log(request.stream)


async def delete_stream(namespace: AsyncNamespace, stream: str) -> None:
    """Delete a log whose writer is closed. Raises what `AsyncNamespace.delete_log` does: also where another process
    has taken the log in between."""
    await namespace.delete_log(stream)


async def truncate_stream(writer: AsyncLogWriter, dlsn: DLSN) -> DLSN:
    """Hide every record below `dlsn`; returns the log's first position. Raises what `AsyncLogWriter.truncate` does."""
    return await writer.truncate(dlsn)
