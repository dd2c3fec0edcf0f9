"""`LedgerAllocatorPool`: ledgers made in advance, for all logs that this process writes
(docs/reference/znodes.md#allocator-pools).

Each allocator of the pool is lent to one start of a segment at a time, which hands its ledger over; afterwards it makes
the next one in the background, so that a roll waits for no ledger. One that somebody else has used is read again from
its znode. A pool belongs to one process: two that share one lose no ledger, but take each other's away.

The pool is opened when the first segment is started with it. Closing leaves its ledgers as they are, named in their
znodes: whoever opens the pool next deletes them. `delete_pool` deletes a pool with its ledgers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import ClassVar

from dlspark.core.metrics.logs import about
from dlspark.core.services import Services
from dlspark.core.writing.allocator import AllocatorLostError, LedgerAllocator, LedgerKind, Phase
from metadata.allocators import AllocatorStore, pool_path
from metadata.foundation.errors import DistributedLogError, NoNodeError, NotAppliedError
from metadata.foundation.tasks import end_tasks
from metadata.paths import parent_of
from metadata.retry import repeat
from metadata.store import SessionState

_log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_S = 1.0
"""How long it takes until an allocator that was lost is read again, where that failed."""


class NoAllocatorError(NotAppliedError):
    """All allocators of the pool are lent; nothing was started."""

    code: ClassVar[int] = 500


class LedgerAllocatorPool:
    """The allocators below one znode. All calls come from one event loop."""

    def __init__(self, services: Services, path: str, core_size: int, kind: LedgerKind) -> None:
        self.path = path
        self.kind = kind
        self._services = services
        self._store = AllocatorStore(services.store, services.counters)
        self._core_size = core_size
        self._free: deque[LedgerAllocator] = deque()
        self._making: dict[LedgerAllocator, asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None
        self._rescues: set[asyncio.Task[None]] = set()
        self._closed = False

    # ------------------------------------------------------------------ lending

    async def lend(self) -> LedgerAllocator:
        """An allocator with a ledger ready, nobody else's until `give_back`.

        Raises NoAllocatorError where all are lent, and what making a ledger raises.
        """
        await self._open()
        if not self._free:
            raise NoAllocatorError(
                f"no ledger allocator is available: all of the pool's {self._core_size} are lent or out of order",
                path=self.path,
                advice="Try again, or raise ledgerAllocatorPoolCoreSize",
            )
        allocator = next((one for one in self._free if one.phase is Phase.ALLOCATED), self._free[0])
        self._free.remove(allocator)
        try:
            making = self._making.get(allocator)
            if making is not None:
                await asyncio.wait([making])
            await allocator.allocate(self.kind)
        except BaseException:
            self.give_back(allocator)
            raise
        return allocator

    def give_back(self, allocator: LedgerAllocator) -> None:
        """End the loan. The allocator is ready for the next one, or read again from its znode if it was lost."""
        if self._closed:
            return
        if allocator.phase is Phase.ERROR:
            self._services.counters["allocator-rescued"] += 1
            rescue = asyncio.get_running_loop().create_task(self._rescue(allocator.allocation.path))
            self._rescues.add(rescue)
            rescue.add_done_callback(self._rescues.discard)
            return
        self._free.append(allocator)
        self._make(allocator)

    def _make(self, allocator: LedgerAllocator) -> None:
        """Make the allocator's next ledger, in the background."""
        if allocator.phase is not Phase.ALLOCATED and allocator not in self._making:
            making = asyncio.get_running_loop().create_task(self._prepare(allocator))
            self._making[allocator] = making

    async def _prepare(self, allocator: LedgerAllocator) -> None:
        try:
            await allocator.allocate(self.kind)
        except AllocatorLostError as error:
            _log.warning("an allocator of the pool was lost: %s", error, extra=about(path=error.path))
            if allocator in self._free:  # else it is lent, and comes back by `give_back`
                self._free.remove(allocator)
                self.give_back(allocator)
        except DistributedLogError as error:
            # Whoever is lent this allocator tries again, and is told why it fails.
            self._services.counters["ledger-not-made-in-advance"] += 1
            _log.warning("no ledger could be made in advance: %s", error)
        finally:
            del self._making[allocator]

    # ------------------------------------------------------------------ opening, closing

    async def _open(self) -> None:
        if self._opening is None or (self._opening.done() and self._failed(self._opening)):
            self._opening = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(self._opening)

    @staticmethod
    def _failed(opening: asyncio.Task[None]) -> bool:
        return opening.cancelled() or opening.exception() is not None

    async def _read(self) -> None:
        """Find the pool's allocators, make those that are missing, and have each make a ledger."""
        members = await self._store.ensure_pool(self.path, self._core_size)
        for allocation in await asyncio.gather(*(self._store.read(member) for member in members)):
            self.give_back(LedgerAllocator(self._services, allocation))

    async def _rescue(self, path: str) -> None:
        """Take an allocator up again from what its znode says."""
        while self._services.store.state is not SessionState.CLOSED:
            try:
                self.give_back(LedgerAllocator(self._services, await self._store.read(path)))
                return
            except NoNodeError:
                _log.warning("%s was deleted; the pool goes on without it", path, extra=about(path=path))
                return
            except DistributedLogError as error:
                _log.warning("%s cannot be read yet: %s", path, error, extra=about(path=path))
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def close(self) -> None:
        """End what runs in the background. Ledgers stay as they are, named in their znodes. Idempotent."""
        self._closed = True
        running = [*self._making.values(), *self._rescues]
        if self._opening is not None:
            running.append(self._opening)
        await end_tasks(running, drop_errors=True)
        self._free.clear()


def shared_pool(services: Services) -> LedgerAllocatorPool:
    """The pool of everybody who writes in this namespace, by the namespace's settings. Nothing is read or made yet."""
    shared, settings = services.shared, services.settings
    if shared.pool is None:
        namespace = shared.namespace_path or services.logs.namespace_path
        path = pool_path(namespace, settings.allocator_pool_path, settings.allocator_pool_name)
        kind = LedgerKind(*settings.quorums, settings.password)
        shared.pool = LedgerAllocatorPool(services, path, settings.allocator_pool_size, kind)
    return shared.pool


async def delete_pool(services: Services, path: str) -> int:
    """Delete a pool and the ledgers that it has ready; returns how many there were. A missing pool is a success.

    Whoever still uses it loses its allocators, not its segments: each ledger is claimed before it is deleted. After
    any error it may be called again.
    """
    store = AllocatorStore(services.store, services.counters)
    try:
        members = await store.members(path)
    except NoNodeError:
        return 0
    deleted = 0
    for member in members:
        allocation = await store.claim(await store.read(member))
        if allocation.ledger_id is not None:
            await services.ledgers.delete(allocation.ledger_id)
            deleted += 1
        await store.remove(allocation)
    await store.remove_pool(path)
    return deleted


async def list_pools(services: Services, folder: str | None = None) -> list[tuple[str, list[int | None]]]:
    """The namespace's pools by name, with the ledger that each allocator has ready. `folder` as for `delete_pool`'s.

    Raises CallerError for what can be no folder of pools.
    """
    namespace = services.logs.namespace_path
    parent = parent_of(pool_path(namespace, folder or services.settings.allocator_pool_path, "any"))
    store = AllocatorStore(services.store, services.counters)
    try:
        names = (await repeat(services.store, lambda: services.store.children(parent)))[0]
    except NoNodeError:
        return []
    pools: list[tuple[str, list[int | None]]] = []
    for name in names:
        try:
            members = [await store.read(member) for member in await store.members(f"{parent}/{name}")]
        except NoNodeError:
            continue  # it is being deleted
        pools.append((name, [one.ledger_id for one in members]))
    return pools
