"""`EntrySearch`: which entry of a segment has the first record that reaches a value, by reading few entries. Pure.

A node gives whole entries, often of some 256 KB, so what a search costs is the entries that it looks at. Transaction
ids are mostly times, of a writer that writes evenly, and positions count records: so the first look is at a *guess*, in
proportion between the values of a segment's ends. From there it walks in growing steps the way that the entry told,
until the place lies between two entries that were looked at; what is between them is searched by parts of equal
length. So a good guess costs one or two entries, and a useless one a logarithm of the segment's, as without it.

Values may be equal, and must not decrease; where they do, the result is one place between a lower value and a higher.
"""

from __future__ import annotations

_GROWTH = 4
"""By how much the steps away from a guess grow."""


class EntrySearch:
    """Ask `probes` which entries to look at, `tell` of them in order until one is at or behind the place, and again."""

    def __init__(self, count: int, ways: int = 2) -> None:
        """Among entries 0 to before `count`; `ways`: how many are looked at at a time where there is no guess."""
        self._first, self._after = 0, count
        self._ways = max(ways, 2)
        self._guess: int | None = None
        self._step = 1
        self._backwards: bool | None = None
        """The way from the guess to the place; not known before it was looked at."""
        self.found: int | None = None
        """The first entry known to reach the value: once no probes are left, the one that is looked for."""

    def look_near(self, entry_id: int) -> None:
        """Begin at an entry that the place is probably near to."""
        self._guess = entry_id

    def probes(self) -> list[int]:
        """Entries to look at now, in their order; empty once the search is over."""
        if self._first >= self._after:
            return []
        if self._guess is not None:
            return [min(max(self._guess, self._first), self._after - 1)]
        return _spread(self._first, self._after, self._ways)

    def tell(self, entry_id: int, *, begins_before: bool, reaches: bool) -> None:
        """Of an entry: whether its first record is below the value, and whether its last one is not."""
        if not reaches:
            self._first = entry_id + 1
        else:
            self.found = self._after = entry_id
            if begins_before:
                self._first = entry_id
        if self._guess is not None:
            self._walk(entry_id, reaches)

    def _walk(self, entry_id: int, reaches: bool) -> None:
        """On from a guess that missed, unless the place lies between two entries now."""
        if self._backwards is None:
            self._backwards = reaches
        following = entry_id - self._step if reaches else entry_id + self._step
        self._guess = following if reaches == self._backwards else None
        self._step *= _GROWTH


def proportional(count: int, wanted: int, low: int, high: int) -> int | None:
    """The entry of `count` that has `wanted` if values grow evenly from `low` to `high`; None where they do not."""
    if wanted <= low or count <= 0:
        return 0
    return min((wanted - low) * count // (high - low + 1), count - 1) if high > low else None


def _spread(first: int, after: int, ways: int) -> list[int]:
    """Up to `ways` numbers that cut first..after-1 into parts of equal length."""
    count = after - first
    if count <= ways:
        return list(range(first, after))
    return [first + count * part // (ways + 1) for part in range(1, ways + 1)]
