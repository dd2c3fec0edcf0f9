"""Checkpoints: what makes the journal's older part unnecessary.

In this order, and if any step fails the marks stay where they were:

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
from collections.abc import Callable
from functools import partial

from metadata.foundation.tasks import end_tasks
from storage_node.bookie.disk.space import NoSpaceError, needing_descriptors, needing_space
from storage_node.bookie.journal.journals import Journals
from storage_node.bookie.store import checkpoint as checkpoints
from storage_node.bookie.store.checkpoint import Checkpoint
from storage_node.bookie.store.contents import Contents
from storage_node.bookie.store.entry_logs import LogFile, parse_log_name, sidecar_name
from storage_node.bookie.store.index import NewPlaces
from storage_node.edge import Disk
from storage_node.errors import BookieFailedError

logger = logging.getLogger(__name__)


class Checkpointer:
    """Takes the checkpoints of one node, one at a time. `run` once it has a journal, `end` before the files close."""

    def __init__(self, contents: Contents, disk: Disk, *, directories: list[str], interval_ms: int) -> None:
        self._contents = contents
        self._disk = disk
        self._directories = directories
        self._interval_ms = interval_ms
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
        self._leftover: set[str] = set()
        """Files that are to go, and could not be removed."""

    def adopt(self, found: Checkpoint, lengths: dict[int, int]) -> None:
        """Go on from what was found at start. The ledgers are those of the checkpoint and of the logs."""
        self._counter = found.counter
        self.logs_known = dict(lengths)
        for ledger in self._contents.ledgers.values():
            self._states[ledger.ledger_id] = ledger.encode()

    def begin(self, journal: Journals) -> asyncio.Task[None]:
        """Take the checkpoint of a start: it covers what was replayed, and strays can go.

        The task raises what it failed with. Where there is no space it waits for that as every checkpoint does.
        """
        self._journal = journal
        self._first = asyncio.get_running_loop().create_task(self._begin())
        return self._first

    async def _begin(self) -> None:
        taken = await self.take()
        if self.error is not None:
            raise self.error
        if taken:
            await self.remove_strays()

    async def remove_strays(self) -> None:
        """Remove logs that no checkpoint knows. The journal must have been read whole: their records are in it."""
        known = {*self.logs_known, *self._contents.logs.writing}
        await self._disk.submit("files", partial(self._remove_unknown, known))

    def run(self) -> None:
        """Take checkpoints from now on."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def end(self) -> None:
        """Begin no more by itself."""
        await end_tasks([task for task in (self._first, self._ticker) if task is not None], drop_errors=True)
        self._first = self._ticker = None

    async def idle(self) -> None:
        """Wait for the one that is under way."""
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
        await journal.landed()
        known = {log_id: length for log_id, length in self.logs_known.items() if log_id not in idle} | lengths
        self._counter += 1
        taken = Checkpoint(self._counter, marks, logs.next_log_id, known, clean, contents.lossy, fenced_gone, lost)
        await self._with_space("files", partial(self._write_checkpoint, taken, states))
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
        """Logs, and their lengths, in which nothing is live: never one that is written to, or not all synced.

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
        """The checkpoint without these logs is in every directory: their files can go."""
        for log_id, length in idle.items():
            self._leftover.update(self._contents.logs.drop(log_id))
            self._contents.live.forget(log_id)
            self._contents.damaged.discard(log_id)
            self._contents.lost_logs.discard(log_id)
            self._contents.stats.logs_deleted += 1
            self._contents.stats.bytes_freed += length
        if self._leftover:
            self._leftover = await self._disk.submit("files", partial(self._remove_files, self._leftover))

    def _remove_files(self, paths: set[str]) -> set[str]:
        """On the files thread. What cannot be removed now is tried again later; it does no harm meanwhile."""
        left: set[str] = set()
        for path in sorted(paths):
            try:
                self._disk.remove(path)
            except OSError as error:
                logger.error("%s is not needed any more, but cannot be removed: %s", path, error)
                left.add(path)
        return left

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
        """On the entry-log thread: make every log and its sidecar durable."""
        for log in logs:
            length = lengths.get(log.log_id, 0)
            if length <= log.synced or log.file is None:
                continue
            log.file.sync_data()
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
        for directory in sorted(self._unsynced):
            with needing_descriptors(directory):
                self._disk.sync_directory(directory)
            self._unsynced.discard(directory)

    def _write_checkpoint(self, taken: Checkpoint, states: list[bytes]) -> None:
        """On the files thread: every directory, or the checkpoint does not count (D7)."""
        data = checkpoints.encode(taken, states)
        for directory in self._directories:
            path = f"{directory}/{checkpoints.FILE_NAME}"
            with needing_space(path, len(data)):  # a file of its own until it is whole and synced: to be begun again
                self._disk.write_file(path, data)

    def _remove_unknown(self, known: set[int]) -> None:
        """On the files thread."""
        for directory in self._directories:
            for name in self._disk.list_directory(directory):
                log_id = parse_log_name(name) or parse_log_name(name, ".idx")
                if log_id is not None and log_id not in known:
                    self._disk.remove(f"{directory}/{name}")
