"""One ledger as a segment to be: rows cut into entries, entries sent within a window, and what its metadata will say.

Both write by it, a task its rows and the driver what it writes again (`rewriting`).
"""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.entries import Compression, EncodedEntry
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.spark.sink.messages import IdOrigin, StagedSegment
from metadata.foundation.errors import check
from storage_node.client.writer import LedgerWriter

ENTRY_BYTES = 256 * 1024
"""Size that entries are filled to."""
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Most bytes sent and not yet acknowledged, over all ledgers of a task."""


class WriteWindow:
    """The adds of one task that wait for acknowledgement, bounded in bytes over all its ledgers."""

    def __init__(self, max_bytes: int = MAX_IN_FLIGHT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._adds: deque[tuple[asyncio.Future[int], int]] = deque()
        self._bytes = 0

    def push(self, add: asyncio.Future[int], size: int) -> None:
        """Take up an add under way, of `size` bytes."""
        self._adds.append((add, size))
        self._bytes += size

    async def room(self) -> None:
        """Wait until another add fits. Raises what an add failed with."""
        while self._adds and (self._bytes > self._max_bytes or self._adds[0][0].done()):
            await self._oldest()

    async def drain(self) -> None:
        """Wait for every add. Raises the first failure."""
        while self._adds:
            await self._oldest()

    async def _oldest(self) -> None:
        add, size = self._adds.popleft()
        self._bytes -= size
        await add

    def abandon(self) -> None:
        """Wait for nothing more. Failures of adds under way are taken note of, so that asyncio does not log them."""
        for add, _ in self._adds:
            add.add_done_callback(_seen)
        self._adds.clear()
        self._bytes = 0


def _seen(add: asyncio.Future[int]) -> None:
    if not add.cancelled():
        add.exception()


class StagedSegmentWriter:
    """Writes one ledger as a segment to be, keeping what its metadata will say."""

    def __init__(self, ledger: LedgerWriter, window: WriteWindow) -> None:
        self._ledger = ledger
        self._window = window
        self._count = 0
        self._first_txid = self._last_txid = -1
        self._last_entry = self._last_slot = -1
        self._user_bytes = 0

    async def add(self, entry: EncodedEntry) -> None:
        """Send one entry, once there is room for it."""
        await self._window.room()
        await self._ledger.wait_for_room()  # a bookie beyond the ack quorum may be slow: its queue is memory, too
        self._window.push(self._ledger.add(*entry.buffers), stored_bytes(entry))
        if self._count == 0:
            self._first_txid = entry.first_txid
        self._count += entry.record_count
        self._last_txid = entry.last_txid
        self._last_entry = self._ledger.last_add_pushed
        self._last_slot = entry.record_count - 1
        self._user_bytes += entry.user_bytes

    async def abandon(self) -> None:
        """Leave the ledger as it is."""
        await self._ledger.abandon()

    async def close(self, log: str, partition: int, ordinal: int, origin: IdOrigin, row_count: int) -> StagedSegment:
        """Close the ledger, with everything acknowledged; its end is final from here on (I2)."""
        metadata = await self._ledger.close()
        # Readers go by the end that is stored (I2): the segment's metadata must say the same.
        check(
            metadata.last_entry == self._last_entry,
            f"a staged ledger closed at entry {metadata.last_entry} instead of {self._last_entry}",
            ledger_id=self._ledger.ledger_id,
        )
        return StagedSegment(
            log=log,
            ledger_id=self._ledger.ledger_id,
            partition=partition,
            ordinal=ordinal,
            first_txid=self._first_txid,
            last_txid=self._last_txid,
            record_count=self._count,
            last_entry=self._last_entry,
            last_slot=self._last_slot,
            user_bytes=self._user_bytes,
            origin=origin,
            row_count=row_count,
        )


def stored_bytes(entry: EncodedEntry) -> int:
    """Return the entry's size as it is stored."""
    return sum(len(buffer) for buffer in entry.buffers)


def cut_entries(
    txids: npt.NDArray[np.int64], values: pa.Array, position: int, compression: Compression
) -> list[EncodedEntry]:
    """Encode rows into entries of about ENTRY_BYTES, the first record at `position`."""
    return list(
        encode_entries(txids, values, first_position=position, compression=compression, max_entry_bytes=ENTRY_BYTES)
    )
