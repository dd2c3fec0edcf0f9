"""`LogRemover`: gives the space of logs that are needed no more back to the file system, a step at a time.

A file system that is mounted with `discard` tells its disk what became free, and a disk may write nothing meanwhile:
where three nodes removed 8 GB at once, no entry was acknowledged for a second. So a large file is cut off from its end,
step by step, before it goes. All steps together take most of the time until the next collection brings more, or less.

No checkpoint knows these logs any more (D8). What a crash or the end of the node leaves of them, whole or cut off, is a
stray, which the next start removes. A file that is read is not cut off: reads under way still end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from metadata.foundation.tasks import end_tasks
from storage_node.bookie.disk.resources import lacks_descriptors
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.edge import Disk
from storage_node.settings.bookie import BookieSettings

STEPS_OF_A_LOG: Final = 16
"""A full log goes in so many: of 1 GB, as by default, 64 MB each."""
LEAST_STEP_BYTES: Final = 64 << 20
"""So much is no burden for a disk."""
LONGEST_PAUSE_S: Final = 0.25
"""Between two steps, also where there is time for more: a full log is gone in four seconds; space may be wanted."""
SHARE: Final = 0.8
"""Of the time from one collection to the next."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unneeded:
    """A file that is to go, and how long it may still be."""

    log_id: int
    length: int


class LogRemover:
    """Removes the files of logs. Everything runs on one loop; `end` comes before the disk closes.

    Args:
        logs: know whether a log is read now.
        disk: the edge.
        settings: how large a log is, and how long it is from one collection to the next.
    """

    def __init__(self, logs: EntryLogs, disk: Disk, settings: BookieSettings) -> None:
        self._logs = logs
        self._disk = disk
        self._step_bytes = max(LEAST_STEP_BYTES, settings.log_size_limit // STEPS_OF_A_LOG)
        self._interval_s = settings.gc_wait_time_ms / 1000
        self._left: dict[str, _Unneeded] = {}
        self._going_on: asyncio.Task[None] | None = None
        self._ended = False

    async def remove(self, lengths: Mapping[int, int]) -> None:
        """Drop these logs and begin to remove their files, and those that could not be removed before; a step's worth
        is gone on return. `lengths`: of the logs, by their ids."""
        for log_id, length in lengths.items():
            for path in self._logs.drop(log_id):
                self._left[path] = _Unneeded(log_id, length)
        if not self._left:
            return
        failed = await self._step(())
        if self._left.keys() > failed and self._going_on is None and not self._ended:
            self._going_on = asyncio.get_running_loop().create_task(self._go_on(failed))
            self._going_on.add_done_callback(self._gone_on)

    async def end(self) -> None:
        """Begin no further step; what is left is the next start's."""
        self._ended = True
        if self._going_on is not None:
            await end_tasks([self._going_on], drop_errors=True)

    async def _go_on(self, failed: set[str]) -> None:
        """Remove what is left, but for what fails: that is tried again with the next logs."""
        while self._left.keys() > failed:
            await asyncio.sleep(self._pause_s())
            failed |= await self._step(failed)

    def _gone_on(self, _: asyncio.Task[None]) -> None:
        self._going_on = None

    def _pause_s(self) -> float:
        steps = sum(unneeded.length for unneeded in self._left.values()) / self._step_bytes
        return min(LONGEST_PAUSE_S, SHARE * self._interval_s / max(steps, 1.0))

    async def _step(self, besides: Collection[str]) -> set[str]:
        """Remove files, or cut one off, until a step's bytes are free. Returns those for which that failed."""
        files = [
            (path, self._logs.is_read(unneeded.log_id))
            for path, unneeded in sorted(self._left.items())
            if path not in besides
        ]
        lengths, failed = await self._disk.submit("files", partial(self._free, files))
        for path, length in lengths.items():
            if not length:
                self._left.pop(path, None)
            elif path in self._left:
                self._left[path].length = length
        return failed

    def _free(self, files: Sequence[tuple[str, bool]]) -> tuple[dict[str, int], set[str]]:
        """Free a step (on the files thread): how long the files are since, and those that failed."""
        lengths, failed = dict[str, int](), set[str]()
        budget = self._step_bytes
        for path, is_read in files:
            try:
                size = self._size(path)
                if size <= budget:
                    self._disk.remove(path)
                    lengths[path] = 0
                    budget -= size
                elif not is_read:
                    lengths[path] = size - budget
                    self._cut(path, size - budget)
                    break
            except OSError as error:
                logger.error("%s is not needed any more, but cannot be removed: %s", path, error)
                failed.add(path)
        return lengths, failed

    def _size(self, path: str) -> int:
        """Return how long a file is; 0 where it is missing, or goes whole, for want of a descriptor."""
        try:
            file = self._disk.open(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or lacks_descriptors(error):
                return 0
            raise
        try:
            return file.size()
        finally:
            file.close()

    def _cut(self, path: str, length: int) -> None:
        file = self._disk.open(path)
        try:
            file.truncate(length)
        finally:
            file.close()
