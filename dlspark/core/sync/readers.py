"""The synchronous readers: `LogReader`, `LockedReader`, and streams of bytes as Python files.

By hand is what differs from the asynchronous classes; the rest is made from them (`generation`).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from dlspark.core.append_stream import AsyncAppendReader, AsyncAppendStream
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord, Records
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.reader import BATCH_BYTES, AsyncLogReader, Start
from dlspark.core.reading.reader_checks import Gap
from dlspark.core.runtime import Runtime, iterated
from dlspark.errors import EndOfStreamError
from metadata.foundation.opened_here import OpenedHere

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Self = TypeVar("_Self", bound="LogReader")


class LogReader(OpenedHere):
    """Reads the records of one log in order, each once.

    `Log.open_reader` returns it. Where nothing more is there, for now, `read_next` returns None and `read_bulk` an
    empty list; iterating waits. It is `AsyncLogReader` for programs without an event loop.
    """

    def __init__(self, runtime: Runtime, inner: AsyncLogReader) -> None:
        """Use `Log.open_reader` instead."""
        self._runtime = runtime
        self._inner = inner

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

    def read_next(self, *, non_blocking: bool = False) -> LogRecord | None:
        """Return the next record, None if there is none for now.

        Blocking waits for everything that is confirmed, and at the tail for `readAheadWaitTime`; not blocking takes
        what has been read ahead. Raises EndOfStreamError after the last record of a sealed log.
        """
        records = self.read_bulk(1, non_blocking=non_blocking)
        return records[0] if records else None

    def read_bulk(self, count: int, *, non_blocking: bool = False) -> Records:
        """Return up to `count` records: fewer when there are no more for now. A list that notebooks show as a table."""
        return Records(self._runtime.run(self._inner.read_available(count, wait=not non_blocking)))

    def next_batch(self, max_bytes: int = BATCH_BYTES) -> pa.RecordBatch:
        """Return the next records as columns; waits at the tail for as long as it takes."""
        return self._runtime.run(self._inner.next_batch(max_bytes))

    def batches(self, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield batches for ever, waiting at the tail, until the log is sealed."""
        while True:
            try:
                yield self.next_batch(max_bytes)
            except EndOfStreamError:
                return

    def __iter__(self) -> Iterator[LogRecord]:
        """Return records for ever, waiting at the tail, until the log is sealed.

        Records that were fetched come over from the background thread together. The other methods, and another loop,
        go on behind the last record that a loop has delivered.
        """
        return chain.from_iterable(self._lent())

    def _lent(self) -> Iterator[Iterator[LogRecord]]:
        while True:
            try:
                loan = self._runtime.run(self._inner.lend())
            except EndOfStreamError:
                return
            yield loan.rest

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.core.reading.reader.AsyncLogReader; left out: use_settings, lend, read_available

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._inner.closed

    @property
    def position(self) -> DLSN:
        """Where another reader has to start to go on behind the last record delivered."""
        return self._inner.position

    @property
    def gaps(self) -> list[Gap]:
        """Damaged entries that were passed over so far, oldest first; with `readAheadSkipBrokenEntries` only."""
        return self._inner.gaps

    @property
    def caught_up(self) -> bool:
        """True if everything that was confirmed when the log was last read has been delivered."""
        return self._inner.caught_up

    @property
    def lag_s(self) -> float | None:
        """Seconds by which this reader may be behind a writer in the farthest region of the copies, when it waits at
        the tail (`LedgerReader.lag_s`); None: no distance is known, as without a region of its own (`region`)."""
        return self._inner.lag_s

    def batch_available(self, *, wait: bool = True) -> pa.RecordBatch | None:
        """Return the next records as columns, of one segment; None, with `wait`, means that the log has no more now.

        It waits, and raises, as `read_available` does.
        """
        return self._runtime.run(self._inner.batch_available(wait=wait))

    def skip_to(self, start: Start) -> DLSN:
        """Go on at another position, forwards or back; returns it. What was read ahead and still fits is kept.

        Raises what finding the position raises; a reader that has failed stays failed.
        """
        return self._runtime.run(self._inner.skip_to(start))

    def next_table(self, max_bytes: int = BATCH_BYTES) -> pa.Table:
        """Return the next rows by the log's schema: its columns, `_log` and `_error`; waits at the tail.

        The columns stay those of the version that is current at the first call. Raises NoSchemaError;
        SchemaChangedError where newer records are no rows of it (`position` is before them); in a strict log
        RecordMisfitError; and the reader's final errors.
        """
        return self._runtime.run(self._inner.next_table(max_bytes))

    def tables(self, max_bytes: int = BATCH_BYTES) -> Iterator[pa.Table]:
        """Yield tables of `next_table`, for ever or until the end of the stream."""
        yield from iterated(self._runtime, self._inner.tables(max_bytes))

    def close(self) -> None:
        """End the read-ahead; reads that wait get ReadCancelledError. Idempotent."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    # --- made up to here


class LockedReader(LogReader):
    """Reads the records of one log as its only reader, or as the only one of a subscriber whose position it stores.

    `Log.open_reader` returns it, given a subscriber or `exclusive`. It is `AsyncLockedReader` for programs without an
    event loop.
    """

    _inner: AsyncLockedReader

    def __init__(self, runtime: Runtime, inner: AsyncLockedReader) -> None:
        """Use `Log.open_reader` instead."""
        super().__init__(runtime, inner)

    @property
    def subscriber(self) -> str | None:
        """For whom it reads; None for the log's own lock, which has no position."""
        return self._inner.subscriber

    # --- made from dlspark.core.reading.locked_reader.AsyncLockedReader

    def commit_position(self, dlsn: DLSN | None = None) -> DLSN:
        """Store where the subscriber's next reader begins: `dlsn`, or behind the last record delivered.

        Returns what is stored now, which is further on where more was committed before. Raises LockingError where the
        lock was lost: nothing was stored. After an OutcomeUnknownError it may be called again. Raises CallerError
        without a subscriber.
        """
        return self._runtime.run(self._inner.commit_position(dlsn))

    def waiting(self) -> list[str]:
        """Return the names of the clients that wait for this reader's lock, the next one first (`client_id`).

        Readers that share several logs see by it who is there, and give up what is another one's part by closing.
        Raises LockingError where the lock was lost.
        """
        return self._runtime.run(self._inner.waiting())

    def close(self) -> None:
        """End the read-ahead and give the lock up. The position is stored by `commit_position` only. Idempotent."""
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    # --- made up to here


class AppendStream(OpenedHere, io.RawIOBase):
    """Appends bytes to a log, as a file that is opened for appending.

    `Log.open_append_stream` returns it. `flush` makes what was written durable, and visible to readers.
    """

    def __init__(self, runtime: Runtime, inner: AsyncAppendStream) -> None:
        """Use `Log.open_append_stream` instead."""
        self._runtime = runtime
        self._inner = inner

    @property
    def durable_position(self) -> int:
        """How much of the stream was on an ack quorum's disks at the last `flush`, bytes."""
        return self._inner.durable_position

    def writable(self) -> bool:
        """Return True: it is opened for appending."""
        return True

    def tell(self) -> int:
        """Return the stream's length with everything written."""
        return self._inner.position

    def write(self, data: Buffer, /) -> int:
        """Append bytes; all of them are taken."""
        self._checkClosed()
        view = memoryview(data).cast("B")
        self._runtime.run(self._inner.append(view))
        return len(view)

    def flush(self) -> None:
        """Make everything written durable and visible to readers. Raises what an append failed with."""
        if not self.closed:
            self._runtime.run(self._inner.force())

    def mark_end_of_stream(self) -> None:
        """Seal the stream: nothing can be appended any more, readers end."""
        self._checkClosed()
        self._runtime.run(self._inner.mark_end_of_stream())

    def close(self) -> None:
        """Make everything durable and complete the segment. Idempotent."""
        if self.closed:
            return
        try:
            if not self._runtime.closed:
                self._runtime.run(self._inner.close())
        finally:
            self._end()

    def abort(self) -> None:
        """Close without waiting for what was written since the last `flush`."""
        if not self.closed:
            try:
                self._runtime.run(self._inner.abort())
            finally:
                self._end()

    def _end(self) -> None:
        flush, self.flush = self.flush, lambda: None  # type: ignore[method-assign]
        try:
            super().close()  # It would flush, which has been done or is not wanted.
        finally:
            self.flush = flush  # type: ignore[method-assign]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class AppendReader(OpenedHere, io.RawIOBase):
    """Reads a log's bytes, as a file that is opened for reading.

    `Log.open_append_reader` returns it. At the end of what is committed it reads nothing; read again for more.
    """

    def __init__(self, runtime: Runtime, inner: AsyncAppendReader) -> None:
        """Use `Log.open_append_reader` instead."""
        self._runtime = runtime
        self._inner = inner

    def readable(self) -> bool:
        """Return True: it is opened for reading."""
        return True

    def seekable(self) -> bool:
        """Return True: every byte is found by its number."""
        return True

    def tell(self) -> int:
        """Return the next byte to read, counted from the stream's start."""
        return self._inner.position

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` with committed bytes; returns how many came, 0 at the end for now.

        Raises AlreadyTruncatedError where the next byte was truncated, CorruptDataError where the log holds other
        records than a stream's.
        """
        self._checkClosed()
        view = memoryview(buffer).cast("B")
        data = self._runtime.run(self._inner.read(len(view)))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return all bytes that are committed, from here on. Raises as `readinto`."""
        self._checkClosed()
        return self._runtime.run(self._inner.read())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go on at another byte, from the start, from here, or from the end of what is committed now; returns it.

        Raises CallerError before the start, and LogEmptyError from the end of a sealed stream that was truncated whole.
        """
        self._checkClosed()
        if whence == io.SEEK_END:
            base = self._runtime.run(self._inner.length())
        elif whence == io.SEEK_CUR:
            base = self._inner.position
        elif whence == io.SEEK_SET:
            base = 0
        else:
            raise io.UnsupportedOperation(f"whence {whence!r} is none of SEEK_SET, SEEK_CUR and SEEK_END")
        return self._runtime.run(self._inner.seek(base + offset))

    def close(self) -> None:
        """End reading. Idempotent."""
        if not self.closed:
            if not self._runtime.closed:
                self._runtime.run(self._inner.close())
            super().close()
