"""Reads of entries: plain, fencing, and batches (wire specification 2.2, 7.3, 7.4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from storage_node.bookie import polls
from storage_node.bookie.dialects import dialect_of, refuse_batch
from storage_node.bookie.flow import REQUEST_BYTES
from storage_node.bookie.ledgers import Ledger
from storage_node.bookie.records import HEADER_BYTES
from storage_node.protocol import messages as m
from storage_node.protocol import v2
from storage_node.protocol.messages import Status
from storage_node.protocol.values import BatchReadRequest

if TYPE_CHECKING:
    from storage_node.bookie.connections import Connection


def read(connection: Connection, request: m.ReadRequest) -> None:
    """Answer a read of any kind. A fence wins over a long poll."""
    if request.fence:
        _fence(connection, request)
    elif request.previous_lac is not None:
        polls.poll(connection, request, request.previous_lac)
    else:
        plain_read(connection, request)


def plain_read(connection: Connection, request: m.ReadRequest) -> None:
    storage = connection.storage
    found = storage.find(request.ledger_id, request.entry_id)
    if isinstance(found, Status):
        refuse(connection, request, found)
        return
    ledger, entry_id = found
    body = storage.read_now(ledger, entry_id)
    if body is not None:
        send_entry(connection, request, request.entry_id, body, ledger.lac)
        return
    connection.spawn(_read_from_disk(connection, request, ledger, entry_id), storage.size_of(ledger, entry_id))


async def _read_from_disk(connection: Connection, request: m.ReadRequest, ledger: Ledger, entry_id: int) -> None:
    body = await fetch(connection, ledger, entry_id, urgent=request.priority > 0)
    if body is None:
        refuse(connection, request, why_not(connection, request))
    else:
        send_entry(connection, request, request.entry_id, body, ledger.lac)


async def fetch(connection: Connection, ledger: Ledger, entry_id: int, *, urgent: bool) -> memoryview | None:
    """An entry from memory or disk; None where it cannot be read intact (I12)."""
    body = connection.storage.read_now(ledger, entry_id)
    if body is not None:
        return body
    turnstile = connection.node.limits.disk_reads
    await turnstile.enter(connection, urgent=urgent)
    try:
        if connection.flow.closed:
            return None  # nobody waits for it any more
        return await connection.storage.read(ledger, entry_id)
    finally:
        turnstile.leave()


def why_not(connection: Connection, request: m.ReadRequest | BatchReadRequest) -> Status:
    """The status for an entry that was found and could not be read: it is damaged, or was deleted meanwhile."""
    again = connection.storage.find(request.ledger_id, request.entry_id)
    return again if isinstance(again, Status) else Status.EIO


def send_entry(
    connection: Connection,
    request: m.ReadRequest,
    entry_id: int,
    body: memoryview,
    lac: int | None,
    stamp_ms: int | None = None,
) -> None:
    head, tail = dialect_of(request).entry(request, entry_id, len(body), lac, stamp_ms)
    connection.link.send(head, body, tail)
    connection.traffic.reads += 1
    connection.traffic.read_bytes += len(body)


def refuse(connection: Connection, request: m.ReadRequest, status: Status) -> None:
    connection.link.send(dialect_of(request).no_entry(request, status))


# ------------------------------------------------------------------------------------------- fences


def _begin_fence(connection: Connection, request: m.ReadRequest | BatchReadRequest) -> asyncio.Future[None] | Status:
    """Fence the ledger in this step. A status: refused."""
    key = request.master_key
    return Status.EUA if key is None else connection.storage.fence(request.ledger_id, key)


def _fence(connection: Connection, request: m.ReadRequest) -> None:
    pending = _begin_fence(connection, request)
    if pending is Status.EUA:
        connection.spawn(_refuse_stranger(connection, request), REQUEST_BYTES)
        return
    if isinstance(pending, Status):
        refuse(connection, request, pending)
        return
    connection.spawn(_finish_fence(connection, request, pending), _cost(connection, request))


async def _refuse_stranger(connection: Connection, request: m.ReadRequest | BatchReadRequest) -> None:
    """Answer a fence with another key once the ledger's own is durable: a crash must not make room for it (D19)."""
    await connection.storage.key_durable(request.ledger_id)
    if isinstance(request, BatchReadRequest):
        connection.link.send(refuse_batch(request, Status.EUA))
    else:
        refuse(connection, request, Status.EUA)


async def _finish_fence(connection: Connection, request: m.ReadRequest, pending: asyncio.Future[None]) -> None:
    """Answer once the fence is durable, whatever the read finds (D19)."""
    found = connection.storage.find(request.ledger_id, request.entry_id)
    body = None if isinstance(found, Status) else await fetch(connection, *found, urgent=True)
    await asyncio.shield(pending)
    if isinstance(found, Status):
        refuse(connection, request, found)
    elif body is None:
        refuse(connection, request, why_not(connection, request))
    else:
        send_entry(connection, request, request.entry_id, body, None)


def _cost(connection: Connection, request: m.ReadRequest | BatchReadRequest) -> int:
    """About what the first entry of an answer takes."""
    found = connection.storage.find(request.ledger_id, request.entry_id)
    return REQUEST_BYTES + (0 if isinstance(found, Status) else connection.storage.size_of(*found))


# ------------------------------------------------------------------------------------------- batches


MAX_BATCH_ENTRIES = 1024
"""Entries in one answer: small ones would keep everybody else waiting. Who asked for more goes on behind them."""


class _Batch:
    """Entries gathered for one answer, as long as they fit.

    The first is taken whatever its size; the others as long as the whole frame stays within the limit, and their number
    within what was asked for and MAX_BATCH_ENTRIES.
    """

    __slots__ = ("_first", "_frame_bytes", "_ledger", "_limit", "_max_count", "entries")

    def __init__(self, connection: Connection, request: BatchReadRequest, ledger: Ledger, first: int) -> None:
        self._ledger = ledger
        self._first = first
        self._limit = min(request.max_bytes, connection.node.max_batch_read_bytes)
        self._max_count = request.max_count
        self._frame_bytes = v2.BATCH_ANSWER_BYTES
        self.entries: list[memoryview] = []
        if request.entry_id < 0:
            self._max_count = 1  # the last entry: nothing comes behind it

    def next_entry(self, connection: Connection) -> int | None:
        """The entry to be added next; None: the batch is complete."""
        entry_id = self._first + len(self.entries)
        if not self.entries:
            return entry_id
        if len(self.entries) in (self._max_count, MAX_BATCH_ENTRIES) or self._ledger.index.get(entry_id) is None:
            return None
        size = connection.storage.size_of(self._ledger, entry_id) - HEADER_BYTES + v2.BATCH_ENTRY_BYTES
        return entry_id if self._frame_bytes + size <= self._limit else None

    def add(self, body: memoryview) -> None:
        self._frame_bytes += len(body) + v2.BATCH_ENTRY_BYTES
        self.entries.append(body)

    def gather_now(self, connection: Connection) -> bool:
        """Take what is in memory; True if the batch is complete with it."""
        while (entry_id := self.next_entry(connection)) is not None:
            body = connection.storage.read_now(self._ledger, entry_id)
            if body is None:
                return False
            self.add(body)
        return True

    async def gather(self, connection: Connection, *, urgent: bool) -> None:
        """Take the rest, up to the first entry that cannot be read."""
        while (entry_id := self.next_entry(connection)) is not None:
            body = await fetch(connection, self._ledger, entry_id, urgent=urgent)
            if body is None:
                return
            self.add(body)


def batch_read(connection: Connection, request: BatchReadRequest) -> None:
    """Answer with consecutive entries; an error only where there is not even the first."""
    pending = _begin_fence(connection, request) if request.fence else None
    if pending is Status.EUA:
        connection.spawn(_refuse_stranger(connection, request), REQUEST_BYTES)
        return
    if isinstance(pending, Status):
        connection.link.send(refuse_batch(request, pending))
        return
    found = connection.storage.find(request.ledger_id, request.entry_id)
    if isinstance(found, Status):
        if pending is None:
            connection.link.send(refuse_batch(request, found))
        else:
            connection.spawn(_refuse_fenced_batch(connection, request, pending, found), REQUEST_BYTES)
        return
    batch = _Batch(connection, request, *found)
    if batch.gather_now(connection) and pending is None:
        _send_batch(connection, request, batch)
        return
    cost = max(_cost(connection, request), min(request.max_bytes, connection.node.max_batch_read_bytes))
    connection.spawn(_finish_batch(connection, request, batch, pending), cost)


async def _refuse_fenced_batch(
    connection: Connection, request: BatchReadRequest, pending: asyncio.Future[None], status: Status
) -> None:
    await asyncio.shield(pending)
    connection.link.send(refuse_batch(request, status))


async def _finish_batch(
    connection: Connection, request: BatchReadRequest, batch: _Batch, pending: asyncio.Future[None] | None
) -> None:
    await batch.gather(connection, urgent=request.priority > 0)
    if pending is not None:
        await asyncio.shield(pending)  # D19, for batches too
    _send_batch(connection, request, batch)


def _send_batch(connection: Connection, request: BatchReadRequest, batch: _Batch) -> None:
    if not batch.entries:
        connection.link.send(refuse_batch(request, why_not(connection, request)))
        return
    ids = (request.ledger_id, request.entry_id, request.request_id)
    entries = tuple(batch.entries)
    connection.traffic.reads += len(entries)
    connection.traffic.read_bytes += sum(map(len, entries))
    connection.link.send(*v2.encode_batch_read_response(Status.EOK, *ids, entries, version=request.version))
