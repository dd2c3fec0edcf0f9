"""The functions of the compiled core. `metadata.foundation.compiled` says which have to be there."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer, WriteableBuffer

# numpy says only to checkers of Python 3.12 and later that its arrays are buffers.
Readable: TypeAlias = ReadableBuffer | npt.NDArray[np.generic]
Writable: TypeAlias = WriteableBuffer | npt.NDArray[np.generic]

INTERFACE: Final[int]
"""Grows with every change of a function that is there already."""
__version__: Final[str]

def measure_records(contents: Sequence[Readable], hidden: int) -> tuple[int, int] | None:
    """Return how many records `contents` have, without those that have one of the flags `hidden`, and their payload
    bytes; None where it is for the twin to say."""

def record_columns(
    contents: Sequence[Readable],
    entry_ids: Sequence[int],
    hidden: int,
    start_sequence_id: int,
    numbers: Sequence[Writable],
    offsets: Writable,
    payload: Writable,
) -> bool:
    """Write the columns of the records that were counted: `numbers` are arrays of 64 bits for entry ids, slots,
    transaction ids, positions, sequence ids and flags, `offsets` are of 32 bits. Return whether all of them are full
    and nothing was left: otherwise what is in them is of no use."""

def lay_out_records(headers: Readable, offsets: Readable, data: Readable, records: Writable) -> bool:
    """Write records one behind the other: each of `headers`, of 20 bytes, and behind it its payload, which is
    `data[offsets[i] : offsets[i + 1]]`, the offsets of 64 bits. Return whether all of it fits together, and `records`
    are full: otherwise what is in them is of no use."""

def package_entry(
    digest_size: int, ids: tuple[int, int, int, int], payload: tuple[ReadableBuffer, ...]
) -> bytes | None:
    """Return the header of an entry with ledger id, entry id, LAC and length, and its digest of 8 bytes (CRC32) or 4
    (CRC32C) over that and `payload`. None where an argument is something else: the twin words the error."""

def verify_entry(
    digest_size: int, ledger_id: int, entry_id: int | None, data: ReadableBuffer
) -> tuple[int, int, int] | None:
    """Return entry id, LAC and length of an entry whose digest is right and whose ids are the ones asked for. None
    where that is not so: the twin says what is wrong."""

def append_adds(
    frames: Sequence[ReadableBuffer], slab: WriteableBuffer, start: int, end: int, place: int
) -> tuple[int, int, int, int, bytes, list[bytes], bytes, bytes] | None:
    """Write the entries of the adds in `frames` as records into `slab`, from `start` on and not beyond `end`, as far as
    they are a run; `place` is the first one's offset in its log / 32. Return where they end, ledger id, first entry id,
    highest LAC, key, the answers, and as arrays of uint32 the places and sizes of the records; None where not even the
    first one is part of a run."""

def take_writes(frames: Sequence[ReadableBuffer]) -> tuple[bytes, list[int], list[bytes], int, bool] | None:
    """Take the writes that `frames`, without their lengths, begin with, as long as they are of one record each, on one
    stream, and ask for nothing but to be stored. Return the stream's name, the numbers of the requests, the payloads,
    the bytes of these, and whether no checksum that came with one is wrong; None where not even the first is one."""
