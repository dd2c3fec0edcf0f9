"""`PlacedLogs`: the entry logs that a journal names by places, as a start or a tool reads them.

What was written once lies in its entry log alone, often beyond the length that the checkpoint gives, or in a log that
no checkpoint knows. So no log that is named here may be removed before a checkpoint covers what was replayed (I1, I11).
"""

from __future__ import annotations

from errno import ENOENT

from storage_node.bookie.journal.places import LogPlace
from storage_node.bookie.store.log_files import log_name, parse_log_name
from storage_node.edge import Disk, DiskFile
from storage_node.protocol.digests import crc32


class PlacedLogs:
    """Which records does a journal name, and in which logs?

    Args:
        disk: the edge.
        directories: the ledger directories.
    """

    def __init__(self, disk: Disk, directories: list[str]) -> None:
        self._disk = disk
        self._directories = directories
        self._paths: dict[int, str] = {}
        self.named: set[int] = set()
        """The logs of every place that was looked at."""

    def look(self) -> PlacedLogs:
        """Note which logs there are, before a new one is made: none that comes later is taken for one of these."""
        for directory in self._directories:
            for name in self._disk.list_directory(directory):
                log_id = parse_log_name(name)
                if log_id is not None:
                    self._paths[log_id] = f"{directory}/{name}"
        return self

    def read(self, place: LogPlace) -> memoryview | None:
        """Return the records; None where they do not have their sum. Raises OSError, FileNotFoundError where the log
        is missing: its name was durable before any place in it was written."""
        self.named.add(place.log_id)
        file = self._open(place.log_id)
        try:
            data = file.read_at(place.offset, place.length)
        finally:
            file.close()
        if len(data) != place.length or crc32(data, 0) != place.records_sum:
            return None
        return memoryview(data)

    def require(self, place: LogPlace) -> None:
        """Note that its log is named. Raises FileNotFoundError where it is missing."""
        self.named.add(place.log_id)
        self._path(place.log_id)

    def sync(self) -> None:
        """Make what was read survive a power failure: a process that died may have written it without a sync. Raises
        OSError."""
        for log_id in sorted(self.named):
            file = self._open(log_id)
            try:
                file.sync_data()
            finally:
                file.close()

    def _open(self, log_id: int) -> DiskFile:
        return self._disk.open(self._path(log_id))

    def _path(self, log_id: int) -> str:
        path = self._paths.get(log_id)
        if path is None:
            raise FileNotFoundError(ENOENT, "no ledger directory has this entry log", log_name(log_id))
        return path
