"""The envelope around an entry's records, and the raw LZ4 blocks in it (docs/reference/records.md#enveloped-entries).

Entries of segments of metadata version 4 and above:

    offset  type   field
    0       i8     envelope version, always 1
    1       i32    flags; the low 2 bits are the codec: 0 none, 1 LZ4; the others are 0
    5       i32    decompressed length
    9       i32    stored length
    13      bytes  stored payload

LZ4 means one raw block: no frame, no size prefix. Every length is checked before anything is allocated for it, so a
forged header cannot ask for more than `limit` bytes.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

import lz4.block

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.errors import InvalidEntryError
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
    """The envelope header and the stored payload for the records in `content`."""
    stored = compress(content, compression)
    header = ENVELOPE.pack(ENVELOPE_VERSION, compression, memoryview(content).nbytes, memoryview(stored).nbytes)
    return header, stored


def unwrap(payload: memoryview, place: DLSN | None = None) -> memoryview:
    """The records inside an enveloped entry: a view of `payload`, or of fresh bytes where it is compressed.

    Raises InvalidEntryError carrying `place`; no part of the entry is returned then.
    """
    if len(payload) < ENVELOPE_BYTES:
        raise InvalidEntryError(
            f"an entry of {len(payload)} bytes is shorter than its envelope of {ENVELOPE_BYTES}", dlsn=place
        )
    version, flags, length, stored_length = ENVELOPE.unpack_from(payload)
    if version != ENVELOPE_VERSION:
        raise InvalidEntryError(f"an entry has envelope version {version}; only version 1 is known", dlsn=place)
    if stored_length != len(payload) - ENVELOPE_BYTES:
        raise InvalidEntryError(
            f"an envelope claims {stored_length} stored bytes and holds {len(payload) - ENVELOPE_BYTES}", dlsn=place
        )
    return decompress(payload[ENVELOPE_BYTES:], flags, length, limit=MAX_LOGRECORDSET_SIZE, place=place)


def compress(content: Buffer, compression: Compression) -> Buffer:
    """`content` as the codec stores it; incompressible content may come out longer."""
    if compression is Compression.NONE:
        return content
    block: bytes = lz4.block.compress(content, store_size=False)
    return block


def decompress(stored: memoryview, codec: int, length: int, *, limit: int, place: DLSN | None = None) -> memoryview:
    """The `length` bytes that `stored` holds by `codec` (an envelope's or a record set's).

    Raises InvalidEntryError on an unknown codec, a length above `limit` or one that the stored bytes do not have.
    """
    if codec == Compression.NONE:
        if length != len(stored):
            raise InvalidEntryError(
                f"{len(stored)} uncompressed bytes are declared to be {length} decompressed ones", dlsn=place
            )
        return stored
    if codec != Compression.LZ4:
        raise InvalidEntryError(f"compression {codec:#x} is not known; only none (0) and LZ4 (1) are", dlsn=place)
    if not 0 <= length <= min(limit, len(stored) * _LZ4_MAX_RATIO):
        raise InvalidEntryError(
            f"{len(stored)} bytes of LZ4 are declared to hold {length}; at most {limit} are accepted", dlsn=place
        )
    try:
        content: bytes = lz4.block.decompress(stored, uncompressed_size=length)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise InvalidEntryError(f"an LZ4 block cannot be decompressed: {error}", dlsn=place) from error
    if len(content) != length:
        raise InvalidEntryError(f"an LZ4 block holds {len(content)} bytes instead of {length}", dlsn=place)
    return memoryview(content)
