"""Long polls: reads that wait for the LAC to move on (docs/reference/wire.md#long-poll)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_node.bookie.requests import reads
from storage_node.bookie.requests.dialects import dialect_of
from storage_node.bookie.requests.flow import REQUEST_BYTES
from storage_node.bookie.store.ledgers import Ledger
from storage_node.bookie.store.waiters import LacWaiter, LacWaiters
from storage_node.protocol import messages as m
from storage_node.protocol.messages import Status

if TYPE_CHECKING:
    from storage_node.bookie.requests.connections import Connection

MAX_POLL_S = 3600.0


def poll(connection: Connection, request: m.ReadRequest, previous_lac: int) -> None:
    """Answer once the LAC has passed `previous_lac`, or when another thing ends the long poll."""
    if request.timeout_ms is None:
        _finish(connection, request, previous_lac, False)
        return
    ledger = connection.storage.ledgers.get(request.ledger_id)
    if ledger is None:
        found = connection.storage.find(request.ledger_id, -1)
        reads.refuse(connection, request, found if isinstance(found, Status) else Status.ENOLEDGER)
    elif ledger.lac > previous_lac:
        _finish(connection, request, previous_lac, False)
    else:
        _wait(connection, request, ledger, previous_lac, min(max(request.timeout_ms, 0) / 1000, MAX_POLL_S))


def _wait(connection: Connection, request: m.ReadRequest, ledger: Ledger, previous_lac: int, timeout_s: float) -> None:
    parked = connection.node.limits.polls

    def finished(advanced: bool) -> None:
        connection.polls.discard(waiter)
        parked.discard(waiter)
        if connection.flow.overfull:
            _finish_small(connection, request)
        else:
            _finish(connection, request, previous_lac, advanced)
        connection.flow.done(REQUEST_BYTES)
        connection.flow.check()  # no frame of this connection's own may follow that would have it looked at

    if ledger.waiters is None:
        ledger.waiters = LacWaiters(ledger)
    waiter = LacWaiter(ledger.waiters, previous_lac, finished)
    waiter.limit(timeout_s, parked.timed_out)
    connection.flow.in_flight += REQUEST_BYTES
    connection.polls.add(waiter)
    parked.add(waiter)


def _finish(connection: Connection, request: m.ReadRequest, previous_lac: int, advanced: bool) -> None:
    """The wait is over: answer from memory at once, else begin to read.

    At once means in the turn of the loop in which the LAC moved on, before the journal begins to sync what moved it: a
    reader at the tail waits for this answer.
    """
    if not request.piggyback:
        reads.plain_read(connection, request)
        return
    if request.entry_id != -1:
        reads.refuse(connection, request, Status.EBADREQ)
        return
    storage = connection.storage
    found = storage.find(request.ledger_id, -1)
    if isinstance(found, Status):
        reads.refuse(connection, request, found)
        return
    stamp_ms = connection.node.clock.now_ms() if advanced else None
    lac = found[0].lac
    wanted = storage.find(request.ledger_id, previous_lac + 1) if lac > previous_lac >= -1 else Status.ENOENTRY
    if isinstance(wanted, Status):
        connection.link.send(dialect_of(request).no_entry(request, Status.EOK, lac))
        return
    body = storage.read_now(*wanted)
    if body is not None:
        reads.send_entry(connection, request, wanted[1], body, lac, stamp_ms)
        return
    cost = REQUEST_BYTES + storage.size_of(*wanted)
    connection.spawn(_answer_from_disk(connection, request, wanted, lac, stamp_ms), cost)


def _finish_small(connection: Connection, request: m.ReadRequest) -> None:
    """Answer without an entry: polls that one large entry ends, by the thousand, were admitted as small requests, and
    nobody takes their answers. Who only reads late is told the LAC, and reads what is behind it by itself."""
    found = connection.storage.find(request.ledger_id, -1)
    if isinstance(found, Status) or not request.piggyback:
        reads.refuse(connection, request, found if isinstance(found, Status) else Status.ETOOMANYREQUESTS)
    else:
        connection.link.send(dialect_of(request).no_entry(request, Status.EOK, found[0].lac))


async def _answer_from_disk(
    connection: Connection, request: m.ReadRequest, wanted: tuple[Ledger, int], lac: int, stamp_ms: int | None
) -> None:
    body = await reads.fetch(connection, *wanted, urgent=False)
    if body is None:
        reads.refuse(connection, request, reads.why_not(connection, request))
    else:
        reads.send_entry(connection, request, wanted[1], body, lac, stamp_ms)
