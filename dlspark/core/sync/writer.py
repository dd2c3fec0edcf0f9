"""The synchronous writer: `LogWriter`, and `PendingWrite` for what it was given and has not stored yet.

By hand is what differs from the asynchronous classes; the rest is made from them (`generation`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import ProducerState
from dlspark.core.runtime import Runtime
from dlspark.core.writing.acknowledgements import Appended, WrittenEntry
from dlspark.core.writing.write_kinds import CheckedSet
from dlspark.core.writing.writer import AsyncLogWriter
from metadata.foundation.opened_here import OpenedHere

_T = TypeVar("_T")


class PendingWrite(OpenedHere, Generic[_T]):
    """Says what becomes of a write that is under way.

    `result` waits for it. It sends what is buffered first, and would wait for a full buffer otherwise.
    """

    __slots__ = ("_future", "_writer")

    def __init__(self, writer: LogWriter, future: concurrent.futures.Future[_T]) -> None:
        self._writer = writer
        self._future = future

    def done(self) -> bool:
        """Return whether the outcome of the write is known."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> _T:
        """Return what was written, once an ack quorum has it on disk. Raises the write's error, or TimeoutError, after
        which the write goes on."""
        if not self._future.done():
            self._writer.send()
        return self._future.result(timeout_s)


class LogWriter(OpenedHere):
    """Appends records to one log, as its only writer.

    `Log.open_writer` returns it. As a context manager it completes its segment at the end, and leaves that for the next
    owner after an exception. It is `AsyncLogWriter` for programs without an event loop.
    """

    def __init__(self, runtime: Runtime, inner: AsyncLogWriter) -> None:
        """Use `Log.open_writer` instead."""
        self._runtime = runtime
        self._inner = inner

    @property
    def last_txid(self) -> int:
        """Highest transaction id accepted so far, or of the log when it was opened; -1 for an empty log."""
        return self._inner.last_txid

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

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
            return _taken(self._inner.write_bulk(records))

        return self._pending_all(write())

    def write_record_set(
        self, txid: int, payloads: Sequence[bytes | bytearray | memoryview], compression: str = "none"
    ) -> list[PendingWrite[DLSN]]:
        """Append payloads as one record set: see `AsyncLogWriter.write_record_set`. Raises a refusal at once."""

        async def write() -> list[concurrent.futures.Future[DLSN]]:
            await self._inner.wait_for_room()
            return _taken(self._inner.write_record_set(txid, payloads, compression))

        return self._pending_all(write())

    def _pending_all(
        self, write: Coroutine[object, object, list[concurrent.futures.Future[DLSN]]]
    ) -> list[PendingWrite[DLSN]]:
        return [PendingWrite(self, future) for future in self._runtime.run(write)]

    def write_encoded_set(
        self, txid: int | None, encoded: bytes | bytearray | memoryview | CheckedSet
    ) -> PendingWrite[DLSN]:
        """Append a record set that was encoded elsewhere: see `AsyncLogWriter.write_encoded_set`. Raises a refusal at
        once."""

        async def write() -> asyncio.Future[DLSN]:
            await self._inner.wait_for_room()
            return self._inner.write_encoded_set(txid, encoded)

        return self._pending(write())

    def heartbeat(self) -> PendingWrite[Appended]:
        """Write the control record `heartbeat`: see `AsyncLogWriter.heartbeat`. Raises a refusal at once."""

        async def write() -> asyncio.Future[Appended]:
            return self._inner.heartbeat()

        return self._pending(write())

    def write_batch(self, txids: npt.NDArray[np.int64], payloads: pa.Array) -> PendingWrite[tuple[WrittenEntry, ...]]:
        """Append records by columns."""

        async def write() -> asyncio.Future[tuple[WrittenEntry, ...]]:
            await self._inner.wait_for_room()
            return self._inner.write_batch(txids, payloads)

        return self._pending(write())

    def append(
        self,
        records: Sequence[tuple[int, bytes]],
        *,
        producer: str | None = None,
        epoch: int = 0,
        sequence: int = 0,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> PendingWrite[Appended]:
        """Append records as one request: see `AsyncLogWriter.append`. Raises a refusal at once."""

        async def write() -> asyncio.Future[Appended]:
            await self._inner.wait_for_room()
            return self._inner.append(
                records,
                producer=producer,
                epoch=epoch,
                sequence=sequence,
                expected_position=expected_position,
                fencing_token=fencing_token,
            )

        return self._pending(write())

    def _pending(self, write: Coroutine[object, object, asyncio.Future[_T]]) -> PendingWrite[_T]:
        async def begin() -> concurrent.futures.Future[_T]:
            [taken] = _taken([await write])
            return taken

        try:
            return PendingWrite(self, self._runtime.run(begin()))
        finally:
            write.close()

    def send(self) -> None:
        """Send what is buffered, without waiting for its acknowledgement."""

        async def send() -> None:
            await self._inner.send()

        self._runtime.run(send())

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # --- made from dlspark.core.writing.writer.AsyncLogWriter; left out: use_settings, wait_for_room, push

    def write_table(
        self, table: pa.Table | pa.RecordBatch, txids: Sequence[int] | npt.NDArray[np.int64] | None = None
    ) -> tuple[WrittenEntry, ...]:
        """Append the rows of a table as the log's schema says, and return the entries once all are stored.

        Transaction ids are the times of the schema's column, or of now, raised to the highest so far; or `txids`, one a
        row, as they are. Raises RowRefusedError, NoSchemaError: nothing was written; and the errors of `write_batch`.
        """
        return self._runtime.run(self._inner.write_table(table, txids))

    def begin_epoch(self, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, and return it: requests of older ones are refused from now on, whoever owns
        the log. Its requests are numbered from 0, unless `epoch` names one that has begun before.

        Without `epoch` it is one that no other call has begun. Raises ProducerFencedError where `epoch` has ended.
        """
        return self._runtime.run(self._inner.begin_epoch(producer, epoch))

    def producer_state(self, producer: str) -> ProducerState | None:
        """Return what is known of a producer, what is under way as well; None where it has not written, or was
        forgotten: in an epoch up to `forgotten_epoch`.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._inner.producer_state(producer)

    @property
    def forgotten_epoch(self) -> int:
        """The highest epoch in which a producer may have written that is not known any more; -1 where none has.

        Raises CallerError for a writer that was opened without producers.
        """
        return self._inner.forgotten_epoch

    def set_fencing_token(self, token: bytes, expected: bytes | None = None) -> None:
        """Have every append that names another fencing token refused from now on; empty bytes: none.

        `expected` is the one that the log must have now. Raises ConditionError with the one that it has.
        """
        self._runtime.run(self._inner.set_fencing_token(token, expected))

    def flush(self) -> int:
        """Send everything accepted and wait until it is acknowledged.

        Returns the highest id acknowledged, -1 for none, MAX_TXID in a sealed log. Raises the error of failed records.
        """
        return self._runtime.run(self._inner.flush())

    def commit(self) -> int:
        """Flush, and make every acknowledged record visible to readers."""
        return self._runtime.run(self._inner.commit())

    def mark_end_of_stream(self) -> DLSN:
        """Seal the log: nothing can ever follow. Completes the segment; the writer can then only be closed.

        Raises EndOfStreamError if it is sealed already. After an OutcomeUnknownError, open the writer again: its
        recovery decides, and `Log.is_sealed` then says which.
        """
        return self._runtime.run(self._inner.mark_end_of_stream())

    def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False) -> DLSN:
        """Hide every record below `dlsn`; see `Log.truncate`."""
        return self._runtime.run(self._inner.truncate(dlsn, respect_subscribers=respect_subscribers))

    def close(self) -> None:
        """Flush, complete the segment, release the lock. Raises the writer's failure after the lock is released."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    def abort(self) -> None:
        """Drop what is buffered and release the lock; the segment stays in progress for the next owner to recover."""
        self._runtime.run(self._inner.abort())

    @property
    def closed(self) -> bool:
        """True if `close` or `abort` was called and has ended."""
        return self._inner.closed

    @property
    def unacknowledged(self) -> int:
        """Records accepted and not yet acknowledged; those of a failed segment never will be, and do not count."""
        return self._inner.unacknowledged

    @property
    def over_limit(self) -> int:
        """Records over an outstanding-write limit: refused, or only counted in dark mode."""
        return self._inner.over_limit

    @property
    def segment(self) -> int | None:
        """Sequence number of the segment being written, None between segments."""
        return self._inner.segment

    # --- made up to here


def _concurrent(future: asyncio.Future[_T]) -> concurrent.futures.Future[_T]:
    """Return `future` for another thread."""
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


def _taken(futures: Sequence[asyncio.Future[_T]]) -> list[concurrent.futures.Future[_T]]:
    """Return the futures of what was just written, for another thread. Raises the first refusal.

    Here, on the loop, before it goes on: what has failed by now was refused. To look later would raise the failure of a
    write that was taken as if it had been refused.
    """
    taken = [_concurrent(future) for future in futures]
    for future in taken:
        if future.done() and (error := future.exception()) is not None:
            raise error
    return taken
