"""Which copies to move so that an ensemble which breaks the placement rule keeps it: pure, for auto-recovery.

A move costs all copies of one index, over regions at that, so the fewest moves win; among as many, those after which
the ensemble is spread most evenly. What counts is the verdict of the policy itself on the ensemble as it would be:
moves that leave it broken are no moves.

`search_moves` is a search that deepens: one move, then two, and so on. A write set that breaks the rule breaks it until
one of its members is moved, so each step branches over the members of one such write set alone; as many as do not
overlap are the least number of moves that is left to make. Of domains in which no copy is, and which are alike, one
stands for all. So few steps are taken where a few moves will do, however many racks there are.

It is a generator that yields after each step, which is some ten microseconds long: the caller says when others have
their turn (`metadata.foundation.pacing.run_in_slices`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.regions import LocationOf, PlacementRefusal

MOVE_LIMIT: Final = 20_000
"""Steps after which moves count as impossible."""

MoveSteps: TypeAlias = Generator[None, None, Mapping[int, str] | PlacementRefusal]


@dataclass(frozen=True, slots=True)
class BrokenEnsemble:
    """Which ensemble is to be mended, by what rule, with which bookies?"""

    members: Sequence[str]
    order: Sequence[str]
    """The bookies that may take copies, in the order in which they are wanted."""
    location_of: LocationOf
    domain_of: Callable[[str], str | None]
    """What is to be spread over: the rack, or the region; None: no copy goes there."""
    alike: Callable[[str], Hashable]
    """Domains of equal value can stand in for each other, while no copy is in them."""
    verdict: Callable[[Sequence[str]], Adherence]
    failing: Callable[[Sequence[str]], Sequence[Sequence[int]]]
    """The parts of an ensemble that break the rule: of each of them one index at least must be moved. May be empty for
    a verdict of FAIL: then any index may be what is to be moved."""


def search_moves(broken: BrokenEnsemble) -> MoveSteps:
    """Find new bookies for the fewest indices, after which the verdict is not FAIL; for none where it is not now."""
    free = _free(broken)
    search = _MoveSearch(broken, free)
    for count in range(len(broken.members) + 1):
        yield from search.run(count)
        if search.best is not None:
            return search.best
        if search.given_up:
            return PlacementRefusal(f"none of the first {MOVE_LIMIT} ways to move its copies keeps the rule")
    seen = ", ".join(f"{len(bookies)} in {domain}" for domain, bookies in sorted(free.items())) or "none"
    return PlacementRefusal(
        f"no other storage nodes could hold its copies so that the rule is kept (there are: {seen})"
    )


def _free(broken: BrokenEnsemble) -> dict[str, list[str]]:
    """Return the bookies that could take copies, by domain: those of racks in which no copy is come first, then one of
    each rack."""
    uses = Counter(map(broken.location_of, broken.members))
    free: dict[str, list[tuple[int, str]]] = {}
    for bookie in broken.order:
        domain = broken.domain_of(bookie)
        if domain is not None and bookie not in broken.members:
            free.setdefault(domain, []).append((uses[broken.location_of(bookie)], bookie))
            uses[broken.location_of(bookie)] += 1
    return {domain: [bookie for _, bookie in sorted(members, key=_first)] for domain, members in free.items()}


def _first(ranked: tuple[int, str]) -> int:
    return ranked[0]  # sorting is stable: among equals the order that was given stays


class _MoveSearch:
    """Tries all ways to move a number of members, but for those that cannot do and those that are alike."""

    def __init__(self, broken: BrokenEnsemble, free: Mapping[str, Sequence[str]]) -> None:
        self._broken = broken
        self._free = free
        self._after = list(broken.members)
        self._moves: dict[int, str] = {}
        self._used: Counter[str | None] = Counter()
        self._held = set(map(broken.domain_of, broken.members))
        self._least: list[int] = []
        self._strict = False
        self._steps = 0
        self.best: dict[int, str] | None = None
        self.given_up = False
        """There may be moves that were not found in MOVE_LIMIT steps."""

    def run(self, count: int) -> Generator[None, None, None]:
        """Look for the best moves of `count` members; fewer do not do."""
        yield from self._extend(count, frozenset())

    def _extend(self, left: int, staying: frozenset[int]) -> Generator[None, None, None]:
        """Move `left` members more, none of those that are moved or `staying`."""
        self._steps += 1
        if self._steps > MOVE_LIMIT:
            self.given_up = True
            return
        yield
        parts = self._broken.failing(self._after)
        if not parts:
            found = self._broken.verdict(self._after)
            if found is not Adherence.FAIL:
                self._consider(found)
                return
            parts = [range(len(self._after))]
        movable = [[i for i in part if i not in self._moves and i not in staying] for part in parts]
        if _least_moves(movable) > left:
            return
        indices = min(movable, key=len)
        if not indices:
            return  # what breaks the rule stays where it is
        for place, index in enumerate(indices):
            # The ones before it stay: with them moved all has been tried.
            others = staying.union(indices[:place])
            for domain in self._domains(index, left):
                self._move(index, domain)
                yield from self._extend(left - 1, others)
                self._take_back(index, domain)
                if self._strict or self.given_up:
                    return

    def _consider(self, found: Adherence) -> None:
        crowds = sorted(Counter(map(self._broken.domain_of, self._after)).values(), reverse=True)
        self._strict = found is Adherence.MEETS_STRICT
        if self.best is None or self._strict or crowds < self._least:
            self.best, self._least = dict(self._moves), crowds

    def _domains(self, index: int, left: int) -> Iterator[str]:
        """Yield the domains to which a member may be moved: of those without a copy that are alike, the first."""
        seen: set[Hashable] = set()
        for domain, bookies in list(self._free.items()):
            capacity = len(bookies) - self._used[domain]
            if capacity <= 0 or domain == self._broken.domain_of(self._broken.members[index]):
                continue
            if domain not in self._held and not self._used[domain]:
                kind = (self._broken.alike(domain), min(capacity, left))
                if kind in seen:
                    continue
                seen.add(kind)
            yield domain

    def _move(self, index: int, domain: str) -> None:
        self._after[index] = self._moves[index] = self._free[domain][self._used[domain]]
        self._used[domain] += 1

    def _take_back(self, index: int, domain: str) -> None:
        del self._moves[index]
        self._after[index] = self._broken.members[index]
        self._used[domain] -= 1


def _least_moves(parts: Sequence[Sequence[int]]) -> int:
    """Return how many of the parts overlap none of those before: each takes a move of its own."""
    count, met = 0, set[int]()
    for part in parts:
        if met.isdisjoint(part):
            count += 1
            met.update(part)
    return count
