"""`ColdLedger`: one segment of a cold file, with the calls of a closed ledger's reader (`LedgerReader`).

Whoever reads a segment's entries reads them here at the same DLSNs: entry ids, slots and positions are those of the
ledger. Readers of records take them as columns (`columns`), as the file has them; who needs entries has them made anew
(`entries`). Entries are uncompressed, and where the ledger had control records, empty ones stand
(docs/reference/cold-files.md). So a reader may begin in the ledger and go on in the file, between any two entries.

Searches use what the footer has: the table of entries, and which one row group may have a transaction id; of that the
columns of positions are fetched. So a search costs three requests at most, whatever the length of the segment: the
footer, its rest where it is long, and those columns.

Fault model: as `ColdFileReader`. A file that is another segment's is damage: nothing of it is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.codec.vector_decoding import DecodedBatch
from dlspark.core.cold.files.columns import LOG
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.entries import columns_of_entries, control_entry, rebuild_entries
from dlspark.core.cold.files.footer import FileSegment, Footer
from dlspark.core.cold.reading.file_reader import WINDOW_BYTES, ColdFileReader
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.errors import DamagedColdFileError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, present
from storage_node.client.read_ahead import check_range
from storage_node.errors import LedgerClosedError
from storage_node.protocol.digests import Entry

if TYPE_CHECKING:
    import numpy.typing as npt

PIECE_BYTES: Final = 1 << 20
"""Entries are rebuilt up to about so many bytes at a time, so that the first ones do not wait for a whole row group."""
PIECE_ENTRIES: Final = 4096
COLUMNS_BYTES: Final = 8 << 20
"""Columns are handed on up to about so many bytes of payloads at a time, so that a reader's bound in bytes holds where
a row group is large once it is decompressed."""
PLACES: Final = tuple(f"{LOG}.{one}" for one in ("segment", "entry", "slot", "row", "sequence_id", "transaction_id"))
"""Columns that say where records are, and the one between them: side by side, so that they are one request."""
T = TypeVar("T")


class ColdLedger:
    """Which entries does a cold segment have? Made by `ColdFiles.open`; nothing is asked of the store before a read.

    Args:
        location: the segment.
        reader: of its file; None where its unit has none, and it has control records only.
        footer: the file's.
    """

    closed: Final = True

    def __init__(
        self, location: ColdLocation, reader: ColdFileReader | None = None, footer: Footer | None = None
    ) -> None:
        self.place = location
        self.ledger_id = location.ledger_id
        self.last_add_confirmed = location.last_entry if footer is None else _checked_end(location, footer)
        self._reader = reader
        self._footer = footer
        self._ended = False

    @property
    def length(self) -> int:
        """Bytes of the ledger, one copy of it."""
        return self.place.bytes

    async def location(self) -> ColdLocation:
        """Return where the segment is, for readers that have no metadata store."""
        return self.place

    # ------------------------------------------------------------------ entries

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return entries first..last. Raises CallerError beyond the end, and as `entries`."""
        return [entry async for entry in self.entries(first, last)]

    async def entries(self, first: int, last: int, *, window_bytes: int = WINDOW_BYTES) -> AsyncGenerator[Entry, None]:
        """Yield entries first..last in order, while row groups behind them are on their way.

        Their `length` is the ledger's: a file keeps no sizes of entries. Raises ObjectStoreError, DamagedColdFileError.
        """
        self._ensure_usable()
        check_range(first, last, self.last_add_confirmed, self.ledger_id)
        if self._footer is None:
            payload = control_entry(self._plain_metadata)
            for entry_id in range(first, last + 1):
                yield self._entry(entry_id, payload)
            return
        rebuilt = partial(rebuild_entries, self._footer, self.place.lssn)
        pieces = self._pieces(rebuilt, _piece, first, last, window_bytes)
        expected = first
        try:
            async for piece in pieces:
                for entry_id, payload in piece:
                    self._check_follows(entry_id, expected)
                    expected += 1
                    yield self._entry(entry_id, payload)
        finally:
            await pieces.aclose()
        self._check_complete(expected, last)

    async def columns(
        self, first: int, last: int, *, start_sequence_id: int, window_bytes: int = WINDOW_BYTES
    ) -> AsyncGenerator[EntryColumns, None]:
        """Yield the same entries in order as columns of their records, several at a time.

        Args:
            first, last: the entries.
            start_sequence_id: of the segment, as the log counts.
            window_bytes: of row groups that are on their way.

        Raises what `entries` raises.
        """
        self._ensure_usable()
        check_range(first, last, self.last_add_confirmed, self.ledger_id)
        if self._footer is None:
            yield EntryColumns(first, last, DecodedBatch.none(self.place.lssn))
            return
        found = partial(columns_of_entries, self._footer, self.place.lssn, start_sequence_id, COLUMNS_BYTES)
        pieces = self._pieces(found, list, first, last, window_bytes)
        expected = first
        try:
            async for piece in pieces:
                for entries in piece:
                    self._check_follows(entries.first_entry, expected)
                    expected = entries.last_entry + 1
                    yield entries
        finally:
            await pieces.aclose()
        self._check_complete(expected, last)

    async def _pieces(
        self,
        make: Callable[[list[RecordColumns], int, int], Iterator[T]],
        take: Callable[[Iterator[T]], list[T]],
        first: int,
        last: int,
        window_bytes: int,
    ) -> AsyncGenerator[list[T], None]:
        """Yield what `make` makes of the records of each row group, and of the entries first..last that they stand for.
        `take` takes some of it at a time, in a thread, and nothing at the end."""
        footer, reader = present(self._footer, "a file has a footer"), present(self._reader, "a file has a reader")
        groups = footer.groups_of(self.place.lssn, first, last)
        found = reader.all_records(groups, window_bytes=window_bytes)
        loop = asyncio.get_running_loop()
        try:
            async for index, records in found:
                # Row groups end between entries. What lies behind the last one's are control records alone.
                upto = last if index + 1 == groups.stop else footer.row_groups[index].last.entry_id
                making = make([records], first, upto)
                while piece := await loop.run_in_executor(None, take, making):
                    yield piece
                first = upto + 1
        finally:
            await found.aclose()
        if first <= last:  # no row is in these: control records alone
            making = make([], first, last)
            while piece := await loop.run_in_executor(None, take, making):
                yield piece

    def entries_of(self, index: int) -> range | None:
        """Return which entries of the segment have records in a row group; None where none has."""
        footer = self._footer
        if footer is None or index not in footer.groups_of(self.place.lssn, 0, self.last_add_confirmed):
            return None
        group = footer.row_groups[index]
        begins, ends = group.first.lssn == self.place.lssn, group.last.lssn == self.place.lssn
        # Row groups end between entries; one may go on from the segment before, or into the next one.
        first = group.first.entry_id if begins else 0
        return range(first, (group.last.entry_id if ends else self.last_add_confirmed) + 1)

    def _check_follows(self, entry_id: int, expected: int) -> None:
        if entry_id != expected:
            raise self._damaged_error(f"entry {entry_id} comes where entry {expected} is expected")

    def _check_complete(self, expected: int, last: int) -> None:
        if expected <= last:
            raise self._damaged_error(f"entries {expected} to {last} of segment {self.place.lssn} are not in it")

    @property
    def _plain_metadata(self) -> SegmentMetadata:
        place = self.place
        return SegmentMetadata(place.ledger_id, place.lssn, place.first_txid, version=place.version)

    def _entry(self, entry_id: int, payload: memoryview) -> Entry:
        return Entry(self.ledger_id, entry_id, self.last_add_confirmed, self.place.bytes, payload)

    def _damaged_error(self, what: str) -> DamagedColdFileError:
        url = self.place.file.url if self.place.file is not None else ""
        return DamagedColdFileError(what, url=url, dlsn=f"{self.place.lssn}:0:0")

    # ------------------------------------------------------------------ the end, which is fixed

    async def read_last_confirmed(self) -> int:
        """Return the last entry: nothing comes behind it."""
        self._ensure_usable()
        return self.last_add_confirmed

    async def read_last_acknowledged(self, timeout_ms: int = 0) -> int:
        """Return the last entry, at once."""
        return await self.read_last_confirmed()

    async def poll(self, next_entry: int, timeout_ms: int) -> Entry | None:
        """Return an entry, or None behind the end: nothing is waited for."""
        self._ensure_usable()
        if next_entry < 0:
            raise CallerError(f"entry {next_entry} does not exist", ledger_id=self.ledger_id)
        return (await self.read(next_entry, next_entry))[0] if next_entry <= self.last_add_confirmed else None

    # ------------------------------------------------------------------ searches

    async def locate_txid(self, txid: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the first user record with a transaction id of `txid` or above; without one, of the
        record that ends the stream, whose id is above all; None if there is none either."""
        segment = self._segment
        if segment is None:
            return None
        footer = present(self._footer, "a segment was found without a footer")
        group = footer.locate_txid(self.place.lssn, txid)
        # One as a rule: more only where ids decrease, which writers forbid by default.
        for index in range(group, self._all_groups(footer).stop) if group is not None else ():
            found = await self._first_record(index, lambda ids: ids >= txid)
            if found is not None:
                return found
        return segment.end_of_stream

    async def locate_position(self, position: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the segment's `position`-th user record, counted from 1; None if there is none."""
        segment = self._segment
        if segment is None or not 1 <= position <= segment.entries.record_count:
            return None
        table = segment.entries
        entry_id = table.entry_of_record(position - 1)
        number = position - 1 - table.records_before(entry_id)
        if table.slots[entry_id] == table.records[entry_id]:
            return entry_id, number  # Each slot of the entry is a record.
        footer = present(self._footer, "a segment was found without a footer")
        slots: list[int] = []
        for index in footer.groups_of(self.place.lssn, entry_id, entry_id):
            entries, of_entry, _ = await self._places(index)
            slots += of_entry[entries == entry_id].tolist()
        if number >= len(slots):
            raise self._damaged_error(f"entry {entry_id} has fewer records than its table says")
        return entry_id, slots[number]

    async def _first_record(
        self, index: int, holds: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
    ) -> tuple[int, int] | None:
        """Return (entry, slot) of the first record of a row group and this segment whose transaction id `holds`."""
        entries, slots, txids = await self._places(index)
        found = np.flatnonzero(holds(txids))
        return (int(entries[found[0]]), int(slots[found[0]])) if len(found) else None

    async def _places(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return entry, slot and transaction id of each record that this segment has in a row group."""
        reader = present(self._reader, "a cold file was searched without its reader")
        columns = (await reader.batch(index, PLACES)).column(LOG)
        segment, entry, slot, row, _, txid = (
            columns.field(path.partition(".")[2]).to_numpy(zero_copy_only=False) for path in PLACES
        )
        # A record that is several rows counts by its first, or by its only one.
        kept = (segment == self.place.lssn) & (row <= 0)
        return entry[kept], slot[kept], txid[kept]

    @property
    def _segment(self) -> FileSegment | None:
        return None if self._footer is None else self._footer.segment(self.place.lssn)

    def _all_groups(self, footer: Footer) -> range:
        return footer.groups_of(self.place.lssn, 0, self.last_add_confirmed)

    def stored_to(self, entry_id: int) -> int:
        """Return about how many bytes of its ledger lie up to this entry, itself included: in proportion to records."""
        if entry_id >= self.last_add_confirmed:
            return self.place.bytes
        segment = self._segment
        if segment is None or not segment.entries.record_count:
            return self.place.bytes * (entry_id + 1) // (self.last_add_confirmed + 1)
        return self.place.bytes * segment.entries.records_before(entry_id + 1) // segment.entries.record_count

    # ------------------------------------------------------------------ its own life

    def _ensure_usable(self) -> None:
        if self._ended:
            raise LedgerClosedError("this reader was closed", ledger_id=self.ledger_id)

    async def close(self) -> None:
        """Take no more calls. Idempotent; the file stays known to others."""
        self._ended = True


def _checked_end(location: ColdLocation, footer: Footer) -> int:
    """Return the last entry of a segment. Raises DamagedColdFileError where the file has another segment of the number,
    or none."""
    of_file = {one.lssn: one for one in footer.segments}
    segment = of_file.get(location.lssn)
    # Not by its ledger: a segment that was restored from the file has a new one.
    wanted = (location.first_txid, location.completion_ms)
    if segment is None or (segment.metadata.first_txid, segment.metadata.completion_time_ms) != wanted:
        held = f"segments {', '.join(map(str, of_file))}" if segment is None else "another segment of the number"
        raise DamagedColdFileError(
            f"it should have segment {location.lssn}, which begins at transaction id {location.first_txid} and was "
            f"completed at {location.completion_ms}, and has {held}",
            url=footer.url,
            dlsn=f"{location.lssn}:0:0",
            advice="It was written over, or it is another log's: nothing of it is delivered. See dlspark cold verify",
        )
    return len(segment.entries) - 1


def _piece(entries: Iterator[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
    """Return the next entries, about PIECE_BYTES of them; none at the end. It runs in a thread."""
    found: list[tuple[int, memoryview]] = []
    size = 0
    for entry in entries:
        found.append(entry)
        size += len(entry[1])
        if size >= PIECE_BYTES or len(found) >= PIECE_ENTRIES:
            break
    return found
