"""The journal's writer: group commit without a timer.

Records are already in a slab when the journal hears of them (`extend`); the caller's acknowledgements wait here until
the batch that holds them is on disk. Whatever has gathered when a slot is free becomes a batch; at most two are in
flight; acknowledgements are given in the order of the batches, after fdatasync, never before (I1).

A batch of one block that is alone is committed by the loop itself, where the disk has been quick lately: two
hand-overs between threads would cost more than such a commit. What arrives meanwhile is the next batch.
Where one connection alone has added of late, it does so in the very call that reads the add: nothing else is likely to
come in that turn of the loop, and the answer leaves in the same turn. Otherwise a batch begins at a turn's end.

Small batches are copied behind their header into one block-aligned buffer; large ones are written from the slab where
they lie, behind a header block of their own.

Where the settings ask for it a large batch is written once (`once_from`): its records into their entry log, with a sync
of its own, and in the journal a block that names their place. It counts when both are on disk. One that finds nothing
under way is written twice all the same (but for `once_always`): the journal's file is written ahead, the log's is not,
so it is answered sooner, and the disk has time.

Adds whose client asked for a deferred sync are answered earlier: once their batch, and every batch before it, is
written, so that they outlive the process though perhaps not the machine. Only a batch that holds such adds takes two
steps (write, then sync) for it; it is still synced, without delay, and whatever else waits for the batch waits
for that.

Where a node has several journals, each takes the records of its own ledgers, which lie between those of others in the
slab: a batch then gathers pieces, up to GATHER_BYTES.

A lack of space is not a failure while it is met ahead of the journal, in a file that is being prepared: nothing was
half written, and what is prepared already still takes records. Then `full` is set, the supervisor is notified, and
`try_again` goes on. Elsewhere a write or sync that fails is final: nothing further is written or acknowledged, the
supervisor is notified once, and the node stops. The sync must not be repeated, since the kernel may have dropped the
pages and would then report success.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from metadata.foundation.errors import check
from storage_node.bookie.disk.records import BLOCK, HEADER_BYTES, Slab, aligned_memory, down, up
from storage_node.bookie.disk.resources import NoSpaceError
from storage_node.bookie.journal.batches import (
    BATCH_BYTES,
    COMBINE_BYTES,
    COPY_BYTES,
    GATHER_BYTES,
    Acknowledge,
    AnswerSink,
    Batch,
)
from storage_node.bookie.journal.files import BATCH_HEADER_BYTES, BatchHeader, JournalFile, JournalFiles
from storage_node.bookie.journal.replay import FIRST_BATCH_AT, JournalMark
from storage_node.edge import Disk
from storage_node.errors import BookieFailedError
from storage_node.protocol.digests import crc32

logger = logging.getLogger(__name__)

SLOTS = 2
LONE_BATCHES = 16
"""So many batches in a row must have been of one connection's adds, and made in place, before a batch of it is sent
off without a look at what else has come."""


class JournalSupervisor(Protocol):
    """What does a journal report, and to which object? To the storage whose records it makes durable."""

    def room_made(self) -> None:
        """Note that a slab may be free now."""
        ...

    def journal_rolled(self) -> None:
        """Note that the journal goes on in another file, or that a replay would read as much: a checkpoint is due."""
        ...

    def journal_without_space(self) -> None:
        """Note that the disk has no space beyond what is prepared."""
        ...

    def journal_failed(self, error: BaseException) -> None:
        """Note that nothing further is written or acknowledged. Called once."""
        ...


class JournalledLogs(Protocol):
    """What does a journal ask of the entry logs, whose memory its records lie in?"""

    def takes_places(self, slab: Slab) -> bool:
        """Return whether a batch of this slab may be written to its log alone."""
        ...

    def align(self, slab: Slab) -> None:
        """Let the slab's next record begin on a block."""
        ...

    def settle(self, slab: Slab, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the slab is on disk up to `end`, and what its log holds before it."""
        ...


class Journal:
    """When is a record durable? Appends to one journal directory, and answers then (I1).

    Args:
        disk: runs the calls that block.
        files: prepares and retires the files.
        file: the one to begin with.
        last_sequence: the number of the last batch that replay found.
        supervisor: hears of failures and of space that is short.
        logs: where the records go, too.
        pool: names threads.
        gathers: there are other journals beside it.
        once_from: bytes from which on a batch is written once, into the entry log, while others are being written;
            0: never.
        once_always: also where none is.
    """

    def __init__(
        self,
        disk: Disk,
        files: JournalFiles,
        file: JournalFile,
        *,
        last_sequence: int,
        supervisor: JournalSupervisor,
        logs: JournalledLogs,
        pool: str = "journal",
        gathers: bool = False,
        in_place_s: float = 0.0,
        once_from: int = 0,
        once_always: bool = False,
    ) -> None:
        self._disk = disk
        self._files = files
        self._file = file
        self._next_file: JournalFile | None = None
        self._offset = FIRST_BATCH_AT
        self._last_sequence = last_sequence
        self._durable = last_sequence
        self._supervisor = supervisor
        self._logs = logs
        self._once_from = once_from
        self._once_always = once_always
        self._placed_bytes = 0
        """Of records in entry logs alone, since a checkpoint was last asked for."""
        self._pool = pool
        self._gathers = gathers
        self._in_place_s = in_place_s
        """A commit that takes no longer than this may be made on the loop itself."""
        self.full = False
        """The disk has no space beyond what was prepared."""
        self.wanting: NoSpaceError | None = None
        """The error for which `full` was set last."""
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._flying: deque[Batch] = deque()
        self._slots = [
            memoryview(aligned_memory(BLOCK + (GATHER_BYTES if gathers else COPY_BYTES))) for _ in range(SLOTS)
        ]
        self._kick_scheduled = False
        self._held = False
        """The open batch is not sent off at this turn's end, but by `send_off` before that."""
        self._lone: Callable[[], AnswerSink | None] = _nobody
        """The only one that the last batches had answers for, if it still lives: `_lone_batches` in a row, besides the
        first."""
        self._lone_batches = 0
        self._preparing: asyncio.Future[None] | None = None
        self._opening: asyncio.Future[JournalFile] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._calls: set[asyncio.Future[None]] = set()
        self._retired: list[JournalFile] = []
        self.error: BaseException | None = None
        self.commits = 0
        """Batches made durable since the start."""

    # ------------------------------------------------------------------------------------ appending

    def extend(self, slab: Slab, start: int, end: int, body_sum: int, body_length: int, *, held: bool = False) -> Batch:
        """Add a record to the open batch, which lies at [start, end) of the slab, right behind the previous one.

        The caller adds to the batch returned, in the same turn of the loop, what to answer or call when it is durable.
        `held`: it then calls `send_off`, whatever happens meanwhile.
        """
        batch = self._open
        if batch is None or batch.slab is not slab or batch.end != start or batch.earlier:
            batch = self._batch_for(slab, start, end)
        batch.end = end
        if body_length >= COMBINE_BYTES:
            batch.cover(start + HEADER_BYTES, body_sum, body_length)
        if batch.kept + end - batch.start >= BATCH_BYTES:
            self._close_batch()
        if held:
            self._held = True
        elif not self._kick_scheduled:
            self._kick_scheduled = True
            asyncio.get_running_loop().call_soon(self._kick)
        return batch

    def may_hold(self, sink: AnswerSink) -> bool:
        """Return whether nothing but this sink's adds is likely to come in a turn of the loop: its batches need not
        wait for the turn's end, which costs one append at a time as much as the commit's own Python."""
        return self._lone() is sink and self._lone_batches >= LONE_BATCHES and self._in_place_s > 0

    def send_off(self) -> None:
        """Send off what was held; at the turn's end, if something else has come that waits for that."""
        if self._held:
            self._held = False
            if not self._kick_scheduled:
                self._kick()

    def _batch_for(self, slab: Slab, start: int, end: int) -> Batch:
        """Return the open batch if it can go on at `start`, else a new one."""
        batch = self._open
        if batch is not None:
            # A large piece stays alone where it is to be written once.
            apart = self._once_from and max(batch.length, end - start) >= self._once_from
            if self._gathers and not apart and batch.slab is slab and batch.gather(start, end):
                return batch
            self._close_batch()
        batch = self._open = Batch(slab, start)
        slab.flying += 1
        return batch

    def barrier(self, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` once everything appended so far is durable (at once if it is)."""
        # The last batch of the three kinds is enough: batches are acknowledged in their order.
        for batch in (self._open, self._waiting[-1] if self._waiting else None):
            if batch is not None:
                batch.acknowledgements.append(acknowledge)
                return
        if self._flying:
            self._flying[-1].acknowledgements.append(acknowledge)
        elif self.error is None:
            acknowledge()

    def mark(self) -> JournalMark:
        """End the current batch here: what was appended so far is up to the mark, what follows is behind it."""
        if self._open is not None:
            self._close_batch()  # a mark lies between two batches: replay cannot begin within one
        sequence = self._last_sequence + len(self._waiting)
        return JournalMark(self._file.file_id, self._offset, sequence)

    async def durable(self) -> None:
        """Wait until everything appended so far is durable. Raises the error that stopped the journal."""
        await self._reached(self.barrier)

    async def landed(self) -> None:
        """Wait until everything sent off so far is durable: no file but the current one is written to then. Unlike
        `durable` it does not wait for space. Raises the error that stopped the journal."""
        await self._reached(self._behind_flying)

    def _behind_flying(self, acknowledge: Acknowledge) -> None:
        if self._flying:
            self._flying[-1].acknowledgements.append(acknowledge)
        else:
            acknowledge()

    async def _reached(self, begin: Callable[[Acknowledge], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is None:
            self._idle.append(done)
            begin(partial(_resolve, done))
        else:
            done.set_exception(self.error)
        try:
            await done
        finally:
            if done in self._idle:
                self._idle.remove(done)

    # ------------------------------------------------------------------------------------ committing

    def _close_batch(self) -> None:
        """Close the open batch: it takes no more records."""
        batch = self._open
        if batch is None:
            return
        self._open = None
        under_load = self._once_always or bool(self._flying or self._waiting)
        batch.close(self._once_from if under_load and self._logs.takes_places(batch.slab) else 0)
        self._waiting.append(batch)
        if (batch.placed or not batch.copied) and not batch.slab.sealed:
            self._logs.align(batch.slab)
        batch.log_end = batch.slab.end

    def _kick(self) -> None:
        """Send off as many batches as there are free slots."""
        self._kick_scheduled = False
        while len(self._flying) < SLOTS and self.error is None:
            # With two slots a batch begins only when all but the one before it are durable. Replay relies on that to
            # tell a torn tail from damage (docs/reference/node-files.md#how-a-journal-is-read).
            if not self._waiting:
                if self._open is None:
                    return
                self._close_batch()
            batch = self._waiting[0]
            if batch.placed and not self._logs.takes_places(batch.slab):
                batch.close(0)  # its log has stopped since: the journal alone can take it
            if not self._make_room(batch.total):
                return
            self._launch(self._waiting.popleft())

    def _launch(self, batch: Batch) -> None:
        self._last_sequence += 1
        batch.sequence = self._last_sequence
        batch.durable_through = self._durable  # the proof, on disk, that earlier batches were acknowledged
        batch.offset = self._offset
        self._offset += batch.total
        self._flying.append(batch)
        self._note_sinks(batch)
        file = self._file
        slot = self._slots.pop()
        if batch.placed:
            self._launch_placed(file, batch, slot)
            return
        write = partial(_write_batch, file, batch, slot, not batch.early)
        if self._is_alone(batch):
            # What comes meanwhile waits in its sockets, and makes the next batch.
            try:
                done = self._disk.at_once(self._pool, write, self._in_place_s)
            except Exception as error:  # the write's, or the sync's
                self._settle(batch, slot, error)
                return
            except BaseException as error:  # an interrupt within it: nobody knows what is on disk
                # As after a failed sync: nothing follows a batch that may be torn (I1).
                self._fail(BookieFailedError(f"a commit was interrupted: {error!r}"))
                raise
            if done:
                self._settle(batch, slot, None)
                return
        self._lone_batches = 0  # while threads commit, a batch gathers until the turn's end
        future = self._disk.submit(self._pool, write)
        self._calls.add(future)
        landed = partial(self._wrote, file) if batch.early else self._landed
        future.add_done_callback(partial(landed, batch, slot))

    def _note_sinks(self, batch: Batch) -> None:
        """Count how many batches in a row had answers for one sink alone, and the same."""
        first = next(iter(batch.answers), None)
        if first is not None and len(batch.answers) == 1 and self._lone() is first:
            self._lone_batches += 1
        else:
            self._lone, self._lone_batches = _nobody if first is None else weakref.ref(first), 0

    def _launch_placed(self, file: JournalFile, batch: Batch, slot: memoryview) -> None:
        """Send off a batch that is written once: its records to their log, their place to the journal, in any order."""
        place = self._disk.submit(self._pool, partial(_write_batch, file, batch, slot, True))
        self._calls.add(place)
        missing = [place, self._logs.settle(batch.slab, batch.log_end)]
        for half in tuple(missing):
            half.add_done_callback(partial(self._placed, batch, slot, missing))
        self._placed_bytes += batch.length
        if self._placed_bytes >= self._files.max_bytes:
            self._placed_bytes = 0
            self._supervisor.journal_rolled()

    def _placed(
        self, batch: Batch, slot: memoryview, missing: list[asyncio.Future[None]], future: asyncio.Future[None]
    ) -> None:
        """Acknowledge a batch once both its place and its records are on disk: either alone is a torn batch (I1)."""
        self._calls.discard(future)
        if future.cancelled():
            return  # the entry logs were closed, and so is the journal: it is never acknowledged
        if future.exception() is None:
            missing.remove(future)
        if not missing or future.exception() is not None:
            self._landed(batch, slot, future)

    def _is_alone(self, batch: Batch) -> bool:
        """Return whether a batch is one block, and no other one is or waits to be written."""
        alone = batch.total == BLOCK and not (self._waiting or self._open or len(self._flying) > 1)
        return alone and self._in_place_s > 0 and not batch.early

    def _wrote(self, file: JournalFile, batch: Batch, slot: memoryview, future: asyncio.Future[None]) -> None:
        """Give the early answers of a batch that is written, and sync it."""
        if future.exception() is not None or self.error is not None:
            self._landed(batch, slot, future)
            return
        # Written is enough for the early answers only; the others wait for this sync (I1).
        self._calls.discard(future)
        sync = self._disk.submit(self._pool, file.file.sync_data)
        self._calls.add(sync)
        sync.add_done_callback(partial(self._landed, batch, slot))
        batch.written = True
        self._answer_early()

    def _answer_early(self) -> None:
        """Give the early answers of every batch that is written together with all before it."""
        for batch in self._flying:
            if not batch.written:
                return
            early, batch.early = batch.early, {}
            for answers in early.values():
                answers.sink.durable(answers)

    def _landed(self, batch: Batch, slot: memoryview, future: asyncio.Future[None]) -> None:
        """Acknowledge a batch that is synced, then send off what has gathered."""
        self._calls.discard(future)
        self._settle(batch, slot, future.exception())
        if self.error is None:
            self._kick()

    def _settle(self, batch: Batch, slot: memoryview, error: BaseException | None) -> None:
        """Acknowledge a batch that is synced, and its followers, if all before it are durable too."""
        self._slots.append(slot)
        if error is not None:
            self._fail(error)
            return
        batch.written = batch.synced = True
        if self.error is not None:
            return
        if batch.early or len(self._flying) > 1:
            self._answer_early()
        # In the order of the batches: replay ends at the first one that is torn, so a batch counts only once all before
        # it are durable (I1).
        while self._flying and self._flying[0].synced:
            done = self._flying.popleft()
            self._durable = done.sequence
            self.commits += 1
            done.slab.flying -= 1
            if done.slab.settled:
                self._supervisor.room_made()
            for answers in done.answers.values():
                answers.sink.durable(answers)
            for acknowledge in done.acknowledgements:
                acknowledge()

    def _fail(self, error: BaseException) -> None:
        if self.error is not None:
            return
        # Final: the kernel may have dropped the dirty pages, and a second sync would report success without them (I1).
        self.error = error
        logger.critical("the journal failed, nothing further is acknowledged: %s", error)
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_exception(error)
        self._supervisor.journal_failed(error)

    # ------------------------------------------------------------------------------------ files

    def _make_room(self, size: int) -> bool:
        """Return True if a batch of `size` may be written now; otherwise what is missing is under way."""
        file, files = self._file, self._files
        if self._offset + size > files.max_bytes:
            if self._next_file is None:
                self._open_next()
                return False
            self._retired.append(file)  # stays open: batches in flight still write to it
            self._file, self._next_file = self._next_file, None
            self._offset = FIRST_BATCH_AT
            self._supervisor.journal_rolled()
            return self._make_room(size)
        end = self._offset + size
        if end + files.max_bytes // 4 > files.max_bytes and self._next_file is None:
            self._open_next()
        if file.prepared < files.max_bytes and end + (file.prepared - FIRST_BATCH_AT) // 8 > file.prepared - BLOCK:
            self._prepare()
        return end <= file.prepared

    def _prepare(self) -> None:
        """Write the next step of the current file ahead of the journal."""
        if self._preparing is None and not self.full:
            self._preparing = self._disk.submit("files", partial(self._files.prepare, self._file))
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, future: asyncio.Future[None]) -> None:
        self._preparing = None
        error = future.exception()
        if error is None:
            self._kick()
        else:
            self._cannot_go_on(error)

    def _cannot_go_on(self, error: BaseException) -> None:
        """Fail because nothing could be prepared. A lack of space is not a failure here: nothing was written where it
        counts.
        """
        if not isinstance(error, NoSpaceError):
            self._fail(error)
        elif not self.full:
            self.full, self.wanting = True, error
            logger.error("no space to go on in for the journal, beyond what is prepared: %s", error)
            self._supervisor.journal_without_space()

    async def try_again(self) -> None:
        """Look whether there is space now."""
        if not self.full or self.error is not None:
            return
        self.full = False
        self._make_room(0)
        under_way = [future for future in (self._preparing, self._opening) if future is not None]
        if under_way:
            await asyncio.wait(under_way)
        if not self.full:
            self._kick()

    @property
    def stalled(self) -> bool:
        """Records wait for space."""
        return self.full and bool(self._waiting or self._open)

    def _open_next(self) -> None:
        if self._opening is None and not self.full:
            file_id = self._file.file_id + 1
            self._opening = self._disk.submit("files", partial(self._files.open_next, file_id))
            self._opening.add_done_callback(self._opened)

    def _opened(self, future: asyncio.Future[JournalFile]) -> None:
        self._opening = None
        error = future.exception()
        if error is not None:
            self._cannot_go_on(error)
            return
        self._next_file = future.result()
        self._kick()

    async def retire(self, mark: JournalMark) -> None:
        """Retire older files: a checkpoint with this mark is durable. Raises OSError."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing])  # it may be writing to a file that is about to be closed
        for file in [file for file in self._retired if file.file_id < mark.file_id]:
            self._retired.remove(file)
            file.file.close()
        await self._disk.submit("files", partial(self._files.retire, mark.file_id))

    async def close(self, *, abandon: bool = False) -> None:
        """Wait for what is under way, and close the files. `abandon`: what was not sent off yet is not written."""
        idle = self._open is None and not self._waiting
        check(abandon or idle or self.error is not None, "the journal was closed with records waiting")
        self.error = self.error or BookieFailedError("the journal is closed")
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_exception(self.error)
        under_way = [future for future in (self._preparing, self._opening, *self._calls) if future is not None]
        if under_way:
            await asyncio.wait(under_way)
        for file in (*self._retired, self._file, self._next_file):
            if file is not None:
                file.file.close()


def _write_batch(file: JournalFile, batch: Batch, slot: memoryview, sync: bool) -> None:
    """Write a batch with one write and one sync (on a journal thread)."""
    slab = batch.slab.view
    copied = batch.copied or batch.placed
    place = batch.place().encode() if batch.placed else b""
    header = BatchHeader(
        batch.offset,
        file.file_id,
        batch.sequence,
        batch.durable_through,
        batch.total,
        BATCH_HEADER_BYTES if copied else BLOCK + batch.start - down(batch.start),
        len(place) or batch.length,
        crc32(place, 0) if place else batch.records_sum(),
    ).encode()
    slot[: len(header)] = header
    if copied:
        if place:
            slot[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + len(place)] = place
        else:
            batch.copy_to(slot[BATCH_HEADER_BYTES:])
        file.file.write_at(batch.offset, [slot[: batch.total]])
    else:
        file.file.write_at(batch.offset, [slot[:BLOCK], slab[down(batch.start) : up(batch.end)]])
    if sync:
        file.file.sync_data()


def _nobody() -> None: ...


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
