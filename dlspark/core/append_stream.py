"""A log as one stream of bytes: appended at its end, read from any byte on (docs/reference/records.md#byte-streams).

Each append is one record whose transaction id is the stream's length after it, so a record of n bytes and id t holds
bytes t-n..t-1, and a byte is found as any transaction id is. What does not fit in one record goes into several. If the
log holds records that were not appended in this way, reading fails: the stream would not be what was appended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES, MAX_TXID, LogRecord
from dlspark.core.reading.positions import LogPositions
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import AlreadyTruncatedError, EndOfStreamError, LogEmptyError
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError
from metadata.foundation.opened_here import OpenedHere

MAX_PENDING_APPENDS = 10_000
"""How many appends may be under way; one more waits for all of them."""
_RECORDS_AT_ONCE = 100


async def committed_length(log: LogPositions) -> int:
    """Return the length of the stream of bytes that a log is, as far as readers may see it.

    Raises LogEmptyError for a sealed stream of which all was truncated, LogNotFoundError.
    """
    try:
        return await log.last_txid()
    except LogEmptyError:
        # Where all was truncated, the log's highest id is still the stream's length; but a seal has an id of its own.
        lengths = [segment.last_txid for segment in await log.segments() if not segment.in_progress]
        if MAX_TXID in lengths:
            raise
        return max([0, *lengths])


class AsyncAppendStream(OpenedHere):
    """Appends bytes to a log as to a file.

    `AsyncLog.open_append_stream` returns it. What was appended is durable, and visible to readers, after `force`.
    Closing it completes the segment.
    """

    def __init__(self, writer: AsyncLogWriter, position: int) -> None:
        self.position = position
        """The stream's length with everything appended, bytes."""
        self.durable_position = position
        """How much of it was on an ack quorum's disks at the last `force`, bytes."""
        self._writer = writer
        self._pending: list[asyncio.Future[DLSN]] = []

    @classmethod
    async def at_end(cls, writer: AsyncLogWriter, log: LogPositions) -> AsyncAppendStream:
        """Return the stream, at the end of the log that `writer` owns. Raises EndOfStreamError if it is sealed."""
        if writer.last_txid == MAX_TXID:
            raise EndOfStreamError("the stream is sealed; nothing can be appended", log=log.name)
        try:
            return cls(writer, await log.last_txid())
        except LogEmptyError:
            # Where all was truncated the log has no records, but its highest id is still the stream's length.
            return cls(writer, max(writer.last_txid, 0))

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; returns the stream's length after them. They are durable after `force`.

        Raises the error of an earlier append that failed: from then on the stream has to be opened again. What was
        appended since the last `force` may be stored or not.
        """
        view = memoryview(data).cast("B")
        if len(self._pending) >= MAX_PENDING_APPENDS:
            await self._settle()
        for start in range(0, len(view), MAX_PAYLOAD_BYTES):
            part = bytes(view[start : start + MAX_PAYLOAD_BYTES])
            await self._writer.wait_for_room()
            written = self._writer.write(self.position + len(part), part)
            if written.done():
                written.result()
            self._pending.append(written)
            self.position += len(part)
        return self.position

    async def force(self) -> int:
        """Make everything appended durable and visible to readers; returns the stream's length. Raises as `append`."""
        position = self.position
        await self._writer.commit()
        await self._settle()
        self.durable_position = position
        return position

    async def _settle(self) -> None:
        """Wait for the appends under way. Raises the error of the first that failed."""
        pending, self._pending = self._pending, []
        if pending:
            await self._writer.send()
        for written in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(written, BaseException):
                raise written

    async def mark_end_of_stream(self) -> None:
        """Seal the stream: nothing can be appended any more, and readers end. Raises as `append`."""
        await self.force()
        await self._writer.mark_end_of_stream()

    async def close(self) -> None:
        """Make everything durable and close. Idempotent."""
        if self._writer.closed:
            return
        try:
            await self.force()
        finally:
            await self._writer.close()

    async def abort(self) -> None:
        """Close without waiting for what was appended since the last `force`."""
        for written in self._pending:
            written.cancel()
        await self._writer.abort()

    async def __aenter__(self) -> AsyncAppendStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.close() if kind is None else self.abort())


class AsyncAppendReader(OpenedHere):
    """Reads a log's bytes in order, from any byte on, as from a file.

    `AsyncLog.open_append_reader` returns it. At the end `read` returns no bytes; read again for more.
    """

    def __init__(self, reader: AsyncLogReader, position: int, length: Callable[[], Awaitable[int]]) -> None:
        """Begin where `reader` does: at the first record whose transaction id is not below `position`; `length` finds
        the stream's."""
        self.position = position
        """The next byte to read."""
        self._reader = reader
        self._length = length
        self._records: deque[LogRecord] = deque()
        self._rest = memoryview(b"")
        self._begun = False
        self._astray = False
        """True if the reader may be elsewhere: a seek was cut off."""

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._reader.closed

    async def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; if it is negative, all that are committed. Empty at the end of what is committed.

        Raises AlreadyTruncatedError where truncated bytes are asked for, and CorruptDataError for a log that is not a
        stream of bytes. Where it raises, or is cancelled, the next call begins where this one did.
        """
        if self._astray:
            await self._go_to(self.position)
        parts: list[memoryview] = []
        left = size if size >= 0 else None
        try:
            while left != 0:
                if not len(self._rest):
                    self._rest = await self._more()
                part = self._rest[:left]
                if not len(part):
                    break
                self._rest = self._rest[len(part) :]
                self.position += len(part)
                left = None if left is None else left - len(part)
                parts.append(part)
        except BaseException:
            taken = b"".join(parts)
            self._rest = memoryview(taken)  # Nothing is left behind them: more was being asked for.
            self.position -= len(taken)
            raise
        return b"".join(parts)

    async def _more(self) -> memoryview:
        """Return the bytes of the next record from `position` on; none at the end."""
        while True:
            if not self._records:
                try:
                    self._records.extend(await self._reader.read_available(_RECORDS_AT_ONCE, wait=True))
                except EndOfStreamError:
                    pass
            if not self._records:
                return memoryview(b"")
            record = self._records.popleft()
            first = record.txid - len(record.payload)
            if not self._begun and record.txid <= self.position:
                continue  # It ends where reading begins.
            if first > self.position or first < 0 or (self._begun and first != self.position):
                raise self._no_stream_error(record, first)
            self._begun = True
            return memoryview(record.payload)[self.position - first :]

    def _no_stream_error(self, record: LogRecord, first: int) -> DistributedLogError:
        if not self._begun and first >= 0:
            return AlreadyTruncatedError(
                f"bytes {self.position} to {first - 1} of the stream were truncated",
                log=self._reader.name,
                dlsn=record.dlsn,
                advice=f"Seek to byte {first}, the first one left",
            )
        return CorruptDataError(
            f"the record behind byte {self.position} of the stream holds bytes {first} to {record.txid - 1}",
            log=self._reader.name,
            dlsn=record.dlsn,
            advice="The log holds records that were not appended to the stream; read it by records",
        )

    async def seek(self, position: int) -> int:
        """Go on at another byte; a byte behind the end can be read once it was appended. Raises CallerError.

        Where it raises, or is cancelled, reading goes on where it was.
        """
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < MAX_TXID:
            raise CallerError(
                f"{position!r} is not a position in a stream", advice="Give a number of bytes from the start"
            )
        await self._go_to(position)
        return position

    async def length(self) -> int:
        """Return how many bytes are committed, truncated ones included: where `seek` has to go to read only what comes.

        Raises LogEmptyError where the stream was sealed and all of it truncated: nothing tells its length any more.
        """
        return await self._length()

    async def _go_to(self, position: int) -> None:
        self._astray = True
        await self._reader.skip_to(position)
        self._records.clear()
        self._rest = memoryview(b"")
        self._begun = self._astray = False
        self.position = position

    async def close(self) -> None:
        """End reading; a read that waits gets ReadCancelledError. Idempotent."""
        await self._reader.close()

    async def __aenter__(self) -> AsyncAppendReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
