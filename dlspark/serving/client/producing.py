"""`AsyncProducer`: a program's records of one stream on their way: gathered, numbered, sent, and answered one by one.

It runs two machines: the accumulator decides which records travel together, the session which number a request gets and
when it is sent again. A record costs a future and no task; a request goes through proxies by itself (`dispatch`).

    send       a record waits in the accumulator; nothing is sent before the loop goes on
    write      the same, but where nothing is under way, and one caller alone writes, the record is sent at once
    send_ready while the session has room, the next request is taken and submitted
    returned   a request came back; what it leads to is done, then what is ready is sent

Bounds: what all producers of a client hold together (`BufferPool`), what a request and a session may have. A record
that has no outcome in `requestTimeoutMs` ends: as not written where its request was never sent, else in doubt.

Fault model: see `producers`. A caller that cancels takes its record back where that was not taken into a request yet;
otherwise it is written, or not, without anyone to hear of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import TracebackType

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES
from dlspark.errors import (
    AlreadyClosedError,
    InvalidRecordError,
    OverCapacityError,
    RecordTooLongError,
    ServiceUnavailableError,
)
from dlspark.serving.client.batching import (
    RECORD_ROOM_BYTES,
    BatchBounds,
    ProducerBatch,
    RecordAccumulator,
    record_outcomes,
)
from dlspark.serving.client.dispatch import Dispatcher, InFlightRequest
from dlspark.serving.client.requests import Finished
from dlspark.serving.client.write_sessions import SessionEffect, Settled, Transmit, WriteSession
from dlspark.serving.protocol.failures import error_of, refusal_of
from dlspark.serving.protocol.operations import Answer, Refusal, WriteReceipt, WriteRecords
from metadata.foundation.errors import DistributedLogError, of_class
from metadata.foundation.opened_here import OnOneLoop
from storage_node.edge import Clock
from storage_node.errors import ProtocolError


class BufferPool:
    """Bounds what all records of a client that have no outcome yet take: memory, and a number."""

    def __init__(self, max_bytes: int, max_records: int) -> None:
        self._max_bytes, self._max_records = max_bytes, max_records
        self.bytes = 0
        self.records = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another record may be added: always where there is none."""
        return self.bytes < self._max_bytes and self.records < self._max_records

    @property
    def has_waiting(self) -> bool:
        """Whether any wait for room."""
        return bool(self._waiting)

    def take(self, size: int) -> None:
        """Take one more record."""
        self.bytes += size
        self.records += 1

    def give(self, size: int, records: int) -> None:
        """Note that these have their outcome."""
        self.bytes -= size
        self.records -= records
        self._wake()

    async def wait(self) -> None:
        """Wait for room, behind the others that wait."""
        if self.has_room and not self._waiting:
            return
        while True:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            self._wake()
            try:
                await woken
            except asyncio.CancelledError:
                if woken in self._waiting:
                    self._waiting.remove(woken)
                asyncio.get_running_loop().call_soon(self._wake)
                raise
            # The next one is woken once this one has had the time to add its record: woken at once, both would find the
            # same room.
            asyncio.get_running_loop().call_soon(self._wake)
            if self.has_room:
                return

    def _wake(self) -> None:
        while self._waiting and self.has_room:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return


@dataclass(frozen=True, slots=True)
class _WholeRequest:
    """A request that was made whole by its caller."""

    future: asyncio.Future[WriteReceipt]
    size: int


class AsyncProducer(OnOneLoop):
    """Writes records to one stream, in order, each once. `send` returns a future, `write` waits for the outcome.

    Open it with `AsyncClient.producer`, and close it. All calls come from one loop. Records are gathered into requests;
    one that is lost on its way is sent again under its number, which the log knows (I19).

    Args:
        dispatcher: takes requests through proxies.
        session: numbers and sends them.
        stream: the log.
        name: of the producer; None where requests have none.
        limits: of a request, and of records that wait.
        buffer_pool: bounds what all producers of the client hold.
        clock: goes on while the machine is suspended.
        request_timeout_ms: in which a record has an outcome; below 0: no bound.
        closed: called by `close`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: WriteSession,
        stream: str,
        name: str | None,
        *,
        limits: BatchBounds,
        buffer_pool: BufferPool,
        clock: Clock,
        request_timeout_ms: int,
        closed: Callable[[AsyncProducer], None] | None = None,
    ) -> None:
        self.stream = stream
        self.name = name
        self._dispatcher = dispatcher
        self._session = session
        self._accumulator = RecordAccumulator(limits)
        self._linger = limits.linger_ms > 0
        self._buffer_pool = buffer_pool
        self._now = clock.elapsed_s
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._timeout_s = request_timeout_ms / 1000 if request_timeout_ms >= 0 else inf
        self._on_closed = closed
        self._number = 0
        self._flushing: deque[tuple[ProducerBatch, float]] = deque()
        """Requests that were taken before there was room, with the time by which they must be settled."""
        self._requests: dict[int, tuple[ProducerBatch | _WholeRequest, float]] = {}
        """What was submitted and is not settled, likewise."""
        self._in_flight: dict[int, InFlightRequest] = {}
        self._effects: deque[SessionEffect] = deque()
        self._running = False
        self._planned: asyncio.Handle | None = None
        self._planned_for = inf
        self._shared = False
        """The last request that came back had records of several callers. They hear of it in one turn of the loop, and
        write again: the first of them does not send its record alone, before the others."""
        self._blocked = False
        """The session had no room: more is sent when something comes back."""
        self._resuming: asyncio.TimerHandle | None = None
        self._expiring: asyncio.TimerHandle | None = None
        self._closed = False

    # ------------------------------------------------------------------ for users

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def fenced(self) -> bool:
        """Whether the producer has ended because another process has begun a newer epoch of it."""
        return self._session.ended is not None and not self._closed

    @property
    def pending(self) -> int:
        """Records and whole requests without an outcome."""
        batches = [one for one, _ in (*self._requests.values(), *self._flushing)]
        return len(self._accumulator) + sum(len(one.keys) if isinstance(one, ProducerBatch) else 1 for one in batches)

    def send(
        self, payload: bytes | bytearray | memoryview, *, transaction_id: int | None = None
    ) -> asyncio.Future[DLSN]:
        """Write one record; the future gets its DLSN (DLSN.INVALID where it is stored and its DLSN is forgotten).

        Args:
            payload: the record; it may be changed once this has returned.
            transaction_id: the record's; None: the proxy's clock.

        Raises AlreadyClosedError, InvalidRecordError, RecordTooLongError, or OverCapacityError where too many records
        wait for their outcome (`wait_for_room`); nothing was done then. The future fails with what the proxies say; an
        OutcomeUnknownError means that the record may be in the log.
        """
        self._check_loop()
        now = self._time()
        future = self._add(payload_bytes(payload), now, transaction_id)
        self._plan_another(now)
        return future

    def _add(self, data: bytes, now: float, transaction_id: int | None) -> asyncio.Future[DLSN]:
        """Have a record wait. Raises as `send`."""
        if self._closed:
            raise AlreadyClosedError("the producer is closed", log=self.stream)
        if not self._buffer_pool.has_room:
            raise _over_capacity_error(self._buffer_pool)
        future: asyncio.Future[DLSN] = self._loop.create_future()
        if not self._accumulator.add(future, data, now, transaction_id):
            raise _over_capacity_error(self._buffer_pool)
        self._buffer_pool.take(len(data) + RECORD_ROOM_BYTES)
        return future

    def _plan_another(self, now: float) -> None:
        """Have a record sent that was just added."""
        # Without a linger the first record has planned the sending of all: a busy producer makes no timer for a record.
        if not self._blocked and (self._planned is None or self._linger):
            self._plan(now)

    async def write(self, payload: bytes | bytearray | memoryview, *, transaction_id: int | None = None) -> DLSN:
        """Write one record and wait for it; waits first where too many wait for their outcome. Raises as `send`.

        Cancelled, the record is taken back where it is not in a request yet; else it may be written.
        """
        self._check_loop()
        data = payload_bytes(payload)
        if not self._buffer_pool.has_room or self._buffer_pool.has_waiting:
            await self._buffer_pool.wait()
        now = self._time()
        future = self._add(data, now, transaction_id)
        if self._requests or self._linger or self._planned is not None or self._flushing or self._shared:
            self._plan_another(now)
        else:
            self._send_ready()  # nothing is under way, and its caller waits: no turn of the loop is left out for others
        try:
            return await future
        except asyncio.CancelledError:
            if self._accumulator.give_up(future):
                self._buffer_pool.give(len(data) + RECORD_ROOM_BYTES, 1)
            raise

    async def wait_for_room(self) -> None:
        """Wait until `send` has room for another record."""
        self._check_loop()
        await self._buffer_pool.wait()

    async def append(
        self,
        payloads: Sequence[bytes | bytearray | memoryview],
        *,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> DLSN:
        """Write records whole or not at all, behind those that were sent before; return the first one's DLSN.

        Args:
            payloads: at least one.
            expected_position: the sequence id that the first must get, or the DLSN that must be the log's last one.
            fencing_token: the one that the log must have.

        Raises ConditionError where a condition does not hold, with what was found in `actual`; and as `send`.
        """
        self._check_loop()
        data = tuple(map(payload_bytes, payloads))
        if not data:
            raise InvalidRecordError("a request has no records; nothing was written", advice="Give one at least")
        await self._buffer_pool.wait()
        if self._closed:
            raise AlreadyClosedError("the producer is closed", log=self.stream)
        self._begin_flush()  # what was sent before goes before
        while self._flushing:
            batch, due = self._flushing.popleft()
            self._submit(batch, batch.request(self.stream), due)
        size = sum(map(len, data))
        self._buffer_pool.take(size)
        whole = _WholeRequest(self._loop.create_future(), size)
        request = WriteRecords(
            self.stream, data, atomic=True, expected_position=expected_position, fencing_token=fencing_token
        )
        self._submit(whole, request, self._time() + self._timeout_s)
        self._run()
        receipt = await whole.future
        return receipt.dlsn if receipt.dlsn is not None else DLSN.INVALID

    async def flush(self) -> None:
        """Send what waits, and wait until all that was sent has an outcome. Raises the first failure among it."""
        self._check_loop()
        futures = self._begin_flush()
        if futures:
            await asyncio.wait(futures)
        for future in futures:
            if not future.cancelled() and (error := future.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Send what waits, and wait until all of it has an outcome; each record's future has its own. Idempotent.

        Cancelled, it ends at once: what was not sent is not written, what was is in doubt.
        """
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        try:
            if futures := self._begin_flush():
                await asyncio.wait(futures)
        finally:
            self.abandon(AlreadyClosedError("the producer was closed", log=self.stream))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def abandon(self, error: DistributedLogError) -> None:
        """End at once: what was never sent fails with `error`, which says that it was not done."""
        self._closed = True
        for timer in (self._planned, self._resuming, self._expiring):
            if timer is not None:
                timer.cancel()
        self._planned = self._resuming = self._expiring = None
        refusal = refusal_of(error)
        self._effects.extend(self._session.end(refusal))
        self._run()
        while self._flushing:
            self._settle_batch(self._flushing.popleft()[0], refusal)
        while len(self._accumulator):
            self._settle_batch(self._accumulator.take(), refusal)
        for in_flight in self._in_flight.values():
            in_flight.cancel()
        self._in_flight.clear()
        if self._on_closed is not None:
            self._on_closed(self)
            self._on_closed = None

    # ------------------------------------------------------------------ sending

    def _begin_flush(self) -> list[asyncio.Future[DLSN] | asyncio.Future[WriteReceipt]]:
        """Have everything that waits sent as soon as may be. Returns what has no outcome yet, the oldest first."""
        due = self._time() + self._timeout_s
        while len(self._accumulator):
            self._flushing.append((self._accumulator.take(), due))
        found: list[asyncio.Future[DLSN] | asyncio.Future[WriteReceipt]] = []
        for one, _ in (*self._requests.values(), *self._flushing):
            if isinstance(one, ProducerBatch):
                found += (key for key in one.keys if isinstance(key, asyncio.Future))
            else:
                found.append(one.future)
        self._send_ready()
        return found

    def _plan(self, now: float) -> None:
        """Have what is ready sent: in the loop's next step where a request is ready, else when its oldest record is
        due."""
        due = self._accumulator.next_due()
        if due is None or due >= self._planned_for:
            return
        if self._planned is not None:
            self._planned.cancel()
        if due <= now:
            self._planned, self._planned_for = self._loop.call_soon(self._send_ready), -inf
        else:
            self._planned, self._planned_for = self._loop.call_at(due, self._send_ready), due
        if self._expiring is None and self._timeout_s != inf:
            self._expiring = self._loop.call_at(now + self._timeout_s, self._expire)

    def _send_ready(self) -> None:
        if self._planned is not None:
            self._planned.cancel()
            self._planned, self._planned_for = None, inf
        accumulator, session, now = self._accumulator, self._session, self._time()
        while self._flushing and session.has_room:
            batch, due = self._flushing.popleft()
            self._submit(batch, batch.request(self.stream), due)
        while len(accumulator) and not self._flushing and session.has_room and accumulator.is_ready(now):
            batch = accumulator.take()
            self._submit(batch, batch.request(self.stream), now + self._timeout_s)
        self._run()
        self._blocked = not session.has_room
        if len(accumulator) and not self._blocked:
            self._plan(now)

    def _submit(self, pending: ProducerBatch | _WholeRequest, request: WriteRecords, due: float) -> None:
        self._number += 1
        self._requests[self._number] = pending, due
        if self._expiring is None and self._timeout_s != inf:
            self._expiring = self._loop.call_at(due, self._expire)
        self._effects.extend(self._session.submit(self._number, request, self._now()))

    # ------------------------------------------------------------------ effects

    def _run(self) -> None:
        """Do what the session says, in its order; what that leads to at once comes behind it."""
        if self._running:
            return  # called from within an effect: the loop below does what was added
        self._running = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Transmit):
                    self._transmit(effect)
                elif isinstance(effect, Settled):
                    self._settled(effect)
                else:
                    self._resuming = self._loop.call_later(effect.seconds, self._resumed)
        finally:
            self._running = False

    def _transmit(self, effect: Transmit) -> None:
        ticket = effect.ticket
        came_back = False

        def settle(finished: Finished) -> None:
            nonlocal came_back
            came_back = True
            self._in_flight.pop(ticket, None)
            self._effects.extend(self._session.returned(ticket, finished, self._now()))
            if not self._running:
                self._send_ready()

        in_flight = self._dispatcher.begin(effect.request, settle, timeout_ms=effect.timeout_ms)
        if not came_back:  # it may have, before `begin` returned
            self._in_flight[ticket] = in_flight

    def _resumed(self) -> None:
        self._resuming = None
        self._effects.extend(self._session.resumed(self._now()))
        self._send_ready()

    def _settled(self, effect: Settled) -> None:
        number = of_class(effect.key, int, "a session settled what it was not given")
        pending, _ = self._requests.pop(number)
        if isinstance(pending, ProducerBatch):
            self._settle_batch(pending, effect.answer)
        else:
            self._settle_whole(pending, effect.answer)

    def _settle_whole(self, whole: _WholeRequest, answer: Answer) -> None:
        self._buffer_pool.give(whole.size, 1)
        future = whole.future
        if isinstance(answer, WriteReceipt):
            self._dispatcher.counters.records += answer.records
            self._dispatcher.counters.record_bytes += whole.size
        if future.done():
            return
        if isinstance(answer, WriteReceipt):
            future.set_result(answer)
        elif isinstance(answer, Refusal):
            future.set_exception(error_of(answer, stream=self.stream))
        else:
            future.set_exception(ProtocolError(f"a write was answered with {type(answer).__name__}"))

    def _settle_batch(self, batch: ProducerBatch, answer: Answer) -> None:
        self._accumulator.settled(batch)
        count = len(batch.keys)
        self._shared = count > 1
        self._buffer_pool.give(batch.bytes, count)
        counters = self._dispatcher.counters
        if isinstance(answer, WriteReceipt):
            counters.records += count
            counters.record_bytes += batch.bytes - count * RECORD_ROOM_BYTES
        for key, fate in record_outcomes(batch, answer):
            if not isinstance(key, asyncio.Future) or key.done():
                continue
            if type(fate) is DLSN:
                key.set_result(fate)
            elif isinstance(fate, Refusal):
                key.set_exception(error_of(fate, stream=self.stream))
            else:
                key.set_result(DLSN.INVALID)

    def _expire(self) -> None:
        """Give up what has waited for too long, and look again when the next one will have."""
        self._expiring = None
        now = self._time()
        for number, (_, due) in list(self._requests.items()):
            if due > now:
                break  # submitted in the order of their times, or nearly so: the next look is due soon
            self._effects.extend(map(self._with_last_answer, self._session.give_up(number, self._now())))
        refusal = refusal_of(ServiceUnavailableError("the record was not sent in time"))
        while self._flushing and self._flushing[0][1] <= now:
            self._settle_batch(self._flushing.popleft()[0], refusal)
        # The oldest record's time, or later by the linger. Those that would have travelled with it end with it.
        while (waiting := self._accumulator.next_due()) is not None and waiting + self._timeout_s <= now:
            self._settle_batch(self._accumulator.take(), refusal)
        self._send_ready()
        waits = [due for _, due in (*list(self._requests.values())[:1], *list(self._flushing)[:1])]
        if (waiting := self._accumulator.next_due()) is not None:
            waits.append(waiting + self._timeout_s)
        if waits and self._expiring is None:
            self._expiring = self._loop.call_at(min(waits), self._expire)

    def _with_last_answer(self, effect: SessionEffect) -> SessionEffect:
        """Return the settlement of what took too long, with what the proxies said: all that is under way is for one
        stream."""
        said = next((in_flight.asked for in_flight in self._in_flight.values() if in_flight.asked), "")
        if not said or not isinstance(effect, Settled) or not isinstance(effect.answer, Refusal):
            return effect
        return effect._replace(answer=replace(effect.answer, message=f"{effect.answer.message}; {said}"))


def payload_bytes(payload: bytes | bytearray | memoryview) -> bytes:
    """Return a payload that its caller cannot change any more. Raises InvalidRecordError or RecordTooLongError."""
    if type(payload) is not bytes:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidRecordError(f"a payload is bytes, not {type(payload).__name__}; nothing was written")
        payload = bytes(payload)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise RecordTooLongError(
            f"a payload of {len(payload)} bytes is longer than {MAX_PAYLOAD_BYTES}, the most that a record takes",
            advice="Split it; nothing was written",
        )
    return payload


def _over_capacity_error(buffer_pool: BufferPool) -> OverCapacityError:
    return OverCapacityError(
        f"{buffer_pool.records} records of {buffer_pool.bytes} bytes wait for their outcome; this one was not taken",
        advice="Wait for room (`wait_for_room`), or raise maxPendingBytes and maxPendingRecords",
    )
