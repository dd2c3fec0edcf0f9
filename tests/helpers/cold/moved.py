"""`HandMover`: segments of a log into cold files step by step, as a test wants it: no worker, no waiting, no retry.

Each step is the real one of `ColdStore`; the files are what `ColdFileWriter` makes of the entries in the ledgers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dlspark.core.cold.files.footer import FileIdentity
from dlspark.core.cold.files.writing import ROW_GROUP_BYTES, ColdFileWriter, WrittenFile
from dlspark.core.lifecycle.owned_segments import sweep
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore
from dlspark.tables.declaration import Declaration
from helpers.worlds.memory_bookies import MemoryBookie
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdSegment, ColdUnit

NOW_MS = 1_764_300_000_000


class HandMover:
    """Moves segments of a namespace's logs.

    Args:
        namespace: any; it is used as a worker uses one.
        root: where files go, an address.
        nodes: storage nodes in memory, which give up the ledgers of hot copies at once; real ones do so by themselves.
        store: takes the files; None: that of `root`.
        row_group_bytes: of the files.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        root: str,
        nodes: Iterable[MemoryBookie] = (),
        *,
        store: ObjectStore | None = None,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self.cold = ColdStore(namespace.logs_store)
        self.files = store or open_store(root)
        self._namespace = namespace
        self._root = root
        self._nodes = list(nodes)
        self._row_group_bytes = row_group_bytes
        self._replacements = 0

    async def copy(
        self, log: str, first: int, last: int, declaration: Declaration | None = None
    ) -> Versioned[ColdUnit]:
        """Copy segments `first` to `last` into one file: FINISHED. Without a user record there is no file."""
        attempt = await self.cold.copies.begin(log, first, last, root=self._root, worker="by hand", now_ms=NOW_MS)
        cold_log = await self.cold.cold_log(log)
        assert cold_log is not None
        ids = cold_log.value
        identity = FileIdentity(ids.namespace_id, ids.log_id, log, attempt.value.attempt)
        parts: list[bytes] = []
        writer = ColdFileWriter(parts.append, identity, declaration, row_group_bytes=self._row_group_bytes)
        sizes = await self._add_all(log, first, last, writer)
        has_records = writer.records > 0
        written = writer.finish()
        file: ColdFile | None = None
        if has_records:
            file = file_of(written, attempt.value.url)
            await self.put(attempt.value.url, b"".join(parts))
        segments = [replace(one, bytes=size) for one, size in zip(written.segments, sizes, strict=True)]
        return await self.cold.copies.finish(log, attempt, segments, file, now_ms=NOW_MS)

    async def _add_all(self, log: str, first: int, last: int, writer: ColdFileWriter) -> list[int]:
        services = self._namespace.services
        sizes: list[int] = []
        for segment in await services.logs.hot_segments(log):
            if not first <= segment.lssn <= last:
                continue
            ledger = await services.ledgers.open(segment.ledger_id, password=services.settings.password, recover=False)
            writer.begin_segment(segment, ledger.length)
            if ledger.last_add_confirmed >= 0:
                entries = await ledger.read(0, ledger.last_add_confirmed)
                writer.add([(entry.entry_id, entry.payload) for entry in entries])
            writer.end_segment()
            sizes.append(ledger.length)
            await ledger.close()
        return sizes

    async def put(self, url: str, data: bytes) -> None:
        """Write an object."""
        out = await self.files.create(url)
        await out.write(data)
        await out.commit()

    async def delete_hot(self, log: str, unit: Versioned[ColdUnit]) -> Versioned[ColdUnit]:
        """Take the unit's segments off the list, and delete their ledgers: HOT_DELETED."""
        gone = await self.cold.delete_hot(log, unit, now_ms=NOW_MS)
        await sweep(self._namespace.services, log)
        self.forget_ledgers(gone.value.segments)
        return gone

    def forget_ledgers(self, segments: Iterable[ColdSegment]) -> None:
        """Have the nodes in memory collect their garbage."""
        for one in segments:
            for node in self._nodes:
                node.ledgers.pop(one.metadata.ledger_id, None)

    async def move(
        self, log: str, first: int, last: int, declaration: Declaration | None = None
    ) -> Versioned[ColdUnit]:
        """Copy segments and delete their hot copies."""
        return await self.delete_hot(log, await self.copy(log, first, last, declaration))

    async def delete_cold(self, log: str, unit: Versioned[ColdUnit]) -> None:
        """Delete a unit as retention does: hidden first, then its file, then its znode."""
        await self.end_delete(log, await self.cold.begin_cold_delete(log, unit))

    async def end_delete(self, log: str, unit: Versioned[ColdUnit]) -> None:
        """Delete the file and the znode of a unit that is hidden."""
        if unit.value.file is not None:
            await self.files.delete(unit.value.file.url)
        await self.cold.end_cold_delete(log, unit)

    async def replace(self, log: str, unit: Versioned[ColdUnit]) -> Versioned[ColdUnit]:
        """Put another object with the same bytes in place of a unit's file, as redaction does with fewer; delete the
        former one."""
        file = unit.value.file
        assert file is not None
        self._replacements += 1
        attempt = f"{self._replacements:032x}"
        url = f"{file.url.rpartition('-')[0]}-{attempt}.parquet"
        (data,) = await self.files.read(file.url, [(0, file.bytes)])
        await self.put(url, bytes(data))
        now = await self.cold.replace_file(log, unit, replace(file, url=url), attempt=attempt)
        await self.files.delete(file.url)
        return now


def file_of(written: WrittenFile, url: str) -> ColdFile:
    """Return what a unit says of a file that was written."""
    return ColdFile(
        url=url,
        bytes=written.bytes,
        sha256=written.sha256,
        digest=written.digest,
        rows=written.rows,
        entries=written.entries,
        schema_version=written.schema_version,
        redacted=written.redacted,
    )
