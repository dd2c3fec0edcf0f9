"""A cold file looked through: all that it says of itself, held against its bytes, each of which is read once.

Checked are the seal of the footer, the checksum of each column's chunk and page, the digest of the records of each row
group and of all of them, and how many of them are erased. The SHA-256 comes with it: of a file that no metadata tell of
any more it cannot be checked, so it is what the rebuilt log's metadata are to say from now on.

Fault model: the bytes may be anything; damage is an error with its place, and nothing of the file is used.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np

from dlspark.cold.restoring.choosing import FileClaim
from dlspark.core.cold.files.columns import FLAG_ERASED, LOG
from dlspark.core.cold.files.digests import RecordDigest
from dlspark.core.cold.files.footer import MAGIC, TAIL_BYTES, Footer
from dlspark.core.cold.files.row_groups import decode_records, decode_row_group
from dlspark.errors import DamagedColdFileError
from dlspark.objects.store import ObjectInfo, ObjectStore

T = TypeVar("T")

PIECE_BYTES: Final = 8 << 20
"""How much of what lies behind the row groups is fetched at a time."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What is right of a file, once all of it was read?

    Args:
        sha256: of its bytes, hexadecimal.
        digest: of its records, hexadecimal.
        erased: how many of its records are erased.
    """

    sha256: str
    digest: str
    erased: int


async def read_footer(store: ObjectStore, info: ObjectInfo) -> Footer:
    """Return a file's footer. Raises DamagedColdFileError, ObjectStoreError."""
    (tail,) = await store.read(info.url, [_last(info.bytes, TAIL_BYTES)])
    needed = Footer.bytes_needed(tail, info.bytes, info.url)
    if needed > len(tail):
        (tail,) = await store.read(info.url, [_last(info.bytes, needed)])
    return await in_thread(partial(Footer.parse, tail, info.bytes, info.url))


def claim_of(footer: Footer, modified_ms: int, erased: int | None = None) -> FileClaim:
    """Return what a file says that it has."""
    identity = footer.identity
    if not footer.segments:
        raise DamagedColdFileError("it has no segment", url=footer.url)
    return FileClaim(
        url=footer.url,
        bytes=footer.size,
        modified_ms=modified_ms,
        namespace_id=identity.namespace_id,
        log_id=identity.log_id,
        log=identity.log,
        attempt=identity.attempt,
        segments=tuple(one.cold for one in footer.segments),
        digest=footer.digest,
        redacted=footer.redacted,
        erased=erased,
    )


async def check_file(store: ObjectStore, footer: Footer) -> CheckedFile:
    """Read a whole file. Raises DamagedColdFileError with the place, ObjectStoreError."""
    sha, digest, erased = hashlib.sha256(), RecordDigest(), 0
    (magic,) = await store.read(footer.url, [(0, len(MAGIC))])
    if bytes(magic) != MAGIC:
        raise DamagedColdFileError(f"it begins with {bytes(magic)!r}, not with {MAGIC!r}", url=footer.url)
    sha.update(magic)
    at = len(MAGIC)
    for index, group in enumerate(footer.row_groups):
        # Row groups lie one behind the other, without a byte between: the footer was refused otherwise.
        place = group.range
        (data,) = await store.read(footer.url, [place])
        sha.update(data)
        erased += await in_thread(partial(_check_group, footer, index, {place: data}, digest))
        at = place[0] + place[1]
    indexes = hashlib.sha256()
    indexes_end = footer.size - footer.footer_bytes
    while at < footer.size:
        length = min(PIECE_BYTES, (indexes_end if at < indexes_end else footer.size) - at)
        (data,) = await store.read(footer.url, [(at, length)])
        sha.update(data)
        if at < indexes_end:
            indexes.update(data)
        at += length
    if indexes.digest() != footer.page_index_digest:
        raise DamagedColdFileError("what lies between its row groups and its footer fails its digest", url=footer.url)
    if digest.hexdigest() != footer.digest:
        raise DamagedColdFileError("its records fail their digest", url=footer.url)
    return CheckedFile(sha.hexdigest(), footer.digest, erased)


def _check_group(footer: Footer, index: int, parts: Mapping[tuple[int, int], memoryview], digest: RecordDigest) -> int:
    """Check a row group, and have `digest` take its records; returns how many are erased."""
    # All columns: their chunks' checksums are checked with it, those of the typed ones too.
    rows = decode_row_group(footer, index, parts)
    digest.update(decode_records(footer, index, parts, check_digest=True))
    log = rows.column(LOG)
    flags, row = (np.asarray(log.field(log.type.get_field_index(name))) for name in ("flags", "row"))
    return int(np.count_nonzero((flags & FLAG_ERASED != 0) & (row <= 0)))


def _last(size: int, wanted: int) -> tuple[int, int]:
    length = min(size, wanted)
    return size - length, length


async def in_thread(work: Callable[[], T]) -> T:
    """Run what computes in a thread: pyarrow and hashlib give the interpreter to others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
