"""Requests that are neither adds nor reads of entries (wire specification 3, 7.5, 7.9, 7.10)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from storage_node.bookie import listing, reads
from storage_node.bookie.dialects import VERSION_TWO, Misversioned, dialect_of, refuse_batch
from storage_node.bookie.flow import REQUEST_BYTES
from storage_node.bookie.index import LedgerIndex
from storage_node.errors import ConnectionClosedError
from storage_node.protocol import messages as m
from storage_node.protocol.messages import Operation, Status
from storage_node.protocol.schema import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY

if TYPE_CHECKING:
    from storage_node.bookie.connections import Connection, Wait


def read_lac(connection: Connection, request: m.ReadLacRequest) -> None:
    """The explicit LAC and the last entry, each where there is one."""
    found = connection.storage.find(request.ledger_id, -1)
    cost = 0 if isinstance(found, Status) else connection.storage.size_of(*found)
    connection.spawn(_finish_read_lac(connection, request), REQUEST_BYTES + cost)


async def _finish_read_lac(connection: Connection, request: m.ReadLacRequest) -> None:
    storage = connection.storage
    ledger = storage.ledgers.get(request.ledger_id)
    explicit = None if ledger is None else ledger.explicit_lac
    found = storage.find(request.ledger_id, -1)
    body = None if isinstance(found, Status) else await reads.fetch(connection, *found, urgent=False)
    status = Status.EOK
    again = storage.find(request.ledger_id, -1)
    if not isinstance(found, Status) and body is None and not isinstance(again, Status):
        status = Status.EIO
    elif explicit is None and body is None:
        status = Status.EUNKNOWNLEDGERSTATE if storage.contents.unknown(request.ledger_id) else Status.ENOENTRY
    connection.link.send(m.encode_read_lac_response(request.txn_id, status, request.ledger_id, explicit, body))


def write_lac(connection: Connection, request: m.WriteLacRequest) -> Wait | None:
    """Store an explicit LAC; fenced ledgers take it, read-only nodes do not. It waits for memory as adds do."""
    answer = partial(m.encode_write_lac_response, request.txn_id, ledger_id=request.ledger_id)
    if connection.node.read_only:
        connection.link.send(answer(status=Status.EREADONLY))
        return None
    acknowledge = partial(connection.acknowledge, answer(status=Status.EOK))
    status = connection.storage.write_lac(request.ledger_id, request.master_key, request.body, acknowledge)
    if status is None:
        return connection.storage.when_room
    if status is Status.EOK:
        connection.flow.in_flight += REQUEST_BYTES
    else:
        connection.link.send(answer(status=status))
    return None


def force(connection: Connection, request: m.ForceLedgerRequest) -> None:
    """Answer once everything queued before is synced; neither key nor ledger is asked for."""
    answer = m.encode_force_ledger_response(request.txn_id, Status.EOK, request.ledger_id)
    connection.flow.in_flight += REQUEST_BYTES
    connection.storage.journal.barrier(partial(connection.acknowledge, answer))


def info(connection: Connection, request: m.BookieInfoRequest) -> None:
    total, free = connection.node.disk_space()
    answer = m.encode_bookie_info_response(
        request.txn_id,
        Status.EOK,
        total if request.requested & TOTAL_DISK_CAPACITY else None,
        free if request.requested & FREE_DISK_SPACE else None,
    )
    connection.link.send(answer)


def list_entries(connection: Connection, request: m.ListEntriesRequest) -> None:
    """Answer with the ids of a ledger's entries; long lists are made bit by bit, one at a time."""
    storage = connection.storage
    ledger = storage.ledgers.get(request.ledger_id)
    if storage.contents.unknown(request.ledger_id):
        _send_list(connection, request, Status.EUNKNOWNLEDGERSTATE)
    elif ledger is None:
        _send_list(connection, request, Status.ENOLEDGER)
    else:
        connection.spawn(_finish_list(connection, request, ledger.index), REQUEST_BYTES)


async def _finish_list(connection: Connection, request: m.ListEntriesRequest, index: LedgerIndex) -> None:
    listings = connection.node.limits.listings
    async with connection.listing:  # a list takes thousands of times what its request counts: one waits in memory
        try:
            await connection.link.drain()
        except ConnectionClosedError:
            return
        await listings.enter(connection, urgent=False)
        try:
            blob = await _list(index, connection.node.max_list_bytes)
        finally:
            listings.leave()
        _send_listed(connection, request, blob)


def _send_listed(connection: Connection, request: m.ListEntriesRequest, blob: bytes | None) -> None:
    if blob is None:
        message = "the list of ledger %d's entries for %s would be larger than a frame"
        connection.node.limits.lines.log(logging.ERROR, message, request.ledger_id, connection.link.peer)
    _send_list(connection, request, Status.EIO if blob is None else Status.EOK, blob)


async def _list(index: LedgerIndex, limit: int) -> bytes | None:
    """The blob that lists the entries; None: it has more than `limit` bytes."""
    groups = bytearray()
    for run in index.steps():
        if run is None:
            await asyncio.sleep(0)
        elif listing.HEAD_BYTES + len(groups) + listing.GROUP_BYTES > limit:
            return None
        else:
            groups += listing.group(*run)
    return listing.head(len(groups) // listing.GROUP_BYTES) + groups


def _send_list(
    connection: Connection, request: m.ListEntriesRequest, status: Status, blob: bytes | None = None
) -> None:
    connection.link.send(m.encode_list_entries_response(request.txn_id, status, request.ledger_id, blob))


def auth(connection: Connection, request: m.AuthRequest) -> None:
    """There is no authentication here: whoever begins one is told to go on."""
    connection.link.send(dialect_of(request).auth(request))


def start_tls(connection: Connection, request: m.StartTlsRequest) -> None:
    """There is no TLS here."""
    connection.link.send(m.encode_error_response(request.txn_id, Operation.START_TLS, Status.EBADREQ))


def unsupported(connection: Connection, request: m.UnsupportedRequest) -> None:
    connection.link.send(m.encode_error_response(request.txn_id, request.operation, request.status))


def misversioned(connection: Connection, refused: Misversioned) -> None:
    """A packet of a version after 2: refused with the ids that its client waits for."""
    request = refused.request
    if isinstance(request, m.AddRequest):
        answer = VERSION_TWO.added(request, Status.EBADVERSION)
    elif isinstance(request, m.ReadRequest):
        answer = VERSION_TWO.no_entry(request, Status.EBADVERSION)
    else:
        answer = refuse_batch(request, Status.EBADVERSION)
    connection.link.send(answer)
