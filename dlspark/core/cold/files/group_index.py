"""The index in a cold file's footer: what each row group holds, and how much each entry has, as arrays of numbers."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.files.digests import DIGEST_BYTES
from dlspark.core.cold.files.entry_table import EntryTable

_COUNTS: Final = struct.Struct("<4sIIQ")
_INDEX_MAGIC: Final = b"DLC1"
_GROUP_NUMBERS: Final = 13
_ENTRY_NUMBERS: Final = 3


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """What the index says of a row group."""

    rows: int
    records: int
    values: int
    first: DLSN
    last: DLSN
    first_txid: int
    last_txid: int
    lowest_txid: int
    highest_txid: int
    digest: bytes

    @property
    def numbers(self) -> tuple[int, ...]:
        """All but the digest, in the order of the index."""
        ids = (self.first_txid, self.last_txid, self.lowest_txid, self.highest_txid)
        return (self.rows, self.records, self.values, *self.first, *self.last, *ids)


def encode_index(groups: Sequence[GroupNumbers], tables: Sequence[EntryTable]) -> bytes:
    """Return the index as it is before it is compressed.

    "DLC1", u32 row groups, u32 segments, u64 entries of all segments
    i64 x 13 for each row group: rows, records, values, first and last (segment, entry, slot), transaction ids of
        the first, the last, the lowest and the highest
    32 bytes for each row group: the digest of its records
    u32 for each entry: slots; then for each entry: slots that are no records; then: rows that are no first ones
    """
    entries = sum(map(len, tables))
    numbers = np.array([one.numbers for one in groups], "<i8").reshape(len(groups), _GROUP_NUMBERS)
    columns = [
        np.concatenate([np.empty(0, np.int64), *parts]).astype("<u4")
        for parts in (
            [one.slots for one in tables],
            [one.slots - one.records for one in tables],
            [one.rows - one.records for one in tables],
        )
    ]
    return b"".join(
        (
            _COUNTS.pack(_INDEX_MAGIC, len(groups), len(tables), entries),
            numbers.tobytes(),
            *(one.digest for one in groups),
            *(one.tobytes() for one in columns),
        )
    )


def compressed_index(index: bytes) -> bytes:
    """Return the value of `dlspark.cold.index`."""
    return base64.b64encode(pa.Codec("zstd", compression_level=9).compress(index, asbytes=True))


def decode_index(
    index: bytes, segments: int
) -> tuple[npt.NDArray[np.int64], list[bytes], tuple[npt.NDArray[np.int64], ...]]:
    """Return the numbers of row groups, their digests, and the three columns of all segments' entries."""
    magic, groups, said_segments, entries = _COUNTS.unpack_from(index)
    sizes = (groups * _GROUP_NUMBERS * 8, groups * DIGEST_BYTES, entries * 4 * _ENTRY_NUMBERS)
    if magic != _INDEX_MAGIC or said_segments != segments or _COUNTS.size + sum(sizes) != len(index):
        raise ValueError("its index is of another length than it says")
    at = _COUNTS.size
    numbers = np.frombuffer(index, "<i8", groups * _GROUP_NUMBERS, at).reshape(groups, _GROUP_NUMBERS)
    at += sizes[0]
    digests = [index[at + n * DIGEST_BYTES : at + (n + 1) * DIGEST_BYTES] for n in range(groups)]
    at += sizes[1]
    columns = (
        np.frombuffer(index, "<u4", entries * _ENTRY_NUMBERS, at).astype(np.int64).reshape(_ENTRY_NUMBERS, entries)
    )
    return numbers, digests, tuple(columns)
