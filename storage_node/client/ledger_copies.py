"""`LedgerCopies`: single copies of one ledger's entries, for auto-recovery: read one, store one more, choose bookies.

Writers and readers deal in entries and leave copies to the machines; a check or a repair has to deal in copies. Nothing
here changes metadata: a copy on a bookie outside of the entry's ensemble counts only once an update refers to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import Answer, answer_error
from storage_node.client.pipeline import ClientContext, digest_of
from storage_node.client.reading import EntryFetcher
from storage_node.errors import ProtocolError
from storage_node.protocol.digests import Entry, master_key
from storage_node.protocol.encoding import encode_add_request, encode_add_response, encode_read_request
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import ReadResponse
from storage_node.protocol.writing_model import PickReplacements, Seat


class LedgerCopies:
    """Has one bookie its copy of an entry? Reads and writes single copies. Made by `LedgerClient.copies`.

    Args:
        context: the parts of its client.
        ledger_id: the ledger.
        metadata: gives digest and password.
    """

    def __init__(self, context: ClientContext, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self._context = context
        self._pool = context.pool
        self._metadata = metadata
        self._write_quorum = metadata.write_quorum
        self._ack_quorum = metadata.ack_quorum
        self._digest = digest_of(metadata)
        self._key = master_key(metadata.password or b"")
        self._fetcher = EntryFetcher(context.pool, ledger_id)

    async def fetch(self, metadata: LedgerMetadata, entry_id: int) -> Entry:
        """Return an entry from any of its replicas, verified. Raises what says most of why none of them gave it."""
        return await self._fetcher.fetch(metadata, entry_id)

    async def read(self, bookie: str, entry_id: int) -> Entry:
        """Return the copy that this bookie has, verified. Raises its answer: only NoSuchEntryError and
        NoSuchLedgerError say that it has none."""
        txn_id = self._pool.next_txn_id()
        answered: asyncio.Future[Answer] = self._pool.loop.create_future()
        frame = encode_read_request(txn_id, self.ledger_id, entry_id)
        connection = self._pool.to(bookie, self.ledger_id)
        timeout_ms = self._context.settings.read_entry_timeout_ms
        connection.request(txn_id, Operation.READ, frame, timeout_ms, lambda answer: _settle(answered, answer))
        try:
            return self._verified(bookie, entry_id, await answered)
        finally:
            connection.forget(txn_id)

    def _verified(self, bookie: str, entry_id: int, answer: Answer) -> Entry:
        if isinstance(answer, DistributedLogError):
            raise answer
        if answer.status is not Status.EOK:
            raise answer_error(answer.status, bookie, self.ledger_id, entry_id)
        if not isinstance(answer, ReadResponse) or answer.body is None:
            raise ProtocolError("an EOK without an entry", node=bookie, ledger_id=self.ledger_id, entry_id=entry_id)
        try:
            return self._digest.verify(self.ledger_id, entry_id, answer.body)
        except DistributedLogError as error:
            error.node = bookie
            raise

    async def add(self, entry: Entry, last_add_confirmed: int, bookies: Sequence[str]) -> None:
        """Store a copy of a committed entry on every one of `bookies`; it is on their disks when this returns.

        The copy is packaged anew, with this LAC. Raises the first refusal: then some of them may have it.
        """
        header = self._digest.package(self.ledger_id, entry.entry_id, last_add_confirmed, entry.length, entry.payload)
        size = len(header) + len(entry.payload)
        txn_id = self._pool.next_txn_id()
        # As a recovery's add: a bookie of a fenced ledger refuses any other.
        head, tail = encode_add_request(txn_id, self.ledger_id, entry.entry_id, self._key, size, recovery=True)
        answer = encode_add_response(txn_id, Status.EOK, self.ledger_id, entry.entry_id)
        frame = (head, header, entry.payload, tail)
        deadline = self._pool.loop.time() + self._context.settings.add_entry_timeout_ms / 1000
        copies = _Copies(self._context, len(bookies))
        for index, bookie in enumerate(bookies):
            connection = self._pool.to(bookie, self.ledger_id)
            connection.send_add(txn_id, answer, copies, Seat(index, bookie), entry.entry_id, deadline, frame)
        await copies.stored

    async def replacements(
        self, ensemble: tuple[str, ...], indices: Collection[int], but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return a writable bookie for as many of the indices as there are, none of the ensemble and none of `but`."""
        wanted = PickReplacements(
            bookies=ensemble,
            indices=tuple(sorted(indices)),
            excluded=frozenset(ensemble).union(but),
            # A bookie that failed a moment ago is better than none: the ledger lacks a copy now.
            last_resort=True,
            write_quorum=self._write_quorum,
            ack_quorum=self._ack_quorum,
            restoring=True,
        )
        return await self._context.placements.of(self._metadata).replacements(wanted)


class _Copies:
    """The copies of one entry that are under way."""

    def __init__(self, context: ClientContext, count: int) -> None:
        self._context = context
        self._missing = count
        self.stored: asyncio.Future[None] = context.pool.loop.create_future()
        if not count:
            self.stored.set_result(None)

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        self._missing -= len(entry_ids)
        if not self._missing and not self.stored.done():
            self.stored.set_result(None)

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        self._context.pool.health.failed(seat.bookie)
        # Copies that others store do no harm: as long as the metadata do not name them they count for nothing (I1).
        if not self.stored.done():
            self.stored.set_exception(error)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
