"""`ColdFileWriter`: stored entries of completed segments into one cold file.

    writer = ColdFileWriter(sink, identity, declaration)
    for each segment, in order:
        writer.begin_segment(metadata, ledger_bytes)
        writer.add(entries); ...
        writer.end_segment()              checks what was added against the metadata
    written = writer.finish()

Entries are decoded as readers decode them, cut into pieces, and gathered until a row group is full: by what pieces are
expected to compress to, so that it has about `row_group_bytes`. Row groups are cut between entries only. Nothing waits
and nothing is read; bytes go to `sink` in order, once.

What it must never do: let a file end well that does not hold what the segments' metadata says. An error leaves the
writer useless, and what was given to the sink is no file: the footer comes last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import decode_up_to
from dlspark.core.cold.files.columns import LOG, file_schema, value_name
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.footer import (
    ENDING,
    INDEX_KEY,
    KEY,
    FileIdentity,
    FileSegment,
    Footer,
    chunk_place,
    encode_about,
)
from dlspark.core.cold.files.group_index import GroupNumbers, compressed_index, encode_index
from dlspark.core.cold.files.pieces import Piece, PieceMaker
from dlspark.core.cold.files.seal import SEAL_KEY, room_for_seal, seal_place, sealed
from dlspark.core.cold.files.segment_entries import SegmentEntries
from dlspark.core.cold.files.sink import ChecksummedSink
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_units import ColdSegment
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, check, present

ROW_GROUP_BYTES: Final = 4 << 20
"""Compressed bytes of a row group, about."""
_EXPANDED_BYTES: Final = 16 << 20
"""Bytes of records that are decoded at once."""
_MAX_RAW_BYTES: Final = 64 << 20
"""Bytes of a row group's columns before they are compressed: what a reader of it needs of memory."""
_MAX_ROWS: Final = 1 << 20
_LEVEL: Final = 3
"""Of zstd. Higher ones take many times as long for some hundredths."""
_PAGE_BYTES: Final = 1 << 20
_DELTAS: Final = ("segment", "entry", "slot", "row", "sequence_id", "transaction_id", "flags", "schema")
"""Parts of `_log` that are written as differences: they count up, or stay the same."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What is in a file that was written?

    Args:
        rows, records, entries: of all segments; a record has one row, but for Arrow's, which may have many.
        bytes, sha256: of the file.
        digest: of its records, hexadecimal (`digests.RecordDigest`).
        segments: where each is.
        schema_version: the version of the declared schema whose columns it has; None without one.
        redacted: whether records are erased in it.
        first, last: positions of its first and last user record; None without records.
    """

    rows: int
    records: int
    entries: int
    bytes: int
    sha256: str
    digest: str
    segments: tuple[ColdSegment, ...]
    schema_version: int | None
    redacted: bool
    first: DLSN | None
    last: DLSN | None


class ColdFileWriter:
    """How do I write segments into one cold file?

    Args:
        sink: takes the file's bytes, in order; what it raises ends the writing.
        identity: whose records they are.
        declaration: what the log says of its records: gives the file its typed columns. None: bytes alone.
        row_group_bytes: about how many compressed bytes a row group has at most.
    """

    def __init__(
        self,
        sink: Callable[[bytes], object],
        identity: FileIdentity,
        declaration: Declaration | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self._identity = identity
        self._declaration = declaration
        self._limit = row_group_bytes
        self._schema = file_schema(declaration)
        self._pieces = PieceMaker(self._schema, identity.log, declaration, max(row_group_bytes // 8, 1))
        self._sink = ChecksummedSink(sink)
        self._sink.passing(True)
        self._parquet = _parquet_writer(self._sink, self._schema, value_name(declaration))
        self._sink.passing(False)
        self._segments: list[FileSegment] = []
        self._entries: SegmentEntries | None = None
        self._pending: list[Piece] = []
        self._groups: list[GroupNumbers] = []
        self._digest = RecordDigest()
        self._ratio = 1.0
        """What the last row group took, by what it was expected to take."""
        self._redacted = False
        self._useless = False

    @property
    def records(self) -> int:
        """User records so far."""
        done = sum(one.entries.record_count for one in self._segments)
        return done + (self._entries.records if self._entries is not None else 0)

    def begin_segment(self, metadata: SegmentMetadata, ledger_bytes: int, start_sequence_id: int | None = None) -> None:
        """Begin the next segment, whose number follows the last one's.

        Args:
            metadata: what its znode says; completed, and with a number.
            ledger_bytes: bytes of its ledger.
            start_sequence_id: the sequence id of its first record where readers do not take the metadata's.
        """
        self._check_usable()
        check(self._entries is None, "a segment was begun in another one")
        if metadata.in_progress or metadata.lssn < 1:
            raise CallerError(
                f"segment {metadata.lssn} is in progress, or has no number: it cannot be in a cold file",
                advice="Segments of metadata version 1 have no numbers: rewrite the log to have them",
            )
        last = self._segments[-1].lssn if self._segments else metadata.lssn - 1
        if metadata.lssn != last + 1:
            raise CallerError(f"segment {metadata.lssn} does not follow {last}, the last one in the file")
        self._entries = SegmentEntries(
            metadata,
            metadata.effective_start_sequence_id if start_sequence_id is None else start_sequence_id,
            ledger_bytes,
        )

    def add(self, entries: Sequence[tuple[int, memoryview]]) -> None:
        """Add the next entries of the segment: (number, payload as stored), without a hole.

        Raises InvalidEntryError for an entry that cannot be decoded.
        """
        self._check_usable()
        segment = present(self._entries, "entries were added outside of a segment")
        self._useless = True  # until this is done: half of it may have been taken
        at = 0
        while at < len(entries):
            rest = entries[at:]
            batch, count = decode_up_to(
                rest,
                lssn=segment.metadata.lssn,
                start_sequence_id=segment.start_sequence_id,
                enveloped=segment.metadata.enveloped,
                include_control=True,
                max_bytes=_EXPANDED_BYTES,
            )
            self._take(segment, segment.take(rest[:count], batch))
            at += count
        self._useless = False

    def copy_segment(self, footer: Footer, lssn: int, batches: Iterable[RecordColumns]) -> None:
        """Add a whole segment of another file: its entries, with their slots and positions as they were.

        Args:
            footer: of the other file.
            lssn: the segment.
            batches: its records, as `row_groups.decode_records` gives them for all row groups that have some of it, in
                order. Those whose `value` is null (`RecordColumns.erased`) are marked as erased, and their typed
                columns are null.

        The typed columns are made anew by this file's declaration. Raises SegmentStateError where records are missing.
        """
        old = footer.segment(lssn)
        self.begin_segment(old.metadata, old.ledger_bytes, old.start_sequence_id)
        segment = present(self._entries, "a segment was copied that was not begun")
        self._useless = True
        segment.end_of_stream = old.end_of_stream
        entry, count = 0, len(old.entries)
        for batch in batches:
            low, high = (int(np.searchsorted(batch.segment, lssn, side=side)) for side in ("left", "right"))
            if low == high:
                continue
            part = batch.sliced(low, high)
            after = int(part.entry[-1]) + 1
            self._take(segment, segment.take_records(part, old.entries.slots[entry:after], entry))
            entry = after
        if entry < count:
            nothing = RecordColumns.none()
            self._take(segment, segment.take_records(nothing, old.entries.slots[entry:count], entry))
        segment.check_table(old.entries, self._identity.log)
        self._useless = False
        self.end_segment()

    def end_segment(self) -> None:
        """End the segment. Raises SegmentStateError where what was added is not what its metadata says."""
        self._check_usable()
        segment = present(self._entries, "a segment was ended that was not begun")
        self._useless = True
        segment.check_complete(self._identity.log)
        first_row = self._segments[-1].first_row + self._segments[-1].rows if self._segments else 0
        self._segments.append(segment.finish(first_row))
        self._entries = None
        self._useless = False

    def finish(self) -> WrittenFile:
        """Write what is left, and the footer. The file is whole when this has returned."""
        self._check_usable()
        check(self._entries is None, "a file was finished in a segment")
        self._useless = True
        if self._pending:
            self._write_group()
        records = sum(one.records for one in self._groups)
        digest = self._digest.hexdigest()
        index = encode_index(self._groups, [one.entries for one in self._segments])
        about = encode_about(
            self._identity,
            self._segments,
            records=records,
            digest=digest,
            declaration=self._declaration,
            redacted=self._redacted,
            index_bytes=len(index),
        )
        self._parquet.add_key_value_metadata({KEY.decode(): about, INDEX_KEY.decode(): compressed_index(index)})
        sha256 = self._end()
        return WrittenFile(
            rows=sum(one.rows for one in self._groups),
            records=records,
            entries=sum(len(one.entries) for one in self._segments),
            bytes=self._sink.tell(),
            sha256=sha256,
            digest=digest,
            segments=tuple(one.cold for one in self._segments),
            schema_version=None if self._declaration is None else self._declaration.current.id,
            redacted=self._redacted,
            first=self._groups[0].first if self._groups else None,
            last=self._groups[-1].last if self._groups else None,
        )

    # -------------------------------------------------------------- row groups

    def _check_usable(self) -> None:
        check(not self._useless, "a cold file's writer was used after it had failed or finished")

    def _take(self, segment: SegmentEntries, records: RecordColumns) -> None:
        for piece in self._pieces.cut(records):
            segment.note_rows(piece)
            self._redacted = self._redacted or piece.erased > 0
            waiting = self._pending
            expected = sum(one.expected_bytes for one in waiting) * self._ratio
            raw, rows = sum(one.raw_bytes for one in waiting), sum(len(one.rows) for one in waiting)
            if waiting and (
                expected + piece.expected_bytes * self._ratio > self._limit
                or raw + piece.raw_bytes > _MAX_RAW_BYTES
                or rows + len(piece.rows) > _MAX_ROWS
            ):
                self._write_group()
            self._pending.append(piece)

    def _write_group(self) -> None:
        pieces, self._pending = self._pending, []
        records = RecordColumns.joined([one.records for one in pieces])
        rows = pa.Table.from_batches([one.rows for one in pieces], self._schema).combine_chunks()
        digest = RecordDigest()
        digest.update(records)
        self._digest.update(records)
        before = self._sink.tell()
        self._sink.passing(True)
        self._parquet.write_table(rows, row_group_size=len(rows))
        self._sink.passing(False)
        expected = sum(one.expected_bytes for one in pieces)
        self._ratio = min(max((self._sink.tell() - before) / max(expected, 1), 0.02), 10.0)
        values = rows.column(value_name(self._declaration))
        places = [
            DLSN(int(records.segment[at]), int(records.entry[at]), int(records.slot[at]))
            for at in (0, len(records) - 1)
        ]
        ids = records.transaction_id
        self._groups.append(
            GroupNumbers(
                rows=len(rows),
                records=len(records),
                values=len(values) - values.null_count,
                first=places[0],
                last=places[1],
                first_txid=int(ids[0]),
                last_txid=int(ids[-1]),
                lowest_txid=int(ids.min()),
                highest_txid=int(ids.max()),
                digest=digest.digest(),
            )
        )

    def _end(self) -> str:
        """Write the footer with its seal; returns the SHA-256 of the file."""
        leaves = len(leaf_paths(self._schema))
        self._parquet.add_key_value_metadata({SEAL_KEY.decode(): room_for_seal(leaves * len(self._groups))})
        self._parquet.close()
        tail = self._sink.take_kept()
        length, _ = ENDING.unpack(tail[-ENDING.size :])
        page_indexes, footer = tail[: -ENDING.size - length], tail[-ENDING.size - length : -ENDING.size]
        parquet = pq.read_metadata(pa.BufferReader(tail))
        check(
            seal_place(footer)[1] - seal_place(footer)[0] == len(room_for_seal(leaves * len(self._groups))),
            "the seal is not where it was put",
        )
        places = [
            chunk_place(parquet.row_group(group).column(leaf))
            for group in range(parquet.num_row_groups)
            for leaf in range(leaves)
        ]
        crcs = [self._sink.crc_of(offset, length) for _, offset, length in places]
        return self._sink.end(
            page_indexes + sealed(footer, crcs, hashlib.sha256(page_indexes).digest()) + tail[-ENDING.size :]
        )


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the paths of a file's leaf columns, as Parquet has them."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    parquet = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return [parquet.schema.column(at).path for at in range(parquet.num_columns)]


def _parquet_writer(sink: ChecksummedSink, schema: pa.Schema, value: str) -> pq.ParquetWriter:
    deltas = [f"{LOG}.{name}" for name in _DELTAS]
    others = [path for path in leaf_paths(schema) if path != value and path not in deltas]
    return pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=_LEVEL,
        data_page_size=_PAGE_BYTES,
        use_dictionary=others,
        column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        # Of the records' bytes neither says anything: no bound of them is ever asked for, and no two are the same.
        write_statistics=[*others, *deltas],
        write_page_checksum=True,
        write_page_index=True,
        store_schema=True,
    )
