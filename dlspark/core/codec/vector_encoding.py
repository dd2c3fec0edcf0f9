"""Columns into entries: transaction ids and an Arrow array of payloads become entries without work for each record.

All checks come first, on whole columns, so that a batch is refused before anything of it is encoded: otherwise a part
of it could be on its way when a later record is found to be too long. Records are then
cut greedily into entries of at most `max_entry_bytes`, and the records of some `CHUNK_BYTES` are laid out at once:
payloads of equal length by strided assignment, others by Arrow's element-wise join of headers and payloads.
Uncompressed entries are views of that memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.entries import ENVELOPE_BYTES, Compression, EncodedEntry, wrap
from dlspark.core.codec.record_chain import OPAQUE_HEADER, RECORD_HEADER, IntArray
from dlspark.core.codec.records import (
    HEADER_BYTES,
    MAX_LOGRECORDSET_SIZE,
    MAX_POSITION,
    POSITION_SHIFT,
    check_payload_length,
    check_user_txid,
)
from dlspark.errors import InvalidRecordError, SegmentFullError
from metadata.foundation import compiled
from metadata.foundation.errors import CallerError, check

DEFAULT_ENTRY_BYTES = 256 * 1024
CHUNK_BYTES = 256 * 1024
"""Small entries are encoded together up to this many bytes of records."""


def encode_entries(
    txids: IntArray,
    payloads: pa.Array,
    *,
    first_position: int,
    compression: Compression = Compression.NONE,
    max_entry_bytes: int = DEFAULT_ENTRY_BYTES,
    enveloped: bool = True,
) -> Iterator[EncodedEntry]:
    """Return entries holding the records (txids[i], payloads[i]) in order, as user records.

    Args:
        txids: transaction ids, 0 <= id < 2^63 - 1; the caller checks their order.
        payloads: binary or string array (large and fixed-size ones too) of the same length, without nulls.
        first_position: position of the first record in its segment, 1 for a new segment.
        max_entry_bytes: target size of an entry, envelope included; a longer record gets an entry of its own.
        enveloped: whether the segment's metadata version is 4 or above.

    Raises InvalidRecordError, RecordTooLongError, TransactionIdOutOfOrderError, SegmentFullError or CallerError from
    the call itself: nothing has been encoded then.
    """
    if not ENVELOPE_BYTES < max_entry_bytes <= MAX_LOGRECORDSET_SIZE:
        raise CallerError(
            f"max_entry_bytes {max_entry_bytes} is outside {ENVELOPE_BYTES + 1}..{MAX_LOGRECORDSET_SIZE}",
            advice=f"{DEFAULT_ENTRY_BYTES} suits bulk writing",
        )
    columns = _checked(txids, payloads, first_position)
    return _entries(columns, compression, max_entry_bytes, enveloped)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Checked columns; `ends[i]` is the number of record bytes up to and including record i."""

    txids: IntArray
    words: IntArray
    payloads: pa.Array
    data: npt.NDArray[np.uint8]
    offsets: IntArray
    lengths: IntArray
    ends: IntArray


def _checked(txids: IntArray, payloads: pa.Array, first_position: int) -> _Columns:
    ids = np.asarray(txids)
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(ids) != len(payloads):
        raise InvalidRecordError(
            f"{len(payloads)} payloads came with transaction ids of type {ids.dtype} and shape {ids.shape}",
            advice="Pass one integer for each payload",
        )
    payloads = _binary(payloads)
    if payloads.null_count:
        at = int(np.flatnonzero(payloads.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidRecordError(
            f"the payload of record {at} is null", advice="A record may be empty but not null; nothing was written"
        )
    data, offsets = _buffers(payloads)
    lengths = np.diff(offsets)
    count = len(lengths)
    if count:
        check_payload_length(int(lengths.max()))
        # 2^63 and above, from an unsigned column, are compared before they are squeezed into 64 signed bits.
        check_user_txid(int(ids.min()))
        check_user_txid(int(ids.max()))
    if first_position < 1 or first_position + count - 1 > MAX_POSITION:
        raise SegmentFullError(
            f"{count} records from position {first_position} do not fit in a segment's positions 1..{MAX_POSITION}",
            advice="Complete the segment and write to a new one",
        )
    words = np.arange(first_position, first_position + count, dtype=np.int64) << POSITION_SHIFT
    ends = np.cumsum(lengths + HEADER_BYTES)
    return _Columns(ids.astype(np.int64), words, payloads, data, offsets, lengths, ends)


def _binary(payloads: pa.Array) -> pa.Array:
    """Return the array as binary or large binary, without copying where it is one or a string already."""
    if not isinstance(payloads, pa.Array):
        raise InvalidRecordError(
            f"payloads came as {type(payloads).__name__}",
            advice="Pass one pyarrow Array; combine the chunks of a table",
        )
    kind = payloads.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return payloads
    if pa.types.is_string(kind):
        return payloads.cast(pa.binary())
    castable = (
        pa.types.is_large_string,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
        pa.types.is_string_view,
    )
    if any(holds(kind) for holds in castable):
        return payloads.cast(pa.large_binary())
    raise InvalidRecordError(
        f"payloads are of type {kind}", advice="Cast them to string or binary; nothing was written"
    )


def _buffers(payloads: pa.Array) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """Return the payload bytes, and where in them each payload starts and the last one ends."""
    _, offsets, data = payloads.buffers()
    if not len(payloads):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    positions = np.frombuffer(offsets, width)[payloads.offset : payloads.offset + len(payloads) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), positions.astype(np.int64)


def _entries(
    columns: _Columns, compression: Compression, max_entry_bytes: int, enveloped: bool
) -> Iterator[EncodedEntry]:
    limit = max_entry_bytes - (ENVELOPE_BYTES if enveloped else 0)
    for cuts in _chunks(columns.ends, limit):
        records = _records(columns, cuts[0], cuts[-1])
        base = _before(columns.ends, cuts[0])
        for first, after in pairwise(cuts):
            content = records[_before(columns.ends, first) - base : _before(columns.ends, after) - base]
            yield EncodedEntry(
                buffers=wrap(content, compression) if enveloped else (content,),
                record_count=after - first,
                user_count=after - first,
                first_txid=int(columns.txids[first]),
                last_txid=int(columns.txids[after - 1]),
                user_bytes=len(content) - HEADER_BYTES * (after - first),
            )


def _chunks(ends: IntArray, limit: int) -> Iterator[list[int]]:
    """Cut records into entries of at most `limit` bytes, and those into chunks: each a list of its entries' bounds."""
    count = len(ends)
    cuts = [0]
    while cuts[-1] < count:
        first = cuts[-1]
        after = int(np.searchsorted(ends, _before(ends, first) + limit, side="right"))
        after = max(after, first + 1)  # a record that is longer than the limit gets an entry of its own
        if len(cuts) > 1 and _before(ends, after) - _before(ends, cuts[0]) > CHUNK_BYTES:
            yield cuts
            cuts = [first]
        cuts.append(after)
    if len(cuts) > 1:
        yield cuts


def _before(ends: IntArray, index: int) -> int:
    """Return the record bytes before record `index`."""
    return int(ends[index - 1]) if index else 0


def _records(columns: _Columns, first: int, after: int) -> memoryview:
    """Return the bytes of records first..after-1, laid out one behind the other."""
    count = after - first
    headers = np.empty(count, RECORD_HEADER)
    headers["word"] = columns.words[first:after]
    headers["txid"] = columns.txids[first:after]
    headers["length"] = columns.lengths[first:after]
    return lay_out(headers, columns.payloads.slice(first, count), columns.offsets[first : after + 1], columns.data)


def lay_out(
    headers: npt.NDArray[np.void], payloads: pa.Array, offsets: IntArray, data: npt.NDArray[np.uint8]
) -> memoryview:
    """Return the bytes of records, one of them at least, one behind the other.

    Args:
        headers: of type RECORD_HEADER, lengths included.
        payloads: binary or large binary, without nulls; `data` are its bytes, and `offsets` where in them each payload
            starts and the last one ends.
    """
    if (core := compiled.core) is not None:
        size = int(offsets[-1]) - int(offsets[0]) + HEADER_BYTES * len(headers)
        records = pa.allocate_buffer(size)
        check(core.lay_out_records(headers, offsets, data, records), "lengths and places of payloads contradict")
        return memoryview(records).cast("B")  # Arrow's bytes are signed
    opaque = headers.view(OPAQUE_HEADER)
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if (lengths == length).all():
        start = int(offsets[0])
        return _equal_lengths(opaque, data[start : start + len(headers) * length], length)
    ends = np.cumsum(lengths + HEADER_BYTES)
    return _any_lengths(opaque, payloads, ends - ends[0])


def _equal_lengths(headers: npt.NDArray[np.void], data: npt.NDArray[np.uint8], length: int) -> memoryview:
    """Alternate headers and payloads of `length` bytes. Opaque items are moved whole, rows of bytes one by one."""
    count, stride = len(headers), HEADER_BYTES + length
    records = np.empty(count * stride, np.uint8)
    np.ndarray((count,), OPAQUE_HEADER, records, 0, (stride,))[:] = headers
    if length:
        payload = np.dtype((np.void, length))
        np.ndarray((count,), payload, records, HEADER_BYTES, (stride,))[:] = data.view(payload)
    return records.data


def _any_lengths(headers: npt.NDArray[np.void], payloads: pa.Array, offsets: IntArray) -> memoryview:
    """Alternate headers and payloads: Arrow puts room for a header before each payload, numpy fills it in.

    `offsets[i]` is where record i ends, counted from the end of record 0.
    """
    spaced = pc.binary_replace_slice(payloads, 0, 0, bytes(HEADER_BYTES)).buffers()[2]
    records = np.frombuffer(spaced, np.uint8)
    if not records.flags.writeable:  # Arrow's results are; should a version of it think otherwise, copy
        records = records.copy()
    starts = np.zeros(len(headers), np.int64)
    starts[1:] = offsets[:-1]
    starts[1:] += len(records) - offsets[-1]  # the length of record 0, from whose end `offsets` counts
    np.ndarray((len(records) - HEADER_BYTES + 1,), OPAQUE_HEADER, records, 0, (1,))[starts] = headers
    return records.data
