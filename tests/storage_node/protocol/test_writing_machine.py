"""The writer machine: its table, its rules by name, and random schedules against the invariants."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import (
    InvariantViolation,
    MetadataUnavailableError,
    NoNodeError,
    OutcomeUnknownError,
)
from storage_node.errors import (
    BookieUnreachableError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerTakenError,
    QuorumWriteError,
    ReadOnlyError,
    UnauthorizedAccessError,
)
from storage_node.protocol.striping import write_set
from storage_node.protocol.tables import Reaction
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import (
    REACTIONS,
    Acknowledged,
    Closed,
    Effect,
    Effects,
    Failed,
    Moved,
    PickReplacements,
    ReadMetadata,
    ReplaceLedger,
    Resend,
    Seat,
    Send,
    WriteMetadata,
    WriterEvent,
    WriterState,
)

DOWN = BookieUnreachableError("down")
STRANGER = UnauthorizedAccessError("another key", node="a")


def opened(e: int = 3, w: int = 3, a: int = 2, names: str = "abcdefghij") -> LedgerMetadata:
    return LedgerMetadata(e, w, a, (Ensemble(0, tuple(names[:e])),))


def machine(metadata: LedgerMetadata | None = None, **options: bool) -> WriterMachine:
    return WriterMachine(7, metadata or opened(), 0, **options)


def one(effects: Effects, kind: type[Effect]) -> Effect:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def add(m: WriterMachine, size: int = 10) -> Send:
    effect = m.add(size)[0]
    assert isinstance(effect, Send)
    return effect


def change_to_writing(m: WriterMachine, replacement: str = "x") -> WriteMetadata:
    """Fail seat 0 of a pending entry and pick a replacement."""
    m.refused(m.seats[0], m.last_add_confirmed + 1, DOWN)
    effect = one(m.picked({0: replacement}), WriteMetadata)
    assert isinstance(effect, WriteMetadata)
    return effect


# ---------------------------------------------------------------------------------------- the table


def in_state(state: WriterState, *, deferred_sync: bool = False) -> WriterMachine:
    m = machine(deferred_sync=deferred_sync)
    if state is WriterState.WRITING:
        add(m)
    elif state in (WriterState.PICKING, WriterState.CHANGING, WriterState.CHECKING):
        add(m)
        m.refused(m.seats[0], 0, DOWN)
        if state is not WriterState.PICKING:
            m.picked({0: "x"})
        if state is WriterState.CHECKING:
            m.metadata_doubtful()
    elif state in (WriterState.CLOSING, WriterState.CLOSE_CHECKING, WriterState.CLOSED):
        m.close()
        if state is WriterState.CLOSE_CHECKING:
            m.metadata_doubtful()
        if state is WriterState.CLOSED:
            m.metadata_written(m.metadata.closed(-1, 0), 1)
    elif state in (WriterState.GIVING_UP, WriterState.GIVE_UP_CHECKING, WriterState.REPLACING):
        m.replacements_left = 1
        add(m)
        m.refused(m.seats[0], 0, STRANGER)
        m.picked({})
        if state is WriterState.GIVE_UP_CHECKING:
            m.metadata_doubtful()
        if state is WriterState.REPLACING:
            m.metadata_written(m.metadata.closed(-1, 0), 1)
    else:
        add(m)
        m.abort(QuorumWriteError("given up"))
    assert m.state is state
    return m


EVENTS: dict[WriterEvent, Callable[[WriterMachine, list[Seat]], Effects]] = {
    WriterEvent.ADD: lambda m, seats: m.add(1),
    WriterEvent.ADDED: lambda m, seats: (m.added(seats[1], 0), m.added(seats[2], 0))[-1],
    WriterEvent.REFUSED: lambda m, seats: m.refused(seats[1], 0, LedgerFencedError("fenced")),
    WriterEvent.PICKED: lambda m, seats: m.picked({0: "x"}),
    WriterEvent.METADATA_WRITTEN: lambda m, seats: m.metadata_written(
        opened().closed(-1, 0)
        if m.state in (WriterState.CLOSING, WriterState.GIVING_UP)
        else opened().with_ensemble(0, ("x", "b", "c")),
        1,
    ),
    WriterEvent.METADATA_DOUBTFUL: lambda m, seats: m.metadata_doubtful(),
    WriterEvent.METADATA_FOUND: lambda m, seats: m.metadata_found(opened(), 1),
    WriterEvent.METADATA_FAILED: lambda m, seats: m.metadata_failed(NoNodeError("gone")),
    WriterEvent.RETRY_VACANCIES: lambda m, seats: m.retry_vacancies(),
    WriterEvent.FORCED: lambda m, seats: m.forced(0, 1),
    WriterEvent.CLOSE: lambda m, seats: m.close(),
    WriterEvent.ABORT: lambda m, seats: m.abort(QuorumWriteError("given up")),
    WriterEvent.REPLACED: lambda m, seats: m.replaced(8, opened(names="uvwxyz"), 0),
    WriterEvent.REPLACE_FAILED: lambda m, seats: m.replace_failed(DOWN),
    WriterEvent.HEARD_ENOUGH: lambda m, seats: m.heard_enough(),
}


@pytest.mark.parametrize("event", WriterEvent)
@pytest.mark.parametrize("state", WriterState)
def test_every_event_in_every_state_does_what_the_table_says(state: WriterState, event: WriterEvent) -> None:
    m = in_state(state, deferred_sync=event is WriterEvent.FORCED and state is WriterState.WRITING)
    seats = list(m.seats)
    before = (m.state, m.last_add_confirmed, m.metadata, m.pending_count)
    reaction = REACTIONS[state][event]
    if reaction is Reaction.BUG:
        with pytest.raises(InvariantViolation, match=f"{event.name} in state {state.name}"):
            EVENTS[event](m, seats)
    elif reaction is Reaction.REFUSE:
        with pytest.raises((LedgerClosedError, QuorumWriteError)):
            EVENTS[event](m, seats)
    elif reaction is Reaction.IGNORE:
        assert EVENTS[event](m, seats) == ()
        assert (m.state, m.last_add_confirmed, m.metadata, m.pending_count) == before
    else:
        EVENTS[event](m, seats)
        if event is WriterEvent.ADDED and state is WriterState.WRITING:
            assert m.last_add_confirmed == 0
        if event is WriterEvent.ADDED and state in (WriterState.PICKING, WriterState.CHANGING, WriterState.CHECKING):
            assert m.last_add_confirmed == -1  # frozen
        if event in (WriterEvent.REFUSED, WriterEvent.METADATA_FAILED, WriterEvent.ABORT, WriterEvent.REPLACE_FAILED):
            assert m.state is WriterState.FAILED


# ---------------------------------------------------------------------------------------- adds


def test_entries_are_acknowledged_in_order_and_adds_carry_the_lac() -> None:
    m = machine()
    sends = [add(m) for _ in range(3)]
    assert [(s.entry_id, s.last_add_confirmed, s.length) for s in sends] == [(0, -1, 10), (1, -1, 20), (2, -1, 30)]
    a, b, c = m.seats
    assert m.added(a, 1) == ()
    assert m.added(b, 1) == ()
    assert m.added(c, 2) == ()
    assert m.added(a, 0) == ()
    assert m.added(b, 0) == (Acknowledged(0, 1),)
    assert add(m).last_add_confirmed == 1
    assert m.acknowledged_length == 20
    assert m.added(c, 0) == ()


def test_entries_that_a_bookie_stored_together_are_acknowledged_together_up_to_the_first_gap() -> None:
    m = machine()
    for _ in range(5):
        add(m)
    a, b, c = m.seats
    assert m.added(a, 0, 1, 2, 4) == ()
    assert m.added(b, 4, 1, 0, 9) == (Acknowledged(0, 1),)
    assert m.acknowledged_length == 20
    assert m.added(c, 3, 1, 2) == (Acknowledged(2, 2),)
    assert m.added(a, 3) == (Acknowledged(3, 4),)


def test_one_bookie_counts_once_however_often_it_answers() -> None:
    m = machine()
    add(m)
    assert m.added(m.seats[0], 0, 0) == ()
    assert m.added(m.seats[0], 0) == ()
    assert m.last_add_confirmed == -1


def test_an_entry_goes_to_its_write_set_only() -> None:
    m = machine(opened(5, 3, 2))
    for entry in range(7):
        assert tuple(seat.index for seat in add(m).seats) == write_set(entry, 5, 3)


def test_fenced_is_fatal_and_nothing_is_acknowledged_later() -> None:
    error = LedgerFencedError("x")
    m = machine()
    seats = m.seats
    add(m)
    m.added(seats[0], 0)
    assert m.refused(seats[2], 0, error) == (Failed(error),)
    assert m.added(seats[1], 0) == ()
    assert m.last_add_confirmed == -1
    with pytest.raises(type(error)):
        m.add(1)
    with pytest.raises(type(error)):
        m.close()


# ---------------------------------------------------------------------------------------- ensemble change


def test_acknowledgement_freezes_from_the_start_of_a_change_to_its_end_d4_d5() -> None:
    m = machine()
    for _ in range(3):
        add(m)
    a, b, c = m.seats
    m.added(a, 0), m.added(b, 0)
    assert m.last_add_confirmed == 0
    picking = one(m.refused(c, 1, DOWN), PickReplacements)
    assert picking == PickReplacements(("a", "b", "c"), (2,), frozenset("abc"), False, 3, ack_quorum=2)
    assert m.added(a, 1) == m.added(b, 1) == ()  # complete, yet not acknowledged
    write = one(m.picked({2: "d"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == (Ensemble(0, ("a", "b", "c")), Ensemble(1, ("a", "b", "d")))
    assert m.added(a, 2) == m.added(b, 2) == ()
    effects = m.metadata_written(write.metadata, 1)
    assert [type(e) for e in effects] == [Resend, Resend, Acknowledged]
    assert [e.entry_id for e in effects if isinstance(e, Resend)] == [1, 2]  # in entry order
    assert all([s.bookie for s in e.seats] == ["d"] for e in effects if isinstance(e, Resend))
    assert effects[-1] == Acknowledged(1, 2)


def test_a_replaced_bookies_acknowledgements_of_pending_entries_no_longer_count() -> None:
    m = machine()
    add(m), add(m)
    a, b, c = m.seats
    m.added(a, 1)  # entry 1 is on a, which then fails entry 0
    m.refused(a, 0, DOWN)
    write = one(m.picked({0: "d"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == (Ensemble(0, ("d", "b", "c")),)  # replaced: nothing was committed in it
    m.metadata_written(write.metadata, 1)
    m.added(b, 0), m.added(c, 0)
    assert m.added(b, 1) == ()  # a's is void
    assert m.added(a, 1) == ()  # and stays so: the event speaks of a seat that is gone (D12)
    assert m.added(c, 1) == (Acknowledged(1, 1),)


def test_failures_during_a_change_lead_to_another_before_anything_is_acknowledged() -> None:
    m = machine(opened(4, 4, 2))
    add(m)
    a, b, c, d = m.seats
    m.refused(a, 0, DOWN)
    write = one(m.picked({0: "x"}), WriteMetadata)
    assert m.refused(b, 0, DOWN) == ()
    assert m.refused(a, 0, DOWN) == ()
    m.added(c, 0), m.added(d, 0)
    assert isinstance(write, WriteMetadata)
    effects = m.metadata_written(write.metadata, 1)
    assert isinstance(effects[0], Resend)
    again = one(effects, PickReplacements)
    assert isinstance(again, PickReplacements)
    assert again.indices == (1,)
    assert {"a", "b"} <= again.excluded  # what failed since the LAC last moved is not picked again
    assert m.last_add_confirmed == -1
    write = one(m.picked({1: "y"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert Acknowledged(0, 0) in m.metadata_written(write.metadata, 2)
    assert [s.bookie for s in m.seats] == ["x", "y", "c", "d"]


def test_adds_during_a_change_go_to_the_others_at_once_and_to_the_new_bookie_after_it() -> None:
    m = machine()
    add(m)
    write = change_to_writing(m)
    assert [s.bookie for s in add(m).seats] == ["b", "c"]
    effects = m.metadata_written(write.metadata, 1)
    assert [(e.entry_id, e.seats[0].bookie) for e in effects if isinstance(e, Resend)] == [(0, "x"), (1, "x")]


def test_a_failure_of_an_acknowledged_entry_changes_the_ensemble_when_the_next_add_comes() -> None:
    m = machine()
    add(m)
    a, b, c = m.seats
    m.added(a, 0), m.added(b, 0)
    assert m.refused(c, 0, DOWN) == ()
    effects = m.add(5)
    assert isinstance(effects[0], Send)
    assert [s.bookie for s in effects[0].seats] == ["b", "a"] or [s.index for s in effects[0].seats] == [1, 0]
    assert isinstance(effects[1], PickReplacements)
    write = one(m.picked({2: "d"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.last_ensemble == Ensemble(1, ("a", "b", "d"))


@pytest.mark.parametrize("applied", [True, False])
def test_a_change_of_unknown_outcome_is_looked_up_and_never_assumed(applied: bool) -> None:
    m = machine()
    add(m)
    b, c = m.seats[1:]
    write = change_to_writing(m)
    m.added(b, 0), m.added(c, 0)
    assert m.metadata_doubtful() == (ReadMetadata(),)
    effects = m.metadata_found(write.metadata if applied else opened(), 1 if applied else 0)
    if applied:
        assert effects[-1] == Acknowledged(0, 0)
    else:
        assert effects == (WriteMetadata(write.metadata, 0),)
        assert m.frozen


def test_an_earlier_attempt_that_turns_up_late_is_adopted() -> None:
    m = machine()
    add(m)
    first = change_to_writing(m, "x")
    m.metadata_doubtful()
    assert isinstance(m.metadata_found(opened(), 0)[0], WriteMetadata)  # tried again
    m.metadata_doubtful()  # conflict: the first attempt was applied after all
    effects = m.metadata_found(first.metadata, 1)
    assert isinstance(effects[0], Resend)
    assert m.state is WriterState.WRITING


def test_a_conflict_with_re_replication_elsewhere_is_merged() -> None:
    metadata = LedgerMetadata(3, 3, 2, (Ensemble(0, ("p", "q", "r")), Ensemble(5, ("a", "b", "c"))))
    m = WriterMachine(7, metadata, 4, last_add_confirmed=4)
    add(m)
    change_to_writing(m)
    m.metadata_doubtful()
    moved = LedgerMetadata(3, 3, 2, (Ensemble(0, ("p", "z", "r")), Ensemble(5, ("a", "b", "c"))))
    write = one(m.metadata_found(moved, 9), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.version == 9
    assert write.metadata.ensembles == (Ensemble(0, ("p", "z", "r")), Ensemble(5, ("x", "b", "c")))


def test_a_pick_that_has_come_in_elsewhere_is_not_put_in_twice() -> None:
    m = machine()
    add(m)
    change_to_writing(m, "x")
    m.metadata_doubtful()
    effects = m.metadata_found(opened().with_ensemble(0, ("a", "x", "c")), 3)
    picking = one(effects, PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.bookies == ("a", "x", "c")
    assert picking.indices == (0,)


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_ledger_found_taken_over_fails_every_pending_add(state: LedgerState) -> None:
    m = machine()
    add(m), add(m)
    change_to_writing(m)
    m.metadata_doubtful()
    found = opened().with_state(state) if state is LedgerState.IN_RECOVERY else opened().closed(1, 20)
    failed = one(m.metadata_found(found, 1), Failed)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LedgerFencedError)
    assert isinstance(failed.error, OutcomeUnknownError)  # the recoverer's end includes pending entries
    assert m.pending_count == 0


def test_a_ledger_found_closed_at_the_lac_says_that_pending_entries_are_not_in_it() -> None:
    m = machine()
    add(m)
    change_to_writing(m)
    m.metadata_doubtful()
    failed = one(m.metadata_found(opened().closed(-1, 0), 1), Failed)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LedgerClosedError)


def test_without_replacement_the_seat_is_left_vacant_while_an_ack_quorum_is_left() -> None:
    m = machine()
    add(m)
    a, b, c = m.seats
    m.refused(a, 0, DOWN)
    m.added(b, 0), m.added(c, 0)
    assert m.picked({}) == (Acknowledged(0, 0),)
    assert m.vacant == {0}
    assert [s.bookie for s in add(m).seats] == ["b", "c"]
    assert m.refused(a, 1, DOWN) == ()
    assert m.metadata == opened()


def test_a_bookie_that_failed_while_nothing_was_pending_is_picked_where_there_is_no_other() -> None:
    """Its seat was filled again too early: it failed after the last entry was acknowledged, and came back later."""
    m = machine()
    add(m)
    a, b, c = m.seats
    m.refused(a, 0, DOWN)
    m.picked({})
    m.retry_vacancies()
    m.picked({0: "a"})
    m.added(b, 0), m.added(c, 0)
    assert m.last_add_confirmed == 0
    m.refused(m.seats[0], 0, DOWN)
    picking = one(m.add(1), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert "a" in picking.excluded  # anybody else is better
    m.picked({})
    picking = one(m.refused(b, 1, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    picking = one(m.picked({}), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.indices == (0, 1)
    assert picking.excluded == {"b", "c"}
    m.picked({0: "a"})
    picking = one(m.refused(m.seats[0], 1, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert "a" in picking.excluded  # an entry was waiting for it: else it would be picked for ever
    assert isinstance(one(m.picked({}), Failed), Failed)


def test_a_vacancy_is_filled_by_the_same_bookie_come_back_without_a_write() -> None:
    m = machine()
    add(m)
    m.refused(m.seats[0], 0, DOWN)
    m.picked({})
    picking = one(m.retry_vacancies(), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.indices == (0,)
    old = m.seats[0]
    effects = m.picked({0: "a"})
    assert [e.entry_id for e in effects if isinstance(e, Resend)] == [0]
    assert m.vacant == frozenset()
    assert m.seats[0] is not old
    assert m.added(old, 0) == ()


def test_without_replacement_and_ack_quorum_the_writer_fails_as_unknown() -> None:
    m = machine(opened(3, 3, 3))
    add(m)
    picking = one(m.refused(m.seats[0], 0, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.last_resort
    failed = one(m.picked({}), Failed)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, QuorumWriteError)
    assert "no replacement for a" in str(failed.error)


def test_with_delayed_changes_a_failure_waits_until_the_quorum_is_in_danger() -> None:
    m = machine(delay_ensemble_change=True)
    add(m)
    a, b, _ = m.seats
    assert m.refused(a, 0, DOWN) == ()
    picking = one(m.refused(b, 0, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.indices == (0, 1)


def test_with_delayed_changes_a_read_only_bookie_is_replaced_at_once() -> None:
    m = machine(delay_ensemble_change=True)
    add(m)
    assert isinstance(m.refused(m.seats[0], 0, ReadOnlyError("full"))[0], PickReplacements)


def test_adds_of_a_recovery_carry_the_lac_that_it_found_not_its_own_progress_i18() -> None:
    m = WriterMachine(7, opened().with_state(LedgerState.IN_RECOVERY), 3, last_add_confirmed=4, recovering=True)
    (first,) = m.add(10, 60)
    assert isinstance(first, Send)
    m.added(first.seats[0], 5)
    assert m.added(first.seats[1], 5) == (Acknowledged(5, 5),)
    (second,) = m.add(10, 70)
    assert isinstance(second, Send)
    assert (first.last_add_confirmed, second.last_add_confirmed) == (4, 4)
    assert m.last_add_confirmed == 5


def test_changes_of_a_recovery_stay_local_i18() -> None:
    m = WriterMachine(7, opened().with_state(LedgerState.IN_RECOVERY), 3, last_add_confirmed=4, recovering=True)
    m.add(10, 60)
    m.refused(m.seats[1], 5, DOWN)
    effects = m.picked({1: "d"})
    assert not any(isinstance(e, WriteMetadata) for e in effects)
    assert m.metadata.ensembles == (Ensemble(0, ("a", "b", "c")), Ensemble(5, ("a", "d", "c")))
    assert m.metadata.state is LedgerState.IN_RECOVERY


# ---------------------------------------------------------------------------------------- strangers


def test_a_bookie_with_another_key_is_replaced_for_good() -> None:
    m = machine()
    add(m)
    picking = one(m.refused(m.seats[0], 0, STRANGER), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.strangers == {"a"}
    write = one(m.picked({0: "x"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == (Ensemble(0, ("x", "b", "c")),)  # nothing was acknowledged: it is nowhere named
    m.metadata_written(write.metadata, 1)
    m.added(m.seats[1], 0), m.added(m.seats[2], 0)
    assert m.last_add_confirmed == 0
    add(m)  # what failed before the LAC moved may be picked again, but for strangers
    picking = one(m.refused(m.seats[1], 1, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert "a" in picking.excluded


def test_a_new_bookie_with_another_key_is_replaced_in_the_midst_of_a_ledger() -> None:
    m = machine()
    add(m)
    m.added(m.seats[1], 0), m.added(m.seats[2], 0)
    add(m)
    m.refused(m.seats[0], 1, DOWN)
    write = one(m.picked({0: "x"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    m.metadata_written(write.metadata, 1)
    picking = one(m.refused(m.seats[0], 1, STRANGER), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert "x" in picking.excluded
    write = one(m.picked({0: "y"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert [e.bookies for e in write.metadata.ensembles] == [("a", "b", "c"), ("y", "b", "c")]
    assert write.metadata.last_ensemble.first_entry == 1
    m.metadata_written(write.metadata, 2)
    assert m.added(m.seats[0], 1) == ()
    assert m.added(m.seats[1], 1) == (Acknowledged(1, 1),)


def test_a_bookie_with_another_key_goes_out_of_the_whole_fragment_even_while_nothing_is_pending() -> None:
    m = machine()
    add(m)
    m.added(m.seats[1], 0), m.added(m.seats[2], 0)
    one(m.refused(m.seats[0], 0, STRANGER), PickReplacements)  # no reader may be given what it holds
    write = one(m.picked({0: "x"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == (Ensemble(0, ("x", "b", "c")),)
    m.metadata_written(write.metadata, 1)
    m.add(1)
    m.refused(m.seats[1], 1, DOWN)
    m.refused(m.seats[2], 1, STRANGER)
    write = one(m.picked({1: "y"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    m.metadata_written(write.metadata, 2)
    write = one(m.picked({2: "z"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == (Ensemble(0, ("x", "b", "c")), Ensemble(1, ("x", "y", "z")))


def test_a_cautious_writer_hears_every_bookie_before_it_acknowledges_their_first_entry() -> None:
    m = machine()
    m.be_cautious()
    add(m), add(m)
    a, b, c = m.seats
    m.added(a, 0, 1)
    assert m.added(b, 0, 1) == ()  # an ack quorum; but readers may ask c, too
    one(m.refused(c, 0, STRANGER), PickReplacements)
    write = one(m.picked({2: "x"}), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    m.metadata_written(write.metadata, 1)
    assert m.last_add_confirmed == -1  # nor is x known yet
    assert m.added(m.seats[2], 0) == (Acknowledged(0, 1),)
    add(m)
    m.added(a, 2)
    assert m.added(b, 2) == (Acknowledged(2, 2),)  # from then on an ack quorum is enough


@pytest.mark.parametrize("answer", ["failure", "none"])
def test_a_cautious_writer_does_not_wait_for_a_bookie_that_is_away(answer: str) -> None:
    m = machine(delay_ensemble_change=True)
    m.be_cautious()
    add(m)
    m.added(m.seats[0], 0), m.added(m.seats[1], 0)
    assert m.last_add_confirmed == -1
    effects = m.refused(m.seats[2], 0, DOWN) if answer == "failure" else m.heard_enough()
    assert effects == (Acknowledged(0, 0),)


def test_a_taken_ledger_is_closed_empty_and_all_that_is_pending_goes_to_another() -> None:
    m = machine()
    m.replacements_left = 1
    add(m, 10), add(m, 20)
    m.added(m.seats[2], 0)
    old = m.seats
    m.refused(old[0], 0, STRANGER)
    m.refused(old[1], 0, STRANGER)
    write = one(m.picked({0: "x"}), WriteMetadata)  # one seat is not filled: the other stranger has to be dealt with
    assert isinstance(write, WriteMetadata)
    effects = m.metadata_written(write.metadata, 1)
    write = one(effects, WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.is_closed
    assert write.metadata.last_entry == -1
    assert add(m, 30).seats == ()  # waits
    replace = one(m.metadata_written(write.metadata, 2), ReplaceLedger)
    assert isinstance(replace, ReplaceLedger)
    assert isinstance(replace.error, LedgerTakenError)
    assert m.added(old[1], 0) == m.added(old[2], 0) == ()  # of a ledger that is not ours
    effects = m.replaced(8, opened(names="uvwxyz"), 0)
    assert effects[0] == Moved()
    sends = [effect for effect in effects[1:] if isinstance(effect, Send)]
    assert [(s.entry_id, s.last_add_confirmed, s.length) for s in sends] == [(0, -1, 10), (1, -1, 30), (2, -1, 60)]
    assert {seat.bookie for send in sends for seat in send.seats} == set("uvw")
    assert m.ledger_id == 8
    for seat in m.seats[:2]:
        m.added(seat, 0, 1, 2)
    assert (m.last_add_confirmed, m.acknowledged_length) == (2, 60)


def test_a_taken_ledger_that_may_not_be_replaced_fails_and_may_be_closed_empty() -> None:
    m = machine(opened(3, 3, 3))
    add(m)
    effects = m.refused(m.seats[0], 0, STRANGER)
    assert isinstance(effects[0], Failed)
    assert isinstance(effects[0].error, LedgerTakenError)
    write = one(m.close(), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.last_entry == -1


def test_a_ledger_with_acknowledged_entries_is_never_given_up() -> None:
    m = machine()
    m.replacements_left = 1
    add(m)
    m.added(m.seats[1], 0), m.added(m.seats[2], 0)
    m.refused(m.seats[0], 0, STRANGER)
    add(m)
    assert m.picked({}) == ()  # a vacancy: an ack quorum is left
    assert m.state is WriterState.WRITING
    m.added(m.seats[1], 1)
    effects = m.refused(m.seats[2], 1, STRANGER)
    assert isinstance(effects[0], PickReplacements)
    effects = m.picked({})
    assert isinstance(effects[0], Failed)
    assert not isinstance(effects[0].error, LedgerTakenError)


def test_a_taken_ledger_that_somebody_recovers_is_left_to_him() -> None:
    m = machine(opened(3, 3, 3))
    m.replacements_left = 1
    add(m)
    assert isinstance(m.refused(m.seats[0], 0, STRANGER)[0], WriteMetadata)
    assert m.metadata_doubtful() == (ReadMetadata(),)
    effects = m.metadata_found(opened(3, 3, 3).with_state(LedgerState.IN_RECOVERY), 1)
    assert isinstance(effects[0], Failed)
    assert isinstance(effects[0].error, LedgerFencedError)


@pytest.mark.parametrize("applied", [True, False])
def test_whether_a_taken_ledger_was_closed_is_looked_up_and_never_assumed(applied: bool) -> None:
    m = machine(opened(3, 3, 3))
    m.replacements_left = 1
    add(m)
    m.refused(m.seats[0], 0, STRANGER)
    m.metadata_doubtful()
    metadata = opened(3, 3, 3)
    effects = m.metadata_found(metadata.closed(-1, 0) if applied else metadata, 1 if applied else 0)
    assert isinstance(effects[0], ReplaceLedger if applied else WriteMetadata)


def test_a_close_while_the_ledger_is_replaced_waits_for_the_entries() -> None:
    m = in_state(WriterState.REPLACING)
    assert m.close() == ()
    m.replaced(8, opened(names="uvwxyz"), 0)
    assert m.added(m.seats[0], 0) == ()
    write = one(m.added(m.seats[1], 0), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.last_ensemble.bookies) == (0, tuple("uvw"))


def test_a_metadata_failure_leaves_pending_adds_unknown_whatever_it_says_of_itself() -> None:
    m = machine()
    add(m)
    change_to_writing(m)
    failed = one(m.metadata_failed(MetadataUnavailableError("away")), Failed)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, OutcomeUnknownError)


# ---------------------------------------------------------------------------------------- close


def test_close_waits_for_pending_adds_and_writes_lac_and_length() -> None:
    m = machine()
    add(m, 10), add(m, 5)
    assert m.close() == ()
    with pytest.raises(LedgerClosedError):
        m.add(1)
    a, b, _ = m.seats
    m.added(a, 0), m.added(b, 0), m.added(a, 1)
    effects = m.added(b, 1)
    write = one(effects, WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.state, write.metadata.last_entry, write.metadata.length) == (LedgerState.CLOSED, 1, 15)
    assert m.metadata_written(write.metadata, 1) == (Closed(write.metadata),)


def test_an_empty_ledger_closes_at_minus_one() -> None:
    write = one(machine().close(), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (-1, 0)


def test_close_of_unknown_outcome_is_compared_with_what_is_found() -> None:
    m = machine()
    m.close()
    m.metadata_doubtful()
    assert isinstance(m.metadata_found(opened(), 5)[0], WriteMetadata)
    m.metadata_doubtful()
    assert isinstance(m.metadata_found(opened().closed(-1, 0), 6)[0], Closed)


def test_another_end_than_ours_fails_the_close() -> None:
    m = machine()
    m.close()
    m.metadata_doubtful()
    assert isinstance(m.metadata_found(opened().closed(3, 30), 6)[0], Failed)
    with pytest.raises(LedgerFencedError):
        m.close()


def test_a_ledger_in_recovery_is_left_to_its_recoverer() -> None:
    m = machine()
    m.close()
    m.metadata_doubtful()
    failed = m.metadata_found(opened().with_state(LedgerState.IN_RECOVERY), 1)[0]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LedgerFencedError)


def test_a_writer_without_quorum_may_still_close_at_its_lac() -> None:
    m = machine(opened(3, 3, 3))
    add(m, 10)
    for seat in m.seats:
        m.added(seat, 0)
    add(m, 7)
    m.refused(m.seats[0], 1, DOWN)
    m.picked({})
    write = one(m.close(), WriteMetadata)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (0, 10)


def test_a_close_that_could_not_be_looked_up_is_unknown_and_may_be_tried_again() -> None:
    m = machine()
    m.close()
    m.metadata_doubtful()
    failed = m.metadata_failed(MetadataUnavailableError("away"))[0]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, OutcomeUnknownError)
    assert isinstance(m.close()[0], WriteMetadata)


# ---------------------------------------------------------------------------------------- random schedules


class Model:
    """A cluster that plays an edge: bookies store what they are sent, answers arrive in any order."""

    def __init__(self, e: int, w: int, a: int, delay: bool, choose: Callable[[int], int]) -> None:
        self.choose = choose
        self.sizes = (e, w, a)
        self.metadata = opened(e, w, a, "abcdefghij")
        self.version = 0
        self.m = WriterMachine(7, self.metadata, 0, delay_ensemble_change=delay)
        self.stored: dict[str, set[int]] = {name: set() for name in "abcdefghij"}
        self.mail: list[Callable[[], None]] = []
        self.acknowledged: list[int] = []
        self.failed = False
        self.fenced = False

    def run(self, effects: Effects) -> None:
        for effect in effects:
            self.obey(effect)

    def obey(self, effect: Effect) -> None:
        if isinstance(effect, Send | Resend):
            for seat in effect.seats:
                self.mail.append(lambda seat=seat: self.deliver(seat, effect.entry_id))  # type: ignore[misc]
        elif isinstance(effect, Acknowledged):
            assert not self.m.frozen
            assert not self.failed
            for entry in range(effect.first, effect.last + 1):
                self.acknowledge(entry)
        elif isinstance(effect, PickReplacements):
            self.mail.append(lambda: self.pick(effect))
        elif isinstance(effect, WriteMetadata):
            self.mail.append(lambda: self.write(effect))
        elif isinstance(effect, ReadMetadata):
            self.mail.append(lambda: self.run(self.m.metadata_found(self.metadata, self.version)))
        elif isinstance(effect, Failed):
            self.failed = True

    def acknowledge(self, entry: int) -> None:
        """I1, I5: an ack quorum of the write set, in the ensemble that the *metadata* names, has the entry."""
        assert entry == len(self.acknowledged)  # in order, once
        self.acknowledged.append(entry)
        ensemble = self.metadata.ensemble_for(entry).bookies
        holders = [i for i in write_set(entry, self.sizes[0], self.sizes[1]) if entry in self.stored[ensemble[i]]]
        assert len(holders) >= self.sizes[2]

    def deliver(self, seat: Seat, entry: int) -> None:
        outcome = self.choose(8)
        if self.fenced:
            self.mail.append(lambda: self.run(self.m.refused(seat, entry, LedgerFencedError("fenced"))))
            return
        if outcome != 0:
            self.stored[seat.bookie].add(entry)
        if outcome <= 1:  # refused, or stored and the answer lost
            self.mail.append(lambda: self.run(self.m.refused(seat, entry, DOWN)))
        else:
            self.mail.append(lambda: self.run(self.m.added(seat, entry)))

    def pick(self, wanted: PickReplacements) -> None:
        free = sorted(set(self.stored) - set(wanted.bookies) - wanted.excluded)
        picked = {}
        for index in wanted.indices:
            if free and self.choose(4):
                picked[index] = free.pop(self.choose(len(free)))
        self.run(self.m.picked(picked))

    def write(self, effect: WriteMetadata) -> None:
        outcome = self.choose(4)
        if effect.version == self.version and outcome != 0:
            self.metadata, self.version = effect.metadata, self.version + 1
            if outcome > 1:
                self.mail.append(lambda v=self.version: self.run(self.m.metadata_written(effect.metadata, v)))  # type: ignore[misc]
                return
        self.mail.append(lambda: self.run(self.m.metadata_doubtful()))

    def step(self) -> None:
        if self.mail:
            self.mail.pop(self.choose(len(self.mail)))()
        assert self.m.last_add_confirmed == len(self.acknowledged) - 1
        last = self.metadata.last_ensemble
        if not self.failed:
            assert last.first_entry <= self.m.last_add_confirmed + 1  # D5: no acknowledged entry changes its fragment


@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from([(3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (4, 4, 2), (1, 1, 1)]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 8),
    st.integers(0, 120),
    st.integers(0, 2**32),
)
def test_random_schedules_keep_i1_i3_i5_and_the_lac_rules(
    sizes: tuple[int, int, int], delay: bool, close: bool, adds: int, fence_at: int, schedule: int
) -> None:
    model = Model(*sizes, delay, random.Random(schedule).randrange)
    for step in range(400):
        if adds and (not model.mail or model.choose(3) == 0) and not model.failed:
            adds -= 1
            model.run(model.m.add(10))
        elif model.mail:
            model.step()
        elif model.m.vacant and not model.failed and model.m.pending_count:
            model.run(model.m.retry_vacancies())
        else:
            break
        model.fenced = model.fenced or step == fence_at
    if model.failed:
        return
    if not model.mail and not model.m.vacant:
        assert model.m.pending_count == 0  # nothing is left waiting for an answer that will never come
    if close and not model.mail:
        model.run(model.m.close())
        for _ in range(50):
            model.step()
        if model.m.state is WriterState.CLOSED:
            assert model.metadata.state is LedgerState.CLOSED
            assert model.metadata.last_entry == len(model.acknowledged) - 1
            assert model.metadata.length == 10 * len(model.acknowledged)


# ---------------------------------------------------------------------------------------- fault domains


def in_two_racks(bookies: Sequence[str]) -> bool:
    """a and b are in one rack, everybody else is in another."""
    return len({bookie in "ab" for bookie in bookies}) == 2


def test_an_ack_quorum_in_one_fault_domain_completes_nothing() -> None:
    m = WriterMachine(7, opened(), 0, spans_domains=in_two_racks)
    add(m), add(m)
    a, b, c = m.seats
    assert m.added(a, 0) == m.added(b, 0) == m.added(b, 1) == m.added(c, 1) == ()
    assert m.last_add_confirmed == -1
    assert one(m.added(c, 0), Acknowledged) == Acknowledged(0, 1)


def test_a_write_set_left_with_one_fault_domain_has_lost_its_quorum() -> None:
    m = WriterMachine(7, opened(), 0, spans_domains=in_two_racks)
    add(m)
    picking = one(m.refused(m.seats[2], 0, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert picking.last_resort, "a and b would do by number"
    assert isinstance(one(m.picked({}), Failed), Failed)

    m = WriterMachine(7, opened(), 0, spans_domains=in_two_racks)
    add(m)
    picking = one(m.refused(m.seats[0], 0, DOWN), PickReplacements)
    assert isinstance(picking, PickReplacements)
    assert not picking.last_resort
    m.picked({})
    m.added(m.seats[1], 0)
    assert one(m.added(m.seats[2], 0), Acknowledged) == Acknowledged(0, 0)
