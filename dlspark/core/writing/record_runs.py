"""`RecordRun`: records that are written side by side, by columns; and what a record must be to be written.

A run is checked as its records would be one by one, but no step of the interpreter is taken for each of them: a proxy
gives its writer hundreds of small records at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import gt
from typing import TypeAlias

import numpy as np

from dlspark.core.codec.records import HEADER_BYTES, check_payload_length, check_user_txid
from dlspark.errors import InvalidRecordError
from storage_node.protocol.frames import Buffer


def check_payload(payload: object) -> None:
    """Raise InvalidRecordError unless it is bytes."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidRecordError(
            f"a payload is bytes, not {type(payload).__name__}; nothing was written",
            advice="Encode text, for example with .encode()",
        )


def check_txid(txid: object) -> None:
    """Raise InvalidRecordError or TransactionIdOutOfOrderError unless a user record may carry it."""
    if isinstance(txid, bool) or not isinstance(txid, int | np.integer):
        raise InvalidRecordError(f"a transaction id is an integer, not {type(txid).__name__}")
    check_user_txid(int(txid))


@dataclass(slots=True)  # not frozen: two are made for each request, and frozen ones cost twice as much to make
class RecordRun:
    """Records that were checked (`run_of`): transaction ids and payloads, as many of each; or payloads alone, which get
    one id for all of them when they get their place (`at`)."""

    txids: Sequence[int]
    payloads: Sequence[bytes]
    size: int
    """Bytes that they take of an entry."""

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def first_txid(self) -> int:
        """The first record's id, -1 where it has none yet."""
        return self.txids[0] if self.txids else -1

    @property
    def highest_txid(self) -> int:
        """The highest id, -1 where there is none yet."""
        return max(self.txids, default=-1)

    def at(self, txid: int) -> RecordRun:
        """Return the same records; those without ids have this one."""
        return self if self.txids else RecordRun((txid,) * len(self), self.payloads, self.size)

    @property
    def in_order(self) -> bool:
        """True if no transaction id is below the one before it."""
        return len(self.txids) < 2 or not any(map(gt, self.txids, islice(self.txids, 1, None)))

    def fitting(self, first: int, room: int) -> int:
        """Return how many records, from number `first` on, take at most `room` bytes of an entry together."""
        if not first and self.size <= room:
            return len(self)
        sizes = (HEADER_BYTES + len(payload) for payload in islice(self.payloads, first, None))
        for count, taken in enumerate(accumulate(sizes)):
            if taken > room:
                return count
        return len(self) - first

    def part(self, first: int, count: int) -> RecordRun:
        """Return `count` records, from number `first` on."""
        if count == len(self):
            return self
        return _run(self.txids[first : first + count], self.payloads[first : first + count])


Columns: TypeAlias = tuple[Sequence[int] | None, Sequence[Buffer]]
"""Transaction ids and payloads that were not checked, as many of each; None for the time at which they get their place,
or the log's highest id where that is above it."""
NO_RECORDS = RecordRun((), (), 0)


def run_of(txids: Sequence[int] | None, payloads: Sequence[Buffer]) -> RecordRun:
    """Return the run of records (txids[i], payloads[i]), see `Columns`. Copies payloads that their caller could change
    (I3).

    Raises InvalidRecordError, RecordTooLongError or TransactionIdOutOfOrderError where one of them may not be written.
    """
    owned: Sequence[bytes] = payloads  # type: ignore[assignment]
    kinds = set(map(type, payloads))  # one pass in C; a check of each payload would cost more than writing it
    if not kinds <= {bytes}:
        if not kinds <= {bytes, bytearray, memoryview}:
            for payload in payloads:
                check_payload(payload)
        owned = list(map(bytes, payloads))
    if txids is None:
        txids = ()
    elif not set(map(type, txids)) <= {int}:
        for txid in txids:
            check_txid(txid)
        txids = [int(txid) for txid in txids]  # numpy's integers would wrap where Python's grow
    if txids:
        check_user_txid(min(txids))
        check_user_txid(max(txids))
    if owned:
        check_payload_length(max(map(len, owned)))
    return _run(txids, owned)


def _run(txids: Sequence[int], payloads: Sequence[bytes]) -> RecordRun:
    return RecordRun(txids, payloads, HEADER_BYTES * len(payloads) + sum(map(len, payloads)))
