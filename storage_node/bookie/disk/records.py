"""Records: the one format in which entries and facts about ledgers lie in memory, journal and entry log
(docs/reference/node-files.md#records).

    offset  length  field                            All integers are big-endian.
    0       4       magic, of which the last byte is the kind
    4       4       body length
    8       8       ledger id (for LOG: the log's id)
    16      8       entry id (0 where there is none)
    24      4       CRC-32 of the body
    28      4       CRC-32 of bytes [0, 28)
    32      n       body
            ..      nothing up to the next multiple of 32

Records follow each other without gaps; PAD covers what is left out, and its body means nothing. The header has a sum of
its own so that a damaged body costs that record only: a reader can still step over it.

ENTRY   an entry as the client sent it
LEDGER  a ledger's master key and whether it is fenced: flags (1 = fenced), key length, key
LAC     an explicit-LAC packet as the client sent it
LOG     the first record of an entry log
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from storage_node.protocol.digests import crc32
from storage_node.protocol.frames import Buffer

ALIGN = 32
HEADER_BYTES = 32
MAGIC = 0xD15BAC00
ENTRY, LEDGER, LAC, LOG, PAD = (MAGIC | kind for kind in range(1, 6))
KINDS = frozenset({ENTRY, LEDGER, LAC, LOG, PAD})
FENCED = 1
MAX_KEY_BYTES = 64

SUMMED = Struct(">IIqqI")
SUM = Struct(">I")
SUMMED_BYTES = 28
_LEDGER_BODY = Struct(">BB")


@dataclass(frozen=True, slots=True)
class Record:
    """A record found at `offset` of what was scanned; `intact` says whether the body has its checksum."""

    kind: int
    ledger_id: int
    entry_id: int
    offset: int
    body: memoryview
    intact: bool

    @property
    def size(self) -> int:
        """Header and body, without the gap behind."""
        return HEADER_BYTES + len(self.body)


def aligned(size: int) -> int:
    """`size` rounded up to where the next record may begin."""
    return (size + ALIGN - 1) & -ALIGN


def header(kind: int, ledger_id: int, entry_id: int, body: Buffer) -> bytes:
    """The header of a record with `body`."""
    start = SUMMED.pack(kind, len(body), ledger_id, entry_id, crc32(body, 0))
    return start + SUM.pack(crc32(start, 0))


def pad_header(size: int) -> bytes:
    """The header of a PAD that covers `size` bytes, itself included."""
    start = SUMMED.pack(PAD, size - HEADER_BYTES, 0, 0, 0)
    return start + SUM.pack(crc32(start, 0))


def parse_header(data: memoryview, offset: int) -> tuple[int, int, int, int, int] | None:
    """(kind, body length, ledger id, entry id, body sum) of an intact header at `offset`, else None."""
    start = bytes(data[offset : offset + HEADER_BYTES])
    if len(start) < HEADER_BYTES or SUM.unpack_from(start, SUMMED_BYTES)[0] != crc32(start[:SUMMED_BYTES], 0):
        return None
    kind, length, ledger_id, entry_id, total = SUMMED.unpack_from(start)
    return (kind, length, ledger_id, entry_id, total) if kind in KINDS else None


def read_record(data: memoryview, ledger_id: int, entry_id: int) -> memoryview | None:
    """The body of the ENTRY that `data` begins with, if it is that entry and has its checksums (I12), else None."""
    found = parse_header(data, 0)
    if found is None or found[0] != ENTRY or found[2] != ledger_id or found[3] != entry_id:
        return None
    body = data[HEADER_BYTES : HEADER_BYTES + found[1]]
    return body if len(body) == found[1] and crc32(body, 0) == found[4] else None


def scan(data: memoryview) -> Iterator[Record | int]:
    """The records of `data`, which begins with one, without PADs; last, where no record begins, that offset."""
    offset = 0
    while offset < len(data):
        found = parse_header(data, offset)
        if found is None or offset + HEADER_BYTES + found[1] > len(data):
            yield offset
            return
        kind, length, ledger_id, entry_id, total = found
        body = data[offset + HEADER_BYTES : offset + HEADER_BYTES + length]
        if kind != PAD:
            yield Record(kind, ledger_id, entry_id, offset, body, crc32(body, 0) == total)
        offset += aligned(HEADER_BYTES + length)


def ledger_body(master_key: bytes, fenced: bool) -> bytes:
    """The body of a LEDGER record."""
    return _LEDGER_BODY.pack(FENCED if fenced else 0, len(master_key)) + master_key


def parse_ledger_body(body: memoryview) -> tuple[bytes, bool]:
    """(master key, fenced) of a LEDGER record's body, which had its checksum."""
    flags, length = _LEDGER_BODY.unpack_from(body)
    return bytes(body[_LEDGER_BODY.size : _LEDGER_BODY.size + length]), bool(flags & FENCED)
