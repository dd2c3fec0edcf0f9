"""`RereadFile`: the newest good content of a file that is replaced while it is in use.

Looking costs one `stat`, so it may be done at each use, which is how a change takes effect at once and without a
restart. A file that can no longer be read leaves the content that was read before in force, and says so once for each
state of the file: a half-written file is not to lock everybody out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from metadata.foundation.errors import DistributedLogError

T = TypeVar("T")
logger = logging.getLogger(__name__)


class RereadFile(Generic[T]):
    """What does a file say now?

    Args:
        path: the file.
        read: makes its content of it; raises DistributedLogError for what it cannot use.

    Raises:
        DistributedLogError: what `read` raises; at the start there is no older content.
    """

    def __init__(self, path: str | os.PathLike[str], read: Callable[[Path], T]) -> None:
        self.path = Path(path)
        self._read = read
        self._stamp = _stamp(self.path)
        self._content = read(self.path)

    def current(self) -> T:
        """Return the content, read anew where the file has changed."""
        stamp = _stamp(self.path)  # before the content: a change in between is seen at the next look
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._read(self.path)
            except DistributedLogError as error:
                logger.warning(
                    "%s has changed and cannot be used; what was read before stays in force: %s", self.path, error
                )
        return self._content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
