"""The files the journal writes into: written before use, used again afterwards, so that a commit allocates nothing."""

from __future__ import annotations

import logging

from metadata.errors import check
from storage_node.bookie.journal_format import JournalOwner, file_header, file_name, parse_file_name
from storage_node.bookie.slabs import BLOCK, aligned_memory
from storage_node.bookie.space import NoSpaceError, needing_descriptors, needing_space
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

    def __init__(
        self, disk: Disk, directory: str, owner: JournalOwner, *, step_bytes: int, max_bytes: int, spares: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._step_bytes = step_bytes
        self.max_bytes = max_bytes
        self._spares = spares
        self._zeros = memoryview(aligned_memory(ZERO_BYTES))
        self._header = memoryview(aligned_memory(BLOCK))

    def open_next(self, file_id: int) -> JournalFile:
        """A file with its header on disk, and its name durable. Raises OSError (NoSpaceError: nothing was left)."""
        path = self._path(file_name(file_id))
        with needing_descriptors(path):
            names = self._disk.list_directory(self._directory)
            check(file_name(file_id) not in names, "a journal file id was used twice")
            spares = (name for name in names if name.startswith(SPARE_PREFIX))
            spare = next((name for name in spares if self._was_prepared(name)), None)
            ready = self._create(path, file_id) if spare is None else self._reuse(spare, path, file_id)
        try:
            with needing_descriptors(path):
                self._disk.sync_directory(self._directory)
        except NoSpaceError:  # nothing is in it, and its name is to be given again
            ready.file.close()
            self._disk.remove(path)
            raise
        return ready

    def _was_prepared(self, spare: str) -> bool:
        """False for what a crash left in the middle of `_create`: it is removed. A file that a mark names has more than
        its header, or a start takes it for one that was cut off (I11)."""
        path = self._path(spare)
        file = self._disk.open(path)
        try:
            prepared = file.size() > BLOCK
        finally:
            file.close()
        if not prepared:
            self._disk.remove(path)
        return prepared

    def _reuse(self, spare: str, path: str, file_id: int) -> JournalFile:
        """A file that was written before, under its new name."""
        ready = JournalFile(self._disk.open(self._path(spare), direct=True), file_id, 0)
        self._begin(ready)
        ready.file.sync_data()
        self._disk.rename(self._path(spare), path)
        return ready

    def _create(self, path: str, file_id: int) -> JournalFile:
        """A new file; none where there is no space for its beginning."""
        file: DiskFile | None = None
        try:
            with needing_space(path, BLOCK + self._step_bytes):
                file = self._disk.open(path, create=True, direct=True)
                ready = JournalFile(file, file_id, 0)
                self._begin(ready)
            self.prepare(ready)
        except NoSpaceError:
            if file is not None:
                file.close()
                self._disk.remove(path)
            raise
        return ready

    def _begin(self, ready: JournalFile) -> None:
        self._header[:] = file_header(ready.file_id, self._owner)
        ready.file.write_at(0, [self._header])
        ready.prepared = ready.file.size() & -BLOCK

    def prepare(self, journal_file: JournalFile) -> None:
        """Write the next step of the file with zeros, durably. The journal must not write there meanwhile.

        NoSpaceError: the step can be tried again from its beginning.
        """
        offset = journal_file.prepared
        end = min(offset + self._step_bytes, self.max_bytes)
        with needing_space(journal_file.file.path, end - offset):
            while offset < end:
                size = min(ZERO_BYTES, end - offset)
                journal_file.file.write_at(offset, [self._zeros[:size]])
                offset += size
        journal_file.file.sync_data()
        journal_file.prepared = max(journal_file.prepared, end)

    def retire(self, below: int) -> None:
        """Files with ids below `below` are needed no more: keep some as spares, delete the rest. NoSpaceError: nothing
        was done, for want of descriptors."""
        with needing_descriptors(self._directory):
            names = self._disk.list_directory(self._directory)
        spares = sum(name.startswith(SPARE_PREFIX) for name in names)
        for name in names:
            file_id = parse_file_name(name)
            if file_id is None or file_id >= below:
                continue
            if spares < self._spares:
                self.spare(file_id)
                spares += 1
            else:
                self._disk.remove(self._path(name))
        logger.debug("journal files below %016x were retired", below)

    def spare(self, file_id: int) -> None:
        """Keep a file whose contents are needed no more, to be used again."""
        self._disk.rename(self._path(file_name(file_id)), self._path(f"{SPARE_PREFIX}{file_id:016x}.log"))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
