"""The files of entry logs: their names, and the one that is written to, whose syncs are final where they fail."""

from __future__ import annotations

from storage_node.bookie.disk.resources import needing_descriptors, needing_space
from storage_node.edge import Disk, DiskFile


def log_name(log_id: int) -> str:
    """Return the file name of a log."""
    return f"{log_id:016x}.log"


def sidecar_name(log_id: int) -> str:
    """Return the file name of a log's sidecar, in the same directory."""
    return f"{log_id:016x}.idx"


def parse_log_name(name: str, suffix: str = ".log") -> int | None:
    """Return the id in a log's (or sidecar's) name, None for other files."""
    if len(name) != 20 or not name.endswith(suffix):
        return None
    try:
        return int(name[:16], 16)
    except ValueError:
        return None


class LogFile:
    """Which log is being written, and where?

    Args:
        log_id: the number in its name.
        directory: the ledger directory that it is in.
    """

    __slots__ = (
        "directory",
        "file",
        "length",
        "log_id",
        "named",
        "on_disk",
        "path",
        "sidecar_bytes",
        "sync_error",
        "synced",
        "written",
    )

    def __init__(self, log_id: int, directory: str) -> None:
        self.log_id = log_id
        self.directory = directory
        self.path = f"{directory}/{log_name(log_id)}"
        self.file: DiskFile | None = None
        self.length = 0
        """Bytes appended, in memory or in the file."""
        self.synced = 0
        """Bytes that the last checkpoint covered."""
        self.sidecar_bytes = 0
        self.written = 0
        """Bytes in the file. This and the next three are the entry-log thread's."""
        self.on_disk = 0
        """Of those the ones that a sync has made durable."""
        self.named = False
        """Its name is durable, so that a journal may name it: then it is missing only where it was lost."""
        self.sync_error: OSError | None = None

    def name(self, disk: Disk) -> None:
        """Make the file, and its name durable (on the entry-log thread). Raises OSError."""
        with needing_space(self.path, 0):
            if self.file is None:
                self.file = disk.open(self.path, create=True, direct=True)
        with needing_descriptors(self.path):  # no more than that: a sync that failed for lack of space has failed
            disk.sync_directory(self.directory)
        self.named = True

    def write(self, disk: Disk, offset: int, piece: memoryview) -> None:
        """Write the next bytes (on the entry-log thread). Raises OSError."""
        with needing_space(self.path, len(piece)):
            if self.file is None:
                self.file = disk.open(self.path, create=True, direct=True)
            self.file.write_at(offset, [piece])
        self.written = offset + len(piece)

    def sync(self) -> None:
        """Make what is written durable (on the entry-log thread). Raises OSError, and from then on always."""
        # Also for a checkpoint behind a failed sync of a batch: the kernel may have dropped the pages, and would
        # report success without them (I1).
        if self.sync_error is not None:
            raise self.sync_error
        if self.file is not None and self.on_disk < self.written:
            try:
                self.file.sync_data()
            except OSError as error:
                self.sync_error = error
                raise
            self.on_disk = self.written
