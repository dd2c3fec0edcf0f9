"""Fragments: which entries lie where, and which are settled. Properties against the plain definition."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from storage_node.autorecovery.checker import endangered_seats, fragments_of
from storage_node.protocol.striping import in_write_set, write_set


def ledger(
    keys: list[int], size: int = 3, write: int = 2, *, last: int | None = None, state: LedgerState = LedgerState.OPEN
) -> LedgerMetadata:
    ensembles = tuple(Ensemble(key, tuple(f"b{n}.{i}" for i in range(size))) for n, key in enumerate(keys))
    metadata = LedgerMetadata(size, write, 1, ensembles, state=state)
    return metadata if last is None else metadata.closed(last, 0)


@st.composite
def striped(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    size = draw(st.integers(1, 7))
    first = draw(st.integers(0, 2**33))
    return first, first + draw(st.integers(-1, 60)), draw(st.integers(0, size - 1)), size, draw(st.integers(1, size))


@given(striped())
def test_what_an_index_stores_is_what_striping_says(case: tuple[int, int, int, int, int]) -> None:
    first, last, index, size, write = case
    metadata = ledger([first], size, write, last=last) if first == 0 else ledger([0, first], size, write, last=last)
    stored = fragments_of(metadata, last)[-1].stored_on(index)
    expected = [n for n in range(first, last + 1) if index in write_set(n, size, write)]
    assert [stored[n] for n in range(len(stored))] == expected
    with pytest.raises(IndexError):
        stored[len(stored)]


@given(striped(), st.integers(0, 100), st.integers(0, 9))
def test_a_sample_has_both_ends_and_enough_between(
    case: tuple[int, int, int, int, int], percentage: int, seed: int
) -> None:
    first, last, index, size, write = case
    metadata = ledger([first], size, write, last=last) if first == 0 else ledger([0, first], size, write, last=last)
    stored = fragments_of(metadata, last)[-1].stored_on(index)
    sample = stored.sample(percentage, random.Random(seed))
    assert sample == sorted(set(sample))
    assert set(sample) <= {stored[n] for n in range(len(stored))}
    if len(stored):
        assert {sample[0], sample[-1]} == {stored[0], stored[len(stored) - 1]}
    assert len(sample) == min(len(stored), max(2, -(-len(stored) * percentage // 100)))


def test_a_sample_of_a_huge_fragment_costs_nothing() -> None:
    fragment = fragments_of(ledger([0], 5, 3, last=2**60), 2**60)[0]
    assert fragment.stored_on(4).sample(0, random.Random(0)) == [2, 2**60 - 2]
    assert 2**60 % 5 == 1


@given(st.lists(st.integers(1, 20), max_size=4), st.integers(-1, 60), st.integers(1, 5))
def test_fragments_of_a_closed_ledger_hold_each_entry_once_and_end_where_it_ends(
    gaps: list[int], last: int, size: int
) -> None:
    keys = [0]
    for gap in gaps:
        keys.append(keys[-1] + gap)
    keys = [key for key in keys if key <= last + 1] or [0]  # the last fragment may be empty, no other
    fragments = fragments_of(ledger(keys, size, 1, last=last), -1)
    assert [n for fragment in fragments for n in range(fragment.first, fragment.last + 1)] == list(range(last + 1))
    assert all(fragment.settled for fragment in fragments)


def test_an_empty_last_fragment_of_a_closed_ledger_stores_nothing() -> None:
    first, second = fragments_of(ledger([0, 10], last=9), 9)
    assert (first.first, first.last) == (0, 9)
    assert [len(second.stored_on(index)) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("lac", "ends", "settled"),
    [
        (25, [9, 19, 25], [True, True, False]),
        (19, [9, 19, 20], [True, True, False]),  # nothing in the last one yet: its first entry is looked at
        (15, [9, 19, 20], [False, False, False]),  # what lies before the last fragment is not known to be committed
        (-1, [9, 19, 20], [False, False, False]),
    ],
)
def test_of_an_open_ledger_only_what_is_committed_before_the_last_fragment_is_settled(
    lac: int, ends: list[int], settled: list[bool]
) -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        fragments = fragments_of(ledger([0, 10, 20], state=state), lac)
        assert [fragment.last for fragment in fragments] == ends
        assert [fragment.settled for fragment in fragments] == settled


def test_the_seats_that_a_writer_needs() -> None:
    metadata = ledger([0, 10, 20])
    last, before = set(metadata.ensembles[2].bookies), set(metadata.ensembles[1].bookies)
    assert endangered_seats(metadata, 25) == last
    assert endangered_seats(metadata, 19) == last
    assert endangered_seats(metadata, 18) == last | before
    assert endangered_seats(ledger([0], last=-1), -1) == set()


@given(striped(), st.sets(st.integers(0, 6), min_size=1))
def test_what_lies_on_any_of_several_indices(case: tuple[int, int, int, int, int], indices: set[int]) -> None:
    first, last, _, size, write = case
    indices = {index % size for index in indices}
    metadata = ledger([first], size, write, last=last) if first == 0 else ledger([0, first], size, write, last=last)
    fragment = fragments_of(metadata, last)[-1]
    found = list(fragment.stored_on_any(indices))
    assert found == [n for n in range(first, last + 1) if indices & set(write_set(n, size, write))]
    for entry_id in found:
        holders = fragment.holders(entry_id, indices)
        assert holders == [index for index in sorted(indices) if in_write_set(entry_id, index, size, write)]


# ---- the swap in the metadata ----------------------------------------------------------------------------------------


def test_a_swap_changes_one_ensemble_and_nothing_else() -> None:
    metadata = ledger([0, 10], last=15)
    changed = metadata.with_copies_on(10, {1: ("b1.1", "new")})
    assert changed is not None
    assert changed.ensembles == (metadata.ensembles[0], Ensemble(10, ("b1.0", "new", "b1.2")))
    assert (changed.state, changed.last_entry, changed.length) == (LedgerState.CLOSED, 15, 0)


@pytest.mark.parametrize(
    "swaps",
    [{1: ("somebody else", "new")}, {1: ("b1.0", "new")}, {1: ("b1.1", "b1.2")}, {}],
    ids=["replaced meanwhile", "in another place by now", "the new one is a member already", "nothing"],
)
def test_a_swap_that_does_not_fit_any_more_changes_nothing(swaps: dict[int, tuple[str, str]]) -> None:
    assert ledger([0, 10], last=15).with_copies_on(10, swaps) is None
    assert ledger([0, 10], last=15).with_copies_on(11, {1: ("b1.1", "new")}) is None
