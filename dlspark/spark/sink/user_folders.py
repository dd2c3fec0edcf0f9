"""`own_folder`: a directory for this user alone, which each process of the user finds, and no other user can take.

    $XDG_RUNTIME_DIR/dlspark                where that directory is the user's own and closed to others
    <temporary directory>/dlspark-<uid>     else, unless another user was first
    <temporary directory>/dlspark-<uid>-*   else: a name that nobody could guess, and that is searched for

The directory of temporary files belongs to all users, and a name in it to whoever was first. So nothing that is found
is trusted by its name: it must be a directory (no link), of this user, closed to all others. What these three say of
it, nobody else can bring about, nor take away: in a directory with the sticky bit only the owner renames or removes.

Two processes that make the third kind in the same moment may each have its own; the next one takes the first by name.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from metadata.foundation.private_files import DIRECTORY_MODE

RUNTIME_VARIABLE: Final = "XDG_RUNTIME_DIR"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def own_folder() -> Path:
    """The directory that this process uses; it is made if there is none. Raises OSError where none can be made."""
    for path in _by_name():
        with suppress(OSError):  # also where it is there already, whoever has it
            os.mkdir(path, DIRECTORY_MODE)
        if is_private(path):
            return path
    found = next(_by_search(), None)
    return found if found is not None else Path(tempfile.mkdtemp(prefix=f"{_name()}-"))


def own_folders() -> list[Path]:
    """All that are there: other processes of this user may have another environment. Raises OSError."""
    return [path for path in (*_by_name(), *_by_search()) if is_private(path)]


def is_private(path: Path) -> bool:
    """Whether this is a directory of this user, closed to all others."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & _OTHERS


def _name() -> str:
    return f"dlspark-{os.getuid()}"


def _by_name() -> Iterator[Path]:
    runtime = os.environ.get(RUNTIME_VARIABLE)
    # Where the variable came along from another user (sudo, su), the directory is that one's.
    if runtime and is_private(Path(runtime)):
        yield Path(runtime) / "dlspark"
    yield _temporary() / _name()


def _by_search() -> Iterator[Path]:
    """Those whose names were made up, by name. Raises OSError: what cannot be listed would never be found again."""
    names = sorted(name for name in os.listdir(_temporary()) if name.startswith(f"{_name()}-"))
    yield from (path for path in (_temporary() / name for name in names) if is_private(path))


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


class ShortPath:
    """A path of a socket that the kernel takes, however long the real one is: by way of its directory, held open."""

    LIMIT: Final = 100
    """Bytes: the kernel takes some 108."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the directory is gone, or where there is no such way (Linux has it)."""
        self.text = os.fspath(path)
        self._directory = -1
        if len(os.fsencode(path)) > self.LIMIT:
            if not os.path.isdir("/proc/self/fd"):
                raise OSError(errno.ENAMETOOLONG, "too long for a socket", self.text)
            self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.text = f"/proc/self/fd/{self._directory}/{path.name}"

    def close(self) -> None:
        """The path is good no longer. Idempotent."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def __enter__(self) -> str:
        return self.text

    def __exit__(self, *_: object) -> None:
        self.close()
