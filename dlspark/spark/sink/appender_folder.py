"""Where the processes that append for this user's drivers are found: a private folder for each.

    <a folder of the user's own>/                (`user_folders`)
        starting                                 locked by whoever starts such a process, or ends as one
        <key>/                                   one for each driver, namespace and settings
            socket, secret, process, output      where it listens, what it must be shown, who it is, what it prints
            session                              its session with ZooKeeper, by which others can end that

A process that was killed leaves its folder; the next one that is started for any driver removes it. Where that one
takes its place, it ends the session of the one that was killed, whose logs would be locked until the session ends by
itself. It does so only where the process, by number and time of start, does not run any more: nobody else has that
session. To end one in error would cost a process its logs, and no data: a deposed owner writes nothing (I5, I7, I20).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlspark.spark.sink.user_folders import ShortPath, own_folder, own_folders
from metadata.foundation.private_files import DIRECTORY_MODE, FILE_MODE
from metadata.foundation.processes import started

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
        """As a line of text."""
        return f"{self.pid} {self.start}"

    @classmethod
    def decode(cls, text: str) -> ProcessName:
        """The reverse. Raises ValueError."""
        pid, _, start = text.strip().partition(" ")
        return cls(int(pid), start)


def this_process() -> ProcessName:
    """The process that calls."""
    return ProcessName(os.getpid(), started(os.getpid()) or "")


def driver_process() -> ProcessName:
    """The driver that this process works for: the JVM among its ancestors, as of Spark's workers, else itself."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if name.rpartition("(")[2] == _JVM:
            return ProcessName(pid, started(pid) or "")
        pid = int(fields.split()[1])
    return this_process()


@dataclass(frozen=True, slots=True)
class AppenderFolder:
    """The folder of one process that appends."""

    path: Path

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.path / "socket"

    @property
    def secret(self) -> Path:
        """What each request has to show."""
        return self.path / "secret"

    @property
    def process(self) -> Path:
        """Who it is."""
        return self.path / "process"

    @property
    def session(self) -> Path:
        """The token of its session with ZooKeeper, a secret."""
        return self.path / "session"

    @property
    def output(self) -> Path:
        """What it prints."""
        return self.path / "output"

    @classmethod
    def of(cls, *named_by: object) -> AppenderFolder:
        """The folder that these values name. Raises OSError where there can be none for this user alone."""
        key = hashlib.sha256(repr(named_by).encode()).hexdigest()[:16]
        return cls(own_folder() / key)

    @classmethod
    def of_process(cls, pid: int) -> AppenderFolder | None:
        """The folder of the process of this number that runs; None: it has none, or it cannot be looked for."""
        try:
            folders = [cls(path) for home in own_folders() for path in home.iterdir()]
        except OSError:
            return None
        return next((one for one in folders if one.in_use() and one.named() == pid), None)

    def named(self) -> int | None:
        """The number of the process that wrote itself down here."""
        try:
            return ProcessName.decode(self.process.read_text()).pid
        except (OSError, ValueError):
            return None

    def address(self) -> ShortPath:
        """The way to the socket. Raises OSError."""
        return ShortPath(self.socket)

    def make(self) -> None:
        """Make it anew, and remove those of processes that do not run any more. Under `starting`."""
        for other in self.path.parent.iterdir():
            if other.is_dir() and not AppenderFolder(other).in_use():
                shutil.rmtree(other, ignore_errors=True)
        with suppress(FileExistsError):
            os.mkdir(self.path, DIRECTORY_MODE)

    def in_use(self) -> bool:
        """Whether the process that wrote itself down here runs."""
        try:
            return ProcessName.decode(self.process.read_text()).runs
        except (OSError, ValueError):
            return False

    def left_session(self) -> bytes:
        """The token of the session that a process has left here which does not run any more; empty: there is none.
        Under `starting`."""
        try:
            return b"" if self.in_use() else bytes.fromhex(self.session.read_text())
        except (OSError, ValueError):
            return b""

    def is_of(self, process: ProcessName) -> bool:
        """Whether this process wrote itself down here."""
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
