"""Which node is polled at the tail over regions, and when another one is asked: the machine alone."""

from __future__ import annotations

from collections.abc import Mapping

from storage_node.client.tail_over_regions import DEAF_AFTER, FORGET_S, HEARS_AGAIN, LEAST_S, UNKNOWN_S, TailListening

NEAR, NEAR2, FAR, FARTHER = 0, 1, 2, 3
NAMES = ("eu1", "eu2", "us1", "ap1")
TRIPS = {"eu1": 0.001, "eu2": 0.001, "us1": 0.020, "ap1": 0.060}
ORDER = (NEAR, NEAR2, FAR, FARTHER)


def listening(trips: Mapping[str, float] = TRIPS, longest_s: float = 1.0) -> TailListening:
    machine = TailListening(lambda bookie: bookie.startswith("eu"), trips.get, longest_s)
    machine.begin(NAMES, 0.0)
    return machine


def deafen(machine: TailListening, index: int, now: float) -> None:
    for _ in range(DEAF_AFTER):
        machine.missed(index, now)


def due(machine: TailListening, polled: int = NEAR) -> float:
    when = machine.due(polled, ORDER)
    assert when is not None
    return when


def test_the_first_question_comes_after_twice_the_time_that_it_takes() -> None:
    assert due(listening()) == 0.040
    assert due(listening({"us1": 0.001})) == LEAST_S
    assert due(listening({})) == UNKNOWN_S
    assert due(listening({"us1": 5.0}, longest_s=1.0)) == 10.0  # never sooner than an answer could be there


def test_an_idle_log_costs_a_question_in_a_long_poll_s_time_and_all_others_are_asked_in_turn() -> None:
    machine = listening()
    now, asked = 0.0, []
    while now < 60:
        now = due(machine)
        asked.append(machine.question(NEAR, ORDER, now))
    assert asked[:6] == [FAR, NEAR2, FARTHER, FAR, NEAR2, FARTHER]
    assert len(asked) <= 60 + 6


def test_a_log_with_news_all_the_time_costs_no_question_at_all() -> None:
    machine = listening()
    for step in range(1000):
        now = step * 0.010
        assert due(machine) > now
        machine.heard(NEAR, now)


def test_news_begin_with_the_shortest_pause_again() -> None:
    machine = listening()
    for _ in range(8):
        machine.question(NEAR, ORDER, due(machine))
    machine.heard(NEAR, 100.0)
    assert due(machine) == 100.040


def test_a_deaf_node_is_polled_behind_the_others_and_beside_them_where_it_is_near() -> None:
    machine = listening()
    deafen(machine, NEAR, 1.0)
    assert machine.arrange(ORDER) == [NEAR2, FAR, FARTHER, NEAR]
    assert machine.beside(NEAR2) == [NEAR]
    deafen(machine, NEAR2, 2.0)
    assert machine.arrange(ORDER) == [FAR, FARTHER, NEAR, NEAR2]
    assert machine.beside(FAR) == [NEAR, NEAR2]
    deafen(machine, FAR, 3.0)
    assert machine.beside(FARTHER) == [NEAR, NEAR2]  # not the far one: it would cost as much again


def test_a_deaf_node_is_polled_alone_again_once_it_was_first_some_times_in_a_row() -> None:
    machine = listening()
    deafen(machine, NEAR, 1.0)
    for _ in range(5):
        for _ in range(HEARS_AGAIN - 1):
            machine.heard(NEAR, 2.0)
        machine.heard(NEAR2, 2.0)  # another one was first: begin again
    assert machine.deaf == {"eu1"}
    for _ in range(HEARS_AGAIN):
        machine.heard(NEAR, 3.0)
    assert machine.deaf == frozenset()
    assert machine.arrange(ORDER) == list(ORDER)


def test_where_each_was_late_once_none_but_the_last_is_deaf_and_far_ones_are_forgotten() -> None:
    machine = listening()
    for index in ORDER:
        deafen(machine, index, 1.0)
    assert machine.deaf == {"ap1"}
    machine.begin(NAMES, 1.0 + FORGET_S)
    assert machine.deaf == {"ap1"}
    machine.begin(NAMES, 1.1 + FORGET_S)
    assert machine.deaf == frozenset()


def test_another_ensemble_begins_anew_and_a_single_node_has_no_other_to_ask() -> None:
    machine = listening()
    deafen(machine, NEAR, 1.0)
    machine.begin(("eu9", *NAMES[1:]), 50.0)
    assert machine.deaf == frozenset()
    assert due(machine) == 50.040
    machine.begin(("eu1",), 60.0)
    assert machine.due(0, (0,)) is None
    deafen(machine, 0, 60.0)
    assert machine.deaf == frozenset()


def test_a_question_that_meets_the_news_on_their_way_makes_nobody_deaf() -> None:
    machine = listening()
    for _ in range(10):
        machine.missed(NEAR, 1.0)
        assert machine.deaf == frozenset()
        machine.heard(NEAR, 2.0)
