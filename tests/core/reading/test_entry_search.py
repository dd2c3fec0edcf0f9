"""The search for the entry that has a value, without entries: what it finds, and how many it looks at."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.core.reading.segments import EntrySearch, proportional


def searched(
    entries: list[list[int]], wanted: int, *, ways: int = 2, guess: int | None = None
) -> tuple[int | None, int]:
    """The entry that is found, and how many were looked at; `entries` are the values in each."""
    search, looked_at = EntrySearch(len(entries), ways), 0
    if guess is not None:
        search.look_near(guess)
    while probes := search.probes():
        looked_at += len(probes)
        assert probes == sorted(set(probes))
        for entry_id in probes:
            values = entries[entry_id]
            reaches = values[-1] >= wanted
            search.tell(entry_id, begins_before=values[0] < wanted, reaches=reaches)
            if reaches:
                break
    return search.found, looked_at


def cut(values: list[int], sizes: list[int]) -> list[list[int]]:
    """Values in entries of these sizes, as far as they go."""
    ends = [0, *accumulate(sizes)]
    return [part for first, end in pairwise(ends) if (part := values[first:end])]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=120).map(sorted),
    st.lists(st.integers(1, 9), min_size=1, max_size=120),
    st.integers(-5, 310),
    st.integers(2, 6),
    st.none() | st.integers(-3, 130),
)
def test_it_finds_the_first_entry_that_reaches_the_value_wherever_it_begins_to_look(
    values: list[int], sizes: list[int], wanted: int, ways: int, guess: int | None
) -> None:
    entries = cut(values, sizes)
    found, looked_at = searched(entries, wanted, ways=ways, guess=guess)
    place = bisect_left([entry[-1] for entry in entries], wanted)
    assert found == (place if place < len(entries) else None)
    assert looked_at <= min(len(entries), ways * (math.log(len(entries), ways + 1) + 2) + math.log(len(entries), 4) + 2)


@pytest.mark.parametrize("count", [1, 10, 1_000, 100_000])
def test_values_that_grow_evenly_are_found_in_one_or_two_entries(count: int) -> None:
    entries = [[100 * i, 100 * i + 99] for i in range(count)]
    for at in {0, count // 3, count // 2, count - 1}:
        for wanted in (100 * at + 1, 100 * at + 99):
            found, looked_at = searched(entries, wanted, guess=proportional(count, wanted, 0, 100 * count - 1))
            assert (found, looked_at) == (at, 1)
        guess = proportional(count, 100 * at, 0, 100 * count - 1)
        assert searched(entries, 100 * at, guess=guess) == (at, min(at, 1) + 1), "where an entry begins, two tell it"


def test_a_guess_that_is_useless_costs_little_more_than_none() -> None:
    entries = [[2**i] for i in range(1_000)]
    for wanted in (3, 2**10, 2**500, 2**999):
        guess = proportional(len(entries), wanted, 1, 2**999)
        _, without = searched(entries, wanted)
        _, looked_at = searched(entries, wanted, guess=guess)
        assert looked_at <= without + math.log(1_000, 4) + 2


def test_there_is_no_guess_where_values_do_not_grow() -> None:
    assert proportional(10, 7, 5, 5) is None
    assert proportional(10, 5, 5, 5) == 0
    assert proportional(10, 900, 0, 99) == 9
    assert proportional(0, 5, 0, 99) == 0
