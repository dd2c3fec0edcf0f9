"""One log record and its bytes (docs/reference/records.md#records).

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

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass
from itertools import repeat
from struct import Struct
from typing import Final, SupportsIndex, TypeAlias, overload

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.markup import heading, preview, table
from dlspark.errors import InvalidEntryError, RecordTooLongError, SegmentFullError, TransactionIdOutOfOrderError
from metadata.foundation.errors import check
from metadata.foundation.plurals import counted
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
HEARTBEAT_PAYLOAD = b"heartbeat"
END_OF_STREAM_PAYLOAD = b"endOfStream"


SharedFields: TypeAlias = tuple[int, int, int, int, int, int]
"""Parts that records may share: segment number, entry id, the segment's start sequence id, flags, slots, and the
position less the slot id, which grow together within an entry."""


class LogRecord:
    """A record read from a log: immutable, and equal to another one of the same place and content.

    Made by the million, so what the records of an entry share is stored once, and the rest is worked out when it is
    asked for.
    """

    __slots__ = ("_shared", "payload", "position", "txid")
    __match_args__ = ("txid", "payload", "dlsn", "position", "flags", "sequence_id", "slots")

    txid: int
    payload: bytes
    position: int
    """Number of user records in the segment up to and including this one (1-based)."""
    _shared: SharedFields

    def __init__(
        self, txid: int, payload: bytes, dlsn: DLSN, position: int, flags: int, sequence_id: int, slots: int = 1
    ) -> None:
        start_sequence_id = start_of_sequence(sequence_id, position)
        before = position - dlsn.slot_id
        _store_shared(self, (dlsn.lssn, dlsn.entry_id, start_sequence_id, flags, slots, before))
        _store_payload(self, payload)
        _store_position(self, position)
        _store_txid(self, txid)

    @staticmethod
    def of_columns(
        shared: Iterable[SharedFields],
        payloads: Iterable[bytes],
        positions: Iterable[int],
        txids: Sequence[int],
    ) -> list[LogRecord]:
        """Return one record for each transaction id; the other columns are as long.

        Without a step of the interpreter for each record: objects first, then one field of all of them after the other.
        """
        records = list(map(object.__new__, repeat(LogRecord, len(txids))))
        deque(map(_store_shared, records, shared), maxlen=0)
        deque(map(_store_payload, records, payloads), maxlen=0)
        deque(map(_store_position, records, positions), maxlen=0)
        deque(map(_store_txid, records, txids), maxlen=0)
        return records

    @property
    def dlsn(self) -> DLSN:
        """Where the record is in its log."""
        lssn, entry_id, _, _, _, before = self._shared
        return DLSN(lssn, entry_id, self.position - before)

    @property
    def flags(self) -> int:
        """The bits of the header: control, end of stream, record set."""
        return self._shared[3]

    @property
    def sequence_id(self) -> int:
        """Number of user records in the log before this one; meaningless where the segment has no start sequence id."""
        return sequence_id(self._shared[2], self.position)

    @property
    def slots(self) -> int:
        """How many slots and positions the record takes: more than 1 only for a record set delivered whole."""
        return self._shared[4]

    @property
    def is_control(self) -> bool:
        """True if a writer wrote it for itself: no reader gets it."""
        return bool(self.flags & FLAG_CONTROL)

    @property
    def is_end_of_stream(self) -> bool:
        """True if it seals the log."""
        return bool(self.flags & FLAG_END_OF_STREAM)

    @property
    def is_record_set(self) -> bool:
        """True if its payload holds several payloads."""
        return bool(self.flags & FLAG_RECORD_SET)

    @property
    def is_user(self) -> bool:
        """Neither a control record nor the end of stream: readers decide on flags, never on payloads."""
        return not self.flags & (FLAG_CONTROL | FLAG_END_OF_STREAM)

    @property
    def last_position(self) -> int:
        """Position of the last payload in it: differs from `position` for a record set delivered whole."""
        return self.position + max(self.slots, 1) - 1

    def _fields(self) -> tuple[int, bytes, DLSN, int, int, int, int]:
        return (self.txid, self.payload, self.dlsn, self.position, self.flags, self.sequence_id, self.slots)

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, LogRecord) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        shown = zip(self.__match_args__, self._fields(), strict=True)
        return f"LogRecord({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def __reduce__(self) -> tuple[type[LogRecord], tuple[int, bytes, DLSN, int, int, int, int]]:
        return (LogRecord, self._fields())

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _repr_html_(self) -> str:
        return records_html([self])


RECORD_FIELDS: Final = tuple(vars(LogRecord)[name] for name in LogRecord.__slots__)
"""The descriptors of the fields, for the compiled core, which stores by them."""
# What stores each field, whatever `__setattr__` says.
_store_shared, _store_payload, _store_position, _store_txid = (field.__set__ for field in RECORD_FIELDS)


def sequence_id(start_sequence_id: int, position: int) -> int:
    """Return `start + position - 1` in 64 bits that wrap: an unassigned start is a huge negative number."""
    return _wrapped(start_sequence_id + position - 1)


def start_of_sequence(sequence_id: int, position: int) -> int:
    """Return the start with which the record at `position` has this sequence id."""
    return _wrapped(sequence_id - position + 1)


def _wrapped(number: int) -> int:
    """Return the number in 64 bits, signed."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def encode_header(txid: int, length: int, position: int, flags: int = 0) -> bytes:
    """Return the 20 bytes before a payload of `length` bytes. The caller has checked size, id and position."""
    return HEADER.pack(position << POSITION_SHIFT | flags, txid, length)


def encode_record(txid: int, payload: Buffer, position: int, flags: int = 0) -> bytes:
    """Return one record's bytes.

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


def decode_header(data: Buffer, offset: int, size: int, dlsn: DLSN | None = None) -> RecordHeader:
    """Return the header at `offset` of `data`, of which `size` bytes are records.

    Raises InvalidEntryError, carrying `dlsn`, where header or payload reach past `size` or the position is out of
    range.
    """
    start = offset + HEADER_BYTES
    if start > size:
        raise InvalidEntryError(
            f"an entry ends {size - offset} bytes into a record's header of {HEADER_BYTES}", dlsn=dlsn
        )
    word, txid, length = HEADER.unpack_from(data, offset)
    if length > size - start:
        claimed = length if length <= MAX_POSITION else length - (1 << 32)
        raise InvalidEntryError(
            f"a record claims a payload of {claimed} bytes where {size - start} are left in the entry", dlsn=dlsn
        )
    position = word >> POSITION_SHIFT & POSITION_MASK
    if position > MAX_POSITION:
        raise InvalidEntryError(f"a record claims position {position}, past {MAX_POSITION}", dlsn=dlsn)
    return RecordHeader(txid, position, word & FLAGS_MASK, start, start + length)


# ------------------------------------------------------------------ for people
class Records(list[LogRecord]):
    """The records that a synchronous reader returns: a list like any other, which a notebook shows as a table."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> LogRecord: ...

    @overload
    def __getitem__(self, index: slice, /) -> Records: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> LogRecord | Records:
        if isinstance(index, slice):
            return Records(super().__getitem__(index))
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        return records_html(self)


MAX_SHOWN: Final = 50
"""Records that a table shows; of more, the first and the last ones."""
_TABLE_HEAD: Final = ("DLSN", "transaction id", "sequence id", "bytes", "payload")


def record_cells(record: LogRecord) -> tuple[str, ...]:
    """Return a record in the columns of a table."""
    number = str(record.sequence_id) if record.sequence_id >= 0 else ""
    return str(record.dlsn), str(record.txid), number, f"{len(record.payload):,}", preview(record.payload)


def records_html(records: Sequence[LogRecord]) -> str:
    """Return records as a table under their number."""
    return heading(counted(len(records), "record")) + records_table(records)


def records_table(records: Sequence[LogRecord]) -> str:
    """Return records as a table; of a long list its two ends; of none nothing."""
    if not records:
        return ""
    if len(records) <= MAX_SHOWN:
        rows = [record_cells(record) for record in records]
    else:
        half = MAX_SHOWN // 2
        between = (f"… {len(records) - 2 * half:,} more …", "", "", "", "")
        rows = [*map(record_cells, records[:half]), between, *map(record_cells, records[-half:])]
    return table(_TABLE_HEAD, rows)
