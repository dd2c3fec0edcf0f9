"""Entries record by record: envelopes, record sets, a writer's transmit buffer and the reference decoder.

    BookKeeper ledger (one a log segment)
      entry 0..LAC              one entry = one transmitted buffer
        [envelope, 13 bytes]    segments of metadata version 4 and above
        record, record, ...     back to back (`records`)
          a record may be a record set that holds several payloads

Two ways lead in each direction, equal in result, byte for byte and error for error: record by record, here, and by
columns (`vector_encoding`, `vector_decoding`); the tests hold the columns to this module. The k-th logical record of
entry `e` (k from 0) has slot k; a record set takes as many slots as it holds payloads.

The envelope (docs/reference/records.md#enveloped-entries):

    offset  type   field
    0       i8     envelope version, always 1
    1       i32    flags; the low 2 bits are the codec: 0 none, 1 LZ4; the others are 0
    5       i32    decompressed length
    9       i32    stored length
    13      bytes  stored payload

A record set is the payload of a record with flag 0x4 (docs/reference/records.md#record-sets):

    offset  type   field
    0       i32    version in mask 0xf000 (0x1000), codec in mask 0x3
    4       i32    number of payloads
    8       i32    decompressed length
    12      i32    stored length
    16      bytes  stored payload: `count` times { i32 length, bytes }, compressed or not

The payloads of a set take the outer record's transaction id, its slot and position onwards, and no flags. Upstream
bounds the stored size only (it is one record); what it may expand to is bounded here by `MAX_EXPANDED_BYTES`.

LZ4 means one raw block: no frame, no size prefix. Every length is checked before anything is allocated for it, so a
forged header cannot ask for more than its limit. Whatever the bytes, decoding returns all records of an entry or raises
InvalidEntryError (I12).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain, pairwise
from struct import Struct
from typing import NamedTuple

import lz4.block

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    HEADER,
    HEADER_BYTES,
    INVALID_TXID,
    MAX_LOGRECORD_SIZE,
    MAX_LOGRECORDSET_SIZE,
    MAX_POSITION,
    POSITION_SHIFT,
    LogRecord,
    RecordHeader,
    check_payload_length,
    check_record,
    decode_header,
    encode_header,
    sequence_id,
)
from dlspark.errors import InvalidEntryError, InvalidRecordError, RecordTooLongError
from metadata.foundation.errors import check
from storage_node.protocol.frames import Buffer

ENVELOPE = Struct(">bIii")
ENVELOPE_BYTES = 13
ENVELOPE_VERSION = 1
CODEC_MASK = 0x3
_LZ4_MAX_RATIO = 255
"""A raw LZ4 block cannot expand further than this, whatever its content."""


class Compression(IntEnum):
    """Codecs of envelopes and record sets; 2 and 3 are not assigned."""

    NONE = 0
    LZ4 = 1


def wrap(content: Buffer, compression: Compression) -> tuple[bytes, Buffer]:
    """Return the envelope header and the stored payload for the records in `content`."""
    stored = compress(content, compression)
    header = ENVELOPE.pack(ENVELOPE_VERSION, compression, memoryview(content).nbytes, memoryview(stored).nbytes)
    return header, stored


def unwrap(payload: memoryview, dlsn: DLSN | None = None) -> memoryview:
    """Return the records inside an enveloped entry: a view of `payload`, or of fresh bytes where it is compressed.

    Raises InvalidEntryError carrying `dlsn`; no part of the entry is returned then.
    """
    if len(payload) < ENVELOPE_BYTES:
        raise InvalidEntryError(
            f"an entry of {len(payload)} bytes is shorter than its envelope of {ENVELOPE_BYTES}", dlsn=dlsn
        )
    version, flags, length, stored_length = ENVELOPE.unpack_from(payload)
    if version != ENVELOPE_VERSION:
        raise InvalidEntryError(f"an entry has envelope version {version}; only version 1 is known", dlsn=dlsn)
    if stored_length != len(payload) - ENVELOPE_BYTES:
        raise InvalidEntryError(
            f"an envelope claims {stored_length} stored bytes and holds {len(payload) - ENVELOPE_BYTES}", dlsn=dlsn
        )
    return decompress(payload[ENVELOPE_BYTES:], flags, length, limit=MAX_LOGRECORDSET_SIZE, dlsn=dlsn)


def compress(content: Buffer, compression: Compression) -> Buffer:
    """Return `content` as the codec stores it; incompressible content may come out longer."""
    if compression is Compression.NONE:
        return content
    block: bytes = lz4.block.compress(content, store_size=False)
    return block


def decompress(stored: memoryview, codec: int, length: int, *, limit: int, dlsn: DLSN | None = None) -> memoryview:
    """Return the `length` bytes that `stored` holds by `codec` (an envelope's or a record set's).

    Raises InvalidEntryError on an unknown codec, a length above `limit`, or a length that the stored bytes do not have.
    """
    if codec == Compression.NONE:
        if length != len(stored):
            raise InvalidEntryError(
                f"{len(stored)} uncompressed bytes are declared to be {length} decompressed ones", dlsn=dlsn
            )
        return stored
    if codec != Compression.LZ4:
        raise InvalidEntryError(f"compression {codec:#x} is not known; only none (0) and LZ4 (1) are", dlsn=dlsn)
    # Before anything is allocated: a forged length must not cost memory, and LZ4 cannot hold more than its ratio.
    if not 0 <= length <= min(limit, len(stored) * _LZ4_MAX_RATIO):
        raise InvalidEntryError(
            f"{len(stored)} bytes of LZ4 are declared to hold {length}; at most {limit} are accepted", dlsn=dlsn
        )
    try:
        content: bytes = lz4.block.decompress(stored, uncompressed_size=length)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise InvalidEntryError(f"an LZ4 block cannot be decompressed: {error}", dlsn=dlsn) from error
    if len(content) != length:
        raise InvalidEntryError(f"an LZ4 block holds {len(content)} bytes instead of {length}", dlsn=dlsn)
    return memoryview(content)


# ------------------------------------------------------------------ record sets
SET_HEADER = Struct(">Iiii")
SET_HEADER_BYTES = 16
SET_VERSION = 0x1000
_LENGTH = Struct(">I")
_LENGTH_BYTES = 4
MAX_EXPANDED_BYTES = 64 * 1024 * 1024
"""Most bytes that the record sets of one entry may expand to, together."""
RECORD_COST_BYTES = 256
"""Bytes that a record takes of a reader besides its payload, which may be empty."""


def encode_record_set(payloads: Sequence[Buffer], compression: Compression = Compression.NONE) -> bytes:
    """Return the payload of a record with flag 0x4 that holds `payloads`; it takes `len(payloads)` slots and positions.

    Raises RecordTooLongError where one payload, or the finished set, is too long for a record.
    """
    pieces: list[Buffer] = []
    for payload in payloads:
        length = memoryview(payload).nbytes
        if length > MAX_LOGRECORD_SIZE:
            raise RecordTooLongError(
                f"a payload of {length} bytes is longer than {MAX_LOGRECORD_SIZE}, the most a record set takes",
                advice="Split it; nothing was written",
            )
        pieces += (_LENGTH.pack(length), payload)
    content = b"".join(pieces)
    if len(content) > MAX_EXPANDED_BYTES:
        raise RecordTooLongError(
            f"a record set of {len(content)} bytes before compression is longer than {MAX_EXPANDED_BYTES}, the most "
            "that readers expand",
            advice="Split it into several; nothing was written",
        )
    stored = compress(content, compression)
    stored_length = memoryview(stored).nbytes
    check_payload_length(SET_HEADER_BYTES + stored_length)
    header = SET_HEADER.pack(SET_VERSION | compression, len(payloads), len(content), stored_length)
    return b"".join((header, stored))


def expanded_bytes(payload: Buffer) -> int:
    """Return what the set expands to, by its header alone. Raises InvalidEntryError."""
    return _header(payload, None)[2]


def reading_bytes(payload: Buffer) -> int:
    """Return about what readers need for the set, by its header alone: its bytes, and a record for each payload. Raises
    InvalidEntryError."""
    _, count, length, _ = _header(payload, None)
    return length + count * RECORD_COST_BYTES


def record_set_count(payload: Buffer, dlsn: DLSN | None = None) -> int:
    """Return how many payloads the set holds, by its header alone. Raises InvalidEntryError."""
    return _header(payload, dlsn)[1]


def decode_record_set(
    payload: memoryview, dlsn: DLSN | None = None, *, limit: int = MAX_EXPANDED_BYTES
) -> list[memoryview]:
    """Return the payloads of a set, as views. Raises InvalidEntryError carrying `dlsn`; `limit` bounds what it expands
    to."""
    content, ends = _opened(payload, dlsn, limit)
    return [content[start + _LENGTH_BYTES : end] for start, end in pairwise(ends)]


def check_record_set(payload: memoryview) -> int:
    """Return how many payloads a set holds that can be opened; none of them is made. Raises InvalidEntryError, also for
    a payload that is longer than a record may be: readers of a proxy could not get past it."""
    _, ends = _opened(payload, None, MAX_EXPANDED_BYTES)
    longest = max((end - start for start, end in pairwise(ends)), default=0) - _LENGTH_BYTES
    if longest > MAX_LOGRECORD_SIZE:
        raise InvalidEntryError(
            f"a payload of {longest} bytes is longer than {MAX_LOGRECORD_SIZE}, the most a record set takes"
        )
    return len(ends) - 1


def _opened(payload: memoryview, dlsn: DLSN | None, limit: int) -> tuple[memoryview, list[int]]:
    """Return the content of a set, and where its payloads end, the first one's begin before them."""
    codec, count, length, stored_length = _header(payload, dlsn)
    stored = payload[SET_HEADER_BYTES:]
    if stored_length != len(stored):
        raise InvalidEntryError(f"a record set claims {stored_length} stored bytes and has {len(stored)}", dlsn=dlsn)
    # Each payload takes at least its length field: a forged count must not size the loop below.
    if count * _LENGTH_BYTES > max(length, 0):
        raise InvalidEntryError(f"a record set claims {count} payloads in {length} bytes", dlsn=dlsn)
    content = decompress(stored, codec, length, limit=limit, dlsn=dlsn)
    size, offset = len(content), 0
    ends = [0]
    for _ in range(count):
        if offset + _LENGTH_BYTES > size:
            raise InvalidEntryError("a record set ends inside a length", dlsn=dlsn)
        offset += _LENGTH_BYTES + _LENGTH.unpack_from(content, offset)[0]
        if offset > size:
            raise InvalidEntryError("a record set ends inside a payload", dlsn=dlsn)
        ends.append(offset)
    if offset != size:  # Bytes left over are damage, not padding: nothing is passed over in silence (I12).
        raise InvalidEntryError(f"a record set has {size - offset} bytes after its last payload", dlsn=dlsn)
    return content, ends


def _header(payload: Buffer, dlsn: DLSN | None) -> tuple[int, int, int, int]:
    size = memoryview(payload).nbytes
    if size < SET_HEADER_BYTES:
        raise InvalidEntryError(
            f"a record set of {size} bytes is shorter than its header of {SET_HEADER_BYTES}", dlsn=dlsn
        )
    word, count, length, stored_length = SET_HEADER.unpack_from(payload)
    if word & ~CODEC_MASK != SET_VERSION:
        raise InvalidEntryError(f"a record set has version word {word:#x}; only version 0x1000 is known", dlsn=dlsn)
    if count < 0:
        raise InvalidEntryError(f"a record set claims {count} payloads", dlsn=dlsn)
    return word & CODEC_MASK, count, length, stored_length


# ------------------------------------------------------------------ records of an entry
class EncodedEntry(NamedTuple):
    """An entry ready to be added to a ledger: `LedgerWriter.add(*entry.buffers)`. The buffers must not be changed."""

    buffers: tuple[Buffer, ...]
    record_count: int
    """Slots taken: logical records, the members of record sets counted one by one."""
    user_count: int
    """How many of them are user records: neither control records nor the end of stream."""
    first_txid: int
    """Transaction ids of the first and last record that is not a control record; INVALID_TXID where there is none."""
    last_txid: int
    user_bytes: int
    """Payload bytes of user records."""

    @property
    def size(self) -> int:
        """Bytes of the ledger entry's payload."""
        return sum([len(one) if type(one) is bytes else memoryview(one).nbytes for one in self.buffers])


class EntryBuilder:
    """Fills one transmit buffer record by record; after `finish` it is empty and can be filled again."""

    __slots__ = (
        "_bytes",
        "_compression",
        "_enveloped",
        "_first_txid",
        "_last_txid",
        "_parts",
        "_slots",
        "_user_bytes",
        "_users",
    )

    def __init__(self, compression: Compression = Compression.NONE, *, enveloped: bool = True) -> None:
        self._compression = compression
        self._enveloped = enveloped
        self._parts: list[Buffer] = []
        self._bytes = self._slots = self._users = self._user_bytes = 0
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

    @property
    def room(self) -> int:
        """Bytes that are left for records, their headers included."""
        return MAX_LOGRECORDSET_SIZE - self._bytes

    def has_room(self, payload_length: int) -> bool:
        """Return whether a record of this payload fits; an empty buffer takes any legal record."""
        return self._bytes + HEADER_BYTES + payload_length <= MAX_LOGRECORDSET_SIZE

    def add(self, txid: int, payload: Buffer, position: int, flags: int = 0) -> int:
        """Append one record and return its (first) slot id.

        Raises RecordTooLongError, TransactionIdOutOfOrderError or SegmentFullError, and InvalidRecordError for a
        malformed record set; the buffer is as it was. The caller transmits first when `has_room` says no.
        """
        length = memoryview(payload).nbytes
        check_record(txid, length, position, flags)
        check(self.has_room(length), "a record was added to a full transmit buffer")
        # Everything that can refuse the record comes before the buffer changes.
        slots = _members(payload, position) if flags & FLAG_RECORD_SET else 1
        slot = self._slots
        self._parts += (encode_header(txid, length, position, flags), payload)
        self._bytes += HEADER_BYTES + length
        self._slots += slots
        if not flags & FLAG_CONTROL:
            self._first_txid = txid if self._first_txid == INVALID_TXID else self._first_txid
            self._last_txid = txid
            if not flags & FLAG_END_OF_STREAM:
                self._users += slots
                self._user_bytes += length
        return slot

    def add_run(self, txids: Sequence[int], payloads: Sequence[bytes], position: int) -> None:
        """Append user records side by side, the first at `position`; no step of the interpreter is taken for each.

        The caller has checked ids and lengths, and that all of them have `room`.
        """
        lengths = list(map(len, payloads))
        size = sum(lengths)
        taken = size + HEADER_BYTES * len(lengths)
        check(taken <= self.room, "records were added to a full transmit buffer")
        check(position + len(lengths) - 1 <= MAX_POSITION, "records would pass the last position of their segment")
        words = range(position << POSITION_SHIFT, (position + len(lengths)) << POSITION_SHIFT, 1 << POSITION_SHIFT)
        self._parts.extend(chain.from_iterable(zip(map(HEADER.pack, words, txids, lengths), payloads, strict=True)))
        self._bytes += taken
        self._slots += len(lengths)
        self._first_txid = txids[0] if self._first_txid == INVALID_TXID else self._first_txid
        self._last_txid = txids[-1]
        self._users += len(lengths)
        self._user_bytes += size

    def finish(self) -> EncodedEntry:
        """Return the filled entry. It must hold at least one record."""
        check(bool(self._parts), "an empty transmit buffer was finished")
        content = b"".join(self._parts)
        buffers = wrap(content, self._compression) if self._enveloped else (content,)
        entry = EncodedEntry(buffers, self._slots, self._users, self._first_txid, self._last_txid, self._user_bytes)
        self._clear()
        return entry

    def _clear(self) -> None:
        self._parts = []
        self._bytes = ENVELOPE_BYTES if self._enveloped else 0
        self._slots = self._users = 0
        self._first_txid = self._last_txid = INVALID_TXID
        self._user_bytes = 0


def _members(payload: Buffer, position: int) -> int:
    try:
        count = record_set_count(payload)
    except InvalidEntryError as error:
        raise InvalidRecordError(f"not a record set: {error.message}", advice="Use encode_record_set") from error
    check_record(0, 0, position + max(count, 1) - 1)
    return count


def entry_content(payload: memoryview, enveloped: bool, dlsn: DLSN | None = None) -> memoryview:
    """Return the records of an entry, out of their envelope. Raises InvalidEntryError; a zero-length entry is one."""
    view = payload if payload.format == "B" and payload.ndim == 1 else payload.cast("B")
    if not len(view):
        raise InvalidEntryError("an entry has no bytes at all; no writer stores such an entry", dlsn=dlsn)
    return unwrap(view, dlsn) if enveloped else view


def declared_bytes(payload: Buffer, enveloped: bool) -> int:
    """Return how long the records of an entry are, by its envelope; a damaged one counts as it is stored. What its
    record sets expand to is not in it."""
    size = memoryview(payload).nbytes
    if not enveloped or size < ENVELOPE_BYTES:
        return size
    declared: int = ENVELOPE.unpack_from(payload)[2]
    return max(declared, size)


def decode_entry(
    payload: memoryview,
    *,
    lssn: int,
    entry_id: int,
    start_sequence_id: int,
    enveloped: bool = True,
    expand_record_sets: bool = True,
) -> list[LogRecord]:
    """Return all records of an entry in slot order, control and end-of-stream records included.

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
    """Decode as `decode_entry`, records that are out of their envelope."""
    records: list[LogRecord] = []
    offset = slot = payloads = lengths = 0
    while offset < len(content):
        dlsn = DLSN(lssn, entry_id, slot)
        header = decode_header(content, offset, len(content), dlsn)
        body = content[header.start : header.end]
        if not header.flags & FLAG_RECORD_SET:
            records.append(_record(header, bytes(body), dlsn, start_sequence_id))
            slot += 1
        elif expand_record_sets:
            # The bound is the entry's: many small sets could expand to as much as one large one. Payloads may be empty,
            # so their lengths are held to it as well, but by themselves: what fitted without them still does.
            members = decode_record_set(body, dlsn, limit=max(MAX_EXPANDED_BYTES - max(payloads, lengths), 0))
            records += expand(header, members, dlsn, start_sequence_id)
            payloads += sum(map(len, members))
            lengths += _LENGTH_BYTES * len(members)
            slot += len(members)
        else:
            count = record_set_count(body, dlsn)
            check_last_position(header.position, count, dlsn)
            records.append(_record(header, bytes(body), dlsn, start_sequence_id, count))
            slot += count
        offset = header.end
    return records


def expand(header: RecordHeader, members: list[memoryview], first: DLSN, start_sequence_id: int) -> list[LogRecord]:
    """Return the members of a record set as records of their own."""
    check_last_position(header.position, len(members), first)
    records = []
    for i, member in enumerate(members):
        dlsn = DLSN(first.lssn, first.entry_id, first.slot_id + i)
        position = header.position + i
        number = sequence_id(start_sequence_id, position)
        records.append(LogRecord(header.txid, bytes(member), dlsn, position, 0, number))
    return records


def check_last_position(position: int, count: int, dlsn: DLSN) -> None:
    """Raise InvalidEntryError where a record set of `count` members would number them past the last position."""
    if position + count - 1 > MAX_POSITION:
        raise InvalidEntryError(
            f"a record set of {count} payloads at position {position} goes past {MAX_POSITION}", dlsn=dlsn
        )


def _record(header: RecordHeader, payload: bytes, dlsn: DLSN, start_sequence_id: int, slots: int = 1) -> LogRecord:
    number = sequence_id(start_sequence_id, header.position)
    return LogRecord(header.txid, payload, dlsn, header.position, header.flags, number, slots)
