"""Write proxies: rows P18 (one append at a time), P19 (many clients), P20 (moving a log under load).

**P18.** One record of 100 B at a time, by the thin client through a write proxy, and by a writer of the log core in the
same process (every record sent at once), which takes its turn before and after it on another log of the same nodes.
The thin client is as it is by default, an idempotent producer; the proxy has default settings.

**P19.** 1 KB records of 100 clients in two processes, over ten logs of one proxy. Three ways: frames with one record a
request and eight requests under way of each client (800 together); the library's clients, that collect what waits into
one request, with as many records under way; gRPC, one Write of 100 records under way of each client, written
whole (`atomic`, one fate for all), and once each record of its own fate. Beside each a
writer of the log core for each of the ten logs, in one process, with 800 records under way, 20 a turn.

**P20.** A log moves from one proxy to another and back while 20 writers of one thin client write to it. A move's pause
is the longest that any write took which was under way during the move; errors are writes that failed. Then the log is
read whole with a direct reader: what was acknowledged must be there, and nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cluster import Cluster, run
from benchmarks.costs import CLIENT, COUNTED_S, CallCount, Costs, Watch, Window, beside, costs_of, within
from benchmarks.proxies import ProxyProcess, write_proxy
from benchmarks.results import Row, Target, percentile
from benchmarks.storage import LEAST_SAMPLES, SMALL_BYTES, WARM_UP
from benchmarks.thin_clients import (
    CLIENTS,
    FRAMES_DEPTH,
    STREAMS,
    Counted,
    Load,
    frames_load,
    grpc_load,
    grpc_whole_load,
    library_load,
    records_per_s,
)
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.producing import AsyncProducer
from dlspark.testing.java_process import free_port
from metadata.foundation.errors import DistributedLogError, check

AT_ONCE = {"writerOutputBufferSize": 0, "periodicFlushFrequencyMilliSeconds": 0}
COLLECTED = {"writerOutputBufferSize": 512 * 1024, "periodicFlushFrequencyMilliSeconds": 0}
"""Bytes that a write proxy buffers, too."""
RECORD_BYTES = 1024
TURN = 20
"""Records that a direct writer is given at a time."""
WRITERS = 20
MOVES = 10
SETTLED_S = 0.05
"""From one move to the next, and before the first."""
PAUSE_GOAL_MS = 50.0
FRAMES_GOAL = 40.0
BATCHES_GOAL = 150.0
PROXY = "proxy"
NODE_WARM_UPS = 3
"""Windows of direct writers before many clients count: nodes that are new make journal files ahead and touch their
memory for the first time, which is 18 us of a record's processor and not 7."""


class ServingBenchmark:
    """Rows P18 to P20: two write proxies on one cluster, the first with gRPC as well."""

    def __init__(self, cluster: Cluster, directory: Path, stack: ExitStack) -> None:
        self._cluster = cluster
        self._count = 0
        self._warm_ups_left = NODE_WARM_UPS
        self._proxy = stack.enter_context(write_proxy(cluster.uri, directory, grpc_port=free_port(), shard=0))
        self._other = stack.enter_context(write_proxy(cluster.uri, directory, shard=1))
        direct, fat = "us: direct writer", "k/s: direct writers"
        self._p50 = Row("P18", "append through a proxy, depth 1, p50", "us", f"{direct}, p50", Target(1.35, True))
        self._p99 = Row("P18", "append through a proxy, depth 1, p99", "us", f"{direct}, p99", Target(2.0, True))
        clients = f"1 KB, {CLIENTS} clients, one proxy"
        self._frames = Row("P19", f"{clients}: frames, a record each", "k/s", "k/s wanted", Target(1.0))
        self._batches = Row("P19", f"{clients}: gRPC, 100 records each, whole", "k/s", "k/s wanted", Target(1.0))
        self._fates = Row("P19", "the same, each record of its own fate", "k/s", "k/s wanted", None)
        self._small = Row("P19", "the same with records of 100 B, whole", "k/s", "k/s wanted", None)
        self._over_fat = [
            Row("P19", f"{clients}: {how}", "k/s", fat, None) for how in ("frames", "library's clients", "gRPC")
        ]
        between = "ms: between moves, p50"
        self._pause50 = Row("P20", "planned move under load: pause, p50", "ms", between, None)
        self._pause99 = Row("P20", "planned move under load: pause, p99", "ms", "ms wanted", Target(1.0, True))
        self._errors = Row("P20", "planned move: writes that failed", "", "writes", Target(0.0, True), counts=True)
        self._wrong = Row("P20", "planned move: records lost or twice", "", "records", Target(0.0, True), counts=True)
        self._pauses: list[float] = []
        self.rows = [
            *(self._p50, self._p99, self._frames, self._batches, self._fates, self._small, *self._over_fat),
            *(self._pause50, self._pause99, self._errors, self._wrong),
        ]

    def round(self, seconds: float) -> None:
        """Measure every row once."""
        direct, through, costs = run(self._depth_one(seconds))
        self._p50.add(percentile(through, 0.5), percentile(direct, 0.5), costs=costs)
        self._p99.add(percentile(through, 0.99), percentile(direct, 0.99))
        self._many_clients(seconds)
        moved, costs = self._moves()
        self._pauses += moved.pauses_ms
        self._pause50.add(percentile(moved.pauses_ms, 0.5), percentile(moved.between_ms, 0.5), costs=costs)
        self._pause99.add(percentile(self._pauses, 0.99), PAUSE_GOAL_MS)
        self._errors.add(moved.errors, moved.writes)
        self._wrong.add(moved.lost + moved.twice, moved.writes)

    def _name(self) -> str:
        self._count += 1
        return f"served-{self._count}"

    async def _depth_one(self, seconds: float) -> tuple[list[float], list[float], Costs]:
        """Measure microseconds of each append: by a direct writer, and through the proxy; and what an append costs by
        either way."""
        cluster = self._cluster
        processes = {CLIENT: [os.getpid()], PROXY: [self._proxy.pid]}
        alone, watch, calls = cluster.watch(), cluster.watch(processes), cluster.calls(processes)
        async with (
            await AsyncNamespace.open(cluster.uri, AT_ONCE) as namespace,
            await namespace.open_log(self._name()) as log,
            await AsyncClient.connect(self._proxy.address) as client,
        ):
            writer = await log.open_writer()
            producer = client.producer(self._name())
            direct = await writer_latencies_us(writer, seconds / 2)
            through = await producer_latencies_us(producer, seconds, watch)
            # Half before and half after: a machine that gets slower meanwhile does so to both sides.
            direct += await writer_latencies_us(writer, seconds / 2, alone)
            await producer_latencies_us(producer, COUNTED_S, calls)
            await writer.close()
        return direct, through, beside(costs_of("append", watch, calls), "direct writer", costs_of("append", alone))

    def _many_clients(self, seconds: float) -> None:
        streams = [self._name() for _ in range(STREAMS)]
        address, grpc_address = self._proxy.address, self._proxy.grpc_address or ""
        while self._warm_ups_left:
            run(self._direct(seconds))
            self._warm_ups_left -= 1
        fat, _ = run(self._direct(seconds))
        frames, frames_costs = self._written(frames_load, address, streams, RECORD_BYTES, seconds)
        fat_again, direct_costs = run(self._direct(seconds))
        library, library_costs = self._written(library_load, address, streams, RECORD_BYTES, seconds)
        batches, batches_costs = self._written(grpc_whole_load, grpc_address, streams, RECORD_BYTES, seconds)
        fates, fates_costs = self._written(grpc_load, grpc_address, streams, RECORD_BYTES, seconds)
        small, small_costs = self._written(grpc_whole_load, grpc_address, streams, SMALL_BYTES, seconds)
        self._frames.add(frames, FRAMES_GOAL, costs=beside(frames_costs, "direct writers", direct_costs))
        self._batches.add(batches, BATCHES_GOAL, costs=batches_costs)
        self._fates.add(fates, BATCHES_GOAL, costs=fates_costs)
        self._small.add(small, BATCHES_GOAL, costs=small_costs)
        # Frames and gRPC have shown what they cost in rows above.
        for row, rate, costs in zip(
            self._over_fat, (frames, library, batches), (None, library_costs, None), strict=True
        ):
            row.add(rate, fat, fat_again, costs=costs)

    def _written(
        self, load: Load, address: str, streams: list[str], record_bytes: int, seconds: float
    ) -> tuple[float, Costs]:
        """Measure thousands of records a second through the proxy, and what a record costs."""
        watches: list[Watch] = []
        counts: list[CallCount] = []

        def watch(clients: list[int]) -> Watch:
            watches.append(self._cluster.watch({CLIENT: clients, PROXY: [self._proxy.pid]}))
            return watches[0]

        def count(clients: list[int]) -> CallCount:
            counts.append(self._cluster.calls({CLIENT: clients, PROXY: [self._proxy.pid]}))
            return counts[0]

        rate = records_per_s(load, address, streams, record_bytes, seconds, window=watch)
        records_per_s(load, address, streams, record_bytes, COUNTED_S, window=count)
        return rate / 1e3, costs_of("record", watches[0], counts[0])

    def _moves(self) -> tuple[Moved, Costs]:
        """Move a log under load, and return what a write costs then, moves included."""
        processes = {CLIENT: [os.getpid()], "proxies": [self._proxy.pid, self._other.pid]}
        watch, calls = self._cluster.watch(processes), self._cluster.calls(processes)
        uri, one, other = self._cluster.uri, self._proxy, self._other
        moved = run(move_under_load(uri, one, other, self._name(), window=watch))
        run(move_under_load(uri, one, other, self._name(), window=calls))
        return moved, costs_of("write", watch, calls)

    async def _direct(self, seconds: float) -> tuple[float, Costs]:
        """Measure thousands of records a second by direct writers, and what a record costs."""
        watch = self._cluster.watch()
        async with await AsyncNamespace.open(self._cluster.uri, COLLECTED) as namespace, AsyncLogs(namespace) as logs:
            writers = [await logs.writer(self._name()) for _ in range(STREAMS)]
            rate = await direct_records_per_s(writers, seconds, watch) / 1e3
        return rate, costs_of("record", watch)


class AsyncLogs:
    """Writers of several logs, closed together."""

    def __init__(self, namespace: AsyncNamespace) -> None:
        self._namespace = namespace
        self._open: list[tuple[AsyncLog, AsyncLogWriter]] = []

    async def writer(self, name: str) -> AsyncLogWriter:
        """Open a writer of a new log."""
        log = await self._namespace.open_log(name)
        self._open.append((log, await log.open_writer()))
        return self._open[-1][1]

    async def __aenter__(self) -> AsyncLogs:
        return self

    async def __aexit__(self, *_: object) -> None:
        for log, writer in self._open:
            await writer.close()
            await log.close()


async def writer_latencies_us(writer: AsyncLogWriter, seconds: float, window: Window | None = None) -> list[float]:
    """Time appends of a direct writer, one at a time."""
    latencies: list[float] = []
    payload = os.urandom(SMALL_BYTES)
    first = number = writer.last_txid
    with within(window):
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds or len(latencies) < LEAST_SAMPLES:
            number += 1
            await writer.write(number, payload)
            if now - begin > seconds * WARM_UP:
                latencies.append((time.perf_counter() - now) * 1e6)
    if window is not None:
        window.units = number - first
    return latencies


async def producer_latencies_us(producer: AsyncProducer, seconds: float, window: Window | None = None) -> list[float]:
    """Time appends of a thin client, one at a time."""
    latencies: list[float] = []
    payload = os.urandom(SMALL_BYTES)
    await producer.write(payload)
    count = 0
    with within(window):
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds or len(latencies) < LEAST_SAMPLES:
            await producer.write(payload)
            count += 1
            if now - begin > seconds * WARM_UP:
                latencies.append((time.perf_counter() - now) * 1e6)
    if window is not None:
        window.units = count
    return latencies


async def direct_records_per_s(writers: list[AsyncLogWriter], seconds: float, window: Window | None = None) -> float:
    """Write 1 KB records by direct writers, as many under way as `frames_load` has."""
    payload = os.urandom(RECORD_BYTES)
    for writer in writers:
        future = writer.write(1, payload)
        writer.push()
        await future
    last = dict.fromkeys(writers, 1)

    async def turns(writer: AsyncLogWriter) -> None:
        going = True
        while going:
            first = last[writer] + 1
            last[writer] += TURN
            futures = writer.write_bulk([(first + number, payload) for number in range(TURN)])
            writer.push()
            for future in futures:
                await future
            going = counted.add(TURN)

    each = CLIENTS * FRAMES_DEPTH // TURN // len(writers)
    with within(window):
        counted = Counted(seconds)
        await asyncio.gather(*(turns(writer) for writer in writers for _ in range(each)))
    if window is not None:
        window.units = counted.all_records
    return counted.per_second


@dataclass(slots=True)
class Moved:
    """How long did writes of a log wait while it moved?"""

    pauses_ms: list[float] = field(default_factory=list)
    between_ms: list[float] = field(default_factory=list)
    """The same of the times before each move."""
    writes: int = 0
    errors: int = 0
    lost: int = 0
    twice: int = 0


async def move_under_load(
    uri: str,
    one: ProxyProcess,
    other: ProxyProcess,
    stream: str,
    moves: int = MOVES,
    *,
    window: Window | None = None,
) -> Moved:
    """Move a log to and fro while it is written, and look at every record afterwards. The window is that of the
    writers."""
    moved = Moved()
    writes: list[tuple[float, float]] = []
    acknowledged: list[bytes] = []
    moving = True

    async def write(client: AsyncClient, writer: int) -> None:
        number = 0
        while moving:
            payload = b"%d-%d" % (writer, number)
            number += 1
            begin = time.perf_counter()
            try:
                await client.write(stream, payload)
                acknowledged.append(payload)
            except DistributedLogError:
                moved.errors += 1
            writes.append((begin, time.perf_counter()))

    spans: list[tuple[float, float]] = []
    quiet: list[tuple[float, float]] = []
    async with await AsyncClient.connect([f"{one.address},{other.address}"]) as client:
        await client.write(stream, b"first")
        targets = [other.address, one.address]
        if await client.owner(stream) == other.address:
            targets.reverse()
        with within(window):
            loads = [asyncio.ensure_future(write(client, number)) for number in range(WRITERS)]
            for number in range(moves):
                settled = time.perf_counter()
                await asyncio.sleep(SETTLED_S)
                begin = time.perf_counter()
                # The later half of the rest: writes that the move before had held back are over by then.
                quiet.append(((settled + begin) / 2, begin))
                await client.move(stream, targets[number % 2])
                spans.append((begin, time.perf_counter()))
            await asyncio.sleep(SETTLED_S)
            moving = False
            await asyncio.gather(*loads)
        if window is not None:
            window.units = len(writes)
        check(await client.owner(stream) == targets[(moves - 1) % 2], "the log is not where it was moved to")
        await client.release(stream)
    moved.pauses_ms, moved.between_ms = pauses_ms(spans, writes), pauses_ms(quiet, writes)
    moved.writes = len(writes)
    found = await _payloads(uri, stream)
    moved.twice = sum(count - 1 for count in found.values())
    moved.lost = len(set(acknowledged) - set(found))
    return moved


def pauses_ms(moves: list[tuple[float, float]], writes: list[tuple[float, float]]) -> list[float]:
    """Return for each move the longest write that was under way at any time of it."""
    return [
        1e3 * max((end - begin for begin, end in writes if begin < until and end > since), default=0.0)
        for since, until in moves
    ]


async def _payloads(uri: str, stream: str) -> Counter[bytes]:
    """Return how often each payload is in the log, read to its end."""
    found: Counter[bytes] = Counter()
    async with await AsyncNamespace.open(uri) as namespace, await namespace.open_log(stream) as log:
        records = (await log.status()).records
        async with await log.open_reader() as reader:
            while found.total() < records:
                found.update(record.payload for record in await reader.read_bulk(1_000))
    return found
