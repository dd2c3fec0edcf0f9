"""Many at once: rows P21 (producers), P22 (idle clients and logs), P23 (readers of one log).

**P21.** 100,000 producers begin an epoch on one log and write a record each, through a proxy of its own. What the
proxy's process grew by is what they take. Then the proxy gives the log up and a direct writer takes it over: what that
read to know them all is counted, the snapshot itself included, and it must know every one.

**P22.** 10,000 connections and 1,000 logs on a proxy of its own. A connection is a raw one that asked a handshake: not
10,000 processes, and not the client library, whose memory is not the proxy's. It stays open until the proxy's memory
was read, and is looked at again then.

**P23.** See `shared_reading`.

P21 and P22 are memory, which hardly depends on what else the machine does: they are measured in the first round only.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.cluster import Cluster, run
from benchmarks.costs import CLIENT, CallCount, Watch, Window, beside, costs_of, within
from benchmarks.limits import child_process
from benchmarks.proxies import read_proxy, resident_mb, write_proxy
from benchmarks.results import Row, Target, percentile
from benchmarks.shared_reading import READERS, read_by_many
from benchmarks.thin_clients import idle_clients
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.protocol.operations import (
    Answer,
    BeginEpoch,
    ProducerStamp,
    Refusal,
    ReleaseStream,
    Request,
    WriteRecords,
)
from metadata.foundation.errors import check
from storage_node.transport.tcp import TcpNetwork

PRODUCERS: Final = 100_000
ALL_KNOWN: Final = {"maxProducers": str(PRODUCERS)}
"""A log remembers fewer by default, and refuses the next one."""
PRODUCERS_GOAL_MB: Final = 100.0
SNAPSHOT_ENTRIES: Final = 10_000
"""The default of `producerSnapshotEntries`."""
IDLE_CLIENTS: Final = 10_000
LOGS: Final = 1_000
IDLE_GOAL_MB: Final = 300.0
COUNTED_PRODUCERS: Final = 2_000
COUNTED_CLIENTS: Final = 1_000
"""In windows in which system calls are counted."""
_DEPTH: Final = 2_000
"""Requests under way while producers begin, or logs are opened."""


class ScaleBenchmark:
    """Rows P21 to P23 on one cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._rounds = 0
        at_most = Target(1.0, at_most=True)
        producers = f"{PRODUCERS:,} producers on a log"
        self._memory = Row("P21", f"{producers}: memory of the proxy", "MB", "MB wanted", at_most)
        self._read = Row("P21", f"{producers}: read to take it over", "entries", "producerSnapshotEntries", at_most)
        self._taken = Row("P21", f"{producers}: taking it over", "ms", "ms: with one producer", None)
        idle = f"{IDLE_CLIENTS:,} idle clients, {LOGS:,} logs: memory of the proxy"
        self._idle = Row("P22", idle, "MB", "MB wanted", at_most)
        readers = f"{READERS:,} readers of a log"
        self._fetched = Row("P23", f"{readers}: storage reads", "entries", "entries written", at_most)
        self._others = Row("P23", f"{readers}: p99 of the 99 %", "ms", "ms: without the slow 1 %", Target(1.1, True))
        self._held = Row("P23", f"{readers}: memory of the read proxy", "MB", "MB: with one reader", None)
        self.rows = [
            *(self._memory, self._read, self._taken, self._idle),
            *(self._fetched, self._others, self._held),
        ]

    def round(self, seconds: float) -> None:
        """Measure the readers; in the first round producers and idle clients too."""
        self._rounds += 1
        if self._rounds == 1:
            self._measure_producers()
            self._measure_idle()
        with read_proxy(self._cluster.uri, self._directory) as proxy:
            shared = read_by_many(self._cluster, f"shared-{self._rounds}", proxy, seconds)
        self._fetched.add(shared.fetched, shared.entries, costs=shared.costs)
        self._others.add(percentile(shared.with_slow_ms, 0.99), percentile(shared.without_ms, 0.99))
        self._held.add(shared.memory_mb, shared.memory_alone_mb)

    def _measure_producers(self) -> None:
        uri, cluster = self._cluster.uri, self._cluster
        with write_proxy(uri, self._directory, hands_over=False, settings=ALL_KNOWN) as proxy:
            processes = {CLIENT: [os.getpid()], "proxy": [proxy.pid]}
            watch, calls = cluster.watch(processes), cluster.calls(processes)
            run(begin_producers(proxy.address, "one-producer", 1))
            before = resident_mb(proxy.pid)
            run(begin_producers(proxy.address, "many-producers", PRODUCERS, watch))
            memory_mb = resident_mb(proxy.pid) - before
            run(begin_producers(proxy.address, "counted-producers", COUNTED_PRODUCERS, calls))
            self._memory.add(memory_mb, PRODUCERS_GOAL_MB, costs=costs_of("producer", watch, calls))
            for log in ("one-producer", "many-producers"):
                run(release(proxy.address, log))
        taking, watch = cluster.watch(), cluster.watch()
        _, alone_ms = run(take_over(uri, "one-producer", 1, taking))
        entries, taken_ms = run(take_over(uri, "many-producers", PRODUCERS, watch))
        costs = beside(costs_of("take-over", watch), "of one producer", costs_of("take-over", taking))
        self._read.add(entries, SNAPSHOT_ENTRIES, costs=costs)
        self._taken.add(taken_ms, alone_ms)

    def _measure_idle(self) -> None:
        watches: list[Watch] = []
        counts: list[CallCount] = []
        with write_proxy(self._cluster.uri, self._directory, hands_over=False) as proxy:

            def watch(client: int) -> Watch:
                watches.append(self._cluster.watch({CLIENT: [client], "proxy": [proxy.pid]}))
                return watches[0]

            def count(client: int) -> CallCount:
                counts.append(self._cluster.calls({CLIENT: [client], "proxy": [proxy.pid]}))
                return counts[0]

            held = idle_memory_mb(proxy.address, proxy.pid, IDLE_CLIENTS, LOGS, watch)
            idle_memory_mb(proxy.address, proxy.pid, COUNTED_CLIENTS, 0, count)
        self._idle.add(held, IDLE_GOAL_MB, costs=costs_of("connection", watches[0], counts[0]))


async def begin_producers(address: str, stream: str, count: int, window: Window | None = None) -> None:
    """Have so many producers begin an epoch through the proxy, and write one record each."""
    client = await FramesClient.connect(TcpNetwork(), address)
    begin: list[Request] = [BeginEpoch(stream, _producer(number)) for number in range(count)]
    write: list[Request] = [
        WriteRecords(stream, (b"record",), stamp=ProducerStamp(_producer(number), 1, 0)) for number in range(count)
    ]
    with within(window):
        await _all(client, begin)
        await _all(client, write)
    if window is not None:
        window.units = count
    await client.close()


async def release(address: str, stream: str) -> None:
    """Have the proxy give the log up."""
    client = await FramesClient.connect(TcpNetwork(), address)
    await _all(client, [ReleaseStream(stream)])
    await client.close()


async def take_over(uri: str, name: str, count: int, window: Window | None = None) -> tuple[int, float]:
    """Return the entries that a new owner reads to know all producers, and milliseconds until it owns the log
    and does.
    """
    async with await AsyncNamespace.open(uri) as namespace, await namespace.open_log(name, ALL_KNOWN) as log:
        before = namespace.counters["producer-entries-read"]
        with within(window):
            begin = time.perf_counter()
            writer = await log.open_writer(producers=True)
            taken_ms = (time.perf_counter() - begin) * 1e3
        if window is not None:
            window.units = 1
        read = namespace.counters["producer-entries-read"] - before
        known = sum(writer.producer_state(_producer(number)) is not None for number in range(count))
        check(known == count, f"{known} of {count} producers are known")
        await writer.close()
    return read, taken_ms


def _producer(number: int) -> str:
    return f"producer-{number:06}"


def idle_memory_mb(
    address: str, pid: int, clients: int, logs: int, make: Callable[[int], Window] | None = None
) -> float:
    """Return the memory that a proxy's process holds with so many idle connections and logs. `make` makes a window of
    the clients' process: it is that in which they connect."""
    run(_own_logs(address, logs))
    with child_process(idle_clients, address, clients) as end:
        client: int = end.recv()
        window = None if make is None else make(client)
        with within(window):
            end.send("go")
            check(end.recv() == clients, "not all clients were connected")
        if window is not None:
            window.units = clients
        held = resident_mb(pid)
        end.send(None)
        check(end.recv() == clients, "not all clients stayed connected")
    return held


async def _own_logs(address: str, logs: int) -> None:
    client = await FramesClient.connect(TcpNetwork(), address)
    await _all(client, [WriteRecords(f"idle-{number}", (b"record",)) for number in range(logs)])
    await client.close()


async def _all(client: FramesClient, requests: list[Request]) -> None:
    """Ask them, a bounded number at a time. Raises where one is refused."""
    room = asyncio.Semaphore(_DEPTH)
    refused: list[Refusal] = []

    def answered(answer: Answer) -> None:
        room.release()
        if isinstance(answer, Refusal):
            refused.append(answer)

    for request in requests:
        await room.acquire()
        client.submit(request, answered)
    for _ in range(_DEPTH):
        await room.acquire()
    check(not refused, f"{len(refused)} of {len(requests)} requests were refused: {refused[:1]}")
