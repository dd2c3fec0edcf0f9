"""File descriptors of a node's process: how many there may be, what files need of them, and what is left for clients.

Without a bound, a thousand idle connections would take what the journal needs to go on in its next file. So the soft
limit is raised to the hard one at start, connections get what files do not need (`Admission` keeps to it), and the disk
keeps a few descriptors in reserve (`SpareDescriptors`) for the moment at which the last one was taken by others.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from metadata.foundation.errors import check
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

T = TypeVar("T")

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
HIGHEST_LIMIT: Final = 1 << 20
"""More than this is not asked for, whatever the hard limit is."""
BASE: Final = 128
"""Standard streams, the loop's own, listeners, ZooKeeper's sessions, name look-ups, auto-recovery's connections."""
A_JOURNAL: Final = 8
"""Lock, current file, next one, those that no checkpoint covers yet, and the directory while it is synced."""
A_DIRECTORY: Final = 8
"""Lock, the logs that are written, a sidecar, a checkpoint, a log that is scanned or copied."""
READ_FILES: Final = 256
"""Logs kept open for reading, where there are descriptors enough; a part of that where there are few."""
SPARE: Final = 8
HTTP_CONNECTIONS: Final = 64
"""Connections to the HTTP endpoints, at most."""
FEWEST_CONNECTIONS: Final = 16


def raise_limit() -> tuple[int, int]:
    """Raise this process's soft limit to the hard one: (before, now)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else min(hard, HIGHEST_LIMIT)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft, soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, wanted


def current_limit() -> int:
    """Descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HIGHEST_LIMIT if soft == resource.RLIM_INFINITY else min(soft, HIGHEST_LIMIT)


def read_files(limit: int) -> int:
    """How many logs may be open for reading under such a limit."""
    return max(min(READ_FILES, limit // 8), 1)


def reserved(settings: BookieSettings, limit: int) -> int:
    """Descriptors that connections of clients must leave."""
    files = A_JOURNAL * len(settings.journal_directories) + A_DIRECTORY * len(settings.ledger_directories)
    http = HTTP_CONNECTIONS if settings.http_server_enabled else 0
    return BASE + SPARE + files + http + read_files(limit)


def connection_limit(settings: BookieSettings, limit: int) -> int:
    """Connections that clients may have: bookieMaxConnections, or as many as the descriptors allow.

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
