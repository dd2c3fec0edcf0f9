"""Striping and coverage against the tables of docs/reference/wire.md#striping-vectors, and as properties."""

from __future__ import annotations

from itertools import combinations

import pytest
from helpers.documents.pages import table_rows
from helpers.reference_vectors import REFERENCE
from hypothesis import given
from hypothesis import strategies as st

from metadata.foundation.errors import CallerError, InvariantViolation
from storage_node.protocol.striping import (
    QuorumCoverage,
    in_write_set,
    missing_needed,
    next_fragment_key,
    validate_quorums,
    write_set,
    write_sets,
)


def cells_under(heading: str) -> list[list[str]]:
    """The rows of the table that the page has under a heading."""
    rows = [cells for under, cells in table_rows(REFERENCE / "wire.md") if under == heading]
    assert rows, f"wire.md has no table under {heading!r}"
    return rows


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


@pytest.mark.parametrize(
    ("entry", "size", "quorum", "expected"),
    [(int(entry), int(e), int(w), numbers(members)) for e, w, entry, members in cells_under("Striping vectors")],
)
def test_an_entry_goes_to_the_write_set_of_the_vectors(
    entry: int, size: int, quorum: int, expected: tuple[int, ...]
) -> None:
    assert write_set(entry, size, quorum) == expected


def test_entries_beyond_two_to_the_31_stripe_where_java_writers_break() -> None:
    assert write_set(2**31, 5, 3) == (3, 4, 0)


COVERAGE = {
    (int(e), int(w), int(a)): (int(can), int(always)) for e, w, a, can, always in cells_under("Quorum coverage vectors")
}


def covers(sizes: tuple[int, int, int], known: tuple[int, ...]) -> bool:
    coverage = QuorumCoverage(*sizes)
    for index in known:
        coverage.mark_known(index)
    return coverage.covered


@pytest.mark.parametrize(("sizes", "answers"), COVERAGE.items())
def test_answers_cover_every_write_set_as_in_the_vectors(sizes: tuple[int, int, int], answers: tuple[int, int]) -> None:
    can, always = answers
    every = range(sizes[0] + 1)
    assert min(n for n in every if any(covers(sizes, known) for known in combinations(range(sizes[0]), n))) == can
    assert min(n for n in every if all(covers(sizes, known) for known in combinations(range(sizes[0]), n))) == always


@pytest.mark.parametrize(
    ("w", "a", "needed"), [tuple(map(int, cells)) for cells in cells_under("Missing answer vectors")]
)
def test_the_missing_answers_that_end_a_recovery_are_those_of_the_vectors(w: int, a: int, needed: int) -> None:
    assert missing_needed(w, a) == needed


@pytest.mark.parametrize(
    ("lac", "last_key", "expected"),
    [
        (int(lac), int(last), (int(new), {"kept": False, "replaced": True}[outcome]))
        for lac, last, new, outcome in cells_under("Ensemble change vectors")
    ],
)
def test_an_ensemble_change_keeps_or_replaces_the_last_fragment_as_in_the_vectors(
    lac: int, last_key: int, expected: tuple[int, bool]
) -> None:
    assert next_fragment_key(lac, last_key) == expected


def test_a_change_before_the_last_fragment_is_a_bug() -> None:
    with pytest.raises(InvariantViolation):
        next_fragment_key(40, 42)


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_quorums_that_do_not_fit_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(CallerError, match="ack quorum"):
        validate_quorums(*sizes)


@given(st.integers(0, 2**62), st.integers(1, 9), st.data())
def test_membership_and_write_set_agree(entry: int, size: int, data: st.DataObject) -> None:
    quorum = data.draw(st.integers(1, size))
    members = write_set(entry, size, quorum)
    assert len(set(members)) == quorum
    assert [i for i in range(size) if in_write_set(entry, i, size, quorum)] == sorted(members)
    assert write_sets(size, quorum)[entry % size] == members


@given(st.integers(1, 7), st.data())
def test_covered_means_that_no_write_set_can_hide_an_acknowledged_entry(size: int, data: st.DataObject) -> None:
    w = data.draw(st.integers(1, size))
    a = data.draw(st.integers(1, w))
    known = data.draw(st.sets(st.integers(0, size - 1)))
    unknown = set(range(size)) - known
    hidden = any(len(unknown & set(write_set(e, size, w))) >= a for e in range(size))
    assert covers((size, w, a), tuple(known)) is not hidden
