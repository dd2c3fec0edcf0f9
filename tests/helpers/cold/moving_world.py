"""`MovingWorld`: a cluster and a bucket in memory, with movers over both, on a clock that the test sets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from dlspark.cold.moving.log_mover import LogMover, MoverPass
from dlspark.cold.moving.owning import is_owner_mark
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import Swept, sweep_log
from dlspark.core.cold.reading.cold_files import ColdFiles
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.addresses import root_of
from dlspark.objects.memory import MemoryBucket, MemoryObjectStore
from dlspark.objects.memory_faults import ObjectFaults
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.store import ObjectStore
from helpers.worlds.memory_cluster import MemoryCluster
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit

ROOT = "s3://memory/cold"
AT_ONCE = ReadPolicy(attempts=2, first_pause_s=0.0, longest_pause_s=0.0)


class MovableClock:
    """A clock that goes on by the test's hand."""

    def __init__(self) -> None:
        self.moment_ms = 1_764_300_000_000

    def now_ms(self) -> int:
        self.moment_ms += 1  # so that nothing is at the same moment
        return self.moment_ms

    def elapsed_s(self) -> float:
        return self.moment_ms / 1000


class MovingWorld:
    """Logs, a bucket, and any number of movers."""

    def __init__(self) -> None:
        self.clock = MovableClock()
        self.cluster = MemoryCluster(clock=self.clock)
        self.cluster.tree._now_ms = self.clock.now_ms
        self.bucket = MemoryBucket(self.clock.now_ms, ObjectFaults(random.Random(7)))
        self._holds: list[object] = []
        self._movers: list[MoverStores] = []

    async def start(self) -> None:
        """Begin."""
        await self.cluster.start()

    async def stop(self) -> None:
        """End all."""
        for stores in self._movers:
            await stores.close()
        await self.cluster.stop()

    @property
    def files(self) -> set[str]:
        """What is in the bucket, but for the mark of its owner."""
        return {url for url in self.bucket.objects if not is_owner_mark(url)}

    def open_store(self, address: str, options: Mapping[str, str] | None = None) -> ObjectStore:
        """Return a store of the bucket, in parts of a size that makes uploads of most files."""
        return MemoryObjectStore(self.bucket, root_of(address).url, part_bytes=1 << 10, policy=AT_ONCE)

    async def namespace(self, **settings: Any) -> AsyncNamespace:
        """Return a client with cold storage on, whose readers find the bucket."""
        given: dict[str, Any] = {
            "cold_path": ROOT,
            "cold_freshness_s": 0,
            "cold_max_delay_s": 10,
            "output_buffer_bytes": 0,
        }
        namespace = await self.cluster.namespace(**{**given, **settings})
        namespace.services.shared.cold = ColdFiles(self.open_store).hold()
        return namespace

    def mover(
        self, namespace: AsyncNamespace, log: str, worker: str = "worker", stores: MoverStores | None = None
    ) -> LogMover:
        """Return a mover of a log, with stores of its own unless some are given."""
        if stores is None:
            stores = MoverStores(self.open_store, self.clock)
            self._movers.append(stores)
        cold = ColdStore(namespace.services.logs)
        return LogMover(namespace.services, cold, stores, log, lambda: namespace.settings, worker)

    async def write(
        self, namespace: AsyncNamespace, log: str, segments: int, records: int = 3, first: int = 1
    ) -> list[bytes]:
        """Write segments of so many records each, and complete them; returns the payloads."""
        written = []
        for segment in range(first, first + segments):
            async with await (await namespace.open_log(log)).open_writer() as writer:
                for number in range(records):
                    payload = f"{segment}/{number}/".encode() * 40
                    await writer.write(segment * 100 + number, payload)
                    written.append(payload)
        return written

    async def read(self, namespace: AsyncNamespace, log: str) -> list[bytes]:
        """Return the payloads of all records that a reader finds, from the beginning to the end that is there now."""
        async with await namespace.open_log(log) as opened:
            last = await opened.last_record() if await opened.segments() else None
            found: list[bytes] = []
            if last is None:
                return found
            async with await opened.open_reader() as reader:
                while True:
                    record = await reader.read_next()
                    found.append(bytes(record.payload))
                    if record.dlsn >= last.dlsn:
                        return found

    async def units(self, namespace: AsyncNamespace, log: str) -> list[ColdUnit]:
        """Return the log's units."""
        return [one.value for one in await ColdStore(namespace.services.logs).units(log)]

    async def sweep(self, namespace: AsyncNamespace, log: str) -> Swept:
        """Sweep the log's folders, whatever the age."""
        self.bucket.faults.stop()
        self.bucket.settle()
        stores = MoverStores(self.open_store)
        try:
            cold = ColdStore(namespace.services.logs)
            return await sweep_log(namespace.services, cold, stores, log, namespace.settings, min_age_s=0)
        finally:
            await stores.close()

    async def check_tidy(self, namespace: AsyncNamespace, log: str) -> None:
        """Assert that the bucket holds what units name, and nothing else."""
        await self.sweep(namespace, log)
        named = {unit.file.url for unit in await self.units(namespace, log) if unit.file is not None}
        assert self.files == named
        assert self.bucket.open_uploads == []

    @staticmethod
    def right(done: MoverPass) -> MoverPass:
        """Assert that a pass met no problem."""
        assert done.problems == []
        assert done.busy is None
        return done
