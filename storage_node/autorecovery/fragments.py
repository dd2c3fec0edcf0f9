"""Fragments of a ledger: which entries lie on which bookie, and which may be repaired. Pure arithmetic.

A ledger's metadata lists ensembles by their first entries. A *fragment* is what one ensemble holds: its entries run to
the next one's first entry minus one; the last fragment's end comes from the metadata of a closed ledger (D10), from the
LAC of an open one. A fragment may be empty: nothing is copied then, but its ensemble should name living bookies even
so, or every audit would find it again.

A fragment is *settled* when its entries will never change: the ledger is closed, or another fragment follows and all
before that one is committed. Only settled fragments are repaired: of the others a writer may still change everything.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from metadata.ledger_metadata import LedgerMetadata
from storage_node.protocol.striping import in_write_set


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries `first`..`last` (empty where last < first) on the `bookies` of one ensemble."""

    first: int
    last: int
    bookies: tuple[str, ...]
    write_quorum: int
    settled: bool

    def stored_on(self, index: int) -> StripedEntries:
        """The entries that the bookie at `index` holds."""
        return StripedEntries(self.first, self.last, index, len(self.bookies), self.write_quorum)

    def stored_on_any(self, indices: Collection[int]) -> Iterator[int]:
        """Entries of which at least one of the indices has a copy, ascending."""
        size = len(self.bookies)
        for entry_id in range(self.first, self.last + 1):
            if any(in_write_set(entry_id, index, size, self.write_quorum) for index in indices):
                yield entry_id

    def holders(self, entry_id: int, indices: Collection[int]) -> list[int]:
        """Which of the indices have a copy of the entry."""
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
        """The entries to verify: first and last always; with a percentage that share of them, spread over the range."""
        count = self._count
        if count <= 2 or percentage >= 100:
            return [self[number] for number in range(count)]
        wanted = max(-(-count * percentage // 100), 2)
        inner, slots = wanted - 2, count - 2
        picked = [1 + rng.randrange(n * slots // inner, (n + 1) * slots // inner) for n in range(inner)]
        return [self[number] for number in (0, *picked, count - 1)]


def fragments_of(metadata: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """A ledger's fragments, ascending. `last_add_confirmed` counts only while it is open."""
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
    """The bookies that a ledger which is not closed is being written to: of its last ensemble, and of the one before
    where what that one holds is not known to be committed."""
    if metadata.is_closed:
        return set()
    bookies = set(metadata.last_ensemble.bookies)
    if len(metadata.ensembles) > 1 and last_add_confirmed < metadata.last_ensemble.first_entry - 1:
        bookies.update(metadata.ensembles[-2].bookies)
    return bookies
