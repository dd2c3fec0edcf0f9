"""`WatchedFile`: a properties file that is checked again and again while the program runs.

Fault model: the file is written by people and tools, at any moment and in any way. It may be half written, unreadable,
gone, or nonsense. What was last read and understood stays in force until something else was read and understood
whole; a file that cannot be used is reported once, not at every look.

The content itself is compared, not its time: two writes within one tick of a file system's clock have the same time,
and a restored file an older one. New content counts when a second look a moment later finds the same, so that a file
written in place is not read in its middle; a file that is renamed into its place is safe anyway. Only the first
reading takes the file as it is, since a caller waits for it; the next look finds what was missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from dlspark.core.metrics.structured_logging import about
from dlspark.errors import SettingsError
from metadata.foundation.properties import parse_properties, read_if_exists

T = TypeVar("T")
_log = logging.getLogger(__name__)

SETTLE_S: Final = 0.2
"""The time between the two looks at new content, in seconds."""
REJECTED: Final = "configuration-file-rejected"
"""Counts contents that could not be used."""

ReadFile: TypeAlias = Callable[[Path], Awaitable[bytes | None]]
"""Reads a file; None if there is none. May raise OSError."""


async def read_in_thread(path: Path) -> bytes | None:
    """Read a file in a thread, so that a file system that hangs does not stop the event loop."""
    return await asyncio.to_thread(read_if_exists, path)


class WatchedFile(Generic[T]):
    """A file and what it means: `meaning` is made of its properties by a function that refuses what it cannot use."""

    def __init__(
        self,
        path: Path,
        understand: Callable[[Mapping[str, str]], T],
        counters: Counter[str],
        read: ReadFile = read_in_thread,
    ) -> None:
        self.path = path
        self.meaning: T | None = None
        """The meaning of the file when it was last understood; None where the file did not exist."""
        self._understand = understand
        self._counters = counters
        self._read = read
        self._seen: bytes | str | None = None

    async def load(self) -> None:
        """Read the file for the first time. Raises SettingsError if it cannot be used; it may be missing."""
        seen = await self._look()
        self.meaning = self._interpret(seen)
        self._seen = seen

    async def refresh(self) -> bool:
        """Look again; True if it means something else now. What cannot be used is reported, and changes nothing."""
        seen = await self._look()
        if seen == self._seen:
            return False
        await asyncio.sleep(SETTLE_S)
        if await self._look() != seen:
            return False  # It is being written; the next look will find it whole.
        self._seen = seen  # Before it is understood: content that cannot be used is reported once.
        try:
            meaning = self._interpret(seen)
        except SettingsError as error:
            self._counters[REJECTED] += 1
            _log.warning(
                "%s cannot be used, what was read before stays in force: %s",
                self.path,
                error,
                extra=about(path=str(self.path)),
            )
            return False
        changed = meaning != self.meaning
        self.meaning = meaning
        return changed

    async def _look(self) -> bytes | str | None:
        """Return the content, None without a file, or what is wrong with it."""
        try:
            return await self._read(self.path)
        except OSError as error:
            return str(error)

    def _interpret(self, seen: bytes | str | None) -> T | None:
        if seen is None:
            return None
        if isinstance(seen, str):
            raise SettingsError(f"the settings file {self.path} cannot be read: {seen}", advice="Correct the file")
        try:
            return self._understand(parse_properties(seen, self.path, SettingsError))
        except SettingsError as error:
            if str(self.path) in error.message:
                raise
            raise SettingsError(f"in {self.path}: {error.message}", advice=error.advice) from error
