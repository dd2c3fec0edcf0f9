"""`LogRemover`: gives the space of logs that are needed no more back to the file system, a step at a time.

A file system that is mounted with `discard` tells its disk what became free, and a disk may write nothing meanwhile:
where three nodes removed 8 GB at once, no entry was acknowledged for a second. So a large file is cut off from its end,
step by step, before it goes. The steps are so far apart that what there is takes most of the time until the next
collection brings more, or less.

No checkpoint knows these logs any more (D8). What a crash or the end of the node leaves of them, whole or cut off, is a
stray, which the next start removes. A file that is read is not cut off: reads under way still end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from metadata.foundation.tasks import end_tasks
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.edge import Disk

STEP_BYTES: Final = 64 << 20
STEP_FILES: Final = 256
LONGEST_PAUSE_S: Final = 0.25
"""Between two steps, also where there is time for more: 256 MB/s at least, for somebody may wait for the space."""
SHORTEST_PAUSE_S: Final = 0.01
SHARE: Final = 0.8
"""Of the time from one collection to the next."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unneeded:
    """A file that is to go, and how long it may still be."""

    log_id: int | None
    """Of a log that may be read now; None: nobody knows the file."""
    length: int


class LogRemover:
    """Removes the files of logs. Everything runs on one loop; `end` comes before the disk closes.

    Args:
        logs: know whether a log is read now.
        disk: the edge.
        interval_ms: from one collection to the next.
    """

    def __init__(self, logs: EntryLogs, disk: Disk, interval_ms: int) -> None:
        self._logs = logs
        self._disk = disk
        self._interval_s = interval_ms / 1000
        self._left: dict[str, _Unneeded] = {}
        self._failed: dict[str, _Unneeded] = {}
        """Tried again with the next logs."""
        self._pause_s = LONGEST_PAUSE_S
        self._going_on: asyncio.Task[None] | None = None
        self._ended = False

    async def remove(self, lengths: Mapping[int, int]) -> None:
        """Drop these logs, and begin to remove their files and those that could not be removed before. `lengths`: of
        the logs, by their ids."""
        found = dict[str, _Unneeded]()
        for log_id, length in lengths.items():
            path, sidecar = self._logs.drop(log_id)
            found[sidecar], found[path] = _Unneeded(log_id, 0), _Unneeded(log_id, length)
        failed, self._failed = self._failed, {}
        await self._begin({**failed, **found})

    async def remove_strays(self, paths: Iterable[str]) -> None:
        """Begin to remove files that no checkpoint knows."""
        await self._begin({path: _Unneeded(None, 0) for path in paths})

    async def done(self) -> None:
        """Wait until all is removed that can be, or `end` was called."""
        if self._going_on is not None:
            await asyncio.wait([self._going_on])

    async def end(self) -> None:
        """Begin no further step; what is left is the next start's."""
        self._ended = True
        if self._going_on is not None:
            await end_tasks([self._going_on], drop_errors=True)

    async def _begin(self, found: Mapping[str, _Unneeded]) -> None:
        """Take these files in; unless others are being removed, a step is done on return."""
        went_on = bool(self._left)
        self._left.update(found)
        if not self._left:
            return
        pause_s = self._pause_for(self._left.values())
        # What came before is not held up by what comes now.
        self._pause_s = min(self._pause_s, pause_s) if went_on else pause_s
        if self._going_on is None:
            await self._step()
        if self._left and self._going_on is None and not self._ended:
            self._going_on = asyncio.get_running_loop().create_task(self._go_on())
            self._going_on.add_done_callback(self._gone_on)

    async def _go_on(self) -> None:
        while self._left:
            await asyncio.sleep(self._pause_s)
            await self._step()

    def _gone_on(self, _: asyncio.Task[None]) -> None:
        self._going_on = None

    def _pause_for(self, files: Iterable[_Unneeded]) -> float:
        lengths = [unneeded.length for unneeded in files]
        steps = max(1.0, sum(lengths) / STEP_BYTES, len(lengths) / STEP_FILES)
        return max(SHORTEST_PAUSE_S, min(LONGEST_PAUSE_S, SHARE * self._interval_s / steps))

    async def _step(self) -> None:
        """Remove files, or cut one off, until a step's bytes are free."""
        files = [
            (path, unneeded.log_id is not None and self._logs.is_read(unneeded.log_id))
            for path, unneeded in islice(self._left.items(), STEP_FILES)
        ]
        lengths, failed = await self._disk.submit("files", partial(self._free, files))
        for path in failed:
            if (unneeded := self._left.pop(path, None)) is not None:
                self._failed[path] = unneeded
        for path, length in lengths.items():
            if not length:
                self._left.pop(path, None)
            elif path in self._left:
                self._left[path].length = length

    def _free(self, files: Sequence[tuple[str, bool]]) -> tuple[dict[str, int], list[str]]:
        """Free a step (on the files thread): how long files are since, and those that failed."""
        lengths, failed = dict[str, int](), list[str]()
        budget = STEP_BYTES
        for path, is_read in files:
            size = self._size(path)
            if size > budget:
                if is_read:
                    continue
                if self._cut(path, size - budget):
                    lengths[path] = size - budget
                    break
            try:
                self._disk.remove(path)
            except OSError as error:
                logger.error("%s is not needed any more, but cannot be removed: %s", path, error)
                failed.append(path)
                continue
            lengths[path] = 0
            budget -= min(size, budget)
        return lengths, failed

    def _size(self, path: str) -> int:
        """Return how long a file is; 0 where that cannot be told: it goes whole then."""
        try:
            file = self._disk.open(path)
            try:
                return file.size()
            finally:
                file.close()
        except OSError:
            return 0

    def _cut(self, path: str, length: int) -> bool:
        """Cut a file off. False: that cannot be done, and it goes whole."""
        try:
            file = self._disk.open(path)
            try:
                file.truncate(length)
            finally:
                file.close()
        except OSError as error:
            logger.warning("%s is not needed any more and goes at once: %s", path, error)
            return False
        return True
