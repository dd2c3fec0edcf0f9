"""The files the journal writes into: written before use, used again afterwards, so that a commit allocates nothing."""

from __future__ import annotations

import logging

from metadata.errors import check
from storage_node.bookie.journal_format import file_header, file_name, parse_file_name
from storage_node.bookie.slabs import BLOCK, aligned_memory
from storage_node.edge import Disk, DiskFile

logger = logging.getLogger(__name__)

SPARE_PREFIX = "spare-"
ZERO_BYTES = 1024 * 1024


class JournalFile:
    """One file in use. Bytes up to `prepared` have been written before (zeros, or an older generation)."""

    __slots__ = ("file", "file_id", "prepared")

    def __init__(self, file: DiskFile, file_id: int, prepared: int) -> None:
        self.file = file
        self.file_id = file_id
        self.prepared = prepared


class JournalFiles:
    """Creates, prepares, retires and reuses journal files. All methods block."""

    def __init__(self, disk: Disk, directory: str, *, step_bytes: int, max_bytes: int, spares: int) -> None:
        self._disk = disk
        self._directory = directory
        self._step_bytes = step_bytes
        self.max_bytes = max_bytes
        self._spares = spares
        self._zeros = memoryview(aligned_memory(ZERO_BYTES))
        self._header = memoryview(aligned_memory(BLOCK))

    def open_next(self, file_id: int) -> JournalFile:
        """A file with its header on disk, and its name durable. Raises OSError."""
        path = self._path(file_name(file_id))
        check(file_name(file_id) not in self._disk.list_directory(self._directory), "a journal file id was used twice")
        spare = next((n for n in self._disk.list_directory(self._directory) if n.startswith(SPARE_PREFIX)), None)
        if spare is not None:
            file = self._disk.open(self._path(spare), direct=True)
        else:
            file = self._disk.open(path, create=True, direct=True)
        self._header[:] = file_header(file_id)
        file.write_at(0, [self._header])
        prepared = file.size() & -BLOCK
        ready = JournalFile(file, file_id, prepared)
        if spare is None:
            self.prepare(ready)
        else:
            file.sync_data()
            self._disk.rename(self._path(spare), path)
        self._disk.sync_directory(self._directory)
        return ready

    def prepare(self, journal_file: JournalFile) -> None:
        """Write the next step of the file with zeros, durably. The journal must not write there meanwhile."""
        offset = journal_file.prepared
        end = min(offset + self._step_bytes, self.max_bytes)
        while offset < end:
            size = min(ZERO_BYTES, end - offset)
            journal_file.file.write_at(offset, [self._zeros[:size]])
            offset += size
        journal_file.file.sync_data()
        journal_file.prepared = max(journal_file.prepared, end)

    def retire(self, below: int) -> None:
        """Files with ids below `below` are needed no more: keep some as spares, delete the rest."""
        names = self._disk.list_directory(self._directory)
        spares = sum(name.startswith(SPARE_PREFIX) for name in names)
        for name in names:
            file_id = parse_file_name(name)
            if file_id is None or file_id >= below:
                continue
            if spares < self._spares:
                self._disk.rename(self._path(name), self._path(f"{SPARE_PREFIX}{file_id:016x}.log"))
                spares += 1
            else:
                self._disk.remove(self._path(name))
        logger.debug("journal files below %016x were retired", below)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
