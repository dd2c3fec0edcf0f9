"""Rows P27 and P29 to P31: cold storage, its bytes, its readers and what it asks of storage nodes.

**P27, P31.** A year of flights, 336,776 typed rows, is moved to a folder by one pass of a mover. P27: bytes of the
file over bytes of the ledger times its replicas. P31: entries that the storage nodes read for the mover over entries of
the segment.

**P29, P30.** One segment of records of 1 KB that do not compress, in an S3 server on this machine, its hot copy gone.
So its file has about the bytes of its records, and what is compared is the way of the bytes and not their compression.
P29: the log read by records (`read_bulk`) over one GET of the whole object by the same client library, which makes
nothing of the bytes; and eight readers in one process, which all begin at once, over one, in bytes that come out of all
of them together. P30: from `open_reader` to the first record, in a process that knows nothing of the file yet, less the
time of a GET of its first byte in the same state: new client, new connection.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cluster import REPLICAS, Cluster, run
from benchmarks.cold_logs import (
    close_with_one_record,
    cold_settings,
    flights,
    move,
    write_flights,
    write_noise,
)
from benchmarks.costs import CLIENT, Watch, Window, beside, costs_of
from benchmarks.logs import by_columns, by_records
from benchmarks.object_server import ObjectServer
from benchmarks.results import Row, Target
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.opening import open_store
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.errors import check, present

if TYPE_CHECKING:
    import pyarrow as pa

NOISE_BYTES: Final = 96 << 20
READERS: Final = 8
FIRST_RECORDS: Final = 9
"""How often a first record is waited for in a round."""
FIRST_RECORD_MS: Final = 50.0
READ_ONCE: Final = 1.01
"""Entries read over entries there: looks at the end of a ledger are among the former."""
_MB: Final = 1e6


class ColdBenchmark:
    """Rows P27 and P29 to P31.

    Args:
        cluster: the storage nodes.
        directory: for files.
        server: an S3 server; None: there is none, nor rows P29 and P30.
        rows: the flights, all of them unless given.
        noise_bytes: of the segment that is read.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        server: ObjectServer | None,
        rows: pa.Table | None = None,
        noise_bytes: int = NOISE_BYTES,
    ) -> None:
        self._cluster = cluster
        self._directory = directory / "cold-files"
        self._directory.mkdir()
        self._server = server
        self._flights = rows if rows is not None else flights()
        self._count = 0
        hot = "MB: ledger, 3 replicas"
        self._bytes = Row("P27", "the flights with their schema, cold", "MB", hot, Target(0.15, at_most=True))
        self._once = Row(
            "P31", "entries read by the mover", "entries", "entries moved", Target(READ_ONCE, at_most=True)
        )
        self.rows = [self._bytes, self._once]
        get = "MB/s: one GET"
        self._read = Row("P29", "records read from S3", "MB/s", get, Target(0.6))
        self._columns = Row("P29", "record batches read from S3", "MB/s", get, None)
        self._together = Row("P29", "8 readers of one segment, together", "MB/s", "MB/s: one reader", Target(1.0))
        self._first = Row(
            "P30", "first record from S3, less the first byte", "ms", "ms wanted", Target(1.0, at_most=True)
        )
        self._first_byte = Row("P30", "first record from S3", "ms", "ms: the first byte of it", None)
        if server is not None:
            self.rows += [self._read, self._columns, self._together, self._first, self._first_byte]
            self._noise = run(self._make_noise(server, noise_bytes))

    def round(self, seconds: float) -> None:
        """Measure every row once."""
        run(self._move_flights())
        if self._server is not None:
            run(self._reading(self._server, seconds))
            self._first_records(self._server)

    # ------------------------------------------------------------------ bytes, and what a mover asks for

    async def _move_flights(self) -> None:
        self._count += 1
        name = f"cold-flights-{self._count}"
        settings = cold_settings(str(self._directory), {})
        async with await AsyncNamespace.open(self._cluster.uri, settings) as namespace:
            await write_flights(namespace, name, self._flights, 1)
            watch = self._cluster.watch({"mover": [os.getpid()]})
            before = self._cluster.entries_read()
            with watch:
                (unit,) = await move(namespace, name)
            read = self._cluster.entries_read() - before
            await namespace.delete_log(name)
        file = present(unit.file, "the flights were not moved")
        check(file.rows == len(self._flights), f"{file.rows} flights were moved")
        watch.units = file.rows
        ledgers = REPLICAS * sum(one.bytes for one in unit.segments)
        self._bytes.add(file.bytes / _MB, ledgers / _MB, costs=costs_of("row", watch))
        self._once.add(read, sum(one.metadata.last_entry + 1 for one in unit.segments))

    # ------------------------------------------------------------------ reading from S3

    async def _make_noise(self, server: ObjectServer, size: int) -> tuple[ColdFile, int]:
        """Make the log, and return its file with the number of its records."""
        async with await self._open(server) as namespace:
            count = await write_noise(namespace, LOG, size)
            await move(namespace, LOG)
            await close_with_one_record(namespace, LOG)
            first, _ = await move(namespace, LOG)
            async with await namespace.open_log(LOG) as log:
                segment, _ = await log.segments()
            check(segment.cold is not None and not segment.cold.listed, "the segment is still with the storage nodes")
            return present(first.file, "nothing was moved"), count

    async def _open(self, server: ObjectServer) -> AsyncNamespace:
        return await AsyncNamespace.open(self._cluster.uri, cold_settings(server.place, server.settings))

    async def _reading(self, server: ObjectServer, seconds: float) -> None:
        file, count = self._noise
        store = open_store(file.url, file.options)
        try:

            async def get() -> float:
                begin = time.perf_counter()
                await store.read(file.url, [(0, file.bytes)])
                return time.perf_counter() - begin

            async def records() -> float:
                return await self._read_by(server, by_records, count)

            async def batches() -> float:
                return await self._read_by(server, by_columns, count)

            async def together() -> float:
                return await self._read_by(server, _many_by_records, count)

            ways = (get, records, get, batches, get, records, together, records)
            watches = [self._watch(server) for _ in ways]
            calls = self._cluster.calls(self._processes(server))
            rates = [
                file.bytes / _MB / await _mean(way, seconds / 2, watch, READERS * count if way is together else count)
                for way, watch in zip(ways, watches, strict=True)
            ]
            await _mean(records, 0.0, calls, count)
        finally:
            await store.close()
        whole, _, _, by_batch, _, one, many, _ = (costs_of("record", watch) for watch in watches)
        by_record = costs_of("record", watches[1], calls)
        self._read.add(rates[1], rates[0], rates[2], costs=beside(by_record, "one GET", whole))
        self._columns.add(rates[3], rates[2], rates[4], costs=by_batch)
        self._together.add(READERS * rates[6], rates[5], rates[7], costs=beside(many, "one reader", one))

    def _watch(self, server: ObjectServer) -> Watch:
        return self._cluster.watch(self._processes(server))

    def _processes(self, server: ObjectServer) -> dict[str, list[int]]:
        return {CLIENT: [os.getpid()], "S3 server": [server.pid]}

    async def _read_by(
        self, server: ObjectServer, read: Callable[[AsyncLog, int], Awaitable[None]], count: int
    ) -> float:
        """Return the seconds of a reading, with a namespace of its own, so that nothing of the file is known."""
        async with await self._open(server) as namespace, await namespace.open_log(LOG) as log:
            begin = time.perf_counter()
            await read(log, count)
            return time.perf_counter() - begin

    def _first_records(self, server: ObjectServer) -> None:
        file, _ = self._noise
        ours, theirs = self._watch(server), self._watch(server)
        waits = [run(self._first_record_ms(server, file, ours, theirs)) for _ in range(FIRST_RECORDS)]
        ours.units = theirs.units = FIRST_RECORDS
        first, byte = (statistics.median(column) for column in zip(*waits, strict=True))
        costs = beside(costs_of("first record", ours), "first byte", costs_of("first byte", theirs))
        self._first.add(first - byte, FIRST_RECORD_MS, costs=costs)
        self._first_byte.add(first, byte)

    async def _first_record_ms(
        self, server: ObjectServer, file: ColdFile, ours: Watch, theirs: Watch
    ) -> tuple[float, float]:
        """Wait for the first record, and for the first byte, each within its window."""
        async with await self._open(server) as namespace, await namespace.open_log(LOG) as log:
            with ours:
                begin = time.perf_counter()
                async with await log.open_reader() as reader:
                    check(await reader.read_next() is not None, "there is no first record")
                    first = time.perf_counter() - begin
        with theirs:
            begin = time.perf_counter()
            store = open_store(file.url, file.options)
            await store.read(file.url, [(0, 1)])
            byte = time.perf_counter() - begin
            await store.close()
        return first * 1e3, byte * 1e3


LOG: Final = "cold-noise"


async def _many_by_records(log: AsyncLog, total: int) -> None:
    await asyncio.gather(*(by_records(log, total) for _ in range(READERS)))


async def _mean(way: Callable[[], Awaitable[float]], least_s: float, window: Window, units: int) -> float:
    """Return the mean of the seconds that a way takes, behind one run that does not count. The window has them all, of
    so many units each."""
    times: list[float] = []
    with window:
        await way()
        while not times or sum(times) < least_s:
            times.append(await way())
    window.units = units * (1 + len(times))
    return statistics.mean(times)
