"""Entries on their way to storage nodes: whose records they hold, and how those are told what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EncodedEntry
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.metrics.entries import Moments


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """One acknowledged entry of a batch: its first record's DLSN (the k-th record has slot + k) and how many follow."""

    dlsn: DLSN
    record_count: int
    first_txid: int
    last_txid: int


@dataclass(slots=True)
class SentBatch:
    """A batch of which some entries wait for acknowledgement. Its future ends with the last of them, or the first
    failure."""

    future: asyncio.Future[tuple[WrittenEntry, ...]]
    waiting: int = 0
    written: list[WrittenEntry] = field(default_factory=list)

    def acknowledged(self, entry: WrittenEntry) -> None:
        self.written.append(entry)
        self.waiting -= 1
        if not self.waiting and not self.future.done():
            self.future.set_result(tuple(self.written))


@dataclass(slots=True)
class SentEntry:
    """One entry under way. `futures` are its records' in slot order; a batch has one for all of its entries."""

    entry_id: int
    encoded: EncodedEntry
    futures: list[asyncio.Future[DLSN]]
    batch: SentBatch | None
    has_user_data: bool
    highest_txid: int
    """Of all user records up to this entry's."""
    moments: Moments

    @property
    def records(self) -> int:
        """Those that somebody waits for."""
        return len(self.futures) if self.batch is None else self.encoded.record_count

    @property
    def users(self) -> int:
        """User records: all of them but the one that ends the stream."""
        return self.encoded.record_count - int(self.encoded.last_txid == MAX_TXID)

    def acknowledged(self, lssn: int) -> None:
        """Tell the records where they are."""
        for slot, future in enumerate(self.futures):
            if not future.done():
                future.set_result(DLSN(lssn, self.entry_id, slot))

    def batch_acknowledged(self, lssn: int) -> None:
        """Tell the batch that this entry of it is stored."""
        if self.batch is not None:
            encoded, dlsn = self.encoded, DLSN(lssn, self.entry_id, 0)
            self.batch.acknowledged(WrittenEntry(dlsn, encoded.record_count, encoded.first_txid, encoded.last_txid))


def fail_records(futures: Sequence[asyncio.Future[DLSN]], batch: SentBatch | None, error: Exception) -> None:
    """End what has not ended yet."""
    for future in futures:
        if not future.done():
            future.set_exception(error)
    if batch is not None and not batch.future.done():
        batch.future.set_exception(error)
