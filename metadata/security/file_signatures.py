"""`FileSignature`: has a file changed since it was read? One `stat` tells, unless the file was changed just now.

Fault model: a file may be written in place or replaced, by people and tools, at any moment; its rights may be mended
without a change of its content. Two changes within one tick of a file system's clock look like one, so that a file is
`settled` only once its last change is longer ago than any such tick.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

SETTLED_S: Final = 2.0
"""Clocks of file systems are coarse: ticks of 4 ms on Linux, of 2 s on FAT."""


class FileSignature(NamedTuple):
    """Has a file changed since?"""

    modified_ns: int
    changed_ns: int
    """Of the inode, too: rights that are mended do not change a file's content. No program can set it back."""
    size: int
    inode: int


def file_signature(path: str | os.PathLike[str]) -> FileSignature | None:
    """Return what tells a file that was changed from what it was; None: there is no such file, or none to be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileSignature(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def are_settled(signatures: Iterable[FileSignature | None], now_s: float) -> bool:
    """Return whether another change of these files would show in their signatures.

    Args:
        now_s: when they were looked at, seconds since the epoch.
    """
    newest_ns = max((one.changed_ns for one in signatures if one is not None), default=0)
    return now_s - newest_ns / 1e9 > SETTLED_S
