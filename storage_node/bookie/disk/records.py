"""Records: the one format in which entries and facts about ledgers lie in memory, journal and entry log
(docs/reference/node-files.md#records); and slabs, the memory in which they lie.

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
PLACE   where in an entry log the records of a journal's batch lie (`journal.places`)

A *slab* is pooled, page-aligned memory that an entry is copied into once: the image of one region of an entry log. What
lies at offset x of the slab will lie at `base + x` of the log. From the same memory the journal commits, the entry log
is written and, afterwards, reads at the tail are served. A slab's memory is used again only when its log region is
written, the journal has committed it, and no view of it is alive (an answer still in a socket's queue): Python refuses
to change the size of a map that has views.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct

from metadata.foundation.errors import check
from storage_node.protocol.digests import crc32
from storage_node.protocol.frames import Buffer

BLOCK = 4096
"""Unit of direct writes: addresses, lengths and file offsets are multiples of it."""

ALIGN = 32
HEADER_BYTES = 32
MAGIC = 0xD15BAC00
ENTRY, LEDGER, LAC, LOG, PAD, PLACE = (MAGIC | kind for kind in range(1, 7))
KINDS = frozenset({ENTRY, LEDGER, LAC, LOG, PAD, PLACE})
FENCED = 1
MAX_KEY_BYTES = 64

SUMMED = Struct(">IIqqI")
SUM = Struct(">I")
SUMMED_BYTES = 28
_LEDGER_BODY = Struct(">BB")


@dataclass(frozen=True, slots=True)
class Record:
    """Is a record intact that was found at `offset` of what was scanned? `intact` says whether the body has its
    checksum.
    """

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
    """Return `size` rounded up to where the next record may begin."""
    return (size + ALIGN - 1) & -ALIGN


def header(kind: int, ledger_id: int, entry_id: int, body: Buffer) -> bytes:
    """Return the header of a record with `body`."""
    start = SUMMED.pack(kind, len(body), ledger_id, entry_id, crc32(body, 0))
    return start + SUM.pack(crc32(start, 0))


def pad_header(size: int) -> bytes:
    """Return the header of a PAD that covers `size` bytes, itself included."""
    start = SUMMED.pack(PAD, size - HEADER_BYTES, 0, 0, 0)
    return start + SUM.pack(crc32(start, 0))


def parse_header(data: memoryview, offset: int) -> tuple[int, int, int, int, int] | None:
    """Return (kind, body length, ledger id, entry id, body sum) of an intact header at `offset`, else None."""
    start = bytes(data[offset : offset + HEADER_BYTES])
    if len(start) < HEADER_BYTES or SUM.unpack_from(start, SUMMED_BYTES)[0] != crc32(start[:SUMMED_BYTES], 0):
        return None
    kind, length, ledger_id, entry_id, total = SUMMED.unpack_from(start)
    return (kind, length, ledger_id, entry_id, total) if kind in KINDS else None


def read_record(data: memoryview, ledger_id: int, entry_id: int) -> memoryview | None:
    """Return the body of the ENTRY that `data` begins with, if it is that entry and has its checksums (I12), else
    None."""
    found = parse_header(data, 0)
    if found is None or found[0] != ENTRY or found[2] != ledger_id or found[3] != entry_id:
        return None
    body = data[HEADER_BYTES : HEADER_BYTES + found[1]]
    return body if len(body) == found[1] and crc32(body, 0) == found[4] else None


def scan(data: memoryview) -> Iterator[Record | int]:
    """Yield the records of `data`, which begins with one, without PADs; last, where no record begins, that offset."""
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
    """Return the body of a LEDGER record."""
    return _LEDGER_BODY.pack(FENCED if fenced else 0, len(master_key)) + master_key


def parse_ledger_body(body: memoryview) -> tuple[bytes, bool]:
    """Return (master key, fenced) of a LEDGER record's body, which had its checksum."""
    flags, length = _LEDGER_BODY.unpack_from(body)
    return bytes(body[_LEDGER_BODY.size : _LEDGER_BODY.size + length]), bool(flags & FENCED)


# ------------------------------------------------------------------------------------ slabs


def up(size: int) -> int:
    """Round up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def down(size: int) -> int:
    """Round down to whole blocks."""
    return size & -BLOCK


def aligned_memory(size: int) -> mmap.mmap:
    """Return zeroed memory that begins on a page, in large pages where the kernel has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= 2 * 1024 * 1024:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them: small pages do as well
            pass
    return memory


class Slab:
    """One slab in use. `end` is where the next record goes; `written` is how far the log region has been written."""

    __slots__ = ("_memory", "base", "end", "flying", "log_id", "sealed", "size", "view", "written")

    def __init__(self, memory: mmap.mmap, log_id: int, base: int) -> None:
        self._memory = memory
        self.size = len(memory)
        self.view = memoryview(memory)
        self.log_id = log_id
        self.base = base
        self.end = 0
        self.written = 0
        self.flying = 0
        """Journal batches of this slab that are not on disk yet."""
        self.sealed = False
        """Nothing will be added any more."""

    @property
    def settled(self) -> bool:
        """Everything in it is in the journal and in the log file: from here on it is only a cache."""
        return self.sealed and self.flying == 0 and self.written >= self.end

    def reclaim(self) -> mmap.mmap | None:
        """Give the memory up, if nothing reads it."""
        check(self.settled, "a slab was reclaimed before it was written")
        # Before the memory is used again: a view that an answer still holds would send another entry's bytes (I12).
        self.view.release()
        try:
            self._memory.resize(self.size)
        except BufferError:
            self.view = memoryview(self._memory)
            return None
        return self._memory


class SlabPool:
    """Hands out slabs, at most `limit` at a time; the oldest settled ones make room."""

    def __init__(self, slab_bytes: int, limit: int, evicted: Callable[[Slab], None]) -> None:
        self.slab_bytes = slab_bytes
        self._limit = limit
        self._evicted = evicted
        self._slabs: list[Slab] = []

    def take(self, log_id: int, base: int, *, beyond_limit: bool = False) -> Slab | None:
        """Return a slab for the region of the log at `base`; None while all are needed (write back first)."""
        memory = self._free_memory()
        if memory is None:
            if len(self._slabs) >= self._limit and not beyond_limit:
                return None
            memory = aligned_memory(self.slab_bytes)
        slab = Slab(memory, log_id, base)
        self._slabs.append(slab)
        return slab

    @property
    def beyond_limit(self) -> bool:
        """True while more slabs are in use than the limit: `take` was asked for one beyond it."""
        return len(self._slabs) > self._limit

    def _free_memory(self) -> mmap.mmap | None:
        """Return the memory of the oldest slab that is only a cache, once the pool is at its limit.

        Where answers on their way hold views of all of those, the oldest is left to them, and ends with them.
        """
        if len(self._slabs) < self._limit:
            return None
        settled = [slab for slab in self._slabs if slab.settled]
        for slab in settled:
            memory = slab.reclaim()
            if memory is not None:
                self._drop(slab)
                return memory
        if settled:
            self._drop(settled[0])
        return None

    def _drop(self, slab: Slab) -> None:
        self._slabs.remove(slab)
        self._evicted(slab)
