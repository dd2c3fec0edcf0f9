"""`SegmentEntries`: one segment while it is written into a cold file: what each entry had, and whether all of it came.

Decoded batches come with control records, so that slots can be counted; what goes on are user records alone, exactly
those that readers deliver.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.record_chain import IntArray
from dlspark.core.codec.records import FLAG_CONTROL, FLAGS_MASK, MAX_TXID
from dlspark.core.codec.vector_decoding import DecodedBatch
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.entry_table import EntryTable
from dlspark.core.cold.files.footer import FileSegment
from dlspark.core.cold.files.pieces import Piece
from dlspark.errors import SegmentStateError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import check


class SegmentEntries:
    """What was added of a segment so far?

    Args:
        metadata: what its znode says.
        start_sequence_id: the sequence id of its first record.
        ledger_bytes: bytes of its ledger.
    """

    def __init__(self, metadata: SegmentMetadata, start_sequence_id: int, ledger_bytes: int) -> None:
        self.metadata = metadata
        self.start_sequence_id = start_sequence_id
        self.end_of_stream: tuple[int, int] | None = None
        """(entry, slot) of the record that seals the log."""
        self.records = 0
        """User records so far."""
        self._ledger_bytes = ledger_bytes
        self._slots: list[IntArray] = []
        self._counts: list[IntArray] = []
        self._rows: list[IntArray] = []
        self._next_entry = 0
        self._last: tuple[int, int, int] | None = None
        """Entry, slot and transaction id of the last user record."""
        self._last_control: tuple[int, int, int] | None = None
        self._copied = False

    def take(self, entries: Sequence[tuple[int, memoryview]], batch: DecodedBatch) -> RecordColumns:
        """Take decoded entries, control records included, and return their user records."""
        first, count = entries[0][0], len(entries)
        ids = [entry_id for entry_id, _ in entries]
        check(
            ids == list(range(self._next_entry, self._next_entry + count)), "entries came with a hole", entry_id=first
        )
        slots = np.bincount(batch.entry_id - first, minlength=count).astype(np.int64)
        if batch.end_of_stream is not None:
            self._take_end_of_stream(entries, first, slots)
        control = (batch.flags & FLAG_CONTROL) != 0
        if control.any():
            at = int(np.flatnonzero(control)[-1])
            self._last_control = (int(batch.entry_id[at]), int(batch.slot_id[at]), int(batch.txid[at]))
        return self._take(first, slots, _users(RecordColumns.of(batch), control))

    def take_records(self, records: RecordColumns, slots: IntArray, first_entry: int) -> RecordColumns:
        """Take user records of entries that have so many slots, and return them."""
        check(first_entry == self._next_entry, "entries came with a hole", entry_id=first_entry)
        self._copied = True
        return self._take(first_entry, slots, records)

    def _take(self, first: int, slots: IntArray, records: RecordColumns) -> RecordColumns:
        counts = np.bincount(records.entry - first, minlength=len(slots)).astype(np.int64)
        check(
            len(counts) == len(slots) and bool((counts <= slots).all()), "records are not of the entries they came in"
        )
        self._next_entry += len(slots)
        self._slots.append(slots)
        self._counts.append(counts)
        self._rows.append(counts.copy())
        self.records += len(records)
        if len(records):
            self._last = (int(records.entry[-1]), int(records.slot[-1]), int(records.transaction_id[-1]))
        return records

    def note_rows(self, piece: Piece) -> None:
        """Note how many rows the records of a piece have, where they have several."""
        if piece.counts is None:
            return
        # The piece is of what was taken last.
        first = self._next_entry - len(self._rows[-1])
        np.add.at(self._rows[-1], piece.records.entry - first, piece.counts - 1)

    def _take_end_of_stream(self, entries: Sequence[tuple[int, memoryview]], first: int, slots: IntArray) -> None:
        """Find the record that seals the log, which is not among the columns, and count its slot."""
        for entry_id, payload in entries:
            records = decode_entry(
                payload,
                lssn=self.metadata.lssn,
                entry_id=entry_id,
                start_sequence_id=self.start_sequence_id,
                enveloped=self.metadata.enveloped,
            )
            for record in records:
                if not record.is_end_of_stream:
                    continue
                if self.end_of_stream is not None:
                    raise self._state_error("it is sealed twice")
                self.end_of_stream = (entry_id, record.dlsn.slot_id)
            slots[entry_id - first] = len(records)

    def check_table(self, table: EntryTable, log: str) -> None:
        """Raise SegmentStateError unless each entry has as many records as another file says."""
        counts = np.concatenate([np.empty(0, np.int64), *self._counts])
        if not np.array_equal(counts, table.records):
            raise self._state_error("its entries have other records than in the file they come from", log)

    def check_complete(self, log: str) -> None:
        """Raise SegmentStateError unless what was added is what the metadata says."""
        said = self.metadata
        if self.records != said.record_count:
            raise self._state_error(f"{self.records} user records were added, and it has {said.record_count}", log)
        place = (said.last_entry, said.last_slot)
        slots = np.concatenate([np.empty(0, np.int64), *self._slots])
        if said.version >= 2 and place[0] >= 0 and (place[0] >= len(slots) or place[1] >= int(slots[place[0]])):
            raise self._state_error(f"its last record is at {place[0]}:{place[1]}, which was not added", log)
        last = self._last
        if last is not None and said.version >= 2 and last[:2] > place:
            raise self._state_error(f"a user record at {last[0]}:{last[1]} is behind its last one", log)
        if self.end_of_stream is not None and last is not None and last[:2] > self.end_of_stream:
            raise self._state_error("user records are behind the one that seals the log", log)
        ids = {one[2] for one in (last, self._last_control) if one is not None}
        if self.end_of_stream is not None:
            ids.add(MAX_TXID)
        # Of a copy no control records are known, whose ids the metadata may have: the first file was checked.
        if last is not None and said.last_txid not in ids and not self._copied:
            raise self._state_error(
                f"its last transaction id is {said.last_txid}, and that of the last record added is {last[2]}", log
            )

    def finish(self, first_row: int) -> FileSegment:
        """Return the segment as the footer says it."""
        nothing = np.empty(0, np.int64)
        table = EntryTable(
            np.concatenate([nothing, *self._slots]),
            np.concatenate([nothing, *self._counts]),
            np.concatenate([nothing, *self._rows]),
        )
        return FileSegment(
            self.metadata,
            self.start_sequence_id,
            self._ledger_bytes,
            first_row,
            table.row_count,
            table,
            self.end_of_stream,
        )

    def _state_error(self, what: str, log: str | None = None) -> SegmentStateError:
        return SegmentStateError(
            f"segment {self.metadata.lssn} is not what its metadata says: {what}; the file was not finished",
            log=log,
            advice="Look at the segment with dlspark log inspect; the hot copy is untouched",
        )


def _users(records: RecordColumns, control: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> RecordColumns:
    """Return the records that are not control records, with the flags that a header has."""
    numbers = [*records.numbers[:5], records.flags & FLAGS_MASK]
    value = records.value
    if control.any():
        shown = ~control
        numbers = [one[shown] for one in numbers]
        value = value.filter(pa.array(shown))
    return RecordColumns.of_numbers(numbers, value)
