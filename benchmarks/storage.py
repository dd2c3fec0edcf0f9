"""Storage nodes and ledger client: rows P1 to P5.

Every load is closed-loop: `depth` adds are under way, each acknowledgement starts the next. The first part of every
window is warm-up and not counted. Entries have three replicas and are acknowledged when two nodes have them on disk.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import ACK_QUORUM, REPLICAS, Cluster, run
from benchmarks.costs import COUNTED_S, CallCount, Costs, Window, costs_of, within
from benchmarks.limits import DiskFigures, RawFiles, loopback_bytes_per_s, round_trips_us
from benchmarks.payloads import ENTRY_BYTES, Records, any_lengths, equal_lengths
from benchmarks.results import Row, Target, percentile
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.codec.vector_encoding import encode_entries
from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerReader
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.digests import Entry
from storage_node.protocol.frames import Buffer

SMALL_BYTES = 100
WARM_UP = 0.2
"""Share of a window that is not counted."""
LEAST_SAMPLES = 20
"""A window is as long as it takes to count so many."""
LARGE_DEPTH = 16
SMALL_ENTRY_BYTES = 1024
SMALL_DEPTH = 256
READ_BYTES = 96 << 20
"""Size of the ledgers that are read; just written, so partly in the nodes' tail caches and the system's."""
DECODE_BYTES = 4 << 20
NO_LIMIT = 1 << 40
WARM_UP_BYTES = 768 << 20
"""Written once before the first round: from then on the nodes' journals use files again that were written before."""
COPIES = 2
"""A node writes an entry twice: journal and entry log."""


@dataclass(frozen=True, slots=True)
class Limits:
    """One measurement of everything the machine can do."""

    round_trip_us: float
    commits: DiskFigures
    stream: DiskFigures
    loopback: float

    @property
    def append_us(self) -> float:
        """The least an append can take: the round trip, and the commit of three nodes at once."""
        return self.round_trip_us + self.commits.p50_us


class StorageBenchmark:
    """Rows P1 to P5 on one cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._raw = RawFiles(directory)
        self._equal, self._any = equal_lengths(SMALL_BYTES), any_lengths(SMALL_BYTES)
        self._limits: Limits | None = None
        append = "us: no-disk round trip + 4 KB commit, p50"
        disk = "MB/s: raw O_DIRECT + fdatasync, 3 writers"
        loopback = f"MB/s: loopback, {ENTRY_BYTES >> 10} KB blocks"
        wanted = "M records/s wanted"
        self._p50 = Row("P1", "durable append, 100 B, depth 1, p50", "us", append, Target(1.5, at_most=True))
        self._p99 = Row("P1", "durable append, 100 B, depth 1, p99", "us", append, Target(3.5, at_most=True))
        self._bytes = Row("P2", "journal + entry log of all nodes, 256 KB entries", "MB/s", disk, Target(0.75))
        self._seen = Row("P2", "the same as the kernel counts it (with journal files made ahead)", "MB/s", disk, None)
        self._write = Row("P2", "replicated write, 256 KB entries, depth 16", "MB/s", disk + " / 6", Target(0.75))
        self._equal_written = Row("P3", "100 B equal lengths: encode and write", "M/s", wanted, Target(1.0))
        self._any_written = Row("P3", "100 B any length: encode and write", "M/s", wanted, Target(1.0))
        self._equal_rate = Row("P3", "100 B equal lengths: read and decode", "M/s", wanted, Target(1.0))
        self._any_rate = Row("P3", "100 B any length: read and decode", "M/s", wanted, Target(1.0))
        self._equal_read = Row("P4", "100 B equal lengths: read, check, decode", "MB/s", loopback, Target(0.4))
        self._any_read = Row("P4", "100 B any length: read, check, decode", "MB/s", loopback, Target(0.15))
        self._small = Row("P5", "1 KB entries, depth 256", "k/s", "k/s wanted", Target(1.0))
        self.rows = [
            *(self._p50, self._p99, self._bytes, self._seen, self._write),
            *(self._equal_written, self._any_written, self._equal_rate, self._any_rate),
            *(self._equal_read, self._any_read, self._small),
        ]

    def round(self, seconds: float) -> None:
        """Measure every row once, between two measurements of the limits."""
        if self._limits is None:
            run(self._warm_up())
        before = self._limits or self._measure_limits(seconds)
        latencies, append_costs, large, small, equal, unequal = run(self._load(seconds))
        after = self._limits = self._measure_limits(seconds)
        append = (before.append_us, after.append_us)
        disk = (before.stream.bytes_per_s / 1e6, after.stream.bytes_per_s / 1e6)
        loopback = (before.loopback / 1e6, after.loopback / 1e6)
        self._p50.add(percentile(latencies, 0.5), *append, costs=append_costs)
        self._p99.add(percentile(latencies, 0.99), *append)
        self._bytes.add(large.bytes_per_s * REPLICAS * COPIES / 1e6, *disk)
        self._seen.add(large.disk_bytes_per_s / 1e6, *disk)
        per_node = (limit / (REPLICAS * COPIES) for limit in disk)
        self._write.add(large.bytes_per_s / 1e6, *per_node, costs=large.costs)
        self._small.add(small.entries_per_s / 1e3, 50.0, costs=small.costs)
        for figures, written, rate, read, wanted in (
            (equal, self._equal_written, self._equal_rate, self._equal_read, 15.0),
            (unequal, self._any_written, self._any_rate, self._any_read, 4.5),
        ):
            written.add(figures.records_written_per_s / 1e6, 2.5, costs=figures.write_costs)
            rate.add(figures.records_read_per_s / 1e6, wanted, costs=figures.read_costs)
            read.add(figures.bytes_read_per_s / 1e6, *loopback)

    async def _warm_up(self) -> None:
        async with self._cluster.client() as client:
            writer = await new_writer(client)
            payload = os.urandom(ENTRY_BYTES)
            for _ in range(WARM_UP_BYTES // ENTRY_BYTES):
                await writer.wait_for_room()
                writer.add(payload)
            await finish(client, writer)

    def _measure_limits(self, seconds: float) -> Limits:
        return Limits(
            percentile(round_trips_us(SMALL_BYTES, seconds / 2), 0.5),
            self._raw.commits(seconds / 2),
            self._raw.stream(seconds / 2),
            loopback_bytes_per_s(ENTRY_BYTES, seconds / 2),
        )

    async def _load(self, seconds: float) -> tuple[list[float], Costs, Load, Load, RecordFigures, RecordFigures]:
        cluster = self._cluster
        async with cluster.client() as client:
            watch, calls = cluster.watch(client=client), cluster.calls()
            latencies = await append_latencies_us(client, seconds, watch)
            await append_latencies_us(client, COUNTED_S, calls)
            large = await write_load(client, _repeated(os.urandom(ENTRY_BYTES)), LARGE_DEPTH, seconds, cluster)
            entries = _repeated(os.urandom(SMALL_ENTRY_BYTES))
            small = await write_load(client, entries, SMALL_DEPTH, seconds, cluster, counted=True)
            equal = await self._records(client, self._equal, seconds)
            unequal = await self._records(client, self._any, seconds)
        return latencies, costs_of("append", watch, calls), large, small, equal, unequal

    async def _records(self, client: LedgerClient, records: Records, seconds: float) -> RecordFigures:
        per_entry = len(records.txids) / len(records.entries())
        written = await write_load(
            client, _encoded(records), LARGE_DEPTH, seconds, self._cluster, per="record", per_entry=per_entry
        )
        ledger_id = await fill_ledger(client, records)
        reader = await client.open(ledger_id, recover=False)
        watch = self._cluster.watch(client=client)
        try:
            rows, size, elapsed = await read_and_decode(reader, seconds, watch)
        finally:
            await reader.close()
            await client.delete(ledger_id)
        read_costs = costs_of("record", watch)
        return RecordFigures(
            written.entries_per_s * per_entry, rows / elapsed, size / elapsed, written.costs, read_costs
        )


@dataclass(frozen=True, slots=True)
class Load:
    """How fast was a closed loop of adds?"""

    entries_per_s: float
    bytes_per_s: float
    disk_bytes_per_s: float
    costs: Costs


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """100 B records, written and read."""

    records_written_per_s: float
    records_read_per_s: float
    bytes_read_per_s: float
    write_costs: Costs
    read_costs: Costs


async def append_latencies_us(client: LedgerClient, seconds: float, window: Window | None = None) -> list[float]:
    """Time appends, each of which waits for the one before."""
    writer = await new_writer(client)
    payload = os.urandom(SMALL_BYTES)
    latencies: list[float] = []
    with within(window):
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds or len(latencies) < LEAST_SAMPLES:
            await writer.add(payload)
            if now - begin > seconds * WARM_UP:
                latencies.append((time.perf_counter() - now) * 1e6)
    if window is not None:
        window.units = writer.last_add_pushed + 1
    await finish(client, writer)
    return latencies


class Pump:
    """Keeps `depth` adds under way until the time is up, or `most` were sent; counts what is acknowledged until then.

    The first part of the time, or of the entries, is warm-up and not counted.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        payloads: Iterator[tuple[Buffer, ...]],
        seconds: float,
        *,
        most: int = NO_LIMIT,
    ) -> None:
        self._writer = writer
        self._payloads = payloads
        self._under_way = 0
        self._left = most
        self._warm_up_left = int(most * WARM_UP)
        begin = time.perf_counter()
        self._counted_from = begin + seconds * WARM_UP
        self._end = begin + seconds
        self._stopped_at: float | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entries = 0
        self.sent = 0

    async def run(self, depth: int) -> float:
        """Return the seconds counted. Raises what an add failed with."""
        for _ in range(depth):
            self._add()
        await self._done
        return (self._stopped_at or self._end) - self._counted_from

    def _add(self) -> None:
        self._under_way += 1
        self.sent += 1
        self._left -= 1
        self._writer.add(*next(self._payloads)).add_done_callback(self._acknowledged)

    def _acknowledged(self, future: asyncio.Future[int]) -> None:
        self._under_way -= 1
        now = time.perf_counter()
        if self._done.done():
            return
        if (error := future.exception()) is not None:
            self._done.set_exception(error)
        elif now < self._end and self._left > 0:
            self._count(now)
            self._add()
        else:
            self._stopped_at = self._stopped_at or min(now, self._end)
            if not self._under_way:
                self._done.set_result(None)

    def _count(self, now: float) -> None:
        if now >= self._counted_from:
            self.entries += 1
            return
        self._warm_up_left -= 1
        if self._warm_up_left == 0:
            self._counted_from = now


async def write_load(
    client: LedgerClient,
    payloads: Iterator[tuple[Buffer, ...]],
    depth: int,
    seconds: float,
    cluster: Cluster,
    *,
    per: str = "entry",
    per_entry: float = 1.0,
    counted: bool = False,
) -> Load:
    """Run a closed loop of `depth` adds to one ledger; with `counted` a short one more, for its system calls.

    Costs are those of one `per`, of which an entry has `per_entry`.
    """
    writer = await new_writer(client)
    watch = cluster.watch(client=client)
    with watch:
        written, began = cluster.disk_bytes_written(), time.perf_counter()
        pump = Pump(writer, payloads, seconds)
        timed_s = await pump.run(depth)
        disk = (cluster.disk_bytes_written() - written) / (time.perf_counter() - began)
    watch.units = pump.sent * per_entry
    await finish(client, writer)
    calls = None
    if counted:
        calls = cluster.calls()
        await count_calls(client, payloads, depth, calls)
    mean_bytes = writer.length / (writer.last_add_pushed + 1)
    costs = costs_of(per, watch, calls)
    return Load(pump.entries / timed_s, pump.entries * mean_bytes / timed_s, disk, costs)


async def count_calls(
    client: LedgerClient, payloads: Iterator[tuple[Buffer, ...]], depth: int, calls: CallCount
) -> None:
    """Run the same closed loop for a moment, for its system calls."""
    writer = await new_writer(client)
    with calls:
        pump = Pump(writer, payloads, COUNTED_S)
        await pump.run(depth)
    calls.units = pump.sent
    await finish(client, writer)


async def fill_ledger(client: LedgerClient, records: Records) -> int:
    """Write a closed ledger of `READ_BYTES` of records."""
    writer = await new_writer(client)
    entries = records.entries()
    for i in range(READ_BYTES // ENTRY_BYTES):
        await writer.wait_for_room()
        added = writer.add(entries[i % len(entries)])
    await added
    await writer.close()
    return writer.ledger_id


async def read_and_decode(reader: LedgerReader, seconds: float, window: Window | None = None) -> tuple[int, int, float]:
    """Read the ledger from end to end, over and over; return records, stored bytes and seconds. The first time is
    warm-up.
    """
    await _read_once(reader)
    rows = size = 0
    with within(window):
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds or not rows:
            more_rows, more_bytes = await _read_once(reader)
            rows += more_rows
            size += more_bytes
    if window is not None:
        window.units = rows
    return rows, size, elapsed


async def _read_once(reader: LedgerReader) -> tuple[int, int]:
    """Read the whole ledger in order, decoded some MB at a time, as a reader of a log does it."""
    rows = size = waiting = 0
    batch: list[Entry] = []
    last = reader.last_add_confirmed
    async for entry in reader.entries(0, last):
        batch.append(entry)
        waiting += len(entry.payload)
        if waiting >= DECODE_BYTES or entry.entry_id == last:
            rows += len(decode_entries([(e.entry_id, e.payload) for e in batch], lssn=1, start_sequence_id=0))
            size += waiting
            batch, waiting = [], 0
    return rows, size


async def new_writer(client: LedgerClient) -> LedgerWriter:
    """Create a ledger as every load writes it."""
    writer = await client.create(ensemble_size=REPLICAS, write_quorum=REPLICAS, ack_quorum=ACK_QUORUM)
    writer.replace_with(lambda: new_writer(client))
    return writer


async def finish(client: LedgerClient, writer: LedgerWriter) -> None:
    """Close the ledger, and delete it."""
    await writer.close()
    await client.delete(writer.ledger_id)


def _repeated(payload: bytes) -> Iterator[tuple[Buffer, ...]]:
    while True:
        yield (payload,)


def _encoded(records: Records) -> Iterator[tuple[Buffer, ...]]:
    """Yield freshly encoded entries, for ever."""
    while True:
        for entry in encode_entries(records.txids, records.payloads, first_position=1, max_entry_bytes=ENTRY_BYTES):
            yield entry.buffers
