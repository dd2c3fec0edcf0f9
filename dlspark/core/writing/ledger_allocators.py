"""Ledgers made in advance: an allocator has one ready through a znode, and a pool lends allocators to all logs that
this process writes (docs/reference/znodes.md#ledger-allocators).

An allocator, `LedgerAllocator`, has the ledger ready that the next segment of a log will be:

    HANDED_OVER  nothing is ready; a ledger that the znode still names is a leftover that belongs to no log
    ALLOCATING   a ledger is being created
    ALLOCATED    a ledger is ready and named in the znode
    HANDING_OVER a transaction is under way that clears the znode and makes the ledger a segment
    ERROR        another process uses the allocator, or an outcome stayed unknown: only its znode shows its state

A start that was definitely not applied goes back to ALLOCATED: the next one takes the same ledger. No crash loses a
ledger or has two segments share one: a ledger is named in the znode by the transaction that creates it (before it
exists, where ledgers are in another ZooKeeper); a leftover is deleted before another id takes its place, and only
after a `claim`, so that no other process can still hand it over. What remains with two ZooKeepers: an owner that stalls
between naming and creating, is deposed meanwhile, and dies before it has deleted what it then created.

Each allocator of a pool, `LedgerAllocatorPool` (docs/reference/znodes.md#allocator-pools), is lent to one start of a
segment at a time, which hands its ledger over; afterwards it makes the next one in the background, so that a roll waits
for no ledger. An allocator that another process has used is read again from its znode. A pool belongs to one process:
two that share one lose no ledger, but take each other's away. It is opened when the first segment is started with it.
Closing leaves its ledgers as they are, named in their znodes: the process that opens the pool next deletes them.
`delete_pool` deletes a pool with its ledgers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import ClassVar

from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from metadata.distributedlog.allocators import Allocation, AllocatorStore, pool_path
from metadata.foundation.errors import (
    BadVersionError,
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
    NotAppliedError,
)
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.retry import repeat
from metadata.store import Op, SessionState, SetData, parent_of
from storage_node.client.writer import LedgerWriter

_log = logging.getLogger(__name__)


class AllocatorPhase(Enum):
    """The phases of an allocator; the table at the top says what each means."""

    HANDED_OVER = "handed over"
    ALLOCATING = "allocating"
    ALLOCATED = "allocated"
    HANDING_OVER = "handing over"
    ERROR = "error"


class AllocatorEvent(Enum):
    """The events in an allocator's life; the texts are for messages."""

    ALLOCATE = "a ledger is wanted"
    CREATED = "it exists and is named"
    NOT_CREATED = "it does not, or that is not known; the znode shows it"
    DISCARD = "it does not suit any more"
    OBTAIN = "a transaction takes it"
    COMMITTED = "that was applied"
    ABORTED = "that was definitely not applied"
    LOST = "another process was first, or the outcome is not known"


TRANSITIONS: Mapping[tuple[AllocatorPhase, AllocatorEvent], AllocatorPhase] = {
    (AllocatorPhase.HANDED_OVER, AllocatorEvent.ALLOCATE): AllocatorPhase.ALLOCATING,
    (AllocatorPhase.HANDED_OVER, AllocatorEvent.LOST): AllocatorPhase.ERROR,
    (AllocatorPhase.ALLOCATING, AllocatorEvent.CREATED): AllocatorPhase.ALLOCATED,
    (AllocatorPhase.ALLOCATING, AllocatorEvent.NOT_CREATED): AllocatorPhase.HANDED_OVER,
    (AllocatorPhase.ALLOCATING, AllocatorEvent.LOST): AllocatorPhase.ERROR,
    (AllocatorPhase.ALLOCATED, AllocatorEvent.OBTAIN): AllocatorPhase.HANDING_OVER,
    (AllocatorPhase.ALLOCATED, AllocatorEvent.DISCARD): AllocatorPhase.HANDED_OVER,
    (AllocatorPhase.ALLOCATED, AllocatorEvent.LOST): AllocatorPhase.ERROR,
    (AllocatorPhase.HANDING_OVER, AllocatorEvent.COMMITTED): AllocatorPhase.HANDED_OVER,
    (AllocatorPhase.HANDING_OVER, AllocatorEvent.ABORTED): AllocatorPhase.ALLOCATED,
    (AllocatorPhase.HANDING_OVER, AllocatorEvent.LOST): AllocatorPhase.ERROR,
}
"""Everything else is a bug."""


class AllocatorLostError(NotAppliedError):
    """Another process uses the allocator, or its pool was deleted; nothing was handed over."""

    code: ClassVar[int] = 504


@dataclass(frozen=True, slots=True)
class LedgerKind:
    """The parameters that the ledgers of a segment are made with."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    password: bytes = field(repr=False)


class LedgerAllocator:
    """One allocator znode in the hands of one process. Calls do not overlap; they come from one event loop."""

    def __init__(self, services: Services, allocation: Allocation) -> None:
        """Take over `allocation`: the znode as it was found; from then on this process alone is to use it."""
        self.phase = AllocatorPhase.HANDED_OVER
        self.allocation = allocation
        self._services = services
        self._store = AllocatorStore(services.store, services.counters)
        self._one_zookeeper = services.ledger_store.store is services.store
        self._ledger: LedgerWriter | None = None
        self._kind: LedgerKind | None = None
        self._named: int | None = None
        """The id that the creation under way puts into the znode; kept while it is not known whether it did."""

    def _step(self, event: AllocatorEvent) -> None:
        after = TRANSITIONS.get((self.phase, event))
        if after is None:
            raise InvariantViolation(f"an allocator is {self.phase.value}: {event.value}", path=self.allocation.path)
        self.phase = after

    # ------------------------------------------------------------------ allocating

    async def allocate(self, kind: LedgerKind, besides: Sequence[Op] = ()) -> bool:
        """Have a ledger ready, ALLOCATED. A ledger that is ready already is kept if it suits.

        `besides` is to be done in the transaction that makes the ledger; returns whether it was: not where a ledger is
        ready already, nor where ledgers are in another ZooKeeper.

        Raises AllocatorLostError where another process uses the znode, NotEnoughBookiesError, and the metadata store's
        errors; but for the first, it may be called again. A cancellation takes effect when the ledger is made.
        """
        if self.phase is AllocatorPhase.ERROR:
            raise self._lost_error()  # A ledger was to be made in the background, where no caller got the error.
        if self.phase is AllocatorPhase.ALLOCATED:
            if self._kind == kind and self._ledger is not None and await self._is_fit(self._ledger):
                return False
            self._step(AllocatorEvent.DISCARD)
            await self._let_go()
        await undisturbed(self._allocate(kind, besides))
        return bool(besides) and self._one_zookeeper

    async def _is_fit(self, ledger: LedgerWriter) -> bool:
        """Return whether a ledger that was made earlier may become a segment now: its writer goes on, and no region
        that it lies in has been disallowed meanwhile."""
        bookies = ledger.metadata.last_ensemble.bookies
        return ledger.error is None and await self._services.ledgers.may_place_on(bookies)

    async def _allocate(self, kind: LedgerKind, besides: Sequence[Op]) -> None:
        self._step(AllocatorEvent.ALLOCATE)
        try:
            # In this order: `_settle` may find that a failed creation left a ledger, which is then the leftover; and
            # the leftover goes before another id takes its place in the znode, or it would never be found again.
            await self._settle()
            await self._delete_leftover()
            ledger = await self._services.ledgers.create(
                ensemble_size=kind.ensemble_size,
                write_quorum=kind.write_quorum,
                ack_quorum=kind.ack_quorum,
                password=kind.password,
                before_create=partial(self._name, besides),
            )
        except (BadVersionError, NoNodeError) as error:
            if error.path != self.allocation.path:
                self._step(AllocatorEvent.NOT_CREATED)
                raise
            self._step(AllocatorEvent.LOST)
            raise self._lost_error() from error
        except BaseException:
            self._step(AllocatorEvent.NOT_CREATED)
            raise
        if self._one_zookeeper:
            data = str(ledger.ledger_id).encode("ascii")
            self.allocation = Allocation(self.allocation.path, data, self.allocation.version + 1)
        self._named = None
        self._ledger, self._kind = ledger, kind
        self._step(AllocatorEvent.CREATED)

    def _lost_error(self) -> AllocatorLostError:
        return AllocatorLostError(
            "the ledger allocator is used by another process, or was deleted; no ledger was taken from it",
            path=self.allocation.path,
            advice="A log has one writer, and each process a pool of its own: see ledgerAllocatorPoolName",
        )

    async def _name(self, besides: Sequence[Op], ledger_id: int) -> None:
        """Have the znode name a ledger that is about to be created: with it, or where that cannot be, before it."""
        self._named = ledger_id
        if self._one_zookeeper:
            naming = SetData(self.allocation.path, str(ledger_id).encode("ascii"), self.allocation.version)
            self._services.ledger_store.join_creation(ledger_id, [naming, *besides])
        else:
            self.allocation = await self._store.record(self.allocation, ledger_id)

    async def _settle(self) -> None:
        """Learn what came of a creation that ended in an error: its id is in the znode, or what was there before."""
        named, self._named = self._named, None
        if named is None:
            return
        found = await self._store.read(self.allocation.path)
        ours = Allocation(found.path, str(named).encode("ascii"), self.allocation.version + 1)
        if found not in (self.allocation, ours):
            raise BadVersionError("the allocator was changed by another process", path=found.path)
        self.allocation = found

    async def _delete_leftover(self) -> None:
        """Delete the ledger that the znode names, which belongs to no segment."""
        if not self.allocation.data:
            return
        leftover = self.allocation.ledger_id
        if leftover is None:
            _log.warning(
                "%s held %r, which is not a ledger id; replaced",
                self.allocation.path,
                self.allocation.data[:40],
                extra=about(path=self.allocation.path),
            )
            return
        # The claim moves the znode's version, so a transaction that hands this ledger over fails from here on: without
        # it, a late one would make a segment of a ledger that is being deleted (I1, I7).
        self.allocation = await self._store.claim(self.allocation)
        await self._services.ledgers.delete(leftover)
        self._services.counters["leftover-deleted"] += 1

    # ------------------------------------------------------------------ handing over

    @property
    def ledger(self) -> LedgerWriter:
        """The ledger that is ready."""
        if self._ledger is None:
            raise InvariantViolation("no ledger is ready", path=self.allocation.path)
        return self._ledger

    def obtain(self) -> SetData:
        """Return the operation to put into the transaction that makes `ledger` a segment; HANDING_OVER until its
        outcome."""
        self._step(AllocatorEvent.OBTAIN)
        return self._store.hand_over(self.allocation)

    def committed(self) -> None:
        """Note that the transaction was applied: the ledger is a segment."""
        self._step(AllocatorEvent.COMMITTED)
        self.allocation = Allocation(self.allocation.path, b"", self.allocation.version + 1)
        self._ledger = self._kind = None

    def aborted(self) -> None:
        """Note that the transaction was definitely not applied: the ledger is ready for another one."""
        self._step(AllocatorEvent.ABORTED)

    def lost(self) -> None:
        """Give this allocator up: its ledger may be a segment now, or a leftover that the znode names."""
        self._step(AllocatorEvent.LOST)
        self._ledger = self._kind = None

    async def close(self) -> None:
        """Delete a ledger that is ready and will not be used. Idempotent.

        What fails here is left to the allocator's next user: the znode names the ledger until it is gone.
        """
        if self.phase is not AllocatorPhase.ALLOCATED:
            return
        ledger_id = self.ledger.ledger_id
        self._step(AllocatorEvent.DISCARD)
        await self._let_go()
        if self._services.store.state is not SessionState.CONNECTED:
            return
        try:
            # Delete before clear: after a crash between the two the znode names a ledger that is gone, which does no
            # harm; the other way round the ledger would stay for ever.
            await self._services.ledgers.delete(ledger_id)
            self.allocation = await self._store.clear(self.allocation)
        except DistributedLogError as error:
            subject = about(ledger=ledger_id)
            _log.info(
                "ledger %s was made and not used; its allocator's next user deletes it: %s",
                ledger_id,
                error,
                extra=subject,
            )

    async def _let_go(self) -> None:
        """End the writer of a ledger that is not wanted; the znode still names it, so it will be deleted."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.abandon()


# ------------------------------------------------------------------ the pool
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
        """Return an allocator with a ledger ready, for this caller alone until `give_back`.

        Raises NoAllocatorError where all are lent, and what making a ledger raises.
        """
        await self._open()
        if not self._free:
            raise NoAllocatorError(
                f"no ledger allocator is available: all of the pool's {self._core_size} are lent or out of order",
                path=self.path,
                advice="Try again, or raise ledgerAllocatorPoolCoreSize",
            )
        allocator = next((one for one in self._free if one.phase is AllocatorPhase.ALLOCATED), self._free[0])
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
        if allocator.phase is AllocatorPhase.ERROR:
            self._services.counters["allocator-rescued"] += 1
            rescue = asyncio.get_running_loop().create_task(self._rescue(allocator.allocation.path))
            self._rescues.add(rescue)
            rescue.add_done_callback(self._rescues.discard)
            return
        self._free.append(allocator)
        self._make(allocator)

    def _make(self, allocator: LedgerAllocator) -> None:
        """Make the allocator's next ledger, in the background."""
        if allocator.phase is not AllocatorPhase.ALLOCATED and allocator not in self._making:
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
            # The next loan of this allocator tries again, and raises why it fails.
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
    """Return the pool of all writers of this namespace in this process, by the namespace's settings. Nothing is read or
    made yet."""
    shared, settings = services.shared, services.settings
    if not isinstance(shared.pool, LedgerAllocatorPool):
        namespace = shared.namespace_path or services.logs.namespace_path
        path = pool_path(namespace, settings.allocator_pool_path, settings.allocator_pool_name)
        kind = LedgerKind(*settings.quorums, settings.password)
        shared.pool = LedgerAllocatorPool(services, path, settings.allocator_pool_size, kind)
    return shared.pool


async def delete_pool(services: Services, path: str) -> int:
    """Delete a pool and the ledgers that it has ready; returns how many there were. A missing pool is a success.

    A process that still uses it loses its allocators, not its segments: each ledger is claimed before it is deleted.
    After any error it may be called again.
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
    """Return the namespace's pools by name, with the ledger that each allocator has ready. `folder` as for
    `delete_pool`'s.

    Raises CallerError for a path that cannot be a folder of pools.
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
