"""Handlers of requests that are neither adds nor reads of entries.

What each is answered is in docs/reference/wire.md#bookie-promises, and of AUTH and START_TLS in
docs/reference/wire.md#authentication-and-tls. The list of a ledger's entries is a head, and a group for each contiguous
run of ids, ascending (docs/reference/wire.md#list-of-entries).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from struct import Struct

from storage_node.bookie.requests.dialects import VERSION_TWO, Misversioned, dialect_of, refuse_batch
from storage_node.bookie.requests.limits import REQUEST_BYTES
from storage_node.bookie.requests.requester import Requester, Wait
from storage_node.bookie.store.index import LedgerIndex
from storage_node.errors import ConnectionClosedError
from storage_node.protocol.encoding import (
    encode_bookie_info_response,
    encode_error_response,
    encode_force_ledger_response,
    encode_list_entries_response,
    encode_write_lac_response,
)
from storage_node.protocol.schema import FREE_DISK_SPACE, TOTAL_DISK_CAPACITY, Operation, Status
from storage_node.protocol.values import (
    AddRequest,
    AuthRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadRequest,
    StartTlsRequest,
    UnsupportedRequest,
    WriteLacRequest,
)

_HEAD = Struct(">ii56x")
_GROUP = Struct(">qqii")
"""One run of ids in the list of entries."""


def write_lac(requester: Requester, request: WriteLacRequest) -> Wait | None:
    """Store an explicit LAC; fenced ledgers take it, read-only nodes do not. It waits for memory as adds do."""
    answer = partial(encode_write_lac_response, request.txn_id, ledger_id=request.ledger_id)
    if requester.node.read_only:
        requester.link.send(answer(status=Status.EREADONLY))
        return None
    acknowledge = partial(requester.acknowledge, answer(status=Status.EOK))
    status = requester.storage.write_lac(request.ledger_id, request.master_key, request.body, acknowledge)
    if status is None:
        return requester.storage.when_room
    if status is Status.EOK:
        requester.flow.in_flight += REQUEST_BYTES
    else:
        if status is Status.EUA:
            requester.note_another_key(request.ledger_id, "WriteLacRequest")
        requester.link.send(answer(status=status))
    return None


def force(requester: Requester, request: ForceLedgerRequest) -> None:
    """Answer once everything queued before is synced; neither key nor ledger is asked for."""
    answer = encode_force_ledger_response(request.txn_id, Status.EOK, request.ledger_id)
    requester.flow.in_flight += REQUEST_BYTES
    requester.storage.journal.barrier(partial(requester.acknowledge, answer))


def info(requester: Requester, request: BookieInfoRequest) -> None:
    """Answer with the bytes of the ledger disks, looked up now; what was not asked for is left out."""
    total, free = requester.node.disk_space()
    answer = encode_bookie_info_response(
        request.txn_id,
        Status.EOK,
        total if request.requested & TOTAL_DISK_CAPACITY else None,
        free if request.requested & FREE_DISK_SPACE else None,
    )
    requester.link.send(answer)


def list_entries(requester: Requester, request: ListEntriesRequest) -> None:
    """Answer with the ids of a ledger's entries; long lists are made bit by bit, one at a time."""
    storage = requester.storage
    ledger = storage.ledgers.get(request.ledger_id)
    if storage.contents.unknown(request.ledger_id):
        _send_list(requester, request, Status.EUNKNOWNLEDGERSTATE)
    elif ledger is None:
        _send_list(requester, request, Status.ENOLEDGER)
    else:
        requester.spawn(_finish_list(requester, request, ledger.index), REQUEST_BYTES)


async def _finish_list(requester: Requester, request: ListEntriesRequest, index: LedgerIndex) -> None:
    listings = requester.node.limits.listings
    async with requester.listing:  # a list takes thousands of times what its request counts: one waits in memory
        try:
            await requester.link.drain()
        except ConnectionClosedError:
            return
        await listings.enter(requester, urgent=False)
        try:
            blob = await _list(index, requester.node.max_list_bytes)
        finally:
            listings.leave()
        _send_listed(requester, request, blob)


def _send_listed(requester: Requester, request: ListEntriesRequest, blob: bytes | None) -> None:
    if blob is None:
        message = "the list of ledger %d's entries for %s would be larger than a frame"
        requester.node.limits.lines.log(logging.ERROR, message, request.ledger_id, requester.link.peer)
    _send_list(requester, request, Status.EIO if blob is None else Status.EOK, blob)


def list_head(groups: int) -> bytes:
    """Return what goes before this many groups."""
    return _HEAD.pack(0, groups)


def list_group(first: int, last: int) -> bytes:
    """Return one run of contiguous ids."""
    return _GROUP.pack(first, first, last - first + 1, 0)


async def _list(index: LedgerIndex, limit: int) -> bytes | None:
    """Return the blob that lists the entries; None: it has more than `limit` bytes."""
    groups = bytearray()
    for run in index.steps():
        if run is None:
            await asyncio.sleep(0)
        elif _HEAD.size + len(groups) + _GROUP.size > limit:
            return None
        else:
            groups += list_group(*run)
    return list_head(len(groups) // _GROUP.size) + groups


def _send_list(requester: Requester, request: ListEntriesRequest, status: Status, blob: bytes | None = None) -> None:
    requester.link.send(encode_list_entries_response(request.txn_id, status, request.ledger_id, blob))


def auth(requester: Requester, request: AuthRequest) -> None:
    """Ask a client that begins an authentication to go on: there is none here, or it has proved itself before."""
    requester.link.send(dialect_of(request).auth(request))


def start_tls(requester: Requester, request: StartTlsRequest) -> None:
    """Refuse TLS, which this node does not speak, or which comes too late: it is a connection's first request, if any
    (`gate`)."""
    requester.link.send(encode_error_response(request.txn_id, Operation.START_TLS, Status.EBADREQ))


def unsupported(requester: Requester, request: UnsupportedRequest) -> None:
    """Refuse an operation or version that is not spoken, with the status that decoding gave it."""
    requester.link.send(encode_error_response(request.txn_id, request.operation, request.status))


def misversioned(requester: Requester, refused: Misversioned) -> None:
    """Refuse a packet of a version after 2, with the ids that its client waits for."""
    request = refused.request
    if isinstance(request, AddRequest):
        answer = VERSION_TWO.added(request, Status.EBADVERSION)
    elif isinstance(request, ReadRequest):
        answer = VERSION_TWO.no_entry(request, Status.EBADVERSION)
    else:
        answer = refuse_batch(request, Status.EBADVERSION)
    requester.link.send(answer)
