"""`RecordDigest`: one digest over records, equal wherever they lie: in a ledger, in a file, in row groups of any size.

Records are hashed by columns, each column by a SHA-256 of its own over its numbers, one behind the other; so no step
is taken for a record, and it does not matter how many records come at once. The digest is the SHA-256 of the columns'
digests, in this order (docs/reference/cold-files.md#digests has vectors):

    segment, entry, slot, sequence_id, transaction_id, flags, length    a signed 64-bit number for each record
    value                                                               the payloads' bytes

All numbers are little-endian. `length` is the payload's, in bytes; of a record whose payload was erased it is -1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.record_chain import IntArray
from dlspark.core.codec.vector_decoding import DecodedBatch

DIGEST_BYTES: Final = 32
ERASED_LENGTH: Final = -1
"""The length that is hashed of a payload which is not there any more."""
_NUMBERS: Final = 7


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """User records as columns of equal length, in log order, of one segment or several.

    Args:
        segment, entry, slot: where each is.
        sequence_id, transaction_id, flags: of each; `flags` are the 16 bits of its header.
        value: the payloads, of type binary; null where one was erased.
    """

    segment: IntArray
    entry: IntArray
    slot: IntArray
    sequence_id: IntArray
    transaction_id: IntArray
    flags: IntArray
    value: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.segment)

    @classmethod
    def of(cls, batch: DecodedBatch) -> RecordColumns:
        """Return decoded records in this form; control records must not be among them."""
        return cls(
            np.full(len(batch), batch.lssn, np.int64),
            batch.entry_id,
            batch.slot_id,
            batch.sequence_id,
            batch.txid,
            batch.flags,
            batch.payload,
        )

    @classmethod
    def of_numbers(cls, numbers: Sequence[IntArray], value: pa.BinaryArray) -> RecordColumns:
        """Return records of `numbers` (as the property has them) and payloads."""
        segment, entry, slot, sequence_id, transaction_id, flags = numbers
        return cls(segment, entry, slot, sequence_id, transaction_id, flags, value)

    @classmethod
    def none(cls) -> RecordColumns:
        """Return no records."""
        return cls.of_numbers([np.empty(0, np.int64)] * 6, pa.array([], pa.binary()))

    def sliced(self, first: int, after: int) -> RecordColumns:
        """Return the records from `first` to before `after`; they share their memory."""
        return RecordColumns.of_numbers(
            [one[first:after] for one in self.numbers], self.value.slice(first, after - first)
        )

    def erased(self, chosen: npt.NDArray[np.bool_]) -> RecordColumns:
        """Return the records without the bytes of those that are chosen."""
        value = pc.if_else(pa.array(chosen), pa.scalar(None, pa.binary()), self.value)
        return RecordColumns.of_numbers(self.numbers, value)

    @property
    def numbers(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
        """All columns but the payloads."""
        return (self.segment, self.entry, self.slot, self.sequence_id, self.transaction_id, self.flags)

    @classmethod
    def joined(cls, parts: list[RecordColumns]) -> RecordColumns:
        """Return the records of all parts, one of them at least."""
        if len(parts) == 1:
            return parts[0]
        numbers = [np.concatenate(columns) for columns in zip(*(one.numbers for one in parts), strict=True)]
        return cls.of_numbers(numbers, pa.concat_arrays([one.value for one in parts]))


class RecordDigest:
    """What is the digest of these records? Give them in log order, any number at a time."""

    def __init__(self) -> None:
        self._columns = [hashlib.sha256() for _ in range(_NUMBERS)]
        self._payloads = hashlib.sha256()

    def update(self, records: RecordColumns) -> None:
        """Take more records."""
        for column, numbers in zip(self._columns, (*records.numbers, hashed_lengths(records.value)), strict=True):
            column.update(np.ascontiguousarray(numbers, "<i8").data)
        for payloads in _payload_bytes(records.value):
            self._payloads.update(payloads)

    def digest(self) -> bytes:
        """Return the digest of all records so far."""
        return hashlib.sha256(b"".join(one.digest() for one in (*self._columns, self._payloads))).digest()

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal."""
        return self.digest().hex()


def hashed_lengths(value: pa.BinaryArray) -> IntArray:
    """Return the length of each payload in bytes, ERASED_LENGTH for null."""
    lengths = np.diff(offsets_of(value))
    if value.null_count:
        lengths[value.is_null().to_numpy(zero_copy_only=False)] = ERASED_LENGTH
    return lengths


def offsets_of(value: pa.BinaryArray) -> IntArray:
    """Return where in the array's data each payload starts, and the last one ends."""
    if not len(value):
        return np.zeros(1, np.int64)
    return np.frombuffer(value.buffers()[1], np.int32)[value.offset : value.offset + len(value) + 1].astype(np.int64)


def _payload_bytes(value: pa.BinaryArray) -> list[memoryview]:
    """Return the payloads, one behind the other, in as few pieces as they lie in."""
    # Arrow allows bytes under a null: they are no payload, so an array with nulls is cleared of them first.
    if value.null_count:
        value = value.drop_null()
    offsets = offsets_of(value)
    data = value.buffers()[2]
    return [] if data is None else [memoryview(data)[int(offsets[0]) : int(offsets[-1])]]
