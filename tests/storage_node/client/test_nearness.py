"""The order of replicas over regions, what is known of distances, and when a second question may be put."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from storage_node.client.health import BookieHealth
from storage_node.client.nearness import (
    HEDGE_BURST,
    HEDGE_LEAST_S,
    LOST_HEDGES,
    MEMORY_S,
    AnswerTimes,
    Hedges,
    Nearness,
    ReplicaKind,
    ReplicaStanding,
    least_pending_first,
    order_over_regions,
)

HEALTHY, READ_ONLY, SLOW, GONE = ReplicaKind


def standing(text: str) -> ReplicaStanding:
    """Read `L`ocal or `R`emote, then letters and numbers: ro, slow<pending>, gone, f<when>, lags, <milliseconds>."""
    where, *words = text.split()
    kind, failed, lags, time_s, pending = HEALTHY, 0.0, False, None, 0
    for word in words:
        if word == "ro":
            kind = READ_ONLY
        elif word.startswith("slow"):
            kind, pending = SLOW, int(word[4:] or 0)
        elif word == "gone":
            kind = GONE
        elif word.startswith("f"):
            failed = float(word[1:])
        elif word == "lags":
            lags = True
        else:
            time_s = float(word) / 1000
    return ReplicaStanding(kind, where == "L", lags, failed, time_s, pending)


# As upstream describes it (RegionAwareEnsemblePlacementPolicy): healthy local ones, after two of them a remote one, the
# rest of the local ones, the rest of the remote ones; read-only, slow, gone; in a group those that failed come last.
ORDERS = [
    ("L L R R", [0, 1, 2, 3]),
    ("R R L L", [2, 3, 0, 1]),
    ("R L R L L R", [1, 3, 0, 4, 2, 5]),
    ("L L L R", [0, 1, 3, 2]),
    ("L", [0]),
    ("R R R", [0, 1, 2]),
    ("L R", [0, 1]),
    ("R L R", [1, 0, 2]),
    ("L:f5 L R", [1, 0, 2]),  # a local one that failed is still a local one
    ("L:f5 R R", [0, 1, 2]),
    ("L:f5 L:f3 L R", [2, 1, 3, 0]),  # the earlier failure first
    ("R:f5 R L", [2, 1, 0]),
    ("R:f5 R:f3 L L L", [2, 3, 1, 4, 0]),
    ("L:ro L R", [1, 2, 0]),
    ("L:slow L:ro R L:gone R:ro R:slow", [2, 1, 4, 0, 5, 3]),
    ("L:slow7 R:slow2 L:slow2 R", [3, 1, 2, 0]),  # the fewest requests under way first
    ("L:gone R:gone L R", [2, 3, 0, 1]),
    ("L:gone L:gone R R R:ro", [2, 3, 4, 0, 1]),
    # Ours: lagging local ones behind the others, remote ones by distance.
    ("L:lags L R", [1, 0, 2]),
    ("L:lags L:f1 R", [0, 1, 2]),
    ("R:60 R:20 L", [2, 1, 0]),
    ("R:60 R:20 R:61 R:21", [1, 3, 0, 2]),  # about equally far: as striped
    ("R:20 R R:60", [1, 0, 2]),  # an unknown one becomes known
    ("R:20:f9 R:60 L", [2, 1, 0]),
]


@pytest.mark.parametrize(("replicas", "expected"), ORDERS)
def test_replicas_are_asked_in_upstream_s_order(replicas: str, expected: list[int]) -> None:
    table = [standing(one.replace(":", " ")) for one in replicas.split()]
    assert order_over_regions(range(len(table)), table.__getitem__) == expected


def test_the_striping_decides_among_equals_and_every_replica_is_in_the_order_once() -> None:
    table = [standing(one) for one in ("L", "R", "L", "R", "R ro", "L slow", "L gone")]
    assert order_over_regions([2, 3, 0, 1], table.__getitem__) == [2, 0, 3, 1]
    assert sorted(order_over_regions([5, 6, 0, 4, 3, 1, 2], table.__getitem__)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("pending", "threshold", "expected"),
    [
        ([9, 1, 5], 0, [0, 1, 2]),
        ([9, 1, 5], 8, [1, 0, 2]),
        ([9, 1, 5], 9, [0, 1, 2]),
        ([9, 5, 1], 2, [2, 0, 1]),
        ([1, 1, 1], 1, [0, 1, 2]),
        ([3], 1, [0]),
    ],
)
def test_the_least_busy_node_comes_first_once_the_first_one_has_so_many_requests_more(
    pending: list[int], threshold: int, expected: list[int]
) -> None:
    assert list(least_pending_first(range(len(pending)), pending.__getitem__, threshold)) == expected


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


def test_a_registered_node_out_of_reach_counts_as_gone_and_one_failure_as_a_failure() -> None:
    clock = Clock()
    health = BookieHealth(clock, 60_000)

    def kind(bookie: str) -> tuple[ReplicaKind, bool]:
        found = health.standing(bookie, local=True, time_s=None, pending=0)
        return found.kind, found.failed > 0

    health.failed("a")
    assert kind("a") == (HEALTHY, True)
    health.failed("a")
    assert kind("a") == (GONE, True)
    health.answered("a")
    assert kind("a") == (HEALTHY, False)
    health.failed("a")
    assert kind("a") == (HEALTHY, True)
    clock.now += 61
    assert kind("a") == (HEALTHY, False)
    health.slow("b")
    health.registered(["c"], ["r", "b"], ["a", "b", "c", "d", "r"])
    assert [kind(name)[0] for name in "bcdr"] == [SLOW, HEALTHY, GONE, READ_ONLY]


def times(regions: Mapping[str, str]) -> AnswerTimes:
    return AnswerTimes(regions.get)


def test_a_node_that_was_never_asked_is_as_far_as_its_region_until_that_is_forgotten() -> None:
    found = times({"a": "eu", "b": "eu", "c": "us"})
    assert found.usual_s("a", 0) is None
    found.note("a", 0.02, 0)
    assert found.usual_s("a", 1) == found.usual_s("b", 1) == pytest.approx(0.02)
    assert found.usual_s("c", 1) is None
    assert found.usual_s("a", MEMORY_S + 1) is None
    assert found.patience_s("b", MEMORY_S + 1) is None


def test_an_answer_is_late_by_what_is_usual_and_how_much_that_varies() -> None:
    steady, restless = times({}), times({})
    for i in range(200):
        steady.note("a", 0.010, i / 10)
        restless.note("a", 0.005 if i % 2 else 0.015, i / 10)
    assert steady.patience_s("a", 20) == pytest.approx(0.010, rel=0.01)
    patience_s = restless.patience_s("a", 20)
    assert patience_s is not None
    assert patience_s > 0.025


def test_news_from_the_farthest_node_take_half_a_round_trip() -> None:
    nearness = Nearness()
    nearness.find_region = {"a": "eu", "b": "us"}.get
    nearness.questions.note("a", 0.001, 0)
    assert nearness.one_way_s(["a"], 0) is None  # the own region is not known
    nearness.own = "eu"
    assert nearness.one_way_s(["a", "b"], 0) is None  # nor how far b is
    nearness.questions.note("b", 0.060, 0)
    assert nearness.one_way_s(["a", "b"], 0) == pytest.approx(0.030)
    assert (nearness.is_local("a"), nearness.is_local("b"), nearness.is_local("c")) == (True, False, False)


@pytest.mark.parametrize(
    ("patience_s", "other_s", "longest_s", "expected"),
    [
        (None, None, 2.0, None),
        (0.003, 0.020, 2.0, HEDGE_LEAST_S),
        (0.030, 0.020, 2.0, 0.030),
        (0.300, 0.020, 2.0, 0.040),  # what the first one has not brought by then the other one brings as soon
        (None, 0.020, 2.0, 0.040),
        (0.030, None, 2.0, 0.030),
        (3.0, None, 2.0, None),
        (0.030, 0.020, 0.0, None),  # speculation is switched off
    ],
)
def test_how_long_the_first_node_is_left_alone_follows_from_measured_times(
    patience_s: float | None, other_s: float | None, longest_s: float, expected: float | None
) -> None:
    assert Hedges(10).pause_s(patience_s, other_s, longest_s) == expected
    assert Hedges(0).pause_s(patience_s, other_s, longest_s) is None


def test_second_questions_are_a_part_of_the_reads_beyond_the_first_few() -> None:
    hedges = Hedges(10)
    asked = 0
    for _ in range(1000):
        hedges.read()
        asked += hedges.may_ask()
    assert 100 <= asked <= 100 + HEDGE_BURST
    assert not hedges.may_ask()
    assert hedges.may_ask(free=True)  # reads that move away from a slow node are no more than one each


def test_a_node_that_loses_again_and_again_and_never_answers_is_slow() -> None:
    hedges = Hedges(10)
    assert [hedges.lost("a") for _ in range(LOST_HEDGES)] == [False] * (LOST_HEDGES - 1) + [True]
    for _ in range(20):
        assert not hedges.lost("a")
        hedges.answered("a")
