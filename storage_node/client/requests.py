"""Requests other than those of readers and writers: one to several bookies of an ensemble, one for disk space."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import Answer, ConnectionPool, answer_error
from storage_node.errors import ProtocolError
from storage_node.protocol.messages import BookieInfoResponse, Operation, Status, encode_bookie_info_request
from storage_node.protocol.reading import more_telling


async def ask_bookies(
    pool: ConnectionPool,
    ledger_id: int,
    bookies: Sequence[str],
    operation: Operation,
    encode: Callable[[int], bytes],
    *,
    needed: int,
) -> None:
    """Send `encode(txn_id)` to all of `bookies`; return when `needed` said EOK.

    Raises the error that says most, as soon as `needed` cannot say so any more; some bookies may have done it even so.
    """
    decided: asyncio.Future[None] = pool.loop.create_future()
    asked: list[tuple[str, int]] = []
    succeeded = 0
    refused = 0
    error: DistributedLogError | None = None

    def answered(bookie: str, answer: Answer) -> None:
        nonlocal succeeded, refused, error
        if decided.done():
            return
        if not isinstance(answer, DistributedLogError) and answer.status is Status.EOK:
            pool.health.answered(bookie)
            succeeded += 1
            if succeeded == needed:
                decided.set_result(None)
            return
        refused += 1
        failure = answer if isinstance(answer, DistributedLogError) else None
        if failure is None and not isinstance(answer, DistributedLogError):
            failure = answer_error(answer.status, bookie, ledger_id, None)
        error = more_telling(error, failure or ProtocolError("no reason", node=bookie))
        if refused > len(bookies) - needed:
            decided.set_exception(error)

    def ask(bookie: str) -> None:
        txn_id = pool.next_txn_id()
        asked.append((bookie, txn_id))
        pool.to(bookie, ledger_id).request(
            txn_id,
            operation,
            encode(txn_id),
            pool.settings.read_entry_timeout_ms,
            lambda answer: answered(bookie, answer),
        )

    try:
        for bookie in bookies:
            ask(bookie)
        await decided
    finally:
        for bookie, txn_id in asked:
            pool.to(bookie, ledger_id).forget(txn_id)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of a bookie's ledger disks together; None for what it does not report."""

    total: int | None
    free: int | None


async def ask_disk_space(pool: ConnectionPool, bookie: str) -> DiskSpace:
    """Ask `bookie`, for at most `getBookieInfoTimeoutSecs`. Raises what kept it from answering."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def take(answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    txn_id = pool.next_txn_id()
    timeout_ms = pool.settings.placement.get_bookie_info_timeout_s * 1000
    pool.to(bookie).request(txn_id, Operation.BOOKIE_INFO, encode_bookie_info_request(txn_id), timeout_ms, take)
    answer = await answered
    if isinstance(answer, DistributedLogError):
        raise answer
    if not isinstance(answer, BookieInfoResponse) or answer.status is not Status.EOK:
        raise answer_error(answer.status, bookie, None, None)
    return DiskSpace(answer.total_disk_capacity, answer.free_disk_space)
