"""The synchronous classes: the asynchronous ones of the same names, driven from the background event loop.

`Namespace`, `Log`, `LogWriter` and `LogReader` may be used from any thread, though each object by one at a time. What
each method does and raises is said at its asynchronous twin; here stands only what differs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core import binding as bindings
from dlspark.core.dlsn import DLSN
from dlspark.core.features import FeatureProvider
from dlspark.core.log import AsyncLog
from dlspark.core.metrics import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.segment_writer import WrittenEntry
from dlspark.core.services import LOCAL_REGION_ID
from dlspark.core.settings import Settings, Value
from dlspark.core.status import LogStatus
from dlspark.core.sync_readers import LogReader, LogReading
from dlspark.core.writer import AsyncLogWriter
from metadata.ledgers import Versioned
from metadata.log_watch import LogChange
from metadata.namespaces import Binding, NamespaceUri
from metadata.permissions import Action, Permissions, PermissionStore
from metadata.store import ANY_VERSION

__all__ = ["Log", "LogReader", "LogWriter", "Namespace", "PendingWrite"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _blocking(function: Callable[_P, Coroutine[object, object, _T]]) -> Callable[_P, _T]:
    """`function` on the process's runtime."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return Runtime.shared().run(function(*args, **kwargs))

    return call


class Namespace:
    """A namespace of logs, synchronously. Use it as a context manager, or call `close`."""

    def __init__(self, runtime: Runtime, inner: AsyncNamespace) -> None:
        """Used by `open`."""
        self._runtime = runtime
        self._inner = inner
        self._forget = runtime.on_close(inner.close)

    @classmethod
    def open(
        cls,
        uri: str,
        settings: Settings | Mapping[str, Value] | None = None,
        *,
        features: FeatureProvider | None = None,
        region_id: int = LOCAL_REGION_ID,
        statistics: Statistics | None = None,
        runtime: Runtime | None = None,
    ) -> Namespace:
        """Connect to `distributedlog://host:port/path`. Without a runtime, the process's shared one is used.

        `features` are asked from the runtime's thread; see `AsyncNamespace.open`.
        """
        runtime = runtime or Runtime.shared()
        opening = AsyncNamespace.open(uri, settings, features=features, region_id=region_id, statistics=statistics)
        return cls(runtime, runtime.run(opening))

    bind = staticmethod(_blocking(bindings.bind))
    find_binding = staticmethod(_blocking(bindings.find_binding))
    update_binding = staticmethod(_blocking(bindings.update_binding))
    unbind = staticmethod(_blocking(bindings.unbind))

    @property
    def uri(self) -> NamespaceUri:
        return self._inner.uri

    @property
    def binding(self) -> Binding:
        return self._inner.binding

    @property
    def federated(self) -> bool:
        return self._inner.federated

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    @property
    def access_control(self) -> AccessControl:
        return AccessControl(self._runtime, self._inner.access_control)

    def create_log(self, name: str, metadata: bytes = b"") -> None:
        self._runtime.run(self._inner.create_log(name, metadata))

    def log_exists(self, name: str) -> bool:
        return self._runtime.run(self._inner.log_exists(name))

    def logs(self, prefix: str = "", *, recursive: bool = False) -> list[str]:
        return self._runtime.run(self._inner.logs(prefix, recursive=recursive))

    def watch_logs(self, prefix: str = "", *, existing: bool = False) -> Iterator[LogChange]:
        """Tell of every log that comes or goes: waits for as long as it takes, until the namespace is closed."""
        changes = self._inner.watch_logs(prefix, existing=existing)

        async def next_change() -> LogChange | None:
            return await anext(changes, None)

        try:
            while (change := self._runtime.run(next_change())) is not None:
                yield change
        finally:
            if not self._runtime.closed:
                self._runtime.run(changes.aclose())

    def rename_log(self, old: str, new: str) -> None:
        self._runtime.run(self._inner.rename_log(old, new))

    def open_log(self, name: str, settings: Mapping[str, Value] | None = None) -> Log:
        return Log(self._runtime, self._runtime.run(self._inner.open_log(name, settings)))

    def delete_log(self, name: str) -> None:
        self._runtime.run(self._inner.delete_log(name))

    def delete_allocator_pool(self, name: str, folder: str | None = None) -> int:
        """Delete a pool of ledgers made in advance; see `AsyncNamespace.delete_allocator_pool`."""
        return self._runtime.run(self._inner.delete_allocator_pool(name, folder))

    def reload_settings(self) -> None:
        """Look at the dynamic settings and feature files now; see `AsyncNamespace.reload_settings`."""
        self._runtime.run(self._inner.reload_settings())

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken (recoveries, retries, lost answers)."""
        return self._inner.counters

    def close(self) -> None:
        """Close everything opened in it. Idempotent; nothing happens once the runtime is closed, which did it."""
        if not self._runtime.closed:
            try:
                self._runtime.run(self._inner.close())
            finally:
                self._forget()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AccessControl:
    """What may be done with a namespace's logs: see `metadata.permissions.PermissionStore`, method by method."""

    def __init__(self, runtime: Runtime, inner: PermissionStore) -> None:
        """Used by `Namespace.access_control`."""
        self._runtime = runtime
        self._inner = inner

    def get(self, log: str | None = None) -> Permissions | None:
        return self._runtime.run(self._inner.get(log))

    def of(self, log: str) -> Permissions:
        return self._runtime.run(self._inner.of(log))

    def set(self, permissions: Permissions, log: str | None = None) -> None:
        self._runtime.run(self._inner.set(permissions, log))

    def delete(self, log: str) -> bool:
        return self._runtime.run(self._inner.delete(log))

    def logs(self) -> list[str]:
        return self._runtime.run(self._inner.logs())

    def check(self, log: str, *actions: Action) -> None:
        self._runtime.run(self._inner.check(log, *actions))


class Log(LogReading):
    """One log, synchronously."""

    def __init__(self, runtime: Runtime, inner: AsyncLog) -> None:
        """Used by `Namespace.open_log`."""
        self._runtime = runtime
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def status(self) -> LogStatus:
        return self._runtime.run(self._inner.status())

    def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False, client_id: str | None = None) -> DLSN:
        return self._runtime.run(
            self._inner.truncate(dlsn, respect_subscribers=respect_subscribers, client_id=client_id)
        )

    def purge_older_than(self, txid: int, *, client_id: str | None = None) -> int:
        return self._runtime.run(self._inner.purge_older_than(txid, client_id=client_id))

    def metadata(self) -> Versioned[bytes]:
        return self._runtime.run(self._inner.metadata())

    def set_metadata(self, data: bytes, version: int = ANY_VERSION) -> int:
        return self._runtime.run(self._inner.set_metadata(data, version))

    def delete_metadata(self, version: int = ANY_VERSION) -> None:
        self._runtime.run(self._inner.delete_metadata(version))

    def open_writer(self, client_id: str | None = None) -> LogWriter:
        return LogWriter(self._runtime, self._runtime.run(self._inner.open_writer(client_id)))

    def close(self) -> None:
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PendingWrite(Generic[_T]):
    """A write under way. `result` sends what is buffered, so that it does not wait for a buffer that nobody fills."""

    __slots__ = ("_future", "_writer")

    def __init__(self, writer: LogWriter, future: concurrent.futures.Future[_T]) -> None:
        self._writer = writer
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> _T:
        """What was written, once an ack quorum has it on disk. Raises what the write ended in, or TimeoutError."""
        if not self._future.done():
            self._writer.send()
        return self._future.result(timeout_s)


class LogWriter:
    """A log's writer, synchronously. Leaving its context completes the segment; an exception there aborts it."""

    def __init__(self, runtime: Runtime, inner: AsyncLogWriter) -> None:
        """Used by `Log.open_writer`."""
        self._runtime = runtime
        self._inner = inner

    @property
    def last_txid(self) -> int:
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        return self._inner.last_txid

    def write(self, txid: int, payload: bytes | bytearray | memoryview) -> PendingWrite[DLSN]:
        """Append one record; waits only where storage nodes cannot keep up. Raises a refusal at once."""

        async def write() -> asyncio.Future[DLSN]:
            await self._inner.wait_for_room()
            return self._inner.write(txid, payload)

        return self._pending(write())

    def write_bulk(self, records: Iterable[tuple[int, bytes]]) -> list[PendingWrite[DLSN]]:
        """Append several records, together where they fit. Raises the first refusal; those before it are written."""

        async def write() -> list[concurrent.futures.Future[DLSN]]:
            await self._inner.wait_for_room()
            return [_concurrent(future) for future in self._inner.write_bulk(records)]

        return self._pending_all(write())

    def write_record_set(
        self, txid: int, payloads: Sequence[bytes | bytearray | memoryview], compression: str = "none"
    ) -> list[PendingWrite[DLSN]]:
        """Append payloads as one record set: see `AsyncLogWriter.write_record_set`. Raises a refusal at once."""

        async def write() -> list[concurrent.futures.Future[DLSN]]:
            await self._inner.wait_for_room()
            return [_concurrent(future) for future in self._inner.write_record_set(txid, payloads, compression)]

        return self._pending_all(write())

    def _pending_all(
        self, write: Coroutine[object, object, list[concurrent.futures.Future[DLSN]]]
    ) -> list[PendingWrite[DLSN]]:
        futures = self._runtime.run(write)
        for future in futures:
            _raise_if_failed(future)
        return [PendingWrite(self, future) for future in futures]

    def write_batch(self, txids: npt.NDArray[np.int64], payloads: pa.Array) -> PendingWrite[tuple[WrittenEntry, ...]]:
        """Append records by columns."""

        async def write() -> asyncio.Future[tuple[WrittenEntry, ...]]:
            await self._inner.wait_for_room()
            return self._inner.write_batch(txids, payloads)

        return self._pending(write())

    def _pending(self, write: Coroutine[object, object, asyncio.Future[_T]]) -> PendingWrite[_T]:
        async def begin() -> concurrent.futures.Future[_T]:
            return _concurrent(await write)

        try:
            future = self._runtime.run(begin())
        finally:
            write.close()
        _raise_if_failed(future)
        return PendingWrite(self, future)

    def send(self) -> None:
        """Send what is buffered, without waiting for its acknowledgement."""

        async def send() -> None:
            await self._inner.send()

        self._runtime.run(send())

    def flush(self) -> int:
        """Send what is buffered and wait until all of it is acknowledged; returns the highest id that is."""
        return self._runtime.run(self._inner.flush())

    def commit(self) -> int:
        """`flush`, and make everything acknowledged visible to readers."""
        return self._runtime.run(self._inner.commit())

    def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False) -> DLSN:
        return self._runtime.run(self._inner.truncate(dlsn, respect_subscribers=respect_subscribers))

    def mark_end_of_stream(self) -> DLSN:
        return self._runtime.run(self._inner.mark_end_of_stream())

    def close(self) -> None:
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    def abort(self) -> None:
        self._runtime.run(self._inner.abort())

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _concurrent(future: asyncio.Future[_T]) -> concurrent.futures.Future[_T]:
    """`future` for another thread."""
    twin: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def settle(done: asyncio.Future[_T]) -> None:
        error = done.exception()
        if error is not None:
            twin.set_exception(error)
        else:
            twin.set_result(done.result())

    if future.done():
        settle(future)
    else:
        future.add_done_callback(settle)
    return twin


def _raise_if_failed(future: concurrent.futures.Future[_T]) -> None:
    if future.done():
        error = future.exception()
        if error is not None:
            raise error
