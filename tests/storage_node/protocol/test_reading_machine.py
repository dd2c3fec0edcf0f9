"""The reading machines: replicas in turn, the LAC by coverage, the long poll's rounds."""

from __future__ import annotations

import pytest

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.foundation.errors import DistributedLogError
from storage_node.errors import (
    BookieIOError,
    BookieUnreachableError,
    ConnectionClosedError,
    DigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RequestTimeoutError,
    SecureConnectionError,
    TlsRefusedError,
    UnauthorizedAccessError,
)
from storage_node.protocol.reading import EntryRead, LacRead, LacTry, TailRead, fragment_end, more_telling

MISSING = NoSuchEntryError("missing")
DOWN = BookieUnreachableError("down")
DIGEST = DigestError("digest")
TIMEOUT = RequestTimeoutError("timeout")
REFUSED = SecureConnectionError("the certificate is revoked")
REFUSED.refused = True
REFUSED_LATE = ConnectionClosedError("the connection was lost: the certificate is revoked")
REFUSED_LATE.__cause__ = TlsRefusedError("the certificate is revoked")


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
        ([REFUSED, REFUSED_LATE], REFUSED_LATE),
        ([REFUSED, DOWN], DOWN),
        ([DOWN, REFUSED, REFUSED_LATE], DOWN),
        ([REFUSED, DIGEST], DIGEST),
    ],
)
def test_of_the_errors_of_replicas_the_more_telling_one_stays(
    errors: list[DistributedLogError], expected: DistributedLogError
) -> None:
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


@pytest.mark.parametrize("before", [[], [TIMEOUT], [DOWN]])
def test_a_wrong_password_ends_a_lac_read_at_once(before: list[DistributedLogError]) -> None:
    read = LacRead(3, 3, 2)
    for index, error in enumerate(before):
        read.failed(index, error)
    read.failed(1, UnauthorizedAccessError("no"))
    assert read.failed_for_good


@pytest.mark.parametrize("errors", [[DOWN, REFUSED], [REFUSED, DOWN], [DOWN, REFUSED_LATE]])
def test_a_lac_that_one_bookie_refuses_and_another_cannot_give_is_not_refused(
    errors: list[DistributedLogError],
) -> None:
    read = LacRead(3, 3, 2)
    read.answered(0, 4)
    for index, error in enumerate(errors, 1):
        read.failed(index, error)
    assert read.failed_for_good
    assert read.error is DOWN
    assert not read.refused_by_all


def test_a_lac_is_refused_where_every_bookie_refuses_it() -> None:
    read = LacRead(3, 3, 2)
    for index, error in enumerate((REFUSED, REFUSED_LATE, REFUSED)):
        assert not read.refused_by_all
        read.failed(index, error)
    assert read.failed_for_good
    assert read.refused_by_all


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


def test_after_a_silence_the_next_bookie_is_polled_beside_and_the_last_answer_ends_the_poll() -> None:
    read = TailRead(4, 3, 2)
    assert read.ask_next() == 2
    assert read.ask_next() == 0  # a speculation: two questions are open
    assert read.failed(DOWN) is None
    assert read.empty(3) == 1
    assert read.failed(DOWN) is None
    assert read.finished  # nobody is left, and nobody is open


def test_a_long_poll_can_be_put_in_another_order() -> None:
    read = TailRead(4, 3, 2)
    read.reorder(lambda order: sorted(order))
    assert [read.ask_next() for _ in range(4)] == [0, 1, 2, None]
    assert not read.finished


def test_a_best_effort_lac_is_finished_by_the_first_news() -> None:
    read = LacTry(3, known=4)
    read.answered(0, 4)
    assert not read.finished
    read.answered(2, 6)
    assert read.finished
    assert read.last_add_confirmed == 6


def test_a_best_effort_lac_without_news_hears_everybody_and_keeps_what_was_known() -> None:
    read = LacTry(3, known=4)
    read.answered(0, 2)
    read.failed(1, MISSING)
    read.failed(2, DOWN)
    assert read.finished
    assert read.valid
    assert read.last_add_confirmed == 4
    silent = LacTry(1, known=4)
    silent.failed(0, DOWN)
    assert silent.finished
    assert not silent.valid
    assert silent.error is DOWN


def test_a_range_is_cut_at_the_end_of_its_fragment() -> None:
    bookies = ("a", "b", "c")
    metadata = LedgerMetadata(3, 3, 2, (Ensemble(0, bookies), Ensemble(10, bookies), Ensemble(12, bookies)))
    ends = [fragment_end(metadata, first, last) for first, last in ((0, 5), (0, 20), (9, 30), (10, 30), (12, 30))]
    assert ends == [5, 9, 9, 11, 30]
