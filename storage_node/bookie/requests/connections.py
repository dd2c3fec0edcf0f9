"""One connection's requests: decoded, decided, answered (docs/reference/wire.md#bookie-promises).

A frame that came in is an add that is stored in the same step (the hot path), or it is decoded by the version that its
connection speaks (`dialects`), and begun by its handler (`reads`, `handlers`), to which the connection hands its
`Requester`. How much may be under way is bounded by `limits`.

Answers may come in any order. What cannot be begun now waits in line and stops the socket from being read; requests of
high priority (recovery's) have a line of their own, and are begun first (docs/reference/wire.md#priorities).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from metadata.security.principals import Principal
from storage_node.bookie.journal.batches import Answers
from storage_node.bookie.requests import handlers, reads
from storage_node.bookie.requests.dialects import VERSION_THREE, VERSION_TWO, Heard, Misversioned, dialect_of
from storage_node.bookie.requests.limits import (
    ALLOWANCE_BYTES,
    IN_FLIGHT_BYTES,
    REQUEST_BYTES,
)
from storage_node.bookie.requests.requester import NodeServices, Requester, Wait
from storage_node.bookie.store.runs import SMALL_BYTES
from storage_node.edge import Link
from storage_node.errors import ProtocolError, TooManyFieldsError
from storage_node.protocol.encoding import encode_write_lac_response
from storage_node.protocol.schema import Status
from storage_node.protocol.values import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    StartTlsRequest,
    UnsupportedRequest,
    WriteLacRequest,
)

ADDS_AT_ONCE = 64
"""Adds of one read that are stored together, at most: others wait for no more."""
ROOM_WAIT_S = 10.0
"""How long adds wait for memory before they are refused with ETOOMANYREQUESTS."""
ROOM_RETRY_S = 0.05


class ConnectionOwner(NodeServices, Protocol):
    """Which services does a connection need of its node?"""

    def heard(self, connection: ServedConnection) -> None:
        """Note that something came from this connection."""
        ...

    def closed(self, connection: ServedConnection) -> None:
        """Note that the connection's link is closed; nothing comes from it any more."""
        ...


class ServedConnection:
    """Handles the frames of one link."""

    def __init__(self, node: ConnectionOwner, link: Link) -> None:
        self.node = node
        self.storage = node.storage
        self.link = link
        self.dialect = VERSION_THREE
        self.principal: Principal | None = None
        """Who the client has proved to be, where that was asked for."""
        self._requester = Requester(node, link, self._go_on_in_turn, lambda: self.principal)
        self.flow = self._requester.flow
        self._adds: list[memoryview] = []
        """Adds of the read that is being delivered, which are stored together."""
        self._add_gate = node.limits.adds if node.limits.adds.limit else None
        self._reads = node.limits.reads
        self.traffic = node.limits.traffic
        self._urgent: deque[bytes] = deque()
        self._line: deque[bytes] = deque()
        self._held = 0
        """Bytes in both."""
        self._blocked = False
        self._blocked_until: float | None = None
        self._room_timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The client's `host:port`."""
        return self.link.peer

    def close(self) -> None:
        """Close the link; what is under way for it ends without an answer."""
        self.link.close()

    # ------------------------------------------------------------------------------------ frames in

    def frame_received(self, frame: memoryview) -> None:
        """Handle a request, or let it wait while the connection's bounds are reached."""
        if not self.flow.stopped:
            # The hot path: an add, which is stored with those that came with it.
            place, operation = self.dialect.add_mark
            if len(frame) > place and frame[place] == operation:
                self._adds.append(frame)
                if len(self._adds) == ADDS_AT_ONCE:
                    self._store_adds()
                return
            if self._adds:
                self._store_adds()  # requests of a connection are begun in the order in which they came
        self._take(frame)

    def batch_done(self) -> None:
        """Store the adds that came. Look at what the socket does not take of the answers, which leave by themselves:
        that counts."""
        if self._adds:
            try:
                self._store_adds(last=True)
            finally:
                self.storage.journal.send_off()
        self.node.heard(self)
        if self.link.queued_bytes > ALLOWANCE_BYTES:
            asyncio.get_running_loop().call_soon(self.flow.check)

    def link_closed(self, error: Exception | None) -> None:
        """End what runs and waits for this client. Adds that were taken are still stored."""
        self.flow.close()
        self._adds.clear()
        self._hold(-self._held)
        self._urgent.clear()
        self._line.clear()
        if self._room_timer is not None:
            self._room_timer.cancel()
        self._requester.cancel_tasks()
        self.node.limits.turns.leave(self._go_on)
        self._requester.cancel_polls()
        self.node.closed(self)

    def _take(self, frame: memoryview) -> None:
        """Begin a request, or let it wait while the connection's bounds are reached."""
        if self.flow.stopped:
            self._wait_in_line(bytes(frame))  # a copy: the chunk that the frame lies in is not to wait with it
            return
        self._begin(frame)
        self.flow.check()

    def _store_adds(self, last: bool = False) -> None:
        """Store the adds that came together, in their order: those that are ordinary in runs. Everything else, refusals
        too, is for `_begin`. `last`: this read brought no more.
        """
        frames, self._adds = self._adds, []
        flow, gate, at = self.flow, self._add_gate, 0
        while at < len(frames):
            most = len(frames) if gate is None else at + gate.room
            may = at < most and not (flow.stopped or self.node.read_only)
            run = self._store_next(frames, at, most, last) if may else None
            if run is None:
                self._take(frames[at])
                at += 1
                continue
            count, size = run
            at += count
            if gate is not None:
                gate.take(count)
            flow.in_flight += size + REQUEST_BYTES * count
            if flow.in_flight > IN_FLIGHT_BYTES:
                flow.stop()

    def _store_next(self, frames: list[memoryview], at: int, most: int, last: bool) -> tuple[int, int] | None:
        """Store the ordinary adds from `at` on as far as they are a run, or a large one: (how many, bytes of their
        entries). None: the first one is for `_begin`.
        """
        if len(frames[at]) <= SMALL_BYTES:
            return self.storage.add_run(frames[at:most], self.dialect.quick_add, self, last)
        found = self.dialect.quick_add(frames[at])
        if found is None:
            return None
        answer, key, body = found
        # A refusal, and what has to wait for memory, changes nothing: `_begin` then comes to the same, and answers.
        return (1, len(body)) if self.storage.add(body, key, False, self, answer) is Status.EOK else None

    def _decode(self, frame: memoryview) -> Heard:
        """Return what is asked. What version 3 cannot read turns the connection to version 2, for good."""
        try:
            return self.dialect.decode(frame)
        except TooManyFieldsError:
            raise  # a message of version 3 in any case: no packet of version 2 begins like one
        except ProtocolError:
            if self.dialect is VERSION_TWO:
                raise
        request = VERSION_TWO.decode(frame)
        self.dialect = VERSION_TWO
        return request

    # ------------------------------------------------------------------------------------ requests that have to wait

    def _begin(self, frame: memoryview) -> None:
        """Handle a request, or let it and what follows it on this connection wait."""
        request = self._decode(frame)
        wait = self._handle(request)
        if wait is None:
            return
        if isinstance(request, (AddRequest, WriteLacRequest)) and wait == self.storage.when_room:
            waiting = self.node.limits.waiting
            if waiting.used + len(frame) > waiting.limit:
                self.link.send(_too_late(request))  # thousands of large ones would wait in memory for memory
                return
        self._hold(len(frame))
        (self._urgent if _is_urgent(request) else self._line).appendleft(bytes(frame))
        self._block(wait)
        self.flow.stop()

    def _wait_in_line(self, frame: bytes) -> None:
        """Put a frame behind those that wait already. What is urgent does not wait for these."""
        request = self._decode(memoryview(frame))
        if not _is_urgent(request):
            self._line.append(frame)
        elif self._urgent or self.flow.overfull or self._handle(request) is not None:
            self._urgent.append(frame)
        else:
            return
        self._hold(len(frame))

    def _hold(self, size: int) -> None:
        """Count bytes of frames that wait in line: more, or less where negative."""
        self._held += size
        self.node.limits.waiting.change(size)

    def _block(self, wait: Wait) -> None:
        self._blocked = True
        if wait == self.storage.when_room:
            loop = asyncio.get_running_loop()
            if self._blocked_until is None:
                self._blocked_until = loop.time() + ROOM_WAIT_S
            self._room_timer = loop.call_later(ROOM_RETRY_S, self._unblock)
        wait(self._unblock)

    def _unblock(self) -> None:
        if not self._blocked or self.flow.closed:
            return
        self._blocked = False
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        self._go_on(retry=True)

    def _go_on_in_turn(self) -> None:
        """Go on in a later share of the loop: hundreds of requests may end in one turn of it, and each may let as many
        others begin as fit in one.
        """
        self.node.limits.turns.join(self._go_on)

    def _go_on(self, *, retry: bool = False) -> None:
        """Handle what waits, within the bounds; then read on. A `retry` was within them when it was begun."""
        flow = self.flow
        if not flow.stopped or self._blocked or flow.closed or not (retry or flow.may_go_on()):
            return
        flow.stopped = False
        turns = self.node.limits.turns
        deadline = turns.now() + turns.share_s
        while (self._urgent or self._line) and not flow.stopped and not flow.closed:
            if turns.now() > deadline:
                flow.stopped = True  # tens of thousands may wait: the rest is for the next turns
                turns.join(self._go_on)
                return
            line = self._urgent or self._line
            wait = self._handle_late(memoryview(line[0]))
            if wait is not None:
                self._block(wait)
                flow.stopped = True
                return
            self._hold(-len(line.popleft()))
            flow.check()
        if not flow.stopped and not flow.closed:
            self._blocked_until = None
            flow.resume()

    def _handle_late(self, frame: memoryview) -> Wait | None:
        """Handle a frame outside of the link's own delivery: an error must close the link here too."""
        try:
            request = self._decode(frame)
            wait = self._handle(request)
        except Exception as error:  # the boundary: one peer's request must not stop the loop
            self._requester.fail(error)
            return None
        if wait is None:
            self._blocked_until = None
        elif self._is_late(wait) and isinstance(request, (AddRequest, WriteLacRequest)):
            self.link.send(_too_late(request))
            return None  # what waited behind it is late too, if it finds no memory either
        return wait

    def _is_late(self, wait: Wait) -> bool:
        """Return whether what this connection stores has waited long enough for memory."""
        if wait != self.storage.when_room or self._blocked_until is None:
            return False
        return asyncio.get_running_loop().time() >= self._blocked_until

    def _handle(self, request: Heard) -> Wait | None:
        """Begin a request. None, or what to wait for before trying again."""
        if isinstance(request, AddRequest):
            return self._add(request)
        if self._reads.closed and isinstance(request, (ReadRequest, BatchReadRequest)) and not _is_urgent(request):
            return self._reads.wait
        if isinstance(request, WriteLacRequest):
            return handlers.write_lac(self._requester, request)
        HANDLERS[type(request)](self._requester, request)
        return None

    # ------------------------------------------------------------------------------------ adds

    def _add(self, request: AddRequest) -> Wait | None:
        """Store or refuse an add; else what it has to wait for."""
        node, urgent = self.node, request.priority > 0
        if node.read_only and not (urgent and node.takes_high_priority):
            self.link.send(dialect_of(request).added(request, Status.EREADONLY))
            return None
        gate = self._add_gate
        if gate is not None and gate.closed and not urgent:
            return gate.wait
        answer = dialect_of(request).added(request, Status.EOK)
        deferred = request.deferred_sync and not request.recovery
        status = self.storage.add(request.body, request.master_key, request.recovery, self, answer, deferred)
        if status is None:
            return self.storage.when_room
        if status is Status.EOK:
            if gate is not None:
                gate.take()
            self.flow.in_flight += len(request.body) + REQUEST_BYTES
        else:
            if status is Status.EUA:
                self._requester.note_another_key(int.from_bytes(request.body[:8], "big"), "AddRequest")
            self.link.send(dialect_of(request).added(request, status))
        return None

    def durable(self, answers: Answers) -> None:
        """Send the answers of these adds, whose records are durable, as one piece."""
        frames = answers.frames
        self.link.send(b"".join(frames))
        self.traffic.adds += len(frames)
        self.traffic.add_bytes += answers.bytes_stored
        if self._add_gate is not None:
            self._add_gate.give(len(frames))
        self.flow.done(answers.bytes_stored + REQUEST_BYTES * len(frames))


def _too_late(request: AddRequest | WriteLacRequest) -> bytes:
    """Return the answer to a request that has waited too long for memory."""
    if isinstance(request, AddRequest):
        return dialect_of(request).added(request, Status.ETOOMANYREQUESTS)
    return encode_write_lac_response(request.txn_id, Status.ETOOMANYREQUESTS, request.ledger_id)


def _is_urgent(request: Heard) -> bool:
    """Return whether a request is a recovery's: its reads and adds carry a priority, and only recovery asks for
    fences.
    """
    if isinstance(request, (AddRequest, ReadRequest, BatchReadRequest)):
        return request.priority > 0 or (not isinstance(request, AddRequest) and request.fence)
    return False


HANDLERS: Mapping[type, Callable[..., None]] = {
    ReadRequest: reads.read,
    BatchReadRequest: reads.batch_read,
    ReadLacRequest: reads.read_lac,
    ForceLedgerRequest: handlers.force,
    BookieInfoRequest: handlers.info,
    ListEntriesRequest: handlers.list_entries,
    AuthRequest: handlers.auth,
    StartTlsRequest: handlers.start_tls,
    UnsupportedRequest: handlers.unsupported,
    Misversioned: handlers.misversioned,
}
"""The handler of each kind of request but those that store something, which may have to wait for memory."""
