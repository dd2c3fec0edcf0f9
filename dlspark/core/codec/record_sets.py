"""Record sets: several payloads in one record (docs/reference/records.md#record-sets).

Payload of a record with flag 0x4:

    offset  type   field
    0       i32    version in mask 0xf000 (0x1000), codec in mask 0x3
    4       i32    number of payloads
    8       i32    decompressed length
    12      i32    stored length
    16      bytes  stored payload: `count` times { i32 length, bytes }, compressed or not

The payloads take the outer record's transaction id, its slot and position onwards, and no flags. Upstream bounds the
stored size only (it is one record); what it may expand to is bounded here by `MAX_EXPANDED_BYTES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.envelopes import CODEC_MASK, Compression, compress, decompress
from dlspark.core.codec.records import MAX_LOGRECORD_SIZE, check_payload_length
from dlspark.errors import InvalidEntryError, RecordTooLongError
from storage_node.protocol.frames import Buffer

SET_HEADER = Struct(">Iiii")
SET_HEADER_BYTES = 16
SET_VERSION = 0x1000
_LENGTH = Struct(">I")
_LENGTH_BYTES = 4
MAX_EXPANDED_BYTES = 64 * 1024 * 1024
"""Most bytes that the record sets of one entry may expand to, together."""


def encode_record_set(payloads: Sequence[Buffer], compression: Compression = Compression.NONE) -> bytes:
    """The payload of a record with flag 0x4 that holds `payloads`; it takes `len(payloads)` slots and positions.

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
    """What the set expands to, by its header alone. Raises InvalidEntryError."""
    return _header(payload, None)[2]


def record_set_count(payload: Buffer, place: DLSN | None = None) -> int:
    """How many payloads the set holds, by its header alone. Raises InvalidEntryError."""
    return _header(payload, place)[1]


def decode_record_set(
    payload: memoryview, place: DLSN | None = None, *, limit: int = MAX_EXPANDED_BYTES
) -> list[memoryview]:
    """The payloads of a set, as views. Raises InvalidEntryError carrying `place`; `limit` bounds what it expands to."""
    codec, count, length, stored_length = _header(payload, place)
    stored = payload[SET_HEADER_BYTES:]
    if stored_length != len(stored):
        raise InvalidEntryError(f"a record set claims {stored_length} stored bytes and has {len(stored)}", dlsn=place)
    if count * _LENGTH_BYTES > max(length, 0):
        raise InvalidEntryError(f"a record set claims {count} payloads in {length} bytes", dlsn=place)
    content = decompress(stored, codec, length, limit=limit, place=place)
    payloads = []
    offset = 0
    for _ in range(count):
        start = offset + _LENGTH_BYTES
        if start > len(content):
            raise InvalidEntryError("a record set ends inside a length", dlsn=place)
        offset = start + _LENGTH.unpack_from(content, offset)[0]
        if offset > len(content):
            raise InvalidEntryError("a record set ends inside a payload", dlsn=place)
        payloads.append(content[start:offset])
    if offset != len(content):
        raise InvalidEntryError(f"a record set has {len(content) - offset} bytes after its last payload", dlsn=place)
    return payloads


def _header(payload: Buffer, place: DLSN | None) -> tuple[int, int, int, int]:
    size = memoryview(payload).nbytes
    if size < SET_HEADER_BYTES:
        raise InvalidEntryError(
            f"a record set of {size} bytes is shorter than its header of {SET_HEADER_BYTES}", dlsn=place
        )
    word, count, length, stored_length = SET_HEADER.unpack_from(payload)
    if word & ~CODEC_MASK != SET_VERSION:
        raise InvalidEntryError(f"a record set has version word {word:#x}; only version 0x1000 is known", dlsn=place)
    if count < 0:
        raise InvalidEntryError(f"a record set claims {count} payloads", dlsn=place)
    return word & CODEC_MASK, count, length, stored_length
