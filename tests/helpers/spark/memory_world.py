"""Storage nodes in this process and metadata in memory, with what tests of the driver's side write into them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.spark.catalog.requests import answer
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.selection import SourceQuery
from helpers.security.secured_runs import role_security, role_settings
from metadata.bookkeeper.bookies import BookieAddress
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.segments import TruncationStatus
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.settings.bookie import MIB, BookieSettings
from storage_node.settings.client import ClientSettings

URI = "distributedlog://memory:2181/dl"


class DriverWorld:
    """Three storage nodes in this process, and namespaces on them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.tree = MemoryTree()
        self._bookies: list[tuple[Bookie, MemoryStore]] = []
        self._drivers: list[SourceDriver] = []
        self._writers: dict[str, AsyncLogWriter] = {}
        self.namespace: AsyncNamespace
        self.now_s = 0.0
        """What drivers take for the time; a test moves it."""

    async def start(self) -> None:
        operator = MemoryStore(self.tree)
        await LedgerStore(operator).format()
        await NamespaceStore(operator, "/dl").bind(Binding.for_cluster("memory:2181"))
        await operator.close()
        for index in range(3):
            place = self._directory / f"node-{index}"
            settings = BookieSettings(
                journal_directories=(str(place / "journal"),),
                ledger_directories=(str(place / "ledgers"),),
                bookie_port=0,
                listening_address="127.0.0.1",
                bookie_id=f"node-{index}",
                journal_max_size_mb=16,
                journal_pre_alloc_size_mb=1,
                skip_list_size_limit=32 * MIB,
                security=role_security("node"),
            )
            store = MemoryStore(self.tree)
            bookie = Bookie(settings, store)
            await bookie.start()
            self._bookies.append((bookie, store))
        self.namespace = await self.connect(URI)

    @property
    def nodes(self) -> list[BookieAddress]:
        """Return where the storage nodes are."""
        return [bookie.address for bookie, _ in self._bookies]

    async def stop(self) -> None:
        for driver in self._drivers:
            await driver.close()
        await self.namespace.close()
        for bookie, store in self._bookies:
            await bookie.stop()
            await store.close()

    async def stop_node(self, index: int) -> None:
        bookie, store = self._bookies.pop(index)
        await bookie.stop()
        await store.close()

    async def connect(self, uri: str) -> AsyncNamespace:
        store = MemoryStore(self.tree)
        client = ClientSettings(
            read_entry_timeout_ms=3_000, speculative_read_ms=500, long_poll_ms=1_000, security=role_security("client")
        )
        return await AsyncNamespace.over(
            store,
            uri,
            Settings(lock_timeout_s=5).with_values(role_settings("client")),
            client_settings=client,
            own=(store,),
        )

    async def driver(self, scope: Scope = Scope.SOURCE_STREAM, **raw: object) -> SourceDriver:
        options = Options({"uri": URI, **{name: str(value) for name, value in raw.items()}}, scope)
        driver = SourceDriver(SourceQuery.of(options), self.connect, lambda: self.now_s)
        await driver.open()
        self._drivers.append(driver)
        return driver

    async def view(self, name: str) -> DriverLogView:
        return (await (await self.driver(log=name)).views())[name]

    async def create(self, name: str = "flights") -> str:
        await self.namespace.create_log(name)
        return name

    async def write(self, name: str, ids: Sequence[int], *, entry: int = 10, keep_open: bool = False) -> None:
        """Write one record an id, `entry` of them an entry, a control record behind; one segment."""
        if name not in self._writers:
            self._writers[name] = await (await self.namespace.open_log(name)).open_writer()
        writer = self._writers[name]
        for first in range(0, len(ids), entry):
            part = np.array(ids[first : first + entry], dtype=np.int64)
            await writer.write_batch(part, pa.array([str(n).encode() for n in part], type=pa.binary()))
        await writer.commit()
        if not keep_open:
            await self._writers.pop(name).close()

    async def append(self, name: str, ids: Sequence[int]) -> None:
        """Append an acknowledged entry to the segment that `write` kept open: readers see up to the entry before it."""
        part = np.array(ids, dtype=np.int64)
        await self._writers[name].write_batch(part, pa.array([str(n).encode() for n in part], type=pa.binary()))

    async def commit(self, name: str) -> None:
        await self._writers[name].commit()

    async def seal(self, name: str) -> None:
        writer = self._writers.pop(name)
        await writer.mark_end_of_stream()
        await writer.close()

    async def truncate(self, name: str, index: int, status: TruncationStatus, entry: int = 0) -> None:
        """Mark a segment as upstream's truncation does: the znode is replaced."""
        logs = self.namespace.logs_store
        old = (await logs.segments(name))[index]
        new = replace(old, truncation=status, min_entry=entry)
        path = logs.paths(name).segment(old)
        await self.namespace.store.delete(path)
        await self.namespace.store.create(path, new.encode())


async def answer_request(world: DriverWorld, operation: str, **words: object) -> dict[str, object]:
    """Answer a request as the SQL catalog does. It connects as the catalog does: a lock's owner is named at once."""

    async def connect(uri: str) -> AsyncNamespace:
        store = MemoryStore(world.tree)
        return await AsyncNamespace.over(store, uri, Settings(lock_timeout_s=0), own=(store,))

    request = {"operation": operation, "catalog": "dlog", "defaults": {}, **words}
    return await answer(json.loads(json.dumps(request)), lambda: URI, connect)
