"""One client's connection to a frames server: its requests go to the service, answers leave as they come.

Theory of operation. A frame is decoded and handed to the service in the step in which it arrived. The service answers
when it likes, each request by its number; answers of one turn of the loop leave together, as the link does with all
that is sent. What the connection holds is counted: its requests, and answers that the socket has not taken. Beyond its
bounds (`bounds`) it is paused: the socket is not read, frames that had arrived already wait in line, copied. It goes on
when half of that is done. A read that waits for records counts like any other request; what it brings counts when it is
there.

    a request too large by itself        Refusal TOO_LARGE_RECORD, the connection goes on
    a large one, memory is short         Refusal OVER_CAPACITY, the connection goes on
    more reads than it may have          likewise; and a read's answer where far too many are not taken
    a request while the server stops     Refusal SERVICE_UNAVAILABLE
    bytes that are not a request         Refusal with its number where that can be read, else 0; then the end
    a request without a proof            Refusal REQUEST_DENIED, or where the proof has ended SERVICE_UNAVAILABLE
                                         (`frames_sessions`)

Fault model: a client may send anything, take nothing, or vanish. It ends its own connection so, and no other. An answer
for a connection that has ended is dropped. Nothing here waits, or raises into the loop or into the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.frames_host import FramesHost
from dlspark.serving.bindings.frames_sessions import MAX_FAILURES, FramesSession, without_security
from dlspark.serving.bindings.service import (
    KEPT_VIEW_BYTES,
    RECORD_BYTES,
    REQUEST_BYTES,
    STEP_BYTES,
    Caller,
    write_bytes,
)
from dlspark.serving.protocol.answer_frames import encode_answer, encode_receipts
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.frame_parts import HEADER
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    Delivery,
    ReadBatch,
    Refusal,
    Request,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import decode_request
from dlspark.serving.protocol.write_runs import WriteRun, take_run
from dlspark.serving.security.authentication import PeerProof
from metadata.foundation.errors import DistributedLogError
from storage_node.edge import Link
from storage_node.errors import ConnectionClosedError, ProtocolError
from storage_node.protocol.frames import LENGTH_BYTES, Buffer

NO_REQUEST: Final = 0
"""The number of an answer that is about the connection, and not about one of its requests."""
NOT_BEGUN: Final = "the proxy has stopped; what it has not answered on this connection was not begun"
NOT_BEGUN_MORE: Final = "what was not answered on this connection was not begun"
LEAVE_S: Final = 2.0
"""The time that a client has, at the end, to hear that nothing more is begun, and to close the connection."""
_NUMBERS: Final = count(1)
"""Of connections, for the audit trail."""
TOGETHER: Final = 64
"""Frames that are begun together at most: the loop looks at the time between them."""
RUN_REQUEST_BYTES: Final = REQUEST_BYTES + RECORD_BYTES
"""A write of a run counts so much besides its frame."""
LINE_FRAME_BYTES: Final = 64
"""A frame that waits in line takes so much besides its bytes."""


class FramesConnection:
    """What becomes of the bytes that one client sends, and how much may it have under way? The handler of one link.

    Args:
        host: the server, which gives the service, the limits and the memory that all connections share.
        proof: what the connection proves by itself; None where nothing is to be proved.
    """

    __slots__ = (
        "_arrived",
        "_counted",
        "_ending",
        "_fresh",
        "_held",
        "_host",
        "_left",
        "_left_at",
        "_limits",
        "_line",
        "_line_bytes",
        "_link",
        "_loop",
        "_paused",
        "_reads",
        "_sent",
        "_sent_before",
        "_session",
        "_short",
        "_stuck_since",
        "_submit",
        "_under_way",
        "_waits_for_memory",
        "_watching",
        "caller",
        "closed",
        "heard_at",
        "opened_at",
        "peer",
    )

    def __init__(self, host: FramesHost[FramesConnection], link: Link, proof: PeerProof | None = None) -> None:
        self.peer = link.peer
        self.caller = Caller(link.peer, session=f"frames-{next(_NUMBERS)}")
        self._host = host
        self._limits = host.limits
        self._short = min(STEP_BYTES, host.limits.request_bytes - LENGTH_BYTES)
        """A request of at most so many bytes is neither too large, nor a large one."""
        self._submit = host.service.submit
        self._arrived: list[memoryview] = []
        """Frames of the read that is being handed out: begun together once there are `TOGETHER`, or no more."""
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self.heard_at: float | None = None
        self._session: FramesSession | None = None
        if host.authentication is not None and proof is not None:
            self._session = FramesSession(host.authentication, self.caller, proof, self.opened_at)
        self.closed = False
        self._ending = False
        """True once the link is closed from here, before it says so: nothing is begun from then on."""
        self._fresh = False
        """True where a whole frame came since the last `batch_done`."""
        self._under_way: dict[int, int] = {}
        """The bytes that each unanswered request counts, by its number."""
        self._reads: set[int] = set()
        """The numbers of unanswered reads."""
        self._held = 0
        """The bytes that all unanswered requests count, and the frames in line."""
        self._counted = 0
        """The part of it that is counted in the server's memory."""
        self._line: deque[bytes] | None = None
        self._line_bytes = 0
        self._paused = False
        self._left = False
        """True once the client has heard that nothing is begun any more; what still comes is dropped."""
        self._left_at = 0.0
        self._waits_for_memory = False
        self._watching: asyncio.Task[None] | None = None
        self._sent = 0
        """Answers that were given to the link."""
        self._sent_before = (0, 0)
        self._stuck_since: float | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of its requests and answers."""
        return self._held + self._link.queued_bytes

    @property
    def requests_under_way(self) -> int:
        """Requests without an answer; those in line not counted."""
        return len(self._under_way)

    @property
    def busy(self) -> bool:
        """True while answers are to come, or to leave."""
        return bool(self._under_way or self._line or self._link.queued_bytes)

    def close(self) -> None:
        """Close the link; what is under way is not answered any more, and what has arrived is not begun."""
        # The link says that it is closed in a later turn of the loop, and the step of this turn may go on until then.
        self._ending = True
        self._link.close()

    def leave(self) -> None:
        """End because the server stops. Where nothing is under way, say that what is not answered was not begun: the
        client may have sent it already, and can then take it elsewhere.

        It is the client that closes the link then. Closed here, what it still sends would be answered by a reset, and
        that may reach it before what was said.
        """
        if self.busy or self.closed:
            self.close()
        else:
            self._say_end(NOT_BEGUN)

    def _say_end(self, why: str) -> None:
        self._send(NO_REQUEST, Refusal(StatusCode.SERVICE_UNAVAILABLE, why))
        self._left = True  # nothing is begun from here on
        self._left_at = self._loop.time()
        self._link.resume_reading()

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Begin a request, or let it wait while the connection is paused."""
        self._fresh = True
        if self._left or self._ending:
            return
        if self._paused:
            self._wait_in_line(frame)
        elif self._host.runs is None:
            self._begin_alone(frame)
        else:
            self._arrived.append(frame)
            if len(self._arrived) >= TOGETHER:
                self._begin_arrived()

    def batch_done(self) -> None:
        """Begin what has arrived; half a frame alone does not count as a request."""
        if self._arrived:
            self._begin_arrived()
        if self._fresh and not self.closed:
            self._fresh = False
            self.heard_at = self._loop.time()
            self._host.heard(self)

    def link_closed(self, error: Exception | None) -> None:
        """Note that the client is gone: what it holds here goes, and the service hears of it once."""
        del error  # the link has logged what went wrong
        self.closed = self._ending = True
        self._line, self._line_bytes, self._held = None, 0, 0
        self._under_way.clear()
        self._arrived = []
        self._reads.clear()
        self._count()
        self._host.turns.leave(self._go_on)
        if self._watching is not None:
            self._watching.cancel()
        self._host.ended(self)
        self._host.service.caller_gone(self.caller)  # last: what it answers from here on finds the connection closed

    # ------------------------------------------------------------------------------------ requests

    def _begin(self, frame: memoryview) -> None:
        """Give a request to the service, or refuse it. Never raises."""
        size = len(frame)
        try:
            # The payloads of a long frame stay views of it until they are stored.
            number, request = decode_request(frame, copied=size < KEPT_VIEW_BYTES)
        except DistributedLogError as error:
            self._break_off(frame, error)
            return
        limits, under_way = self._limits, self._under_way
        if number in under_way or number == NO_REQUEST:
            reason = "no request has the number 0" if number == NO_REQUEST else f"two requests have the number {number}"
            self._break_off(frame, ProtocolError(reason, node=self.peer))
            return
        # Nearly every request is a short write without a session, to which nothing here can object.
        if self._session is not None or type(request) is not WriteRecords or size > self._short or self._host.stopping:
            admitted = self._admitted(number, request, size)
            if isinstance(admitted, Refusal):
                self._send(number, admitted)
                if self._session is not None and self._session.failures >= MAX_FAILURES:
                    self.close()
                return
            request = admitted
        cost = size + REQUEST_BYTES
        if type(request) is WriteRecords:
            cost += write_bytes(request)
        # Counted before the service has it: it may answer within this call, and the answer takes the count back.
        under_way[number] = cost
        self._held += cost
        self._submit_alone(number, request)
        if self._held - self._counted > STEP_BYTES:
            self._count()
        if (
            self._held > limits.bytes_under_way
            or len(under_way) > limits.requests_under_way
            or (self._counted and self._host.memory.exceeded)
        ):
            self._pause()

    def _begin_arrived(self) -> None:
        """Begin what came together, in its order: writes of one stream as one, where the service takes them so."""
        frames, self._arrived = self._arrived, []
        first, alone = 0, 1
        while first < len(frames) and not self._ending:
            run = take_run(frames, first, self._short) if not self._paused else None
            count = len(run.numbers) if run is not None else alone
            these = frames[first : first + count]
            first += count
            if run is not None and self._begin_run(run, these):
                alone = 1
                continue
            alone *= 2  # streams may come in turn: a look for a run at each frame would cost more than it saves
            for frame in these:
                self._begin_alone(frame)

    def _begin_alone(self, frame: memoryview) -> None:
        if self._paused:
            self._wait_in_line(frame)
        elif not self._ending:
            self._begin(frame)

    def _begin_run(self, run: WriteRun, frames: Sequence[memoryview]) -> bool:
        """Give the service writes that came together. False where one of them could be refused or have the connection
        paused here, or the service looks at each by itself: nothing was done."""
        numbers, under_way, limits, runs = run.numbers, self._under_way, self._limits, self._host.runs
        costs = [len(frame) + RUN_REQUEST_BYTES for frame in frames]
        cost = sum(costs)
        if (
            runs is None
            or self._ending
            or self._host.stopping
            or (self._session is not None and self._session.why is not None)
            or self._held + cost > limits.bytes_under_way
            or len(under_way) + len(numbers) > limits.requests_under_way
            or (self._counted and self._host.memory.exceeded)
            or NO_REQUEST in numbers
            or len(set(numbers)) < len(numbers)
            or not under_way.keys().isdisjoint(numbers)
        ):
            return False
        # Counted before the service has it, as a request alone is.
        under_way.update(zip(numbers, costs, strict=True))
        self._held += cost
        if not runs.submit_run(run, self.caller, partial(self._run_answered, numbers)):
            for number in numbers:
                del under_way[number]
            self._held -= cost
            return False
        if self._held - self._counted > STEP_BYTES:
            self._count()
        if self._counted and self._host.memory.exceeded:
            self._pause()
        return True

    def _submit_alone(self, number: int, request: Request) -> None:
        try:
            self._submit(request, self.caller, partial(self.answered, number))
        except Exception as error:  # the boundary: a mistake in the service must not leave a client without an answer
            self._host.lines.log(logging.ERROR, "a request of %s failed: %r", self.peer, error, error=error)
            message = f"the proxy failed: {type(error).__name__}"
            self.answered(number, Refusal(StatusCode.UNEXPECTED, message, applied=Applied.UNKNOWN))

    def _admitted(self, number: int, request: Request, size: int) -> Request | Refusal:
        """Return the request as the service is to have it, or why it is not begun."""
        admitted = without_security(request) if self._session is None else self._session.admitted(request)
        if isinstance(admitted, Refusal):
            return admitted
        refusal = self._objection(admitted, size)
        if refusal is not None:
            return refusal
        if type(admitted) is ReadBatch:
            self._reads.add(number)
            if admitted.max_bytes > self._limits.read_bytes:
                return replace(admitted, max_bytes=self._limits.read_bytes)
        return admitted

    def _objection(self, request: Request, size: int) -> Refusal | None:
        """Return why a request is not begun, whatever the service would say."""
        host = self._host
        if size + LENGTH_BYTES > self._limits.request_bytes:
            message = f"the request has {size + LENGTH_BYTES} bytes, at most {self._limits.request_bytes} are taken"
            return Refusal(StatusCode.TOO_LARGE_RECORD, message, applied=Applied.WRONG)
        if size > STEP_BYTES and host.memory.exceeded:
            message = "the requests and answers of all clients take all the memory that they may"
            return Refusal(StatusCode.OVER_CAPACITY, message, advice="Ask again later, or ask another proxy")
        if type(request) is ReadBatch and len(self._reads) >= self._limits.reads_under_way:
            message = f"{len(self._reads)} reads are under way on this connection"
            return Refusal(StatusCode.OVER_CAPACITY, message, advice="Use more connections, or fewer readers")
        if host.stopping:
            return Refusal(StatusCode.SERVICE_UNAVAILABLE, "the proxy is being stopped")
        return None

    def _break_off(self, frame: memoryview, error: DistributedLogError) -> None:
        """Say that the bytes are not a request, and end: where the next one begins is not known any more."""
        self._host.lines.log(logging.WARNING, "closing the connection to %s: %s", self.peer, error)
        number: int = HEADER.unpack_from(frame)[3] if len(frame) >= HEADER.size else NO_REQUEST
        if number in self._under_way:
            number = NO_REQUEST  # the answer to the request that was begun under it is not known
        self._send(number, refusal_of(error))
        self.close()  # what had arrived behind it is not begun

    # ------------------------------------------------------------------------------------ answers

    def answered(self, number: int, answer: Answer) -> None:
        """Send the service's answer. It is dropped where the client is gone, or has its answer already."""
        cost = self._under_way.pop(number, None)
        if cost is None:
            if not self.closed:
                self._host.lines.log(logging.ERROR, "the service answered request %d of %s twice", number, self.peer)
            return
        self._held -= cost
        if self._reads:
            self._reads.discard(number)
            if type(answer) is Delivery and self._link.queued_bytes > self._limits.delivery_bytes:
                message = f"{self._link.queued_bytes} bytes of answers were not taken yet"
                answer = Refusal(StatusCode.OVER_CAPACITY, message, advice="Read again from where the reader is")
        self._send(number, answer)
        self._note_answered()

    def _note_answered(self) -> None:
        if self._counted - self._held > STEP_BYTES:
            self._count()
        if self._paused and not self.closed:
            self._try_to_go_on()
        elif self._host.stopping and not self.busy:
            self._host.settled()

    def _run_answered(self, numbers: Sequence[int], first: int, outcome: Sequence[DLSN] | Refusal, count: int) -> None:
        """Send the answers to some writes of a run. They are dropped where the client is gone."""
        theirs = numbers[first : first + count]
        if isinstance(outcome, Refusal):
            for number in theirs:
                self.answered(number, outcome)
        elif not self.closed:
            self._held -= sum(map(self._under_way.pop, theirs))
            self._queue((encode_receipts(theirs, outcome),), count)
            self._note_answered()

    def _send(self, number: int, answer: Answer) -> None:
        try:
            buffers = encode_answer(number, answer)
        except DistributedLogError as error:
            self._host.lines.log(logging.ERROR, "an answer to %s cannot be sent: %s", self.peer, error)
            message = f"it was done, and its answer cannot be sent: {error.message}"
            buffers = encode_answer(number, Refusal(StatusCode.UNEXPECTED, message, applied=Applied.UNKNOWN))
        self._queue(buffers, 1)

    def _queue(self, buffers: Sequence[Buffer], answers: int) -> None:
        """Give the link what `answers` answers are."""
        link = self._link
        link.send(*buffers)
        self._sent += answers
        queued = link.queued_bytes
        if queued > STEP_BYTES and self._watching is None:
            self._watch()
        if queued > self._limits.answer_bytes:
            self._pause()

    # ------------------------------------------------------------------------------------ bounds

    def excuse(self, seconds: float) -> None:
        """Leave this much time out of what the client has let pass."""
        self.opened_at += seconds
        if self._session is not None:
            self._session.excuse(seconds)
        if self.heard_at is not None:
            self.heard_at += seconds
        if self._stuck_since is not None:
            self._stuck_since += seconds

    def look(self, now: float) -> str | None:
        """Return why the connection is to be closed now, None where it is not; called at intervals."""
        limits, queued = self._limits, self._link.queued_bytes
        if self._session is not None:
            over = self._session.look(now, limits.first_request_ms / 1000)
            if over is not None:
                return self._over(self._session, over, now)
        if self.heard_at is None:
            late = (now - self.opened_at) * 1000 > limits.first_request_ms
            return f"it has sent no request within {limits.first_request_ms} ms" if late else None
        # As many bytes in the queue as before, and no answer added: the client has taken nothing meanwhile.
        state = (queued, self._sent)
        if not queued or state != self._sent_before:
            self._sent_before, self._stuck_since = state, None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif (now - self._stuck_since) * 1000 > limits.stuck_ms:
            return f"it has taken none of its answers for {limits.stuck_ms} ms"
        if (now - self.heard_at) * 1000 > limits.idle_ms and not self.busy:
            return f"it has asked nothing for {limits.idle_ms} ms"
        return None

    def _over(self, session: FramesSession, why: str, now: float) -> str | None:
        """Return why the connection is closed now, for its session is over; None while it is not closed yet."""
        if self._left:
            return why if now - self._left_at > LEAVE_S else None
        if len(self._under_way) > len(self._reads):
            # Writes: closed under them, their client would not know whether they were done.
            return why if session.late(now) else None
        # Reads that wait change nothing: their client asks them again, over a connection of its own.
        self._say_end(f"the session has ended: {why}; {NOT_BEGUN_MORE}")
        return None

    def _count(self) -> None:
        """Bring what all connections hold up to date."""
        # Little counts as nothing: of thousands of connections most never change the sum, and none of them is paused.
        held = 0 if self.closed else self._held + self._link.queued_bytes
        held = held if held > STEP_BYTES else 0
        if held != self._counted:
            by, self._counted = held - self._counted, held
            self._host.memory.change(by)

    def _pause(self) -> None:
        """Read no further until `_may_go_on`."""
        if self._paused or self._ending:
            return
        self._paused = True
        self._link.pause_reading()
        self._count()
        self._try_to_go_on()  # what it waits for may be over already, and nothing else would say so

    def _wait_in_line(self, frame: memoryview) -> None:
        if self._ending:
            return
        memory = self._host.memory
        if memory.used > 2 * memory.limit:
            reason = "it goes on sending, and the frames of all clients take twice the memory that they may"
            self._host.lines.log(logging.WARNING, "closing the connection to %s: %s", self.peer, reason)
            self.close()
            return
        if self._line is None:
            self._line = deque()
        size = len(frame) + LINE_FRAME_BYTES
        self._line.append(bytes(frame))
        self._line_bytes += size
        self._held += size
        if self._held - self._counted > STEP_BYTES:
            self._count()

    def _may_go_on(self) -> bool:
        # Without the line, which gets no shorter before the connection goes on. Half of each bound, lest it stops and
        # goes with every request.
        limits, queued = self._limits, self._link.queued_bytes
        if self._held - self._line_bytes > limits.bytes_under_way // 2:
            return False
        if len(self._under_way) > limits.requests_under_way // 2 or queued > limits.answer_bytes // 2:
            return False
        if not self._host.memory.exceeded:
            return True
        self._count()
        if not self._counted:
            return True
        if not (self._under_way or queued):
            return True  # what it holds is its line alone: only going on makes that shorter
        if not self._waits_for_memory:
            self._waits_for_memory = True
            self._host.memory.wait(self._memory_freed)
        return False

    def _memory_freed(self) -> None:
        self._waits_for_memory = False
        self._try_to_go_on()

    def _try_to_go_on(self) -> None:
        """Have the line go on, where there is room again."""
        # Not at once: hundreds of requests may end in one turn of the loop, and the line goes on once for all of them.
        if self._paused and not self._ending and self._may_go_on():
            self._host.turns.join(self._go_on)

    def _go_on(self) -> None:
        """Begin what waits, within the bounds; then read on."""
        if not self._paused or self._ending or not self._may_go_on():
            return
        self._paused = False
        turns = self._host.turns
        deadline = turns.now() + turns.share_s
        line = self._line
        while line and not self._paused and not self._ending:
            if turns.now() > deadline:
                self._paused = True  # tens of thousands may wait: the rest is for the next turns of the loop
                turns.join(self._go_on)
                return
            frame = line.popleft()
            size = len(frame) + LINE_FRAME_BYTES
            self._line_bytes -= size
            self._held -= size
            self._begin(memoryview(frame))
        if not self._paused and not self._ending:
            self._line = None
            self._link.resume_reading()

    def _watch(self) -> None:
        """Have a look again once the socket has taken what is queued."""
        if not self.closed:
            self._count()
            self._watching = self._loop.create_task(self._drained())
            self._watching.add_done_callback(self._looked)

    async def _drained(self) -> None:
        try:
            await self._link.drain()
        except ConnectionClosedError:
            return

    def _looked(self, _task: asyncio.Task[None]) -> None:
        self._watching = None
        if self.closed:
            return
        if self._link.queued_bytes > STEP_BYTES:
            # More was queued since the socket took what was waited for: where it paused the connection, nothing else
            # would say that it may go on.
            self._watch()
        self._count()
        self._try_to_go_on()
        if self._host.stopping and not self.busy:
            self._host.settled()
