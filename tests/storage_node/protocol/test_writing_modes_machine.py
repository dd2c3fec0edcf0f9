"""The writer machine's other modes: delayed ensemble changes, limits, deferred sync, entry ids of the caller's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import InvariantViolation, OutcomeUnknownError
from storage_node.errors import (
    BookieUnreachableError,
    DuplicateEntryError,
    LedgerClosedError,
    QuorumWriteError,
    ReadOnlyError,
)
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import (
    Acknowledged,
    Closed,
    Cut,
    Effects,
    Failed,
    ForceSync,
    PickReplacements,
    Resend,
    Send,
    WriteMetadata,
    WriterState,
)

DOWN = BookieUnreachableError("down")


def opened(e: int = 3, w: int = 3, a: int = 2) -> LedgerMetadata:
    return LedgerMetadata(e, w, a, (Ensemble(0, tuple("abcdefghij"[:e])),))


def machine(e: int = 3, w: int = 3, a: int = 2, **options: int) -> WriterMachine:
    return WriterMachine(7, opened(e, w, a), 0, **options)  # type: ignore[arg-type]


def picking(effects: Effects) -> PickReplacements:
    (found,) = [effect for effect in effects if isinstance(effect, PickReplacements)]
    return found


def written(m: WriterMachine, effects: Effects) -> Effects:
    """Carry out the conditional write among `effects`."""
    (write,) = [effect for effect in effects if isinstance(effect, WriteMetadata)]
    return m.metadata_written(write.metadata, write.version + 1)


# ---------------------------------------------------------------------------------------- delayed changes


def test_a_delayed_failure_of_an_acknowledged_entry_is_nothing() -> None:
    m = machine(delay_ensemble_change=True)
    m.add(1)
    a, b, c = m.seats
    m.added(a, 0), m.added(b, 0)
    assert m.refused(c, 0, DOWN) == ()
    assert [type(effect) for effect in m.add(1)] == [Send]
    assert m.metadata == opened()


def test_delayed_failures_of_different_entries_are_not_added_up() -> None:
    m = machine(delay_ensemble_change=True)
    m.add(1), m.add(1)
    a, b, c = m.seats
    assert m.refused(a, 0, DOWN) == ()
    assert m.refused(b, 1, DOWN) == ()
    m.added(b, 0), m.added(c, 0)
    m.added(a, 1)
    assert m.added(c, 1) == (Acknowledged(1, 1),)


def test_without_spare_copies_a_delayed_change_begins_at_once() -> None:
    m = machine(3, 3, 3, delay_ensemble_change=True)
    m.add(1)
    assert picking(m.refused(m.seats[1], 0, DOWN)).indices == (1,)


def test_a_read_only_bookie_takes_the_noted_failures_of_the_entry_along() -> None:
    m = machine(5, 5, 2, delay_ensemble_change=True)
    m.add(1)
    assert m.refused(m.seats[3], 0, DOWN) == ()
    assert picking(m.refused(m.seats[0], 0, ReadOnlyError("full"))).indices == (0, 3)


def test_with_delayed_changes_a_vacant_seat_counts_as_a_failed_one() -> None:
    m = machine(delay_ensemble_change=True)
    m.add(1)
    a, b, c = m.seats
    m.refused(a, 0, DOWN), m.refused(b, 0, DOWN)
    m.added(c, 0)
    written(m, m.picked({1: "d"}))  # nobody for a: its seat stays vacant
    assert m.vacant == {0}
    d = m.seats[1]
    assert m.added(d, 0) == (Acknowledged(0, 0),)
    m.add(1)
    # Sent to two, acknowledged by two: one failure more and it never would be.
    wanted = picking(m.refused(c, 1, DOWN))
    assert wanted.indices == (0, 2)
    assert wanted.last_resort


def test_a_failure_noted_before_a_seat_fell_vacant_counts_from_then_on() -> None:
    m = machine(4, 3, 2, delay_ensemble_change=True)
    m.add(1)  # 0: a b c
    m.add(1)  # 1: b c d
    a, b, c, d = m.seats
    assert m.refused(d, 1, DOWN) == ()
    m.refused(b, 0, DOWN)
    wanted = picking(m.refused(a, 0, DOWN))
    assert wanted.indices == (0, 1)
    again = picking(written(m, m.picked({0: "x"})))  # b stays vacant, and entry 1 has lost b and d
    assert 3 in again.indices
    m.added(c, 0), m.added(m.seats[0], 0), m.added(c, 1)
    effects = written(m, m.picked({3: "y"}))
    assert [effect.entry_id for effect in effects if isinstance(effect, Resend)] == [1]
    assert m.added(m.seats[3], 1) == (Acknowledged(1, 1),)


def test_a_writer_with_delayed_changes_goes_on_while_no_replacement_is_to_be_had() -> None:
    m = machine(4, 4, 2, delay_ensemble_change=True)
    for entry in range(20):
        m.add(1)
        a, b, c, d = m.seats
        if entry == 5:
            m.refused(a, entry, DOWN), m.refused(b, entry, DOWN)
            picking(m.refused(c, entry, ReadOnlyError("full")))
            m.added(d, entry)
            written(m, m.picked({0: "x"}))
            assert m.vacant == {1, 2}
            assert m.added(m.seats[0], entry) == (Acknowledged(entry, entry),)
            continue
        sent = [seat for seat in m.seats if seat.index not in m.vacant]
        m.added(sent[0], entry)
        assert m.added(sent[-1], entry) == (Acknowledged(entry, entry),)
    assert m.last_add_confirmed == 19


# ---------------------------------------------------------------------------------------- limits


def test_more_ensemble_changes_than_allowed_fail_the_writer_and_vacancies_do_not_count() -> None:
    m = machine(max_ensemble_changes=1)
    m.add(1)
    a, b, c = m.seats
    m.refused(a, 0, DOWN)
    m.picked({})  # a vacancy changes nothing in the metadata
    m.refused(b, 0, DOWN)
    written(m, m.picked({1: "d"}))
    m.added(c, 0)
    assert m.added(m.seats[1], 0) == (Acknowledged(0, 0),)
    m.add(1)
    m.refused(c, 1, DOWN)
    (failed,) = m.picked({2: "e"})
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, QuorumWriteError)
    assert "maxNumEnsembleChanges" in str(failed.error)


def test_a_change_that_has_to_be_written_twice_counts_once() -> None:
    m = machine(max_ensemble_changes=1)
    m.add(1)
    m.refused(m.seats[0], 0, DOWN)
    m.picked({0: "d"})
    m.metadata_doubtful()
    assert isinstance(m.metadata_found(opened(), 3)[0], WriteMetadata)
    assert m.metadata_written(opened().with_ensemble(0, ("d", "b", "c")), 4)
    assert m.state is WriterState.WRITING


# ---------------------------------------------------------------------------------------- deferred sync


def test_with_deferred_sync_acknowledgements_come_but_the_lac_moves_only_when_forced() -> None:
    m = machine(deferred_sync=1)
    m.add(10), m.add(10)
    a, b, c = m.seats
    m.added(a, 0)
    assert m.added(b, 0) == (Acknowledged(0, 0),)
    assert (m.last_acknowledged, m.last_add_confirmed) == (0, -1)
    (send,) = m.add(10)
    assert isinstance(send, Send)
    assert send.last_add_confirmed == -1
    assert m.forced(0, 10) == ()
    (send,) = m.add(10)
    assert isinstance(send, Send)
    assert send.last_add_confirmed == 0
    m.added(b, 1), m.added(c, 1)
    assert m.last_add_confirmed == 0
    m.forced(-1, 0)  # an earlier one that comes late takes nothing back
    assert m.last_add_confirmed == 0


def test_with_deferred_sync_any_failure_is_final_and_the_close_ends_at_what_was_forced() -> None:
    m = machine(deferred_sync=1)
    for entry in range(3):
        m.add(10)
        m.added(m.seats[0], entry), m.added(m.seats[1], entry)
    m.forced(1, 20)
    (failed,) = m.refused(m.seats[2], 0, DOWN)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, OutcomeUnknownError)
    assert "deferred" in str(failed.error)
    (write,) = m.close()
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (1, 20)


def test_with_deferred_sync_a_close_forces_what_is_acknowledged_and_ends_there() -> None:
    m = machine(deferred_sync=1)
    m.add(10)
    assert m.close() == ()
    m.added(m.seats[0], 0)
    assert m.added(m.seats[2], 0) == (Acknowledged(0, 0), ForceSync(0, 10))
    (write,) = m.forced(0, 10)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (0, 10)
    assert m.forced(0, 10) == ()


def test_forcing_where_nothing_is_deferred_is_a_bug() -> None:
    with pytest.raises(InvariantViolation):
        machine().forced(0, 1)


# ---------------------------------------------------------------------------------------- advanced


def test_entry_ids_of_the_callers_come_in_any_order_and_are_acknowledged_in_theirs() -> None:
    m = machine(advanced=1)
    for entry in (2, 0, 1):
        (send,) = m.add(10 + entry, entry_id=entry)
        assert isinstance(send, Send)
        assert send.entry_id == entry
    a, b, _ = m.seats
    assert m.added(a, 2) == m.added(b, 2) == ()
    m.added(a, 1), m.added(b, 1)
    m.added(a, 0)
    assert m.added(b, 0) == (Acknowledged(0, 2),)
    assert m.acknowledged_length == 33
    assert m.last_add_pushed == 2


@pytest.mark.parametrize("entry", [0, 1, 5, -1])
def test_an_entry_id_given_twice_is_refused_and_nothing_happens(entry: int) -> None:
    m = machine(advanced=1)
    m.add(1, entry_id=0), m.add(1, entry_id=1), m.add(1, entry_id=5)
    m.added(m.seats[0], 0), m.added(m.seats[1], 0)
    before = (m.pending_count, m.length, m.last_add_pushed)
    with pytest.raises(DuplicateEntryError):
        m.add(1, entry_id=entry)
    assert (m.pending_count, m.length, m.last_add_pushed) == before


def test_a_gap_holds_back_what_lies_behind_it_and_a_close_makes_it_final() -> None:
    m = machine(advanced=1)
    m.add(10, entry_id=0), m.add(10, entry_id=2)
    a, b, _ = m.seats
    m.added(a, 2), m.added(b, 2)
    assert m.close() == ()  # entry 0 is still to come
    m.added(a, 0)
    acknowledged, cut, write = m.added(b, 0)
    assert acknowledged == Acknowledged(0, 0)
    assert isinstance(cut, Cut)
    assert isinstance(cut.error, LedgerClosedError)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (0, 10)
    assert isinstance(m.metadata_written(write.metadata, 1)[0], Closed)


def test_after_an_ensemble_change_entries_are_sent_again_in_entry_order() -> None:
    m = machine(advanced=1)
    for entry in (3, 1, 2, 0):
        m.add(1, entry_id=entry)
    m.refused(m.seats[0], 3, DOWN)
    effects = written(m, m.picked({0: "x"}))
    assert [effect.entry_id for effect in effects if isinstance(effect, Resend)] == [0, 1, 2, 3]


@settings(max_examples=150, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 2**32))
def test_any_order_of_ids_and_answers_ends_in_the_same_ledger(order: list[int], seed: int) -> None:
    rng = random.Random(seed)
    m = machine(4, 3, 2, advanced=1)
    mail = []
    acknowledged: list[int] = []
    for entry in order:
        (send,) = m.add(entry, entry_id=entry)
        assert isinstance(send, Send)
        mail += [(seat, entry) for seat in send.seats]
    rng.shuffle(mail)
    for seat, entry in mail:
        for effect in m.added(seat, entry):
            assert isinstance(effect, Acknowledged)
            acknowledged += range(effect.first, effect.last + 1)
    assert acknowledged == list(range(12))
    (write,) = m.close()
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.state, write.metadata.last_entry) == (LedgerState.CLOSED, 11)
    assert write.metadata.length == sum(range(12))
