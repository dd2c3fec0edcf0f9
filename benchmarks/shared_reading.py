"""Row P23: 1,000 readers of one log through one read proxy.

50 readers over each of twenty connections, in one process, with raw frames: they ask, note when each record came, and
ask again. A writer of the log core writes a record of 100 B every 200 ms, each an entry of its own. Ten of the readers
are slow: they ask again only half a second after each delivery. The other 990 are measured with and without them, in
turns. Latency is from the writer's call to a reader's having the record; with so many readers it is the time that it
takes to answer all of them. Reads are the entries that the
storage nodes say they have read.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Final, Protocol, TypeVar

from benchmarks.cluster import run
from benchmarks.costs import CallCount, Costs, Watch, Window, costs_of
from benchmarks.limits import child_process
from benchmarks.proxies import ProxyProcess, resident_mb
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.protocol.deliveries import records_of
from dlspark.serving.protocol.operations import Answer, Delivery, ReadBatch
from metadata.foundation.errors import check
from storage_node.transport.tcp import TcpNetwork

READERS: Final = 1_000
SLOW_READERS: Final = 10
READERS_PER_CONNECTION: Final = 50
SLOW_S: Final = 0.5
INTERVAL_S: Final = 0.2
"""Between two records."""
WARM_UP_RECORDS: Final = 2
"""Of each turn: readers find their places meanwhile."""
LEAST_RECORDS: Final = 5
"""Of each turn, besides those."""
EACH_AN_ENTRY: Final = {"writerOutputBufferSize": 0, "periodicFlushFrequencyMilliSeconds": 0}
_STAMP_BYTES: Final = 8
_RECORD_BYTES: Final = 100
_W = TypeVar("_W", bound=Window)


@dataclass(frozen=True, slots=True)
class SharedReading:
    """How fast did many readers of one log get its records, and at which cost?"""

    entries: int
    fetched: int
    without_ms: list[float]
    with_slow_ms: list[float]
    memory_alone_mb: float
    memory_mb: float
    costs: Costs
    """Of a record delivered to one reader, where none is slow."""


class WatchedCluster(Protocol):
    """What the readers' benchmark needs of a cluster (`benchmarks.cluster.Cluster`)."""

    @property
    def uri(self) -> str: ...

    def entries_read(self) -> int: ...

    def watch(self, others: Mapping[str, Sequence[int]]) -> Watch: ...

    def calls(self, others: Mapping[str, Sequence[int]]) -> CallCount: ...


def read_by_many(
    cluster: WatchedCluster,
    name: str,
    proxy: ProxyProcess,
    seconds: float,
    readers: int = READERS,
    slow: int = SLOW_READERS,
) -> SharedReading:
    """Write a log and have it read by many, with the slow ones and without, in turns."""
    return run(_read_by_many(cluster, name, proxy, seconds, readers, slow))


async def _read_by_many(
    cluster: WatchedCluster, name: str, proxy: ProxyProcess, seconds: float, readers: int, slow: int
) -> SharedReading:
    uri, fast = cluster.uri, readers - slow
    found: dict[bool, list[float]] = {False: [], True: []}
    watches: list[Watch] = []
    read_before = cluster.entries_read()
    async with await AsyncNamespace.open(uri, EACH_AN_ENTRY) as namespace, await namespace.open_log(name) as log:
        writer = await log.open_writer()
        begin = await _written(writer)
        alone, _ = await _turn(writer, begin, proxy, name, 1, 0, 0, cluster.watch)
        turn, held = alone, 0.0
        for with_slow in (False, True, True, False):
            slow_ones = slow if with_slow else 0
            turn, watch = await _turn(writer, turn.last, proxy, name, fast, slow_ones, seconds / 2, cluster.watch)
            found[with_slow] += turn.latencies_ms
            watches.append(watch)
            held = max(held, turn.memory_mb)
        fetched = cluster.entries_read() - read_before
        entries = turn.last.entry_id - begin.entry_id
        _, calls = await _turn(writer, turn.last, proxy, name, fast, 0, 0, cluster.calls)
        await writer.close()
    costs = costs_of("record delivered", watches[0], calls)
    return SharedReading(entries, fetched, found[False], found[True], alone.memory_mb, held, costs)


@dataclass(frozen=True, slots=True)
class _Turn:
    last: DLSN
    """The log's last record behind it."""
    latencies_ms: list[float]
    """Of the fast readers."""
    memory_mb: float
    """Of the proxy."""


async def _turn(
    writer: AsyncLogWriter,
    last: DLSN,
    proxy: ProxyProcess,
    name: str,
    fast: int,
    slow: int,
    seconds: float,
    make: Callable[[Mapping[str, Sequence[int]]], _W],
) -> tuple[_Turn, _W]:
    """Move readers on from behind `last`; the window that is made of the processes begins when they are connected."""
    start = DLSN(last.lssn, last.entry_id + 1, 0)
    with child_process(reading, proxy.address, name, str(start), fast, slow) as end:
        pid: int = await asyncio.to_thread(end.recv)
        window = make({"writer": [os.getpid()], "readers": [pid], "proxy": [proxy.pid]})
        with window:
            for _ in range(max(int(seconds / INTERVAL_S), LEAST_RECORDS) + WARM_UP_RECORDS):
                await asyncio.sleep(INTERVAL_S)
                last = await _written(writer)
            held = resident_mb(proxy.pid)
            end.send(str(last))
            # Meanwhile the writer makes its last record visible.
            latencies, window.units = await asyncio.to_thread(end.recv)
        end.send("end")
    return _Turn(last, list(latencies), held), window


async def _written(writer: AsyncLogWriter) -> DLSN:
    """Write one record that says when, and return its position."""
    txid = writer.last_txid + 1
    return await writer.write(txid, time.monotonic_ns().to_bytes(_STAMP_BYTES, "big").ljust(_RECORD_BYTES, b"."))


# ---------------------------------------------------------------------- the process of the readers


def reading(end: Connection, address: str, name: str, start: str, fast: int, slow: int) -> None:
    """Read, in a child, with readers that ask until all fast ones have the record whose position comes over `end`; then
    their latencies are sent, milliseconds, those of the first records left out, with the number of all records that
    were delivered, to slow ones too. It ends when it is told to.
    """
    run(_reading(end, address, name, DLSN.parse(start), fast, slow))


async def _reading(end: Connection, address: str, name: str, start: DLSN, fast: int, slow: int) -> None:
    loop = asyncio.get_running_loop()
    network = TcpNetwork()
    failed: asyncio.Future[None] = loop.create_future()
    clients: list[FramesClient] = []
    readers: list[TimedReader] = []
    for number in range(fast + slow):
        if number % READERS_PER_CONNECTION == 0:
            clients.append(await FramesClient.connect(network, address))
        pause_s = SLOW_S if number >= fast else 0.0
        readers.append(TimedReader(clients[-1], ReadBatch(name, start, reader=number), pause_s, failed))
    for reader in readers:
        reader.ask()
    stop: asyncio.Future[None] = loop.create_future()

    def asked_to_stop() -> None:
        loop.remove_reader(end.fileno())
        os.set_blocking(end.fileno(), True)  # as before: a loop that watches a descriptor does not want it to block
        stop.set_result(None)

    loop.add_reader(end.fileno(), asked_to_stop)
    end.send(os.getpid())
    await asyncio.wait([stop, failed], return_when=asyncio.FIRST_COMPLETED)
    last = DLSN.parse(end.recv()) if stop.done() else start
    while any(reader.behind(last) for reader in readers[:fast]) and not failed.done():
        await asyncio.wait([failed], timeout=INTERVAL_S / 4)
    if failed.done():
        failed.result()
    latencies = array("d", [one for reader in readers[:fast] for one in reader.latencies_ms[WARM_UP_RECORDS:]])
    end.send((latencies, sum(len(reader.latencies_ms) for reader in readers)))
    check(end.recv() == "end", "the run has ended")
    await asyncio.gather(*(client.close() for client in clients))


class TimedReader:
    """One reader that asks again as soon as it was answered, or after a pause; it notes how old each record is."""

    def __init__(self, client: FramesClient, request: ReadBatch, pause_s: float, failed: asyncio.Future[None]) -> None:
        self.latencies_ms: list[float] = []
        self._client = client
        self._request = request
        self._pause_s = pause_s
        self._failed = failed

    def behind(self, last: DLSN) -> bool:
        """Return whether it has not had the record at `last`."""
        return isinstance(self._request.start, DLSN) and self._request.start <= last

    def ask(self) -> None:
        """Ask for what comes next."""
        self._client.submit(self._request, self._answered)

    def _answered(self, answer: Answer) -> None:
        if not isinstance(answer, Delivery):
            if not self._failed.done() and not self._client.closed:
                self._failed.set_exception(RuntimeError(f"a read was answered with {answer}"))
            return
        now = time.monotonic_ns()
        for record in records_of(answer):
            written = int.from_bytes(record.payload[:_STAMP_BYTES], "big")
            self.latencies_ms.append((now - written) / 1e6)
        self._request = replace(self._request, start=answer.next)
        if self._pause_s:
            asyncio.get_running_loop().call_later(self._pause_s, self.ask)
        else:
            self.ask()
