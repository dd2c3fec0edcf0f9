"""`EntryFetcher`: committed entries from their replicas, one by one or a batch at a time.

Every entry is verified before a caller sees it (I12). Replicas are asked in write-set order, with those that lag, are
read-only, were slow or failed lately behind the others; after a silence the next one is asked beside, and so on with
growing pauses. A bookie that has answered other reads meanwhile is busy rather than silent, and gets one more pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from metadata.bookkeeper.ledger_metadata import DigestType, LedgerMetadata
from metadata.foundation.errors import DistributedLogError, check
from storage_node.client.connections import Answer, BatchAnswer, ConnectionPool, answer_error
from storage_node.errors import ProtocolError, RequestTimeoutError
from storage_node.protocol.digests import Entry, EntryDigest
from storage_node.protocol.encoding import encode_read_request
from storage_node.protocol.reading import EntryRead, fragment_end
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.striping import write_set
from storage_node.protocol.values import ReadResponse

BATCH_BYTES = 1 << 20
"""Most bytes that are asked for in one batch."""

BATCH_OVERHEAD_BYTES = 1024
"""Room in a frame for what is not entries."""


class _Fetch:
    """One entry on its way."""

    __slots__ = ("asked", "began", "bookies", "entry_id", "future", "machine", "patience_s", "since", "spared")

    def __init__(self, machine: EntryRead, entry_id: int, bookies: tuple[str, ...], now: float, patience_s: float):
        self.machine = machine
        self.entry_id = entry_id
        self.bookies = bookies
        self.began = self.since = now
        self.patience_s = patience_s
        self.spared = False  # a busy bookie was given one more pause
        self.asked: list[tuple[str, int]] = []  # bookies and transaction ids
        self.future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()


class EntryFetcher:
    """Fetches entries of one ledger."""

    def __init__(self, pool: ConnectionPool, ledger_id: int, *, on_lac: Callable[[int], None] | None = None) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._settings = pool.settings
        self._ledger_id = ledger_id
        self._on_lac = on_lac
        self._digest: EntryDigest | None = None
        self._open: dict[_Fetch, None] = {}
        self._sticky: int | None = None
        self._batches = 0
        self._refused = False  # no bookie of an ensemble serves batches

    # ------------------------------------------------------------------------------------ which replicas to ask

    def _order(self, metadata: LedgerMetadata, entry_id: int, bookies: tuple[str, ...]) -> Sequence[int]:
        settings = self._settings
        size = len(bookies)
        if settings.sticky_reads and size == metadata.write_quorum:
            if self._sticky is None:
                self._sticky = self._ledger_id % size
            entry_id = self._sticky
        indices = write_set(entry_id, size, metadata.write_quorum)
        return self._pool.health.reading_order(indices, bookies) if settings.reorder_reads else indices

    def _digest_of(self, metadata: LedgerMetadata) -> EntryDigest:
        if self._digest is None:
            self._digest = EntryDigest(metadata.digest_type or DigestType.CRC32, metadata.password or b"")
        return self._digest

    # ------------------------------------------------------------------------------------ one entry

    def fetch(self, metadata: LedgerMetadata, entry_id: int) -> asyncio.Future[Entry]:
        """Ask for an entry; cancel the future if it is no longer wanted.

        Fails with the error that says most of why none of its replicas gave it, with its place.
        """
        self._digest_of(metadata)
        bookies = metadata.ensemble_for(entry_id).bookies
        machine = EntryRead(self._order(metadata, entry_id, bookies))
        fetch = _Fetch(machine, entry_id, bookies, self._loop.time(), self._settings.speculative_read_ms / 1000)
        fetch.future.add_done_callback(lambda future: self._settled(fetch, future))
        if not self._open:
            self._pool.sweeper.join(self._sweep)
        self._open[fetch] = None
        self._ask(fetch, machine.ask_next())
        return fetch.future

    def _ask(self, fetch: _Fetch, index: int | None) -> None:
        if index is None:
            return
        bookie = fetch.bookies[index]
        pool = self._pool
        txn_id = pool.next_txn_id()
        fetch.asked.append((bookie, txn_id))
        asked = self._loop.time()
        pool.to(bookie, self._ledger_id).request(
            txn_id,
            Operation.READ,
            encode_read_request(txn_id, self._ledger_id, fetch.entry_id),
            self._settings.read_entry_timeout_ms,
            lambda answer: self._answered(fetch, index, asked, answer),
        )

    def _answered(self, fetch: _Fetch, index: int, asked: float, answer: Answer) -> None:
        if fetch.future.done():
            return
        bookie = fetch.bookies[index]
        entry = self._verified(fetch.entry_id, bookie, answer)
        if isinstance(entry, Entry):
            self._pool.health.answered(bookie, asked)
            if fetch.machine.succeeded():
                if self._sticky is not None:
                    self._sticky = index
                fetch.future.set_result(entry)
            return
        following = fetch.machine.failed(entry)
        self._ask(fetch, following)
        if fetch.machine.exhausted:
            fetch.future.set_exception(self._unreadable_error(fetch))

    def _verified(self, entry_id: int, bookie: str, answer: Answer) -> Entry | DistributedLogError:
        """Return the entry in an answer, or why there is none; a failed digest is a failed replica (I12)."""
        if isinstance(answer, DistributedLogError):
            return answer
        if answer.status is not Status.EOK:
            return answer_error(answer.status, bookie, self._ledger_id, entry_id)
        if not isinstance(answer, ReadResponse) or answer.body is None or self._digest is None:
            return ProtocolError("an EOK without an entry", node=bookie)
        try:
            entry = self._digest.verify(self._ledger_id, entry_id, answer.body)
        except DistributedLogError as error:
            error.node = bookie
            self._pool.health.failed(bookie)
            return error
        if answer.max_lac is not None and self._on_lac is not None:
            self._on_lac(answer.max_lac)
        return entry

    def _unreadable_error(self, fetch: _Fetch) -> DistributedLogError:
        first = fetch.machine.error
        check(first is not None, "a read ended without a reason")
        cause = first or ProtocolError("no reason")
        count = len(fetch.asked)
        error = type(cause)(
            f"none of {count} replicas gave the entry; the most telling answer: {cause.message}",
            advice=cause.advice or "See that the ledger's storage nodes are up",
            ledger_id=self._ledger_id,
            entry_id=fetch.entry_id,
            node=cause.node,
        )
        error.__cause__ = cause
        return error

    def _settled(self, fetch: _Fetch, _future: asyncio.Future[Entry]) -> None:
        """End a fetch that is done, failed or cancelled: the other replicas' answers are not needed any more."""
        self._open.pop(fetch, None)
        for bookie, txn_id in fetch.asked:
            self._pool.to(bookie, self._ledger_id).forget(txn_id)

    # ------------------------------------------------------------------------------------ time

    def _sweep(self, now: float) -> bool:
        """Ask the next replica as well for entries that have waited long, and give up those that waited too long."""
        limit_s = self._settings.read_operation_timeout_ms / 1000
        for fetch in list(self._open):
            if fetch.future.done():
                continue
            if now - fetch.began >= limit_s:
                fetch.future.set_exception(self._overdue_error(fetch))
            elif fetch.patience_s and now - fetch.since >= fetch.patience_s:
                self._speculate(fetch, now)
        return bool(self._open)

    def _speculate(self, fetch: _Fetch, now: float) -> None:
        settings, health = self._settings, self._pool.health
        if not fetch.spared and any(health.heard_since(bookie, fetch.since) for bookie, _ in fetch.asked):
            fetch.spared = True
            fetch.since = now
            return
        index = fetch.machine.ask_next()
        if index is None:
            return
        health.slow(fetch.asked[-1][0])
        fetch.since = now
        fetch.patience_s = min(
            fetch.patience_s * settings.speculative_read_factor, settings.max_speculative_read_ms / 1000
        )
        self._ask(fetch, index)

    def _overdue_error(self, fetch: _Fetch) -> RequestTimeoutError:
        error = RequestTimeoutError(
            f"none of {len(fetch.asked)} replicas gave the entry within {self._settings.read_operation_timeout_ms} ms",
            advice="See that the ledger's storage nodes are up",
            ledger_id=self._ledger_id,
            entry_id=fetch.entry_id,
        )
        error.__cause__ = fetch.machine.error
        return error

    # ------------------------------------------------------------------------------------ a batch

    def batchable(self, metadata: LedgerMetadata) -> bool:
        """Return whether entries may come in batches at all."""
        return self._settings.batch_reads and metadata.ensemble_size == metadata.write_quorum and not self._refused

    def batch_bookie(self, metadata: LedgerMetadata, first: int) -> str | None:
        """Return the bookie to ask for a batch that begins with `first`; None: the entries have to be read one by
        one."""
        if not self.batchable(metadata):
            return None
        bookies = metadata.ensemble_for(first).bookies
        # All bookies have all entries: the batches go round, as single reads would.
        order = self._order(metadata, self._batches, bookies)
        for index in order:
            if not self._pool.batches_of(bookies[index]).refused:
                return bookies[index]
        self._refused = True
        return None

    def fetch_batch(self, metadata: LedgerMetadata, bookie: str, first: int, last: int) -> asyncio.Future[list[Entry]]:
        """Ask one bookie for entries first..last, clamped to their fragment; cancel the future if not wanted.

        The result is a verified prefix of them, as much as came; it is empty where nothing did. It never fails: what
        is missing has to be fetched in another way.
        """
        self._batches += 1
        last = min(last, fragment_end(metadata, first, last))
        digest = self._digest_of(metadata)
        pool, settings = self._pool, self._settings
        request_id = pool.next_txn_id()
        future: asyncio.Future[list[Entry]] = self._loop.create_future()

        def answered(answer: BatchAnswer) -> None:
            if not future.done():
                future.set_result(self._prefix(digest, bookie, first, last, answer))

        connection = pool.batches_of(bookie)
        future.add_done_callback(lambda _: connection.forget(request_id))
        connection.read(
            request_id,
            self._ledger_id,
            first,
            max_count=last - first + 1,
            max_bytes=min(BATCH_BYTES, settings.max_frame_bytes - BATCH_OVERHEAD_BYTES),
            # A batch that is late is not waited for: its entries are asked for one by one, of the other replicas too.
            timeout_ms=settings.speculative_read_ms or settings.read_entry_timeout_ms,
            answer=answered,
        )
        return future

    def _prefix(self, digest: EntryDigest, bookie: str, first: int, last: int, answer: BatchAnswer) -> list[Entry]:
        """Return the entries at an answer's beginning that were asked for: nothing behind `last`, nothing unverified.

        Bookies do not cut a batch there: docs/reference/wire.md#reading-in-batches.
        """
        health = self._pool.health
        if isinstance(answer, DistributedLogError):
            if not self._pool.batches_of(bookie).refused:
                health.slow(bookie)
            return []
        entries: list[Entry] = []
        for entry_id, body in zip(range(first, last + 1), answer.entries, strict=False):
            # By the id that is expected next: an answer with a gap fails here and is cut off at it (I4, I12).
            try:
                entries.append(digest.verify(self._ledger_id, entry_id, body))
            except DistributedLogError:
                health.failed(bookie)
                return entries
        if entries:
            health.answered(bookie)
        return entries
