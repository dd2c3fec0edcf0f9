"""Our logs under the load: by writers and readers of the core, and by the thin client through proxies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from dlspark.bench.systems import Burst, BurstPublisher, Consumer, Deliver
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings.settings import Settings
    from dlspark.core.writing.writer import AsyncLogWriter
    from dlspark.serving.client.producing import AsyncProducer
    from storage_node.protocol.frames import Buffer

DEPTH: Final = 5
"""Bursts of a log under way, as many as requests of Kafka's producer (`max.in.flight.requests.per.connection`)."""
LOW_LATENCY: Final = {
    "writerOutputBufferSize": 0,
    "enableImmediateFlush": True,
    "periodicFlushFrequencyMilliSeconds": 0,
}
"""Readers see a record when it is acknowledged, and not with the next one only."""
PENDING_BYTES: Final = 256 << 20
"""What thin clients may hold: more than the load has under way, which is what bounds it."""
ABOUT: Final = "{copies} copies, acknowledged when {quorum} are synced to disk"


def columns_of(rows: np.ndarray) -> pa.BinaryArray:
    """Return records of one length as an Arrow array, without copying them."""
    count, size = rows.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def bytes_of(column: pa.BinaryArray) -> Buffer:
    """Return the values of an Arrow array behind each other, without copying them."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(column.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


class ReadingTasks:
    """Tasks that read a log each, and what has made one end."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, reading: Awaitable[None]) -> None:
        """Run another one."""
        self._tasks.append(asyncio.ensure_future(reading))

    def check(self) -> None:
        """Raise what has made a task end."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """Cancel all of them, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class LogPublisher:
    """Writes bursts by writers of the core, as batches of columns."""

    def __init__(self, writers: Sequence[AsyncLogWriter]) -> None:
        self._writers = writers
        self._under_way = [0] * len(writers)

    def has_room(self, log: int) -> bool:
        """Return whether a burst for this log would be sent soon."""
        return self._under_way[log] < DEPTH

    def publish(self, burst: Burst) -> None:
        """Write a burst as one batch."""
        self._under_way[burst.log] += 1
        txids = np.arange(burst.first, burst.first + len(burst), dtype=np.int64)

        def ended(future: asyncio.Future[Any]) -> None:
            self._under_way[burst.log] -= 1
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                burst.fail(str(error or "cancelled"))
            else:
                burst.acknowledge()

        self._writers[burst.log].write_batch(txids, columns_of(burst.rows)).add_done_callback(ended)


@dataclass(frozen=True)
class OurLogs:
    """Are these logs of a namespace? They are made, written, read and deleted there, with settings of it."""

    uri: str
    settings: Settings
    server_pids: tuple[int, ...] = ()
    name: str = "dlspark"

    @property
    def about(self) -> str:
        """Its durability."""
        quorums = self.settings
        return ABOUT.format(copies=quorums.write_quorum, quorum=quorums.ack_quorum)

    @asynccontextmanager
    async def _namespace(self) -> AsyncIterator[AsyncNamespace]:
        from dlspark.core.namespace import AsyncNamespace

        async with await AsyncNamespace.open(self.uri, self.settings.with_values(LOW_LATENCY)) as namespace:
            yield namespace

    @asynccontextmanager
    async def logs(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Make logs, and delete them when the block is left."""
        async with (
            self._namespace() as namespace,
            logs_while(names, namespace.create_log, namespace.delete_log),
        ):
            yield

    @asynccontextmanager
    async def publisher(self, names: Sequence[str]) -> AsyncIterator[BurstPublisher]:
        """Open a writer for each log."""
        async with self._namespace() as namespace:
            logs = [await namespace.open_log(name) for name in names]
            yield LogPublisher([await log.open_writer() for log in logs])

    @asynccontextmanager
    async def consumer(self, names: Sequence[str], deliver: Deliver) -> AsyncIterator[Consumer]:
        """Open a reader for each log."""
        from dlspark.core.reading.reader import AsyncLogReader

        async def read(number: int, reader: AsyncLogReader) -> None:
            while True:
                batch = await reader.next_batch()
                deliver(number, bytes_of(batch.column("value")), time.monotonic_ns())

        tasks = ReadingTasks()
        async with self._namespace() as namespace:
            try:
                for number, name in enumerate(names):
                    log = await namespace.open_log(name)
                    tasks.start(read(number, await log.open_reader()))
                yield tasks
            finally:
                await tasks.end()


@asynccontextmanager
async def logs_while(
    names: Sequence[str], create: Callable[[str], Awaitable[object]], delete: Callable[[str], Awaitable[object]]
) -> AsyncIterator[None]:
    """Make logs, and delete them when the block is left. What has made it end comes before a log that stays."""
    begun: list[str] = []
    try:
        for name in names:
            begun.append(name)  # before: it may be there, too, where its creation was cancelled
            await create(name)
        yield
    except BaseException:
        await _each_deleted(begun, delete)
        raise
    failed = await _each_deleted(begun, delete)
    if failed is not None:
        raise failed


async def _each_deleted(names: Sequence[str], delete: Callable[[str], Awaitable[object]]) -> DistributedLogError | None:
    """Delete all logs that are there, also where one cannot be; return the first failure."""
    failed: DistributedLogError | None = None
    for name in names:
        try:
            await delete(name)
        except LogNotFoundError:
            pass
        except DistributedLogError as error:
            failed = failed or error
    return failed


class ProxyPublisher:
    """Writes bursts by producers of the thin client, record by record as programs do: the client makes requests of
    them."""

    def __init__(self, producers: Sequence[AsyncProducer]) -> None:
        self._producers = producers
        self._under_way = [0] * len(producers)

    def has_room(self, log: int) -> bool:
        """Return whether a burst for this log would be sent soon."""
        return self._under_way[log] < DEPTH

    def publish(self, burst: Burst) -> None:
        """Send each record of a burst."""
        self._under_way[burst.log] += 1
        left = len(burst)

        def ended(future: asyncio.Future[Any]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._under_way[burst.log] -= 1
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                burst.fail(str(error or "cancelled"))
            else:
                burst.acknowledge_one()

        send = self._producers[burst.log].send
        for payload in burst.payloads():
            send(payload).add_done_callback(ended)


@dataclass(frozen=True)
class ThroughProxies:
    """Are these logs served by write and read proxies? The thin client makes, writes, reads and deletes them."""

    where: str
    server_pids: tuple[int, ...] = ()
    name: str = "proxies"
    about: str = "as the proxies' namespace says, acknowledged when synced to disk"
    values: dict[str, str | int] = field(
        default_factory=lambda: {
            "maxPendingBytes": PENDING_BYTES,
            "maxPendingRecords": 10_000_000,
        }
    )

    @asynccontextmanager
    async def logs(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Make logs, and delete them when the block is left."""
        from dlspark.serving.client.client import AsyncClient

        async with (
            await AsyncClient.connect(self.where, self.values) as client,
            logs_while(names, client.create, client.delete),
        ):
            yield

    @asynccontextmanager
    async def publisher(self, names: Sequence[str]) -> AsyncIterator[BurstPublisher]:
        """Open a producer for each log."""
        from dlspark.serving.client.client import AsyncClient

        async with await AsyncClient.connect(self.where, self.values) as client:
            yield ProxyPublisher([client.producer(name) for name in names])

    @asynccontextmanager
    async def consumer(self, names: Sequence[str], deliver: Deliver) -> AsyncIterator[Consumer]:
        """Open a reader for each log, that gets batches of columns."""
        from dlspark.serving.client.client import AsyncClient
        from dlspark.serving.client.reading import AsyncProxyReader

        async def read(number: int, reader: AsyncProxyReader) -> None:
            while True:
                for batch in await reader.next_batches():
                    deliver(number, bytes_of(batch.column("value")), time.monotonic_ns())

        tasks = ReadingTasks()
        async with await AsyncClient.connect(self.where, self.values) as client:
            try:
                for number, name in enumerate(names):
                    tasks.start(read(number, client.reader(name, form="arrow")))
                yield tasks
            finally:
                await tasks.end()
