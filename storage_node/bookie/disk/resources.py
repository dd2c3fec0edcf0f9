"""Resources that the machine gives a node, and the meaning of a lack of them: space in its directories, descriptors for
its files.

*A write.* A disk without space is not taken for one that fails: the lack passes, and what was not written can be
written later (NoSpaceError). The same goes for what failed because the process, or the machine, had no file descriptors
left. Only a write that is tried again as a whole may be treated so. A failed sync never is: the kernel may have dropped
the pages, whatever the reason.

*Directories.* One is full when less than `minUsableSizeForEntryLogCreation` is free, or its disk is used beyond
`diskUsageThreshold`; once full it stays so until the usage is not above `diskUsageLwmThreshold`. A full journal
directory makes the node read-only; of the ledger directories either any one does (`readOnlyModeOnAnyDiskFullEnabled`)
or only all together, and then new logs go to those that have room. A disk whose usage cannot be read counts as full.

*Descriptors.* Without a bound, a thousand idle connections would take what the journal needs to go on in its next file.
So the soft limit is raised to the hard one at start (`metadata.foundation.descriptors`), connections get what files do
not need (`Admission` keeps to it), and the disk keeps a few descriptors in reserve (`SpareDescriptors`) for the moment
at which the last one was taken by others.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from metadata.foundation.errors import check
from storage_node.edge import Disk
from storage_node.errors import BookieConfigurationError, NoSpaceToStartError
from storage_node.settings.bookie import BookieSettings
from storage_node.transport.http_server import HTTP_CONNECTIONS

T = TypeVar("T")

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | OUT_OF_DESCRIPTORS
BASE: Final = 128
"""Standard streams, the loop's own, listeners, ZooKeeper's sessions, name look-ups, auto-recovery's connections."""
A_JOURNAL: Final = 8
"""Lock, current file, next one, those that no checkpoint covers yet, and the directory while it is synced."""
A_DIRECTORY: Final = 8
"""Lock, the logs that are written, a sidecar, a checkpoint, a log that is scanned or copied."""
READ_FILES: Final = 256
"""Logs kept open for reading, where there are descriptors enough; a part of that where there are few."""
SPARE: Final = 8
FEWEST_CONNECTIONS: Final = 16


def read_files(limit: int) -> int:
    """Return how many logs may be open for reading under such a limit."""
    return max(min(READ_FILES, limit // 8), 1)


def reserved(settings: BookieSettings, limit: int) -> int:
    """Return how many descriptors connections of clients must leave."""
    files = A_JOURNAL * len(settings.journal_directories) + A_DIRECTORY * len(settings.ledger_directories)
    http = HTTP_CONNECTIONS if settings.http_server_enabled else 0
    return BASE + SPARE + files + http + read_files(limit)


def connection_limit(settings: BookieSettings, limit: int) -> int:
    """Return how many connections clients may have: bookieMaxConnections, or as many as the descriptors allow.

    Raises BookieConfigurationError where there is not even room for a few.
    """
    room = limit - reserved(settings, limit)
    if room < FEWEST_CONNECTIONS:
        raise BookieConfigurationError(
            f"the process may have {limit} file descriptors, which leaves {max(room, 0)} for connections: "
            f"its files need {reserved(settings, limit)}",
            advice="Raise the limit (ulimit -n, or LimitNOFILE of the service) to 1024 at least",
        )
    wanted = settings.bookie_max_connections
    return min(wanted, room) if wanted else room


class SpareDescriptors:
    """Some descriptors held in reserve. A call that finds none takes the place of one of them."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._wanted = 0
        self._lock = threading.Lock()

    def hold(self, count: int = SPARE) -> None:
        """Hold this many from now on, as soon as there are enough."""
        with self._lock:
            self._wanted = count
            self._fill()

    def let_go(self) -> None:
        """Hold none any more."""
        with self._lock:
            self._wanted = 0
            while self._held:
                os.close(self._held.pop())

    def have(self, call: Callable[[], T]) -> T:
        """Run `call`, which opens a file, and return its result. If no descriptor is left, a spare one is given up for
        it. Raises its OSError where the spare ones are gone too."""
        while True:
            try:
                result = call()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._give_one_up():
                    raise
            else:
                if len(self._held) < self._wanted:
                    with self._lock:
                        self._fill()
                return result

    def _give_one_up(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def _fill(self) -> None:
        """Hold as many as there are; the rest comes with a later call."""
        check(self._lock.locked(), "spare descriptors changed without their lock")
        try:
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return


# ------------------------------------------------------------------------------------ space


class NoSpaceError(OSError):
    """A file could not be made or made longer, because the disk (or a quota) is full, or not be opened for lack of file
    descriptors; nothing relies on it yet.

    `filename` is the file, `needed` how many bytes were to be written there.
    """

    needed: int = 0


@contextmanager
def needing_space(path: str, needed: int) -> Iterator[None]:
    """Turn a full disk into NoSpaceError, around writes of `needed` bytes of which nothing counts before a
    later step.
    """
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
    """Turn a lack of descriptors, and only that, into NoSpaceError, around what opens files and can be repeated, but is
    not a write that may be tried again. A sync that was begun does not fail for lack of a descriptor.
    """
    try:
        yield
    except OSError as error:
        if lacks_descriptors(error) and not isinstance(error, NoSpaceError):
            raise NoSpaceError(error.errno, error.strerror or "too many open files", error.filename or path) from error
        raise


def lacks_descriptors(error: BaseException | None) -> bool:
    """Return whether there were no file descriptors left."""
    return isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS


def is_no_space(error: OSError) -> bool:
    """Return whether a full disk, a quota, or a lack of file descriptors is the reason; it may have been met anywhere,
    a sync included."""
    return error.errno in _NO_SPACE


def cannot_start_error(error: OSError, disk: Disk, directories: Sequence[str]) -> NoSpaceToStartError:
    """Return what a full disk means for a start that needed the space: `directories` are the node's."""
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
        return f"how many are free in {directory} is not known ({unknown.strerror or unknown})"


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Space:
    """One directory as of the last look."""

    path: str
    device: int = -1
    total: int = 0
    free: int = 0
    full: bool = False
    warned: bool = False
    credit: float = 0.0
    """How many logs it has had less than its share: see `choose`."""

    @property
    def usage(self) -> float:
        return 1 - self.free / max(self.total, 1)


class Spaces(NamedTuple):
    """(total, free) bytes of each directory's disk, by the directory, as of the last look."""

    journals: dict[str, tuple[int, int]]
    ledgers: dict[str, tuple[int, int]]


class Disks:
    """The directories of one node. `look` before anything else.

    Args:
        journals, ledgers: the `current` folders.
        was_full: the node was read-only when it last ran, so the low-water marks decide from the beginning.
    """

    def __init__(
        self,
        settings: BookieSettings,
        disk: Disk,
        *,
        journals: Sequence[str],
        ledgers: Sequence[str],
        was_full: bool = False,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._journals = [_Space(path, full=was_full) for path in journals]
        self._ledgers = [_Space(path, full=was_full) for path in ledgers]

    def look(self) -> None:
        """Ask for the usage of every disk now."""
        for space in (*self._journals, *self._ledgers):
            self._look_at(space)

    def _look_at(self, space: _Space) -> None:
        settings = self._settings
        try:
            space.device, space.total, space.free = self._disk.usage(space.path)
        except OSError as error:
            logger.error("the usage of %s cannot be read, it counts as full: %s", space.path, error)
            # A disk that cannot even say how full it is gets no new log.
            space.free, space.full = 0, True
            return
        # A full disk must get below a lower mark: the node would change its mode with every file otherwise.
        limit = settings.low_water_mark if space.full else settings.disk_usage_threshold
        full = space.free < settings.min_usable_size_for_entry_log_creation or space.usage > limit
        if full != space.full:
            what = "too full" if full else "no longer too full"
            logger.warning("the disk of %s is %s (%d bytes free)", space.path, what, space.free)
        warned = space.usage > settings.disk_usage_warn_threshold
        if warned and not space.warned and not full:
            logger.warning("the disk of %s fills up (%.1f %% used)", space.path, 100 * space.usage)
        space.full, space.warned = full, warned

    @property
    def full(self) -> bool:
        """The node has to be read-only."""
        enough = any if self._settings.read_only_mode_on_any_disk_full_enabled else all
        return any(space.full for space in self._journals) or enough(space.full for space in self._ledgers)

    @property
    def journal_directories(self) -> list[str]:
        """In the order of the settings: a ledger's journal is found by its number in it."""
        return [space.path for space in self._journals]

    @property
    def ledger_directories(self) -> list[str]:
        """In the order of the settings, full ones among them."""
        return [space.path for space in self._ledgers]

    @property
    def full_ledger_directories(self) -> list[str]:
        """The directories that were full at the last look; no new log begins there while another has room."""
        return [space.path for space in self._ledgers if space.full]

    @property
    def takes_high_priority(self) -> bool:
        """There is room for what recovery writes, though the node is read-only."""
        needed = self._settings.high_priority_reserve
        return max(space.free for space in self._ledgers) > needed and all(space.free for space in self._journals)

    def capacity(self) -> tuple[int, int]:
        """Return (total, free) bytes of the ledger directories' disks, each disk once."""
        # Two directories may lie on one disk, whose bytes count once: clients place ledgers by this.
        disks = {space.device: space for space in self._ledgers}
        return sum(space.total for space in disks.values()), sum(space.free for space in disks.values())

    def spaces(self) -> Spaces:
        """Return (total, free) bytes of each directory, as of the last look."""
        journals, ledgers = (
            {space.path: (space.total, space.free) for space in directories}
            for directories in (self._journals, self._ledgers)
        )
        return Spaces(journals, ledgers)

    def choose(self) -> str:
        """Return the directory for the next entry log, among those with room: each gets its share by free space, in
        turns."""
        spaces = _with_room(self._ledgers)
        free = sum(max(space.free, 1) for space in spaces)
        for space in spaces:
            # Shares instead of the emptiest one each time: writes use the bandwidth of all disks.
            space.credit += max(space.free, 1) / free
        chosen = max(spaces, key=lambda space: space.credit)
        chosen.credit -= 1
        return chosen.path


def _with_room(spaces: Sequence[_Space]) -> Sequence[_Space]:
    """Return those that are not full; all of them where none is left (recovery still writes)."""
    return [space for space in spaces if not space.full] or spaces
