"""`LedgerAllocator`: has the ledger ready that the next segment of a log will be, through one znode
(docs/reference/znodes.md#ledger-allocators).

    HANDED_OVER  nothing is ready; what the znode still names, if anything, is a leftover and nobody's
    ALLOCATING   a ledger is being created
    ALLOCATED    a ledger is ready and named in the znode
    HANDING_OVER a transaction is under way that clears the znode and makes the ledger a segment
    ERROR        somebody else uses the allocator, or an outcome stayed unknown: only its znode knows how it stands

A start that was definitely not applied goes back to ALLOCATED: the next one takes the same ledger. No crash loses a
ledger or has two segments share one: a ledger is named in the znode by the transaction that creates it (before it
exists, where ledgers are in another ZooKeeper); a leftover is deleted before another id takes its place, and only
after a `claim`, so that nobody else can still hand it over. What remains with two ZooKeepers: an owner that stalls
between naming and creating, is deposed meanwhile, and dies before it has deleted what it then created.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from dlspark.core.metrics.logs import about
from dlspark.core.services import Services
from metadata.allocators import Allocation, AllocatorStore
from metadata.foundation.errors import (
    BadVersionError,
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
    NotAppliedError,
)
from metadata.foundation.tasks import undisturbed
from metadata.store import SessionState, SetData
from storage_node.client import LedgerWriter

_log = logging.getLogger(__name__)


class Phase(Enum):
    HANDED_OVER = "handed over"
    ALLOCATING = "allocating"
    ALLOCATED = "allocated"
    HANDING_OVER = "handing over"
    ERROR = "error"


class Event(Enum):
    ALLOCATE = "a ledger is wanted"
    CREATED = "it exists and is named"
    NOT_CREATED = "it does not, or that is not known; the znode tells"
    DISCARD = "it does not suit any more"
    OBTAIN = "a transaction takes it"
    COMMITTED = "that was applied"
    ABORTED = "that was definitely not applied"
    LOST = "somebody else was first, or the outcome is not known"


TRANSITIONS: Mapping[tuple[Phase, Event], Phase] = {
    (Phase.HANDED_OVER, Event.ALLOCATE): Phase.ALLOCATING,
    (Phase.HANDED_OVER, Event.LOST): Phase.ERROR,
    (Phase.ALLOCATING, Event.CREATED): Phase.ALLOCATED,
    (Phase.ALLOCATING, Event.NOT_CREATED): Phase.HANDED_OVER,
    (Phase.ALLOCATING, Event.LOST): Phase.ERROR,
    (Phase.ALLOCATED, Event.OBTAIN): Phase.HANDING_OVER,
    (Phase.ALLOCATED, Event.DISCARD): Phase.HANDED_OVER,
    (Phase.ALLOCATED, Event.LOST): Phase.ERROR,
    (Phase.HANDING_OVER, Event.COMMITTED): Phase.HANDED_OVER,
    (Phase.HANDING_OVER, Event.ABORTED): Phase.ALLOCATED,
    (Phase.HANDING_OVER, Event.LOST): Phase.ERROR,
}
"""Everything else is a bug."""


class AllocatorLostError(NotAppliedError):
    """Somebody else uses the allocator, or its pool was deleted; nothing was handed over."""

    code: ClassVar[int] = 504


@dataclass(frozen=True, slots=True)
class LedgerKind:
    """What the ledgers of a segment are made with."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    password: bytes = field(repr=False)


class LedgerAllocator:
    """One allocator znode in the hands of one process. Calls do not overlap; they come from one event loop."""

    def __init__(self, services: Services, allocation: Allocation) -> None:
        """`allocation`: the znode as it was found, at a moment at which nobody else was to use it."""
        self.phase = Phase.HANDED_OVER
        self.allocation = allocation
        self._services = services
        self._store = AllocatorStore(services.store, services.counters)
        self._one_zookeeper = services.ledger_store.store is services.store
        self._ledger: LedgerWriter | None = None
        self._kind: LedgerKind | None = None
        self._named: int | None = None
        """The id that the creation under way puts into the znode; kept while it is not known whether it did."""

    def _step(self, event: Event) -> None:
        after = TRANSITIONS.get((self.phase, event))
        if after is None:
            raise InvariantViolation(f"an allocator is {self.phase.value}: {event.value}", path=self.allocation.path)
        self.phase = after

    # ------------------------------------------------------------------ allocating

    async def allocate(self, kind: LedgerKind) -> None:
        """Have a ledger ready, ALLOCATED. One that is ready already is kept if it suits.

        Raises AllocatorLostError where somebody else uses the znode, NotEnoughBookiesError, and the metadata store's
        errors; but for the first, it may be called again. A cancellation takes effect when the ledger is made.
        """
        if self.phase is Phase.ERROR:
            raise self._lost_error()  # A ledger was to be made in advance, and nobody waited for that.
        if self.phase is Phase.ALLOCATED:
            if self._kind == kind and self._ledger is not None and self._ledger.error is None:
                return
            self._step(Event.DISCARD)
            await self._let_go()
        await undisturbed(self._allocate(kind))

    async def _allocate(self, kind: LedgerKind) -> None:
        self._step(Event.ALLOCATE)
        try:
            await self._settle()
            await self._delete_leftover()
            ledger = await self._services.ledgers.create(
                ensemble_size=kind.ensemble_size,
                write_quorum=kind.write_quorum,
                ack_quorum=kind.ack_quorum,
                password=kind.password,
                before_create=self._name,
            )
        except (BadVersionError, NoNodeError) as error:
            if error.path != self.allocation.path:
                self._step(Event.NOT_CREATED)
                raise
            self._step(Event.LOST)
            raise self._lost_error() from error
        except BaseException:
            self._step(Event.NOT_CREATED)
            raise
        if self._one_zookeeper:
            data = str(ledger.ledger_id).encode("ascii")
            self.allocation = Allocation(self.allocation.path, data, self.allocation.version + 1)
        self._named = None
        self._ledger, self._kind = ledger, kind
        self._step(Event.CREATED)

    def _lost_error(self) -> AllocatorLostError:
        return AllocatorLostError(
            "the ledger allocator is used by somebody else, or was deleted; no ledger was taken from it",
            path=self.allocation.path,
            advice="A log has one writer, and each process a pool of its own: see ledgerAllocatorPoolName",
        )

    async def _name(self, ledger_id: int) -> None:
        """Have the znode name a ledger that is about to be created: with it, or where that cannot be, before it."""
        self._named = ledger_id
        if self._one_zookeeper:
            naming = SetData(self.allocation.path, str(ledger_id).encode("ascii"), self.allocation.version)
            self._services.ledger_store.join_creation(ledger_id, [naming])
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
            raise BadVersionError("the allocator was changed by somebody else", path=found.path)
        self.allocation = found

    async def _delete_leftover(self) -> None:
        """Delete the ledger that the znode names and nobody uses."""
        if not self.allocation.data:
            return
        leftover = self.allocation.ledger_id
        if leftover is None:
            _log.warning(
                "%s held %r, no ledger id; replaced",
                self.allocation.path,
                self.allocation.data[:40],
                extra=about(path=self.allocation.path),
            )
            return
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
        """The operation that belongs into the transaction which makes `ledger` a segment: HANDING_OVER."""
        self._step(Event.OBTAIN)
        return self._store.hand_over(self.allocation)

    def committed(self) -> None:
        """The transaction was applied: the ledger is a segment."""
        self._step(Event.COMMITTED)
        self.allocation = Allocation(self.allocation.path, b"", self.allocation.version + 1)
        self._ledger = self._kind = None

    def aborted(self) -> None:
        """The transaction was definitely not applied: the ledger is ready for another one."""
        self._step(Event.ABORTED)

    def lost(self) -> None:
        """This allocator is of no use any more; the ledger may be a segment, or a leftover that the znode names."""
        self._step(Event.LOST)
        self._ledger = self._kind = None

    async def close(self) -> None:
        """Delete a ledger that is ready and will not be used. Idempotent.

        What fails here is left to whoever uses the allocator next: the znode names the ledger until it is gone.
        """
        if self.phase is not Phase.ALLOCATED:
            return
        ledger_id = self.ledger.ledger_id
        self._step(Event.DISCARD)
        await self._let_go()
        if self._services.store.state is not SessionState.CONNECTED:
            return
        try:
            await self._services.ledgers.delete(ledger_id)
            self.allocation = await self._store.clear(self.allocation)
        except DistributedLogError as error:
            told = about(ledger=ledger_id)
            _log.info(
                "ledger %s was made and not used; its allocator's next user deletes it: %s",
                ledger_id,
                error,
                extra=told,
            )

    async def _let_go(self) -> None:
        """End the writer of a ledger that is not wanted; the znode still names it, so it will be deleted."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.abandon()
