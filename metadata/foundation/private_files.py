"""Files and directories that are for their owner alone: logs' contents, and secrets beside them.

The modes are given when a file is made, so that there is no moment at which others can open it; a umask can only take
more away.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

logger = logging.getLogger(__name__)

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Create a directory for this user alone, and its parents as usual; an existing one is closed to others.

    Raises OSError where it cannot be created.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        close_to_others(path)


def private_opener(path: str, flags: int) -> int:
    """Open a file that, where it is made, is for this user alone: the `opener` of `open`."""
    return os.open(path, flags, FILE_MODE)


def write_private_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file for this user alone, in the place of what was in it."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


def close_to_others(path: str | os.PathLike[str]) -> None:
    """Take what other users may do with a directory and with the files right in it.

    What cannot be changed (it belongs to another user) is left as it is, with a warning that says what to do.
    """
    closed: list[str] = []
    try:
        names = sorted(os.listdir(path))
        _close(os.fspath(path), closed)
        for name in names:
            _close(os.path.join(path, name), closed)
    except OSError as error:
        logger.warning(
            "%s may be open to other users of this machine, and that cannot be changed: %s. Give it to the user that"
            " runs this process, or close it yourself (chmod -R go-rwx)",
            path,
            error,
        )
    if closed:
        logger.warning("%s was open to other users of this machine, and is closed now (%d paths)", path, len(closed))


def _close(path: str, closed: list[str]) -> None:
    """Take group's and others' permissions of a file or directory; links are left alone, as what they point to is
    elsewhere."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if mode & _OTHERS and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
        closed.append(path)
