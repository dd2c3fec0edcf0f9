"""Entries record by record: the builder of a writer's transmit buffer and the reference decoder.

What is vectorised in `vector_decoding` and `vector_encoding` gives the same results as this module, byte for byte and
error for error; the tests hold them to it.

An entry is the concatenation of its records, in an envelope where the segment's metadata version is 4 or above. The
k-th logical record of entry `e` (k from 0) has slot k; a record set takes as many slots as it holds payloads.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.envelopes import ENVELOPE_BYTES, Compression, unwrap, wrap
from dlspark.core.codec.record_sets import MAX_EXPANDED_BYTES, decode_record_set, record_set_count
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    HEADER_BYTES,
    INVALID_TXID,
    MAX_LOGRECORDSET_SIZE,
    MAX_POSITION,
    LogRecord,
    RecordHeader,
    check_record,
    decode_header,
    encode_header,
    sequence_id,
)
from dlspark.errors import InvalidEntryError, InvalidRecordError
from metadata.foundation.errors import check
from storage_node.protocol.frames import Buffer


@dataclass(frozen=True, slots=True)
class EncodedEntry:
    """An entry ready to be added to a ledger: `LedgerWriter.add(*entry.buffers)`. The buffers must not be changed."""

    buffers: tuple[Buffer, ...]
    record_count: int
    """Slots taken: logical records, the members of record sets counted one by one."""
    first_txid: int
    """Of the first and last record that is not a control record; INVALID_TXID where there is none."""
    last_txid: int
    user_bytes: int
    """Payload bytes of user records."""

    @property
    def size(self) -> int:
        """Bytes of the ledger entry's payload."""
        return sum([len(one) if type(one) is bytes else memoryview(one).nbytes for one in self.buffers])


class EntryBuilder:
    """Fills one transmit buffer record by record; after `finish` it is empty and can be filled again."""

    __slots__ = ("_bytes", "_compression", "_enveloped", "_first_txid", "_last_txid", "_parts", "_slots", "_user_bytes")

    def __init__(self, compression: Compression = Compression.NONE, *, enveloped: bool = True) -> None:
        self._compression = compression
        self._enveloped = enveloped
        self._parts: list[Buffer] = []
        self._bytes = self._slots = self._user_bytes = 0
        self._first_txid = self._last_txid = INVALID_TXID
        self._clear()

    @property
    def size(self) -> int:
        """Bytes in the buffer, the envelope's header included."""
        return self._bytes

    @property
    def count(self) -> int:
        """Slots taken so far: the next record's slot id."""
        return self._slots

    def has_room(self, payload_length: int) -> bool:
        """Whether a record of this payload fits; an empty buffer takes any legal record."""
        return self._bytes + HEADER_BYTES + payload_length <= MAX_LOGRECORDSET_SIZE

    def add(self, txid: int, payload: Buffer, position: int, flags: int = 0) -> int:
        """Append one record and return its (first) slot id.

        Raises RecordTooLongError, TransactionIdOutOfOrderError or SegmentFullError, and InvalidRecordError for a
        malformed record set; the buffer is as it was. The caller transmits first when `has_room` says no.
        """
        length = memoryview(payload).nbytes
        check_record(txid, length, position, flags)
        check(self.has_room(length), "a record was added to a full transmit buffer")
        slots = _members(payload, position) if flags & FLAG_RECORD_SET else 1
        slot = self._slots
        self._parts += (encode_header(txid, length, position, flags), payload)
        self._bytes += HEADER_BYTES + length
        self._slots += slots
        if not flags & FLAG_CONTROL:
            self._first_txid = txid if self._first_txid == INVALID_TXID else self._first_txid
            self._last_txid = txid
            self._user_bytes += 0 if flags & FLAG_END_OF_STREAM else length
        return slot

    def finish(self) -> EncodedEntry:
        """The filled entry. It must hold at least one record."""
        check(bool(self._parts), "an empty transmit buffer was finished")
        content = b"".join(self._parts)
        buffers = wrap(content, self._compression) if self._enveloped else (content,)
        entry = EncodedEntry(buffers, self._slots, self._first_txid, self._last_txid, self._user_bytes)
        self._clear()
        return entry

    def _clear(self) -> None:
        self._parts = []
        self._bytes = ENVELOPE_BYTES if self._enveloped else 0
        self._slots = 0
        self._first_txid = self._last_txid = INVALID_TXID
        self._user_bytes = 0


def _members(payload: Buffer, position: int) -> int:
    try:
        count = record_set_count(payload)
    except InvalidEntryError as error:
        raise InvalidRecordError(f"not a record set: {error.message}", advice="Use encode_record_set") from error
    check_record(0, 0, position + max(count, 1) - 1)
    return count


def entry_content(payload: memoryview, enveloped: bool, place: DLSN | None = None) -> memoryview:
    """The records of an entry, out of their envelope. Raises InvalidEntryError; a zero-length entry is one."""
    view = payload if payload.format == "B" and payload.ndim == 1 else payload.cast("B")
    if not len(view):
        raise InvalidEntryError("an entry has no bytes at all; no writer stores such an entry", dlsn=place)
    return unwrap(view, place) if enveloped else view


def decode_entry(
    payload: memoryview,
    *,
    lssn: int,
    entry_id: int,
    start_sequence_id: int,
    enveloped: bool = True,
    expand_record_sets: bool = True,
) -> list[LogRecord]:
    """All records of an entry in slot order, control and end-of-stream records included.

    Args:
        payload: the ledger entry's payload, its digest already verified.
        start_sequence_id: of the segment; sequence ids are meaningless where it is unassigned.
        enveloped: whether the segment's metadata version is 4 or above.
        expand_record_sets: deliver the members of record sets; else each set whole, `slots` telling its size.

    Raises InvalidEntryError carrying the DLSN; nothing of the entry is returned then (I12).
    """
    content = entry_content(payload, enveloped, DLSN(lssn, entry_id, 0))
    return decode_content(content, lssn, entry_id, start_sequence_id, expand_record_sets)


def decode_content(
    content: memoryview, lssn: int, entry_id: int, start_sequence_id: int, expand_record_sets: bool = True
) -> list[LogRecord]:
    """`decode_entry` for records that are out of their envelope."""
    records: list[LogRecord] = []
    offset = slot = expanded = 0
    while offset < len(content):
        dlsn = DLSN(lssn, entry_id, slot)
        header = decode_header(content, offset, len(content), dlsn)
        body = content[header.start : header.end]
        if not header.flags & FLAG_RECORD_SET:
            records.append(_record(header, bytes(body), dlsn, start_sequence_id))
            slot += 1
        elif expand_record_sets:
            members = decode_record_set(body, dlsn, limit=max(MAX_EXPANDED_BYTES - expanded, 0))
            records += expand(header, members, dlsn, start_sequence_id)
            expanded += sum(map(len, members))
            slot += len(members)
        else:
            count = record_set_count(body, dlsn)
            check_last_position(header.position, count, dlsn)
            records.append(_record(header, bytes(body), dlsn, start_sequence_id, count))
            slot += count
        offset = header.end
    return records


def expand(header: RecordHeader, members: list[memoryview], first: DLSN, start_sequence_id: int) -> list[LogRecord]:
    """The members of a record set as records of their own."""
    check_last_position(header.position, len(members), first)
    records = []
    for i, member in enumerate(members):
        dlsn = DLSN(first.lssn, first.entry_id, first.slot_id + i)
        position = header.position + i
        number = sequence_id(start_sequence_id, position)
        records.append(LogRecord(header.txid, bytes(member), dlsn, position, 0, number))
    return records


def check_last_position(position: int, count: int, place: DLSN) -> None:
    """Raise InvalidEntryError where a record set of `count` members would number them past the last position."""
    if position + count - 1 > MAX_POSITION:
        raise InvalidEntryError(
            f"a record set of {count} payloads at position {position} goes past {MAX_POSITION}", dlsn=place
        )


def _record(header: RecordHeader, payload: bytes, dlsn: DLSN, start_sequence_id: int, slots: int = 1) -> LogRecord:
    number = sequence_id(start_sequence_id, header.position)
    return LogRecord(header.txid, payload, dlsn, header.position, header.flags, number, slots)
