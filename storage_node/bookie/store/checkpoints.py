"""Checkpoints: what makes the journal's older part unnecessary.

The file `checkpoint` holds what the node knew, and from where on the journal has to be replayed
(docs/reference/node-files.md#checkpoint). The same file lies in every ledger directory; the one with the highest
counter is the truth. It replaces its predecessor atomically, and the journal's files are given up only when every copy
is in place (D7).

    8   magic "dlsCKPT4"
    4   flags: 1 = clean stop, nothing to replay; 2 = entries may have been lost here (I11)
    8   counter
    8   lowest entry log id never used
    4   number of journals, then the mark of each: 8 file id, 8 offset, 8 batch sequence number
    4   number of logs, then for each: 8 log id, 8 length
    4   number of ledgers, then the ledgers' states
    4   number of logs of which entries are lost, then for each: 8 log id
    4   number of ledgers that were fenced when they were deleted, then for each: 8 ledger id, 8 when (ms)
    4   CRC-32 of everything before

A checkpoint is taken in this order, and if any step fails the marks stay where they were:

    1. in one step: end every journal's batch (the marks), note how long each log is, take the ledgers' states
    2. write the logs up to there, from every slab
    3. fdatasync every log, then append and fdatasync its sidecar, then the directories
    4. write the checkpoint file into **every** ledger directory (D7)
    5. give up journal files below the marks, and the logs in which nothing was live at step 1

A log is left out of the checkpoint before its files go: a crash between leaves a file that no checkpoint knows, which
the next start removes. What was copied out of it by compaction was written and synced in steps 2 and 3 (D8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from struct import error as StructError

from metadata.foundation.errors import CorruptDataError
from metadata.foundation.tasks import end_tasks
from storage_node.bookie.disk.resources import NoSpaceError, needing_descriptors, needing_space
from storage_node.bookie.journal.journals import Journals
from storage_node.bookie.journal.replay import JournalMark
from storage_node.bookie.store.contents import Contents, Ledger
from storage_node.bookie.store.index import NewPlaces
from storage_node.bookie.store.log_files import LogFile, parse_log_name, sidecar_name
from storage_node.bookie.store.removal import LogRemover
from storage_node.edge import Disk
from storage_node.errors import BookieFailedError
from storage_node.protocol.digests import crc32
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint"
MAGIC = b"dlsCKPT4"
_HEAD = Struct(">8sIQQ")
_MARK = Struct(">QQQ")
_LOG = Struct(">QQ")
_COUNT = Struct(">I")
_LOST = Struct(">Q")
_GONE = Struct(">qQ")
_SUM = Struct(">I")
_CLEAN, _LOSSY = 1, 2


def missing_file_error(directories: list[str]) -> CorruptDataError:
    """Return the error for directories that have data, but no readable checkpoint."""
    return CorruptDataError(
        f"there are journal files or entry logs, but no intact file {CHECKPOINT_FILE} in any ledger directory",
        advice="The node did not start, because it cannot know what it has lost. Restore the file, or give the node "
        "up: let its ledgers be replicated elsewhere, then remove its cookie and directories",
        path=", ".join(directories),
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoded checkpoint.

    `marks` has one for each journal, `logs` gives the length up to which each log is indexed and durable, `fenced_gone`
    when (milliseconds since the epoch) a fenced ledger was deleted. `lost_logs` are logs of which entries are lost; the
    ledgers that this concerns are marked in their states.
    """

    counter: int
    marks: tuple[JournalMark, ...]
    next_log_id: int
    logs: Mapping[int, int]
    clean: bool
    lossy: bool
    fenced_gone: Mapping[int, int] = field(default_factory=dict)
    lost_logs: frozenset[int] = frozenset()


def encode(checkpoint: Checkpoint, ledgers: Iterable[bytes]) -> bytes:
    """Return the file's bytes; `ledgers` are states by `Ledger.encode`."""
    states = list(ledgers)
    flags = (_CLEAN if checkpoint.clean else 0) | (_LOSSY if checkpoint.lossy else 0)
    parts = [_HEAD.pack(MAGIC, flags, checkpoint.counter, checkpoint.next_log_id), _COUNT.pack(len(checkpoint.marks))]
    parts += [_MARK.pack(mark.file_id, mark.offset, mark.sequence) for mark in checkpoint.marks]
    parts.append(_COUNT.pack(len(checkpoint.logs)))
    parts += [_LOG.pack(log_id, length) for log_id, length in checkpoint.logs.items()]
    parts.append(_COUNT.pack(len(states)))
    gone = [_COUNT.pack(len(checkpoint.fenced_gone)), *(_GONE.pack(*pair) for pair in checkpoint.fenced_gone.items())]
    lost = [_COUNT.pack(len(checkpoint.lost_logs)), *map(_LOST.pack, sorted(checkpoint.lost_logs))]
    data = b"".join(parts + states + lost + gone)
    return data + _SUM.pack(crc32(data, 0))


def decode(data: bytes) -> tuple[Checkpoint, dict[int, Ledger]] | None:
    """Return a checkpoint and the ledgers; None where the bytes are damaged."""
    if len(data) < _SUM.size or _SUM.unpack(data[-_SUM.size :])[0] != crc32(data[: -_SUM.size], 0):
        return None
    view = memoryview(data)[: -_SUM.size]
    try:
        magic, flags, counter, next_log_id = _HEAD.unpack_from(view)
        if magic != MAGIC:
            return None
        (mark_count,) = _COUNT.unpack_from(view, _HEAD.size)
        at = _HEAD.size + _COUNT.size
        marks = tuple(JournalMark(*_MARK.unpack_from(view, at + _MARK.size * index)) for index in range(mark_count))
        at += _MARK.size * mark_count
        (log_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        logs: dict[int, int] = {}
        for _ in range(log_count):
            log_id, length = _LOG.unpack_from(view, at)
            logs[log_id] = length
            at += _LOG.size
        (ledger_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        ledgers: dict[int, Ledger] = {}
        for _ in range(ledger_count):
            ledger, at = Ledger.decode(view, at)
            ledgers[ledger.ledger_id] = ledger
        (lost_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        lost = frozenset(_LOST.unpack_from(view, at + _LOST.size * index)[0] for index in range(lost_count))
        at += _LOST.size * lost_count
        (gone_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        gone = dict(_GONE.unpack_from(view, at + _GONE.size * index) for index in range(gone_count))
    except StructError:
        return None
    clean, lossy = bool(flags & _CLEAN), bool(flags & _LOSSY)
    return Checkpoint(counter, marks, next_log_id, logs, clean, lossy, gone, lost), ledgers


@dataclass(frozen=True, slots=True)
class _KnownLogs:
    """Which logs are needed: these, and all from `below` on, which were begun meanwhile."""

    log_ids: frozenset[int]
    below: int


class Checkpointer:
    """From where must a node replay after a crash? Takes its checkpoints, one at a time. `run` once it has a journal,
    `end` before the files close.

    Args:
        contents: what is written down.
        disk: the edge.
        settings: how long from one to the next, and from one collection to the next.
        directories: the ledger directories, each of which gets every checkpoint (D7).
    """

    def __init__(self, contents: Contents, disk: Disk, settings: BookieSettings, *, directories: list[str]) -> None:
        self._contents = contents
        self._remover = LogRemover(contents.logs, disk, settings.gc_wait_time_ms)
        self._disk = disk
        self._directories = directories
        self._interval_ms = settings.flush_interval_ms
        self._journal: Journals | None = None
        self._states: dict[int, bytes] = {}
        self._counter = 0
        self.logs_known: dict[int, int] = {}
        """The logs of the last checkpoint, and how long they were."""
        self._running: asyncio.Task[None] | None = None
        self._first: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.due = asyncio.Event()
        """Set to have the next checkpoint at once."""
        self.error: BaseException | None = None
        self._unsynced: set[str] = set()
        """Directories in which names are new that no sync has made durable yet."""

    def adopt(self, found: Checkpoint, lengths: dict[int, int]) -> None:
        """Go on from what was found at start. The ledgers are those of the checkpoint and of the logs."""
        self._counter = found.counter
        self.logs_known = dict(lengths)
        for ledger in self._contents.ledgers.values():
            self._states[ledger.ledger_id] = ledger.encode()

    def begin(self, journal: Journals) -> asyncio.Task[None]:
        """Take the checkpoint of a start: it covers what was replayed, and strays can go.

        The task raises what it failed with. Where there is no space it waits for some, as every checkpoint does.
        """
        self._journal = journal
        self._first = asyncio.get_running_loop().create_task(self._begin())
        return self._first

    async def _begin(self) -> None:
        taken = await self.take()
        if self.error is not None:
            raise self.error
        if taken:
            # Step by step: a clean stop may have left what a collection had removed.
            await self._remover.remove_strays(await self._disk.submit("files", partial(self._unknown, self._known())))

    async def remove_strays(self, named: Collection[int] = ()) -> None:
        """Remove logs that no checkpoint knows. The journal must have been read whole: their records are in it, but for
        those that it only names, whose logs stay until a checkpoint covers them (I1)."""
        await self._disk.submit("files", partial(self._remove_unknown, self._known(named)))

    async def removed(self) -> None:
        """Wait until the files of logs that earlier checkpoints have given up are gone."""
        await self._remover.done()

    def _known(self, named: Collection[int] = ()) -> _KnownLogs:
        logs = self._contents.logs
        return _KnownLogs(frozenset((*self.logs_known, *logs.writing, *named)), logs.next_log_id)

    def run(self) -> None:
        """Take checkpoints from now on."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def end(self) -> None:
        """Begin no more checkpoints, and remove nothing more beside them; `take` may still be called."""
        await end_tasks([task for task in (self._first, self._ticker) if task is not None], drop_errors=True)
        self._first = self._ticker = None
        await self._remover.end()

    async def idle(self) -> None:
        """Wait for the checkpoint that is under way, if any."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _tick(self) -> None:
        """Take a checkpoint every interval, and when the journal has gone on to another file."""
        while True:
            try:
                await asyncio.wait_for(self.due.wait(), self._interval_ms / 1000)
            except asyncio.TimeoutError:
                pass
            self.due.clear()
            contents = self._contents
            if contents.uncovered and contents.logs.error is None and self._mine().error is None:
                await self.take()

    async def take(self, *, clean: bool = False) -> bool:
        """Take a checkpoint; one at a time. False: it failed, which is kept in `error` and makes the node read-only."""
        while self._running is not None:
            await asyncio.wait([self._running])
        task = asyncio.get_running_loop().create_task(self._take(clean))
        self._running = task
        task.add_done_callback(self._taken)
        await asyncio.wait([task])
        return not task.cancelled() and task.exception() is None

    def _taken(self, task: asyncio.Task[None]) -> None:
        self._running = None
        error = None if task.cancelled() else task.exception()
        if error is not None and self._contents.logs.error is None and self._mine().error is None:
            logger.error("a checkpoint failed", exc_info=error)
            self._contents.logs.give_up(error)
        self.error = self.error or error

    async def _take(self, clean: bool) -> None:
        journal, contents, logs = self._mine(), self._contents, self._contents.logs
        # One step, without an await, down to `lost`: marks, lengths, new places and states are of the same moment. An
        # entry before the marks and behind the lengths would neither be replayed nor be in the logs (I1).
        marks = journal.mark()
        written = logs.flush_target()
        lengths = logs.lengths()
        new, contents.new = contents.new, {}
        finished = [log_id for log_id, log in logs.writing.items() if logs.finished(log)]
        idle = self._idle_logs()
        self._take_states(new)
        states = list(self._states.values())
        fenced_gone = dict(contents.fenced_gone)
        lost = frozenset(contents.lost_logs)
        await written
        files = list(logs.writing.values())
        await self._with_space("entries", partial(self._sync_logs, files, lengths, new))
        await journal.landed()  # no write may be under way to a journal file that `retire` below gives up
        known = {log_id: length for log_id, length in self.logs_known.items() if log_id not in idle} | lengths
        self._counter += 1
        taken = Checkpoint(self._counter, marks, logs.next_log_id, known, clean, contents.lossy, fenced_gone, lost)
        await self._with_space("files", partial(self._write_checkpoint, taken, states))
        # Only from here on does the new checkpoint count: what it leaves out may be given up (D7, D8).
        self.logs_known = known
        for log_id in finished:
            logs.forget(log_id)
        try:
            await journal.retire(marks)
        except NoSpaceError as error:
            logger.warning("journal files that are needed no more go with the next checkpoint: %s", error)
        await self._remove_logs(idle)

    async def _with_space(self, pool: str, call: Callable[[], None]) -> None:
        """Run a call, again if the disk was full: each of them can be done over from its beginning."""
        logs = self._contents.logs
        while True:
            try:
                await self._disk.submit(pool, call)
                return
            except NoSpaceError as error:
                if not logs.wait_for_space(error):
                    raise
                await logs.space()

    def _idle_logs(self) -> dict[int, int]:
        """Return the logs, and their lengths, in which nothing is live: never one that is written to, or not all
        synced.

        A damaged log stays while there is any ledger of which it might hold something.
        """
        contents = self._contents
        oldest = (
            min((ledger.born[0] for ledger in contents.ledgers.values()), default=None) if contents.damaged else None
        )
        damaged = {log_id for log_id in contents.damaged if oldest is not None and oldest <= log_id}
        kept = contents.logs.writing.keys() | damaged
        return {
            log_id: length
            for log_id, length in self.logs_known.items()
            if log_id not in kept and contents.live.live(log_id) == 0
        }

    @property
    def can_free(self) -> bool:
        """True if a checkpoint would remove a log."""
        return bool(self._idle_logs())

    async def _remove_logs(self, idle: dict[int, int]) -> None:
        """Remove the files of these logs: the checkpoint without them is in every directory."""
        for log_id, length in idle.items():
            self._contents.live.forget(log_id)
            self._contents.damaged.discard(log_id)
            self._contents.lost_logs.discard(log_id)
            self._contents.stats.logs_deleted += 1
            self._contents.stats.bytes_freed += length
        # A file that stays for a while is a stray: no checkpoint knows it, and the next start removes it.
        await self._remover.remove(idle)

    def _mine(self) -> Journals:
        if self._journal is None:
            raise BookieFailedError("the storage is not started")
        return self._journal

    def _take_states(self, new: dict[int, NewPlaces]) -> None:
        """Bring the encoded states up to date for the ledgers that changed."""
        contents = self._contents
        deleted, contents.deleted = contents.deleted, set()
        for ledger_id in deleted:
            self._states.pop(ledger_id, None)
        changed, contents.changed = contents.changed, set()
        for places in new.values():
            changed.update(places.ledger_ids())
        for ledger_id in changed & contents.ledgers.keys():
            self._states[ledger_id] = contents.ledgers[ledger_id].encode()

    def _sync_logs(self, logs: list[LogFile], lengths: dict[int, int], new: dict[int, NewPlaces]) -> None:
        """Make every log and its sidecar durable (on the entry-log thread)."""
        for log in logs:
            length = lengths.get(log.log_id, 0)
            if length <= log.synced or log.file is None:
                continue
            log.sync()  # before its sidecar: that must never name records which are not on disk
            block = new.get(log.log_id, NewPlaces()).block(log.log_id, log.synced, length)
            path = f"{log.directory}/{sidecar_name(log.log_id)}"
            with needing_space(path, len(block)):
                sidecar = self._disk.open(path, create=True)
            try:
                with needing_space(path, len(block)):
                    sidecar.write_at(log.sidecar_bytes, [block])
                sidecar.sync_data()
            finally:
                sidecar.close()
            if log.synced == 0:
                self._unsynced.add(log.directory)  # kept over a want of space, after which this log is passed over
            log.sidecar_bytes += len(block)
            log.synced = length
        # The name of a new log is durable before any checkpoint names the log.
        for directory in sorted(self._unsynced):
            with needing_descriptors(directory):
                self._disk.sync_directory(directory)
            self._unsynced.discard(directory)

    def _write_checkpoint(self, taken: Checkpoint, states: list[bytes]) -> None:
        """Write the checkpoint into every directory, or it does not count (D7) (on the files thread)."""
        data = encode(taken, states)
        for directory in self._directories:
            path = f"{directory}/{CHECKPOINT_FILE}"
            with needing_space(path, len(data)):  # a file of its own until it is whole and synced: to be begun again
                self._disk.write_file(path, data)

    def _remove_unknown(self, known: _KnownLogs) -> None:
        """Remove logs that no checkpoint knows, at once (on the files thread)."""
        for path in self._unknown(known):
            self._disk.remove(path)

    def _unknown(self, known: _KnownLogs) -> list[str]:
        """Return the files of logs that no checkpoint knows (on the files thread)."""
        found = list[str]()
        for directory in self._directories:
            for name in self._disk.list_directory(directory):
                log_id = parse_log_name(name) or parse_log_name(name, ".idx")
                if log_id is not None and log_id < known.below and log_id not in known.log_ids:
                    found.append(f"{directory}/{name}")
        return found
