"""The arithmetic of rack-aware placement: pure functions of an order of preference and of the bookies' racks.

A *window* is W cyclically consecutive positions of an ensemble: where some entries' copies lie. The rule is that every
window spans R = min(W, minNumRacksPerWriteQuorum) racks. `order` lists bookies in the order in which they are wanted,
usually drawn at random; nothing here draws.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

SEARCH_STEPS: Final = 2_000
"""Positions tried before an arrangement counts as impossible; ensembles of up to ten never come near."""

RackOf = Callable[[str], str]


class Adherence(IntEnum):
    """How well an ensemble keeps the placement rule; upstream's numbers."""

    FAIL = 1
    MEETS_SOFT = 3
    """The known racks keep it, but not every rack is known."""
    MEETS_STRICT = 5


def windows(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the positions of each window."""
    return [tuple((start + step) % size for step in range(write_quorum)) for start in range(size)]


def spans(racks: Sequence[str | None], write_quorum: int, wanted: int) -> bool:
    """Return whether every window has `wanted` racks, or still can: each None is a position that may get any rack."""
    if wanted <= 1:
        return True
    return all(_reaches([racks[index] for index in window], wanted) for window in windows(len(racks), write_quorum))


def broken_windows(racks: Sequence[str], write_quorum: int, wanted: int) -> list[tuple[int, ...]]:
    """Return the windows that do not have `wanted` racks, each set of positions once."""
    sets = dict.fromkeys(tuple(sorted(window)) for window in windows(len(racks), write_quorum))
    return [window for window in sets if not _reaches([racks[index] for index in window], wanted)]


def _reaches(racks: Sequence[str | None], wanted: int) -> bool:
    filled = [rack for rack in racks if rack is not None]
    return len(set(filled)) + len(racks) - len(filled) >= wanted


class _Search:
    """Fills the positions one by one, going back where racks run out."""

    def __init__(self, order: Sequence[str], rack_of: RackOf, size: int, write_quorum: int, wanted: int) -> None:
        self._members: dict[str, list[tuple[int, str]]] = {}
        for rank, bookie in enumerate(order):
            self._members.setdefault(rack_of(bookie), []).append((rank, bookie))
        self._taken = dict.fromkeys(self._members, 0)
        self._racks: list[str | None] = [None] * size
        self._wanted = wanted
        all_windows = windows(size, write_quorum)
        self._touching = [[window for window in all_windows if index in window] for index in range(size)]
        self._steps = 0
        self.exhausted = False

    def run(self, first_rack: str | None, *, fullest_first: bool) -> tuple[str, ...] | None:
        """Return the ensemble, or None. `fullest_first` prefers racks with many bookies left over unused ones."""
        self._steps, self.exhausted = 0, False
        if not self._fill(0, first_rack, fullest_first):
            return None
        chosen = {rack: iter(members) for rack, members in self._members.items()}
        return tuple(next(chosen[rack])[1] for rack in self._racks if rack is not None)

    def _fill(self, position: int, first_rack: str | None, fullest_first: bool) -> bool:
        if position == len(self._racks):
            return True
        for rack in self._choices(position, first_rack, fullest_first):
            self._steps += 1
            if self._steps > SEARCH_STEPS:
                self.exhausted = True
                return False
            self._racks[position] = rack
            self._taken[rack] += 1
            if self._holds(position) and self._fill(position + 1, first_rack, fullest_first):
                return True
            self._taken[rack] -= 1
            self._racks[position] = None
        return False

    def _choices(self, position: int, first_rack: str | None, fullest_first: bool) -> list[str]:
        left = [rack for rack, members in self._members.items() if self._taken[rack] < len(members)]

        def wish(rack: str) -> tuple[int, int]:
            members, taken = self._members[rack], self._taken[rack]
            if position == 0 and rack == first_rack:
                return (-1, 0)
            if fullest_first:
                return (0, taken - len(members))
            return (int(taken > 0), members[taken][0])

        return sorted(left, key=wish)

    def _holds(self, position: int) -> bool:
        return all(_reaches([self._racks[i] for i in window], self._wanted) for window in self._touching[position])


def arrange(
    order: Sequence[str], rack_of: RackOf, size: int, write_quorum: int, wanted: int, first_rack: str | None = None
) -> tuple[str, ...] | None:
    """Return an ensemble that keeps the rule, None where the racks do not allow one (or none was found in
    SEARCH_STEPS).

    The first bookie is from `first_rack` where that works; each next one from a rack not used yet, where that works.
    """
    if len(order) < size or len({rack_of(bookie) for bookie in order}) < wanted:
        return None
    if wanted <= 1 and first_rack is None and len({rack_of(bookie) for bookie in order}) == 1:
        return tuple(order[:size])
    search = _Search(order, rack_of, size, write_quorum, wanted)
    found = search.run(first_rack, fullest_first=False)
    if found is None and search.exhausted:
        found = _Search(order, rack_of, size, write_quorum, wanted).run(first_rack, fullest_first=True)
    return found


def arrange_roughly(
    order: Sequence[str], rack_of: RackOf, size: int, write_quorum: int, wanted: int, first_rack: str | None = None
) -> tuple[str, ...]:
    """Return distinct bookies that come close to the rule: position by position the best one left. Needs `size`
    bookies.
    """
    left = list(order)
    ensemble: list[str] = []
    racks: list[str | None] = [None] * size
    for position in range(size):
        used = set(racks)
        pick = next(_by_preference(left, rack_of, racks, position, used, write_quorum, wanted, first_rack))
        left.remove(pick)
        ensemble.append(pick)
        racks[position] = rack_of(pick)
    return tuple(ensemble)


def _by_preference(
    left: Sequence[str],
    rack_of: RackOf,
    racks: Sequence[str | None],
    position: int,
    used: set[str | None],
    write_quorum: int,
    wanted: int,
    first_rack: str | None,
) -> Iterator[str]:
    """Yield bookies of the own rack first; then of racks not used yet; then any that keeps the rule within reach; then
    any.
    """

    def fits(bookie: str) -> bool:
        return spans([*racks[:position], rack_of(bookie), *racks[position + 1 :]], write_quorum, wanted)

    if position == 0:
        yield from (bookie for bookie in left if rack_of(bookie) == first_rack)
    yield from (bookie for bookie in left if rack_of(bookie) not in used and fits(bookie))
    yield from (bookie for bookie in left if fits(bookie))
    yield from left


def replace_alike(order: Sequence[str], rack_of: RackOf, failed: str, staying: Collection[str]) -> str | None:
    """Return a bookie of `order` that takes the place of `failed` and costs the ensemble no rack, None where there is
    none.

    From the failed bookie's own rack; else from one in which none of `staying`, the other members, is.
    """
    own = rack_of(failed)
    taken = {rack_of(bookie) for bookie in staying}
    alike = next((bookie for bookie in order if rack_of(bookie) == own), None)
    return alike or next((bookie for bookie in order if rack_of(bookie) not in taken), None)


def replace_lawfully(
    order: Sequence[str],
    rack_of: RackOf,
    index: int,
    others: Mapping[int, str],
    size: int,
    write_quorum: int,
    wanted: int,
) -> str | None:
    """Return a bookie of `order` with which, at `index`, every window still has its racks. `others`: members by
    position."""
    racks: list[str | None] = [rack_of(others[i]) if i in others else None for i in range(size)]
    for bookie in order:
        racks[index] = rack_of(bookie)
        if spans(racks, write_quorum, wanted):
            return bookie
    return None


def adherence(
    ensemble: Sequence[str], rack_of: RackOf, is_known: Callable[[str], bool], write_quorum: int, wanted: int
) -> Adherence:
    """Judge an ensemble; bookies whose rack is not known count as being in the default rack."""
    if not spans([rack_of(bookie) for bookie in ensemble], write_quorum, wanted):
        return Adherence.FAIL
    return Adherence.MEETS_STRICT if all(map(is_known, ensemble)) else Adherence.MEETS_SOFT
