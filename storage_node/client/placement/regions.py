"""The arithmetic of placement over regions: pure functions of an order of preference and of the bookies' locations.

With m = reppMinimumRegionsForDurability, E members, write quorum Qw and ack quorum Qa, an acknowledged entry survives
the loss of any m-1 regions. There are two ways to that, and `RegionRules` says which of them holds:

    by numbers    every Qa copies lie in m regions, because no m-1 regions hold Qa members of any write set. This is
                  upstream's rule. It needs Qa > Qw - floor(Qw / m), or it could not be kept with m regions left.
    by counting   the writer acknowledges an entry once its copies are seen to lie in m regions. Then it is enough that
                  every write set spans m regions, or its entries could never be acknowledged.

Even spread is wanted in both, not demanded: with one of three regions away 6/6/4 goes on as 3+3, and 3/3/2 as 2+1.

Nothing here draws, waits or knows the time: `order` lists bookies in the order in which they are wanted. A member whose
region is not known (None) may be in any: it counts as being where it does most harm, unless it is said otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from storage_node.client.placement.arranging import (
    Adherence,
    adherence,
    arrange,
    arrange_roughly,
    broken_windows,
    spans,
    windows,
)
from storage_node.client.placement.racks import is_default, region_of

SEARCH_LIMIT: Final = 4_000
"""Positions tried before an arrangement of regions counts as impossible; it remembers what failed, so that ensembles of
up to ten over five regions never come near."""

LocationOf: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What do the settings and the switches ask of an ensemble, at this moment?"""

    regions: tuple[str, ...] = ()
    """The regions that are listed to hold copies."""
    minimum: int = 0
    """m; 0 and 1 ask nothing."""
    enforce_in_replace: bool = True
    disallowed: frozenset[str] = frozenset()
    """Regions that get no new copies."""
    acknowledged_from_regions: bool = False
    """The writer counts the regions of each entry's copies: by counting, not by numbers."""
    racks: int = 2
    """Racks that a region's part of a write set spans."""
    enforce_racks: bool = False
    """An ensemble in fewer racks is refused."""

    @property
    def enforced(self) -> bool:
        """True where a number of regions is demanded."""
        return self.minimum > 1


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """Why is there no ensemble, or no replacement?"""

    reason: str


@dataclass(frozen=True, slots=True)
class ReplacementPick:
    """Which bookie takes the place of a failed one, and was the rest of the ensemble against the rule already?"""

    bookie: str
    anomalous: bool = False


# ------------------------------------------------------------------------------------ the rules


def quorum_fault(size: int, write_quorum: int, ack_quorum: int, rules: RegionRules) -> str | None:
    """Return why ensembles of these sizes cannot survive the loss of regions, None where they can."""
    minimum, sizes = rules.minimum, f"{size}/{write_quorum}/{ack_quorum}"
    if not size >= write_quorum >= ack_quorum:
        return f"{sizes} is not an ensemble, its write quorum and its ack quorum: none is above the one before"
    if not rules.enforced:
        return None
    if ack_quorum < minimum:
        return (
            f"with {sizes} an entry is acknowledged by {ack_quorum} storage nodes, which cannot lie in {minimum} "
            "regions (reppMinimumRegionsForDurability)"
        )
    needed = write_quorum - write_quorum // minimum + 1
    if rules.acknowledged_from_regions or ack_quorum >= needed:
        return None
    enough = _advised_sizes(minimum)
    return (
        f"with {sizes} entries could be acknowledged that lie in fewer than {minimum} regions, once a region is away "
        f"(reppMinimumRegionsForDurability). There are two ways on: an ack quorum of at least {needed} "
        f"({size}/{write_quorum}/{needed}; or {enough}, which goes on writing while a region is away), or "
        f"enforceMinNumFaultDomainsForWrite=true, with which an entry is acknowledged only when its copies are seen to "
        f"lie in {minimum} regions ({sizes} remains)"
    )


def _advised_sizes(minimum: int) -> str:
    """Return the smallest sizes over m+1 regions, m members in each, that keep writing when one of them is away: what
    is left is exactly an ack quorum."""
    write_quorum = minimum * (minimum + 1)
    return f"{write_quorum}/{write_quorum}/{write_quorum - write_quorum // minimum + 1}"


def quorum_share(size: int, write_quorum: int, share: int) -> int:
    """Return how much of each write set falls to a region that holds `share` of the ensemble's members, rounded half
    up."""
    return max(1, (2 * write_quorum * share + size) // (2 * size))


_VACANT: Final = "/"
"""Stands for the region of a position that is not filled yet; no region has such a name."""


def _window_holds(regions: Sequence[str | None], ack_quorum: int, rules: RegionRules, *, doubting: bool) -> bool:
    """Return whether a write set keeps the rule, or still can. `doubting`: unknown regions are where they harm most,
    else they harm nothing."""
    known = Counter(region for region in regions if region is not None and region != _VACANT)
    unknown = sum(region is None for region in regions)
    if rules.acknowledged_from_regions:
        vacant = len(regions) - known.total() - unknown
        return len(known) + vacant + (0 if doubting else unknown) >= rules.minimum
    most = sum(count for _, count in known.most_common(rules.minimum - 1))
    return most + (unknown if doubting else 0) < ack_quorum


def keeps_regions(
    regions: Sequence[str | None], write_quorum: int, ack_quorum: int, rules: RegionRules, *, doubting: bool = True
) -> bool:
    """Return whether every write set of an ensemble in these regions keeps the rule."""
    if not rules.enforced:
        return True
    return all(
        _window_holds([regions[index] for index in window], ack_quorum, rules, doubting=doubting)
        for window in windows(len(regions), write_quorum)
    )


def keeps_racks(locations: Sequence[str], write_quorum: int, rules: RegionRules, size: int) -> bool:
    """Return whether each region's members are spread over racks; `size` is the ensemble's, of which some may be
    missing."""
    by_region: dict[str | None, list[str]] = {}
    for location in locations:
        by_region.setdefault(region_of(location), []).append(location)
    for members in by_region.values():
        share = quorum_share(size, write_quorum, len(members))
        if not spans(members, share, min(share, rules.racks)):
            return False
    return True


# ------------------------------------------------------------------------------------ new ensembles


def shares(size: int, capacities: Sequence[int], most: int | None = None) -> list[int]:
    """Return how many members each region gives: each in its turn as much as is left, divided by the regions left; less
    where it has less, or `most` in all; and again from the first where members are missing. The sum is below `size`
    where there are not enough."""
    given = [0] * len(capacities)
    limits = [capacity if most is None else min(capacity, most) for capacity in capacities]
    missing, before = size, -1
    while missing > 0 and missing != before:
        before = missing
        left = sum(given[index] < limits[index] for index in range(len(limits)))
        for index, limit in enumerate(limits):
            if given[index] < limit:
                wanted = -(-missing // left) if left else 0
                more = min(wanted, limit - given[index])
                given[index] += more
                missing -= more
                left -= 1
    return given


def new_ensemble(
    order: Sequence[str],
    location_of: LocationOf,
    size: int,
    write_quorum: int,
    ack_quorum: int,
    rules: RegionRules,
    *,
    own: str | None = None,
    first_rack: str | None = None,
    turn: int = 0,
) -> tuple[str, ...] | PlacementRefusal:
    """Return an ensemble that keeps the rule, or why there is none.

    Members come from allowed regions only: the `own` one first, then the others in turn, beginning with number `turn`.
    The first bookie is of `first_rack` where that works.
    """
    fault = quorum_fault(size, write_quorum, ack_quorum, rules)
    if fault is not None:
        return PlacementRefusal(fault)
    members: dict[str, list[str]] = {}
    for bookie in order:
        region = region_of(location_of(bookie))
        if region is not None and region not in rules.disallowed:
            members.setdefault(region, []).append(bookie)
    regions = regions_in_turn(members, own, turn)
    if not regions:
        return PlacementRefusal("no storage node is in a known region that may be placed on")
    giving = _Giving(members, location_of, size, write_quorum, rules, first_rack)
    capacities = [len(members[region]) for region in regions]
    if sum(capacities) < size:
        return PlacementRefusal(
            f"the ensemble needs {size} storage nodes, and {_named_counts(members)} can be placed on"
        )
    # By numbers alone, no region holds Qa of the members where every write set is the whole ensemble.
    most = ack_quorum - 1 if size == write_quorum and rules.enforced and not rules.acknowledged_from_regions else None
    wanted = dict(zip(regions, shares(size, capacities, most), strict=True))
    search = _RegionSearch(regions, size, write_quorum, ack_quorum, rules)
    sequence = None
    if sum(wanted.values()) == size and all(map(giving.can_give, wanted, wanted.values())):
        sequence = search.run(wanted, wanted, lambda region, count: count == wanted[region])
    if sequence is None:
        capacity = dict(zip(regions, capacities, strict=True))
        for begin in range(len(regions)):  # One that gave up may succeed where another region comes first.
            search = _RegionSearch(regions[begin:] + regions[:begin], size, write_quorum, ack_quorum, rules)
            sequence = search.run(wanted, capacity, giving.can_give)
            if sequence is not None or not search.given_up:
                break
    if sequence is None:
        return PlacementRefusal(_why_none(members, write_quorum, ack_quorum, rules, given_up=search.given_up))
    counts = Counter(sequence)
    chosen = {region: iter(giving.give(region, count)) for region, count in counts.items()}
    return tuple(next(chosen[region]) for region in sequence)


def regions_in_turn(regions: Mapping[str, object], own: str | None, turn: int) -> list[str]:
    """Return the regions in the order in which they give: the own one first, then the others from number `turn` on."""
    others = sorted(region for region in regions if region != own)
    if others:
        begin = turn % len(others)
        others = others[begin:] + others[:begin]
    return [own, *others] if own is not None and own in regions else others


class _Giving:
    """Says which bookies a region gives, when so many are asked of it: spread over its racks."""

    def __init__(
        self,
        members: Mapping[str, Sequence[str]],
        location_of: LocationOf,
        size: int,
        write_quorum: int,
        rules: RegionRules,
        first_rack: str | None,
    ) -> None:
        self._members = members
        self._location_of = location_of
        self._size = size
        self._write_quorum = write_quorum
        self._rules = rules
        self._first_rack = first_rack
        self._found: dict[tuple[str, int], tuple[str, ...] | None] = {}

    def can_give(self, region: str, count: int) -> bool:
        """Return whether the region has so many bookies, in as many racks as are demanded."""
        if not self._rules.enforce_racks:
            return count <= len(self._members[region])
        return count == 0 or self._arranged(region, count) is not None

    def give(self, region: str, count: int) -> tuple[str, ...]:
        """Return so many bookies; racks are given up where they are not demanded and do not suffice."""
        found = self._arranged(region, count)
        if found is None:
            share, racks = self._quorums(count)
            members = self._members[region]
            found = arrange_roughly(members, self._location_of, count, share, racks, self._first(region))
        return found

    def _arranged(self, region: str, count: int) -> tuple[str, ...] | None:
        key = region, count
        if key not in self._found:
            share, racks = self._quorums(count)
            members = self._members[region]
            self._found[key] = arrange(members, self._location_of, count, share, racks, self._first(region))
        return self._found[key]

    def _quorums(self, count: int) -> tuple[int, int]:
        share = quorum_share(self._size, self._write_quorum, count)
        return share, min(share, self._rules.racks)

    def _first(self, region: str) -> str | None:
        rack = self._first_rack
        return rack if rack is not None and region_of(rack) == region else None


class _RegionSearch:
    """Fills the positions with regions one by one, going back where the rule cannot be kept."""

    def __init__(
        self, regions: Sequence[str], size: int, write_quorum: int, ack_quorum: int, rules: RegionRules
    ) -> None:
        self._regions = regions
        self._size = size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._rules = rules
        self.given_up = False
        """There may be an arrangement that was not found in SEARCH_LIMIT steps."""
        self._touching: list[list[tuple[int, ...]]] = [[] for _ in range(size)]
        if rules.enforced:
            for window in windows(size, write_quorum):
                for index in window:
                    if size > write_quorum or not self._touching[index]:  # else all windows are one set
                        self._touching[index].append(window)

    def run(
        self,
        wanted: Mapping[str, int],
        capacity: Mapping[str, int],
        may_give: Callable[[str, int], bool],
    ) -> list[str] | None:
        """Return a region for each position, None where there is none. Regions that gave less than `wanted` come first,
        and `may_give` has the last word on how many each gives."""
        self._wanted, self._capacity, self._may_give = wanted, capacity, may_give
        self._taken = dict.fromkeys(self._regions, 0)
        self._placed: list[str] = [_VACANT] * self._size
        self._failed: set[tuple[object, ...]] = set()
        self._steps = 0
        return list(self._placed) if self._fill(0) else None

    def _fill(self, position: int) -> bool:
        if position == self._size:
            return all(self._may_give(region, count) for region, count in self._taken.items())
        state = self._state(position)
        if state in self._failed:
            return False
        for region in self._choices(position):
            self._steps += 1
            if self._steps > SEARCH_LIMIT:
                self.given_up = True
                return False
            self._placed[position] = region
            self._taken[region] += 1
            if self._holds(position) and self._fill(position + 1):
                return True
            self._taken[region] -= 1
            self._placed[position] = _VACANT
        self._failed.add(state)
        return False

    def _state(self, position: int) -> tuple[object, ...]:
        """Return all that the rest of the search depends on: two ways to it fail alike."""
        counts = tuple(self._taken.values())
        if not self._rules.enforced or self._size == self._write_quorum:
            return counts
        reach = self._write_quorum - 1
        begin = max(position - reach, 0)
        return counts, tuple(self._placed[:reach]), tuple(self._placed[begin:position])

    def _choices(self, position: int) -> list[str]:
        recent = Counter(self._placed[max(position - self._write_quorum + 1, 0) : position])

        def wish(region: str) -> tuple[bool, int]:
            return self._taken[region] >= self._wanted[region], recent[region]

        left = [region for region in self._regions if self._taken[region] < self._capacity[region]]
        return sorted(left, key=wish)

    def _holds(self, position: int) -> bool:
        return all(
            _window_holds([self._placed[i] for i in window], self._ack_quorum, self._rules, doubting=True)
            for window in self._touching[position]
        )


def _named_counts(members: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{len(members[region])} in {region}" for region in sorted(members))


def _why_none(
    members: Mapping[str, Sequence[str]], write_quorum: int, ack_quorum: int, rules: RegionRules, *, given_up: bool
) -> str:
    racks = f", each region's over {rules.racks} racks" if rules.enforce_racks else ""
    if rules.acknowledged_from_regions or not rules.enforced:
        demand = f"puts every write set into {max(rules.minimum, 1)} regions"
    else:
        demand = f"leaves fewer than {ack_quorum} members of every write set to any {rules.minimum - 1} of them"
    none = f"none of the first {SEARCH_LIMIT} arrangements" if given_up else "no arrangement"
    return f"with {_named_counts(members)} {none} {demand}{racks} (reppMinimumRegionsForDurability)"


# ------------------------------------------------------------------------------------ replacements


def replacement(
    order: Sequence[str],
    location_of: LocationOf,
    failed: str,
    index: int,
    others: Mapping[int, str],
    size: int,
    write_quorum: int,
    ack_quorum: int,
    rules: RegionRules,
) -> ReplacementPick | PlacementRefusal:
    """Return a bookie of `order` for the position `index` of `failed`, or why there is none. `others`: the members that
    stay, by position; positions in neither are vacant.

    From the failed bookie's rack; else from its region, outside the other members' racks where that works: as `others`
    has the names of all other seats, also of those that are to be replaced after this one, both change nothing for the
    rule. Else from another allowed region in which few members are, if the rule is kept; where it is not enforced, or
    was broken before, from any.
    """
    home = region_of(location_of(failed))
    regions: list[str | None] = [region_of(location_of(others[i])) if i in others else _VACANT for i in range(size)]
    touching = [window for window in windows(size, write_quorum) if index in window] if rules.enforced else []
    allowed = [bookie for bookie in order if region_of(location_of(bookie)) not in rules.disallowed]

    def holds(region: str | None, *, doubting: bool) -> bool:
        regions[index] = region
        held = [[regions[i] for i in window] for window in touching]
        return all(_window_holds(window, ack_quorum, rules, doubting=doubting) for window in held)

    def in_racks(bookie: str) -> bool:
        if not rules.enforce_racks:
            return True
        members = [others[i] if i != index else bookie for i in range(size) if i in others or i == index]
        return keeps_racks([location_of(member) for member in members], write_quorum, rules, size)

    anomalous = not holds(_VACANT, doubting=False)
    near = _nearest(allowed, location_of, failed, list(others.values()))
    if home is not None:
        same = next((b for b in near if region_of(location_of(b)) == home and in_racks(b)), None)
        if same is not None:
            return ReplacementPick(same, anomalous)
    usable = [bookie for bookie in near if in_racks(bookie)]
    if not rules.enforced or not (rules.enforce_in_replace or rules.acknowledged_from_regions):
        found = usable
    else:
        located = [bookie for bookie in usable if region_of(location_of(bookie)) is not None]
        found = [bookie for bookie in located if holds(region_of(location_of(bookie)), doubting=True)]
        if not found and not holds(_VACANT, doubting=True):
            # What is not known of the others breaks it already: then what is known of them decides, as upstream.
            found = [bookie for bookie in located if holds(region_of(location_of(bookie)), doubting=False)]
        if not found and anomalous:
            found = usable
    if not found:
        return PlacementRefusal(_why_no_replacement(order, location_of, failed, rules))
    crowd = Counter(regions[i] for i in others)

    def wish(bookie: str) -> tuple[bool, int]:
        region = region_of(location_of(bookie))
        return region is None, crowd[region]

    return ReplacementPick(min(found, key=wish), anomalous)


def _nearest(order: Sequence[str], location_of: LocationOf, failed: str, staying: Sequence[str]) -> list[str]:
    """Return the bookies: those of the failed one's rack first, then those of racks in which no other member is."""
    rack = location_of(failed)
    taken = {location_of(bookie) for bookie in staying}

    def wish(bookie: str) -> int:
        location = location_of(bookie)
        return 0 if location == rack and not is_default(location) else 1 + (location in taken)

    return sorted(order, key=wish)


def _why_no_replacement(order: Sequence[str], location_of: LocationOf, failed: str, rules: RegionRules) -> str:
    counts = Counter(region_of(location_of(bookie)) for bookie in order)
    seen = ", ".join(
        f"{count} {'of unknown region' if region is None else f'in {region}'}"
        f"{' (disallowed)' if region in rules.disallowed else ''}"
        for region, count in sorted(counts.items(), key=lambda item: item[0] or "")
    )
    return (
        f"of the storage nodes that could take the place of {failed} ({seen or 'none'}) none leaves the copies of "
        f"every entry in enough regions{' and racks' if rules.enforce_racks else ''} "
        f"(reppMinimumRegionsForDurability={rules.minimum})"
    )


# ------------------------------------------------------------------------------------ adherence


def adherence_over_regions(
    ensemble: Sequence[str], location_of: LocationOf, write_quorum: int, ack_quorum: int, rules: RegionRules
) -> Adherence:
    """Judge an ensemble.

    MEETS_STRICT: the rule holds, members are spread evenly over the regions, and each region's over its racks.
    MEETS_SOFT: the rule holds, as far as locations are known. FAIL: an entry's copies may lie in too few regions, or
    racks where those are enforced.
    """
    locations = [location_of(bookie) for bookie in ensemble]
    regions = [region_of(location) for location in locations]
    if not keeps_regions(regions, write_quorum, ack_quorum, rules, doubting=False):
        return Adherence.FAIL
    if not rules.enforced:
        found = _by_racks(ensemble, location_of, write_quorum, rules)
        if found is Adherence.FAIL or len({*regions, *rules.regions} - {None}) < 2:
            return found
    located = None not in regions
    in_racks = keeps_racks(locations, write_quorum, rules, len(ensemble))
    if rules.enforce_racks and not (located and in_racks):
        return Adherence.FAIL
    if located and in_racks and _is_even(regions, rules):
        return Adherence.MEETS_STRICT
    return Adherence.MEETS_SOFT


def broken_parts(
    ensemble: Sequence[str], location_of: LocationOf, write_quorum: int, ack_quorum: int, rules: RegionRules
) -> list[tuple[int, ...]]:
    """Return the write sets that break the rule over regions, or, where none is demanded, that over racks: as long as
    no member of them is moved, `adherence_over_regions` is FAIL. Each set of indices once."""
    locations = [location_of(bookie) for bookie in ensemble]
    if not rules.enforced:
        return broken_windows(locations, write_quorum, min(write_quorum, rules.racks))
    regions = [region_of(location) for location in locations]
    sets = dict.fromkeys(tuple(sorted(window)) for window in windows(len(ensemble), write_quorum))
    return [
        window
        for window in sets
        if not _window_holds([regions[index] for index in window], ack_quorum, rules, doubting=False)
    ]


def _by_racks(ensemble: Sequence[str], location_of: LocationOf, write_quorum: int, rules: RegionRules) -> Adherence:
    """Judge an ensemble in one region, or in none that is known, as without regions."""

    def is_known(bookie: str) -> bool:
        return not is_default(location_of(bookie))

    if rules.enforce_racks and not all(map(is_known, ensemble)):
        return Adherence.FAIL
    return adherence(ensemble, location_of, is_known, write_quorum, min(write_quorum, rules.racks))


def _is_even(regions: Sequence[str | None], rules: RegionRules) -> bool:
    counts = Counter(regions)
    over = set(counts) | (set(rules.regions) - rules.disallowed)
    return max(counts[region] for region in over) - min(counts[region] for region in over) <= 1
