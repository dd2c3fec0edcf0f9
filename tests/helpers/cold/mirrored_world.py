"""`MirroredWorld`: a moving world with a bucket for each of three regions, any of which may be out of reach."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from dlspark.cold.moving.log_mover import MoverPass
from dlspark.cold.moving.mirroring import LogMirrors, Mirrored
from dlspark.cold.moving.owning import is_owner_mark
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import Swept, sweep_log
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.addresses import root_of
from dlspark.objects.errors import StoreUnreachedError
from dlspark.objects.memory import MemoryBucket, MemoryObjectStore
from dlspark.objects.memory_faults import ObjectFaults
from dlspark.objects.store import ObjectStore
from helpers.cold.moving_world import AT_ONCE, ROOT, MovingWorld
from metadata.distributedlog.cold_store import ColdStore

US, ASIA = "s3://bucket-us/dl", "s3://bucket-asia/dl"
MIRRORS = f"us={US};asia={ASIA}"
DAY_MS = 25 * 3_600_000


class MirroredWorld(MovingWorld):
    """A world with a bucket for each region, any of which may be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = {
            root: MemoryBucket(self.clock.now_ms, ObjectFaults(random.Random(8))) for root in (US, ASIA)
        } | {ROOT: self.bucket}
        self.away: set[str] = set()
        self.missed: Counter[str] = Counter()
        """By bucket: requests that were made of it while it was away, each of which costs time-outs elsewhere."""

    def open_store(self, address: str, options: Mapping[str, str] | None = None) -> ObjectStore:
        """Return a store of the bucket that has the address, which may be away."""
        root = root_of(address).url
        base = next(one for one in self.buckets if address == one or address.startswith(f"{one}/"))
        store = MemoryObjectStore(self.buckets[base], root, part_bytes=1 << 10, policy=AT_ONCE)
        for name in ("create", "head", "read", "delete", "abort_upload"):
            setattr(store, name, self._reachable(base, getattr(store, name)))
        for name in ("list", "uploads"):
            setattr(store, name, self._reachable_listing(base, getattr(store, name)))
        return store

    def _check_there(self, base: str) -> None:
        if base in self.away:
            self.missed[base] += 1
            raise StoreUnreachedError("out of reach", path=base)

    def _reachable(self, base: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def asked(*arguments: Any) -> Any:
            self._check_there(base)
            return await call(*arguments)

        return asked

    def _reachable_listing(
        self, base: str, call: Callable[[str], AsyncIterator[Any]]
    ) -> Callable[[str], AsyncIterator[Any]]:
        async def asked(prefix: str) -> AsyncIterator[Any]:
            self._check_there(base)
            async for one in call(prefix):
                yield one

        return asked

    def copies(self, root: str) -> dict[str, bytes]:
        """Return what is in a mirror, by its name."""
        found = self.buckets[root].objects
        return {url.rpartition("/")[2]: data for url, data in found.items() if not is_owner_mark(url)}

    def own(self) -> dict[str, bytes]:
        """Return what is in the files' own place, by its name."""
        return {url.rpartition("/")[2]: self.bucket.objects[url] for url in self.files}

    def stores(self) -> MoverStores:
        """Return the stores of one mover's process; closed with the world."""
        made = MoverStores(self.open_store, self.clock)
        self._movers.append(made)
        return made

    async def mirror(
        self, namespace: AsyncNamespace, log: str = "log", stores: MoverStores | None = None, **options: Any
    ) -> Mirrored:
        """Fill a log's mirrors, by a process of its own unless another one's stores are given."""
        cold = ColdStore(namespace.services.logs)
        mirrors = LogMirrors(namespace.services, cold, stores or self.stores(), log, no_pause)
        return await mirrors.run(namespace.settings, **options)

    async def sweep_old(self, namespace: AsyncNamespace, log: str = "log", stores: MoverStores | None = None) -> Swept:
        """Sweep a log's folders a day later."""
        self.clock.moment_ms += DAY_MS
        cold = ColdStore(namespace.services.logs)
        return await sweep_log(namespace.services, cold, stores or self.stores(), log, namespace.settings)


async def no_pause(_seconds: float) -> None:
    """Others have no need of a turn here."""


async def moved(
    world: MirroredWorld, segments: int = 4, log: str = "log", **settings: Any
) -> tuple[AsyncNamespace, list[bytes]]:
    """Make a log of several files, each of one segment, the newest of them hot as well; return its records."""
    given = {"cold_mirror_places": MIRRORS, "cold_hot_retention_s": 0, "cold_target_bytes": 1, **settings}
    namespace = await world.namespace(**given)
    written = await world.write(namespace, log, segments)
    world.right(await world.mover(namespace, log).run(at_once=True))
    return namespace, written


async def truncated(
    world: MirroredWorld, namespace: AsyncNamespace, log: str = "log", stores: MoverStores | None = None
) -> MoverPass:
    """Hide the first two segments, and have a mover delete their files, days later."""
    async with await namespace.open_log(log) as opened:
        await opened.truncate(DLSN(3, 0, 0))
    world.clock.moment_ms += 4 * DAY_MS
    return await world.mover(namespace, log, stores=stores).run()
