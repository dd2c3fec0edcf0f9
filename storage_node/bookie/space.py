"""Telling a disk without space from one that fails: the first passes, and what was not written can be written later.

Only a write that is tried again whole may be told apart so. A failed sync never is: the kernel may have dropped the
pages, whatever the reason.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoSpaceError(OSError):
    """A file could not be made or made longer, because the disk (or a quota) is full; nothing relies on it yet."""


@contextmanager
def needing_space() -> Iterator[None]:
    """Around writes of which nothing counts before a later step: a full disk becomes NoSpaceError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE and not isinstance(error, NoSpaceError):
            raise NoSpaceError(error.errno, error.strerror or "no space left", error.filename) from error
        raise
