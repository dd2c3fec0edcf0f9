"""One log record and its bytes (log format, sections 1.2, 1.5 and 1.6).

    offset  type     field
    0       i64      metadata word
    8       i64      transaction id
    16      i32      payload length n
    20      n bytes  payload

The metadata word holds the flags in its low 16 bits (bit 0 control, bit 1 end of stream, bit 2 record set; the rest
written 0 and ignored on reading) and the position within the segment in bits 16..47. Positions count user records and
start at 1; a control or end-of-stream record carries the position of the user record before it. Integers are
big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import InvalidEntryError, RecordTooLongError, SegmentFullError, TransactionIdOutOfOrderError
from metadata.errors import check
from storage_node.protocol.frames import Buffer

HEADER = Struct(">QqI")
"""Metadata word, transaction id, payload length. Read unsigned, so that a negative length shows as one too long."""

HEADER_BYTES = 20
MAX_LOGRECORD_SIZE = 1_040_384
"""Largest persistent size of a record: header and payload, bytes."""
MAX_PAYLOAD_BYTES = MAX_LOGRECORD_SIZE - HEADER_BYTES
MAX_LOGRECORDSET_SIZE = 1_044_480
"""Largest transmit buffer: envelope and records, bytes."""

FLAG_CONTROL = 0x1
FLAG_END_OF_STREAM = 0x2
FLAG_RECORD_SET = 0x4
FLAGS_MASK = 0xFFFF
KNOWN_FLAGS = FLAG_CONTROL | FLAG_END_OF_STREAM | FLAG_RECORD_SET
POSITION_SHIFT = 16
POSITION_MASK = 0xFFFF_FFFF
MAX_POSITION = 2**31 - 1
"""The field has 32 bits, but Java keeps it in a signed int."""

MAX_TXID = 2**63 - 1
"""Transaction id of the end-of-stream record; never legal for a user record."""
INVALID_TXID = -999
EMPTY_LOGSEGMENT_TX_ID = -99

CONTROL_PAYLOAD = b"control"
KEEPALIVE_PAYLOAD = b"keepalive"
END_OF_STREAM_PAYLOAD = b"endOfStream"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record read from a log."""

    txid: int
    payload: bytes
    dlsn: DLSN
    position: int
    """Number of user records in the segment up to and including this one (1-based)."""
    flags: int
    sequence_id: int
    """Number of user records in the log before this one; meaningless where the segment has no start sequence id."""
    slots: int = 1
    """How many slots and positions the record takes: more than 1 only for a record set delivered whole."""

    @property
    def is_control(self) -> bool:
        return bool(self.flags & FLAG_CONTROL)

    @property
    def is_end_of_stream(self) -> bool:
        return bool(self.flags & FLAG_END_OF_STREAM)

    @property
    def is_record_set(self) -> bool:
        return bool(self.flags & FLAG_RECORD_SET)

    @property
    def is_user(self) -> bool:
        """Neither a control record nor the end of stream: readers decide on flags, never on payloads."""
        return not self.flags & (FLAG_CONTROL | FLAG_END_OF_STREAM)

    @property
    def last_position(self) -> int:
        """Position of the last payload in it: differs from `position` for a record set delivered whole."""
        return self.position + max(self.slots, 1) - 1

    def _repr_html_(self) -> str:
        from dlspark.core.display.objects import records_html

        return records_html([self])


def sequence_id(start_sequence_id: int, position: int) -> int:
    """`start + position - 1` in wrapping 64-bit arithmetic: an unassigned start is a huge negative number."""
    return (start_sequence_id + position - 1 + (1 << 63)) % (1 << 64) - (1 << 63)


def encode_header(txid: int, length: int, position: int, flags: int = 0) -> bytes:
    """The 20 bytes before a payload of `length` bytes. The caller has checked size, id and position."""
    return HEADER.pack(position << POSITION_SHIFT | flags, txid, length)


def encode_record(txid: int, payload: Buffer, position: int, flags: int = 0) -> bytes:
    """One record's bytes.

    Raises RecordTooLongError, TransactionIdOutOfOrderError or SegmentFullError; nothing was encoded.
    """
    length = memoryview(payload).nbytes
    check_record(txid, length, position, flags)
    return b"".join((encode_header(txid, length, position, flags), payload))


def check_record(txid: int, length: int, position: int, flags: int = 0) -> None:
    """Raise unless a record of these values may be written; the rules of user records do not bind system records."""
    check(not flags & ~KNOWN_FLAGS, f"flags {flags:#x} are not flags of a record")
    check_payload_length(length)
    if not flags & (FLAG_CONTROL | FLAG_END_OF_STREAM):
        check_user_txid(txid)
    if not 0 <= position <= MAX_POSITION:
        raise SegmentFullError(
            f"position {position} is past {MAX_POSITION}, the last one a segment can hold",
            advice="Complete the segment and write to a new one",
        )


def check_payload_length(length: int) -> None:
    """Raise RecordTooLongError unless a payload of `length` bytes fits in one record."""
    if length > MAX_PAYLOAD_BYTES:
        raise RecordTooLongError(
            f"a payload of {length} bytes is longer than {MAX_PAYLOAD_BYTES}, the most one record can hold",
            advice="Split it, or store it elsewhere and log a reference; nothing was written",
        )


def check_user_txid(txid: int) -> None:
    """Raise TransactionIdOutOfOrderError unless a user record may carry `txid`."""
    if not 0 <= txid < MAX_TXID:
        raise TransactionIdOutOfOrderError(
            f"transaction id {txid} is outside 0..{MAX_TXID - 1}",
            advice="Use epoch milliseconds or another non-negative number; nothing was written",
        )


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A decoded header; the payload is `data[start : end]` of what it was read from."""

    txid: int
    position: int
    flags: int
    start: int
    end: int


def decode_header(data: Buffer, offset: int, size: int, place: DLSN | None = None) -> RecordHeader:
    """The header at `offset` of `data`, of which `size` bytes are records.

    Raises InvalidEntryError, carrying `place`, where header or payload reach past `size` or the position is out of
    range.
    """
    start = offset + HEADER_BYTES
    if start > size:
        raise InvalidEntryError(
            f"an entry ends {size - offset} bytes into a record's header of {HEADER_BYTES}", dlsn=place
        )
    word, txid, length = HEADER.unpack_from(data, offset)
    if length > size - start:
        claimed = length if length <= MAX_POSITION else length - (1 << 32)
        raise InvalidEntryError(
            f"a record claims a payload of {claimed} bytes where {size - start} are left in the entry", dlsn=place
        )
    position = word >> POSITION_SHIFT & POSITION_MASK
    if position > MAX_POSITION:
        raise InvalidEntryError(f"a record claims position {position}, past {MAX_POSITION}", dlsn=place)
    return RecordHeader(txid, position, word & FLAGS_MASK, start, start + length)
