"""Compaction: the live entries of a log that is mostly dead are copied to the end of the current one.

In this order (D8), so that at no moment the only durable copy of an entry lies in a file that is removed:

    1. each live record is read, its checksums verified, and appended to the current log; the index names the new place
    2. a checkpoint writes and syncs that log and its sidecar, and leaves the old log out of what it knows
    3. the old log's files are removed

A crash before the end of step 2 leaves the old checkpoint, which knows the old log; what was copied by then lies behind
the lengths that it knows, and does not count. Copies are not journaled: until step 2 is done the old log is the durable
place. Keys, fences and explicit LACs need no copying, since the checkpoint has them.

A read that is under way keeps the old log's file open. A record that is damaged, or cannot be read, ends the compaction
of its log, which is kept with whatever is still live in it. Collection goes on meanwhile: a log in which nothing is
live any more is left alone, for a checkpoint may have given its files up at each wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from storage_node.bookie.disk.records import ALIGN, ENTRY, HEADER_BYTES, aligned, parse_header
from storage_node.bookie.disk.resources import lacks_descriptors
from storage_node.bookie.store.checkpoints import Checkpointer
from storage_node.bookie.store.contents import Contents, Ledger
from storage_node.edge import Disk
from storage_node.protocol.digests import crc32
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

WINDOW_BYTES = 128 * 1024
"""Read at a time, and gone through in one turn of the loop."""
ROOM_RETRY_S = 0.05


class DamagedLogError(Exception):
    """A log cannot be copied: what is wrong with it, and where. Never leaves this module."""


class Throttle:
    """Lets a number of units pass a second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    async def spend(self, units: int) -> None:
        """Wait until these units may pass; the loop gets a turn in any case."""
        now = asyncio.get_running_loop().time()
        wait = max(self._free_at - now, 0.0)
        self._free_at = max(self._free_at, now) + units / self._per_second
        await asyncio.sleep(wait)


class Compactor:
    """Rewrites logs. `when_room` calls back once memory has become free."""

    def __init__(
        self,
        contents: Contents,
        checkpoints: Checkpointer,
        disk: Disk,
        settings: BookieSettings,
        *,
        directories: list[str],
        when_room: Callable[[Callable[[], None]], None],
    ) -> None:
        self._contents = contents
        self._checkpoints = checkpoints
        self._disk = disk
        self._directories = directories
        self._reserve_bytes = settings.min_usable_size_for_entry_log_creation + 2 * settings.slab_bytes
        self._slab_bytes = settings.slab_bytes
        self._checkpoint_bytes = settings.log_size_limit
        self._by_bytes = settings.is_throttle_by_bytes
        self._throttle = Throttle(
            settings.compaction_rate_by_bytes if self._by_bytes else settings.compaction_rate_by_entries
        )
        self._when_room = when_room
        self._unthrottled = 0
        """Copied since the throttle was asked last."""
        self._stopped: set[int] = set()
        """Logs with a record that cannot be read: not tried again."""

    def candidates(self, threshold: float) -> list[int]:
        """Return the logs of which less than `threshold` is live, the emptiest first; without those that are written to
        or not synced.
        """
        contents, logs = self._contents, self._contents.live.logs
        skipped = contents.logs.writing.keys() | contents.damaged | self._stopped
        found = [
            log_id
            for log_id in self._checkpoints.logs_known
            if log_id in logs and log_id not in skipped and logs[log_id].live > 0 and logs[log_id].ratio < threshold
        ]
        return sorted(found, key=lambda log_id: (logs[log_id].ratio, log_id))

    async def compact(self, threshold: float) -> int:
        """Rewrite every log of which less than `threshold` is live; how many were. Checkpoints give their files up."""
        if not await self._finish_current(threshold):
            return 0
        done = uncovered = 0
        for log_id in self.candidates(threshold):
            size = self._contents.live.live(log_id)
            if not size:
                continue  # collected while others were copied
            if self._contents.logs.error is not None or not self._has_space(size + uncovered):
                break
            if await self._rewrite(log_id):
                done += 1
            uncovered += size
            # Old logs go only with a checkpoint (D8): without one now and then, copies would lie beside all old logs.
            if uncovered >= self._checkpoint_bytes:
                if not await self._checkpoints.take():
                    return done
                await self._checkpoints.removed()  # the next ones may need that space
                uncovered = 0
        if (uncovered or self._checkpoints.can_free) and self._contents.logs.error is None:
            await self._checkpoints.take()
        return done

    async def _finish_current(self, threshold: float) -> bool:
        """Go on in a new log if the current one is mostly dead, so that it can be rewritten like the others.

        Without that, a node to which no client writes any more would keep it for ever. False: a checkpoint failed.
        """
        current = self._contents.logs.current
        usage = None if current is None else self._contents.live.logs.get(current.log_id)
        if usage is None or usage.ratio >= threshold or usage.stored - usage.live < self._slab_bytes:
            return True
        self._contents.logs.roll()
        return await self._checkpoints.take()

    def _has_space(self, size: int) -> bool:
        """Return whether there is space for the copies, which need it before they free any; new logs go to directories
        that have some.
        """
        try:
            free = {directory: self._disk.usage(directory)[2] for directory in self._directories}
        except OSError as error:
            logger.error("no compaction, the free space cannot be read: %s", error)
            return False
        roomy = {directory: left for directory, left in free.items() if left >= self._reserve_bytes}
        if not roomy or min(roomy.values()) < self._reserve_bytes + size:
            logger.warning("no compaction: a rewritten log needs %d bytes beside the reserve", size)
            return False
        current = self._contents.logs.current
        if current is not None and current.directory not in roomy:
            self._contents.logs.roll()
        return True

    async def _rewrite(self, log_id: int) -> bool:
        """Copy what is live in a log. False: it could not all be copied."""
        stats = self._contents.stats
        try:
            await self._copy(log_id)
        except (DamagedLogError, OSError) as error:
            if self._contents.live.live(log_id):  # else it was collected meanwhile, and its file may be gone
                if not lacks_descriptors(error):
                    self._stopped.add(log_id)
                stats.compactions_stopped += 1
                path = self._contents.logs.paths[log_id]
                logger.error("the compaction of %s is given up, the log is kept: %s", path, error)
                return False
        if self._contents.live.live(log_id):
            return False  # the entry logs failed, and the node takes nothing more
        stats.logs_compacted += 1
        return True

    async def _copy(self, log_id: int) -> None:
        """Go through a log, and copy the live entries. Raises DamagedLogError, OSError."""
        contents = self._contents
        length = self._checkpoints.logs_known[log_id]
        window, start, offset = memoryview(b""), 0, 0
        while contents.live.live(log_id) and contents.logs.error is None:
            if offset + HEADER_BYTES > start + len(window):
                window, start = await self._read(log_id, offset, WINDOW_BYTES, length), offset
            found = parse_header(window, offset - start)
            if found is None:
                raise DamagedLogError(f"no record begins at offset {offset}")
            kind, body_bytes, ledger_id, entry_id, total = found
            size = HEADER_BYTES + body_bytes
            if kind == ENTRY and self._owner(log_id, offset, ledger_id, entry_id) is not None:
                if offset + size > start + len(window):
                    window, start = await self._read(log_id, offset, max(size, WINDOW_BYTES), length), offset
                body = window[offset - start + HEADER_BYTES : offset - start + size]
                # A copy gets a new checksum: a damaged body copied unchecked would look intact from then on (I12).
                if len(body) != body_bytes or crc32(body, 0) != total:
                    raise DamagedLogError(f"entry {entry_id} of ledger {ledger_id} at offset {offset} is damaged")
                await self._move(log_id, offset, ledger_id, entry_id, body)
            offset += aligned(size)

    async def _read(self, log_id: int, offset: int, wanted: int, length: int) -> memoryview:
        """Return the next piece of a log of which something is live, once the throttle allows it."""
        if offset >= length:
            raise DamagedLogError("entries that should be in it were not found")
        piece = await self._contents.logs.read(log_id, offset, min(wanted, length - offset))
        # Behind the read: the log, and its file, may be gone after the wait.
        units, self._unthrottled = self._unthrottled, 0
        await self._throttle.spend(units)
        return piece

    async def _move(self, log_id: int, offset: int, ledger_id: int, entry_id: int, body: memoryview) -> None:
        """Append a copy and let the index name it, in one step with seeing that the old one is still live."""
        contents = self._contents
        # Asked again after each wait: meanwhile the ledger may be deleted, or the entry be written again.
        while (ledger := self._owner(log_id, offset, ledger_id, entry_id)) is not None and contents.logs.error is None:
            if not contents.logs.lagging and contents.append_entry(ledger, entry_id, body, False) is not None:
                contents.stats.entries_copied += 1
                contents.stats.bytes_copied += len(body)
                self._unthrottled += len(body) if self._by_bytes else 1
                return
            await self._room()

    async def _room(self) -> None:
        """Wait until memory has become free, or a little."""
        free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_room(lambda: None if free.done() else free.set_result(None))
        await asyncio.wait([free], timeout=ROOM_RETRY_S)

    def _owner(self, log_id: int, offset: int, ledger_id: int, entry_id: int) -> Ledger | None:
        """Return the ledger whose index names this record: it is live."""
        ledger = self._contents.ledgers.get(ledger_id)
        place = None if ledger is None else ledger.index.get(entry_id)
        return ledger if place is not None and place[:2] == (log_id, offset // ALIGN) else None
