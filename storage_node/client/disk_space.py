"""Asking a bookie how much room its ledger disks have (GET_BOOKIE_INFO)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from metadata.foundation.errors import DistributedLogError
from storage_node.client.answers import answer_error
from storage_node.client.connections import Answer, ConnectionPool
from storage_node.protocol.messages import BookieInfoResponse, Operation, Status, encode_bookie_info_request


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of a bookie's ledger disks together; None for what it does not tell."""

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
