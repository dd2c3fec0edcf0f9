"""Writing staged records again, into one new ledger: with another timestamp, or those of several segments as one.

The driver does this between the tasks and the publication. The new ledger is listed like any other; the old ones stay
as they are, listed, and go with the sweep after the commit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from dlspark.core.codec.entries import Compression, DecodedBatch, decode_entries
from dlspark.spark.sink.messages import StagedSegment
from dlspark.spark.sink.task import SegmentWriter, Window, cut_entries
from metadata.foundation.errors import check
from storage_node.client import LedgerWriter
from storage_node.client.client import LedgerClient

WINDOW_ENTRIES = 32


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
    window = Window()
    again = SegmentWriter(writer, window)
    position = 1
    try:
        for segment in segments:
            async with aclosing(_read(ledgers, segment, password)) as batches:
                async for rows in batches:
                    txids = rows.txid if txid is None else np.full(len(rows), txid, dtype=np.int64)
                    for entry in cut_entries(txids, rows.payload, position, compression):
                        await again.add(entry)
                    position += len(rows)
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


async def _read(ledgers: LedgerClient, segment: StagedSegment, password: bytes) -> AsyncGenerator[DecodedBatch, None]:
    ledger = await ledgers.open(segment.ledger_id, password=password, recover=False)
    try:
        for first in range(0, segment.last_entry + 1, WINDOW_ENTRIES):
            last = min(first + WINDOW_ENTRIES - 1, segment.last_entry)
            entries = [(entry.entry_id, entry.payload) for entry in await ledger.read(first, last)]
            yield decode_entries(entries, lssn=1, start_sequence_id=0)
    finally:
        await ledger.close()
