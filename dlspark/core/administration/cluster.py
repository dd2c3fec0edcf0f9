"""The state of a BookKeeper cluster: its tree in ZooKeeper, its storage nodes, the ledgers that lack copies. Read only.

Three sources are compared for each node (`node_statuses`): its cookie says that it joined the cluster, its registration
that it runs, and its own answer how much room it has. A node with a cookie and no registration is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum

from metadata.bookkeeper.bookies import BookieRegistry, Cookie, Registration
from metadata.bookkeeper.ledgers import LedgerLayout, LedgerStore
from metadata.foundation.errors import CorruptDataError, DistributedLogError
from metadata.store import MetadataStore
from storage_node.autorecovery.status import RecoveryStatus, recovery_status
from storage_node.client.client import LedgerClient
from storage_node.client.connections import DiskSpace
from storage_node.edge import Clock
from storage_node.settings.client import ClientSettings


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`faults` say in plain words what an operator has to do, with the command that helps; none if all is well."""

    root: str
    layout: LedgerLayout | None
    instance_id: str | None
    nodes: list[NodeStatus]
    recovery: RecoveryStatus
    faults: list[str]

    def count(self, state: NodeState) -> int:
        """Return how many nodes are in this state."""
        return sum(node.state is state for node in self.nodes)


async def cluster_status(
    store: MetadataStore, root: str, clock: Clock, *, limit: int, settings: ClientSettings | None = None
) -> ClusterStatus:
    """Return the cluster below `root`; at most `limit` ledgers that lack copies are read, and all are counted.

    Raises CallerError where no cluster is initialised there, CorruptDataError, and the metadata store's errors.
    """
    ledgers, registry = LedgerStore(store, root), BookieRegistry(store, root)
    await ledgers.check_initialised()
    layout = await ledgers.stored_layout()
    client = LedgerClient(ledgers, registry, settings=settings)
    try:
        nodes = await node_statuses(client)
    finally:
        await client.close()
    recovery = await recovery_status(store, root, clock, limit=limit)
    faults = [*_tree_faults(layout), *_node_faults(nodes), *_recovery_faults(recovery)]
    return ClusterStatus(root, layout, await registry.instance_id(), nodes, recovery, faults)


def _tree_faults(layout: LedgerLayout | None) -> list[str]:
    if layout is not None:
        return []
    return ["there is no LAYOUT, so nothing has worked with these ledgers yet; to write it: dlspark cluster init"]


def _node_faults(nodes: list[NodeStatus]) -> list[str]:
    faults = []
    if not any(node.state is NodeState.WRITABLE for node in nodes):
        faults.append("no storage node takes writes")
    for node in nodes:
        name = f"storage node {node.bookie_id}"
        if node.state is NodeState.MISSING:
            faults.append(
                f"{name} is not registered: start it (dlspark bookie --conf FILE), or take it out for good "
                f"(dlspark bookie decommission --bookie-id {node.bookie_id} --conf FILE)"
            )
            continue
        if node.state is NodeState.READ_ONLY:
            faults.append(f"{name} is read-only: see its log, and its disks (dlspark bookie status --conf FILE)")
        if node.space is None:
            faults.append(f"{name} is registered, and does not answer: {node.error}")
        elif node.error is not None:
            faults.append(f"{name}: its cookie cannot be read: {node.error}")
    return faults


def _recovery_faults(recovery: RecoveryStatus) -> list[str]:
    if not recovery.marked:
        return []
    counted = "1 ledger lacks copies" if recovery.marked == 1 else f"{recovery.marked} ledgers lack copies"
    if not recovery.enabled:
        return [f"{counted}, and auto-recovery is switched off: dlspark autorecovery enable --conf FILE"]
    if recovery.auditor is None:
        return [f"{counted}, and auto-recovery is not running: dlspark autorecovery --conf FILE"]
    return [f"{counted}; auto-recovery is at work"]


# ------------------------------------------------------------------ nodes


class NodeState(str, Enum):
    """A node's registration."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    MISSING = "not registered"
    """It has a cookie: it is part of the cluster, and has not been taken out (decommissioned)."""


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
    """Return all nodes of the client's cluster, by id. Those that are registered are asked for their room at once.

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
