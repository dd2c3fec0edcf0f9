"""The task's side of the source: it fetches the entries of its spans and yields record batches.

A task needs no ZooKeeper session: its partition carries ledger metadata and the addresses of the nodes, or those of
read proxies where the query goes through them (`proxy_entries`). One chunk of entries is fetched in the background
while the one before it is decoded and handed to Spark, so two at most are in memory.

A segment that is cold is read from its file: the partition carries the file's address as well.

Fault model: what entries come from may be slow, down or damaged (`span_entries`). An entry that cannot be had fails the
task with the entry's position; Spark may run the task again. What the task yields depends on its partition alone, so a
second attempt yields the same rows. Entries that were deleted after the plan was made are data
loss whatever `failOnDataLoss` says: only the driver, which sees the log's metadata, can distinguish a deleted segment
from one that nodes have lost, and does so when the batch is planned again.

The record batches have the columns of the core, nullable but for those that a user has declared NOT NULL, a few
megabytes each. `timestamp` is the transaction id read as milliseconds since the epoch. An id outside the years 1970 to
9999 (they are free numbers) has no timestamp: null, not an overflow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlspark.core.codec.arrow_arrays import int64_array, repeated_text
from dlspark.core.codec.vector_decoding import EXPANDED_BYTES, ROW_SCHEMA, DecodedBatch, decode_up_to, timestamps
from dlspark.core.runtime import Runtime
from dlspark.errors import PositionGapError
from dlspark.spark.source.frame_columns import PackedDeclaration
from dlspark.spark.source.planning import Partition, SegmentSpan
from dlspark.spark.source.schema import ColumnNames
from dlspark.spark.source.span_entries import (
    SHARED_READERS,
    SpanEntries,
    StoredEntries,
    cold_files_hold,
    task_reads_from,
)
from dlspark.spark.source.task_tokens import TaskToken
from metadata.foundation.tasks import end_tasks
from storage_node.settings.client import ClientSettings

CHUNK_BYTES = 4 << 20
"""Entries are decoded together up to about this many stored bytes."""
MAX_HOSTS = 3
"""Hosts that a partition prefers at most."""
TARGET_BATCH_BYTES = 4 << 20
"""Size of one record batch. Spark's transport is flat from 2 to 10 MB and slower beyond."""
TYPES: dict[str, pa.DataType] = {field.name: field.type for field in ROW_SCHEMA}
_FIXED_BYTES_PER_ROW = 7 * 8 + 8


class LogPartition(InputPartition):
    """The part of a read that one task does: some spans, in order, with the ledger client's settings of the driver, and
    the addresses of the read proxies that it asks in place of storage nodes, if any. `token` is what it shows them
    (None: what its executor has); nothing but its pickled form has that, which Spark keeps nowhere (`task_tokens`).

    Its value is the hosts that have the data, in a form that the Java side finds in the pickled partition
    (LocatedBatch.java): Spark asks Python sources for no preferred hosts. In the same way the first partition of a
    plan tells what the plan has seen of the logs (`query_snapshot`).
    """

    def __init__(
        self,
        spans: Partition,
        client_settings: ClientSettings,
        proxies: Sequence[str] = (),
        seen: str = "",
        declared: PackedDeclaration | None = None,
        token: TaskToken | None = None,
    ) -> None:
        hosts = f"dlspark-hosts[{','.join(() if proxies else hosts_of(spans))}]"
        super().__init__(f"{hosts} dlspark-seen[{seen}]" if seen else hosts)
        self.spans = spans
        self.client_settings = client_settings
        self.proxies = tuple(proxies)
        self.seen = seen
        self.token = token
        self.declared = declared
        """What the log declares, of whose columns the frame has some; None: the frame has columns of records."""

    def by_way(self) -> Iterator[tuple[LogPartition, bool]]:
        """Yield its spans in order, those that are read one way together: each with whether columns of cold files
        are read, or entries."""
        for columns, spans in groupby(self.spans, lambda span: span.cold_rows is not None):
            part = LogPartition(
                tuple(spans), self.client_settings, self.proxies, declared=self.declared, token=self.token
            )
            yield part, columns

    def __repr__(self) -> str:
        ranges = ", ".join(
            f"{s.log} {s.lssn}:{s.first_entry}:{s.first_slot} to {s.last_entry}:{s.end_slot or ''}" for s in self.spans
        )
        return f"LogPartition({ranges})"


def hosts_of(spans: Partition) -> list[str]:
    """Return the hosts that have most of what `spans` read, as their storage nodes registered; `MAX_HOSTS` at most."""
    stored: Counter[str] = Counter()
    for span in spans:
        ledger = span.hot
        if ledger is None:
            continue  # a cold file is as far from one host as from the other
        ensembles = ledger.metadata.ensembles
        for ensemble, following in zip(ensembles, [*ensembles[1:], None], strict=True):
            last = span.last_entry if following is None else min(span.last_entry, following.first_entry - 1)
            entries = last - max(span.first_entry, ensemble.first_entry) + 1
            for bookie in ensemble.bookies if entries > 0 else ():
                if bookie in ledger.addresses:
                    stored[ledger.addresses[bookie][0]] += entries * max(1, span.entry_bytes)
    return [host for host, _ in stored.most_common(MAX_HOSTS)]


@dataclass(frozen=True, slots=True)
class _Chunk:
    span: SegmentSpan
    entries: list[tuple[int, memoryview]]


def read_partition(partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of a partition's records as record batches, from their entries. A partition without
    spans is an empty read."""
    for rows, log in read_records(partition):
        yield from record_batches(rows, log, names)


def read_records(partition: InputPartition) -> Iterator[tuple[DecodedBatch, str]]:
    """Yield a partition's records, with the name of their log, as they come."""
    if not isinstance(partition, LogPartition) or not partition.spans:
        return
    runtime = Runtime.shared()
    fetcher = runtime.run(_Fetcher.start(runtime, partition))
    try:
        while (chunk := runtime.run(fetcher.take())) is not None:
            for rows in _decode(chunk):
                yield rows, chunk.span.log
    finally:
        # Also when Spark stops asking early (LIMIT, a killed task).
        runtime.run(fetcher.stop())


def _entries_for(partition: LogPartition, runtime: Runtime) -> SpanEntries:
    """Return where a partition is read from. Called on the runtime's loop."""
    if not partition.proxies:
        settings = partition.client_settings
        reader = SHARED_READERS.get(runtime, settings)
        hold = partial(cold_files_hold, runtime)
        return StoredEntries(reader, hold, settings.outage_wait_ms / 1000, task_reads_from(settings))
    # Imported late: most tasks read storage nodes.
    from dlspark.spark.source.proxy_entries import SHARED_PROXIES, ProxyEntries

    settings = partition.client_settings
    proxies = SHARED_PROXIES.get(
        runtime, partition.proxies, settings.outage_wait_ms, settings.security, partition.token
    )
    return ProxyEntries(proxies, partition.spans, partition.token)


class _Fetcher:
    """Fetches one chunk ahead of what was taken. Lives on the event loop."""

    def __init__(self, source: SpanEntries, spans: Sequence[SegmentSpan]) -> None:
        self._source = source
        self._chunks = _fetch(source, spans)
        self._next = asyncio.ensure_future(anext(self._chunks, None))

    @classmethod
    async def start(cls, runtime: Runtime, partition: LogPartition) -> _Fetcher:
        return cls(_entries_for(partition, runtime), partition.spans)

    async def take(self) -> _Chunk | None:
        """Return the next chunk, or None at the end. Raises what fetching raised."""
        chunk = await self._next
        if chunk is not None:
            self._next = asyncio.ensure_future(anext(self._chunks, None))
        return chunk

    async def stop(self) -> None:
        await end_tasks([self._next], drop_errors=True)
        await self._chunks.aclose()
        await self._source.close()


async def _fetch(source: SpanEntries, spans: Sequence[SegmentSpan]) -> AsyncGenerator[_Chunk, None]:
    for span in spans:
        entries: list[tuple[int, memoryview]] = []
        size = 0
        async for entry_id, payload in source.entries(span):
            entries.append((entry_id, payload))
            size += len(payload)
            if size >= CHUNK_BYTES:
                yield _Chunk(span, entries)
                entries, size = [], 0
        if entries:
            yield _Chunk(span, entries)


def _decode(chunk: _Chunk) -> Iterator[DecodedBatch]:
    """Yield the user records of a chunk, in one piece unless they expand to more than EXPANDED_BYTES."""
    span, entries = chunk.span, chunk.entries
    while entries:
        rows, taken = decode_up_to(
            entries,
            lssn=span.lssn,
            start_sequence_id=span.start_sequence_id,
            enveloped=span.enveloped,
            max_bytes=EXPANDED_BYTES,
        )
        _check_no_gap(rows, span)
        yield _within(rows, _Chunk(span, entries[:taken]))
        entries = entries[taken:]


def _within(rows: DecodedBatch, chunk: _Chunk) -> DecodedBatch:
    """Return the records of a chunk that belong to the span: cut to its first and end slot."""
    span = chunk.span
    # Only whole entries are fetched. What lies in them outside of the span belongs to another batch or partition.
    first, end = 0, len(rows)
    if span.first_slot and chunk.entries[0][0] == span.first_entry:
        below = (rows.entry_id == span.first_entry) & (rows.slot_id < span.first_slot)
        first = int(np.count_nonzero(below))
    if span.end_slot is not None and chunk.entries[-1][0] == span.last_entry:
        above = (rows.entry_id == span.last_entry) & (rows.slot_id >= span.end_slot)
        end -= int(np.count_nonzero(above))
    return select(rows, first, end) if (first, end) != (0, len(rows)) else rows


def _check_no_gap(rows: DecodedBatch, span: SegmentSpan) -> None:
    """Raise PositionGapError where a record is missing: positions count user records one by one (I4).

    Position 0 stands in logs whose writer does not count records; there is nothing to check then.
    """
    positions = rows.position
    if len(positions) < 2 or positions[0] == 0:
        return
    steps = np.diff(positions)
    if (steps != 1).any():
        at = int(np.argmax(steps != 1))
        raise PositionGapError(
            f"After position {int(positions[at])} of segment {span.lssn} comes position {int(positions[at + 1])}",
            advice="A record is missing or repeated; read the segment with `dlspark read` and report it",
            log=span.log,
            dlsn=f"{span.lssn}:{int(rows.entry_id[at + 1])}:{int(rows.slot_id[at + 1])}",
            ledger_id=span.ledger.ledger_id,
            entry_id=int(rows.entry_id[at + 1]),
        )


def record_batches(rows: DecodedBatch, log: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of `rows`, which are of `log`, in record batches of about TARGET_BATCH_BYTES.

    Without names the batches have no column, and as many rows: `isEmpty()`, `EXISTS` and `limit(5).count()` of the SQL
    catalog ask for that. Arrow counts the rows of what it is given by its columns, so there is one at first.
    """
    count = len(rows)
    if count == 0:
        return
    made = names or ["slot"]
    required = names.required if isinstance(names, ColumnNames) else frozenset()
    batch = pa.RecordBatch.from_arrays(
        [_column(name, rows, log) for name in made],
        schema=pa.schema([pa.field(name, TYPES[name], nullable=name not in required) for name in made]),
    ).select(list(names))
    per_row = _FIXED_BYTES_PER_ROW + rows.payload.nbytes // count
    step = max(1, TARGET_BATCH_BYTES // per_row)
    # Equal pieces: no small rest at the end.
    pieces = -(-count // step)
    for i in range(pieces):
        start = count * i // pieces
        yield batch.slice(start, count * (i + 1) // pieces - start)


def select(rows: DecodedBatch, first: int, end: int) -> DecodedBatch:
    """Return rows `first` to `end` - 1, without copying."""
    return replace(
        rows,
        entry_id=rows.entry_id[first:end],
        slot_id=rows.slot_id[first:end],
        txid=rows.txid[first:end],
        position=rows.position[first:end],
        sequence_id=rows.sequence_id[first:end],
        flags=rows.flags[first:end],
        payload=rows.payload.slice(first, end - first),
    )


def _column(name: str, rows: DecodedBatch, log: str) -> pa.Array:
    if name == "log":
        return repeated_text(log, len(rows))
    if name == "segment":
        return int64_array(np.full(len(rows), rows.lssn, np.int64))
    if name == "timestamp":
        return timestamps(rows.txid)
    if name == "value":
        return rows.payload if rows.payload.type.equals(TYPES["value"]) else rows.payload.cast(TYPES["value"])
    source = {
        "entry": rows.entry_id,
        "slot": rows.slot_id,
        "sequence_id": rows.sequence_id,
        "transaction_id": rows.txid,
    }[name]
    return int64_array(source)
