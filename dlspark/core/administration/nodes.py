"""Storage nodes as operators see them: who joined the cluster, who is there, who answers, and how much room it has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum

from dlspark.errors import DistributedLogError
from metadata.bookies import BookieRegistry, Cookie, Registration
from metadata.foundation.errors import CorruptDataError
from storage_node.client import LedgerClient
from storage_node.client.disk_space import DiskSpace


class NodeState(str, Enum):
    WRITABLE = "writable"
    READ_ONLY = "read-only"
    MISSING = "not registered"
    """It has a cookie: it was part of the cluster, and nobody has taken it out."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node. `space` is None, and `error` says why, where it is not registered or does not answer."""

    bookie_id: str
    state: NodeState
    registration: Registration | None
    cookie: Cookie | None
    space: DiskSpace | None
    error: str | None


async def node_statuses(client: LedgerClient) -> list[NodeStatus]:
    """All nodes of the client's cluster, by id. Those that are registered are asked for their room at once.

    Raises CallerError where no cluster is initialised, and the metadata store's errors.
    """
    registry = client.bookies
    registered = {one.bookie_id: one for one in await registry.registrations()}
    ids = sorted({*registered, *await registry.cookies()})
    return list(await asyncio.gather(*(_status(client, registry, name, registered.get(name)) for name in ids)))


async def _status(
    client: LedgerClient, registry: BookieRegistry, bookie_id: str, registration: Registration | None
) -> NodeStatus:
    cookie, error = await _cookie(registry, bookie_id)
    if registration is None:
        return NodeStatus(bookie_id, NodeState.MISSING, None, cookie, None, error)
    state = NodeState.READ_ONLY if registration.readonly else NodeState.WRITABLE
    if registration.address is None:
        return NodeStatus(bookie_id, state, registration, cookie, None, registration.error)
    try:
        space = await client.disk_space(bookie_id)
    except DistributedLogError as failure:
        error = f"{type(failure).__name__}: {failure.message}"
        return NodeStatus(bookie_id, state, registration, cookie, None, error)
    return NodeStatus(bookie_id, state, registration, cookie, space, error)


async def _cookie(registry: BookieRegistry, bookie_id: str) -> tuple[Cookie | None, str | None]:
    try:
        found = await registry.read_cookie(bookie_id)
    except CorruptDataError as error:
        return None, error.message
    return (None if found is None else found.value), None
