"""`LedgerWriter`: the one writer of a ledger: pipelined adds, acknowledged in entry order, and the close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.tasks import undisturbed
from storage_node.client.connections import ask_bookies
from storage_node.client.last_confirmed import ExplicitLac
from storage_node.client.pipeline import AddPipeline, ClientContext
from storage_node.errors import QuorumWriteError
from storage_node.protocol.encoding import encode_force_ledger_request
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Operation
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import ForceSync, ReplaceLedger, WriterState

logger = logging.getLogger(__name__)

MAX_REPLACEMENTS: Final = 64
"""How many ledgers in a row a writer gives up because their ids are taken, before it fails."""

MAX_SKIPPED_IDS: Final = 1024
"""Most ids passed over at once: each ledger in a row that is taken doubles how many."""


class LedgerWriter(AddPipeline):
    """How are entries added to a ledger? Made by `LedgerClient.create`. All calls come from the event loop's thread.

    Once a write has failed for good, every pending add, and every later one, fails with the same error.
    """

    def __init__(
        self, context: ClientContext, machine: WriterMachine, *, on_end: Callable[[LedgerWriter], None]
    ) -> None:
        super().__init__(context, machine)
        self._on_end = on_end
        self._explicit_lac = ExplicitLac(
            context.pool, machine, self._digest, carried=lambda: self._lac_told, start=self._tasks.start
        )
        self._losses: dict[str, int] = {}  # deferred sync: of each bookie's connection, when nothing was unsynced
        self._explicit_interval = context.settings.explicit_lac_interval_ms
        self._max_outstanding = context.settings.max_outstanding_bytes
        self._room_waiters: list[asyncio.Future[None]] = []
        self._closing: asyncio.Future[LedgerMetadata] | None = None
        self._make_another: Callable[[], Awaitable[LedgerWriter]] | None = None

    def replace_with(self, make_another: Callable[[], Awaitable[LedgerWriter]]) -> None:
        """Go on in the ledger that `make_another` returns, where another client wrote under this ledger's id before its
        writer did.

        It is called while nothing is acknowledged, and the ledger is closed, empty, for ever. It must put the new
        ledger in the place of this one wherever this one is referred to. After that `ledger_id` is the new one's, and
        everything added so far is sent there. Without this the writer fails with LedgerTakenError.
        """
        self._make_another = make_another
        self.machine.replacements_left = MAX_REPLACEMENTS
        self.machine.be_cautious()

    async def _replace(self, effect: ReplaceLedger) -> None:
        # Not cancelled in between: a reference that was moved by half would look like one that was not moved.
        await undisturbed(self._go_elsewhere(effect))

    async def _go_elsewhere(self, effect: ReplaceLedger) -> None:
        make_another, taken = self._make_another, self.ledger_id
        if make_another is None:
            await super()._replace(effect)
            return
        ledgers = self._context.ledgers
        try:
            # A client that takes ids takes the next ones: pass over more of them each time.
            await ledgers.skip_ids(min(2**effect.attempt, MAX_SKIPPED_IDS) - 1)
            other = await make_another()
        except DistributedLogError as error:
            logger.warning("%s; and no other ledger was made: %s", effect.error.message, error.message)
            self._guard(partial(self.machine.replace_failed, error))
            return
        logger.warning("%s: its writer goes on in ledger %d", effect.error.message, other.ledger_id)
        if self.machine.state is not WriterState.REPLACING:
            await other.abandon()  # given up meanwhile
            return
        fresh = other.machine
        other._on_end(other)  # its client forgets it: the ledger is this writer's from here on
        self._guard(lambda: self.machine.replaced(fresh.ledger_id, fresh.metadata, fresh.version))
        try:
            await ledgers.delete(taken)
        except DistributedLogError as error:
            logger.info("ledger %d, which is closed and empty, could not be deleted: %s", taken, error)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer knows it."""
        return self.machine.metadata

    @property
    def last_add_pushed(self) -> int:
        """The last entry id given out (-1: none)."""
        return self.machine.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the last entry acknowledged in order (-1: none); with deferred syncs, the last one forced."""
        return self.machine.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes pushed."""
        return self.machine.length

    @property
    def error(self) -> DistributedLogError | None:
        """The error that made this writer fail, if it did."""
        return self.machine.error

    def add(self, *payload: Buffer) -> asyncio.Future[int]:
        """Append one entry: the buffers one after the other, which must not be changed before the future is done.

        They are read at once or when this turn of the loop ends, and again where the entry is sent again: one that has
        another size by then, or was released, ends this writer.

        The entry id is assigned at once (`last_add_pushed`). The future resolves to it, in entry order, when an ack
        quorum has the entry on disk; it fails where that will not happen, or is not known. Raises EntryTooLargeError,
        LedgerClosedError, or what made this writer fail: then nothing was sent.
        """
        machine = self.machine
        if machine.advanced:
            raise CallerError("this writer's entry ids are given by its caller", advice="Use add_at")
        if machine.deferred_sync:
            self._note_links()
        return self.add_entry(payload)

    def add_at(self, entry_id: int, *payload: Buffer) -> asyncio.Future[int]:
        """Append one entry under an id of the caller's, in any order, to a ledger that was created so.

        It is acknowledged when all entries before it are. Raises DuplicateEntryError for an id given before, and what
        `add` raises; then nothing was sent.
        """
        if not self.machine.advanced:
            raise CallerError("this writer assigns entry ids itself", advice="Create the ledger with advanced=True")
        if entry_id < 0:
            raise CallerError(f"entry id {entry_id} is below 0", ledger_id=self.ledger_id)
        if self.machine.deferred_sync:
            self._note_links()
        return self.add_entry(payload, None, entry_id)

    # ------------------------------------------------------------------------------------ syncing, and the LAC

    async def force(self) -> int:
        """Have every bookie sync what is acknowledged, and return the LAC, which then is the last of it.

        Without deferred syncs all that is acknowledged is synced, and nothing is sent. Raises what kept a bookie from
        it: the LAC stays, and force may be called again, unless a connection was lost meanwhile: then the bookie may
        have restarted without what it had not synced, and the writer has failed.
        """
        machine = self.machine
        if machine.error is not None:
            raise machine.error
        if machine.deferred_sync and machine.last_acknowledged > machine.last_add_confirmed:
            await self._force_all(ForceSync(machine.last_acknowledged, machine.acknowledged_length))
        return machine.last_add_confirmed

    async def _force_all(self, effect: ForceSync) -> None:
        bookies = [seat.bookie for seat in self.machine.seats]
        # Before and after: a bookie that has restarted syncs what it has now, which may not be what it had (I1).
        self._check_links()
        await ask_bookies(
            self._pool,
            self.ledger_id,
            bookies,
            Operation.FORCE_LEDGER,
            lambda txn_id: encode_force_ledger_request(txn_id, self.ledger_id),
            needed=len(bookies),
        )
        self._check_links()
        self._guard(lambda: self.machine.forced(effect.entry_id, effect.length))
        self._explicit_lac.moved()

    async def _force(self, effect: ForceSync) -> None:
        """Force the syncs (for a close): without them, entries that were acknowledged would not be in the ledger."""
        try:
            await self._force_all(effect)
        except DistributedLogError as error:
            failure = QuorumWriteError(
                f"entries {self.last_add_confirmed + 1} to {effect.entry_id} are acknowledged, but not synced "
                f"everywhere: {error.message}",
                advice="A second close ends the ledger before them; opening it with recovery keeps what is found",
                ledger_id=self.ledger_id,
            )
            failure.__cause__ = error
            self._guard(lambda: self.machine.abort(failure))

    def _note_links(self) -> None:
        """Remember the connections on which entries that are not synced begin to travel."""
        machine = self.machine
        if not machine.pending_count and machine.last_acknowledged == machine.last_add_confirmed:
            self._losses = {s.bookie: self._pool.to(s.bookie, self.ledger_id).losses for s in machine.seats}

    def _check_links(self) -> None:
        """Raise, and fail the writer, if a bookie may have restarted since."""
        lost = [b for b, losses in self._losses.items() if self._pool.to(b, self.ledger_id).losses != losses]
        if lost:
            error = QuorumWriteError(
                f"the connection to {lost[0]} was lost: it may have restarted without what it had not synced",
                advice="Open the ledger with recovery",
                ledger_id=self.ledger_id,
                node=lost[0],
            )
            self._guard(lambda: self.machine.abort(error))
            raise error

    async def flush_last_confirmed(self) -> int:
        """Make the LAC known to bookies now, so that readers see the last entry; returns it.

        Raises what kept an ack quorum from taking it.
        """
        if self.machine.error is not None:
            raise self.machine.error
        if self.machine.state is WriterState.CLOSED:
            return self.machine.last_add_confirmed
        return await self._explicit_lac.flush()

    # ------------------------------------------------------------------------------------ back-pressure

    async def wait_for_room(self) -> None:
        """Return when at most `max_outstanding_bytes` wait for acknowledgement, and for the slowest bookie's link."""
        while not self._has_room():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            self._pool.sweeper.join(self._give_room)
            await waiter

    def _has_room(self) -> bool:
        limit = self._max_outstanding
        if self.outstanding_bytes > limit:
            return False
        # A bookie beyond the ack quorum holds up no acknowledgement, but its queue takes memory even so.
        return self.machine.error is not None or all(
            self._pool.to(seat.bookie, self.ledger_id).queued_bytes <= limit for seat in self.machine.seats
        )

    def _give_room(self, _now: float = 0.0) -> bool:
        """Wake the calls that wait for room, if there is some; True while any still waits."""
        if self._room_waiters and self._has_room():
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return bool(self._room_waiters)

    async def close(self) -> LedgerMetadata:
        """Wait for the outstanding adds, then close the ledger at the last of them, for ever. Idempotent.

        After a failed write the ledger is closed at the last acknowledged entry, unless it was fenced or taken over:
        then that error is raised, and the client that took the ledger over closes it. Raises OutcomeUnknownError where
        the metadata store went away; close may be called again.
        """
        if self.machine.state is WriterState.CLOSED:
            return self.machine.metadata
        if self._closing is None or self._closing.done():
            self._closing = self._loop.create_future()
            try:
                self._run(self.machine.close())
            except DistributedLogError as error:
                self._end_close(error)
        metadata = await asyncio.shield(self._closing)
        await self.stop()
        return metadata

    async def abandon(self) -> None:
        """Give the ledger up as it is: pending adds fail, a recovery will close it. Idempotent."""
        self._run(
            self.machine.abort(
                QuorumWriteError(
                    "the writer was abandoned with entries under way",
                    advice="Open the ledger with recovery to see which of them are in it",
                    ledger_id=self.ledger_id,
                )
            )
        )
        await self.stop()
        self._on_end(self)

    # ------------------------------------------------------------------------------------ called by the pipeline

    def _acknowledged(self, last: int) -> None:
        if self._explicit_interval:
            self._explicit_lac.moved()
        if self._room_waiters:
            self._give_room()

    def _failed(self, error: DistributedLogError) -> None:
        self._explicit_lac.stop()
        self._give_room()
        self._end_close(error)

    def _closed(self, metadata: LedgerMetadata) -> None:
        self._explicit_lac.stop()
        self._on_end(self)
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(metadata)

    def _end_close(self, error: DistributedLogError) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_exception(error)
            self._closing.exception()  # seen: `close` raises it to every caller that waits
