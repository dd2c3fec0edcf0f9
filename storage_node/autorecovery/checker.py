"""`LedgerChecker`: which copies of a ledger are missing, found by asking the bookies that should have them.

A ledger's metadata lists ensembles by their first entries. A *fragment* is what one ensemble holds: its entries run to
the next one's first entry minus one; the last fragment's end comes from the metadata of a closed ledger (D10), from the
LAC of an open one. A fragment may be empty: nothing is copied then, but its ensemble should name living bookies even
so, or every audit would find it again. A fragment is *settled* when its entries will never change: the ledger is
closed, or another fragment follows and all before that one is committed. Only settled fragments are repaired: of the
others a writer may still change everything. `fragments_of` is that arithmetic; it asks no bookie.

A bookie that is not registered has nothing, without being asked. Of any other one the first and the last entry that it
should hold of each fragment are read, and more with `auditorLedgerVerificationPercentage`; a copy that it does not
give is missing, whatever the reason. That is for repair, where one copy too many does no harm. What does harm is to
take silence for the end of a ledger: so only "no such entry" and "no such ledger" say that nothing was written, never
an unclean bookie's "unknown" (D3), and the end of a closed ledger is taken from its metadata, not asked for (D10).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from metadata.bookkeeper.auditors import AuditorStore, RegisteredBookies
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import (
    ConnectionLossError,
    DistributedLogError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from metadata.foundation.pacing import for_each
from storage_node.client.client import LedgerClient
from storage_node.client.ledger_copies import LedgerCopies
from storage_node.errors import DigestError, LedgerStateUnknownError
from storage_node.protocol.reading import MISSING
from storage_node.protocol.striping import in_write_set, write_set
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

READS_OF_ONE_LEDGER: Final = 16
"""Entries of one ledger that a check reads at once."""

METADATA_AWAY: Final = (ConnectionLossError, MetadataUnavailableError, SessionExpiredError)
"""Errors that say nothing about a ledger: the audit or repair that gets one waits and begins anew."""

_DEFINITE: Final = (*MISSING, DigestError, LedgerStateUnknownError)
"""Answers that asking again will not change."""


@dataclass(frozen=True, slots=True)
class BadFragment:
    """A fragment and the indices of its ensemble whose copies are missing."""

    fragment: Fragment
    bad: frozenset[int]

    @property
    def bookies(self) -> set[str]:
        """The bookies whose copies are missing."""
        return {self.fragment.bookies[index] for index in self.bad}


@dataclass(frozen=True, slots=True)
class Inspection:
    """Does a ledger lack copies? The ledger as it was, the registered bookies, and the fragments that do."""

    ledger_id: int
    metadata: LedgerMetadata
    last_add_confirmed: int
    registered: RegisteredBookies
    bad: tuple[BadFragment, ...]

    @property
    def missing(self) -> set[str]:
        """Bookies that lack copies."""
        return {bookie for part in self.bad for bookie in part.bookies}

    @property
    def waits_for_writer(self) -> bool:
        """True where its writer has to act: a fragment that may still change lacks copies, or a bookie that the ledger
        is written to takes no writes.
        """
        seats = endangered_seats(self.metadata, self.last_add_confirmed)
        return bool(seats - self.registered.writable) or not all(part.fragment.settled for part in self.bad)


class LedgerChecker:
    """Which fragments of a ledger lack copies? One object bounds the reads of all its checks together.

    Args:
        client: reads copies.
        ledgers: reads metadata again.
        auditors: names the bookies that are registered.
        settings: bounds.
        rng: draws the entries that stand for a fragment.
    """

    def __init__(
        self,
        client: LedgerClient,
        ledgers: LedgerStore,
        auditors: AuditorStore,
        settings: AutoRecoverySettings,
        rng: Random,
    ) -> None:
        self._client = client
        self._ledgers = ledgers
        self._auditors = auditors
        self._percentage = settings.ledger_verification_percentage
        self._rng = rng
        limit = settings.in_flight_check_reads
        self._reads = asyncio.Semaphore(limit) if limit > 0 else None

    async def inspect(self, ledger_id: int) -> Inspection:
        """Check a ledger. Raises NoNodeError where there is none; of an open ledger, what kept its LAC from being read;
        the metadata store's errors."""
        metadata, last_add_confirmed = await self._ledger(ledger_id)
        registered = await self._auditors.registered()
        copies = self._client.copies(ledger_id, metadata)
        fragments = fragments_of(metadata, last_add_confirmed)
        if await self._is_unwritten(metadata, fragments[-1], copies, registered):
            fragments.pop()
        found = []
        for fragment in fragments:
            bad = await self._bad_indices(fragment, copies, registered)
            if bad:
                found.append(BadFragment(fragment, bad))
        return Inspection(ledger_id, metadata, last_add_confirmed, registered, tuple(found))

    async def _ledger(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Return the metadata and the last committed entry."""
        metadata = (await self._ledgers.read(ledger_id)).value
        if metadata.is_closed:
            return metadata, metadata.last_entry
        # Without recovery: a check must not fence the ledger's writer (I5).
        reader = await self._client.open(ledger_id, password=metadata.password or b"", recover=False)
        try:
            return reader.metadata, reader.last_add_confirmed
        finally:
            await reader.close()

    async def _is_unwritten(
        self, metadata: LedgerMetadata, last: Fragment, copies: LedgerCopies, registered: RegisteredBookies
    ) -> bool:
        """Return whether an open ledger's last fragment, of one entry, has none yet: all of its bookies say so (D3)."""
        if metadata.is_closed or last.first != last.last:
            return False
        for index in write_set(last.first, len(last.bookies), last.write_quorum):
            bookie = last.bookies[index]
            # It may have the entry: silence is not "no such entry" (D3).
            if bookie not in registered.available:
                return False
            error = await self._read(copies, bookie, last.first)
            if not isinstance(error, MISSING):
                return False
        return True

    async def _bad_indices(
        self, fragment: Fragment, copies: LedgerCopies, registered: RegisteredBookies
    ) -> frozenset[int]:
        bad = {index for index, bookie in enumerate(fragment.bookies) if bookie not in registered.available}

        async def verify(place: tuple[int, int]) -> None:
            index, entry_id = place
            if index in bad:
                return
            error = await self._read(copies, fragment.bookies[index], entry_id)
            if error is not None:
                logger.info("ledger %d lacks a copy: %s", copies.ledger_id, error)
                bad.add(index)

        places = (
            (index, entry_id)
            for index in range(len(fragment.bookies))
            if index not in bad
            for entry_id in fragment.stored_on(index).sample(self._percentage, self._rng)
        )
        await for_each(places, READS_OF_ONE_LEDGER, verify)
        return frozenset(bad)

    async def _read(self, copies: LedgerCopies, bookie: str, entry_id: int) -> DistributedLogError | None:
        """Return why a bookie does not give its copy, None where it does. A bookie that may only be busy is asked
        twice."""
        error = await self._read_once(copies, bookie, entry_id)
        if error is None or isinstance(error, _DEFINITE):
            return error
        return await self._read_once(copies, bookie, entry_id)

    async def _read_once(self, copies: LedgerCopies, bookie: str, entry_id: int) -> DistributedLogError | None:
        if self._reads is None:
            return await self._failure(copies, bookie, entry_id)
        async with self._reads:
            return await self._failure(copies, bookie, entry_id)

    async def _failure(self, copies: LedgerCopies, bookie: str, entry_id: int) -> DistributedLogError | None:
        try:
            await copies.read(bookie, entry_id)
        except DistributedLogError as error:
            return error
        return None


# ------------------------------------------------------------------------------------ fragments


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries `first`..`last` (empty where last < first) on the `bookies` of one ensemble."""

    first: int
    last: int
    bookies: tuple[str, ...]
    write_quorum: int
    settled: bool

    def stored_on(self, index: int) -> StripedEntries:
        """Return the entries that the bookie at `index` holds."""
        return StripedEntries(self.first, self.last, index, len(self.bookies), self.write_quorum)

    def stored_on_any(self, indices: Collection[int]) -> Iterator[int]:
        """Yield entries of which at least one of the indices has a copy, ascending."""
        size = len(self.bookies)
        for entry_id in range(self.first, self.last + 1):
            if any(in_write_set(entry_id, index, size, self.write_quorum) for index in indices):
                yield entry_id

    def holders(self, entry_id: int, indices: Collection[int]) -> list[int]:
        """Return which of the indices have a copy of the entry."""
        size = len(self.bookies)
        return [index for index in sorted(indices) if in_write_set(entry_id, index, size, self.write_quorum)]


class StripedEntries:
    """The entries of a fragment that one index holds, ascending; counted and picked without walking through them."""

    __slots__ = ("_count", "_first", "_offsets", "_size")

    def __init__(self, first: int, last: int, index: int, ensemble_size: int, write_quorum: int) -> None:
        cycle = range(ensemble_size)
        self._first = first
        self._size = ensemble_size
        self._offsets = [n for n in cycle if in_write_set(first + n, index, ensemble_size, write_quorum)]
        turns, rest = divmod(max(last - first + 1, 0), ensemble_size)
        self._count = turns * len(self._offsets) + sum(offset < rest for offset in self._offsets)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < self._count:
            raise IndexError(number)
        turn, place = divmod(number, len(self._offsets))
        return self._first + turn * self._size + self._offsets[place]

    def sample(self, percentage: int, rng: random.Random) -> list[int]:
        """Return the entries to verify: first and last always; with a percentage that share of them, spread over the
        range."""
        count = self._count
        if count <= 2 or percentage >= 100:
            return [self[number] for number in range(count)]
        wanted = max(-(-count * percentage // 100), 2)
        inner, slots = wanted - 2, count - 2
        picked = [1 + rng.randrange(n * slots // inner, (n + 1) * slots // inner) for n in range(inner)]
        return [self[number] for number in (0, *picked, count - 1)]


def fragments_of(metadata: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """Return a ledger's fragments, ascending. `last_add_confirmed` counts only while it is open."""
    closed = metadata.is_closed
    last_key = metadata.last_ensemble.first_entry
    # Of an open ledger that has nothing in its last fragment yet, the first entry to come is looked at.
    end = metadata.last_entry if closed else max(last_add_confirmed, last_key)
    committed_before_last = last_add_confirmed >= last_key - 1
    found = []
    for number, ensemble in enumerate(metadata.ensembles):
        is_last = number == len(metadata.ensembles) - 1
        following = end if is_last else metadata.ensembles[number + 1].first_entry - 1
        found.append(
            Fragment(
                first=ensemble.first_entry,
                last=min(following, end) if closed else following,
                bookies=ensemble.bookies,
                write_quorum=metadata.write_quorum,
                settled=closed or (not is_last and committed_before_last),
            )
        )
    return found


def endangered_seats(metadata: LedgerMetadata, last_add_confirmed: int) -> set[str]:
    """Return the bookies that a ledger which is not closed is being written to: of its last ensemble, and of the one
    before where what that one holds is not known to be committed."""
    if metadata.is_closed:
        return set()
    bookies = set(metadata.last_ensemble.bookies)
    if len(metadata.ensembles) > 1 and last_add_confirmed < metadata.last_ensemble.first_entry - 1:
        bookies.update(metadata.ensembles[-2].bookies)
    return bookies
