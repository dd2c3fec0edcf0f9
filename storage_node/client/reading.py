"""`EntryFetcher`: committed entries from their replicas, one by one or a batch at a time.

Every entry is verified before a caller sees it (I12). Replicas are asked in write-set order, with those that lag, are
read-only, were slow or failed lately behind the others; after a silence the next one is asked beside, and so on with
growing pauses. A bookie that has answered other reads meanwhile is busy rather than silent, and gets one more pause.

Over regions (`nearness`) the near ones are asked first, and what takes clearly longer than it usually does is asked of
a second replica long before that pause is over, for batches as for single entries; so a region that is cut off costs
some milliseconds. The answer that loses is not waited for, and its time is noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from metadata.bookkeeper.ledger_metadata import DigestType, LedgerMetadata
from metadata.foundation.errors import DistributedLogError, check
from storage_node.client.connections import Answer, BatchAnswer, Connection, ConnectionPool, answer_error
from storage_node.client.health import SLOW
from storage_node.client.nearness import AnswerTimes
from storage_node.errors import REFUSED_ADVICE, ProtocolError, RequestTimeoutError, certificate_refused
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


def advice_on(cause: DistributedLogError | None) -> str:
    """Return what to do where storage nodes of a ledger did not give what they were asked for."""
    said = cause.advice if cause is not None else None
    return said or (REFUSED_ADVICE if certificate_refused(cause) else "See that the ledger's storage nodes are up")


class _Fetch:
    """One entry on its way."""

    __slots__ = (
        "asked",
        "began",
        "bookies",
        "entry_id",
        "future",
        "hedge_at",
        "hedged",
        "machine",
        "patience_s",
        "since",
        "spared",
    )

    def __init__(self, machine: EntryRead, entry_id: int, bookies: tuple[str, ...], now: float, patience_s: float):
        self.machine = machine
        self.entry_id = entry_id
        self.bookies = bookies
        self.began = self.since = now
        self.patience_s = patience_s
        self.spared = False  # a busy bookie was given one more pause
        self.hedge_at: float | None = None  # when another one is asked by measured time
        self.hedged: str | None = None  # the bookie that was late then
        self.asked: list[tuple[str, int]] = []  # bookies and transaction ids
        self.future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()


class _Batch:
    """Entries first..last on their way in one answer."""

    __slots__ = ("asked", "bookie", "first", "future", "last", "left", "since", "timer")

    def __init__(self, first: int, last: int, bookie: str, future: asyncio.Future[list[Entry]]) -> None:
        self.since = future.get_loop().time()  # nothing was heard of the bookie from then on
        self.first = first
        self.last = last
        self.bookie = bookie
        self.future = future
        self.left = 0  # questions that are open
        self.asked: list[tuple[str, int]] = []  # bookies and request ids
        self.timer: asyncio.TimerHandle | None = None


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
        self._nearness = pool.nearness
        self._hedge_timer: asyncio.Handle | None = None
        self._hedge_timer_at = 0.0
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
        return self._pool.reading_order(indices, bookies)

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
        order = self._order(metadata, entry_id, bookies)
        machine = EntryRead(order)
        fetch = _Fetch(machine, entry_id, bookies, self._loop.time(), self._settings.speculative_read_ms / 1000)
        fetch.future.add_done_callback(lambda future: self._settled(fetch, future))
        if not self._open:
            self._pool.sweeper.join(self._sweep)
        self._open[fetch] = None
        self._ask(fetch, machine.ask_next())
        if self._nearness.known and len(order) > 1:
            self._hedge_later(fetch, bookies[order[0]], bookies[order[1]])
        return fetch.future

    def _ask(self, fetch: _Fetch, index: int | None) -> None:
        if index is None:
            return
        bookie = fetch.bookies[index]
        pool = self._pool
        txn_id = pool.next_txn_id()
        fetch.asked.append((bookie, txn_id))
        asked = self._loop.time()
        connection = pool.to(bookie, self._ledger_id)
        connection.request(
            txn_id,
            Operation.READ,
            encode_read_request(txn_id, self._ledger_id, fetch.entry_id),
            self._settings.read_entry_timeout_ms,
            lambda answer: self._answered(fetch, index, asked, answer, connection),
        )

    def _answered(self, fetch: _Fetch, index: int, asked: float, answer: Answer, connection: Connection) -> None:
        bookie = fetch.bookies[index]
        if self._nearness.known and isinstance(answer, ReadResponse):
            now = self._loop.time()
            self._nearness.reads.note(bookie, now - max(asked, connection.opened_at), now)
            self._pool.hedges.answered(bookie)
        if fetch.future.done():
            return
        entry = self._verified(fetch.entry_id, bookie, answer)
        if isinstance(entry, Entry):
            self._pool.health.answered(bookie, asked)
            if fetch.machine.succeeded():
                self._lost(fetch.hedged, bookie)
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
            advice=advice_on(cause),
            ledger_id=self._ledger_id,
            entry_id=fetch.entry_id,
            node=cause.node,
        )
        error.__cause__ = cause
        return error

    def _settled(self, fetch: _Fetch, _future: asyncio.Future[Entry]) -> None:
        """End a fetch that is done, failed or cancelled: the other replicas' answers are not needed any more."""
        self._open.pop(fetch, None)
        if self._nearness.known:
            return  # they still say how far the others are
        for bookie, txn_id in fetch.asked:
            self._pool.to(bookie, self._ledger_id).forget(txn_id)

    # ------------------------------------------------------------------------------------ a second question

    def _hedge_pause_s(self, times: AnswerTimes, first: str, second: str) -> float | None:
        now = self._loop.time()
        return self._pool.hedges.pause_s(
            times.patience_s(first, now), times.usual_s(second, now), self._settings.speculative_read_ms / 1000
        )

    def _hedge_later(self, fetch: _Fetch, first: str, second: str) -> None:
        self._pool.hedges.read()
        pause_s = self._hedge_pause_s(self._nearness.reads, first, second)
        if pause_s is not None:
            fetch.hedge_at = fetch.began + pause_s
            self._hedge_by(fetch.hedge_at)

    def _hedge_by(self, when: float) -> None:
        """Look at the open fetches at `when`, or before. One timer serves all of them."""
        if self._hedge_timer is not None:
            # Its handle cannot be asked: for a time that is less than half a millisecond away uvloop gives one of
            # another kind, which knows no time.
            if self._hedge_timer_at <= when:
                return
            self._hedge_timer.cancel()
        self._hedge_timer = self._loop.call_at(when, self._hedge)
        self._hedge_timer_at = when

    def _hedge(self) -> None:
        self._hedge_timer = None
        now = self._loop.time()
        for fetch in list(self._open):
            if fetch.hedge_at is None or fetch.future.done():
                continue
            if fetch.hedge_at > now:
                self._hedge_by(fetch.hedge_at)
                continue
            fetch.hedge_at = None
            late = fetch.asked[-1][0]
            if len(fetch.asked) == 1 and self._may_hedge(late):
                fetch.hedged = late
                self._ask(fetch, fetch.machine.ask_next())

    def _may_hedge(self, late: str) -> bool:
        pool = self._pool
        return not pool.closed and pool.hedges.may_ask(free=pool.health.rank(late) >= SLOW)

    def _lost(self, late: str | None, winner: str) -> None:
        """Note that `winner` answered first where `late` was asked before it, if it was."""
        if late is not None and late != winner and self._pool.hedges.lost(late):
            self._pool.note_slow(late)

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
        self._pool.note_slow(fetch.asked[-1][0])
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
        found = next(self._batch_bookies(metadata, first), None)
        self._refused = found is None
        return found

    def _batch_bookies(self, metadata: LedgerMetadata, first: int) -> Iterator[str]:
        """Yield the bookies that serve batches, in the order in which they are asked."""
        bookies = metadata.ensemble_for(first).bookies
        # All bookies have all entries: the batches go round, as single reads would.
        for index in self._order(metadata, self._batches, bookies):
            if not self._pool.batches_of(bookies[index]).refused:
                yield bookies[index]

    def fetch_batch(self, metadata: LedgerMetadata, bookie: str, first: int, last: int) -> asyncio.Future[list[Entry]]:
        """Ask one bookie for entries first..last, clamped to their fragment; cancel the future if not wanted.

        The result is a verified prefix of them, as much as came; it is empty where nothing did. It never fails: what
        is missing has to be fetched in another way.
        """
        second = None
        if self._nearness.known:
            second = next((name for name in self._batch_bookies(metadata, first) if name != bookie), None)
        self._batches += 1
        last = min(last, fragment_end(metadata, first, last))
        batch = _Batch(first, last, bookie, self._loop.create_future())
        batch.future.add_done_callback(lambda _: self._batch_settled(batch))
        self._ask_for_batch(batch, bookie, self._digest_of(metadata))
        if second is not None:
            self._pool.hedges.read()
            pause_s = self._hedge_pause_s(self._nearness.batches, bookie, second)
            if pause_s is not None:
                batch.timer = self._loop.call_later(
                    pause_s, self._hedge_batch, batch, second, self._digest_of(metadata), pause_s
                )
        return batch.future

    def _ask_for_batch(self, batch: _Batch, bookie: str, digest: EntryDigest) -> None:
        pool, settings, first, last = self._pool, self._settings, batch.first, batch.last
        request_id = pool.next_txn_id()
        connection = pool.batches_of(bookie)
        batch.asked.append((bookie, request_id))
        asked = self._loop.time()

        def answered(answer: BatchAnswer) -> None:
            if self._nearness.known and not isinstance(answer, DistributedLogError) and answer.entries:
                now = self._loop.time()
                self._nearness.batches.note(bookie, now - max(asked, connection.opened_at), now)
                pool.hedges.answered(bookie)
            if batch.future.done():
                return
            batch.left -= 1
            entries = self._prefix(digest, bookie, first, last, answer)
            if entries:
                self._lost(batch.bookie if len(batch.asked) > 1 else None, bookie)
            if entries or not batch.left:
                batch.future.set_result(entries)

        batch.left += 1
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

    def _hedge_batch(self, batch: _Batch, second: str, digest: EntryDigest, pause_s: float) -> None:
        batch.timer = None
        if not batch.future.done() and (heard := self._nearness.batches.heard_at(batch.bookie)) > batch.since:
            # Batches are read ahead of one another: it is not late with this one while it brings those before it.
            # A second answer would be a megabyte that passes between regions for nothing.
            batch.since = heard
            left_s = heard + pause_s - self._loop.time()
            batch.timer = self._loop.call_later(left_s, self._hedge_batch, batch, second, digest, pause_s)
            return
        if not batch.future.done() and self._may_hedge(batch.bookie):
            self._ask_for_batch(batch, second, digest)

    def _batch_settled(self, batch: _Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if not self._nearness.known:
            for bookie, request_id in batch.asked:
                self._pool.batches_of(bookie).forget(request_id)

    def _prefix(self, digest: EntryDigest, bookie: str, first: int, last: int, answer: BatchAnswer) -> list[Entry]:
        """Return the entries at an answer's beginning that were asked for: nothing behind `last`, nothing unverified.

        Bookies do not cut a batch there: docs/reference/wire.md#reading-in-batches.
        """
        health = self._pool.health
        if isinstance(answer, DistributedLogError):
            if not self._pool.batches_of(bookie).refused:
                self._pool.note_slow(bookie)
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
