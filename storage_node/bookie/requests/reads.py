"""Reads of entries: plain (docs/reference/wire.md#plain-reads), fencing (docs/reference/wire.md#fencing-reads), and
batches (docs/reference/wire.md#version-2-batch-read)."""

from __future__ import annotations

import asyncio

from storage_node.bookie.disk.records import HEADER_BYTES
from storage_node.bookie.requests.dialects import dialect_of, refuse_batch
from storage_node.bookie.requests.limits import REQUEST_BYTES
from storage_node.bookie.requests.requester import Requester
from storage_node.bookie.store.contents import Ledger
from storage_node.bookie.store.waiters import LacWaiter, LacWaiters
from storage_node.protocol import v2
from storage_node.protocol.encoding import encode_read_lac_response
from storage_node.protocol.schema import Status
from storage_node.protocol.values import BatchReadRequest, ReadLacRequest, ReadRequest


def read(requester: Requester, request: ReadRequest) -> None:
    """Answer a read of any kind. A fence wins over a long poll."""
    if request.fence:
        _fence(requester, request)
    elif request.previous_lac is not None:
        _poll(requester, request, request.previous_lac)
    else:
        plain_read(requester, request)


def plain_read(requester: Requester, request: ReadRequest) -> None:
    """Answer from memory at once, else from the disk, without fencing or waiting for a LAC."""
    storage = requester.storage
    found = storage.find(request.ledger_id, request.entry_id)
    if isinstance(found, Status):
        refuse(requester, request, found)
        return
    ledger, entry_id = found
    body = storage.read_now(ledger, entry_id)
    if body is not None:
        send_entry(requester, request, request.entry_id, body, ledger.lac)
        return
    requester.spawn(_read_from_disk(requester, request, ledger, entry_id), storage.size_of(ledger, entry_id))


async def _read_from_disk(requester: Requester, request: ReadRequest, ledger: Ledger, entry_id: int) -> None:
    body = await fetch(requester, ledger, entry_id, urgent=request.priority > 0)
    if body is None:
        refuse(requester, request, why_not(requester, request))
    else:
        send_entry(requester, request, request.entry_id, body, ledger.lac)


async def fetch(requester: Requester, ledger: Ledger, entry_id: int, *, urgent: bool) -> memoryview | None:
    """Return an entry from memory or disk; None where it cannot be read intact (I12)."""
    body = requester.storage.read_now(ledger, entry_id)
    if body is not None:
        return body
    turnstile = requester.node.limits.disk_reads
    await turnstile.enter(requester, urgent=urgent)
    try:
        if requester.flow.closed:
            return None  # the client that asked for it is gone
        return await requester.storage.read(ledger, entry_id)
    finally:
        turnstile.leave()


def why_not(requester: Requester, request: ReadRequest | BatchReadRequest) -> Status:
    """Return the status for an entry that was found and could not be read: it is damaged, or was deleted meanwhile."""
    again = requester.storage.find(request.ledger_id, request.entry_id)
    return again if isinstance(again, Status) else Status.EIO


def send_entry(
    requester: Requester,
    request: ReadRequest,
    entry_id: int,
    body: memoryview,
    lac: int | None,
    stamp_ms: int | None = None,
) -> None:
    """Answer with an entry. `stamp_ms`: when the LAC moved on, for the answer to a long poll."""
    head, tail = dialect_of(request).entry(request, entry_id, len(body), lac, stamp_ms)
    requester.link.send(head, body, tail)
    requester.traffic.reads += 1
    requester.traffic.read_bytes += len(body)


def refuse(requester: Requester, request: ReadRequest, status: Status) -> None:
    """Answer without an entry."""
    requester.link.send(dialect_of(request).no_entry(request, status))


# ------------------------------------------------------------------------------------------- fences


def _begin_fence(requester: Requester, request: ReadRequest | BatchReadRequest) -> asyncio.Future[None] | Status:
    """Fence the ledger in this step. A status: refused."""
    key = request.master_key
    return Status.EUA if key is None else requester.storage.fence(request.ledger_id, key)


def _fence(requester: Requester, request: ReadRequest) -> None:
    pending = _begin_fence(requester, request)
    if pending is Status.EUA:
        requester.spawn(_refuse_stranger(requester, request), REQUEST_BYTES)
        return
    if isinstance(pending, Status):
        refuse(requester, request, pending)
        return
    requester.spawn(_finish_fence(requester, request, pending), _cost(requester, request))


async def _refuse_stranger(requester: Requester, request: ReadRequest | BatchReadRequest) -> None:
    """Answer a fence with another key once the ledger's own is durable: a crash must not make room for it (D19)."""
    requester.note_another_key(request.ledger_id, "fence")
    await requester.storage.key_durable(request.ledger_id)
    if isinstance(request, BatchReadRequest):
        requester.link.send(refuse_batch(request, Status.EUA))
    else:
        refuse(requester, request, Status.EUA)


async def _finish_fence(requester: Requester, request: ReadRequest, pending: asyncio.Future[None]) -> None:
    """Answer once the fence is durable, whatever the read finds (D19)."""
    found = requester.storage.find(request.ledger_id, request.entry_id)
    body = None if isinstance(found, Status) else await fetch(requester, *found, urgent=True)
    # The fence took effect before the entry was looked for, so no add can come between. It is the ledger's and not this
    # request's: a client that leaves must not cancel it.
    await asyncio.shield(pending)
    if isinstance(found, Status):
        refuse(requester, request, found)
    elif body is None:
        refuse(requester, request, why_not(requester, request))
    else:
        send_entry(requester, request, request.entry_id, body, None)


def _cost(requester: Requester, request: ReadRequest | BatchReadRequest) -> int:
    """Return about how much the first entry of an answer takes."""
    found = requester.storage.find(request.ledger_id, request.entry_id)
    return REQUEST_BYTES + (0 if isinstance(found, Status) else requester.storage.size_of(*found))


# ------------------------------------------------------------------------------------------- batches


MAX_BATCH_ENTRIES = 1024
"""Entries in one answer: a long run of small ones would keep all other clients waiting. A client that asked for more
reads on behind them."""


class _EntryBatch:
    """Entries gathered for one answer, as long as they fit.

    The first is taken whatever its size; the others as long as the whole frame stays within the limit, and their number
    within what was asked for and MAX_BATCH_ENTRIES.
    """

    __slots__ = ("_first", "_frame_bytes", "_ledger", "_limit", "_max_count", "entries")

    def __init__(self, requester: Requester, request: BatchReadRequest, ledger: Ledger, first: int) -> None:
        self._ledger = ledger
        self._first = first
        self._limit = min(request.max_bytes, requester.node.max_batch_read_bytes)
        self._max_count = request.max_count
        self._frame_bytes = v2.BATCH_ANSWER_BYTES
        self.entries: list[memoryview] = []
        if request.entry_id < 0:
            self._max_count = 1  # the last entry: nothing comes behind it

    def next_entry(self, requester: Requester) -> int | None:
        """Return the entry to be added next; None: the batch is complete."""
        entry_id = self._first + len(self.entries)
        if not self.entries:
            return entry_id
        if len(self.entries) in (self._max_count, MAX_BATCH_ENTRIES) or self._ledger.index.get(entry_id) is None:
            return None
        size = requester.storage.size_of(self._ledger, entry_id) - HEADER_BYTES + v2.BATCH_ENTRY_BYTES
        return entry_id if self._frame_bytes + size <= self._limit else None

    def add(self, body: memoryview) -> None:
        self._frame_bytes += len(body) + v2.BATCH_ENTRY_BYTES
        self.entries.append(body)

    def gather_now(self, requester: Requester) -> bool:
        """Take what is in memory; True if the batch is complete with it."""
        while (entry_id := self.next_entry(requester)) is not None:
            body = requester.storage.read_now(self._ledger, entry_id)
            if body is None:
                return False
            self.add(body)
        return True

    async def gather(self, requester: Requester, *, urgent: bool) -> None:
        """Take the rest, up to the first entry that cannot be read."""
        while (entry_id := self.next_entry(requester)) is not None:
            body = await fetch(requester, self._ledger, entry_id, urgent=urgent)
            if body is None:
                return
            self.add(body)


def batch_read(requester: Requester, request: BatchReadRequest) -> None:
    """Answer with consecutive entries; an error only where there is not even the first."""
    pending = _begin_fence(requester, request) if request.fence else None
    if pending is Status.EUA:
        requester.spawn(_refuse_stranger(requester, request), REQUEST_BYTES)
        return
    if isinstance(pending, Status):
        requester.link.send(refuse_batch(request, pending))
        return
    found = requester.storage.find(request.ledger_id, request.entry_id)
    if isinstance(found, Status):
        if pending is None:
            requester.link.send(refuse_batch(request, found))
        else:
            requester.spawn(_refuse_fenced_batch(requester, request, pending, found), REQUEST_BYTES)
        return
    batch = _EntryBatch(requester, request, *found)
    if batch.gather_now(requester) and pending is None:
        _send_batch(requester, request, batch)
        return
    cost = max(_cost(requester, request), min(request.max_bytes, requester.node.max_batch_read_bytes))
    requester.spawn(_finish_batch(requester, request, batch, pending), cost)


async def _refuse_fenced_batch(
    requester: Requester, request: BatchReadRequest, pending: asyncio.Future[None], status: Status
) -> None:
    await asyncio.shield(pending)
    requester.link.send(refuse_batch(request, status))


async def _finish_batch(
    requester: Requester, request: BatchReadRequest, batch: _EntryBatch, pending: asyncio.Future[None] | None
) -> None:
    await batch.gather(requester, urgent=request.priority > 0)
    if pending is not None:
        await asyncio.shield(pending)  # D19, for batches too
    _send_batch(requester, request, batch)


def _send_batch(requester: Requester, request: BatchReadRequest, batch: _EntryBatch) -> None:
    if not batch.entries:
        requester.link.send(refuse_batch(request, why_not(requester, request)))
        return
    ids = (request.ledger_id, request.entry_id, request.request_id)
    entries = tuple(batch.entries)
    requester.traffic.reads += len(entries)
    requester.traffic.read_bytes += sum(map(len, entries))
    requester.link.send(*v2.encode_batch_read_response(Status.EOK, *ids, entries, version=request.version))


# ------------------------------------------------------------------------------------------- long polls


MAX_POLL_S = 3600.0


def _poll(requester: Requester, request: ReadRequest, previous_lac: int) -> None:
    """Answer once the LAC has passed `previous_lac`, or when another thing ends the long poll."""
    if request.timeout_ms is None:
        _finish(requester, request, previous_lac, False)
        return
    ledger = requester.storage.ledgers.get(request.ledger_id)
    if ledger is None:
        found = requester.storage.find(request.ledger_id, -1)
        refuse(requester, request, found if isinstance(found, Status) else Status.ENOLEDGER)
    elif ledger.lac > previous_lac:
        _finish(requester, request, previous_lac, False)
    else:
        _wait(requester, request, ledger, previous_lac, min(max(request.timeout_ms, 0) / 1000, MAX_POLL_S))


def _wait(requester: Requester, request: ReadRequest, ledger: Ledger, previous_lac: int, timeout_s: float) -> None:
    parked = requester.node.limits.polls

    def finished(advanced: bool) -> None:
        requester.polls.discard(waiter)
        parked.discard(waiter)
        if requester.flow.overfull:
            _finish_small(requester, request)
        else:
            _finish(requester, request, previous_lac, advanced)
        requester.flow.done(REQUEST_BYTES)
        requester.flow.check()  # no frame of this connection's own may follow that would have it looked at

    if ledger.waiters is None:
        ledger.waiters = LacWaiters(ledger)
    waiter = LacWaiter(ledger.waiters, previous_lac, finished)
    waiter.limit(timeout_s, parked.timed_out)
    requester.flow.in_flight += REQUEST_BYTES
    requester.polls.add(waiter)
    parked.add(waiter)


def _finish(requester: Requester, request: ReadRequest, previous_lac: int, advanced: bool) -> None:
    """Answer a long poll whose wait is over: from memory at once, else begin to read.

    At once means in the turn of the loop in which the LAC moved on, before the journal begins to sync what moved it: a
    reader at the tail waits for this answer.
    """
    if not request.piggyback:
        plain_read(requester, request)
        return
    if request.entry_id != -1:
        refuse(requester, request, Status.EBADREQ)
        return
    storage = requester.storage
    found = storage.find(request.ledger_id, -1)
    if isinstance(found, Status):
        refuse(requester, request, found)
        return
    stamp_ms = requester.node.clock.now_ms() if advanced else None
    lac = found[0].lac
    wanted = storage.find(request.ledger_id, previous_lac + 1) if lac > previous_lac >= -1 else Status.ENOENTRY
    if isinstance(wanted, Status):
        requester.link.send(dialect_of(request).no_entry(request, Status.EOK, lac))
        return
    body = storage.read_now(*wanted)
    if body is not None:
        send_entry(requester, request, wanted[1], body, lac, stamp_ms)
        return
    cost = REQUEST_BYTES + storage.size_of(*wanted)
    requester.spawn(_answer_from_disk(requester, request, wanted, lac, stamp_ms), cost)


def _finish_small(requester: Requester, request: ReadRequest) -> None:
    """Answer without an entry: polls that one large entry ends, by the thousand, were admitted as small requests, and
    their answers are not taken. A client that only reads late learns the LAC, and reads what is behind it by itself."""
    found = requester.storage.find(request.ledger_id, -1)
    if isinstance(found, Status) or not request.piggyback:
        refuse(requester, request, found if isinstance(found, Status) else Status.ETOOMANYREQUESTS)
    else:
        requester.link.send(dialect_of(request).no_entry(request, Status.EOK, found[0].lac))


async def _answer_from_disk(
    requester: Requester, request: ReadRequest, wanted: tuple[Ledger, int], lac: int, stamp_ms: int | None
) -> None:
    body = await fetch(requester, *wanted, urgent=False)
    if body is None:
        refuse(requester, request, why_not(requester, request))
    else:
        send_entry(requester, request, wanted[1], body, lac, stamp_ms)


# ------------------------------------------------------------------------------------------- LACs


def read_lac(requester: Requester, request: ReadLacRequest) -> None:
    """Answer with the explicit LAC and the last entry, each where there is one."""
    found = requester.storage.find(request.ledger_id, -1)
    cost = 0 if isinstance(found, Status) else requester.storage.size_of(*found)
    requester.spawn(_finish_read_lac(requester, request), REQUEST_BYTES + cost)


async def _finish_read_lac(requester: Requester, request: ReadLacRequest) -> None:
    storage = requester.storage
    ledger = storage.ledgers.get(request.ledger_id)
    explicit = None if ledger is None else ledger.explicit_lac
    found = storage.find(request.ledger_id, -1)
    body = None if isinstance(found, Status) else await fetch(requester, *found, urgent=False)
    status = Status.EOK
    again = storage.find(request.ledger_id, -1)
    if not isinstance(found, Status) and body is None and not isinstance(again, Status):
        status = Status.EIO
    elif explicit is None and body is None:
        status = Status.EUNKNOWNLEDGERSTATE if storage.contents.unknown(request.ledger_id) else Status.ENOENTRY
    requester.link.send(encode_read_lac_response(request.txn_id, status, request.ledger_id, explicit, body))
