"""The balancer: who gives, how much, to whom; and what a failed move changes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.serving.write_proxy.tier.balancing import (
    Balance,
    BalanceRules,
    ClusterBalance,
    CountChooser,
    LimitedChooser,
    LoadChooser,
    RegionBalance,
    StreamMove,
    streams_to_give,
)
from metadata.foundation.errors import CallerError


def names(prefix: str, count: int) -> set[str]:
    return {f"{prefix}-{number}" for number in range(count)}


def spread(*counts: int) -> dict[str, set[str]]:
    return {f"p{index}": names(f"s{index}", count) for index, count in enumerate(counts)}


def run(balance: Balance, distribution: dict[str, set[str]], fails: set[str] | None = None) -> list[StreamMove]:
    """All moves, done on a copy of the distribution; returns them."""
    moves = []
    while (move := balance.next_move()) is not None:
        moves.append(move)
        assert move.stream in distribution[move.source]
        moved = move.stream not in (fails or set())
        if moved:
            distribution[move.source].remove(move.stream)
            distribution.setdefault(move.target, set()).add(move.stream)
        balance.ended(moved)
    assert balance.next_move() is None
    return moves


def counts(distribution: dict[str, set[str]]) -> list[int]:
    return [len(streams) for streams in distribution.values()]


def test_who_has_more_than_the_average_gives() -> None:
    assert streams_to_give("a", {"a": 10, "b": 0}) == 5
    assert streams_to_give("a", {"a": 10, "b": 0}, BalanceRules(water_mark=10)) == 0
    assert streams_to_give("a", {"a": 10, "b": 8}, BalanceRules(tolerance_percent=20)) == 0
    assert streams_to_give("a", {"a": 10, "b": 7}, BalanceRules(tolerance_percent=5)) == 1  # of 8.5: may have 9
    assert streams_to_give("a", {"a": 1, "b": 0}) == 0
    assert streams_to_give("c", {"a": 1}) == 0
    assert streams_to_give("a", {}) == 0


def test_streams_are_taken_from_who_has_most_and_in_turn_from_equals() -> None:
    chooser = CountChooser(spread(3, 1, 2), random.Random(1))
    assert [(chooser.choose() or ("", ""))[0] for _ in range(6)] == ["p0", "p0", "p2", "p0", "p1", "p2"]
    assert chooser.choose() is None
    assert CountChooser({}, random.Random(1)).choose() is None


@given(st.lists(st.integers(0, 12), max_size=6), st.integers(0, 2**32))
def test_choosing_by_count_takes_each_stream_once_and_from_the_fullest(sizes: list[int], seed: int) -> None:
    distribution = spread(*sizes)
    chooser, left, chosen = CountChooser(distribution, random.Random(seed)), Counter(), set()
    left.update({location: len(streams) for location, streams in distribution.items()})
    while (one := chooser.choose()) is not None:
        location, stream = one
        assert stream in distribution[location]
        assert stream not in chosen
        chosen.add(stream)
        assert left[location] == max(left.values())
        left[location] -= 1
    assert len(chosen) == sum(sizes)


def test_the_highest_load_goes_first_and_from_the_proxy_that_has_most() -> None:
    distribution = {"a": {"a1", "a2"}, "b": {"b1"}}
    chooser = LoadChooser(distribution, {"a1": 5, "a2": 6, "b1": 8})
    assert [chooser.choose() for _ in range(4)] == [("a", "a2"), ("b", "b1"), ("a", "a1"), None]


def test_a_limit_ends_a_chooser() -> None:
    chooser = LimitedChooser(CountChooser(spread(3), random.Random(1)), 2)
    assert [chooser.choose() is None for _ in range(4)] == [False, False, True, True]


def test_a_cluster_is_evened_out() -> None:
    distribution = spread(9, 0, 0)
    moves = run(ClusterBalance(distribution, rng=random.Random(1)), distribution)
    assert counts(distribution) == [3, 3, 3]
    assert len(moves) == 6
    assert run(ClusterBalance(distribution), distribution) == []


def test_an_average_that_is_no_whole_number_is_rounded_up() -> None:
    distribution = spread(3, 1, 1)
    run(ClusterBalance(distribution), distribution)
    assert sorted(counts(distribution)) == [1, 2, 2]


def test_the_water_mark_keeps_streams_where_they_are() -> None:
    distribution = spread(9, 0, 0)
    run(ClusterBalance(distribution, BalanceRules(water_mark=7)), distribution)
    assert counts(distribution) == [7, 1, 1]


def test_one_proxy_alone_has_nowhere_to_give() -> None:
    distribution = spread(9)
    assert run(ClusterBalance(distribution), distribution) == []
    assert run(ClusterBalance(distribution, source="p0"), distribution) == []


def test_a_source_is_emptied_whatever_the_marks_say() -> None:
    distribution = spread(1, 7, 3)
    moves = run(ClusterBalance(distribution, source="p1", rng=random.Random(1)), distribution)
    assert counts(distribution) == [6, 0, 5] or counts(distribution) == [5, 0, 6]
    assert len(moves) == 7
    with pytest.raises(CallerError):
        ClusterBalance(distribution, source="p9")


def test_a_move_that_failed_changes_nothing_and_is_not_tried_again() -> None:
    distribution = spread(4, 0)
    moves = run(ClusterBalance(distribution, rng=random.Random(1)), distribution, fails={"s0-0", "s0-1"})
    assert len({move.stream for move in moves}) == len(moves)
    assert counts(distribution) == [2, 2]


def test_loads_count_in_place_of_streams() -> None:
    distribution = {"a": {"heavy", "x", "y"}, "b": {"z"}}
    loads = {"heavy": 100, "x": 10, "y": 10, "z": 10}
    moves = run(ClusterBalance(distribution, loads=loads), distribution)
    assert {move.stream for move in moves} == {"x", "y"}
    assert distribution == {"a": {"heavy"}, "b": {"x", "y", "z"}}


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 15), min_size=1, max_size=6),
    st.floats(0, 50),
    st.integers(0, 10),
    st.integers(0, 2**32),
)
def test_no_stream_is_lost_or_moves_twice_and_nothing_gets_worse(
    sizes: list[int], tolerance: float, water_mark: int, seed: int
) -> None:
    distribution = spread(*sizes)
    before = max(sizes) - min(sizes)
    rules = BalanceRules(water_mark, tolerance)
    moves = run(ClusterBalance(distribution, rules, rng=random.Random(seed)), distribution)
    assert sum(counts(distribution)) == sum(sizes)
    assert max(counts(distribution)) - min(counts(distribution)) <= before
    assert len({move.stream for move in moves}) == len(moves)
    if not water_mark and not tolerance:
        assert max(counts(distribution)) <= -(-sum(sizes) // len(sizes))


def test_the_region_with_more_gives_to_the_other_and_to_its_emptiest_proxy() -> None:
    first, second = spread(4, 6), {"q0": names("t", 1), "q1": set()}
    whole = {**first, **second}
    moves = run(RegionBalance(first, second, rng=random.Random(1)), whole)
    assert len(moves) == 4  # of 11, the average is 5.5
    assert counts(whole) == [3, 3, 3, 2]
    assert run(RegionBalance(spread(1), {"q": set()}), spread(1)) == []


def test_a_region_is_emptied() -> None:
    first, second = spread(1), {"q0": names("t", 5)}
    whole = {**first, **second}
    assert len(run(RegionBalance(first, second, source=2), whole)) == 5
    assert counts(whole) == [6, 0]
    assert run(RegionBalance(first, {}, source=1), whole) == []
    with pytest.raises(CallerError):
        RegionBalance(first, second, source=3)


def test_a_move_is_ended_before_the_next_and_once() -> None:
    balance = ClusterBalance(spread(4, 0))
    with pytest.raises(CallerError):
        balance.ended(True)
    balance.next_move()
    with pytest.raises(CallerError):
        balance.next_move()


@pytest.mark.parametrize("rules", [{"water_mark": -1}, {"tolerance_percent": -1}, {"tolerance_percent": float("nan")}])
def test_rules_are_checked(rules: dict[str, float]) -> None:
    with pytest.raises(CallerError):
        BalanceRules(**rules)
