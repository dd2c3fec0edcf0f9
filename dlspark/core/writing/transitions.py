"""`SegmentTransitions`: the three metadata transactions of a log's owner: start, complete and delete a segment.

How each is run until its outcome is known: `transactions`. The ledger of a new segment comes from the log's own
allocator or from a pool (`ledger_allocators`); the start transaction hands it over. A ledger that was not handed over
is still named in a znode: the next owner, with this library or upstream's, finds it there and deletes it.

Every transaction depends on the versions that this owner read after it took the lock. A deposed owner's versions are
old, so its transactions change nothing, however late they arrive (I7). An owner that finds other versions than it
knows gives up (WriterDeposedError): with fresh ones it would overrule its successor. Only a new owner that has not
started a segment reads again, after the store has confirmed its lock (`SegmentSequence.take_over`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import WriteLock
from dlspark.core.writing.ledger_allocators import (
    AllocatorLostError,
    AllocatorPhase,
    LedgerAllocator,
    LedgerAllocatorPool,
    LedgerKind,
    shared_pool,
)
from dlspark.core.writing.transactions import (
    DeposedAfterwardsError,
    DeposedInDoubtError,
    Found,
    OwnersTransactions,
    versions,
)
from dlspark.errors import SegmentStateError, WriterDeposedError
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.allocators import Allocation
from metadata.distributedlog.log_names import LogState
from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.distributedlog.segments import UNASSIGNED_LSSN, UNASSIGNED_SEQUENCE_ID, SegmentMetadata
from metadata.foundation.errors import (
    BadVersionError,
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
    check,
)
from metadata.store import ANY_VERSION, Create, Op, SetData
from storage_node.client.writer import LedgerWriter

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
MAX_CONTESTED_STARTS = 3
"""Allocators of a pool that a start tries, where another process is using the same pool."""


def lssn_without_segments(stored: int, first: int) -> int:
    """Return the number of the first segment in a log that has none now; `stored`: the highest assigned so far, 0 for
    none.

    The number `stored` is given again: it belonged to an empty segment that recovery removed, of which nothing is left
    that could be confused with the new one.
    """
    return max(first, stored) if stored else first


class _NotedProducers:
    """The segments of writers with producers, as the log's znode notes them (`producer_segments`)."""

    def __init__(self, path: str, whole: int | None, losses: int, *, exists: bool) -> None:
        self._path = path
        self._exists = exists
        self._losses = losses
        self.whole = whole

    def op(self, lssn: int) -> Op:
        """Return the part of the transaction that starts segment `lssn`."""
        whole = min(lssn, self.whole) if self.whole is not None else lssn
        data = ProducerSegments(lssn, whole, self._losses).encode()
        # At any version: the transaction as a whole is that of the log's owner, by the version of `ledgers` (I7).
        return SetData(self._path, data, ANY_VERSION) if self._exists else Create(self._path, data)

    def started(self) -> None:
        """Note that the transaction was applied."""
        self._exists = True


class SegmentTransitions:
    """One owner's view of a log: the state it may update conditionally, and the segments it knows."""

    def __init__(
        self,
        services: Services,
        name: str,
        settings: Settings,
        state: LogState | None = None,
        *,
        lock: WriteLock | None = None,
        producers: bool = False,
    ) -> None:
        """Load nothing yet. `state`: the versions that `load` is to find, where they have been read before. `lock`:
        what transactions depend on, besides. With `producers`, `load` reads which segments say something of
        producers."""
        self.name = name
        self._state = state
        self._version_found = -1
        self._reads_producers = producers
        self._transactions = OwnersTransactions(services, name, lock, settings.zk_session_timeout_s)
        self.segments: list[SegmentMetadata] = []
        """In ascending order of sequence number; kept up to date by this owner's own transactions."""
        self._services = services
        self._settings = settings
        self._allocator: LedgerAllocator | None = None
        self._producers: _NotedProducers | None = None
        """The note on producers in the start of a segment; None for an owner without them."""
        self.producer_segments: ProducerSegments | None = None
        """Which segments said something of the log's producers when it was read; None where none ever did."""

    def use_settings(self, settings: Settings) -> None:
        """Use `settings` from the next transaction on."""
        self._settings = settings

    async def retried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat an idempotent call while the store cannot be reached, for as long as the session may live."""
        return await self._transactions.retried(call)

    @property
    def state(self) -> LogState:
        """The state that the next transaction is conditional on. Raises InvariantViolation before the first `load`."""
        if self._state is None:
            raise InvariantViolation("a log was to be changed that was not read", log=self.name)
        return self._state

    @state.setter
    def state(self, state: LogState) -> None:
        """Set by this owner's own transactions: what they have left."""
        self._state = state

    async def load(self) -> None:
        """Read the segments, and the state that belongs to them. The caller believes that it holds the lock.

        Raises WriterDeposedError if the log was changed while it was read, or since this owner knew it: a process that
        was paused finds the next owner's segment beside versions that are older. And CorruptDataError.
        """
        fresh = self._state is None
        try:
            found = await self._services.logs.snapshot(self.name, producers=self._reads_producers)
        except BadVersionError as error:
            raise self._transactions.deposed_error() from error
        state, noted = found.state, found.producers
        if self._state is not None and versions(state) != versions(self._state):
            # To go on from the newer versions would be to take the log from the owner who moved them (I7).
            raise self._transactions.deposed_error()
        if noted is not None and noted.newest > state.max_lssn.value:
            # It was read last: another owner has gone on, and it is not of the segments that are known here (I19).
            raise self._transactions.deposed_error()
        self._state, self.segments, self.producer_segments = state, found.segments, noted
        self._version_found = state.max_lssn.version
        phase = self._allocator.phase if self._allocator is not None else AllocatorPhase.ERROR
        if phase is AllocatorPhase.ERROR or (fresh and phase is not AllocatorPhase.ALLOCATED):
            self._allocator = None  # What it could not know is in `state` now.

    def note_producers(self, whole: int | None, losses: int) -> None:
        """Note that every segment that is started from now on begins with a snapshot of the log's producers, and its
        start says so. `whole`: see `producer_recovery.Known`; `losses`: of `Producers`."""
        path, exists = self._services.logs.paths(self.name).producers, self.producer_segments is not None
        self._producers = _NotedProducers(path, whole, losses, exists=exists)

    @property
    def whole_snapshot(self) -> int | None:
        """The newest whole snapshot of the log's producers that is known to be stored is in this segment or above; None
        for an owner without producers, and where there is none."""
        return self._producers.whole if self._producers is not None else None

    def snapshot_stored(self, lssn: int) -> None:
        """Note that segment `lssn` holds a whole snapshot that is stored."""
        if self._producers is not None:
            self._producers.whole = lssn

    def forget(self) -> None:
        """Take the log as the next `load` finds it, even if another owner changed it.

        Only an owner that has not started a segment yet may do so.
        """
        self._state = None

    async def claim(self) -> None:
        """Move the versions, so that a late transaction of any earlier owner is refused, before one of ours does.

        They depend on the versions of `ledgers` and `allocation`, which move here unless they have since `load`: by a
        segment's completion, by the next ledger. Raises WriterDeposedError where another owner was first, or where that
        is not known.
        """
        logs, state = self._services.logs, self.state
        ledgers = state.max_lssn.version == self._version_found
        ready = self._allocator is not None and self._allocator.phase is AllocatorPhase.ALLOCATED
        allocation = not (ready or self._pool() is not None)
        if not (ledgers or allocation):
            return

        async def attempt() -> LogState:
            owned = await self._transactions.owned()
            return await logs.claim(self.name, state, owned, ledgers=ledgers, allocation=allocation)

        try:
            self.state = await self._transactions.retried(attempt)
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            raise self._transactions.deposed_error() from error
        if allocation:
            self._allocator = None  # It knows an older version.

    # ------------------------------------------------------------------ start

    async def prepare(self, *, claims: bool = False) -> None:
        """Have the next segment's ledger made, so that `start` need not wait for it. Raises as `start`.

        Where it `claims`, the transaction that makes the ledger moves the version of `ledgers`, too, if it can: nothing
        is left to do for `claim` then.
        """
        if self._pool() is not None:
            return
        besides: list[Op] = []
        if claims and self.state.max_lssn.version == self._version_found:
            moved = self._services.logs.claim_op(self.name, self.state)
            besides = [moved, *await self._transactions.owned()]
        if await self._own_allocator().allocate(self._kind(), besides):
            lssn = self.state.max_lssn
            self.state = replace(self.state, max_lssn=Versioned(lssn.value, lssn.version + 1))

    async def start(self, first_txid: int) -> tuple[SegmentMetadata, LedgerWriter]:
        """Make the ledger that is ready, or a new one, the log's next segment, in progress.

        Raises WriterDeposedError, NotEnoughBookiesError and others; after any error no ledger of ours is in the log,
        unless it is an OutcomeUnknownError.
        """
        lssn = self._next_lssn()
        pool = self._pool()
        if pool is None:
            allocator = self._own_allocator()
            try:
                await allocator.allocate(self._kind())
            except AllocatorLostError as error:
                raise self._transactions.deposed_error() from error
            return await self._start_with(allocator, lssn, first_txid, shared=False)
        for _ in range(MAX_CONTESTED_STARTS - 1):
            try:
                return await self._start_from(pool, lssn, first_txid)
            except AllocatorLostError:
                # Another process uses the pool. The log did not change, and another allocator will do.
                self._services.counters["allocator-contested"] += 1
        return await self._start_from(pool, lssn, first_txid)

    async def _start_from(
        self, pool: LedgerAllocatorPool, lssn: int, first_txid: int
    ) -> tuple[SegmentMetadata, LedgerWriter]:
        allocator = await pool.lend()
        try:
            return await self._start_with(allocator, lssn, first_txid, shared=True)
        finally:
            pool.give_back(allocator)

    async def _start_with(
        self, allocator: LedgerAllocator, lssn: int, first_txid: int, *, shared: bool
    ) -> tuple[SegmentMetadata, LedgerWriter]:
        """Start the segment with `allocator`'s ledger, which is ready for another afterwards, or in ERROR."""
        ledger = allocator.ledger
        segment = self._new_segment(ledger.ledger_id, lssn, first_txid)
        expected = self.state
        hand_over = allocator.obtain()
        besides = [self._producers.op(lssn)] if self._producers is not None else []

        # By the ledger's id, which is given once: another owner's segment may have the same number.
        def applied(found: Found) -> bool:
            return any(other.ledger_id == segment.ledger_id for other in found.segments)

        try:
            self.state = await self._transactions.run(
                expected,
                lambda owned: self._services.logs.start_segment(
                    self.name, expected, segment, [*owned, *besides], hand_over=hand_over
                ),
                applied,
                replace(expected, max_lssn=Versioned(lssn, expected.max_lssn.version + 1)),
                shared=hand_over.path if shared else None,
            )
        except DeposedAfterwardsError:
            allocator.committed()
            await ledger.abandon()  # It was a segment: it is not ours to delete.
            raise
        except DeposedInDoubtError:
            # The ledger may be a segment although a list that the successor keeps changing does not show it, so it must
            # not be deleted here (I1). The allocator's znode decides: where it still names the ledger, the ledger never
            # became a segment, and the allocator's next user deletes it.
            allocator.lost()
            await ledger.abandon()
            raise
        except AllocatorLostError:
            allocator.lost()
            await self._give_back(ledger)
            raise
        except WriterDeposedError:
            if shared:
                allocator.aborted()  # It serves another log.
            else:
                allocator.lost()
                await self._give_back(ledger)
            raise
        except NotAppliedError:
            allocator.aborted()
            raise
        except BaseException:
            # The ledger may be a segment. The log's next owner, or the allocator's next user, finds out.
            allocator.lost()
            await ledger.abandon()
            raise
        allocator.committed()
        self.segments.append(segment)
        if self._producers is not None:
            self._producers.started()
        return segment, ledger

    def _new_segment(self, ledger_id: int, lssn: int, first_txid: int) -> SegmentMetadata:
        settings = self._settings
        region = self._services.region_id if settings.encode_region_id or self._services.binding.encode_region_id else 0
        segment = SegmentMetadata(
            ledger_id=ledger_id,
            lssn=lssn,
            first_txid=first_txid,
            in_progress=True,
            region=region,
            version=settings.metadata_version,
        ).named(settings.segment_name_version)
        self._check_name(segment)
        return segment

    def _check_name(self, segment: SegmentMetadata) -> None:
        """Raise SegmentStateError where another segment has the name of this one.

        Names of version 0 are made of transaction ids, which may be the same in two segments.
        """
        if any(o.znode_name == segment.znode_name for o in self.segments if o.ledger_id != segment.ledger_id):
            raise SegmentStateError(
                f"segment {segment.lssn} would be called {segment.znode_name}, as another one is; nothing was changed",
                log=self.name,
                advice="Set logSegmentNameVersion=1, which names segments by their numbers",
            )

    # ------------------------------------------------------------------ allocation

    def _kind(self) -> LedgerKind:
        return LedgerKind(*self._settings.quorums, self._settings.password)

    def _own_allocator(self) -> LedgerAllocator:
        """Return the log's own allocator; its znode is set with the version that this owner read."""
        if self._allocator is None:
            path, found = self._services.logs.paths(self.name).allocation, self.state.allocation
            self._allocator = LedgerAllocator(self._services, Allocation(path, found.value, found.version))
        return self._allocator

    def _pool(self) -> LedgerAllocatorPool | None:
        """Return the namespace's pool, if it is on and its ledgers are as this log's have to be."""
        if not self._settings.allocator_pool:
            return None
        pool = shared_pool(self._services)
        return pool if pool.kind == self._kind() else None

    async def close(self) -> None:
        """Delete a ledger that was made for this owner and not used. A pool's ledgers stay: they serve other logs."""
        if self._allocator is not None:
            await self._allocator.close()

    async def _give_back(self, ledger: LedgerWriter) -> None:
        """Delete a ledger that did not become a segment. Where this fails its znode still names it, as a leftover."""
        try:
            await ledger.abandon()
            await self._services.ledgers.delete(ledger.ledger_id)
        except DistributedLogError as error:
            subject = about(log=self.name, ledger=ledger.ledger_id)
            _log.warning(
                "ledger %s could not be deleted after a failed start: %s", ledger.ledger_id, error, extra=subject
            )

    def _next_lssn(self) -> int:
        """Return the next segment's number (docs/reference/records.md#starting-a-segment). Anything else means metadata
        that this writer must not build upon."""
        stored = self.state.max_lssn.value
        if not self.segments or self.segments[-1].lssn == UNASSIGNED_LSSN:
            return lssn_without_segments(stored, self._services.binding.first_lssn or self._settings.first_lssn)
        lssn = self.segments[-1].lssn + 1
        if lssn not in (stored, stored + 1):
            raise SegmentStateError(
                f"the newest segment is {lssn - 1}, but the log's highest assigned number is {stored}",
                log=self.name,
                advice="The log's metadata was changed by hand or damaged; compare P/ledgers with its children",
            )
        return lssn

    # ------------------------------------------------------------------ complete, delete

    async def complete(self, segment: SegmentMetadata, *, releases: bool = False, **values: int) -> SegmentMetadata:
        """Replace an in-progress segment by its completed form; `values` are its last txid, counts and last slot. Where
        it `releases`, the lock is given up in the same transaction."""
        completed = segment.completed(
            completion_time_ms=self._services.clock.now_ms(),
            start_sequence_id=self.start_sequence_id(segment),
            **values,
        ).named(self._settings.segment_name_version)
        self._check_name(completed)
        expected = self.state  # Its versions stop us where another owner has completed the segment already (I2, I7).
        stored = expected.max_lssn.value
        if stored not in (segment.lssn, segment.lssn + 1):
            raise SegmentStateError(
                f"segment {segment.lssn} cannot be completed: the log's highest assigned number is {stored}",
                log=self.name,
            )

        def applied(found: Found) -> bool:
            return any(not s.in_progress and s.ledger_id == segment.ledger_id for s in found.segments)

        after = replace(
            expected,
            max_lssn=Versioned(max(segment.lssn, stored), expected.max_lssn.version + 1),
            max_txid=Versioned(max(completed.last_txid, expected.max_txid.value), expected.max_txid.version + 1),
        )
        try:
            self.state = await self._transactions.run(
                expected,
                lambda owned: self._services.logs.complete_segment(self.name, expected, completed, segment, owned),
                applied,
                after,
                releases=releases,
            )
        except DeposedAfterwardsError:
            if not releases:
                raise  # Else the next owner has gone on, as it should.
        self.segments = [completed if s.ledger_id == segment.ledger_id else s for s in self.segments]
        return completed

    def start_sequence_id(self, segment: SegmentMetadata) -> int:
        """Return the first sequence id of `segment`, where the last one ended:
        docs/reference/znodes.md#start-sequence-ids.

        Negative where there are none. Raises SegmentStateError where the one before it is in progress.
        """
        if self._settings.metadata_version < 5:
            return UNASSIGNED_SEQUENCE_ID
        before = [s for s in self.segments if s.lssn == segment.lssn - 1]
        if not before:
            return 0
        if before[0].in_progress:
            raise SegmentStateError(
                f"segment {segment.lssn} cannot be completed before segment {segment.lssn - 1}", log=self.name
            )
        if before[0].version < 5:
            return 0
        return before[0].effective_start_sequence_id + before[0].record_count

    async def delete(self, segment: SegmentMetadata) -> None:
        """Remove an empty in-progress segment: its ledger first, so that a crash between the two repeats both (I10).

        Raises WriterDeposedError where another owner has the log: the next segment may have the number, and so the
        znode's name, of the empty one.
        """
        check(segment.in_progress, "only an in-progress segment is removed by recovery", log=self.name)
        with self._services.meter.of(self.name).segments_delete.measured():
            await self._delete(segment)

    async def _delete(self, segment: SegmentMetadata) -> None:
        # The ledger first: a znode without a ledger is found and removed by the next recovery, a ledger without a znode
        # by none (I10).
        await self._services.ledgers.delete(segment.ledger_id)
        expected = self.state

        async def attempt(owned: list[Op]) -> LogState:
            await self._services.logs.remove_segment(self.name, expected, segment, owned)
            return expected

        def applied(found: Found) -> bool:
            return all(other.ledger_id != segment.ledger_id for other in found.segments)

        self.state = await self._transactions.run(expected, attempt, applied, expected)
        self.segments = [s for s in self.segments if s.ledger_id != segment.ledger_id]
