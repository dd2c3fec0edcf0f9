"""One connection's requests: decoded, decided, answered (wire specification, section 7).

Answers may come in any order. What a connection may have under way is bounded: beyond IN_FLIGHT_BYTES of requests and
unsent answers its socket is not read, and what was already read waits in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

from storage_node.bookie.journal import Answers
from storage_node.bookie.ledgers import LacWaiter, Ledger
from storage_node.bookie.listing import availability
from storage_node.bookie.storage import Storage
from storage_node.edge import Clock, Link
from storage_node.errors import ConnectionClosedError, ProtocolError
from storage_node.protocol import messages as m
from storage_node.protocol.messages import Operation, Status

logger = logging.getLogger(__name__)

IN_FLIGHT_BYTES = 32 * 1024 * 1024
RESUME_BYTES = IN_FLIGHT_BYTES // 2
REQUEST_BYTES = 512
"""What a request without a body counts."""
ROOM_WAIT_S = 10.0
"""How long adds wait for memory before they are refused with ETOOMANYREQUESTS."""
ROOM_RETRY_S = 0.05
MAX_POLL_S = 3600.0
NO_AUTH_PLUGIN = "AuthDisabledPlugin"


class Node(Protocol):
    """What connections need of their bookie."""

    @property
    def storage(self) -> Storage: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def takes_high_priority(self) -> bool:
        """While read-only: recovery's adds are still taken."""
        ...

    def disk_space(self) -> tuple[int, int]:
        """(total, free) bytes of the ledger disks."""
        ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    """Handles the frames of one link."""

    def __init__(self, node: Node, link: Link) -> None:
        self._node = node
        self._storage = node.storage
        self._link = link
        self._in_flight = 0
        self._backlog: deque[memoryview] = deque()
        self._throttled = False
        self._parked_until: float | None = None
        self._room_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls: set[LacWaiter] = set()
        self._closed = False
        self._handlers: dict[type, Callable[..., None]] = {
            m.ReadRequest: self._read,
            m.ReadLacRequest: self._read_lac,
            m.WriteLacRequest: self._write_lac,
            m.ForceLedgerRequest: self._force,
            m.BookieInfoRequest: self._info,
            m.ListEntriesRequest: self._list,
            m.AuthRequest: self._auth,
            m.StartTlsRequest: self._start_tls,
            m.UnsupportedRequest: self._unsupported,
        }

    def close(self) -> None:
        self._link.close()

    # ------------------------------------------------------------------------------------ frames in, bounds

    def frame_received(self, frame: memoryview) -> None:
        if self._throttled:
            self._backlog.append(frame)
        else:
            self._handle(frame)

    def batch_done(self) -> None:
        """Nothing to do: each answer is queued when it is ready, and the link sends what is queued together."""

    def link_closed(self, error: Exception | None) -> None:
        self._closed = True
        self._backlog.clear()
        if self._room_timer is not None:
            self._room_timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for poll in list(self._polls):
            poll.cancel()
        self._polls.clear()
        self._node.closed(self)

    def _handle(self, frame: memoryview) -> None:
        if not self._add_quickly(frame):
            self._handle_request(frame)
        if self._in_flight + self._link.queued_bytes > IN_FLIGHT_BYTES:
            self._throttle()

    def _add_quickly(self, frame: memoryview) -> bool:
        """The hot path: an ordinary add that is stored. Everything else, refusals too, is for `_handle_request`."""
        add = m.decode_add_and_answer(frame)
        if add is None or self._node.read_only:
            return False
        answer, key, body = add
        if self._storage.add(body, key, False, self, answer) is not Status.EOK:
            return False
        self._in_flight += len(body) + REQUEST_BYTES
        return True

    def _handle_request(self, frame: memoryview) -> None:
        request = m.decode_request(frame)
        if isinstance(request, m.AddRequest):
            if not self._try_add(request):
                self._park(frame)
        else:
            self._handlers[type(request)](request)

    def _throttle(self) -> None:
        """Read no further until half of what is under way is done."""
        if not self._throttled and not self._closed:
            self._throttled = True
            self._link.pause_reading()
            self._watch_socket()

    def _watch_socket(self) -> None:
        if not self._draining and self._link.queued_bytes:
            self._draining = True
            self._spawn(self._wait_for_socket(), 0)

    async def _wait_for_socket(self) -> None:
        try:
            await self._link.drain()
        except ConnectionClosedError:
            return
        finally:
            self._draining = False
        self._go_on()

    def _done(self, cost: int) -> None:
        """A request of that cost was answered."""
        self._in_flight -= cost
        if self._throttled and self._in_flight <= RESUME_BYTES:
            self._go_on()

    def _go_on(self) -> None:
        """Handle what waits, as far as the bound allows; then read on."""
        if not self._throttled or self._closed or self._parked_until is not None:
            return
        if self._in_flight > RESUME_BYTES:
            return
        if self._link.queued_bytes > RESUME_BYTES:
            self._watch_socket()
            return
        self._throttled = False
        while self._backlog and not self._throttled and not self._closed:
            self._handle_late(self._backlog.popleft())
        if not self._throttled:
            self._link.resume_reading()

    def _handle_late(self, frame: memoryview) -> None:
        """Handle a frame outside of the link's own delivery: an error must close the link here too."""
        try:
            self._handle(frame)
        except ProtocolError as error:
            logger.warning("closing the connection to %s: %s", self._link.peer, error)
            self._link.close()
        except Exception:  # the boundary: one peer's request must not stop the loop
            logger.exception("closing the connection to %s", self._link.peer)
            self._link.close()

    # ------------------------------------------------------------------------------------ adds

    def _try_add(self, request: m.AddRequest) -> bool:
        """Store or refuse an add; False: there is no memory for it at present."""
        node = self._node
        if node.read_only and not (request.priority > 0 and node.takes_high_priority):
            self._refuse_add(request, Status.EREADONLY)
            return True
        answer = m.encode_add_response(request.txn_id, 0, request.ledger_id, request.entry_id)
        status = self._storage.add(request.body, request.master_key, request.recovery, self, answer)
        if status is Status.EOK:
            self._in_flight += len(request.body) + REQUEST_BYTES
        elif status is None:
            return False
        else:
            self._refuse_add(request, status)
        return True

    def durable(self, answers: Answers) -> None:
        """The records of these adds are durable: their answers leave as one piece."""
        self._link.send(b"".join(answers.frames))
        self._done(answers.bytes_stored + REQUEST_BYTES * len(answers.frames))

    def _acknowledge(self, answer: bytes) -> None:
        """The record is durable."""
        self._link.send(answer)
        self._done(REQUEST_BYTES)

    def _refuse_add(self, request: m.AddRequest, status: Status) -> None:
        self._link.send(m.encode_add_response(request.txn_id, status, request.ledger_id, request.entry_id))

    def _park(self, frame: memoryview) -> None:
        """No memory: this add and what follows it on this connection wait for room."""
        self._backlog.appendleft(frame)
        self._parked_until = asyncio.get_running_loop().time() + ROOM_WAIT_S
        self._throttle()
        self._watch_room()

    def _watch_room(self) -> None:
        self._storage.when_room(self._unpark)
        self._room_timer = asyncio.get_running_loop().call_later(ROOM_RETRY_S, self._unpark)

    def _unpark(self) -> None:
        """Try the parked add again; refuse it when its time is over."""
        if self._parked_until is None or self._closed:
            return
        if self._room_timer is not None:
            self._room_timer.cancel()
        request = m.decode_request(self._backlog[0])
        if isinstance(request, m.AddRequest) and not self._try_add(request):
            if asyncio.get_running_loop().time() < self._parked_until:
                self._watch_room()
                return
            self._refuse_add(request, Status.ETOOMANYREQUESTS)
        self._backlog.popleft()
        self._parked_until = None
        self._go_on()

    # ------------------------------------------------------------------------------------ reads

    def _read(self, request: m.ReadRequest) -> None:
        if request.fence:
            self._fence(request)
        elif request.previous_lac is not None:
            self._poll(request, request.previous_lac)
        else:
            self._plain_read(request)

    def _plain_read(self, request: m.ReadRequest) -> None:
        found = self._storage.find(request.ledger_id, request.entry_id)
        if isinstance(found, Status):
            self._refuse_read(request, found)
            return
        ledger, entry_id = found
        body = self._storage.read_now(ledger, entry_id)
        if body is not None:
            self._send_entry(request, request.entry_id, body, ledger.lac)
            return
        cost = self._storage.size_of(ledger, entry_id) + REQUEST_BYTES
        self._spawn(self._read_from_disk(request, ledger, entry_id), cost)

    async def _read_from_disk(self, request: m.ReadRequest, ledger: Ledger, entry_id: int) -> None:
        body = await self._storage.read(ledger, entry_id)
        if body is None:
            again = self._storage.find(request.ledger_id, request.entry_id)
            self._refuse_read(request, again if isinstance(again, Status) else Status.EIO)  # deleted meanwhile?
        else:
            self._send_entry(request, request.entry_id, body, ledger.lac)

    def _fence(self, request: m.ReadRequest) -> None:
        key = request.master_key
        pending = Status.EUA if key is None else self._storage.fence(request.ledger_id, key)
        if isinstance(pending, Status):
            self._refuse_read(request, pending)
        else:
            self._spawn(self._finish_fence(request, pending), REQUEST_BYTES)

    async def _finish_fence(self, request: m.ReadRequest, pending: asyncio.Future[None]) -> None:
        """Answer once the fence is durable, whatever the read finds (D19)."""
        found = self._storage.find(request.ledger_id, request.entry_id)
        body = None if isinstance(found, Status) else await self._storage.read(*found)
        await asyncio.shield(pending)
        if isinstance(found, Status):
            self._refuse_read(request, found)
        elif body is None:
            self._refuse_read(request, Status.EIO)
        else:
            self._send_entry(request, request.entry_id, body, None)

    def _send_entry(
        self, request: m.ReadRequest, entry_id: int, body: memoryview, lac: int | None, stamp: int | None = None
    ) -> None:
        head, tail = m.encode_read_response(
            request.txn_id,
            0,
            request.ledger_id,
            entry_id,
            len(body),
            max_lac=lac,
            lac_update_timestamp_ms=stamp,
        )
        self._link.send(head, body, tail)

    def _refuse_read(self, request: m.ReadRequest, status: Status) -> None:
        self._link.send(m.encode_read_response(request.txn_id, status, request.ledger_id, request.entry_id)[0])

    # ------------------------------------------------------------------------------------ long polls

    def _poll(self, request: m.ReadRequest, previous_lac: int) -> None:
        """Wait for the LAC to pass `previous_lac`, or for the other things that end a long poll (7.6)."""
        if request.timeout_ms is None:
            self._spawn(self._finish_poll(request, previous_lac, False), REQUEST_BYTES)
            return
        ledger = self._storage.ledgers.get(request.ledger_id)
        if ledger is None:
            found = self._storage.find(request.ledger_id, -1)
            self._refuse_read(request, found if isinstance(found, Status) else Status.ENOLEDGER)
        elif ledger.lac > previous_lac:
            self._spawn(self._finish_poll(request, previous_lac, False), REQUEST_BYTES)
        else:
            self._wait_for_lac(request, ledger, previous_lac, min(max(request.timeout_ms, 0) / 1000, MAX_POLL_S))

    def _wait_for_lac(self, request: m.ReadRequest, ledger: Ledger, previous_lac: int, timeout_s: float) -> None:
        def finished(advanced: bool) -> None:
            self._polls.discard(waiter)
            self._spawn(self._finish_poll(request, previous_lac, advanced), REQUEST_BYTES)
            self._done(REQUEST_BYTES)

        waiter = LacWaiter(ledger, previous_lac, timeout_s, finished)
        self._polls.add(waiter)
        self._in_flight += REQUEST_BYTES

    async def _finish_poll(self, request: m.ReadRequest, previous_lac: int, advanced: bool) -> None:
        if not request.piggyback:
            self._plain_read(request)
            return
        if request.entry_id != -1:
            self._refuse_read(request, Status.EBADREQ)
            return
        stamp = self._node.clock.now_ms() if advanced else None
        found = self._storage.find(request.ledger_id, -1)
        if isinstance(found, Status):
            self._refuse_read(request, found)
            return
        ledger = found[0]
        lac = ledger.lac
        wanted = self._storage.find(request.ledger_id, previous_lac + 1) if lac > previous_lac else Status.ENOENTRY
        if isinstance(wanted, Status) or previous_lac + 1 < 0:
            answer, _ = m.encode_read_response(request.txn_id, 0, request.ledger_id, -1, max_lac=lac)
            self._link.send(answer)
            return
        body = await self._storage.read(*wanted)
        if body is None:
            self._refuse_read(request, Status.EIO)
        else:
            self._send_entry(request, wanted[1], body, lac, stamp)

    # ------------------------------------------------------------------------------------ the rest

    def _read_lac(self, request: m.ReadLacRequest) -> None:
        self._spawn(self._finish_read_lac(request), REQUEST_BYTES)

    async def _finish_read_lac(self, request: m.ReadLacRequest) -> None:
        ledger = self._storage.ledgers.get(request.ledger_id)
        explicit = None if ledger is None else ledger.explicit_lac
        found = self._storage.find(request.ledger_id, -1)
        body = None if isinstance(found, Status) else await self._storage.read(*found)
        status = Status.EOK
        if not isinstance(found, Status) and body is None:
            status = Status.EIO
        elif explicit is None and body is None:
            status = Status.EUNKNOWNLEDGERSTATE if self._storage.lossy else Status.ENOENTRY
        self._link.send(m.encode_read_lac_response(request.txn_id, status, request.ledger_id, explicit, body))

    def _write_lac(self, request: m.WriteLacRequest) -> None:
        answer = partial(m.encode_write_lac_response, request.txn_id, ledger_id=request.ledger_id)
        if self._node.read_only:
            self._link.send(answer(status=Status.EREADONLY))
            return
        acknowledge = partial(self._acknowledge, answer(status=Status.EOK))
        status = self._storage.write_lac(request.ledger_id, request.master_key, request.body, acknowledge)
        if status is Status.EOK:
            self._in_flight += REQUEST_BYTES
        else:
            self._link.send(answer(status=status))

    def _force(self, request: m.ForceLedgerRequest) -> None:
        answer = m.encode_force_ledger_response(request.txn_id, Status.EOK, request.ledger_id)
        self._in_flight += REQUEST_BYTES
        self._storage.journal.barrier(partial(self._acknowledge, answer))

    def _info(self, request: m.BookieInfoRequest) -> None:
        total, free = self._node.disk_space()
        answer = m.encode_bookie_info_response(
            request.txn_id,
            Status.EOK,
            total if request.requested & 1 else None,
            free if request.requested & 2 else None,
        )
        self._link.send(answer)

    def _list(self, request: m.ListEntriesRequest) -> None:
        ledger = self._storage.ledgers.get(request.ledger_id)
        if ledger is None or self._storage.lossy:
            status = Status.EUNKNOWNLEDGERSTATE if self._storage.lossy else Status.ENOLEDGER
            self._link.send(m.encode_list_entries_response(request.txn_id, status, request.ledger_id))
            return
        blob = availability(ledger.index.ranges())
        self._link.send(m.encode_list_entries_response(request.txn_id, Status.EOK, request.ledger_id, blob))

    def _auth(self, request: m.AuthRequest) -> None:
        self._link.send(m.encode_auth_response(request.txn_id, Status.EOK, NO_AUTH_PLUGIN))

    def _start_tls(self, request: m.StartTlsRequest) -> None:
        self._link.send(m.encode_error_response(request.txn_id, Operation.START_TLS, Status.EBADREQ))

    def _unsupported(self, request: m.UnsupportedRequest) -> None:
        self._link.send(m.encode_error_response(request.txn_id, request.operation, request.status))

    def _spawn(self, work: Coroutine[object, object, None], cost: int) -> None:
        """Run what has to wait as a task of this connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._in_flight += cost
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, cost))

    def _finished(self, cost: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("closing the connection to %s", self._link.peer, exc_info=error)
            self._link.close()
        if not self._closed:
            self._done(cost)
