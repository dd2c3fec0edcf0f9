"""Who holds a lock: `lock_owner` and `lock_holder`, for those that do not want it themselves."""

from __future__ import annotations

from dlspark.core.services import Services
from metadata.distributedlog.lock_members import LockId, parse_member, sequence_of
from metadata.foundation.errors import NoNodeError
from metadata.retry import repeat


async def lock_owner(services: Services, path: str) -> str | None:
    """Return the client id of the holder of the lock at `path`; None if it is free or does not exist."""
    holder = await lock_holder(services, path)
    return holder.client_id if holder is not None else None


async def lock_holder(services: Services, path: str) -> LockId | None:
    """Return the holder of the lock at `path`, with its session; None if it is free or does not exist."""
    try:
        names, _ = await repeat(services.store, lambda: services.store.children(path))
    except NoNodeError:
        return None
    for name in sorted(names, key=sequence_of):
        known = parse_member(name)
        if known is not None:
            return known
        try:
            data, stat = await repeat(services.store, lambda name=name: services.store.get(f"{path}/{name}"))  # type: ignore[misc]
        except NoNodeError:
            continue  # gone since it was listed
        return LockId(data.decode("utf-8", "replace"), stat.ephemeral_owner)
    return None
