"""Telling a disk without space from one that fails: the first passes, and what was not written can be written later. So
does a process, or a machine, without file descriptors.

Only a write that is tried again whole may be told apart so. A failed sync never is: the kernel may have dropped the
pages, whatever the reason.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from storage_node.bookie.disk.descriptors import OUT_OF_DESCRIPTORS
from storage_node.edge import Disk
from storage_node.errors import NoSpaceToStartError

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT}) | OUT_OF_DESCRIPTORS


class NoSpaceError(OSError):
    """A file could not be made or made longer, because the disk (or a quota) is full, or not be opened for want of file
    descriptors; nothing relies on it yet.

    `filename` is the file, `needed` how many bytes were to be written there.
    """

    needed: int = 0


@contextmanager
def needing_space(path: str, needed: int) -> Iterator[None]:
    """Around writes of `needed` bytes of which nothing counts before a later step: a full disk becomes NoSpaceError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE and not isinstance(error, NoSpaceError):
            found = NoSpaceError(error.errno, error.strerror or "no space left", error.filename or path)
            found.needed = needed
            raise found from error
        raise


@contextmanager
def needing_descriptors(path: str) -> Iterator[None]:
    """Around what opens files and can be done over, but is no write to be tried again: a lack of descriptors alone
    becomes NoSpaceError. No sync fails so: it was not begun."""
    try:
        yield
    except OSError as error:
        if lacks_descriptors(error) and not isinstance(error, NoSpaceError):
            raise NoSpaceError(error.errno, error.strerror or "too many open files", error.filename or path) from error
        raise


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether there were no file descriptors left."""
    return isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS


def is_no_space(error: OSError) -> bool:
    """Whether a full disk, a quota, or a lack of file descriptors is the reason; it may have been met anywhere, a sync
    included."""
    return error.errno in _NO_SPACE


def cannot_start(error: OSError, disk: Disk, directories: Sequence[str]) -> NoSpaceToStartError:
    """What a full disk means for a start that needed the space: `directories` are the node's."""
    if lacks_descriptors(error):
        return NoSpaceToStartError(
            f"the node did not start: there are no file descriptors left ({error})",
            advice="Nothing is lost. Raise the limit (ulimit -n, or LimitNOFILE of the service; fs.file-max for the "
            "machine), and start it again",
            path=", ".join(directories),
        )
    path = str(error.filename or "")
    directory = max((name for name in directories if path.startswith(f"{name}/")), key=len, default=path)
    needed = f"{error.needed} bytes have" if isinstance(error, NoSpaceError) else "something has"
    return NoSpaceToStartError(
        f"the node did not start: {needed} to be written, and the disk is full; "
        + "; ".join(_free(disk, name) for name in ([directory] if directory else directories)),
        advice="Nothing is lost: what the node had acknowledged is in its directories as it was. Make room on this "
        "disk, but not by removing files of the node, and start it again",
        path=directory or ", ".join(directories),
    )


def _free(disk: Disk, directory: str) -> str:
    try:
        return f"{disk.usage(directory)[2]} bytes are free in {directory}"
    except OSError as unknown:
        return f"how many are free in {directory} cannot be told ({unknown.strerror or unknown})"
