"""What the source's tests write and look at: logs, behind Spark's back."""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Coroutine, Sequence

import numpy as np
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.writing.writer import AsyncLogWriter
from helpers.security.secured_runs import secured_link
from helpers.spark.typed_logs import TypedLog
from metadata.distributedlog.segments import SegmentMetadata


class Logs:
    """Writes logs as any program would, and looks at them behind Spark's back."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._mark = uuid.uuid4().hex[:8]
        self._runtime = Runtime("tests")
        self._namespace = self._runtime.run(AsyncNamespace.open(uri))
        self._writers: dict[str, AsyncLogWriter] = {}

    def typed(self, name: str) -> TypedLog:
        """Return a log that declares its columns; `run` what it does."""
        return TypedLog(self._namespace, self.name(name))

    def run(self, coroutine: Coroutine[object, object, None]) -> None:
        """Run what a typed log does."""
        self._runtime.run(coroutine)

    def name(self, name: str = "log") -> str:
        """Return a name that no other test uses."""
        return f"{name}-{self._mark}"

    def create(self, name: str) -> str:
        self._runtime.run(self._namespace.create_log(name))
        return name

    def delete(self, name: str) -> None:
        self._runtime.run(self._namespace.delete_log(name))

    def write(self, name: str, txids: Sequence[int], *, entry_records: int = 10, keep_open: bool = False) -> None:
        """Append a record an id, `entry_records` an entry; then complete the segment, or keep it open."""
        self._runtime.run(self._write(name, txids, entry_records, keep_open))

    def commit(self, name: str, subscriber: str, segment: int, entry: int) -> None:
        """Store a subscriber's position: the beginning of an entry."""
        self._runtime.run(self._commit(name, subscriber, DLSN(segment, entry, 0)))

    def seal(self, name: str) -> None:
        self._runtime.run(self._seal(name))

    def control(self, name: str) -> None:
        """Write a control record into the segment that `keep_open` left open."""
        self._runtime.run(self._writers[name].commit())

    def segments(self, name: str) -> list[SegmentMetadata]:
        return self._runtime.run(self._namespace.logs_store.segments(name))

    def subscribers(self, name: str) -> dict[str, DLSN]:
        return self._runtime.run(self._subscribers(name))

    async def _subscribers(self, name: str) -> dict[str, DLSN]:
        async with await self._namespace.open_log(name) as log:
            return await log.subscribers()

    def delete_first_segment(self, name: str) -> None:
        self._runtime.run(self._namespace.logs_store.delete_segment(name, self.segments(name)[0]))

    def sessions(self) -> set[str]:
        """Return the ids of the sessions that clients have with ZooKeeper now."""
        host, port = self.uri.split("/")[2].split(":")
        with secured_link(socket.create_connection((host, int(port)), timeout=60), host) as link:
            link.sendall(b"cons")
            text = b"".join(iter(lambda: link.recv(65536), b"")).decode()
        return set(re.findall(r"sid=(0x[0-9a-f]+)", text))

    def close(self) -> None:
        for name in list(self._writers):
            self._runtime.run(self._writers.pop(name).close())
        self._runtime.run(self._namespace.close())
        self._runtime.close()

    async def _writer(self, name: str) -> AsyncLogWriter:
        if name not in self._writers:
            self._writers[name] = await (await self._namespace.open_log(name)).open_writer()
        return self._writers[name]

    async def _write(self, name: str, txids: Sequence[int], entry_records: int, keep_open: bool) -> None:
        writer = await self._writer(name)
        for first in range(0, len(txids), entry_records):
            part = txids[first : first + entry_records]
            payloads = pa.array([f"{name}:{txid}".encode() for txid in part], type=pa.binary())
            await writer.write_batch(np.array(part, dtype=np.int64), payloads)
        await writer.commit()
        if not keep_open:
            del self._writers[name]
            await writer.close()

    async def _commit(self, name: str, subscriber: str, position: DLSN) -> None:
        async with await self._namespace.open_log(name) as log:
            await log.commit_position(subscriber, position)

    async def _seal(self, name: str) -> None:
        writer = await self._writer(name)
        del self._writers[name]
        await writer.mark_end_of_stream()
        await writer.close()
