"""Segments to be: ledgers with the records of one log, written by a task or by the driver, to which no log refers yet.

`StagedSegmentWriter` writes one such ledger, and keeps what the segment's metadata will say; `WriteWindow` bounds what
is on its way. A task writes its rows by them (`task`), and the driver what is left to be written between the tasks and
the publication:

* `write_rows` writes rows that came in a task's message.
* `rewrite` writes staged records again, into one new ledger: with another timestamp, or those of several segments as
  one. The new ledger is listed like any other; the old ones stay as they are, listed, and go with the sweep after the
  commit.

`plan_merges` says which segments are written as one. Each task makes one segment a log, so many tasks over many logs
make more segments than one multi can publish. Then the driver writes neighbouring ones of a log again as one, the
smallest first, until the multi fits. That costs the driver time, so it is bounded: a batch whose segments are too many
and too large is refused with what to do.

Fault model: a storage node may fail at any entry, which the ledger's writer outlasts or raises. Whatever is raised
here, the ledger stays listed and open; a sweep finds it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.entries import Compression, EncodedEntry
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_entries
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.spark.sink.inline_rows import decoded
from dlspark.spark.sink.messages import InlineRows, StagedSegment
from metadata.foundation.errors import check
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter

ENTRY_BYTES = 256 * 1024
"""Size that entries are filled to."""
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Most bytes sent and not yet acknowledged, over all ledgers of a task."""
MAX_MERGED_BYTES = 256 * 1024 * 1024
"""Most bytes of records that the driver writes again for one batch."""
MAX_MERGED_RECORDS = 2**31 - 2**24
"""A segment's positions have 31 bits."""
WINDOW_ENTRIES = 32
"""Entries that are read at once from a ledger whose records are written again."""


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

    async def close(self, log: str, partition: int, ordinal: int, *, stamped: bool) -> StagedSegment:
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
            stamped=stamped,
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


# ---------------------------------------------------------------------- written by the driver


async def rewrite(
    ledgers: LedgerClient,
    writer: LedgerWriter,
    segments: Sequence[StagedSegment],
    txid: int | None,
    *,
    password: bytes,
    compression: Compression,
) -> StagedSegment:
    """Write the records of `segments`, all of one log and in their order, to `writer`; with `txid` for their own ids.

    Raises what reading or writing raised; the writer has been abandoned then, and its ledger is left to a sweep.
    """
    window = WriteWindow()
    again = StagedSegmentWriter(writer, window)
    position = 1
    try:
        for segment in segments:
            async with aclosing(_read(ledgers, segment, password)) as batches:
                async for rows in batches:
                    txids = rows.txid if txid is None else np.full(len(rows), txid, dtype=np.int64)
                    for entry in cut_entries(txids, rows.payload, position, compression):
                        await again.add(entry)
                    position += len(rows)  # positions count on over all of them: it is one segment now (I4)
        await window.drain()
        first = segments[0]
        copy = await again.close(first.log, first.partition, first.ordinal, stamped=first.stamped)
    except BaseException:
        window.abandon()
        await writer.abandon()
        raise
    expected = sum(segment.record_count for segment in segments)
    check(
        copy.record_count == expected,
        f"{copy.record_count} of {expected} records came through being written again",
        ledger_id=writer.ledger_id,
    )
    return copy


async def write_rows(writer: LedgerWriter, rows: InlineRows, compression: Compression) -> StagedSegment:
    """Write rows that travelled inline to `writer`, as their task would have. Raises what writing raised; the writer
    has been abandoned then."""
    window = WriteWindow()
    segment = StagedSegmentWriter(writer, window)
    txids, values = decoded(rows)
    if txids is None:
        txids = np.full(len(values), rows.first_txid, dtype=np.int64)
    try:
        for entry in cut_entries(txids, values, 1, compression):
            await segment.add(entry)
        await window.drain()
        return await segment.close(rows.log, rows.partition, rows.ordinal, stamped=rows.stamp_ms is not None)
    except BaseException:
        window.abandon()
        await writer.abandon()
        raise


async def _read(ledgers: LedgerClient, segment: StagedSegment, password: bytes) -> AsyncGenerator[DecodedBatch, None]:
    ledger = await ledgers.open(segment.ledger_id, password=password, recover=False)  # its task has closed it
    try:
        for first in range(0, segment.last_entry + 1, WINDOW_ENTRIES):
            last = min(first + WINDOW_ENTRIES - 1, segment.last_entry)
            entries = [(entry.entry_id, entry.payload) for entry in await ledger.read(first, last)]
            yield decode_entries(entries, lssn=1, start_sequence_id=0)
    finally:
        await ledger.close()


# ---------------------------------------------------------------------- which are merged


@dataclass(slots=True)
class _MergeRun:
    """Neighbouring segments of one log that become one; None: they belong to their neighbour on the left by now."""

    segments: list[StagedSegment] | None
    bytes: int
    records: int
    left: int
    right: int


def plan_merges(
    by_log: Sequence[Sequence[StagedSegment]], excess_bytes: int, cost: Callable[[StagedSegment], int]
) -> list[list[StagedSegment]] | None:
    """Runs of neighbours to be merged, each of two segments or more, so that `excess_bytes` of the multi are saved.

    `by_log` has the segments of each log in their order; `cost` is what a segment takes in the multi. None: it cannot
    be done within the bounds.
    """
    nodes: list[_MergeRun] = []
    pairs: list[tuple[int, int, int]] = []
    for segments in by_log:
        first = len(nodes)
        for number, segment in enumerate(segments, first):
            right = number + 1 if number + 1 < first + len(segments) else -1
            nodes.append(_MergeRun([segment], segment.user_bytes, segment.record_count, number - 1, right))
            if right != -1:
                pairs.append((segment.user_bytes + segments[number - first + 1].user_bytes, number, right))
        if first < len(nodes):
            nodes[first].left = -1
    heapq.heapify(pairs)
    saved = 0
    while saved < excess_bytes and pairs:
        size, left, right = heapq.heappop(pairs)
        saved += _join(nodes, pairs, left, right, size, cost)
    runs = [node.segments for node in nodes if node.segments is not None and len(node.segments) > 1]
    written = sum(segment.user_bytes for run in runs for segment in run)
    return runs if saved >= excess_bytes and written <= MAX_MERGED_BYTES else None


def _join(
    nodes: list[_MergeRun],
    pairs: list[tuple[int, int, int]],
    left: int,
    right: int,
    size: int,
    cost: Callable[[StagedSegment], int],
) -> int:
    """Join two neighbours, unless the pair is out of date or too long. Returns the bytes of the multi that it saves."""
    one, other = nodes[left], nodes[right]
    if one.segments is None or other.segments is None or one.right != right or one.bytes + other.bytes != size:
        return 0
    if one.records + other.records > MAX_MERGED_RECORDS:
        return 0
    # The joined segment keeps the place of the left one in the multi, so the right run's place is what is saved.
    saved = cost(other.segments[0])
    one.segments += other.segments
    one.bytes, one.records, one.right = size, one.records + other.records, other.right
    other.segments = None
    if one.right != -1:
        nodes[one.right].left = left
        heapq.heappush(pairs, (size + nodes[one.right].bytes, left, one.right))
    if one.left != -1:
        heapq.heappush(pairs, (nodes[one.left].bytes + size, one.left, left))
    return saved
