"""The arithmetic of placement over regions, compared with an exhaustive search that knows the rules in other words."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.regions import (
    PlacementRefusal,
    RegionRules,
    ReplacementPick,
    adherence_over_regions,
    new_ensemble,
    quorum_fault,
    quorum_share,
    regions_in_turn,
    replacement,
    shares,
)

THREE = RegionRules(regions=("eu", "us", "ap"), minimum=2)
SEEN = RegionRules(regions=("eu", "us", "ap"), minimum=2, acknowledged_from_regions=True)


def cluster(**counts: int) -> dict[str, str]:
    """Bookies `eu0`, `eu1`, ... at `/eu/r0`, `/eu/r1`, ...: each in a rack of its own."""
    return {f"{region}{i}": f"/{region}/r{i}" for region, count in counts.items() for i in range(count)}


def regions(ensemble: Sequence[str]) -> list[str]:
    return [bookie.rstrip("0123456789") for bookie in ensemble]


def survives(ensemble: Sequence[str], write_quorum: int, ack_quorum: int, rules: RegionRules) -> bool:
    """Whether every way of losing m - 1 regions leaves a copy of every entry that can have been acknowledged."""
    placed = regions(ensemble)
    for start in range(len(placed)):
        copies = [placed[(start + step) % len(placed)] for step in range(write_quorum)]
        for acknowledged in itertools.combinations(copies, ack_quorum):
            if rules.acknowledged_from_regions:
                continue
            for lost in itertools.combinations(sorted(set(placed)), min(rules.minimum - 1, len(set(placed)))):
                if not set(acknowledged) - set(lost):
                    return False
        if rules.acknowledged_from_regions and len(set(copies)) < rules.minimum:
            return False
    return True


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("sizes", "minimum", "allowed"),
    [
        ((3, 3, 2), 2, False),
        ((3, 3, 3), 2, True),
        ((4, 4, 3), 2, True),
        ((5, 5, 4), 2, True),
        ((6, 6, 4), 2, True),
        ((6, 6, 3), 2, False),
        ((6, 6, 5), 3, True),
        ((6, 6, 4), 3, False),
        ((9, 9, 7), 3, True),
        ((9, 9, 6), 3, False),
        ((3, 3, 1), 2, False),
        ((2, 3, 2), 2, False),
        ((3, 2, 3), 2, False),
        ((3, 3, 2), 1, True),
    ],
)
def test_the_quorum_rule_is_upstreams(sizes, minimum, allowed):
    fault = quorum_fault(*sizes, RegionRules(regions=("a", "b", "c"), minimum=minimum))
    assert (fault is None) is allowed


def test_a_refused_size_says_both_ways_on():
    """bookkeeper issue 4553: users did not see why 3/3/2 is refused."""
    fault = quorum_fault(3, 3, 2, THREE)
    assert "3/3/3" in fault
    assert "6/6/4" in fault
    assert "enforceMinNumFaultDomainsForWrite" in fault
    assert quorum_fault(3, 3, 2, SEEN) is None
    assert "cannot lie in 2 regions" in quorum_fault(3, 3, 1, SEEN)


@pytest.mark.parametrize(
    ("size", "capacities", "most", "given_"),
    [
        (6, (3, 3, 3), None, [2, 2, 2]),
        (7, (3, 3, 3), None, [3, 2, 2]),
        (6, (1, 3, 3), None, [1, 3, 2]),
        (6, (3, 3), 3, [3, 3]),
        (6, (1, 1, 1), None, [1, 1, 1]),
        (4, (4, 0, 0), None, [4, 0, 0]),
        (6, (9, 9), 2, [2, 2]),
    ],
)
def test_each_region_gives_its_share_and_others_give_what_it_lacks(size, capacities, most, given_):
    assert shares(size, capacities, most) == given_


def test_a_share_of_a_write_set_is_rounded_half_up_and_never_nothing():
    assert [quorum_share(6, 6, share) for share in (1, 2, 3)] == [1, 2, 3]
    assert quorum_share(6, 3, 1) == 1
    assert quorum_share(9, 3, 1) == 1


def test_the_own_region_gives_first_and_the_others_take_turns():
    members = {"ap": (), "eu": (), "us": ()}
    assert regions_in_turn(members, "us", 0) == ["us", "ap", "eu"]
    assert regions_in_turn(members, "us", 1) == ["us", "eu", "ap"]
    assert regions_in_turn(members, None, 4) == ["eu", "us", "ap"]
    assert regions_in_turn(members, "mars", 0) == ["ap", "eu", "us"]


# ---------------------------------------------------------------------- new ensembles


@st.composite
def drawings(draw: st.DrawFn):
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    places = cluster(**dict(zip(("a", "b", "c", "d"), counts, strict=False)))
    order = draw(st.permutations(sorted(places)))
    size = draw(st.integers(1, min(6, len(order))))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    rules = RegionRules(
        regions=("a", "b", "c", "d"),
        minimum=draw(st.integers(2, 3)),
        acknowledged_from_regions=draw(st.booleans()),
        disallowed=draw(st.sampled_from([frozenset(), frozenset("a"), frozenset("bc")])),
    )
    return list(order), places, size, write_quorum, ack_quorum, rules


@settings(max_examples=150, deadline=None)
@given(drawings(), st.sampled_from([None, "a", "b"]), st.integers(0, 5))
def test_an_ensemble_is_found_wherever_there_is_one_and_keeps_the_rules(drawing, own, turn):
    order, places, size, write_quorum, ack_quorum, rules = drawing
    found = new_ensemble(order, places.__getitem__, size, write_quorum, ack_quorum, rules, own=own, turn=turn)
    allowed = Counter(region for region in regions(order) if region not in rules.disallowed)
    possible = quorum_fault(size, write_quorum, ack_quorum, rules) is None and any(
        all(count <= allowed[region] for region, count in Counter(chosen).items())
        and survives(chosen, write_quorum, ack_quorum, rules)
        for chosen in itertools.product(sorted(allowed), repeat=size)
    )
    assert isinstance(found, PlacementRefusal) is not possible, found
    if not isinstance(found, PlacementRefusal):
        assert len(set(found)) == size
        assert not {*regions(found)} & rules.disallowed
        assert survives(found, write_quorum, ack_quorum, rules)
        assert set(found) <= set(order)


@pytest.mark.parametrize("rules", [THREE, SEEN])
def test_members_are_spread_evenly_and_go_on_unevenly_while_a_region_is_away(rules):
    sizes = (6, 6, 4) if rules is THREE else (3, 3, 2)
    all_there = new_ensemble(list(cluster(eu=3, us=3, ap=3)), cluster(eu=3, us=3, ap=3).__getitem__, *sizes, rules)
    assert set(Counter(regions(all_there)).values()) == {sizes[0] // 3}
    places = cluster(eu=3, us=3)
    two_left = new_ensemble(list(places), places.__getitem__, *sizes, rules)
    assert sorted(Counter(regions(two_left)).values()) == ([3, 3] if rules is THREE else [1, 2])
    places = cluster(eu=9)
    one_left = new_ensemble(list(places), places.__getitem__, *sizes, rules)
    assert isinstance(one_left, PlacementRefusal)
    assert "9 in eu" in one_left.reason


def test_a_node_of_another_depth_is_placed_around():
    """bookkeeper issue 2490: upstream drops such a node, and with it others."""
    places = cluster(eu=2, us=2, ap=2) | {"x0": "/default-rack", "x1": "/alone"}
    found = new_ensemble(list(places), places.__getitem__, 6, 6, 4, THREE)
    assert sorted(found) == sorted(cluster(eu=2, us=2, ap=2))


def test_ledgers_do_not_all_lie_in_the_same_regions():
    """bookkeeper issue 2658: all ledgers lay in the same two regions."""
    places = cluster(eu=4, us=4, ap=4, sa=4)
    rules = RegionRules(regions=("eu", "us", "ap", "sa"), minimum=2)
    seen = Counter(
        frozenset(regions(new_ensemble(list(places), places.__getitem__, 3, 3, 3, rules, turn=turn)))
        for turn in range(12)
    )
    assert len(seen) == 4
    assert set(seen.values()) == {3}


# ---------------------------------------------------------------------- replacements


def replaced(places: Mapping[str, str], ensemble: Sequence[str], index: int, rules: RegionRules, *sizes: int):
    others = {i: bookie for i, bookie in enumerate(ensemble) if i != index}
    order = [bookie for bookie in places if bookie not in ensemble]
    return replacement(order, places.__getitem__, ensemble[index], index, others, *sizes, rules)


@settings(max_examples=150, deadline=None)
@given(drawings(), st.integers(0, 5))
def test_a_replacement_keeps_what_the_ensemble_kept(drawing, index):
    order, places, size, write_quorum, ack_quorum, rules = drawing
    ensemble = new_ensemble(order, places.__getitem__, size, write_quorum, ack_quorum, rules)
    if isinstance(ensemble, PlacementRefusal):
        return
    index %= size
    found = replaced(places, ensemble, index, rules, size, write_quorum, ack_quorum)
    spare = [b for b in places if b not in ensemble and regions([b])[0] not in rules.disallowed]
    lawful = [
        b for b in spare if survives([*ensemble[:index], b, *ensemble[index + 1 :]], write_quorum, ack_quorum, rules)
    ]
    assert isinstance(found, PlacementRefusal) is not lawful
    if isinstance(found, ReplacementPick):
        assert found.bookie in lawful
        assert not found.anomalous


def test_a_replacement_is_of_the_same_rack_then_region_then_wherever_the_rule_is_kept():
    places = {"eu0": "/eu/r1", "eu1": "/eu/r1", "eu2": "/eu/r2", "us0": "/us/r1", "us1": "/us/r1", "ap0": "/ap/r1"}
    ensemble, sizes = ("eu0", "us0", "ap0"), (3, 3, 3)
    assert replaced(places, ensemble, 0, THREE, *sizes).bookie == "eu1"
    del places["eu1"]
    assert replaced(places, ensemble, 0, THREE, *sizes).bookie == "eu2"
    del places["eu2"]
    assert replaced(places, ensemble, 0, THREE, *sizes).bookie == "us1"
    del places["us1"]
    assert isinstance(replaced(places, ensemble, 0, THREE, *sizes), PlacementRefusal)


def test_an_ensemble_that_was_against_the_rule_takes_any_node_and_is_counted():
    places = cluster(eu=4, us=0, ap=0) | {"eu9": "/eu/r9"}
    found = replaced(places, ("eu0", "eu1", "eu2"), 0, THREE, 3, 3, 2)
    assert found.anomalous
    assert found.bookie in ("eu3", "eu9")


def test_without_enforcement_in_replacements_any_node_will_do():
    places = cluster(eu=1, us=3)
    ensemble = ("eu0", "us0", "us1")
    assert isinstance(replaced(places, ensemble, 0, THREE, 3, 3, 3), PlacementRefusal)
    free = RegionRules(regions=THREE.regions, minimum=2, enforce_in_replace=False)
    assert replaced(places, ensemble, 0, free, 3, 3, 3).bookie == "us2"


def test_a_disallowed_region_replaces_nobody():
    places = cluster(eu=2, us=2, ap=2)
    closed = RegionRules(regions=THREE.regions, minimum=2, disallowed=frozenset({"eu"}))
    found = replaced(places, ("eu0", "us0", "ap0"), 0, closed, 3, 3, 3)
    assert regions([found.bookie])[0] in ("us", "ap")


# ---------------------------------------------------------------------- adherence


@pytest.mark.parametrize(
    ("ensemble", "rules", "sizes", "found"),
    [
        ("eu0 eu1 us0 us1 ap0 ap1", THREE, (6, 4), Adherence.MEETS_STRICT),
        ("eu0 eu1 eu2 us0 us1 us2", THREE, (6, 4), Adherence.MEETS_SOFT),
        ("eu0 eu1 eu2 eu3 us0 us1", THREE, (6, 4), Adherence.FAIL),
        ("eu0 us0 ap0", SEEN, (3, 2), Adherence.MEETS_STRICT),
        ("eu0 eu1 ap0", SEEN, (3, 2), Adherence.MEETS_SOFT),
        ("eu0 eu1 eu2", SEEN, (3, 2), Adherence.FAIL),
        ("eu0 us0 x0", SEEN, (3, 2), Adherence.MEETS_SOFT),
    ],
)
def test_adherence_has_three_values(ensemble, rules, sizes, found):
    """bookkeeper issue 1898: upstream's check over regions always answers that all is well."""
    places = cluster(eu=4, us=4, ap=4) | {"x0": "/default-rack"}
    assert adherence_over_regions(ensemble.split(), places.__getitem__, *sizes, rules) is found
