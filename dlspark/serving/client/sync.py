"""The thin client's synchronous classes: the asynchronous ones of the same names, driven from the background loop.

They may be used from any thread; a reader by one thread at a time. By hand is what differs from the asynchronous
classes; the rest is made from them (`dlspark.core.sync.generation`).

Fork: a client belongs to the process that made it. In a child every call raises CallerError, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.runtime import Runtime
from dlspark.errors import AlreadyClosedError, EndOfStreamError
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.dispatch import ClientCounters
from dlspark.serving.client.monitor import INTERVAL_MS, AsyncStreamMonitor, StreamHealth
from dlspark.serving.client.multi_stream import AsyncMultiStreamWriter, MultiStreamLimits, StreamPosition
from dlspark.serving.client.producing import AsyncProducer, payload_bytes
from dlspark.serving.client.reading import AsyncProxyReader, ProxyStart
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.protocol.deliveries import StoredEntry, position_behind
from dlspark.serving.protocol.operations import ProxyInfo, ReadForm
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.opened_here import OpenedHere
from metadata.foundation.settings import Value

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
HANDED_BYTES: Final = 1 << 20
"""Bytes of records on their way to the background loop; `send` waits where there are more."""
LENT: Final = 1_000
"""Records that a reader takes over from the background loop at once."""


class Client(OpenedHere):
    """Writes and reads logs through proxies, from any thread, without ZooKeeper or storage nodes in reach.

    Make it with `connect`; use it as a context manager, or call `close`. It blocks where `AsyncClient` awaits, and
    raises what that raises.
    """

    def __init__(self, runtime: Runtime, inner: AsyncClient) -> None:
        """For `connect`."""
        self._runtime = runtime
        self._inner = inner
        self._producers: dict[AsyncProducer, Producer] = {}
        self._lock = threading.Lock()
        self._forget = runtime.on_close(inner.close)

    @classmethod
    def connect(
        cls,
        where: str | Sequence[str] | None = None,
        settings: ThinClientSettings | Mapping[str, Value] | None = None,
        *,
        read_from: str | Sequence[str] | None = None,
        runtime: Runtime | None = None,
    ) -> Client:
        """Return a client of the proxies at `where`: see `AsyncClient.connect`. Without a runtime, the process's shared
        one is used."""
        runtime = runtime or Runtime.shared()
        return cls(runtime, runtime.run(AsyncClient.connect(where, settings, read_from=read_from)))

    def producer(self, stream: str, name: str | None = None) -> Producer:
        """Return the producer of this name on the stream: see `AsyncClient.producer`."""

        async def make() -> AsyncProducer:
            return self._inner.producer(stream, name)

        inner = self._runtime.run(make())
        with self._lock:
            found = self._producers.get(inner)
            if found is None:
                self._producers = {one: twin for one, twin in self._producers.items() if not one.closed}
                found = self._producers[inner] = Producer(self._runtime, inner)
            return found

    def reader(
        self,
        stream: str,
        start: ProxyStart = "earliest",
        *,
        form: str | ReadForm = ReadForm.RECORDS,
        max_bytes: int | None = None,
        poll_ms: int | None = None,
    ) -> ProxyReader:
        """Return a reader of the stream from `start`: see `AsyncClient.reader`."""

        async def make() -> AsyncProxyReader:
            return self._inner.reader(stream, start, form=form, max_bytes=max_bytes, poll_ms=poll_ms)

        return ProxyReader(self._runtime, self._runtime.run(make()))

    def multi_stream_writer(self, streams: Sequence[str], limits: MultiStreamLimits | None = None) -> MultiStreamWriter:
        """Return a writer whose records go to whichever of the streams takes them soonest, in record sets."""

        async def make() -> AsyncMultiStreamWriter:
            return self._inner.multi_stream_writer(streams, limits)

        return MultiStreamWriter(self._runtime, self._runtime.run(make()))

    def monitor(
        self,
        streams: Iterable[str],
        *,
        instance: int = 0,
        instances: int = 1,
        interval_ms: int = INTERVAL_MS,
        to_readers: bool = False,
    ) -> StreamMonitor:
        """Return a monitor that sends a heartbeat to each stream every `interval_ms`: see `AsyncStreamMonitor`."""

        async def make() -> AsyncStreamMonitor:
            return self._inner.monitor(
                streams, instance=instance, instances=instances, interval_ms=interval_ms, to_readers=to_readers
            )

        return StreamMonitor(self._runtime, self._runtime.run(make()))

    def close(self) -> None:
        """Write what was sent, each record's future getting its outcome; then end everything. Idempotent."""
        if not self._runtime.closed:
            try:
                for producer in list(self._producers.values()):
                    producer._hand_over()
                self._runtime.run(self._inner.close())
            finally:
                self._forget()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.serving.client.client.AsyncClient; left out: open, ask

    def write(self, stream: str, payload: bytes | bytearray | memoryview) -> DLSN:
        """Write one record, and return its DLSN once it is stored. Waits first where too many records wait for their
        outcome. Records of one stream are written in the order of the calls. Raises as `Producer.send`."""
        return self._runtime.run(self._inner.write(stream, payload))

    def write_bulk(self, stream: str, payloads: Iterable[bytes | bytearray | memoryview]) -> list[DLSN]:
        """Write records in order, in as few requests as they fit in, and return their DLSNs. Raises the first failure;
        records before and behind it may be stored."""
        return self._runtime.run(self._inner.write_bulk(stream, payloads))

    def append(
        self,
        stream: str,
        payloads: Sequence[bytes | bytearray | memoryview],
        *,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> DLSN:
        """Write records whole or not at all, on conditions: see `Producer.append`."""
        return self._runtime.run(
            self._inner.append(stream, payloads, expected_position=expected_position, fencing_token=fencing_token)
        )

    def create(self, stream: str) -> None:
        """Create the log. Raises LogExistsError where it is there."""
        self._runtime.run(self._inner.create(stream))

    def delete(self, stream: str) -> None:
        """Delete the log and all that is in it. Raises LogNotFoundError."""
        self._runtime.run(self._inner.delete(stream))

    def truncate(self, stream: str, dlsn: DLSN | str) -> DLSN:
        """Hide every record below `dlsn`; return the position that the log was truncated to."""
        return self._runtime.run(self._inner.truncate(stream, dlsn))

    def release(self, stream: str) -> None:
        """Have the proxy that owns the stream give it up; the next write makes a proxy own it."""
        self._runtime.run(self._inner.release(stream))

    def move(self, stream: str, target: str) -> None:
        """Have the proxy that owns the stream hand it over to the one at `target` (`host:port`)."""
        self._runtime.run(self._inner.move(stream, target))

    def owner(self, stream: str) -> str:
        """Return the address of the proxy that owns the stream, or would own it."""
        return self._runtime.run(self._inner.owner(stream))

    def heartbeat(self, stream: str, *, to_readers: bool = False) -> None:
        """Make a proxy own the stream. `to_readers`: it also writes a control record, so that readers see that it
        lives."""
        self._runtime.run(self._inner.heartbeat(stream, to_readers=to_readers))

    def begin_epoch(self, stream: str, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, or the one that is named, and return it: requests of older ones are refused
        from now on, whichever client sends them."""
        return self._runtime.run(self._inner.begin_epoch(stream, producer, epoch))

    def set_fencing_token(self, stream: str, token: bytes, *, expected: bytes | None = None) -> None:
        """Have every write that names another fencing token refused from now on.

        Args:
            stream: the log.
            token: empty bytes: none.
            expected: the token that the log must have now; None: any.

        Raises ConditionError where it has another.
        """
        self._runtime.run(self._inner.set_fencing_token(stream, token, expected=expected))

    @property
    def counters(self) -> ClientCounters:
        """What the client has done so far."""
        return self._inner.counters

    @property
    def proxies(self) -> tuple[str, ...]:
        """The addresses of all write proxies that are known, the local region's first."""
        return self._inner.proxies

    def handshake(self, proxy: str, *, stream_regex: str | None = None) -> ProxyInfo:
        """Ask the proxy at `host:port` what it is, and which streams it owns. Raises ProxyUnreachableError."""
        return self._runtime.run(self._inner.handshake(proxy, stream_regex=stream_regex))

    def accept_streams(self, proxy: str, *, enabled: bool) -> None:
        """Have the proxy at `host:port` take streams that it does not own yet, or not."""
        self._runtime.run(self._inner.accept_streams(proxy, enabled=enabled))

    # --- made up to here


class Producer(OpenedHere):
    """Writes records to one stream, in order, each once: `AsyncProducer` for threads. Made by `Client.producer`."""

    def __init__(self, runtime: Runtime, inner: AsyncProducer) -> None:
        """For `Client.producer`."""
        self._runtime = runtime
        self._inner = inner
        self._lock = threading.Lock()
        self._handed: deque[tuple[bytes, int | None, concurrent.futures.Future[DLSN]]] = deque()
        self._handed_bytes = 0
        self._handing: concurrent.futures.Future[None] | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._inner.stream

    @property
    def name(self) -> str | None:
        """The producer's name; None where requests have no producer."""
        return self._inner.name

    def send(
        self, payload: bytes | bytearray | memoryview, *, transaction_id: int | None = None
    ) -> concurrent.futures.Future[DLSN]:
        """Write one record; the future gets its DLSN. Waits where too many records wait for their outcome.

        Raises AlreadyClosedError, InvalidRecordError or RecordTooLongError. Records of several threads are written in
        the order of the calls, those of one thread among each other at least.
        """
        self._runtime.check_usable()
        if self._inner.closed:
            raise AlreadyClosedError("the producer is closed", log=self.stream)
        data = payload_bytes(payload)
        future: concurrent.futures.Future[DLSN] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # a record that was sent is not taken back
        with self._lock:
            self._handed.append((data, transaction_id, future))
            self._handed_bytes += len(data)
            if self._handing is None:
                self._handing = self._runtime.submit(self._hand())
            handing = self._handing if self._handed_bytes > HANDED_BYTES else None
        if handing is not None:
            handing.result()
        return future

    def _hand_over(self) -> None:
        """Wait until what was given to `send` is with the background loop."""
        with self._lock:
            handing = self._handing
        if handing is not None:
            handing.result()

    async def _hand(self) -> None:
        """Give what was sent to the producer, in order, as it has room (in the loop)."""
        inner = self._inner
        while True:
            with self._lock:
                if not self._handed:
                    self._handing = None
                    return
                data, transaction_id, future = self._handed.popleft()
                self._handed_bytes -= len(data)
            try:
                await inner.wait_for_room()
                _follow(inner.send(data, transaction_id=transaction_id), future)
            except DistributedLogError as error:
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(AlreadyClosedError("the background event loop has ended", log=self.stream))
                self._drop()
                raise error

    def _drop(self) -> None:
        """Note that the loop has ended: what was not handed over is not written."""
        with self._lock:
            handed, self._handed = self._handed, deque()
            self._handed_bytes = 0
            self._handing = None
        for _, _, future in handed:
            future.set_exception(AlreadyClosedError("the background event loop has ended", log=self.stream))

    def flush(self) -> None:
        """Send what waits, and wait until all that was sent has an outcome. Raises the first failure among it."""
        self._hand_over()
        self._runtime.run(self._inner.flush())

    def append(
        self,
        payloads: Sequence[bytes | bytearray | memoryview],
        *,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> DLSN:
        """Write records whole or not at all, behind those that were sent before: see `AsyncProducer.append`."""
        self._hand_over()
        appending = self._inner.append(payloads, expected_position=expected_position, fencing_token=fencing_token)
        return self._runtime.run(appending)

    def write(self, payload: bytes | bytearray | memoryview, *, transaction_id: int | None = None) -> DLSN:
        """Write one record, behind those that were sent before, and wait for it. Raises as `send`, and what the proxies
        say; an OutcomeUnknownError means that the record may be in the log."""
        self._hand_over()
        return self._runtime.run(self._inner.write(payload, transaction_id=transaction_id))

    def close(self) -> None:
        """Send what waits, and wait until all of it has an outcome. Idempotent."""
        if not self._runtime.closed:
            self._hand_over()
            self._runtime.run(self._inner.close())

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.serving.client.producing.AsyncProducer; left out: abandon, wait_for_room

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._inner.closed

    @property
    def fenced(self) -> bool:
        """Whether the producer has ended because another process has begun a newer epoch of it."""
        return self._inner.fenced

    @property
    def pending(self) -> int:
        """Records and whole requests without an outcome."""
        return self._inner.pending

    # --- made up to here


class ProxyReader(OpenedHere):
    """Reads one log through proxies, waiting at the tail: `AsyncProxyReader` for one thread at a time.

    Made by `Client.reader`.
    """

    def __init__(self, runtime: Runtime, inner: AsyncProxyReader) -> None:
        """For `Client.reader`."""
        self._runtime = runtime
        self._inner = inner
        self._lent: deque[LogRecord] = deque()
        self._position: ProxyStart | None = None

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

    @property
    def position(self) -> ProxyStart:
        """Where another reader has to start to go on behind the last record delivered: see `AsyncProxyReader`."""
        return self._position if self._position is not None else self._inner.position

    def read_next(self) -> LogRecord:
        """Return the next record; waits at the tail for as long as it takes. Raises as `AsyncProxyReader.read_next`."""
        while True:
            found = self.read_bulk(1)
            if found:
                return found[0]

    def read_bulk(self, count: int, *, timeout_s: float | None = None) -> list[LogRecord]:
        """Return up to `count` records: waits for the first, and takes as many as have come with it; an empty list
        where none has come in `timeout_s` seconds."""
        if not self._lent and count > 0:
            self._borrow(timeout_s)
        found = [self._lent.popleft() for _ in range(min(count, len(self._lent)))]
        if found:
            self._position = position_behind(found[-1])
        return found

    def _borrow(self, timeout_s: float | None) -> None:
        self._position = self.position

        async def borrow() -> list[LogRecord]:
            try:
                return await asyncio.wait_for(self._inner.read_bulk(LENT), timeout_s)
            except asyncio.TimeoutError:
                return []

        self._lent.extend(self._runtime.run(borrow()))
        if not self._lent:
            self._position = None

    def __iter__(self) -> Iterator[LogRecord]:
        """Yield records for ever, waiting at the tail, until the log is sealed. The other methods, and another loop, go
        on behind the last record that a loop has delivered."""
        while True:
            try:
                record = self.read_next()
            except EndOfStreamError:
                return
            yield record

    def skip_to(self, start: ProxyStart) -> None:
        """Go on at another position, forwards or back. What was read ahead is dropped. Raises CallerError."""
        self._runtime.run(self._inner.skip_to(start))
        self._lent.clear()
        self._position = None

    def __enter__(self) -> ProxyReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.serving.client.reading.AsyncProxyReader; left out: records

    @property
    def form(self) -> ReadForm:
        """What deliveries hold."""
        return self._inner.form

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._inner.closed

    def next_entries(self) -> list[StoredEntry]:
        """Return the next entries as they are stored, those without records of a user too; waits at the tail. In the
        form ENTRIES only. Raises as `read_next`."""
        return self._runtime.run(self._inner.next_entries())

    def poll_entries(self) -> list[StoredEntry]:
        """Return what one poll brings: as `next_entries`, but perhaps nothing."""
        return self._runtime.run(self._inner.poll_entries())

    def next_batches(self) -> list[pa.RecordBatch]:
        """Return the next records as Arrow batches; waits at the tail. In the form ARROW only. Raises as
        `read_next`."""
        return self._runtime.run(self._inner.next_batches())

    def close(self) -> None:
        """Ask no further; a read that waits gets ReadCancelledError. Idempotent."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    # --- made up to here


class MultiStreamWriter(OpenedHere):
    """Writes each record to whichever of several streams takes it soonest: `AsyncMultiStreamWriter` for threads.

    Made by `Client.multi_stream_writer`.
    """

    def __init__(self, runtime: Runtime, inner: AsyncMultiStreamWriter) -> None:
        """For `Client.multi_stream_writer`."""
        self._runtime = runtime
        self._inner = inner

    def write(self, payload: bytes | bytearray | memoryview) -> concurrent.futures.Future[StreamPosition]:
        """Write one record; the future gets where it is. Raises as `AsyncMultiStreamWriter.write`."""

        async def begin() -> concurrent.futures.Future[StreamPosition]:
            future: concurrent.futures.Future[StreamPosition] = concurrent.futures.Future()
            future.set_running_or_notify_cancel()
            _follow(self._inner.write(payload), future)
            return future

        return self._runtime.run(begin())

    def __enter__(self) -> MultiStreamWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.serving.client.multi_stream.AsyncMultiStreamWriter; left out: set_ended

    def flush(self) -> None:
        """Send what is collected, and wait until everything has an outcome."""
        self._runtime.run(self._inner.flush())

    def close(self) -> None:
        """`flush`, then take no more. Idempotent. Cancelled, it gives up what is under way."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    @property
    def pending_bytes(self) -> int:
        """Bytes of payloads without an outcome."""
        return self._inner.pending_bytes

    # --- made up to here


class StreamMonitor(OpenedHere):
    """Shows whether streams can be written: `AsyncStreamMonitor` for threads. Made by `Client.monitor`."""

    def __init__(self, runtime: Runtime, inner: AsyncStreamMonitor) -> None:
        """For `Client.monitor`."""
        self._runtime = runtime
        self._inner = inner

    def watch(self, streams: Iterable[str]) -> None:
        """Note that these are the streams from now on; those of other instances are passed over."""

        async def watch() -> None:
            self._inner.watch(streams)

        self._runtime.run(watch())

    def __enter__(self) -> StreamMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.serving.client.monitor.AsyncStreamMonitor

    @property
    def health(self) -> dict[str, StreamHealth]:
        """Of each stream of this instance, by name."""
        return self._inner.health

    def close(self) -> None:
        """Ask no more. Idempotent."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    # --- made up to here


def _follow(source: asyncio.Future[_T], twin: concurrent.futures.Future[_T]) -> None:
    """Give `twin` the outcome of `source`."""

    def settle(done: asyncio.Future[_T]) -> None:
        if done.cancelled():
            twin.set_exception(AlreadyClosedError("the client was closed"))
        elif (error := done.exception()) is not None:
            twin.set_exception(error)
        else:
            twin.set_result(done.result())

    source.add_done_callback(settle)
