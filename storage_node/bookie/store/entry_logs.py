"""The entry logs: append-only files, `<id in 16 hex digits>.log`, that interleave all ledgers' records
(docs/reference/node-files.md#entry-logs).

The end of the current log is in memory, in slabs (`disk.slabs`), before it is in the file: records are appended to
the slab, and a writer follows behind in pieces of 2 MB, one at a time, straight from that memory. A read finds its
record in a slab if the region is still there, else in the file.

Fault model: a write or sync that fails ends the writing for good (`error`); nothing is lost by it, since what is not
in the file is in the journal, and stays in memory, readable. The node above becomes read-only. So it does where a write
finds no space, but that passes: what was not written whole is written again (`full`). A read that fails, or
gives bytes that fail their checksum, concerns that entry only.

A batch of the journal that is written once waits for its bytes here (`settle`): they are written and synced in one call
of the thread, and a sync that fails is final for the log, whichever call asks for the next one. There the fault model
is another one: where a log cannot be written or synced, what only waits for it is nowhere else, so that the journal
fails and the node stops. Where it finds no space all answers of that journal wait behind that batch, fences too. A
failed or full checkpoint alone does neither: what batches wait for is written all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from functools import partial
from typing import Protocol

from metadata.foundation.descriptors import current_limit
from metadata.foundation.errors import check, is_a_bug
from storage_node.bookie.disk.records import (
    ALIGN,
    HEADER_BYTES,
    LOG,
    SUM,
    SUMMED,
    Slab,
    SlabPool,
    aligned,
    down,
    pad_header,
    up,
)
from storage_node.bookie.disk.resources import (
    Disks,
    NoSpaceError,
    lacks_descriptors,
    read_files,
)
from storage_node.bookie.store.log_files import LogFile
from storage_node.edge import Disk, DiskFile
from storage_node.errors import BookieFailedError
from storage_node.protocol.digests import crc32
from storage_node.protocol.frames import Buffer
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

PIECE_BYTES = 2 * 1024 * 1024
"""Each piece is handed to a thread and back, which costs a node as much as copying half a megabyte."""
LEAST_PIECE_BYTES = 256 * 1024
PIECES_OF_A_SLAB = 4
"""At least so many: memory that is small is not to wait for its file until it is full."""
LARGE_PIECE_BYTES = 4 * 1024 * 1024
"""Where batches are written once: most of what comes is written for them, with a sync."""
DESCRIPTOR_PAUSES_S = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0)
"""How long a read waits for a file descriptor, again and again, before it is refused."""
LOG_FORMAT = b"dlspark entry log 1"


class _Flush:
    """Who waits for a slab to be in its log's file up to `end`, and is that enough?"""

    __slots__ = ("done", "end", "slab", "synced")

    def __init__(self, slab: Slab, end: int, synced: bool) -> None:
        self.slab = slab
        self.end = end
        self.synced = synced
        """True: it must also be on disk."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def written(self) -> bool:
        """It is in the file."""
        return self.slab.written >= self.end


class LogsSupervisor(Protocol):
    """What do the entry logs report, and to which object? To the storage that they are a part of."""

    def room_made(self) -> None:
        """Note that a slab may be free now."""
        ...

    def logs_without_space(self, error: NoSpaceError) -> None:
        """Note that what is in memory waits for space on the disk."""
        ...

    def logs_failed(self, error: BaseException) -> None:
        """Note that nothing is written any more. Called once."""
        ...


class EntryLogs:
    """All logs of a node; appends to one of them at a time."""

    def __init__(
        self,
        disk: Disk,
        disks: Disks,
        settings: BookieSettings,
        supervisor: LogsSupervisor,
    ) -> None:
        self._disk = disk
        self._disks = disks
        self._supervisor = supervisor
        self._open_files = read_files(current_limit())
        self._log_bytes = settings.log_size_limit
        self._named = settings.journal_write_once_from_bytes > 0
        """Journals may name the logs."""
        self.next_log_id = 1
        self.patient = False
        """True: wait for space on a full disk; if not, it is a failure like any other."""
        self.full = False
        """The disk has no space for what is in memory, which waits for `try_again`."""
        self._refused = False
        """A log itself found no space, and not only what belongs to a checkpoint."""
        self.wanting: NoSpaceError | None = None
        """The error for which `full` was set last."""
        self._space_waiters: list[asyncio.Future[None]] = []
        self._slab_limit = settings.skip_list_size_limit // settings.slab_bytes
        self._pool = SlabPool(settings.slab_bytes, self._slab_limit, self._evicted)
        most = LARGE_PIECE_BYTES if self._named else PIECE_BYTES
        self._piece_bytes = min(most, max(LEAST_PIECE_BYTES, settings.slab_bytes // PIECES_OF_A_SLAB))
        self._slabs: dict[tuple[int, int], Slab] = {}
        self._log: LogFile | None = None
        self._leaving = False
        self._slab: Slab | None = None
        self._unwritten: deque[tuple[LogFile, Slab]] = deque()
        self._writing = False
        self._flushes: list[_Flush] = []
        self.writing: dict[int, LogFile] = {}
        """Logs with something that no checkpoint covers, or that is still appended to."""
        self.paths: dict[int, str] = {}
        self._open: OrderedDict[int, _Reader] = OrderedDict()
        self._reads: Counter[int] = Counter()
        self.error: BaseException | None = None

    # ------------------------------------------------------------------------------------ appending

    def append(
        self, kind: int, ledger_id: int, entry_id: int, body: Buffer, beyond_limit: bool = False
    ) -> tuple[Slab, int, int, int] | None:
        """Copy a record into memory: (slab, start, end, CRC-32 of the body).

        None while memory has no room for it: the supervisor is notified by `room_made` when there is some.
        """
        length = len(body)
        slab = self._slab
        size = (length + HEADER_BYTES + ALIGN - 1) & -ALIGN
        if slab is None or slab.end + size > slab.size:
            slab = self._next_slab(beyond_limit)
            if slab is None:
                return None
        start = slab.end
        end = start + size
        at = start + HEADER_BYTES
        body_sum = crc32(body, 0)
        head = SUMMED.pack(kind, length, ledger_id, entry_id, body_sum)
        view = slab.view
        view[start:at] = head + SUM.pack(crc32(head, 0))
        view[at : at + length] = body
        slab.end = end
        if end - slab.written >= self._piece_bytes and not self._writing:
            self._write_on()
        return slab, start, end, body_sum

    @property
    def tail(self) -> Slab | None:
        """The slab that is appended to, if there is one."""
        return self._slab

    def extend(self, slab: Slab, end: int) -> None:
        """Count what was written to the slab in use as appended, up to `end`."""
        check(slab is self._slab and slab.end < end <= slab.size, "records were written beside the slab in use")
        slab.end = end
        if end - slab.written >= self._piece_bytes and not self._writing:
            self._write_on()

    def has_room(self, length: int) -> bool:
        """Return True if a record with a body of `length` can be appended now."""
        slab = self._slab
        if slab is None or slab.end + aligned(HEADER_BYTES + length) > slab.size:
            slab = self._next_slab(False)
        return slab is not None

    @property
    def beyond_limit(self) -> bool:
        """More memory is in use than there should be."""
        return self._pool.beyond_limit

    @property
    def lagging(self) -> bool:
        """True while a good part of the memory waits to be written: what is not urgent should wait too."""
        return len(self._unwritten) > max(2, self._slab_limit // 4)

    def position(self) -> tuple[int, int]:
        """Return (log id, offset / 32) at or behind which the next record will lie."""
        slab = self._slab
        return (self.next_log_id, 0) if slab is None else (slab.log_id, (slab.base + slab.end) // ALIGN)

    @property
    def current(self) -> LogFile | None:
        """The log that is appended to."""
        return self._log

    def roll(self) -> None:
        """Go on in a new log with the next record, whatever room this one has."""
        log, slab = self._log, self._slab
        if log is not None and slab is not None:
            self._seal()
            log.length = slab.base + slab.end
            self._log = self._slab = None
            self._write_on()

    def align(self, slab: Slab) -> None:
        """Let the slab's next record begin on a block."""
        gap = up(slab.end) - slab.end
        if gap:
            slab.view[slab.end : slab.end + HEADER_BYTES] = pad_header(gap)
            slab.end += gap

    def leave(self, directories: Collection[str]) -> None:
        """Append to no log in these directories any longer than the slab in use lasts, if others are chosen then."""
        self._leaving = self._log is not None and self._log.directory in directories

    def _next_slab(self, beyond_limit: bool) -> Slab | None:
        """Go on in a new slab, in the same log or in a new one."""
        log, old = self._log, self._slab
        base = 0 if old is None else old.base + old.size
        if log is None or self._leaving or base + self._pool.slab_bytes > self._log_bytes:
            # Memory first: if there is none the old slab stays in use, and a smaller record may still fit into it.
            slab = self._pool.take(self.next_log_id, 0, beyond_limit=beyond_limit)
            if slab is None:
                return None
            self._seal()
            if log is not None and old is not None:
                log.length = old.base + old.end
            self._log = log = LogFile(self.next_log_id, self._disks.choose())
            self._leaving = False
            self.next_log_id += 1
            self.writing[log.log_id] = log
            self.paths[log.log_id] = log.path
            self._write_log_record(slab, log)
            if self._named:
                self._disk.submit("entries", partial(log.name, self._disk)).add_done_callback(self._was_named)
        else:
            slab = self._pool.take(log.log_id, base, beyond_limit=beyond_limit)
            if slab is None:
                return None
            self._seal()
        self._slab = slab
        self._slabs[(slab.log_id, slab.base)] = slab
        self._unwritten.append((log, slab))
        self._write_on()
        return slab

    @staticmethod
    def _write_log_record(slab: Slab, log: LogFile) -> None:
        head = SUMMED.pack(LOG, len(LOG_FORMAT), log.log_id, 0, crc32(LOG_FORMAT, 0))
        head += SUM.pack(crc32(head, 0))
        slab.view[: len(head) + len(LOG_FORMAT)] = head + LOG_FORMAT
        slab.end = aligned(len(head) + len(LOG_FORMAT))

    def _seal(self) -> None:
        """Close the current slab; one PAD covers the rest of its region."""
        slab = self._slab
        if slab is None:
            return
        rest = slab.size - slab.end
        if rest:
            slab.view[slab.end : slab.end + HEADER_BYTES] = pad_header(rest)
            slab.end = up(slab.end + HEADER_BYTES)
        slab.sealed = True

    def _evicted(self, slab: Slab) -> None:
        del self._slabs[(slab.log_id, slab.base)]

    # ------------------------------------------------------------------------------------ writing

    def _write_on(self) -> None:
        """Send the next piece to the file, unless one is on its way."""
        while not self._writing and self._may_write():
            if self._sync_on() or not self._unwritten:
                return
            log, slab = self._unwritten[0]
            ready = slab.end if slab.sealed or self._flushes else down(slab.end)
            size = min(ready - slab.written, self._piece_bytes)
            # What is to be on disk goes in one piece, with one sync for all that wait for it.
            through = max((flush.end for flush in self._flushes if flush.synced and flush.slab is slab), default=0)
            if through > slab.written:
                size = through - slab.written
            elif size <= 0 or (size < self._piece_bytes and not (slab.sealed or self._flushes)):
                if slab.sealed and slab.written >= slab.end:
                    self._unwritten.popleft()
                    continue
                return
            size = down(size)
            if not size:
                return
            piece = slab.view[slab.written : slab.written + size]
            self._submit(log, slab, piece, through > slab.written)

    def _may_write(self) -> bool:
        """Return whether pieces are sent to the files now."""
        if self.error is None and not self.full:
            return True
        # What stopped the others was another file, of a checkpoint: a batch of the journal that only waits for these
        # logs still gets what it waits for, and with it all answers behind it.
        return not self._refused and any(flush.synced for flush in self._flushes)

    def _sync_on(self) -> bool:
        """Send a sync for what is written and must be on disk; False where nothing waits for that."""
        for flush in [flush for flush in self._flushes if flush.synced and flush.written]:
            log = self.writing.get(flush.slab.log_id)
            if log is not None:
                self._submit(log, flush.slab, None, True)
                return True
            # A checkpoint that covers it has synced it, and is finished with it.
            self._flushes.remove(flush)
            _resolve(flush.done)
        return False

    def _was_named(self, future: asyncio.Future[None]) -> None:
        error = future.exception()
        # Without space the log goes on without places. Another failure is final: a later sync of the directory might
        # report success without this name.
        if error is not None and not isinstance(error, NoSpaceError):
            self.give_up(error)

    def _submit(self, log: LogFile, slab: Slab, piece: memoryview | None, sync: bool) -> None:
        self._writing = True
        size = 0 if piece is None else len(piece)
        future = self._disk.submit("entries", partial(self._write, log, slab.base + slab.written, piece, sync))
        future.add_done_callback(partial(self._wrote, slab, size, sync))

    def _write(self, log: LogFile, offset: int, piece: memoryview | None, sync: bool) -> None:
        """Write on the entry-log thread, and sync what was written so far."""
        if piece is not None:
            log.write(self._disk, offset, piece)
        if sync:
            log.sync()
        if piece is not None:
            piece.release()

    def _wrote(self, slab: Slab, size: int, synced: bool, future: asyncio.Future[None]) -> None:
        self._writing = False
        error = future.exception()
        if error is not None:
            self._refused = self.wait_for_space(error)
            if not self._refused:
                self._fail(error)
            return
        slab.written += size
        for flush in [flush for flush in self._flushes if flush.written]:
            # One sync is for one log, and earlier ones may wait for their own.
            if not flush.synced or (synced and flush.slab.log_id == slab.log_id):
                self._flushes.remove(flush)
                _resolve(flush.done)
        if slab.settled:
            self._supervisor.room_made()
        self._write_on()

    def wait_for_space(self, error: BaseException) -> bool:
        """Return whether `error` only means that the disk is full, and the writing waits for space: nothing is lost
        meanwhile, and what was not written whole is written again."""
        if not self.patient or not isinstance(error, NoSpaceError):
            return False
        if not self.full:
            self.full, self.wanting = True, error
            logger.error("no space for the entry logs, what is in memory waits: %s", error)
            self._supervisor.logs_without_space(error)
        return True

    def try_again(self) -> None:
        """Look whether there is space now."""
        self.full = self._refused = False
        waiters, self._space_waiters = self._space_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._write_on()

    def space(self) -> asyncio.Future[None]:
        """Return a future that is done when it is worth trying again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._space_waiters.append(future)
        return future

    def _fail(self, error: BaseException) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            if not flush.done.done():
                flush.done.set_exception(error)
        if self.error is not None:
            return
        self.error = error
        message = "writing the entry logs failed, the node takes no more entries: %s"
        logger.error(message, error, exc_info=error if is_a_bug(error) else None)
        self._supervisor.logs_failed(error)

    # ------------------------------------------------------------------------------------ checkpoints

    def flush_target(self) -> asyncio.Future[None]:
        """Return a future that is done when everything appended so far is written (not yet synced)."""
        slab = self._slab
        if slab is None and self._unwritten:
            slab = self._unwritten[-1][1]  # the log was rolled
        if slab is None:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None) if self.error is None else nothing.set_exception(self.error)
            return nothing
        if self.error is None:
            # Direct writes are whole blocks: the block that is being filled is written now, so it takes nothing more.
            self.align(slab)
        return self._reach(_Flush(slab, slab.end, synced=False))

    def takes_places(self, slab: Slab) -> bool:
        """Return whether a batch of this slab may be written here alone: nothing keeps its log from being written, and
        the log's name is durable."""
        log = self.writing.get(slab.log_id)
        return log is not None and log.named and self.error is None and not self.full

    def settle(self, slab: Slab, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the slab is on disk up to `end`, where a block ends, and what its log holds
        before it. Cancelled by `halt`."""
        return self._reach(_Flush(slab, end, synced=True))

    def _reach(self, flush: _Flush) -> asyncio.Future[None]:
        if self.error is not None:
            flush.done.set_exception(self.error)
        elif flush.written and not flush.synced:
            flush.done.set_result(None)
        else:
            self._flushes.append(flush)
            self._write_on()
        return flush.done

    def lengths(self) -> dict[int, int]:
        """Return the logical length of each log being written, as of now."""
        if self._log is not None and self._slab is not None:
            self._log.length = self._slab.base + self._slab.end
        return {log_id: log.length for log_id, log in self.writing.items()}

    def finished(self, log: LogFile) -> bool:
        """Return True if nothing will be appended to it any more."""
        return log is not self._log

    def forget(self, log_id: int) -> None:
        """Forget a finished log that a checkpoint covers: nothing is written to it any more."""
        log = self.writing.pop(log_id)
        if log.file is not None:
            log.file.close()

    def give_up(self, error: BaseException) -> None:
        """Stop writing: a checkpoint or a name could not be made durable, and trying again would prove nothing. What
        batches of the journal wait for is still written: a log that failed itself refuses its next sync."""
        promised = [flush for flush in self._flushes if flush.synced]
        self._flushes = [flush for flush in self._flushes if not flush.synced]
        self._fail(error)
        self._flushes = promised
        self._write_on()

    # ------------------------------------------------------------------------------------ reading

    def in_memory(self, log_id: int, offset: int, size: int) -> memoryview | None:
        """Return the record's bytes, if its region is still in a slab."""
        slab_bytes = self._pool.slab_bytes
        base = offset - offset % slab_bytes
        slab = self._slabs.get((log_id, base))
        return None if slab is None else slab.view[offset - base : offset - base + size]

    async def read(self, log_id: int, offset: int, size: int) -> memoryview:
        """Return the record's bytes from the file, unchecked. Raises OSError."""
        self._reads[log_id] += 1
        try:
            return await self._read(log_id, offset, size)
        finally:
            self._reads[log_id] -= 1
            if not self._reads[log_id]:
                del self._reads[log_id]

    def is_read(self, log_id: int) -> bool:
        """Return True while a read of the log is under way, also one that began before the log was dropped."""
        return log_id in self._reads

    async def _read(self, log_id: int, offset: int, size: int) -> memoryview:
        reader = self._open.get(log_id) or await self._reader(log_id)
        reader.users += 1
        try:
            if log_id in self._open:  # else the log was dropped, while this read waited for a descriptor
                self._open.move_to_end(log_id)
            now = reader.file.read_now(offset, size)
            if now is not None:
                return memoryview(now)
            return memoryview(await self._disk.submit("reads", partial(reader.file.read_at, offset, size)))
        finally:
            reader.users -= 1
            if reader.users == 0 and self._open.get(log_id) is not reader:
                reader.file.close()

    async def _reader(self, log_id: int) -> _Reader:
        """Open a log. It waits for a file descriptor, if there is none, before that is an error. Raises OSError."""
        path = self.paths[log_id]
        for pause_s in (*DESCRIPTOR_PAUSES_S, None):
            try:
                reader = _Reader(self._disk.open(path))
                break
            except OSError as error:
                if pause_s is None or not lacks_descriptors(error):
                    raise
            self._close_some(len(self._open) // 2)
            await asyncio.sleep(pause_s)
            if log_id in self._open:
                return self._open[log_id]
        if log_id in self.paths:  # otherwise the log was dropped meanwhile: the reader serves this one read
            self._open[log_id] = reader
            self._close_some(self._open_files)
        return reader

    def _close_some(self, kept: int) -> None:
        """Close what was not read for longest, so that no more than `kept` are open."""
        while len(self._open) > kept:
            _, reader = self._open.popitem(last=False)
            if reader.users == 0:
                reader.file.close()

    def drop(self, log_id: int) -> list[str]:
        """Forget a log whose records are not read any more, and return its files' paths. Reads under way still end."""
        reader = self._open.pop(log_id, None)
        if reader is not None and reader.users == 0:
            reader.file.close()
        path = self.paths.pop(log_id)
        return [path, f"{path.removesuffix('.log')}.idx"]

    def halt(self) -> None:
        """Send no more pieces to the files, and report no failure; what waits for them is cancelled."""
        self.error = self.error or BookieFailedError("the entry logs are closed")
        flushes, self._flushes = self._flushes, []
        for future in (*(flush.done for flush in flushes), *self._space_waiters):
            future.cancel()

    def close(self) -> None:
        """Close all files. No call may be under way."""
        for log in self.writing.values():
            if log.file is not None:
                log.file.close()
        for reader in self._open.values():
            reader.file.close()
        self._open.clear()


class _Reader:
    """A log opened for reading, through the page cache."""

    __slots__ = ("file", "users")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.users = 0


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
