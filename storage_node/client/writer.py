"""`LedgerWriter`: the one writer of a ledger: pipelined adds, acknowledged in entry order, and the close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metadata.errors import DistributedLogError
from metadata.ledger_metadata import LedgerMetadata
from storage_node.client.pipeline import AddPipeline, ClientContext
from storage_node.edge import Buffer
from storage_node.errors import QuorumWriteError
from storage_node.protocol.writing import State, WriterMachine


class LedgerWriter(AddPipeline):
    """Made by `LedgerClient.create`. All calls come from the event loop's thread.

    Once a write has failed for good, every pending add, and every later one, fails with the same error.
    """

    def __init__(
        self, context: ClientContext, machine: WriterMachine, *, on_end: Callable[[LedgerWriter], None]
    ) -> None:
        super().__init__(context, machine)
        self._on_end = on_end
        self._max_outstanding = context.settings.max_outstanding_bytes
        self._room_waiters: list[asyncio.Future[None]] = []
        self._closing: asyncio.Future[LedgerMetadata] | None = None

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
        """The last entry acknowledged in order (-1: none)."""
        return self.machine.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes pushed."""
        return self.machine.length

    @property
    def error(self) -> DistributedLogError | None:
        """What made this writer fail, if it did."""
        return self.machine.error

    def add(self, *payload: Buffer) -> asyncio.Future[int]:
        """Append one entry: the buffers one after the other, which must not be changed before the future is done.

        The entry id is assigned at once (`last_add_pushed`). The future resolves to it, in entry order, when an ack
        quorum has the entry on disk; it fails where that will not happen, or is not known. Raises EntryTooLargeError,
        LedgerClosedError, or what made this writer fail: then nothing was sent.
        """
        return self.add_entry(payload)

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
        # A bookie beyond the ack quorum holds up no acknowledgement, but its queue is memory all the same.
        return self.machine.error is not None or all(
            self._pool.to(seat.bookie).queued_bytes <= limit for seat in self.machine.seats
        )

    def _give_room(self, _now: float = 0.0) -> bool:
        """Wake who waits for room, if there is some; True while somebody still waits."""
        if self._room_waiters and self._has_room():
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return bool(self._room_waiters)

    async def close(self) -> LedgerMetadata:
        """Wait for the outstanding adds, then close the ledger at the last of them, for ever. Idempotent.

        After a failed write the ledger is closed at the last acknowledged entry, unless it was fenced or taken over:
        then that error is raised and whoever took it closes it. Raises OutcomeUnknownError where the metadata store
        went away; close may be called again.
        """
        if self.machine.state is State.CLOSED:
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

    # ------------------------------------------------------------------------------------ what the pipeline tells

    def _acknowledged(self, last: int) -> None:
        if self._room_waiters:
            self._give_room()

    def _failed(self, error: DistributedLogError) -> None:
        self._give_room()
        self._end_close(error)

    def _closed(self, metadata: LedgerMetadata) -> None:
        self._on_end(self)
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(metadata)

    def _end_close(self, error: DistributedLogError) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_exception(error)
            self._closing.exception()  # seen: `close` raises it to all who wait
