"""The journal's files: their bytes (docs/reference/node-files.md#journal), and how they are made, used and used again.

A file is a header block, then batches, each beginning on a block (4096 bytes):

    file header                               batch header, 64 bytes
    0   8   magic "dlsJRNL2"                  0   8   magic "dlsBATCH"
    8   8   file id = generation              8   8   generation of the file
    16  8   the node's tag                    16  8   sequence number, one more for each batch
    24  4   which of its journals             24  8   durable through: batches up to this one were on disk
    28  4   how many it has                   32  4   total bytes of the batch, whole blocks
    32  4   CRC-32 of bytes [0, 32)           36  4   offset of its records from the batch's beginning
                                              40  4   bytes of records
                                              44  4   CRC-32 of the records
                                              48  4   CRC-32 of bytes [0, 48)

The owner is there because directories can be confused: a journal that is another node's, or another one of the same
node's, is refused, not taken for an empty one.

Files are written before use and used again afterwards, so that a commit allocates nothing. So behind the last batch
lies an older generation's, or zeros. The generation is in the header that the checksum covers: a stale batch can never
be taken for a live one. Records are those of `disk.records`.

How a torn tail differs from damage: a batch is written only after all but the one before it are durable, and its
header says so ("durable through"). A batch that cannot be read was lost in a crash if no later batch says that it had
been durable; then it was never acknowledged. Otherwise it was acknowledged, and its bytes have changed since.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from metadata.foundation.errors import check
from storage_node.bookie.disk.records import BLOCK, aligned_memory
from storage_node.bookie.disk.resources import NoSpaceError, needing_descriptors, needing_space
from storage_node.edge import Disk, DiskFile
from storage_node.protocol.digests import crc32

logger = logging.getLogger(__name__)

SPARE_PREFIX = "spare-"
ZERO_BYTES = 1024 * 1024
FILE_MAGIC = b"dlsJRNL2"
BATCH_MAGIC = b"dlsBATCH"
BATCH_HEADER_BYTES = 64
_FILE = Struct(">8sQ8sII")
_BATCH = Struct(">8sQQQIIII")
_SUM = Struct(">I")


@dataclass(frozen=True, slots=True)
class JournalOwner:
    """The owner of a journal: the node by its tag (8 bytes), and which of its journals this is."""

    tag: bytes
    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"journal {self.number + 1} of {self.count} of node {self.tag.hex()}"


def node_tag(bookie_id: str, instance_id: str | None) -> bytes:
    """Return the tag of a node: its id and its cluster's."""
    return hashlib.sha256(f"{instance_id}\n{bookie_id}".encode()).digest()[:8]


class BatchHeader(NamedTuple):
    """Which records does a batch hold, and where in its file is it (`offset`)? A tuple: one is made for each commit."""

    offset: int
    generation: int
    sequence: int
    durable_through: int
    total: int
    records_at: int
    records_length: int
    records_sum: int

    def encode(self) -> bytes:
        """Return the header's bytes, without padding."""
        start = _BATCH.pack(
            BATCH_MAGIC,
            self.generation,
            self.sequence,
            self.durable_through,
            self.total,
            self.records_at,
            self.records_length,
            self.records_sum,
        )
        return start + _SUM.pack(crc32(start, 0))


def file_header(file_id: int, owner: JournalOwner) -> bytes:
    """Return a file's first block."""
    start = _FILE.pack(FILE_MAGIC, file_id, owner.tag, owner.number, owner.count)
    return (start + _SUM.pack(crc32(start, 0))).ljust(BLOCK, b"\0")


def parse_file_header(data: bytes) -> tuple[int, JournalOwner] | None:
    """Return the file id and owner of an intact header block, else None."""
    start = data[: _FILE.size]
    if len(data) < _FILE.size + 4 or _SUM.unpack_from(data, _FILE.size)[0] != crc32(start, 0):
        return None
    magic, file_id, tag, number, count = _FILE.unpack(start)
    return (file_id, JournalOwner(tag, number, count)) if magic == FILE_MAGIC else None


def parse_batch_header(data: bytes | memoryview, at: int, offset: int, generation: int) -> BatchHeader | None:
    """Return the header at `at` of data, if there is an intact one of this generation; `offset` is its place in the
    file."""
    if data[at : at + 8] != BATCH_MAGIC:
        return None
    start = bytes(data[at : at + _BATCH.size])
    tail = bytes(data[at + _BATCH.size : at + _BATCH.size + 4])
    if len(tail) < 4 or _SUM.unpack(tail)[0] != crc32(start, 0):
        return None
    _, found, sequence, durable, total, records_at, length, total_sum = _BATCH.unpack(start)
    inside = records_at + length <= total and records_at >= BATCH_HEADER_BYTES and total % BLOCK == 0
    # Another generation: an intact batch of an earlier use of this file, which must not be replayed.
    if found != generation or not inside:
        return None
    return BatchHeader(offset, found, sequence, durable, total, records_at, length, total_sum)


def file_name(file_id: int) -> str:
    """Return the name of a journal file in use; a spare one is named differently, so that no replay reads it."""
    return f"journal-{file_id:016x}.log"


def parse_file_name(name: str) -> int | None:
    """Return the id in a journal file's name, None for other files."""
    head, tail, digits = name[:8], name[-4:], name[8:-4]
    if head != "journal-" or tail != ".log" or len(digits) != 16:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


class JournalFile:
    """How far is a journal file written?

    Args:
        file: the open file.
        file_id: the number in its name.
        prepared: bytes up to here have been written before (zeros, or an older generation).
    """

    __slots__ = ("file", "file_id", "prepared")

    def __init__(self, file: DiskFile, file_id: int, prepared: int) -> None:
        self.file = file
        self.file_id = file_id
        self.prepared = prepared


class JournalFiles:
    """Which files does a journal have, and which may be used again? Creates, prepares, retires and reuses them. All
    methods block.

    Args:
        disk: the edge.
        directory: the journal's.
        owner: the node and journal that stand in each file's header.
        step_bytes: bytes that are prepared at a time.
        max_bytes: a file's size.
        spares: retired files that are kept.
    """

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
        """Return a file with its header on disk, and its name durable. Raises OSError (NoSpaceError: nothing was
        left)."""
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
        except NoSpaceError:  # nothing is in it; removed, since the next attempt uses the same name
            ready.file.close()
            self._disk.remove(path)
            raise
        return ready

    def _was_prepared(self, spare: str) -> bool:
        """Return False for what a crash left in the middle of `_create`: it is removed. A file that a mark names has
        more than its header, or a start takes it for one that was cut off (I11)."""
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
        """Return a file that was written before, under its new name."""
        ready = JournalFile(self._disk.open(self._path(spare), direct=True), file_id, 0)
        self._begin(ready)
        # The header is durable before the file has its name. So a file in use without an intact header has lost it, and
        # a start that finds a batch in it refuses it instead of passing it over (I11).
        ready.file.sync_data()
        self._disk.rename(self._path(spare), path)
        return ready

    def _create(self, path: str, file_id: int) -> JournalFile:
        """Return a new file. NoSpaceError: there is no space for its beginning, and it was removed again."""
        file: DiskFile | None = None
        try:
            with needing_space(path, BLOCK + self._step_bytes):
                file = self._disk.open(path, create=True, direct=True)
                ready = JournalFile(file, file_id, 0)
                self._begin(ready)
            # This syncs the header, too: no batch lies in a file, and no mark names it, before its header is durable
            # (I11).
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
        """Retire files with ids below `below`: keep some as spares, delete the rest. NoSpaceError: nothing was done,
        for lack of descriptors.
        """
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
        """Keep a file whose contents are not needed any more, to be used again."""
        self._disk.rename(self._path(file_name(file_id)), self._path(f"{SPARE_PREFIX}{file_id:016x}.log"))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
