"""The records of a load: what each says of itself, and which of them were delivered.

    offset  type     field
    0       u64      number of the record in its log, from 0
    8       i64      when it was due, nanoseconds of the monotonic clock
    16      bytes    random, the same in all records

Little-endian. The clock is the machine's own: who writes and who reads are processes of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer

_HEADER: Final = np.dtype([("number", "<u8"), ("due_ns", "<i8")])
_SEED: Final = 1
MAX_GAPS: Final = 10_000
"""More gaps than that among delivered records are not followed: the run fails."""


class RecordMaker:
    """Makes records of one length.

    Args:
        record_bytes: the length, with what each record says of itself.

    Raises:
        CallerError: that does not fit.
    """

    def __init__(self, record_bytes: int) -> None:
        if record_bytes < _HEADER.itemsize:
            raise CallerError(f"a record of the benchmark has {_HEADER.itemsize} bytes at least, not {record_bytes}")
        self._row = np.random.default_rng(_SEED).integers(0, 256, record_bytes, np.uint8)

    def make(self, first: int, due_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return records, a row each, numbered from `first` on."""
        rows = np.tile(self._row, (len(due_ns), 1))
        header = np.empty(len(due_ns), _HEADER)
        header["number"] = np.arange(first, first + len(due_ns), dtype=np.uint64)
        header["due_ns"] = due_ns
        rows[:, : _HEADER.itemsize] = header.view(np.uint8).reshape(len(due_ns), _HEADER.itemsize)
        return rows


def read_records(data: Buffer, record_bytes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return numbers and due times of records that lie behind each other. Raises CallerError for other lengths."""
    rows = np.frombuffer(data, np.uint8)
    if len(rows) % record_bytes:
        raise CallerError(f"{len(rows)} bytes were delivered, which are not records of {record_bytes} bytes")
    header = np.ascontiguousarray(rows.reshape(-1, record_bytes)[:, : _HEADER.itemsize]).view(_HEADER).reshape(-1)
    return header["number"].astype(np.int64), header["due_ns"].astype(np.int64)


class DeliveredRecords:
    """Which records of one log were delivered? It counts what is missing and what came twice."""

    def __init__(self) -> None:
        self._next = 0
        self._gaps: list[tuple[int, int]] = []
        """Numbers below `_next` that have not come: from the first of a pair to before the second."""
        self.twice = 0

    @property
    def count(self) -> int:
        """How many different records have come."""
        return self._next - sum(end - begin for begin, end in self._gaps)

    def add(self, numbers: npt.NDArray[np.int64]) -> None:
        """Note records as delivered, in this order. Raises CallerError where there are too many gaps to follow."""
        if not len(numbers):
            return
        in_order = int(numbers[0]) == self._next and bool((np.diff(numbers) == 1).all())
        if in_order:
            self._next += len(numbers)
            return
        for number in numbers.tolist():
            self._add(number)

    def _add(self, number: int) -> None:
        if number >= self._next:
            if number > self._next:
                self._gaps.append((self._next, number))
                if len(self._gaps) > MAX_GAPS:
                    raise CallerError(
                        f"records were delivered with more than {MAX_GAPS} gaps between them, which are not followed",
                        advice="Records are lost, or come in no order: look at the system's own log",
                    )
            self._next = number + 1
            return
        for place, (begin, end) in enumerate(self._gaps):
            if begin <= number < end:
                parts = [(begin, number), (number + 1, end)]
                self._gaps[place : place + 1] = [part for part in parts if part[0] < part[1]]
                return
        self.twice += 1

    def missing(self, written: int) -> list[tuple[int, int]]:
        """Return which numbers below `written` have not come: from the first of a pair to before the second."""
        return [*self._gaps, (self._next, max(written, self._next))]

    def lost(self, written: int, refused: Iterable[tuple[int, int]] = ()) -> int:
        """Return how many records have not come, of `written` whose numbers are from 0 on.

        `refused`: numbers that were not acknowledged, as pairs (first, count): these may be missing.
        """
        gaps = self.missing(written)
        missing = sum(end - begin for begin, end in gaps)
        for first, count in refused:
            missing -= sum(max(0, min(end, first + count) - max(begin, first)) for begin, end in gaps)
        return missing
