"""Reading the journal at start: every record behind the checkpoint's mark, in order, or a refusal
(docs/reference/node-files.md#how-a-journal-is-read).

Never skips over damage: a torn tail (batches that a crash interrupted, and that were never answered) ends the replay; a
batch that had been durable and cannot be read any more raises JournalCorruptError, naming file and offset. So it is
with a batch that only names the place of its records in an entry log, where those do not have their sum. Starting
without it would answer "no such entry" for what was acknowledged (I11).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from storage_node.bookie.disk.records import BLOCK, PLACE, Record, scan
from storage_node.bookie.journal.files import (
    BatchHeader,
    JournalOwner,
    file_name,
    parse_batch_header,
    parse_file_header,
    parse_file_name,
)
from storage_node.bookie.journal.places import PLACE_BYTES, LogPlace, PlacedRecords
from storage_node.edge import Disk, DiskFile
from storage_node.errors import JournalCorruptError
from storage_node.protocol.digests import crc32

logger = logging.getLogger(__name__)

SCAN_BYTES = 4 * 1024 * 1024
FIRST_BATCH_AT = BLOCK


@dataclass(frozen=True, slots=True)
class JournalMark:
    """Where does replay begin? Everything up to batch `sequence` is in the entry logs; later batches lie at or behind
    (`file_id`, `offset`).
    """

    file_id: int
    offset: int
    sequence: int


class JournalReader:
    """Which records must be taken again after a crash?

    Args:
        disk: the edge.
        directory: the journal's.
        owner: the node that its files must be of; None: any.
        placed: reads the records that the journal only names.
    """

    def __init__(self, disk: Disk, directory: str, owner: JournalOwner | None, placed: PlacedRecords) -> None:
        self._disk = disk
        self.directory = directory
        self._owner = owner
        self._placed = placed
        self._place: LogPlace | None = None
        """Of the last batch that was read, where it has one."""
        ids = (parse_file_name(name) for name in disk.list_directory(directory))
        self.file_ids = sorted(file_id for file_id in ids if file_id is not None)
        self.last_sequence = 0
        """The highest sequence number seen; the next writer goes on behind it."""
        self.replayed = 0
        """The sequence number of the last batch whose records were given."""

    def check_owner(self) -> None:
        """Raise JournalCorruptError if a file is another journal's. One whose header is damaged is for `replay`."""
        for file_id in self.file_ids:
            found = self._header_of(file_id)
            if found is not None and self._owner is not None and found[1] != self._owner:
                raise JournalCorruptError(
                    f"the journal file {file_name(file_id)} belongs to {found[1]}, and this is {self._owner}",
                    advice="Were directories confused, or mounted in each other's place? Bring back the directory that "
                    "belongs here; the node did not start and changed nothing",
                    path=self._path(file_id),
                )

    def _check_headers(self, mark: JournalMark, files: list[int]) -> None:
        """Raise JournalCorruptError if a file in use has no intact header, or the mark's file is cut off.

        Header and first zeros are durable before the first batch is written, and before any mark names the file. So a
        file that holds any batch has had a header, and so has the mark's, even if nothing is left of its batches: they
        must not be passed over (I11).
        """
        for file_id in files:
            found = self._header_of(file_id)
            damaged = found is None or found[0] != file_id
            if damaged and (file_id == mark.file_id or self._has_batches(file_id)):
                raise self._corrupt_error(f"the header of the journal file {file_name(file_id)} is damaged", file_id, 0)
        size = self._size_of(mark.file_id)
        if size < mark.offset or size <= FIRST_BATCH_AT:
            raise self._corrupt_error(f"the journal file {file_name(mark.file_id)} is cut off", mark.file_id, size)

    def _header_of(self, file_id: int) -> tuple[int, JournalOwner] | None:
        file = self._disk.open(self._path(file_id))
        try:
            return parse_file_header(file.read_at(0, BLOCK))
        finally:
            file.close()

    def _size_of(self, file_id: int) -> int:
        file = self._disk.open(self._path(file_id))
        try:
            return file.size()
        finally:
            file.close()

    def unused(self, mark: JournalMark) -> list[int]:
        """Return the files behind the mark's that hold no batch."""
        later = [file_id for file_id in self.file_ids if file_id > mark.file_id]
        return [file_id for file_id in later if not self._has_batches(file_id)]

    def _has_batches(self, file_id: int) -> bool:
        return any(True for _ in self._headers(file_id, FIRST_BATCH_AT))

    def again(self) -> JournalReader:
        """Return another reader of the same files."""
        return JournalReader(self._disk, self.directory, self._owner, self._placed)

    def goes_beyond(self, mark: JournalMark) -> bool:
        """Return whether there are files behind the mark's: after a clean stop, of a start that had no space for a
        checkpoint.
        """
        return bool(self.file_ids) and self.file_ids[-1] > mark.file_id

    def keep_for_next_start(self, mark: JournalMark) -> bool:
        """Make sure that the next start can read from `mark` through to a file begun now; False if it cannot.

        It cannot where batches lie behind the torn one that ended the replay: a file begun now would go on after their
        numbers, and the next replay would find the torn one's number missing.
        What was read may not be on the disk yet, if only the process had died: so it is synced. Raises OSError.
        """
        if self.last_sequence > self.replayed:
            return False
        for file_id in self.file_ids:
            if file_id >= mark.file_id:
                file = self._disk.open(self._path(file_id))
                try:
                    file.sync_data()
                finally:
                    file.close()
        return True

    def empty(self) -> bool:
        """Return True if no file holds any batch."""
        return not any(map(self._has_batches, self.file_ids))

    def check_places(self, mark: JournalMark) -> None:
        """Pass over the batches above the mark, by their headers, and raise JournalCorruptError if one names a log that
        is missing.

        For before a replay: that makes logs, and one of them must never be taken for the missing one by a later start
        (I11).
        """
        expected, searching = mark.sequence + 1, True
        for file_id in [file_id for file_id in self.file_ids if file_id >= mark.file_id]:
            file = self._disk.open(self._path(file_id))
            try:
                offset = mark.offset if file_id == mark.file_id else FIRST_BATCH_AT
                # Where no batch follows the rest of the file is left to `replay`, which ends or refuses there.
                while batch := self._next(file, file_id, offset, expected, searching):
                    if batch.sequence >= expected:
                        searching = False
                        if batch.records_length == PLACE_BYTES:
                            self._check_place(file, batch)
                    offset = batch.offset + batch.total
            finally:
                file.close()

    def _check_place(self, file: DiskFile, batch: BatchHeader) -> None:
        self._read_here(file, batch)
        if self._place is not None:
            try:
                self._placed.require(self._place)
            except FileNotFoundError as error:
                raise self._lost_error(batch, error) from error

    def replay(self, mark: JournalMark) -> Iterator[Record]:
        """Yield all records of batches above the mark, in order. Raises JournalCorruptError before giving any wrong
        one."""
        self.last_sequence = self.replayed = mark.sequence
        files = [file_id for file_id in self.file_ids if file_id >= mark.file_id]
        if not files or files[0] != mark.file_id:
            raise self._corrupt_error(
                f"journal file {file_name(mark.file_id)}, where the last checkpoint points, is missing", mark.file_id, 0
            )
        self._check_headers(mark, files)
        first = expected = mark.sequence + 1
        for index, file_id in enumerate(files):
            file = self._disk.open(self._path(file_id))
            try:
                offset = mark.offset if file_id == mark.file_id else FIRST_BATCH_AT
                while True:
                    batch = self._next(file, file_id, offset, expected, expected == first)
                    if batch is None or batch.sequence > expected:
                        break  # one of a higher number is left to `_check_tail`: it may prove that this one is lost
                    if batch.sequence == expected:
                        data = self._read_records(file, batch)
                        if data is None:
                            break  # torn or damaged: `_check_tail` decides which
                        yield from self._records(data, file_id, batch)
                        expected += 1
                        self.last_sequence = self.replayed = batch.sequence
                    offset = batch.offset + batch.total
            finally:
                file.close()
            if not self._goes_on(files[index + 1 :], expected, expected == first):
                # Before the replay ends in good order: records are missing if batch `expected` was ever durable (I11).
                self._check_tail(files[index:], offset, expected)
                return

    def _next(self, file: DiskFile, file_id: int, offset: int, expected: int, searching: bool) -> BatchHeader | None:
        """Return the batch at `offset`. While `searching` for the first one behind the mark, what cannot be read is
        passed over: it may be a batch that the checkpoint covers, whose damage must not hide those that follow."""
        batch = self._read_header(file, file_id, offset)
        if batch is None and searching:
            return next((found for found in self._headers(file_id, offset) if found.sequence >= expected), None)
        return batch

    def _goes_on(self, later: list[int], expected: int, searching: bool) -> bool:
        """Return True if the next file begins with batch `expected`: the one before has ended in good order.

        Files without any batch do not count: a start that could take no checkpoint leaves the one prepared before it.
        """
        for file_id in later:
            file = self._disk.open(self._path(file_id))
            try:
                batch = self._next(file, file_id, FIRST_BATCH_AT, expected, searching)
            finally:
                file.close()
            if batch is not None:
                return batch.sequence == expected
            if self._has_batches(file_id):
                return False
        return False

    def _check_tail(self, files: list[int], offset: int, expected: int) -> None:
        """Look for batches behind the place where reading ended; raise if one proves batch `expected` durable."""
        for index, file_id in enumerate(files):
            for batch in self._headers(file_id, offset if index == 0 else FIRST_BATCH_AT):
                if batch.sequence > expected:  # what is left of batch `expected` itself does not keep its number
                    self.last_sequence = max(self.last_sequence, batch.sequence)
                if batch.durable_through >= expected:  # it was acknowledged, so this is damage and not a torn tail
                    raise self._corrupt_error(
                        f"batch {expected} of the journal is damaged or missing{self._where()}, though batch "
                        f"{batch.sequence} in {file_name(file_id)} at offset {batch.offset} proves that it had been "
                        "durable",
                        files[0],
                        offset,
                    )
        logger.info("the journal ends with batch %d in %s at offset %d", expected - 1, file_name(files[0]), offset)

    def _where(self) -> str:
        """Return where the records of the last batch that was read should be, if that is not the journal."""
        place = self._place
        if place is None:
            return ""
        return f" (its records: {place.length} bytes of the entry log {place.log_id:016x}.log at {place.offset})"

    def _headers(self, file_id: int, start: int) -> Iterator[BatchHeader]:
        """Yield all intact batch headers of this generation from `start` on, whatever lies between."""
        file = self._disk.open(self._path(file_id))
        try:
            size = file.size()
            offset = start
            while offset < size:
                data = file.read_at(offset, min(SCAN_BYTES, size - offset))
                for at in range(0, len(data), BLOCK):
                    batch = parse_batch_header(data, at, offset + at, file_id)
                    if batch is not None:
                        yield batch
                offset += SCAN_BYTES
        finally:
            file.close()

    def _read_header(self, file: DiskFile, file_id: int, offset: int) -> BatchHeader | None:
        header = parse_file_header(file.read_at(0, BLOCK))
        if header is None or header[0] != file_id:
            return None
        return parse_batch_header(file.read_at(offset, BLOCK), 0, offset, file_id)

    def _read_records(self, file: DiskFile, batch: BatchHeader) -> memoryview | None:
        data = self._read_here(file, batch)
        if self._place is None:
            return data
        try:
            return self._placed.read(self._place)
        except FileNotFoundError as error:
            raise self._lost_error(batch, error) from error

    def _read_here(self, file: DiskFile, batch: BatchHeader) -> memoryview | None:
        """Return what the journal itself holds of the batch, and keep its place, if it is one; None where that does not
        have its sum."""
        self._place = None
        data = file.read_at(batch.offset + batch.records_at, batch.records_length)
        if len(data) != batch.records_length or crc32(data, 0) != batch.records_sum:
            return None
        self._place = LogPlace.parse(memoryview(data))
        return memoryview(data)

    def _lost_error(self, batch: BatchHeader, error: FileNotFoundError) -> JournalCorruptError:
        return self._corrupt_error(
            f"batch {batch.sequence} of the journal has lost its records{self._where()}: {error}",
            batch.generation,
            batch.offset,
        )

    def _records(self, data: memoryview, file_id: int, batch: BatchHeader) -> Iterator[Record]:
        for record in scan(data):
            if isinstance(record, int) or not record.intact or record.kind == PLACE:
                raise self._corrupt_error(
                    f"batch {batch.sequence} of the journal has its checksum but holds a malformed record",
                    file_id,
                    batch.offset,
                )
            yield record

    def _corrupt_error(self, message: str, file_id: int, offset: int) -> JournalCorruptError:
        return JournalCorruptError(
            f"{message} (at offset {offset})",
            advice="The node did not start, because acknowledged entries are lost here. Restore the file, or give the "
            "node up: let its ledgers be replicated elsewhere, then remove its cookie and directories",
            path=self._path(file_id),
        )

    def _path(self, file_id: int) -> str:
        return f"{self.directory}/{file_name(file_id)}"
