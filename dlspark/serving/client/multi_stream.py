"""`AsyncMultiStreamWriter`: records go to whichever of several streams takes them soonest.

For writers that care about latency and not about which log a record is in: the streams are shuffled once, record sets
go to them one after the other, and a set that is not answered soon is sent to the next stream as well. The first
success counts.

So a record may be written more than once, to several streams: that is the price, as it was upstream. It is never said
to be written where it was not. What fails on every stream fails, with the last stream's error; where an earlier attempt
may have been written, the outcome is unknown.

    buffer     payloads collect until there are `buffer_bytes` of them, or for `flush_ms`; they become one record set
    attempts   at once, then after 50 ms, 100 ms, 200 ms, 200 ms ... to the next stream each, or as soon as one fails
    bounds     `request_timeout_ms` for all of it, `max_pending_bytes` of payloads without an outcome
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, encode_record_set
from dlspark.core.codec.records import MAX_LOGRECORD_SIZE
from dlspark.errors import (
    AlreadyClosedError,
    InvalidRecordError,
    OverCapacityError,
    ProxyLostError,
    RecordTooLongError,
    SettingsError,
)
from dlspark.serving.client.answer_rules import doubtful_refusal
from dlspark.serving.client.requests import Cancellable
from dlspark.serving.protocol.failures import error_of, refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    Refusal,
    RequestContext,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import MAX_SET_RECORDS
from metadata.foundation.errors import CallerError
from metadata.foundation.opened_here import OnOneLoop

COMPRESSIONS: Final = {"none": Compression.NONE, "lz4": Compression.LZ4}
_SET_ROOM: Final = 4096
"""Bytes of a record that the buffer leaves free: the set's header, and what a payload has in front."""
_LENGTH_BYTES: Final = 4
"""What a payload has in front."""


class StreamPosition(NamedTuple):
    """The stream in which a record was written, and its DLSN there."""

    stream: str
    dlsn: DLSN


class RecordSetSender(Protocol):
    """Sends a record set through proxies; `AsyncClient.multi_stream_writer` gives it."""

    def __call__(self, request: WriteRecords, settle: Callable[[Answer], None], timeout_ms: int) -> Cancellable:
        """Send; `settle` is called once, perhaps before this returns, and a refusal that it gets is final."""
        ...


@dataclass(frozen=True, slots=True)
class MultiStreamLimits:
    """Bounds how a multi-stream writer collects records, and how soon it tries the next stream; upstream's values.

    Raises SettingsError for what cannot be.
    """

    buffer_bytes: int = 16 * 1024
    flush_ms: int = 2
    request_timeout_ms: int = 500
    first_speculative_ms: int = 50
    max_speculative_ms: int = 200
    speculative_factor: float = 2.0
    max_pending_bytes: int = 16 * 1024 * 1024
    compression: str = "none"

    def __post_init__(self) -> None:
        """Raise SettingsError for what cannot be."""
        if self.compression not in COMPRESSIONS:
            raise SettingsError(
                f"compression={self.compression!r} is not known", advice=f"There are {', '.join(COMPRESSIONS)}"
            )
        if not 0 < self.buffer_bytes <= MAX_LOGRECORD_SIZE - _SET_ROOM:
            raise SettingsError(f"buffer_bytes={self.buffer_bytes} does not fit in a record")
        if not 0 < self.first_speculative_ms <= self.max_speculative_ms or self.speculative_factor < 1:
            raise SettingsError("the first speculative attempt comes after the longest wait for one")
        if self.request_timeout_ms <= 0 or self.flush_ms < 0 or self.max_pending_bytes <= 0:
            raise SettingsError("times and sizes of a multi-stream writer are above 0")


class _PendingSet:
    """A record set on its way to some of the streams."""

    __slots__ = ("_attempts", "_doubtful", "_last", "_next", "_streams", "_timer", "_wait_s", "_writer", "records")

    def __init__(
        self, writer: AsyncMultiStreamWriter, records: list[tuple[asyncio.Future[StreamPosition], int]], first: int
    ) -> None:
        self.records: list[tuple[asyncio.Future[StreamPosition], int]] | None = records
        self._writer = writer
        self._streams = [*writer.streams[first:], *writer.streams[:first]]
        self._next = 0
        self._attempts: dict[int, Cancellable | None] = {}
        self._doubtful = False
        self._last: Refusal | None = None
        self._wait_s = writer.limits.first_speculative_ms / 1000
        self._timer: asyncio.TimerHandle | None = None

    def send(self, payload: bytes, deadline: float) -> None:
        """Send the set to the next stream, and plan the attempt after it."""
        writer = self._writer
        number = self._next
        stream = self._streams[number]
        self._next += 1
        timeout_ms = max(round((deadline - writer.loop.time()) * 1000), 1)
        request = WriteRecords(stream, (payload,), context=RequestContext(is_record_set=True))

        def settle(answer: Answer) -> None:
            self._settled(number, stream, answer, payload, deadline)

        self._attempts[number] = None  # before the call, which may settle it
        attempt = writer.send(request, settle, timeout_ms)
        if number not in self._attempts:
            return  # it was settled at once
        self._attempts[number] = attempt
        if self._next < len(self._streams) and self._timer is None:
            self._timer = writer.loop.call_later(self._wait_s, self._speculate, payload, deadline)

    def _speculate(self, payload: bytes, deadline: float) -> None:
        self._timer = None
        limits = self._writer.limits
        self._wait_s = min(self._wait_s * limits.speculative_factor, limits.max_speculative_ms / 1000)
        if self.records is not None and self._writer.loop.time() < deadline:
            self._writer.speculative += 1
            self.send(payload, deadline)

    def _settled(self, number: int, stream: str, answer: Answer, payload: bytes, deadline: float) -> None:
        self._attempts.pop(number, None)
        if self.records is None:
            return
        if isinstance(answer, WriteReceipt):
            self._succeed(stream, answer)
            return
        refusal = answer if isinstance(answer, Refusal) else refusal_of(CallerError("a write got another's answer"))
        self._last = refusal
        # A later stream may still succeed. If none does, one that may have the records makes all of it doubtful.
        self._doubtful |= refusal.applied is Applied.UNKNOWN
        if refusal.applied is Applied.WRONG or (self._next >= len(self._streams) and not self._attempts):
            self._fail(refusal)
        elif self._writer.loop.time() >= deadline:
            if not self._attempts:
                self._fail(refusal)
        elif self._next < len(self._streams):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.send(payload, deadline)

    def _succeed(self, stream: str, receipt: WriteReceipt) -> None:
        records = self.end()
        first = receipt.dlsn if receipt.dlsn is not None else DLSN.INVALID
        for slot, (future, _) in enumerate(records):
            if not future.done():
                future.set_result(StreamPosition(stream, DLSN(first.lssn, first.entry_id, first.slot_id + slot)))

    def _fail(self, refusal: Refusal) -> None:
        if (self._doubtful or self._attempts) and refusal.applied is not Applied.UNKNOWN:
            message = f"another stream may have the records; the last one refused: {refusal.message}"
            refusal = doubtful_refusal(refusal, message)
        for future, _ in self.end():
            if not future.done():
                future.set_exception(error_of(refusal, stream=None))

    def close(self) -> None:
        """Give it up: what was sent may have been written."""
        error = ProxyLostError("the writer was closed before the record was answered")
        for future, _ in self.end():
            if not future.done():
                future.set_exception(error)

    def end(self) -> list[tuple[asyncio.Future[StreamPosition], int]]:
        """End all attempts, and return the records: the set has an outcome."""
        records, self.records = self.records or [], None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            if attempt is not None:
                attempt.cancel()
        self._writer.set_ended(self, sum(size for _, size in records))
        return records


class AsyncMultiStreamWriter(OnOneLoop):
    """Writes each record to whichever of several streams takes it soonest, for latency more than for order.

    Open it with `AsyncClient.multi_stream_writer`, and close it. A record may be in several of the streams.

    Args:
        send: sends a request through proxies.
        streams: the logs.
        limits: how records are collected and tried.
        shuffle: brings the streams into an order of this writer's own.

    Raises CallerError unless there is a stream, and each is named once.
    """

    def __init__(
        self,
        send: RecordSetSender,
        streams: Sequence[str],
        limits: MultiStreamLimits | None = None,
        *,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        if not streams or len(set(streams)) != len(streams):
            raise CallerError("a multi-stream writer needs streams, each named once", advice="Name two at least")
        self.loop = self._loop = asyncio.get_running_loop()
        self.send = send
        self.limits = limits if limits is not None else MultiStreamLimits()
        self.streams = list(streams)
        shuffle(self.streams)
        self.speculative = 0
        """Attempts that were made because the one before was not answered soon."""
        self._compression = COMPRESSIONS[self.limits.compression]
        self._next_stream = 0
        """Index of the stream that the next set goes to first."""
        self._buffer: list[bytes] = []
        self._waiting: list[tuple[asyncio.Future[StreamPosition], int]] = []
        self._buffered_bytes = 0
        self._pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sets: dict[_PendingSet, None] = {}
        self._settled: asyncio.Event = asyncio.Event()
        self._settled.set()
        self._closed = False

    def write(self, payload: bytes | bytearray | memoryview) -> asyncio.Future[StreamPosition]:
        """Write one record; the future gets where it is. Nothing is sent before the loop goes on.

        Raises AlreadyClosedError, InvalidRecordError, RecordTooLongError, or OverCapacityError where too many bytes
        wait for their outcome; nothing was written then.
        """
        self._check_loop()
        if self._closed:
            raise AlreadyClosedError("the multi-stream writer is closed")
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidRecordError(f"a payload is bytes, not {type(payload).__name__}")
        data = bytes(payload)
        if len(data) > MAX_LOGRECORD_SIZE - _SET_ROOM:
            raise RecordTooLongError(
                f"a payload of {len(data)} bytes; {MAX_LOGRECORD_SIZE - _SET_ROOM} fit in a record set",
                advice="Split it; nothing was written",
            )
        if self._pending_bytes and self._pending_bytes + len(data) > self.limits.max_pending_bytes:
            raise OverCapacityError(f"{self._pending_bytes} bytes wait for their outcome; nothing was written")
        room = _LENGTH_BYTES + len(data)
        if self._buffer and self._buffered_bytes + room > self.limits.buffer_bytes:
            self._transmit()
        future: asyncio.Future[StreamPosition] = self.loop.create_future()
        self._buffer.append(data)
        self._waiting.append((future, len(data)))
        self._buffered_bytes += room
        self._pending_bytes += len(data)
        self._settled.clear()
        if self._buffered_bytes >= self.limits.buffer_bytes or len(self._buffer) == MAX_SET_RECORDS:
            self._transmit()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.limits.flush_ms / 1000, self._transmit)
        return future

    async def flush(self) -> None:
        """Send what is collected, and wait until everything has an outcome."""
        self._check_loop()
        self._transmit()
        await self._settled.wait()

    async def close(self) -> None:
        """`flush`, then take no more. Idempotent. Cancelled, it gives up what is under way."""
        self._check_loop()
        self._closed = True
        try:
            await self.flush()
        finally:
            for one in list(self._sets):
                one.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes of payloads without an outcome."""
        return self._pending_bytes

    def _transmit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        payloads, self._buffer = self._buffer, []
        waiting, self._waiting = self._waiting, []
        self._buffered_bytes = 0
        if not payloads:
            return
        one = _PendingSet(self, waiting, self._next_stream)
        self._next_stream = (self._next_stream + 1) % len(self.streams)
        self._sets[one] = None
        encoded = encode_record_set(payloads, self._compression)
        one.send(encoded, self.loop.time() + self.limits.request_timeout_ms / 1000)

    def set_ended(self, one: _PendingSet, size: int) -> None:
        """Note that a set has its outcome (for the sets)."""
        if self._sets.pop(one, True) is None:
            self._pending_bytes -= size
            if not self._sets and not self._buffer:
                self._settled.set()
