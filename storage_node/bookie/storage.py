"""`Storage`: journal, entry logs, index and ledger state as one thing that survives a crash.

An add or a fence is decided and appended in one step on the loop: nobody comes between a check and its consequence.
Its record goes into a slab; the journal makes it durable and only then lets it be acknowledged; the entry log follows
behind. A checkpoint makes the journal's older part unnecessary, in this order:

    1. in one step: end the journal's batch (the mark), note how long each log is, take the ledgers' states
    2. write the logs up to there, from every slab
    3. fdatasync every log, then append and fdatasync its sidecar, then the directories
    4. write the checkpoint file into **every** ledger directory (D7)
    5. give up journal files below the mark

If any step fails the mark stays where it was. At start the newest checkpoint is read, logs are indexed from their
sidecars or by scanning, the journal is replayed behind the mark into a new log, and a checkpoint follows before the
node serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from metadata.errors import check
from storage_node.bookie import checkpoint as checkpoints
from storage_node.bookie.checkpoint import Checkpoint
from storage_node.bookie.entry_logs import EntryLogs, LogFile, parse_log_name, sidecar_name
from storage_node.bookie.index import NewPlaces
from storage_node.bookie.journal import Acknowledge, Answers, AnswerSink, Journal
from storage_node.bookie.journal_files import JournalFiles
from storage_node.bookie.ledgers import Ledger
from storage_node.bookie.opening import index_logs, read_checkpoint
from storage_node.bookie.records import (
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
from storage_node.bookie.replay import FIRST_BATCH_AT, JournalReader, Mark
from storage_node.bookie.settings import MIB, BookieSettings
from storage_node.bookie.slabs import Slab
from storage_node.edge import Disk
from storage_node.errors import BookieFailedError
from storage_node.protocol.digests import ENTRY_IDS, LAC_HEADER
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status

logger = logging.getLogger(__name__)

ROOM_FOR_KEY = 256
"""More than a LEDGER record takes."""

REPLAY_TURN_BYTES = 8 * MIB
"""Replay lets the writers follow after so many bytes."""


class Storage:
    """What a bookie stores. Everything runs on one loop; `start` before anything else, `stop` at last."""

    def __init__(
        self,
        settings: BookieSettings,
        disk: Disk,
        *,
        journal_directory: str,
        ledger_directories: list[str],
        failed: Callable[[BaseException], None],
        degraded: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._journal_directory = journal_directory
        self.ledger_directories = ledger_directories
        self._failed = failed
        self._degraded = degraded
        self.ledgers: dict[int, Ledger] = {}
        self.lossy = False
        """Entries that were stored may be gone: what is not found is unknown, not absent (I11)."""
        self._states: dict[int, bytes] = {}
        self._changed: set[int] = set()
        self._new: dict[int, NewPlaces] = {}
        self._logs_known: dict[int, int] = {}
        self._counter = 0
        self._directory_turn = 0
        self._room_waiters: list[Callable[[], None]] = []
        self._checkpointing: asyncio.Task[None] | None = None
        self._checkpoint_due = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None
        self._logs = self._make_entry_logs()
        self._journal: Journal | None = None
        self.checkpoint_error: BaseException | None = None

    # ------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Recover. Raises JournalCorruptError, CorruptDataError or OSError; nothing was changed then that matters."""
        opened = await self._disk.submit("files", partial(read_checkpoint, self._disk, self.ledger_directories))
        reader = JournalReader(self._disk, self._journal_directory)
        if opened is None:
            mark: Mark | None = None
            found = Checkpoint(0, Mark(0, FIRST_BATCH_AT, 0), 1, {}, False, False)
            self._refuse_orphans(reader)
        else:
            found, self.ledgers = opened
            mark = found.mark
        self._counter = found.counter
        self.lossy = found.lossy
        self._logs.next_log_id = self._first_free_log(found)
        if opened is not None:
            await self._open_logs(found)
        for ledger in self.ledgers.values():
            self._states[ledger.ledger_id] = ledger.encode()
        if mark is not None and not found.clean:
            await self._replay(reader, mark)
        await self._start_journal(reader, mark)
        await self.checkpoint()
        if self.checkpoint_error is not None:
            raise self.checkpoint_error
        await self._disk.submit("files", self._remove_strays)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def _refuse_orphans(self, reader: JournalReader) -> None:
        """Without any checkpoint there must be nothing either."""
        logs = [n for d in self.ledger_directories for n in self._disk.list_directory(d) if parse_log_name(n)]
        if logs or not reader.empty():
            raise checkpoints.missing(self.ledger_directories)

    def _make_entry_logs(self) -> EntryLogs:
        return EntryLogs(
            self._disk,
            slab_bytes=self._settings.slab_bytes,
            memory_bytes=self._settings.skip_list_size_limit,
            log_bytes=self._settings.log_size_limit,
            choose_directory=self._choose_directory,
            room_made=self._room_made,
            failed=self._degraded,
        )

    def _first_free_log(self, found: Checkpoint) -> int:
        """A log id behind all that a checkpoint or a directory knows."""
        names = [name for directory in self.ledger_directories for name in self._disk.list_directory(directory)]
        seen = [parse_log_name(name) or parse_log_name(name, ".idx") or 0 for name in names]
        return max([found.next_log_id, *(log_id + 1 for log_id in seen)])

    async def _open_logs(self, found: Checkpoint) -> None:
        work = partial(index_logs, self._disk, self.ledger_directories, found, self.ledgers)
        result = await self._disk.submit("files", work)
        self._logs.paths.update(result.paths)
        self._logs_known = dict(result.lengths)
        if result.lost and not self.lossy:
            self.lossy = True
            logger.error("entries are lost on this node; what it cannot find it will call unknown")

    async def _replay(self, reader: JournalReader, mark: Mark) -> None:
        """Bring everything behind the mark into memory and a new entry log."""
        count = size = 0
        for record in reader.replay(mark):
            self._replay_record(record)
            count += 1
            size += len(record.body)
            if size >= REPLAY_TURN_BYTES:
                size = 0
                await self._logs.flush_target()
        if count:
            logger.info("replayed %d records of the journal", count)

    def _replay_record(self, record: Record) -> None:
        ledger = self.ledgers.get(record.ledger_id)
        if ledger is None and record.kind in (ENTRY, LEDGER, LAC):
            ledger = self.ledgers[record.ledger_id] = Ledger(record.ledger_id)
        if ledger is None:
            return
        self._changed.add(record.ledger_id)
        if record.kind == ENTRY:
            self._append_entry(ledger, record.entry_id, record.body, True)
            ledger.raise_lac(ENTRY_IDS.unpack_from(record.body)[2])
            return
        self._append_fact(record.kind, ledger, record.body, None)
        if record.kind == LEDGER:
            key, fenced = parse_ledger_body(record.body)
            ledger.master_key = key
            ledger.fenced = ledger.fenced or fenced
        elif record.kind == LAC:
            ledger.explicit_lac = bytes(record.body)
            ledger.raise_lac(LAC_HEADER.unpack_from(record.body)[1])

    async def _start_journal(self, reader: JournalReader, mark: Mark | None) -> None:
        """Begin a new file, behind all that exist."""
        last = max([0, *reader.file_ids, *([mark.file_id] if mark else [])])
        files = JournalFiles(
            self._disk,
            self._journal_directory,
            step_bytes=self._settings.journal_pre_alloc_size_mb * MIB,
            max_bytes=self._settings.journal_max_size_mb * MIB,
            spares=self._settings.journal_max_backups,
        )
        file = await self._disk.submit("files", partial(files.open_next, last + 1))
        self._journal = Journal(
            self._disk,
            files,
            file,
            last_sequence=max(reader.last_sequence, mark.sequence if mark else 0),
            align=self._logs.align,
            rolled=self._checkpoint_due.set,
            settled=self._room_made,
            failed=self._failed,
        )

    def _remove_strays(self) -> None:
        """Logs that no checkpoint knows: their records were in the journal and have just been stored again."""
        known = {*self._logs_known, *self._logs.writing}
        for directory in self.ledger_directories:
            for name in self._disk.list_directory(directory):
                log_id = parse_log_name(name) or parse_log_name(name, ".idx")
                if log_id is not None and log_id not in known:
                    self._disk.remove(f"{directory}/{name}")

    async def stop(self, *, clean: bool) -> None:
        """Flush and close. `clean` takes a last checkpoint, so that the next start has nothing to replay."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
            self._ticker = None
        if clean and self._journal is not None and self._journal.error is None:
            await self._last_checkpoint()
        self._logs.halt()
        if self._journal is not None:
            await self._journal.close(abandon=not clean)
        if self._checkpointing is not None:
            await asyncio.wait([self._checkpointing])
        await self._disk.submit("entries", _nothing)
        self._logs.close()

    async def _last_checkpoint(self) -> None:
        try:
            await self.journal.durable()
        except OSError as error:
            logger.error("the journal failed at last: %s", error)
            return
        if self._logs.error is None:
            await self.checkpoint(clean=True)

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise BookieFailedError("the storage is not started")
        return self._journal

    # ------------------------------------------------------------------------------------ writing

    @property
    def writing_failed(self) -> bool:
        """A ledger directory failed: nothing more can be stored, though everything stored can be read."""
        return self._logs.error is not None

    def add(
        self, body: memoryview, master_key: bytes, recovery: bool, sink: AnswerSink, answer: bytes
    ) -> Status | None:
        """Store an entry; ids and LAC are taken from its body.

        EOK: the sink gets `answer` back once it is durable (never, if the node fails first). Another status: refused,
        nothing stored. None: no memory at present, try again when `when_room` calls.
        """
        length = len(body)
        if length < ENTRY_IDS.size or len(master_key) > MAX_KEY_BYTES:
            return Status.EBADREQ
        ledger_id, entry_id, lac = ENTRY_IDS.unpack_from(body)
        if ledger_id < 0 or entry_id < 0:
            return Status.EBADREQ
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.master_key != master_key:
            if ledger is None and not self._logs.has_room(length + ROOM_FOR_KEY):
                return None
            ledger = self._keyed(ledger_id, master_key)
            if ledger is None:
                return Status.EUA
        if ledger.fenced and not recovery:
            return Status.EFENCED  # no step between this check and the append: an add is before the fence or refused
        placed = self._append_entry(ledger, entry_id, body, False)
        if placed is None:
            return None
        batch = self.journal.extend(*placed, length)
        answers = batch.answers.get(sink)
        if answers is None:
            answers = batch.answers[sink] = Answers(sink)
        answers.frames.append(answer)
        answers.bytes_stored += length
        if lac > ledger.lac:
            ledger.raise_lac(lac)
        return Status.EOK

    def _append_entry(
        self, ledger: Ledger, entry_id: int, body: memoryview, beyond_limit: bool
    ) -> tuple[Slab, int, int, int] | None:
        """Put an entry into memory, log and index; the journal is the caller's business. None: no memory."""
        ledger_id = ledger.ledger_id
        placed = self._logs.append(ENTRY, ledger_id, entry_id, body, beyond_limit)
        if placed is None:
            return None
        slab = placed[0]
        log_id = slab.log_id
        place = (slab.base + placed[1]) // ALIGN
        size = HEADER_BYTES + len(body)
        ledger.index.put(entry_id, log_id, place, size)
        new = self._new.get(log_id)
        if new is None:
            new = self._new[log_id] = NewPlaces()
        new.put(ledger_id, entry_id, place, size)
        return placed

    def _append_fact(self, kind: int, ledger: Ledger, body: Buffer, acknowledge: Acknowledge | None) -> None:
        """Put a record about a ledger into memory, log and journal, whatever the memory's limit."""
        placed = self._logs.append(kind, ledger.ledger_id, 0, body, True)
        check(placed is not None, "there was no memory for a record that must be stored")
        self._changed.add(ledger.ledger_id)
        if placed is not None and self._journal is not None:
            batch = self._journal.extend(*placed, len(body))
            if acknowledge is not None:
                batch.acknowledgements.append(acknowledge)

    def _keyed(self, ledger_id: int, master_key: bytes) -> Ledger | None:
        """The ledger if it has this key; an unknown ledger comes into existence, its key journaled first."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.master_key is not None:
            return ledger if ledger.master_key == master_key else None
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger(ledger_id)
        ledger.master_key = master_key
        self._append_fact(LEDGER, ledger, ledger_body(master_key, ledger.fenced), None)
        return ledger

    def fence(self, ledger_id: int, master_key: bytes) -> asyncio.Future[None] | None:
        """Fence a ledger, which comes into existence if need be. None: another key.

        The future is done when the fence is durable, and must be awaited before anything is answered (D19). Key and
        fence are one record.
        """
        if ledger_id < 0 or len(master_key) > MAX_KEY_BYTES:
            return None
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.master_key not in (None, master_key):
            return None
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger(ledger_id)
        if not ledger.fenced:
            ledger.fenced = True
            ledger.master_key = master_key
            ledger.fence_pending = asyncio.get_running_loop().create_future()
            done = partial(_resolve, ledger.fence_pending)
            self._append_fact(LEDGER, ledger, ledger_body(master_key, True), done)
            ledger.wake_all()
        elif ledger.fence_pending is None:
            ledger.fence_pending = asyncio.get_running_loop().create_future()
            ledger.fence_pending.set_result(None)
        return ledger.fence_pending

    def write_lac(self, ledger_id: int, master_key: bytes, body: memoryview, acknowledge: Acknowledge) -> Status:
        """Store an explicit-LAC packet, as it is. EOK: `acknowledge` follows when it is durable."""
        if ledger_id < 0 or not LAC_HEADER.size <= len(body) <= 0xFFFF or len(master_key) > MAX_KEY_BYTES:
            return Status.EBADREQ
        ledger = self._keyed(ledger_id, master_key)
        if ledger is None:
            return Status.EUA
        self._append_fact(LAC, ledger, body, acknowledge)
        ledger.explicit_lac = bytes(body)
        ledger.raise_lac(LAC_HEADER.unpack_from(body)[1])
        ledger.wake_all()
        return Status.EOK

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when memory has become free."""
        self._room_waiters.append(callback)

    def _room_made(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for callback in waiters:
            callback()

    def _choose_directory(self) -> str:
        """Where the next log goes: the directories in turn."""
        self._directory_turn += 1
        return self.ledger_directories[self._directory_turn % len(self.ledger_directories)]

    # ------------------------------------------------------------------------------------ reading

    def find(self, ledger_id: int, entry_id: int) -> tuple[Ledger, int] | Status:
        """The ledger, and the entry's id (-1 becomes the last one's) if the entry is here, else what to answer."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return Status.EUNKNOWNLEDGERSTATE if self.lossy else Status.ENOLEDGER
        if entry_id == -1:
            entry_id = ledger.index.last
        if entry_id < 0 or ledger.index.get(entry_id) is None:
            return Status.EUNKNOWNLEDGERSTATE if self.lossy else Status.ENOENTRY
        return ledger, entry_id

    def read_now(self, ledger: Ledger, entry_id: int) -> memoryview | None:
        """The entry's body if it is in memory."""
        place = ledger.index.get(entry_id)
        if place is None:
            return None
        log_id, at, size = place
        record = self._logs.in_memory(log_id, at * ALIGN, size)
        return None if record is None else record[HEADER_BYTES:]

    def size_of(self, ledger: Ledger, entry_id: int) -> int:
        """Bytes that reading the entry takes."""
        place = ledger.index.get(entry_id)
        return 0 if place is None else place[2]

    async def read(self, ledger: Ledger, entry_id: int) -> memoryview | None:
        """The entry's body from memory or file; None where it cannot be read intact (I12)."""
        body = self.read_now(ledger, entry_id)
        if body is not None:
            return body
        place = ledger.index.get(entry_id)
        if place is None:
            return None
        log_id, at, size = place
        try:
            record = await self._logs.read(log_id, at * ALIGN, size)
        except OSError as error:
            logger.error("entry %d of ledger %d cannot be read: %s", entry_id, ledger.ledger_id, error)
            return None
        body = read_record(record, ledger.ledger_id, entry_id)
        if body is None:
            path, offset = self._logs.paths[log_id], at * ALIGN
            logger.error(
                "entry %d of ledger %d is damaged in %s at offset %d", entry_id, ledger.ledger_id, path, offset
            )
        return body

    # ------------------------------------------------------------------------------------ checkpoints

    async def _tick(self) -> None:
        """Take a checkpoint every interval, and when the journal has gone on to another file."""
        while True:
            try:
                await asyncio.wait_for(self._checkpoint_due.wait(), self._settings.flush_interval_ms / 1000)
            except asyncio.TimeoutError:
                pass
            self._checkpoint_due.clear()
            if (self._new or self._changed) and not self.writing_failed and self.journal.error is None:
                await self.checkpoint()

    async def checkpoint(self, *, clean: bool = False) -> None:
        """Take a checkpoint; one at a time. A failure is kept in `checkpoint_error` and makes the node read-only."""
        while self._checkpointing is not None:
            await asyncio.wait([self._checkpointing])
        task = asyncio.get_running_loop().create_task(self._checkpoint(clean))
        self._checkpointing = task
        task.add_done_callback(self._checkpointed)
        await asyncio.wait([task])

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpointing = None
        error = None if task.cancelled() else task.exception()
        if error is not None and self._logs.error is None and self.journal.error is None:
            logger.error("a checkpoint failed", exc_info=error)
            self._logs.give_up(error)
        self.checkpoint_error = self.checkpoint_error or error

    async def _checkpoint(self, clean: bool) -> None:
        mark = self.journal.mark()
        written = self._logs.flush_target()
        lengths = self._logs.lengths()
        new, self._new = self._new, {}
        finished = [log_id for log_id, log in self._logs.writing.items() if self._logs.finished(log)]
        self._take_states(new)
        states = list(self._states.values())
        await written
        logs = list(self._logs.writing.values())
        await self._disk.submit("entries", partial(self._sync_logs, logs, lengths, new))
        await self.journal.durable()
        self._logs_known.update(lengths)
        self._counter += 1
        taken = Checkpoint(self._counter, mark, self._logs.next_log_id, dict(self._logs_known), clean, self.lossy)
        await self._disk.submit("files", partial(self._write_checkpoint, taken, states))
        for log_id in finished:
            self._logs.forget(log_id)
        await self.journal.retire(mark)

    def _take_states(self, new: dict[int, NewPlaces]) -> None:
        """Bring the encoded states up to date for the ledgers that changed."""
        changed, self._changed = self._changed, set()
        for places in new.values():
            changed.update(places.ledger_ids())
        for ledger_id in changed:
            self._states[ledger_id] = self.ledgers[ledger_id].encode()

    def _sync_logs(self, logs: list[LogFile], lengths: dict[int, int], new: dict[int, NewPlaces]) -> None:
        """On the entry-log thread: make every log and its sidecar durable."""
        directories: set[str] = set()
        for log in logs:
            length = lengths.get(log.log_id, 0)
            if length <= log.synced or log.file is None:
                continue
            log.file.sync_data()
            block = new.get(log.log_id, NewPlaces()).block(log.log_id, log.synced, length)
            sidecar = self._disk.open(f"{log.directory}/{sidecar_name(log.log_id)}", create=True)
            try:
                sidecar.write_at(log.sidecar_bytes, [block])
                sidecar.sync_data()
            finally:
                sidecar.close()
            if log.synced == 0:
                directories.add(log.directory)
            log.sidecar_bytes += len(block)
            log.synced = length
        for directory in directories:
            self._disk.sync_directory(directory)

    def _write_checkpoint(self, taken: Checkpoint, states: list[bytes]) -> None:
        """On the files thread: every directory, or the checkpoint does not count (D7)."""
        data = checkpoints.encode(taken, states)
        for directory in self.ledger_directories:
            self._disk.write_file(f"{directory}/{checkpoints.FILE_NAME}", data)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    """A call that marks the end of those before it."""
