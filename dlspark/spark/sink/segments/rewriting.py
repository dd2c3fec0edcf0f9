"""Staged records written again by the driver, into one new ledger: with ids that are not below another one, or those of
several segments as one (`merging` says which). `write_rows` writes rows that came in a task's message.

The driver does this between the tasks and the publication. The new ledger is listed like any other; the old ones stay
as they are, listed, and go with the sweep after the commit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_entries
from dlspark.spark.sink.inline_rows import decoded
from dlspark.spark.sink.messages import InlineRows, StagedSegment
from dlspark.spark.sink.segments.staged_ledger import StagedSegmentWriter, WriteWindow, cut_entries
from metadata.foundation.errors import check
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter

WINDOW_ENTRIES = 32
"""Entries that are read at once from a ledger whose records are written again."""


async def rewrite(
    ledgers: LedgerClient,
    writer: LedgerWriter,
    segments: Sequence[StagedSegment],
    lowest_txid: int,
    *,
    password: bytes,
    compression: Compression,
) -> StagedSegment:
    """Write the records of `segments`, all of one log and in their order, to `writer`; ids that are below the one
    before them, or below `lowest_txid`, are raised to it.

    Raises what reading or writing raised; the writer has been abandoned then, and its ledger is left to a sweep.
    """
    window = WriteWindow()
    again = StagedSegmentWriter(writer, window)
    position = 1
    try:
        for segment in segments:
            async with aclosing(_read(ledgers, segment, password)) as batches:
                async for rows in batches:
                    if not len(rows):
                        continue
                    txids = np.maximum.accumulate(np.maximum(rows.txid, lowest_txid))
                    lowest_txid = int(txids[-1])
                    for entry in cut_entries(txids, rows.payload, position, compression):
                        await again.add(entry)
                    position += len(rows)  # positions count on over all of them: it is one segment now (I4)
        await window.drain()
        first = segments[0]
        rows_in_all = sum(segment.row_count for segment in segments)
        copy = await again.close(first.log, first.partition, first.ordinal, first.origin, rows_in_all)
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
        return await segment.close(rows.log, rows.partition, rows.ordinal, rows.origin, rows.record_count)
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
