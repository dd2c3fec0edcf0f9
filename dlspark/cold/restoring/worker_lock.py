"""`cold_worker_lock`: one worker at a time changes a log's cold storage: a mover, a restore or a redaction.

It keeps them out of each other's way and is not what safety hangs on: each of their changes is conditional.
"""

from __future__ import annotations

from dlspark.core.services import Services
from metadata.distributedlog.cold_units import WORKER
from metadata.distributedlog.locks import DistributedLock
from metadata.foundation.errors import NodeExistsError
from metadata.retry import repeat


async def cold_worker_lock(services: Services, log: str, client_id: str) -> DistributedLock:
    """Return the lock of a log that has cold storage, not taken yet. Raises NoNodeError where the log has none."""
    path = f"{(await services.logs.located(log)).cold}/{WORKER}"
    try:
        await repeat(services.store, lambda: services.store.create(path))
    except NodeExistsError:
        pass
    return DistributedLock(services.store, path, client_id)
