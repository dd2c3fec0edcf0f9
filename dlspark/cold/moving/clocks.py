"""Which moment is it, for what is deleted for its age? The earlier of this host's clock and the metadata store's.

A host whose clock is days ahead would find everything old. The store has just stamped the worker's lock, so by how much
the host is ahead of it can be told; a host that is behind deletes later, which does no harm.
"""

from __future__ import annotations

from dlspark.core.services import Services
from metadata.distributedlog.locks import DistributedLock
from metadata.retry import repeat


async def ahead_ms(services: Services, lock: DistributedLock) -> int | None:
    """Return by how much this host's clock is ahead of the store's stamp on a lock that was just acquired, at least 0;
    None where the lock's member is gone. A stamp that is some moments old makes things younger, which is safe."""
    path = lock.member_path
    now_ms = services.clock.now_ms()
    stat = await repeat(services.store, lambda: services.store.exists(path))
    return None if stat is None else max(0, now_ms - stat.ctime_ms)
