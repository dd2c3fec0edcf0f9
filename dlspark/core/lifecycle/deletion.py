"""Deletion of a log: its segments off the list, their ledgers, its znodes; all of it while the log's lock is held.

| the process dies | that leaves | cleaned by |
|---|---|---|
| before the first transaction | the log, whole | the caller, who deletes it again |
| after it | a log without segments, their ledgers noted | a second deletion; or whoever writes it, which sweeps |
| after the ledgers | a log without segments | a second deletion |
| between two transactions on a large tree | a log without segments, parts of its tree gone | a second deletion |

The first transaction also moves the versions that a deposed writer's transactions depend on: it can add no segment to a
log that is being taken apart (I7). Segment numbers go on behind those that were removed, should somebody write to what
is left of the log.
"""

from __future__ import annotations

from dlspark.core.lifecycle.owned_segments import OwnedSegments, taken
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from metadata.foundation.errors import NoNodeError
from metadata.log_names import log_not_found
from metadata.retry import repeat
from metadata.segment_changes import check_guard


async def delete_log(services: Services, name: str, settings: Settings, client_id: str) -> None:
    """Delete a log with everything in it. After any error it may be called again, and finishes what was begun.

    Raises LogNotFoundError, OwnershipAcquireFailedError while somebody writes it, LockingError where the lock was lost
    on the way.
    """
    async with taken(services, name, settings, client_id) as owned:
        await _delete(services, owned)


async def delete_unwritten_log(services: Services, name: str, settings: Settings, client_id: str, created: int) -> bool:
    """Delete a log that has had no segment; False, and nothing is done, if it has, or is not the one `created` tells.

    For whoever created a log and does not need it after all: others may have found it meanwhile. Raises as
    `delete_log`.
    """
    async with taken(services, name, settings, client_id) as owned:
        if await creation_of(services, name) != created or await owned.written():
            return False
        await _delete(services, owned)
        return True


async def creation_of(services: Services, name: str) -> int:
    """What tells a log from a later one of its name: ZooKeeper's number of the transaction that created it.

    Raises LogNotFoundError.
    """
    path = (await services.logs.located(name)).ledgers
    stat = await repeat(services.store, lambda: services.store.exists(path))
    if stat is None:
        raise log_not_found(name, path)
    return stat.czxid


async def _delete(services: Services, owned: OwnedSegments) -> None:
    await owned.clear()
    try:
        await services.logs.delete_tree(owned.name, owned.guard)
    except NoNodeError as error:
        check_guard(error, owned.name)
        raise
