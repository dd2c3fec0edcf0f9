"""Segments with all that their format allows, drawn from a seed, and cold files made of them in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dlspark.core.codec.entries import (
    ENVELOPE_BYTES,
    Compression,
    EntryBuilder,
    decode_entry,
    encode_record_set,
)
from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.codec.records import (
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    HEADER_BYTES,
    MAX_LOGRECORDSET_SIZE,
    MAX_PAYLOAD_BYTES,
    MAX_TXID,
    LogRecord,
)
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.entries import columns_of_entries, rebuild_entries
from dlspark.core.cold.files.footer import TAIL_BYTES, FileIdentity, Footer
from dlspark.core.cold.files.row_groups import decode_records
from dlspark.core.cold.files.verifying import FileVerifier, WholeFile
from dlspark.core.cold.files.writing import ColdFileWriter, WrittenFile
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.segments import SegmentMetadata

IDENTITY = FileIdentity("namespace-1", "log-1", "flights/arrivals", "attempt-1")


@dataclass(frozen=True)
class MadeSegment:
    """A segment: its metadata, and its entries as stored."""

    metadata: SegmentMetadata
    entries: list[tuple[int, memoryview]]

    def records(self) -> list[list[LogRecord]]:
        """Return all records of each entry, as a reader that hides nothing has them."""
        return [
            decode_entry(
                payload,
                lssn=self.metadata.lssn,
                entry_id=entry,
                start_sequence_id=self.metadata.effective_start_sequence_id,
                enveloped=self.metadata.enveloped,
            )
            for entry, payload in self.entries
        ]

    def users(self) -> list[LogRecord]:
        """Return its user records."""
        return [one for records in self.records() for one in records if one.is_user]


class SegmentMaker:
    """Makes a segment record by record, as writers do."""

    def __init__(self, lssn: int, *, version: int = 5, start_sequence_id: int = 0, first_txid: int = 1) -> None:
        self.entries: list[tuple[int, memoryview]] = []
        self.position = 0
        self.txid = first_txid
        self._open = SegmentMetadata(
            ledger_id=lssn + 100, lssn=lssn, first_txid=first_txid, in_progress=True, version=version
        )
        self._start = start_sequence_id
        self._last = (-1, -1)
        self._sealed = False
        self._compression = Compression.NONE
        self._builder = EntryBuilder(enveloped=self._open.enveloped)

    def record(self, payload: bytes, txid: int | None = None) -> None:
        """Add a user record to the entry."""
        if not self._builder.has_room(len(payload)):
            self.end_entry()
        self.txid = self.txid if txid is None else txid
        self.position += 1
        slot = self._builder.add(self.txid, payload, self.position)
        self._last = (len(self.entries), slot)

    def record_set(self, payloads: Sequence[bytes], compression: Compression = Compression.NONE) -> None:
        """Add a record set to the entry."""
        content = encode_record_set(payloads, compression)
        if not self._builder.has_room(len(content)):
            self.end_entry()
        slot = self._builder.add(self.txid, content, self.position + 1, FLAG_RECORD_SET)
        self.position += len(payloads)
        if payloads:
            self._last = (len(self.entries), slot + len(payloads) - 1)

    def control(self, payload: bytes = b"control") -> None:
        """Add a control record to the entry."""
        if not self._builder.has_room(len(payload)):
            self.end_entry()
        self._builder.add(self.txid, payload, self.position, FLAG_CONTROL)

    def end_of_stream(self) -> None:
        """Seal the log."""
        slot = self._builder.add(MAX_TXID, END_OF_STREAM_PAYLOAD, self.position, FLAG_END_OF_STREAM)
        self._last, self._sealed = (len(self.entries), slot), True

    def end_entry(self, compression: Compression = Compression.NONE) -> None:
        """End the entry, if it has something."""
        if not self._builder.size > (ENVELOPE_BYTES if self._open.enveloped else 0):
            return
        self._builder._compression = compression
        payload = b"".join(bytes(one) for one in self._builder.finish().buffers)
        self.entries.append((len(self.entries), memoryview(payload)))

    def finish(self, **changes: int) -> MadeSegment:
        """Return the segment."""
        self.end_entry()
        values = {
            "last_txid": MAX_TXID if self._sealed else self.txid,
            "completion_time_ms": 1_700_000_000_000,
            "record_count": self.position,
            "last_entry": self._last[0],
            "last_slot": self._last[1],
            "start_sequence_id": self._start,
        } | changes
        return MadeSegment(self._open.completed(**values), self.entries)


def random_segment(
    seed: int, lssn: int, *, records: int, version: int = 5, largest: int = 2_000, sealed: bool = False
) -> MadeSegment:
    """Return a segment of some records, with control records, sets and compressed entries in between."""
    dice = random.Random(seed)
    maker = SegmentMaker(lssn, version=version, start_sequence_id=lssn * 1_000, first_txid=dice.randrange(1 << 40))
    while maker.position < records:
        kind = dice.random()
        if kind < 0.1:
            maker.control(dice.randbytes(dice.randrange(20)))
        elif kind < 0.2:
            codec = dice.choice(list(Compression))
            maker.record_set([drawn_payload(dice, 200) for _ in range(dice.randrange(6))], codec)
        elif kind < 0.4:
            maker.end_entry(dice.choice(list(Compression)))
        else:
            maker.record(drawn_payload(dice, largest), maker.txid + dice.choice((0, 0, 1, 1_000)))
    if sealed:
        maker.end_of_stream()
    maker.end_entry()
    if dice.random() < 0.5:
        maker.control()
    return maker.finish()


def drawn_payload(dice: random.Random, largest: int) -> bytes:
    """Return bytes of a drawn length, which compress well or not at all."""
    kind = dice.random()
    size = 0 if kind < 0.05 else largest if kind > 0.995 else int(largest * dice.random() ** 4)
    return dice.randbytes(size) if dice.random() < 0.5 else (b"%d," % dice.randrange(100)) * (size // 4)


def written(
    segments: Iterable[MadeSegment],
    declaration: Declaration | None = None,
    *,
    at_once: int = 7,
    row_group_bytes: int = 64 << 10,
) -> tuple[bytes, WrittenFile]:
    """Return a cold file of segments, and what its writer said."""
    data = bytearray()
    writer = ColdFileWriter(data.extend, IDENTITY, declaration, row_group_bytes=row_group_bytes)
    for one in segments:
        writer.begin_segment(one.metadata, sum(len(payload) for _, payload in one.entries))
        for first in range(0, len(one.entries), at_once):
            writer.add(one.entries[first : first + at_once])
        writer.end_segment()
    done = writer.finish()
    return bytes(data), done


def footer_of(data: bytes, url: str = "file:///cold.parquet") -> Footer:
    """Return a file's footer, read as a reader reads it."""
    tail = data[-TAIL_BYTES:]
    return Footer.parse(data[-Footer.bytes_needed(tail, len(data)) :], len(data), url)


def parts_of(data: bytes, ranges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], memoryview]:
    """Return parts of a file as a reader has them that fetches ranges."""
    return {(offset, length): memoryview(data)[offset : offset + length] for offset, length in ranges}


def records_of(data: bytes, footer: Footer, index: int) -> RecordColumns:
    """Return the records of a row group."""
    return decode_records(footer, index, parts_of(data, footer.ranges(index, footer.record_columns(index))))


def rebuilt(
    data: bytes, footer: Footer, lssn: int, first: int = 0, last: int | None = None
) -> list[tuple[int, memoryview]]:
    """Return entries of a segment as they come out of a file."""
    end = footer.last_entry(lssn) if last is None else last
    batches = (records_of(data, footer, index) for index in footer.groups_of(lssn, first, end))
    return list(rebuild_entries(footer, lssn, batches, first, end))


def columns(
    data: bytes, footer: Footer, segment: MadeSegment, first: int = 0, last: int | None = None, max_bytes: int = 1 << 20
) -> list[EntryColumns]:
    """Return the same entries as the columns of their records, as readers get them."""
    lssn, start = segment.metadata.lssn, segment.metadata.effective_start_sequence_id
    end = footer.last_entry(lssn) if last is None else last
    batches = (records_of(data, footer, index) for index in footer.groups_of(lssn, first, end))
    return list(columns_of_entries(footer, lssn, start, max_bytes, batches, first, end))


def decoded(segment: MadeSegment, entries: Iterable[tuple[int, memoryview]]) -> list[list[LogRecord]]:
    """Return the records of entries of a segment."""
    return MadeSegment(segment.metadata, list(entries)).records()


LARGEST = MAX_PAYLOAD_BYTES
"""Bytes of the largest payload that a record may have."""
assert HEADER_BYTES + LARGEST + ENVELOPE_BYTES <= MAX_LOGRECORDSET_SIZE


def verified(data: bytes, url: str) -> WholeFile:
    """Return what is in a file, all of which is checked. Raises DamagedColdFileError."""
    needed = Footer.bytes_needed(memoryview(data[-8:]), len(data), url)
    verifier = FileVerifier(Footer.parse(memoryview(data[len(data) - needed :]), len(data), url))
    for offset, length in verifier.parts:
        verifier.take(data[offset : offset + length])
    return verifier.finish()
