"""The arithmetic of rack-aware placement, compared with an exhaustive search, and the drawing by weight."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.client.placement.arranging import (
    Adherence,
    adherence,
    arrange,
    arrange_roughly,
    replace_alike,
    replace_lawfully,
    spans,
    windows,
)
from storage_node.client.placement.candidates import effective_weights, weighted_order

RACKS = "ABCD"


@st.composite
def drawings(draw: st.DrawFn) -> tuple[list[str], dict[str, str], int, int, int]:
    """Bookies in an order of preference, who is in which rack, E, W and R."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    racks = {f"{rack}{i}": rack for rack, count in zip(RACKS, counts, strict=False) for i in range(count)}
    order = draw(st.permutations(sorted(racks)))
    size = draw(st.integers(1, min(6, len(order))))
    write_quorum = draw(st.integers(1, size))
    return list(order), racks, size, write_quorum, draw(st.integers(1, write_quorum))


def lawful(racks: list[str], size: int, write_quorum: int, wanted: int) -> bool:
    """Whether any choice of bookies keeps the rule: all of them are tried."""
    capacity = Counter(racks)
    for chosen in itertools.product(sorted(capacity), repeat=size):
        if all(count <= capacity[rack] for rack, count in Counter(chosen).items()) and all(
            len({chosen[i] for i in window}) >= wanted for window in windows(size, write_quorum)
        ):
            return True
    return False


@given(drawings())
@settings(max_examples=150, deadline=None)
def test_the_rule_is_kept_whenever_the_racks_allow_it_and_only_then(
    drawing: tuple[list[str], dict[str, str], int, int, int],
) -> None:
    order, racks, size, write_quorum, wanted = drawing
    found = arrange(order, racks.__getitem__, size, write_quorum, wanted)
    assert (found is not None) == lawful(list(racks.values()), size, write_quorum, wanted)
    if found is not None:
        assert len(set(found)) == size
        assert set(found) <= set(order)
        assert spans([racks[bookie] for bookie in found], write_quorum, wanted)


@given(drawings())
@settings(max_examples=100, deadline=None)
def test_where_the_rule_cannot_be_kept_the_ensemble_is_distinct_and_uses_as_many_racks_as_there_are(
    drawing: tuple[list[str], dict[str, str], int, int, int],
) -> None:
    order, racks, size, write_quorum, wanted = drawing
    found = arrange_roughly(order, racks.__getitem__, size, write_quorum, wanted)
    assert len(set(found)) == size
    assert set(found) <= set(order)
    if len(set(racks.values())) >= wanted:
        assert len({racks[bookie] for bookie in found}) >= min(wanted, size)


def test_racks_that_force_a_step_back_are_found_too() -> None:
    """Position by position without going back ends at B C B C and no place for A."""
    racks = {"a": "A", "b1": "B", "b2": "B", "c1": "C", "c2": "C"}
    for order in itertools.permutations(racks):
        found = arrange(order, racks.__getitem__, 5, 2, 2)
        assert found is not None
        assert spans([racks[bookie] for bookie in found], 2, 2)


def test_a_large_ensemble_is_arranged_within_the_search_limit() -> None:
    racks = {f"{rack}{i}": rack for rack, count in (("A", 10), ("B", 10), ("C", 10)) for i in range(count)}
    for seed in range(10):
        order = sorted(racks)
        random.Random(seed).shuffle(order)
        found = arrange(order, racks.__getitem__, 30, 3, 3)
        assert found is not None
        assert spans([racks[bookie] for bookie in found], 3, 3)


def test_the_first_bookie_is_of_the_own_rack_and_each_next_one_of_a_rack_not_used_yet() -> None:
    racks = {f"{rack}{i}": rack for rack in RACKS for i in range(3)}
    for seed in range(50):
        order = sorted(racks)
        random.Random(seed).shuffle(order)
        found = arrange(order, racks.__getitem__, 4, 3, 2, "C")
        assert found is not None
        assert racks[found[0]] == "C"
        assert {racks[bookie] for bookie in found} == set(RACKS)


@pytest.mark.parametrize("racks_of_all", ["one", "each its own"])
def test_every_bookie_is_chosen_equally_often(racks_of_all: str) -> None:
    bookies = [f"b{i}" for i in range(6)]
    rng, seen, rounds = random.Random(5), Counter[str](), 3000
    for _ in range(rounds):
        order = list(bookies)
        rng.shuffle(order)
        found = arrange(order, lambda b: "r" if racks_of_all == "one" else b, 3, 3, 1 if racks_of_all == "one" else 2)
        assert found is not None
        seen.update(found)
    expected = rounds * 3 / len(bookies)
    assert all(abs(seen[bookie] - expected) < 0.1 * expected for bookie in bookies)


@given(drawings(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_replacement_costs_no_rack_where_that_can_be_avoided(
    drawing: tuple[list[str], dict[str, str], int, int, int], data: st.DataObject
) -> None:
    order, racks, size, write_quorum, wanted = drawing
    ensemble = arrange(order, racks.__getitem__, size, write_quorum, wanted) or tuple(order[:size])
    index = data.draw(st.integers(0, size - 1))
    others = {i: bookie for i, bookie in enumerate(ensemble) if i != index}
    free = [bookie for bookie in order if bookie not in ensemble]

    def racks_with(bookie: str) -> set[str]:
        return {racks[other] for other in (*others.values(), bookie)}

    alike = replace_alike(free, racks.__getitem__, ensemble[index], list(others.values()))
    before = len({racks[bookie] for bookie in ensemble})
    if alike is not None:
        assert len(racks_with(alike)) >= before
    elif racks[ensemble[index]] in {racks[bookie] for bookie in others.values()}:
        assert all(len(racks_with(bookie)) == before for bookie in free), "no rack was at stake"
    else:
        assert all(len(racks_with(bookie)) < before for bookie in free), "it cannot be avoided"
    kept = replace_lawfully(free, racks.__getitem__, index, others, size, write_quorum, wanted)
    if kept is not None:
        after = [racks[kept if i == index else bookie] for i, bookie in enumerate(ensemble)]
        assert spans(after, write_quorum, wanted)


def test_a_replacement_comes_from_the_failed_ones_rack_before_any_other() -> None:
    racks = {"a1": "A", "a2": "A", "b1": "B", "b2": "B", "c1": "C"}
    assert replace_alike(["c1", "b2", "a2"], racks.__getitem__, "a1", ["b1"]) == "a2"
    assert replace_alike(["b2", "c1"], racks.__getitem__, "a1", ["b1"]) == "c1"
    assert replace_alike(["b2"], racks.__getitem__, "a1", ["b1"]) is None


def test_adherence_has_upstreams_numbers() -> None:
    racks = {"a": "A", "a2": "A", "b": "B", "x": "/default-rack"}

    def judge(*ensemble: str) -> Adherence:
        return adherence(ensemble, racks.__getitem__, lambda bookie: bookie != "x", 2, 2)

    assert judge("a", "b") is Adherence.MEETS_STRICT == 5
    assert judge("a", "x") is Adherence.MEETS_SOFT == 3
    assert judge("a", "b", "a2") is Adherence.FAIL == 1, "the third and the first position are neighbours"


# ------------------------------------------------------------------------------------ weights


def test_weights_are_free_space_capped_at_a_multiple_of_the_median_and_never_zero() -> None:
    free = {"full": 0, "small": 10, "middle": 20, "large": 30, "huge": 10_000}
    assert effective_weights(free, 3) == {"full": 10, "small": 10, "middle": 20, "large": 30, "huge": 60}
    assert effective_weights(free, 0)["huge"] == 10_000, "no limit"
    assert effective_weights({"a": 0, "b": 0}, 3) == {"a": 1, "b": 1}, "nothing is known: all alike"


def test_bookies_are_drawn_in_proportion_to_their_weight() -> None:
    weights = {"one": 1.0, "two": 2.0, "five": 5.0}
    rng, rounds = random.Random(11), 8000
    first = Counter(weighted_order(sorted(weights), weights, rng)[0] for _ in range(rounds))
    for bookie, weight in weights.items():
        share, expected = first[bookie] / rounds, weight / 8
        deviation = (expected * (1 - expected) / rounds) ** 0.5
        assert abs(share - expected) < 4 * deviation


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=8), st.integers(0, 2**32))
def test_the_order_drawn_is_a_permutation_that_the_seed_decides(free: list[int], seed: int) -> None:
    weights = effective_weights({f"b{i}": space for i, space in enumerate(free)}, 3)
    assert min(weights.values()) > 0
    drawn = weighted_order(sorted(weights), weights, random.Random(seed))
    assert sorted(drawn) == sorted(weights)
    assert drawn == weighted_order(sorted(weights), weights, random.Random(seed))
