"""`RereadFile`: the newest good content of a file that is replaced while it is in use.

Looking costs one `stat`, so it may be done at each use, which is how a change takes effect at once and without a
restart. A file that can no longer be read leaves the content that was read before in force, and says so once for each
state of the file: a half-written file is not to lock everybody out. What was read before has users that were taken out
meanwhile, so the file is read again until it is good, though nothing of it has changed: what was missing may have been
a descriptor.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from metadata.foundation.errors import DistributedLogError
from metadata.security.file_signatures import FileSignature, are_settled, file_signature

T = TypeVar("T")
logger = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Seconds until a file is read again that looks as before: each connection asks at each look of the node."""


class RereadFile(Generic[T]):
    """What does a file say now?

    Args:
        path: the file.
        read: makes its content of it; raises DistributedLogError for what it cannot use.
        clock: seconds since the epoch.
        elapsed: seconds that never go back.

    Raises:
        DistributedLogError: what `read` raises; at the start there is no older content.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        read: Callable[[Path], T],
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._read = read
        self._clock = clock
        self._elapsed = elapsed
        self._warned = ""
        self._looked_at: FileSignature | None = None
        """The file at the last reading, good or not."""
        self._done = False
        """The content is the file's, and another change would show in its signature."""
        self._next = 0.0
        self._content = self._read_now()

    def current(self) -> T:
        """Return the content, read anew where the file has changed. Never raises."""
        signature = file_signature(self.path)
        if signature == self._looked_at and (self._done or self._elapsed() < self._next):
            return self._content
        try:
            self._content = self._read_now()
            self._warned = ""
        except DistributedLogError as error:
            self._warn(str(error))
        except Exception as error:  # the boundary: the words of what nobody expects may be the file's own
            self._warn(type(error).__name__)
        return self._content

    def _read_now(self) -> T:
        # Before the content: a change in between is seen at the next look.
        self._looked_at = file_signature(self.path)
        self._done, self._next = False, self._elapsed() + AGAIN_S
        settled = are_settled([self._looked_at], self._clock())
        content = self._read(self.path)
        self._done = settled and self._looked_at is not None
        return content

    def _warn(self, reason: str) -> None:
        said = f"{reason} {self._looked_at}"
        if said != self._warned:
            self._warned = said
            logger.warning(
                "%s has changed and cannot be used; what was read before stays in force: %s", self.path, reason
            )
