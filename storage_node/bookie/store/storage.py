"""`Storage`: journal, entry logs, index and ledger state as one thing that survives a crash.

An add or a fence is decided and appended in one step on the loop: nothing comes between a check and its consequence.
Its record goes into a slab; the journal makes it durable and only then lets it be acknowledged; the entry log follows
behind. Checkpoints (`store.checkpoints`) make the journal's older part unnecessary.

At start the newest checkpoint is read, logs are indexed from their sidecars or by scanning, the journal is replayed
behind the mark into a new log, and a checkpoint follows before the node serves. Where a ledger directory has no space
for that, what was replayed waits in memory (or the start fails, if it does not fit there), the journal goes on behind
the old checkpoint's mark, and the node serves without taking entries until the checkpoint gets its space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from metadata.foundation.errors import DistributedLogError
from metadata.foundation.pacing import MessageLimit
from metadata.foundation.tasks import end_tasks
from storage_node.bookie.disk.records import (
    ALIGN,
    ENTRY,
    HEADER_BYTES,
    LAC,
    LEDGER,
    MAX_KEY_BYTES,
    Record,
    ledger_body,
    parse_ledger_body,
    read_record,
)
from storage_node.bookie.disk.resources import Disks, NoSpaceError, lacks_descriptors
from storage_node.bookie.journal.batches import Acknowledge, AnswerSink
from storage_node.bookie.journal.journals import Journals, check_marks, open_readers
from storage_node.bookie.journal.replay import JournalMark, JournalReader
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.checkpoints import Checkpoint, Checkpointer
from storage_node.bookie.store.compaction import Compactor
from storage_node.bookie.store.contents import MAX_BARE_BY_FENCE, MAX_BARE_BY_LAC, Contents, Ledger
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.bookie.store.log_files import parse_log_name
from storage_node.bookie.store.opening import first_free_log, index_logs, read_checkpoint
from storage_node.bookie.store.placed import PlacedLogs
from storage_node.bookie.store.runs import QuickAdd, append_adds
from storage_node.edge import Disk
from storage_node.errors import BookieFailedError
from storage_node.protocol.digests import ENTRY_IDS, LAC_HEADER
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import MIB, BookieSettings

logger = logging.getLogger(__name__)

ROOM_FOR_KEY = 256
"""More than a LEDGER record takes."""
MAX_LAC_BYTES = 128
"""Limit of an explicit LAC's packet, which every ledger keeps in memory: the largest has 36 bytes (with a MAC)."""

REPLAY_TURN_BYTES = 8 * MIB
"""Replay lets the writers follow after this many bytes."""
Journalled: TypeAlias = Sequence[tuple[JournalReader, JournalMark]]
"""The journals that a start replays, each from its mark on."""


class StorageSupervisor(Protocol):
    """What does a storage report, and to which object? To its node."""

    def journal_failed(self, error: BaseException) -> None:
        """Stop answering: a journal cannot be written."""
        ...

    def degraded(self, error: BaseException) -> None:
        """Refuse writes after one to a ledger directory failed; what is not there yet is in the journal and in
        memory.
        """
        ...

    def no_space(self) -> None:
        """Take nothing more: a disk is full, and what came in waits in memory or on what is prepared."""
        ...


class Storage:
    """Which entries does a bookie have, and may a new one be stored? Everything runs on one loop; `start` comes before
    all other calls, `stop` after them.

    Args:
        settings: sizes, bounds and intervals.
        disk: the edge.
        disks: its directories, and their room.
        tag: the node's identity, which stands in its journals.
        supervisor: hears of failures and of full disks.
    """

    def __init__(
        self, settings: BookieSettings, disk: Disk, disks: Disks, tag: bytes, supervisor: StorageSupervisor
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._journal_directories = disks.journal_directories
        self._tag = tag
        self.ledger_directories = disks.ledger_directories
        self._supervisor = supervisor
        self.unreadable = 0
        """Reads that the disk refused."""
        self.damaged = 0
        """Reads whose bytes failed their checksum."""
        self._lines = MessageLimit(logger)
        """Bounds how often it is logged that an entry cannot be read: clients may ask for it again and again."""
        self._room_waiters: list[Callable[[], None]] = []
        self._stuck = asyncio.Event()
        """Something waits for space in a ledger directory."""
        self._no_space_error: NoSpaceError | None = None
        self._logs = EntryLogs(disk, disks, settings, self)
        self.contents = Contents(self._logs)
        self.ledgers = self.contents.ledgers
        self._append_entry = self.contents.append_entry
        self.checkpoints = Checkpointer(self.contents, disk, settings, directories=self.ledger_directories)
        self.compactor = Compactor(
            self.contents,
            self.checkpoints,
            disk,
            settings,
            directories=self.ledger_directories,
            when_room=self.when_room,
        )
        self._journal: Journals | None = None
        self._placed = PlacedLogs(disk, self.ledger_directories)

    # ------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Recover what is on disk. Raises JournalCorruptError, CorruptDataError or OSError; no stored entry was changed
        then, and the start can be tried again."""
        opened = await self._disk.submit("files", partial(read_checkpoint, self._disk, self.ledger_directories))
        readers = open_readers(self._disk, self._journal_directories, self._tag, self._placed.look())
        if opened is None:
            found = Checkpoint(0, (), 1, {}, False, False)
            self._refuse_orphans(readers)
        else:
            found, ledgers = opened
            check_marks(found.marks, self._journal_directories)
            self.contents.adopt(ledgers)
        self.contents.lossy = found.lossy
        self.contents.lost_logs.update(found.lost_logs)
        self.contents.fenced_gone.update(found.fenced_gone)
        # After a clean stop the checkpoint covers all of the journal, unless a later start appended to it.
        marked = zip(readers, found.marks, strict=False)  # a new node has no marks yet
        replayed = [(reader, mark) for reader, mark in marked if not found.clean or reader.goes_beyond(mark)]
        for reader, mark in replayed:
            reader.check_places(mark)
        self._logs.next_log_id = first_free_log(self._disk, self.ledger_directories, found, self._placed.named)
        lengths = {} if opened is None else await self._open_logs(found)
        self.checkpoints.adopt(found, lengths)
        self._logs.patient = opened is not None  # a new node has nothing to serve without space
        for reader, mark in replayed:
            await self._replay(reader, mark, replayed)
        # Only after the whole replay: a new file comes behind all files and batches that were found.
        try:
            self._journal = await self._begin_journals(readers, found.marks)
        except NoSpaceError:
            await self.checkpoints.remove_strays(self._placed.named)  # the journal was read whole: it has the rest
            self._journal = await self._begin_journals(readers, found.marks)
        await self._begin_checkpoints(readers, found.marks)
        self._logs.patient = True

    async def _begin_journals(self, readers: Sequence[JournalReader], marks: Sequence[JournalMark]) -> Journals:
        return await Journals.begin(self._disk, self._settings, self._tag, readers, marks, self, self._logs)

    async def _begin_checkpoints(self, readers: Sequence[JournalReader], marks: Sequence[JournalMark]) -> None:
        """Take the first checkpoint, unless it has to wait for space and the journal may be kept until then.

        Raises OSError (NoSpaceError: the node cannot start without space), or what the checkpoint failed with.
        """
        beginning = self.checkpoints.begin(self.journal)
        if not await self._has_space_for(beginning):
            await self.checkpoints.remove_strays(self._placed.named)
            self._look_for_space()
            if not await self._has_space_for(beginning) and self._no_space_error is not None:
                await self._disk.submit("files", self._placed.sync)
                for reader, mark in zip(readers, marks, strict=True):
                    if not await self._disk.submit("files", partial(reader.keep_for_next_start, mark)):
                        raise self._no_space_error
                logger.error("started without a checkpoint, for lack of space: nothing is taken until there is some")
        self.checkpoints.run()

    async def _has_space_for(self, work: asyncio.Future[None]) -> bool:
        """Wait until `work` is done, or cannot go on for lack of space. Raises what it failed with."""
        stuck = asyncio.get_running_loop().create_task(self._stuck.wait())
        try:
            both: list[asyncio.Future[Any]] = [work, stuck]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([stuck])
        if not work.done():
            return False
        await work
        return True

    def _refuse_orphans(self, readers: list[JournalReader]) -> None:
        """Raise where there is no checkpoint, but journal files or entry logs."""
        # A node that lost its checkpoints must not begin as a new one: it would answer "no such entry" (I11).
        logs = [n for d in self.ledger_directories for n in self._disk.list_directory(d) if parse_log_name(n)]
        if logs or not all(reader.empty() for reader in readers):
            raise checkpoints.missing_file_error(self.ledger_directories)

    async def _open_logs(self, found: Checkpoint) -> dict[int, int]:
        """Fill the index; the length of each log."""
        work = partial(index_logs, self._disk, self.ledger_directories, found, self.ledgers)
        result = await self._disk.submit("files", work)
        self._logs.paths.update(result.paths)
        self.contents.damaged = result.damaged
        self.contents.live.logs.update(result.live.logs)
        if result.lost:
            self.contents.lose(result.lost_logs)
            logger.error("entries are lost here; what is not found of %d ledgers is unknown", len(self.contents.limbo))
        return result.lengths

    async def _replay(self, reader: JournalReader, mark: JournalMark, all_journals: Journalled) -> None:
        """Bring everything behind the mark into memory and a new entry log."""
        count = size = 0
        for record in reader.replay(mark):
            self._replay_record(record)
            count += 1
            size += len(record.body)
            if size >= REPLAY_TURN_BYTES:
                size = 0
                await self._let_writers_follow(all_journals)
        if count:
            logger.info("replayed %d records of the journal", count)

    async def _let_writers_follow(self, journals: Journalled) -> None:
        """Bound the memory that replay takes. Raises NoSpaceError where it is not enough for what cannot be written."""
        if await self._all_written() or not self._logs.beyond_limit:
            return
        # Every journal has to be readable to its end before anything that they replace may go.
        records = (record for reader, mark in journals for record in reader.again().replay(mark))
        needed = sum(HEADER_BYTES + len(record.body) for record in records)
        await self.checkpoints.remove_strays(self._placed.named)
        self._look_for_space()
        if not await self._all_written() and self._no_space_error is not None:
            self._no_space_error.needed = needed
            raise self._no_space_error

    async def _all_written(self) -> bool:
        """Wait until everything appended so far is in the logs' files; False where it must wait for space."""
        written = self._logs.flush_target()
        if await self._has_space_for(written):
            return True
        written.cancel()
        return False

    def _look_for_space(self) -> None:
        self._stuck.clear()
        self._logs.try_again()

    def _replay_record(self, record: Record) -> None:
        ledger = self.ledgers.get(record.ledger_id)
        if ledger is None and record.kind in (ENTRY, LEDGER, LAC):
            ledger = self.contents.create(record.ledger_id)
        if ledger is None:
            return
        self.contents.changed.add(record.ledger_id)
        if record.kind == ENTRY:
            self._append_entry(ledger, record.entry_id, record.body, True)
            ledger.raise_lac(ENTRY_IDS.unpack_from(record.body)[2])
            return
        self._append_fact(record.kind, ledger, record.body)
        if record.kind == LEDGER:
            key, fenced = parse_ledger_body(record.body)
            ledger.master_key = key
            ledger.fenced = ledger.fenced or fenced  # a fence is never taken back, whatever a later record says (I5)
        elif record.kind == LAC:
            ledger.explicit_lac = bytes(record.body)
            ledger.raise_lac(LAC_HEADER.unpack_from(record.body)[1])

    async def stop(self, *, clean: bool) -> None:
        """Flush and close. `clean` takes a last checkpoint, so that the next start has nothing to replay."""
        await self.checkpoints.end()
        self._logs.patient = False
        if clean and not self._logs.full and self._journal is not None and self._journal.error is None:
            await self._last_checkpoint()
        self._logs.halt()
        if self._journal is not None:
            await self._journal.close(abandon=not clean or self._logs.full or self._journal.stalled)
        await self.checkpoints.idle()
        await self._disk.submit("entries", _nothing)
        self._logs.close()

    async def _last_checkpoint(self) -> None:
        """Take a clean checkpoint, unless something waits for space or cannot be written any more."""
        try:
            if not self.journal.stalled:
                await self.journal.durable()
        except (OSError, DistributedLogError) as error:  # the latter: it was interrupted, or an entry log failed it
            logger.error("the journal failed at last: %s", error)
            return
        if self._logs.error is None:
            await self.checkpoints.take(clean=True)

    @property
    def journal(self) -> Journals:
        """The journals. Raises BookieFailedError before `start`."""
        if self._journal is None:
            raise BookieFailedError("the storage is not started")
        return self._journal

    # ------------------------------------------------------------------------------------ writing

    @property
    def lossy(self) -> bool:
        """Entries that were stored here may be gone."""
        return self.contents.lossy or bool(self.contents.limbo)

    @property
    def full(self) -> bool:
        """A disk has no space for what is to be stored: it waits in memory, and on what is prepared for the journal."""
        return self._logs.full or self.journal.full

    @property
    def wants_descriptors(self) -> bool:
        """True while it waits for file descriptors and not for space: there may be some in a moment."""
        return (self._logs.full and lacks_descriptors(self._logs.wanting)) or self.journal.wants_descriptors

    async def try_again(self) -> None:
        """Go on with what waits for space, if there is some now."""
        await self.journal.try_again()
        if self._logs.full:
            self._logs.try_again()
            await self._disk.submit("entries", _nothing)
            await self._disk.submit("files", _nothing)  # and behind what a checkpoint tried again

    async def checkpoint(self) -> None:
        """Take a checkpoint now; one that fails makes the node read-only, and nothing is raised."""
        await self.checkpoints.take()

    @property
    def writing_failed(self) -> bool:
        """A ledger directory failed: nothing more can be stored, though everything stored can be read."""
        return self._logs.error is not None

    def add(
        self,
        body: memoryview,
        master_key: bytes,
        recovery: bool,
        sink: AnswerSink,
        answer: bytes,
        deferred: bool = False,
    ) -> Status | None:
        """Store an entry; ids and LAC are taken from its body.

        EOK: the sink gets `answer` back once it is durable (never, if the node fails first); with `deferred` once it is
        written, before it is synced. Another status: refused, nothing stored. None: no memory at present, try again
        when `when_room` calls.
        """
        length = len(body)
        if length < ENTRY_IDS.size or len(master_key) > MAX_KEY_BYTES:
            return Status.EBADREQ
        ledger_id, entry_id, lac = ENTRY_IDS.unpack_from(body)
        if ledger_id < 0 or entry_id < 0:
            return Status.EBADREQ
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.master_key != master_key:
            if ledger is None and ledger_id in self.contents.fenced_gone and not recovery:
                return Status.EFENCED  # deleted here, but its old writer must still be refused (I5)
            if ledger is None and not self._logs.has_room(length + ROOM_FOR_KEY):
                return None  # before the ledger is created: one without an entry would be left behind
            ledger = self._keyed(ledger_id, master_key)
            if ledger is None:
                return Status.EUA
        if ledger.fenced and not recovery:
            return Status.EFENCED  # I5: no step between check and append, an add is before the fence or refused
        placed = self._append_entry(ledger, entry_id, body, False)
        if placed is None:
            return None
        if lac > ledger.lac:
            ledger.raise_lac(lac)  # before the journal has it: readers at the tail do not wait for a commit in place
        answers = self.journal.of(ledger_id).extend(*placed, length).answers_to(sink, deferred)
        answers.frames.append(answer)
        answers.bytes_stored += length
        return Status.EOK

    def add_run(
        self, frames: list[memoryview], quick_add: QuickAdd, sink: AnswerSink, last: bool = False
    ) -> tuple[int, int] | None:
        """Store the adds in these frames together, as far as they are a run (`runs`), with all that `add` promises:
        (how many, bytes of their entries). None: the first one is for `add`. `last`: the sink has no more at present,
        and calls the journals' `send_off`."""
        slab = self._logs.tail
        run = None if slab is None else append_adds(frames, slab, quick_add)
        ledger = None if run is None else self.ledgers.get(run.ledger_id)
        if run is None or ledger is None or ledger.fenced or ledger.master_key != run.key:
            return None  # I5: no step between check and append, here as in `add`
        start = run.slab.end
        self.contents.extend(ledger, run)
        journal = self.journal.of(run.ledger_id)
        # Where polls wait the commit comes at the turn's end, behind the answers to those that this add wakes.
        held = last and not ledger.waiters and journal.may_hold(sink)
        ledger.raise_lac(run.lac)
        answers = journal.extend(run.slab, start, run.end, 0, 0, held=held).answers_to(sink)
        answers.frames += run.answers
        size = run.body_bytes
        answers.bytes_stored += size
        return len(run.answers), size

    def _append_fact(self, kind: int, ledger: Ledger, body: Buffer) -> None:
        """Put a record about a ledger into memory, log and journal, whatever the memory's limit."""
        placed = self.contents.append_fact(kind, ledger, body)
        if self._journal is not None:
            self._journal.of(ledger.ledger_id).extend(*placed, len(body))

    def _keyed(self, ledger_id: int, master_key: bytes) -> Ledger | None:
        """Return the ledger if it has this key; an unknown ledger is made, its key journaled first."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.master_key is not None:
            return ledger if ledger.master_key == master_key else None
        if ledger is None:
            ledger = self.contents.create(ledger_id)
        ledger.master_key = master_key
        # In the same journal and before the entry: whatever is replayed of the entries, their key is there too (D19).
        self._append_fact(LEDGER, ledger, ledger_body(master_key, ledger.fenced))
        return ledger

    def fence(self, ledger_id: int, master_key: bytes) -> asyncio.Future[None] | Status:
        """Fence a ledger, which comes into existence if need be. A status: refused.

        The future is done when the fence is durable, and must be awaited before anything is answered (D19). Key and
        fence are one record. For a recovery EUA counts like a fence (`protocol.recovery`): so it is answered only where
        nothing of the ledger may be forgotten (I11), and must wait for `key_durable`.
        """
        if ledger_id < 0 or len(master_key) > MAX_KEY_BYTES:
            return Status.EUA
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.master_key not in (None, master_key):
            return Status.EUNKNOWNLEDGERSTATE if self.contents.unknown(ledger_id) else Status.EUA
        if ledger is None and ledger_id in self.contents.fenced_gone:
            return self._durable(ledger_id)  # it may be on its way still: the ledger was deleted meanwhile
        if ledger is None:
            ledger = self.contents.create_bare(ledger_id, MAX_BARE_BY_FENCE)
        if ledger is None:
            return Status.ETOOMANYREQUESTS
        if not ledger.fenced:
            # In this step, before it is durable: no add that comes later may be acknowledged (I5). Adds before it are
            # earlier in the same journal, so they are durable when the fence is.
            ledger.fenced = True
            ledger.master_key = master_key
            self._append_fact(LEDGER, ledger, ledger_body(master_key, True))
            ledger.fence_pending = self._durable(ledger_id)
            ledger.wake_all()
        elif ledger.fence_pending is None:
            # What a start has found is durable before the node serves: that must not wait for a journal that stalls.
            ledger.fence_pending = self._durable(ledger_id, known=not ledger.fence_recalled)
        return ledger.fence_pending

    def _durable(self, ledger_id: int, known: bool = False) -> asyncio.Future[None]:
        """Return what is done once all that the ledger's journal has so far is durable; at once, if that is `known`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        resolve = partial(_resolve, done)
        resolve() if known else self.journal.of(ledger_id).barrier(resolve)
        return done

    async def key_durable(self, ledger_id: int) -> None:
        """Wait until the key that the ledger has is on disk. Raises what stopped the journal."""
        await self.journal.of(ledger_id).durable()

    def write_lac(self, ledger_id: int, master_key: bytes, body: memoryview, acknowledge: Acknowledge) -> Status | None:
        """Store an explicit-LAC packet, as it is. EOK: `acknowledge` follows when it is durable.

        A ledger that is not here comes into existence, as its first entry may be late; not more of them than
        MAX_BARE_BY_LAC. None: no memory at present, as for `add`.
        """
        if ledger_id < 0 or not LAC_HEADER.size <= len(body) <= MAX_LAC_BYTES or len(master_key) > MAX_KEY_BYTES:
            return Status.EBADREQ
        known = ledger_id in self.ledgers
        if not known and ledger_id in self.contents.fenced_gone:
            return Status.ENOLEDGER
        if not self._logs.has_room(len(body) + ROOM_FOR_KEY):
            return None
        if not known and self.contents.create_bare(ledger_id, MAX_BARE_BY_LAC) is None:
            return Status.ETOOMANYREQUESTS
        ledger = self._keyed(ledger_id, master_key)
        if ledger is None:
            return Status.EUA
        self._append_fact(LAC, ledger, body)
        self.journal.of(ledger_id).barrier(acknowledge)
        ledger.explicit_lac = bytes(body)
        ledger.raise_lac(LAC_HEADER.unpack_from(body)[1])
        ledger.wake_all()
        return Status.EOK

    def leave(self, directories: Collection[str]) -> None:
        """Go on in a log elsewhere: these directories are full."""
        self._logs.leave(directories)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when memory has become free."""
        self._room_waiters.append(callback)

    # ------------------------------------------------------------------------------------ what its parts report

    def room_made(self) -> None:
        """Call every callback of `when_room`, once: a slab has become free."""
        waiters, self._room_waiters = self._room_waiters, []
        for callback in waiters:
            callback()

    def journal_rolled(self) -> None:
        """Ask for a checkpoint, which lets the former journal file be used again: a journal has begun another one."""
        self.checkpoints.due.set()

    def journal_without_space(self) -> None:
        """Ask for a checkpoint, which may give the journal files to use again, and report the full disk."""
        self.checkpoints.due.set()
        self._supervisor.no_space()

    def journal_failed(self, error: BaseException) -> None:
        """Report to the node that nothing more can be made durable: it stops."""
        self._supervisor.journal_failed(error)

    def logs_without_space(self, error: NoSpaceError) -> None:
        """Report to the node that the entry logs or a checkpoint wait for space."""
        self._no_space_error = error
        self._stuck.set()
        self._supervisor.no_space()

    def logs_failed(self, error: BaseException) -> None:
        """Report to the node that nothing more is written to the logs, for which it becomes read-only: what is not
        there yet is in the journal and in memory.
        """
        self._supervisor.degraded(error)

    # ------------------------------------------------------------------------------------ reading

    def find(self, ledger_id: int, entry_id: int) -> tuple[Ledger, int] | Status:
        """Return the ledger, and the entry's id (-1 becomes the last one's) if the entry is here, else what to
        answer."""
        ledger = self.ledgers.get(ledger_id)
        # "No such ledger" and "no such entry" are votes for the end of a ledger; "unknown" is not (I11, D3).
        if ledger is None:
            return Status.EUNKNOWNLEDGERSTATE if self.contents.unknown(ledger_id) else Status.ENOLEDGER
        if entry_id == -1:
            entry_id = ledger.index.last
        if entry_id < 0 or ledger.index.get(entry_id) is None:
            return Status.EUNKNOWNLEDGERSTATE if self.contents.unknown(ledger_id) else Status.ENOENTRY
        return ledger, entry_id

    def read_now(self, ledger: Ledger, entry_id: int) -> memoryview | None:
        """Return the entry's body if it is in memory."""
        place = ledger.index.get(entry_id)
        if place is None:
            return None
        log_id, at, size = place
        record = self._logs.in_memory(log_id, at * ALIGN, size)
        return None if record is None else record[HEADER_BYTES:]

    def size_of(self, ledger: Ledger, entry_id: int) -> int:
        """Return how many bytes reading the entry takes."""
        place = ledger.index.get(entry_id)
        return 0 if place is None else place[2]

    async def read(self, ledger: Ledger, entry_id: int) -> memoryview | None:
        """Return the entry's body from memory or file; None where it cannot be read intact (I12)."""
        while (body := self.read_now(ledger, entry_id)) is None and (place := ledger.index.get(entry_id)) is not None:
            log_id, at, size = place
            failure: OSError | None = None
            try:
                body = read_record(await self._logs.read(log_id, at * ALIGN, size), ledger.ledger_id, entry_id)
            except OSError as error:
                failure = error
            if body is not None:
                break
            if ledger.index.get(entry_id) != place:
                continue  # meanwhile it was copied, or written again, and its log may be gone
            if failure is not None:
                self.unreadable += 1
                message = "entry %d of ledger %d cannot be read: %s"
                self._lines.log(logging.ERROR, message, entry_id, ledger.ledger_id, failure)
            else:
                self.damaged += 1
                path, offset = self._logs.paths[log_id], at * ALIGN
                message = "entry %d of ledger %d is damaged in %s at offset %d"
                self._lines.log(logging.ERROR, message, entry_id, ledger.ledger_id, path, offset)
            break
        return body


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    """Do nothing: this marks the end of the calls before it."""
