"""Turns to catch up: bounded, and fair between connections."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.read_proxy.sessions import CatchUpTurns


def test_a_connection_with_many_readers_waits_behind_itself():
    granted = []
    turns = CatchUpTurns(1, lambda who: granted.append(who) is None)
    for i in range(5):
        turns.ask("greedy", f"g{i}")
    turns.ask("modest", "m")
    assert (granted, turns.taken, turns.waiting, turns.contended) == (["g0"], 1, 5, True)
    for _ in range(2):
        turns.give_back()
    assert granted == ["g0", "g1", "m"]


def test_asking_again_keeps_the_place_and_who_withdraws_is_not_called():
    granted = []
    turns = CatchUpTurns(1, lambda who: granted.append(who) is None)
    for who in ("a", "b", "c", "b", "a"):
        turns.ask("one", who)
    turns.withdraw("one", "b")
    turns.withdraw("one", "b")
    turns.withdraw("two", "x")
    turns.give_back()
    turns.give_back()
    assert granted == ["a", "c", "a"]


def test_a_turn_that_is_not_used_goes_to_the_next():
    granted = []

    def grant(who):
        granted.append(who)
        return who != "b"

    turns = CatchUpTurns(1, grant)
    for who in "abc":
        turns.ask("one", who)
    turns.give_back()
    assert granted == ["a", "b", "c"]
    assert turns.taken == 1


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40), st.data())
def test_never_more_turns_than_there_are_and_each_is_granted_once_for_each_time_it_waited(most, asks, data):
    running: list[tuple[int, int]] = []
    granted: Counter[tuple[int, int]] = Counter()
    waiting: set[tuple[int, int]] = set()

    def grant(who):
        assert who in waiting
        waiting.discard(who)
        granted[who] += 1
        used = data.draw(st.booleans())
        if used:
            running.append(who)
        return used

    turns = CatchUpTurns(most, grant)
    for who in asks:
        waiting.add(who)
        turns.ask(who[0], who)
        assert len(running) == turns.taken <= most
        if running and data.draw(st.booleans()):
            running.pop()
            turns.give_back()
    while running:
        running.pop()
        turns.give_back()
    assert not waiting
    assert turns.taken == turns.waiting == 0
