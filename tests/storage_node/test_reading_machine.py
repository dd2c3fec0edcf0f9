"""The reading machines: replicas in turn, the LAC by coverage, the long poll's rounds."""

from __future__ import annotations

import pytest

from metadata.errors import DistributedLogError
from storage_node.errors import (
    BookieIOError,
    BookieUnreachableError,
    DigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RequestTimeoutError,
    UnauthorizedAccessError,
)
from storage_node.protocol.reading import EntryRead, LacRead, TailRead, more_telling

MISSING = NoSuchEntryError("missing")
DOWN = BookieUnreachableError("down")
DIGEST = DigestError("digest")
TIMEOUT = RequestTimeoutError("timeout")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([MISSING, DOWN, DIGEST], DIGEST),
        ([MISSING, MISSING], MISSING),
        ([DOWN, MISSING], DOWN),
        ([DOWN, TIMEOUT], TIMEOUT),
        ([TIMEOUT, DIGEST, MISSING], TIMEOUT),
        ([DIGEST, DOWN], DIGEST),
        ([MISSING, DOWN], DOWN),
    ],
)
def test_first_error_precedence_of_5_7(errors: list[DistributedLogError], expected: DistributedLogError) -> None:
    error: DistributedLogError | None = None
    for later in errors:
        error = more_telling(error, later)
    assert error is expected


def test_replicas_are_asked_one_after_the_other_in_the_order_given() -> None:
    read = EntryRead((2, 0, 1))
    assert read.ask_next() == 2
    assert read.failed(DOWN) == 0
    assert read.failed(DIGEST) == 1
    assert not read.exhausted
    assert read.failed(MISSING) is None
    assert read.exhausted
    assert read.error is DIGEST


def test_a_speculative_read_asks_the_next_beside_and_the_first_good_answer_wins() -> None:
    read = EntryRead((0, 1, 2))
    assert read.ask_next() == 0
    assert read.ask_next() == 1
    assert read.failed(DOWN) is None  # the other question is still open
    assert not read.exhausted
    assert read.succeeded()
    assert not read.succeeded()
    assert read.ask_next() is None


def test_two_explicit_negatives_do_not_end_an_ordinary_read() -> None:
    read = EntryRead((0, 1, 2))
    read.ask_next()
    read.failed(MISSING)
    assert read.failed(MISSING) == 2
    assert read.succeeded()


def test_the_lac_is_the_greatest_that_covered_answers_gave() -> None:
    read = LacRead(3, 3, 2)
    read.answered(0, 4)
    assert not read.settled
    read.answered(2, 7)
    assert read.settled
    assert read.last_add_confirmed == 7


def test_an_ensemble_that_knows_nothing_has_no_lac() -> None:
    read = LacRead(3, 3, 2)
    read.failed(0, MISSING)
    read.failed(1, NoSuchLedgerError("never heard"))
    assert read.settled
    assert read.last_add_confirmed == -1


@pytest.mark.parametrize("error", [TIMEOUT, DIGEST, BookieIOError("disk")])
def test_answers_that_are_not_definite_do_not_settle_the_lac(error: DistributedLogError) -> None:
    read = LacRead(3, 3, 2)
    read.answered(0, 4)
    read.failed(1, error)
    assert not read.failed_for_good
    read.failed(2, error)
    assert read.failed_for_good
    assert read.error is error


def test_a_wrong_password_ends_a_lac_read_at_once() -> None:
    read = LacRead(3, 3, 2)
    read.failed(1, UnauthorizedAccessError("no"))
    assert read.failed_for_good


def test_a_long_poll_begins_where_the_add_behind_the_entry_goes() -> None:
    read = TailRead(4, 5, 2)
    assert [read.ask_next() for _ in range(6)] == [0, 1, 2, 3, 4, None]


def test_enough_empty_answers_end_a_long_poll() -> None:
    read = TailRead(4, 3, 2)
    read.ask_next()
    read.empty(3)
    assert not read.finished
    read.ask_next()
    read.empty(None)
    assert read.finished
    assert read.last_add_confirmed == 3


def test_a_moved_lac_without_the_entry_ends_a_long_poll() -> None:
    read = TailRead(4, 3, 2)
    read.ask_next()
    read.empty(6)
    assert read.finished
    assert read.last_add_confirmed == 6


def test_failures_in_a_long_poll_move_on_and_only_definite_answers_make_it_known() -> None:
    read = TailRead(4, 3, 2)
    read.ask_next()
    read.failed(DOWN)
    assert not read.known
    assert read.error is DOWN
    read.ask_next()
    read.failed(MISSING)
    assert read.known
    read.ask_next()
    read.found(4)
    assert read.finished
    assert read.ask_next() is None
