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
import time
from pathlib import Path
from typing import Final

from benchmarks.cluster import Cluster, run
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
PRODUCERS_GOAL_MB: Final = 100.0
SNAPSHOT_ENTRIES: Final = 10_000
"""The default of `producerSnapshotEntries`."""
IDLE_CLIENTS: Final = 10_000
LOGS: Final = 1_000
IDLE_GOAL_MB: Final = 300.0
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
            with write_proxy(self._cluster.uri, self._directory, hands_over=False) as proxy:
                self._idle.add(idle_memory_mb(proxy.address, proxy.pid, IDLE_CLIENTS, LOGS), IDLE_GOAL_MB)
        uri, name = self._cluster.uri, f"shared-{self._rounds}"
        with read_proxy(uri, self._directory) as proxy:
            shared = read_by_many(uri, name, proxy, self._cluster.entries_read, seconds)
        self._fetched.add(shared.fetched, shared.entries)
        self._others.add(percentile(shared.with_slow_ms, 0.99), percentile(shared.without_ms, 0.99))
        self._held.add(shared.memory_mb, shared.memory_alone_mb)

    def _measure_producers(self) -> None:
        with write_proxy(self._cluster.uri, self._directory, hands_over=False) as proxy:
            run(begin_producers(proxy.address, "one-producer", 1))
            before = resident_mb(proxy.pid)
            run(begin_producers(proxy.address, "many-producers", PRODUCERS))
            self._memory.add(resident_mb(proxy.pid) - before, PRODUCERS_GOAL_MB)
            for log in ("one-producer", "many-producers"):
                run(release(proxy.address, log))
        _, alone_ms = run(take_over(self._cluster.uri, "one-producer", 1))
        entries, taken_ms = run(take_over(self._cluster.uri, "many-producers", PRODUCERS))
        self._read.add(entries, SNAPSHOT_ENTRIES)
        self._taken.add(taken_ms, alone_ms)


async def begin_producers(address: str, stream: str, count: int) -> None:
    """Have so many producers begin an epoch through the proxy, and write one record each."""
    client = await FramesClient.connect(TcpNetwork(), address)
    await _all(client, [BeginEpoch(stream, _producer(number)) for number in range(count)])
    await _all(
        client,
        [WriteRecords(stream, (b"record",), stamp=ProducerStamp(_producer(number), 1, 0)) for number in range(count)],
    )
    await client.close()


async def release(address: str, stream: str) -> None:
    """Have the proxy give the log up."""
    client = await FramesClient.connect(TcpNetwork(), address)
    await _all(client, [ReleaseStream(stream)])
    await client.close()


async def take_over(uri: str, name: str, count: int) -> tuple[int, float]:
    """Return the entries that a new owner reads to know all producers, and milliseconds until it owns the log
    and does.
    """
    async with await AsyncNamespace.open(uri) as namespace, await namespace.open_log(name) as log:
        before = namespace.counters["producer-entries-read"]
        begin = time.perf_counter()
        writer = await log.open_writer(producers=True)
        taken_ms = (time.perf_counter() - begin) * 1e3
        read = namespace.counters["producer-entries-read"] - before
        known = sum(writer.producer_state(_producer(number)) is not None for number in range(count))
        check(known == count, f"{known} of {count} producers are known")
        await writer.close()
    return read, taken_ms


def _producer(number: int) -> str:
    return f"producer-{number:06}"


def idle_memory_mb(address: str, pid: int, clients: int, logs: int) -> float:
    """Return the memory that a proxy's process holds with so many idle connections and logs."""
    run(_own_logs(address, logs))
    with child_process(idle_clients, address, clients) as end:
        check(end.recv() == clients, "not all clients were connected")
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
