"""The places of an entry's records: found in bulk, then proved.

Records are a chain: where one starts is known only from the one before. So the starts are *guessed* in bulk and the
whole chain is then *proved* at once, on arrays: the first record starts at 0, each record's start plus header plus
length is the next one's start, the last one ends at the end, and every entry begins at a start. By induction there is
only one such chain, so a wrong guess cannot go unnoticed; it only costs the time to guess again:

1. equal lengths: the starts are multiples of the first record's size (a strided view, no gather at all);
2. short records of different lengths: wherever the eight bytes that are zero in the header of an ordinary user record
   (flags 0, position and length below their highest bytes, transaction id below 2^48) are zero, a record may start;
3. otherwise one record after the other, in a loop of a few bytecodes.

If the chain is broken, the plain decoder finds the place and words the error. So both decoders refuse the same entries
with the same error, and neither returns a part of a damaged one (I12).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dlspark.core.codec.entries import decode_content
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    HEADER,
    HEADER_BYTES,
    MAX_POSITION,
    POSITION_MASK,
    POSITION_SHIFT,
)
from dlspark.errors import InvalidEntryError
from metadata.foundation.errors import InvariantViolation
from storage_node.protocol.frames import Buffer

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

RECORD_HEADER = np.dtype([("word", ">i8"), ("txid", ">i8"), ("length", ">u4")])
OPAQUE_HEADER = np.dtype("V20")
"""A header as one opaque item: gathering these and then looking inside is thrice as fast as gathering the fields."""
_SWAPPED_HEADER = np.dtype([("word", "<u8"), ("txid", "<i8"), ("length", "<u4")])
"""The same bytes read in the other order: enough to compare or combine fields, and native on most machines."""

_LENGTH = Struct(">I")
_SAMPLE_RECORDS = 16
_PROBE_BYTES = 8 * 1024
_SEARCH_BELOW_BYTES = 256
"""Mean record size below which searching for headers beats walking from one to the next."""


class Run:
    """Consecutive entries decoded together."""

    __slots__ = ("contents", "data", "ends", "entry_ids")

    def __init__(self, entry_ids: list[int], contents: list[memoryview]) -> None:
        self.entry_ids = entry_ids
        self.contents = contents
        self.data: Buffer = contents[0] if len(contents) == 1 else b"".join(contents)
        self.ends: IntArray | None = None
        """Where each entry ends in `data`; None for one entry alone."""
        if len(contents) > 1:
            self.ends = np.cumsum(np.fromiter(map(len, contents), np.int64, len(contents)))


@dataclass(frozen=True, slots=True)
class Chain:
    """The proved record headers of a run. `starts` says where they are; None where all are `stride` bytes apart."""

    headers: npt.NDArray[np.void]
    starts: IntArray | None
    stride: int
    """Bytes from one record's start to the next; 0 where `starts` says it."""
    any_word: int
    """All metadata words or-ed together: one number that shows which flags and position bits occur."""

    def start_of(self, record: int) -> int:
        """Return where record number `record` of the run starts."""
        return record * self.stride if self.starts is None else int(self.starts[record])


def find_chain(run: Run) -> Chain | None:
    """Return the record headers of the run, proved; None where its bytes are not a chain of records."""
    if len(run.data) < HEADER_BYTES:
        return None
    # From cheap to costly. A guess that is wrong is not proved, and the walk finds the chain if there is one.
    found = _equal_lengths(run) or _proved(run, _search(run.data)) or _proved(run, _walk(run.data))
    if found is None:
        return None
    headers, starts, stride = found
    swapped = int(np.bitwise_or.reduce(headers.view(_SWAPPED_HEADER)["word"]))
    any_word = int.from_bytes(swapped.to_bytes(8, "little"), "big")
    if any_word >> POSITION_SHIFT & POSITION_MASK > MAX_POSITION:  # the topmost position bit is set somewhere
        return None
    return Chain(headers, starts, stride, any_word)


_Found: TypeAlias = "tuple[npt.NDArray[np.void], IntArray | None, int]"


def _equal_lengths(run: Run) -> _Found | None:
    data, size = run.data, len(run.data)
    length = HEADER.unpack_from(data)[2]
    stride = HEADER_BYTES + length
    count, rest = divmod(size, stride)
    # A record may not lie across the end of an entry, even if the joined bytes look like a chain.
    if rest or (run.ends is not None and (run.ends % stride).any()):
        return None
    headers = np.ndarray((count,), OPAQUE_HEADER, data, 0, (stride,)).copy().view(RECORD_HEADER)
    swapped = int.from_bytes(length.to_bytes(4, "big"), "little")
    if (headers.view(_SWAPPED_HEADER)["length"] != swapped).any():
        return None
    return headers, None, stride


def _proved(run: Run, starts: IntArray | None) -> _Found | None:
    """Return the headers at `starts` if they are the run's records, all of them and nothing else; or None."""
    size = len(run.data)
    if starts is None or not len(starts) or starts[-1] > size - HEADER_BYTES:
        return None
    headers = np.ndarray((size - HEADER_BYTES + 1,), OPAQUE_HEADER, run.data, 0, (1,))[starts].view(RECORD_HEADER)
    # The proof: every record ends where the next one begins, the first at 0 and the last at the end, and so does each
    # entry. Lengths are unsigned 32 bits, so the sums cannot wrap in 64.
    following = starts + HEADER_BYTES
    following += headers["length"]
    if starts[0] != 0 or following[-1] != size or not np.array_equal(following[:-1], starts[1:]):
        return None
    ends = run.ends
    if ends is not None and not np.array_equal(following[np.searchsorted(following, ends)], ends):
        return None
    return headers, starts, 0


def _walk(data: Buffer) -> IntArray | None:
    """Record starts, each found from the one before; None where the last header is cut off."""
    starts: list[int] = []
    append = starts.append
    unpack_length = _LENGTH.unpack_from
    start, size = 0, len(data)
    try:
        while start < size:
            append(start)
            # Unsigned: a negative length must lead past the end, never backwards.
            start += unpack_length(data, start + 16)[0] + 20
    except struct_error:
        return None
    return np.fromiter(starts, np.int64, len(starts))


class _Scratch(threading.local):
    """Two arrays a thread, for `_search`: fresh memory would cost more than the search itself."""

    zero: BoolArray = np.empty(0, np.bool_)
    both: BoolArray = np.empty(0, np.bool_)

    def sized(self, size: int) -> tuple[BoolArray, BoolArray]:
        if len(self.zero) < size:
            self.zero, self.both = np.empty(size, np.bool_), np.empty(size, np.bool_)
        return self.zero[:size], self.both[:size]


_scratch = _Scratch()


def _search(data: Buffer) -> IntArray | None:
    """Return where headers of ordinary user records may start; None where walking is faster."""
    size = len(data)
    sample = start = 0
    while sample < _SAMPLE_RECORDS and start <= size - HEADER_BYTES:
        start += HEADER_BYTES + _LENGTH.unpack_from(data, start + 16)[0]
        sample += 1
    if start > sample * _SEARCH_BELOW_BYTES or sample < _SAMPLE_RECORDS:
        return None
    zero, both = _scratch.sized(size)
    np.equal(np.frombuffer(data, np.uint8), 0, out=zero)
    np.bitwise_and(zero[:-1], zero[1:], out=both[:-1])
    last = size - HEADER_BYTES + 1
    found = zero[:last]
    # Bytes 0-1 and 6-9 (ends of the metadata word, head of the transaction id) and 16-17 (head of the length).
    if data[7] == FLAG_CONTROL:  # As producers' entries begin: its flag may be set in any header.
        np.bitwise_and(zero[6 : 6 + last], np.frombuffer(data, np.uint8)[7 : 7 + last] <= FLAG_CONTROL, out=found)
        np.bitwise_and(found, both[:last], out=found)
    else:
        np.bitwise_and(both[:last], both[6 : 6 + last], out=found)
    np.bitwise_and(found, both[8 : 8 + last], out=found)
    np.bitwise_and(found, both[16 : 16 + last], out=found)
    # Payloads full of zeros look like headers everywhere; a look at the head saves collecting them.
    if np.count_nonzero(found[:_PROBE_BYTES]) > _PROBE_BYTES // HEADER_BYTES:
        return None
    return np.flatnonzero(found)


def counts_by_entry(run: Run, chain: Chain) -> list[int]:
    """Return how many records each entry of the run has."""
    if run.ends is None:
        return [len(chain.headers)]
    if chain.starts is None:
        ends = run.ends // chain.stride
    else:
        ends = np.append(np.searchsorted(chain.starts, run.ends[:-1]), len(chain.headers))
    counts: list[int] = np.diff(ends, prepend=0).tolist()
    return counts


def damaged_run_error(run: Run, lssn: int) -> InvalidEntryError:
    """Return the error for a run that is not a chain of records, worded by the plain decoder."""
    for entry_id, content in zip(run.entry_ids, run.contents, strict=True):
        try:
            decode_content(content, lssn, entry_id, 0)
        except InvalidEntryError as error:
            return error
    raise InvariantViolation("a run was refused that the plain decoder accepts", entry_id=run.entry_ids[0])
