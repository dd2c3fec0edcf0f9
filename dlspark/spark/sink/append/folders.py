"""The private folders of the processes that append for this user's drivers, by which they are found.

    <a folder of the user's own>/                (`own_folder`)
        starting                                 locked by a process that starts such a process, or ends as one
        <key>/                                   one for each driver, namespace and settings
            socket, secret, process, output      where it listens, what it must be shown, its name, what it prints
            session                              its session with ZooKeeper, by which others can end that

A process that was killed leaves its folder; the next one that is started for any driver removes it. Where that one
takes its place, it ends the session of the one that was killed, whose logs would be locked until the session ends by
itself. It does so only where the process, by number and time of start, does not run any more: no other process has that
session. To end one in error would cost a process its logs, and no data: a deposed owner writes nothing (I5, I7, I20).

The folder of the user's own (`own_folder`) is one that each process of the user finds, and no other user can take:

    $XDG_RUNTIME_DIR/dlspark                where that directory is the user's own and closed to others
    <temporary directory>/dlspark-<uid>     else, unless another user was first
    <temporary directory>/dlspark-<uid>-*   else: a name that cannot be guessed, and that is searched for

The directory of temporary files belongs to all users, and a name in it to whoever was first. So nothing that is found
is trusted by its name: it must be a directory (no link), of this user, closed to all others. What these three say of
it, no other user can bring about, nor take away: in a directory with the sticky bit only the owner renames or removes.

Two processes that make the third kind in the same moment may each have its own; the next one takes the first by name.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.foundation.private_files import DIRECTORY_MODE, FILE_MODE
from metadata.foundation.processes import started

RUNTIME_VARIABLE: Final = "XDG_RUNTIME_DIR"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_STARTING: Final = "starting"
_MAX_ANCESTORS: Final = 16
_JVM: Final = "java"


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process of this machine: its number, and when it started."""

    pid: int
    start: str

    @property
    def runs(self) -> bool:
        """Whether it runs now."""
        return started(self.pid) == self.start

    def encode(self) -> str:
        """Return it as a line of text."""
        return f"{self.pid} {self.start}"

    @classmethod
    def decode(cls, text: str) -> ProcessName:
        """Read a process from what `encode` gave. Raises ValueError."""
        pid, _, start = text.strip().partition(" ")
        return cls(int(pid), start)


def this_process() -> ProcessName:
    """Return the process that calls."""
    return ProcessName(os.getpid(), started(os.getpid()) or "")


def driver_process() -> ProcessName:
    """Return the driver that this process works for: the JVM among its ancestors, as of Spark's workers, else
    itself."""
    return _jvm_above(os.getppid()) or this_process()


@functools.lru_cache(maxsize=1)
def _jvm_above(pid: int) -> ProcessName | None:
    """Return the nearest JVM from this process on upwards. Looked for once: while a parent lives its own stay."""
    for _ in range(_MAX_ANCESTORS):
        try:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if name.rpartition("(")[2] == _JVM:
            return ProcessName(pid, started(pid) or "")
        pid = int(fields.split()[1])
    return None


@dataclass(frozen=True, slots=True)
class AppenderFolder:
    """The folder of one process that appends."""

    path: Path

    @property
    def socket(self) -> Path:
        """The socket at which it listens."""
        return self.path / "socket"

    @property
    def secret(self) -> Path:
        """The file of the secret that each request has to show."""
        return self.path / "secret"

    @property
    def process(self) -> Path:
        """The file that says which process it is: number and time of start."""
        return self.path / "process"

    @property
    def session(self) -> Path:
        """The file of the token of its session with ZooKeeper, a secret."""
        return self.path / "session"

    @property
    def output(self) -> Path:
        """The file that it prints to."""
        return self.path / "output"

    @classmethod
    def of(cls, *named_by: object) -> AppenderFolder:
        """Return the folder that these values name. Raises OSError where there can be none for this user alone."""
        key = hashlib.sha256(repr(named_by).encode()).hexdigest()[:16]
        return cls(own_folder() / key)

    @classmethod
    def of_process(cls, pid: int) -> AppenderFolder | None:
        """Return the folder of the process of this number that runs; None: it has none, or it cannot be looked for."""
        try:
            folders = [cls(path) for home in own_folders() for path in home.iterdir()]
        except OSError:
            return None
        return next((one for one in folders if one.in_use() and one.named() == pid), None)

    def named(self) -> int | None:
        """Return the number of the process that wrote itself down here."""
        try:
            return ProcessName.decode(self.process.read_text()).pid
        except (OSError, ValueError):
            return None

    def address(self) -> ShortPath:
        """Return the way to the socket. Raises OSError."""
        return ShortPath(self.socket)

    def make(self) -> None:
        """Make it anew, and remove the folders of processes that do not run any more. Under `starting`."""
        for other in self.path.parent.iterdir():
            if other.is_dir() and not AppenderFolder(other).in_use():
                shutil.rmtree(other, ignore_errors=True)
        with suppress(FileExistsError):
            os.mkdir(self.path, DIRECTORY_MODE)

    def in_use(self) -> bool:
        """Return whether the process that wrote itself down here runs."""
        try:
            return ProcessName.decode(self.process.read_text()).runs
        except (OSError, ValueError):
            return False

    def left_session(self) -> bytes:
        """Return the token of the session that a process has left here which does not run any more; empty: there is
        none. Under `starting`."""
        try:
            return b"" if self.in_use() else bytes.fromhex(self.session.read_text())
        except (OSError, ValueError):
            return b""

    def is_of(self, process: ProcessName) -> bool:
        """Return whether this process wrote itself down here."""
        try:
            return ProcessName.decode(self.process.read_text()) == process
        except (OSError, ValueError):
            return False

    def write_private(self, path: Path, text: str) -> None:
        """Write a file of this folder, for its owner alone."""
        with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, FILE_MODE), "w") as file:
            file.write(text)

    def remove(self) -> None:
        """Remove it with all that it has."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the user's lock: one process at a time is started, or removes its folder."""
        lock = os.open(self.path.parent / _STARTING, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def own_folder() -> Path:
    """Return the directory that this process uses; it is made if there is none. Raises OSError where none can be
    made."""
    for path in _by_name():
        with suppress(OSError):  # also where it is there already, whoever has it
            os.mkdir(path, DIRECTORY_MODE)
        if is_private(path):
            return path
    found = next(_by_search(), None)
    return found if found is not None else Path(tempfile.mkdtemp(prefix=f"{_name()}-"))


def own_folders() -> list[Path]:
    """Return all such directories that are there: other processes of this user may have another environment. Raises
    OSError."""
    return [path for path in (*_by_name(), *_by_search()) if is_private(path)]


def is_private(path: Path) -> bool:
    """Return whether this is a directory of this user, closed to all others."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    # By `lstat`: a link of this user's may lead to where another user writes.
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
    """Yield the directories whose names were made up, by name. Raises OSError: what cannot be listed would never be
    found again."""
    names = sorted(name for name in os.listdir(_temporary()) if name.startswith(f"{_name()}-"))
    yield from (path for path in (_temporary() / name for name in names) if is_private(path))


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


class ShortPath:
    """A path of a socket that the kernel takes, however long the real one is: by way of its directory, held open."""

    LIMIT: Final = 100
    """Bytes: the kernel takes some 108."""

    def __init__(self, path: Path) -> None:
        """Open the way. Raises OSError where the directory is gone, or where there is no such way (Linux has it)."""
        self.text = os.fspath(path)
        self._directory = -1
        if len(os.fsencode(path)) > self.LIMIT:
            if not os.path.isdir("/proc/self/fd"):
                raise OSError(errno.ENAMETOOLONG, "too long for a socket", self.text)
            self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.text = f"/proc/self/fd/{self._directory}/{path.name}"

    def close(self) -> None:
        """Let the directory go: the path is good no longer. Idempotent."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def __enter__(self) -> str:
        return self.text

    def __exit__(self, *_: object) -> None:
        self.close()
