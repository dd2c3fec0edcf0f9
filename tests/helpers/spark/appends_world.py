"""A cluster in memory, and drivers of one query on it that commit batches either way: appended, or as segments.

Metadata, writers, recovery and the sink are the real ones; what they talk to is calls. A driver is a process of its own
as far as the cluster can tell, and may die at any await.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from dlspark.core.codec.records import LogRecord
from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.errors import LogEmptyError
from dlspark.spark.sink.append.appender import AppendedLog, BatchToAppend, SinkAppender
from dlspark.spark.sink.append.log_opening import LogOpener
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.driver import PublishingSession
from dlspark.spark.sink.inline_rows import gather_inline, joined
from dlspark.spark.sink.messages import InlineRows, JobId, Publication
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.write_proxies import WriteProxies
from helpers.spark.appended_proxies import ClusterClock, LinkedProxies, LinkedProxy
from helpers.spark.typed_frames import Using
from helpers.worlds.memory_cluster import MemoryCluster
from metadata.distributedlog.lock_members import LockId
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import LogMark
from metadata.foundation.errors import OutcomeUnknownError
from metadata.zookeeper.memory import Fault

LOG = "flights"
QUERY = "q-1"
IDLE_MS = 60_000


def rows_of(batch: int, count: int = 2) -> list[bytes]:
    return [f"{batch}:{number}".encode() for number in range(count)]


def inline(values: list[bytes], *, partition: int = 0, txids: list[int] | None = None) -> tuple[InlineRows, ...]:
    """Return rows as a task hands them over, of the frames that the test uses."""
    frames = Using.frames
    columns = frames.columns(LOG, ids=txids is not None)
    found, _ = gather_inline(columns, partition, 1000, 1 << 20, [frames.batch(values, txids)])
    assert found is not None
    return found


class AppendsCluster(MemoryCluster):
    """What all processes share."""

    defaults: ClassVar[Mapping[str, object]] = {
        "lock_timeout_s": 30,
        "zk_session_timeout_s": 2,
        "long_poll_ms": 200,
        "read_ahead_wait_ms": 20,
    }

    def __init__(self) -> None:
        self.clock = ClusterClock()
        super().__init__(clock=self.clock)
        self.drivers: list[Driver] = []
        self.proxies = LinkedProxies()
        self.settings: dict[str, object] = {}
        """Of all clients."""

    async def namespace(
        self, features: FeatureProvider | None = None, *, statistics: Statistics | None = None, **settings: object
    ) -> AsyncNamespace:
        """Return a new client, which its user closes."""
        return await self.connect({**self.settings, **settings}, features, statistics)

    async def proxy(self, number: int = 0, **settings: object) -> LinkedProxy:
        """Start a write proxy that the namespace announces."""
        return await self.proxies.start(number, await self.namespace(lock_timeout_s=0), **settings)

    async def kill_proxy(self, proxy: LinkedProxy) -> None:
        """End a proxy as its process's death does."""
        await self.proxies.crash(proxy, self.tree.expire)

    async def driver(
        self, *, proxied: bool = False, neighbour: bool = True, sink: str = QUERY, **settings: object
    ) -> Driver:
        """Start a driver; `proxied`: with the option proxy; `neighbour`: on the others' machine; `sink`: its query."""
        driver = Driver(self, await self.connect({**self.settings, **settings}), proxied, neighbour, sink)
        self.drivers.append(driver)
        return driver

    async def contents(self) -> list[bytes]:
        """Return what the log's records hold, those of an open segment that are acknowledged included."""
        await self.proxies.make_visible(LOG)
        namespace = await self.namespace()
        try:
            log = await namespace.open_log(LOG)
            async with await log.open_reader("earliest") as reader:
                found = await _all(reader)
                txids = [record.txid for record in found]
                assert txids == sorted(txids)
                return Using.frames.read([record.payload for record in found], txids)
        except (LogNotFoundError, LogEmptyError):
            return []
        finally:
            await namespace.close()

    async def forget_segments(self, how: str = "purge", before: Callable[[], Awaitable[object]] | None = None) -> None:
        """Write newer segments by writers without producers, and delete those that were there: by a purge, or as
        another writer finds that they are a week old. `before` is called before that."""
        await self.write_plainly(retention_hours=0)
        last = await self.write_plainly(retention_hours=0)
        if before is not None:
            await before()
        if how == "retention":
            self.clock.ahead_ms += 7 * 24 * 3_600_000
            await self.write_plainly(retention_hours=72)
            return
        namespace = await self.namespace()
        try:
            await (await namespace.open_log(LOG)).purge_older_than(last)
        finally:
            await namespace.close()

    async def write_plainly(self, *, retention_hours: int) -> int:
        """Write a segment of one record, without producers; its transaction id. Retention has ended behind it."""
        namespace = await self.namespace(retention_hours=retention_hours)
        try:
            log = await namespace.open_log(LOG)
            async with await log.open_writer() as writer:
                txid = writer.last_txid + 1
                writer.write(txid, b"plain")
                await writer.flush()
                await asyncio.sleep(1 if retention_hours else 0)
                return txid
        finally:
            await namespace.close()

    async def segments(self) -> list[SegmentMetadata]:
        namespace = await self.namespace()
        try:
            return list(await (await namespace.open_log(LOG)).segments())
        finally:
            await namespace.close()

    async def stop(self) -> None:
        self.tree.inject = None
        for driver in list(self.drivers):
            await driver.stop()
        await self.proxies.stop()
        await super().stop()


async def _all(reader: AsyncLogReader) -> list[LogRecord]:
    found: list[LogRecord] = []
    while more := await reader.read_available(1000, wait=True):
        found += more
    return found


class Neighbour:
    """Another driver's process, which is asked to append: over a socket as far as it can tell."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def append_as_owner(self, batch: BatchToAppend, session_id: int) -> CommitOutcome | None:
        await asyncio.sleep(0)
        driver = self._driver
        if driver.crashed or driver.namespace.store.session_id != session_id:
            return None
        appending = asyncio.ensure_future(driver.appender.append_as_owner(batch))
        appending.add_done_callback(lambda done: done.cancelled() or done.exception())
        # It goes on with what it has begun, though its caller may have gone; and where it dies there is no answer.
        while not (await asyncio.wait([appending], timeout=1))[0]:
            if driver.crashed:
                raise OutcomeUnknownError("it died")
        await asyncio.sleep(0)
        if driver.crashed:
            raise OutcomeUnknownError("it died")
        return appending.result()

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class Driver:
    """One process that commits batches of the query."""

    def __init__(
        self, cluster: AppendsCluster, namespace: AsyncNamespace, proxied: bool, neighbour: bool, sink: str
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.proxied = proxied
        self.proxies = WriteProxies(cluster.proxies.client, "/dl", cluster.proxies.can_be_dialled)
        self.session = SinkSession(namespace, namespace.settings, self.proxies, appending=True)
        self.publishing = PublishingSession(self.session)
        self.opened = 0
        self.appender = SinkAppender(self.open_log, rng=random.Random(3))
        self.crashed = False
        self.sink = sink
        self._neighbour = neighbour
        tools = self.publishing.append_tools
        self._opener = LogOpener(tools, self.proxies, always=proxied, find=self._find, idle_ms=IDLE_MS)

    def _find(self, holder: LockId) -> Neighbour | None:
        for driver in self.cluster.drivers:
            if self._neighbour and driver is not self and driver.namespace.store.session_id == holder.session_id:
                return Neighbour(driver)
        return None

    async def open_log(self, log: str) -> AppendedLog:
        self.opened += 1
        return await self._opener.open(log)

    async def append(self, batch: int, values: list[bytes] | None = None, **more: object) -> CommitOutcome | None:
        rows = joined(inline(rows_of(batch) if values is None else values, **more))  # type: ignore[arg-type]
        return await self.appender.append(BatchToAppend(self.job(batch), rows, IDLE_MS))

    async def segment(self, batch: int, values: list[bytes] | None = None) -> CommitOutcome:
        """Publish a batch as segments: tasks have handed their rows over, the driver writes them."""
        job = self.job(batch)
        await self.session.state(job)
        parts = inline(rows_of(batch) if values is None else values)
        publication = await self.publishing.inline_staged(Publication(job, (), inline=parts, known=(LOG,)))
        commit = await self.publishing.publisher.publish(publication)
        await self.publishing.sweeper.after_commit(job, [LOG], commit.left)
        return commit.outcome

    async def commit(self, batch: int, mode: str, values: list[bytes] | None = None) -> CommitOutcome | None:
        return await (self.append(batch, values) if mode == "append" else self.segment(batch, values))

    def job(self, batch: int) -> JobId:
        return JobId(self.sink, batch, uuid.uuid4().hex)

    async def mark(self) -> LogMark | None:
        found = await self.session.sinks.mark_in(self.namespace.services.logs.paths(LOG), self.sink)
        return None if found is None else found.value

    async def crash(self) -> None:
        """End the process as its death does: connections break, and the session expires."""
        self.cluster.drivers.remove(self)
        self.crashed = True
        await self.namespace.ledgers.close()
        self.cluster.tree.expire(self.namespace.store.session_id)
        await self.namespace.store.close()
        await self.appender.close()
        await self.proxies.close()

    async def stop(self) -> None:
        if self in self.cluster.drivers:
            self.cluster.drivers.remove(self)
        await self.appender.close()
        await self.proxies.close()
        await self.namespace.close()


class Strike:
    """Counts the requests to a cluster's metadata store from now on, and strikes the one of this number: with a fault,
    or, where that is None, its session ends."""

    def __init__(self, cluster: AppendsCluster, fault: Fault | None, strike_at: int) -> None:
        self.requests = 0
        self._tree = cluster.tree
        self._fault = fault
        self._strike_at = strike_at
        self._tree.inject = self._inject

    def _inject(self, session: int, _operation: str, _path: str) -> Fault | None:
        self.requests += 1
        if self.requests != self._strike_at + 1:
            return None
        if self._fault is None:
            asyncio.get_running_loop().call_soon(self._tree.expire, session)
        return self._fault

    def end(self) -> None:
        """Count and strike no more."""
        self._tree.inject = None
