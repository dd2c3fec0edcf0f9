"""Logs over their ledgers: rows P9 (a reader at the tail) and P10 (reading what is there).

**P9.** A writer and a reader of one log, in one process. The next record is written when the last one was delivered
and a moment has passed, so that nothing of one record's traffic meets the next one. Settings as one would take them for
low latency: every record is sent at once (`writerOutputBufferSize=0`), and `enableImmediateFlush`. Measured is the time
from the writer's acknowledgement to the reader's delivery, over the no-disk round trip of `limits`.

What lies between the two is the rule of visibility: an entry is visible once a later one carries its number as the
last that is confirmed. So after the acknowledgement the writer sends a control record, and the storage node where the
reader waits answers its long poll with the entry as soon as it has got that, not synced it. One way to a node and one
way from it is a round trip; both ends and the node cost their share on top. "Write to delivery" has the commit in it.

**P10.** A completed log of 96 MB in 256 KB entries, from its first record to its last, by columns and record by record,
over its ledger read with the ledger client, entries as they are. And a synchronous loop over its records, over what any
loop over objects costs in Python: rows decoded in memory, and an object of five fields made of each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from benchmarks.cluster import Cluster, run
from benchmarks.costs import COUNTED_S, Costs, Window, costs_of, within
from benchmarks.limits import round_trips_us
from benchmarks.payloads import BATCH_BYTES, Records, any_lengths, equal_lengths
from benchmarks.results import Row, Target, percentile
from benchmarks.storage import LEAST_SAMPLES, READ_BYTES, SMALL_BYTES, WARM_UP
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace

LOW_LATENCY = {"writerOutputBufferSize": 0, "enableImmediateFlush": True, "periodicFlushFrequencyMilliSeconds": 0}
MOMENT_S = 0.002
"""Between a delivery and the next write: the control record is acknowledged and the reader waits again by then."""
BATCHES = READ_BYTES // BATCH_BYTES
BULK = 1_000
"""Records asked for at a time."""


class LogBenchmark:
    """Rows P9 and P10 on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._records = (equal_lengths(SMALL_BYTES), any_lengths(SMALL_BYTES))
        self._count = 0
        trip = "us: no-disk round trip, p50"
        raw = "MB/s: the ledger, read raw"
        self._p50 = Row("P9", "log tail: acknowledgement to delivery, p50", "us", trip, Target(5.0, at_most=True))
        self._p99 = Row("P9", "log tail: acknowledgement to delivery, p99", "us", trip, Target(20.0, at_most=True))
        self._whole = Row("P9", "log tail: write to delivery, p50", "us", trip, None)
        self._columns = [
            Row("P10", f"read a log by columns, {each.name}", "MB/s", raw, Target(share))
            for each, share in zip(self._records, (0.3, 0.2), strict=True)
        ]
        self._single = [Row("P10", f"read a log by records, {each.name}", "MB/s", raw, None) for each in self._records]
        objects = "k/s: bare objects in memory"
        self._loop = [
            Row("P10", f"loop over records, {each.name}", "k/s", objects, Target(0.3)) for each in self._records
        ]
        self.rows = [self._p50, self._p99, self._whole, *self._columns, *self._single, *self._loop]

    def round(self, seconds: float) -> None:
        """Measure every row once, the limits before and after it."""
        before = percentile(round_trips_us(SMALL_BYTES, seconds / 2), 0.5)
        delivered, whole, costs = run(self._tail(seconds))
        after = percentile(round_trips_us(SMALL_BYTES, seconds / 2), 0.5)
        self._p50.add(percentile(delivered, 0.5), before, after, costs=costs)
        self._p99.add(percentile(delivered, 0.99), before, after)
        self._whole.add(percentile(whole, 0.5), before, after)
        for records, columns, single in zip(self._records, self._columns, self._single, strict=True):
            (raw, by_columns, raw_again, by_records, raw_at_last), (of_columns, of_records) = run(
                self._read(records, seconds)
            )
            columns.add(by_columns, raw, raw_again, costs=of_columns)
            single.add(by_records, raw_again, raw_at_last, costs=of_records)
        for records, loop in zip(self._records, self._loop, strict=True):
            (ours, *around), cost = self._loops(records, seconds / 2)
            loop.add(ours, *around, costs=cost)

    def _name(self) -> str:
        self._count += 1
        return f"bench-{self._count}"

    async def _tail(self, seconds: float) -> tuple[list[float], list[float], Costs]:
        """Measure microseconds from acknowledgement to delivery, and from the write; and what a record costs."""
        async with await AsyncNamespace.open(self._cluster.uri, LOW_LATENCY) as namespace:
            watch, calls = self._cluster.watch(client=namespace.ledgers), self._cluster.calls()
            found = []
            for length, window in ((seconds, watch), (COUNTED_S, calls)):
                name = self._name()
                async with await namespace.open_log(name) as log:
                    found.append(await tail_latencies_us(log, length, window))
                await namespace.delete_log(name)
        return *found[0], costs_of("record", watch, calls)

    async def _read(self, records: Records, seconds: float) -> tuple[list[float], list[Costs]]:
        """Measure MB/s of stored entries: raw, by columns, raw, by records, raw; and what a record costs, by columns
        and by records."""
        async with await AsyncNamespace.open(self._cluster.uri) as namespace:
            name = self._name()
            async with await namespace.open_log(name) as log:
                ledger_id, size = await fill_log(log, records)
                part = seconds / 2

                async def raw() -> None:
                    ledger = await namespace.ledgers.open(ledger_id, recover=False)
                    try:
                        async for _ in ledger.entries(0, ledger.last_add_confirmed):
                            pass
                    finally:
                        await ledger.close()

                total = len(records.txids) * BATCHES
                ways: list[Callable[[], Awaitable[None]]] = [
                    raw,
                    lambda: by_columns(log, total),
                    raw,
                    lambda: by_records(log, total),
                    raw,
                ]
                one, other = (self._cluster.watch(client=namespace.ledgers) for _ in range(2))
                watches = [None, one, None, other, None]
                figures = [
                    size * await _per_second(way, part, watch, total) / 1e6
                    for way, watch in zip(ways, watches, strict=True)
                ]
            await namespace.delete_log(name)
        return figures, [costs_of("record", one), costs_of("record", other)]

    def _loops(self, records: Records, seconds: float) -> tuple[tuple[float, float, float], Costs]:
        """Measure thousands of records a second: by a synchronous loop, and bare objects before and after that; and
        what a record costs by the loop."""
        watch = self._cluster.watch()
        entries = [(number, memoryview(entry)) for number, entry in enumerate(records.entries())]
        total = len(records.txids) * BATCHES

        def bare() -> None:
            for _ in range(BATCHES):
                for _ in bare_objects(entries):
                    pass

        with Namespace.open(self._cluster.uri) as namespace:
            name = self._name()
            run(self._fill(name, records))
            with namespace.open_log(name) as log:
                ways = ((bare, None), (lambda: loop_over(log, total), watch), (bare, None))
                before, ours, after = (
                    _per_second_of(way, seconds, window, total) * total / 1e3 for way, window in ways
                )
            namespace.delete_log(name)
        return (ours, before, after), costs_of("record", watch)

    async def _fill(self, name: str, records: Records) -> None:
        async with await AsyncNamespace.open(self._cluster.uri) as namespace, await namespace.open_log(name) as log:
            await fill_log(log, records)


@dataclass(slots=True)
class _Bare:
    """The fields that every record has of its own."""

    txid: int
    payload: bytes
    entry: int
    slot: int
    position: int


def bare_objects(entries: list[tuple[int, memoryview]]) -> Iterator[_Bare]:
    """Do no more than a loop over records must: decode entries, and make an object of each row."""
    for entry in entries:
        rows = decode_entries([entry], lssn=1, start_sequence_id=0)
        columns = (rows.txid, rows.payload, rows.entry_id, rows.slot_id, rows.position)
        yield from map(_Bare, *(column.tolist() for column in columns))


async def tail_latencies_us(
    log: AsyncLog, seconds: float, window: Window | None = None
) -> tuple[list[float], list[float]]:
    """Write one record at a time; the first part of the time is not counted."""
    writer = await log.open_writer()
    delivered: list[float] = []
    whole: list[float] = []
    payload = bytes(SMALL_BYTES)
    await writer.write(0, payload)
    async with await log.open_reader() as reader:
        await reader.read_next()
        number = 0

        async def step() -> None:
            nonlocal number
            number += 1
            acknowledged_at = 0.0

            def acknowledged(_: object) -> None:
                nonlocal acknowledged_at
                acknowledged_at = time.perf_counter()

            writer.write(number, payload).add_done_callback(acknowledged)
            record = await reader.read_next()
            delivered_at = time.perf_counter()
            if record.txid != number:
                raise RuntimeError(f"record {record.txid} was delivered, written was {number}")
            if now - begin > seconds * WARM_UP:
                delivered.append((delivered_at - acknowledged_at) * 1e6)
                whole.append((delivered_at - now) * 1e6)
            await asyncio.sleep(MOMENT_S)

        with within(window):
            begin = time.perf_counter()
            while (now := time.perf_counter()) - begin < seconds or len(whole) < LEAST_SAMPLES:
                await step()
        if window is not None:
            window.units = number
    await writer.close()
    return delivered, whole


async def fill_log(log: AsyncLog, records: Records, batches: int = BATCHES) -> tuple[int, int]:
    """Write a completed segment, of about `READ_BYTES` unless said otherwise; return its ledger and the bytes stored in
    that.
    """
    writer = await log.open_writer()
    written = None
    span = int(records.txids[-1] - records.txids[0]) + 1
    for number in range(batches):
        await writer.wait_for_room()
        written = writer.write_batch(records.txids + number * span, records.payloads)
    if written is not None:
        await written
    await writer.close()
    (segment,) = await log.segments()
    return segment.ledger_id, sum(map(len, records.entries())) * batches


async def by_columns(log: AsyncLog, total: int) -> None:
    """Read the whole log as record batches."""
    async with await log.open_reader() as reader:
        seen = 0
        while seen < total:
            seen += (await reader.next_batch()).num_rows


async def by_records(log: AsyncLog, total: int) -> None:
    """Read the whole log as records."""
    async with await log.open_reader() as reader:
        seen = 0
        while seen < total:
            seen += len(await reader.read_bulk(BULK))


def _per_second_of(work: Callable[[], None], seconds: float, window: Window | None, units: int) -> float:
    async def once() -> None:
        work()

    return run(_per_second(once, seconds, window, units))


def loop_over(log: Log, total: int) -> None:
    """Read the whole log by a synchronous loop."""
    with log.open_reader() as reader:
        for _ in islice(reader, total):
            pass


async def _per_second(work: Callable[[], Awaitable[None]], seconds: float, window: Window | None, units: int) -> float:
    """Return how often a second the work is done, which is `units` each time."""
    await work()
    calls = 0
    with within(window):
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds or not calls:
            await work()
            calls += 1
    if window is not None:
        window.units = calls * units
    return calls / elapsed
