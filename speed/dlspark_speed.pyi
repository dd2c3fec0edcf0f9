"""The functions of the compiled core. `metadata.foundation.compiled` says which have to be there."""

from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer, WriteableBuffer

# numpy says only to checkers of Python 3.12 and later that its arrays are buffers.
Readable: TypeAlias = ReadableBuffer | npt.NDArray[np.generic]
Writable: TypeAlias = WriteableBuffer | npt.NDArray[np.generic]

_T = TypeVar("_T")

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

def make_records(
    kind: type[_T],
    fields: Sequence[object],
    segment: tuple[int, int],
    columns: Sequence[Readable],
    offsets: Readable,
    data: Readable,
) -> list[_T] | None:
    """Return an object of class `kind` for each row. `fields` are the descriptors of what it shares with others (a
    tuple: segment number, entry id, start sequence id, flags, 1, position less slot), of payload, position,
    transaction id; `segment` is segment number and start sequence id, `columns` are arrays of 64 bits for entry ids,
    slots, positions, flags and transaction ids. Payload i is `data[offsets[i] : offsets[i + 1]]`, the offsets of 32
    bits. None where the arrays do not fit together, or one does not lie in one piece: the twin says what is wrong, if
    anything is."""

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
    frames: list[memoryview], region: WriteableBuffer, place: int
) -> tuple[int, int, int, int, bytes, list[bytes], bytes, bytes] | None:
    """Write the entries of the adds in `frames` as records into `region`, as far as they are a run and it has room;
    `place` is the offset of its beginning in the log / 32. Return the bytes that they take, ledger id, first entry id,
    highest LAC, key, the answers, and as arrays of uint32 the places and sizes of the records; None where not even the
    first one is part of a run."""

def encode_adds(
    digest_size: int,
    ids: tuple[int, int],
    fields: tuple[bytes, bytes, bytes],
    adds: Sequence[tuple[int, int, int, int, tuple[ReadableBuffer, ...]]],
) -> tuple[bytes, bytes, bytes, int] | None:
    """Package adds under transaction ids in a row: `ids` are the ledger's and the first of those, `fields` the ledger's
    key, and the priority and the options as they stand in a frame; an add is an entry id, the LAC and the length that
    the entry carries, its payload's size, its payload. Return the frames, the EOK frames that will answer them, and the
    entries' headers, each kind one behind the other, and the length of every EOK frame, 0 where they differ. None for
    ids from 2^63 on, or where an argument is something else: the twin decides, and words the error."""

def take_writes(
    frames: list[memoryview], first: int, longest: int
) -> tuple[bytes, list[int], list[bytes], int, bool] | None:
    """Take the writes that stand in `frames`, without their lengths, from number `first` on, as long as they are of one
    record each, on one stream, in frames of at most `longest` bytes, and ask for nothing but to be stored. Return the
    stream's name, the numbers of the requests, the payloads, the bytes of these, and whether no checksum that came with
    one is wrong; None where they are fewer than two. Of what stands behind them one frame is looked at."""
