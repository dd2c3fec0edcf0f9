"""`RecordAccumulator`: records of one stream, gathered into requests by bytes, count and time. No I/O.

A record never travels alone while others wait: a request is taken only when it may be sent at once, and takes all that
waits, up to its bounds. So with few records each is sent at once, and with many the requests grow by themselves.

    a request is ready    its bytes or records have reached their bounds, or its oldest record has waited for the linger
    it is taken           by the edge, when the producer has room

The order of records is that in which they were added. A record keeps its key; what becomes of a request becomes of its
records (`record_outcomes`). What waits is bounded (`has_room`): a caller that adds more must wait, or is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    Refusal,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from metadata.foundation.errors import OutcomeUnknownError, check
from storage_node.protocol.frames import Buffer

RECORD_ROOM_BYTES: Final = 32
"""What a record takes of a request, and of an entry, beside its payload: more than its headers in either."""


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bounds how large a request may get, how long a record waits for others, and how much may wait."""

    max_bytes: int = 256 * 1024
    max_records: int = 4_096
    linger_ms: int = 0
    max_pending_bytes: int = 64 * 1024 * 1024
    max_pending_records: int = 200_000


class ProducerBatch(NamedTuple):
    """The records of one request, in their order."""

    keys: tuple[Hashable, ...]
    payloads: tuple[Buffer, ...]
    transaction_ids: tuple[int, ...] | None
    bytes: int
    """Of the payloads, with `RECORD_ROOM_BYTES` for each."""

    def request(self, stream: str) -> WriteRecords:
        """Return the request that writes them, in one entry."""
        return WriteRecords(stream, self.payloads, atomic=True, transaction_ids=self.transaction_ids)


@dataclass(slots=True)
class _Waiting:
    payload: Buffer
    transaction_id: int | None
    since: float


class RecordAccumulator:
    """Records that wait for a request of their stream, and the room of records under way."""

    def __init__(self, limits: BatchBounds | None = None) -> None:
        self._limits = limits if limits is not None else BatchBounds()
        self._waiting: OrderedDict[Hashable, _Waiting] = OrderedDict()
        self._waiting_bytes = 0
        self._pending_bytes = 0
        self._pending_records = 0

    def __len__(self) -> int:
        """Return how many records wait to be taken."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that wait or are under way."""
        return self._pending_bytes

    @property
    def has_room(self) -> bool:
        """Whether another record may be added. A single record always finds room where there is nothing else."""
        limits = self._limits
        # Asked before a record is added, not with its size: a record larger than the bound would never find room.
        return self._pending_bytes < limits.max_pending_bytes and self._pending_records < limits.max_pending_records

    def add(self, key: Hashable, payload: Buffer, now: float, transaction_id: int | None = None) -> bool:
        """Have a record wait; `key` is no other's. The payload must not be changed until its fate is known.

        False: there is no room, and nothing was done.
        """
        if not self.has_room:
            return False
        check(key not in self._waiting, "two records have one key")
        self._waiting[key] = _Waiting(payload, transaction_id, now)
        size = len(payload) + RECORD_ROOM_BYTES
        self._waiting_bytes += size
        self._pending_bytes += size
        self._pending_records += 1
        return True

    def give_up(self, key: Hashable) -> bool:
        """Take a record back that was not taken into a request yet; return whether it was there to be taken back."""
        found = self._waiting.pop(key, None)
        if found is None:
            return False
        size = len(found.payload) + RECORD_ROOM_BYTES
        self._waiting_bytes -= size
        self._release(size, 1)
        return True

    def is_ready(self, now: float) -> bool:
        """Return whether a request is to be taken as soon as it may be sent."""
        due = self.next_due()
        return due is not None and due <= now

    def next_due(self) -> float | None:
        """Return when `is_ready` becomes true by time alone, perhaps in the past; None: nothing waits."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values())).since
        limits = self._limits
        if self._waiting_bytes >= limits.max_bytes or len(self._waiting) >= limits.max_records:
            return oldest
        return oldest + limits.linger_ms / 1000

    def take(self) -> ProducerBatch:
        """Return the next request's records: the oldest ones, as many as fit. Something must wait.

        Records with transaction ids of their own and records without are not in one request.
        """
        check(bool(self._waiting), "a request was taken where no record waits")
        keys: list[Hashable] = []
        taken: list[_Waiting] = []
        size = 0
        for key, record in self._waiting.items():
            grown = size + len(record.payload) + RECORD_ROOM_BYTES
            # The first record is always taken, however long: a request of it alone is the smallest that there is.
            full = grown > self._limits.max_bytes or len(taken) >= self._limits.max_records
            if taken and (full or (record.transaction_id is None) is not (taken[0].transaction_id is None)):
                break
            size = grown
            keys.append(key)
            taken.append(record)
        for key in keys:
            del self._waiting[key]
        self._waiting_bytes -= size
        ids = tuple(record.transaction_id for record in taken if record.transaction_id is not None)
        return ProducerBatch(tuple(keys), tuple(record.payload for record in taken), ids or None, size)

    def settled(self, batch: ProducerBatch) -> None:
        """Note that the fate of a request is known: its room is free."""
        self._release(batch.bytes, len(batch.keys))

    def _release(self, size: int, records: int) -> None:
        self._pending_bytes -= size
        self._pending_records -= records
        check(self._pending_bytes >= 0 and self._pending_records >= 0, "more records were settled than were added")


def record_outcomes(batch: ProducerBatch, answer: Answer) -> Iterator[tuple[Hashable, DLSN | Refusal | None]]:
    """Yield what became of each record: its DLSN, None where it is stored and its DLSN is forgotten, or why not.

    An answer that does not fit the request says nothing of them: their outcome is unknown.
    """
    if isinstance(answer, WriteReceipt) and answer.records == len(batch.keys):
        first, count = answer.dlsn, len(batch.keys)
        yield from zip(batch.keys, first.run(count) if first is not None else repeat(None, count), strict=True)
    elif isinstance(answer, BulkReceipt) and len(answer.results) == len(batch.keys):
        yield from zip(batch.keys, answer.results, strict=True)
    else:
        # A proxy that answers so may have written it: that it was not written is never concluded from nonsense.
        refusal = answer if isinstance(answer, Refusal) else _misfit_refusal(batch, answer)
        for key in batch.keys:
            yield key, refusal


def _misfit_refusal(batch: ProducerBatch, answer: Answer) -> Refusal:
    message = f"a request of {len(batch.keys)} records was answered with {type(answer).__name__}"
    if isinstance(answer, WriteReceipt):
        message = f"{message} for {answer.records}"
    return replace(refusal_of(OutcomeUnknownError(message)), code=StatusCode.UNEXPECTED)
