"""Questions for the LAC, put to all bookies of a ledger's last ensemble at once."""

from __future__ import annotations

import asyncio

from metadata.foundation.errors import DistributedLogError
from metadata.ledger_metadata import LedgerMetadata
from storage_node.client.answers import answer_error
from storage_node.client.connections import Answer, ConnectionPool
from storage_node.errors import ProtocolError
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.messages import (
    Operation,
    ReadLacResponse,
    ReadResponse,
    Status,
    encode_read_lac_request,
    encode_read_request,
)
from storage_node.protocol.reading import LacRead, LacTry

_LAST_ENTRY = -1


class LacQuestion:
    """One question; `done` is set once `machine` is decided. `forget` it in any case."""

    def __init__(
        self,
        pool: ConnectionPool,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest: EntryDigest,
        known: int | None = None,
    ) -> None:
        """With `known` any LAC above it is enough; else the answers have to cover every write set."""
        self.done: asyncio.Future[None] = pool.loop.create_future()
        self.quorum = LacRead(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.attempt = LacTry(metadata.ensemble_size, -1 if known is None else known)
        self._pool = pool
        self._ledger_id = ledger_id
        self._digest = digest
        self._best_effort = known is not None
        self._asked = [
            (bookie, self._ask(index, bookie)) for index, bookie in enumerate(metadata.last_ensemble.bookies)
        ]

    def _ask(self, index: int, bookie: str) -> int:
        txn_id = self._pool.next_txn_id()
        operation, frame = Operation.READ_LAC, encode_read_lac_request(txn_id, self._ledger_id)
        if self._best_effort:
            operation, frame = Operation.READ, encode_read_request(txn_id, self._ledger_id, _LAST_ENTRY)

        def answered(answer: Answer) -> None:
            machine = self.attempt if self._best_effort else self.quorum
            try:
                if self._best_effort:
                    self.attempt.answered(index, self._last(answer, bookie))
                else:
                    self.quorum.answered(index, *self._explicit_or_last(answer, bookie))
            except DistributedLogError as error:
                machine.failed(index, error)
            if self._decided and not self.done.done():
                self.done.set_result(None)

        timeout_ms = self._pool.settings.read_entry_timeout_ms
        self._pool.to(bookie, self._ledger_id).request(txn_id, operation, frame, timeout_ms, answered)
        return txn_id

    @property
    def _decided(self) -> bool:
        if self._best_effort:
            return self.attempt.finished
        return self.quorum.settled or self.quorum.failed_for_good

    def _checked(self, answer: Answer, bookie: str) -> ReadLacResponse | ReadResponse:
        """An EOK. Raises what makes the bookie unknown (I12)."""
        if isinstance(answer, DistributedLogError):
            raise answer
        if answer.status is not Status.EOK:
            raise answer_error(answer.status, bookie, self._ledger_id, None)
        if not isinstance(answer, ReadLacResponse | ReadResponse):
            raise ProtocolError("an EOK without an answer to the question for the LAC", node=bookie)
        return answer

    def _explicit_or_last(self, answer: Answer, bookie: str) -> tuple[int, int]:
        """The greater of the explicit LAC and the last entry's; and that entry (-1: the bookie has none)."""
        response = self._checked(answer, bookie)
        if not isinstance(response, ReadLacResponse):
            raise ProtocolError("an EOK without an answer to the LAC read", node=bookie)
        lac = stored = -1
        if response.lac_body is not None:
            lac = self._digest.verify_lac(self._ledger_id, response.lac_body)
        if response.last_entry_body is not None:
            entry = self._digest.verify(self._ledger_id, None, response.last_entry_body)
            lac, stored = max(lac, entry.last_add_confirmed), entry.entry_id
        return lac, stored

    def _last(self, answer: Answer, bookie: str) -> int:
        """What the last entry carries, or the bookie has heard besides."""
        response = self._checked(answer, bookie)
        if not isinstance(response, ReadResponse) or response.body is None:
            raise ProtocolError("an EOK without an entry", node=bookie)
        entry = self._digest.verify(self._ledger_id, None, response.body)
        return max(entry.last_add_confirmed, -1 if response.max_lac is None else response.max_lac)

    def forget(self) -> None:
        """Nobody waits for answers any more."""
        for bookie, txn_id in self._asked:
            self._pool.to(bookie, self._ledger_id).forget(txn_id)
