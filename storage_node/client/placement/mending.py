"""Which copies to move so that an ensemble which breaks the placement rule keeps it: pure, for auto-recovery.

A move costs all copies of one index, over regions at that, so the fewest moves win; among as many, those after which
the ensemble is spread most evenly. What counts is the verdict of the policy itself on the ensemble as it would be:
moves that leave it broken are no moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Final, TypeAlias

from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.regions import LocationOf, PlacementRefusal

MOVE_LIMIT: Final = 5_000
"""Ensembles that are judged before moves count as impossible; six members over four regions never come near."""

Verdict: TypeAlias = Callable[[Sequence[str]], Adherence]


def fewest_moves(
    ensemble: Sequence[str],
    order: Sequence[str],
    location_of: LocationOf,
    domain_of: Callable[[str], str | None],
    verdict: Verdict,
) -> Mapping[int, str] | PlacementRefusal:
    """Return new bookies for the fewest indices, after which the verdict is not FAIL; none where it is not now.

    `order` are those that may take copies, in the order in which they are wanted; `domain_of` gives what is to be
    spread over: region or rack.
    """
    if verdict(ensemble) is not Adherence.FAIL:
        return {}
    free = _free(ensemble, order, location_of, domain_of)
    judged = 0
    for count in range(1, len(ensemble) + 1):
        best: Mapping[int, str] | None = None
        least: list[int] = []
        for moves in _moves(ensemble, count, free, domain_of):
            judged += 1
            if judged > MOVE_LIMIT:
                none = f"none of the first {MOVE_LIMIT} ways to move its copies keeps the rule"
                return best or PlacementRefusal(none)
            after = [moves.get(index, bookie) for index, bookie in enumerate(ensemble)]
            found = verdict(after)
            if found is Adherence.MEETS_STRICT:
                return moves
            crowds = sorted(Counter(map(domain_of, after)).values(), reverse=True)
            if found is not Adherence.FAIL and (best is None or crowds < least):
                best, least = moves, crowds
        if best is not None:
            return best
    seen = ", ".join(f"{len(bookies)} in {domain}" for domain, bookies in sorted(free.items())) or "none"
    return PlacementRefusal(
        f"no other storage nodes could hold its copies so that the rule is kept (there are: {seen})"
    )


def _free(
    ensemble: Sequence[str],
    order: Sequence[str],
    location_of: LocationOf,
    domain_of: Callable[[str], str | None],
) -> dict[str, list[str]]:
    """Return the bookies that could take copies, by domain: those of racks in which no copy is come first, then one of
    each rack."""
    uses = Counter(map(location_of, ensemble))
    free: dict[str, list[tuple[int, str]]] = {}
    for bookie in order:
        domain = domain_of(bookie)
        if domain is not None and bookie not in ensemble:
            free.setdefault(domain, []).append((uses[location_of(bookie)], bookie))
            uses[location_of(bookie)] += 1
    return {domain: [bookie for _, bookie in sorted(members, key=_first)] for domain, members in free.items()}


def _first(ranked: tuple[int, str]) -> int:
    return ranked[0]  # sorting is stable: among equals the order that was given stays


def _moves(
    ensemble: Sequence[str],
    count: int,
    free: Mapping[str, Sequence[str]],
    domain_of: Callable[[str], str | None],
) -> Iterator[dict[int, str]]:
    for indices in combinations(range(len(ensemble)), count):
        targets = [[domain for domain in free if domain != domain_of(ensemble[index])] for index in indices]
        for domains in product(*targets):
            counts = Counter(domains)
            if all(number <= len(free[domain]) for domain, number in counts.items()):
                giving = {domain: iter(free[domain]) for domain in counts}
                yield {index: next(giving[domain]) for index, domain in zip(indices, domains, strict=True)}
