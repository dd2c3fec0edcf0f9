"""Entries of a range in order, with some of them on their way ahead of what was taken.

Small entries travel in batches, where every bookie of their ensemble has every entry; what a batch lacks, and all else,
is fetched one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CallerError, DistributedLogError
from storage_node.client.health import Outage, is_outage
from storage_node.client.reading import EntryFetcher
from storage_node.protocol.digests import Entry

WINDOW_BYTES = 8 << 20
WINDOW_ENTRIES = 128

LEAST_BATCH = 2
"""Fewer entries than this are not worth a batch."""

FIRST_BATCH = 16
FIRST_SINGLES = 4
"""How many entries are asked for at once before the size of any is known; a batch is also bounded in bytes."""

Again = Callable[[int, LedgerMetadata, DistributedLogError], Awaitable[Entry]]


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be on its way. One entry always may."""

    bytes: int = WINDOW_BYTES
    entries: int = WINDOW_ENTRIES
    largest_in_batch: int = 0
    """Average size of entries above which they are not read in batches."""


@dataclass(slots=True)
class _SingleRead:
    entry_id: int
    known: LedgerMetadata
    future: asyncio.Future[Entry]


@dataclass(slots=True)
class _BatchRead:
    first: int
    last: int
    future: asyncio.Future[list[Entry]]


@dataclass(slots=True)
class ReadAhead:
    """One run over a range; `metadata` gives what is known at the time, `again` decides on entries that failed."""

    fetcher: EntryFetcher
    metadata: Callable[[], LedgerMetadata]
    again: Again
    window: Window
    outage_wait_ms: int = 0
    _ahead: deque[_SingleRead | _BatchRead] = field(default_factory=deque)
    _on_their_way: int = 0
    _next: int = 0
    _seen: int = 0
    _seen_bytes: int = 0

    async def entries(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """Yield entries first..last, each once, in order."""
        self._next = first
        try:
            while self._next <= last or self._ahead:
                self._top_up(last)
                piece = self._ahead[0]
                if isinstance(piece, _SingleRead):
                    entry = await self._take(piece)
                    self._ahead.popleft()
                    self._count(entry)
                    yield entry
                    continue
                found = await piece.future
                self._ahead.popleft()
                self._go_on_behind(piece, len(found))
                for entry in found:
                    self._count(entry)
                    yield entry
        finally:
            for piece in self._ahead:
                piece.future.cancel()
                if piece.future.done() and not piece.future.cancelled():
                    piece.future.exception()  # seen: the first error was raised, and the others add nothing

    async def _take(self, piece: _SingleRead) -> Entry:
        failure: DistributedLogError
        try:
            return await piece.future
        except DistributedLogError as error:
            failure = error
        outage = Outage(self.outage_wait_ms)
        while True:
            try:
                return await self.again(piece.entry_id, piece.known, failure)
            except DistributedLogError as error:
                failure = error
            # Entries behind it were asked for as well; they have failed by now, and are asked for again in their turn.
            if not is_outage(failure) or not await outage.wait(failure):
                raise outage.lasted(failure)
            piece.known = self.metadata()
            try:
                return await self.fetcher.fetch(piece.known, piece.entry_id)
            except DistributedLogError as error:
                failure = error

    def _count(self, entry: Entry) -> None:
        self._on_their_way -= 1
        self._seen_bytes += len(entry.payload)
        self._seen += 1

    # ------------------------------------------------------------------------------------ asking

    def _average(self, known: LedgerMetadata) -> int:
        """Return the bytes of an entry, as far as was seen; before that, the mean of a closed ledger. 0: not known."""
        if self._seen:
            return max(self._seen_bytes // self._seen, 1)
        return known.length // (known.last_entry + 1) if known.is_closed and known.last_entry >= 0 else 0

    def _room(self, average: int, *, batches: bool) -> int:
        """Return how many entries may be on their way."""
        room = self.window.entries
        if not self._seen:  # a mean says little of the first ones, of which perhaps no more are wanted
            large = average > self.window.largest_in_batch  # nothing but a batch bounds small ones, by their bytes
            room = min(room, 2 * FIRST_BATCH if batches or large else FIRST_SINGLES)
        return min(room, self.window.bytes // average) if average else room

    def _top_up(self, last: int) -> None:
        while self._next <= last:
            known = self.metadata()
            average = self._average(known)
            # Large entries one by one: a batch would bring a few of them, and the next one had to wait for it.
            batches = average <= self.window.largest_in_batch and self.fetcher.batchable(known)
            room = self._room(average, batches=batches)
            # Two batches fill the window: one is taken while the other travels.
            step = max(room // 2, 1) if batches else 1
            step = min(step, last - self._next + 1)
            if self._ahead and self._on_their_way + step > room:
                return
            self._ask(known, self._next, self._next + step - 1)

    def _ask(self, known: LedgerMetadata, first: int, last: int) -> None:
        """Ask for first..last in a batch, or for `first` alone."""
        bookie = self.fetcher.batch_bookie(known, first) if last - first + 1 >= LEAST_BATCH else None
        if bookie is None:
            self._ahead.append(_SingleRead(first, known, self.fetcher.fetch(known, first)))
            last = first
        else:
            self._ahead.append(_BatchRead(first, last, self.fetcher.fetch_batch(known, bookie, first, last)))
        self._on_their_way += last - first + 1
        self._next = last + 1

    def _go_on_behind(self, batch: _BatchRead, found: int) -> None:
        """See to what a batch did not bring: another batch if it was cut short, single reads if nothing came."""
        missing = batch.first + found
        if missing > batch.last:
            return
        # At the front of the line: entries are given in order, and those behind are on their way already (I4).
        known = self.metadata()
        bookie = (
            self.fetcher.batch_bookie(known, missing) if found and batch.last - missing + 1 >= LEAST_BATCH else None
        )
        if bookie is not None:
            future = self.fetcher.fetch_batch(known, bookie, missing, batch.last)
            self._ahead.appendleft(_BatchRead(missing, batch.last, future))
            return
        singles = range(missing, batch.last + 1)
        self._ahead.extendleft(_SingleRead(e, known, self.fetcher.fetch(known, e)) for e in reversed(singles))


def check_range(first: int, last: int, end: int, ledger_id: int) -> None:
    """Raise CallerError unless 0 <= first <= last <= end (I6, I17)."""
    if not 0 <= first <= last <= end:
        raise CallerError(
            f"entries {first} to {last} were asked for; readable are 0 to {end}",
            advice="Entries beyond the last confirmed one are not committed (yet)",
            ledger_id=ledger_id,
        )
